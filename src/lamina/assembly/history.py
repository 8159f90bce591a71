"""The messages of a chat: what each must be, where a history may be cut, and stored rows as a request needs them.

A history may be cut only before a message at which no tool call is open. Every refusal names the place and the value.
Rows come out as whole turns, every call with its result, and valid Unicode. Pure.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from lamina.assembly.budget import StartOn
from lamina.assembly.tokens import (
    content_tokens,
    estimate_message_tokens,
    per_message,
    text_tokens,
)
from lamina.errors import MessageError, OpenCallsError, format_value
from lamina.ports import Count
from lamina.records import StoredMessage
from lamina.text.json import read_json, write_json
from lamina.text.messages import Phrase
from lamina.text.unicode import check_unicode, is_unicode, join_surrogates, utf8_size
from lamina.types import AnyMessage, Message, Part, ToolOutput

HISTORY_ROLES = ("user", "assistant", "tool")
PLAIN = ("user", "assistant")
FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")
PICTURE = re.compile(r"https?://[^\s]+|data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/]")
SPEAKER = re.compile(r"[^\s<|\\/>]{1,64}")
MAX_CALL_ID_CHARACTERS = 40
"""OpenAI refuses longer ids of calls."""
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def fields_of(value: object) -> Mapping[str, Any] | None:
    """A mapping as one whose keys we can ask for; None for anything else."""
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else None


def check_message(message: object, where: str) -> None:
    """Refuse what no provider would take, naming the place and the value."""
    fields = fields_of(message)
    if fields is None:
        raise MessageError(
            "message.not_mapping",
            where=where,
            type=type(message).__name__,
            value=format_value(message),
            hint="message.dump_model" if hasattr(message, "model_dump") else "",
        )
    role = fields.get("role")
    if role in PLAIN and len(fields) == 2 and isinstance(fields.get("content"), str):  # nearly every message there is
        return check_unicode(fields["content"], f"{where}.content")
    if role not in HISTORY_ROLES:
        hint = "message.system_elsewhere" if role in ("system", "developer") else ""
        raise MessageError("message.bad_role", where=where, value=format_value(role), hint=hint)
    if "content" not in fields:
        raise MessageError("message.no_content", where=where)
    calls = fields.get("tool_calls")
    if calls is not None:
        _check_calls(calls, role, where)
    _check_content(fields["content"], f"{where}.content", nothing=bool(calls), pictures=role == "user")
    extra = [field for field in fields if field not in FIELDS and fields[field]]
    if extra:
        raise MessageError("message.uncounted_field", where=where, name=format_value(extra[0]), known=FIELDS)
    name = fields.get("name")
    if name is not None and not (isinstance(name, str) and SPEAKER.fullmatch(name)):
        raise MessageError("message.bad_name", where=where, value=format_value(name))
    if name is not None:
        check_unicode(name, f"{where}.name")
    if role != "tool" and fields.get("tool_call_id") is not None:
        raise MessageError("message.not_a_result", where=where, role=format_value(role))
    if role == "tool":
        result = fields.get("tool_call_id")
        if not isinstance(result, str) or not result:
            raise MessageError("message.no_call_id", where=where, value=format_value(result))
        check_unicode(result, f"{where}.tool_call_id")


def _check_content(content: object, where: str, *, nothing: bool, pictures: bool) -> None:
    if isinstance(content, str):
        return check_unicode(content, where)
    if content is None and nothing:
        return None
    if not isinstance(content, list | tuple):
        raise MessageError(
            "message.bad_content",
            where=where,
            type=type(content).__name__,
            value=format_value(content),
            hint="message.none_with_calls" if content is None else "",
        )
    if not content:
        raise MessageError("message.no_parts", where=where)
    for number, part in enumerate(cast(Sequence[object], content)):
        _check_part(part, f"{where}[{number}]", pictures)
    return None


def _check_part(part: object, where: str, pictures: bool) -> None:
    fields = fields_of(part) or {}
    kind, text, image = fields.get("type"), fields.get("text"), fields_of(fields.get("image_url"))
    known = {"type", "text"} if kind == "text" else {"type", "image_url"}
    if set(fields) - known or set(image or ()) - {"url", "detail"}:
        raise MessageError("part.unknown_fields", where=where, value=format_value(part), hint="part.form")
    if kind == "text" and isinstance(text, str):
        return check_unicode(text, f"{where}.text")
    if kind == "image_url" and image is not None:
        if image.get("detail", "auto") not in ("auto", "low", "high"):
            raise MessageError("part.bad_detail", where=where, value=format_value(image["detail"]))
        if not pictures:
            raise MessageError("part.picture_not_allowed", where=where)
        url = image.get("url")
        if isinstance(url, str) and PICTURE.match(url):
            return check_unicode(url, f"{where}.image_url.url")
        raise MessageError("part.bad_picture_url", where=where, value=format_value(url))
    raise MessageError("part.unknown", where=where, value=format_value(part), hint="part.form")


def _check_calls(calls: object, role: object, where: str) -> None:
    if role != "assistant":
        raise MessageError("call.wrong_role", where=where, role=format_value(role))
    if not isinstance(calls, list | tuple) or not calls:
        raise MessageError("call.bad_list", where=where, value=format_value(cast(object, calls)))
    seen: set[str] = set()
    for number, call in enumerate(cast(Sequence[object], calls)):
        identifier = _check_call(call, f"{where}.tool_calls[{number}]")
        if identifier in seen:
            raise MessageError(
                "call.repeated_id", where=f"{where}.tool_calls[{number}]", value=format_value(identifier)
            )
        seen.add(identifier)


def _check_call(call: object, where: str) -> str:
    fields = fields_of(call) or {}
    function = fields_of(fields.get("function"))
    strange = set(fields) - {"id", "type", "function"} or set(function or ()) - {"name", "arguments"}
    if function is None or fields.get("type") != "function" or strange:
        raise MessageError("call.bad_form", where=where, value=format_value(call))
    identifier, name, arguments = fields.get("id"), function.get("name"), function.get("arguments")
    if not isinstance(identifier, str) or not 0 < len(identifier) <= MAX_CALL_ID_CHARACTERS:
        raise MessageError("call.bad_id", where=where, value=format_value(identifier), limit=MAX_CALL_ID_CHARACTERS)
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise MessageError("call.bad_tool_name", where=where, value=format_value(name))
    if not isinstance(arguments, str):
        raise MessageError("call.bad_arguments", where=where, value=format_value(arguments))
    check_unicode(identifier, f"{where}.id")
    check_unicode(arguments, f"{where}.function.arguments")
    return identifier


def check_history(history: object) -> Sequence[AnyMessage]:
    """A history as something that can be counted and cut: a list or tuple as it is, other sequences as a list."""
    if isinstance(history, list | tuple):
        return cast(Sequence[AnyMessage], history)
    if isinstance(history, str | bytes | Mapping) or not isinstance(history, Sequence):
        found = cast(object, history)
        raise MessageError("history.not_list", type=type(found).__name__, value=format_value(found))
    return list(cast(Sequence[AnyMessage], history))


def longest_suffix(
    history: Sequence[AnyMessage],
    room: float,
    count: Count,
    start_on: StartOn = None,
    costs: Sequence[int] | None = None,
) -> tuple[int, int]:
    """Where the longest legal suffix of `history` that costs at most `room` begins, and what it costs. With `costs`
    each message has been checked and counted before."""
    history = check_history(history)
    seed_count = count is estimate_message_tokens
    each = per_message(count)
    start, kept, used = len(history), 0, 0
    pending: list[str] = []  # results seen whose call has not come yet, newest first
    for index in range(len(history) - 1, -1, -1):
        message = history[index]
        try:
            role, content = message["role"], message["content"]
            if type(content) is str and len(message) == 2 and (role == "user" or role == "assistant") and not pending:
                if costs is not None:
                    used += costs[index]
                elif seed_count:  # the seed's estimate written out: one call less for each message
                    used += ((len(content) if content.isascii() else utf8_size(content)) + 3) // 4
                else:
                    used += text_tokens(content, count) + each
            else:
                if costs is None:
                    check_message(message, f"history[{index}]")
                if isinstance(content, ToolOutput):  # `assemble`, `Window` and `Ledger` have rendered it by now
                    raise MessageError("history.unfenced_result", where=f"history[{index}]")
                _match_calls(message, pending, index)
                used += costs[index] if costs is not None else content_tokens(message, count) + each
        except (KeyError, TypeError, UnicodeEncodeError, MessageError) as error:
            raise _locate_error(error, message, index) from None
        if used > room:
            break
        if not pending and (start_on is None or role == start_on):
            start, kept = index, used
    else:
        if pending:
            raise MessageError(
                "history.result_without_call",
                where="history[0]",
                call=format_value(pending[-1]),
                hint="history.keep_call",
            )
    return start, kept


def _locate_error(error: Exception, message: object, index: int) -> Exception:
    """An error from inside the walk, with the place in the history named."""
    where = f"history[{index}]"
    try:
        check_message(message, where)
    except MessageError as found:
        return found
    return error


def _match_calls(message: AnyMessage, pending: list[str], index: int) -> None:
    """Going back in time: a tool result waits for its call; a message with calls must meet exactly its results."""
    if message["role"] == "tool":
        pending.append(message["tool_call_id"])
        return
    calls, results = [call["id"] for call in message.get("tool_calls") or ()], set(pending)
    missing = [call for call in calls if call not in results]
    if missing:
        raise MessageError("history.call_without_result", where=f"history[{index}]", call=format_value(missing[0]))
    orphans = results.difference(calls)
    if orphans:
        first = next(result for result in reversed(pending) if result in orphans)
        raise MessageError("history.result_without_call", where=f"history[{index + 1}]", call=format_value(first))
    if len(pending) > len(calls):
        twice = next(result for result in pending if pending.count(result) > 1)
        raise MessageError("history.second_result", where=f"history[{index + 1}]", call=format_value(twice))
    pending.clear()


class CallTracker:
    """Which tool calls wait for their results, as messages come in one by one."""

    def __init__(self) -> None:
        self.open: dict[str, None] = {}
        """Their ids, in order."""

    def take(self, message: AnyMessage, where: str) -> None:
        """Take the next message in, or refuse it and change nothing."""
        if message["role"] == "tool":
            call = message["tool_call_id"]
            if call not in self.open:
                waiting = [*map(format_value, self.open)]
                hint = "" if waiting else "call.none_waiting"
                raise MessageError(
                    "call.unexpected_result", where=where, call=format_value(call), waiting=waiting, hint=hint
                )
            del self.open[call]
            return
        self.check(where)
        self.open = {call["id"]: None for call in message.get("tool_calls") or ()}

    def check(self, where: str | Phrase) -> None:
        if self.open:
            raise OpenCallsError("call.still_open", where=where, call=format_value(next(iter(self.open))))


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


def group_turns(rows: Sequence[StoredMessage]) -> list[Message]:
    """The messages of each turn side by side: two turns of one session may have run at once. What still streams, and
    an answer without a word, is nothing to send."""
    return [message for _, message in _number_messages(rows)]


def _number_messages(rows: Sequence[StoredMessage]) -> list[tuple[int, Message]]:
    turns: dict[str, list[StoredMessage]] = {}
    for row in rows:
        turns.setdefault(row.turn_id or f"#{row.seq}", []).append(row)
    found = (row for turn in turns.values() for row in turn)
    sent = (row for row in found if row.state != "streaming" and (row.content or row.extra.get("tool_calls")))
    failed = {row.turn_id for row in rows if row.state == "failed"}  # perhaps because of its pictures: not again
    return [
        (row.seq, repair_message(remove_pictures(row.message) if row.turn_id in failed else row.message))
        for row in sent
    ]


def message_numbers(rows: Sequence[StoredMessage]) -> list[int]:
    """The number of each message of `close_calls(group_turns(rows))`; 0 for a result that never came."""
    kept = _number_messages(rows)
    numbers = {id(message): seq for seq, message in kept}
    return [numbers.get(id(message), 0) for message in close_calls([message for _, message in kept])]


def has_pictures(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(part.get("type") == "image_url" for part in cast("list[Any]", content))


def remove_pictures(message: Message) -> Message:
    """The message for a model that sees none, or that refused these."""
    if not has_pictures(message):
        return message
    left: Part = {"type": "text", "text": NO_PICTURE}
    parts = [left if part["type"] == "image_url" else part for part in cast("list[Part]", message["content"])]
    found: Any = {**message, "content": parts}
    return found


def repair_message(message: Message) -> Message:
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


def close_calls(messages: Sequence[Message]) -> list[Message]:
    """Every call with its result, and no result without its call: what a crash left open is said to be interrupted."""
    found: list[Message] = []
    waiting: dict[str, None] = {}
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") in waiting:
                del waiting[str(message.get("tool_call_id"))]
                found.append(message)
            continue
        found += _interrupted_results(waiting)
        waiting = dict.fromkeys(call["id"] for call in message.get("tool_calls", ()))
        found.append(message)
    return found + _interrupted_results(waiting)


def insert_results(messages: Sequence[Message], results: Sequence[Message]) -> list[Message]:
    """The messages with results in place of what `close_calls` put behind the last calls for them."""
    names = {result.get("tool_call_id") for result in results}
    last = next((n for n in range(len(messages), 0, -1) if messages[n - 1]["role"] != "tool"), 0)
    real = [message for message in messages[last:] if message["content"] is not INTERRUPTED]
    return close_calls([*messages[:last], *(m for m in real if m.get("tool_call_id") not in names), *results])


def _interrupted_results(calls: dict[str, None]) -> list[Message]:
    results: list[Any] = [{"role": "tool", "content": INTERRUPTED, "tool_call_id": name} for name in calls]
    return results
