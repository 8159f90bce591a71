"""Stored messages as a request needs them: whole turns, every call with its result, valid Unicode. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from lamina.records import StoredMessage
from lamina.text.json import read_json, write_json
from lamina.text.unicode import is_unicode, join_surrogates
from lamina.types import Message, Part, ToolOutput

NO_PICTURE = "[a picture that is not shown]"
INTERRUPTED = ToolOutput("This call was interrupted; there is no result.")
"""Stands in for a result that never came. A result that says the same is known to be another by its identity."""


@dataclass(frozen=True, slots=True)
class Chat:
    """The newest messages, and how many older ones were not even read."""

    messages: list[Message]
    older: int
    rows: Sequence[StoredMessage] = ()
    """What the messages were made of."""
    size: int = 0
    """About how many characters they have; counted once, as there may be very many of them."""


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
    if isinstance(content, ToolOutput):
        return cast(
            Message,
            {**message, "content": ToolOutput(join_surrogates(content), content.tool, content.hints, content.state)},
        )
    if len(message) == 2 and isinstance(content, str):  # nearly always
        text = join_surrogates(content)
        return message if text == content else cast("Message", {**message, "content": text})
    text = write_json(message)
    return message if is_unicode(text) else read_json(join_surrogates(text))


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
    real = [message for message in messages[last:] if message["content"] is not INTERRUPTED]
    return closed([*messages[:last], *(m for m in real if m.get("tool_call_id") not in names), *results])


def _interrupted(calls: dict[str, None]) -> list[Message]:
    results: list[Any] = [{"role": "tool", "content": INTERRUPTED, "tool_call_id": name} for name in calls]
    return results
