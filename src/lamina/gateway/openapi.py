"""The OpenAPI document, made of the route table: what is checked is what is written there, since it is the same value.

A schema with a title is written once, among the components, and referenced where it is used.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lamina import __version__
from lamina.app.app import App
from lamina.gateway.http import ErrorForm, Reply, Request, Route, Schema
from lamina.gateway.sse import MEDIA, NAMES
from lamina.gateway.values import ANY_PHRASE, FREE, ID_LENGTH, TEXT, record

PATH = "/api/openapi.json"
ERROR = record(
    "Error",
    {
        "error": record(
            "ErrorBody",
            {
                "message": {**TEXT, "description": "what failed, in English"},
                "hint": {**TEXT, "description": "what to do next, in English"},
                "type": {**TEXT, "description": "the kind of error"},
                "code": {**TEXT, "description": "the error itself: compare this; web/messages.en.json has all of them"},
                "values": {**FREE, "description": "what the text of the code has slots for"},
                "next": {**ANY_PHRASE, "description": "the hint as a code with values"},
            },
        )
    },
)
OPENAI_ERROR = record(
    "OpenAIError",
    {
        "error": record(
            "OpenAIErrorBody",
            {
                "message": TEXT,
                "type": TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        )
    },
)
ANTHROPIC_ERROR = record(
    "AnthropicError",
    {"type": {"const": "error"}, "error": record("AnthropicErrorBody", {"type": TEXT, "message": TEXT})},
)
EVENT: Schema = {
    "title": "TurnEvent",
    "type": "object",
    "properties": {
        "id": {**TEXT, "description": "where to go on after it: give it back as Last-Event-ID"},
        "event": {"enum": list(NAMES.values())},
        "data": {**TEXT, "description": "the event's fields as JSON; of a text its `text`, of the end its `state`"},
    },
    "required": ["id", "event", "data"],
}
ERRORS: Mapping[ErrorForm, Schema] = {"lamina": ERROR, "openai": OPENAI_ERROR, "anthropic": ANTHROPIC_ERROR}
SAYS = {
    400: "something in the request is not as it should be; the message says what and where",
    401: "no credential, or one that is not known",
    403: "the credential may not do this, or the request comes from elsewhere",
    404: "there is no such thing for this principal",
    409: "it cannot be done just now, as things stand",
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


class Components:
    """Schemas by their titles; the same title always is the same schema."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self._known: dict[str, Schema] = {}

    def put(self, schema: Schema) -> dict[str, Any]:
        """The schema with everything that has a title named instead of written out."""
        title = schema.get("title")
        if title is None:
            return self._inner(schema)
        if title not in self._known:
            self._known[title] = schema
            self.found[title] = self._inner(schema)
        elif self._known[title] != schema:
            raise ValueError(f"two schemas have the title {title!r}")
        return {"$ref": f"#/components/schemas/{title}"}

    def _inner(self, schema: Schema) -> dict[str, Any]:
        made = dict(schema)
        for name in ("items", "additionalProperties"):
            if isinstance(made.get(name), Mapping):
                made[name] = self.put(made[name])
        if "properties" in made:
            made["properties"] = {name: self.put(inner) for name, inner in made["properties"].items()}
        if "anyOf" in made:
            made["anyOf"] = [self.put(inner) for inner in made["anyOf"]]
        return made


def document(routes: Sequence[Route], *, version: str = "") -> dict[str, Any]:
    """What these routes take and give, for programs and people."""
    components = Components()
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "lamina", "version": version or __version__, "description": INTRODUCTION},
        "paths": paths,
        "components": {
            "schemas": components.found,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "a key made by `lamina keys`"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def route_of(routes: Sequence[Route]) -> Route:
    """The route that serves the document of all these routes and of itself."""

    async def serve(app: App, request: Request) -> Reply:
        return Reply(told)

    made = Route("GET", PATH, serve, "This document", None, answer=FREE, tags=("about",))
    told = document([*routes, made])
    return made


def _operation(route: Route, components: Components) -> dict[str, Any]:
    path = PARAMETER.sub(r"by_\1", route.path)
    name = re.sub(r"\W+", "_", f"{route.method.lower()}{path}").strip("_")
    made: dict[str, Any] = {"operationId": name, "summary": route.summary, "tags": list(route.tags)}
    if parameters := _parameters(route, components):
        made["parameters"] = parameters
    if route.body is not None:
        content: dict[str, Any] = {"schema": components.put(route.body)}
        if route.example is not None:
            content["example"] = route.example
        made["requestBody"] = {"required": not route.bare, "content": {"application/json": content}}
    made["responses"] = _responses(route, components)
    made["security"] = [{"key": []}, {"x-api-key": []}] if route.scope else []
    if route.scope:
        made["description"] = f"Needs a key with the scope `{route.scope}`."
    return made


def _parameters(route: Route, components: Components) -> list[dict[str, Any]]:
    """In the path, in the query and in headers."""
    text = {"type": "string", "minLength": 1, "maxLength": ID_LENGTH}
    found = [{"name": name, "in": "path", "required": True, "schema": text} for name in PARAMETER.findall(route.path)]
    for place, schemas in (("query", route.query), ("header", route.headers)):
        for name, schema in schemas.items():
            one: dict[str, Any] = {"name": name, "in": place, "required": False, "schema": components.put(schema)}
            found.append(one | ({"description": schema["description"]} if "description" in schema else {}))
    return found


def statuses(route: Route) -> list[int]:
    """The errors that a route may answer with."""
    found = {400, 429, 503}
    found |= {401, 403} if route.scope else {401} if route.method == "POST" else set()
    found |= {404} if PARAMETER.search(route.path) or route.path.startswith("/v1/") else set()  # a model, a session
    found |= {413, 415} if route.method in ("POST", "PUT", "PATCH") else set()
    found |= {409} if route.scope in ("chat", "write") or "turn_id" in route.path else set()
    found |= {502, 504} if route.scope == "chat" else set()
    return sorted(found)


def _responses(route: Route, components: Components) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": route.summary}
    if route.status != 204:
        schema = components.put(route.answer) if route.answer is not None else {}
        answer["content"] = {
            route.media: {"schema": {"type": "string"} if route.media != "application/json" else schema}
        }
    made = {str(route.status): answer}
    if route.streams:
        events = made.setdefault("200", {"description": "the events of the turn, as they come"})
        schema = components.put(EVENT) if route.form == "lamina" else {}
        events.setdefault("content", {})[MEDIA] = {"schema": schema}
    if route.streams and route.method == "GET":
        made["204"] = {"description": "there is nothing behind this position, and there never will be"}
    forms: list[Any] = [components.put(ERRORS[route.form])]
    if route.path.startswith("/v1/models"):  # both clients ask here
        forms.append(components.put(ERRORS["anthropic"]))
    error = {"content": {"application/json": {"schema": forms[0] if len(forms) == 1 else {"anyOf": forms}}}}
    made |= {str(status): {"description": SAYS[status], **error} for status in statuses(route)}
    return made
