"""A turn on a terminal, event by event: a spinner, the answer as it comes, tool calls with their results folded,
what people should know, and a line of figures. It shows; it decides nothing.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.padding import Padding
from rich.text import Text

from lamina.cli.common import one_line, short_id
from lamina.cli.markdown import Answer, blocks, clean, finished, tail
from lamina.cli.say import Say, visible
from lamina.cli.screen import Screen
from lamina.types import (
    Began,
    Decision,
    Ended,
    Notice,
    ToolCallEvent,
    ToolResult,
    TurnEvent,
    Usage,
)
from lamina.types import Text as Words

FRAME = 0.08
"""Seconds between two drawings."""
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
PAUSE = 1.5
"""Seconds of silence inside an answer after which the spinner is back."""
MOST_SHOWN = 70
"""Characters of a call's arguments in its line."""
FOLDED = 3
"""Lines of a tool's result that are shown at once."""
MARKS = {"done": ("✓", "green"), "failed": ("✗", "red"), "refused": ("⊘", "yellow"), "blocked": ("⊘", "red")}

Yes = Callable[[str], Awaitable[bool]]
"""Somebody who is asked a question."""


@dataclass(slots=True)
class Seen:
    """What was seen of a turn, for the commands that look back at it."""

    began: Began | None = None
    ended: Ended | None = None
    calls: list[tuple[ToolCallEvent, ToolResult | None]] = field(
        default_factory=list[tuple[ToolCallEvent, ToolResult | None]]
    )
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    seconds: float = 0.0
    stored: bool = False
    """It was read from the store: how long its calls took is not known."""

    def take(self, event: TurnEvent) -> None:
        match event:
            case Began():
                self.began = event
            case ToolCallEvent():
                self.calls.append((event, None))
            case ToolResult():
                for number, (call, result) in enumerate(self.calls):
                    if call.id == event.id and result is None:
                        self.calls[number] = (call, event)
                        break
            case Usage():
                self.prompt += event.prompt
                self.cached += event.cached
                self.completion += event.completion
            case Ended():
                self.ended = event
            case _:
                pass

    def status(self, say: Say) -> str:
        """Tokens, what of them was cached, time, session: one line."""
        parts: list[str] = []
        if self.prompt or self.completion:
            if self.cached and self.prompt:
                share = f"{self.cached / self.prompt:.0%}"
                parts.append(say("cli.chat.tokens_in_cached", count=self.prompt, share=share))
            else:
                parts.append(say("cli.chat.tokens_in", count=self.prompt))
            parts.append(say("cli.chat.tokens_out", count=self.completion))
        parts.append(say("cli.chat.seconds", seconds=f"{self.seconds:.1f}"))
        parts += [short_id(self.began.session_id)] if self.began else []
        return " · ".join(parts)


@dataclass(frozen=True, slots=True)
class Gutter:
    """Text from outside with a line at its left, on every row that it takes: none of it can look like our own words.

    A character that is not ASCII counts as two columns, since terminals differ about their width: no row is ever
    broken once more by the terminal itself.
    """

    text: str
    style: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in visible(self.text.replace("\r\n", "\n")).split("\n"):
            for piece in pieces(line.replace("\t", "    "), options.max_width - 2):
                yield Text(f"│ {piece}", style=self.style, no_wrap=True, overflow="ignore")


def pieces(line: str, columns: int) -> list[str]:
    """A line in rows of at most so many columns, to the last character; an empty line is one row."""
    rows, begin, used = list[str](), 0, 0
    for place, character in enumerate(line):
        wide = 1 if character.isascii() else 2
        if used + wide > columns and place > begin:
            rows.append(line[begin:place])
            begin, used = place, 0
        used += wide
    return [*rows, line[begin:]]


def cut_columns(line: str, columns: int) -> str:
    """The beginning of a line, in so many columns."""
    first, *more = pieces(line, columns)
    return f"{pieces(first, columns - 2)[0]}…" if more else first


def call_line(name: str, arguments: str, columns: int) -> Text:
    """`bash  ls -la`: the name, and what it is called with, in one row of so many columns."""
    try:
        found: Any = json.loads(arguments)
    except ValueError:
        found = None
    if isinstance(found, dict):
        fields = cast("dict[str, Any]", found)
        values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in fields.items()}
        words = next(iter(values.values())) if len(values) == 1 else " ".join(f"{k}={v}" for k, v in values.items())
    else:
        words = arguments
    name = cut_columns(visible(name), columns - 12)
    line = Text().append(name, style="bold")
    rest = cut_columns(visible(one_line(words, MOST_SHOWN)), max(8, columns - len(name) - 2))
    return line.append(f"  {rest}", style="dim") if words.strip() else line


def result_lines(
    say: Say, call: ToolCallEvent, result: ToolResult, *, full: bool, width: int, timed: bool = True
) -> Group:
    """A call that has ended: one line, and below it what came back, folded unless everything is asked for."""
    mark, colour = MARKS[result.state]
    words = [] if result.state == "done" else [say(f"cli.chat.{result.state}")]
    words += [say("cli.chat.seconds", seconds=f"{result.seconds:.1f}")] if timed else []
    end = "".join(f" · {word}" for word in words)
    head = Text().append(f"{mark} ", style=colour)
    head.append_text(call_line(call.name, call.arguments, width - 6 - cell_len(end))).append(end, style="dim")
    told = result.text.strip() and (full or result.state != "refused")  # who said no knows what happened
    rows = visible(result.text.replace("\r\n", "\n")).rstrip("\n").split("\n") if told else []
    shown = rows if full else [cut_columns(row.replace("\t", "    "), width - 6) for row in rows[:FOLDED]]
    lines: list[Any] = [Gutter("\n".join(shown), "dim")] if shown else []
    if len(rows) > len(shown):
        lines.append(Text(f"└ {say('cli.chat.folded', count=len(rows) - len(shown))}", style="dim"))
    return Group(Padding(head, (0, 0, 0, 2)), *(Padding(line, (0, 0, 0, 4)) for line in lines))


class TurnView:
    """Follows one turn. `yes` is asked before a dangerous call; without it such calls are refused."""

    def __init__(
        self, screen: Screen, say: Say, *, yes: Yes | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seen = Seen()
        self.stopped = False
        """Somebody pressed Ctrl-C."""
        self.on_stop: Callable[[], object] = lambda: None
        """Ends the turn; set by whoever runs it."""
        self._screen, self._say, self._yes, self._clock = screen, say, yes, clock
        self._text, self._held, self._printed, self._asking = "", "", "", False
        self._start = self._last = clock()
        self._lock = asyncio.Lock()

    async def follow(self, events: AsyncIterable[TurnEvent]) -> Seen:
        ticker = asyncio.create_task(self._tick())
        try:
            async for event in events:
                self.take(event)
        finally:
            ticker.cancel()
            await asyncio.gather(ticker, return_exceptions=True)
            self._screen.draw(None)
        return self.seen

    def take(self, event: TurnEvent) -> None:
        self.seen.take(event)
        self._last = self._clock()
        match event:
            case Words():
                self._add(event.text)
            case ToolCallEvent():
                self._flush()
            case ToolResult():
                self._flush()
                call = next((c for c, r in self.seen.calls if r is event), ToolCallEvent(event.id, event.name, "{}"))
                self._print(result_lines(self._say, call, event, full=False, width=self._screen.width), "call")
            case Notice():
                self._flush()
                self._print(Padding(Text(format_notice(self._say, event), style="yellow"), (0, 0, 0, 2)))
            case Ended():
                self._end(event)
            case _:
                pass

    async def ask(self, call: ToolCallEvent, decision: Decision) -> bool | None:
        """Show what will run and wait for a clear yes."""
        async with self._lock:
            if self._yes is None:
                return None
            if self.stopped:
                return False
            self._asking = True
            try:
                self._flush()
                self._screen.draw(None)
                self._print(format_question(self._say, call, decision))
                return await self._yes(self._say("cli.chat.run_it"))
            except KeyboardInterrupt:
                self.stop()
                return False
            finally:
                self._asking = False
                self._last = self._clock()

    def stop(self) -> None:
        """Somebody wants it to end."""
        self.stopped = True
        self.on_stop()

    def draw(self) -> None:
        """What moves, as it is now; blocks that are complete go above."""
        if self._asking:
            return
        for block in finished(self._text):
            self._block(block)
            self._text = self._text[len(block) :]
        parts: list[Any] = []
        if self._text.strip():
            parts += [Text("")] if self._printed else []
            parts.append(Padding(Answer(tail(self._text, self._screen.height)), (0, 0, 0, 2)))
        spin = self._spin()
        parts += [Text("")] if spin and (parts or self._printed) else []
        self._screen.draw(Group(*parts, *spin) if parts or spin else None)

    def _spin(self) -> list[Any]:
        now = self._clock()
        frame = SPINNER[int(now / FRAME) % len(SPINNER)]
        waiting = [call for call, result in self.seen.calls if result is None]
        if waiting:
            lines = [
                Text()
                .append(f"{frame} ", style="cyan")
                .append_text(call_line(c.name, c.arguments, self._screen.width - 14))
                for c in waiting
            ]
            since = self._say("cli.chat.whole_seconds", seconds=int(now - self._last))
            lines[-1].append(f" · {since}", style="dim")
            return [Padding(line, (0, 0, 0, 2)) for line in lines]
        if self._text.strip() and now - self._last < PAUSE:
            return []
        word = self._say("cli.chat.stopping" if self.stopped else "cli.chat.thinking")
        line = Text().append(f"{frame} ", style="cyan").append(f"{word} ", style="dim")
        line.append(self._say("cli.chat.whole_seconds", seconds=int(now - self._start)), style="dim")
        if now - self._start > 4 and not self.stopped:
            line.append(f" · {self._say('cli.chat.ctrl_c')}", style="dim")
        return [Padding(line, (0, 0, 0, 2))]

    async def _tick(self) -> None:
        while True:
            began = time.perf_counter()
            self.draw()
            await asyncio.sleep(max(FRAME, 3 * (time.perf_counter() - began)))  # drawing never takes all the time

    def _add(self, text: str) -> None:
        """Made harmless at once: from here on a line ends where everybody thinks it does."""
        text = self._held + text
        self._held = "\r" if text.endswith("\r") else ""  # half of a line's end
        self._text += clean(text.removesuffix("\r"))

    def _flush(self) -> None:
        text, self._text = self._text, ""
        for block in blocks(text):
            self._block(block)

    def _block(self, text: str) -> None:
        if text.strip():
            self._print(Padding(Answer(text), (0, 0, 0, 2)))

    def _print(self, part: Any, kind: str = "block") -> None:
        """Blocks stand apart; calls stand together."""
        self._screen.draw(None)
        self._screen.print(*([Text("")] if self._printed and not kind == self._printed == "call" else []), part)
        self._printed = kind

    def _end(self, event: Ended) -> None:
        self._flush()
        self.seen.seconds = self._clock() - self._start
        if event.state != "complete":
            self._print(Padding(format_ending(self._say, event, self.stopped), (0, 0, 0, 2)))
        self._print(Padding(Text(self.seen.status(self._say), style="dim"), (0, 0, 0, 2)))


def format_notice(say: Say, notice: Notice) -> str:
    """A notice as a line; that something is missing is a warning."""
    text = say.render(notice.phrase)
    return say("cli.warning", text=text) if notice.kind in ("rules", "reads") else f"· {text}"


def format_ending(say: Say, event: Ended, stopped: bool) -> Text:
    """Why a turn is not complete, and what to do next."""
    if stopped:
        return Text(say("cli.chat.stopped"), style="yellow")
    colour = "red" if event.state == "failed" else "yellow"
    state = say(f"cli.chat.ended.{event.state}")
    error = say("cli.chat.ended_with", state=state, error=say.render(event.error)) if event.error else f"✗ {state}"
    words = Text(error, style=colour)
    if event.hint:
        words.append(f"\n  {say.next(event.hint)}", style="default")
    return words


def format_question(say: Say, call: ToolCallEvent, decision: Decision) -> Group:
    """What will run, to the last character: who says yes says it to this."""
    shows = decision.shows or f"{call.name} {call.arguments}"
    head = Text().append("⚠ ", style="bold yellow").append(say("cli.chat.wants", name=visible(call.name)), style="bold")
    lines = Padding(Gutter(shows, "yellow"), (0, 0, 0, 4))
    reason = " ".join(decision.explain(say.lang).split())  # in lines of ours, none of which a quoted name can begin
    why = [Padding(Text(visible(reason), style="dim"), (0, 0, 0, 4))] if reason else []
    return Group(Padding(head, (0, 0, 0, 2)), lines, *why)
