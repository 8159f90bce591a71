"""Looking after a whole store for the faces: what is in it, out of it and into it as lines, and its indexes anew."""

import os
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from lamina.app.app import App
from lamina.app.interrupts import interruptible
from lamina.assembly.checks import check_message
from lamina.errors import InputError, StoreError
from lamina.layers.history import whole_message
from lamina.records import Job
from lamina.store.maintenance import COUNTER
from lamina.store.store import Store, open_store
from lamina.types import AnyMessage, Message

MAX_LINE = 64 * 1024 * 1024
"""Bytes of one line of an export."""
STDIO = "-"


class Target(Protocol):
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


def masked(where: str) -> str:
    """Where a store is, without a password."""
    return re.sub(r"(?<=://)([^/@:]*):[^/]*@", r"\1:…@", where)


def file_of(where: str) -> Path | None:
    """The file of a SQLite store; None for PostgreSQL."""
    path = where.removeprefix("sqlite:///")
    return None if "://" in path else Path(path)


def must_exist(where: str) -> None:
    """Looking after a store never makes one: a slip in its name would give an empty one."""
    path = file_of(where)
    try:
        there = path is None or path.is_file()
    except OSError:  # opening it says why
        return
    if not there:
        raise StoreError(f"there is no store at {str(path)!r}", hint="check --store or LAMINA_STORE")


@asynccontextmanager
async def open_only(where: str) -> AsyncGenerator[Store, None]:
    """A store that is there, without anything built on it and without ending turns: it may be damaged."""
    must_exist(where)
    async with open_store(where) as store:
        yield store


async def info(store: Store, where: str, owner: str) -> Info:
    return Info(
        masked(where),
        store.overview.kind,
        await store.overview.version(),
        await store.overview.sizes(),
        len(await store.maintenance.owners()),
        await store.overview.counts(owner),
        await store.jobs.counts(owner),
    )


async def backup(store: Store, path: Path) -> int:
    """A whole copy; returns its size."""
    _check_new(path)
    await store.maintenance.backup(str(path))
    return path.stat().st_size


async def export(store: Store, owner: str | None, target: Target) -> int:
    """The rows of one owner or of all, a line each; returns how many, counted as an import counts them."""
    count = -1  # the first line is the header
    async for line in store.maintenance.export(owner):
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
        raise InputError(f"{str(path)!r} exists already", hint="give a new name; nothing is overwritten")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {str(path.parent)!r}", hint="make it first")


def lines_of(name: str) -> Iterator[str]:
    """The lines of a file, or of the standard input, bounded and strict UTF-8."""
    if name == STDIO:
        if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] -- None where the descriptor is closed
            raise InputError("there is no standard input to read from", hint="send the lines of an export")
        yield from _lines(sys.stdin.buffer, "the standard input")
        return
    path = Path(name)
    if not path.is_file():
        what = "not a regular file" if os.path.lexists(path) else "not there"
        raise InputError(f"{name!r} is {what}", hint="check the path")
    with path.open("rb") as file:
        yield from _lines(file, path.name)


def _read_line(file: BinaryIO) -> bytes:
    with interruptible():
        return file.readline(MAX_LINE + 1)


def _lines(file: BinaryIO, where: str) -> Iterator[str]:
    empty = True
    for number, raw in enumerate(iter(lambda: _read_line(file), b""), 1):
        if len(raw) > MAX_LINE:
            raise InputError(f"line {number} of {where} has more than {MAX_LINE:,} bytes", hint="is this an export?")
        empty = empty and not raw.strip()
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            place = f"byte {error.start} is 0x{raw[error.start]:02x}"
            raise InputError(f"line {number} of {where} is not UTF-8: {place}", hint="is this an export?") from None
    if empty:
        raise InputError(f"{where} is empty", hint="lamina store export makes such a file")


async def import_lines(store: Store, name: str, owner: str | None, step: Callable[[], object]) -> int:
    """Add the rows of an export; `step` is told of each line."""

    async def read() -> AsyncIterator[str]:
        for line in lines_of(name):
            step()
            yield line

    return await store.maintenance.import_(read(), owner, check=_sendable)


def _sendable(message: AnyMessage) -> None:
    """Refuse a message that would stand in the way of every request after it; one without a word is never sent."""
    if message.get("content") or message.get("tool_calls"):
        check_message(whole_message(cast("Message", message)), "the message")


async def reindex(app: App, step: Callable[[str, int, int], object]) -> tuple[int, int]:
    """Message search and memory indexes of all owners anew; `step` gets the owner, what is done and what there is."""
    owners = await app.store.maintenance.owners()
    counts = {owner: await app.store.overview.counts(owner) for owner in owners}
    total = sum(count["messages"] + count["memories"] for count in counts.values())
    messages = memories = 0
    for owner in owners:
        step(owner, messages + memories, total)
        messages += await app.store.maintenance.reindex(owner)
        step(owner, messages + memories, total)
        memories += await app.recall.reindex(owner)
    await app.store.maintenance.scrub()
    step("", messages + memories, total)
    return messages, memories


async def parked_jobs(store: Store, owner: str) -> list[Job]:
    return list(await store.jobs.parked(owner))
