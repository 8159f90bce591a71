"""The inspector: the bytes on the page are those that were sent, and what is said of them is what the receipt says."""

import hashlib
import urllib.request
from typing import Any

from playwright.sync_api import Page, expect

from tests.web.browser import Seen
from tests.web.conftest import Look, Serve
from tests.web.site import Site

World = tuple[Site, str, list[str]]


def payload(site: Site, turn: str, request: int = 0) -> bytes:
    query = f"?request={request}" if request else ""
    asked = urllib.request.Request(
        f"{site.url}/api/turns/{turn}/payload{query}", headers={"Authorization": f"Bearer {site.token}"}
    )
    with urllib.request.urlopen(asked, timeout=30) as reply:
        return reply.read()


def receipt(site: Site, turn: str, request: int = 0) -> dict[str, Any]:
    return site.ask("GET", f"/api/turns/{turn}/receipt" + (f"?request={request}" if request else ""))


def opened(world: World, look: Look, place: int, **options: Any) -> tuple[Seen, str]:
    site, _, turns = world
    seen = look(site, **options)
    seen.go(f"#/t/{turns[place]}/inspect")
    seen.page.wait_for_selector(".segments tbody tr")
    return seen, turns[place]


def shown(page: Page) -> str:
    """All text of the payload's blocks, in order."""
    return page.evaluate(
        "() => [...document.querySelectorAll('.payload .seg-text')].map((n) => n.textContent).join('')"
    )


def test_C12_the_payload_is_shown_byte_for_byte_and_layer_by_layer(world: World, look: Look) -> None:
    seen, turn = opened(world, look, 3)
    assert shown(seen.page).encode() == payload(world[0], turn)
    told = receipt(world[0], turn)
    layers = seen.page.locator(".payload .seg-head .layer").all_text_contents()
    assert layers == [one["layer"] for one in told["receipt"]["segments"] if one["decision"] != "dropped"]
    seen.page.get_by_label("Break lines").uncheck()
    assert shown(seen.page).encode() == payload(world[0], turn)


def test_each_segment_has_its_row_with_source_hash_owner_trust_tokens_and_reason(world: World, look: Look) -> None:
    seen, turn = opened(world, look, 3)
    rows = [row.split("\t") for row in seen.page.locator(".segments tbody tr").all_inner_texts()]
    for row, one in zip(rows, receipt(world[0], turn)["receipt"]["segments"], strict=True):
        cells = [cell.strip() for cell in row]
        owner = one["owner"] or "–"
        assert cells[:6] == [
            one["layer"],
            one["source"],
            one["hash"][:8] or "–",
            owner,
            one["trust"],
            f"{one['tokens']:,}",
        ]
        assert cells[6].split() == [one["decision"], *one["reason"]["text"].split()]


def test_tokens_per_layer_are_those_of_the_receipt(world: World, look: Look) -> None:
    seen, turn = opened(world, look, 3)
    told = receipt(world[0], turn)["layers"]
    legend = [row.split() for row in seen.page.locator(".legend li").all_inner_texts()]
    assert [(row[0], row[1]) for row in legend] == [(one["layer"], f"{one['tokens']:,}") for one in told]
    wide = seen.page.evaluate(
        "() => [...document.querySelectorAll('.stack .part')].map((n) => [n.dataset.layer, Number(n.style.flexGrow)])"
    )
    assert wide == [[one["layer"], one["tokens"]] for one in told if one["tokens"]]


def test_a_row_marks_its_bytes_and_bytes_mark_their_row(world: World, look: Look) -> None:
    seen, _ = opened(world, look, 3)
    pointed = "() => [...document.querySelectorAll('.pointed')].map((n) => [n.localName, n.dataset.place])"
    seen.page.locator(".segments tbody tr").nth(5).hover()
    assert seen.page.evaluate(pointed) == [["tr", "5"], ["div", "5"]]
    seen.page.locator(".payload .seg").nth(1).hover()
    assert seen.page.evaluate(pointed) == [["tr", "1"], ["div", "1"]]
    seen.page.locator(".segments tbody tr").nth(2).focus()
    assert seen.page.evaluate(pointed) == [["tr", "2"], ["div", "2"]]
    seen.page.keyboard.press("Tab")
    assert seen.page.evaluate(pointed) == [["tr", "3"], ["div", "3"]]


def test_each_request_of_a_turn_with_tools_can_be_looked_at(world: World, look: Look) -> None:
    seen, turn = opened(world, look, 1)
    assert shown(seen.page).encode() == payload(world[0], turn, 2)
    seen.page.get_by_role("link", name="Request 1 of 2").click()
    expect(seen.page.get_by_role("link", name="Request 1 of 2")).to_have_attribute("aria-current", "true")
    assert shown(seen.page).encode() == payload(world[0], turn, 1) != payload(world[0], turn, 2)


def test_the_raw_bytes_are_checked_on_the_page_and_downloaded_whole(world: World, look: Look) -> None:
    seen, turn = opened(world, look, 3)
    sent = payload(world[0], turn)
    seen.page.get_by_role("tab", name="Raw bytes").click()
    expect(seen.page.locator(".sha")).to_have_text(f"SHA-256 {hashlib.sha256(sent).hexdigest()}")
    expect(seen.page.locator(".raw .hint")).to_contain_text("matches the receipt")
    assert (seen.page.text_content(".raw pre") or "").encode() == sent
    with seen.page.expect_download() as download:
        seen.page.get_by_role("button", name="Download").click()
    assert download.value.path().read_bytes() == sent


def test_bytes_that_are_not_those_of_the_receipt_are_told(world: World, look: Look) -> None:
    """The planted bug: a gateway that changes one byte on the way."""
    site, _, turns = world
    seen = look(site)
    changed = payload(site, turns[3]).replace(b"Wei", b"Wai", 1)
    seen.page.route("**/payload*", lambda route: route.fulfill(status=200, body=changed))
    seen.go(f"#/t/{turns[3]}/inspect")
    seen.page.get_by_role("tab", name="Raw bytes").click()
    expect(seen.page.locator(".raw .hint")).to_contain_text("does not match the receipt")


def test_two_turns_show_the_first_differing_byte_its_layer_and_the_reason(world: World, look: Look) -> None:
    site, _, turns = world
    seen = look(site)
    for before, after in ((turns[0], turns[1]), (turns[2], turns[3]), (turns[3], turns[0])):
        told = site.ask("GET", f"/api/turns/{before}/diff/{after}")
        seen.go(f"#/diff/{before}/{after}")
        verdict = seen.page.locator(".verdict")
        expect(verdict).to_contain_text(f"byte {told['byte']:,}")
        expect(verdict.locator(".layer")).to_have_text(told["layer"])
        expect(verdict.locator(".why")).to_have_text(told["reason"]["text"])
        expect(verdict.locator(".part.shared")).to_have_text(f"{told['shared_tokens']:,} tokens shared")
        sent = [payload(site, told[side]["turn_id"], told[side]["request"]) for side in ("before", "after")]
        marked = [column.locator(".first-byte").all_inner_texts() for column in seen.page.locator(".side-of").all()]
        for mark, whole in zip(marked, sent, strict=True):
            assert mark == ([chr(whole[told["byte"]])] if told["byte"] < len(whole) else [])
        for column, whole in zip(seen.page.locator(".side-of").all(), sent, strict=True):
            text = column.locator(".payload").evaluate(
                "(n) => [...n.querySelectorAll('.seg-text')].map((one) => one.textContent).join('')"
            )
            assert whole.endswith(text.encode())


def test_a_turn_compared_with_itself_is_the_same(world: World, look: Look) -> None:
    site, _, turns = world
    seen = look(site)
    seen.go(f"#/diff/{turns[0]}/{turns[0]}")
    expect(seen.page.locator(".verdict")).to_have_text("The requests are the same, byte for byte.")


def test_the_chart_has_a_bar_for_each_turn_that_leads_to_it(world: World, look: Look) -> None:
    site, _, turns = world
    seen, _ = opened(world, look, 0)
    bars = seen.page.locator(".chart-svg .bar")
    expect(bars).to_have_count(4)
    assert [bar.get_attribute("aria-label") for bar in bars.all()] == [
        "Turn 1: 1,184 prompt tokens, 0% cached",
        "Turn 2: 1,690 prompt tokens, 83% cached",
        "Turn 3: 1,893 prompt tokens, 89% cached",
        "Turn 4: 2,104 prompt tokens, 90% cached",
    ]
    bars.nth(2).click()
    expect(seen.page.locator(".chart-svg .bar.current title")).to_contain_text("Turn 3")
    assert seen.page.evaluate("() => location.hash") == f"#/t/{turns[2]}/inspect"
    seen.page.get_by_role("link", name="Compare with the previous turn").click()
    expect(seen.page.locator(".verdict")).to_be_visible()
    assert site.url in seen.page.url


def test_what_was_cut_is_told_with_its_reason(look: Look, serve: Serve) -> None:
    script = [[{"text": "many words of an answer " * 60}, {"usage": [900, 0, 300]}]]
    site = serve(*script, LAMINA_BUDGET="900", LAMINA_COMPACTION="false")
    session, turn = site.said("Question")
    for number in range(3):
        turn = site.said(f"Question {number}", session)[1]
    told = receipt(site, turn)["receipt"]
    cut = [one for one in told["segments"] if one["decision"] != "kept"]
    assert cut
    seen = look(site)
    seen.go(f"#/t/{turn}/inspect")
    rows = seen.page.locator(".cuts li")
    expect(rows).to_have_count(len(cut))
    for row, one in zip(rows.all(), cut, strict=True):
        expect(row).to_contain_text(one["decision"])
        expect(row).to_contain_text(one["source"])
        expect(row).to_contain_text(one["reason"]["text"])
    dropped = told["dropped"]
    expect(seen.page.locator(".facts-row")).to_contain_text(
        f"{dropped['count']} messages, {dropped['tokens']:,} tokens"
    )


def test_what_would_be_sent_now_is_shown_and_nothing_is_sent(world: World, look: Look) -> None:
    site, session, turns = world
    seen = look(site)
    seen.go(f"#/s/{session}")
    seen.page.wait_for_selector(".numbers")
    seen.page.get_by_role("button", name="What the model would see").click()
    expect(seen.page.locator(".toast")).to_contain_text("Write something first")
    seen.page.fill("#ask", "Who lit the lamp? 灯是谁点的？")
    seen.page.get_by_role("button", name="What the model would see").click()
    expect(seen.page.locator(".overview")).to_contain_text("Not sent yet")
    assert "Who lit the lamp? 灯是谁点的？" in shown(seen.page)
    seen.page.get_by_role("tab", name="Raw bytes").click()
    expect(seen.page.locator(".raw .hint")).to_contain_text("matches the receipt")
    assert len(site.ask("GET", f"/api/sessions/{session}/turns")["turns"]) == len(turns)
    seen.page.get_by_role("link", name="Back to the chat").click()
    expect(seen.page.locator("#ask")).to_have_value("Who lit the lamp? 灯是谁点的？")
