"""What a request is made of, each piece with its origins, its cost and its JSON, made once and never again.

`Head` is what stands before the history (tools and system message); an `Entry` is one message. The last gate on
ownership and the guard on text that looks like lamina's own are here, because nothing is sent but what passes here.
"""

import copy
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from lamina.assembly.checks import TOOL_NAME, check_message, fields_of
from lamina.assembly.fences import DEFAULT_MARK, WORDS, Fence, check_mark, check_trusted, guard_result, guard_words
from lamina.assembly.prompt import JOIN, check_lang, ordered, segment_opening
from lamina.assembly.tokens import compact, content_tokens, counter_name, per_message, text_tokens, tool_tokens
from lamina.assembly.wire import openai_chunks
from lamina.errors import OwnerError, PromptError, ToolError, shown
from lamina.ports import Count
from lamina.types import AnyMessage, AnyTool, Dropped, Lang, Layer, Message, Segment, Span, Trust, text_hash

FENCED: tuple[Trust, ...] = ("outside", "model")
"""Text that nobody vouches for, and text that a model made of it."""
MESSAGE_TRUST: dict[str, Trust] = {"user": "user", "assistant": "model", "tool": "outside"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One message with its origins, its cost and its JSON, a chunk for each origin: made once and never again."""

    message: Message
    spans: tuple[Span, ...]
    tokens: int
    chunks: tuple[bytes, ...]


def make_entry(message: Message, spans: tuple[Span, ...]) -> Entry:
    return Entry(message, spans, sum(span.segment.tokens for span in spans), openai_chunks(message, spans))


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the history: tools and the system message."""

    tools: tuple[str, ...]
    """Their JSON."""
    tool_segments: tuple[Segment, ...]
    system: Entry | None
    stable: int
    tokens: int


def build_head(
    layers: Sequence[Layer],
    tools: Sequence[AnyTool] = (),
    *,
    count: Count,
    owner: str | None = None,
    mark: str = DEFAULT_MARK,
    lang: Lang = "en",
) -> Head:
    """Tools and system message from their layers, each with its segment."""
    check_lang(lang)
    check_mark(mark)
    name = counter_name(count)
    tool_segments = _tool_segments(tools, count)
    spans: list[Span] = []
    stable = 0
    kept = ordered(layers)
    for number, layer in enumerate(kept):
        admit(layer, owner, mark, lang)
        opens = layer.name in ("tools", "state") and (number == 0 or kept[number - 1].name != layer.name)
        text = (
            (JOIN if number else "")
            + (segment_opening(layer.name, lang) if opens else "")
            + (Fence(layer.text, layer.source).render(mark) if layer.trust in FENCED else layer.text)
        )
        tokens = text_tokens(text, count) + (0 if number else per_message(count))
        reason = "always kept, fenced" if layer.trust in FENCED else "always kept"
        spans.append(
            Span(text, Segment(layer.name, layer.source, text_hash(layer.text), layer.owner, layer.trust, tokens, name,
                               "kept", reason))
        )  # fmt: skip
        if not layer.volatile and stable == number:
            stable = number + 1
    text = "".join(span.text or "" for span in spans)
    system = make_entry({"role": "system", "content": text}, tuple(spans)) if spans else None
    tokens = (system.tokens if system else 0) + sum(segment.tokens for segment in tool_segments)
    return Head(tuple(map(compact, tools)), tuple(tool_segments), system, stable, tokens)


def admit(layer: Layer, owner: str | None, mark: str, lang: Lang) -> None:
    """The last gate, wherever a layer will stand: what belongs to somebody else does not go out, and trusted text,
    which is not fenced, holds nothing that only lamina writes."""
    _check_owner(layer, owner)
    if layer.trust in FENCED:
        return
    where = f"the layer {layer.name} of {layer.source}"
    check_trusted(layer.text, where, mark, lang)
    if layer.name != "state" and re.search(r"<system_hint\s|</system_hint", layer.text):
        raise PromptError(f"{where} holds a <system_hint> tag", hint="hints stand in the layer state; fence other text")


def _check_owner(layer: Layer, owner: str | None) -> None:
    if layer.owner is not None and layer.owner != owner:
        raise OwnerError(
            f"the layer {layer.name} from {layer.source} belongs to {shown(layer.owner)}, the turn to {shown(owner)}",
            hint="this is a bug in whatever gathered the layers; nothing was sent",
        )


def check_tools(tools: Sequence[AnyTool]) -> None:
    """Refuse tools that no provider would take."""
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise ToolError(f"tools must be a list of schemas, not {shown(tools)}", hint="ToolRegistry(…).schemas is one")
    names: set[str] = set()
    for number, tool in enumerate(tools):
        name = _check_tool(tool, f"tools[{number}]")
        if name in names:
            raise ToolError(f"tools[{number}] is named {shown(name)}, and so is one before it")
        names.add(name)


def _tool_segments(tools: Sequence[AnyTool], count: Count) -> list[Segment]:
    """A segment for each tool. What a counter adds once for all tools is in the first one's tokens."""
    check_tools(tools)
    costs = [tool_tokens([tool], count) for tool in tools]
    shared = sum(costs) - tool_tokens(tools, count)
    segments: list[Segment] = []
    for number, (tool, cost) in enumerate(zip(tools, costs, strict=True)):
        if number:
            take = shared // (len(tools) - number)
            cost, shared = cost - take, shared - take
        source, version = f"tool:{tool['function']['name']}", text_hash(compact(tool))
        segments.append(
            Segment("tools", source, version, None, "operator", cost, counter_name(count), "kept", "always kept")
        )
    return segments


def _check_tool(tool: object, where: str) -> str:
    fields = fields_of(tool) or {}
    function = fields_of(fields.get("function")) or {}
    name, description = function.get("name"), function.get("description")
    schema = fields_of(function.get("parameters", {"type": "object"})) or {}
    if schema.get("type") != "object" or fields_of(schema.get("properties", {})) is None:
        raise ToolError(f"{where} has parameters that are no schema of an object: {shown(tool)}")
    if not isinstance(name, str) or not isinstance(description, str) or fields.get("type") != "function":
        raise ToolError(
            f"{where} has no type, name and description: {shown(tool)}",
            hint='{"type": "function", "function": {"name": …, "description": …, "parameters": …}}',
        )
    if not TOOL_NAME.fullmatch(name):
        raise ToolError(
            f"{where} is named {shown(name)}", hint="1 to 64 of A-Z, a-z, 0-9, _ and -, as providers want it"
        )
    return name


def own_copy(message: AnyMessage, mark: str) -> Message:
    """A checked message as lamina keeps it: its own, guarded, without fields that say nothing."""
    kept = {name: value for name, value in message.items() if value or name == "content"}
    plain = isinstance(kept["content"], str) and "tool_calls" not in kept
    return cast(Message, guarded(kept if plain else copy.deepcopy(kept), mark))


def fresh(message: Message) -> Message:
    """A message to hand out: changing it changes nothing here."""
    plain = isinstance(message["content"], str) and "tool_calls" not in message
    return message.copy() if plain else copy.deepcopy(message)


def guarded(message: AnyMessage, mark: str) -> AnyMessage:
    """A message whose text cannot pass for lamina's own; nearly always the message itself."""
    content: object = message.get("content")
    if message.get("role") == "tool" and isinstance(content, str):
        safe = guard_result(content, mark)
        return message if safe is content else {**message, "content": safe}
    if message.get("role") != "user":
        return message
    if isinstance(content, str):
        safe = guard_words(content, mark)
        return message if safe is content else {**message, "content": safe}
    if isinstance(content, list | tuple):
        parts = cast(Sequence[object], content)
        words = "".join(str((fields_of(part) or {}).get("text", "")) for part in parts)  # a tag may be split over parts
        safe = guard_words(words, mark)
        return message if safe is words else {**message, "content": [_fenced_part(part, mark) for part in parts]}
    return message


def _fenced_part(part: object, mark: str) -> object:
    fields = fields_of(part) or {}
    text = fields.get("text")
    return {**fields, "text": Fence(text, "user", attributes=WORDS).render(mark)} if isinstance(text, str) else part


def user_entry(
    user: str | Sequence[Mapping[str, Any]],
    count: Count,
    owner: str | None,
    mark: str = DEFAULT_MARK,
    updates: Sequence[tuple[Fence, Layer, str]] = (),
) -> Entry:
    """The user's message; updates that stand in front of the words are spans of their own."""
    check_message({"role": "user", "content": user}, "user")
    words = own_copy({"role": "user", "content": user if isinstance(user, str) else list(user)}, mark)
    content = cast("str | list[Any]", words["content"])
    each, name = per_message(count), counter_name(count)
    spans: list[Span] = []
    for fence, layer, reason in updates:
        text = fence.render(mark) + (JOIN if isinstance(content, str) else "")
        tokens = text_tokens(text, count) + (0 if spans else each)
        version = text_hash(layer.text)
        segment = Segment(layer.name, layer.source, version, layer.owner, layer.trust, tokens, name, "kept", reason)
        spans.append(Span(text, segment))
    tokens = content_tokens(words, count) + (0 if spans else each)
    version = text_hash(content if isinstance(content, str) else compact(content))
    last = Segment("user", "user", version, owner, "user", tokens, name, "kept", "the newest message")
    if isinstance(content, str):
        whole: Any = "".join(span.text or "" for span in spans) + content
        return make_entry({"role": "user", "content": whole}, (*spans, Span(content, last)))
    whole = [*({"type": "text", "text": span.text} for span in spans), *content]
    return make_entry({"role": "user", "content": whole}, (*spans, Span(None, last)))


def history_entry(
    message: AnyMessage, source: str, count: Count, owner: str | None, tokens: int | None = None
) -> Entry:
    """A message of the history: one origin, one chunk. With `tokens` it has been checked and counted before."""
    if tokens is None:
        check_message(message, source)
        tokens = content_tokens(message, count) + per_message(count)
    chunk = f",{compact(message)}".encode()
    version = hashlib.sha256(chunk[1:]).hexdigest()
    trust, name = MESSAGE_TRUST[message["role"]], counter_name(count)
    segment = Segment("history", source, version, owner, trust, tokens, name, "kept", "fits the budget")
    return Entry(cast(Message, message), (Span(None, segment),), tokens, (chunk,))


def as_current(entry: Entry) -> Entry:
    """A message of the history as part of the turn that is answered now: it stays whatever the budget."""
    *updates, (text, segment) = entry.spans
    named = entry.message["role"] == "user"
    segment = segment._replace(
        layer="user" if named else segment.layer, reason="the newest message" if named else "the current turn"
    )
    return replace(entry, spans=(*updates, Span(text, segment)))


def left_out(dropped: Dropped, kept: int, budget: float, count: Count, why: str = "over the budget") -> list[Segment]:
    """One segment without bytes for all the history that was left out, as trusted as the least of it."""
    if not dropped.count:
        return []
    if kept + dropped.tokens <= budget:
        why = "the history begins with a user message"
    source = f"history[0:{dropped.count}]"
    return [Segment("history", source, "", None, "outside", dropped.tokens, counter_name(count), "dropped", why)]
