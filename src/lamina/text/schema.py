"""The one checker of JSON schemas: what does not fit, as the models and people who wrote a value read it, and as a
function that only says whether a value fits.

Pure. Values are checked and never changed. Keywords that our schemas never use are left alone.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from lamina.errors import format_value
from lamina.text.messages import Phrase

KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),),
    "array": (list,), "object": (dict,),
}  # fmt: skip
MAX_PROBLEMS = 8
Schema = dict[str, Any]
Check = Callable[[Any], bool]


def find_problems(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[Phrase]:
    """What does not fit, each with its name and value. Keywords that our schemas never use are left alone."""
    found: list[Phrase] = []
    for problem in _find_misfits(schema, arguments, ""):
        found.append(problem)
        if len(found) == MAX_PROBLEMS:
            return [*found, Phrase("arguments.maybe_more")]
    return found


def _find_misfits(schema: Mapping[str, Any], value: Any, where: str) -> Iterator[Phrase]:
    name = where or Phrase("arguments.themselves")
    choices: Any = schema.get("anyOf")
    if isinstance(choices, list):
        forms = [cast(Schema, each) for each in cast(list[Any], choices) if isinstance(each, dict)]
        tried = [list(_find_misfits(each, value, where)) for each in forms]
        if tried and all(tried):  # of a form that is of the right kind, what is wrong inside says more
            inside = [each for form, each in zip(forms, tried, strict=True) if _of_kind(form, value)]
            yield from inside[0] if inside else (_wrong_type(name, schema, value),)
        return
    if not _of_kind(schema, value):
        yield _wrong_type(name, schema, value)
        return
    enum: Any = schema.get("enum")
    if isinstance(enum, list) and not any(_equal(value, each) for each in cast(list[Any], enum)):
        choices = [json.dumps(each, ensure_ascii=False) for each in cast(list[Any], enum)]
        yield Phrase("arguments.not_in_enum", name=name, choices=choices, value=format_value(value))
    if isinstance(value, dict):
        yield from _find_misfits_of_object(schema, cast(dict[str, Any], value), where)
    items: Any = schema.get("items")
    if isinstance(value, list) and isinstance(items, dict):
        for number, each in enumerate(cast(list[Any], value)):
            yield from _find_misfits(cast(Schema, items), each, f"{where}[{number}]")


def _find_misfits_of_object(schema: Mapping[str, Any], value: dict[str, Any], where: str) -> Iterator[Phrase]:
    prefix = f"{where}." if where else ""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    for name in schema.get("required") or ():
        if name not in value:
            yield Phrase("arguments.missing", name=f"{prefix}{name}")
    rest: Any = schema.get("additionalProperties", True)
    for name, each in value.items():
        if name in properties:
            inner = properties[name]
            yield from _find_misfits(cast(Schema, inner), each, f"{prefix}{name}") if isinstance(inner, dict) else ()
        elif rest is False:
            code = "arguments.unknown" if properties else "arguments.none_known"
            name = f"{prefix}{name if name.isidentifier() else format_value(name)}"
            yield Phrase(code, name=name, known=list(properties))
        elif isinstance(rest, dict):
            yield from _find_misfits(cast(Schema, rest), each, f"{prefix}{name}")


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    kind: Any = schema.get("type")
    named = cast(list[Any], kind) if isinstance(kind, list) else [kind]
    return [each for each in named if each in KINDS]


def _of_kind(schema: Mapping[str, Any], value: Any) -> bool:
    kinds = _kinds(schema)
    return not kinds or any(_is(value, kind) for kind in kinds)


def _wrong_type(name: str | Phrase, schema: Mapping[str, Any], value: Any) -> Phrase:
    choices = cast(list[Schema], schema.get("anyOf") or [schema])
    kinds = "|".join(dict.fromkeys(kind for each in choices for kind in _kinds(each)))
    code = "arguments.wrong_type" if kinds else "arguments.fits_no_type"
    return Phrase(code, name=name, types=kinds, type=kind_of(value), value=format_value(value))


def _is(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, KINDS[kind]) and not (isinstance(value, float) and not math.isfinite(value))


def _equal(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def kind_of(value: object) -> str:
    return next((kind for kind in ("boolean", "integer", *KINDS) if _is(value, kind)), type(value).__name__)


# Compiled


def compile_schema(schema: Mapping[str, Any] | Check) -> Check:
    """Whether a value fits, as a function: for values that are checked often, and need no explanation. Where a schema
    cannot say what is wanted, a function takes its place."""
    if callable(schema):
        return schema
    choices = [compile_schema(each) for each in schema.get("anyOf", ())]
    if choices:
        return lambda value: any(check(value) for check in choices)
    if "enum" in schema:
        return lambda value: any(_equal(value, each) for each in schema["enum"])
    kinds = _kinds(schema)
    if len(kinds) > 1:
        checks = [compile_schema({**schema, "type": kind}) for kind in kinds]
        return lambda value: any(check(value) for check in checks)
    kind = kinds[0] if kinds else ""
    if kind == "string":
        longest = schema.get("maxLength", math.inf)
        return lambda value: isinstance(value, str) and len(value) <= longest
    if kind in ("integer", "number"):
        least, most = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        return lambda value: _is(value, kind) and least <= value <= most
    if kind == "array":
        return _compile_array(schema)
    return _compile_object(schema) if kind == "object" else lambda value: not kind or _is(value, kind)


def _compile_array(schema: Mapping[str, Any]) -> Check:
    if "prefixItems" in schema:
        places = [compile_schema(each) for each in schema["prefixItems"]]
        count = len(places)
        return lambda value: (
            isinstance(value, list)
            and len(cast(list[Any], value)) == count
            and all(check(each) for check, each in zip(places, cast(list[Any], value), strict=True))
        )
    items = compile_schema(schema.get("items", {}))
    return lambda value: isinstance(value, list) and all(map(items, cast(list[Any], value)))


def _compile_object(schema: Mapping[str, Any]) -> Check:
    known = {name: compile_schema(each) for name, each in schema.get("properties", {}).items()}
    required = set(schema.get("required", ()))
    rest: Any = schema.get("additionalProperties", {})
    other = compile_schema({"enum": []} if rest is False else rest)

    def fits(value: Any) -> bool:
        if not isinstance(value, dict) or not required <= value.keys():
            return False
        return all(known.get(name, other)(each) for name, each in cast(dict[str, Any], value).items())

    return fits
