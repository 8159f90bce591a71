"""Turns: the question is stored before anything is sent, chunks before they are shown, the answer in one transaction.

A turn that is no longer answered (its lease has run out) is ended by `recover`, with what it had so far.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lamina.apart import run_apart
from lamina.errors import LeaseError, MessageError, NotFoundError, format_value
from lamina.records import FinalState, NewJob, Sent, TurnRecord
from lamina.store.database import MAX_NAME, Clock, Database, Row, Steps, clean, dump, insert, load, new_id, not_found
from lamina.store.jobs import add_jobs
from lamina.store.messages import (
    Placed,
    check_messages,
    put_messages,
    put_words,
    read_content,
    read_texts,
    split_message,
    take_numbers,
    text_in,
)
from lamina.store.shapes import RECEIPT, holds_all, read_row
from lamina.text.json import read_json
from lamina.types import AnyMessage, text_hash

COLUMNS = (
    "owner, turn_id, session_id, key, state, user_message_id, user_seq, answer_message_id, answer_seq, usage, receipt, "
    "error, created, finished, lease_until, begun"
)
LIGHT_COLUMNS = COLUMNS.replace("usage, receipt", "'{}', '{}'")
"""Of a turn that is being written to: the writer knows its usage and receipt, and a receipt is large."""
LEASE = 60.0
MAX_SEARCHED_MESSAGES = 1_000
"""Of the newest messages, for calls that wait for their results."""
RECOVERY_BATCH = 1_000
RUNNING = "AND state = 'streaming' "
LOST = "turn.lost"
"""The error of a turn that was ended by recovery."""
PIECE_CHARACTERS, MAX_ROW_CHARACTERS = 32_768, 65_536
"""A receipt that is longer than a row may be is stored in pieces among the layer texts: SQLite reads the whole row of a
turn, or of its neighbour, whenever it looks for one."""
SEGMENT_CHARACTERS = 200
"""About how long the JSON of one segment is."""
PIECES = "pieces"


# Receipts


@dataclass(frozen=True, slots=True)
class ReceiptRows:
    """A receipt and its texts as they are put into rows; made before the transaction, which holds up everybody."""

    receipt: str | None
    """None leaves the one that is there."""
    texts: Sequence[tuple[str, str]]


def receipt_size(receipt: Mapping[str, Any] | None, texts: Mapping[str, str] | None) -> int:
    """About how many characters are written; there may be very many segments, so their fields are not counted."""
    segments = sum(len(request["segments"]) for request in (receipt or {}).get("requests", ()))
    return SEGMENT_CHARACTERS * segments + sum(map(len, (texts or {}).values()))


def receipt_rows(receipt: Mapping[str, Any] | None, texts: Mapping[str, str] | None) -> ReceiptRows:
    for name, text in (texts or {}).items():
        if name != text_hash(text):
            raise MessageError("text.wrong_hash", name=format_value(name))
    rows = {name: dump(text) for name, text in (texts or {}).items()}
    whole = None if receipt is None else dump(receipt)
    if whole is not None and len(whole) > MAX_ROW_CHARACTERS:
        pieces = [whole[at : at + PIECE_CHARACTERS] for at in range(0, len(whole), PIECE_CHARACTERS)]
        names = [text_hash(piece) for piece in pieces]
        rows |= {name: dump(piece) for name, piece in zip(names, pieces, strict=True)}
        whole = dump({PIECES: names})
    return ReceiptRows(whole, sorted(rows.items()))


def put_receipt(owner: str, turn_id: str, made: ReceiptRows) -> Steps[None]:
    """The texts, each once for an owner, that this turn needs them, and the receipt."""
    rows = [(owner, name, text) for name, text in made.texts]
    yield from insert("layer_text", "owner, hash, text", rows, "ON CONFLICT DO NOTHING")
    links = [(owner, turn_id, name) for name, _ in made.texts]
    yield from insert("turn_text", "owner, turn_id, hash", links, "ON CONFLICT DO NOTHING")
    if made.receipt is not None:
        yield "UPDATE turn SET receipt = ? WHERE owner = ? AND turn_id = ?", (made.receipt, owner, turn_id)


def join_receipts(turns: Sequence[TurnRecord]) -> Steps[list[TurnRecord]]:
    """The turns of one owner with their receipts put together again. An incomplete one is left out."""
    names = list(dict.fromkeys(name for turn in turns for name in _pieces(turn)))
    texts = (yield from read_texts(turns[0].owner, names)) if names else {}
    return [replace(turn, receipt=_join_pieces(_pieces(turn), texts)) if _pieces(turn) else turn for turn in turns]


def _pieces(turn: TurnRecord) -> Sequence[str]:
    return turn.receipt.get(PIECES, ())


def _join_pieces(names: Sequence[str], texts: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        found = read_json("".join(texts.get(name, "") for name in names))
    except (ValueError, RecursionError):
        return {}
    return found if holds_all(found, RECEIPT) else {}


# Turns


def turn_of(row: Row) -> TurnRecord:
    values = read_row("turn", COLUMNS, row)
    values[3] = values[3] or ""
    return TurnRecord(*values)


def get_turn(owner: str, turn_id: str) -> Steps[TurnRecord]:
    rows = yield f"SELECT {COLUMNS} FROM turn WHERE owner = ? AND turn_id = ?", (owner, turn_id)
    if not rows:
        raise not_found("turn.not_found", turn_id)
    (turn,) = yield from join_receipts([turn_of(rows[0])])
    return turn


def _begin(
    db: Database, owner: str, session_id: str, message: AnyMessage, key: str, now: float, lease: float, tokens: int,
    more: Sequence[AnyMessage] = (),
) -> Steps[TurnRecord]:  # fmt: skip
    if key:
        rows = yield f"SELECT {COLUMNS} FROM turn WHERE owner = ? AND key = ?", (owner, key)
        if rows:
            (turn,) = yield from join_receipts([turn_of(rows[0])])
            return replace(_of_session(turn, session_id), repeated=True)
    seq = yield from take_numbers(owner, session_id, 2 + len(more), now)
    last = seq + 1 + len(more)
    yield from _check_results(owner, session_id, [message, *more])  # under the session's lock: once is once
    turn = TurnRecord(
        owner=owner, turn_id=new_id(), session_id=session_id, key=key, state="streaming", user_message_id=new_id(),
        user_seq=seq, answer_message_id=new_id(), answer_seq=last, usage={}, receipt={}, error="", created=now,
        finished=None, lease_until=now + lease,
    )  # fmt: skip
    values: list[Any] = [getattr(turn, name) for name in COLUMNS.split(", ")]
    values[3], values[9], values[10] = key or None, "{}", "{}"
    yield from insert("turn", COLUMNS, [values])
    yield from put_messages(
        db, owner, session_id, turn.turn_id,
        [
            (seq, message, "complete", tokens),
            *((seq + 1 + number, one, "complete", 0) for number, one in enumerate(more)),
            (last, {"role": "assistant", "content": ""}, "streaming", 0),
        ],
        now, [turn.user_message_id, *(new_id() for _ in more), turn.answer_message_id],
    )  # fmt: skip
    return turn


def _check_results(owner: str, session_id: str, messages: Sequence[AnyMessage]) -> Steps[None]:
    """Results that come from outside answer calls that wait for them. Those of a turn from which nothing came wait
    again: a client that is told to ask again sends them again."""
    given = [str(message.get("tool_call_id", "")) for message in messages if message["role"] == "tool"]
    if not given:
        return
    rows = yield (
        "SELECT role, extra, turn_id, state, content, content_type FROM conversation "
        "WHERE owner = ? AND session_id = ? ORDER BY seq DESC LIMIT ?",
        (owner, session_id, MAX_SEARCHED_MESSAGES),
    )
    waiting: set[str] = set()
    taken: dict[str, set[str]] = {}
    for role, extra, turn_id, state, *content in reversed(rows):
        kept = load(extra)
        if role == "tool":
            name = str(kept.get("tool_call_id"))
            taken.setdefault(turn_id, set()).update({name} & waiting)
            waiting.discard(name)
        elif role == "assistant" and state in ("failed", "interrupted") and not (read_content(*content) or kept):
            waiting |= taken.get(turn_id, set())
        else:
            waiting = {str(call["id"]) for call in kept.get("tool_calls") or ()} if role == "assistant" else set()
    for name in given:
        if name not in waiting:
            raise MessageError("turn.unexpected_result", name=format_value(name))
        waiting.discard(name)


def _of_session(turn: TurnRecord, session_id: str) -> TurnRecord:
    if turn.session_id != session_id:
        raise MessageError("turn.key_used", key=format_value(turn.key))
    return turn


def _hold(
    owner: str, turn_id: str, until: float, begun: float | None = None, sent: ReceiptRows | None = None
) -> Steps[TurnRecord]:
    """Renew the lease of a turn that still streams, and keep what it has sent; this also locks its row."""
    rows = yield (
        "UPDATE turn SET lease_until = ?, begun = COALESCE(begun, ?) "
        f"WHERE owner = ? AND turn_id = ? AND state = 'streaming' RETURNING {LIGHT_COLUMNS}",
        (until, begun, owner, turn_id),
    )
    if not rows:
        turn = yield from get_turn(owner, turn_id)
        raise _ended_error(turn)
    if sent:
        yield from put_receipt(owner, turn_id, sent)
    return turn_of(rows[0])


def _ended_error(turn: TurnRecord) -> LeaseError:
    return LeaseError("turn.already_ended", name=format_value(turn.turn_id), state=turn.state)


def _chunk(
    owner: str, turn_id: str, n: int, text: str, now: float, until: float, sent: ReceiptRows | None
) -> Steps[None]:
    yield from _hold(owner, turn_id, until, now, sent)
    yield from insert("chunk", "owner, turn_id, n, text", [(owner, turn_id, n, dump(text))], "ON CONFLICT DO NOTHING")


def _chunks(owner: str, turn_id: str, after: int = -1) -> Steps[list[tuple[int, str]]]:
    rows = yield (
        "SELECT n, text FROM chunk WHERE owner = ? AND turn_id = ? AND n > ? ORDER BY n",
        (
            owner,
            turn_id,
            after,
        ),
    )
    return [(n, text) for n, text in (read_row("chunk", "n, text", row) for row in rows)]


def _add(
    db: Database, owner: str, turn_id: str, messages: Sequence[AnyMessage], folded: bool, now: float, until: float,
    sent: ReceiptRows | None,
) -> Steps[list[str]]:  # fmt: skip
    """The new rows stand where the answer stood, and the answer moves behind them: numbers stay without gaps."""
    turn = yield from _hold(owner, turn_id, until, now, sent)
    if not messages:
        return []
    if folded:
        yield "DELETE FROM chunk WHERE owner = ? AND turn_id = ?", (owner, turn_id)
    first = yield from take_numbers(owner, turn.session_id, len(messages), now)
    places = [turn.answer_seq, *range(first, first + len(messages))]
    yield (
        "UPDATE conversation SET seq = ? WHERE owner = ? AND session_id = ? AND seq = ?",
        (places[-1], owner, turn.session_id, turn.answer_seq),
    )
    yield "UPDATE turn SET answer_seq = ? WHERE owner = ? AND turn_id = ?", (places[-1], owner, turn_id)
    placed: list[Placed] = [(seq, message, "complete", 0) for seq, message in zip(places, messages, strict=False)]
    return (yield from put_messages(db, owner, turn.session_id, turn_id, placed, now))


def _finish(
    db: Database, owner: str, turn_id: str, state: FinalState, answer: AnyMessage | None, values: Mapping[str, Any],
    made: ReceiptRows, session: Mapping[str, Any], jobs: Sequence[NewJob], tokens: int, now: float,
) -> Steps[TurnRecord]:  # fmt: skip
    rows = yield (
        f"UPDATE turn SET state = ?, {', '.join(f'{name} = ?' for name in values)}, finished = ? "
        f"WHERE owner = ? AND turn_id = ? AND state = 'streaming' RETURNING {LIGHT_COLUMNS}",
        (state, *values.values(), now, owner, turn_id),
    )
    if not rows:
        turn = yield from get_turn(owner, turn_id)
        if turn.state != state or turn.error == LOST:
            raise _ended_error(turn)
        return replace(turn, repeated=True)
    turn = turn_of(rows[0])
    if answer is None:
        kept = yield from _chunks(owner, turn_id)
        answer = {"role": "assistant", "content": "".join(text for _, text in kept)}
    _, content, content_type, extra = split_message(answer)
    yield (
        "UPDATE conversation SET content = ?, content_type = ?, extra = ?, state = ?, tokens = ? "
        "WHERE owner = ? AND session_id = ? AND seq = ?",
        (content, content_type, extra, state, tokens, owner, turn.session_id, turn.answer_seq),
    )
    yield "DELETE FROM chunk WHERE owner = ? AND turn_id = ?", (owner, turn_id)
    yield from put_words(db, owner, turn.session_id, [(turn.answer_seq, text_in(answer.get("content")))])
    yield from put_receipt(owner, turn_id, made)
    yield from change_session(owner, turn.session_id, session, now)
    yield from add_jobs(owner, jobs, now)
    return turn


def _record(
    db: Database, owner: str, session_id: str, question: AnyMessage, answer: AnyMessage, key: str,
    made: ReceiptRows, jobs: Callable[[TurnRecord], Sequence[NewJob]], now: float,
) -> Steps[TurnRecord]:  # fmt: skip
    """Question and answer at once. An unfinished turn of that key is finished by this."""
    turn = yield from _begin(db, owner, session_id, question, key, now, LEASE, 0)
    if turn.repeated and turn.state == "complete":
        return turn
    if turn.state != "streaming":
        yield "UPDATE turn SET state = 'streaming' WHERE owner = ? AND turn_id = ?", (owner, turn.turn_id)
    end: tuple[FinalState, AnyMessage, Mapping[str, Any]] = ("complete", answer, {"usage": "{}", "error": ""})
    return (yield from _finish(db, owner, turn.turn_id, *end, made, {}, jobs(turn), 0, now))


def change_session(owner: str, session_id: str, changes: Mapping[str, Any], now: float) -> Steps[None]:
    """`injection` takes the place of what was there; what `runtime` names changes, and the rest of it stays."""
    if not changes:
        return
    plain = {name: dump(value) for name, value in changes.items() if name != "runtime"}
    values = {"updated": now, **plain}
    rows = yield (
        f"UPDATE chat_session SET {', '.join(f'{name} = ?' for name in values)} WHERE owner = ? AND session_id = ? "
        "RETURNING runtime",  # this also locks the row
        (*values.values(), owner, session_id),
    )
    if "runtime" in changes:
        (kept,) = read_row("chat_session", "runtime", rows[0])
        merged = dump({**kept, **changes["runtime"]})
        yield "UPDATE chat_session SET runtime = ? WHERE owner = ? AND session_id = ?", (merged, owner, session_id)


def _list(owner: str, session_id: str, before: int | None, limit: int | None, running: bool) -> Steps[list[TurnRecord]]:
    rows = yield (
        f"SELECT {COLUMNS} FROM turn WHERE owner = ? AND session_id = ? AND user_seq < ? "
        f"{RUNNING if running else ''}ORDER BY user_seq DESC LIMIT ?",
        (owner, session_id, 2**62 if before is None else before, 2**62 if limit is None else limit),
    )
    return (yield from join_receipts([turn_of(row) for row in reversed(rows)]))


def _open(before: float, limit: int) -> Steps[list[tuple[str, str]]]:
    rows = yield (
        "SELECT owner, turn_id FROM turn WHERE state = 'streaming' AND lease_until < ? ORDER BY lease_until LIMIT ?",
        (before, limit),
    )
    return [(row[0], row[1]) for row in rows]


async def _sent_rows(sent: Sent | None) -> ReceiptRows | None:
    if sent is None:
        return None
    return await run_apart(receipt_size(sent.receipt, sent.texts), receipt_rows, sent.receipt, sent.texts)


class Turns:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def begin(
        self,
        owner: str,
        session_id: str,
        message: AnyMessage,
        *,
        key: str = "",
        lease: float = LEASE,
        tokens: int = 0,
        more: Sequence[AnyMessage] = (),
    ) -> TurnRecord:
        """Store the question, with whatever else comes with it, and a place for the answer. The same key again gives
        the same turn, `repeated`."""
        now = self._clock()
        clean(key, "field.key", MAX_NAME)
        await check_messages([message, *more])
        return await self._db.write(
            owner, lambda: _begin(self._db, owner, session_id, message, key, now, lease, tokens, more)
        )

    async def record(
        self, owner: str, session_id: str, question: AnyMessage, answer: AnyMessage, *, key: str = "",
        receipt: Mapping[str, Any] | None = None, texts: Mapping[str, str] | None = None,
        jobs: Callable[[TurnRecord], Sequence[NewJob]] = lambda turn: (),
    ) -> TurnRecord:  # fmt: skip
        """A turn that was answered elsewhere, in one transaction; the same key again stores it only once."""
        now = self._clock()
        clean(key, "field.key")
        await check_messages([question, answer])
        made = await run_apart(receipt_size(receipt, texts), receipt_rows, receipt or {}, texts)
        turn = await self._db.write(
            owner,
            lambda: _record(
                self._db, owner, session_id, question, answer, key, made, jobs, now
            ),
        )  # fmt: skip
        return turn if turn.repeated else replace(turn, receipt=receipt or {})

    async def chunk(
        self, owner: str, turn_id: str, n: int, text: str, *, lease: float = LEASE, sent: Sent | None = None
    ) -> None:
        """Store a piece of the answer, before it is shown; the same `n` again changes nothing. Renews the lease.

        Here and below, `sent` is what the turn has sent so far: kept from then on, however the turn ends.
        """
        now = self._clock()
        kept = await _sent_rows(sent)
        await self._db.write(owner, lambda: _chunk(owner, turn_id, n, text, now, now + lease, kept))

    async def chunks(self, owner: str, turn_id: str, *, after: int = -1) -> Sequence[tuple[int, str]]:
        """The pieces of an answer that still streams."""
        return await self._db.read(owner, lambda: _chunks(owner, turn_id, after))

    async def add(
        self, owner: str, turn_id: str, messages: Sequence[AnyMessage], *, folded: bool = True, lease: float = LEASE,
        sent: Sent | None = None,
    ) -> Sequence[str]:  # fmt: skip
        """Tool calls and results inside the turn, before its answer; returns their message ids.

        `folded` says that the chunks so far are in these messages, as the text beside a tool call is; they go.
        """
        now = self._clock()
        await check_messages(messages)
        kept = await _sent_rows(sent)
        return await self._db.write(
            owner, lambda: _add(self._db, owner, turn_id, messages, folded, now, now + lease, kept)
        )

    async def renew(self, owner: str, turn_id: str, *, lease: float = LEASE, sent: Sent | None = None) -> None:
        until = self._clock() + lease
        kept = await _sent_rows(sent)
        await self._db.write(owner, lambda: _hold(owner, turn_id, until, sent=kept))

    async def finish(
        self, owner: str, turn_id: str, *, state: FinalState = "complete", answer: AnyMessage | None = None,
        usage: Mapping[str, Any] | None = None, receipt: Mapping[str, Any] | None = None,
        texts: Mapping[str, str] | None = None, injection: Mapping[str, Any] | None = None,
        runtime: Mapping[str, Any] | None = None, jobs: Sequence[NewJob] = (), error: str = "", tokens: int = 0,
    ) -> TurnRecord:  # fmt: skip
        """The answer, usage, receipt, layer texts and jobs in one transaction. Without an answer the chunks are it,
        and without a receipt the one that is kept already."""
        now = self._clock()
        values = {"usage": dump(usage or {}), "error": clean(error, "field.error")}
        given = {"injection": injection, "runtime": runtime}
        session = {name: value for name, value in given.items() if value is not None}
        made = await run_apart(receipt_size(receipt, texts), receipt_rows, receipt, texts)
        turn = await self._db.write(
            owner,
            lambda: _finish(
                self._db, owner, turn_id, state, answer, values, made, session, jobs, tokens, now
            ),
        )  # fmt: skip
        return turn if turn.repeated else replace(turn, usage=usage or {}, receipt=receipt or {})

    async def get(self, owner: str, turn_id: str) -> TurnRecord:
        return await self._db.read(owner, lambda: get_turn(owner, turn_id))

    async def list(
        self, owner: str, session_id: str, *, before: int | None = None, limit: int | None = None, running: bool = False
    ) -> Sequence[TurnRecord]:
        """In order; `limit` takes the newest of those whose question stands before `before`."""
        return await self._db.read(owner, lambda: _list(owner, session_id, before, limit, running))

    async def recover(
        self, *, everything: bool = False, jobs: Callable[[TurnRecord], Sequence[NewJob]] = lambda turn: (),
        without: Collection[str] = (),
    ) -> Sequence[TurnRecord]:  # fmt: skip
        """End the turns whose lease has run out, as interrupted, with their chunks as the answer. For all owners.

        `everything` also takes those whose lease still runs: right when this process has just become the only one.
        `jobs` is what an ended turn asks for, stored with its end. `without` are turns that this process answers: a
        clock that was set or a store that was away for a while must not end them.
        """
        values, as_it_is = {"error": LOST}, receipt_rows(None, None)
        no_session: dict[str, Any] = {}
        ended: list[TurnRecord] = []
        known: set[tuple[str, str]] = set()
        while True:
            now = self._clock()
            found = await self._db.write_any_owner(lambda n=now: _open(2.0**62 if everything else n, RECOVERY_BATCH))
            fresh = [one for one in found if one not in known and one[1] not in without]
            known.update(fresh)
            for owner, turn_id in fresh:
                try:
                    turn = await self.get(owner, turn_id)
                    steps = (owner, turn_id, "interrupted", None, values, as_it_is, no_session, jobs(turn), 0, now)
                    ended.append(await self._db.write(owner, lambda steps=steps: _finish(self._db, *steps)))
                except (LeaseError, NotFoundError):  # finished after all, or deleted, between the two looks
                    continue
            if len(found) < RECOVERY_BATCH or not fresh:
                return ended
