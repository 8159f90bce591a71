"""Layers, history and the user's message in; a context with its receipt out. One call, no ritual."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from lamina.assembly.checks import check_message
from lamina.assembly.fences import DEFAULT_MARK, Fence, check_trusted, guard_words
from lamina.assembly.messages import StartOn, check_start_on, longest_suffix, tokens_before
from lamina.assembly.prompt import JOIN, Lang, ordered, segment_opening
from lamina.assembly.tokens import (
    check_budget,
    compact,
    content_tokens,
    counter_name,
    estimate_message_tokens,
    per_message,
    per_request,
    text_tokens,
    tool_tokens,
)
from lamina.assembly.wire import Tiles, openai_chunks, write_tools
from lamina.errors import MessageError, OwnerError, ToolError, shown
from lamina.ports import Count
from lamina.types import (
    AnyMessage,
    AnyTool,
    Context,
    Dropped,
    Layer,
    Layout,
    Message,
    Receipt,
    Segment,
    Span,
    Trust,
    text_hash,
)

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

    tools: tuple[AnyTool, ...]
    tool_segments: tuple[Segment, ...]
    system: Entry | None
    stable: int
    tokens: int


def assemble(
    layers: Sequence[Layer] = (),
    *,
    history: Sequence[AnyMessage] = (),
    user: str | Sequence[Mapping[str, Any]] | None = None,
    budget: float,
    count: Count = estimate_message_tokens,
    tools: Sequence[AnyTool] = (),
    start_on: StartOn = "user",
    owner: str | None = None,
    mark: str = DEFAULT_MARK,
    lang: Lang = "en",
) -> Context:
    """Everything that one request holds, within `budget`, and the receipt for it.

    The system message and the current turn always stay: `user`, or, without it, the history from its last
    user message on. Of the rest the longest legal suffix that fits is kept.
    """
    budget = check_budget(budget, "budget")
    check_start_on(start_on)
    head = build_head(layers, tools, count=count, owner=owner, mark=mark, lang=lang)
    if user is not None:
        current = [user_entry(user, count, owner, mark)]
        before: Sequence[AnyMessage] = history
    else:
        before, tail = split_turn(history)
        longest_suffix(tail, float("inf"), count)
        current = [history_entry(m, f"history[{len(before) + n}]", count, owner) for n, m in enumerate(tail)]
    fixed = head.tokens + sum(entry.tokens for entry in current) + per_request(count)
    start, _ = longest_suffix(before, budget - fixed, count, start_on)
    kept = [history_entry(before[i], f"history[{i}]", count, owner) for i in range(start, len(before))]
    dropped = Dropped(start, tokens_before(before, start, count))
    left_out = [left_out_segment(f"history[0:{start}]", dropped.tokens, count, "over the budget")] if start else []
    return build_context(head, [*kept, *current], left_out, budget=budget, count=count, dropped=dropped)


def split_turn(history: Sequence[AnyMessage]) -> tuple[Sequence[AnyMessage], Sequence[AnyMessage]]:
    """The history before the current turn, and the current turn: from the last user message on."""
    for index in range(len(history) - 1, -1, -1):
        check_message(history[index], f"history[{index}]")
        if history[index]["role"] == "user":
            return history[:index], history[index:]
    raise MessageError("there is no user message to answer", hint="give user=…, or a history with a user message")


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
    name = counter_name(count)
    tool_segments = _tool_segments(tools, count, name)
    spans: list[Span] = []
    stable = 0
    kept = ordered(layers)
    for number, layer in enumerate(kept):
        check_owner(layer, owner)
        opens = layer.name in ("tools", "state") and (number == 0 or kept[number - 1].name != layer.name)
        text = (JOIN if number else "") + (segment_opening(layer.name, lang) if opens else "") + layer_text(layer, mark)
        tokens = text_tokens(text, count) + (0 if number else per_message(count))
        reason = "fenced: text from outside" if layer.trust == "outside" else "layer"
        spans.append(
            Span(text, Segment(layer.name, layer.source, text_hash(layer.text), layer.owner, layer.trust, tokens, name,
                               "kept", reason))
        )  # fmt: skip
        if not layer.volatile and stable == number:
            stable = number + 1
    text = "".join(span.text or "" for span in spans)
    system = make_entry({"role": "system", "content": text}, tuple(spans)) if spans else None
    tokens = (system.tokens if system else 0) + sum(segment.tokens for segment in tool_segments)
    return Head(tuple(tools), tuple(tool_segments), system, stable, tokens)


def layer_text(layer: Layer, mark: str) -> str:
    """A layer's text as it is sent: fenced when it comes from outside, else as it is."""
    if layer.trust == "outside":
        return Fence(layer.text, layer.source).render(mark)
    check_trusted(layer.text, f"the layer {layer.name} of {layer.source}", mark)
    return layer.text


def check_owner(layer: Layer, owner: str | None) -> None:
    """The last gate: what belongs to somebody else does not go out."""
    if layer.owner is not None and layer.owner != owner:
        raise OwnerError(
            f"the layer {layer.name} from {layer.source} belongs to {shown(layer.owner)}, the turn to {shown(owner)}",
            hint="this is a bug in whatever gathered the layers; nothing was sent",
        )


def _tool_segments(tools: Sequence[AnyTool], count: Count, name: str) -> list[Segment]:
    segments: list[Segment] = []
    for number, tool in enumerate(tools):
        function: Any = tool.get("function") if isinstance(tool, Mapping) else None  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        if not isinstance(function, Mapping) or not all(
            isinstance(cast(Mapping[str, Any], function).get(key), str) for key in ("name", "description")
        ):
            raise ToolError(
                f"tools[{number}] has no name and description: {shown(tool)}",
                hint='{"type": "function", "function": {"name": …, "description": …, "parameters": …}}',
            )
        text = compact(tool)
        function = cast(Mapping[str, Any], function)
        segments.append(
            Segment("tools", f"tool:{function['name']}", text_hash(text), None, "operator",
                    tool_tokens([tool], count), name, "kept", "schema")
        )  # fmt: skip
    return segments


def user_entry(
    user: str | Sequence[Mapping[str, Any]],
    count: Count,
    owner: str | None,
    mark: str = DEFAULT_MARK,
    updates: Sequence[tuple[Fence, Layer, str]] = (),
) -> Entry:
    """The user's message; updates that stand in front of the words are spans of their own.

    Words that hold the session's mark are fenced, so that they cannot pass for an update.
    """
    guarded = guard_words(user, mark) if isinstance(user, str) else [_guard_part(part, mark) for part in user]
    check_message({"role": "user", "content": guarded}, "user")
    each, name = per_message(count), counter_name(count)
    spans: list[Span] = []
    for fence, layer, reason in updates:
        text = fence.render(mark) + (JOIN if isinstance(guarded, str) else "")
        tokens = text_tokens(text, count) + (0 if spans else each)
        version = text_hash(layer.text)
        segment = Segment(layer.name, layer.source, version, layer.owner, layer.trust, tokens, name, "kept", reason)
        spans.append(Span(text, segment))
    words = cast(Message, {"role": "user", "content": guarded})
    tokens = content_tokens(words, count) + (0 if spans else each)
    version = text_hash(guarded if isinstance(guarded, str) else compact(guarded))
    last = Segment("user", "user", version, owner, "user", tokens, name, "kept", "the newest message")
    if isinstance(guarded, str):
        content: Any = "".join(span.text or "" for span in spans) + guarded
        return make_entry({"role": "user", "content": content}, (*spans, Span(guarded, last)))
    content = [*({"type": "text", "text": span.text} for span in spans), *guarded]
    return make_entry({"role": "user", "content": content}, (*spans, Span(None, last)))


def _guard_part(part: Mapping[str, Any], mark: str) -> Mapping[str, Any]:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        guarded = guard_words(part["text"], mark)
        return part if guarded is part["text"] else {**part, "text": guarded}
    return part


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


def left_out_segment(source: str, tokens: int, count: Count, reason: str) -> Segment:
    """One segment without bytes for all the history that was left out."""
    return Segment("history", source, "", None, "user", tokens, counter_name(count), "dropped", reason)


def build_context(
    head: Head,
    entries: Sequence[Entry],
    left_out: Sequence[Segment],
    *,
    budget: float,
    count: Count,
    dropped: Dropped,
    layout: Layout = "strict",
    epoch: int = 0,
    epoch_reason: str = "",
) -> Context:
    """Lay the tiles and sum up."""
    everything = [head.system, *entries] if head.system else list(entries)
    extra = per_request(count)
    if extra:
        first = everything[0]
        dearer = first.spans[0].segment._replace(tokens=first.spans[0].segment.tokens + extra)
        everything[0] = replace(first, spans=(Span(first.spans[0].text, dearer), *first.spans[1:]))
    tiles = Tiles()
    tiles.open("{")
    if head.tools:
        write_tools(tiles, '"tools":[', zip(map(compact, head.tools), head.tool_segments, strict=True))
    tiles.open('"messages":[')
    pieces = [(entry.chunks, entry.spans) for entry in everything]
    if head.system:
        tiles.lay(pieces[:1])
    tiles.notes(left_out)
    tiles.lay(pieces[1:] if head.system else pieces)
    tiles.close("]}")
    tokens = head.tokens + sum([entry.tokens for entry in entries]) + extra
    receipt = Receipt(
        segments=tuple(tiles.segments),
        chunks=tuple(tiles.chunks),
        tokens=tokens,
        budget=budget,
        counter=counter_name(count),
        dropped=dropped,
        over_budget=tokens > budget,
        layout=layout,
        epoch=epoch,
        epoch_reason=epoch_reason,
    )
    messages = [entry.message for entry in everything]
    return Context(messages, list(head.tools), receipt, tuple([entry.spans for entry in everything]), head.stable)
