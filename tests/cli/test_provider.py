"""What a provider receives from the real process: every layer of the seeds, in order, as the trace says."""

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.cli.process import Lamina
from tests.providers.serving import Connection, serving

SYSTEM = [
    "# [0] System", "IDENTITY-TEXT", "RULE-TEXT", "# [1] Scenario and skills", "SKILL-TEXT", "Mode: agent",
    "# Tool notes", "**read_file**", "# [2] Session", "PROFILE-TEXT", "# [3] Memories", "My cat is called Quentin.",
    "Certainly, 好的. ONE", "# [4] Recent sessions", "letters to Paris", "# Context", "CONTEXT-TEXT",
]  # fmt: skip
"""Seed 000: identity, rules, skill, mode, memory, context; seed 002: tool notes; seed 004: [0] to [4]."""


def sse(*pieces: str) -> bytes:
    events: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    events.append({"choices": [], "usage": {"prompt_tokens": 900, "completion_tokens": 3}})
    body = "".join(f"data: {json.dumps(event, ensure_ascii=False)}\n\n" for event in events) + "data: [DONE]\n\n"
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body.encode())}\r\n\r\n"
    return head.encode() + body.encode()


async def answer(connection: Connection) -> None:
    await connection.send(sse("Certainly", ", 好的. ONE"))
    await connection.gone()


async def test_P5_and_C1_all_layers_reach_the_provider_in_order_from_the_real_process(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / ".lamina").mkdir(parents=True)
    (work / ".lamina" / "rules.md").write_text("RULE-TEXT: write short sentences.", encoding="utf-8")
    (tmp_path / "identity.md").write_text("IDENTITY-TEXT: you are a clerk.", encoding="utf-8")
    (tmp_path / "context.md").write_text("CONTEXT-TEXT: the report is due on Friday.", encoding="utf-8")
    skill = [{"name": "letters", "content": "SKILL-TEXT", "is_skill": True}]
    (tmp_path / "skill.json").write_text(json.dumps(skill), encoding="utf-8")
    async with serving(answer) as served:
        environ = {
            "LAMINA_PROVIDER": "openai", "LAMINA_BASE_URL": served.url, "LAMINA_MODEL": "some-model",
            "LAMINA_IDENTITY": str(tmp_path / "identity.md"), "LAMINA_CONTEXT": str(tmp_path / "context.md"),
            "LAMINA_LEARN": "rules", "LAMINA_MEMORY_DEADLINE": "60000", "LAMINA_API_KEY": "sk-test-1",
        }  # fmt: skip

        async def run(*arguments: str) -> str:
            return await asyncio.to_thread(lambda: Lamina(tmp_path)(*arguments, **environ))

        await run("memory", "add", "My cat is called Quentin.")
        await run("memory", "profile", "note", "PROFILE-TEXT")
        await run("skills", "import", str(tmp_path / "skill.json"))
        await run("ask", "Please help me with letters to Paris.", "--workspace", str(work))
        first = json.loads(await run("sessions", "--json"))[0]["session_id"]
        await run("sessions", "collect", f"{first}#2")
        await run("sessions", "end", first)
        await run("worker", "--once")
        await run("ask", "What is my cat called?", "--workspace", str(work), "--mode", "agent")
        said = await run(
            "ask", "And how old is my cat? 我的猫几岁？", "--session", "last", "--workspace", str(work), "--json"
        )
        body = served.requests[-1].body
        last = json.loads(body)
        system, *messages = last["messages"]
        places = [system["content"].find(text) for text in SYSTEM]
        assert -1 not in places, dict(zip(SYSTEM, places, strict=True))
        assert places == sorted(places)
        assert [m["role"] for m in messages] == ["user", "assistant", "user"], "[5] and [6]"
        assert messages[0]["content"] == "What is my cat called?"
        asked = "And how old is my cat? 我的猫几岁？"
        assert messages[-1]["content"] == asked, "one more question is no resume: the rules are not said again"
        assert "letters to Paris" not in str(messages), "another session is no history"
        assert {tool["function"]["name"] for tool in last["tools"]} >= {"read_file", "write_file", "edit_file", "bash"}
        assert last["model"] == "some-model"
        assert json.loads(said)["answer"] == "Certainly, 好的. ONE"
        payload = (await run("trace", "show", json.loads(said)["turn_id"], "--payload")).rstrip("\n").encode()
        assert body.startswith(payload[:-1]), "the trace is what was sent"


def test_what_the_settings_lack_is_said_in_a_sentence_with_a_next_step(lamina: Lamina) -> None:
    said = lamina.error("ask", "Hello", LAMINA_PROVIDER="openai")
    assert said.startswith("error: no model is set for openai\nnext: set LAMINA_MODEL")
    assert "no script is set for the scripted provider\nnext: " in lamina.error(
        "ask", "Hello", LAMINA_PROVIDER="scripted"
    )
    said = lamina.error("ask", "Hello", LAMINA_PROVIDER="scripted", LAMINA_SCRIPT="/nope")
    assert "cannot be read" in said
    assert "\nnext: name a file" in said


def test_how_long_to_wait_is_said_where_it_is_known(lamina: Lamina) -> None:
    lamina.script([{"fault": "status", "code": 429, "retry_after": 30}])
    assert "wait 30 seconds" in lamina.run("ask", "Hello").stderr


def test_without_a_key_nothing_goes_to_a_providers_own_address(lamina: Lamina) -> None:
    for name in ("openai", "anthropic"):
        keyless = {"LAMINA_PROVIDER": name, "LAMINA_MODEL": "m", f"{name.upper()}_API_KEY": ""}
        said = lamina.run("ask", "Hello", **keyless).stderr
        assert said.startswith(f"error: no key is set for {name}\nnext: set {name.upper()}_API_KEY or LAMINA_")
        checked = lamina.run("doctor", **keyless)
        assert f"✗ provider   no key is set for {name}" in checked.stdout
        assert checked.returncode == 1


async def refuse(connection: Connection) -> None:
    body = b'{"error": {"message": "no"}}'
    await connection.send(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))


async def test_a_server_that_wanted_a_key_and_got_none_is_said_so(tmp_path: Path) -> None:
    async with serving(refuse) as served:
        environ = {"LAMINA_PROVIDER": "openai", "LAMINA_BASE_URL": served.url, "LAMINA_MODEL": "m"}
        bare = await asyncio.to_thread(lambda: Lamina(tmp_path).run("ask", "Hello", **environ))
        assert "next: no key was sent: set LAMINA_API_KEY\n" in bare.stderr
        wrong = await asyncio.to_thread(lambda: Lamina(tmp_path).run("ask", "Hello", **environ, LAMINA_API_KEY="sk-1"))
        assert "next: check the key\n" in wrong.stderr
