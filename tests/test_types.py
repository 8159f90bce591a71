"""A key never prints, whatever is done with it; only `reveal` gives it."""

import copy
import json
import logging
import pickle
from dataclasses import asdict, dataclass
from typing import Any

import pytest

from lamina.types import Done, Key, Text

SECRET = "sk-very-secret-1234"


@dataclass(frozen=True)
class Holder:
    key: Key


class Leaky(str):
    """Planted: only its repr is hidden."""

    def __repr__(self) -> str:
        return "…"


def ways_to_print(key: Any) -> list[str]:
    record = logging.LogRecord("x", logging.INFO, "x", 1, "the key is %s and %r", (key, key), None)
    return [
        str(key), repr(key), f"{key}", f"{key!r}", f"{key!s:>30}", format(key, "s"), str.format("{}", key),
        key + "", "".join([key]), key.upper(), key[:], json.dumps(key), json.dumps({"key": key}, default=str),
        json.dumps(asdict(Holder(key))), repr(Holder(key)), repr(pickle.dumps(key)), repr(pickle.dumps(key, 0)),
        repr(vars(key)), record.getMessage(), repr(key.encode()), repr(ValueError(key)), repr([key]), repr({key: key}),
        repr(pickle.loads(pickle.dumps(key))), logging.Formatter("%(message)s").format(record), key.strip(),
    ]  # fmt: skip


def test_a_key_never_prints() -> None:
    assert [text for text in ways_to_print(Key(SECRET)) if SECRET in text or SECRET[3:] in text] == []
    assert json.dumps(Key(SECRET), ensure_ascii=False) == '"…"'
    assert f"Bearer {Key(SECRET)}" == "Bearer …"


def test_the_check_finds_a_key_that_prints() -> None:
    assert any(SECRET in text for text in ways_to_print(Leaky(SECRET)))


def test_a_key_gives_its_secret_and_is_compared_by_it() -> None:
    key = Key(f" {SECRET}\n")
    assert key.reveal() == SECRET
    assert key == Key(SECRET)
    assert hash(key) == hash(Key(SECRET))
    assert key != Key("other")
    assert key != SECRET
    assert key != "…"
    assert "…" != key  # noqa: SIM300 -- the other way round on purpose
    assert copy.copy(key) is copy.deepcopy(key) is key


@pytest.mark.parametrize("wrong", ["", " ", "a b", "a\nb", "a\r\nX: y", "schlüssel", "\0"])
def test_what_no_header_may_carry_is_no_key_and_is_not_shown(wrong: str) -> None:
    with pytest.raises(ValueError, match="a key is") as raised:
        Key(wrong)
    assert not wrong.strip() or wrong not in str(raised.value)


def test_events_are_values() -> None:
    assert Text("a") == Text("a") != Text("b")
    with pytest.raises(AttributeError):
        Done("stop").reason = "length"  # pyright: ignore[reportAttributeAccessIssue] -- on purpose
