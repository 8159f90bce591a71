"""Apps with a script for a model, for the tests of the engine."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from lamina import App, ToolRegistry
from lamina.providers.scripted import ScriptedProvider, Step
from lamina.records import Session
from lamina.settings import Settings, load_settings
from lamina.types import Ended, Notice, Text, TurnEvent

Script = Sequence[Sequence[Step]]


def settings(**changes: Any) -> Settings:
    plain: dict[str, Any] = {"memory": False, "memory_deadline": 60_000}
    return replace(load_settings(environ={}), **{**plain, **changes})


@asynccontextmanager
async def chat(
    where: str, script: Script, *, tools: ToolRegistry | None = None, window: int | None = None, **changes: Any
) -> AsyncGenerator[tuple[App, Session, ScriptedProvider], None]:
    """An app on a store, a session of Ann's in it, and the script that answers."""
    provider = ScriptedProvider(script, window=window, repeat=True)
    kept = settings(**changes)
    async with App.open(where, settings=kept, provider=provider, tools=tools, work=kept.memory) as app:
        yield app, await app.new_session("ann"), provider


async def told(app: App, session: Session, words: str, **options: Any) -> list[TurnEvent]:
    """The events of a turn, but for the notice that there are no rules, which test_injection looks at."""
    async with asyncio.timeout(60):
        events = [event async for event in app.run("ann", session.session_id, words, **options)]
    return [event for event in events if not (isinstance(event, Notice) and event.kind == "rules")]


def text_of(events: Sequence[TurnEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def end_of(events: Sequence[TurnEvent]) -> Ended:
    last = events[-1]
    assert isinstance(last, Ended)
    return last
