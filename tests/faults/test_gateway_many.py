"""Several gateways over one PostgreSQL, as behind a load balancer, and several users at once: R10, R14 and I1 again.

Each gateway has an app, a provider and connections of its own; that they share this process changes nothing for them.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lamina.app.app import App
from lamina.gateway.http import Handler, Reply, Request
from lamina.gateway.routes import ROUTES
from lamina.providers.scripted import Step
from tests.gateway.apis import Api, Got, api_on
from tests.gateway.streams import heard, text_of
from tests.gateway.worlds import everything
from tests.postgres import Server

SOAK = int(os.environ.get("SOAK", "1"))
EVENTS = {"Accept": "text/event-stream"}
PIECES = [f"piece {n}，第{n}段。" for n in range(40)]
SLOW: list[list[Step]] = [[step for piece in PIECES for step in ({"text": piece}, {"delay": 0.01})]]


async def told(api: Api, turn_id: str, rng: random.Random, others: Api) -> str:
    """A turn as a reader hears it who is sent to another gateway at every new try."""
    text, last, here = "", "", api
    while True:
        sent = {**await here.headers("ann"), **({"Last-Event-ID": last} if last else {})}
        raw, enough = b"", rng.randint(1, 1_500)
        async with here.http.get(f"{here.url}/api/turns/{turn_id}/events", headers=sent) as reply:
            if reply.status == 204:
                return text
            async for piece in reply.content.iter_any():
                raw += piece
                if len(raw) >= enough:
                    break
            reply.close()
        events = heard(raw)
        text += text_of(events)
        last = events[-1].id if events else last
        here = others if here is api else api


async def test_R10_a_stream_begun_at_one_gateway_goes_on_at_another(postgres: Server) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    where = postgres.database()
    async with api_on(where, SLOW) as one, api_on(where, SLOW) as two:
        for _ in range(SOAK):
            session = (await one("POST", "/api/sessions", {})).json["session_id"]
            turn = (await one("POST", f"/api/sessions/{session}/messages", {"content": "Tell."})).json["turn_id"]
            async with asyncio.timeout(120):
                heard_by = await asyncio.gather(told(one, turn, rng, two), told(two, turn, rng, one))
            assert list(heard_by) == ["".join(PIECES)] * 2
            assert (await two("GET", f"/api/turns/{turn}/events", user="bob")).status == 404


async def test_R14_one_key_at_two_gateways_is_one_turn_and_one_call(postgres: Server) -> None:
    where, script = postgres.database(), [[{"delay": 0.05}, {"text": "Paid."}]]
    async with api_on(where, script) as one, api_on(where, script) as two:
        for trial in range(5 * SOAK):
            session = (await one("POST", "/api/sessions", {})).json["session_id"]
            path, headers = f"/api/sessions/{session}/messages", {"Idempotency-Key": f"k{trial}", **EVENTS}
            async with asyncio.timeout(60):
                got = await asyncio.gather(
                    *(api("POST", path, {"content": "Pay."}, headers=headers) for api in (one, two) for _ in range(5))
                )
            assert {text_of(heard(each.raw)) for each in got} == {"Paid."}
            assert len({each.headers["x-lamina-turn"] for each in got}) == 1
            assert len(one.provider.contexts) + len(two.provider.contexts) == trial + 1


async def test_a_turn_is_cancelled_from_another_gateway(postgres: Server) -> None:
    where, script = postgres.database(), [[{"text": "One. "}, {"delay": 60}, {"text": "Two."}]]
    async with api_on(where, script) as one, api_on(where, script) as two:
        session = (await one("POST", "/api/sessions", {})).json["session_id"]
        turn = (await one("POST", f"/api/sessions/{session}/messages", {"content": "x"})).json["turn_id"]
        assert (await two("POST", f"/api/turns/{turn}/cancel")).json["state"] == "interrupted"
        async with asyncio.timeout(60):
            events = heard((await one("GET", f"/api/turns/{turn}/events")).raw)
        assert events[-1].name == "ended"
        assert events[-1].data["state"] != "complete"


# I1: many users with canaries, all at once

USERS = [f"user{n:02}" for n in range(20)]


def canary(user: str) -> str:
    return f"canary-of-{user}-x"


def foreign(user: str, raw: bytes) -> list[str]:
    return [other for other in USERS if other != user and canary(other).encode() in raw]


class Crowd:
    """Users who do things at random, with ids of their own and of others."""

    def __init__(self, api: Api, rng: random.Random) -> None:
        self.api, self.rng = api, rng
        self.ids: dict[str, list[str]] = {"session": ["x"], "turn": ["x"], "message": ["x"], "memory": ["x"]}
        self.leaks: list[str] = []
        self.done = self.left = 0

    def any(self, kind: str) -> str:
        return self.rng.choice(self.ids[kind][-60:])

    def moves(self, user: str) -> list[Callable[[], Awaitable[Got]]]:
        mark, one, api = canary(user), self.any, self.api

        def ask(method: str, path: str, body: Any = None, **headers: str) -> Callable[[], Awaitable[Got]]:
            return lambda: api(method, path, body, user=user, headers=headers)

        session, turn = f"/api/sessions/{one('session')}", f"/api/turns/{one('turn')}"
        return [
            ask("POST", "/api/sessions", {"title": mark, "meta": {"m": mark}, "scenario": mark}),
            ask("GET", "/api/sessions"), ask("GET", "/api/sessions/search?q=canary"), ask("GET", session),
            ask("PATCH", session, {"title": mark}), ask("POST", f"{session}/branch", {"seq": 1, "title": mark}),
            ask("GET", f"{session}/messages"), ask("GET", f"{session}/turns"),
            ask("POST", f"{session}/messages", {"content": f"{mark} asks"}, Accept="text/event-stream"),
            ask("POST", f"{session}/messages", {"content": f"{mark} asks"}, **{"Idempotency-Key": f"k{one('turn')}"}),
            ask("POST", f"{session}/context", {"content": mark}), ask("GET", turn), ask("GET", f"{turn}/events"),
            ask("GET", f"{turn}/receipt"), ask("GET", f"{turn}/payload"), ask("GET", f"{turn}/diff/{one('turn')}"),
            ask("POST", f"{turn}/retry"), ask("POST", f"{turn}/cancel"), ask("GET", "/api/collected"),
            ask("PUT", f"/api/messages/{one('message')}/collected", {"collected": True}),
            ask("POST", "/api/memories", {"text": f"{mark} likes {self.rng.random()}"}), ask("GET", "/api/memories"),
            ask("GET", "/api/memories/search?q=canary"), ask("GET", f"/api/memories/{one('memory')}"),
            ask("PATCH", f"/api/memories/{one('memory')}", {"text": f"{mark} knows {self.rng.random()}"}),
            ask("PATCH", "/api/profile", {"name": mark}), ask("GET", "/api/profile"), ask("GET", "/api/me"),
        ]  # fmt: skip

    async def step(self) -> None:
        user = self.rng.choice(USERS)
        move = asyncio.create_task(self._move(user))
        if self.rng.random() < 0.1:
            await asyncio.sleep(self.rng.random() / 50)
            move.cancel()
            self.left += 1
        await asyncio.gather(move, return_exceptions=True)

    async def _move(self, user: str) -> None:
        got = await self.rng.choice(self.moves(user))()
        self.done += 1
        self.leaks += [f"{user} saw {other}: {got.raw[:200]!r}" for other in foreign(user, got.raw)]
        if got.status >= 500:
            self.leaks.append(f"{got.status}: {got.raw[:200]!r}")
        if got.status in (200, 201, 202) and got.headers["content-type"] == "application/json":
            value = got.json
            for kind, name in (("session", "session_id"), ("turn", "turn_id"), ("message", "answer_id")):
                self.ids[kind] += [value[name]] if value.get(name) else []
            self.ids["memory"] += [value["memory"]["memory_id"]] if isinstance(value.get("memory"), dict) else []

    def sent_to_the_model(self) -> list[str]:
        """Requests to the provider that hold the canaries of more than one."""
        payloads = [context.payload for context in self.api.provider.contexts]
        return [p.decode()[:200] for p in payloads if sum(canary(user).encode() in p for user in USERS) > 1]


async def leaks(api: Api, rng: random.Random, operations: int) -> tuple[Crowd, list[str]]:
    crowd = Crowd(api, rng)
    left = iter(range(operations))

    async def worker() -> None:
        for _ in left:
            await crowd.step()

    async with asyncio.timeout(300 * SOAK):
        await asyncio.gather(*(worker() for _ in range(16)))
    for user in USERS:
        seen = b"".join(await everything(api, user))
        crowd.leaks += [f"{user} has {other}'s" for other in foreign(user, seen)]
    return crowd, [*crowd.leaks, *crowd.sent_to_the_model()]


async def test_I1_no_user_sees_the_canary_of_another(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    async with api_on(str(tmp_path / "s.db"), [[{"text": "Well, "}, {"text": "yes."}]]) as api:
        crowd, found = await leaks(api, random.Random(seed), 3_000 * SOAK)
        assert found == []
        assert crowd.done > 2_000 * SOAK
        assert crowd.left > 100 * SOAK


def _shared(inner: Handler) -> Handler:
    """Planted: a reply is kept and given to whoever asks next."""
    kept: list[Reply] = []

    async def handler(app: App, request: Request) -> Reply:
        kept.append(await inner(app, request))
        return kept[0]

    return handler


async def test_I1_a_planted_reply_for_everybody_is_caught(tmp_path: Path) -> None:
    routes = [replace(r, handler=_shared(r.handler)) if r.path == "/api/profile" else r for r in ROUTES]
    async with api_on(str(tmp_path / "s.db"), routes=routes) as api:
        assert (await leaks(api, random.Random(1), 800))[1]
