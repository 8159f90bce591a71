"""The gateway on a socket: uvicorn with httptools, and the deadlines and limits on connections that it lacks.

A periodic check of all connections ends those that are late, so a request costs no timer.
"""

import asyncio
import logging
import math
import socket
import time
from collections import OrderedDict, defaultdict
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar, Literal, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from lamina.errors import LaminaError, SettingsError, format_value
from lamina.gateway.gateway import Gateway
from lamina.gateway.handlers import ALWAYS, NO_STORE, HttpError, as_json, error_body
from lamina.gateway.limits import GatewayOptions

NEVER = math.inf
REFUSALS = {
    400: HttpError(400, "gateway.not_http", kind="connection"),
    408: HttpError(408, "gateway.request_late", kind="connection"),
    431: HttpError(431, "gateway.headers_too_long", kind="connection"),
    503: HttpError(503, "gateway.too_many_connections", hint="gateway.try_again", kind="connection"),
}
SHUTDOWN_GRACE_S = 5
"""For replies to end when the gateway is stopped."""
READ_BYTES = 16_384
"""Read from a connection in one go: each of these bytes may be a header or a chunk of its own."""
ACCEPTED_AT_ONCE = 32
"""Connections that are accepted in one round of the event loop; the others wait in the kernel's queue."""
BACKLOG = 2_048
"""The length of that queue."""
MAX_PIPELINED = 16
"""Requests of one connection that wait behind the one that is being answered."""
State = Literal["answered", "incomplete", "idle", "stuck", "busy"]
"""Of a connection: its request is answered, but the body is incomplete; its request is incomplete; it has no request;
it does not read its reply; it waits for us."""
GIVES_WAY_AFTER_S: dict[State, float] = {"answered": 0.1, "incomplete": 0.1, "idle": 0.0, "stuck": 1.0}
"""Which connections are closed for a new one where there are too many, in this order, and after how many seconds in
that state without progress. What waits for us is never closed."""
PROGRESS_BYTES = 1_024
"""Bytes of a body that count as progress: a slow client that sends byte by byte makes none."""
ANSWERED_BODY_S = 2.0
"""How long the next bytes of a body may take when its request is answered already."""
RETRY_AFTER_S = 1
"""After which a client that found no room may try again."""


class JoinedTransport:
    """Sends the head of a reply and its body in one piece where both are written at once."""

    __slots__ = ("_held", "_loop", "real")

    def __init__(self, real: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.real, self._loop, self._held = real, loop, b""

    def write(self, data: bytes) -> None:
        if self._held:
            data, self._held = self._held + data, b""
            self.real.write(data)
        elif data.startswith(b"HTTP/1.1 "):
            self._held = data
            self._loop.call_soon(self.flush)
        else:
            self.real.write(data)

    def flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self.real.write(held)

    def close(self) -> None:
        self.flush()
        self.real.close()

    def is_closing(self) -> bool:
        return self.real.is_closing()


class ConnectionTable:
    """The connections of one gateway by state and address, those that have been longest in their state first."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._since: dict[tuple[State, str], OrderedDict[Connection, float]] = {
            (state, ""): OrderedDict() for state in GIVES_WAY_AFTER_S
        }
        """By state and address; all addresses are under the empty one."""

    def add(self, one: "Connection") -> None:
        for address in (one.address, ""):
            self._counts[address] += 1

    def count(self, address: str) -> int:
        return self._counts.get(address, 0)

    def move(self, one: "Connection", state: State) -> None:
        """Note that a connection is in another state, or that its present one starts again."""
        self._forget(one)
        one.state = state
        if state != "busy":
            now = time.monotonic()
            for address in (one.address, ""):
                self._since.setdefault((state, address), OrderedDict())[one] = now

    def remove(self, one: "Connection") -> None:
        self._forget(one)
        one.state = "busy"
        for address in (one.address, ""):
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def _forget(self, one: "Connection") -> None:
        for address in (one.address, "") if one.state != "busy" else ():
            known = self._since[one.state, address]
            del known[one]
            if not known and address:
                del self._since[one.state, address]

    def first_to_go(self, address: str, but: "Connection") -> "Connection | None":
        """The connection that gives way to a new one, of this address or of any. Where all of them are too young for
        that, it is the oldest incomplete one: otherwise a burst of connections would lock out every other client."""
        now = time.monotonic()
        ages: list[tuple[State, float]] = [*GIVES_WAY_AFTER_S.items(), ("incomplete", 0.0)]
        for state, seconds in ages:
            for one, since in self._since.get((state, address), OrderedDict[Connection, float]()).items():
                if one is but:
                    continue
                if now - since >= seconds:
                    return one
                break
        return None


class Connection(HttpToolsProtocol):
    """A connection that is closed when it is late: with its request, in reading its reply, or with the next request."""

    options = GatewayOptions()
    places: ClassVar[ConnectionTable]
    """Of the gateway that this connection belongs to."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        cast("Any", transport).max_size = READ_BYTES
        super().connection_made(transport)
        self.transport = cast("asyncio.Transport", JoinedTransport(transport, self.loop))
        self.real = transport
        self.late = time.monotonic() + self.options.receive_seconds
        """When the peer must have done what its state asks of it."""
        self.stuck = NEVER
        """The same for a peer that does not read."""
        self._refuse_as = 400
        self._receive_until = self.late
        self._in_head, self._is_whole = True, True
        self._head = self._chunk = 0
        """Bytes of the headers that came before this chunk, and of the chunk itself."""
        self._progress = 0
        """Bytes of the body since the last time that they counted as progress."""
        self._trailer, self._fed = 0, False
        """Bytes behind the last piece of a chunked body; and whether the data that just came had a piece of it."""
        self.left = False
        self.address = self.client[0] if self.client else ""
        self.state: State = "busy"
        self.places.add(self)
        self.places.move(self, "incomplete")
        limits = {self.address: self.options.address_connections, "": self.options.connections}
        if not all(self._has_room(address, limit) for address, limit in limits.items()):
            self._refuse_as = 503
            self.send_400_response("")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.leave()

    def leave(self) -> None:
        """It no longer counts: it is lost, or it gave way."""
        if not self.left:
            self.left = True
            self.places.remove(self)

    def _has_room(self, address: str, limit: int) -> bool:
        """Whether there are not too many connections, of one address or in all; another one may be closed for it."""
        if self.places.count(address) <= limit:
            return True
        other = self.places.first_to_go(address, self)
        if other is not None:
            other.give_way()
        return other is not None

    def give_way(self) -> None:
        """Make room for another connection."""
        state = self.state
        self.leave()
        if state == "incomplete" and self._in_head and not self._is_whole:
            self._refuse_as = 408
            self.send_400_response("")
        elif state in ("answered", "idle") or (state == "incomplete" and self._in_head):
            self.transport.close()
        else:  # a handler that waits for the body or for the peer learns that it has left
            self.real.abort()

    def _move(self) -> None:
        """Note the state that follows from what was received and sent."""
        if self.left:
            return
        if self.stuck < NEVER:
            state: State = "stuck"
        elif not self._is_whole:
            state = "answered" if self._is_answered() else "incomplete"
        else:
            state = "idle" if self._idle() else "busy"
        if state != self.state:
            self.places.move(self, state)

    def data_received(self, data: bytes) -> None:
        self._chunk, self._fed = len(data), False
        super().data_received(data)
        if self._in_head:
            self._head += len(data)
        elif not self._is_whole and not self._fed:
            self._trailer += len(data)
        if max(self._head, self._trailer) > self.options.header_limit and not self.transport.is_closing():
            self._refuse_as = 431
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._is_whole, self._fed = True, False, True
        self._head = self._trailer = self._progress = 0
        if self.cycle_before():  # the first request has its time since the connection was made
            self.late = time.monotonic() + self.options.receive_seconds
            self._move()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field behind a chunked body is not one of the request: credentials come before it, and it is not read."""
        if self._in_head:
            if len(self.headers) >= self.options.header_fields:
                self._refuse_as = 431
                raise ValueError
            super().on_header(name, value)
            return
        self._trailer += len(name) + len(value) + 4
        if self._trailer > self.options.header_limit:
            self._refuse_as = 431
            raise ValueError

    def on_chunk_header(self) -> None:
        self._fed, self._trailer = True, 0

    def on_body(self, body: bytes) -> None:
        self._fed = True
        super().on_body(body)
        self._progress += len(body)
        if self._progress >= PROGRESS_BYTES and self.state in ("answered", "incomplete"):
            self._note_progress()

    def _note_progress(self) -> None:
        self._progress = 0
        self.places.move(self, self.state)
        if self.state == "answered":
            self.late = min(self._receive_until, time.monotonic() + ANSWERED_BODY_S)

    def on_headers_complete(self) -> None:
        self._in_head, self._fed = False, True
        limit = self.options.header_limit
        too_long = self._head + self._chunk > limit and self._size() > limit
        if too_long:
            self._refuse_as = 431
            raise ValueError  # httptools turns it into its own, and uvicorn that into a refusal
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refuse_as = 503
            raise ValueError
        super().on_headers_complete()
        self._receive_until = self.late
        self._move()
        if self.state == "incomplete":  # that the headers are all there is progress
            self._note_progress()

    def _size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_whole = True
        self.late = NEVER if not self.cycle.response_complete else time.monotonic() + self.options.idle_seconds
        self._move()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_whole and self.cycle.response_complete:  # else a body is still to be thrown away, or the next waits
            self.late = time.monotonic() + self.options.idle_seconds
        self._move()
        if self.state == "answered":
            self._note_progress()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stuck = time.monotonic() + self.options.receive_seconds
        self._move()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stuck = NEVER
        self._move()

    def check_deadline(self, now: float) -> None:
        """End the connection when its time is over."""
        if self.stuck < now:
            self.real.abort()
        elif self.late < now:
            if self.real.is_closing() or self.real.get_write_buffer_size():
                self.real.abort()  # what was sent is not read, so a refusal would not be read either
            elif self._is_whole or self._is_answered():
                self.transport.close()
            else:
                self._refuse_as = 408
                if self._idle():
                    self.send_400_response("")
                else:  # the handler that waits for the body learns that the client has left
                    self.real.abort()
                self.late = now + self.options.receive_seconds

    def _idle(self) -> bool:
        cycle = self.cycle_before()
        return cycle is None or cycle.response_complete

    def _is_answered(self) -> bool:
        """Whether the request whose body is still missing has its reply."""
        return not self._in_head and not self._is_whole and self._idle()

    def cycle_before(self) -> Any:
        """The newest request of this connection; None before the first."""
        return self.cycle

    def send_400_response(self, msg: str) -> None:
        """How uvicorn refuses what never reaches the application; ours says for which reason."""
        status = self._refuse_as
        body = as_json(error_body(REFUSALS[status], "lamina"))
        head = [STATUS_LINE[status]]
        for name, value in (*self.server_state.default_headers, *ALWAYS, NO_STORE):
            head += [name, b": ", value, b"\r\n"]
        if status == 503:
            head.append(b"retry-after: %d\r\n" % RETRY_AFTER_S)
        head.append(b"content-type: application/json\r\nconnection: close\r\n")
        head.append(b"content-length: %d\r\n\r\n" % len(body))
        self.transport.write(b"".join(head) + body)
        self.transport.close()


class GatewayServer(uvicorn.Server):
    """uvicorn's server, with signals left to the caller, and a periodic check of the connections."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def check_deadlines(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            now = time.monotonic() + every  # one that would be late before the next check is late now
            connections: list[Any] = list(self.server_state.connections)
            for connection in connections:
                if isinstance(connection, Connection):
                    connection.check_deadline(now)


def listen_place(text: str) -> tuple[str, int]:
    """`127.0.0.1:8765`, `[::1]:8765`, `localhost:0` as an address and a port; port 0 takes a free one."""
    address, sign, port = text.rpartition(":")
    if not sign or not address or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise SettingsError("gateway.bad_listen", hint="gateway.listen_form", value=format_value(text))
    if address.startswith("[") != address.endswith("]") or (":" in address and not address.startswith("[")):
        raise SettingsError("gateway.bad_listen", hint="gateway.listen_form_ipv6", value=format_value(text))
    return address, int(port)


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the address. A name other than localhost may lead anywhere."""
    bare = address.strip("[]").lower()
    parts = bare.split(".")
    is_127 = len(parts) == 4 and parts[0] == "127" and all(p.isascii() and p.isdigit() and int(p) < 256 for p in parts)
    return is_127 or bare in ("localhost", "::1")


def listen(options: GatewayOptions) -> socket.socket:
    """A socket at the address of the options; port 0 takes a free one."""
    host = options.address.strip("[]")
    try:
        family, kind, number, _, place = socket.getaddrinfo(host, options.port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, number)
    except OSError as error:
        raise SettingsError("gateway.bad_address", address=options.address, why=error.strerror) from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError as error:
        made.close()
        place = f"{options.address}:{options.port}"
        raise SettingsError("gateway.cannot_listen", address=place, why=error.strerror) from None
    return made


@asynccontextmanager
async def serving(gateway: Gateway, sock: socket.socket) -> AsyncGenerator[GatewayServer, None]:
    """The gateway answers at this socket. At the end running turns are interrupted, so that their readers learn of it,
    and replies get a moment to end."""
    options = gateway.options
    protocol = type("GatewayConnection", (Connection,), {"options": options, "places": ConnectionTable()})
    config = uvicorn.Config(
        gateway, http=protocol, ws="none", loop="asyncio", lifespan="on", log_config=None, access_log=False,
        proxy_headers=False, server_header=False, timeout_keep_alive=max(1, math.ceil(options.idle_seconds)),
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S, backlog=ACCEPTED_AT_ONCE,
    )  # fmt: skip
    server = GatewayServer(config)
    task = asyncio.create_task(server.serve([sock]))
    checking = asyncio.create_task(server.check_deadlines(min(0.5, options.receive_seconds / 10)))
    try:
        while not server.started:
            if task.done():
                raise LaminaError("gateway.did_not_start") from task.exception()
            await asyncio.sleep(0.005)
        sock.listen(BACKLOG)
        yield server
    finally:
        gateway.ending = True
        await gateway.app.close()
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)
        checking.cancel()


def silence_uvicorn() -> None:
    """Keep uvicorn's own messages out of the log: its warnings may quote what a client sent."""
    logger: Any = logging.getLogger("uvicorn.error")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
