"""The PostgreSQL driver: what it does when the answer to a commit gets lost, and how it writes placeholders."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lamina.errors import StoreError
from lamina.store.postgres import PostgresDatabase, numbered, open_postgres
from lamina.store.store import Store
from tests.postgres import Server

SOCKET = ".s.PGSQL.5432"


class Wire:
    """Between client and server: passes everything on, and cuts the line at a commit when it is told to.

    `before` cuts before the server has seen the commit, `after` when the server has done it and not yet been heard.
    """

    def __init__(self, server: Path) -> None:
        self.server = server
        self.cut = ""
        self.cuts = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(self.server)
        lost = asyncio.Event()

        async def to_server() -> None:
            while data := await reader.read(65536):
                if self.cut and b"COMMIT;" in data:  # not the level READ COMMITTED of a BEGIN
                    lost.set()
                    self.cuts += 1
                    before, self.cut = self.cut == "before", ""
                    if before:
                        break
                back.write(data)
            back.close()

        async def to_client() -> None:
            while data := await there.read(65536):
                if lost.is_set():
                    break
                writer.write(data)
            writer.close()

        with contextlib.suppress(ConnectionError):
            await asyncio.gather(to_server(), to_client())
        for each in (back, writer):
            each.close()
            with contextlib.suppress(ConnectionError):
                await each.wait_closed()


@asynccontextmanager
async def wired(server: Server) -> AsyncGenerator[tuple[Wire, PostgresDatabase], None]:
    where = server.database()
    with tempfile.TemporaryDirectory() as folder:
        wire = Wire(server.folder / "socket" / SOCKET)
        listening = await asyncio.start_unix_server(wire.serve, Path(folder) / SOCKET)
        db, _ = await open_postgres(f"{where.partition('?')[0]}?host={folder}", lambda: 1.0)
        try:
            yield wire, db
        finally:
            await db.close()
            listening.close()
            await listening.wait_closed()


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_commit_whose_answer_got_lost_is_neither_lost_nor_doubled(postgres: Server, cut: str) -> None:
    async with wired(postgres) as (wire, db):
        store = Store(db, lambda: 1.0)
        session = (await store.sessions.new("ann")).session_id
        for n in range(5):
            wire.cut = cut
            await store.history.append("ann", session, [{"role": "user", "content": f"{n}"}])
        assert wire.cuts == 5
        assert [m.content for m in await store.history.messages("ann", session)] == ["0", "1", "2", "3", "4"]
        assert await store.maintenance.verify() == []


async def test_a_planted_driver_that_repeats_blindly_doubles(postgres: Server) -> None:
    class Blind(PostgresDatabase):
        async def _committed(self, number: str) -> bool:
            return False

    async with wired(postgres) as (wire, db):
        blind = Blind(db._pool, "here")  # pyright: ignore[reportPrivateUsage] -- the same pool, another driver
        store = Store(blind, lambda: 1.0)
        session = (await store.sessions.new("ann")).session_id
        wire.cut = "after"
        await store.history.append("ann", session, [{"role": "user", "content": "once"}])
        assert len(await store.history.messages("ann", session)) == 2


def test_placeholders_are_numbered_in_order() -> None:
    assert numbered("a = ? AND b IN (?, ?)") == "a = $1 AND b IN ($2, $3)"


async def test_the_versions_of_another_program_are_left_alone(postgres: Server) -> None:
    where = postgres.database()
    database = where.partition("@/")[2].partition("?")[0]
    postgres.sql("CREATE TABLE schema_version (version text); INSERT INTO schema_version VALUES ('abc')", database)
    postgres.sql("GRANT ALL ON schema_version TO lamina", database)
    with pytest.raises(StoreError, match="another program"):
        await open_postgres(where, lambda: 1.0)


async def test_R20_where_all_connections_are_taken_one_is_waited_for(postgres: Server) -> None:
    where = postgres.database()
    database, _ = await open_postgres(where, time.time)
    postgres.sql(f"ALTER DATABASE {where.partition('@/')[2].partition('?')[0]} CONNECTION LIMIT 1")
    store = Store(database, time.time)
    try:
        async with asyncio.timeout(60):
            await asyncio.gather(*(store.sessions.new("ann", session_id=f"s{n}") for n in range(8)))
        assert len(await store.sessions.list("ann")) == 8
    finally:
        await database.close()


async def test_R13_whatever_the_plan_no_more_jobs_are_taken_than_were_asked_for(postgres: Server) -> None:
    where = postgres.database()
    name = where.partition("@/")[2].partition("?")[0]
    for way in ("hashjoin", "mergejoin", "hashagg", "sort", "material"):  # then a subquery is run for each row
        postgres.sql(f"ALTER DATABASE {name} SET enable_{way} = off")
    database, _ = await open_postgres(where, time.time)
    store = Store(database, time.time)
    try:
        for n in range(12):
            await store.jobs.add(f"user{n}", "memory")
        assert [len(await store.jobs.claim("w", kinds=["memory"], n=3, in_order=True)) for _ in range(5)] == [3] * 4 + [
            0
        ]
    finally:
        await database.close()
