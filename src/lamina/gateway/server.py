"""The gateway on a socket: uvicorn with httptools, and the deadlines and limits on connections that it lacks.

One look at all connections every so often ends those that are late: a request costs no timer.
"""

import asyncio
import json
import logging
import math
import socket
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from lamina.errors import LaminaError, SettingsError
from lamina.gateway.gateway import Gateway
from lamina.gateway.options import Options
from lamina.gateway.replies import ALWAYS, NO_STORE

NEVER = math.inf
REFUSALS = {
    400: ("this is no HTTP request", "send HTTP/1.1"),
    408: ("the request did not come in time", "send it at once"),
    431: ("the headers are too long", "send fewer and shorter ones"),
    503: ("too many connections", "try again in a moment"),
}
GRACE = 5
"""Seconds that replies get to end when the gateway is told to stop."""


class Joined:
    """A transport that sends the head of a reply and the body behind it in one piece, where both come at once."""

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


class Deadlines(HttpToolsProtocol):
    """A connection that is closed when it is late: with its request, in taking its reply, or with the next request."""

    options = Options()
    addresses: ClassVar[Counter[str]] = Counter()
    """How many connections each address has; of one gateway."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = cast("asyncio.Transport", Joined(transport, self.loop))
        self.real = transport
        self.late = time.monotonic() + self.options.receive_seconds
        """When the peer must have done what it is to do; what it is depends on the state."""
        self.stuck = NEVER
        """The same for a peer that does not read."""
        self._refuse_as = 400
        self._in_head, self._whole = True, True
        self._head = self._chunk = 0
        """Bytes of the headers that came before this chunk, and of the chunk itself."""
        self._trailer, self._fed = 0, False
        """Bytes behind the last piece of a body that come in chunks; and whether this chunk had a piece of it."""
        self.left = False
        self.address = self.client[0] if self.client else ""
        self.addresses[self.address] += 1
        if not (self._room_here() and self._room()):
            self._refuse_as = 503
            self.send_400_response("")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.leave()

    def leave(self) -> None:
        """It counts no longer: it is lost, or it was told to go."""
        if not self.left:
            self.left = True
            self.addresses[self.address] -= 1
            if not self.addresses[self.address]:
                del self.addresses[self.address]

    def _room_here(self) -> bool:
        """Whether one address has not too many; the one of them that was idle longest is closed for it."""
        return self.addresses[self.address] <= self.options.address_connections or self._made_room(self.address)

    def _room(self) -> bool:
        return self.addresses.total() <= self.options.connections or self._made_room("")

    def _made_room(self, address: str) -> bool:
        every: list[Any] = list(self.connections)
        idle = [one for one in every if one is not self and one.is_waiting() and address in ("", one.address)]
        if not idle:
            return False
        longest = min(idle, key=lambda one: one.late)
        longest.transport.close()
        longest.leave()
        return True

    def is_waiting(self) -> bool:
        """Whether it is between two requests, or before the first."""
        return self._whole and self._idle() and not self.left

    def data_received(self, data: bytes) -> None:
        self._chunk, self._fed = len(data), False
        super().data_received(data)
        if self._in_head:
            self._head += len(data)
        elif not self._whole and not self._fed:
            self._trailer += len(data)
        if max(self._head, self._trailer) > self.options.header_limit and not self.transport.is_closing():
            self._refuse_as = 431
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._whole, self._fed = True, False, True
        self._head = self._trailer = 0
        if self.cycle_before():  # the first request has its time since the connection was made
            self.late = time.monotonic() + self.options.receive_seconds

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field behind a chunked body is none of the request's: who asks was said before it, and nobody reads it."""
        if self._in_head:
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

    def on_headers_complete(self) -> None:
        self._in_head, self._fed = False, True
        limit = self.options.header_limit
        too_long = self._head + self._chunk > limit and self._size() > limit
        if too_long or len(self.headers) > self.options.header_fields:
            self._refuse_as = 431
            raise ValueError  # httptools turns it into its own, and uvicorn that into a refusal
        super().on_headers_complete()

    def _size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._whole = True
        if not self.cycle.response_complete:
            self.late = NEVER

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._whole and self.cycle.response_complete:  # else a body is still to be thrown away, or the next waits
            self.late = time.monotonic() + self.options.idle_seconds

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stuck = time.monotonic() + self.options.receive_seconds

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stuck = NEVER

    def look(self, now: float) -> None:
        """End the connection when its time is over."""
        if self.stuck < now:
            self.real.abort()
        elif self.late < now:
            if self.real.is_closing() or self.real.get_write_buffer_size():
                self.real.abort()  # what was sent is not taken: there is nobody to be polite to
            elif self._whole:
                self.transport.close()
            else:
                self._refuse_as = 408
                if self._idle():
                    self.send_400_response("")
                else:  # the handler that waits for the body hears that the client is gone
                    self.real.abort()
                self.late = now + self.options.receive_seconds

    def _idle(self) -> bool:
        cycle = self.cycle_before()
        return cycle is None or cycle.response_complete

    def cycle_before(self) -> Any:
        """The newest request of this connection; None before the first."""
        return self.cycle

    def send_400_response(self, msg: str) -> None:
        """uvicorn's way to refuse what never reaches the application; ours says which of the reasons it is."""
        status = self._refuse_as
        message, hint = REFUSALS[status]
        body = json.dumps({"error": {"message": message, "hint": hint, "type": "connection"}}).encode()
        head = [STATUS_LINE[status]]
        for name, value in (*self.server_state.default_headers, *ALWAYS, NO_STORE):
            head += [name, b": ", value, b"\r\n"]
        head.append(b"content-type: application/json\r\nconnection: close\r\n")
        head.append(b"content-length: %d\r\n\r\n" % len(body))
        self.transport.write(b"".join(head) + body)
        self.transport.close()


class Server(uvicorn.Server):
    """uvicorn's server, with its signals left to whoever starts it, and a look at the connections now and then."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def look_after(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            now = time.monotonic() + every  # who would be late before the next look is late now
            connections: list[Any] = list(self.server_state.connections)
            for connection in connections:
                if isinstance(connection, Deadlines):
                    connection.look(now)


def listen(options: Options) -> socket.socket:
    """A socket at the address of the options; port 0 takes a free one."""
    host = options.address.strip("[]")
    try:
        family, kind, number, _, place = socket.getaddrinfo(host, options.port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, number)
    except OSError as error:
        raise SettingsError(f"{options.address} is no address here: {error.strerror}", hint="--listen 127.0.0.1:8765"
                            ) from None  # fmt: skip
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        made.listen(2_048)
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise SettingsError(
            f"cannot listen at {options.address}:{options.port}: {error.strerror}",
            hint="another program may have the port: --listen 127.0.0.1:0 takes a free one",
        ) from None
    return made


@asynccontextmanager
async def serving(gateway: Gateway, sock: socket.socket) -> AsyncGenerator[Server, None]:
    """The gateway answers at this socket. At the end turns that run are interrupted, so that their readers hear of
    it, and replies get a moment to end."""
    options = gateway.options
    protocol = type("Connection", (Deadlines,), {"options": options, "addresses": Counter()})
    config = uvicorn.Config(
        gateway, http=protocol, ws="none", loop="asyncio", lifespan="on", log_config=None, access_log=False,
        proxy_headers=False, server_header=False, timeout_keep_alive=max(1, math.ceil(options.idle_seconds)),
        timeout_graceful_shutdown=GRACE,
    )  # fmt: skip
    server = Server(config)
    task = asyncio.create_task(server.serve([sock]))
    look = asyncio.create_task(server.look_after(min(0.5, options.receive_seconds / 10)))
    try:
        while not server.started:
            if task.done():
                raise LaminaError("the gateway could not start", hint="the log may say why") from task.exception()
            await asyncio.sleep(0.005)
        yield server
    finally:
        gateway.ending = True
        await gateway.app.close()
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)
        look.cancel()


def uvicorn_is_quiet() -> None:
    """uvicorn's own words are no part of the log: its warnings may quote what came in."""
    logger: Any = logging.getLogger("uvicorn.error")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
