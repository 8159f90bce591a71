"""A2: expensive reads of one user, and what the others notice of them, over both stores and over HTTP."""

import asyncio
import string
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager, suppress
from itertools import islice, product
from pathlib import Path
from typing import Any

import asyncpg  # pyright: ignore[reportMissingTypeStubs] -- it ships annotations, no stubs
import pytest

from lamina.app.app import App
from lamina.gateway.handlers import Reply, Request, Route
from lamina.gateway.limits import GatewayOptions
from lamina.store import postgres, sqlite
from lamina.store.database import OutOfTimeError, Steps
from lamina.store.store import Store
from tests.gateway.raw import request, say
from tests.gateway.serving import TOKEN, running

PATIENCE_S = 10.0
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i % 9 + 1 FROM n) SELECT COUNT(*) FROM n"


def endless() -> Steps[str]:
    try:
        yield ENDLESS, ()
    except OutOfTimeError:
        rows = yield "SELECT 'stopped'", ()
        return str(rows[0][0])
    return "ended"


async def in_time(asked: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(asked, PATIENCE_S)


async def stop(tasks: list["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# --- Searches


async def write_words(store: Store, owner: str, messages: int, words: int) -> None:
    """Messages that have very many words with the same beginning, as in a list of names."""
    session = await store.sessions.new(owner)
    letters = string.ascii_lowercase
    for at in range(messages):
        found = ("q" + letters[at % 26] + "".join(each) for each in islice(product(letters, repeat=4), at, words + at))
        await store.messages.append(
            owner, session.session_id, [{"role": "user", "content": f"common {' '.join(found)}"}]
        )


async def test_A2_a_search_for_a_beginning_of_very_many_words_is_linear(store: Store) -> None:
    await write_words(store, "eve", 12, 2_500)
    found = await in_time(store.sessions.search("eve", "q", seconds=PATIENCE_S))
    assert ([hit.message.seq for hit in found], found.incomplete) == ([*range(12, 0, -1)], "")
    found = await in_time(store.sessions.search("eve", "common qb", seconds=PATIENCE_S))
    assert ([hit.message.seq for hit in found], found.incomplete) == ([2], "")
    assert [hit.message.seq for hit in await store.sessions.search("eve", "q", limit=5)] == [12, 11, 10, 9, 8]


@asynccontextmanager
async def held_up(where: str) -> AsyncGenerator[None]:
    """A search that takes longer than any limit. PostgreSQL counts milliseconds, and may be quicker than one: there it
    has to wait for somebody else's lock."""
    if not where.startswith("postgres"):
        yield
        return
    connection: Any = await asyncpg.connect(where)  # pyright: ignore[reportUnknownMemberType]
    try:
        await connection.execute("BEGIN; LOCK TABLE message_words IN ACCESS EXCLUSIVE MODE")
        yield
    finally:
        await connection.close()


async def test_A2_a_search_that_is_out_of_time_says_so(store: Store, where: str) -> None:
    await write_words(store, "eve", 40, 2_500)
    async with held_up(where):
        found = await in_time(store.sessions.search("eve", "q", limit=99, seconds=1e-6))
    assert found.incomplete == "time_limit"
    assert len(found) < 40
    assert not (await store.sessions.search("eve", "q")).incomplete


# --- Reads of one user


async def crowd(store: Store, seconds: float) -> tuple[bool, bool]:
    """Whether somebody else's read is answered while one user asks for very much; and, when that user has left, the
    user's own."""
    bob = await store.sessions.new("bo")
    eve = await store.sessions.new("eve")
    reads = [asyncio.create_task(store.db.read("eve", endless, seconds=seconds)) for _ in range(20)]
    await asyncio.sleep(0.1)
    answered = [False, False]
    with suppress(TimeoutError):
        answered[0] = await asyncio.wait_for(store.sessions.get("bo", bob.session_id), 2) == bob
    await stop(reads)
    with suppress(TimeoutError):
        answered[1] = await in_time(store.sessions.get("eve", eve.session_id)) == eve
    return answered[0], answered[1]


@pytest.mark.parametrize("seconds", [0.0, 600.0], ids=["reads", "searches"])
async def test_A2_one_user_never_takes_all_readers_and_reads_stop_when_nobody_waits(
    store: Store, seconds: float
) -> None:
    assert await crowd(store, seconds) == (True, True)


@pytest.mark.planted("a store in which one user may take all readers")
async def test_A2_a_store_without_shares_is_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sqlite, postgres):
        monkeypatch.setattr(module, "OWNER_READS", 99)
    assert await crowd(store, 0.0) == (False, True)


async def test_A2_a_read_is_stopped_at_its_time_limit(store: Store) -> None:
    assert await in_time(store.db.read("eve", endless, seconds=0.05)) == "stopped"
    assert (
        await in_time(asyncio.gather(*(store.db.read("eve", endless, seconds=0.05) for _ in range(9))))
        == ["stopped"] * 9
    )


# --- Over HTTP


async def test_A2_a_read_stops_when_its_client_leaves(tmp_path: Path) -> None:
    async def read_endlessly(app: App, asked: Request) -> Reply:
        return Reply(await app.store.db.read(asked.user, endless))

    async def read_something(app: App, asked: Request) -> Reply:
        return Reply(await app.store.admin.counts(asked.user))

    routes = (
        Route("GET", "/api/endless", read_endlessly, "", "read"),
        Route("GET", "/api/counts", read_something, "", "read"),
    )
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    async with running(tmp_path / "s.db", routes=routes, options=GatewayOptions(log="off")) as site:
        for _ in range(6):
            _, writer = await asyncio.open_connection("127.0.0.1", site.port)
            writer.write(request("GET", "/api/endless", bearer, port=site.port))
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.close()
            await writer.wait_closed()
        asked = request("GET", "/api/counts", bearer, port=site.port)
        assert (await in_time(say(site.port, asked)))[0] == 200
