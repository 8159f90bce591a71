"""The SQLite driver: one thread writes and checkpoints, a few read, each on a connection of its own.

Transactions that wait together share one sync, and nothing is returned before it. Nothing here, and nothing in lamina,
opens the files of the database other than through SQLite: closing one would drop SQLite's own locks (POSIX).
"""

import asyncio
import contextlib
import json
import math
import os
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from lamina.errors import LaminaError, StoreBusyError, StoreDamagedError, StoreError
from lamina.store import schema
from lamina.store.database import (
    Clock,
    DerivedTables,
    Dialect,
    IndexDamageError,
    Make,
    OutOfTimeError,
    Row,
    Statement,
    Steps,
    check_owner,
)
from lamina.store.lock import CHECK_PATH, RECOVERY, RESTORE, StoreFile
from lamina.text.messages import Phrase
from lamina.text.unicode import SLICE_SIZE, decode_text, encode_text

T = TypeVar("T")

MAX_GROUP_TRANSACTIONS = 256
"""Transactions that share one sync at most."""
MAX_CACHED_READS = 10_000
IDLE_S = 0.5
"""Seconds without work after which the writer checkpoints."""
CHECKPOINT_WAL_BYTES = 4 << 20
"""Bytes of WAL from which on the writer checkpoints without waiting for a pause."""
SMALL_BYTES = 64 << 20
"""Up to this size a file is looked through for damage when it is opened, and vacuumed by itself after a damaged table
was taken out; that holds up writers for a second."""
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What reading a row that is damaged may raise, beside the errors of SQLite."""
REPORT, CHECK_STORE = "bug.hint", "store.hint_check_store"

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
    connection: sqlite3.Connection,
    make: Make[T],
    damaged: Mapping[str, str],
    changed: set[str] | None = None,
    watch: Stopwatch | None = None,
) -> T:
    """Run a transaction's statements; those that may change one of `CACHED_TABLES` are noted in `changed`, and those on
    `damaged` tables are answered with nothing. One that is out of time ends with an `OutOfTimeError`."""
    steps = make()
    try:
        sql, values = next(steps)
        while True:
            if changed is not None and not sql.startswith("SELECT") and any(name in sql for name in CACHED_TABLES):
                changed.add(sql)
            group = schema.derived_group(sql)
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


BLOCK_MESSAGES = 32
LAST_CHARACTER = "\U0010ffff"


class WordTable:
    """SQLite: a row for each word of each message. Deleting a row erases it."""

    def put(self, owner: str, session_id: str, found: Sequence[tuple[int, Sequence[str]]]) -> Steps[None]:
        blocks: dict[int, int] = {}
        for seq, words in found:
            block = seq // BLOCK_MESSAGES
            if block not in blocks:
                key = (owner, session_id, block)
                rows = yield "SELECT id FROM message_block WHERE owner = ? AND session_id = ? AND block = ?", key
                if not rows:
                    columns = "message_block (owner, session_id, block)"
                    rows = yield f"INSERT INTO {columns} VALUES (?, ?, ?) RETURNING id", key
                if not rows:  # a damaged index answers nothing
                    return
                blocks[block] = int(rows[0][0])
            yield (
                "INSERT OR IGNORE INTO message_word (block_id, word, seq) SELECT ?, value, ? FROM json_each(?)",
                (blocks[block], seq, json.dumps(words, ensure_ascii=False)),
            )

    def copy_words(self, owner: str, source: str, target: str, upto: int) -> Steps[None]:
        yield (
            "INSERT OR IGNORE INTO message_block (owner, session_id, block) SELECT owner, ?, block FROM message_block "
            "WHERE owner = ? AND session_id = ? AND block <= ?",
            (target, owner, source, upto // BLOCK_MESSAGES),
        )
        yield (
            "INSERT OR IGNORE INTO message_word (block_id, word, seq) SELECT n.id, w.word, w.seq FROM message_block b "
            "CROSS JOIN message_block n ON n.owner = b.owner AND n.session_id = ? AND n.block = b.block "
            "CROSS JOIN message_word w ON w.block_id = b.id WHERE b.owner = ? AND b.session_id = ? AND w.seq <= ?",
            (target, owner, source, upto),
        )

    def erase(self, owner: str, session_id: str) -> Steps[None]:
        blocks = "SELECT id FROM message_block WHERE owner = ? AND session_id = ?"
        yield f"DELETE FROM message_word WHERE block_id IN ({blocks})", (owner, session_id)
        yield "DELETE FROM message_block WHERE owner = ? AND session_id = ?", (owner, session_id)

    def find(self, owner: str, wanted: Sequence[str], limit: int) -> Steps[tuple[list[tuple[str, int]], bool]]:
        """From the newest session to the oldest, until there are enough; the last of the words may be unfinished.

        Which of a block's messages have a word is a number with a bit for each, so that each row is read once however
        many of them match. All words but the last are looked up first: they are cheap.
        """
        *exact, last = wanted
        bits = f"(SELECT SUM(DISTINCT 1 << (seq % {BLOCK_MESSAGES})) FROM message_word WHERE block_id = b.id AND"
        begins = f"{bits} word >= ? AND word < ?)"
        both = " & ".join([f"{bits} word = ?)"] * len(exact))
        found = f"CASE WHEN {both} THEN {both} & {begins} END" if exact else begins
        values = (*exact, *exact, last, last + LAST_CHARACTER)
        in_time = True
        try:
            rows = yield (
                f"SELECT b.session_id, b.block, {found} FROM chat_session s "
                "CROSS JOIN message_block b ON b.owner = s.owner AND b.session_id = s.session_id "
                f"WHERE s.owner = ? AND {found} ORDER BY s.activity DESC, b.block DESC LIMIT ?",
                (*values, owner, *values, limit),
            )
        except OutOfTimeError as error:
            rows, in_time = error.rows, False
        places = [
            (str(session_id), block * BLOCK_MESSAGES + at)
            for session_id, block, mask in rows
            for at in reversed(range(BLOCK_MESSAGES))
            if mask >> at & 1
        ]
        return places[:limit], in_time

    def indexed(self, owner: str, session_id: str, first: int, last: int) -> Steps[set[int]]:
        rows = yield (
            "SELECT DISTINCT w.seq FROM message_block b CROSS JOIN message_word w ON w.block_id = b.id "
            "WHERE b.owner = ? AND b.session_id = ? AND b.block BETWEEN ? AND ?",
            (owner, session_id, first // BLOCK_MESSAGES, last // BLOCK_MESSAGES),
        )
        return {int(row[0]) for row in rows}


DIALECT = Dialect(name="sqlite", skip_locked="", search=WordTable())


class SqliteDatabase(DerivedTables):
    dialect = DIALECT
    synchronous = "FULL"
    """NORMAL would be faster, and lose acknowledged turns when the power fails."""
    patience = 5_000
    """Milliseconds to wait for a program that holds the database locked."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path
        self.trouble = Phrase("")
        """Why the store only reads; false while all is well."""
        self.commits = 0
        self._file = StoreFile(path)
        self._writes: SimpleQueue[Work | None] = SimpleQueue()
        self._reads = ReadQueue()
        self._threads: list[threading.Thread] = []
        self._changes = 0
        """To the cached tables."""
        self._cache: dict[tuple[str, Hashable], tuple[int, Any]] = {}
        self._closed = self._ended = False
        self._marked: set[str] = set()
        """The groups whose damage is written down in the file."""
        self._vacuums = True  # until that fails

    async def start(self, clock: Clock, upto: int | None = None) -> int:
        """Open the connections and bring the tables up to date; returns the version from before."""
        started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._spawn("lamina-writer", self._write_loop, clock, upto, asyncio.get_running_loop(), started)
        try:
            before = await started
        except StoreError:
            await asyncio.to_thread(self._threads[0].join)
            self._file.release(remove=self._file.is_new)  # where no store could be opened, no trace is left
            self._closed = True
            raise
        for number in range(READERS):
            self._spawn(f"lamina-reader-{number}", self._read_loop)
        return before

    def _spawn(self, name: str, target: Callable[..., None], *values: Any) -> None:
        thread = threading.Thread(target=target, args=values, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    async def write(self, owner: str, make: Make[T]) -> T:
        check_owner(owner)
        return await self._put(self._writes, make)

    async def fill(self, owner: str, make: Make[T]) -> T:
        """Write to derived tables alone: damage to the others, where it reads them, stops no other writing."""
        return await self._put(self._writes, make, stops=False)

    async def read(self, owner: str, make: Make[T], *, seconds: float = 0.0) -> T:
        return await self._put(self._reads, make, owner=check_owner(owner), seconds=seconds)

    async def read_cached(self, owner: str, key: Hashable, make: Make[T]) -> T:
        changes = self._changes  # taken before the read: a later commit makes the result stale
        known = self._cache.get((owner, key))
        if known is not None and known[0] == changes:
            return known[1]
        found = await self.read(owner, make)
        if len(self._cache) >= MAX_CACHED_READS:
            self._cache.clear()
        self._cache[owner, key] = (changes, found)
        return found

    async def write_any_owner(self, make: Make[T]) -> T:
        return await self._put(self._writes, make)

    async def read_any_owner(self, make: Make[T]) -> T:
        return await self._put(self._reads, make)

    async def alter(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Change the derived tables themselves, in a transaction of the writer, which it may end. Damage that it meets
        is its own to handle: it stops nothing."""
        return await self._put(self._writes, no_steps, change)

    async def _put(
        self,
        queue: "SimpleQueue[Work | None] | ReadQueue",
        make: Make[T],
        alter: Callable[[sqlite3.Connection], T] | None = None,
        *,
        stops: bool = True,
        owner: str = "",
        seconds: float = 0.0,
    ) -> T:
        if self._closed or self._ended:
            raise StoreError("store.closed", path=self.path)
        loop = asyncio.get_running_loop()
        work = Work(make, loop, loop.create_future(), alter, stops, owner, seconds)
        queue.put(work)
        return await work.future

    async def recreate_tables(self, group: str) -> None:
        """They count as damaged until all of them are replaced, also for the next process if this one is killed."""
        self.mark_damaged([group], "it is being replaced")
        await self.alter(lambda connection: schema.mark_groups(connection, self.damaged_indexes))
        try:
            for table in schema.tables_of(group):
                while await self.alter(lambda connection, t=table: schema.empty_table(connection, t)):
                    await asyncio.sleep(0)
            await self.alter(lambda connection: self._replace(connection, group, detach=False))
        except StoreError:  # their pages are damaged
            await self.alter(lambda connection: self._replace(connection, group, detach=True))

    def _replace(self, connection: sqlite3.Connection, group: str, *, detach: bool) -> None:
        """In the thread of the writer, so that what is written next is indexed."""
        schema.recreate_tables(connection, group, detach=detach)
        connection.execute("COMMIT")
        self._marked.discard(group)
        self.mark_repaired(group)

    async def vacuum(self) -> None:
        """Free the pages that belong to no table, however large the file is."""

        def free(connection: sqlite3.Connection) -> None:
            if schema.has_unlinked_pages(connection):
                connection.execute("COMMIT")
                self._vacuum(connection)

        await self.alter(free)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        writer, *readers = self._threads
        self._reads.end()
        for reader in readers:
            await asyncio.to_thread(reader.join)
        self._writes.put(None)
        await asyncio.to_thread(writer.join)
        self._file.release()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, cached_statements=512, check_same_thread=False)
        connection.text_factory = decode_text
        connection.execute(f"PRAGMA busy_timeout = {self.patience}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA cache_size = -16000")
        connection.execute("PRAGMA temp_store = MEMORY")  # nothing of a user's beside the store, also after a kill
        return connection

    # The writer thread

    def _write_loop(
        self, clock: Clock, upto: int | None, loop: asyncio.AbstractEventLoop, started: "asyncio.Future[int]"
    ) -> None:
        connection: sqlite3.Connection | None = None
        failure: Exception = StoreError("store.writer_not_started", hint=REPORT)
        version = -1
        try:
            connection = self._connect()
            self._check_ours(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self.synchronous}")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            version = schema.migrate(connection, clock, upto)
            self._file.mark_opened(schema.size_of(connection))
            self._marked = schema.marked_groups(connection)
            self.mark_damaged(self._marked, "it was found damaged before")
            if self._marked:
                loop.call_soon_threadsafe(self.index_damage.set)
        except sqlite3.Error as error:
            failure = self._refusal(error)
        except StoreError as error:
            failure = error
        except FAILURES as error:
            failure = StoreError("store.not_opened", path=self.path, why=str(error), hint=CHECK_STORE)
        finally:  # whatever happened here, the caller must not wait for ever
            if version < 0:
                if connection is not None:
                    connection.close()
                loop.call_soon_threadsafe(started.set_exception, failure)
            else:
                loop.call_soon_threadsafe(started.set_result, version)
        if version < 0 or connection is None:
            return
        limit = CHECKPOINT_WAL_BYTES
        try:
            while (group := self._next_group()) is not None:
                self._file.renew_lock()
                self._write_marks(connection)
                if group:
                    self._commit(connection, group)
                    self.commits += 1
                else:
                    self._free_pages(connection)
                limit = self._checkpoint(connection, idle=not group, limit=limit)
        finally:
            self._turn_away()
            self._write_marks(connection)
            with contextlib.suppress(sqlite3.Error):  # what stays in the WAL is durable, and read at the next start
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.close()

    def _check_ours(self, connection: sqlite3.Connection) -> None:
        """Before anything is written, were it only the kind of the journal: a store of ours, or a new file? Then what
        was said is for nobody else to read."""
        if not schema.is_ours(connection):
            raise StoreError("store.foreign_database", path=self.path, hint=CHECK_STORE)
        self._file.check_whole(int(connection.execute("PRAGMA page_size").fetchone()[0]))
        self._file.narrow()

    def _refusal(self, error: sqlite3.Error) -> Exception:
        """Why it cannot be opened. What is no database may be a store whose beginning was overwritten, but only where
        a store was opened before."""
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB and self._file.is_new:
            return StoreError("store.foreign_file", path=self.path, hint=CHECK_STORE)
        return self._explain(error, hint=RESTORE)

    def _write_marks(self, connection: sqlite3.Connection) -> None:
        """Write down which indexes are damaged: this process may end before they are replaced."""
        damaged = {*self.damaged_indexes}
        if damaged != self._marked and not self.trouble:
            with contextlib.suppress(sqlite3.Error):  # then the next process finds it out by itself
                schema.mark_groups(connection, damaged)
                self._marked = damaged

    def _next_group(self) -> list[Work] | None:
        """What waits: none after a while without work, None at the end."""
        group: list[Work] = []
        try:
            item = self._writes.get(timeout=IDLE_S)
            while True:
                if item is None:
                    if group:
                        self._writes.put(None)
                        return group
                    return None
                if not item.future.cancelled():
                    group.append(item)
                if len(group) >= MAX_GROUP_TRANSACTIONS:
                    return group
                item = self._writes.get_nowait()
        except Empty:
            return group

    def _turn_away(self) -> None:
        """The writer has ended, as planned or by a bug: nothing may wait for it any more."""
        self._ended = True
        waiting: list[Work] = []
        with contextlib.suppress(Empty):
            while True:
                item = self._writes.get_nowait()
                waiting += [] if item is None else [item]
        for work in waiting:
            work.error = StoreError("store.closed", path=self.path)
        announce(waiting)

    def _commit(self, connection: sqlite3.Connection, group: list[Work]) -> None:
        finished = False
        try:
            self._settle(connection, group)
            finished = True
        finally:
            for work in () if finished else group:
                work.error = StoreError("store.writer_failed", hint=REPORT)
            announce(group)

    def _settle(self, connection: sqlite3.Connection, group: list[Work]) -> None:
        try:
            self._file.check()
        except StoreDamagedError as error:
            self.trouble = self.trouble or error.phrase
            for work in group:
                work.error = error
            return
        if self.trouble:
            for work in group:
                work.error = StoreDamagedError("store.read_only", why=self.trouble, hint=RECOVERY)
            return
        for work in group:
            if work.alter is not None:
                self._alter(connection, work)
        group = [work for work in group if work.alter is None]
        if not self._run_together(connection, group):
            for work in group:  # the whole transaction is gone: each gets its own, so that one does not spoil others
                if work.error is None and not self._run_together(connection, [work]):
                    work.error = work.error or StoreError("store.rolled_back")

    def _run_together(self, connection: sqlite3.Connection, group: list[Work]) -> bool:
        """Whether all is settled: what has no error is durable. If not, the transaction is gone and none of it is."""
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            for work in group:
                work.error = self._explain(error)
            return True
        changed: set[str] = set()
        try:
            for work in group:
                connection.execute("SAVEPOINT one")
                try:
                    work.result = drive(connection, work.make, self.damaged_indexes, changed)
                    connection.execute("RELEASE one")
                except IndexDamageError as damage:
                    self.note_damage(damage)
                    return self._run_again(connection, group)
                except (sqlite3.Error, *FAILURES) as error:
                    work.error = self._explain(error, stops=work.stops)
                    damaged = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT
                    if damaged and len(group) > 1 and connection.in_transaction:
                        connection.execute("ROLLBACK")  # SQLite keeps the damaged pages, and the others would fail too
                    if not connection.in_transaction:
                        return len(group) == 1
                    connection.execute("ROLLBACK TO one")
                    connection.execute("RELEASE one")
            connection.execute("COMMIT")
            self._changes += bool(changed)
        except sqlite3.Error as error:
            failure = self._explain(error, stops=len(group) == 1 and group[0].stops)
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if len(group) == 1:
                group[0].error = group[0].error or failure
            return len(group) == 1
        return True

    def _run_again(self, connection: sqlite3.Connection, group: list[Work]) -> bool:
        """All of it from the start, without the tables that are damaged now; after such an error SQLite has pages in
        memory that only the end of the transaction drops."""
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        for work in group:
            work.result = work.error = None
        return self._run_together(connection, group)

    def _alter(self, connection: sqlite3.Connection, work: Work) -> None:
        assert work.alter is not None
        try:
            connection.execute("BEGIN IMMEDIATE")
            work.result = work.alter(connection)
            if connection.in_transaction:
                connection.execute("COMMIT")
        except (sqlite3.Error, *FAILURES) as error:
            work.error = self._explain(error, stops=False)
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _checkpoint(self, connection: sqlite3.Connection, *, idle: bool, limit: int) -> int:
        """Bring the WAL home when it has passed the limit or nothing else is to do; returns the next limit."""
        try:
            size = os.stat(f"{self.path}-wal").st_size
        except FileNotFoundError:
            return limit + CHECKPOINT_WAL_BYTES
        if size < limit and not (idle and size):
            return limit
        try:
            connection.execute("PRAGMA busy_timeout = 0")  # a long read must not hold up the writer
            busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            self._file.note_size(schema.size_of(connection))
        except (sqlite3.Error, OSError):  # the WAL stays valid; the next checkpoint tries again
            return limit + CHECKPOINT_WAL_BYTES
        finally:
            connection.execute(f"PRAGMA busy_timeout = {self.patience}")
        return size + CHECKPOINT_WAL_BYTES if busy else CHECKPOINT_WAL_BYTES

    @property
    def is_small(self) -> bool:
        return os.stat(self.path).st_size <= SMALL_BYTES

    def _free_pages(self, connection: sqlite3.Connection) -> None:
        """Nothing else is to do: a moment to vacuum."""
        try:
            if self._vacuums and not self.trouble and self.is_small and schema.has_unlinked_pages(connection):
                self._vacuum(connection)
        except (sqlite3.Error, OSError):  # no space, or damage elsewhere: the pages do no harm
            self._vacuums = False

    def _vacuum(self, connection: sqlite3.Connection) -> None:
        schema.vacuum(connection)
        self._file.note_size(schema.size_of(connection))  # before a checkpoint makes the file shorter

    async def run_separately(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """For administration: run a function on a connection and a thread of its own."""

        def run() -> T:
            connection = self._connect()
            try:
                return work(connection)
            except sqlite3.Error as error:
                raise self._explain(error) from error
            finally:
                connection.close()

        return await asyncio.to_thread(run)

    # The reader threads

    def _read_loop(self) -> None:
        connection = self._connect()
        connection.execute("PRAGMA query_only = ON")
        watch = Stopwatch(connection)
        while (work := self._reads.get()) is not None:
            watch.start(work)
            work.error = StoreError("store.reader_failed", hint=REPORT)
            try:
                work.result = None if work.future.cancelled() else self._read(connection, work, watch)
                work.error = None
            except (sqlite3.Error, *FAILURES) as error:
                work.error = self._explain(error)
            finally:
                self._reads.done(work)
                announce([work])
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        connection.close()

    def _read(self, connection: sqlite3.Connection, work: Work, watch: Stopwatch) -> Any:
        self._file.check()
        while True:
            connection.execute("BEGIN")
            try:
                return drive(connection, work.make, self.damaged_indexes, watch=watch)
            except IndexDamageError as damage:
                self.note_damage(damage)
                connection.execute("ROLLBACK")

    def _explain(self, error: Exception, *, stops: bool = True, hint: str = RECOVERY) -> Exception:
        """An error as one that says what to do; damage of the file also `stops` all further writing."""
        if isinstance(error, UNREADABLE) and not isinstance(error, UnicodeEncodeError | LaminaError):
            return StoreDamagedError("store.unreadable_row", path=self.path, why=repr(error), hint=RECOVERY)
        if not isinstance(error, sqlite3.Error):
            return error
        code = getattr(error, "sqlite_errorcode", 0)
        primary = code & 0xFF
        if primary == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:
            return StoreError("store.disk_full", path=self.path)
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreBusyError("store.locked", path=self.path)
        if code == sqlite3.SQLITE_IOERR_WRITE:
            return StoreError("store.not_written", path=self.path, why=str(error))
        if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR):
            damage = StoreDamagedError("store.damaged", path=self.path, why=str(error), hint=hint)
            self.trouble = damage.phrase if stops else self.trouble
            return damage
        if primary in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return StoreError("store.not_opened", path=self.path, why=str(error), hint=CHECK_PATH)
        return StoreError("store.refused", path=self.path, why=str(error), hint=REPORT)


async def open_sqlite(path: str, clock: Clock, upto: int | None = None) -> tuple[SqliteDatabase, int]:
    """The database, and the version it had before."""
    if path == ":memory:":
        raise StoreError("store.in_memory")
    real = os.path.realpath(path)
    if not Path(real).parent.is_dir():
        raise StoreError("store.no_folder", path=str(Path(real).parent))
    if os.path.isdir(real):
        raise StoreError("store.is_folder", path=real, file=os.path.join(path, "lamina.db"))
    if os.path.exists(real) and not os.path.isfile(real):
        raise StoreError("store.not_regular_file", path=real, hint=CHECK_STORE)
    database = SqliteDatabase(real)
    return database, await database.start(clock, upto)
