"""LangChain and LangGraph: their messages to lamina's and back, a Runnable, and a `pre_model_hook`.

Needs langchain-core only; the middleware for `create_agent` is in `langchain_agents`. Never changes a graph's state.
"""

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

from lamina.adapters.forms import (
    KEEP_THINKING,
    arguments_of,
    cannot,
    image_part,
    made,
    text_part,
    thinks,
    tool_call,
    written,
)
from lamina.adapters.plan import Kept, Piece, Plan
from lamina.types import AnyMessage, AnyTool, Context, Message, Part, ToolCall

Input = PromptValue | str | Sequence[MessageLikeRepresentation]
SAYS_MORE = ("function_call", "audio", "refusal", "reasoning_content")
"""What `additional_kwargs` may hold that a model sees, and that is not in `content`."""
BOOKKEEPING = ("id", "index", "cache_control", "annotations", "citations")
"""Of a block; none of it is words of the chat. `annotations` and `citations` say where an answer's words are from."""


class Hook(Protocol):
    def __call__(self, state: Any, /) -> dict[str, list[BaseMessage]]: ...


def to_lamina(messages: Sequence[BaseMessage]) -> list[Message]:
    """LangChain's messages in lamina's form. Ids, usage, status, artifacts, cache marks and citations are no part."""
    return [_to(message, f"messages[{n}]", keep_thinking=False) for n, message in enumerate(messages)]


def from_lamina(messages: Sequence[AnyMessage]) -> list[BaseMessage]:
    """Messages of lamina as LangChain's."""
    return [_back(message) for message in messages]


def runnable(plan: Plan) -> Runnable[Input, list[BaseMessage]]:
    """Stands between a prompt and a chat model: `prompt | runnable(plan) | model`."""

    def fit(value: Input) -> list[BaseMessage]:
        if isinstance(value, PromptValue):
            return fitted(plan, value.to_messages())
        return fitted(plan, [HumanMessage(value)] if isinstance(value, str) else convert_to_messages(value))

    return RunnableLambda(fit, name="lamina")


def pre_model_hook(plan: Plan) -> Hook:
    """A node before the model's: what is sent goes into `llm_input_messages`, and `messages` stay as they are."""

    def lamina(state: Any) -> dict[str, list[BaseMessage]]:
        held = cast("Mapping[str, Any]", state)["messages"] if isinstance(state, Mapping) else state.messages
        return {"llm_input_messages": fitted(plan, convert_to_messages(held))}

    return lamina


def fitted(plan: Plan, messages: Sequence[BaseMessage], tools: Sequence[AnyTool] = ()) -> list[BaseMessage]:
    """The messages to send: one system message of all layers, then what fits."""
    context, kept = fit_messages(plan, messages, tools)
    system: list[BaseMessage] = [SystemMessage(context.system)] if context.system else []
    return [*system, *handed_back(kept)]


def fit_messages(
    plan: Plan, messages: Sequence[BaseMessage], tools: Sequence[AnyTool] = ()
) -> tuple[Context, list[Kept[BaseMessage]]]:
    return plan.fit(pieces(messages, plan.keep_thinking), source="langchain", tools=tools)


def handed_back(kept: Sequence[Kept[BaseMessage]]) -> list[BaseMessage]:
    return [
        origin.model_copy(update={"content": message["content"]}) if changed else origin
        for message, origin, changed in kept
    ]


def pieces(messages: Sequence[BaseMessage], keep_thinking: bool = False) -> list[Piece[BaseMessage]]:
    """Each message in lamina's form, beside itself."""
    return [
        Piece(_to(_nameable(message), f"messages[{n}]", keep_thinking), message) for n, message in enumerate(messages)
    ]


def _nameable(message: BaseMessage) -> BaseMessage:
    """With the speaker's name as lamina's form can hold it: it is only counted, and the message itself handed back."""
    name = re.sub(r"[\s<|\\/>]+", "_", message.name or "")[:64]
    return message if name == (message.name or "") else message.model_copy(update={"name": name})


def _to(message: BaseMessage, where: str, keep_thinking: bool) -> Message:
    extras = cast("dict[str, Any]", message.additional_kwargs)  # pyright: ignore[reportUnknownMemberType] -- a bare dict
    for name in SAYS_MORE:
        if extras.get(name) and not (keep_thinking and name == "reasoning_content"):
            raise cannot(f"{where}.additional_kwargs", name, KEEP_THINKING if name == "reasoning_content" else "")
    content = _content(message, where, keep_thinking)
    if isinstance(message, SystemMessage):
        return made("system", content, where)
    if isinstance(message, HumanMessage):
        return made("user", content, where, name=message.name)
    if isinstance(message, ToolMessage):
        return made("tool", content, where, tool_call_id=message.tool_call_id, name=message.name)
    if isinstance(message, AIMessage):
        calls = _calls(message)
        return made("assistant", content or (None if calls else ""), where, tool_calls=calls, name=message.name)
    raise cannot(where, type(message).__name__, "adapter.langchain_messages")


def _calls(message: AIMessage) -> list[ToolCall]:
    good = [tool_call(call["id"], call["name"], written(call["args"])) for call in message.tool_calls]
    return good + [tool_call(call["id"], call["name"], call["args"]) for call in message.invalid_tool_calls]


def _content(message: BaseMessage, where: str, keep_thinking: bool) -> str | list[Part]:
    content = cast("str | list[str | dict[str, Any]]", message.content)  # pyright: ignore[reportUnknownMemberType] -- a bare dict
    if isinstance(content, str):
        return content
    called = {call["id"] for call in message.tool_calls} if isinstance(message, AIMessage) else set[str | None]()
    parts: list[Part] = []
    for number, block in enumerate(content):
        part = _part(block, f"{where}.content[{number}]", keep_thinking, called)
        if part is not None:
            parts.append(part)
    return parts or ""


def _part(block: str | dict[str, Any], where: str, keep_thinking: bool, called: set[str | None]) -> Part | None:
    """A block as a part; None for one that says again what stands elsewhere, and for thinking that may stay."""
    if isinstance(block, str):
        return text_part(block)
    kind = block.get("type")
    if kind in ("tool_use", "tool_call", "function_call") and {block.get("id"), block.get("call_id")} & called:
        return None
    if thinks(block):
        if keep_thinking:
            return None
        raise cannot(where, block, KEEP_THINKING)
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
    raise cannot(where, block)


def _back(message: AnyMessage) -> BaseMessage:
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
        value = arguments_of(text)
        if value is not None:
            good.append({"id": call["id"], "name": name, "args": value, "type": "tool_call"})
        else:
            bad.append({"id": call["id"], "name": name, "args": text, "type": "invalid_tool_call", "error": None})
    return AIMessage(content or "", tool_calls=good, invalid_tool_calls=bad, name=message.get("name"))
