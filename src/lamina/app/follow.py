"""Reading a turn from any place in it, in whichever process it runs or ran.

A position counts the characters of text, the calls and the results before it. It is made of what is stored alone, so
that a stream which one process began goes on in another, byte for byte. Reading never ends a turn.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from lamina.assembly.fences import read_result
from lamina.engine.handle import TurnHandle
from lamina.engine.run import Engine
from lamina.errors import InputError, format_value
from lamina.records import FinalState, StoredMessage, TurnRecord
from lamina.store.store import Store
from lamina.text.messages import Phrase
from lamina.types import Began, Ended, Text, ToolCallEvent, ToolOutput, ToolResult, TurnEvent, Usage

POLL_INTERVAL_S = 0.1
"""Seconds between two looks at a turn that runs elsewhere."""
Placed = tuple[int, TurnEvent]
"""An event, and the position behind it."""


def position_of(text: str) -> int:
    """A position as a client gives it back; empty is the beginning."""
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InputError("turn.bad_position", value=format_value(text))
    return int(text)


class Places:
    """Counts a turn's events from its beginning and lets through what is behind a position."""

    def __init__(self, after: int) -> None:
        self.at, self._after = 0, after

    def pass_on(self, event: TurnEvent) -> TurnEvent | None:
        """The event, the rest of a text that is partly known, or None. What has no size of its own may come again."""
        before = self.at
        self.at += len(event.text) if isinstance(event, Text) else isinstance(event, ToolCallEvent | ToolResult)
        if self.at == before:
            known = self._after > 0 if isinstance(event, Began) else self.at < self._after
            return None if known else event
        if self.at <= self._after:
            return None
        return Text(event.text[self._after - before :]) if isinstance(event, Text) and before < self._after else event


async def follow(store: Store, engine: Engine, owner: str, turn_id: str, after: int = 0) -> AsyncGenerator[Placed]:
    """The events of a turn behind a position, until its end."""
    turn = await store.turns.get(owner, turn_id)
    running = engine.running(turn_id)
    if running is None or running.turn.owner != owner:
        async with aclosing(_stored(store, turn, after)) as found:
            async for one in found:
                yield one
        return
    places = Places(after)
    async with aclosing(running.events()) as events:
        async for event in events:
            if (passed := places.pass_on(event)) is not None:
                yield places.at, passed


async def _stored(store: Store, turn: TurnRecord, after: int) -> AsyncGenerator[Placed]:
    """A turn as the store tells it: over, or running in another process, where it is looked at again and again."""
    first: tuple[TurnEvent, ...] = (Began(turn.turn_id, turn.session_id, turn.answer_message_id),)
    while True:
        turn, rows, current = await read_story(store, turn)
        over = turn.state != "streaming"
        places = Places(after)
        for event in (*first, *told(rows, turn, current, over)):
            if (passed := places.pass_on(event)) is not None:
                yield places.at, passed
        first, after = (), max(after, places.at)
        if over:
            yield after, ended(turn)
            return
        await asyncio.sleep(POLL_INTERVAL_S)


def followed(store: Store, turn: TurnRecord) -> TurnHandle:
    """A turn that is over, or that another process answers, for readers here. `App.cancel` ends it."""
    running = TurnHandle(turn)

    async def read() -> None:
        async with aclosing(_stored(store, turn, 0)) as events:
            async for _, event in events:
                if isinstance(event, Ended):
                    now = await store.turns.get(turn.owner, turn.turn_id)
                    running.end(replace(now, repeated=True), event)
                else:
                    running.emit(event)

    def lost(task: asyncio.Task[None]) -> None:
        if not running.over:  # the store is gone, or this process ends
            running.end(turn, Ended("interrupted", Phrase("turn.runs_elsewhere")))

    running.reading = asyncio.create_task(read())
    running.reading.add_done_callback(lost)
    return running


async def read_story(store: Store, turn: TurnRecord) -> tuple[TurnRecord, Sequence[StoredMessage], str]:
    """The turn, its messages and the text that streams, all of one moment: a step that ended in between starts over."""
    while True:
        rows = await store.messages.list(
            turn.owner, turn.session_id, after=turn.user_seq - 1, before=turn.answer_seq + 1
        )
        chunks = await store.turns.chunks(turn.owner, turn.turn_id) if turn.state == "streaming" else ()
        now = await store.turns.get(turn.owner, turn.turn_id)
        if (now.state, now.answer_seq) == (turn.state, turn.answer_seq):
            mine = [row for row in rows if row.turn_id == turn.turn_id and row.role in ("assistant", "tool")]
            return now, mine, "".join(text for _, text in chunks)
        turn = now


def told(rows: Sequence[StoredMessage], turn: TurnRecord, current: str, over: bool) -> Iterator[TurnEvent]:
    """What the rows of a turn say, in the order in which it was streamed: text, then each call with its result."""
    results = {str(row.extra.get("tool_call_id")): row for row in rows if row.role == "tool"}
    for row in rows:
        if row.role != "assistant":
            continue
        last = row.seq == turn.answer_seq
        text = current if last and not over else row.text
        if text:
            yield Text(text)
        for call in row.extra.get("tool_calls") or ():
            event = ToolCallEvent(call["id"], call["function"]["name"], call["function"]["arguments"])
            yield event
            result = results.get(event.id)
            if result is not None:
                yield result_of(event, result)
            elif not last:  # it runs just now, or was cut off
                return
    if over and turn.usage:
        yield Usage(turn.usage.get("prompt", 0), turn.usage.get("cached", 0), turn.usage.get("completion", 0))


def result_of(call: ToolCallEvent, row: StoredMessage) -> ToolResult:
    """How a call ended, from its stored result. How long it took is not stored, nor, by 0.1.0, its state."""
    content = row.message["content"]
    state = content.state if isinstance(content, ToolOutput) else "done"
    return ToolResult(call.id, call.name, read_result(row.text, row.message), state, 0.0)


def ended(turn: TurnRecord) -> Ended:
    """The end of a turn as it is stored."""
    state: FinalState = "interrupted" if turn.state == "streaming" else turn.state
    hint = Phrase.load(str(turn.usage.get("hint", "")))
    return Ended(state, Phrase.load(turn.error), hint, turn.usage.get("done", "stop"))
