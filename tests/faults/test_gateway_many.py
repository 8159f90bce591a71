"""Several gateways over one PostgreSQL, as behind a load balancer: R10 and R14 again, and cancelling from elsewhere.

Each gateway has an app, a provider and connections of its own; that they share this process changes nothing for them.
"""

import asyncio
import random

from lamina.providers.scripted import Step
from tests.faults.load import Load
from tests.gateway.apis import Api, api_on
from tests.gateway.streams import heard, text_of
from tests.postgres import Server

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


async def test_R10_a_stream_begun_at_one_gateway_goes_on_at_another(postgres: Server, load: Load) -> None:
    seed = load.seed()
    rng = random.Random(seed)
    where = postgres.database()
    async with api_on(where, SLOW) as one, api_on(where, SLOW) as two:
        for _ in load.rounds(1, "readers", each=2):
            session = (await one("POST", "/api/sessions", {})).json["session_id"]
            turn = (await one("POST", f"/api/sessions/{session}/messages", {"content": "Tell."})).json["turn_id"]
            async with asyncio.timeout(120):
                heard_by = await asyncio.gather(told(one, turn, rng, two), told(two, turn, rng, one))
            assert list(heard_by) == ["".join(PIECES)] * 2
            assert (await two("GET", f"/api/turns/{turn}/events", user="bob")).status == 404


async def test_R14_one_key_at_two_gateways_is_one_turn_and_one_call(postgres: Server, load: Load) -> None:
    where, script = postgres.database(), [[{"delay": 0.05}, {"text": "Paid."}]]
    async with api_on(where, script) as one, api_on(where, script) as two:
        for trial in load.rounds(5, "keys sent ten times"):
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
