"""What is known of a turn while it runs, and what it comes to: its limits, its state, its usage and how it ends."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lamina.assembly.trace import Trace
from lamina.engine.build import Gathered
from lamina.engine.layout import Requests
from lamina.engine.running import Running
from lamina.engine.state import Runtime
from lamina.errors import (
    BrokenStreamError,
    LaminaError,
    LimitError,
    ProviderError,
    RejectedError,
    StalledError,
)  # fmt: skip
from lamina.layers.history import Chat, whole
from lamina.ports import Ask
from lamina.records import FinalState, Sent, Turn, TurnRecord
from lamina.types import Context, DoneReason, Message, Receipt, Text, ToolCall, ToolCallEvent, Usage

CANCELLED = "cancelled"
PIPED = "\n\n<stdin>\n"
"""What stands between the user's words and text that was piped in: from there on it is somebody else's."""
MOST_ERROR = 2_000
MOST_TOKENS = 10**9
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
class Work:
    """What is known of a turn while it runs."""

    turn: Turn
    record: TurnRecord
    running: Running
    ask: Ask | None
    runtime: Runtime
    gathered: Gathered | None = None
    chat: Chat | None = None
    requests: Requests | None = None
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
    said: str = ""
    """The text of this step."""
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
    known_ids: set[str] = field(default_factory=set[str])

    @property
    def key(self) -> tuple[str, str]:
        return self.record.owner, self.record.turn_id

    def written(self) -> Trace:
        """What was sent so far, as it is stored."""
        for receipt in self.receipts[len(self.trace.requests) :]:
            self.trace.add(receipt)
        return self.trace

    def unkept(self) -> Sent | None:
        """What was sent, where something of it is not stored yet."""
        if self.kept == len(self.receipts):
            return None
        trace = self.written()
        return Sent(trace.value, {name: text for name, text in trace.texts.items() if name not in self.linked})

    def keep(self, sent: Sent | None) -> None:
        """It is stored."""
        if sent:
            self.kept, self.linked = len(sent.receipt["requests"]), self.linked | sent.texts.keys()

    def show_rest(self) -> None:
        """What was just stored with the step is shown."""
        if len(self.said) > self.shown:
            self.running.emit(Text(self.said[self.shown :]))
        self.shown = len(self.said)


def written(calls: Sequence[ToolCallEvent]) -> list[ToolCall]:
    """Calls as a message holds them."""
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]


def ending(work: Work, problem: BaseException | None, limits: Limits) -> tuple[FinalState, str, str]:
    """How a turn ends: interrupted when something of the answer came or might have come, failed when nothing could."""
    state, error, hint = _ending(work, problem, limits)
    return state, whole(error).replace("\0", "")[:MOST_ERROR], hint


def _ending(work: Work, problem: BaseException | None, limits: Limits) -> tuple[FinalState, str, str]:
    if problem is None:
        return "complete", "", ""
    if isinstance(problem, asyncio.CancelledError):
        return "interrupted", CANCELLED, ""
    if isinstance(problem, TimeoutError) and work.deadline and work.deadline.expired():
        return "interrupted", f"the turn took longer than {limits.seconds:g} seconds", "LAMINA_TURN_SECONDS"
    came = bool(work.said or work.since)
    if isinstance(problem, LimitError | StalledError | BrokenStreamError) or (
        came and isinstance(problem, ProviderError)
    ):
        return "interrupted", problem.message, problem.hint
    if isinstance(problem, LaminaError):
        return "failed", problem.message, problem.hint
    return "failed", f"{type(problem).__name__}: {problem}", "this is a bug in lamina: please report it"


def status_of(problem: BaseException | None) -> int:
    """Whose matter a failure is, as HTTP says it: a request that the provider refused is the caller's."""
    if isinstance(problem, RejectedError) and 400 <= problem.code < 500 and problem.code not in (401, 403, 404):
        return 400
    return problem.status if isinstance(problem, LaminaError) else 0


def usage(work: Work, hint: str = "") -> dict[str, Any]:
    """Sums for people who pay, each request for those who look closer, and how it ended where that is not plain."""
    done: dict[str, Any] = {"done": work.done} if work.done != "stop" else {}
    done |= {"hint": hint} if hint else {}
    if not work.usages:
        return done
    counted = {number: list(_counts(usage)) for number, usage in work.usages}
    prompt, cached, completion = (sum(column) for column in zip(*(_counts(one) for _, one in work.usages), strict=True))
    each = [counted.get(number) for number in range(1, max(counted) + 1)]
    return {"prompt": prompt, "cached": cached, "completion": completion, "requests": each, **done}


def believed(usage: Usage) -> Usage:
    """What a provider counted; a number that no request can have is none."""
    prompt, cached, completion = (number if 0 <= number <= MOST_TOKENS else 0 for number in _counts(usage))
    return Usage(prompt, cached, completion)


def _counts(usage: Usage) -> tuple[int, int, int]:
    return usage.prompt, usage.cached, usage.completion


def estimated(work: Work, context: Context) -> int:
    """What our own counter said of a request, without what was learnt since."""
    began = Runtime.of(work.turn.session.runtime)
    return max(1, round(context.receipt.tokens / began.calibration.factor))


def typed(work: Work, tag: str) -> bool:
    """Did the user write this tag himself, now or before?"""
    return tag in said_by_user(work)


def said_by_user(work: Work) -> str:
    """His own words of this turn and of those in the window; what was piped in below them is not his."""
    rows = work.chat.rows if work.chat else ()
    texts = [work.turn.words, *(row.text for row in rows if row.role == "user")]
    return "\n".join(text.partition(PIPED)[0] for text in texts)
