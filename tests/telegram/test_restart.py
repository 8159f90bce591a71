"""A real `lamina telegram` that is killed or stopped in the middle, and started again on the same store."""

import signal
from pathlib import Path

import pytest

from tests.cli.process import Lamina
from tests.telegram.botapi import bot_api
from tests.telegram.bots import process

SLOW = [{"text": "The answer begins. "}, {"delay": 600}, {"text": "never"}]


@pytest.fixture
def lamina(tmp_path: Path) -> Lamina:
    made = Lamina(tmp_path)
    made.script(SLOW)
    return made


def turns(lamina: Lamina) -> list[str]:
    """The states of all messages of Ann's, from the store."""
    sessions = lamina.json("sessions", "--user", "telegram:7", LAMINA_PROVIDER="", LAMINA_SCRIPT="")
    assert len(sessions) == 1, sessions
    shown = lamina.json("sessions", "show", sessions[0]["session_id"], "--user", "telegram:7")
    return [f"{m['role']} {m['state']}: {m['content']}" for m in shown["messages"]]


async def test_a_bot_that_is_killed_tells_how_its_answer_ended_and_goes_on(lamina: Lamina) -> None:
    async with bot_api() as api:
        async with process(api, lamina) as first:
            await first.until_ready()
            asked = await api.say("Tell me")
            await api.until_shown("The answer begins.")
            await api.say("And this waits")
            await api.until(lambda: api.asked_from > asked["update_id"])
            await first.end(signal.SIGKILL)
        lamina.script([{"text": "The second answer."}])
        async with process(api, lamina) as second:
            await second.until_ready()
            await api.until_shown("The second answer.")
            assert sum("Interrupted" in text for text in api.shown()) == 1
            await api.until(lambda: not api.updates)
            assert await second.end() == 0
        assert turns(lamina) == [
            "user complete: Tell me", "assistant interrupted: The answer begins. ",
            "user complete: And this waits", "assistant complete: The second answer.",
        ]  # fmt: skip


async def test_R14_updates_that_come_again_after_a_kill_are_known(lamina: Lamina) -> None:
    """Telegram did not hear that they were taken."""
    lamina.script([{"text": "Once."}])
    async with bot_api() as api:
        async with process(api, lamina) as first:
            await first.until_ready()
            await api.say("Tell me")
            await api.until_shown("Once.")
            await api.until(lambda: not api.updates)
            await first.end(signal.SIGKILL)
        api.stubborn = 5
        async with process(api, lamina) as second:
            await second.until_ready()
            await api.until(lambda: api.stubborn == 0)
            assert await second.end() == 0
        assert turns(lamina) == ["user complete: Tell me", "assistant complete: Once."]


async def test_sigterm_ends_it_cleanly_and_what_runs_is_kept_and_told(lamina: Lamina) -> None:
    async with bot_api() as api, process(api, lamina) as child:
        await child.until_ready()
        await api.say("Tell me")
        await api.until_shown("The answer begins.")
        assert await child.end() == 0
        assert "Traceback" not in child.output
        assert api.shown() == [
            "The answer begins.\n\n⏹ Interrupted: the bot was stopped. What arrived is saved; ask again for the rest."
        ]
        assert turns(lamina)[1] == "assistant interrupted: The answer begins. "


async def test_R7_a_store_in_use_is_said_clearly(lamina: Lamina) -> None:
    async with bot_api() as api, process(api, lamina) as first:
        await first.until_ready()
        async with process(api, lamina) as second:
            _, output = await second.child.communicate()
            assert second.child.returncode == 4
            assert b"Traceback" not in output
            assert b"in use" in output or b"another" in output
        assert await first.end(signal.SIGINT) == 0
