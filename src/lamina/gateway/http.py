"""What a handler gets and gives: a checked request, a reply, and the routes between them. No socket is known here."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lamina.app.app import App
from lamina.errors import LaminaError
from lamina.text.messages import Phrase, Value

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Scope = Literal["chat", "read", "write", "metrics"]
"""What a key may do: talk, look at what is its user's, change it, and read the counters of the gateway."""
SCOPES: tuple[Scope, ...] = ("chat", "read", "write", "metrics")
Schema = Mapping[str, Any]
"""The part of JSON Schema that `shapes` checks; the OpenAPI document contains the same value."""
ErrorForm = Literal["lamina", "openai", "anthropic"]


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks, as the credential says, and nothing else. `key_id` is empty only where no credential is needed."""

    user: str
    key_id: str
    scopes: frozenset[str]
    rate: int = 0
    """Requests a minute; 0 for no limit."""
    tokens: int = 0
    """Tokens a day; 0 for no limit."""


NOBODY = Principal("", "", frozenset())


def _nothing(prompt: int, completion: int) -> None:
    """Nobody counts."""


def _unwatched(running: Any) -> None:
    """Nobody watches."""


async def _at_once(function: Callable[..., Any], *values: Any) -> Any:
    return function(*values)


@dataclass(slots=True)
class Request:
    """A request that is let in: its principal known, its body read and checked against the route's schema."""

    id: str
    method: str
    path: str
    params: Mapping[str, str]
    """The `{names}` of the path."""
    query: Mapping[str, Any]
    """Checked against the route's `query`, with numbers and yes/no as such."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: Any
    principal: Principal
    gone: Callable[[], Awaitable[None]]
    """Returns when the client has left."""
    spent: Callable[[int, int], None] = _nothing
    """Tokens of a prompt and of its answer, for the budget of the principal; `watch` calls it by itself."""
    watch: Callable[[Any], None] = _unwatched
    """Hand in the `TurnHandle` of a turn that this request has just begun, before the next `await`: when the turn ends,
    its tokens count against the principal's budget, and it is in the metrics and traces. A turn counts once."""
    address: str = ""
    """Where the request came from, as the socket says."""
    work: Callable[..., Awaitable[Any]] = _at_once
    """Runs a function on what the body holds: at once, or in a thread where the body is long."""

    @property
    def user(self) -> str:
        return self.principal.user


@dataclass(slots=True)
class Reply:
    """A status, headers and a body: a value that is sent as JSON, bytes as they are, or a stream of bytes."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    media: str = "application/json"


Stream = AsyncIterator[bytes]
Handler = Callable[[App, Request], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Route:
    """One door. Everything that the OpenAPI document says of it, and everything that is checked before its handler."""

    method: Method
    path: str
    """With `{names}`; each is an id and is looked up for the principal alone."""
    handler: Handler
    summary: str
    scope: Scope | None
    """None needs no credential."""
    body: Schema | None = None
    example: Any = None
    """A body that works, for the document."""
    headers: Mapping[str, Schema] = field(default_factory=dict[str, Schema])
    """Those that the handler reads, for the document."""
    query: Mapping[str, Schema] = field(default_factory=dict[str, Schema])
    answer: Schema | None = None
    """Of the body of a success."""
    status: int = 200
    media: str = "application/json"
    form: ErrorForm = "lamina"
    tags: Sequence[str] = ()
    streams: bool = False
    """Whether it also answers with server-sent events, with 200, where the caller accepts or asks for them."""
    rest: bool = False
    """Whether its last name takes slashes too."""
    bare: bool = False
    """Whether a request without any body is taken too; its handler gets None."""


class HttpError(LaminaError):
    """A request that is answered with this status; `kind` is a word for programs."""

    exit_code = 1

    def __init__(
        self, status: int, code: str | Phrase, /, *, hint: str | Phrase = "", kind: str = "invalid_request",
        retry_after: float = 0, **values: Value,
    ) -> None:  # fmt: skip
        super().__init__(code, hint=hint, **values)
        self.status, self.kind, self.retry_after = status, kind, retry_after


def not_found() -> HttpError:
    """The same error for what does not exist, what belongs to somebody else, a malformed id and an unknown route."""
    return HttpError(404, "gateway.not_found", kind="not_found")
