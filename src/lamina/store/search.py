"""Message search and the index of memories: what is left to rebuild, and the background work that rebuilds it.

Everything here is derived from other tables. Damage to it never stops writing: the driver notices it, it is repaired
here in the background, a bounded slice in each transaction, and until then a search says that it may be incomplete.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from lamina.errors import StoreDamagedError, StoreError
from lamina.store.database import Clock, Database, Steps
from lamina.store.lock import RECOVERY
from lamina.store.messages import put_words, read_content, text_in
from lamina.store.sqlite import SqliteDatabase
from lamina.store.sqlite_tables import GROUPS, damage_in, retire_some

SLICE_MESSAGES = 64
SLICE_CHARACTERS = 64_000
"""Characters of messages whose words are written in one transaction in the background."""
BULK_CHARACTERS = 1_000_000
"""The same where a caller waits for all of it."""
OPENING_SECONDS = 0.5
"""What a store is given to become complete before it is used; the rest is done in the background."""
RETRY_SECONDS = 30.0
"""Between two attempts to repair what turns out to be damaged again."""

Step = Callable[[int], object]
"""Told of each number of messages that were read."""


def plan_rebuild(owner: str) -> Steps[None]:
    """All sessions of an owner, from their first message on."""
    yield (
        "INSERT INTO search_todo (owner, session_id, seq) SELECT owner, session_id, 0 FROM chat_session "
        "WHERE owner = ? ON CONFLICT (owner, session_id) DO UPDATE SET seq = 0",
        (owner,),
    )


def plan_sessions(owner: str, sessions: Iterable[str]) -> Steps[None]:
    for session_id in sessions:
        yield (
            "INSERT INTO search_todo (owner, session_id, seq) VALUES (?, ?, 0) "
            "ON CONFLICT (owner, session_id) DO UPDATE SET seq = 0",
            (owner, session_id),
        )


def copy_plan(owner: str, source: str, target: str) -> Steps[None]:
    """What is copied from a session whose words are not complete is not complete either."""
    yield (
        "INSERT INTO search_todo (owner, session_id, seq) SELECT owner, CAST(? AS TEXT), 0 FROM search_todo "
        "WHERE owner = ? AND session_id = ? ON CONFLICT (owner, session_id) DO NOTHING",
        (target, owner, source),
    )


def drop_plan(owner: str, session_id: str) -> Steps[None]:
    yield "DELETE FROM search_todo WHERE owner = ? AND session_id = ?", (owner, session_id)


def planned_owners() -> Steps[list[str]]:
    rows = yield "SELECT DISTINCT owner FROM search_todo", ()
    return sorted(row[0] for row in rows)


def planned_sessions(owner: str) -> Steps[set[str]]:
    rows = yield "SELECT session_id FROM search_todo WHERE owner = ?", (owner,)
    return {row[0] for row in rows}


def is_planned(owner: str) -> Steps[bool]:
    rows = yield "SELECT 1 FROM search_todo WHERE owner = ? LIMIT 1", (owner,)
    return bool(rows)


def rebuild_some(db: Database, owner: str, most: int) -> Steps[int | None]:
    """The words of an owner's next messages, of `most` characters together; how many messages were read, and None when
    nothing is left."""
    total = 0
    for sessions in range(SLICE_MESSAGES):
        rows = yield (
            "SELECT session_id, seq FROM search_todo WHERE owner = ? ORDER BY session_id LIMIT 1"
            f"{db.dialect.skip_locked}",
            (owner,),
        )
        if not rows:
            return total if sessions else None
        count, size = yield from _rebuild_session(db, owner, rows[0][0], rows[0][1], most)
        total, most = total + count, most - size
        if most <= 0 or total >= SLICE_MESSAGES:
            break
    return total


def _rebuild_session(db: Database, owner: str, session_id: str, done: int, most: int) -> Steps[tuple[int, int]]:
    """Some messages of a session, at least one; how many they were, and their characters."""
    if not done:
        yield from db.dialect.search.erase(owner, session_id)
    sizes = yield (
        "SELECT seq, LENGTH(content) FROM conversation WHERE owner = ? AND session_id = ? AND seq > ? "
        "ORDER BY seq LIMIT ?",
        (owner, session_id, done, SLICE_MESSAGES),
    )
    size = count = 0
    while count < len(sizes) and (not count or size + sizes[count][1] <= most):
        size += sizes[count][1]
        count += 1
    if count:
        last = sizes[count - 1][0]
        found = yield (
            "SELECT seq, content, content_type FROM conversation WHERE owner = ? AND session_id = ? AND seq > ? "
            "AND seq <= ? AND state <> 'streaming' ORDER BY seq",  # what still streams is indexed when it ends
            (owner, session_id, done, last),
        )
        yield from put_words(db, owner, session_id, [(seq, text_in(read_content(*content))) for seq, *content in found])
        yield "UPDATE search_todo SET seq = ? WHERE owner = ? AND session_id = ?", (last, owner, session_id)
    if count == len(sizes) < SLICE_MESSAGES:
        yield from drop_plan(owner, session_id)
    return count, size


class Indexes:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._log = logging.getLogger("lamina.store")
        self._lock = asyncio.Lock()
        """Held while missing words are written, so that a caller who waits for all of them is not overtaken."""

    async def run(self) -> None:
        """Until cancelled: complete what is not, and repair what turns out to be damaged."""
        while True:
            try:
                await self.complete()
            except StoreError as error:  # the store says so to everybody who uses it
                self._log.warning("[Store] the indexes are not complete: %s", error.message)
            await self._db.index_damage.wait()
            self._db.index_damage.clear()
            began = time.monotonic()
            try:
                await self.repair()
            except StoreDamagedError as error:  # of what they are derived from: trying again would not help
                self._log.warning("[Store] the indexes cannot be repaired: %s", error.message)
                continue
            except StoreError as error:
                self._log.warning("[Store] the indexes cannot be repaired yet: %s", error.message)
            if self._db.damaged_indexes:
                self._db.index_damage.set()
                await asyncio.sleep(max(0.0, RETRY_SECONDS - (time.monotonic() - began)))

    async def prepare(self) -> None:
        """What can be done at once when a store is opened: a command may end before anything in the background does."""
        if isinstance(self._db, SqliteDatabase) and self._db.is_small:
            await self.repair()
        await self.complete(OPENING_SECONDS)

    async def complete(self, seconds: float = float("inf")) -> None:
        """Write the words that are missing, for so many seconds at most, with pauses for others. Damage to an owner's
        messages holds up nobody else's."""
        end = time.monotonic() + seconds
        failure: StoreError | None = None
        if isinstance(self._db, SqliteDatabase) and not self._db.trouble:
            while await self._retire(self._db):
                if await self._pause(end):
                    return
        for owner in await self._db.read_any_owner(planned_owners):
            try:
                while await self._rebuild_slice(owner) is not None:
                    if await self._pause(end):
                        return
            except StoreError as error:
                failure = error
        if failure:
            raise failure

    async def _pause(self, end: float) -> bool:
        """Whether the time is over."""
        if end == float("inf"):
            await asyncio.sleep(0.01)
        return time.monotonic() >= end

    async def _rebuild_slice(self, owner: str) -> int | None:
        async with self._lock:
            return await self._rebuild(owner, SLICE_CHARACTERS)

    async def _rebuild(self, owner: str, most: int) -> int | None:
        if isinstance(self._db, SqliteDatabase):
            return await self._db.fill(owner, lambda: rebuild_some(self._db, owner, most))
        return await self._db.write(owner, lambda: rebuild_some(self._db, owner, most))

    async def reindex(self, owner: str, step: Step = lambda count: None) -> int:
        """Write the words of all of an owner's messages again; returns how many messages were read."""
        async with self._lock:
            await self._db.write(owner, lambda: plan_rebuild(owner))
            return await self._finish(owner, step)

    async def finish(self, owner: str) -> int:
        """Write the words that are missing of an owner; returns how many messages were read."""
        async with self._lock:
            return await self._finish(owner, lambda count: None)

    async def _finish(self, owner: str, step: Step) -> int:
        total = 0
        while (count := await self._rebuild(owner, BULK_CHARACTERS)) is not None:
            total += count
            step(total)
        return total

    async def recreate(self) -> None:
        """Empty tables in place of the derived ones, damaged or not. What was found before is found again after
        `reindex`. Where other tables are damaged, everything is left as it is."""
        await self._check_rows()
        async with self._lock:
            for group in GROUPS:
                await self._db.recreate_tables(group)
        if isinstance(self._db, SqliteDatabase):
            await self._db.vacuum()

    async def repair(self) -> None:
        """Replace the tables that are damaged. Only where all others are sound: a damaged store is left as it is."""
        if self._db.damaged_indexes:
            await self._check_rows()
        async with self._lock:
            for group in sorted(self._db.damaged_indexes):
                await self._db.recreate_tables(group)
                self._log.warning("[Store] the %s index was replaced and is filled again", group)

    async def _check_rows(self) -> None:
        db = self._db
        if isinstance(db, SqliteDatabase) and (problems := await db.aside(damage_in)):
            raise StoreDamagedError("store.damaged_rows", path=db.path, why=problems[0], hint=RECOVERY)

    async def _retire(self, db: SqliteDatabase) -> bool:
        try:
            return await db.alter(retire_some)
        except StoreDamagedError:
            return await db.alter(lambda connection: retire_some(connection, detach=True))
