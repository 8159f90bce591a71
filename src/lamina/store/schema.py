"""The numbered migrations and which of them a database still needs."""

from dataclasses import dataclass
from functools import cache
from importlib import resources

from lamina.errors import StoreError

VERSION_TABLE = (
    "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied REAL NOT NULL)"
)
FIRST_TABLES = ("schema_version", "chat_session", "conversation", "turn", "atomic_memory", "outbox", "owner_counter")
"""Tables that every store of ours has, of whatever version: by them it is known."""


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
        raise StoreError(
            f"the store has version {version}, this lamina knows versions up to {known[-1].version}",
            hint="a newer lamina wrote it: update lamina, or restore a backup from before",
        )
    return tuple(each for each in known if version < each.version <= (upto or known[-1].version))
