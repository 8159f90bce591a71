"""Reading a turn from any place in it, in whichever process it runs or ran; and what was sent in it, byte for byte.

A position counts the characters of text, the calls and the results before it. It is made of what is stored alone, so
that a stream which one process began continues in another, byte for byte. Reading never ends a turn.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from lamina.apart import run_apart
from lamina.assembly.trace import hashes, unpack
from lamina.engine.handle import TurnHandle
from lamina.engine.transcript import replay_events, stored_end
from lamina.engine.turn import Engine
from lamina.errors import InputError, MessageError, StoreDamagedError, format_value
from lamina.records import StoredMessage, TurnRecord
from lamina.store.lock import RECOVERY
from lamina.store.store import Store
from lamina.text.messages import Phrase
from lamina.types import Began, Ended, Receipt, Text, ToolCallEvent, ToolResult, TurnEvent

POLL_INTERVAL_S = 0.1
"""Seconds between two reads of a turn that runs elsewhere."""
Placed = tuple[int, TurnEvent]
"""An event, and the position behind it."""


def position_of(text: str) -> int:
    """A position as a client gives it back; empty is the beginning."""
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InputError("turn.bad_position", value=format_value(text))
    return int(text)


class PositionCounter:
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
        async with aclosing(_read_stored(store, turn, after)) as found:
            async for one in found:
                yield one
        return
    counter = PositionCounter(after)
    async with aclosing(running.events()) as events:
        async for event in events:
            if (passed := counter.pass_on(event)) is not None:
                yield counter.at, passed


async def _read_stored(store: Store, turn: TurnRecord, after: int) -> AsyncGenerator[Placed]:
    """A turn as the store tells it: over, or running in another process, where it is looked at again and again."""
    first: tuple[TurnEvent, ...] = (Began(turn.turn_id, turn.session_id, turn.answer_message_id),)
    while True:
        turn, rows, current = await read_story(store, turn)
        over = turn.state != "streaming"
        counter = PositionCounter(after)
        for event in (*first, *replay_events(rows, turn, current, over)):
            if (passed := counter.pass_on(event)) is not None:
                yield counter.at, passed
        first, after = (), max(after, counter.at)
        if over:
            yield after, stored_end(turn)
            return
        await asyncio.sleep(POLL_INTERVAL_S)


def follow_stored(store: Store, turn: TurnRecord) -> TurnHandle:
    """A turn that is over, or that another process answers, for readers here. `App.cancel` ends it."""
    handle = TurnHandle(turn)

    async def read() -> None:
        async with aclosing(_read_stored(store, turn, 0)) as events:
            async for _, event in events:
                if isinstance(event, Ended):
                    now = await store.turns.get(turn.owner, turn.turn_id)
                    handle.end(replace(now, repeated=True), event)
                else:
                    handle.emit(event)

    def end_unread(task: asyncio.Task[None]) -> None:
        if not handle.over:  # the store is gone, or this process ends
            handle.end(turn, Ended("interrupted", Phrase("turn.runs_elsewhere")))

    handle.reading = asyncio.create_task(read())
    handle.reading.add_done_callback(end_unread)
    return handle


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


async def requests_of(store: Store, owner: str, turn: TurnRecord) -> list[Receipt]:
    """The requests of a turn, in order; none when nothing was sent. Bytes that do not match their hash are an error."""
    if not turn.receipt:
        return []
    try:
        names = hashes(turn.receipt)
        texts = await store.messages.texts(owner, names)
        if lost := next((name for name in names if name not in texts), ""):
            raise MessageError("trace.text_gone", hash=lost)
        return await run_apart(sum(map(len, texts.values())), unpack, turn.receipt, texts)
    except MessageError as error:
        raise StoreDamagedError("trace.cannot_rebuild", turn=turn.turn_id, why=error.phrase, hint=RECOVERY) from None
