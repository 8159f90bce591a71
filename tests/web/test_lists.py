"""Memories, skills and rules on the page: seen, traced to where they came from, changed."""

import re
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from tests.web.conftest import Look, Serve
from tests.web.site import Site, serving
from tests.web.story import SKILLS


def texts(site: Site) -> set[str]:
    return {one["text"] for one in site.ask("GET", "/api/memories")["memories"]}


def test_C12_memories_are_added_edited_pinned_and_forgotten(serve: Serve, look: Look) -> None:
    site = serve([{"text": "Noted."}])
    seen = look(site)
    seen.go("#/memories")
    expect(seen.page.locator(".empty h2")).to_have_text("Nothing remembered yet")
    seen.page.fill(".add input", "The cat is called Fünf.")
    seen.page.select_option(".add select", "preference")
    seen.page.keyboard.press("Enter")
    seen.page.get_by_role("button", name="Remember").click()
    fact = seen.page.locator(".fact")
    expect(fact.locator(".fact-text")).to_have_text("The cat is called Fünf.")
    expect(fact.locator(".origin")).to_have_text("Written by hand")
    seen.page.get_by_role("button", name="Edit").click()
    seen.page.fill(".edit textarea", "猫叫五号。")
    seen.page.get_by_role("button", name="Save").click()
    expect(fact.locator(".fact-text")).to_have_text("猫叫五号。")
    assert texts(site) == {"猫叫五号。"}
    seen.page.get_by_role("button", name="Pin").click()
    expect(fact.locator(".strong-chip")).to_have_text("pinned")
    assert site.ask("GET", "/api/memories")["memories"][0]["pinned"] is True
    seen.page.get_by_role("button", name="Forget").click()
    seen.page.locator("dialog .bad").click()
    expect(seen.page.locator(".empty h2")).to_be_visible()
    assert texts(site) == set()


def test_C12_a_memory_leads_to_the_message_that_it_came_from(world: tuple[Site, str, list[str]], look: Look) -> None:
    site, session, _ = world
    seen = look(site)
    seen.go("#/memories")
    fact = seen.page.locator(".fact", has_text="My editor is called Wei.")
    expect(fact.locator(".origin")).to_contain_text("From “The night at the old pier”")
    fact.locator("a.origin").click()
    expect(seen.page.locator(".found")).to_contain_text("My editor is called Wei.")
    assert seen.session == session


def test_memories_are_searched_in_both_languages(world: tuple[Site, str, list[str]], look: Look) -> None:
    seen = look(world[0])
    seen.go("#/memories")
    expect(seen.page.locator(".fact").nth(2)).to_be_visible()
    for words, found in (("table", "give a table"), ("左手", "左手写字")):
        seen.page.fill(".page .search input", words)
        expect(seen.page.locator(".fact-text").first).to_contain_text(found)
        expect(seen.page.locator(".fact mark").first).to_have_text(words)
        expect(seen.page.locator(".fact .why").first).to_contain_text("words")


def test_own_skills_are_switched_off_and_on(serve: Serve, look: Look) -> None:
    site = serve([{"text": "x"}])
    empty = look(site)
    empty.go("#/skills")
    expect(empty.page.locator(".page .hint").first).to_contain_text("import FILE --user ann – with a SQLite store")
    made: dict[str, Any] = site.ask("POST", "/api/templates", SKILLS[0])
    seen = look(site)
    seen.go("#/skills")
    box = seen.page.get_by_role("switch")
    expect(box).to_be_checked()
    box.click()
    expect(seen.page.locator(".card .switch span")).to_have_text("off")
    now = site.ask("GET", f"/api/templates/{made['template_id']}")
    assert now["enabled"] is False
    assert {name: now[name] for name in SKILLS[0]} == dict(SKILLS[0])
    box.click()
    expect(seen.page.locator(".card .switch span")).to_have_text("on")
    seen.go("#/new")
    expect(seen.page.locator(".welcome select").nth(1).locator("option")).to_have_text(["No skill", "chapter-plan"])


def test_a_skill_for_another_app_is_not_offered_and_a_refusal_leaves_the_choice(serve: Serve, look: Look) -> None:
    site = serve([{"text": "Beats."}])
    site.ask("POST", "/api/templates", {**SKILLS[0], "name": "sums", "supported_apps": ["Excel"]})
    gone: dict[str, Any] = site.ask("POST", "/api/templates", SKILLS[0])
    seen = look(site)
    seen.go("#/new")
    select = seen.page.locator(".welcome select").nth(1)
    expect(select.locator("option")).to_have_text(["No skill", "chapter-plan"])
    select.select_option("chapter-plan")
    site.ask("PUT", f"/api/templates/{gone['template_id']}", {**SKILLS[0], "supported_apps": ["Excel"]})
    seen.page.fill("#ask", "Plan it.")
    seen.page.keyboard.press("Enter")
    expect(seen.page.locator(".problem")).to_contain_text("it is for Excel: --app Excel")
    seen.errors.clear()  # it was refused, and the browser says so too
    expect(seen.page.locator("#ask")).to_have_value("Plan it.")
    expect(seen.page.locator(".welcome .mode")).to_be_visible()
    select.select_option("")
    seen.page.locator("#ask").press("Enter")
    expect(seen.page.locator(".answer, .turn").last).to_contain_text("Beats.")


def test_where_sessions_run_in_an_app_its_skills_are_offered(serve: Serve, look: Look) -> None:
    site = serve([{"text": "x"}], LAMINA_HOST="Excel")
    site.ask("POST", "/api/templates", {**SKILLS[0], "name": "sums", "supported_apps": ["excel"]})
    seen = look(site)
    seen.go("#/new")
    expect(seen.page.locator(".welcome select").nth(1).locator("option")).to_have_text(["No skill", "sums"])


def test_modes_whose_tools_the_gateway_does_not_have_say_so(tmp_path: Path, serve: Serve, look: Look) -> None:
    seen = look(serve([{"text": "x"}]))
    expect(seen.page.locator(".welcome .mode option")).to_have_text(["Ask", "Plan (no tools)", "Agent (no tools)"])
    expect(seen.page.locator(".welcome .mode")).to_have_attribute("title", re.compile("LAMINA_GATEWAY_TOOLS=on"))
    with serving(
        tmp_path, [[{"text": "x"}]], environ={"LAMINA_STORE": "other.db", "LAMINA_GATEWAY_TOOLS": "on"}
    ) as site:
        assert site.ask("GET", "/api/me")["tools"] is True


def test_rules_in_force_are_listed_with_their_hashes(world: tuple[Site, str, list[str]], look: Look) -> None:
    site, session, _ = world
    seen = look(site)
    seen.go("#/skills")
    rows = seen.page.locator(".page .table tbody tr")
    files = site.ask("GET", f"/api/sessions/{session}/rules")["files"]
    expect(rows).to_have_count(len(files))
    for row, file in zip(rows.all(), files, strict=True):
        expect(row).to_contain_text(file["path"])
        expect(row).to_contain_text(file["hash"][:12])
