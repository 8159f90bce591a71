"""How things are timed and told: CPU seconds, the best of several runs, ratios instead of bare times."""

import gc
import json
import os
import platform
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from gzip import open as gzip_open
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("LAMINA_BENCH_DATA") or ROOT.parent / "shared" / "data")
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


@dataclass(frozen=True, slots=True)
class Section:
    """One row of the report: its text, the figures a later run compares with, and the figures to reach."""

    title: str
    text: str
    figures: dict[str, float] = field(default_factory=dict[str, float])
    """Ratios and shares only: what another machine can compare."""


def cpu_seconds(work: Callable[[], object], *, prepare: Callable[[], None] = lambda: None, least: float = 0.2) -> float:
    """The best CPU time of one call: at least three runs, until they sum up to `least` seconds or ten minutes pass."""
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
            if total > 20:
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
    """Real (question, answer) pairs; None, and a clear word, where the data is not there."""
    path = DATA / f"transcripts_{lang}.jsonl.gz"
    if not path.exists():
        say(f"no {path.name} in LAMINA_BENCH_DATA ({DATA.name}): its rows are left out")
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


def table(header: list[str], rows: list[list[str]]) -> str:
    """Markdown, with every column but the first to the right."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
