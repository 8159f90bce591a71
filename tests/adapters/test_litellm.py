"""LiteLLM: conversions and the wrapper; and the real library, where `make bench` has installed it."""

import asyncio
import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageFunctionToolCall

from lamina.adapters.litellm import fit_messages, from_lamina, to_lamina, with_context
from lamina.errors import MessageError
from tests.adapters.chats import LAYERS, LONG, QUESTION, Told, alike, hostile, in_order, problems
from tests.histories import BUDGETS, HISTORIES, split_pairs
from tests.test_docs import blocks

ROOT = Path(__file__).parent.parent.parent
PYTHON = ROOT / ".venv-litellm" / "bin" / "python"
CALL: Any = {"id": "c", "type": "function", "function": {"name": "lookup", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "江城"}


@given(HISTORIES)
def test_lamina_to_litellm_and_back_loses_nothing(history: list[Any]) -> None:
    assert alike(to_lamina(from_lamina(history))) == alike(history)


def test_objects_and_mappings_are_the_same_message() -> None:
    call = ChatCompletionMessageFunctionToolCall(**CALL)
    answer = ChatCompletionMessage(role="assistant", content=None, tool_calls=[call])
    mapping = {"role": "assistant", "content": "", "tool_calls": [call], "provider_specific_fields": {"a": 1}}
    assert to_lamina([answer]) == to_lamina([mapping]) == [{"role": "assistant", "content": None, "tool_calls": [CALL]}]


def test_a_developers_message_and_a_pictures_bare_address_are_understood() -> None:
    picture = {"type": "image_url", "image_url": "https://example.com/a.png"}
    system, user = to_lamina([{"role": "developer", "content": "短"}, {"role": "user", "content": [picture]}])
    assert system == {"role": "system", "content": "短"}
    assert user["content"] == [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "a", "reasoning_content": "hm"},
        {"role": "assistant", "content": "a", "thinking_blocks": [{"type": "thinking"}]},
        {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]},
        {"role": "user", "content": None},
        {"role": "function", "name": "f", "content": "1"},
        "hi",
    ],
    ids=str,
)
def test_what_cannot_be_carried_is_refused_and_named(message: Any) -> None:
    with pytest.raises(MessageError, match=r"messages\[0\]"):
        to_lamina([message])


@given(HISTORIES, BUDGETS)
def test_whatever_is_cut_pairs_stay_whole_and_the_receipt_tiles(history: list[Any], budget: float) -> None:
    told, given_ = Told(), from_lamina([*history, QUESTION])
    system, *sent = fit_messages(told.plan(budget), given_)
    assert problems(told[0], to_lamina(sent)) == []
    assert in_order(system["content"])
    assert all(message["role"] == "tool" or any(message is one for one in given_) for message in sent)


def test_the_wrapper_takes_messages_by_name_or_by_place_and_leaves_the_rest_alone() -> None:
    def completion(model: str, messages: list[Any], **rest: Any) -> Any:
        return model, messages, rest

    told = Told()
    complete = with_context(told.plan(), completion)
    given_ = [{"role": "system", "content": "写得短。"}, *LONG, QUESTION]
    for model, (system, *sent), rest in (
        complete("m", given_, temperature=0), complete(model="m", messages=given_, temperature=0),
    ):  # fmt: skip
        assert (model, rest) == ("m", {"temperature": 0})
        assert in_order(system["content"], theirs="写得短。")
        assert problems(told[-1], sent) == []
    assert len(given_) == len(LONG) + 2
    with pytest.raises(MessageError, match="messages"):
        complete(model="m")  # pyright: ignore[reportCallIssue] -- what a caller may forget


def test_the_wrapper_of_an_async_function_is_awaited_as_before() -> None:
    async def acompletion(messages: list[Any]) -> list[Any]:
        return messages

    assert len(asyncio.run(with_context(Told().plan(), acompletion)(messages=[QUESTION]))) == 2


def test_cache_marks_stay_with_their_message() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    marked = {"role": "user", "content": [{"type": "text", "text": "林默？", **mark}], **mark}
    told = Told()
    assert fit_messages(told.plan(), [marked, QUESTION])[1] is marked
    assert told[0].messages[1]["content"] == [{"type": "text", "text": "林默？"}]


def test_thinking_stays_with_its_message_where_the_plan_says_so() -> None:
    thought = {"role": "assistant", "content": "a", "reasoning_content": "hm"}
    assert fit_messages(Told().plan(keep_thinking=True), [QUESTION, thought, QUESTION])[2] is thought


def test_output_of_a_tool_that_looks_like_laminas_own_is_fenced_and_the_original_stays() -> None:
    given_ = hostile()
    assert fit_messages(Told().plan(), given_)[-1]["content"].startswith("<data-5f0c9ab1.1.")
    assert given_ == hostile()


@pytest.mark.skipif(not PYTHON.exists(), reason="LiteLLM is in an environment that `make test` makes")
def test_the_real_litellm_sends_what_the_receipt_is_for() -> None:
    layers = [{name: value for name, value in asdict(layer).items() if value is not None} for layer in LAYERS]
    theirs = {"role": "system", "content": "写得短。"}
    page = blocks((ROOT / "docs" / "guide" / "adapters.md").read_text(encoding="utf-8"))
    (example,) = (block.text for block in page if block.lang == "py")
    job: dict[str, Any] = {
        "example": page[0].text + example,
        "layers": layers,
        "budget": 400,
        "messages": [theirs, *LONG, QUESTION],
    }
    environ = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [PYTHON, "-m", "tests.adapters.litellm_script"], input=json.dumps(job), env=environ, cwd=ROOT,
        capture_output=True, text=True, encoding="utf-8", timeout=110,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["answers"] == ["在写信。", "在写信。"]
    assert found["printed"] == "He writes a letter. 22\n"
    assert found["held"] == len(LONG) + 4
    assert len(found["bodies"]) == len(found["contexts"]) == 3
    for body, context in zip(found["bodies"], found["contexts"], strict=True):
        assert context["problems"] == []
        system, *sent = body["messages"]
        assert in_order(system["content"], theirs="写得短。")
        assert split_pairs(sent) == []
        assert alike(to_lamina(body["messages"])) == alike(context["messages"])
        assert [tool["function"]["name"] for tool in context["tools"]] == ["lookup"]
    fenced = '<data-5f0c9ab1 source="tool">\n林默：江城，东湖路。\n</data-5f0c9ab1>'
    assert found["bodies"][1]["messages"][-1]["content"] == fenced


@pytest.mark.parametrize("wrong", [
    [{"role": "system", "content": [{"type": "image_url", "image_url": {"url": "https://a.b/c.png"}}]}],
    [{"role": [], "content": "x"}], [{"role": "user", "content": 5}], [{"role": "assistant", "tool_calls": 5}], None, 5,
    "words",
])  # fmt: skip
def test_what_has_no_place_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(MessageError, match="cannot be converted"):
        to_lamina(wrong)
