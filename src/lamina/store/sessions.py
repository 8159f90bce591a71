"""Sessions, each of one owner and with messages in an order of its own, and one summary of what each was about."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    Group,
    Row,
    Steps,
    clean,
    column_values,
    columns_of,
    count_on,
    dump,
    insert,
    marks,
    new_id,
    one_row,
    read,
    read_cached,
    set_clause,
    set_excluded,
    write,
)
from lamina.store.jobs import complete_job
from lamina.store.messages import COLUMNS as MESSAGE_COLUMNS
from lamina.store.messages import copy_plan, drop_plan, is_planned, message_of, query_words, snippet
from lamina.store.schema import read_row

COLUMNS = columns_of(Session)
SUMMARY_COLUMNS = columns_of(Summary)
MAX_CHARACTERS = {"title": MAX_TITLE, "phase": MAX_PHASE_CHARACTERS}
"""Characters of a text that may be longer than a name."""
CHANGES = frozenset(SessionChanges.__annotations__)
SECRET = ("owner_counter", "secret")
"""Where the secret of an owner is kept: the table, and the name in it. It is in no export, and no import brings one."""
SEARCH_SECONDS = 2.0
"""How long a search may look for messages."""
SECRET_BITS, MAX_SECRETS = 52, 10_000
"""Bits that every JSON reader keeps, and how many secrets are held in memory."""


def session_of(row: Row) -> Session:
    return Session(*read_row("chat_session", COLUMNS, row))


def get_session(owner: str, session_id: str) -> Steps[Session]:
    rows = yield f"SELECT {COLUMNS} FROM chat_session WHERE owner = ? AND session_id = ?", (owner, session_id)
    return session_of(one_row(rows, "session.not_found", session_id))


def _insert(session: Session) -> Steps[Session]:
    """A new session; where its id is known already, the one that is there."""
    activity = yield from count_on(session.owner, "activity")
    rows = yield (
        f"INSERT INTO chat_session ({COLUMNS}) VALUES ({marks(COLUMNS.count(',') + 1)}) "
        f"ON CONFLICT (owner, session_id) DO NOTHING RETURNING {COLUMNS}",
        column_values(replace(session, activity=activity), COLUMNS),
    )
    return session_of(rows[0]) if rows else (yield from get_session(session.owner, session.session_id))


def _read_secret(owner: str) -> Steps[int]:
    rows = yield "SELECT value FROM owner_counter WHERE owner = ? AND name = ?", (owner, SECRET[1])
    return int(rows[0][0]) if rows else 0


def _keep_secret(owner: str) -> Steps[int]:
    """The owner's secret: a new one, unless there is one already."""
    value = 1 + secrets.randbits(SECRET_BITS)
    yield from insert("owner_counter", "owner, name, value", [(owner, SECRET[1], value)], "ON CONFLICT DO NOTHING")
    return (yield from _read_secret(owner)) or value


def change_session(
    owner: str, session_id: str, values: Mapping[str, Any], runtime: Mapping[str, Any] | None, now: float
) -> Steps[None]:
    """Change columns of a session; of `runtime` what is named changes, and the rest of it stays."""
    changed = {**values, "updated": now}
    rows = yield (
        f"UPDATE chat_session SET {set_clause(changed)} WHERE owner = ? AND session_id = ? RETURNING runtime",
        (*changed.values(), owner, session_id),  # this also locks the row
    )
    row = one_row(rows, "session.not_found", session_id)
    if runtime:
        (before,) = read_row("chat_session", "runtime", row)
        after = dump({**before, **runtime})
        yield "UPDATE chat_session SET runtime = ? WHERE owner = ? AND session_id = ?", (after, owner, session_id)


def _stored(name: str, value: Any, now: float) -> str | float | None:
    """A change as the table keeps it: text that is fit to be kept, JSON, or when something came to be so."""
    if isinstance(value, str):
        return clean(value, f"field.{name}", MAX_CHARACTERS.get(name, MAX_NAME))
    if isinstance(value, bool):
        return now if value else None
    return dump(value)


class Sessions(Group):
    def __init__(self, db: Database, clock: Clock) -> None:
        super().__init__(db, clock)
        self._secrets: dict[str, bytes] = {}

    async def new(
        self,
        owner: str,
        *,
        title: str = "",
        scenario: str = "common",
        app: str = "",
        mode: str = "",
        skill: str = "",
        meta: Mapping[str, Any] | None = None,
        session_id: str = "",
        phase: str = "",
    ) -> Session:
        """A new session without messages; with the id of one that is there, that one. Memories and profile stay."""
        now = self._clock()
        session = Session(
            owner=owner, session_id=clean(session_id, "field.session_id", MAX_NAME) or new_id(),
            title=clean(title, "field.title", MAX_TITLE), scenario=clean(scenario, "field.scenario", MAX_NAME),
            app=clean(app, "field.app", MAX_NAME), mode=clean(mode, "field.mode", MAX_NAME),
            skill=clean(skill, "field.skill", MAX_NAME), meta=meta or {}, injection={}, last_seq=0, activity=0,
            created=now, updated=now, phase=clean(phase, "field.phase", MAX_PHASE_CHARACTERS),
        )  # fmt: skip
        return await self._new(owner, session)

    @write
    def _new(self, owner: str, session: Session) -> Steps[Session]:
        """With the first session its owner gets a secret."""
        stored = yield from _insert(session)
        yield from _keep_secret(owner)
        return stored

    async def secret(self, owner: str) -> bytes:
        """From which the marks of the owner's sessions are made. The same for ever, in every process, and in no
        export; what 0.1.0 has stored gets one when it is first asked for."""
        if owner not in self._secrets:
            found = await self._secret(owner) or await self._new_secret(owner)
            if len(self._secrets) >= MAX_SECRETS:
                self._secrets.clear()
            self._secrets[owner] = found.to_bytes(8)
        return self._secrets[owner]

    @read
    def _secret(self, owner: str) -> Steps[int]:
        return _read_secret(owner)

    @write
    def _new_secret(self, owner: str) -> Steps[int]:
        return _keep_secret(owner)

    @read
    def get(self, owner: str, session_id: str) -> Steps[Session]:
        return get_session(owner, session_id)

    @read
    def list(self, owner: str, *, limit: int = 50, before: int | None = None) -> Steps[Sequence[Session]]:
        """The latest first, without that of single requests; `before` is the `activity` of the last one seen."""
        rows = yield (
            f"SELECT {COLUMNS} FROM chat_session WHERE owner = ? AND activity < ? AND session_id <> ? "
            "ORDER BY activity DESC LIMIT ?",
            (owner, 2**62 if before is None else before, REQUESTS, limit),
        )
        return [session_of(row) for row in rows]

    async def search(self, owner: str, query: str, *, limit: int = 20, seconds: float = SEARCH_SECONDS) -> SearchHits:
        """Messages that have all the words, newest sessions first; `incomplete` says whether there may be more."""
        return await self._db.read(owner, lambda: self._search(owner, query, limit), seconds=seconds)

    def _search(self, owner: str, query: str, limit: int) -> Steps[SearchHits]:
        found = SearchHits()
        if not (yield from self._is_complete(owner)):
            found.incomplete = "index_rebuilding"
        wanted = query_words(query)
        if not wanted:
            return found
        places, in_time = yield from self._db.dialect.search.find(owner, wanted, limit)
        if not in_time:
            found.incomplete = "time_limit"
        for session_id, seq in places:  # by their keys: a join would tempt a planner to read the whole session
            session = yield from get_session(owner, session_id)
            messages = yield (
                f"SELECT {MESSAGE_COLUMNS} FROM conversation WHERE owner = ? AND session_id = ? AND seq = ?",
                (owner, session_id, seq),
            )
            message = message_of(messages[0])
            found.append(FoundMessage(session, message, snippet(message.text, query)))
        return found

    @read
    def searches_all(self, owner: str) -> Steps[bool]:
        """Whether a search looks at all messages; not while the index is damaged or being rebuilt."""
        return self._is_complete(owner)

    def _is_complete(self, owner: str) -> Steps[bool]:
        return "search" not in self._db.damaged_indexes and not (yield from is_planned(owner))

    async def update(self, owner: str, session_id: str, **changes: Unpack[SessionChanges]) -> Session:
        """Change what is given, leave the rest."""
        if unknown := changes.keys() - CHANGES:
            raise TypeError(f"a session has no {min(unknown)!r} that can be changed")
        now = self._clock()
        given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
        runtime = given.pop("runtime", None)
        return await self._update(owner, session_id, {n: _stored(n, v, now) for n, v in given.items()}, runtime, now)

    @write
    def _update(
        self, owner: str, session_id: str, values: Mapping[str, Any], runtime: Mapping[str, Any] | None, now: float
    ) -> Steps[Session]:
        activity = yield from count_on(owner, "activity")
        yield from change_session(owner, session_id, {**values, "activity": activity}, runtime, now)
        return (yield from get_session(owner, session_id))

    @write
    def branch(
        self, owner: str, session_id: str, seq: int, *, title: str | None = None, name: str = ""
    ) -> Steps[Session]:
        """A new session with the messages up to `seq`; the old one stays as it is. `name` is the new one's id; with the
        id of a session that has messages already, that one."""
        now = self._clock()
        clean(title or "", "field.title", MAX_TITLE)
        clean(name, "field.session_id", MAX_NAME)
        parent = yield from get_session(owner, session_id)
        if not 1 <= seq <= parent.last_seq:
            raise NotFoundError("message.no_such_number", session=format_value(session_id), seq=seq, hint=ABSENT)
        copy = replace(
            parent, session_id=name or new_id(), title=parent.title if title is None else title, injection={},
            runtime={}, last_seq=seq, created=now, updated=now, ended=None, parent_id=session_id, parent_seq=seq,
        )  # fmt: skip
        made = yield from _insert(copy)
        if name:  # another transaction that makes it was waited for
            rows = yield "SELECT 1 FROM conversation WHERE owner = ? AND session_id = ? LIMIT 1", (owner, name)
            if rows:
                return made
        # An answer that still streams in the parent is incomplete here and stays so.
        yield (
            "INSERT INTO conversation (owner, session_id, seq, message_id, turn_id, role, content, content_type, "
            "extra, state, is_collected, collected, tokens, created) SELECT owner, CAST(? AS TEXT), seq, "
            "CAST(? AS TEXT) || CAST(seq AS TEXT), turn_id, role, content, content_type, extra, "
            "CASE WHEN state = 'streaming' THEN 'interrupted' ELSE state END, 0, 0, tokens, created "
            "FROM conversation WHERE owner = ? AND session_id = ? AND seq <= ?",
            (made.session_id, f"{made.session_id}.", owner, session_id, seq),
        )
        yield from self._db.dialect.search.copy_words(owner, session_id, made.session_id, seq)
        yield from copy_plan(owner, session_id, made.session_id)
        return made

    @write
    def delete(self, owner: str, session_id: str) -> Steps[None]:
        """The session with its messages, turns, summary and stored layer texts. Memories stay."""
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
        yield from self._db.dialect.search.erase(owner, session_id)
        yield from drop_plan(owner, session_id)


# Summaries


def summary_of(row: Row) -> Summary:
    return Summary(*read_row("session_summary", SUMMARY_COLUMNS, row))


class Summaries(Group):
    async def put(
        self,
        owner: str,
        session_id: str,
        text: str,
        *,
        upto_seq: int,
        written_by: str = "",
        memory_ids: Sequence[str] = (),
        done: Job | None = None,
        as_of: int | None = None,
    ) -> Summary | None:
        """Write a session's summary; a later one takes the place of the earlier, with the next version.

        `as_of` is the change number of the memories when it was begun: when a fact was forgotten since, nothing is
        written and None is returned, since the text may still hold it.
        """
        summary = Summary(owner, session_id, 1, clean(text, "field.summary"), upto_seq, written_by, self._clock(),
                          tuple(memory_ids))  # fmt: skip
        return await self._put(owner, summary, done, as_of)

    @write
    def _put(self, owner: str, summary: Summary, done: Job | None, as_of: int | None) -> Steps[Summary | None]:
        if as_of is not None:
            rows = yield (
                "SELECT 1 FROM atomic_memory WHERE owner = ? AND change > ? AND state = 'forgotten' LIMIT 1",
                (owner, as_of),
            )
            if rows:
                return None
        if done is not None:
            yield from complete_job(done, summary.created)
        yield from get_session(owner, summary.session_id)
        number = yield from count_on(owner, "summary")
        changed = ("number", "text", "upto_seq", "written_by", "created", "memory_ids")
        rows = yield from insert(
            "session_summary",
            f"{SUMMARY_COLUMNS}, number",
            [(*column_values(summary, SUMMARY_COLUMNS), number)],
            "ON CONFLICT (owner, session_id) DO UPDATE SET version = session_summary.version + 1, "
            f"{set_excluded(changed)} RETURNING {SUMMARY_COLUMNS}",
        )
        return summary_of(rows[0])

    @read
    def get(self, owner: str, session_id: str) -> Steps[Summary]:
        rows = yield (
            f"SELECT {SUMMARY_COLUMNS} FROM session_summary WHERE owner = ? AND session_id = ?",
            (owner, session_id),
        )
        return summary_of(one_row(rows, "summary.not_found", session_id))

    @read_cached
    def recent(self, owner: str, *, limit: int = 5, without: str = "") -> Steps[Sequence[Summary]]:
        """The latest written first, the session `without` left out."""
        rows = yield (
            f"SELECT {SUMMARY_COLUMNS} FROM session_summary WHERE owner = ? AND session_id <> ? "
            "ORDER BY number DESC LIMIT ?",
            (owner, without, limit),
        )
        return [summary_of(row) for row in rows]

    @write
    def delete(self, owner: str, session_id: str) -> Steps[None]:
        rows = yield (
            "DELETE FROM session_summary WHERE owner = ? AND session_id = ? RETURNING session_id",
            (owner, session_id),
        )
        one_row(rows, "summary.not_found", session_id)
