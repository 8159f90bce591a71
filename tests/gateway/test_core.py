"""The gateway's core: routes, credentials, errors, bodies, limits, streams, counters."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lamina.app.app import App
from lamina.errors import NotFoundError, StoreError
from lamina.gateway.http import Reply, Request, Route
from lamina.gateway.options import Options, is_loopback, listen_place
from lamina.gateway.replies import POLICY
from tests.gateway.raw import reply, request, say
from tests.gateway.serving import TOKEN, Site, running

OBJECT = {"type": "object"}
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
    request.spent(60, 40)
    return Reply({})


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
    Route("GET", "/api/slow", slow, "a slow answer", "read"),
    Route("GET", "/api/quiet", quiet, "a slow stream", "read", media="text/event-stream"),
    Route("GET", "/api/hello", hello, "say hello", "read"),
    Route("POST", "/api/hello", hello, "say hello", "write", OBJECT),
    Route("GET", "/api/things/{thing_id}", hello, "a thing", "read"),
    Route("GET", "/api/things/{thing_id}/missing", missing, "none", "read"),
    Route("POST", "/v1/messages", hello, "a thing", "chat", OBJECT, form="anthropic"),
    Route("POST", "/v1/chat/completions", spend, "spend", "chat", OBJECT, form="openai"),
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
        assert b"12" not in none.raw
        anthropic = await site.post("/v1/messages", {}, key="")
        assert anthropic.headers["WWW-Authenticate"] == "Bearer"
        assert anthropic.json["type"] == "error"
        assert anthropic.json["error"]["type"] == "authentication_error"
        openai = await site.post("/v1/chat/completions", {}, key="")
        assert set(openai.json["error"]) == {"message", "type", "param", "code"}
        assert (await site.get("/v1/nothing")).json["error"]["type"] == "not_found_error"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{", "line 1, column 2"),
        (b"\xff", "not UTF-8: byte 0 is 0xff"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "too many digits"),
        (b'{"a": 1, "a": 2}', "'a' stands twice"),
        (b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}", "nested deeper than 64"),
        (b"[" * 100_000, "nested deeper than 64"),
        (b'{"a": "\\ud800"}', "lone surrogate U+D800"),
        (b"", "not JSON"),
    ],
)
async def test_G2_a_body_that_is_no_honest_JSON_is_refused_with_its_place(
    tmp_path: Path, data: bytes, says: str
) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        sent = {"Content-Type": "application/json"}
        reply = await site.post("/api/hello", data=data, headers=sent)
        assert (reply.status, says in reply.json["error"]["message"]) == (400, True), reply.raw
        deep = b'{"a": ' + b"[" * 63 + b"]" * 63 + b', "b": "\\ud83d\\ude00"}'
        assert (await site.post("/api/hello", data=deep, headers=sent)).status == 200
        assert (await site.post("/api/hello", data=b"{}", headers={"Content-Type": "text/plain"})).status == 415


async def test_G2_a_body_over_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    options = Options(log="off", body_limit=10_000)
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
    options = Options(log="off", bodies_limit=300_000, open_body_limit=1_000)
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


async def test_a_link_elsewhere_puts_nobody_in_the_place_of_whoever_is_in(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        cookie, eve = await cookie_of(site), await site.key("eve")
        linked = {"Sec-Fetch-Site": "cross-site"}
        stays = await site.get(f"/?token={eve}", key="", headers={**cookie, **linked})
        assert (stays.status, stays.cookies) == (303, {})
        typed = await site.get(f"/?token={eve}", key="", headers={**cookie, "Sec-Fetch-Site": "none"})
        assert typed.cookies
        first = await site.get(f"/?token={eve}", key="", headers=linked)
        assert first.cookies


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


async def test_deadlines_are_for_clients_and_never_for_answers(tmp_path: Path) -> None:
    options = Options(log="off", receive_seconds=0.3, idle_seconds=0.3)
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


async def test_connections_over_the_limit_hear_503(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES, options=Options(log="off", connections=5)) as site:
        held = [await asyncio.open_connection("127.0.0.1", site.port) for _ in range(5)]
        while len(site.server.server_state.connections) < 5:
            await asyncio.sleep(0.01)
        assert (await say(site.port, request("GET", "/api/health", port=site.port)))[0] == 503
        held[0][1].close()
        await held[0][1].wait_closed()
        while len(site.server.server_state.connections) > 4:
            await asyncio.sleep(0.01)
        assert (await say(site.port, request("GET", "/api/health", port=site.port)))[0] == 200
        for _, writer in held[1:]:
            writer.close()


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
    async with running(tmp_path / "s.db", routes=ROUTES, options=Options(log="off", guesses=5)) as site:
        bo = await site.key("bo")
        assert (await site.get("/api/hello", key=bo)).status == 200
        wrong = [(await site.get("/api/hello", key=f"lam_{n:016x}_x")).status for n in range(8)]
        assert wrong == [401] * 5 + [429] * 3
        limited = await site.get("/api/hello", key="lam_9_x")
        assert int(limited.headers["Retry-After"]) > 0
        assert (await site.get("/api/hello", key=bo)).status == 200


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
    with pytest.raises(ValueError, match="no place to listen at"):
        listen_place(text)


def test_only_this_machines_own_addresses_are_loopback() -> None:
    assert listen_place("[::1]:0") == ("[::1]", 0)
    assert all(is_loopback(address) for address in ("127.0.0.1", "127.8.9.1", "localhost", "[::1]"))
    assert not any(is_loopback(a) for a in ("0.0.0.0", "[::]", "10.0.0.1", "127.evil.com", "127.0.0.1.evil.com", ""))


async def test_many_people_with_right_keys_come_in_at_once_from_one_address(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", options=Options(log="off", guesses=5)) as site:
        keys = [await site.key(f"user{n}") for n in range(60)]
        replies = await asyncio.gather(*(site.get("/api/me", key=key) for key in keys))
        assert [reply.json["user"] for reply in replies] == [f"user{n}" for n in range(60)]
