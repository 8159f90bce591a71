"""Turns: the question is stored before anything is sent, chunks before they are shown, the answer in one transaction.

A turn that is no longer answered (its lease has run out) is ended by `recover`, with what it had so far.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lamina.apart import run_apart
from lamina.errors import LeaseError, MessageError, NotFoundError, format_value
from lamina.records import FinalState, NewJob, Sent, TurnRecord
from lamina.store.database import (
    MAX_NAME,
    Group,
    Row,
    Steps,
    clean,
    column_values,
    columns_of,
    dump,
    insert,
    load,
    new_id,
    one_row,
    read,
    set_clause,
    write,
    write_any_owner,
)
from lamina.store.jobs import add_jobs
from lamina.store.messages import (
    MessageRow,
    NumberedMessage,
    message_row,
    message_rows,
    put_messages,
    put_words,
    read_content,
    read_texts,
    take_numbers,
)
from lamina.store.schema import is_receipt, read_row
from lamina.store.sessions import change_session
from lamina.text.json import read_json
from lamina.types import AnyMessage, text_hash

COLUMNS = columns_of(TurnRecord).removesuffix(", repeated")
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
    """A receipt and its texts as rows keep them."""

    receipt: str | None
    """None leaves the one that is there."""
    texts: Sequence[tuple[str, str]]


async def receipt_rows(receipt: Mapping[str, Any] | None, texts: Mapping[str, str] | None) -> ReceiptRows:
    """Made before the transaction, which holds up everybody. There may be very many segments, so their fields are not
    counted."""
    segments = sum(len(request["segments"]) for request in (receipt or {}).get("requests", ()))
    size = SEGMENT_CHARACTERS * segments + sum(map(len, (texts or {}).values()))
    return await run_apart(size, _receipt_rows, receipt, texts or {})


def _receipt_rows(receipt: Mapping[str, Any] | None, texts: Mapping[str, str]) -> ReceiptRows:
    for name, text in texts.items():
        if name != text_hash(text):
            raise MessageError("text.wrong_hash", name=format_value(name))
    rows = {name: dump(text) for name, text in texts.items()}
    stored = None if receipt is None else dump(receipt)
    if stored is not None and len(stored) > MAX_ROW_CHARACTERS:
        pieces = [stored[at : at + PIECE_CHARACTERS] for at in range(0, len(stored), PIECE_CHARACTERS)]
        names = [text_hash(piece) for piece in pieces]
        rows |= {name: dump(piece) for name, piece in zip(names, pieces, strict=True)}
        stored = dump({PIECES: names})
    return ReceiptRows(stored, sorted(rows.items()))


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
    return found if is_receipt(found) else {}


# Turns


def turn_of(row: Row) -> TurnRecord:
    return TurnRecord(*read_row("turn", COLUMNS, row))


def get_turn(owner: str, turn_id: str) -> Steps[TurnRecord]:
    rows = yield f"SELECT {COLUMNS} FROM turn WHERE owner = ? AND turn_id = ?", (owner, turn_id)
    (turn,) = yield from join_receipts([turn_of(one_row(rows, "turn.not_found", turn_id))])
    return turn


def _find_repeated(owner: str, session_id: str, key: str) -> Steps[TurnRecord | None]:
    """The turn that has this key already."""
    rows = yield f"SELECT {COLUMNS} FROM turn WHERE owner = ? AND key = ?", (owner, key)
    if not rows:
        return None
    (turn,) = yield from join_receipts([turn_of(rows[0])])
    if turn.session_id != session_id:
        raise MessageError("turn.key_used", key=format_value(turn.key))
    return replace(turn, repeated=True)


def _check_results(owner: str, session_id: str, given: Sequence[str]) -> Steps[None]:
    """Results that come from outside answer calls that wait for them. Those of a turn from which nothing came wait
    again: a client that is told to ask again sends them again."""
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
        fields = load(extra)
        if role == "tool":
            name = str(fields.get("tool_call_id"))
            taken.setdefault(turn_id, set()).update({name} & waiting)
            waiting.discard(name)
        elif role == "assistant" and state in ("failed", "interrupted") and not (read_content(*content) or fields):
            waiting |= taken.get(turn_id, set())
        else:
            waiting = {str(call["id"]) for call in fields.get("tool_calls") or ()} if role == "assistant" else set()
    for name in given:
        if name not in waiting:
            raise MessageError("turn.unexpected_result", name=format_value(name))
        waiting.discard(name)


def _hold(owner: str, turn_id: str, until: float, begun: float | None, sent: ReceiptRows | None) -> Steps[TurnRecord]:
    """Renew the lease of a turn that still streams, and store what it has sent; this also locks its row."""
    rows = yield (
        "UPDATE turn SET lease_until = ?, begun = COALESCE(begun, ?) "
        f"WHERE owner = ? AND turn_id = ? AND state = 'streaming' RETURNING {LIGHT_COLUMNS}",
        (until, begun, owner, turn_id),
    )
    if not rows:
        raise _ended_error((yield from get_turn(owner, turn_id)))
    if sent:
        yield from put_receipt(owner, turn_id, sent)
    return turn_of(rows[0])


def _ended_error(turn: TurnRecord) -> LeaseError:
    return LeaseError("turn.already_ended", name=format_value(turn.turn_id), state=turn.state)


def _read_chunks(owner: str, turn_id: str, after: int = -1) -> Steps[list[tuple[int, str]]]:
    rows = yield (
        "SELECT n, text FROM chunk WHERE owner = ? AND turn_id = ? AND n > ? ORDER BY n",
        (owner, turn_id, after),
    )
    return [(n, text) for n, text in (read_row("chunk", "n, text", row) for row in rows)]


async def _sent_rows(sent: Sent | None) -> ReceiptRows | None:
    return None if sent is None else await receipt_rows(sent.receipt, sent.texts)


@dataclass(frozen=True, slots=True)
class Question:
    """What begins a turn: the user's message, what comes with it, and the calls that these messages answer."""

    rows: Sequence[MessageRow]
    results: Sequence[str]
    key: str
    lease: float
    tokens: int = 0


async def _question(messages: Sequence[AnyMessage], key: str, lease: float, tokens: int = 0) -> Question:
    clean(key, "field.key", MAX_NAME)
    results = [str(message.get("tool_call_id", "")) for message in messages if message.get("role") == "tool"]
    return Question(await message_rows(messages), results, key, lease, tokens)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a turn ends, and all that is stored with its end. Without an answer its chunks are the answer."""

    state: FinalState
    answer: MessageRow | None
    values: Mapping[str, str]
    """Columns of the turn."""
    sent: ReceiptRows
    injection: Mapping[str, Any] | None = None
    runtime: Mapping[str, Any] | None = None
    jobs: Sequence[NewJob] = ()
    tokens: int = 0


NOTHING_SENT = ReceiptRows(None, ())
"""The receipt that is stored already stays."""
NO_ANSWER = message_row({"role": "assistant", "content": ""})
"""The place of an answer that is still to come."""


class Turns(Group):
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
        return await self._begin(owner, session_id, await _question([message, *more], key, lease, tokens))

    @write
    def _begin(self, owner: str, session_id: str, question: Question) -> Steps[TurnRecord]:
        return self._begin_steps(owner, session_id, question, self._clock())

    def _begin_steps(self, owner: str, session_id: str, question: Question, now: float) -> Steps[TurnRecord]:
        if question.key and (known := (yield from _find_repeated(owner, session_id, question.key))):
            return known
        count = len(question.rows) + 1
        seq = yield from take_numbers(owner, session_id, count, now)
        yield from _check_results(owner, session_id, question.results)  # under the session's lock: once is once
        turn = TurnRecord(
            owner=owner, turn_id=new_id(), session_id=session_id, key=question.key, state="streaming",
            user_message_id=new_id(), user_seq=seq, answer_message_id=new_id(), answer_seq=seq + count - 1, usage={},
            receipt={}, error="", created=now, finished=None, lease_until=now + question.lease,
        )  # fmt: skip
        values = column_values(turn, COLUMNS)
        values[3] = turn.key or None  # several turns may be without one
        yield from insert("turn", COLUMNS, [values])
        first, *more = question.rows
        placed = [
            NumberedMessage(seq, first, tokens=question.tokens, message_id=turn.user_message_id),
            *(NumberedMessage(seq + number, row) for number, row in enumerate(more, 1)),
            NumberedMessage(turn.answer_seq, NO_ANSWER, "streaming", message_id=turn.answer_message_id),
        ]
        yield from put_messages(self._db, owner, session_id, turn.turn_id, placed, now)
        return turn

    async def record(
        self,
        owner: str,
        session_id: str,
        question: AnyMessage,
        answer: AnyMessage,
        *,
        key: str = "",
        receipt: Mapping[str, Any] | None = None,
        texts: Mapping[str, str] | None = None,
        jobs: Callable[[TurnRecord], Sequence[NewJob]] = lambda turn: (),
    ) -> TurnRecord:
        """A turn that was answered elsewhere, in one transaction; the same key again stores it only once."""
        asked = await _question([question], key, LEASE)
        (row,) = await message_rows([answer])
        sent = await receipt_rows(receipt or {}, texts)
        ending = Ending("complete", row, {"usage": "{}", "error": ""}, sent)
        turn = await self._record(owner, session_id, asked, ending, jobs)
        return turn if turn.repeated else replace(turn, receipt=receipt or {})

    @write
    def _record(
        self,
        owner: str,
        session_id: str,
        question: Question,
        ending: Ending,
        jobs: Callable[[TurnRecord], Sequence[NewJob]],
    ) -> Steps[TurnRecord]:
        """Question and answer at once. An unfinished turn of that key is finished by this."""
        now = self._clock()
        turn = yield from self._begin_steps(owner, session_id, question, now)
        if turn.repeated and turn.state == "complete":
            return turn
        if turn.state != "streaming":
            yield "UPDATE turn SET state = 'streaming' WHERE owner = ? AND turn_id = ?", (owner, turn.turn_id)
        return (yield from self._finish_steps(owner, turn.turn_id, replace(ending, jobs=jobs(turn)), now))

    async def chunk(
        self, owner: str, turn_id: str, n: int, text: str, *, lease: float = LEASE, sent: Sent | None = None
    ) -> None:
        """Store a piece of the answer, before it is shown; the same `n` again changes nothing. Renews the lease.

        Here and below, `sent` is what the turn has sent so far: stored from then on, however the turn ends.
        """
        await self._chunk(owner, turn_id, (n, dump(text)), lease, await _sent_rows(sent))

    @write
    def _chunk(
        self, owner: str, turn_id: str, chunk: tuple[int, str], lease: float, sent: ReceiptRows | None
    ) -> Steps[None]:
        now = self._clock()
        yield from _hold(owner, turn_id, now + lease, now, sent)
        yield from insert("chunk", "owner, turn_id, n, text", [(owner, turn_id, *chunk)], "ON CONFLICT DO NOTHING")

    @read
    def chunks(self, owner: str, turn_id: str, *, after: int = -1) -> Steps[Sequence[tuple[int, str]]]:
        """The pieces of an answer that still streams."""
        return _read_chunks(owner, turn_id, after)

    async def add(
        self,
        owner: str,
        turn_id: str,
        messages: Sequence[AnyMessage],
        *,
        folded: bool = True,
        lease: float = LEASE,
        sent: Sent | None = None,
    ) -> Sequence[str]:
        """Tool calls and results inside the turn, before its answer; returns their message ids.

        `folded` says that the chunks so far are in these messages, as the text beside a tool call is; they go.
        """
        return await self._add(owner, turn_id, await message_rows(messages), folded, lease, await _sent_rows(sent))

    @write
    def _add(
        self,
        owner: str,
        turn_id: str,
        rows: Sequence[MessageRow],
        folded: bool,
        lease: float,
        sent: ReceiptRows | None,
    ) -> Steps[Sequence[str]]:
        """The new rows stand where the answer stood, and the answer moves behind them: numbers stay without gaps."""
        now = self._clock()
        turn = yield from _hold(owner, turn_id, now + lease, now, sent)
        if not rows:
            return []
        if folded:
            yield "DELETE FROM chunk WHERE owner = ? AND turn_id = ?", (owner, turn_id)
        first = yield from take_numbers(owner, turn.session_id, len(rows), now)
        *places, last = turn.answer_seq, *range(first, first + len(rows))
        yield (
            "UPDATE conversation SET seq = ? WHERE owner = ? AND session_id = ? AND seq = ?",
            (last, owner, turn.session_id, turn.answer_seq),
        )
        yield "UPDATE turn SET answer_seq = ? WHERE owner = ? AND turn_id = ?", (last, owner, turn_id)
        placed = [NumberedMessage(seq, row) for seq, row in zip(places, rows, strict=True)]
        return (yield from put_messages(self._db, owner, turn.session_id, turn_id, placed, now))

    async def renew(self, owner: str, turn_id: str, *, lease: float = LEASE, sent: Sent | None = None) -> None:
        await self._renew(owner, turn_id, lease, await _sent_rows(sent))

    @write
    def _renew(self, owner: str, turn_id: str, lease: float, sent: ReceiptRows | None) -> Steps[None]:
        yield from _hold(owner, turn_id, self._clock() + lease, None, sent)

    async def finish(
        self,
        owner: str,
        turn_id: str,
        *,
        state: FinalState = "complete",
        answer: AnyMessage | None = None,
        usage: Mapping[str, Any] | None = None,
        receipt: Mapping[str, Any] | None = None,
        texts: Mapping[str, str] | None = None,
        injection: Mapping[str, Any] | None = None,
        runtime: Mapping[str, Any] | None = None,
        jobs: Sequence[NewJob] = (),
        error: str = "",
        tokens: int = 0,
    ) -> TurnRecord:
        """The answer, usage, receipt, layer texts and jobs in one transaction. Without an answer the chunks are it,
        and without a receipt the one that is stored already."""
        rows = await message_rows([] if answer is None else [answer])
        values = {"usage": dump(usage or {}), "error": clean(error, "field.error")}
        sent = await receipt_rows(receipt, texts)
        ending = Ending(state, rows[0] if rows else None, values, sent, injection, runtime, jobs, tokens)
        turn = await self._finish(owner, turn_id, ending)
        return turn if turn.repeated else replace(turn, usage=usage or {}, receipt=receipt or {})

    @write
    def _finish(self, owner: str, turn_id: str, ending: Ending) -> Steps[TurnRecord]:
        return self._finish_steps(owner, turn_id, ending, self._clock())

    def _finish_steps(self, owner: str, turn_id: str, ending: Ending, now: float) -> Steps[TurnRecord]:
        values = {"state": ending.state, **ending.values, "finished": now}
        rows = yield (
            f"UPDATE turn SET {set_clause(values)} "
            f"WHERE owner = ? AND turn_id = ? AND state = 'streaming' RETURNING {LIGHT_COLUMNS}",
            (*values.values(), owner, turn_id),
        )
        if not rows:
            turn = yield from get_turn(owner, turn_id)
            if turn.state != ending.state or turn.error == LOST:
                raise _ended_error(turn)
            return replace(turn, repeated=True)
        turn = turn_of(rows[0])
        answer = ending.answer
        if answer is None:
            chunks = yield from _read_chunks(owner, turn_id)
            answer = message_row({"role": "assistant", "content": "".join(text for _, text in chunks)})
        yield (
            "UPDATE conversation SET content = ?, content_type = ?, extra = ?, state = ?, tokens = ? "
            "WHERE owner = ? AND session_id = ? AND seq = ?",
            (
                answer.content,
                answer.content_type,
                answer.extra,
                ending.state,
                ending.tokens,
                owner,
                turn.session_id,
                turn.answer_seq,
            ),
        )
        yield "DELETE FROM chunk WHERE owner = ? AND turn_id = ?", (owner, turn_id)
        yield from put_words(self._db, owner, turn.session_id, [(turn.answer_seq, answer.words)])
        yield from put_receipt(owner, turn_id, ending.sent)
        if ending.injection is not None or ending.runtime is not None:
            columns = {} if ending.injection is None else {"injection": dump(ending.injection)}
            yield from change_session(owner, turn.session_id, columns, ending.runtime, now)
        yield from add_jobs(owner, ending.jobs, now)
        return turn

    @read
    def get(self, owner: str, turn_id: str) -> Steps[TurnRecord]:
        return get_turn(owner, turn_id)

    @read
    def list(
        self, owner: str, session_id: str, *, before: int | None = None, limit: int | None = None, running: bool = False
    ) -> Steps[Sequence[TurnRecord]]:
        """In order; `limit` takes the newest of those whose question stands before `before`."""
        rows = yield (
            f"SELECT {COLUMNS} FROM turn WHERE owner = ? AND session_id = ? AND user_seq < ? "
            f"{RUNNING if running else ''}ORDER BY user_seq DESC LIMIT ?",
            (owner, session_id, 2**62 if before is None else before, 2**62 if limit is None else limit),
        )
        return (yield from join_receipts([turn_of(row) for row in reversed(rows)]))

    @write_any_owner
    def _find_open(self, before: float) -> Steps[Sequence[tuple[str, str]]]:
        rows = yield (
            "SELECT owner, turn_id FROM turn WHERE state = 'streaming' AND lease_until < ? "
            "ORDER BY lease_until LIMIT ?",
            (before, RECOVERY_BATCH),
        )
        return [(row[0], row[1]) for row in rows]

    async def recover(
        self,
        *,
        everything: bool = False,
        jobs: Callable[[TurnRecord], Sequence[NewJob]] = lambda turn: (),
        without: Collection[str] = (),
    ) -> Sequence[TurnRecord]:
        """End the turns whose lease has run out, as interrupted, with their chunks as the answer. For all owners.

        `everything` also takes those whose lease still runs: right when this process has just become the only one.
        `jobs` is what an ended turn asks for, stored with its end. `without` are turns that this process answers: a
        clock that was set or a store that was away for a while must not end them.
        """
        lost = Ending("interrupted", None, {"error": LOST}, NOTHING_SENT)
        ended: list[TurnRecord] = []
        known: set[tuple[str, str]] = set()
        while True:
            found = await self._find_open(2.0**62 if everything else self._clock())
            fresh = [one for one in found if one not in known and one[1] not in without]
            known.update(fresh)
            for owner, turn_id in fresh:
                try:
                    turn = await self.get(owner, turn_id)
                    ended.append(await self._finish(owner, turn_id, replace(lost, jobs=jobs(turn))))
                except (LeaseError, NotFoundError):  # finished after all, or deleted, between the two looks
                    continue
            if len(found) < RECOVERY_BATCH or not fresh:
                return ended
