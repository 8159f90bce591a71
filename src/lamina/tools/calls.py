"""One call of a tool, from the model's arguments to the text that the model reads.

A tool is code that lamina does not know: a call is checked and approved first, runs in a thread or is awaited, and ends
when its time is up. Whatever a model or a tool does wrong becomes text; none of it is raised.
"""

import asyncio
import copy
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, cast

from lamina.apart import GRACE_S, CaughtError, run_in_own_thread
from lamina.errors import LaminaError, ToolError, format_value
from lamina.ports import Ask
from lamina.text.json import AmbiguousJsonError, read_strict_json
from lamina.text.messages import Phrase, Value, join_clauses
from lamina.text.schema import find_problems, kind_of
from lamina.text.unicode import escape_surrogates
from lamina.tools.registry import Tool
from lamina.types import Decision, Outcome, ToolCallEvent

P = ParamSpec("P")
T = TypeVar("T")
MAX_ERROR_CHARS = 2_000


async def run_call(tools: Mapping[str, Tool], call: ToolCallEvent, ask: Ask | None, user_text: str = "") -> Outcome:
    tool = tools.get(call.name)
    if tool is None:
        code = "outcome.unknown_tool" if tools else "outcome.no_tools"
        return _failure(code, name=format_value(call.name), known=list(tools))
    if tool.run is None:
        return _failure("outcome.only_described", tool=tool.name)
    try:
        arguments = read_arguments(call.arguments)
    except ToolError as error:
        given = format_value(call.arguments, 200)
        return _failure("outcome.unusable_arguments", tool=tool.name, problem=error.phrase, given=given)
    problems = find_problems(tool.parameters, arguments)
    if problems:
        return _failure("outcome.misfits", tool=tool.name, problems=join_clauses(problems))
    refused = await _find_refusal(tool, call, arguments, ask, user_text)
    if refused:
        return refused
    value = await _call_function(tool, tool.run, **arguments)
    if isinstance(value, Outcome):
        return replace(value, text=escape_surrogates(value.text))
    return _make_outcome(tool, value)


def read_arguments(text: str) -> dict[str, Any]:
    """Parse the arguments that a model wrote; an empty text is an empty object. Raises ToolError for anything else."""
    try:
        value: Any = read_strict_json(text or "{}")
        text.encode()
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ToolError("arguments.lone_surrogate", at=error.start) from None
    except RecursionError:
        raise ToolError("arguments.too_deep") from None
    except AmbiguousJsonError as error:
        raise ToolError("arguments.not_json", problem=error.phrase) from None
    except ValueError as error:
        raise ToolError("arguments.not_json", problem=str(error)) from None
    if not isinstance(value, dict):
        raise ToolError("arguments.not_an_object", type=kind_of(value))
    return cast(dict[str, Any], value)


def names_host(user_text: str, host: str) -> bool:
    """Whether a text has an address of this host. A bare name does not count: `main.py` is a file."""
    bare = host.casefold().removeprefix("www.").rstrip(".")
    return bool(bare) and bool(
        re.search(rf"https?://(?:www\.)?{re.escape(bare)}(?![\w.@:-]*@|[\w-]|\.\w)", user_text.casefold())
    )


async def _find_refusal(
    tool: Tool, call: ToolCallEvent, arguments: dict[str, Any], ask: Ask | None, user_text: str
) -> Outcome | None:
    """Why a call does not run; None when it may. A call without a clear decision does not run."""
    if tool.check is None:
        return None
    decision = await _call_function(tool, tool.check, copy.deepcopy(arguments))
    if isinstance(decision, Outcome):
        return decision
    if not isinstance(decision, Decision):
        return _failure("outcome.no_decision", tool=tool.name, value=format_value(decision))
    if decision.verdict == "safe" or (decision.verdict == "confirm" and names_host(user_text, decision.host)):
        return None
    reason = decision.explain()
    if decision.verdict != "confirm":
        code = "outcome.blocked_why" if reason else "outcome.blocked"
        return Outcome(Phrase(code, tool=tool.name, reason=reason).text(), "blocked")
    answer = await ask(call, decision) if ask else None
    if answer is True:
        return None
    if answer is None:
        code = "outcome.unasked_why" if reason else "outcome.unasked"
    else:
        code = "outcome.denied_why" if reason else "outcome.denied"
    return Outcome(Phrase(code, tool=tool.name, reason=reason).text(), "refused")


async def _call_function(tool: Tool, function: Callable[P, Any], /, *args: P.args, **named: P.kwargs) -> Any:
    """The result of a function of the tool; an `Outcome` when it failed or was late. Raises our own cancellation."""
    caught = CaughtError(asyncio.CancelledError, KeyboardInterrupt)
    task = asyncio.ensure_future(_await_result(caught, function, args, named))
    try:
        await asyncio.wait({task}, timeout=tool.seconds)
        late = not task.done()
    finally:
        for _ in range(3):  # it is late or we were cancelled; it may need several attempts to react
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=GRACE_S * 1.5)
    if late:
        return _failure("outcome.out_of_time", tool=tool.name, seconds=f"{tool.seconds:g}")
    if task.cancelled():
        return _failure("outcome.gave_up", tool=tool.name)
    return _describe_error(tool, caught.error) if caught.error is not None else task.result()


async def _await_result(
    caught: CaughtError, function: Callable[..., Any], args: Sequence[object], named: Mapping[str, object]
) -> Any:
    value: Any = None
    with caught:
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004 -- an object whose call is async
            value = await function(*args, **named)
        else:
            value = await run_in_own_thread(function, *args, **named)
            value = await value if inspect.isawaitable(value) else value
    return value


def _describe_error(tool: Tool, error: BaseException) -> Outcome:
    if isinstance(error, LaminaError):
        code = "outcome.failed_next" if error.next_step else "outcome.failed"
        return _failure(code, tool=tool.name, problem=error.phrase, next=error.next_step)
    text: str | Phrase = Phrase("outcome.no_error_text")
    with CaughtError():  # the __str__ of an unknown exception may fail too
        text = escape_surrogates(str(error))[:MAX_ERROR_CHARS]
    return _failure("outcome.raised", tool=tool.name, error=type(error).__name__, problem=text)


def _make_outcome(tool: Tool, value: object) -> Outcome:
    if value is None:
        return Outcome(Phrase("outcome.done", tool=tool.name).text())
    if isinstance(value, str):
        return Outcome(escape_surrogates(value))
    try:
        return Outcome(escape_surrogates(json.dumps(value, ensure_ascii=False, allow_nan=False)))
    except (TypeError, ValueError, RecursionError) as error:
        return _failure("outcome.neither_text_nor_json", tool=tool.name, type=type(value).__name__, problem=str(error))


def _failure(code: str, **values: Value) -> Outcome:
    """A call that failed, in the language that models read."""
    return Outcome(escape_surrogates(Phrase(code, **values).text()), "failed")
