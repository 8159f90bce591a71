"""The gateway as an ASGI application of our own: one table of routes, and before each handler the same few questions
in the same order: our host? whose page? which route? who asks? how much? what body? Nothing else stands in between.
"""

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from secrets import token_hex
from typing import Any, Protocol
from urllib.parse import parse_qs

from lamina.app.app import App
from lamina.errors import LaminaError
from lamina.gateway import openapi
from lamina.gateway.guard import Guard, read_json
from lamina.gateway.http import NOBODY, ErrorForm, HttpError, Principal, Reply, Request, Route
from lamina.gateway.limits import Limits
from lamina.gateway.log import RequestLog
from lamina.gateway.metrics import Metrics
from lamina.gateway.options import Options
from lamina.gateway.own import own_routes
from lamina.gateway.principals import WHEN_KEYS, Principals, Shown, shown_key
from lamina.gateway.replies import encoded, error_reply, head, known_error
from lamina.gateway.routes import ROUTES
from lamina.gateway.routing import Door, MethodError, Routes, form_of
from lamina.gateway.sse import MEDIA
from lamina.gateway.streams import Open
from lamina.records import TurnRecord

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
NO_DOOR = "-"
VERSION = b"anthropic-version"
"""A header that Anthropic's client sends with everything."""
LONG = 256_000
"""Bytes of a body from which it is read in a thread, and of a reply from which it is counted and sent in pieces."""


class Traces(Protocol):
    """Who else hears of turns; `otel` has one."""

    def turn(self, turn: TurnRecord, parent: str = "") -> None: ...

    def close(self) -> None: ...


class Running(Protocol):
    """A turn that runs, as the engine gives it."""

    @property
    def turn(self) -> TurnRecord: ...

    @property
    def over(self) -> bool: ...

    async def wait(self) -> TurnRecord: ...


class _Exchange:
    """A request on its way: what its log line needs in the end."""

    __slots__ = (
        "cors", "door", "error", "id", "left", "principal", "receive", "scope", "send", "shown", "size", "started",
        "status", "turn_left",
    )  # fmt: skip

    def __init__(self, scope: Mapping[str, Any], receive: Receive, send: Send, request_id: str) -> None:
        self.scope, self.receive, self.send, self.id = scope, receive, send, request_id
        self.principal, self.door = NOBODY, None
        self.principal: Principal
        self.door: Door | None
        self.shown: Shown | None = None
        self.left = self.turn_left = _nothing_left
        """To be called when its stream and its turn are over."""
        self.cors, self.error = "", ""
        self.status = self.size = 0
        self.started = time.perf_counter()

    async def gone(self) -> None:
        """Returns when the client has left."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


class Gateway:
    """`Gateway(app, options, token=…)` is an ASGI application; `start()` and `close()` are its lifespan."""

    def __init__(
        self, app: App, options: Options | None = None, *, token: str = "", routes: Sequence[Route] | None = None,
        traces: Traces | None = None, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.app = app
        self.options = options = options or Options()
        self.metrics = Metrics()
        self._traces = traces
        self.log = RequestLog(options.log)
        self.limits = Limits(app, options, clock)
        self.principals = Principals(app, options, self.limits, token=token, clock=clock)
        self.open = Open(self.principals, options)
        every = [*own_routes(self), *(ROUTES if routes is None else routes)]
        self.routes = Routes([*every, openapi.route_of(every)])
        self.guard = Guard(options)
        self._ids, self._prefix = count(1), token_hex(4)
        self._watched: dict[str, asyncio.Task[None]] = {}
        self._looking: list[asyncio.Task[None]] = []
        self._unsent = 0
        """Bytes of long replies that are being sent."""
        self.ending = False
        """Set before it is closed: nothing new is begun."""

    async def start(self) -> None:
        self._looking = [asyncio.create_task(self.limits.run()), asyncio.create_task(self.open.run())]

    async def close(self) -> None:
        """What was used is written, and the log too."""
        for task in self._looking:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if self._watched:
            await asyncio.wait(self._watched.values(), timeout=5)
        await self.limits.flush(everything=True)
        if self._traces:
            await asyncio.to_thread(self._traces.close)
        self.log.close()

    def spent(self, principal: Principal, prompt: int, completion: int) -> None:
        self.limits.spent(principal, prompt, completion)

    def watch(self, exchange: _Exchange, parent: str, running: Running) -> None:
        """Count the turn when it ends; one that is over already was counted by whoever began it."""
        turn_id = running.turn.turn_id
        if not (running.over or running.turn.repeated) and turn_id not in self._watched:
            task = self._watched[turn_id] = asyncio.create_task(self._count(exchange.principal, parent, running))
            left, exchange.turn_left = exchange.turn_left, _nothing_left  # the turn may outlive the request
            task.add_done_callback(lambda _: (self._watched.pop(turn_id, None), left()))

    async def _count(self, principal: Principal, parent: str, running: Running) -> None:
        turn = await running.wait()
        self.metrics.turn(turn)
        if self._traces:
            self._traces.turn(turn, parent)
        prompt, completion = int(turn.usage.get("prompt", 0)), int(turn.usage.get("completion", 0))
        if not prompt:  # it was left before the provider counted, or the provider counts nothing
            prompt, completion = await estimate(self.app, turn)
        self.spent(principal, prompt, completion)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:  # there is nothing here for a WebSocket
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await self.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        exchange = _Exchange(scope, receive, send, f"{self._prefix}{next(self._ids):08x}")
        turn = ""
        try:
            try:
                reply = encoded(await self._answer(exchange))
            except LaminaError as error:
                reply = self._refusal(exchange, error)
            except Exception as error:
                reply = self._failure(exchange, error)
            turn = reply.headers.get("X-Lamina-Turn", "") if reply.headers else ""
            if exchange.cors:
                reply.headers = {**reply.headers, **self.guard.cors(exchange.cors)}
            await self._send(exchange, reply)
        finally:
            exchange.left()
            seconds = time.perf_counter() - exchange.started
            door, principal = exchange.door, exchange.principal
            path, label = (door.route.path, door.label) if door else (NO_DOOR, f"{NO_DOOR} {NO_DOOR}")
            self.metrics.counted(label, exchange.status, seconds)
            if self.log.on:
                self.log.line(
                    exchange.id, scope["method"], path, exchange.status, seconds, exchange.size, principal.user,
                    principal.key_id, turn, exchange.error,
                )  # fmt: skip

    async def _answer(self, exchange: _Exchange) -> Reply:
        scope = exchange.scope
        method, path = scope["method"], scope["path"]
        if self.ending:
            raise HttpError(503, "the gateway is being ended", hint="try again in a moment", kind="ending")
        headers = _headers(scope["headers"])
        server, client = scope.get("server"), scope.get("client")
        host, address = headers.get("host", ""), client[0] if client else ""
        self.guard.check_host(host, server[0] if server else "")
        if "origin" in headers:
            exchange.cors = self.guard.check_origin(headers["origin"], host)
            if method == "OPTIONS" and exchange.cors:
                return Reply(None, 204, self.guard.preflight(exchange.cors), media="")
        if path == "/" and method == "GET" and b"token=" in scope["query_string"]:
            return await self._by_token(scope["query_string"], headers, address)
        door, params = self.routes.find(method, path)
        exchange.door = door
        principal = NOBODY
        if door.route.scope is not None:
            principal = exchange.principal = await self._principal(exchange, headers, address)
            if door.route.scope not in principal.scopes:
                hint = f"`lamina keys new --scope {door.route.scope}` makes a key that may{WHEN_KEYS}"
                raise HttpError(403, f"this key lacks the scope {door.route.scope}", hint=hint, kind="scope")
            self.limits.admit(principal, spends=door.spends)
        query = door.query(scope["query_string"])
        body = await self._body(door, headers, exchange.receive) if door.route.method != "GET" else None
        request = Request(
            exchange.id, method, path, params, query, headers, body, principal, exchange.gone,
            partial(self.spent, principal), partial(self.watch, exchange, headers.get("traceparent", "")), address,
        )  # fmt: skip
        if principal is not NOBODY:
            if _streams(door, headers, body):
                exchange.left = self.open.stream(principal)
            if door.spends:
                exchange.turn_left = self.open.turn(principal)
        try:
            return await door.route.handler(self.app, request)
        finally:
            exchange.turn_left()

    async def _principal(self, exchange: _Exchange, headers: Mapping[str, str], address: str) -> Principal:
        shown = self.principals.shown(headers)
        if shown is not None and shown.by_cookie:
            if exchange.cors:  # such a page brings a key of its own
                shown = None
            else:
                self.guard.check_page(exchange.scope["method"], headers)
        exchange.shown = shown
        known = self.principals.believed(shown) if shown else None
        return known or await self.principals.principal(shown, address)

    async def _body(self, door: Door, headers: Mapping[str, str], receive: Receive) -> Any:
        raw = await self.guard.body(headers, receive, known=door.route.scope is not None)
        if not raw and (door.route.bare or door.route.body is None):
            return None
        media = headers.get("content-type", "")
        if len(raw) > LONG:  # others are not held up by it
            return await asyncio.to_thread(_checked, door, raw, media)
        return _checked(door, raw, media)

    async def _by_token(self, query: bytes, headers: Mapping[str, str], address: str) -> Reply:
        """The opened address has the token in it; the browser gets a cookie for it and an address without. With a
        wrong one the page asks for a key. A link on another's page logs nobody in: it could be into another's account,
        and whether somebody is in already cannot be seen, as the browser withholds our cookie then.
        """
        replies = {"location": "/"}
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return Reply(b"", 303, replies, media="")
        shown = shown_key(parse_qs(query.decode("latin-1")).get("token", [""])[0])
        try:
            await self.principals.principal(shown, address)
            replies["set-cookie"] = self.principals.cookie_for(shown, headers)
        except HttpError as error:
            if error.status != 401:
                raise
            replies["location"] = "/#/login/wrong"  # the page tells it
        return Reply(b"", 303, replies, media="")

    def _refusal(self, exchange: _Exchange, error: LaminaError) -> Reply:
        known = known_error(error)
        if known.status >= 500:
            exchange.error = f"{type(error).__name__} {_place(error)}"
        reply = error_reply(known, self._form(exchange))
        if isinstance(error, MethodError):
            reply.headers = {**reply.headers, "allow": error.allowed}
        return reply

    def _failure(self, exchange: _Exchange, error: Exception) -> Reply:
        """Something that nobody foresaw: the log says what and where, and in no case with which words."""
        exchange.error = f"{type(error).__name__} {_place(error)}"
        known = HttpError(
            500, "something went wrong here", hint=f"the gateway's log has it as {exchange.id}", kind="internal"
        )
        return error_reply(known, self._form(exchange))

    def _form(self, exchange: _Exchange) -> ErrorForm:
        """That of the route. Anthropic's client asks for models where OpenAI's does, and says who it is."""
        path = exchange.scope["path"]
        form = exchange.door.route.form if exchange.door else form_of(path)
        other = form == "openai" and not path.startswith("/v1/chat/")
        return "anthropic" if other and any(name == VERSION for name, _ in exchange.scope["headers"]) else form

    async def _send(self, exchange: _Exchange, reply: Reply) -> None:
        body, exchange.status = encoded(reply).body, reply.status
        if hasattr(body, "__aiter__"):
            await self._stream(exchange, reply, body)
            return
        if reply.status in (204, 304):
            body = b""
        if len(body) > LONG:
            if self._unsent + len(body) > self.options.replies_limit:
                busy = HttpError(503, "too many long replies at once", hint="try again in a moment", kind="busy")
                await self._send(exchange, error_reply(busy, self._form(exchange)))
                return
            await self._send_long(exchange, reply, body)
            return
        exchange.size = len(body)
        start = {"type": "http.response.start", "status": reply.status, "headers": head(reply, exchange.id, len(body))}
        await exchange.send(start)
        await exchange.send({"type": "http.response.body", "body": body})

    async def _send_long(self, exchange: _Exchange, reply: Reply, body: bytes) -> None:
        """Piece by piece as the client takes them: replies that nobody reads must not fill the memory."""
        self._unsent += len(body)
        try:
            size = exchange.size = len(body)
            start = {"type": "http.response.start", "status": reply.status, "headers": head(reply, exchange.id, size)}
            await exchange.send(start)
            for at in range(0, size, LONG):
                piece = body[at : at + LONG]
                await exchange.send({"type": "http.response.body", "body": piece, "more_body": at + LONG < size})
        finally:
            self._unsent -= len(body)

    async def _stream(self, exchange: _Exchange, reply: Reply, pieces: AsyncIterator[bytes]) -> None:
        """Send what comes, until it ends, the client leaves or its key is revoked; in any case the source is told."""
        send, sender = exchange.send, asyncio.current_task()
        assert sender is not None
        gone = asyncio.create_task(exchange.gone())
        left = False

        def leave(_: object = None) -> None:
            nonlocal left
            if not left:
                left = True
                sender.cancel()

        gone.add_done_callback(leave)
        self.metrics.streams += 1
        try:
            await send(
                {"type": "http.response.start", "status": reply.status, "headers": head(reply, exchange.id, None)}
            )
            with self.open.ended_by(exchange.shown, leave):
                async for piece in pieces if exchange.scope["method"] != "HEAD" else _none():
                    exchange.size += len(piece)
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            gone.remove_done_callback(leave)
            await send({"type": "http.response.body", "body": b""})
        except asyncio.CancelledError:
            if not left:
                raise
            sender.uncancel()
        except Exception as error:  # half a reply is out: the connection's end says that it is no whole one
            exchange.error = f"{type(error).__name__} {_place(error)}"
        finally:
            self.metrics.streams -= 1
            gone.remove_done_callback(leave)
            gone.cancel()
            close = getattr(pieces, "aclose", None)
            if close:
                await close()


def _checked(door: Door, raw: bytes, media: str) -> Any:
    """The value of a body, as the route takes it."""
    value = read_json(raw, media)
    if door.check and (fault := door.check(value)):
        raise HttpError(400, str(fault), hint="GET /api/openapi.json says what each route takes")
    return value


def _nothing_left() -> None:
    """Nobody counts it."""


def _streams(door: Door, headers: Mapping[str, str], body: Any) -> bool:
    """Whether the reply may come in pieces, as far as it can be seen before there is one."""
    if door.route.media == MEDIA or MEDIA in headers.get("accept", "").lower():
        return True
    return isinstance(body, dict) and body.get("stream") is True  # pyright: ignore[reportUnknownMemberType]


async def _none() -> AsyncIterator[bytes]:
    """The pieces of a reply to HEAD."""
    for piece in ():
        yield piece


async def estimate(app: App, turn: TurnRecord) -> tuple[int, int]:
    """What a turn cost by our own count: each request that was sent, and what came of the answer."""
    sent = sum(int(request["tokens"]) for request in turn.receipt.get("requests", ()))
    try:
        answer = await app.store.history.get(turn.owner, turn.answer_message_id)
    except LaminaError:  # it was deleted meanwhile
        return sent, 0
    return sent, answer.tokens or app.builder.settings.count(answer.text)


def _headers(raw: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """By name, in lower case. What comes twice is joined, but what must be one of a kind is refused."""
    made: dict[str, str] = {}
    for name, value in raw:
        key = name.decode("latin-1")
        if key in made:
            if key in ("host", "origin", "authorization", "x-api-key", "content-length", "content-type"):
                raise HttpError(400, f"the header {key} comes twice", hint="send it once")
            made[key] += ("; " if key == "cookie" else ", ") + value.decode("latin-1")
        else:
            made[key] = value.decode("latin-1")
    return made


def _place(error: BaseException) -> str:
    """Files and lines, the innermost last; the words of an error may be somebody's."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in reversed(frames))
