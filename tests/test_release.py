"""What people install: both archives are built, and the wheel works in an empty environment without any dependency."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import lamina
from tests.test_docs import printed_by

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAME = f"lamina_context-{lamina.__version__}"
WHEEL, SDIST = f"{NAME}-py3-none-any.whl", f"{NAME}.tar.gz"


def run(*words: str | Path, at: Path) -> str:
    done = subprocess.run(words, cwd=at, capture_output=True, text=True, encoding="utf-8", timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both archives, built by the back end itself: no network, no environment of its own."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, at=ROOT)
    return folder


def shipped() -> set[str]:
    """Every file of the package in the working tree."""
    files = (path for path in (ROOT / "src").rglob("*") if path.is_file())
    return {path.relative_to(ROOT / "src").as_posix() for path in files if "__pycache__" not in path.parts}


def problems_of_wheel(names: set[str]) -> list[str]:
    """What is missing, and what does not belong there."""
    inside = {name for name in names if ".dist-info/" not in name}
    missing = [f"{name} is missing" for name in sorted(shipped() - inside)]
    return missing + [f"{name} does not belong there" for name in sorted(inside - shipped())]


def test_the_version_is_the_same_everywhere() -> None:
    assert PROJECT["version"] == lamina.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", lamina.__version__)
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(lamina.__version__)}\] - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE)


def test_the_wheel_holds_the_package_and_nothing_else(dist: Path) -> None:
    with zipfile.ZipFile(dist / WHEEL) as wheel:
        names = set(wheel.namelist())
        commands = wheel.read(f"{NAME}.dist-info/entry_points.txt")
        head = message_from_bytes(wheel.read(f"{NAME}.dist-info/METADATA"))
    assert problems_of_wheel(names) == []
    for name in ("py.typed", "data/identity.md", "data/instructions.md", "web/index.html", "web/style.css"):
        assert f"lamina/{name}" in names
    for kind in ("sqlite", "postgres"):
        assert any(re.fullmatch(rf"lamina/store/migrations/\d+_\w+\.{kind}\.sql", name) for name in names)
    assert not [need for need in head.get_all("Requires-Dist") or () if "extra ==" not in need], (
        "the core needs nothing"
    )
    assert head["License-Expression"] == "Apache-2.0"
    assert head["Name"] == "lamina-context", "`lamina` is somebody else's on the public index"
    assert b"lamina = lamina.cli:main" in commands, "what is imported and typed is `lamina`"
    assert f"{NAME}.dist-info/licenses/LICENSE" in names


def test_a_planted_gap_and_a_planted_guest_are_found() -> None:
    whole = shipped()
    assert problems_of_wheel(whole) == []
    assert problems_of_wheel(whole - {"lamina/py.typed"}) == ["lamina/py.typed is missing"]
    assert problems_of_wheel(whole | {"tests/conftest.py"}) == ["tests/conftest.py does not belong there"]


def test_the_source_archive_has_all_that_make_test_needs(dist: Path) -> None:
    with tarfile.open(dist / SDIST) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    for name in ("Makefile", "pyproject.toml", "scripts/setup.sh", "requirements/dev.txt", "tests/conftest.py"):
        assert name in names
    for folder in ("docs", "examples", "bench", "src/lamina/web"):
        assert any(name.startswith(f"{folder}/") for name in names), folder
    assert not [name for name in names if name.startswith((".venv", ".git/")) or "__pycache__" in name]


def test_the_wheel_alone_runs_the_quickstart_in_an_empty_environment(dist: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", "empty", at=tmp_path)
    python = tmp_path / "empty" / "bin" / "python"
    uv = shutil.which("uv", path=Path(sys.executable).parent) or shutil.which("uv")
    install = [uv, "pip", "install", "--offline"] if uv else [sys.executable, "-m", "pip"]
    install += ["--python", str(python)] + ([] if uv else ["install", "--no-index"])
    run(*install, "--no-deps", dist / WHEEL, at=tmp_path)
    where = run(python, "-Ic", "import lamina; print(lamina.__version__, lamina.__file__)", at=tmp_path)
    assert where.split()[0] == lamina.__version__
    assert str(tmp_path / "empty") in where
    examples = [
        (block.text, promised)
        for block, promised in printed_by((ROOT / "README.md").read_text(encoding="utf-8"))
        if block.lang == "python"
    ]
    for example, promised in examples[:2]:  # a session over a store, and a context without one
        assert run(python, "-Ic", example, at=tmp_path) == promised
    said = subprocess.run(
        [tmp_path / "empty" / "bin" / "lamina", "--version"], capture_output=True, text=True, timeout=60
    )
    assert (said.returncode, "Traceback" in said.stderr) == (1, False), "without the extra it says what to install"
    assert "pip install '.[app]'" in said.stderr
