"""What the store keeps, row by row, as frozen values. Plain data: they know nothing of who reads or writes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from lamina.types import AnyTool, Message, Part, Role, ToolOutput, Trust

MessageState = Literal["streaming", "complete", "interrupted", "failed"]
"""The state of a stored message or a turn; all but `streaming` are final."""
TurnProgress = Literal["accepted", "streaming", "complete", "interrupted", "failed"]
FinalState = Literal["complete", "interrupted", "failed"]
NOTE = "result"
"""In `extra` of a stored message: what lamina itself noted of a tool's result. No caller can bring it along."""
MAX_PHASE_CHARACTERS = 8_000
"""Of a phase prompt: it is sent with every turn."""
MemoryState = Literal["active", "superseded", "forgotten"]
JobState = Literal["waiting", "leased", "done", "parked"]


def _mapping() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Session:
    """One chat of one owner. `activity` orders an owner's sessions: it moves whenever something happens in one.

    The fields are the columns of the table, in its order; one that a later migration adds has a default.
    """

    owner: str
    session_id: str
    title: str
    scenario: str
    app: str
    mode: str
    skill: str
    meta: Mapping[str, Any]
    injection: Mapping[str, Any]
    last_seq: int
    activity: int
    created: float
    updated: float
    ended: float | None = None
    parent_id: str = ""
    parent_seq: int = 0
    runtime: Mapping[str, Any] = field(default_factory=_mapping)
    """What its turns leave to the next one: use of the window, failures of tools, compactions."""
    phase: str = ""
    """What it is working on just now: a prompt that is sent in front of each message of its user."""


class SessionChanges(TypedDict, total=False):
    """What can be changed in a session; None leaves it as it is. Of `runtime` only what is named changes."""

    title: str | None
    scenario: str | None
    app: str | None
    mode: str | None
    skill: str | None
    phase: str | None
    meta: Mapping[str, Any] | None
    injection: Mapping[str, Any] | None
    ended: bool | None
    runtime: Mapping[str, Any] | None


class NewSession(TypedDict, total=False):
    """What a new session can be given. What is left out has the default of the settings, or is empty."""

    title: str
    scenario: str
    """Which template speaks."""
    app: str
    """The app in which the chat runs, such as Excel: it decides which skills speak."""
    mode: str
    """`agent`, `plan` or `ask`."""
    skill: str
    """The skill that is chosen."""
    meta: Mapping[str, Any]
    """What is known of the session; the model sees it."""
    phase: str
    """A phase prompt: sent in front of each message of its user."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A row of `conversation`. `seq` is its place in the session, without gaps; a clock never decides the order."""

    owner: str
    session_id: str
    seq: int
    message_id: str
    turn_id: str
    role: Role
    content: str | list[Part] | None
    extra: Mapping[str, Any]
    state: MessageState
    is_collected: bool
    tokens: int
    created: float

    @property
    def message(self) -> Message:
        """The message as it was handed in."""
        whole: Any = {"role": self.role, "content": self.content, **self.extra}
        if note := whole.pop(NOTE, None):
            whole["content"] = ToolOutput.of_note(self.text, note)
        return whole

    @property
    def text(self) -> str:
        """All text in it, pictures left out."""
        if isinstance(self.content, list):
            return "\n".join(part["text"] for part in self.content if part["type"] == "text")
        return self.content or ""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A question and its answer. `repeated` says that this turn was already there under the same key."""

    owner: str
    turn_id: str
    session_id: str
    key: str
    state: MessageState
    user_message_id: str
    user_seq: int
    answer_message_id: str
    answer_seq: int
    usage: Mapping[str, Any]
    receipt: Mapping[str, Any]
    error: str
    created: float
    finished: float | None
    lease_until: float
    begun: float | None = None
    """When the first of the answer was stored."""
    repeated: bool = False

    @property
    def progress(self) -> TurnProgress:
        """The state, with a turn shown as accepted until the first part of its answer is stored."""
        return "accepted" if self.state == "streaming" and self.begun is None else self.state


@dataclass(frozen=True, slots=True)
class Sent:
    """What a turn has sent so far, and those texts of it that are not stored yet."""

    receipt: Mapping[str, Any]
    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NewMemory:
    """A fact to store, with the turn it came from. What it `supersedes` stays on record and is no longer active."""

    text: str
    context: str = ""
    kind: str = "fact"
    trust: Trust = "user"
    importance: float = 0.5
    pinned: bool = False
    session_id: str = ""
    turn_id: str = ""
    seq: int = 0
    happened: float | None = None
    supersedes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MessagePosition:
    """Where something was said: a message and its turn; a message from elsewhere has none."""

    session_id: str
    seq: int
    turn_id: str = ""


@dataclass(frozen=True, slots=True)
class Memory:
    """A row of `atomic_memory`. `change` is the owner's change number when it last moved; forgetting moves it too."""

    owner: str
    memory_id: str
    change: int
    text: str
    context: str
    kind: str
    trust: Trust
    importance: float
    pinned: bool
    state: MemoryState
    superseded_by: str
    session_id: str
    turn_id: str
    seq: int
    happened: float | None
    created: float
    updated: float
    text_hash: str


@dataclass(frozen=True, slots=True)
class RememberedFact:
    """A fact that a person gave, whether it was known already, and the older ones that it replaced."""

    memory: Memory
    known: bool
    replaced: tuple[Memory, ...] = ()


@dataclass(frozen=True, slots=True)
class IndexRow:
    """A memory as an index holds it. `terms`, `mentions` and `vector` are made of its text and kept."""

    memory_id: str
    change: int
    model: str
    """Which embedder made the vector; empty without one."""
    session: str = ""
    position: int = 0
    day: int = 0
    """Proleptic ordinal, 0 for none."""
    importance: float = 0.0
    terms: bytes = b""
    mentions: bytes = b""
    vector: bytes = b""
    dated: bool = True
    """Whether `day` is the day that it speaks of, and not only the one on which it was written down."""


@dataclass(frozen=True, slots=True)
class IndexChanges:
    """What brings an index up to `last`: rows, memories that are gone, and those that are not indexed yet."""

    rows: tuple[IndexRow, ...]
    gone: tuple[str, ...]
    bare: tuple[str, ...]
    last: int
    more: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """What a session was about, up to `upto_seq`. `memory_ids` are the memories whose facts it repeats."""

    owner: str
    session_id: str
    version: int
    text: str
    upto_seq: int
    written_by: str
    created: float
    memory_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Template:
    """A row of `prompt_template`: a scenario's prompt, or a skill. No `supported_apps` means every app."""

    template_id: str = ""
    """Empty for one that is to be stored."""
    name: str = ""
    content: str = ""
    scenario: str = "common"
    is_skill: bool = False
    supported_apps: tuple[str, ...] = ()
    enabled: bool = True
    priority: int = 0
    sort: int = 0
    description: str = ""
    source: str = ""
    created: float = 0.0
    updated: float = 0.0


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A row of `api_key`, without its hash: whose it is, what it may do, and how much."""

    owner: str
    key_id: str
    name: str
    scopes: tuple[str, ...]
    rate: int
    """Requests a minute; 0 for the gateway's own limit."""
    tokens: int
    """Tokens a day; 0 for the gateway's own limit."""
    created: float
    expires: float | None = None
    revoked: float | None = None
    used: float | None = None

    def usable(self, now: float) -> bool:
        return self.revoked is None and (self.expires is None or self.expires > now)


@dataclass(frozen=True, slots=True)
class NewJob:
    """Work for later. A second job with the same key is the same job; without a key every job is new."""

    kind: str
    payload: Mapping[str, Any] = field(default_factory=_mapping)
    key: str = ""
    run_after: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """A row of the outbox. `number` is the owner's order; `worker` holds it until `lease_until`."""

    owner: str
    job_id: str
    number: int
    kind: str
    key: str
    payload: Mapping[str, Any]
    state: JobState
    attempts: int
    run_after: float
    lease_until: float
    worker: str
    error: str
    created: float
    updated: float


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message that a search found, its session, and the piece of its text around the words."""

    session: Session
    message: StoredMessage
    snippet: str


IncompleteReason = Literal["", "index_rebuilding", "time_limit"]
"""Why a search may not have found all: a code for programs; empty when it has looked at everything."""


class SearchHits(list[FoundMessage]):
    """What a search found, newest sessions first."""

    incomplete: IncompleteReason = ""


@dataclass(frozen=True, slots=True)
class CallerInput:
    """What a caller sends beside the words of the turn. Nothing in it says who the caller is."""

    history: tuple[Message, ...] | None = None
    """The chat so far, in place of the stored one; nothing is carried over from one such turn to the next."""
    since: tuple[Message, ...] = ()
    """Behind the user's words, with a history: calls and their results."""
    results: tuple[Message, ...] = ()
    """Results of calls that the last turn of the stored session left to the caller; the turn goes on from them."""
    system: str = ""
    tools: tuple[AnyTool, ...] = ()
    """Tools that the caller runs: a call of one ends the turn."""
    options: Mapping[str, Any] = field(default_factory=_mapping)
    """For the provider, in OpenAI's words: temperature, stop, …"""
    max_tokens: int | None = None

    @property
    def tool_names(self) -> frozenset[str]:
        return frozenset(str(tool["function"]["name"]) for tool in self.tools)


NO_CALLER_INPUT = CallerInput()
REQUESTS = "@requests"
"""The session of each owner that keeps requests which bring their own history; it is never a history itself."""


class TurnOptions(TypedDict, total=False):
    """What a turn can be given beside its words."""

    values: Mapping[str, object]
    """What fills the slots of templates, on this turn alone."""
    phase_prompt: str | None
    """What the model is to do in this phase of the work; it follows the rules."""
    model: str
    """Which of the provider's models answers; without it that of the settings."""
    context_use: float | None
    """How full the model's window is, as a fraction, where the caller knows better than the last answer said."""
    given: CallerInput
    """A history, tools and options that the caller brings along."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A request that is to be built: whose it is, in which session, and what was said."""

    owner: str
    session: Session
    user: str | Sequence[Mapping[str, Any]]
    values: Mapping[str, object] = field(default_factory=_mapping)
    """What fills the slots of templates."""
    phase_prompt: str | None = None
    """In place of the session's phase, on this turn alone; empty for none."""
    context_use: float | None = None
    before: int | None = None
    """The number of the user's message, once it is stored; the history ends before it."""
    given: CallerInput = NO_CALLER_INPUT
    model: str = ""
    """Which model answers this turn; empty is that of the settings."""
    mark: str = ""
    """From which the session's fences get their tags; a `ContextBuilder` makes one where it is empty."""

    @property
    def phase(self) -> str:
        """The phase prompt of this turn; empty for none."""
        given = self.session.phase if self.phase_prompt is None else self.phase_prompt
        return given if given.strip() else ""

    @property
    def words(self) -> str:
        """The text of what was said, pictures left out."""
        if isinstance(self.user, str):
            return self.user
        return "\n".join(str(part["text"]) for part in self.user if part.get("type") == "text")
