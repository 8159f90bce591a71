"""Text as UTF-8, halves of surrogate pairs, and characters that people do not see and models do (fault P4). Pure.

A hidden character is judged by its neighbours, because honest text needs many of them: joiners in Persian and
Malayalam, marks of direction in Arabic and Hebrew, selectors behind emoji and ideographs. Among plain ASCII none of
them is welcome, but for the soft hyphen inside a word.
"""

import codecs
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from lamina.errors import MessageError
from lamina.text.messages import Phrase

MAX_LOOP_SIZE = 65_536
"""Characters or bytes that may be worked through in one go on the event loop."""
SLICE_SIZE = 32_768
"""Characters that one call may work through in a thread: the event loop waits for that several times a request."""

HIDDEN = (
    "\x00-\x08\x0b\x0d-\x1f\x7f-\x9f"  # controls, but for tab, line feed and form feed
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\u2800\ufdd0-\ufdef\ufffe\uffff\U00013430-\U00013440\U00016fe4\U0001d159"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\U0010fffe\U0010ffff"
)
"""Everything that may be invisible. A text without any of it costs one search."""
MARKS = "\u061c\u200e\u200f"
"""ALM, LRM, RLM: they help right-to-left text, and only there."""

JOINING = (
    "\u0600-\u061b\u061d-\u077f\u07c0-\u07ff\u0840-\u0dff\u0f00-\u109f\u1780-\u17b3\u17b6-\u180a\u1810-\u18af"
    "\u1a20-\u1aaf\u1b00-\u1c4f\ua800-\ua82f\ua840-\ua8ff\ua930-\ua9ff\uaa60-\uaaff\uabc0-\uabff\ufb50-\ufdff"
    "\ufe70-\ufefc\U00010ac0-\U00010aff\U00010b80-\U00010baf\U00010d00-\U00010d3f\U00010f30-\U00010fdf"
    "\U00011000-\U00011fff\U0001e900-\U0001e95f"
)
"""Scripts whose letters join or stack, so that a joiner changes what is seen: Arabic to Adlam, and the Indic ones."""
SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17b3\u17b6-\u17ff\u1950-\u19df\u1a20-\u1aaf\ua9e0-\ua9ff\uaa60-\uaadf"
"""Scripts that write no spaces; a zero width space says where a line may break: Thai, Lao, Myanmar, Khmer."""
MONGOLIAN = "\u1820-\u1878\u1880-\u18aa\U00011660-\U0001166c"
IDEOGRAPHS = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
VARIED = (
    "\u2190-\u22ff\u2a00-\u2aff\u1000-\u109f\ua840-\ua877\u3001\u3002\uff01\uff0c\uff0e\uff1a\uff1b\uff1f"
    "\U00010ac0-\U00010aff"
)
"""What FE00 to FE02 vary besides ideographs: mathematics, Myanmar, Phags-pa, wide punctuation, Manichaean."""
HIEROGLYPHS = "\U00013000-\U0001342f\U00013441-\U0001345f"
PICTURES = "\xa9\xae\u203c\u2049\u2122\u2139\u2190-\u27ff\u2900-\u2bff\u3030\u303d\u3200-\u32ff\U0001f000-\U0001fbff"
"""Emoji and symbols: FE0E and FE0F choose their style, and a joiner makes one picture of several."""
COMBINING = "\u0300-\u034e\u0350-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u1ab0-\u1aff\u1dc0-\u1dff"
LETTER = rf"[^\W\d_]|[{JOINING}{SPACELESS}]"

WELCOME = (
    # England, Scotland, Wales: the only use of tag characters that Unicode recommends
    "\U0001f3f4(?:{})\U000e007f(?![\U000e0000-\U000e007f])".format(
        "|".join("".join(chr(0xE0000 + ord(letter)) for letter in name) for name in ("gbeng", "gbsct", "gbwls"))
    ),
    rf"(?<=[{PICTURES}])[\ufe0e\ufe0f]",
    r"(?<=[0-9#*])[\ufe0e\ufe0f](?=\u20e3)",  # keycaps
    rf"(?<=[{IDEOGRAPHS}])[\ufe00-\ufe02]",
    r"\r$",  # a line's end; anywhere else it writes over what a terminal has shown
    r"(?<=[\u2801-\u28ff])\u2800|\u2800(?=[\u2801-\u28ff])",  # the space of Braille
    rf"(?<=[{HIEROGLYPHS}])[\U00013430-\U0001343f](?=[{HIEROGLYPHS}])",
    rf"(?<=[{VARIED}])[\ufe00-\ufe02]",
    rf"(?<=[{HIEROGLYPHS}])[\ufe00-\ufe06]",
    rf"(?<=[{PICTURES}])\u200d(?=[{PICTURES}])",
    rf"(?<=[{PICTURES}]\ufe0f)\u200d(?=[{PICTURES}])",
    # One side is enough: Persian writes a joiner between a foreign word and its ending, and before a full stop.
    rf"(?<=[{JOINING}])[\u200c\u200d](?![{HIDDEN}])",
    rf"(?<![{HIDDEN}])[\u200c\u200d](?=[{JOINING}])",
    rf"(?<=[{SPACELESS}])\u200b(?![{HIDDEN}])",
    rf"(?<![{HIDDEN}])\u200b(?=[{SPACELESS}])",
    rf"(?<=[{MONGOLIAN}])[\u180b-\u180d\u180f]",
    rf"(?<=[{MONGOLIAN}])\u180e(?=[{MONGOLIAN}])",
    rf"\u034f(?=[{COMBINING}])",
    rf"(?<={LETTER})\xad(?={LETTER})",
)
"""Where hidden characters belong. None of these allows two of them side by side."""

FEW_VARIANTS, MANY_LETTERS = 8, 10
"""Selectors for the variant of an ideograph are for rare names: this many on a line, or one in so many characters. More
of them would be a way to hide a text, a byte behind each character."""

ANY = re.compile(f"[{HIDDEN}]")
UNSEEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"}
"""Categories of characters that show nothing, or a blank."""
WHY = (
    (re.compile("[\u202a-\u202e\u2066-\u2069]"), "hidden.order"),
    (re.compile("[\U000e0000-\U000e007f]"), "hidden.spells"),
    (re.compile("[\ufe00-\ufe0f\u180b-\u180d\u180f\U000e0100-\U000e01ef]"), "hidden.variant"),
    (re.compile("[\u200c\u200d]"), "hidden.joiner"),
    (re.compile(f"[{MARKS}]"), "hidden.mark"),
    (re.compile("[\ufdd0-\ufdef\ufffe\uffff\U0010fffe\U0010ffff]"), "hidden.noncharacter"),
    (re.compile("\xad"), "hidden.hyphen"),
    (re.compile("[\x00-\x1f\x7f-\x9f]"), "hidden.control"),
)


@dataclass(frozen=True, slots=True)
class Hidden:
    """One hidden character: its place (counted from 1), what it is, and why it does not belong there."""

    line: int
    column: int
    code: int
    name: str
    why: str
    """A code of the catalogues."""

    def __str__(self) -> str:
        return f"{self.line}:{self.column} U+{self.code:04X} {self.name}"


def hidden_characters(text: str) -> list[Hidden]:
    """Every hidden character that does not belong in its place, in the order of the text."""
    if not ANY.search(text):
        return []
    return [
        Hidden(number, at + 1, ord(line[at]), _name(line[at]), _why(line[at]))
        for number, line in enumerate(text.split("\n"), 1)
        for at in _in_line(line)
    ]


def visible(text: str, keep: str = "") -> str:
    """The text as people may approve it: what is not plainly seen is escaped, honest or not, but for `keep`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(each if each in keep else _escape_unseen(each) for each in text)


def is_unseen(char: str) -> bool:
    """Whether a reader sees nothing, or something that only looks like a blank, where this character is."""
    return not " " <= char <= "~" and (unicodedata.category(char) in UNSEEN or ANY.match(char) is not None)


def visible_command(text: str) -> str:
    """A command or an address as it is shown before a yes: nothing hidden or moved, and no other text looks like it.

    What cannot be seen becomes `\\u202e` or `\\U000e0041`, backslashes before a `u` or `U` are doubled, and ⏎ marks the
    end of a line.
    """
    pieces: list[str] = []
    backslashes = 0
    for at, char in enumerate(text):
        if char == "\\":
            backslashes += 1
            continue
        escaped = _escaped_in_command(char, text[at - 1 : at])
        pieces.append("\\" * (backslashes * 2 if escaped or char in "uU" else backslashes))
        backslashes = 0
        pieces.append(escaped or ("⏎\n" if char == "\n" else char))
    return "".join(pieces) + "\\" * backslashes


def _escaped_in_command(char: str, before: str) -> str:
    """How a character is written out, empty where it is shown as it is. A combining mark would hide on ASCII."""
    if char == "\n" or " " <= char <= "~":
        return ""
    marks_ascii = unicodedata.combining(char) and (not before or before.isascii())
    if char != "⏎" and not is_unseen(char) and not marks_ascii:
        return ""
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def _escape_unseen(char: str) -> str:
    plain = char.isprintable() and not ANY.match(char)
    return char if plain else char.encode("unicode_escape").decode()


def _in_line(line: str) -> Iterator[int]:
    right_to_left: bool | None = None
    variants = 0
    for found in _pattern().finditer(line):
        at = found.start()
        if found["mark"]:
            if right_to_left is None:
                right_to_left = any(_right_to_left(char) for char in line)
            if not right_to_left or _among_latin(line, at):
                yield at
        elif found["variant"]:
            variants += 1
            if variants > max(FEW_VARIANTS, len(line) // MANY_LETTERS):
                yield at
        elif found["hidden"]:
            yield at


def _among_latin(line: str, at: int) -> bool:
    """Between two letters that run from left to right a mark of direction changes nothing."""
    return all(char.isascii() and char.isalnum() for char in (line[at - 1 : at] or "-", line[at + 1 : at + 2] or "-"))


@cache
def _pattern() -> re.Pattern[str]:
    """Compiled when the first text needs it: that takes some milliseconds, and most texts never do."""
    return re.compile(
        f"{'|'.join(WELCOME)}|(?P<mark>(?<![{HIDDEN}])[{MARKS}])|"
        f"(?P<variant>(?<=[{IDEOGRAPHS}])[\U000e0100-\U000e012f])|(?P<hidden>[{HIDDEN}])"
    )


def _right_to_left(char: str) -> bool:
    return char.isalnum() and unicodedata.bidirectional(char) in ("R", "AL", "AN")


def _name(char: str) -> str:
    return unicodedata.name(char, "CONTROL" if unicodedata.category(char) == "Cc" else "UNASSIGNED")


def _why(char: str) -> str:
    return next((why for kind, why in WHY if kind.match(char)), "hidden.useless")


# UTF-8


def slices(text: str, size: int = SLICE_SIZE) -> Iterator[str]:
    """The text in pieces of at most so many characters."""
    return (text[at : at + size] for at in range(0, len(text), size))


def encode_text(text: str) -> bytes:
    """UTF-8; an error is that of `text.encode()`."""
    if len(text) <= SLICE_SIZE:
        return text.encode()
    try:
        return b"".join([piece.encode() for piece in slices(text)])
    except UnicodeEncodeError:
        return text.encode()  # it tells the place in the whole


def utf8_size(text: str) -> int:
    """How many bytes it has; an error is that of `text.encode()`."""
    if text.isascii():
        return len(text)
    try:
        return sum(len(piece.encode()) for piece in slices(text))
    except UnicodeEncodeError:
        return len(text.encode())  # the same


def decode_text(data: bytes) -> str:
    """What UTF-8 says."""
    if len(data) <= SLICE_SIZE:
        return data.decode()
    decoder = codecs.getincrementaldecoder("utf-8")()
    pieces = [decoder.decode(data[at : at + SLICE_SIZE]) for at in range(0, len(data), SLICE_SIZE)]
    return "".join([*pieces, decoder.decode(b"", True)])


# Halves of surrogate pairs: JSON can write them and a cut stream may leave them, but UTF-8 has none.


def is_unicode(text: str) -> bool:
    """Whether a text can be sent and stored as UTF-8."""
    try:
        return utf8_size(text) >= 0
    except UnicodeEncodeError:
        return False


def check_unicode(text: str, where: str | Phrase) -> None:
    """Refuse text that cannot be sent as UTF-8."""
    try:
        utf8_size(text)
    except UnicodeEncodeError as error:
        raise surrogate_error(error, where) from None


def surrogate_error(error: UnicodeEncodeError, where: str | Phrase) -> MessageError:
    character = f"U+{ord(error.object[error.start]):04X}"
    return MessageError("text.lone_surrogate", where=where, character=character, position=error.start)


def join_surrogates(text: str) -> str:
    """The two halves of a pair as one character; a half without its other half as a replacement character."""
    return text if is_unicode(text) else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def escape_surrogates(text: str) -> str:
    """Each half of a pair written out, so that people see it."""
    return text.encode("utf-8", "backslashreplace").decode()
