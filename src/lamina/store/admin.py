"""Administration of a store: what is in it, verify, backup, reindex, export and import."""

import json
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, cast

from lamina.errors import InputError, LaminaError, format_value
from lamina.records import NOTE
from lamina.store.database import Clock, Database, Row, Steps, check_owner, clean, dump, insert, load, marks
from lamina.store.lock import create_private
from lamina.store.messages import read_content, split_message, text_in, without_words, words, write_content
from lamina.store.search import Indexes, plan_sessions, planned_owners, planned_sessions
from lamina.store.sessions import COLUMNS, LATER_COLUMNS, SECRET
from lamina.store.shapes import find_fault
from lamina.store.sqlite import SqliteDatabase
from lamina.store.sqlite_tables import Problem, Step, backup_error, copy_file, find_problems
from lamina.text.messages import Phrase
from lamina.types import AnyMessage, text_hash

FORMAT, KNOWN_FORMATS = 2, (1, 2)
"""Of an export. In format 1 the content of every message was JSON, without a `content_type`."""
PAGE = 500
TABLES = {
    "owner_counter": "name, value",
    "chat_session": COLUMNS.removeprefix("owner, "),
    "conversation": "session_id, seq, message_id, turn_id, role, content, extra, state, is_collected, collected, "
    "tokens, created, content_type",
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
"""How the line of a counter begins. An owner always has some, and they do not count as rows."""
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
LATER: dict[str, dict[str, Any]] = {
    "chat_session": LATER_COLUMNS,
    "turn": {"begun": None},
    "conversation": {"content_type": "json"},
}
"""Columns that came after the first export was made, and what they are where an export does not name them."""
OWN = ("ledger", "steps")
"""Of a session's runtime: what its last request was made of is this store's own to say, and steps are of one turn."""
UNEXPORTED = {
    "api_key": "key_id, name, hash, scopes, rate, tokens, created, expires, revoked, used",
    "key_use": "key_id, day, requests, tokens",
}
"""Keys open a gateway: they stay where they were made. A backup of SQLite is the whole file, with their hashes."""


Check = Callable[[AnyMessage], object]
"""Refuses a message that could not be sent; what can is not for a store to know."""
MAX_PART_ROWS, MAX_PART_CHARACTERS = 20_000, 32 << 20
"""Of an export, what is read and checked before the first of it is written."""
WHOLE_EXPORT = "import.hint_whole_export"


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


def _gaps(owner: str, only: Sequence[str] = (), *, more: bool = False) -> Steps[list[Phrase]]:
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
        Phrase("store.wrong_numbers", session=row[0], count=row[2], first=row[3], last=row[4], expected=row[1])
        for row in rows
        if (row[4] > row[1] if more else (row[2], row[3], row[4]) != (row[1], 1, row[1]))
    ]


def _wrong_texts(owner: str) -> Steps[list[Phrase]]:
    rows = yield "SELECT hash, text FROM layer_text WHERE owner = ? ORDER BY hash", (owner,)
    return [Phrase("store.wrong_hash", hash=row[0]) for row in rows if text_hash(load(row[1])) != row[0]]


def _page(owner: str, after: tuple[str, int]) -> Steps[list[Row]]:
    """Messages in pages: session, number, state, content and its type."""
    return (
        yield (
            "SELECT session_id, seq, state, content, content_type FROM conversation "
            "WHERE owner = ? AND (session_id, seq) > (?, ?) ORDER BY session_id, seq LIMIT ?",
            (owner, *after, PAGE),
        )
    )


def _find_unfound(
    db: Database, owner: str, page: Sequence[Row], planned: Collection[str]
) -> Steps[list[tuple[str, int]]]:
    """Messages of a page that no search finds and no rebuild is about to."""
    wanted: dict[str, list[int]] = {}
    for session_id, seq, state, *content in page:
        if session_id not in planned and state != "streaming" and words(text_in(read_content(*content))):
            wanted.setdefault(session_id, []).append(seq)
    lost: list[tuple[str, int]] = []
    for session_id, numbers in wanted.items():
        known = yield from db.dialect.search.indexed(owner, session_id, numbers[0], numbers[-1])
        lost += [(session_id, seq) for seq in numbers if seq not in known]
    return lost


def _lines(owner: str) -> Steps[list[str]]:
    lines: list[str] = []
    for table, columns in TABLES.items():
        names = columns.split(", ")
        order = ", ".join(names[: KEYS.get(table, 1)])
        rows = yield f"SELECT {columns} FROM {table} WHERE owner = ? ORDER BY {order}", (owner,)
        kept = (row for row in rows if (table, row[0]) != SECRET)
        lines += [_line({"table": table, "owner": owner, **dict(zip(names, row, strict=True))}) for row in kept]
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
        lines = [line for line in batch if line["table"] == table and (table, line.get("name")) != SECRET]
        yield from _check_parents(owner, table, lines)
        rows = [_importable_row(table, (owner, *(line[name] for name in names))) for line in lines]
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
    yield from plan_sessions(owner, sorted({line["session_id"] for line in batch if line["table"] == "conversation"}))
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
                raise InputError(
                    "import.no_parent",
                    line=first[name],
                    table=table,
                    parent=parent,
                    column=column,
                    value=format_value(name),
                )


def _pieces(names: Collection[str]) -> Iterator[Sequence[str]]:
    ordered = sorted(names)
    yield from (ordered[at : at + PAGE] for at in range(0, len(ordered), PAGE))


def _check_numbers(owner: str, sessions: Collection[str], more: bool) -> Steps[None]:
    """A session whose last number is not that of its last message could take no other."""
    for names in _pieces(sessions):
        if wrong := (yield from _gaps(owner, names, more=more)):
            raise InputError("import.wrong_numbers", owner=format_value(owner), why=wrong[0], hint=WHOLE_EXPORT)


def _importable_row(table: str, row: Row) -> Row:
    """A row as it is imported, without what a file may not decide."""
    if table == "conversation":
        names = TABLES[table].split(", ")
        fields = dict(zip(names, row[1:], strict=True))
        content = read_content(fields["content"], fields["content_type"])
        fields["content"], fields["content_type"] = write_content(content)
        if fields["extra"] != "{}":
            fields["extra"] = dump(without_words(load(fields["extra"])))
        return (row[0], *fields.values())
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
        if not found or _importable_row(table, (owner, *found[0])) != tuple(row):
            raise InputError("import.conflict", table=table, owner=format_value(owner), key=format_value(key))


def _find_fault(table: str, row: Mapping[str, Any]) -> Phrase | None:
    """What is wrong with a row, and with what its columns say together."""
    wrong = find_fault(table, row)
    if wrong or table != "conversation":
        return wrong
    try:
        split_message(_message(row))
    except LaminaError as error:
        return Phrase("row.unusable_message", why=error.phrase)
    return None


def _message(row: Mapping[str, Any]) -> dict[str, Any]:
    extra = {name: value for name, value in load(row["extra"]).items() if name != NOTE}
    return {**extra, "role": row["role"], "content": read_content(row["content"], row["content_type"])}


def _parse_line(line: str, number: int, check: Check | None) -> dict[str, Any]:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError("import.line_not_json", line=number, why=str(error), hint=WHOLE_EXPORT) from None
    fields = cast("dict[str, Any]", row) if isinstance(row, dict) else {}
    table: Any = fields.get("table")
    fields = {**LATER.get(table, {}), **fields} if isinstance(table, str) else fields
    if not isinstance(table, str) or table not in TABLES or not {"owner", *TABLES[table].split(", ")} <= set(fields):
        raise InputError("import.line_not_row", line=number, value=format_value(line), hint=WHOLE_EXPORT)
    wrong = _find_fault(table, {name: fields[name] for name in TABLES[table].split(", ")})
    if not wrong and table == "layer_text" and text_hash(load(fields["text"])) != fields["hash"]:
        wrong = Phrase("store.wrong_hash", hash=fields["hash"])
    if wrong:
        raise InputError("import.bad_row", line=number, table=table, why=wrong, hint=WHOLE_EXPORT)
    if check and table == "conversation":
        try:
            check(_message(fields))
        except LaminaError as error:
            why, hint = error.phrase, error.next_step
            raise InputError("import.bad_row", line=number, table=table, why=why, hint=hint) from None
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


Kind = Literal["session", "message", "memory", "job", "turn"]
PLACES: Mapping[Kind, tuple[str, str]] = {
    "session": ("chat_session", "session_id"),
    "message": ("conversation", "message_id"),
    "memory": ("atomic_memory", "memory_id"),
    "job": ("outbox", "job_id"),
    "turn": ("turn", "turn_id"),
}
COUNTED = {
    "sessions": "chat_session", "messages": "conversation", "memories": "atomic_memory",
    "summaries": "session_summary", "templates": "prompt_template",
}  # fmt: skip


def _ids(owner: str, kind: Kind, begin: str, limit: int) -> Steps[list[str]]:
    table, column = PLACES[kind]
    rows = yield (
        f"SELECT {column} FROM {table} WHERE owner = ? AND SUBSTR({column}, 1, ?) = ? ORDER BY {column} LIMIT ?",
        (owner, len(begin), begin, limit),
    )
    return [row[0] for row in rows]


def _counts(owner: str) -> Steps[dict[str, int]]:
    counts: dict[str, int] = {}
    for name, table in COUNTED.items():
        only = " AND state = 'active'" if name == "memories" else ""
        rows = yield f"SELECT COUNT(*) FROM {table} WHERE owner = ?{only}", (owner,)
        counts[name] = int(rows[0][0])
    return counts


def _version() -> Steps[int]:
    rows = yield "SELECT COALESCE(MAX(version), 0) FROM schema_version", ()
    return int(rows[0][0])


def _size() -> Steps[int]:
    rows = yield "SELECT pg_database_size(current_database())", ()
    return int(rows[0][0])


class Admin:
    def __init__(self, db: Database, clock: Clock, indexes: Indexes) -> None:
        self._db = db
        self._clock = clock
        self._indexes = indexes

    async def owners(self) -> Sequence[str]:
        """Every owner that has rows. In PostgreSQL no role sees all rows, so there the counters tell."""
        tables = [*TABLES] if isinstance(self._db, SqliteDatabase) else ["owner_counter"]
        return await self._db.read_any_owner(lambda: _owners(tables))

    async def verify(self, step: Step = lambda done, total: None) -> Sequence[Problem]:
        """What is wrong with the store; empty when all is well. Changes nothing."""
        problems = await self._db.aside(find_problems) if isinstance(self._db, SqliteDatabase) else []
        if problems:
            return problems
        owners = await self.owners()
        for number, owner in enumerate(owners, 1):
            step(number, len(owners) + 1)
            if faults := await self._faults(owner):
                problems += [_problem("rows", owner, each) for each in faults]
                continue
            for check in (_gaps, _wrong_texts):
                found = await self._db.read(owner, lambda c=check, o=owner: c(o))
                problems += [_problem("rows", owner, each) for each in found]
            planned = await self._db.read(owner, lambda o=owner: planned_sessions(o))
            if "search" in self._db.damaged_indexes:  # `searches_all` says so
                continue
            async for page in self._pages(owner):
                lost = await self._db.read(owner, lambda o=owner, p=page, s=planned: _find_unfound(self._db, o, p, s))
                unfound = [Phrase("store.unfound_message", seq=seq, session=name) for name, seq in lost]
                problems += [_problem("search", owner, each) for each in unfound]
        return problems

    async def searches_all(self) -> bool:
        """Whether no index is being rebuilt, of anybody."""
        return not self._db.damaged_indexes and not await self._db.read_any_owner(planned_owners)

    async def _faults(self, owner: str) -> list[Phrase]:
        """Rows with a value that those who read it could not use."""
        found: list[Phrase] = []
        for table, columns in TABLES.items():
            names, after = columns.split(", "), cast("Row", ())
            while rows := await self._db.read(owner, lambda t=table, a=after: _rows(owner, t, a)):
                after = tuple(rows[-1][: KEYS.get(table, 1)])
                for row in rows:
                    if wrong := _find_fault(table, dict(zip(names, row, strict=True))):
                        key = "/".join(str(part) for part in row[: len(after)])
                        found.append(Phrase("store.bad_row", table=table, key=key, why=wrong))
        return found

    async def backup(self, path: str, step: Step = lambda done, total: None) -> Sequence[Problem]:
        """A whole copy while the store is in use: a SQLite file, or from PostgreSQL an export. Returns what is wrong
        with the store: damaged indexes are left out of the copy, and rebuilt when it is opened; damaged rows are as
        damaged there."""
        if os.path.exists(path):
            raise InputError("backup.exists", path=path)
        partial = f"{path}.partial"
        if isinstance(self._db, SqliteDatabase) and os.path.realpath(partial) == self._db.path:
            raise InputError("backup.onto_store", path=path)
        try:
            _remove_partial(partial)  # left by a copy that was ended
            os.close(create_private(partial))
            problems: list[Problem] = []
            if isinstance(self._db, SqliteDatabase):
                problems = await self._db.aside(lambda connection: copy_file(connection, partial, step))
            else:
                await self._export_to(partial)
            os.replace(partial, path)
        except OSError as error:
            raise backup_error(path, error.strerror or str(error)) from error
        finally:
            with suppress(OSError):
                _remove_partial(partial)
        return problems

    async def _export_to(self, path: str) -> None:
        with open(path, "r+", encoding="utf-8") as file:
            async for line in self.export():
                file.write(f"{line}\n")
            file.flush()
            os.fsync(file.fileno())

    async def reindex(self, owner: str | None = None) -> int:
        """Make message search again from the messages, of one owner or from nothing; returns how many were read."""
        if owner is not None:
            return await self._indexes.reindex(owner)
        await self._indexes.recreate()
        return sum([await self._indexes.reindex(each) for each in await self.owners()])

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
        at_once: int = MAX_PART_ROWS,
    ) -> int:  # fmt: skip
        """Add the rows of an export; those that are there already stay. `owner` takes them all; returns how many.

        All is checked before anything is written, of a large export each part of `at_once` rows, messages with `check`
        too; an owner's rows of a part are one transaction. What fails says what was kept.
        """
        kept: dict[str, int] = {}
        try:
            await self._import(lines, owner, kept, check, at_once)
        except LaminaError as error:
            raise _import_error(error, kept) from error
        for each in sorted(kept):
            await self._indexes.finish(each)
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
            row = _parse_line(line, number, check)
            row["owner"] = check_owner(owner or row["owner"])
            part.append(row)
            size += len(line)
            if len(part) >= at_once or size >= MAX_PART_CHARACTERS:
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

    @property
    def kind(self) -> str:
        return self._db.dialect.name

    async def ids(self, owner: str, kind: Kind, begin: str, *, limit: int = 2) -> Sequence[str]:
        """The owner's ids that begin so, in their order: one that is exactly this comes first."""
        clean(begin, "field.id")
        return await self._db.read(owner, lambda: _ids(owner, kind, begin, limit))

    async def counts(self, owner: str) -> Mapping[str, int]:
        """How much of each an owner has; of memories the active ones."""
        return await self._db.read(owner, lambda: _counts(owner))

    async def version(self) -> int:
        return await self._db.read_any_owner(_version)

    async def sizes(self) -> Mapping[str, int]:
        """Bytes: the file and its log, or the whole database."""
        if isinstance(self._db, SqliteDatabase):
            path = self._db.path
            names = {"file": path, "log": f"{path}-wal"}
            return {name: os.stat(file).st_size for name, file in names.items() if os.path.exists(file)}
        return {"database": await self._db.read_any_owner(_size)}


def _import_error(error: LaminaError, kept: dict[str, int]) -> LaminaError:
    rows = [
        Phrase("import.rows_of_owner", count=count, owner=format_value(owner)) for owner, count in kept.items() if count
    ]
    if not rows:
        return type(error)("import.nothing_added", why=error.phrase, hint=error.next_step)
    return type(error)("import.partly_added", why=error.phrase, count=sum(kept.values()), rows=rows)


def _problem(part: str, owner: str, what: Phrase) -> Problem:
    return Problem(part, Phrase("store.problem_of_owner", owner=owner, what=what))


def _remove_partial(path: str) -> None:
    for name in (path, f"{path}-journal", f"{path}-wal", f"{path}-shm"):
        with suppress(FileNotFoundError):
            os.unlink(name)


def _check_header(line: str) -> None:
    try:
        header: Any = json.loads(line)
        known, version = header["lamina"] == "export", header["format"]
    except (ValueError, LookupError, TypeError, RecursionError):
        known, version = False, None
    if not known:
        raise InputError("import.not_export", value=format_value(line.strip()))
    if version not in KNOWN_FORMATS:
        raise InputError("import.unknown_format", format=format_value(version), known=FORMAT)


async def _each(lines: AsyncIterable[str] | Iterable[str]) -> AsyncIterator[str]:
    if isinstance(lines, AsyncIterable):
        async for line in lines:
            if line.strip():
                yield line
    else:
        for line in lines:
            if line.strip():
                yield line
