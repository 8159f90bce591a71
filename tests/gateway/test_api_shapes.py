"""The schema check: what holds, and how it says what does not."""

import json
import math
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.gateway.http import HttpError
from lamina.gateway.shapes import check, compile_query, compile_schema, read_query

PART = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
            "required": ["type", "text"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {
                "type": {"const": "image_url"},
                "image_url": {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]},
            },
            "required": ["type", "image_url"],
            "additionalProperties": False,
        },
    ]
}
BODY = {
    "type": "object",
    "properties": {
        "content": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": PART, "maxItems": 3}]},
        "values": {"type": "object", "maxProperties": 2},
        "size": {"type": ["integer", "null"], "minimum": 1, "maximum": 9},
        "share": {"type": "number"},
        "kind": {"enum": ["fact", "event"]},
        "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
    },
    "required": ["content"],
    "additionalProperties": False,
}


def fault(value: object, schema: Any = BODY) -> str:
    found = compile_schema(schema)(value)
    if found is None:
        check(value, schema)
        return ""
    with pytest.raises(HttpError) as caught:
        check(value, schema)
    assert (caught.value.status, caught.value.message) == (400, found.phrase.text())
    return found.phrase.text()


@pytest.mark.parametrize(
    "value",
    [
        {"content": "hello"},
        {
            "content": [
                {"type": "text", "text": "看"},
                {"type": "image_url", "image_url": {"url": "data:"}},
            ]
        },
        {"content": "x", "size": None, "share": 1, "kind": "event", "name": "abc", "values": {"a": [{"b": None}]}},
    ],
)
def test_what_is_right_passes(value: object) -> None:
    assert fault(value) == ""


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([1], "the body is [1], expected an object"),
        ({}, "the body is incomplete, expected content"),
        ({"content": 5}, "content is 5, expected text or a list"),
        ({"content": ""}, "content is empty, expected at least 1 character"),
        (
            {"content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": 7}}]},
            "content[1].image_url.url is 7, expected text",
        ),
        ({"content": [{"type": "text", "text": "x"}] * 4}, "content has 4, expected at most 3 entries"),
        ({"content": "x", "size": True}, "size is True, expected a whole number or null"),
        ({"content": "x", "size": 10}, "size is 10, expected at most 9"),
        ({"content": "x", "share": math.inf}, "share is inf, expected a number"),
        ({"content": "x", "kind": "war"}, "kind is 'war', expected one of fact, event"),
        ({"content": "x", "name": "a1"}, "name is 'a1', expected the form ^[a-z]+$"),
        ({"content": "x", "user": "bob"}, "the body has a field 'user', expected one of: content, kind, name, share, "),
        ({"content": "\ud800"}, "content contains the lone surrogate U+D800, expected whole characters"),
        ({"content": "x", "values": {"a": ["\udfff"]}}, "values.a[0] contains the lone surrogate U+DFFF"),
        ({"content": "x", "values": {"\ud800": 1}}, "values."),
        ({"content": "x", "values": {"a": math.nan}}, "values.a is nan, expected a finite number"),
        ({"content": "x" * 1000, "name": "y" * 1000}, "name has 1000, expected at most 5 characters"),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_value(value: object, says: str) -> None:
    said = fault(value)
    assert said.startswith(says), said
    said.encode()
    assert len(said) < 300


def test_a_long_value_is_shortened() -> None:
    assert len(fault({"content": {"x": "y" * 10_000}})) < 200


def test_a_value_that_is_nested_too_deep_is_refused() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    assert "nested too deep" in fault({"content": "x", "values": {"a": deep}})


def test_a_secret_of_a_wrong_shape_is_not_told_back() -> None:
    schema = {"type": "object", "properties": {"key": {"type": "string", "maxLength": 3, "writeOnly": True}}}
    assert "1234" not in fault({"key": "1234"}, schema)
    assert "99" not in fault({"key": 99}, schema)


def test_a_keyword_that_is_not_known_is_an_error_of_ours() -> None:
    with pytest.raises(ValueError, match="multipleOf"):
        compile_schema({"type": "integer", "multipleOf": 3})


NAMES = ["content", "size", "kind", "type", "text", "values", "x"]


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=6),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["content", "size", "kind", "type", "text", "values", "x"]), inner, max_size=4
            )
        ),
        max_leaves=12,
    )
)
def test_what_passes_is_what_the_reference_implementation_lets_pass(value: Any) -> None:
    """We are stricter in two places: a float that is whole is no integer, and depth."""
    ours = compile_schema(BODY)(value) is None
    theirs = jsonschema.Draft202012Validator(BODY).is_valid(value)
    if ours != theirs:
        assert theirs
        assert isinstance(value.get("size"), float), json.dumps(value)


QUERY = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 50},
    "newest": {"type": "boolean", "default": True},
    "q": {"type": "string", "maxLength": 5},
    "state": {"enum": ["active", "all"], "default": "active"},
}


@pytest.mark.parametrize(
    ("name", "limit", "value", "says"),
    [
        ("minItems", 1, [], "is empty, expected at least 1 entry"),
        ("maxItems", 2, [1, 2, 3], "has 3, expected at most 2 entries"),
        ("minLength", 1, "", "is empty, expected at least 1 character"),
    ],
)
def test_one_of_a_thing_is_not_called_several(name: str, limit: int, value: Any, says: str) -> None:
    found = compile_schema({name: limit})(value)
    assert found is not None
    assert found.phrase.text().endswith(says)


def test_parameters_become_numbers_and_switches() -> None:
    read = compile_query(QUERY)
    assert read(b"") == {"limit": 50, "newest": True, "state": "active"}
    assert read(b"limit=7&newest=false&q=%E7%8E%8B+x&state=all") == {
        "limit": 7, "newest": False, "q": "王 x", "state": "all",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"limit=abc", "limit is 'abc', expected a whole number"),
        (b"limit=1e3", "limit is '1e3', expected a whole number"),
        (b"limit=" + b"9" * 5000, "limit is '999"),
        (b"limit=\xd9\xa3", "the query string cannot be read"),
        (b"limit=%D9%A3", "limit is '٣', expected a whole number"),
        (b"limit=0", "limit is 0, expected at least 1"),
        (b"newest=yes", "newest is 'yes', expected true or false"),
        (b"q=abcdef", "q has 6, expected at most 5 characters"),
        (b"q=a%00", "the parameter q contains U+0000"),
        (b"limt=5", "no parameter is named 'limt'"),
        (b"limit=5&limit=6", "the parameter limit is given twice"),
        (b"q=%FF", "the query string cannot be read"),
        (b"q=%ED%A0%80", "the query string cannot be read"),
        (b"&".join([b"q=1"] * 100), "the query string cannot be read"),
    ],
)
def test_parameters_that_are_wrong_are_named(raw: bytes, says: str) -> None:
    with pytest.raises(HttpError) as caught:
        read_query(raw, QUERY)
    assert caught.value.message.startswith(says)
