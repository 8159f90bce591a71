"""Seeds 000, 001, 002 and 004 as a chat keeps to them: what was sent, stored and returned through an entry point.

The files of each seed test the functions with the seed's own data; here the same is looked at in `App`, in a `lamina`
process and over HTTP.
"""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lamina import App, Settings, assemble_segments, estimate_message_tokens
from lamina.app.config import IDENTITY
from lamina.assembly.pieces import mode_hint
from lamina.errors import BudgetError, SettingsError, ToolError
from lamina.records import Template
from lamina.tools import Tool, built_in_tools
from tests.cli.process import Lamina
from tests.engine.chats import chat, end_of, settings, told
from tests.engine.test_tools import CALL, fetching
from tests.gateway.apis import api_on
from tests.gateway.worlds import say as http_say
from tests.spec.test_seed_000 import ALL

LAYOUTS = pytest.mark.parametrize("layout", ["strict", "ledger"])
OK: list[list[dict[str, Any]]] = [[{"text": "ok"}]]


def written(folder: Path, **texts: str) -> dict[str, Any]:
    """Files with these texts, as the settings that name them."""
    for name, text in texts.items():
        (folder / f"{name}.md").write_bytes(text.encode())
    return {name: str(folder / f"{name}.md") for name in texts}


# Seed 000


@LAYOUTS
async def test_P1_app_the_seeds_six_layers_reach_the_model_in_order(tmp_path: Path, layout: str) -> None:
    files = written(tmp_path, identity=ALL["global_identity"], context=ALL["context_overlay"], rules=ALL["user_rules"])
    files["rules"] = "rules.md"
    own: dict[str, Any] = {"workspace": str(tmp_path), "memory": True, "embedder": "none", "layout": layout, **files}
    async with chat(str(tmp_path / "s.db"), OK, **own) as (app, _, provider):
        await app.add_templates("ann", Template("", "novel", ALL["skill_system_prompt"], is_skill=True))
        await app.memory("ann").add(ALL["memory_overlay"])
        session = await app.new_session("ann", mode="agent")
        await told(app, session, "用户偏好简洁风格，续写。")
    system = provider.contexts[-1].system
    places = [system.find(part) for part in ALL.values()]
    assert -1 not in places
    assert places == sorted(places)


@LAYOUTS
@pytest.mark.parametrize("blank", ["", "   ", "\n\t\n"])
async def test_P2_app_blank_files_leave_no_trace(tmp_path: Path, blank: str, layout: str) -> None:
    files = written(tmp_path, identity=blank, instructions="Be brief.", rules=blank, context=blank)
    own: dict[str, Any] = {"form": "plain", "workspace": str(tmp_path), "layout": layout, **files, "rules": "rules.md"}
    async with chat(str(tmp_path / "s.db"), OK, **own) as (app, session, provider):
        await told(app, session, "Go on.")
    assert provider.contexts[-1].system == f"Be brief.\n\n{mode_hint('ask')}", "no placeholder, no separator in front"


async def test_P3_app_the_bytes_of_a_kept_layer_reach_the_model_as_they_are(tmp_path: Path) -> None:
    odd = "  \tleading, 林默 \r\n\n\n\u00a0 e\u0301 \u3000"
    files = written(tmp_path, identity=odd, context=odd)
    async with chat(str(tmp_path / "s.db"), OK, form="plain", **files) as (app, session, provider):
        await told(app, session, "Go on.")
    assert provider.contexts[-1].system.startswith(f"{odd}\n\n")
    assert provider.contexts[-1].system.count(odd) == 2


def test_P6_lamina_ask_sends_the_shipped_identity_until_one_setting_names_another(tmp_path: Path) -> None:
    lamina = Lamina(tmp_path)
    lamina.script([{"text": "ok"}])
    shipped = IDENTITY.read_text(encoding="utf-8").split("</behavior>")[0]
    own = written(tmp_path, identity="<identity>林默</identity>")["identity"]
    sent: list[str] = []
    for more in ({}, {"LAMINA_IDENTITY": own}):
        lamina("ask", "你好", **more)
        request = json.loads(lamina("trace", "show", "last", "--payload"))
        sent.append(request["messages"][0]["content"])
    (tmp_path / "lamina.toml").write_text('identity = "identity.md"\n', encoding="utf-8")
    lamina("ask", "你好")
    sent.append(json.loads(lamina("trace", "show", "last", "--payload"))["messages"][0]["content"])
    assert [shipped in system for system in sent] == [True, False, False]
    assert ["<identity>林默</identity>" in system for system in sent] == [False, True, True]


# Seed 001


async def test_M1_and_M2_app_the_seeds_conversation_is_sent_as_plain_messages_and_counted_by_its_estimate(
    tmp_path: Path,
) -> None:
    files = written(tmp_path, identity="<identity>AI</identity>", instructions="I")
    script = [[{"text": "林默是28岁侦探"}], [{"text": "冷静"}]]
    async with chat(str(tmp_path / "s.db"), script, form="plain", counter="seed", **files) as (app, session, provider):
        await told(app, session, "介绍林默")
        await told(app, session, "他的性格？")
    system, *rest = provider.contexts[-1].messages
    assert (system["role"], str(system["content"]).split("\n")[0]) == ("system", "<identity>AI</identity>")
    assert rest == [
        {"role": "user", "content": "介绍林默"},
        {"role": "assistant", "content": "林默是28岁侦探"},
        {"role": "user", "content": "他的性格？"},
    ]
    receipt = provider.contexts[-1].receipt
    counted = {s.source: s.tokens for s in receipt.segments if s.layer in ("history", "user")}
    texts = [str(message["content"]) for message in rest]
    assert list(counted.values()) == [estimate_message_tokens(text) for text in texts]
    assert receipt.counter == "estimate_message_tokens"


@LAYOUTS
async def test_M3_app_system_and_newest_message_are_sent_whatever_the_budget(tmp_path: Path, layout: str) -> None:
    async with chat(str(tmp_path / "s.db"), OK, budget=1, layout=layout) as (app, session, provider):
        await told(app, session, "第一个问题")
        assert end_of(await told(app, session, "第二个问题")).state == "complete"
    context = provider.contexts[-1]
    assert [message["role"] for message in context.messages] == ["system", "user"]
    assert context.messages[-1]["content"] == "第二个问题"
    assert (context.receipt.over_budget, context.receipt.dropped.count) == (True, 2)


async def test_M4_app_the_oldest_turns_go_first_and_the_longest_end_that_fits_is_kept(tmp_path: Path) -> None:
    files = written(tmp_path, identity="S", instructions="I")
    own: dict[str, Any] = {"form": "plain", "counter": "seed", "budget": 60, **files}
    async with chat(str(tmp_path / "s.db"), [[{"text": "答" * 8}]], **own) as (app, session, provider):
        for number in range(6):
            await told(app, session, f"问题{number}")
        said = [str(row.text) for row in await app.store.messages.list("ann", session.session_id)]
    context = provider.contexts[-1]
    sent = [str(message["content"]) for message in context.messages[1:]]
    assert sent == said[:-1][-len(sent) :], "the end of the session, without a gap"
    dropped = said[: len(said) - 1 - len(sent)]
    assert dropped
    assert context.receipt.tokens <= 60 < context.receipt.tokens + sum(map(estimate_message_tokens, dropped[-2:]))


@pytest.mark.parametrize("budget", [float("nan"), float("inf"), -1, "many", None])
def test_M5_app_a_budget_that_cannot_be_used_is_refused_by_its_value(tmp_path: Path, budget: Any) -> None:
    with pytest.raises((SettingsError, BudgetError), match=str(budget)):
        App.open(tmp_path / "s.db", settings=Settings(budget=budget))


@pytest.mark.parametrize("budget", ["nan", "inf", "-1", "many"])
def test_M5_lamina_ask_a_budget_that_cannot_be_used_is_refused_by_its_value(tmp_path: Path, budget: str) -> None:
    said = Lamina(tmp_path).error("ask", "hi", LAMINA_BUDGET=budget)
    assert "LAMINA_BUDGET" in said
    assert budget in said


async def test_M6_http_a_receipt_says_what_was_dropped_and_whether_it_is_over_budget(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "s.db"), OK, budget=1) as api:
        session = (await api("POST", "/api/sessions", {})).json["session_id"]
        await http_say(api, session, "one")
        turn = await http_say(api, session, "two")
        receipt = (await api("GET", f"/api/turns/{turn['turn_id']}/receipt")).json["receipt"]
    assert receipt["over_budget"] is True
    assert receipt["dropped"]["count"] == 2
    assert receipt["dropped"]["tokens"] > 0


@LAYOUTS
async def test_M7_app_a_call_and_its_results_stay_or_go_together_at_every_budget(tmp_path: Path, layout: str) -> None:
    both = [*CALL, {"call": "fetch", "id": "g", "arguments": {"url": "y"}}]
    script = [both, [{"text": "Here."}]]
    seen: set[tuple[str, ...]] = set()
    for budget in range(420, 900, 40):
        own: dict[str, Any] = {
            "budget": budget,
            "layout": layout,
            "instructions": written(tmp_path, instructions="I")["instructions"],
        }
        store = str(tmp_path / f"{budget}.db")
        async with chat(store, script, tools=fetching([True], "页" * 20), **own) as (app, session, provider):
            for words in ("Fetch both.", "And again.", "Thanks."):
                await told(app, session, words)
        for context in provider.contexts:
            roles = tuple(str(message["role"]) for message in context.messages[1:])
            called = {c["id"] for m in context.messages for c in m.get("tool_calls", ())}
            answered = {m.get("tool_call_id") for m in context.messages if m["role"] == "tool"}
            assert called == answered, (budget, roles)
            assert roles[0] == "user", (budget, roles)
            seen.add(roles)
    assert len({roles for roles in seen if "tool" in roles}) > 1, "else nothing was ever cut"


@pytest.mark.parametrize(("counter", "name"), [("seed", "estimate_message_tokens"), ("cjk", "estimate_tokens")])
async def test_M8_app_an_estimate_is_one_setting_away(tmp_path: Path, counter: str, name: str) -> None:
    async with chat(str(tmp_path / "s.db"), OK, counter=counter) as (app, session, provider):
        await told(app, session, "林默住在江城。")
    assert provider.contexts[-1].receipt.counter == name


def test_M8_lamina_ask_counts_exactly_with_one_setting(tmp_path: Path) -> None:
    lamina = Lamina(tmp_path)
    lamina.script([{"text": "ok"}])
    lamina("ask", "林默住在江城。", LAMINA_COUNTER="o200k")
    (request,) = lamina.json("trace", "show", "last")["requests"]
    assert request["counter"] == "o200k"


async def test_M9_app_one_more_turn_counts_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in characters that the counter sees: late turns of a session are as cheap as early ones."""
    counted = [0]

    def count(text: str) -> int:
        counted[0] += len(text)
        return len(text) // 4 + 1

    monkeypatch.setattr("lamina.app.app.counter", lambda name: count)
    each: list[int] = []
    async with chat(str(tmp_path / "s.db"), [[{"text": "answer " * 20}]], budget=50_000) as (app, session, _):
        for number in range(40):
            before = counted[0]
            await told(app, session, f"{number:02} question " * 20)
            each.append(counted[0] - before)
    assert max(each[20:]) <= max(each[1:10]) + 50, each


# Seed 002


async def test_S1_and_S2_app_the_segments_of_a_chat_follow_its_tools_and_vanish_with_them(tmp_path: Path) -> None:
    own: dict[str, Any] = {
        "form": "plain",
        "prompt_lang": "zh",
        **written(tmp_path, identity="# 角色", instructions="I"),
    }
    tools = fetching([False])
    script = [*[CALL] * 3, [{"text": "No."}], [{"text": "Hm."}]]
    async with chat(str(tmp_path / "s.db"), script, tools=tools, **own) as (app, session, provider):
        await told(app, session, "Fetch it.")
        await told(app, session, "And now?")
    async with chat(str(tmp_path / "s.db"), OK, **own) as (app, _, without):
        await told(app, await app.new_session("ann"), "hi")
    notes = "- **fetch**: Fetches a page; one at a time."
    static = "\n\n".join(["# 角色", "I", mode_hint("ask")])
    first, last = provider.contexts[0], provider.contexts[-1]
    assert first.system == assemble_segments(static=static, tool_notes=notes, lang="zh")
    assert last.system.startswith(f'{first.system}\n\n---\n# 运行时状态\n\n<system_hint type="tool_degraded"')
    assert without.contexts[-1].system == static
    (schema,) = first.tools
    assert "url" in json.dumps(schema)
    assert "url" not in first.system, "parameters are in the schema alone"


async def test_S3_app_a_tool_without_a_description_never_gets_into_a_chat(tmp_path: Path) -> None:
    tools = fetching([True])
    async with chat(str(tmp_path / "s.db"), OK, tools=tools) as (app, session, provider):
        with pytest.raises(ToolError, match=r"silent has no description"):
            tools.add(Tool("silent", " ", {"type": "object"}))
        await told(app, session, "hi")
    assert [tool["function"]["name"] for tool in provider.contexts[-1].tools] == ["fetch"]


async def test_S6_app_output_that_is_too_long_is_cut_and_the_hint_fits_the_tool(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("长" * 9_000, encoding="utf-8")
    read = [{"call": "read_file", "id": "r", "arguments": {"path": "long.txt"}}]
    kept = settings(workspace=str(tmp_path), mode="agent", budget=40_000)
    tools: Any = built_in_tools(kept)
    script = [read, [{"text": "ok"}]]
    own: dict[str, Any] = {"workspace": str(tmp_path), "mode": "agent", "budget": 40_000}
    async with chat(str(tmp_path / "s.db"), script, tools=tools, **own) as (app, session, provider):
        await told(app, session, "Read it.")
    async with chat(str(tmp_path / "o.db"), [CALL, [{"text": "ok"}]], tools=fetching([True], "页" * 9_000)) as (
        app, session, other,
    ):  # fmt: skip
        await told(app, session, "Fetch it.")
    for context, tool in ((provider.contexts[1], "read_file"), (other.contexts[1], "fetch")):
        result = str(context.messages[-1]["content"])
        hint = f'<system_hint type="tool_output_omitted" tool="{tool}" reason="too_long" actual_chars='
        assert result.count(hint) == 1, result[-600:]
        assert 'max_chars="8000"' in result
        assert ("offset" in result.split(hint)[1]) == (tool == "read_file")
        assert len(result) < 9_000


# Seed 004


@LAYOUTS
async def test_C3_app_the_provider_gets_the_messages_that_the_builder_made(tmp_path: Path, layout: str) -> None:
    """What `App.context` builds for the next words is, byte for byte, what the provider then receives."""
    async with chat(str(tmp_path / "s.db"), OK, layout=layout) as (app, session, provider):
        for words in ("一", "二"):
            built = await app.context("ann", session.session_id, words)
            await told(app, session, words)
            assert provider.contexts[-1].payload == built.payload


async def test_C11_app_a_chat_is_read_by_the_seeds_names_in_sql(tmp_path: Path) -> None:
    own: dict[str, Any] = {"memory": True, "embedder": "none"}
    async with chat(str(tmp_path / "s.db"), [[{"text": "好的，林默。"}]], **own) as (app, session, _):
        await app.add_templates("ann", Template("", "tidy", "先整理。", scenario="excel"))
        await app.memory("ann").add("用户住在江城。")
        await app.store.profile.set("ann", {"name": "林默"})
        await told(app, session, "我叫林默")
        answer = (await app.store.messages.list("ann", session.session_id))[-1]
        await app.collect("ann", answer.message_id)
        await app.end_session("ann", session.session_id)
        await app.worker.run_until_empty()
    with closing(sqlite3.connect(tmp_path / "s.db")) as db:
        said = db.execute("SELECT session_id, role, content, is_collected FROM conversation ORDER BY seq").fetchall()
        assert said == [
            (session.session_id, "user", "我叫林默", 0),
            (session.session_id, "assistant", "好的，林默。", 1),
        ]
        assert db.execute("SELECT scenario, content FROM prompt_template").fetchall() == [("excel", "先整理。")]
        assert ("用户住在江城。",) in db.execute("SELECT text FROM atomic_memory").fetchall()
        assert db.execute("SELECT session_id FROM session_summary").fetchall() == [(session.session_id,)]
        assert db.execute("SELECT name, value FROM user_profile").fetchall() == [("name", '"林默"')], "a value is JSON"
