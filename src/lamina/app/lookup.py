"""What the faces ask of chats and memories beyond one method: ids by their beginning, a chat from a file, origins.

Everything here is for one owner; what belongs to somebody else is not found, in the same words as what is not there.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lamina.app.app import App
from lamina.app.files import read_history
from lamina.errors import ABSENT, InputError, LaminaError, NotFoundError, format_value
from lamina.prompts.sources import SHARED
from lamina.prompts.templates import supports
from lamina.records import MAX_PHASE_CHARACTERS, Memory, Session, StoredMessage, Template, TurnRecord
from lamina.store.admin import Kind
from lamina.store.database import MAX_TITLE
from lamina.store.messages import fold, query_words
from lamina.store.store import Store
from lamina.text.messages import Phrase
from lamina.types import Context

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
    """The phase prompt that somebody typed; empty where they take it away."""
    phase = "" if words.strip().lower() in NO_PHASE else words.strip()
    if len(phase) > MAX_PHASE_CHARACTERS:
        raise InputError("phase.too_long", size=len(phase), limit=MAX_PHASE_CHARACTERS)
    return phase


async def whole_id(store: Store, owner: str, kind: Kind, begin: str) -> str:
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
    return await store.sessions.get(owner, await whole_id(store, owner, "session", name))


async def find_message(store: Store, owner: str, name: str) -> StoredMessage:
    """A message by its id, the beginning of it, or its place: `SESSION#NUMBER`."""
    begin, sign, number = name.rpartition("#")
    if not sign:
        return await store.messages.get(owner, await whole_id(store, owner, "message", name))
    session = await find_session(store, owner, begin)
    seq = int(number) if number.isascii() and number.isdigit() and len(number) < 16 else 0
    rows = await store.messages.list(owner, session.session_id, after=seq - 1, before=seq + 1) if seq else ()
    if not rows:
        raise NotFoundError(
            "message.not_in_session", number=format_value(number), session=session.session_id, count=session.last_seq
        )
    return rows[0]


async def find_memory(store: Store, owner: str, name: str) -> Memory:
    return await store.memories.get(owner, await whole_id(store, owner, "memory", name))


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
    """Where the words of a query stand in a piece of text, in order and without overlaps."""
    folded = "".join(small if len(small := fold(c)) == 1 else c for c in piece)
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


async def import_chat(app: App, owner: str, path: Path, *, title: str | None = None) -> Session:
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


async def context_of(app: App, owner: str, session: str, user: str, values: Mapping[str, str]) -> Context:
    """What the model would see in a session. The index is read first, so that the deadline is not spent on a start."""
    found = await find_session(app.store, owner, session)
    if app.settings.memory:  # when this fails the context says so, as on any turn
        await asyncio.gather(app.recall.search(owner, user, limit=1), return_exceptions=True)
    return await app.context(owner, found.session_id, user, values=values)


async def forget(app: App, owner: str, ids: Sequence[str]) -> list[Session]:
    """Erase facts; the sessions whose summary went with them get a new one in the background."""
    gone = await app.memory(owner).forget(*ids)
    return [await app.store.sessions.get(owner, session_id) for session_id in gone]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a memory came from, and what it took the place of; None for what was said outside a session or is gone."""

    session: Session | None
    turn: TurnRecord | None
    message: StoredMessage | None
    superseded_by: Memory | None
    supersedes: tuple[Memory, ...]


async def origin_of(store: Store, owner: str, memory: Memory) -> Origin:
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
    return Origin(session, turn, message, later[0] if later else None, tuple(earlier))
