"""The messages that fit: of a history at hand (seed 001), or of a chat that grows message by message.

A `Window` keeps running totals and safe cut points as messages come in, so a turn costs what is new. What was cut is
released; the window never grows with the chat.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from lamina.assembly.budget import OVER_BUDGET, Budget, FittedLayer, StartOn, check_budget, check_start_on
from lamina.assembly.fences import holds_mark
from lamina.assembly.history import CallTracker, check_history, check_message, longest_suffix
from lamina.assembly.pieces import (
    Entry,
    PromptStyle,
    build_head,
    copy_message,
    dropped_history,
    history_entry,
    mark_current,
    order_layers,
)
from lamina.assembly.request import Words, build_context
from lamina.assembly.tokens import (
    Calibration,
    check_count,
    check_counter,
    content_tokens,
    estimate_message_tokens,
    per_message,
    per_request,
    text_tokens,
)
from lamina.errors import MessageError, format_value
from lamina.ports import Count
from lamina.text.messages import Phrase
from lamina.text.unicode import check_unicode
from lamina.types import AnyMessage, AnyTool, Context, Dropped, Layer, Message


class FittedMessages(list[Message]):
    """The fitted messages: a plain list for any SDK, which also says what it cost and what was left out."""

    __slots__ = ("_dropped", "budget", "dropped_count", "over_budget", "tokens")

    def __init__(
        self,
        messages: Sequence[Message],
        *,
        tokens: int,
        budget: float,
        dropped: tuple[int, Callable[[], int]],
        factor: float = 1.0,
    ) -> None:
        super().__init__(messages)
        self.tokens = tokens
        self.budget = budget
        self.over_budget = tokens * factor > budget
        """True when what always stays exceeds the budget by itself."""
        self.dropped_count, self._dropped = dropped

    @property
    def dropped(self) -> Dropped:
        """How many messages were left out, and their tokens, which are counted only when they are asked for."""
        return Dropped(self.dropped_count, self._dropped())


def _tokens_before(history: Sequence[AnyMessage], end: int, count: Count) -> int:
    """Tokens of `history[:end]`, every message checked."""
    if len(history) < end:
        raise MessageError("history.changed", expected=end, count=len(history))
    each, tokens = per_message(count), 0
    for index in range(end):
        message = history[index]
        check_message(message, f"history[{index}]")
        tokens += content_tokens(message, count) + each
    return tokens


def build_llm_messages(
    *,
    system_prompt: str,
    history: Sequence[AnyMessage],
    current_user_message: Words,
    max_token_budget: float,
    count_tokens: Count = estimate_message_tokens,
    start_on: StartOn = None,
) -> FittedMessages:
    """`[system, *history, current]` within a budget, as copies of what is handed in (seed 001).

    System and current always stay; of the history the longest legal suffix that fits (M3, M4, M7).
    """
    check_budget(max_token_budget)
    check_counter(count_tokens)
    check_start_on(start_on)
    if not isinstance(system_prompt, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise MessageError(
            "text.not_text", where="system_prompt", type=type(system_prompt).__name__, value=format_value(system_prompt)
        )
    system = cast(Message, {"role": "system", "content": system_prompt})
    current = cast(Message, {"role": "user", "content": current_user_message})
    fixed = per_request(count_tokens) + 2 * per_message(count_tokens)
    fixed += text_tokens(system_prompt, count_tokens, "system_prompt")
    if isinstance(current_user_message, str):
        fixed += text_tokens(current_user_message, count_tokens, "current_user_message")
    else:
        check_message(current, "current_user_message")
        fixed += content_tokens(current, count_tokens)
    history = check_history(history)
    start, used = longest_suffix(history, max_token_budget - fixed, count_tokens, start_on)
    return FittedMessages(
        [system, *map(_own_message, history[start:]), _own_message(current)],
        tokens=fixed + used,
        budget=max_token_budget,
        dropped=(start, lambda: _tokens_before(history, start, count_tokens)),
    )


def _own_message(message: AnyMessage) -> Message:
    """A copy: changing it, or a part or a call in it, never changes what the caller handed in."""
    is_plain = len(message) == 2 and isinstance(message["content"], str)  # nearly all are
    return cast(Message, dict(message) if is_plain else _copy_nested(message))


def _copy_nested(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _copy_nested(each) for name, each in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        copied = [_copy_nested(each) for each in cast("Sequence[object]", value)]
        return copied if isinstance(value, list) else tuple(copied)
    return value


class Window:
    """A growing chat under a budget. `append` what comes, `fit()` what goes out, `context()` with its receipt.

    The current turn (from the last user message on) always stays; so does the system prompt. Over the budget the
    history is cut down to `low_water` of it, only where every rule allows a cut.
    """

    def __init__(
        self,
        budget: Budget,
        style: PromptStyle,
        *,
        system: str | Sequence[Layer] = (),
        tools: Sequence[AnyTool] = (),
        history: Iterable[AnyMessage] = (),
    ) -> None:
        layers = [Layer("identity", system, "system")] if isinstance(system, str) else system
        count = budget.count
        self._limits, self._style, self._count = budget, style, count
        self._head = build_head([FittedLayer(layer) for layer in order_layers(layers)], tools, count, style)
        self._seed_count = count is estimate_message_tokens
        self._each, self._once = per_message(count), per_request(count)
        self._calls = CallTracker()
        self._messages: list[Message] = []
        self._entries: list[Entry | None] = []
        self._before: list[int] = []
        """Running total before each message; never summed again."""
        self._cuts: deque[int] = deque()
        """Where the history may be cut, as absolute positions."""
        self._base = self._start = self._total = self._dropped_tokens = 0
        self._nested = -1
        """The position of the newest message that holds more than text; plain ones are copied at the speed of C."""
        self._turn = -1
        """Where the current turn begins: the last user message."""
        self._factor = 1.0
        self._calibration = Calibration()
        self._fitted = 0
        """What the last request cost by our own count."""
        for message in history:
            self.append(message)

    def __len__(self) -> int:
        """How many messages of the chat the window holds now."""
        return self._base + len(self._messages) - self._start

    def append(self, message: AnyMessage) -> None:
        """Take in the next message of the chat. A message that is refused changes nothing."""
        position = self._base + len(self._messages)
        try:
            role, content = message["role"], message["content"]
            plain = type(content) is str and len(message) == 2 and (role == "user" or role == "assistant")
            plain = plain and not holds_mark(content, self._style.mark)
        except (KeyError, TypeError):
            role, content, plain = "", "", False
        if plain and not self._calls.open:
            if not self._seed_count:
                check_unicode(content, f"messages[{position}]")
            cost = self._count(content) if self._seed_count else check_count(self._count(content), self._count)
            own = cast(Message, {"role": role, "content": content})
        else:
            check_message(message, f"messages[{position}]")
            role = message["role"]
            own = copy_message(message, self._style.mark)
            self._nested = position
            cost = content_tokens(own, self._count)
        if not plain or self._calls.open:
            self._calls.take(own, f"messages[{position}]")
        if role != "tool" and self._limits.start_on in (None, role):
            self._cuts.append(position)
        if role == "user":
            self._turn = position
        self._messages.append(own)
        self._entries.append(None)
        self._before.append(self._total)
        self._total += cost + self._each

    @property
    def open_calls(self) -> tuple[str, ...]:
        """Tool calls that still wait for their results."""
        return tuple(self._calls.open)

    @property
    def dropped(self) -> Dropped:
        return Dropped(self._start, self._dropped_tokens)

    @property
    def tokens(self) -> int:
        """What the window costs now, system prompt and tools included."""
        return self._head.tokens + self._once + self._total - self._dropped_tokens

    def observe(self, reported_tokens: int) -> None:
        """Correct the estimate by the prompt tokens, cached ones included, that a provider reports for the last one."""
        if not self._fitted:
            raise MessageError("window.nothing_fitted")
        self._calibration = self._calibration.observe(estimated=self._fitted, reported=reported_tokens)
        self._factor = self._calibration.factor

    def fit(self) -> FittedMessages:
        """The messages to send now: system, the history that fits, the current turn."""
        self._cut()
        self._fitted = self.tokens
        held = cast("list[dict[str, Any]]", self._messages[self._start - self._base :])
        copied = map(dict[str, Any].copy, held) if self._nested < self._start else map(copy.deepcopy, held)
        kept = cast("list[Message]", list(copied))
        messages = [*(entry.message.copy() for entry in self._head.system), *kept]
        dropped = self._dropped_tokens
        return FittedMessages(
            messages,
            tokens=self.tokens,
            budget=self._limits.tokens,
            dropped=(self._start, lambda: dropped),
            factor=self._factor,
        )

    def context(self) -> Context:
        """The same messages with their receipt."""
        self._cut()
        self._fitted = self.tokens
        begin = self._start - self._base
        for index in range(len(self._messages) - 1, begin - 1, -1):
            if self._entries[index] is not None:
                break
            after = self._before[index + 1] if index + 1 < len(self._before) else self._total
            source, tokens = f"history[{self._base + index}]", after - self._before[index]
            self._entries[index] = history_entry(self._messages[index], source, self._count, self._style.owner, tokens)
        entries = cast("list[Entry]", self._entries[begin:])
        turn = self._turn - self._start
        entries[turn:] = [mark_current(entry) for entry in entries[turn:]]
        low_water, dropped = self._limits.low_water, self.dropped
        why = OVER_BUDGET if low_water is None else Phrase("reason.cut_to", share=f"{low_water:.0%}")
        notes = dropped_history(dropped, self.tokens, self._budget_tokens, self._count, why)
        return build_context(self._head, entries, notes, budget=self._limits, dropped=dropped, factor=self._factor)

    @property
    def _budget_tokens(self) -> float:
        """The budget in our own count: what the provider counts higher leaves less."""
        tokens = self._limits.tokens
        return min(tokens, 1e15) / self._factor if self._factor != 1.0 else tokens

    def _cut(self) -> None:
        if self._calls.open:
            self._calls.check(Phrase("place.request"))
        if self._turn < 0:
            raise MessageError("message.nothing_to_answer", hint="message.append_one")
        if self._limits.start_on and self._cuts and self._cuts[0] > self._start:
            self._drop_to(self._cuts[0])  # what came before the first message that may open the history
        if self.tokens <= self._budget_tokens:
            return
        at_turn = self._before[self._turn - self._base]
        fixed = self._head.tokens + self._once + self._total - at_turn
        room = self._limits.room_after_cut(fixed, self._budget_tokens)
        cuts = self._cuts
        while cuts and cuts[0] < self._turn:
            if cuts[0] > self._start and at_turn - self._before[cuts[0] - self._base] <= room:
                break
            cuts.popleft()
        self._drop_to(max(self._start, cuts[0] if cuts and cuts[0] < self._turn else self._turn))

    def _drop_to(self, start: int) -> None:
        self._start = start
        self._dropped_tokens = self._before[start - self._base]
        if self._start - self._base > max(64, len(self) // 2):
            self._release()

    def _release(self) -> None:
        """Let go of what was cut."""
        gone = self._start - self._base
        del self._messages[:gone], self._entries[:gone], self._before[:gone]
        self._base = self._start
