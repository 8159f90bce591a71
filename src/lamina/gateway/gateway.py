"""The gateway as an ASGI application: one table of routes, and before each handler the same few checks in the same
order: our host? our page? which route? which principal? within its limits? what body? There is nothing else in between.
"""

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from secrets import token_hex
from typing import TYPE_CHECKING, Any, cast

from lamina.apart import run_in_user_thread, set_current_user
from lamina.app.app import App, TurnHandle
from lamina.errors import LaminaError, format_value
from lamina.gateway import api_memories, api_sessions, api_templates, api_turns, system_routes, v1
from lamina.gateway.handlers import (
    ANONYMOUS,
    ErrorForm,
    HttpError,
    Principal,
    Receive,
    Reply,
    Request,
    Route,
    Send,
    dump_json,
    error_reply,
    is_long,
    long_json,
    not_found,
    public_error,
    reply_headers,
    to_plain,
)
from lamina.gateway.limits import GatewayOptions, UsageLimits
from lamina.gateway.metrics import Metrics, RequestLog
from lamina.gateway.principals import Credential, Guard, Principals
from lamina.gateway.schemas import SLICE_BYTES, compile_query, compile_type, openapi_document, read_json
from lamina.gateway.sse import MEDIA
from lamina.records import TurnRecord

if TYPE_CHECKING:
    from lamina.gateway.otel import Telemetry

ROUTES: Sequence[Route] = (
    *api_sessions.ROUTES, *api_turns.ROUTES, *api_memories.ROUTES, *api_templates.ROUTES, *v1.ROUTES,
    *system_routes.ABOUT_ROUTES,
)  # fmt: skip
NO_ROUTE = "-"
ANY_PIECE, ANY_PIECES = "{}", "{...}"
NO_PARAMETERS: Mapping[str, str] = {}
ANTHROPIC_HEADER = "anthropic-version"
"""A header that Anthropic's client sends with everything."""
WITHOUT_VERSION = ("/chat/completions", "/completions", "/embeddings", "/messages", "/models", "/responses")
"""Where clients ask whose base_url lacks `/v1`: they show only the errors of their own form."""
SINGLE_HEADERS = ("host", "origin", "authorization", "x-api-key", "content-length", "content-type")
LONG_PIECE_BYTES = 4_096
"""After a longer piece of a stream other tasks get their turn."""
LEAVE_CHECK_DELAY_S = 0.1
"""How long a read runs before it is checked whether its client is still there."""
CLOSE_TIMEOUT_S = 5
"""For the turns that are being counted when the gateway closes."""


@dataclass(slots=True, eq=False)
class CompiledRoute:
    """A route with all that is looked up or made once: the names in its path, its checks, its label in the metrics."""

    route: Route
    names: tuple[str, ...]
    read_body: Callable[[Any], Any] | None
    read_query: Callable[[bytes], Any]
    spends: bool
    """Whether it makes tokens flow: then a budget that is used up closes it."""
    label: str


@dataclass(slots=True)
class _Node:
    below: "dict[str, _Node]" = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    by_method: dict[str, CompiledRoute] = field(default_factory=dict[str, CompiledRoute])


class Routes:
    """From a method and a path to a route, by a tree of path pieces: its cost does not grow with the number of routes,
    as it does with patterns that are tried one after another."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._tree = _Node()
        self.compiled = [self._add(route) for route in routes]

    def _add(self, route: Route) -> CompiledRoute:
        pieces, names, node = route.path.split("/")[1:], list[str](), self._tree
        for piece in pieces:
            if piece.startswith("{"):
                names.append(piece[1:-1])
                piece = ANY_PIECES if route.rest and piece is pieces[-1] else ANY_PIECE
            node = node.below.setdefault(piece, _Node())
        spends = route.method == "POST" and route.scope == "chat" and not route.path.endswith("/cancel")
        read_body = compile_type(route.body) if route.body is not None else None
        label = f"{route.method} {route.path}"
        if route.method in node.by_method:
            raise ValueError(f"two routes are {label}")
        compiled = CompiledRoute(route, tuple(names), read_body, compile_query(route.query), spends, label)
        node.by_method[route.method] = compiled
        return compiled

    def find(self, method: str, path: str) -> tuple[CompiledRoute, Mapping[str, str]]:
        """The route and the names of its path. An error says that there is none, or not for this method."""
        node, values = self._tree, list[str]()
        pieces = path.split("/")[1:]
        for place, piece in enumerate(pieces):
            below = node.below.get(piece)
            if below is None and ANY_PIECES in node.below:
                values.append("/".join(pieces[place:]))
                node = node.below[ANY_PIECES]
                break
            if below is None:
                below = node.below.get(ANY_PIECE)
                if below is None:
                    raise not_found() if path.startswith(("/api/", "/web/")) else no_route()
                values.append(piece)
            node = below
        by_method = node.by_method
        if not by_method:
            raise not_found()
        compiled = by_method.get("GET" if method == "HEAD" else method)
        if compiled is None:
            raise MethodError(method, sorted({*by_method, "HEAD"} if "GET" in by_method else by_method))
        return compiled, dict(zip(compiled.names, values, strict=True)) if values else NO_PARAMETERS


def no_route() -> HttpError:
    return HttpError(404, "gateway.no_route", kind="not_found")


class MethodError(HttpError):
    def __init__(self, method: str, allowed: list[str]) -> None:
        self.allowed = ", ".join(allowed)
        super().__init__(405, "gateway.wrong_method", kind="method", method=format_value(method)[1:-1], allowed=allowed)


@dataclass(slots=True)
class _Exchange:
    """A request and its reply: what is needed to send it and to record it."""

    request: Request
    scope: Mapping[str, Any]
    send: Send
    compiled: CompiledRoute | None = None
    credential: Credential | None = None
    end_stream: Callable[[], None] | None = None
    """Counts its stream out of those that are open."""
    cors: str = ""
    error: str = ""
    status: int = 0
    size: int = 0
    started: float = field(default_factory=time.perf_counter)


class Gateway:
    """`Gateway(app, options, token=…)` is an ASGI application; `start()` and `close()` are its lifespan."""

    def __init__(
        self,
        app: App,
        options: GatewayOptions | None = None,
        *,
        token: str = "",
        routes: Sequence[Route] | None = None,
        traces: "Telemetry | None" = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.app = app
        self.options = options = options or GatewayOptions()
        self.metrics = Metrics()
        self.log = RequestLog(options.log)
        self.limits = UsageLimits(app, options, clock)
        self.principals = Principals(app, options, self.limits, token=token, clock=clock)
        self.guard = Guard(options)
        every = [*system_routes.ROUTES, *(ROUTES if routes is None else routes)]
        self.routes = Routes(every)
        self.document = openapi_document(every)
        self._traces = traces
        self._ids, self._prefix = count(1), token_hex(4)
        self._watched: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._receiving = self._unsent = 0
        """Bytes of bodies that are being received, and of long replies that are being sent."""
        self.ending = False
        """Set before it is closed: nothing new is started."""

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(self.limits.run()), asyncio.create_task(self.principals.run())]

    async def close(self) -> None:
        """Usage is written, and the log too."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if self._watched:
            await asyncio.wait(self._watched.values(), timeout=CLOSE_TIMEOUT_S)
        await self.limits.flush(everything=True)
        if self._traces:
            await asyncio.to_thread(self._traces.close)
        self.log.close()

    def watch(self, request: Request, running: TurnHandle) -> None:
        """Count the turn when it ends; one that is over already was counted by the request that started it."""
        turn_id = running.turn.turn_id
        if not (running.over or running.turn.repeated) and turn_id not in self._watched:
            parent = request.headers.get("traceparent", "")
            task = self._watched[turn_id] = asyncio.create_task(self._count(request.principal, parent, running))
            end_turn, request.end_turn = request.end_turn, None  # the turn may outlive the request
            task.add_done_callback(lambda _: (self._watched.pop(turn_id, None), end_turn and end_turn()))

    async def _count(self, principal: Principal, parent: str, running: TurnHandle) -> None:
        turn = await running.wait()
        self.metrics.count_turn(turn)
        if self._traces:
            self._traces.turn(turn, parent)
        prompt, completion = int(turn.usage.get("prompt", 0)), int(turn.usage.get("completion", 0))
        if not prompt:  # the client left before the provider counted, or the provider counts nothing
            prompt, completion = await estimate(self.app, turn)
        self.limits.add_tokens(principal, prompt, completion)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._handle(scope, receive, send)
        elif scope["type"] == "lifespan":
            await receive()
            await self.start()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self.close()
            await send({"type": "lifespan.shutdown.complete"})
        else:  # there is nothing here for a WebSocket
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    async def _handle(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        request = Request(self, f"{self._prefix}{next(self._ids):08x}", scope["method"], scope["path"], receive)
        exchange, turn_id = _Exchange(request, scope, send), ""
        try:
            try:
                reply = await self._answer(exchange)
                await self._encode(request.principal, reply)
            except LaminaError as error:
                reply = self._refusal(exchange, error)
            except Exception as error:
                reply = self._failure(exchange, error)
            turn_id = reply.headers.get("X-Lamina-Turn", "")
            if exchange.cors:
                reply.headers = {**reply.headers, **self.guard.cors_headers(exchange.cors)}
            await self._send(exchange, reply)
        finally:
            if exchange.end_stream:
                exchange.end_stream()
            self._record(exchange, turn_id)

    def _record(self, exchange: _Exchange, turn_id: str) -> None:
        request, compiled = exchange.request, exchange.compiled
        seconds = time.perf_counter() - exchange.started
        path, label = (compiled.route.path, compiled.label) if compiled else (NO_ROUTE, f"{NO_ROUTE} {NO_ROUTE}")
        self.metrics.count_request(label, exchange.status, seconds)
        if self.log.on:
            principal = request.principal
            self.log.line(
                request.id,
                request.method,
                path,
                exchange.status,
                seconds,
                exchange.size,
                principal.user,
                principal.key_id,
                turn_id,
                exchange.error,
            )

    async def _answer(self, exchange: _Exchange) -> Reply:
        request, scope = exchange.request, exchange.scope
        if self.ending:
            raise HttpError(503, "gateway.ending", hint="gateway.try_again", kind="ending")
        request.headers = headers = read_headers(scope["headers"])
        server, client, host = scope.get("server"), scope.get("client"), headers.get("host", "")
        request.address = client[0] if client else ""
        self.guard.check_host(host, server[0] if server else "")
        if "origin" in headers:
            exchange.cors = self.guard.check_origin(headers["origin"], host)
            if request.method == "OPTIONS" and exchange.cors:
                return Reply(b"", 204, self.guard.preflight_headers(exchange.cors), media="")
        compiled, request.params = self.routes.find(request.method, request.path)
        exchange.compiled, route = compiled, compiled.route
        if route.scope is not None:
            principal = request.principal = await self._find_principal(exchange)
            if route.scope not in principal.scopes:
                raise HttpError(403, "gateway.no_scope", kind="scope", scope=route.scope)
            self.limits.admit(principal, spends=compiled.spends)
            set_current_user(principal.user)
        request.query = compiled.read_query(scope["query_string"])
        if route.method != "GET":
            await self._read_body(compiled, request)
        if request.principal is not ANONYMOUS:
            if _streams(route, request):
                exchange.end_stream = self.limits.open_stream(request.principal)
            if compiled.spends:
                request.end_turn = self.limits.open_turn(request.principal)
        try:
            return await (self._read(route, request) if route.method == "GET" else route.handler(self.app, request))
        finally:
            if request.end_turn:
                request.end_turn()

    async def _read(self, route: Route, request: Request) -> Reply:
        """The reply to a request that changes nothing, which stops when its client leaves. Most are over before it is
        worthwhile to check for that."""
        reader, left = asyncio.current_task(), False
        assert reader is not None

        async def leave() -> None:
            nonlocal left
            await request.wait_until_left()
            left = True
            reader.cancel()

        waiting: list[asyncio.Task[None]] = []
        timer = asyncio.get_running_loop().call_later(
            LEAVE_CHECK_DELAY_S, lambda: waiting.append(asyncio.create_task(leave()))
        )
        try:
            return await route.handler(self.app, request)
        except asyncio.CancelledError:
            if not left:
                raise
            reader.uncancel()
            raise HttpError(499, "gateway.client_left", kind="client_left") from None
        finally:
            timer.cancel()
            for task in waiting:
                task.cancel()

    async def _find_principal(self, exchange: _Exchange) -> Principal:
        request = exchange.request
        credential = self.principals.read_credential(request.headers)
        if credential is not None and credential.by_cookie:
            if exchange.cors:  # such a page brings a key of its own
                credential = None
            else:
                self.guard.check_page(request.method, request.headers)
        exchange.credential = credential
        known = self.principals.cached(credential) if credential else None
        return known or await self.principals.principal(credential, request.address)

    async def _read_body(self, compiled: CompiledRoute, request: Request) -> None:
        """The body as the type of the route; a long one is read in a thread."""
        pieces = await self._receive_body(request, is_open=compiled.route.scope is None)
        size = sum(map(len, pieces))
        if not size and (compiled.route.bare or compiled.route.body is None):
            return
        media = request.headers.get("content-type", "")
        request.has_long_body = size > SLICE_BYTES
        request.body = await request.work(_check_body, compiled, pieces, media)

    async def _receive_body(self, request: Request, *, is_open: bool) -> Sequence[bytes]:
        """All of the body, in the pieces in which it came. One that says that it is too long is refused unread; where
        no credential is needed, less is accepted."""
        headers, limit = request.headers, self.options.open_body_limit if is_open else self.options.body_limit
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or len(length) > 15:
            raise HttpError(400, "body.bad_length")
        if int(length) > limit:
            raise _too_long(limit)
        coding = headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            raise HttpError(415, "body.compressed", kind="media", coding=format_value(coding))
        pieces, size, has_more = list[bytes](), 0, True
        try:
            while has_more:
                message = await request.receive()
                if message["type"] != "http.request":
                    raise HttpError(400, "body.cut_off")
                piece, has_more = message.get("body", b""), message.get("more_body")
                pieces.append(piece)
                size += len(piece)
                self._receiving += len(piece)
                if size > limit:
                    raise _too_long(limit)
                if has_more and self._receiving > self.options.bodies_limit:  # they must not fill the memory
                    raise HttpError(503, "gateway.long_bodies", hint="gateway.try_again", kind="busy")
            return pieces
        finally:
            self._receiving -= size

    async def _encode(self, principal: Principal, reply: Reply) -> None:
        """Its value as bytes: what cannot be written is found while an error can still be sent."""
        if isinstance(reply.body, bytes) or hasattr(reply.body, "__aiter__"):
            return
        if reply.status == 204:
            reply.body = b""
            return
        plain = to_plain(reply.body)
        reply.body = await run_in_user_thread(principal.user, long_json, plain) if is_long(plain) else dump_json(plain)

    def _refusal(self, exchange: _Exchange, error: LaminaError) -> Reply:
        known = public_error(error)
        if known.status >= 500:
            exchange.error = f"{type(error).__name__} {_place(error)}"
        reply = error_reply(known, _error_form(exchange))
        if isinstance(error, MethodError):
            reply.headers = {**reply.headers, "allow": error.allowed}
        return reply

    def _failure(self, exchange: _Exchange, error: Exception) -> Reply:
        """An unforeseen error: the log says what and where, but never repeats its text."""
        exchange.error = f"{type(error).__name__} {_place(error)}"
        known = HttpError(500, "gateway.internal", kind="internal", request=exchange.request.id)
        return error_reply(known, _error_form(exchange))

    async def _send(self, exchange: _Exchange, reply: Reply) -> None:
        body: Any = reply.body
        if hasattr(body, "__aiter__"):
            await self._stream(exchange, reply, body)
            return
        if isinstance(body, bytes) and len(body) > SLICE_BYTES:
            body = [body[at : at + SLICE_BYTES] for at in range(0, len(body), SLICE_BYTES)]
        if isinstance(body, list):
            pieces = cast("list[bytes]", body)
            size = sum(map(len, pieces))
            if self._unsent + size <= self.options.replies_limit:
                await self._send_long(exchange, reply, pieces, size)
                return
            busy = HttpError(503, "gateway.long_replies", hint="gateway.try_again", kind="busy")
            reply = error_reply(busy, _error_form(exchange))
            body = reply.body
        await self._send_head(exchange, reply, len(body))
        await exchange.send({"type": "http.response.body", "body": body})

    async def _send_head(self, exchange: _Exchange, reply: Reply, size: int | None) -> None:
        exchange.status, exchange.size = reply.status, size or 0
        headers = reply_headers(reply, exchange.request.id, size)
        await exchange.send({"type": "http.response.start", "status": reply.status, "headers": headers})

    async def _send_long(self, exchange: _Exchange, reply: Reply, pieces: Sequence[bytes], size: int) -> None:
        """Piece by piece as the client reads them: replies that are not read must not fill the memory."""
        self._unsent += size
        try:
            await self._send_head(exchange, reply, size)
            for piece in pieces:
                await exchange.send({"type": "http.response.body", "body": piece, "more_body": True})
                await asyncio.sleep(0)  # a client that reads as fast as we send does not hold up others
            await exchange.send({"type": "http.response.body", "body": b""})
        finally:
            self._unsent -= size

    async def _stream(self, exchange: _Exchange, reply: Reply, pieces: AsyncIterator[bytes]) -> None:
        """Send what comes until it ends, the client leaves or its key is revoked; in each case the source is closed."""
        send, sender, left = exchange.send, asyncio.current_task(), False
        assert sender is not None
        leaving = asyncio.create_task(exchange.request.wait_until_left())

        def leave(_: object = None) -> None:
            nonlocal left
            if not left:
                left = True
                sender.cancel()

        leaving.add_done_callback(leave)
        self.metrics.streams += 1
        try:
            await self._send_head(exchange, reply, None)
            with self.principals.end_when_revoked(exchange.credential, leave):
                async for piece in pieces if exchange.request.method != "HEAD" else _no_pieces():
                    exchange.size += len(piece)
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    if len(piece) > LONG_PIECE_BYTES:
                        await asyncio.sleep(0)  # a client that reads as fast as we send does not hold up others
            leaving.remove_done_callback(leave)
            await send({"type": "http.response.body", "body": b""})
        except asyncio.CancelledError:
            if not left:
                raise
            sender.uncancel()
        except Exception as error:  # half a reply is sent: closing the connection says that it is incomplete
            exchange.error = f"{type(error).__name__} {_place(error)}"
        finally:
            self.metrics.streams -= 1
            leaving.remove_done_callback(leave)
            leaving.cancel()
            close = getattr(pieces, "aclose", None)
            if close:
                await close()


def _too_long(limit: int) -> HttpError:
    return HttpError(413, "body.too_long", kind="too_large", limit=limit)


def _check_body(compiled: CompiledRoute, pieces: Sequence[bytes], media: str) -> Any:
    """The value of a body, as the type of the route."""
    value = read_json(pieces, media)
    return compiled.read_body(value) if compiled.read_body else value


def _streams(route: Route, request: Request) -> bool:
    """Whether the reply may be streamed, as far as it can be seen before there is one."""
    if route.media == MEDIA or MEDIA in request.headers.get("accept", "").lower():
        return True
    return getattr(request.body, "stream", None) is True


async def _no_pieces() -> AsyncIterator[bytes]:
    """The pieces of a reply to HEAD."""
    for piece in ():
        yield piece


async def estimate(app: App, turn: TurnRecord) -> tuple[int, int]:
    """What a turn cost by our own count: each request that was sent, and what came of the answer."""
    sent = sum(int(request["tokens"]) for request in turn.receipt.get("requests", ()))
    try:
        answer = await app.store.messages.get(turn.owner, turn.answer_message_id)
    except LaminaError:  # it was deleted in the meantime
        return sent, 0
    return sent, answer.tokens or app.builder.settings.count(answer.text)


def read_headers(raw: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """By name, in lower case. Repeated ones are joined, but one that must be single is refused."""
    made: dict[str, str] = {}
    for name, value in raw:
        key = name.decode("latin-1")
        if key in made:
            if key in SINGLE_HEADERS:
                raise HttpError(400, "gateway.repeated_header", name=key)
            made[key] += ("; " if key == "cookie" else ", ") + value.decode("latin-1")
        else:
            made[key] = value.decode("latin-1")
    return made


def _error_form(exchange: _Exchange) -> ErrorForm:
    """That of the route, or of the path where there is none. Anthropic's client asks for models where OpenAI's does,
    and says who it is."""
    path = exchange.request.path
    if exchange.compiled:
        form = exchange.compiled.route.form
    else:
        path = f"/v1{path}" if path.startswith(WITHOUT_VERSION) else path
        form = "anthropic" if path.startswith("/v1/messages") else "openai" if path.startswith("/v1/") else "lamina"
    shared = form == "openai" and not path.startswith("/v1/chat/")
    return "anthropic" if shared and ANTHROPIC_HEADER in exchange.request.headers else form


def _place(error: BaseException) -> str:
    """Files and lines, the innermost last; the text of an error may contain what a user wrote."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in reversed(frames))
