"""What is remembered of an owner: one fact a row, changed by adding, superseding and forgetting.

Every change takes the owner's next change number, so that an index can ask what changed after the one it knows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lamina.errors import MessageError, format_value
from lamina.records import IndexChanges, IndexRow, Job, Memory, MemoryState, MessagePosition, NewJob, NewMemory
from lamina.store.database import (
    MAX_NAME,
    Clock,
    Database,
    Row,
    Steps,
    batches,
    clean,
    count_on,
    dump,
    insert,
    like,
    marks,
    new_id,
    not_found,
)
from lamina.store.jobs import add_jobs, complete_job
from lamina.store.shapes import read_row
from lamina.text.messages import Phrase
from lamina.types import text_hash

COLUMNS = (
    "owner, memory_id, change, text, context, kind, trust, importance, pinned, state, superseded_by, session_id, "
    "turn_id, seq, happened, created, updated, text_hash"
)
INDEX = "memory_id, model, terms, mentions, vector"
FIRST_DAY = 719_163
"""The ordinal of 1970-01-01, from which clocks count."""


def memory_of(row: Row) -> Memory:
    values = read_row("atomic_memory", COLUMNS, row)
    values[8] = bool(values[8])
    return Memory(*values)


def _check_memory(memory: NewMemory) -> NewMemory:
    if not clean(memory.text, "field.memory").strip():
        raise MessageError("memory.empty_text")
    clean(memory.context, "field.memory_context")
    for name in ("kind", "session_id", "turn_id"):
        clean(getattr(memory, name), Phrase("field.of_memory", name=name), MAX_NAME)
    _check_importance(memory.importance)
    return memory


def _check_importance(value: float) -> None:
    if not 0 <= value <= 1:
        raise MessageError("memory.bad_importance", value=format_value(value))


def _new_rows(owner: str, memories: Sequence[NewMemory], now: float) -> Steps[list[Memory]]:
    """Each text once: one that is active already comes back as it is. The counter's row is the owner's lock, so two who
    add at once cannot cross."""
    last = yield from count_on(owner, "change", len(memories))
    hashes = [text_hash(memory.text) for memory in memories]
    known: dict[str, Memory] = {}
    for batch in batches([(name,) for name in dict.fromkeys(hashes)], 1):
        rows = yield (
            f"SELECT {COLUMNS} FROM atomic_memory WHERE owner = ? AND state = 'active' "
            f"AND text_hash IN ({marks(len(batch))})",
            (owner, *(name for (name,) in batch)),
        )
        known |= {row[-1]: memory_of(row) for row in rows}
    fresh: list[Memory] = []
    for number, (memory, mark) in enumerate(zip(memories, hashes, strict=True), last - len(memories) + 1):
        if mark not in known:
            known[mark] = Memory(
                owner, new_id(), number, memory.text, memory.context, memory.kind, memory.trust, memory.importance,
                memory.pinned, "active", "", memory.session_id, memory.turn_id, memory.seq, memory.happened, now, now,
                mark,
            )  # fmt: skip
            fresh.append(known[mark])
    yield from insert("atomic_memory", COLUMNS, [_values(made) for made in fresh])
    return [known[mark] for mark in hashes]


def _has_changed(owner: str, as_of: int) -> Steps[bool]:
    """Whether a memory became active or changed since; the counter's row is held from here on."""
    yield from count_on(owner, "change", 0)
    rows = yield (
        "SELECT 1 FROM atomic_memory WHERE owner = ? AND change > ? AND state = 'active' LIMIT 1",
        (owner, as_of),
    )
    return bool(rows)


def _add(
    owner: str, memories: Sequence[NewMemory], done: Job | None, jobs: Sequence[NewJob], as_of: int | None, now: float
) -> Steps[list[Memory]]:
    if memories and as_of is not None and (yield from _has_changed(owner, as_of)):
        return []
    if done is not None:
        yield from complete_job(done, now)
    made = (yield from _new_rows(owner, memories, now)) if memories else []
    for n, memory in enumerate(memories):
        for old in memory.supersedes:
            made[n] = yield from _replace(owner, old, made[n], now)
    yield from add_jobs(owner, jobs, now)
    return made


def _change(owner: str, memory_id: str, values: Mapping[str, Any], now: float) -> Steps[Memory]:
    """Change a memory that is not forgotten, under the next change number."""
    change = yield from count_on(owner, "change")
    changes = {**values, "change": change, "updated": now}
    rows = yield (
        f"UPDATE atomic_memory SET {', '.join(f'{name} = ?' for name in changes)} "
        f"WHERE owner = ? AND memory_id = ? AND state <> 'forgotten' RETURNING {COLUMNS}",
        (*changes.values(), owner, memory_id),
    )
    if not rows:
        raise not_found("memory.not_found", memory_id)
    return memory_of(rows[0])


def _replace(owner: str, old_id: str, new: Memory, now: float) -> Steps[Memory]:
    """The older fact stays on record, and its pin goes over to the one that takes its place. The newer one counts even
    where the older was forgotten in the meantime."""
    if old_id == new.memory_id:
        return new
    old = yield from _one(owner, old_id)
    if old.state == "forgotten":
        return new
    values = {"state": "superseded", "superseded_by": new.memory_id, "pinned": 0}
    yield from _change(owner, old_id, values, now)
    if old.state == "active" and old.pinned and not new.pinned:
        new = yield from _change(owner, new.memory_id, {"pinned": 1}, now)
    return new


def _pin(owner: str, memory_id: str, on: bool, now: float) -> Steps[Memory]:
    memory = later = yield from _one(owner, memory_id)
    seen = {memory_id}
    while later.state == "superseded" and later.superseded_by not in seen:
        seen.add(later.superseded_by)
        later = yield from _one(owner, later.superseded_by)
    if on and memory.state == "superseded":
        raise MessageError(
            "memory.superseded", name=format_value(memory_id), newer=format_value(later.memory_id),
            text=format_value(later.text),
            hint="memory.pin_newer" if later.text else "memory.newer_forgotten",
        )  # fmt: skip
    return (yield from _change(owner, memory_id, {"pinned": int(on)}, now))


def _get(owner: str, ids: Sequence[str]) -> Steps[list[Memory]]:
    rows = yield (
        f"SELECT {COLUMNS} FROM atomic_memory WHERE owner = ? AND memory_id IN ({marks(len(ids))})",
        (
            owner,
            *ids,
        ),
    )
    found = {row[1]: memory_of(row) for row in rows}
    return [found[name] for name in ids if name in found]


def _one(owner: str, memory_id: str) -> Steps[Memory]:
    found = yield from _get(owner, [memory_id])
    if not found:
        raise not_found("memory.not_found", memory_id)
    return found[0]


def _list(
    owner: str, state: MemoryState | None, kind: str | None, query: str, limit: int, before: int | None,
    pinned: bool | None,
) -> Steps[list[Memory]]:  # fmt: skip
    wanted: dict[str, Any] = {"owner = ?": owner, "change < ?": 2**62 if before is None else before}
    wanted |= {} if state is None else {"state = ?": state}
    wanted |= {} if kind is None else {"kind = ?": kind}
    wanted |= {} if pinned is None else {"pinned = ?": int(pinned)}
    wanted |= {"LOWER(text) LIKE LOWER(?) ESCAPE '!'": like(query)} if query else {}
    rows = yield (
        f"SELECT {COLUMNS} FROM atomic_memory WHERE {' AND '.join(wanted)} ORDER BY change DESC LIMIT ?",
        (*wanted.values(), limit),
    )
    return [memory_of(row) for row in rows]


def _edit(owner: str, memory_id: str, values: Mapping[str, Any], now: float) -> Steps[Memory]:
    memory = yield from _change(owner, memory_id, values, now)
    if memory.state == "active" and "text_hash" in values:
        rows = yield (
            "SELECT memory_id FROM atomic_memory WHERE owner = ? AND state = 'active' AND text_hash = ? "
            "AND memory_id <> ?",
            (owner, memory.text_hash, memory_id),
        )
        if rows:
            raise MessageError("memory.duplicate", name=format_value(rows[0][0]))
    if "text" in values or "context" in values:
        yield "DELETE FROM memory_index WHERE owner = ? AND memory_id = ?", (owner, memory_id)
    return memory


def _supersede(owner: str, old_id: str, new: NewMemory, now: float) -> Steps[Memory]:
    yield from _one(owner, old_id)
    (memory,) = yield from _new_rows(owner, [new], now)
    return (yield from _replace(owner, old_id, memory, now))


def _mark_places(owner: str, places: Sequence[MessagePosition], now: float) -> Steps[None]:
    """Other places where a forgotten fact was said: a row without words keeps each, and no later summary tells it."""
    gone = set((yield from _forgotten_turns(owner)))
    seen: set[tuple[str, int]] = set()
    for session_id in dict.fromkeys(place.session_id for place in places if not place.turn_id):
        rows = yield (
            "SELECT seq FROM atomic_memory WHERE owner = ? AND session_id = ? AND state = 'forgotten'",
            (owner, session_id),
        )
        seen |= {(session_id, int(row[0])) for row in rows}
    turns = {place.turn_id: place for place in places if place.turn_id and place.turn_id not in gone}
    fresh = [*turns.values(), *(p for p in places if not p.turn_id and (p.session_id, p.seq) not in seen)]
    if not fresh:
        return
    last = yield from count_on(owner, "change", len(fresh))
    made = [
        Memory(
            owner, new_id(), number, "", "", "fact", "user", 0.0, False, "forgotten", "", place.session_id,
            place.turn_id, place.seq, None, now, now, "",
        )
        for number, place in enumerate(fresh, last - len(fresh) + 1)
    ]  # fmt: skip
    yield from insert("atomic_memory", COLUMNS, [_values(each) for each in made])


def _values(memory: Memory) -> list[Any]:
    found = [getattr(memory, name) for name in COLUMNS.split(", ")]
    return [int(value) if isinstance(value, bool) else value for value in found]


def _forget(
    owner: str, ids: Sequence[str], places: Sequence[MessagePosition], told: Sequence[str],
    then: Callable[[str], NewJob] | None, now: float,
) -> Steps[list[str]]:  # fmt: skip
    sessions: set[str] = set()
    for session_id, seq in [*((place.session_id, place.seq) for place in places), *((name, 0) for name in told)]:
        rows = yield (
            "DELETE FROM session_summary WHERE owner = ? AND session_id = ? AND upto_seq >= ? RETURNING session_id",
            (owner, session_id, seq),
        )
        sessions.update(row[0] for row in rows)
    for name in dict.fromkeys(ids):
        memory = yield from _one(owner, name)
        if memory.state == "forgotten":
            continue
        erased = {"text": "", "context": "", "text_hash": "", "state": "forgotten", "pinned": 0, "importance": 0.0}
        yield from _change(owner, name, erased, now)
        yield "DELETE FROM memory_index WHERE owner = ? AND memory_id = ?", (owner, name)
        rows = yield (
            "DELETE FROM session_summary WHERE owner = ? AND (memory_ids LIKE ? ESCAPE '!' "
            "OR (session_id = ? AND upto_seq >= ?) OR (session_id IN (SELECT session_id FROM conversation "
            "WHERE owner = ? AND turn_id = ? AND turn_id <> ''))) RETURNING session_id",
            (owner, like(dump(name)), memory.session_id, memory.seq, owner, memory.turn_id),
        )
        sessions.update(row[0] for row in rows)
    yield from _mark_places(owner, places, now)
    yield from add_jobs(owner, [then(name) for name in sorted(sessions)] if then else [], now)
    return sorted(sessions)


def _changes(owner: str, after: int, limit: int) -> Steps[list[Memory]]:
    rows = yield (
        f"SELECT {COLUMNS} FROM atomic_memory WHERE owner = ? AND change > ? ORDER BY change LIMIT ?",
        (owner, after, limit),
    )
    return [memory_of(row) for row in rows]


def _of_session(owner: str, session_id: str) -> Steps[list[Memory]]:
    rows = yield (
        f"SELECT {COLUMNS} FROM atomic_memory WHERE owner = ? AND session_id = ? ORDER BY change",
        (owner, session_id),
    )
    return [memory_of(row) for row in rows]


def _replaced(owner: str, memory_id: str) -> Steps[list[Memory]]:
    rows = yield (
        f"SELECT {COLUMNS} FROM atomic_memory WHERE owner = ? AND superseded_by = ? ORDER BY change DESC",
        (owner, memory_id),
    )
    return [memory_of(row) for row in rows]


def _forgotten_turns(owner: str) -> Steps[list[str]]:
    rows = yield (
        "SELECT DISTINCT turn_id FROM atomic_memory WHERE owner = ? AND state = 'forgotten' AND turn_id <> ''",
        (owner,),
    )
    return [row[0] for row in rows]


def _last_change(owner: str) -> Steps[int]:
    rows = yield "SELECT value FROM owner_counter WHERE owner = ? AND name = 'change'", (owner,)
    return int(rows[0][0]) if rows else 0


def _index_changes(owner: str, model: str, after: int, limit: int) -> Steps[IndexChanges]:
    """Numbers, weights and days are the memory's own; only what was made of its text is kept for the index. What was
    said outside of any session has no neighbours: it is a session by itself."""
    rows = yield (
        "SELECT memory_id, change, state, session_id, seq, happened, created, importance FROM atomic_memory "
        "WHERE owner = ? AND change > ? ORDER BY change LIMIT ?",
        (owner, after, limit + 1),
    )
    taken = rows[:limit]
    kept: dict[str, Row] = {}
    for batch in batches([(row[0],) for row in taken if row[2] == "active"], 1):
        kept |= {
            row[0]: row
            for row in (
                yield (
                    f"SELECT {INDEX} FROM memory_index WHERE owner = ? AND model = ? "
                    f"AND memory_id IN ({marks(len(batch))})",
                    (owner, model, *(name for (name,) in batch)),
                )
            )
        }
    found: list[IndexRow] = []
    gone: list[str] = []
    bare: list[str] = []
    for name, change, state, session, seq, happened, created, weight in taken:
        if state != "active":
            gone.append(name)
        elif name not in kept:
            bare.append(name)
        else:
            _, made_by, terms, mentions, vector = kept[name]
            day = int((created if happened is None else happened) // 86_400) + FIRST_DAY
            found.append(
                IndexRow(
                    name, change, made_by, session or name, seq, day, weight, bytes(terms), bytes(mentions),
                    bytes(vector), dated=happened is not None,
                )
            )  # fmt: skip
    last = int(taken[-1][1]) if taken else after
    return IndexChanges(tuple(found), tuple(gone), tuple(bare), last, len(rows) > limit)


def _put_index(owner: str, rows: Sequence[IndexRow]) -> Steps[int]:
    current: dict[str, int] = {}
    for batch in batches([(row.memory_id,) for row in rows], 1):
        found = yield (
            "SELECT memory_id, change FROM atomic_memory WHERE owner = ? AND state <> 'forgotten' "
            f"AND memory_id IN ({marks(len(batch))})",
            (owner, *(value for (value,) in batch)),
        )
        current |= {row[0]: int(row[1]) for row in found}
    kept = [row for row in rows if current.get(row.memory_id) == row.change]
    yield from insert(
        "memory_index", f"owner, {INDEX}",
        [(owner, row.memory_id, row.model, row.terms, row.mentions, row.vector) for row in kept],
        "ON CONFLICT (owner, memory_id) DO UPDATE SET model = excluded.model, terms = excluded.terms, "
        "mentions = excluded.mentions, vector = excluded.vector",
    )  # fmt: skip
    return len(kept)


def _unindexed(owner: str, model: str, limit: int) -> Steps[list[Memory]]:
    columns = ", ".join(f"m.{name}" for name in COLUMNS.split(", "))
    rows = yield (
        f"SELECT {columns} FROM atomic_memory m LEFT JOIN memory_index i ON i.owner = m.owner AND "
        "i.memory_id = m.memory_id AND i.model = ? WHERE m.owner = ? AND m.state = 'active' AND i.memory_id IS NULL "
        "ORDER BY m.change LIMIT ?",
        (model, owner, limit),
    )
    return [memory_of(row) for row in rows]


def _clear_index(owner: str) -> Steps[None]:
    yield "DELETE FROM memory_index WHERE owner = ?", (owner,)


class Memories:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def add(
        self, owner: str, memories: Sequence[NewMemory], *, done: Job | None = None, jobs: Sequence[NewJob] = (),
        as_of: int | None = None,
    ) -> Sequence[Memory]:  # fmt: skip
        """Keep facts, and complete the job they come from in the same transaction.

        A text that is active already is not kept twice: the one that is there comes back. `as_of` is the change number
        at which they were compared with what is known: where a memory is newer than that, nothing is done and nothing
        comes back, and the caller compares again.
        """
        now = self._clock()
        checked = [_check_memory(memory) for memory in memories]
        return await self._db.write(owner, lambda: _add(owner, checked, done, jobs, as_of, now))

    async def get(self, owner: str, memory_id: str) -> Memory:
        return await self._db.read(owner, lambda: _one(owner, memory_id))

    async def many(self, owner: str, ids: Sequence[str]) -> Sequence[Memory]:
        """Those of the ids that are there, in the order asked for."""
        return await self._db.read(owner, lambda: _get(owner, ids)) if ids else []

    async def list(
        self, owner: str, *, state: MemoryState | None = "active", kind: str | None = None, query: str = "",
        limit: int = 50, before: int | None = None, pinned: bool | None = None,
    ) -> Sequence[Memory]:  # fmt: skip
        """The latest changed first; `before` is the `change` of the last one already seen."""
        if pinned is None and kind is None:
            return await self._db.read(owner, lambda: _list(owner, state, kind, query, limit, before, pinned))
        asked = f"memories {state} {kind} {limit} {before} {pinned} {query}"  # few, and asked for on every turn
        return await self._db.read_cached(owner, asked, lambda: _list(owner, state, kind, query, limit, before, pinned))

    async def edit(
        self, owner: str, memory_id: str, *, text: str | None = None, context: str | None = None,
        kind: str | None = None, importance: float | None = None, happened: float | None = None,
    ) -> Memory:  # fmt: skip
        now = self._clock()
        given = {"text": text, "context": context, "kind": kind, "importance": importance, "happened": happened}
        values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if importance is not None:
            _check_importance(importance)
        if text is not None:
            values["text_hash"] = text_hash(_check_memory(NewMemory(text, context or "")).text)
        return await self._db.write(owner, lambda: _edit(owner, memory_id, values, now))

    async def pin(self, owner: str, memory_id: str, on: bool = True) -> Memory:
        now = self._clock()
        return await self._db.write(owner, lambda: _pin(owner, memory_id, on, now))

    async def supersede(self, owner: str, old_id: str, new: NewMemory) -> Memory:
        """Keep a newer fact in place of an older one, which stays on record."""
        now = self._clock()
        checked = _check_memory(new)
        return await self._db.write(owner, lambda: _supersede(owner, old_id, checked, now))

    async def forget(
        self, owner: str, ids: Sequence[str], *, places: Sequence[MessagePosition] = (), told: Sequence[str] = (),
        then: Callable[[str], NewJob] | None = None,
    ) -> Sequence[str]:  # fmt: skip
        """Erase facts from memories, index and the summaries made of them.

        `places` is where else they were said, `told` the sessions whose summary tells them. Returns the sessions whose
        summary went. `then` names the job for each of them, which is stored with it.
        """
        now = self._clock()
        return await self._db.write(owner, lambda: _forget(owner, ids, places, told, then, now))

    async def changes(self, owner: str, *, after: int = 0, limit: int = 10_000) -> Sequence[Memory]:
        """What changed after a change number, in order; forgotten ones are among them, without text."""
        return await self._db.read(owner, lambda: _changes(owner, after, limit))

    async def of_session(self, owner: str, session_id: str) -> Sequence[Memory]:
        """Everything that was learnt in a session, forgotten ones too."""
        return await self._db.read(owner, lambda: _of_session(owner, session_id))

    async def replaced(self, owner: str, memory_id: str) -> Sequence[Memory]:
        """The older facts whose place this one took."""
        return await self._db.read(owner, lambda: _replaced(owner, memory_id))

    async def forgotten_turns(self, owner: str) -> Sequence[str]:
        """The turns whose facts were forgotten, in whatever session they are told again."""
        return await self._db.read(owner, lambda: _forgotten_turns(owner))

    async def last_change(self, owner: str) -> int:
        return await self._db.read(owner, lambda: _last_change(owner))

    async def index_changes(self, owner: str, model: str, *, after: int = 0, limit: int = 20_000) -> IndexChanges:
        """What changed after a change number, as an index of this model wants to know it."""
        return await self._db.read(owner, lambda: _index_changes(owner, model, after, limit))

    async def put_index(self, owner: str, rows: Sequence[IndexRow]) -> int:
        """Keep index rows of memories that are still as they were at the row's `change`; returns how many."""
        return await self._db.write(owner, lambda: _put_index(owner, rows))

    async def unindexed(self, owner: str, model: str, *, limit: int = 1_000) -> Sequence[Memory]:
        """Active memories without an index row of this model."""
        return await self._db.read(owner, lambda: _unindexed(owner, model, limit))

    async def clear_index(self, owner: str) -> None:
        await self._db.write(owner, lambda: _clear_index(owner))
