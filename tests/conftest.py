"""For all tests: Hypothesis without a deadline, since a timing is never a test; real stores, SQLite and PostgreSQL.

A test may be a coroutine. One that asks for `store` runs once over each kind of store, on a fresh one.
"""

import asyncio
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from lamina.store.store import open_store
from tests.postgres import Server, running

settings.register_profile(
    "lamina",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # the first text drawn on a machine builds Hypothesis' Unicode tables
)
settings.load_profile("lamina")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew")


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
