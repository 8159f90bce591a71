"""What sessions were about, one summary each, and the owner's profile: named values that outlive every session."""

from collections.abc import Mapping, Sequence
from typing import Any

from lamina.records import Job, Summary
from lamina.store.database import MAX_NAME, Clock, Database, Row, Steps, clean, count_on, dump, load, missing
from lamina.store.jobs import complete_job
from lamina.store.sessions import get_session

COLUMNS = "owner, session_id, version, text, upto_seq, written_by, created, memory_ids"


def summary_of(row: Row) -> Summary:
    values = list(row)
    values[7] = tuple(load(values[7]))
    return Summary(*values)


def _put(
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
        f"memory_ids = excluded.memory_ids RETURNING {COLUMNS}",
        (owner, session_id, number, text, upto_seq, written_by, now, dump(list(memory_ids))),
    )
    return summary_of(rows[0])


def _get(owner: str, session_id: str) -> Steps[Summary]:
    rows = yield f"SELECT {COLUMNS} FROM session_summary WHERE owner = ? AND session_id = ?", (owner, session_id)
    if not rows:
        raise missing("summary of session", session_id)
    return summary_of(rows[0])


def _recent(owner: str, limit: int, without: str) -> Steps[list[Summary]]:
    rows = yield (
        f"SELECT {COLUMNS} FROM session_summary WHERE owner = ? AND session_id <> ? ORDER BY number DESC LIMIT ?",
        (owner, without, limit),
    )
    return [summary_of(row) for row in rows]


def _delete(owner: str, session_id: str) -> Steps[None]:
    rows = yield (
        "DELETE FROM session_summary WHERE owner = ? AND session_id = ? RETURNING session_id",
        (owner, session_id),
    )
    if not rows:
        raise missing("summary of session", session_id)


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
        clean(text, "the summary")
        return await self._db.write(
            owner, lambda: _put(owner, session_id, text, upto_seq, written_by, memory_ids, now, done, as_of)
        )

    async def get(self, owner: str, session_id: str) -> Summary:
        return await self._db.read(owner, lambda: _get(owner, session_id))

    async def recent(self, owner: str, *, limit: int = 5, without: str = "") -> Sequence[Summary]:
        """The latest written first, the session `without` left out."""
        asked = f"summaries {limit} {without}"
        return await self._db.seldom(owner, asked, lambda: _recent(owner, limit, without))

    async def delete(self, owner: str, session_id: str) -> None:
        await self._db.write(owner, lambda: _delete(owner, session_id))


def _profile(owner: str) -> Steps[dict[str, Any]]:
    rows = yield "SELECT name, value FROM user_profile WHERE owner = ? ORDER BY name", (owner,)
    return {row[0]: load(row[1]) for row in rows}


def _set(owner: str, values: Mapping[str, Any], now: float) -> Steps[None]:
    yield from count_on(owner, "profile")
    for name, value in values.items():
        yield (
            "INSERT INTO user_profile (owner, name, value, updated) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (owner, name) DO UPDATE SET value = excluded.value, updated = excluded.updated",
            (owner, clean(name, "the name", MAX_NAME), dump(value), now),
        )


def _unset(owner: str, name: str) -> Steps[None]:
    rows = yield "DELETE FROM user_profile WHERE owner = ? AND name = ? RETURNING name", (owner, name)
    if not rows:
        raise missing("profile value", name)


class Profile:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def get(self, owner: str) -> Mapping[str, Any]:
        """All named values, by name."""
        return await self._db.seldom(owner, "profile", lambda: _profile(owner))

    async def set(self, owner: str, values: Mapping[str, Any]) -> None:
        now = self._clock()
        await self._db.write(owner, lambda: _set(owner, values, now))

    async def delete(self, owner: str, name: str) -> None:
        await self._db.write(owner, lambda: _unset(owner, name))
