"""Every request that was sent can be rebuilt from the store, whatever failed before it, was deleted or is another's."""

import time
from pathlib import Path
from typing import Any

from lamina import App
from lamina.app.follow import requests_of
from lamina.engine.turn import Engine
from lamina.errors import StoreError
from lamina.providers.scripted import ScriptedProvider
from lamina.records import Sent, TurnRecord
from lamina.store.store import Store, open_store
from lamina.store.turns import Turns
from tests.faults.chats import chat_settings


class Refusing(Turns):
    """A store that has no space left for the end of the first turn."""

    refused = False

    async def finish(self, owner: str, turn_id: str, **more: Any) -> TurnRecord:
        if not self.refused:
            self.refused = True
            raise StoreError("no space left")
        return await super().finish(owner, turn_id, **more)


class WithoutTexts(Turns):
    """The planted bug: a receipt without the texts that it names."""

    async def chunk(self, owner: str, turn_id: str, n: int, text: str, *, sent: Any = None, **more: Any) -> None:
        await super().chunk(owner, turn_id, n, text, sent=sent and Sent(sent.receipt, {}), **more)

    async def finish(self, owner: str, turn_id: str, *, texts: Any = None, **more: Any) -> TurnRecord:
        return await super().finish(owner, turn_id, **more)


def engine_on(store: Store) -> tuple[App, Engine]:
    provider = ScriptedProvider([[{"text": "Well."}]], repeat=True)
    app = App(store, chat_settings(memory=False), provider=provider)
    return app, Engine(app.builder, store, provider=provider)


async def say(app: App, engine: Engine, owner: str, words: str) -> str:
    """One turn; what is wrong with rebuilding its request."""
    running = await engine.start(await app.turn(owner, "main", words))
    turn = await running.wait()
    if turn.state == "streaming":
        return "not stored"
    try:
        sent = await requests_of(app.store, owner, await app.store.turns.get(owner, turn.turn_id))
    except StoreError as error:
        return str(error)
    return "" if len(sent) == 1 and words.encode() in sent[0].payload else f"rebuilt {sent}"


async def sent_by_two(store: Store) -> list[str]:
    """Two owners whose sessions have the same name; then one deletes his and begins it anew."""
    app, engine = engine_on(store)
    wrong: list[str] = []
    for owner in ("ann", "bob"):
        await app.new_session(owner, session_id="main")
        wrong += [await say(app, engine, owner, f"question {n}") for n in range(2)]
    await store.sessions.delete("ann", "main")
    await app.new_session("ann", session_id="main")
    return [*wrong, await say(app, engine, "ann", "question 3")]


async def test_the_requests_of_sessions_that_share_a_name_can_be_rebuilt(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as store:
        assert await sent_by_two(store) == [""] * 5


async def test_the_request_after_a_turn_whose_end_could_not_be_stored_can_be_rebuilt(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as store:
        store.turns = Refusing(store.db, time.time)
        app, engine = engine_on(store)
        await app.new_session("ann", session_id="main")
        assert [await say(app, engine, "ann", f"question {n}") for n in range(3)] == ["not stored", "", ""]


async def test_a_planted_receipt_without_its_texts_is_found(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as store:
        store.turns = WithoutTexts(store.db, time.time)
        assert all("cannot be rebuilt" in each for each in await sent_by_two(store))
