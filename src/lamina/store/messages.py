"""Messages: checked, written, read back in the order of their numbers, and cut into the words that search looks for.

What a message may be is decided here; what a model gets of it is not.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

from lamina.apart import run_apart
from lamina.errors import LaminaError, MessageError, format_value
from lamina.records import NOTE, MessageState, StoredMessage
from lamina.store.database import Clock, Database, Row, Steps, count_on, dump, insert, load, marks, new_id, not_found
from lamina.store.shapes import PLAIN, damaged_row, is_note, read_json_text, read_row
from lamina.text.json import size_of
from lamina.text.messages import Phrase
from lamina.text.terms import normalize_text
from lamina.text.unicode import is_unicode
from lamina.types import AnyMessage, OutcomeState, ToolOutput

MAX_COLLECTED, AT_ONCE = 1_000, 500
MAX_TEXT = 20_000
"""Characters of a message that can be searched for; what stands behind them is stored, not indexed."""
MAX_WORD = 64

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f"
_RUN = re.compile(rf"([{_CJK}]+)|((?:(?![{_CJK}])\w)+)")

MESSAGE = (
    "owner, session_id, seq, message_id, turn_id, role, content, extra, state, is_collected, tokens, created, "
    "content_type"
)
_INSERT = (
    "owner, session_id, seq, message_id, turn_id, role, content, content_type, extra, state, is_collected, collected, "
    "tokens, created"
)
ROLES = ("user", "assistant", "tool")
Placed = tuple[int, AnyMessage, MessageState, int]
"""A message with its number, state and tokens."""


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


def split_message(message: AnyMessage) -> tuple[str, str, str, str]:
    """Role, content, its type and everything else of a message, as the table keeps them; what could never be sent is
    refused."""
    role: Any = message.get("role")
    content: object = message.get("content")
    extra = {name: value for name, value in message.items() if name not in ("role", "content") and value is not None}
    check_message(role, content, extra)
    if isinstance(content, ToolOutput):
        extra[NOTE] = content.note
    return role, *write_content(content), dump(extra)


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


async def check_messages(messages: Sequence[AnyMessage]) -> None:
    """Refuse what could never be sent, before the transaction: it holds up everybody."""
    await run_apart(size_of(messages), lambda: [split_message(message) for message in messages])


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


def put_messages(
    db: Database, owner: str, session_id: str, turn_id: str, placed: Sequence[Placed], now: float,
    ids: Sequence[str] = (),
) -> Steps[list[str]]:  # fmt: skip
    """Write messages at their places and make them findable; returns their ids."""
    rows: list[Row] = []
    names = list(ids) or [new_id() for _ in placed]
    for name, (seq, message, state, tokens) in zip(names, placed, strict=True):
        rows.append((owner, session_id, seq, name, turn_id, *split_message(message), state, 0, 0, tokens, now))
    yield from insert("conversation", _INSERT, rows)
    texts = [(seq, text_in(message.get("content"))) for seq, message, state, _ in placed if state != "streaming"]
    yield from put_words(db, owner, session_id, texts)
    return names


def put_words(db: Database, owner: str, session_id: str, texts: Sequence[tuple[int, str]]) -> Steps[None]:
    """Make messages findable by their words."""
    indexed = [(seq, found) for seq, text in texts if (found := words(text))]
    yield from db.dialect.search.put(owner, session_id, indexed)


def message_of(row: Row) -> StoredMessage:
    *values, content_type = read_row("conversation", MESSAGE, row)
    if content_type != PLAIN:
        values[6] = read_json_text(values[6])
    role, content, extra = values[5:8]
    try:
        check_message(role, content, {name: value for name, value in extra.items() if name != NOTE})
    except LaminaError as error:
        raise damaged_row("conversation", error.phrase) from None
    if NOTE in extra and not is_note(extra[NOTE]):
        raise damaged_row("conversation", Phrase("row.wrong_note", name=NOTE))
    values[9] = bool(values[9])
    return StoredMessage(*values)


def check_session(owner: str, session_id: str) -> Steps[None]:
    rows = yield "SELECT 1 FROM chat_session WHERE owner = ? AND session_id = ?", (owner, session_id)
    if not rows:
        raise not_found("session.not_found", session_id)


def take_numbers(owner: str, session_id: str, count: int, now: float) -> Steps[int]:
    """The session's next numbers; returns the first. The row stays locked until the transaction ends."""
    activity = yield from count_on(owner, "activity")
    rows = yield (
        "UPDATE chat_session SET last_seq = last_seq + ?, updated = ?, activity = ? WHERE owner = ? AND session_id = ? "
        "RETURNING last_seq",
        (count, now, activity, owner, session_id),
    )
    if not rows:
        raise not_found("session.not_found", session_id)
    return int(rows[0][0]) - count + 1


def read_texts(owner: str, names: Sequence[str]) -> Steps[dict[str, str]]:
    """Texts by their hashes; one that is not there is left out."""
    found: dict[str, str] = {}
    for first in range(0, len(names), AT_ONCE):
        some = names[first : first + AT_ONCE]
        rows = yield (
            f"SELECT hash, text FROM layer_text WHERE owner = ? AND hash IN ({marks(len(some))})",
            (owner, *some),
        )
        found |= dict(read_row("layer_text", "hash, text", row) for row in rows)
    return found


# The messages of a session


def _messages(
    owner: str, session_id: str, after: int, before: int | None, limit: int | None, newest: bool
) -> Steps[list[StoredMessage]]:
    rows = yield (
        f"SELECT {MESSAGE} FROM conversation WHERE owner = ? AND session_id = ? AND seq > ? AND seq < ? "
        f"ORDER BY seq {'DESC' if newest else 'ASC'} LIMIT ?",
        (owner, session_id, after, 2**62 if before is None else before, 2**62 if limit is None else limit),
    )
    if not rows:
        yield from check_session(owner, session_id)
    found = [message_of(row) for row in rows]
    return found[::-1] if newest else found


def _append(db: Database, owner: str, session_id: str, messages: Sequence[AnyMessage], now: float) -> Steps[list[str]]:
    first = yield from take_numbers(owner, session_id, len(messages), now)
    placed: list[Placed] = [(first + n, message, "complete", 0) for n, message in enumerate(messages)]
    return (yield from put_messages(db, owner, session_id, "", placed, now))


def get_message(owner: str, message_id: str) -> Steps[StoredMessage]:
    rows = yield f"SELECT {MESSAGE} FROM conversation WHERE owner = ? AND message_id = ?", (owner, message_id)
    if not rows:
        raise not_found("message.not_found", message_id)
    return message_of(rows[0])


def _collect(owner: str, message_id: str, on: bool) -> Steps[StoredMessage]:
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
        f"RETURNING {MESSAGE}",
        (int(on), number, owner, message_id),
    )
    return message_of(rows[0])


def _why_no_answer(message: StoredMessage) -> str:
    """The code for a message that is not an answer; empty for one. What still streams will be one."""
    if message.role == "user":
        return "message.is_question"
    if message.role == "tool":
        return "message.is_tool_result"
    return "" if message.text.strip() or message.state == "streaming" else "message.has_no_text"


def _collected(owner: str, limit: int, query: str) -> Steps[list[StoredMessage]]:
    rows = yield (
        f"SELECT {MESSAGE} FROM conversation WHERE owner = ? AND is_collected = 1 ORDER BY collected DESC LIMIT ?",
        (owner, MAX_COLLECTED if query else limit),
    )
    wanted = query.casefold()
    found = (message_of(row) for row in rows)
    return [message for message in found if wanted in message.text.casefold()][:limit]


def _standing(
    owner: str, summaries: Sequence[str], collected: Sequence[str]
) -> Steps[tuple[set[str], set[tuple[str, int]]]]:
    return (yield from _summarised(owner, summaries)), (yield from _collected_in(owner, collected))


def _summarised(owner: str, sessions: Sequence[str]) -> Steps[set[str]]:
    found: set[str] = set()
    for first in range(0, len(sessions), AT_ONCE):
        some = sessions[first : first + AT_ONCE]
        among = f"WHERE owner = ? AND session_id IN ({marks(len(some))})"
        rows = yield f"SELECT session_id FROM session_summary {among}", (owner, *some)
        found |= {row[0] for row in rows}
    return found


def _collected_in(owner: str, sessions: Sequence[str]) -> Steps[set[tuple[str, int]]]:
    found: set[tuple[str, int]] = set()
    for first in range(0, len(sessions), AT_ONCE):
        some = sessions[first : first + AT_ONCE]
        rows = yield (  # `|| ''` so that the index of what is collected is taken: sessions are long
            "SELECT session_id, seq FROM conversation WHERE owner = ? AND is_collected = 1 "
            f"AND session_id || '' IN ({marks(len(some))})",
            (owner, *some),
        )
        found |= {(row[0], row[1]) for row in rows}
    return found


class Messages:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def list(
        self, owner: str, session_id: str, *, after: int = 0, before: int | None = None, limit: int | None = None,
        newest: bool = False,
    ) -> Sequence[StoredMessage]:  # fmt: skip
        """In the order of their numbers. `limit` takes the oldest of those asked for, with `newest` the newest."""
        return await self._db.read(owner, lambda: _messages(owner, session_id, after, before, limit, newest))

    async def get(self, owner: str, message_id: str) -> StoredMessage:
        return await self._db.read(owner, lambda: get_message(owner, message_id))

    async def append(self, owner: str, session_id: str, messages: Sequence[AnyMessage]) -> Sequence[str]:
        """Messages from elsewhere, behind those that are there; returns their ids."""
        now = self._clock()
        await check_messages(messages)
        return await self._db.write(owner, lambda: _append(self._db, owner, session_id, messages, now))

    async def collect(self, owner: str, message_id: str, on: bool = True) -> StoredMessage:
        """Mark exactly this answer as collected, or no longer; what is not an answer is refused."""
        return await self._db.write(owner, lambda: _collect(owner, message_id, on))

    async def collected(self, owner: str, *, limit: int = 20, query: str = "") -> Sequence[StoredMessage]:
        """The newest first; `query` is looked for in the newest thousand."""
        return await self._db.read(owner, lambda: _collected(owner, limit, query))

    async def standing(
        self, owner: str, *, summaries: Sequence[str], collected: Sequence[str]
    ) -> tuple[set[str], set[tuple[str, int]]]:
        """Which of the first sessions have a summary, and which messages of the second are collected, by session and
        number."""
        return await self._db.read(owner, lambda: _standing(owner, summaries, collected))

    async def texts(self, owner: str, names: Sequence[str]) -> Mapping[str, str]:
        """The texts of layers by their hashes, as receipts name them; one that is not there is left out."""
        return await self._db.read(owner, lambda: read_texts(owner, names))
