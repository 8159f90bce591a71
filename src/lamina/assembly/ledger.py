"""What the model has seen, turn by turn: the two layouts, epochs and deltas.

`strict` rebuilds every request in the order of the layers. `ledger` lets what was sent stay where it was sent and adds
only what changed, in front of the newest message; when that no longer fits, a new epoch begins in order again.
A state machine without I/O: `prepare` decides and changes nothing, `sent` moves the state. A `LedgerSnapshot` is what
has to be stored so that another process sends the same bytes again.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from lamina.assembly.budget import LEFT_OUT, OVER_BUDGET, Budget, FittedLayer
from lamina.assembly.history import CallTracker, check_message
from lamina.assembly.pieces import (
    THIS_TURN,
    Entry,
    Head,
    LayerUpdate,
    PromptStyle,
    admit_layer,
    build_head,
    check_tools,
    copy_message,
    copy_out,
    dropped_history,
    find_repeats,
    history_entry,
    mark_current,
    mark_history,
    order_layers,
    unguard_message,
    user_entry,
)
from lamina.assembly.request import Words, absent_layers, build_context, fit_head, fit_shares, room_kept_back
from lamina.assembly.tokens import compact, per_request
from lamina.errors import LayerError, MessageError, PromptError, format_value
from lamina.text.messages import NOTHING, Phrase
from lamina.types import AnyMessage, AnyTool, Context, Dropped, Layer, Layout, Message, Segment, text_hash

LayerKey = tuple[str, str]
"""A layer's name and source."""
Skipped = Mapping[str, str | Phrase]
"""Layers that are not there, and why."""
RETRIEVED = ("memory", "collected", "summary")
"""Layers that were looked up: one that is not looked up again has not become untrue, so nothing is said of it."""
EPOCH_LAYERS = ("scenario",)
"""Layers whose change begins a new epoch: what follows them depends on them."""
LOW_WATER = 0.4
"""How far a cut of the ledger goes down by default, as a share of the budget; why not 0.5: docs/benchmarks.md."""
TOOLS_CHANGED = Phrase("reason.tools_changed")
FIRST, CUT, REBUILT = Phrase("reason.first_request"), Phrase("reason.window_cut"), Phrase("reason.rebuilt")
LOST = Phrase("reason.request_lost")
NO_LONGER_APPLIES = Phrase("reason.no_longer_applies")
GONE = {"en": "This no longer applies.", "zh": "以上内容不再适用。"}


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """The last request in the fewest words: with the log it was made of, it can be built again, byte for byte."""

    epoch: int
    reason: Phrase
    head: tuple[FittedLayer, ...]
    updates: Mapping[int, tuple[LayerUpdate, ...]]
    """Which updates are in front of which message of the log."""
    start: int
    size: int
    """Where in the log its messages begin, and how many there were."""
    tools: str
    form: str
    digest: str
    """Of its bytes: a log that gives others is not the one that was sent."""


@dataclass(frozen=True, slots=True)
class LedgerState:
    """What the model has seen so far: the head and the entries of this epoch, and where in the log they begin."""

    epoch: int = 0
    reason: Phrase = NOTHING
    head: Head | None = None
    fitted: tuple[FittedLayer, ...] = ()
    """The layers of the head; of those whose change begins a new epoch also what had no room in it."""
    updates: Mapping[int, tuple[LayerUpdate, ...]] = field(default_factory=dict[int, tuple[LayerUpdate, ...]])
    seen: Mapping[LayerKey, Layer] = field(default_factory=dict[LayerKey, Layer])
    entries: list[Entry] = field(default_factory=list[Entry])
    start: int = 0
    """How much of the log was left out before them."""
    tokens: int = 0
    """Of the entries."""


class Ledger:
    """One session's requests under a budget. For each turn: `prepare`, send, `sent`, then `append` the answer."""

    def __init__(
        self,
        budget: Budget,
        style: PromptStyle,
        *,
        layout: Layout = "strict",
        history: Iterable[AnyMessage] = (),
        older: int = 0,
    ) -> None:
        if layout not in ("strict", "ledger"):
            raise LayerError("ledger.unknown_layout", name=format_value(layout))
        if budget.low_water is None and layout == "ledger":
            budget = replace(budget, low_water=LOW_WATER)
        self.layout: Layout = layout
        self._budget, self._count, self._style, self._older = budget, budget.count, style, older
        self._state = LedgerState()
        self._calls = CallTracker()
        self._log: list[Entry] = []
        """Every message without the updates that were sent in front of it: what an epoch starts from. Only appended."""
        self._results: dict[int, AnyMessage] = {}
        """The results of tools in it as they came, without their fences."""
        self._totals = [0]
        """Tokens of the log before each place; never summed again."""
        self._pending: tuple[Context, LedgerState, Entry | None] | None = None
        self._sent = 0
        """How many entries the last request had."""
        self._asked: Phrase | None = None
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
        """The whole chat so far, without updates: what `Ledger(history=…)` continues from."""
        return [
            cast(Message, dict(self._results[place]))
            if place in self._results
            else unguard_message(copy_out(entry.message), self._style.mark)
            for place, entry in enumerate(self._log)
        ]

    @property
    def seen(self) -> Mapping[LayerKey, Layer]:
        """What the model knows of layers, by name and source; nothing before the first request."""
        return self._state.seen

    def start_after(self, epoch: int, reason: str | Phrase) -> None:
        """Begin a new epoch behind one that cannot be continued."""
        self._state, self._asked = LedgerState(epoch), Phrase.of(reason)

    def new_epoch(self, reason: str | Phrase) -> None:
        """Begin a new epoch with the next request: after a compaction, or when something sent must not stay."""
        self._asked = Phrase.of(reason)

    def snapshot(self) -> LedgerSnapshot:
        """What must be stored of the last request, for `resume`."""
        state = self._state
        if state.head is None:
            raise MessageError("ledger.nothing_to_snapshot")
        return LedgerSnapshot(
            epoch=state.epoch,
            reason=state.reason,
            head=state.fitted,
            updates=state.updates,
            start=state.start,
            size=self._sent,
            tools=_hash_texts(state.head.tools),
            form=self._form,
            digest=_digest(state.head, state.entries[: self._sent]),
        )

    def resume(self, kept: LedgerSnapshot, history: Sequence[AnyMessage], tools: Sequence[AnyTool] = ()) -> None:
        """Continue from a request that was sent before, perhaps by another process. `history` are the messages that
        this ledger was made with. What cannot be built again to the byte begins a new epoch, and says so."""
        self._state = LedgerState(kept.epoch, kept.reason)
        if kept.form != self._form:
            self._asked = Phrase("reason.form_changed")
            return
        check_tools(tools)
        if kept.tools != _hash_texts(map(compact, tools)):
            self._asked = TOOLS_CHANGED
            return
        sent_layers = [one for one in kept.head if one.decision != "dropped"]
        try:
            head = build_head(sent_layers, tools, self._count, self._style)
        except PromptError:  # a text that would not be let in today
            self._asked = LOST
            return
        end = kept.start + kept.size
        updates = {place: some for place, some in kept.updates.items() if kept.start <= place < end <= len(self._log)}
        entries = self._log[kept.start : end]
        for place, some in updates.items():
            content = history[place]["content"]
            if history[place]["role"] == "user" and content is not None:
                again = user_entry(content, self._count, self._style, some)
                entries[place - kept.start] = mark_history(again, self._source(place))
        if len(entries) != kept.size or _digest(head, entries) != kept.digest:
            self._asked = LOST
            return
        seen = _layers_seen(kept.head)
        for place in sorted(updates):
            _apply_updates(seen, updates[place])
        entries += self._log[end:]
        tokens = sum(entry.tokens for entry in entries)
        self._state = LedgerState(kept.epoch, kept.reason, head, kept.head, updates, seen, entries, kept.start, tokens)
        self._sent = kept.size

    @property
    def _form(self) -> str:
        """Everything about the form of a request that must not change within an epoch."""
        return f"{self._style.form} {self._style.lang} {self._style.mark}"

    def _source(self, place: int) -> str:
        return f"history[{self._older + place}]"

    def prepare(
        self,
        layers: Sequence[Layer] = (),
        *,
        user: Words | None = None,
        tools: Sequence[AnyTool] = (),
        repeat: Sequence[Layer] = (),
        skipped: Skipped | None = None,
    ) -> Context:
        """The next request. Without `user` it continues the current turn, after tool results.

        `repeat` are layers that are sent in front of the words: those of the request once more, and others;
        `skipped` are layers that could not be asked for, and why: of what they said before nothing has become untrue.
        Nothing changes until `sent`: a request whose sending failed is simply prepared again.
        """
        self._calls.check("the request")
        check_tools(tools)
        if self.layout == "ledger":
            _check_sources(layers)
        skipped = skipped or {}
        words = None if user is None else user_entry(user, self._count, self._style)
        repeats = find_repeats(self._admit_layers(repeat), layers)
        reason = self._epoch_reason(layers, tools, skipped)
        if not reason:
            proposal, fitted = self._extend(layers, user, words, repeats, skipped)
            if self._cost(proposal) <= self._budget.tokens:
                return self._propose(proposal, words, fitted, skipped)
            reason = CUT
        at_beginning = user is None or reason in (FIRST, CUT)  # a new epoch says all of its layers there
        updates = tuple(one for one in repeats if one.change == THIS_TURN or not at_beginning)
        sent_words = user_entry(user, self._count, self._style, updates) if user is not None and updates else words
        state, fitted = self._rebuild(layers, tools, sent_words, reason, updates)
        return self._propose(state, words, fitted, skipped)

    def sent(self, context: Context) -> None:
        """The request was sent: the model has seen it."""
        if self._pending is None or self._pending[0] is not context:
            raise MessageError("ledger.wrong_request")
        _, state, words = self._pending
        if words is not None:
            source = self._source(len(self._log))
            self._log_entry(mark_history(words, source))
            state = replace(state, entries=[*state.entries[:-1], mark_history(state.entries[-1], source)])
        self._state, self._pending, self._asked = state, None, None
        self._sent = len(state.entries)

    def append(self, message: AnyMessage) -> None:
        """Take in what came back: an answer, or the result of a tool."""
        if isinstance(message, Mapping) and message.get("role") == "user":  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise MessageError("ledger.user_message")
        if self._pending is not None:
            raise MessageError("ledger.not_marked_sent")
        if self._state.head is None:
            raise MessageError("ledger.nothing_sent")
        self._take(message)

    def _take(self, message: AnyMessage) -> None:
        where = f"messages[{len(self._log)}]"
        check_message(message, where)
        own = copy_message(message, self._style.mark)
        if own["role"] == "tool":
            self._results[len(self._log)] = {**message}
        entry = history_entry(own, self._source(len(self._log)), self._count, self._style.owner)
        self._calls.take(own, where)
        self._log_entry(entry)
        if self._state.head is not None:
            state = self._state
            state.entries.append(entry)  # this state's own list: no request is pending while something comes in
            self._state = replace(state, tokens=state.tokens + entry.tokens)

    def _log_entry(self, entry: Entry) -> None:
        self._log.append(entry)
        self._totals.append(self._totals[-1] + entry.tokens)

    def _epoch_reason(self, layers: Sequence[Layer], tools: Sequence[AnyTool], skipped: Skipped) -> Phrase:
        state = self._state
        if state.head is None:
            return (self._asked if state.epoch else None) or FIRST
        if self._asked is not None:
            return self._asked or Phrase("reason.asked_for")
        if self.layout == "strict":
            return REBUILT
        if list(state.head.tools) != [compact(tool) for tool in tools]:
            return TOOLS_CHANGED
        for name in EPOCH_LAYERS:
            if not _is_unknown(name, skipped) and _has_changed(name, state.fitted, layers):
                return Phrase("reason.layer_changed", layer=name)
        return NOTHING

    def _extend(
        self,
        layers: Sequence[Layer],
        user: Words | None,
        words: Entry | None,
        repeats: Sequence[LayerUpdate],
        skipped: Skipped,
    ) -> tuple[LedgerState, Sequence[FittedLayer]]:
        """The request before, and after it only what is new; and what became of each layer that is."""
        state = self._state
        if user is None or words is None:
            at = _last_user(state.entries)
            return replace(state, entries=[*state.entries[:at], *map(mark_current, state.entries[at:])]), ()
        now = self._admit_layers(layers)
        changed = [layer for layer in now if not is_known(state.seen.get(key_of(layer)), layer)]
        # Whether there is room for them is decided when all is together.
        fitted = fit_shares(changed, float("inf"), self._budget, self._style)
        updates = self._find_updates(state.seen, now, fitted, skipped)
        updated = {key_of(one.layer) for one in updates}
        updates += [one for one in repeats if key_of(one.layer) not in updated]
        entry = user_entry(user, self._count, self._style, updates) if updates else words
        seen = dict(state.seen)
        _apply_updates(seen, updates)
        extended = replace(
            state,
            updates={**state.updates, len(self._log): tuple(updates)} if updates else state.updates,
            seen=seen,
            entries=[*state.entries, entry],
            tokens=state.tokens + entry.tokens,
        )
        return extended, fitted

    def _admit_layers(self, layers: Sequence[Layer]) -> list[Layer]:
        """The layers in order, each through the same gate as at the beginning of an epoch."""
        kept = order_layers(layers)
        for layer in kept:
            admit_layer(layer, self._style)
        return kept

    def _find_updates(
        self, seen: Mapping[LayerKey, Layer], now: Sequence[Layer], fitted: Sequence[FittedLayer], skipped: Skipped
    ) -> list[LayerUpdate]:
        """What differs from what the model has seen."""
        updates: list[LayerUpdate] = []
        for layer, decision, why in fitted:
            known = seen.get(key_of(layer))
            if decision == "dropped":
                continue
            if known is None:
                reason = Phrase("reason.new_shortened", why=why) if why else Phrase("reason.new")
                updates.append(LayerUpdate("added", layer, reason))
            else:
                old = text_hash(known.text)[:8]
                short = Phrase("reason.replaces_shortened", hash=old, why=why)
                updates.append(LayerUpdate("replaces", layer, short if why else Phrase("reason.replaces", hash=old)))
        current = set(map(key_of, now))
        for key, layer in seen.items():
            if key not in current and layer.name not in RETRIEVED and not _is_unknown(layer.name, skipped):
                gone = Layer(layer.name, GONE[self._style.lang], layer.source, layer.owner)
                updates.append(LayerUpdate("removed", gone, NO_LONGER_APPLIES))
        return updates

    def _rebuild(
        self,
        layers: Sequence[Layer],
        tools: Sequence[AnyTool],
        words: Entry | None,
        reason: Phrase,
        updates: tuple[LayerUpdate, ...],
    ) -> tuple[LedgerState, Sequence[FittedLayer]]:
        """The layers in order, the history that fits, the current turn: how every epoch begins."""
        turn = len(self._log) if words is not None else _last_user(self._log)
        current = (words,) if words is not None else self._current_turn(reason, updates)
        turn_tokens = sum(entry.tokens for entry in current)
        spent = turn_tokens + per_request(self._count)
        before = self._log[:turn] if self._budget.shares is not None else []
        room = room_kept_back([one.message for one in before], [one.tokens for one in before], self._budget)
        head, fitted = fit_head(layers, tools, spent + room, self._budget, self._style)
        fixed = head.tokens + spent
        start = self._cut_point(turn, self._budget.tokens - fixed)
        if self._budget.low_water is not None and (start or reason == CUT):
            start = self._cut_point(turn, self._budget.room_after_cut(fixed))
        sent = tuple(one for one in fitted if one.decision != "dropped" or one.layer.name in EPOCH_LAYERS)
        state = LedgerState(
            epoch=self._state.epoch + (1 if self.layout == "ledger" or self._state.head is None else 0),
            reason=reason,
            head=head,
            fitted=sent,
            updates={turn: updates} if updates else {},
            seen=_layers_seen(sent),
            entries=[*self._log[start:turn], *current],
            start=start,
            tokens=turn_tokens + self._totals[turn] - self._totals[start],
        )
        return state, fitted

    def _current_turn(self, reason: Phrase, updates: Sequence[LayerUpdate]) -> tuple[Entry, ...]:
        """The turn that continues. What was repeated in front of its words stays there while it lasts, except in a new
        epoch, which says it all at its beginning; what is for this turn alone always stays."""
        entries = self._state.entries if reason == REBUILT else self._log
        place = _last_user(entries)
        first, *rest = entries[place:]
        if updates and reason != REBUILT:
            content = unguard_message(copy_out(first.message), self._style.mark)["content"]
            words = user_entry(cast("str", content), self._count, self._style, updates)
            first = mark_history(words, self._source(place))
        return tuple(map(mark_current, (first, *rest)))

    def _cut_point(self, end: int, room: float) -> int:
        """Where in the log the longest legal suffix before `end` begins that costs at most `room`."""
        start = at = end
        while at and self._totals[end] - self._totals[at - 1] <= room:
            at -= 1
            role = self._log[at].message["role"]
            if role != "tool" and self._budget.start_on in (None, role):
                start = at
        return start

    def _cost(self, state: LedgerState) -> int:
        return (state.head.tokens if state.head else 0) + state.tokens + per_request(self._count)

    def _why_dropped(self) -> Phrase:
        older, low_water = self._older, self._budget.low_water
        if low_water is None:
            return Phrase("reason.over_budget_unread", n=older) if older else OVER_BUDGET
        share = f"{low_water:.0%}"
        return Phrase("reason.cut_to_unread", share=share, n=older) if older else Phrase("reason.cut_to", share=share)

    def _propose(
        self, state: LedgerState, words: Entry | None, fitted: Sequence[FittedLayer], skipped: Skipped
    ) -> Context:
        assert state.head is not None
        dropped = Dropped(self._older + state.start, self._totals[state.start])
        notes: list[Segment] = absent_layers(fitted, skipped, self._count, self._style.mark)
        notes += dropped_history(dropped, self._cost(state), self._budget.tokens, self._count, self._why_dropped())
        context = build_context(
            state.head,
            state.entries,
            notes,
            budget=self._budget,
            dropped=dropped,
            layout=self.layout,
            epoch=state.epoch,
            epoch_reason=state.reason,
        )
        self._pending = (context, state, words)
        return context


def key_of(layer: Layer) -> LayerKey:
    return layer.name, layer.source


def is_known(known: Layer | None, layer: Layer) -> bool:
    """Has the model seen this layer, be it in its short form?"""
    forms = [text for text in (layer.text, layer.short, layer.title) if text]
    return known is not None and known.trust == layer.trust and known.text in forms


def _is_unknown(name: str, skipped: Skipped) -> bool:
    """Is it unknown what is in this layer now? What was left out is known to be gone."""
    reasons = {source: Phrase.of(why) for source, why in skipped.items()}
    return any(source.partition(":")[0] == name and why.code != LEFT_OUT for source, why in reasons.items())


def _has_changed(name: str, fitted: Iterable[FittedLayer], layers: Iterable[Layer]) -> bool:
    """Does what is there now, of one name, differ from what was there when the epoch began, in whatever form?"""
    before = [one.layer for one in fitted if one.layer.name == name]
    now = [layer for layer in layers if layer.name == name and layer.text.strip()]
    return len(before) != len(now) or not all(is_known(old, new) for old, new in zip(before, now, strict=True))


def _layers_seen(fitted: Iterable[FittedLayer]) -> dict[LayerKey, Layer]:
    return {key_of(one.layer): one.layer for one in fitted if one.decision != "dropped"}


def _apply_updates(seen: dict[LayerKey, Layer], updates: Sequence[LayerUpdate]) -> None:
    """What the model knows once it has seen these updates."""
    for change, layer, _ in updates:
        if change == "removed":
            seen.pop(key_of(layer), None)
        elif change not in ("again", THIS_TURN):
            seen[key_of(layer)] = layer


def _check_sources(layers: Sequence[Layer]) -> None:
    """A change can only be described of layers that can be told apart."""
    seen: set[LayerKey] = set()
    for layer in order_layers(layers):
        if key_of(layer) in seen:
            raise LayerError("layer.repeated_source", name=layer.name, source=format_value(layer.source))
        seen.add(key_of(layer))


def _last_user(entries: Sequence[Entry]) -> int:
    for index in range(len(entries) - 1, -1, -1):
        if entries[index].message["role"] == "user":
            return index
    raise MessageError("message.nothing_to_answer")


def _digest(head: Head, entries: Sequence[Entry]) -> str:
    whole = hashlib.sha256()
    for tool in head.tools:
        whole.update(tool.encode())
    for entry in (*head.system, *entries):
        for chunk in entry.chunks:
            whole.update(chunk)
    return whole.hexdigest()


def _hash_texts(texts: Iterable[str]) -> str:
    return text_hash("\n".join(texts))
