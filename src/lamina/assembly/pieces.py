"""What a request is made of, each piece with its origins, its cost and its JSON, made once and never again.

`Head` is everything before the history (tools and system message); an `Entry` is one message. Layers are put in their
order here, and this is the last gate on ownership and fences: nothing is sent that did not pass it. What is fenced is
decided by where it comes from: every result of a tool, every layer that the operator does not vouch for.
"""

import copy
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, cast, get_args

from lamina.assembly.budget import OVER_BUDGET, FittedLayer
from lamina.assembly.fences import (
    JOIN,
    Fence,
    check_lang,
    check_mark,
    check_trusted,
    guard_words,
    holds_mark,
    render_result,
    segment_opening,
    unguard_words,
)
from lamina.assembly.history import TOOL_NAME, check_message, fields_of
from lamina.assembly.tokens import (
    CACHED_TEXTS,
    MAX_CACHED_CHARACTERS,
    compact,
    content_tokens,
    counter_name,
    per_message,
    text_tokens,
    tool_tokens,
)
from lamina.assembly.wire_openai import message_chunks
from lamina.errors import LayerError, OwnerError, PromptError, ToolError, format_value
from lamina.ports import Count
from lamina.text.messages import Phrase
from lamina.text.unicode import check_unicode, encode_text
from lamina.types import (
    GROUPS,
    LAYERS,
    AnyMessage,
    AnyTool,
    Dropped,
    Form,
    Lang,
    Layer,
    Message,
    Segment,
    SegmentDecision,
    Span,
    Trust,
    text_hash,
)

GROUP_OF = {name: group for group, (names, _) in GROUPS.items() for name in names}
TRUSTS = get_args(Trust)
FENCED: tuple[Trust, ...] = ("outside", "model")
"""Text that nobody vouches for, and text that a model made of it."""
MESSAGE_TRUST: dict[str, Trust] = {"user": "user", "assistant": "model", "tool": "outside"}
THIS_TURN = "turn"
"""The change of a layer that is sent with one turn and says nothing about the others."""
ALWAYS_KEPT, FENCED_REASON = Phrase("reason.always_kept"), Phrase("reason.fenced")
FITS, NEWEST, CURRENT_TURN = Phrase("reason.fits"), Phrase("reason.newest"), Phrase("reason.current_turn")
REPEATED, ONE_TURN = Phrase("reason.repeated"), Phrase("reason.one_turn")
STARTS_WITH_USER = Phrase("reason.starts_with_user")
MODE_HINTS = {
    "agent": "Mode: agent\nWork on the task step by step with the tools you have, and say what you did.",
    "plan": "Mode: plan\nOnly plan: say what you would do and in which order. Change nothing.",
    "ask": "Mode: ask\nAnswer the question directly. Do not begin work that was not asked for.",
}
_HINT_TAG = re.compile(r"<system_hint\s|</system_hint")


@dataclass(frozen=True, slots=True)
class PromptStyle:
    """Whose request it is, and how its text is written: the mark of its fences, the language and form of headings."""

    mark: str
    owner: str | None = None
    lang: Lang = "en"
    form: Form = "plain"

    def __post_init__(self) -> None:
        check_mark(self.mark)
        check_lang(self.lang)


@dataclass(frozen=True, slots=True)
class Entry:
    """One message with its origins, its cost and its JSON, a chunk for each origin."""

    message: Message
    spans: tuple[Span, ...]
    tokens: int
    chunks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Head:
    """Everything before the history: tools and the system message."""

    tools: tuple[str, ...]
    """Their JSON."""
    tool_segments: tuple[Segment, ...]
    system: tuple[Entry, ...]
    """One message, or one for each group of layers."""
    stable: int
    tokens: int


class LayerUpdate(NamedTuple):
    """What is said of a layer in front of a message, and why: it was added, is replaced, is gone, comes again, or is
    for one turn alone."""

    change: str
    layer: Layer
    reason: Phrase


def mode_hint(mode: str) -> str:
    """The hint of a mode (P4)."""
    if mode not in MODE_HINTS:
        raise LayerError("tool.no_such_mode", mode=format_value(mode), known=list(MODE_HINTS), hint="tool.modes")
    return MODE_HINTS[mode]


def assemble_system_prompt(
    *,
    global_identity: str,
    user_rules: str | None = None,
    skill_system_prompt: str | None = None,
    mode_hint: str | None = None,
    memory_overlay: str | None = None,
    context_overlay: str | None = None,
) -> str:
    """Identity, rules, skill, mode, memory, context in this order, joined by a blank line (P1).

    A layer that is None, empty or only white space is skipped (P2); the others keep their bytes (P3).
    """
    layers = {
        "global_identity": global_identity,
        "user_rules": user_rules,
        "skill_system_prompt": skill_system_prompt,
        "mode_hint": mode_hint,
        "memory_overlay": memory_overlay,
        "context_overlay": context_overlay,
    }
    for name, text in layers.items():
        if text is not None:
            _check_layer_text(text, name)
    return JOIN.join(text for text in layers.values() if text and not text.isspace())


def assemble_segments(
    *, static: str, tool_notes: str = "", runtime_hints: Sequence[str] = (), lang: Lang = "en"
) -> str:
    """Static instructions, tool notes and runtime hints as one prompt (S1); the last two vanish when empty."""
    if isinstance(runtime_hints, str):
        raise LayerError("prompt.hints_not_list", where="runtime_hints")
    check_lang(lang)
    hints = JOIN.join(hint for hint in runtime_hints if hint and not hint.isspace())
    pieces = [static]
    pieces += [segment_opening("tools", lang) + tool_notes] if tool_notes and not tool_notes.isspace() else []
    pieces += [segment_opening("state", lang) + hints] if hints else []
    for text in pieces:
        _check_layer_text(text, Phrase("place.prompt_segment"))
    return JOIN.join(piece for piece in pieces if piece and not piece.isspace())


def _check_layer_text(text: object, where: str | Phrase) -> None:
    if not isinstance(text, str):
        raise LayerError("text.not_text", where=where, type=type(text).__name__, value=format_value(text))
    check_unicode(text, where)


def order_layers(layers: Sequence[Layer]) -> list[Layer]:
    """The layers that have text, in the fixed order; those of one name keep the order they came in."""
    if isinstance(layers, str) or not isinstance(layers, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise LayerError("layer.not_list", type=type(layers).__name__, value=format_value(layers))
    for number, layer in enumerate(layers):
        _check_layer(layer, f"layers[{number}]")
    kept = [layer for layer in layers if layer.text and not layer.text.isspace()]
    return sorted(kept, key=lambda layer: LAYERS.index(layer.name))


def _check_layer(layer: Layer, where: str) -> None:
    if not isinstance(layer, Layer):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise LayerError("layer.not_layer", where=where, type=type(layer).__name__, value=format_value(layer))
    if layer.name not in LAYERS:
        raise LayerError("layer.unknown_name", where=where, name=format_value(layer.name), known=LAYERS)
    if layer.trust not in TRUSTS:  # a slip here would leave text from outside without its fence
        raise LayerError("layer.unknown_trust", where=where, name=format_value(layer.trust), known=TRUSTS)
    if not isinstance(layer.source, str) or not isinstance(layer.owner, str | None):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise LayerError(
            "layer.bad_origin", where=where, source=format_value(layer.source), owner=format_value(layer.owner)
        )
    check_unicode(layer.source, f"{where}.source")
    _check_layer_text(layer.text, Phrase("place.layer", layer=layer.name, source=layer.source))


def group_opening(group: str, lang: Lang = "en") -> str:
    """The heading of a group of layers."""
    return f"# {GROUPS[group][1][lang]}\n\n"


def build_head(fitted: Sequence[FittedLayer], tools: Sequence[AnyTool], count: Count, style: PromptStyle) -> Head:
    """Tools and system message, from layers that are in order and in the form in which they are sent."""
    tool_segments = _tool_segments(tools, count)
    messages: list[list[Span]] = []
    stable, before = 0, ""
    for number, (layer, decision, reason) in enumerate(fitted):
        admit_layer(layer, style)
        opens_group = not number or GROUP_OF[before] != GROUP_OF[layer.name]
        if not messages or (style.form == "split" and opens_group):
            messages.append([])
        spans = messages[-1]
        opening = (JOIN if spans else "") + _layer_opening(layer.name, before, opens_group, style)
        text = opening + layer_text(layer, style.mark)
        tokens = text_tokens(text, count) + (0 if spans else per_message(count))
        reason = reason or (ALWAYS_KEPT if layer.trust == "operator" else FENCED_REASON)
        spans.append(Span(text, layer_segment(layer, tokens, count, decision, reason)))
        if not layer.volatile and stable == number:
            stable = number + 1
        before = layer.name
    system = tuple(
        _make_entry({"role": "system", "content": "".join(span.text or "" for span in spans)}, tuple(spans))
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


def layer_segment(layer: Layer, tokens: int, count: Count, decision: SegmentDecision, reason: Phrase) -> Segment:
    version, counter = text_hash(layer.text), counter_name(count)
    return Segment(layer.name, layer.source, version, layer.owner, layer.trust, tokens, counter, decision, reason)


def _layer_opening(name: str, before: str, opens_group: bool, style: PromptStyle) -> str:
    """The text in front of a layer: the heading of its group, or the opening of the segments that have one."""
    if name in ("tools", "state"):
        return segment_opening(name, style.lang) if before != name else ""
    return group_opening(GROUP_OF[name], style.lang) if opens_group and style.form != "plain" else ""


def admit_layer(layer: Layer, style: PromptStyle) -> None:
    """The last gate, wherever a layer will be: what belongs to another owner is not sent, and the operator's text,
    which is not fenced, holds nothing that only lamina writes."""
    if layer.owner is not None and layer.owner != style.owner:
        raise OwnerError(
            "layer.wrong_owner",
            layer=layer.name,
            source=layer.source,
            owner=format_value(layer.owner),
            expected=format_value(style.owner),
        )
    if layer.trust != "operator":
        return
    where = Phrase("place.layer", layer=layer.name, source=layer.source)
    check_trusted(layer.text, where, style.mark, style.lang)
    for group in GROUPS if style.form != "plain" else ():
        heading = group_opening(group, style.lang).strip()
        if group and f"\n{heading}\n" in f"\n{layer.text}\n":
            raise PromptError("prompt.reserved_heading", where=where, heading=format_value(heading))
    if layer.name != "state" and _HINT_TAG.search(layer.text):
        raise PromptError("prompt.hint_tag", where=where)


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


def _tool_segments(tools: Sequence[AnyTool], count: Count) -> list[Segment]:
    """A segment for each tool. What a counter adds once for all tools is in the first one's tokens."""
    check_tools(tools)
    costs = [tool_tokens([tool], count) for tool in tools]
    shared = sum(costs) - tool_tokens(tools, count)
    segments: list[Segment] = []
    for number, (tool, cost) in enumerate(zip(tools, costs, strict=True)):
        if number:
            part = shared // (len(tools) - number)
            cost, shared = cost - part, shared - part
        source, version = f"tool:{tool['function']['name']}", text_hash(compact(tool))
        segments.append(
            Segment("tools", source, version, None, "operator", cost, counter_name(count), "kept", ALWAYS_KEPT)
        )
    return segments


def copy_message(message: AnyMessage, mark: str) -> Message:
    """A checked message as lamina keeps it: its own, guarded, without fields that say nothing."""
    if len(message) == 2 and isinstance(message["content"], str):  # role and content: nearly all
        return cast(Message, guard_message(dict(message), mark))
    kept = {name: value for name, value in message.items() if value or name == "content"}
    plain = isinstance(kept["content"], str) and "tool_calls" not in kept
    return cast(Message, guard_message(kept if plain else copy.deepcopy(kept), mark))


def copy_out(message: Message) -> Message:
    """A message for the caller: changing it changes nothing here."""
    plain = isinstance(message["content"], str) and "tool_calls" not in message
    return message.copy() if plain else copy.deepcopy(message)


def guard_message(message: AnyMessage, mark: str) -> AnyMessage:
    """A message whose text cannot pass for lamina's own: a tool's result in its fence, other text as it is unless it
    holds the mark."""
    content, role = message.get("content"), str(message.get("role"))
    if isinstance(content, str):
        safe = render_result(content, mark) if role == "tool" else guard_words(content, mark, role)
        return message if safe is content else {**message, "content": safe}
    if isinstance(content, list | tuple):
        parts = cast(Sequence[object], content)
        words = "".join(str((fields_of(part) or {}).get("text", "")) for part in parts)  # a tag may be split over parts
        if role == "tool" or holds_mark(words, mark):
            return {**message, "content": [_guard_part(part, mark, role) for part in parts]}
    return message


def _guard_part(part: object, mark: str, role: str) -> object:
    fields = fields_of(part) or {}
    text = fields.get("text")
    if not isinstance(text, str):
        return part
    safe = render_result(text, mark) if role == "tool" else guard_words(text, mark, role, always=True)
    return {**fields, "text": safe}


def unguard_message(message: Message, mark: str) -> Message:
    """The message of which `guard_message` made this one; not for the results of tools."""
    content = message["content"]
    if isinstance(content, str):
        return cast(Message, {**message, "content": unguard_words(content, mark)})
    parts: list[Any] = [
        {**part, "text": unguard_words(part["text"], mark)} if part["type"] == "text" else part
        for part in content or ()
    ]
    return cast(Message, {**message, "content": parts or None})


def find_repeats(repeat: Sequence[Layer], layers: Sequence[Layer]) -> list[LayerUpdate]:
    """What is sent in front of the user's words, each with its change and the reason: a layer of the request once more,
    although nothing changed, or one of this turn alone, such as a phase prompt."""
    known = {(layer.name, layer.source) for layer in layers}
    return [
        LayerUpdate("again", layer, REPEATED)
        if (layer.name, layer.source) in known
        else LayerUpdate(THIS_TURN, layer, ONE_TURN)
        for layer in repeat
    ]


def _update_fence(layer: Layer, change: str) -> Fence:
    """Data that is simply new needs no more than its source; anything else says which layer it changes, and how."""
    if layer.trust in FENCED and change == "added":
        return Fence(layer.text, layer.source)
    kind = "data" if layer.trust in FENCED else "layer"
    return Fence(layer.text, layer.source, kind, (("layer", layer.name), ("change", change)))


def _make_entry(message: Message, spans: tuple[Span, ...]) -> Entry:
    return Entry(message, spans, sum(span.segment.tokens for span in spans), message_chunks(message, spans))


def user_entry(
    user: str | Sequence[Mapping[str, Any]], count: Count, style: PromptStyle, updates: Sequence[LayerUpdate] = ()
) -> Entry:
    """The user's message, which was checked where it came in; updates in front of the words are spans of their own."""
    words = copy_message({"role": "user", "content": user if isinstance(user, str) else list(user)}, style.mark)
    content = cast("str | list[Any]", words["content"])
    each = per_message(count)
    spans: list[Span] = []
    for change, layer, reason in updates:
        text = _update_fence(layer, change).render(style.mark) + (JOIN if isinstance(content, str) else "")
        tokens = text_tokens(text, count) + (0 if spans else each)
        spans.append(Span(text, layer_segment(layer, tokens, count, "kept", reason)))
    tokens = content_tokens(words, count) + (0 if spans else each)
    version = text_hash(content if isinstance(content, str) else compact(content))
    last = Segment("user", "user", version, style.owner, "user", tokens, counter_name(count), "kept", NEWEST)
    if isinstance(content, str):
        whole: Any = "".join(span.text or "" for span in spans) + content
        return _make_entry({"role": "user", "content": whole}, (*spans, Span(content, last)))
    whole = [*({"type": "text", "text": span.text} for span in spans), *content]
    return _make_entry({"role": "user", "content": whole}, (*spans, Span(None, last)))


def history_entry(
    message: AnyMessage, source: str, count: Count, owner: str | None, tokens: int | None = None
) -> Entry:
    """A message of the history: one origin, one chunk. With `tokens` it has been checked and counted before."""
    if tokens is None:
        check_message(message, source)
        tokens = content_tokens(message, count) + per_message(count)
    content = message["content"]
    plain = len(message) == 2 and isinstance(content, str) and next(iter(message)) == "role"
    if plain and len(content) <= MAX_CACHED_CHARACTERS:
        chunk, version = _encode_plain(message["role"], content)
    else:
        chunk = encode_text(f",{compact(message)}")
        version = hashlib.sha256(chunk[1:]).hexdigest()
    trust, name = MESSAGE_TRUST[message["role"]], counter_name(count)
    segment = Segment("history", source, version, owner, trust, tokens, name, "kept", FITS)
    return Entry(cast(Message, message), (Span(None, segment),), tokens, (chunk,))


@lru_cache(CACHED_TEXTS)
def _encode_plain(role: str, content: str) -> tuple[bytes, str]:
    """A plain message as it is sent, and its version: the same on every turn that it stays in the window."""
    chunk = encode_text(f",{compact({'role': role, 'content': content})}")
    return chunk, hashlib.sha256(chunk[1:]).hexdigest()


def mark_current(entry: Entry) -> Entry:
    """A message of the history as part of the turn that is answered now: it stays whatever the budget."""
    *updates, (text, segment) = entry.spans
    named = entry.message["role"] == "user"
    segment = segment._replace(layer="user" if named else segment.layer, reason=NEWEST if named else CURRENT_TURN)
    return replace(entry, spans=(*updates, Span(text, segment)))


def mark_history(entry: Entry, source: str) -> Entry:
    """The newest message becomes part of the history; the updates in front of it stay what they were."""
    *updates, (text, words) = entry.spans
    if words.layer != "user":
        return entry
    return replace(entry, spans=(*updates, Span(text, words._replace(layer="history", source=source, reason=FITS))))


def dropped_history(
    dropped: Dropped, kept: int, budget: float, count: Count, why: Phrase = OVER_BUDGET
) -> list[Segment]:
    """One segment without bytes for all the history that was left out, as trusted as the least of it."""
    if not dropped.count:
        return []
    if kept + dropped.tokens <= budget:
        why = STARTS_WITH_USER
    source = f"history[0:{dropped.count}]"
    return [Segment("history", source, "", None, "outside", dropped.tokens, counter_name(count), "dropped", why)]
