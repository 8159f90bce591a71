"""LangChain and LangGraph: conversions, the Runnable, the hook and the middleware, with the real libraries."""

import asyncio
import warnings
from typing import Any, Literal

import pytest
from hypothesis import given
from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent  # pyright: ignore[reportDeprecated] -- still what many graphs use

from lamina.adapters import Plan
from lamina.adapters.langchain import from_lamina, pre_model_hook, runnable, to_lamina
from lamina.adapters.langchain_agents import LaminaMiddleware
from lamina.errors import LayerError, MessageError
from lamina.types import Layer
from tests.adapters.chats import HOSTILE, LONG, PNG, QUESTION, Told, alike, in_order, problems
from tests.histories import BUDGETS, HISTORIES, split_pairs


class Recorder(GenericFakeChatModel):
    """Their own fake model, which keeps what it was sent."""

    seen: list[list[BaseMessage]] = []  # noqa: RUF012 -- a field of a Pydantic model, copied for each one

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        self.seen.append(messages)
        return super()._generate(messages, *args, **kwargs)

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self


def recorder(*answers: AIMessage) -> Recorder:
    return Recorder(messages=iter(answers), seen=[])


@tool
def lookup(name: str) -> str:
    """Where somebody lives."""
    return f"{name}：江城，东湖路。"


def state_of(history: list[Any]) -> Any:
    return {"messages": from_lamina(history)}


def called() -> AIMessage:
    call = {"id": "c1", "name": "lookup", "args": {"name": "林默"}, "type": "tool_call"}
    return AIMessage("", tool_calls=[call])


@given(HISTORIES)
def test_lamina_to_langchain_and_back_loses_nothing(history: list[Any]) -> None:
    assert alike(to_lamina(from_lamina(history))) == alike(history)


BAD: Literal["invalid_tool_call"] = "invalid_tool_call"
TABLE: list[BaseMessage] = [
    SystemMessage("你是编辑。"),
    HumanMessage("hi", name="ann"),
    HumanMessage([{"type": "text", "text": "看"}, {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}]),
    AIMessage("", tool_calls=[{"id": "c", "name": "lookup", "args": {"a": ["林默", 1.5, None]}, "type": "tool_call"}]),
    ToolMessage("江城", tool_call_id="c", name="lookup"),
    AIMessage("好", invalid_tool_calls=[{"id": "d", "name": "x", "args": "{", "error": None, "type": BAD}]),
    ToolMessage("error", tool_call_id="d"),
    AIMessage("他住在江城。"),
]  # fmt: skip


def test_langchain_to_lamina_and_back_loses_nothing() -> None:
    back = from_lamina(to_lamina(TABLE))
    assert [(type(m), m.content, m.name) for m in back] == [(type(m), m.content, m.name) for m in TABLE]
    for one, other in zip(back, TABLE, strict=True):
        for field in ("tool_calls", "invalid_tool_calls", "tool_call_id"):
            assert getattr(one, field, None) == getattr(other, field, None)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "url": "https://example.com/a.png"},
        {"type": "image_url", "image_url": "https://example.com/a.png"},
        {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"},
    ],
)
def test_every_way_to_write_a_picture_is_one_picture(block: Any) -> None:
    (message,) = to_lamina([HumanMessage([block])])
    assert message["content"][0]["image_url"]["url"] in ("https://example.com/a.png", PNG)  # type: ignore[index]


@pytest.mark.parametrize(
    "message",
    [
        AIMessage([{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "a"}]),
        AIMessage("a", additional_kwargs={"reasoning_content": "hm"}),
        AIMessage("", additional_kwargs={"function_call": {"name": "f", "arguments": "{}"}}),
        AIMessage([{"type": "image_url", "image_url": {"url": PNG}}]),
        AIMessage("", tool_calls=[{"id": None, "name": "f", "args": {}, "type": "tool_call"}]),
        AIMessage("a", name="research agent"),
        HumanMessage([{"type": "audio", "base64": "AA==", "mime_type": "audio/wav"}]),
        ChatMessage(content="hi", role="critic"),
        RemoveMessage(id="1"),
    ],
    ids=lambda m: f"{type(m).__name__} {m.content}",
)
def test_what_cannot_be_carried_is_refused_and_named(message: BaseMessage) -> None:
    with pytest.raises(MessageError, match=r"messages\[0\]"):
        to_lamina([message])


def test_thinking_stays_with_its_message_where_the_plan_says_so() -> None:
    told = Told()
    thought = AIMessage([{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "a"}])
    sent = runnable(told.plan(keep_thinking=True)).invoke([HumanMessage("q"), thought, HumanMessage("r")])
    assert sent[2] is thought
    with pytest.raises(MessageError, match="keep_thinking"):
        runnable(told.plan()).invoke([HumanMessage("q"), thought, HumanMessage("r")])


def test_cache_marks_citations_and_any_name_stay_with_their_message() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    cited: list[str | dict[str, Any]] = [{"type": "text", "text": "江城。", "annotations": [{"type": "citation"}]}]
    given_ = [
        SystemMessage([{"type": "text", "text": "写得短。", **mark}]),
        HumanMessage([{"type": "text", "text": "林默住在哪里？", **mark}]),
        AIMessage(cited, name="research agent"),
        AIMessage([{"type": "text", "text": "a", "citations": [{"cited_text": "a"}]}], name="a" * 70),
        HumanMessage("q", name="安 <ann>"),
    ]
    told = Told()
    system, *sent = runnable(told.plan()).invoke(given_)
    assert in_order(str(system.content), theirs="写得短。")
    assert [id(message) for message in sent] == [id(message) for message in given_[1:]]
    names = [message.get("name") for message in told[0].messages[2:]]
    assert names == ["research_agent", "a" * 64, "安_ann_"], "as they are counted"
    assert [message.name for message in sent[1:]] == ["research agent", "a" * 70, "安 <ann>"]
    assert told[0].receipt.problems() == []
    assert to_lamina(given_[1:2])[0]["content"] == [{"type": "text", "text": "林默住在哪里？"}]


def test_a_system_prompt_with_a_cache_mark_goes_through_the_middleware() -> None:
    told, model = Told(), recorder(AIMessage("在写信。"))
    marked = SystemMessage([{"type": "text", "text": "写得短。", "cache_control": {"type": "ephemeral"}}])
    agent = create_agent(model, [lookup], system_prompt=marked, middleware=[LaminaMiddleware(told.plan())])
    agent.invoke(state_of([QUESTION]))
    assert in_order(str(model.seen[0][0].content), theirs="写得短。")


@given(HISTORIES, BUDGETS)
def test_whatever_is_cut_pairs_stay_whole_and_the_receipt_tiles(history: list[Any], budget: float) -> None:
    told, given_ = Told(), from_lamina([*history, QUESTION])
    system, *sent = runnable(told.plan(budget)).invoke(given_)
    assert problems(told[0], to_lamina(sent)) == []
    assert in_order(str(system.content))
    assert all(isinstance(message, ToolMessage) or any(message is one for one in given_) for message in sent)


def test_the_oracle_finds_a_pair_that_a_plain_cut_breaks() -> None:
    assert split_pairs(to_lamina(from_lamina(LONG[-3:])))


def test_a_runnable_stands_between_prompt_and_model() -> None:
    told, model = Told(), recorder(AIMessage("在写信。"))
    prompt = ChatPromptTemplate([("system", "写得短。"), ("placeholder", "{history}"), ("human", "{question}")])
    chain = prompt | runnable(told.plan()) | model
    answer = chain.invoke({"history": from_lamina(LONG), "question": QUESTION["content"]})
    assert answer.content == "在写信。"
    system, *sent = model.seen[0]
    assert in_order(str(system.content), theirs="写得短。")
    assert problems(told[0], to_lamina(sent)) == []
    assert told[0].receipt.dropped.count > 50
    assert told[0].receipt.tokens <= 400
    assert sent[-1].content == QUESTION["content"]


def test_a_middleware_fits_every_request_of_an_agent_and_leaves_its_state_whole() -> None:
    told, model = Told(), recorder(called(), AIMessage("在写信。"))
    agent = create_agent(
        model, [lookup], system_prompt="写得短。", middleware=[LaminaMiddleware(told.plan())],
        checkpointer=InMemorySaver(),
    )  # fmt: skip
    state = agent.invoke(state_of([*LONG, QUESTION]), {"configurable": {"thread_id": "1"}})
    assert len(state["messages"]) == len(LONG) + 4
    assert not any(isinstance(message, SystemMessage) for message in state["messages"])
    assert len(told) == len(model.seen) == 2
    for context, (system, *sent) in zip(told, model.seen, strict=True):
        assert in_order(str(system.content), theirs="写得短。")
        assert problems(context, to_lamina(sent)) == []
        assert [one["function"]["name"] for one in context.tools] == ["lookup"]
    assert "林默：江城，东湖路。" in str(model.seen[1][-1].content)
    for message in model.seen[1][1:]:
        (same,) = [one for one in state["messages"] if one.id == message.id]
        assert message is same or message.content == f'<data-5f0c9ab1 source="tool">\n{same.content}\n</data-5f0c9ab1>'


async def fitted_async(model: Recorder, told: Told) -> None:
    agent = create_agent(model, [lookup], middleware=[LaminaMiddleware(told.plan())])
    await agent.ainvoke(state_of([*LONG, QUESTION]))


def test_the_middleware_has_an_async_door() -> None:
    told, model = Told(), recorder(called(), AIMessage("在写信。"))
    asyncio.run(fitted_async(model, told))
    assert [problems(c, to_lamina(sent[1:])) for c, sent in zip(told, model.seen, strict=True)] == [[], []]


def test_a_pre_model_hook_fits_what_a_graph_sends() -> None:
    told, model = Told(), recorder(called(), AIMessage("在写信。"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # create_react_agent is on its way out, and still what many graphs use
        agent = create_react_agent(  # pyright: ignore[reportDeprecated]
            model, [lookup], pre_model_hook=pre_model_hook(told.plan())
        )
        state = agent.invoke(state_of([*LONG, QUESTION]))
    assert len(state["messages"]) == len(LONG) + 4
    for context, (system, *sent) in zip(told, model.seen, strict=True):
        assert in_order(str(system.content))
        assert problems(context, to_lamina(sent)) == []


def test_a_system_message_in_the_middle_is_refused_and_the_hint_says_where_it_belongs() -> None:
    with pytest.raises(MessageError, match="as a layer"):
        runnable(Told().plan()).invoke([HumanMessage("a"), SystemMessage("b"), HumanMessage("c")])


def test_layers_may_be_looked_up_for_each_request() -> None:
    plan = Plan(lambda chat: [Layer("memory", f"asked: {chat[-1]['content']}", "memory:1")], 400)
    system, _ = runnable(plan).invoke([HumanMessage("林默？")])
    assert system.content == "asked: 林默？"


def test_output_of_a_tool_that_looks_like_laminas_own_is_fenced_and_the_original_stays() -> None:
    result = ToolMessage(HOSTILE, tool_call_id="c1")
    sent = runnable(Told().plan()).invoke([HumanMessage("q"), called(), result])
    assert sent[-1] is not result
    assert str(sent[-1].content).startswith("<data-5f0c9ab1.1.")
    assert result.content == HOSTILE


def test_words_alone_are_one_message_and_layers_are_no_text() -> None:
    (_, said) = runnable(Plan([Layer("identity", "Be brief.")], budget=200)).invoke("江城在哪里？")
    assert (type(said), said.content) == (HumanMessage, "江城在哪里？")
    with pytest.raises(LayerError, match="layers of a plan"):
        Plan("Be brief.", budget=200)  # pyright: ignore[reportArgumentType] -- that is the slip
