"""`lamina ask`: one question, one answer, for pipes. Plain text where nobody looks, Markdown on a terminal, or JSON."""

import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.app.app import App
from lamina.cli.call import Call, Commands, argument, check_store, flag, option, show_json, warn_of_rules
from lamina.cli.chat_view import Seen, TurnView
from lamina.cli.say import Say
from lamina.cli.screen import Screen
from lamina.cli.talk import (
    interrupts,
    plain_turn,
    refuse_calls,
    report_end,
    resume_session,
    run_until_terminated,
    start_session,
    talk_settings,
    warn_over_budget,
)
from lamina.errors import InputError
from lamina.ports import Ask
from lamina.records import Session
from lamina.settings import Settings
from lamina.types import Ended

MAX_INPUT_BYTES = 4 * 1024 * 1024
NEW = "new"
COMMANDS = Commands("ask", examples=True)


@COMMANDS.single()
def ask(
    call: Call,
    words: Annotated[list[str] | None, argument("question", "QUESTION")] = None,
    session: Annotated[str, option("ask.session", "--session", metavar="ID")] = NEW,
    mode: Annotated[str | None, option("mode")] = None,
    phase: Annotated[str | None, option("phase", metavar="TEXT")] = None,
    model: Annotated[str | None, option("model")] = None,
    workspace: Annotated[Path | None, option("chat.workspace", "--workspace")] = None,
    verbose: Annotated[bool, flag("chat.verbose", "--verbose")] = False,
    as_json: Annotated[bool, flag("ask.json", "--json")] = False,
) -> None:
    settings = talk_settings(call, model, workspace, mode, verbose)
    if session != NEW:
        check_store(settings)
    warn_of_rules(call.say, settings, by_session=True)
    question = _question(" ".join(words or ()))
    if code := run_until_terminated(_ask(call.say, settings, question, session, mode, phase, as_json)):
        raise typer.Exit(code)


def _question(words: str) -> str:
    """The words, and below them what the standard input holds."""
    given = b""
    if sys.stdin and not sys.stdin.isatty():
        given = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
    if len(given) > MAX_INPUT_BYTES:
        raise InputError("input.too_long", limit=MAX_INPUT_BYTES)
    try:
        text = given.decode("utf-8-sig").strip("\n")
    except UnicodeDecodeError as error:
        byte = f"0x{given[error.start]:02x}"
        raise InputError("input.not_utf8", position=error.start, byte=byte) from None
    question = words.strip() or text
    if words.strip() and text.strip():  # what is piped in is data below the words: see said_by_user
        question = f"{words.strip()}\n\n<stdin>\n{text}\n</stdin>"
    if not question.strip():
        raise InputError("input.no_question")
    return question


async def _ask(
    say: Say, settings: Settings, question: str, name: str, mode: str | None, phase: str | None, as_json: bool
) -> int:
    async with _opened(say, settings, people=sys.stdout.isatty() and not as_json) as app:
        session = await (
            start_session(app, question, mode=mode) if name == NEW else resume_session(app, name, mode, resumed=False)
        )
        people = sys.stdout.isatty() and not as_json
        view = TurnView(Screen(), say, yes=_yes()) if people else None
        ask: Ask = view.ask if view and _yes() else refuse_calls(say, session)
        running = await app.start(settings.user, session.session_id, question, ask=ask, phase_prompt=phase)
        stopped: list[bool] = []

        def stop() -> None:
            stopped.append(True)
            running.cancel()

        if view:
            view.on_stop = stop
        text = ""
        try:
            with interrupts(view.stop if view else stop):
                if view:
                    seen = await view.follow(running.events())
                else:
                    seen, text = await plain_turn(say, running.events(), quiet=as_json)
        except BaseException:  # whoever read the answer is gone: what came is kept, and the turn has an end
            running.cancel()
            await running.wait()
            raise
        await warn_over_budget(say, app, await running.wait())
        ended = seen.ended or Ended("failed")
        if as_json:
            show_json(_object(session, seen, ended, text))
        if view:  # the view has said it all
            return 0 if ended.state == "complete" else 130 if stopped else 1
        return report_end(say, ended, bool(stopped))


@asynccontextmanager
async def _opened(say: Say, settings: Settings, *, people: bool) -> AsyncGenerator[App, None]:
    """The app; people see that it is being opened."""
    async with AsyncExitStack() as stack:
        with Screen().console.status(say("cli.chat.opening"), spinner_style="cyan") if people else nullcontext():
            app = await stack.enter_async_context(App.open(settings=settings))
        yield app


def _yes() -> Any:
    """Somebody who can be asked, where there is a terminal to ask on."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    from lamina.cli.input import ask_yes_no

    return ask_yes_no


def _object(session: Session, seen: Seen, ended: Ended, text: str) -> dict[str, Any]:
    return {
        "answer": text,
        "turn_id": seen.began.turn_id if seen.began else "",
        "session_id": session.session_id,
        "state": ended.state,
        "usage": {"prompt": seen.prompt, "cached": seen.cached, "completion": seen.completion},
        "calls": [
            {"name": call.name, "arguments": call.arguments, "state": result.state if result else "", "text":
             result.text if result else "", "seconds": result.seconds if result else None}
            for call, result in seen.calls
        ],
        "error": ended.error,
        "hint": ended.hint,
    }  # fmt: skip
