"""JSON in slices is what it is in one piece, and strict JSON is what every reader reads alike."""

import json
import sqlite3
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lamina.store.sqlite import encode_long
from lamina.text.json import (
    AmbiguousJsonError,
    JsonReader,
    json_pieces,
    read_json,
    read_strict_json,
    size_of,
    write_json,
)
from lamina.text.unicode import decode_text, encode_text

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES, st.integers(13, 60))
@example([[], {}, "", [1, "a" * 50], {"a" * 50: ["😀\n" * 20]}], 13)
@example([[], [], [], []], 13)
@example({"a": "\\" * 30, "b": "😀" * 20}, 13)
def test_JSON_in_slices_is_JSON(value: Any, size: int) -> None:
    pieces = list(json_pieces(value, size))
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert "".join(pieces) == text
    for written in (text, json.dumps(value), json.dumps(value, indent=1)):
        assert JsonReader(written, size).read() == value
    assert (size_of(value, size) > size) <= (len(text) > size), "what is taken for long is long"


def test_long_values_are_written_and_read_step_by_step() -> None:
    value = [{"a": "x\n" * 200_000, "b": ["y"] * 200_000}, "汉" * 300_000]
    pieces = list(json_pieces(value))
    assert max(map(len, pieces)) < 4 * 65_536
    assert read_json(write_json(value)) == value
    with pytest.raises(json.JSONDecodeError):
        read_json(write_json(value)[:-1])


@pytest.mark.parametrize("text", ["汉" * 100_000, "😀" * 100_001, "a" * 300_000])
def test_long_texts_go_into_SQLite_and_come_back(text: str) -> None:
    assert decode_text(encode_text(text)) == text
    connection = sqlite3.connect(":memory:")
    connection.text_factory = decode_text
    connection.execute("CREATE TABLE t (n, a TEXT, b TEXT)")
    sql, values = encode_long("INSERT INTO t VALUES (?, ?, ?)", (1, text * 3, "short"))
    connection.execute(sql, values)
    assert connection.execute("SELECT n, a, b, typeof(a) FROM t").fetchall() == [(1, text * 3, "short", "text")]
    connection.close()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[NaN]", "json.constant"),
        ("-Infinity", "json.constant"),
        ("1e999", "json.number_too_large"),
        ('{"a": {"b": 1, "c": 2, "b": 3}}', "json.repeated_name"),
    ],
)
def test_what_readers_read_differently_is_refused_with_its_reason(text: str, code: str) -> None:
    with pytest.raises(AmbiguousJsonError) as caught:
        read_strict_json(text)
    assert caught.value.phrase.code == code


def test_strict_JSON_is_read_as_the_standard_library_reads_it() -> None:
    assert read_strict_json('{"a": [1, 2.5, null, "\\ud800"]}') == {"a": [1, 2.5, None, "\ud800"]}
    with pytest.raises(json.JSONDecodeError):
        read_strict_json("{")
