"""Bodies and queries: JSON is read strictly, checked as the type of its route, and a fault is named with its place."""

import json
import random
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Meta, UnsetType

import lamina.gateway.schemas as schemas
from lamina.gateway.api_sessions import session_json
from lamina.gateway.handlers import HttpError, as_json, dump_json, is_long, long_json, to_plain
from lamina.gateway.schemas import MAX_VALUES, SLICE_BYTES, Model, compile_query, compile_type, read_json
from lamina.records import Session
from tests.gateway.raw import DISHONEST_BODIES

JSON = "application/json"
PIECES = (
    "{", "}", "[", "]", ",", ":", '"a"', '"b"', '"\\u00e9"', '"\\ud83d\\ude00"', '"\\ud800"', "1", "-1", "0", "01",
    "1.5", "1e5", "1e999", "-", "true", "false", "null", "nul", "NaN", "-Infinity", '"\\x"', '"\\u12"', '"\x01"', " ",
    "\n", '"', "\\", '"中"', '"a\\"b"', '"\\\\ud83d"',
)  # fmt: skip


def values_of(rand: random.Random, depth: int = 0) -> str:
    kind = rand.random()
    if depth > 4 or kind < 0.4:
        return rand.choice(
            ["1", "-2.5", "true", "null", '"a"', '"x\\ny"', '"\\ud83d\\ude00"', '"中\\u4e2d"', '""', "0"]
        )
    many = [values_of(rand, depth + 1) for _ in range(rand.randint(0, 4))]
    if kind < 0.7:
        return f"[{', '.join(many)} ]"
    fields = [f'"{rand.choice("abcdefghij")}" :{value}' for value in many]
    return f"{{{','.join(fields)}}}"


def texts(count: int) -> list[str]:
    """Texts of JSON, most of them broken in some way."""
    rand = random.Random(15)
    found: list[str] = []
    for _ in range(count):
        text = values_of(rand)
        at = rand.randrange(len(text) + 1)
        broken = text[:at] + rand.choice(PIECES) + text[at + rand.randint(0, 2) :]
        found += [text, broken, "".join(rand.choice(PIECES) for _ in range(rand.randint(1, 9)))]
    return found


def outcome(raw: bytes) -> tuple[bool, Any]:
    try:
        return True, read_json(raw, JSON)
    except HttpError:
        return False, None


@pytest.mark.parametrize("slice_bytes", [13, SLICE_BYTES])
def test_G2_a_long_body_is_read_and_refused_as_a_short_one(slice_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    every = texts(700)
    short = [outcome(text.encode()) for text in every]
    assert {well for well, _ in short} == {True, False}
    monkeypatch.setattr(schemas, "SLICE_BYTES", slice_bytes)
    blanks = " " * (slice_bytes + 1)
    for text, expected in zip(every, short, strict=True):
        assert repr(outcome(f"{blanks}{text}".encode())) == repr(expected), text


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{", "line 1, column 65538"),
        (b"\xff", "not UTF-8: byte 65536 is 0xff"),
        (b'"\xe4\xb8" ', "not UTF-8: byte 65537 is 0xe4"),
        *DISHONEST_BODIES,
    ],
)
def test_G2_a_long_body_that_is_no_honest_JSON_is_refused_with_its_place(data: bytes, says: str) -> None:
    with pytest.raises(HttpError) as caught:
        read_json([b" " * 60_000, b" " * 5_536, data], JSON)
    assert says in caught.value.message


def test_P9_a_body_of_too_many_values_is_refused() -> None:
    names = b",".join(b'"%d":1' % n for n in range(MAX_VALUES // 2 - 1))
    assert len(read_json(b"{%b}" % names, JSON)) == MAX_VALUES // 2 - 1
    for raw in (b'{%b,"a":1,"b":2}' % names, b"[" + b"[]," * MAX_VALUES + b"1]", b"[" + b"1," * MAX_VALUES + b"1]"):
        with pytest.raises(HttpError, match="more than 200000 values") as caught:
            read_json(raw, JSON)
        assert caught.value.status == 413


def test_a_long_value_is_written_as_a_short_one() -> None:
    rand = random.Random(7)
    for _ in range(40):
        value = json.loads(values_of(rand))
        value = [value, {"long": '猫\n"' * 40_000, "more": [value] * rand.randint(0, 3_000)}, [1, 2.5], None]
        assert is_long(value)
        pieces = long_json(value)
        assert b"".join(pieces) == as_json(value)
        assert max(map(len, pieces)) <= 10 * SLICE_BYTES
    assert b"".join(long_json(["\ud800", "é" * 100_000])).startswith(b'["\\ud800"')
    assert not is_long({"a": ["x" * 1_000] * 60})


class Url(Model):
    url: str


class Words(Model, tag_field="type", tag="text"):
    text: str


class Picture(Model, tag_field="type", tag="image_url"):
    image_url: Url


class Body(Model):
    content: Annotated[str, Meta(min_length=1)] | Annotated[list[Words | Picture], Meta(max_length=3)]
    values: Annotated[dict[str, Any], Meta(max_length=2)] | UnsetType = UNSET
    size: Annotated[int, Meta(ge=1, le=9)] | None = None
    share: int | float = 0
    kind: Literal["fact", "event"] = "fact"
    name: Annotated[str, Meta(pattern="^[a-z]+$", max_length=5)] | UnsetType = UNSET
    entries: Annotated[list[str], Meta(min_length=1)] | UnsetType = UNSET


class Secret(Model):
    key: Annotated[str, Meta(max_length=3, extra_json_schema={"writeOnly": True})]


class Anything(Model):
    pass


def fault(value: object, kind: Any = Body) -> str:
    """What is said of a value; empty when it fits."""
    try:
        compile_type(kind)(value)
    except HttpError as error:
        return error.message if (error.status, error.next_step.code) == (400, "body.see_document") else repr(error)
    return ""


@pytest.mark.parametrize(
    "value",
    [
        {"content": "hello"},
        {"content": [{"type": "text", "text": "看"}, {"type": "image_url", "image_url": {"url": "data:"}}]},
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
        ({"content": [{"type": "sound"}]}, "content[0].type is 'sound', expected one of text, image_url"),
        ({"content": [{"type": "image_url"}]}, "content[0] is incomplete, expected image_url"),
        ({"content": [{"type": "text", "text": "x"}] * 4}, "content has 4, expected at most 3 entries"),
        ({"content": "x", "entries": []}, "entries is empty, expected at least 1 entry"),
        ({"content": "x", "values": dict.fromkeys("abc", 1)}, "values has 3, expected at most 2 fields"),
        ({"content": "x", "size": True}, "size is True, expected a whole number or null"),
        ({"content": "x", "size": 1.0}, "size is 1.0, expected a whole number or null"),
        ({"content": "x", "size": 10}, "size is 10, expected at most 9"),
        ({"content": "x", "size": 0}, "size is 0, expected at least 1"),
        ({"content": "x", "share": "1"}, "share is '1', expected a number"),
        ({"content": "x", "share": True}, "share is True, expected a number"),
        ({"content": "x", "kind": "war"}, "kind is 'war', expected one of event, fact"),
        ({"content": "x", "name": "a1"}, "name is 'a1', expected the form ^[a-z]+$"),
        (
            {"content": "x", "user": "bob"},
            "the body has a field 'user', expected one of: content, entries, kind, name, ",
        ),
        ({"content": "x" * 1000, "name": "y" * 1000}, "name has 1000, expected at most 5 characters"),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_value(value: object, says: str) -> None:
    said = fault(value)
    assert said.startswith(says), said
    assert len(said) < 300


def test_a_long_value_is_shortened() -> None:
    assert len(fault({"content": {"x": "y" * 10_000}})) < 200


def test_a_body_without_fields_says_so() -> None:
    assert fault({"a": 1}, Anything) == "the body has a field 'a', expected none"


def test_a_secret_of_a_wrong_shape_is_not_repeated() -> None:
    assert fault({"key": "1234"}, Secret) == "key has a wrong value, expected at most 3 characters"
    assert fault({"key": 99}, Secret) == "key has a wrong value, expected text"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["content", "size", "kind", "type", "text", "values", "entries", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(VALUES)
def test_what_passes_is_what_the_reference_implementation_lets_pass_and_each_fault_is_found(value: Any) -> None:
    """We are stricter in one place: a float that is whole is no integer."""
    schema, definitions = schemas.json_schema(Body)
    ours = fault(value)
    theirs = jsonschema.Draft202012Validator({**schema, "$defs": definitions}).is_valid(value)
    if (not ours) != theirs:
        assert theirs
        assert isinstance(value.get("size"), float), json.dumps(value)
    assert "`" not in ours, "msgspec's own words are a last resort"


class Query(Model):
    limit: Annotated[int, Meta(ge=1, le=100)] = 50
    newest: bool = True
    q: Annotated[str, Meta(max_length=5)] = ""
    state: Literal["active", "all"] = "active"
    before: Annotated[int, Meta(ge=0)] | None = None


read_query = compile_query(Query)


def test_parameters_become_numbers_and_switches() -> None:
    assert read_query(b"") == Query()
    assert read_query(b"limit=7&newest=false&q=%E7%8E%8B+x&state=all&before=0") == Query(
        limit=7, newest=False, q="王 x", state="all", before=0
    )


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"limit=abc", "limit is 'abc', expected a whole number"),
        (b"limit=1e3", "limit is '1e3', expected a whole number"),
        (b"limit=1.0", "limit is '1.0', expected a whole number"),
        (b"limit=" + b"9" * 5000, "limit is '999"),
        (b"limit=\xd9\xa3", "the query string cannot be read"),
        (b"limit=%D9%A3", "limit is '٣', expected a whole number"),
        (b"limit=0", "limit is 0, expected at least 1"),
        (b"before=null", "before is 'null', expected a whole number"),
        (b"newest=yes", "newest is 'yes', expected true or false"),
        (b"newest=True", "newest is 'True', expected true or false"),
        (b"state=x", "state is 'x', expected one of active, all"),
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
        read_query(raw)
    assert caught.value.message.startswith(says)
    with pytest.raises(HttpError):
        compile_query(None)(b"limit=5")


def test_a_reply_copies_nothing_that_a_record_holds() -> None:
    """Copies are made on the event loop: one list of sessions with long `meta` held up everybody for seconds."""
    meta: dict[str, Any] = {"a": [[]] * 1_000}
    made = session_json(Session("ann", "s1", "", "", "", "", "", meta, {}, 0, 0, 0.0, 0.0))
    assert made.meta is meta
    plain = to_plain({"sessions": [made], "newest": made})
    assert plain["sessions"][0]["meta"] is meta
    assert plain["newest"]["meta"] is meta
    assert plain["sessions"][0]["messages"] == 0, "by the name that clients know"
    assert json.loads(dump_json(plain))["sessions"][0]["meta"] == meta
    assert b"".join(long_json(plain)) == dump_json(plain)
    nested = {"deep": {"deeper": made}}
    assert json.loads(as_json(nested))["deep"]["deeper"]["session_id"] == "s1"
