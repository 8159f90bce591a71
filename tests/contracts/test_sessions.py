"""Sessions and history, over both stores."""

import pytest

from lamina.assembly.history import group_turns
from lamina.errors import MessageError, NotFoundError, OwnerError
from lamina.records import NewMemory, Template
from lamina.store.store import Store
from lamina.types import AnyMessage

USER: AnyMessage = {"role": "user", "content": "hello"}


async def test_a_new_session_is_empty_and_keeps_what_it_was_given(store: Store) -> None:
    made = await store.sessions.new("ann", title="周报", scenario="excel", app="Excel", meta={"a": [1, None]})
    assert await store.sessions.get("ann", made.session_id) == made
    assert (made.title, made.scenario, made.meta, made.last_seq, made.ended) == (
        "周报",
        "excel",
        {"a": [1, None]},
        0,
        None,
    )
    assert await store.messages.list("ann", made.session_id) == []


async def test_a_session_with_an_id_that_is_there_is_the_one_that_is_there(store: Store) -> None:
    made = await store.sessions.new("ann", session_id="telegram:7", title="first")
    again = await store.sessions.new("ann", session_id="telegram:7", title="second")
    assert (again.session_id, again.title) == (made.session_id, "first")
    assert (await store.sessions.new("bob", session_id="telegram:7", title="his")).title == "his"


async def test_C6_the_messages_of_one_session_never_reach_another(store: Store) -> None:
    old, new = await store.sessions.new("ann"), await store.sessions.new("ann")
    await store.messages.append("ann", old.session_id, [USER])
    assert await store.messages.list("ann", new.session_id) == []
    assert (await store.sessions.get("ann", new.session_id)).last_seq == 0


async def test_sessions_are_listed_by_what_happened_last_page_by_page(store: Store) -> None:
    ids = [(await store.sessions.new("ann", title=str(n))).session_id for n in range(5)]
    await store.turns.begin("ann", ids[1], USER)
    await store.sessions.update("ann", ids[3], title="x")
    first = await store.sessions.list("ann", limit=3)
    rest = await store.sessions.list("ann", limit=3, before=first[-1].activity)
    assert [s.session_id for s in (*first, *rest)] == [ids[3], ids[1], ids[4], ids[2], ids[0]]


async def test_update_changes_what_is_given_and_nothing_else(store: Store) -> None:
    made = await store.sessions.new("ann", title="a", mode="agent", meta={"x": 1})
    changed = await store.sessions.update("ann", made.session_id, title="b", injection={"turns": 3}, ended=True)
    assert (changed.title, changed.mode, changed.meta, changed.injection) == ("b", "agent", {"x": 1}, {"turns": 3})
    assert changed.ended is not None
    assert (await store.sessions.update("ann", made.session_id, ended=False)).ended is None


async def test_messages_come_back_exactly_as_they_went_in(store: Store) -> None:
    call: AnyMessage = {
        "role": "assistant", "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }  # fmt: skip
    given: list[AnyMessage] = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "看 this"}, {"type": "image_url", "image_url": {"url": "x"}}],
        },
        call,
        {"role": "tool", "content": "nul \0, half \ud83d, \u2028 and 'quotes'", "tool_call_id": "1"},
        {"role": "assistant", "content": "", "name": "bot"},
    ]
    made = await store.sessions.new("ann")
    ids = await store.messages.append("ann", made.session_id, given)
    stored = await store.messages.list("ann", made.session_id)
    assert [m.message for m in stored] == given
    assert [m.message_id for m in stored] == list(ids)
    assert [m.seq for m in stored] == [1, 2, 3, 4]
    assert stored[0].text == "看 this"


async def test_a_window_takes_the_oldest_or_the_newest(store: Store) -> None:
    made = await store.sessions.new("ann")
    await store.messages.append("ann", made.session_id, [{"role": "user", "content": str(n)} for n in range(1, 11)])

    async def seqs(**how: int | bool) -> list[int]:
        return [m.seq for m in await store.messages.list("ann", made.session_id, **how)]  # pyright: ignore[reportArgumentType]

    assert await seqs(limit=3) == [1, 2, 3]
    assert await seqs(limit=3, newest=True) == [8, 9, 10]
    assert await seqs(after=4, before=8) == [5, 6, 7]
    assert await seqs(before=8, limit=2, newest=True) == [6, 7]


async def test_a_role_or_content_that_no_provider_knows_is_refused(store: Store) -> None:
    made = await store.sessions.new("ann")
    bad_messages: list[AnyMessage] = [{"role": "boss", "content": ""}, {"content": "x"}, {"role": "user", "content": 3}]
    for bad in bad_messages:
        with pytest.raises(MessageError):
            await store.messages.append("ann", made.session_id, [USER, bad])
        with pytest.raises(MessageError):
            await store.turns.begin("ann", made.session_id, bad)
    assert await store.messages.list("ann", made.session_id) == []


async def test_C9_collecting_marks_exactly_that_row_and_can_be_undone(store: Store) -> None:
    made = await store.sessions.new("ann")
    ids = await store.messages.append(
        "ann", made.session_id, [{"role": "assistant", "content": f"Answer {n}"} for n in range(4)]
    )
    await store.messages.collect("ann", ids[2])
    await store.messages.collect("ann", ids[1])
    await store.messages.collect("ann", ids[1])
    assert [m.is_collected for m in await store.messages.list("ann", made.session_id)] == [False, True, True, False]
    assert [m.message_id for m in await store.messages.collected("ann")] == [ids[1], ids[2]]
    assert [m.message_id for m in await store.messages.collected("ann", query="answer 2")] == [ids[2]]
    await store.messages.collect("ann", ids[2], on=False)
    assert [m.message_id for m in await store.messages.collected("ann")] == [ids[1]]


async def test_search_finds_words_in_any_script_within_the_owner(store: Store) -> None:
    made = await store.sessions.new("ann", title="talk")
    await store.messages.append(
        "ann", made.session_id,
        [{"role": "user", "content": text} for text in
         ("The Quick brown fox", "我们讨论了项目预算", "東京の天気", "서울 날씨", "snake_case_name ｆｕｌｌ width")],
    )  # fmt: skip
    other = await store.sessions.new("bob")
    await store.messages.append("bob", other.session_id, [{"role": "user", "content": "quick fox of bob 预算"}])

    async def seqs(query: str) -> list[int]:
        found = await store.sessions.search("ann", query)
        assert all(f.session.session_id == made.session_id for f in found)
        return [f.message.seq for f in found]

    assert await seqs("quick FOX") == [1]
    assert await seqs("预算") == [2]
    assert await seqs("算") == [2]
    assert await seqs("天気") == [3]
    assert await seqs("날씨") == [4]
    assert await seqs("bro") == [1]
    assert await seqs("snake_case_name full") == [5]
    assert await seqs("bob") == []
    assert await seqs("fox 预算") == []
    assert await seqs("?!") == []
    assert await seqs("' OR \" * ) :") == []
    assert "项目预算" in (await store.sessions.search("ann", "预算"))[0].snippet


async def test_a_branch_copies_up_to_a_message_and_leaves_the_old_session_alone(store: Store) -> None:
    made = await store.sessions.new("ann", title="t", meta={"m": 1})
    ids = await store.messages.append(
        "ann", made.session_id, [{"role": "assistant", "content": f"unique{n}"} for n in range(5)]
    )
    await store.messages.collect("ann", ids[0])
    branch = await store.sessions.branch("ann", made.session_id, 3)
    assert (branch.parent_id, branch.parent_seq, branch.last_seq, branch.meta) == (made.session_id, 3, 3, {"m": 1})
    copied = await store.messages.list("ann", branch.session_id)
    assert [m.content for m in copied] == ["unique0", "unique1", "unique2"]
    assert not {m.message_id for m in copied} & set(ids)
    assert not any(m.is_collected for m in copied)
    await store.messages.append("ann", branch.session_id, [USER])
    assert len(await store.messages.list("ann", made.session_id)) == 5
    found = await store.sessions.search("ann", "unique1")
    assert {f.session.session_id for f in found} == {made.session_id, branch.session_id}
    with pytest.raises(NotFoundError):
        await store.sessions.branch("ann", made.session_id, 6)
    assert await store.admin.verify() == []


async def test_deleting_a_session_takes_everything_of_it_and_nothing_else(store: Store) -> None:
    kept, gone = await store.sessions.new("ann"), await store.sessions.new("ann")
    for session in (kept, gone):
        turn = await store.turns.begin("ann", session.session_id, USER)
        await store.turns.chunk("ann", turn.turn_id, 0, "x")
        await store.summaries.put("ann", session.session_id, "about", upto_seq=1)
    await store.sessions.delete("ann", gone.session_id)
    for ask in (store.sessions.get, store.messages.list, store.summaries.get, store.sessions.delete):
        with pytest.raises(NotFoundError):
            await ask("ann", gone.session_id)
    assert len(await store.messages.list("ann", kept.session_id)) == 2
    assert len(await store.sessions.search("ann", "hello")) == 1
    assert await store.admin.verify() == []


async def test_C10_what_is_somebody_elses_is_not_there_in_the_same_words(store: Store) -> None:
    made = await store.sessions.new("ann")
    (message,) = await store.messages.append("ann", made.session_id, [USER])
    turn = await store.turns.begin("ann", made.session_id, USER)
    await store.templates.put("ann", Template("template-of-ann", "n", "c"))
    job = await store.jobs.add("ann", "memory")
    (memory,) = await store.memories.add("ann", [NewMemory("m")])
    for ask, name in (
        (store.sessions.get, made.session_id), (store.messages.list, made.session_id),
        (store.sessions.delete, made.session_id), (store.sessions.update, made.session_id),
        (store.messages.collect, message), (store.messages.get, message), (store.turns.get, turn.turn_id),
        (store.turns.renew, turn.turn_id), (store.turns.finish, turn.turn_id), (store.summaries.get, made.session_id),
        (store.memories.get, memory.memory_id), (store.memories.pin, memory.memory_id), (store.jobs.get, job.job_id),
        (store.templates.get, "template-of-ann"), (store.templates.delete, "template-of-ann"),
    ):  # fmt: skip
        with pytest.raises(NotFoundError) as foreign:
            await ask("bob", name)
        with pytest.raises(NotFoundError) as absent:
            await ask("bob", "f" * 32)
        assert str(foreign.value).replace(name, "") == str(absent.value).replace("f" * 32, "")
    assert (await store.turns.get("ann", turn.turn_id)).state == "streaming"


@pytest.mark.parametrize("owner", ["", None, "nul\0", "half\ud800"])
async def test_nothing_is_stored_without_an_owner(store: Store, owner: str) -> None:
    with pytest.raises((OwnerError, MessageError)):
        await store.sessions.new(owner)
    with pytest.raises((OwnerError, MessageError)):
        await store.sessions.list(owner)


async def test_rows_of_turns_that_ran_at_once_can_be_put_together(store: Store) -> None:
    made = await store.sessions.new("ann")
    one = await store.turns.begin("ann", made.session_id, {"role": "user", "content": "1"})
    two = await store.turns.begin("ann", made.session_id, {"role": "user", "content": "2"})
    await store.turns.add(
        "ann",
        one.turn_id,
        [{"role": "assistant", "content": "call"}, {"role": "tool", "content": "r", "tool_call_id": "1"}],
    )
    await store.turns.finish("ann", two.turn_id, answer={"role": "assistant", "content": "to 2"})
    await store.turns.finish("ann", one.turn_id, answer={"role": "assistant", "content": "to 1"})
    rows = await store.messages.list("ann", made.session_id)
    assert [m.seq for m in rows] == [1, 2, 3, 4, 5, 6]
    assert [m["content"] for m in group_turns(rows)] == ["1", "call", "r", "to 1", "2", "to 2"]
