"""What a value of each column must be, so that everything that reads it can: for rows that come from elsewhere.

A table's own rules say less (JSON is text to it, and any number is a time). Nothing here reads or writes a store.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from lamina.errors import LaminaError, shown
from lamina.store.database import MAX_KEY, MAX_NAME, MAX_TITLE, clean
from lamina.store.rows import parts

FIRST_TIME, LAST_TIME = -62_135_596_800, 253_402_300_799
"""The seconds of a calendar, from the year 1 to 9999."""
MOST = 2**53


@dataclass(frozen=True, slots=True)
class Shape:
    says: str
    holds: Callable[[Any], bool]


def _json(text: object) -> Any:
    """The value of a JSON text; `...` stands for a text that is none."""
    try:
        return json.loads(text, parse_constant=_none, parse_float=_finite) if isinstance(text, str) else ...
    except (ValueError, RecursionError):
        return ...


def _none(name: str) -> Any:
    raise ValueError(name)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in cast("list[object]", value))


def _is_number(value: object) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool) and -MOST < value < MOST
    return whole or (isinstance(value, float) and math.isfinite(value))


def _whole(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < MOST


def _one_of(*names: str) -> Shape:
    return Shape(f"one of {', '.join(names)}", lambda value: value in names)


def _text(most: int) -> Shape:
    return Shape(f"text of at most {most:,} characters", lambda value: isinstance(value, str) and len(value) <= most)


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
    amount = _up_to(MOST)
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


RUNTIME: Mapping[str, Callable[[Any], bool]] = {
    "compactions": lambda value: _each(value, _folded),
    "counted": _taught,
    "failures": lambda value: isinstance(value, dict) and all(map(_whole, cast("dict[str, Any]", value).values())),
    "use": lambda value: value is None or _up_to(2.0)(value),
    "telegram_starts": lambda value: _each(value, _whole),
    "telegram_listed": lambda value: _each(value, _is_text),
    "telegram_answers": lambda value: _each(value, lambda row: _list_of(row, _whole, _is_text)),
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
}  # fmt: skip


def _is_owner(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _row(value: Any) -> bool:
    """A segment of a stored request: its nine fields, and the hash of its text."""
    return _list_of(value, _is_text, _is_text, _is_text, _is_owner, _is_text, _whole, *[_is_text] * 4)


def _request(value: Any) -> bool:
    rows: Mapping[str, Callable[[Any], bool]] = {
        "same": _whole, "segments": lambda found: _each(found, _row), "hash": _is_text, "size": _whole,
        "tokens": _whole, "budget": _is_number, "counter": _is_text, "grammar": _is_text, "layout": _is_text,
        "dropped": lambda found: _fields(found, {"count": _whole, "tokens": _whole}),
    }  # fmt: skip
    return _fields(value, rows)


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
    return Shape("an object as JSON with what lamina keeps there", lambda value: holds_all(_json(value), known))


TEXT = Shape("text", lambda value: isinstance(value, str))
OBJECT = Shape("an object as JSON", lambda value: isinstance(_json(value), dict))
TEXTS = Shape("a list of texts as JSON", lambda value: _texts(_json(value)))
JSON_TEXT = Shape("a text as JSON", lambda value: isinstance(_json(value), str))
JSON = Shape("JSON", lambda value: _json(value) is not ...)
TIME = Shape("a time of the calendar", lambda value: _is_number(value) and FIRST_TIME <= value <= LAST_TIME)
COUNT = Shape("a whole number from 0 on", _whole)
TRIES = Shape("a whole number from 0 to 1,000,000", lambda value: _whole(value) and value <= 1_000_000)
WHOLE = Shape("a whole number", lambda value: _whole(value, 1 - MOST))
FLAG = Shape("0 or 1", lambda value: _whole(value) and value in (0, 1))
SHARE = Shape("a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1)

ANYWHERE = {
    **dict.fromkeys(("meta", "injection", "runtime", "usage", "receipt", "payload", "extra"), OBJECT),
    **dict.fromkeys(("memory_ids", "supported_apps"), TEXTS),
    **dict.fromkeys(
        ("created", "updated", "ended", "finished", "begun", "happened", "lease_until", "run_after"), TIME,
    ),
    **dict.fromkeys(
        ("last_seq", "activity", "parent_seq", "seq", "collected", "tokens", "user_seq", "answer_seq", "n", "change",
         "version", "number", "upto_seq"), COUNT,
    ),
    **dict.fromkeys(("priority", "sort"), WHOLE),
    **dict.fromkeys(("is_collected", "pinned", "is_skill", "enabled"), FLAG),
    **dict.fromkeys(
        ("session_id", "parent_id", "message_id", "turn_id", "user_message_id", "answer_message_id", "memory_id",
         "superseded_by", "template_id", "job_id", "hash", "scenario", "app", "mode", "skill", "kind", "worker", "key",
         "name"), _text(MAX_NAME),
    ),
    "title": _text(MAX_TITLE),
    "importance": SHARE,
    "attempts": TRIES,
    "content": JSON,
}  # fmt: skip
ANSWERED = _one_of("streaming", "complete", "interrupted", "failed")
PLACES = {
    ("conversation", "state"): ANSWERED,
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
NULL = ("ended", "finished", "begun", "happened", "key")
"""Columns that may be empty."""


def fault(table: str, row: Mapping[str, Any]) -> str:
    """What is wrong with a row, beginning with the column; empty when nothing is."""
    for name, value in row.items():
        shape = PLACES.get((table, name)) or ANYWHERE.get(name, TEXT)
        if not (value is None and name in NULL) and not shape.holds(value):
            return f"{name} is {shown(value)}, not {shape.says}"
        if isinstance(value, str):
            try:
                clean(value, name)
            except LaminaError as error:
                return error.message
    if table == "conversation":
        try:
            parts({**_json(row["extra"]), "role": row["role"], "content": _json(row["content"])})
        except LaminaError as error:
            return f"content, role or extra cannot be used: {error.message}"
    return ""
