"""The seams of lamina: what one room asks of another, as small protocols.

Nothing here has code of its own. A port is added together with its first user.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

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
