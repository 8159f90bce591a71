"""R14 the same Telegram `update_id` fifty times over is one turn and one call of the provider, across restarts too.

R15 a bot and a tab on one session: what they say is only ever added.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from lamina import App
from lamina.providers.scripted import ScriptedProvider
from lamina.records import StoredMessage
from lamina.telegram.bot import run_bot
from lamina.telegram.switchboard import MAX_WAITING
from lamina.types import Key
from tests.engine.chats import settings
from tests.faults.load import Load
from tests.telegram.botapi import TOKEN, BotApi, bot_api
from tests.telegram.bots import ANN, QUICK

OWNER = f"telegram:{ANN}"


class Wrapped:
    """An app with a bug in one place."""

    def __init__(self, app: App) -> None:
        self._app = app

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)


class Keyless(Wrapped):
    """A planted bug: an app for which every question is a new one."""

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


async def test_R14_an_update_that_comes_fifty_times_is_one_turn_and_one_call(where: str, load: Load) -> None:
    rng = random.Random(load.seed())
    async with bot_api() as api:
        for trial in load.rounds(1, "updates sent fifty times", each=3):
            updates = [api.update(f"question {n}") for n in range(3)]
            updates.insert(rng.randrange(4), api.update("/new"))
            await api.push(*updates)
            assert await calls(api, where, rng, 3 * trial + 3) == 3
            assert await turns(where) == 3 * trial + 3


async def test_R14_a_new_question_behind_many_that_come_again_is_answered(where: str) -> None:
    """More than may wait in a chat; those that were answered before the restart are no crowd."""
    async with bot_api() as api:
        for answers in (MAX_WAITING, 2 * MAX_WAITING, 2 * MAX_WAITING + 1):
            await api.push(*(api.update(f"question {n}") for n in range(answers - api.shown().count("Here"))))
            await calls(api, where, random.Random(1), answers)
        assert await turns(where) == 2 * MAX_WAITING + 1
        assert not any("still waiting" in text for text in api.shown())


@pytest.mark.planted("a bot for which every update is a new one")
async def test_R14_a_bot_without_keys_is_caught(where: str) -> None:
    async with bot_api() as api:
        await api.push(api.update("question"))
        await calls(api, where, random.Random(1), 1, planted=True)
        assert await turns(where) > 1


class Replacing(Wrapped):
    """A planted bug: whoever asks takes the last answer away, as a tab does that puts a whole history."""

    async def start(self, owner: str, session_id: str, user: Any, *, key: str = "") -> Any:
        rows = await self._app.store.messages.list(owner, session_id)

        def forget() -> Any:
            yield (
                "DELETE FROM conversation WHERE owner = ? AND session_id = ? AND seq = ?",
                (owner, session_id, rows[-1].seq if rows else 0),
            )

        await self._app.store.db.write(owner, forget)
        return await self._app.start(owner, session_id, user, key=key)


async def beside_each_other(where: str, load: Load, wrapped: Callable[[App], App] = lambda app: app) -> list[str]:
    """A bot and a tab on one session; what is wrong with the history that they leave."""
    rng, over = random.Random(load.seed()), asyncio.Event()
    provider = ScriptedProvider([[{"text": "Here"}]], repeat=True)
    said = {"bot": ["begin"], "tab": list[str]()}
    async with bot_api() as api:
        kept = settings(telegram_token=Key(TOKEN), telegram_allow=(ANN,), telegram_api=api.base)
        stop = asyncio.Event()
        async with App.open(where, settings=kept, provider=provider, work=False) as app:
            used = wrapped(app)
            running = asyncio.create_task(run_bot(used, stop, pace=QUICK))
            await api.say("begin")
            await api.until_shown("Here")
            (session,) = await app.store.sessions.list(OWNER)

            async def tab() -> None:
                while not over.is_set():
                    said["tab"].append(f"tab {len(said['tab'])}")
                    await (await used.start(OWNER, session.session_id, said["tab"][-1])).wait()
                    await asyncio.sleep(rng.random() / 100)

            typing = asyncio.create_task(tab())
            for n in load.rounds(10, "messages"):
                said["bot"].append(f"bot {n}")
                await api.say(f"bot {n}")
                await api.until(
                    lambda n=n: api.shown().count("Here") >= n
                )  # the two stay side by side, the bot one ahead
            await api.until(lambda: api.shown().count("Here") == len(said["bot"]))
            over.set()
            await typing
            stop.set()
            await running
            rows = await app.store.messages.list(OWNER, session.session_id)
    return history_problems(rows, said)


def history_problems(rows: Sequence[StoredMessage], said: Mapping[str, list[str]]) -> list[str]:
    numbers = [row.seq for row in rows]
    found = [] if numbers == list(range(1, len(rows) + 1)) else [f"the numbers are {numbers}"]
    asked = [row.text for row in rows if row.role == "user"]
    for who, texts in said.items():
        mine = [text for text in asked if text in texts]
        found += [] if mine == texts else [f"{who} said {texts}, and {mine} is kept"]
    found += [] if len(asked) == sum(map(len, said.values())) else [f"{len(asked)} questions are kept"]
    answers = [row for row in rows if row.role == "assistant"]
    found += [f"an answer is {row.text!r}" for row in answers if (row.text, row.state) != ("Here", "complete")]
    return found + ([] if len(answers) == len(asked) else [f"{len(asked)} questions and {len(answers)} answers"])


async def test_R15_a_bot_and_a_tab_on_one_session_only_ever_add(where: str, load: Load) -> None:
    assert await beside_each_other(where, load) == []


@pytest.mark.planted("a tab that takes the last answer away")
async def test_R15_a_tab_that_replaces_is_caught(where: str) -> None:
    assert await beside_each_other(where, Load(factor=1), lambda app: cast(App, Replacing(app)))
