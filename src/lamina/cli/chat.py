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
from lamina.cli.call import Call, Commands, check_store, flag, option, warn_of_rules
from lamina.cli.chat_commands import ChatState, Leave, SwitchModel, choices, over_budget, run_command
from lamina.cli.chat_view import TurnView
from lamina.cli.common import short_id
from lamina.cli.say import Say, visible
from lamina.cli.screen import Screen
from lamina.cli.talk import (
    interrupts,
    plain_turn,
    print_error,
    refuse_calls,
    report_end,
    resume_session,
    run_until_terminated,
    start_session,
    talk_settings,
    warn_over_budget,
)
from lamina.errors import InputError, LaminaError
from lamina.records import Session
from lamina.settings import Settings, state_folder

MAX_LINE_BYTES = 4 * 1024 * 1024
COMMANDS = Commands("chat", examples=True)


@COMMANDS.single()
def chat(
    call: Call,
    resume: Annotated[str | None, option("chat.resume", "--resume", "-r", metavar="ID")] = None,
    mode: Annotated[str | None, option("mode")] = None,
    model: Annotated[str | None, option("model")] = None,
    workspace: Annotated[Path | None, option("chat.workspace", "--workspace")] = None,
    verbose: Annotated[bool, flag("chat.verbose", "--verbose")] = False,
) -> None:
    settings = talk_settings(call, model, workspace, mode, verbose)
    if resume:
        check_store(settings)
    warn_of_rules(call.say, settings, by_session=True)
    work = _on_terminal if on_terminal() else _piped
    if code := run_until_terminated(work(call.say, settings, resume, mode)):
        raise typer.Exit(code)


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
    chat: ChatState | None = None
    while True:
        async with AsyncExitStack() as stack:
            try:
                with screen.console.status(say("cli.chat.opening"), spinner_style="cyan"):
                    app = await stack.enter_async_context(App.open(settings=settings))
            except LaminaError as error:
                if chat is None or settings is before:
                    raise
                chat.show_error(error)
                settings = before
                continue
            if chat is None:
                session = await resume_session(app, resume, mode) if resume else None
                chat = ChatState(app, say, screen, session, mode)
                await _hello(chat)
            else:
                chat.app = app
                chat.print_line("cli.chat.model_now", model=app.provider.model, provider=app.provider.name)
            after = await _Talk(chat).run()
        if isinstance(after, Leave):
            break
        before, settings = settings, replace(settings, model=after.model)
    if chat.session:
        chat.print_line("cli.chat.bye", id=short_id(chat.session.session_id))
    return 0


async def _hello(chat: ChatState) -> None:
    from rich.text import Text

    provider = chat.app.provider
    line = (
        Text()
        .append("lamina", style="bold cyan")
        .append(f" · {visible(provider.model)} ({provider.name})", style="dim")
    )
    line.append(f" · {visible(chat.app.settings.workspace)}", style="dim")
    chat.screen.print(Text(""), line, Text(chat.say("cli.chat.hello"), style="dim"))
    if chat.mode == "ask":
        chat.screen.print(Text(chat.say("cli.chat.no_tools"), style="dim"))
    chat.screen.print(Text(""))
    if chat.session:
        await chat.recap()


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

    def __init__(self, chat: ChatState) -> None:
        from lamina.cli.input import Keys

        self._chat = chat
        self._keys = Keys(Path(state_folder(), "history"), lambda name: choices(chat, name), self._toolbar)

    async def run(self) -> Leave | SwitchModel:
        while True:
            await self._chat.refresh()
            words = await self._keys.message()
            if words is None:
                return Leave()
            try:
                after = await run_command(self._chat, words) if is_command(words) else await self._send(words)
            except LaminaError as error:
                self._chat.show_error(error)
                continue
            if after is not None:
                return after

    def _toolbar(self, cleared: bool) -> str:
        chat = self._chat
        if cleared:
            return f" {chat.say('cli.chat.ctrl_d')}"
        session = short_id(chat.session.session_id) if chat.session else chat.say("cli.chat.new")
        return fitted(chat.mode, chat.app.provider.model, session, "/help", chat.screen.console.width)

    async def _send(self, words: str) -> None:
        from rich.text import Text

        from lamina.cli.input import ask_yes_no

        if not words:
            return
        chat = self._chat
        session = await chat.session_for(words)
        chat.screen.print(Text(""))
        view = TurnView(chat.screen, chat.say, yes=ask_yes_no)
        running = await chat.app.start(chat.owner, session.session_id, words, ask=view.ask)
        view.on_stop = running.cancel
        with interrupts(view.stop):
            chat.last = await view.follow(running.events())
            turn = await running.wait()
        chat.screen.print(Text(""))
        if any(receipt.over_budget for receipt in await requests_of(chat.app.store, chat.owner, turn)):
            chat.show(over_budget(chat.say))


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
            session = await resume_session(app, resume, mode)
        words = await _next(lines)
        if words is None:
            print_error(say, "cli.chat.nothing")
            return 0
        app = app or await stack.enter_async_context(App.open(settings=settings))
        while words is not None:
            session = session or await start_session(app, words, mode=mode)
            code = await _one(say, app, session, words)
            if code not in (0, 1):
                return code
            words = await _next(lines)
        assert session is not None
        print_error(say, "cli.chat.bye", id=short_id(session.session_id))
    return code


async def _one(say: Say, app: App, session: Session, words: str) -> int:
    running = await app.start(app.settings.user, session.session_id, words, ask=refuse_calls(say, session))
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
    await warn_over_budget(say, app, await running.wait())
    return report_end(say, seen.ended, bool(stopped)) if seen.ended else 1


Lines = asyncio.Queue[str | LaminaError | None]


def _lines() -> Lines:
    """Lines as they come, read by a thread that nobody waits for: work in the background goes on meanwhile."""
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] -- None where the descriptor is closed
        raise InputError("input.missing")
    queue, loop, source = Lines(), asyncio.get_running_loop(), sys.stdin.buffer

    def put(value: str | LaminaError | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(queue.put_nowait, value)

    def read() -> None:
        for number, raw in enumerate(iter(lambda: source.readline(MAX_LINE_BYTES + 1), b""), 1):
            if len(raw) > MAX_LINE_BYTES:
                return put(InputError("input.line_too_long", line=number, limit=MAX_LINE_BYTES))
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                byte = f"0x{raw[error.start]:02x}"
                return put(InputError("input.line_not_utf8", line=number, position=error.start, byte=byte))
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
