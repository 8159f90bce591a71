"""`make soak`: every fault has a row, a bug that is planted and a test; what is finished is kept, and nothing else."""

import ast
import io
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from scripts.cases import Case, functions_in
from scripts.reliability import (
    FAULTS,
    Facts,
    carried_by,
    carriers_in,
    cases_of,
    page,
    planted_in,
    replay,
    results_on,
    trials,
)
from scripts.soak import PAGE, ROOT, Family, Kept, families_of, fingerprint, main

FACTS = Facts("2026-11-15 12:00 UTC", "2 cores", "abc", "quick form", "make soak QUICK=1", 61.0, 1)
NUMBERS = {
    "R": [*range(1, 8), *range(9, 17), 20, 23, 24],
    "I": [1, 2, 3, 4],
    "P": [1, 3, 4, 6, 7, 9, 11, 12],
    "T": [1, 3, 4, 5, 7, 9, 10],
    "G": [1, 2, 4, 5, 6, 7],
}
"""The list of faults and threats, which is not part of this repository."""


# The table


def test_every_fault_of_the_list_has_a_row() -> None:
    assert list(FAULTS) == [f"{letter}{n}" for letter, numbers in NUMBERS.items() for n in numbers]
    assert list(results_on(page({fault: [] for fault in FAULTS}, [], FACTS))) == list(FAULTS)


def test_every_fault_has_a_test_and_a_planted_bug() -> None:
    assert [fault for fault, tests in carriers_in(ROOT / "tests").items() if not tests] == []
    assert [fault for fault, tests in planted_in(ROOT / "tests").items() if not tests] == []


def test_a_test_that_says_planted_in_its_name_says_which_bug() -> None:
    silent = [
        f"{where}::{node.name}"
        for where, node in functions_in(ROOT / "tests")
        if "planted" in node.name and carried_by(where, node.name)
        if not any("mark.planted" in ast.unparse(each) for each in node.decorator_list)
    ]
    assert silent == []


def test_the_page_in_the_docs_names_every_fault_and_tests_that_exist() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert list(results_on(text)) == list(FAULTS)
    there = {name for names in carriers_in(ROOT / "tests").values() for name in names}
    assert [name for name in re.findall(r"^- `(tests/\S+::\w+)`", text, re.MULTILINE) if name not in there] == []


@pytest.mark.parametrize(
    ("where", "name", "ids"),
    [
        ("tests/faults/test_engine.py", "test_R1_R20_nothing", ["R1", "R20"]),
        ("tests/faults/test_tools.py", "test_P6_no_path", ["P6"]),
        ("tests/providers/test_faults.py", "test_R11_a_fault", ["R11"]),
        ("tests/gateway/test_v1.py", "test_G5_a_caller", ["G5"]),
        ("tests/text/test_unicode.py", "test_fault_P4_text", ["P4"]),
        ("tests/spec/test_seed_000.py", "test_P1_six_layers", []),
        ("tests/spec/test_seed_003.py", "test_I1_and_I13_one_place", []),
        ("tests/faults/test_engine.py", "test_R8_nothing", []),
        ("tests/faults/test_engine.py", "test_several_R1_here", []),
    ],
)
def test_a_fault_is_carried_by_the_beginning_of_a_name(where: str, name: str, ids: list[str]) -> None:
    assert carried_by(Path(where), name) == ids


# The page

KILLS = Case("tests/faults/test_a.py::test_R1_kills", "sqlite", seconds=65, trials=640, wanted=1_000, unit="kills")
BUG = Case("tests/faults/test_a.py::test_R1_a_planted_bug", planted=("text that is lost",))
TESTS = {"R1": [KILLS.test, BUG.test], "R9": [], "R20": []}


def row(fault: str, *cases: Case) -> list[str]:
    text = page(TESTS, cases, FACTS)
    line = next(line for line in text.split("\n") if line.startswith(f"| {fault} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_says_what_was_tried_and_how_much_was_wanted() -> None:
    expected = ["640 of 1,000 kills", "passed", "text that is lost", "1 min 5 s", "`tests/faults/test_a.py`"]
    assert row("R1", KILLS, BUG)[2:] == expected
    assert trials([replace(KILLS, trials=1_000), Case("x"), Case("y")]) == "1,000 kills, 2 cases"
    assert trials([replace(KILLS, trials=1, wanted=1, unit="keys sent ten times")]) == "1 key sent ten times"
    assert page(TESTS, [KILLS, BUG], FACTS) == page(TESTS, [KILLS, BUG], FACTS)
    assert "| form | quick form |" in page(TESTS, [], FACTS)


def test_holes_are_shown() -> None:
    assert row("R9")[2:5] == ["none", "**not run**", "**none**"]
    assert row("R1", KILLS)[3:5] == ["**not run**", "**none**"], "a test that did not run did not pass"
    assert row("R1", KILLS, replace(BUG, state="failed"))[3:5] == ["**failed**", "**none**"], "a bug that was not found"
    assert row("R1", replace(KILLS, state="skipped"), BUG)[2:4] == ["none", "passed, 1 skipped"]


def test_cases_over_postgres_count_for_their_own_fault_and_for_R20() -> None:
    again = replace(KILLS, case="postgres", trials=20, wanted=20)
    assert row("R20", KILLS, again)[2] == "20 kills"
    assert row("R1", KILLS, again)[2] == "660 of 1,020 kills"
    both = {"R20": [KILLS.test]}
    assert cases_of("R20", both, [KILLS, again]) == [again], "what ran over SQLite does not count for it"


def test_a_failure_is_shown_with_its_seed_and_how_to_play_it_again() -> None:
    failed = replace(KILLS, state="failed", seeds=("42",))
    command = f"SEED=42 SOAK=1 .venv/bin/python -m pytest --timeout 5400 '{KILLS.name}'"
    assert replay(failed, 1) == command
    assert f"- `{command}`" in page(TESTS, [failed, BUG], FACTS)


# What is kept


def test_a_test_of_two_faults_is_run_once_and_short_families_come_first() -> None:
    found = families_of({"R1": ["a", "b"], "R20": ["b", "c"], "R3": ["d"], "R9": []})
    assert found == [Family("R3", ("d",), 1), Family("R20", ("c",), 6), Family("R1", ("a", "b"), 10)]
    assert families_of({"R1": ["a", "b"], "R20": ["b", "c"]}, ["R20"]) == [Family("R20", ("b", "c"), 6)]


def test_what_was_finished_with_other_files_does_not_count(tmp_path: Path) -> None:
    for folder in ("src", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "src" / "a.py").write_text("a = 1")
    key = fingerprint(tmp_path, 1)
    kept = Kept(tmp_path / "state.json", key)
    kept.add([KILLS, BUG], 3.0)
    same = Kept.read(kept.path, fingerprint(tmp_path, 1))
    assert (same.cases, same.seconds, same.stale) == ([KILLS, BUG], 3.0, False)
    assert same.has(Family("R1", (KILLS.test, BUG.test)))
    assert not same.has(Family("R9", ("tests/x.py::test_R9_x",)))
    assert fingerprint(tmp_path, 10) != key
    (tmp_path / "src" / "a.py").write_text("a = 2")
    other = Kept.read(kept.path, fingerprint(tmp_path, 1))
    assert (other.cases, other.stale) == ([], True)
    for damaged in ("", "{", "[]", '{"key": "k", "seconds": 1, "cases": [{"x": 1}]}'):
        kept.path.write_text(damaged)
        assert Kept.read(kept.path, key).stale


# The whole of it, over two small families

SMALL = """
import os, time
import pytest

def test_R3_short(record_property):
    record_property("trials", 7); record_property("wanted", 7); record_property("unit", "syncs")
    note("short")

@pytest.mark.planted("a sync that is left out")
def test_R3_planted():
    pass

def test_R9_long(record_property):
    record_property("seed", 99)
    note("long")
    while os.environ["SOAK"] != "2" and not os.path.exists("go"):
        time.sleep(0.01)
    assert not os.path.exists("fail")

def note(text):
    with open("notes", "a") as file:
        file.write(text + "\\n")
"""
CONF = """
def pytest_configure(config):
    config.addinivalue_line("markers", "planted(bug)")

def pytest_collection_modifyitems(items):
    for item in items:
        item.user_properties += [("planted", mark.args[0]) for mark in item.iter_markers("planted")]
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    folder = tmp_path / "tests" / "faults"
    folder.mkdir(parents=True)
    (tmp_path / "docs" / "evidence").mkdir(parents=True)
    (folder / "test_small.py").write_text(SMALL)
    (tmp_path / "tests" / "conftest.py").write_text(CONF)
    return tmp_path


def notes(folder: Path) -> list[str]:
    path = folder / "notes"
    return path.read_text().split() if path.exists() else []


def soak(folder: Path, *options: str) -> tuple[int, str]:
    out = io.StringIO()
    code = main(["--root", str(folder), *options], out)
    return code, out.getvalue()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_ended_goes_on_with_what_is_left(small: Path, how: signal.Signals) -> None:
    begun = subprocess.Popen(
        [sys.executable, "-m", "scripts.soak", "--root", str(small), "--times", "1"], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert begun.stdout is not None
    assert begun.stdout.readline().startswith("R3   passed: 7 syncs in ")
    while "long" not in notes(small):
        time.sleep(0.01)
    begun.send_signal(how)
    rest, _ = begun.communicate(timeout=60)
    assert "Traceback" not in rest
    assert begun.returncode == (-9 if how == signal.SIGKILL else 130)
    assert ("continues with what is left" in rest) == (how == signal.SIGINT)
    (small / "go").touch()
    code, said = soak(small, "--times", "1")
    assert "continuing: 2 cases are finished" in said
    assert "R3 " not in said, "it is not run again"
    assert notes(small).count("short") == 1
    text = (small / PAGE).read_text(encoding="utf-8")
    assert results_on(text)["R3"] == results_on(text)["R9"] == "passed"
    assert (
        "| R3 | nothing counts as saved before it is on the disk | 7 syncs | passed | a sync that is left out |" in text
    )
    assert code == 1, "the other faults have no test here, and that is said"


def test_a_family_that_fails_is_named_with_its_seed_and_kept_until_it_is_run_anew(small: Path) -> None:
    for name in ("go", "fail"):
        (small / name).touch()
    code, said = soak(small, "--times", "1", "--only", "R9,R3")
    assert code == 1
    assert "R9   failed: 1 case in " in said
    assert "SEED=99 SOAK=1 .venv/bin/python -m pytest --timeout 5400 'tests/faults/test_small.py::test_R9_long'" in said
    assert "assert not os.path.exists" in (small / ".soak" / "R9.log").read_text()
    (small / "fail").unlink()
    assert soak(small, "--times", "1", "--only", "R9,R3")[0] == 1, "a failure does not go away by itself"
    assert soak(small, "--times", "1", "--only", "R9,R3", "--fresh")[0] == 0
    assert notes(small).count("long") == 2


def test_a_test_that_ends_its_process_has_failed(small: Path) -> None:
    (small / "tests" / "faults" / "test_small.py").write_text("import os\ndef test_R3_ends(): os._exit(3)\n")
    code, said = soak(small, "--times", "2", "--only", "R3")
    assert code == 1
    assert "R3   failed" in said


def test_an_unknown_fault_and_a_length_of_nothing_are_refused(small: Path) -> None:
    assert soak(small, "--only", "R8")[0] == 2
    assert soak(small, "--times", "0")[0] == 2
    assert not (small / ".soak").exists()
    assert os.listdir(small / "docs" / "evidence") == []
