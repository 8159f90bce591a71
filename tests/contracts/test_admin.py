"""Verify, backup, reindex, export and import, and the migrations, over both stores."""

import json
import os
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import InputError, MessageError, OwnerError, StoreError
from lamina.records import NewJob, NewMemory, Template
from lamina.store import admin, schema
from lamina.store.database import dump
from lamina.store.postgres import PostgresDatabase, open_postgres
from lamina.store.sqlite import open_sqlite
from lamina.store.store import Store, open_store
from lamina.text.messages import Phrase
from lamina.types import text_hash
from tests.postgres import Server


async def fill(store: Store, owner: str) -> None:
    """A row in every table, with characters that are easily lost."""
    odd = f"{owner}: 'q' \\ \u2028 \x7f 你好 🙂"
    session = (await store.sessions.new(owner, title=odd, meta={"k": [odd, 1.1, 1e300, None]})).session_id
    done = await store.turns.begin(owner, session, {"role": "user", "content": odd + "\0\ud83d"}, key=session)
    await store.turns.add(owner, done.turn_id, [{"role": "tool", "content": odd, "tool_call_id": "1"}])
    await store.turns.finish(
        owner, done.turn_id, answer={"role": "assistant", "content": odd}, usage={"n": 1}, receipt={"r": odd},
        texts={text_hash(odd): odd}, jobs=[NewJob("memory", {"x": odd}, key=session), NewJob("summary")],
    )  # fmt: skip
    await store.messages.collect(owner, done.answer_message_id)
    open_turn = await store.turns.begin(owner, session, {"role": "user", "content": "still open"})
    await store.turns.chunk(owner, open_turn.turn_id, 0, odd)
    one, two, _ = await store.memories.add(owner, [NewMemory(odd), NewMemory("two", happened=0.1), NewMemory("three")])
    await store.memories.forget(owner, [one.memory_id])
    await store.memories.add(owner, [NewMemory("newer", supersedes=(two.memory_id,))])
    await store.summaries.put(owner, session, odd, upto_seq=2, memory_ids=[two.memory_id])
    await store.profile.set(owner, {"name": odd})
    await store.templates.put(owner, Template("", odd, odd, supported_apps=("Excel",)))


async def exported(store: Store, owner: str | None = None) -> list[str]:
    return [line async for line in store.admin.export(owner)]


async def test_an_export_imports_elsewhere_and_exports_the_same_bytes(
    where: str, tmp_path: Path, postgres: Server
) -> None:
    other = postgres.database() if "://" not in where else os.fspath(tmp_path / "other.db")
    async with open_store(where) as store, open_store(other) as copy:
        for owner in ("ann", "Émile", "王"):
            await fill(store, owner)
        lines = await exported(store)
        assert {line.split('"')[3] for line in lines[1:]} == set(admin.TABLES)
        assert await copy.admin.import_(lines) == sum('"table":"owner_counter"' not in line for line in lines) - 1
        assert await exported(copy) == lines
        assert await copy.admin.import_(lines) == 0
        assert await exported(copy) == lines
        assert await copy.admin.verify() == []
        assert len(await copy.sessions.search("王", "王")) == len(await store.sessions.search("王", "王")) > 0
        await fill(copy, "ann")
        assert len(await copy.sessions.list("ann")) == 2


async def test_an_export_of_one_owner_can_become_somebody_elses(store: Store) -> None:
    await fill(store, "ann")
    await fill(store, "bob")
    lines = await exported(store, "ann")
    assert not any('"owner":"bob"' in line for line in lines)
    await store.admin.import_(lines, owner="carl")
    assert [line.replace('"owner":"carl"', '"owner":"ann"') for line in await exported(store, "carl")] == lines


@pytest.mark.parametrize(
    "lines",
    [
        ["{}"], ["no json"], ['{"lamina":"export","format":99}'], ['{"lamina":"export","format":1}', "[]"],
        ['{"lamina":"export","format":1}', '{"table":"sqlite_master","owner":"ann"}'],
        ['{"lamina":"export","format":1}', '{"table":"layer_text","owner":"ann","hash":"x"}'],
    ],
)  # fmt: skip
async def test_what_is_no_export_is_refused(store: Store, lines: list[str]) -> None:
    with pytest.raises(InputError):
        await store.admin.import_(lines)


PART = 1_000
"""Rows of a part, so that an import of two parts is no large one."""


async def found_codes(store: Store) -> set[str]:
    """What `verify` says of single owners."""
    found = [problem.phrase.values["what"] for problem in await store.admin.verify()]
    return {what.code for what in found if isinstance(what, Phrase)}


async def cut_off(store: Store, lines: list[str], at_once: int = admin.MAX_PART_ROWS) -> str:
    with pytest.raises(InputError) as error:
        await store.admin.import_([*lines, "{broken"], at_once=at_once)
    return str(error.value)


async def test_an_import_that_fails_keeps_nothing_where_it_fits_one_part(store: Store, tmp_path: Path) -> None:
    async with open_store(os.fspath(tmp_path / "other.db")) as other:
        await fill(other, "ann")
        lines = await exported(other)
    assert "nothing was added" in await cut_off(store, lines)
    assert await store.admin.owners() == []
    assert await exported(store) == lines[:1]


@pytest.mark.parametrize("old", [False, True])
async def test_a_large_import_that_is_cut_off_says_what_it_kept_and_verify_finds_it(
    store: Store, tmp_path: Path, old: bool
) -> None:
    async with open_store(os.fspath(tmp_path / "other.db")) as other:
        session = (await other.sessions.new("ann")).session_id
        await other.messages.append("ann", session, [{"role": "user", "content": "m"}] * (PART + 50))
        lines = await exported(other)
    if old:  # an export of before had its counters at its end
        lines = [line for line in lines if "owner_counter" not in line]
    said = await cut_off(store, lines[:-20], at_once=PART)
    counted = PART - sum("owner_counter" in line for line in lines)
    assert f"{counted} rows before it were added and stay: {counted} of 'ann'" in said
    assert "import the whole file again" in said
    assert await store.admin.owners() == ["ann"]
    assert "store.wrong_numbers" in await found_codes(store)
    assert len(await exported(store)) > counted
    await store.admin.import_(lines)
    assert await store.admin.verify() == []


async def test_an_owner_without_counters_is_seen_by_verify_and_export(tmp_path: Path) -> None:
    """As a cut-off import of before left it; SQLite only, since PostgreSQL lets nobody look at the rows of all."""
    where = os.fspath(tmp_path / "store.db")
    async with open_store(where) as store:
        for owner in ("ann", "bob"):
            await fill(store, owner)
    with closing(sqlite3.connect(where, isolation_level=None)) as connection:
        connection.execute("DELETE FROM owner_counter WHERE owner = 'ann'")
        connection.execute("DELETE FROM conversation WHERE owner = 'ann' AND seq = 3")
    async with open_store(where) as store:
        assert await store.admin.owners() == ["ann", "bob"]
        assert [problem.phrase.values["owner"] for problem in await store.admin.verify()] == ["ann"]
        assert await found_codes(store) == {"store.wrong_numbers"}
        assert any('"owner":"ann"' in line for line in await exported(store))


WRONG: list[tuple[str, str, object]] = [
    ("chat_session", "meta", "5"), ("chat_session", "meta", "{"), ("chat_session", "injection", "[]"),
    ("chat_session", "last_seq", -1), ("chat_session", "last_seq", 1e300), ("chat_session", "title", None),
    ("conversation", "content", "5"), ("conversation", "content", "[1]"), ("conversation", "content", '{"a": 1}'),
    ("conversation", "extra", "[]"), ("conversation", "extra", '{"tool_calls": 5}'), ("conversation", "role", "boss"),
    ("conversation", "state", "x"), ("turn", "usage", "null"), ("chunk", "text", "bare"), ("layer_text", "text", "[]"),
    ("atomic_memory", "created", 1e300), ("atomic_memory", "happened", float("inf")),
    ("atomic_memory", "happened", "x"), ("atomic_memory", "importance", float("nan")), ("atomic_memory", "pinned", 7),
    ("session_summary", "memory_ids", "5"), ("session_summary", "memory_ids", "[1]"), ("user_profile", "value", "{"),
    ("prompt_template", "supported_apps", "5"), ("prompt_template", "supported_apps", "null"),
    ("outbox", "payload", "[]"), ("outbox", "run_after", float("nan")), ("owner_counter", "value", 2**62),
    ("turn", "key", "k" * 201), ("chat_session", "session_id", "s" * 201), ("chat_session", "title", "t" * 2_001),
    ("chat_session", "runtime", '{"compactions": [{"x": 1}]}'), ("chat_session", "runtime", '{"counted": [1]}'),
    ("chat_session", "runtime", '{"failures": {"bash": "often"}}'), ("chat_session", "runtime", '{"use": "all"}'),
    ("chat_session", "runtime", '{"telegram_open": {"turn": 5}}'), ("turn", "usage", '{"requests": [[1, 2]]}'),
    ("turn", "usage", '{"prompt": -1}'), ("chat_session", "created", 10**400), ("outbox", "run_after", 10**400),
    ("chat_session", "meta", '{"a": NaN}'), ("user_profile", "value", "1e999"), ("turn", "receipt", '{"requests": 5}'),
    ("turn", "receipt", '{"form": 1, "requests": [{"segments": [[1]]}]}'),
    ("chat_session", "runtime", '{"counted": [1e-300, 1e300]}'), ("chat_session", "runtime", '{"use": 1e300}'),
    ("chat_session", "injection", '{"noted": 5}'), ("turn", "lease_until", 1e300), ("outbox", "lease_until", 1e300),
    ("outbox", "run_after", 1e300), ("outbox", "run_after", -1e300), ("outbox", "attempts", 5_000_000_000),
]  # fmt: skip


async def test_a_row_that_nobody_could_read_is_refused_by_its_line_and_column(store: Store) -> None:
    await fill(store, "ann")
    lines = await exported(store)
    for table, column, value in WRONG:
        at = next(n for n, line in enumerate(lines) if f'"table":"{table}"' in line)
        broken = json.dumps({**json.loads(lines[at]), column: value})
        with pytest.raises(InputError) as error:
            await store.admin.import_([*lines[:at], broken, *lines[at + 1 :]], owner="bob")
        assert f"line {at + 1}: {table}: " in str(error.value), (table, column, value)
        assert column in str(error.value), (table, column, value)
    assert "bob" not in await store.admin.owners()


@pytest.mark.parametrize("last", [0, 3, 5, 2**53 - 1])
async def test_a_session_whose_last_number_is_not_that_of_its_messages_is_refused_by_its_name(
    store: Store, last: int
) -> None:
    session = (await store.sessions.new("ann")).session_id
    await store.messages.append("ann", session, [{"role": "user", "content": "m"}] * 4)
    before = await exported(store)
    rows = [json.loads(line) for line in before]
    lines = [json.dumps(row | {"last_seq": last} if row.get("table") == "chat_session" else row) for row in rows]
    with pytest.raises(InputError, match=f"session {session} has 4 messages .* its last number is {last}; nothing was"):
        await store.admin.import_(lines, owner="bob")
    assert await store.admin.owners() == ["ann"]
    await store.admin.import_(before, owner="bob")
    assert await store.admin.verify() == []


async def test_a_large_import_finds_the_last_number_of_each_owners_sessions(store: Store, tmp_path: Path) -> None:
    async with open_store(os.fspath(tmp_path / "other.db")) as other:
        counts = {"ada": 3, "ann": PART + 50, "bob": 3}
        names = {owner: (await other.sessions.new(owner)).session_id for owner in counts}
        for owner, count in counts.items():
            await other.messages.append(owner, names[owner], [{"role": "user", "content": "m"}] * count)
        rows = [json.loads(line) async for line in other.admin.export()]

    def changed(owner: str, by: int) -> list[str]:
        told = {"table": "chat_session", "owner": owner}
        return [json.dumps({**r, "last_seq": r["last_seq"] + by} if told.items() <= r.items() else r) for r in rows]

    cases = {("ada", -1): 0, ("ada", 1): 3, ("ann", -500): 1, ("ann", -40): 2, ("ann", 1): 2, ("bob", 1): 2}
    for (owner, by), kept in cases.items():  # too few are seen in their own part, too many where nothing more can come
        with pytest.raises(InputError, match=f"session {names[owner]} has .* but its last number is"):
            await store.admin.import_(changed(owner, by), at_once=PART)
        found = [each for each in names if await store.sessions.list(each)]
        assert found == list(names)[:kept]
        for each in found:
            await store.sessions.delete(each, names[each])
    await store.admin.import_(changed("ann", 0))
    assert await store.admin.verify() == []


async def test_a_row_without_what_it_belongs_to_is_refused_by_its_line(store: Store) -> None:
    await fill(store, "ann")
    lines = await exported(store)
    cases = [(table, *each) for table, parents in admin.PARENTS.items() for each in parents.items()]
    for table, column, parent in cases:
        at = next(n for n, line in enumerate(lines) if f'"table":"{table}"' in line)
        lost = [*lines[:at], json.dumps({**json.loads(lines[at]), column: "gone"}), *lines[at + 1 :]]
        with pytest.raises(InputError) as error:
            await store.admin.import_(lost, owner="bob")
        assert f"line {at + 1}: {table}: there is no {parent} with the {column} 'gone'; nothing was" in str(error.value)
    without = [line for line in lines if '"table":"chat_session"' not in line]
    with pytest.raises(InputError, match="conversation: there is no chat_session"):
        await store.admin.import_(without, owner="bob")
    assert "bob" not in await store.admin.owners()


async def test_what_a_row_belongs_to_is_what_the_tables_ask_for(tmp_path: Path) -> None:
    async with open_store(os.fspath(tmp_path / "store.db")):
        pass
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        for table in admin.TABLES:
            keys = connection.execute(f"PRAGMA foreign_key_list({table})").fetchall()
            assert admin.PARENTS.get(table, {}) == {row[3]: row[2] for row in keys if row[3] != "owner"}


async def test_a_message_that_the_caller_refuses_is_named_by_its_line(store: Store) -> None:
    await fill(store, "ann")
    lines = await exported(store)

    def check(message: Mapping[str, Any]) -> None:
        if message["role"] == "tool" and message["tool_call_id"] == "1":
            raise MessageError("no tools here", hint="none at all")

    at = next(n for n, line in enumerate(lines) if '"role":"tool"' in line)
    with pytest.raises(InputError, match=rf"line {at + 1}: conversation: no tools here; nothing was added \(none at"):
        await store.admin.import_(lines, owner="bob", check=check)
    assert "bob" not in await store.admin.owners()


async def test_verify_reports_rows_that_nobody_could_read(where: str, postgres: Server) -> None:
    async with open_store(where) as store:
        await fill(store, "ann")
    wrongs = {
        "meta is '5'": "UPDATE chat_session SET meta = '5'",
        "created is 1e+300": "UPDATE atomic_memory SET created = 1e300",
        "supported_apps is 'null'": "UPDATE prompt_template SET supported_apps = 'null'",
        "content is '[1'": "UPDATE conversation SET content = '[1'",
        "a message has the content 5": "UPDATE conversation SET content = '5'",
    }
    for word, statement in wrongs.items():
        if where.startswith("postgresql"):
            postgres.sql(statement, where.partition("@/")[2].partition("?")[0])
        else:
            with closing(sqlite3.connect(where, isolation_level=None)) as connection:
                connection.execute(statement)
        async with open_store(where) as store:
            assert any(word in problem.text for problem in await store.admin.verify()), word


async def test_names_that_are_too_long_are_refused_in_the_same_words_by_both_stores(store: Store) -> None:
    long, just = "n" * 201, "名" * 200
    session = (await store.sessions.new(just, session_id=just, title="t" * 200, scenario=just)).session_id
    message = {"role": "user", "content": "hi"}
    tries: dict[str, Callable[[], Awaitable[object]]] = {
        "the owner": lambda: store.sessions.list(long),
        "the session's id": lambda: store.sessions.new(just, session_id=long),
        "the scenario": lambda: store.sessions.new(just, scenario=long),
        "the app": lambda: store.sessions.update(just, session, app=long),
        "the title": lambda: store.sessions.branch(just, session, 1, title="t" * 2_001),
        "the key": lambda: store.turns.begin(just, session, message, key=long),
        "the name": lambda: store.profile.set(just, {long: 1}),
        "the template's name": lambda: store.templates.put(just, Template("", long, "x")),
        "the kind": lambda: store.jobs.add(just, long),
        "the memory's kind": lambda: store.memories.add(just, [NewMemory("x", kind=long)]),
    }
    for what, attempt in tries.items():
        with pytest.raises(MessageError, match=rf"{what} has 20?01 characters"):
            await attempt()
    turn = await store.turns.begin(just, session, message, key=just)
    await store.turns.finish(just, turn.turn_id, jobs=[NewJob(just, key="k" * 500)])
    await store.profile.set(just, {just: just})
    await store.templates.put(just, Template(just, just, just, scenario=just))
    await store.memories.add(just, [NewMemory(just, kind=just, session_id=session, turn_id=turn.turn_id)])
    assert await store.admin.verify() == []


async def test_the_columns_of_an_export_are_those_of_the_tables(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with open_store(os.fspath(path)):
        pass
    with closing(sqlite3.connect(path)) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            if table not in (*schema.DERIVED_TABLES["sqlite"], "schema_version"):
                known = admin.TABLES.get(table) or admin.UNEXPORTED[table]
                assert sorted(["owner", *known.split(", ")]) == sorted(columns)


async def test_verify_finds_what_is_wrong(where: str, postgres: Server) -> None:
    async with open_store(where) as store:
        await fill(store, "ann")
        assert await store.admin.verify() == []
    table = "message_words" if where.startswith("postgresql") else "message_word"
    wrongs = {
        "store.wrong_numbers": "UPDATE chat_session SET last_seq = last_seq + 1",
        "store.wrong_hash": """UPDATE layer_text SET text = '"changed"'""",
        "store.unfound_message": f"DELETE FROM {table} WHERE seq = 1",
    }
    for code, statement in wrongs.items():
        if where.startswith("postgresql"):
            postgres.sql(statement, where.partition("@/")[2].partition("?")[0])
        else:
            with closing(sqlite3.connect(where, isolation_level=None)) as connection:
                connection.execute(statement)
        async with open_store(where) as store:
            assert code in await found_codes(store)
            if code == "store.unfound_message":
                await store.admin.reindex()
                assert code not in await found_codes(store)


async def test_a_backup_made_in_use_holds_everything_and_overwrites_nothing(store: Store, tmp_path: Path) -> None:
    await fill(store, "ann")
    path = tmp_path / "backup"
    await store.admin.backup(os.fspath(path))
    with pytest.raises(InputError):
        await store.admin.backup(os.fspath(path))
    before = await exported(store)
    if isinstance(store.db, PostgresDatabase):
        assert path.read_text(encoding="utf-8") == "".join(f"{line}\n" for line in before)
        return
    async with open_store(os.fspath(path)) as copy:
        assert await exported(copy) == before
        assert await copy.admin.verify() == []


@pytest.mark.parametrize("version", range(1, len(schema.migrations("sqlite"))))
async def test_a_store_of_every_earlier_version_is_brought_up_to_date_with_its_data(where: str, version: int) -> None:
    opener = open_postgres if where.startswith("postgresql") else open_sqlite
    db, before = await opener(where, lambda: 1.0, upto=version)
    assert before == 0
    await db.write("ann", _old_rows)
    await db.close()
    async with open_store(where) as store:
        assert [m.content for m in await store.messages.list("ann", "s")] == ["an old message"]
        if version > 1:  # the search came with version 2; rows that were put in by hand are not in it yet
            await store.admin.reindex()
        assert [f.message.seq for f in await store.sessions.search("ann", "old")] == [1]
        assert await store.admin.verify() == []
        await fill(store, "ann")


def _old_rows():  # type: ignore[no-untyped-def]
    yield "INSERT INTO owner_counter (owner, name, value) VALUES ('ann', 'activity', 1)", ()
    yield (
        "INSERT INTO chat_session (owner, session_id, title, scenario, app, mode, skill, meta, injection, last_seq, "
        "activity, created, updated, parent_id, parent_seq) "
        "VALUES ('ann', 's', '', '', '', '', '', '{}', '{}', 1, 1, 1, 1, '', 0)",
        (),
    )
    yield (
        "INSERT INTO conversation (owner, session_id, seq, message_id, turn_id, role, content, extra, state, "
        "is_collected, collected, tokens, created) "
        "VALUES ('ann', 's', 1, 'm', '', 'user', '\"an old message\"', '{}', 'complete', 0, 0, 0, 1)",
        (),
    )


ODD_TEXTS = (
    "plain", "", " ", "你好 🙂", 'she said "hi"', "back\\slash", "two\nlines\t\x01\x7f", "\u2028", "\ud55c", "'; --",
    '"in quotes"', "null", "5", "true", "[1, 2]", '{"type": "text"}', '[{"type": "text", "text": "x"}]',
    "\\u0000", "\\ud83d", "\\\\u0000 and \\n", "\\", '\\"', "C:\\users\\new\\ud800",
)  # fmt: skip
"""Texts that look like JSON, or like what stands for something else in it."""
UNSTORABLE: tuple[Any, ...] = ("nul \0 inside", "half \ud83d of it", "\\\0", "\\\\\ud83d 🙂")
"""Texts that a database cannot hold as they are."""
NO_TEXT: tuple[Any, ...] = (
    [{"type": "text", "text": "a part"}, {"type": "image_url", "image_url": {"url": "u"}}],
    None,
)


def sql_on(where: str, postgres: Server, statement: str) -> list[list[Any]]:
    """What somebody reads who looks into the store with a tool for SQL."""
    if where.startswith("postgresql"):
        found = postgres.sql(
            f"SELECT COALESCE(json_agg(row), '[]') FROM ({statement}) AS row",
            where.partition("@/")[2].partition("?")[0],
        )
        return [list(row.values()) for row in json.loads(found)]
    with closing(sqlite3.connect(where)) as connection:
        return [list(row) for row in connection.execute(statement)]


READ_CONTENT = "SELECT content, content_type FROM conversation WHERE session_id = 's' ORDER BY seq"


def find_wrong(contents: Sequence[Any], rows: Sequence[Sequence[str]]) -> list[Any]:
    """Contents whose rows do not say what they should: a plain text itself, all else JSON."""
    wanted = [[each, "text"] if each in ODD_TEXTS else [dump(each), "json"] for each in contents]
    return [each for each, want, row in zip(contents, wanted, rows, strict=True) if want != row]


async def test_C11_the_content_of_a_plain_message_is_its_text_in_sql(where: str, postgres: Server) -> None:
    contents = [*ODD_TEXTS, *UNSTORABLE, *NO_TEXT]
    async with open_store(where) as store:
        await store.sessions.new("ann", session_id="s")
        calls = {"tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
        messages = [
            {"role": "assistant", "content": None, **calls} if each is None else {"role": "user", "content": each}
            for each in contents
        ]
        await store.messages.append("ann", "s", messages)
        assert [row.content for row in await store.messages.list("ann", "s")] == contents
    assert find_wrong(contents, sql_on(where, postgres, READ_CONTENT)) == []


async def test_C11_a_store_in_which_every_content_was_json_is_migrated(where: str, postgres: Server) -> None:
    contents = [*ODD_TEXTS, *UNSTORABLE, *NO_TEXT]
    opener = open_postgres if where.startswith("postgresql") else open_sqlite
    db, _ = await opener(where, lambda: 1.0, upto=5)
    await db.write("ann", lambda: _rows_of_version_5("ann", contents))
    await db.write("bob", lambda: _rows_of_version_5("bob", ["of bob"]))
    await db.close()
    async with open_store(where) as store:
        rows = await store.messages.list("ann", "s")
        assert [row.content for row in rows] == contents
        await store.admin.reindex()  # rows that were put in by hand are not in the search yet
        assert await store.admin.verify() == []
        assert [one.message.content for one in await store.sessions.search("ann", "quotes")] == ['"in quotes"']
        branch = await store.sessions.branch("ann", "s", len(contents))
        copied = await store.messages.list("ann", branch.session_id)
        assert [row.content for row in copied] == contents
        assert [row.content for row in await store.messages.list("bob", "s")] == ["of bob"]
    stored = sql_on(where, postgres, READ_CONTENT.replace("seq", "owner, seq"))
    assert stored.pop() == ["of bob", "text"], "the rows of every owner"
    assert find_wrong(contents, stored) == []


def _rows_of_version_5(owner: str, contents: Sequence[Any]):  # type: ignore[no-untyped-def]
    yield "INSERT INTO owner_counter (owner, name, value) VALUES (?, 'activity', 1)", (owner,)
    yield (
        "INSERT INTO chat_session (owner, session_id, title, scenario, app, mode, skill, meta, injection, "
        "last_seq, activity, created, updated, parent_id, parent_seq, runtime) "
        "VALUES (?, 's', '', '', '', '', '', '{}', '{}', ?, 1, 1, 1, '', 0, '{}')",
        (owner, len(contents)),
    )
    for seq, content in enumerate(contents, 1):
        yield (
            "INSERT INTO conversation (owner, session_id, seq, message_id, turn_id, role, content, extra, state, "
            "is_collected, collected, tokens, created) "
            "VALUES (?, 's', ?, ?, '', 'user', ?, '{}', 'complete', 0, 0, 0, 1)",
            (owner, seq, f"{owner}{seq}", dump(content)),
        )


@pytest.mark.planted("contents that are left as JSON, and texts that are read as JSON because they look like it")
def test_C11_planted_contents_of_another_form_are_found() -> None:
    assert find_wrong(ODD_TEXTS, [[dump(each), "json"] for each in ODD_TEXTS]) == list(ODD_TEXTS)
    assert find_wrong(["5"], [["5", "json"]]) == ["5"]
    assert find_wrong([None], [["null", "text"]]) == [None]


async def test_C11_an_export_of_format_1_is_taken_in_as_text(store: Store, tmp_path: Path) -> None:
    async with open_store(os.fspath(tmp_path / "other.db")) as other:
        await other.sessions.new("ann", session_id="s")
        await other.messages.append("ann", "s", [{"role": "user", "content": each} for each in ODD_TEXTS])
        lines = await exported(other)
    assert json.loads(lines[0])["format"] == 2
    old = [json.loads(line) for line in lines]
    old[0]["format"] = 1
    for row in old:
        if row.pop("content_type", None):
            row["content"] = dump(row["content"])
        row.pop("phase", None)
    await store.admin.import_([json.dumps(row) for row in old])
    assert [row.content for row in await store.messages.list("ann", "s")] == list(ODD_TEXTS)
    assert await exported(store) == lines
    assert await store.admin.import_(lines) == 0


async def test_a_store_of_a_newer_lamina_is_refused_and_left_alone(where: str, postgres: Server) -> None:
    async with open_store(where) as store:
        await fill(store, "ann")
    statement = "INSERT INTO schema_version (version, name, applied) VALUES (99, 'later', 1)"
    if where.startswith("postgresql"):
        postgres.sql(statement, where.partition("@/")[2].partition("?")[0])
    else:
        with closing(sqlite3.connect(where, isolation_level=None)) as connection:
            connection.execute(statement)
    with pytest.raises(StoreError, match="version 99"):
        async with open_store(where):
            pass


def test_both_databases_have_the_same_migrations() -> None:
    numbers = [[(m.version, m.name) for m in schema.migrations(name)] for name in ("sqlite", "postgres")]
    assert numbers[0] == numbers[1]
    assert [version for version, _ in numbers[0]] == list(range(1, len(numbers[0]) + 1))


# What is in a store


async def test_ids_are_found_by_their_beginning_within_one_owner(store: Store) -> None:
    for name in ("abcd1", "abcd", "ABCD2", "ab%d3", "ab_d4"):
        await store.sessions.new("ann", session_id=name)
    await store.sessions.new("bob", session_id="abcd9")
    assert await store.admin.ids("ann", "session", "abcd") == ["abcd", "abcd1"]
    assert await store.admin.ids("ann", "session", "ab%") == ["ab%d3"]
    assert await store.admin.ids("ann", "session", "ab_") == ["ab_d4"]
    assert await store.admin.ids("ann", "session", "ab", limit=1) == ["ab%d3"]
    assert await store.admin.ids("ann", "session", "abcd9") == []
    for kind in ("message", "memory", "job"):
        assert await store.admin.ids("ann", kind, "abcd") == []
    with pytest.raises(MessageError):
        await store.admin.ids("ann", "session", "\ud800")
    with pytest.raises(OwnerError):
        await store.admin.ids("", "session", "abcd")


async def test_counts_are_the_owners_own_and_of_memories_the_active_ones(store: Store) -> None:
    session = await store.sessions.new("ann")
    await store.messages.append("ann", session.session_id, [{"role": "user", "content": "Hi"}])
    one, _ = await store.memories.add("ann", [NewMemory("one"), NewMemory("two")])
    await store.memories.forget("ann", [one.memory_id])
    assert await store.admin.counts("ann") == {
        "sessions": 1, "messages": 1, "memories": 1, "summaries": 0, "templates": 0,
    }  # fmt: skip
    assert set((await store.admin.counts("bob")).values()) == {0}
    assert await store.admin.version() >= 2
    assert all(size >= 0 for size in (await store.admin.sizes()).values())
    assert sum((await store.admin.sizes()).values()) > 0


async def test_templates_are_kept_together_or_not_at_all(store: Store) -> None:
    kept = await store.templates.put_all("ann", [Template("", "a", "x"), Template("t", "b", "y")])
    assert [template.name for template in await store.templates.list("ann")] == ["a", "b"]
    assert kept[1].template_id == "t"
    with pytest.raises(MessageError):
        await store.templates.put_all("ann", [Template("u", "c", "z"), Template("v", "d", "bad \0")])
    assert len(await store.templates.list("ann")) == 2


async def test_what_a_memory_replaced_is_known(store: Store) -> None:
    (old,) = await store.memories.add("ann", [NewMemory("I live in Lisbon.")])
    (new,) = await store.memories.add("ann", [NewMemory("I live in Porto.", supersedes=(old.memory_id,))])
    assert [memory.memory_id for memory in await store.memories.replaced("ann", new.memory_id)] == [old.memory_id]
    assert await store.memories.replaced("bob", new.memory_id) == []
