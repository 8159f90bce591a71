"""Scenario prompts and skills: which of an owner's templates a turn uses, with their slots filled in.

A slot is `{{name}}`, and that is the whole language: filled in one pass, what is put in is never looked at again.
Pure: the store keeps the templates.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from lamina.errors import InputError, LayerError, format_value
from lamina.records import Template
from lamina.types import Layer, Trust

MissingSlots = Literal["error", "keep"]

COMMON = "common"
ON_DEMAND = "skill:"
"""Where the source of a template begins that is named to the model and whose text comes only when it is chosen."""
MAX_NAME, MAX_CONTENT = 200, 256 * 1024
SLOT = re.compile(r"\{\{[ \t]*([^\W\d]\w{0,63})[ \t]*\}\}")
FIELD_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("template_id", "name", "content", "scenario", "description"), str),
    **dict.fromkeys(("is_skill", "enabled"), (bool, int)), **dict.fromkeys(("priority", "sort"), int),
}  # fmt: skip
FIELD_HINTS: dict[type | tuple[type, ...], str] = {
    str: "template.must_be_text", (bool, int): "template.must_be_true_or_false", int: "template.must_be_whole_number",
}  # fmt: skip
FIELDS = (
    "template_id", "name", "content", "scenario", "is_skill", "supported_apps", "enabled", "priority", "sort",
    "description",
)  # fmt: skip


def fill(text: str, values: Mapping[str, object], *, missing: MissingSlots = "error", name: str = "") -> str:
    """The text with its slots filled, in one pass: a value that looks like a slot stays as it is."""
    unknown = sorted({name for name in SLOT.findall(text) if name not in values})
    if unknown and missing == "error":
        raise LayerError(
            "template.slot_without_value" if name else "template.unnamed_slot_without_value",
            hint="template.give_value" if values else "template.give_first_value",
            template=name,
            slot=f"{{{{{unknown[0]}}}}}",
            name=unknown[0],
            known=sorted(values),
        )
    return SLOT.sub(lambda found: str(values.get(found[1], found[0])), text)


def slots_of(template: Template) -> list[str]:
    """The names that its text has a place for, in their order."""
    return list(dict.fromkeys(SLOT.findall(template.content)))


def supports(template: Template, app: str) -> bool:
    """Without apps of its own a template is for all of them; the case of letters does not matter."""
    apps = {name.casefold() for name in template.supported_apps}
    return not apps or app.strip().casefold() in apps


def scenario_names(scenario: str, app: str) -> tuple[str, ...]:
    """The scenarios whose prompt may speak, the best first: the one that was chosen, else that of the host app; and
    the common one where there is none of that name. The case of letters does not matter."""
    chosen = scenario.strip().casefold() or COMMON
    named = app.strip().casefold() or COMMON if chosen == COMMON else chosen
    return (named,) if named == COMMON else (named, COMMON)


def scenario_rank(templates: Sequence[Template], scenario: str, app: str) -> int:
    """How well these templates serve a scenario: 0 with a prompt of its own, 1 with the common one only."""
    names = scenario_names(scenario, app)
    held = {t.scenario.casefold() for t in templates if t.enabled and not t.is_skill and supports(t, app)}
    return next((rank for rank, name in enumerate(names) if name in held), len(names))


def scenario_layers(
    templates: Sequence[Template],
    *,
    scenario: str = COMMON,
    app: str = "",
    values: Mapping[str, object] | None = None,
    missing: MissingSlots = "error",
    chosen: str = "",
    owner: str | None = None,
) -> list[Layer]:
    """The prompt of the scenario, or of the one that the app names (else the common one), then every enabled skill for
    this app, in the order of priority.

    A skill on demand is only named, unless it is the `chosen` one. An owner's own templates are trusted like the owner.
    """
    found = sorted((t for t in templates if t.enabled), key=lambda t: (-t.priority, t.sort, t.name, t.template_id))
    trust: Trust = "user" if owner else "operator"
    given = values or {}
    names = scenario_names(scenario, app)
    able = [t for t in found if not t.is_skill and t.scenario.casefold() in names and supports(t, app)]
    prompts = sorted(able, key=lambda t: names.index(t.scenario.casefold()))  # stable: by priority within a name
    layers = [
        Layer("scenario", _fill_template(t, given, missing), _source(t), owner, _trust(t, trust), title=t.description)
        for t in prompts[:1]
    ]
    for skill in (t for t in found if t.is_skill and supports(t, app)):
        line = f"- **{skill.name}**" + (f": {skill.description}" if skill.description else "")
        if skill.source.startswith(ON_DEMAND) and skill.name != chosen:
            layers.append(Layer("skill", line, _source(skill), owner, trust))
        else:
            text = f"## {skill.name}\n\n{_fill_template(skill, given, missing)}"
            title = f"- **{skill.name}**"
            layers.append(Layer("skill", text, _source(skill), owner, _trust(skill, trust), short=line, title=title))
    return layers


def _fill_template(template: Template, values: Mapping[str, object], missing: MissingSlots) -> str:
    return fill(template.content, values, missing=missing, name=template.name)


def _trust(template: Template, trust: Trust) -> Trust:
    """A text into which values were put is trusted as far as the one who gave them: the user, not the operator."""
    return "user" if SLOT.search(template.content) else trust


def _source(template: Template) -> str:
    return f"template:{template.template_id}"


def apps_of(value: object, where: str) -> tuple[str, ...]:
    """Names of apps from a list, or from the JSON text of one. What cannot be read is an error, never all apps."""
    found: object = value
    if isinstance(value, str):
        try:
            found = json.loads(value) if value.strip() else ()
        except ValueError:
            found = None
    names = cast(Sequence[object], found) if isinstance(found, list | tuple) else [None]
    if not all(isinstance(name, str) and name.strip() for name in names):
        raise InputError("template.bad_apps", where=where, value=format_value(value))
    return tuple(str(name).strip() for name in names)


def template_of(data: object, where: str) -> Template:
    """A template from JSON, checked field by field."""
    if not isinstance(data, Mapping):
        raise InputError("template.not_an_object", where=where, value=format_value(data))
    fields = cast(Mapping[str, Any], data)
    unknown = sorted(set(fields) - set(FIELDS))
    if unknown:
        raise InputError("template.unknown_field", where=where, field=format_value(unknown[0]), known=FIELDS)
    for name, kinds in FIELD_KINDS.items():
        if name in fields and not isinstance(fields[name], kinds):
            hint = FIELD_HINTS[kinds]
            raise InputError("template.bad_field", hint=hint, where=where, field=name, value=format_value(fields[name]))
    for name, most in (("name", MAX_NAME), ("content", MAX_CONTENT)):
        text = str(fields.get(name, ""))
        if not text.strip() or len(text) > most:
            code = "template.field_too_long" if text.strip() else "template.field_empty"
            raise InputError(code, hint="template.field_size", where=where, field=name, size=len(text), limit=most)
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
