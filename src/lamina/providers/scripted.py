"""The shipped fake: it plays a script instead of asking a model. For tests, demonstrations and drills.

A script has one list of steps for each request; a step is an event, a wait or a fault. The same script gives the same
events, always. It keeps the contexts that it was given. It never reads them: what it says is in the script alone.
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
    shown,
)
from lamina.providers.forms import PartialCall, checked_context, finished_call
from lamina.types import Context, Done, DoneReason, Event, Grammar, Text, ToolCallEvent, Usage

Step = Mapping[str, Any]
"""One of:

    {"text": "…"}, with "split": [2, 5] as three pieces     {"done": "stop"}
    {"call": "name", "id": "…", "arguments": {…} or text}   {"delay": 0.1}
    {"usage": [prompt, cached, completion]}                 {"fault": "stall"}, see FAULTS
"""
FAULTS = ("stall", "cut", "garbage", "refused", "status", "endless")
"""Nothing more comes; the connection ends; what comes is no JSON; nobody is there; a status, with "code" and
"retry_after"; the same text without end. Arguments that are no JSON object are a fault of their own."""
_KINDS = ("text", "call", "usage", "done", "delay", "fault")
_ORDER = ("text", "call", "usage", "done")
_HOST = "the script"
_WRITE = 'name a file such as [[{"text": "Hello"}]], a list of steps for each answer'


class ScriptedProvider:
    """Plays `script`, one answer for each request; past the last it begins again with `repeat`, else it refuses."""

    name = "scripted"
    grammar: Grammar = "openai"

    def __init__(
        self, script: Sequence[Sequence[Step]], *, model: str = "scripted", window: int | None = None,
        repeat: bool = False, idle: float = 60.0, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        self.model, self.window = model, window
        self.contexts: list[Context] = []
        self.limits: list[int | None] = []
        self.options: list[dict[str, Any]] = []
        self._script = [checked_answer(answer) for answer in script]
        self._repeat, self._idle, self._sleep = repeat, idle, sleep

    @classmethod
    def load(cls, path: str | os.PathLike[str], **options: Any) -> "ScriptedProvider":
        """A script from a JSON file: a list of answers, each a list of steps."""
        try:
            script = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(
                f"the script {shown(os.fspath(path))} cannot be read: {error.strerror}", hint=_WRITE
            ) from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"the script {shown(os.fspath(path))} is no JSON: {error}", hint=_WRITE) from None
        if not isinstance(script, list) or not all(isinstance(answer, list) for answer in cast("list[Any]", script)):
            raise InputError("a script is a list of answers, each a list of steps", hint='[[{"text": "Hello"}]]')
        return cls(cast("list[list[Step]]", script), **options)

    def stream(
        self, context: Context, *, max_tokens: int | None = None, options: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[Event]:
        number = len(self.contexts)
        self.contexts.append(checked_context(context))
        self.limits.append(max_tokens)
        self.options.append(dict(options or {}))
        return self._play(number)

    async def _play(self, number: int) -> AsyncGenerator[Event]:
        if not self._script or (number >= len(self._script) and not self._repeat):
            raise RejectedError(
                f"the script has {len(self._script)} answers and this is request {number + 1}",
                hint="write a longer script, or let it repeat",
            )
        called = False
        for place, step in enumerate(self._script[number % len(self._script)]):
            if "delay" in step:
                await self._sleep(step["delay"])
            elif step.get("fault") == "stall":
                await self._sleep(self._idle)
                raise StalledError(f"the script sent nothing more for {self._idle:g} seconds", hint="ask again")
            elif step.get("fault") == "endless":
                while True:
                    await self._sleep(0)
                    yield Text(str(step.get("said", "and on ")))
            elif "fault" in step:
                raise fault_of(step)
            else:
                for event in events_of(step, place):
                    called = called or isinstance(event, ToolCallEvent)
                    yield event
                if "done" in step:
                    return
        yield Done("tool_calls" if called else "stop")

    async def close(self) -> None:
        """There is nothing to let go of."""

    def __repr__(self) -> str:
        return f"ScriptedProvider({len(self._script)} answers)"


def events_of(step: Step, place: int) -> list[Event]:
    if "text" in step:
        text, points = step["text"], [0, *step.get("split", ()), len(step["text"])]
        pieces = [text[begin:end] for begin, end in pairwise(points)]
        return [Text(piece) for piece in pieces if piece]
    if "call" in step:
        arguments = step.get("arguments", {})
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        call = PartialCall(step.get("id", f"call_{place}"), step["call"], written)
        return [finished_call(call, place, "stop", _HOST)]
    if "usage" in step:
        return [Usage(*step["usage"])]
    return [Done(step["done"])]


def fault_of(step: Step) -> ProviderError:
    kind, code = step["fault"], step.get("code", 500)
    if kind == "cut":
        return BrokenStreamError("the connection to the script was cut", hint="ask again")
    if kind == "garbage":
        return BrokenStreamError("the script sent '<garbage', which is no JSON", hint="ask again")
    if kind == "refused":
        return ConnectError("the script cannot be reached", hint="is it running?")
    if code in (429, 503, 529):
        after = step.get("retry_after")
        wait = f"wait {after:g} seconds" if after else "wait a little"
        return RateLimitError(
            f"the script answered {code}", hint=f"{wait}, then ask again", code=code, retry_after=after
        )
    return RejectedError(f"the script answered {code}", hint="ask again later", code=code, retryable=code >= 500)


def checked_answer(answer: Sequence[Step]) -> list[Step]:
    """Events in the order in which every provider gives them; waits and faults may stand anywhere."""
    steps = [checked_step(step) for step in answer]
    kinds = [kind for step in steps for kind in _ORDER if kind in step]
    if kinds != sorted(kinds, key=_ORDER.index) or kinds.count("usage") > 1 or kinds.count("done") > 1:
        raise InputError(f"the steps are out of order: {', '.join(kinds)}", hint="texts, calls, one usage, one done")
    return steps


def checked_step(step: Step) -> Step:
    """A step that can be played, or an error now: a slip in a script must not look like a fault that it plays."""
    kinds = [kind for kind in _KINDS if kind in step] if isinstance(step, Mapping) else []  # pyright: ignore[reportUnnecessaryIsInstance] -- scripts come from files
    if len(kinds) != 1:
        raise InputError(f"{shown(step)} is no step of a script", hint=f"one of {', '.join(_KINDS)}")
    if not _CHECKS[kinds[0]](step):
        raise InputError(f"{shown(step)} cannot be played", hint="see the table of steps in docs/providers.md")
    return step


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _points(value: object) -> bool:
    points = cast("list[Any]", value) if isinstance(value, list) else [-1]
    return all(isinstance(point, int) and _number(point) for point in points) and points == sorted(points)


def _usage(value: object) -> bool:
    counts = cast("list[Any]", value) if isinstance(value, list | tuple) else []
    return len(counts) == 3 and all(isinstance(count, int) and _number(count) for count in counts)


_CHECKS: dict[str, Callable[[Step], bool]] = {
    "text": lambda step: isinstance(step["text"], str) and _points(step.get("split", [])),
    "call": lambda step: isinstance(step["call"], str) and isinstance(step.get("id", ""), str),
    "usage": lambda step: _usage(step["usage"]),
    "done": lambda step: step["done"] in get_args(DoneReason),
    "delay": lambda step: _number(step["delay"]),
    "fault": lambda step: (
        step["fault"] in FAULTS and _number(step.get("code", 500)) and _number(step.get("retry_after", 0))
    ),
}
