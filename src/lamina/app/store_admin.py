"""Maintenance of a whole store: what is in it, export and import as lines, backups, and rebuilding its indexes."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from lamina.app.app import App
from lamina.assembly.history import check_message, repair_message
from lamina.errors import InputError, StoreError
from lamina.records import Job
from lamina.store.admin import COUNTER
from lamina.store.admin import Problem as Problem
from lamina.store.database import hide_password
from lamina.store.lock import create_private as create_private
from lamina.store.lock import make_private_folder as make_private_folder
from lamina.store.store import Store, open_store
from lamina.text.messages import Phrase
from lamina.types import AnyMessage, Message


@contextmanager
def allow_interrupt() -> Generator[None, None, None]:
    """Within it Ctrl-C raises KeyboardInterrupt at once; where it is ignored, it stays so."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in (None, signal.SIG_IGN):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if _is_cancelling():
            raise KeyboardInterrupt
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _is_cancelling() -> bool:
    """Whether Ctrl-C came just before the read."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # there is no event loop
        return False
    return task is not None and task.cancelling() > 0


MAX_LINE_BYTES = 64 * 1024 * 1024
"""Of one line of an export."""
STDIO = "-"


class LineWriter(Protocol):
    def write(self, text: str, /) -> object: ...


@dataclass(frozen=True, slots=True)
class Info:
    """A store from outside; the counts are one owner's."""

    where: str
    kind: str
    version: int
    sizes: Mapping[str, int]
    owners: int
    counts: Mapping[str, int]
    jobs: Mapping[str, int]
    searches_all: bool
    """Whether the owner's searches look at all messages."""


def file_of(where: str) -> Path | None:
    """The file of a SQLite store; None for PostgreSQL."""
    path = where.removeprefix("sqlite:///")
    return None if "://" in path else Path(path)


def check_exists(where: str) -> None:
    """Looking after a store never makes one: a slip in its name would give an empty one."""
    path = file_of(where)
    try:
        there = path is None or path.is_file()
    except OSError:  # opening it says why
        return
    if not there:
        raise StoreError("store.missing", path=repr(str(path)))


@asynccontextmanager
async def open_existing(where: str) -> AsyncGenerator[Store, None]:
    """A store that is there, without anything built on it and without ending turns: it may be damaged."""
    check_exists(where)
    async with open_store(where) as store:
        yield store


async def info(store: Store, where: str, owner: str) -> Info:
    return Info(
        hide_password(where),
        store.admin.kind,
        await store.admin.version(),
        await store.admin.sizes(),
        len(await store.admin.owners()),
        await store.admin.counts(owner),
        await store.jobs.counts(owner),
        await store.sessions.searches_all(owner),
    )


async def backup(store: Store, path: Path, step: Callable[[int, int], object]) -> tuple[int, set[str]]:
    """A whole copy; returns its size, and the codes of what is wrong with the store. `step` gets what is done and what
    there is."""
    _check_new(path)
    problems = await store.admin.backup(str(path), step)
    return path.stat().st_size, {problem.part for problem in problems}


async def export(store: Store, owner: str | None, target: LineWriter) -> int:
    """The rows of one owner or of all, a line each; returns how many, counted as an import counts them."""
    count = -1  # the first line is the header
    async for line in store.admin.export(owner):
        target.write(f"{line}\n")
        count += not line.startswith(COUNTER)
    return count


async def export_to(store: Store, owner: str | None, path: Path) -> int:
    """The same into a new file, whole or not at all."""
    _check_new(path)
    draft = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            count = await export(store, owner, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)
    return count


def _check_new(path: Path) -> None:
    if os.path.lexists(path):
        raise InputError("file.exists", path=repr(str(path)))
    if not path.parent.is_dir():
        raise InputError("folder.missing", path=repr(str(path.parent)))


def lines_of(name: str) -> Iterator[str]:
    """The lines of a file, or of the standard input, bounded and strict UTF-8."""
    if name == STDIO:
        if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] -- None where the descriptor is closed
            raise InputError("stdin.closed")
        yield from _decode_lines(sys.stdin.buffer, Phrase("stdin.name"))
        return
    path = Path(name)
    if not path.is_file():
        raise InputError("file.not_regular" if os.path.lexists(path) else "file.missing", path=repr(name))
    with path.open("rb") as file:
        yield from _decode_lines(file, path.name)


def _read_line(file: BinaryIO) -> bytes:
    with allow_interrupt():
        return file.readline(MAX_LINE_BYTES + 1)


def _decode_lines(file: BinaryIO, where: str | Phrase) -> Iterator[str]:
    empty = True
    for number, raw in enumerate(iter(lambda: _read_line(file), b""), 1):
        if len(raw) > MAX_LINE_BYTES:
            raise InputError(
                "export.line_too_long", hint="export.is_this_one", where=where, number=number, limit=MAX_LINE_BYTES
            )
        empty = empty and not raw.strip()
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            byte = f"{raw[error.start]:02x}"
            raise InputError(
                "export.line_not_utf8",
                hint="export.is_this_one",
                where=where,
                number=number,
                position=error.start,
                byte=byte,
            ) from None
    if empty:
        raise InputError("export.empty", where=where)


async def import_lines(store: Store, name: str, owner: str | None, step: Callable[[], object]) -> int:
    """Add the rows of an export; `step` is called for each line."""

    def read() -> Iterator[str]:
        for line in lines_of(name):
            step()
            yield line

    return await store.admin.import_(read(), owner, check=_check_sendable)


def _check_sendable(message: AnyMessage) -> None:
    """Refuse a message that would break every request after it; one without a word is never sent."""
    if message.get("content") or message.get("tool_calls"):
        check_message(repair_message(cast("Message", message)), "message")


async def reindex(app: App, step: Callable[[str, int, int], object]) -> tuple[int, int]:
    """Message search and memory indexes of all owners, from nothing; `step` gets the owner, what is done and what
    there is."""
    owners = await app.store.admin.owners()
    counts = {owner: await app.store.admin.counts(owner) for owner in owners}
    total = sum(count["messages"] + count["memories"] for count in counts.values())
    messages = memories = 0
    await app.store.indexes.recreate()
    for owner in owners:
        done = messages + memories
        step(owner, done, total)
        messages += await app.store.indexes.reindex(owner, lambda count, o=owner, d=done: step(o, d + count, total))
        memories += await app.recall.reindex(owner)
    step("", messages + memories, total)
    return messages, memories


async def parked_jobs(store: Store, owner: str) -> list[Job]:
    return list(await store.jobs.parked(owner))
