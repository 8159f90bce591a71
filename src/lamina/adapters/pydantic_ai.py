"""Pydantic AI: its messages to lamina's and back, and a capability that fits each request.

A request of Pydantic AI may contain several of lamina's messages, so what is kept is handed back part by part. The
history of a run is not changed: only what is sent is cut.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, cast

from pydantic_ai import messages as theirs
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
from pydantic_ai.tools import RunContext

from lamina.adapters.plan import (
    KEEP_THINKING,
    KeptMessage,
    Piece,
    Plan,
    cannot_convert,
    decode_data_url,
    image_part,
    join_answer,
    join_text,
    list_parts,
    make_message,
    map_call_names,
    text_part,
    tool_call,
    tool_schema,
)
from lamina.types import AnyMessage, AnyTool, Message, Part, ToolCall

NOT_SENT = (theirs.InstructionBaselinePart,)
"""Parts that Pydantic AI records for itself and that no model sees."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a message of lamina comes from: the index of the message, and its parts."""

    index: int
    parts: Sequence[theirs.ModelRequestPart | theirs.ModelResponsePart]


def to_lamina(messages: Sequence[theirs.ModelMessage]) -> list[Message]:
    """Pydantic AI's messages in lamina's form, without timestamps, usage, outcomes and cache points."""
    return [piece.message for piece in convert_pieces(messages)]


def from_lamina(messages: Sequence[AnyMessage]) -> list[theirs.ModelMessage]:
    """Messages of lamina as Pydantic AI's: what is between two answers becomes one request."""
    names = map_call_names(messages)
    out: list[theirs.ModelMessage] = []
    for answers, run in groupby(enumerate(messages), lambda pair: pair[1]["role"] == "assistant"):
        if answers:
            out += [theirs.ModelResponse(_restore_answer(message, f"messages[{n}]")) for n, message in run]
        else:
            out.append(theirs.ModelRequest([_restore_request(message, f"messages[{n}]", names) for n, message in run]))
    return out


class LaminaContext(AbstractCapability[Any]):
    """`Agent(model, capabilities=[LaminaContext(plan)])`: fits what is sent, attempt by attempt."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        parameters = request_context.model_request_parameters
        system = theirs.InstructionPart.join(parameters.instruction_parts or []) or ""
        found = convert_pieces(request_context.messages, self._plan.keep_thinking)
        context, kept = self._plan.fit(found, source="pydantic-ai", system=system, tools=_list_tool_schemas(parameters))
        instructions = [theirs.InstructionPart(context.system)] if context.system else []
        return replace(
            request_context,
            messages=restore_messages(kept, request_context.messages),
            model_request_parameters=replace(parameters, instruction_parts=instructions),
        )


def restore_messages(
    kept: Sequence[KeptMessage[Origin]], messages: Sequence[theirs.ModelMessage]
) -> list[theirs.ModelMessage]:
    """What was kept, as the same message objects where all of their parts were kept unchanged."""
    names = map_call_names([one.message for one in kept])
    out: list[theirs.ModelMessage] = []
    for index, run in groupby(kept, lambda one: one.origin.index):
        whole, mine = messages[index], list(run)
        if isinstance(whole, theirs.ModelResponse):
            answers = [_restore_answer(one.message, "a fenced message") for one in mine if one.changed]
            out.append(replace(whole, parts=answers[0]) if answers else whole)
            continue
        sent = {id(part): _replace_text(part, one, names) for one in mine for part in one.origin.parts}
        all_kept = len(sent) == sum(not isinstance(part, NOT_SENT) for part in whole.parts)
        if all_kept and not any(one.changed for one in mine):
            out.append(whole)
            continue
        parts = [sent.get(id(part), part) for part in whole.parts if all_kept or id(part) in sent]
        out.append(replace(whole, parts=parts))
    return out


def _replace_text(part: Any, one: KeptMessage[Origin], names: dict[str, str]) -> Any:
    """A part of a request, with the text of our message where that was changed."""
    if not one.changed:
        return part
    if isinstance(part, theirs.ToolReturnPart):
        result = cast("theirs.ToolReturnPart[Any]", part)
        return replace(result, content=join_text(one.message["content"]))
    return _restore_request(one.message, "a fenced message", names)


def convert_pieces(messages: Sequence[theirs.ModelMessage], keep_thinking: bool = False) -> list[Piece[Origin]]:
    """Each message in lamina's form, with the parts that it is made of."""
    out: list[Piece[Origin]] = []
    for index, message in enumerate(messages):
        if isinstance(message, theirs.ModelResponse):
            said = _convert_response(message, f"messages[{index}]", keep_thinking)
            out.append(Piece(said, Origin(index, message.parts)))
            continue
        for number, part in enumerate(message.parts):
            if not isinstance(part, NOT_SENT):
                out.append(Piece(_convert_request(part, f"messages[{index}].parts[{number}]"), Origin(index, [part])))
    return out


def _convert_request(part: theirs.ModelRequestPart, where: str) -> Message:
    if isinstance(part, theirs.SystemPromptPart):
        return make_message("system", part.content, where)
    if isinstance(part, theirs.UserPromptPart):
        if isinstance(part.content, str):
            return make_message("user", part.content, where)
        parts = [_convert_content(one, where) for one in part.content if not isinstance(one, theirs.CachePoint)]
        return make_message("user", parts or "", where)
    if isinstance(part, theirs.ToolReturnPart):
        if part.files:
            raise cannot_convert(where, part.files[0], "adapter.result_is_text")
        return make_message("tool", part.model_response_str(), where, tool_call_id=part.tool_call_id)
    if isinstance(part, theirs.RetryFeedbackPart):
        return make_message("user", part.model_response(), where)
    raise cannot_convert(where, part)


def _convert_content(content: theirs.UserContent, where: str) -> Part:
    if isinstance(content, str | theirs.TextContent):
        return text_part(content if isinstance(content, str) else content.content)
    if isinstance(content, theirs.ImageUrl):
        return image_part(content.url, (content.vendor_metadata or {}).get("detail"))
    if isinstance(content, theirs.BinaryContent) and content.is_image:
        url = f"data:{content.media_type};base64,{base64.b64encode(content.data).decode()}"
        return image_part(url, (content.vendor_metadata or {}).get("detail"))
    raise cannot_convert(where, content)


def _convert_response(message: theirs.ModelResponse, where: str, keep_thinking: bool) -> Message:
    texts: list[Part] = []
    calls: list[ToolCall] = []
    for number, part in enumerate(message.parts):
        if isinstance(part, theirs.TextPart):
            texts.append(text_part(part.content))
        elif isinstance(part, theirs.ToolCallPart):
            arguments = part.args if isinstance(part.args, str) else part.args_as_json_str()
            calls.append(tool_call(part.tool_call_id, part.tool_name, arguments))
        elif not isinstance(part, theirs.ThinkingPart):
            raise cannot_convert(f"{where}.parts[{number}]", part)
        elif not keep_thinking:
            raise cannot_convert(f"{where}.parts[{number}]", part, KEEP_THINKING)
    return make_message("assistant", join_answer(texts, calls), where, tool_calls=calls)


def _restore_request(message: AnyMessage, where: str, names: dict[str, str]) -> theirs.ModelRequestPart:
    role, name = message["role"], message.get("name")
    if role == "system":
        return theirs.SystemPromptPart(join_text(message["content"]))
    if role == "tool":
        identifier = message["tool_call_id"]
        if identifier not in names or name not in (None, names[identifier]):
            raise cannot_convert(where, message, "adapter.call_before_result")
        return theirs.ToolReturnPart(names[identifier], join_text(message["content"]), identifier)
    if name:
        raise cannot_convert(f"{where}.name", name, "adapter.no_names")
    content = message["content"]
    return theirs.UserPromptPart(
        content if isinstance(content, str) else [_restore_content(part, where) for part in content]
    )


def _restore_content(part: Part, where: str) -> theirs.UserContent:
    if part["type"] == "text":
        return part["text"]
    image = part["image_url"]
    detail = {"detail": image["detail"]} if "detail" in image else None
    if not image["url"].startswith("data:"):
        return theirs.ImageUrl(image["url"], vendor_metadata=detail)
    data, media_type = decode_data_url(image["url"], where)
    return theirs.BinaryContent(data, media_type=media_type, vendor_metadata=detail)


def _restore_answer(message: AnyMessage, where: str) -> list[theirs.ModelResponsePart]:
    if message.get("name"):
        raise cannot_convert(f"{where}.name", message["name"], "adapter.no_names")
    calls: Sequence[ToolCall] = message.get("tool_calls") or ()
    texts = [theirs.TextPart(join_text([part])) for part in list_parts(message)]
    called = [theirs.ToolCallPart(c["function"]["name"], c["function"]["arguments"], c["id"]) for c in calls]
    return [*(text for text in texts if text.content or not called), *called]


def _list_tool_schemas(parameters: ModelRequestParameters) -> list[AnyTool]:
    defined = [*parameters.function_tools, *parameters.output_tools]
    return [tool_schema(tool.name, tool.description, tool.parameters_json_schema) for tool in defined]
