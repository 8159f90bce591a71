"""Messages as rows: how they are checked, written, read back and made findable."""

from collections.abc import Sequence
from typing import Any, cast

from lamina.errors import MessageError, shown
from lamina.records import MessageState, StoredMessage
from lamina.store.database import Database, Row, Steps, dump, insert, load, new_id
from lamina.store.words import words
from lamina.types import AnyMessage

MESSAGE = "owner, session_id, seq, message_id, turn_id, role, content, extra, state, is_collected, tokens, created"
_INSERT = (
    "owner, session_id, seq, message_id, turn_id, role, content, extra, state, is_collected, collected, tokens, created"
)
NONE: dict[str, Any] = {}
ROLES = ("user", "assistant", "tool")
Placed = tuple[int, AnyMessage, MessageState, int]
"""A message with its number, state and tokens."""


def message_of(row: Row) -> StoredMessage:
    values = list(row)
    values[6], values[7], values[9] = load(values[6]), NONE if values[7] == "{}" else load(values[7]), bool(values[9])
    return StoredMessage(*values)


def parts(message: AnyMessage) -> tuple[str, str, str]:
    """Role, content and everything else of a message, as the table keeps them; what could never be sent is refused."""
    role: Any = message.get("role")
    if role not in ROLES:
        raise MessageError(f"a message has the role {shown(role)}", hint=f"roles are {', '.join(ROLES)}")
    content: object = message.get("content")
    if content is not None and not isinstance(content, str | list):
        raise MessageError(f"a message has the content {shown(content)}", hint="text, a list of parts, or None")
    for part in cast("list[object]", content) if isinstance(content, list) else ():
        _check_part(part)
    extra = {name: value for name, value in message.items() if name not in ("role", "content") and value is not None}
    _check_extra(extra, role)
    return role, dump(cast(object, content)), dump(extra)


def _fields(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _check_part(part: object) -> None:
    fields = _fields(part)
    if fields.get("type") == "text" and isinstance(fields.get("text"), str):
        return
    if fields.get("type") == "image_url" and isinstance(_fields(fields.get("image_url")).get("url"), str):
        return
    raise MessageError(f"a message has the part {shown(part)}", hint='{"type": "text", "text": "…"} or an image_url')


def _check_extra(extra: dict[str, object], role: str) -> None:
    unknown = sorted(set(extra) - {"tool_calls", "tool_call_id", "name"})
    if unknown:
        raise MessageError(f"a message has a field {shown(unknown[0])}", hint="tool_calls, tool_call_id and name")
    calls = extra.get("tool_calls", [])
    for call in cast("list[object]", calls) if isinstance(calls, list) else [None]:
        function = _fields(_fields(call).get("function"))
        texts = (_fields(call).get("id"), function.get("name"), function.get("arguments"))
        if not all(isinstance(text, str) for text in texts):
            hint = "id, function.name and function.arguments are text"
            raise MessageError(f"a message has the tool call {shown(call)}", hint=hint)
    for name in ("tool_call_id", "name"):
        if not isinstance(extra.get(name, ""), str) or (role == "tool" and "tool_call_id" not in extra):
            raise MessageError(f"a {role} message has {name}={shown(extra.get(name))}", hint="it must be text")


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
        rows.append((owner, session_id, seq, name, turn_id, *parts(message), state, 0, 0, tokens, now))
    yield from insert("conversation", _INSERT, rows)
    texts = [(seq, text_in(message.get("content"))) for seq, message, state, _ in placed if state != "streaming"]
    yield from put_words(db, owner, session_id, texts)
    return names


def put_words(db: Database, owner: str, session_id: str, texts: Sequence[tuple[int, str]]) -> Steps[None]:
    """Make messages findable by their words."""
    indexed = [(seq, found) for seq, text in texts if (found := words(text))]
    rows = [(owner, session_id, seq, db.dialect.words(owner, found)) for seq, found in indexed]
    for at in range(0, len(rows), 100):
        batch = rows[at : at + 100]
        places = ", ".join([f"(?, ?, ?, {db.dialect.words_value})"] * len(batch))
        yield (
            f"INSERT INTO message_words (owner, session_id, seq, words) VALUES {places} "
            "ON CONFLICT (owner, session_id, seq) DO NOTHING",
            [value for row in batch for value in row],
        )
