"""Bodies of requests as values. What is not JSON, or is ambiguous, is refused with its place.

A short body is read by the standard library in one go. That would hold the interpreter for seconds over a long one, so
a long body is read step by step, each step no longer than a slice, with a limit on how many values it holds: other
threads, the event loop's above all, run in between.
"""

import codecs
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from lamina.errors import format_value
from lamina.gateway.http import HttpError
from lamina.text.json import JsonReader
from lamina.text.unicode import MAX_LOOP_SIZE

MAX_DEPTH = 64
MAX_VALUES = 200_000
"""Texts, numbers, lists, objects and names in one long body."""
SLICE_BYTES = MAX_LOOP_SIZE
"""What is processed in one go, and the size from which a body is long."""


def _refuse_twice(name: str) -> NoReturn:
    raise HttpError(400, "body.repeated_name", hint="body.send_json", name=format_value(name))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                _refuse_twice(name)
            seen.add(name)
    return made


def _constant(name: str) -> NoReturn:
    raise HttpError(400, "body.not_number", hint="body.send_json", name=name)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise HttpError(400, "body.number_too_large", hint="body.send_json", number=format_value(text))
    return number


_decode = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_finite).decode


def read_json(pieces: bytes | Sequence[bytes], media: str) -> Any:
    """The value of a body, which may come in the pieces in which it was received."""
    kind = media.partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        code = "body.not_json_type" if media else "body.no_type"
        raise HttpError(415, code, hint="body.send_json_type", kind="media", media=format_value(media))
    pieces = [pieces] if isinstance(pieces, bytes) else pieces
    text = _decoded(pieces)
    try:
        return _read_short(text) if len(text) <= SLICE_BYTES else _BodyReader(text, SLICE_BYTES).read()
    except json.JSONDecodeError as error:
        raise HttpError(
            400, "body.not_json", hint="body.send_json", why=error.msg, line=error.lineno, column=error.colno
        ) from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        raise HttpError(400, "body.number_too_long", hint="body.send_json") from None


def _decoded(pieces: Sequence[bytes]) -> str:
    decoder, texts, done = codecs.getincrementaldecoder("utf-8")(), list[str](), 0
    try:
        for piece in pieces:
            for at in range(0, len(piece), SLICE_BYTES):
                texts.append(decoder.decode(piece[at : at + SLICE_BYTES]))
                done += min(SLICE_BYTES, len(piece) - at)
        texts.append(decoder.decode(b"", True))
    except UnicodeDecodeError as error:
        held = len(decoder.getstate()[0])  # of a character that began in the slice before
        byte = f"{error.object[error.start]:02x}"
        raise HttpError(400, "body.not_utf8", position=done - held + error.start, byte=byte) from None
    return "".join(texts)


def _read_short(text: str) -> Any:
    value = _decode(text)
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_deep(value):
        raise _too_deep()
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise _lone_surrogate(error) from None
    return value


def _too_deep() -> HttpError:
    return HttpError(400, "body.too_deep", limit=MAX_DEPTH)


def _lone_surrogate(error: UnicodeEncodeError) -> HttpError:
    return HttpError(400, "body.surrogate", sign=f"U+{ord(error.object[error.start]):04X}")


def _is_deep(value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += each.values()  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
            elif isinstance(each, list):
                below += each
        level = [each for each in below if isinstance(each, dict | list)]
        if not level:
            return False
    return True


class _BodyReader(JsonReader):
    """What a short body is refused for, step by step, and how many values there are."""

    _values = 0

    def check_depth(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise _too_deep()

    def check_value(self) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            raise HttpError(413, "body.too_many_values", kind="too_large", limit=MAX_VALUES)

    def check_name(self, name: str, inner: Mapping[str, Any]) -> None:
        if name in inner:
            _refuse_twice(name)

    def check_text(self, piece: str) -> None:
        try:
            piece.encode()
        except UnicodeEncodeError as error:
            raise _lone_surrogate(error) from None

    def read_constant(self, name: str) -> NoReturn:
        _constant(name)

    def read_float(self, text: str) -> float:
        return _finite(text)
