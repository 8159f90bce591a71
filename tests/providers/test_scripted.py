"""The shipped fake: the same script gives the same events, faults are the real classes of error, slips are refused."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from lamina import assemble
from lamina.errors import (
    BrokenStreamError,
    ConnectError,
    InputError,
    ProviderError,
    RateLimitError,
    RejectedError,
    StalledError,
)
from lamina.providers.scripted import FAULTS, ScriptedProvider
from lamina.types import Context, Done, Event, Text, ToolCallEvent, Usage

CONTEXT = assemble(user="hi", budget=100)


async def all_of(asked: ScriptedProvider, context: Context = CONTEXT, **options: Any) -> list[Event]:
    return [event async for event in asked.stream(context, **options)]


async def test_a_script_is_played_answer_by_answer_and_contexts_are_kept() -> None:
    script = [
        [
            {"text": "你好🙂", "split": [1, 2]},
            {"call": "find", "id": "a", "arguments": {"q": "林默"}},
            {"usage": [5, 2, 1]},
        ],
        [{"text": "bye"}, {"done": "length"}],
    ]
    asked = ScriptedProvider(script, window=100)
    assert await all_of(asked, max_tokens=9) == [
        Text("你"),
        Text("好"),
        Text("🙂"),
        ToolCallEvent("a", "find", '{"q": "林默"}'),
        Usage(5, 2, 1),
        Done("tool_calls"),
    ]
    other = assemble(user="again", budget=100)
    assert await all_of(asked, other) == [Text("bye"), Done("length")]
    assert asked.contexts == [CONTEXT, other]
    assert asked.limits == [9, None]
    with pytest.raises(RejectedError, match="2 answers and this is request 3"):
        await all_of(asked)


async def test_a_script_may_begin_again() -> None:
    asked = ScriptedProvider([[{"text": "a"}], [{"text": "b"}]], repeat=True)
    assert [(await all_of(asked))[0] for _ in range(5)] == [Text(letter) for letter in "ababa"]


@pytest.mark.parametrize(
    ("step", "error", "code", "values"),
    [
        ({"fault": "cut"}, BrokenStreamError, "script.cut", {}),
        ({"fault": "garbage"}, BrokenStreamError, "provider.not_json", {"value": "'<garbage'"}),
        ({"fault": "refused"}, ConnectError, "provider.unreachable", {}),
        ({"fault": "status", "code": 401}, RejectedError, "script.answered", {"status": 401}),
        ({"fault": "status"}, RejectedError, "script.answered", {"status": 500}),
        ({"fault": "status", "code": 529, "retry_after": 3}, RateLimitError, "script.answered", {"status": 529}),
        ({"fault": "stall"}, StalledError, "provider.stalled", {"seconds": 7}),
        ({"call": "f", "arguments": '{"broken": '}, BrokenStreamError, "provider.bad_arguments", {"name": "'f'"}),
        ({"call": "f", "arguments": [1]}, BrokenStreamError, "provider.bad_arguments", {"name": "'f'"}),
    ],
)
async def test_a_fault_is_the_error_that_the_real_thing_gives(
    step: dict[str, Any], error: type[ProviderError], code: str, values: dict[str, Any]
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    asked = ScriptedProvider([[{"text": "so far"}, {"delay": 2}, step, {"done": "stop"}]], idle=7, sleep=sleep)
    streamed = asked.stream(CONTEXT)
    assert await anext(streamed) == Text("so far")
    with pytest.raises(error) as raised:
        await anext(streamed)
    assert raised.value.code == code
    assert values.items() <= raised.value.phrase.values.items()
    assert slept == ([2, 7] if step.get("fault") == "stall" else [2])
    assert raised.value.retry_after == step.get("retry_after")


async def test_a_stall_can_be_cancelled() -> None:
    asked = ScriptedProvider([[{"text": "a"}, {"fault": "stall"}]])
    streamed = asked.stream(CONTEXT)
    assert await anext(streamed) == Text("a")
    task = asyncio.ensure_future(anext(streamed))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_endless_answer_can_be_left() -> None:
    streamed = ScriptedProvider([[{"fault": "endless", "said": "on "}]]).stream(CONTEXT)
    assert [await anext(streamed) for _ in range(100)] == [Text("on ")] * 100
    await streamed.aclose()


async def test_a_script_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps([[{"text": "hi"}]]), encoding="utf-8")
    assert await all_of(ScriptedProvider.load(path, model="toy")) == [Text("hi"), Done("stop")]


@pytest.mark.parametrize("text", ["", "{", "{}", "[1]", '[{"text": "a"}]', "[[{}]]", "[[1]]", "[" * 100_000])
def test_a_file_that_is_no_script_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "script.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError):
        ScriptedProvider.load(path)
    with pytest.raises(InputError, match="cannot be read"):
        ScriptedProvider.load(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    "answer",
    [
        [{"txt": "a"}], [{"text": 5}], [{"text": "a", "done": "stop"}], [{"text": "a", "split": [2, 1]}],
        [{"text": "a", "split": [0.5]}], [{"delay": -1}], [{"delay": "1"}], [{"usage": [1, 2]}],
        [{"usage": [1, 2, "3"]}],
        [{"done": "tired"}], [{"fault": "fire"}], [{"fault": "status", "code": "x"}], [{"call": 5}],
        [{"done": "stop"}, {"text": "late"}], [{"usage": [1, 1, 1]}, {"usage": [1, 1, 1]}],
        [{"call": "f"}, {"text": "a"}],
    ],
)  # fmt: skip
def test_a_slip_in_a_script_is_an_error_at_once(answer: list[Any]) -> None:
    with pytest.raises(InputError):
        ScriptedProvider([answer])


def test_every_fault_is_played_somewhere_above() -> None:
    assert set(FAULTS) == {"stall", "cut", "garbage", "refused", "status", "endless"}
