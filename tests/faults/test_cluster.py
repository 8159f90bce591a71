"""Three gateways, two workers and PostgreSQL behind nginx: R1, R9, R10, R13 to R15, R20 and I1 hold for all together.

The cluster is of real processes, and is killed in parts under load. `SOAK=10` is the long form: ten times as much.
"""

import asyncio
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
from tests.faults.chats import Ledger, all_final, chat_settings, doubled, problems
from tests.faults.cluster import CONFIG, GATEWAYS, MARK, NGINX, NO_FRONT, USERS, Cluster, cluster, front, name_of
from tests.faults.load import SOAK, Load
from tests.faults.visitors import EVENTS, Crowd, Visitor, grew
from tests.gateway.streams import heard, text_of
from tests.postgres import Server

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


async def test_R10_a_stream_begun_at_one_gateway_goes_on_at_the_others(site: Cluster, load: Load) -> None:
    async with crowd_of(site) as crowd:
        for _ in load.rounds(1, "resumed streams", each=46):
            visitor, turn, whole = crowd.visitor(0), "", ""
            for pieces, count in ((21, 42), (40, 40)):  # with a tool in between, and without
                turn = await long_turn(visitor, pieces)
                told = await asyncio.gather(*(hop(visitor, turn) for _ in range(3)))
                whole = text_of(heard((await visitor.ask("GET", f"/api/turns/{turn}/events")).raw))
                assert whole.count("[") == count
                assert [text for text, _ in told] == [whole] * 3
            for _ in range(40):  # and from any character on
                at = visitor.rng.randrange(len(whole) + 1)
                reply = await visitor.ask("GET", f"/api/turns/{turn}/events", **{"Last-Event-ID": str(at)})
                assert text_of(heard(reply.raw)) == whole[at:], f"from {at} on"
            foreign = await crowd.visitor(1).ask("GET", f"/api/turns/{turn}/events", **{"Last-Event-ID": "3"})
            assert foreign.status == 404
        assert len(crowd.served) == GATEWAYS, "each of them told some of it"
        assert crowd.foreign == []


@pytest.mark.planted("a client that goes on without Last-Event-ID")
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
    await visitor.ask("DELETE", f"/api/sessions/{session}")
    return {turn for turn, _ in got}, {text for _, text in got}, asked


async def test_R14_one_key_ten_times_at_once_is_one_turn_and_one_call(site: Cluster, load: Load) -> None:
    async with crowd_of(site) as crowd:
        for trial in load.rounds(3, "keys sent ten times"):
            visitor = crowd.visitor(trial % USERS)
            key = f"once{visitor.rng.getrandbits(50)}"
            turns, texts, asked = await repeated(visitor, lambda _, key=key: key)
            assert len(turns) == 1
            assert len(texts) == 1
            assert asked == 1
        assert len(crowd.served) == GATEWAYS


@pytest.mark.planted("a new key at each try")
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


async def given_up(crowd: Crowd, count: int, wish: str = "", patience: float = 5.0) -> list[str]:
    """What is wrong after so many clients left through the front. Each answer would take nine seconds."""
    visitors = [crowd.visitor(n % USERS) for n in range(count)]
    before = crowd.cluster.counts()
    turns = await asyncio.gather(*(alone(visitor, wish) for visitor in visitors))
    loop, wrong = asyncio.get_running_loop(), list[str]()
    end = loop.time() + patience  # the model is to hear of it within one second, and this machine may be busy
    while (running := still_running(crowd.cluster)) and loop.time() < end:
        await asyncio.sleep(0.05)
    wrong += [f"the model still answers {running} of {count} that left"] if running else []
    wrong += [] if crowd.cluster.counts()["left"] > before["left"] else ["the model was told of nobody who left"]
    async with open_store(crowd.cluster.where) as store:
        for visitor, turn_id in zip(visitors, turns, strict=True):
            turn = await store.turns.get(name_of(visitor.number), turn_id)
            rows = await store.messages.list(turn.owner, turn.session_id, after=turn.user_seq - 1)
            wrong += [] if turn.state == "interrupted" else [f"turn {turn_id} is {turn.state}"]
            kept = [row.text for row in rows if row.turn_id == turn_id and row.role == "user"]
            wrong += [] if kept and MARK.search(kept[0]) else [f"the question of {turn_id} is lost"]
            await visitor.ask("POST", f"/api/turns/{turn_id}/cancel")
    return wrong


def still_running(site: Cluster) -> int:
    counts = site.counts()
    return counts["began"] - counts["whole"] - counts["left"]


async def test_R9_a_client_that_leaves_the_front_ends_the_call_of_the_model(site: Cluster, load: Load) -> None:
    async with crowd_of(site) as crowd:
        for _ in load.rounds(1, "clients that left the front", each=9):
            assert await given_up(crowd, 9) == []


@pytest.mark.planted("a gateway that goes on for nobody")
async def test_R9_a_gateway_that_goes_on_for_nobody_is_found(site: Cluster) -> None:
    async with crowd_of(site) as crowd:
        assert len(await given_up(crowd, 2, wish="finish", patience=1.0)) >= 3


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


# I1: nobody sees anything of others

LOOKS = (
    "/api/sessions", "/api/sessions/search?q=cat", "/api/sessions/search?q=K0", "/api/memories",
    "/api/memories/search?q=cat%20named", "/api/profile", "/api/templates", "/api/me", "/api/collected",
)  # fmt: skip


async def look_around(visitor: Visitor, sessions: list[str]) -> None:
    """At what is one's own, and at what is not."""
    paths = [visitor.rng.choice(LOOKS)]
    if sessions:
        paths.append(f"/api/sessions/{visitor.rng.choice(sessions)}/messages")
    if visitor.crowd.turns:
        paths.append(
            f"/api/turns/{visitor.rng.choice(visitor.crowd.turns)}/{visitor.rng.choice(['payload', 'receipt'])}"
        )
    for path in paths:
        reply = await visitor.ask("GET", path)
        if reply.status >= 500:
            visitor.crowd.foreign.append(f"{reply.status} at {path}: {reply.raw[:200]!r}")


async def mingle(crowd: Crowd, rounds: int) -> list[str]:
    """Everybody talks and looks around at once, also at what is others'."""
    sessions: list[str] = []

    async def one(number: int) -> None:
        visitor = crowd.visitor(number)
        mine = await visitor.session()
        sessions.append(mine)
        for _ in range(rounds):
            await visitor.say(mine)
            for _ in range(4):
                await look_around(visitor, sessions)

    await asyncio.gather(*(one(number) for number in range(USERS)))
    return [*crowd.foreign, *crowd.cluster.counts()["mixed"]]


async def test_I1_nobody_sees_a_mark_of_another_through_the_front(site: Cluster, load: Load) -> None:
    async with crowd_of(site) as crowd:
        for _ in load.rounds(1, "rounds of six users", each=2):
            assert await mingle(crowd, 2) == []
        assert crowd.own > 20, "they do see their own"
        assert len(crowd.served) == GATEWAYS


@pytest.mark.planted("a front that keeps replies for everybody")
async def test_I1_a_front_that_keeps_replies_for_everybody_is_found(site: Cluster, tmp_path: Path) -> None:
    keeps = "proxy_cache all; proxy_cache_valid 200 1m; proxy_cache_key $uri; proxy_ignore_headers Cache-Control;"
    shared = CONFIG.read_text(encoding="utf-8").replace("proxy_cache off;", keeps).replace("proxy_buffering off;", "")
    shared = shared.replace("upstream lamina", "proxy_cache_path /tmp/kept keys_zone=all:1m;\n  upstream lamina")
    ports = [int(one.url.rpartition(":")[2]) for one in site.gateways]
    with front(tmp_path / "shared", ports, shared) as address:
        async with crowd_of(site, address) as crowd:
            for number in (0, 1):
                visitor = crowd.visitor(number)
                await visitor.say(await visitor.session())
                await visitor.ask("GET", "/api/memories")
                await visitor.ask("GET", "/api/sessions/search?q=cat")
            assert any("saw marks" in one for one in crowd.foreign)


# R1, R13, R15, R20: killed under load


@dataclass
class Aftermath:
    """What the crowd saw, and a copy of the database as it was when everything had come to rest."""

    database: str
    ledger: Ledger
    found: list[str]
    figures: dict[str, int]


async def tab(visitor: Visitor, session: str, stop: asyncio.Event, found: list[str]) -> None:
    """One of several who write into one session, until it is over: what was there stays there."""
    before: Any = []
    while not stop.is_set():
        leaves = visitor.rng.randrange(1, 900) if visitor.rng.random() < 0.2 else None
        await visitor.say(session, leave_after=leaves)
        if visitor.rng.random() < 0.3:
            reply = await visitor.ask("GET", f"/api/sessions/{session}/messages?newest=false&limit=1000")
            rows = reply.json["messages"]
            found += grew(before, rows)
            before = rows


async def trouble(site: Cluster, crowd: Crowd, stop: asyncio.Event, figures: dict[str, int]) -> None:
    """Things are killed one after another, each when so many more acknowledgements have come."""

    ledger = crowd.ledger

    async def more(lines: int) -> None:
        now = ledger.count
        await until(lambda: ledger.count >= now + lines)

    for trial in range(SOAK):
        await more(60)
        site.kill(0)
        figures["gateways killed"] += 1
        await more(60)
        figures["backends ended"] += await asyncio.to_thread(site.terminate_backends)
        await more(60)
        await asyncio.to_thread(site.kill_worker, 0)
        figures["workers killed"] += 1
        await asyncio.to_thread(site.restart, 0)
        await more(60)
        figures["backends ended"] += await asyncio.to_thread(site.terminate_backends)
        await asyncio.to_thread(site.restart, 1)  # in order, as for a new version
        await more(60)
        await until(lambda trial=trial: len(crowd.served) >= GATEWAYS + 2 * (trial + 1))  # the front finds both again
    stop.set()


async def under_load(site: Cluster) -> Aftermath:
    figures = {"gateways killed": 0, "workers killed": 0, "backends ended": 0}
    stop, found = asyncio.Event(), list[str]()
    async with crowd_of(site) as crowd:
        sessions = [await crowd.visitor(number).session() for number in range(USERS)]
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(300 * SOAK):
            for number, session in enumerate(sessions):
                for _ in range(2):
                    tasks.create_task(tab(crowd.visitor(number), session, stop, found))
            tasks.create_task(trouble(site, crowd, stop, figures))
        async with open_store(site.where) as store:
            found += await all_final(store)
        counts = site.counts()
        asked = {found[0] for seen in crowd.ledger.turns.values() for found in MARK.finditer(seen.began["words"])}
        found += [
            f"the model was asked {n} times about {m}" for m, n in counts["asked"].items() if n > 1 and m in asked
        ]
        found += [*crowd.foreign, *counts["mixed"]]
        figures |= {"turns": len(crowd.turns), "acknowledged": crowd.ledger.count, "broken": crowd.broken,
                    "left": len(crowd.left), "gateways": len(crowd.served)}  # fmt: skip
        print(figures)
        return Aftermath(await asyncio.to_thread(site.copy), crowd.ledger, found, figures)


async def missing(where: str, ledger: Ledger) -> list[str]:
    """What was acknowledged and is not in this database, or is there twice."""
    provider = ScriptedProvider([[{"text": "Well."}]], repeat=True)
    async with App.open(where, settings=chat_settings(), provider=provider, work=False) as app:
        return await problems(app, ledger)


@pytest.fixture(scope="module")
def after(site: Cluster) -> Aftermath:
    return asyncio.run(under_load(site))


def database_of(where: str) -> str:
    return where.partition("@/")[2].partition("?")[0]


async def test_R1_R13_R15_R20_what_was_acknowledged_under_kills_is_there_once(
    site: Cluster, after: Aftermath, load: Load
) -> None:
    load.tried(after.figures["turns"], "turns under kills")
    assert after.found == []
    assert await missing(site.copy(database_of(after.database)), after.ledger) == []
    assert after.figures["gateways"] >= GATEWAYS + 2, "those that were started anew served too"
    assert after.figures["broken"] > 0, "it was felt"
    assert after.figures["left"] > 0
    done = site.server.sql("SELECT DISTINCT worker FROM outbox WHERE state = 'done'", database_of(after.database))
    assert {int(name.split(":")[1]) for name in done.splitlines()} & site.worked, "the workers did some of it"


LOSSES = {
    "which is not what": "UPDATE conversation SET content = '' WHERE turn_id = '{turn}' AND role = 'assistant'",
    "the question of turn {turn} is lost": "UPDATE conversation SET content = 'Hm.' WHERE turn_id = '{turn}' "
    "AND role = 'user'",
    "turn {turn} was remembered 0 times": "DELETE FROM memory_index; "
    "DELETE FROM atomic_memory WHERE turn_id = '{turn}'",
    "turn {turn} is held for": "UPDATE turn SET state = 'streaming', lease_until = 9e9 WHERE turn_id = '{turn}'",
}
"""What is said of a loss, and how it is planted."""


@pytest.mark.planted("a lost answer, question and memory, and a turn that hangs")
async def test_R1_R13_R20_planted_losses_are_found(site: Cluster, after: Aftermath) -> None:
    turns = [name for name, seen in after.ledger.turns.items() if seen.ended == "complete" and seen.text]
    where = site.copy(database_of(after.database))
    for turn, change in zip(turns, LOSSES.values(), strict=False):
        site.server.sql(change.format(turn=turn), database_of(where))
    found = await missing(where, after.ledger)
    for turn, said in zip(turns, LOSSES, strict=False):
        assert any(turn in one and said.format(turn=turn) in one for one in found), (said, found)


@pytest.mark.planted("a client that asks again without a key")
async def test_R1_R15_a_client_that_asks_again_without_a_key_is_found(site: Cluster) -> None:
    async with crowd_of(site) as crowd:
        visitor = crowd.visitor(2)
        session, words = await visitor.session(), visitor.words()
        for _ in range(2):
            reply = await visitor.ask("POST", f"/api/sessions/{session}/messages", {"content": words}, **EVENTS)
            assert reply.status == 200
        rows = (await visitor.ask("GET", f"/api/sessions/{session}/messages")).json["messages"]
        assert [row["text"] for row in rows].count(words) == 2
        async with open_store(site.where) as store:
            stored = await store.messages.list(name_of(2), session)
            assert any("is there 2 times" in one for one in doubled(stored))
        assert grew(rows, rows[2:]), "and one that puts a shorter history in its place"
        assert (await visitor.ask("DELETE", f"/api/sessions/{session}")).status < 300
