"""Scenario prompts and skills: which of an owner's templates speak on a turn, with their slots filled in (C5).

A slot is `{{name}}`, and that is the whole language: filled in one pass, what is put in is never looked at again.
Pure; where templates are kept is the store's business.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from lamina.errors import InputError, LayerError, shown
from lamina.records import Template
from lamina.types import Layer, Trust

Missing = Literal["error", "keep"]

COMMON = "common"
ON_DEMAND = "skill:"
"""Where the source of a template begins that is named to the model and whose text comes only when it is chosen."""
MAX_NAME, MAX_CONTENT = 200, 256 * 1024
SLOT = re.compile(r"\{\{[ \t]*([^\W\d]\w{0,63})[ \t]*\}\}")
FIELDS = (
    "template_id", "name", "content", "scenario", "is_skill", "supported_apps", "enabled", "priority", "sort",
    "description",
)  # fmt: skip


def fill(text: str, values: Mapping[str, object], *, missing: Missing = "error", where: str = "the template") -> str:
    """The text with its slots filled, in one pass: a value that looks like a slot stays as it is."""
    unknown = sorted({name for name in SLOT.findall(text) if name not in values})
    if unknown and missing == "error":
        known = ", ".join(sorted(values)) or "none"
        raise LayerError(
            f"{where} has a slot {{{{{unknown[0]}}}}} and there is no value for it",
            hint=f"give it one: lamina memory profile {unknown[0]} VALUE, or the turn's `values`, which `retry` takes "
            f"again; known: {known}; the setting missing_slots = keep lets it stay",
        )
    return SLOT.sub(lambda found: str(values.get(found[1], found[0])), text)


def slots_of(template: Template) -> list[str]:
    """The names that its text has a place for, in their order."""
    return list(dict.fromkeys(SLOT.findall(template.content)))


def supports(template: Template, app: str) -> bool:
    """Without apps of its own a template is for all of them; the case of letters does not matter."""
    return not template.supported_apps or app.casefold() in {name.casefold() for name in template.supported_apps}


def scenario_layers(
    templates: Sequence[Template],
    *,
    scenario: str = COMMON,
    app: str = "",
    values: Mapping[str, object] | None = None,
    missing: Missing = "error",
    chosen: str = "",
    owner: str | None = None,
) -> list[Layer]:
    """The scenario's prompt (else the common one), then every enabled skill for this app, in the order of priority.

    A skill on demand is only named, unless it is the `chosen` one. An owner's own templates are trusted as he is.
    """
    found = sorted((t for t in templates if t.enabled), key=lambda t: (-t.priority, t.sort, t.name, t.template_id))
    trust: Trust = "user" if owner else "operator"
    given = values or {}
    prompts = [t for t in found if not t.is_skill and t.scenario == scenario and supports(t, app)]
    prompts = prompts or [t for t in found if not t.is_skill and t.scenario == COMMON and supports(t, app)]
    layers = [
        Layer("scenario", _filled(t, given, missing), _source(t), owner, _trust(t, trust), title=t.description)
        for t in prompts[:1]
    ]
    for skill in (t for t in found if t.is_skill and supports(t, app)):
        line = f"- **{skill.name}**" + (f": {skill.description}" if skill.description else "")
        if skill.source.startswith(ON_DEMAND) and skill.name != chosen:
            layers.append(Layer("skill", line, _source(skill), owner, trust))
        else:
            text = f"## {skill.name}\n\n{_filled(skill, given, missing)}"
            title = f"- **{skill.name}**"
            layers.append(Layer("skill", text, _source(skill), owner, _trust(skill, trust), short=line, title=title))
    return layers


def _filled(template: Template, values: Mapping[str, object], missing: Missing) -> str:
    return fill(template.content, values, missing=missing, where=f"the template {template.name}")


def _trust(template: Template, trust: Trust) -> Trust:
    """A text into which values were put is trusted as far as the one who gave them: the user, not the operator."""
    return "user" if SLOT.search(template.content) else trust


def _source(template: Template) -> str:
    return f"template:{template.template_id}"


def apps_of(value: object, where: str) -> tuple[str, ...]:
    """Names of apps from a list, or from the JSON text of one. What cannot be read is an error, never `all apps`."""
    found: object = value
    if isinstance(value, str):
        try:
            found = json.loads(value) if value.strip() else ()
        except ValueError:
            found = None
    names = cast(Sequence[object], found) if isinstance(found, list | tuple) else [None]
    if not all(isinstance(name, str) and name.strip() for name in names):
        raise InputError(
            f"{where}: supported_apps is {shown(value)}",
            hint='a list of names such as ["Excel", "Word"]; empty for all',
        )
    return tuple(str(name).strip() for name in names)


def template_of(data: object, where: str) -> Template:
    """A template from JSON, checked field by field."""
    if not isinstance(data, Mapping):
        raise InputError(f"{where} is {shown(data)}, not an object", hint='{"name": "…", "content": "…"}')
    fields = cast(Mapping[str, Any], data)
    unknown = sorted(set(fields) - set(FIELDS))
    if unknown:
        raise InputError(f"{where} has a field {shown(unknown[0])}", hint=f"known: {', '.join(FIELDS)}")
    for name, kinds, word in (
        ("template_id", str, "text"), ("name", str, "text"), ("content", str, "text"), ("scenario", str, "text"),
        ("description", str, "text"), ("is_skill", (bool, int), "true or false"),
        ("enabled", (bool, int), "true or false"), ("priority", int, "a whole number"), ("sort", int, "a whole number"),
    ):  # fmt: skip
        if name in fields and not isinstance(fields[name], kinds):
            raise InputError(f"{where}: {name} is {shown(fields[name])}", hint=f"it must be {word}")
    for name, most in (("name", MAX_NAME), ("content", MAX_CONTENT)):
        text = str(fields.get(name, ""))
        if not text.strip() or len(text) > most:
            what = f"has {len(text):,} characters" if text.strip() else "is empty"
            raise InputError(f"{where}: {name} {what}", hint=f"1 to {most:,} characters")
    return Template(
        template_id=fields.get("template_id", ""),
        name=fields["name"].strip(),
        content=fields["content"],
        scenario=str(fields.get("scenario") or COMMON),
        is_skill=bool(fields.get("is_skill", False)),
        supported_apps=apps_of(fields.get("supported_apps", []), where),
        enabled=bool(fields.get("enabled", True)),
        priority=fields.get("priority", 0),
        sort=fields.get("sort", 0),
        description=fields.get("description", ""),
        source="json",
    )
