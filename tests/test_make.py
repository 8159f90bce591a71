"""The make targets of the README run: each in a copy of the tree, with the environments that are there.

`make test` and `make check` are this suite itself, and CI calls them; what takes long or writes elsewhere is run in its
shortest form, and what only a person should start is at least something that make can do.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.test_docs import TARGETS

ROOT = Path(__file__).parent.parent
ENVIRONMENTS = (".venv", ".venv-bench", ".venv-proxy", ".venv-litellm")
AS_THEY_ARE = [
    word
    for stamp in (".venv/dev", ".venv/run", ".venv-bench/bench", ".venv-proxy/proxy", ".venv-litellm/litellm")
    for word in ("-o", f"{stamp}.stamp")
]
"""The environments are lent, not set up again: that would point them at the copy."""
LEFT_OUT = shutil.ignore_patterns(
    *ENVIRONMENTS, ".git", ".cache", ".*_cache", ".hypothesis", ".soak", "__pycache__", "dist"
)
RUN = {
    "help": ("make help", "show the targets"),
    "run": ("make run", ""),
    "fuzz": ("make fuzz N=200", "| lamina | 200 | 0 |"),
    "soak": ("make soak QUICK=1 ONLY=R16", "R16"),
    "dist": ("make dist", ""),
    "fix": ("make fix", ""),
    "walk": ("make walk", "files"),
    "bench": ("make bench ROW=trim", "lamina is"),  # patience as below: slow peers take two minutes
    "clean": ("make clean", ""),
}
"""How each is run here, and what it must print."""
LONG = {
    "test": "this suite", "check": "CI calls it", "requirements": "it runs a part of this suite again",
    "pins": "it asks the registry for the newest of everything",
}  # fmt: skip
"""Those that are only looked at, and why."""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The tree as a clone has it, so that nothing here is overwritten; the environments are only lent."""
    folder = tmp_path / "lamina"
    shutil.copytree(ROOT, folder, ignore=LEFT_OUT)
    for name in ENVIRONMENTS:
        if (ROOT / name).exists():
            (folder / name).symlink_to(ROOT / name)
    return folder


def make(line: str, folder: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTEST"))}
    environ["BENCH_PATIENCE"] = "0.3"
    command = [*line.split(), *AS_THEY_ARE]
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=580
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    return done.stdout + done.stderr


def test_every_target_is_run_here_or_has_a_reason_not_to_be() -> None:
    assert {*RUN, *LONG} == TARGETS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", RUN)
def test_the_target_runs(target: str, copy: Path) -> None:
    line, words = RUN[target]
    assert words in make(line, copy)


@pytest.mark.parametrize("target", LONG)
def test_the_target_is_something_make_can_do(target: str, copy: Path) -> None:
    assert make(f"make -n {target}", copy)


LISTS = sorted((ROOT / "requirements").glob("*.txt"))


def loose_lines(text: str) -> list[str]:
    """What a list asks for without an exact version and hashes, and lines that hold an address or an option."""
    lines = text.replace("\\\n", " ").splitlines()
    pinned = re.compile(r"[a-z0-9][a-z0-9._-]*==[^ ;]+( ; [^-]+?)?( +--hash=sha256:[0-9a-f]{64})+ *")
    return [line[:80] for line in lines if not pinned.fullmatch(line) or "://" in line]


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.name)
def test_every_requirement_is_pinned_with_its_hashes_and_no_list_holds_an_address(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert loose_lines(text) == []
    some = text.replace("\\\n", " ").splitlines()[0]
    for planted in (some.partition(" --hash")[0], f"--index-url https://pypi.example/simple\n{some}", "-e .",
                    some.replace("==", ">="), f"lamina @ https://files.example/x.whl {some}"):  # fmt: skip
        assert loose_lines(planted), planted


def test_set_up_installs_nothing_without_a_hash_but_lamina_itself() -> None:
    lines = [
        line for line in (ROOT / "scripts" / "setup.sh").read_text().splitlines() if re.search(r"\[@\]\}\" -", line)
    ]
    assert len(lines) == 3
    assert [line for line in lines if "--require-hashes" not in line] == ['"${install[@]}" --no-build-isolation -e .']
    names = {path.stem for path in LISTS}
    assert names >= {"uv", "build", "run", "dev", "deploy"}


def test_a_target_that_does_not_exist_is_noticed(copy: Path) -> None:
    with pytest.raises(AssertionError, match="coffee"):
        make("make coffee", copy)
