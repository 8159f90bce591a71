"""The window of a growing chat: append a message, get the messages that fit.

Running totals and safe cut points are kept as messages come in, so a turn costs what is new.
What was cut is released; the window never grows with the chat.
"""

import copy
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, cast

from lamina.assembly.checks import check_message
from lamina.assembly.context import build_context
from lamina.assembly.entries import Entry, as_current, build_head, history_entry, left_out, own_copy
from lamina.assembly.fences import check_mark, holds_mark
from lamina.assembly.messages import Messages, StartOn, check_start_on
from lamina.assembly.shares import OVER_BUDGET
from lamina.assembly.tokens import (
    Calibration,
    check_budget,
    check_count,
    check_counter,
    content_tokens,
    estimate_message_tokens,
    per_message,
    per_request,
)
from lamina.errors import BudgetError, MessageError, OpenCallsError, format_value
from lamina.ports import Count
from lamina.text.messages import Phrase
from lamina.text.unicode import check_unicode
from lamina.types import AnyMessage, AnyTool, Context, Dropped, Lang, Layer, Message


def check_low_water(low_water: object) -> float | None:
    """A share of the budget down to which a cut goes; None cuts only as much as it must."""
    if low_water is None:
        return None
    if isinstance(low_water, bool) or not isinstance(low_water, int | float) or not 0 < low_water <= 1:
        raise BudgetError("budget.bad_low_water", value=format_value(low_water))
    return float(low_water)


def room_for_history(budget: float, fixed: float, low_water: float | None) -> float:
    """What the history may cost after a cut. With a low-water mark that the fixed part reaches, a share of the rest."""
    if low_water is None:
        return budget - fixed
    return budget * low_water - fixed if fixed < budget * low_water else (budget - fixed) * low_water


class CallTracker:
    """Which tool calls wait for their results, as messages come in one by one."""

    def __init__(self) -> None:
        self.open: dict[str, None] = {}
        """Their ids, in order."""

    def take(self, message: AnyMessage, where: str) -> None:
        """Take the next message in, or refuse it and change nothing."""
        if message["role"] == "tool":
            call = message["tool_call_id"]
            if call not in self.open:
                waiting = [*map(format_value, self.open)]
                hint = "" if waiting else "call.none_waiting"
                raise MessageError(
                    "call.unexpected_result", where=where, call=format_value(call), waiting=waiting, hint=hint
                )
            del self.open[call]
            return
        self.check(where)
        self.open = {call["id"]: None for call in message.get("tool_calls") or ()}

    def check(self, where: str | Phrase) -> None:
        if self.open:
            raise OpenCallsError("call.still_open", where=where, call=format_value(next(iter(self.open))))


class Window:
    """A growing chat under a budget. `append` what comes, `fit()` what goes out, `context()` with its receipt.

    The current turn (from the last user message on) always stays; so does the system prompt. Over the budget the
    history is cut down to `low_water` of it, only where every rule allows a cut.
    """

    def __init__(
        self,
        *,
        budget: float,
        system: str | Sequence[Layer] = (),
        tools: Sequence[AnyTool] = (),
        history: Iterable[AnyMessage] = (),
        count: Count = estimate_message_tokens,
        low_water: float | None = None,
        start_on: StartOn = None,
        owner: str | None = None,
        mark: str | None = None,
        lang: Lang = "en",
    ) -> None:
        self.budget = check_budget(budget, "budget")
        self.low_water = check_low_water(low_water)
        check_start_on(start_on)
        check_counter(count)
        layers = [Layer("identity", system, "system")] if isinstance(system, str) else system
        self._mark = check_mark(mark)
        self._head = build_head(layers, tools, count=count, owner=owner, mark=self._mark, lang=lang)
        self._count, self._start_on, self._owner = count, start_on, owner
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
        """Where the newest message stands that holds more than text; plain ones are copied at the speed of C."""
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
            plain = plain and not holds_mark(content, self._mark)
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
            own = own_copy(message, self._mark)
            self._nested = position
            cost = content_tokens(own, self._count)
        safe = role != "tool"
        if not plain or self._calls.open:
            self._calls.take(own, f"messages[{position}]")
        if safe and (self._start_on is None or role == self._start_on):
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

    def fit(self) -> Messages:
        """The messages to send now: system, the history that fits, the current turn."""
        self._cut()
        self._fitted = self.tokens
        held = cast("list[dict[str, Any]]", self._messages[self._start - self._base :])
        copied = map(dict[str, Any].copy, held) if self._nested < self._start else map(copy.deepcopy, held)
        kept = cast("list[Message]", list(copied))
        messages = [*(entry.message.copy() for entry in self._head.system), *kept]
        dropped = self._dropped_tokens
        return Messages(
            messages,
            tokens=self.tokens,
            budget=self.budget,
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
            self._entries[index] = history_entry(self._messages[index], source, self._count, self._owner, tokens)
        entries = cast("list[Entry]", self._entries[begin:])
        turn = self._turn - self._start
        entries[turn:] = [as_current(entry) for entry in entries[turn:]]
        why = OVER_BUDGET if self.low_water is None else Phrase("reason.cut_to", share=f"{self.low_water:.0%}")
        gone = left_out(self.dropped, self.tokens, self._budget, self._count, why)
        return build_context(
            self._head,
            entries,
            gone,
            budget=self.budget,
            count=self._count,
            dropped=self.dropped,
            factor=self._factor,
        )

    @property
    def _budget(self) -> float:
        """The budget in our own count: what the provider counts higher leaves less."""
        return min(self.budget, 1e15) / self._factor if self._factor != 1.0 else self.budget

    def _cut(self) -> None:
        if self._calls.open:
            self._calls.check(Phrase("place.request"))
        if self._turn < 0:
            raise MessageError("message.nothing_to_answer", hint="message.append_one")
        if self._start_on and self._cuts and self._cuts[0] > self._start:
            self._drop_to(self._cuts[0])  # what came before the first message that may open the history
        if self.tokens <= self._budget:
            return
        at_turn = self._before[self._turn - self._base]
        fixed = self._head.tokens + self._once + self._total - at_turn
        room = room_for_history(self._budget, fixed, self.low_water)
        cuts = self._cuts
        while cuts and cuts[0] < self._turn and (
            cuts[0] <= self._start or at_turn - self._before[cuts[0] - self._base] > room
        ):  # fmt: skip
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
