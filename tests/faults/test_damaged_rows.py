"""A4: rows that are damaged, column by column and by wrong types, and what each reading route answers then."""

import asyncio
import re
import sqlite3
from collections.abc import Collection
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lamina.errors import LaminaError, StoreDamagedError
from lamina.store import jobs, keys, memories, messages, schema, sessions, templates, turns
from lamina.store.database import load
from lamina.store.schema import DERIVED_TABLES
from tests.faults.load import Load
from tests.gateway.apis import Api, api_on
from tests.gateway.worlds import say, world

WRONG = (
    "x'00ff'", "'\"x\"'", "NULL", "-1", "'[1, 2]'", "1e308", "'{\"a\": 1}'", "CAST(x'ff80fe' AS TEXT)", "'[null]'",
    "9223372036854775807", "'{\"requests\": 5}'", "''", "'null'", "'1e999'", "'[[\"a\", null]]'", "0",
    "printf('%.*c', 70000, '[')",
)  # fmt: skip
"""As SQL: other types than the column's, no JSON, JSON of other kinds, numbers that nobody counts to, broken UTF-8."""
KEPT = (*DERIVED_TABLES["sqlite"], "schema_version")
"""Tables that are left alone: the derived ones are rebuilt (see `test_derived`), the other is read at the start."""
DAMAGE_HINT = "lamina store verify"


def loosen(path: Path) -> sqlite3.Connection:
    """A connection by which any value gets into any column, as damaged bytes do."""
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("PRAGMA writable_schema = ON")
    for found, put in ((" STRICT, ", " "), *((each, "") for each in (" NOT NULL", " TEXT", " INTEGER", " REAL"))):
        kept = ", ".join(f"'{name}'" for name in KEPT)
        change = f"UPDATE sqlite_master SET sql = REPLACE(sql, ?, ?) WHERE type = 'table' AND name NOT IN ({kept})"
        raw.execute(change, (found, put))
    number = raw.execute("PRAGMA schema_version").fetchone()[0]
    raw.execute(f"PRAGMA schema_version = {number + 1}")
    raw.execute("PRAGMA writable_schema = RESET")
    raw.execute("PRAGMA ignore_check_constraints = ON")
    raw.execute("PRAGMA foreign_keys = OFF")
    return raw


def columns_of(raw: sqlite3.Connection) -> list[tuple[str, str]]:
    tables = [row[0] for row in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    found = [(table, row[1]) for table in tables for row in raw.execute(f"PRAGMA table_info({table})")]
    return [(table, name) for table, name in found if table not in KEPT and not table.startswith("sqlite_")]


async def fill(api: Api) -> dict[str, str]:
    """Rows in every table that can have some."""
    ids = await world(api)
    await say(api, ids["session_id"], "And a dog. " + "words " * 20_000)
    await api("PUT", f"/api/messages/{ids['message_id']}/collected", {"collected": True})
    store = api.app.store
    await store.summaries.put("ann", ids["session_id"], "About a cat.", upto_seq=2)
    await store.profile.set("ann", {"name": "Ann"})
    await store.jobs.add("ann", "test", {"a": 1}, key="once")
    running = await store.turns.begin("ann", ids["session_id"], {"role": "user", "content": "more"})
    await store.turns.chunk("ann", running.turn_id, 0, "half an ans")
    return {**ids, "running_id": running.turn_id, "file": "main.js"}


def paths_of(api: Api, ids: dict[str, str]) -> list[str]:
    paths = [route.path for route in api.routes if route.method == "GET" and route.scope == "read"]
    made = [re.sub(r"\{(\w+)\}", lambda found: ids.get(found[1], "x"), path) for path in paths]
    return [*made, "/api/sessions/search?q=cat", "/api/memories?query=cat", f"/api/turns/{ids['running_id']}"]


async def read_all(api: Api, paths: list[str]) -> dict[str, tuple[int, str]]:
    """What each route answers; without an end there is no answer, and it counts as 0."""

    async def read(path: str) -> tuple[int, str]:
        try:
            got = await asyncio.wait_for(api("GET", path), 10)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return 0, repr(error)
        return got.status, got.raw[:300].decode("utf-8", "replace")

    return {path: await read(path) for path in paths}


async def read_rest(api: Api) -> list[str]:
    """The tables that no route shows."""
    failed: list[str] = []
    for ask in (api.app.store.keys.list("ann"), api.app.store.jobs.parked("ann"), api.app.store.jobs.counts("ann")):
        try:
            await ask
        except StoreDamagedError:
            continue
        except LaminaError as error:
            failed.append(repr(error))
    return failed


async def damage_columns(folder: Path, values: int, tables: Collection[str] = ()) -> tuple[list[str], int]:
    """Failures, and how often damage was reported as such; in all tables, or in these."""
    failed, reported = list[str](), 0
    async with api_on(str(folder / "s.db")) as api:
        ids = await fill(api)
        raw = loosen(folder / "s.db")
        paths = paths_of(api, ids)
        assert {status for status, _ in (await read_all(api, paths)).values()} <= {200, 400, 404}
        for at, (table, column) in enumerate(columns_of(raw)):
            if tables and table not in tables:
                continue
            for wrong in (WRONG[(at + 5 * n) % len(WRONG)] for n in range(values)):
                await api.app.store.profile.set("ann", {"name": "Ann"})  # what is remembered of tables is read again
                raw.execute("DROP TABLE IF EXISTS temp.kept")
                raw.execute(f"CREATE TEMP TABLE kept AS SELECT * FROM {table}")
                raw.execute(f"UPDATE OR IGNORE {table} SET {column} = {wrong}")
                for path, (status, text) in (await read_all(api, paths)).items():
                    reported += status == 503 and DAMAGE_HINT in text
                    if status not in (200, 400, 401, 404, 409) and not (status == 503 and DAMAGE_HINT in text):
                        failed.append(f"{table}.{column} = {wrong}: {path} answers {status} {text}")
                failed += [f"{table}.{column} = {wrong}: {error}" for error in await read_rest(api)]
                raw.execute(f"DELETE FROM {table}")
                raw.execute(f"INSERT INTO {table} SELECT * FROM temp.kept")
        raw.close()
    return failed, reported


async def test_A4_damaged_columns_answer_503_with_the_way_out(tmp_path: Path, load: Load) -> None:
    failed, reported = await damage_columns(tmp_path, 1 if load.factor == 1 else len(WRONG))
    assert failed == []
    assert reported > 100


@pytest.mark.planted("rows that become records unchecked")
async def test_A4_unchecked_rows_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(table: str, columns: str, row: Any) -> list[Any]:
        known = {("conversation", "content"): schema.ANY_TEXT, **schema.COLUMNS_OF_TABLE}
        found = [known.get((table, name)) or schema.COLUMNS.get(name) for name in columns.split(", ")]
        read = [load(value) if each and each.is_json else value for value, each in zip(row, found, strict=True)]
        return [
            each.convert(value) if each and each.convert else value for value, each in zip(read, found, strict=True)
        ]

    for module in (jobs, keys, memories, messages, schema, sessions, templates, turns):
        monkeypatch.setattr(module, "read_row", unchecked)
    assert (await damage_columns(tmp_path, 2, ("prompt_template",)))[0]
