"""What a value of each column must be, so that everything that reads it can: for rows that come from elsewhere, and for
those of a store, which may be damaged.

A table's own rules say less (JSON is text to it, and any number is a time). Nothing here reads or writes a store.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from lamina.errors import LaminaError, StoreDamagedError, format_value
from lamina.records import MAX_PHASE_CHARACTERS
from lamina.store.database import MAX_KEY, MAX_NAME, MAX_TITLE, Row, clean, load
from lamina.store.lock import RECOVERY
from lamina.text.json import read_strict_json
from lamina.text.messages import Phrase
from lamina.text.unicode import SLICE_SIZE

FIRST_TIME, LAST_TIME = -62_135_596_800, 253_402_300_799
"""The seconds of a calendar, from the year 1 to 9999."""
MAX_EXACT_INTEGER = 2**53
PLAIN = "text"
"""The `content_type` of a message whose content is its text; that of all others is `json`."""


@dataclass(frozen=True, slots=True)
class Shape:
    says: Phrase
    holds: Callable[[Any], bool]
    """Of the value; where `is_json`, of what it says."""
    is_json: bool = False


def read_json_text(text: object) -> Any:
    """The value of a JSON text; `...` for anything that is not strict JSON."""
    try:
        if not isinstance(text, str):
            return ...
        return read_strict_json(text) if len(text) <= SLICE_SIZE else load(text)
    except (ValueError, RecursionError):
        return ...


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in cast("list[object]", value))


def _is_number(value: object) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool) and -MAX_EXACT_INTEGER < value < MAX_EXACT_INTEGER
    return whole or (isinstance(value, float) and math.isfinite(value))


def _whole(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < MAX_EXACT_INTEGER


def _one_of(*names: str) -> Shape:
    return Shape(Phrase("shape.one_of", names=[*names]), lambda value: value in names)


def _text(most: int) -> Shape:
    return Shape(Phrase("shape.short_text", most=most), lambda value: isinstance(value, str) and len(value) <= most)


def _list_of(value: Any, *holds: Callable[[Any], bool]) -> bool:
    """A list with one value for each of these."""
    found = cast("list[Any]", value) if isinstance(value, list) else []
    return len(found) == len(holds) and all(check(each) for check, each in zip(holds, found, strict=True))


def _each(value: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(holds, cast("list[Any]", value)))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _up_to(most: float) -> Callable[[Any], bool]:
    return lambda value: _is_number(value) and 0 <= value <= most


def _taught(value: Any) -> bool:
    """What was estimated and what was reported, of whole requests: both or none, and one a measure for the other."""
    amount = _up_to(MAX_EXACT_INTEGER)
    if not _list_of(value, amount, amount):
        return False
    estimated, reported = cast("list[float]", value)
    return estimated == reported == 0 or (estimated >= 1 and estimated / 8 <= reported <= estimated * 8)


def _folded(value: Any) -> bool:
    """A compaction, as the engine keeps it."""
    found = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    texts, numbers = ("text", "written_by"), ("first", "upto")
    named = set(found) == {*texts, *numbers}
    return named and all(_is_text(found[name]) for name in texts) and all(_whole(found[name]) for name in numbers)


def _open(value: Any) -> bool:
    """An answer of the Telegram bot that was on its way."""
    found = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    numbers = all(isinstance(found.get(name), int) for name in ("bot", "chat", "topic", "group", "reply_to"))
    return numbers and all(_is_text(found.get(name)) for name in ("turn", "lang"))


def _delivered(value: Any) -> bool:
    """A message of the Telegram bot: its number, the answer in it and the seq of its question, which 0.1.0 left out."""
    return _list_of(value, _whole, _is_text, _whole) or _list_of(value, _whole, _is_text)


RUNTIME: Mapping[str, Callable[[Any], bool]] = {
    "compactions": lambda value: _each(value, _folded),
    "counted": _taught,
    "failures": lambda value: isinstance(value, dict) and all(map(_whole, cast("dict[str, Any]", value).values())),
    "use": lambda value: value is None or _up_to(2.0)(value),
    "telegram_starts": lambda value: _each(value, _whole),
    "telegram_listed": lambda value: _each(value, _is_text),
    "telegram_answers": lambda value: _each(value, _delivered),
    "telegram_up_to": lambda value: value is None or _whole(value),
    "telegram_open": lambda value: value is None or _open(value),
}
"""What is kept of a session between two turns."""
USAGE: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("prompt", "cached", "completion"), _whole),
    "requests": lambda value: _each(value, lambda row: row is None or _list_of(row, _whole, _whole, _whole)),
}


def _seen(value: Any) -> bool:
    """A source of injections as it was last sent."""
    return _fields(value, {"hash": _is_text, "turn": _whole})


INJECTION: Mapping[str, Callable[[Any], bool]] = {
    "turn": _whole, "level": lambda value: value in (0, 25, 50, 75), "workspace": _is_text, "model": _is_text,
    "seen": lambda value: isinstance(value, dict) and all(map(_seen, cast("dict[str, Any]", value).values())),
    "noted": lambda value: _each(value, lambda name: name in ("compaction", "resume")),
    "kept": lambda value: _each(value, lambda row: _list_of(row, _is_text, _is_text, _is_text)),
    "warned": lambda value: isinstance(value, bool),
}  # fmt: skip


def _is_owner(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _row(value: Any) -> bool:
    """A segment of a stored request: its nine fields, and the hash of its text."""
    texts = [_is_text] * 2
    return _list_of(value, *texts, _is_text, _is_owner, _is_text, _whole, *texts, Phrase.is_json, _is_text)


def _request(value: Any) -> bool:
    rows: Mapping[str, Callable[[Any], bool]] = {
        "same": _whole, "segments": lambda found: _each(found, _row), "hash": _is_text, "size": _whole,
        "tokens": _whole, "budget": _is_number, "counter": _is_text, "grammar": _is_text, "layout": _is_text,
        "dropped": lambda found: _fields(found, {"count": _whole, "tokens": _whole}),
    }  # fmt: skip
    return _fields(value, rows) and _each(value.get("triggers", []), _is_text)


RECEIPT: Mapping[str, Callable[[Any], bool]] = {
    "requests": lambda value: _each(value, _request),
    "pieces": lambda value: _each(value, _is_text),
}


def _fields(value: Any, wanted: Mapping[str, Callable[[Any], bool]]) -> bool:
    """An object that has all of these."""
    found = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return all(name in found and holds(found[name]) for name, holds in wanted.items())


def holds_all(value: object, known: Mapping[str, Callable[[Any], bool]]) -> bool:
    """An object in which what lamina keeps there has the right shape."""
    return isinstance(value, dict) and all(
        known[name](each) for name, each in cast("dict[str, Any]", value).items() if name in known
    )


def _with(known: Mapping[str, Callable[[Any], bool]]) -> Shape:
    return Shape(Phrase("shape.known_object"), lambda value: holds_all(value, known), is_json=True)


TEXT = Shape(Phrase("shape.text"), lambda value: isinstance(value, str))
OBJECT = Shape(Phrase("shape.object"), lambda value: isinstance(value, dict), is_json=True)
TEXTS = Shape(Phrase("shape.texts"), _texts, is_json=True)
JSON_TEXT = Shape(Phrase("shape.json_text"), _is_text, is_json=True)
JSON = Shape(Phrase("shape.json"), lambda value: value is not ..., is_json=True)
TIME = Shape(Phrase("shape.time"), lambda value: _is_number(value) and FIRST_TIME <= value <= LAST_TIME)
COUNT = Shape(Phrase("shape.count"), _whole)
TRIES = Shape(Phrase("shape.tries"), lambda value: _whole(value) and value <= 1_000_000)
WHOLE = Shape(Phrase("shape.whole"), lambda value: _whole(value, 1 - MAX_EXACT_INTEGER))
FLAG = Shape(Phrase("shape.flag"), lambda value: _whole(value) and value in (0, 1))
SHARE = Shape(Phrase("shape.share"), lambda value: _is_number(value) and 0 <= value <= 1)

ANYWHERE = {
    **dict.fromkeys(("meta", "injection", "runtime", "usage", "receipt", "payload", "extra"), OBJECT),
    **dict.fromkeys(("memory_ids", "supported_apps"), TEXTS),
    **dict.fromkeys(
        ("created", "updated", "ended", "finished", "begun", "happened", "lease_until", "run_after", "expires",
         "revoked", "used"), TIME,
    ),
    **dict.fromkeys(
        ("last_seq", "activity", "parent_seq", "seq", "collected", "tokens", "user_seq", "answer_seq", "n", "change",
         "version", "number", "upto_seq", "rate"), COUNT,
    ),
    **dict.fromkeys(("priority", "sort"), WHOLE),
    **dict.fromkeys(("is_collected", "pinned", "is_skill", "enabled"), FLAG),
    **dict.fromkeys(
        ("session_id", "parent_id", "message_id", "turn_id", "user_message_id", "answer_message_id", "memory_id",
         "superseded_by", "template_id", "job_id", "hash", "scenario", "app", "mode", "skill", "kind", "worker", "key",
         "name"), _text(MAX_NAME),
    ),
    "title": _text(MAX_TITLE),
    "phase": _text(MAX_PHASE_CHARACTERS),
    "importance": SHARE,
    "attempts": TRIES,
    "content": JSON,
}  # fmt: skip
ANSWERED = _one_of("streaming", "complete", "interrupted", "failed")
PLACES = {
    ("conversation", "state"): ANSWERED,
    ("conversation", "content_type"): _one_of(PLAIN, "json"),
    ("turn", "state"): ANSWERED,
    ("turn", "usage"): _with(USAGE),
    ("turn", "receipt"): _with(RECEIPT),
    ("chat_session", "injection"): _with(INJECTION),
    ("chat_session", "runtime"): _with(RUNTIME),
    ("chunk", "text"): JSON_TEXT,
    ("layer_text", "text"): JSON_TEXT,
    ("atomic_memory", "state"): _one_of("active", "superseded", "forgotten"),
    ("user_profile", "value"): JSON,
    ("prompt_template", "content"): TEXT,
    ("outbox", "key"): _text(MAX_KEY),
    ("outbox", "state"): _one_of("waiting", "leased", "done", "parked"),
    ("owner_counter", "value"): COUNT,
}
NULL = ("ended", "finished", "begun", "happened", "key", "expires", "revoked", "used")
"""Columns that may be empty."""


def _shape(table: str, name: str) -> Shape:
    return PLACES.get((table, name)) or ANYWHERE.get(name, TEXT)


# Rows of a store


@cache
def _columns(table: str, columns: str) -> tuple[tuple[str, Shape], ...]:
    def shape_of(name: str) -> Shape:
        return TEXT if (table, name) == ("conversation", "content") else _shape(table, name)  # its type says more

    return tuple((name, shape_of(name)) for name in columns.split(", "))


def read_row(table: str, columns: str, row: Row) -> list[Any]:
    """The values of a row, with JSON as what it says. Each has the shape that its readers count on: a row of any other
    is damaged."""
    values: list[Any] = []
    for value, (name, shape) in zip(row, _columns(table, columns), strict=True):
        found = read_json_text(value) if shape.is_json else value
        if not shape.holds(found) and not (value is None and name in NULL):
            raise damaged_row(table, Phrase("row.wrong_type", column=name, expected=shape.says))
        values.append(found)
    return values


def damaged_row(table: str, why: Phrase) -> StoreDamagedError:
    return StoreDamagedError("store.damaged_row", table=table, why=why, hint=RECOVERY)


def is_note(value: Any) -> bool:
    """What lamina notes of a tool's result."""
    return _fields(value, {"tool": _is_text, "hints": lambda value: _each(value, _is_hint)})


def _is_hint(value: Any) -> bool:
    return _list_of(
        value, _is_text, _is_text, lambda pairs: _each(pairs, lambda pair: _list_of(pair, _is_text, _is_text))
    )


# Rows from elsewhere


def find_fault(table: str, row: Mapping[str, Any]) -> Phrase | None:
    """What is wrong with a row; None when nothing is."""
    for name, value in row.items():
        is_plain = name == "content" and row.get("content_type") == PLAIN
        shape = TEXT if is_plain else _shape(table, name)
        holds = shape.holds(read_json_text(value) if shape.is_json else value)
        if not holds and not (value is None and name in NULL):
            return Phrase("row.wrong_value", column=name, value=format_value(value), expected=shape.says)
        if isinstance(value, str):
            try:
                clean(value, name)
            except LaminaError as error:
                return error.phrase
    return None
