"""Layers, history and the user's message in; a context with its receipt out. One call, no ritual."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lamina.assembly.checks import check_message
from lamina.assembly.entries import (
    Entry,
    Head,
    as_current,
    build_head,
    fresh,
    history_entry,
    left_out,
    own_copy,
    user_entry,
)
from lamina.assembly.fences import DEFAULT_MARK
from lamina.assembly.messages import StartOn, check_history, check_start_on, longest_suffix, tokens_before
from lamina.assembly.tokens import check_budget, check_counter, counter_name, estimate_message_tokens, per_request
from lamina.assembly.wire import Tiles, write_tools
from lamina.errors import MessageError
from lamina.ports import Count
from lamina.types import AnyMessage, AnyTool, Context, Dropped, Lang, Layer, Layout, Receipt, Segment, Span


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
    check_counter(count)
    history = [_own(message, number, mark) for number, message in enumerate(check_history(history))]
    head = build_head(layers, tools, count=count, owner=owner, mark=mark, lang=lang)
    if user is not None:
        current = [user_entry(user, count, owner, mark)]
        before: Sequence[AnyMessage] = history
    else:
        before, tail = split_turn(history)
        longest_suffix(tail, float("inf"), count)
        current = [
            as_current(history_entry(m, f"history[{len(before) + n}]", count, owner)) for n, m in enumerate(tail)
        ]
    fixed = head.tokens + sum(entry.tokens for entry in current) + per_request(count)
    start, used = longest_suffix(before, budget - fixed, count, start_on)
    kept = [history_entry(before[i], f"history[{i}]", count, owner) for i in range(start, len(before))]
    dropped = Dropped(start, tokens_before(before, start, count))
    gone = left_out(dropped, fixed + used, budget, count)
    return build_context(head, [*kept, *current], gone, budget=budget, count=count, dropped=dropped)


def _own(message: AnyMessage, number: int, mark: str) -> AnyMessage:
    check_message(message, f"history[{number}]")
    return own_copy(message, mark)


def split_turn(history: Sequence[AnyMessage]) -> tuple[Sequence[AnyMessage], Sequence[AnyMessage]]:
    """The history before the current turn, and the current turn: from the last user message on."""
    for index in range(len(history) - 1, -1, -1):
        check_message(history[index], f"history[{index}]")
        if history[index]["role"] == "user":
            return history[:index], history[index:]
    raise MessageError("there is no user message to answer", hint="give user=…, or a history with a user message")


def build_context(
    head: Head,
    entries: Sequence[Entry],
    gone: Sequence[Segment],
    *,
    budget: float,
    count: Count,
    dropped: Dropped,
    factor: float = 1.0,
    layout: Layout = "strict",
    epoch: int = 0,
    epoch_reason: str = "",
) -> Context:
    """Lay the tiles and sum up. `factor` is what the provider's usage has taught about the counter."""
    everything = [head.system, *entries] if head.system else list(entries)
    extra = per_request(count)
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
    if head.system:
        tiles.lay(pieces[:1])
    tiles.notes(gone)
    tiles.lay(pieces[1:] if head.system else pieces)
    tiles.close("]}")
    tokens = head.tokens + sum([entry.tokens for entry in entries]) + extra
    receipt = Receipt(
        segments=tuple(tiles.segments),
        chunks=tuple(tiles.chunks),
        tokens=tokens,
        budget=budget,
        counter=counter_name(count) + ("" if factor == 1.0 else f"×{factor:.3g}"),
        dropped=dropped,
        over_budget=tokens * factor > budget,
        layout=layout,
        epoch=epoch,
        epoch_reason=epoch_reason,
    )
    messages = [fresh(entry.message) for entry in everything]
    tools = [json.loads(tool) for tool in head.tools]
    return Context(messages, tools, receipt, tuple([entry.spans for entry in everything]), head.stable)
