"""A model's Markdown as Telegram's HTML, and long answers in pieces: laws, and what the eye expects."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.telegram.markup import (
    MAX_MESSAGE_UNITS,
    MAX_PART_UNITS,
    count_units,
    cut_to_units,
    html_units,
    open_fence_sign,
    split_text,
    to_html,
)
from tests.telegram.botapi import read_html
from tests.telegram.botapi import units as telegram_units

WRITTEN = st.lists(
    st.sampled_from([
        "word ", "字", "。", "😀", "\n", "\n\n", "# ", "- ", "1. ", "> ", "```", "```py\n", "`", "**", "*", "_", "~~",
        "<b>", "</b>", "&amp;", "&", "[a](https://e.org/?a=1&b=\"2)", "[a](javascript:x)", "![p](http://p)",
        "| a | b |\n|---|---|\n",
        "---\n", "    ", "\\", "<https://e.org>", "\0", "\x1b[31m", "\u202e", "e\u0301", "👩‍💻", "<script>", "~~~\n",
    ]),
    max_size=60,
).map("".join)  # fmt: skip


@given(WRITTEN)
def test_whatever_a_model_writes_telegram_can_read_it_and_counts_as_we_do(text: str) -> None:
    shown, wrong = read_html(to_html(text))
    assert wrong == ""
    assert telegram_units(shown) == html_units(to_html(text))
    assert "\x1b" not in shown


@given(WRITTEN, st.integers(210, 400))
def test_pieces_are_never_too_long_and_lose_nothing_but_blanks(text: str, most: int) -> None:
    found = split_text(text * 8, most)
    assert all(telegram_units(piece) <= most for piece in found)
    if "```" not in text and "~~~" not in text:
        assert "".join("".join(found).split()) == "".join((text * 8).split())


@given(WRITTEN)
def test_what_was_cut_off_stays_as_the_text_grows(text: str) -> None:
    whole = text * 10
    before: list[str] = []
    for end in range(0, len(whole), 97):
        now = split_text(whole[:end], 300)
        assert now[: max(0, len(before) - 1)] == before[:-1]
        before = now


@given(st.text())
def test_lengths_are_counted_as_telegram_counts(text: str) -> None:
    assert count_units(text) == len(text.encode("utf-16-le", "surrogatepass")) // 2
    assert count_units(cut_to_units(text, 5)) <= 5


def test_markdown_becomes_what_telegram_knows() -> None:
    assert to_html("# A *b*\n\nc **d** ~~e~~ `f<g>`") == (
        "<b>A <i>b</i></b>\n\nc <b>d</b> <s>e</s> <code>f&lt;g&gt;</code>"
    )
    assert to_html("- a\n- b\n  - c\n\n1. d\n2. e") == "• a\n• b\n  • c\n\n1. d\n2. e"
    assert to_html("```py\nx < 1\n```") == '<pre><code class="language-py">x &lt; 1</code></pre>'
    assert to_html("> q") == "<blockquote>q</blockquote>"
    assert to_html("[a](https://e.org)") == '<a href="https://e.org">a</a>'
    assert "href" not in to_html("[a](tg://resolve?domain=x) [b](javascript:alert(1))")
    assert to_html("<b>x</b> & y") == "&lt;b&gt;x&lt;/b&gt; &amp; y"
    assert to_html("| a |\n|---|\n| 1 |") == "<pre>| a |\n|---|\n| 1 |</pre>"


@pytest.mark.parametrize(
    ("text", "end"),
    [
        (f"{'a' * 60}\n\n{'b ' * 60}", "a" * 60),
        (f"{'a' * 60}\n{'b ' * 60}", "a" * 60),
        (f"{'a' * 60}. {'b' * 100}", "a" * 60 + "."),
        (f"{'字' * 60}。{'字' * 100}", "字" * 60 + "。"),
        (f"{'a' * 60} {'b' * 100}", "a" * 60),
        ("x" * 200, "x" * 100),
    ],
)
def test_the_place_to_cut_is_a_paragraph_a_line_a_sentence_a_word(text: str, end: str) -> None:
    assert split_text(text, 100)[0] == end


def test_an_emoji_of_several_characters_is_not_cut() -> None:
    assert all(piece == "👩‍💻" * (len(piece) // 3) for piece in split_text("👩‍💻" * 100, 101))


def test_a_code_block_is_closed_and_opened_again_and_a_short_one_stays_whole() -> None:
    first, second = split_text("```py\n" + "line\n" * 30 + "```", 100)[:2]
    assert first.startswith("```py\n")
    assert first.endswith("\n```")
    assert second.startswith("```py\nline")
    assert split_text("w " * 40 + "\n```py\nshort\n```", 90) == [("w " * 40).rstrip(), "```py\nshort\n```"]
    assert (open_fence_sign("```py\nx"), open_fence_sign("```py\nx\n```"), open_fence_sign("~~~~\n```")) == (
        "```",
        "",
        "~~~~",
    )


def test_the_limits_are_telegrams() -> None:
    assert (MAX_MESSAGE_UNITS, MAX_PART_UNITS < MAX_MESSAGE_UNITS) == (4_096, True)
