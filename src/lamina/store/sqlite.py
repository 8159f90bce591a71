"""The SQLite driver: one thread writes and checkpoints, a few read, each on a connection of its own.

Transactions that wait together share one sync, and nothing is returned before it. Nothing here, and nothing in lamina,
opens the files of the database other than through SQLite: closing one would drop SQLite's own locks (POSIX).
"""

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from lamina.errors import LaminaError, StoreBusyError, StoreDamagedError, StoreError
from lamina.store import sqlite_tables as tables
from lamina.store.database import Clock, DerivedTables, Dialect, IndexDamageError, Make, check_owner
from lamina.store.lock import CHECK_PATH, RECOVERY, RESTORE, StoreFile
from lamina.store.transactions import FAILURES, READERS, ReadQueue, Stopwatch, Work, announce, drive, no_steps
from lamina.text.messages import Phrase
from lamina.text.unicode import decode_text

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
DIALECT = Dialect(name="sqlite", skip_locked="", search=tables.WordTable())


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
        self._kept: dict[tuple[str, str], tuple[int, Any]] = {}
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

    async def read_cached(self, owner: str, name: str, make: Make[T]) -> T:
        changes = self._changes  # taken before the read: a later commit makes the result stale
        known = self._kept.get((owner, name))
        if known is not None and known[0] == changes:
            return known[1]
        found = await self.read(owner, make)
        if len(self._kept) >= MAX_CACHED_READS:
            self._kept.clear()
        self._kept[owner, name] = (changes, found)
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
        self, queue: "SimpleQueue[Work | None] | ReadQueue", make: Make[T],
        alter: Callable[[sqlite3.Connection], T] | None = None, *, stops: bool = True, owner: str = "",
        seconds: float = 0.0,
    ) -> T:  # fmt: skip
        if self._closed or self._ended:
            raise StoreError("store.closed", path=self.path)
        loop = asyncio.get_running_loop()
        work = Work(make, loop, loop.create_future(), alter, stops, owner, seconds)
        queue.put(work)
        return await work.future

    async def recreate_tables(self, group: str) -> None:
        """They count as damaged until all of them are replaced, also for the next process if this one is killed."""
        self.mark_damaged([group], "it is being replaced")
        await self.alter(lambda connection: tables.mark_groups(connection, self.damaged_indexes))
        try:
            for table in tables.tables_of(group):
                while await self.alter(lambda connection, t=table: tables.empty_table(connection, t)):
                    await asyncio.sleep(0)
            await self.alter(lambda connection: self._replace(connection, group, detach=False))
        except StoreError:  # their pages are damaged
            await self.alter(lambda connection: self._replace(connection, group, detach=True))

    def _replace(self, connection: sqlite3.Connection, group: str, *, detach: bool) -> None:
        """In the thread of the writer, so that what is written next is indexed."""
        tables.recreate_tables(connection, group, detach=detach)
        connection.execute("COMMIT")
        self._marked.discard(group)
        self.mark_repaired(group)

    async def vacuum(self) -> None:
        """Free the pages that belong to no table, however large the file is."""

        def free(connection: sqlite3.Connection) -> None:
            if tables.has_unlinked_pages(connection):
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
            version = tables.migrate(connection, clock, upto)
            self._file.mark_opened(tables.size_of(connection))
            self._marked = tables.marked_groups(connection)
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
        if not tables.is_ours(connection):
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
                tables.mark_groups(connection, damaged)
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
            self._file.note_size(tables.size_of(connection))
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
            if self._vacuums and not self.trouble and self.is_small and tables.has_unlinked_pages(connection):
                self._vacuum(connection)
        except (sqlite3.Error, OSError):  # no space, or damage elsewhere: the pages do no harm
            self._vacuums = False

    def _vacuum(self, connection: sqlite3.Connection) -> None:
        tables.vacuum(connection)
        self._file.note_size(tables.size_of(connection))  # before a checkpoint makes the file shorter

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
