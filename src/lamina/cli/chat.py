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

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from lamina.app.app import App
from lamina.cli.call import (
    Call,
    ChatFolder,
    Commands,
    Mode,
    Model,
    Verbose,
    option,
    read_lines,
    run_until_terminated,
)
from lamina.cli.chat_commands import ChatState, LeaveRequest, ModelSwitch, choices, run_command
from lamina.cli.chat_view import TurnView, open_app, run_plain_turn
from lamina.cli.say import visible
from lamina.cli.screen import Screen
from lamina.cli.sessions import resume_session, start_session
from lamina.cli.view import short_id
from lamina.errors import InputError, LaminaError
from lamina.records import Session
from lamina.settings import state_folder

CHAT = Commands("chat", examples=True)


@CHAT.single()
def chat(
    call: Call,
    resume: Annotated[str | None, option("chat.resume", "--resume", "-r", metavar="ID")] = None,
    mode: Mode = None,
    model: Model = None,
    workspace: ChatFolder = None,
    verbose: Verbose = False,
) -> None:
    call.choose_for_chat(model, workspace, mode, verbose=verbose)
    if resume:
        call.check_store()
    call.warn_of_rules(by_session=True)
    terminal = all(stream and stream.isatty() for stream in (sys.stdin, sys.stdout)) and not Console().is_dumb_terminal
    run_until_terminated((_chat_on_terminal if terminal else _chat_in_pipe)(call, resume, mode))


async def _chat_on_terminal(call: Call, resume: str | None, mode: str | None) -> int:
    """Until the person leaves. Another model is another app over the same store."""
    from lamina.cli.input import keep_typed, quiet

    screen, usable = Screen(), call.settings
    chat: ChatState | None = None
    with quiet():  # from the first moment on, keys wait for a prompt
        keep_typed()
        while True:
            async with AsyncExitStack() as stack:
                try:
                    app = await stack.enter_async_context(open_app(call, screen))
                except LaminaError as error:
                    if chat is None or call.settings is usable:
                        raise
                    chat.show_error(error)
                    call.settings = usable
                    continue
                if chat is None:
                    session = await resume_session(app, resume, mode) if resume else None
                    chat = ChatState(app, call.say, screen, session, mode)
                    await _greet(chat)
                else:
                    chat.app = app
                    chat.print_line("cli.chat.model_now", model=app.provider.model, provider=app.provider.name)
                after = await _talk(chat)
            if isinstance(after, LeaveRequest):
                break
            usable, call.settings = call.settings, replace(call.settings, model=after.model)
        if chat.session:
            chat.print_line("cli.chat.bye", id=short_id(chat.session.session_id))
        return 0


async def _greet(chat: ChatState) -> None:
    provider = chat.app.provider
    facts = f" · {visible(provider.model)} ({provider.name}) · {visible(chat.app.settings.workspace)}"
    line = Text().append("lamina", style="bold cyan").append(facts, style="dim")
    chat.screen.print(Text(""), line, Text(chat.say("cli.chat.hello"), style="dim"))
    if chat.mode == "ask":
        chat.screen.print(Text(chat.say("cli.chat.no_tools"), style="dim"))
    chat.screen.print(Text(""))
    if chat.session:
        await chat.recap()


async def _talk(chat: ChatState) -> LeaveRequest | ModelSwitch:
    """Read what is typed and do it, one thing after another."""
    from lamina.cli.input import Keyboard, ask_yes_no

    def toolbar(cleared: bool) -> str:
        if cleared:
            return f" {chat.say('cli.chat.ctrl_d')}"
        session = short_id(chat.session.session_id) if chat.session else chat.say("cli.chat.new")
        return fit_toolbar(chat.mode, chat.app.provider.model, session, "/help", chat.screen.console.width)

    keyboard = Keyboard(Path(state_folder(), "history"), lambda name: choices(chat, name), toolbar)
    while True:
        await chat.refresh()
        words = await keyboard.read_message()
        if words is None:
            return LeaveRequest()
        try:
            if is_command(words):
                if (after := await run_command(chat, words)) is not None:
                    return after
            elif words:
                session = await chat.session_for(words)
                chat.screen.print(Text(""))
                chat.last = await TurnView(chat.screen, chat.say, yes=ask_yes_no).run_turn(chat.app, session, words)
                chat.screen.print(Text(""))
        except LaminaError as error:
            chat.show_error(error)


def fit_toolbar(mode: str, model: str, session: str, keys: str, width: int) -> str:
    """The line below what is typed: where it is too long the model's name is cut, so that the way to the help stays."""
    room = width - cell_len(f" {mode} ·  · {session} · {keys}")
    model = visible(model)
    if cell_len(model) > room:
        model = set_cell_size(model, room - 1).rstrip() + "…" if room > 1 else "…"
    return f" {mode} · {model} · {visible(session)} · {keys}"


def is_command(words: str) -> bool:
    """`/mode plan` is one; `/etc/hosts looks odd` is not."""
    first = words.split(maxsplit=1)[0] if words else ""
    return first.startswith("/") and first.count("/") == 1 and "\n" not in words


async def _chat_in_pipe(call: Call, resume: str | None, mode: str | None) -> int:
    """Each line is a message; the exit code is that of the last turn."""
    lines, code = _read_lines(), 0
    async with AsyncExitStack() as stack:
        session: Session | None = None
        app: App | None = None
        if resume:  # whether there is such a session is reported before anything is read
            app = await stack.enter_async_context(open_app(call, None))
            session = await resume_session(app, resume, mode)
        words = await _next_line(lines)
        if words is None:
            call.report("cli.chat.nothing")
            return 0
        app = app or await stack.enter_async_context(open_app(call, None))
        session = session or await start_session(app, words, mode=mode)
        while words is not None:
            _, _, code = await run_plain_turn(call, app, session, words)
            if code not in (0, 1):
                return code
            words = await _next_line(lines)
        call.report("cli.chat.bye", id=short_id(session.session_id))
    return code


Lines = asyncio.Queue[str | LaminaError | None]


def _read_lines() -> Lines:
    """Lines as they come, read by a thread that nothing waits for, so that work in the background goes on."""
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] -- None where the descriptor is closed
        raise InputError("input.missing")
    queue, loop, source = Lines(), asyncio.get_running_loop(), sys.stdin.buffer

    def put(value: str | LaminaError | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(queue.put_nowait, value)

    def read() -> None:
        try:
            for line in read_lines(source):
                if line.strip():
                    put(line.strip())
        except LaminaError as error:
            put(error)
        else:
            put(None)

    threading.Thread(target=read, daemon=True).start()
    return queue


async def _next_line(lines: Lines) -> str | None:
    if sys.stdin.isatty():  # a terminal that can do nothing but lines
        print("› ", end="", file=sys.stderr, flush=True)
    line = await lines.get()
    if isinstance(line, LaminaError):
        raise line
    return line
