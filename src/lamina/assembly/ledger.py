"""What the model has seen, turn by turn: the two layouts, epochs and deltas.

`strict` rebuilds every request in the order of the layers. `ledger` lets what was sent stay where it was sent and
adds only what changed, in front of the newest message; when that no longer fits, a new epoch begins in order again.
A state machine without I/O: `prepare` decides and changes nothing, `sent` moves the state. A `LedgerSnapshot` is what
has to be stored so that another process sends the same bytes again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from lamina.assembly.checks import check_message
from lamina.assembly.context import absent, build_context, fit_head, fit_shares, for_history, phrases
from lamina.assembly.entries import (
    FITS,
    THIS_TURN,
    Entry,
    Head,
    admit,
    as_current,
    before_words,
    check_tools,
    fresh,
    head_of,
    history_entry,
    left_out,
    own_copy,
    unguarded,
    update_fence,
    user_entry,
)
from lamina.assembly.fences import check_mark
from lamina.assembly.messages import StartOn, check_start_on
from lamina.assembly.prompt import check_lang, ordered
from lamina.assembly.shares import OVER_BUDGET, Fitted, check_shares
from lamina.assembly.tokens import check_budget, check_counter, compact, estimate_message_tokens, per_request
from lamina.assembly.told import (
    Key,
    LayerUpdate,
    LedgerSnapshot,
    digest,
    has_changed,
    is_known,
    key_of,
    keys_of,
    seen_in,
    take_in,
    texts_hash,
    was_skipped,
)
from lamina.assembly.window import CallTracker, check_low_water, room_for_history
from lamina.errors import LayerError, MessageError, PromptError, format_value
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
    Message,
    Segment,
    Share,
    Span,
    text_hash,
)

RETRIEVED = ("memory", "collected", "summary")
"""Layers that were looked up: one that is not looked up again has not become untrue, so nothing is said of it."""
EPOCH_LAYERS = ("scenario",)
"""Layers whose change begins a new epoch: what follows them depends on them."""
LOW_WATER = 0.4
"""The share of the budget that a cut leaves by default; docs/evidence/benchmarks.md shows why it is not 0.5."""
TOOLS_CHANGED = Phrase("reason.tools_changed")
FIRST, CUT, REBUILT = Phrase("reason.first_request"), Phrase("reason.window_cut"), Phrase("reason.rebuilt")
LOST = Phrase("reason.request_lost")
NO_LONGER_APPLIES = Phrase("reason.no_longer_applies")
GONE = {"en": "This no longer applies.", "zh": "以上内容不再适用。"}


@dataclass(frozen=True, slots=True)
class State:
    """What the model has seen so far: the head and the entries of this epoch, and where in the log they begin."""

    epoch: int = 0
    reason: Phrase = NOTHING
    head: Head | None = None
    fitted: tuple[Fitted, ...] = ()
    """The layers of the head; of those whose change begins a new epoch also what had no room in it."""
    told: Mapping[int, tuple[LayerUpdate, ...]] = field(default_factory=dict[int, tuple[LayerUpdate, ...]])
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
        mark: str | None = None,
        lang: Lang = "en",
        form: Form = "plain",
        shares: Mapping[str, Share] | None = None,
        older: int = 0,
    ) -> None:
        if layout not in ("strict", "ledger"):
            raise LayerError("ledger.unknown_layout", name=format_value(layout))
        check_start_on(start_on)
        check_lang(lang)
        check_counter(count)
        self.budget = check_budget(budget, "budget")
        self.layout: Layout = layout
        self.low_water = check_low_water(LOW_WATER if low_water is None and layout == "ledger" else low_water)
        self._count, self._owner, self._mark = count, owner, check_mark(mark)
        self._start_on: StartOn = start_on
        self._lang: Lang = lang
        self._form: Form = form
        check_shares(shares or {})
        self._shares, self._older = shares, older
        self._state = State()
        self._calls = CallTracker()
        self._log: list[Entry] = []
        """Every message without the updates that were sent in front of it: what an epoch starts from. Only appended."""
        self._results: dict[int, AnyMessage] = {}
        """The results of tools in it as they came, without their fences."""
        self._totals = [0]
        """Tokens of the log before each place; never summed again."""
        self._pending: tuple[Context, State, Entry | None] | None = None
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
        """The whole chat so far, without updates: what `Ledger(history=…)` goes on from."""
        return [
            cast(Message, dict(self._results[place])) if place in self._results
            else unguarded(fresh(entry.message), self._mark)
            for place, entry in enumerate(self._log)
        ]  # fmt: skip

    @property
    def seen(self) -> Mapping[Key, Layer]:
        """What the model knows of layers, by name and source; nothing before the first request."""
        return self._state.seen

    def after(self, epoch: int, reason: str | Phrase) -> None:
        """Begin a new epoch behind one that cannot be gone on with."""
        self._state, self._asked = State(epoch), Phrase.of(reason)

    def new_epoch(self, reason: str | Phrase) -> None:
        """Begin a new epoch with the next request: after a compaction, or when something sent must not stay."""
        self._asked = Phrase.of(reason)

    def snapshot(self) -> LedgerSnapshot:
        """What must be kept of the last request, for `resume`."""
        state = self._state
        if state.head is None:
            raise MessageError("ledger.nothing_to_snapshot")
        return LedgerSnapshot(
            state.epoch, state.reason, state.fitted, state.told, state.start, self._sent,
            texts_hash(state.head.tools), self._look, digest(state.head, state.entries[: self._sent]),
        )  # fmt: skip

    def resume(self, kept: LedgerSnapshot, history: Sequence[AnyMessage], tools: Sequence[AnyTool] = ()) -> None:
        """Go on from a request that was sent before, perhaps by another process. `history` are the messages that this
        ledger was made with. What cannot be built again to the byte begins a new epoch, and says so."""
        self._state = State(kept.epoch, kept.reason)
        if kept.form != self._look:
            self._asked = Phrase("reason.form_changed")
            return
        check_tools(tools)
        if kept.tools != texts_hash(map(compact, tools)):
            self._asked = TOOLS_CHANGED
            return
        shown_layers = [one for one in kept.head if one.decision != "dropped"]
        try:
            head = head_of(shown_layers, tools, self._count, self._owner, self._mark, self._lang, self._form)
        except PromptError:  # a text that would not be let in today
            self._asked = LOST
            return
        end = kept.start + kept.size
        told = {place: updates for place, updates in kept.told.items() if kept.start <= place < end <= len(self._log)}
        entries = self._log[kept.start : end]
        for place, updates in told.items():
            content = history[place]["content"]
            if history[place]["role"] == "user" and content is not None:
                again = self._words(content, updates)
                entries[place - kept.start] = _as_history(again, f"history[{self._older + place}]")
        if len(entries) != kept.size or digest(head, entries) != kept.digest:
            self._asked = LOST
            return
        seen = seen_in(kept.head)
        for place in sorted(told):
            take_in(seen, told[place])
        entries += self._log[end:]
        tokens = sum(entry.tokens for entry in entries)
        self._state = State(kept.epoch, kept.reason, head, kept.head, told, seen, entries, kept.start, tokens)
        self._sent = kept.size

    @property
    def _look(self) -> str:
        return f"{self._form} {self._lang} {self._mark}"

    def _words(self, user: str | Sequence[Mapping[str, Any]], told: Sequence[LayerUpdate] = ()) -> Entry:
        updates = [(update_fence(layer, change), layer, reason) for change, layer, reason in told]
        return user_entry(user, self._count, self._owner, self._mark, updates)

    def prepare(
        self,
        layers: Sequence[Layer] = (),
        *,
        user: str | Sequence[Mapping[str, Any]] | None = None,
        tools: Sequence[AnyTool] = (),
        repeat: Sequence[Layer] = (),
        skipped: Mapping[str, str | Phrase] | None = None,
    ) -> Context:
        """The next request. Without `user` it goes on with the current turn, after tool results.

        `repeat` are layers that are sent in front of the words: those of the request once more, and others;
        `skipped` are layers that nobody could ask for, and why: of what they said before nothing has become untrue.
        Nothing changes until `sent`: a request whose sending failed is simply prepared again.
        """
        self._calls.check("the request")
        check_tools(tools)
        if self.layout == "ledger":
            _check_sources(layers)
        words = None if user is None else self._words(user)
        front = [LayerUpdate(*one) for one in before_words(self._admitted(repeat), layers)]
        missing = phrases(skipped or {})
        reason = self._epoch_reason(layers, tools, missing)
        if not reason:
            proposal, fitted = self._extended(layers, user, words, front, missing)
            if self._cost(proposal) <= self.budget:
                return self._propose(proposal, words, absent(fitted, missing, self._count, self._mark))
            reason = CUT
        at_beginning = user is None or reason in (FIRST, CUT)  # a new epoch says all of its layers there
        told = tuple(one for one in front if one.change == THIS_TURN or not at_beginning)
        shown_words = self._words(user, told) if user is not None and told else words
        state, fitted = self._rebuilt(layers, tools, shown_words, reason, told)
        return self._propose(state, words, absent(fitted, missing, self._count, self._mark))

    def sent(self, context: Context) -> None:
        """The request was sent: the model has seen it."""
        if self._pending is None or self._pending[0] is not context:
            raise MessageError("ledger.wrong_request")
        _, state, words = self._pending
        if words is not None:
            source = f"history[{self._older + len(self._log)}]"
            self._log_entry(_as_history(words, source))
            state = replace(state, entries=[*state.entries[:-1], _as_history(state.entries[-1], source)])
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
        own = own_copy(message, self._mark)
        if own["role"] == "tool":
            self._results[len(self._log)] = {**message}
        entry = history_entry(own, f"history[{self._older + len(self._log)}]", self._count, self._owner)
        self._calls.take(own, where)
        self._log_entry(entry)
        if self._state.head is not None:
            state = self._state
            state.entries.append(entry)  # this state's own list: no request is pending while something comes in
            self._state = replace(state, tokens=state.tokens + entry.tokens)

    def _log_entry(self, entry: Entry) -> None:
        self._log.append(entry)
        self._totals.append(self._totals[-1] + entry.tokens)

    def _epoch_reason(self, layers: Sequence[Layer], tools: Sequence[AnyTool], skipped: Mapping[str, Phrase]) -> Phrase:
        state = self._state
        if state.head is None:
            return (self._asked if state.epoch else None) or FIRST
        if self._asked is not None:
            return self._asked or Phrase("reason.asked_for")
        if self.layout == "strict":
            return REBUILT
        if list(state.head.tools) != [compact(tool) for tool in tools]:
            return TOOLS_CHANGED
        asked = [name for name in EPOCH_LAYERS if not was_skipped(name, skipped)]
        changed = [name for name in asked if has_changed(name, state.fitted, layers)]
        return Phrase("reason.layer_changed", layer=changed[0]) if changed else NOTHING

    def _extended(
        self,
        layers: Sequence[Layer],
        user: str | Sequence[Mapping[str, Any]] | None,
        words: Entry | None,
        again: Sequence[LayerUpdate],
        skipped: Mapping[str, Phrase],
    ) -> tuple[State, Sequence[Fitted]]:
        """The request before, and after it only what is new; and what became of each layer that is."""
        state = self._state
        if user is None or words is None:
            at = _last_user(state.entries)
            return replace(state, entries=[*state.entries[:at], *map(as_current, state.entries[at:])]), ()
        now = self._admitted(layers)
        fitted = self._fitted([layer for layer in now if not is_known(state.seen.get(key_of(layer)), layer)])
        told = self._told(state.seen, now, fitted, skipped)
        said = {key_of(one.layer) for one in told}
        told += [one for one in again if key_of(one.layer) not in said]
        entry = self._words(user, told) if told else words
        seen = dict(state.seen)
        take_in(seen, told)
        at = {**state.told, len(self._log): tuple(told)} if told else state.told
        entries = [*state.entries, entry]
        return replace(state, told=at, seen=seen, entries=entries, tokens=state.tokens + entry.tokens), fitted

    def _admitted(self, layers: Sequence[Layer]) -> list[Layer]:
        """The layers in order, each through the same gate as at the beginning of an epoch."""
        kept = ordered(layers)
        for layer in kept:
            admit(layer, self._owner, self._mark, self._lang, self._form)
        return kept

    def _fitted(self, changed: Sequence[Layer]) -> list[Fitted]:
        """What changed, each name within its share. Whether there is room for it is seen when all is together."""
        whole = [Fitted(layer) for layer in changed]
        if self._shares is None or not whole:
            return whole
        return fit_shares(
            whole, self.budget, float("inf"), self._shares, self._count, self._mark, self._lang, self._form
        )

    def _told(
        self, seen: Mapping[Key, Layer], now: Sequence[Layer], fitted: Sequence[Fitted], skipped: Mapping[str, Phrase]
    ) -> list[LayerUpdate]:
        """What differs from what the model has seen."""
        told: list[LayerUpdate] = []
        for layer, decision, why in fitted:
            known = seen.get(key_of(layer))
            if decision == "dropped":
                continue
            if known is None:
                reason = Phrase("reason.new_shortened", why=why) if why else Phrase("reason.new")
                told.append(LayerUpdate("added", layer, reason))
            else:
                old = text_hash(known.text)[:8]
                short = Phrase("reason.replaces_shortened", hash=old, why=why)
                told.append(LayerUpdate("replaces", layer, short if why else Phrase("reason.replaces", hash=old)))
        current = keys_of(now)
        for key, layer in seen.items():
            if key not in current and layer.name not in RETRIEVED and not was_skipped(layer.name, skipped):
                gone = Layer(layer.name, GONE[self._lang], layer.source, layer.owner)
                told.append(LayerUpdate("removed", gone, NO_LONGER_APPLIES))
        return told

    def _rebuilt(
        self,
        layers: Sequence[Layer],
        tools: Sequence[AnyTool],
        words: Entry | None,
        reason: Phrase,
        told: tuple[LayerUpdate, ...],
    ) -> tuple[State, Sequence[Fitted]]:
        """The layers in order, the history that fits, the current turn: how every epoch begins."""
        turn = len(self._log) if words is not None else _last_user(self._log)
        current = (words,) if words is not None else self._current_turn(reason, told)
        spent = sum(entry.tokens for entry in current) + per_request(self._count)
        kept_back = 0.0
        if self._shares is not None:
            before, costs = [entry.message for entry in self._log[:turn]], [entry.tokens for entry in self._log[:turn]]
            kept_back = for_history(before, costs, self._shares, self.budget, self._count)
        head, fitted = fit_head(
            layers, tools, spent + kept_back, shares=self._shares, budget=self.budget, count=self._count,
            owner=self._owner, mark=self._mark, lang=self._lang, form=self._form,
        )  # fmt: skip
        fixed = head.tokens + spent
        start = self._cut_point(turn, self.budget - fixed)
        if self.low_water is not None and (start or reason == CUT):
            start = self._cut_point(turn, room_for_history(self.budget, fixed, self.low_water))
        sent = tuple(one for one in fitted if one.decision != "dropped" or one.layer.name in EPOCH_LAYERS)
        state = State(
            epoch=self._state.epoch + (1 if self.layout == "ledger" or self._state.head is None else 0),
            reason=reason,
            head=head,
            fitted=sent,
            told={turn: told} if told else {},
            seen=seen_in(sent),
            entries=[*self._log[start:turn], *current],
            start=start,
            tokens=spent - per_request(self._count) + self._totals[turn] - self._totals[start],
        )
        return state, fitted

    def _current_turn(self, reason: Phrase, told: Sequence[LayerUpdate]) -> tuple[Entry, ...]:
        """The turn that goes on. What was repeated in front of its words stays there while it lasts, but for a new
        epoch, which says it all at its beginning; what was told for this turn alone always stays."""
        again = self._state.entries if reason == REBUILT else self._log
        place = _last_user(again)
        first, *rest = again[place:]
        if told and reason != REBUILT:
            words = self._words(cast("str", unguarded(fresh(first.message), self._mark)["content"]), told)
            first = _as_history(words, f"history[{self._older + place}]")
        return tuple(map(as_current, (first, *rest)))

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

    def _why_dropped(self) -> Phrase:
        if self.low_water is None:
            return Phrase("reason.over_budget_unread", n=self._older) if self._older else OVER_BUDGET
        share = f"{self.low_water:.0%}"
        whole = Phrase("reason.cut_to", share=share)
        return Phrase("reason.cut_to_unread", share=share, n=self._older) if self._older else whole

    def _propose(self, state: State, words: Entry | None, gone: Sequence[Segment] = ()) -> Context:
        assert state.head is not None
        dropped = Dropped(self._older + state.start, self._totals[state.start])
        why = self._why_dropped()
        context = build_context(
            state.head,
            state.entries,
            [*gone, *left_out(dropped, self._cost(state), self.budget, self._count, why)],
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
        if key_of(layer) in seen:
            raise LayerError("layer.repeated_source", name=layer.name, source=format_value(layer.source))
        seen.add(key_of(layer))


def _last_user(entries: Sequence[Entry]) -> int:
    for index in range(len(entries) - 1, -1, -1):
        if entries[index].message["role"] == "user":
            return index
    raise MessageError("message.nothing_to_answer")


def _as_history(entry: Entry, source: str) -> Entry:
    """The newest message becomes part of the history; the updates in front of it stay what they were."""
    *updates, (text, words) = entry.spans
    if words.layer != "user":
        return entry
    segment = words._replace(layer="history", source=source, reason=FITS)
    return replace(entry, spans=(*updates, Span(text, segment)))
