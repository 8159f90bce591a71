"""What a second attack found in the store and in memory, so that it is not found again; over both stores."""

import time
from collections.abc import Sequence

from lamina.app.worker import Worker
from lamina.layers.memory import MemoryService
from lamina.layers.recall import Recall
from lamina.records import Job, Memory, NewJob, NewMemory
from lamina.store.store import Store
from tests.spec.test_seed_004 import app_on, say


class Forgetful(Recall):
    """Somebody forgets a memory just before a fact that was to take its place is written."""

    def __init__(self, store: Store, old: str) -> None:
        super().__init__(store.memories)
        self._store, self._old = store, old

    async def add(
        self, owner: str, memories: Sequence[NewMemory], *, done: Job | None = None, jobs: Sequence[NewJob] = ()
    ) -> Sequence[Memory]:
        await self._store.memories.forget(owner, [self._old])
        return await super().add(owner, memories, done=done, jobs=jobs)


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
