"""Plays the fault tests family by family, two at a time, and writes docs/evidence/reliability.md from what they tell.

Called by `make soak`. What is finished is kept in `.soak`, for the very files it was run with: after Ctrl-C or a kill
the same command goes on with the rest. Each family gets its share of the time; a long form that does not fit ends
early, with the trials that it did. It reads results and decides nothing about them.
"""

import argparse
import ctypes
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO
from xml.etree import ElementTree

from scripts.cases import Case, cases_in
from scripts.reliability import FAULTS, Facts, carriers_in, duration, page, replay, result, results_on, trials

ROOT = Path(__file__).parent.parent
PAGE = Path("docs") / "evidence" / "reliability.md"
LANES = 2
MINUTES = 90
TIMES = 10
"""How many times the quick form the long one is: 1,000 kills, 1,000 clients that leave, 100,000 operations."""
RESERVE = 120.0
"""Seconds that are kept for what begins and ends outside of the shares."""
WEIGHTS = {"R1": 10, "R9": 6, "R10": 3, "R12": 2, "R15": 6, "R20": 6, "R23": 6, "R24": 3, "I1": 12, "T1": 4, "G2": 6,
           "G6": 6, "T7": 3, "T9": 4, "P12": 3}  # fmt: skip
"""How much of the time a family gets, compared with others that get 1."""


@dataclass(frozen=True, slots=True)
class Family:
    """Tests that are run together, in a process of their own."""

    name: str
    tests: tuple[str, ...]
    weight: float = 1.0


def families_of(tests: Mapping[str, Sequence[str]], only: Sequence[str] = ()) -> list[Family]:
    """One for each fault that has tests; a test that carries two is run with the first. The short ones come first:
    what they leave of their time is there for the long ones."""
    given: set[str] = set()
    found: list[Family] = []
    for fault in only or tests:
        mine = tuple(name for name in tests[fault] if name not in given)
        given.update(mine)
        if mine:
            found.append(Family(fault, mine, WEIGHTS.get(fault, 1)))
    return sorted(found, key=lambda family: family.weight)


# What is kept


def fingerprint(root: Path, times: int) -> str:
    """Of everything that a result depends on: the code, the tests and the length of the run."""
    found = hashlib.sha256(f"{times}".encode())
    for top in ("src", "tests", "scripts", "pyproject.toml", "requirements"):
        for path in sorted((root / top).rglob("*")) if (root / top).is_dir() else [root / top]:
            if path.is_file() and path.suffix != ".pyc":
                found.update(f"\0{path.relative_to(root)}\0".encode() + path.read_bytes())
    return found.hexdigest()


@dataclass
class Kept:
    """The finished cases of a run, in a file that is whole at any moment."""

    path: Path
    key: str
    cases: list[Case] = field(default_factory=list[Case])
    seconds: float = 0.0
    stale: bool = False

    @classmethod
    def read(cls, path: Path, key: str) -> "Kept":
        """What a run with this key has left; nothing of a run with other files, or of a file that is none of ours."""
        if not path.exists():
            return cls(path, key)
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            cases = [
                Case(**{name: tuple(value) if isinstance(value, list) else value for name, value in each.items()})
                for each in found["cases"]
            ]
            kept = cls(path, found["key"], cases, found["seconds"])
        except (ValueError, TypeError, KeyError):
            return cls(path, key, stale=True)
        return kept if kept.key == key else cls(path, key, stale=True)

    def add(self, cases: Iterable[Case], seconds: float) -> None:
        self.cases += cases
        self.seconds = seconds
        self.path.parent.mkdir(exist_ok=True)
        draft = self.path.with_suffix(".draft")
        told = {"key": self.key, "seconds": seconds, "cases": [asdict(case) for case in self.cases]}
        draft.write_text(json.dumps(told), encoding="utf-8")
        draft.replace(self.path)

    def has(self, family: Family) -> bool:
        return set(family.tests) <= {case.test for case in self.cases}


# One family


def end_with_its_parent() -> None:
    """In the child: when `make soak` is killed, the tests get Ctrl-C, so that they end what they have started."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(1, signal.SIGINT)


class Running:
    """A family in its process."""

    def __init__(self, family: Family, root: Path, folder: Path, times: int, share: float) -> None:
        self.family, self.share, self.began = family, share, time.monotonic()
        self.report, self.log, self.progress = (folder / f"{family.name}.{kind}" for kind in ("xml", "log", "progress"))
        for path in (self.report, self.progress):
            path.unlink(missing_ok=True)
        environ = {
            **os.environ,
            "SOAK": str(times),
            "SOAK_SECONDS": f"{share:.0f}",
            "SOAK_PROGRESS": str(self.progress),
        }
        command = [
            sys.executable, "-m", "pytest", "-q", "--rootdir=.", "-p", "no:cacheprovider", "-p", "no:xdist",
            "--tb=short", "--timeout", str(60 * MINUTES), f"--junitxml={self.report}", *family.tests,
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=root, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=end_with_its_parent,
            )  # fmt: skip

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        return max(self.share - self.seconds, 0.0)

    def says(self) -> str:
        """How far it is."""
        with suppress(OSError, ValueError):
            _, done, wanted = json.loads(self.progress.read_text(encoding="utf-8"))
            return f"{self.family.name} {done:,}/{wanted:,}"
        return self.family.name

    def cases(self) -> list[Case]:
        """What became of it. A test that the report does not name has failed: its process came to no end."""
        try:
            found = cases_in(self.report)
        except (OSError, ElementTree.ParseError):
            found = []
        named = {case.test for case in found}
        return found + [Case(name, state="failed") for name in self.family.tests if name not in named]

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGINT)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


# All of them


class Soak:
    def __init__(self, root: Path, kept: Kept, times: int, out: TextIO, seconds: float = 60.0 * MINUTES) -> None:
        self.root, self.kept, self.times, self.out = root, kept, times, out
        self.budget = seconds - RESERVE
        self.before, self.began = kept.seconds, time.monotonic()
        self.did = 0.0

    @property
    def spent(self) -> float:
        """Of the time, in all sittings."""
        return self.before + time.monotonic() - self.began

    def run(self, families: Sequence[Family]) -> None:
        waiting = [family for family in families if not self.kept.has(family)]
        done = len(families) - len(waiting)
        running: list[Running] = []
        self.kept.path.parent.mkdir(exist_ok=True)
        try:
            while waiting or running:
                while waiting and len(running) < LANES:
                    share = self.share_of(waiting, running)
                    running.append(Running(waiting.pop(0), self.root, self.kept.path.parent, self.times, share))
                for one in [each for each in running if each.process.poll() is not None]:
                    running.remove(one)
                    done += 1
                    self.finished(one, f"{done} of {len(families)}")
                self.bar(done, len(families), waiting, running)
                time.sleep(0.1)
        finally:
            for one in running:
                one.stop()

    def share_of(self, waiting: Sequence[Family], running: Sequence[Running]) -> float:
        """The next one's part of what is left, by its weight; never more than the clock has."""
        clock = max(self.budget - self.spent, 0.0)
        left = max(clock * LANES - sum(one.left for one in running), 0.0)
        return min(clock, left * waiting[0].weight / sum(family.weight for family in waiting))

    def finished(self, one: Running, count: str) -> None:
        cases = one.cases()
        self.kept.add(cases, self.spent)
        self.did += one.family.weight
        word = result(one.family.tests, cases).strip("*")
        self.line(f"{one.family.name:4} {word}: {trials(cases)} in {duration(one.seconds)} ({count})")
        for case in cases:
            if case.state == "failed":
                log = os.path.relpath(one.log, self.root)
                self.line(f"     again: {replay(case, self.times)}\n     said:  {log}")

    def line(self, text: str) -> None:
        clear = "\r\x1b[K" if self.out.isatty() else ""
        print(f"{clear}{text}", file=self.out, flush=True)

    def bar(self, done: int, of: int, waiting: Sequence[Family], running: Sequence[Running]) -> None:
        if not self.out.isatty() or not running:
            return
        names = ", ".join(one.says() for one in running)
        bar = f"[{'#' * round(24 * done / of):24}] {done}/{of}"
        text = f"{bar}  {names}  {duration(self.spent)}, {self.expects(waiting, running)}"
        width = os.get_terminal_size(self.out.fileno()).columns
        print(f"\r\x1b[K{text[: width - 1]}", end="", file=self.out, flush=True)

    def expects(self, waiting: Sequence[Family], running: Sequence[Running]) -> str:
        """When it will end, if the rest goes on like this; by their weights, and not after the time is over."""
        parts = [one.family.weight * min(one.seconds / max(one.share, 1.0), 1.0) for one in running]
        did = self.did + (sum(parts) if self.times > 1 else 0.0)
        rest = sum(family.weight for family in waiting) + sum(one.family.weight for one in running) - sum(parts)
        if not did:
            return "end unknown yet"
        seconds = min((time.monotonic() - self.began) * rest / did, max(self.budget - self.spent, 0.0))
        return f"ends about {datetime.fromtimestamp(time.time() + seconds):%H:%M}"


def facts_of(root: Path, times: int, seconds: float, command: str) -> Facts:
    def git(*words: str) -> str:
        ran = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
        return ran.stdout.strip()

    changed = [line for line in git("status", "--porcelain").splitlines() if not line.endswith(str(PAGE))]
    return Facts(
        date=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        machine=f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}",
        commit=(git("rev-parse", "--short=12", "HEAD") or "unknown") + (" with changes" if changed else ""),
        form="quick form" if times == 1 else f"long form, {times} times the quick one",
        command=command, seconds=seconds, factor=times,
    )  # fmt: skip


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak", description="Plays the fault tests and writes a page of it.")
    parser.add_argument("--times", type=int, default=TIMES, help="how many times the quick form; 1 is the quick form")
    parser.add_argument("--only", default="", help="some faults: R1,R9")
    parser.add_argument("--fresh", action="store_true", help="forget what is finished")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="how long it may take")
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder with the tests")
    return parser.parse_args(arguments)


def command_of(given: argparse.Namespace) -> str:
    times = "" if given.times == TIMES else " QUICK=1" if given.times == 1 else f" N={given.times}"
    return f"make soak{times}{f' ONLY={given.only}' if given.only else ''}"


def main(arguments: Sequence[str], out: TextIO = sys.stdout) -> int:
    given = parsed(arguments)
    root: Path = given.root.resolve()
    only = [name for name in given.only.split(",") if name]
    strangers = [name for name in only if name not in FAULTS]
    if strangers or given.times < 1:
        print(
            f"no fault {', '.join(strangers)}; known: {', '.join(FAULTS)}" if strangers else "N is at least 1", file=out
        )
        return 2
    tests = carriers_in(root / "tests")
    state = root / ".soak" / f"{given.times}.json"
    if given.fresh:
        state.unlink(missing_ok=True)
    kept = Kept.read(state, fingerprint(root, given.times))
    if kept.stale:
        print("what was finished is of other files: everything runs again", file=out, flush=True)
    elif kept.cases:
        print(f"continuing: {len(kept.cases)} cases are finished; FRESH=1 starts over", file=out, flush=True)
    soak = Soak(root, kept, given.times, out, 60 * given.minutes)
    try:
        soak.run(families_of(tests, only))
    except KeyboardInterrupt:
        soak.line("stopped; the same command continues with what is left")
        return 130
    return written(root, tests, kept, facts_of(root, given.times, kept.seconds, command_of(given)), out, only)


def written(
    root: Path, tests: Mapping[str, Sequence[str]], kept: Kept, facts: Facts, out: TextIO, only: Sequence[str]
) -> int:
    """The page, or a draft of it where some families have not run."""
    text = page(tests, kept.cases, facts)
    results = results_on(text)
    gaps = [fault for fault, word in results.items() if "not run" in word and tests[fault]]
    path = root / PAGE if not gaps else kept.path.parent / PAGE.name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    bad = {fault: word.strip("*") for fault, word in results.items() if not word.startswith("passed")}
    bad = {fault: word for fault, word in bad.items() if not only or fault in only}
    more = f"; not in the docs, {len(gaps)} faults have not run" if gaps else ""
    print(f"{path.relative_to(root)}: {duration(facts.seconds)}; not passed: {bad or 'none'}{more}", file=out)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
