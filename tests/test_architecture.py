"""The house rules, held by a test: sizes, public names, who may import whom, and that assembly is pure."""

import ast
from collections.abc import Iterator
from pathlib import Path

import lamina

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "lamina"
MODULES = sorted(SOURCE.rglob("*.py"))

MAX_LINES, MAX_FUNCTION, MAX_NAMES = 500, 60, 28

GROUND = {"types", "ports", "errors", "words", "days", "records"}
MAY_IMPORT: dict[str, set[str]] = {
    "types": set(),
    "records": set(),
    "ports": set(),
    "errors": set(),
    "words": set(),
    "days": {"words"},
    "assembly": {"assembly"},
    "layers": {"layers"},
    "providers": {"providers"},
    "store": {"store"},
    "settings": {"settings"},
    "engine": {"engine", "assembly", "layers"},
    "app": {"app", "assembly", "layers", "providers", "store", "engine", "settings"},
    "gateway": {"gateway", "app"},
    "telegram": {"telegram", "app"},
    "adapters": {"adapters", "assembly"},
    "cli": {"cli", "app", "settings", "gateway", "telegram"},
}
"""The import table of the design; each room may also import the ground."""
PUBLIC_DOOR = {"__init__", "__main__"}
"""They pass names on: `__init__` the public ones, `__main__` the command."""

IMPURE = {
    "asyncio", "datetime", "fcntl", "http", "io", "logging", "mmap", "multiprocessing", "os", "pathlib", "pickle",
    "random", "secrets", "select", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "sys", "tempfile",
    "threading", "time", "urllib", "uuid",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input", "eval", "exec", "__import__", "breakpoint"}


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def test_no_module_passes_500_lines() -> None:
    too_long = {str(path.relative_to(ROOT)): n for path in MODULES if (n := len(path.read_text().splitlines())) > 500}
    assert MAX_LINES == 500
    assert not too_long


def test_no_function_passes_60_lines() -> None:
    too_long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > MAX_FUNCTION
    ]
    assert not too_long


def test_at_most_28_public_names_and_each_is_there() -> None:
    assert len(lamina.__all__) <= MAX_NAMES
    assert lamina.__all__ == sorted(lamina.__all__)
    assert [name for name in lamina.__all__ if not hasattr(lamina, name)] == []


def test_imports_follow_the_table() -> None:
    wrong: list[str] = []
    for path in MODULES:
        room = room_of(path)
        if room in PUBLIC_DOOR:
            continue
        assert room in MAY_IMPORT, f"{room} is a room that the import table does not name"
        allowed = MAY_IMPORT[room] | (GROUND if room not in GROUND else GROUND - {room})
        for name in imports(tree_of(path)):
            if name.startswith("."):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}: imports are absolute")
            if name == "lamina" and room != "cli":
                wrong.append(f"{path.relative_to(ROOT)} imports the public door")
            if name.startswith("lamina.") and name.split(".")[1] not in allowed:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


def test_the_ground_imports_only_itself_downwards() -> None:
    assert [n for n in imports(tree_of(SOURCE / "errors.py")) if n.startswith("lamina")] == []
    assert [n for n in imports(tree_of(SOURCE / "types.py")) if n.startswith("lamina")] == []


def test_assembly_is_pure() -> None:
    wrong: list[str] = []
    for path in sorted((SOURCE / "assembly").glob("*.py")):
        tree = tree_of(path)
        wrong += [f"{path.name} imports {name}" for name in imports(tree) if name.split(".")[0] in IMPURE]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
                wrong.append(f"{path.name}:{node.lineno} calls {node.func.id}")
            if isinstance(node, ast.Await | ast.AsyncFunctionDef | ast.Global):
                wrong.append(f"{path.name}:{node.lineno} awaits or has global state")
    assert not wrong


def test_imports_stand_at_the_top_outside_the_faces() -> None:
    """An import inside a function needs a written reason, as ruff's `noqa` asks for."""
    wrong: list[str] = []
    for path in MODULES:
        if room_of(path) == "cli":
            continue
        lines = path.read_text().splitlines()
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for inner in ast.walk(node):
                    if (
                        isinstance(inner, ast.Import | ast.ImportFrom)
                        and "noqa: PLC0415 --" not in lines[inner.lineno - 1]
                    ):
                        wrong.append(f"{path.relative_to(ROOT)}:{inner.lineno}")
    assert not wrong


def test_every_module_says_what_it_hides() -> None:
    assert [str(path.relative_to(ROOT)) for path in MODULES if not ast.get_docstring(tree_of(path))] == []


def test_benchmarks_use_public_names_only() -> None:
    """What we measure is what people can call; the parts that retrieval is made of, measured one by one; and the
    embedded model as a judge of the prefix that receipts foretell."""
    allowed = {"lamina", "lamina.types", "lamina.records", "lamina.errors", "lamina.words", "lamina.layers.ranking"}
    allowed |= {"lamina.layers.fusion", "lamina.providers.embeddings", "lamina.providers.scripted", "lamina.settings"}
    allowed |= {"lamina.providers.local", "lamina.assembly.receipt"}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / "bench").rglob("*.py"))
        for name in imports(tree_of(path))
        if name.startswith("lamina") and name not in allowed
    ]
    assert not wrong


def test_no_broad_except_outside_the_faces() -> None:
    wrong: list[str] = []
    for path in MODULES:
        if room_of(path) in ("cli", "gateway", "telegram"):
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ExceptHandler):
                name = node.type.id if isinstance(node.type, ast.Name) else ""
                if node.type is None or name in ("Exception", "BaseException"):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not wrong


def test_I1_and_I13_one_place_builds_the_manager_and_no_face_has_injection_code_of_its_own() -> None:
    builders = [
        str(path.relative_to(SOURCE))
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "SystemPromptManager"
    ]
    assert builders == ["app/files.py"]
    faces = [path for path in MODULES if room_of(path) in ("cli", "gateway", "telegram")]
    assert [str(path) for path in faces if any("layers" in name for name in imports(tree_of(path)))] == []
