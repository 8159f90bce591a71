"""The PostgreSQL driver: the same transactions over asyncpg, for more than one process or machine.

Each transaction names its owner, and row-level security shows it nothing else. What fails for a passing reason is run
again; a commit whose answer got lost is looked up by its transaction number, so it is never repeated blindly.
"""

import asyncio
import contextlib
import itertools
import re
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs] -- it ships annotations, no stubs

from lamina.errors import StoreError
from lamina.store.database import Clock, Dialect, Make, checked_owner
from lamina.store.schema import VERSION_TABLE, pending

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds for which a transaction is tried again, when it meets another or the server goes away."""
MIGRATION_LOCK = 0x6C616D696E61
LOST = (
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
FULL = f"each process of lamina takes up to {POOL} connections: raise max_connections there, or put PgBouncer between"
AGAIN = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.UniqueViolationError,
    asyncpg.ForeignKeyViolationError,  # what a row leans on was deleted meanwhile
)
"""Two transactions met; rolled back for certain. On the second run one of them sees what the other did."""
EXACT = 0.5
"""Seconds by which clocks may differ without harm."""
MEETINGS = 10
"""Runs after which a row that leans on nothing is no meeting but a mistake."""


def _lexemes(owner: str, found: Sequence[str]) -> str:
    return " ".join(f"'{word}'" for word in found)


def _match(owner: str, wanted: Sequence[str]) -> str:
    """All words; the last one may go on, as somebody types it."""
    return " & ".join(f"'{word}'" for word in wanted) + ":*"


DIALECT = Dialect(
    name="postgres",
    skip_locked=" FOR UPDATE SKIP LOCKED",
    words_value="CAST(CAST(? AS text) AS tsvector)",
    words_match="words @@ CAST(CAST(? AS text) AS tsquery)",
    words=_lexemes,
    words_erase="",
    match=_match,
)


@lru_cache(maxsize=1_000)
def numbered(sql: str) -> str:
    """`?` as `$1`, `$2`, …; no statement has a question mark in a text."""
    count = 0

    def place(_: "re.Match[str]") -> str:
        nonlocal count
        count += 1
        return f"${count}"

    return re.sub(r"\?", place, sql)


async def _nothing(connection: Any) -> None:
    """Settings are made for one transaction only, so there is nothing to reset."""


class PostgresDatabase:
    """Its errors do not say where the server is: they may reach whoever chats."""

    dialect = DIALECT

    def __init__(self, pool: Any, skew: float = 0.0) -> None:
        self._pool = pool
        self.skew = skew
        """Seconds that the server's clock is ahead of this machine's."""
        self.commits = 0

    async def write(self, owner: str, make: Make[T]) -> T:
        return await self._run(checked_owner(owner), make, worker=False, readonly=False)

    async def read(self, owner: str, make: Make[T]) -> T:
        return await self._run(checked_owner(owner), make, worker=False, readonly=True)

    async def seldom(self, owner: str, name: str, make: Make[T]) -> T:
        return await self.read(owner, make)  # other processes write too

    async def system(self, make: Make[T]) -> T:
        return await self._run("", make, worker=True, readonly=False)

    async def survey(self, make: Make[T]) -> T:
        return await self._run("", make, worker=True, readonly=True)

    async def close(self) -> None:
        try:
            await asyncio.wait_for(self._pool.close(), 5)
        except TimeoutError:
            self._pool.terminate()

    async def _run(self, owner: str, make: Make[T], *, worker: bool, readonly: bool) -> T:
        failure: Exception | None = None
        deadline = asyncio.get_running_loop().time() + PATIENCE
        for run, pause in enumerate(itertools.chain((0.0, 0.0, 0.01, 0.05), itertools.repeat(0.2))):
            if asyncio.get_running_loop().time() + pause > deadline:
                break
            await asyncio.sleep(pause)
            attempted = Attempt(owner, worker, readonly)
            try:
                async with self._pool.acquire() as connection:
                    result = await attempted.run(connection, make)
                    self.commits += not readonly
                    return result
            except AGAIN as error:
                if isinstance(error, asyncpg.ForeignKeyViolationError) and run >= MEETINGS:
                    raise self._explain(error) from error
                failure = error
            except LOST as error:
                if isinstance(error, ValueError):  # a value that asyncpg cannot send
                    raise StoreError(f"PostgreSQL takes no such value: {error}") from error
                failure = error
                if attempted.committing and await self._committed(attempted.number):
                    return cast("T", attempted.result)
            except asyncpg.PostgresError as error:
                raise self._explain(error) from error
        raise StoreError(
            f"PostgreSQL did not answer for {PATIENCE:g} s: {failure}",
            hint=FULL if isinstance(failure, asyncpg.TooManyConnectionsError) else "check that it runs, then try again",
        ) from failure

    async def _committed(self, number: str) -> bool:
        """What became of a commit whose answer got lost."""
        status: str | None = None
        for pause in (0.01, 0.05, *itertools.repeat(0.2, int(PATIENCE / 0.2))):
            await asyncio.sleep(pause)
            with contextlib.suppress(*LOST):
                async with self._pool.acquire() as connection:
                    status = await connection.fetchval("SELECT pg_xact_status(CAST($1::text AS xid8))", number)
                if status in ("committed", "aborted"):
                    return status == "committed"
        raise StoreError(
            "the connection to PostgreSQL was lost in a commit; whether it was saved is not known",
            hint="try again with the same key: nothing is stored twice under one key",
        )

    def _explain(self, error: asyncpg.PostgresError) -> StoreError:
        if isinstance(error, asyncpg.DiskFullError):
            return StoreError("no space left for PostgreSQL; nothing of this was saved", hint="free some space there")
        return StoreError(f"PostgreSQL refused: {error}", hint="this is a mistake in lamina; please report it")


class Attempt:
    """One run of a transaction, and how far it came."""

    def __init__(self, owner: str, worker: bool, readonly: bool) -> None:
        self._owner = owner
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
        except LOST:
            with contextlib.suppress(asyncpg.InterfaceError):  # it has been put away already
                connection.terminate()  # asyncpg may still think that it works
            raise
        return cast("T", self.result)

    async def _undo(self, transaction: Any) -> None:
        with contextlib.suppress(*LOST, asyncpg.PostgresError):
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
                sql, values = steps.send(await connection.fetch(numbered(sql), *values))
        except StopIteration as end:
            return cast("T", end.value)
        finally:
            steps.close()


async def _check_role(connection: Any, place: str) -> None:
    row = await connection.fetchrow(
        "SELECT rolname, rolsuper OR rolbypassrls, current_setting('synchronous_commit') FROM pg_roles "
        "WHERE rolname = current_user"
    )
    if row[1]:
        raise StoreError(
            f"the role {row[0]!r} at {place} passes by row-level security",
            hint="use a plain role, as made by CREATE ROLE lamina LOGIN NOSUPERUSER NOBYPASSRLS",
        )
    if row[2] == "off":
        raise StoreError(
            f"synchronous_commit is off for the role {row[0]!r} at {place}: a crash would lose what was acknowledged",
            hint=f"ALTER ROLE {row[0]} SET synchronous_commit = on",
        )


async def _skew(connection: Any) -> float:
    """How far the server's clock is ahead; what the way there may account for is nothing."""
    asked = time.time()
    there = await connection.fetchval("SELECT CAST(extract(epoch FROM clock_timestamp()) AS float8)")
    ahead = float(there) - (asked + time.time()) / 2
    return ahead if abs(ahead) > EXACT else 0.0


async def _migrate(connection: Any, place: str, clock: Clock, upto: int | None) -> int:
    """Bring the tables up to date, in one transaction; whoever starts at the same moment waits."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
        known = await connection.fetchval("SELECT to_regclass('schema_version')")
        ours = await connection.fetchval("SELECT to_regclass('owner_counter')")
        if known is None:
            await connection.execute(VERSION_TABLE)
        elif ours is None:
            raise StoreError(
                f"the database at {place} has a schema_version of another program", hint="give lamina one of its own"
            )
        version = int(await connection.fetchval("SELECT COALESCE(MAX(version), 0) FROM schema_version"))
        for migration in pending("postgres", version, upto):
            await connection.execute(migration.sql)
            await connection.execute(
                "INSERT INTO schema_version (version, name, applied) VALUES ($1, $2, $3)",
                migration.version, migration.name, clock(),
            )  # fmt: skip
    return version


async def open_postgres(url: str, clock: Clock, upto: int | None = None) -> tuple[PostgresDatabase, int]:
    """The database, and the version it had before."""
    place = re.sub(r"//[^@/]*@", "//", url.partition("?")[0])  # an error must not show the password
    try:
        connect: Any = cast("Any", asyncpg).create_pool
        pool: Any = await connect(url, min_size=1, max_size=POOL, reset=_nothing)
    except (*LOST, asyncpg.PostgresError, ValueError, TimeoutError) as error:
        raise StoreError(
            f"cannot reach PostgreSQL at {place}: {error}", hint="check the address and the role"
        ) from error
    try:
        async with pool.acquire() as connection:
            await _check_role(connection, place)
            before = await _migrate(connection, place, clock, upto)
            skew = await _skew(connection)
    except asyncpg.PostgresError as error:
        pool.terminate()
        raise StoreError(f"PostgreSQL at {place} refused to make the tables: {error}", hint="check the role's rights"
                         ) from error  # fmt: skip
    except StoreError:
        pool.terminate()
        raise
    return PostgresDatabase(pool, skew), before
