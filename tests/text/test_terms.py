"""Index terms: the same at index and query time, in English, Chinese, Japanese and Korean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.text.terms import STOP_WORDS, normal, numeral, stem, terms, weight


@pytest.mark.parametrize(
    "family",
    [
        "plan plans planned planning", "hope hopes hoped hoping", "study studies studied studying",
        "happy happily happiness", "buy bought buying purchase", "child children kids", "film movie movies",
        "go went gone goes going", "box boxes", "dance danced dancing dances", "organize organized organization",
        "write wrote written writing", "organise organize", "mom mother mothers",
    ],
)  # fmt: skip
def test_forms_of_one_word_share_a_stem(family: str) -> None:
    assert len({stem(word) for word in family.split()}) == 1


@pytest.mark.parametrize("pair", ["new news", "bus busy", "pass past", "thing think", "sing single"])
def test_different_words_keep_different_stems(pair: str) -> None:
    one, other = pair.split()
    assert stem(one) != stem(other)


def test_chinese_becomes_characters_and_pairs_also_beside_latin() -> None:
    assert terms("手机iPhone好") == ["手", "机", "手机", "iphon", "好"]


def test_japanese_and_korean_become_pairs_too() -> None:
    assert "東京" in terms("東京タワー")
    assert "서울" in terms("서울에서")


def test_full_width_and_case_make_no_difference() -> None:
    assert terms("ＡＢＣ１２３") == terms("abc123")
    assert terms("Straße") == terms("STRASSE")


@pytest.mark.parametrize(
    ("text", "number"),
    [("三千", 3000), ("二十三", 23), ("二〇二三", 2023), ("一万二千", 12000), ("十", 10), ("两百", 200)],
)
def test_chinese_numerals_are_numbers(text: str, number: int) -> None:
    assert numeral(text) == number


def test_numerals_meet_digits() -> None:
    assert "3000" in terms("规模是三千人")
    assert "3000" in terms("3,000 people")
    assert terms("two cats")[0] == terms("2 cats")[0] == "2"


def test_stop_words_stay_and_weigh_little() -> None:
    assert terms("The cat") == ["the", "cat"]
    assert weight("the") < weight("cat")
    assert weight("的") < weight("猫") < weight("手机")
    assert all(weight(stem(word)) <= 0.1 for word in STOP_WORDS if word.isascii())


def test_contractions_fall_to_their_word() -> None:
    assert terms("Caroline's she’s") == [stem("caroline"), "she"]


@given(st.text(max_size=200))
def test_any_text_has_terms_that_are_its_own_normal_forms(text: str) -> None:
    found = terms(text)
    assert found == terms(text) == terms(normal(text))
    assert all(found)
    assert all(0 < weight(term) <= 1 for term in found)


@given(st.text(max_size=50))
def test_a_numeral_is_a_number_or_none(text: str) -> None:
    assert numeral(text) is None or isinstance(numeral(text), int)
