"""`lamina rules`: the instruction files in force, their faults, approvals, and what a session would inject."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.app.config import (
    SystemPromptManager,
    approve_file,
    counter,
    file_rows,
    held_session,
    instruction_files,
    prompt_manager,
    read_state,
    rules_missing,
    write_state,
)
from lamina.cli.call import Call, Commands, Json, argument, flag, option, show_json, warn_of_rules
from lamina.cli.say import escape_json
from lamina.errors import InputError, InstructionsError
from lamina.settings import load_settings
from lamina.text.messages import Phrase

WORKSPACE = Path()
MAX_LINE_BYTES = 4 * 1024 * 1024
COMMANDS = Commands("rules")
APPROVE_HIDDEN = "instructions.approve_hidden"


Workspace = Annotated[Path, option("workspace")]
Folder = Annotated[Path | None, option("folder")]
SessionFile = Annotated[Path | None, option("session")]


@COMMANDS.listing(shared=())
def show(
    call: Call, workspace: Workspace = WORKSPACE, folder: Folder = None, session: SessionFile = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    settings = load_settings()
    state = read_state(session) if session else None
    if session and state is None:
        raise InputError("rules.session_file_missing", path=repr(str(session)))
    files = instruction_files(settings, workspace, folder)
    warn_of_rules(call.say, settings, workspace)
    try:
        loaded = files.load()
    except InstructionsError as error:
        raise _with_advice(error, workspace) from None
    elsewhere = state is not None and state.has_begun and state.workspace != files.workspace.root
    rows = file_rows(loaded, state, counter(settings.counter))
    if as_json:
        found: dict[str, Any] = {"files": rows, "rules_hash": loaded.rules_hash}
        found |= {"counters": dict(state.counters)} if state else {}
        show_json(found)
        return
    from lamina.cli.view import show_files

    show_files(rows, call.say)
    if not loaded.rules_text:
        call.tell("cli.rules.empty" if loaded.rules else "cli.rules.none")
    if state:
        call.tell("cli.rules.counters", **state.counters)
    if elsewhere and state:
        call.tell("cli.note", text=Phrase("cli.rules.elsewhere", path=state.workspace))


@COMMANDS.command("check", shared=())
def check(
    call: Call, workspace: Workspace = WORKSPACE, folder: Folder = None,
    everywhere: Annotated[bool, flag("everywhere", "--all")] = False, as_json: Json = False,
) -> None:  # fmt: skip
    say, settings = call.say, load_settings()
    checked = instruction_files(settings, workspace, folder).check(everywhere=everywhere)
    rules = [file for file in checked.files if file.kind == "rules"]
    notes: list[Phrase | str] = list(checked.notes)
    if missing := rules_missing(settings, workspace):
        notes.append(Phrase("cli.rules.missing", path=missing))
    if not checked.faults and not any(file.text.strip() for file in rules):
        notes.append(Phrase("cli.rules.empty" if rules else "cli.rules.none"))
    if as_json:
        faults = [
            {"fault": fault.message, "path": fault.path, "next": _advice(fault, workspace).text()}
            for fault in checked.faults
        ]
        paths = [file.path for file in checked.files]
        show_json({"files": paths, "faults": faults, "notes": [say.render(note) for note in notes]})
    else:
        for fault in checked.faults:
            print(f"{say.render(fault.phrase)}\n  {say.next(_advice(fault, workspace))}")
        count = sum(1 + len(file.included) for file in checked.files)
        call.tell("cli.faults" if checked.faults else "cli.rules.well", count=len(checked.faults) or count)
        for note in notes:
            print(say("cli.note", text=say.render(note)))
    if checked.faults:
        raise typer.Exit(1)


def _with_advice(error: InstructionsError, workspace: Path) -> InstructionsError:
    values = {name: value for name, value in error.phrase.values.items() if name != "path"}
    return InstructionsError(error.code, hint=_advice(error, workspace), path=error.path, **values)


def _advice(error: InstructionsError, workspace: Path) -> Phrase:
    """The next step, with the workspace in the command where it is not the current folder."""
    hint = error.next_step
    if hint.code != APPROVE_HIDDEN or workspace == WORKSPACE:
        return hint
    return Phrase("instructions.approve_hidden_in", workspace=shlex.quote(str(workspace)), **hint.values)


@COMMANDS.command("approve", shared=())
def approve(call: Call, path: Annotated[str, argument("path")], workspace: Workspace = WORKSPACE) -> None:
    file = approve_file(instruction_files(load_settings(), workspace), path)
    for place in file.hidden:
        print(f"  {call.say('cli.rules.hidden_place', place=str(place), why=Phrase(place.why))}")
    code = "cli.rules.approved" if file.hidden else "cli.rules.nothing_hidden"
    call.tell(code, hash=file.hash[:12], path=path)


@COMMANDS.command("follow", shared=())
def follow(
    call: Call, workspace: Workspace = WORKSPACE, folder: Folder = None, session: SessionFile = None,
    resume: Annotated[bool, flag("resume", "--resume")] = False,
) -> None:  # fmt: skip
    settings = load_settings()
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] -- None where the descriptor is closed
        raise InputError("input.missing")
    if resume and not session:
        raise InputError("option.resume_without_session")
    files = instruction_files(settings, workspace, folder)
    warn_of_rules(call.say, settings, workspace)
    failed = False
    with held_session(session) as state:
        prompts = prompt_manager(settings, files, state)
        if session:  # better now than after the first send
            write_state(session, prompts.state)
        if resume and prompts.state.has_begun:
            prompts.note("resume")
        for line in _lines():
            failed |= not _turn(prompts, line, workspace)
            if session:
                write_state(session, prompts.state)
    if failed:
        raise typer.Exit(1)


def _lines() -> Iterator[str]:
    for number, raw in enumerate(iter(lambda: sys.stdin.buffer.readline(MAX_LINE_BYTES + 1), b""), 1):
        if len(raw) > MAX_LINE_BYTES:
            raise InputError("input.line_too_long", line=number, limit=MAX_LINE_BYTES)
        try:
            line = raw.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            byte = f"0x{raw[error.start]:02x}"
            raise InputError("input.line_not_utf8", line=number, position=error.start, byte=byte) from None
        if line:
            yield line


def _turn(prompts: SystemPromptManager, line: str, workspace: Path) -> bool:
    """One line in, one line out; False when there was nothing to send, and why: what was due stays due."""
    try:
        envelope = prompts.prepare(line)
    except InstructionsError as error:
        row: dict[str, Any] = {"turn": prompts.state.turn + 1, "error": error.message}
        print(escape_json(json.dumps(row | {"next": _advice(error, workspace).text()}, ensure_ascii=False)), flush=True)
        return False
    parts = [{"source": p.source, "change": p.change, "hash": p.hash} for p in envelope.parts]
    row = {"turn": envelope.turn, "triggers": list(envelope.triggers), "injected": parts, "line": envelope.line}
    row |= {"system": envelope.system, "user": envelope.user}
    print(escape_json(json.dumps(row, ensure_ascii=False)), flush=True)  # this is the send: what fails here stays due
    prompts.sent(envelope)
    return True
