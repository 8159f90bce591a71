"""What the documents say is run: Python blocks, `lamina` lines, printed output, links, names and make targets.

Every check is a function that returns the problems it found; at the end each of them must find a planted one.
"""

import ast
import io
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from unicodedata import east_asian_width

import pytest

import lamina
from lamina import errors, types
from lamina.settings import load_settings
from tests.cli.forks import shell_function
from tests.gateway.processes import gateway

ROOT = Path(__file__).parent.parent
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
GENERATED = ROOT / "docs" / "evidence" / "benchmarks.md"  # written by `make bench`: it has figures, not examples
WRITTEN = [*READMES, *sorted(path for path in (ROOT / "docs").rglob("*.md") if path != GENERATED)]
LINKED = [*WRITTEN, GENERATED, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]

SUBMODULES = {
    f"lamina.{name}": import_module(f"lamina.{name}")
    for name in ("app.session", "errors", "events", "providers.scripted", "records", "tools", "types")
}
"""What docs/guide/library.md calls stable."""
PUBLIC = {*lamina.__all__, "__all__", "__version__", "adapters", *(name.split(".")[1] for name in SUBMODULES)}
FILES = {"toml", "db"}  # `lamina.toml` and `lamina.db` are files
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])
ASSIGNED = re.compile(r"([A-Z]+)=\$\(lamina [^)]+\)")
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*lamina ")
PATIENT = {"LAMINA_MEMORY_DEADLINE": "60000"}
"""What the documents print does not depend on how busy the machine is."""
SHELL = 'set -o pipefail; python3() { "$PYTHON" "$@"; }; '


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced code block, and how much else stands between it and the block before."""

    lang: str
    text: str
    line: int
    prose_before: bool


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    inside: list[str] | None = None
    lang, begin, prose = "", 0, True
    for number, line in enumerate(text.split("\n"), 1):
        if inside is None and line.startswith("```"):
            lang, begin, inside = line[3:].strip(), number + 1, []
        elif inside is not None and line == "```":
            found.append(Block(lang, "".join(f"{row}\n" for row in inside), begin, prose))
            inside, prose = None, False
        elif inside is not None:
            inside.append(line)
        elif line.strip():
            prose = True
    assert inside is None, f"the block that opens before line {begin} is not closed"
    return found


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def printed_by(text: str) -> Iterator[tuple[Block, str | None]]:
    """Each block, and the output that the `text` block right after it promises."""
    found = blocks(text)
    for number, block in enumerate(found):
        after = found[number + 1] if number + 1 < len(found) else None
        promised = after.text if after and after.lang == "text" and not after.prose_before else None
        yield block, promised


def difference(promised: str | None, printed: str, line: int) -> list[str]:
    if promised is None or promised == printed:
        return []
    return [f"line {line}: the document shows\n{promised}\nand the block prints\n{printed}"]


def python_problems(text: str, name: str) -> list[str]:
    """Run the Python blocks of one document, in order, in one namespace."""
    namespace: dict[str, Any] = {"__name__": name}
    problems: list[str] = []
    for block, promised in printed_by(text):
        if block.lang != "python":
            continue
        output = io.StringIO()
        code = compile("\n" * (block.line - 1) + block.text, name, "exec")  # so that a traceback shows the line
        before = dict(os.environ)
        os.environ.update(PATIENT)
        try:
            with redirect_stdout(output):
                exec(code, namespace)
        finally:
            os.environ.clear()
            os.environ.update(before)
        problems += difference(promised, output.getvalue(), block.line)
    return problems


def commands(block: Block) -> list[str]:
    """The lines of a shell block, continued lines joined, comments left out."""
    lines = re.sub(r"\\\n\s*", "", block.text).split("\n")
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def shell_problems(text: str, folder: Path) -> list[str]:
    """Run the `lamina` lines for real; of `make` and `pip` lines check what they name."""
    problems: list[str] = []
    shell = SHELL + shell_function()
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("LAMINA_", "LC_"))}
    environ |= {"LANG": "C.UTF-8", "COLUMNS": "100", "PYTHON": sys.executable, **PATIENT}
    environ |= {"XDG_DATA_HOME": f"{folder}/data", "XDG_STATE_HOME": f"{folder}/state"}
    for block, promised in printed_by(text):
        if block.lang != "sh":
            continue
        printed = ""
        for line in commands(block):
            if line.startswith("curl "):
                problems += served(line, folder, environ, block.line)
            elif line.startswith("lamina serve"):
                continue  # it serves the `curl` lines
            elif found := ASSIGNED.match(line):
                run = subprocess.run(
                    ["bash", "-c", f'{shell}set -e; {line}\nprintf %s "${found[1]}"'], cwd=folder, env=environ,
                    capture_output=True, stdin=subprocess.DEVNULL, text=True, encoding="utf-8", timeout=60,
                )  # fmt: skip
                environ[found[1]] = run.stdout  # the lines after it may use it
                if run.returncode or not run.stdout:
                    problems.append(f"line {block.line}: {line!r} ends with {run.returncode}: {run.stderr}")
            elif COMMAND.match(line):
                run = subprocess.run(
                    ["bash", "-c", shell + line], cwd=folder, env=environ, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, encoding="utf-8", timeout=60,
                )  # fmt: skip
                printed += run.stdout
                if run.returncode:
                    problems.append(f"line {block.line}: {line!r} ends with {run.returncode}: {run.stdout}")
            elif line.startswith("make "):
                problems += [f"{line!r}: no make target {word!r}" for word in unknown_targets(line)]
            elif line.startswith("pip install "):
                extras = re.findall(r"\[([a-z,]+)\]", line)
                unknown = {extra for group in extras for extra in group.split(",")} - EXTRAS
                problems += [f"{line!r}: no extra {extra!r}" for extra in sorted(unknown)]
            else:
                problems.append(f"line {block.line}: a shell line that no test runs: {line!r}")
        problems += difference(promised, printed, block.line)
    return problems


def served(line: str, folder: Path, environ: dict[str, str], number: int) -> list[str]:
    """A `curl` line against a gateway of its own, on a free port, with a script for a model. The key is the one that
    the page made, or the gateway's own."""
    (folder / "answers.json").write_text('[[{"text": "Hello."}]]', encoding="utf-8")
    environ = {**environ, "LAMINA_PROVIDER": "scripted", "LAMINA_SCRIPT": str(folder / "answers.json")}
    with gateway(folder, environ) as site:
        while not (token := re.findall(r"token=(\S+)", site.log.read_text(encoding="utf-8"))):
            assert site.process.poll() is None, site.log.read_text(encoding="utf-8")
            time.sleep(0.05)
        line = line.replace("http://127.0.0.1:8765", site.url)
        done = subprocess.run(
            ["bash", "-c", line], env={"KEY": token[0], **environ}, capture_output=True, text=True, timeout=60
        )
    if done.returncode or '"error"' in done.stdout or not done.stdout:
        return [f"line {number}: {line!r} ends with {done.returncode}: {done.stdout}{done.stderr}"]
    return []


def unknown_targets(text: str) -> list[str]:
    """What stands behind `make` at the start of a line or of inline code."""
    return [word for word in re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE) if word not in TARGETS]


def stray_outputs(text: str) -> list[str]:
    """Output that no block before it could have printed would never be compared."""
    found = blocks(text)
    return [
        f"line {block.line}: a text block that does not follow a python or sh block"
        for number, block in enumerate(found)
        if block.lang == "text"
        and (block.prose_before or number == 0 or found[number - 1].lang not in ("python", "sh"))
    ]


def broken_links(text: str, folder: Path) -> list[str]:
    """Links within the repository to files that are not there, and to headings that their page does not have."""
    text_alone = without_blocks(text)
    targets = re.findall(r"\]\(([^)\s]+)\)", text_alone)
    defined = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", text_alone, re.MULTILINE))
    used = re.findall(r"(?<!!)\[([\w-]+)\](?![\[(:\w])", text_alone) if defined else []
    targets += defined.values()
    problems = [f"there is no [{name}]: below" for name in used if name not in defined]
    for target in targets:
        name, _, heading = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        if name and not (folder / name).exists():
            problems.append(f"there is no {name}")
        elif heading and heading not in anchors(read(folder / name) if name else text):
            problems.append(f"there is no heading for #{heading} in {name or 'this page'}")
    return problems


def anchors(text: str) -> set[str]:
    """The names by which GitHub links to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def figures_that_no_run_measured(text: str, report: str) -> list[str]:
    """Figures in what the table of a README says of the benchmarks that do not stand in their report."""
    quoted = re.findall(r"\[([^\]]*\d[^\]]*)\]\(docs/evidence/benchmarks\.md#", text)
    figures = [figure for words in quoted for figure in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", words)]
    return [figure for figure in figures if not re.search(rf"(?<![\w.,]){re.escape(figure)}(?![\d])", report)]


def unknown_names(text: str) -> list[str]:
    """Names that a document uses and a reader could not import."""
    problems = [
        f"lamina.{name}" for name in re.findall(r"\blamina\.([A-Za-z_]\w*)", text) if name not in PUBLIC | FILES
    ]
    for inline in re.findall(r"`from lamina import ([\w, ]+)`", text):
        problems += [name for name in re.findall(r"\w+", inline) if name not in PUBLIC]
    for owner, member in re.findall(r"`(\w+)\.(\w+)", without_blocks(text)):
        value = getattr(lamina, owner, None) if owner in lamina.__all__ else getattr(types, owner, None)
        if isinstance(value, type) and not hasattr(value, member):
            problems.append(f"{owner}.{member}")
    for block in blocks(text):
        for node in ast.walk(ast.parse(block.text)) if block.lang == "python" else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lamina":
                names = [alias.name for alias in node.names]
                module = SUBMODULES.get(node.module or "")
                if (node.module or "").startswith("lamina.adapters"):  # imported here: each brings its framework
                    module = import_module(node.module or "")
                known = PUBLIC if node.module == "lamina" else set(dir(module)) if module else set[str]()
                problems += [f"from {node.module} import {name}" for name in names if name not in known]
    return problems


def missing_files(text: str) -> list[str]:
    """Files of the sources that a page names and that are not there."""
    named = re.findall(r"\bsrc/lamina/[\w/]+\.(?:py|md|txt|json)\b", text)
    return [name for name in named if not (ROOT / name).exists()]


def machine_paths(text: str) -> list[str]:
    return re.findall(r"(?<![\w.])(?:/(?:work|home|root|tmp|Users)/|[A-Z]:\\)\S*", text)


def heading_levels(text: str) -> list[int]:
    return [len(found) for found in re.findall(r"^(#+) ", without_blocks(text), re.MULTILINE)]


def settings_problems(text: str, folder: Path) -> list[str]:
    """Every TOML block is a `lamina.toml` that loads, and each line of it takes effect."""
    problems: list[str] = []
    for block in blocks(text):
        if block.lang == "toml":
            (folder / "lamina.toml").write_text(block.text, encoding="utf-8")
            settings = load_settings(folder, {})
            problems += [f"line {block.line}: sets nothing"] if not settings.origin else []
    return problems


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like a fresh clone's, where examples may write what they like."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


written = pytest.mark.parametrize("path", WRITTEN, ids=name_of)
linked = pytest.mark.parametrize("path", LINKED, ids=name_of)


@written
@pytest.mark.usefixtures("workplace", "no_loop_left")
def test_every_python_block_runs_and_prints_what_the_page_shows(path: Path) -> None:
    assert python_problems(read(path), name_of(path)) == []


@written
def test_every_lamina_line_runs_and_prints_what_the_page_shows(path: Path, workplace: Path) -> None:
    assert shell_problems(read(path), workplace) == []


@written
def test_every_shown_output_stands_right_after_the_block_that_prints_it(path: Path) -> None:
    assert stray_outputs(read(path)) == []


@written
def test_every_shown_settings_file_loads(path: Path, tmp_path: Path) -> None:
    assert settings_problems(read(path), tmp_path) == []


def test_both_readmes_have_the_same_code_blocks_and_headings() -> None:
    english, chinese = map(read, READMES)
    for one, other in zip(blocks(english), blocks(chinese), strict=True):
        assert (one.lang, one.text) == (other.lang, other.text)
    assert heading_levels(english) == heading_levels(chinese)
    assert len(blocks(english)) > 8


def column_width(line: str) -> int:
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in line)


@pytest.mark.parametrize("path", READMES, ids=name_of)
def test_the_readmes_fit_a_terminal_and_show_code_at_once(path: Path) -> None:
    text = read(path)
    assert [line for line in text.split("\n") if line.startswith("|") and column_width(line) > 120] == []
    assert blocks(text)[0].line < 25


def test_the_readmes_list_every_make_target_and_no_other() -> None:
    for path in READMES:
        assert set(re.findall(r"^\| `make ([a-z]+)", read(path), re.MULTILINE)) == TARGETS


@linked
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    assert broken_links(read(path), path.parent) == []


@pytest.mark.parametrize("path", READMES, ids=name_of)
def test_the_readmes_quote_figures_that_the_report_has(path: Path) -> None:
    assert figures_that_no_run_measured(read(path), read(GENERATED)) == []


@linked
def test_every_name_is_public_and_every_make_target_exists(path: Path) -> None:
    if path.name != "extending.md":  # for those who change lamina itself: test_extending applies and runs its diffs
        assert unknown_names(read(path)) == []
    assert unknown_targets(read(path)) == []


@linked
def test_every_file_of_the_sources_that_a_page_names_exists(path: Path) -> None:
    if path.name not in ("extending.md", "CHANGELOG.md"):  # new files of its diffs; files of earlier versions
        assert missing_files(read(path)) == []


@linked
def test_no_page_names_a_place_on_somebodys_machine(path: Path) -> None:
    assert machine_paths(read(path)) == []


def test_every_public_name_is_documented() -> None:
    pages = "\n".join(read(path) for path in WRITTEN if path not in READMES)
    assert [name for name in lamina.__all__ if not re.search(rf"\b{name}\b", pages)] == []


def test_a_planted_mistake_is_found_by_each_check(workplace: Path) -> None:
    def fenced(lang: str, text: str) -> str:
        return f"```{lang}\n{text}\n```\n"

    assert python_problems(fenced("python", "print(1)") + fenced("text", "2"), "planted")
    assert not python_problems(fenced("python", "print(1)") + "\n" + fenced("text", "1"), "planted")
    with pytest.raises(ZeroDivisionError):
        python_problems(fenced("python", "1 / 0"), "planted")
    for line in (
        "lamina context", "LAMINA_BUDGET=no lamina context hi", "lamina context | cat", "make coffee",
        "pip install '.[coffee]'", "rm -rf examples", "KEY=$(lamina keys now | tail -n 1)",
    ):  # fmt: skip
        assert shell_problems(fenced("sh", line), workplace), line
    assert shell_problems(fenced("sh", "lamina --version") + fenced("text", "lamina 0"), workplace)
    assert stray_outputs(fenced("python", "print(1)") + "which prints\n" + fenced("text", "1"))
    assert stray_outputs(fenced("text", "1"))
    assert broken_links("see [this](nowhere.md#top)", ROOT)
    assert broken_links("see [this] and [that][other]\n\n[this]: nowhere.md", ROOT) == [
        "there is no [other]: below",
        "there is no nowhere.md",
    ]
    assert broken_links("see [this](README.md#no-such-heading) and [here](#top)", ROOT) == [
        "there is no heading for #no-such-heading in README.md",
        "there is no heading for #top in this page",
    ]
    assert not broken_links("# Top: one\nsee [this](README.md#lamina), [that](https://a.b) and [here](#top-one)", ROOT)
    assert figures_that_no_run_measured("[0.95 of 1,000](docs/evidence/benchmarks.md#a)", "0.95 of 10,000") == ["1,000"]
    for text in ("`lamina.Engine`", "`from lamina import Engine`", "`Window.shrink`", "lamina.assembly.window"):
        assert unknown_names(text), text
    for code in (
        "from lamina import (\n    Engine,\n)", "from lamina.assembly.fences import Hint",
        "from lamina.adapters import Engine",
    ):  # fmt: skip
        assert unknown_names(fenced("python", code)), code
    assert not unknown_names("`Window.observe`, `Receipt.segments`, lamina.errors and lamina.toml")
    assert unknown_targets("run `make coffee`")
    assert missing_files("see `src/lamina/types.py` and `src/lamina/coffee.py`") == ["src/lamina/coffee.py"]
    assert machine_paths("run it in /home/ann/lamina")
    assert heading_levels("# a\n" + fenced("sh", "# b") + "## c\n") == [1, 2]
    with pytest.raises(errors.SettingsError):
        settings_problems(fenced("toml", "buget = 3"), workplace)
