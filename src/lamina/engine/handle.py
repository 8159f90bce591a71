"""A turn that runs in a task of its own. Readers come and go; the turn ends when it is over or when it is told to."""

import asyncio
from collections.abc import AsyncGenerator

from lamina.records import TurnRecord
from lamina.types import Ended, TurnEvent


class TurnHandle:
    """`events()` from the first one on, for any number of readers; `cancel()` ends the turn with what came so far."""

    def __init__(self, turn: TurnRecord) -> None:
        self.turn = turn
        """The turn as it was stored last: when it began, and once it is over as it ended."""
        self._events: list[TurnEvent] = []
        self._news = asyncio.Event()
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.reading: asyncio.Task[None] | None = None
        """Where it is read from a store, not run here: the task that does."""
        self.cancelled = False
        self.readers = 0
        """How many read it now."""

    async def events(self, after: int = 0) -> AsyncGenerator[TurnEvent]:
        """All events but the first `after`. A reader that leaves does not end the turn."""
        place = after
        self.readers += 1
        try:
            while True:
                while place < len(self._events):
                    event = self._events[place]
                    place += 1
                    yield event
                    if isinstance(event, Ended):
                        return
                await self._news.wait()
        finally:
            self.readers -= 1

    def cancel(self) -> None:
        """End the turn as interrupted; what came is kept. A turn that is over stays as it is."""
        self.cancelled = True
        if self._task:
            self._task.cancel()

    async def wait(self) -> TurnRecord:
        """The turn as it ended."""
        await self._over.wait()
        return self.turn

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def attach(self, task: asyncio.Task[None]) -> None:
        """Name the task that `cancel` cancels; a turn that was cancelled before it began is cancelled now."""
        self._task = task
        if self.cancelled:
            task.cancel()

    def emit(self, *events: TurnEvent) -> None:
        self._events += events
        news, self._news = self._news, asyncio.Event()
        news.set()

    def end(self, turn: TurnRecord, event: Ended) -> None:
        self.turn = turn
        self.emit(event)
        self._over.set()
