"""Templates and skills over HTTP: the user's own to change, the operator's to read; a list of them all or none."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lamina.app.app import App
from lamina.app.lookup import SHARED, import_list, listed, one_template
from lamina.errors import NotFoundError
from lamina.gateway.http import HttpError, Reply, Request, Route, Schema
from lamina.gateway.ids import hide_missing, is_id
from lamina.gateway.values import TEMPLATE, many, template_value
from lamina.records import Template

NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 200}
SCENARIO: Schema = {"type": "string", "maxLength": 200, "default": "common"}
PLACE: Schema = {"type": "integer", "minimum": -1_000_000, "maximum": 1_000_000}
SWITCH: Schema = {"type": "boolean"}
FIELDS: Mapping[str, Schema] = {
    "name": NAME,
    "content": {
        "type": "string", "minLength": 1, "maxLength": 256 * 1024,
        "description": "slots are {{name}}, filled with what a message brings as `values`",
    },
    "scenario": SCENARIO, "is_skill": SWITCH, "enabled": SWITCH, "priority": PLACE, "sort": PLACE,
    "supported_apps": {"type": "array", "items": NAME, "maxItems": 100},
    "description": {"type": "string", "maxLength": 10_000},
}  # fmt: skip
IMPORTED: Mapping[str, Schema] = {
    **FIELDS,
    "template_id": {"type": "string", "maxLength": 200},
    "is_skill": {"type": ["boolean", "integer"]},
    "enabled": {"type": ["boolean", "integer"]},
    "supported_apps": {"anyOf": [FIELDS["supported_apps"], {"type": "string", "maxLength": 20_000}]},
}


def _fields(fields: Mapping[str, Schema]) -> Schema:
    return {
        "type": "object", "properties": fields, "required": ["name", "content"], "additionalProperties": False,
    }  # fmt: skip


async def _list(app: App, request: Request) -> Reply:
    skill, scenario = request.query.get("skill"), request.query.get("scenario")
    every = await listed(app.store, request.user)
    chosen = [
        template_value(template, shared=owner == SHARED)
        for owner, template in every
        if (skill is None or template.is_skill == skill) and (scenario is None or template.scenario == scenario)
    ]
    return Reply({"templates": chosen})


async def _check_alone(app: App, owner: str, made: Template) -> None:
    """Two of one name could not be told apart by people."""
    for other in await app.store.templates.list(owner, scenario=made.scenario, is_skill=made.is_skill):
        if other.name == made.name and other.template_id != made.template_id:
            raise HttpError(409, "template.exists", kind="known", template_id=other.template_id)


async def _new(app: App, request: Request) -> Reply:
    made = await request.work(one_template, request.body)
    await _check_alone(app, request.user, made)
    return Reply(template_value(await app.store.templates.put(request.user, made), shared=False), 201)


@hide_missing
async def _get(app: App, request: Request) -> Reply:
    template_id = request.params["template_id"]
    try:
        return Reply(template_value(await app.store.templates.get(request.user, template_id), shared=False))
    except NotFoundError:
        return Reply(template_value(await app.store.templates.get(SHARED, template_id), shared=True))


@hide_missing
async def _put(app: App, request: Request) -> Reply:
    """Everything but where it came from is as it is given now."""
    old = await app.store.templates.get(request.user, request.params["template_id"])
    made = replace(await request.work(one_template, request.body), template_id=old.template_id, source=old.source)
    if (made.name, made.scenario, made.is_skill) != (old.name, old.scenario, old.is_skill):
        await _check_alone(app, request.user, made)
    return Reply(template_value(await app.store.templates.put(request.user, made), shared=False))


@hide_missing
async def _delete(app: App, request: Request) -> Reply:
    await app.store.templates.delete(request.user, request.params["template_id"])
    return Reply(status=204)


async def _import(app: App, request: Request) -> Reply:
    for place, one in enumerate(request.body):
        name = one.get("template_id", "")
        if name and not is_id(name):
            raise HttpError(400, "template.bad_id", number=place)
    kept = await import_list(app.store, request.user, request.body)
    return Reply({"templates": [template_value(template, shared=False) for template in kept]})


HERE = "/api/templates/{template_id}"
TAGS: dict[str, Any] = {"tags": ("templates",)}
EXAMPLE = {"name": "Tables", "content": "Write tables in Markdown.", "scenario": "excel", "is_skill": True}
ROUTES = (
    Route(
        "GET", "/api/templates", _list, "The user's own templates and skills, then the operator's", "read",
        query={"skill": SWITCH, "scenario": {"type": "string", "maxLength": 200}}, answer=many("templates", TEMPLATE),
        **TAGS,
    ),
    Route(
        "POST", "/api/templates", _new, "A new template or skill", "write", body=_fields(FIELDS), example=EXAMPLE,
        answer=TEMPLATE, status=201, **TAGS,
    ),
    Route("GET", HERE, _get, "One template", "read", answer=TEMPLATE, **TAGS),
    Route(
        "PUT", HERE, _put, "Put another in its place, under the same id", "write", body=_fields(FIELDS),
        example={**EXAMPLE, "name": "Tables and lists"}, answer=TEMPLATE, **TAGS,
    ),
    Route("DELETE", HERE, _delete, "Delete it", "write", status=204, **TAGS),
    Route(
        "POST", "/api/templates/import", _import, "As `lamina skills import` takes them, all or none", "write",
        body={"type": "array", "items": _fields(IMPORTED), "minItems": 1, "maxItems": 1_000},
        example=[{"name": "Tone", "content": "Write plainly.", "scenario": "common"}],
        answer=many("templates", TEMPLATE), **TAGS,
    ),
)  # fmt: skip
