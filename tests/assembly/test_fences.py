"""What never leaves: lamina's own hints and fences, however a stream is cut into pieces."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lamina.assembly.fences import MAX_TAG_CHARACTERS, TagFilter

MARK = "abcd1234"
PIECES = st.lists(
    st.sampled_from(
        ["hi ", "<", ">", "a < b", "<system_hint", ' type="x"', ">", "</system_hint>", "<sys", "tem_hint",
         "<system_hints>", f"<data-{MARK}", f"</data-{MARK}>", f'<layer-{MARK} source="rules">', "你好", "<b>",
         "/>", "</"]
    ),
    max_size=12,
)  # fmt: skip


def scrubbed(pieces: list[str], typed: str = "") -> str:
    scrub = TagFilter(MARK, lambda tag: bool(typed) and tag in typed)
    return "".join([*map(scrub.feed, pieces), scrub.close()])


def test_a_hint_that_the_model_repeats_is_gone() -> None:
    assert scrubbed(['Sure. <system_hint type="tool_degraded" tool="x">do not</system_hint> Fine.']) == "Sure.  Fine."
    assert scrubbed(["a <system_hint>never closed, and so it goes on"]) == "a "
    assert scrubbed([f'<data-{MARK} source="memory:1">\nTom\n</data-{MARK}>']) == "\nTom\n"
    assert scrubbed(["a <system_hint/> b"]) == "a  b"


def test_no_spelling_of_a_hint_gets_through_and_nothing_becomes_one_by_what_is_gone() -> None:
    for text in (
        "<<system_hint>x</system_hint>system_hint a>SECRET</system_hint>",
        "<sys<system_hint>x</system_hint>tem_hint>SECRET</system_hint>",
        f"<system_<data-{MARK}>hint>SECRET",
    ):
        assert "<system_hint" not in scrubbed([text]).lower(), text
    for text in (
        "<System_Hint>SECRET</System_Hint>",
        "<system_hint\u200b>SECRET</system_hint>",
        "<system_hint>a<system_hint>b</system_hint>SECRET</system_hint>",
    ):
        assert scrubbed([text]) == "", text
    assert scrubbed([f"<DATA-{MARK.upper()}>x"]) == "x"


def test_one_that_the_user_typed_himself_passes() -> None:
    typed = 'What does <system_hint type="x">this</system_hint> mean?'
    assert scrubbed([typed], typed) == typed
    assert scrubbed(['<system_hint type="y">no</system_hint>'], typed) == ""


def test_other_text_is_left_alone_to_the_last_character() -> None:
    for text in ("a < b and c > d", "<system_hints> are a word", "if x <", "<sys", "<b>你好</b>", "</", "<"):
        assert scrubbed([text]) == text


def test_a_tag_without_an_end_does_not_hold_the_answer_for_ever() -> None:
    assert scrubbed(["x <system_hint " + "y" * (MAX_TAG_CHARACTERS + 10), "</system_hint>", " z"]) == "x  z"


@given(PIECES, st.data())
def test_however_it_is_cut_the_result_is_the_same_and_holds_nothing_of_ours(
    pieces: list[str], data: st.DataObject
) -> None:
    text = "".join(pieces)
    whole = scrubbed([text])
    points = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    edges = [0, *points, len(text)]
    assert scrubbed([text[a:b] for a, b in pairwise(edges)]) == whole
    assert "<system_hint>" not in whole
    assert scrubbed([whole]) == whole, "a second time changes nothing"
    assert "<system_hint " not in whole
