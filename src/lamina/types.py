"""The values that travel through lamina. Plain, immutable, without behaviour beyond reading themselves.

Messages are plain mappings in OpenAI's chat form, so that any SDK takes them as they are;
everything else is a frozen value.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

Role = Literal["system", "user", "assistant", "tool"]
Trust = Literal["operator", "user", "model", "outside"]
Decision = Literal["kept", "cut", "dropped", "degraded"]
Grammar = Literal["openai", "anthropic", "gemini"]
Layout = Literal["strict", "ledger"]

LAYERS = (
    "identity",
    "instructions",
    "rules",
    "scenario",
    "skill",
    "mode",
    "tools",
    "session",
    "memory",
    "collected",
    "summary",
    "context",
    "state",
)
"""The layers of the system message, in the order in which they always stand."""


class TextPart(TypedDict):
    type: Literal["text"]
    text: str


class ImageUrl(TypedDict):
    url: str
    detail: NotRequired[Literal["auto", "low", "high"]]


class ImagePart(TypedDict):
    type: Literal["image_url"]
    image_url: ImageUrl


Part = TextPart | ImagePart


class FunctionCall(TypedDict):
    name: str
    arguments: str


class ToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(TypedDict):
    role: Role
    content: str | list[Part] | None
    tool_calls: NotRequired[list[ToolCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


AnyMessage = Mapping[str, Any]
"""What callers hand in: a message not yet checked."""
AnyTool = Mapping[str, Any]
"""A tool's schema in OpenAI's form: `{"type": "function", "function": {...}}`."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One piece of the system message: what it is, its text, and where that came from.

    Several layers may share a name (five memories are five layers), each with its own source.
    `trust="outside"` is text that nobody vouches for; it is fenced when it is assembled.
    A `volatile` layer changes from turn to turn; cache marks stand before it.
    """

    name: str
    text: str
    source: str = "code"
    owner: str | None = None
    trust: Trust = "operator"
    volatile: bool = False


class Segment(NamedTuple):
    """Where a run of the payload's bytes came from, and why it is there (or is not)."""

    layer: str
    source: str
    hash: str
    owner: str | None
    trust: Trust
    tokens: int
    counter: str
    decision: Decision
    reason: str
    start: int = 0
    end: int = 0


class Span(NamedTuple):
    """A run of text inside one message with an origin of its own; `text=None` is all the rest of the message."""

    text: str | None
    segment: Segment


class Dropped(NamedTuple):
    """How much of the history was left out."""

    count: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """Ordered segments that tile the payload byte for byte, and the payload's own bytes."""

    segments: tuple[Segment, ...]
    chunks: tuple[bytes, ...] = field(repr=False)
    tokens: int
    budget: float
    counter: str
    dropped: Dropped
    over_budget: bool
    grammar: Grammar = "openai"
    layout: Layout = "strict"
    epoch: int = 0
    epoch_reason: str = ""

    @property
    def payload(self) -> bytes:
        """The bytes that the segments tile."""
        return b"".join(self.chunks)

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.payload).hexdigest()

    @property
    def size(self) -> int:
        return sum(map(len, self.chunks))


@dataclass(frozen=True, slots=True)
class Context:
    """What will be sent, and its receipt."""

    messages: list[Message]
    tools: list[AnyTool]
    receipt: Receipt
    spans: tuple[tuple[Span, ...], ...] = field(repr=False)
    stable: int = 0
    """How many spans of the system message come before the first volatile one."""

    @property
    def system(self) -> str:
        """The system text, empty when there is none."""
        if self.messages and self.messages[0]["role"] == "system":
            content = self.messages[0]["content"]
            return content if isinstance(content, str) else ""
        return ""

    @property
    def payload(self) -> bytes:
        return self.receipt.payload


def text_hash(text: str) -> str:
    """The version of a text: SHA-256 of its UTF-8 bytes, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def tool_name(tool: AnyTool) -> str:
    function: Mapping[str, Any] = tool["function"]
    return str(function["name"])


