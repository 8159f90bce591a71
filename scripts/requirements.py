"""Writes docs/evidence/requirements.md: each numbered requirement, the tests that carry its number, the entry points
that they go through, and whether they passed.

A test carries a requirement when its name begins with the number (`test_M4_…`, `test_I1_and_I13_…`). Tests of faults
have numbers of another list, some of them spelled alike: they are in `tests/faults`, in files that end with
`_faults.py`, or are called `test_fault_P4_…`, and are not counted here. The entry points of a test are those that it
was seen to reach (`tests/entry_points.py`). A requirement without one has failed, whatever its unit tests say.
"""

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.cases import cases_in, counted, functions_in, verdict
from scripts.reliability import Facts
from scripts.soak import facts_of
from tests.entry_points import ENTRY_POINTS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "evidence" / "requirements.md"

CHAPTERS = {
    "P": "Layers of the system prompt",
    "M": "Messages and trimming",
    "S": "Segments, tools and hints",
    "I": "Instruction files and injection",
    "C": "The context of a chat",
}
REQUIREMENTS = {
    "P1": "six layers become one system prompt, in a fixed order",
    "P2": "a blank layer leaves no trace, the identity included",
    "P3": "the bytes of a kept layer are not touched",
    "P4": "the modes agent, plan and ask, and their hints",
    "P5": "all six layers are reached from a real chat",
    "P6": "an identity ships, and one setting replaces it",
    "M1": "the estimate: a quarter of the UTF-8 bytes, rounded up",
    "M2": "system, history, newest message, as plain mappings",
    "M3": "system and newest message stay, whatever the budget",
    "M4": "the oldest history goes first; the longest end that fits is kept",
    "M5": "a budget that is not a finite number of at least 0 is refused with its value",
    "M6": "the result says what was dropped and whether it is over budget",
    "M7": "a tool call and its results stay or go together",
    "M8": "counting is pluggable, exact counters included",
    "M9": "one more turn costs what is new",
    "S1": "three segments; those that are empty vanish",
    "S2": "the tool notes follow the registry and hold no parameters",
    "S3": "a tool without a description is refused",
    "S4": "hints are a list: several stand at once, and none loses another",
    "S5": "a tool that keeps failing is marked as degraded until it works",
    "S6": "output that is too long is cut, with a hint that fits the tool",
    "S7": "text from outside cannot forge structure",
    "S8": "the five tools work; dangerous commands ask or are blocked",
    "S9": "a full window is compacted, and the session continues",
    "I1": "one manager, called in one place before every send",
    "I2": "a file that is missing or unusable is never a silent empty layer",
    "I3": "the envelope: instructions, rules, phase prompt, user input",
    "I4": "for input of several parts, the injection is a text part before them",
    "I5": "when it is injected: first, every N turns, at levels of use; once for one reason",
    "I6": "a changed file is sent on the next turn; a reset starts again",
    "I7": "a failed send leaves the injection due",
    "I8": "one switch stops every later injection",
    "I9": "an unchanged file costs one stat",
    "I10": "each injection is one line in the log, and counted",
    "I11": "settings by file, environment and channel; a bad value is named",
    "I12": "the default files, and the settings that name others",
    "I13": "command line and bot use the same engine",
    "I14": "nothing fails to import or start where the system has no `fcntl`, `pwd` or `O_NONBLOCK`",
    "I15": "a file is found whatever the case of its name; two that differ in case only are an error",
    "C1": "seven layers in order, each below its heading",
    "C2": "memory off or failing: skipped, with the reason in the trace",
    "C3": "one function builds contexts; providers accept nothing else",
    "C4": "relevant memories, and recent summaries without this session",
    "C5": "scenario prompts and skills of the host, slots filled in one pass",
    "C6": "a new session has nothing of the old one except memory and profile",
    "C7": "each message is stored as soon as it exists, interrupted ones too",
    "C8": "memories are written in the background, and never lost or duplicated",
    "C9": "collecting marks exactly one row, and can be undone",
    "C10": "what belongs to one user never reaches another",
    "C11": "tables and columns keep the names of the seed",
    "C12": "the page: chat, sessions, collecting, memories, inspector",
}
"""In our own words; a number is never given twice."""
CHANNELS = {"I": ("process", "Telegram"), "I4": ("Telegram",)}
"""Seed 003 speaks of the command line and of the bot: each of its requirements holds through both. Input of several
parts (I4) comes from the bot alone: the command line takes no pictures."""

CARRIES = re.compile(r"test_((?:[PMSIC]\d+_and_)*[PMSIC]\d+)_")
HEAD = """# Requirements

Written by `make requirements`, which runs these tests. A test carries a requirement when its name begins with the
number; one test may carry two. The entry points of a test are those that it was seen to reach while it ran: `App` in
Python, a `lamina` process, HTTP against a running gateway, the Telegram bot. A requirement that no test reaches
through an entry point has failed; those of the chapter I must be reached through a process and through Telegram (I4
through Telegram: the command line takes no pictures). Unit tests ("none") are listed and do not count. An id
such as P1 or I1 means something else in [reliability](reliability.md).
"""


def is_counted(path: Path) -> bool:
    """Not the tests of faults, whose numbers are of another list."""
    return "faults" not in path.parts and not path.stem.endswith("_faults")


def carried_by(name: str) -> list[str]:
    """The requirements that a test's name carries: `test_I1_and_I13_…` gives both, and so on."""
    found = CARRIES.match(name)
    return [number for number in found[1].split("_and_") if number in REQUIREMENTS] if found else []


def carriers_in(folder: Path) -> dict[str, list[str]]:
    """Each requirement, and the tests below the folder that carry it, as `tests/spec/test_seed_000.py::test_P1_…`."""
    found: dict[str, list[str]] = {number: [] for number in REQUIREMENTS}
    for where, node in functions_in(folder):
        for number in carried_by(node.name) if is_counted(where) else ():
            found[number].append(f"{where.as_posix()}::{node.name}")
    return found


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one test in a run: how many of its cases passed, failed or were skipped, and what they reached."""

    cases: Counter[str] = field(default_factory=Counter[str])
    entry_points: frozenset[str] = frozenset()


def results_in(junit: Path) -> dict[str, Result]:
    cases = cases_in(junit)
    reached: dict[str, set[str]] = {}
    for case in cases:
        if case.state == "passed":
            reached.setdefault(case.test, set()).update(case.entry_points)
    return {test: Result(count, frozenset(reached.get(test, ()))) for test, count in counted(cases).items()}


def verdict_on(number: str, results: Sequence[Result]) -> str:
    """One word; and what is missing where all tests passed, but not through every entry point that is asked for."""
    word = verdict([result.cases for result in results])
    reached = frozenset[str]().union(*(result.entry_points for result in results))
    missing = [channel for channel in CHANNELS.get(number, CHANNELS.get(number[0], ())) if channel not in reached]
    if word == "passed" and (missing or not reached):
        return f"**not through {' and '.join(missing) or 'an entry point'}**"
    return word


def page(tests: Mapping[str, list[str]], results: Mapping[str, Result], facts: Facts | None = None) -> str:
    lines = [HEAD]
    if facts:
        lines += ["| | |", "|---|---|", f"| date | {facts.date} |", f"| commit | {facts.commit} |"]
        lines += [f"| machine | {facts.machine} |", ""]
    for letter, title in CHAPTERS.items():
        lines += [
            f"## {letter}. {title}\n",
            "| id | requirement | entry points | cases | result |",
            "|---|---|---|---|---|",
        ]
        numbers = [number for number in REQUIREMENTS if number[0] == letter]
        for number in numbers:
            found = [results.get(name, Result()) for name in tests[number]]
            reached = _listed(frozenset[str]().union(*(result.entry_points for result in found)))
            cases = sum(result.cases["passed"] for result in found)
            word = verdict_on(number, found)
            lines.append(f"| {number} | {REQUIREMENTS[number]} | {reached} | {cases} passed | {word} |")
        lines.append("")
        for number in numbers:
            lines += [f"{number}:\n", *(_row(name, results.get(name, Result())) for name in tests[number]), ""]
    return "\n".join(lines)


def _listed(entry_points: frozenset[str]) -> str:
    return ", ".join(name for name in ENTRY_POINTS if name in entry_points) or "none"


def _row(name: str, result: Result) -> str:
    more = "".join(f", {result.cases[state]} {state}" for state in ("failed", "skipped") if result.cases[state])
    return f"- `{name}`: {result.cases['passed']} passed{more} ({_listed(result.entry_points)})"


def named_on(text: str) -> list[str]:
    """The tests that a page names."""
    return re.findall(r"^- `(tests/\S+::\w+)`", text, re.MULTILINE)


def results_on(text: str) -> dict[str, str]:
    """Each requirement on a page, and its result."""
    return dict(re.findall(r"^\| ([PMSIC]\d+) \|.*\| ([^|]+) \|$", text, re.MULTILINE))


def main(arguments: list[str]) -> int:
    tests = carriers_in(ROOT / "tests")
    if arguments:  # the file of a run that was made elsewhere
        results = results_in(Path(arguments[0]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            junit = Path(folder) / "junit.xml"
            names = sorted({name for carriers in tests.values() for name in carriers})
            run = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", f"--junitxml={junit}", *names]
            subprocess.run(run, cwd=ROOT, check=False)  # a failure is written into the table
            results = results_in(junit)
    text = page(tests, results, facts_of(ROOT, 1, 0, "make requirements"))
    PAGE.write_text(text, encoding="utf-8")
    bad = {number: result for number, result in results_on(text).items() if result != "passed"}
    where, count = PAGE.relative_to(ROOT), len(set(named_on(text)))
    print(f"{where}: {len(REQUIREMENTS)} requirements, {count} tests; not passed: {bad or 'none'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
