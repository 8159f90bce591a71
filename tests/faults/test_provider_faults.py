"""R11: everything that a provider can do wrong, through the whole engine: over a real connection, in both forms, as a
stream and whole. The turn ends in time and is stored as it was shown, and the session goes on.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lamina import App, Tool, ToolRegistry, validate
from lamina.engine.handle import TurnHandle
from lamina.engine.turn import Engine, TurnState
from lamina.errors import BrokenStreamError, ProviderError, StalledError
from lamina.ports import Provider
from lamina.records import StoredMessage
from lamina.store.store import Store, open_store
from lamina.text.messages import Phrase
from lamina.types import Context, Ended, Text, ToolCallEvent, ToolResult, TurnEvent
from tests.faults.chats import chat_settings
from tests.faults.load import Load
from tests.providers.serving import FORMS, KEY, OPENAI, TEXT, Connection, Form, Play, head, provider, serving
from tests.providers.test_faults import FAULTS, Fault

LIMIT = 60.0
"""Past this a turn hangs; the deadlines of the faults are of a second or two."""
AT_ONCE = 6
SETTINGS = chat_settings()


async def find(what: str) -> str:
    """Find something."""
    return f"found {what}"


def engine_of(app: App, asked: Provider, kind: type[Engine]) -> Engine:
    return kind(app.builder, app.store, provider=asked)


@asynccontextmanager
async def asking(
    store: Store, asked: Provider, session_id: str, words: str, kind: type[Engine] = Engine
) -> AsyncGenerator[TurnHandle]:
    """A turn of a session; whatever comes of it, nothing runs on."""
    app = App(store, SETTINGS, provider=asked, tools=ToolRegistry(Tool.of(find)))
    engine = engine_of(app, asked, kind)
    try:
        yield await engine.start(await app.turn("ann", session_id, words))
    finally:
        await engine.close()
        await asked.close()


async def turn_of(store: Store, running: TurnHandle) -> list[StoredMessage]:
    rows = await store.messages.list("ann", running.turn.session_id)
    return [row for row in rows if row.turn_id == running.turn.turn_id]


def text_of(events: list[TurnEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def calling(form: Form, stream: bool) -> Play:
    async def play(connection: Connection) -> None:
        calls = [("a", "find", '{"what": "x"}'), ("b", "find", '{"what": "y"}')]
        await connection.send(head(kind=form.kind(stream)), form.calls(stream, calls))

    return play


async def first_turn(
    store: Store, fault: Fault, form: Form, stream: bool, session_id: str, kind: type[Engine], limit: float, late: bool
) -> list[str]:
    """The fault, at once or after calls, and what is wrong with the turn that met it."""
    plays = [calling(form, stream)] if late else []
    plays += [player(form, stream) for player in fault.plays]
    async with serving(*plays, read=fault.read) as served:
        asked = provider(form, served, stream=stream, **fault.options)
        async with asking(store, asked, session_id, "你好", kind) as running:
            try:
                async with asyncio.timeout(limit):
                    shown = [event async for event in running.events()]
            except TimeoutError:
                return ["it hangs"]
            async with asyncio.timeout(LIMIT):
                await served.quiet.wait()  # the connection is let go
    results = [event.state for event in shown if isinstance(event, ToolResult)]
    found = [] if results == ["done", "done"] * late else [f"the calls ended {results}"]
    return found + fault_problems(fault, stream, shown) + await stored_problems(store, running, shown)


def fault_problems(fault: Fault, stream: bool, shown: list[TurnEvent]) -> list[str]:
    text, last = text_of(shown), shown[-1]
    called = any(isinstance(event, ToolResult) for event in shown)
    if not isinstance(last, Ended):
        return [f"the last event is {last}"]
    if fault.error is None:
        return [] if (text, last.state) == (TEXT, "complete") else [f"{text!r}, {last}"]
    came = issubclass(fault.error, StalledError | BrokenStreamError) or text or called
    found = [] if last.state == ("interrupted" if came else "failed") else [f"{fault.error}, and yet {last}"]
    found += [f"the wrong words: {last}"] if not last.error or KEY in str(last) or last.hint.code == "bug.hint" else []
    if fault.kept == "endless":
        return found + ([] if not stream or "on on " in text else [f"kept {text!r}"])
    some = stream and fault.kept == "some"
    return found + ([] if TEXT.startswith(text) and bool(text) == some else [f"kept {text!r}"])


async def stored_problems(store: Store, running: TurnHandle, shown: list[TurnEvent]) -> list[str]:
    """Whatever was shown is stored, and the turn has its end."""
    stored = await store.turns.get("ann", running.turn.turn_id)
    rows, last = await turn_of(store, running), shown[-1]
    found = [] if isinstance(last, Ended) and last.state == stored.state else [f"{last} and stored {stored.state}"]
    found += [f"the turn is {stored.state}"] if stored.state == "streaming" else []
    said = "".join(row.text for row in rows if row.role == "assistant")
    return found + ([] if said == text_of(shown) else [f"showed {text_of(shown)!r} and stored {said!r}"])


async def next_turn(store: Store, form: Form, stream: bool, session_id: str) -> list[str]:
    """The session goes on: a valid request, a whole answer."""
    async with serving(form.good(stream)) as served:
        asked = provider(form, served, stream=stream)
        async with asking(store, asked, session_id, "Are you there?") as running, asyncio.timeout(LIMIT):
            shown = [event async for event in running.events()]
    body: dict[str, Any] = json.loads(served.requests[-1].body)
    found = [f"next: {problem}" for problem in validate(body, form.name)]
    if text_of(shown) != TEXT or running.turn.state != "complete":
        found.append(f"the next turn is {running.turn.state}: {shown}")
    return found + await stored_problems(store, running, shown)


async def played(
    store: Store, fault: Fault, form: Form, stream: bool, kind: type[Engine] = Engine, limit: float = LIMIT,
    late: bool = False,
) -> list[str]:  # fmt: skip
    session = await store.sessions.new("ann", mode="agent")
    found = await first_turn(store, fault, form, stream, session.session_id, kind, limit, late)
    found += await next_turn(store, form, stream, session.session_id)
    return [f"{fault.name}: {each}" for each in found]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("late", [False, True], ids=["at once", "after calls"])
async def test_R11_a_turn_survives_every_fault_of_its_provider(
    form: Form, stream: bool, late: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, load: Load
) -> None:
    faults = [fault for fault in FAULTS if fault.read or not late]
    assert len(faults) >= 40
    few = asyncio.Semaphore(AT_ONCE)
    async with open_store(tmp_path / "store.db") as store:

        async def one(fault: Fault) -> list[str]:
            async with few:
                return await played(store, fault, form, stream, late=late)

        found = await asyncio.gather(*map(one, faults))
        load.tried(len(faults), "faults")
        assert [each for problems in found for each in problems] == []
        assert await store.admin.verify() == []
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


class Patient(Engine):
    """The planted bug: it waits for an answer that is done, whatever happens."""

    async def _answer(self, state: TurnState, context: Context) -> list[ToolCallEvent]:
        try:
            return await super()._answer(state, context)
        except ProviderError:
            await asyncio.Event().wait()
            raise


class Careless(Engine):
    """The planted bug: it tells that the turn has ended, and does not store it."""

    async def _finish(self, state: TurnState, problem: BaseException | None) -> None:
        state.handle.end(state.record, Ended("complete" if problem is None else "interrupted", Phrase(str(problem))))


@pytest.mark.planted("an engine that waits for ever; one that does not store the end")
@pytest.mark.parametrize(
    ("kind", "words"), [(Patient, "it hangs"), (Careless, "the turn is streaming")], ids=["patient", "careless"]
)
async def test_R11_a_planted_engine_is_found(kind: type[Engine], words: str, tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "cuts_between_two_events")
    async with open_store(tmp_path / "store.db") as store:
        assert await played(store, fault, OPENAI, True) == []
        found = await played(store, fault, OPENAI, True, kind, 2.0)
    assert any(words in each for each in found)
