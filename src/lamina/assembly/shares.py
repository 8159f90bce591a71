"""Who gives way when not everything fits: each layer's share of the budget, and the ladder it goes down.

A layer has up to three forms (full, short, title) and may be left out. Of one name the last ones give way first, each a
rung at a time: all to their short form before any to its title, all to titles before any is left out. Between names the
order is fixed, text that nobody vouches for first. Pure, and the same input always ends the same way.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from lamina.errors import LayerError, format_value
from lamina.text.messages import NOTHING, Phrase
from lamina.types import Layer, SegmentDecision, Share

GIVES_WAY = ("collected", "summary", "memory", "context", "session", "skill", "scenario")
"""Who gives way, in this order; all others always stay. Trusted layers never go before untrusted ones."""
HISTORY = "history"
FULL, SHORT, TITLE, OUT = range(4)
LEFT_OUT = "reason.left_out"
RUNGS = ("", "reason.short_form", "reason.title_only", LEFT_OUT)
OVER_BUDGET = Phrase("reason.over_budget")


class Fitted(NamedTuple):
    """A layer in the form in which it goes out (or does not), and why."""

    layer: Layer
    decision: SegmentDecision = "kept"
    reason: Phrase = NOTHING


def check_shares(shares: Mapping[str, Share]) -> None:
    known = (*GIVES_WAY, HISTORY)
    for name, share in shares.items():
        if name not in known:
            raise LayerError("layer.no_share", name=format_value(name), known=known)
        if not isinstance(share, Share):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise LayerError("layer.bad_share", name=name, value=format_value(share))


def fit_layers(
    layers: Sequence[Layer],
    *,
    budget: float,
    room: float,
    shares: Mapping[str, Share],
    cost: Callable[[Layer], int],
    heading: Callable[[str], int],
) -> list[Fitted]:
    """Each layer in the fullest form for which all is within its share and, if it can be, within `room`.

    `heading` is what a name's heading costs, once, while anything stands below it.
    """
    ladder = _Ladder(layers, cost)
    for name, share in shares.items():
        why = Phrase("reason.over_share", layer=name, share=f"{share.most:.0%}")
        while (
            ladder.spent(name)
            and ladder.spent(name) + heading(name) > share.most * budget
            and ladder.step(name, 0, why)
        ):
            pass
    room -= sum(heading(name) for name in dict.fromkeys(layer.name for layer in layers))
    for name in GIVES_WAY:
        least = shares.get(name, Share()).least * budget
        while ladder.total > room and ladder.step(name, least, OVER_BUDGET):
            pass
    return ladder.fitted()


class _Ladder:
    """Where each layer stands, and what that costs. Every layer is looked at once a rung, however many there are."""

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
        of: dict[str, list[int]] = {}
        for number, layer in enumerate(layers):
            of.setdefault(layer.name, []).append(number)
            self._spent[layer.name] = self._spent.get(layer.name, 0) + self.costs[number]
        for name, numbers in of.items():
            self._ahead[name] = [(number, rung) for rung in (OUT, TITLE, SHORT) for number in numbers]

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

    def fitted(self) -> list[Fitted]:
        found: list[Fitted] = []
        for number, layer in enumerate(self.layers):
            rung = self.rungs[number]
            form = self.forms[number][rung]
            if rung == FULL:
                found.append(Fitted(layer))
            else:
                reason = Phrase(RUNGS[rung], why=self.why[number])
                found.append(Fitted(form or layer, "degraded" if form else "dropped", reason))
        return found


def _shorter(layer: Layer) -> tuple[Layer | None, Layer | None]:
    short = replace(layer, text=layer.short) if layer.short else None
    return short, replace(layer, text=layer.title) if layer.title else None
