"""Values from outside, checked against the part of JSON Schema that our routes use; a fault is told with its place.

A schema is made into functions once, when the routes are read: the hot path only calls them. A keyword that is not
known here is an error at that time, so that nobody takes for checked what is not.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qsl

from lamina.errors import shown
from lamina.gateway.http import HttpError, Schema

DEEPEST = 64
"""How deep a value may be nested where a schema lets it be anything."""
MOST_PARAMETERS = 50
SHOWN = 60
ANNOTATIONS = {"title", "description", "default", "examples", "format", "writeOnly"}
TYPES = {
    "null": "null", "boolean": "true or false", "integer": "a whole number", "number": "a number", "string": "text",
    "array": "a list", "object": "an object",
}  # fmt: skip
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_SWITCHES = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, how to say it, and where: steps from the value that was checked to the one that is wrong."""

    value: object
    wanted: str
    path: tuple[str, ...] = ()
    says: str = ""
    """In place of the value, where that would not help."""

    def under(self, step: str) -> "Fault":
        return Fault(self.value, self.wanted, (step, *self.path), self.says)

    def __str__(self) -> str:
        where = "".join(self.path).removeprefix(".") or "the body"
        return f"{where} {self.says or f'is {shown(self.value, SHOWN)}'}, wanted {self.wanted}"


Check = Callable[[Any], Fault | None]


def compiled(schema: Schema) -> Check:
    """The schema as a function that gives the first fault of a value, or None."""
    known = set(_MAKERS) | ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}
    if unknown := sorted(set(schema) - known):
        raise ValueError(f"shapes does not know the keyword {unknown[0]!r}")
    checks: list[Check] = []
    kinds = schema.get("type", ())
    names = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    fields = bool({"properties", "required", "additionalProperties"} & set(schema))
    if names and not (fields and names == ("object",)):
        checks.append(_typed(names))
    if fields:
        checks.append(_object(schema, alone=names == ("object",)))
    elif "object" in names or not ({"anyOf", "enum", "const"} & set(schema) or names):
        checks.append(_free)
    if "array" in names and "items" not in schema:
        checks.append(_free)
    if len(names) > 1 and "string" in names:
        checks.append(_unicode)
    checks += [make(schema[name]) for name, make in _MAKERS.items() if name in schema]
    found = checks[0] if len(checks) == 1 else _all(checks)
    return _hidden(found) if schema.get("writeOnly") else found


def check(value: object, schema: Schema) -> None:
    """Refuse what is not as the schema says. For values that are checked once; a route keeps what `compiled` gives."""
    refuse(compiled(schema)(value))


def refuse(fault: Fault | None) -> None:
    if fault:
        raise HttpError(400, str(fault), hint="GET /api/openapi.json says what each route takes")


def compiled_query(schemas: Mapping[str, Schema]) -> Callable[[bytes], dict[str, Any]]:
    """A function that reads what stands behind the `?`: each parameter known, once, of its type and in its range, and
    the defaults of those that are not given."""
    defaults = {name: schema["default"] for name, schema in schemas.items() if "default" in schema}
    checks = {name: compiled(schema) for name, schema in schemas.items()}
    kinds = {name: schema.get("type", "string") for name, schema in schemas.items()}
    hint = f"known: {', '.join(sorted(schemas)) or 'none'}"

    def read(raw: bytes) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, text in _pairs(raw) if raw else ():
            if name not in checks:
                raise HttpError(400, f"no parameter is named {shown(name, SHOWN)}", hint=hint)
            if name in found:
                raise HttpError(400, f"the parameter {name} is given twice", hint="give it once")
            if "\0" in text:
                raise HttpError(400, f"the parameter {name} holds U+0000", hint="remove it")
            found[name] = _read(text, kinds[name])
            if fault := checks[name](found[name]):
                refuse(fault.under(name))
        return {**defaults, **found}

    return read


def query_of(raw: bytes, schemas: Mapping[str, Schema]) -> dict[str, Any]:
    """The same, for a query string that is read once."""
    return compiled_query(schemas)(raw)


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MOST_PARAMETERS)
    except ValueError:
        hint = f"percent-encoded UTF-8, at most {MOST_PARAMETERS} parameters"
        raise HttpError(400, "the query string cannot be read", hint=hint) from None


def _read(text: str, kind: str) -> Any:
    """A parameter as the type that its schema names; what is none stays text, and the check says so."""
    if kind == "integer" and _WHOLE.fullmatch(text):
        return int(text)
    if kind == "boolean":
        return _SWITCHES.get(text, text)
    return text


def _hidden(inner: Check) -> Check:
    """A secret is not told back, even when it is of a wrong shape."""

    def hidden(value: Any) -> Fault | None:
        fault = inner(value)
        return Fault(None, fault.wanted, fault.path, "is something else") if fault else None

    return hidden


def _all(checks: Sequence[Check]) -> Check:
    def every(value: Any) -> Fault | None:
        for each in checks:
            if fault := each(value):
                return fault
        return None

    return every


_KINDS: dict[str, tuple[type, ...]] = {
    "null": (type(None),), "boolean": (bool,), "integer": (int,), "number": (int, float), "string": (str,),
    "array": (list,), "object": (dict,),
}  # fmt: skip
"""What JSON is read as. Exactly these types: True is no 1."""


def _typed(names: Sequence[str]) -> Check:
    kinds = frozenset(kind for name in names for kind in _KINDS[name])
    wanted = " or ".join(TYPES[name] for name in names)
    if tuple(names) == ("string",):
        return lambda value: None if type(value) is str and value.isascii() else _text(value, wanted)
    if float not in kinds:
        return lambda value: None if type(value) in kinds else Fault(value, wanted)
    return lambda value: (
        None if type(value) in kinds and (type(value) is not float or math.isfinite(value)) else Fault(value, wanted)
    )


def _text(value: Any, wanted: str) -> Fault | None:
    return _unicode(value) if type(value) is str else Fault(value, wanted)


def _object(schema: Schema, *, alone: bool) -> Check:
    """The fields of an object; `alone` when it may be nothing else."""
    properties = {name: compiled(inner) for name, inner in schema.get("properties", {}).items()}
    required: Sequence[str] = schema.get("required", ())
    more = schema.get("additionalProperties", True)
    other = compiled(cast(Schema, more)) if isinstance(more, Mapping) else _free if more else None
    known = ", ".join(sorted(properties)) or "none"

    def fields(value: Any) -> Fault | None:
        if type(value) is not dict:
            return Fault(value, TYPES["object"]) if alone else None
        given = cast("dict[str, Any]", value)
        for name in required:
            if name not in given:
                return Fault(None, name, says="is incomplete")
        for name, inner in given.items():
            here = properties.get(name, other)
            if here is None:
                return Fault(None, f"one of: {known}", says=f"has a field {shown(name, SHOWN)}")
            if fault := here(inner) or (None if name in properties else _unicode(name)):
                return fault.under(f".{shown(name, SHOWN)[1:-1]}")
        return None

    return fields


def _free(value: Any, depth: int = 0) -> Fault | None:
    """Anything that JSON has, as long as it can be kept and sent again."""
    if isinstance(value, str):
        return _unicode(value)
    if isinstance(value, float) and not math.isfinite(value):
        return Fault(value, "a finite number")
    if depth > DEEPEST:
        return Fault(None, f"at most {DEEPEST} levels", says="is nested too deep")
    if isinstance(value, list):
        for place, each in enumerate(cast("list[Any]", value)):
            if fault := _free(each, depth + 1):
                return fault.under(f"[{place}]")
    if isinstance(value, dict):
        for name, each in cast("dict[str, Any]", value).items():
            if fault := _unicode(name) or _free(each, depth + 1):
                return fault.under(f".{shown(name, SHOWN)[1:-1]}")
    return None


def _unicode(value: Any) -> Fault | None:
    """Half of a surrogate pair can be written in JSON and is no text."""
    if not isinstance(value, str) or value.isascii():
        return None
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return Fault(None, "whole characters", says=f"holds the lone surrogate U+{ord(value[error.start]):04X}")
    return None


def _any_of(schemas: Sequence[Schema]) -> Check:
    checks = [compiled(schema) for schema in schemas]

    def one_of(value: Any) -> Fault | None:
        faults: list[Fault] = []
        for each in checks:
            fault = each(value)
            if fault is None:
                return None
            faults.append(fault)
        deepest = max(faults, key=lambda fault: (len(fault.path), bool(fault.says)))  # the one that was meant
        if deepest.path or deepest.says:
            return deepest
        wanted = " or ".join(dict.fromkeys(fault.wanted for fault in faults))
        return Fault(value, wanted)

    return one_of


def _items(schema: Schema) -> Check:
    each = compiled(schema)

    def items(value: Any) -> Fault | None:
        if isinstance(value, list):
            for place, one in enumerate(cast("list[Any]", value)):
                if fault := each(one):
                    return fault.under(f"[{place}]")
        return None

    return items


def _enum(known: Sequence[object]) -> Check:
    wanted = "one of " + ", ".join("null" if one is None else str(one) for one in known)
    kinds = [(type(one), one) for one in known]  # True is no 1 here
    return lambda value: None if (type(value), value) in kinds else Fault(value, wanted)


def _sized(kind: type, most: bool, word: str) -> Callable[[int], Check]:
    def make(limit: int) -> Check:
        wanted = f"at {'most' if most else 'least'} {limit:,} {word}"

        def sized(value: Any) -> Fault | None:
            size = len(cast("Sized", value)) if isinstance(value, kind) else limit
            if size <= limit if most else size >= limit:
                return None
            return Fault(None, wanted, says=f"has {size:,}" if size else "is empty")

        return sized

    return make


def _bound(most: bool) -> Callable[[float], Check]:
    def make(limit: float) -> Check:
        wanted = f"at {'most' if most else 'least'} {limit:,}"

        def bound(value: Any) -> Fault | None:
            if isinstance(value, bool) or not isinstance(value, int | float):
                return None
            return None if (value <= limit if most else value >= limit) else Fault(value, wanted)

        return bound

    return make


def _pattern(text: str) -> Check:
    found = re.compile(text)
    return lambda value: None if not isinstance(value, str) or found.search(value) else Fault(value, f"the form {text}")


_MAKERS: dict[str, Callable[[Any], Check]] = {
    "const": lambda value: _enum([value]),
    "enum": _enum,
    "minLength": _sized(str, False, "characters"),
    "maxLength": _sized(str, True, "characters"),
    "pattern": _pattern,
    "minimum": _bound(False),
    "maximum": _bound(True),
    "minItems": _sized(list, False, "entries"),
    "maxItems": _sized(list, True, "entries"),
    "maxProperties": _sized(dict, True, "fields"),
    "items": _items,
    "anyOf": _any_of,
}
