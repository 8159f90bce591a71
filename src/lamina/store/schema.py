"""The tables of a store: the numbered migrations, and what a value of each column must be.

A table's own rules say less: JSON is text to it, and any number is a time. Rows of a store, which may be damaged, and
rows that come from elsewhere are checked here, so that everything that reads them can.
"""

import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from lamina.errors import LaminaError, StoreDamagedError, StoreError, format_value
from lamina.records import MAX_PHASE_CHARACTERS
from lamina.store.database import MAX_KEY, MAX_NAME, MAX_TITLE, Clock, Row, clean, load
from lamina.store.lock import RECOVERY
from lamina.text.messages import Phrase
from lamina.text.schema import Check, compile_schema
from lamina.text.unicode import SLICE_SIZE

VERSION_TABLE = (
    "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied REAL NOT NULL)"
)
FIRST_TABLES = ("schema_version", "chat_session", "conversation", "turn", "atomic_memory", "outbox", "owner_counter")
"""Tables that every store of ours has, of whatever version: by them it is known."""

DERIVED_TABLES = {
    "sqlite": {"message_word": "search", "message_block": "search", "search_todo": "search", "memory_index": "memory"},
    "postgres": {"message_words": "search", "search_todo": "search", "memory_index": "memory"},
}
"""Tables that can be rebuilt from the others, by database, and the group that is rebuilt together."""
RETIRED_TABLES = ("message_words", "message_fts")
"""Of message search in SQLite up to version 4: a table and a virtual one, whose shadow tables begin with its name."""


# Migrations


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    sql: str


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    found: list[Migration] = []
    for file in resources.files("lamina.store.migrations").iterdir():
        stem, _, kind = file.name.partition(".")
        if kind in ("sql", f"{dialect}.sql"):
            number, _, name = stem.partition("_")
            found.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    return tuple(sorted(found, key=lambda migration: migration.version))


def pending(dialect: str, version: int, upto: int | None = None) -> tuple[Migration, ...]:
    """What a database of this version still needs."""
    known = migrations(dialect)
    if version > known[-1].version:
        raise StoreError("store.too_new", version=version, known=known[-1].version)
    return tuple(each for each in known if version < each.version <= (upto or known[-1].version))


@lru_cache(maxsize=2_000)
def derived_group(sql: str) -> str:
    """The group of the derived tables that a statement names, of either database; empty when there are none in it."""
    return next((group for tables in DERIVED_TABLES.values() for table, group in tables.items() if table in sql), "")


def table_definition(dialect: str, table: str) -> str:
    """The statement of the migrations that makes a table."""
    begin = f"CREATE TABLE {table} ("
    script = next(each.sql for each in reversed(migrations(dialect)) if begin in each.sql)
    return script[script.index(begin) :].partition(";")[0]


# What a value must be

MAX_EXACT_INTEGER = 2**53 - 1
"""Up to which every reader of JSON keeps a whole number."""
PLAIN = "text"
"""The `content_type` of a message whose content is its text; that of all others is `json`."""

TEXT: Mapping[str, Any] = {"type": "string"}
TEXTS: Mapping[str, Any] = {"type": "array", "items": TEXT}
NUMBER: Mapping[str, Any] = {"type": "number"}
COUNT: Mapping[str, Any] = {"type": "integer", "minimum": 0, "maximum": MAX_EXACT_INTEGER}
AMOUNT: Mapping[str, Any] = {"type": "number", "minimum": 0, "maximum": MAX_EXACT_INTEGER}
INTEGER: Mapping[str, Any] = {"type": "integer"}


def _list_of(schema: Any) -> Mapping[str, Any]:
    return {"type": "array", "items": schema}


def _tuple_of(*schemas: Any) -> Mapping[str, Any]:
    return {"type": "array", "prefixItems": schemas}


def _object(properties: Mapping[str, Any], *, required: bool = True) -> Mapping[str, Any]:
    """An object with these fields; others are left alone."""
    return {"type": "object", "properties": properties, "required": [*properties] if required else []}


def _is_calibration(value: Any) -> bool:
    """What was estimated and what was reported, of whole requests: both or none, and one a measure for the other."""
    if not _IS_PAIR(value):
        return False
    estimated, reported = value
    return estimated == reported == 0 or (estimated >= 1 and estimated / 8 <= reported <= estimated * 8)


_IS_PAIR = compile_schema(_tuple_of(AMOUNT, AMOUNT))
COMPACTION = {
    **_object({"text": TEXT, "written_by": TEXT, "first": COUNT, "upto": COUNT}),
    "additionalProperties": False,
}
OPEN_ANSWER = {
    **_object(
        {
            **dict.fromkeys(("bot", "chat", "topic", "reply_to"), INTEGER),
            **dict.fromkeys(("turn", "lang"), TEXT),
            "group": {"type": "boolean"},
        }
    ),
    "type": ["object", "null"],
}
RUNTIME = {
    "compactions": _list_of(COMPACTION),
    "counted": _is_calibration,
    "failures": {"type": "object", "additionalProperties": COUNT},
    "use": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
    "telegram_starts": _list_of(COUNT),
    "telegram_listed": TEXTS,
    "telegram_answers": _list_of({"anyOf": [_tuple_of(COUNT, TEXT, COUNT), _tuple_of(COUNT, TEXT)]}),
    "telegram_up_to": {**COUNT, "type": ["integer", "null"]},
    "telegram_open": OPEN_ANSWER,
}
"""What is kept of a session between two turns. An answer of the Telegram bot is the number of its message, the answer
in it and the seq of its question, which 0.1.0 left out."""
USAGE = {
    **dict.fromkeys(("prompt", "cached", "completion"), COUNT),
    "requests": _list_of({**_tuple_of(COUNT, COUNT, COUNT), "type": ["array", "null"]}),
}
INJECTION = {
    "turn": COUNT,
    "level": {"enum": [0, 25, 50, 75]},
    "workspace": TEXT,
    "model": TEXT,
    "seen": {"type": "object", "additionalProperties": _object({"hash": TEXT, "turn": COUNT})},
    "noted": _list_of({"enum": ["compaction", "resume"]}),
    "kept": _list_of(_tuple_of(TEXT, TEXT, TEXT)),
    "warned": {"type": "boolean"},
}
OPTIONAL_TEXT: Mapping[str, Any] = {"type": ["string", "null"]}
SEGMENT = _tuple_of(TEXT, TEXT, TEXT, OPTIONAL_TEXT, TEXT, COUNT, TEXT, TEXT, Phrase.is_json, TEXT)
"""Of a stored request: its nine fields, and the hash of its text."""
REQUEST = {
    "same": COUNT,
    "segments": _list_of(SEGMENT),
    **dict.fromkeys(("hash", "counter", "grammar", "layout"), TEXT),
    **dict.fromkeys(("size", "tokens"), COUNT),
    "budget": NUMBER,
    "dropped": _object({"count": COUNT, "tokens": COUNT}),
}
RECEIPT = {
    "requests": _list_of({"type": "object", "properties": {**REQUEST, "triggers": TEXTS}, "required": [*REQUEST]}),
    "pieces": TEXTS,
}
NOTE_OF_RESULT = _object({"tool": TEXT, "hints": _list_of(_tuple_of(TEXT, TEXT, _list_of(_tuple_of(TEXT, TEXT))))})

is_receipt = compile_schema(_object(RECEIPT, required=False))
is_note = compile_schema(NOTE_OF_RESULT)
"""What lamina notes of a tool's result."""


@dataclass(frozen=True, slots=True)
class Column:
    """What a value must be, and how a record has it."""

    expected: Phrase
    fits: Check
    """Of the value; where `is_json`, of what it says."""
    is_json: bool = False
    convert: Callable[[Any], Any] | None = None


def _is_value(value: object) -> bool:
    return value is not ...  # which stands for a text that is not JSON


def _column(expected: str | Phrase, schema: Any, *, is_json: bool = False, convert: Any = None) -> Column:
    return Column(Phrase.of(expected), compile_schema(schema), is_json, convert)


def _short_text(most: int) -> Column:
    return _column(Phrase("shape.short_text", most=most), {**TEXT, "maxLength": most})


def _one_of(*names: str) -> Column:
    return _column(Phrase("shape.one_of", names=[*names]), {"enum": names})


def _known_object(properties: Mapping[str, Any]) -> Column:
    return _column("shape.known_object", _object(properties, required=False), is_json=True)


ANY_TEXT = _column("shape.text", TEXT)
OBJECT = _column("shape.object", {"type": "object"}, is_json=True)
LIST = _column("shape.texts", TEXTS, is_json=True, convert=tuple)
JSON_TEXT = _column("shape.json_text", TEXT, is_json=True)
JSON = _column("shape.json", _is_value, is_json=True)
TIME = _column("shape.time", {**NUMBER, "minimum": -62_135_596_800, "maximum": 253_402_300_799})
WHOLE = _column("shape.whole", {**INTEGER, "minimum": -MAX_EXACT_INTEGER, "maximum": MAX_EXACT_INTEGER})
FLAG = _column("shape.flag", {**INTEGER, "minimum": 0, "maximum": 1}, convert=bool)
NUMBERED = _column("shape.count", COUNT)
STATE = _one_of("streaming", "complete", "interrupted", "failed")

COLUMNS = {
    **dict.fromkeys(("meta", "injection", "runtime", "usage", "receipt", "payload", "extra"), OBJECT),
    **dict.fromkeys(("memory_ids", "supported_apps"), LIST),
    **dict.fromkeys(
        ("created", "updated", "ended", "finished", "begun", "happened", "lease_until", "run_after", "expires",
         "revoked", "used"), TIME,
    ),
    **dict.fromkeys(
        ("last_seq", "activity", "parent_seq", "seq", "collected", "tokens", "user_seq", "answer_seq", "n", "change",
         "version", "number", "upto_seq", "rate"), NUMBERED,
    ),
    **dict.fromkeys(("priority", "sort"), WHOLE),
    **dict.fromkeys(("is_collected", "pinned", "is_skill", "enabled"), FLAG),
    **dict.fromkeys(
        ("session_id", "parent_id", "message_id", "turn_id", "user_message_id", "answer_message_id", "memory_id",
         "superseded_by", "template_id", "job_id", "hash", "scenario", "app", "mode", "skill", "kind", "worker", "key",
         "name"), _short_text(MAX_NAME),
    ),
    "title": _short_text(MAX_TITLE),
    "phase": _short_text(MAX_PHASE_CHARACTERS),
    "importance": _column("shape.share", {**NUMBER, "minimum": 0, "maximum": 1}),
    "attempts": _column("shape.tries", {**COUNT, "maximum": 1_000_000}),
    "content": JSON,
}  # fmt: skip
"""By the name of a column, in whatever table; all others are text."""
COLUMNS_OF_TABLE = {
    ("conversation", "state"): STATE,
    ("conversation", "content_type"): _one_of(PLAIN, "json"),
    ("turn", "state"): STATE,
    ("turn", "usage"): _known_object(USAGE),
    ("turn", "receipt"): _known_object(RECEIPT),
    ("chat_session", "injection"): _known_object(INJECTION),
    ("chat_session", "runtime"): _known_object(RUNTIME),
    ("chunk", "text"): JSON_TEXT,
    ("layer_text", "text"): JSON_TEXT,
    ("atomic_memory", "state"): _one_of("active", "superseded", "forgotten"),
    ("user_profile", "value"): JSON,
    ("prompt_template", "content"): ANY_TEXT,
    ("outbox", "key"): _short_text(MAX_KEY),
    ("outbox", "state"): _one_of("waiting", "leased", "done", "parked"),
    ("owner_counter", "value"): NUMBERED,
}
"""Where a column of a table is something else than its name says."""
NULLABLE = {**dict.fromkeys(("ended", "finished", "begun", "happened", "expires", "revoked", "used")), "key": ""}
"""Columns that may be NULL, and what a record has then."""


def _column_of(table: str, name: str) -> Column:
    return COLUMNS_OF_TABLE.get((table, name)) or COLUMNS.get(name, ANY_TEXT)


@cache
def _columns(table: str, columns: str) -> tuple[tuple[str, Column], ...]:
    special = {"content": ANY_TEXT} if table == "conversation" else {}  # its type says how it is read
    return tuple((name, special.get(name) or _column_of(table, name)) for name in columns.split(", "))


def read_row(table: str, columns: str, row: Row) -> list[Any]:
    """The values of a row as a record has them. Each is what its readers count on: any other row is damaged."""
    values: list[Any] = []
    for value, (name, column) in zip(row, _columns(table, columns), strict=True):
        if value is None and name in NULLABLE:
            values.append(NULLABLE[name])
            continue
        found = read_json_text(value) if column.is_json else value
        if not column.fits(found):
            raise damaged_row(table, Phrase("row.wrong_type", column=name, expected=column.expected))
        values.append(column.convert(found) if column.convert else found)
    return values


def damaged_row(table: str, why: Phrase) -> StoreDamagedError:
    return StoreDamagedError("store.damaged_row", table=table, why=why, hint=RECOVERY)


def find_fault(table: str, row: Mapping[str, Any]) -> Phrase | None:
    """What is wrong with a row from elsewhere; None when nothing is."""
    for name, value in row.items():
        is_plain = name == "content" and row.get("content_type") == PLAIN
        column = ANY_TEXT if is_plain else _column_of(table, name)
        fits = column.fits(read_json_text(value) if column.is_json else value)
        if not fits and not (value is None and name in NULLABLE):
            return Phrase("row.wrong_value", column=name, value=format_value(value), expected=column.expected)
        if isinstance(value, str):
            try:
                clean(value, name)
            except LaminaError as error:
                return error.phrase
    return None


def read_json_text(text: object) -> Any:
    """The value of a JSON text; `...` where it is not JSON."""
    try:
        if not isinstance(text, str):
            return ...
        return _decode(text) if len(text) <= SLICE_SIZE else load(text)
    except (ValueError, RecursionError):
        return ...


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


_decode = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite).decode


# The tables of a SQLite file: functions on a connection whose transaction is the caller's

APPLICATION = 0x6C616D69
"""In the header of each of our files, for those who ask whose it is."""
SEARCH_TABLES_VERSION = 5
"""The version from which on the derived tables are those of today."""
GROUPS = sorted(set(DERIVED_TABLES["sqlite"].values()))
MARKS = {"search": 1, "memory": 2}
UNLINKED_PAGES = 4
"""Bits of `user_version`, which outlast the process: groups whose tables are to be replaced, and that there are pages
which belong to no table until the file is vacuumed."""
SLICE_ROWS, RETIRED_SLICE_ROWS = 5_000, 500
"""Rows of a table that are deleted in one transaction before it is dropped; those of retired tables are large."""


def is_ours(connection: sqlite3.Connection) -> bool:
    names = set(table_names(connection))
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    if not names:
        return application in (0, APPLICATION)
    known = application == APPLICATION or set(FIRST_TABLES) <= names
    return known and ("schema_version" not in names or _counts_versions(connection))


def table_names(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]


def _counts_versions(connection: sqlite3.Connection) -> bool:
    columns = [row[1] for row in connection.execute("PRAGMA table_info(schema_version)")]
    if columns != ["version", "name", "applied"]:
        return False
    return all(row[0] == "integer" for row in connection.execute("SELECT typeof(version) FROM schema_version"))


def migrate(connection: sqlite3.Connection, clock: Clock, upto: int | None) -> int:
    """Bring the tables up to date and put missing derived ones in their place; returns the version from before."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(VERSION_TABLE)
        version = int(connection.execute("SELECT COALESCE(MAX(version), 0) FROM schema_version").fetchone()[0])
        needed = pending("sqlite", version, upto)
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
        for migration in needed:
            for statement in _statements(migration.sql):
                connection.execute(statement)
            row = (migration.version, migration.name, clock())
            connection.execute("INSERT INTO schema_version (version, name, applied) VALUES (?, ?, ?)", row)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    _complete_tables(connection)
    return version


def _complete_tables(connection: sqlite3.Connection) -> None:
    """Put derived tables that are missing in their place."""
    (version,) = connection.execute("SELECT MAX(version) FROM schema_version").fetchone()
    names = set(table_names(connection))
    for group in GROUPS if version >= SEARCH_TABLES_VERSION else ():
        if not set(tables_of(group)) <= names:
            replace_tables(connection, group)


def replace_tables(connection: sqlite3.Connection, group: str) -> None:
    """`recreate_tables` in transactions of its own, whatever state the tables are in."""
    for detach in (False, True):
        connection.execute("BEGIN IMMEDIATE")
        try:
            recreate_tables(connection, group, detach=detach)
            connection.execute("COMMIT")
            return
        except sqlite3.DatabaseError:
            connection.execute("ROLLBACK")
            if detach:
                raise


def _statements(script: str) -> list[str]:
    found: list[str] = []
    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            found.append(text)
            text = ""
    return found


# Derived tables


def tables_of(group: str) -> list[str]:
    return [table for table, mine in DERIVED_TABLES["sqlite"].items() if mine == group]


def recreate_tables(connection: sqlite3.Connection, group: str, *, detach: bool = False) -> None:
    """Empty tables in place of those of a group; all sessions are to be indexed again. After an error in here the
    transaction must end; then `detach` does it whatever state the tables are in."""
    set_marks(connection, read_marks(connection) & ~MARKS[group])
    remove_tables(connection, tables_of(group), detach=detach)
    for table in tables_of(group):
        connection.execute(table_definition("sqlite", table))
    if group == "search":
        connection.execute(
            "INSERT INTO search_todo (owner, session_id, seq) SELECT owner, session_id, 0 FROM chat_session"
        )


def remove_tables(connection: sqlite3.Connection, tables: Iterable[str], *, detach: bool) -> None:
    """Drop tables, or only take them out of the list of tables: those with damaged pages cannot be dropped, and their
    pages are left until the file is vacuumed."""
    if not detach:
        for table in tables:
            connection.execute(f"DROP TABLE IF EXISTS {table}")
        return
    connection.execute("PRAGMA writable_schema = ON")
    try:
        for table in tables:
            where = "FROM sqlite_master WHERE tbl_name = ?"
            if connection.execute(f"SELECT 1 {where} AND rootpage > 0", (table,)).fetchone():
                set_marks(connection, read_marks(connection) | UNLINKED_PAGES)
            connection.execute(f"DELETE {where}", (table,))
        (number,) = connection.execute("PRAGMA schema_version").fetchone()
        connection.execute(f"PRAGMA schema_version = {number + 1}")
    finally:
        connection.execute("PRAGMA writable_schema = RESET")  # the list is read again


def read_marks(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def set_marks(connection: sqlite3.Connection, marks: int) -> None:
    if marks != read_marks(connection):
        connection.execute(f"PRAGMA user_version = {marks}")


def marked_groups(connection: sqlite3.Connection) -> set[str]:
    marks = read_marks(connection)
    return {group for group, bit in MARKS.items() if marks & bit}


def mark_groups(connection: sqlite3.Connection, groups: Iterable[str]) -> None:
    """Write down the groups whose tables are to be replaced: these and no others."""
    set_marks(connection, read_marks(connection) & UNLINKED_PAGES | sum(MARKS[group] for group in groups))


def has_unlinked_pages(connection: sqlite3.Connection) -> bool:
    return bool(read_marks(connection) & UNLINKED_PAGES)


def size_of(connection: sqlite3.Connection) -> int:
    """Bytes that the database needs, as if all of its log were in the file."""
    return connection.execute("PRAGMA page_count").fetchone()[0] * connection.execute("PRAGMA page_size").fetchone()[0]


def vacuum(connection: sqlite3.Connection) -> None:
    """Write the file again without the pages that belong to no table, outside a transaction."""
    connection.execute("VACUUM")
    set_marks(connection, read_marks(connection) & ~UNLINKED_PAGES)


def empty_table(connection: sqlite3.Connection, table: str) -> bool:
    """Delete some rows of a table; whether there may be more. Dropping a large one at once would hold up writers."""
    if table not in table_names(connection):
        return False
    key = ", ".join(row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[5]) or "rowid"
    most = RETIRED_SLICE_ROWS if table.startswith(RETIRED_TABLES) else SLICE_ROWS
    rows = connection.execute(f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} LIMIT {most})")
    return rows.rowcount >= most


def drop_retired_tables(connection: sqlite3.Connection, *, detach: bool = False) -> bool:
    """Empty and drop the tables of search up to version 4, a slice at a time; whether anything is left of them."""
    names = [name for name in table_names(connection) if name.startswith(RETIRED_TABLES)]
    if not names:
        return False
    if detach:
        remove_tables(connection, names, detach=True)
        return False
    if "message_fts" in names:  # it has no pages of its own, and without it the others are tables like any other
        remove_tables(connection, ["message_fts"], detach=True)
        return True
    if any(empty_table(connection, table) for table in names):
        return True
    remove_tables(connection, names, detach=False)
    return False
