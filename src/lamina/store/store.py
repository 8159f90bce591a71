"""The store as the rest of lamina sees it: groups of methods over one database, and the one way to open it."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from os import PathLike, fspath

from lamina.errors import StoreError
from lamina.store.database import Clock, Database
from lamina.store.history import History
from lamina.store.jobs import Jobs
from lamina.store.keys import Keys
from lamina.store.maintenance import Maintenance
from lamina.store.memories import Memories
from lamina.store.overview import Overview
from lamina.store.sessions import Sessions
from lamina.store.sqlite import open_sqlite
from lamina.store.summaries import Profile, Summaries
from lamina.store.templates import Templates
from lamina.store.turns import Turns


class Store:
    """Everything that is kept. The first argument of each method is the owner; nobody sees another's rows."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self.db = db
        self.sessions = Sessions(db, clock)
        self.turns = Turns(db, clock)
        self.history = History(db, clock)
        self.memories = Memories(db, clock)
        self.summaries = Summaries(db, clock)
        self.profile = Profile(db, clock)
        self.templates = Templates(db, clock)
        self.jobs = Jobs(db, clock)
        self.keys = Keys(db, clock)
        self.maintenance = Maintenance(db, clock)
        self.overview = Overview(db, clock)

    @property
    def commits(self) -> int:
        """Commits of this process so far; transactions that waited together may be one."""
        return self.db.commits

    @property
    def alone(self) -> bool:
        """Whether this process is the only one: then every open turn it finds at its start is nobody's."""
        return self.db.dialect.name == "sqlite"


def _as_there(clock: Clock, skew: float) -> Clock:
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
            raise StoreError("asyncpg is not installed", hint="pip install 'lamina[postgres]'") from error
        db, before = await open_postgres(where, clock)
        clock = _as_there(clock, db.skew)
    elif "://" in where and not where.startswith("sqlite:///"):
        raise StoreError(f"no store speaks {where.partition('://')[0]!r}", hint="a path, sqlite:/// or postgresql://")
    else:
        db, before = await open_sqlite(where.removeprefix("sqlite:///"), clock)
    try:
        store = Store(db, clock)
        if before == 1:
            await store.maintenance.reindex()  # version 2 brought message search
        yield store
    finally:
        await db.close()
