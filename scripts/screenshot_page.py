"""`python scripts/screenshot_page.py docs/images`: the web page in Chromium, with a script for a model."""

import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

from tests.web import story  # noqa: E402
from tests.web.site import CHROMIUM, FLAGS, Site, serving  # noqa: E402

WIDE: dict[str, Any] = {"viewport": {"width": 1360, "height": 850}, "locale": "en-GB", "color_scheme": "light"}
CHINESE: dict[str, Any] = {**WIDE, "locale": "zh-CN", "color_scheme": "dark"}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844}, "locale": "en-GB", "is_mobile": True, "has_touch": True,
    "device_scale_factor": 2, "color_scheme": "light",
}  # fmt: skip
LARGEST = 200_000


def opened(browser: Browser, site: Site, **options: Any) -> Page:
    page = browser.new_context(**options).new_page()
    page.goto(site.door)
    page.wait_for_selector("#ask")
    return page


def shot(page: Page, address: str, ready: str, path: Path, *, scroll: str = "", hover: str = "") -> None:
    page.evaluate("(to) => { location.hash = to; }", address)
    page.wait_for_selector(ready)
    page.evaluate("() => document.activeElement.blur()")
    if scroll:
        page.locator(scroll).first.evaluate("(node) => node.scrollIntoView({ block: 'start' })")
    if hover:
        page.locator(hover).first.hover()
    page.wait_for_timeout(400)  # what moves comes to rest
    page.screenshot(path=path)
    size = path.stat().st_size
    print(f"{path.name} {size:,} bytes")
    if size > LARGEST:
        raise SystemExit(f"{path.name} has more than {LARGEST:,} bytes")


def main(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        with serving(folder, story.SCRIPT, environ=story.workspace(folder)) as site:
            session, turns = story.told(site)
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            wide, chinese = opened(browser, site, **WIDE), opened(browser, site, **CHINESE)
            phone = opened(browser, site, **PHONE)
            chat = f"#/s/{session}"
            shot(wide, chat, ".numbers", target / "chat.png", scroll=".turn")
            shot(chinese, chat, ".numbers", target / "chat-zh-dark.png")
            shot(phone, chat, ".numbers", target / "phone.png")
            tools = f"#/t/{turns[1]}/inspect"
            shot(wide, tools, ".segments", target / "inspector.png", hover=".segments tr.layer-identity")
            chinese.set_viewport_size({"width": 1340, "height": 640})
            marked = ".segments tr.layer-memory"
            shot(chinese, tools, ".segments", target / "inspector-zh-dark.png", scroll=".tabs", hover=marked)
            shot(wide, f"#/diff/{turns[0]}/{turns[1]}", ".verdict", target / "diff.png")
            shot(wide, "#/memories", ".fact", target / "memories.png")
            browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
