"""Words for message search: folded, CJK in ones and pairs, and never too many."""

from hypothesis import given
from hypothesis import strategies as st

from lamina.store.messages import MAX_TEXT, MAX_WORD, query_words, snippet, words


def test_words_are_folded_and_cjk_is_cut_into_ones_and_pairs() -> None:
    assert words("Straße ＡＢＣ x_1") == ["abc", "strasse", "x_1"]
    assert words("你好吗") == sorted(["你", "好", "吗", "你好", "好吗"])
    assert words("用Python写") == sorted(["python", "写", "用"])


def test_a_query_asks_for_pairs_where_there_are_pairs() -> None:
    assert query_words("预算 表 Excel excel") == ["预算", "表", "excel"]
    assert query_words(" ?! ") == []


def test_long_text_and_long_words_have_an_end() -> None:
    assert words("a" * 1000) == ["a" * MAX_WORD]
    assert "late" not in words("x " * MAX_TEXT + "late")


def test_a_snippet_stands_around_the_words_on_one_line() -> None:
    text = "start " * 50 + "the\nneedle " + "end " * 50
    assert "the needle" in snippet(text, "needle")
    assert snippet("short", "nothing") == "short"


@given(st.text())
def test_a_text_always_has_the_words_that_are_asked_for_with_it(text: str) -> None:
    assert set(query_words(text)) <= set(words(text))
    assert not any(mark in word for word in words(text) for mark in "\0 '\"\\&|:*()")
    assert isinstance(snippet(text, text), str)
