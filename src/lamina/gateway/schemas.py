"""Bodies and queries of requests as typed values, and the OpenAPI document of the same types.

JSON is read by the standard library, strictly: what is ambiguous, such as a name that appears twice, is refused with
its place. A long body is read step by step with a limit on how many values it holds: in one go it would keep the
interpreter, and so the event loop, for seconds. msgspec then checks the value; where it refuses one, the fault is found
again in the JSON Schema of the type, so that the error is a code with values.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta

from lamina import __version__
from lamina.errors import format_value
from lamina.gateway.handlers import JSON, MAX_ID_CHARACTERS, ErrorForm, HttpError, Route
from lamina.gateway.sse import MEDIA, NAMES
from lamina.text.json import AmbiguousJsonError, JsonReader, read_strict_json
from lamina.text.messages import Phrase, Value
from lamina.text.unicode import MAX_LOOP_SIZE

Schema = Mapping[str, Any]
MAX_DEPTH = 64
MAX_VALUES = 200_000
"""Texts, numbers, lists, objects and names in one long body."""
SLICE_BYTES = MAX_LOOP_SIZE
"""What is processed in one go, and the size from which a body is long."""
MAX_PARAMETERS = 50
VALUE_CHARACTERS = 60
"""Of a wrong value in an error."""


class Model(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A JSON object with these fields and no others."""


def many(name: str, kind: type[Model], others: Mapping[str, Any] | None = None) -> type[msgspec.Struct]:
    """A JSON object with a list in it: there is always room for another field beside the list."""
    fields = [(name, list[kind]), *(others or {}).items()]
    return msgspec.defstruct(f"{kind.__name__.removesuffix('Json')}List", fields, bases=(Model,), kw_only=True)


ModelT = TypeVar("ModelT", bound=Model)


def from_record(kind: type[ModelT], record: object) -> ModelT:
    """The fields that a record has, as they are: `msgspec.convert` would copy them, however long they are."""
    return kind(**{name: getattr(record, name) for name in kind.__struct_fields__ if hasattr(record, name)})


# Strict JSON


def read_json(pieces: bytes | Sequence[bytes], media: str) -> Any:
    """The value of a body, which may come in the pieces in which it was received."""
    kind = media.partition(";")[0].strip().lower()
    if kind != JSON and not (kind.startswith("application/") and kind.endswith("+json")):
        code = "body.not_json_type" if media else "body.no_type"
        raise HttpError(415, code, hint="body.send_json_type", kind="media", media=format_value(media))
    text = _decode_utf8([pieces] if isinstance(pieces, bytes) else pieces)
    try:
        return _read_short(text) if len(text) <= SLICE_BYTES else _BodyReader(text, SLICE_BYTES).read()
    except json.JSONDecodeError as error:
        raise HttpError(
            400, "body.not_json", hint="body.send_json", why=error.msg, line=error.lineno, column=error.colno
        ) from None
    except AmbiguousJsonError as error:
        raise HttpError(400, Phrase("body.not_strict_json", why=error.phrase), hint="body.send_json") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        raise HttpError(400, "body.number_too_long", hint="body.send_json") from None


def _decode_utf8(pieces: Sequence[bytes]) -> str:
    decoder, texts, done = codecs.getincrementaldecoder("utf-8")(), list[str](), 0
    try:
        for piece in pieces:
            for at in range(0, len(piece), SLICE_BYTES):
                texts.append(decoder.decode(piece[at : at + SLICE_BYTES]))
                done += min(SLICE_BYTES, len(piece) - at)
        texts.append(decoder.decode(b"", True))
    except UnicodeDecodeError as error:
        held = len(decoder.getstate()[0])  # bytes of a character that began in the slice before
        byte = f"{error.object[error.start]:02x}"
        raise HttpError(400, "body.not_utf8", position=done - held + error.start, byte=byte) from None
    return "".join(texts)


def _read_short(text: str) -> Any:
    value = read_strict_json(text)
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_deep(value):
        raise _too_deep()
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise _lone_surrogate(error) from None
    return value


def _too_deep() -> HttpError:
    return HttpError(400, "body.too_deep", limit=MAX_DEPTH)


def _lone_surrogate(error: UnicodeEncodeError) -> HttpError:
    return HttpError(400, "body.surrogate", sign=f"U+{ord(error.object[error.start]):04X}")


def _is_deep(value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for each in level:
            below += each.values() if isinstance(each, dict) else each  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        level = [each for each in below if isinstance(each, dict | list)]
        if not level:
            return False
    return True


class _BodyReader(JsonReader):
    """Refuses step by step what a short body is refused for, and counts the values."""

    _values = 0

    def check_depth(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise _too_deep()

    def check_value(self) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            raise HttpError(413, "body.too_many_values", kind="too_large", limit=MAX_VALUES)

    def check_text(self, piece: str) -> None:
        try:
            piece.encode()
        except UnicodeEncodeError as error:
            raise _lone_surrogate(error) from None


# Values as types


def compile_type(kind: Any) -> Callable[[Any], Any]:
    """A function that converts a plain value to a type, or refuses it with the place of the fault."""
    schema, definitions = json_schema(kind)

    def read(value: Any) -> Any:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise _refusal(find_fault(schema, value, definitions), value, error) from None

    return read


def compile_query(kind: type[msgspec.Struct] | None) -> Callable[[bytes], Any]:
    """A function that reads what follows the `?`: each parameter known, once, of its type and in its range."""
    kind = kind or Model
    schemas = field_schemas(kind)
    hint = Phrase("query.known", known=sorted(schemas)) if schemas else Phrase("query.none_known")
    defaults = kind()

    def read(raw: bytes) -> Any:
        if not raw:
            return defaults
        found: dict[str, Any] = {}
        for name, text in _read_pairs(raw):
            if name not in schemas:
                raise HttpError(400, "query.unknown", hint=hint, name=format_value(name, VALUE_CHARACTERS))
            if name in found:
                raise HttpError(400, "query.repeated", name=name)
            if "\0" in text:
                raise HttpError(400, "query.null_character", name=name)
            found[name] = _read_parameter(text, schemas[name].get("type"))
        try:
            return msgspec.convert(found, kind)
        except msgspec.ValidationError as error:
            faults = (find_fault(schemas[name], value, {}, f".{name}") for name, value in found.items())
            raise _refusal(next(filter(None, faults), None), found, error) from None

    return read


def _read_pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise HttpError(400, "query.unreadable", limit=MAX_PARAMETERS) from None


_WHOLE = re.compile(r"-?[0-9]{1,18}")
_SWITCHES = {"true": True, "1": True, "false": False, "0": False}


def _read_parameter(text: str, kind: str | None) -> Any:
    """A parameter as the type that its schema names. Other text stays as it is and is refused by the check."""
    if kind == "integer" and _WHOLE.fullmatch(text):
        return int(text)
    return _SWITCHES.get(text, text) if kind == "boolean" else text


def json_schema(kind: Any, place: str = "#/$defs/{name}") -> tuple[Schema, Mapping[str, Schema]]:
    """The JSON Schema of a type, and those that it refers to."""
    (schema,), definitions = msgspec.json.schema_components([kind], ref_template=place)
    return schema, definitions


def field_schemas(kind: type[msgspec.Struct] | None) -> Mapping[str, Schema]:
    """The JSON Schema of each field of a query. None is the default of one that may be absent, and cannot be given."""
    found: Mapping[str, Schema] = json_schema(kind)[1][kind.__name__]["properties"] if kind else {}
    null, schemas = {"type": "null"}, dict[str, Schema]()
    for name, schema in found.items():
        forms = [form for form in schema.get("anyOf", ()) if form != null]
        is_optional = len(forms) == 1 and null in schema["anyOf"]
        plain = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
        schemas[name] = plain | forms[0] if is_optional else schema
    return schemas


# What is wrong with a value


class Fault(NamedTuple):
    where: str
    code: str
    values: Mapping[str, Value]


KINDS: dict[str, tuple[tuple[type, ...], Phrase]] = {
    "null": ((type(None),), Phrase("schema.null")), "boolean": ((bool,), Phrase("schema.boolean")),
    "integer": ((int,), Phrase("schema.integer")), "number": ((int, float), Phrase("schema.number")),
    "string": ((str,), Phrase("schema.string")), "array": ((list,), Phrase("schema.array")),
    "object": ((dict,), Phrase("schema.object")),
}  # fmt: skip
"""What JSON is read as, exactly: True is not 1. And how each is called."""
SIZES: dict[str, tuple[type, bool, str, str]] = {
    "minLength": (str, False, "schema.characters_at_least", "schema.one_character"),
    "maxLength": (str, True, "schema.characters_at_most", ""),
    "minItems": (list, False, "schema.entries_at_least", "schema.one_entry"),
    "maxItems": (list, True, "schema.entries_at_most", ""),
    "maxProperties": (dict, True, "schema.fields_at_most", ""),
}
"""Of which type, whether it is an upper limit, and what is expected: several, or one."""


def _refusal(fault: Fault | None, value: Any, error: msgspec.ValidationError) -> HttpError:
    fault = fault or _wrong_value("", value, Phrase(str(error)))
    where = fault.where.removeprefix(".") or Phrase("body.name")
    return HttpError(400, Phrase(fault.code, where=where, **fault.values), hint="body.see_document")


def _wrong_value(where: str, value: object, wanted: Phrase) -> Fault:
    return Fault(where, "body.wrong_value", {"value": format_value(value, VALUE_CHARACTERS), "wanted": wanted})


def find_fault(schema: Schema, value: Any, definitions: Mapping[str, Schema], where: str = "") -> Fault | None:
    """The first place of a value that does not fit; a secret is not repeated, even when it has the wrong form."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    fault = _find_fault(schema, value, definitions, where)
    if fault and schema.get("writeOnly"):
        return Fault(where, "body.wrong_secret", {"wanted": fault.values.get("wanted")})
    return fault


def _find_fault(schema: Schema, value: Any, definitions: Mapping[str, Schema], where: str) -> Fault | None:
    if "discriminator" in schema and isinstance(value, dict):
        name, forms = schema["discriminator"]["propertyName"], schema["discriminator"]["mapping"]
        tag: Any = cast("Mapping[str, Any]", value).get(name)
        if isinstance(tag, str) and tag in forms:
            return find_fault({"$ref": forms[tag]}, value, definitions, where)
        return _wrong_value(f"{where}.{name}", tag, Phrase("schema.choice", choices=list(forms)))
    if "anyOf" in schema:
        return _fault_in_any(schema["anyOf"], value, definitions, where)
    types, wanted = KINDS.get(schema.get("type", ""), ((), Phrase("")))
    if types and type(value) not in types:
        return _wrong_value(where, value, wanted)
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if choices is not None and (type(value), value) not in [(type(one), one) for one in choices]:
        return _wrong_value(where, value, Phrase("schema.choice", choices=[str(one) for one in choices]))
    for name, (kind, is_upper, several, one) in SIZES.items():
        if name in schema and isinstance(value, kind):
            size, limit = len(cast("Sequence[Any]", value)), schema[name]
            if size > limit if is_upper else size < limit:
                wanted = Phrase(one if one and limit == 1 else several, limit=limit)
                return Fault(where, "body.wrong_size" if size else "body.empty", {"size": size, "wanted": wanted})
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        return _wrong_value(where, value, Phrase("schema.form", pattern=schema["pattern"]))
    if isinstance(value, int | float) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        is_low = value < schema.get("minimum", value)
        code, limit = ("schema.at_least", "minimum") if is_low else ("schema.at_most", "maximum")
        return _wrong_value(where, value, Phrase(code, limit=schema[limit]))
    if isinstance(value, list) and "items" in schema:
        entries = enumerate(cast("list[Any]", value))
        return _first(find_fault(schema["items"], one, definitions, f"{where}[{place}]") for place, one in entries)
    return _fault_in_fields(schema, cast("Any", value), definitions, where) if isinstance(value, dict) else None


def _first(faults: Iterable[Fault | None]) -> Fault | None:
    return next(filter(None, faults), None)


def _fault_in_fields(
    schema: Schema, value: Mapping[str, Any], definitions: Mapping[str, Schema], where: str
) -> Fault | None:
    fields: Mapping[str, Schema] = schema.get("properties", {})
    others: Any = schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            return Fault(where, "body.incomplete", {"field": name})
    for name, each in value.items():
        if name not in fields and others is False:
            known, given = sorted(fields), format_value(name, VALUE_CHARACTERS)
            return Fault(
                where, "body.unknown_field" if known else "body.unexpected_field", {"field": given, "known": known}
            )
        inner: Schema = fields.get(name) or (cast("Schema", others) if isinstance(others, Mapping) else {})
        if fault := find_fault(inner, each, definitions, f"{where}.{format_value(name, VALUE_CHARACTERS)[1:-1]}"):
            return fault
    return None


def _fault_in_any(schemas: Sequence[Schema], value: Any, definitions: Mapping[str, Schema], where: str) -> Fault | None:
    """Of several forms, the deepest fault is that of the form that was meant."""
    faults: list[Fault] = []
    for schema in schemas:
        fault = find_fault(schema, value, definitions, where)
        if fault is None:
            return None
        faults.append(fault)
    meant = max(faults, key=lambda fault: (len(fault.where), fault.code != "body.wrong_value"))
    if meant.where != where or meant.code != "body.wrong_value":
        return meant
    wanted = list(dict.fromkeys(cast("Phrase", fault.values["wanted"]) for fault in faults))
    if KINDS["number"][1] in wanted:
        wanted = [one for one in wanted if one != KINDS["integer"][1]]
    first, *others = wanted
    for other in others:
        first = Phrase("schema.either", first=first, second=other)
    return _wrong_value(where, value, first)


# The OpenAPI document

Count = Annotated[int, Meta(ge=0)]
Number = int | float
Time = Annotated[Number, Meta(description="seconds since 1970, UTC")]
OptionalTime = Annotated[Number | None, Meta(description="seconds since 1970, UTC; null while there is none")]


class PhraseJson(Model):
    code: Annotated[
        str, Meta(description="what to compare; web/messages.en.json and messages.zh.json have all of them")
    ]
    values: Annotated[dict[str, Any], Meta(description="what the text has slots for")]
    text: Annotated[str, Meta(description="in English")]


class ErrorDetails(Model):
    message: Annotated[str, Meta(description="what failed, in English")]
    hint: Annotated[str, Meta(description="what to do next, in English")]
    type: Annotated[str, Meta(description="the kind of error")]
    code: Annotated[str, Meta(description="the error itself: compare this; web/messages.en.json has all of them")]
    values: Annotated[dict[str, Any], Meta(description="what the text of the code has slots for")]
    next: Annotated[PhraseJson | None, Meta(description="the hint as a code with values")]


class ErrorJson(Model):
    error: ErrorDetails


class OpenAIErrorDetails(Model):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorJson(Model):
    error: OpenAIErrorDetails


class AnthropicErrorDetails(Model):
    type: str
    message: str


class AnthropicErrorJson(Model):
    type: Literal["error"]
    error: AnthropicErrorDetails


class TurnEventJson(msgspec.Struct):
    id: Annotated[str, Meta(description="where to go on after it: give it back as Last-Event-ID")]
    event: Annotated[str, Meta(extra_json_schema={"enum": list(NAMES.values())})]
    data: Annotated[str, Meta(description="the event's fields as JSON; of a text its `text`, of the end its `state`")]


ERRORS: Mapping[ErrorForm, type[Model]] = {
    "lamina": ErrorJson, "openai": OpenAIErrorJson, "anthropic": AnthropicErrorJson,
}  # fmt: skip
STATUS_TEXTS = {
    400: "something in the request is not as it should be; the message says what and where",
    401: "no credential, or one that is not known",
    403: "the credential may not do this, or the request comes from elsewhere",
    404: "there is no such thing for this principal",
    409: "it cannot be done at the moment",
    413: "the body is too large",
    415: "the body is not JSON",
    429: "too many requests, or the day's tokens are used up; Retry-After says how long to wait",
    502: "the model could not be reached, or did not answer as it should",
    503: "the store is busy or full, or the model asks to wait",
    504: "the model stopped answering",
}
PARAMETER = re.compile(r"\{(\w+)\}")
INTRODUCTION = (
    "lamina's own API. Every request but a few names a key, `Authorization: Bearer …`; all that it sees and changes is "
    "its user's. Ids are opaque. Times are seconds since 1970, UTC."
)


class _Document:
    """What routes take and give, for programs and people. A class is described once, among the components."""

    def __init__(self) -> None:
        self.schemas: dict[str, Schema] = {}

    def schema_of(self, kind: Any) -> Schema:
        schema, found = json_schema(kind, "#/components/schemas/{name}")
        for name, one in found.items():
            if self.schemas.setdefault(name, one) != one:
                raise ValueError(f"two types are named {name!r}")
        return schema

    def operation(self, route: Route) -> dict[str, Any]:
        path = PARAMETER.sub(r"by_\1", route.path)
        name = re.sub(r"\W+", "_", f"{route.method.lower()}{path}").strip("_")
        made: dict[str, Any] = {"operationId": name, "summary": route.summary, "tags": list(route.tags)}
        if parameters := self._parameters(route):
            made["parameters"] = parameters
        if route.body is not None:
            content: dict[str, Any] = {"schema": self.schema_of(route.body)}
            if route.example is not None:
                content["example"] = route.example
            made["requestBody"] = {"required": not route.bare, "content": {JSON: content}}
        made["responses"] = self._responses(route)
        made["security"] = [{"key": []}, {"x-api-key": []}] if route.scope else []
        if route.scope:
            made["description"] = f"Needs a key with the scope `{route.scope}`."
        return made

    def _parameters(self, route: Route) -> list[dict[str, Any]]:
        """In the path, in the query and in headers."""
        text = {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARACTERS}
        names = PARAMETER.findall(route.path)
        found = [{"name": name, "in": "path", "required": True, "schema": text} for name in names]
        headers = {name: self.schema_of(kind) for name, kind in route.headers.items()}
        for place, schemas in (("query", field_schemas(route.query)), ("header", headers)):
            for name, schema in schemas.items():
                one: dict[str, Any] = {"name": name, "in": place, "required": False, "schema": schema}
                found.append(one | ({"description": schema["description"]} if "description" in schema else {}))
        return found

    def _responses(self, route: Route) -> dict[str, Any]:
        answer: dict[str, Any] = {"description": route.summary}
        if route.status != 204:
            schema: Schema = self.schema_of(route.answer) if route.answer is not None else {}
            answer["content"] = {route.media: {"schema": schema if route.media == JSON else {"type": "string"}}}
        made = {str(route.status): answer}
        if route.streams:
            events = made.setdefault("200", {"description": "the events of the turn, as they come"})
            event: Schema = self.schema_of(TurnEventJson) if route.form == "lamina" else {}
            events.setdefault("content", {})[MEDIA] = {"schema": event}
            if route.method == "GET":
                made["204"] = {"description": "there is nothing behind this position, and there never will be"}
        forms = [self.schema_of(ERRORS[route.form])]
        if route.path.startswith("/v1/models"):  # both clients ask here
            forms.append(self.schema_of(AnthropicErrorJson))
        error = {"content": {JSON: {"schema": forms[0] if len(forms) == 1 else {"anyOf": forms}}}}
        return made | {str(status): {"description": STATUS_TEXTS[status], **error} for status in error_statuses(route)}


def error_statuses(route: Route) -> list[int]:
    """The errors that a route may answer with."""
    found = {400, 429, 503}
    found |= {401, 403} if route.scope else {401} if route.method == "POST" else set()
    found |= {404} if PARAMETER.search(route.path) or route.path.startswith("/v1/") else set()  # a model, a session
    found |= {413, 415} if route.method in ("POST", "PUT", "PATCH") else set()
    found |= {409} if route.scope in ("chat", "write") or "turn_id" in route.path else set()
    found |= {502, 504} if route.scope == "chat" else set()
    return sorted(found)


def openapi_document(routes: Sequence[Route]) -> dict[str, Any]:
    document, paths = _Document(), dict[str, dict[str, Any]]()
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = document.operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "lamina", "version": __version__, "description": INTRODUCTION},
        "paths": paths,
        "components": {
            "schemas": document.schemas,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "a key made by `lamina keys`"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }
