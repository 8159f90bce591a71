"""Seed 001, REQ-AIS-MULTITURN: multi-turn messages under a budget, with the seed's own data."""

import copy
import math
from fractions import Fraction
from typing import Any

import pytest

from lamina import Window, build_llm_messages, estimate_message_tokens, estimate_tokens, exact_counter
from lamina.errors import BudgetError, CounterError, MessageError
from lamina.types import Dropped

History = list[dict[str, Any]]


def call(identifier: str, name: str = "find", arguments: str = "{}") -> dict[str, Any]:
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


TOOLS: History = [
    said("user", "a" * 40),
    {"role": "assistant", "content": None, "tool_calls": [call("x"), call("y")]},
    {"role": "tool", "tool_call_id": "x", "content": "r" * 40},
    {"role": "tool", "tool_call_id": "y", "content": "r" * 40},
    said("assistant", "b" * 40),
    said("user", "c" * 40),
    said("assistant", "d" * 40),
]


def fit(history: Any, budget: Any = 10_000, **options: Any) -> Any:
    options = {"system_prompt": "S", "current_user_message": "E", **options}
    return build_llm_messages(history=history, max_token_budget=budget, **options)


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("你好", 2), ("林默是28岁侦探", 5), ("🙂", 1)]
)
def test_M1_a_quarter_of_the_bytes_rounded_up(text: str, tokens: int) -> None:
    assert estimate_message_tokens(text) == tokens == (max(1, math.ceil(len(text.encode()) / 4)) if text else 0)


def test_M1_text_that_is_none_is_refused() -> None:
    with pytest.raises(MessageError, match="not int: 3"):
        estimate_message_tokens(3)  # pyright: ignore[reportArgumentType] -- on purpose
    with pytest.raises(MessageError, match=r"U\+DC80 at character 1"):
        estimate_message_tokens("é\udc80")


def test_M2_S1_standard_multi_turn() -> None:
    result = build_llm_messages(
        system_prompt="<identity>AI</identity>",
        history=[{"role": "user", "content": "介绍林默"}, {"role": "assistant", "content": "林默是28岁侦探"}],
        current_user_message="他的性格？",
        max_token_budget=10000,
    )
    assert list(result) == [
        {"role": "system", "content": "<identity>AI</identity>"},
        {"role": "user", "content": "介绍林默"},
        {"role": "assistant", "content": "林默是28岁侦探"},
        {"role": "user", "content": "他的性格？"},
    ]
    assert isinstance(result, list)


def test_M4_S2_the_oldest_history_goes_first() -> None:
    history = [said("user", "AAAA"), said("assistant", "BBBB"), said("user", "CCCC"), said("assistant", "DDDD")]
    result = fit(history, 4)
    assert [m["content"] for m in result] == ["S", "CCCC", "DDDD", "E"]
    assert result[-1] == {"role": "user", "content": "E"}
    assert result.tokens == 4


def test_M2_S3_empty_history() -> None:
    result = fit([], system_prompt="system text", current_user_message="你好")
    assert list(result) == [said("system", "system text"), said("user", "你好")]


def test_M3_S4_system_and_current_are_kept_whatever_the_budget() -> None:
    history = [said(("user", "assistant")[n % 2], "h" * 20) for n in range(10)]  # 5 tokens each
    result = fit(history, 160, system_prompt="s" * 400, current_user_message="c" * 200)  # 100 and 50
    assert [m["role"] for m in result] == ["system", "user", "assistant", "user"]
    assert result[1:3] == history[-2:]
    assert result.tokens == 160
    assert not result.over_budget


def test_M3_over_budget_by_themselves_they_stay_and_all_history_goes() -> None:
    result = fit([said("user", "AAAA")], 0, system_prompt="s" * 400)
    assert [m["role"] for m in result] == ["system", "user"]
    assert result.over_budget
    assert result.dropped == Dropped(1, 1)


@pytest.mark.parametrize("budget", [math.nan, math.inf, -math.inf, -1, -0.5, "4", None, True, [4], 4j, Fraction(4)])
def test_M5_a_budget_that_is_no_finite_number_of_at_least_0_is_refused_with_its_value(budget: Any) -> None:
    with pytest.raises(BudgetError) as error:
        fit([said("user", "AAAA")], budget)
    assert repr(budget) in str(error.value)
    with pytest.raises(BudgetError):
        Window(budget=budget)


def test_M5_whole_and_broken_numbers_are_budgets() -> None:
    assert len(fit([said("user", "AAAA")], 3)) == 3
    assert len(fit([said("user", "AAAA")], 2.9)) == 2
    assert len(fit([said("user", "AAAA")], 10**400)) == 3


def test_M6_the_result_says_what_was_dropped() -> None:
    history = [said("user", "A" * 40), said("assistant", "B" * 8), said("user", "CCCC")]
    result = fit(history, 5)
    assert result.dropped == Dropped(1, 10)
    assert result.dropped_count == 1
    assert (result.tokens, result.budget, result.over_budget) == (5, 5, False)


def test_M6_a_history_that_shrank_is_not_counted_wrong() -> None:
    history = [said("user", "A" * 40), said("assistant", "B" * 8)]
    result = fit(history, 2)
    history.clear()
    with pytest.raises(MessageError, match="has 0 now"):
        _ = result.dropped


@pytest.mark.parametrize("budget", range(60))
def test_M7_a_call_and_its_results_stay_or_go_together(budget: int) -> None:
    kept = [m for m in fit(TOOLS, budget) if m["role"] != "system"]
    calls = [c["id"] for m in kept for c in m.get("tool_calls", ())]
    results = [m["tool_call_id"] for m in kept if m["role"] == "tool"]
    assert calls == results
    assert kept[0]["role"] != "tool"


@pytest.mark.parametrize("budget", range(60))
def test_M7_start_on_user_never_opens_with_the_assistant(budget: int) -> None:
    kept = [m for m in fit(TOOLS, budget, start_on="user") if m["role"] != "system"]
    assert kept[0]["role"] == "user"


@pytest.mark.parametrize(
    ("history", "found"),
    [
        ([{"role": "tool", "tool_call_id": "x", "content": "r"}], "history.result_without_call 'x'"),
        (
            [said("user", "a"), {"role": "tool", "tool_call_id": "x", "content": "r"}],
            "history.result_without_call from history[1] on contain the tool result 'x'",
        ),
        (
            [{"role": "assistant", "content": None, "tool_calls": [call("x")]}],
            "history.call_without_result history[0] contains the tool call 'x'",
        ),
        ([*TOOLS[:3], said("user", "z")], "history.call_without_result history[1] contains the tool call 'y'"),
        ([*TOOLS[:3], TOOLS[2], TOOLS[3]], "history.second_result 'x' twice"),
        ([said("narrator", "a")], "message.bad_role history[0].role is 'narrator'"),
        ([said("system", "a")], "message.bad_role system text belongs in system_prompt"),
        ([said("user", "ok"), {"role": "user"}], "message.no_content history[1]"),
        ([{"content": "a"}], "message.bad_role role is None"),
        ([{"role": "user", "content": None}], "message.bad_content None is allowed only together with tool_calls"),
        (
            [{"role": "user", "content": 7}],
            "message.bad_content history[0].content must be text or a list of parts, not int: 7",
        ),
        ([{"role": "user", "content": []}], "message.no_parts history[0].content"),
        ([{"role": "user", "content": [{"type": "audio"}]}], "part.unknown content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": 3}]}], "part.unknown content[0]"),
        (
            [{"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}],
            "part.picture_not_allowed content[0]",
        ),
        (
            [said("user", "a\ud83d")],
            "text.lone_surrogate history[0].content contains the lone surrogate U+D83D at character 1",
        ),
        (["hello"], "message.not_mapping history[0] must be a mapping with role and content, not str: 'hello'"),
        ([{"role": "user", "content": "a", "tool_calls": [call("x")]}], "call.wrong_role history[0]"),
        ([{"role": "assistant", "content": "", "tool_calls": []}], "call.bad_list history[0].tool_calls"),
        (
            [{"role": "assistant", "content": "", "tool_calls": [call("x"), call("x")]}],
            "call.repeated_id history[0].tool_calls[1].id is 'x'",
        ),
        (
            [{"role": "assistant", "content": "", "tool_calls": [call("x", name="a b")]}],
            "call.bad_tool_name 'a b'",
        ),
        ([{"role": "assistant", "content": "", "tool_calls": [{"id": "x"}]}], "call.bad_form history[0].tool_calls[0]"),
        ([{"role": "tool", "content": "r"}], "message.no_call_id history[0]"),
        ("a history", "history.not_list str"),
        ({"role": "user"}, "history.not_list dict"),
    ],
)
def test_M7_a_broken_history_is_refused_with_place_and_value(history: Any, found: str) -> None:
    code, _, value = found.partition(" ")
    with pytest.raises(MessageError) as caught:
        fit(history)
    assert (caught.value.code, value in str(caught.value)) == (code, True), str(caught.value)


def test_M7_inputs_are_never_changed() -> None:
    history = copy.deepcopy(TOOLS)
    for budget in range(60):
        fit(history, budget)
    assert history == TOOLS


def test_M2_the_messages_are_copies_and_changing_them_changes_no_input() -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]
    history: History = [*copy.deepcopy(TOOLS), {"role": "user", "content": copy.deepcopy(parts)}]
    current = copy.deepcopy(parts)
    before = copy.deepcopy((history, current))
    result = build_llm_messages(
        system_prompt="S", history=history, current_user_message=current, max_token_budget=10_000
    )
    assert len(result) == len(history) + 2
    _spoil(list(result))
    assert (history, current) == before


@pytest.mark.planted("copies of the outside of a message alone")
def test_M2_planted_copies_that_share_their_inside_are_found() -> None:
    history = copy.deepcopy(TOOLS)
    _spoil([dict(message) for message in history])
    assert history != TOOLS


def _spoil(value: Any) -> None:
    """Change everything in a value that can be changed."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inside:
        _spoil(each)
    if isinstance(value, dict):
        value["spoilt"] = True
    elif isinstance(value, list):
        value.append("spoilt")


def test_M8_counters_are_one_argument_away() -> None:
    history = [said("user", "你好世界" * 20), said("assistant", "hello")]
    for count in (estimate_message_tokens, estimate_tokens, exact_counter("o200k"), exact_counter("cl100k"), len):
        result = fit(history, 10_000, count_tokens=count)
        assert len(result) == 4
        assert result.tokens > 0


def test_M8_an_exact_counter_counts_the_wrapping_the_calls_and_the_pictures() -> None:
    count = exact_counter("o200k")
    plain = fit([said("user", "hello")], count_tokens=count)
    assert plain.tokens == 3 + (3 + 1) * 3  # the request, and system, history and current message of one token each
    called = fit(TOOLS[:5], count_tokens=count).tokens - fit(TOOLS[:1], count_tokens=count).tokens
    assert called >= 4 * 3 + 2 * count("find") + 2 * count("{}")
    picture = [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]
    shown = fit([], current_user_message=picture, count_tokens=count)
    assert shown.tokens == 3 + (3 + 1) + (3 + 765)


@pytest.mark.parametrize("answer", [-1, 1.5, None, "3", True])
def test_M8_a_counter_that_gives_no_count_is_refused(answer: Any) -> None:
    with pytest.raises(CounterError, match="whole number"):
        fit([said("user", "a")], count_tokens=lambda _: answer)


def test_M9_one_more_turn_costs_what_is_new() -> None:
    """Counted in calls of the counter, not in seconds: a turn of the window counts its two messages and no other."""
    calls = 0

    def count(text: str) -> int:
        nonlocal calls
        calls += 1
        return len(text) // 4 + 1

    window = Window(budget=500, system="S", count=count)
    each: list[int] = []
    for turn in range(500):
        before = calls
        window.append(said("user", f"question {turn}"))
        window.fit()
        window.append(said("assistant", f"answer {turn}"))
        each.append(calls - before)
    assert set(each) == {2}


def test_M9_fitting_a_long_history_looks_at_what_is_kept() -> None:
    calls = 0

    def count(text: str) -> int:
        nonlocal calls
        calls += 1
        return 10

    fit([said(("user", "assistant")[n % 2], "x") for n in range(10_000)], 120, count_tokens=count)
    assert calls == 2 + 10 + 1  # system and current, ten kept, the one that did not fit
