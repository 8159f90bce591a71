"""The dearest requests that the API allows, made of its own OpenAPI document: for each route and each field of its
body, query, headers and path, what costs most within the limits. A field that nothing here can fill is an error.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

BODY_BYTES = 20_000_000
"""The gateway's limit of a body."""
HEADER_BYTES = 30_000
METHODS = ("get", "post", "put", "patch", "delete")
TEXT_SHAPES: Mapping[str, str] = {
    "dashes": "-", "letters": "a", "blanks": " ", "lines": "\n", "tags": "<", "closing tags": "</a>", "stars": "**",
    "fences": "```\n", "quotes": '"', "backslashes": "\\", "words": "lorem ipsum ", "sentences": "I am Tom. ",
    "list": "- x\n", "Chinese": "我喜欢茶。", "one sign": "中", "stops": "。", "links": "http://a.b/ ", "digits": "1",
    "dates": "on 2026-11-16 ", "slots": "{{a}}", "brackets": "[](", "braces": "{", "parentheses": "(", "mail": "a@a.",
    "emoji": "😀", "hidden": "\u200b", "combining": "a\u0301", "data": "data:image/png;base64,", "hex": "0a",
    "roles": "\nuser: ", "equals": "a=b; ", "tables": "|-", "headings": "# a\n", "tabs": "\t", "commas": "a,b,",
    "names": "My name is Ann and ", "html": "<b>a</b>&amp;", "secrets": "sk-aaaa ", "paths": "../", "CRLF": "\r\n",
    "CR": "\r", "likes": "I like tea. ",
}  # fmt: skip
PICTURE = "data:image/png;base64,iVBORw0KGgo"
"""The beginning of a picture; what is behind it is base64 of any length."""


def raw_bodies(size: int) -> Mapping[str, Callable[[], bytes]]:
    """Bodies that cost the reader of JSON most, whatever the route."""
    return {
        "a million names": lambda: b"{" + b",".join(b'"%x":1' % n for n in range(min(1_000_000, size // 10))) + b"}",
        "a name a million times": lambda: b"{" + b",".join([b'"a":1'] * (size // 6)) + b"}",
        "numbers": lambda: b"[" + b"1," * (size // 2 - 2) + b"1]",
        "long numbers": lambda: b"[" + (b"1" * 4_000 + b",") * (size // 4_001 - 1) + b"1]",
        "fractions": lambda: b"[" + b"1.5e5," * (size // 6 - 1) + b"1]",
        "empty lists": lambda: b"[" + b"[]," * (size // 3 - 1) + b"[]]",
        "empty objects": lambda: b"[" + b"{}," * (size // 3 - 1) + b"{}]",
        "one level in another": lambda: b"[" * (size // 2) + b"]" * (size // 2),
        "objects in objects": lambda: b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6),
        "64 levels, many times": lambda: b"[" + (b"[" * 60 + b"]" * 60 + b",") * (size // 121 - 1) + b"1]",
        "one text": lambda: b'"' + b"a" * (size - 2) + b'"',
        "a text of escapes": lambda: b'"' + b"\\u00e9" * (size // 6 - 2) + b'"',
        "a text of escaped quotes": lambda: b'"' + b'\\"' * (size // 2 - 2) + b'"',
        "a text of surrogates": lambda: b'"' + b"\\ud83d\\ude00" * (size // 12 - 2) + b'"',
        "half a surrogate at the end": lambda: b'["' + b"a" * (size - 12) + b'\\ud800"]',
        "blanks": lambda: b" " * (size - 2) + b"{}",
        "no end": lambda: b'{"a": "' + b"a" * (size - 8),
        "lines, then nonsense": lambda: b"\n" * (size - 2) + b"x",
        "not UTF-8 at the end": lambda: b'"' + b"a" * (size - 3) + b'\xff"',
        "short texts": lambda: b"[" + b'"a",' * (size // 4 - 1) + b'""]',
    }


@dataclass(frozen=True, slots=True)
class Case:
    """One request, and what it is about."""

    name: str
    method: str
    path: str
    body: Callable[[], bytes] | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    route: str = ""
    field: str = ""


class UnknownFieldError(AssertionError):
    """A route or a field has nothing here that could make it dear."""


@dataclass(frozen=True, slots=True)
class Maker:
    """Requests of one document, with ids that are there for its `{names}`."""

    document: Mapping[str, Any]
    ids: Mapping[str, str]
    size: int = BODY_BYTES

    def cases(self) -> Iterator[Case]:
        for path, operations in self.document["paths"].items():
            for method, operation in operations.items():
                if method not in METHODS:
                    raise UnknownFieldError(f"{method} {path}: an unknown method")
                yield from self._route(method.upper(), path, operation)

    def _route(self, method: str, path: str, operation: Mapping[str, Any]) -> Iterator[Case]:
        route = f"{method} {path}"
        content = operation.get("requestBody", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema")
        example = content.get("application/json", {}).get("example")
        plain = (lambda: json.dumps(example).encode()) if example is not None else None
        parameters = operation.get("parameters", ())
        here = self._here(path, parameters)
        most = {p["name"]: next(iter(self._texts(p["schema"]).values())) for p in parameters if p["in"] == "query"}
        yield Case(f"{route} as it is", method, here, plain, route=route)
        for parameter in parameters:
            yield from self._parameter(route, method, path, parameter, plain, parameters, most)
        if schema is None:
            return
        for name, make in raw_bodies(self.size).items():
            yield Case(f"{route} {name}", method, here, make, route=route, field="body")
        for where, what, make in self._values(schema, example):
            field_name = f"body{where}"
            yield Case(f"{route} {field_name} {what}", method, here, _encoded(make), route=route, field=field_name)

    def _here(self, path: str, parameters: Sequence[Mapping[str, Any]]) -> str:
        for parameter in parameters:
            if parameter["in"] == "path":
                if parameter["name"] not in self.ids:
                    raise UnknownFieldError(f"{path}: nothing is known for {{{parameter['name']}}}")
                path = path.replace(f"{{{parameter['name']}}}", quote(self.ids[parameter["name"]], safe=""))
        return path

    def _parameter(
        self, route: str, method: str, path: str, parameter: Mapping[str, Any], plain: Callable[[], bytes] | None,
        every: Sequence[Mapping[str, Any]], most: Mapping[str, str],
    ) -> Iterator[Case]:  # fmt: skip
        name, place = parameter["name"], parameter["in"]
        here = self._here(path, every)
        for what, text in self._texts(parameter["schema"]).items():
            label = f"{route} {place} {name} {what}"
            if place == "path":
                other = path.replace(f"{{{name}}}", quote(text[:2_000], safe=""))
                yield Case(label, method, self._here(other, every), plain, route=route, field=name)
            elif place == "query":
                others = "".join(f"&{key}={quote(most[key])}" for key in most if key != name and key == "limit")
                yield Case(label, method, f"{here}?{name}={quote(text)}{others}", plain, route=route, field=name)
            elif place == "header":
                ascii_only = text.encode("ascii", "ignore").decode().replace("\n", " ").replace("\r", " ")
                yield Case(label, method, here, plain, {name: ascii_only[:HEADER_BYTES]}, route, name)
            else:
                raise UnknownFieldError(f"{route}: {name} is in {place}")

    def _texts(self, schema: Mapping[str, Any]) -> dict[str, str]:
        """What a parameter may say at most."""
        schema = self._resolved(schema)
        kind = schema.get("type")
        if "enum" in schema:
            return {str(one): str(one) for one in schema["enum"]}
        if kind == "boolean":
            return {"true": "true", "false": "false"}
        if kind == "integer":
            return {"most": str(schema.get("maximum", 10**17)), "least": str(schema.get("minimum", -(10**17)))}
        if kind == "string":
            length = min(schema.get("maxLength", HEADER_BYTES), HEADER_BYTES // 9)
            return {what: (one * (length // len(one) + 1))[:length] for what, one in TEXT_SHAPES.items()}
        raise UnknownFieldError(f"a parameter of the type {kind}")

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        while "$ref" in schema:
            schema = self.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return schema

    def _values(self, schema: Mapping[str, Any], example: Any) -> Iterator[tuple[str, str, Callable[[], Any]]]:
        """For each field its place, what it holds, and the whole body with it."""
        schema = self._resolved(schema)
        for one in schema.get("anyOf", ()):
            yield from self._values(one, example)
        kinds = schema.get("type", ())
        kinds = [kinds] if isinstance(kinds, str) else list(kinds)
        if not schema.keys() - {"default", "description"}:
            kinds = ["string", "number", "array", "object"]  # the document allows anything
        known = {"string", "array", "object", "integer", "number", "boolean", "null"}
        if set(kinds) - known or not (kinds or {"anyOf", "enum", "const"} & set(schema)):
            raise UnknownFieldError(f"a field of the type {kinds or sorted(schema)}")
        if "string" in kinds:
            yield from self._strings(schema)
        if "integer" in kinds or "number" in kinds:
            yield "", "the most", lambda: schema.get("maximum", 10**300 if "number" in kinds else 10**4_000)
        if "array" in kinds:
            yield from self._arrays(schema, example)
        if "object" in kinds:
            yield from self._objects(schema, example)

    def _strings(self, schema: Mapping[str, Any]) -> Iterator[tuple[str, str, Callable[[], Any]]]:
        room = self.size - 2_000
        for what, one in TEXT_SHAPES.items():
            each = len(json.dumps(one, ensure_ascii=False).encode()) - 2
            length = min(schema.get("maxLength", room * len(one) // each), room * len(one) // each)
            yield "", what, lambda one=one, length=length: (one * (length // len(one) + 1))[:length]
        if "maxLength" not in schema:
            yield "", "a picture", lambda: PICTURE + "A" * (room - len(PICTURE))

    def _arrays(self, schema: Mapping[str, Any], example: Any) -> Iterator[tuple[str, str, Callable[[], Any]]]:
        items = self._resolved(schema.get("items", {"type": "object"}))
        first = example[0] if isinstance(example, list) and example else self._least(items)
        each = len(json.dumps(first, ensure_ascii=False).encode()) + 2
        count = min(schema.get("maxItems", self.size // each), (self.size - 2_000) // each)
        yield "", "as many as may be", lambda: [first] * count
        for where, what, make in self._values(items, first):
            yield f"[]{where}", what, lambda make=make: [make()]
        for where, what, make in self._many(items, first, schema.get("maxItems", 10_000)):
            yield f"[]{where}", what, make

    def _many(
        self, items: Mapping[str, Any], first: Any, most: int
    ) -> Iterator[tuple[str, str, Callable[[], Any]]]:  # fmt: skip
        """As many entries as may be, each as long as there is room for."""
        names = [
            name for name, inner in items.get("properties", {}).items() if "string" in str(self._resolved(inner))
        ]  # fmt: skip
        for name in names if isinstance(first, dict) else ():
            for what in ("words", "dashes"):
                limit = self._resolved(items["properties"][name]).get("maxLength", self.size)
                length = min(limit, max(1, (self.size - 2_000) // most - len(json.dumps(first)) - 4))
                text = (TEXT_SHAPES[what] * length)[:length]
                if "enum" not in items["properties"][name]:
                    yield f".{name}", f"{what} in each", lambda name=name, text=text: [{**first, name: text}] * most

    def _objects(self, schema: Mapping[str, Any], example: Any) -> Iterator[tuple[str, str, Callable[[], Any]]]:
        given = example if isinstance(example, dict) else self._least(schema)
        for name, inner in schema.get("properties", {}).items():
            for where, what, make in self._values(inner, given.get(name)):
                yield f".{name}{where}", what, lambda name=name, make=make: {**given, name: make()}
        more = schema.get("additionalProperties", True)
        if more is False:
            return
        count = min(schema.get("maxProperties", self.size // 20), self.size // 20)
        yield ".*", "as many names as may be", lambda: {**given, **{f"n{n}": 1 for n in range(count)}}
        yield ".*", "a long name", lambda: {**given, "n" * (self.size - 2_000): 1}
        yield ".*", "deep", lambda: {**given, "n": _deep(55)}
        yield ".*", "a tree", lambda: {**given, "n": [[[{}] * 10] * 100] * (self.size // 5_000)}
        if isinstance(more, Mapping):
            for where, what, make in self._values(more, None):
                yield f".*{where}", what, lambda make=make: {**given, "n": make()}
        else:
            for what in ("words", "dashes", "quotes", "Chinese", "tags"):
                room = (self.size - 2_000) // 4
                yield ".*", f"a text of {what}", lambda what=what, room=room: {
                    **given, "n": (TEXT_SHAPES[what] * room)[:room]
                }  # fmt: skip

    def _least(self, schema: Mapping[str, Any]) -> Any:
        """The smallest value of a schema."""
        schema = self._resolved(schema)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][0]
        if "anyOf" in schema:
            return self._least(schema["anyOf"][0])
        kinds = schema.get("type", "object")
        kind = kinds if isinstance(kinds, str) else kinds[0]
        if kind == "object":
            return {name: self._least(schema["properties"][name]) for name in schema.get("required", ())}
        plain: dict[str, Any] = {"string": "a", "integer": 1, "number": 1, "boolean": True, "null": None, "array": []}
        return plain[kind]


def _encoded(make: Callable[[], Any]) -> Callable[[], bytes]:
    return lambda: json.dumps(make(), ensure_ascii=False, separators=(",", ":")).encode()


def _deep(levels: int) -> Any:
    made: Any = 1
    for _ in range(levels):
        made = [made, {"a": made}] if _ < 12 else [made]
    return made
