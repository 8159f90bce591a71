"""Which entry points of lamina a test goes through: noted where one is reached, never claimed by the test itself.

`conftest.py` writes them into the report of a run, and `make requirements` reads them there. What a fixture reaches
counts for every test that asks for the fixture, also where the fixture was set up for an earlier one.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pytest

APP, PROCESS, HTTP, TELEGRAM = "App", "process", "HTTP", "Telegram"
ENTRY_POINTS = (APP, PROCESS, HTTP, TELEGRAM)
PROGRAMS = ("/lamina", "/bare_system.py")
COMMANDS = {"serve": HTTP, "telegram": TELEGRAM}
CLASSES = {
    ("lamina.app.app", "App"): APP,
    ("lamina.gateway.gateway", "Gateway"): HTTP,
    ("lamina.telegram.switchboard", "Switchboard"): TELEGRAM,
}
_reached: set[str] = set()
_of_fixtures: "dict[pytest.FixtureDef[Any], set[str]]" = {}
_observed: set[tuple[str, str]] = set()


def note_command(arguments: Sequence[str]) -> None:
    """A `lamina` process with these arguments was started."""
    _reached.add(next((COMMANDS[word] for word in arguments if word in COMMANDS), PROCESS))


def observe_classes() -> None:
    """Note when one of lamina's own is made; modules are taken as they come to be imported."""
    for (module, name), entry_point in CLASSES.items():
        if module in sys.modules and (module, name) not in _observed:
            _observed.add((module, name))
            _observe(getattr(sys.modules[module], name), entry_point)


def _observe(kind: type, entry_point: str) -> None:
    made: Callable[..., None] = kind.__init__

    @functools.wraps(made)
    def noted(*given: Any, **named: Any) -> None:
        _reached.add(entry_point)
        made(*given, **named)

    kind.__init__ = noted


def _hear(event: str, details: tuple[Any, ...]) -> None:
    """Real processes: `python -m lamina …`, `lamina …` and `python tests/bare_system.py …`."""
    if event == "subprocess.Popen" and not isinstance(details[1], (str, bytes)):
        words = [str(word) for word in details[1]]
        starts = [n for n, word in enumerate(words) if word == "lamina" or word.endswith(PROGRAMS)]
        if starts:
            note_command(words[starts[0] + 1 :])


def begin() -> None:
    sys.addaudithook(_hear)


def setting_up(fixture: "pytest.FixtureDef[Any]") -> Callable[[], None]:
    """Call this before a fixture is set up, and what it gives after."""
    observe_classes()
    before = _reached.copy()
    _reached.clear()

    def end() -> None:
        _of_fixtures[fixture] = _reached.copy()
        _reached.update(before)

    return end


def start_test() -> None:
    observe_classes()
    _reached.clear()


def reached_by(item: "pytest.Item") -> str:
    """The entry points of this test. A gateway and a bot have an `App` inside, which is not what the test talked to."""
    info: Any = getattr(item, "_fixtureinfo", None)
    fixtures = [each for group in info.name2fixturedefs.values() for each in group] if info else []
    reached = _reached.union(*(_of_fixtures.get(fixture, set()) for fixture in fixtures))
    if reached & {HTTP, TELEGRAM}:
        reached.discard(APP)
    return " ".join(name for name in ENTRY_POINTS if name in reached)
