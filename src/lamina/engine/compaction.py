"""Compaction (S9): the older messages of a session are folded into a summary, and the session goes on from there.

The messages stay in the store; the summary says which it stands for. What would free less than a tenth is an error.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from lamina.engine.state import Compaction, Runtime
from lamina.errors import CompactionError, MemoryFormError, ProviderError
from lamina.layers.history import closed, together
from lamina.layers.summaries import summarise, summary_from_reply, summary_prompt
from lamina.ports import Complete, Count, HistoryRows
from lamina.records import Session, StoredMessage
from lamina.types import Context, Message

FULL = 0.8
"""The share of the window at which the history is folded."""
KEPT = 0.3
"""The share of the window that the newest turns may keep."""
LEAST = 0.1
"""A compaction that frees less than this share is an error."""
MESSAGES, FIRST = 400, 8
"""How many of the newest messages a summary is made of, and how many of the first, for the original request."""
SHORTEST, LONGEST = 400, 4_000
HINT = "raise the budget (LAMINA_BUDGET), shorten rules, skills or the message, or begin a new session"


class SessionRows(Protocol):
    async def update(self, owner: str, session_id: str, *, runtime: dict[str, object]) -> Session: ...


@dataclass(frozen=True, slots=True)
class Compacted:
    """Tokens of the request before and after, and what was folded."""

    before: int
    after: int
    upto_seq: int
    text: str
    written_by: str


def is_due(context: Context) -> bool:
    """Does the whole of it, with what had to be left out, pass the mark? Only where there is something to fold."""
    receipt = context.receipt
    whole = receipt.tokens + receipt.dropped.tokens
    folds = any(segment.layer == "history" and segment.reason != "the current turn" for segment in receipt.segments)
    return folds and (whole > FULL * receipt.budget or receipt.dropped.count > 0)


def last_to_fold(rows: Sequence[StoredMessage], room: float, count: Count) -> int:
    """The number of the last message that is folded: of the newest turns, whole, those stay that fit into `room`."""
    first_of: dict[str, int] = {}
    for row in rows:
        first_of.setdefault(_turn(row), row.seq)
    kept, size = (rows[-1].seq + 1 if rows else 1), 0
    for row in reversed(rows):
        size += count(row.text) + count(str(row.extra or ""))
        if size > room:
            break
        if row.seq == first_of[_turn(row)]:
            kept = row.seq
    while (begin := min((first_of[_turn(row)] for row in rows if row.seq >= kept), default=kept)) < kept:
        kept = begin  # two turns ran at once: none is cut
    return kept - 1


def _turn(row: StoredMessage) -> str:
    return row.turn_id or f"#{row.seq}"


async def fold(
    history: HistoryRows, session: Session, upto: int, *, budget: float, complete: Complete | None = None
) -> Compaction:
    """The summary of the messages after the last compaction and up to a number: by a model, else extractive."""
    owner, session_id = session.owner, session.session_id
    before = Runtime.of(session.runtime).folded
    if upto <= before:
        raise CompactionError("there is nothing to fold: only the newest turns are left", hint=HINT)
    rows = list(await history.messages(owner, session_id, after=before, before=upto + 1, limit=MESSAGES, newest=True))
    if not before and rows[0].seq > 1:
        rows[:0] = await history.messages(owner, session_id, before=min(FIRST + 1, rows[0].seq))
    messages = closed(together(rows))
    limit = int(min(LONGEST, max(SHORTEST, 0.2 * budget)))
    text, by = await _summary(messages, limit, complete)
    return Compaction(before + 1, upto, text, by)


async def _summary(messages: Sequence[Message], limit: int, complete: Complete | None) -> tuple[str, str]:
    if complete is not None:
        try:
            reply = await complete(summary_prompt(messages, limit, form="compaction"), None)
            return summary_from_reply(reply, limit), "model"
        except (ProviderError, MemoryFormError):  # the work goes on; who wrote it is kept with it
            pass
    return summarise(messages, limit=limit, form="compaction"), "extractive"


async def keep(sessions: SessionRows, session: Session, made: Compaction) -> Session:
    """Store a compaction behind those before it: each keeps what it saved (S4)."""
    earlier = list(session.runtime.get("compactions", ()))
    return await sessions.update(session.owner, session.session_id, runtime={"compactions": [*earlier, asdict(made)]})


def check_freed(before: Context, after: Context) -> None:
    whole = before.receipt.tokens + before.receipt.dropped.tokens
    rest = after.receipt.tokens + after.receipt.dropped.tokens
    if whole - rest < LEAST * whole:
        raise CompactionError(
            f"compaction would free {max(0, whole - rest)} of {whole} tokens, less than {LEAST:.0%}", hint=HINT
        )
