"""I3: the phase prompt from every channel, in front of the user's words and behind instructions and rules."""

from pathlib import Path
from typing import Any

import pytest

from lamina import ToolRegistry
from lamina.errors import MessageError
from lamina.records import MAX_PHASE_CHARACTERS
from lamina.types import Context
from tests.cli.process import Lamina
from tests.cli.terminal import CTRL_D
from tests.engine.chats import chat, end_of, told
from tests.gateway.apis import api_on
from tests.gateway.worlds import say
from tests.telegram.botapi import bot_api
from tests.telegram.bots import ANN, bot, hello

RULES, PHASE, WORDS = "Write short sentences.", "Design phase: no code yet.", "What comes first?"
OK: list[list[dict[str, Any]]] = [[{"text": "ok"}]]


@pytest.fixture
def lamina(tmp_path: Path) -> Lamina:
    return Lamina(tmp_path)


def last_words(context: Context) -> str:
    return str(context.messages[-1]["content"])


def is_in_order(context: Context, words: str = WORDS) -> bool:
    """The phase is sent once, in front of the words, and behind instructions and rules."""
    sent = "\n".join(str(message["content"]) for message in context.messages)
    places = [sent.rfind(text) for text in (RULES, PHASE, words)]
    return -1 not in places and places == sorted(places) and sent.count(PHASE) == 1 and PHASE in last_words(context)


def workspace(folder: Path) -> str:
    (folder / ".lamina").mkdir()
    (folder / ".lamina" / "rules.md").write_text(RULES, encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("layout", ["strict", "ledger"])
async def test_I3_app_a_turns_phase_is_sent_once_and_a_sessions_with_every_turn(tmp_path: Path, layout: str) -> None:
    work = workspace(tmp_path)
    async with chat(str(tmp_path / "s.db"), OK, workspace=work, layout=layout) as (app, session, provider):
        await told(app, session, WORDS, phase_prompt=PHASE)
        await told(app, session, "And then?")
        first, second = provider.contexts
        assert is_in_order(first)
        assert PHASE not in last_words(second)
        await app.store.sessions.update("ann", session.session_id, phase="Build phase.")
        await told(app, session, "Now?")
        await told(app, session, "Without?", phase_prompt="")
        third, fourth = provider.contexts[2:]
        assert last_words(third).index("Build phase.") < last_words(third).index("Now?")
        assert last_words(fourth) == "Without?"
        assert [c.receipt.problems() for c in provider.contexts] == [[]] * 4
        (segment,) = [s for s in first.receipt.segments if s.source == "phase prompt"]
        assert (segment.layer, segment.reason.code) == ("mode", "reason.one_turn")


@pytest.mark.parametrize("layout", ["strict", "ledger"])
async def test_I3_app_the_phase_stays_in_front_of_the_words_through_the_steps_of_a_turn(
    tmp_path: Path, layout: str
) -> None:
    tools = ToolRegistry()

    @tools.function
    def look(place: str) -> str:
        """Look at a place of the garden; one at a time."""
        return f"{place}: " + "tulips and garden paths " * 60

    script: list[list[dict[str, Any]]] = [[{"call": "look", "arguments": {"place": f"bed {n}"}}] for n in range(6)]
    where = str(tmp_path / "s.db")
    changes: dict[str, Any] = {"workspace": workspace(tmp_path), "layout": layout, "budget": 2_600}
    async with chat(where, [*script, OK[0]], tools=tools, **changes) as (app, session, provider):
        assert end_of(await told(app, session, WORDS, phase_prompt=PHASE)).state == "complete"
    assert len(provider.contexts) == 7
    for context in provider.contexts:
        (words,) = [str(m["content"]) for m in context.messages if m["role"] == "user"]
        assert PHASE in words
        assert context.receipt.problems() == []
    assert len({context.receipt.epoch for context in provider.contexts}) > (layout == "ledger"), "it was cut in between"


async def test_I3_app_a_phase_that_is_too_long_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    async with chat(str(tmp_path / "s.db"), OK) as (app, session, _):
        with pytest.raises(MessageError, match=r"the phase has 8001 characters"):
            await told(app, session, WORDS, phase_prompt="x" * (MAX_PHASE_CHARACTERS + 1))
        assert await app.store.messages.list("ann", session.session_id) == []


@pytest.mark.planted("a phase prompt that is sent behind the words, or twice")
async def test_I3_planted_a_phase_in_the_wrong_place_is_found(tmp_path: Path) -> None:
    async with chat(str(tmp_path / "s.db"), OK, workspace=workspace(tmp_path)) as (app, session, provider):
        await told(app, session, f"{WORDS} {PHASE}")
        await told(app, session, f"{PHASE} {WORDS}", phase_prompt=PHASE)
        assert [is_in_order(context) for context in provider.contexts] == [False, False]


def test_I3_lamina_ask_takes_a_phase(lamina: Lamina) -> None:
    workspace(lamina.folder)
    lamina.script([{"text": "ok"}])
    lamina("ask", WORDS, "--phase", PHASE)
    sent = lamina("trace", "show", "last", "--payload")
    assert sent.index(RULES) < sent.index(PHASE) < sent.index(WORDS)
    lamina("ask", "And then?", "--session", "last")
    assert PHASE not in lamina("trace", "show", "last", "--payload")
    assert "阶段提示有 8001 个字符" in lamina.error("ask", WORDS, "--phase", "x" * 8_001, "--lang", "zh")


def test_I3_chat_sets_shows_and_ends_a_phase(lamina: Lamina) -> None:
    workspace(lamina.folder)
    lamina.script([{"text": "ok"}, {"usage": [10, 0, 7]}])
    with lamina.terminal("chat") as terminal:
        terminal.say("/phase", "no phase is set")
        terminal.say(f"/phase {PHASE}", f"phase: {PHASE}")
        terminal.say(WORDS, "7 out")
        terminal.say("/phase none", "no phase is set")
        terminal.say("And then?", "7 out")
        terminal.ready()
        terminal.send(CTRL_D)
        assert terminal.end() == 0
    sent = lamina("trace", "show", "last~1", "--payload")
    assert sent.index(RULES) < sent.index(PHASE) < sent.index(WORDS)
    assert PHASE not in lamina("trace", "show", "last", "--payload")


def test_I3_chat_speaks_of_the_phase_in_chinese(lamina: Lamina) -> None:
    lamina.script([{"text": "ok"}])
    with lamina.terminal("chat", "--lang", "zh") as terminal:
        terminal.say("/phase", "未设置阶段提示")
        terminal.say("/phase 设计阶段", "当前阶段：设计阶段")


async def test_I3_telegram_sets_shows_and_ends_a_phase_in_both_languages(tmp_path: Path) -> None:
    work = workspace(tmp_path)
    async with (
        bot_api() as api,
        bot(api, str(tmp_path / "s.db"), hello("First plan.", "Second plan."), workspace=work) as running,
    ):
        await api.say("/phase")
        await api.until_shown("No phase is set")
        await api.say("/phase", lang="zh")
        await api.until_shown("未设置阶段提示")
        await api.say(f"/phase {PHASE}")
        await api.until_shown(f"The phase is: {PHASE}")
        await api.say(WORDS)
        await api.until_shown("First plan.")
        assert is_in_order(running.provider.contexts[0])
        (session,) = await running.app.store.sessions.list(f"telegram:{ANN}")
        assert session.phase == PHASE
        await api.say("/phase none", lang="zh")
        await api.say("And then?")
        await api.until_shown("Second plan.")
        assert last_words(running.provider.contexts[1]) == "And then?"


async def test_I3_http_a_turn_and_a_session_take_a_phase_and_the_document_says_so(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "s.db"), workspace=workspace(tmp_path)) as api:
        session = (await api("POST", "/api/sessions", {})).json
        here = f"/api/sessions/{session['session_id']}"
        assert PHASE in (await api("POST", f"{here}/context", {"content": WORDS, "phase": PHASE})).raw.decode()
        turn = await say(api, session["session_id"], WORDS, phase=PHASE)
        assert is_in_order(api.provider.contexts[0])
        assert (await api("PATCH", here, {"phase": "Build phase."})).json["phase"] == "Build phase."
        await say(api, session["session_id"], "And then?")
        assert "Build phase." in last_words(api.provider.contexts[1])
        retried = await api("POST", f"/api/turns/{turn['turn_id']}/retry", {})
        assert (await api("GET", f"/api/sessions/{retried.json['session_id']}")).json["phase"] == "Build phase."
        long = await api("POST", f"{here}/messages", {"content": WORDS, "phase": "x" * (MAX_PHASE_CHARACTERS + 1)})
        assert (long.status, "phase" in long.json["error"]["message"]) == (400, True)
        document = (await api("GET", "/api/openapi.json")).json
        body = document["paths"]["/api/sessions/{session_id}/messages"]["post"]["requestBody"]
        name = body["content"]["application/json"]["schema"]["$ref"].removeprefix("#/components/schemas/")
        fields = document["components"]["schemas"][name]["properties"]
        assert fields["phase"]["maxLength"] == MAX_PHASE_CHARACTERS
        assert "this turn alone" in fields["phase"]["description"]
