"""An answer as Telegram shows it: sent when there is something to show, edited as it grows, split when it is long."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal

from lamina.app.app import TurnHandle
from lamina.telegram.line import Line, Place
from lamina.telegram.markup import open_sign, pieces
from lamina.telegram.say import say
from lamina.types import Ended, Notice, Text, ToolCallEvent, ToolResult

FIRST = 0.4
"""Seconds that the first words wait for more: a short answer is one message and no edit."""
Why = Literal["stopped", "interrupted", "broken"]
"""Somebody wanted it to stop, the bot ended, or the provider did."""
TYPING = 4.5
"""Telegram shows that somebody is typing for five seconds."""


@dataclass(slots=True)
class Draft:
    """The messages of one answer, piece by piece, and what each shows."""

    line: Line
    place: Place
    numbers: list[int] = field(default_factory=list[int])
    shown: list[str] = field(default_factory=list[str])

    async def show(self, text: str) -> bool:
        """At most one request: the first piece that is not up to date. Is all of it shown now?"""
        cut = pieces(text)
        for at, piece in enumerate(cut):
            if at >= len(self.shown):
                await self._send(piece)
                return at == len(cut) - 1
            if self.shown[at] != piece and self.numbers[at]:
                if await self.line.change(self.place, self.numbers[at], piece, must=False):
                    self.shown[at] = piece
                    return at == len(cut) - 1
                return False
        return True

    async def end(self, text: str) -> None:
        """Everything, whatever it takes. A message that is gone is sent again, one too many is taken away."""
        cut = pieces(text)
        for at, piece in enumerate(cut):
            if at >= len(self.shown):
                await self._send(piece)
            elif self.shown[at] != piece or not self.numbers[at]:
                number = self.numbers[at]
                if not number or not await self.line.change(self.place, number, piece, must=True):
                    self.numbers[at] = await self.line.say(self.place, piece)
                self.shown[at] = piece
        for number in filter(None, self.numbers[len(cut) :]):
            await self.line.remove(self.place, number)
        del self.numbers[len(cut) :]

    async def _send(self, piece: str) -> None:
        self.numbers.append(await self.line.say(self.place, piece))
        self.shown.append(piece)


@dataclass(slots=True)
class _Told:
    """What a turn has told so far."""

    text: str = ""
    using: str = ""
    paused: bool = False
    ended: Ended | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, running: TurnHandle, tell: Callable[[str], Awaitable[object]]) -> None:
        """`tell` is for what the turn says beside the answer: `rules` and `reads`."""
        async with aclosing(running.events()) as events:
            async for event in events:
                match event:
                    case Text():
                        if self.paused and self.text:  # a blank line between the texts of two steps
                            self.text = self.text.rstrip() + "\n\n"
                        self.text, self.using, self.paused = self.text + event.text, "", False
                    case ToolCallEvent():
                        self.using, self.paused = event.name, True
                    case ToolResult():
                        self.using = ""
                    case Notice(kind="rules" | "reads" as kind):
                        await tell(f"bot.notice.{kind}")
                        continue
                    case Ended():
                        self.ended = event
                    case _:
                        continue
                self.news.set()


async def follow(line: Line, place: Place, running: TurnHandle, lang: str, closing: asyncio.Event) -> list[int]:
    """Show a turn until its end; returns the numbers of the messages that show it. When it is interrupted, `closing`
    says that the bot ends; else somebody wanted it to stop."""
    told, draft = _Told(), Draft(line, place)
    reading = asyncio.create_task(told.read(running, lambda name: line.say(place, say(lang, name))))
    typing = asyncio.create_task(_type(line, place))
    try:
        await _news(told, reading)
        await asyncio.wait({reading}, timeout=FIRST)
        while not reading.done():
            await line.ready(place)
            if reading.done():
                break
            told.news.clear()
            shown = _so_far(told, lang)
            if shown.strip() and not await draft.show(shown):
                told.news.set()
            await _news(told, reading)
        await reading
    finally:
        typing.cancel()
        reading.cancel()
        await asyncio.gather(typing, reading, return_exceptions=True)
    ended = told.ended or Ended("failed")
    why: Why = "interrupted" if closing.is_set() or running.turn.repeated else "broken"
    await draft.end(final(told.text, ended, lang, "stopped" if running.cancelled and not closing.is_set() else why))
    return [number for number in draft.numbers if number]


def final(text: str, ended: Ended, lang: str, why: Why) -> str:
    """The answer, and below it why it is not whole."""
    if ended.state == "complete":
        return text if text.strip() else say(lang, "bot.ended.empty")
    end = "failed" if ended.state == "failed" else why
    words = say(lang, f"bot.ended.{end}", error=ended.error or "?")
    words += f"\n{say(lang, 'bot.next', hint=ended.hint)}" if ended.state == "failed" and ended.hint else ""
    return f"{_closed(text)}\n\n{words}" if text.strip() else words


def _so_far(told: _Told, lang: str) -> str:
    if not told.using:
        return told.text
    using = say(lang, "bot.using", name=f"`{told.using}`")
    return f"{_closed(told.text)}\n\n{using}" if told.text.strip() else using


def _closed(text: str) -> str:
    """Text behind which other words may stand: what breaks off inside a code block is closed."""
    text = text.rstrip()
    return f"{text}\n{sign}" if (sign := open_sign(text)) else text


async def _news(told: _Told, reading: "asyncio.Task[None]") -> None:
    waiting = asyncio.create_task(told.news.wait())
    await asyncio.wait({waiting, reading}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


async def _type(line: Line, place: Place) -> None:
    while True:
        await line.typing(place)
        await asyncio.sleep(TYPING)
