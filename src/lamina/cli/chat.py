"""`lamina chat`: a chat on a terminal. Without one, each line of the standard input is a message and the answers are
plain text.
"""

import asyncio
import sys
import threading
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from lamina.app.app import App
from lamina.app.traces import requests_of
from lamina.cli.chat_commands import Desk, Leave, Switch, choices, obey, over
from lamina.cli.chat_view import TurnView
from lamina.cli.common import SHORT, Say, check_store, option, warn_of_rules
from lamina.cli.screen import Screen
from lamina.cli.talk import (
    begin,
    interrupts,
    plain_turn,
    refuser,
    run_until_told,
    take_up,
    talk_settings,
    tell_end,
    tell_error,
    tell_over,
)
from lamina.cli.texts import visible
from lamina.errors import InputError, LaminaError
from lamina.records import Session
from lamina.settings import Settings, state_folder

MAX_LINE = 4 * 1024 * 1024


def add_chat(app: typer.Typer, say: Say) -> None:
    def chat(
        resume: Annotated[str | None, option(say, "chat.resume", "--resume", "-r", metavar="ID")] = None,
        mode: Annotated[str | None, option(say, "mode")] = None,
        model: Annotated[str | None, option(say, "model")] = None,
        workspace: Annotated[Path | None, option(say, "chat.workspace", "--workspace")] = None,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
    ) -> None:
        settings = talk_settings(user, store, model, workspace, mode)
        if resume:
            check_store(settings)
        warn_of_rules(say, settings)
        work = _on_terminal if on_terminal() else _piped
        if code := run_until_told(work(say, settings, resume, mode)):
            raise typer.Exit(code)

    app.command("chat", help=say["chat.help"], epilog=say["chat.examples"])(chat)


def on_terminal() -> bool:
    """Can people read and type here?"""
    from rich.console import Console

    return all(stream and stream.isatty() for stream in (sys.stdin, sys.stdout)) and not Console().is_dumb_terminal


async def _on_terminal(say: Say, settings: Settings, resume: str | None, mode: str | None) -> int:
    """Until somebody leaves. Keys wait for a prompt from the first moment on, whatever goes on meanwhile."""
    from lamina.cli.input import keep_typed, quiet

    with quiet():
        keep_typed()
        return await _talks(say, settings, resume, mode)


async def _talks(say: Say, settings: Settings, resume: str | None, mode: str | None) -> int:
    """One talk after another: another model is another app over the same store."""
    screen, before, session = Screen(), settings, None
    desk: Desk | None = None
    while True:
        async with AsyncExitStack() as stack:
            try:
                with screen.console.status(say["chat.opening"], spinner_style="cyan"):
                    app = await stack.enter_async_context(App.open(settings=settings))
            except LaminaError as error:
                if desk is None or settings is before:
                    raise
                desk.complain(error)
                settings = before
                continue
            if desk is None:
                session = await take_up(app, resume, mode) if resume else None
                desk = Desk(app, say, screen, session, mode)
                await _hello(desk)
            else:
                desk.app = app
                desk.say_line("chat.model_now", model=app.provider.model, provider=app.provider.name)
            after = await _Talk(desk).run()
        if isinstance(after, Leave):
            break
        before, settings = settings, replace(settings, model=after.model)
    if desk.session:
        desk.say_line("chat.bye", id=desk.session.session_id[:SHORT])
    return 0


async def _hello(desk: Desk) -> None:
    from rich.text import Text

    provider = desk.app.provider
    line = (
        Text()
        .append("lamina", style="bold cyan")
        .append(f" · {visible(provider.model)} ({provider.name})", style="dim")
    )
    line.append(f" · {visible(desk.app.settings.workspace)}", style="dim")
    desk.screen.print(Text(""), line, Text(desk.say["chat.hello"], style="dim"))
    if desk.mode == "ask":
        desk.screen.print(Text(desk.say["chat.no_tools"], style="dim"))
    desk.screen.print(Text(""))
    if desk.session:
        await desk.recap()


def fitted(mode: str, model: str, session: str, keys: str, width: int) -> str:
    """The line below what is typed: where it is too long the model's name is cut, so that the way to the help stays."""
    from rich.cells import cell_len, set_cell_size

    around = f" {mode} ·  · {session} · {keys}"
    room, model = width - cell_len(around), visible(model)
    if cell_len(model) > room:
        model = set_cell_size(model, room - 1).rstrip() + "…" if room > 1 else "…"
    return f" {mode} · {model} · {visible(session)} · {keys}"


class _Talk:
    """Reads what is typed and does it, one thing after another."""

    def __init__(self, desk: Desk) -> None:
        from lamina.cli.input import Keys

        self._desk = desk
        self._keys = Keys(state_folder() / "history", lambda name: choices(desk, name), self._toolbar)

    async def run(self) -> Leave | Switch:
        while True:
            await self._desk.refresh()
            words = await self._keys.message()
            if words is None:
                return Leave()
            try:
                after = await obey(self._desk, words) if is_command(words) else await self._send(words)
            except LaminaError as error:
                self._desk.complain(error)
                continue
            if after is not None:
                return after

    def _toolbar(self, cleared: bool) -> str:
        desk = self._desk
        if cleared:
            return f" {desk.say['chat.ctrl_d']}"
        session = desk.session.session_id[:SHORT] if desk.session else desk.say["chat.new"]
        return fitted(desk.mode, desk.app.provider.model, session, desk.say["chat.keys"], desk.screen.console.width)

    async def _send(self, words: str) -> None:
        from rich.text import Text

        from lamina.cli.input import said_yes

        if not words:
            return
        desk = self._desk
        session = await desk.session_for(words)
        desk.screen.print(Text(""))
        view = TurnView(desk.screen, desk.say, yes=said_yes)
        running = await desk.app.start(desk.owner, session.session_id, words, ask=view.ask)
        view.on_stop = running.cancel
        with interrupts(view.stop):
            desk.last = await view.follow(running.events())
            turn = await running.wait()
        desk.screen.print(Text(""))
        if any(receipt.over_budget for receipt in await requests_of(desk.app.store, desk.owner, turn)):
            desk.show(over(desk.say))


def is_command(words: str) -> bool:
    """`/mode plan` is one; `/etc/hosts looks odd` is not."""
    first = words.split(maxsplit=1)[0] if words else ""
    return first.startswith("/") and first.count("/") == 1 and "\n" not in words


async def _piped(say: Say, settings: Settings, resume: str | None, mode: str | None) -> int:
    """Each line is a message; the exit code is that of the last turn."""
    lines, code = _lines(), 0
    async with AsyncExitStack() as stack:
        session: Session | None = None
        app: App | None = None
        if resume:  # whether there is such a session is said before anything is read
            app = await stack.enter_async_context(App.open(settings=settings))
            session = await take_up(app, resume, mode)
        words = await _next(lines)
        if words is None:
            tell_error(say, "chat.nothing")
            return 0
        app = app or await stack.enter_async_context(App.open(settings=settings))
        while words is not None:
            session = session or await begin(app, words, mode=mode)
            code = await _one(say, app, session, words)
            if code not in (0, 1):
                return code
            words = await _next(lines)
        assert session is not None
        tell_error(say, "chat.bye", id=session.session_id[:SHORT])
    return code


async def _one(say: Say, app: App, session: Session, words: str) -> int:
    running = await app.start(app.settings.user, session.session_id, words, ask=refuser(say))
    stopped: list[bool] = []

    def stop() -> None:
        stopped.append(True)
        running.cancel()

    try:
        with interrupts(stop):
            seen, _ = await plain_turn(say, running.events())
    except BaseException:  # the reader of the output is gone: what came is kept
        running.cancel()
        await running.wait()
        raise
    await tell_over(say, app, await running.wait())
    return tell_end(say, seen.ended, bool(stopped)) if seen.ended else 1


Lines = asyncio.Queue[str | LaminaError | None]


def _lines() -> Lines:
    """Lines as they come, read by a thread that nobody waits for: work in the background goes on meanwhile."""
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] -- None where the descriptor is closed
        raise InputError("there is no standard input to read from", hint="send messages, one a line")
    queue, loop, source = Lines(), asyncio.get_running_loop(), sys.stdin.buffer

    def put(value: str | LaminaError | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(queue.put_nowait, value)

    def read() -> None:
        for number, raw in enumerate(iter(lambda: source.readline(MAX_LINE + 1), b""), 1):
            if len(raw) > MAX_LINE:
                return put(InputError(f"line {number} has more than {MAX_LINE:,} bytes", hint="send shorter messages"))
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                place = f"byte {error.start} is 0x{raw[error.start]:02x}"
                return put(InputError(f"line {number} is not UTF-8: {place}", hint="send UTF-8"))
            if line:
                put(line)
        return put(None)

    threading.Thread(target=read, daemon=True).start()
    return queue


async def _next(lines: Lines) -> str | None:
    if sys.stdin.isatty():  # a terminal that can do nothing but lines
        print("› ", end="", file=sys.stderr, flush=True)
    line = await lines.get()
    if isinstance(line, LaminaError):
        raise line
    return line
