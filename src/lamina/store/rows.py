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
ROLES = ("system", "user", "assistant", "tool")
Placed = tuple[int, AnyMessage, MessageState, int]
"""A message with its number, state and tokens."""


def message_of(row: Row) -> StoredMessage:
    values = list(row)
    values[6], values[7], values[9] = load(values[6]), NONE if values[7] == "{}" else load(values[7]), bool(values[9])
    return StoredMessage(*values)


def parts(message: AnyMessage) -> tuple[str, str, str]:
    """Role, content and everything else of a message, as the table keeps them."""
    role = message.get("role")
    if role not in ROLES:
        raise MessageError(f"a message has the role {shown(role)}", hint=f"roles are {', '.join(ROLES)}")
    content: Any = message.get("content")
    if content is not None and not isinstance(content, str | list):
        raise MessageError(f"a message has the content {shown(content)}", hint="text, a list of parts, or None")
    return (
        role,
        dump(cast("Any", content)),
        dump({n: value for n, value in message.items() if n not in ("role", "content")}),
    )


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
