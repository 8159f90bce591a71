"""What a handler gets and gives: a checked request, a reply, its route, and errors in the form that its clients know.

No socket is known here. What is wrong on our side is for the log only: no client sees it.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from lamina.apart import run_in_user_thread
from lamina.app.app import App, TurnHandle
from lamina.errors import LaminaError, NotFoundError, ProviderError, StoreDamagedError
from lamina.records import TurnRecord
from lamina.text.json import json_pieces, size_of
from lamina.text.messages import Phrase, Value
from lamina.text.unicode import MAX_LOOP_SIZE, is_unicode

if TYPE_CHECKING:
    from lamina.gateway.gateway import Gateway

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Scope = Literal["chat", "read", "write", "metrics"]
"""What a key may do: chat, read what is its user's, change it, and read the counters of the gateway."""
SCOPES: tuple[Scope, ...] = ("chat", "read", "write", "metrics")
ErrorForm = Literal["lamina", "openai", "anthropic"]
Headers = list[tuple[bytes, bytes]]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
JSON = "application/json"
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
"""On every reply: nothing of ours is shown in a frame, run in another page, or passed on by a link."""
NO_STORE = (b"cache-control", b"no-store")
ERROR_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 409: "conflict_error", 413: "request_too_large", 415: "invalid_request_error",
    429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip
"""The `type` of an error in the forms of OpenAI and Anthropic, by status."""
MAX_ID_CHARACTERS = 200
MAX_KEY_CHARACTERS = 150
KEY_PREFIX = "api:"
"""Keeps the callers' idempotency keys apart from those that channels give their turns."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request, as its credential alone says. `key_id` is empty only where no credential is needed."""

    user: str
    key_id: str
    scopes: frozenset[str]
    rate: int = 0
    """Requests a minute; 0 for no limit."""
    tokens: int = 0
    """Tokens a day; 0 for no limit."""


ANONYMOUS = Principal("", "", frozenset())


@dataclass(slots=True)
class Request:
    """A request that was let in: its principal known, its query and body read as the types of its route."""

    gateway: "Gateway"
    id: str
    method: str
    path: str
    receive: Receive
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Names in lower case."""
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    """The `{names}` of the path."""
    query: Any = None
    body: Any = None
    has_long_body: bool = False
    principal: Principal = ANONYMOUS
    address: str = ""
    """Where the request came from, as the socket says."""
    end_turn: Callable[[], None] | None = None
    """Counts the turn of this request out of those that run at once."""

    @property
    def user(self) -> str:
        return self.principal.user

    async def wait_until_left(self) -> None:
        """Returns when the client has left."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def watch(self, running: TurnHandle) -> None:
        """Hand in a turn that this request has just started, before the next `await`: when it ends, its tokens count
        against the principal's budget, and it is in the metrics and traces. A turn counts once."""
        self.gateway.watch(self, running)

    async def work(self, function: Callable[..., Any], *values: Any) -> Any:
        """Run a function on what the body holds: at once, or in a thread where the body is long."""
        return await run_in_user_thread(self.user, function, *values) if self.has_long_body else function(*values)

    @property
    def idempotency_key(self) -> str:
        """The caller's `Idempotency-Key` as the key of a turn; empty without one."""
        key = self.headers.get("idempotency-key", "").strip()
        if len(key) > MAX_KEY_CHARACTERS or not key.isprintable():
            raise HttpError(400, "idempotency.bad_key", limit=MAX_KEY_CHARACTERS)
        return f"{KEY_PREFIX}{key}" if key else ""


@dataclass(slots=True)
class Reply:
    """A status, headers and a body: a value that is sent as JSON, bytes as they are, or a stream of bytes."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    media: str = JSON


Stream = AsyncIterator[bytes]
Handler = Callable[[App, Request], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Route:
    """All that is checked before a handler runs, and all that the OpenAPI document says of it: the types of the body,
    of the query and of the answer are the schemas."""

    method: Method
    path: str
    """With `{names}`; each is an id and is looked up for the principal alone."""
    handler: Handler
    summary: str
    scope: Scope | None
    """None needs no credential."""
    body: Any = None
    example: Any = None
    """A body that works, for the document."""
    query: type[msgspec.Struct] | None = None
    headers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The types of those that the handler reads, for the document."""
    answer: Any = None
    """The type of the body of a success."""
    status: int = 200
    media: str = JSON
    form: ErrorForm = "lamina"
    tags: Sequence[str] = ()
    streams: bool = False
    """Whether it also answers with server-sent events, with 200, where the caller accepts or asks for them."""
    rest: bool = False
    """Whether its last name takes slashes too."""
    bare: bool = False
    """Whether a request without any body is accepted too; its handler gets None."""


class HttpError(LaminaError):
    """A request that is answered with this status; `kind` is a word for programs."""

    exit_code = 1

    def __init__(
        self,
        status: int,
        code: str | Phrase,
        /,
        *,
        hint: str | Phrase = "",
        kind: str = "invalid_request",
        retry_after: float = 0,
        **values: Value,
    ) -> None:
        super().__init__(code, hint=hint, **values)
        self.status, self.kind, self.retry_after = status, kind, retry_after


def not_found() -> HttpError:
    """The same error for what does not exist, what belongs to another user, a malformed id and an unknown route."""
    return HttpError(404, "gateway.not_found", kind="not_found")


def is_id(text: str) -> bool:
    """Whether this could be an id at all; what could not is never handed to a store."""
    return 0 < len(text) <= MAX_ID_CHARACTERS and text.isprintable() and is_unicode(text)


def hide_missing(handler: Handler) -> Handler:
    """The handler, with one answer for everything that is not there for this principal: an id of another user, a
    missing and a malformed one get the same bytes. Ids are never abbreviated here, and none is repeated."""

    @wraps(handler)
    async def wrapped(app: App, request: Request) -> Reply:
        if not all(map(is_id, request.params.values())):
            raise not_found()
        try:
            return await handler(app, request)
        except NotFoundError:
            raise not_found() from None

    return wrapped


async def check_same_question(app: App, request: Request, turn: TurnRecord, content: Any) -> None:
    """Refuse a key that was used for another question: its answer would be taken for the answer to this one."""
    if request.headers.get("idempotency-key", "").strip():
        stored = await app.store.messages.get(request.user, turn.user_message_id)
        if (stored.content or "") != (content or ""):
            raise HttpError(409, "idempotency.other_question", kind="conflict")


def turn_headers(turn: TurnRecord) -> dict[str, str]:
    return {"X-Lamina-Turn": turn.turn_id, "X-Lamina-Session": turn.session_id}


# Replies as bytes


def _is_record(value: object) -> bool:
    return isinstance(value, msgspec.Struct) or is_dataclass(value)


def _fields_of(value: Any) -> dict[str, Any]:
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        pairs = ((name, getattr(value, attribute)) for name, attribute in names)
        return {name: each for name, each in pairs if each is not msgspec.UNSET}
    if _is_record(value):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    return dict(value)


_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_fields_of).encode
_dumps_ascii = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_fields_of).encode


def to_plain(value: Any) -> Any:
    """Records of ours as dicts. What their fields hold is not copied: it may be long, and this is the event loop."""
    if _is_record(value):
        value = _fields_of(value)
    if type(value) is dict:
        named = cast("dict[str, Any]", value)
        return {name: to_plain(each) if _holds_records(each) else each for name, each in named.items()}
    return [to_plain(each) for each in value] if _holds_records(value) else value


def _holds_records(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_is_record, cast("Sequence[object]", value)[:1]))
    return _is_record(value)


def as_json(value: Any) -> bytes:
    return dump_json(to_plain(value))


def dump_json(value: Any) -> bytes:
    """A plain value, by the standard library: msgspec would write null for a number that JSON does not have."""
    try:
        return _dumps(value).encode()
    except UnicodeEncodeError:  # half a surrogate pair, from an older store: escaped it is still JSON
        return _dumps_ascii(value).encode()


def is_long(value: Any, limit: int = MAX_LOOP_SIZE) -> bool:
    """Whether the JSON of a plain value surely has more bytes than that; looks no further than it must."""
    return size_of(value, limit) > limit


def long_json(value: Any) -> list[bytes]:
    """The JSON of a long plain value in pieces. No step takes more than a slice, so other threads run in between."""
    made, piece = list[bytes](), bytearray()
    for part in json_pieces(value, default=_fields_of):
        piece += part.encode("utf-8", "backslashreplace")  # half a surrogate pair: escaped it is still JSON
        if len(piece) >= MAX_LOOP_SIZE:
            made.append(bytes(piece))
            piece = bytearray()
    return [*made, bytes(piece)]


def reply_headers(reply: Reply, request_id: str, size: int | None) -> Headers:
    """All headers of a reply; without a size it is streamed."""
    headers = [*ALWAYS, (b"x-request-id", request_id.encode())]
    if reply.status not in (204, 304):
        if reply.media:
            headers.append((b"content-type", reply.media.encode("latin-1")))
        if size is not None:
            headers.append((b"content-length", b"%d" % size))
    names = [(name.lower().encode("latin-1"), value) for name, value in reply.headers.items()]
    headers += [(name, value.encode("latin-1", "replace")) for name, value in names]
    if all(name != NO_STORE[0] for name, _ in names):
        headers.append(NO_STORE)
    return headers


def public_error(error: LaminaError) -> HttpError:
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
    return Reply(as_json(error_body(error, form)), error.status, headers)


def error_body(error: HttpError, form: ErrorForm) -> Mapping[str, Any]:
    if form == "lamina":
        said = error.phrase.for_clients() or {}
        texts = {"message": error.message, "hint": error.hint, "type": error.kind}
        return {
            "error": {**texts, "code": said["code"], "values": said["values"], "next": error.next_step.for_clients()}
        }
    kind = ERROR_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    message = str(error)
    if form == "anthropic":
        return {"type": "error", "error": {"type": kind, "message": message}}
    code = "invalid_api_key" if error.status == 401 else None
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
