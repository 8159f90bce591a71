"""What the model has seen, turn by turn: the two layouts, epochs and deltas.

`strict` rebuilds every request in the order of the layers. `ledger` lets what was sent stay where it was sent and
adds only what changed, in front of the newest message; when that no longer fits, a new epoch begins in order again.
A state machine without I/O: `prepare` decides and changes nothing, `sent` moves the state.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lamina.assembly.checks import check_message
from lamina.assembly.context import build_context
from lamina.assembly.entries import (
    Entry,
    Head,
    Update,
    admit,
    again_update,
    as_current,
    build_head,
    check_tools,
    fresh,
    history_entry,
    left_out,
    own_copy,
    update_fence,
    user_entry,
)
from lamina.assembly.fences import DEFAULT_MARK
from lamina.assembly.messages import StartOn, check_start_on
from lamina.assembly.prompt import check_lang, ordered
from lamina.assembly.tokens import check_budget, check_counter, compact, estimate_message_tokens, per_request
from lamina.assembly.window import CallTracker, check_low_water, room_for_history
from lamina.errors import LayerError, MessageError, shown
from lamina.ports import Count
from lamina.types import AnyMessage, AnyTool, Context, Dropped, Lang, Layer, Layout, Message, Span, text_hash

RETRIEVED = ("memory", "collected", "summary")
"""Layers that were looked up: one that is not looked up again has not become untrue, so nothing is said of it."""
UNORDERED = ("scenario",)
"""Layers whose change begins a new epoch: what follows them depends on them."""
LOW_WATER = 0.4
"""How far a cut of the ledger goes down by default, as a share of the budget; why not 0.5: docs/benchmarks.md."""
FIRST, CUT, REBUILT = "first request", "the window was cut", "rebuilt"
GONE = {"en": "This no longer applies.", "zh": "以上内容不再适用。"}

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class State:
    """What the model has seen so far: the head and the entries of this epoch, and where in the log they begin."""

    epoch: int = 0
    reason: str = ""
    head: Head | None = None
    seen: Mapping[Key, Layer] = field(default_factory=dict[Key, Layer])
    entries: list[Entry] = field(default_factory=list[Entry])
    start: int = 0
    """How much of the log was left out before them."""
    tokens: int = 0
    """Of the entries."""


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
        check_lang(lang)
        check_counter(count)
        self.budget = check_budget(budget, "budget")
        self.layout: Layout = layout
        self.low_water = check_low_water(LOW_WATER if low_water is None and layout == "ledger" else low_water)
        self._count, self._owner, self._mark = count, owner, mark
        self._start_on: StartOn = start_on
        self._lang: Lang = lang
        self._state = State()
        self._calls = CallTracker()
        self._log: list[Entry] = []
        """Every message without the updates that were sent in front of it: what an epoch starts from. Only appended."""
        self._totals = [0]
        """Tokens of the log before each place; never summed again."""
        self._pending: tuple[Context, State, Entry | None] | None = None
        self._asked: str | None = None
        for message in history:
            self._take(message)

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def open_calls(self) -> tuple[str, ...]:
        """Tool calls that still wait for their results."""
        return tuple(self._calls.open)

    @property
    def history(self) -> list[Message]:
        """The whole chat so far, without updates: what `Ledger(history=…)` goes on from."""
        return [fresh(entry.message) for entry in self._log]

    def new_epoch(self, reason: str) -> None:
        """Begin a new epoch with the next request: after a compaction, or when something sent must not stay."""
        self._asked = reason

    def prepare(
        self,
        layers: Sequence[Layer] = (),
        *,
        user: str | Sequence[Mapping[str, Any]] | None = None,
        tools: Sequence[AnyTool] = (),
        repeat: Sequence[Layer] = (),
    ) -> Context:
        """The next request. Without `user` it goes on with the current turn, after tool results.

        `repeat` are layers that stand once more in front of the words although nothing changed, lest they fade.
        Nothing changes until `sent`: a request whose sending failed is simply prepared again.
        """
        self._calls.check("the request")
        check_tools(tools)
        if self.layout == "ledger":
            _check_sources(layers)
        words = None if user is None else user_entry(user, self._count, self._owner, self._mark)
        again = [again_update(layer) for layer in self._admitted(repeat)]
        reason = self._epoch_reason(layers, tools)
        if not reason:
            proposal = self._extended(layers, user, words, again)
            if self._cost(proposal) <= self.budget:
                return self._propose(proposal, words)
            reason = CUT
        shown_words = words
        if user is not None and again and reason not in (FIRST, CUT):  # a new epoch says it all at its beginning
            shown_words = user_entry(user, self._count, self._owner, self._mark, again)
        return self._propose(self._rebuilt(layers, tools, shown_words, reason), words)

    def sent(self, context: Context) -> None:
        """The request was sent: the model has seen it."""
        if self._pending is None or self._pending[0] is not context:
            raise MessageError("this is not the request that was prepared last", hint="prepare, send, sent")
        _, state, words = self._pending
        if words is not None:
            source = f"history[{len(self._log)}]"
            self._keep(_as_history(words, source))
            state = replace(state, entries=[*state.entries[:-1], _as_history(state.entries[-1], source)])
        self._state, self._pending, self._asked = state, None, None

    def append(self, message: AnyMessage) -> None:
        """Take in what came back: an answer, or the result of a tool."""
        if isinstance(message, Mapping) and message.get("role") == "user":  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise MessageError("append takes what came back", hint="a user message goes through prepare(user=…)")
        if self._pending is not None:
            raise MessageError("a request was prepared and not marked as sent", hint="call sent(context) first")
        if self._state.head is None:
            raise MessageError("nothing was sent yet that could be answered", hint="prepare, send, sent, then append")
        self._take(message)

    def _take(self, message: AnyMessage) -> None:
        where = f"message {len(self._log)}"
        check_message(message, where)
        own = own_copy(message, self._mark)
        entry = history_entry(own, f"history[{len(self._log)}]", self._count, self._owner)
        self._calls.take(own, where)
        self._keep(entry)
        if self._state.head is not None:
            state = self._state
            state.entries.append(entry)  # this state's own list: no request is pending while something comes in
            self._state = replace(state, tokens=state.tokens + entry.tokens)

    def _keep(self, entry: Entry) -> None:
        self._log.append(entry)
        self._totals.append(self._totals[-1] + entry.tokens)

    def _epoch_reason(self, layers: Sequence[Layer], tools: Sequence[AnyTool]) -> str:
        state = self._state
        if state.head is None:
            return FIRST
        if self._asked is not None:
            return self._asked or "asked for"
        if self.layout == "strict":
            return REBUILT
        if list(state.head.tools) != [compact(tool) for tool in tools]:
            return "the tools changed"
        changed = [name for name in UNORDERED if _texts(state.seen.values(), name) != _texts(layers, name)]
        return f"the {changed[0]} changed" if changed else ""

    def _extended(
        self,
        layers: Sequence[Layer],
        user: str | Sequence[Mapping[str, Any]] | None,
        words: Entry | None,
        again: Sequence[Update],
    ) -> State:
        """The request before, and after it only what is new."""
        state = self._state
        if user is None or words is None:
            return state
        now = self._admitted(layers)
        updates = self._updates(state.seen, now)
        told = {_key(layer) for _, layer, _ in updates}
        updates += [update for update in again if _key(update[1]) not in told]
        current = _keys(now)
        seen = {key: layer for key, layer in state.seen.items() if key in current or layer.name in RETRIEVED}
        seen.update((_key(layer), layer) for layer in now)
        entry = user_entry(user, self._count, self._owner, self._mark, updates) if updates else words
        return replace(state, seen=seen, entries=[*state.entries, entry], tokens=state.tokens + entry.tokens)

    def _admitted(self, layers: Sequence[Layer]) -> list[Layer]:
        """The layers in order, each through the same gate as at the beginning of an epoch."""
        kept = ordered(layers)
        for layer in kept:
            admit(layer, self._owner, self._mark, self._lang)
        return kept

    def _updates(self, seen: Mapping[Key, Layer], now: Sequence[Layer]) -> list[Update]:
        """What differs from what the model has seen."""
        updates: list[Update] = []
        for layer in now:
            known = seen.get(_key(layer))
            if known is None:
                updates.append((update_fence(layer, "added"), layer, "new since the epoch began"))
            elif (known.text, known.trust) != (layer.text, layer.trust):
                updates.append((update_fence(layer, "replaces"), layer, f"replaces {text_hash(known.text)[:8]}"))
        current = _keys(now)
        for key, layer in seen.items():
            if key not in current and layer.name not in RETRIEVED:
                gone = Layer(layer.name, GONE[self._lang], layer.source, layer.owner)
                updates.append((update_fence(gone, "removed"), gone, "no longer applies"))
        return updates

    def _rebuilt(self, layers: Sequence[Layer], tools: Sequence[AnyTool], words: Entry | None, reason: str) -> State:
        """The layers in order, the history that fits, the current turn: how every epoch begins."""
        head = build_head(layers, tools, count=self._count, owner=self._owner, mark=self._mark, lang=self._lang)
        turn = len(self._log) if words is not None else _last_user(self._log)
        current = (words,) if words is not None else self._current_turn(reason)
        fixed = head.tokens + sum(entry.tokens for entry in current) + per_request(self._count)
        start = self._cut_point(turn, self.budget - fixed)
        if self.low_water is not None and (start or reason == CUT):
            start = self._cut_point(turn, room_for_history(self.budget, fixed, self.low_water))
        return State(
            epoch=self._state.epoch + (1 if self.layout == "ledger" or self._state.head is None else 0),
            reason=reason,
            head=head,
            seen={_key(layer): layer for layer in ordered(layers)},
            entries=[*self._log[start:turn], *current],
            start=start,
            tokens=fixed - head.tokens - per_request(self._count) + self._totals[turn] - self._totals[start],
        )

    def _current_turn(self, reason: str) -> tuple[Entry, ...]:
        """The turn that goes on. What was repeated in front of its words stays there while it lasts, but for a new
        epoch, which says it all at its beginning."""
        again = self._state.entries if reason == REBUILT else self._log
        return tuple(map(as_current, again[_last_user(again) :]))

    def _cut_point(self, end: int, room: float) -> int:
        """Where in the log the longest legal suffix before `end` begins that costs at most `room`."""
        start = at = end
        while at and self._totals[end] - self._totals[at - 1] <= room:
            at -= 1
            role = self._log[at].message["role"]
            if role != "tool" and (self._start_on is None or role == self._start_on):
                start = at
        return start

    def _cost(self, state: State) -> int:
        return (state.head.tokens if state.head else 0) + state.tokens + per_request(self._count)

    def _propose(self, state: State, words: Entry | None) -> Context:
        assert state.head is not None
        dropped = Dropped(state.start, self._totals[state.start])
        why = "over the budget" if self.low_water is None else f"cut to {self.low_water:.0%} of the budget"
        context = build_context(
            state.head,
            state.entries,
            left_out(dropped, self._cost(state), self.budget, self._count, why),
            budget=self.budget,
            count=self._count,
            dropped=dropped,
            layout=self.layout,
            epoch=state.epoch,
            epoch_reason=state.reason,
        )
        self._pending = (context, state, words)
        return context


def _check_sources(layers: Sequence[Layer]) -> None:
    """What changed can only be told of layers that can be told apart."""
    seen: set[Key] = set()
    for layer in ordered(layers):
        if _key(layer) in seen:
            raise LayerError(
                f"two layers named {layer.name} come from {shown(layer.source)}",
                hint="in the layout ledger each needs a source of its own, such as 'rules.md' or 'memory:17'",
            )
        seen.add(_key(layer))


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
