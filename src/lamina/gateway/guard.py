"""Before any handler: is the request meant for us, does it come from a page that may, and is its body what it says?

A name in `Host` that is not ours is how a page elsewhere reaches this machine by DNS; an `Origin` that is not ours is
another's page in our user's browser.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from lamina.errors import format_value
from lamina.gateway.http import HttpError
from lamina.gateway.options import LOOPBACK_NAMES, Options

SAFE = ("GET", "HEAD", "OPTIONS")
ALLOWED_METHODS = "GET, POST, PUT, PATCH, DELETE"
ALLOWED_HEADERS = (
    "authorization, x-api-key, content-type, accept, idempotency-key, last-event-id, x-lamina-session, "
    "anthropic-version, anthropic-beta, openai-organization, openai-project"
)
EXPOSED = "x-request-id, x-lamina-turn, x-lamina-session, x-lamina-payload-sha256, retry-after"

Receive = Callable[[], Awaitable[Mapping[str, Any]]]


class Guard:
    def __init__(self, options: Options) -> None:
        names = {*LOOPBACK_NAMES, *(name.lower().rstrip(".") for name in options.host_names)}
        bound = options.address.lower()
        if bound not in ("0.0.0.0", "[::]"):
            names.add(bound)
        self._names = frozenset(names)
        self._hosts = {f"{name}:{options.port}" for name in names}
        self._origins = frozenset(origin.lower().rstrip("/") for origin in options.origins)
        self._body_limit, self._open_limit = options.body_limit, options.open_body_limit
        self._bodies_limit, self._held = options.bodies_limit, 0

    def check_host(self, host: str, server: object) -> None:
        """`server` is the address at which the connection came in: people may write that one too."""
        if host in self._hosts:
            return
        name = host.lower()
        if not name.endswith("]"):
            before, sign, port = name.rpartition(":")
            name = before if sign and port.isascii() and port.isdigit() else name
        name = name.removesuffix(".")
        if name in self._names or (isinstance(server, str) and name.strip("[]") == server):
            return
        raise HttpError(403, "gateway.wrong_host", kind="host")

    def check_origin(self, origin: str, host: str) -> str:
        """Empty for a page of ours; else the origin, when it is one that the operator lets in."""
        given = origin.lower()
        scheme, _, place = given.partition("://")
        if scheme in ("http", "https") and place == host.lower():
            return ""
        if given in self._origins:
            return origin
        raise HttpError(403, "gateway.foreign_origin", hint="gateway.allow_origin", kind="origin")

    def check_page(self, method: str, headers: Mapping[str, str]) -> None:
        """A cookie comes along by itself, so what changes something must say that it comes from our own page."""
        if method in SAFE:
            return
        if "origin" not in headers and headers.get("sec-fetch-site") != "same-origin":
            raise HttpError(403, "gateway.foreign_origin", hint="gateway.send_key", kind="origin")

    async def body(self, headers: Mapping[str, str], receive: Receive, *, known: bool) -> Sequence[bytes]:
        """All of the body, as it came in pieces. One that says that it is too long is refused unread; strangers may
        send less."""
        length, limit = headers.get("content-length", "0"), self._body_limit if known else self._open_limit
        if not (length.isascii() and length.isdigit()) or len(length) > 15:
            raise HttpError(400, "body.bad_length")
        if int(length) > limit:
            raise _too_long(limit)
        coding = headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            raise HttpError(415, "body.compressed", kind="media", coding=format_value(coding))
        message = await receive()
        if message.get("more_body"):
            return await self._pieces(message, receive, limit)
        return (_piece(message, limit),)

    async def _pieces(self, message: Mapping[str, Any], receive: Receive, limit: int) -> Sequence[bytes]:
        """Many long bodies at once must not fill the memory."""
        pieces, size = [_piece(message, limit)], 0
        try:
            while True:
                size += len(pieces[-1])
                self._held += len(pieces[-1])
                if size > limit:
                    raise _too_long(limit)
                if self._held > self._bodies_limit:
                    raise HttpError(503, "gateway.long_bodies", hint="gateway.try_again", kind="busy")
                if not message.get("more_body"):
                    return pieces
                message = await receive()
                pieces.append(_piece(message, limit))
        finally:
            self._held -= size

    def cors(self, origin: str) -> dict[str, str]:
        """Never with credentials: such pages bring a key of their own."""
        return {"access-control-allow-origin": origin, "vary": "Origin", "access-control-expose-headers": EXPOSED}

    def preflight(self, origin: str) -> dict[str, str]:
        return {
            **self.cors(origin),
            "access-control-allow-methods": ALLOWED_METHODS,
            "access-control-allow-headers": ALLOWED_HEADERS,
            "access-control-max-age": "600",
        }


def _piece(message: Mapping[str, Any], limit: int) -> bytes:
    if message["type"] != "http.request":
        raise HttpError(400, "body.cut_off")
    body = message.get("body", b"")
    if len(body) > limit:
        raise _too_long(limit)
    return body


def _too_long(limit: int) -> HttpError:
    return HttpError(413, "body.too_long", kind="too_large", limit=limit)
