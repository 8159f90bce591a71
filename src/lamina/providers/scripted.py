"""A provider that plays a script instead of asking a model, for tests, demonstrations and drills.

A script has one list of steps for each request; a step is an event, a wait or a fault. The same script always gives the
same events. The provider keeps the contexts that it was given but never reads them: its answers come from the script.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast, get_args

from lamina.errors import (
    BrokenStreamError,
    ConnectError,
    InputError,
    ProviderError,
    RateLimitError,
    RejectedError,
    StalledError,
    format_value,
)
from lamina.providers.reader import ASK_AGAIN, WAIT_A_LITTLE, PartialCall, check_context, finish_call
from lamina.text.messages import Phrase
from lamina.types import Context, Done, DoneReason, Event, Grammar, Text, ToolCallEvent, Usage

Step = Mapping[str, Any]
"""One of:

    {"text": "…"}, with "split": [2, 5] as three pieces     {"done": "stop"}
    {"call": "name", "id": "…", "arguments": {…} or text}   {"delay": 0.1}
    {"usage": [prompt, cached, completion]}                 {"fault": "stall"}, see FAULTS
"""
FAULTS = ("stall", "cut", "garbage", "refused", "status", "endless")
"""In this order: nothing more comes; the connection ends; the answer is not JSON; no host answers; a status, with
"code" and "retry_after"; the same text without end. Arguments that are not a JSON object are another fault."""
EXAMPLE = "script.hint_example"
_KINDS = ("text", "call", "usage", "done", "delay", "fault")
_ORDER = ("text", "call", "usage", "done")
_HOST = Phrase("script.itself")


class ScriptedProvider:
    """Plays `script`, one answer for each request. After the last it starts again with `repeat`, else it refuses."""

    name = "scripted"
    grammar: Grammar = "openai"

    def __init__(
        self,
        script: Sequence[Sequence[Step]],
        *,
        model: str = "scripted",
        window: int | None = None,
        repeat: bool = False,
        idle: float = 60.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.model, self.window = model, window
        self.contexts: list[Context] = []
        self.limits: list[int | None] = []
        self.options: list[dict[str, Any]] = []
        self._script = [check_answer(answer) for answer in script]
        self._repeat, self._idle, self._sleep = repeat, idle, sleep

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, model: str = "scripted", window: int | None = None, repeat: bool = False
    ) -> "ScriptedProvider":
        """A script from a JSON file: a list of answers, each a list of steps."""
        try:
            script = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            file = format_value(os.fspath(path))
            raise InputError("script.not_readable", file=file, why=error.strerror, hint=EXAMPLE) from None
        except (ValueError, RecursionError) as error:
            raise InputError(
                "script.not_json", file=format_value(os.fspath(path)), why=str(error), hint=EXAMPLE
            ) from None
        if not isinstance(script, list) or not all(isinstance(answer, list) for answer in cast("list[Any]", script)):
            raise InputError("script.not_a_list", file=format_value(os.fspath(path)), hint=EXAMPLE)
        return cls(cast("list[list[Step]]", script), model=model, window=window, repeat=repeat)

    def stream(
        self, context: Context, *, max_tokens: int | None = None, options: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[Event]:
        number = len(self.contexts)
        self.contexts.append(check_context(context))
        self.limits.append(max_tokens)
        self.options.append(dict(options or {}))
        return self._play(number)

    async def _play(self, number: int) -> AsyncGenerator[Event]:
        if not self._script or (number >= len(self._script) and not self._repeat):
            raise RejectedError("script.too_short", answers=len(self._script), request=number + 1)
        called = False
        for place, step in enumerate(self._script[number % len(self._script)]):
            if "delay" in step:
                await self._sleep(step["delay"])
            elif step.get("fault") == "stall":
                await self._sleep(self._idle)
                raise StalledError("provider.stalled", host=_HOST, seconds=self._idle, hint=ASK_AGAIN)
            elif step.get("fault") == "endless":
                while True:
                    await self._sleep(0)
                    yield Text(str(step.get("said", "and on ")))
            elif "fault" in step:
                raise make_fault(step)
            else:
                for event in make_events(step, place):
                    called = called or isinstance(event, ToolCallEvent)
                    yield event
                if "done" in step:
                    return
        yield Done("tool_calls" if called else "stop")

    async def close(self) -> None:
        """There is nothing to release."""

    def __repr__(self) -> str:
        return f"ScriptedProvider({len(self._script)} answers)"


def make_events(step: Step, place: int) -> list[Event]:
    if "text" in step:
        text, points = step["text"], [0, *step.get("split", ()), len(step["text"])]
        pieces = [text[begin:end] for begin, end in pairwise(points)]
        return [Text(piece) for piece in pieces if piece]
    if "call" in step:
        arguments = step.get("arguments", {})
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        call = PartialCall(step.get("id", f"call_{place}"), step["call"], [written])
        return [finish_call(call, place, "stop", _HOST)]
    if "usage" in step:
        return [Usage(*step["usage"])]
    return [Done(step["done"])]


def make_fault(step: Step) -> ProviderError:
    kind, code = step["fault"], step.get("code", 500)
    if kind == "cut":
        return BrokenStreamError("script.cut", hint=ASK_AGAIN)
    if kind == "garbage":
        return BrokenStreamError("provider.not_json", host=_HOST, value="'<garbage'", hint=ASK_AGAIN)
    if kind == "refused":
        return ConnectError("provider.unreachable", host=_HOST, hint="provider.hint_running")
    if code in (429, 503, 529):
        after = step.get("retry_after")
        hint = Phrase("provider.hint_wait", seconds=after) if after else WAIT_A_LITTLE
        return RateLimitError("script.answered", status=code, hint=hint, provider_status=code, retry_after=after)
    hint = "provider.hint_ask_later"
    return RejectedError("script.answered", status=code, hint=hint, provider_status=code, retryable=code >= 500)


def check_answer(answer: Sequence[Step]) -> list[Step]:
    """Check that the events are in the order in which every provider gives them; waits and faults may be anywhere."""
    steps = [check_step(step) for step in answer]
    kinds = [kind for step in steps for kind in _ORDER if kind in step]
    if kinds != sorted(kinds, key=_ORDER.index) or kinds.count("usage") > 1 or kinds.count("done") > 1:
        raise InputError("script.out_of_order", kinds=kinds)
    return steps


def check_step(step: Step) -> Step:
    """Check a step before it is played: a mistake in a script must not look like a fault that it plays."""
    kinds = [kind for kind in _KINDS if kind in step] if isinstance(step, Mapping) else []  # pyright: ignore[reportUnnecessaryIsInstance] -- scripts come from files
    if len(kinds) != 1:
        raise InputError("script.bad_step", value=format_value(step), known=[*_KINDS])
    if not _CHECKS[kinds[0]](step):
        raise InputError("script.bad_values", value=format_value(step))
    return step


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _are_points(value: object) -> bool:
    points = cast("list[Any]", value) if isinstance(value, list) else [-1]
    return all(isinstance(point, int) and _is_number(point) for point in points) and points == sorted(points)


def _is_usage(value: object) -> bool:
    counts = cast("list[Any]", value) if isinstance(value, list | tuple) else []
    return len(counts) == 3 and all(isinstance(count, int) and _is_number(count) for count in counts)


_CHECKS: dict[str, Callable[[Step], bool]] = {
    "text": lambda step: isinstance(step["text"], str) and _are_points(step.get("split", [])),
    "call": lambda step: isinstance(step["call"], str) and isinstance(step.get("id", ""), str),
    "usage": lambda step: _is_usage(step["usage"]),
    "done": lambda step: step["done"] in get_args(DoneReason),
    "delay": lambda step: _is_number(step["delay"]),
    "fault": lambda step: (
        step["fault"] in FAULTS and _is_number(step.get("code", 500)) and _is_number(step.get("retry_after", 0))
    ),
}
