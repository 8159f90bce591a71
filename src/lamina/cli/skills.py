"""`lamina skills`: templates and skills: list, import, check, show, enable, disable, delete."""

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.app.skills import (
    SHARED,
    check_templates,
    find_template,
    import_templates,
    listed,
    switch_template,
    unfilled,
)
from lamina.cli.common import (
    Say,
    argument,
    chosen,
    confirm,
    flag,
    one_line,
    only_below,
    opened,
    option,
    page,
    pairs,
    run,
    show_json,
    styled,
    table,
    tell,
    tell_none,
)
from lamina.cli.texts import visible
from lamina.records import Template
from lamina.settings import Settings, load_settings


def add_skills(app: typer.Typer, say: Say) -> None:
    skills = typer.Typer(no_args_is_help=False, invoke_without_command=True)
    skills.callback()(_lister(say))
    skills.command("list", hidden=True)(_lister(say))
    for name, make in (
        ("import", _importer), ("check", _checker), ("show", _shower), ("enable", _enabler), ("disable", _disabler),
        ("delete", _deleter),
    ):  # fmt: skip
        skills.command(name, help=say[f"skills.{name}"])(make(say))
    app.add_typer(skills, name="skills", help=say["skills.help"])


def _plain(owner: str, template: Template) -> dict[str, Any]:
    fields = {name: getattr(template, name) for name in Template.__slots__}
    return {"owner": owner, "shared": owner == SHARED, **fields}


def _lister(say: Say) -> Any:
    def skills(
        context: typer.Context,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        if not only_below(context, "skills", bool(user or store) or as_json):
            return
        settings = chosen(user, store)

        async def read() -> list[tuple[str, Template]]:
            async with opened(settings) as app:
                return await listed(app.store, settings.user)

        found = run(read())
        if as_json:
            show_json([_plain(owner, template) for owner, template in found])
        elif not found:
            tell_none(say, "skills.none", settings)
        else:
            columns = ("name", "kind", "scenario", "apps", "enabled", "whose", "source")
            yields = ("source", "whose", "scenario", "apps", "kind")
            page(table(say, columns, [_row(say, owner, template) for owner, template in found], yields=yields))

    return skills


def _row(say: Say, owner: str, template: Template) -> list[Any]:
    kind = styled(say["skill"], "magenta") if template.is_skill else styled(say["template"], "bright_blue")
    apps = ", ".join(template.supported_apps) or say["every_app"]
    on = styled(say["on"], "green") if template.enabled else styled(say["off"], "red")
    whose = say["shared"] if owner == SHARED else say["own"]
    name = styled(one_line(template.name, 40), "cyan" if template.enabled else "dim")
    return [name, kind, one_line(template.scenario, 20), one_line(apps, 40), on, whose, one_line(template.source, 60)]


def _importer(say: Say) -> Any:
    def import_(
        path: Annotated[Path, argument(say, "templates", "PATH")],
        shared: Annotated[bool, flag(say, "shared", "--shared")] = False,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        settings = chosen(user, store)
        owner = SHARED if shared else settings.user

        async def change() -> tuple[list[Template], Mapping[str, object]]:
            async with opened(settings, makes=True) as app:
                kept = list(await import_templates(app.store, owner, path, settings))
                return kept, {} if shared else await app.store.profile.get(owner)

        kept, known = run(change())
        if as_json:
            show_json([_plain(owner, template) for template in kept])
            return
        for template in kept:
            tell(say, "skills.kept", name=template.name, scenario=template.scenario)
        for words in _slots(say, kept, known, settings):
            print(words)
        tell(say, "skills.imported", count=len(kept))

    return import_


def _slots(say: Say, templates: Sequence[Template], known: Container[str], settings: Settings) -> list[str]:
    """Before the first turn fails for want of a value: what asks for one, and how it gets one."""
    return [
        f"{say['warning']}{say['colon']}"
        + say["skills.slot"].format(name=visible(template.name), slot=f"{{{{{slot}}}}}", value=slot)
        for template, slot in unfilled(templates, known, settings)
    ]


def _checker(say: Say) -> Any:
    def check(
        path: Annotated[Path, argument(say, "templates", "PATH")],
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        settings = load_settings()
        templates, faults = check_templates(path, settings)
        empty = _slots(say, templates, (), settings)
        if as_json:
            found = [{"fault": fault.message, "next": fault.hint} for fault in faults]
            show_json({"templates": [template.name for template in templates], "faults": found, "warnings": empty})
        else:
            for fault in faults:
                print(f"{visible(fault.message)}\n  {say['next']}{say['colon']}{visible(fault.hint)}")
            for words in empty:
                print(words)
            tell(say, "faults" if faults else "skills.well", count=len(faults) or len(templates))
        if faults:
            raise typer.Exit(1)

    return check


def _shower(say: Say) -> Any:
    def show(
        name: Annotated[str, argument(say, "template", "NAME")],
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        settings = chosen(user, store)

        async def read() -> tuple[str, Template]:
            async with opened(settings) as app:
                return await find_template(app.store, [settings.user, SHARED], name)

        owner, template = run(read())
        if as_json:
            show_json(_plain(owner, template))
            return
        rows: dict[str, object] = {"id": template.template_id, "name": template.name}
        rows["kind"] = say["skill"] if template.is_skill else say["template"]
        rows |= {"scenario": template.scenario, "apps": ", ".join(template.supported_apps) or say["every_app"]}
        rows["enabled"] = say["on"] if template.enabled else say["off"]
        rows |= {"priority": f"{template.priority}/{template.sort}", "source": template.source}
        rows |= {"whose": say["shared"] if owner == SHARED else say["own"], "description": template.description}
        page(pairs(say, rows))
        print()
        print(visible(template.content))

    return show


def _enabler(say: Say) -> Any:
    def enable(
        name: Annotated[str, argument(say, "template", "NAME")],
        shared: Annotated[bool, flag(say, "shared", "--shared")] = False,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
    ) -> None:
        _switch(say, name, chosen(user, store), shared, True)

    return enable


def _disabler(say: Say) -> Any:
    def disable(
        name: Annotated[str, argument(say, "template", "NAME")],
        shared: Annotated[bool, flag(say, "shared", "--shared")] = False,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
    ) -> None:
        _switch(say, name, chosen(user, store), shared, False)

    return disable


def _switch(say: Say, name: str, settings: Settings, shared: bool, on: bool) -> None:
    async def change() -> Template:
        async with opened(settings) as app:
            return await switch_template(app.store, SHARED if shared else settings.user, name, on)

    tell(say, "skills.enabled" if on else "skills.disabled", name=run(change()).name)


def _deleter(say: Say) -> Any:
    def delete(
        name: Annotated[str, argument(say, "template", "NAME")],
        shared: Annotated[bool, flag(say, "shared", "--shared")] = False,
        yes: Annotated[bool, flag(say, "yes", "--yes", "-y")] = False,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
    ) -> None:
        settings = chosen(user, store)

        async def change() -> Template:
            async with opened(settings) as app:
                owner, template = await find_template(app.store, [SHARED if shared else settings.user], name)
                confirm(say, say["skills.sure"].format(name=one_line(template.name)), yes)
                await app.store.templates.delete(owner, template.template_id)
                return template

        tell(say, "skills.deleted", name=run(change()).name)

    return delete
