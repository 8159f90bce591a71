"""Sessions: new, get, list, search, update, branch, delete. Each belongs to one owner and orders its own messages."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Unpack

from lamina.records import REQUESTS, Found, Session, SessionChanges
from lamina.store.database import (
    MAX_NAME,
    MAX_TITLE,
    Clock,
    Database,
    Row,
    Steps,
    clean,
    count_on,
    dump,
    load,
    marks,
    missing,
    new_id,
)
from lamina.store.rows import MESSAGE, message_of
from lamina.store.words import query_words, snippet

NAMES = tuple(field.name for field in fields(Session))
COLUMNS = ", ".join(NAMES)
LATER_COLUMNS = {
    "runtime": "{}",
    **{field.name: field.default for field in fields(Session)[NAMES.index("runtime") + 1 :]},
}
"""Columns that came after the first migration, and what a row is given that was written before them."""
CHANGES = frozenset(SessionChanges.__annotations__)


def session_of(row: Row) -> Session:
    values = list(row)
    values[7], values[8], values[16] = load(values[7]), load(values[8]), load(values[16])
    return Session(*values)


def _stored(name: str, value: Any, now: float) -> str | float | None:
    """A change as the table keeps it: text that is fit to be kept, JSON, or when something came to be so."""
    if isinstance(value, str):
        return clean(value, f"the {name}", MAX_TITLE if name == "title" else MAX_NAME)
    if isinstance(value, bool):
        return now if value else None
    return dump(value)


def get_session(owner: str, session_id: str) -> Steps[Session]:
    rows = yield f"SELECT {COLUMNS} FROM chat_session WHERE owner = ? AND session_id = ?", (owner, session_id)
    if not rows:
        raise missing("session", session_id)
    return session_of(rows[0])


def _new(session: Session) -> Steps[Session]:
    activity = yield from count_on(session.owner, "activity")
    values: list[Any] = [getattr(session, name) for name in NAMES]
    values[7], values[8], values[10], values[16] = dump(session.meta), dump(session.injection), activity, "{}"
    rows = yield (
        f"INSERT INTO chat_session ({COLUMNS}) VALUES ({marks(len(NAMES))}) "
        f"ON CONFLICT (owner, session_id) DO NOTHING RETURNING {COLUMNS}",
        values,
    )
    return session_of(rows[0]) if rows else (yield from get_session(session.owner, session.session_id))


def _list(owner: str, limit: int, before: int | None) -> Steps[list[Session]]:
    rows = yield (
        f"SELECT {COLUMNS} FROM chat_session WHERE owner = ? AND activity < ? AND session_id <> ? "
        "ORDER BY activity DESC LIMIT ?",
        (owner, 2**62 if before is None else before, REQUESTS, limit),
    )
    return [session_of(row) for row in rows]


def _search(db: Database, owner: str, query: str, limit: int) -> Steps[list[Found]]:
    wanted = query_words(query)
    if not wanted:
        return []
    rows = yield (
        "SELECT w.session_id, w.seq FROM message_words w "
        "JOIN chat_session s ON s.owner = w.owner AND s.session_id = w.session_id "
        f"WHERE w.owner = ? AND w.{db.dialect.words_match} ORDER BY s.activity DESC, w.seq DESC LIMIT ?",
        (owner, db.dialect.match(owner, wanted), limit),
    )
    found: list[Found] = []
    for session_id, seq in rows:  # by their keys, one by one: a join would tempt a planner to read the whole session
        session = yield from get_session(owner, session_id)
        messages = yield (
            f"SELECT {MESSAGE} FROM conversation WHERE owner = ? AND session_id = ? AND seq = ?",
            (owner, session_id, seq),
        )
        message = message_of(messages[0])
        found.append(Found(session, message, snippet(message.text, query)))
    return found


def _update(
    owner: str, session_id: str, changes: Mapping[str, Any], runtime: Mapping[str, Any], now: float
) -> Steps[Session]:
    activity = yield from count_on(owner, "activity")
    values = {**changes, "updated": now, "activity": activity}
    rows = yield (
        f"UPDATE chat_session SET {', '.join(f'{name} = ?' for name in values)} "
        f"WHERE owner = ? AND session_id = ? RETURNING {COLUMNS}",
        (*values.values(), owner, session_id),
    )
    if not rows:
        raise missing("session", session_id)
    session = session_of(rows[0])
    if not runtime:
        return session
    merged = {**session.runtime, **runtime}  # what is named changes, the rest stays
    yield "UPDATE chat_session SET runtime = ? WHERE owner = ? AND session_id = ?", (dump(merged), owner, session_id)
    return replace(session, runtime=merged)


def _branch(owner: str, session_id: str, seq: int, title: str | None, name: str, now: float) -> Steps[Session]:
    parent = yield from get_session(owner, session_id)
    if not 1 <= seq <= parent.last_seq:
        raise missing(f"message in session {session_id!r} with number", seq)
    copy = Session(
        owner=owner, session_id=name or new_id(), title=parent.title if title is None else title,
        scenario=parent.scenario,
        app=parent.app, mode=parent.mode, skill=parent.skill, meta=parent.meta, injection={}, last_seq=seq, activity=0,
        created=now, updated=now, parent_id=session_id, parent_seq=seq,
    )  # fmt: skip
    made = yield from _new(copy)
    if name:  # whoever else makes it now was waited for
        rows = yield "SELECT 1 FROM conversation WHERE owner = ? AND session_id = ? LIMIT 1", (owner, name)
        if rows:
            return made
    # What still streams in the parent is only begun here, and nobody will go on with it.
    yield (
        "INSERT INTO conversation (owner, session_id, seq, message_id, turn_id, role, content, extra, state, "
        "is_collected, collected, tokens, created) SELECT owner, CAST(? AS TEXT), seq, "
        "CAST(? AS TEXT) || CAST(seq AS TEXT), turn_id, role, content, extra, "
        "CASE WHEN state = 'streaming' THEN 'interrupted' ELSE state END, 0, 0, tokens, created "
        "FROM conversation WHERE owner = ? AND session_id = ? AND seq <= ?",
        (made.session_id, f"{made.session_id}.", owner, session_id, seq),
    )
    yield (
        "INSERT INTO message_words (owner, session_id, seq, words) SELECT owner, CAST(? AS TEXT), seq, words "
        "FROM message_words WHERE owner = ? AND session_id = ? AND seq <= ?",
        (made.session_id, owner, session_id, seq),
    )
    return made


def _delete(db: Database, owner: str, session_id: str) -> Steps[None]:
    here = (owner, session_id)
    yield from get_session(owner, session_id)
    turns = "(SELECT turn_id FROM turn WHERE owner = ? AND session_id = ?)"
    yield f"DELETE FROM chunk WHERE owner = ? AND turn_id IN {turns}", (owner, *here)
    hashes = yield f"SELECT DISTINCT hash FROM turn_text WHERE owner = ? AND turn_id IN {turns}", (owner, *here)
    yield f"DELETE FROM turn_text WHERE owner = ? AND turn_id IN {turns}", (owner, *here)
    for row in hashes:
        yield (
            "DELETE FROM layer_text WHERE owner = ? AND hash = ? AND NOT EXISTS "
            "(SELECT 1 FROM turn_text t WHERE t.owner = ? AND t.hash = ?)",
            (owner, row[0], owner, row[0]),
        )
    for table in ("turn", "message_words", "conversation", "session_summary", "chat_session"):
        yield f"DELETE FROM {table} WHERE owner = ? AND session_id = ?", here
    if db.dialect.words_erase:
        yield db.dialect.words_erase, ()


class Sessions:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def new(
        self, owner: str, *, title: str = "", scenario: str = "common", app: str = "", mode: str = "", skill: str = "",
        meta: Mapping[str, Any] | None = None, session_id: str = "",
    ) -> Session:  # fmt: skip
        """A new session without messages; with the id of one that is there, that one. Memories and profile stay."""
        now = self._clock()
        session = Session(
            owner=owner, session_id=clean(session_id, "the session's id", MAX_NAME) or new_id(),
            title=clean(title, "the title", MAX_TITLE), scenario=clean(scenario, "the scenario", MAX_NAME),
            app=clean(app, "the app", MAX_NAME), mode=clean(mode, "the mode", MAX_NAME),
            skill=clean(skill, "the skill", MAX_NAME), meta=meta or {}, injection={}, last_seq=0, activity=0,
            created=now, updated=now,
        )  # fmt: skip
        return await self._db.write(owner, lambda: _new(session))

    async def get(self, owner: str, session_id: str) -> Session:
        return await self._db.read(owner, lambda: get_session(owner, session_id))

    async def list(self, owner: str, *, limit: int = 50, before: int | None = None) -> Sequence[Session]:
        """The latest first, without that of single requests; `before` is the `activity` of the last one seen."""
        return await self._db.read(owner, lambda: _list(owner, limit, before))

    async def search(self, owner: str, query: str, *, limit: int = 20) -> Sequence[Found]:
        """Messages that have all the words, newest sessions first."""
        return await self._db.read(owner, lambda: _search(self._db, owner, query, limit))

    async def update(self, owner: str, session_id: str, **changes: Unpack[SessionChanges]) -> Session:
        """Change what is given, leave the rest."""
        if unknown := changes.keys() - CHANGES:
            raise TypeError(f"a session has no {min(unknown)!r} that can be changed")
        now = self._clock()
        given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
        runtime = given.pop("runtime", {})
        stored = {name: _stored(name, value, now) for name, value in given.items()}
        return await self._db.write(owner, lambda: _update(owner, session_id, stored, runtime, now))

    async def branch(
        self, owner: str, session_id: str, seq: int, *, title: str | None = None, name: str = ""
    ) -> Session:
        """A new session with the messages up to `seq`; the old one stays as it is. `name` is the new one's id; with the
        id of a session that has messages already, that one."""
        now = self._clock()
        clean(title or "", "the title", MAX_TITLE)
        clean(name, "the session's id", MAX_NAME)
        return await self._db.write(owner, lambda: _branch(owner, session_id, seq, title, name, now))

    async def delete(self, owner: str, session_id: str) -> None:
        """The session with its messages, turns, summary and stored layer texts. Memories stay."""
        await self._db.write(owner, lambda: _delete(self._db, owner, session_id))
