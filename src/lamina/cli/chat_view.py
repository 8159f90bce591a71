"""A turn as people see it, event by event. On a terminal: a spinner, the answer as it comes, tool calls with their
results folded, notices, and a line of figures. For pipes: the answer as plain text, and all else on the error output.

It shows; it decides nothing. Where no one can be asked, a dangerous call is refused; no option says yes to everything.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.padding import Padding
from rich.text import Text

from lamina.app.app import App
from lamina.app.traces import requests_of
from lamina.cli.call import Call
from lamina.cli.say import Say, visible
from lamina.cli.screen import AnswerMarkdown, Screen, clean_text, finished_blocks, last_lines, split_blocks
from lamina.cli.view import one_line, short_id
from lamina.portable import handle_signal
from lamina.ports import Ask
from lamina.records import Session, TurnRecord
from lamina.text.messages import Phrase
from lamina.types import Began, Decision, Ended, Notice, ToolCallEvent, ToolResult, TurnEvent, Usage
from lamina.types import Text as Words

FRAME_INTERVAL_S = 0.08
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SILENCE_S = 1.5
"""Silence inside an answer after which the spinner is back."""
ARGUMENT_CHARACTERS = 70
"""Characters of a call's arguments in its line."""
FOLDED_LINES = 3
"""Lines of a tool's result that are shown at once."""
INTERRUPTED = 130
"""The exit code after Ctrl-C."""
MARKS = {"done": ("✓", "green"), "failed": ("✗", "red"), "refused": ("⊘", "yellow"), "blocked": ("⊘", "red")}

AskYesNo = Callable[[str], Awaitable[bool]]
"""Asks a person a question."""


@dataclass(slots=True)
class TurnSummary:
    """What happened in a turn, for the commands that look back at it."""

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
class GutteredText:
    """Text from outside with a line at its left, on every row that it takes: none of it can look like our own words.

    A character that is not ASCII counts as two columns, since terminals differ about their width: no row is ever
    broken once more by the terminal itself.
    """

    text: str
    style: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in visible(self.text.replace("\r\n", "\n")).split("\n"):
            for piece in split_columns(line.replace("\t", "    "), options.max_width - 2):
                yield Text(f"│ {piece}", style=self.style, no_wrap=True, overflow="ignore")


def split_columns(line: str, columns: int) -> list[str]:
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
    first, *more = split_columns(line, columns)
    return f"{split_columns(first, columns - 2)[0]}…" if more else first


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
    rest = cut_columns(visible(one_line(words, ARGUMENT_CHARACTERS)), max(8, columns - len(name) - 2))
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
    has_text = result.text.strip() and (full or result.state != "refused")  # the person who said no knows why
    rows = visible(result.text.replace("\r\n", "\n")).rstrip("\n").split("\n") if has_text else []
    shown = rows if full else [cut_columns(row.replace("\t", "    "), width - 6) for row in rows[:FOLDED_LINES]]
    lines: list[Any] = [GutteredText("\n".join(shown), "dim")] if shown else []
    if len(rows) > len(shown):
        lines.append(Text(f"└ {say('cli.chat.folded', count=len(rows) - len(shown))}", style="dim"))
    return Group(Padding(head, (0, 0, 0, 2)), *(Padding(line, (0, 0, 0, 4)) for line in lines))


class TurnView:
    """Follows one turn. `yes` is asked before a dangerous call; without it such calls are refused."""

    def __init__(
        self, screen: Screen, say: Say, *, yes: AskYesNo | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seen = TurnSummary()
        self.stopped = False
        """The person pressed Ctrl-C."""
        self.on_stop: Callable[[], object] = lambda: None
        """Ends the turn; set by the caller that runs it."""
        self._screen, self._say, self._yes, self._clock = screen, say, yes, clock
        self._text, self._held, self._printed, self._asking = "", "", "", False
        self._start = self._last = clock()
        self._lock = asyncio.Lock()

    async def run_turn(self, app: App, session: Session, words: str, *, phase: str | None = None) -> TurnSummary:
        """Ask, and show the turn to its end."""
        ask = self.ask if self._yes else _refuse_calls(self._say, session)
        running = await app.start(session.owner, session.session_id, words, ask=ask, phase_prompt=phase)
        self.on_stop = running.cancel
        try:
            with interrupts(self.stop):
                summary = await self.follow(running.events())
        except BaseException:  # the terminal is gone: what came is stored, and the turn has an end
            running.cancel()
            await running.wait()
            raise
        if await is_over_budget(app, await running.wait()):
            self._screen.print(Text(""), Padding(format_over_budget(self._say), (0, 0, 0, 2)))
        return summary

    async def follow(self, events: AsyncIterable[TurnEvent]) -> TurnSummary:
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
        """End the turn as the person wishes."""
        self.stopped = True
        self.on_stop()

    def draw(self) -> None:
        """What moves, as it is now; blocks that are complete go above."""
        if self._asking:
            return
        for block in finished_blocks(self._text):
            self._block(block)
            self._text = self._text[len(block) :]
        parts: list[Any] = []
        if self._text.strip():
            parts += [Text("")] if self._printed else []
            parts.append(Padding(AnswerMarkdown(last_lines(self._text, self._screen.height)), (0, 0, 0, 2)))
        spin = self._spin()
        parts += [Text("")] if spin and (parts or self._printed) else []
        self._screen.draw(Group(*parts, *spin) if parts or spin else None)

    def _spin(self) -> list[Any]:
        now = self._clock()
        frame = SPINNER[int(now / FRAME_INTERVAL_S) % len(SPINNER)]
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
        if self._text.strip() and now - self._last < SILENCE_S:
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
            await asyncio.sleep(
                max(FRAME_INTERVAL_S, 3 * (time.perf_counter() - began))
            )  # drawing never takes all the time

    def _add(self, text: str) -> None:
        """Made harmless at once: from here on a line ends where everybody thinks it does."""
        text = self._held + text
        self._held = "\r" if text.endswith("\r") else ""  # half of a line's end
        self._text += clean_text(text.removesuffix("\r"))

    def _flush(self) -> None:
        text, self._text = self._text, ""
        for block in split_blocks(text):
            self._block(block)

    def _block(self, text: str) -> None:
        if text.strip():
            self._print(Padding(AnswerMarkdown(text), (0, 0, 0, 2)))

    def _print(self, part: Any, kind: str = "block") -> None:
        """A blank line is between blocks, and none between calls."""
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


def format_over_budget(say: Say) -> Text:
    words = Text(f"⚠ {say('cli.receipt.over')}", style="bold red")
    return words.append(f"\n  {say.next(Phrase('cli.receipt.over.next'))}", style="default not bold")


def format_question(say: Say, call: ToolCallEvent, decision: Decision) -> Group:
    """What will run, to the last character: who says yes says it to this."""
    shows = decision.shows or f"{call.name} {call.arguments}"
    head = Text().append("⚠ ", style="bold yellow").append(say("cli.chat.wants", name=visible(call.name)), style="bold")
    lines = Padding(GutteredText(shows, "yellow"), (0, 0, 0, 4))
    reason = " ".join(decision.explain(say.lang).split())  # in lines of ours, none of which a quoted name can begin
    why = [Padding(Text(visible(reason), style="dim"), (0, 0, 0, 4))] if reason else []
    return Group(Padding(head, (0, 0, 0, 2)), lines, *why)


@contextmanager
def interrupts(stop: Callable[[], object]) -> Generator[None, None, None]:
    """The first Ctrl-C asks the turn to end and stores what came; a second one ends the program as always."""

    def on_interrupt() -> None:
        restore()
        stop()

    restore = handle_signal(asyncio.get_running_loop(), signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        restore()


@asynccontextmanager
async def open_app(call: Call, screen: Screen | None) -> AsyncGenerator[App, None]:
    """The app with its background work; a screen shows that it is being opened."""
    status = screen.console.status(call.say("cli.chat.opening"), spinner_style="cyan") if screen else nullcontext()
    async with AsyncExitStack() as stack:
        with status:
            app = await stack.enter_async_context(App.open(settings=call.settings))
        yield app


async def is_over_budget(app: App, turn: TurnRecord) -> bool:
    """Was more sent than the budget, because it had to be?"""
    return any(receipt.over_budget for receipt in await requests_of(app.store, turn.owner, turn))


async def run_plain_turn(
    call: Call, app: App, session: Session, words: str, *, phase: str | None = None, quiet: bool = False
) -> tuple[TurnSummary, str, int]:
    """A turn for pipes: what happened in it, its answer, and the exit code."""
    ask = _refuse_calls(call.say, session)
    running = await app.start(app.settings.user, session.session_id, words, ask=ask, phase_prompt=phase)
    try:
        with interrupts(running.cancel):
            summary, text = await _print_turn(call, running.events(), quiet=quiet)
    except BaseException:  # the reader of the output is gone: what came is stored, and the turn has an end
        running.cancel()
        await running.wait()
        raise
    if await is_over_budget(app, await running.wait()):
        call.report("cli.receipt.over")
        print(call.say.next(Phrase("cli.receipt.over.next")), file=sys.stderr, flush=True)
    return summary, text, _report_end(call, summary.ended or Ended("failed"), running.cancelled)


def _refuse_calls(say: Say, session: Session) -> Ask:
    """No one is there to be asked: the tool does not run, and the person reads why and where it could."""

    async def refuse(call: ToolCallEvent, decision: Decision) -> None:
        shows = one_line(decision.shows or call.arguments, 200)
        lines = [say("cli.talk.refused", name=call.name, shows=shows)]
        if reason := decision.explain(say.lang):
            lines.append(say("cli.talk.reason", reason=one_line(reason, 200)))
        lines.append(say("cli.talk.refused.next", id=short_id(session.session_id)))
        print("\n".join(lines), file=sys.stderr, flush=True)

    return refuse


async def _print_turn(call: Call, events: AsyncIterable[TurnEvent], *, quiet: bool) -> tuple[TurnSummary, str]:
    """The answer to the standard output as it comes, everything else to the error output; also returned.

    A blank line is between the texts of two steps, and everything on the error output begins a line of its own.
    """
    summary, steps, paused = TurnSummary(), [""], False

    def write(text: str) -> None:
        if not quiet and text:
            sys.stdout.write(visible(text.replace("\r\n", "\n")))
            sys.stdout.flush()

    def end_line() -> None:
        write("\n" if steps[-1] and not paused and not steps[-1].endswith("\n") else "")

    async for event in events:
        summary.take(event)
        if isinstance(event, ToolCallEvent | ToolResult | Notice):
            end_line()
            paused = True
        match event:
            case Words():
                if paused and steps[-1]:
                    write("" if steps[-1].endswith("\n\n") else "\n")
                    steps[-1:] = [steps[-1].rstrip("\n"), ""]
                paused = False
                steps[-1] += event.text
                write(event.text)
            case ToolResult():
                state = call.say(f"cli.chat.{event.state}")
                call.report("cli.talk.called", name=event.name, state=state, seconds=f"{event.seconds:.1f}")
            case Notice():
                print(format_notice(call.say, event), file=sys.stderr)
            case _:
                pass
    end_line()
    return summary, "\n\n".join(steps)


def _report_end(call: Call, ended: Ended, stopped: bool) -> int:
    """Why a turn is not complete, on the error output; the exit code."""
    if ended.state == "complete":
        return 0
    if stopped:
        call.report("cli.chat.stopped")
        return INTERRUPTED
    text = call.say.render(ended.error) if ended.error else call.say(f"cli.chat.ended.{ended.state}")
    call.report("cli.error", text=text)
    if ended.hint:
        print(call.say.next(ended.hint), file=sys.stderr)
    return 1
