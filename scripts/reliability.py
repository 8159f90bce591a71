"""The text of docs/evidence/reliability.md: each fault, how often it was tried, the result, the planted bug it found.

A test carries a fault when its name begins with the fault's id (`test_R1_…`, `test_R1_R20_…`, `test_fault_P4_…`). An id
that a requirement has too needs the word `fault` outside of `tests/faults` and of files that end with `_faults.py`.
Nothing here is counted by hand: trials, seeds and bugs are told by the tests themselves.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.cases import Case, Function, counted, functions_in, verdict

CHAPTERS = {
    "R": "Durability",
    "I": "Isolation",
    "P": "Prompt",
    "T": "Tools",
    "G": "Gateway",
}
FAULTS = {
    "R1": "a process killed at any moment of a chat loses and doubles nothing that it had shown",
    "R2": "nor does one that ends right before or after any of the store's transactions",
    "R3": "nothing counts as saved before it is on the disk",
    "R4": "a full disk is reported before anything counts as saved; reading works, writing resumes once there is room",
    "R5": "a damaged store is read, named and left as it is",
    "R6": "our own code never opens the files of an open database, which would drop their locks",
    "R7": "one store has one owner; a second process is told which one that is",
    "R9": "a client that leaves in the middle of an answer loses nothing and leaves nothing running",
    "R10": "an answer can be resumed wherever its reader lost it, by that reader only",
    "R11": "whatever a provider does wrong, a turn ends in time with a clear error, and the session can continue",
    "R12": "after a crash between a call and its result, the next request is one that providers accept",
    "R13": "each job of the outbox takes effect once, and one that never succeeds is parked where it can be seen",
    "R14": "the same message sent again with its key, or by Telegram, is one turn and one answer",
    "R15": "writers on one session only ever add to it",
    "R16": "a clock that jumps does not change any order",
    "R20": "R1, R9 and R13 to R15 over PostgreSQL, whose connections are cut off",
    "R23": "no request of one user delays another's by more than 50 ms, whatever it holds",
    "R24": "deletions and damaged indexes do not stop writing; words are erased, and search repairs itself",
    "I1": "no user ever sees text of another user: not in an answer, a request, a log or an export",
    "I2": "an id of another user is treated like one that never existed, on every route",
    "I3": "only the key decides who is asking, whatever the request says",
    "I4": "a layer of another user is never sent, however it got in",
    "P1": "text from outside stays text: no tag, role or token in it becomes structure",
    "P3": "memories and results of tools are data with their origin, and never become instructions",
    "P4": "hidden characters in rules are found and need approval of exactly these bytes; ordinary text passes",
    "P6": "no path of instructions or tools leads out of its folder, not even in a race",
    "P7": "a template has named slots and nothing else that could run",
    "P9": "what is too large is refused or cut as documented, and trusted content gives way last",
    "P11": "a model that always obeys an attacker cannot change, reach or reveal anything without confirmation",
    "P12": "nothing that a tool, a caller or a file says becomes a layer, a hint or a heading",
    "T1": "no command with an effect runs without asking, and ordinary reading does",
    "T3": "what a person approves is what runs, with every hidden character visible",
    "T4": "a command sees none of our secrets, and ends with everything it started",
    "T5": "a fetch reaches only the public internet, checked at the address that it connects to",
    "T7": "a file whose writer is killed is the old one or the new one",
    "T9": "commands made from the list and varied, if they run without asking, write nothing and read nothing outside",
    "T10": "a command that runs, confirmed or not, reaches nothing outside the workspace",
    "G1": "hundreds of slow clients are closed, and honest ones are all answered",
    "G2": "no request, however malformed, causes a server error; a body that is too long is never read",
    "G4": "a foreign host or page reaches no handler, and the gateway never listens for other machines without a key",
    "G5": "a caller changes neither the provider nor the operator's layers",
    "G6": "hostile text in an answer runs nothing and loads nothing in a real browser",
    "G7": "no key or secret is in any log, at any level",
}
"""In our own words; some numbers of the list were never given."""

OVER_POSTGRES = {"R1", "R9", "R13", "R14", "R15"}
"""What R20 asks for again, over PostgreSQL: the cases of these that are named so count for it too."""
IDS = re.compile(r"test_(fault_)?((?:[RIPTG]\d+_(?:and_)?)+)")
OURS_ALONE = "RTG"
"""Letters that no requirement has."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one run: when, where, how."""

    date: str
    machine: str
    commit: str
    form: str
    command: str
    seconds: float
    factor: int


def carried_by(where: Path, name: str) -> list[str]:
    """The faults that a test's name carries, in its file."""
    found = IDS.match(name)
    if not found:
        return []
    home = "faults" in where.parts or where.stem.endswith("_faults") or found[1]
    ids = re.findall(r"[RIPTG]\d+", found[2])
    return [each for each in ids if each in FAULTS and (home or each[0] in OURS_ALONE)]


def carriers_in(folder: Path) -> dict[str, list[str]]:
    """Each fault, and the tests below the folder that carry it, as `tests/faults/test_engine.py::test_R1_…`."""
    found: dict[str, list[str]] = {fault: [] for fault in FAULTS}
    for where, node in functions_in(folder):
        for fault in carried_by(where, node.name):
            found[fault].append(f"{where.as_posix()}::{node.name}")
    return found


def planted_in(folder: Path) -> dict[str, list[str]]:
    """Each fault, and those of its tests that have a planted bug."""
    found: dict[str, list[str]] = {fault: [] for fault in FAULTS}
    for where, node in functions_in(folder):
        for fault in carried_by(where, node.name) if _has_planted(node) else ():
            found[fault].append(f"{where.as_posix()}::{node.name}")
    return found


def _has_planted(node: Function) -> bool:
    return any("pytest.mark.planted" in ast.unparse(each) for each in node.decorator_list)


def cases_of(fault: str, tests: Mapping[str, Sequence[str]], cases: Sequence[Case]) -> list[Case]:
    """The cases of a fault's tests; R20 is about PostgreSQL alone."""
    mine = [case for case in cases if case.test in tests[fault]]
    if fault != "R20":
        return mine
    again = {name for each in OVER_POSTGRES for name in tests.get(each, ())} - set(tests[fault])
    over = [case for case in cases if case.test in again and "postgres" in case.case]
    return [case for case in mine if "sqlite" not in case.case] + over


def page(tests: Mapping[str, Sequence[str]], cases: Sequence[Case], facts: Facts) -> str:
    lines = [_head(facts)]
    for letter, title in CHAPTERS.items():
        faults = [fault for fault in FAULTS if fault[0] == letter and fault in tests]
        if not faults:
            continue
        lines += [f"## {title}\n", "| id | what holds | trials | result | planted bug that was found | time | tests |"]
        lines += ["|---|---|---|---|---|---|---|"]
        lines += [_row(fault, tests, cases_of(fault, tests, cases)) for fault in faults]
        lines.append("")
        for fault in faults:
            lines += [f"{fault}:\n", *_details(tests[fault], cases_of(fault, tests, cases)), ""]
    failed = [case for case in cases if case.state == "failed"]
    if failed:
        lines += ["## What failed\n", *(f"- `{replay(case, facts.factor)}`" for case in failed), ""]
    return "\n".join(lines)


def _head(facts: Facts) -> str:
    return f"""# Reliability

Written by `make soak`, which runs these faults; each test reports how often it tried. Every family has a bug, planted
in the test and not in lamina, that its check must find: a check that cannot fail proves nothing. Ids are those of the
team's own list of faults, which has no entry for the numbers that are missing here; an id such as P1 or I1 means
something else in [requirements](requirements.md).

| | |
|---|---|
| form | {facts.form} |
| command | `{facts.command}` |
| date | {facts.date} |
| commit | {facts.commit} |
| machine | {facts.machine} |
| took | {duration(facts.seconds)} |
"""


def _row(fault: str, tests: Mapping[str, Sequence[str]], cases: Sequence[Case]) -> str:
    bugs = {bug: None for case in cases if case.state == "passed" for bug in case.planted}
    files = {name.partition("::")[0]: None for name in (*tests[fault], *(case.test for case in cases))}
    cells = [
        fault, FAULTS[fault], trials(cases), result(tests[fault], cases), "; ".join(bugs) or "**none**",
        duration(sum(case.seconds for case in cases)), "<br>".join(f"`{name}`" for name in files) or "**none**",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def trials(cases: Iterable[Case]) -> str:
    """`1,200 kills, 4 cases`; `640 of 1,200 kills` where the time was over. Planted bugs are no trials."""
    done, wanted = Counter[str](), Counter[str]()
    for case in cases:
        if case.state != "skipped" and (case.unit or not case.planted):
            unit = case.unit or "cases"
            done[unit] += case.trials
            wanted[unit] += case.wanted
    parts = [
        f"{done[unit]:,} {unit if wanted[unit] > 1 else re.sub('s$|s(?= )', '', unit, count=1)}"
        if done[unit] == wanted[unit]
        else f"{done[unit]:,} of {wanted[unit]:,} {unit}"
        for unit in sorted(wanted, key=lambda unit: unit == "cases")
    ]
    return ", ".join(parts) or "none"


def result(names: Sequence[str], cases: Sequence[Case]) -> str:
    """Passed when all of its tests have; what was skipped is said."""
    results = counted(cases)
    skipped = sum(count["skipped"] for count in results.values())
    ran = [results.get(name, Counter()) for name in names]
    word = verdict(count for count in ran if not count or count["passed"] or count["failed"])
    return f"{word}, {skipped} skipped" if skipped else word


def _details(names: Sequence[str], cases: Sequence[Case]) -> list[str]:
    rows: list[str] = []
    for name in dict.fromkeys((*names, *(case.test for case in cases))):
        mine = [case for case in cases if case.test == name]
        states = Counter(case.state for case in mine)
        told = ", ".join(f"{states[state]} {state}" for state in ("passed", "failed", "skipped") if states[state])
        units = [case for case in mine if case.unit]
        rows.append(f"- `{name}`: {told or 'not run'}{f'; {trials(units)}' if units else ''}")
    return rows or ["- no test carries it"]


def replay(case: Case, factor: int) -> str:
    """The command that plays a case again."""
    seed = f"SEED={case.seeds[0]} " if case.seeds else ""
    return f"{seed}SOAK={factor} .venv/bin/python -m pytest --timeout 5400 '{case.name}'"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s" if rest else "< 1 s"


def results_on(text: str) -> dict[str, str]:
    """Each fault on a page, and its result."""
    return dict(re.findall(r"^\| ([RIPTG]\d+) \| [^|]*\| [^|]*\| ([^|]*) \|", text, re.MULTILINE))
