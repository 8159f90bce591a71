"""Server-sent events: the form on the wire, pings, resuming, and readers that leave."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from lamina.gateway.sse import MAX_READ_AHEAD, event_bytes, turn_event, with_pings, write_events
from lamina.text.messages import Phrase
from lamina.types import Began, Ended, Notice, Text, ToolCallEvent, ToolResult, TurnEvent, Usage
from tests.gateway.apis import Api, Got, api_on
from tests.gateway.streams import Heard, heard

EVENTS = {"Accept": "text/event-stream"}
TALE = [[{"text": "Once upon "}, {"text": "a time — "}, {"text": "从前\nthere was 🐈."}, {"usage": [9, 1, 4]}]]


async def begin(api: Api, **options: Any) -> tuple[str, Got]:
    session = (await api("POST", "/api/sessions", {})).json["session_id"]
    return session, await api("POST", f"/api/sessions/{session}/messages", {"content": "Tell me."}, **options)


def names(events: list[Heard]) -> list[str]:
    return [event.name for event in events]


async def test_a_turn_is_streamed_to_whoever_asks_for_events(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db"), TALE) as api:
        session, got = await begin(api, headers=EVENTS)
        assert (got.status, got.headers["content-type"]) == (200, "text/event-stream")
        events = heard(got.raw)
        assert names(events)[0] == "began"
        assert names(events)[-1] == "ended"
        assert events[-1].data["state"] == "complete"
        assert "".join(event.data["text"] for event in events if event.name == "text") == (
            "Once upon a time — 从前\nthere was 🐈."
        )
        assert events[0].data["turn_id"] == got.headers["x-lamina-turn"]
        assert events[0].data["session_id"] == session == got.headers["x-lamina-session"]
        assert [event.data for event in events if event.name == "usage"] == [
            {"prompt": 9, "cached": 1, "completion": 4}
        ]


async def test_without_asking_for_events_the_turn_is_only_named(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db"), TALE) as api:
        session, got = await begin(api)
        assert got.status == 202
        assert got.json == {
            "turn_id": got.headers["x-lamina-turn"], "session_id": session, "answer_id": got.json["answer_id"],
            "events": f"/api/turns/{got.json['turn_id']}/events",
        }  # fmt: skip
        events = heard((await api("GET", got.json["events"])).raw)
        assert names(events)[-1] == "ended"


async def test_behind_the_end_there_is_nothing_and_before_it_there_is_the_end(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db"), TALE) as api:
        _, got = await begin(api, headers=EVENTS)
        path = f"/api/turns/{got.headers['x-lamina-turn']}/events"
        events = heard(got.raw)
        last = events[-1].id
        assert (await api("GET", path, headers={"Last-Event-ID": last})).status == 204
        assert (await api("GET", f"{path}?after={last}")).status == 204
        text = [event for event in events if event.name == "text"][-1]
        again = heard((await api("GET", path, headers={"Last-Event-ID": text.id})).raw)
        assert names(again)[-1] == "ended"
        assert "text" not in names(again)


async def test_a_position_that_is_none_is_refused_before_the_answer_begins(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db"), TALE) as api:
        _, got = await begin(api)
        for wrong in ("x", "-1", "٣", "1e3", "9" * 30):
            assert (await api("GET", got.json["events"] + f"?after={wrong}")).status == 400
        assert (await api("GET", got.json["events"], headers={"Last-Event-ID": "abc"})).status == 400


async def test_a_reader_that_leaves_does_not_end_the_turn(tmp_path: Path) -> None:
    script = [[{"text": "One. "}, {"delay": 0.3}, {"text": "Two."}]]
    async with api_on(str(tmp_path / "store.db"), script) as api:
        session = (await api("POST", "/api/sessions", {})).json["session_id"]
        sent = await api.headers("ann", EVENTS)
        async with api.http.post(
            f"{api.url}/api/sessions/{session}/messages", json={"content": "x"}, headers=sent
        ) as reply:
            turn_id = reply.headers["X-Lamina-Turn"]
            await reply.content.readany()
            reply.close()
        running = api.app.engine.running(turn_id)
        assert running is not None
        async with asyncio.timeout(30):
            assert (await running.wait()).state == "complete"
        rows = (await api("GET", f"/api/sessions/{session}/messages")).json["messages"]
        assert rows[-1]["text"] == "One. Two."


async def test_a_turn_that_is_cancelled_ends_its_readers(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db"), [[{"text": "One. "}, {"delay": 60}]]) as api:
        _, got = await begin(api)
        reading = asyncio.create_task(api("GET", got.json["events"]))
        ended = (await api("POST", f"/api/turns/{got.json['turn_id']}/cancel")).json
        assert ended["state"] == "interrupted"
        async with asyncio.timeout(30):
            events = heard((await reading).raw)
        assert (events[-1].name, events[-1].data["state"]) == ("ended", "interrupted")


def test_every_kind_of_event_has_a_name_and_its_fields() -> None:
    every: list[TurnEvent] = [
        Began("t", "s", "a"), Text("x"), ToolCallEvent("c", "look", "{}"), ToolResult("c", "look", "y", "done", 0.5),
        Notice("limit", Phrase("n")), Usage(1, 0, 2), Ended("failed", Phrase("e"), Phrase("h")),
    ]  # fmt: skip
    told = heard(b"".join(turn_event("7", event) for event in every))
    assert names(told) == ["began", "text", "call", "result", "notice", "usage", "ended"]
    assert [event.id for event in told] == ["7"] * 6 + ["7.end"]
    assert told[3].data == {"id": "c", "name": "look", "text": "y", "state": "done", "seconds": 0.5}
    assert told[6].data == {
        "state": "failed",
        "error": {"code": "e", "values": {}, "text": "e"},
        "hint": {"code": "h", "values": {}, "text": "h"},
        "reason": "stop",
    }


def test_no_text_can_end_its_event() -> None:
    raw = event_bytes("text", {"text": "a\n\nevent: ended\ndata: {}\r\n\r\n\u2028\ud800"}, "1")
    (event,) = heard(raw)
    assert raw.count(b"\n\n") == 1
    assert event.data["text"].startswith("a\n\nevent: ended")


async def test_silence_is_broken_by_pings_and_nothing_is_lost() -> None:
    gate = asyncio.Event()

    async def slow() -> AsyncGenerator[tuple[str, TurnEvent]]:
        yield "0", Began("t", "s", "a")
        await gate.wait()
        yield "1", Text("x")
        yield "1", Ended("complete")

    pieces: list[bytes] = []
    async for piece in write_events(slow(), ping=0.01):
        pieces.append(piece)
        if pieces.count(b": ping\n\n") == 3:
            gate.set()
    assert names(heard(b"".join(pieces))) == ["began", "text", "ended"]
    assert pieces.count(b": ping\n\n") >= 3


async def test_a_reader_that_stops_closes_what_it_reads() -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncGenerator[tuple[str, TurnEvent]]:
        try:
            yield "0", Began("t", "s", "a")
            await asyncio.Event().wait()
        finally:
            closed.set()

    reading = write_events(endless(), ping=0.01)
    assert (await anext(reading)).startswith(b"id: 0\n")
    assert await anext(reading) == b": ping\n\n"
    await reading.aclose()
    assert closed.is_set()


async def test_a_source_that_fails_is_not_taken_for_one_that_ended() -> None:
    async def broken() -> AsyncGenerator[int]:
        yield 1
        raise OSError("the store is gone")

    found: list[int | None] = []
    failed = ""
    try:
        async for one in with_pings(broken(), 1):
            found.append(one)
    except OSError as error:
        failed = str(error)
    assert (found, failed) == ([1], "the store is gone")


async def test_a_slow_reader_holds_up_only_whoever_reads_for_him() -> None:
    made = 0

    async def many() -> AsyncGenerator[int]:
        nonlocal made
        for made in range(10_000):
            yield made

    found: list[int] = []
    async for one in with_pings(many(), 1):
        assert one is not None
        if one == 10:
            await asyncio.sleep(0.01)
            assert made < 2 * MAX_READ_AHEAD
        found.append(one)
    assert found == list(range(10_000))


async def test_a_reader_that_leaves_while_others_wait_is_gone_at_once() -> None:
    """The one that reads ahead is held up by a full shelf, and is let go of."""

    async def endless() -> AsyncGenerator[int]:
        number = 0
        while True:
            yield number
            number += 1

    reading = with_pings(endless(), 1)
    assert await anext(reading) == 0
    async with asyncio.timeout(30):
        await reading.aclose()
