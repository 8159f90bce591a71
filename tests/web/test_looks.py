"""How the page looks and is used: both languages, both themes, a phone, the keyboard alone, a screen reader."""

import re

import pytest
from playwright.sync_api import expect

from lamina.gateway.system_routes import FOLDER
from lamina.text.messages import catalogue
from tests.web.conftest import Look
from tests.web.site import Site

World = tuple[Site, str, list[str]]
VIEWS = (
    "#/new",
    "#/s/{session}",
    "#/t/{turn}/inspect",
    "#/diff/{other}/{turn}",
    "#/collected",
    "#/memories",
    "#/skills",
)
READY = (".welcome", ".numbers", ".segments tr", ".verdict", ".empty", ".fact", ".page .table")
CONTRAST = """() => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const colour = (text) => {
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const over = ([r, g, b, a], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a)];
    const light = (rgb) => {
        const [r, g, b] = rgb.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (node) => {
        const layers = [];
        for (let one = node; one; one = one.parentElement) layers.push(colour(getComputedStyle(one).backgroundColor));
        return layers.reverse().reduce((under, layer) => over(layer, under), [255, 255, 255]);
    };
    const poor = [];
    for (const node of document.querySelectorAll("body *")) {
        const words = [...node.childNodes].filter((one) => one.nodeType === 3).map((one) => one.data.trim()).join("");
        const seen = node.checkVisibility({ opacityProperty: true, visibilityProperty: true });
        if (!words || !seen || node.closest("svg, option, :disabled, .unseen-field")) continue;
        const ground = behind(node);
        const [a, b] = [light(over(colour(getComputedStyle(node).color), ground)), light(ground)];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) poor.push(`${node.localName}.${node.className} ${words.slice(0, 30)} ${ratio.toFixed(2)}`);
    }
    return poor;
}"""
NAMELESS = """() => [...document.querySelectorAll("button, a, input, select, textarea, [role=img], img")]
    .filter((node) => node.checkVisibility())
    .filter((node) => !(node.getAttribute("aria-label") || node.title || node.textContent.trim() || node.labels?.length
                        || node.hasAttribute("alt")))
    .map((node) => node.outerHTML.slice(0, 120))"""
OVERFLOW = (
    "() => [document.documentElement, document.querySelector('#main')].some((one) => one.scrollWidth > innerWidth)"
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("lang", ["en-GB", "zh-CN"])
def test_every_view_is_readable_named_and_in_one_language(world: World, look: Look, scheme: str, lang: str) -> None:
    seen = look(world[0], locale=lang, color_scheme=scheme)
    _, session, turns = world
    for view, ready in zip(VIEWS, READY, strict=True):
        seen.go(view.format(session=session, turn=turns[1], other=turns[0]))
        seen.page.wait_for_selector(ready)
        assert seen.page.evaluate(CONTRAST) == [], view
        assert seen.page.evaluate(NAMELESS) == [], view
        for landmark in ("main", "navigation", "search"):
            expect(seen.page.get_by_role(landmark).first).to_be_visible()
        assert seen.page.locator("h1").count() == 1, view
    ground = seen.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(252, 251, 249)" if scheme == "light" else "rgb(21, 23, 26)")
    assert seen.page.evaluate("() => document.documentElement.lang") == ("en" if lang == "en-GB" else "zh-CN")
    expect(seen.page.get_by_role("button", name="New session" if lang == "en-GB" else "新建会话")).to_be_visible()


def test_every_word_exists_in_both_languages_and_every_word_asked_for_exists() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.js"))
    asked = set(re.findall(r'\bt\(\s*"(\w+)"', source))
    english, chinese = (
        {code.removeprefix("page."): text for code, text in catalogue(lang).items() if code.startswith("page.")}
        for lang in ("en", "zh")
    )
    assert sorted(asked - set(english)) == []
    assert english.keys() == chinese.keys()
    for key, words in english.items():
        assert sorted(re.findall(r"{\w+}", words)) == sorted(re.findall(r"{\w+}", chinese[key])), key
    assert [key for key in english if not re.search(r"[\u4e00-\u9fff]", english[key] + chinese[key])] == []
    assert [key for key, words in chinese.items() if "词元" in words] == [], "the commands and the README say token"


def test_theme_and_language_are_switched_and_remembered(world: World, look: Look) -> None:
    seen = look(world[0], color_scheme="light")
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light = seen.page.evaluate(ground)
    for _ in range(2):
        seen.page.click(".theme")
    assert seen.page.evaluate("() => document.documentElement.dataset.theme") == "dark"
    assert seen.page.evaluate(ground) != light
    seen.page.click(".language")
    expect(seen.page.locator(".new")).to_have_text("新建会话")
    expect(seen.page.locator(".head h1")).to_have_text("新建会话")
    seen.page.reload()
    expect(seen.page.locator(".new")).to_have_text("新建会话")
    assert seen.page.evaluate(ground) != light
    seen.page.click(".language")
    expect(seen.page.locator(".new")).to_have_text("New session")
    seen.page.click(".theme")
    assert seen.page.evaluate(ground) == light


def test_on_a_phone_the_list_is_a_drawer_and_nothing_is_wider_than_the_screen(world: World, look: Look) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
    site, session, turns = world
    seen = look(site, **phone)
    for view, ready in zip(VIEWS, READY, strict=True):
        seen.go(view.format(session=session, turn=turns[1], other=turns[0]))
        seen.page.wait_for_selector(ready)
        assert not seen.page.evaluate(OVERFLOW), view
        expect(seen.page.locator("#side")).not_to_be_visible()
    seen.page.get_by_role("button", name="Open the menu").tap()
    expect(seen.page.locator("#side")).to_be_visible()
    expect(seen.page.get_by_role("button", name="Close the menu")).to_be_focused()
    seen.page.keyboard.press("Escape")
    expect(seen.page.locator("#side")).not_to_be_visible()
    expect(seen.page.get_by_role("button", name="Open the menu")).to_be_focused()
    seen.page.get_by_role("button", name="Open the menu").tap()
    seen.page.locator(".session .place").first.tap()
    expect(seen.page.locator("#side")).not_to_be_visible()
    expect(seen.page.locator(".turn").first).to_be_visible()


def test_everything_of_a_chat_is_done_with_the_keyboard_alone(world: World, look: Look) -> None:
    site, _, _ = world
    seen = look(site)
    keys = seen.page.keyboard
    expect(seen.page.locator("#ask")).to_be_focused()
    keys.type("One line")
    keys.press("Shift+Enter")
    keys.type("and another")
    keys.press("Enter")
    expect(seen.page.locator(".bubble .words")).to_have_text("One line\nand another")
    seen.answered()
    for _ in range(12):
        if seen.page.evaluate("() => document.activeElement.classList.contains('collect')"):
            break
        keys.press("Shift+Tab")
    expect(seen.page.locator(".collect")).to_be_focused()
    keys.press("Enter")
    expect(seen.page.locator(".collect")).to_have_attribute("aria-pressed", "true")
    expect(seen.page.locator(".collect")).to_be_focused()
    keys.press("Enter")
    expect(seen.page.locator(".collect")).to_have_attribute("aria-pressed", "false")
    keys.press("Alt+i")
    expect(seen.page.locator(".head h1")).to_have_text("Inspector")
    seen.page.wait_for_selector(".segments tr")
    keys.press("Escape")
    expect(seen.page.locator("#ask")).to_be_focused()
    keys.press("Alt+n")
    expect(seen.page.locator(".welcome")).to_be_visible()
    keys.press("Control+k")
    expect(seen.page.locator("#side input")).to_be_focused()
    keys.press("Tab")
    keys.press("?")
    expect(seen.page.locator("dialog")).to_contain_text("Keyboard shortcuts")
    keys.press("Escape")
    expect(seen.page.locator("dialog")).to_have_count(0)


def test_a_screen_reader_hears_each_block_and_the_end(world: World, look: Look) -> None:
    seen = look(world[0])
    seen.ask("Go on")
    seen.answered()
    heard = seen.page.locator("#live p").all_text_contents()
    assert heard[0] == "Answering"
    assert heard[-1] == "The answer is complete."
    assert len(heard) > 2
    expect(seen.page.locator("#live")).to_have_attribute("aria-live", "polite")


def test_an_address_that_leads_nowhere_says_so(world: World, look: Look) -> None:
    seen = look(world[0])
    seen.go("#/nowhere")
    expect(seen.page.locator(".empty h2")).to_have_text("There is nothing here")
    seen.go("#/s/" + "0" * 32)
    expect(seen.page.locator(".empty h2")).to_have_text("There is no such session")
    expect(seen.page.locator(".composer")).to_have_count(0)
    seen.go("#/s/nope")
    expect(seen.page.locator(".empty h2")).to_have_text("There is no such session")
    seen.page.locator(".empty button").click()
    expect(seen.page.locator(".welcome")).to_be_visible()
    assert all("404" in error for error in seen.errors)  # the browser itself notes each 404
    seen.errors.clear()
