"""R24: deletions, and damage to what is derived from the rows: writing never stops, and search repairs itself."""

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, closing, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from lamina.app.app import App
from lamina.errors import StoreDamagedError, StoreError
from lamina.providers.scripted import ScriptedProvider
from lamina.records import NewMemory
from lamina.store import admin, schema, sqlite
from lamina.store.database import Steps
from lamina.store.lock import StoreFile
from lamina.store.messages import SLICE_CHARACTERS, SLICE_MESSAGES
from lamina.store.schema import DERIVED_TABLES
from lamina.store.sqlite import open_sqlite
from lamina.store.store import Store, open_store
from tests.cli.process import Lamina
from tests.engine.chats import settings
from tests.faults import newer_sqlite
from tests.faults.load import Load
from tests.gateway.apis import api_on
from tests.postgres import Server


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where that is possible: thousands of transactions are not to wait for a disk."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="lamina-", dir="/dev/shm") as folder:
        yield Path(folder)


# Deletions


class Fts5(sqlite.WordTable):
    """The planted bug, and what 0.1.0 did: words in FTS5, whose parts are merged after each deletion."""

    TABLES = (
        "CREATE TABLE IF NOT EXISTS old_words (id INTEGER PRIMARY KEY, owner, session_id, seq, words)",
        "CREATE INDEX IF NOT EXISTS old_session ON old_words (owner, session_id)",
        "CREATE VIRTUAL TABLE IF NOT EXISTS old_fts USING fts5 (words, content = 'old_words', content_rowid = 'id', "
        "detail = 'none')",
        "CREATE TRIGGER IF NOT EXISTS old_added AFTER INSERT ON old_words BEGIN "
        "INSERT INTO old_fts (rowid, words) VALUES (new.id, new.words); END",
        "CREATE TRIGGER IF NOT EXISTS old_removed AFTER DELETE ON old_words BEGIN "
        "INSERT INTO old_fts (old_fts, rowid, words) VALUES ('delete', old.id, old.words); END",
    )

    def put(self, owner: str, session_id: str, found: Any) -> Steps[None]:
        for statement in self.TABLES:
            yield statement, ()
        for seq, words in found:
            row = (owner, session_id, seq, " ".join(words))
            yield "INSERT INTO old_words (owner, session_id, seq, words) VALUES (?, ?, ?, ?)", row
        yield from super().put(owner, session_id, found)

    def erase(self, owner: str, session_id: str) -> Steps[None]:
        for statement in self.TABLES:
            yield statement, ()
        yield "DELETE FROM old_words WHERE owner = ? AND session_id = ?", (owner, session_id)
        yield "INSERT INTO old_fts (old_fts) VALUES ('optimize')", ()
        yield from super().erase(owner, session_id)


ONE_BY_ONE = 1_500
"""Deletions that are each a transaction of their own; the rest share some."""


async def sessions_of(where: Path, count: int, opened: Any) -> list[str]:
    """A store with so many sessions, imported: that is quicker than to hold them."""
    async with opened(where) as store:
        await store.sessions.new("ann", session_id="s")
        await store.messages.append("ann", "s", [{"role": "user", "content": "the word"}])
        header, *lines = [line async for line in store.admin.export("ann")]
        rows = [row for line in lines if (row := json.loads(line))["table"] in ("chat_session", "conversation")]
        more = [
            json.dumps(row | {"session_id": f"s{n}"} | ({"content": f'"gone{n} word{n % 50}"', "message_id": f"m{n}"}
                       if row["table"] == "conversation" else {"activity": n + 2}))
            for row in rows for n in range(count)
        ]  # fmt: skip
        await store.admin.import_([header, *more])
    return [f"s{n}" for n in range(count)]


class MergingDatabase(sqlite.SqliteDatabase):
    dialect = sqlite.Dialect(name="sqlite", skip_locked="", search=Fts5())


@asynccontextmanager
async def merging_store(where: Path) -> AsyncGenerator[Store]:
    db = MergingDatabase(os.fspath(where))
    await db.start(time.time)
    try:
        yield Store(db, time.time)
    finally:
        await db.close()


async def delete_sessions(where: Path, count: int, load: Load, opened: Any = open_store) -> str:
    """Delete sessions while others are written; the first error, or nothing."""
    names = await sessions_of(where, count, opened)
    async with opened(where) as store:
        kept = (await store.sessions.new("ann")).session_id
        await store.messages.append("ann", kept, [{"role": "user", "content": "the harbour is kept"}])
        assert len(await store.sessions.search("ann", "gone1")) == min(20, count)
        try:
            for name in names[:ONE_BY_ONE]:
                await store.sessions.delete("ann", name)
            for at in range(ONE_BY_ONE, count, 500):
                await gather(lambda name: store.sessions.delete("ann", name), names[at : at + 500])
                await store.messages.append("ann", kept, [{"role": "user", "content": f"still written {at}"}])
        except StoreError as error:
            return error.message
        load.tried(count, "deletions")
        assert [found.message.seq for found in await store.sessions.search("ann", "harbour")] == [1]
        assert await store.sessions.search("ann", "gone1") == []
        assert await store.admin.verify() == []
    assert b"gone1" not in where.read_bytes(), "deleted words are erased"
    return ""


async def gather(do: Callable[[Any], Any], values: Any) -> list[Any]:
    return await asyncio.gather(*(do(value) for value in values))


async def test_R24_ten_thousand_deletions_leave_a_store_that_writes_and_finds(memory_folder: Path, load: Load) -> None:
    assert await delete_sessions(memory_folder / "store.db", 10_000 * load.factor, load) == ""


async def test_R24_deletions_over_a_newer_sqlite(
    memory_folder: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever version Python was built with, its users may have another."""
    assert newer_sqlite.sqlite_version_info > (3, 50)
    for module in (sqlite, schema, admin):
        monkeypatch.setattr(module, "sqlite3", newer_sqlite)
    assert await delete_sessions(memory_folder / "store.db", 2_000 * load.factor, load) == ""


@pytest.mark.planted("an index that is merged after every deletion")
async def test_R24_a_planted_merge_after_every_deletion_is_found(memory_folder: Path) -> None:
    if sqlite3.sqlite_version_info >= (3, 42):
        pytest.skip("this SQLite limits the levels of an index; the version of Debian 12 and Ubuntu 22.04 does not")
    assert "malformed" in await delete_sessions(memory_folder / "store.db", ONE_BY_ONE, Load(), merging_store)


# Damage


def drop(table: str) -> Callable[[Path], None]:
    return lambda where: run_sql(where, f"DROP TABLE {table}")


def overwrite(table: str) -> Callable[[Path], None]:
    """The first page of a table, by hand."""

    def damage(where: Path) -> None:
        with closing(sqlite3.connect(where)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
            (size,) = connection.execute("PRAGMA page_size").fetchone()
        with where.open("r+b") as file:
            file.seek((page - 1) * size)
            file.write(b"\xde\xad" * (size // 2))

    return damage


def damage_of(where: Path) -> list[str]:
    with closing(sqlite3.connect(where)) as connection:
        try:
            return [row[0] for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
        except sqlite3.DatabaseError as error:
            return [str(error)]


def run_sql(where: Path, *statements: str) -> None:
    with closing(sqlite3.connect(where, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


DAMAGES: dict[str, Callable[[Path], None]] = {
    **{f"{table} is gone": drop(table) for table in DERIVED_TABLES["sqlite"]},
    **{f"{table} is overwritten": overwrite(table) for table in DERIVED_TABLES["sqlite"]},
    "message_word has other columns": lambda where: run_sql(
        where, "DROP TABLE message_word", "CREATE TABLE message_word (x TEXT)"
    ),
    "memory_index has other columns": lambda where: run_sql(
        where, "DROP TABLE memory_index", "CREATE TABLE memory_index (x TEXT)"
    ),
    "vectors of a wrong length": lambda where: run_sql(
        where, "UPDATE memory_index SET vector = x'00ff', terms = x'ff', mentions = x'01'"
    ),
}


POSTGRES_DAMAGES = {
    "message_words is gone": "DROP TABLE message_words",
    "search_todo is gone": "DROP TABLE search_todo",
    "memory_index is gone": "DROP TABLE memory_index",
    "message_words has other columns": "DROP TABLE message_words; CREATE TABLE message_words (x TEXT)",
    "message_words has no key": "ALTER TABLE message_words DROP CONSTRAINT message_words_pkey",
    "words are of another type": "ALTER TABLE message_words ALTER words TYPE bytea USING words::text::bytea",
}


def app_on(where: str | Path) -> Any:
    provider = ScriptedProvider([[{"text": "Well, "}, {"text": "yes."}]], repeat=True)
    return App.open(where, settings=settings(memory=True, embedder="none"), provider=provider, work=False)


async def one_turn(app: App, session: str, words: str) -> str:
    return (await (await app.start("ann", session, words)).wait()).state


async def filled(where: str | Path) -> str:
    async with app_on(where) as app:
        session = (await app.new_session("ann")).session_id
        for n in range(5):
            assert await one_turn(app, session, f"My boat number {n} lies in the harbour.") == "complete"
        await app.recall.add("ann", [NewMemory("Ann has a boat in the harbour.")])
        await app.recall.search("ann", "boat", limit=1)
    return session


async def becomes_complete(store: Store, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while store.db.damaged_indexes or not await store.sessions.searches_all("ann"):
        assert time.monotonic() < end, store.db.damaged_indexes
        await asyncio.sleep(0.02)


async def live_with_damage(where: Any, damage: Callable[[Any], object], live: bool) -> None:
    """Turns, deletions, branches and searches after the damage; everything is found again in the end."""
    session = await filled(where)
    if not live:
        damage(where)
    async with app_on(where) as app:
        if live:  # in a thread: it may have to wait for what the app does in the background
            await asyncio.to_thread(damage, where)
        assert await one_turn(app, session, "The lighthouse is new.") == "complete"
        copy = await app.store.sessions.branch("ann", session, 2)
        other = (await app.new_session("ann")).session_id
        assert await one_turn(app, other, "A lighthouse, too.") == "complete"
        await app.store.sessions.search("ann", "boat")
        await app.store.sessions.delete("ann", copy.session_id)
        await app.recall.add("ann", [NewMemory("Ann has a lighthouse.")])
        assert await app.recall.search("ann", "lighthouse", limit=1)
        await becomes_complete(app.store)
        assert len(await app.store.sessions.search("ann", "boat")) == 5
        assert len(await app.store.sessions.search("ann", "lighthouse")) == 2
        assert await app.store.admin.verify() == []


@pytest.mark.parametrize("what", DAMAGES)
async def test_R24_damage_to_an_index_fails_no_turn_and_is_repaired(tmp_path: Path, what: str) -> None:
    await live_with_damage(tmp_path / "store.db", DAMAGES[what], live=False)


@pytest.mark.parametrize("what", [what for what in DAMAGES if "overwritten" not in what])  # SQLite has those pages
async def test_R24_damage_to_an_index_while_it_is_in_use_fails_no_turn(tmp_path: Path, what: str) -> None:
    await live_with_damage(tmp_path / "store.db", DAMAGES[what], live=True)


PLANTED = "damage to an index that counts as damage to the store: here it is damage to the store"


@pytest.mark.planted(PLANTED)
@pytest.mark.parametrize(("damage", "live"), [(drop("layer_text"), True), (overwrite("conversation"), False)])
async def test_R24_planted_damage_that_stops_writing_is_found(
    tmp_path: Path, damage: Callable[[Path], None], live: bool
) -> None:
    with pytest.raises((AssertionError, StoreError)):
        await live_with_damage(tmp_path / "store.db", damage, live)


# The same of PostgreSQL


def in_postgres(server: Server, statements: str) -> Callable[[str], object]:
    return lambda where: server.sql(f"SET ROLE lamina; {statements}", urlsplit(where).path.strip("/"))


WALLS = """
SELECT concat_ws(' ', table_name, column_name, data_type, is_nullable) FROM (
  SELECT table_name::text, column_name::text, data_type::text, is_nullable::text FROM information_schema.columns
  WHERE table_schema = 'public'
  UNION SELECT tablename, policyname, cmd, qual FROM pg_policies
  UNION SELECT relname::text, relrowsecurity::text, relforcerowsecurity::text, relowner::regrole::text FROM pg_class
  WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
  UNION SELECT conrelid::regclass::text, conname::text, pg_get_constraintdef(oid), '' FROM pg_constraint
) AS walls ORDER BY 1
"""
"""Columns, keys, owners and who may see which rows, of all tables."""


@pytest.mark.parametrize("what", POSTGRES_DAMAGES)
async def test_R24_damage_to_an_index_of_PostgreSQL_fails_no_turn_and_is_repaired(postgres: Server, what: str) -> None:
    where = postgres.database()
    async with open_store(where):
        name = urlsplit(where).path.strip("/")
        walls = postgres.sql(WALLS, name)
    await live_with_damage(where, in_postgres(postgres, POSTGRES_DAMAGES[what]), live="gone" in what)
    assert postgres.sql(WALLS, name) == walls, "behind the same walls as before"


async def test_R24_two_processes_of_PostgreSQL_repair_an_index_together(postgres: Server) -> None:
    where = postgres.database()
    session = await filled(where)
    async with app_on(where) as one, app_on(where) as other:
        for app in (one, other):
            await app.store.sessions.search("ann", "boat")
        in_postgres(postgres, "DROP TABLE message_words")(where)
        turns = [one_turn(app, session, f"Lighthouse {n}.") for n in range(4) for app in (one, other)]
        assert [await turn for turn in turns] == ["complete"] * 8
        for app in (one, other):
            await becomes_complete(app.store)
            assert len(await app.store.sessions.search("ann", "lighthouse")) == 8
        assert await one.store.admin.verify() == []


async def test_R24_reindex_of_PostgreSQL_needs_no_table_that_is_there(postgres: Server) -> None:
    where = postgres.database()
    await filled(where)
    async with open_store(where) as store:
        in_postgres(postgres, "DROP TABLE message_words; DROP TABLE search_todo")(where)
        assert await store.admin.reindex() == 10
        assert len(await store.sessions.search("ann", "boat")) == 5


@pytest.mark.planted(PLANTED)
async def test_R24_planted_damage_that_stops_writing_to_PostgreSQL_is_found(postgres: Server) -> None:
    with pytest.raises((AssertionError, StoreError)):
        await live_with_damage(postgres.database(), in_postgres(postgres, "DROP TABLE turn_text"), live=True)


# Stores of 0.1.0


async def old_store(where: Path, size: int = 1) -> None:
    """As version 4 left it, with words of a session that was deleted, and some megabytes in `size`."""
    db, _ = await open_sqlite(os.fspath(where), lambda: 1.0, upto=4)

    def rows() -> Steps[None]:
        for n in range(3):
            yield (
                "INSERT INTO chat_session (owner, session_id, title, scenario, app, mode, skill, meta, injection, "
                "last_seq, activity, created, updated, parent_id, parent_seq) VALUES "
                "('ann', ?, '', '', '', '', '', '{}', '{}', 1, ?, 1, 1, '', 0)",
                (f"s{n}", n),
            )
            yield (
                "INSERT INTO conversation (owner, session_id, seq, message_id, turn_id, role, content, extra, state, "
                "is_collected, collected, tokens, created) VALUES ('ann', ?, 1, ?, '', 'user', ?, '{}', 'complete', "
                "0, 0, 0, 1)",
                (f"s{n}", f"m{n}", '"the harbour of old"'),
            )
        yield "INSERT INTO owner_counter (owner, name, value) VALUES ('ann', 'activity', 3)", ()
        for n in range(2_000):
            yield (
                "INSERT INTO message_words (owner, session_id, seq, words) VALUES ('ann', ?, 1, ?)",
                (f"s{n}", f"oharbour oplughxyzzy{n}" + "".join(f" o{n}x{at}" for at in range(300 * (size - 1)))),
            )
        yield "DELETE FROM message_words WHERE seq = 1 AND session_id = 's1999'", ()

    await db.write("ann", rows)
    await db.close()


OLD_DAMAGES: dict[str, tuple[str, ...]] = {
    "none": (),
    "its structure is unreadable": ("UPDATE message_fts_data SET block = x'00000000ffffffff' WHERE id = 10",),
    "its structure is gone": ("DELETE FROM message_fts_data WHERE id = 10",),
    "a shadow table is gone": ("DROP TABLE message_fts_data",),
    "its configuration is gone": ("DROP TABLE message_fts_config",),
    "all of it is gone": ("DROP TABLE message_fts", "DROP TABLE message_words"),
}


@pytest.mark.parametrize("what", OLD_DAMAGES)
async def test_R24_a_store_of_0_1_0_repairs_itself_when_it_is_opened(tmp_path: Path, what: str) -> None:
    where = tmp_path / "store.db"
    await old_store(where)
    run_sql(where, *OLD_DAMAGES[what])
    async with open_store(where) as store:
        await store.messages.append("ann", "s0", [{"role": "user", "content": "written at once"}])
        await becomes_complete(store)
        await store.indexes.complete()
        assert len(await store.sessions.search("ann", "harbour")) == 3
        assert len(await store.sessions.search("ann", "written")) == 1
        await store.sessions.delete("ann", "s0")
        assert await store.admin.verify() == []
    assert b"plughxyzzy" not in where.read_bytes(), "what 0.1.0 kept of deleted words is erased"
    with closing(sqlite3.connect(where)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master")]
    assert not [name for name in names if name.startswith(("message_fts", "message_words"))]


async def test_R24_an_overwritten_index_of_0_1_0_is_replaced(tmp_path: Path) -> None:
    where = tmp_path / "store.db"
    await old_store(where)
    overwrite("message_fts_data")(where)
    async with open_store(where) as store:
        await becomes_complete(store)
        assert len(await store.sessions.search("ann", "harbour")) == 3


async def upgrade(where: Path, seconds: float) -> list[str]:
    """Open an old store, and use it for a while, until it is complete; what was said of it."""
    async with open_store(where) as store:
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end or not await store.sessions.searches_all("ann"):
                await store.messages.append("ann", "s0", [{"role": "user", "content": "written in between"}])
                await store.sessions.search("ann", "harbour")
                await asyncio.sleep(0.1)
            return [problem.text for problem in await store.admin.verify()]
        except StoreError as error:
            return [error.message]


async def test_R24_a_sound_store_of_0_1_0_is_upgraded_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Large enough that its log is checkpointed on the way."""
    where = tmp_path / "store.db"
    await old_store(where, size=2)
    length = where.stat().st_size
    assert length > 2 * sqlite.CHECKPOINT_WAL_BYTES
    assert await upgrade(where, 0.5) == []
    assert where.stat().st_size >= length, "its tables were dropped, none was torn out and the file written again"
    assert [record.message for record in caplog.records if record.name == "lamina.store"] == []
    assert damage_of(where) == []


async def leaking_store(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store whose damaged index was taken out, and whose pages are left: as of a large one, or after a kill."""
    await old_store(where)
    overwrite("message_fts_data")(where)
    with monkeypatch.context() as patched:
        patched.setattr(sqlite, "SMALL_BYTES", 0)
        async with open_store(where) as store:
            await becomes_complete(store)
            assert await store.admin.verify() == [], "that is no fault"
    assert damage_of(where), "pages that no table has"


async def test_R24_reindex_frees_the_pages_of_a_damaged_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = tmp_path / "store.db"
    await leaking_store(where, monkeypatch)
    async with open_store(where) as store:
        await store.admin.reindex()
        assert damage_of(where) == []
        assert await store.admin.verify() == []


@pytest.mark.parametrize(
    "planted", [False, pytest.param(True, marks=pytest.mark.planted("a length that is noted at the start only"))]
)
async def test_R24_a_file_that_gets_shorter_in_a_pause_is_not_called_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    where = tmp_path / "store.db"
    await leaking_store(where, monkeypatch)
    length = where.stat().st_size
    async with open_store(where) as store:
        if planted:
            monkeypatch.setattr(StoreFile, "note_size", lambda self, needed: None)
        end = time.monotonic() + 20
        while where.stat().st_size >= length:
            assert time.monotonic() < end
            await asyncio.sleep(0.05)
            if not planted:
                await store.sessions.list("ann")
        with pytest.raises(StoreDamagedError, match="was cut off") if planted else nullcontext():
            await store.messages.append("ann", "s0", [{"role": "user", "content": "still written"}])
            assert await store.admin.verify() == []
    assert damage_of(where) == []


# Rebuilding

KILLED = """
import asyncio, os, sys
from lamina import open_store
from lamina.store import schema

recreate = schema.recreate_tables

def end(connection, group, **more):
    return os.kill(os.getpid(), 9) if group == "search" else recreate(connection, group, **more)

async def main(where, planted):
    async with open_store(where) as store:
        if planted == "True":
            schema.mark_groups = lambda connection, groups: None
        schema.recreate_tables = end
        await store.admin.reindex()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "planted", [False, pytest.param(True, marks=pytest.mark.planted("a reindex that is not written down"))]
)
async def test_R24_a_reindex_that_is_killed_is_finished_by_the_next_process(tmp_path: Path, planted: bool) -> None:
    """After the tables were emptied, and before they are replaced."""
    where = tmp_path / "store.db"
    await filled(where)
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", KILLED, os.fspath(where), str(planted)])
    assert done.returncode == -9
    async with open_store(where) as store:
        await becomes_complete(store)
        assert (len(await store.sessions.search("ann", "boat")) == 5) is not planted
        assert (await store.admin.verify() == []) is not planted


# Damage to the rows themselves

WRECK = "wreck--wreck--wreck"
"""In messages alone: no index has it like this."""


async def wrecked(where: Path) -> tuple[str, str]:
    """A store with damaged pages of messages; a session that is damaged and one that is not."""
    async with app_on(where) as app:
        sound = (await app.new_session("ann")).session_id
        assert await one_turn(app, sound, "My boat lies in the harbour.") == "complete"
        await app.store.messages.append("ann", sound, [{"role": "user", "content": f"{n} boats"} for n in range(60)])
        bad = (await app.new_session("ann")).session_id
        await app.store.messages.append("ann", bad, [{"role": "user", "content": f"{WRECK} " * 80}] * 80)
        other = (await app.new_session("bo")).session_id
        await app.store.messages.append("bo", other, [{"role": "user", "content": "Bo has a boat."}])
    data = bytearray(where.read_bytes())
    pages = [at for at in range(0, len(data), 4_096) if WRECK.encode() in data[at : at + 4_096] and data[at] == 10]
    assert len(pages) > 7
    for at in pages[3:-3]:
        data[at : at + 4_096] = b"\xde\xad" * 2_048
    where.write_bytes(data)
    return bad, sound


async def read_all(store: Store, bad: str, sound: str) -> None:
    """What can be read of a damaged store, after the damage was met."""
    with pytest.raises(StoreDamagedError):
        await store.messages.list("ann", bad)
    assert len(await store.messages.list("ann", sound)) == 62
    assert {bad, sound} <= {session.session_id for session in await store.sessions.list("ann")}
    assert await store.admin.owners() == ["ann", "bo"]
    assert await store.admin.version() > 4


async def test_R24_damaged_messages_are_left_alone_by_reindex_and_all_others_are_read(tmp_path: Path) -> None:
    where = tmp_path / "store.db"
    bad, sound = await wrecked(where)
    for _ in range(2):
        async with app_on(where) as app:
            with pytest.raises(StoreDamagedError, match="damaged rows"):
                await app.store.admin.reindex()
            assert len(await app.store.sessions.search("ann", "boat", limit=99)) == 61
            await app.store.messages.append("bo", (await app.new_session("bo")).session_id, [])
            found = await app.store.admin.backup(os.fspath(tmp_path / f"{_}.db"))
            assert {problem.part for problem in found} == {"rows"}
            await read_all(app.store, bad, sound)
    run_sql(where, "INSERT INTO search_todo SELECT owner, session_id, 0 FROM chat_session", "DELETE FROM message_word")
    async with app_on(where) as app:  # as a reindex of 0.2.0 left it
        assert len(await app.store.sessions.search("bo", "boat")) == 1, "damage to ann's holds up nobody else's"
        assert not await app.store.sessions.searches_all("ann")
        assert await one_turn(app, (await app.new_session("ann")).session_id, "A lighthouse.") == "complete"
        await read_all(app.store, bad, sound)
    async with api_on(os.fspath(where)) as api:
        await api.key("ann")
        assert (await api("GET", f"/api/sessions/{bad}/messages")).status == 503
        for path in ("/api/sessions", f"/api/sessions/{sound}/messages", "/api/memories", "/api/health"):
            assert (await api("GET", path)).status == 200, path


def test_R24_commands_over_damaged_messages_read_the_rest_and_say_what_helps(tmp_path: Path) -> None:
    lamina = Lamina(tmp_path)
    _, sound = asyncio.run(wrecked(Path(lamina.store)))
    run_sql(Path(lamina.store), "INSERT INTO search_todo SELECT owner, session_id, 0 FROM chat_session")
    refused = lamina.error("store", "reindex", code=4)
    assert "restore an older backup" in refused
    for command in (("sessions",), ("sessions", "show", sound), ("memory",)):
        lamina(*command)
    assert "lamina store reindex" in lamina.run("store").stderr, "the index is not complete"
    done = lamina.run("doctor", "--json")
    line = next(line for line in json.loads(done.stdout)["checks"] if line["name"] == "store")
    assert (line["state"], "reindex" in line["hint"], "restore" in line["hint"]) == ("bad", False, True)
    done = lamina.run("store", "backup", "copy.db")
    assert (done.returncode, "the copy has the same damage" in done.stderr) == (0, True)
    done = lamina.run("store", "verify")
    assert (done.returncode, "restore an older backup" in done.stdout) == (1, True)


def test_R24_a_damaged_index_is_rebuilt_by_commands_too_and_verify_says_what_helps(tmp_path: Path) -> None:
    lamina = Lamina(tmp_path)
    asyncio.run(filled(lamina.store))
    overwrite("message_word")(Path(lamina.store))
    for lang, said in (("en", "the messages are intact: run `lamina store reindex`"), ("zh", "消息完好")):
        done = lamina.run("--lang", lang, "store", "verify")
        assert (done.returncode, len(done.stdout.split("\n"))) == (1, 3), done.stdout
        assert said in done.stdout
    found = json.loads(lamina.run("store", "verify", "--json").stdout)
    assert (len(found["problems"]), bool(found["details"])) == (1, True)
    first = lamina.run("--lang", "zh", "sessions", "search", "boat")
    assert "运行 `lamina store reindex` 可立即完成" in first.stderr
    assert "[Store]" not in first.stderr
    assert lamina("sessions", "search", "boat").count("boat") >= 5
    assert lamina("store", "verify") == "no faults\n"


async def test_R24_verify_and_backup_tell_how_far_they_are(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as store:
        for owner in ("ann", "bo"):
            await store.sessions.new(owner)
        told: list[tuple[int, int]] = []
        assert await store.admin.verify(lambda done, total: told.append((done, total))) == []
        assert [done for done, _ in told] == [1, 2]
        told.clear()
        assert await store.admin.backup(os.fspath(tmp_path / "copy.db"), lambda *far: told.append(far)) == []
        assert told[-1][0] == told[-1][1] > 0


async def test_R24_a_rebuild_is_many_small_transactions_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    where = tmp_path / "store.db"
    async with open_store(where) as store:
        session = (await store.sessions.new("ann")).session_id
        long = [{"role": "user", "content": f"harbour {n} " + "x" * (SLICE_CHARACTERS // 2)} for n in range(6)]
        short = [{"role": "user", "content": f"lighthouse {n}"} for n in range(3 * SLICE_MESSAGES)]
        await store.messages.append("ann", session, [*long, *short])
        await store.indexes.recreate()
        assert await store.sessions.search("ann", "harbour") == []
        assert not await store.sessions.searches_all("ann")
        before = store.commits
        await store.indexes.complete(seconds=0)
        assert store.commits - before <= 3, "one slice"
        assert not await store.sessions.searches_all("ann")
    async with open_store(where) as store:
        await becomes_complete(store)
        assert len(await store.sessions.search("ann", "harbour")) == 6
        assert len(await store.sessions.search("ann", "lighthouse", limit=999)) == 3 * SLICE_MESSAGES
        before = store.commits
        await store.indexes.recreate()
        await store.indexes.complete()
        assert store.commits - before >= 3 + 3, "of two long messages, or of 64 short ones, each"


# Backups


@pytest.mark.parametrize(
    "planted", [False, pytest.param(True, marks=pytest.mark.planted("a backup that copies a damaged index"))]
)
async def test_R24_a_backup_does_not_carry_a_damaged_index_on(tmp_path: Path, planted: bool) -> None:
    where, copy = tmp_path / "store.db", tmp_path / "copy.db"
    await filled(where)
    overwrite("message_word")(where)
    if planted:
        shutil.copyfile(where, copy)
    else:
        async with open_store(where) as store:
            assert [problem.part for problem in await store.admin.backup(os.fspath(copy))] == ["search"]
    assert bool(damage_of(copy)) is planted
    if not planted:
        async with open_store(copy) as store:
            await becomes_complete(store)
            assert len(await store.sessions.search("ann", "boat")) == 5
            assert await store.admin.verify() == []
