"""What every adapter does, whatever the framework: layers and a budget in, the framework's messages and a receipt out.

A framework's message is converted to lamina's form (OpenAI's) to be counted and cut. A message that is kept is handed
back as the object that it was, so its ids, usage and signatures stay. This module knows no framework.
"""

import base64
import binascii
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

from lamina.assembly.budget import Budget, StartOn
from lamina.assembly.history import check_message
from lamina.assembly.pieces import PromptStyle
from lamina.assembly.request import assemble
from lamina.assembly.tokens import estimate_message_tokens
from lamina.errors import LayerError, MessageError, format_value
from lamina.ports import Count
from lamina.text.json import read_strict_json
from lamina.text.messages import Phrase
from lamina.types import (
    AnyMessage,
    AnyTool,
    Context,
    ImagePart,
    Lang,
    Layer,
    Message,
    Part,
    Role,
    Share,
    TextPart,
    ToolCall,
)

KEEP_THINKING = "adapter.keep_thinking"
Origin = TypeVar("Origin")
Gather = Callable[[Sequence[Message]], Sequence[Layer]]
"""Returns the layers for one request; it gets the chat so far, in lamina's form, to look up memories with."""


class Piece(NamedTuple, Generic[Origin]):
    """A message in lamina's form, and the part of the framework's messages that it was made of."""

    message: Message
    origin: Origin


class KeptMessage(NamedTuple, Generic[Origin]):
    """A message that will be sent. When it is `changed`, as each result of a tool is by its fence, the text is that of
    the message and everything else that of its origin."""

    message: Message
    origin: Origin
    changed: bool


def _ignore(_context: Context) -> None:
    """Without `tell` the receipt is not used."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The layers that an adapter adds, the budget of a request, and what happens with the receipts.

    `layers` are values, or a function that returns them for each request. `tell` is called with every context, in the
    thread or task of its request. `tools` are schemas that the framework sends but does not show to the adapter.
    `keep_thinking` lets thinking blocks and signatures, for which lamina's messages have no place, stay with their
    message: sent or cut with it, and neither counted nor in the receipt. Without it they are refused.
    """

    layers: Sequence[Layer] | Gather
    budget: float
    tell: Callable[[Context], object] = _ignore
    tools: Sequence[AnyTool] = ()
    keep_thinking: bool = False
    count: Count = estimate_message_tokens
    start_on: StartOn = "user"
    owner: str | None = None
    mark: str = field(default_factory=lambda: secrets.token_hex(4))
    """The tags of fences are made from it; each plan has its own. Pass one that you store with the session where the
    provider's cache should outlive the plan."""
    lang: Lang = "en"
    shares: Mapping[str, Share] | None = field(default=None)

    def __post_init__(self) -> None:
        if isinstance(self.layers, str):  # a string is a sequence too
            raise LayerError("layer.bad_plan", value=format_value(self.layers))

    def fit(
        self, pieces: Sequence[Piece[Origin]], *, source: str, system: str = "", tools: Sequence[AnyTool] = ()
    ) -> tuple[Context, list[KeptMessage[Origin]]]:
        """The context, and those of `pieces` that are in it. The framework's own system text becomes a layer."""
        opening = _count_system_messages(pieces)
        spoken = pieces[opening:]
        history = [piece.message for piece in spoken]
        texts = [system, *(join_text(piece.message["content"]) for piece in pieces[:opening])]
        own = [Layer("instructions", text, source) for text in texts]
        given = self.layers(history) if callable(self.layers) else self.layers
        context = assemble(
            [*own, *given],
            history,
            None,
            budget=Budget(self.budget, self.count, self.shares, start_on=self.start_on),
            style=PromptStyle(self.mark, self.owner, self.lang),
            tools=[*tools, *self.tools],
        )
        self.tell(context)
        return context, _match_kept(spoken, context)


def _count_system_messages(pieces: Sequence[Piece[Origin]]) -> int:
    """How many system messages the chat starts with; one in the middle is an error."""
    roles = [piece.message["role"] for piece in pieces]
    opening = next((number for number, role in enumerate(roles) if role != "system"), len(roles))
    if "system" in roles[opening:]:
        place = roles.index("system", opening)
        raise MessageError("adapter.system_in_middle", where=f"messages[{place}]")
    return opening


def _match_kept(spoken: Sequence[Piece[Origin]], context: Context) -> list[KeptMessage[Origin]]:
    said = [message for message in context.messages if message["role"] != "system"]
    first = len(spoken) - len(said)
    return [
        KeptMessage(message, piece.origin, message != piece.message)
        for message, piece in zip(said, spoken[first:], strict=True)
    ]


# Messages in lamina's form


def cannot_convert(where: str | Phrase, thing: object, hint: str = "adapter.known_parts") -> MessageError:
    """The error for what has no place in the other form: nothing is dropped silently. `hint` is a code, or empty."""
    return MessageError("adapter.cannot_convert", where=where, value=format_value(thing), hint=hint)


def make_message(
    role: Role,
    content: str | Sequence[Part] | None,
    where: str,
    *,
    tool_calls: Sequence[ToolCall] = (),
    tool_call_id: str | None = None,
    name: str | None = None,
) -> Message:
    """A message without empty fields, checked as the history will be."""
    given = {"tool_calls": tool_calls, "tool_call_id": tool_call_id, "name": name}
    fields = {field: value for field, value in given.items() if value}
    held = content if content is None or isinstance(content, str) else list(content)
    message = cast(Message, {"role": role, "content": held, **fields})
    if role != "system":
        check_message(message, where)
    elif strange := [part for part in held or () if not isinstance(part, str) and part.get("type") != "text"]:
        raise cannot_convert(where, strange[0], "adapter.system_is_text")
    return message


def text_part(text: str) -> TextPart:
    return {"type": "text", "text": text}


def image_part(url: str, detail: object = None) -> ImagePart:
    if detail is None:
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "image_url", "image_url": {"url": url, "detail": cast(Literal["auto", "low", "high"], detail)}}


def tool_call(identifier: object, name: object, arguments: object) -> ToolCall:
    """A call. It is checked together with its message."""
    function = {"name": name, "arguments": arguments}
    return cast(ToolCall, {"id": identifier, "type": "function", "function": function})


def tool_schema(name: str, description: str | None, parameters: Mapping[str, Any]) -> AnyTool:
    function = {"name": name, "description": description or "", "parameters": parameters}
    return {"type": "function", "function": function}


def join_text(content: str | Sequence[Part] | None) -> str:
    """The text of a message, without pictures."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n\n".join(part["text"] for part in content if part["type"] == "text")


def join_answer(texts: list[Part], calls: Sequence[ToolCall]) -> str | list[Part] | None:
    """The content of an answer: its text, or its parts where there are several; None for calls alone."""
    return texts if len(texts) > 1 else join_text(texts) or (None if calls else "")


def map_call_names(messages: Sequence[AnyMessage]) -> dict[str, str]:
    """The name of the tool of each call, by the call's id: some frameworks need it with the result."""
    return {call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()}


def parse_arguments(text: str) -> dict[str, Any] | None:
    """The arguments as a value, if writing them as JSON again loses nothing; otherwise None."""
    try:
        value = read_strict_json(text)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def decode_data_url(url: str, where: str) -> tuple[bytes, str]:
    """Bytes and media type of a `data:` URL."""
    head, _, data = url.partition(",")
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise MessageError("part.broken_base64", where=where, value=format_value(url)) from None
    if base64.b64encode(raw).decode() != data:
        raise MessageError("part.unusual_base64", where=where, value=format_value(url))
    return raw, head.removeprefix("data:").removesuffix(";base64")


def list_parts(message: AnyMessage) -> list[Part]:
    """The content of a message as parts, whichever form it has."""
    content: str | list[Part] | None = message["content"]
    if content is None:
        return []
    return [text_part(content)] if isinstance(content, str) else content


def is_thinking(block: Mapping[str, Any]) -> bool:
    """Whether a block is a model's thinking, in the form of any provider."""
    return block.get("type") in ("thinking", "redacted_thinking", "reasoning", "reasoning_content")
