"""What is remembered of an owner: one fact a row, changed by adding, superseding and forgetting.

Every change takes the owner's next change number, so that an index can ask what changed after the one it knows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lamina.errors import MessageError, format_value
from lamina.records import IndexChanges, IndexRow, Job, Memory, MemoryState, MessagePosition, NewJob, NewMemory
from lamina.store.database import (
    MAX_NAME,
    Group,
    Row,
    Steps,
    batches,
    clean,
    column_values,
    columns_of,
    count_on,
    dump,
    insert,
    like,
    marks,
    new_id,
    one_row,
    read,
    read_cached,
    set_clause,
    where,
    write,
)
from lamina.store.jobs import add_jobs, complete_job
from lamina.store.schema import read_row
from lamina.text.messages import Phrase
from lamina.types import text_hash

COLUMNS = columns_of(Memory)
INDEX = "memory_id, model, terms, mentions, vector"
FIRST_DAY = 719_163
"""The ordinal of 1970-01-01, from which clocks count."""


def memory_of(row: Row) -> Memory:
    return Memory(*read_row("atomic_memory", COLUMNS, row))


def _select(owner: str, rest: str, *values: Any) -> Steps[list[Memory]]:
    """The memories of an owner that the rest of the statement names."""
    rows = yield f"SELECT {COLUMNS} FROM atomic_memory WHERE owner = ? {rest}", (owner, *values)
    return [memory_of(row) for row in rows]


def _get_many(owner: str, ids: Sequence[str]) -> Steps[list[Memory]]:
    if not ids:
        return []
    rows = yield from _select(owner, f"AND memory_id IN ({marks(len(ids))})", *ids)
    found = {memory.memory_id: memory for memory in rows}
    return [found[name] for name in ids if name in found]


def _get(owner: str, memory_id: str) -> Steps[Memory]:
    rows = yield f"SELECT {COLUMNS} FROM atomic_memory WHERE owner = ? AND memory_id = ?", (owner, memory_id)
    return memory_of(one_row(rows, "memory.not_found", memory_id))


def _forgotten_turns(owner: str) -> Steps[list[str]]:
    rows = yield (
        "SELECT DISTINCT turn_id FROM atomic_memory WHERE owner = ? AND state = 'forgotten' AND turn_id <> ''",
        (owner,),
    )
    return [row[0] for row in rows]


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


def _insert_new(owner: str, memories: Sequence[NewMemory], now: float) -> Steps[list[Memory]]:
    """Each text once: one that is active already is returned as it is. The counter's row is the owner's lock, so two
    who add at once cannot cross."""
    last = yield from count_on(owner, "change", len(memories))
    hashes = [text_hash(memory.text) for memory in memories]
    known: dict[str, Memory] = {}
    for batch in batches([*dict.fromkeys(hashes)]):
        found = yield from _select(owner, f"AND state = 'active' AND text_hash IN ({marks(len(batch))})", *batch)
        known |= {memory.text_hash: memory for memory in found}
    fresh: list[Memory] = []
    for number, (memory, mark) in enumerate(zip(memories, hashes, strict=True), last - len(memories) + 1):
        if mark not in known:
            known[mark] = Memory(
                owner=owner, memory_id=new_id(), change=number, text=memory.text, context=memory.context,
                kind=memory.kind, trust=memory.trust, importance=memory.importance, pinned=memory.pinned,
                state="active", superseded_by="", session_id=memory.session_id, turn_id=memory.turn_id,
                seq=memory.seq, happened=memory.happened, created=now, updated=now, text_hash=mark,
            )  # fmt: skip
            fresh.append(known[mark])
    yield from insert("atomic_memory", COLUMNS, [column_values(memory, COLUMNS) for memory in fresh])
    return [known[mark] for mark in hashes]


def _has_changed(owner: str, as_of: int) -> Steps[bool]:
    """Whether a memory became active or changed since; the counter's row is held from here on."""
    yield from count_on(owner, "change", 0)
    rows = yield (
        "SELECT 1 FROM atomic_memory WHERE owner = ? AND change > ? AND state = 'active' LIMIT 1",
        (owner, as_of),
    )
    return bool(rows)


def _change(owner: str, memory_id: str, values: Mapping[str, Any], now: float) -> Steps[Memory]:
    """Change a memory that is not forgotten, under the next change number."""
    change = yield from count_on(owner, "change")
    changes = {**values, "change": change, "updated": now}
    rows = yield (
        f"UPDATE atomic_memory SET {set_clause(changes)} "
        f"WHERE owner = ? AND memory_id = ? AND state <> 'forgotten' RETURNING {COLUMNS}",
        (*changes.values(), owner, memory_id),
    )
    return memory_of(one_row(rows, "memory.not_found", memory_id))


def _replace(owner: str, old_id: str, new: Memory, now: float) -> Steps[Memory]:
    """The older fact stays on record, and its pin goes over to the one that takes its place. The newer one counts even
    where the older was forgotten in the meantime."""
    if old_id == new.memory_id:
        return new
    old = yield from _get(owner, old_id)
    if old.state == "forgotten":
        return new
    yield from _change(owner, old_id, {"state": "superseded", "superseded_by": new.memory_id, "pinned": 0}, now)
    if old.state == "active" and old.pinned and not new.pinned:
        new = yield from _change(owner, new.memory_id, {"pinned": 1}, now)
    return new


def _delete_index_row(owner: str, memory_id: str) -> Steps[None]:
    yield "DELETE FROM memory_index WHERE owner = ? AND memory_id = ?", (owner, memory_id)


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
            owner=owner, memory_id=new_id(), change=number, text="", context="", kind="fact", trust="user",
            importance=0.0, pinned=False, state="forgotten", superseded_by="", session_id=place.session_id,
            turn_id=place.turn_id, seq=place.seq, happened=None, created=now, updated=now, text_hash="",
        )
        for number, place in enumerate(fresh, last - len(fresh) + 1)
    ]  # fmt: skip
    yield from insert("atomic_memory", COLUMNS, [column_values(memory, COLUMNS) for memory in made])


class Memories(Group):
    async def add(
        self,
        owner: str,
        memories: Sequence[NewMemory],
        *,
        done: Job | None = None,
        jobs: Sequence[NewJob] = (),
        as_of: int | None = None,
    ) -> Sequence[Memory]:
        """Keep facts, and complete the job they come from in the same transaction.

        A text that is active already is not stored twice: the one that is there is returned. `as_of` is the change
        number at which they were compared with what is known: where a memory is newer than that, nothing is done and
        nothing is returned, and the caller compares again.
        """
        return await self._add(owner, [_check_memory(memory) for memory in memories], done, jobs, as_of)

    @write
    def _add(
        self, owner: str, memories: Sequence[NewMemory], done: Job | None, jobs: Sequence[NewJob], as_of: int | None
    ) -> Steps[Sequence[Memory]]:
        now = self._clock()
        if memories and as_of is not None and (yield from _has_changed(owner, as_of)):
            return []
        if done is not None:
            yield from complete_job(done, now)
        added = (yield from _insert_new(owner, memories, now)) if memories else []
        for n, memory in enumerate(memories):
            for old in memory.supersedes:
                added[n] = yield from _replace(owner, old, added[n], now)
        yield from add_jobs(owner, jobs, now)
        return added

    @read
    def get(self, owner: str, memory_id: str) -> Steps[Memory]:
        return _get(owner, memory_id)

    @read
    def many(self, owner: str, ids: Sequence[str]) -> Steps[Sequence[Memory]]:
        """Those of the ids that are there, in the order asked for."""
        return _get_many(owner, ids)

    async def list(
        self,
        owner: str,
        *,
        state: MemoryState | None = "active",
        kind: str | None = None,
        query: str = "",
        limit: int = 50,
        before: int | None = None,
        pinned: bool | None = None,
    ) -> Sequence[Memory]:
        """The latest changed first; `before` is the `change` of the last one already seen."""
        if pinned is None and kind is None:
            return await self._list(owner, state, kind, query, limit, before, pinned)
        return await self._list_few(owner, state, kind, query, limit, before, pinned)

    @read
    def _list(self, owner: str, *asked: Any) -> Steps[Sequence[Memory]]:
        return self._list_steps(owner, *asked)

    @read_cached
    def _list_few(self, owner: str, *asked: Any) -> Steps[Sequence[Memory]]:
        """The pinned ones, or those of a kind: few, and asked for on every turn."""
        return self._list_steps(owner, *asked)

    def _list_steps(
        self,
        owner: str,
        state: str | None,
        kind: str | None,
        query: str,
        limit: int,
        before: int | None,
        pinned: bool | None,
    ) -> Steps[Sequence[Memory]]:
        condition, values = where({"state": state, "kind": kind, "pinned": pinned})
        rest = f"AND change < ? {f'AND {condition} ' if condition else ''}"
        rest += "AND LOWER(text) LIKE LOWER(?) ESCAPE '!' " if query else ""
        words = [like(query)] if query else []
        first = 2**62 if before is None else before
        return _select(owner, f"{rest}ORDER BY change DESC LIMIT ?", first, *values, *words, limit)

    async def edit(
        self,
        owner: str,
        memory_id: str,
        *,
        text: str | None = None,
        context: str | None = None,
        kind: str | None = None,
        importance: float | None = None,
        happened: float | None = None,
    ) -> Memory:
        given = {"text": text, "context": context, "kind": kind, "importance": importance, "happened": happened}
        values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if importance is not None:
            _check_importance(importance)
        if text is not None:
            values["text_hash"] = text_hash(_check_memory(NewMemory(text, context or "")).text)
        return await self._edit(owner, memory_id, values)

    @write
    def _edit(self, owner: str, memory_id: str, values: Mapping[str, Any]) -> Steps[Memory]:
        memory = yield from _change(owner, memory_id, values, self._clock())
        if memory.state == "active" and "text_hash" in values:
            same = "AND state = 'active' AND text_hash = ? AND memory_id <> ?"
            if others := (yield from _select(owner, same, memory.text_hash, memory_id)):
                raise MessageError("memory.duplicate", name=format_value(others[0].memory_id))
        if "text" in values or "context" in values:
            yield from _delete_index_row(owner, memory_id)
        return memory

    @write
    def pin(self, owner: str, memory_id: str, on: bool = True) -> Steps[Memory]:
        memory = later = yield from _get(owner, memory_id)
        seen = {memory_id}
        while later.state == "superseded" and later.superseded_by not in seen:
            seen.add(later.superseded_by)
            later = yield from _get(owner, later.superseded_by)
        if on and memory.state == "superseded":
            hint = "memory.pin_newer" if later.text else "memory.newer_forgotten"
            newer, text = format_value(later.memory_id), format_value(later.text)
            raise MessageError("memory.superseded", name=format_value(memory_id), newer=newer, text=text, hint=hint)
        return (yield from _change(owner, memory_id, {"pinned": int(on)}, self._clock()))

    @write
    def forget(
        self,
        owner: str,
        ids: Sequence[str],
        *,
        places: Sequence[MessagePosition] = (),
        told: Sequence[str] = (),
        then: Callable[[str], NewJob] | None = None,
    ) -> Steps[Sequence[str]]:
        """Erase facts from memories, index and the summaries made of them.

        `places` is where else they were said, `told` the sessions whose summary tells them. Returns the sessions whose
        summary went. `then` names the job for each of them, which is stored with it.
        """
        now = self._clock()
        sessions: set[str] = set()
        for session_id, seq in [*((place.session_id, place.seq) for place in places), *((name, 0) for name in told)]:
            rows = yield (
                "DELETE FROM session_summary WHERE owner = ? AND session_id = ? AND upto_seq >= ? RETURNING session_id",
                (owner, session_id, seq),
            )
            sessions.update(row[0] for row in rows)
        for name in dict.fromkeys(ids):
            memory = yield from _get(owner, name)
            if memory.state == "forgotten":
                continue
            erased = {"text": "", "context": "", "text_hash": "", "state": "forgotten", "pinned": 0, "importance": 0.0}
            yield from _change(owner, name, erased, now)
            yield from _delete_index_row(owner, name)
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

    @read
    def changes(self, owner: str, *, after: int = 0, limit: int = 10_000) -> Steps[Sequence[Memory]]:
        """What changed after a change number, in order; forgotten ones are among them, without text."""
        return _select(owner, "AND change > ? ORDER BY change LIMIT ?", after, limit)

    @read
    def of_session(self, owner: str, session_id: str) -> Steps[Sequence[Memory]]:
        """Everything that was learnt in a session, forgotten ones too."""
        return _select(owner, "AND session_id = ? ORDER BY change", session_id)

    @read
    def replaced(self, owner: str, memory_id: str) -> Steps[Sequence[Memory]]:
        """The older facts whose place this one took."""
        return _select(owner, "AND superseded_by = ? ORDER BY change DESC", memory_id)

    @read
    def forgotten_turns(self, owner: str) -> Steps[Sequence[str]]:
        """The turns whose facts were forgotten, in whatever session they are told again."""
        return _forgotten_turns(owner)

    @read
    def last_change(self, owner: str) -> Steps[int]:
        rows = yield "SELECT value FROM owner_counter WHERE owner = ? AND name = 'change'", (owner,)
        return int(rows[0][0]) if rows else 0

    # The index of memories

    @read
    def index_changes(self, owner: str, model: str, *, after: int = 0, limit: int = 20_000) -> Steps[IndexChanges]:
        """What changed after a change number, as an index of this model wants to know it.

        Numbers, weights and days are the memory's own; only what was made of its text is stored for the index. What
        was said outside of any session has no neighbours: it is a session by itself.
        """
        rows = yield (
            "SELECT memory_id, change, state, session_id, seq, happened, created, importance FROM atomic_memory "
            "WHERE owner = ? AND change > ? ORDER BY change LIMIT ?",
            (owner, after, limit + 1),
        )
        taken = rows[:limit]
        indexed: dict[str, Row] = {}
        for batch in batches([row[0] for row in taken if row[2] == "active"]):
            found = yield (
                f"SELECT {INDEX} FROM memory_index WHERE owner = ? AND model = ? "
                f"AND memory_id IN ({marks(len(batch))})",
                (owner, model, *batch),
            )
            indexed |= {row[0]: row for row in found}
        entries: list[IndexRow] = []
        for name, change, state, session, seq, happened, created, weight in taken:
            if state == "active" and name in indexed:
                day = int((created if happened is None else happened) // 86_400) + FIRST_DAY
                made_by, *blobs = indexed[name][1:]
                entries.append(
                    IndexRow(
                        name,
                        change,
                        made_by,
                        session or name,
                        seq,
                        day,
                        weight,
                        *map(bytes, blobs),
                        dated=happened is not None,
                    )
                )
        gone = tuple(row[0] for row in taken if row[2] != "active")
        bare = tuple(row[0] for row in taken if row[2] == "active" and row[0] not in indexed)
        last = int(taken[-1][1]) if taken else after
        return IndexChanges(tuple(entries), gone, bare, last, len(rows) > limit)

    @write
    def put_index(self, owner: str, rows: Sequence[IndexRow]) -> Steps[int]:
        """Store index rows of memories that are still as they were at the row's `change`; returns how many."""
        current: dict[str, int] = {}
        for batch in batches([row.memory_id for row in rows]):
            found = yield (
                "SELECT memory_id, change FROM atomic_memory WHERE owner = ? AND state <> 'forgotten' "
                f"AND memory_id IN ({marks(len(batch))})",
                (owner, *batch),
            )
            current |= {row[0]: int(row[1]) for row in found}
        fresh = [row for row in rows if current.get(row.memory_id) == row.change]
        yield from insert(
            "memory_index",
            f"owner, {INDEX}",
            [(owner, *(getattr(row, name) for name in INDEX.split(", "))) for row in fresh],
            "ON CONFLICT (owner, memory_id) DO UPDATE SET model = excluded.model, terms = excluded.terms, "
            "mentions = excluded.mentions, vector = excluded.vector",
        )
        return len(fresh)

    @write
    def clear_index(self, owner: str) -> Steps[None]:
        yield "DELETE FROM memory_index WHERE owner = ?", (owner,)
