"""Importing lamina is quick and loads nothing but the standard library."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lamina


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_lamina_loads_no_third_party_module() -> None:
    code = (
        "import sys; before = set(sys.modules); from lamina import *; "
        "print(*sorted({n.split('.')[0] for n in set(sys.modules) - before}))"
    )
    loaded = set(run(code).split())
    foreign = {name for name in loaded if name not in sys.stdlib_module_names and name != "lamina"}
    assert not foreign, f"import lamina loads {sorted(foreign)}"


def test_importing_lamina_loads_nothing_heavy_of_the_standard_library() -> None:
    heavy = {"asyncio", "http", "urllib", "email", "sqlite3", "ssl", "socket", "subprocess", "logging", "argparse",
             "xml", "multiprocessing", "concurrent", "tomllib"}  # fmt: skip
    names = set(lamina.__all__) - {
        "App", "ContextBuilder", "MemoryService", "SystemPromptManager", "open_store",
    }  # fmt: skip  # one logs, the others wait for databases
    code = f"import sys; before = set(sys.modules); from lamina import {', '.join(sorted(names))}; "
    loaded = {name.split(".")[0] for name in run(code + "print(*(set(sys.modules) - before))").split()}
    assert not loaded & heavy


def test_numpy_has_one_thread_in_an_app_unless_somebody_says_otherwise() -> None:
    """On few cores its threads wait for each other, and memories then come too late for a turn."""
    code = "import os; {} from lamina import App; print(os.environ['OPENBLAS_NUM_THREADS'])"
    unset = "os.environ.pop('OPENBLAS_NUM_THREADS', None);"
    assert run(code.format(unset)) == "1\n"
    assert run(code.format("os.environ['OPENBLAS_NUM_THREADS'] = '4';")) == "4\n"


def test_the_core_works_without_any_installed_package() -> None:
    """`-S` leaves site-packages out: only lamina's own folder and the standard library are there."""
    code = (
        "import sys; sys.path.insert(0, 'src'); import lamina; "
        "c = lamina.assemble([lamina.Layer('identity', 'AI')], user='你好', budget=100); print(len(c.messages))"
    )
    result = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "2"


def test_a_bare_import_loads_no_room_at_all() -> None:
    loaded = run("import sys, lamina; print(*(n for n in sys.modules if n.startswith('lamina')))").split()
    assert loaded == ["lamina"]


def test_the_public_names_are_those_a_type_checker_sees() -> None:
    tree = ast.parse(Path(lamina.__file__).read_text(encoding="utf-8"))
    branch = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name for node in branch.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(lamina.__all__) == set(dir(lamina)) - {"__version__"}
    assert all(getattr(lamina, name) is not None for name in lamina.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = lamina.nothing  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType] -- on purpose
