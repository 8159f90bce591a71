"""The bot with aiogram's real client against a local Bot API: text, pictures, edits, commands, groups, limits."""

from pathlib import Path

from tests.telegram.botapi import bot_api
from tests.telegram.bots import ANN, bot, hello


async def test_a_question_gets_its_answer(tmp_path: Path) -> None:
    async with bot_api() as api, bot(api, str(tmp_path / "s.db"), hello("Hello **Ann**")) as running:
        await api.say("Hi there")
        await api.until_shown("Hello Ann")
        assert running.provider.contexts[0].messages[-1]["content"] == "Hi there"
        assert api.sent()[0].text == "Hello <b>Ann</b>"
        (session,) = await running.app.store.sessions.list(f"telegram:{ANN}")
        assert session.title == "Hi there"
