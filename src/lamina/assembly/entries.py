"""What a request is made of, each piece with its origins, its cost and its JSON, made once and never again.

`Head` is what stands before the history (tools and system message); an `Entry` is one message. The last gate on
ownership and the fences are here, because nothing is sent but what passes here. What is fenced is decided by where it
comes from: every result of a tool, every layer that the operator does not vouch for.
"""

import copy
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

from lamina.assembly.checks import TOOL_NAME, check_message, fields_of
from lamina.assembly.fences import Fence, check_mark, check_trusted, guard_words, holds_mark, unguard_words
from lamina.assembly.prompt import GROUP_OF, JOIN, check_lang, group_opening, ordered, segment_opening
from lamina.assembly.results import render_result
from lamina.assembly.shares import OVER_BUDGET, Fitted
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
from lamina.errors import OwnerError, PromptError, ToolError, format_value
from lamina.ports import Count
from lamina.text.messages import Phrase
from lamina.text.unicode import encode_text
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

ALWAYS_KEPT, FENCED_REASON = Phrase("reason.always_kept"), Phrase("reason.fenced")
FITS, NEWEST, CURRENT_TURN = Phrase("reason.fits"), Phrase("reason.newest"), Phrase("reason.current_turn")
REPEATED, ONE_TURN = Phrase("reason.repeated"), Phrase("reason.one_turn")
STARTS_WITH_USER = Phrase("reason.starts_with_user")
THIS_TURN = "turn"
"""The change of a layer that is sent with one turn and says nothing about the others."""
FENCED: tuple[Trust, ...] = ("outside", "model")
"""Text that nobody vouches for, and text that a model made of it."""
Update = tuple[Fence, Layer, Phrase]
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
    mark: str,
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
    """A layer as the model sees it: what the operator does not vouch for is in a fence. What nobody vouches for is
    data; a user's or a caller's own words are meant to be followed, and the fence says as which layer."""
    if layer.trust == "operator":
        return layer.text
    if layer.trust in FENCED:
        return Fence(layer.text, layer.source).render(mark)
    return Fence(layer.text, layer.source, "layer", (("layer", layer.name),)).render(mark)


def _opening(name: str, before: str, fresh_group: bool, lang: Lang, form: Form) -> str:
    """What stands in front of a layer: the heading of its group, or the opening of the segments that have one."""
    if name in ("tools", "state"):
        return segment_opening(name, lang) if before != name else ""
    return group_opening(GROUP_OF[name], lang) if fresh_group and form != "plain" else ""


def _segment(one: Fitted, tokens: int, count: Count) -> Segment:
    layer, name = one.layer, counter_name(count)
    reason = one.reason or (ALWAYS_KEPT if layer.trust == "operator" else FENCED_REASON)
    version = text_hash(layer.text)
    return Segment(layer.name, layer.source, version, layer.owner, layer.trust, tokens, name, one.decision, reason)


def admit(layer: Layer, owner: str | None, mark: str, lang: Lang, form: Form = "plain") -> None:
    """The last gate, wherever a layer will stand: what belongs to somebody else does not go out, and the operator's
    text, which is not fenced, holds nothing that only lamina writes."""
    _check_owner(layer, owner)
    if layer.trust != "operator":
        return
    where = Phrase("place.layer", layer=layer.name, source=layer.source)
    check_trusted(layer.text, where, mark, lang)
    if form != "plain":
        _check_headings(layer.text, where, lang)
    if layer.name != "state" and re.search(r"<system_hint\s|</system_hint", layer.text):
        raise PromptError("prompt.hint_tag", where=where)


def _check_headings(text: str, where: Phrase, lang: Lang) -> None:
    for group in GROUPS:
        heading = group_opening(group, lang).strip()
        if group and f"\n{heading}\n" in f"\n{text}\n":
            raise PromptError("prompt.reserved_heading", where=where, heading=format_value(heading))


def _check_owner(layer: Layer, owner: str | None) -> None:
    if layer.owner is not None and layer.owner != owner:
        raise OwnerError(
            "layer.wrong_owner",
            layer=layer.name,
            source=layer.source,
            owner=format_value(layer.owner),
            expected=format_value(owner),
        )


def check_tools(tools: Sequence[AnyTool]) -> None:
    """Refuse tools that no provider would take."""
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise ToolError("tool.schemas_not_list", value=format_value(tools))
    names: set[str] = set()
    for number, tool in enumerate(tools):
        name = _check_tool(tool, f"tools[{number}]")
        if name in names:
            raise ToolError("tool.repeated_name", where=f"tools[{number}]", name=format_value(name))
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
            Segment("tools", source, version, None, "operator", cost, counter_name(count), "kept", ALWAYS_KEPT)
        )
    return segments


def _check_tool(tool: object, where: str) -> str:
    fields = fields_of(tool) or {}
    function = fields_of(fields.get("function")) or {}
    name, description = function.get("name"), function.get("description")
    schema = fields_of(function.get("parameters", {"type": "object"})) or {}
    if schema.get("type") != "object" or fields_of(schema.get("properties", {})) is None:
        raise ToolError("tool.bad_parameters", where=where, value=format_value(tool))
    if not isinstance(name, str) or not isinstance(description, str) or fields.get("type") != "function":
        raise ToolError("tool.bad_schema", where=where, value=format_value(tool))
    if not TOOL_NAME.fullmatch(name):
        raise ToolError("tool.bad_name_at", where=where, name=format_value(name), hint="tool.bad_name.hint")
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
    """A message whose text cannot pass for lamina's own: a tool's result in its fence, anybody else's words as they
    are unless they hold the mark."""
    content, role = message.get("content"), str(message.get("role"))
    if isinstance(content, str):
        safe = render_result(content, mark) if role == "tool" else guard_words(content, mark, role)
        return message if safe is content else {**message, "content": safe}
    if isinstance(content, list | tuple):
        parts = cast(Sequence[object], content)
        words = "".join(str((fields_of(part) or {}).get("text", "")) for part in parts)  # a tag may be split over parts
        if role == "tool" or holds_mark(words, mark):
            return {**message, "content": [_fenced_part(part, mark, role) for part in parts]}
    return message


def _fenced_part(part: object, mark: str, role: str) -> object:
    fields = fields_of(part) or {}
    text = fields.get("text")
    if not isinstance(text, str):
        return part
    safe = render_result(text, mark) if role == "tool" else guard_words(text, mark, role, always=True)
    return {**fields, "text": safe}


def unguarded(message: Message, mark: str) -> Message:
    """The message of which `guarded` made this one; not for the results of tools."""
    content = message["content"]
    if isinstance(content, str):
        return cast(Message, {**message, "content": unguard_words(content, mark)})
    parts = [{**part, "text": unguard_words(part["text"], mark)} if part["type"] == "text" else part
             for part in content or ()]  # fmt: skip
    return cast(Message, {**message, "content": parts or None})


def update_fence(layer: Layer, change: str) -> Fence:
    """Data that is simply new needs no more than its source; anything else says which layer it changes, and how."""
    if layer.trust in FENCED and change == "added":
        return Fence(layer.text, layer.source)
    kind = "data" if layer.trust in FENCED else "layer"
    return Fence(layer.text, layer.source, kind, (("layer", layer.name), ("change", change)))


def before_words(repeat: Sequence[Layer], layers: Sequence[Layer]) -> list[tuple[str, Layer, Phrase]]:
    """What is sent in front of the user's words, each with its change and the reason: a layer of the request once more,
    although nothing changed, or one of this turn alone, such as a phase prompt."""
    known = {(layer.name, layer.source) for layer in layers}
    return [
        ("again", layer, REPEATED) if (layer.name, layer.source) in known else (THIS_TURN, layer, ONE_TURN)
        for layer in repeat
    ]


def user_entry(
    user: str | Sequence[Mapping[str, Any]],
    count: Count,
    owner: str | None,
    mark: str,
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
    last = Segment("user", "user", version, owner, "user", tokens, name, "kept", NEWEST)
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
        chunk = encode_text(f",{compact(message)}")
        version = hashlib.sha256(chunk[1:]).hexdigest()
    trust, name = MESSAGE_TRUST[message["role"]], counter_name(count)
    segment = Segment("history", source, version, owner, trust, tokens, name, "kept", FITS)
    return Entry(cast(Message, message), (Span(None, segment),), tokens, (chunk,))


@lru_cache(KNOWN)
def _written(role: str, content: str) -> tuple[bytes, str]:
    """A plain message as it is sent, and its version: the same on every turn that it stays in the window."""
    chunk = encode_text(f",{compact({'role': role, 'content': content})}")
    return chunk, hashlib.sha256(chunk[1:]).hexdigest()


def as_current(entry: Entry) -> Entry:
    """A message of the history as part of the turn that is answered now: it stays whatever the budget."""
    *updates, (text, segment) = entry.spans
    named = entry.message["role"] == "user"
    segment = segment._replace(layer="user" if named else segment.layer, reason=NEWEST if named else CURRENT_TURN)
    return replace(entry, spans=(*updates, Span(text, segment)))


def left_out(dropped: Dropped, kept: int, budget: float, count: Count, why: Phrase = OVER_BUDGET) -> list[Segment]:
    """One segment without bytes for all the history that was left out, as trusted as the least of it."""
    if not dropped.count:
        return []
    if kept + dropped.tokens <= budget:
        why = STARTS_WITH_USER
    source = f"history[0:{dropped.count}]"
    return [Segment("history", source, "", None, "outside", dropped.tokens, counter_name(count), "dropped", why)]
