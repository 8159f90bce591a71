"""One call of a tool, from the model's text to words for the model (S8).

This room hides how a stranger's code is run: checked and approved first, in a thread or awaited, ended when its time is
up, and whatever it raises made into text. It never raises for what a model or a tool did wrong.
"""

import asyncio
import contextvars
import copy
import inspect
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from lamina.errors import LaminaError, shown
from lamina.layers.signatures import parsed, problems
from lamina.layers.tools import Tool
from lamina.ports import Ask
from lamina.types import Decision, Outcome, ToolCallEvent

GRACE = 2.0
"""Seconds that a tool gets to tidy up when it is ended. A thread cannot be ended; it is waited for as long."""
MAX_ERROR = 2_000
NO_DETOUR = "Do not try to reach the same by another command, tool or file."


async def run_call(tools: Mapping[str, Tool], call: ToolCallEvent, ask: Ask | None) -> Outcome:
    tool = tools.get(call.name)
    if tool is None:
        return _failed(f"there is no tool named {shown(call.name)}. Known: {', '.join(tools) or 'none'}.")
    if tool.run is None:
        return _failed(f"{tool.name} is only described here and cannot be run. Go on without it.")
    arguments, wrong = parsed(call.arguments)
    if wrong:
        return _failed(
            f"{tool.name} was not run: its arguments are not usable, {wrong}. They were {shown(call.arguments, 200)}. "
            f"Call it again with one JSON object, as its schema says."
        )
    misfits = problems(tool.parameters, arguments)
    if misfits:
        return _failed(
            f"{tool.name} was not run: {'; '.join(misfits)}. Call it again with arguments that fit its schema."
        )
    stopped = await _gate(tool, call, arguments, ask)
    return stopped or await _run(tool, tool.run, arguments)


async def _gate(tool: Tool, call: ToolCallEvent, arguments: dict[str, Any], ask: Ask | None) -> Outcome | None:
    """None when the call may run. What cannot be decided does not run."""
    if tool.check is None:
        return None
    decision = await _value(tool, tool.check, copy.deepcopy(arguments))
    if isinstance(decision, Outcome):
        return decision
    if not isinstance(decision, Decision):
        return _failed(f"{tool.name} was not run: its check gave {shown(decision)} and no decision.")
    if decision.verdict == "safe":
        return None
    reason = f": {decision.reason}" if decision.reason else ""
    if decision.verdict != "confirm":
        return Outcome(f"{tool.name} was blocked{reason}. {NO_DETOUR} Say what you wanted to do.", "blocked")
    if ask is None:
        words = f"{tool.name} was not run, since it needs a yes and nobody is there to ask{reason}. "
        return Outcome(f"{words}{NO_DETOUR} Say what you wanted to do.", "refused")
    if await ask(call, decision) is not True:
        return Outcome(
            f"The user said no to this call of {tool.name}{reason}. {NO_DETOUR} Ask how to go on.", "refused"
        )
    return None


async def _run(tool: Tool, run: Callable[..., Any], arguments: dict[str, Any]) -> Outcome:
    value = await _value(tool, run, **arguments)
    return value if isinstance(value, Outcome) else _as_outcome(tool, value)


async def _value(tool: Tool, function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
    """What a function of the tool gave; an `Outcome` when it failed or was late. It raises our own cancellation."""
    kept = _Kept(asyncio.CancelledError, KeyboardInterrupt)
    task = asyncio.ensure_future(_called(kept, function, args, named))
    try:
        await asyncio.wait({task}, timeout=tool.seconds)
        late = not task.done()
    finally:
        for _ in range(3):  # it is late, or we are cancelled; and it may not listen at once
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=GRACE * 1.5)
    if late:
        return _failed(
            f"{tool.name} was ended: it was not done after {tool.seconds:g} seconds. What it did until then may be in "
            "effect; look before you call it again, and ask it for less."
        )
    if task.cancelled():
        return _failed(f"{tool.name} gave up by itself (CancelledError). Try once more, or go on without it.")
    return _failed(_words(tool, kept.error)) if kept.error is not None else task.result()


async def _called(kept: "_Kept", function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    value: Any = None
    with kept:
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004 -- an object whose call is async
            value = await function(*args, **named)
        else:
            value = await in_thread(function, *args, **named)
            value = await value if inspect.isawaitable(value) else value
    return value


async def in_thread(function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
    """A blocking function in a thread of its own that nobody waits for at exit, so a stuck one hinders no other."""
    loop, kept = asyncio.get_running_loop(), _Kept()
    done: asyncio.Future[None] = loop.create_future()
    value: list[Any] = []

    def end() -> None:
        if not done.done():
            done.set_result(None)

    def work() -> None:
        with kept:
            value.append(function(*args, **named))
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(end)

    threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True).start()
    try:
        await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait({done}, timeout=GRACE)
        raise
    if kept.error is not None:
        raise kept.error
    return value[0]


class _Kept:
    """Keeps whatever a stranger's code raises in its block, but for what has to pass."""

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


def _words(tool: Tool, error: BaseException) -> str:
    if isinstance(error, LaminaError):
        return _clean(f"{tool.name} failed: {error.message}." + (f" Next: {error.hint}." if error.hint else ""))
    said = _clean(_said(error))[:MAX_ERROR]
    return f"{tool.name} failed: {type(error).__name__}: {said}. Check the arguments, or go on without it."


def _said(error: BaseException) -> str:
    kept, said = _Kept(), ""
    with kept:  # a stranger's exception may fail to speak
        said = str(error)
    return said if kept.error is None else "it has no words"


def _as_outcome(tool: Tool, value: object) -> Outcome:
    if value is None:
        return Outcome(f"{tool.name} is done.")
    if isinstance(value, str):
        return Outcome(_clean(value))
    try:
        return Outcome(_clean(json.dumps(value, ensure_ascii=False, allow_nan=False)))
    except (TypeError, ValueError, RecursionError) as error:
        return _failed(f"{tool.name} gave a {type(value).__name__}, which is neither text nor JSON ({error}).")


def _clean(text: str) -> str:
    """Text that can be stored and sent: half of a surrogate pair becomes visible."""
    return text.encode("utf-8", "backslashreplace").decode()


def _failed(text: str) -> Outcome:
    return Outcome(text, "failed")
