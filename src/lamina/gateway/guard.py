"""Before any handler: is the request meant for us, does it come from a page that may, and is its body what it says?

A name in `Host` that is not ours is how a page elsewhere reaches this machine by DNS; an `Origin` that is not ours is
another's page in our user's browser.
"""

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

from lamina.errors import shown
from lamina.gateway.http import HttpError
from lamina.gateway.options import LOOPBACK_NAMES, Options

DEEPEST = 64
SAFE = ("GET", "HEAD", "OPTIONS")
ALLOWED_METHODS = "GET, POST, PUT, PATCH, DELETE"
ALLOWED_HEADERS = (
    "authorization, x-api-key, content-type, accept, idempotency-key, last-event-id, x-lamina-session, "
    "anthropic-version, anthropic-beta, openai-organization, openai-project"
)
EXPOSED = "x-request-id, x-lamina-turn, x-lamina-session, x-lamina-payload-sha256, retry-after"
MISDIRECTED = "the request names another host"
FOREIGN = "pages of another origin may not do this"
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
        raise HttpError(403, MISDIRECTED, hint="start the gateway with --host-name to serve that name", kind="host")

    def check_origin(self, origin: str, host: str) -> str:
        """Empty for a page of ours; else the origin, when it is one that the operator lets in."""
        given = origin.lower()
        scheme, _, place = given.partition("://")
        if scheme in ("http", "https") and place == host.lower():
            return ""
        if given in self._origins:
            return origin
        raise HttpError(403, FOREIGN, hint="start the gateway with --origin to let that page in", kind="origin")

    def check_page(self, method: str, headers: Mapping[str, str]) -> None:
        """A cookie comes along by itself, so what changes something must say that it comes from our own page."""
        if method in SAFE:
            return
        if "origin" not in headers and headers.get("sec-fetch-site") != "same-origin":
            raise HttpError(403, FOREIGN, hint="send a key in the header Authorization", kind="origin")

    async def body(self, headers: Mapping[str, str], receive: Receive, *, known: bool) -> bytes:
        """All of the body. One that says that it is too long is refused unread; strangers may send less."""
        length, limit = headers.get("content-length", "0"), self._body_limit if known else self._open_limit
        if not (length.isascii() and length.isdigit()) or len(length) > 15:
            raise HttpError(400, "Content-Length is no number")
        if int(length) > limit:
            raise _too_long(limit)
        message = await receive()
        if message.get("more_body"):
            return await self._pieces(message, receive, limit)
        return _piece(message, limit)

    async def _pieces(self, message: Mapping[str, Any], receive: Receive, limit: int) -> bytes:
        """Many long bodies at once must not fill the memory."""
        pieces, size = [_piece(message, limit)], 0
        try:
            while True:
                size += len(pieces[-1])
                self._held += len(pieces[-1])
                if size > limit:
                    raise _too_long(limit)
                if self._held > self._bodies_limit:
                    raise HttpError(503, "too many long bodies at once", hint="try again in a moment", kind="busy")
                if not message.get("more_body"):
                    return b"".join(pieces)
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
        raise HttpError(400, "the body ends before its end")
    body = message.get("body", b"")
    if len(body) > limit:
        raise _too_long(limit)
    return body


def _too_long(limit: int) -> HttpError:
    return HttpError(413, f"the body is longer than {limit:,} bytes", hint="send less", kind="too_large")


class _SlipError(ValueError):
    """A number or name in JSON that is none of ours."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _SlipError(f"the name {shown(name)} stands twice in one object")
            seen.add(name)
    return made


def _constant(name: str) -> NoReturn:
    raise _SlipError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _SlipError(f"the number {shown(text)} is too large")
    return number


_decode = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_finite).decode


def read_json(raw: bytes, media: str) -> Any:
    """The value of a body. What is no JSON, or would surprise whoever reads it, is refused with its place."""
    kind = media.partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise HttpError(415, f"the body is {shown(media or 'of no type')}", hint="send application/json", kind="media")
    try:
        text = raw.decode("utf-8")
        value = _decode(text)
    except UnicodeDecodeError as error:
        place = f"byte {error.start} is 0x{raw[error.start]:02x}"
        raise HttpError(400, f"the body is not UTF-8: {place}", hint="send UTF-8") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise HttpError(400, f"the body is not JSON: {error.msg}: {place}", hint="send JSON") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        what = str(error) if isinstance(error, _SlipError) else "a number has too many digits"
        raise HttpError(400, f"the body is not JSON: {what}", hint="send JSON") from None
    if raw.count(b"[") + raw.count(b"{") > DEEPEST and _is_deep(value):
        raise _too_deep()
    if "\\ud" in text or "\\uD" in text:
        _check_unicode(value)
    return value


def _too_deep() -> HttpError:
    return HttpError(400, f"the body is nested deeper than {DEEPEST} levels", hint="send it flatter")


def _is_deep(value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(DEEPEST + 1):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += each.values()  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
            elif isinstance(each, list):
                below += each
        level = [each for each in below if isinstance(each, dict | list)]
        if not level:
            return False
    return True


def _check_unicode(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        sign = f"U+{ord(error.object[error.start]):04X}"
        raise HttpError(400, f"a text holds the lone surrogate {sign}", hint="send whole Unicode characters") from None
