"""The gateway as an ASGI application of our own: one table of routes, and before each handler the same few questions
in the same order: our host? whose page? which route? who asks? how much? what body? There is nothing else in between.
"""

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from secrets import token_hex
from typing import Any, Protocol, cast
from urllib.parse import parse_qs

from lamina.apart import run_for, work_for
from lamina.app.app import App, TurnHandle
from lamina.errors import LaminaError
from lamina.gateway import openapi
from lamina.gateway.bodies import SLICE_BYTES, read_json
from lamina.gateway.guard import Guard
from lamina.gateway.http import NOBODY, ErrorForm, HttpError, Principal, Reply, Request, Route
from lamina.gateway.limits import Limits
from lamina.gateway.log import RequestLog
from lamina.gateway.metrics import Metrics
from lamina.gateway.options import Options
from lamina.gateway.principals import Credential, Principals, parse_key
from lamina.gateway.replies import as_json, error_reply, head, is_long, known_error, long_json
from lamina.gateway.routes import ROUTES
from lamina.gateway.routing import CompiledRoute, MethodError, Routes, error_form_of
from lamina.gateway.shapes import refuse
from lamina.gateway.sse import MEDIA
from lamina.gateway.streams import Concurrency
from lamina.gateway.system_routes import system_routes
from lamina.records import TurnRecord

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
NO_ROUTE = "-"
ANTHROPIC_HEADER = b"anthropic-version"
"""A header that Anthropic's client sends with everything."""
LONG_PIECE_BYTES = 4_096
"""Of a stream; after a longer one others get their turn."""
LEAVE_CHECK_DELAY_S = 0.1
"""How long a read runs before it is looked whether its client is still there."""


class Traces(Protocol):
    """Who else hears of turns; `otel` has one."""

    def turn(self, turn: TurnRecord, parent: str = "") -> None: ...

    def close(self) -> None: ...


class _Exchange:
    """A request on its way: what its log line needs in the end."""

    __slots__ = (
        "compiled",
        "cors",
        "credential",
        "error",
        "id",
        "left",
        "principal",
        "receive",
        "scope",
        "send",
        "size",
        "started",
        "status",
        "turn_left",
    )  # fmt: skip

    def __init__(self, scope: Mapping[str, Any], receive: Receive, send: Send, request_id: str) -> None:
        self.scope, self.receive, self.send, self.id = scope, receive, send, request_id
        self.principal, self.compiled = NOBODY, None
        self.principal: Principal
        self.compiled: CompiledRoute | None
        self.credential: Credential | None = None
        self.left = self.turn_left = _do_nothing
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
        self.concurrency = Concurrency(self.principals, options)
        every = [*system_routes(self), *(ROUTES if routes is None else routes)]
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
        self._looking = [asyncio.create_task(self.limits.run()), asyncio.create_task(self.concurrency.run())]

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

    def watch(self, exchange: _Exchange, parent: str, running: TurnHandle) -> None:
        """Count the turn when it ends; one that is over already was counted by the request that began it."""
        turn_id = running.turn.turn_id
        if not (running.over or running.turn.repeated) and turn_id not in self._watched:
            task = self._watched[turn_id] = asyncio.create_task(self._count(exchange.principal, parent, running))
            left, exchange.turn_left = exchange.turn_left, _do_nothing  # the turn may outlive the request
            task.add_done_callback(lambda _: (self._watched.pop(turn_id, None), left()))

    async def _count(self, principal: Principal, parent: str, running: TurnHandle) -> None:
        turn = await running.wait()
        self.metrics.count_turn(turn)
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
                reply = await self._answer(exchange)
                await self._encode(exchange.principal, reply)
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
            compiled, principal = exchange.compiled, exchange.principal
            path, label = (compiled.route.path, compiled.label) if compiled else (NO_ROUTE, f"{NO_ROUTE} {NO_ROUTE}")
            self.metrics.count_request(label, exchange.status, seconds)
            if self.log.on:
                self.log.line(
                    exchange.id, scope["method"], path, exchange.status, seconds, exchange.size, principal.user,
                    principal.key_id, turn, exchange.error,
                )  # fmt: skip

    async def _answer(self, exchange: _Exchange) -> Reply:
        scope = exchange.scope
        method, path = scope["method"], scope["path"]
        if self.ending:
            raise HttpError(503, "gateway.ending", hint="gateway.try_again", kind="ending")
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
        compiled, params = self.routes.find(method, path)
        exchange.compiled = compiled
        principal = NOBODY
        if compiled.route.scope is not None:
            principal = exchange.principal = await self._principal(exchange, headers, address)
            if compiled.route.scope not in principal.scopes:
                raise HttpError(403, "gateway.no_scope", kind="scope", scope=compiled.route.scope)
            self.limits.admit(principal, spends=compiled.spends)
            work_for(principal.user)
        query = compiled.query(scope["query_string"])
        body, is_long_body = None, False
        if compiled.route.method != "GET":
            body, is_long_body = await self._body(compiled, headers, exchange.receive, principal)
        request = Request(
            exchange.id, method, path, params, query, headers, body, principal, exchange.gone,
            partial(self.spent, principal), partial(self.watch, exchange, headers.get("traceparent", "")), address,
        )  # fmt: skip
        if is_long_body:
            request.work = partial(run_for, principal.user)
        if principal is not NOBODY:
            if _streams(compiled, headers, body):
                exchange.left = self.concurrency.stream(principal)
            if compiled.spends:
                exchange.turn_left = self.concurrency.turn(principal)
        try:
            if compiled.route.method == "GET":
                return await self._read(compiled, request)
            return await compiled.route.handler(self.app, request)
        finally:
            exchange.turn_left()

    async def _read(self, compiled: CompiledRoute, request: Request) -> Reply:
        """The reply to a request that changes nothing, which stops when its client leaves. Most are over before it is
        worth to look whether it does."""
        reader, left = asyncio.current_task(), False
        assert reader is not None

        async def leave() -> None:
            nonlocal left
            await request.gone()
            left = True
            reader.cancel()

        looking: list[asyncio.Task[None]] = []
        timer = asyncio.get_running_loop().call_later(
            LEAVE_CHECK_DELAY_S, lambda: looking.append(asyncio.create_task(leave()))
        )
        try:
            return await compiled.route.handler(self.app, request)
        except asyncio.CancelledError:
            if not left:
                raise
            reader.uncancel()
            raise HttpError(499, "gateway.client_left", kind="client_left") from None
        finally:
            timer.cancel()
            for task in looking:
                task.cancel()

    async def _principal(self, exchange: _Exchange, headers: Mapping[str, str], address: str) -> Principal:
        credential = self.principals.read_credential(headers)
        if credential is not None and credential.by_cookie:
            if exchange.cors:  # such a page brings a key of its own
                credential = None
            else:
                self.guard.check_page(exchange.scope["method"], headers)
        exchange.credential = credential
        known = self.principals.cached(credential) if credential else None
        return known or await self.principals.principal(credential, address)

    async def _body(
        self, compiled: CompiledRoute, headers: Mapping[str, str], receive: Receive, principal: Principal
    ) -> tuple[Any, bool]:
        """The body as the route takes it, and whether it is long."""
        pieces = await self.guard.body(headers, receive, known=compiled.route.scope is not None)
        size = sum(map(len, pieces))
        if not size and (compiled.route.bare or compiled.route.body is None):
            return None, False
        media = headers.get("content-type", "")
        if size > SLICE_BYTES:
            return await run_for(principal.user, _check_body, compiled, pieces, media), True
        return _check_body(compiled, pieces, media), False

    async def _encode(self, principal: Principal, reply: Reply) -> None:
        """Its value as bytes: what cannot be written is found while an error can still be told."""
        value = reply.body
        if isinstance(value, bytes) or hasattr(value, "__aiter__"):
            return
        if value is None and reply.media != "application/json":
            reply.body = b""
        elif is_long(value):
            reply.body = await run_for(principal.user, long_json, value)
        else:
            reply.body = as_json(value)

    async def _by_token(self, query: bytes, headers: Mapping[str, str], address: str) -> Reply:
        """The opened address has the token in it; the browser gets a cookie for it and an address without. With a
        wrong one the page asks for a key. A link on another's page logs nobody in: it could be into another's account,
        and whether somebody is in already cannot be seen, as the browser withholds our cookie then.
        """
        replies = {"location": "/"}
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return Reply(b"", 303, replies, media="")
        credential = parse_key(parse_qs(query.decode("latin-1")).get("token", [""])[0])
        try:
            await self.principals.principal(credential, address)
            replies["set-cookie"] = self.principals.cookie_for(credential, headers)
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
        """An unforeseen error: the log says what and where, but never repeats its text."""
        exchange.error = f"{type(error).__name__} {_place(error)}"
        known = HttpError(500, "gateway.internal", kind="internal", request=exchange.id)
        return error_reply(known, self._form(exchange))

    def _form(self, exchange: _Exchange) -> ErrorForm:
        """That of the route. Anthropic's client asks for models where OpenAI's does, and says who it is."""
        path = exchange.scope["path"]
        form = exchange.compiled.route.form if exchange.compiled else error_form_of(path)
        other = form == "openai" and not path.startswith("/v1/chat/")
        return "anthropic" if other and any(name == ANTHROPIC_HEADER for name, _ in exchange.scope["headers"]) else form

    async def _send(self, exchange: _Exchange, reply: Reply) -> None:
        body, exchange.status = reply.body, reply.status
        if hasattr(body, "__aiter__"):
            await self._stream(exchange, reply, body)
            return
        if reply.status in (204, 304):
            body = b""
        elif not isinstance(body, bytes | list):  # an error, which is short
            body = as_json(body)
        if isinstance(body, list) or len(body) > SLICE_BYTES:
            pieces = cast("list[bytes]", body) if isinstance(body, list) else _slice_body(body)
            size = sum(map(len, pieces))
            if self._unsent + size > self.options.replies_limit:
                busy = HttpError(503, "gateway.long_replies", hint="gateway.try_again", kind="busy")
                reply = error_reply(busy, self._form(exchange))
                body, exchange.status = as_json(reply.body), reply.status
            else:
                await self._send_long(exchange, reply, pieces, size)
                return
        exchange.size = len(body)
        start = {"type": "http.response.start", "status": reply.status, "headers": head(reply, exchange.id, len(body))}
        await exchange.send(start)
        await exchange.send({"type": "http.response.body", "body": body})

    async def _send_long(self, exchange: _Exchange, reply: Reply, pieces: Sequence[bytes], size: int) -> None:
        """Piece by piece as the client takes them: replies that nobody reads must not fill the memory."""
        self._unsent += size
        try:
            exchange.size = size
            start = {"type": "http.response.start", "status": reply.status, "headers": head(reply, exchange.id, size)}
            await exchange.send(start)
            for piece in pieces:
                await exchange.send({"type": "http.response.body", "body": piece, "more_body": True})
                await asyncio.sleep(0)  # a client that reads as fast as we send holds up nobody
            await exchange.send({"type": "http.response.body", "body": b""})
        finally:
            self._unsent -= size

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
            with self.concurrency.end_when_revoked(exchange.credential, leave):
                async for piece in pieces if exchange.scope["method"] != "HEAD" else _no_pieces():
                    exchange.size += len(piece)
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    if len(piece) > LONG_PIECE_BYTES:
                        await asyncio.sleep(0)  # one that reads as fast as we send holds up nobody
            gone.remove_done_callback(leave)
            await send({"type": "http.response.body", "body": b""})
        except asyncio.CancelledError:
            if not left:
                raise
            sender.uncancel()
        except Exception as error:  # half a reply is sent: closing the connection says that it is incomplete
            exchange.error = f"{type(error).__name__} {_place(error)}"
        finally:
            self.metrics.streams -= 1
            gone.remove_done_callback(leave)
            gone.cancel()
            close = getattr(pieces, "aclose", None)
            if close:
                await close()


def _slice_body(body: bytes) -> list[bytes]:
    return [body[at : at + SLICE_BYTES] for at in range(0, len(body), SLICE_BYTES)]


def _check_body(compiled: CompiledRoute, pieces: Sequence[bytes], media: str) -> Any:
    """The value of a body, as the route takes it."""
    value = read_json(pieces, media)
    if compiled.check:
        refuse(compiled.check(value))
    return value


def _do_nothing() -> None:
    """Nobody counts it."""


def _streams(compiled: CompiledRoute, headers: Mapping[str, str], body: Any) -> bool:
    """Whether the reply may come in pieces, as far as it can be seen before there is one."""
    if compiled.route.media == MEDIA or MEDIA in headers.get("accept", "").lower():
        return True
    return isinstance(body, dict) and body.get("stream") is True  # pyright: ignore[reportUnknownMemberType]


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


def _headers(raw: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """By name, in lower case. What comes twice is joined, but what must be one of a kind is refused."""
    made: dict[str, str] = {}
    for name, value in raw:
        key = name.decode("latin-1")
        if key in made:
            if key in ("host", "origin", "authorization", "x-api-key", "content-length", "content-type"):
                raise HttpError(400, "gateway.repeated_header", name=key)
            made[key] += ("; " if key == "cookie" else ", ") + value.decode("latin-1")
        else:
            made[key] = value.decode("latin-1")
    return made


def _place(error: BaseException) -> str:
    """Files and lines, the innermost last; the words of an error may be somebody's."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in reversed(frames))
