"""Server-sent events: the events of a turn as text, each with the position from which to go on after it.

A reader that leaves ends its own reading, never the turn. Silence is broken by pings, so that nobody in between takes
the connection for dead.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, TypeVar

from lamina.gateway.replies import as_json
from lamina.types import Began, Ended, Notice, Text, ToolCallEvent, ToolResult, TurnEvent, Usage

T = TypeVar("T")
MEDIA = "text/event-stream"
PING = 10.0
"""Seconds of silence after which there is a sign of life."""
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Proxies pass each event on as it comes, and keep none."""
END = ".end"
"""Behind the position of the last event: after it nothing comes, ever."""
NAMES: dict[type, str] = {
    Began: "began", Text: "text", ToolCallEvent: "call", ToolResult: "result", Notice: "notice", Usage: "usage",
    Ended: "ended",
}  # fmt: skip


def event_bytes(name: str, data: object, position: str = "") -> bytes:
    """One event. Its data is JSON, which has no line breaks of its own."""
    head = f"id: {position}\n" if position else ""
    return b"%bevent: %b\ndata: %b\n\n" % (head.encode(), name.encode(), as_json(data))


def turn_event(position: str, event: TurnEvent) -> bytes:
    fields: dict[str, Any] = {name: getattr(event, name) for name in type(event).__slots__}
    place = f"{position}{END}" if isinstance(event, Ended) else position
    return event_bytes(NAMES[type(event)], fields, place)


def is_end(position: str) -> bool:
    """Whether whoever gives this back has seen the end."""
    return position.endswith(END)


async def written(events: AsyncGenerator[tuple[str, TurnEvent]], ping: float = PING) -> AsyncGenerator[bytes]:
    """The events of a turn as they come, to the end of it."""
    async with aclosing(events), aclosing(with_pings(events, ping)) as timed:
        async for one in timed:
            yield turn_event(*one) if one else b": ping\n\n"


async def with_pings(events: AsyncGenerator[T], ping: float) -> AsyncGenerator[T | None]:
    """What comes, and None after each `ping` seconds in which nothing did."""
    waiting: asyncio.Task[T] | None = None
    try:
        while True:
            waiting = waiting or asyncio.create_task(_next(events))
            await asyncio.wait((waiting,), timeout=ping)
            if not waiting.done():
                yield None
                continue
            try:
                one = waiting.result()
            except StopAsyncIteration:
                return
            waiting = None
            yield one
    finally:
        if waiting:  # the reader left; only its own waiting ends
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


async def _next(events: AsyncGenerator[T]) -> T:
    return await anext(events)
