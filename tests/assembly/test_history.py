"""The laws of fitting, for any history."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lamina import build_llm_messages
from lamina.assembly.tokens import content_tokens, estimate_message_tokens
from tests.histories import BUDGETS, HISTORIES, freeze, split_pairs

START_ON = st.sampled_from([None, "user"])


def fit(history: Any, budget: float, start_on: Any = None) -> Any:
    return build_llm_messages(
        system_prompt="system", history=history, current_user_message="now?", max_token_budget=budget, start_on=start_on
    )


def cost(messages: list[Any]) -> int:
    return sum(content_tokens(message, estimate_message_tokens) for message in messages)


@given(HISTORIES, BUDGETS, START_ON)
def test_what_is_kept_is_the_longest_legal_suffix_that_fits(history: Any, budget: float, start_on: Any) -> None:
    """Against the plainest possible oracle: try every suffix, longest first."""
    room = budget - estimate_message_tokens("system") - estimate_message_tokens("now?")
    legal = [
        history[start:]
        for start in range(len(history) + 1)
        if not split_pairs(history[start:])
        and cost(history[start:]) <= max(room, 0)
        and (start_on is None or start == len(history) or history[start]["role"] == start_on)
    ]
    expected = legal[0] if room >= 0 and legal else []
    assert list(fit(history, budget, start_on))[1:-1] == expected


@given(HISTORIES, BUDGETS, START_ON)
def test_it_is_never_over_budget_unless_the_fixed_part_is(history: Any, budget: float, start_on: Any) -> None:
    result = fit(history, budget, start_on)
    fixed = estimate_message_tokens("system") + estimate_message_tokens("now?")
    assert result.tokens == cost(list(result))
    assert result.tokens <= budget or (result.over_budget and len(result) == 2 and fixed > budget)


@given(HISTORIES, BUDGETS, START_ON)
def test_fitting_twice_changes_nothing(history: Any, budget: float, start_on: Any) -> None:
    once = list(fit(history, budget, start_on))
    assert list(fit(once[1:-1], budget, start_on)) == once


@given(HISTORIES, BUDGETS, START_ON)
def test_pairs_are_never_split(history: Any, budget: float, start_on: Any) -> None:
    assert split_pairs(list(fit(history, budget, start_on))) == []


@given(HISTORIES, BUDGETS)
def test_dropped_and_kept_are_all_there_was(history: Any, budget: float) -> None:
    result = fit(history, budget)
    assert result.dropped.count + len(result) - 2 == len(history)
    assert result.dropped.tokens == cost(history[: result.dropped.count])


@given(HISTORIES, BUDGETS)
def test_inputs_are_never_changed(history: Any, budget: float) -> None:
    before = freeze(history)
    fit(history, budget)
    assert freeze(history) == before


@given(HISTORIES, BUDGETS)
def test_the_naive_loop_would_be_caught(history: Any, budget: float) -> None:
    """The planted bug: newest to oldest without a look at pairs. Where it splits a pair, the oracle says so."""
    room, start = budget - 3, len(history)
    while start and room >= cost([history[start - 1]]):
        start -= 1
        room -= cost([history[start]])
    if start < len(history) and history[start]["role"] == "tool":
        assert split_pairs(history[start:])
