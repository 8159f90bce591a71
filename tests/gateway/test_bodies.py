"""Bodies of JSON: long ones are read step by step, and as short ones are."""

import json
import random
from typing import Any

import pytest

import lamina.gateway.bodies as bodies
from lamina.gateway.bodies import MAX_VALUES, SLICE_BYTES, read_json
from lamina.gateway.http import HttpError
from lamina.gateway.replies import as_json, is_long, long_json
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
    monkeypatch.setattr(bodies, "SLICE_BYTES", slice_bytes)
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
        value = [value, {"long": '猫\n"' * 40_000, "more": [value] * rand.randint(0, 3_000)}, (1, 2.5), None]
        assert is_long(value)
        pieces = long_json(value)
        assert b"".join(pieces) == as_json(value)
        assert max(map(len, pieces)) <= 10 * SLICE_BYTES
    assert b"".join(long_json(["\ud800", "é" * 100_000])).startswith(b'["\\ud800"')
    assert not is_long({"a": ["x" * 1_000] * 60})
