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
from lamina.app.config import check_files, with_model
from lamina.app.lookup import find_session
from lamina.app.traces import requests_of
from lamina.cli.call import Call, check_choice, run
from lamina.cli.chat_view import Seen, format_notice
from lamina.cli.common import one_line, short_id
from lamina.cli.say import Say, visible
from lamina.cli.sessions import MODES
from lamina.errors import InputError
from lamina.portable import handle_signal
from lamina.ports import Ask
from lamina.records import Session, TurnRecord
from lamina.settings import Settings
from lamina.text.messages import Phrase, Value
from lamina.types import Decision, Ended, Notice, Text, ToolCallEvent, ToolResult, TurnEvent

TITLE_CHARACTERS = 60
"""Characters of the first words that become a session's title."""
INTERRUPTED, TERMINATED = 130, 143


def talk_settings(call: Call, model: str | None, workspace: Path | None, mode: str | None, verbose: bool) -> Settings:
    """The settings of a chat, with what this call changes; `verbose` shows the log."""
    check_choice("--mode", mode, MODES)
    if verbose:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        logging.getLogger("lamina").addHandler(handler)
        logging.getLogger("lamina").setLevel(logging.INFO)
    chosen = call.choose(workspace=str(workspace) if workspace else None)
    return settings_in_folder(with_model(chosen, model))


def settings_in_folder(settings: Settings) -> Settings:
    """These settings as a chat has them: without a workspace the folder you are in is it, and there are tools unless a
    setting says no."""
    logging.getLogger("lamina").addHandler(logging.NullHandler())  # the log is for operators; people see the events
    folder = settings.workspace or os.getcwd()
    if not os.path.isdir(folder):
        code = "workspace.not_a_folder" if os.path.lexists(folder) else "workspace.missing"
        raise InputError(code, path=repr(folder))
    tools = settings.tools if "tools" in settings.origin else True
    settings = replace(settings, workspace=folder, tools=tools)
    check_files(settings)
    return settings


def run_until_terminated(work: Coroutine[Any, Any, int]) -> int:
    """Whoever ends the process politely finds everything as it should be: the turn kept, the terminal as it was."""

    async def guarded() -> int:
        task = asyncio.current_task()
        assert task is not None
        handle_signal(asyncio.get_running_loop(), signal.SIGTERM, task.cancel)
        return await work

    try:
        return run(guarded())
    except asyncio.CancelledError:
        return TERMINATED


async def start_session(app: App, words: str, *, mode: str | None = None, skill: str = "", phase: str = "") -> Session:
    """A new session, named after the words that begin it."""
    settings, _ = app.settings, app.provider  # who cannot answer is said before anything is stored
    title = one_line(words.replace("\0", ""), TITLE_CHARACTERS)  # which words may hold and a title may not
    return await app.new_session(settings.user, title=title, mode=mode or settings.mode, skill=skill, phase=phase)


async def resume_session(app: App, name: str, mode: str | None = None, *, resumed: bool = True) -> Session:
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

    def pressed() -> None:
        restore()
        stop()

    restore = handle_signal(asyncio.get_running_loop(), signal.SIGINT, pressed)
    try:
        yield
    finally:
        restore()


def refuse_calls(say: Say, session: Session) -> Ask:
    """Nobody is there to be asked: the call does not run, and the person reads why and where it could."""

    async def refuse(call: ToolCallEvent, decision: Decision) -> None:
        print_error(say, "cli.talk.refused", name=call.name, shows=one_line(decision.shows or call.arguments, 200))
        if reason := decision.explain(say.lang):
            print_error(say, "cli.talk.reason", reason=one_line(reason, 200))
        print_error(say, "cli.talk.refused.next", id=short_id(session.session_id))

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
                state = say(f"cli.chat.{event.state}")
                print_error(say, "cli.talk.called", name=event.name, state=state, seconds=f"{event.seconds:.1f}")
            case Notice():
                print(format_notice(say, event), file=sys.stderr)
            case _:
                pass
    end_line()
    return seen, "\n\n".join(steps)


async def warn_over_budget(say: Say, app: App, turn: TurnRecord) -> None:
    """Say it when what must be sent was more than the budget."""
    if any(receipt.over_budget for receipt in await requests_of(app.store, turn.owner, turn)):
        print(f"{say('cli.receipt.over')}\n{say.next(Phrase('cli.receipt.over.next'))}", file=sys.stderr, flush=True)


def print_error(say: Say, code: str, /, **values: Value) -> None:
    print(say(code, **values), file=sys.stderr, flush=True)


def report_end(say: Say, ended: Ended, stopped: bool) -> int:
    """Why a turn is not complete, on the error output; the exit code."""
    if ended.state == "complete":
        return 0
    if stopped:
        print_error(say, "cli.chat.stopped")
        return INTERRUPTED
    text = say.render(ended.error) if ended.error else say(f"cli.chat.ended.{ended.state}")
    print_error(say, "cli.error", text=text)
    if ended.hint:
        print(say.next(ended.hint), file=sys.stderr)
    return 1
