"""I1: many users with canaries in every field, through every door at once; nobody ever sees another's.

The long form has 100,000 operations.
"""

import asyncio
import json
import logging
import random
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from lamina.gateway.gateway import ROUTES
from lamina.gateway.handlers import Reply, Request
from lamina.providers.scripted import ScriptedProvider
from lamina.types import Context, Done, Event, Text, Usage
from tests.faults.load import Load
from tests.gateway.serving import Answer, Site, running

CANARY = re.compile(r"canary(\d+)x")
AT_ONCE = 64
BATCH = 500


class Watching(ScriptedProvider):
    """A model that repeats everything it was sent, and looks at whose it is."""

    found: list[str]

    def stream(self, context: Context, *, max_tokens: int | None = None, options: Any = None) -> AsyncGenerator[Event]:
        sent = json.dumps([context.messages, context.tools, options], ensure_ascii=False)
        owners = set(CANARY.findall(sent))
        self.found += [f"a request with the canaries of {sorted(owners)}"] if len(owners) > 1 else []
        return self._repeats(sent[-400:])

    async def _repeats(self, heard: str) -> AsyncGenerator[Event]:
        yield Text(f"I heard: {heard}")
        await asyncio.sleep(0.001)
        yield Usage(9, 0, 3)
        yield Done("stop")


@dataclass
class User:
    number: int
    key: str
    sessions: list[str] = field(default_factory=list[str])
    turns: list[str] = field(default_factory=list[str])
    memories: list[str] = field(default_factory=list[str])
    messages: list[str] = field(default_factory=list[str])
    templates: list[str] = field(default_factory=list[str])

    def says(self, what: str) -> str:
        return f"my {what} is canary{self.number}x and I like tea 我喜欢喝茶"


Do = Callable[[Site, User, random.Random], Awaitable[Answer | None]]


async def new_session(site: Site, user: User, rng: random.Random) -> Answer:
    made = await site.post(
        "/api/sessions", {"title": user.says("title"), "meta": {"note": user.says("note")}}, key=user.key
    )
    user.sessions.append(made.json["session_id"])
    return made


async def say(site: Site, user: User, rng: random.Random) -> Answer | None:
    if not user.sessions:
        return None
    body = {"content": user.says(f"number {rng.randrange(1_000)}")}
    path = f"/api/sessions/{rng.choice(user.sessions)}/messages"
    answer = await site.post(path, body, key=user.key, headers={"Accept": "text/event-stream"})
    assert answer.status == 200, answer.raw
    user.turns.append(answer.headers["x-lamina-turn"])
    return answer


async def complete(site: Site, user: User, rng: random.Random) -> Answer:
    session = {"X-Lamina-Session": rng.choice(user.sessions)} if user.sessions and rng.random() < 0.5 else {}
    messages = [{"role": "system", "content": user.says("rule")}, {"role": "user", "content": user.says("question")}]
    answer = await site.post("/v1/chat/completions", {"messages": messages}, key=user.key, headers=session)
    assert answer.status == 200, answer.raw
    user.turns.append(answer.headers["x-lamina-turn"])
    return answer


async def remember(site: Site, user: User, rng: random.Random) -> Answer:
    text = f"{user.says('secret')} {rng.randrange(10_000)}"
    made = await site.post("/api/memories", {"text": text, "pinned": rng.random() < 0.2}, key=user.key)
    user.memories.append(made.json["memory"]["memory_id"])
    return made


async def teach(site: Site, user: User, rng: random.Random) -> Answer:
    body = {"name": f"skill{rng.randrange(10**9)}", "content": user.says("skill"), "is_skill": True}
    made = await site.post("/api/templates", body, key=user.key)
    assert made.status == 201, made.raw
    user.templates.append(made.json["template_id"])
    return made


async def describe(site: Site, user: User, rng: random.Random) -> Answer:
    return await site.ask("PATCH", "/api/profile", {"about": user.says("profile")}, key=user.key)


def look(path: str, ids: Callable[[User], list[str]] = lambda user: ["-"]) -> Do:
    async def looks(site: Site, user: User, rng: random.Random) -> Answer | None:
        known = ids(user)
        return await site.get(path.format(rng.choice(known)), key=user.key) if known else None

    return looks


def everybody(site: Site) -> list[str]:
    return site.everything  # pyright: ignore[reportAttributeAccessIssue] -- the test's own list


async def pry(site: Site, user: User, rng: random.Random) -> Answer | None:
    """Somebody's turn or session, hardly ever one's own."""
    paths = rng.choice(everybody(site) or [""])
    return await site.get(paths, key=user.key) if paths else None


OPERATIONS: list[Do] = [
    new_session, say, say, say, complete, complete, remember, remember, teach, describe, pry, pry,
    look("/api/sessions"), look("/api/sessions/search?q=canary"), look("/api/sessions/search?q=%E5%96%9D%E8%8C%B6"),
    look("/api/memories"), look("/api/memories/search?q=secret%20tea"), look("/api/collected"), look("/api/profile"),
    look("/api/templates"), look("/api/sessions/{}/messages", lambda user: user.sessions),
    look("/api/sessions/{}/turns", lambda user: user.sessions), look("/api/turns/{}/receipt", lambda user: user.turns),
    look("/api/turns/{}/payload", lambda user: user.turns), look("/api/turns/{}/events", lambda user: user.turns),
    look("/api/memories/{}", lambda user: user.memories), look("/api/me"),
]  # fmt: skip


async def crowd(
    where: str | Path, seed: int, users: int, rounds: Iterable[int], routes: Any = None
) -> tuple[list[str], dict[str, int]]:
    """Everything foreign that anybody saw."""
    rng, provider = random.Random(seed), Watching([], repeat=True)
    provider.found = wrong = []
    counts = {"done": 0, "left": 0, "found": 0}
    logged: list[str] = []
    handler = logging.Handler(0)
    handler.emit = lambda record: logged.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    async with running(where, provider=provider, routes=routes) as site:
        people = [User(n, await site.key(f"user{n}")) for n in range(users)]
        object.__setattr__(site, "everything", [])
        for user in people:
            await new_session(site, user, rng)  # so that whoever looks first has something to be seen
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(user: User, do: Do, mine: random.Random) -> None:
            async with gate:
                doing = asyncio.ensure_future(do(site, user, mine))
                if mine.random() < 0.1:  # it leaves
                    await asyncio.sleep(mine.random() * 0.05)
                    doing.cancel()
                    counts["left"] += 1
                (answer,) = await asyncio.gather(doing, return_exceptions=True)
            if isinstance(answer, Exception):
                wrong.append(f"{do}: {answer!r}")
            if not isinstance(answer, Answer):
                return
            counts["done"] += 1
            owners = set(CANARY.findall(answer.raw.decode())) | set(CANARY.findall(str(answer.headers)))
            counts["found"] += bool(owners)
            if owners - {str(user.number)}:
                wrong.append(f"user {user.number} saw {sorted(owners)} in {answer.raw[:200]!r}")
            if answer.status >= 500:
                wrong.append(f"{answer.status}: {answer.raw[:200]!r}")
            everybody(site).extend(f"/api/turns/{turn}/payload" for turn in user.turns[-1:])
            everybody(site).extend(f"/api/sessions/{session}/messages" for session in user.sessions[-1:])

        for _ in rounds:
            await asyncio.gather(
                *(
                    one(rng.choice(people), rng.choice(OPERATIONS), random.Random(rng.randrange(2**60)))
                    for _ in range(BATCH)
                )
            )
        for user in people[:10]:
            lines = [line async for line in site.app.store.admin.export(f"user{user.number}")]
            owners = set(CANARY.findall("".join(map(str, lines))))
            wrong += [f"the export of {user.number} has {owners}"] if owners - {str(user.number)} else []
    logging.getLogger().removeHandler(handler)
    wrong += [f"a log has {line[:200]}" for line in logged if CANARY.search(line)]
    return wrong, counts


async def test_I1_nobody_sees_anothers_canary(where: str, load: Load) -> None:
    seed = load.seed()
    quick, long = (3, 20) if "://" not in where else (1, 1)
    rounds = load.rounds(quick, "operations", each=BATCH, long=long)
    wrong, counts = await crowd(where, seed, 100, rounds)
    print(counts)
    assert wrong == []
    assert counts["left"] > 0
    assert counts["found"] > counts["done"] / 4, "they do see their own"


@pytest.mark.planted("a route that answers everybody as the first who asked")
async def test_I1_a_planted_leak_is_found(tmp_path: Path) -> None:
    owners: list[str] = []

    async def leaky(app: Any, request: Request) -> Reply:
        """The first who asked is whose sessions everybody gets; everybody has one before anybody asks."""
        owners.append(request.user)
        found = next(route for route in ROUTES if (route.method, route.path) == ("GET", "/api/sessions"))
        return await found.handler(app, replace(request, principal=replace(request.principal, user=owners[0])))

    planted = [
        replace(route, handler=leaky) if (route.method, route.path) == ("GET", "/api/sessions") else route
        for route in ROUTES
    ]
    wrong, _ = await crowd(tmp_path / "s.db", 7, 10, range(1), planted)
    assert any("saw" in one for one in wrong)
