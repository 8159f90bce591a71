"""I1: many owners with canaries in every field, all at once, some leaving early; and the second wall of PostgreSQL."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg  # pyright: ignore[reportMissingTypeStubs] -- it ships annotations, no stubs
import pytest

from lamina.errors import LeaseError, MessageError, NotFoundError, StoreError
from lamina.records import IndexRow, Job, Memory, NewJob, NewMemory, Session, StoredMessage, Template, TurnRecord
from lamina.store import admin
from lamina.store.database import Row, Steps
from lamina.store.messages import plan_rebuild
from lamina.store.schema import DERIVED_TABLES
from lamina.store.store import Store, open_store
from lamina.types import text_hash
from tests.faults.load import Load
from tests.postgres import Server

OWNERS = [f"owner{n:03}" for n in range(100)]


def canary(owner: str) -> str:
    return f"canary{owner}s"


def foreign(owner: str, given: object) -> list[str]:
    """Canaries of others in what an owner was given."""
    text = repr(given)
    return [other for other in OWNERS if other != owner and canary(other) in text]


class Crowd:
    """Owners who do things at random, with their own ids and with those of others."""

    def __init__(self, store: Store, rng: random.Random) -> None:
        self.store = store
        self.rng = rng
        self.ids: dict[str, list[str]] = {"session": [], "turn": [], "message": [], "memory": [], "template": []}
        self.jobs: list[Job] = []
        self.leaks: list[str] = []
        self.done = self.refused = self.left = 0

    def any_id(self, kind: str) -> str:
        return self.rng.choice(self.ids[kind][-60:]) if self.ids[kind] else "none"

    def keep(self, given: Any) -> None:
        for each in given if isinstance(given, list | tuple) else [given]:
            match each:
                case Session():
                    self.ids["session"].append(each.session_id)
                case TurnRecord():
                    self.ids["turn"].append(each.turn_id)
                case StoredMessage():
                    self.ids["message"].append(each.message_id)
                case Memory():
                    self.ids["memory"].append(each.memory_id)
                case Template():
                    self.ids["template"].append(each.template_id)
                case _:
                    pass

    def operations(self, owner: str) -> list[Callable[[], Awaitable[Any]]]:
        s, mark, one = self.store, canary(owner), self.any_id
        message = {"role": "user", "content": f"{mark} asks", "name": mark}
        return [
            lambda: s.sessions.new(owner, title=mark, scenario=mark, app=mark, mode=mark, skill=mark, meta={mark: 1}),
            lambda: s.sessions.new(owner, title=mark),
            lambda: s.sessions.list(owner),
            lambda: s.sessions.get(owner, one("session")),
            lambda: s.sessions.search(owner, "asks"),
            lambda: s.sessions.search(owner, "canary"),
            lambda: s.sessions.update(owner, one("session"), title=mark, meta={"m": mark}, injection={"i": mark}),
            lambda: s.sessions.branch(owner, one("session"), 1, title=mark),
            lambda: s.messages.append(owner, one("session"), [message]),
            lambda: s.messages.list(owner, one("session"), limit=20),
            lambda: s.messages.get(owner, one("message")),
            lambda: s.messages.collect(owner, one("message")),
            lambda: s.messages.collected(owner),
            lambda: s.messages.texts(owner, [text_hash("shared"), text_hash(canary(self.rng.choice(OWNERS)))]),
            lambda: self.begin_again(owner, one("session"), message),
            lambda: s.turns.begin(owner, one("session"), message),
            lambda: s.turns.chunk(owner, one("turn"), self.rng.randrange(9), mark),
            lambda: s.turns.add(owner, one("turn"), [{"role": "tool", "content": mark, "tool_call_id": mark}]),
            lambda: s.turns.finish(
                owner, one("turn"), usage={mark: 1}, receipt={mark: mark}, error=mark, injection={mark: 1},
                texts={text_hash(mark): mark}, jobs=[NewJob(f"memory {mark}", {mark: mark}, key=mark)],
            ),
            lambda: s.turns.list(owner, one("session")),
            lambda: s.memories.add(owner, [NewMemory(f"{mark} {self.rng.random()}", mark, session_id=mark)]),
            lambda: s.memories.list(owner, state=None, query="canary"),
            lambda: s.memories.changes(owner, limit=20),
            lambda: self.pin(owner, one("memory")),
            lambda: s.memories.edit(owner, one("memory"), text=f"{mark} edited {self.rng.random()}"),
            lambda: s.memories.add(owner, [NewMemory(f"{mark} new {self.rng.random()}", supersedes=(one("memory"),))]),
            lambda: s.memories.put_index(
                owner, [IndexRow(one("memory"), self.rng.randrange(99), mark, terms=mark.encode())]
            ),
            lambda: s.memories.index_changes(owner, mark),
            lambda: s.summaries.put(owner, one("session"), mark, upto_seq=1, written_by=mark, memory_ids=[mark]),
            lambda: s.summaries.recent(owner),
            lambda: s.profile.set(owner, {mark: mark}),
            lambda: s.profile.get(owner),
            lambda: s.templates.put(owner, Template("shared id", mark, mark, mark, description=mark, source=mark)),
            lambda: s.templates.list(owner),
            lambda: s.jobs.add(owner, mark, {mark: mark}, key="shared key"),
            lambda: s.jobs.counts(owner),
            lambda: s.jobs.parked(owner),
        ]  # fmt: skip

    def begin_again(self, owner: str, session: str, message: Any) -> Awaitable[Any]:
        """A turn with one of a few keys, which belong to their session."""
        return self.store.turns.begin(owner, session, message, key=f"{session}:{self.rng.randrange(9)}")

    async def pin(self, owner: str, memory_id: str) -> Any:
        """One that another lane has superseded meanwhile is refused, in words that name the newer one."""
        try:
            return await self.store.memories.pin(owner, memory_id)
        except MessageError as error:
            if error.code != "memory.superseded":
                raise
            return str(error)

    async def one(self, owner: str) -> None:
        task = asyncio.ensure_future(self.rng.choice(self.operations(owner))())
        if self.rng.random() < 0.1:
            await asyncio.sleep(self.rng.uniform(0, 0.002))
            task.cancel()
        try:
            given = await task
        except asyncio.CancelledError:
            self.left += 1
            return
        except (NotFoundError, LeaseError) as error:
            self.refused += 1
            given = str(error)
        self.done += 1
        self.keep(given)
        self.leaks += [f"{owner} saw {other} in {given!r:.300}" for other in foreign(owner, given)]

    async def run(self, load: Load, count: int) -> None:
        async def lane(n: int) -> None:
            for _ in load.rounds(count // 64, "operations"):
                await self.one(self.rng.choice(OWNERS))

        await asyncio.gather(*(lane(n) for n in range(64)))


async def test_I1_no_owner_ever_sees_anothers_canary(store: Store, load: Load) -> None:
    crowd = Crowd(store, random.Random(load.seed()))
    await crowd.run(load, 12_800 if store.alone else 6_400)
    assert crowd.leaks == []
    assert crowd.done > 2_000
    assert crowd.refused > 100
    assert crowd.left > 50
    for owner in OWNERS:
        lines = [line async for line in store.admin.export(owner)]
        assert foreign(owner, lines) == []
        assert canary(owner) in repr(lines)
    for job in await store.jobs.claim("w", n=1_000):
        assert foreign(job.owner, job) == []
    assert await store.admin.verify() == []


async def filled(store: Store) -> None:
    for owner in OWNERS[:3]:
        session = (await store.sessions.new(owner, title=canary(owner))).session_id
        turn = await store.turns.begin(owner, session, {"role": "user", "content": canary(owner)})
        await store.turns.chunk(owner, turn.turn_id, 0, canary(owner))
        done = await store.turns.begin(owner, session, {"role": "user", "content": canary(owner)})
        mark = canary(owner)
        await store.turns.finish(
            owner, done.turn_id, texts={text_hash(mark): mark}, jobs=[NewJob("memory", {"m": mark})]
        )
        (memory,) = await store.memories.add(owner, [NewMemory(mark)])
        await store.memories.put_index(owner, [IndexRow(memory.memory_id, memory.change, mark)])
        await store.summaries.put(owner, session, mark, upto_seq=1)
        await store.profile.set(owner, {"name": mark})
        await store.templates.put(owner, Template("t", mark, mark))
        key, _ = await store.keys.add(owner, mark, scopes=("chat",))
        await store.keys.spend(owner, key.key_id, "2026-11-15", requests=1, tokens=1)


def without_owner(table: str) -> Steps[list[Row]]:
    """The planted bug: a query that forgot its owner."""
    return (yield f"SELECT * FROM {table}", ())


@pytest.mark.planted("a query that forgets its owner")
async def test_I1_a_query_without_its_owner_is_found_and_stopped_by_the_second_wall(store: Store) -> None:
    await filled(store)
    derived = [
        table for table in DERIVED_TABLES[store.db.dialect.name] if table != "message_word"
    ]  # of a block's owner
    for owner in OWNERS:
        await store.db.write(owner, lambda o=owner: plan_rebuild(o))
    for table in (*admin.TABLES, *derived, *admin.UNEXPORTED):
        rows = await store.db.read(OWNERS[0], lambda t=table: without_owner(t))
        owners = {row[1] if table == "message_block" else row[0] for row in rows}
        assert OWNERS[0] in owners, table
        if store.alone:
            assert len(owners) == 3, table  # SQLite has no second wall: the check of I1 is what finds it
            if table == "conversation":
                assert foreign(OWNERS[0], rows)
        else:
            assert owners == {OWNERS[0]}, table


async def test_I1_row_level_security_holds_against_raw_sql(postgres: Server) -> None:
    where = postgres.database()
    async with open_store(where) as store:
        await filled(store)
    connection: Any = await asyncpg.connect(where)  # pyright: ignore[reportUnknownMemberType]
    try:
        tables = [
            row[0]
            for row in await connection.fetch(
                "SELECT table_name FROM information_schema.columns "
                "WHERE column_name = 'owner' AND table_schema = 'public'"
            )
        ]
        assert set(tables) == {*admin.TABLES, *DERIVED_TABLES["postgres"], *admin.UNEXPORTED}
        for table in tables:
            flags = await connection.fetchrow(
                "SELECT relrowsecurity, relforcerowsecurity FROM pg_class WHERE relname = $1", table
            )
            assert tuple(flags) == (True, True), table
            assert await connection.fetch(f"SELECT * FROM {table}") == [], table
        await connection.execute("SELECT set_config('lamina.owner', $1, false)", OWNERS[0])
        for statement in (
            f"INSERT INTO user_profile (owner, name, value, updated) VALUES ('{OWNERS[1]}', 'x', '1', 1)",
            f"UPDATE user_profile SET owner = '{OWNERS[1]}'",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
        assert await connection.execute("DELETE FROM chunk") == "DELETE 1"
        await connection.execute(
            "SELECT set_config('lamina.owner', '', false), set_config('lamina.worker', 'on', false)"
        )
        seen = {table: await connection.fetchval(f"SELECT count(*) FROM {table}") for table in tables}
        shown = {"outbox", "turn", "owner_counter", "api_key", "key_use"}
        assert {table for table, count in seen.items() if count} == shown
        assert await connection.execute("UPDATE api_key SET hash = 'x'") == "UPDATE 0"
        assert await connection.fetchval("SELECT count(*) FROM turn WHERE state <> 'streaming'") == 0
        assert await connection.execute("DELETE FROM outbox") == "DELETE 0"
        assert await connection.execute("UPDATE turn SET error = 'x'") == "UPDATE 0"
    finally:
        await connection.close()


async def test_a_role_that_passes_by_the_second_wall_is_refused(postgres: Server) -> None:
    where = postgres.database()
    with pytest.raises(StoreError, match="row-level security") as error:
        async with open_store(where.replace("lamina@", "postgres@")):
            pass
    assert "NOBYPASSRLS" in error.value.hint
    postgres.sql("CREATE ROLE careless LOGIN")
    postgres.sql("ALTER ROLE careless SET synchronous_commit = off")
    with pytest.raises(StoreError, match="synchronous_commit"):
        async with open_store(where.replace("lamina@", "careless@")):
            pass


async def test_a_server_that_cannot_be_reached_is_named_without_its_password() -> None:
    with pytest.raises(StoreError, match="cannot reach PostgreSQL") as error:
        async with open_store("postgresql://lamina:hunter2@127.0.0.1:1/none"):
            pass
    assert "hunter2" not in str(error.value)


async def test_several_processes_may_make_the_tables_at_once(postgres: Server) -> None:
    where = postgres.database()

    async def start(n: int) -> None:
        async with open_store(where) as store:
            await store.sessions.new(f"owner{n}")

    await asyncio.gather(*(start(n) for n in range(4)))
    async with open_store(where) as store:
        assert len(await store.admin.owners()) == 4
