"""Chatting on the page: what streams, what can be stopped, taken up, collected, branched and found again."""

import base64
import re
import struct
import zlib
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.web.conftest import Look, Serve
from tests.web.site import Site

HELLO = [{"text": "Hello **there**.\n\n```python\nprint(1)\n```\n"}, {"usage": [100, 40, 7]}]
SLOW = [step for n in range(40) for step in ({"text": f"word{n} "}, {"delay": 0.1})]


def messages(site: Site, session: str) -> list[dict[str, Any]]:
    return site.ask("GET", f"/api/sessions/{session}/messages")["messages"]


def png(width: int = 8, height: int = 8) -> bytes:
    rows = b"".join(b"\0" + b"\x20\x80\x70" * width for _ in range(height))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_C12_an_answer_comes_as_markdown_with_its_usage_and_code_that_can_be_copied(serve: Serve, look: Look) -> None:
    seen = look(serve(HELLO), permissions=["clipboard-read", "clipboard-write"])
    seen.ask("Say hello")
    seen.answered()
    expect(seen.page.locator(".bubble .words")).to_have_text("Say hello")
    expect(seen.page.locator(".prose strong")).to_have_text("there")
    expect(seen.page.locator(".code-head > span").first).to_have_text("python")
    expect(seen.page.locator(".numbers")).to_contain_text("100 in · 40 cached (40%) · 7 out")
    seen.page.click(".code-head button")
    assert seen.page.evaluate("navigator.clipboard.readText()") == "print(1)"
    expect(seen.page.locator(".session .place")).to_have_text("Say hello")


def test_C12_text_is_on_the_page_before_the_answer_is_whole(serve: Serve, look: Look) -> None:
    seen = look(serve(SLOW))
    seen.ask("Go")
    seen.page.wait_for_function("() => document.querySelector('.prose')?.textContent.includes('word3')")
    assert "word39" not in (seen.page.text_content(".prose") or "")
    expect(seen.page.locator(".answer")).to_have_attribute("aria-busy", "true")
    expect(seen.page.locator(".go")).to_have_attribute("aria-label", "Stop (Esc)")
    seen.page.keyboard.press("Escape")
    seen.answered(0)


def test_C6_a_new_session_has_an_id_of_its_own_and_nothing_of_the_old_one(serve: Serve, look: Look) -> None:
    site = serve(HELLO)
    seen = look(site)
    seen.ask("First")
    seen.answered()
    first = seen.session
    seen.page.get_by_role("button", name="New session").click()
    expect(seen.page.locator(".welcome h2")).to_be_visible()
    expect(seen.page.locator(".turn")).to_have_count(0)
    seen.ask("Second")
    seen.answered()
    assert seen.session != first
    assert [row["text"] for row in messages(site, seen.session) if row["role"] == "user"] == ["Second"]
    expect(seen.page.locator(".session")).to_have_count(2)


def test_C9_collecting_marks_exactly_that_answer_and_can_be_undone(serve: Serve, look: Look) -> None:
    site = serve(HELLO)
    seen = look(site)
    for number, words in enumerate(("One", "Two"), 1):
        seen.ask(words)
        seen.answered(number)
    seen.page.locator(".collect").nth(1).click()
    expect(seen.page.locator(".collect").nth(1)).to_have_attribute("aria-pressed", "true")
    rows = messages(site, seen.session)
    assert [row["seq"] for row in rows if row["is_collected"]] == [4]
    seen.go("#/collected")
    expect(seen.page.locator(".card")).to_have_count(1)
    expect(seen.page.locator(".card strong")).to_have_text("there")
    seen.page.click(".card .collect")
    expect(seen.page.locator(".empty h2")).to_have_text("Nothing collected yet")
    assert not [row for row in messages(site, rows[0]["session_id"]) if row["is_collected"]]


def test_escape_stops_an_answer_and_what_came_is_kept(serve: Serve, look: Look) -> None:
    site = serve(SLOW)
    seen = look(site)
    seen.ask("Go")
    seen.page.wait_for_function("() => document.querySelector('.prose')?.textContent.includes('word2')")
    seen.page.keyboard.press("Escape")
    expect(seen.page.locator(".notice")).to_contain_text("Stopped")
    row = messages(site, seen.session)[-1]
    assert row["state"] == "interrupted"
    assert row["text"].startswith("word0 word1 word2")
    expect(seen.page.locator(".go")).to_have_attribute("aria-label", "Send")


def test_a_reload_in_mid_stream_shows_the_whole_answer_once(serve: Serve, look: Look) -> None:
    site = serve(SLOW)
    seen = look(site)
    seen.ask("Go")
    seen.page.wait_for_function("() => document.querySelector('.prose')?.textContent.includes('word3')")
    seen.page.reload()
    seen.page.wait_for_function("() => document.querySelector('.prose')?.textContent.includes('word39')")
    expect(seen.page.locator(".turn")).to_have_count(1)
    seen.page.wait_for_selector(".answer-foot .collect")
    whole = "".join(f"word{n} " for n in range(40)).strip()
    assert (seen.page.text_content(".prose") or "").strip() == whole
    assert messages(site, seen.session)[-1]["text"].strip() == whole


def test_a_line_that_breaks_is_taken_up_where_it_broke(serve: Serve, look: Look) -> None:
    seen = look(serve([{"text": "abcdef"}, {"usage": [3, 0, 2]}]))
    given: list[str | None] = []

    def broken(route: Route) -> None:
        given.append(route.request.headers.get("last-event-id"))
        if len(given) == 1:
            body = (
                'id: 0\nevent: began\ndata: {"answer_id":"x"}\n\nid: 3\nevent: text\ndata: {"text":"abc"}\n\nid: 9\nev'
            )
            route.fulfill(status=200, content_type="text/event-stream", body=body)
        else:
            route.continue_()

    seen.page.route(re.compile(r"/api/turns/[^/]+/events"), broken)
    seen.ask("Go")
    seen.answered()
    assert given == [None, "3"]
    expect(seen.page.locator(".prose")).to_have_text("abcdef")


def test_asking_again_and_branching_leave_the_old_session_as_it_was(serve: Serve, look: Look) -> None:
    site = serve(HELLO, [{"text": "Another."}, {"usage": [1, 0, 1]}])
    seen = look(site)
    seen.ask("Question")
    seen.answered()
    first = seen.session
    before = messages(site, first)
    seen.page.get_by_role("button", name="Ask again in a branch").click()
    expect(seen.page.locator(".prose")).to_have_text("Another.")
    assert seen.session != first
    seen.go(f"#/s/{first}")
    seen.page.get_by_role("button", name="Branch from here").click()
    seen.page.wait_for_function("(old) => !location.hash.includes(old)", arg=first)
    expect(seen.page.locator(".prose strong")).to_have_text("there")
    assert messages(site, first) == before


def test_editing_a_question_asks_in_a_branch_with_the_words_ready(serve: Serve, look: Look) -> None:
    seen = look(serve(HELLO))
    for number, words in enumerate(("One", "Two words"), 1):
        seen.ask(words)
        seen.answered(number)
    first = seen.session
    seen.page.locator(".asked").nth(1).hover()
    seen.page.get_by_role("button", name="Edit in a branch").nth(1).click()
    expect(seen.page.locator("#ask")).to_have_value("Two words")
    expect(seen.page.locator(".turn")).to_have_count(1)
    assert seen.session != first


def test_C12_sessions_are_found_by_words_renamed_and_deleted_after_a_question(serve: Serve, look: Look) -> None:
    site = serve([{"text": "The lighthouse keeper 灯塔看守人 slept."}])
    session, _ = site.said("Who slept?")
    seen = look(site)
    seen.page.keyboard.press("Control+k")
    expect(seen.page.locator("#side input")).to_be_focused()
    for words, marks in (("lighthouse", ["lighthouse"]), ("灯塔", ["灯塔"])):
        seen.page.fill("#side input", words)
        expect(seen.page.locator(".snippet mark")).to_have_text(marks)
    seen.page.click(".hit")
    expect(seen.page.locator(".found")).to_contain_text("slept")
    seen.page.fill("#side input", "nothingofthat")
    expect(seen.page.locator("#side .hint")).to_contain_text("Nothing found")
    seen.page.fill("#side input", "")
    seen.page.locator(".session button").first.click()
    seen.page.get_by_role("menuitem", name="Rename").click()
    seen.page.fill("dialog input", "The keeper")
    seen.page.keyboard.press("Enter")
    expect(seen.page.locator(".session .place")).to_have_text("The keeper")
    expect(seen.page.locator(".head h1")).to_have_text("The keeper")
    seen.page.locator(".session button").first.click()
    seen.page.get_by_role("menuitem", name="Delete").click()
    expect(seen.page.locator("dialog")).to_contain_text("deleted for good")
    seen.page.keyboard.press("Escape")
    assert site.ask("GET", f"/api/sessions/{session}")["title"] == "The keeper"
    seen.page.locator(".session button").first.click()
    seen.page.get_by_role("menuitem", name="Delete").click()
    seen.page.locator("dialog .bad").click()
    expect(seen.page.locator(".session")).to_have_count(0)
    assert site.ask("GET", "/api/sessions")["sessions"] == []


def test_a_long_session_is_shown_from_its_end_and_from_its_middle(serve: Serve, look: Look) -> None:
    site = serve([{"text": "Yes."}])
    session, _ = site.said("Question 0")
    for number in range(1, 70):
        site.said(f"Question {number}", session)
    seen = look(site)
    seen.go(f"#/s/{session}")
    expect(seen.page.locator(".turn")).to_have_count(50)
    expect(seen.page.locator(".bubble").last).to_have_text("Question 69")
    seen.page.get_by_role("button", name="Show older").click()
    expect(seen.page.locator(".turn")).to_have_count(70)
    expect(seen.page.locator(".bubble").first).to_have_text("Question 0")
    seen.go(f"#/s/{session}/3")
    expect(seen.page.locator(".found")).to_contain_text("Question 1")
    seen.page.locator(".newer button").click()
    expect(seen.page.locator(".bubble").last).to_have_text("Question 69")


def paste(page: Page, data: bytes) -> None:
    page.evaluate(
        """(data) => {
            const bytes = Uint8Array.from(atob(data), (char) => char.charCodeAt(0));
            const given = new DataTransfer();
            const options = { clipboardData: given, cancelable: true, bubbles: true };
            given.items.add(new File([bytes], "a.png", { type: "image/png" }));
            document.querySelector("#ask").dispatchEvent(new ClipboardEvent("paste", options));
        }""",
        base64.b64encode(data).decode(),
    )


def test_pictures_are_pasted_or_chosen_shown_and_sent_as_data(serve: Serve, look: Look) -> None:
    site = serve(HELLO)
    seen = look(site)
    seen.page.set_input_files("input[type=file]", {"name": "b.png", "mimeType": "image/png", "buffer": png()})
    expect(seen.page.locator(".preview")).to_have_count(1)
    paste(seen.page, png(4, 4))
    expect(seen.page.locator(".preview")).to_have_count(2)
    seen.page.locator(".preview button").first.click()
    expect(seen.page.locator(".preview")).to_have_count(1)
    seen.ask("What is this?")
    seen.answered()
    content = messages(site, seen.session)[0]["content"]
    assert [part["type"] for part in content] == ["text", "image_url"]
    assert content[1]["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(png(4, 4)).decode()
    expect(seen.page.locator(".bubble img")).to_have_count(1)
    seen.page.set_input_files("input[type=file]", {"name": "c.svg", "mimeType": "image/svg+xml", "buffer": b"<svg/>"})
    expect(seen.page.locator(".toast.bad")).to_contain_text("PNG, JPEG, WebP and GIF")


def test_an_answer_that_fails_says_what_and_what_to_do(serve: Serve, look: Look) -> None:
    seen = look(serve([{"delay": 0.5}, {"fault": "refused"}]))
    seen.ask("Go")
    expect(seen.page.locator(".answer .problem")).to_contain_text("the script cannot be reached")
    expect(seen.page.locator(".answer .problem .hint")).to_have_text("is it running?")


def test_a_tool_call_is_folded_with_its_arguments_and_result(world: tuple[Site, str, list[str]], look: Look) -> None:
    site, session, _ = world
    seen = look(site)
    seen.go(f"#/s/{session}")
    call = seen.page.locator("details.call")
    expect(call).to_have_count(1)
    expect(call.locator("summary")).to_contain_text("read_file")
    expect(call.locator("pre").first).not_to_be_visible()
    call.locator("summary").click()
    expect(call.locator("pre").first).to_contain_text('"path": "AGENTS.md"')
    expect(call.locator(".call-result pre")).to_contain_text("# House rules")
    assert "<data-" not in (call.locator(".call-result pre").text_content() or "")


@pytest.mark.parametrize("lang", ["en-GB", "zh-CN"])
def test_without_a_cookie_a_key_is_asked_for(serve: Serve, look: Look, lang: str) -> None:
    site = serve(HELLO)
    seen = look(site, enter=False, locale=lang)
    seen.page.goto(site.url)
    seen.page.fill("#key", "lam_wrong")
    seen.page.keyboard.press("Enter")
    expect(seen.page.locator(".problem")).to_have_text(
        "网关不认识这个密钥。" if lang == "zh-CN" else "The gateway does not know this key."
    )
    seen.page.fill("#key", site.token)
    seen.page.keyboard.press("Enter")
    seen.page.wait_for_selector("#ask")
    assert [cookie.get("httpOnly") for cookie in seen.page.context.cookies()] == [True]
    assert site.token not in seen.page.content()
    seen.page.click(".sign-out")
    expect(seen.page.locator("#key")).to_be_focused()
    assert seen.page.context.cookies() == []
    refused = [error for error in seen.errors if "401" in error]
    assert len(refused) == len(seen.errors)  # the browser itself notes each 401
    seen.errors.clear()
