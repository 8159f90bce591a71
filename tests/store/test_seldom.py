"""What changes seldom is remembered, and read anew as soon as it changed, whoever changed it."""

import asyncio

from lamina.records import Template
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
