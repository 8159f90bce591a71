"""What people read, by code and language: one catalogue for each language, which the page reads too.

Inside lamina an error, a reason, a notice or an outcome is a code with values. It becomes text here, at the edge, and
nothing may compare, match or split that text.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from typing import Any, TypeAlias, cast

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data")
LANGUAGES = ("en", "zh")
LIST_SEPARATORS = {"en": ", ", "zh": "、"}

Value: TypeAlias = "str | int | float | Phrase | Sequence[Value] | None"
"""What a slot can be filled with. A list is joined as the language does it."""


@cache
def catalogue(lang: str) -> Mapping[str, str]:
    """All texts of a language by their codes."""
    with open(os.path.join(FOLDER, f"messages.{lang}.json"), encoding="utf-8") as file:
        return json.load(file)


def is_known(code: str) -> bool:
    return code in catalogue("en")


class Phrase:
    """Something to say to a person: a code, and the values that its text has slots for.

    A code that no catalogue has is text from elsewhere (an error of your own tool, say) and is displayed as it is.
    """

    __slots__ = ("code", "values")

    def __init__(self, code: str, /, **values: Value) -> None:
        self.code = code
        self.values: Mapping[str, Value] = values

    def text(self, lang: str = "en") -> str:
        """What a person reads."""
        template = catalogue(lang if lang in LANGUAGES else "en").get(self.code)
        if template is None:
            return self.code
        first, *pieces = template.split("{")
        return first + "".join(self._fill(piece, lang) for piece in pieces)

    def _fill(self, piece: str, lang: str) -> str:
        """What follows an opening brace: a slot and the text after it, or plain text."""
        name, closed, rest = piece.partition("}")
        return f"{_value(self.values[name], lang)}{rest}" if closed and name in self.values else f"{{{piece}"

    def to_json(self) -> str | dict[str, Any]:
        """Plain values: the code alone where there are no values."""
        if not self.values:
            return self.code
        values = {name: _plain(value) for name, value in self.values.items()}
        return {"code": self.code, **values}

    @classmethod
    def from_json(cls, value: object) -> "Phrase":
        if isinstance(value, str):
            return cls(value)
        fields = dict(cast("Mapping[str, Any]", value))
        code = fields.pop("code")
        return cls(code, **{name: cast(Value, _restored(one)) for name, one in fields.items()})

    def map_text(self, change: Callable[[str], str]) -> "Phrase":
        """The same with every text in it changed: the values, and a code that is text from elsewhere."""
        return Phrase(change(self.code), **{name: _map(value, change) for name, value in self.values.items()})

    def dump(self) -> str:
        """One text for a column: the code, or JSON where there are values."""
        plain = self.to_json()
        return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)

    @classmethod
    def load(cls, text: str) -> "Phrase":
        """What `dump` wrote; any other text, of an older store say, is shown as it is."""
        if text.startswith("{"):
            try:
                value: object = json.loads(text)
            except ValueError:
                value = text
            return cls.from_json(value) if cls.is_json(value) else cls(text)
        return cls(text)

    def for_clients(self) -> dict[str, Any] | None:
        """What a client gets: the code and its values, to be rendered in its own language, and the English text. Values
        that the text does not show, such as a path of this machine, stay here."""
        if not self:
            return None
        plain, template = self.to_json(), catalogue("en").get(self.code, "")
        values = {} if isinstance(plain, str) else {n: one for n, one in plain.items() if f"{{{n}}}" in template}
        return {"code": self.code, "values": values, "text": self.text()}

    @staticmethod
    def is_json(value: object) -> bool:
        """Whether `from_json` takes a value that may come from anywhere."""
        if isinstance(value, str):
            return True
        fields = cast("dict[str, object]", value) if isinstance(value, dict) else {}
        return isinstance(fields.get("code"), str) and all(map(_is_value, fields.values()))

    @classmethod
    def of(cls, said: "str | Phrase") -> "Phrase":
        """A phrase as it is; anything else is text from elsewhere."""
        return said if isinstance(said, Phrase) else cls(said)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return "".join(["Phrase(", repr(self.code), *(f", {n}={v!r}" for n, v in self.values.items()), ")"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Phrase) and self.code == other.code and self.values == other.values

    def __hash__(self) -> int:
        return hash(self.code)

    def __bool__(self) -> bool:
        return bool(self.code)


NOTHING = Phrase("")
"""Nothing to say; it is false."""


def join_clauses(clauses: Sequence[Phrase]) -> Phrase:
    """One phrase of several that are each a clause: a list of names is joined with commas, clauses with semicolons."""
    return reduce(lambda first, second: Phrase("text.clauses", first=first, second=second), clauses)


def _value(value: object, lang: str) -> str:
    if isinstance(value, Phrase):
        return value.text(lang)
    if isinstance(value, list | tuple):
        parts = (_value(one, lang) for one in cast("list[object]", value))
        return LIST_SEPARATORS.get(lang, ", ").join(parts)
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _map(value: Value, change: Callable[[str], str]) -> Value:
    if isinstance(value, Phrase):
        return value.map_text(change)
    if isinstance(value, str):
        return change(value)
    if value is None or isinstance(value, int | float):
        return value
    return [_map(one, change) for one in value]


def _is_value(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_value, cast("list[object]", value)))
    return value is None or isinstance(value, int | float) or Phrase.is_json(value)


def _plain(value: object) -> object:
    if isinstance(value, Phrase):
        return {"code": value.code, **{name: _plain(one) for name, one in value.values.items()}}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in cast("Sequence[object]", value)]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _restored(value: object) -> object:
    if isinstance(value, Mapping):
        return Phrase.from_json(cast("Mapping[str, Any]", value))
    if isinstance(value, list):
        return [_restored(one) for one in cast("list[object]", value)]
    return value
