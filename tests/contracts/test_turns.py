"""Turns and the outbox, over both stores."""

import asyncio

import pytest

from lamina.errors import LeaseError, MessageError
from lamina.records import NewJob, NewMemory
from lamina.store.database import Steps
from lamina.store.store import Store, open_store
from lamina.text.messages import Phrase
from lamina.types import AnyMessage, text_hash

USER: AnyMessage = {"role": "user", "content": "what is 1+1?"}


async def begun(store: Store, owner: str = "ann") -> tuple[str, str]:
    session = await store.sessions.new(owner)
    turn = await store.turns.begin(owner, session.session_id, USER)
    return session.session_id, turn.turn_id


async def test_C7_the_question_is_stored_first_and_the_answer_has_its_place(store: Store) -> None:
    session_id, turn_id = await begun(store)
    question, answer = await store.messages.list("ann", session_id)
    turn = await store.turns.get("ann", turn_id)
    assert (question.content, question.state, question.message_id) == (
        USER["content"],
        "complete",
        turn.user_message_id,
    )
    assert (answer.role, answer.state, answer.message_id, answer.seq) == (
        "assistant",
        "streaming",
        turn.answer_message_id,
        2,
    )


async def test_a_key_belongs_to_one_session(store: Store) -> None:
    one, two = await store.sessions.new("ann"), await store.sessions.new("ann")
    await store.turns.begin("ann", one.session_id, {"role": "user", "content": "hi"}, key="k")
    with pytest.raises(MessageError, match="was used for a turn of another session"):
        await store.turns.begin("ann", two.session_id, {"role": "user", "content": "hi"}, key="k")


async def test_R14_the_same_key_gives_the_same_turn_even_all_at_once(store: Store) -> None:
    session = await store.sessions.new("ann")
    turns = await asyncio.gather(
        *(store.turns.begin("ann", session.session_id, USER, key="update-7") for _ in range(10))
    )
    assert len({t.turn_id for t in turns}) == 1
    assert sorted(t.repeated for t in turns) == [False] + [True] * 9
    assert len(await store.messages.list("ann", session.session_id)) == 2
    other = await store.sessions.new("bob")
    assert not (await store.turns.begin("bob", other.session_id, USER, key="update-7")).repeated
    assert await store.admin.verify() == []


async def test_chunks_are_kept_once_and_folded_into_the_answer(store: Store) -> None:
    session_id, turn_id = await begun(store)
    for n, text in ((0, "It "), (1, "is "), (1, "IS"), (2, "2\0\ud83d")):
        await store.turns.chunk("ann", turn_id, n, text)
    assert await store.turns.chunks("ann", turn_id, after=0) == [(1, "is "), (2, "2\0\ud83d")]
    await store.turns.finish("ann", turn_id, state="interrupted")
    answer = (await store.messages.list("ann", session_id))[-1]
    assert (answer.content, answer.state) == ("It is 2\0\ud83d", "interrupted")
    assert await store.turns.chunks("ann", turn_id) == []


async def test_tool_rows_stand_before_the_answer_without_gaps(store: Store) -> None:
    session_id, turn_id = await begun(store)
    await store.turns.chunk("ann", turn_id, 0, "let me see")
    await store.turns.add("ann", turn_id, [{"role": "assistant", "content": "let me see", "tool_calls": []}])
    await store.turns.add("ann", turn_id, [{"role": "tool", "content": c, "tool_call_id": c} for c in "ab"])
    await store.turns.chunk("ann", turn_id, 1, "two")
    await store.turns.finish("ann", turn_id)
    rows = await store.messages.list("ann", session_id)
    assert [(m.seq, m.role, m.content) for m in rows] == [
        (1, "user", "what is 1+1?"), (2, "assistant", "let me see"), (3, "tool", "a"), (4, "tool", "b"),
        (5, "assistant", "two"),
    ]  # fmt: skip
    turn = await store.turns.get("ann", turn_id)
    assert (turn.answer_seq, turn.answer_message_id) == (5, rows[-1].message_id)
    assert {m.turn_id for m in rows} == {turn_id}


async def test_finish_stores_all_at_once_and_only_once(store: Store) -> None:
    session_id, turn_id = await begun(store)
    text = "You are \0 helpful"
    how = {
        "answer": {"role": "assistant", "content": "2"}, "usage": {"in": 3}, "receipt": {"hash": "x"},
        "texts": {text_hash(text): text}, "injection": {"turn": 1},
        "jobs": [NewJob("memory", {"t": turn_id}, key=turn_id)],
    }  # fmt: skip
    first = await store.turns.finish("ann", turn_id, **how)  # pyright: ignore[reportArgumentType]
    again = await store.turns.finish("ann", turn_id, **how)  # pyright: ignore[reportArgumentType]
    assert (first.repeated, again.repeated, again.usage, again.receipt) == (False, True, {"in": 3}, {"hash": "x"})
    name = text_hash(text)
    assert await store.messages.texts("ann", [name]) == {name: text}
    assert (await store.sessions.get("ann", session_id)).injection == {"turn": 1}
    assert await store.jobs.counts("ann") == {"waiting": 1, "leased": 0, "done": 0, "parked": 0}
    assert await store.messages.texts("bob", [name]) == {}
    with pytest.raises(MessageError):
        await store.turns.finish("ann", turn_id, texts={"wrong": text})


async def test_a_turn_that_ended_takes_nothing_more(store: Store) -> None:
    _, turn_id = await begun(store)
    await store.turns.finish("ann", turn_id, answer={"role": "assistant", "content": "2"})
    for ask in (
        lambda: store.turns.chunk("ann", turn_id, 9, "x"), lambda: store.turns.add("ann", turn_id, [USER]),
        lambda: store.turns.renew("ann", turn_id), lambda: store.turns.finish("ann", turn_id, state="failed"),
    ):  # fmt: skip
        with pytest.raises(LeaseError):
            await ask()


async def test_recover_ends_turns_whose_lease_ran_out_with_what_they_had(where: str) -> None:
    now = [1000.0]
    async with open_store(where, clock=lambda: now[0]) as store:
        lost_session, lost = await begun(store)
        await store.turns.chunk("ann", lost, 0, "half an ans")
        now[0] += 50
        _, held = await begun(store, "bob")
        now[0] += 15
        assert [t.turn_id for t in await store.turns.recover()] == [lost]
        answer = (await store.messages.list("ann", lost_session))[-1]
        assert (answer.content, answer.state) == ("half an ans", "interrupted")
        assert (await store.turns.get("bob", held)).state == "streaming"
        with pytest.raises(LeaseError):
            await store.turns.finish("ann", lost, state="interrupted")
        assert [t.turn_id for t in await store.turns.recover(everything=True)] == [held]
        assert await store.turns.recover(everything=True) == []


async def test_deleting_a_session_takes_the_layer_texts_that_no_other_turn_needs(store: Store) -> None:
    sessions: list[str] = []
    for own in ("only here", "only there"):
        session_id, turn_id = await begun(store)
        sessions.append(session_id)
        await store.turns.finish("ann", turn_id, texts={text_hash(t): t for t in ("shared", own)})
    await store.sessions.delete("ann", sessions[0])
    names = [text_hash(text) for text in ("shared", "only there", "only here")]
    assert set((await store.messages.texts("ann", names)).values()) == {"shared", "only there"}


async def test_jobs_are_taken_by_one_worker_each_and_done_once(store: Store) -> None:
    for owner in ("ann", "bob"):
        for n in range(5):
            await store.jobs.add(owner, "memory", {"n": n}, key=f"k{n}")
    assert (await store.jobs.add("ann", "memory", {"n": 99}, key="k0")).payload == {"n": 0}
    taken = await asyncio.gather(*(store.jobs.claim(f"w{w}", n=3) for w in range(5)))
    jobs = [job for each in taken for job in each]
    assert len(jobs) == len({(j.owner, j.job_id) for j in jobs}) == 10
    for job in jobs:
        await store.jobs.done(job)
        with pytest.raises(LeaseError):
            await store.jobs.done(job)
    assert (await store.jobs.counts("ann"))["done"] == 5
    assert await store.jobs.claim("w") == []


async def test_only_jobs_of_the_wanted_kind_that_are_due_are_taken(where: str) -> None:
    now = [1000.0]
    async with open_store(where, clock=lambda: now[0]) as store:
        await store.jobs.add("ann", "summary", key="a")
        await store.jobs.add("ann", "memory", key="b", run_after=1010.0)
        assert await store.jobs.claim("w", kinds=["memory"]) == []
        now[0] = 1011.0
        assert [j.key for j in await store.jobs.claim("w", kinds=["memory", "x"], n=5)] == ["b"]


async def test_behind_a_job_that_ended_comes_the_next_of_its_owner_and_kind_alone(where: str) -> None:
    now = [1000.0]
    async with open_store(where, clock=lambda: now[0]) as store:
        for owner, kind, key in (("ann", "memory", "a"), ("ann", "summary", "s"), ("bob", "memory", "x"),
                                 ("ann", "memory", "b"), ("ann", "memory", "c")):  # fmt: skip
            await store.jobs.add(owner, kind, key=key)
        first = next(job for job in await store.jobs.claim("w", n=9, in_order=True) if job.key == "a")
        assert await store.jobs.follow(first, "w") is None, "it has not ended"
        await store.jobs.done(first)
        both = await asyncio.gather(store.jobs.follow(first, "w"), store.jobs.follow(first, "other"))
        (second,) = [job for job in both if job]
        assert (second.owner, second.kind, second.key, second.attempts) == ("ann", "memory", "b", 1)
        await store.jobs.fail(second, "later", retry_after=5.0, park_after=9)
        assert await store.jobs.follow(second, "w") is None, "what comes later waits for it"
        now[0] += 6
        again = await store.jobs.follow(second, "w")
        assert again
        assert (again.key, again.attempts) == ("b", 2)
        await store.jobs.done(again)
        last = await store.jobs.follow(again, "w")
        assert last
        assert last.key == "c"
        await store.jobs.done(last)
        assert await store.jobs.follow(last, "w") is None


async def test_what_follows_is_one_job_even_where_an_import_gave_two_the_same_number(where: str) -> None:
    async with open_store(where) as store:
        for kind, key in (("memory", "a"), ("memory", "b"), ("summary", "c")):
            await store.jobs.add("ann", kind, key=key)
        same = "UPDATE outbox SET number = 2 WHERE owner = ? AND key = ?"

        def renumber() -> Steps[None]:
            yield same, ("ann", "c")

        await store.db.write("ann", renumber)
        (first,) = await store.jobs.claim("w", kinds=["memory"], n=1, in_order=True)
        await store.jobs.done(first)
        following = await store.jobs.follow(first, "w")
        assert following
        assert following.key == "b"
        assert [job.key for job in await store.jobs.claim("other", kinds=["summary"], n=1)] == ["c"]


async def test_a_job_whose_worker_is_gone_goes_to_the_next_and_the_first_cannot_end_it(where: str) -> None:
    now = [1000.0]
    async with open_store(where, clock=lambda: now[0]) as store:
        await store.jobs.add("ann", "memory", key="a")
        (first,) = await store.jobs.claim("same name", lease=10)
        now[0] += 5
        await store.jobs.heartbeat(first, lease=10)
        now[0] += 6
        assert await store.jobs.claim("other") == []
        now[0] += 5
        (second,) = await store.jobs.claim("same name", lease=10)
        for late in (store.jobs.done, store.jobs.heartbeat):
            with pytest.raises(LeaseError):
                await late(first)
        with pytest.raises(LeaseError):
            await store.memories.add("ann", [NewMemory("twice")], done=first)
        await store.memories.add("ann", [NewMemory("once")], done=second)
        assert [m.text for m in await store.memories.list("ann")] == ["once"]


async def test_a_job_that_fails_again_and_again_is_parked_and_can_be_tried_anew(where: str) -> None:
    now = [1000.0]
    async with open_store(where, clock=lambda: now[0]) as store:
        await store.jobs.add("ann", "memory", key="a")
        job = failed = await store.jobs.add("ann", "memory", key="a")
        for n in range(3):
            (job,) = await store.jobs.claim("w")
            failed = await store.jobs.fail(job, f"no {n} \0", retry_after=60, park_after=3)
            assert await store.jobs.claim("w") == []
            now[0] += 61
        assert (failed.state, failed.error) == ("parked", "no 2 ␀")
        assert await store.jobs.claim("w") == []
        assert [j.job_id for j in await store.jobs.parked("ann")] == [job.job_id]
        assert await store.jobs.parked("bob") == []
        await store.jobs.unpark("ann", job.job_id)
        assert len(await store.jobs.claim("w")) == 1


async def test_a_job_that_ends_its_workers_is_parked_too(where: str) -> None:
    now = [1000.0]
    async with open_store(where, clock=lambda: now[0]) as store:
        await store.jobs.add("ann", "memory", key="a")
        taken = 0
        for _ in range(20):
            taken += len(await store.jobs.claim("w", lease=1))
            now[0] += 2
        assert taken == 5
        (parked,) = await store.jobs.parked("ann")
        assert (parked.error, parked.attempts) == ("job.abandoned", 5)


async def test_a_job_that_failed_and_then_ended_its_worker_says_no_more_than_that(where: str) -> None:
    now = [1000.0]
    async with open_store(where, clock=lambda: now[0]) as store:
        await store.jobs.add("ann", "memory", key="a")
        for _ in range(6):
            (job,) = await store.jobs.claim("w", lease=1)
            await store.jobs.fail(job, "no model", retry_after=1, park_after=99)
            now[0] += 2
        assert len(await store.jobs.claim("w", lease=1)) == 1
        now[0] += 2
        assert await store.jobs.claim("w") == []
        (parked,) = await store.jobs.parked("ann")
        assert (parked.error, parked.attempts) == ("job.abandoned", 7)
        assert "earlier attempts failed or ended the same way" in Phrase.load(parked.error).text()
