"""The SQLite driver: one thread writes and checkpoints, a few read, each on a connection of its own.

Transactions that wait together share one sync, and nothing is returned before it. Nothing here, and nothing in lamina,
opens the files of the database other than through SQLite: closing one would drop SQLite's own locks (POSIX).
"""

import asyncio
import contextlib
import hashlib
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from lamina.errors import LaminaError, StoreBusyError, StoreError
from lamina.store.database import Clock, Dialect, Make, checked_owner
from lamina.store.lock import OwnerLock
from lamina.store.schema import FIRST_TABLES, VERSION_TABLE, pending

T = TypeVar("T")

MAX_GROUP = 256
"""Transactions that share one sync at most."""
MAX_KEPT = 10_000
SELDOM = ("prompt_template", "user_profile", "atomic_memory", "session_summary")
"""Tables that change seldom and are read on every turn: what was read of them is kept until one of them changes. Nobody
else writes to the file."""
READERS = 3
IDLE = 0.5
"""Seconds without work after which the writer checkpoints."""
WAL_SIZE = 4 << 20
"""Bytes of WAL from which on the writer checkpoints without waiting for a pause."""


def _mark(owner: str) -> str:
    return "o" + hashlib.sha256(owner.encode()).hexdigest()[:10]


def _words(owner: str, found: Sequence[str]) -> str:
    mark = _mark(owner)
    return " ".join([mark + word for word in found])


def _match(owner: str, wanted: Sequence[str]) -> str:
    """All words; the last one may go on, as somebody types it."""
    mark = _mark(owner)
    return " AND ".join(f'"{mark}{word}"' for word in wanted) + " *"


ERASES = sqlite3.sqlite_version_info >= (3, 42)
"""Whether SQLite itself takes deleted words out of a full-text index. An older one only marks them as deleted, until
its parts are merged into one."""

DIALECT = Dialect(
    name="sqlite",
    skip_locked="",
    words_value="?",
    words_match="id IN (SELECT rowid FROM message_fts WHERE message_fts MATCH ?)",
    words=_words,
    words_erase="" if ERASES else "INSERT INTO message_fts (message_fts) VALUES ('optimize')",
    match=_match,
)

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
    result: Any = None
    error: Exception | None = None


def _resolve(done: list[Work]) -> None:
    for work in done:
        if work.future.done():
            continue
        if work.error is not None:
            work.future.set_exception(work.error)
        else:
            work.future.set_result(work.result)


def _announce(done: list[Work]) -> None:
    """Tell those who wait; one call into each event loop, however many wait there."""
    for loop in {work.loop for work in done}:
        with contextlib.suppress(RuntimeError):  # that loop has closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, [work for work in done if work.loop is loop])


def _drive(connection: sqlite3.Connection, make: Make[T], changed: set[str] | None = None) -> T:
    """Run a transaction's statements; those that may change a table of `SELDOM` are noted in `changed`."""
    steps = make()
    try:
        sql, values = next(steps)
        while True:
            if changed is not None and not sql.startswith("SELECT") and any(name in sql for name in SELDOM):
                changed.add(sql)
            sql, values = steps.send(connection.execute(sql, values).fetchall())
    except StopIteration as end:
        return cast("T", end.value)
    finally:
        steps.close()


class SqliteDatabase:
    dialect = DIALECT
    synchronous = "FULL"
    """NORMAL would be faster, and lose acknowledged turns when the power fails."""
    patience = 5_000
    """Milliseconds to wait for a program that holds the database locked."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.trouble = ""
        """Why the store only reads, empty while all is well."""
        self.commits = 0
        self._lock = OwnerLock(f"{path}.lock")
        self._writes: SimpleQueue[Work | None] = SimpleQueue()
        self._reads: SimpleQueue[Work | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._changes = 0
        """Of the tables that change seldom."""
        self._kept: dict[tuple[str, str], tuple[int, Any]] = {}
        self._closed = self._ended = False

    async def start(self, clock: Clock, upto: int | None = None) -> int:
        """Open the connections and bring the tables up to date; returns the version from before."""
        started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._spawn("lamina-writer", self._write_loop, clock, upto, asyncio.get_running_loop(), started)
        try:
            before = await started
        except StoreError:
            await asyncio.to_thread(self._threads[0].join)
            self._lock.release(remove=self._lock.is_new)  # where no store could be opened, no trace is left
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
        checked_owner(owner)
        return await self._put(self._writes, make)

    async def read(self, owner: str, make: Make[T]) -> T:
        checked_owner(owner)
        return await self._put(self._reads, make)

    async def seldom(self, owner: str, name: str, make: Make[T]) -> T:
        changes = self._changes  # before the read: what is committed meanwhile makes it old
        known = self._kept.get((owner, name))
        if known is not None and known[0] == changes:
            return known[1]
        found = await self.read(owner, make)
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        self._kept[owner, name] = (changes, found)
        return found

    async def system(self, make: Make[T]) -> T:
        return await self._put(self._writes, make)

    async def survey(self, make: Make[T]) -> T:
        return await self._put(self._reads, make)

    async def _put(self, queue: "SimpleQueue[Any]", make: Make[T]) -> T:
        if self._closed or self._ended:
            raise StoreError(f"the store {self.path} is closed", hint="open it again")
        loop = asyncio.get_running_loop()
        work = Work(make, loop, loop.create_future())
        queue.put(work)
        return await work.future

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        writer, *readers = self._threads
        for _ in readers:
            self._reads.put(None)
        for reader in readers:
            await asyncio.to_thread(reader.join)
        self._writes.put(None)
        await asyncio.to_thread(writer.join)
        self._lock.release()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, cached_statements=512, check_same_thread=False)
        connection.execute(f"PRAGMA busy_timeout = {self.patience}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA cache_size = -16000")
        return connection

    # The writer thread

    def _write_loop(
        self, clock: Clock, upto: int | None, loop: asyncio.AbstractEventLoop, started: "asyncio.Future[int]"
    ) -> None:
        connection: sqlite3.Connection | None = None
        failure: Exception = StoreError("the writer could not be started", hint="please report it")
        version = -1
        try:
            connection = self._connect()
            self._check_ours(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self.synchronous}")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            version = _migrate(connection, clock, upto)
        except sqlite3.Error as error:
            failure = self._refusal(error)
        except StoreError as error:
            failure = error
        except FAILURES as error:
            failure = StoreError(f"the store {self.path} cannot be opened: {error}", hint="is it one of lamina's?")
        finally:  # whatever happened here, nobody must wait for it for ever
            if version < 0:
                if connection is not None:
                    connection.close()
                loop.call_soon_threadsafe(started.set_exception, failure)
            else:
                loop.call_soon_threadsafe(started.set_result, version)
        if version < 0 or connection is None:
            return
        limit = WAL_SIZE
        try:
            while (group := self._next_group()) is not None:
                if group:
                    self._commit(connection, group)
                    self.commits += 1
                limit = self._checkpoint(connection, idle=not group, limit=limit)
        finally:
            self._turn_away()
            with contextlib.suppress(sqlite3.Error):  # what stays in the WAL is durable, and read at the next start
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.close()

    def _check_ours(self, connection: sqlite3.Connection) -> None:
        """Before anything is written, were it only the kind of the journal: a store of ours, or a new file?"""
        if not _is_ours(connection):
            raise StoreError(f"{self.path} is not a store, but a database of another program", hint=NO_STORE)

    def _refusal(self, error: sqlite3.Error) -> StoreError:
        """Why it cannot be opened. What is no database may be a store whose beginning was overwritten, but only where
        a store was opened before."""
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB and self._lock.is_new:
            return StoreError(f"{self.path} is not a store, but some other file", hint=NO_STORE)
        return self._explain(error)

    def _next_group(self) -> list[Work] | None:
        """What waits: none after a while without work, None at the end."""
        group: list[Work] = []
        try:
            item = self._writes.get(timeout=IDLE)
            while True:
                if item is None:
                    if group:
                        self._writes.put(None)
                        return group
                    return None
                if not item.future.cancelled():
                    group.append(item)
                if len(group) >= MAX_GROUP:
                    return group
                item = self._writes.get_nowait()
        except Empty:
            return group

    def _turn_away(self) -> None:
        """The writer has ended, as it should or by a mistake of ours: nobody must wait for it."""
        self._ended = True
        waiting: list[Work] = []
        with contextlib.suppress(Empty):
            while True:
                item = self._writes.get_nowait()
                waiting += [] if item is None else [item]
        for work in waiting:
            work.error = StoreError(f"the store {self.path} is closed", hint="open it again")
        _announce(waiting)

    def _commit(self, connection: sqlite3.Connection, group: list[Work]) -> None:
        finished = False
        try:
            self._settle(connection, group)
            finished = True
        finally:
            for work in () if finished else group:
                work.error = StoreError("the writer has failed; nothing of this was saved", hint="please report it")
            _announce(group)

    def _settle(self, connection: sqlite3.Connection, group: list[Work]) -> None:
        if self.trouble:
            for work in group:
                work.error = StoreError(f"the store only reads: {self.trouble}", hint=RECOVERY)
        elif not self._run_together(connection, group):
            for work in group:  # the whole transaction is gone: each gets its own, so that one does not spoil others
                if work.error is None and not self._run_together(connection, [work]):
                    work.error = work.error or StoreError("the transaction was rolled back", hint="try again")

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
                    work.result = _drive(connection, work.make, changed)
                    connection.execute("RELEASE one")
                except (sqlite3.Error, *FAILURES) as error:
                    work.error = self._explain(error) if isinstance(error, sqlite3.Error) else error
                    if not connection.in_transaction:
                        return len(group) == 1
                    connection.execute("ROLLBACK TO one")
                    connection.execute("RELEASE one")
            connection.execute("COMMIT")
            self._changes += bool(changed)
        except sqlite3.Error as error:
            failure = self._explain(error)
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if len(group) == 1:
                group[0].error = group[0].error or failure
            return len(group) == 1
        return True

    def _checkpoint(self, connection: sqlite3.Connection, *, idle: bool, limit: int) -> int:
        """Bring the WAL home when it has passed the limit or nothing else is to do; returns the next limit."""
        try:
            size = os.stat(f"{self.path}-wal").st_size
        except FileNotFoundError:
            return limit + WAL_SIZE
        if size < limit and not (idle and size):
            return limit
        try:
            connection.execute("PRAGMA busy_timeout = 0")  # a long read must not hold up the writer
            busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.Error:  # the WAL stays valid; the next checkpoint tries again
            return limit + WAL_SIZE
        finally:
            connection.execute(f"PRAGMA busy_timeout = {self.patience}")
        return size + WAL_SIZE if busy else WAL_SIZE

    async def aside(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """For maintenance: run a function on a connection and a thread of its own."""

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
        while (work := self._reads.get()) is not None:
            if work.future.cancelled():
                continue
            work.error = StoreError("the reader has failed", hint="please report it")
            try:
                connection.execute("BEGIN")
                work.result = _drive(connection, work.make)
                work.error = None
            except (sqlite3.Error, *FAILURES) as error:
                work.error = self._explain(error) if isinstance(error, sqlite3.Error) else error
            finally:
                _announce([work])
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        connection.close()

    def _explain(self, error: sqlite3.Error) -> StoreError:
        """SQLite's error as one that says what to do; damage also stops all further writing."""
        code = getattr(error, "sqlite_errorcode", 0)
        primary = code & 0xFF
        if primary == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:
            return StoreError(
                f"no space left for the store {self.path}; nothing of this was saved",
                hint="free some space: writing goes on by itself, and reading works meanwhile",
            )
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreBusyError(f"another program holds the store {self.path} locked", hint="end it and try again")
        if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR):
            self.trouble = f"{self.path}: {error}"
            return StoreError(f"the store {self.path} is damaged or cannot be read: {error}", hint=RECOVERY)
        if primary in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return StoreError(f"the store {self.path} cannot be opened: {error}", hint="check the path and its rights")
        return StoreError(
            f"the store {self.path} refused: {error}", hint="this is a mistake in lamina; please report it"
        )


NO_STORE = "check --store or LAMINA_STORE; nothing was changed"
RECOVERY = (
    "`lamina store verify` says what is damaged, `lamina store backup` saves what can be read; nothing was changed"
)


APPLICATION = 0x6C616D69
"""In the header of each of our files, for those who ask whose it is."""


def _is_ours(connection: sqlite3.Connection) -> bool:
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    if not names:
        return application in (0, APPLICATION)
    known = application == APPLICATION or set(FIRST_TABLES) <= names
    return known and ("schema_version" not in names or _counts_versions(connection))


def _counts_versions(connection: sqlite3.Connection) -> bool:
    columns = [row[1] for row in connection.execute("PRAGMA table_info(schema_version)")]
    if columns != ["version", "name", "applied"]:
        return False
    return all(row[0] == "integer" for row in connection.execute("SELECT typeof(version) FROM schema_version"))


def _migrate(connection: sqlite3.Connection, clock: Clock, upto: int | None) -> int:
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(VERSION_TABLE)
        version = int(connection.execute("SELECT COALESCE(MAX(version), 0) FROM schema_version").fetchone()[0])
        needed = pending("sqlite", version, upto)
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
        for migration in needed:
            for statement in _statements(migration.sql):
                connection.execute(statement)
            row = (migration.version, migration.name, clock())
            connection.execute("INSERT INTO schema_version (version, name, applied) VALUES (?, ?, ?)", row)
        if ERASES:
            _erase_words(connection)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return version


def _erase_words(connection: sqlite3.Connection) -> None:
    """From now on, what is deleted leaves the index for good."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'message_fts_config'").fetchone() and not (
        connection.execute("SELECT 1 FROM message_fts_config WHERE k = 'secure-delete' AND v = 1").fetchone()
    ):
        connection.execute("INSERT INTO message_fts (message_fts, rank) VALUES ('secure-delete', 1)")


def _statements(script: str) -> list[str]:
    found: list[str] = []
    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            found.append(text)
            text = ""
    return found


async def open_sqlite(path: str, clock: Clock, upto: int | None = None) -> tuple[SqliteDatabase, int]:
    """The database, and the version it had before."""
    if path == ":memory:":
        raise StoreError("a store in memory keeps nothing", hint="give the path of a file")
    real = os.path.realpath(path)
    if not Path(real).parent.is_dir():
        raise StoreError(f"there is no folder {Path(real).parent} for the store", hint="make it first")
    if os.path.isdir(real):
        raise StoreError(f"the store {real} is a folder", hint=f"name a file in it: {os.path.join(path, 'lamina.db')}")
    database = SqliteDatabase(real)
    return database, await database.start(clock, upto)
