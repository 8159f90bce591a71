"""OpenAI Agents SDK: conversions, and the filter in real runs with a model of our own."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import (
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    SQLiteSession,
    Usage,
    function_tool,
)
from agents.run import CallModelData, ModelInputData
from hypothesis import given
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from lamina.adapters.openai_agents import from_lamina, input_filter, to_lamina
from lamina.errors import MessageError
from tests.adapters.chats import HOSTILE, LONG, PNG, QUESTION, Told, alike, hostile, in_order, problems
from tests.histories import BUDGETS, HISTORIES

QUERY = str(QUESTION["content"])
REASONING: Any = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}


class Recorder(Model):
    """A model that calls a tool, answers, and keeps what it was sent."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[Any]]] = []

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:  # noqa: A002 -- their name
        self.seen.append((system_instructions or "", list(input)))
        if input[-1].get("type") == "function_call_output":
            text = ResponseOutputText(text="在写信。", type="output_text", annotations=[])
            output: Any = ResponseOutputMessage(
                id="m1", content=[text], role="assistant", status="completed", type="message"
            )
        else:
            output = ResponseFunctionToolCall(
                call_id=f"c{len(self.seen)}", name="lookup", arguments='{"name": "林默"}', type="function_call"
            )
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def lookup_plain(name: str) -> str:
    """Where somebody lives."""
    return f"{name}：江城，东湖路。"


lookup = function_tool(lookup_plain, name_override="lookup")


def settings(told: Told) -> RunConfig:
    return RunConfig(call_model_input_filter=input_filter(told.plan()), tracing_disabled=True)


def run(told: Told, model: Recorder, given_: Any, **rest: Any) -> Any:
    agent = Agent(name="editor", instructions="写得短。", tools=[lookup], model=model)
    return asyncio.run(Runner.run(agent, given_, run_config=settings(told), **rest))


def joined(messages: list[Any]) -> list[Any]:
    """An answer's text directly before its calls is one answer; items cannot say whether it was two."""
    out: list[Any] = []
    for message in messages:
        before = out[-1] if out else {}
        bare = message.get("tool_calls") and not message["content"]
        if bare and before.get("role") == "assistant" and not before.get("tool_calls"):
            out[-1] = {**message, "content": before["content"]}
        else:
            out.append(message)
    return out


@given(HISTORIES)
def test_lamina_to_items_and_back_loses_nothing(history: list[Any]) -> None:
    assert alike(to_lamina(from_lamina(history))) == alike(joined(history))


def test_items_to_lamina_and_back_lose_nothing() -> None:
    table: list[Any] = [
        {"type": "message", "role": "system", "content": "你是编辑。"},
        {"type": "message", "role": "user", "content": "hi"},
        {"type": "message", "role": "assistant", "content": "好"},
        {"type": "function_call", "call_id": "c", "name": "lookup", "arguments": '{"a":  1}'},
        {"type": "function_call", "call_id": "d", "name": "x", "arguments": "{bad"},
        {"type": "function_call_output", "call_id": "d", "output": "error"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "江城"}]},
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "看"}, {"type": "input_image", "image_url": PNG, "detail": "low"},
        ]},
    ]  # fmt: skip
    assert from_lamina(to_lamina(table)) == table


@pytest.mark.parametrize(
    "item",
    [
        REASONING,
        {"type": "web_search_call", "id": "w", "status": "completed"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": [{"type": "input_image", "file_id": "f", "detail": "auto"}]},
        {"role": "user", "content": [{"type": "input_file", "file_id": "f"}]},
        {"role": "critic", "content": "a"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": PNG}]},
    ],
    ids=lambda item: str(item.get("type") or item),
)
def test_what_cannot_be_carried_is_refused_and_named(item: Any) -> None:
    with pytest.raises(MessageError, match=r"items\[0\]"):
        to_lamina([item])


def test_a_speakers_name_has_no_place_in_items() -> None:
    with pytest.raises(MessageError, match="name"):
        from_lamina([{"role": "user", "content": "a", "name": "ann"}])


def filtered(told: Told, items: Any, **rest: Any) -> Any:
    data = ModelInputData(input=items, instructions=None)
    return input_filter(told.plan(**rest))(CallModelData(model_data=data, agent=Agent(name="a"), context=None))


@given(HISTORIES, BUDGETS)
def test_whatever_is_cut_pairs_stay_whole_and_the_receipt_tiles(history: list[Any], budget: float) -> None:
    told, items = Told(), from_lamina([*history, QUESTION])
    sent = filtered(told, items, budget=budget)
    assert problems(told[0], to_lamina(sent.input)) == []
    assert in_order(sent.instructions)
    assert all("output" in item or any(item is one for one in items) for item in sent.input)


def test_a_filter_fits_every_request_of_a_run() -> None:
    told, model = Told(), Recorder()
    items = from_lamina([*LONG, QUESTION])
    result = run(told, model, items)
    assert result.final_output == "在写信。"
    assert len(told) == len(model.seen) == 2
    for context, (instructions, sent) in zip(told, model.seen, strict=True):
        assert problems(context, to_lamina(sent)) == []
        assert in_order(instructions, theirs="写得短。")
        assert [one["function"]["name"] for one in context.tools] == ["lookup"]
        assert context.receipt.dropped.count > 50
    assert model.seen[1][1][-1]["output"] == '<data-5f0c9ab1 source="tool">\n林默：江城，东湖路。\n</data-5f0c9ab1>'
    assert len(result.to_input_list()) == len(items) + 3


def test_a_tool_that_a_function_switches_on_is_counted() -> None:
    told = Told()
    off = function_tool(lookup_plain, name_override="off", is_enabled=False)
    maybe = function_tool(lookup_plain, name_override="maybe", is_enabled=lambda context, agent: True)
    agent = Agent(name="a", tools=[lookup, off, maybe], model=Recorder())
    asyncio.run(Runner.run(agent, QUERY, run_config=settings(told)))
    assert [[one["function"]["name"] for one in context.tools] for context in told] == [["lookup", "maybe"]] * 2


def test_a_session_keeps_what_a_request_had_no_room_for() -> None:
    told, model, session = Told(), Recorder(), SQLiteSession("s")
    for number in range(12):
        run(told, model, f"第{number}问：林默住在哪里？", session=session)
    assert len(asyncio.run(session.get_items())) == 12 * 4
    assert told[-1].receipt.dropped.count > 0
    assert [problems(context, to_lamina(sent)) for context, (_, sent) in zip(told, model.seen, strict=True)] == [
        []
    ] * 24
    session.close()


def test_reasoning_stays_before_its_answer_or_call_where_the_plan_says_so() -> None:
    told = Told()
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "1"}
    answer = {"role": "assistant", "content": "a"}
    items = [
        {"role": "user", "content": "q"},
        REASONING,
        call,
        result,
        dict(REASONING),
        answer,
        dict(REASONING),
        answer,
    ]
    sent = filtered(told, [*items, {"role": "user", "content": "r"}], keep_thinking=True)
    assert sent.input[3] == {**result, "output": '<data-5f0c9ab1 source="tool">\n1\n</data-5f0c9ab1>'}
    same = [0, 1, 2, 4, 5, 6, 7]
    assert [id(sent.input[n]) for n in same] == [id(items[n]) for n in same]
    with pytest.raises(MessageError, match="keep_thinking"):
        filtered(told, items)
    with pytest.raises(MessageError, match="reasoning must come before"):
        filtered(told, [REASONING, {"role": "user", "content": "r"}], keep_thinking=True)


def test_output_of_a_tool_that_looks_like_laminas_own_is_fenced_and_the_original_stays() -> None:
    items = from_lamina(hostile())
    sent = filtered(Told(), items).input
    assert sent[-1]["output"].startswith("<data-5f0c9ab1.1.")
    assert items[-1]["output"] == HOSTILE  # type: ignore[typeddict-item]
