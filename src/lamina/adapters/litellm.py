"""LiteLLM: a wrapper around `completion`, `acompletion` or a router's; its messages to lamina's and back.

LiteLLM's messages have OpenAI's form already, so LiteLLM is not imported, which would take seconds. Fields that its
message objects add for bookkeeping are left out; what would be sent without being counted is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, cast, get_args

from lamina.adapters.plan import KEEP_THINKING, Piece, Plan, cannot_convert, make_message
from lamina.text.messages import Phrase
from lamina.types import AnyMessage, Message, Part, Role

Given = ParamSpec("Given")
Answer = TypeVar("Answer")
CARRIED = ("role", "content", "name", "tool_calls", "tool_call_id")
THINKING = ("reasoning_content", "thinking_blocks", "reasoning_items")
BOOKKEEPING = ("provider_specific_fields", "annotations", "cache_control")
"""What LiteLLM records about an answer, and the mark of a prompt cache."""


def to_lamina(messages: Sequence[Any]) -> list[Message]:
    """LiteLLM's messages, mappings or its own objects, in lamina's form."""
    return [piece.message for piece in convert_pieces(messages)]


def from_lamina(messages: Sequence[AnyMessage]) -> list[dict[str, Any]]:
    """Messages of lamina as LiteLLM takes them: the same fields, in dicts of their own."""
    return [dict(message) for message in messages]


def with_context(plan: Plan, completion: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """`completion` with its `messages` fitted: `complete = with_context(plan, litellm.completion)`."""

    def complete(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        given = list(args)
        if "messages" not in kwargs and len(given) < 2:
            raise cannot_convert(Phrase("place.call"), sorted(kwargs), "adapter.give_messages")
        messages = cast("Sequence[Any]", kwargs["messages"] if "messages" in kwargs else given[1])
        tools = cast("Sequence[Mapping[str, Any]]", kwargs.get("tools") or ())
        fitted = fit_messages(plan, messages, tools)
        if "messages" in kwargs:
            kwargs["messages"] = fitted
        else:
            given[1] = fitted
        return cast("Callable[..., Answer]", completion)(*given, **kwargs)

    return complete


def fit_messages(plan: Plan, messages: Sequence[Any], tools: Sequence[Mapping[str, Any]] = ()) -> list[Any]:
    """The messages to send: one system message of all layers, then what fits."""
    context, kept = plan.fit(convert_pieces(messages, plan.keep_thinking), source="litellm", tools=tools)
    system = [{"role": "system", "content": context.system}] if context.system else []
    own = (
        {**_as_mapping(one.origin, ""), "content": one.message["content"]} if one.changed else one.origin
        for one in kept
    )
    return [*system, *own]


def convert_pieces(messages: Sequence[Any], keep_thinking: bool = False) -> list[Piece[Any]]:
    """Each message in lamina's form, with the message itself."""
    if isinstance(messages, str) or not isinstance(messages, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise cannot_convert(Phrase("place.call"), messages, "adapter.give_messages")
    return [
        Piece(_convert_message(message, f"messages[{n}]", keep_thinking), message) for n, message in enumerate(messages)
    ]


def _convert_message(message: Any, where: str, keep_thinking: bool) -> Message:
    fields = _as_mapping(message, where)
    given = "system" if fields.get("role") == "developer" else fields.get("role")
    if given not in get_args(Role):
        raise cannot_convert(f"{where}.role", given, "adapter.known_roles")
    role = cast(Role, given)
    for name, value in fields.items():
        if name in CARRIED or name in BOOKKEEPING or not value or (keep_thinking and name in THINKING):
            continue
        raise cannot_convert(f"{where}.{name}", value, KEEP_THINKING if name in THINKING else "")
    called: Any = fields.get("tool_calls") or ()
    if not isinstance(called, Sequence):
        raise cannot_convert(f"{where}.tool_calls", called, "adapter.calls_are_list")
    fields_of_calls = [_as_mapping(call, where) for call in cast("Sequence[Any]", called)]
    # Streaming leaves an index in a call.
    calls: Any = [{name: value for name, value in each.items() if name != "index"} for each in fields_of_calls]
    content = _convert_content(fields.get("content"), role, where)
    answered, name = fields.get("tool_call_id"), fields.get("name")
    words = content if content or not calls else None
    return make_message(role, words, where, tool_calls=calls, tool_call_id=answered, name=name)


def _convert_content(content: object, role: Role, where: str) -> str | list[Part] | None:
    """Text or parts; a picture may be written as its bare address. An answer that is None is empty."""
    if isinstance(content, str):
        return content
    if content is None:
        return "" if role == "assistant" else None
    if not isinstance(content, Sequence):
        raise cannot_convert(f"{where}.content", content, "adapter.content_forms")
    return [_convert_part(part) for part in cast("Sequence[Any]", content)]


def _convert_part(part: Any) -> Part:
    if isinstance(part, Mapping):
        fields = {name: value for name, value in cast("Mapping[str, Any]", part).items() if name != "cache_control"}
        image = fields.get("image_url")
        return cast(Part, {**fields, "image_url": {"url": image}} if isinstance(image, str) else fields)
    return cast(Part, part)


def _as_mapping(value: Any, where: str) -> Mapping[str, Any]:
    """A mapping, or one of LiteLLM's own objects as one."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    if not hasattr(value, "model_dump"):
        raise cannot_convert(where, value, "adapter.litellm_messages")
    return value.model_dump()
