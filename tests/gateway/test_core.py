"""The gateway's core: routes, credentials, errors, bodies, limits, streams, counters."""

import asyncio
import io
import json
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lamina.app.app import App
from lamina.errors import NotFoundError, SettingsError, StoreError
from lamina.gateway.handlers import POLICY, SCOPES, Principal, Reply, Request, Route
from lamina.gateway.limits import GatewayOptions, UsageLimits, day_of
from lamina.gateway.metrics import RequestLog
from lamina.gateway.server import is_loopback, listen_place
from lamina.store.store import open_store
from tests.gateway.raw import DISHONEST_BODIES, reply, request, say
from tests.gateway.serving import TOKEN, Site, running

OBJECT = dict[str, Any]
SECRET = "words of somebody"


async def hello(app: App, request: Request) -> Reply:
    return Reply({"user": request.user, "body": request.body, "params": dict(request.params)})


async def broken(app: App, request: Request) -> Reply:
    raise KeyError(SECRET)


async def missing(app: App, request: Request) -> Reply:
    raise NotFoundError(f"no session {request.params['thing_id']}")


async def full(app: App, request: Request) -> Reply:
    raise StoreError("the disk of /srv/secret is full")


async def spend(app: App, request: Request) -> Reply:
    request.gateway.limits.add_tokens(request.principal, 60, 40)
    return Reply({})


async def squander(app: App, request: Request) -> Reply:
    request.gateway.limits.add_tokens(request.principal, 10**25, 0)
    return Reply({})


async def unwritable(app: App, request: Request) -> Reply:
    return Reply({"number": float("nan")})


async def turn(app: App, request: Request) -> Reply:
    session = await app.new_session(request.user)
    began = await app.start(request.user, session.session_id, "hello")
    request.watch(began)
    request.watch(began)
    ended = await began.wait()
    return Reply({"state": ended.state}, headers={"X-Lamina-Turn": ended.turn_id})


LEFT: list[str] = []


async def endless(app: App, request: Request) -> Reply:
    async def pieces() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"data: x\n\n"
                await asyncio.sleep(0.01)
        finally:
            LEFT.append(request.id)

    return Reply(pieces(), media="text/event-stream")


async def pieces(app: App, request: Request) -> Reply:
    async def some() -> AsyncIterator[bytes]:
        yield b"one "
        await asyncio.sleep(0)
        yield b"two"

    return Reply(some(), media="text/plain")


async def long(app: App, request: Request) -> Reply:
    return Reply("x" * 9_000_000)


async def slow(app: App, request: Request) -> Reply:
    await asyncio.sleep(0.8)
    return Reply({})


async def quiet(app: App, request: Request) -> Reply:
    async def some() -> AsyncIterator[bytes]:
        yield b"early "
        await asyncio.sleep(0.8)
        yield b"late"

    return Reply(some(), media="text/event-stream")


ROUTES = (
    Route("GET", "/api/long", long, "a long answer", "read"),
    Route("GET", "/api/slow", slow, "a slow answer", "read"),
    Route("GET", "/api/quiet", quiet, "a slow stream", "read", media="text/event-stream"),
    Route("GET", "/api/hello", hello, "say hello", "read"),
    Route("POST", "/api/hello", hello, "say hello", "write", OBJECT),
    Route("GET", "/api/things/{thing_id}", hello, "a thing", "read"),
    Route("GET", "/api/things/{thing_id}/missing", missing, "none", "read"),
    Route("POST", "/v1/messages", hello, "a thing", "chat", OBJECT, form="anthropic"),
    Route("POST", "/v1/chat/completions", spend, "spend", "chat", OBJECT, form="openai"),
    Route("POST", "/v1/squander", squander, "spend what nobody has", "chat", OBJECT, form="openai"),
    Route("GET", "/api/unwritable", unwritable, "a value that is no JSON", "read"),
    Route("POST", "/api/turn", turn, "a turn", "chat"),
    Route("GET", "/api/broken", broken, "a mistake", "read"),
    Route("GET", "/api/full", full, "a full disk", "read"),
    Route("GET", "/api/endless", endless, "a stream", "read", media="text/event-stream"),
    Route("GET", "/api/pieces", pieces, "a stream", "read", media="text/plain"),
)


async def test_a_gateway_answers_and_says_who_asks(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        assert (await site.get("/api/health", key="")).json == {"status": "ok"}
        assert (await site.get("/api/hello")).json["user"] == "ann"
        assert (await site.get("/api/things/12")).json["params"] == {"thing_id": "12"}
        bo = await site.key("bo", "read")
        assert (await site.get("/api/hello", key=bo)).json["user"] == "bo"
        assert (await site.get("/api/hello", key="", headers={"x-api-key": bo})).json["user"] == "bo"
        assert (await site.post("/api/hello", {"a": [1, "é"]})).json["body"] == {"a": [1, "é"]}
        denied = await site.post("/api/hello", {}, key=bo)
        assert (denied.status, denied.json["error"]["type"]) == (403, "scope")
        assert (await site.ask("HEAD", "/api/hello")).raw == b""
        wrong = await site.ask("DELETE", "/api/hello")
        assert (wrong.status, wrong.headers["Allow"]) == (405, "GET, HEAD, POST")
        assert (await site.get("/nowhere")).status == 404


async def test_a_reply_that_cannot_be_written_is_told_and_logged_as_what_it_is(tmp_path: Path) -> None:
    sink = io.StringIO()
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        site.gateway.log = RequestLog("info", sink)
        reply = await site.get("/api/unwritable")
        assert (reply.status, reply.json["error"]["type"]) == (500, "internal")
    (line,) = [json.loads(line) for line in sink.getvalue().splitlines() if "unwritable" in line]
    assert (line["status"], line["error"].partition(" ")[0]) == (500, "ValueError")


async def test_a_key_whose_use_cannot_be_written_holds_up_no_other(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        keys = {name: await site.key(name) for name in ("bo", "cy")}
        assert (await site.post("/v1/squander", {}, key=keys["bo"])).status == 200
        for _ in range(2):
            assert (await site.post("/v1/chat/completions", {}, key=keys["cy"])).status == 200
            await site.gateway.limits.flush(everything=True)
        (key,) = await site.app.store.keys.list("cy")
        found = await site.app.store.keys.find(key.key_id, day_of(time.time()))
        assert found is not None
        assert found[2] == 200


async def test_use_that_is_being_written_when_the_gateway_ends_counts_once(tmp_path: Path) -> None:
    async with open_store(tmp_path / "s.db") as store:
        key = (await store.keys.add("bo", "test", scopes=SCOPES))[0]
        stored, go_on = asyncio.Event(), asyncio.Event()

        class Late:
            """The store's keys, whose first answer comes late: what it tells of is stored by then."""

            async def spend(self, *names: str, requests: int, tokens: int) -> int:
                spent = await store.keys.spend(*names, requests=requests, tokens=tokens)
                stored.set()
                await go_on.wait()
                return spent

        app: Any = SimpleNamespace(store=SimpleNamespace(keys=Late()))
        limits = UsageLimits(app, GatewayOptions())
        limits.add_tokens(Principal("bo", key.key_id, frozenset(SCOPES)), 100, 20)
        looking = asyncio.create_task(limits.run())
        await stored.wait()
        looking.cancel()
        await asyncio.wait([looking])
        go_on.set()
        await limits.flush(everything=True)
        found = await store.keys.find(key.key_id, day_of(time.time()))
        assert found is not None
        assert found[2] == 120


async def test_every_reply_has_the_headers_that_keep_a_browser_honest(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        for path in ("/api/hello", "/nowhere", "/api/broken", "/api/pieces", "/?token=x"):
            reply = await site.get(path)
            assert reply.headers["Content-Security-Policy"] == POLICY
            assert reply.headers["X-Content-Type-Options"] == "nosniff"
            assert reply.headers["Referrer-Policy"] == "no-referrer"
            assert reply.headers["Cross-Origin-Opener-Policy"] == "same-origin"
            assert reply.headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert reply.headers["Cache-Control"] == "no-store"
            assert len(reply.headers["X-Request-Id"]) == 16


async def test_errors_come_in_the_form_of_the_route_and_tell_nothing_of_our_side(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        failed = await site.get("/api/broken")
        assert failed.status == 500
        assert SECRET.encode() not in failed.raw
        assert failed.headers["X-Request-Id"] in failed.json["error"]["hint"]
        busy = await site.get("/api/full")
        assert busy.status == 503
        assert b"/srv" not in busy.raw
        none = await site.get("/api/things/12/missing")
        nowhere = await site.get("/api/nowhere")
        assert (none.status, none.raw) == (404, nowhere.raw)
        assert "check the path" in nowhere.json["error"]["hint"]  # N25: it may be no route
        assert b"12" not in none.raw
        anthropic = await site.post("/v1/messages", {}, key="")
        assert anthropic.headers["WWW-Authenticate"] == "Bearer"
        assert anthropic.json["type"] == "error"
        assert anthropic.json["error"]["type"] == "authentication_error"
        openai = await site.post("/v1/chat/completions", {}, key="")
        assert set(openai.json["error"]) == {"message", "type", "param", "code"}
        assert (await site.get("/v1/nothing")).json["error"]["type"] == "not_found_error"


async def test_G2_a_body_that_is_no_honest_JSON_is_refused_with_its_place(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        sent = {"Content-Type": "application/json"}
        for data, says in [(b"{", "line 1, column 2"), (b"\xff", "not UTF-8: byte 0 is 0xff"), *DISHONEST_BODIES]:
            reply = await site.post("/api/hello", data=data, headers=sent)
            assert (reply.status, says in reply.json["error"]["message"]) == (400, True), (data[:20], reply.raw)
        deep = b'{"a": ' + b"[" * 63 + b"]" * 63 + b', "b": "\\ud83d\\ude00"}'
        assert (await site.post("/api/hello", data=deep, headers=sent)).status == 200
        assert (await site.post("/api/hello", data=b"{}", headers={"Content-Type": "text/plain"})).status == 415


async def test_A18_a_compressed_body_is_refused_as_such(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        sent = {"Content-Type": "application/json"}
        for coding, status in (("gzip", 415), ("br", 415), ("gzip, identity", 415), ("identity", 200), ("", 200)):
            got = await site.post("/api/hello", data=b"{}", headers={**sent, "Content-Encoding": coding})
            assert got.status == status, (coding, got.raw)
            if status == 415:
                assert got.json["error"]["hint"] == "send it without compression"


async def test_G2_a_body_over_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    options = GatewayOptions(log="off", body_limit=10_000)
    async with running(tmp_path / "s.db", routes=ROUTES, options=options) as site:
        key = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        told = request("POST", "/api/hello", {**key, "Content-Length": "10001"}, port=site.port)
        assert (await say(site.port, told))[0] == 413  # not a byte of the body was sent
        asked = request("POST", "/api/hello", {**key, "Content-Length": "9", "Expect": "100-continue"}, port=site.port)
        assert (await say(site.port, asked))[0] == 100
        chunked = request("POST", "/api/hello", {**key, "Transfer-Encoding": "chunked"}, port=site.port)
        pieces = (b"1000\r\n" + b" " * 4096 + b"\r\n") * 3
        assert (await say(site.port, chunked + pieces))[0] == 413
        on = request("POST", "/api/hello", key, b" " * 5_000_000, port=site.port)
        assert (await say(site.port, on))[0] == 413  # a client that sends on hears it
        assert (await site.post("/api/hello", {"a": "x" * 9_000})).status == 200


async def test_many_long_bodies_at_once_are_bounded_and_strangers_send_little(tmp_path: Path) -> None:
    options = GatewayOptions(log="off", bodies_limit=300_000, open_body_limit=1_000)
    async with running(tmp_path / "s.db", routes=ROUTES, options=options) as site:
        given = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", "Content-Length": "250000"}
        held = []
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
            writer.write(request("POST", "/api/hello", given, port=site.port) + b"[" + b" " * 200_000)
            held.append((reader, writer))
        statuses = [asyncio.create_task(reply(reader)) for reader, _ in held]
        done, waiting = await asyncio.wait(statuses, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result()[0] for task in done] == [503]
        for task, (_, writer) in zip(statuses, held, strict=True):
            if task in waiting:
                writer.write(b" " * 49_998 + b"]")
                assert (await task)[0] in (200, 400)
            writer.close()
        assert (await site.post("/api/login", {"key": "x" * 2_000}, key="")).status == 413


async def test_a_link_elsewhere_logs_nobody_in(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        cookie, eve = await cookie_of(site), await site.key("eve")
        for word in ("cross-site", "same-site", "anything"):
            for inside in (cookie, {}):  # a browser withholds the cookie of whoever is in from such a request
                linked = await site.get(f"/?token={eve}", key="", headers={**inside, "Sec-Fetch-Site": word})
                assert (linked.status, linked.headers["Location"], linked.cookies) == (303, "/", {})
        for word in ("none", "same-origin"):
            typed = await site.get(f"/?token={eve}", key="", headers={**cookie, "Sec-Fetch-Site": word})
            assert typed.cookies


async def test_a_gateway_that_ends_begins_nothing_new_and_lets_streams_end(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        site.gateway.ending = True
        refused = await site.get("/api/hello")
        assert (refused.status, refused.json["error"]["type"]) == (503, "ending")


async def test_HEAD_of_a_stream_is_its_headers_alone(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        LEFT.clear()
        headed = await site.ask("HEAD", "/api/endless")
        assert (headed.status, headed.raw, headed.headers["Content-Type"]) == (200, b"", "text/event-stream")


async def test_headers_over_the_limit_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        for headers in ({"X": "x" * 33_000}, {f"X{n}": "x" for n in range(120)}):
            assert (await say(site.port, request("GET", "/api/hello", headers, port=site.port)))[0] == 431
        assert (await say(site.port, request("GET", f"/api/hello?{'x' * 33_000}", port=site.port)))[0] == 431
        begun = b"GET / HTTP/1.1\r\nX: " + b"x" * 40_000  # and no end of it
        assert (await say(site.port, begun))[0] == 431
        status, headers, body = await say(site.port, b"\x16\x03\x01\x02\x00")
        assert (status, json.loads(body)["error"]["type"]) == (400, "connection")
        assert headers["content-security-policy"] == POLICY


async def test_fields_behind_a_chunked_body_are_no_headers(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        given = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
        known = {**given, "Authorization": f"Bearer {TOKEN}"}
        behind = f"2\r\n{{}}\r\n0\r\nAuthorization: Bearer {TOKEN}\r\nHost: evil.example\r\n\r\n".encode()
        late = request("POST", "/api/hello", given, port=site.port)
        assert (await say(site.port, late + behind))[0] == 401
        assert (await say(site.port, request("POST", "/api/hello", known, port=site.port) + behind))[0] == 200
        nowhere = request("POST", "/api/hello", known).replace(b"Host: 127.0.0.1:0\r\n", b"")
        assert (await say(site.port, nowhere + b"2\r\n{}\r\n0\r\nHost: 127.0.0.1\r\n\r\n"))[0] != 200


@pytest.mark.parametrize("piece", [b"a: b\r\n" * 500, b"x" * 3_000], ids=["many fields", "one long field"])
async def test_fields_behind_a_chunked_body_are_as_limited_as_headers(tmp_path: Path, piece: bytes) -> None:
    patient = GatewayOptions(log="off", receive_seconds=600)  # it is no deadline that ends this
    async with running(tmp_path / "s.db", routes=ROUTES, options=patient) as site:
        given = {"Content-Type": "application/json", "Transfer-Encoding": "chunked", "Authorization": f"Bearer {TOKEN}"}
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(request("POST", "/api/hello", given, port=site.port) + b"2\r\n{}\r\n0\r\n")
        if piece.startswith(b"x"):
            writer.write(b"X: ")
        answer = asyncio.create_task(reply(reader))
        for _ in range(100):
            writer.write(piece)
            await asyncio.sleep(0)
        assert (await answer)[0] in (0, 431)  # the bytes that nobody reads may reset the connection
        writer.close()


async def test_a_body_in_many_small_chunks_is_taken(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        given = {"Content-Type": "application/json", "Transfer-Encoding": "chunked", "Authorization": f"Bearer {TOKEN}"}
        body = b"1\r\n{\r\n" + b"1\r\n \r\n" * 40_000 + b"1\r\n}\r\n0\r\n\r\n"
        assert (await say(site.port, request("POST", "/api/hello", given, port=site.port) + body))[0] == 200


async def test_deadlines_are_for_clients_and_never_for_answers(tmp_path: Path) -> None:
    options = GatewayOptions(log="off", receive_seconds=0.3, idle_seconds=0.3)
    async with running(tmp_path / "s.db", routes=ROUTES, options=options) as site:
        given = {"Authorization": f"Bearer {TOKEN}"}
        asked = request("GET", "/api/slow", given, port=site.port)
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(asked + asked)  # the second is answered after the first, which takes longer than any deadline
        assert [(await reply(reader))[0] for _ in range(2)] == [200, 200]
        assert await reader.read() == b""  # and then nothing is asked any more
        writer.close()
        stream, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(request("GET", "/api/quiet", given, port=site.port))
        assert b"late" in await stream.readuntil(b"late")
        writer.close()


HALF = b"GET /api/health HTTP/1.1\r\nHost: "
"""A request that is under way."""
STATES = {"answered": 0, "incomplete": 0, "idle": 0, "busy": 0}
LIMITED = [GatewayOptions(log="off", connections=5), GatewayOptions(log="off", address_connections=5)]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def held(site: Site, count: int, state: str) -> list[Connection]:
    """So many connections in this state, each known to the gateway before the next is made; `half a body` is one of
    the ways to be incomplete."""
    key = {"Authorization": f"Bearer {TOKEN}"}
    sent = {
        "incomplete": HALF,
        "idle": request("GET", "/api/health", port=site.port),
        "answered": request("POST", "/api/hello", {"Content-Length": "9"}, port=site.port),
        "half a body": request("POST", "/api/hello", {**key, "Content-Length": "9"}, port=site.port),
        "busy": request("GET", "/api/endless", key, port=site.port),
    }
    made: list[Connection] = []
    data, state = sent[state], "incomplete" if state == "half a body" else state
    for _ in range(count):
        before = states(site)[state] if state != "idle" else -1
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(data)
        if state == "idle":
            assert (await reply(reader))[0] == 200
        async with asyncio.timeout(20):
            while states(site)[state] <= before:
                await asyncio.sleep(0.01)
        made.append((reader, writer))
    return made


def states(site: Site) -> dict[str, int]:
    """How many connections are in each state."""
    every: list[Any] = list(site.server.server_state.connections)
    return {state: sum(one.state == state and not one.left for one in every) for state in STATES}


async def health(site: Site) -> int:
    """The status for somebody new, whose connection is gone when this returns."""
    status = (await say(site.port, request("GET", "/api/health", port=site.port)))[0]
    async with asyncio.timeout(20):
        while sum(states(site).values()) >= 5 and status == 200:
            await asyncio.sleep(0.01)
    return status


def close_all(connections: list[Connection]) -> None:
    for _, writer in connections:
        writer.close()


@pytest.mark.parametrize("options", LIMITED)
async def test_connections_over_the_limit_hear_503(tmp_path: Path, options: GatewayOptions) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES, options=options) as site:
        busy = await held(site, 5, "busy")
        assert await health(site) == 503
        busy[0][1].close()
        await busy[0][1].wait_closed()
        while len(site.server.server_state.connections) > 4:
            await asyncio.sleep(0.01)
        assert await health(site) == 200
        close_all(busy[1:])


@pytest.mark.parametrize("options", LIMITED)
async def test_connections_that_only_wait_make_room_for_new_ones(tmp_path: Path, options: GatewayOptions) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES, options=options) as site:
        idle = await held(site, 4, "idle")
        busy = await held(site, 1, "busy")
        newer = await held(site, 2, "idle")
        assert [await reader.read() for reader, _ in idle[:2]] == [b"", b""]  # the two that were idle longest
        for reader, writer in (*idle[2:], *newer):
            writer.write(request("GET", "/api/health", port=site.port))
            assert (await reply(reader))[0] == 200
        assert states(site)["busy"] == 1
        close_all([*idle, *busy, *newer])


@pytest.mark.parametrize("options", LIMITED)
async def test_A7_what_is_answered_gives_way_first_then_what_is_incomplete_then_what_is_idle(
    tmp_path: Path, options: GatewayOptions
) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES, options=options) as site:
        busy = await held(site, 1, "busy")
        idle = await held(site, 1, "idle")
        slow = await held(site, 1, "half a body")
        half = await held(site, 1, "incomplete")
        answered = await held(site, 1, "answered")
        left: list[dict[str, int]] = []
        for _ in range(4):
            await asyncio.sleep(0.15)  # a request may take so long before it is slow
            busy += await held(site, 1, "busy")
            left.append(states(site))
        assert [(one["answered"], one["incomplete"], one["idle"]) for one in left] == [
            (0, 2, 1), (0, 1, 1), (0, 0, 1), (0, 0, 0),
        ]  # fmt: skip
        assert (await reply(answered[0][0]))[0] == 401
        assert (await reply(slow[0][0]))[0] == 0  # the one that was incomplete for longer
        assert (await reply(half[0][0]))[0] == 408
        assert await idle[0][0].read() == b""
        close_all([*slow, *idle, *busy, *half, *answered])


async def test_a_connection_has_few_requests_that_wait(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        one = request("GET", "/api/health", port=site.port)
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(one * 16)
        assert [(await reply(reader))[0] for _ in range(16)] == [200] * 16
        writer.write(one * 2_000)
        assert (await reply(reader))[0] == 503
        writer.close()


async def test_a_key_has_so_many_open_streams(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES, options=GatewayOptions(log="off", streams=2)) as site:
        bo = await site.key("bo")
        asked = request("GET", "/api/endless", {"Authorization": f"Bearer {bo}"}, port=site.port)
        streams = [await asyncio.open_connection("127.0.0.1", site.port) for _ in range(2)]
        for reader, writer in streams:
            writer.write(asked)
            await reader.readuntil(b"data: x")
        over = await site.get("/api/endless", key=bo)
        assert (over.status, over.headers["Retry-After"]) == (429, "1")
        assert (await site.get("/api/hello", key=bo)).status == 200
        streams[0][1].close()
        while site.gateway.metrics.streams > 1:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(asked)
        assert await reader.readuntil(b"data: x")
        for each in (streams[1][1], writer):
            each.close()


async def test_a_stream_ends_when_its_key_is_revoked_and_others_go_on(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES, options=GatewayOptions(log="off", guesses=1)) as site:
        bo, eve = await site.key("bo"), await site.key("eve")
        LEFT.clear()
        opened = []
        for key in (bo, eve):
            reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
            writer.write(request("GET", "/api/endless", {"Authorization": f"Bearer {key}"}, port=site.port))
            await reader.readuntil(b"data: x")
            opened.append((reader, writer))
        await site.app.store.keys.revoke("bo", bo.split("_")[1])
        async with asyncio.timeout(30):
            while chunk := await opened[0][0].read(65_536):
                assert not chunk.endswith(b"0\r\n\r\n")  # it is no whole reply
        assert len(LEFT) == 1
        await opened[1][0].readuntil(b"data: x")
        assert site.gateway.metrics.streams == 1
        assert (await site.get("/api/hello", key=eve)).status == 200  # and it was no guess
        for _, writer in opened:
            writer.close()


async def test_a_user_has_so_many_turns_at_once(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def waits(app: App, request: Request) -> Reply:
        await go.wait()
        return await turn(app, request)

    routes = (Route("POST", "/api/turn", waits, "a turn", "chat"), Route("POST", "/api/now", turn, "a turn", "chat"))
    async with running(tmp_path / "s.db", routes=routes, options=GatewayOptions(log="off", turns=2)) as site:
        bo, eve = await site.key("bo"), await site.key("eve")
        begun = [asyncio.create_task(site.post("/api/turn", key=bo)) for _ in range(5)]
        over, _ = await asyncio.wait(begun[:], return_when=asyncio.FIRST_COMPLETED)
        while len(over) < 3:
            over, _ = await asyncio.wait(begun, timeout=0.01)
        assert {(task.result().status, task.result().headers["Retry-After"]) for task in over} == {(429, "1")}
        assert (await site.post("/api/now", key=bo)).status == 429
        assert (await site.post("/api/now", key=eve)).status == 200
        go.set()
        assert sorted(one.status for one in await asyncio.gather(*begun)) == [200, 200, 429, 429, 429]
        for _ in range(4):
            assert (await site.post("/api/now", key=bo)).status == 200


SHORTENED = f"['{'x' * 57}…"
"""As much of a wrong body as its error repeats."""


async def test_a_long_body_is_read_beside_the_loop_and_checked_all_the_same(tmp_path: Path) -> None:
    threads: list[str] = []

    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        compiled, _ = site.gateway.routes.find("POST", "/api/hello")
        read_body = compiled.read_body
        assert read_body is not None

        def check(value: object) -> object:
            threads.append(threading.current_thread().name)
            return read_body(value)

        compiled.read_body = check
        assert (await site.post("/api/hello", {"a": "x" * 1_000})).status == 200
        assert (await site.post("/api/hello", {"a": "x" * 1_000_000})).json["body"] == {"a": "x" * 1_000_000}
        assert (await site.post("/api/hello", ["x" * 1_000_000])).json["error"] == {
            "message": f"the body is {SHORTENED}, expected an object",
            "hint": "GET /api/openapi.json says what each route takes",
            "type": "invalid_request",
            "code": "body.wrong_value",
            "values": {"where": {"code": "body.name"}, "value": SHORTENED, "wanted": {"code": "schema.object"}},
            "next": {
                "code": "body.see_document", "values": {}, "text": "GET /api/openapi.json says what each route takes",
            },
        }  # fmt: skip
        main = threading.main_thread().name
        assert [name == main for name in threads] == [True, False, False]
        given = {"Content-Type": "application/json"}
        assert (await site.post("/api/hello", data=b"[" + b" " * 1_000_000, headers=given)).status == 400


async def test_long_replies_that_nobody_reads_are_bounded(tmp_path: Path) -> None:
    options = GatewayOptions(log="off", replies_limit=20_000_000)
    async with running(tmp_path / "s.db", routes=ROUTES, options=options) as site:
        asked = request("GET", "/api/long", {"Authorization": f"Bearer {TOKEN}"}, port=site.port)
        unread = [await asyncio.open_connection("127.0.0.1", site.port, limit=1_024) for _ in range(2)]
        for reader, writer in unread:
            writer.write(asked)
            await reader.readuntil(b"content-length: 9000002\r\n")
        assert (await site.get("/api/long")).status == 503
        assert (await site.get("/api/hello")).status == 200
        for _, writer in unread:
            writer.close()
        while (whole := await site.get("/api/long")).status == 503:
            await asyncio.sleep(0.01)
        assert whole.raw == b'"' + b"x" * 9_000_000 + b'"'


async def test_a_stream_ends_when_its_reader_leaves(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        assert (await site.get("/api/pieces")).raw == b"one two"
        LEFT.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(request("GET", "/api/endless", {"Authorization": f"Bearer {TOKEN}"}, port=site.port))
        await reader.readuntil(b"data: x")
        assert site.gateway.metrics.streams == 1
        writer.close()
        while not LEFT:
            await asyncio.sleep(0.01)
        assert site.gateway.metrics.streams == 0


async def cookie_of(site: Site) -> dict[str, str]:
    opened = await site.get(f"/?token={TOKEN}", key="")
    assert (opened.status, opened.headers["Location"]) == (303, "/")
    name = f"lamina_{site.port}"
    for mark in ("HttpOnly", "SameSite=Strict", "Path=/"):
        assert mark in opened.headers["Set-Cookie"]
    assert TOKEN not in opened.headers["Set-Cookie"]
    return {"Cookie": f"{name}={opened.cookies[name]}"}


async def test_the_opened_address_gives_a_cookie_and_the_cookie_opens(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        cookie = await cookie_of(site)
        assert (await site.get("/api/hello", key="", headers=cookie)).json["user"] == "ann"
        wrong = await site.get("/?token=lam_loopback_wrong", key="")
        assert (wrong.status, wrong.cookies, wrong.headers["Location"]) == (303, {}, "/#/login/wrong")
        bo = await site.key("bo")
        login = await site.post("/api/login", {"key": bo}, key="")
        assert login.json == {"user": "bo", "scopes": ["chat", "metrics", "read", "write"]}
        name = f"lamina_{site.port}"
        theirs = {"Cookie": f"{name}={login.cookies[name]}"}
        assert (await site.get("/api/hello", key="", headers=theirs)).json["user"] == "bo"
        logout = await site.post("/api/logout", key="")
        assert "Max-Age=0" in logout.headers["Set-Cookie"]
        assert (await site.post("/api/login", {"key": "x"}, key="")).status == 401


async def test_several_credentials_that_differ_are_none(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        bo = await site.key("bo")
        cookie = await cookie_of(site)
        assert (await site.get("/api/hello", key=bo, headers={"x-api-key": bo})).status == 200
        assert (await site.get("/api/hello", key=TOKEN, headers=cookie)).status == 200
        for headers in ({"x-api-key": TOKEN}, cookie):
            assert (await site.get("/api/hello", key=bo, headers=headers)).status == 401
        twice = request("GET", "/api/hello", {"Authorization": f"Bearer {bo}"}, port=site.port)
        twice = twice.replace(b"\r\n\r\n", f"\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        assert (await say(site.port, twice))[0] == 400
        basic = {"Authorization": "Basic YW5uOnB3"}
        assert (await site.get("/api/hello", key="", headers=basic)).status == 401


async def test_a_revoked_or_expired_key_opens_nothing_once_it_is_no_longer_believed(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        text = await site.key("bo")
        key_id = text.split("_")[1]
        assert (await site.get("/api/hello", key=text)).status == 200
        await site.app.store.keys.revoke("bo", key_id)
        seconds = 0.0
        while (await site.get("/api/hello", key=text)).status == 200:
            await asyncio.sleep(0.1)
            seconds += 0.1
            assert seconds < 5
        old = await site.key("bo", expires=1.0)
        assert (await site.get("/api/hello", key=old)).status == 401


async def test_wrong_keys_from_one_address_are_soon_not_looked_at_and_right_ones_go_on(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES, options=GatewayOptions(log="off", guesses=5)) as site:
        bo = await site.key("bo")
        assert (await site.get("/api/hello", key=bo)).status == 200
        commits = -1
        while commits != site.app.store.commits:  # the use of a right key is stored a little later
            commits = site.app.store.commits
            await asyncio.sleep(0.5)
        wrong = [(await site.get("/api/hello", key=f"lam_{n:016x}_x")).status for n in range(8)]
        assert wrong == [401] * 5 + [429] * 3
        assert site.app.store.commits == commits, "guessing a key holds up no writer"
        limited = await site.get("/api/hello", key="lam_9_x")
        assert int(limited.headers["Retry-After"]) > 0
        assert (await site.get("/api/hello", key=bo)).status == 200
        new = await site.key("eve")
        assert (await site.get("/api/hello", key=new)).status == 200  # all behind a front have its address


async def test_a_key_has_so_many_requests_a_minute(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        bo, eve = await site.key("bo", rate=3), await site.key("eve", rate=3)
        assert [(await site.get("/api/hello", key=bo)).status for _ in range(5)] == [200] * 3 + [429] * 2
        limited = await site.get("/api/hello", key=bo)
        assert 0 < int(limited.headers["Retry-After"]) <= 20
        assert (await site.get("/api/hello", key=eve)).status == 200


async def test_a_key_has_so_many_tokens_a_day_and_restarts_do_not_forget(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        bo = await site.key("bo", tokens=250)
        statuses = [(await site.post("/v1/chat/completions", {}, key=bo)).status for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        over = await site.post("/v1/chat/completions", {}, key=bo)
        assert 0 < int(over.headers["Retry-After"]) <= 86_400
        assert (await site.get("/api/hello", key=bo)).status == 200  # looking costs no tokens
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        assert (await site.post("/v1/chat/completions", {}, key=bo)).status == 429
        (key,) = await site.app.store.keys.list("bo")
        assert key.used is not None


async def test_gateways_over_one_store_learn_of_each_others_tokens(where: str) -> None:
    if not where.startswith("postgresql"):
        return  # SQLite has one process
    async with running(where, routes=ROUTES) as one, running(where, routes=ROUTES) as two:
        bo = await one.key("bo", tokens=250)
        assert (await two.post("/v1/chat/completions", {}, key=bo)).status == 200
        for _ in range(2):
            assert (await one.post("/v1/chat/completions", {}, key=bo)).status == 200
        await one.gateway.limits.flush()
        await two.gateway.limits.flush()
        assert (await two.post("/v1/chat/completions", {}, key=bo)).status == 429


async def test_what_a_turn_used_counts_once_and_is_in_the_metrics(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        bo = await site.key("bo", tokens=10)
        done = await site.post("/api/turn", key=bo)
        assert (done.status, done.json) == (200, {"state": "complete"})
        assert (await site.post("/api/turn", key=bo)).status == 429  # 7 + 3 tokens
        text = (await site.get("/metrics")).raw.decode()
        assert 'lamina_requests_total{method="POST",route="/api/turn",status="200"} 1' in text
        assert 'lamina_turns_total{state="complete"} 1' in text
        assert 'lamina_tokens_total{kind="prompt"} 7' in text
        assert 'lamina_tokens_total{kind="completion"} 3' in text
        assert "lamina_outbox_waiting " in text
        assert 'lamina_request_seconds_bucket{method="POST",route="/api/turn",le="+Inf"} 2' in text
        assert (await site.get("/metrics", key=await site.key("eve", "read"))).status == 403


@pytest.mark.parametrize("text", ["8765", "127.0.0.1", "127.0.0.1:x", "::1:80", "1:70000", "[::1:8"])
def test_a_place_to_listen_at_has_an_address_and_a_port(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        listen_place(text)
    assert (caught.value.code, caught.value.phrase.values["value"]) == ("gateway.bad_listen", repr(text))


def test_only_this_machines_own_addresses_are_loopback() -> None:
    assert listen_place("[::1]:0") == ("[::1]", 0)
    assert all(is_loopback(address) for address in ("127.0.0.1", "127.8.9.1", "localhost", "[::1]"))
    assert not any(is_loopback(a) for a in ("0.0.0.0", "[::]", "10.0.0.1", "127.evil.com", "127.0.0.1.evil.com", ""))


async def test_many_people_with_right_keys_come_in_at_once_from_one_address(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", options=GatewayOptions(log="off", guesses=5)) as site:
        keys = [await site.key(f"user{n}") for n in range(60)]
        replies = await asyncio.gather(*(site.get("/api/me", key=key) for key in keys))
        assert [reply.json["user"] for reply in replies] == [f"user{n}" for n in range(60)]
