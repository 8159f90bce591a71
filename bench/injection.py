"""What an injection costs: cold and warm, with 50 files, beside the bare `stat` calls that it cannot do without."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.measure import Figure, Section, Verdict, duration, low, ratio, say, table, timed, versions
from lamina import InstructionFiles, SystemPromptManager

FILES, COLD, WARM = 50, 60, 3_000
COLD_GOAL, WARM_GOAL = 10e-3, 1e-4
"""To reach, in seconds at p99."""


def run() -> Section:
    rows: list[list[str]] = []
    figures: dict[str, Figure] = {}
    verdicts: list[Verdict] = []
    for name, build in (("nested AGENTS.md, 50 folders deep", _nested), ("rules with 49 includes", _included)):
        say(f"injection: {name}")
        with tempfile.TemporaryDirectory() as folder:
            make, paths = build(Path(folder))
            time.sleep(0.3)  # a file that has just changed is read again: let them settle
            cold = _times(lambda make=make: SystemPromptManager(make()).prepare("hi"), COLD)
            manager = SystemPromptManager(make())
            manager.sent(manager.prepare("hi"))
            warm = _times(lambda manager=manager: manager.prepare("hi"), WARM)
            bare = _times(lambda paths=paths: [os.stat(path) for path in paths], WARM)
        rows.append([name, *map(duration, (*cold, *warm, *bare)), ratio(warm[0] / bare[0])])
        figures[f"{name}: warm/bare stats"] = low(warm[0] / bare[0])
        figures[f"{name}: warm p99/0.1 ms"] = timed(warm[1] / WARM_GOAL)
        verdicts += [
            Verdict(f"injecting {name}, cold p99", duration(cold[1]), "", "", duration(COLD_GOAL), COLD_GOAL / cold[1]),
            Verdict("the same, warm p99", duration(warm[1]), f"{duration(bare[1])}, the bare `stat` calls",
                    ratio(bare[1] / warm[1]), duration(WARM_GOAL), WARM_GOAL / warm[1]),
        ]  # fmt: skip
    header = ["", "cold p50", "cold p99", "warm p50", "warm p99", "bare stats p50", "bare stats p99", "warm/bare"]
    text = (
        f"`prepare` with {FILES} files; cold is a new manager, warm is the next turn with nothing changed: "
        "one `stat` a file and no read.\nTo reach: cold under 10 ms, warm under 0.1 ms at p99. Where it is over, "
        "so are the bare calls of `os.stat` that it consists of; the last column says what lamina adds.\n\n"
    )
    return Section("Injection", text + table(header, rows), figures, tuple(verdicts), None, versions())


def _times(work: Callable[[], object], rounds: int) -> tuple[float, float]:
    """p50 and p99 of the wall time."""
    taken: list[float] = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    taken.sort()
    return taken[len(taken) // 2], taken[int(len(taken) * 0.99)]


def _nested(root: Path) -> tuple[Callable[[], InstructionFiles], list[Path]]:
    folder, paths = root, list[Path]()
    for number in range(FILES):
        (folder / "AGENTS.md").write_text(f"Rule {number}: keep it short.\n" * 5)
        paths.append(folder / "AGENTS.md")
        folder = folder / f"d{number}"
        folder.mkdir()
    return lambda: InstructionFiles(root, folder=paths[-1].parent), paths


def _included(root: Path) -> tuple[Callable[[], InstructionFiles], list[Path]]:
    (root / ".lamina").mkdir()
    names = [f"part{number}.md" for number in range(FILES - 1)]
    for name in names:
        (root / ".lamina" / name).write_text(f"Rule of {name}.\n" * 5)
    (root / ".lamina" / "rules.md").write_text("".join(f"@{name}\n" for name in names))
    return lambda: InstructionFiles(root), [root / ".lamina" / name for name in ("rules.md", *names)]
