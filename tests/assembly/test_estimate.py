from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lamina.assembly.tokens import estimate_tokens
from lamina.errors import MessageError
from lamina.providers.tokenizers import exact_counter

TEXTS = Path(__file__).parents[2] / "bench" / "texts"
MEASURED = {"english": 1.7, "chinese": 0.7, "japanese": -0.4, "korean": -6.1, "code": 4.5, "json": 5.0}
"""Percent: how far each text as a whole was off when the weights were fitted, + for too many tokens."""

text = st.text(st.characters(exclude_categories=["Cs"])) | st.text("aA9. \n中あ가，é", max_size=80)


def paragraphs(kind: str) -> list[str]:
    return [part for part in (TEXTS / f"{kind}.txt").read_text(encoding="utf-8").split("\n\n") if part.strip()]


def test_no_text_has_no_tokens():
    assert estimate_tokens("") == 0


@pytest.mark.parametrize("sample", [" ", "a", "\n", "\t", "中", "あ", "가", "é", "\x00", "🎉", "𠀀", "…"])
def test_the_shortest_text_has_at_least_one_token_and_at_most_four(sample: str):
    assert 1 <= estimate_tokens(sample) <= 4


@pytest.mark.parametrize(("kind", "measured"), MEASURED.items())
def test_a_text_as_a_whole_is_as_close_to_the_exact_count_as_it_was_measured(kind: str, measured: float):
    exact = exact_counter("o200k")
    samples = paragraphs(kind)
    error = (sum(map(estimate_tokens, samples)) / sum(map(exact, samples)) - 1) * 100
    assert len(samples) >= 15
    assert error == pytest.approx(measured, abs=3)
    assert abs(error) < 9


@pytest.mark.parametrize("kind", MEASURED)
def test_no_sample_is_far_off(kind: str):
    exact = exact_counter("o200k")
    far = [sample for sample in paragraphs(kind) if abs(estimate_tokens(sample) / exact(sample) - 1) > 0.3]
    assert far == []


def test_chinese_is_not_undercounted_as_a_quarter_of_its_characters_is():
    exact = exact_counter("o200k")
    samples = paragraphs("chinese")
    true = sum(map(exact, samples))
    assert sum(len(sample) / 4 for sample in samples) < true / 2
    assert sum(map(estimate_tokens, samples)) > true * 0.95


def test_a_name_in_camel_case_is_not_taken_for_one_word():
    names = "getUserNameFromRequestHeaders parseJsonBodyOrThrow isValidEmailAddress setDefaultTimeoutMillis"
    assert estimate_tokens(names) == pytest.approx(exact_counter("o200k")(names), rel=0.15)


def test_noise_is_not_taken_for_one_long_word():
    noise = "qzvhwkxjrmtbplgncyfdsaoeui" * 8
    assert estimate_tokens(noise) > len(noise) / 4
    assert estimate_tokens(noise.upper()) > len(noise) / 4


@given(text, text)
@example("a" * 12, "a" * 12)
@example("a" * 23, "a")
def test_joining_two_texts_costs_about_their_sum(left: str, right: str):
    joined, apart = estimate_tokens(left + right), estimate_tokens(left) + estimate_tokens(right)
    assert apart - 1 <= joined <= apart + 12  # 12: two halves of noise become one


@given(text, text)
def test_more_text_never_has_fewer_tokens(left: str, right: str):
    assert estimate_tokens(left + right) >= max(estimate_tokens(left), estimate_tokens(right))


@pytest.mark.parametrize("kind", MEASURED)
def test_a_text_that_grows_letter_by_letter_never_loses_a_token(kind: str):
    for sample in paragraphs(kind):
        counts = [estimate_tokens(sample[:end]) for end in range(len(sample) + 1)]
        assert counts == sorted(counts)


def test_a_lone_surrogate_is_refused_with_its_place_and_a_hint():
    with pytest.raises(MessageError, match=r"U\+D83D at character 3") as caught:
        estimate_tokens("abc\ud83d")
    assert "errors='replace'" in caught.value.hint


@pytest.mark.parametrize("wrong", [None, 7, b"bytes"])
def test_what_is_not_a_string_is_refused_with_its_type(wrong: object):
    with pytest.raises(MessageError, match=type(wrong).__name__):
        estimate_tokens(wrong)  # pyright: ignore[reportArgumentType] -- that is the test
