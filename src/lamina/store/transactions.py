"""Transactions of SQLite that wait for a thread: who waits for which, how the statements of one are run, and what of
their errors is only damage to derived tables.
"""

import asyncio
import contextlib
import math
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from lamina.errors import LaminaError
from lamina.store.database import IndexDamageError, Make, OutOfTimeError, Row, Statement, Steps
from lamina.store.schema import derived_group
from lamina.text.unicode import SLICE_SIZE, encode_text

T = TypeVar("T")

CACHED_TABLES = ("prompt_template", "user_profile", "atomic_memory", "session_summary")
"""Tables that change rarely and are read on every turn: results are cached until one of them changes. No other process
writes to the file."""
DAMAGE = {
    sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_SCHEMA, sqlite3.SQLITE_FORMAT,
}  # fmt: skip
"""What a statement on derived tables says when they are damaged, changed or gone; all else has another cause."""

READERS, OWNER_READS, SEARCHES = 4, 2, 2
"""Threads that read; and how many of them one owner's reads, and searches in all, take at once."""
STEPS_BETWEEN_LOOKS = 20_000
"""Steps of SQLite's machine, about a millisecond, after which a read looks whether it should go on."""

FAILURES = (
    LaminaError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError, RuntimeError,
    OSError, MemoryError,
)  # fmt: skip
"""What a transaction may raise by itself: it goes to the one who asked, and the thread lives on."""


@dataclass(slots=True)
class Work:
    """A transaction that waits for a thread, and who waits for its result."""

    make: Make[Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    alter: Callable[[sqlite3.Connection], Any] | None = None
    """What changes the tables themselves, in place of `make`."""
    stops: bool = True
    """Whether damage that it meets ends all writing."""
    owner: str = ""
    """Whose read it is; empty for those of lamina itself."""
    seconds: float = 0.0
    """After which a statement of a read is stopped; 0 for no limit."""
    result: Any = None
    error: Exception | None = None


class ReadQueue:
    """Reads that wait for a thread, owner by owner in turn. No owner has more than `OWNER_READS` threads at once, and
    searches, which may take their whole time, no more than `SEARCHES` in all: the others stay free for everybody else.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[tuple[str, bool], deque[Work]] = {}
        self._running: Counter[tuple[str, bool]] = Counter()
        self._ended = False

    def put(self, work: Work) -> None:
        with self._changed:
            self._waiting.setdefault((work.owner, work.seconds > 0), deque()).append(work)
            self._changed.notify()

    def get(self) -> Work | None:
        """The next read that may run; `done` must be told when it has ended. None at the end."""
        with self._changed:
            while True:
                place = next(filter(self._may_run, self._waiting), None)
                if place is not None:
                    queue = self._waiting.pop(place)
                    if len(queue) > 1:  # behind those of the others
                        self._waiting[place] = queue
                    self._running[place] += 1
                    return queue.popleft()
                if self._ended and not self._waiting:
                    return None
                self._changed.wait()

    def _may_run(self, place: tuple[str, bool]) -> bool:
        owner, searches = place
        if not owner:
            return True
        if searches and (self._running[place] or sum(n for each, n in self._running.items() if each[1]) >= SEARCHES):
            return False
        return self._running[owner, False] + self._running[owner, True] < OWNER_READS

    def done(self, work: Work) -> None:
        place = (work.owner, work.seconds > 0)
        with self._changed:
            self._running[place] -= 1
            if not self._running[place]:
                del self._running[place]
            self._changed.notify_all()

    def end(self) -> None:
        """What waits is still read."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class Stopwatch:
    """Stops the statement of a read that was cancelled or is out of time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._work: Work | None = None
        self._until = math.inf
        connection.set_progress_handler(self._should_stop, STEPS_BETWEEN_LOOKS)

    def start(self, work: Work) -> None:
        self._work = work
        self._until = time.monotonic() + work.seconds if work.seconds else math.inf

    def ran_out(self) -> bool:
        """Whether the time is over; what comes after that has no limit, as it only reads what was found."""
        if time.monotonic() < self._until:
            return False
        self._until = math.inf
        return True

    def _should_stop(self) -> bool:
        return time.monotonic() >= self._until or (self._work is not None and self._work.future.cancelled())


def no_steps() -> Steps[Any]:
    yield from ()


def _resolve(done: list[Work]) -> None:
    for work in done:
        if work.future.done():
            continue
        if work.error is not None:
            work.future.set_exception(work.error)
        else:
            work.future.set_result(work.result)


def announce(done: list[Work]) -> None:
    """Tell those who wait; one call into each event loop, however many wait there."""
    for loop in {work.loop for work in done}:
        with contextlib.suppress(RuntimeError):  # that loop has closed
            loop.call_soon_threadsafe(_resolve, [work for work in done if work.loop is loop])


def encode_long(sql: str, values: Sequence[Any]) -> Statement:
    """A statement with its long texts as UTF-8: SQLite would encode each of them in one go. No statement has a question
    mark in a text."""
    if not any(type(value) is str and len(value) > SLICE_SIZE for value in values):
        return sql, values
    given = [encode_text(value) if isinstance(value, str) and len(value) > SLICE_SIZE else value for value in values]
    marks = ["CAST(? AS TEXT)" if one is not value else "?" for one, value in zip(given, values, strict=True)]
    first, *rest = sql.split("?")
    return first + "".join(f"{mark}{piece}" for mark, piece in zip(marks, rest, strict=True)), given


def drive(
    connection: sqlite3.Connection, make: Make[T], damaged: Mapping[str, str], changed: set[str] | None = None,
    watch: Stopwatch | None = None,
) -> T:  # fmt: skip
    """Run a transaction's statements; those that may change one of `CACHED_TABLES` are noted in `changed`, and those on
    `damaged` tables are answered with nothing. One that is out of time ends with an `OutOfTimeError`."""
    steps = make()
    try:
        sql, values = next(steps)
        while True:
            if changed is not None and not sql.startswith("SELECT") and any(name in sql for name in CACHED_TABLES):
                changed.add(sql)
            group = derived_group(sql)
            rows: list[Row] = []
            try:
                if group not in damaged:
                    rows.extend(connection.execute(*encode_long(sql, values)))
            except sqlite3.Error as error:
                code = getattr(error, "sqlite_errorcode", 0)
                if code == sqlite3.SQLITE_INTERRUPT and watch is not None and watch.ran_out():
                    sql, values = steps.throw(OutOfTimeError(rows))
                    continue
                if group and code & 0xFF in DAMAGE:
                    raise IndexDamageError(group, error) from error
                raise
            sql, values = steps.send(rows)
    except StopIteration as end:
        return cast("T", end.value)
    finally:
        steps.close()
