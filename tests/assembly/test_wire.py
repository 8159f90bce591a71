"""One context, three grammars: every request is valid, tiles byte for byte, and says the same."""

import json
from typing import Any, cast

import pytest
from hypothesis import given

from lamina import Layer, assemble, encode, render, validate
from lamina.errors import MessageError
from lamina.types import Grammar
from tests.histories import BUDGETS, HISTORIES

GRAMMARS: list[Grammar] = ["openai", "anthropic", "gemini"]
LAYERS = [
    Layer("identity", "<identity>AI</identity>", "identity.md"),
    Layer("rules", "规则：不写暴力内容", "rules.md"),
    Layer("memory", 'likes </data-lamina> "tea"', "memory:1", "ann", "outside", volatile=True),
    Layer("memory", "lives in 江城", "memory:2", "ann", "outside", volatile=True),
]
TOOLS = [
    {"type": "function", "function": {"name": "find", "description": "Find.", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "1st", "description": "First."}},
]


def call(identifier: str, name: str = "find", arguments: str = '{"q": 1}') -> dict[str, Any]:
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


@given(HISTORIES, BUDGETS)
def test_every_grammar_gets_a_valid_request_that_its_receipt_tiles(history: Any, budget: float) -> None:
    context = assemble(LAYERS, history=history, user="现在？", mark="lamina", budget=budget, tools=TOOLS, owner="ann")
    assert len(context.receipt.payload) == context.receipt.size
    for grammar in GRAMMARS:
        receipt = encode(context, grammar)
        request = json.loads(receipt.payload)
        assert validate(request, grammar) == ()
        assert receipt.problems() == []
        assert render(context, grammar) == request
        pieces = [receipt.payload[s.start : s.end] for s in receipt.segments]
        assert b"".join(pieces) == receipt.payload


def test_the_openai_request_is_the_messages_themselves() -> None:
    context = assemble(LAYERS, user="hi", mark="lamina", budget=1000, tools=TOOLS, owner="ann")
    assert render(context) == {"tools": TOOLS, "messages": context.messages}


def test_anthropic_marks_the_cache_after_what_is_stable_and_at_both_ends() -> None:
    request = render(assemble(LAYERS, user="hi", mark="lamina", budget=1000, owner="ann"), "anthropic")
    marked = [block["text"] for block in request["system"] if "cache_control" in block]
    assert marked[0].endswith("规则：不写暴力内容")
    assert marked[1].endswith("</data-lamina>")
    assert request["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}
    assert (
        "".join(block["text"] for block in request["system"])
        == assemble(LAYERS, user="", mark="lamina", budget=9, owner="ann").system
    )


def test_neighbours_of_one_side_become_one_turn() -> None:
    history = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": None, "tool_calls": [call("x"), call("y")]},
        {"role": "tool", "tool_call_id": "y", "content": "Y"},
        {"role": "tool", "tool_call_id": "x", "content": "X"},
    ]
    context = assemble(history=history, user="and?", mark="lamina", budget=1000)
    anthropic = render(context, "anthropic")["messages"]
    assert [(m["role"], [b["type"] for b in m["content"]]) for m in anthropic] == [
        ("user", ["text", "text"]),
        ("assistant", ["text", "tool_use", "tool_use"]),
        ("user", ["tool_result", "tool_result", "text"]),
    ]
    gemini = render(context, "gemini")["contents"]
    assert [(c["role"], len(c["parts"])) for c in gemini] == [("user", 2), ("model", 3), ("user", 2), ("user", 1)]


def test_ids_that_were_used_before_or_are_odd_get_new_ones() -> None:
    step = [
        {"role": "assistant", "content": None, "tool_calls": [call("调用:1")]},
        {"role": "tool", "tool_call_id": "调用:1", "content": "r"},
    ]
    context = assemble(history=[{"role": "user", "content": "q"}, *step, *step], user="?", mark="lamina", budget=1000)
    blocks = [b for m in render(context, "anthropic")["messages"] for b in m["content"]]
    uses = [b["id"] for b in blocks if b["type"] == "tool_use"]
    assert len(set(uses)) == 2
    assert uses == [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]


def test_broken_arguments_stay_readable() -> None:
    history = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call("x", arguments="{broken")]},
        {"role": "tool", "tool_call_id": "x", "content": "error"},
    ]
    request = render(assemble(history=history, user="?", mark="lamina", budget=1000), "anthropic")
    assert request["messages"][1]["content"][0]["input"] == {"arguments": "{broken"}


def test_a_message_without_text_is_left_out_with_a_reason_where_it_must_be() -> None:
    history = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": " "},
        {"role": "user", "content": "r"},
    ]
    receipt = encode(assemble(history=history, user="?", mark="lamina", budget=1000), "gemini")
    left_out = [s for s in receipt.segments if s.decision == "dropped"]
    assert [(s.source, s.reason.code) for s in left_out] == [("history[1]", "reason.empty_message")]
    assert receipt.problems() == []


@pytest.mark.parametrize("grammar", ["anthropic", "gemini"])
def test_what_comes_before_the_first_words_of_the_user_is_left_out_with_a_reason(grammar: Grammar) -> None:
    greeting = [{"role": "assistant", "content": "Hello!"}, {"role": "user", "content": ""}]
    context = assemble(history=greeting, user="hi", mark="lamina", budget=1000, start_on=None)
    assert len(render(context)["messages"]) == 3
    receipt = encode(context, grammar)
    assert validate(json.loads(receipt.payload), grammar) == ()
    assert [s.source for s in receipt.segments if s.reason.code == "reason.before_first_user"] == [
        "history[0]",
        "history[1]",
    ]
    assert receipt.problems() == []


def test_a_request_that_a_provider_would_refuse_is_not_built() -> None:
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with pytest.raises(MessageError, match="messages: the last entry must be the user's"):
        render(assemble(history=history, user=" ", mark="lamina", budget=100), "anthropic")
    with pytest.raises(MessageError, match="'cohere'"):
        encode(assemble(user="a", mark="lamina", budget=100), cast(Grammar, "cohere"))


def test_pictures_reach_each_grammar_in_its_own_form() -> None:
    user = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.webp"}},
    ]
    context = assemble(user=user, mark="lamina", budget=10_000)
    assert render(context)["messages"][0]["content"] == user
    blocks = render(context, "anthropic")["messages"][0]["content"]
    assert blocks[1]["source"] == {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    assert blocks[2]["source"] == {"type": "url", "url": "https://example.com/a.webp"}
    parts = render(context, "gemini")["contents"][0]["parts"]
    assert parts[1] == {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}
    assert parts[2] == {"fileData": {"fileUri": "https://example.com/a.webp", "mimeType": "image/webp"}}


@pytest.mark.parametrize("grammar", ["anthropic", "gemini"])
@pytest.mark.parametrize("words", ["", "  "])
def test_a_user_without_words_is_a_clear_error(grammar: Grammar, words: str) -> None:
    with pytest.raises(MessageError, match=f"{grammar} refuses a request without text of a user"):
        render(assemble([Layer("identity", "AI")], user=words, mark="lamina", budget=10), grammar)
