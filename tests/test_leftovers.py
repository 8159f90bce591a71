"""`tests/leftovers.py` itself: a run that leaves something outside the checkout fails, and says what."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.leftovers import look_around

ROOT = Path(__file__).parent.parent
QUICK = "tests/test_leftovers.py::test_the_home_of_a_run_is_its_own"
PLUGIN = """
import os, pathlib
def pytest_runtest_teardown():
    for path in os.environ["PLANTED"].split(":"):
        pathlib.Path(os.path.expandvars(path)).write_text("left")
"""


def run(folder: Path, *planted: str) -> "subprocess.CompletedProcess[str]":
    """A run of one test, in a process whose home is `folder`; a plug-in leaves files, which is the planted bug."""
    home = folder / "home"
    home.mkdir()
    (folder / "leaving.py").write_text(PLUGIN, encoding="utf-8")
    names = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "XDG_"))}
    environ = {**names, "HOME": str(home), "PYTHONPATH": str(folder), "PLANTED": ":".join(planted)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "leaving", QUICK]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=100, check=False)


def test_the_home_of_a_run_is_its_own() -> None:
    homes = {Path(os.environ[name]) for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")}
    assert all(home.is_relative_to(os.environ["TMPDIR"]) for home in homes)


@pytest.mark.planted("a file in the home folder, and one in the folder for temporary files")
def test_a_planted_leftover_makes_the_run_fail(tmp_path: Path) -> None:
    done = run(tmp_path, f"{tmp_path}/home/.forgotten", "$TMPDIR/tmpabcdef")
    assert done.returncode == 1
    left = done.stdout.partition("left files outside the checkout")[2]
    assert f"{tmp_path}/home/.forgotten" in left
    assert re.search(r"/lamina-tests-\w+/tmpabcdef", left)
    assert not re.search(r"1 passed.*failed", done.stdout), "the test itself passed"


@pytest.mark.planted("a device that became a file")
def test_a_device_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    stand_in = tmp_path / "null"
    stand_in.symlink_to("/dev/null")
    before = look_around([], [str(stand_in), "/dev/null"])
    stand_in.unlink()
    stand_in.write_text("")
    after = look_around([], [str(stand_in), "/dev/null"])
    assert dict(before.devices)["/dev/null"].startswith("crw-rw-rw- 1,3")
    assert [path for path, kind in after.devices if dict(before.devices)[path] != kind] == [str(stand_in)]


def points_git_at_a_device(text: str) -> bool:
    """As root, git replaces the file that this variable names by one of its own."""
    return bool(re.search(r"GIT_CONFIG_(GLOBAL|SYSTEM)\W{1,6}/dev/null(?!/)", text))


def test_nothing_of_ours_points_git_at_a_device() -> None:
    files = [path for folder in ("tests", "scripts", "bench", "deploy") for path in (ROOT / folder).rglob("*")]
    texts = {
        path: path.read_text("utf-8", "replace") for path in files if path.suffix in (".py", ".sh", ".yaml", ".md")
    }
    assert [path.name for path, text in texts.items() if points_git_at_a_device(text)] == []
    assert points_git_at_a_device('"GIT_CONFIG_GLOBAL": "/dev/' + 'null"')
    assert not points_git_at_a_device("GIT_CONFIG_GLOBAL=/dev/null/none")
