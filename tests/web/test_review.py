"""What a new user's review found on the page: words in the other language, lines that do not agree, things cut off."""

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.cli.process import killed_at_once
from tests.web.conftest import Look, Serve
from tests.web.site import Site
from tests.web.test_trouble import HELLO, SLOW, begun, forgive

World = tuple[Site, str, list[str]]
HAN = re.compile(r"[\u4e00-\u9fff]")
ENDED = {
    "en-GB": "Ended before it was complete. What arrived is saved. "
    "The process that was answering stopped before the answer was complete.",
    "zh-CN": "回答未完成就结束了，已生成的内容已保留。 负责回答的进程在回答完成之前停止了。",
}
CUT = {"en-GB": "The answer ends here because it reached its token limit.", "zh-CN": "回答已达到 token 上限"}
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 780}, "is_mobile": True, "has_touch": True}


def test_a_turn_whose_process_was_killed_says_so_in_the_language_of_the_page(look: Look, serve: Serve) -> None:
    site = serve(SLOW)
    seen = look(site)
    begun(seen)
    session, turn = seen.session, seen.page.get_attribute(".turn", "data-turn")
    seen.page.close()
    site.process.kill()
    site.process.wait(20)
    killed_at_once(str(site.folder / "chats.db"))
    site = serve(HELLO)
    for lang, words in ENDED.items():
        seen = look(site, locale=lang)
        seen.go(f"#/s/{session}")
        expect(seen.page.locator(".answer .notice")).to_have_text(words)
        seen.go(f"#/t/{turn}/inspect")
        told = seen.page.locator(".problem > div").first
        expect(told).to_contain_text("its receipt was lost" if lang == "en-GB" else "回执随之丢失")
        assert bool(HAN.search(told.inner_text())) == (lang == "zh-CN")
        words = re.sub("[0-9a-f]{32}", "", told.inner_text())  # without the id of the turn
        assert not (lang == "zh-CN" and re.search("[a-z]{3}", words))
        forgive(seen, "409")


def test_a_code_without_text_stays_as_it_is_where_a_turn_was_interrupted(world: World, look: Look) -> None:
    seen = look(world[0], locale="zh-CN")
    said = seen.page.evaluate(
        """async (errors) => {
            const { Turn } = await import("/web/turns.js");
            return errors.map((error) => {
                const turn = new Turn({}, "x");
                turn.ended({ state: "interrupted", error, hint: null }, false);
                return turn.body.textContent;
            });
        }""",
        [{"code": "turn.lost"}, {"code": "something else"}],
    )
    assert said == [ENDED["zh-CN"], "回答未完成就结束了，已生成的内容已保留。 something else。"]


def test_an_id_that_is_wrong_is_told_in_chinese_and_an_error_without_chinese_words_as_it_came(
    world: World, look: Look
) -> None:
    seen = look(world[0], locale="zh-CN")
    seen.go("#/t/nope/inspect")
    expect(seen.page.locator(".problem > div")).to_have_text(
        "这里没有内容请检查路径和 id；GET /api/openapi.json 列出所有路由"
    )
    explained = seen.page.evaluate(
        """async (said) => (await import("/web/texts.js")).phrase(said)""", {"code": "constructor", "text": "it broke"}
    )
    assert explained == "it broke"
    forgive(seen, "404")


def test_seconds_and_the_layers_of_the_bar_are_chinese_where_the_page_is(world: World, look: Look) -> None:
    site, session, turns = world
    seen = look(site, locale="zh-CN")
    seen.go(f"#/s/{session}")
    expect(seen.page.locator(".numbers").last).to_have_text(re.compile("秒$"))
    said = seen.page.evaluate("""async () => [0.25, 3.21, 11.2].map((await import("/web/dom.js")).seconds)""")
    assert said == ["250 毫秒", "3.2 秒", "11 秒"]
    seen.go(f"#/t/{turns[3]}/inspect")
    expect(seen.page.locator(".stack .part span").first).to_be_visible()
    for words in seen.page.locator(".stack .part span").all_inner_texts():
        assert HAN.search(words), words


@pytest.mark.parametrize("lang", ["en-GB", "zh-CN"])
def test_a_source_that_was_skipped_is_left_out_in_both_places(look: Look, serve: Serve, lang: str) -> None:
    site = serve(HELLO, LAMINA_MEMORY="false")
    _, turn = site.said("Hello")
    seen = look(site, locale=lang)
    seen.go(f"#/t/{turn}/inspect")
    cuts = seen.page.locator(".cuts li .layer")
    expect(cuts.first).to_be_visible()
    left = seen.page.locator(".fact-cell", has_text="Left out" if lang == "en-GB" else "未发送").locator("dd")
    names = list(dict.fromkeys(cuts.all_inner_texts()))
    assert (left.inner_text(), "memory" in names[0]) == ((", " if lang == "en-GB" else "、").join(names), True)


@pytest.mark.parametrize("turns", [1, 4, 12])
def test_on_a_narrow_phone_both_axes_of_the_chart_are_whole(look: Look, serve: Serve, turns: int) -> None:
    site = serve(HELLO)
    session, turn = site.said("One")
    for number in range(turns - 1):
        turn = site.said(f"Question {number}", session)[1]
    seen = look(site, **PHONE)
    seen.go(f"#/t/{turn}/inspect")
    expect(seen.page.locator(".bar.current")).to_be_in_viewport()
    cut = seen.page.evaluate(
        """() => {
            const panel = document.querySelector(".chart").getBoundingClientRect();
            const whole = (box) => box.left >= panel.left && box.right <= panel.right && box.right <= innerWidth;
            const axes = [...document.querySelectorAll(".chart-svg.axis text")];
            return [axes.length, axes.filter((one) => !whole(one.getBoundingClientRect())).length];
        }"""
    )
    assert cut == [6, 0]
    if turns == 1:
        assert seen.page.evaluate("() => { const s = document.querySelector('.chart-scroll'); "
                                  "return s.scrollWidth <= s.clientWidth; }")  # fmt: skip


def test_the_word_that_it_is_being_stopped_goes_when_it_is(serve: Serve, look: Look) -> None:
    seen = look(serve(SLOW))
    begun(seen)
    seen.page.evaluate("() => { window.setTimeout = () => 0; }")  # no clock takes it away
    seen.page.keyboard.press("Escape")
    expect(seen.page.locator(".answer .notice")).to_contain_text("Stopped")
    expect(seen.page.locator(".toast")).to_have_count(0)


@pytest.mark.parametrize("lang", ["en-GB", "zh-CN"])
def test_forgetting_says_that_it_is_for_good_and_rules_name_the_option(serve: Serve, look: Look, lang: str) -> None:
    site = serve(HELLO)
    site.ask("POST", "/api/memories", {"text": "The editor is called Wei."})
    site.said("Hello")
    seen = look(site, locale=lang)
    seen.go("#/memories")
    seen.page.get_by_role("button", name="Forget" if lang == "en-GB" else "忘掉").click()
    expect(seen.page.locator("dialog")).to_contain_text("cannot be undone" if lang == "en-GB" else "无法撤销")
    seen.page.keyboard.press("Escape")
    seen.go("#/skills")
    expect(seen.page.locator("#main")).to_contain_text("lamina serve --workspace")


@pytest.mark.parametrize("lang", ["en-GB", "zh-CN"])
def test_an_answer_that_was_cut_at_its_limit_says_so_then_and_later(serve: Serve, look: Look, lang: str) -> None:
    seen = look(serve([{"text": "The first half"}, {"usage": [100, 40, 7]}, {"done": "length"}], HELLO), locale=lang)
    line = seen.page.locator(".answer .cut-short")
    seen.ask("Go")
    seen.answered()
    expect(line).to_contain_text(CUT[lang])
    expect(seen.page.locator(".answer .notice")).to_have_count(0)
    assert CUT[lang] in seen.page.locator("#live p").all_text_contents()[-1]
    seen.page.reload()
    expect(line).to_contain_text(CUT[lang])
    seen.ask("And now?")
    seen.answered(2)
    expect(line).to_have_count(1)


def test_a_notice_of_that_limit_is_not_said_twice(world: World, look: Look) -> None:
    seen = look(world[0])
    lines = seen.page.evaluate(
        """async () => {
            const { Turn } = await import("/web/turns.js");
            const turn = new Turn({}, "x");
            turn.take("text", { text: "The first half" });
            turn.take("notice", { kind: "limit", phrase: { code: "notice.answer_cut", values: { setting: "X" } } });
            turn.take("ended", { state: "complete", error: null, hint: null, reason: "length" });
            return [...turn.body.querySelectorAll("[role=note]")].map((one) => one.textContent);
        }"""
    )
    assert lines == [CUT["en-GB"]]


def test_words_with_a_nul_in_them_are_sent_and_name_the_session_without_it(look: Look, serve: Serve) -> None:
    site = serve(HELLO)
    seen = look(site)
    seen.page.fill("#ask", "Hello \0there")
    seen.page.keyboard.press("Enter")
    expect(seen.page.locator(".answer-foot .collect")).to_be_visible()
    assert site.ask("GET", "/api/sessions")["sessions"][0]["title"] == "Hello there"
