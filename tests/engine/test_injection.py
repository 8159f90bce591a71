"""I5, I7: the provider's own count of the window brings instructions and rules again; a failed send moves nothing."""

import logging
from pathlib import Path
from typing import Any, cast

import pytest

from lamina import App
from lamina.records import REQUESTS, CallerInput, Session
from lamina.types import Notice
from tests.engine.chats import chat, end_of, told

AGAIN = 'change="again"'


def workspace(folder: Path) -> str:
    (folder / ".lamina").mkdir()
    (folder / ".lamina" / "rules.md").write_text("Write short sentences. 句子要短。", encoding="utf-8")
    return str(folder)


async def injected(app: App, session: Session) -> dict[str, int]:
    state = (await app.store.sessions.get("ann", session.session_id)).injection
    return state.get("counters", {})


async def test_I5_reported_use_that_crosses_a_quarter_brings_the_rules_again_once(where: str, tmp_path: Path) -> None:
    uses = [[{"text": "ok"}, {"usage": [used, 0, 1]}] for used in (500, 2_600, 2_700, 2_800)]
    async with chat(where, uses, window=10_000, workspace=workspace(tmp_path)) as (app, session, provider):
        for _ in range(4):
            assert end_of(await told(app, session, "go on")).state == "complete"
        last = [str(context.messages[-1]["content"]) for context in provider.contexts]
        assert [AGAIN in words for words in last] == [False, False, True, False]
        assert all("Write short sentences." in context.system for context in provider.contexts)
        counters = await injected(app, session)
        assert (counters["first"], counters["repeated"]) == (1, 1)


async def test_I7_a_failed_send_leaves_the_injection_due(where: str, tmp_path: Path) -> None:
    script = [[{"fault": "refused"}], [{"text": "ok"}]]
    async with chat(where, script, workspace=workspace(tmp_path)) as (app, session, _):
        assert end_of(await told(app, session, "hi")).state == "failed"
        assert await injected(app, session) == {}
        await told(app, session, "hi")
        assert (await injected(app, session))["first"] == 1


async def test_I2_rules_that_cannot_be_read_stop_the_turn_before_anything_is_sent(where: str, tmp_path: Path) -> None:
    folder = workspace(tmp_path)
    async with chat(where, [[{"text": "ok"}]], workspace=folder) as (app, session, provider):
        (tmp_path / ".lamina" / "rules.md").write_bytes(b"\xff\xfe")
        end = end_of(await told(app, session, "hi"))
        assert end.state == "failed"
        assert "not UTF-8" in end.error.text()
        assert provider.contexts == []


@pytest.mark.parametrize("layout", ["strict", "ledger"])
async def test_S9_app_a_reinjection_after_a_compaction_asks_for_no_other_one(tmp_path: Path, layout: str) -> None:
    """What is repeated in front of the words cannot be folded: it must not lead to a compaction that frees nothing."""
    (tmp_path / ".lamina").mkdir()
    (tmp_path / ".lamina" / "rules.md").write_text("Write short sentences. " * 40)
    words = "We talked about the garden and its many tulips. " * 12
    where, folder = str(tmp_path / "a.db"), str(tmp_path)
    async with chat(where, [[{"text": words}]], budget=2_200, layout=layout, workspace=folder) as (app, session, model):
        notices: list[str] = []
        for _ in range(8):
            events = await told(app, session, words)
            notices += [event.text for event in events if isinstance(event, Notice)]
        assert [text for text in notices if "folded" not in text] == []
        assert len(notices) == 2
        assert [context.receipt.triggers for context in model.contexts].count(("compaction",)) == 2


async def test_I5_and_I6_and_I10_app_compaction_resume_and_window_are_triggers(where: str, tmp_path: Path) -> None:
    """Each of them once, also where it happened between two turns."""
    words = "We talked about the garden and its many tulips. " * 30
    uses = [[{"text": words}, {"usage": [used, 0, 1]}] for used in (500, 500, 600, 700, 2_700, 2_800)]
    async with chat(where, uses, window=10_000, workspace=workspace(tmp_path)) as (app, session, model):
        for _ in range(2):
            await told(app, session, words)
        await app.compact("ann", session.session_id)
        await told(app, session, "three")
        await app.resume_session("ann", session.session_id)
        for number in ("four", "five", "six"):
            await told(app, session, number)
        last = (await app.store.turns.list("ann", session.session_id))[-1]
        assert [receipt.triggers for receipt in await app.requests("ann", last.turn_id)] == [("window",)]
        codes = [",".join(context.receipt.triggers) for context in model.contexts]
        assert codes == ["initial", "", "compaction", "resume", "", "window"]


async def test_I4_app_for_pictures_the_injection_is_text_in_front(where: str, tmp_path: Path) -> None:
    words = {"type": "text", "text": "What is this?"}
    picture = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    folder = workspace(tmp_path)
    async with chat(where, [[{"text": "ok"}]], workspace=folder, reinjection_turns=1) as (app, session, model):
        await told(app, session, "first")
        async for _ in app.run("ann", session.session_id, [words, picture]):
            pass
        instructions, rules, *own = cast("list[Any]", model.contexts[-1].messages[-1]["content"])
        assert ('layer="instructions"' in instructions["text"], "Write short sentences." in rules["text"]) == (
            True,
            True,
        )
        assert own == [words, picture]


async def test_I2_app_looking_warns_of_nothing_and_counts_nothing(
    where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A preview sends nothing: the warning is for the first turn."""
    async with chat(where, [[{"text": "ok"}]], workspace=str(tmp_path)) as (app, session, _):
        for _ in range(2):
            await app.context("ann", session.session_id, "what would you see?")
        assert caplog.records == []
        await told(app, session, "hi")
        assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_I2_app_single_requests_of_a_user_warn_once(where: str, caplog: pytest.LogCaptureFixture) -> None:
    """Requests that bring their own history share one session, in which each of them is a first one."""
    given = CallerInput(history=())
    for _ in range(2):
        async with chat(where, [[{"text": "ok"}]]) as (app, _, model):
            for _ in range(2):
                events = [event async for event in app.run("ann", REQUESTS, "hi", given=given)]
                assert end_of(events).state == "complete"
            assert [context.receipt.triggers for context in model.contexts] == [("initial",)] * 2
    assert [record.levelname for record in caplog.records if record.levelno >= logging.WARNING] == ["WARNING"]
