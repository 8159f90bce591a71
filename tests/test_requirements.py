"""Every numbered requirement has a test that carries its number, and the table in the docs names tests that exist."""

from collections import Counter
from pathlib import Path

from scripts.cases import verdict
from scripts.requirements import (
    PAGE,
    REQUIREMENTS,
    ROOT,
    carried_by,
    carriers_in,
    named_on,
    page,
    results_in,
    results_on,
)  # fmt: skip

TESTS = carriers_in(ROOT / "tests")


def without_a_test(tests: dict[str, list[str]]) -> list[str]:
    return [number for number in REQUIREMENTS if not tests[number]]


def strangers_on(text: str, tests: dict[str, list[str]]) -> list[str]:
    there = {name for carriers in tests.values() for name in carriers}
    return [name for name in named_on(text) if name not in there]


def not_passed_on(text: str) -> list[str]:
    results = results_on(text)
    return [number for number in REQUIREMENTS if results.get(number) != "passed"]


def test_the_numbers_are_those_of_the_requirements() -> None:
    last = {"P": 6, "M": 9, "S": 9, "I": 13, "C": 12}
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
    assert carried_by("test_P1_S1_all_layers") == ["P1"], "S1 is a scenario of that seed"
    for name in ("test_fault_P4_hidden", "test_R10_resume", "test_M10_the_job", "test_words_of_C1_here", "test_P1"):
        assert carried_by(name) == [], name


def test_a_run_is_read_case_by_case(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    case = '<testcase classname="tests.spec.test_seed_001" name="test_M4_{}">{}</testcase>'
    cases = [("a[one]", ""), ("a[two]", "<failure/>"), ("b", "<skipped/>"), ("c", ""), ("d", "<error/>")]
    junit.write_text(f"<testsuites><testsuite>{''.join(case.format(*c) for c in cases)}</testsuite></testsuites>")
    results = results_in(junit)
    assert results["tests/spec/test_seed_001.py::test_M4_a"] == Counter(passed=1, failed=1)
    words = {name[-1]: verdict([count]) for name, count in results.items()}
    assert words == {"a": "**failed**", "b": "**not run**", "c": "passed", "d": "**failed**"}
    assert verdict([]) == "**not run**"


def test_a_planted_gap_is_found() -> None:
    everything = {name: Counter(passed=1) for carriers in TESTS.values() for name in carriers}
    assert not_passed_on(page(TESTS, everything)) == []
    assert without_a_test({**TESTS, "M4": []}) == ["M4"]
    assert not_passed_on(page({**TESTS, "M4": []}, everything)) == ["M4"]
    gone = TESTS["C11"][0]
    assert not_passed_on(page(TESTS, {**everything, gone: Counter(failed=1)})) == ["C11"]
    assert strangers_on(page(TESTS, everything), {**TESTS, "C11": []}) == [gone]
