"""I5, I7: the provider's own count of the window brings instructions and rules again; a failed send moves nothing."""

from pathlib import Path

from lamina import App
from lamina.records import Session
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
        assert "not UTF-8" in end.error
        assert provider.contexts == []
