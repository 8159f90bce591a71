"""JSON: strict where readers disagree, and in slices where it is long. Pure.

One call of C holds the interpreter for as long as it takes, also in a thread; on a slice that is about a millisecond.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from json import decoder as json_decoder
from json.encoder import encode_basestring
from typing import Any, NoReturn, cast

from lamina.errors import format_value
from lamina.text.messages import Phrase, Value
from lamina.text.unicode import MAX_LOOP_SIZE, SLICE_SIZE, slices

Default = Callable[[Any], Any] | None
"""What makes JSON of a value that has none, as `json.dumps` takes it."""
MAX_JSON_SIZE = 131_072
"""Characters of JSON that one call may read: step by step it takes many times as long."""
_BLANKS = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_LETTERS = re.compile(r'[^"\\]*(?:\\(?:u[0-9a-fA-F]{4}|[^u])[^"\\]*)*', re.DOTALL)
"""The inside of a text, as far as it is well formed. Every step takes another letter, so nothing is tried twice."""
_LOW_SURROGATE = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_WORDS = {"t": ("true", True), "f": ("false", False), "n": ("null", None)}
_scan_text = cast("Callable[[str, int, bool], tuple[str, int]]", cast("Any", json_decoder).scanstring)
"""The text that begins at a place, and the place behind its closing quote."""
_MAX_DIGITS = 4_300
"""The longest number that Python reads."""


def size_of(value: object, most: int = MAX_LOOP_SIZE) -> int:
    """About how many characters the JSON of a value has; it looks no further than it must to see more than `most`."""
    waiting, size = [value], 0
    while waiting and size <= most:
        one = waiting.pop()
        if isinstance(one, str | bytes):
            size += len(one) + 2
        elif isinstance(one, Mapping):
            fields = cast("Mapping[str, object]", one)
            size += max(2, 1 + 2 * len(fields))
            if size <= most:
                waiting += fields
                waiting += fields.values()
        elif isinstance(one, list | tuple):
            size += max(2, 1 + len(cast("list[object]", one)))
            if size <= most:
                waiting += cast("list[object]", one)
    return size


def write_json(value: object, default: Default = None) -> str:
    """As `json.dumps` writes it without spaces and with Unicode as it is; what is long is written in slices."""
    return "".join(json_pieces(value, SLICE_SIZE, default))


def json_pieces(value: object, size: int = MAX_LOOP_SIZE, default: Default = None) -> Iterator[str]:
    """The same in pieces; no step takes more than so many characters."""
    if size_of(value, size) <= size or not isinstance(value, str | Mapping | list | tuple):
        yield _dump(value, default)
    elif isinstance(value, str):
        yield '"'
        yield from (encode_basestring(piece)[1:-1] for piece in slices(value, size))
        yield '"'
    elif isinstance(value, Mapping):
        for number, (name, each) in enumerate(cast("Mapping[str, object]", value).items()):
            yield "," if number else "{"
            yield from json_pieces(name, size) if type(name) is str else (json.dumps({name: 0})[1:-4],)
            yield ":"
            yield from json_pieces(each, size, default)
        yield "}"
    else:
        yield from _list_pieces(cast("list[object]", value), size, default)


def _list_pieces(values: "Iterable[object]", size: int, default: Default) -> Iterator[str]:
    """Entries that are short are written together: there may be very many of them."""
    some, room, sign = list[object](), size, "["
    for each in values:
        taken = size_of(each, size)
        if some and taken > room:
            yield f"{sign}{_dump(some, default)[1:-1]}"
            some, room, sign = [], size, ","
        if taken > size:
            yield sign
            yield from json_pieces(each, size, default)
            sign = ","
        else:
            some.append(each)
            room -= taken
    yield f"{sign}{_dump(some, default)[1:-1]}]" if some else "]"


def _dump(value: object, default: Default) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=default)


def read_json(text: str) -> Any:
    """As `json.loads` reads it; a long one step by step."""
    return json.loads(text) if len(text) <= MAX_JSON_SIZE else JsonReader(text).read()


class AmbiguousJsonError(ValueError):
    """JSON that the standard library reads and other readers refuse, or read differently; `phrase` says why."""

    def __init__(self, code: str, **values: Value) -> None:
        super().__init__(code)
        self.phrase = Phrase(code, **values)


def _refuse_constant(name: str) -> NoReturn:
    raise AmbiguousJsonError("json.constant", name=name)


def _read_finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise AmbiguousJsonError("json.number_too_large", number=format_value(text))
    return number


def _refuse_repeated_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise AmbiguousJsonError("json.repeated_name", name=format_value(counts.most_common(1)[0][0]))
    return found


read_strict_json: Callable[[str], Any] = json.JSONDecoder(
    object_pairs_hook=_refuse_repeated_names, parse_constant=_refuse_constant, parse_float=_read_finite
).decode
"""As `json.loads` reads it, without constants such as NaN, numbers that no float holds, and names given twice."""


class JsonReader:
    """Reads a long text of strict JSON. No call takes more than a slice at once. Subclasses may refuse more."""

    def __init__(self, text: str, slice_size: int = SLICE_SIZE) -> None:
        self._text, self._size = text, slice_size
        self._at: int = 0

    def check_depth(self, depth: int) -> None:
        """Of a container that was opened."""

    def check_value(self) -> None:
        """Called before each value and each name."""

    def check_text(self, piece: str) -> None:
        """Of a piece of a text, with its escapes read."""

    def read(self) -> Any:
        """The one value of the text."""
        value = self._read_value(self._skip_blanks())
        containers: list[Any] = [value] if type(value) in (dict, list) else []
        """Those that are open, the innermost last."""
        while containers:
            self._read_entry(containers)
        if self._skip_blanks():
            self._fail("Extra data")
        return value

    def _read_entry(self, containers: list[Any]) -> None:
        """The next entry of the innermost container, or its end."""
        inner = containers[-1]
        has_names = isinstance(inner, dict)
        sign = self._skip_blanks()
        if sign == ("}" if has_names else "]"):
            self._at += 1
            containers.pop()
            return
        if len(inner):
            if sign != ",":
                self._fail("Expecting ',' delimiter")
            self._at += 1
            sign = self._skip_blanks()
        if has_names:
            name = self._read_name(cast("dict[str, Any]", inner), sign)
            value = inner[name] = self._read_value(self._skip_blanks())
        else:
            value = self._read_value(sign)
            inner.append(value)
        if type(value) in (dict, list):
            containers.append(value)
            self.check_depth(len(containers) - 1)

    def _fail(self, message: str) -> NoReturn:
        raise json.JSONDecodeError(message, self._text, self._at)

    def _skip_blanks(self) -> str:
        """The next character that is not blank; empty at the end."""
        text = self._text
        sign = text[self._at : self._at + 1]
        while sign and sign in " \t\n\r":
            found = _BLANKS.match(text, self._at, self._at + self._size)
            assert found
            self._at = found.end()
            sign = text[self._at : self._at + 1]
        return sign

    def _read_name(self, inner: dict[str, Any], sign: str) -> str:
        if sign != '"':
            self._fail("Expecting property name enclosed in double quotes")
        self.check_value()
        name = self._read_text()
        if name in inner:
            raise AmbiguousJsonError("json.repeated_name", name=format_value(name))
        if self._skip_blanks() != ":":
            self._fail("Expecting ':' delimiter")
        self._at += 1
        return name

    def _read_value(self, sign: str) -> Any:
        self.check_value()
        if sign == '"':
            return self._read_text()
        if sign == "{" or sign == "[":
            self._at += 1
            return {} if sign == "{" else []
        if sign in _WORDS and self._text.startswith(_WORDS[sign][0], self._at):
            self._at += len(_WORDS[sign][0])
            return _WORDS[sign][1]
        for constant in ("NaN", "Infinity", "-Infinity"):
            if self._text.startswith(constant, self._at):
                _refuse_constant(constant)
        return self._read_number()

    def _read_number(self) -> int | float:
        found = _NUMBER.match(self._text, self._at, self._at + _MAX_DIGITS + 2)
        if not found:
            self._fail("Expecting value")
        if found.end() - self._at > _MAX_DIGITS:
            raise ValueError
        self._at = found.end()
        return _read_finite(found[0]) if found[1] or found[2] else int(found[0])

    def _read_text(self) -> str:
        text, begin = self._text, self._at + 1
        end = text.find('"', begin, begin + self._size)
        if end >= 0 and text.find("\\", begin, end) < 0:
            value, self._at = _scan_text(text, begin, True)
            return value
        pieces: list[str] = []
        at = begin
        while True:
            found = _LETTERS.match(text, at, at + self._size)
            assert found
            end = found.end()
            if text[end : end + 1] != '"' and (low := _LOW_SURROGATE.match(text, end)):
                end = low.end()  # both halves of a character are read together
            if end == at and text[end : end + 1] != '"':
                self._at = end
                self._fail("Invalid escape" if text[end : end + 1] else "Unterminated string")
            pieces.append(self._letters(at, end))
            if text[end : end + 1] == '"':
                self._at = end + 1
                return "".join(pieces)
            at = end

    def _letters(self, at: int, end: int) -> str:
        """A part of a text without its escapes."""
        try:
            value, _ = _scan_text(f'{self._text[at:end]}"', 0, True)
        except json.JSONDecodeError as error:
            raise json.JSONDecodeError(error.msg, self._text, at + error.pos) from None
        self.check_text(value)
        return value
