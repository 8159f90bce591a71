"""R9: clients that leave in the middle of a stream, at a random byte; a real upstream notices who leaves."""

import asyncio
import json
import random
import socket
import struct
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lamina.gateway.gateway import ROUTES
from lamina.gateway.handlers import Reply, Request, Route
from lamina.providers.openai import OpenAIProvider
from lamina.records import REQUESTS
from tests.faults.load import Load
from tests.gateway.raw import request
from tests.gateway.serving import TOKEN, Site, running

WORDS = [f"词{n} word " for n in range(30)]
LONG = [f"词{n} word " for n in range(300)]
AT_ONCE = 20
PACE = 0.03
"""Seconds between two words. What is given up when its client leaves would take nine seconds; the rest takes one."""


@dataclass
class Upstream:
    """How many answers began, went to their end, and lost their reader."""

    began: int = 0
    whole: int = 0
    left: int = 0
    port: int = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                asked = await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                self.began += 1
                await self._tell(reader, writer, LONG if b"alone" in asked else WORDS)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, words: list[str]) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for word in [*words, None]:
            choice: dict[str, Any] = {"index": 0, "delta": {"content": word} if word else {}}
            choice["finish_reason"] = None if word else "stop"
            data = f"data: {json.dumps({'choices': [choice]})}\n\n" + ("" if word else "data: [DONE]\n\n")
            raw = data.encode()
            writer.write(b"%x\r\n%b\r\n" % (len(raw), raw))
            await asyncio.sleep(PACE)
            if reader.at_eof() or reader.exception():  # closed in order, or with a reset
                self.left += 1
                raise ConnectionError("the reader left")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        self.whole += 1


@asynccontextmanager
async def upstream() -> AsyncGenerator[Upstream]:
    one = Upstream()
    server = await asyncio.start_server(one.answer, "127.0.0.1", 0)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()


@dataclass
class Left:
    """A client that left: what it had read, and of which turn."""

    kind: str
    turn_id: str
    text: str


def wire(kind: str, session: str, port: int, number: int) -> bytes:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    if kind == "events":
        path, body = f"/api/sessions/{session}/messages", {"content": f"question {number} {kind}"}
        headers["Accept"] = "text/event-stream"
    else:
        path, body = "/v1/chat/completions", {
            "model": "lamina", "stream": True, "messages": [{"role": "user", "content": f"question {number} {kind}"}]
        }  # fmt: skip
        headers |= {"X-Lamina-Session": session} if kind == "session" else {}
    return request("POST", path, headers, json.dumps(body).encode(), port=port)


async def leave(site: Site, kind: str, session: str, number: int, rng: random.Random) -> Left:
    """Read some bytes and go, politely or with a reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(wire(kind, session, site.port, number))
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    turn_id = head.split("x-lamina-turn: ")[1].split("\r\n")[0]
    raw, upto = b"", rng.choice([0, rng.randrange(1, 400), rng.randrange(400, 6_000)])
    while len(raw) < upto and b"[DONE]" not in raw and b"event: ended" not in raw:
        piece = await reader.read(min(64, upto - len(raw)))
        if not piece:
            break
        raw += piece
    if rng.random() < 0.5:
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()
    return Left(kind, turn_id, read_text(raw, kind))


def read_text(raw: bytes, kind: str) -> str:
    """The text in what was read, chunk by chunk; a half chunk at the end is none."""
    body = b""
    while raw:
        size, found, rest = raw.partition(b"\r\n")
        if not found or len(rest) < int(size, 16) + 2:
            break
        body, raw = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    texts: list[str] = []
    for block in body.decode().split("\n\n")[:-1]:
        lines: dict[str, str] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(": ")
            lines[name] = value
        if not lines.get("data", "[DONE]").startswith("{"):
            continue
        data = json.loads(lines["data"])
        if kind == "events":
            texts.append(data["text"] if lines["event"] == "text" else "")
        else:
            texts.append(data["choices"][0]["delta"].get("content", "") if data.get("choices") else "")
    return "".join(texts)


async def until(true: Callable[[], bool], seconds: float = 30.0) -> float:
    began = time.monotonic()
    while not true() and time.monotonic() - began < seconds:
        await asyncio.sleep(0.01)
    return time.monotonic() - began


async def leaving(
    where: str | Path, seed: int, rounds: Iterable[int], routes: list[Route] | None = None
) -> tuple[list[str], dict[str, Any]]:
    """Everything that is wrong after so many clients left, and some figures."""
    rng, wrong = random.Random(seed), list[str]()
    async with upstream() as model:
        provider = OpenAIProvider("m", base_url=f"http://127.0.0.1:{model.port}/v1")
        async with running(where, provider=provider, routes=routes) as site:
            sessions = [(await site.app.new_session("ann")).session_id for _ in range(8)]
            before = ours()
            left: list[Left] = []
            for at in rounds:
                kinds = [
                    (n, rng.choice(["alone", "session", "events"])) for n in range(AT_ONCE * at, AT_ONCE * (at + 1))
                ]
                left += await asyncio.gather(*(leave(site, kind, rng.choice(sessions), n, rng) for n, kind in kinds))
                await until(lambda: not site.app.engine.here)
            wrong += await states(site, left)
            await until(lambda: ours() <= before, 10)
            wrong += [f"tasks are left over: {ours() - before}"] if ours() > before else []
            held = site.server.server_state.connections
            await until(lambda: not held, 10)
            wrong += [f"{len(held)} connections are left over"] if held else []
            turns = [await site.app.store.turns.get("ann", one.turn_id) for one in left]
            given_up = sum(turn.state == "interrupted" for turn in turns)
            await until(lambda: model.left + model.whole >= model.began, 5)
            if model.left + model.whole != model.began or model.left > given_up:
                wrong.append(f"upstream: {model}, and {given_up} were given up")
            return wrong, {"left": model.left, "whole": model.whole, "given up": given_up}


def ours() -> int:
    """Tasks of the gateway and the engine; the upstream keeps one for each connection of the pool."""
    return sum("Upstream" not in getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())


async def states(site: Site, left: list[Left]) -> list[str]:
    wrong: list[str] = []
    for one in left:
        turn = await site.app.store.turns.get("ann", one.turn_id)
        rows = await site.app.store.messages.list(
            "ann", turn.session_id, after=turn.user_seq - 1, before=turn.answer_seq + 1
        )
        mine = [row for row in rows if row.turn_id == turn.turn_id]
        if turn.state not in ("complete", "interrupted"):
            wrong.append(f"{one.kind}: the turn is {turn.state}: {turn.error}")
        if turn.state == "interrupted" and (one.kind != "alone" or turn.session_id != REQUESTS):
            wrong.append(f"{one.kind}: the turn did not go on: {turn.error}")
        if turn.state == "complete" and one.kind == "alone" and len(one.text) < len("".join(WORDS)):
            wrong.append("alone: nobody reads it, and the turn was not given up")
        if not mine[-1].text.startswith(one.text):
            wrong.append(f"{one.kind}: {one.text!r} was sent and {mine[-1].text!r} is kept")
        if not mine[0].text.startswith("question"):
            wrong.append(f"{one.kind}: the question is {mine[0].text!r}")
    return wrong


async def test_R9_clients_that_leave_lose_nothing_and_leave_nothing_behind(where: str, load: Load) -> None:
    seed = load.seed()
    wrong, figures = await leaving(
        where, seed, load.rounds(5 if "://" not in where else 2, "clients that left", each=AT_ONCE)
    )
    print(figures)
    assert not wrong
    assert figures["left"], "some were given up in the middle"
    assert figures["whole"], "and some went on"


@pytest.mark.planted("a gateway that goes on for nobody")
async def test_R9_a_gateway_that_never_gives_up_is_found(tmp_path: Path) -> None:
    (chat,) = [route for route in ROUTES if route.path == "/v1/chat/completions"]

    async def deaf(app: Any, asked: Request) -> Reply:
        return await chat.handler(app, replace(asked, headers={**asked.headers, "x-lamina-on-leave": "finish"}))

    planted = [replace(route, handler=deaf) if route is chat else route for route in ROUTES]
    wrong, figures = await leaving(tmp_path / "s.db", 7, range(2), planted)
    assert figures["left"] == 0
    assert any("was not given up" in one for one in wrong)


@pytest.mark.parametrize("wish", ["finish", "cancel"])
async def test_R9_a_client_says_what_its_leaving_means(tmp_path: Path, wish: str) -> None:
    async with upstream() as model:
        provider = OpenAIProvider("m", base_url=f"http://127.0.0.1:{model.port}/v1")
        async with running(tmp_path / "s.db", provider=provider) as site:
            session = (await site.app.new_session("ann")).session_id
            sent = wire("session" if wish == "cancel" else "alone", session, site.port, 1)
            sent = sent.replace(b"\r\nContent-Type", b"\r\nX-Lamina-On-Leave: " + wish.encode() + b"\r\nContent-Type")
            reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
            writer.write(sent)
            head = (await reader.readuntil("词".encode())).decode().lower()
            writer.close()
            await until(lambda: not site.app.engine.here)
            turn = await site.app.store.turns.get("ann", head.split("x-lamina-turn: ")[1].split("\r\n")[0])
            assert turn.state == {"finish": "complete", "cancel": "interrupted"}[wish]
