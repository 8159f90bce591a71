"""What a second attack found in the store and in memory, so that it is not found again; over both stores."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from lamina.app.worker import Worker
from lamina.errors import MessageError
from lamina.memory.recall import Recall
from lamina.memory.service import MemoryService
from lamina.records import Job, Memory, NewJob, NewMemory
from lamina.store.database import Steps
from lamina.store.jobs import MAX_WAIT_S
from lamina.store.store import Store
from tests.spec.test_seed_004 import app_on, say


class Forgetful(Recall):
    """Somebody forgets a memory just before a fact that was to take its place is written."""

    def __init__(self, store: Store, old: str) -> None:
        super().__init__(store.memories)
        self._store, self._old = store, old

    async def add(
        self, owner: str, memories: Sequence[NewMemory], *, done: Job | None = None, jobs: Sequence[NewJob] = (),
        as_of: int | None = None,
    ) -> Sequence[Memory]:  # fmt: skip
        await self._store.memories.forget(owner, [self._old])
        return await super().add(owner, memories, done=done, jobs=jobs)  # without `as_of`: the race is the point


async def test_3_a_fact_is_learnt_though_what_it_replaces_was_forgotten_in_the_meantime(store: Store) -> None:
    app = app_on(store)
    old = await app.memory("ann").add("I live in Rome.")
    await say(app, "ann", await app.new_session("ann"), "I live in Paris.")
    finder = Forgetful(store, old.memory_id)
    worker = Worker(store, lambda owner: MemoryService(store, finder, owner, clock=time.time))
    assert await worker.run_until_empty() == 1
    assert [m.text for m in await app.memory("ann").list()] == ["I live in Paris."]
    assert (await store.jobs.counts("ann"))["done"] == 1


async def test_3_a_job_whose_turn_is_there_is_not_done_because_something_else_is_missing(store: Store) -> None:
    app = app_on(store)
    turn = await say(app, "ann", await app.new_session("ann"), "I live in Paris.")

    class Losing(MemoryService):
        async def save_atomic_memory(self, turn_id: str, *, done: Job | None = None) -> Sequence[Memory]:
            return [await self.get("no such memory")]

    worker = Worker(store, lambda owner: Losing(store, Recall(store.memories), owner, clock=time.time))
    await worker.run_once()
    assert (await store.jobs.counts("ann"))["waiting"] == 1
    assert (await store.turns.get("ann", turn.turn_id)).state == "complete"


async def test_M2_a_job_that_was_tried_very_often_fails_like_any_other(store: Store) -> None:
    app = app_on(store)
    await say(app, "ann", await app.new_session("ann"), "I live in Paris.")

    def often() -> Steps[None]:
        yield "UPDATE outbox SET attempts = 5000 WHERE owner = ?", ("ann",)

    class Failing(MemoryService):
        async def save_atomic_memory(self, turn_id: str, *, done: Job | None = None) -> Sequence[Memory]:
            raise ValueError("not today")

    await store.db.write("ann", often)
    ends: list[str] = []
    worker = Worker(
        store, lambda owner: Failing(store, Recall(store.memories), owner, clock=time.time), park_after=9_000,
        report=lambda job, how, error: ends.append(how),
    )  # fmt: skip
    began = time.time()
    await worker.run_once()
    assert ends == ["again"]
    assert (await store.jobs.counts("ann"))["waiting"] == 1
    assert await store.db.read("ann", lambda: _soonest("ann")) < began + 2 * MAX_WAIT_S


def _soonest(owner: str) -> Steps[float]:
    rows = yield "SELECT MIN(run_after) FROM outbox WHERE owner = ?", (owner,)
    return float(rows[0][0])


CAT = "My cat is called Quetzalcoatl."


@pytest.mark.parametrize("how", ["said twice", "added and said", "answered", "not yet summarised", "imported"])
async def test_5_what_is_forgotten_goes_from_the_summaries_of_all_sessions_that_told_it(store: Store, how: str) -> None:
    app = app_on(store)
    first, second = await app.new_session("ann"), await app.new_session("ann")
    if how == "added and said":
        await app.memory("ann").add(CAT)
    else:
        await say(app, "ann", first, CAT)
    if how == "answered":
        await say(app, "ann", second, "What is my cat called?", "I have noted that your cat is called Quetzalcoatl.")
    elif how == "imported":
        await store.messages.append("ann", second.session_id, [{"role": "user", "content": CAT}])
    else:
        await say(app, "ann", second, "Hello. By the way, my cat is called Quetzalcoatl. Please plan a trip to Rome.")
    await say(app, "ann", second, "Please write a poem about the sea.")
    if how != "not yet summarised":
        await app.end_session("ann", second.session_id)
    await app.worker.run_until_empty()
    memories = await app.memory("ann").list()
    assert [m.text for m in memories] == [CAT]
    await app.memory("ann").forget(*(m.memory_id for m in memories))
    await app.end_session("ann", first.session_id)
    await app.end_session("ann", second.session_id)
    await app.worker.run_until_empty()
    await app.memory("ann").write_summary(second.session_id)  # however often it is written
    texts = [summary.text for summary in await app.memory("ann").get_recent_session_summaries()]
    assert any("poem" in text for text in texts)
    assert "Quetzal" not in "".join(texts)
    third = await app.new_session("ann")
    assert "Quetzal" not in (await app.context("ann", third.session_id, "hello")).system


async def test_5_forgetting_leaves_the_summaries_that_tell_something_else(store: Store) -> None:
    app = app_on(store)
    first, second = await app.new_session("ann"), await app.new_session("ann")
    await say(app, "ann", first, CAT)
    await say(app, "ann", second, "Please write a poem about my cat Tom.")
    for session in (first, second):
        await app.end_session("ann", session.session_id)
    await app.worker.run_until_empty()
    (cat,) = [m for m in await app.memory("ann").list() if "Quetzal" in m.text]
    assert await app.memory("ann").forget(cat.memory_id) == [first.session_id]


async def test_14_of_facts_that_are_added_at_once_and_contradict_each_other_one_is_active(store: Store) -> None:
    app = app_on(store)
    cities = ("Rome", "Paris", "Oslo", "Lima", "Cairo")
    session = await app.new_session("ann")
    await say(app, "ann", session, "I live in Berlin.")
    await asyncio.gather(
        *(app.memory("ann").add(f"I live in {city}.") for city in cities), app.worker.run_until_empty()
    )
    assert len(await app.memory("ann").list()) == 1
    assert len(await app.memory("ann").list(everything=True)) == len(cities) + 1


async def test_14_facts_compared_before_others_came_are_not_kept(store: Store) -> None:
    as_of = await store.memories.last_change("ann")
    await store.memories.add("ann", [NewMemory("I live in Rome.")])
    assert await store.memories.add("ann", [NewMemory("I live in Paris.")], as_of=as_of) == []
    as_of = await store.memories.last_change("ann")
    assert len(await store.memories.add("ann", [NewMemory("I live in Paris.")], as_of=as_of)) == 1


async def test_14_no_memory_is_edited_into_the_text_of_another(store: Store) -> None:
    memory = app_on(store).memory("ann")
    tea, cat = await memory.add("I like tea."), await memory.add("My cat is Tom.")
    with pytest.raises(MessageError, match=f"memory '{tea.memory_id}' already says this"):
        await memory.edit(cat.memory_id, "I like tea.")
    assert sorted(m.text for m in await memory.list()) == ["I like tea.", "My cat is Tom."]
    assert (await memory.edit(cat.memory_id, "My cat is Tom.", importance=1.0)).importance == 1.0
    await memory.forget(tea.memory_id)
    assert (await memory.edit(cat.memory_id, "I like tea.")).text == "I like tea."


async def test_11_every_pinned_fact_and_every_standing_wish_is_there_up_to_the_limit(store: Store) -> None:
    app = app_on(store, budget=16_000, memories=25)  # 24 facts take about 1,200 tokens; memory may take 2,400
    memory = app.memory("ann")
    for n in range(12):
        await memory.add(f"I own the boat number{n}.", pinned=True)
        await memory.add(f"Always mention topic{n}.", kind="instruction")
    await memory.add("My sister plays chess.")
    found = [one.memory.text for one in await memory.get_relevant_memories("chess sister", top_n=25)]
    session = await app.new_session("ann")
    system = (await app.context("ann", session.session_id, "zzz")).system
    for n in range(12):
        assert any(f"number{n}." in text for text in found)
        assert f"number{n}." in system
        assert f"topic{n}." in system
    assert "My sister plays chess." in found
    found = [one.memory.text for one in await memory.get_relevant_memories("chess sister", top_n=13)]
    assert [("boat" in text, "topic" in text) for text in found] == [(True, False)] * 12 + [(False, True)]
    assert "topic11." in found[-1], "of those that do not fit, the ones that changed last"


async def test_11_what_does_not_fit_the_share_of_memory_is_named_in_the_receipt(store: Store) -> None:
    app = app_on(store, memories=40)
    for n in range(20):
        await app.memory("ann").add(f"I own the boat number{n}.", pinned=True)
        await app.memory("ann").add(f"Always mention topic{n}.", kind="instruction")
    session = await app.new_session("ann")
    receipt = (await app.context("ann", session.session_id, "zzz")).receipt
    memories = [segment for segment in receipt.segments if segment.layer == "memory"]
    assert len(memories) == 40, "none is missing without a word"
    gone = [segment for segment in memories if segment.decision != "kept"]
    assert gone
    assert all("memory may take 15% of the budget" in segment.reason.text() for segment in gone)
