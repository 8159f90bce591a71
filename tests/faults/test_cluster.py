"""Three gateways, two workers and PostgreSQL behind nginx: R1, R9, R10, R13 to R15, R20 and I1 hold for all together.

The cluster is of real processes, and is killed in parts under load. `SOAK=10` is the long form: ten times as much.
"""

import asyncio
import os
import random
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lamina import App
from lamina.providers.scripted import ScriptedProvider
from lamina.store.store import open_store
from tests.faults.chats import Ledger, all_final, chat_settings, problems
from tests.faults.cluster import CONFIG, GATEWAYS, MARK, NGINX, NO_FRONT, USERS, Cluster, cluster, front, name_of
from tests.faults.visitors import EVENTS, Crowd, Visitor, grew
from tests.gateway.streams import heard, text_of
from tests.postgres import Server

SOAK = int(os.environ.get("SOAK", "1"))
pytestmark = pytest.mark.skipif(NGINX is None, reason=NO_FRONT)


@pytest.fixture(scope="module")
def site(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster"), postgres) as it:
        yield it


@asynccontextmanager
async def crowd_of(site: Cluster, at: str = "") -> AsyncGenerator[Crowd]:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as http:
        yield Crowd(site, http, random.Random(seed), at)


async def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.02)


# R10: a stream goes on anywhere


async def hop(visitor: Visitor, turn: str, whole_ids: bool = True) -> tuple[str, int]:
    """A turn as one hears it who is cut off again and again, and comes back to wherever the front sends him."""
    text, last, tries = "", "", 0
    while True:
        tries += 1
        sent = {**visitor.key, **({"Last-Event-ID": last} if last else {})}
        raw, enough = b"", visitor.rng.randint(1, 1_200)
        async with visitor.crowd.http.get(f"{visitor.front}/api/turns/{turn}/events", headers=sent) as reply:
            visitor.crowd.served.add(reply.headers["X-Request-Id"][:8])
            if reply.status == 204:
                return text, tries
            async for piece in reply.content.iter_any():
                raw += piece
                if len(raw) >= enough:
                    break
            reply.close()
        events = heard(raw)
        text += text_of(events)
        if whole_ids and events:
            last = events[-1].id or last
        if not whole_ids and tries > 20:
            return text, tries


async def long_turn(visitor: Visitor, pieces: int = 40) -> str:
    """The id of a turn of so many pieces that has just begun."""
    session = await visitor.session()
    body = {"model": "m", "stream": True, "seed": pieces, "messages": [{"role": "user", "content": visitor.words()}]}
    headers = {**visitor.key, "X-Lamina-Session": session}
    async with visitor.crowd.http.post(f"{visitor.front}/v1/chat/completions", json=body, headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        return reply.headers["X-Lamina-Turn"]


async def test_R10_a_stream_begun_at_one_gateway_goes_on_at_the_others(site: Cluster) -> None:
    async with crowd_of(site) as crowd:
        for _ in range(SOAK):
            visitor = crowd.visitor(0)
            turn = await long_turn(visitor)
            told = await asyncio.gather(*(hop(visitor, turn) for _ in range(3)))
            whole = text_of(heard((await visitor.ask("GET", f"/api/turns/{turn}/events")).raw))
            assert whole.count("[") == 40
            assert [text for text, _ in told] == [whole] * 3
            for _ in range(40):  # and from any character on
                at = visitor.rng.randrange(len(whole) + 1)
                reply = await visitor.ask("GET", f"/api/turns/{turn}/events", **{"Last-Event-ID": str(at)})
                assert text_of(heard(reply.raw)) == whole[at:], f"from {at} on"
            foreign = await crowd.visitor(1).ask("GET", f"/api/turns/{turn}/events", **{"Last-Event-ID": "3"})
            assert foreign.status == 404
        assert len(crowd.served) == GATEWAYS, "each of them told some of it"
        assert crowd.foreign == []


async def test_R10_a_client_that_forgets_where_it_was_is_found(site: Cluster) -> None:
    async with crowd_of(site) as crowd:
        visitor = crowd.visitor(0)
        turn = await long_turn(visitor, 10)
        text, _ = await hop(visitor, turn, whole_ids=False)
        whole = text_of(heard((await visitor.ask("GET", f"/api/turns/{turn}/events")).raw))
        assert text != whole


# R14: one key, one turn


async def repeated(visitor: Visitor, key: Callable[[int], str]) -> tuple[set[str], set[str], int]:
    """The same question ten times at once: the turns and the answers that came, and how often the model was asked."""
    session, words = await visitor.session(), visitor.words()

    async def once(number: int) -> tuple[str, str]:
        headers = {**EVENTS, "Idempotency-Key": key(number)}
        reply = await visitor.ask("POST", f"/api/sessions/{session}/messages", {"content": words}, **headers)
        assert reply.status == 200, reply.raw
        return reply.headers["X-Lamina-Turn"], text_of(heard(reply.raw))

    got = await asyncio.gather(*(once(number) for number in range(10)))
    mark = MARK.search(words)
    assert mark
    asked: int = visitor.crowd.cluster.counts()["asked"].get(mark[0], 0)
    return {turn for turn, _ in got}, {text for _, text in got}, asked


async def test_R14_one_key_ten_times_at_once_is_one_turn_and_one_call(site: Cluster) -> None:
    async with crowd_of(site) as crowd:
        for trial in range(3 * SOAK):
            visitor = crowd.visitor(trial % USERS)
            key = f"once{visitor.rng.getrandbits(50)}"
            turns, texts, asked = await repeated(visitor, lambda _, key=key: key)
            assert len(turns) == 1
            assert len(texts) == 1
            assert asked == 1
        assert len(crowd.served) == GATEWAYS


async def test_R14_a_client_with_a_new_key_at_each_try_is_found(site: Cluster) -> None:
    async with crowd_of(site) as crowd:
        turns, _, asked = await repeated(crowd.visitor(5), str)
        assert len(turns) == 10
        assert asked == 10


# R9: clients leave, and the model is told


async def alone(visitor: Visitor, wish: str = "") -> str:
    """A single request whose client leaves after a few words; nobody else reads it."""
    body = {"model": "m", "stream": True, "seed": 300, "messages": [{"role": "user", "content": visitor.words()}]}
    headers = {**visitor.key, **({"X-Lamina-On-Leave": wish} if wish else {})}
    async with visitor.crowd.http.post(f"{visitor.front}/v1/chat/completions", json=body, headers=headers) as reply:
        raw, enough = b"", visitor.rng.randrange(1, 2_000)
        async for piece in reply.content.iter_any():
            raw += piece
            if len(raw) >= enough:
                break
        reply.close()
        return reply.headers["X-Lamina-Turn"]


async def given_up(crowd: Crowd, count: int, wish: str = "") -> list[str]:
    """What is wrong after so many clients left through the front. Each answer would take nine seconds."""
    visitors = [crowd.visitor(n % USERS) for n in range(count)]
    before = crowd.cluster.counts()
    turns = await asyncio.gather(*(alone(visitor, wish) for visitor in visitors))
    loop, wrong = asyncio.get_running_loop(), list[str]()
    end = loop.time() + 5  # the model is to hear of it within one second, and this machine may be busy
    while (running := still_running(crowd.cluster)) and loop.time() < end:
        await asyncio.sleep(0.05)
    wrong += [f"the model still answers {running} of {count} that left"] if running else []
    wrong += [] if crowd.cluster.counts()["left"] > before["left"] else ["the model was told of nobody who left"]
    async with open_store(crowd.cluster.where) as store:
        for visitor, turn_id in zip(visitors, turns, strict=True):
            turn = await store.turns.get(name_of(visitor.number), turn_id)
            rows = await store.history.messages(turn.owner, turn.session_id, after=turn.user_seq - 1)
            wrong += [] if turn.state == "interrupted" else [f"turn {turn_id} is {turn.state}"]
            kept = [row.text for row in rows if row.turn_id == turn_id and row.role == "user"]
            wrong += [] if kept and MARK.search(kept[0]) else [f"the question of {turn_id} is lost"]
            await visitor.ask("POST", f"/api/turns/{turn_id}/cancel")
    return wrong


def still_running(site: Cluster) -> int:
    counts = site.counts()
    return counts["began"] - counts["whole"] - counts["left"]


async def test_R9_a_client_that_leaves_the_front_ends_the_call_of_the_model(site: Cluster) -> None:
    async with crowd_of(site) as crowd:
        assert await given_up(crowd, 9 * SOAK) == []


async def test_R9_a_gateway_that_goes_on_for_nobody_is_found(site: Cluster) -> None:
    async with crowd_of(site) as crowd:
        assert len(await given_up(crowd, 2, wish="finish")) >= 3


# The page's cookie


async def test_the_cookie_that_one_gateway_gave_counts_at_all_of_them(site: Cluster) -> None:
    async with crowd_of(site) as crowd:
        async with crowd.http.post(f"{site.front}/api/login", json={"key": site.keys[0]}) as reply:
            assert reply.status == 200
            (name, morsel) = next(iter(reply.cookies.items()))
        for _ in range(2 * GATEWAYS):
            cookie = {"Cookie": f"{name}={morsel.value}"}
            async with crowd.http.get(f"{site.front}/api/me", headers=cookie) as reply:
                assert (reply.status, (await reply.json()).get("user")) == (200, name_of(0))
