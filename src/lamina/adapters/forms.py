"""Pieces of messages in lamina's form (OpenAI's), as the converters of all frameworks write them."""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from lamina.assembly.history import check_message
from lamina.errors import MessageError, format_value
from lamina.text.json import read_strict_json
from lamina.text.messages import Phrase
from lamina.types import AnyMessage, AnyTool, ImagePart, Message, Part, Role, TextPart, ToolCall

KEEP_THINKING = "adapter.keep_thinking"


def cannot(where: str | Phrase, thing: object, hint: str = "adapter.known_parts") -> MessageError:
    """The one refusal of the converters: nothing is dropped silently. `hint` is a code, or empty for none."""
    return MessageError("adapter.cannot_convert", where=where, value=format_value(thing), hint=hint)


def made(
    role: Role, content: str | Sequence[Part] | None, where: str, *, tool_calls: Sequence[ToolCall] = (),
    tool_call_id: str | None = None, name: str | None = None,
) -> Message:  # fmt: skip
    """A message with only the fields that say something, checked as the history will be."""
    given = {"tool_calls": tool_calls, "tool_call_id": tool_call_id, "name": name}
    fields = {field: value for field, value in given.items() if value}
    held = content if content is None or isinstance(content, str) else list(content)
    message = cast(Message, {"role": role, "content": held, **fields})
    if role != "system":
        check_message(message, where)
    elif strange := [part for part in held or () if not isinstance(part, str) and part.get("type") != "text"]:
        raise cannot(where, strange[0], "adapter.system_is_text")
    return message


def text_part(text: str) -> TextPart:
    return {"type": "text", "text": text}


def image_part(url: str, detail: object = None) -> ImagePart:
    if detail is None:
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "image_url", "image_url": {"url": url, "detail": cast(Literal["auto", "low", "high"], detail)}}


def tool_call(identifier: object, name: object, arguments: object) -> ToolCall:
    """A call; what is wrong with it is found when its message is checked."""
    function = {"name": name, "arguments": arguments}
    return cast(ToolCall, {"id": identifier, "type": "function", "function": function})


def tool_schema(name: str, description: str | None, parameters: Mapping[str, Any]) -> AnyTool:
    function = {"name": name, "description": description or "", "parameters": parameters}
    return {"type": "function", "function": function}


def text_of(content: str | Sequence[Part] | None) -> str:
    """The words of a system message."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n\n".join(part["text"] for part in content if part["type"] == "text")


def known_names(messages: Sequence[AnyMessage]) -> dict[str, str]:
    """The tool's name of each call: some frameworks want it again with the result."""
    return {call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()}


def arguments_of(text: str) -> dict[str, Any] | None:
    """The arguments as a value, where writing them down again loses nothing; else None."""
    try:
        value = read_strict_json(text)
        written(value).encode()
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def picture_bytes(url: str, where: str) -> tuple[bytes, str]:
    """Bytes and media type of a `data:` URL."""
    head, _, data = url.partition(",")
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise MessageError("part.broken_base64", where=where, value=format_value(url)) from None
    if base64.b64encode(raw).decode() != data:
        raise MessageError("part.unusual_base64", where=where, value=format_value(url))
    return raw, head.removeprefix("data:").removesuffix(";base64")


def parts_of(message: AnyMessage) -> list[Part]:
    """The content of a message as parts, whichever form it has; None is none."""
    content: str | list[Part] | None = message["content"]
    if content is None:
        return []
    return [text_part(content)] if isinstance(content, str) else content


def thinks(block: Mapping[str, Any]) -> bool:
    """Is this block a model's thinking, in the words of any provider?"""
    return block.get("type") in ("thinking", "redacted_thinking", "reasoning", "reasoning_content")
