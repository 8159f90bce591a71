"""The seams of lamina: what one room asks of another, as small protocols.

Nothing here has code of its own. A port is added together with its first user.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from datetime import date
from typing import Any, Protocol

from lamina.records import Found as FoundMessage
from lamina.records import (
    IndexChanges,
    IndexRow,
    Job,
    Memory,
    MemoryState,
    NewJob,
    NewMemory,
    Place,
    Session,
    StoredMessage,
    Summary,
    Template,
    Turn,
    TurnRecord,
)  # fmt: skip
from lamina.text.messages import Phrase
from lamina.types import Context, Decision, Event, Grammar, Layer, Message, Receipt, ToolCallEvent

Count = Callable[[str], int]
"""Text in, tokens out. A plain function is enough; `ChatCount` says more."""


class ChatCount(Protocol):
    """A counter that also knows what a chat costs around its text."""

    name: str
    per_message: int
    """Tokens that wrap each message."""
    per_request: int
    """Tokens that every request costs once."""

    def __call__(self, text: str, /) -> int: ...

    def tools(self, tools: Sequence[Mapping[str, Any]], /) -> int:
        """Tokens of the tool schemas of a request."""
        ...


Vectors = Iterable[Iterable[float]]
"""One vector a text, in their order: lists of floats or an array."""


class Embedder(Protocol):
    """Texts in, vectors out. `name` is kept beside each vector: vectors of two models are never compared."""

    name: str
    dimension: int

    def embed(self, texts: Sequence[str], /) -> Vectors:
        """One vector of `dimension` for each text. It may block: call it off the event loop."""
        ...


Encode = Callable[[Context, Grammar], Receipt]
"""A context as the request of one grammar, byte for byte."""


class Provider(Protocol):
    """Who answers. It gets an assembled context and streams events; what goes wrong is a `ProviderError`.

    The events are texts, then complete calls, then at most one usage, then exactly one done. A generator that is
    closed or cancelled lets go of its connection at once.
    """

    @property
    def name(self) -> str:
        """Where it answers, for people to read: `openai`, `anthropic`, `local`, …"""
        ...

    @property
    def model(self) -> str: ...

    @property
    def grammar(self) -> Grammar:
        """The form of the requests that it takes."""
        ...

    @property
    def window(self) -> int | None:
        """How many tokens a request and its answer may have together, where that is known."""
        ...

    def stream(
        self, context: Context, *, max_tokens: int | None = None, options: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[Event]:
        """`options` are a caller's wishes in OpenAI's words: temperature, stop, … Never an address or a key."""
        ...

    async def close(self) -> None:
        """Let go of connections and processes. It may be used again afterwards."""
        ...


Ask = Callable[[ToolCallEvent, Decision], Awaitable[bool | None]]
"""Somebody who is shown a call and what will run, and says yes or no; None when nobody is there to say it."""
Complete = Callable[[Sequence[Message], Mapping[str, Any] | None], Awaitable[str]]
"""A model for work in the background: messages and the JSON schema of the answer, or None, in; the answer out."""


class MemoryRows(Protocol):
    """Where facts are kept. The first argument of every method is the owner."""

    async def add(
        self, owner: str, memories: Sequence[NewMemory], *, done: Job | None = None, jobs: Sequence[NewJob] = (),
        as_of: int | None = None,
    ) -> Sequence[Memory]: ...  # fmt: skip
    async def get(self, owner: str, memory_id: str) -> Memory: ...
    async def many(self, owner: str, ids: Sequence[str]) -> Sequence[Memory]: ...
    async def list(
        self, owner: str, *, state: MemoryState | None = "active", kind: str | None = None, query: str = "",
        limit: int = 50, before: int | None = None, pinned: bool | None = None,
    ) -> Sequence[Memory]: ...  # fmt: skip
    async def edit(
        self, owner: str, memory_id: str, *, text: str | None = None, context: str | None = None,
        kind: str | None = None, importance: float | None = None, happened: float | None = None,
    ) -> Memory: ...  # fmt: skip
    async def pin(self, owner: str, memory_id: str, on: bool = True) -> Memory: ...
    async def forget(
        self, owner: str, ids: Sequence[str], *, places: Sequence[Place] = (), told: Sequence[str] = (),
        then: Callable[[str], NewJob] | None = None,
    ) -> Sequence[str]: ...  # fmt: skip
    async def replaced(self, owner: str, memory_id: str) -> Sequence[Memory]: ...
    async def forgotten_turns(self, owner: str) -> Sequence[str]: ...
    async def of_session(self, owner: str, session_id: str) -> Sequence[Memory]: ...
    async def last_change(self, owner: str) -> int: ...
    async def changes(self, owner: str, *, after: int = 0, limit: int = 10_000) -> Sequence[Memory]: ...
    async def index_changes(self, owner: str, model: str, *, after: int = 0, limit: int = 20_000) -> IndexChanges: ...
    async def put_index(self, owner: str, rows: Sequence[IndexRow]) -> int: ...
    async def clear_index(self, owner: str) -> None: ...


class Found(Protocol):
    """A memory that was found: which, how well, and why."""

    @property
    def memory_id(self) -> str: ...
    @property
    def score(self) -> float: ...
    @property
    def why(self) -> Phrase: ...


class Finder(Protocol):
    """Keeps facts and finds them again, within one owner at a time."""

    async def search(
        self, owner: str, text: str, *, limit: int, context: Sequence[str] = (), today: date | None = None
    ) -> Sequence[Found]: ...
    async def add(
        self, owner: str, memories: Sequence[NewMemory], *, done: Job | None = None, jobs: Sequence[NewJob] = (),
        as_of: int | None = None,
    ) -> Sequence[Memory]: ...  # fmt: skip
    async def reindex(self, owner: str) -> int: ...
    async def warm(self) -> None: ...
    def drop(self, owner: str) -> None:
        """Let go of what is held in memory of an owner; it is loaded again when it is needed."""
        ...


class SummaryRows(Protocol):
    async def put(
        self, owner: str, session_id: str, text: str, *, upto_seq: int, written_by: str = "",
        memory_ids: Sequence[str] = (), done: Job | None = None, as_of: int | None = None,
    ) -> Summary | None: ...  # fmt: skip
    async def recent(self, owner: str, *, limit: int = 5, without: str = "") -> Sequence[Summary]: ...


class HistoryRows(Protocol):
    async def list(
        self, owner: str, session_id: str, *, after: int = 0, before: int | None = None, limit: int | None = None,
        newest: bool = False,
    ) -> Sequence[StoredMessage]: ...  # fmt: skip
    async def collected(self, owner: str, *, limit: int = 20, query: str = "") -> Sequence[StoredMessage]: ...
    async def texts(self, owner: str, names: Sequence[str]) -> Mapping[str, str]: ...
    async def standing(
        self, owner: str, *, summaries: Sequence[str], collected: Sequence[str]
    ) -> tuple[Set[str], Set[tuple[str, int]]]: ...


class TurnRows(Protocol):
    async def get(self, owner: str, turn_id: str) -> TurnRecord: ...


class TemplateRows(Protocol):
    async def list(
        self, owner: str, *, scenario: str | None = None, app: str | None = None, is_skill: bool | None = None,
        enabled: bool | None = None,
    ) -> Sequence[Template]: ...  # fmt: skip


class SessionRows(Protocol):
    async def get(self, owner: str, session_id: str) -> Session: ...
    async def search(self, owner: str, query: str, *, limit: int = 20) -> Sequence[FoundMessage]: ...


class ProfileRows(Protocol):
    async def get(self, owner: str) -> Mapping[str, Any]: ...


class Store(Protocol):
    """What is kept, as the layers see it; `lamina.store` has two of them."""

    @property
    def memories(self) -> MemoryRows: ...
    @property
    def summaries(self) -> SummaryRows: ...
    @property
    def messages(self) -> HistoryRows: ...
    @property
    def turns(self) -> TurnRows: ...
    @property
    def templates(self) -> TemplateRows: ...
    @property
    def sessions(self) -> SessionRows: ...
    @property
    def profile(self) -> ProfileRows: ...


class Source(Protocol):
    """Where layers come from. `layers` gets the turn that is built and gives what this source has to say on it."""

    name: str
    """Which layer it fills; the receipt names it when it was skipped."""
    optional: bool
    """Whether the turn goes on without it when it fails or is late (C2); all others stop the turn."""

    async def layers(self, turn: Turn, /) -> Sequence[Layer]: ...
