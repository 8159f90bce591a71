"""Looking after a store: verify, backup, reindex, export and import. Nothing here repairs by itself."""

import json
import os
import sqlite3
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any, cast

from lamina.errors import InputError, LaminaError, StoreError, shown
from lamina.store.database import Clock, Database, Row, Steps, checked_owner, dump, insert, load, marks
from lamina.store.rows import put_words, text_in
from lamina.store.sessions import COLUMNS, LATER_COLUMNS
from lamina.store.shapes import fault
from lamina.store.sqlite import SqliteDatabase
from lamina.store.words import words
from lamina.types import AnyMessage, text_hash

FORMAT = 1
PAGE = 500
TABLES = {
    "owner_counter": "name, value",
    "chat_session": COLUMNS.removeprefix("owner, "),
    "conversation": "session_id, seq, message_id, turn_id, role, content, extra, state, is_collected, collected, "
    "tokens, created",
    "turn": "turn_id, session_id, key, state, user_message_id, user_seq, answer_message_id, answer_seq, usage, "
    "receipt, error, created, finished, lease_until, begun",
    "chunk": "turn_id, n, text",
    "layer_text": "hash, text",
    "turn_text": "turn_id, hash",
    "atomic_memory": "memory_id, change, text, context, kind, trust, importance, pinned, state, superseded_by, "
    "session_id, turn_id, seq, happened, created, updated, text_hash",
    "session_summary": "session_id, version, number, text, upto_seq, written_by, created, memory_ids",
    "user_profile": "name, value, updated",
    "prompt_template": "template_id, name, scenario, content, is_skill, supported_apps, enabled, priority, sort, "
    "description, source, created, updated",
    "outbox": "job_id, number, kind, key, payload, state, attempts, run_after, lease_until, worker, error, created, "
    "updated",
}
"""The tables of an export in an order that imports, with their columns behind `owner`. Derived tables stay out.
The counters are first: by them an owner is known, also when the rest of an import does not come."""
COUNTER = '{"table":"owner_counter",'
"""How the line of a counter begins. An owner always has some; they are no rows of his, and nobody counts them."""
KEYS = {"conversation": 2, "chunk": 2, "turn_text": 2}
"""How many of the columns make the key, where it is more than one."""
PARENTS = {
    "conversation": {"session_id": "chat_session"},
    "turn": {"session_id": "chat_session"},
    "chunk": {"turn_id": "turn"},
    "turn_text": {"turn_id": "turn", "hash": "layer_text"},
    "session_summary": {"session_id": "chat_session"},
}
"""What a row belongs to: a column of it, and the table whose key that is."""
LATER: dict[str, dict[str, Any]] = {"chat_session": LATER_COLUMNS, "turn": {"begun": None}}
"""Columns that came after the first export was made, and what they are where an export does not name them."""
OWN = ("ledger", "steps")
"""Of a session's runtime: what its last request was made of is this store's own to say, and steps are of one turn."""
DERIVED = ("memory_index", "message_words")
UNEXPORTED = {
    "api_key": "key_id, name, hash, scopes, rate, tokens, created, expires, revoked, used",
    "key_use": "key_id, day, requests, tokens",
}
"""Keys open a gateway: they stay where they were made. A backup of SQLite is the whole file, with their hashes."""


Check = Callable[[AnyMessage], object]
"""Refuses a message that could not be sent; what can is not for a store to know."""
AT_ONCE, MOST = 20_000, 32 << 20
"""Rows, and characters of them, that are read and checked before the first of them is written."""


def _owners(tables: Sequence[str]) -> Steps[list[str]]:
    """From one owner to the next by the keys, however many rows each has."""
    found: set[str] = set()
    for table in tables:
        rows = yield (
            f"WITH RECURSIVE known (owner) AS (SELECT MIN(owner) FROM {table} UNION ALL SELECT (SELECT MIN(t.owner) "
            f"FROM {table} t WHERE t.owner > known.owner) FROM known WHERE known.owner IS NOT NULL) "
            "SELECT owner FROM known WHERE owner IS NOT NULL",
            (),
        )
        found.update(row[0] for row in rows)
    return sorted(found)


def _gaps(owner: str, only: Sequence[str] = (), *, more: bool = False) -> Steps[list[str]]:
    """Sessions, all or `only` these, whose messages are not numbered from 1 to their last number. Where `more` may
    come, those are wrong that have too many."""
    rows = yield (
        "SELECT s.session_id, s.last_seq, COUNT(c.seq), COALESCE(MIN(c.seq), 1), COALESCE(MAX(c.seq), 0) "
        "FROM chat_session s LEFT JOIN conversation c ON c.owner = s.owner AND c.session_id = s.session_id "
        f"WHERE s.owner = ? {f'AND s.session_id IN ({marks(len(only))}) ' if only else ''}"
        "GROUP BY s.session_id, s.last_seq ORDER BY s.session_id",
        (owner, *only),
    )
    return [
        f"session {row[0]}: {row[2]} messages numbered {row[3]} to {row[4]}, but its last number is {row[1]}"
        for row in rows
        if (row[4] > row[1] if more else (row[2], row[3], row[4]) != (row[1], 1, row[1]))
    ]


def _wrong_texts(owner: str) -> Steps[list[str]]:
    rows = yield "SELECT hash, text FROM layer_text WHERE owner = ? ORDER BY hash", (owner,)
    return [f"layer text {row[0]}: its hash does not match" for row in rows if text_hash(load(row[1])) != row[0]]


def _page(owner: str, after: tuple[str, int]) -> Steps[list[Row]]:
    """Messages in pages: session, number, state, content, and whether they can be found."""
    return (
        yield (
            "SELECT c.session_id, c.seq, c.state, c.content, w.seq FROM conversation c LEFT JOIN message_words w "
            "ON w.owner = c.owner AND w.session_id = c.session_id AND w.seq = c.seq "
            "WHERE c.owner = ? AND (c.session_id, c.seq) > (?, ?) ORDER BY c.session_id, c.seq LIMIT ?",
            (owner, *after, PAGE),
        )
    )


def _clear_words(owner: str) -> Steps[None]:
    yield "DELETE FROM message_words WHERE owner = ?", (owner,)


def _index(db: Database, owner: str, rows: Sequence[Row]) -> Steps[None]:
    for row in rows:
        if row[2] != "streaming":
            yield from put_words(db, owner, row[0], [(row[1], text_in(load(row[3])))])


def _lines(owner: str) -> Steps[list[str]]:
    lines: list[str] = []
    for table, columns in TABLES.items():
        names = columns.split(", ")
        order = ", ".join(names[: KEYS.get(table, 1)])
        rows = yield f"SELECT {columns} FROM {table} WHERE owner = ? ORDER BY {order}", (owner,)
        lines += [_line({"table": table, "owner": owner, **dict(zip(names, row, strict=True))}) for row in rows]
    return lines


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _import(owner: str, batch: Sequence[dict[str, Any]], sessions: Collection[str], more: bool) -> Steps[int]:
    """What is there already stays as it is; counters only move forward."""
    added = 0
    known = yield "SELECT 1 FROM owner_counter WHERE owner = ? LIMIT 1", (owner,)
    if not known and all(line["table"] != "owner_counter" for line in batch):  # an older export has them at the end
        yield from insert("owner_counter", "owner, name, value", [(owner, "activity", 0)], "ON CONFLICT DO NOTHING")
    for table, columns in TABLES.items():
        names = columns.split(", ")
        lines = [line for line in batch if line["table"] == table]
        yield from _check_parents(owner, table, lines)
        rows = [_taken(table, (owner, *(line[name] for name in names))) for line in lines]
        if table == "owner_counter":
            ending = (
                "ON CONFLICT (owner, name) DO UPDATE SET value = CASE WHEN excluded.value > owner_counter.value "
                "THEN excluded.value ELSE owner_counter.value END RETURNING owner"
            )
            yield from insert(table, f"owner, {columns}", rows, ending)
        else:
            keys = names[: KEYS.get(table, 1)]
            given = yield from insert(
                table, f"owner, {columns}", rows, f"ON CONFLICT DO NOTHING RETURNING {', '.join(keys)}"
            )
            added += len(given)
            if len(given) < len(rows):
                yield from _check_known(owner, table, names, rows, {tuple(row) for row in given})
    yield from _check_numbers(owner, sessions, more)
    return added


def _check_parents(owner: str, table: str, lines: Sequence[dict[str, Any]]) -> Steps[None]:
    """All that rows belong to is there by now: it stands before them in an export."""
    for column, parent in PARENTS.get(table, {}).items():
        first = {line[column]: line["line"] for line in reversed(lines)}
        for names in _pieces(first):
            question = f"SELECT {column} FROM {parent} WHERE owner = ? AND {column} IN ({marks(len(names))})"
            known = yield question, (owner, *names)
            if lost := set(names) - {row[0] for row in known}:
                name = min(lost, key=lambda each: first[each])
                what = f"line {first[name]}: {table}: there is no {parent} with the {column} {shown(name)}"
                raise InputError(what, hint="is this a whole export, in its own order?")


def _pieces(names: Collection[str]) -> Iterator[Sequence[str]]:
    ordered = sorted(names)
    yield from (ordered[at : at + PAGE] for at in range(0, len(ordered), PAGE))


def _check_numbers(owner: str, sessions: Collection[str], more: bool) -> Steps[None]:
    """A session whose last number is not that of its last message could take no other."""
    for names in _pieces(sessions):
        if wrong := (yield from _gaps(owner, names, more=more)):
            raise InputError(f"chat_session of {shown(owner)}: {wrong[0]}", hint="is this a whole export?")


def _taken(table: str, row: Row) -> Row:
    """A row as it is taken in, without what is no file's to say."""
    at = 1 + TABLES[table].split(", ").index("runtime") if table == "chat_session" else 0
    runtime: dict[str, Any] = load(row[at]) if at else {}
    kept = {name: value for name, value in runtime.items() if name not in OWN}
    return (*row[:at], dump(kept), *row[at + 1 :]) if len(kept) < len(runtime) else tuple(row)


def _check_known(
    owner: str, table: str, names: Sequence[str], rows: Sequence[Row], given: set[tuple[Any, ...]]
) -> Steps[None]:
    """What was not added must be there already, as it is; anything else would be lost without a word."""
    keys = names[: KEYS.get(table, 1)]
    for row in rows:
        key = tuple(row[1 : 1 + len(keys)])
        if key in given:
            continue
        found = yield (
            f"SELECT {', '.join(names)} FROM {table} WHERE owner = ? AND {' AND '.join(f'{n} = ?' for n in keys)}",
            (owner, *key),
        )
        if not found or _taken(table, (owner, *found[0])) != tuple(row):
            raise InputError(
                f"{table} of {shown(owner)} has another row in the place of {shown(key)}",
                hint="import into a store without rows of this owner, or give the rows to another owner",
            )


def _parsed(line: str, number: int, check: Check | None) -> dict[str, Any]:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"line {number} is not JSON: {error}", hint="is this a whole export?") from None
    fields = cast("dict[str, Any]", row) if isinstance(row, dict) else {}
    table: Any = fields.get("table")
    fields = {**LATER.get(table, {}), **fields} if isinstance(table, str) else fields
    if not isinstance(table, str) or table not in TABLES or not {"owner", *TABLES[table].split(", ")} <= set(fields):
        raise InputError(f"line {number} is no row of an export: {shown(line)}", hint="is this a whole export?")
    if wrong := fault(table, {name: fields[name] for name in TABLES[table].split(", ")}):
        raise InputError(f"line {number}: {table}: {wrong}", hint="is this a whole export?")
    if table == "layer_text" and text_hash(load(fields["text"])) != fields["hash"]:
        raise InputError(f"line {number}: layer_text: the text is not that of its hash", hint="is this a whole export?")
    if check and table == "conversation":
        try:
            check({**load(fields["extra"]), "role": fields["role"], "content": load(fields["content"])})
        except LaminaError as error:
            raise InputError(f"line {number}: {table}: {error.message}", hint=error.hint) from None
    return {**fields, "line": number}


def _rows(owner: str, table: str, after: Row) -> Steps[list[Row]]:
    """The next rows of a table by its key."""
    names = TABLES[table].split(", ")
    keys = names[: KEYS.get(table, 1)]
    behind = f"AND ({', '.join(keys)}) > ({marks(len(keys))}) " if after else ""
    return (
        yield (
            f"SELECT {TABLES[table]} FROM {table} WHERE owner = ? {behind}ORDER BY {', '.join(keys)} LIMIT ?",
            (owner, *after, PAGE),
        )
    )


class Maintenance:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def owners(self) -> Sequence[str]:
        """All who have rows. PostgreSQL lets nobody look at all rows, so there the counters must tell."""
        alone = isinstance(self._db, SqliteDatabase)
        return await self._db.system(lambda: _owners([*TABLES, "message_words"] if alone else ["owner_counter"]))

    async def verify(self) -> Sequence[str]:
        """What is wrong with the store, in words; empty when all is well. Changes nothing."""
        problems = await self._sqlite_problems(self._db) if isinstance(self._db, SqliteDatabase) else []
        if problems:
            return problems
        for owner in await self.owners():
            if faults := await self._faults(owner):
                problems += faults
                continue
            for check in (_gaps, _wrong_texts):
                problems += [f"{owner}: {each}" for each in await self._db.read(owner, lambda c=check, o=owner: c(o))]
            async for page in self._pages(owner):
                problems += [
                    f"{owner}: message {row[1]} of session {row[0]} cannot be found by its words; run reindex"
                    for row in page
                    if row[4] is None and row[2] != "streaming" and words(text_in(load(row[3])))
                ]
        return problems

    async def _faults(self, owner: str) -> list[str]:
        """Rows with a value that those who read it could not use."""
        found: list[str] = []
        for table, columns in TABLES.items():
            names, after = columns.split(", "), cast("Row", ())
            while rows := await self._db.read(owner, lambda t=table, a=after: _rows(owner, t, a)):
                after = tuple(rows[-1][: KEYS.get(table, 1)])
                for row in rows:
                    if wrong := fault(table, dict(zip(names, row, strict=True))):
                        found.append(f"{owner}: {table} {'/'.join(str(key) for key in row[: len(after)])}: {wrong}")
        return found

    async def _sqlite_problems(self, db: SqliteDatabase) -> list[str]:
        def look(connection: sqlite3.Connection) -> list[str]:
            found = [row[0] for row in connection.execute("PRAGMA integrity_check(100)") if row[0] != "ok"]
            found += [f"row without its parent: {tuple(row)}" for row in connection.execute("PRAGMA foreign_key_check")]
            return found

        try:
            problems = await db.aside(look)
            if not problems and not db.trouble:
                await db.system(_fts_check)
        except StoreError as error:
            return [str(error)]
        return problems

    async def backup(self, path: str) -> None:
        """A whole copy while the store is in use: a SQLite file, or from PostgreSQL an export."""
        if os.path.exists(path):
            raise InputError(f"{path} exists already", hint="give a new name; a backup never overwrites")
        partial = f"{path}.partial"
        if isinstance(self._db, SqliteDatabase) and os.path.realpath(partial) == self._db.path:
            raise InputError(f"{path} would be written by way of the store itself", hint="give another name")
        try:
            for stale in (partial, f"{partial}-journal", f"{partial}-wal", f"{partial}-shm"):
                with suppress(FileNotFoundError):  # left by a copy that was ended
                    os.unlink(stale)
            if isinstance(self._db, SqliteDatabase):
                await self._db.aside(lambda connection: _copy(connection, partial))
            else:
                await self._export_to(partial)
            os.replace(partial, path)
        except OSError as error:
            raise _no_backup(path, error.strerror or str(error)) from error

    async def _export_to(self, path: str) -> None:
        with open(path, "w", encoding="utf-8") as file:
            async for line in self.export():
                file.write(f"{line}\n")
            file.flush()
            os.fsync(file.fileno())

    async def reindex(self, owner: str | None = None) -> int:
        """Make the message search anew from the messages; returns how many messages were read."""
        count = 0
        for each in await self.owners() if owner is None else [owner]:
            await self._db.write(each, lambda o=each: _clear_words(o))
            async for page in self._pages(each):
                await self._db.write(each, lambda o=each, p=page: _index(self._db, o, p))
                count += len(page)
        if owner is None:
            await self.scrub()
        return count

    async def scrub(self) -> None:
        """Make the full-text index of SQLite anew from its rows, so that nothing is left in it of what was deleted."""
        if self._db.dialect.name == "sqlite":
            await self._db.system(_rebuild)

    async def _pages(self, owner: str) -> AsyncIterator[list[Row]]:
        after: tuple[str, int] = ("", 0)
        while rows := await self._db.read(owner, lambda a=after: _page(owner, a)):
            yield rows
            after = (rows[-1][0], rows[-1][1])

    async def export(self, owner: str | None = None) -> AsyncIterator[str]:
        """Lines of JSON, one row each, of one owner or of all; each owner as at one moment."""
        yield _line({"lamina": "export", "format": FORMAT})
        for each in await self.owners() if owner is None else [owner]:
            for line in await self._db.read(each, lambda o=each: _lines(o)):
                yield line

    async def import_(
        self, lines: AsyncIterable[str] | Iterable[str], owner: str | None = None, *, check: Check | None = None,
        at_once: int = AT_ONCE,
    ) -> int:  # fmt: skip
        """Add the rows of an export; those that are there already stay. `owner` takes them all; returns how many.

        All is checked before anything is written, of a large export each part of `at_once` rows, messages with `check`
        too; an owner's rows of a part are one transaction. What fails says what was kept.
        """
        kept: dict[str, int] = {}
        try:
            await self._import(lines, owner, kept, check, at_once)
        except LaminaError as error:
            raise _cut_off(error, kept) from error
        for each in sorted(kept):
            await self.reindex(each)
        return sum(kept.values())

    async def _import(
        self, lines: AsyncIterable[str] | Iterable[str], owner: str | None, kept: dict[str, int], check: Check | None,
        at_once: int,
    ) -> None:  # fmt: skip
        part: list[dict[str, Any]] = []
        sessions: dict[str, set[str]] = {}
        number = size = 0
        async for line in _each(lines):
            number += 1
            if number == 1:
                _check_header(line)
                continue
            row = _parsed(line, number, check)
            row["owner"] = checked_owner(owner or row["owner"])
            part.append(row)
            size += len(line)
            if len(part) >= at_once or size >= MOST:
                await self._store(part, kept, sessions, more=True)
                part, size = [], 0
        await self._store(part, kept, sessions, more=False)
        for each in set(sessions) - {row["owner"] for row in part}:
            await self._db.read(each, lambda o=each: _check_numbers(o, sessions[o], False))

    async def _store(
        self, part: list[dict[str, Any]], kept: dict[str, int], sessions: dict[str, set[str]], *, more: bool
    ) -> None:
        owners: dict[str, list[dict[str, Any]]] = {}
        for row in part:
            owners.setdefault(row["owner"], []).append(row)
        for owner, rows in owners.items():
            named = {row["session_id"] for row in rows if row["table"] in ("chat_session", "conversation")}
            seen = sessions.setdefault(owner, set())
            seen |= named
            mine = named if more else seen
            added = await self._db.write(owner, lambda o=owner, b=rows, m=mine: _import(o, b, m, more))
            kept[owner] = kept.get(owner, 0) + added


def _cut_off(error: LaminaError, kept: dict[str, int]) -> LaminaError:
    rows = ", ".join(f"{count:,} of {shown(owner)}" for owner, count in kept.items() if count)
    if not rows:
        return type(error)(f"{error.message}; nothing was added", hint=error.hint)
    return type(error)(
        f"{error.message}; {sum(kept.values()):,} rows before it were added and stay: {rows}",
        hint="mend that and import the whole file again: rows that are there already are left as they are",
    )


def _copy(connection: sqlite3.Connection, target: str) -> None:
    """The target is fresh and empty, so damage that is met can only be that of the store; all else is the target's."""
    try:
        with closing(sqlite3.connect(target)) as copy:
            connection.backup(copy)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise
        raise _no_backup(target.removesuffix(".partial"), str(error)) from error


def _no_backup(path: str, why: str) -> StoreError:
    return StoreError(
        f"the backup {path} cannot be written: {why}",
        hint="check its folder, its rights and the space there; the store goes on as before",
    )


def _fts_check() -> Steps[None]:
    yield "INSERT INTO message_fts (message_fts) VALUES ('integrity-check')", ()


def _rebuild() -> Steps[None]:
    yield "INSERT INTO message_fts (message_fts) VALUES ('rebuild')", ()


def _check_header(line: str) -> None:
    try:
        header: Any = json.loads(line)
        known, version = header["lamina"] == "export", header["format"]
    except (ValueError, LookupError, TypeError, RecursionError):
        known, version = False, None
    if not known:
        raise InputError(
            f"this is no export: its first line is {shown(line.strip())}",
            hint="`lamina store export FILE` makes one; `lamina sessions import FILE` reads a chat",
        )
    if version != FORMAT:
        raise InputError(
            f"this is an export of format {shown(version)}, and format {FORMAT} is known here",
            hint="was it made by a newer version? update lamina",
        )


async def _each(lines: AsyncIterable[str] | Iterable[str]) -> AsyncIterator[str]:
    if isinstance(lines, AsyncIterable):
        async for line in lines:
            if line.strip():
                yield line
    else:
        for line in lines:
            if line.strip():
                yield line
