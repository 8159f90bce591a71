"""Every numbered requirement has a test that carries its number, and the table in the docs names tests that exist."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from scripts.cases import cases_in, verdict
from scripts.requirements import (
    CHANNELS,
    PAGE,
    REQUIREMENTS,
    ROOT,
    Result,
    carried_by,
    carriers_in,
    named_on,
    page,
    results_in,
    results_on,
)  # fmt: skip

TESTS = carriers_in(ROOT / "tests")
FOUR = """
import pytest
from lamina import App
from tests.cli.process import Lamina
from tests.engine.chats import settings
from tests.gateway.serving import running

@pytest.fixture(scope="module")
def started(tmp_path_factory):
    return Lamina(tmp_path_factory.mktemp("cli")).run("--version")

async def test_app(tmp_path):
    async with App.open(tmp_path / "store.db", settings=settings()):
        pass

def test_process(started):
    assert started.returncode == 0

async def test_gateway(tmp_path):
    async with running(tmp_path / "store.db"):
        pass

def test_unit():
    pass
"""


def without_a_test(tests: dict[str, list[str]]) -> list[str]:
    return [number for number in REQUIREMENTS if not tests[number]]


def strangers_on(text: str, tests: dict[str, list[str]]) -> list[str]:
    there = {name for carriers in tests.values() for name in carriers}
    return [name for name in named_on(text) if name not in there]


def not_passed_on(text: str) -> list[str]:
    results = results_on(text)
    return [number for number in REQUIREMENTS if results.get(number) != "passed"]


def test_the_numbers_are_those_of_the_requirements() -> None:
    last = {"P": 6, "M": 9, "S": 9, "I": 15, "C": 12}
    assert list(REQUIREMENTS) == [f"{letter}{n}" for letter, end in last.items() for n in range(1, end + 1)]


def test_every_requirement_has_a_test() -> None:
    assert without_a_test(TESTS) == []


def test_the_table_names_tests_that_exist_and_every_requirement_passed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert strangers_on(text, TESTS) == []
    assert not_passed_on(text) == []


def test_tests_of_faults_and_numbers_in_the_middle_are_not_counted() -> None:
    counted = {name for carriers in TESTS.values() for name in carriers}
    assert not [name for name in counted if "/faults/" in name or "_faults.py" in name]
    assert carried_by("test_I1_and_I13_one_place") == ["I1", "I13"]
    assert carried_by("test_I1_and_I2_and_I10_words_and_M4_more") == ["I1", "I2", "I10"]
    assert carried_by("test_P1_S1_all_layers") == ["P1"], "S1 is a scenario of that seed"
    for name in ("test_fault_P4_hidden", "test_R10_resume", "test_M10_the_job", "test_words_of_C1_here", "test_P1"):
        assert carried_by(name) == [], name


def test_a_run_is_read_case_by_case(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    case = '<testcase classname="tests.spec.test_seed_001" name="test_M4_{}">{}</testcase>'
    cases = [("a[one]", ""), ("a[two]", "<failure/>"), ("b", "<skipped/>"), ("c", ""), ("d", "<error/>")]
    junit.write_text(f"<testsuites><testsuite>{''.join(case.format(*c) for c in cases)}</testsuite></testsuites>")
    results = results_in(junit)
    assert results["tests/spec/test_seed_001.py::test_M4_a"].cases == Counter(passed=1, failed=1)
    words = {name[-1]: verdict([result.cases]) for name, result in results.items()}
    assert words == {"a": "**failed**", "b": "**not run**", "c": "passed", "d": "**failed**"}
    assert verdict([]) == "**not run**"


def test_entry_points_are_those_that_passed_cases_reached(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    told = '<properties><property name="entry_points" value="{}"/></properties>{}'
    bodies = [("a[one]", told.format("App HTTP", "")), ("a[two]", told.format("Telegram", "<failure/>")), ("b", "")]
    cases = "".join(f'<testcase classname="tests.x" name="test_C1_{name}">{body}</testcase>' for name, body in bodies)
    junit.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert [result.entry_points for result in results_in(junit).values()] == [{"App", "HTTP"}, set()]


def everything_passed(*entry_points: str) -> dict[str, Result]:
    names = {name for carriers in TESTS.values() for name in carriers}
    return {name: Result(Counter(passed=1), frozenset(entry_points)) for name in names}


@pytest.mark.planted("a requirement without a test, with one that fails, or with a test that is gone")
def test_a_planted_gap_is_found() -> None:
    everything = everything_passed("process", "Telegram")
    assert not_passed_on(page(TESTS, everything)) == []
    assert without_a_test({**TESTS, "M4": []}) == ["M4"]
    assert not_passed_on(page({**TESTS, "M4": []}, everything)) == ["M4"]
    gone = TESTS["C11"][0]
    assert not_passed_on(page(TESTS, {**everything, gone: Result(Counter(failed=1))})) == ["C11"]
    assert strangers_on(page(TESTS, everything), {**TESTS, "C11": TESTS["C11"][1:]}) == [gone]


@pytest.mark.planted("requirements that unit tests alone cover, or only one of the channels that the seed names")
def test_a_requirement_that_no_entry_point_shows_has_not_passed() -> None:
    assert not_passed_on(page(TESTS, everything_passed())) == list(REQUIREMENTS)
    by_process = page(TESTS, everything_passed("process"))
    assert not_passed_on(by_process) == [number for number in REQUIREMENTS if number[0] in CHANNELS]
    assert results_on(by_process)["I1"] == "**not through Telegram**"


def test_entry_points_are_noted_where_they_are_reached(tmp_path: Path) -> None:
    """A run of four tests: one of each kind, and one that reaches nothing."""
    (tmp_path / "test_four.py").write_text(FOUR, encoding="utf-8")
    junit = tmp_path / "junit.xml"
    run = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        f"--junitxml={junit}",
    ]
    done = subprocess.run([*run, "--rootdir", str(tmp_path), str(tmp_path)], cwd=ROOT, check=False, capture_output=True)
    assert done.returncode == 0, done.stdout.decode()
    reached = {case.test.rpartition("_")[2]: case.entry_points for case in cases_in(junit)}
    assert reached == {"app": ("App",), "process": ("process",), "gateway": ("HTTP",), "unit": ()}
