"""A typed Python function as a JSON schema, and what is wrong with arguments that a model wrote for one.

Pure: no call is made here. A type that has no schema is refused by name; arguments are checked and never changed.
"""

import inspect
import json
import math
import types
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NotRequired, Required, Union, cast, get_args, get_origin, get_type_hints
from typing import is_typeddict as is_typed_dict

from lamina.errors import ToolError, shown

PLAIN: dict[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),),
    "array": (list,), "object": (dict,),
}  # fmt: skip
HINT = "use str, int, float, bool, list[…], dict[str, …], Literal, a TypedDict, or one of them `| None`"
MAX_PROBLEMS = 8
Schema = dict[str, Any]


def parameters_of(function: Callable[..., Any], name: str) -> Schema:
    """The schema of a function's parameters. One that has none is refused, with its name and its type."""
    try:
        signature = inspect.signature(function)
        hints = get_type_hints(_written(function), include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise ToolError(
            f"the tool {name} has a signature that cannot be read: {error}", hint="give each parameter a type"
        ) from None
    properties: Schema = {}
    for parameter in signature.parameters.values():
        where = f"the parameter {parameter.name} of the tool {name}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ToolError(f"{where} has no name that a model could give: {parameter}", hint="name each parameter")
        if parameter.name not in hints:
            raise ToolError(f"{where} has no type", hint=HINT)
        schema = schema_of(hints[parameter.name], where)
        if parameter.default is not parameter.empty and _is_json(parameter.default):
            schema["default"] = parameter.default
        properties[parameter.name] = schema
    required = [each.name for each in signature.parameters.values() if each.default is each.empty]
    return _object(properties, required)


def schema_of(hint: Any, where: str) -> Schema:
    """The schema of a type; `where` is whose type it is, for the error."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in PLAIN:
        return {"type": PLAIN[hint]}
    if hint is Any:
        return {}
    if origin is Annotated:
        said = next((each for each in inner[1:] if isinstance(each, str)), "")
        return schema_of(inner[0], where) | ({"description": said} if said else {})
    if origin is Literal and all(isinstance(each, str | int | None) for each in inner):
        kinds = {PLAIN[type(each)] for each in inner}
        return {"enum": list(inner)} | ({"type": kinds.pop()} if len(kinds) == 1 else {})
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(each, where) for each in inner]}
    if origin is list:
        return {"type": "array", "items": schema_of(inner[0], where)}
    if origin is dict and inner[0] is str:
        return {"type": "object", "additionalProperties": schema_of(inner[1], where)}
    if origin in (Required, NotRequired):
        return schema_of(inner[0], where)
    if is_typed_dict(hint):
        fields = get_type_hints(hint, include_extras=True)
        properties = {key: schema_of(each, f"{key} of {where}") for key, each in fields.items()}
        return _object(properties, [key for key in fields if key in hint.__required_keys__])
    raise ToolError(f"{where} has a type without a schema: {shown(hint)}", hint=HINT)


def _object(properties: Schema, required: list[str]) -> Schema:
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": required} if required else {})


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def description_of(function: Callable[..., Any]) -> str:
    return inspect.getdoc(_written(function)) or ""


def _written(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that somebody wrote: behind a partial one, or of an object that can be called."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return function if inspect.isroutine(function) else type(function).__call__


def parsed(text: str) -> tuple[dict[str, Any], str]:
    """The arguments that a model wrote, and what is wrong with them as JSON; nothing at all is an empty object."""
    try:
        value: Any = json.loads(text or "{}", parse_constant=_no_number, object_pairs_hook=_each_once)
        text.encode()
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return {}, f"they hold half a surrogate pair at character {error.start}, which is no text"
    except (ValueError, RecursionError) as error:
        return {}, f"they are no JSON: {str(error) or 'nested too deep'}"
    if not isinstance(value, dict):
        return {}, f"they are a JSON {_kind(value)}, not an object"
    return cast(dict[str, Any], value), ""


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number in JSON")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):  # readers disagree on which one counts, and one of them is shown to people
        names = [name for name, _ in pairs]
        raise ValueError(f"{shown(next(name for name in names if names.count(name) > 1))} is there twice")
    return found


def problems(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    """What does not fit, each with its name and value. Keywords that our schemas never use are left alone."""
    found: list[str] = []
    for problem in _misfits(schema, arguments, ""):
        found.append(problem)
        if len(found) == MAX_PROBLEMS:
            return [*found, "there may be more"]
    return found


def _misfits(schema: Mapping[str, Any], value: Any, where: str) -> Iterator[str]:
    name = where or "the arguments"
    choices: Any = schema.get("anyOf")
    if isinstance(choices, list):
        forms = [cast(Schema, each) for each in cast(list[Any], choices) if isinstance(each, dict)]
        tried = [list(_misfits(each, value, where)) for each in forms]
        if tried and all(tried):  # of a form that is of the right kind, what is wrong inside says more
            inside = [each for form, each in zip(forms, tried, strict=True) if _of_kind(form, value)]
            yield from inside[0] if inside else (f"{name} {_wants(schema, value)}",)
        return
    if not _of_kind(schema, value):
        yield f"{name} {_wants(schema, value)}"
        return
    enum: Any = schema.get("enum")
    if isinstance(enum, list) and not any(_equal(value, each) for each in cast(list[Any], enum)):
        yield f"{name} must be one of {', '.join(map(_json, cast(list[Any], enum)))}, not {shown(value)}"
    if isinstance(value, dict):
        yield from _misfits_of_object(schema, cast(dict[str, Any], value), where)
    items: Any = schema.get("items")
    if isinstance(value, list) and isinstance(items, dict):
        for number, each in enumerate(cast(list[Any], value)):
            yield from _misfits(cast(Schema, items), each, f"{where}[{number}]")


def _misfits_of_object(schema: Mapping[str, Any], value: dict[str, Any], where: str) -> Iterator[str]:
    prefix = f"{where}." if where else ""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    for name in schema.get("required") or ():
        if name not in value:
            yield f"{prefix}{name} is missing"
    rest: Any = schema.get("additionalProperties", True)
    for name, each in value.items():
        if name in properties:
            inner = properties[name]
            yield from _misfits(cast(Schema, inner), each, f"{prefix}{name}") if isinstance(inner, dict) else ()
        elif rest is False:
            known = ", ".join(properties) or "none"
            yield f"{prefix}{name if name.isidentifier() else shown(name)} is unknown (known: {known})"
        elif isinstance(rest, dict):
            yield from _misfits(cast(Schema, rest), each, f"{prefix}{name}")


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    kind: Any = schema.get("type")
    named = cast(list[Any], kind) if isinstance(kind, list) else [kind]
    return [each for each in named if each in KINDS]


def _of_kind(schema: Mapping[str, Any], value: Any) -> bool:
    kinds = _kinds(schema)
    return not kinds or any(_is(value, kind) for kind in kinds)


def _wants(schema: Mapping[str, Any], value: Any) -> str:
    choices = cast(list[Schema], schema.get("anyOf") or [schema])
    kinds = list(dict.fromkeys(kind for each in choices for kind in _kinds(each)))
    return f"must be of type {' or '.join(kinds) or 'another kind'}, not {_kind(value)}: {shown(value)}"


def _is(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, KINDS[kind]) and not (isinstance(value, float) and not math.isfinite(value))


def _equal(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _kind(value: object) -> str:
    return next((kind for kind in ("boolean", "integer", *KINDS) if _is(value, kind)), type(value).__name__)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
