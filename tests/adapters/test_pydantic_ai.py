"""Pydantic AI: conversions, and the capability in real runs with its own FunctionModel."""

from typing import Any

import pytest
from hypothesis import given
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    CachePoint,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel as ScriptedModel  # under its own name pytest would collect it

from lamina.adapters.pydantic_ai import LaminaContext, convert_pieces, from_lamina, restore_messages, to_lamina
from lamina.errors import MessageError
from tests.adapters.chats import HOSTILE, LONG, QUESTION, Told, alike, hostile, in_order, problems
from tests.histories import BUDGETS, HISTORIES

pytestmark = pytest.mark.usefixtures("no_loop_left")
PICTURE = BinaryContent(b"\x89PNG\r\n\x1a\n", media_type="image/png", vendor_metadata={"detail": "low"})
QUERY = str(QUESTION["content"])


class Recorder:
    """A model that calls a tool, answers, and keeps what it was sent."""

    def __init__(self) -> None:
        self.seen: list[list[ModelMessage]] = []
        self.instructions: list[str] = []

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.seen.append(list(messages))
        self.instructions.append(info.instructions or "")
        if isinstance(messages[-1], ModelRequest) and isinstance(messages[-1].parts[-1], ToolReturnPart):
            return ModelResponse([TextPart("在写信。")])
        return ModelResponse([ToolCallPart("lookup", {"name": "林默"}, "c1")])


def lookup(name: str) -> str:
    """Where somebody lives."""
    return f"{name}：江城，东湖路。"


@given(HISTORIES)
def test_lamina_to_pydantic_ai_and_back_loses_nothing(history: list[Any]) -> None:
    assert alike(to_lamina(from_lamina(history))) == alike(history)


def test_pydantic_ai_to_lamina_and_back_loses_nothing() -> None:
    table: list[ModelMessage] = [
        ModelRequest([SystemPromptPart("你是编辑。"), UserPromptPart("hi")]),
        ModelResponse([TextPart("好"), ToolCallPart("lookup", '{"a": 1}', "c"), ToolCallPart("x", "{bad", "d")]),
        ModelRequest(
            [ToolReturnPart("lookup", "江城", "c"), ToolReturnPart("x", "error", "d"), UserPromptPart("更多")]
        ),
        ModelResponse([TextPart("一"), TextPart("二")]),
        ModelRequest([UserPromptPart(["看", ImageUrl("https://example.com/a.png"), PICTURE])]),
    ]
    assert said(from_lamina(to_lamina(table))) == said(table)


def said(messages: list[ModelMessage]) -> list[Any]:
    """Everything but the times."""
    return [
        [(type(part), getattr(part, "content", None), getattr(part, "args", None), getattr(part, "tool_call_id", None),
          getattr(part, "tool_name", None)) for part in message.parts]
        for message in messages
    ]  # fmt: skip


def test_a_tools_value_is_carried_as_the_text_that_is_sent() -> None:
    call, result = ToolCallPart("f", None, "c"), ToolReturnPart("f", {"城": ["江"]}, "c")
    assistant, tool = to_lamina([ModelResponse([call]), ModelRequest([result])])
    assert assistant.get("tool_calls", [])[0]["function"]["arguments"] == "{}"
    assert tool["content"] == '{"城":["江"]}'


@pytest.mark.parametrize(
    "message",
    [
        ModelResponse([ThinkingPart("hm", signature="s", provider_name="p")]),
        ModelResponse([NativeToolCallPart("web_search", {}, "c")]),
        ModelRequest([UserPromptPart([AudioUrl("https://example.com/a.mp3")])]),
        ModelRequest([UserPromptPart([BinaryContent(b"x", media_type="application/pdf")])]),
        ModelRequest([ToolReturnPart("f", PICTURE, "c")]),
    ],
    ids=lambda m: type(m.parts[0]).__name__,
)
def test_what_cannot_be_carried_is_refused_and_named(message: ModelMessage) -> None:
    with pytest.raises(MessageError, match=r"messages\[0\]"):
        to_lamina([message])


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "a", "name": "ann"},
        {"role": "assistant", "content": "a", "name": "ann"},
        {"role": "tool", "content": "a", "tool_call_id": "nobody's"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,i!"}}]},
    ],
)
def test_what_pydantic_ai_has_no_place_for_is_refused(message: Any) -> None:
    with pytest.raises(MessageError, match=r"messages\[0\]"):
        from_lamina([message])


@given(HISTORIES, BUDGETS)
def test_whatever_is_cut_pairs_stay_whole_and_the_receipt_tiles(history: list[Any], budget: float) -> None:
    told, given_ = Told(), from_lamina([*history, QUESTION])
    context, kept = told.plan(budget).fit(convert_pieces(given_), source="pydantic-ai")
    sent = restore_messages(kept, given_)
    assert problems(context, to_lamina(sent)) == []
    assert in_order(context.system)
    everything = {id(part) for message in given_ for part in message.parts}
    sent_parts = [part for message in sent for part in message.parts if not isinstance(part, ToolReturnPart)]
    assert all(id(part) in everything for part in sent_parts)


def test_a_capability_fits_every_request_of_a_run_and_leaves_its_history_whole() -> None:
    told, model = Told(), Recorder()
    agent = Agent(
        FunctionModel(model), instructions="写得短。", tools=[lookup], capabilities=[LaminaContext(told.plan())]
    )
    history = from_lamina(LONG)
    result = agent.run_sync(QUERY, message_history=history)
    assert result.output == "在写信。"
    assert len(result.all_messages()) == len(history) + 4
    assert len(told) == len(model.seen) == 2
    for context, sent, instructions in zip(told, model.seen, model.instructions, strict=True):
        assert problems(context, to_lamina(sent)) == []
        assert instructions == context.system
        assert in_order(instructions, theirs="写得短。")
        assert [one["function"]["name"] for one in context.tools] == ["lookup"]
        assert context.receipt.dropped.count > 50
    assert "林默：江城，东湖路。" in str(model.seen[1][-1])


def test_a_run_goes_on_from_the_history_of_the_run_before() -> None:
    told, model = Told(), Recorder()
    agent = Agent(
        FunctionModel(model), system_prompt="写得短。", tools=[lookup], capabilities=[LaminaContext(told.plan())]
    )
    first = agent.run_sync(QUERY)
    agent.run_sync("还有呢？", message_history=first.all_messages())
    assert [in_order(text, theirs="写得短。") for text in model.instructions] == [True] * 4
    assert [text.count("写得短。") for text in model.instructions] == [1] * 4
    assert told[-1].receipt.dropped.count == 0
    assert len(told[-1].messages) == 1 + 4 + 3


def test_a_structured_answer_and_a_streamed_one_pass_through() -> None:
    class City(BaseModel):
        name: str

    told = Told()
    agent = Agent(ScriptedModel(), output_type=City, capabilities=[LaminaContext(told.plan())])
    assert agent.run_sync(QUERY).output.name
    assert [one["function"]["name"] for one in told[0].tools] == ["final_result"]

    plain = Agent(ScriptedModel(custom_output_text="在写信。"), capabilities=[LaminaContext(told.plan())])
    with plain.run_stream_sync(QUERY) as stream:
        assert "".join(stream.stream_text(delta=True)) == "在写信。"


def test_thinking_stays_with_its_message_where_the_plan_says_so() -> None:
    told, thought = Told(), ModelResponse([ThinkingPart("hm"), TextPart("a")])
    history: list[ModelMessage] = [ModelRequest([UserPromptPart("q")]), thought, ModelRequest([UserPromptPart("r")])]
    _, kept = told.plan(keep_thinking=True).fit(convert_pieces(history, keep_thinking=True), source="x")
    assert restore_messages(kept, history)[1] is thought
    with pytest.raises(MessageError, match="keep_thinking"):
        convert_pieces(history)


def test_a_cache_point_stays_with_its_prompt() -> None:
    told, model = Told(), Recorder()
    agent = Agent(FunctionModel(model), tools=[lookup], capabilities=[LaminaContext(told.plan())])
    prompt = ["林默住在哪里？", CachePoint(), "现在呢？"]
    agent.run_sync(prompt)
    for context, sent in zip(told, model.seen, strict=True):
        (part,) = sent[0].parts
        assert isinstance(part, UserPromptPart)
        assert part.content == prompt
        texts = [{"type": "text", "text": text} for text in (prompt[0], prompt[2])]
        assert context.messages[1]["content"] == texts
        assert context.receipt.problems() == []
    assert to_lamina([ModelRequest([UserPromptPart([CachePoint()])])])[0]["content"] == ""


def test_output_of_a_tool_that_looks_like_laminas_own_is_fenced_and_the_original_stays() -> None:
    history = from_lamina(hostile())
    _, kept = Told().plan().fit(convert_pieces(history), source="x")
    sent = to_lamina(restore_messages(kept, history))
    assert all(str(message["content"]).startswith("<data-5f0c9ab1.1.") for message in sent[-2:])
    assert to_lamina(history)[-1]["content"] == HOSTILE


def test_a_cut_through_one_request_keeps_only_the_parts_behind_it() -> None:
    *_, call, one, two, answer = LONG[:5]
    history = from_lamina([LONG[0], call, one, two, QUESTION])
    assert len(history) == 3
    _, kept = Told().plan(0).fit(convert_pieces(history), source="x")
    (sent,) = restore_messages(kept, history)
    assert [type(part) for part in sent.parts] == [UserPromptPart]
    assert len(history[2].parts) == 3
    assert answer["role"] == "assistant"
