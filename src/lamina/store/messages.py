"""Messages: checked, written, read back in the order of their numbers, and found by their words.

What a message may be is decided here; what a model gets of it is not.
"""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, cast, get_args

from lamina.apart import run_apart
from lamina.errors import LaminaError, MessageError, format_value
from lamina.records import NOTE, MessageState, StoredMessage
from lamina.store.database import (
    Database,
    Group,
    Row,
    Steps,
    batches,
    columns_of,
    count_on,
    dump,
    insert,
    load,
    marks,
    new_id,
    one_row,
    read,
    write,
)
from lamina.store.schema import PLAIN, damaged_row, is_note, read_json_text, read_row
from lamina.text.json import size_of
from lamina.text.messages import Phrase
from lamina.text.terms import normalize_text
from lamina.text.unicode import is_unicode
from lamina.types import AnyMessage, OutcomeState, ToolOutput

MAX_COLLECTED = 1_000
MAX_TEXT = 20_000
"""Characters of a message that can be searched for; what stands behind them is stored, not indexed."""
MAX_WORD = 64

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f"
_RUN = re.compile(rf"([{_CJK}]+)|((?:(?![{_CJK}])\w)+)")

COLUMNS = f"{columns_of(StoredMessage)}, content_type"
ROLES = ("user", "assistant", "tool")


# Words


def words(text: str) -> list[str]:
    """The distinct words of a text, sorted: what an index keeps."""
    found: set[str] = set()
    for run in _RUN.finditer(normalize_text(text[:MAX_TEXT])):
        cjk, word = run.groups()
        if cjk:
            found.update(cjk)
            found.update(cjk[at : at + 2] for at in range(len(cjk) - 1))
        else:
            found.add(word[:MAX_WORD])
    return sorted(found)


def query_words(text: str) -> list[str]:
    """The words that a message must all have; pairs of CJK characters where there are two, in the order written."""
    found: dict[str, None] = {}
    for run in _RUN.finditer(normalize_text(text[:MAX_TEXT])):
        cjk, word = run.groups()
        if cjk and len(cjk) > 1:
            found |= dict.fromkeys(cjk[at : at + 2] for at in range(len(cjk) - 1))
        else:
            found[cjk or word[:MAX_WORD]] = None
    return list(found)


def snippet(text: str, query: str, width: int = 120) -> str:
    """The piece of a text around the first of the words, on one line; they stand in what is indexed."""
    line = " ".join(text[:MAX_TEXT].split())
    folded = line.casefold()
    places = [at for word in query_words(query) if 0 <= (at := folded.find(word)) < len(line)]
    begin = max(0, min(places, default=0) - width // 3)
    piece = line[begin : begin + width]
    return ("…" if begin else "") + piece + ("…" if begin + width < len(line) else "")


# Rows


def read_content(stored: str, content_type: str) -> Any:
    """A message's content from its columns `content` and `content_type`."""
    return stored if content_type == PLAIN else load(stored)


def write_content(content: object) -> tuple[str, str]:
    """The columns `content` and `content_type`: a plain text as it is, so that SQL can read it; parts, no content, and
    a text that a database cannot hold as JSON. The type alone decides how it is read: a text may look like JSON."""
    if isinstance(content, str) and _is_storable(content):
        return str(content), PLAIN
    return dump(content), "json"


def _is_storable(text: str) -> bool:
    """Whether both databases hold this text: whole Unicode, without U+0000."""
    return "\0" not in text and is_unicode(text)


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message that was checked, as its columns keep it, with the words it is found by."""

    role: str
    content: str
    content_type: str
    extra: str
    words: Sequence[str]


def message_row(message: AnyMessage) -> MessageRow:
    """What could never be sent is refused."""
    role: Any = message.get("role")
    content: object = message.get("content")
    extra = {name: value for name, value in message.items() if name not in ("role", "content") and value is not None}
    check_message(role, content, extra)
    if isinstance(content, ToolOutput):
        extra[NOTE] = content.note
    return MessageRow(role, *write_content(content), dump(extra), words(text_in(content)))


async def message_rows(messages: Sequence[AnyMessage]) -> list[MessageRow]:
    """Made before the transaction, which holds up everybody."""
    return await run_apart(size_of(messages), lambda: [message_row(message) for message in messages])


def check_message(role: Any, content: object, extra: dict[str, object]) -> None:
    """Refuse what could never be sent."""
    if role not in ROLES:
        raise MessageError("message.unknown_role", role=format_value(role), known=[*ROLES])
    if content is not None and not isinstance(content, str | list):
        raise MessageError("message.unknown_content", value=format_value(content))
    for part in cast("list[object]", content) if isinstance(content, list) else ():
        _check_part(part)
    _check_extra(extra, role)


def without_words(extra: dict[str, Any]) -> dict[str, Any]:
    """What a file says beside a message, without the words that only lamina writes: of the note on a tool's result
    nothing stays but the tool's name, and that the output was cut, and to how much."""
    if NOTE not in extra:
        return extra
    note = _fields(extra[NOTE])
    tool, hints = note.get("tool"), note.get("hints")
    cut = [_cut_hint(hint) for hint in cast("list[Any]", hints)] if isinstance(hints, list) else []
    state = note.get("state")
    kept = {"tool": tool if isinstance(tool, str) else "", "hints": [hint for hint in cut if hint]}
    return {**extra, NOTE: {**kept, "state": state if state in get_args(OutcomeState) else "done"}}


def _cut_hint(hint: Any) -> list[Any]:
    match hint:
        case [
            "tool_output_omitted",
            str(),
            [["tool", str(tool)], [str(), str()], [str(), str(size)], [str(), str(most)]],
        ]:
            pairs = [["tool", tool], ["reason", "too_long"], ["actual_chars", size], ["max_chars", most]]
            known = f"{size}{most}".isdecimal() and len(f"{size}{most}") < 32
            return ["tool_output_omitted", "Only the beginning is shown.", pairs] if known else []
        case _:
            return []


def _fields(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _check_part(part: object) -> None:
    fields = _fields(part)
    if fields.get("type") == "text" and isinstance(fields.get("text"), str):
        return
    if fields.get("type") == "image_url" and isinstance(_fields(fields.get("image_url")).get("url"), str):
        return
    raise MessageError("message.unknown_part", value=format_value(part))


def _check_extra(extra: dict[str, object], role: str) -> None:
    unknown = sorted(set(extra) - {"tool_calls", "tool_call_id", "name"})
    if unknown:
        raise MessageError("message.unknown_field", name=format_value(unknown[0]))
    calls = extra.get("tool_calls", [])
    for call in cast("list[object]", calls) if isinstance(calls, list) else [None]:
        function = _fields(_fields(call).get("function"))
        texts = (_fields(call).get("id"), function.get("name"), function.get("arguments"))
        if not all(isinstance(text, str) for text in texts):
            raise MessageError("message.bad_tool_call", value=format_value(call))
    for name in ("tool_call_id", "name"):
        if not isinstance(extra.get(name, ""), str) or (role == "tool" and "tool_call_id" not in extra):
            raise MessageError("message.field_not_text", role=role, name=name, value=format_value(extra.get(name)))


def text_in(content: Any) -> str:
    """The text in a message's content, pictures and odd parts left out."""
    if isinstance(content, list):
        found: list[str] = []
        for part in content:  # pyright: ignore[reportUnknownVariableType] -- checked line by line
            text: Any = part.get("text") if isinstance(part, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            found += [text] if isinstance(text, str) else []
        return "\n".join(found)
    return content if isinstance(content, str) else ""


@dataclass(frozen=True, slots=True)
class NumberedMessage:
    """A message at its number in a session."""

    seq: int
    row: MessageRow
    state: MessageState = "complete"
    tokens: int = 0
    message_id: str = ""


def put_messages(
    db: Database, owner: str, session_id: str, turn_id: str, placed: Sequence[NumberedMessage], now: float
) -> Steps[list[str]]:
    """Write messages at their places and make them findable; returns their ids."""
    names = [each.message_id or new_id() for each in placed]
    rows = [
        (owner, session_id, one.seq, name, turn_id, one.row.role, one.row.content, one.row.extra, one.state, 0,
         one.tokens, now, one.row.content_type, 0)
        for name, one in zip(names, placed, strict=True)
    ]  # fmt: skip
    yield from insert("conversation", f"{COLUMNS}, collected", rows)
    yield from put_words(
        db, owner, session_id, [(one.seq, one.row.words) for one in placed if one.state != "streaming"]
    )
    return names


def put_words(db: Database, owner: str, session_id: str, found: Iterable[tuple[int, Sequence[str]]]) -> Steps[None]:
    """Make messages findable by their words."""
    yield from db.dialect.search.put(owner, session_id, [(seq, each) for seq, each in found if each])


def message_of(row: Row) -> StoredMessage:
    *values, content_type = read_row("conversation", COLUMNS, row)
    if content_type != PLAIN:
        values[6] = read_json_text(values[6])
    role, content, extra = values[5:8]
    try:
        check_message(role, content, {name: value for name, value in extra.items() if name != NOTE})
    except LaminaError as error:
        raise damaged_row("conversation", error.phrase) from None
    if NOTE in extra and not is_note(extra[NOTE]):
        raise damaged_row("conversation", Phrase("row.wrong_note", name=NOTE))
    return StoredMessage(*values)


def check_session(owner: str, session_id: str) -> Steps[None]:
    rows = yield "SELECT 1 FROM chat_session WHERE owner = ? AND session_id = ?", (owner, session_id)
    one_row(rows, "session.not_found", session_id)


def take_numbers(owner: str, session_id: str, count: int, now: float) -> Steps[int]:
    """The session's next numbers; returns the first. The row stays locked until the transaction ends."""
    activity = yield from count_on(owner, "activity")
    rows = yield (
        "UPDATE chat_session SET last_seq = last_seq + ?, updated = ?, activity = ? WHERE owner = ? AND session_id = ? "
        "RETURNING last_seq",
        (count, now, activity, owner, session_id),
    )
    return int(one_row(rows, "session.not_found", session_id)[0]) - count + 1


def read_texts(owner: str, names: Sequence[str]) -> Steps[dict[str, str]]:
    """Texts by their hashes; one that is not there is left out."""
    found: dict[str, str] = {}
    for batch in batches(names):
        rows = yield (
            f"SELECT hash, text FROM layer_text WHERE owner = ? AND hash IN ({marks(len(batch))})",
            (owner, *batch),
        )
        found |= dict(read_row("layer_text", "hash, text", row) for row in rows)
    return found


def get_message(owner: str, message_id: str) -> Steps[StoredMessage]:
    rows = yield f"SELECT {COLUMNS} FROM conversation WHERE owner = ? AND message_id = ?", (owner, message_id)
    return message_of(one_row(rows, "message.not_found", message_id))


def _why_no_answer(message: StoredMessage) -> str:
    """The code for a message that is not an answer; empty for one. What still streams will be one."""
    if message.role == "user":
        return "message.is_question"
    if message.role == "tool":
        return "message.is_tool_result"
    return "" if message.text.strip() or message.state == "streaming" else "message.has_no_text"


class Messages(Group):
    @read
    def list(
        self,
        owner: str,
        session_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int | None = None,
        newest: bool = False,
    ) -> Steps[Sequence[StoredMessage]]:
        """In the order of their numbers. `limit` takes the oldest of those asked for, with `newest` the newest."""
        rows = yield (
            f"SELECT {COLUMNS} FROM conversation WHERE owner = ? AND session_id = ? AND seq > ? AND seq < ? "
            f"ORDER BY seq {'DESC' if newest else 'ASC'} LIMIT ?",
            (owner, session_id, after, 2**62 if before is None else before, 2**62 if limit is None else limit),
        )
        if not rows:
            yield from check_session(owner, session_id)
        found = [message_of(row) for row in rows]
        return found[::-1] if newest else found

    @read
    def get(self, owner: str, message_id: str) -> Steps[StoredMessage]:
        return get_message(owner, message_id)

    async def append(self, owner: str, session_id: str, messages: Sequence[AnyMessage]) -> Sequence[str]:
        """Messages from elsewhere, behind those that are there; returns their ids."""
        return await self._append(owner, session_id, await message_rows(messages))

    @write
    def _append(self, owner: str, session_id: str, rows: Sequence[MessageRow]) -> Steps[Sequence[str]]:
        now = self._clock()
        first = yield from take_numbers(owner, session_id, len(rows), now)
        placed = [NumberedMessage(seq, row) for seq, row in enumerate(rows, first)]
        return (yield from put_messages(self._db, owner, session_id, "", placed, now))

    @write
    def collect(self, owner: str, message_id: str, on: bool = True) -> Steps[StoredMessage]:
        """Mark exactly this answer as collected, or no longer; what is not an answer is refused."""
        message = yield from get_message(owner, message_id)
        if message.is_collected == on:
            return message
        if on and (code := _why_no_answer(message)):
            raise MessageError(
                code, seq=message.seq, session=format_value(message.session_id), hint="message.collect_answer"
            )
        number = (yield from count_on(owner, "collected")) if on else 0
        rows = yield (
            "UPDATE conversation SET is_collected = ?, collected = ? WHERE owner = ? AND message_id = ? "
            f"RETURNING {COLUMNS}",
            (int(on), number, owner, message_id),
        )
        return message_of(rows[0])

    @read
    def collected(self, owner: str, *, limit: int = 20, query: str = "") -> Steps[Sequence[StoredMessage]]:
        """The newest first; `query` is looked for in the newest thousand."""
        rows = yield (
            f"SELECT {COLUMNS} FROM conversation WHERE owner = ? AND is_collected = 1 ORDER BY collected DESC LIMIT ?",
            (owner, MAX_COLLECTED if query else limit),
        )
        wanted = query.casefold()
        found = (message_of(row) for row in rows)
        return [message for message in found if wanted in message.text.casefold()][:limit]

    @read
    def standing(
        self, owner: str, *, summaries: Sequence[str], collected: Sequence[str]
    ) -> Steps[tuple[Set[str], Set[tuple[str, int]]]]:
        """Which of the first sessions have a summary, and which messages of the second are collected, by session and
        number."""
        summarised: set[str] = set()
        for batch in batches(summaries):
            among = f"WHERE owner = ? AND session_id IN ({marks(len(batch))})"
            rows = yield f"SELECT session_id FROM session_summary {among}", (owner, *batch)
            summarised |= {row[0] for row in rows}
        still_collected: set[tuple[str, int]] = set()
        for batch in batches(collected):
            rows = yield (  # `|| ''` so that the index of what is collected is taken: sessions are long
                "SELECT session_id, seq FROM conversation WHERE owner = ? AND is_collected = 1 "
                f"AND session_id || '' IN ({marks(len(batch))})",
                (owner, *batch),
            )
            still_collected |= {(row[0], row[1]) for row in rows}
        return summarised, still_collected

    @read
    def texts(self, owner: str, names: Sequence[str]) -> Steps[Mapping[str, str]]:
        """The texts of layers by their hashes, as receipts name them; one that is not there is left out."""
        return read_texts(owner, names)


# What is left to index: each session in `search_todo`, from the message after its number on

SLICE_MESSAGES = 64
SLICE_CHARACTERS = 64_000
"""Characters of messages whose words are written in one transaction in the background."""


def plan_rebuild(owner: str) -> Steps[None]:
    """All sessions of an owner, from their first message on."""
    yield (
        "INSERT INTO search_todo (owner, session_id, seq) SELECT owner, session_id, 0 FROM chat_session "
        "WHERE owner = ? ON CONFLICT (owner, session_id) DO UPDATE SET seq = 0",
        (owner,),
    )


def plan_sessions(owner: str, sessions: Iterable[str]) -> Steps[None]:
    for session_id in sessions:
        yield (
            "INSERT INTO search_todo (owner, session_id, seq) VALUES (?, ?, 0) "
            "ON CONFLICT (owner, session_id) DO UPDATE SET seq = 0",
            (owner, session_id),
        )


def copy_plan(owner: str, source: str, target: str) -> Steps[None]:
    """What is copied from a session whose words are not complete is not complete either."""
    yield (
        "INSERT INTO search_todo (owner, session_id, seq) SELECT owner, CAST(? AS TEXT), 0 FROM search_todo "
        "WHERE owner = ? AND session_id = ? ON CONFLICT (owner, session_id) DO NOTHING",
        (target, owner, source),
    )


def drop_plan(owner: str, session_id: str) -> Steps[None]:
    yield "DELETE FROM search_todo WHERE owner = ? AND session_id = ?", (owner, session_id)


def planned_sessions(owner: str) -> Steps[set[str]]:
    rows = yield "SELECT session_id FROM search_todo WHERE owner = ?", (owner,)
    return {row[0] for row in rows}


def is_planned(owner: str) -> Steps[bool]:
    rows = yield "SELECT 1 FROM search_todo WHERE owner = ? LIMIT 1", (owner,)
    return bool(rows)


def rebuild_some(db: Database, owner: str, most: int) -> Steps[int | None]:
    """The words of an owner's next messages, of `most` characters together; how many messages were read, and None when
    nothing is left."""
    total = 0
    for sessions in range(SLICE_MESSAGES):
        rows = yield (
            "SELECT session_id, seq FROM search_todo WHERE owner = ? ORDER BY session_id LIMIT 1"
            f"{db.dialect.skip_locked}",
            (owner,),
        )
        if not rows:
            return total if sessions else None
        count, size = yield from _rebuild_session(db, owner, rows[0][0], rows[0][1], most)
        total, most = total + count, most - size
        if most <= 0 or total >= SLICE_MESSAGES:
            break
    return total


def _rebuild_session(db: Database, owner: str, session_id: str, done: int, most: int) -> Steps[tuple[int, int]]:
    """Some messages of a session, at least one; how many they were, and their characters."""
    if not done:
        yield from db.dialect.search.erase(owner, session_id)
    sizes = yield (
        "SELECT seq, LENGTH(content) FROM conversation WHERE owner = ? AND session_id = ? AND seq > ? "
        "ORDER BY seq LIMIT ?",
        (owner, session_id, done, SLICE_MESSAGES),
    )
    size = count = 0
    while count < len(sizes) and (not count or size + sizes[count][1] <= most):
        size += sizes[count][1]
        count += 1
    if count:
        last = sizes[count - 1][0]
        found = yield (
            "SELECT seq, content, content_type FROM conversation WHERE owner = ? AND session_id = ? AND seq > ? "
            "AND seq <= ? AND state <> 'streaming' ORDER BY seq",  # what still streams is indexed when it ends
            (owner, session_id, done, last),
        )
        yield from put_words(
            db, owner, session_id, [(seq, words(text_in(read_content(*content)))) for seq, *content in found]
        )
        yield "UPDATE search_todo SET seq = ? WHERE owner = ? AND session_id = ?", (last, owner, session_id)
    if count == len(sizes) < SLICE_MESSAGES:
        yield from drop_plan(owner, session_id)
    return count, size
