"""The chat so far as a request needs it: the newest messages of one session, whole turns, every call with its result.

Read from the newest back, page by page, until more would not fit: a long session costs no more than a short one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from lamina.records import StoredMessage
from lamina.types import Message, Part

PAGE = 64
CHARACTERS_PER_TOKEN = 8
"""More than any counter packs into one token on average, so that never too little is read."""
NO_PICTURE = "[a picture that is not shown]"
INTERRUPTED = "This call was interrupted; there is no result."


class Messages(Protocol):
    """The part of a store that this needs."""

    async def messages(
        self, owner: str, session_id: str, *, after: int = 0, before: int | None = None, limit: int | None = None,
        newest: bool = False,
    ) -> Sequence[StoredMessage]: ...  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chat:
    """The newest messages, and how many older ones were not even read."""

    messages: list[Message]
    older: int
    rows: Sequence[StoredMessage] = ()
    """What the messages were made of."""


async def read_chat(
    store: Messages, owner: str, session_id: str, *, budget: float, before: int | None = None, after: int = 0
) -> Chat:
    """What may fit into `budget` tokens of the messages before a number; those up to `after` are not of interest."""
    rows: list[StoredMessage] = []
    room = max(0.0, budget) * CHARACTERS_PER_TOKEN
    edge, size, limit = before, 0, PAGE
    while True:
        page = await store.messages(owner, session_id, after=after, before=edge, limit=limit, newest=True)
        rows[:0] = page
        size += sum(len(row.text) + len(str(row.extra)) for row in page) + len(page) * CHARACTERS_PER_TOKEN
        if len(page) < limit or page[0].seq == after + 1 or size > room:
            break
        edge, limit = page[0].seq, 2 * limit
    last = rows[-1].seq if rows else after
    if rows and rows[0].seq > after + 1:  # a turn that was cut in the middle is left out
        first = rows[0].turn_id
        whole = next((n for n, row in enumerate(rows) if not first or row.turn_id != first), len(rows))
        rows = rows[whole:]
    return Chat(closed(together(rows)), (rows[0].seq - 1 if rows else last) - after, rows)


def together(rows: Sequence[StoredMessage]) -> list[Message]:
    """The messages of each turn side by side: two turns of one session may have run at once. What still streams, and
    an answer without a word, is nothing to send."""
    return [message for _, message in _numbered(rows)]


def _numbered(rows: Sequence[StoredMessage]) -> list[tuple[int, Message]]:
    turns: dict[str, list[StoredMessage]] = {}
    for row in rows:
        turns.setdefault(row.turn_id or f"#{row.seq}", []).append(row)
    found = (row for turn in turns.values() for row in turn)
    sent = (row for row in found if row.state != "streaming" and (row.content or row.extra.get("tool_calls")))
    failed = {row.turn_id for row in rows if row.state == "failed"}  # perhaps because of its pictures: not again
    return [
        (row.seq, whole_message(without_pictures(row.message) if row.turn_id in failed else row.message))
        for row in sent
    ]


def places(rows: Sequence[StoredMessage]) -> list[int]:
    """The number of each message of `closed(together(rows))`; 0 for one that only stands for what is missing."""
    kept = _numbered(rows)
    numbers = {id(message): seq for seq, message in kept}
    return [numbers.get(id(message), 0) for message in closed([message for _, message in kept])]


def has_pictures(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(part.get("type") == "image_url" for part in cast("list[Any]", content))


def without_pictures(message: Message) -> Message:
    """The message for a model that sees none, or that refused these."""
    if not has_pictures(message):
        return message
    left: Part = {"type": "text", "text": NO_PICTURE}
    parts = [left if part["type"] == "image_url" else part for part in cast("list[Part]", message["content"])]
    found: Any = {**message, "content": parts}
    return found


def whole_message(message: Message) -> Message:
    """A message as Unicode: half of a surrogate pair, which a cut stream may leave, becomes a replacement sign."""
    content = message["content"]
    if len(message) == 2 and isinstance(content, str) and content.isascii():  # nearly always, in English
        return message
    text = json.dumps(message, ensure_ascii=False)
    if text.isascii():
        return message
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.loads(whole(text))
    return message


def whole(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def closed(messages: Sequence[Message]) -> list[Message]:
    """Every call with its result, and no result without its call: what a crash left open is said to be interrupted."""
    found: list[Message] = []
    waiting: dict[str, None] = {}
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") in waiting:
                del waiting[str(message.get("tool_call_id"))]
                found.append(message)
            continue
        found += _interrupted(waiting)
        waiting = dict.fromkeys(call["id"] for call in message.get("tool_calls", ()))
        found.append(message)
    return found + _interrupted(waiting)


def answered(messages: Sequence[Message], results: Sequence[Message]) -> list[Message]:
    """The messages with results in place of what `closed` put behind the last calls for them."""
    names = {result.get("tool_call_id") for result in results}
    last = next((n for n in range(len(messages), 0, -1) if messages[n - 1]["role"] != "tool"), 0)
    real = [message for message in messages[last:] if message["content"] != INTERRUPTED]
    return closed([*messages[:last], *(m for m in real if m.get("tool_call_id") not in names), *results])


def _interrupted(calls: dict[str, None]) -> list[Message]:
    results: list[Any] = [{"role": "tool", "content": INTERRUPTED, "tool_call_id": name} for name in calls]
    return results
