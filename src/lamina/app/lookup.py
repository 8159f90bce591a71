"""What the front ends find for an owner: ids by their beginning, a chat from a file, origins, templates and skills.

What belongs to another owner is not found, in the same words as what is not there. All of a file or folder of templates
is checked before any of it is stored.
"""

import asyncio
import json
import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lamina.app.config import parse_json, read_history, read_text
from lamina.errors import ABSENT, InputError, LaminaError, NotFoundError, SettingsError, format_value
from lamina.prompts.approvals import Approvals
from lamina.prompts.sources import SHARED
from lamina.prompts.templates import FIELDS, slots_of, supports, template_of
from lamina.records import MAX_PHASE_CHARACTERS, Memory, Session, StoredMessage, Template, TurnRecord
from lamina.settings import Settings
from lamina.store.admin import Kind
from lamina.store.database import MAX_TITLE
from lamina.store.messages import query_words
from lamina.store.store import Store
from lamina.text.messages import Phrase
from lamina.text.terms import normalize_text
from lamina.text.unicode import hidden_characters, is_unicode
from lamina.types import Context

if TYPE_CHECKING:
    from lamina.app.app import App

MIN_ID_CHARACTERS = 4
"""Characters of an id that are enough, where no other begins so."""
KINDS: dict[Kind, Phrase] = {
    "session": Phrase("kind.session"), "turn": Phrase("kind.turn"), "message": Phrase("kind.message"),
    "memory": Phrase("kind.memory"), "job": Phrase("kind.job"),
}  # fmt: skip
NOT_FOUND: dict[Kind, str] = {
    "session": "session.not_found", "turn": "turn.not_found", "message": "message.not_found",
    "memory": "memory.not_found", "job": "job.not_found",
}  # fmt: skip
LAST = "last"
NO_PHASE = ("none", "off", "-")
"""What takes a phase prompt away where one is typed."""


def read_phase(words: str) -> str:
    """The phase prompt that a user typed; empty where it is removed."""
    phase = "" if words.strip().lower() in NO_PHASE else words.strip()
    if len(phase) > MAX_PHASE_CHARACTERS:
        raise InputError("phase.too_long", size=len(phase), limit=MAX_PHASE_CHARACTERS)
    return phase


async def find_id(store: Store, owner: str, kind: Kind, begin: str) -> str:
    """The one id of this owner that is this or begins so."""
    found = await store.admin.ids(owner, kind, begin) if begin else ()
    if found and found[0] == begin:
        return begin
    if len(begin) < MIN_ID_CHARACTERS:
        raise InputError("id.too_short", name=format_value(begin), kind=KINDS[kind], least=MIN_ID_CHARACTERS)
    if len(found) > 1:
        raise InputError("id.ambiguous", name=format_value(begin), kind=KINDS[kind])
    if not found:
        raise NotFoundError(NOT_FOUND[kind], hint=ABSENT, name=format_value(begin))
    return found[0]


async def find_session(store: Store, owner: str, name: str) -> Session:
    """A session by its id, the beginning of it, or `last` for the one in which something happened last."""
    if name == LAST and LAST not in await store.admin.ids(owner, "session", LAST):
        latest = await store.sessions.list(owner, limit=1)
        if not latest:
            raise NotFoundError("session.none_yet")
        return latest[0]
    return await store.sessions.get(owner, await find_id(store, owner, "session", name))


async def find_message(store: Store, owner: str, name: str) -> StoredMessage:
    """A message by its id, the beginning of it, or its place: `SESSION#NUMBER`."""
    begin, sign, number = name.rpartition("#")
    if not sign:
        return await store.messages.get(owner, await find_id(store, owner, "message", name))
    session = await find_session(store, owner, begin)
    seq = int(number) if number.isascii() and number.isdigit() and len(number) < 16 else 0
    rows = await store.messages.list(owner, session.session_id, after=seq - 1, before=seq + 1) if seq else ()
    if not rows:
        raise NotFoundError(
            "message.not_in_session", number=format_value(number), session=session.session_id, count=session.last_seq
        )
    return rows[0]


async def find_memory(store: Store, owner: str, name: str) -> Memory:
    return await store.memories.get(owner, await find_id(store, owner, "memory", name))


async def enabled_skills(store: Store, owner: str) -> list[Template]:
    return [t for of in (owner, SHARED) for t in await store.templates.list(of, is_skill=True, enabled=True)]


async def usable_skills(store: Store, owner: str, host: str) -> list[Template]:
    """The skills that can be chosen in an app: those for others would be refused."""
    return [template for template in await enabled_skills(store, owner) if supports(template, host)]


async def check_skill(store: Store, owner: str, name: str, host: str) -> None:
    """A slip in a skill's name is better heard of at once than in a notice on every turn."""
    if not name:
        return
    found = await enabled_skills(store, owner)
    known = list(dict.fromkeys(t.name for t in found if supports(t, host)))
    if name in known:
        return
    apps = list(dict.fromkeys(app for t in found if t.name == name for app in t.supported_apps))
    if apps:
        raise InputError(
            "skill.not_enabled", hint="skill.for_other_apps", name=format_value(name), apps=apps, app=apps[0]
        )
    raise InputError(
        "skill.not_enabled", hint="skill.known" if known else "skill.none_known", name=format_value(name), known=known
    )


def hits(piece: str, query: str) -> list[tuple[int, int]]:
    """The positions of the words of a query in a piece of text, in order and without overlaps."""
    folded = "".join(small if len(small := normalize_text(c)) == 1 else c for c in piece)
    places: set[int] = set()
    for word in query_words(query):
        at = folded.find(word)
        while at >= 0:
            places.update(range(at, at + len(word)))
            at = folded.find(word, at + 1)
    found: list[tuple[int, int]] = []
    for place in sorted(places):
        if found and found[-1][1] == place:
            found[-1] = (found[-1][0], place + 1)
        else:
            found.append((place, place + 1))
    return found


async def import_chat(app: "App", owner: str, path: Path, *, title: str | None = None) -> Session:
    """A chat from a file as a new session, whole or not at all; without a title it has that of the file."""
    messages = read_history(path)
    if not messages:
        raise InputError("file.no_messages", hint="file.messages_form", path=path.name)
    session = await app.new_session(owner, title=path.stem[:MAX_TITLE] if title is None else title)
    try:
        await app.store.messages.append(owner, session.session_id, messages)
    except LaminaError:
        await app.store.sessions.delete(owner, session.session_id)
        raise
    return await app.store.sessions.get(owner, session.session_id)


async def context_of(app: "App", owner: str, session: str, user: str, values: Mapping[str, str]) -> Context:
    """What the model would see in a session. The index is read first, so that the deadline is not spent on a start."""
    found = await find_session(app.store, owner, session)
    if app.settings.memory:  # when this fails the context says so, as on any turn
        await asyncio.gather(app.recall.search(owner, user, limit=1), return_exceptions=True)
    return await app.context(owner, found.session_id, user, values=values)


async def forget(app: "App", owner: str, ids: Sequence[str]) -> list[Session]:
    """Erase facts; the sessions whose summary went with them get a new one in the background."""
    gone = await app.memory(owner).forget(*ids)
    return [await app.store.sessions.get(owner, session_id) for session_id in gone]


@dataclass(frozen=True, slots=True)
class MemoryOrigin:
    """Where a memory came from, and what it took the place of; None for what was said outside a session or is gone."""

    session: Session | None
    turn: TurnRecord | None
    message: StoredMessage | None
    superseded_by: Memory | None
    supersedes: tuple[Memory, ...]


async def origin_of(store: Store, owner: str, memory: Memory) -> MemoryOrigin:
    session = turn = message = None
    if memory.session_id:
        try:
            session = await store.sessions.get(owner, memory.session_id)
            turn = await store.turns.get(owner, memory.turn_id)
            message = await store.messages.get(owner, turn.user_message_id)
        except NotFoundError:  # deleted since
            pass
    later = await store.memories.many(owner, [memory.superseded_by] if memory.superseded_by else [])
    earlier = await store.memories.replaced(owner, memory.memory_id)
    return MemoryOrigin(session, turn, message, later[0] if later else None, tuple(earlier))


MAX_FILE_BYTES = 16 * 1024 * 1024
TEXT_FIELDS = ("name", "content", "description", "scenario")


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


def find_unfilled_slots(
    templates: Sequence[Template], known: Container[str], settings: Settings
) -> list[tuple[Template, str]]:
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
