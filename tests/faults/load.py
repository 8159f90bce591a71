"""A load of streaming turns with tools, texts and jobs, what it acknowledged, and the check that all of it is there.

As a program (`python -m tests.faults.load <address> <seed> <planted bug>`) it runs until it is killed and writes a line
for each acknowledgement, after the store has said that it is durable.
"""

import asyncio
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lamina.errors import LeaseError, StoreError
from lamina.records import Job, NewJob, NewMemory
from lamina.store.store import Store, open_store
from lamina.types import text_hash

FUNCTION = {"name": "look", "arguments": "{}"}
OWNERS = ("ann", "bob", "王")
LEASE = 0.3
Ack = Callable[[dict[str, Any]], None]


@dataclass
class Ledger:
    """Everything that was acknowledged."""

    questions: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    chunks: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    tools: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    answers: dict[str, str] = field(default_factory=dict[str, str])
    effects: list[str] = field(default_factory=list[str])

    def take(self, line: dict[str, Any]) -> None:
        turn = line["turn"]
        match line["what"]:
            case "question":
                self.questions[turn] = line
            case "chunk":
                self.chunks.setdefault(turn, []).append(line["text"])
            case "tools":
                self.tools.setdefault(turn, []).extend(line["ids"])
            case "answer":
                self.answers[turn] = line["text"]
            case _:
                self.effects.append(turn)

    @property
    def count(self) -> int:
        parts = (self.questions, self.answers, self.effects)
        return sum(map(len, parts)) + sum(len(each) for each in (*self.chunks.values(), *self.tools.values()))


async def one_turn(store: Store, owner: str, session: str, rng: random.Random, ack: Ack, early: bool) -> None:
    """A turn as the engine runs it. `early` is the planted bug: say it is saved before it is."""
    name = f"q{rng.getrandbits(64):x}"

    async def saved(line: dict[str, Any], work: Any) -> Any:
        if early:
            ack(line)
            return await work
        result = await work
        ack(line | ({"turn": result.turn_id} if line["what"] == "question" else {}))
        return result

    turn = await saved(
        {"what": "question", "turn": name, "owner": owner, "session": session, "text": name},
        store.turns.begin(owner, session, {"role": "user", "content": name}, key=name, lease=LEASE),
    )
    if early:
        ack({"what": "question", "turn": turn.turn_id, "owner": owner, "session": session, "text": name})
    n, said = 0, ""
    for step in range(rng.randint(1, 3)):
        for _ in range(rng.randint(1, 5)):
            text = f"<{name}.{n}>"
            line = {"what": "chunk", "turn": turn.turn_id, "text": text}
            await saved(line, store.turns.chunk(owner, turn.turn_id, n, text, lease=LEASE))
            n, said = n + 1, said + text
        if step:
            call = {
                "role": "assistant",
                "content": said,
                "tool_calls": [{"id": f"{step}", "type": "function", "function": FUNCTION}],
            }
            result = {"role": "tool", "content": f"result {name}", "tool_call_id": f"{step}"}
            ids = await store.turns.add(owner, turn.turn_id, [call, result], lease=LEASE)
            ack({"what": "tools", "turn": turn.turn_id, "ids": list(ids)})
            said = ""
    await saved(
        {"what": "answer", "turn": turn.turn_id, "text": f"{said}end"},
        store.turns.finish(
            owner, turn.turn_id, answer={"role": "assistant", "content": f"{said}end"}, usage={"n": n},
            texts={text_hash(t): t for t in ("identity", name)},
            jobs=[NewJob("memory", {"turn": turn.turn_id}, key=name)],
        ),
    )  # fmt: skip


async def one_job(store: Store, job: Job, ack: Ack, split: bool) -> None:
    """What a job leads to, once. `split` is the planted bug: the effect and its completion in two transactions."""
    turn = job.payload["turn"]
    fact = NewMemory(f"{turn} in attempt {job.attempts} of {job.worker}", turn_id=turn)
    if split:
        await store.memories.add(job.owner, [fact])
        await asyncio.sleep(0.01)
        await store.jobs.done(job)
    else:
        await store.memories.add(job.owner, [fact], done=job)
    ack({"what": "effect", "turn": turn})


async def writer(store: Store, rng: random.Random, ack: Ack, planted: str, sessions: dict[str, str]) -> None:
    while True:
        owner = rng.choice(OWNERS)
        try:
            await one_turn(store, owner, sessions[owner], rng, ack, planted == "early")
        except LeaseError:
            continue


async def worker(store: Store, name: str, ack: Ack, planted: str) -> None:
    while True:
        jobs = await store.jobs.claim(name, n=3, lease=LEASE)
        for job in jobs:
            try:
                await one_job(store, job, ack, planted == "split")
            except LeaseError:
                continue
        if not jobs:
            await asyncio.sleep(0.01)


async def run_load(store: Store, seed: int, ack: Ack, planted: str = "", writers: int = 3) -> None:
    rng = random.Random(seed)
    sessions = {owner: (await store.sessions.new(owner)).session_id for owner in OWNERS}
    async with asyncio.TaskGroup() as tasks:
        for _ in range(writers):
            tasks.create_task(writer(store, random.Random(rng.random()), ack, planted, sessions))
        for n in range(2):
            tasks.create_task(worker(store, f"w{seed}.{n}", ack, planted))


async def drain(store: Store) -> None:
    """Recover, then work off what is still in the outbox, as a restarted program does."""
    await store.turns.recover(everything=True)
    idle = 0
    while idle < 2:
        jobs = await store.jobs.claim("after", n=50)
        for job in jobs:
            await one_job(store, job, lambda line: None, split=False)
        if not jobs and not idle:
            await asyncio.sleep(LEASE + 0.05)  # until the leases of those who were killed have run out
        idle = 0 if jobs else idle + 1


async def problems(store: Store, ledger: Ledger) -> list[str]:
    """What was acknowledged and is not there, is there twice, or has not come to an end. Call `drain` before."""
    found = list(await store.maintenance.verify())
    turns: dict[str, Any] = {}
    effects: Counter[str] = Counter()
    for owner in await store.maintenance.owners():
        effects.update(m.turn_id for m in await store.memories.changes(owner))
        for session in await store.sessions.list(owner, limit=10_000):
            rows = await store.history.messages(owner, session.session_id)
            asked = Counter(m.content for m in rows if m.role == "user" and isinstance(m.content, str))
            found += [f"{text} is there {n} times" for text, n in asked.items() if n > 1]
            for turn in await store.turns.list(owner, session.session_id):
                turns[turn.turn_id] = (turn, [m for m in rows if m.turn_id == turn.turn_id])
    found += [f"turn {name} is still {turn.state}" for name, (turn, _) in turns.items() if turn.state == "streaming"]
    for name, line in ledger.questions.items():
        known = turns.get(name)
        if known is None or not any(m.content == line["text"] for m in known[1]):
            found.append(f"question {line['text']} is lost")
    for name, texts in ledger.chunks.items():
        whole = "".join(m.text for m in turns[name][1]) if name in turns else ""
        found += [f"chunk {text} is there {whole.count(text)} times" for text in texts if whole.count(text) != 1]
    for name, ids in ledger.tools.items():
        there = {m.message_id for m in turns[name][1]} if name in turns else set[str]()
        found += [f"tool row {each} is lost" for each in ids if each not in there]
    for name, text in ledger.answers.items():
        if name not in turns or turns[name][0].state != "complete" or turns[name][1][-1].content != text:
            found.append(f"answer of {name} is lost")
    complete = [name for name, (turn, _) in turns.items() if turn.state == "complete"]
    found += [f"{name} was remembered {effects[name]} times" for name in complete if effects[name] != 1]
    found += [f"effect of {name} is lost" for name in ledger.effects if not effects[name]]
    return found


def main() -> None:
    where, seed, planted = sys.argv[1], int(sys.argv[2]), sys.argv[3]

    def ack(line: dict[str, Any]) -> None:
        os.write(1, json.dumps(line).encode() + b"\n")

    async def run() -> None:
        async with open_store(where) as store:
            await store.turns.recover(everything=True)
            await run_load(store, seed, ack, planted)

    try:
        asyncio.run(run())
    except StoreError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
