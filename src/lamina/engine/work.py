"""What is known of a turn while it runs, and what it comes to: its limits, its state, its usage and how it ends."""

import asyncio
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lamina.assembly.fences import find_hint_tags
from lamina.assembly.history import MAX_CALL_ID_CHARACTERS, Chat
from lamina.assembly.trace import Trace
from lamina.engine.build import Gathered
from lamina.engine.handle import TurnHandle
from lamina.engine.ledger_state import TurnRequests
from lamina.engine.state import Runtime
from lamina.errors import (
    BrokenStreamError,
    LaminaError,
    LimitError,
    ProviderError,
    RejectedError,
    StalledError,
)  # fmt: skip
from lamina.ports import Ask
from lamina.prompts.injection import InjectionState, SystemPromptManager
from lamina.records import FinalState, Sent, Turn, TurnRecord
from lamina.text.json import size_of
from lamina.text.messages import NOTHING, Phrase
from lamina.text.unicode import join_surrogates
from lamina.types import Context, Decision, DoneReason, Message, Receipt, Text, ToolCall, ToolCallEvent, Usage

CANCELLED = Phrase("turn.cancelled")
PIPED = "\n\n<stdin>\n"
"""What stands between the user's words and text that was piped in: from there on it is somebody else's."""
MAX_ANSWER_CHARACTERS = 4_000_000
"""What goes on longer is broken."""
MAX_ERROR_CHARACTERS = 2_000
MAX_REPORTED_TOKENS = 10**9
"""More than this no provider has counted for one request."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a turn may go; over a limit it ends with a notice, and stays valid."""

    steps: int = 50
    """Requests to the model."""
    seconds: float = 600.0
    """Without the time that somebody is asked for a yes."""
    tokens: int = 0
    """Of all requests and answers together, as the provider counts them; 0 for no limit."""
    answer: int | None = None
    """Of one answer, told to the provider."""


@dataclass(slots=True)
class TurnState:
    """What is known of a turn while it runs."""

    turn: Turn
    record: TurnRecord
    running: TurnHandle
    ask: Ask | None
    runtime: Runtime
    prompts: SystemPromptManager | None = None
    gathered: Gathered | None = None
    chat: Chat | None = None
    requests: TurnRequests | None = None
    """In the layout `ledger`: what each request extends."""
    since: list[Message] = field(default_factory=list[Message])
    receipts: list[Receipt] = field(default_factory=list[Receipt])
    trace: Trace = field(default_factory=Trace)
    """The receipts as they are stored; written when they have to be, not before they are sent."""
    kept: int = 0
    """How many of them are stored."""
    linked: frozenset[str] = frozenset()
    """Texts that are stored and known to belong here: they need not be stored again."""
    usages: list[tuple[int, Usage]] = field(default_factory=list[tuple[int, Usage]])
    """What the provider counted, each with the number of its request."""
    pieces: list[str] = field(default_factory=list[str])
    """The text of this step, as it came: adding to a text would copy all of it, every time."""
    length: int = 0
    shown: int = 0
    """How much of it is stored and shown."""
    chunks: int = 0
    handed: Sequence[ToolCallEvent] = ()
    """Calls that the caller runs himself; the turn ends with them."""
    done: DoneReason = "stop"
    heard: bool = False
    """Something came from the provider: the send succeeded."""
    warned: bool = False
    fresh: asyncio.Event = field(default_factory=asyncio.Event)
    storing: asyncio.Lock = field(default_factory=asyncio.Lock)
    deadline: asyncio.Timeout | None = None
    given_size: int = -1
    """Characters of what the caller gave, once they are counted."""
    known_ids: set[str] = field(default_factory=set[str])
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    """For each id that came again, the last number that was put behind it."""
    typed_tags: frozenset[str] = frozenset()
    """Hints that the user wrote, tag by tag."""
    typed_addresses: str = ""
    """Addresses that the user wrote."""

    @property
    def said(self) -> str:
        """The text of this step."""
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""

    def say(self, text: str) -> None:
        """More text of this step."""
        self.pieces.append(text)
        self.length += len(text)
        if self.length > MAX_ANSWER_CHARACTERS:
            raise BrokenStreamError("provider.answer_too_long", limit=MAX_ANSWER_CHARACTERS, retryable=False)
        if self.length > self.shown:
            self.fresh.set()

    def begin_step(self) -> None:
        self.pieces, self.length, self.shown = [], 0, 0

    @property
    def size(self) -> int:
        """About how many characters the next request is made of."""
        if self.given_size < 0:
            self.given_size = size_of((self.turn.user, self.turn.given.system, self.turn.given.tools))
        return self.given_size + (self.chat.size if self.chat else 0) + size_of(self.since)

    @property
    def key(self) -> tuple[str, str]:
        return self.record.owner, self.record.turn_id

    def written(self) -> Trace:
        """What was sent so far, as it is stored."""
        for receipt in self.receipts[len(self.trace.requests) :]:
            self.trace.add(receipt)
        return self.trace

    def unstored(self) -> Sent | None:
        """What was sent, where something of it is not stored yet."""
        if self.kept == len(self.receipts):
            return None
        trace = self.written()
        return Sent(trace.value, {name: text for name, text in trace.texts.items() if name not in self.linked})

    def mark_stored(self, sent: Sent | None) -> None:
        """It is stored."""
        if sent:
            self.kept, self.linked = len(sent.receipt["requests"]), self.linked | sent.texts.keys()

    def normalize_call(self, call: ToolCallEvent) -> ToolCallEvent:
        """The call as it can be sent again, to any provider: ids that were given twice are told apart, long ones cut,
        and a tool's name has the letters that names may have. Whatever a model calls, the session goes on."""
        given = name = join_surrogates(call.id[: 2 * MAX_CALL_ID_CHARACTERS])[:MAX_CALL_ID_CHARACTERS] or "call"
        number = 0
        while name in self.known_ids:
            number = max(self.numbers.get(given, 0), number) + 1
            name = f"{given[: MAX_CALL_ID_CHARACTERS - len(str(number)) - 1]}_{number}"
        self.numbers[given] = number
        self.known_ids.add(name)
        tool = re.sub(r"[^A-Za-z0-9_-]", "_", call.name[:64]) or "_"
        return ToolCallEvent(name, tool, join_surrogates(call.arguments))

    def estimate(self, context: Context) -> int:
        """What our own counter said of a request, without what was learnt since."""
        began = Runtime.of(self.turn.session.runtime)
        return max(1, round(context.receipt.tokens / began.calibration.factor))

    @property
    def changed_injection(self) -> dict[str, Any] | None:
        """The state of the session's injections, where this turn has changed it. Of requests that bring their own
        history only warnings and failed reads are kept: each of them is a first one."""
        if self.prompts is None:
            return None
        state = self.prompts.state
        if self.turn.given.history is not None:
            failures = {name: state.counters[name] for name in ("failed", "failed_in_a_row")}
            state = InjectionState(warned=state.warned, counters={**InjectionState().counters, **failures})
        was = self.turn.session.injection or InjectionState().to_dict()
        return None if state.to_dict() == was else state.to_dict()

    @property
    def injected_texts(self) -> dict[str, str]:
        """The files in force by their hashes, for later turns of the session that must not see newer ones."""
        envelope = self.gathered.envelope if self.gathered else None
        return envelope.in_force.texts if envelope and self.heard and self.turn.given.history is None else {}

    @property
    def timed_ask(self) -> Ask | None:
        """Who is asked for a yes; the time that this takes is not the turn's."""
        ask = self.ask
        if ask is None:
            return None

        async def asked(call: ToolCallEvent, decision: Decision) -> bool | None:
            clock, deadline = asyncio.get_running_loop().time, self.deadline
            due, began = deadline.when() if deadline else None, clock()
            if deadline:
                deadline.reschedule(None)
            try:
                return await ask(call, decision)
            finally:
                if deadline and due is not None:
                    deadline.reschedule(due + clock() - began)

        return asked

    def show_rest(self) -> None:
        """What was just stored with the step is shown."""
        if self.length > self.shown:
            self.running.emit(Text(self.said[self.shown :]))
        self.shown = self.length


def written(calls: Sequence[ToolCallEvent]) -> list[ToolCall]:
    """Calls as a message holds them."""
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]


def ending(work: TurnState, problem: BaseException | None, limits: Limits) -> tuple[FinalState, Phrase, Phrase]:
    """How a turn ends: interrupted when something of the answer came or might have come, failed when nothing could."""
    state, error, hint = _ending(work, problem, limits)
    return state, error.map_text(_storable), hint.map_text(_storable)


def _storable(text: str) -> str:
    return join_surrogates(text).replace("\0", "")[:MAX_ERROR_CHARACTERS]


def _ending(work: TurnState, problem: BaseException | None, limits: Limits) -> tuple[FinalState, Phrase, Phrase]:
    if problem is None:
        return "complete", NOTHING, NOTHING
    if isinstance(problem, asyncio.CancelledError):
        return "interrupted", CANCELLED, NOTHING
    if isinstance(problem, TimeoutError) and work.deadline and work.deadline.expired():
        seconds = f"{limits.seconds:g}"
        return "interrupted", Phrase("turn.too_long", n=seconds), Phrase("turn.too_long.hint", n=seconds)
    came = bool(work.said or work.since)
    if isinstance(problem, LimitError | StalledError | BrokenStreamError) or (
        came and isinstance(problem, ProviderError)
    ):
        return "interrupted", problem.phrase, problem.next_step
    if isinstance(problem, LaminaError):
        return "failed", problem.phrase, problem.next_step
    what = Phrase("bug", error=f"{type(problem).__name__}: {problem}")
    return "failed", what, Phrase("bug.hint")


CALLERS_FAULT = {*range(400, 500)} - {401, 403, 404}
"""What a provider answers to a request that is wrong; the others are about our key, or our address of it."""


def status_of(problem: BaseException | None) -> int:
    """Whose matter a failure is, as HTTP says it: a request that the provider refused is the caller's."""
    if isinstance(problem, RejectedError) and problem.provider_status in CALLERS_FAULT:
        return 400
    return problem.status if isinstance(problem, LaminaError) else 0


def usage(work: TurnState, hint: Phrase) -> dict[str, Any]:
    """Sums for people who pay, each request for those who look closer, and how it ended where that is not plain."""
    done: dict[str, Any] = {"done": work.done} if work.done != "stop" else {}
    done |= {"hint": hint.dump()} if hint else {}
    if not work.usages:
        return done
    counted = {number: list(_counts(usage)) for number, usage in work.usages}
    prompt, cached, completion = (sum(column) for column in zip(*(_counts(one) for _, one in work.usages), strict=True))
    each = [counted.get(number) for number in range(1, max(counted) + 1)]
    return {"prompt": prompt, "cached": cached, "completion": completion, "requests": each, **done}


def plausible_usage(usage: Usage) -> Usage:
    """What a provider counted; a number that no request can have is none."""
    prompt, cached, completion = (number if 0 <= number <= MAX_REPORTED_TOKENS else 0 for number in _counts(usage))
    return Usage(prompt, cached, completion)


def _counts(usage: Usage) -> tuple[int, int, int]:
    return usage.prompt, usage.cached, usage.completion


def read_user_words(work: TurnState) -> tuple[frozenset[str], str]:
    """The hints and the addresses in the user's own words, of this turn and of those in the window; what was piped in
    below them is somebody else's."""
    rows = work.chat.rows if work.chat else ()
    texts = [work.turn.words, *(row.text for row in rows if row.role == "user")]
    own = [text.partition(PIPED)[0] for text in texts]
    tags = frozenset(tag for text in own for tag in find_hint_tags(text))
    found = (address for text in own if "://" in text for address in ADDRESS.finditer(text))
    return tags, "\n".join(address[0] for address in itertools.islice(found, MAX_ADDRESSES))


ADDRESS = re.compile(r"https?://\S{1,2000}", re.IGNORECASE)
MAX_ADDRESSES = 1_000
