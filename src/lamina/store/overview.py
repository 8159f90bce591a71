"""What a store holds, looked at from above: its version and size, how much an owner has, and ids by their beginning."""

import os
from collections.abc import Mapping, Sequence
from typing import Literal

from lamina.store.database import Clock, Database, Steps, clean
from lamina.store.sqlite import SqliteDatabase

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


class Overview:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

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
