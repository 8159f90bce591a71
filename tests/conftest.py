"""For all tests: Hypothesis without a deadline, since a timing is never a test; real stores, SQLite and PostgreSQL.

A test may be a coroutine. One that asks for `store` runs once over each kind of store, on a fresh one.
"""

import asyncio
import functools
import inspect
import os
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from lamina.store.store import open_store
from tests import entry_points
from tests.faults.load import SOAK, Clock, Load
from tests.leftovers import WATCHED, Run
from tests.postgres import Server, running

settings.register_profile(
    "lamina",
    deadline=None,
    max_examples=100 * SOAK,
    suppress_health_check=[HealthCheck.too_slow],  # the first text drawn on a machine builds Hypothesis' Unicode tables
)
settings.load_profile("lamina")
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # run behind `&` by a script: what is started here hears Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew")


@pytest.fixture
def no_loop_left() -> Iterator[None]:
    """The frameworks' `run_sync` makes an event loop and leaves it open. It is closed here, and not found by the
    garbage collector in the middle of another test."""
    yield
    with warnings.catch_warnings(), suppress(RuntimeError):  # there may be none
        warnings.simplefilter("ignore")
        asyncio.get_event_loop().close()
    asyncio.set_event_loop(None)


CLOCK = pytest.StashKey[Clock]()
DRAWN = Counter[str]()
"""How many examples Hypothesis drew for each test; counted for `make soak` only."""


RUN = pytest.StashKey[Run]()
LEFT = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    inside = hasattr(config, "workerinput") or WATCHED in os.environ
    if not inside:  # pytest-xdist's processes and a run inside a test inherit what the first process set up and checks
        config.stash[RUN] = Run()
        config.stash[RUN].begin()
    entry_points.begin()
    config.addinivalue_line("markers", "planted(bug): a bug of the test's own, named here, that its check must find")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """After the last test of all processes: what was left outside the checkout makes the run fail."""
    if RUN in session.config.stash:
        session.config.stash[LEFT] = left = session.config.stash[RUN].end()
        if left and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left := config.stash.get(LEFT, []):
        terminalreporter.section("the tests left files outside the checkout", red=True, bold=True)
        for line in left:
            terminalreporter.line(line)


LONGEST = (
    "test_make.py", "cli/test_chat_local.py", "faults/test_engine.py", "faults/test_gateway_hostile.py",
    "telegram/test_restart.py", "faults/test_page.py", "faults/test_gateway_leaving.py", "faults/test_web.py",
    "faults/test_histories.py",
)  # fmt: skip
"""Files with a test that takes long: they come first, so that none of them is begun when all the rest is done."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The report of a run names the planted bugs; the tests that can be long share its time, and come first."""
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    here = Path(__file__).parent
    places = {item.path: Path(os.path.relpath(item.path, here)).as_posix() for item in items}
    items.sort(key=lambda item: ranks.get(places[item.path], len(ranks)))
    for item in items:
        item.user_properties += [("planted", mark.args[0]) for mark in item.iter_markers("planted")]
        if "SOAK" in os.environ and isinstance(item, pytest.Function):
            count_examples(item)
    config.stash[CLOCK] = Clock(tests=sum("load" in getattr(item, "fixturenames", ()) for item in items))


def count_examples(item: pytest.Function) -> None:
    drawing = getattr(item.obj, "hypothesis", None)
    if drawing is None or hasattr(drawing.inner_test, "__wrapped__"):
        return
    inner: Callable[..., Any] = drawing.inner_test

    @functools.wraps(inner)
    def counted(*given: Any, **named: Any) -> Any:
        DRAWN[item.originalname] += 1
        return inner(*given, **named)

    drawing.inner_test = counted


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    end = entry_points.setting_up(fixturedef)
    try:
        return (yield)
    finally:
        end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    entry_points.start_test()
    try:
        return (yield)
    finally:
        item.user_properties.append(("entry_points", entry_points.reached_by(item)))


def pytest_runtest_teardown(item: pytest.Item) -> None:
    drawn = DRAWN.pop(getattr(item, "originalname", ""), 0)
    if drawn:
        item.user_properties += [("trials", drawn), ("wanted", drawn), ("unit", "examples")]


@pytest.fixture
def load(request: pytest.FixtureRequest) -> Iterator[Load]:
    """How often to try, and whom to tell."""
    load = Load(request.node.name, request.config.stash[CLOCK].part())
    yield load
    request.node.user_properties += load.properties()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """One server for each process that runs tests, started when the first test asks for it."""
    with running() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store, once of each kind."""
    if request.param == "sqlite":
        return os.fspath(tmp_path / "store.db")
    server: Server = request.getfixturevalue("postgres")
    return server.database()


@pytest.fixture
def store(where: str) -> str:
    """`pytest_pyfunc_call` opens it in the event loop of the test, so that a test gets the store itself."""
    return where


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames  # pyright: ignore[reportPrivateUsage] -- pytest has no other way
    values: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}

    async def run() -> None:
        if "store" not in values:
            await pyfuncitem.obj(**values)
            return
        async with open_store(values["store"]) as opened:
            await pyfuncitem.obj(**{**values, "store": opened})

    asyncio.run(run())
    return True
