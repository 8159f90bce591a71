"""What a turn sent is stored while it runs: before anything of its answer is shown, and soon when nothing comes."""

import asyncio
from itertools import pairwise

from lamina import App, ToolRegistry
from lamina.app.follow import requests_of
from lamina.providers.scripted import ScriptedProvider
from lamina.store.store import open_store
from lamina.types import Receipt, Text
from tests.engine.chats import chat, settings, told


async def sent(app: App, turn_id: str) -> list[Receipt]:
    return list(await app.requests("ann", turn_id))


async def test_whoever_reads_a_text_can_read_the_request_that_it_answers(where: str) -> None:
    async with chat(where, [[{"text": "so far"}, {"fault": "stall"}]]) as (app, session, provider):
        running, read = await app.start("ann", session.session_id, "hi"), list[bytes]()
        async for event in running.events():
            if isinstance(event, Text):
                read += [receipt.payload for receipt in await sent(app, running.turn.turn_id)]
                running.cancel()
        assert read == [provider.contexts[0].receipt.payload]
        assert read == [receipt.payload for receipt in await sent(app, running.turn.turn_id)]


async def test_a_request_that_nobody_answers_is_stored_soon_and_its_turn_is_still_only_accepted(where: str) -> None:
    async with chat(where, [[{"delay": 60}, {"text": "at last"}]]) as (app, session, provider):
        running = await app.start("ann", session.session_id, "hi")
        async with asyncio.timeout(20):
            while not (found := await sent(app, running.turn.turn_id)):
                await asyncio.sleep(0.01)
        assert found[0].payload == provider.contexts[0].receipt.payload
        assert (await app.store.turns.get("ann", running.turn.turn_id)).progress == "accepted"
        running.cancel()
        await running.wait()


async def test_a_tool_runs_after_the_request_that_called_it_is_stored(where: str) -> None:
    registry, seen, name = ToolRegistry(), list[list[str]](), ""

    @registry.function
    async def look() -> str:  # pyright: ignore[reportUnusedFunction] -- the registry calls it
        """Look."""
        seen.append([receipt.hash for receipt in await sent(app, name)])
        return "nothing"

    calls = [[{"call": "look", "arguments": {}}], [{"call": "look", "arguments": {}}], [{"text": "Well."}]]
    async with chat(where, calls, tools=registry, mode="agent") as (app, session, provider):
        running = await app.start("ann", session.session_id, "hi")
        name = running.turn.turn_id
        assert (await running.wait()).state == "complete"
        hashes = [context.receipt.hash for context in provider.contexts]
        assert seen == [hashes[:1], hashes[:2]]
        assert [receipt.hash for receipt in await sent(app, name)] == hashes


async def test_what_was_sent_outlives_the_process_and_the_next_turn_goes_on(where: str) -> None:
    script = [[{"text": "so far"}, {"fault": "stall"}], [{"text": "on"}]]
    async with open_store(where) as store:  # left as a process leaves it that is killed: nothing is ended
        app = App(store, settings(), provider=(provider := ScriptedProvider(script)))
        session = await app.new_session("ann")
        running = await app.start("ann", session.session_id, "hi")
        async for event in running.events():
            if isinstance(event, Text):
                break
        before = provider.contexts[0].receipt.payload
        await store.turns.recover(everything=True)  # as the next process does
        turn = await store.turns.get("ann", running.turn.turn_id)
        assert (turn.state, [one.payload for one in await requests_of(store, "ann", turn)]) == ("interrupted", [before])
        await app.close()
        assert (await store.turns.get("ann", turn.turn_id)).receipt == turn.receipt
    async with App.open(where, settings=settings(), provider=ScriptedProvider(script[1:]), work=False) as app:
        await told(app, session, "and now?")
        first, second = await app.store.turns.list("ann", session.session_id)
        assert [one.payload for one in await sent(app, first.turn_id)] == [before]
        assert len(await sent(app, second.turn_id)) == 1
        assert await app.store.admin.verify() == []


async def links(app: App) -> int:
    return sum('"table":"turn_text"' in line for line in [line async for line in app.store.admin.export()])


async def test_each_turn_stores_the_texts_that_are_new_in_it_though_it_stores_twice(where: str) -> None:
    async with chat(where, [[{"text": "one"}, {"delay": 0.1}, {"text": " two"}]]) as (app, session, _):
        kept: list[int] = []
        for number in range(5):
            await told(app, session, f"Question {number}")
            kept.append(await links(app))
        assert [after - before for before, after in pairwise(kept)] == [3, 2, 2, 2], "what was said before and now"
