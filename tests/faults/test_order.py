"""R13 failing workers, R15 two writers on one session, R16 a clock that jumps; over both stores."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

from lamina.errors import LeaseError
from lamina.records import NewMemory, StoredMessage
from lamina.store.database import Steps
from lamina.store.store import Store, open_store
from tests.faults.load import Load
from tests.postgres import Server

# R13


async def work_off(store: Store, now: list[float], rng: random.Random, split: bool) -> None:
    """Four workers until nothing is left: 30 % of the tries fail, 10 % of the workers die, one job is poison.

    `split` is the planted bug: effect and completion in two transactions. The first worker that comes so far dies
    between the two, so that no run goes without such a death.
    """
    deaths = 0

    async def worker(name: str) -> None:
        nonlocal deaths
        taken = await store.jobs.claim(name, n=3, lease=10)
        for job in sorted(taken, key=lambda job: job.key != "poison"):  # it fails before its worker can die with it
            fact = NewMemory(f"{job.key} by {name} in attempt {job.attempts}", turn_id=job.key)
            await asyncio.sleep(0)
            if job.key == "poison" or rng.random() < 0.3:
                await store.jobs.fail(
                    job, "the extractor failed", retry_after=1, park_after=5 if job.key == "poison" else 99
                )
                continue
            if split:
                await store.memories.add(job.owner, [fact])
            if rng.random() < 0.1 or (split and not deaths):
                deaths += 1
                return
            try:
                await (store.jobs.done(job) if split else store.memories.add(job.owner, [fact], done=job))
            except LeaseError:
                continue

    for step in range(10_000):
        await asyncio.gather(*(worker(f"w{step}.{n}") for n in range(4)))
        now[0] += rng.uniform(0, 12)
        counts = [await store.jobs.counts(owner) for owner in ("ann", "bob")]
        if all(not each["waiting"] and not each["leased"] for each in counts):
            return
    raise AssertionError("the outbox never became empty")


@pytest.mark.parametrize(
    "split", [False, pytest.param(True, marks=pytest.mark.planted("a job that is done apart from its effect"))]
)
async def test_R13_every_job_has_its_effect_once_and_poison_is_parked(where: str, split: bool, load: Load) -> None:
    now, rng = [1000.0], random.Random(load.seed())
    async with open_store(where, clock=lambda: now[0]) as store:
        keys = [f"turn{n}" for n in (range(60) if split else load.rounds(60, "jobs"))]
        for n, key in enumerate(keys):
            await store.jobs.add(("ann", "bob")[n % 2], "memory", key=key)
        await store.jobs.add("ann", "memory", key="poison")
        await work_off(store, now, rng, split)
        parked = {job.key: job.error for owner in ("ann", "bob") for job in await store.jobs.parked(owner)}
        effects: Counter[str] = Counter()
        for owner in ("ann", "bob"):
            effects.update(m.turn_id for m in await store.memories.list(owner, limit=9_999))
        if split:
            assert max(effects.values()) > 1
            return
        died = {key for key, error in parked.items() if error == "job.abandoned"}  # a death at attempt five or later
        assert parked["poison"] == "the extractor failed"
        assert set(parked) == {"poison"} | died
        assert effects == Counter(set(keys) - died)


# R15


def only_added(before: list[StoredMessage], after: list[StoredMessage]) -> list[str]:
    """Rows that were final and are now gone, moved or changed; and numbers that are missing."""
    there = {m.message_id: m for m in after}
    found = [
        f"message {m.seq} was {m.content!r} and is {there.get(m.message_id)}"
        for m in before
        if m.state != "streaming" and there.get(m.message_id) != m
    ]
    found += [f"message {m.seq} began and is gone" for m in before if m.message_id not in there]
    numbers = [m.seq for m in after]
    return found + ([] if numbers == list(range(1, len(numbers) + 1)) else [f"numbers {numbers}"])


async def tab(store: Store, session: str, rng: random.Random, load: Load) -> None:
    """A tab, or a bot: turns with tools, imports, branches, one step at a time."""
    open_turns: list[str] = []
    for n in load.rounds(100, "steps"):
        what = rng.random()
        if what < 0.3 or not open_turns:
            turn = await store.turns.begin("ann", session, {"role": "user", "content": f"{rng.random()}"})
            open_turns.append(turn.turn_id)
        elif what < 0.5:
            await store.turns.chunk("ann", rng.choice(open_turns), n, f"{n}")
        elif what < 0.7:
            await store.turns.add(
                "ann",
                rng.choice(open_turns),
                [{"role": "tool", "content": f"{n}", "tool_call_id": "1"}] * rng.randint(1, 3),
            )
        elif what < 0.75:
            await store.messages.append("ann", session, [{"role": "user", "content": "import"}])
        elif what < 0.8:
            await store.sessions.branch("ann", session, 1)
        else:
            await store.turns.finish("ann", open_turns.pop(rng.randrange(len(open_turns))))


async def cut_off(server: Server, where: str, stores: Sequence[Store]) -> None:
    """R20: the server ends the connections of its clients, again and again, as fast as they get on: on a slow machine
    nobody would come through otherwise."""
    database = where.partition("@/")[2].partition("?")[0]
    ending = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'"
    while True:
        done = [store.db.commits for store in stores]
        while any(store.db.commits == before for store, before in zip(stores, done, strict=True)):
            await asyncio.sleep(0.1)
        await asyncio.to_thread(server.sql, f"{ending} AND usename = 'lamina'")


async def test_R15_R20_two_writers_only_ever_add_even_when_they_are_cut_off(
    where: str, postgres: Server, load: Load
) -> None:
    rng = random.Random(load.seed())
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(open_store(where))
        second = first if first.alone else await stack.enter_async_context(open_store(where))
        session = (await first.sessions.new("ann")).session_id
        tabs = [
            asyncio.create_task(tab(each, session, random.Random(rng.random()), load))
            for each in (first, second, second)
        ]
        cutting = asyncio.create_task(asyncio.sleep(0) if first.alone else cut_off(postgres, where, [first, second]))
        before: list[StoredMessage] = []
        while not all(each.done() for each in tabs):
            after = list(await first.messages.list("ann", session))
            assert only_added(before, after) == []
            before = after
            await asyncio.sleep(0)
        await asyncio.gather(*tabs)
        cutting.cancel()
        after = list(await first.messages.list("ann", session))
        assert only_added(before, after) == []
        assert len(after) > 100
        assert await first.admin.verify() == []


@pytest.mark.planted("a row of a history that is replaced, deleted or given another number")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE conversation SET content = 'replaced' WHERE owner = ? AND seq = 2",
        "DELETE FROM conversation WHERE owner = ? AND seq = 3",
        "UPDATE conversation SET seq = seq + 100 WHERE owner = ? AND seq > 2",
    ],
)
async def test_R15_a_planted_replacement_of_history_is_found(store: Store, statement: str) -> None:
    session = (await store.sessions.new("ann")).session_id
    await store.messages.append("ann", session, [{"role": "user", "content": f"{n}"} for n in range(4)])
    before = list(await store.messages.list("ann", session))

    def replace() -> Steps[None]:
        yield statement, ("ann",)

    await store.db.write("ann", replace)
    assert only_added(before, list(await store.messages.list("ann", session)))


# R16


@pytest.mark.planted("messages in the order of their times")
async def test_R16_the_order_is_that_of_numbers_whatever_the_clock_does(where: str, load: Load) -> None:
    rng = random.Random(load.seed())
    clock = (rng.choice([1e9, 1e9, rng.uniform(0, 2e9)]) for _ in iter(int, 1))
    async with open_store(where, clock=lambda: next(clock)) as store:
        sessions = [(await store.sessions.new("ann")).session_id for _ in range(12)]
        for n in range(12):
            turn = await store.turns.begin("ann", sessions[0], {"role": "user", "content": f"{n}"}, lease=1e10)
            await store.turns.finish("ann", turn.turn_id, answer={"role": "assistant", "content": f"to {n}"})
            await store.memories.add("ann", [NewMemory(f"{n}")])
            await store.summaries.put("ann", sessions[n], f"{n}", upto_seq=1)
            await store.jobs.add("ann", "memory", key=f"{n}")
        rows = await store.messages.list("ann", sessions[0])
        expected = [text for n in range(12) for text in (f"{n}", f"to {n}")]
        assert [m.content for m in rows] == expected
        assert [m.text for m in await store.memories.changes("ann")] == [f"{n}" for n in range(12)]
        assert [s.text for s in await store.summaries.recent("ann", limit=12)] == [f"{n}" for n in reversed(range(12))]
        assert [s.session_id for s in await store.sessions.list("ann")] == [sessions[0], *reversed(sessions[1:])]
        assert [t.user_seq for t in await store.turns.list("ann", sessions[0])] == list(range(1, 25, 2))
        assert [job.key for job in await store.jobs.claim("w", n=12)] == [f"{n}" for n in range(12)]
        load.tried(12, "turns")
        by_clock = sorted(rows, key=lambda m: (m.created, m.message_id))  # the planted bug: the original's order
        assert [m.content for m in by_clock] != expected
