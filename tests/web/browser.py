"""A real Chromium for tests, and a page that notices what no page of ours may do."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.web.site import CHROMIUM, FLAGS, Site

PATIENCE = 15_000


@dataclass
class Seen:
    """A page and what happened on it."""

    page: Page
    site: Site
    errors: list[str] = field(default_factory=list[str])
    """Scripts that failed, and what the browser refused."""
    outside: list[str] = field(default_factory=list[str])
    """Requests to anywhere but the gateway."""

    def go(self, address: str) -> None:
        """Another view by its address on the page."""
        self.page.evaluate("(to) => { location.hash = to; }", address)

    def ask(self, words: str) -> None:
        self.page.fill("#ask", words)
        self.page.keyboard.press("Enter")

    def answered(self, number: int = 1) -> None:
        """Wait until this many answers have their numbers."""
        self.page.wait_for_function(
            "(n) => [...document.querySelectorAll('.numbers')].filter((one) => one.textContent).length >= n", arg=number
        )

    @property
    def session(self) -> str:
        return self.page.evaluate("location.hash").split("/")[2]


@contextmanager
def chromium() -> Generator[Browser, None, None]:
    """Skips the test, saying why, where there is none."""
    if not Path(CHROMIUM).exists():
        pytest.skip(f"there is no Chromium at {CHROMIUM}: apt-get install chromium, or set LAMINA_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def looking(browser: Browser, site: Site, *, enter: bool = True, **options: Any) -> Generator[Seen, None, None]:
    """A fresh window on the page, signed in unless it is to stay outside. Nothing is remembered from another."""
    options.setdefault("viewport", {"width": 1280, "height": 820})
    options.setdefault("locale", "en-GB")
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE * int(os.environ.get("SOAK", "1")))
    page = context.new_page()
    seen = Seen(page, site)
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("console", lambda message: seen.errors.append(message.text) if message.type == "error" else None)
    host = urlsplit(site.url).netloc

    def asked(url: str) -> None:
        if urlsplit(url).scheme not in ("data", "blob") and urlsplit(url).netloc != host:
            seen.outside.append(url)

    context.on("request", lambda request: asked(request.url))
    try:
        if enter:
            page.goto(site.door)
            page.wait_for_selector("#ask")
        yield seen
    finally:
        context.close()
