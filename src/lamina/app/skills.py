"""Templates and skills from files into the store: all of a file or folder is checked before any of it is kept."""

import asyncio
import json
import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from lamina.app.files import parse_json, read_text
from lamina.errors import ABSENT, InputError, LaminaError, NotFoundError, SettingsError, format_value
from lamina.prompts.approvals import Approvals
from lamina.prompts.sources import SHARED
from lamina.prompts.templates import FIELDS, slots_of, template_of
from lamina.records import Template
from lamina.settings import Settings
from lamina.store.store import Store
from lamina.text.messages import Phrase
from lamina.text.unicode import hidden_characters, is_unicode

MAX_FILE_BYTES = 16 * 1024 * 1024
TEXT_FIELDS = ("name", "content", "description", "scenario")

__all__ = [
    "SHARED", "add_templates", "check_templates", "find_template", "import_list", "import_templates", "listed",
    "one_template", "switch_template", "unfilled",
]  # fmt: skip


def check_templates(path: Path, settings: Settings) -> tuple[list[Template], list[LaminaError]]:
    """The templates of a file or folder, and everything that is wrong with them."""
    templates, faults = _read_folder(path, settings) if os.path.isdir(path) else _read_file(path)
    return templates, [*faults, *_find_duplicates(templates, path.name)]


def _find_duplicates(templates: Sequence[Template], where: str) -> list[LaminaError]:
    seen: set[tuple[bool, str, str]] = set()
    faults: list[LaminaError] = []
    for template in templates:
        if _key(template) in seen:
            name, scenario = format_value(template.name), format_value(template.scenario)
            faults.append(InputError("template.twice", where=where, name=name, scenario=scenario))
        seen.add(_key(template))
    return faults


async def import_templates(store: Store, owner: str, path: Path, settings: Settings) -> Sequence[Template]:
    """Keep all of them or none. One that is there under its name and scenario is replaced."""
    templates, faults = check_templates(path, settings)
    return await _store_all(store, owner, templates, faults)


async def import_list(store: Store, owner: str, data: Sequence[object], where: str = "templates") -> Sequence[Template]:
    """The same for templates that came otherwise than in a file."""
    templates, faults = await asyncio.to_thread(_read_list, data, where, "templates")  # 1,000 may be 20 MB
    return await _store_all(store, owner, templates, [*faults, *_find_duplicates(templates, where)])


async def add_templates(store: Store, owner: str, templates: Sequence[Template]) -> Sequence[Template]:
    """The same for templates that a program made."""
    return await import_list(store, owner, [{name: getattr(each, name) for name in FIELDS} for each in templates])


def one_template(data: object, where: str = "template") -> Template:
    """A template from JSON, with everything checked that an import checks."""
    if faults := _check_template(data, where):
        raise faults[0]
    return template_of(data, where)


async def _store_all(
    store: Store, owner: str, templates: Sequence[Template], faults: Sequence[LaminaError]
) -> Sequence[Template]:
    if faults:
        first, more = faults[0], len(faults) - 1
        code = "template.import_refused_more" if more else "template.import_refused"
        raise InputError(code, hint=first.next_step or "template.check_all", fault=first.phrase, more=more)
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
            ids = [f"{t.template_id} ({t.scenario})" for t in found]
            raise InputError("template.ambiguous", name=format_value(name), ids=ids)
        if found:
            return owner, found[0]
    if SHARED not in owners and any(name in (t.template_id, t.name) for t in await store.templates.list(SHARED)):
        raise NotFoundError("template.not_own", name=format_value(name))
    raise NotFoundError("template.not_found", hint=ABSENT, name=format_value(name))


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


def _read_folder(path: Path, settings: Settings) -> tuple[list[Template], list[LaminaError]]:
    try:
        from lamina.prompts.skills import check_skills  # noqa: PLC0415 -- PyYAML is an extra
    except ModuleNotFoundError as error:
        feature = Phrase("feature.skills")
        raise SettingsError("package.missing", feature=feature, package=error.name, extra="app") from None
    return check_skills(path, Approvals(settings.approvals))


def _read_file(path: Path) -> tuple[list[Template], list[LaminaError]]:
    found: Any = parse_json(read_text(path, MAX_FILE_BYTES), path.name, hint="file.templates_form")
    if not isinstance(found, list) or not found:
        raise InputError(
            "file.not_templates", hint="file.templates_form", path=path.name, value=format_value(cast(object, found))
        )
    return _read_list(cast("list[object]", found), path.name, f"{path.name}: templates")


def _read_list(data: Sequence[object], where: str, prefix: str) -> tuple[list[Template], list[LaminaError]]:
    templates: list[Template] = []
    faults: list[LaminaError] = []
    for number, one in enumerate(data):
        wrong = _check_template(one, f"{prefix}[{number}]")
        faults += wrong
        templates += [] if wrong else [template_of(one, where)]
    return templates, faults


def _check_template(data: object, where: str) -> list[LaminaError]:
    """Every fault of one template: each field is looked at beside others that are right."""
    if not isinstance(data, Mapping):
        return _check_fields(data, where)
    fields = cast(Mapping[str, Any], data)
    faults: list[LaminaError] = []
    for name in dict.fromkeys(("name", "content", *fields)):
        probe: dict[str, Any] = {"name": "name", "content": "text", **({name: fields[name]} if name in fields else {})}
        if name not in fields:
            del probe[name]
        faults += _check_fields(probe, where)
    for name in TEXT_FIELDS:
        places = hidden_characters(fields[name]) if isinstance(fields.get(name), str) else ()
        if places:
            seen = [str(place) for place in places[:5]]
            faults.append(InputError("template.hidden_characters", where=where, field=name, places=seen))
    if not is_unicode(json.dumps(fields, ensure_ascii=False)):
        faults.append(InputError("template.lone_surrogate", where=where))
    return faults


def _check_fields(data: object, where: str) -> list[LaminaError]:
    try:
        template_of(data, where)
    except LaminaError as error:
        return [error]
    return []
