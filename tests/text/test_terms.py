"""Index terms: the same at index and query time, in English, Chinese, Japanese and Korean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.text.terms import STOP_WORDS, normalize_text, read_numeral, split_terms, stem, term_weight


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
    assert split_terms("手机iPhone好") == ["手", "机", "手机", "iphon", "好"]


def test_japanese_and_korean_become_pairs_too() -> None:
    assert "東京" in split_terms("東京タワー")
    assert "서울" in split_terms("서울에서")


def test_full_width_and_case_make_no_difference() -> None:
    assert split_terms("ＡＢＣ１２３") == split_terms("abc123")
    assert split_terms("Straße") == split_terms("STRASSE")


@pytest.mark.parametrize(
    ("text", "number"),
    [("三千", 3000), ("二十三", 23), ("二〇二三", 2023), ("一万二千", 12000), ("十", 10), ("两百", 200)],
)
def test_chinese_numerals_are_numbers(text: str, number: int) -> None:
    assert read_numeral(text) == number


def test_numerals_meet_digits() -> None:
    assert "3000" in split_terms("规模是三千人")
    assert "3000" in split_terms("3,000 people")
    assert split_terms("two cats")[0] == split_terms("2 cats")[0] == "2"


def test_stop_words_stay_and_weigh_little() -> None:
    assert split_terms("The cat") == ["the", "cat"]
    assert term_weight("the") < term_weight("cat")
    assert term_weight("的") < term_weight("猫") < term_weight("手机")
    assert all(term_weight(stem(word)) <= 0.1 for word in STOP_WORDS if word.isascii())


def test_contractions_fall_to_their_word() -> None:
    assert split_terms("Caroline's she’s") == [stem("caroline"), "she"]


@given(st.text(max_size=200))
def test_any_text_has_terms_that_are_its_own_normal_forms(text: str) -> None:
    found = split_terms(text)
    assert found == split_terms(text) == split_terms(normalize_text(text))
    assert all(found)
    assert all(0 < term_weight(term) <= 1 for term in found)


@given(st.text(max_size=50))
def test_a_numeral_is_a_number_or_none(text: str) -> None:
    assert read_numeral(text) is None or isinstance(read_numeral(text), int)
