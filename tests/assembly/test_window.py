"""The window of a growing chat: the same as fitting anew each time, at the cost of what is new."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina import Layer, Window, assemble, build_llm_messages, estimate_message_tokens
from lamina.errors import BudgetError, MessageError, OpenCallsError
from tests.histories import HISTORIES, said, split_pairs


def turns(history: list[Any]) -> list[int]:
    """Where a request could be sent: after a user message or after the last result of a step."""
    ends: list[int] = []
    seen_user = False
    for index, message in enumerate(history):
        seen_user |= message["role"] == "user"
        if seen_user and not split_pairs(history[: index + 1]) and message["role"] in ("user", "tool"):
            ends.append(index + 1)
    return ends


@given(HISTORIES, st.integers(0, 150), st.sampled_from([None, "user"]))
def test_it_gives_what_a_fresh_fit_gives_at_every_turn(history: Any, budget: int, start_on: Any) -> None:
    window = Window(budget=budget, system="system", start_on=start_on, mark="lamina")
    for index, message in enumerate(history):
        window.append(message)
        if index + 1 not in turns(history):
            continue
        fitted = window.fit()
        fresh = assemble(
            [Layer("identity", "system", "system")], history=history[: index + 1], budget=budget, start_on=start_on,
            mark="lamina",
        )  # fmt: skip
        assert list(fitted) == fresh.messages
        assert fitted.tokens == window.tokens == fresh.receipt.tokens
        assert (fitted.dropped, fitted.over_budget) == (fresh.receipt.dropped, fresh.receipt.over_budget)
        context = window.context()
        assert context.receipt.problems() == []
        assert context.payload == fresh.payload


@given(HISTORIES, st.integers(0, 150), st.sampled_from([0.3, 0.5, 1.0]))
def test_with_a_low_water_mark_pairs_stay_whole_and_the_cut_seldom_moves(history: Any, budget: int, low: float) -> None:
    window = Window(budget=budget, system="s", low_water=low)
    dropped = 0
    for index, message in enumerate(history):
        window.append(message)
        if index + 1 not in turns(history):
            continue
        fitted = window.fit()
        assert split_pairs(list(fitted)) == []
        moved = fitted.dropped.count != dropped
        dropped = fitted.dropped.count
        if moved and len(fitted) > 2 and fitted[1]["role"] != "user":
            assert fitted.tokens <= budget
    assert (
        window.context().receipt.problems() == []
        if any(m["role"] == "user" for m in history) and not split_pairs(history)
        else True
    )


def test_the_seeds_small_function_and_the_window_agree_over_a_long_chat() -> None:
    window, history = Window(budget=300, system="S"), list[Any]()
    for turn in range(200):
        question, answer = f"问题 {turn} " + "x" * (turn % 37), f"answer {turn} " + "y" * (turn % 53)
        expected = build_llm_messages(
            system_prompt="S", history=history, current_user_message=question, max_token_budget=300
        )
        window.append(said("user", question))
        assert list(window.fit()) == list(expected)
        window.append(said("assistant", answer))
        history += [said("user", question), said("assistant", answer)]


def test_low_water_cuts_in_steps() -> None:
    def cuts(low: float | None) -> int:
        window, moved, before = Window(budget=400, system="S", low_water=low), 0, 0
        for turn in range(300):
            window.append(said("user", f"question {turn:04}"))
            now = window.fit().dropped.count
            moved, before = moved + (now != before), now
            window.append(said("assistant", "answer " * 3))
        return moved

    assert cuts(0.5) * 10 < cuts(None)


def test_what_was_cut_is_released() -> None:
    window = Window(budget=200, system="S")
    for turn in range(2000):
        window.append(said("user", f"question {turn}"))
        window.context()
        window.append(said("assistant", f"answer {turn}"))
    assert len(window) < 60
    assert len(window._messages) < 200  # pyright: ignore[reportPrivateUsage] -- the point is what it holds on to


def test_open_calls_stop_a_request_until_their_results_are_there() -> None:
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ("x", "y")]
    window = Window(budget=1000, history=[said("user", "q")])
    window.append({"role": "assistant", "content": None, "tool_calls": calls})
    assert window.open_calls == ("x", "y")
    with pytest.raises(OpenCallsError, match="'x' still waits for its result"):
        window.fit()
    with pytest.raises(OpenCallsError, match=r"messages\[2\] comes while"):
        window.append(said("user", "next"))
    window.append({"role": "tool", "tool_call_id": "y", "content": "Y"})
    with pytest.raises(MessageError, match=r"'y', but no such call is waiting.*waiting: 'x'"):
        window.append({"role": "tool", "tool_call_id": "y", "content": "Y"})
    window.append({"role": "tool", "tool_call_id": "x", "content": "X"})
    assert len(window.fit()) == 4


@pytest.mark.parametrize("bad", [said("narrator", "a"), said("user", 3), said("user", "\ud800"), "hello", {}, None])
def test_a_refused_message_changes_nothing(bad: Any) -> None:
    window = Window(budget=1000, system="S", history=[said("user", "q")])
    before = list(window.fit()), window.tokens
    with pytest.raises(MessageError, match=r"messages\[1\]|text contains"):
        window.append(bad)
    assert (list(window.fit()), window.tokens) == before


def test_messages_are_its_own() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    window = Window(budget=1000)
    window.append(message)
    before = copy.deepcopy(list(window.fit()))
    message["content"][0]["text"] = "changed"  # pyright: ignore[reportIndexIssue, reportArgumentType] -- a plain dict
    assert list(window.fit()) == before


def test_a_window_without_a_user_message_has_nothing_to_answer() -> None:
    with pytest.raises(MessageError, match="no user message"):
        Window(budget=10).fit()
    with pytest.raises(MessageError, match="no user message"):
        Window(budget=100, history=[said("assistant", "hi")]).fit()


@pytest.mark.parametrize("low", [0, -1, 1.5, "half", True])
def test_a_low_water_mark_that_is_no_share_is_refused(low: Any) -> None:
    with pytest.raises(BudgetError, match="low_water"):
        Window(budget=10, low_water=low)


def test_usage_of_nothing_is_refused() -> None:
    with pytest.raises(MessageError, match="nothing has been fitted yet"):
        Window(budget=10).observe(5)


def test_the_budget_that_was_given_stays_the_one_that_is_shown() -> None:
    window = Window(budget=1000, history=[said("user", "x" * 400)])
    window.fit()
    window.observe(200)
    receipt = window.context().receipt
    assert (receipt.budget, window.fit().budget) == (1000, 1000)
    assert receipt.counter == "estimate_message_tokens×2"


def test_reported_usage_corrects_the_budget() -> None:
    def window() -> Window:
        chat = [said(("user", "assistant")[n % 2], "中文" * 20) for n in range(41)]
        return Window(budget=1000, history=chat)

    naive, taught = window(), window()
    naive.fit()
    fitted = taught.fit().tokens
    taught.append(said("assistant", "an answer"))  # what comes in after the request has no part in it
    taught.append(said("user", "next"))
    taught.observe(fitted * 2)
    assert taught.fit().tokens <= 500 < naive.fit().tokens
    assert estimate_message_tokens("中文" * 20) == 30
