"""The values that travel through lamina. Plain, immutable, without behaviour beyond reading themselves.

Messages are plain mappings in OpenAI's chat form, so that any SDK takes them as they are;
everything else is a frozen value.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date as Date  # noqa: N812 -- a field named date would hide the type
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict, cast, get_args

from lamina.text.messages import NOTHING, Phrase

Role = Literal["system", "user", "assistant", "tool"]
Trust = Literal["operator", "user", "model", "outside"]
SegmentDecision = Literal["kept", "cut", "dropped", "degraded"]
"""What became of a piece of the context."""
Grammar = Literal["openai", "anthropic", "gemini"]
Layout = Literal["strict", "ledger"]
Form = Literal["plain", "headed", "split"]
"""The system message: layers one after another, each group below a heading, or each group a message of its own."""
Lang = Literal["en", "zh"]
FactKind = Literal["preference", "fact", "event", "instruction"]
DoneReason = Literal["stop", "length", "tool_calls", "content_filter", "other"]
"""Why an answer ended; `other` is anything else that a provider says."""

ToolVerdict = Literal["safe", "confirm", "block"]
"""A call runs by itself, runs after a yes, or never."""
OutcomeState = Literal["done", "failed", "refused", "blocked"]
Trigger = Literal["initial", "cadence", "window", "compaction", "resume", "change", "model", "workspace"]
"""Why instructions and rules are injected, as receipts, traces and the log have it: first send, every N turns, use
of the window, after a compaction, session taken up again, a file changed, another model, another workspace."""
NoticeKind = Literal["compaction", "limit", "degraded", "rules", "reads"]

GROUPS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "0": (("identity", "instructions", "rules"), {"en": "[0] System", "zh": "[0] 系统配置"}),
    "1": (("scenario", "skill", "mode", "tools"), {"en": "[1] Scenario and skills", "zh": "[1] 场景与技能"}),
    "caller": (("caller",), {"en": "Caller", "zh": "调用方"}),
    "2": (("session",), {"en": "[2] Session", "zh": "[2] 会话信息"}),
    "3": (("memory", "collected"), {"en": "[3] Memories", "zh": "[3] 用户记忆"}),
    "4": (("summary",), {"en": "[4] Recent sessions", "zh": "[4] 近期会话摘要"}),
    "": (("context", "state"), {"en": "Context", "zh": "动态上下文"}),
}
"""The layers of the system message, in groups as seed 004 numbers them, and the heading of each group. A new layer
is named here, at its place, and nowhere else."""
LAYERS = tuple(name for names, _ in GROUPS.values() for name in names)
"""The layers of the system message, in their order."""


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
    `trust="outside"` is text that no one vouches for; it is fenced when it is assembled.
    A `volatile` layer changes from turn to turn; cache marks are placed before it.
    `short` and `title` replace it when not everything fits.
    """

    name: str
    text: str
    source: str = "code"
    owner: str | None = None
    trust: Trust = "operator"
    volatile: bool = False
    short: str = field(default="", repr=False)
    title: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Share:
    """What a layer may take of the budget, as fractions: cut to `most`, and not pushed below `least` by others."""

    least: float = 0.0
    most: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most <= 1:
            raise ValueError(Phrase("layer.bad_bounds", least=repr(self.least), most=repr(self.most)))


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing worth remembering of what a user said. `date` is the day of an event, where it was said plainly."""

    text: str
    kind: FactKind
    importance: float = 0.5
    date: Date | None = None


class Segment(NamedTuple):
    """Where a run of the payload's bytes came from, and why it is there (or is not)."""

    layer: str
    source: str
    hash: str
    owner: str | None
    trust: Trust
    tokens: int
    counter: str
    decision: SegmentDecision
    reason: Phrase
    start: int = 0
    end: int = 0


class Span(NamedTuple):
    """A run of text inside one message with an origin of its own; `text=None` is all the rest of the message."""

    text: str | None
    segment: Segment


@dataclass(frozen=True, slots=True)
class Dropped:
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
    epoch_reason: Phrase = NOTHING
    triggers: tuple[Trigger, ...] = ()
    """Why instructions and rules were injected with it, as codes; empty when they were not."""

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

    def by_layer(self) -> dict[str, tuple[int, int]]:
        """For each layer in the order of the payload: tokens sent, and tokens left out."""
        layers: dict[str, tuple[int, int]] = {}
        for segment in self.segments:
            sent, left_out = layers.get(segment.layer, (0, 0))
            dropped = segment.decision == "dropped"
            layers[segment.layer] = (sent, left_out + segment.tokens) if dropped else (sent + segment.tokens, left_out)
        return layers

    def problems(self) -> list[str]:
        """Why the segments do not tile the payload; empty when they do, as they must."""
        problems: list[str] = []
        at = 0
        for number, segment in enumerate(self.segments):
            name = f"segment {number} ({segment.layer})"
            if segment.start != at or segment.end < segment.start:
                problems.append(f"{name} covers {segment.start}:{segment.end}, expected {at}:…")
            if (segment.decision == "dropped") != (segment.start == segment.end):
                problems.append(f"{name} is {segment.decision} and covers {segment.end - segment.start} bytes")
            at = segment.end
        if at != self.size:
            problems.append(f"the segments end at byte {at}, the payload at {self.size}")
        tokens = sum(segment.tokens for segment in self.segments if segment.decision != "dropped")
        if tokens != self.tokens:
            problems.append(f"the segments sum up to {tokens} tokens, the receipt says {self.tokens}")
        return problems

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; the payload itself is left to `payload`."""
        rows = [{**segment._asdict(), "reason": segment.reason.for_clients()} for segment in self.segments]
        return {**self.summary(), "epoch_reason": self.epoch_reason.for_clients(), "segments": rows}

    def summary(self) -> dict[str, Any]:
        """The same without its segments, as it is stored."""
        return {
            "hash": self.hash,
            "size": self.size,
            "tokens": self.tokens,
            "budget": self.budget,
            "over_budget": self.over_budget,
            "counter": self.counter,
            "grammar": self.grammar,
            "layout": self.layout,
            "epoch": self.epoch,
            "epoch_reason": self.epoch_reason.to_json(),
            "triggers": list(self.triggers),
            "dropped": {"count": self.dropped.count, "tokens": self.dropped.tokens},
        }

    def __str__(self) -> str:
        """For people to read: a bar for each layer, then a line for each segment."""
        over = ", OVER BUDGET" if self.over_budget else ""
        lines = [
            f"{self.tokens} of {_short(self.budget)} tokens ({self.counter}), {self.size} bytes, "
            f"{self.grammar}, {self.layout} layout, sha256 {self.hash[:12]}{over}"
        ]
        for layer, (sent, left_out) in self.by_layer().items():
            filled = round(30 * sent / max(1, self.tokens))
            lines.append(
                f"  {layer:<12} {'█' * filled:<30} {sent:>7}" + (f"  ({left_out} left out)" if left_out else "")
            )
        lines.append("")
        for s in self.segments:
            where = "-" if s.decision == "dropped" else f"{s.start}:{s.end}"
            owner = f" owner={s.owner}" if s.owner else ""
            lines.append(
                f"  {where:>15}  {s.layer:<12} {s.decision:<8} {s.tokens:>6}  {s.source} {s.hash[:8]} "
                f"{s.trust}{owner}: {s.reason.text()}"
            )
        return "\n".join(lines)


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
        texts: list[str] = []
        for message in self.messages:
            if message["role"] != "system":
                break
            texts.append(str(message["content"]))
        return "\n\n".join(texts)

    @property
    def payload(self) -> bytes:
        return self.receipt.payload


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer, as it comes; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEvent:
    """A complete call. `arguments` is the text of a JSON object, as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the provider counted them; `cached` are those of `prompt` that it did not have to read again."""

    prompt: int
    cached: int
    completion: int


@dataclass(frozen=True, slots=True)
class Done:
    """The last event of an answer that is whole. An answer without it was interrupted."""

    reason: DoneReason


Event = Text | ToolCallEvent | Usage | Done
"""What a provider streams: texts, then calls, then at most one usage, then done. What goes wrong is raised."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a call may run, and why. `shows` is what will run, byte for byte, with every unseen character escaped.

    `host` is set where a question is needed only because the call reaches that host: a call that carries a text in
    which the user wrote an address of it runs without the question.
    """

    verdict: ToolVerdict
    reason: Phrase | str = ""
    shows: str = ""
    host: str = ""

    def explain(self, lang: str = "en") -> str:
        """The reason as people and models read it; empty where there is none."""
        return self.reason.text(lang) if isinstance(self.reason, Phrase) else self.reason


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tool gave back; when it failed or was not let run, the words that tell the model what to do."""

    text: str
    state: OutcomeState = "done"


RESULT_HINTS = ("tool_output_omitted", "tool_degraded")
"""The hints that lamina writes beside the result of a tool; there are no others."""


class ResultHint(NamedTuple):
    """What lamina itself says of a tool's result. It is outside the fence around what the tool said."""

    type: str
    body: str
    attributes: tuple[tuple[str, str], ...] = ()


class ToolOutput(str):
    """What a tool said, as the content of a tool message, and beside it, as data, what lamina has to add.

    As text it is the tool's own words. That it came from lamina is known by its type alone, which no text and no JSON
    can have; it is fenced like every other result when a request is assembled.
    """

    tool: str
    hints: tuple[ResultHint, ...]
    state: OutcomeState

    def __new__(
        cls, text: str, tool: str = "", hints: tuple[ResultHint, ...] = (), state: OutcomeState = "done"
    ) -> "ToolOutput":
        if strange := [hint.type for hint in hints if hint.type not in RESULT_HINTS]:
            raise ValueError(Phrase("tool.unknown_hint", name=repr(strange[0]), known=[*RESULT_HINTS]))
        output = super().__new__(cls, text)
        output.tool, output.hints, output.state = tool, hints, state
        return output

    @property
    def note(self) -> dict[str, Any]:
        """What is kept beside the text, ready for JSON."""
        return {"tool": self.tool, "hints": [list(hint) for hint in self.hints], "state": self.state}

    @classmethod
    def of_note(cls, text: str, note: Mapping[str, Any]) -> "ToolOutput":
        """The output that was kept as a text and a note."""
        hints = (ResultHint(kind, body, tuple((n, v) for n, v in pairs)) for kind, body, pairs in note["hints"])
        state = note.get("state")
        known = cast(OutcomeState, state if state in get_args(OutcomeState) else "done")
        return cls(text, note["tool"], tuple(hint for hint in hints if hint.type in RESULT_HINTS), known)


@dataclass(frozen=True, slots=True)
class Began:
    """The first event of a turn: the question and the place of its answer are stored."""

    turn_id: str
    session_id: str
    answer_id: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """How a call of the turn ended; `text` is what the tool said, before it is fenced and cut for the model."""

    id: str
    name: str
    text: str
    state: OutcomeState
    seconds: float


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that people should know of; `text` says it in English."""

    kind: NoticeKind
    phrase: Phrase

    @property
    def text(self) -> str:
        return self.phrase.text()


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event of a turn. `error` says why it is not complete, `hint` what to do next."""

    state: Literal["complete", "interrupted", "failed"]
    error: Phrase = NOTHING
    hint: Phrase = NOTHING
    reason: DoneReason = "stop"
    """Why the model's last answer ended."""
    status: int = 0
    """Where it failed: the HTTP status that says whose fault it is."""


TurnEvent = Began | Text | ToolCallEvent | ToolResult | Notice | Usage | Ended
"""What a turn streams: once began, then texts, calls, results, notices and usages as they come, then once ended."""


class Key(str):
    """A secret for a provider. As text it is `…` everywhere: printed, formatted, logged, in JSON, pickled.

    It is text so that nothing has to know about it; only `reveal()` gives the secret, and only a header takes it.
    """

    reveal: Callable[[], str]
    """The secret itself. Held by a function, so that `vars` does not show it either."""

    def __new__(cls, secret: str) -> "Key":
        secret = secret.strip()
        if not secret or not (secret.isascii() and secret.isprintable()) or " " in secret:
            raise ValueError(Phrase("key.bad_form"))
        key = super().__new__(cls, "…")
        key.reveal = lambda: secret
        return key

    def __repr__(self) -> str:
        return "Key(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.reveal() == other.reveal()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((Key, self.reveal()))

    def __reduce_ex__(self, _protocol: object) -> tuple[type[str], tuple[str]]:
        return str, ("…",)

    def __copy__(self) -> "Key":
        return self

    def __deepcopy__(self, _memo: object) -> "Key":
        return self


def _short(number: float) -> str:
    return f"{number:g}" if abs(number) < 1e15 else "more than 10^15"


HASHED_CHARACTERS = 65_536
"""Of a long text in one go: others wait for it."""


def text_hash(text: str) -> str:
    """The version of a text: SHA-256 of its UTF-8 bytes, in hex."""
    found = hashlib.sha256()
    for at in range(0, len(text), HASHED_CHARACTERS):
        found.update(text[at : at + HASHED_CHARACTERS].encode())
    return found.hexdigest()
