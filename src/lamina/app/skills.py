"""Templates and skills from files into the store: all of a file or folder is checked before any of it is kept."""

import json
import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from lamina.app.files import parse_json, read_text
from lamina.errors import ABSENT, InputError, LaminaError, NotFoundError, SettingsError, shown
from lamina.layers.approvals import Approvals
from lamina.layers.hidden import hidden_characters
from lamina.layers.sources import SHARED
from lamina.layers.templates import slots_of, template_of
from lamina.records import Template
from lamina.settings import Settings
from lamina.store.store import Store

FORM = '[{"name": "…", "content": "…", "scenario": "excel"}, …]'
MAX_BYTES = 16 * 1024 * 1024
HIDDEN_IN = ("name", "content", "description", "scenario")

__all__ = [
    "SHARED", "check_templates", "find_template", "import_list", "import_templates", "listed", "one_template",
    "switch_template", "unfilled",
]  # fmt: skip


def check_templates(path: Path, settings: Settings) -> tuple[list[Template], list[LaminaError]]:
    """The templates of a file or folder, and everything that is wrong with them."""
    templates, faults = _of_folder(path, settings) if os.path.isdir(path) else _of_file(path)
    return templates, [*faults, *_twice(templates, path.name)]


def _twice(templates: Sequence[Template], where: str) -> list[LaminaError]:
    seen: set[tuple[bool, str, str]] = set()
    faults: list[LaminaError] = []
    for template in templates:
        if _key(template) in seen:
            what = f"{where} names {shown(template.name)} twice for the scenario {shown(template.scenario)}"
            faults.append(InputError(what, hint="leave one of them out"))
        seen.add(_key(template))
    return faults


async def import_templates(store: Store, owner: str, path: Path, settings: Settings) -> Sequence[Template]:
    """Keep all of them or none. One that is there under its name and scenario is replaced."""
    templates, faults = check_templates(path, settings)
    return await _keep(store, owner, templates, faults)


async def import_list(store: Store, owner: str, data: Sequence[object], where: str = "the list") -> Sequence[Template]:
    """The same for templates that came otherwise than in a file."""
    templates, faults = _of_list(data, where, "templates")
    return await _keep(store, owner, templates, [*faults, *_twice(templates, where)])


def one_template(data: object, where: str = "the template") -> Template:
    """A template from JSON, with everything checked that an import checks."""
    if faults := _faults_of(data, where):
        raise faults[0]
    return template_of(data, where)


async def _keep(
    store: Store, owner: str, templates: Sequence[Template], faults: Sequence[LaminaError]
) -> Sequence[Template]:
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise InputError(
            f"{faults[0].message}{more}; nothing was kept", hint=faults[0].hint or "lamina skills check shows all"
        )
    known = {_key(template): template.template_id for template in await store.templates.list(owner)}
    named = [replace(t, template_id=t.template_id or known.get(_key(t), "")) for t in templates]
    return await store.templates.put_all(owner, named)


async def listed(store: Store, owner: str) -> list[tuple[str, Template]]:
    """The owner's own templates and then the operator's, each with whose it is."""
    owners = [owner] if owner == SHARED else [owner, SHARED]
    return [(one, template) for one in owners for template in await store.templates.list(one)]


async def find_template(store: Store, owners: Sequence[str], name: str) -> tuple[str, Template]:
    """A template by its id or name, of the first of the owners who has it."""
    for owner in owners:
        templates = await store.templates.list(owner)
        found = [t for t in templates if t.template_id == name] or [t for t in templates if t.name == name]
        if len(found) > 1:
            ids = ", ".join(f"{t.template_id} ({t.scenario})" for t in found)
            raise InputError(f"more than one template is named {shown(name)}", hint=f"give its id: {ids}")
        if found:
            return owner, found[0]
    if SHARED not in owners and any(name in (t.template_id, t.name) for t in await store.templates.list(SHARED)):
        raise NotFoundError(f"no template {shown(name)} of your own", hint="it is shared: add --shared")
    raise NotFoundError(f"no template {shown(name)}", hint=ABSENT)


async def switch_template(store: Store, owner: str, name: str, on: bool) -> Template:
    """Let a template speak, or no longer; nothing else of it changes."""
    _, template = await find_template(store, [owner], name)
    return await store.templates.put(owner, replace(template, enabled=on))


def unfilled(templates: Sequence[Template], known: Container[str], settings: Settings) -> list[tuple[Template, str]]:
    """Slots of templates that speak, for which the profile knows no value: a turn that needs one fails."""
    if settings.missing_slots == "keep":
        return []
    return [(t, slot) for t in templates if t.enabled for slot in slots_of(t) if slot not in known]


def _key(template: Template) -> tuple[bool, str, str]:
    return template.is_skill, template.name, template.scenario


def _of_folder(path: Path, settings: Settings) -> tuple[list[Template], list[LaminaError]]:
    try:
        from lamina.layers.skills import check_skills  # noqa: PLC0415 -- PyYAML is an extra
    except ModuleNotFoundError as error:
        raise SettingsError(f"skills need the package {error.name}", hint="pip install 'lamina[app]'") from None
    return check_skills(path, Approvals(settings.approvals))


def _of_file(path: Path) -> tuple[list[Template], list[LaminaError]]:
    found: Any = parse_json(read_text(path, MAX_BYTES), path.name, hint=FORM)
    if not isinstance(found, list) or not found:
        raise InputError(f"{path.name} holds {shown(cast(object, found))}, not a list of templates", hint=FORM)
    return _of_list(cast("list[object]", found), path.name, f"{path.name}: templates")


def _of_list(data: Sequence[object], where: str, prefix: str) -> tuple[list[Template], list[LaminaError]]:
    templates: list[Template] = []
    faults: list[LaminaError] = []
    for number, one in enumerate(data):
        wrong = _faults_of(one, f"{prefix}[{number}]")
        faults += wrong
        templates += [] if wrong else [template_of(one, where)]
    return templates, faults


def _faults_of(data: object, where: str) -> list[LaminaError]:
    """Every fault of one template: each field is looked at beside others that are right."""
    if not isinstance(data, Mapping):
        return _fault(data, where)
    fields = cast(Mapping[str, Any], data)
    faults: list[LaminaError] = []
    for name in dict.fromkeys(("name", "content", *fields)):
        probe: dict[str, Any] = {"name": "name", "content": "text", **({name: fields[name]} if name in fields else {})}
        if name not in fields:
            del probe[name]
        faults += _fault(probe, where)
    for name in HIDDEN_IN:
        places = hidden_characters(fields[name]) if isinstance(fields.get(name), str) else ()
        if places:
            shown_places = ", ".join(map(str, places[:5]))
            faults.append(
                InputError(f"{where}: {name} holds characters that nobody sees: {shown_places}", hint="remove them")
            )
    try:
        json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        faults.append(InputError(f"{where} holds a lone surrogate", hint="save it as UTF-8"))
    return faults


def _fault(data: object, where: str) -> list[LaminaError]:
    try:
        template_of(data, where)
    except LaminaError as error:
        return [error]
    return []
