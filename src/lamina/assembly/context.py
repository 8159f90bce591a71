"""Layers, history and the user's message in; a context with its receipt out. One call, no ritual."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lamina.assembly.checks import check_message
from lamina.assembly.entries import (
    Entry,
    Head,
    admit,
    as_current,
    before_words,
    fresh,
    head_of,
    history_entry,
    layer_text,
    left_out,
    own_copy,
    update_fence,
    user_entry,
)
from lamina.assembly.fences import check_mark
from lamina.assembly.messages import StartOn, check_history, check_start_on, longest_suffix
from lamina.assembly.prompt import GROUP_OF, JOIN, group_opening, ordered
from lamina.assembly.shares import HISTORY, OVER_BUDGET, Fitted, check_shares, fit_layers
from lamina.assembly.tokens import (
    check_budget,
    check_counter,
    counter_name,
    estimate_message_tokens,
    message_tokens,
    per_request,
    text_tokens,
    tool_tokens,
)
from lamina.assembly.wire import Tiles, write_tools
from lamina.errors import MessageError
from lamina.ports import Count
from lamina.text.messages import NOTHING, Phrase
from lamina.types import (
    AnyMessage,
    AnyTool,
    Context,
    Dropped,
    Form,
    Lang,
    Layer,
    Layout,
    Receipt,
    Segment,
    Share,
    Span,
    text_hash,
)


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
    mark: str | None = None,
    lang: Lang = "en",
    form: Form = "plain",
    shares: Mapping[str, Share] | None = None,
    skipped: Mapping[str, str | Phrase] | None = None,
    older: int = 0,
    repeat: Sequence[Layer] = (),
    since: Sequence[AnyMessage] = (),
) -> Context:
    """Everything that one request holds, within `budget`, and the receipt for it. `mark` makes the tags of fences.

    The system message and the current turn always stay: `user`, or, without it, the history from its last
    user message on. Of the rest the longest legal suffix that fits is kept. With `shares`, layers that take more than
    theirs give way (`shares`); `skipped` are layers that are not there, and why; `older` counts messages that were not
    even read; `repeat` are layers that are sent in front of the user's words: those of the request once more, and
    others; `since` is what the turn has added behind the user's words: calls and their results.
    """
    budget, mark = check_budget(budget, "budget"), check_mark(mark)
    check_start_on(start_on)
    check_counter(count)
    check_shares(shares or {})
    history = [_checked_copy(message, older + number, mark) for number, message in enumerate(check_history(history))]
    front = before_words(ordered(repeat), ordered(layers)) if repeat else []
    updates = [(update_fence(layer, change), layer, reason) for change, layer, reason in front]
    for _, layer, _ in updates:
        admit(layer, owner, mark, lang, form)
    if user is not None:
        added = _since(since, older + len(history), count, owner, mark)
        current = [user_entry(user, count, owner, mark, updates), *added]
        before: Sequence[AnyMessage] = history
    else:
        before, tail = split_turn(history)
        longest_suffix(tail, float("inf"), count)
        first = older + len(before)
        current = [as_current(history_entry(m, f"history[{first + n}]", count, owner)) for n, m in enumerate(tail)]
    spent = sum(entry.tokens for entry in current) + per_request(count)
    costs = [message_tokens(message, count) for message in before]
    kept_back = for_history(before, costs, shares, budget, count) if shares is not None else 0
    head, fitted = fit_head(
        layers, tools, spent + kept_back, shares=shares, budget=budget, count=count, owner=owner, mark=mark, lang=lang,
        form=form,
    )  # fmt: skip
    fixed = head.tokens + spent
    start, used = longest_suffix(before, budget - fixed, count, start_on, costs)
    numbers = range(start, len(before))
    kept = [history_entry(before[n], f"history[{older + n}]", count, owner, costs[n]) for n in numbers]
    dropped = Dropped(older + start, sum(costs[:start]))
    why = Phrase("reason.over_budget_unread", n=older) if older else OVER_BUDGET
    gone = [*absent(fitted, phrases(skipped or {}), count, mark), *left_out(dropped, fixed + used, budget, count, why)]
    return build_context(head, [*kept, *current], gone, budget=budget, count=count, dropped=dropped)


def _since(messages: Sequence[AnyMessage], first: int, count: Count, owner: str | None, mark: str) -> list[Entry]:
    """What a turn has added, as part of it: calls with their results, all of which stay."""
    own = [_checked_copy(message, first + number, mark) for number, message in enumerate(check_history(messages))]
    longest_suffix([{"role": "user", "content": "…"}, *own], float("inf"), count)
    return [as_current(history_entry(m, f"history[{first + 1 + n}]", count, owner)) for n, m in enumerate(own)]


def for_history(
    before: Sequence[AnyMessage], costs: Sequence[int], shares: Mapping[str, Share], budget: float, count: Count
) -> float:
    """What the layers leave to the history: its least share, or all of it if that is less."""
    least = shares.get(HISTORY, Share()).least * budget
    start, used = longest_suffix(before, least, count, costs=costs) if least else (0, 0)
    return used if not start else least


def fit_head(
    layers: Sequence[Layer],
    tools: Sequence[AnyTool],
    spent: float,
    *,
    shares: Mapping[str, Share] | None,
    budget: float,
    count: Count,
    owner: str | None,
    mark: str,
    lang: Lang,
    form: Form,
) -> tuple[Head, list[Fitted]]:
    """Tools and system message with what fits of the layers, and what became of each. `spent` is what the current turn
    costs and what is kept back for the history."""
    fitted = [Fitted(layer) for layer in ordered(layers)]
    if shares is not None:
        room = budget - spent - tool_tokens(tools, count)
        fitted = fit_shares(fitted, budget, room, shares, count, mark, lang, form)
    sent = [one for one in fitted if one.decision != "dropped"]
    return head_of(sent, tools, count, owner, mark, lang, form), fitted


def fit_shares(
    fitted: Sequence[Fitted],
    budget: float,
    room: float,
    shares: Mapping[str, Share],
    count: Count,
    mark: str,
    lang: Lang,
    form: Form,
) -> list[Fitted]:
    def cost(layer: Layer) -> int:
        return text_tokens(JOIN + layer_text(layer, mark), count)

    def heading(name: str) -> int:
        return text_tokens(JOIN + group_opening(GROUP_OF[name], lang), count) if form != "plain" else 0

    layers = [one.layer for one in fitted]
    return fit_layers(layers, budget=budget, room=room, shares=shares, cost=cost, heading=heading)


def phrases(skipped: Mapping[str, str | Phrase]) -> dict[str, Phrase]:
    """Why layers are not there; a caller may say it in words of its own."""
    return {source: Phrase.of(why) for source, why in skipped.items()}


def absent(fitted: Sequence[Fitted], skipped: Mapping[str, Phrase], count: Count, mark: str) -> list[Segment]:
    """A segment without bytes for each layer that is not there, with the reason."""
    name = counter_name(count)
    out = [
        Segment(source.partition(":")[0], source, "", None, "operator", 0, name, "dropped", why)
        for source, why in skipped.items()
    ]
    for layer, decision, reason in fitted:
        if decision == "dropped":
            tokens = text_tokens(layer_text(layer, mark), count)
            out.append(Segment(layer.name, layer.source, text_hash(layer.text), layer.owner, layer.trust, tokens, name,
                               "dropped", reason))  # fmt: skip
    return out


def _checked_copy(message: AnyMessage, number: int, mark: str) -> AnyMessage:
    check_message(message, f"history[{number}]")
    return own_copy(message, mark)


def context_again(receipt: Receipt) -> Context:
    """A context whose bytes are known already: those of a request that was sent once."""
    return Context([], [], receipt, ())


def split_turn(history: Sequence[AnyMessage]) -> tuple[Sequence[AnyMessage], Sequence[AnyMessage]]:
    """The history before the current turn, and the current turn: from the last user message on."""
    for index in range(len(history) - 1, -1, -1):
        check_message(history[index], f"history[{index}]")
        if history[index]["role"] == "user":
            return history[:index], history[index:]
    raise MessageError("message.nothing_to_answer")


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
    epoch_reason: Phrase = NOTHING,
) -> Context:
    """Lay the tiles and sum up. `factor` is what the provider's usage has taught about the counter."""
    everything = [*head.system, *entries]
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
    before = len(head.system)
    if before:
        tiles.lay(pieces[:before])
    tiles.notes(gone)
    tiles.lay(pieces[before:])
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
