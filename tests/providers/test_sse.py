"""The parser of server-sent events: the standard's forms, any split of the bytes, bounds."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import BrokenStreamError
from lamina.providers.sse import EventParser, ServerEvent

PIECES = st.lists(
    st.one_of(
        st.sampled_from(
            [b"data: ", b"data:", b"event: ", b"data", b":", b" ", b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n",
             b"\xef\xbb\xbf", "你好🙂".encode(), b"\xff\xfe", b"id: 7\n", b"retry: 10\n", b": comment\n", b"[DONE]"]
        ),
        st.binary(max_size=6),
    ),
    max_size=30,
)  # fmt: skip


def parse(*pieces: bytes, parser: EventParser | None = None) -> list[ServerEvent]:
    parser = parser or EventParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return [*events, *parser.end()]


@given(PIECES, st.data())
def test_any_split_of_the_bytes_gives_the_same_events(pieces: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(pieces)
    points = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    split = [stream[a:b] for a, b in itertools.pairwise([0, *points, len(stream)])]
    assert parse(*split) == parse(stream)
    assert parse(*(bytes([byte]) for byte in stream)) == parse(stream)


def test_the_check_finds_a_parser_that_forgets_a_split_line_end() -> None:
    class Forgetful(EventParser):
        def feed(self, piece: bytes) -> Iterator[ServerEvent]:
            self._after_cr = False
            return super().feed(piece)

    stream = b"data: a\r\ndata: b\r\n\r\n"
    pieces = [bytes([byte]) for byte in stream]
    assert parse(*pieces, parser=Forgetful()) != parse(stream)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_the_forms_of_the_standard(end: str) -> None:
    lines = [
        "\ufeff: a comment", "event: add", "data: 73857293", "", "data: first", "data:second", "data:  third", "id: 4",
        "", "data", "", "event: lost", "", "unknown: x", "data: 你好🙂", "",
    ]  # fmt: skip
    assert parse(end.join(lines).encode() + end.encode()) == [
        ("add", "73857293"),
        ("", "first\nsecond\n third"),
        ("", ""),
        ("", "你好🙂"),
    ]


def test_a_byte_order_mark_at_the_very_start_is_passed_over_and_nowhere_else() -> None:
    assert parse(b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: lost\n\ndata: b\n\n") == [("", "a"), ("", "b")]


def test_bytes_that_are_no_utf8_become_a_sign_for_it() -> None:
    assert parse(b"data: a\xffb\xe4\xbd\n\n") == [("", "a\ufffdb\ufffd")]


def test_a_last_event_without_its_blank_line_counts() -> None:
    assert parse(b"data: [DONE]") == parse(b"data: [DONE]\n") == [("", "[DONE]")]


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 200, b"data: x\n" * 40, b":" + b"x" * 200])
def test_what_grows_without_end_is_an_error_and_what_came_before_it_is_kept(stream: bytes) -> None:
    events: list[ServerEvent] = []
    with pytest.raises(BrokenStreamError, match="more than 100 bytes"):
        events.extend(EventParser(max_bytes=100).feed(b"data: before\n\n" + stream))
    assert events == [("", "before")]


def test_small_events_without_end_are_no_error() -> None:
    parser = EventParser(max_bytes=100)
    assert sum(len(list(parser.feed(b"data: x\n\n: comment\n"))) for _ in range(1000)) == 1000
