"""How things are timed and told: CPU seconds, the best of several runs, ratios instead of bare times."""

import gc
import json
import os
import platform
import random
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from gzip import open as gzip_open
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any, Literal

from bench.plot import Bars, Lines

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("LAMINA_BENCH_DATA") or ROOT.parent / "shared" / "data")
TOO_LONG = float(os.environ.get("BENCH_PATIENCE", "5"))
"""Seconds of one call after which a peer is given up: a larger history is not put to it. Less makes a quick try of a
report, not a report: the table says how many they were."""
FLAT = 1.3
"""What is to be flat may differ by this factor: less cannot be told from noise."""
WORDS = [
    "the",
    "a",
    "project",
    "file",
    "test",
    "answer",
    "question",
    "model",
    "window",
    "layer",
    "token",
    "budget",
    "我们",
    "需要",
    "检查",
    "这个",
    "函数",
    "预算",
]


class MissingError(Exception):
    """What a row needs is not on this machine: the row says so, and its stored figures stay."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What a later run compares with: a ratio or a share, and the factor by which it may get worse unnoticed."""

    value: float
    better: Literal["high", "low"]
    noise: float = 1.3
    pace: float | None = None
    """Only of a time over its goal: seconds that plain Python took for a fixed work just then, so that a later run on a
    slower or busier machine is not taken for a worse one."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the table at the head of the report."""

    measured: str
    lamina: str
    peer: str = ""
    ratio: str = ""
    goal: str = ""
    share: float | None = None
    """Of the goal: 1 and more has reached it. None where no goal is set."""


@dataclass(frozen=True, slots=True)
class Section:
    """One row of the report."""

    title: str
    text: str
    figures: dict[str, Figure]
    verdicts: tuple[Verdict, ...] = ()
    plot: Bars | Lines | None = None
    versions: dict[str, str] = field(default_factory=dict[str, str])
    missing: tuple[str, ...] = ()
    """Peers and data that were not there."""


def high(value: float, noise: float = 1.3) -> Figure:
    return Figure(value, "high", noise)


def low(value: float, noise: float = 1.3) -> Figure:
    return Figure(value, "low", noise)


def timed(value: float, noise: float = 2.0) -> Figure:
    """A time over its goal. Call it right after measuring: the machine's pace of that moment goes with it."""
    return Figure(value, "low", noise, _pace())


def _pace() -> float:
    taken: list[float] = []
    for _ in range(9):
        begin = time.perf_counter()
        sum(n * n % 7 for n in range(200_000))
        taken.append(time.perf_counter() - begin)
    return sorted(taken)[4]


def cpu_seconds(work: Callable[[], object], *, prepare: Callable[[], None] = lambda: None, least: float = 0.2) -> float:
    """The best CPU time of one call: at least three runs, until they sum up to `least` seconds. One is enough where it
    takes seconds: noise is smaller than that."""
    best, total, runs = float("inf"), 0.0, 0
    gc.collect()
    gc.disable()
    try:
        while runs < 3 or (total < least and runs < 2_000):
            prepare()
            begin = time.process_time()
            work()
            took = time.process_time() - begin
            best, total, runs = min(best, took), total + took, runs + 1
            if total > 2:
                break
    finally:
        gc.enable()
    return best


def chat(size: int, seed: int = 1) -> list[dict[str, Any]]:
    """A plain chat of `size` messages, English and Chinese, of 5 to 120 words."""
    rng = random.Random(seed)
    return [
        {"role": ("user", "assistant")[n % 2], "content": " ".join(rng.choices(WORDS, k=rng.randint(5, 120)))}
        for n in range(size)
    ]


def transcript(lang: str, turns: int) -> list[tuple[str, str]] | None:
    """Real (question, answer) pairs; None where the data is not there."""
    path = DATA / f"transcripts_{lang}.jsonl.gz"
    if not path.exists():
        return None
    pairs: list[tuple[str, str]] = []
    asked = ""
    with gzip_open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if row["type"] != "turn":
                continue
            if row["speaker"] == "user":
                asked = row["text"]
            elif asked:
                pairs.append((asked, row["text"]))
                asked = ""
            if len(pairs) == turns:
                break
    return pairs


def say(text: str) -> None:
    """Progress, for the person who waits."""
    print(f"  {text}", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def ratio(value: float) -> str:
    return f"{value:,.0f}×" if value >= 100 else f"{value:.3g}×"


def machine() -> str:
    return f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def versions(*packages: str, folders: Iterable[Path] = ()) -> dict[str, str]:
    """What is installed here, or in the environment whose `site-packages` are given; what is not is left out."""
    if where := [os.fspath(folder) for folder in folders]:
        there = {found.metadata["Name"].lower(): found.version for found in distributions(path=where)}
        return {package: there[package] for package in packages if package in there}
    found: dict[str, str] = {}
    for package in ("lamina-context", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def table(header: list[str], rows: list[list[str]]) -> str:
    """Markdown, with every column but the first to the right."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
