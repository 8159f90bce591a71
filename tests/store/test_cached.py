"""What changes rarely is cached, and read again as soon as it has changed, whoever changed it."""

import asyncio

from lamina.records import NewMemory, Template
from lamina.store.database import Make
from lamina.store.sqlite import SqliteDatabase
from lamina.store.store import Store


def counted(store: Store) -> list[str]:
    """The owners of all reads from here on."""
    seen: list[str] = []
    read = store.db.read

    async def watched(owner: str, make: Make[object]) -> object:
        seen.append(owner)
        return await read(owner, make)

    object.__setattr__(store.db, "read", watched)
    return seen


async def test_a_change_is_seen_by_the_next_read_of_its_owner_and_of_every_other(store: Store) -> None:
    for number in range(3):
        await store.templates.put("ann", Template("", f"t{number}", "x"))
        assert len(await store.templates.list("ann", enabled=True)) == number + 1
        assert await store.templates.list("bob", enabled=True) == []
        await store.profile.set("ann", {"city": f"c{number}"})
        assert await store.profile.get("ann") == {"city": f"c{number}"}
    await store.templates.delete("ann", (await store.templates.list("ann"))[0].template_id)
    assert len(await store.templates.list("ann", enabled=True)) == 2
    assert len(await store.templates.list("ann", enabled=False)) == 0, "each question has an answer of its own"


async def test_what_memory_asks_on_every_turn_follows_each_change_of_it(store: Store) -> None:
    assert await store.memories.list("ann", pinned=True) == []
    (made,) = await store.memories.add("ann", [NewMemory("tea", pinned=True)])
    assert [m.text for m in await store.memories.list("ann", pinned=True)] == ["tea"]
    await store.memories.edit("ann", made.memory_id, text="green tea")
    assert [m.text for m in await store.memories.list("ann", pinned=True)] == ["green tea"]
    await store.memories.pin("ann", made.memory_id, False)
    assert await store.memories.list("ann", pinned=True) == []
    await store.memories.pin("ann", made.memory_id)
    assert len(await store.memories.list("ann", pinned=True)) == 1
    await store.memories.forget("ann", [made.memory_id])
    assert await store.memories.list("ann", pinned=True) == []
    session = await store.sessions.new("ann")
    assert await store.summaries.recent("ann") == []
    await store.summaries.put("ann", session.session_id, "about tea", upto_seq=0, written_by="test")
    assert [s.text for s in await store.summaries.recent("ann")] == ["about tea"]
    await store.sessions.delete("ann", session.session_id)
    assert await store.summaries.recent("ann") == []


async def test_an_unchanged_table_is_not_read_again_and_turns_do_not_count_as_a_change(store: Store) -> None:
    await store.profile.set("ann", {"city": "x"})
    session = await store.sessions.new("ann")
    await store.profile.get("ann")
    seen = counted(store)
    turn = await store.turns.begin("ann", session.session_id, {"role": "user", "content": "user_profile"})
    await store.turns.finish("ann", turn.turn_id)
    for _ in range(5):
        await store.profile.get("ann")
    alone = isinstance(store.db, SqliteDatabase)
    assert seen == ([] if alone else ["ann"] * 5), "where other processes write too, it is always read"


async def test_a_read_that_met_a_change_is_not_kept_for_longer_than_it_is_true(store: Store) -> None:
    async def changes() -> None:
        for number in range(60):
            await store.profile.set("ann", {"n": number})
            assert await store.profile.get("ann") == {"n": number}, "whoever wrote it reads it"

    async def reads() -> None:
        for _ in range(200):
            await store.profile.get("ann")

    await asyncio.gather(changes(), reads(), reads())
    assert await store.profile.get("ann") == {"n": 59}
