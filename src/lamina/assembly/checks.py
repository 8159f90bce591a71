"""What a message must be before it can be sent: every refusal names the place and the value."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from lamina.assembly.tokens import check_text
from lamina.errors import MessageError, shown

HISTORY_ROLES = ("user", "assistant", "tool")
PLAIN = ("user", "assistant")
FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")
PICTURE = re.compile(r"https?://[^\s]+|data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/]")
SPEAKER = re.compile(r"[^\s<|\\/>]{1,64}")
PART_FORM = 'parts are {"type": "text", "text": …} and {"type": "image_url", "image_url": {"url": …}}'
LONGEST_ID = 40
"""OpenAI takes no call id that is longer."""
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def fields_of(value: object) -> Mapping[str, Any] | None:
    """A mapping as one whose keys we can ask for; None for anything else."""
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else None


def check_message(message: object, where: str) -> None:
    """Refuse what no provider would take, naming the place and the value."""
    fields = fields_of(message)
    if fields is None:
        raise MessageError(
            f"{where} must be a mapping with role and content, not {type(message).__name__}: {shown(message)}",
            hint="an SDK's message has .model_dump(exclude_none=True)" if hasattr(message, "model_dump") else "",
        )
    role = fields.get("role")
    if role in PLAIN and len(fields) == 2 and isinstance(fields.get("content"), str):  # nearly every message there is
        return check_text(fields["content"], f"{where}.content")
    if role not in HISTORY_ROLES:
        hint = "system text belongs in system_prompt or in a layer" if role in ("system", "developer") else ""
        raise MessageError(
            f"{where}.role is {shown(role)}, which is not a role here",
            hint=hint or "roles are user, assistant and tool",
        )
    if "content" not in fields:
        raise MessageError(f"{where} has no content", hint="use an empty string or, beside tool_calls, None")
    calls = fields.get("tool_calls")
    if calls is not None:
        _check_calls(calls, role, where)
    _check_content(fields["content"], f"{where}.content", nothing=bool(calls), pictures=role == "user")
    extra = [field for field in fields if field not in FIELDS and fields[field]]
    if extra:
        raise MessageError(
            f"{where} has the field {shown(extra[0])}, which would be sent and not counted",
            hint=f"a message has {', '.join(FIELDS)}",
        )
    name = fields.get("name")
    if name is not None and not (isinstance(name, str) and SPEAKER.fullmatch(name)):
        raise MessageError(f"{where}.name is {shown(name)}", hint="1 to 64 characters without blanks and <|\\/>")
    if name is not None:
        check_text(name, f"{where}.name")
    if role != "tool" and fields.get("tool_call_id") is not None:
        raise MessageError(f"{where} has a tool_call_id, but its role is {shown(role)}: only a tool answers calls")
    if role == "tool":
        result = fields.get("tool_call_id")
        if not isinstance(result, str) or not result:
            raise MessageError(
                f"{where} is a tool result without a tool_call_id ({shown(result)})",
                hint="name the call that it answers",
            )
        check_text(result, f"{where}.tool_call_id")


def _check_content(content: object, where: str, *, nothing: bool, pictures: bool) -> None:
    if isinstance(content, str):
        return check_text(content, where)
    if content is None and nothing:
        return None
    if not isinstance(content, list | tuple):
        raise MessageError(
            f"{where} must be text or a list of parts, not {type(content).__name__}: {shown(content)}",
            hint="None is allowed only beside tool_calls" if content is None else "",
        )
    if not content:
        raise MessageError(f"{where} is an empty list", hint="use an empty string for a message without text")
    for number, part in enumerate(cast(Sequence[object], content)):
        _check_part(part, f"{where}[{number}]", pictures)
    return None


def _check_part(part: object, where: str, pictures: bool) -> None:
    fields = fields_of(part) or {}
    kind, text, image = fields.get("type"), fields.get("text"), fields_of(fields.get("image_url"))
    known = {"type", "text"} if kind == "text" else {"type", "image_url"}
    if set(fields) - known or set(image or ()) - {"url", "detail"}:
        raise MessageError(f"{where} has fields that no part has: {shown(part)}", hint=PART_FORM)
    if kind == "text" and isinstance(text, str):
        return check_text(text, f"{where}.text")
    if kind == "image_url" and image is not None:
        if image.get("detail", "auto") not in ("auto", "low", "high"):
            raise MessageError(f"{where}.image_url.detail is {shown(image['detail'])}", hint="auto, low or high")
        if not pictures:
            raise MessageError(f"{where} is a picture, and only user messages may hold one", hint="move it there")
        url = image.get("url")
        if isinstance(url, str) and PICTURE.match(url):
            return check_text(url, f"{where}.image_url.url")
        raise MessageError(
            f"{where}.image_url.url is {shown(url)}, which providers cannot show",
            hint="http(s)://… or data:image/png;base64,… (png, jpeg, gif, webp)",
        )
    raise MessageError(
        f"{where} is not a part that can be sent: {shown(part)}",
        hint=PART_FORM,
    )


def _check_calls(calls: object, role: object, where: str) -> None:
    if role != "assistant":
        raise MessageError(f"{where} has tool_calls, but its role is {shown(role)}: only the assistant calls tools")
    if not isinstance(calls, list | tuple) or not calls:
        raise MessageError(
            f"{where}.tool_calls must be a list with at least one call, not {shown(cast(object, calls))}"
        )
    seen: set[str] = set()
    for number, call in enumerate(cast(Sequence[object], calls)):
        identifier = _check_call(call, f"{where}.tool_calls[{number}]")
        if identifier in seen:
            raise MessageError(
                f"{where}.tool_calls[{number}].id is {shown(identifier)}, which an earlier call of the same message has"
            )
        seen.add(identifier)


def _check_call(call: object, place: str) -> str:
    fields = fields_of(call) or {}
    function = fields_of(fields.get("function"))
    strange = set(fields) - {"id", "type", "function"} or set(function or ()) - {"name", "arguments"}
    if function is None or fields.get("type") != "function" or strange:
        raise MessageError(
            f"{place} is not a call: {shown(call)}",
            hint='a call is {"id": …, "type": "function", "function": {"name": …, "arguments": …}}',
        )
    identifier, name, arguments = fields.get("id"), function.get("name"), function.get("arguments")
    if not isinstance(identifier, str) or not 0 < len(identifier) <= LONGEST_ID:
        raise MessageError(
            f"{place}.id is {shown(identifier)}",
            hint=f"an id has 1 to {LONGEST_ID} characters; shorten it in the call and in its result",
        )
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise MessageError(
            f"{place}.function.name is {shown(name)}, which providers refuse",
            hint="a tool's name has 1 to 64 of A-Z, a-z, 0-9, _ and -",
        )
    if not isinstance(arguments, str):
        raise MessageError(
            f"{place}.function.arguments must be a JSON string, not {shown(arguments)}", hint="json.dumps the arguments"
        )
    check_text(identifier, f"{place}.id")
    check_text(arguments, f"{place}.function.arguments")
    return identifier
