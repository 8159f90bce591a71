"""A turn over both stores: what is stored before what, who may leave, and how it ends."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lamina import App, ToolRegistry, validate
from lamina.app.follow import requests_of
from lamina.engine.turn import CUT_OFF
from lamina.errors import ConnectError
from lamina.providers.scripted import ScriptedProvider
from lamina.records import Template, Turn
from lamina.store.store import Store, open_store
from lamina.text.messages import Phrase
from lamina.types import Began, Context, Decision, Ended, Event, Notice, Text, ToolCallEvent, ToolResult, Usage
from tests.engine.chats import chat, end_of, settings, text_of, told

SCRIPT = Phrase("script.itself")
UNREACHABLE = Phrase("provider.unreachable", host=SCRIPT)


class Looking(ScriptedProvider):
    """Looks into the store at the moment it is asked."""

    store: Store
    seen: list[tuple[str, str]]

    def stream(self, context: Context, *, max_tokens: int | None = None, options: Any = None) -> AsyncGenerator[Event]:
        return self._looked(super().stream(context, max_tokens=max_tokens))

    async def _looked(self, stream: AsyncGenerator[Event]) -> AsyncGenerator[Event]:
        session = (await self.store.sessions.list("ann"))[0]
        rows = await self.store.messages.list("ann", session.session_id)
        (turn,) = await self.store.turns.list("ann", session.session_id)
        self.seen = [*((row.role, row.state) for row in rows), ("turn", turn.progress)]
        async for event in stream:
            yield event


async def test_C7_the_question_is_committed_before_the_provider_is_asked(where: str) -> None:
    provider = Looking([[{"text": "hello"}]])
    async with App.open(where, settings=settings(), provider=provider, work=False) as app:
        provider.store = app.store
        session = await app.new_session("ann")
        events = await told(app, session, "hi")
        assert provider.seen == [("user", "complete"), ("assistant", "streaming"), ("turn", "accepted")]
        assert isinstance(events[0], Began)
        assert events[1:] == [Text("hello"), Ended("complete")]
        (turn,) = await app.store.turns.list("ann", session.session_id)
        assert turn.progress == "complete"


async def test_C7_text_is_stored_before_it_is_shown_and_a_state_says_that_it_streams(where: str) -> None:
    script = [[{"text": "one "}, {"delay": 0.2}, {"text": "two "}, {"delay": 0.2}, {"text": "three"}]]
    async with chat(where, script) as (app, session, _):
        running = await app.start("ann", session.session_id, "hi")
        shown = ""
        async for event in running.events():
            if isinstance(event, Text) and not running.over:
                shown += event.text
                turn = await app.store.turns.get("ann", running.turn.turn_id)
                chunks = await app.store.turns.chunks("ann", turn.turn_id)
                rows = await app.store.messages.list("ann", session.session_id)
                stored = "".join(text for _, text in chunks) or rows[-1].text
                assert stored.startswith(shown)
                assert turn.progress in ("streaming", "complete")
        assert shown == "one two three"


async def test_a_reader_that_leaves_does_not_end_the_turn_and_another_reads_it_from_the_beginning(where: str) -> None:
    async with chat(where, [[{"text": "one "}, {"delay": 0.1}, {"text": "two"}]]) as (app, session, _):
        running = await app.start("ann", session.session_id, "hi")
        async for event in running.events():
            if isinstance(event, Text):
                break
        assert (await running.wait()).state == "complete"
        again = [event async for event in running.events()]
        assert text_of(again) == "one two"
        assert [event async for event in running.events(after=len(again) - 1)] == [Ended("complete")]


async def test_cancel_is_explicit_and_keeps_what_came(where: str) -> None:
    async with chat(where, [[{"text": "so far"}, {"fault": "stall"}], [{"text": "on"}]]) as (app, session, provider):
        running = await app.start("ann", session.session_id, "hi")
        async for event in running.events():
            if isinstance(event, Text):
                running.cancel()
        record = await running.wait()
        assert (record.state, record.error) == ("interrupted", "turn.cancelled")
        rows = await app.store.messages.list("ann", session.session_id)
        assert [(row.text, row.state) for row in rows] == [("hi", "complete"), ("so far", "interrupted")]
        assert end_of(await told(app, session, "go on")).state == "complete"
        assert [m["content"] for m in provider.contexts[-1].messages[-3:]] == ["hi", "so far", "go on"]


async def test_a_turn_that_is_cancelled_before_its_first_step_ends_too(where: str) -> None:
    async with chat(where, [[{"text": "never"}]]) as (app, session, _):
        running = await app.start("ann", session.session_id, "hi")
        running.cancel()
        assert (await running.wait()).state == "interrupted"


async def test_an_end_that_somebody_else_has_stored_is_the_end_that_is_told(where: str) -> None:
    """The lease ran out while the model thought, and nothing was to be stored meanwhile."""
    script = [[{"delay": 0.3}, {"usage": [9, 0, 1]}, {"done": "stop"}]]
    async with chat(where, script) as (app, session, _):
        running = await app.start("ann", session.session_id, "hi")
        await app.store.turns.recover(everything=True)
        events = [event async for event in running.events()]
        stored = await app.store.turns.get("ann", running.turn.turn_id)
        assert (end_of(events).state, stored.state) == ("interrupted", "interrupted")


async def test_closing_the_app_ends_what_runs_and_keeps_it(where: str) -> None:
    async with chat(where, [[{"text": "so far"}, {"fault": "stall"}]]) as (app, session, _):
        running = await app.start("ann", session.session_id, "hi")
        async for event in running.events():
            if isinstance(event, Text):
                break
    async with open_store(where) as store:
        rows = await store.messages.list("ann", session.session_id)
        assert [(row.text, row.state) for row in rows][1] == ("so far", "interrupted")


async def test_the_same_key_is_one_turn_and_one_call_of_the_provider(where: str) -> None:
    async with chat(where, [[{"text": "once"}, {"delay": 0.05}, {"text": "!"}]]) as (app, session, provider):
        all_events = await asyncio.gather(*(told(app, session, "hi", key="k1") for _ in range(10)))
        assert {text_of(events) for events in all_events} == {"once!"}
        assert len(provider.contexts) == 1
        assert text_of(await told(app, session, "hi", key="k1")) == "once!"
        assert len(await app.store.turns.list("ann", session.session_id)) == 1


async def test_a_provider_that_nobody_reaches_fails_the_turn_and_the_words_stay(where: str) -> None:
    async with chat(where, [[{"fault": "refused"}], [{"text": "better"}]]) as (app, session, provider):
        end = end_of(await told(app, session, "hi"))
        assert end == Ended("failed", UNREACHABLE, Phrase("provider.hint_running", host=SCRIPT), status=502)
        assert end_of(await told(app, session, "again")).state == "complete"
        assert [m["content"] for m in provider.contexts[-1].messages[1:]] == ["hi", "again"]
        assert not validate(json.loads(provider.contexts[-1].payload))


async def test_a_stream_that_is_cut_is_interrupted_with_what_came(where: str) -> None:
    async with chat(where, [[{"text": "half of"}, {"fault": "cut"}]]) as (app, session, _):
        events = await told(app, session, "hi")
        assert text_of(events) == "half of"
        assert end_of(events).state == "interrupted"
        (turn,) = await app.store.turns.list("ann", session.session_id)
        assert turn.error == "script.cut"


def weather() -> ToolRegistry:
    tools = ToolRegistry()

    @tools.function
    def weather(city: str) -> str:
        """The weather of a city; today only."""
        return f"sunny in {city}"

    return tools


CALLING = [
    [{"text": "Let me see. "}, {"call": "weather", "id": "c1", "arguments": {"city": "巴黎"}}, {"usage": [50, 0, 9]}],
    [{"text": "It is sunny."}, {"usage": [80, 50, 4]}],
]


async def test_tools_run_inside_the_turn_and_each_request_extends_the_one_before(where: str) -> None:
    async with chat(where, CALLING, tools=weather()) as (app, session, provider):
        events = await told(app, session, "How is the weather?")
        kinds = [type(event) for event in events if not isinstance(event, Usage)]
        assert kinds == [Began, Text, ToolCallEvent, ToolResult, Text, Ended]
        assert [e.text for e in events if isinstance(e, ToolResult)] == ["sunny in 巴黎"]
        first, second = (context.payload for context in provider.contexts)
        assert second.startswith(first[:-2])
        rows = await app.store.messages.list("ann", session.session_id)
        assert [row.role for row in rows] == ["user", "assistant", "tool", "assistant"]
        (turn,) = await app.store.turns.list("ann", session.session_id)
        assert turn.usage == {"prompt": 130, "cached": 50, "completion": 13, "requests": [[50, 0, 9], [80, 50, 4]]}
        assert [r.payload for r in await requests_of(app.store, "ann", turn)] == [first, second]
        await told(app, session, "And tomorrow?")
        assert not any(validate(json.loads(context.payload)) for context in provider.contexts)


async def test_a_turn_ends_with_a_notice_at_its_limit_of_steps_and_stays_valid(where: str) -> None:
    async with chat(where, [CALLING[0]], tools=weather(), steps=3) as (app, session, provider):
        events = await told(app, session, "How is the weather?")
        assert end_of(events).state == "interrupted"
        assert [e.kind for e in events if isinstance(e, Notice)] == ["limit"]
        assert len(provider.contexts) == 3
        ids = [e.id for e in events if isinstance(e, ToolCallEvent)]
        assert len(set(ids)) == 3
        await told(app, session, "Go on")
        assert not validate(json.loads(provider.contexts[-1].payload))


async def test_a_turn_ends_at_its_limit_of_tokens(where: str) -> None:
    async with chat(where, CALLING, tools=weather(), turn_tokens=40) as (app, session, provider):
        end = end_of(await told(app, session, "How is the weather?"))
        assert (end.state, end.error) == ("interrupted", Phrase("turn.token_limit", spent=59, limit=40))
        assert len(provider.contexts) == 1


async def test_a_turn_ends_at_its_limit_of_time_but_a_question_to_the_user_does_not_count(where: str) -> None:
    tools = weather()
    tools.remove("weather")

    @tools.function(check=lambda given: Decision("confirm", "it rains"))
    def weather_(city: str) -> str:
        """The weather of a city; today only."""
        return "sunny"

    async def slow(call: ToolCallEvent, decision: object) -> bool:
        await asyncio.sleep(1.2)
        return True

    calling = [[{"call": "weather_", "arguments": {"city": "Rome"}}], [{"text": "sunny"}], [{"fault": "stall"}]]
    async with chat(where, calling, tools=tools, turn_seconds=1) as (app, session, _):
        assert end_of(await told(app, session, "How is it?", ask=slow)).state == "complete"
        events = await told(app, session, "How is it now?")
        assert (end_of(events).state, end_of(events).error) == ("interrupted", Phrase("turn.too_long", n="1"))


async def test_what_raises_in_a_provider_ends_the_turn_and_is_called_a_bug(where: str) -> None:
    class Broken(ScriptedProvider):
        def stream(
            self, context: Context, *, max_tokens: int | None = None, options: Any = None
        ) -> AsyncGenerator[Event]:
            raise ZeroDivisionError("oops")

    async with App.open(where, settings=settings(), provider=Broken([]), work=False) as app:
        session = await app.new_session("ann")
        end = end_of(await told(app, session, "hi"))
        assert (end.state, end.error) == ("failed", Phrase("bug", error="ZeroDivisionError: oops"))


async def test_a_layer_that_cannot_be_loaded_stops_the_turn_and_nothing_is_sent(where: str) -> None:
    async with chat(where, [[{"text": "never"}]]) as (app, session, provider):

        @app.source("graph")
        def graph(turn: object) -> str:
            raise ConnectError("the graph is away")

        end = end_of(await told(app, session, "hi"))
        assert (end.state, end.error.text(), provider.contexts) == ("failed", "the graph is away", [])


async def test_usage_corrects_the_estimate_of_the_next_turn(where: str) -> None:
    async with chat(where, [[{"text": "ok"}, {"usage": [3_000, 0, 1]}]], window=6_000) as (app, session, _):
        before = (await app.context("ann", session.session_id, "hi")).receipt
        await told(app, session, "hi")
        after = (await app.context("ann", session.session_id, "hi")).receipt
        assert "×" not in before.counter
        assert after.counter.endswith("×4.000")
        assert (await app.store.sessions.get("ann", session.session_id)).runtime["use"] == 0.5


async def test_people_hear_of_what_a_turn_goes_without_and_of_an_answer_that_was_cut(tmp_path: Path) -> None:
    script = [[{"text": "Rome is a"}, {"usage": [9, 0, 3]}, {"done": "length"}]]
    async with chat(str(tmp_path / "s.db"), script, memory_deadline=150) as (app, session, _):

        async def late(turn: Turn) -> str:
            await asyncio.sleep(60)
            return "too late"

        app.source("tickets", optional=True)(late)
        events = await told(app, session, "hi")
        first, last = [event for event in events if isinstance(event, Notice)]
        assert (first.kind, first.text) == ("degraded", "without context:tickets: no answer within 150 ms")
        assert (last.kind, last.phrase) == ("limit", CUT_OFF)
        assert [type(event) for event in events[-3:]] == [Text, Notice, Ended]
        assert end_of(events).state == "complete"


@pytest.mark.parametrize("absurd", [10**25, 10**400])
async def test_a_count_that_no_request_can_have_is_none(tmp_path: Path, absurd: int) -> None:
    script = [[{"text": "ok"}, {"usage": [absurd, 0, 3]}]]
    async with chat(str(tmp_path / "s.db"), script, window=4_000) as (app, session, _):
        assert end_of(await told(app, session, "hi")).state == "complete"
        (turn,) = await app.store.turns.list("ann", session.session_id)
        assert turn.usage == {"prompt": 0, "cached": 0, "completion": 3, "requests": [[0, 0, 3]]}
        assert await app.store.admin.verify() == []


async def test_C5_the_profile_fills_slots_and_a_failed_turn_keeps_its_hint(where: str) -> None:
    async with chat(where, [[{"text": "ok"}]]) as (app, session, provider):
        await app.store.templates.put("ann", Template("", "trip", "You help people in {{city}}."))
        failed = end_of(await told(app, session, "hi"))
        assert failed.state == "failed"
        assert "city" in failed.error.text()
        (turn,) = await app.store.turns.list("ann", session.session_id)
        stored = [event async for _, event in app.follow("ann", turn.turn_id)][-1]
        assert (stored.error, stored.hint) == (failed.error, failed.hint)  # pyright: ignore[reportAttributeAccessIssue]
        assert failed.hint
        await app.store.profile.set("ann", {"city": "Jiangcheng"})
        assert end_of(await told(app, session, "hi")).state == "complete"
        assert "You help people in Jiangcheng." in provider.contexts[-1].system
        await told(app, session, "hi", values={"city": "Lisbon"})
        assert "Lisbon" in provider.contexts[-1].system, "what the caller gives counts more"


@pytest.mark.parametrize("layout", ["strict", "ledger"])
@pytest.mark.parametrize("switched_off", [False, True])
async def test_a_session_goes_on_when_its_skill_is_deleted_or_switched_off(
    where: str, layout: str, switched_off: bool
) -> None:
    async with chat(where, [[{"text": "Yes."}]], layout=layout) as (app, session, provider):
        skill = await app.store.templates.put("ann", Template("", "sums", "SKILL-TEXT", is_skill=True))
        await app.store.sessions.update("ann", session.session_id, skill="sums")
        assert end_of(await told(app, session, "One")).state == "complete"
        assert "SKILL-TEXT" in provider.contexts[-1].system
        if switched_off:
            await app.store.templates.put("ann", replace(skill, enabled=False))
        else:
            await app.store.templates.delete("ann", skill.template_id)
        events = await told(app, session, "Two")
        assert end_of(events).state == "complete"
        (notice,) = [event for event in events if isinstance(event, Notice)]
        assert (notice.kind, notice.phrase.code) == ("degraded", "notice.left_out")
        assert notice.text == "no skill named 'sums' is enabled here"
        sent = provider.contexts[-1]
        gone = [one for one in sent.receipt.segments if one.layer == "skill" and one.decision == "dropped"]
        assert [(one.source, one.reason.text()) for one in gone] == [("skill", f"left out: {notice.text}")]
        if layout == "ledger":
            assert "no longer applies" in str(sent.messages[-1]["content"]), "the model is told that it is gone"
        else:
            assert "SKILL-TEXT" not in sent.system


async def test_a_clock_that_is_set_in_the_middle_of_a_turn_does_not_end_it(where: str) -> None:
    """Its lease has run out by the new time; the worker of the process that answers it knows better."""
    ahead, provider = [0.0], ScriptedProvider([[{"text": "one "}, {"delay": 2.5}, {"text": "two"}]])
    clock = lambda: time.time() + ahead[0]  # noqa: E731 -- short
    async with App.open(where, settings=settings(), provider=provider, clock=clock) as app:
        session = await app.new_session("ann")
        running = await app.start("ann", session.session_id, "count")
        async for event in running.events():
            if isinstance(event, Text):
                ahead[0] = 120.0
        assert running.turn.state == "complete"
