"""Replies as bytes: headers that every one has, bodies as JSON, and errors in the form that the route's clients know.

What is wrong on our side is told to nobody but the log.
"""

import json
from collections.abc import Mapping
from typing import Any

from lamina.errors import LaminaError, NotFoundError, ProviderError, StoreDamagedError
from lamina.gateway.http import ErrorForm, HttpError, Reply, not_found
from lamina.text.json import json_pieces, size_of
from lamina.text.unicode import MAX_LOOP_SIZE

Headers = list[tuple[bytes, bytes]]
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
ALWAYS: Headers = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
"""On every reply. Nothing of ours is shown in a frame, run in another's page, or told by a link."""
NO_STORE = (b"cache-control", b"no-store")
KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 409: "conflict_error", 413: "request_too_large", 415: "invalid_request_error",
    429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip
"""Words for programs in the forms of OpenAI and Anthropic."""
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=dict).encode
_safe = json.JSONEncoder(separators=(",", ":"), default=dict).encode


def as_json(value: Any) -> bytes:
    try:
        return _dumps(value).encode()
    except UnicodeEncodeError:  # half a surrogate pair, from an older store: escaped it is still JSON
        return _safe(value).encode()


def is_long(value: Any, limit: int = MAX_LOOP_SIZE) -> bool:
    """Whether the JSON of a value surely has more bytes than that; looks no further than it must."""
    return size_of(value, limit) > limit


def long_json(value: Any) -> list[bytes]:
    """The JSON of a long value in pieces. No step takes more than a slice, so that other threads run in between."""
    made, piece = list[bytes](), bytearray()
    for part in json_pieces(value, default=dict):
        piece += part.encode("utf-8", "backslashreplace")  # half a surrogate pair: escaped it is still JSON
        if len(piece) >= MAX_LOOP_SIZE:
            made.append(bytes(piece))
            piece = bytearray()
    return [*made, bytes(piece)]


def head(reply: Reply, request_id: str, size: int | None) -> Headers:
    """All headers of a reply; without a size it comes in pieces."""
    headers = [*ALWAYS, (b"x-request-id", request_id.encode())]
    if reply.media and reply.status not in (204, 304):
        headers.append((b"content-type", reply.media.encode("latin-1")))
    if size is not None and reply.status not in (204, 304):
        headers.append((b"content-length", b"%d" % size))
    kept = True
    for name, value in reply.headers.items():
        name = name.lower()
        kept = kept and name != "cache-control"
        headers.append((name.encode("latin-1"), value.encode("latin-1", "replace")))
    if kept:
        headers.append(NO_STORE)
    return headers


def known_error(error: LaminaError) -> HttpError:
    """What the client learns of an error, by its class: paths, addresses and states of our side stay here."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, NotFoundError):
        return not_found()
    kind = "".join(f"_{c.lower()}" if c.isupper() else c for c in type(error).__name__.removesuffix("Error"))[1:]
    if isinstance(error, StoreDamagedError):  # it does not heal by itself: the operator has to know
        return HttpError(error.status, "gateway.store_damaged", hint=error.next_step, kind=kind)
    if error.status >= 500 and not isinstance(error, ProviderError):
        hint = "gateway.try_again" if error.status == 503 else "gateway.see_log"
        return HttpError(error.status, "gateway.unavailable", hint=hint, kind=kind)
    after = getattr(error, "retry_after", None) or 0
    return HttpError(error.status, error.phrase, hint=error.next_step, kind=kind, retry_after=after)


def error_reply(error: HttpError, form: ErrorForm) -> Reply:
    headers: dict[str, str] = {}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.retry_after:
        headers["retry-after"] = str(max(1, int(error.retry_after + 0.999)))
    return Reply(error_body(error, form), error.status, headers)


def error_body(error: HttpError, form: ErrorForm) -> Mapping[str, Any]:
    if form == "lamina":
        said = error.phrase.for_clients() or {}
        told = {"message": error.message, "hint": error.hint, "type": error.kind}
        return {
            "error": {**told, "code": said["code"], "values": said["values"], "next": error.next_step.for_clients()}
        }
    kind = KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    message = str(error)
    if form == "anthropic":
        return {"type": "error", "error": {"type": kind, "message": message}}
    code = "invalid_api_key" if error.status == 401 else None
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
