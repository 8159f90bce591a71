"""Sessions, each of one owner and with messages in an order of its own, and one summary of what each was about."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Unpack

from lamina.errors import ABSENT, NotFoundError, format_value
from lamina.records import (
    MAX_PHASE_CHARACTERS,
    REQUESTS,
    FoundMessage,
    Job,
    SearchHits,
    Session,
    SessionChanges,
    Summary,
)
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
    insert,
    marks,
    new_id,
    not_found,
)
from lamina.store.jobs import complete_job
from lamina.store.messages import MESSAGE, message_of, query_words, snippet
from lamina.store.search import copy_plan, drop_plan, is_planned
from lamina.store.shapes import read_row

NAMES = tuple(field.name for field in fields(Session))
COLUMNS = ", ".join(NAMES)
LATER_COLUMNS = {
    "runtime": "{}",
    **{field.name: field.default for field in fields(Session)[NAMES.index("runtime") + 1 :]},
}
"""Columns that came after the first migration, and what a row is given that was written before them."""
MAX_CHARACTERS = {"title": MAX_TITLE, "phase": MAX_PHASE_CHARACTERS}
"""Characters of a text that may be longer than a name."""
SUMMARY = "owner, session_id, version, text, upto_seq, written_by, created, memory_ids"
CHANGES = frozenset(SessionChanges.__annotations__)
SECRET = ("owner_counter", "secret")
"""Where the secret of an owner is kept: the table, and the name in it. It is in no export, and no import brings one."""
SEARCH_SECONDS = 2.0
"""How long a search may look for messages."""
SECRET_BITS, MAX_SECRETS = 52, 10_000
"""Bits that every JSON reader keeps, and how many secrets are held in memory."""


def session_of(row: Row) -> Session:
    return Session(*read_row("chat_session", COLUMNS, row))


def _stored(name: str, value: Any, now: float) -> str | float | None:
    """A change as the table keeps it: text that is fit to be kept, JSON, or when something came to be so."""
    if isinstance(value, str):
        return clean(value, f"field.{name}", MAX_CHARACTERS.get(name, MAX_NAME))
    if isinstance(value, bool):
        return now if value else None
    return dump(value)


def get_session(owner: str, session_id: str) -> Steps[Session]:
    rows = yield f"SELECT {COLUMNS} FROM chat_session WHERE owner = ? AND session_id = ?", (owner, session_id)
    if not rows:
        raise not_found("session.not_found", session_id)
    return session_of(rows[0])


def _keep_secret(owner: str, value: int) -> Steps[int]:
    """The owner's secret: the value, unless there is one already."""
    yield from insert("owner_counter", "owner, name, value", [(owner, SECRET[1], value)], "ON CONFLICT DO NOTHING")
    return (yield from _secret(owner)) or value


def _secret(owner: str) -> Steps[int]:
    rows = yield "SELECT value FROM owner_counter WHERE owner = ? AND name = ?", (owner, SECRET[1])
    return int(rows[0][0]) if rows else 0


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


def _first(session: Session, secret: int) -> Steps[Session]:
    """A new session, and with an owner's first one the secret."""
    made = yield from _new(session)
    yield from _keep_secret(session.owner, secret)
    return made


def _list(owner: str, limit: int, before: int | None) -> Steps[list[Session]]:
    rows = yield (
        f"SELECT {COLUMNS} FROM chat_session WHERE owner = ? AND activity < ? AND session_id <> ? "
        "ORDER BY activity DESC LIMIT ?",
        (owner, 2**62 if before is None else before, REQUESTS, limit),
    )
    return [session_of(row) for row in rows]


def _search(db: Database, owner: str, query: str, limit: int) -> Steps[SearchHits]:
    found = SearchHits()
    if "search" in db.damaged_indexes or (yield from is_planned(owner)):
        found.incomplete = "index_rebuilding"
    wanted = query_words(query)
    if not wanted:
        return found
    places, in_time = yield from db.dialect.search.find(owner, wanted, limit)
    if not in_time:
        found.incomplete = "time_limit"
    for session_id, seq in places:  # by their keys, one by one: a join would tempt a planner to read the whole session
        session = yield from get_session(owner, session_id)
        messages = yield (
            f"SELECT {MESSAGE} FROM conversation WHERE owner = ? AND session_id = ? AND seq = ?",
            (owner, session_id, seq),
        )
        message = message_of(messages[0])
        found.append(FoundMessage(session, message, snippet(message.text, query)))
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
        raise not_found("session.not_found", session_id)
    session = session_of(rows[0])
    if not runtime:
        return session
    merged = {**session.runtime, **runtime}  # what is named changes, the rest stays
    yield "UPDATE chat_session SET runtime = ? WHERE owner = ? AND session_id = ?", (dump(merged), owner, session_id)
    return replace(session, runtime=merged)


def _branch(
    db: Database, owner: str, session_id: str, seq: int, title: str | None, name: str, now: float
) -> Steps[Session]:
    parent = yield from get_session(owner, session_id)
    if not 1 <= seq <= parent.last_seq:
        raise NotFoundError("message.no_such_number", session=format_value(session_id), seq=seq, hint=ABSENT)
    copy = Session(
        owner=owner, session_id=name or new_id(), title=parent.title if title is None else title,
        scenario=parent.scenario,
        app=parent.app, mode=parent.mode, skill=parent.skill, meta=parent.meta, injection={}, last_seq=seq, activity=0,
        created=now, updated=now, parent_id=session_id, parent_seq=seq, phase=parent.phase,
    )  # fmt: skip
    made = yield from _new(copy)
    if name:  # another transaction that makes it was waited for
        rows = yield "SELECT 1 FROM conversation WHERE owner = ? AND session_id = ? LIMIT 1", (owner, name)
        if rows:
            return made
    # An answer that still streams in the parent is incomplete here and stays so.
    yield (
        "INSERT INTO conversation (owner, session_id, seq, message_id, turn_id, role, content, content_type, extra, "
        "state, is_collected, collected, tokens, created) SELECT owner, CAST(? AS TEXT), seq, "
        "CAST(? AS TEXT) || CAST(seq AS TEXT), turn_id, role, content, content_type, extra, "
        "CASE WHEN state = 'streaming' THEN 'interrupted' ELSE state END, 0, 0, tokens, created "
        "FROM conversation WHERE owner = ? AND session_id = ? AND seq <= ?",
        (made.session_id, f"{made.session_id}.", owner, session_id, seq),
    )
    yield from db.dialect.search.copy_words(owner, session_id, made.session_id, seq)
    yield from copy_plan(owner, session_id, made.session_id)
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
    for table in ("turn", "conversation", "session_summary", "chat_session"):
        yield f"DELETE FROM {table} WHERE owner = ? AND session_id = ?", here
    yield from db.dialect.search.erase(owner, session_id)
    yield from drop_plan(owner, session_id)


def _random() -> int:
    return 1 + secrets.randbits(SECRET_BITS)


class Sessions:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._secrets: dict[str, bytes] = {}

    async def new(
        self, owner: str, *, title: str = "", scenario: str = "common", app: str = "", mode: str = "", skill: str = "",
        meta: Mapping[str, Any] | None = None, session_id: str = "", phase: str = "",
    ) -> Session:  # fmt: skip
        """A new session without messages; with the id of one that is there, that one. Memories and profile stay."""
        now = self._clock()
        session = Session(
            owner=owner, session_id=clean(session_id, "field.session_id", MAX_NAME) or new_id(),
            title=clean(title, "field.title", MAX_TITLE), scenario=clean(scenario, "field.scenario", MAX_NAME),
            app=clean(app, "field.app", MAX_NAME), mode=clean(mode, "field.mode", MAX_NAME),
            skill=clean(skill, "field.skill", MAX_NAME), meta=meta or {}, injection={}, last_seq=0, activity=0,
            created=now, updated=now, phase=clean(phase, "field.phase", MAX_PHASE_CHARACTERS),
        )  # fmt: skip
        secret = _random()
        return await self._db.write(owner, lambda: _first(session, secret))

    async def secret(self, owner: str) -> bytes:
        """From which the marks of the owner's sessions are made. The same for ever, in every process, and in no
        export; what 0.1.0 has stored gets one when it is first asked for."""
        if owner not in self._secrets:
            found, made = await self._db.read(owner, lambda: _secret(owner)), _random()
            found = found or await self._db.write(owner, lambda: _keep_secret(owner, made))
            if len(self._secrets) >= MAX_SECRETS:
                self._secrets.clear()
            self._secrets[owner] = found.to_bytes(8)
        return self._secrets[owner]

    async def get(self, owner: str, session_id: str) -> Session:
        return await self._db.read(owner, lambda: get_session(owner, session_id))

    async def list(self, owner: str, *, limit: int = 50, before: int | None = None) -> Sequence[Session]:
        """The latest first, without that of single requests; `before` is the `activity` of the last one seen."""
        return await self._db.read(owner, lambda: _list(owner, limit, before))

    async def search(self, owner: str, query: str, *, limit: int = 20, seconds: float = SEARCH_SECONDS) -> SearchHits:
        """Messages that have all the words, newest sessions first; `incomplete` says whether there may be more."""
        return await self._db.read(owner, lambda: _search(self._db, owner, query, limit), seconds=seconds)

    async def searches_all(self, owner: str) -> bool:
        """Whether a search looks at all messages; not while the index is damaged or being rebuilt."""
        return "search" not in self._db.damaged_indexes and not await self._db.read(owner, lambda: is_planned(owner))

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
        clean(title or "", "field.title", MAX_TITLE)
        clean(name, "field.session_id", MAX_NAME)
        return await self._db.write(owner, lambda: _branch(self._db, owner, session_id, seq, title, name, now))

    async def delete(self, owner: str, session_id: str) -> None:
        """The session with its messages, turns, summary and stored layer texts. Memories stay."""
        await self._db.write(owner, lambda: _delete(self._db, owner, session_id))


# Summaries


def summary_of(row: Row) -> Summary:
    values = read_row("session_summary", SUMMARY, row)
    values[7] = tuple(values[7])
    return Summary(*values)


def _put_summary(
    owner: str, session_id: str, text: str, upto_seq: int, written_by: str, memory_ids: Sequence[str], now: float,
    done: Job | None, as_of: int | None,
) -> Steps[Summary | None]:  # fmt: skip
    if as_of is not None:
        rows = yield (
            "SELECT 1 FROM atomic_memory WHERE owner = ? AND change > ? AND state = 'forgotten' LIMIT 1",
            (owner, as_of),
        )
        if rows:
            return None
    if done is not None:
        yield from complete_job(done, now)
    yield from get_session(owner, session_id)
    number = yield from count_on(owner, "summary")
    rows = yield (
        "INSERT INTO session_summary (owner, session_id, version, number, text, upto_seq, written_by, created, "
        "memory_ids) VALUES (?, ?, 1, ?, ?, ?, ?, ?, ?) ON CONFLICT (owner, session_id) DO UPDATE SET "
        "version = session_summary.version + 1, number = excluded.number, text = excluded.text, "
        "upto_seq = excluded.upto_seq, written_by = excluded.written_by, created = excluded.created, "
        f"memory_ids = excluded.memory_ids RETURNING {SUMMARY}",
        (owner, session_id, number, text, upto_seq, written_by, now, dump(list(memory_ids))),
    )
    return summary_of(rows[0])


def _get_summary(owner: str, session_id: str) -> Steps[Summary]:
    rows = yield f"SELECT {SUMMARY} FROM session_summary WHERE owner = ? AND session_id = ?", (owner, session_id)
    if not rows:
        raise not_found("summary.not_found", session_id)
    return summary_of(rows[0])


def _recent_summaries(owner: str, limit: int, without: str) -> Steps[list[Summary]]:
    rows = yield (
        f"SELECT {SUMMARY} FROM session_summary WHERE owner = ? AND session_id <> ? ORDER BY number DESC LIMIT ?",
        (owner, without, limit),
    )
    return [summary_of(row) for row in rows]


def _delete_summary(owner: str, session_id: str) -> Steps[None]:
    rows = yield (
        "DELETE FROM session_summary WHERE owner = ? AND session_id = ? RETURNING session_id",
        (owner, session_id),
    )
    if not rows:
        raise not_found("summary.not_found", session_id)


class Summaries:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def put(
        self, owner: str, session_id: str, text: str, *, upto_seq: int, written_by: str = "",
        memory_ids: Sequence[str] = (), done: Job | None = None, as_of: int | None = None,
    ) -> Summary | None:  # fmt: skip
        """Write a session's summary; a later one takes the place of the earlier, with the next version.

        `as_of` is the change number of the memories when it was begun: when a fact was forgotten since, nothing is
        written and None comes back, since the text may still hold it.
        """
        now = self._clock()
        clean(text, "field.summary")
        return await self._db.write(
            owner, lambda: _put_summary(owner, session_id, text, upto_seq, written_by, memory_ids, now, done, as_of)
        )

    async def get(self, owner: str, session_id: str) -> Summary:
        return await self._db.read(owner, lambda: _get_summary(owner, session_id))

    async def recent(self, owner: str, *, limit: int = 5, without: str = "") -> Sequence[Summary]:
        """The latest written first, the session `without` left out."""
        asked = f"summaries {limit} {without}"
        return await self._db.read_cached(owner, asked, lambda: _recent_summaries(owner, limit, without))

    async def delete(self, owner: str, session_id: str) -> None:
        await self._db.write(owner, lambda: _delete_summary(owner, session_id))
