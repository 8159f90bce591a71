"""R14 the same Telegram `update_id` fifty times over is one turn and one call of the provider, across restarts too.

R15 a bot and a tab on one session: what they say is only ever added. `SOAK=50` runs the long form.
"""

import asyncio
import os
import random
from typing import Any, cast

from lamina import App
from lamina.providers.scripted import ScriptedProvider
from lamina.telegram.bot import run_bot
from lamina.types import Key
from tests.engine.chats import settings
from tests.telegram.botapi import TOKEN, BotApi, bot_api
from tests.telegram.bots import ANN, QUICK

SOAK = int(os.environ.get("SOAK", "1"))
OWNER = f"telegram:{ANN}"


def a_seed() -> int:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    return seed


class Keyless:
    """A planted bug: an app for which every question is a new one."""

    def __init__(self, app: App) -> None:
        self._app = app

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)

    async def start(self, owner: str, session_id: str, user: Any, *, key: str = "") -> Any:
        return await self._app.start(owner, session_id, user)


async def calls(api: BotApi, where: str, rng: random.Random, answers: int, *, planted: bool = False) -> int:
    """Run a bot three times over; Telegram delivers everything fifty times, and again after each start. How often was
    the provider asked?"""
    provider = ScriptedProvider([[{"text": "Here"}]], repeat=True)
    kept = settings(telegram_token=Key(TOKEN), telegram_allow=(ANN,), telegram_api=api.base)
    for _ in range(3):
        api.copies, api.stubborn = 50, rng.randrange(2, 6)
        stop = asyncio.Event()
        async with App.open(where, settings=kept, provider=provider, work=False) as app:
            used = cast(App, Keyless(app)) if planted else app
            running = asyncio.create_task(run_bot(used, stop, pace=QUICK))
            await api.until(lambda: not api.stubborn and not api.updates and api.shown().count("Here") >= answers)
            stop.set()
            await running
    return len(provider.contexts)


async def turns(where: str) -> int:
    async with App.open(where, settings=settings(), work=False) as app:
        sessions = await app.store.sessions.list(OWNER, limit=1_000)
        return sum([len(await app.store.turns.list(OWNER, each.session_id)) for each in sessions])


async def test_R14_an_update_that_comes_fifty_times_is_one_turn_and_one_call(where: str) -> None:
    rng = random.Random(a_seed())
    async with bot_api() as api:
        for trial in range(1, SOAK + 1):
            updates = [api.update(f"question {n}") for n in range(3)]
            updates.insert(rng.randrange(4), api.update("/new"))
            await api.push(*updates)
            assert await calls(api, where, rng, 3 * trial) == 3
            assert await turns(where) == 3 * trial


async def test_R14_a_bot_without_keys_is_caught(where: str) -> None:
    async with bot_api() as api:
        await api.push(api.update("question"))
        await calls(api, where, random.Random(a_seed()), 1, planted=True)
        assert await turns(where) > 1


async def test_R15_a_bot_and_a_tab_on_one_session_only_ever_add(where: str) -> None:
    rng = random.Random(a_seed())
    provider = ScriptedProvider([[{"text": "Here"}]], repeat=True)
    async with bot_api() as api:
        kept = settings(telegram_token=Key(TOKEN), telegram_allow=(ANN,), telegram_api=api.base)
        stop = asyncio.Event()
        async with App.open(where, settings=kept, provider=provider, work=False) as app:
            running = asyncio.create_task(run_bot(app, stop, pace=QUICK))
            await api.say("begin")
            await api.until_shown("Here")
            (session,) = await app.store.sessions.list(OWNER)

            async def tab() -> None:
                for n in range(10):
                    await (await app.start(OWNER, session.session_id, f"tab {n}")).wait()
                    await asyncio.sleep(rng.random() / 100)

            typing = asyncio.create_task(tab())
            for n in range(10):
                await api.say(f"bot {n}")
            await typing
            await api.until(lambda: len(api.shown()) == 11)
            stop.set()
            await running
            rows = await app.store.history.messages(OWNER, session.session_id)
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    said = [row.text for row in rows if row.role == "user"]
    assert sorted(said) == sorted(["begin", *(f"{who} {n}" for who in ("bot", "tab") for n in range(10))])
    for who in ("bot", "tab"):
        assert [text for text in said if text.startswith(who)] == [f"{who} {n}" for n in range(10)]
    assert all(row.text == "Here" and row.state == "complete" for row in rows if row.role == "assistant")
