"""What a request is made of, each piece with its origins, its cost and its JSON, made once and never again.

`Head` is what stands before the history (tools and system message); an `Entry` is one message. The last gate on
ownership and the guard on text that looks like lamina's own are here, because nothing is sent but what passes here.
"""

import copy
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

from lamina.assembly.checks import TOOL_NAME, check_message, fields_of
from lamina.assembly.fences import DEFAULT_MARK, WORDS, Fence, check_mark, check_trusted, guard_result, guard_words
from lamina.assembly.prompt import GROUP_OF, JOIN, check_lang, group_opening, ordered, segment_opening
from lamina.assembly.shares import Fitted
from lamina.assembly.tokens import (
    KNOWN,
    SHORT,
    compact,
    content_tokens,
    counter_name,
    per_message,
    text_tokens,
    tool_tokens,
)
from lamina.assembly.wire import openai_chunks
from lamina.errors import OwnerError, PromptError, ToolError, shown
from lamina.ports import Count
from lamina.types import (
    GROUPS,
    AnyMessage,
    AnyTool,
    Dropped,
    Form,
    Lang,
    Layer,
    Message,
    Segment,
    Span,
    Trust,
    text_hash,
)

FENCED: tuple[Trust, ...] = ("outside", "model")
"""Text that nobody vouches for, and text that a model made of it."""
Update = tuple[Fence, Layer, str]
"""A layer in front of the user's words, in its fence, and why it stands there."""
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
    system: tuple[Entry, ...]
    """One message, or one for each group of layers."""
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
    form: Form = "plain",
) -> Head:
    """Tools and system message from their layers, each with its segment."""
    return head_of([Fitted(layer) for layer in ordered(layers)], tools, count, owner, mark, lang, form)


def head_of(
    fitted: Sequence[Fitted],
    tools: Sequence[AnyTool],
    count: Count,
    owner: str | None,
    mark: str,
    lang: Lang,
    form: Form,
) -> Head:
    """The head from layers that are in order and in the form in which they go out."""
    check_lang(lang)
    check_mark(mark)
    tool_segments = _tool_segments(tools, count)
    messages: list[list[Span]] = []
    stable, before = 0, ""
    for number, one in enumerate(fitted):
        layer = one.layer
        admit(layer, owner, mark, lang, form)
        group = GROUP_OF[layer.name]
        fresh_group = not number or GROUP_OF[before] != group
        if not messages or (form == "split" and fresh_group):
            messages.append([])
        spans = messages[-1]
        opens = (JOIN if spans else "") + _opening(layer.name, before, fresh_group, lang, form)
        text = opens + layer_text(layer, mark)
        tokens = text_tokens(text, count) + (0 if spans else per_message(count))
        spans.append(Span(text, _segment(one, tokens, count)))
        if not layer.volatile and stable == number:
            stable = number + 1
        before = layer.name
    system = tuple(
        make_entry({"role": "system", "content": "".join(span.text or "" for span in spans)}, tuple(spans))
        for spans in messages
    )
    tokens = sum(entry.tokens for entry in system) + sum(segment.tokens for segment in tool_segments)
    return Head(tuple(map(compact, tools)), tuple(tool_segments), system, stable, tokens)


def layer_text(layer: Layer, mark: str) -> str:
    """A layer as the model sees it: what nobody vouches for stands in a fence."""
    return Fence(layer.text, layer.source).render(mark) if layer.trust in FENCED else layer.text


def _opening(name: str, before: str, fresh_group: bool, lang: Lang, form: Form) -> str:
    """What stands in front of a layer: the heading of its group, or the opening of the segments that have one."""
    if name in ("tools", "state"):
        return segment_opening(name, lang) if before != name else ""
    return group_opening(GROUP_OF[name], lang) if fresh_group and form != "plain" else ""


def _segment(one: Fitted, tokens: int, count: Count) -> Segment:
    layer, name = one.layer, counter_name(count)
    reason = one.reason or ("always kept, fenced" if layer.trust in FENCED else "always kept")
    version = text_hash(layer.text)
    return Segment(layer.name, layer.source, version, layer.owner, layer.trust, tokens, name, one.decision, reason)


def admit(layer: Layer, owner: str | None, mark: str, lang: Lang, form: Form = "plain") -> None:
    """The last gate, wherever a layer will stand: what belongs to somebody else does not go out, and trusted text,
    which is not fenced, holds nothing that only lamina writes."""
    _check_owner(layer, owner)
    if layer.trust in FENCED:
        return
    where = f"the layer {layer.name} of {layer.source}"
    check_trusted(layer.text, where, mark, lang)
    if form != "plain":
        _check_headings(layer.text, where, lang)
    if layer.name != "state" and re.search(r"<system_hint\s|</system_hint", layer.text):
        raise PromptError(f"{where} holds a <system_hint> tag", hint="hints stand in the layer state; fence other text")


def _check_headings(text: str, where: str, lang: Lang) -> None:
    for group in GROUPS:
        heading = group_opening(group, lang).strip()
        if group and f"\n{heading}\n" in f"\n{text}\n":
            raise PromptError(f"{where} holds the heading {shown(heading)}", hint="give that heading another name")


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
    if len(message) == 2 and isinstance(message["content"], str):  # role and content: nearly all
        return cast(Message, guarded(dict(message), mark))
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


def update_fence(layer: Layer, change: str) -> Fence:
    """Data that is simply new needs no more than its source; anything else says which layer it changes, and how."""
    if layer.trust in FENCED and change == "added":
        return Fence(layer.text, layer.source)
    kind = "data" if layer.trust in FENCED else "layer"
    return Fence(layer.text, layer.source, kind, (("layer", layer.name), ("change", change)))


def again_update(layer: Layer) -> Update:
    """A layer that stands once more in front of the user's words although nothing changed."""
    return update_fence(layer, "again"), layer, "sent again, lest it fades"


def user_entry(
    user: str | Sequence[Mapping[str, Any]],
    count: Count,
    owner: str | None,
    mark: str = DEFAULT_MARK,
    updates: Sequence[Update] = (),
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
    content = message["content"]
    if len(message) == 2 and isinstance(content, str) and len(content) <= SHORT and next(iter(message)) == "role":
        chunk, version = _written(message["role"], content)
    else:
        chunk = f",{compact(message)}".encode()
        version = hashlib.sha256(chunk[1:]).hexdigest()
    trust, name = MESSAGE_TRUST[message["role"]], counter_name(count)
    segment = Segment("history", source, version, owner, trust, tokens, name, "kept", "fits the budget")
    return Entry(cast(Message, message), (Span(None, segment),), tokens, (chunk,))


@lru_cache(KNOWN)
def _written(role: str, content: str) -> tuple[bytes, str]:
    """A plain message as it is sent, and its version: the same on every turn that it stays in the window."""
    chunk = f",{compact({'role': role, 'content': content})}".encode()
    return chunk, hashlib.sha256(chunk[1:]).hexdigest()


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
