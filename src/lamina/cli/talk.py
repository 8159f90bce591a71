"""What `lamina chat` and `lamina ask` have in common: whose words go where, and a turn as plain text for pipes.

Where nobody can be asked, a dangerous call is refused; there is no switch that says yes to everything.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterable, Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from lamina.app.app import App
from lamina.app.commands import find_session
from lamina.app.files import check_files
from lamina.app.providers import with_model
from lamina.app.traces import requests_of
from lamina.cli.chat_view import Seen
from lamina.cli.common import Say, chosen, one_line, run
from lamina.cli.texts import visible
from lamina.cli.texts_errors import error_in
from lamina.errors import InputError, shown
from lamina.ports import Ask
from lamina.records import Session, TurnRecord
from lamina.settings import Settings
from lamina.types import Decision, Ended, Notice, Text, ToolCallEvent, ToolResult, TurnEvent

MODES = ("agent", "plan", "ask")
TITLE = 60
"""Characters of the first words that become a session's title."""
INTERRUPTED, TERMINATED = 130, 143


def talk_settings(
    user: str | None, store: str | None, model: str | None, workspace: Path | None, mode: str | None
) -> Settings:
    """The settings of a chat, with what this call changes."""
    check_mode(mode, "--mode has no choice")
    return in_folder(with_model(chosen(user, store, workspace=str(workspace) if workspace else None), model))


def in_folder(settings: Settings) -> Settings:
    """These settings as a chat has them: without a workspace the folder you are in is it, and there are tools unless a
    setting says no."""
    logging.getLogger("lamina").addHandler(logging.NullHandler())  # the log is for operators; people see the events
    folder = settings.workspace or os.getcwd()
    if not os.path.isdir(folder):
        what = "is not a folder" if os.path.lexists(folder) else "is not there"
        raise InputError(f"{folder!r} {what}", hint="name the workspace's folder")
    tools = settings.tools if "tools" in settings.origin else True
    settings = replace(settings, workspace=folder, tools=tools)
    check_files(settings)
    return settings


def run_until_told(work: Coroutine[Any, Any, int]) -> int:
    """Whoever ends the process politely finds everything as it should be: the turn kept, the terminal as it was."""

    async def guarded() -> int:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return run(guarded())
    except asyncio.CancelledError:
        return TERMINATED


def check_mode(mode: str | None, what: str) -> None:
    if mode is not None and mode not in MODES:
        raise InputError(f"{what} {shown(mode)}", hint=f"choose one of {', '.join(MODES)}")


async def begin(app: App, words: str, *, mode: str | None = None, skill: str = "") -> Session:
    """A new session, named after the words that begin it."""
    settings, _ = app.settings, app.provider  # who cannot answer is said before anything is stored
    title = one_line(words.replace("\0", ""), TITLE)  # which words may hold and a title may not
    return await app.new_session(settings.user, title=title, mode=mode or settings.mode, skill=skill)


async def take_up(app: App, name: str, mode: str | None = None, *, resumed: bool = True) -> Session:
    """A session that is there already, in another mode where one is given. One more question is no resume: the model
    is not told its instructions again for it."""
    owner = app.settings.user
    session = await find_session(app.store, owner, name)
    if resumed or session.ended:
        session = await app.resume_session(owner, session.session_id)
    if mode and mode != session.mode:
        session = await app.store.sessions.update(owner, session.session_id, mode=mode)
    return session


@contextmanager
def interrupts(stop: Callable[[], object]) -> Generator[None, None, None]:
    """The first Ctrl-C asks the turn to end and keeps what came; a second one ends the program as always."""
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)

    def restore() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)

    def pressed() -> None:
        restore()
        stop()

    loop.add_signal_handler(signal.SIGINT, pressed)
    try:
        yield
    finally:
        restore()


def refuser(say: Say) -> Ask:
    """Nobody is there to be asked: no, and a line that says so."""

    async def refuse(call: ToolCallEvent, decision: Decision) -> bool:
        tell_error(say, "talk.refused", name=call.name, shows=one_line(decision.shows or call.arguments, 200))
        return False

    return refuse


async def plain_turn(say: Say, events: AsyncIterable[TurnEvent], *, quiet: bool = False) -> tuple[Seen, str]:
    """The answer to the standard output as it comes, everything else to the error output; also returned.

    A blank line stands between the texts of two steps, and whatever is said meanwhile begins a line of its own.
    """
    seen, steps, paused = Seen(), [""], False

    def write(text: str) -> None:
        if not quiet and text:
            sys.stdout.write(visible(text.replace("\r\n", "\n")))
            sys.stdout.flush()

    def end_line() -> None:
        write("\n" if steps[-1] and not paused and not steps[-1].endswith("\n") else "")

    async for event in events:
        seen.take(event)
        if isinstance(event, ToolCallEvent | ToolResult | Notice):
            end_line()
            paused = True
        match event:
            case Text():
                if paused and steps[-1]:
                    write("" if steps[-1].endswith("\n\n") else "\n")
                    steps[-1:] = [steps[-1].rstrip("\n"), ""]
                paused = False
                steps[-1] += event.text
                write(event.text)
            case ToolResult():
                state = say[f"chat.{event.state}"]
                tell_error(say, "talk.called", name=event.name, state=state, seconds=f"{event.seconds:.1f}")
            case Notice():
                print(f"· {visible(error_in(say['lang'], event.text))}", file=sys.stderr)
            case _:
                pass
    end_line()
    return seen, "\n\n".join(steps)


async def tell_over(say: Say, app: App, turn: TurnRecord) -> None:
    """Say it when what must be sent was more than the budget."""
    if any(receipt.over_budget for receipt in await requests_of(app.store, turn.owner, turn)):
        print(f"{say['over']}\n{say['next']}{say['colon']}{say['over.next']}", file=sys.stderr, flush=True)


def tell_error(say: Say, name: str, /, **values: object) -> None:
    print(say[name].format(**{n: visible(str(v)) for n, v in values.items()}), file=sys.stderr, flush=True)


def tell_end(say: Say, ended: Ended, stopped: bool) -> int:
    """Why a turn is not complete, on the error output; the exit code."""
    if ended.state == "complete":
        return 0
    if stopped:
        tell_error(say, "chat.stopped")
        return INTERRUPTED
    lang, what = say["lang"], ended.error or say[f"chat.ended.{ended.state}"]
    print(f"{say['error']}{say['colon']}{visible(error_in(lang, what))}", file=sys.stderr)
    if ended.hint:
        print(f"{say['next']}{say['colon']}{visible(error_in(lang, ended.hint))}", file=sys.stderr)
    return 1
