"""The PostgreSQL driver: what it does when the answer to a commit gets lost, and how it writes placeholders."""

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs] -- it ships annotations, no stubs
import pytest

from lamina.errors import StoreError
from lamina.store.database import Steps
from lamina.store.postgres import PostgresDatabase, number_slots, open_postgres
from lamina.store.store import Store, open_store
from lamina.types import AnyMessage, text_hash
from tests.postgres import Server

QUESTION: AnyMessage = {"role": "user", "content": "hi"}
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
            await store.messages.append("ann", session, [{"role": "user", "content": f"{n}"}])
        assert wire.cuts == 5
        assert [m.content for m in await store.messages.list("ann", session)] == ["0", "1", "2", "3", "4"]
        assert await store.admin.verify() == []


async def test_a_planted_driver_that_repeats_blindly_doubles(postgres: Server) -> None:
    class Blind(PostgresDatabase):
        async def _committed(self, number: str) -> bool:
            return False

    async with wired(postgres) as (wire, db):
        blind = Blind(db._pool)  # pyright: ignore[reportPrivateUsage] -- the same pool, another driver
        store = Store(blind, lambda: 1.0)
        session = (await store.sessions.new("ann")).session_id
        wire.cut = "after"
        await store.messages.append("ann", session, [{"role": "user", "content": "once"}])
        assert len(await store.messages.list("ann", session)) == 2


def test_placeholders_are_numbered_in_order() -> None:
    assert number_slots("a = ? AND b IN (?, ?)") == "a = $1 AND b IN ($2, $3)"


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


async def test_a_text_that_is_deleted_while_a_turn_leans_on_it_is_stored_again(postgres: Server) -> None:
    where, text = postgres.database(), {text_hash("shared"): "shared"}
    async with open_store(where) as store:
        first, second = [
            await store.turns.begin("ann", (await store.sessions.new("ann")).session_id, QUESTION) for _ in range(2)
        ]
        await store.turns.finish("ann", first.turn_id, texts=text)
        other: Any = await cast("Any", asyncpg).connect(where.replace("lamina@", "postgres@"))
        try:
            async with other.transaction():
                await other.execute("LOCK TABLE turn_text IN EXCLUSIVE MODE")  # the text is found there, its link waits
                finishing = asyncio.create_task(store.turns.finish("ann", second.turn_id, texts=text))
                async with asyncio.timeout(20):
                    while not await other.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                        assert not finishing.done()
                        await asyncio.sleep(0.01)
                await other.execute("DELETE FROM turn_text; DELETE FROM layer_text")  # as a deleted session does
        finally:
            await other.close()
        assert (await finishing).state == "complete"
        assert await store.messages.texts("ann", list(text)) == text


async def test_a_row_that_leans_on_nothing_is_refused(postgres: Server) -> None:
    async with open_store(postgres.database()) as store:

        def wrong() -> Steps[None]:
            yield "INSERT INTO turn_text (owner, turn_id, hash) VALUES (?, ?, ?)", ("ann", "none", "none")

        with pytest.raises(StoreError, match=r"refused a statement: .* foreign key"):
            await store.db.write("ann", wrong)


CLOCK = """
import asyncio, sys, time
right = time.time
time.time = lambda: right() + float(sys.argv[2])
from lamina.store.store import open_store
async def main():
    async with open_store(sys.argv[1]) as store:
        session = await store.sessions.new("ann")
        turn = await store.turns.begin("ann", session.session_id, {"role": "user", "content": "hi"}, lease=600)
        print(turn.lease_until)
asyncio.run(main())
"""


@pytest.mark.parametrize("ahead", [-900, 0, 900])
async def test_a_lease_is_in_the_time_of_the_database_whatever_the_machine_says(postgres: Server, ahead: int) -> None:
    where = postgres.database()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLOCK, where, str(ahead), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert 300 < float(said) - time.time() < 900
    async with open_store(where) as store:
        assert await store.turns.recover() == [], "nobody takes it for lost"
