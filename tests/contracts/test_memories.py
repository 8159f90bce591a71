"""Memories, summaries, profile and templates, over both stores."""

import pytest

from lamina.errors import MessageError, NotFoundError
from lamina.records import IndexRow, NewMemory, Template
from lamina.store.store import Store
from lamina.types import AnyMessage

USER: AnyMessage = {"role": "user", "content": "hello"}


async def test_a_memory_comes_back_with_its_origin(store: Store) -> None:
    given = NewMemory("Ann likes 茶", "said at lunch", "preference", "user", 0.9, True, "s", "t", 3, 123.5)
    (made,) = await store.memories.add("ann", [given])
    assert await store.memories.get("ann", made.memory_id) == made
    for name in (
        "text",
        "context",
        "kind",
        "trust",
        "importance",
        "pinned",
        "session_id",
        "turn_id",
        "seq",
        "happened",
    ):
        assert getattr(made, name) == getattr(given, name)
    assert made.state == "active"


async def test_the_same_text_is_kept_once(store: Store) -> None:
    first = await store.memories.add("ann", [NewMemory("a"), NewMemory("a"), NewMemory("b")])
    again = await store.memories.add("ann", [NewMemory("a")])
    assert first[0] == first[1] == again[0]
    assert len(await store.memories.list("ann")) == 2


async def test_an_empty_memory_is_refused_and_nothing_of_the_lot_is_kept(store: Store) -> None:
    with pytest.raises(MessageError):
        await store.memories.add("ann", [NewMemory("a"), NewMemory("  ")])
    with pytest.raises(NotFoundError):
        await store.memories.add("ann", [NewMemory("a"), NewMemory("b", supersedes=("nobody",))])
    assert await store.memories.list("ann") == []


async def test_a_newer_fact_supersedes_the_older_which_stays_on_record(store: Store) -> None:
    (berlin,) = await store.memories.add("ann", [NewMemory("lives in Berlin")])
    (paris,) = await store.memories.add("ann", [NewMemory("lives in Paris", supersedes=(berlin.memory_id,))])
    (rome,) = await store.memories.add("ann", [NewMemory("lives in Rome", supersedes=(paris.memory_id,))])
    assert [m.text for m in await store.memories.list("ann")] == ["lives in Rome"]
    old = await store.memories.get("ann", berlin.memory_id)
    assert (old.state, old.superseded_by, old.text) == ("superseded", paris.memory_id, "lives in Berlin")
    assert [m.text for m in await store.memories.list("ann", state="superseded")] == [
        "lives in Paris",
        "lives in Berlin",
    ]
    assert (await store.memories.get("ann", paris.memory_id)).superseded_by == rome.memory_id


async def test_changes_tell_an_index_all_that_happened_after_a_number(store: Store) -> None:
    a, b, c = await store.memories.add("ann", [NewMemory("a"), NewMemory("b"), NewMemory("c")])
    seen = await store.memories.last_change("ann")
    assert seen == c.change
    await store.memories.pin("ann", b.memory_id)
    await store.memories.forget("ann", [a.memory_id])
    changed = await store.memories.changes("ann", after=seen)
    assert [(m.memory_id, m.state, m.text) for m in changed] == [
        (b.memory_id, "active", "b"),
        (a.memory_id, "forgotten", ""),
    ]
    assert [m.change for m in changed] == [seen + 1, seen + 2]
    assert await store.memories.changes("bob") == []
    assert [m.text for m in await store.memories.changes("ann", limit=1)] == ["c"]


async def test_memories_are_listed_filtered_and_paged(store: Store) -> None:
    await store.memories.add(
        "ann", [NewMemory(f"Fact {n}", kind="ab"[n % 2]) for n in range(6)] + [NewMemory("50%_off!")]
    )
    page = await store.memories.list("ann", limit=3)
    assert [m.text for m in page] == ["50%_off!", "Fact 5", "Fact 4"]
    assert [m.text for m in await store.memories.list("ann", limit=1, before=page[-1].change)] == ["Fact 3"]
    assert [m.text for m in await store.memories.list("ann", kind="a", query="FACT")] == ["Fact 4", "Fact 2", "Fact 0"]
    assert [m.text for m in await store.memories.list("ann", query="%_o")] == ["50%_off!"]
    assert await store.memories.list("ann", query="_act") == []
    assert [m.text for m in await store.memories.many("ann", [page[1].memory_id, "no", page[0].memory_id])] == [
        "Fact 5",
        "50%_off!",
    ]


async def test_editing_changes_the_text_and_drops_its_index_row(store: Store) -> None:
    (made,) = await store.memories.add("ann", [NewMemory("tea")])
    await store.memories.put_index("ann", [IndexRow(made.memory_id, made.change, "m", terms=b"t", vector=b"v")])
    edited = await store.memories.edit("ann", made.memory_id, text="green tea", importance=0.1)
    assert (edited.text, edited.importance, edited.change > made.change) == ("green tea", 0.1, True)
    changes = await store.memories.index_changes("ann", "m")
    assert (changes.rows, changes.bare) == ((), (made.memory_id,))
    assert (await store.memories.add("ann", [NewMemory("green tea")]))[0].memory_id == made.memory_id


async def test_an_index_row_is_kept_only_for_the_memory_as_it_is(store: Store) -> None:
    a, b = await store.memories.add("ann", [NewMemory("a"), NewMemory("b")])
    rows = [IndexRow(m.memory_id, m.change, "use", terms=b"\0\1", vector=bytes(range(256))) for m in (a, b)]
    moved = await store.memories.pin("ann", a.memory_id)
    assert await store.memories.put_index("ann", rows) == 1
    assert await store.memories.put_index("bob", rows) == 0
    changes = await store.memories.index_changes("ann", "use")
    assert [(row.memory_id, row.terms, row.vector) for row in changes.rows] == [(b.memory_id, b"\0\1", rows[1].vector)]
    assert (changes.bare, changes.gone, changes.last, changes.more) == ((a.memory_id,), (), moved.change, False)
    assert len((await store.memories.index_changes("ann", "other model")).bare) == 2
    assert await store.memories.put_index("ann", [IndexRow(a.memory_id, moved.change, "use", terms=b"x")]) == 1
    later = await store.memories.index_changes("ann", "use", after=b.change)
    assert [(row.memory_id, row.terms) for row in later.rows] == [(a.memory_id, b"x")]
    assert (await store.memories.index_changes("ann", "use", limit=1)).more
    await store.memories.clear_index("ann")
    assert (await store.memories.index_changes("ann", "use")).rows == ()


async def test_an_index_learns_numbers_and_days_from_the_memory_itself(store: Store) -> None:
    (made,) = await store.memories.add("ann", [NewMemory("tea", session_id="s", seq=7, happened=86_400.0)])
    await store.memories.put_index("ann", [IndexRow(made.memory_id, made.change, "m", terms=b"t", mentions=b"d")])
    (row,) = (await store.memories.index_changes("ann", "m")).rows
    assert (row.session, row.position, row.day, row.importance) == ("s", 7, 719_164, 0.5)
    (newer,) = await store.memories.add("ann", [NewMemory("coffee", supersedes=(made.memory_id,))])
    changes = await store.memories.index_changes("ann", "m")
    assert (changes.gone, changes.bare) == ((made.memory_id,), (newer.memory_id,))


async def test_forgetting_erases_text_index_and_the_summaries_made_of_it(store: Store) -> None:
    cites, source, other = [(await store.sessions.new("ann")).session_id for _ in range(3)]
    made, kept = await store.memories.add(
        "ann", [NewMemory("secret", "ctx", session_id=source, seq=2), NewMemory("kept")]
    )
    await store.memories.put_index("ann", [IndexRow(made.memory_id, made.change, "m", terms=b"secret")])
    await store.summaries.put("ann", cites, "cites", upto_seq=1, memory_ids=[kept.memory_id, made.memory_id])
    await store.summaries.put("ann", source, "its session", upto_seq=4)
    await store.summaries.put("ann", other, "other", upto_seq=4, memory_ids=[kept.memory_id])
    assert await store.memories.forget("ann", [made.memory_id]) == sorted([cites, source])
    gone = await store.memories.get("ann", made.memory_id)
    assert (gone.text, gone.context, gone.text_hash, gone.state) == ("", "", "", "forgotten")
    assert (await store.memories.index_changes("ann", "m")).rows == ()
    assert [s.text for s in await store.summaries.recent("ann")] == ["other"]
    assert await store.memories.forget("ann", [made.memory_id]) == []
    for ask in (store.memories.pin, store.memories.edit):
        with pytest.raises(NotFoundError):
            await ask("ann", made.memory_id)
    with pytest.raises(NotFoundError):
        await store.memories.forget("bob", [kept.memory_id])


async def test_recent_summaries_leave_out_the_current_session(store: Store) -> None:
    ids = [(await store.sessions.new("ann")).session_id for _ in range(4)]
    for name in ids:
        await store.summaries.put("ann", name, name, upto_seq=1, written_by="rules")
    again = await store.summaries.put("ann", ids[0], "newer", upto_seq=2, written_by="model", memory_ids=["m"])
    assert again
    assert (again.version, again.memory_ids) == (2, ("m",))
    found = await store.summaries.recent("ann", limit=2, without=ids[3])
    assert [s.session_id for s in found] == [ids[0], ids[2]]
    await store.summaries.delete("ann", ids[0])
    with pytest.raises(NotFoundError):
        await store.summaries.get("ann", ids[0])


async def test_the_profile_is_named_values_of_one_owner(store: Store) -> None:
    await store.profile.set("ann", {"name": "Ann", "tags": [1, {"x": None}]})
    await store.profile.set("ann", {"name": "Anna"})
    assert await store.profile.get("ann") == {"name": "Anna", "tags": [1, {"x": None}]}
    assert await store.profile.get("bob") == {}
    await store.profile.delete("ann", "tags")
    with pytest.raises(NotFoundError):
        await store.profile.delete("ann", "tags")


async def test_C5_templates_are_found_by_scenario_and_host_in_any_case(store: Store) -> None:
    for given in (
        Template("base", "Excel", "You know Excel", "excel"),
        Template("", "pivot", "…", "excel", is_skill=True, supported_apps=("Excel", "WPS"), priority=1),
        Template("", "all hosts", "…", "excel", is_skill=True),
        Template("", "word only", "…", "excel", is_skill=True, supported_apps=("Word",)),
        Template("", "off", "…", "excel", is_skill=True, enabled=False),
        Template("", "other", "…", "word", is_skill=True),
    ):
        await store.templates.put("ann", given)
    skills = await store.templates.list("ann", scenario="excel", app="EXCEL", is_skill=True, enabled=True)
    assert [t.name for t in skills] == ["pivot", "all hosts"]
    changed = await store.templates.put("ann", Template("base", "Excel", "new", "excel"))
    assert await store.templates.get("ann", "base") == changed
    assert len(await store.templates.list("ann")) == 6
    assert await store.templates.list("bob") == []
    await store.templates.delete("ann", "base")
    with pytest.raises(NotFoundError):
        await store.templates.get("ann", "base")
