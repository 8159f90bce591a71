"""The five changes of docs/design/extending.md are put on a copy of the tree and tested there: the page stays true."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.extending import BLOCK, DIFFS, PAGE, ROOT, page_with_diffs

NAMES = ("layer", "provider", "tool", "column", "command")
CATALOGUES = ("src/lamina/data/messages.en.json", "src/lamina/data/messages.zh.json")
"""What people read is written here, beside the code, in each language."""


def files_in(diff: str) -> list[str]:
    return re.findall(r"^\+\+\+ b/(\S+)$", diff, re.MULTILINE)


def code_files_in(diff: str) -> list[str]:
    return [name for name in files_in(diff) if not name.startswith(("tests/", "docs/")) and name not in CATALOGUES]


def read(name: str) -> str:
    return (DIFFS / f"{name}.diff").read_text(encoding="utf-8")


def run(*words: str | Path, at: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": f"{at / 'src'}", "GIT_CEILING_DIRECTORIES": str(at.parent)}
    return subprocess.run(words, cwd=at, env=environ, capture_output=True, text=True, encoding="utf-8", timeout=110)


def test_the_page_shows_each_diff_as_it_is() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert tuple(BLOCK.findall(text)) == NAMES
    assert sorted(path.stem for path in DIFFS.iterdir()) == sorted(NAMES)
    assert page_with_diffs(text) == text, "python scripts/extending.py writes it again"


@pytest.mark.parametrize("name", NAMES)
def test_each_change_is_at_most_two_code_files_its_texts_in_both_languages_and_a_test(name: str) -> None:
    files = files_in(read(name))
    assert 1 <= len(code_files_in(read(name))) <= 2
    assert [file for file in files if file in CATALOGUES] in ([], list(CATALOGUES))
    assert [file for file in files if file.startswith("tests/")]


def test_all_of_them_apply_to_this_tree_and_their_tests_pass(tmp_path: Path) -> None:
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in NAMES:
        applied = run("git", "apply", DIFFS / f"{name}.diff", at=tmp_path)
        assert applied.returncode == 0, f"{name}: {applied.stderr}"
    changed = [file for name in NAMES for file in files_in(read(name))]
    tests = [file for file in changed if file.startswith("tests/")]
    ruff = run(sys.executable, "-m", "ruff", "check", *(f for f in changed if f.endswith(".py")), at=tmp_path)
    assert ruff.returncode == 0, ruff.stdout
    tested = run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "not postgres", *tests, at=tmp_path)
    assert tested.returncode == 0, tested.stdout
    where = run(sys.executable, "-c", "import lamina; print(lamina.__file__)", at=tmp_path).stdout
    assert where.startswith(str(tmp_path)), "the copy was tested, and not the tree"
