"""What the model has seen, turn by turn: the two layouts, epochs and deltas.

`strict` rebuilds every request in the order of the layers. `ledger` lets what was sent stay where it was sent and
adds only what changed, in front of the newest message; when that no longer fits, a new epoch begins in order again.
A state machine without I/O: `prepare` decides and changes nothing, `sent` moves the state.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lamina.assembly.checks import check_message
from lamina.assembly.context import (
    Entry,
    Head,
    build_context,
    build_head,
    check_owner,
    history_entry,
    left_out_segment,
    user_entry,
)
from lamina.assembly.fences import DEFAULT_MARK, Fence
from lamina.assembly.messages import StartOn, check_start_on
from lamina.assembly.prompt import Lang, ordered
from lamina.assembly.tokens import check_budget, estimate_message_tokens, per_request
from lamina.assembly.window import CallTracker, check_low_water, room_for_history
from lamina.errors import LayerError, MessageError, shown
from lamina.ports import Count
from lamina.types import AnyMessage, AnyTool, Context, Dropped, Layer, Layout, Span, text_hash

RETRIEVED = ("memory", "collected", "summary")
"""Layers that were looked up: one that is not looked up again has not become untrue, so nothing is said of it."""
UNORDERED = ("scenario",)
"""Layers whose change begins a new epoch: what follows them depends on them."""
LOW_WATER = 0.4
"""How far a cut of the ledger goes down by default, as a share of the budget; why not 0.5: docs/benchmarks.md."""
NOTHING = Dropped(0, 0)
FIRST, CUT = "first request", "the window was cut"
GONE = {"en": "This no longer applies.", "zh": "以上内容不再适用。"}

Key = tuple[str, str]
Update = tuple[Fence, Layer, str]


@dataclass(frozen=True, slots=True)
class State:
    """What the model has seen so far. Entries and plain messages are of this epoch, side by side."""

    epoch: int = 0
    reason: str = ""
    head: Head | None = None
    seen: Mapping[Key, Layer] = field(default_factory=dict[Key, Layer])
    entries: tuple[Entry, ...] = ()
    plain: tuple[Entry, ...] = ()
    """The same messages without the updates that were sent in front of them: what a new epoch starts from."""
    tokens: int = 0
    """Of the entries."""
    dropped: Dropped = NOTHING


class Ledger:
    """One session's requests under a budget. For each turn: `prepare`, send, `sent`, then `append` the answer."""

    def __init__(
        self,
        *,
        budget: float,
        layout: Layout = "strict",
        low_water: float | None = None,
        history: Iterable[AnyMessage] = (),
        count: Count = estimate_message_tokens,
        start_on: StartOn = "user",
        owner: str | None = None,
        mark: str = DEFAULT_MARK,
        lang: Lang = "en",
    ) -> None:
        if layout not in ("strict", "ledger"):
            raise LayerError(f"no layout named {shown(layout)}", hint="layouts are strict and ledger")
        check_start_on(start_on)
        self.budget = check_budget(budget, "budget")
        self.layout: Layout = layout
        self.low_water = check_low_water(LOW_WATER if low_water is None and layout == "ledger" else low_water)
        self._count, self._owner, self._mark = count, owner, mark
        self._start_on: StartOn = start_on
        self._lang: Lang = lang
        self._state = State()
        self._calls = CallTracker()
        self._pending: tuple[Context, State] | None = None
        self._asked: str = ""
        for message in history:
            self._take(message)

    @property
    def epoch(self) -> int:
        return self._state.epoch

    def new_epoch(self, reason: str) -> None:
        """Begin a new epoch with the next request: after a compaction, or when something sent must not stay."""
        self._asked = reason

    def prepare(
        self,
        layers: Sequence[Layer] = (),
        *,
        user: str | Sequence[Mapping[str, Any]] | None = None,
        tools: Sequence[AnyTool] = (),
    ) -> Context:
        """The next request. Without `user` it goes on with the current turn, after tool results.

        Nothing changes until `sent`: a request whose sending failed is simply prepared again.
        """
        self._calls.check("the request")
        state = self._state
        reason = self._epoch_reason(state, layers, tools)
        if not reason:
            proposal = self._extended(state, layers, user)
            if self._cost(proposal) > self.budget:
                reason = CUT
            else:
                return self._propose(proposal)
        return self._propose(self._rebuilt(state, layers, tools, user, reason))

    def sent(self, context: Context) -> None:
        """The request was sent: the model has seen it."""
        if self._pending is None or self._pending[0] is not context:
            raise MessageError("this is not the request that was prepared last", hint="prepare, send, sent")
        state = self._pending[1]
        source = f"history[{state.dropped.count + len(state.entries) - 1}]"
        self._state = replace(
            state,
            entries=(*state.entries[:-1], _as_history(state.entries[-1], source)),
            plain=(*state.plain[:-1], _as_history(state.plain[-1], source)),
        )
        self._pending, self._asked = None, ""

    def append(self, message: AnyMessage) -> None:
        """Take in what came back: an answer, or the result of a tool."""
        if isinstance(message, Mapping) and message.get("role") == "user":  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise MessageError("append takes what came back", hint="a user message goes through prepare(user=…)")
        self._take(message)

    def _take(self, message: AnyMessage) -> None:
        state = self._state
        position = state.dropped.count + len(state.entries)
        check_message(message, f"message {position}")
        own = copy.deepcopy(dict(message))
        entry = history_entry(own, f"history[{position}]", self._count, self._owner)
        self._calls.take(own, f"message {position}")
        self._pending = None
        self._state = replace(
            state,
            entries=(*state.entries, entry),
            plain=(*state.plain, entry),
            tokens=state.tokens + entry.tokens,
        )

    def _epoch_reason(self, state: State, layers: Sequence[Layer], tools: Sequence[AnyTool]) -> str:
        if state.head is None:
            return FIRST
        if self._asked:
            return self._asked
        if self.layout == "strict":
            return "rebuilt"
        if list(state.head.tools) != list(tools):
            return "the tools changed"
        changed = [name for name in UNORDERED if _texts(state.seen.values(), name) != _texts(layers, name)]
        return f"the {changed[0]} changed" if changed else ""

    def _extended(self, state: State, layers: Sequence[Layer], user: str | Sequence[Mapping[str, Any]] | None) -> State:
        """The request before, and after it only what is new."""
        if user is None:
            return state
        now = ordered(layers)
        for layer in now:
            check_owner(layer, self._owner)
        updates = self._updates(state.seen, now)
        seen = {key: layer for key, layer in state.seen.items() if key in _keys(now) or layer.name in RETRIEVED}
        seen.update((_key(layer), layer) for layer in now)
        entry = user_entry(user, self._count, self._owner, self._mark, updates)
        plain = user_entry(user, self._count, self._owner, self._mark) if updates else entry
        return replace(
            state,
            seen=seen,
            entries=(*state.entries, entry),
            plain=(*state.plain, plain),
            tokens=state.tokens + entry.tokens,
        )

    def _updates(self, seen: Mapping[Key, Layer], now: Sequence[Layer]) -> list[Update]:
        """What differs from what the model has seen."""
        updates: list[Update] = []
        for layer in now:
            known = seen.get(_key(layer))
            if known is None:
                updates.append((_fence(layer, "added"), layer, "new since the epoch began"))
            elif known.text != layer.text:
                updates.append((_fence(layer, "replaces"), layer, f"replaces {text_hash(known.text)[:8]}"))
        current = _keys(now)
        for key, layer in seen.items():
            if key not in current and layer.name not in RETRIEVED:
                gone = Layer(layer.name, GONE[self._lang], layer.source, layer.owner)
                updates.append((_fence(gone, "removed"), gone, "no longer applies"))
        return updates

    def _rebuilt(
        self,
        state: State,
        layers: Sequence[Layer],
        tools: Sequence[AnyTool],
        user: str | Sequence[Mapping[str, Any]] | None,
        reason: str,
    ) -> State:
        """The layers in order, the history that fits, the current turn: how every epoch begins."""
        head = build_head(
            layers, tools, count=self._count, owner=self._owner, mark=self._mark, lang=self._lang
        )  # fmt: skip
        if user is None:
            turn = _last_user(state.plain)
            before, current = state.plain[:turn], state.plain[turn:]
        else:
            before, current = state.plain, (user_entry(user, self._count, self._owner, self._mark),)
        fixed = head.tokens + sum(entry.tokens for entry in current) + per_request(self._count)
        start = _cut_point(before, self.budget - fixed, self._start_on)
        if start or reason == CUT:
            start = _cut_point(before, room_for_history(self.budget, fixed, self.low_water), self._start_on)
        gone = sum(entry.tokens for entry in before[:start])
        entries = (*before[start:], *current)
        return State(
            epoch=state.epoch + (1 if self.layout == "ledger" or state.head is None else 0),
            reason=reason,
            head=head,
            seen={_key(layer): layer for layer in ordered(layers)},
            entries=entries,
            plain=entries,
            tokens=sum(entry.tokens for entry in entries),
            dropped=Dropped(state.dropped.count + start, state.dropped.tokens + gone),
        )

    def _cost(self, state: State) -> int:
        return (state.head.tokens if state.head else 0) + state.tokens + per_request(self._count)

    def _propose(self, state: State) -> Context:
        assert state.head is not None
        dropped = state.dropped
        why = "over the budget" if self.low_water is None else f"cut to {self.low_water:.0%} of the budget"
        source = f"history[0:{dropped.count}]"
        left_out = [left_out_segment(source, dropped.tokens, self._count, why)] if dropped.count else []
        context = build_context(
            state.head,
            state.entries,
            left_out,
            budget=self.budget,
            count=self._count,
            dropped=dropped,
            layout=self.layout,
            epoch=state.epoch,
            epoch_reason=state.reason,
        )
        self._pending = (context, state)
        return context


def _cut_point(entries: Sequence[Entry], room: float, start_on: StartOn) -> int:
    """Where the longest legal suffix that costs at most `room` begins. The entries came in one by one and checked."""
    start, used = len(entries), 0
    for index in range(len(entries) - 1, -1, -1):
        used += entries[index].tokens
        if used > room:
            break
        role = entries[index].message["role"]
        if role != "tool" and (start_on is None or role == start_on):
            start = index
    return start


def _last_user(entries: Sequence[Entry]) -> int:
    for index in range(len(entries) - 1, -1, -1):
        if entries[index].message["role"] == "user":
            return index
    raise MessageError("there is no user message to answer", hint="give user=…")


def _as_history(entry: Entry, source: str) -> Entry:
    """The newest message becomes part of the history; the updates in front of it stay what they were."""
    *updates, (text, words) = entry.spans
    if words.layer != "user":
        return entry
    segment = words._replace(layer="history", source=source, reason="fits the budget")
    return replace(entry, spans=(*updates, Span(text, segment)))


def _key(layer: Layer) -> Key:
    return layer.name, layer.source


def _keys(layers: Sequence[Layer]) -> set[Key]:
    return {_key(layer) for layer in layers}


def _texts(layers: Any, name: str) -> list[str]:
    return [layer.text for layer in layers if layer.name == name and layer.text.strip()]


def _fence(layer: Layer, change: str) -> Fence:
    """Data that is simply new needs no more than its source; anything else says which layer it changes, and how."""
    if layer.trust == "outside" and change == "added":
        return Fence(layer.text, layer.source)
    kind = "data" if layer.trust == "outside" else "layer"
    return Fence(layer.text, layer.source, kind, (("layer", layer.name), ("change", change)))
