"""One browser and one gateway for each module, a fresh window for each test."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest
from playwright.sync_api import Browser

from tests.web import story
from tests.web.browser import Seen, chromium, looking
from tests.web.site import Answer, Site, serving


class Look(Protocol):
    def __call__(self, site: Site, **options: Any) -> Seen: ...


class Serve(Protocol):
    def __call__(self, *script: Answer, **environ: str) -> Site: ...


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Gone before another module runs: its event loop would be in the way of tests that are coroutines."""
    with chromium() as found:
        yield found


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts a gateway that answers with this script."""
    with ExitStack() as stack:
        yield lambda *script, **environ: stack.enter_context(serving(tmp_path, script, environ=environ))


@pytest.fixture
def look(browser: Browser, serve: Serve) -> Iterator[Look]:
    """Opens windows; at the end nothing may have failed in them, and nothing may have been asked of anybody else."""
    del serve  # asked for so that it ends after the windows: a page that outlives its gateway is refused what it asks
    windows: list[Seen] = []
    with ExitStack() as stack:

        def one(site: Site, **options: Any) -> Seen:
            windows.append(stack.enter_context(looking(browser, site, **options)))
            return windows[-1]

        yield one
    assert [error for window in windows for error in window.errors] == []
    assert [url for window in windows for url in window.outside] == []


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, str, list[str]]]:
    """The story of the screenshots: a gateway, the session and its turns."""
    folder = tmp_path_factory.mktemp("world")
    with serving(folder, story.SCRIPT, environ=story.workspace(folder)) as site:
        session, turns = story.told(site)
        yield site, session, turns
