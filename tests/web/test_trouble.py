"""The page when something goes wrong beside it, and the small things that a review found on it."""

import json
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from tests.web.browser import Seen
from tests.web.conftest import Look, Serve
from tests.web.site import Site

World = tuple[Site, str, list[str]]
HELLO = [{"text": "Hello."}, {"usage": [100, 40, 7]}]
SLOW = [step for n in range(60) for step in ({"text": f"word{n} "}, {"delay": 0.1})]
UNREACHABLE = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE", "ERR_EMPTY", "503", "ERR_CONNECTION_RESET", "ERR_NETWORK")


PHRASES = (
    ({"code": "reason.over_budget", "values": {}, "text": "x"}, "超出预算"),
    ({"code": "reason.short_form", "values": {"why": {"code": "reason.over_budget"}}}, "简写：超出预算"),
    ({"code": "reason.text_changed", "values": {"before": "1a", "after": "2b"}}, "文本已改变：1a → 2b"),
    ({"code": "reason.text_changed", "values": {"before": "{after}", "after": "{x}"}}, "文本已改变：{after} → {x}"),
    ({"code": "something.else", "values": {}, "text": "something else"}, "something else"),
)
"""What the gateway says, and what people read of it on the Chinese page."""


def begun(seen: Seen, words: str = "Go") -> None:
    seen.ask(words)
    seen.page.wait_for_function("() => [...document.querySelectorAll('.prose')].at(-1)?.textContent.includes('word2')")


def forgive(seen: Seen, *parts: str) -> None:
    """The browser itself notes each request that fails."""
    assert [error for error in seen.errors if not any(part in error for part in parts)] == []
    seen.errors.clear()


def test_a_gateway_that_ends_in_mid_answer_is_told_and_everything_stays(serve: Serve, look: Look) -> None:
    site = serve(SLOW)
    site.ask("POST", "/api/sessions", {"title": "An older one"})
    seen = look(site)
    begun(seen)
    expect(seen.page.locator(".session")).to_have_count(2)
    site.end()
    expect(seen.page.locator(".answer .notice")).to_contain_text("The gateway stopped before the answer was complete.")
    expect(seen.page.locator(".answer .notice")).to_have_count(1)
    expect(seen.page.locator(".answer")).not_to_contain_text("Stopped")
    expect(seen.page.locator(".prose")).to_contain_text("word0 word1 word2")
    assert (seen.page.text_content(".tools") or "").strip() == "Inspect"
    expect(seen.page.locator(".side-note")).to_contain_text("Not up to date")
    expect(seen.page.locator(".session")).to_have_count(2)
    expect(seen.page.locator("#side .problem")).to_have_count(0)
    expect(seen.page.locator(".toast.bad")).to_have_count(0)
    expect(seen.page.locator(".go")).to_have_attribute("aria-label", "Send")
    forgive(seen, *UNREACHABLE)


def test_an_answer_that_somebody_else_stopped_is_not_said_to_be_stopped_here(serve: Serve, look: Look) -> None:
    site = serve(SLOW)
    seen = look(site)
    begun(seen)
    turn = seen.page.get_attribute(".turn", "data-turn")
    site.ask("POST", f"/api/turns/{turn}/cancel", {})
    expect(seen.page.locator(".answer .notice")).to_contain_text("not from this page")
    seen.page.reload()
    expect(seen.page.locator(".answer .notice")).to_have_text("Ended before it was complete. What arrived is saved.")


def test_enter_while_an_answer_runs_says_that_the_words_wait(serve: Serve, look: Look) -> None:
    seen = look(serve(SLOW))
    begun(seen)
    expect(seen.page.locator(".waits")).not_to_be_visible()
    seen.ask("And then?")
    expect(seen.page.locator(".waits")).to_contain_text("your message waits here")
    expect(seen.page.locator("#ask")).to_have_value("And then?")
    seen.page.keyboard.press("Escape")
    expect(seen.page.locator(".answer .notice")).to_contain_text("Stopped")
    expect(seen.page.locator(".waits")).not_to_be_visible()
    expect(seen.page.locator("#ask")).to_have_value("And then?")


def test_a_refused_call_is_not_drawn_as_a_link_that_was_taken_away(world: World, look: Look) -> None:
    seen = look(world[0])
    lines = seen.page.evaluate(
        """async () => {
            const { Turn } = await import("/web/turns.js");
            const turn = new Turn({}, "x");
            document.querySelector(".log").append(turn.root);
            turn.take("text", { text: "A [link](javascript:x)." });
            turn.take("call", { id: "1", name: "write_file", arguments: "{}" });
            turn.take("result", { id: "1", text: "no", state: "refused", seconds: 0 });
            const line = (name) => getComputedStyle(turn.root.querySelector(name)).textDecorationLine;
            return [line(".call.refused"), line(".prose .no-link")];
        }"""
    )
    assert lines == ["none", "underline"]


def test_compaction_is_headed_by_what_it_did(world: World, look: Look) -> None:
    seen = look(world[0])
    heads = seen.page.evaluate(
        """async () => {
            const { Turn } = await import("/web/turns.js");
            const turn = new Turn({}, "x");
            document.querySelector(".log").append(turn.root);
            for (const code of ["notice.folded", "notice.not_compacted"]) {
                turn.take("notice", { kind: "compaction", phrase: { code, values: {} } });
            }
            return [...turn.root.querySelectorAll(".notice b")].map((one) => one.textContent);
        }"""
    )
    assert heads == ["Compacted", "Not compacted"]
    assert seen.page.evaluate("() => getComputedStyle(document.querySelector('.notice b')).whiteSpace") == "nowrap"


def test_a_turn_that_nobody_counted_is_a_gap_in_the_chart(look: Look, serve: Serve) -> None:
    site = serve(HELLO, HELLO, [{"text": "Uncounted."}], HELLO)
    session, _ = site.said("One")
    for words in ("Two", "Three", "Four"):
        site.said(words, session)
    turns = site.ask("GET", f"/api/sessions/{session}/turns")["turns"]
    stored = json.loads(json.dumps(turns))
    stored[2]["usage"] = {}  # as of a turn that was stopped before its provider said a number
    seen = look(site)
    seen.page.route("**/turns?limit=1000", lambda route: route.fulfill(json={"turns": stored}))
    seen.go(f"#/t/{turns[3]['turn_id']}/inspect")
    bars = seen.page.locator(".chart-svg .bar")
    expect(bars).to_have_count(4)
    assert bars.nth(2).get_attribute("aria-label") == "Turn 3: no tokens were counted"
    expect(bars.nth(2).locator(".prompt, .cached")).to_have_count(0)
    expect(seen.page.locator(".share-dot")).to_have_count(3)
    expect(seen.page.locator(".share-line")).to_have_count(1)
    assert len((seen.page.get_attribute(".share-line", "points") or "").split()) == 2


def test_a_turn_that_was_really_stopped_is_such_a_gap(serve: Serve, look: Look) -> None:
    site = serve(HELLO, SLOW)
    session, _ = site.said("One")
    seen = look(site)
    seen.go(f"#/s/{session}")
    seen.page.wait_for_selector(".numbers")
    begun(seen)
    seen.page.keyboard.press("Escape")
    expect(seen.page.locator(".answer .notice")).to_contain_text("Stopped")
    seen.go(f"#/s/{session}/inspect")
    bars = seen.page.locator(".chart-svg .bar")
    expect(bars).to_have_count(2)
    assert bars.nth(1).get_attribute("aria-label") == "Turn 2: no tokens were counted"


def test_the_hint_of_an_answer_that_failed_is_there_after_a_reload_where_it_is_stored(serve: Serve, look: Look) -> None:
    site = serve([{"fault": "refused"}])
    session, _ = site.said("Go")
    turns: list[dict[str, Any]] = site.ask("GET", f"/api/sessions/{session}/turns")["turns"]
    turns[0]["hint"] = {"code": "x", "values": {}, "text": "is it running?"}
    seen = look(site)
    seen.page.route("**/turns?limit=1000", lambda route: route.fulfill(json={"turns": turns}))
    seen.go(f"#/s/{session}")
    expect(seen.page.locator(".answer .problem .hint")).to_have_text("is it running?")


def test_errors_are_chinese_where_the_page_is_and_others_stay_as_they_are(serve: Serve, look: Look) -> None:
    site = serve([{"fault": "refused"}])
    seen = look(site, locale="zh-CN")
    seen.ask("Go")
    box = seen.page.locator(".answer .problem")
    expect(box).to_contain_text("无法连接 脚本")
    expect(box.locator(".hint")).to_have_text("它在运行吗？")
    english = look(site)
    expect(english.page.locator(".problem")).to_have_count(0)


def failing(route: Route) -> None:
    route.fulfill(status=500, json={"error": {"message": "it broke", "hint": "mend it", "type": "internal"}})


def test_toasts_cover_no_answer_are_closed_and_errors_go_with_their_view(serve: Serve, look: Look) -> None:
    seen = look(serve(HELLO))
    seen.ask("Go")
    seen.answered()
    seen.page.route("**/collected", failing)
    star, bad = seen.page.locator(".turn .collect"), seen.page.locator(".toast.bad")
    star.click()
    expect(bad).to_contain_text("it broke: mend it")
    covered = """() => {
        const boxes = [...document.querySelectorAll(".answer-foot button, .answer-foot a, .composer, .head button")];
        const toast = document.querySelector(".toast").getBoundingClientRect();
        const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
        return boxes.filter((one) => one.checkVisibility() && !apart(one.getBoundingClientRect(), toast)).length;
    }"""
    assert seen.page.evaluate(covered) == 0
    bad.get_by_role("button", name="Close").click()
    expect(bad).to_have_count(0)
    star.click()
    expect(bad).to_have_count(1)
    seen.page.keyboard.press("Escape")
    expect(bad).to_have_count(0)
    star.click()
    expect(bad).to_have_count(1)
    seen.go("#/memories")
    expect(bad).to_have_count(0)
    forgive(seen, "500")


@pytest.mark.parametrize("sees", [True, False, None])
def test_the_button_for_pictures_is_off_where_the_model_sees_none(
    world: World, look: Look, *, sees: bool | None
) -> None:
    site, _, _ = world
    seen = look(site)
    me: dict[str, Any] = site.ask("GET", "/api/me") | {"pictures": sees}
    seen.page.route("**/api/me", lambda route: route.fulfill(json=me))
    seen.page.reload()
    picture = seen.page.locator(".composer .picture")
    if sees is False:
        expect(picture).to_be_disabled()
        expect(picture).to_have_attribute("title", "This model cannot see pictures")
    else:
        expect(picture).to_be_enabled()
        expect(picture).to_have_attribute("title", "Add a picture")


@pytest.mark.parametrize("lang", ["en-GB", "zh-CN"])
def test_a_wrong_token_is_told_and_the_right_address_is_named_first(serve: Serve, look: Look, lang: str) -> None:
    site = serve(HELLO)
    seen = look(site, enter=False, locale=lang)
    seen.page.goto(f"{site.url}/?token=lam_loopback_wrong")
    told = {"en-GB": "This token is wrong.", "zh-CN": "这个令牌不对。"}[lang]
    expect(seen.page.locator(".login .problem")).to_contain_text(told)
    expect(seen.page.locator(".login p code").first).to_have_text("lamina serve")
    expect(seen.page.locator(".login p code").nth(1)).to_have_text("lamina keys new")
    seen.page.goto(site.door)
    expect(seen.page.locator("#ask")).to_be_visible()
    seen.page.goto(f"{site.url}/?token=lam_loopback_wrong")
    expect(seen.page.locator("#ask")).to_be_visible()
    expect(seen.page.locator(".toast")).to_contain_text(told[:-1])
    forgive(seen, "401")


def test_what_receipts_say_is_chinese_where_the_page_is(world: World, look: Look) -> None:
    site, _, turns = world
    seen = look(site, locale="zh-CN")
    seen.go(f"#/t/{turns[3]}/inspect")
    table = seen.page.locator(".segments tbody")
    for english, chinese in (
        ("always kept", "始终保留"),
        ("fits the budget", "在预算之内"),
        ("newest", "最新消息"),
    ):
        expect(table).to_contain_text(chinese)
        expect(table).not_to_contain_text(english)
    trusts = seen.page.locator(".segments td:nth-child(5)").all_inner_texts()
    assert set(trusts) <= {"运营者", "用户", "模型", "外部"}
    seen.go(f"#/diff/{turns[2]}/{turns[3]}")
    expect(seen.page.locator(".why")).to_have_text("追加在末尾")
    rendered = seen.page.evaluate(
        """async (said) => {
            const { phrase } = await import("/web/texts.js");
            return said.map(phrase);
        }""",
        [said for said, _ in PHRASES],
    )
    assert rendered == [chinese for _, chinese in PHRASES]


def test_what_was_found_is_counted_in_the_language_that_is_chosen_and_has_no_marks(world: World, look: Look) -> None:
    seen = look(world[0])
    seen.page.fill("#side input", "old pier")
    expect(seen.page.locator(".lists h2").first).to_contain_text("found")
    snippets = " ".join(seen.page.locator(".snippet").all_inner_texts())
    assert "old pier" in snippets
    assert "**" not in snippets
    seen.page.click(".language")
    expect(seen.page.locator(".lists h2").first).to_contain_text("找到")


def test_on_a_phone_the_chart_is_at_its_turn_and_no_key_is_named(look: Look, serve: Serve) -> None:
    site = serve(HELLO)
    session, turn = site.said("One")
    for number in range(20):
        turn = site.said(f"Question {number}", session)[1]
    seen = look(site, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    expect(seen.page.locator("#ask")).to_have_attribute("placeholder", "Ask something…")
    seen.go(f"#/t/{turn}/inspect")
    seen.page.wait_for_selector(".bar.current")
    expect(seen.page.locator(".bar.current")).to_be_in_viewport()
    expect(seen.page.locator(".columns .for-keys")).not_to_be_visible()
    seen.go(f"#/s/{session}")
    seen.page.get_by_role("button", name="Open the menu").tap()
    expect(seen.page.locator("#side input")).to_have_attribute("placeholder", "Search all messages")
    expect(seen.page.locator("#side .for-keys")).not_to_be_visible()


def test_two_turns_are_named_by_their_number(world: World, look: Look) -> None:
    site, _, turns = world
    seen = look(site)
    seen.go(f"#/diff/{turns[0]}/{turns[2]}")
    heads = seen.page.locator(".side-of > header")
    for head, name, turn in ((heads.nth(0), "turn 1", turns[0]), (heads.nth(1), "turn 3", turns[2])):
        expect(head.locator("a")).to_have_text(name)
        expect(head.locator("code")).to_have_text(turn[:8])


def test_a_long_card_fades_and_leads_to_all_of_it(look: Look, serve: Serve) -> None:
    long = "- [x] a point that was made\n" * 60
    site = serve([{"text": long}], [{"text": "Short."}])
    for words in ("Long", "Short"):
        session, _ = site.said(words)
        row = site.ask("GET", f"/api/sessions/{session}/messages")["messages"][-1]
        site.ask("PUT", f"/api/messages/{row['message_id']}/collected", {"collected": True})
    seen = look(site)
    seen.go("#/collected")
    expect(seen.page.locator(".card")).to_have_count(2)
    expect(seen.page.locator(".folded.long")).to_have_count(1)
    expect(seen.page.locator(".card .all:visible")).to_have_count(1)
    tick = "() => getComputedStyle(document.querySelector('.task.ticked'), '::after').borderBottomWidth"
    assert seen.page.evaluate(tick) == "2px"
    seen.page.locator(".card .all:visible").click()
    expect(seen.page.locator(".found")).to_be_visible()
