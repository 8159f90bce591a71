"""Checks values from outside against the part of JSON Schema that our routes use; a fault names its place.

A schema is compiled into functions once, when the routes are read: the hot path only calls them. A keyword that is not
known here is an error at that time, so that nothing passes for checked that is not.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qsl

from lamina.errors import format_value
from lamina.gateway.http import HttpError, Schema
from lamina.text.messages import Phrase, Value

MAX_DEPTH = 64
"""How deep a value may be nested where a schema lets it be anything."""
MAX_PARAMETERS = 50
SHOWN_CHARACTERS = 60
ANNOTATIONS = {"title", "description", "default", "examples", "format", "writeOnly"}
TYPES = {
    "null": Phrase("schema.null"), "boolean": Phrase("schema.boolean"), "integer": Phrase("schema.integer"),
    "number": Phrase("schema.number"), "string": Phrase("schema.string"), "array": Phrase("schema.array"),
    "object": Phrase("schema.object"),
}  # fmt: skip
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_SWITCHES = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, as a code with values, and where: steps from the value that was checked to the wrong one."""

    code: str
    values: Mapping[str, Value]
    path: tuple[str, ...] = ()

    def under(self, step: str) -> "Fault":
        return Fault(self.code, self.values, (step, *self.path))

    @property
    def phrase(self) -> Phrase:
        where = "".join(self.path).removeprefix(".") or Phrase("body.name")
        return Phrase(self.code, where=where, **self.values)


Check = Callable[[Any], Fault | None]


def _unexpected(value: object, wanted: Phrase) -> Fault:
    return Fault("body.wrong_value", {"value": format_value(value, SHOWN_CHARACTERS), "wanted": wanted})


def _either(choices: Iterable[Phrase]) -> Phrase:
    first, *others = dict.fromkeys(choices)
    for other in others:
        first = Phrase("schema.either", first=first, second=other)
    return first


def compile_schema(schema: Schema) -> Check:
    """The schema as a function that gives the first fault of a value, or None."""
    known = set(_MAKERS) | ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}
    if unknown := sorted(set(schema) - known):
        raise ValueError(f"shapes does not know the keyword {unknown[0]!r}")
    checks: list[Check] = []
    kinds = schema.get("type", ())
    names = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    fields = bool({"properties", "required", "additionalProperties"} & set(schema))
    if names and not (fields and names == ("object",)):
        checks.append(_check_type(names))
    if fields:
        checks.append(_check_fields(schema, alone=names == ("object",)))
    elif "object" in names or not ({"anyOf", "enum", "const"} & set(schema) or names):
        checks.append(_check_any)
    if "array" in names and "items" not in schema:
        checks.append(_check_any)
    if len(names) > 1 and "string" in names:
        checks.append(_check_unicode)
    checks += [make(schema[name]) for name, make in _MAKERS.items() if name in schema]
    found = checks[0] if len(checks) == 1 else _check_all(checks)
    return _hide_value(found) if schema.get("writeOnly") else found


def check(value: object, schema: Schema) -> None:
    """Refuse what is not as the schema says. For values that are checked once; a route keeps the compiled check."""
    refuse(compile_schema(schema)(value))


def refuse(fault: Fault | None) -> None:
    if fault:
        raise HttpError(400, fault.phrase, hint=Phrase("body.see_document"))


def compile_query(schemas: Mapping[str, Schema]) -> Callable[[bytes], dict[str, Any]]:
    """A function that reads what follows the `?`: each parameter known, once, of its type and in its range, and
    the defaults of those that are not given."""
    defaults = {name: schema["default"] for name, schema in schemas.items() if "default" in schema}
    checks = {name: compile_schema(schema) for name, schema in schemas.items()}
    kinds = {name: schema.get("type", "string") for name, schema in schemas.items()}
    hint = Phrase("query.known", known=sorted(schemas)) if schemas else Phrase("query.none_known")

    def read(raw: bytes) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, text in _read_pairs(raw) if raw else ():
            if name not in checks:
                raise HttpError(400, "query.unknown", hint=hint, name=format_value(name, SHOWN_CHARACTERS))
            if name in found:
                raise HttpError(400, "query.repeated", name=name)
            if "\0" in text:
                raise HttpError(400, "query.null_character", name=name)
            found[name] = _read_parameter(text, kinds[name])
            if fault := checks[name](found[name]):
                refuse(fault.under(name))
        return {**defaults, **found}

    return read


def read_query(raw: bytes, schemas: Mapping[str, Schema]) -> dict[str, Any]:
    """The same, for a query string that is read once."""
    return compile_query(schemas)(raw)


def _read_pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise HttpError(400, "query.unreadable", limit=MAX_PARAMETERS) from None


def _read_parameter(text: str, kind: str) -> Any:
    """A parameter as the type that its schema names. Other text stays as it is, for the check to refuse."""
    if kind == "integer" and _WHOLE.fullmatch(text):
        return int(text)
    if kind == "boolean":
        return _SWITCHES.get(text, text)
    return text


def _hide_value(inner: Check) -> Check:
    """A secret is not repeated in the error, even when it has the wrong form."""

    def hidden(value: Any) -> Fault | None:
        fault = inner(value)
        wanted = fault.values.get("wanted", TYPES["string"]) if fault else None
        return Fault("body.wrong_secret", {"wanted": wanted}, fault.path) if fault else None

    return hidden


def _check_all(checks: Sequence[Check]) -> Check:
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
"""What JSON is read as. Exactly these types: True is not 1."""


def _check_type(names: Sequence[str]) -> Check:
    kinds = frozenset(kind for name in names for kind in _KINDS[name])
    wanted = _either(TYPES[name] for name in names)
    if tuple(names) == ("string",):
        return lambda value: None if type(value) is str and value.isascii() else _check_text(value, wanted)
    if float not in kinds:
        return lambda value: None if type(value) in kinds else _unexpected(value, wanted)
    return lambda value: (
        None
        if type(value) in kinds and (type(value) is not float or math.isfinite(value))
        else _unexpected(value, wanted)
    )


def _check_text(value: Any, wanted: Phrase) -> Fault | None:
    return _check_unicode(value) if type(value) is str else _unexpected(value, wanted)


def _check_fields(schema: Schema, *, alone: bool) -> Check:
    """The fields of an object; `alone` when it may be nothing else."""
    properties = {name: compile_schema(inner) for name, inner in schema.get("properties", {}).items()}
    required: Sequence[str] = schema.get("required", ())
    more = schema.get("additionalProperties", True)
    other = compile_schema(cast(Schema, more)) if isinstance(more, Mapping) else _check_any if more else None
    known = sorted(properties)
    unknown_code = "body.unknown_field" if known else "body.unexpected_field"

    def fields(value: Any) -> Fault | None:
        if type(value) is not dict:
            return _unexpected(value, TYPES["object"]) if alone else None
        given = cast("dict[str, Any]", value)
        for name in required:
            if name not in given:
                return Fault("body.incomplete", {"field": name})
        for name, inner in given.items():
            here = properties.get(name, other)
            if here is None:
                return Fault(unknown_code, {"field": format_value(name, SHOWN_CHARACTERS), "known": known})
            if fault := here(inner) or (None if name in properties else _check_unicode(name)):
                return fault.under(f".{format_value(name, SHOWN_CHARACTERS)[1:-1]}")
        return None

    return fields


def _check_any(value: Any, depth: int = 0) -> Fault | None:
    """Anything that JSON has, as long as it can be kept and sent again."""
    if isinstance(value, str):
        return _check_unicode(value)
    if isinstance(value, float) and not math.isfinite(value):
        return _unexpected(value, Phrase("schema.finite"))
    if depth > MAX_DEPTH:
        return Fault("body.value_too_deep", {"limit": MAX_DEPTH})
    if isinstance(value, list):
        for place, each in enumerate(cast("list[Any]", value)):
            if fault := _check_any(each, depth + 1):
                return fault.under(f"[{place}]")
    if isinstance(value, dict):
        for name, each in cast("dict[str, Any]", value).items():
            if fault := _check_unicode(name) or _check_any(each, depth + 1):
                return fault.under(f".{format_value(name, SHOWN_CHARACTERS)[1:-1]}")
    return None


def _check_unicode(value: Any) -> Fault | None:
    """Half of a surrogate pair can be written in JSON but is not text."""
    if not isinstance(value, str) or value.isascii():
        return None
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return Fault("body.lone_surrogate", {"sign": f"U+{ord(value[error.start]):04X}"})
    return None


def _check_any_of(schemas: Sequence[Schema]) -> Check:
    checks = [compile_schema(schema) for schema in schemas]

    def one_of(value: Any) -> Fault | None:
        faults: list[Fault] = []
        for each in checks:
            fault = each(value)
            if fault is None:
                return None
            faults.append(fault)
        meant = max(faults, key=lambda fault: (len(fault.path), fault.code != "body.wrong_value"))
        if meant.path or meant.code != "body.wrong_value":
            return meant
        return _unexpected(value, _either(cast("Phrase", fault.values["wanted"]) for fault in faults))

    return one_of


def _check_items(schema: Schema) -> Check:
    each = compile_schema(schema)

    def items(value: Any) -> Fault | None:
        if isinstance(value, list):
            for place, one in enumerate(cast("list[Any]", value)):
                if fault := each(one):
                    return fault.under(f"[{place}]")
        return None

    return items


def _check_enum(known: Sequence[object]) -> Check:
    wanted = Phrase("schema.choice", choices=["null" if one is None else str(one) for one in known])
    kinds = [(type(one), one) for one in known]  # True is not 1 here
    return lambda value: None if (type(value), value) in kinds else _unexpected(value, wanted)


def _check_size(kind: type, most: bool, code: str, one: str = "") -> Callable[[int], Check]:
    """`code` says how many are wanted; `one` says it where one is."""

    def make(limit: int) -> Check:
        wanted = Phrase(one if one and limit == 1 else code, limit=limit)

        def sized(value: Any) -> Fault | None:
            size = len(cast("Sized", value)) if isinstance(value, kind) else limit
            if size <= limit if most else size >= limit:
                return None
            return Fault("body.wrong_size" if size else "body.empty", {"size": size, "wanted": wanted})

        return sized

    return make


def _check_bound(most: bool) -> Callable[[float], Check]:
    def make(limit: float) -> Check:
        wanted = Phrase("schema.at_most" if most else "schema.at_least", limit=limit)

        def bound(value: Any) -> Fault | None:
            if isinstance(value, bool) or not isinstance(value, int | float):
                return None
            return None if (value <= limit if most else value >= limit) else _unexpected(value, wanted)

        return bound

    return make


def _check_pattern(text: str) -> Check:
    found, wanted = re.compile(text), Phrase("schema.form", pattern=text)
    return lambda value: None if not isinstance(value, str) or found.search(value) else _unexpected(value, wanted)


_MAKERS: dict[str, Callable[[Any], Check]] = {
    "const": lambda value: _check_enum([value]),
    "enum": _check_enum,
    "minLength": _check_size(str, False, "schema.characters_at_least", "schema.one_character"),
    "maxLength": _check_size(str, True, "schema.characters_at_most"),
    "pattern": _check_pattern,
    "minimum": _check_bound(False),
    "maximum": _check_bound(True),
    "minItems": _check_size(list, False, "schema.entries_at_least", "schema.one_entry"),
    "maxItems": _check_size(list, True, "schema.entries_at_most"),
    "maxProperties": _check_size(dict, True, "schema.fields_at_most"),
    "items": _check_items,
    "anyOf": _check_any_of,
}
