"""What a message must be before it can be sent: every refusal names the place and the value."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from lamina.errors import MessageError, format_value
from lamina.text.unicode import check_unicode

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
