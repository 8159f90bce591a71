"""Prompt templates and skills by scenario, and the owner's profile: named values that outlive every session. What is in
them is data; nothing here fills in their slots."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lamina.records import Template
from lamina.store.database import (
    MAX_NAME,
    Group,
    Row,
    Steps,
    clean,
    column_values,
    columns_of,
    count_on,
    dump,
    insert,
    new_id,
    one_row,
    read,
    read_cached,
    set_excluded,
    where,
    write,
)
from lamina.store.schema import read_row
from lamina.text.messages import Phrase

COLUMNS = columns_of(Template)
CHANGEABLE = [name for name in COLUMNS.split(", ") if name not in ("template_id", "created")]


def template_of(row: Row) -> Template:
    return Template(*read_row("prompt_template", COLUMNS, row))


class Templates(Group):
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
        stored = [replace(t, template_id=t.template_id or new_id(), created=now, updated=now) for t in templates]
        return await self._put_all(owner, [column_values(template, COLUMNS) for template in stored])

    @write
    def _put_all(self, owner: str, templates: Sequence[Row]) -> Steps[Sequence[Template]]:
        stored: list[Template] = []
        for values in templates:
            yield from count_on(owner, "template")
            ending = f"ON CONFLICT (owner, template_id) DO UPDATE SET {set_excluded(CHANGEABLE)} RETURNING {COLUMNS}"
            rows = yield from insert("prompt_template", f"owner, {COLUMNS}", [(owner, *values)], ending)
            stored.append(template_of(rows[0]))
        return stored

    @read
    def get(self, owner: str, template_id: str) -> Steps[Template]:
        rows = yield f"SELECT {COLUMNS} FROM prompt_template WHERE owner = ? AND template_id = ?", (owner, template_id)
        return template_of(one_row(rows, "template.not_found", template_id))

    async def list(
        self,
        owner: str,
        *,
        scenario: str | None = None,
        app: str | None = None,
        is_skill: bool | None = None,
        enabled: bool | None = None,
    ) -> Sequence[Template]:
        """By priority, the highest first, then by `sort`. With `app`, those that support it, in any case of letters."""
        found = await self._list(owner, scenario, is_skill, enabled)
        if app is None:
            return found
        host = app.casefold()
        return [t for t in found if not t.supported_apps or host in {name.casefold() for name in t.supported_apps}]

    @read_cached
    def _list(
        self, owner: str, scenario: str | None, is_skill: bool | None, enabled: bool | None
    ) -> Steps[Sequence[Template]]:
        condition, values = where({"owner": owner, "scenario": scenario, "is_skill": is_skill, "enabled": enabled})
        rows = yield (
            f"SELECT {COLUMNS} FROM prompt_template WHERE {condition} ORDER BY priority DESC, sort, name, template_id",
            values,
        )
        return [template_of(row) for row in rows]

    @write
    def delete(self, owner: str, template_id: str) -> Steps[None]:
        rows = yield (
            "DELETE FROM prompt_template WHERE owner = ? AND template_id = ? RETURNING template_id",
            (owner, template_id),
        )
        one_row(rows, "template.not_found", template_id)


class Profile(Group):
    @read_cached
    def get(self, owner: str) -> Steps[Mapping[str, Any]]:
        """All named values, by name."""
        rows = yield "SELECT name, value FROM user_profile WHERE owner = ? ORDER BY name", (owner,)
        return dict(read_row("user_profile", "name, value", row) for row in rows)

    async def set(self, owner: str, values: Mapping[str, Any]) -> None:
        now = self._clock()
        rows = [(owner, clean(name, "field.name", MAX_NAME), dump(value), now) for name, value in values.items()]
        await self._set(owner, rows)

    @write
    def _set(self, owner: str, rows: Sequence[Row]) -> Steps[None]:
        yield from count_on(owner, "profile")
        ending = f"ON CONFLICT (owner, name) DO UPDATE SET {set_excluded(['value', 'updated'])}"
        yield from insert("user_profile", "owner, name, value, updated", rows, ending)

    @write
    def delete(self, owner: str, name: str) -> Steps[None]:
        rows = yield "DELETE FROM user_profile WHERE owner = ? AND name = ? RETURNING name", (owner, name)
        one_row(rows, "profile.not_found", name)
