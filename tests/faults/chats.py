"""Chats of several owners at once through the whole engine, what was acknowledged of them, and whether it is all there.

The load runs until its process is killed. It writes a line for everything that a person has seen: the turn that began,
each piece of text, each result of a tool, the end. Afterwards a new process looks for all of it.
"""

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lamina import App, ToolRegistry, render, validate
from lamina.app.follow import requests_of
from lamina.app.worker import POLL_INTERVAL_S, jobs_of_turn
from lamina.assembly.history import INTERRUPTED
from lamina.assembly.request import GRAMMARS
from lamina.errors import StoreError
from lamina.providers.scripted import ScriptedProvider, Step
from lamina.records import Job, NewMemory, Sent, StoredMessage, TurnRecord
from lamina.settings import Settings, load_settings
from lamina.store.database import Database
from lamina.store.jobs import ABANDONED
from lamina.store.store import Store, open_store
from lamina.store.turns import Turns
from lamina.types import AnyMessage, Began, Ended, Text, ToolCallEvent, ToolResult, TurnEvent
from tests.faults.nursery import Ack, Line

OWNERS = ("ann", "bob", "王")
PIECE = re.compile(r"\[[^\]]+\]")
FINAL_WITHIN = 5.0
"""Seconds after a restart in which every turn has its end."""
HANGS = 60.0
ANSWERS = 300


def chat_settings(**changes: Any) -> Settings:
    generous = {"memory_deadline": 10_000, "embedder": "none", "mode": "agent", **changes}
    return replace(load_settings(Path("/nonexistent"), {}), **generous)


def answers(rng: random.Random, name: str, count: int = ANSWERS, delay: float = 0.02) -> list[list[Step]]:
    """A script: texts in pieces that are told apart by their names, and often some calls, with ids that come again."""
    script: list[list[Step]] = []
    for number in range(count):
        steps: list[Step] = []
        for piece in range(rng.randint(0 if number % 3 else 1, 4)):
            steps += [{"delay": rng.uniform(0, delay)}, {"text": f"[{name}.{number}.{piece}] "}]
        calls = rng.choice([0, 0, 1, 2, 3])
        steps += [
            {"call": rng.choice(["look", "think"]), "id": f"call_{n}", "arguments": {"token": f"{name}.{number}.c{n}"}}
            for n in range(calls)
        ]
        if not calls and not any("text" in step for step in steps):
            steps.append({"text": f"[{name}.{number}.0] "})
        script.append([*steps, {"usage": [100 + number, 10, 5]}])
    return script


def tools(ack: Ack, delay: float = 0.01) -> ToolRegistry:
    """Two tools that say that they ran, the one awaited and the other in a thread."""
    registry = ToolRegistry()

    @registry.function
    async def look(token: str) -> str:  # pyright: ignore[reportUnusedFunction] -- the registry calls it
        """Look something up."""
        ack({"what": "ran", "token": token})
        await asyncio.sleep(delay)
        return f"seen {token}"

    @registry.function
    def think(token: str) -> str:  # pyright: ignore[reportUnusedFunction] -- the registry calls it
        """Think something over."""
        ack({"what": "ran", "token": token})
        time.sleep(delay)
        return f"thought {token}"

    return registry


@asynccontextmanager
async def opened(
    where: str, provider: ScriptedProvider, registry: ToolRegistry, *, db: Any = None, turns: Any = None,
    settings: Settings | None = None, work: bool = True,
) -> AsyncGenerator[App]:  # fmt: skip
    """What `App.open` does, over a database or turns that are wrapped in something: a failpoint, a planted bug."""
    async with open_store(where) as plain:
        wrapped: Database = db(plain.db) if db else plain.db
        store = Store(wrapped, time.time)
        if turns:
            store.turns = turns(wrapped, time.time)
        await store.turns.recover(everything=store.alone, jobs=jobs_of_turn)
        if store.alone:
            await store.jobs.release()
        app = App(store, settings or chat_settings(), tools=registry, provider=provider)
        stop = asyncio.Event()
        worker = asyncio.create_task(app.worker.run(stop)) if work else None
        try:
            yield app
        finally:
            await app.close()
            stop.set()
            if worker:
                await worker


# What was acknowledged


def line_of(turn: TurnRecord, event: TurnEvent, words: str) -> Line | None:
    """What a person has now seen."""
    here: Line = {"turn": turn.turn_id}
    match event:
        case Began():
            return {"what": "began", "owner": turn.owner, "session": turn.session_id, "words": words, **here}
        case Text(text):
            return {"what": "text", "text": text, **here}
        case ToolCallEvent():
            return {"what": "call", "id": event.id, **here}
        case ToolResult():
            return {"what": "result", "id": event.id, "text": event.text, **here}
        case Ended():
            return {"what": "ended", "state": event.state, **here}
        case _:
            return None


def _lines() -> list[Line]:
    return []


@dataclass
class Seen:
    """What a person saw of one turn."""

    began: Line = field(default_factory=dict[str, Any])
    text: str = ""
    calls: list[str] = field(default_factory=list[str])
    results: list[Line] = field(default_factory=_lines)
    ended: str = ""


class Ledger:
    """Everything that was acknowledged, by turn."""

    def __init__(self, lines: Sequence[Line] = ()) -> None:
        self.turns: dict[str, Seen] = {}
        self.ran: list[str] = []
        self.folded: list[Line] = []
        self.count = 0
        for line in lines:
            self.take(line)

    def take(self, line: Line) -> None:
        self.count += 1
        if line["what"] == "ran":
            self.ran.append(line["token"])
            return
        if line["what"] == "folded":
            self.folded.append(line)
            return
        seen = self.turns.setdefault(line["turn"], Seen())
        match line["what"]:
            case "began":
                seen.began = line
            case "text":
                seen.text += line["text"]
            case "call":
                seen.calls.append(line["id"])
            case "result":
                seen.results.append(line)
            case _:
                seen.ended = line["state"]


async def talk(app: App, owner: str, session_id: str, rng: random.Random, ack: Ack, turns: int | None = None) -> None:
    """One person in one session, turn after turn."""
    session = await app.new_session(owner, session_id=session_id)
    left = turns
    while left is None or left > 0:
        words = f"My cat is named K{rng.getrandbits(48):012x}."
        running = await app.start(owner, session.session_id, words)
        async for event in running.events():
            line = line_of(running.turn, event, words)
            if line:
                ack(line)
        left = None if left is None else left - 1


# Whether it is all there


async def all_final(store: Store) -> list[str]:
    """Every turn has its end within five seconds of the restart: nobody holds one for longer than the worker needs to
    look once more, and then it is ended. Counted by leases, since a busy machine is no fault."""
    held, until = await streaming(store), time.monotonic() + HANGS
    now = time.time()  # after reading: whoever still answers renews his lease meanwhile
    late = [turn for turn in held if turn.lease_until > now + FINAL_WITHIN - POLL_INTERVAL_S]
    found = [f"turn {turn.turn_id} is held for {turn.lease_until - now:.1f} more seconds" for turn in late]
    while not found and (left := await streaming(store)):
        if time.monotonic() > until:
            return [f"turn {turn.turn_id} is still {turn.state}" for turn in left]
        await asyncio.sleep(0.05)
    return found


async def streaming(store: Store) -> list[TurnRecord]:
    return [turn for _, _, turns in await everything(store) for turn in turns if turn.state == "streaming"]


async def everything(store: Store) -> list[tuple[str, str, Sequence[TurnRecord]]]:
    """Owner, session and its turns."""
    found: list[tuple[str, str, Sequence[TurnRecord]]] = []
    for owner in await store.admin.owners():
        for session in await store.sessions.list(owner, limit=10_000):
            found.append((owner, session.session_id, await store.turns.list(owner, session.session_id)))
    return found


async def work_off(app: App) -> list[str]:
    """The outbox becomes empty; what was parked because its workers were killed five times is taken out again."""
    store, until = app.store, time.monotonic() + HANGS
    await store.jobs.release()  # nobody else is there
    while True:
        await app.worker.run_until_empty()
        owners = await store.admin.owners()
        left = 0
        for owner in owners:
            for job in await store.jobs.parked(owner):
                if job.error != ABANDONED:
                    return [f"the job {job.key} is parked: {job.error}"]
                await store.jobs.unpark(owner, job.job_id)
            counts = await store.jobs.counts(owner)
            left += counts["waiting"] + counts["leased"]
        if not left:
            return []
        if time.monotonic() > until:
            return [f"{left} jobs are left"]
        await asyncio.sleep(0.02)


async def problems(app: App, ledger: Ledger) -> list[str]:
    """What was acknowledged and is not there, is there twice, or cannot be gone on with."""
    store = app.store
    found = await all_final(store)
    found += await work_off(app)
    found += [problem.text for problem in await store.admin.verify()]
    known: dict[str, tuple[TurnRecord, list[StoredMessage]]] = {}
    learnt: Counter[str] = Counter()
    called: Counter[str] = Counter()
    for owner in await store.admin.owners():
        learnt.update(memory.turn_id for memory in await store.memories.changes(owner, limit=10**6))
    for owner, session_id, turns in await everything(store):
        rows = await store.messages.list(owner, session_id)
        of_turn: dict[str, list[StoredMessage]] = {turn.turn_id: [] for turn in turns}
        for row in rows:
            of_turn[row.turn_id].append(row)
        known |= {turn.turn_id: (turn, of_turn[turn.turn_id]) for turn in turns}
        called.update(token for row in rows for token in tokens_of(row))
        found += doubled(rows)
        found += await next_request(app, owner, session_id)
    for line in ledger.folded:
        session = await store.sessions.get(line["owner"], line["session"])
        found += [] if session.runtime.get("compactions") else [f"the summary of {line['session']} is lost"]
    for name, seen in ledger.turns.items():
        found += turn_problems(name, seen, known.get(name))
    cut = [name for name, seen in ledger.turns.items() if not seen.ended and name in known]
    whole = [name for name, seen in ledger.turns.items() if seen.ended and name in known][-40:]
    for name in (*cut, *whole):
        found += await receipt_problems(store, known[name][0], ledger.turns[name])
    found += [f"turn {name} was remembered {learnt[name]} times" for name in known if learnt[name] != 1]
    found += [f"the call {token} ran and is stored {called[token]} times" for token in ledger.ran if called[token] != 1]
    return found


async def receipt_problems(store: Store, turn: TurnRecord, seen: Seen) -> list[str]:
    """What was sent can be rebuilt, byte for byte, wherever something came of it, however the turn ended."""
    try:
        sent = await requests_of(store, turn.owner, turn)
    except StoreError as error:
        return [str(error)]
    came = turn.state == "complete" or seen.text or seen.calls
    return [f"what turn {turn.turn_id} sent is lost"] if came and not sent else []


def tokens_of(row: StoredMessage) -> list[str]:
    calls: Sequence[Any] = row.extra.get("tool_calls") or ()
    return [json.loads(call["function"]["arguments"]).get("token", "") for call in calls]


def doubled(rows: Sequence[StoredMessage]) -> list[str]:
    """Questions and pieces of text are each of them unlike any other."""
    said = Counter(piece for row in rows if row.role == "assistant" for piece in PIECE.findall(row.text))
    asked = Counter(row.text for row in rows if row.role == "user")
    return [f"{text} is there {count} times" for text, count in (said + asked).items() if count > 1]


def turn_problems(name: str, seen: Seen, known: tuple[TurnRecord, list[StoredMessage]] | None) -> list[str]:
    if known is None:
        return [f"turn {name} is lost"]
    turn, rows = known
    found: list[str] = []
    if seen.began and not any(row.role == "user" and row.text == seen.began["words"] for row in rows):
        found.append(f"the question of turn {name} is lost")
    text = "".join(row.text for row in rows if row.role == "assistant")
    if not text.startswith(seen.text):
        found.append(f"turn {name} showed {seen.text!r}, which is not what {text!r} begins with")
    if seen.ended and seen.ended != turn.state:
        found.append(f"turn {name} ended {seen.ended} and is {turn.state}")
    if seen.ended and text != seen.text:
        found.append(f"turn {name} ended with {seen.text!r} and has {text!r}")
    calls = {call["id"] for row in rows for call in row.extra.get("tool_calls") or ()}
    found += [f"the call {each} of turn {name} is lost" for each in seen.calls if each not in calls]
    results = {str(row.extra.get("tool_call_id")): row.text for row in rows if row.role == "tool"}
    for line in seen.results:
        if line["text"] not in results.get(line["id"], ""):
            found.append(f"the result of {line['id']} in turn {name} is lost")
    return found


async def next_request(app: App, owner: str, session_id: str) -> list[str]:
    """The session goes on: what would be sent now is valid for everybody who could be asked."""
    context = await app.context(owner, session_id, "And now?")
    found = [
        f"{session_id}, {grammar}: {problem}"
        for grammar in GRAMMARS
        for problem in validate(render(context, grammar), grammar)
    ]
    return found


def interrupted(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The calls of a request whose results say that they were interrupted."""
    return [str(message.get("tool_call_id")) for message in messages if INTERRUPTED in str(message.get("content"))]


# Works


async def chats(order: Line, ack: Ack) -> None:
    """Until it is killed."""
    rng = random.Random(order["seed"])
    provider = ScriptedProvider(answers(rng, f"s{order['seed']}"))
    planted = order.get("planted", "")
    turns = {"early": ShowsEarly, "unsent": KeepsAtEnd}.get(planted)
    async with opened(order["where"], provider, tools(ack), turns=turns) as app:
        if planted == "split":
            split_jobs(app)
        async with asyncio.TaskGroup() as tasks:
            for owner in OWNERS:
                for n in range(2):
                    tasks.create_task(talk(app, owner, f"{owner}-{n}", random.Random(rng.random()), ack))


async def check(order: Line, ack: Ack) -> None:
    """In a new process: what the ledger in a file says is there, or what is not."""
    lines = [json.loads(line) for line in Path(order["ledger"]).read_text(encoding="utf-8").splitlines()]
    provider = ScriptedProvider([[{"text": "Well."}]], repeat=True)
    ahead = order.get("ahead", 0)  # what failed is due again
    async with App.open(
        order["where"], settings=chat_settings(), tools=tools(lambda line: None), provider=provider,
        clock=lambda: time.time() + ahead,
    ) as app:  # fmt: skip
        ack({"problems": (await problems(app, Ledger(lines)))[:20]})


async def go_on(order: Line, ack: Ack) -> None:
    """In a new process: the next turn of a session that was cut off, and the request that it sent."""
    provider = ScriptedProvider([[{"text": "Well."}]])
    async with App.open(
        order["where"], settings=chat_settings(), tools=tools(lambda line: None), provider=provider, work=False
    ) as app:
        rows = await app.store.messages.list("ann", "ann-0")
        running = await app.start("ann", "ann-0", "And now?")
        await running.wait()
        context = provider.contexts[0]
        if order.get("planted"):  # nobody says that a call was interrupted
            left = [message for message in context.messages if INTERRUPTED not in str(message.get("content"))]
            found = [str(each) for each in validate({"messages": left}, "openai")]
        else:
            found = [str(each) for grammar in GRAMMARS for each in validate(render(context, grammar), grammar)]
        said = {"state": running.turn.state, "open": unanswered(rows), "interrupted": interrupted(context.messages)}
        ack({**said, "problems": found})


def unanswered(rows: Sequence[StoredMessage]) -> list[str]:
    """Calls without a result, in their order."""
    answered = {(row.turn_id, row.extra.get("tool_call_id")) for row in rows if row.role == "tool"}
    calls = [(row.turn_id, call["id"]) for row in rows for call in row.extra.get("tool_calls") or ()]
    return [name for turn, name in calls if (turn, name) not in answered]


# Planted bugs


class ShowsEarly(Turns):
    """Text is shown, and stored a little later."""

    async def chunk(
        self, owner: str, turn_id: str, n: int, text: str, *, lease: float = 60.0, sent: Sent | None = None
    ) -> None:
        async def later() -> None:
            await asyncio.sleep(0.03)
            await Turns.chunk(self, owner, turn_id, n, text, lease=lease, sent=sent)

        task = asyncio.create_task(later())
        task.add_done_callback(lambda done: done.cancelled() or done.exception())


class KeepsAtEnd(Turns):
    """What was sent is stored with the end of the turn, and not before."""

    async def chunk(self, owner: str, turn_id: str, n: int, text: str, **more: Any) -> None:
        await Turns.chunk(self, owner, turn_id, n, text, lease=more["lease"])

    async def add(self, owner: str, turn_id: str, messages: Sequence[AnyMessage], **more: Any) -> Sequence[str]:
        return await Turns.add(self, owner, turn_id, messages, lease=more["lease"])

    async def renew(self, owner: str, turn_id: str, **more: Any) -> None:
        await Turns.renew(self, owner, turn_id, lease=more["lease"])


def split_jobs(app: App) -> None:
    """The completion of a job, and then, in another transaction, what it leads to."""
    add = app.store.memories.add

    async def apart(owner: str, memories: Sequence[NewMemory], *, done: Job | None = None, **more: Any) -> Any:
        if done:
            await app.store.jobs.done(done)
            await asyncio.sleep(0.01)
        return await add(owner, memories, **more)

    app.store.memories.add = apart
