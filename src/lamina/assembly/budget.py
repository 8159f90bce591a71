"""How many tokens a request may have, and who gives way when not everything fits: the ladder that layers go down.

A layer has up to three forms (full, short, title) and may be left out. Of one name the last ones give way first, each a
rung at a time: all to their short form before any to its title, all to titles before any is left out. Between names the
order is fixed, text that nobody vouches for first. Pure, and the same input always ends the same way.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from lamina.assembly.tokens import check_counter, estimate_message_tokens
from lamina.errors import BudgetError, LayerError, MessageError, format_value
from lamina.ports import Count
from lamina.text.messages import NOTHING, Phrase
from lamina.types import Layer, SegmentDecision, Share

StartOn = Literal["user"] | None
"""With which role the history may begin; None is any that is legal."""
GIVES_WAY = ("collected", "summary", "memory", "context", "session", "skill", "scenario")
"""Who gives way, in this order; all others always stay. Trusted layers never go before untrusted ones."""
HISTORY = "history"
FULL, SHORT, TITLE, OUT = range(4)
LEFT_OUT = "reason.left_out"
RUNGS = ("", "reason.short_form", "reason.title_only", LEFT_OUT)
OVER_BUDGET = Phrase("reason.over_budget")


@dataclass(frozen=True, slots=True)
class Budget:
    """How many tokens a request may have, who counts them, and what becomes of a history that is too long."""

    tokens: float
    count: Count = estimate_message_tokens
    shares: Mapping[str, Share] | None = None
    """What layers may take of it; None lets every layer be sent in full."""
    low_water: float | None = None
    """The share of the budget down to which a cut goes; None cuts only as much as it must."""
    start_on: StartOn = "user"

    def __post_init__(self) -> None:
        check_budget(self.tokens, "budget")
        check_start_on(self.start_on)
        check_counter(self.count)
        low_water: object = self.low_water
        is_share = isinstance(low_water, int | float) and not isinstance(low_water, bool) and 0 < low_water <= 1
        if low_water is not None and not is_share:
            raise BudgetError("budget.bad_low_water", value=format_value(low_water))
        known = (*GIVES_WAY, HISTORY)
        for name, share in (self.shares or {}).items():
            if name not in known:
                raise LayerError("layer.no_share", name=format_value(name), known=known)
            if not isinstance(share, Share):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
                raise LayerError("layer.bad_share", name=name, value=format_value(share))

    def room_after_cut(self, fixed: float, tokens: float | None = None) -> float:
        """What the history may cost after a cut. With a low-water mark that the fixed part reaches, a share of the
        rest. `tokens` is the budget in another count than the provider's."""
        tokens = self.tokens if tokens is None else tokens
        if self.low_water is None:
            return tokens - fixed
        mark = tokens * self.low_water
        return mark - fixed if fixed < mark else (tokens - fixed) * self.low_water


def check_budget(budget: object, name: str = "max_token_budget") -> None:
    """A budget is a finite number of at least 0 (M5); anything else is refused with its value."""
    if isinstance(budget, bool) or not isinstance(budget, int | float):
        raise BudgetError("budget.not_number", name=name, type=type(budget).__name__, value=format_value(budget))
    if isinstance(budget, float) and not math.isfinite(budget):
        raise BudgetError("budget.not_finite", name=name, value=format_value(budget))
    if budget < 0:
        raise BudgetError("budget.negative", name=name, value=format_value(budget))


def check_start_on(start_on: object) -> None:
    if start_on not in (None, "user"):
        raise MessageError("history.bad_start_on", value=format_value(start_on))


class FittedLayer(NamedTuple):
    """A layer in the form in which it is sent (or is not), and why."""

    layer: Layer
    decision: SegmentDecision = "kept"
    reason: Phrase = NOTHING


def fit_layers(
    layers: Sequence[Layer],
    budget: Budget,
    room: float,
    cost: Callable[[Layer], int],
    heading: Callable[[str], int] = lambda name: 0,
) -> list[FittedLayer]:
    """Each layer in the fullest form for which all is within its share and, if it can be, within `room`.

    `heading` is what a name's heading costs, once, while anything is below it.
    """
    shares = budget.shares or {}
    ladder = _Ladder(layers, cost)
    for name, share in shares.items():
        why = Phrase("reason.over_share", layer=name, share=f"{share.most:.0%}")
        limit = share.most * budget.tokens
        while ladder.spent(name) and ladder.spent(name) + heading(name) > limit and ladder.step(name, 0, why):
            pass
    room -= sum(heading(name) for name in dict.fromkeys(layer.name for layer in layers))
    for name in GIVES_WAY:
        least = shares.get(name, Share()).least * budget.tokens
        while ladder.total > room and ladder.step(name, least, OVER_BUDGET):
            pass
    return ladder.fitted()


class _Ladder:
    """The rung of each layer, and what that costs. Every layer is looked at once a rung, however many there are."""

    def __init__(self, layers: Sequence[Layer], cost: Callable[[Layer], int]) -> None:
        self.layers = layers
        self.forms: list[tuple[Layer | None, ...]] = [(layer, *_shorter(layer), None) for layer in layers]
        self.rungs = [FULL] * len(layers)
        self.why = [OVER_BUDGET] * len(layers)
        self._cost = cost
        self.costs = [cost(layer) for layer in layers]
        self.total = sum(self.costs)
        self._spent: dict[str, int] = {}
        self._ahead: dict[str, list[tuple[int, int]]] = {}
        """For each name the moves that are left, the next one last: which layer, to which rung."""
        for rung in (OUT, TITLE, SHORT):
            for number, layer in enumerate(layers):
                self._ahead.setdefault(layer.name, []).append((number, rung))
        for layer, spent in zip(layers, self.costs, strict=True):
            self._spent[layer.name] = self.spent(layer.name) + spent

    def spent(self, name: str) -> int:
        return self._spent.get(name, 0)

    def step(self, name: str, least: float, why: Phrase) -> bool:
        """One layer of this name one rung down; False when none can go without the name falling below `least`."""
        ahead = self._ahead.get(name, [])
        while ahead:
            number, rung = ahead[-1]
            form = self.forms[number][rung]
            cost = self._cost(form) if form else 0
            if (form is None and rung != OUT) or cost >= self.costs[number] > 0:
                ahead.pop()
                continue
            saved = self.costs[number] - cost
            if least and self.spent(name) - saved < least:
                return False
            ahead.pop()
            self.total -= saved
            self._spent[name] -= saved
            self.rungs[number], self.costs[number], self.why[number] = rung, cost, why
            return True
        return False

    def fitted(self) -> list[FittedLayer]:
        found: list[FittedLayer] = []
        for number, layer in enumerate(self.layers):
            rung = self.rungs[number]
            form = self.forms[number][rung]
            if rung == FULL:
                found.append(FittedLayer(layer))
            else:
                reason = Phrase(RUNGS[rung], why=self.why[number])
                found.append(FittedLayer(form or layer, "degraded" if form else "dropped", reason))
        return found


def _shorter(layer: Layer) -> tuple[Layer | None, Layer | None]:
    short = replace(layer, text=layer.short) if layer.short else None
    return short, replace(layer, text=layer.title) if layer.title else None
