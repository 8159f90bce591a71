"""What text, messages and tools cost. Counting only: nothing here decides what is kept.

Counters are plain functions from text to tokens. What a counter knows about chats beyond text
(`per_message`, `per_request`, `tools`) is read from it where it has that, and is 0 where it has not.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from lamina.assembly.images import image_tokens
from lamina.errors import BudgetError, CounterError, MessageError, format_value
from lamina.ports import Count
from lamina.text.json import write_json
from lamina.text.unicode import check_unicode, surrogate_error, utf8_size
from lamina.types import AnyMessage, AnyTool


def estimate_message_tokens(text: str) -> int:
    """A quarter of the UTF-8 bytes, rounded up; 0 for no text (M1). Fast and rough: JSON and code come out too low."""
    try:
        return (utf8_size(text) + 3) // 4
    except UnicodeEncodeError as error:
        raise surrogate_error(error, "text") from None
    except AttributeError:
        raise MessageError("text.not_text", where="text", type=type(text).__name__, value=format_value(text)) from None


def check_budget(budget: object, name: str = "max_token_budget") -> float:
    """A budget is a finite number of at least 0 (M5); anything else is refused with its value."""
    if isinstance(budget, bool) or not isinstance(budget, int | float):
        raise BudgetError("budget.not_number", name=name, type=type(budget).__name__, value=format_value(budget))
    if isinstance(budget, float) and not math.isfinite(budget):
        raise BudgetError("budget.not_finite", name=name, value=format_value(budget))
    if budget < 0:
        raise BudgetError("budget.negative", name=name, value=format_value(budget))
    return budget


def counter_name(count: Count) -> str:
    """The name under which a receipt shows a counter."""
    name = getattr(count, "name", None) or getattr(count, "__name__", None)
    return name if isinstance(name, str) else type(count).__name__


def check_count(value: object, count: Count) -> int:
    """A counter's answer must be a whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise CounterError("counter.bad_count", name=format_value(counter_name(count)), value=format_value(value))
    return value


def text_tokens(text: str, count: Count, where: str = "text") -> int:
    """Tokens of one text, with the counter's answer and the text itself checked."""
    check_unicode(text, where)
    return check_count(count(text), count)


def message_tokens(message: AnyMessage, count: Count) -> int:
    """Tokens of a checked message: text, pictures, tool calls and what the counter adds for each message."""
    return content_tokens(message, count) + per_message(count)


def content_tokens(message: AnyMessage, count: Count) -> int:
    """Tokens of what stands in a message, without the wrapping."""
    content = message["content"]
    total = 0
    if isinstance(content, str):
        total = text_tokens(content, count)
    elif content is not None:
        for part in content:
            total += text_tokens(part["text"], count) if part["type"] == "text" else image_tokens(part["image_url"])
    for call in message.get("tool_calls") or ():
        function: Mapping[str, str] = call["function"]
        total += text_tokens(function["name"], count) + text_tokens(function["arguments"], count)
    return total


def per_message(count: Count) -> int:
    """Tokens that wrap each message, 0 for a counter of plain text."""
    extra = getattr(count, "per_message", 0)
    return extra if extra == 0 else check_count(extra, count)


def per_request(count: Count) -> int:
    """Tokens that each request costs once, 0 for a counter of plain text."""
    extra = getattr(count, "per_request", 0)
    return extra if extra == 0 else check_count(extra, count)


def tool_tokens(tools: Sequence[AnyTool], count: Count) -> int:
    """Tokens of the tools' schemas: by the counter's own rule, else of their compact JSON."""
    if not tools:
        return 0
    own: Callable[[Sequence[AnyTool]], int] | None = getattr(count, "tools", None)
    if own is not None:
        return check_count(own(tools), count)
    return sum(text_tokens(compact(tool), count) for tool in tools)


def compact(value: object) -> str:
    """JSON without spaces, Unicode as it is: the one form in which lamina writes JSON."""
    try:
        text = write_json(value)
        utf8_size(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise MessageError("value.not_json", value=format_value(value), why=format_value(str(error))) from None
    return text


def check_counter(count: object) -> None:
    if not callable(count):
        raise CounterError("counter.not_callable", value=format_value(count))


MIN_FACTOR = 0.75
"""The seed's estimate is at most this much too high for plain English; anything lower is a report of something else."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the provider's reported usage has taught about an estimate; a value, so keep what `observe` returns.

    `factor` is reported over estimated tokens of the last requests, older ones fading. It is never below 0.75 and a
    report never counts for more than four times the estimate: usage that leaves out cached tokens, or one odd answer,
    cannot break a budget.
    """

    estimated: float = 0.0
    reported: float = 0.0
    fade: float = 0.8

    @property
    def factor(self) -> float:
        return max(MIN_FACTOR, self.reported / self.estimated) if self.estimated else 1.0

    def observe(self, *, estimated: int, reported: int) -> "Calibration":
        """Take in one request: what we estimated and what the provider says it was."""
        for name, value in (("estimated", estimated), ("reported", reported)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:  # pyright: ignore[reportUnnecessaryIsInstance] -- comes from a provider's JSON
                raise CounterError("counter.bad_usage", name=name, value=format_value(value))
        if not estimated or not reported:
            return self
        bounded = min(max(reported, estimated / 4), estimated * 4)
        return replace(
            self, estimated=self.estimated * self.fade + estimated, reported=self.reported * self.fade + bounded
        )

    def applied(self, count: Count) -> Count:
        """The same counter, corrected."""
        return Corrected(count, self.factor)


KNOWN, SHORT = 16_384, 4_096
"""How many texts a counter remembers, and how long each may be: together 64 MB at the very most."""


class Remembered:
    """A counter that knows the texts it has counted already, so that a turn costs what is new."""

    def __init__(self, count: Count) -> None:
        self.name, self.per_message, self.per_request = counter_name(count), per_message(count), per_request(count)
        self._count = count
        self._known = lru_cache(KNOWN)(count)

    def __call__(self, text: str, /) -> int:
        return self._known(text) if len(text) <= SHORT else self._count(text)

    def tools(self, tools: Sequence[AnyTool], /) -> int:
        return tool_tokens(tools, self._count)


class Corrected:
    """A counter times a factor, rounded up."""

    def __init__(self, count: Count, factor: float) -> None:
        self.count, self.factor = count, factor
        self.name = f"{counter_name(count)}×{factor:.3f}"
        self.per_message = math.ceil(per_message(count) * factor)
        self.per_request = math.ceil(per_request(count) * factor)

    def __call__(self, text: str, /) -> int:
        return math.ceil(self.count(text) * self.factor)

    def tools(self, tools: Sequence[Mapping[str, Any]], /) -> int:
        return math.ceil(tool_tokens(tools, self.count) * self.factor)
