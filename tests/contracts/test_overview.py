"""What a store holds, ids by their beginning, and templates kept together, over both stores."""

import pytest

from lamina.errors import MessageError, OwnerError
from lamina.records import NewMemory, Template
from lamina.store.store import Store


async def test_ids_are_found_by_their_beginning_within_one_owner(store: Store) -> None:
    for name in ("abcd1", "abcd", "ABCD2", "ab%d3", "ab_d4"):
        await store.sessions.new("ann", session_id=name)
    await store.sessions.new("bob", session_id="abcd9")
    assert await store.overview.ids("ann", "session", "abcd") == ["abcd", "abcd1"]
    assert await store.overview.ids("ann", "session", "ab%") == ["ab%d3"]
    assert await store.overview.ids("ann", "session", "ab_") == ["ab_d4"]
    assert await store.overview.ids("ann", "session", "ab", limit=1) == ["ab%d3"]
    assert await store.overview.ids("ann", "session", "abcd9") == []
    for kind in ("message", "memory", "job"):
        assert await store.overview.ids("ann", kind, "abcd") == []
    with pytest.raises(MessageError):
        await store.overview.ids("ann", "session", "\ud800")
    with pytest.raises(OwnerError):
        await store.overview.ids("", "session", "abcd")


async def test_counts_are_the_owners_own_and_of_memories_the_active_ones(store: Store) -> None:
    session = await store.sessions.new("ann")
    await store.history.append("ann", session.session_id, [{"role": "user", "content": "Hi"}])
    one, _ = await store.memories.add("ann", [NewMemory("one"), NewMemory("two")])
    await store.memories.forget("ann", [one.memory_id])
    assert await store.overview.counts("ann") == {
        "sessions": 1, "messages": 1, "memories": 1, "summaries": 0, "templates": 0,
    }  # fmt: skip
    assert set((await store.overview.counts("bob")).values()) == {0}
    assert await store.overview.version() >= 2
    assert all(size >= 0 for size in (await store.overview.sizes()).values())
    assert sum((await store.overview.sizes()).values()) > 0


async def test_templates_are_kept_together_or_not_at_all(store: Store) -> None:
    kept = await store.templates.put_all("ann", [Template("", "a", "x"), Template("t", "b", "y")])
    assert [template.name for template in await store.templates.list("ann")] == ["a", "b"]
    assert kept[1].template_id == "t"
    with pytest.raises(MessageError):
        await store.templates.put_all("ann", [Template("u", "c", "z"), Template("v", "d", "bad \0")])
    assert len(await store.templates.list("ann")) == 2


async def test_what_a_memory_replaced_is_known(store: Store) -> None:
    (old,) = await store.memories.add("ann", [NewMemory("I live in Lisbon.")])
    (new,) = await store.memories.add("ann", [NewMemory("I live in Porto.", supersedes=(old.memory_id,))])
    assert [memory.memory_id for memory in await store.memories.replaced("ann", new.memory_id)] == [old.memory_id]
    assert await store.memories.replaced("bob", new.memory_id) == []
