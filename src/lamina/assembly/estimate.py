"""How many tokens a text has, guessed from its characters alone: no tokenizer, no vocabulary, no dependency.

Every character becomes one byte that names its kind; the guess is a weighted count of kinds and of the places where a
run of one kind ends. No weight is negative, so text appended or prepended never makes the guess smaller.
It must stay a pure function of the text: no cache, no I/O, no choice of model.
"""

from lamina.errors import MessageError, format_value
from lamina.text.unicode import SLICE_SIZE, encode_text, surrogate_error

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
    """`data.count(kind)` in slices: in one call it takes 200 ms for 20 MB, and everybody waits."""
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
