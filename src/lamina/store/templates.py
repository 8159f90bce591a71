"""Prompt templates and skills by scenario, and the owner's profile: named values that outlive every session. What is in
them is data; nothing here fills in their slots."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lamina.records import Template
from lamina.store.database import (
    MAX_NAME,
    Clock,
    Database,
    Row,
    Steps,
    clean,
    count_on,
    dump,
    insert,
    new_id,
    not_found,
)
from lamina.store.shapes import read_row
from lamina.text.messages import Phrase

COLUMNS = (
    "template_id, name, content, scenario, is_skill, supported_apps, enabled, priority, sort, description, source, "
    "created, updated"
)


def template_of(row: Row) -> Template:
    values = read_row("prompt_template", COLUMNS, row)
    values[4], values[5], values[6] = bool(values[4]), tuple(values[5]), bool(values[6])
    return Template(*values)


def _put(owner: str, template: Template) -> Steps[Template]:
    yield from count_on(owner, "template")
    values: list[Any] = [getattr(template, name) for name in COLUMNS.split(", ")]
    values[4], values[5], values[6] = int(values[4]), dump(list(values[5])), int(values[6])
    changed = ", ".join(f"{n} = excluded.{n}" for n in COLUMNS.split(", ") if n not in ("template_id", "created"))
    rows = yield from insert(
        "prompt_template", f"owner, {COLUMNS}", [(owner, *values)],
        f"ON CONFLICT (owner, template_id) DO UPDATE SET {changed} RETURNING {COLUMNS}",
    )  # fmt: skip
    return template_of(rows[0])


def _put_all(owner: str, templates: Sequence[Template]) -> Steps[list[Template]]:
    kept: list[Template] = []
    for template in templates:
        kept.append((yield from _put(owner, template)))
    return kept


def _get(owner: str, template_id: str) -> Steps[Template]:
    rows = yield f"SELECT {COLUMNS} FROM prompt_template WHERE owner = ? AND template_id = ?", (owner, template_id)
    if not rows:
        raise not_found("template.not_found", template_id)
    return template_of(rows[0])


def _list(owner: str, scenario: str | None, is_skill: bool | None, enabled: bool | None) -> Steps[list[Template]]:
    wanted: dict[str, Any] = {"owner = ?": owner}
    wanted |= {} if scenario is None else {"scenario = ?": scenario}
    wanted |= {} if is_skill is None else {"is_skill = ?": int(is_skill)}
    wanted |= {} if enabled is None else {"enabled = ?": int(enabled)}
    rows = yield (
        f"SELECT {COLUMNS} FROM prompt_template WHERE {' AND '.join(wanted)} "
        "ORDER BY priority DESC, sort, name, template_id",
        tuple(wanted.values()),
    )
    return [template_of(row) for row in rows]


def _delete(owner: str, template_id: str) -> Steps[None]:
    rows = yield (
        "DELETE FROM prompt_template WHERE owner = ? AND template_id = ? RETURNING template_id",
        (owner, template_id),
    )
    if not rows:
        raise not_found("template.not_found", template_id)


class Templates:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def put(self, owner: str, template: Template) -> Template:
        """Keep a template under its id, or under a new one when it has none."""
        return (await self.put_all(owner, [template]))[0]

    async def put_all(self, owner: str, templates: Sequence[Template]) -> Sequence[Template]:
        """Keep several, all or none."""
        now = self._clock()
        for template in templates:
            for name in ("template_id", "name", "scenario"):
                clean(getattr(template, name), Phrase("field.of_template", name=name), MAX_NAME)
            for name in ("content", "description", "source"):
                clean(getattr(template, name), Phrase("field.of_template", name=name))
        kept = [replace(t, template_id=t.template_id or new_id(), created=now, updated=now) for t in templates]
        return await self._db.write(owner, lambda: _put_all(owner, kept))

    async def get(self, owner: str, template_id: str) -> Template:
        return await self._db.read(owner, lambda: _get(owner, template_id))

    async def list(
        self, owner: str, *, scenario: str | None = None, app: str | None = None, is_skill: bool | None = None,
        enabled: bool | None = None,
    ) -> Sequence[Template]:  # fmt: skip
        """By priority, the highest first, then by `sort`. With `app`, those that support it, in any case of letters."""
        asked = f"templates {scenario} {is_skill} {enabled}"
        found = await self._db.read_cached(owner, asked, lambda: _list(owner, scenario, is_skill, enabled))
        if app is None:
            return found
        host = app.casefold()
        return [t for t in found if not t.supported_apps or host in {name.casefold() for name in t.supported_apps}]

    async def delete(self, owner: str, template_id: str) -> None:
        await self._db.write(owner, lambda: _delete(owner, template_id))


# The profile


def _profile(owner: str) -> Steps[dict[str, Any]]:
    rows = yield "SELECT name, value FROM user_profile WHERE owner = ? ORDER BY name", (owner,)
    return dict(read_row("user_profile", "name, value", row) for row in rows)


def _set(owner: str, values: Mapping[str, Any], now: float) -> Steps[None]:
    yield from count_on(owner, "profile")
    for name, value in values.items():
        yield (
            "INSERT INTO user_profile (owner, name, value, updated) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (owner, name) DO UPDATE SET value = excluded.value, updated = excluded.updated",
            (owner, clean(name, "field.name", MAX_NAME), dump(value), now),
        )


def _unset(owner: str, name: str) -> Steps[None]:
    rows = yield "DELETE FROM user_profile WHERE owner = ? AND name = ? RETURNING name", (owner, name)
    if not rows:
        raise not_found("profile.not_found", name)


class Profile:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def get(self, owner: str) -> Mapping[str, Any]:
        """All named values, by name."""
        return await self._db.read_cached(owner, "profile", lambda: _profile(owner))

    async def set(self, owner: str, values: Mapping[str, Any]) -> None:
        now = self._clock()
        await self._db.write(owner, lambda: _set(owner, values, now))

    async def delete(self, owner: str, name: str) -> None:
        await self._db.write(owner, lambda: _unset(owner, name))
