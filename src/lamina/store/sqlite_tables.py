"""The tables of a SQLite file: whose they are, how they are brought up to date, and how derived ones are replaced.

Functions on a connection whose transaction is the caller's. Tables that hold what people said are never dropped here.
"""

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from lamina.errors import StoreError
from lamina.store.database import Clock, OutOfTimeError, Steps
from lamina.store.schema import (
    DERIVED_TABLES,
    FIRST_TABLES,
    RETIRED_TABLES,
    VERSION_TABLE,
    pending,
    table_definition,
)
from lamina.text.messages import Phrase

APPLICATION = 0x6C616D69
"""In the header of each of our files, for those who ask whose it is."""
SEARCH_TABLES_VERSION = 5
"""The version from which on the derived tables are those of today."""
GROUPS = sorted(set(DERIVED_TABLES["sqlite"].values()))
DAMAGED = {"search": "store.search_index_damaged", "memory": "store.memory_index_damaged"}
REPAIRABLE = {"search": "store.search_index_repairable", "memory": "store.memory_index_repairable"}
"""The codes for a damaged group, and for one whose other tables are sound."""
MARKS = {"search": 1, "memory": 2}
UNLINKED_PAGES = 4
"""Bits of `user_version`, which outlast the process: groups whose tables are to be replaced, and that there are pages
which belong to no table until the file is vacuumed."""
COPY_PAGES = 1_000
"""Pages of a backup that are copied before it is told how far it is."""
MAX_DETAILS = 5
"""Lines of SQLite about one problem that are kept."""
SLICE_ROWS, RETIRED_SLICE_ROWS = 5_000, 500
"""Rows of a table that are deleted in one transaction before it is dropped; those of retired tables are large."""

BLOCK_MESSAGES = 32
LAST_CHARACTER = "\U0010ffff"


Step = Callable[[int, int], object]
"""Told how much is done, and of how much."""


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


def retire_some(connection: sqlite3.Connection, *, detach: bool = False) -> bool:
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


def damage_in(connection: sqlite3.Connection, tables: Iterable[str] | None = None) -> list[Phrase]:
    """What SQLite finds wrong with tables; with all that are not derived when none are named."""
    names = table_names(connection)
    if tables is None:
        known = DERIVED_TABLES["sqlite"]
        tables = [name for name in names if name not in known and not name.startswith(("sqlite_", *RETIRED_TABLES))]
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
        leaks = has_unlinked_pages(connection)  # the check of all pages would only list those
        found = [] if leaks else _check_pages(connection)
        if not found and not leaks:
            orphans = connection.execute("PRAGMA foreign_key_check").fetchall()
            return [Problem("rows", Phrase("store.orphan_row", row=str(tuple(row)))) for row in orphans]
        rows = damage_in(connection)
        problems = [Problem("rows", line) for line in rows[:MAX_DETAILS]]
        for group in GROUPS:
            if lines := damage_in(connection, tables_of(group)):
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


def copy_file(connection: sqlite3.Connection, target: str, step: Step) -> list[Problem]:
    """The target is fresh and empty, so damage that is met can only be that of the store; all else is the target's.
    Damaged derived tables are replaced in the copy; returns what was wrong with it."""
    try:
        with closing(sqlite3.connect(target)) as copy:
            connection.execute("BEGIN")
            connection.execute(
                "SELECT 1 FROM sqlite_master"
            ).fetchone()  # all pages as of one moment, whatever is written
            connection.backup(copy, pages=COPY_PAGES, progress=lambda _, left, total: step(total - left, total))
        return _replace_damaged(target)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise
        raise backup_error(target.removesuffix(".partial"), str(error)) from error


def backup_error(path: str, why: str) -> StoreError:
    return StoreError("backup.not_written", path=path, why=why)


def _replace_damaged(path: str) -> list[Problem]:
    """In a copy that is not open anywhere."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        problems = find_problems(connection)
        damaged = {problem.part for problem in problems} & {*GROUPS}
        for group in sorted(damaged):
            replace_tables(connection, group)
        if damaged:
            with suppress(sqlite3.DatabaseError):  # other damage stays as it is
                vacuum(connection)
    finally:
        connection.close()
    return problems


# Message search


class WordTable:
    """SQLite: a row for each word of each message. Deleting a row erases it."""

    def put(self, owner: str, session_id: str, found: Sequence[tuple[int, Sequence[str]]]) -> Steps[None]:
        blocks: dict[int, int] = {}
        for seq, words in found:
            block = seq // BLOCK_MESSAGES
            if block not in blocks:
                key = (owner, session_id, block)
                rows = yield "SELECT id FROM message_block WHERE owner = ? AND session_id = ? AND block = ?", key
                if not rows:
                    columns = "message_block (owner, session_id, block)"
                    rows = yield f"INSERT INTO {columns} VALUES (?, ?, ?) RETURNING id", key
                if not rows:  # a damaged index answers nothing
                    return
                blocks[block] = int(rows[0][0])
            yield (
                "INSERT OR IGNORE INTO message_word (block_id, word, seq) SELECT ?, value, ? FROM json_each(?)",
                (blocks[block], seq, json.dumps(words, ensure_ascii=False)),
            )

    def copy_words(self, owner: str, source: str, target: str, upto: int) -> Steps[None]:
        yield (
            "INSERT OR IGNORE INTO message_block (owner, session_id, block) SELECT owner, ?, block FROM message_block "
            "WHERE owner = ? AND session_id = ? AND block <= ?",
            (target, owner, source, upto // BLOCK_MESSAGES),
        )
        yield (
            "INSERT OR IGNORE INTO message_word (block_id, word, seq) SELECT n.id, w.word, w.seq FROM message_block b "
            "CROSS JOIN message_block n ON n.owner = b.owner AND n.session_id = ? AND n.block = b.block "
            "CROSS JOIN message_word w ON w.block_id = b.id WHERE b.owner = ? AND b.session_id = ? AND w.seq <= ?",
            (target, owner, source, upto),
        )

    def erase(self, owner: str, session_id: str) -> Steps[None]:
        blocks = "SELECT id FROM message_block WHERE owner = ? AND session_id = ?"
        yield f"DELETE FROM message_word WHERE block_id IN ({blocks})", (owner, session_id)
        yield "DELETE FROM message_block WHERE owner = ? AND session_id = ?", (owner, session_id)

    def find(self, owner: str, wanted: Sequence[str], limit: int) -> Steps[tuple[list[tuple[str, int]], bool]]:
        """From the newest session to the oldest, until there are enough; the last of the words may be unfinished.

        Which of a block's messages have a word is a number with a bit for each, so that each row is read once however
        many of them match. All words but the last are looked up first: they are cheap.
        """
        *exact, last = wanted
        bits = f"(SELECT SUM(DISTINCT 1 << (seq % {BLOCK_MESSAGES})) FROM message_word WHERE block_id = b.id AND"
        begins = f"{bits} word >= ? AND word < ?)"
        both = " & ".join([f"{bits} word = ?)"] * len(exact))
        found = f"CASE WHEN {both} THEN {both} & {begins} END" if exact else begins
        values = (*exact, *exact, last, last + LAST_CHARACTER)
        in_time = True
        try:
            rows = yield (
                f"SELECT b.session_id, b.block, {found} FROM chat_session s "
                "CROSS JOIN message_block b ON b.owner = s.owner AND b.session_id = s.session_id "
                f"WHERE s.owner = ? AND {found} ORDER BY s.activity DESC, b.block DESC LIMIT ?",
                (*values, owner, *values, limit),
            )
        except OutOfTimeError as error:
            rows, in_time = error.rows, False
        places = [
            (str(session_id), block * BLOCK_MESSAGES + at)
            for session_id, block, mask in rows
            for at in reversed(range(BLOCK_MESSAGES))
            if mask >> at & 1
        ]
        return places[:limit], in_time

    def indexed(self, owner: str, session_id: str, first: int, last: int) -> Steps[set[int]]:
        rows = yield (
            "SELECT DISTINCT w.seq FROM message_block b CROSS JOIN message_word w ON w.block_id = b.id "
            "WHERE b.owner = ? AND b.session_id = ? AND b.block BETWEEN ? AND ?",
            (owner, session_id, first // BLOCK_MESSAGES, last // BLOCK_MESSAGES),
        )
        return {int(row[0]) for row in rows}
