"""The store as the rest of lamina sees it: groups of methods over one database, and the one way to open it."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from os import PathLike, fspath

from lamina.errors import StoreError, format_value
from lamina.store.admin import Admin, Indexes
from lamina.store.database import Clock, Database
from lamina.store.jobs import Jobs
from lamina.store.keys import Keys
from lamina.store.memories import Memories
from lamina.store.messages import Messages
from lamina.store.sessions import Sessions, Summaries
from lamina.store.sqlite import open_sqlite
from lamina.store.templates import Profile, Templates
from lamina.store.turns import Turns


class Store:
    """Everything that is stored. The first argument of each method is the owner; no owner sees another's rows."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self.db = db
        self.sessions = Sessions(db, clock)
        self.turns = Turns(db, clock)
        self.messages = Messages(db, clock)
        self.memories = Memories(db, clock)
        self.summaries = Summaries(db, clock)
        self.profile = Profile(db, clock)
        self.templates = Templates(db, clock)
        self.jobs = Jobs(db, clock)
        self.keys = Keys(db, clock)
        self.indexes = Indexes(db, clock)
        self.admin = Admin(db, clock, self.indexes)

    @property
    def commits(self) -> int:
        """Commits of this process so far; transactions that waited together may be one."""
        return self.db.commits

    @property
    def alone(self) -> bool:
        """Whether this process is the only one: then no other one answers the open turns that it finds at its start."""
        return self.db.dialect.name == "sqlite"


def _shift_clock(clock: Clock, skew: float) -> Clock:
    """The time that all processes of a store agree on: a lease that one writes, another reads."""
    return lambda: clock() + skew


@asynccontextmanager
async def open_store(where: str | PathLike[str], *, clock: Clock = time.time) -> AsyncGenerator[Store, None]:
    """Open a store, bring its tables up to date, and close it at the end.

    `where` is a path or `sqlite:///path` for SQLite, or `postgresql://…` for PostgreSQL.
    """
    where = fspath(where)
    if where.startswith(("postgresql://", "postgres://")):
        try:
            from lamina.store.postgres import open_postgres  # noqa: PLC0415 -- asyncpg is an extra
        except ModuleNotFoundError as error:
            raise StoreError("postgres.not_installed") from error
        db, before = await open_postgres(where, clock)
        clock = _shift_clock(clock, db.skew)
    elif "://" in where and not where.startswith("sqlite:///"):
        raise StoreError("store.unknown_scheme", scheme=format_value(where.partition("://")[0]))
    else:
        db, before = await open_sqlite(where.removeprefix("sqlite:///"), clock)
    try:
        store = Store(db, clock)
        if before == 1 and not store.alone:
            await store.admin.reindex()  # version 2 brought message search
        async with _keep_complete(store):
            yield store
    finally:
        await db.close()


@asynccontextmanager
async def _keep_complete(store: Store) -> AsyncGenerator[None, None]:
    """What is derived is completed and repaired in the background, for as long as the store is open."""
    with suppress(StoreError):  # every use of the store says so
        await store.indexes.prepare()
    task = asyncio.create_task(store.indexes.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
