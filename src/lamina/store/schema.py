"""The numbered migrations and which of them a database still needs."""

from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources

from lamina.errors import StoreError

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


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    sql: str


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    found: list[Migration] = []
    for file in resources.files("lamina.store.migrations").iterdir():
        stem, _, said = file.name.partition(".")
        if said in ("sql", f"{dialect}.sql"):
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
