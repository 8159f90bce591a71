"""Results of calls that the caller ran himself, sent into a session: after an error, and when it is folded."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lamina.providers.scripted import ScriptedProvider
from lamina.settings import load_settings
from tests.gateway.serving import Answer, Site, running

OK: list[dict[str, Any]] = [{"text": "Ok."}, {"done": "stop"}]
CALL: list[dict[str, Any]] = [{"call": "read", "id": "c1", "arguments": {}}, {"done": "tool_calls"}]
CODE: list[dict[str, Any]] = [{"text": "Noted the code."}, {"done": "stop"}]
TOOLS = [{"type": "function", "function": {"name": "read"}}]


class Chat:
    """One session over `/v1`, one message at a time."""

    def __init__(self, site: Site, session_id: str) -> None:
        self.site, self.session_id = site, session_id

    async def say(self, **message: Any) -> Answer:
        body = {"messages": [message], "tools": TOOLS}
        return await self.site.post("/v1/chat/completions", body, headers={"X-Lamina-Session": self.session_id})

    async def user(self, words: str) -> Answer:
        answer = await self.say(role="user", content=words)
        assert answer.status == 200, answer.raw
        return answer

    async def result(self, content: str) -> Answer:
        return await self.say(role="tool", tool_call_id="c1", content=content)

    async def sent(self, answer: Answer) -> list[tuple[str, str]]:
        """The messages of the last request, without the system's."""
        payload = (await self.site.get(f"/api/turns/{answer.headers['X-Lamina-Turn']}/payload")).json
        return [(each["role"], str(each["content"])) for each in payload["messages"][1:]]


@asynccontextmanager
async def chatting(folder: Path, *script: Any, budget: int = 8_000, layout: str = "strict") -> AsyncGenerator[Chat]:
    environ = {
        "LAMINA_USER": "ann", "LAMINA_EMBEDDER": "none", "LAMINA_STORE": str(folder / "s.db"),
        "LAMINA_BUDGET": str(budget), "LAMINA_LAYOUT": layout,
    }  # fmt: skip
    settings = load_settings(folder, environ, "gateway")
    provider = ScriptedProvider(list(script), repeat=True)
    async with running(folder / "s.db", settings=settings, provider=provider) as site:
        yield Chat(site, (await site.post("/api/sessions", {})).json["session_id"])


@pytest.mark.parametrize(
    "fault", [{"fault": "status", "code": 503}, {"fault": "status", "code": 429}, {"fault": "cut"}]
)
async def test_results_are_sent_again_after_an_error_that_says_ask_again(tmp_path: Path, fault: Any) -> None:
    async with chatting(tmp_path, CALL, [fault], CODE, OK) as chat:
        await chat.user("Read the file.")
        assert (await chat.result("the code is 4711")).status in (502, 503)
        again = await chat.result("the code is 4711")
        assert (again.status, again.json["choices"][0]["message"]["content"]) == (200, "Noted the code.")
        assert [role for role, _ in await chat.sent(again)] == ["user", "assistant", "tool"]
        assert (await chat.result("the code is 4711")).status == 400, "now it was answered"
        after = await chat.user("Go on.")
        assert [role for role, _ in await chat.sent(after)] == ["user", "assistant", "tool", "assistant", "user"]


async def test_results_of_an_answer_that_was_cut_off_in_the_middle_are_not_taken_again(tmp_path: Path) -> None:
    async with chatting(tmp_path, CALL, [{"text": "The beginning"}, {"fault": "cut"}], OK) as chat:
        await chat.user("Read the file.")
        assert (await chat.result("the code is 4711")).status == 502
        refused = await chat.result("the code is 4711")
        assert (refused.status, "no call is waiting" in refused.raw.decode()) == (400, True)
        assert "the code is 4711" in dict(await chat.sent(await chat.user("Go on.")))["tool"]


@pytest.mark.parametrize("layout", ["strict", "ledger"])
async def test_S9_long_results_that_make_a_compaction_due_are_answered(tmp_path: Path, layout: str) -> None:
    script = [*[OK] * 6, CALL, CODE, OK]
    async with chatting(tmp_path, *script, budget=32_000, layout=layout) as chat:
        for number in range(6):
            await chat.user(f"word{number} is here " * 600)
        await chat.user("Read the file.")
        answer = await chat.result("a line of the file\n" * 2_500)
        assert answer.status == 200, answer.raw
        sent = await chat.sent(answer)
        assert [role for role, _ in sent[-3:]] == ["user", "assistant", "tool"]
        assert ("user", "Read the file.") in sent
        after = await chat.sent(await chat.user("And now?"))
        assert ("assistant", "Noted the code.") in after


async def test_S9_a_compaction_by_hand_keeps_the_newest_turn_with_the_call_that_it_answers(tmp_path: Path) -> None:
    async with chatting(tmp_path, OK, OK, OK, CALL, CODE, OK) as chat:
        for number in range(3):
            await chat.user(f"word{number} is here " * 100)
        await chat.user("Read the file QUESTION-7.")
        await chat.result("SECRET-CODE-4711")
        assert (await chat.site.post(f"/api/sessions/{chat.session_id}/compact")).status == 200
        sent = json.dumps(await chat.sent(await chat.user("What was the code?")))
        for words in ("QUESTION-7", "SECRET-CODE-4711", "Noted the code."):
            assert words in sent


@pytest.mark.parametrize("layout", ["strict", "ledger"])
async def test_S9_a_call_and_its_result_are_folded_together(tmp_path: Path, layout: str) -> None:
    async with chatting(tmp_path, CALL, CODE, *[OK] * 9, layout=layout) as chat:
        await chat.user("Read the file. " + "Here is what I know of it. " * 600)
        await chat.result("SECRET-CODE-4711")
        for _ in range(3):
            answer = await chat.user("And what more? " + "some more words " * 180)
            payload = (await chat.site.get(f"/api/turns/{answer.headers['X-Lamina-Turn']}/payload")).raw
            assert b"Noted the code." in payload, "in its place or in the summary"
        session = await chat.site.app.store.sessions.get("ann", chat.session_id)
        assert [each["upto"] for each in session.runtime["compactions"]] == [4], "question, call, result and answer"
