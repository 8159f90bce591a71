"""Templates and skills over HTTP: the user's own to change, the operator's to read; a list is imported whole or not."""

from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from lamina.app.app import App
from lamina.app.lookup import SHARED, import_list, listed, one_template
from lamina.errors import NotFoundError
from lamina.gateway.handlers import HttpError, Reply, Request, Route, hide_missing, is_id
from lamina.gateway.schemas import Model, Time, from_record, many
from lamina.records import Template

TemplateName = Annotated[str, Meta(min_length=1, max_length=200)]
Scenario = Annotated[str, Meta(max_length=200)]
Order = Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]
Apps = Annotated[list[TemplateName], Meta(max_length=100)]


class TemplateFields(Model):
    name: TemplateName
    content: Annotated[
        str,
        Meta(
            min_length=1, max_length=256 * 1024,
            description="slots are {{name}}, filled with what a message brings as `values`",
        ),
    ]  # fmt: skip
    scenario: Scenario | UnsetType = UNSET
    priority: Order | UnsetType = UNSET
    sort: Order | UnsetType = UNSET
    description: Annotated[str, Meta(max_length=10_000)] | UnsetType = UNSET


class TemplateBody(TemplateFields):
    is_skill: bool | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET
    supported_apps: Apps | UnsetType = UNSET


class ImportedTemplate(TemplateFields):
    """As files have it, which is a little more than the API."""

    template_id: Annotated[str, Meta(max_length=200)] | UnsetType = UNSET
    is_skill: bool | int | UnsetType = UNSET
    enabled: bool | int | UnsetType = UNSET
    supported_apps: Apps | Annotated[str, Meta(max_length=20_000)] | UnsetType = UNSET


ImportBody = Annotated[list[ImportedTemplate], Meta(min_length=1, max_length=1_000)]


class TemplateJson(Model):
    template_id: str
    name: str
    content: str
    scenario: str
    is_skill: bool
    supported_apps: Annotated[list[str], Meta(description="empty for every app")]
    enabled: bool
    priority: int
    sort: int
    description: str
    source: str
    created: Time
    updated: Time
    shared: Annotated[bool, Meta(description="the operator's, for all users; it can only be read here")] = False


class TemplatesQuery(Model):
    skill: bool | None = None
    scenario: Scenario | None = None


def _template_json(template: Template, *, shared: bool = False) -> TemplateJson:
    return msgspec.structs.replace(from_record(TemplateJson, template), shared=shared)


async def _list(app: App, request: Request) -> Reply:
    skill, scenario = request.query.skill, request.query.scenario
    chosen = [
        _template_json(template, shared=owner == SHARED)
        for owner, template in await listed(app.store, request.user)
        if (skill is None or template.is_skill == skill) and (scenario is None or template.scenario == scenario)
    ]
    return Reply({"templates": chosen})


async def _check_name_is_free(app: App, owner: str, made: Template) -> None:
    """People could not tell two of one name apart."""
    for other in await app.store.templates.list(owner, scenario=made.scenario, is_skill=made.is_skill):
        if other.name == made.name and other.template_id != made.template_id:
            raise HttpError(409, "template.exists", kind="known", template_id=other.template_id)


async def _read_template(request: Request) -> Template:
    return await request.work(one_template, msgspec.to_builtins(request.body))


async def _create(app: App, request: Request) -> Reply:
    made = await _read_template(request)
    await _check_name_is_free(app, request.user, made)
    return Reply(_template_json(await app.store.templates.put(request.user, made)), 201)


@hide_missing
async def _get(app: App, request: Request) -> Reply:
    template_id = request.params["template_id"]
    try:
        return Reply(_template_json(await app.store.templates.get(request.user, template_id)))
    except NotFoundError:
        return Reply(_template_json(await app.store.templates.get(SHARED, template_id), shared=True))


@hide_missing
async def _replace(app: App, request: Request) -> Reply:
    """Everything but where it came from is as it is given now."""
    old = await app.store.templates.get(request.user, request.params["template_id"])
    made = replace(await _read_template(request), template_id=old.template_id, source=old.source)
    if (made.name, made.scenario, made.is_skill) != (old.name, old.scenario, old.is_skill):
        await _check_name_is_free(app, request.user, made)
    return Reply(_template_json(await app.store.templates.put(request.user, made)))


@hide_missing
async def _delete(app: App, request: Request) -> Reply:
    await app.store.templates.delete(request.user, request.params["template_id"])
    return Reply(status=204)


async def _import(app: App, request: Request) -> Reply:
    for number, one in enumerate(request.body):
        if one.template_id and not is_id(one.template_id):
            raise HttpError(400, "template.bad_id", number=number)
    stored = await import_list(app.store, request.user, msgspec.to_builtins(request.body))
    return Reply({"templates": [_template_json(template) for template in stored]})


HERE = "/api/templates/{template_id}"
TEMPLATES: dict[str, Any] = {"tags": ("templates",)}
TEMPLATE_LIST = many("templates", TemplateJson)
EXAMPLE = {"name": "Tables", "content": "Write tables in Markdown.", "scenario": "excel", "is_skill": True}
ROUTES = (
    Route(
        "GET", "/api/templates", _list, "The user's own templates and skills, then the operator's", "read",
        query=TemplatesQuery, answer=TEMPLATE_LIST, **TEMPLATES,
    ),
    Route(
        "POST", "/api/templates", _create, "A new template or skill", "write", TemplateBody, EXAMPLE,
        answer=TemplateJson, status=201, **TEMPLATES,
    ),
    Route("GET", HERE, _get, "One template", "read", answer=TemplateJson, **TEMPLATES),
    Route(
        "PUT", HERE, _replace, "Put another in its place, under the same id", "write", TemplateBody,
        {**EXAMPLE, "name": "Tables and lists"}, answer=TemplateJson, **TEMPLATES,
    ),
    Route("DELETE", HERE, _delete, "Delete it", "write", status=204, **TEMPLATES),
    Route(
        "POST", "/api/templates/import", _import, "As `lamina skills import` takes them, all or none", "write",
        ImportBody, [{"name": "Tone", "content": "Write plainly.", "scenario": "common"}], answer=TEMPLATE_LIST,
        **TEMPLATES,
    ),
)  # fmt: skip
