"""The seams of lamina: what one room asks of another, as small protocols.

Nothing here has code of its own. A port is added together with its first user.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from lamina.records import Turn
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
    """What answers. It gets an assembled context and streams events; what goes wrong is a `ProviderError`.

    The events are texts, then complete calls, then at most one usage, then exactly one done. A generator that is
    closed or cancelled releases its connection at once.
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
        """Release connections and processes. It may be used again afterwards."""
        ...


Ask = Callable[[ToolCallEvent, Decision], Awaitable[bool | None]]
"""Shows a call and what will run to a person, who says yes or no; None when there is no one to ask."""
Complete = Callable[[Sequence[Message], Mapping[str, Any] | None], Awaitable[str]]
"""A model for work in the background: messages and the JSON schema of the answer, or None, in; the answer out."""


class Source(Protocol):
    """Where layers come from. `layers` gets the turn that is built and gives what this source has to say on it."""

    name: str
    """Which layer it fills; the receipt names it when it was skipped."""
    optional: bool
    """Whether the turn goes on without it when it fails or is late (C2); all others stop the turn."""

    async def layers(self, turn: Turn, /) -> Sequence[Layer]: ...
