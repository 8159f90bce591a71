"""`lamina skills`: templates and skills: list, import, check, show, enable, disable, delete."""

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.app.lookup import (
    SHARED,
    check_templates,
    find_template,
    find_unfilled_slots,
    import_templates,
    listed,
    switch_template,
)
from lamina.cli.call import Call, Commands, Json, Yes, argument, flag, show_json
from lamina.cli.say import Say, visible
from lamina.cli.view import details, one_line, page, styled, table
from lamina.records import Template
from lamina.settings import Settings

SKILLS = Commands("skills")
TemplateName = Annotated[str, argument("template", "NAME")]
TemplatePath = Annotated[Path, argument("templates", "PATH")]
Shared = Annotated[bool, flag("shared", "--shared")]


def _to_dict(owner: str, template: Template) -> dict[str, Any]:
    fields = {name: getattr(template, name) for name in Template.__slots__}
    return {"owner": owner, "shared": owner == SHARED, **fields}


@SKILLS.listing()
async def list_skills(call: Call, as_json: Json = False) -> None:
    async with call.open() as app:
        found = await listed(app.store, call.user)
    if as_json:
        show_json([_to_dict(owner, template) for owner, template in found])
    elif not found:
        call.tell_none("cli.skills.none")
    else:
        columns = ("name", "kind", "scenario", "apps", "enabled", "whose", "source")
        rows = [_row(call.say, owner, template) for owner, template in found]
        page(table(call.say, columns, rows, yields=("source", "whose", "scenario", "apps", "kind")))


def _details(say: Say, owner: str, template: Template) -> dict[str, str]:
    """What the list and `show` say about a template, in the reader's words."""
    return {
        "kind": say("cli.template.skill" if template.is_skill else "cli.template.template"),
        "apps": ", ".join(template.supported_apps) or say("cli.template.every_app"),
        "enabled": say("cli.yes" if template.enabled else "cli.no"),
        "whose": say("cli.template.shared" if owner == SHARED else "cli.template.own"),
    }


def _row(say: Say, owner: str, template: Template) -> list[Any]:
    words = _details(say, owner, template)
    name = styled(one_line(template.name, 40), "cyan" if template.enabled else "dim")
    kind = styled(words["kind"], "magenta" if template.is_skill else "bright_blue")
    enabled = styled(words["enabled"], "green" if template.enabled else "red")
    scenario, apps = one_line(template.scenario, 20), one_line(words["apps"], 40)
    return [name, kind, scenario, apps, enabled, words["whose"], one_line(template.source, 60)]


@SKILLS.command("import")
async def import_skills(call: Call, path: TemplatePath, shared: Shared = False, as_json: Json = False) -> None:
    settings = call.settings
    owner = SHARED if shared else settings.user
    async with call.open(makes=True) as app:
        saved = list(await import_templates(app.store, owner, path, settings))
        known: Mapping[str, object] = {} if shared else await app.store.profile.get(owner)
    if as_json:
        show_json([_to_dict(owner, template) for template in saved])
        return
    for template in saved:
        call.tell("cli.skills.kept", name=template.name, scenario=template.scenario)
    for warning in _slot_warnings(call.say, saved, known, settings):
        print(warning)
    call.tell("cli.skills.imported", count=len(saved))


def _slot_warnings(say: Say, templates: Sequence[Template], known: Container[str], settings: Settings) -> list[str]:
    """Before the first turn fails for want of a value: what asks for one, and how to give it."""
    return [
        say("cli.warning", text=say("cli.skills.slot", name=template.name, slot=f"{{{{{slot}}}}}", value=slot))
        for template, slot in find_unfilled_slots(templates, known, settings)
    ]


@SKILLS.command("check", shared=())
def check(call: Call, path: TemplatePath, as_json: Json = False) -> None:
    say, settings = call.say, call.settings
    templates, faults = check_templates(path, settings)
    warnings = _slot_warnings(say, templates, (), settings)
    if as_json:
        found = [{"fault": fault.message, "next": fault.hint} for fault in faults]
        show_json({"templates": [template.name for template in templates], "faults": found, "warnings": warnings})
    else:
        for fault in faults:
            print(f"{say.render(fault.phrase)}\n  {say.next(fault.next_step)}")
        for warning in warnings:
            print(warning)
        call.tell("cli.faults" if faults else "cli.skills.well", count=len(faults) or len(templates))
    if faults:
        raise typer.Exit(1)


@SKILLS.command("show")
async def show(call: Call, name: TemplateName, as_json: Json = False) -> None:
    async with call.open() as app:
        owner, template = await find_template(app.store, [call.user, SHARED], name)
    if as_json:
        show_json(_to_dict(owner, template))
        return
    words = _details(call.say, owner, template)
    rows: dict[str, object] = {"id": template.template_id, "name": template.name, "kind": words["kind"]}
    rows |= {"scenario": template.scenario, "apps": words["apps"], "enabled": words["enabled"]}
    rows |= {"priority": f"{template.priority}/{template.sort}", "source": template.source}
    rows |= {"whose": words["whose"], "description": template.description}
    page(details(call.say, rows))
    print(f"\n{visible(template.content)}")


@SKILLS.command("enable")
async def enable(call: Call, name: TemplateName, shared: Shared = False) -> None:
    await _switch(call, name, shared, on=True)


@SKILLS.command("disable")
async def disable(call: Call, name: TemplateName, shared: Shared = False) -> None:
    await _switch(call, name, shared, on=False)


async def _switch(call: Call, name: str, shared: bool, *, on: bool) -> None:
    async with call.open() as app:
        template = await switch_template(app.store, SHARED if shared else call.user, name, on)
    call.tell("cli.skills.enabled" if on else "cli.skills.disabled", name=template.name)


@SKILLS.command("delete")
async def delete(call: Call, name: TemplateName, shared: Shared = False, yes: Yes = False) -> None:
    async with call.open() as app:
        owner, template = await find_template(app.store, [SHARED if shared else call.user], name)
        call.confirm(call.say("cli.skills.sure", name=one_line(template.name)), yes)
        await app.store.templates.delete(owner, template.template_id)
    call.tell("cli.skills.deleted", name=template.name)
