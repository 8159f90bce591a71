"""LangChain and LangGraph: their messages to lamina's and back, a Runnable, and a `pre_model_hook`.

Needs langchain-core only; the middleware for `create_agent` is in `langchain_agents`. Never changes a graph's state.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    MessageLikeRepresentation,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
)
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import Runnable, RunnableLambda

from lamina.adapters.plan import (
    KEEP_THINKING,
    KeptMessage,
    Piece,
    Plan,
    cannot_convert,
    image_part,
    is_thinking,
    make_message,
    parse_arguments,
    text_part,
    tool_call,
)
from lamina.types import AnyMessage, Message, Part, ToolCall

Input = PromptValue | str | Sequence[MessageLikeRepresentation]
SAYS_MORE = ("function_call", "audio", "refusal", "reasoning_content")
"""Keys of `additional_kwargs` that a model sees and that are not in `content`."""
BOOKKEEPING = ("id", "index", "cache_control", "annotations", "citations")
"""Keys of a block that are not text of the chat. `annotations` and `citations` name the sources of an answer."""


class Hook(Protocol):
    def __call__(self, state: Any, /) -> dict[str, list[BaseMessage]]: ...


def to_lamina(messages: Sequence[BaseMessage]) -> list[Message]:
    """LangChain's messages in lamina's form, without ids, usage, status, artifacts, cache marks and citations."""
    return [_convert_message(message, f"messages[{n}]", keep_thinking=False) for n, message in enumerate(messages)]


def from_lamina(messages: Sequence[AnyMessage]) -> list[BaseMessage]:
    """Messages of lamina as LangChain's."""
    return [_restore_message(message) for message in messages]


def runnable(plan: Plan) -> Runnable[Input, list[BaseMessage]]:
    """To be placed between a prompt and a chat model: `prompt | runnable(plan) | model`."""

    def fit(value: Input) -> list[BaseMessage]:
        if isinstance(value, PromptValue):
            return fit_messages(plan, value.to_messages())
        return fit_messages(plan, [HumanMessage(value)] if isinstance(value, str) else convert_to_messages(value))

    return RunnableLambda(fit, name="lamina")


def pre_model_hook(plan: Plan) -> Hook:
    """A node before the model: it writes `llm_input_messages`, and `messages` stay as they are."""

    def lamina(state: Any) -> dict[str, list[BaseMessage]]:
        held = cast("Mapping[str, Any]", state)["messages"] if isinstance(state, Mapping) else state.messages
        return {"llm_input_messages": fit_messages(plan, convert_to_messages(held))}

    return lamina


def fit_messages(plan: Plan, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The messages to send: one system message of all layers, then what fits."""
    context, kept = plan.fit(convert_pieces(messages, plan.keep_thinking), source="langchain")
    system: list[BaseMessage] = [SystemMessage(context.system)] if context.system else []
    return [*system, *restore_messages(kept)]


def restore_messages(kept: Sequence[KeptMessage[BaseMessage]]) -> list[BaseMessage]:
    return [
        origin.model_copy(update={"content": message["content"]}) if changed else origin
        for message, origin, changed in kept
    ]


def convert_pieces(messages: Sequence[BaseMessage], keep_thinking: bool = False) -> list[Piece[BaseMessage]]:
    """Each message in lamina's form, with the message itself."""
    return [
        Piece(_convert_message(_clean_name(message), f"messages[{n}]", keep_thinking), message)
        for n, message in enumerate(messages)
    ]


def _clean_name(message: BaseMessage) -> BaseMessage:
    """The message with a speaker's name that lamina accepts. It is only counted; the message itself is handed back."""
    name = re.sub(r"[\s<|\\/>]+", "_", message.name or "")[:64]
    return message if name == (message.name or "") else message.model_copy(update={"name": name})


def _convert_message(message: BaseMessage, where: str, keep_thinking: bool) -> Message:
    extras = cast("dict[str, Any]", message.additional_kwargs)  # pyright: ignore[reportUnknownMemberType] -- a bare dict
    for name in SAYS_MORE:
        if extras.get(name) and not (keep_thinking and name == "reasoning_content"):
            raise cannot_convert(
                f"{where}.additional_kwargs", name, KEEP_THINKING if name == "reasoning_content" else ""
            )
    content = _convert_content(message, where, keep_thinking)
    if isinstance(message, SystemMessage):
        return make_message("system", content, where)
    if isinstance(message, HumanMessage):
        return make_message("user", content, where, name=message.name)
    if isinstance(message, ToolMessage):
        return make_message("tool", content, where, tool_call_id=message.tool_call_id, name=message.name)
    if isinstance(message, AIMessage):
        calls = _convert_calls(message)
        return make_message("assistant", content or (None if calls else ""), where, tool_calls=calls, name=message.name)
    raise cannot_convert(where, type(message).__name__, "adapter.langchain_messages")


def _convert_calls(message: AIMessage) -> list[ToolCall]:
    good = [(call["id"], call["name"], json.dumps(call["args"], ensure_ascii=False)) for call in message.tool_calls]
    bad = [(call["id"], call["name"], call["args"]) for call in message.invalid_tool_calls]
    return [tool_call(*each) for each in (*good, *bad)]


def _convert_content(message: BaseMessage, where: str, keep_thinking: bool) -> str | list[Part]:
    content = cast("str | list[str | dict[str, Any]]", message.content)  # pyright: ignore[reportUnknownMemberType] -- a bare dict
    if isinstance(content, str):
        return content
    called = {call["id"] for call in message.tool_calls} if isinstance(message, AIMessage) else set[str | None]()
    parts: list[Part] = []
    for number, block in enumerate(content):
        part = _convert_block(block, f"{where}.content[{number}]", keep_thinking, called)
        if part is not None:
            parts.append(part)
    return parts or ""


def _convert_block(
    block: str | dict[str, Any], where: str, keep_thinking: bool, called: set[str | None]
) -> Part | None:
    """A block as a part; None for one that repeats a call, and for thinking that is kept."""
    if isinstance(block, str):
        return text_part(block)
    kind = block.get("type")
    if kind in ("tool_use", "tool_call", "function_call") and {block.get("id"), block.get("call_id")} & called:
        return None
    if is_thinking(block):
        if keep_thinking:
            return None
        raise cannot_convert(where, block, KEEP_THINKING)
    held = {name for name, value in block.items() if value and name not in BOOKKEEPING}
    if kind == "text" and held <= {"type", "text"}:
        return text_part(block["text"])
    if kind == "image_url" and held <= {"type", "image_url"}:
        image = block["image_url"]
        if isinstance(image, str):
            return image_part(image)
        if set(image) <= {"url", "detail"}:
            return image_part(image["url"], image.get("detail"))
    if kind == "image" and held == {"type", "url"}:
        return image_part(block["url"])
    if kind == "image" and held == {"type", "base64", "mime_type"}:
        return image_part(f"data:{block['mime_type']};base64,{block['base64']}")
    raise cannot_convert(where, block)


def _restore_message(message: AnyMessage) -> BaseMessage:
    role, content = message["role"], message["content"]
    if role == "system":
        return SystemMessage(content)
    if role == "user":
        return HumanMessage(content, name=message.get("name"))
    if role == "tool":
        return ToolMessage(content, tool_call_id=message["tool_call_id"], name=message.get("name"))
    good: list[dict[str, Any]] = []
    bad: list[dict[str, Any]] = []
    for call in cast("Sequence[ToolCall]", message.get("tool_calls") or ()):
        name, text = call["function"]["name"], call["function"]["arguments"]
        value = parse_arguments(text)
        if value is not None:
            good.append({"id": call["id"], "name": name, "args": value, "type": "tool_call"})
        else:
            bad.append({"id": call["id"], "name": name, "args": text, "type": "invalid_tool_call", "error": None})
    return AIMessage(content or "", tool_calls=good, invalid_tool_calls=bad, name=message.get("name"))
