"""A turn can be read from any place in it, here or in another process: always the same bytes."""

import asyncio
import random
from contextlib import aclosing

import pytest

from lamina.app.app import App
from lamina.errors import InputError, NotFoundError
from lamina.tools.registry import ToolRegistry
from lamina.types import Began, Ended, Text, ToolCallEvent, ToolResult, TurnEvent
from tests.engine.chats import chat
from tests.postgres import Server

TALK = "先读文件，然后回答。 " * 8


def looking() -> ToolRegistry:
    tools = ToolRegistry()

    @tools.function
    def look(name: str) -> str:  # pyright: ignore[reportUnusedFunction] -- the registry has it
        """Looks something up."""
        return f"found {name}"

    return tools


SCRIPT = [
    [{"text": TALK}, {"call": "look", "id": "a", "arguments": {"name": "x"}},
     {"call": "look", "id": "b", "arguments": {"name": "y"}}],
    [{"call": "look", "id": "c", "arguments": {"name": "z"}}],
    [{"text": "Done: "}, {"text": "all three. 完成。"}],
]  # fmt: skip


async def read(app: App, turn_id: str, after: str = "", owner: str = "ann") -> list[tuple[str, TurnEvent]]:
    async with aclosing(app.follow(owner, turn_id, after)) as events:
        return [one async for one in events]


def sized(events: list[tuple[str, TurnEvent]]) -> list[object]:
    """What counts: the text as a whole, calls and results by their ids, and the end."""
    found: list[object] = []
    for _, event in events:
        if isinstance(event, Text):
            if found and isinstance(found[-1], str):
                found[-1] += event.text
            else:
                found.append(event.text)
        elif isinstance(event, ToolCallEvent | ToolResult):
            found.append((type(event).__name__, event.id, getattr(event, "text", "")))
        elif isinstance(event, Ended):
            found.append((event.state, event.error.text()))
    return found


async def test_R10_a_turn_is_read_the_same_live_and_from_the_store_and_from_every_place(where: str) -> None:
    async with chat(where, SCRIPT, tools=looking(), mode="agent") as (app, session, _):
        running = await app.start("ann", session.session_id, "go")
        live = await read(app, running.turn.turn_id)
        stored = await read(app, running.turn.turn_id)
        assert sized(live) == sized(stored)
        assert isinstance(live[0][1], Began)
        assert sized(live)[0] == TALK
        assert [one[1] for one in sized(live)[1:7] if isinstance(one, tuple)] == ["a", "a", "b", "b", "c", "c"]
        whole = "".join(event.text for _, event in stored if isinstance(event, Text))
        end = int(stored[-1][0])
        assert end == len(whole) + 6
        for after in random.Random(7).sample(range(end + 1), 60):
            rest = await read(app, running.turn.turn_id, str(after))
            text = "".join(event.text for _, event in rest if isinstance(event, Text))
            assert whole.endswith(text)
            assert len(text) == sum(
                min(len(event.text), max(0, int(place) - after)) for place, event in stored if isinstance(event, Text)
            )
            assert isinstance(rest[-1][1], Ended)


async def test_R10_a_reader_joins_while_the_turn_runs_and_leaves_without_ending_it(where: str) -> None:
    script = [[{"text": "one "}, {"delay": 0.3}, {"text": "two "}, {"delay": 0.3}, {"text": "three"}]]
    async with chat(where, script) as (app, session, _):
        running = await app.start("ann", session.session_id, "go")
        place = ""
        async with aclosing(app.follow("ann", running.turn.turn_id)) as events:
            async for at, event in events:
                if isinstance(event, Text):
                    place = at
                    break
        rest = await read(app, running.turn.turn_id, place)
        assert "".join(event.text for _, event in rest if isinstance(event, Text)) == "two three"
        assert (await running.wait()).state == "complete"


async def test_R10_another_process_follows_and_cancels_a_turn_that_runs_elsewhere(postgres: Server) -> None:
    script = [[{"text": "one "}, {"delay": 0.4}, {"text": "two "}, {"delay": 30}, {"text": "three"}]]
    where = postgres.database()
    async with (
        chat(where, script) as (app, session, provider),
        App.open(where, settings=app.settings, provider=provider, work=False) as other,
    ):
        running = await app.start("ann", session.session_id, "go")
        seen: list[tuple[str, TurnEvent]] = []

        async def reads() -> None:
            async with aclosing(other.follow("ann", running.turn.turn_id)) as events:
                async for one in events:
                    seen.append(one)

        reader = asyncio.create_task(reads())
        async with asyncio.timeout(20):
            while "two" not in "".join(event.text for _, event in seen if isinstance(event, Text)):
                await asyncio.sleep(0.05)
            turn = await other.cancel("ann", running.turn.turn_id)
            await reader
            ended = await running.wait()
        assert turn.state == ended.state == "interrupted"
        assert sized(seen) == ["one two ", ("interrupted", "cancelled")]


async def test_R14_the_same_key_at_another_process_hears_the_turn_to_its_end(postgres: Server) -> None:
    script = [[{"text": "one "}, {"delay": 0.5}, {"text": "two "}, {"delay": 0.5}, {"text": "three"}]]
    where = postgres.database()
    async with (
        chat(where, script) as (app, session, provider),
        App.open(where, settings=app.settings, provider=provider, work=False) as other,
    ):
        await app.start("ann", session.session_id, "go", key="k")
        running = await other.start("ann", session.session_id, "go", key="k")
        async with asyncio.timeout(30):
            events = [event async for event in running.events()]
        assert "".join(event.text for event in events if isinstance(event, Text)) == "one two three"
        assert (events[-1], (await running.wait()).state) == (Ended("complete"), "complete")
        assert len(provider.contexts) == 1


async def test_fault_I2_a_turn_of_somebody_else_is_not_there_and_no_place_is_an_error(where: str) -> None:
    async with chat(where, [[{"text": "one "}, {"delay": 5}]]) as (app, session, _):
        running = await app.start("ann", session.session_id, "go")
        with pytest.raises(NotFoundError):
            await read(app, running.turn.turn_id, owner="bob")
        with pytest.raises(NotFoundError):
            await app.cancel("bob", running.turn.turn_id)
        with pytest.raises(InputError, match="not a position"):
            await read(app, running.turn.turn_id, "1; drop")
        assert (await app.cancel("ann", running.turn.turn_id)).state == "interrupted"
        assert (await app.cancel("ann", running.turn.turn_id)).state == "interrupted", "and again: it stays"
