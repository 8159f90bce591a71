"""Server-sent events: the events of a turn as text, each with the position from which to go on after it.

A reader that leaves ends its own reading, never the turn. Pings interrupt a silence, so that no proxy takes the
connection for dead.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from lamina.gateway.handlers import as_json
from lamina.text.messages import Phrase
from lamina.types import Began, Ended, Notice, Text, ToolCallEvent, ToolResult, TurnEvent, Usage

T = TypeVar("T")
MEDIA = "text/event-stream"
MAX_READ_AHEAD = 256
"""Events that are read before they are sent on."""
PING_INTERVAL_S = 10.0
"""Silence after which there is a sign of life."""
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Proxies pass each event on as it comes, and store none."""
END_MARK = ".end"
"""Behind the position of the last event: nothing ever follows it."""
NAMES: dict[type, str] = {
    Began: "began", Text: "text", ToolCallEvent: "call", ToolResult: "result", Notice: "notice", Usage: "usage",
    Ended: "ended",
}  # fmt: skip


def event_bytes(name: str, data: object, position: str = "") -> bytes:
    """One event. Its data is JSON, which has no line breaks of its own."""
    head = f"id: {position}\n" if position else ""
    return b"%bevent: %b\ndata: %b\n\n" % (head.encode(), name.encode(), as_json(data))


def turn_event(position: str, event: TurnEvent) -> bytes:
    fields: dict[str, Any] = {name: getattr(event, name) for name in type(event).__slots__ if name != "status"}
    fields = {name: one.for_clients() if isinstance(one, Phrase) else one for name, one in fields.items()}
    place = f"{position}{END_MARK}" if isinstance(event, Ended) else position
    return event_bytes(NAMES[type(event)], fields, place)


def is_end(position: str) -> bool:
    """Whether a client that sends this position back has seen the end."""
    return position.endswith(END_MARK)


async def write_events(
    events: AsyncGenerator[tuple[str, TurnEvent]], ping: float = PING_INTERVAL_S
) -> AsyncGenerator[bytes]:
    """The events of a turn as they come, to the end of it."""
    async with aclosing(events), aclosing(with_pings(events, ping)) as timed:
        async for one in timed:
            yield turn_event(*one) if one else b": ping\n\n"


async def with_pings(events: AsyncGenerator[T], ping: float) -> AsyncGenerator[T | None]:
    """What comes, and None after each `ping` seconds in which nothing did. One task reads, whatever the number of
    events: a timer is only set where there is something to wait for."""
    buffer = _EventBuffer[T]()
    pump = asyncio.create_task(buffer.read(events))
    try:
        while True:
            while buffer.events:
                yield buffer.events.popleft()
            if pump.done():
                if not buffer.events:
                    break
            elif not await buffer.news(ping):
                yield None
        await pump  # its error is not taken for an end
    finally:
        pump.cancel()  # where the reader left: this ends its own reading only
        await asyncio.gather(pump, return_exceptions=True)


class _EventBuffer(Generic[T]):
    """What has come and is not yet sent on."""

    def __init__(self) -> None:
        self.events: deque[T] = deque()
        self._waiting: asyncio.Future[bool] | None = None
        self._room = asyncio.Event()

    async def read(self, events: AsyncGenerator[T]) -> None:
        try:
            async for one in events:
                self.events.append(one)
                self._wake(True)
                if len(self.events) >= MAX_READ_AHEAD:  # a slow reader holds up only what reads for it
                    self._room.clear()
                    await self._room.wait()
        finally:
            self._wake(True)

    async def news(self, seconds: float) -> bool:
        """Whether something came, or it is over, within the time."""
        self._room.set()
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = loop.call_later(seconds, self._wake, False)
        try:
            return await self._waiting
        finally:
            timer.cancel()

    def _wake(self, news: bool) -> None:
        if self._waiting and not self._waiting.done():
            self._waiting.set_result(news)
