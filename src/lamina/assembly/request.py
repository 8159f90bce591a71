"""Layers, history and the user's message in; a context with its receipt out, as the request of any grammar.

One call, no ritual. The bytes are laid as tiles, each with its origin (`receipt`), and the request that a caller gets
is read back from these bytes: there is no second way to build one.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lamina.assembly.budget import HISTORY, OVER_BUDGET, Budget, FittedLayer, fit_layers
from lamina.assembly.fences import JOIN
from lamina.assembly.grammar import validate
from lamina.assembly.history import check_history, check_message, longest_suffix
from lamina.assembly.pieces import (
    GROUP_OF,
    Entry,
    Head,
    PromptStyle,
    admit_layer,
    build_head,
    copy_message,
    copy_out,
    dropped_history,
    find_repeats,
    group_opening,
    history_entry,
    layer_segment,
    layer_text,
    mark_current,
    order_layers,
    user_entry,
)
from lamina.assembly.receipt import Tiles
from lamina.assembly.tokens import counter_name, message_tokens, per_request, text_tokens, tool_tokens
from lamina.assembly.wire_anthropic import write_anthropic
from lamina.assembly.wire_gemini import write_gemini
from lamina.assembly.wire_openai import write_tools
from lamina.errors import MessageError, format_value
from lamina.ports import Count
from lamina.text.json import read_json
from lamina.text.messages import NOTHING, Phrase
from lamina.text.unicode import decode_text
from lamina.types import (
    AnyMessage,
    AnyTool,
    Context,
    Dropped,
    Grammar,
    Layer,
    Layout,
    Receipt,
    Segment,
    Share,
    Span,
)

Words = str | Sequence[Mapping[str, Any]]
"""What a user says: text, or parts with text and pictures."""
Writer = Callable[[Tiles, Context, Sequence[Segment], Sequence[Segment]], None]
WRITERS: dict[Grammar, Writer] = {"anthropic": write_anthropic, "gemini": write_gemini}
"""Who writes a context in another grammar than OpenAI's, in which it is built."""
GRAMMARS: tuple[Grammar, ...] = ("openai", *WRITERS)


def assemble(
    layers: Sequence[Layer],
    history: Sequence[AnyMessage],
    user: Words | None,
    *,
    budget: Budget,
    style: PromptStyle,
    tools: Sequence[AnyTool] = (),
    skipped: Mapping[str, str | Phrase] | None = None,
    older: int = 0,
    repeat: Sequence[Layer] = (),
    since: Sequence[AnyMessage] = (),
) -> Context:
    """Everything that one request holds, within its budget, and the receipt for it.

    The system message and the current turn always stay: `user`, or, without it, the history from its last user message
    on. Of the rest the longest legal suffix that fits is kept. `skipped` are layers that are not there, and why;
    `older` counts messages that were not even read; `repeat` are layers that are sent in front of the user's words:
    those of the request once more, and others; `since` is what the turn has added behind the user's words: calls and
    their results.
    """
    count = budget.count
    history = _own_messages(history, older, style.mark)
    updates = find_repeats(order_layers(repeat), order_layers(layers)) if repeat else []
    for update in updates:
        admit_layer(update.layer, style)
    if user is not None:
        current = [user_entry(user, count, style, updates)]
        current += _turn_entries(since, older + len(history), count, style) if since else []
        before: Sequence[AnyMessage] = history
    else:
        before, tail = _split_turn(history)
        longest_suffix(tail, float("inf"), count)
        current = _current_entries(tail, older + len(before), count, style)
    spent = sum(entry.tokens for entry in current) + per_request(count)
    costs = [message_tokens(message, count) for message in before]
    head, fitted = fit_head(layers, tools, spent + room_kept_back(before, costs, budget), budget, style)
    fixed = head.tokens + spent
    start, used = longest_suffix(before, budget.tokens - fixed, count, budget.start_on, costs)
    kept = [
        history_entry(before[n], f"history[{older + n}]", count, style.owner, costs[n])
        for n in range(start, len(before))
    ]
    dropped = Dropped(older + start, sum(costs[:start]))
    why = Phrase("reason.over_budget_unread", n=older) if older else OVER_BUDGET
    notes = absent_layers(fitted, skipped, count, style.mark)
    notes += dropped_history(dropped, fixed + used, budget.tokens, count, why)
    return build_context(head, [*kept, *current], notes, budget=budget, dropped=dropped)


def _own_messages(messages: Sequence[AnyMessage], first: int, mark: str) -> list[AnyMessage]:
    """Copies of messages that were checked; `first` is the number of the first one, for errors."""
    found: list[AnyMessage] = []
    for number, message in enumerate(check_history(messages), first):
        check_message(message, f"history[{number}]")
        found.append(copy_message(message, mark))
    return found


def _turn_entries(messages: Sequence[AnyMessage], first: int, count: Count, style: PromptStyle) -> list[Entry]:
    """What a turn has added, as part of it: calls with their results, all of which stay."""
    own = _own_messages(messages, first, style.mark)
    longest_suffix([{"role": "user", "content": "…"}, *own], float("inf"), count)
    return _current_entries(own, first + 1, count, style)


def _current_entries(messages: Sequence[AnyMessage], first: int, count: Count, style: PromptStyle) -> list[Entry]:
    return [
        mark_current(history_entry(message, f"history[{number}]", count, style.owner))
        for number, message in enumerate(messages, first)
    ]


def _split_turn(history: Sequence[AnyMessage]) -> tuple[Sequence[AnyMessage], Sequence[AnyMessage]]:
    """The history before the current turn, and the current turn: from the last user message on."""
    for index in range(len(history) - 1, -1, -1):
        if history[index]["role"] == "user":
            return history[:index], history[index:]
    raise MessageError("message.nothing_to_answer")


def room_kept_back(before: Sequence[AnyMessage], costs: Sequence[int], budget: Budget) -> float:
    """What the layers leave to the history: its least share, or all of it if that is less."""
    if not budget.shares:
        return 0
    least = budget.shares.get(HISTORY, Share()).least * budget.tokens
    start, used = longest_suffix(before, least, budget.count, costs=costs) if least else (0, 0)
    return used if not start else least


def fit_head(
    layers: Sequence[Layer], tools: Sequence[AnyTool], spent: float, budget: Budget, style: PromptStyle
) -> tuple[Head, list[FittedLayer]]:
    """Tools and system message with what fits of the layers, and what became of each. `spent` is what the current turn
    costs and what is kept back for the history."""
    room = budget.tokens - spent - (tool_tokens(tools, budget.count) if budget.shares is not None else 0)
    fitted = fit_shares(order_layers(layers), room, budget, style)
    return build_head([one for one in fitted if one.decision != "dropped"], tools, budget.count, style), fitted


def fit_shares(layers: Sequence[Layer], room: float, budget: Budget, style: PromptStyle) -> list[FittedLayer]:
    """Ordered layers, each in the form for which there is room."""

    def cost(layer: Layer) -> int:
        return text_tokens(JOIN + layer_text(layer, style.mark), budget.count)

    def heading(name: str) -> int:
        if style.form == "plain":
            return 0
        return text_tokens(JOIN + group_opening(GROUP_OF[name], style.lang), budget.count)

    if budget.shares is None:
        return [FittedLayer(layer) for layer in layers]
    return fit_layers(layers, budget, room, cost, heading)


def absent_layers(
    fitted: Sequence[FittedLayer], skipped: Mapping[str, str | Phrase] | None, count: Count, mark: str
) -> list[Segment]:
    """A segment without bytes for each layer that is not there, with the reason."""
    name = counter_name(count)
    segments = [
        Segment(source.partition(":")[0], source, "", None, "operator", 0, name, "dropped", Phrase.of(why))
        for source, why in (skipped or {}).items()
    ]
    for layer, decision, reason in fitted:
        if decision == "dropped":
            tokens = text_tokens(layer_text(layer, mark), count)
            segments.append(layer_segment(layer, tokens, count, "dropped", reason))
    return segments


def build_context(
    head: Head,
    entries: Sequence[Entry],
    notes: Sequence[Segment],
    *,
    budget: Budget,
    dropped: Dropped,
    factor: float = 1.0,
    layout: Layout = "strict",
    epoch: int = 0,
    epoch_reason: Phrase = NOTHING,
) -> Context:
    """Lay the tiles and sum up. `factor` is what the provider's usage has taught about the counter."""
    everything = [*head.system, *entries]
    extra = per_request(budget.count)
    if extra:
        first = everything[0]
        dearer = first.spans[0].segment._replace(tokens=first.spans[0].segment.tokens + extra)
        everything[0] = replace(first, spans=(Span(first.spans[0].text, dearer), *first.spans[1:]))
    tiles = Tiles()
    tiles.open("{")
    if head.tools:
        write_tools(tiles, '"tools":[', zip(head.tools, head.tool_segments, strict=True))
    tiles.open('"messages":[')
    pieces = [(entry.chunks, entry.spans) for entry in everything]
    before = len(head.system)
    if before:
        tiles.add_messages(pieces[:before])
    tiles.add_notes(notes)
    tiles.add_messages(pieces[before:])
    tiles.close("]}")
    tokens = head.tokens + sum([entry.tokens for entry in entries]) + extra
    receipt = Receipt(
        segments=tuple(tiles.segments),
        chunks=tuple(tiles.chunks),
        tokens=tokens,
        budget=budget.tokens,
        counter=counter_name(budget.count) + ("" if factor == 1.0 else f"×{factor:.3g}"),
        dropped=dropped,
        over_budget=tokens * factor > budget.tokens,
        layout=layout,
        epoch=epoch,
        epoch_reason=epoch_reason,
    )
    messages = [copy_out(entry.message) for entry in everything]
    tools = [json.loads(tool) for tool in head.tools]
    return Context(messages, tools, receipt, tuple([entry.spans for entry in everything]), head.stable)


def context_of_receipt(receipt: Receipt) -> Context:
    """A context whose bytes are known already: those of a request that was sent once."""
    return Context([], [], receipt, ())


def encode(context: Context, grammar: Grammar = "openai") -> Receipt:
    """The request of one grammar as bytes, and where each of them came from."""
    if grammar not in GRAMMARS:
        raise MessageError("grammar.unknown", name=format_value(grammar), known=GRAMMARS)
    if not isinstance(context, Context):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise MessageError("request.not_a_context", value=format_value(context))
    if grammar == context.receipt.grammar:
        return context.receipt
    dropped = [s for s in context.receipt.segments if s.decision == "dropped" and s.layer == HISTORY]
    # The bytes are what was proven, whatever became of the messages since.
    sent: dict[str, Any] = read_json(decode_text(context.receipt.payload))
    context = replace(context, messages=sent["messages"], tools=sent.get("tools", []))
    tiles = Tiles()
    WRITERS[grammar](tiles, context, context.receipt.segments[: len(context.tools)], dropped)
    problems = validate(read_json(decode_text(b"".join(tiles.chunks))), grammar)
    if problems:
        raise MessageError("grammar.refuses", grammar=grammar, problem=problems[0])
    return replace(
        context.receipt,
        segments=tuple(tiles.segments),
        chunks=tuple(tiles.chunks),
        tokens=sum(segment.tokens for segment in tiles.segments if segment.decision != "dropped"),
        grammar=grammar,
    )


def render(context: Context, grammar: Grammar = "openai") -> dict[str, Any]:
    """The request of one grammar as plain values, for any SDK: `client.messages.create(model=…, **render(…))`."""
    return json.loads(encode(context, grammar).payload)
