"""Work that grows with the length of a text, in threads: other users wait for the event loop, never for such work.

A thread is enough because the work itself never holds the interpreter for long: what C does with a whole text in one
call (writing JSON, counting) is done in slices, see `lamina.text.json`. It must not be used for what needs the event
loop.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import ParamSpec, TypeVar, TypeVarTuple
from weakref import WeakValueDictionary

from lamina.text.unicode import MAX_LOOP_SIZE

MAX_THREADS = 2
"""Texts that are worked on at once. Each thread may keep the event loop waiting for one switch of the interpreter."""

GRACE_S = 2.0
"""How long a tool may tidy up after it was cancelled. A thread cannot be cancelled, so it is waited for this long."""

Queue = tuple[asyncio.AbstractEventLoop, str]
P = ParamSpec("P")
T = TypeVar("T")
Values = TypeVarTuple("Values")

_threads = ThreadPoolExecutor(MAX_THREADS, "large")  # starts no thread before the first large text
_locks: WeakValueDictionary[Queue, asyncio.Lock] = WeakValueDictionary()
_user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="")


def set_current_user(user: str) -> None:
    """Name the user whose texts this task, and the tasks that it starts, work on."""
    _user.set(user)


async def run_in_user_thread(user: str, work: Callable[[*Values], T], *values: *Values) -> T:
    """Run `work` in a thread, one at a time for each user: a user who sends many long texts at once waits behind their
    own, and leaves a thread to the others."""
    loop = asyncio.get_running_loop()
    lock = _locks.setdefault((loop, user), asyncio.Lock())
    async with lock:
        return await loop.run_in_executor(_threads, work, *values)


async def run_apart(size: int, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Run `work` at once where what it works on is small, else in a thread. It must not change what others see."""
    if size <= MAX_LOOP_SIZE:
        return work(*given, **named)
    context = contextvars.copy_context()
    return await run_in_user_thread(_user.get(), lambda: context.run(work, *given, **named))


async def run_in_own_thread(function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
    """Run a blocking function in a thread of its own: a stuck one delays no other, and not the end of the process."""
    loop, caught = asyncio.get_running_loop(), CaughtError()
    done: asyncio.Future[None] = loop.create_future()
    value: list[T] = []

    def end() -> None:
        if not done.done():
            done.set_result(None)

    def work() -> None:
        with caught:
            value.append(function(*args, **named))
        with suppress(RuntimeError):  # the loop is closed: nothing waits any more
            loop.call_soon_threadsafe(end)

    threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True).start()
    try:
        await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait({done}, timeout=GRACE_S)
        raise
    if caught.error is not None:
        raise caught.error
    return value[0]


class CaughtError:
    """Catches whatever code that is not ours raises in its block, except for the classes that must pass."""

    def __init__(self, *passing: type[BaseException]) -> None:
        self.passing = passing
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        self.error = None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: TracebackType | None) -> bool:
        if error is None or isinstance(error, self.passing):
            return False
        self.error = error
        return True
