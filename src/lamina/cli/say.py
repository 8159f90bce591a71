"""What the commands say, in the reader's language, with nothing in it that a terminal would obey."""

import json
import unicodedata
from collections.abc import Iterable

from lamina.text.messages import LANGUAGES, LIST_SEPARATORS, Phrase, Value, is_known

DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\u2060\ufeff"


class Say:
    """Renders codes in one language: `say("cli.chat.bye", id=…)`. Whole numbers get separators for thousands."""

    __slots__ = ("lang",)

    def __init__(self, lang: str) -> None:
        self.lang = lang if lang in LANGUAGES else "en"

    def __call__(self, code: str, /, **values: Value) -> str:
        if not values:
            return Phrase(code).text(self.lang)
        grouped = {name: f"{value:,}" if type(value) is int else value for name, value in values.items()}
        return visible(Phrase(code, **grouped).text(self.lang))

    def get(self, code: str, default: str, /, **values: Value) -> str:
        """The text of a code that is put together from data, which may be unknown here."""
        return self(code, **values) if is_known(code) else default

    def render(self, said: Phrase | str) -> str:
        """An error, a reason or a notice. Sentences of older stores and of other people's code have no code."""
        return visible(Phrase.of(said).text(self.lang))

    def next(self, hint: Phrase | str) -> str:
        return self("cli.next", text=self.render(hint))

    def join(self, parts: Iterable[str]) -> str:
        return LIST_SEPARATORS[self.lang].join(parts)


def visible(text: str) -> str:
    """Control, direction and tag characters as people can see them: a terminal must not obey text from outside."""
    return "".join(f"⟨U+{ord(c):04X}⟩" if hidden(c) else c for c in text)


def escape_json(text: str) -> str:
    """JSON whose control, direction and tag characters are escaped: the same value, and nothing for a terminal."""
    return "".join(json.dumps(c)[1:-1] if hidden(c) else c for c in text)


def hidden(c: str) -> bool:
    """Does a terminal obey this character, or show nothing where something is?"""
    if c in "\n\t" or (c.isascii() and c.isprintable()):
        return False
    if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in DIRECTIONS:
        return True
    return "\U000e0000" <= c <= "\U000e01ef"
