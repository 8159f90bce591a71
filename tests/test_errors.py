"""The error tree is drawn in the docstring of its module, and the drawing is complete."""

import re
import tomllib
from pathlib import Path

import pytest

from lamina import errors
from lamina.errors import LaminaError, format_value

ROOT = Path(__file__).parents[1]
CLASSES = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, LaminaError)]


def test_the_drawn_tree_names_every_error_and_no_other() -> None:
    drawn = re.findall(r"^[│├└─ ]*(\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    assert sorted(drawn) == sorted(c.__name__ for c in CLASSES)


@pytest.mark.parametrize("error", CLASSES, ids=lambda c: c.__name__)
def test_every_error_has_an_exit_code_a_status_and_a_hint(error: type[LaminaError]) -> None:
    raised = error("what", hint="do this")
    assert raised.exit_code in (1, 2, 3, 4)
    assert 400 <= raised.status < 600
    assert str(raised) == "what (do this)"


def test_a_value_is_shown_short_and_never_fails() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise ValueError

    assert format_value(Odd()) == "<Odd>"
    assert format_value("\ud800") == "'\\ud800'"
    assert len(format_value("x" * 1000)) == 80


def test_hints_name_extras_that_exist_and_no_lamina_from_a_registry() -> None:
    """On the public index `lamina` is another program, and ours, `lamina-context`, is not published yet: pip installs
    the extras from a clone."""
    paths = [*sorted((ROOT / "src").rglob("*.py")), *sorted((ROOT / "src" / "lamina" / "data").glob("messages.*.json"))]
    source = "".join(path.read_text(encoding="utf-8") for path in paths)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = set(re.findall(r"'\.\[([a-z]+)\]'", source))
    assert re.findall(r"lamina(?:-context)?\[", source) == []
    assert named <= set(project["optional-dependencies"])
    assert {"app", "gateway", "memory"} <= named
    assert re.findall(r"pip install [^'\n]*\blamina\b", source) == []
