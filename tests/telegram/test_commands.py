"""The commands of the bot, in both languages; each twice is each once."""

from pathlib import Path

import pytest

from tests.telegram.botapi import BotApi, bot_api
from tests.telegram.bots import ANN, bot, hello

OWNER = f"telegram:{ANN}"


@pytest.fixture
def where(tmp_path: Path) -> str:
    return str(tmp_path / "chats.db")


async def asked(api: BotApi, text: str, found: str, **more: object) -> str:
    """Say something and get the new message that answers it."""
    before = len(api.messages)
    await api.say(text, **more)
    await api.until(lambda: any(found in shown for shown in api.shown()[before:]))
    return api.shown()[-1]


async def test_C6_a_new_session_knows_nothing_of_the_old_one(where: str) -> None:
    async with bot_api() as api, bot(api, where, hello("one", "two", "three")) as running:
        await asked(api, "first", "one")
        await asked(api, "/new", "New session")
        await asked(api, "second", "two")
        await asked(api, "third", "three")
        said = [[m["content"] for m in c.messages if m["role"] == "user"] for c in running.provider.contexts]
        assert said == [["first"], ["second"], ["second", "third"]]


async def test_what_came_before_a_new_session_goes_to_the_old_one_also_the_second_time(where: str) -> None:
    async with bot_api() as api:
        first, new, second = api.update("first"), api.update("/new"), api.update("second")
        async with bot(api, where, hello("one", "two")) as running:
            await api.push(first, new, second)
            await api.until_shown("two")
            sessions = len(await running.app.store.sessions.list(OWNER))
            calls = len(running.provider.contexts)
        async with bot(api, where, hello("again")) as running:
            await api.push(first, new, second)
            await api.until(lambda: not api.updates)
            assert len(await running.app.store.sessions.list(OWNER)) == sessions == 2
            assert (calls, running.provider.contexts) == (2, [])
            assert sorted(api.shown()) == ["New session. I keep what I remember about you."] * 2 + ["one", "two"]


async def test_the_mode_is_the_sessions_and_stays(where: str) -> None:
    async with bot_api() as api, bot(api, where, hello("x")) as running:
        assert "ask" in await asked(api, "/mode", "The mode is")
        assert "LAMINA_TELEGRAM_TOOLS" in await asked(api, "/mode plan", "The mode is plan")
        assert "agent" in await asked(api, "/mode fly", "There is no mode fly")
        await asked(api, "/new", "New session")
        assert "plan" in await asked(api, "/mode", "The mode is")
        assert {s.mode for s in await running.app.store.sessions.list(OWNER)} == {"plan"}


async def test_C9_the_last_answer_or_the_one_replied_to_is_collected_and_no_other(where: str) -> None:
    async with bot_api() as api, bot(api, where, hello("one", "two")) as running:
        assert "no answer" in await asked(api, "/collect", "no answer")
        await asked(api, "first", "one")
        number = next(number for (_, number), text in api.messages.items() if text == "one")
        await asked(api, "second", "two")

        async def collected() -> list[str]:
            return [m.text for m in await running.app.store.messages.collected(OWNER)]

        await asked(api, "/collect", "Collected: two")
        assert await collected() == ["two"]
        await asked(api, "/new", "New session")
        me = {"id": 4242, "is_bot": True, "first_name": "lamina"}
        reply = {"message_id": number, "date": 1, "chat": {"id": ANN, "type": "private"}, "from": me, "text": "one"}
        await asked(api, "/collect", "Collected: one", reply_to_message=reply)
        await asked(api, "/collect", "Collected: one", reply_to_message=reply)
        assert await collected() == ["one", "two"]
        await asked(api, "/uncollect", "No longer collected: one", reply_to_message=reply)
        assert await collected() == ["two"]
        await asked(api, "/collect", "cannot find", reply_to_message={**reply, "message_id": 1})


async def test_C9_telegram_collects_nothing_for_a_reply_to_a_question_or_where_no_answer_came(where: str) -> None:
    script = [[{"text": "one"}], [{"fault": "refused"}]]
    async with bot_api() as api, bot(api, where, script) as running:
        asked_first = await api.say("first")
        await api.until_shown("one")
        question = {**asked_first["message"], "entities": []}
        await asked(api, "/collect", "Only answers can be collected", reply_to_message=question)
        await asked(api, "/collect", "只能收藏回答", reply_to_message=question, lang="zh")
        await asked(api, "second", "failed")
        await asked(api, "/collect", "Only answers can be collected")
        assert await running.app.store.messages.collected(OWNER) == []
        opened = {"name": "Garden", "icon_color": 1}
        topic = {"message_id": 5, "date": 1, "chat": question["chat"], "from": question["from"]}
        await asked(api, "third", "one")
        await asked(api, "/collect", "Collected: one", reply_to_message={**topic, "forum_topic_created": opened})


async def test_memories_are_listed_added_and_forgotten_by_the_number_that_was_seen(where: str) -> None:
    async with bot_api() as api, bot(api, where, hello("x"), memory=True, embedder="none") as running:
        await asked(api, "/memory", "do not remember anything")
        await asked(api, "/memory add I live in *Kyoto*", "Remembered: I live in *Kyoto*")
        await asked(api, "/memory add My cat is called Mimi", "Remembered")
        listed = await asked(api, "/memory", "What I remember about you (2)")
        assert listed.index("Mimi") < listed.index("Kyoto")
        for _ in range(2):  # the same number means the same one, however often
            await asked(api, "/memory forget 1", "Forgotten")
        assert [m.text for m in await running.app.memory(OWNER).list()] == ["I live in *Kyoto*"]
        await asked(api, "/memory forget 3", "has no number 3")
        await asked(api, "/memory dance", "lists")


async def test_memory_that_is_switched_off_says_so(where: str) -> None:
    async with bot_api() as api, bot(api, where, hello("x")):
        await asked(api, "/memory", "switched off")


async def test_the_context_shows_the_layers_of_the_last_request(where: str) -> None:
    async with bot_api() as api, bot(api, where, hello("x")):
        await asked(api, "/context", "Nothing has been sent")
        await asked(api, "Hi", "x")
        shown = await asked(api, "/context", "of 8,000 tokens")
        assert "identity" in shown
        assert "█" in shown


async def test_stop_ends_the_answer_and_keeps_what_came(where: str) -> None:
    script = [[{"text": "begin "}, {"delay": 60}, {"text": "end"}, {"done": "stop"}]]
    async with bot_api() as api, bot(api, where, script) as running:
        await asked(api, "/stop", "No answer is being written")
        await api.say("go")
        await api.until_shown("begin")
        await api.say("/stop")
        await api.until_shown("Stopped. What arrived is saved.")
        (session,) = await running.app.store.sessions.list(OWNER)
        (turn,) = await running.app.store.turns.list(OWNER, session.session_id)
        assert turn.state == "interrupted"


@pytest.mark.parametrize(
    ("lang", "found"), [("en", "I understand text"), ("zh-hans", "我能理解文字"), ("", "I understand")]
)
async def test_help_is_in_the_language_of_the_person_and_knows_every_command(where: str, lang: str, found: str) -> None:
    async with bot_api() as api, bot(api, where, hello("x")) as running:
        shown = await asked(api, "/help", found, lang=lang)
        for name in ("new", "stop", "collect", "uncollect", "memory", "context", "mode", "help"):
            assert f"/{name}" in shown
        await asked(api, "/start", "/help", lang=lang)
        await asked(api, "/dance", "/dance", lang=lang)
        assert running.provider.contexts == []
