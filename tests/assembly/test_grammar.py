"""The validators refuse what providers refuse. Each case is a valid request with one thing broken."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from lamina import assemble, render, validate
from lamina.errors import MessageError

CALL: dict[str, Any] = {"id": "x", "type": "function", "function": {"name": "find", "arguments": "{}"}}
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "y"}]},
    {"role": "tool", "tool_call_id": "x", "content": "X"},
    {"role": "tool", "tool_call_id": "y", "content": "Y"},
    {"role": "assistant", "content": "b"},
]
TOOLS = [{"type": "function", "function": {"name": "find", "description": "Find."}}]
CONTEXT = assemble(history=HISTORY, user="c", budget=1000, tools=TOOLS)
TEXT = {"type": "text", "text": "a"}
Break = Callable[[dict[str, Any]], Any]

BROKEN: list[tuple[str, str, Break]] = [
    ("openai", "messages is empty", lambda r: r.update(messages=[])),
    ("openai", "'bot' is not a role", lambda r: r["messages"][0].update(role="bot")),
    ("openai", "follows no call", lambda r: r["messages"].pop(1)),
    ("openai", "have no results", lambda r: r["messages"].pop(2)),
    ("openai", "have no results", lambda r: r.update(messages=r["messages"][:2])),
    ("openai", "follows no call", lambda r: r["messages"].insert(3, r["messages"][2])),
    ("openai", "tool_calls is empty", lambda r: r["messages"][4].update(tool_calls=[])),
    ("openai", "only the assistant calls", lambda r: r["messages"][0].update(tool_calls=[CALL])),
    ("openai", "share an id", lambda r: r["messages"][1]["tool_calls"][1].update(id="x")),
    ("openai", "without id or function", lambda r: r["messages"][1]["tool_calls"][1].pop("function")),
    ("openai", "arguments are no string", lambda r: r["messages"][1]["tool_calls"][0]["function"].update(arguments={})),
    ("openai", "not a tool's name", lambda r: r["messages"][1]["tool_calls"][0]["function"].update(name="a b")),
    ("openai", "content is None", lambda r: r["messages"][0].update(content=None)),
    ("openai", "content has no parts", lambda r: r["messages"][0].update(content=[])),
    ("openai", "parts of type", lambda r: r["messages"][4].update(content=[{"type": "image_url"}])),
    ("openai", "not a tool's name", lambda r: r["tools"][0]["function"].update(name="")),
    ("anthropic", "messages is empty", lambda r: r.update(messages=[])),
    ("anthropic", "the first message", lambda r: r["messages"].pop(0)),
    ("anthropic", "the last message", lambda r: r["messages"].pop()),
    ("anthropic", "is not a role", lambda r: r["messages"][0].update(role="tool")),
    ("anthropic", "two are named 'find'", lambda r: r["tools"].append(r["tools"][0])),
    ("openai", "two are named 'find'", lambda r: r["tools"].append(r["tools"][0])),
    ("openai", "without its type", lambda r: r["tools"][0].pop("type")),
    ("openai", "without text or url", lambda r: r["messages"][0].update(content=[{"type": "text"}])),
    ("anthropic", "content is empty", lambda r: r["messages"][0].update(content=[])),
    ("anthropic", "results ['y'] for the calls ['x', 'y']", lambda r: r["messages"][2]["content"].pop(0)),
    ("anthropic", "something stands before", lambda r: r["messages"][2]["content"].insert(0, TEXT)),
    ("anthropic", "used before", lambda r: r["messages"].extend(copy.deepcopy(r["messages"][1:3]))),
    ("anthropic", "without text", lambda r: r["messages"][0]["content"][0].update(text=" ")),
    ("anthropic", "has no input", lambda r: r["messages"][1]["content"][0].update(input="{}")),
    ("anthropic", "not a call's id", lambda r: r["messages"][1]["content"][0].update(id="a:1")),
    ("anthropic", "not a tool's name", lambda r: r["messages"][1]["content"][0].update(name="")),
    ("anthropic", "block of type 'video'", lambda r: r["messages"][0]["content"][0].update(type="video")),
    ("anthropic", "outside a user", lambda r: r["messages"][3]["content"].append(r["messages"][2]["content"][0])),
    ("anthropic", "have no results", lambda r: r.update(messages=r["messages"][:2])),
    ("anthropic", "no input_schema", lambda r: r["tools"][0].pop("input_schema")),
    ("anthropic", "at most 4", lambda r: r.update(system=[{"type": "text", "text": "a", "cache_control": {}}] * 4)),
    ("gemini", "contents is empty", lambda r: r.update(contents=[])),
    ("gemini", "the first content", lambda r: r["contents"].pop(0)),
    ("gemini", "the last content", lambda r: r["contents"].pop()),
    ("gemini", "is not a role", lambda r: r["contents"][0].update(role="assistant")),
    ("gemini", "two turns of one side", lambda r: r["contents"].insert(0, r["contents"][0])),
    ("gemini", "no parts", lambda r: r["contents"][0].update(parts=[])),
    ("gemini", "must follow a function call", lambda r: r["contents"].pop(1)),
    ("gemini", "for the calls ['find', 'find']", lambda r: r["contents"][2]["parts"].pop()),
    ("gemini", "mixed with other parts", lambda r: r["contents"][2]["parts"].append({"text": "a"})),
    ("gemini", "must follow a user", lambda r: r["contents"].insert(1, {"role": "model", "parts": [TEXT]})),
    ("gemini", "without text", lambda r: r["contents"][0]["parts"][0].update(text="")),
    ("gemini", "without args", lambda r: r["contents"][1]["parts"][0]["functionCall"].pop("args")),
    ("gemini", "a part with", lambda r: r["contents"][0].update(parts=[{"video": 1}])),
    ("gemini", "have no responses", lambda r: r.update(contents=r["contents"][:2])),
    ("gemini", "not a tool's name", lambda r: r["tools"][0]["functionDeclarations"][0].update(name="1st")),
]  # fmt: skip


@pytest.mark.parametrize("grammar", ["openai", "anthropic", "gemini"])
def test_the_unbroken_request_is_valid(grammar: Any) -> None:
    assert validate(render(CONTEXT, grammar), grammar) == ()


@pytest.mark.parametrize(("grammar", "problem", "damage"), BROKEN, ids=[f"{g}-{p}" for g, p, _ in BROKEN])
def test_one_broken_thing_is_found(grammar: Any, problem: str, damage: Break) -> None:
    request = copy.deepcopy(render(CONTEXT, grammar))
    damage(request)
    assert any(problem in found for found in validate(request, grammar)), validate(request, grammar)


@pytest.mark.parametrize("grammar", ["openai", "anthropic", "gemini"])
@pytest.mark.parametrize(
    "odd", [{}, [], None, "x", {"messages": 3, "contents": "x"}, {"messages": [None, 3], "contents": [None]}]
)
def test_nonsense_is_reported_not_raised(grammar: str, odd: Any) -> None:
    assert validate(odd, grammar)


def test_an_unknown_grammar_is_refused() -> None:
    with pytest.raises(MessageError, match=r"'cohere'.*openai, anthropic, gemini"):
        validate({}, "cohere")
