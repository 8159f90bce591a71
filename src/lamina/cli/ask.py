"""`lamina ask`: one question, one answer, for pipes. Plain text where nobody looks, Markdown on a terminal, or JSON."""

import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.app.app import App
from lamina.cli.chat_view import Seen, TurnView
from lamina.cli.common import Say, argument, check_store, flag, option, show_json, warn_of_rules
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
    tell_over,
)
from lamina.errors import InputError
from lamina.ports import Ask
from lamina.records import Session
from lamina.settings import Settings
from lamina.types import Ended

MAX_INPUT = 4 * 1024 * 1024
NEW = "new"


def add_ask(app: typer.Typer, say: Say) -> None:
    def ask(
        words: Annotated[list[str] | None, argument(say, "question", "QUESTION")] = None,
        session: Annotated[str, option(say, "ask.session", "--session", metavar="ID")] = NEW,
        mode: Annotated[str | None, option(say, "mode")] = None,
        model: Annotated[str | None, option(say, "model")] = None,
        workspace: Annotated[Path | None, option(say, "chat.workspace", "--workspace")] = None,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "ask.json", "--json")] = False,
    ) -> None:
        settings = talk_settings(user, store, model, workspace, mode)
        if session != NEW:
            check_store(settings)
        warn_of_rules(say, settings)
        question = _question(say, " ".join(words or ()))
        if code := run_until_told(_ask(say, settings, question, session, mode, as_json)):
            raise typer.Exit(code)

    app.command("ask", help=say["ask.help"], epilog=say["ask.examples"])(ask)


def _question(say: Say, words: str) -> str:
    """The words, and below them what the standard input holds."""
    given = b""
    if sys.stdin and not sys.stdin.isatty():
        given = sys.stdin.buffer.read(MAX_INPUT + 1)
    if len(given) > MAX_INPUT:
        raise InputError(f"the standard input has more than {MAX_INPUT:,} bytes", hint="send less of it")
    try:
        text = given.decode("utf-8-sig").strip("\n")
    except UnicodeDecodeError as error:
        place = f"byte {error.start} is 0x{given[error.start]:02x}"
        raise InputError(f"the standard input is not UTF-8: {place}", hint="send UTF-8") from None
    question = words.strip() or text
    if words.strip() and text.strip():  # what is piped in is data below the words: see said_by_user
        question = f"{words.strip()}\n\n<stdin>\n{text}\n</stdin>"
    if not question.strip():
        raise InputError(say["ask.nothing"], hint='lamina ask "…"')
    return question


async def _ask(say: Say, settings: Settings, question: str, name: str, mode: str | None, as_json: bool) -> int:
    async with _opened(say, settings, people=sys.stdout.isatty() and not as_json) as app:
        session = await (begin(app, question, mode=mode) if name == NEW else take_up(app, name, mode, resumed=False))
        people = sys.stdout.isatty() and not as_json
        view = TurnView(Screen(), say, yes=_yes()) if people else None
        ask: Ask = view.ask if view and _yes() else refuser(say)
        running = await app.start(settings.user, session.session_id, question, ask=ask)
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
        await tell_over(say, app, await running.wait())
        ended = seen.ended or Ended("failed")
        if as_json:
            show_json(_object(session, seen, ended, text))
        if view:  # the view has said it all
            return 0 if ended.state == "complete" else 130 if stopped else 1
        return tell_end(say, ended, bool(stopped))


@asynccontextmanager
async def _opened(say: Say, settings: Settings, *, people: bool) -> AsyncGenerator[App, None]:
    """The app; people see that it is being opened."""
    async with AsyncExitStack() as stack:
        with Screen().console.status(say["chat.opening"], spinner_style="cyan") if people else nullcontext():
            app = await stack.enter_async_context(App.open(settings=settings))
        yield app


def _yes() -> Any:
    """Somebody who can be asked, where there is a terminal to ask on."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    from lamina.cli.input import said_yes

    return said_yes


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
