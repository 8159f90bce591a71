"""The PostgreSQL driver: the same transactions over asyncpg, for more than one process or machine.

Each transaction names its owner, and row-level security shows it nothing else. What fails for a passing reason is run
again; a commit whose answer got lost is looked up by its transaction number, so it is never repeated blindly.
"""

import asyncio
import contextlib
import itertools
import re
import time
from collections.abc import AsyncGenerator, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs] -- it ships annotations, no stubs

from lamina.errors import StoreError
from lamina.store.database import (
    Clock,
    DerivedTables,
    Dialect,
    IndexDamageError,
    Make,
    OutOfTimeError,
    Row,
    Steps,
    check_owner,
    hide_password,
)
from lamina.store.schema import DERIVED_TABLES, VERSION_TABLE, derived_group, pending, table_definition
from lamina.text.messages import Phrase

T = TypeVar("T")

MAX_RETRY_S = 10.0
"""Seconds for which a transaction is tried again, when it meets another or the server goes away."""
MIGRATION_LOCK = 0x6C616D696E61
CONNECTION_ERRORS = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,  # others have them all for a moment, or for good: then it is said below
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)
"""The connection is gone; what was not committed is rolled back by the server."""
POOL = 10
"""Connections of one process, at most."""
OWNER_READS, SEARCHES = POOL // 2, POOL // 3
"""How many of them one owner's reads, and searches in all, take at once."""
CONFLICT_ERRORS = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.UniqueViolationError,
    asyncpg.ForeignKeyViolationError,  # a parent row was deleted in the meantime
)
"""Two transactions met; rolled back for certain. On the second run one of them sees what the other did."""
DAMAGE_ERRORS = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedFunctionError,  # the column has another type
    asyncpg.DatatypeMismatchError,
    asyncpg.InvalidColumnReferenceError,  # the primary key is gone
    asyncpg.DataCorruptedError,
    asyncpg.IndexCorruptedError,
)
"""What a statement on derived tables says when they are damaged, changed or gone; all else has another cause."""
CLOCK_TOLERANCE_S = 0.5
"""Seconds by which clocks may differ without harm."""
MAX_CONFLICT_RUNS = 10
"""Runs after which a missing parent row is a bug, not a conflict."""


class WordVectors:
    """PostgreSQL: a `tsvector` for each message."""

    def put(self, owner: str, session_id: str, found: Sequence[tuple[int, Sequence[str]]]) -> Steps[None]:
        rows = [(owner, session_id, seq, " ".join(f"'{word}'" for word in words)) for seq, words in found]
        for at in range(0, len(rows), 100):
            batch = rows[at : at + 100]
            places = ", ".join(["(?, ?, ?, CAST(CAST(? AS text) AS tsvector))"] * len(batch))
            yield (
                f"INSERT INTO message_words (owner, session_id, seq, words) VALUES {places} "
                "ON CONFLICT (owner, session_id, seq) DO NOTHING",
                [value for row in batch for value in row],
            )

    def copy_words(self, owner: str, source: str, target: str, upto: int) -> Steps[None]:
        yield (
            "INSERT INTO message_words (owner, session_id, seq, words) SELECT owner, CAST(? AS TEXT), seq, words "
            "FROM message_words WHERE owner = ? AND session_id = ? AND seq <= ?",
            (target, owner, source, upto),
        )

    def erase(self, owner: str, session_id: str) -> Steps[None]:
        yield "DELETE FROM message_words WHERE owner = ? AND session_id = ?", (owner, session_id)

    def find(self, owner: str, wanted: Sequence[str], limit: int) -> Steps[tuple[list[tuple[str, int]], bool]]:
        in_time = True
        try:
            rows = yield (
                "SELECT w.session_id, w.seq FROM message_words w "
                "JOIN chat_session s ON s.owner = w.owner AND s.session_id = w.session_id "
                "WHERE w.owner = ? AND w.words @@ CAST(CAST(? AS text) AS tsquery) "
                "ORDER BY s.activity DESC, w.seq DESC LIMIT ?",
                (owner, " & ".join(f"'{word}'" for word in wanted) + ":*", limit),
            )
        except OutOfTimeError as error:
            rows, in_time = error.rows, False
        return [(row[0], row[1]) for row in rows], in_time

    def indexed(self, owner: str, session_id: str, first: int, last: int) -> Steps[set[int]]:
        rows = yield (
            "SELECT seq FROM message_words WHERE owner = ? AND session_id = ? AND seq BETWEEN ? AND ?",
            (owner, session_id, first, last),
        )
        return {int(row[0]) for row in rows}


DIALECT = Dialect(
    name="postgres",
    skip_locked=" FOR UPDATE SKIP LOCKED",
    search=WordVectors(),
)


@lru_cache(maxsize=1_000)
def number_slots(sql: str) -> str:
    """`?` as `$1`, `$2`, …; no statement has a question mark in a text."""
    count = 0

    def place(_: "re.Match[str]") -> str:
        nonlocal count
        count += 1
        return f"${count}"

    return re.sub(r"\?", place, sql)


async def _nothing(connection: Any) -> None:
    """Settings are made for one transaction only, so there is nothing to reset."""


class PostgresDatabase(DerivedTables):
    """Its errors do not say where the server is: they may reach the users of a chat."""

    dialect = DIALECT

    def __init__(self, pool: Any, skew: float = 0.0) -> None:
        super().__init__("PostgreSQL")
        self._pool = pool
        self._shares = Shares()
        self.skew = skew
        """Seconds that the server's clock is ahead of this machine's."""
        self.commits = 0

    async def write(self, owner: str, make: Make[T]) -> T:
        return await self._run(check_owner(owner), make, worker=False, readonly=False)

    async def read(self, owner: str, make: Make[T], *, seconds: float = 0.0) -> T:
        async with self._shares.take(check_owner(owner), OWNER_READS):
            if not seconds:
                return await self._run(owner, make, worker=False, readonly=True)
            async with self._shares.take("", SEARCHES):
                return await self._run(owner, make, worker=False, readonly=True, seconds=seconds)

    async def read_cached(self, owner: str, key: Hashable, make: Make[T]) -> T:
        return await self.read(owner, make)  # other processes write too

    async def write_any_owner(self, make: Make[T]) -> T:
        return await self._run("", make, worker=True, readonly=False)

    async def read_any_owner(self, make: Make[T]) -> T:
        return await self._run("", make, worker=True, readonly=True)

    async def recreate_tables(self, group: str) -> None:
        await self._run("", lambda: replace_tables(group), worker=False, readonly=False, alters=True)
        self.mark_repaired(group)

    async def close(self) -> None:
        try:
            await asyncio.wait_for(self._pool.close(), 5)
        except TimeoutError:
            self._pool.terminate()

    async def _run(
        self, owner: str, make: Make[T], *, worker: bool, readonly: bool, alters: bool = False, seconds: float = 0.0
    ) -> T:
        failure: Exception | None = None
        deadline = asyncio.get_running_loop().time() + MAX_RETRY_S
        for run, pause in enumerate(itertools.chain((0.0, 0.0, 0.01, 0.05), itertools.repeat(0.2))):
            if asyncio.get_running_loop().time() + pause > deadline:
                break
            await asyncio.sleep(pause)
            attempted = Attempt(owner, worker, readonly, None if alters else self.damaged_indexes, seconds)
            try:
                async with self._pool.acquire() as connection:
                    result = await attempted.run(connection, make)
                    self.commits += not readonly
                    self._note_skipped(attempted)
                    return result
            except IndexDamageError as error:
                self.note_damage(error)
                failure = error
            except CONFLICT_ERRORS as error:
                if isinstance(error, asyncpg.ForeignKeyViolationError) and run >= MAX_CONFLICT_RUNS:
                    raise self._explain(error) from error
                failure = error
            except CONNECTION_ERRORS as error:
                if isinstance(error, ValueError):  # a value that asyncpg cannot send
                    raise StoreError("postgres.bad_value", why=str(error)) from error
                failure = error
                if attempted.committing and await self._committed(attempted.number):
                    self._note_skipped(attempted)
                    return cast("T", attempted.result)
            except asyncpg.PostgresError as error:
                raise self._explain(error) from error
        full = isinstance(failure, asyncpg.TooManyConnectionsError)
        hint = Phrase("postgres.hint_too_many_connections", count=POOL) if full else ""
        raise StoreError("postgres.no_answer", seconds=MAX_RETRY_S, why=str(failure), hint=hint) from failure

    def _note_skipped(self, attempted: "Attempt") -> None:
        """What was written without an index that has been replaced since is not in the plan to fill it."""
        for group in attempted.skipped - self.damaged_indexes.keys():
            self.note_damage(IndexDamageError(group, "a transaction went on without it while it was replaced"))

    async def _committed(self, number: str) -> bool:
        """What became of a commit whose answer got lost."""
        status: str | None = None
        for pause in (0.01, 0.05, *itertools.repeat(0.2, int(MAX_RETRY_S / 0.2))):
            await asyncio.sleep(pause)
            with contextlib.suppress(*CONNECTION_ERRORS):
                async with self._pool.acquire() as connection:
                    status = await connection.fetchval("SELECT pg_xact_status(CAST($1::text AS xid8))", number)
                if status in ("committed", "aborted"):
                    return status == "committed"
        raise StoreError("postgres.commit_unknown")

    def _explain(self, error: asyncpg.PostgresError) -> StoreError:
        if isinstance(error, asyncpg.DiskFullError):
            return StoreError("postgres.disk_full")
        return StoreError("postgres.refused", why=str(error), hint="bug.hint")


class Shares:
    """How many reads of one name run at once; the others wait, and do not take a connection while they do."""

    def __init__(self) -> None:
        self._taken: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @contextlib.asynccontextmanager
    async def take(self, name: str, most: int) -> AsyncGenerator[None]:
        free, users = self._taken.get(name, (asyncio.Semaphore(most), 0))
        self._taken[name] = (free, users + 1)
        try:
            async with free:
                yield
        finally:
            users = self._taken[name][1] - 1
            if users:
                self._taken[name] = (free, users)
            else:
                del self._taken[name]


class Attempt:
    """One run of a transaction, and how far it came."""

    def __init__(
        self, owner: str, worker: bool, readonly: bool, damaged: Mapping[str, str] | None, seconds: float
    ) -> None:
        self._owner = owner
        self._seconds = seconds
        """After which the server stops a statement; 0 for no limit."""
        self._damaged = damaged
        """The derived tables that are left out; None for the transaction that replaces them."""
        self.skipped: set[str] = set()
        """Of them those that it would have written to."""
        self._worker = "on" if worker else "off"
        self._readonly = readonly
        self.number = ""
        self.committing = False
        self.result: Any = None

    async def run(self, connection: Any, make: Make[T]) -> T:
        level = "repeatable_read" if self._readonly else "read_committed"
        transaction = connection.transaction(isolation=level, readonly=self._readonly)
        try:
            await transaction.start()
            driven = False
            try:
                self.result = await self._drive(connection, make)
                driven = True
            finally:
                if not driven:  # an error, a refusal of ours, or the caller has left
                    await self._undo(transaction)
            self.committing = not self._readonly
            await transaction.commit()
        except CONNECTION_ERRORS:
            with contextlib.suppress(asyncpg.InterfaceError):  # it has been put away already
                connection.terminate()  # asyncpg may still think that it works
            raise
        return cast("T", self.result)

    async def _undo(self, transaction: Any) -> None:
        with contextlib.suppress(*CONNECTION_ERRORS, asyncpg.PostgresError):
            await transaction.rollback()

    async def _drive(self, connection: Any, make: Make[T]) -> T:
        number = "''" if self._readonly else "CAST(pg_current_xact_id() AS text)"
        self.number = await connection.fetchval(
            "SELECT CASE WHEN set_config('lamina.owner', $1, true) IS NOT NULL "
            f"AND set_config('lamina.worker', $2, true) IS NOT NULL THEN {number} END",
            self._owner, self._worker,
        )  # fmt: skip
        steps = make()
        try:
            sql, values = next(steps)
            while True:
                try:
                    rows = await self._fetch_in_time(connection, sql, values)
                except OutOfTimeError as error:
                    sql, values = steps.throw(error)
                else:
                    sql, values = steps.send(rows)
        except StopIteration as end:
            return cast("T", end.value)
        finally:
            steps.close()

    async def _fetch_in_time(self, connection: Any, sql: str, values: Sequence[Any]) -> list[Row]:
        if not self._seconds:
            return await self._fetch(connection, sql, values)
        savepoint = connection.transaction()
        await savepoint.start()
        try:
            await connection.execute(f"SET LOCAL statement_timeout = {max(1, round(self._seconds * 1_000))}")
            return await self._fetch(connection, sql, values)
        except asyncpg.QueryCanceledError:
            self._seconds = 0.0  # what comes after it only reads what was found
            raise OutOfTimeError([]) from None
        finally:
            await self._undo(savepoint)  # and its setting with it

    async def _fetch(self, connection: Any, sql: str, values: Sequence[Any]) -> list[Row]:
        group = derived_group(sql) if self._damaged is not None else ""
        if self._damaged and group in self._damaged:
            self.skipped |= set() if self._readonly else {group}
            return []
        try:
            return await connection.fetch(number_slots(sql), *values)
        except DAMAGE_ERRORS as error:
            if not group:
                raise
            raise IndexDamageError(group, error) from error


def replace_tables(group: str) -> Steps[None]:
    """Empty tables in place of those of a group, behind the same wall; all sessions are to be indexed again. Sessions
    of all owners are read by the owner of the tables, who is exempt from the wall for this transaction only."""
    yield "SELECT pg_advisory_xact_lock(?)", (MIGRATION_LOCK,)
    tables = [table for table, mine in DERIVED_TABLES["postgres"].items() if mine == group]
    if group == "search":
        yield "LOCK TABLE chat_session IN ACCESS EXCLUSIVE MODE", ()
    for table in tables:
        yield f"DROP TABLE IF EXISTS {table}", ()
        yield table_definition("postgres", table), ()
    if group == "search":
        yield "ALTER TABLE chat_session NO FORCE ROW LEVEL SECURITY", ()
        yield "INSERT INTO search_todo (owner, session_id, seq) SELECT owner, session_id, 0 FROM chat_session", ()
        yield "ALTER TABLE chat_session FORCE ROW LEVEL SECURITY", ()
        is_worker = "current_setting('lamina.worker', true) = 'on'"
        yield f"CREATE POLICY worker_lists ON search_todo FOR SELECT USING ({is_worker})", ()
    for table in tables:
        yield f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY", ()
        yield f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY", ()
        yield f"CREATE POLICY owner_only ON {table} USING (owner = current_setting('lamina.owner', true))", ()


async def _check_role(connection: Any, place: str) -> None:
    row = await connection.fetchrow(
        "SELECT rolname, rolsuper OR rolbypassrls, current_setting('synchronous_commit') FROM pg_roles "
        "WHERE rolname = current_user"
    )
    if row[1]:
        raise StoreError("postgres.role_bypasses_security", role=row[0], place=place)
    if row[2] == "off":
        raise StoreError("postgres.asynchronous_commit", role=row[0], place=place)


async def _skew(connection: Any) -> float:
    """How far the server's clock is ahead; what the way there may account for is nothing."""
    asked = time.time()
    there = await connection.fetchval("SELECT CAST(extract(epoch FROM clock_timestamp()) AS float8)")
    ahead = float(there) - (asked + time.time()) / 2
    return ahead if abs(ahead) > CLOCK_TOLERANCE_S else 0.0


async def _migrate(connection: Any, place: str, clock: Clock, upto: int | None) -> int:
    """Bring the tables up to date, in one transaction; another process that starts now waits."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
        known = await connection.fetchval("SELECT to_regclass('schema_version')")
        ours = await connection.fetchval("SELECT to_regclass('owner_counter')")
        if known is None:
            await connection.execute(VERSION_TABLE)
        elif ours is None:
            raise StoreError("postgres.foreign_database", place=place)
        version = int(await connection.fetchval("SELECT COALESCE(MAX(version), 0) FROM schema_version"))
        for migration in pending("postgres", version, upto):
            await connection.execute(migration.sql)
            await connection.execute(
                "INSERT INTO schema_version (version, name, applied) VALUES ($1, $2, $3)",
                migration.version,
                migration.name,
                clock(),
            )
    return version


async def open_postgres(url: str, clock: Clock, upto: int | None = None) -> tuple[PostgresDatabase, int]:
    """The database, and the version it had before."""
    place = hide_password(url)
    try:
        connect: Any = cast("Any", asyncpg).create_pool
        pool: Any = await connect(url, min_size=1, max_size=POOL, reset=_nothing)
    except (ValueError, asyncpg.ClientConfigurationError):  # its words quote pieces of the address
        raise StoreError("postgres.bad_address", place=place) from None
    except (*CONNECTION_ERRORS, asyncpg.PostgresError, TimeoutError) as error:
        raise StoreError("postgres.unreachable", place=place, why=str(error)) from error
    try:
        async with pool.acquire() as connection:
            await _check_role(connection, place)
            before = await _migrate(connection, place, clock, upto)
            skew = await _skew(connection)
    except asyncpg.PostgresError as error:
        pool.terminate()
        raise StoreError("postgres.migration_refused", place=place, why=str(error)) from error
    except StoreError:
        pool.terminate()
        raise
    return PostgresDatabase(pool, skew), before
