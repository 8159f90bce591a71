"""Tests as their files and the report of a run show them: which there are, and what became of each case.

What a number in a test's name means is for those who ask: `requirements.py` and `reliability.py`.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a test in a run, and what it told: trials, the planted bug that it found, its seeds."""

    test: str
    case: str = ""
    state: str = "passed"
    seconds: float = 0.0
    trials: int = 1
    wanted: int = 1
    unit: str = ""
    planted: tuple[str, ...] = ()
    seeds: tuple[str, ...] = ()
    entry_points: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.test}[{self.case}]" if self.case else self.test


def functions_in(folder: Path) -> Iterator[tuple[Path, Function]]:
    """Each test below the folder, with its file as seen from the folder's parent."""
    for path in sorted(folder.rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, Function):
                yield path.relative_to(folder.parent), node


def cases_in(junit: Path) -> list[Case]:
    """What a run says in its report."""
    return [_case(node) for node in ElementTree.parse(junit).iter("testcase")]


def _case(node: ElementTree.Element) -> Case:
    outcome = {child.tag for child in node} & {"failure", "error", "skipped"}
    name, _, case = node.get("name", "").partition("[")
    told = [(each.get("name", ""), each.get("value", "")) for each in node.iter("property")]
    one = dict(told)
    return Case(
        test=f"{node.get('classname', '').replace('.', '/')}.py::{name}",
        case=case.removesuffix("]"),
        state="failed" if outcome & {"failure", "error"} else "skipped" if outcome else "passed",
        seconds=float(node.get("time", "0")),
        trials=int(one.get("trials", "1")),
        wanted=int(one.get("wanted", "1")),
        unit=one.get("unit", ""),
        planted=tuple(value for name, value in told if name == "planted"),
        seeds=tuple(value for name, value in told if name == "seed"),
        entry_points=tuple(one.get("entry_points", "").split()),
    )


def counted(cases: Iterable[Case]) -> dict[str, Counter[str]]:
    """How many cases of each test passed, failed and were skipped."""
    results: dict[str, Counter[str]] = {}
    for case in cases:
        results.setdefault(case.test, Counter())[case.state] += 1
    return results


def verdict(counts: Iterable[Counter[str]]) -> str:
    """One word for several tests: a single failure fails them all, and what never ran did not pass."""
    counts = list(counts)
    if any(count["failed"] for count in counts):
        return "**failed**"
    return "passed" if counts and all(count["passed"] for count in counts) else "**not run**"
