"""The SQLite driver: every statement of the contract finds its rows by an index, never by reading a whole table."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import StoreBusyError
from lamina.records import NewJob, NewMemory, Template
from lamina.store.database import Make, Row, Steps
from lamina.store.lock import OwnerLock, program_of
from lamina.store.sqlite import SqliteDatabase
from lamina.store.store import Store, open_store


class Explained(SqliteDatabase):
    """Asks for the plan of each statement before it is run."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.scans: list[str] = []
        self.statements: set[str] = set()

    async def write(self, owner: str, make: Make[Any]) -> Any:
        return await super().write(owner, lambda: self._explained(make))

    async def read(self, owner: str, make: Make[Any], *, seconds: float = 0.0) -> Any:
        return await super().read(owner, lambda: self._explained(make), seconds=seconds)

    async def write_any_owner(self, make: Make[Any]) -> Any:
        return await super().write_any_owner(lambda: self._explained(make))

    async def read_any_owner(self, make: Make[Any]) -> Any:
        return await super().read_any_owner(lambda: self._explained(make))

    def _explained(self, make: Make[Any]) -> Steps[Any]:
        steps = make()
        rows: list[Row] | None = None
        while True:
            try:
                sql, values = next(steps) if rows is None else steps.send(rows)
            except StopIteration as end:
                return end.value
            plan = yield f"EXPLAIN QUERY PLAN {sql}", values
            self.statements.add(sql)
            self.scans += [
                f"{row[3]}: {sql}" for row in plan if re.match(r"SCAN (?!json_each|due\b|\d+ CONSTANT)", row[3])
            ]
            rows = yield sql, values


async def test_no_statement_of_the_contract_reads_a_whole_table(tmp_path: Path) -> None:
    db = Explained(os.fspath(tmp_path / "store.db"))
    await db.start(lambda: 1.0)
    s = Store(db, lambda: 1.0)
    session = (await s.sessions.new("ann")).session_id
    turn = await s.turns.begin("ann", session, {"role": "user", "content": "hello"}, key="k")
    await s.turns.chunk("ann", turn.turn_id, 0, "x")
    await s.turns.add("ann", turn.turn_id, [{"role": "tool", "content": "r", "tool_call_id": "1"}])
    await s.turns.finish(
        "ann", turn.turn_id, answer={"role": "assistant", "content": "hi"}, jobs=[NewJob("memory", key="j")]
    )
    await s.turns.recover()
    await s.turns.list("ann", session)
    await s.messages.collect("ann", turn.answer_message_id)
    await s.messages.collected("ann")
    await s.messages.list("ann", session, limit=5, newest=True)
    await s.sessions.list("ann")
    await s.sessions.search("ann", "hello")
    await s.sessions.branch("ann", session, 1)
    (job,) = await s.jobs.claim("w", kinds=["memory"])
    (memory,) = await s.memories.add("ann", [NewMemory("a")], done=job)
    await s.memories.pin("ann", memory.memory_id)
    await s.memories.list("ann", query="a")
    await s.memories.changes("ann")
    await s.memories.index_changes("ann", "m")
    await s.summaries.put("ann", session, "about", upto_seq=1)
    await s.summaries.recent("ann")
    await s.memories.forget("ann", [memory.memory_id])
    await s.templates.put("ann", Template("t", "n", "c"))
    await s.templates.list("ann", scenario="common")
    await s.profile.set("ann", {"a": 1})
    await s.profile.get("ann")
    await s.jobs.counts("ann")
    await s.sessions.delete("ann", session)
    assert db.scans == []
    assert len(db.statements) > 50

    def planted() -> Steps[list[Row]]:
        return (yield "SELECT * FROM conversation WHERE content = ?", ("x",))

    await db.read("ann", planted)
    assert len(db.scans) == 1
    await db.close()


def left_in(path: Path, word: bytes) -> bool:
    files = [path, path.with_name(f"{path.name}-wal")]
    return any(word in file.read_bytes().lower() for file in files if file.exists())


async def test_the_words_of_a_deleted_session_are_not_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with open_store(path) as store:
        kept = (await store.sessions.new("ann")).session_id
        for n in range(50):
            await store.messages.append("ann", kept, [{"role": "user", "content": f"filler number {n} plughxyzzy"}])
        gone = (await store.sessions.new("ann")).session_id
        await store.messages.append("ann", gone, [{"role": "user", "content": "quuxfrobozz is my secret"}])
        await store.sessions.delete("ann", gone)
        assert await store.sessions.search("ann", "quuxfrobozz") == []
        assert len(await store.sessions.search("ann", "plughxyzzy", limit=99)) == 50
        assert await store.admin.verify() == []
    assert not left_in(path, b"quuxfrobozz")
    assert left_in(path, b"plughxyzzy")


class Late(OwnerLock):
    """Opens the file just before the one who has it removes it."""

    def _take(self) -> None:
        first = not hasattr(self, "_file")
        super()._take()
        if first:
            os.unlink(self._path)


def test_a_lock_on_a_file_that_was_removed_meanwhile_is_none(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db.lock")
    first = OwnerLock(path)
    assert first.is_new
    first.release(remove=True)
    assert not os.path.exists(path)
    late = Late(path)
    with pytest.raises(StoreBusyError):
        OwnerLock(path)
    late.release()
    again = OwnerLock(path)
    assert not again.is_new
    again.release()


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["/usr/bin/lamina", "chat"], "lamina chat"),
        (["/x/lamina/__main__.py", "--lang", "zh", "ask", "my secret"], "lamina ask"),
        (["bot.py", "--token", "secret"], "bot.py"), (["lamina"], "lamina"), ([], ""), (["-c"], "-c"),
    ],
)  # fmt: skip
def test_a_lock_names_the_program_and_nothing_private(words: list[str], program: str) -> None:
    assert program_of(words) == program


def test_a_lock_is_read_by_and_from_older_versions(tmp_path: Path) -> None:
    path = tmp_path / "a.db.lock"
    lock = OwnerLock(str(path))
    assert path.read_bytes()[:32].strip() == str(os.getpid()).encode(), "as they read it"
    path.write_text(f"{os.getpid():<20}\n")  # as they write it
    with pytest.raises(StoreBusyError) as error:
        OwnerLock(str(path))
    assert error.value.message.endswith(f"is in use by process {os.getpid()}")
    assert "PostgreSQL" in error.value.hint
    lock.release()
