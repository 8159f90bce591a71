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
    ("openai", "empty messages", lambda r: r.update(messages=[])),
    ("openai", "bad_role 'bot'", lambda r: r["messages"][0].update(role="bot")),
    ("openai", "result_without_call 'x'", lambda r: r["messages"].pop(1)),
    ("openai", "calls_without_results_at ['x']", lambda r: r["messages"].pop(2)),
    ("openai", "calls_without_results ['x', 'y']", lambda r: r.update(messages=r["messages"][:2])),
    ("openai", "result_without_call 'x'", lambda r: r["messages"].insert(3, r["messages"][2])),
    ("openai", "empty messages[4].tool_calls", lambda r: r["messages"][4].update(tool_calls=[])),
    ("openai", "call_not_by_assistant messages[0]", lambda r: r["messages"][0].update(tool_calls=[CALL])),
    ("openai", "shared_call_id messages[1]", lambda r: r["messages"][1]["tool_calls"][1].update(id="x")),
    ("openai", "call_incomplete messages[1]", lambda r: r["messages"][1]["tool_calls"][1].pop("function")),
    ("openai", "arguments_not_text", lambda r: r["messages"][1]["tool_calls"][0]["function"].update(arguments={})),
    ("openai", "bad_tool_name 'a b'", lambda r: r["messages"][1]["tool_calls"][0]["function"].update(name="a b")),
    ("openai", "bad_content None", lambda r: r["messages"][0].update(content=None)),
    ("openai", "empty messages[0].content", lambda r: r["messages"][0].update(content=[])),
    ("openai", "bad_part_types image_url", lambda r: r["messages"][4].update(content=[{"type": "image_url"}])),
    ("openai", "bad_tool_name ''", lambda r: r["tools"][0]["function"].update(name="")),
    ("anthropic", "empty messages", lambda r: r.update(messages=[])),
    ("anthropic", "first_not_user messages", lambda r: r["messages"].pop(0)),
    ("anthropic", "last_not_user messages", lambda r: r["messages"].pop()),
    ("anthropic", "bad_role", lambda r: r["messages"][0].update(role="tool")),
    ("anthropic", "repeated_tool_name 'find'", lambda r: r["tools"].append(r["tools"][0])),
    ("openai", "repeated_tool_name 'find'", lambda r: r["tools"].append(r["tools"][0])),
    ("openai", "tool_without_type", lambda r: r["tools"][0].pop("type")),
    ("openai", "part_incomplete messages[0]", lambda r: r["messages"][0].update(content=[{"type": "text"}])),
    ("anthropic", "empty messages[0].content", lambda r: r["messages"][0].update(content=[])),
    ("anthropic", "results_mismatch ['y'] do not match the calls ['x'", lambda r: r["messages"][2]["content"].pop(0)),
    ("anthropic", "results_not_first messages[2]", lambda r: r["messages"][2]["content"].insert(0, TEXT)),
    ("anthropic", "repeated_call_id 'x'", lambda r: r["messages"].extend(copy.deepcopy(r["messages"][1:3]))),
    ("anthropic", "empty_text", lambda r: r["messages"][0]["content"][0].update(text=" ")),
    ("anthropic", "bad_tool_use messages[1]", lambda r: r["messages"][1]["content"][0].update(input="{}")),
    ("anthropic", "bad_call_id 'a:1'", lambda r: r["messages"][1]["content"][0].update(id="a:1")),
    ("anthropic", "bad_tool_name ''", lambda r: r["messages"][1]["content"][0].update(name="")),
    ("anthropic", "bad_block_type 'video'", lambda r: r["messages"][0]["content"][0].update(type="video")),
    ("anthropic", "result_not_by_user", lambda r: r["messages"][3]["content"].append(r["messages"][2]["content"][0])),
    ("anthropic", "calls_without_results ['x', 'y']", lambda r: r.update(messages=r["messages"][:2])),
    ("anthropic", "no_input_schema 'find'", lambda r: r["tools"][0].pop("input_schema")),
    ("anthropic", "too_many_marks 5", lambda r: r.update(system=[{**TEXT, "cache_control": {}}] * 4)),
    ("gemini", "empty contents", lambda r: r.update(contents=[])),
    ("gemini", "first_not_user contents", lambda r: r["contents"].pop(0)),
    ("gemini", "last_not_user contents", lambda r: r["contents"].pop()),
    ("gemini", "bad_role", lambda r: r["contents"][0].update(role="assistant")),
    ("gemini", "same_side_twice contents[1]", lambda r: r["contents"].insert(0, r["contents"][0])),
    ("gemini", "empty contents[0].parts", lambda r: r["contents"][0].update(parts=[])),
    ("gemini", "misplaced_responses", lambda r: r["contents"].pop(1)),
    ("gemini", "results_mismatch the calls ['find', 'find']", lambda r: r["contents"][2]["parts"].pop()),
    ("gemini", "mixed_responses contents[2]", lambda r: r["contents"][2]["parts"].append({"text": "a"})),
    ("gemini", "misplaced_call", lambda r: r["contents"].insert(1, {"role": "model", "parts": [TEXT]})),
    ("gemini", "empty_text", lambda r: r["contents"][0]["parts"][0].update(text="")),
    ("gemini", "field_missing no args", lambda r: r["contents"][1]["parts"][0]["functionCall"].pop("args")),
    ("gemini", "bad_part ['video']", lambda r: r["contents"][0].update(parts=[{"video": 1}])),
    ("gemini", "calls_without_results ['find', 'find']", lambda r: r.update(contents=r["contents"][:2])),
    ("gemini", "bad_tool_name '1st'", lambda r: r["tools"][0]["functionDeclarations"][0].update(name="1st")),
]  # fmt: skip


@pytest.mark.parametrize("grammar", ["openai", "anthropic", "gemini"])
def test_the_unbroken_request_is_valid(grammar: Any) -> None:
    assert validate(render(CONTEXT, grammar), grammar) == ()


@pytest.mark.parametrize(("grammar", "problem", "damage"), BROKEN, ids=[f"{g}-{p}" for g, p, _ in BROKEN])
def test_one_broken_thing_is_found(grammar: Any, problem: str, damage: Break) -> None:
    request = copy.deepcopy(render(CONTEXT, grammar))
    damage(request)
    code, _, value = problem.partition(" ")
    found = validate(request, grammar)
    assert any(one.code == f"grammar.{code}" and value in one.text() for one in found), found


@pytest.mark.parametrize("grammar", ["openai", "anthropic", "gemini"])
@pytest.mark.parametrize(
    "odd", [{}, [], None, "x", {"messages": 3, "contents": "x"}, {"messages": [None, 3], "contents": [None]}]
)
def test_nonsense_is_reported_not_raised(grammar: str, odd: Any) -> None:
    assert validate(odd, grammar)


def test_an_unknown_grammar_is_refused() -> None:
    with pytest.raises(MessageError, match=r"'cohere'.*openai, anthropic, gemini"):
        validate({}, "cohere")
