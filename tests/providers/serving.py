"""A real server on this machine that writes raw bytes, so that it can be wrong in any way; and what it should say.

Each connection plays one thing: a function that gets the connection when the request has been read. The server waits
by events: for the request, for the client to hang up, never for a clock.
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from lamina.assembly.request import encode
from lamina.ports import Provider
from lamina.providers.anthropic import AnthropicProvider
from lamina.providers.http import Deadlines, Retries
from lamina.providers.openai import OpenAIProvider
from lamina.types import Done, Event, Key, Text, ToolCallEvent, Usage

KEY = "sk-very-secret-1234"
PATIENT = Deadlines(connect=30, first_byte=30, idle=30, overall=60)
QUICK = Retries(times=2, backoff=0.001, most=5.0)


@dataclass(frozen=True, slots=True)
class Request:
    path: str
    headers: Mapping[str, str]
    body: bytes


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def request(self) -> Request:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        return Request(first.split(" ")[1], headers, body)

    async def send(self, *pieces: bytes) -> None:
        """Each piece for itself, so that the client may see it alone."""
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()
            await asyncio.sleep(0)

    async def gone(self) -> None:
        """Wait until the client has hung up."""
        while await self._reader.read(65536):
            pass

    def reset(self) -> None:
        raw: socket.socket = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Play = Callable[[Connection], Awaitable[None]]


@dataclass
class Served:
    url: str = ""
    requests: list[Request] = field(default_factory=list[Request])
    connections: int = 0
    open: int = 0
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while nobody is connected."""


@asynccontextmanager
async def serving(*plays: Play, read: bool = True) -> AsyncGenerator[Served]:
    """Plays one after another, one for each connection; the last one again and again."""
    served = Served()
    served.quiet.set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        play = plays[min(served.connections, len(plays) - 1)]
        served.connections += 1
        served.open += 1
        served.quiet.clear()
        connection = Connection(reader, writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            if read:
                served.requests.append(await connection.request())
            await play(connection)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        served.open -= 1
        if not served.open:
            served.quiet.set()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    served.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield served
    finally:
        server.close()
        async with asyncio.timeout(30):
            await served.quiet.wait()


def head(status: str = "200 OK", kind: str = "text/event-stream", *more: str, version: str = "HTTP/1.1") -> bytes:
    lines = [f"{version} {status}", f"Content-Type: {kind}", "Connection: close", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def sized(status: str, body: bytes, *more: str, kind: str = "application/json") -> bytes:
    return head(status, kind, f"Content-Length: {len(body)}", *more) + body


def frame(data: Any, kind: str = "") -> bytes:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return (f"event: {kind}\n" if kind else "").encode() + f"data: {text}\n\n".encode()


TEXTS = ("Hello ", "你好", "🙂 and bye")
TEXT = "".join(TEXTS)


@dataclass(frozen=True)
class Form:
    """How one kind of provider says the same things."""

    name: str
    make: Callable[..., Provider]
    frames: tuple[bytes, ...]
    """A good answer: the texts, usage 7 of which 3 cached, 5, and the end."""
    whole: bytes
    error: Callable[[str, str], Any]
    call_frames: Callable[[list[tuple[str, str, str]]], tuple[bytes, ...]]
    """Calls as id, name and arguments, in pieces."""
    call_whole: Callable[[list[tuple[str, str, str]]], bytes]
    text_frame: Callable[[str], bytes]

    def body(self, stream: bool) -> bytes:
        return b"".join(self.frames) if stream else self.whole

    def kind(self, stream: bool) -> str:
        return "text/event-stream; charset=utf-8" if stream else "application/json"

    def calls(self, stream: bool, calls: list[tuple[str, str, str]]) -> bytes:
        return b"".join(self.call_frames(calls)) if stream else self.call_whole(calls)

    def good(self, stream: bool) -> Play:
        async def play(connection: Connection) -> None:
            await connection.send(head(kind=self.kind(stream)), self.body(stream))

        return play


GOOD: tuple[Event, ...] = (Usage(7, 3, 5), Done("stop"))


def _openai_delta(delta: Any, finish: Any = None) -> bytes:
    return frame({"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


_OPENAI_USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}


def _openai_calls(calls: list[tuple[str, str, str]]) -> tuple[bytes, ...]:
    frames = [_openai_delta({"role": "assistant", "content": None})]
    for n, (identity, name, _) in enumerate(calls):
        start = {"index": n, "id": identity, "type": "function", "function": {"name": name, "arguments": ""}}
        frames.append(_openai_delta({"tool_calls": [start]}))
    for at in range(max(len(arguments) for _, _, arguments in calls)):  # all of them at once, letter by letter
        for n, (_, _, arguments) in enumerate(calls):
            piece = {"index": n, "function": {"arguments": arguments[at : at + 1]}}
            frames.append(_openai_delta({"tool_calls": [piece]}))
    return (*frames, _openai_delta({}, "tool_calls"), frame({"choices": [], "usage": _OPENAI_USAGE}), frame("[DONE]"))


def _openai_call_whole(calls: list[tuple[str, str, str]]) -> bytes:
    said = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    message = {"role": "assistant", "content": None, "tool_calls": said}
    return json.dumps(
        {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": _OPENAI_USAGE}
    ).encode()


OPENAI = Form(
    "openai",
    lambda url, **options: OpenAIProvider("m", base_url=url, **options),
    (
        _openai_delta({"role": "assistant", "content": None}),
        *(_openai_delta({"content": text}) for text in TEXTS),
        _openai_delta({}, "stop"),
        frame({"choices": [], "usage": _OPENAI_USAGE}),
        frame("[DONE]"),
    ),
    json.dumps({"choices": [{"message": {"content": TEXT}, "finish_reason": "stop"}], "usage": _OPENAI_USAGE}).encode(),
    lambda kind, message: {"error": {"type": kind, "message": message}},
    _openai_calls,
    _openai_call_whole,
    lambda text: _openai_delta({"content": text}),
)


def _event(value: dict[str, Any]) -> bytes:
    return frame(value, value["type"])


_INPUT = {"input_tokens": 3, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 1, "output_tokens": 1}
_BEGIN = _event({"type": "message_start", "message": {"id": "x", "content": [], "usage": _INPUT}})


def _anthropic_end(reason: str) -> tuple[bytes, ...]:
    return (
        _event({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}}),
        _event({"type": "message_stop"}),
    )


def _anthropic_delta(text: str) -> bytes:
    return _event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})


def _anthropic_calls(calls: list[tuple[str, str, str]]) -> tuple[bytes, ...]:
    frames = [_BEGIN]
    for n, (identity, name, arguments) in enumerate(calls):
        block = {"type": "tool_use", "id": identity, "name": name, "input": {}}
        frames.append(_event({"type": "content_block_start", "index": n, "content_block": block}))
        for letter in arguments:
            delta = {"type": "input_json_delta", "partial_json": letter}
            frames.append(_event({"type": "content_block_delta", "index": n, "delta": delta}))
        frames.append(_event({"type": "content_block_stop", "index": n}))
    return (*frames, *_anthropic_end("tool_use"))


def _anthropic_whole(content: list[Any], reason: str) -> bytes:
    usage = {**_INPUT, "output_tokens": 5}
    return json.dumps({"type": "message", "content": content, "stop_reason": reason, "usage": usage}).encode()


def _anthropic_call_whole(calls: list[tuple[str, str, str]]) -> bytes:
    def read(arguments: str) -> Any:
        try:
            return json.loads(arguments)
        except ValueError:
            return arguments

    content = [{"type": "tool_use", "id": i, "name": n, "input": read(a)} for i, n, a in calls]
    return _anthropic_whole(content, "tool_use")


ANTHROPIC = Form(
    "anthropic",
    lambda url, **options: AnthropicProvider("m", base_url=url, encode=encode, **options),
    (
        _BEGIN,
        _event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        _event({"type": "ping"}),
        *(_anthropic_delta(text) for text in TEXTS),
        _event({"type": "content_block_stop", "index": 0}),
        *_anthropic_end("end_turn"),
    ),
    _anthropic_whole([{"type": "text", "text": TEXT}], "end_turn"),
    lambda kind, message: {"type": "error", "error": {"type": kind, "message": message}},
    _anthropic_calls,
    _anthropic_call_whole,
    _anthropic_delta,
)

FORMS = (OPENAI, ANTHROPIC)


def provider(form: Form, served: Served, **options: Any) -> Provider:
    return form.make(served.url, **{"key": Key(KEY), "deadlines": PATIENT, "retries": QUICK, **options})


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def order_problems(events: list[Event], *, whole: bool) -> list[str]:
    """What the port promises of every stream: texts, calls, at most one usage, exactly one done."""
    rank = {Text: 0, ToolCallEvent: 1, Usage: 2, Done: 3}
    ranks = [rank[type(event)] for event in events]
    problems: list[str] = []
    if ranks != sorted(ranks):
        problems.append(f"out of order: {events}")
    if ranks.count(2) > 1 or ranks.count(3) != (1 if whole else 0):
        problems.append(f"{ranks.count(2)} usages and {ranks.count(3)} dones")
    if any(isinstance(event, Text) and not event.text for event in events):
        problems.append("an empty text")
    return problems
