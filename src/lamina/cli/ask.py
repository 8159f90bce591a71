"""`lamina ask`: one question, one answer, for pipes. Plain text in a pipe, Markdown on a terminal, or JSON."""

import sys
from typing import Annotated, Any

from lamina.cli.call import (
    Call,
    ChatFolder,
    Commands,
    Mode,
    Model,
    Verbose,
    argument,
    flag,
    option,
    run_until_terminated,
    show_json,
)
from lamina.cli.chat_view import INTERRUPTED, AskYesNo, TurnSummary, TurnView, open_app, run_plain_turn
from lamina.cli.screen import Screen
from lamina.cli.sessions import resume_session, start_session
from lamina.errors import InputError
from lamina.records import Session
from lamina.types import Ended

MAX_INPUT_BYTES = 4 * 1024 * 1024
NEW = "new"
ASK = Commands("ask", examples=True)


@ASK.single()
def ask(
    call: Call,
    words: Annotated[list[str] | None, argument("question", "QUESTION")] = None,
    session: Annotated[str, option("ask.session", "--session", metavar="ID")] = NEW,
    mode: Mode = None,
    phase: Annotated[str | None, option("phase", metavar="TEXT")] = None,
    model: Model = None,
    workspace: ChatFolder = None,
    verbose: Verbose = False,
    as_json: Annotated[bool, flag("ask.json", "--json")] = False,
) -> None:
    call.choose_for_chat(model, workspace, mode, verbose=verbose)
    if session != NEW:
        call.check_store()
    call.warn_of_rules(by_session=True)
    question = _read_question(" ".join(words or ()))
    run_until_terminated(_ask(call, question, session, mode, phase, as_json))


def _read_question(words: str) -> str:
    """The words, and below them the standard input."""
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
    if words.strip() and text.strip():  # the input is data below the words: see said_by_user
        question = f"{words.strip()}\n\n<stdin>\n{text}\n</stdin>"
    if not question.strip():
        raise InputError("input.no_question")
    return question


async def _ask(call: Call, question: str, name: str, mode: str | None, phase: str | None, as_json: bool) -> int:
    screen = Screen() if sys.stdout.isatty() and not as_json else None
    async with open_app(call, screen) as app:
        if name == NEW:
            session = await start_session(app, question, mode=mode)
        else:
            session = await resume_session(app, name, mode, resumed=False)
        if screen:  # the view reports the end itself
            view = TurnView(screen, call.say, yes=_ask_yes_no())
            summary = await view.run_turn(app, session, question, phase=phase)
            complete = summary.ended and summary.ended.state == "complete"
            return 0 if complete else INTERRUPTED if view.stopped else 1
        summary, text, code = await run_plain_turn(call, app, session, question, phase=phase, quiet=as_json)
        if as_json:
            show_json(_to_dict(session, summary, text))
        return code


def _ask_yes_no() -> AskYesNo | None:
    """How to ask the person, where there is a terminal to ask on."""
    if not (sys.stdin and sys.stdin.isatty()):
        return None
    from lamina.cli.input import ask_yes_no

    return ask_yes_no


def _to_dict(session: Session, summary: TurnSummary, text: str) -> dict[str, Any]:
    ended = summary.ended or Ended("failed")
    calls = [
        {
            "name": call.name,
            "arguments": call.arguments,
            "state": result.state if result else "",
            "text": result.text if result else "",
            "seconds": result.seconds if result else None,
        }
        for call, result in summary.calls
    ]
    return {
        "answer": text,
        "turn_id": summary.began.turn_id if summary.began else "",
        "session_id": session.session_id,
        "state": ended.state,
        "reason": ended.reason if ended.state == "complete" else "",
        "usage": {"prompt": summary.prompt, "cached": summary.cached, "completion": summary.completion},
        "calls": calls,
        "error": ended.error,
        "hint": ended.hint,
    }
