"""Tools from typed functions, and calls that never raise for what a model or a tool did wrong (S2, S3, S8)."""

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import NotFoundError, ToolError
from lamina.text.messages import Phrase
from lamina.text.schema import find_problems
from lamina.tools.registry import Tool, ToolRegistry, build_schema
from lamina.types import Decision, Outcome, ToolCallEvent


class Place(TypedDict):
    city: str
    zip: NotRequired[int]


def look(
    what: Annotated[str, "What to look for."], where: list[str], deep: bool = False, most: int | None = None,
    weight: float = 0.5, kind: Literal["a", "b"] = "a", tags: dict[str, int] | None = None, at: Place | None = None,
) -> str:  # fmt: skip
    """Look for something. Use it before you read whole files."""
    return f"{what} {where} {deep} {most} {weight} {kind} {tags} {at}"


def call(name: str, arguments: Any = None) -> ToolCallEvent:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return ToolCallEvent("call1", name, text)


def run(tool: Tool, arguments: Any = None, **options: Any) -> Outcome:
    return asyncio.run(ToolRegistry(tool).call(call(tool.name, arguments), **options))


def tool_of(function: Callable[..., Any], **options: Any) -> Tool:
    return Tool.of(function, name="t", description="d", **options)


def test_a_typed_function_becomes_a_schema() -> None:
    tool = Tool.of(look)
    assert (tool.name, tool.description) == ("look", "Look for something. Use it before you read whole files.")
    assert tool.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["what", "where"],
        "properties": {
            "what": {"type": "string", "description": "What to look for."},
            "where": {"type": "array", "items": {"type": "string"}},
            "deep": {"type": "boolean", "default": False},
            "most": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "weight": {"type": "number", "default": 0.5},
            "kind": {"enum": ["a", "b"], "type": "string", "default": "a"},
            "tags": {
                "anyOf": [{"type": "object", "additionalProperties": {"type": "integer"}}, {"type": "null"}],
                "default": None,
            },
            "at": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}},
                        "additionalProperties": False,
                        "required": ["city"],
                    },
                    {"type": "null"},
                ],
                "default": None,
            },
        },
    }


def bare(x): ...  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
def several(*words: str) -> None: ...
def named(**words: str) -> None: ...
def odd(x: bytes) -> None: ...
def nested(x: list[set[int]]) -> None: ...
def untyped_list(x: list) -> None: ...  # pyright: ignore[reportMissingTypeArgument]
def int_keys(x: dict[int, str]) -> None: ...
def forward(x: "Nowhere") -> None: ...  # pyright: ignore[reportUndefinedVariable] # noqa: F821
def by_place(x: int, /) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (bare, "parameter x of the tool t has no type"),
        (several, r"cannot name the parameter \*words.* of the tool t"),
        (named, r"\*\*words"),
        (by_place, "cannot name the parameter x.* of the tool t"),
        (odd, "parameter x of the tool t has a type without a schema: <class 'bytes'>"),
        (nested, r"set\[int\]"),
        (untyped_list, "type without a schema"),
        (int_keys, r"dict\[int, str\]"),
        (forward, "Nowhere"),
    ],
)
def test_a_parameter_without_a_schema_is_refused_by_name(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(ToolError, match=words):
        tool_of(function)


def test_S3_a_function_without_a_docstring_is_refused_and_a_description_helps() -> None:
    def silent(x: int) -> int:
        return x

    with pytest.raises(ToolError, match="the tool silent has no description"):
        Tool.of(silent)
    assert Tool.of(silent, description="Gives it back.").description == "Gives it back."


def test_methods_partials_and_objects_are_functions_too() -> None:
    class Adder:
        def __call__(self, a: int, b: int = 1) -> int:
            return a + b

    assert run(tool_of(Adder()), {"a": 2}).text == "3"

    def add(a: int, b: int) -> int:
        return a + b

    bound = tool_of(partial(add, b=5))
    assert run(bound, {"a": 2}).text == "7"
    with pytest.raises(ToolError, match="the tool partial has no description"):
        Tool.of(partial(add, b=5))


def test_the_decorator_registers_and_gives_the_function_back() -> None:
    registry = ToolRegistry()

    @registry.function
    def one(x: int) -> int:
        """Gives it back."""
        return x

    @registry.function(modes=("agent",), name="zwei", max_chars=10)
    def two(x: int) -> int:
        """Doubles it."""
        return 2 * x

    assert (one(3), two(3)) == (3, 6)
    assert [tool.name for tool in registry] == ["one", "zwei"]
    assert [tool.name for tool in registry.for_mode("plan")] == ["one"]
    assert [tool.name for tool in registry.for_mode("agent")] == ["one", "zwei"]
    assert registry["zwei"].max_chars == 10
    assert registry.for_mode("plan").notes() == "- **one**: Gives it back."


def test_unknown_modes_and_impossible_times_are_refused() -> None:
    with pytest.raises(ToolError, match=r"no mode named 'yolo'.*agent, plan, ask"):
        ToolRegistry().for_mode("yolo")
    with pytest.raises(ToolError, match="the mode 'yolo', which is unknown"):
        Tool("t", "d", modes=("yolo",))
    for seconds in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ToolError, match="seconds="):
            Tool("t", "d", seconds=seconds)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("{", "they are not JSON"),
        ("[1]", "a JSON array, not an object"),
        ('"x"', "a JSON string, not an object"),
        ("1e999", "the number '1e999' is too large"),
        ('{"what": NaN, "where": []}', "NaN is not a number in JSON"),
        ('{"what": "a", "what": "b", "where": []}', "'what' appears twice in one object"),
        ('{"what": "\\ud800", "where": []}', "half of a surrogate pair"),
        ("[" * 100_000, "nested too deeply"),
        ({"what": "x"}, "where is missing"),
        ({}, "what is missing; where is missing"),
        ({"what": "x", "where": [], "wat": 1}, "wat is unknown (known: what, where, deep"),
        ({"what": 1, "where": []}, "what must be of type string, not integer: 1"),
        ({"what": "x", "where": "y"}, "where must be of type array, not string: 'y'"),
        ({"what": "x", "where": ["y", 1]}, "where[1] must be of type string, not integer: 1"),
        ({"what": "x", "where": [], "deep": 1}, "deep must be of type boolean, not integer: 1"),
        ({"what": "x", "where": [], "deep": "true"}, "deep must be of type boolean, not string: 'true'"),
        ({"what": "x", "where": [], "most": True}, "most must be of type integer|null, not boolean: True"),
        ({"what": "x", "where": [], "most": "3"}, "most must be of type integer|null, not string: '3'"),
        ({"what": "x", "where": [], "most": 3.0}, "not number: 3.0"),
        ({"what": "x", "where": [], "kind": "c"}, 'kind must be one of "a", "b", not \'c\''),
        ({"what": "x", "where": [], "tags": {"a": "b"}}, "tags.a must be of type integer, not string: 'b'"),
        ({"what": "x", "where": [], "at": {"zip": 1}}, "at.city is missing"),
        ({"what": "x", "where": [], "at": {"city": "x", "town": 1}}, "at.town is unknown (known: city, zip)"),
    ],
)
def test_S8_arguments_that_do_not_fit_are_each_named_with_their_value(arguments: Any, words: str) -> None:
    outcome = run(Tool.of(look), arguments)
    assert outcome.state == "failed"
    assert words in outcome.text
    assert "again" in outcome.text
    assert len(outcome.text) < 1_000


def test_S8_arguments_that_fit_are_passed_as_they_are() -> None:
    outcome = run(Tool.of(look), {"what": "雨", "where": ["a"], "weight": 2, "most": 3, "at": {"city": "上海"}})
    assert outcome == Outcome("雨 ['a'] False 3 2 a None {'city': '上海'}")


def test_no_arguments_at_all_are_an_empty_object() -> None:
    assert run(tool_of(lambda: "ok"), "").text == "ok"


def test_a_parameter_may_have_any_name() -> None:
    def f(tool: str, function: str, call: str, args: str) -> str:
        return tool + function + call + args

    assert run(tool_of(f), {"tool": "a", "function": "b", "call": "c", "args": "d"}).text == "abcd"


def test_S8_an_unknown_tool_names_those_that_are_there() -> None:
    outcome = asyncio.run(ToolRegistry(Tool.of(look)).call(call("rm_rf\n")))
    assert outcome.state == "failed"
    assert "no tool named 'rm_rf\\n'" in outcome.text
    assert "look" in outcome.text
    assert "none" in asyncio.run(ToolRegistry().call(call("x"))).text


def test_a_tool_that_is_only_described_says_so() -> None:
    assert "cannot be run" in run(Tool("t", "d")).text


async def test_async_functions_are_awaited_and_others_run_in_a_thread() -> None:
    async def here() -> bool:
        await asyncio.sleep(0)
        return threading.current_thread() is threading.main_thread()

    def there() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert (await ToolRegistry(tool_of(here)).call(call("t"))).text == "true"
    assert (await ToolRegistry(tool_of(there)).call(call("t"))).text == "false"
    assert (await ToolRegistry(tool_of(lambda: here())).call(call("t"))).text == "true"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("行\n", "行\n"), (None, "t is done."), ({"a": [1, "行"]}, '{"a": [1, "行"]}'), (3, "3"), (True, "true"),
        ("\ud800", "\\ud800"), (Outcome("no", "failed"), "no"),
    ],
)  # fmt: skip
def test_results_that_are_no_text_become_json(value: object, text: str) -> None:
    assert run(tool_of(lambda: value)).text == text


@pytest.mark.parametrize("value", [b"x", {1}, float("nan"), object()])
def test_results_that_are_neither_are_a_failure(value: object) -> None:
    outcome = run(tool_of(lambda: value))
    assert outcome.state == "failed"
    assert "neither text nor JSON" in outcome.text


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("bad"), "t failed: ValueError: bad."),
        (NotFoundError("no skill named 'x'", hint="known: y"), "t failed: no skill named 'x'. Next: known: y."),
        (SystemExit(3), "SystemExit: 3"),
        (GeneratorExit(), "GeneratorExit"),
        (asyncio.CancelledError(), "gave up by itself"),
        (TimeoutError("late"), "TimeoutError: late"),
        (MuteError(), "MuteError: the error has no text"),
        (ValueError("x" * 100_000), "ValueError: xxx"),
        (ExceptionGroup("two", [ValueError("a")]), "ExceptionGroup: two"),
        (StopIteration(1), "StopIteration: 1"),
        (StopAsyncIteration(), "StopAsyncIteration"),
    ],
)
def test_S8_whatever_a_tool_raises_is_text_without_a_traceback(error: BaseException, words: str) -> None:
    def fails() -> None:
        raise error

    async def fails_later() -> None:
        await asyncio.sleep(0)
        raise error

    for function in (fails, fails_later):
        outcome = run(tool_of(function))
        assert outcome.state == "failed"
        assert words in outcome.text or (isinstance(error, StopIteration) and "RuntimeError" in outcome.text)
        assert "Traceback" not in outcome.text
        assert len(outcome.text) < 3_000


async def test_S8_a_late_tool_is_ended_and_the_model_is_told() -> None:
    ended = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    outcome = await ToolRegistry(tool_of(slow, seconds=0.02)).call(call("t"))
    assert outcome.state == "failed"
    assert "not finished after 0.02 seconds" in outcome.text
    assert ended.is_set()


async def test_a_late_function_in_a_thread_does_not_hold_the_turn_for_ever() -> None:
    release = threading.Event()
    outcome = await ToolRegistry(tool_of(lambda: release.wait(60), seconds=0.02)).call(call("t"))
    assert "not finished after" in outcome.text
    release.set()


async def test_a_cancelled_call_passes_on_and_leaves_nothing_running() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()

    before = asyncio.all_tasks()
    task = asyncio.ensure_future(ToolRegistry(tool_of(slow)).call(call("t")))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert asyncio.all_tasks() == before


async def test_a_cancelled_function_in_a_thread_is_waited_for() -> None:
    """What writes a file is done with it before the cancellation goes on."""
    loop, started, release, done = asyncio.get_running_loop(), asyncio.Event(), threading.Event(), threading.Event()

    def works() -> None:
        loop.call_soon_threadsafe(started.set)
        release.wait()
        done.set()

    task = asyncio.ensure_future(ToolRegistry(tool_of(works)).call(call("t")))
    await started.wait()
    task.cancel()
    await asyncio.sleep(0)
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()


async def test_a_tool_that_does_not_listen_is_cancelled_again() -> None:
    deaf = 0

    async def stubborn() -> None:
        nonlocal deaf
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                deaf += 1
        await asyncio.Event().wait()

    outcome = await ToolRegistry(tool_of(stubborn, seconds=0.01)).call(call("t"))
    assert outcome.state == "failed"
    assert deaf == 2
    assert len(asyncio.all_tasks()) == 1


def deciding(verdict: str, reason: str = "") -> Callable[[Mapping[str, Any]], Decision]:
    return lambda arguments: Decision(verdict, reason, "what will run")  # pyright: ignore[reportArgumentType] -- also wrong ones


class Asked:
    def __init__(self, answer: object) -> None:
        self.answer, self.calls = answer, list[tuple[ToolCallEvent, Decision]]()

    async def __call__(self, call: ToolCallEvent, decision: Decision) -> bool:
        self.calls.append((call, decision))
        return self.answer  # pyright: ignore[reportReturnType] -- also what is no bool


def test_a_safe_call_runs_unasked_and_a_blocked_one_never() -> None:
    ask = Asked(True)
    assert run(tool_of(lambda: "ran", check=deciding("safe")), ask=ask).text == "ran"
    outcome = run(tool_of(lambda: "ran", check=deciding("block", "it deletes everything")), ask=ask)
    assert outcome.state == "blocked"
    assert "it deletes everything" in outcome.text
    assert "Do not try to achieve the same" in outcome.text
    assert run(tool_of(lambda: "ran", check=deciding("perhaps")), ask=ask).state == "blocked"
    assert ask.calls == []


@pytest.mark.parametrize("answer", [False, "", "yes", 1, "no"])
def test_only_a_plain_yes_lets_a_call_run(answer: object) -> None:
    ask = Asked(answer)
    outcome = run(tool_of(lambda: "ran", check=deciding("confirm", "it pushes")), ask=ask)
    assert outcome.state == "refused"
    assert "declined" in outcome.text
    assert "Do not try to achieve the same with another command, tool or file" in outcome.text
    assert ask.calls[0][1].shows == "what will run"


def test_who_finds_nobody_to_ask_does_not_say_no() -> None:
    tool = tool_of(lambda: "ran", check=deciding("confirm", "it pushes"))
    outcome = run(tool, ask=Asked(None))
    assert outcome.state == "refused"
    assert "there is no one to ask: it pushes" in outcome.text
    assert outcome == run(tool)


def test_a_yes_lets_it_run_and_nobody_to_ask_is_a_no() -> None:
    tool = tool_of(lambda: "ran", check=deciding("confirm"))
    assert run(tool, ask=Asked(True)) == Outcome("ran")
    outcome = run(tool)
    assert outcome.state == "refused"
    assert "there is no one to ask" in outcome.text


def test_a_check_that_fails_or_decides_nothing_lets_nothing_run() -> None:
    ran: list[int] = []

    def broken(arguments: Mapping[str, Any]) -> Decision:
        raise ToolError("the path leads out", hint="stay inside")

    for check in (broken, lambda arguments: True, lambda arguments: None):
        outcome = run(tool_of(lambda: ran.append(1), check=check), ask=Asked(True))
        assert outcome.state == "failed"
    assert ran == []


def test_a_check_cannot_change_what_runs() -> None:
    def sly(arguments: Mapping[str, Any]) -> Decision:
        arguments["words"].append("rm -rf /")
        return Decision("safe")

    def f(words: list[str]) -> str:
        return " ".join(words)

    assert run(tool_of(f, check=sly), {"words": ["ls"]}).text == "ls"


def test_what_people_are_asked_with_fails_loudly() -> None:
    async def ask(call: ToolCallEvent, decision: Decision) -> bool:
        raise OSError("the terminal is gone")

    with pytest.raises(OSError, match="terminal"):
        run(tool_of(lambda: "ran", check=deciding("confirm")), ask=ask)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_any_json_fits_or_is_refused_in_words_and_never_raises(value: Any) -> None:
    schema = Tool.of(look).parameters
    for each in ({"what": value, "where": []}, {"what": "x", "where": [], "at": value}, {"what": "x", "where": value}):
        assert all(isinstance(problem, Phrase) and problem.text() for problem in find_problems(schema, each))


@given(st.text())
def test_any_text_as_arguments_is_an_outcome(text: str) -> None:
    assert run(Tool.of(look), text).state == "failed"


@given(JSON)
def test_what_fits_a_type_is_of_that_type(value: Any) -> None:
    kinds: dict[Any, Callable[[Any], bool]] = {
        str: lambda v: isinstance(v, str),
        int: lambda v: isinstance(v, int) and not isinstance(v, bool),
        bool: lambda v: isinstance(v, bool),
        list[int]: lambda v: isinstance(v, list) and all(type(each) is int for each in v),
        dict[str, bool]: lambda v: isinstance(v, dict) and all(type(each) is bool for each in v.values()),
        str | None: lambda v: v is None or isinstance(v, str),
    }
    for hint, fits in kinds.items():
        schema = {"type": "object", "properties": {"x": build_schema(hint, "t", "x")}}
        assert (not find_problems(schema, {"x": value})) == fits(value), (hint, value)
