"""What text, messages and tools cost. Counting only: nothing here decides what is kept.

Counters are plain functions from text to tokens. What a counter knows about chats beyond text (`per_message`,
`per_request`, `tools`) is read from it where it has that, and is 0 where it has not. `estimate_tokens` guesses from the
kinds of characters alone: no tokenizer, no vocabulary, no dependency. No weight of it is negative, so text that is
appended or prepended never makes the guess smaller.
"""

import base64
import binascii
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from lamina.errors import CounterError, MessageError, format_value
from lamina.ports import Count
from lamina.text.json import write_json
from lamina.text.unicode import SLICE_SIZE, check_unicode, encode_text, surrogate_error, utf8_size
from lamina.types import AnyMessage, AnyTool


def estimate_message_tokens(text: str) -> int:
    """A quarter of the UTF-8 bytes, rounded up; 0 for no text (M1). Fast and rough: JSON and code come out too low."""
    try:
        return (utf8_size(text) + 3) // 4
    except UnicodeEncodeError as error:
        raise surrogate_error(error, "text") from None
    except AttributeError:
        raise MessageError("text.not_text", where="text", type=type(text).__name__, value=format_value(text)) from None


def counter_name(count: Count) -> str:
    """The name under which a receipt shows a counter."""
    name = getattr(count, "name", None) or getattr(count, "__name__", None)
    return name if isinstance(name, str) else type(count).__name__


def check_count(value: object, count: Count) -> int:
    """A counter's answer must be a whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise CounterError("counter.bad_count", name=format_value(counter_name(count)), value=format_value(value))
    return value


def text_tokens(text: str, count: Count, where: str = "text") -> int:
    """Tokens of one text, with the counter's answer and the text itself checked."""
    check_unicode(text, where)
    return check_count(count(text), count)


def message_tokens(message: AnyMessage, count: Count) -> int:
    """Tokens of a checked message: text, pictures, tool calls and what the counter adds for each message."""
    return content_tokens(message, count) + per_message(count)


def content_tokens(message: AnyMessage, count: Count) -> int:
    """Tokens of the content of a message, without the wrapping."""
    content = message["content"]
    total = 0
    if isinstance(content, str):
        total = text_tokens(content, count)
    elif content is not None:
        for part in content:
            total += text_tokens(part["text"], count) if part["type"] == "text" else image_tokens(part["image_url"])
    for call in message.get("tool_calls") or ():
        function: Mapping[str, str] = call["function"]
        total += text_tokens(function["name"], count) + text_tokens(function["arguments"], count)
    return total


def per_message(count: Count) -> int:
    """Tokens that wrap each message, 0 for a counter of plain text."""
    extra = getattr(count, "per_message", 0)
    return extra if extra == 0 else check_count(extra, count)


def per_request(count: Count) -> int:
    """Tokens that each request costs once, 0 for a counter of plain text."""
    extra = getattr(count, "per_request", 0)
    return extra if extra == 0 else check_count(extra, count)


def tool_tokens(tools: Sequence[AnyTool], count: Count) -> int:
    """Tokens of the tools' schemas: by the counter's own rule, else of their compact JSON."""
    if not tools:
        return 0
    own: Callable[[Sequence[AnyTool]], int] | None = getattr(count, "tools", None)
    if own is not None:
        return check_count(own(tools), count)
    return sum(text_tokens(compact(tool), count) for tool in tools)


def compact(value: object) -> str:
    """JSON without spaces, Unicode as it is: the one form in which lamina writes JSON."""
    try:
        text = write_json(value)
        utf8_size(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise MessageError("value.not_json", value=format_value(value), why=format_value(str(error))) from None
    return text


def check_counter(count: object) -> None:
    if not callable(count):
        raise CounterError("counter.not_callable", value=format_value(count))


MIN_FACTOR = 0.75
"""The seed's estimate is at most this much too high for plain English; anything lower is a report of something else."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the provider's reported usage has taught about an estimate; a value, so keep what `observe` returns.

    `factor` is reported over estimated tokens of the last requests, older ones fading. It is never below 0.75 and a
    report never counts for more than four times the estimate: usage that leaves out cached tokens, or one odd answer,
    cannot break a budget.
    """

    estimated: float = 0.0
    reported: float = 0.0
    fade: float = 0.8

    @property
    def factor(self) -> float:
        return max(MIN_FACTOR, self.reported / self.estimated) if self.estimated else 1.0

    def observe(self, *, estimated: int, reported: int) -> "Calibration":
        """Take in one request: what we estimated and what the provider says it was."""
        for name, value in (("estimated", estimated), ("reported", reported)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:  # pyright: ignore[reportUnnecessaryIsInstance] -- comes from a provider's JSON
                raise CounterError("counter.bad_usage", name=name, value=format_value(value))
        if not estimated or not reported:
            return self
        bounded = min(max(reported, estimated / 4), estimated * 4)
        return replace(
            self, estimated=self.estimated * self.fade + estimated, reported=self.reported * self.fade + bounded
        )

    def applied(self, count: Count) -> Count:
        """The same counter, corrected."""
        return CorrectedCount(count, self.factor)


CACHED_TEXTS, MAX_CACHED_CHARACTERS = 16_384, 4_096
"""How many texts a counter remembers, and how long each may be: together 64 MB at the very most."""


class CachedCount:
    """A counter that knows the texts it has counted already, so that a turn costs what is new."""

    def __init__(self, count: Count) -> None:
        self.name, self.per_message, self.per_request = counter_name(count), per_message(count), per_request(count)
        self._count = count
        self._known = lru_cache(CACHED_TEXTS)(count)

    def __call__(self, text: str, /) -> int:
        return self._known(text) if len(text) <= MAX_CACHED_CHARACTERS else self._count(text)

    def tools(self, tools: Sequence[AnyTool], /) -> int:
        return tool_tokens(tools, self._count)


class CorrectedCount:
    """A counter times a factor, rounded up."""

    def __init__(self, count: Count, factor: float) -> None:
        self.count, self.factor = count, factor
        self.name = f"{counter_name(count)}×{factor:.3f}"
        self.per_message = math.ceil(per_message(count) * factor)
        self.per_request = math.ceil(per_request(count) * factor)

    def __call__(self, text: str, /) -> int:
        return math.ceil(self.count(text) * self.factor)

    def tools(self, tools: Sequence[Mapping[str, Any]], /) -> int:
        return math.ceil(tool_tokens(tools, self.count) * self.factor)


IMAGE_BASE_TOKENS, IMAGE_TILE_TOKENS = 85, 170
UNKNOWN_IMAGE_SIZE = (1024, 1024)
"""The size assumed for a picture that is only a link: four tiles, 765 tokens."""


def image_tokens(image: Mapping[str, Any]) -> int:
    """Tokens of one picture: 85 at low detail, else 85 and 170 for each tile of 512 pixels."""
    if image.get("detail") == "low":
        return IMAGE_BASE_TOKENS
    width, height = data_url_size(image["url"]) or UNKNOWN_IMAGE_SIZE
    fit = min(1.0, 2048 / max(width, height))
    fit *= min(1.0, 768 / (min(width, height) * fit))
    tiles = math.ceil(width * fit / 512) * math.ceil(height * fit / 512)
    return IMAGE_BASE_TOKENS + IMAGE_TILE_TOKENS * max(1, tiles)


def data_url_size(url: str) -> tuple[int, int] | None:
    """Width and height of the picture in a `data:` URL, or None where it cannot be read."""
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    try:
        raw = base64.b64decode(data[:87_380])  # 64 KiB: the size is near the start
    except (binascii.Error, ValueError):
        return None
    size = _size(raw)
    return size if size and min(size) > 0 else None


def _size(raw: bytes) -> tuple[int, int] | None:
    if raw.startswith(b"\x89PNG\r\n\x1a\n") and len(raw) >= 24:
        return struct.unpack(">II", raw[16:24])
    if raw[:6] in (b"GIF87a", b"GIF89a") and len(raw) >= 10:
        return struct.unpack("<HH", raw[6:10])
    if raw[:4] == b"RIFF" and raw[8:16] == b"WEBPVP8X" and len(raw) >= 30:
        return 1 + int.from_bytes(raw[24:27], "little"), 1 + int.from_bytes(raw[27:30], "little")
    if raw.startswith(b"\xff\xd8"):
        return _jpeg_size(raw)
    return None


def _jpeg_size(raw: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 < len(raw) and raw[at] == 0xFF:
        marker = raw[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", raw[at + 5 : at + 9])
            return width, height
        at += 2 + int.from_bytes(raw[at + 2 : at + 4], "big")
    return None


_CONTINUATION = bytes(range(0x80, 0xC0))
"""Every character beyond ASCII has one lead byte and 1 to 3 of these, which say nothing about its kind."""


def _table(kinds: dict[bytes, str], rest: str) -> bytes:
    """A table for `bytes.translate` that turns each of these bytes into its kind."""
    table = bytearray(rest.encode() * 256)
    for members, kind in kinds.items():
        for byte in members:
            table[byte] = ord(kind)
    return bytes(table)


_KIND = _table(
    {
        b"abcdefghijklmnopqrstuvwxyz": "a",
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZ": "A",
        b"0123456789": "9",
        b" \t": "_",
        b"\n\r": "n",
        b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~": ".",
        bytes(range(0xC2, 0xCC)): "e",
        bytes(range(0xCC, 0xD0)): "g",
        bytes(range(0xD0, 0xD5)): "c",
        bytes(range(0xD5, 0xE0)): "s",
        b"\xe0\xe1": "i",
        b"\xe2": "u",
        b"\xe3": "k",
        bytes(range(0xE4, 0xEA)): "h",
        bytes(range(0xEA, 0xEE)): "o",
        b"\xee\xef": "f",
    },
    rest="x",
)

# The weights are thousandths of a token. They were fitted to o200k_base on 12,000 pieces of 4 to 6,000 characters:
# chats in English and Chinese, handbooks and interface texts in English, Chinese, Japanese, Korean and 11 other
# languages, program sources, JSON, logs, emoji and noise; none of it is shipped. The fit minimised the absolute
# relative error, with too little a sixth worse than too much and no weight below zero; then the weights were rounded.
# `bench/estimate.py` measures what came of it.
_ONCE = 1000  # a run that ends the text is not seen to end, and a part of a token is a token
_RUNS = tuple(  # runs of these kinds, whatever their length
    (_table({kinds: "x"}, rest=" "), weight)
    for kinds, weight in (
        (b"aA", 380),  # a word, cheap because the blank before it is part of its token and pays its share
        (b"9", 1040),  # a number
        (b".", 470),  # punctuation
        (b"_", 450),  # blanks
        (b"n", 1030),  # line ends
    )
)
_ASCII = (
    (b"a", 48),
    (b"A", 150),
    (b"aA", 630),  # camelCase begins a token
    (b"9", 310),
    (b".", 330),
    (b"x", 2240),  # control characters; beyond ASCII, emoji and rare Han
    (b"a" * 24, 11700),  # no word is this long: noise, which falls apart into pairs
    (b"A" * 24, 11700),
)
_BEYOND_ASCII = (
    (b"e", 1240),  # Latin letters with accents, which also break their word
    (b"g", 370),  # Greek
    (b"c", 220),  # Cyrillic
    (b"s", 360),  # Hebrew, Arabic
    (b"i", 350),  # Indic scripts, Thai
    (b"u", 960),  # dashes, quotes, arrows, boxes
    (b"k", 710),  # kana, CJK punctuation
    (b"h", 740),  # Han
    (b"o", 580),  # Hangul
    (b"f", 1290),  # full-width forms
)


def _count(data: bytes, kind: bytes) -> int:
    """`data.count(kind)` in slices: in one call it takes 200 ms for 20 MB, and every other task waits."""
    if len(data) <= SLICE_SIZE:
        return data.count(kind)
    if len(kind) <= 2:
        return sum(data.count(kind, at, at + SLICE_SIZE + len(kind) - 1) for at in range(0, len(data), SLICE_SIZE))
    at = total = 0
    while at + SLICE_SIZE < len(data):
        piece = data[at : at + SLICE_SIZE]
        total += piece.count(kind)
        at += len(piece) - (len(piece) - len(piece.rstrip(kind[:1]))) % len(kind)  # what a border cuts is read again
    return total + data.count(kind, at)


def _translate(data: bytes, table: bytes, without: bytes = b"") -> bytes:
    if len(data) <= SLICE_SIZE:
        return data.translate(table, without)
    return b"".join([data[at : at + SLICE_SIZE].translate(table, without) for at in range(0, len(data), SLICE_SIZE)])


def estimate_tokens(text: str) -> int:
    """About how many tokens the text has: 0 for an empty text, else at least 1."""
    try:
        data = encode_text(text)
    except UnicodeEncodeError as error:
        raise surrogate_error(error, "text") from None
    except (AttributeError, TypeError):
        raise MessageError("text.not_text", where="text", type=type(text).__name__, value=format_value(text)) from None
    if not data:
        return 0
    ascii_only = len(data) == len(text)
    kinds = _translate(data, _KIND) if ascii_only else _translate(data, _KIND, _CONTINUATION)
    total = _ONCE
    for table, weight in _RUNS:
        total += weight * _count(_translate(kinds, table), b"x ")
    for kind, weight in _ASCII:
        total += weight * _count(kinds, kind)
    if not ascii_only:
        for kind, weight in _BEYOND_ASCII:
            total += weight * _count(kinds, kind)
    return total // 1000
