"""OpenAI Agents SDK: its input items to lamina's messages and back, and a `call_model_input_filter`.

Items are finer than messages: an answer's text, its calls and its reasoning are items of their own, which stay
together here. What is kept goes back as the same objects, as the SDK asks for. The session is not touched.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from agents import FunctionTool, TResponseInputItem
from agents.run import CallModelData, ModelInputData

from lamina.adapters.plan import (
    KEEP_THINKING,
    Piece,
    Plan,
    cannot_convert,
    image_part,
    join_answer,
    join_text,
    list_parts,
    make_message,
    text_part,
    tool_call,
    tool_schema,
)
from lamina.types import AnyMessage, AnyTool, Message, Part, Role, ToolCall

Items = Sequence[TResponseInputItem]
Fields = Mapping[str, Any]
ROLES: dict[object, Role] = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}


def to_lamina(items: Items) -> list[Message]:
    """Input items in lamina's form. Ids, status and annotations are not part of it."""
    return [piece.message for piece in convert_pieces(items)]


def from_lamina(messages: Sequence[AnyMessage]) -> list[TResponseInputItem]:
    """Messages of lamina as input items."""
    return [item for n, message in enumerate(messages) for item in _restore_items(message, f"messages[{n}]")]


def input_filter(plan: Plan) -> Callable[[CallModelData[Any]], ModelInputData]:
    """`RunConfig(call_model_input_filter=input_filter(plan))`: the agent's instructions become a layer."""

    def lamina(data: CallModelData[Any]) -> ModelInputData:
        found = convert_pieces(data.model_data.input, plan.keep_thinking)
        system, tools = data.model_data.instructions or "", _list_tool_schemas(data.agent.tools)
        context, kept = plan.fit(found, source="openai-agents", system=system, tools=tools)
        items: list[TResponseInputItem] = []
        for message, origin, changed in kept:
            items += _replace_text(origin, _restore_items(message, "a fenced message")) if changed else origin
        return ModelInputData(input=items, instructions=context.system or None)

    return lamina


@dataclass(slots=True)
class _PartialAnswer:
    """The items of one answer so far."""

    items: list[TResponseInputItem] = field(default_factory=list[TResponseInputItem])
    texts: list[Part] | None = None
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    first: int = 0


def _replace_text(items: list[TResponseInputItem], text: list[TResponseInputItem]) -> list[TResponseInputItem]:
    """An item of the SDK with the text of our message."""
    return [cast(TResponseInputItem, {**items[0], **text[0]})] if len(items) == len(text) == 1 else text


def convert_pieces(items: Items, keep_thinking: bool = False) -> list[Piece[list[TResponseInputItem]]]:
    """Each message in lamina's form, with the items that it is made of."""
    out: list[Piece[list[TResponseInputItem]]] = []
    answer = _PartialAnswer()
    thoughts: list[TResponseInputItem] = []  # reasoning belongs to the item after it

    def close() -> None:
        nonlocal answer
        if answer.items:
            content, where = join_answer(answer.texts or [], answer.calls), f"items[{answer.first}]"
            out.append(Piece(make_message("assistant", content, where, tool_calls=answer.calls), answer.items))
        answer = _PartialAnswer()

    for number, item in enumerate(items):
        fields, where = cast(Fields, item), f"items[{number}]"
        kind = fields.get("type", "message")
        if kind == "reasoning":
            if not keep_thinking:
                raise cannot_convert(where, item, KEEP_THINKING)
            thoughts.append(item)
        elif kind == "function_call" or (kind == "message" and fields.get("role") == "assistant"):
            if kind == "message" and answer.texts is not None and not answer.calls:
                close()
            answer.first = answer.first if answer.items else number
            answer.items += [*thoughts, item]
            thoughts = []
            if kind == "function_call":
                answer.calls.append(tool_call(fields["call_id"], fields["name"], fields["arguments"]))
            else:
                answer.texts = [*(answer.texts or ()), *_convert_answer(fields["content"], where)]
        else:
            if thoughts:
                raise cannot_convert(f"items[{number - 1}]", thoughts[-1], "adapter.reasoning_place")
            close()
            out.append(Piece(_convert_item(fields, kind, where), [item]))
    close()
    if thoughts:
        raise cannot_convert(f"items[{len(items) - 1}]", thoughts[-1], "adapter.reasoning_place")
    return out


def _convert_item(fields: Fields, kind: object, where: str) -> Message:
    role = ROLES.get(fields.get("role"))
    if kind == "message" and role is not None:
        return make_message(role, _convert_content(fields["content"], where), where)
    if kind == "function_call_output":
        return make_message("tool", _convert_content(fields["output"], where), where, tool_call_id=fields["call_id"])
    raise cannot_convert(where, fields)


def _convert_answer(content: str | Sequence[Fields], where: str) -> list[Part]:
    """The text of an answer, in parts."""
    if isinstance(content, str):
        return [text_part(content)]
    for block in content:
        if block.get("type") != "output_text":
            raise cannot_convert(where, block)
    return [text_part(block["text"]) for block in content]


def _convert_content(content: str | Sequence[Fields], where: str) -> str | list[Part]:
    return content if isinstance(content, str) else [_convert_block(block, where) for block in content] or ""


def _convert_block(block: Fields, where: str) -> Part:
    kind, detail = block.get("type"), block.get("detail")
    if kind == "input_text":
        return text_part(block["text"])
    if kind == "input_image" and block.get("image_url") and not block.get("file_id"):
        return image_part(block["image_url"], None if detail == "auto" else detail)
    raise cannot_convert(where, block)


def _restore_items(message: AnyMessage, where: str) -> list[TResponseInputItem]:
    role, content = message["role"], message["content"]
    if message.get("name"):
        raise cannot_convert(f"{where}.name", message["name"], "adapter.no_names")
    if role == "tool":
        item = {"type": "function_call_output", "call_id": message["tool_call_id"], "output": _write_blocks(content)}
        return [cast(TResponseInputItem, item)]
    if role != "assistant":
        return [cast(TResponseInputItem, {"type": "message", "role": role, "content": _write_blocks(content)})]
    texts, calls = list_parts(message), cast("Sequence[ToolCall]", message.get("tool_calls") or ())
    items: list[Fields] = []
    if len(texts) > 1:
        said: list[Fields] = [{"type": "output_text", "text": join_text([part]), "annotations": []} for part in texts]
        items.append({"type": "message", "role": "assistant", "content": said})
    elif join_text(texts) or not calls:
        items.append({"type": "message", "role": "assistant", "content": join_text(texts)})
    for call in calls:
        items.append({"type": "function_call", "call_id": call["id"], **call["function"]})
    return cast("list[TResponseInputItem]", items)


def _write_blocks(content: str | Sequence[Part]) -> str | list[Fields]:
    return content if isinstance(content, str) else [_write_block(part) for part in content]


def _write_block(part: Part) -> Fields:
    if part["type"] == "text":
        return {"type": "input_text", "text": part["text"]}
    image = part["image_url"]
    return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail", "auto")}


def _list_tool_schemas(tools: Sequence[object]) -> list[AnyTool]:
    """The functions among an agent's tools; others belong in `Plan.tools`. A tool that a function enables is counted,
    since it may be sent."""
    functions = [tool for tool in tools if isinstance(tool, FunctionTool) and tool.is_enabled is not False]
    return [tool_schema(tool.name, tool.description, tool.params_json_schema) for tool in functions]
