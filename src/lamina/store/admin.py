"""Administration of a store: what is in it, verify, backup, export and import; and its indexes, which are completed and
repaired in the background.

Damage to an index never stops writing: the driver notices it, it is repaired here, a bounded slice in each transaction,
and until then a search says that it may be incomplete. Damage to anything else is reported and left as it is.
"""

import asyncio
import json
import logging
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

from lamina.errors import InputError, LaminaError, StoreDamagedError, StoreError, format_value
from lamina.records import NOTE, Session
from lamina.store import jobs, memories, messages, schema, sessions, templates, turns
from lamina.store.database import (
    Clock,
    Database,
    Group,
    Row,
    Steps,
    batches,
    check_owner,
    clean,
    dump,
    insert,
    load,
    marks,
    read,
    read_any_owner,
    write,
)
from lamina.store.lock import RECOVERY, create_private
from lamina.store.sqlite import SqliteDatabase
from lamina.text.messages import Phrase
from lamina.types import AnyMessage, text_hash

FORMAT, KNOWN_FORMATS = 2, (1, 2)
"""Of an export. In format 1 the content of every message was JSON, without a `content_type`."""
PAGE = 500
TABLES = {
    "owner_counter": "name, value",
    "chat_session": sessions.COLUMNS.removeprefix("owner, "),
    "conversation": f"{messages.COLUMNS.removeprefix('owner, ')}, collected",
    "turn": turns.COLUMNS.removeprefix("owner, "),
    "chunk": "turn_id, n, text",
    "layer_text": "hash, text",
    "turn_text": "turn_id, hash",
    "atomic_memory": memories.COLUMNS.removeprefix("owner, "),
    "session_summary": f"{sessions.SUMMARY_COLUMNS.removeprefix('owner, ')}, number",
    "user_profile": "name, value, updated",
    "prompt_template": templates.COLUMNS,
    "outbox": jobs.COLUMNS.removeprefix("owner, "),
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
    "chat_session": {"runtime": "{}", **{f.name: f.default for f in fields(Session)[17:]}},
    "turn": {"begun": None},
    "conversation": {"content_type": "json"},
}
"""Columns that came after the first export was made, and what they are where an export does not name them."""
OWN_RUNTIME = ("ledger", "steps")
"""Of a session's runtime: what its last request was made of is this store's own to say, and steps are of one turn."""
UNEXPORTED = {
    "api_key": "key_id, name, hash, scopes, rate, tokens, created, expires, revoked, used",
    "key_use": "key_id, day, requests, tokens",
}
"""Keys open a gateway: they stay where they were made. A backup of SQLite is the whole file, with their hashes."""
MAX_PART_ROWS, MAX_PART_CHARACTERS = 20_000, 32 << 20
"""Of an export, what is read and checked before the first of it is written."""
WHOLE_EXPORT = "import.hint_whole_export"

Kind = Literal["session", "message", "memory", "job", "turn"]
IDS: Mapping[Kind, tuple[str, str]] = {
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

Fields = dict[str, Any]
"""A row of an export: its table, owner and columns, and the number of its line."""
Check = Callable[[AnyMessage], object]
"""Refuses a message that could not be sent; what can is not for a store to know."""
Progress = Callable[[int, int], object]
"""Called with how much is done, and of how much."""


def _keys(table: str) -> list[str]:
    return TABLES[table].split(", ")[: KEYS.get(table, 1)]


# Verify


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with a store. `part` is a group of derived tables, which `reindex` replaces, or `rows`, which
    nothing here can repair; the `details` are what SQLite says."""

    part: str
    phrase: Phrase
    details: tuple[Phrase, ...] = ()

    @property
    def text(self) -> str:
        return self.phrase.text()


DAMAGED = {"search": "store.search_index_damaged", "memory": "store.memory_index_damaged"}
REPAIRABLE = {"search": "store.search_index_repairable", "memory": "store.memory_index_repairable"}
"""The codes for a damaged group, and for one whose other tables are sound."""
MAX_DETAILS = 5
"""Lines of SQLite about one problem that are kept."""


def damage_in(connection: sqlite3.Connection, tables: Iterable[str] | None = None) -> list[Phrase]:
    """What SQLite finds wrong with tables; with all that are not derived when none are named."""
    names = schema.table_names(connection)
    if tables is None:
        derived, retired = schema.DERIVED_TABLES["sqlite"], ("sqlite_", *schema.RETIRED_TABLES)
        tables = [name for name in names if name not in derived and not name.startswith(retired)]
    found: list[Phrase] = []
    for table in tables:
        if table not in names:
            found.append(Phrase("store.table_missing", table=table))
            continue
        try:
            rows = connection.execute(f"PRAGMA integrity_check({table})").fetchall()
            found += [Phrase(row[0]) for row in rows if row[0] != "ok"]
        except sqlite3.DatabaseError as error:
            found.append(Phrase(f"{table}: {error}"))
    return found


def find_problems(connection: sqlite3.Connection) -> list[Problem]:
    """What SQLite finds wrong with the file; of an index that is damaged, only that it is."""
    connection.execute("BEGIN")
    try:
        leaks = schema.has_unlinked_pages(connection)  # the check of all pages would only list those
        found = [] if leaks else _check_pages(connection)
        if not found and not leaks:
            orphans = connection.execute("PRAGMA foreign_key_check").fetchall()
            return [Problem("rows", Phrase("store.orphan_row", row=str(tuple(row)))) for row in orphans]
        rows = damage_in(connection)
        problems = [Problem("rows", line) for line in rows[:MAX_DETAILS]]
        for group in schema.GROUPS:
            if lines := damage_in(connection, schema.tables_of(group)):
                code = (DAMAGED if rows else REPAIRABLE)[group]
                problems.append(Problem(group, Phrase(code), tuple(lines[:MAX_DETAILS])))
        return problems or [Problem("rows", line) for line in found[:MAX_DETAILS]]
    finally:
        connection.execute("ROLLBACK")


def _check_pages(connection: sqlite3.Connection) -> list[Phrase]:
    try:
        return [Phrase(row[0]) for row in connection.execute("PRAGMA integrity_check(100)") if row[0] != "ok"]
    except sqlite3.DatabaseError as error:
        return [Phrase(str(error))]


def find_fault(table: str, row: Mapping[str, Any]) -> Phrase | None:
    """What is wrong with a row, and with what its columns say together."""
    if wrong := schema.find_fault(table, row):
        return wrong
    if table == "conversation":
        try:
            messages.message_row(_message(row))
        except LaminaError as error:
            return Phrase("row.unusable_message", why=error.phrase)
    return None


def _message(row: Mapping[str, Any]) -> dict[str, Any]:
    extra = {name: value for name, value in load(row["extra"]).items() if name != NOTE}
    content = messages.read_content(row["content"], row["content_type"])
    return {**extra, "role": row["role"], "content": content}


def _has_wrong_hash(name: str, text: str) -> bool:
    return text_hash(load(text)) != name


def _find_gaps(owner: str, only: Sequence[str] = (), *, more: bool = False) -> Steps[list[Phrase]]:
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


# Backup

COPY_PAGES = 1_000
"""Pages of a backup that are copied before its progress is reported."""


def copy_file(connection: sqlite3.Connection, target: str, progress: Progress) -> list[Problem]:
    """The target is fresh and empty, so damage that is met can only be that of the store; all else is the target's.
    Damaged derived tables are replaced in the copy; returns what was wrong with it."""
    try:
        with closing(sqlite3.connect(target)) as copy:
            connection.execute("BEGIN")
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # all pages as of one moment
            connection.backup(copy, pages=COPY_PAGES, progress=lambda _, left, total: progress(total - left, total))
        with closing(sqlite3.connect(target, isolation_level=None)) as copy:
            problems = find_problems(copy)
            damaged = {problem.part for problem in problems} & {*schema.GROUPS}
            for group in sorted(damaged):
                schema.replace_tables(copy, group)
            if damaged:
                with suppress(sqlite3.DatabaseError):  # other damage stays as it is
                    schema.vacuum(copy)
        return problems
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise
        raise _backup_error(target.removesuffix(".partial"), str(error)) from error


def _backup_error(path: str, why: str) -> StoreError:
    return StoreError("backup.not_written", path=path, why=why)


def _remove_partial(path: str) -> None:
    for name in (path, f"{path}-journal", f"{path}-wal", f"{path}-shm"):
        with suppress(FileNotFoundError):
            os.unlink(name)


# Export and import


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


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


def _parse_line(line: str, number: int, check: Check | None) -> Fields:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError("import.line_not_json", line=number, why=str(error), hint=WHOLE_EXPORT) from None
    found = cast("Fields", row) if isinstance(row, dict) else {}
    table: Any = found.get("table")
    names = TABLES[table].split(", ") if isinstance(table, str) and table in TABLES else ["table"]
    found = {**LATER.get(str(table), {}), **found}
    if names == ["table"] or not {"owner", *names} <= found.keys():
        raise InputError("import.line_not_row", line=number, value=format_value(line), hint=WHOLE_EXPORT)
    wrong = find_fault(table, {name: found[name] for name in names})
    if not wrong and table == "layer_text" and _has_wrong_hash(found["hash"], found["text"]):
        wrong = Phrase("store.wrong_hash", hash=found["hash"])
    if wrong:
        raise InputError("import.bad_row", line=number, table=table, why=wrong, hint=WHOLE_EXPORT)
    if check and table == "conversation":
        try:
            check(_message(found))
        except LaminaError as error:
            why, hint = error.phrase, error.next_step
            raise InputError("import.bad_row", line=number, table=table, why=why, hint=hint) from None
    return {**found, "line": number}


def _importable_row(table: str, row: Row) -> Row:
    """A row as it is imported, without what a file may not decide."""
    if table not in ("conversation", "chat_session"):
        return tuple(row)
    found = dict(zip(TABLES[table].split(", "), row[1:], strict=True))
    if table == "chat_session":
        runtime = load(found["runtime"])
        if any(name in runtime for name in OWN_RUNTIME):
            found["runtime"] = dump({name: value for name, value in runtime.items() if name not in OWN_RUNTIME})
    else:
        content = messages.read_content(found["content"], found["content_type"])
        found["content"], found["content_type"] = messages.write_content(content)
        if found["extra"] != "{}":
            found["extra"] = dump(messages.without_words(load(found["extra"])))
    return (row[0], *found.values())


def _check_parents(owner: str, table: str, lines: Sequence[Fields]) -> Steps[None]:
    """All that rows belong to is there by now: it stands before them in an export."""
    for column, parent in PARENTS.get(table, {}).items():
        first = {line[column]: line["line"] for line in reversed(lines)}
        for names in batches(sorted(first)):
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


def _check_numbers(owner: str, named: Collection[str], more: bool) -> Steps[None]:
    """A session whose last number is not that of its last message could take no other."""
    for names in batches(sorted(named)):
        if wrong := (yield from _find_gaps(owner, names, more=more)):
            raise InputError("import.wrong_numbers", owner=format_value(owner), why=wrong[0], hint=WHOLE_EXPORT)


def _check_known(owner: str, table: str, rows: Sequence[Row], added: set[tuple[Any, ...]]) -> Steps[None]:
    """What was not added must be there already, as it is; anything else would be lost without a word."""
    keys = _keys(table)
    for row in rows:
        key = tuple(row[1 : 1 + len(keys)])
        if key in added:
            continue
        found = yield (
            f"SELECT {TABLES[table]} FROM {table} WHERE owner = ? AND {' AND '.join(f'{name} = ?' for name in keys)}",
            (owner, *key),
        )
        if not found or _importable_row(table, (owner, *found[0])) != tuple(row):
            raise InputError("import.conflict", table=table, owner=format_value(owner), key=format_value(key))


def _import_table(owner: str, table: str, lines: Sequence[Fields]) -> Steps[int]:
    """Rows that are there already stay as they are, and counters only move forward; returns how many were added."""
    names = TABLES[table].split(", ")
    yield from _check_parents(owner, table, lines)
    rows = [_importable_row(table, (owner, *(line[name] for name in names))) for line in lines]
    if table == "owner_counter":
        ending = (
            "ON CONFLICT (owner, name) DO UPDATE SET value = CASE WHEN excluded.value > owner_counter.value "
            "THEN excluded.value ELSE owner_counter.value END RETURNING owner"
        )
        yield from insert(table, "owner, name, value", rows, ending)
        return 0
    ending = f"ON CONFLICT DO NOTHING RETURNING {', '.join(_keys(table))}"
    added = yield from insert(table, f"owner, {TABLES[table]}", rows, ending)
    if len(added) < len(rows):
        yield from _check_known(owner, table, rows, {tuple(row) for row in added})
    return len(added)


def _import_error(error: LaminaError, added: dict[str, int]) -> LaminaError:
    rows = [
        Phrase("import.rows_of_owner", count=count, owner=format_value(owner))
        for owner, count in added.items()
        if count
    ]
    if not rows:
        return type(error)("import.nothing_added", why=error.phrase, hint=error.next_step)
    return type(error)("import.partly_added", why=error.phrase, count=sum(added.values()), rows=rows)


# Indexes

BULK_CHARACTERS = 1_000_000
"""Characters of messages whose words are written in one transaction where a caller waits for all of them."""
OPENING_SECONDS = 0.5
"""What a store is given to become complete before it is used; the rest is done in the background."""
RETRY_SECONDS = 30.0
"""Between two attempts to repair what turns out to be damaged again."""


class Indexes(Group):
    """Message search and the index of memories, which are derived from other tables."""

    def __init__(self, db: Database, clock: Clock) -> None:
        super().__init__(db, clock)
        self._log = logging.getLogger("lamina.store")
        self._lock = asyncio.Lock()
        """Held while missing words are written, so that a caller who waits for all of them is not overtaken."""

    async def run(self) -> None:
        """Until cancelled: complete what is not, and repair what turns out to be damaged."""
        while True:
            try:
                await self.complete()
            except StoreError as error:  # the store says so to everybody who uses it
                self._log.warning("[Store] the indexes are not complete: %s", error.message)
            await self._db.index_damage.wait()
            self._db.index_damage.clear()
            began = time.monotonic()
            try:
                await self.repair()
            except StoreDamagedError as error:  # of what they are derived from: trying again would not help
                self._log.warning("[Store] the indexes cannot be repaired: %s", error.message)
                continue
            except StoreError as error:
                self._log.warning("[Store] the indexes cannot be repaired yet: %s", error.message)
            if self._db.damaged_indexes:
                self._db.index_damage.set()
                await asyncio.sleep(max(0.0, RETRY_SECONDS - (time.monotonic() - began)))

    async def prepare(self) -> None:
        """What can be done at once when a store is opened: a command may end before anything in the background does."""
        if isinstance(self._db, SqliteDatabase) and self._db.is_small:
            await self.repair()
        await self.complete(OPENING_SECONDS)

    async def complete(self, seconds: float = float("inf")) -> None:
        """Write the words that are missing, for so many seconds at most, with pauses for others. Damage to an owner's
        messages holds up nobody else's."""
        end = time.monotonic() + seconds
        pause = 0.01 if seconds == float("inf") else 0.0
        failure: StoreError | None = None
        if isinstance(self._db, SqliteDatabase) and not self._db.trouble:
            while await self._retire(self._db):
                await asyncio.sleep(pause)
                if time.monotonic() >= end:
                    return
        for owner in await self.planned_owners():
            try:
                while True:
                    async with self._lock:
                        if await self._rebuild(owner, messages.SLICE_CHARACTERS) is None:
                            break
                    await asyncio.sleep(pause)
                    if time.monotonic() >= end:
                        return
            except StoreError as error:
                failure = error
        if failure:
            raise failure

    async def _retire(self, db: SqliteDatabase) -> bool:
        """Drop some of the tables that earlier versions searched in; whether anything is left of them."""
        try:
            return await db.alter(schema.drop_retired_tables)
        except StoreDamagedError:
            return await db.alter(lambda connection: schema.drop_retired_tables(connection, detach=True))

    @read_any_owner
    def planned_owners(self) -> Steps[Sequence[str]]:
        """Whose words are not complete."""
        rows = yield "SELECT DISTINCT owner FROM search_todo", ()
        return sorted(row[0] for row in rows)

    async def _rebuild(self, owner: str, most: int) -> int | None:
        if isinstance(self._db, SqliteDatabase):
            return await self._db.fill(owner, lambda: messages.rebuild_some(self._db, owner, most))
        return await self._db.write(owner, lambda: messages.rebuild_some(self._db, owner, most))

    async def reindex(self, owner: str, progress: Callable[[int], object] = lambda count: None) -> int:
        """Write the words of all of an owner's messages again; returns how many messages were read."""
        return await self.finish(owner, progress, again=True)

    async def finish(
        self, owner: str, progress: Callable[[int], object] = lambda count: None, *, again: bool = False
    ) -> int:
        """Write the words that are missing of an owner, or all of them `again`."""
        total = 0
        async with self._lock:
            if again:
                await self._plan_all(owner)
            while (count := await self._rebuild(owner, BULK_CHARACTERS)) is not None:
                total += count
                progress(total)
        return total

    @write
    def _plan_all(self, owner: str) -> Steps[None]:
        return messages.plan_rebuild(owner)

    async def recreate(self) -> None:
        """Empty tables in place of the derived ones, damaged or not. What was found before is found again after
        `reindex`. Where other tables are damaged, everything is left as it is."""
        await self._check_rows()
        async with self._lock:
            for group in schema.GROUPS:
                await self._db.recreate_tables(group)
        if isinstance(self._db, SqliteDatabase):
            await self._db.vacuum()

    async def repair(self) -> None:
        """Replace the tables that are damaged. Only where all others are sound: a damaged store is left as it is."""
        if self._db.damaged_indexes:
            await self._check_rows()
        async with self._lock:
            for group in sorted(self._db.damaged_indexes):
                await self._db.recreate_tables(group)
                self._log.warning("[Store] the %s index was replaced and is filled again", group)

    async def _check_rows(self) -> None:
        db = self._db
        if isinstance(db, SqliteDatabase) and (problems := await db.run_separately(damage_in)):
            raise StoreDamagedError("store.damaged_rows", path=db.path, why=problems[0], hint=RECOVERY)


class Admin(Group):
    def __init__(self, db: Database, clock: Clock, indexes: Indexes) -> None:
        super().__init__(db, clock)
        self._indexes = indexes

    # What is in it

    @property
    def kind(self) -> str:
        return self._db.dialect.name

    @read_any_owner
    def version(self) -> Steps[int]:
        rows = yield "SELECT COALESCE(MAX(version), 0) FROM schema_version", ()
        return int(rows[0][0])

    async def sizes(self) -> Mapping[str, int]:
        """Bytes: the file and its log, or the whole database."""
        if isinstance(self._db, SqliteDatabase):
            names = {"file": self._db.path, "log": f"{self._db.path}-wal"}
            return {name: os.stat(file).st_size for name, file in names.items() if os.path.exists(file)}
        return {"database": await self._database_size()}

    @read_any_owner
    def _database_size(self) -> Steps[int]:
        rows = yield "SELECT pg_database_size(current_database())", ()
        return int(rows[0][0])

    @read_any_owner
    def owners(self) -> Steps[Sequence[str]]:
        """Every owner that has rows. In PostgreSQL no role sees all rows, so there the counters tell."""
        found: set[str] = set()
        for table in TABLES if isinstance(self._db, SqliteDatabase) else ["owner_counter"]:
            rows = yield (  # from one owner to the next by the keys, however many rows each has
                f"WITH RECURSIVE known (owner) AS (SELECT MIN(owner) FROM {table} UNION ALL SELECT (SELECT "
                f"MIN(t.owner) FROM {table} t WHERE t.owner > known.owner) FROM known WHERE known.owner IS NOT NULL) "
                "SELECT owner FROM known WHERE owner IS NOT NULL",
                (),
            )
            found.update(row[0] for row in rows)
        return sorted(found)

    @read
    def ids(self, owner: str, kind: Kind, begin: str, *, limit: int = 2) -> Steps[Sequence[str]]:
        """The owner's ids that begin so, in their order: one that is exactly this comes first."""
        clean(begin, "field.id")
        table, column = IDS[kind]
        rows = yield (
            f"SELECT {column} FROM {table} WHERE owner = ? AND SUBSTR({column}, 1, ?) = ? ORDER BY {column} LIMIT ?",
            (owner, len(begin), begin, limit),
        )
        return [row[0] for row in rows]

    @read
    def counts(self, owner: str) -> Steps[Mapping[str, int]]:
        """How much of each an owner has; of memories the active ones."""
        counts: dict[str, int] = {}
        for name, table in COUNTED.items():
            only = " AND state = 'active'" if name == "memories" else ""
            rows = yield f"SELECT COUNT(*) FROM {table} WHERE owner = ?{only}", (owner,)
            counts[name] = int(rows[0][0])
        return counts

    # Its health

    async def searches_all(self) -> bool:
        """Whether no index is being rebuilt, of anybody."""
        return not self._db.damaged_indexes and not await self._indexes.planned_owners()

    async def verify(self, progress: Progress = lambda done, total: None) -> Sequence[Problem]:
        """What is wrong with the store; empty when all is well. Changes nothing."""
        problems: list[Problem] = []
        if isinstance(self._db, SqliteDatabase):
            problems = await self._db.run_separately(find_problems)
        if problems:
            return problems
        owners = await self.owners()
        for number, owner in enumerate(owners, 1):
            progress(number, len(owners) + 1)
            rows, unfound = await self._find_bad_rows(owner), list[Phrase]()
            if not rows:
                rows = [*await self._find_gaps(owner), *await self._find_wrong_texts(owner)]
                unfound = await self._find_unfound(owner)
            for part, found in (("rows", rows), ("search", unfound)):
                problems += [Problem(part, Phrase("store.problem_of_owner", owner=owner, what=what)) for what in found]
        return problems

    async def _pages(self, owner: str, table: str) -> AsyncIterator[Sequence[Row]]:
        after: Row = ()
        while rows := await self._page(owner, table, after):
            yield rows
            after = rows[-1][: len(_keys(table))]

    @read
    def _page(self, owner: str, table: str, after: Row) -> Steps[Sequence[Row]]:
        """The next rows of a table by its key."""
        keys = _keys(table)
        behind = f"AND ({', '.join(keys)}) > ({marks(len(keys))}) " if after else ""
        return (
            yield (
                f"SELECT {TABLES[table]} FROM {table} WHERE owner = ? {behind}ORDER BY {', '.join(keys)} LIMIT ?",
                (owner, *after, PAGE),
            )
        )

    async def _find_bad_rows(self, owner: str) -> list[Phrase]:
        """Rows with a value that those who read it could not use."""
        found: list[Phrase] = []
        for table, columns in TABLES.items():
            names = columns.split(", ")
            async for rows in self._pages(owner, table):
                for row in rows:
                    if wrong := find_fault(table, dict(zip(names, row, strict=True))):
                        key = "/".join(str(part) for part in row[: len(_keys(table))])
                        found.append(Phrase("store.bad_row", table=table, key=key, why=wrong))
        return found

    @read
    def _find_gaps(self, owner: str) -> Steps[list[Phrase]]:
        return _find_gaps(owner)

    async def _find_wrong_texts(self, owner: str) -> list[Phrase]:
        pages = self._pages(owner, "layer_text")
        return [
            Phrase("store.wrong_hash", hash=row[0]) async for rows in pages for row in rows if _has_wrong_hash(*row)
        ]

    async def _find_unfound(self, owner: str) -> list[Phrase]:
        """Messages that no search finds and no rebuild is about to. Of a damaged index, `searches_all` says so."""
        found: list[Phrase] = []
        if "search" in self._db.damaged_indexes:
            return found
        async for page in self._pages(owner, "conversation"):
            lost = await self._find_unindexed(owner, page)
            found += [Phrase("store.unfound_message", seq=seq, session=name) for name, seq in lost]
        return found

    @read
    def _find_unindexed(self, owner: str, page: Sequence[Row]) -> Steps[list[tuple[str, int]]]:
        names = TABLES["conversation"].split(", ")
        planned = yield from messages.planned_sessions(owner)
        wanted: dict[str, list[int]] = {}
        for row in (dict(zip(names, values, strict=True)) for values in page):
            if row["session_id"] not in planned and row["state"] != "streaming":
                text = messages.text_in(messages.read_content(row["content"], row["content_type"]))
                if messages.words(text):
                    wanted.setdefault(row["session_id"], []).append(row["seq"])
        lost: list[tuple[str, int]] = []
        for session_id, numbers in wanted.items():
            known = yield from self._db.dialect.search.indexed(owner, session_id, numbers[0], numbers[-1])
            lost += [(session_id, seq) for seq in numbers if seq not in known]
        return lost

    async def reindex(self, owner: str | None = None) -> int:
        """Make message search again from the messages, of one owner or from nothing; returns how many were read."""
        if owner is not None:
            return await self._indexes.reindex(owner)
        await self._indexes.recreate()
        return sum([await self._indexes.reindex(each) for each in await self.owners()])

    # Copies

    async def backup(self, path: str, progress: Progress = lambda done, total: None) -> Sequence[Problem]:
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
                problems = await self._db.run_separately(lambda connection: copy_file(connection, partial, progress))
            else:
                await self._export_to(partial)
            os.replace(partial, path)
        except OSError as error:
            raise _backup_error(path, error.strerror or str(error)) from error
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

    async def export(self, owner: str | None = None) -> AsyncIterator[str]:
        """Lines of JSON, one row each, of one owner or of all; each owner as at one moment."""
        yield _line({"lamina": "export", "format": FORMAT})
        for each in await self.owners() if owner is None else [owner]:
            for line in await self._lines(each):
                yield line

    @read
    def _lines(self, owner: str) -> Steps[Sequence[str]]:
        lines: list[str] = []
        for table, columns in TABLES.items():
            names = columns.split(", ")
            rows = yield f"SELECT {columns} FROM {table} WHERE owner = ? ORDER BY {', '.join(_keys(table))}", (owner,)
            exported = (row for row in rows if (table, row[0]) != sessions.SECRET)
            lines += [_line({"table": table, "owner": owner, **dict(zip(names, row, strict=True))}) for row in exported]
        return lines

    async def import_(
        self,
        lines: Iterable[str],
        owner: str | None = None,
        *,
        check: Check | None = None,
        at_once: int = MAX_PART_ROWS,
    ) -> int:
        """Add the rows of an export; those that are there already stay. `owner` takes them all; returns how many.

        All is checked before anything is written, of a large export each part of `at_once` rows, messages with `check`
        too; an owner's rows of a part are one transaction. What fails says what was added.
        """
        added: dict[str, int] = {}
        try:
            await self._import_parts(lines, owner, added, check, at_once)
        except LaminaError as error:
            raise _import_error(error, added) from error
        for each in sorted(added):
            await self._indexes.finish(each)
        return sum(added.values())

    async def _import_parts(
        self,
        lines: Iterable[str],
        owner: str | None,
        added: dict[str, int],
        check: Check | None,
        at_once: int,
    ) -> None:
        part: list[Fields] = []
        named: dict[str, set[str]] = {}
        size = 0
        for number, line in enumerate(filter(str.strip, lines), 1):
            if number == 1:
                _check_header(line)
                continue
            row = _parse_line(line, number, check)
            row["owner"] = check_owner(owner or row["owner"])
            part.append(row)
            size += len(line)
            if len(part) >= at_once or size >= MAX_PART_CHARACTERS:
                await self._import_part(part, added, named, more=True)
                part, size = [], 0
        await self._import_part(part, added, named, more=False)
        for each in set(named) - {row["owner"] for row in part}:
            await self._check_all_numbers(each, named[each])

    async def _import_part(
        self, part: list[Fields], added: dict[str, int], named: dict[str, set[str]], *, more: bool
    ) -> None:
        owners: dict[str, list[Fields]] = {}
        for row in part:
            owners.setdefault(row["owner"], []).append(row)
        for owner, rows in owners.items():
            here = {row["session_id"] for row in rows if row["table"] in ("chat_session", "conversation")}
            named.setdefault(owner, set()).update(here)
            count = await self._import_rows(owner, rows, here if more else named[owner], more)
            added[owner] = added.get(owner, 0) + count

    @write
    def _import_rows(self, owner: str, rows: Sequence[Fields], named: Collection[str], more: bool) -> Steps[int]:
        known = yield "SELECT 1 FROM owner_counter WHERE owner = ? LIMIT 1", (owner,)
        if not known and all(row["table"] != "owner_counter" for row in rows):  # an older export has them at the end
            yield from insert("owner_counter", "owner, name, value", [(owner, "activity", 0)], "ON CONFLICT DO NOTHING")
        added = 0
        for table in TABLES:
            lines = [row for row in rows if row["table"] == table and (table, row.get("name")) != sessions.SECRET]
            added += yield from _import_table(owner, table, lines)
        yield from _check_numbers(owner, named, more)
        changed = {row["session_id"] for row in rows if row["table"] == "conversation"}
        yield from messages.plan_sessions(owner, sorted(changed))
        return added

    @read
    def _check_all_numbers(self, owner: str, named: Collection[str]) -> Steps[None]:
        return _check_numbers(owner, named, False)
