"""Faults at the gateway's door: G1 slow clients, G4 foreign hosts and pages, G7 secrets in logs, I3 borrowed names, R7
several owners of one store. Each has a planted bug that its check must find."""

import asyncio
import io
import json
import logging
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lamina.app.app import App
from lamina.errors import InputError
from lamina.gateway.handlers import Reply, Request, Route
from lamina.gateway.limits import GatewayOptions
from lamina.gateway.metrics import RequestLog
from lamina.gateway.principals import Guard
from lamina.gateway.server import ConnectionTable
from lamina.providers.openai import OpenAIProvider
from lamina.types import Key
from tests.faults.load import Load
from tests.gateway.raw import reply, request, say
from tests.gateway.serving import TOKEN, Site, free_port, running

BEARER = {"Authorization": f"Bearer {TOKEN}"}
OBJECT = dict[str, Any]


@dataclass
class Seen:
    """What reached a handler."""

    users: list[str] = field(default_factory=list)

    def routes(self) -> tuple[Route, ...]:
        async def note(app: App, request: Request) -> Reply:
            self.users.append(request.user)
            return Reply({"user": request.user})

        return (
            Route("GET", "/api/note", note, "", "read"),
            Route("POST", "/api/note", note, "", "write", OBJECT),
            Route("DELETE", "/api/things/{thing_id}", note, "", "write"),
        )


# --- G1: slow clients


async def flood(app: App, request: Request) -> Reply:
    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 16_384
            await asyncio.sleep(0)

    return Reply(pieces(), media="text/event-stream")


async def large(app: App, request: Request) -> Reply:
    return Reply(b"x" * 400_000, media="text/plain")


FLOOD = (
    Route("GET", "/api/flood", flood, "", "read", media="text/event-stream"),
    Route("GET", "/api/large", large, "", "read", media="text/plain"),
)


def slow_connection(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.setblocking(False)
    return sock


async def slow_client(site: Site, kind: int) -> None:
    """Silent, dripping its headers, dripping its body, never reading a stream, never reading a long reply."""
    loop, sock = asyncio.get_running_loop(), slow_connection(site.port)
    try:
        await loop.sock_connect(sock, ("127.0.0.1", site.port))
        if kind == 1:
            await drip(sock, b"GET /api/note HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 9_000)
        elif kind == 2:
            headers = {**BEARER, "Content-Length": "9000", "Content-Type": "application/json"}
            await loop.sock_sendall(sock, request("POST", "/api/note", headers, port=site.port))
            await drip(sock, b" " * 9_000)
        elif kind > 2:
            path = "/api/flood" if kind == 3 else "/api/large"
            await loop.sock_sendall(sock, request("GET", path, BEARER, port=site.port))
        await asyncio.sleep(600)
    except OSError:  # closed, as it should be
        pass
    finally:
        sock.close()


async def drip(sock: socket.socket, data: bytes) -> None:
    for at in range(len(data)):
        await asyncio.get_running_loop().sock_sendall(sock, data[at : at + 1])
        await asyncio.sleep(0.05)


async def siege(folder: Path, slow: int, honest: int, options: GatewayOptions) -> tuple[int, list[int]]:
    """How many of the slow ones are still connected when their time is over, and what the honest ones heard."""
    seen = Seen()
    async with running(folder / "s.db", routes=(*seen.routes(), *FLOOD), options=options) as site:
        clients = [asyncio.create_task(slow_client(site, n % 5)) for n in range(slow)]
        connections = site.server.server_state.connections
        while len(connections) < slow:
            await asyncio.sleep(0.01)
        heard: list[int] = []
        for _ in range(honest // 10):
            some = await asyncio.gather(*(site.get("/api/note") for _ in range(10)))
            heard += [reply.status for reply in some]
        await site.client.close()
        loop = asyncio.get_running_loop()
        over = loop.time() + 5  # more than the limit of the options and the pause between two looks
        while connections and loop.time() < over:
            await asyncio.sleep(0.05)
        left = len(connections)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        return left, heard


async def test_G1_slow_clients_are_closed_and_honest_ones_all_answered(tmp_path: Path, load: Load) -> None:
    options = GatewayOptions(log="off", receive_seconds=2.0, idle_seconds=2.0)
    left, heard = await siege(tmp_path, 500, 300 * load.factor, options)
    assert heard == [200] * len(heard)
    assert left == 0
    load.tried(500, "slow clients")


@pytest.mark.planted("a server without deadlines")
async def test_G1_a_server_without_deadlines_is_found(tmp_path: Path) -> None:
    left, _ = await siege(tmp_path, 10, 10, GatewayOptions(log="off", receive_seconds=600, idle_seconds=600))
    assert left == 10


async def half_open(port: int, count: int, data: bytes, made: list[socket.socket] | None = None) -> list[socket.socket]:
    """So many connections from this address that send this, all of it or some, and then nothing more."""
    loop, made = asyncio.get_running_loop(), [] if made is None else made
    for _ in range(count):
        sock = slow_connection(port)
        made.append(sock)  # at once: a caller that cancels this still closes them
        await loop.sock_connect(sock, ("127.0.0.1", port))
        with suppress(OSError):  # it was one too many
            await loop.sock_sendall(sock, data)
    return made


async def lock_out(folder: Path, data: Callable[[int], bytes], honest: int, wait: float = 0.2) -> list[int]:
    """What honest clients of the same address hear, each by a connection of its own, while others hold 600."""
    seen = Seen()
    async with running(folder / "s.db", routes=(*seen.routes(), *FLOOD), options=GatewayOptions(log="off")) as site:
        held = await half_open(site.port, 600, data(site.port))
        await asyncio.sleep(wait)
        heard = [(await say(site.port, request("GET", "/api/note", BEARER, port=site.port)))[0] for _ in range(honest)]
        for sock in held:
            sock.close()
        return heard


def _half_a_header(port: int) -> bytes:
    return f"GET /api/note HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX: ".encode()


def _half_a_body(port: int) -> bytes:
    given = {**BEARER, "Content-Length": "9000", "Content-Type": "application/json"}
    return request("POST", "/api/note", given, port=port)


def _half_a_body_of_a_stranger(port: int) -> bytes:
    given = {"Authorization": "Bearer lam_wrong", "Content-Length": "9000", "Content-Type": "application/json"}
    return request("POST", "/api/note", given, port=port)


SLOW: dict[str, tuple[Callable[[int], bytes], float]] = {
    "nothing": (lambda port: b"", 0.2),
    "half a header": (_half_a_header, 0.2),
    "half a body": (_half_a_body, 0.2),
    "half a body, with a wrong key": (_half_a_body_of_a_stranger, 0.2),
    "no reading": (lambda port: request("GET", "/api/large", BEARER, port=port) * 12, 1.5),
    "a request and then silence": (lambda port: request("GET", "/api/note", BEARER, port=port), 0.2),
}
"""What slow clients send, and the seconds after which they count as slow."""


@pytest.mark.parametrize("what", list(SLOW))
async def test_G1_600_slow_connections_lock_nobody_of_the_same_address_out(
    tmp_path: Path, what: str, load: Load
) -> None:
    data, wait = SLOW[what]
    heard = await lock_out(tmp_path, data, 30 * load.factor, wait)
    assert heard == [200] * len(heard)
    load.tried(600, "slow clients")


@pytest.mark.parametrize("what", ["nothing", "half a header", "half a body"])
async def test_G1_a_burst_of_slow_connections_locks_nobody_out_even_at_first(tmp_path: Path, what: str) -> None:
    """While none of them has been slow for long, the oldest gives way."""
    heard = await lock_out(tmp_path, SLOW[what][0], 30, wait=0)
    assert heard == [200] * len(heard)


@pytest.mark.planted("a server in which a connection without a whole header keeps its place")
async def test_G1_a_server_in_which_nobody_gives_way_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConnectionTable, "first_to_go", lambda *_: None)
    assert set(await lock_out(tmp_path, _half_a_header, 5)) == {503}


async def renew(port: int, data: bytes, held: list[socket.socket]) -> None:
    """Slow connections, again and again: each of them is too young to have been slow for long."""
    while True:
        await half_open(port, 20, data, held)
        for sock in held[:-300]:
            sock.close()
        del held[:-300]
        await asyncio.sleep(0.02)


async def lock_out_by_new_ones(folder: Path, data: Callable[[int], bytes]) -> list[int]:
    """What honest clients of the same address hear while another renews its connections; the first is a long upload."""
    held: list[socket.socket] = []
    options = GatewayOptions(log="off", address_connections=200)
    async with running(folder / "s.db", routes=Seen().routes(), options=options) as site:
        given = {**BEARER, "Content-Length": "40000", "Content-Type": "application/json"}
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(request("POST", "/api/note", given, port=site.port))
        attack = asyncio.create_task(renew(site.port, data(site.port), held))
        heard: list[int] = []
        for n in range(20):
            writer.write(b"{".ljust(2_000) if not n else b"}".rjust(2_000) if n == 19 else b" " * 2_000)
            await asyncio.sleep(0.05)
            heard.append((await say(site.port, request("GET", "/api/note", BEARER, port=site.port)))[0])
        heard.append((await reply(reader))[0])
        writer.close()
        attack.cancel()
        await asyncio.gather(attack, return_exceptions=True)
        for sock in held:
            sock.close()
    return heard


@pytest.mark.parametrize("data", [_half_a_header, _half_a_body, _half_a_body_of_a_stranger])
async def test_A7_slow_connections_that_are_renewed_lock_nobody_of_the_same_address_out(
    tmp_path: Path, data: Callable[[int], bytes]
) -> None:
    heard = await lock_out_by_new_ones(tmp_path, data)
    assert heard == [200] * len(heard)


@pytest.mark.planted("a server in which a body that does not come keeps its place")
async def test_A7_a_server_in_which_slow_bodies_stay_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConnectionTable, "first_to_go", lambda *_: None)
    assert 503 in await lock_out_by_new_ones(tmp_path, _half_a_body)


async def test_A7_an_answered_request_whose_body_does_not_come_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=Seen().routes(), options=GatewayOptions(log="off")) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(_half_a_body_of_a_stranger(site.port))
        assert (await reply(reader))[0] == 401
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_N24_a_connection_that_finds_no_room_hears_when_to_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConnectionTable, "first_to_go", lambda *_: None)  # as if all others were waiting for an answer
    async with running(
        tmp_path / "s.db", routes=Seen().routes(), options=GatewayOptions(log="off", connections=1)
    ) as site:
        held = await half_open(site.port, 1, b"")
        status, headers, _ = await say(site.port, request("GET", "/api/note", BEARER, port=site.port))
        held[0].close()
    assert (status, headers["retry-after"]) == (503, "1")


# --- G4: foreign hosts and pages

FOREIGN_HOSTS = (
    "evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "localhost.evil.example", "",
    "127.0.0.1@evil", "localhost:{port}:80", "0.0.0.0:{port}", "[::ffff:7f00:1]", "2130706433:{port}",
    "localhost\t", "127.0.0.1:80 evil",
)  # fmt: skip
OUR_HOSTS = ("127.0.0.1:{port}", "localhost:{port}", "LOCALHOST", "localhost.", "[::1]:{port}", "chat.example.com")
FOREIGN_ORIGINS = (
    "http://evil.example", "null", "http://127.0.0.1:1", "http://localhost:{port}", "https://127.0.0.1", "file://",
    "http://127.0.0.1:{port}.evil.example", "http://127.0.0.1:{port}@evil", "httpx://127.0.0.1:{port}",
    "chrome-extension://abc", "",
)  # fmt: skip


async def break_in(site: Site, seen: Seen) -> list[str]:
    """Every way of a page elsewhere into this machine; what got through to a handler, or past 403."""
    through: list[str] = []

    async def attempt(what: str, data: bytes) -> None:
        seen.users.clear()
        status, _, _ = await say(site.port, data)
        if seen.users or status not in (400, 403):
            through.append(f"{what}: {status}")

    opened = await site.get(f"/?token={TOKEN}", key="")
    cookie = {"Cookie": f"lamina_{site.port}={opened.cookies[f'lamina_{site.port}']}"}
    for credential in (BEARER, cookie):
        for host in FOREIGN_HOSTS:
            given = {"Host": host.format(port=site.port), **credential}
            await attempt(f"host {host!r}", request("GET", "/api/note", given, port=site.port))
        for origin in FOREIGN_ORIGINS:
            given = {**credential, "Origin": origin.format(port=site.port), "Content-Type": "application/json"}
            await attempt(f"origin {origin!r}", request("POST", "/api/note", given, b"{}", port=site.port))
    for method, path in (("POST", "/api/note"), ("DELETE", "/api/things/1")):
        for site_word in ("cross-site", "same-site", "none", ""):
            given = {**cookie, "Sec-Fetch-Site": site_word, "Content-Type": "application/json"}
            body = b"{}" if method == "POST" else b""
            await attempt(f"csrf {method} {site_word!r}", request(method, path, given, body, port=site.port))
    login = {"Origin": "http://evil.example", "Content-Type": "application/json"}
    await attempt("login", request("POST", "/api/login", login, json.dumps({"key": TOKEN}).encode(), port=site.port))
    return through


async def test_G4_nothing_of_a_foreign_host_or_page_reaches_a_handler(tmp_path: Path) -> None:
    seen = Seen()
    options = GatewayOptions(log="off", host_names=("chat.example.com",))
    async with running(tmp_path / "s.db", routes=seen.routes(), options=options) as site:
        assert await break_in(site, seen) == []
        for host in OUR_HOSTS:
            given = {**BEARER, "Host": host.format(port=site.port)}
            assert (await say(site.port, request("GET", "/api/note", given)))[0] == 200, host
        opened = await site.get(f"/?token={TOKEN}", key="")
        cookie = {"Cookie": f"lamina_{site.port}={opened.cookies[f'lamina_{site.port}']}"}
        for sign in ({"Origin": site.url}, {"Sec-Fetch-Site": "same-origin"}):
            assert (await site.post("/api/note", {}, key="", headers={**cookie, **sign})).status == 200


class Open(Guard):
    """The planted bug: whatever `Host` and `Origin` say, come in."""

    def check_host(self, host: str, server: object) -> None: ...

    def check_origin(self, origin: str, host: str) -> str:
        return ""


@pytest.mark.planted("a guard that lets everybody in")
async def test_G4_a_guard_that_lets_everybody_in_is_found(tmp_path: Path) -> None:
    seen = Seen()
    async with running(tmp_path / "s.db", routes=seen.routes()) as site:
        site.gateway.guard = Open(site.gateway.options)
        through = await break_in(site, seen)
        assert len(through) > 20


async def test_G4_a_page_that_the_operator_lets_in_brings_a_key_and_never_a_cookie(tmp_path: Path) -> None:
    seen = Seen()
    page = {"Origin": "https://pages.example"}
    options = GatewayOptions(log="off", origins=("https://pages.example",))
    async with running(tmp_path / "s.db", routes=seen.routes(), options=options) as site:
        asked = await site.ask("OPTIONS", "/api/note", key="", headers=page)
        assert (asked.status, asked.headers["Access-Control-Allow-Origin"]) == (204, "https://pages.example")
        assert "authorization" in asked.headers["Access-Control-Allow-Headers"]
        done = await site.post("/api/note", {}, headers=page)
        assert (done.status, done.headers["Access-Control-Allow-Origin"]) == (200, "https://pages.example")
        for reply in (asked, done):
            assert "Access-Control-Allow-Credentials" not in reply.headers
        opened = await site.get(f"/?token={TOKEN}", key="")
        cookie = {"Cookie": f"lamina_{site.port}={opened.cookies[f'lamina_{site.port}']}"}
        assert (await site.get("/api/note", key="", headers={**cookie, **page})).status == 401
        foreign = await site.ask("OPTIONS", "/api/note", key="", headers={"Origin": "https://evil.example"})
        assert foreign.status == 403
        assert "Access-Control-Allow-Origin" not in foreign.headers


def lamina(folder: Path, *arguments: str, **more: str) -> "subprocess.Popen[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LAMINA_", "LC_", "LANG"))}
    script = folder / "script.json"
    script.write_text('[[{"text": "Hello."}, {"usage": [7, 0, 3]}, {"done": "stop"}]]')
    own = {
        "LAMINA_STORE": str(folder / "chats.db"), "LAMINA_USER": "ann", "LAMINA_EMBEDDER": "none",
        "LAMINA_PROVIDER": "scripted", "LAMINA_SCRIPT": str(script), "XDG_STATE_HOME": str(folder / "state"),
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "lamina", *arguments], env={**clean, **own, **more}, cwd=folder, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_G4_without_a_key_nobody_listens_for_other_machines(tmp_path: Path, address: str) -> None:
    if address.startswith("[") and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    process = lamina(tmp_path, "serve", "--listen", address, "--no-open")
    out, error = process.communicate(timeout=60)
    no_address = ("no address here", "Cannot assign", "not supported")
    if address.startswith("[") and any(words in error for words in no_address):
        pytest.skip("no IPv6 here")
    assert (process.returncode, out) == (2, "")
    assert "the store has no key" in error
    assert "lamina keys new" in error
    assert not list((tmp_path / "state").glob("**/*.token"))


# --- I3: the principal comes from the credential alone

NAMES = ("user", "user_id", "owner", "username", "principal", "sub", "account")
HEADERS = (
    "X-User", "X-User-Id", "X-Lamina-User", "X-Lamina-Owner", "X-Forwarded-User", "X-Remote-User", "Remote-User",
    "From", "X-Auth-Request-User", "X-Authenticated-User", "OpenAI-Organization", "X-Amzn-Oidc-Identity",
)  # fmt: skip


async def borrow(site: Site, seen: Seen, path: str = "/api/note") -> list[str]:
    """Every place where a caller could name somebody else; those where it worked."""
    worked: list[str] = []

    async def attempt(what: str, body: Any = None, headers: dict[str, str] | None = None) -> None:
        seen.users.clear()
        await site.post(path, body if body is not None else {}, headers=headers)
        if seen.users != ["ann"]:
            worked.append(what)

    for name in NAMES:
        await attempt(f"body {name}", {name: "bo"})
        await attempt(f"metadata {name}", {"metadata": {name: "bo"}, "model": "x"})
        await attempt(f"cookie {name}", headers={"Cookie": f"{name}=bo"})
    for name in HEADERS:
        await attempt(f"header {name}", headers={name: "bo"})
    return worked


async def test_I3_no_body_header_or_metadata_names_the_user(tmp_path: Path) -> None:
    seen = Seen()
    async with running(tmp_path / "s.db", routes=seen.routes()) as site:
        await site.key("bo")
        assert await borrow(site, seen) == []


@pytest.mark.planted("a handler that believes its body")
async def test_I3_a_handler_that_believes_its_body_is_found(tmp_path: Path) -> None:
    seen = Seen()

    async def gullible(app: App, request: Request) -> Reply:
        seen.users.append(request.body.get("metadata", request.body).get("user_id") or request.user)
        return Reply({})

    routes = (Route("POST", "/api/gullible", gullible, "", "write", OBJECT),)
    async with running(tmp_path / "s.db", routes=routes) as site:
        assert await borrow(site, seen, "/api/gullible") == ["body user_id", "metadata user_id"]


# --- G7: no secret in any sink

CANARIES = {name: f"canary{n}{name}" for n, name in enumerate(("provider", "text", "query", "path", "body", "error"))}


async def leaky(app: App, request: Request) -> Reply:
    if request.body.get("how") == "crash":
        raise RuntimeError(CANARIES["error"])
    if request.body.get("how") == "error":
        raise InputError(CANARIES["error"], hint=CANARIES["error"])
    session = await app.new_session(request.user, title=CANARIES["text"])
    began = await app.start(request.user, session.session_id, CANARIES["text"])
    request.watch(began)
    await began.wait()
    return Reply({})


async def every_sink(folder: Path, log: Callable[[io.StringIO], RequestLog]) -> tuple[str, list[str]]:
    """Everything that was written anywhere while secrets came by every way, and those secrets."""
    sink = io.StringIO()
    handler = logging.StreamHandler(sink)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    try:
        routes = (
            Route("POST", "/api/leaky", leaky, "", "write", OBJECT),
            Route("POST", "/api/leaky/{thing_id}", leaky, "", "write", OBJECT),
        )
        refused = OpenAIProvider("m", key=Key(CANARIES["provider"]), base_url=f"http://127.0.0.1:{free_port()}/v1")
        debug = GatewayOptions(log="debug")
        async with running(folder / "s.db", routes=routes, options=debug, provider=refused) as site:
            site.gateway.log = log(sink)
            key = await site.key("bo")
            cookie = (await site.get(f"/?token={TOKEN}", key="")).cookies[f"lamina_{site.port}"]
            for secret in (TOKEN, key):
                for how in ("crash", "error", "turn"):
                    body = {"how": how, "text": CANARIES["body"]}
                    await site.post(f"/api/leaky?q={CANARIES['query']}", body, key=secret)
                    await site.post(f"/api/leaky/{CANARIES['path']}", body, key=secret)
                await site.post("/api/login", {"key": secret}, key="")
                await site.post("/api/login", {"key": [secret]}, key="")
                await site.get(f"/?token={secret}&q={CANARIES['query']}", key="")
                await site.get(f"/api/leaky?key={secret}", key=secret + "x")
                await say(site.port, b"GET / HTTP/1.1\r\nAuthorization: " + secret.encode() + b"\r\nbroken\r\n\r\n")
            await site.post("/api/leaky", data=CANARIES["body"].encode(), headers={"Content-Type": "application/json"})
            await site.post("/api/leaky", {}, key="", headers={"Cookie": f"lamina_{site.port}={cookie}"})
            written = (await site.get("/metrics")).raw.decode()
        return sink.getvalue() + written, [TOKEN, key, key.split("_", 2)[2], cookie, *CANARIES.values()]
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


async def test_G7_no_sink_has_a_secret_at_any_level(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    written, secrets = await every_sink(tmp_path, lambda sink: RequestLog("debug", sink))
    everything = written + "".join(capfd.readouterr())
    assert [secret for secret in secrets if secret in everything] == []
    lines = [json.loads(line) for line in written.splitlines() if line.startswith('{"time"')]
    assert {"/api/leaky", "/api/leaky/{thing_id}", "/api/login"} <= {line["path"] for line in lines}
    assert any("RuntimeError" in line.get("error", "") for line in lines)
    assert all({"id", "method", "status", "ms", "bytes"} <= line.keys() for line in lines)
    assert {line.get("user") for line in lines} >= {"ann", "bo"}


class Chatty(RequestLog):
    """The planted bug: an error is logged with its words."""

    def line(self, *values: Any, **more: Any) -> None:
        told = f"{values[-1]} {CANARIES['error']}" if values[-1] else ""
        super().line(*values[:-1], error=told)


@pytest.mark.planted("a log that quotes errors")
async def test_G7_a_log_that_quotes_errors_is_found(tmp_path: Path) -> None:
    written, secrets = await every_sink(tmp_path, lambda sink: Chatty("debug", sink))
    assert [secret for secret in secrets if secret in written] == [CANARIES["error"]]


# --- R7: one store, one owner

HOLDERS: dict[str, tuple[str, ...]] = {
    "gateway": ("serve", "--listen", "127.0.0.1:0", "--no-open"),
    "worker": ("worker",),
    "chat": ("chat",),
}


def started(folder: Path, name: str, **more: str) -> "subprocess.Popen[str]":
    """The process once it owns the store."""
    process = lamina(folder, *HOLDERS[name], **more)
    if name == "chat":  # it opens the store with its first line
        assert process.stdin is not None
        process.stdin.write("hello\n")
        process.stdin.flush()
    lock = Path(more.get("LAMINA_STORE", folder / "chats.db")).with_suffix(".db.lock")
    while not lock.exists() or lock.read_text().split()[:1] != [str(process.pid)]:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return process


def make_store(folder: Path) -> None:
    """A worker takes none that is not there."""
    made = lamina(folder, "sessions", "new")
    _, error = made.communicate(timeout=60)
    assert made.returncode == 0, error


def clashes(folder: Path, first: str, **more: str) -> list[str]:
    """What is wrong when one holds the store and the others come; nothing when all is as it should be."""
    make_store(folder)
    holder = started(folder, first, **more)
    wrong: list[str] = []
    try:
        for second in HOLDERS:
            if second == first:
                continue
            other = lamina(folder, *HOLDERS[second])
            try:
                _, error = other.communicate("hello\n", timeout=60 if not more else 6)
            except subprocess.TimeoutExpired:
                other.kill()
                other.communicate()
                wrong.append(f"{second} runs beside {first}")
                continue
            if other.returncode != 4 or f"is in use by process {holder.pid}" not in error:
                wrong.append(f"{second} beside {first} ended with {other.returncode}: {error}")
        return wrong if holder.poll() is None else [*wrong, f"{first} was ended"]
    finally:
        holder.terminate()
        holder.communicate()


@pytest.mark.parametrize("first", HOLDERS)
def test_R7_whoever_comes_first_owns_the_store_and_the_others_say_so(tmp_path: Path, first: str) -> None:
    assert clashes(tmp_path, first) == []


@pytest.mark.planted("an owner that holds another file")
def test_R7_two_owners_are_found(tmp_path: Path) -> None:
    """The planted bug: the first one holds another file, so each believes that it is the owner."""
    other = {"LAMINA_STORE": str(tmp_path / "other.db")}
    assert "worker runs beside gateway" in clashes(tmp_path, "gateway", **other)


def test_R7_several_at_once_leave_exactly_one(tmp_path: Path, load: Load) -> None:
    make_store(tmp_path)
    names = random.Random(load.seed()).choices(["gateway", "worker"], k=3 * min(load.factor, 10))
    processes = [lamina(tmp_path, *HOLDERS[name]) for name in names]
    while sum(process.poll() is None for process in processes) > 1:
        time.sleep(0.05)
    (owner,) = [process for process in processes if process.poll() is None]
    for process in processes:
        if process is not owner:
            _, error = process.communicate()
            assert process.returncode == 4, error
            assert "is in use by process" in error
    owner.terminate()
    owner.communicate()
    load.tried(len(names), "processes")


def test_a_gateway_ends_in_order_when_it_is_told_to(tmp_path: Path, load: Load) -> None:
    for _ in load.rounds(1, "ends"):
        process = started(tmp_path, "gateway")
        assert process.stdout is not None
        while line := process.stdout.readline():
            if "http://127.0.0.1:" in line:
                break
        process.terminate()
        _, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
        assert "Traceback" not in error
        assert "http://127.0.0.1:" in line
