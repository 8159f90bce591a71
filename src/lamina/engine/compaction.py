"""Compaction (S9): the older messages of a session are folded into a summary, and the session continues from there.

The messages stay in the store; the summary says which it replaces. What would free less than a tenth is an error.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lamina.apart import run_apart
from lamina.assembly.history import close_calls, group_turns
from lamina.assembly.pieces import CURRENT_TURN
from lamina.engine.ledger_state import Compaction, Runtime
from lamina.errors import CompactionError, MemoryFormError, ProviderError
from lamina.memory.summaries import summarise, summary_from_reply, summary_prompt, text_size
from lamina.ports import Complete, Count
from lamina.records import Session, StoredMessage
from lamina.store.messages import Messages
from lamina.store.sessions import Sessions
from lamina.text.json import size_of
from lamina.types import Context, Message, ToolCall

COMPACT_AT_SHARE = 0.8
"""The share of the budget at which the history is compacted, and within a long turn its steps."""
KEPT_SHARE = 0.3
"""The share of the budget that the newest turns may keep."""
MIN_FREED_SHARE = 0.1
"""A compaction that frees less than this share is an error."""
MAX_SUMMARISED_MESSAGES, FIRST_MESSAGES = 400, 8
"""How many of the newest messages a summary is made of, and how many of the first, for the original request."""
MIN_SUMMARY_CHARACTERS, MAX_SUMMARY_CHARACTERS = 400, 4_000
WRITTEN_BY = {"model": "summary.by_model", "extractive": "summary.by_extractive"}


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """Tokens of the request before and after, and what was folded."""

    before: int
    after: int
    upto_seq: int
    text: str
    written_by: str


def is_compaction_due(context: Context) -> bool:
    """Does the whole of it, with what had to be left out, pass the mark? Only where there is something to fold."""
    receipt = context.receipt
    whole = receipt.tokens + receipt.dropped.tokens
    folds = any(segment.layer == "history" and segment.reason != CURRENT_TURN for segment in receipt.segments)
    return folds and (whole > COMPACT_AT_SHARE * receipt.budget or receipt.dropped.count > 0)


def must_fold_steps(context: Context) -> bool:
    return context.receipt.tokens > COMPACT_AT_SHARE * context.receipt.budget


def find_last_to_fold(rows: Sequence[StoredMessage], room: float, count: Count, *, turns: int = 0) -> int:
    """The number of the last message that is folded: of the newest turns, whole, those stay that fit into `room`, and
    `turns` of them in any case."""
    turn_of = _grouped(rows)
    first_of: dict[str, int] = {}
    for row in rows:
        first_of.setdefault(turn_of[row.seq], row.seq)
    kept, size, stay = (rows[-1].seq + 1 if rows else 1), 0, sorted(first_of.values())[len(first_of) - turns :]
    for row in reversed(rows):
        size += count(row.text) + count(str(row.extra or ""))
        if size > room and not (stay and row.seq >= stay[0]):
            break
        if row.seq == first_of[turn_of[row.seq]]:
            kept = row.seq
    while (begin := min((first_of[turn_of[row.seq]] for row in rows if row.seq >= kept), default=kept)) < kept:
        kept = begin  # two turns ran at once: none is cut
    return kept - 1


def _grouped(rows: Sequence[StoredMessage]) -> dict[int, str]:
    """To which turn each message belongs, by its number. One that begins with results continues the turn before it,
    whose calls they answer: the caller ran them."""
    found: dict[int, str] = {}
    named: dict[str, str] = {}
    last = ""
    for row in rows:
        name = row.turn_id or f"#{row.seq}"
        last = found[row.seq] = named.setdefault(name, last if row.role == "tool" and last else name)
    return found


async def fold(
    history: Messages,
    session: Session,
    upto: int,
    *,
    budget: float,
    complete: Complete | None = None,
    again: bool = False,
) -> Compaction:
    """The summary of the messages after the last compaction and up to a number: by a model, else extractive. With
    `again` it also replaces the messages of all compactions before it."""
    owner, session_id = session.owner, session.session_id
    folded = Runtime.of(session.runtime).folded
    before, upto = (0, max(upto, folded)) if again else (folded, upto)
    if upto <= before:
        raise CompactionError("compaction.nothing_to_fold", hint="compaction.make_room")
    newest = await history.list(
        owner, session_id, after=before, before=upto + 1, limit=MAX_SUMMARISED_MESSAGES, newest=True
    )
    rows = list(newest)
    if not before and rows[0].seq > 1:
        rows[:0] = await history.list(owner, session_id, before=min(FIRST_MESSAGES + 1, rows[0].seq))
    messages = await run_apart(size_of([row.content for row in rows]), lambda: close_calls(group_turns(rows)))
    limit = int(min(MAX_SUMMARY_CHARACTERS, max(MIN_SUMMARY_CHARACTERS, 0.2 * budget)))
    text, by = await _summary(messages, limit, complete, unread=upto - before - len(rows))
    return Compaction(before + 1, upto, text, by)


async def _summary(
    messages: Sequence[Message], limit: int, complete: Complete | None, *, unread: int
) -> tuple[str, str]:
    if complete is not None:
        try:
            prompt = await run_apart(text_size(messages), summary_prompt, messages, limit, form="compaction")
            reply = await complete(prompt, None)
            return summary_from_reply(reply, limit), "model"
        except (ProviderError, MemoryFormError):  # the work continues; who wrote it is stored with it
            pass
    size = text_size(messages)
    text = await run_apart(size, summarise, messages, limit=limit, form="compaction", unread=unread)
    return text, "extractive"


def with_compaction(session: Session, made: Compaction) -> list[dict[str, Any]]:
    """The compactions of a session and this one, which takes the place of those whose messages it covers (S4)."""
    return [*(one for one in session.runtime.get("compactions", ()) if one["upto"] < made.first), asdict(made)]


async def keep(sessions: Sessions, session: Session, made: Compaction, injection: dict[str, object] | None) -> Session:
    """Store a compaction and the state of the injections with it: the next turn repeats instructions and rules."""
    runtime: dict[str, object] = {"compactions": with_compaction(session, made)}
    return await sessions.update(session.owner, session.session_id, runtime=runtime, injection=injection)


def fold_steps(since: Sequence[Message], room: float, limit: int, count: Count) -> tuple[str, list[Message]]:
    """The steps of a turn that stay, the newest ones, and a line for each call of those that do not."""
    starts = [place for place, message in enumerate(since) if message["role"] == "assistant"]
    size, kept = 0, starts[-1] if starts else 0
    for place in range(len(since) - 1, -1, -1):
        size += count(str(since[place]))
        if size > room:
            break
        kept = min(kept, place) if place in starts else kept
    results = {m.get("tool_call_id"): str(m["content"]) for m in since[:kept] if m["role"] == "tool"}
    lines = [
        _line(call, results.get(call["id"], "")) for message in since[:kept] for call in message.get("tool_calls", ())
    ]
    size, first = sum(len(line) + 1 for line in lines) - 1, 0
    while first < len(lines) - 1 and size > limit:
        size, first = size - len(lines[first]) - 1, first + 1
    return "\n".join(lines[first:]), list(since[kept:])


def _line(call: ToolCall, said: str) -> str:
    return f"- {call['function']['name']} {_short(call['function']['arguments'], 120)} → {_short(said, 160)}"


def _short(text: str, most: int) -> str:
    line = " ".join(text[: 100 * most].split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def check_freed(before: Context, after: Context) -> None:
    whole = before.receipt.tokens + before.receipt.dropped.tokens
    rest = after.receipt.tokens + after.receipt.dropped.tokens
    if whole - rest < MIN_FREED_SHARE * whole:
        freed, share = max(0, whole - rest), f"{MIN_FREED_SHARE:.0%}"
        raise CompactionError(
            "compaction.frees_too_little", freed=freed, tokens=whole, share=share, hint="compaction.make_room"
        )
