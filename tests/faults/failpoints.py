"""A process that ends before or after the n-th transaction of a site, and lives that lead to every site.

No switch in the product: the database of a child is wrapped. A site is a method of the store that is decorated with
`write` or `write_any_owner`, or calls them; the source itself says which there are.
"""

import ast
import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import lamina.store
from lamina import App, ToolRegistry
from lamina.app.worker import Worker, jobs_of_turn
from lamina.assembly.trace import pack
from lamina.engine.turn import Engine
from lamina.errors import ConnectError
from lamina.memory.service import MemoryService
from lamina.providers.scripted import ScriptedProvider, Step
from lamina.records import NewJob, Sent, TurnRecord
from lamina.store.database import Database, Make
from lamina.store.jobs import Jobs
from lamina.store.store import Store
from lamina.store.turns import Turns
from lamina.types import Message, Text
from tests.faults.chats import chat_settings, line_of, opened, tools
from tests.faults.nursery import Ack, Line

T = TypeVar("T")
ENDED = 9
WRITES = ("write", "write_any_owner")
SOURCE = Path(next(iter(lamina.store.__path__)))
LEASE = 0.12


def sites() -> set[str]:
    """Every method that is a transaction, by its module, class and name."""
    found: set[str] = set()
    for path in sorted(SOURCE.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for group in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            methods = [node for node in group.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{path.stem}.{group.name}.{method.name}" for method in methods if _commits(method)}
    return found


def _commits(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    decorated = any(isinstance(each, ast.Name) and each.id in WRITES for each in method.decorator_list)
    return decorated or any(isinstance(node, ast.Call) and _asks(node) for node in ast.walk(method))


def count_of_calls() -> int:
    """The same by another way, so that none is overlooked."""
    texts = [path.read_text(encoding="utf-8") for path in SOURCE.glob("*.py")]
    called = r"(?m)^    @(?:write|write_any_owner)$|self\._db\.(?:write|write_any_owner)\("
    return sum(len(re.findall(called, text)) for text in texts)


def _asks(node: ast.Call) -> bool:
    called = node.func
    if not isinstance(called, ast.Attribute) or called.attr not in WRITES:
        return False
    return isinstance(called.value, ast.Attribute) and called.value.attr == "_db"


SITES = sites()


def site_of(depth: int) -> str:
    """The site that is calling now, empty for one that is not in the store."""
    frame = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage] -- Python has no other way
    path = Path(frame.f_code.co_filename)
    if path.parent != SOURCE:
        return ""
    called = frame.f_locals.get("method")  # of a decorator, or else the method itself
    module = called.__module__.rpartition(".")[2] if called else path.stem
    return f"{module}.{called.__qualname__ if called else frame.f_code.co_qualname}"


class Failing:
    """A database that ends its process before or after the n-th transaction of a site, and keeps what it passed."""

    def __init__(self, db: Database, ack: Ack, site: str, at: int, when: str) -> None:
        self._db, self._ack, self._site, self._at, self._when = db, ack, site, at, when
        self.dialect, self.commits, self.damaged_indexes = db.dialect, 0, db.damaged_indexes
        self.index_damage = db.index_damage
        self.passed: list[str] = []

    async def write(self, owner: str, make: Make[T]) -> T:
        return await self._passing(site_of(2), lambda: self._db.write(owner, make))

    async def write_any_owner(self, make: Make[T]) -> T:
        return await self._passing(site_of(2), lambda: self._db.write_any_owner(make))

    async def read_any_owner(self, make: Make[T]) -> T:
        return await self._db.read_any_owner(make)

    async def read(self, owner: str, make: Make[T], *, seconds: float = 0.0) -> T:
        return await self._db.read(owner, make, seconds=seconds)

    async def read_cached(self, owner: str, key: Hashable, make: Make[T]) -> T:
        return await self._db.read(owner, make)

    async def recreate_tables(self, group: str) -> None:
        await self._db.recreate_tables(group)

    async def close(self) -> None:
        """Whoever opened it closes it."""

    async def _passing(self, site: str, commit: Callable[[], Awaitable[T]]) -> T:
        self.passed.append(site)
        mine = site == self._site and self.passed.count(site) == self._at
        if mine and self._when == "before":
            self._end(site)
        result = await commit()
        if mine:
            self._end(site)
        return result

    def _end(self, site: str) -> None:
        self._ack({"site": site})
        os._exit(ENDED)


class FinishesTwice(Turns):
    """The planted bug: the end of a turn and the jobs that it asks for are two transactions."""

    async def finish(self, owner: str, turn_id: str, *, jobs: Sequence[NewJob] = (), **more: Any) -> TurnRecord:
        record = await super().finish(owner, turn_id, **more)
        for job in jobs:
            await Jobs(self._db, self._clock).add(owner, job.kind, job.payload, key=job.key)
        return record


# A life of turns


def script() -> list[list[Step]]:
    """Text, calls side by side, text and a call, text; a short answer; one that goes on until it is cancelled."""

    def call(n: int, number: int) -> Step:
        return {"call": "look", "id": f"call_{n}", "arguments": {"token": f"t{number}.{n}"}}

    return [
        [{"text": "[t0.0] "}, {"delay": 0.005}, {"text": "[t0.1] "}, call(0, 0), call(1, 0), {"usage": [9, 3, 1]}],
        [{"text": "[t1.0] "}, call(0, 1)],
        [{"text": "[t2.0] "}, {"delay": 0.05}, {"text": "[t2.1] "}],
        [{"text": "[t3.0] "}, {"fault": "cut"}],
        [{"text": "[t4.0] "}, call(0, 4)],
        [{"text": "[t5.0] "}, {"fault": "stall"}],
    ]


def question(name: str) -> str:
    return f"My cat is named K{name}."


async def prepare(order: Line, ack: Ack) -> None:
    """A store as a crash leaves it: a history that is worth folding, an open turn, a job that somebody holds."""
    async with App.open(
        order["where"], settings=chat_settings(), provider=ScriptedProvider([]), tools=tools(ack), work=False
    ) as app:
        await app.new_session("ann", session_id="ann-0")
        for n in range(5):
            await app.record("ann", "ann-0", question(f"a{n}"), f"[a{n}] " + "and so on " * 60)
        await app.worker.run_until_empty()
        await app.new_session("ann", session_id="gone")
        await app.record("ann", "gone", question("gone"), "[gone] ")
        await app.record("ann", "ann-0", question("held"), "[held] ")
        await app.store.sessions.delete("ann", "gone")
        await app.store.jobs.claim("a dead one", lease=60)
        turn = await app.store.turns.begin("ann", "ann-0", {"role": "user", "content": question("open")})
        sent = Sent(*pack([(await app.context("ann", "ann-0", question("open"))).receipt]))
        await app.store.turns.chunk("ann", turn.turn_id, 0, "[open] ", sent=sent)
        ack({"what": "began", "turn": turn.turn_id, "words": question("open")})
        ack({"what": "text", "turn": turn.turn_id, "text": "[open] "})
        os._exit(ENDED)


async def turns(order: Line, ack: Ack) -> None:
    """Recovery, turns with tools, one that breaks, one that is cancelled, compaction."""
    passed: list[Failing] = []

    def wrap(db: Database) -> Failing:
        passed.append(Failing(db, ack, order["site"], order["at"], order["when"]))
        return passed[0]

    provider = ScriptedProvider(script())
    planted = FinishesTwice if order.get("planted") else None
    async with opened(order["where"], provider, tools(ack, 0), db=wrap, turns=planted, work=False) as app:
        engine = Engine(app.builder, app.store, provider=provider, jobs=jobs_of_turn, lease=LEASE)
        for name, cancelled in (("b0", False), ("b1", False), ("b2", True)):
            running = await engine.start(await app.turn("ann", "ann-0", question(name)))
            async for event in running.events():
                line = line_of(running.turn, event, question(name))
                if line:
                    ack(line)
                if cancelled and isinstance(event, Text) and event.text.startswith("[t5"):
                    running.cancel()
        await engine.compact(await app.turn("ann", "ann-0", "…"))
        ack({"what": "folded", "owner": "ann", "session": "ann-0"})
        await engine.close()
    ack({"sites": passed[0].passed})


class Model:
    """It finds facts and writes summaries: away at the first try, and then slow enough for a heartbeat."""

    def __init__(self) -> None:
        self._tries = 0

    async def __call__(self, messages: Sequence[Message], schema: Mapping[str, Any] | None) -> str:
        self._tries += 1
        if self._tries == 1:
            raise ConnectError("the model is away")
        await asyncio.sleep(0.4 * LEASE if self._tries < 4 else 0)
        cat = re.findall(r"My cat is named K\w+\.", str(messages))[-1]
        fact = {"text": cat, "kind": "fact", "importance": 0.5, "date": None}
        return json.dumps({"facts": [fact]}) if schema else "They spoke of cats."


async def jobs(order: Line, ack: Ack) -> None:
    """What is left in the outbox is worked off, by a worker whose leases are short and whose model fails at first; the
    job of a session that was deleted is only completed."""
    passed: list[Failing] = []

    def wrap(db: Database) -> Failing:
        passed.append(Failing(db, ack, order["site"], order["at"], order["when"]))
        return passed[0]

    async with opened(order["where"], ScriptedProvider([]), ToolRegistry(), db=wrap, work=False) as app:
        model = Model()

        def memory(owner: str) -> MemoryService:
            return MemoryService(app.store, app.recall, owner, complete=model, clock=time.time)

        for seconds in (0, 60):  # later, what failed is due again
            later = Store(app.store.db, lambda: time.time() + seconds)  # noqa: B023 -- as late as the loop is
            await Worker(later, memory, lease=LEASE).run_until_empty()
    ack({"sites": passed[0].passed})
