"""`lamina rules`: the instruction files in force, their faults, approvals, and what a session would inject."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.app.files import (
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
from lamina.cli.common import warn_of_rules
from lamina.cli.texts import escaped, visible
from lamina.errors import InputError, InstructionsError
from lamina.settings import load_settings

WORKSPACE = Path()
MAX_INPUT = 4 * 1024 * 1024


def add_rules(app: typer.Typer, say: dict[str, str]) -> None:
    rules = typer.Typer(no_args_is_help=False, invoke_without_command=True)

    def opt(name: str, *flags: str, **options: Any) -> Any:
        return typer.Option(*flags, help=say[f"opt.{name}"], show_default=False, **options)

    def show(
        context: typer.Context,
        workspace: Annotated[Path, opt("workspace")] = WORKSPACE,
        folder: Annotated[Path | None, opt("folder")] = None,
        session: Annotated[Path | None, opt("session")] = None,
        as_json: Annotated[bool, opt("as_json", "--json", metavar="")] = False,
    ) -> None:
        if context.invoked_subcommand is None:
            _show(say, workspace, folder, session, as_json)
        elif workspace != WORKSPACE or folder or session or as_json:
            raise InputError(
                "options of `rules` stand before the command", hint=f"put them behind {context.invoked_subcommand}"
            )

    def check(
        workspace: Annotated[Path, opt("workspace")] = WORKSPACE,
        folder: Annotated[Path | None, opt("folder")] = None,
        everywhere: Annotated[bool, opt("everywhere", "--all", metavar="")] = False,
        as_json: Annotated[bool, opt("as_json", "--json", metavar="")] = False,
    ) -> None:
        _check(say, workspace, folder, everywhere, as_json)

    def approve(
        path: Annotated[str, typer.Argument(help=say["opt.path"])],
        workspace: Annotated[Path, opt("workspace")] = WORKSPACE,
    ) -> None:
        _approve(say, workspace, path)

    def follow(
        workspace: Annotated[Path, opt("workspace")] = WORKSPACE,
        folder: Annotated[Path | None, opt("folder")] = None,
        session: Annotated[Path | None, opt("session")] = None,
        resume: Annotated[bool, opt("resume", "--resume", metavar="")] = False,
    ) -> None:
        _follow(say, workspace, folder, session, resume)

    rules.callback()(show)
    rules.command(help=say["rules.check"])(check)
    rules.command(help=say["rules.approve"])(approve)
    rules.command(help=say["rules.follow"])(follow)
    app.add_typer(rules, name="rules", help=say["rules.show"])


def _check(say: dict[str, str], workspace: Path, folder: Path | None, everywhere: bool, as_json: bool) -> None:
    settings = load_settings()
    files = instruction_files(settings, workspace, folder)
    checked = files.check(everywhere=everywhere)
    faults = [{"fault": f.message, "path": f.path, "next": _advice(f.hint, workspace)} for f in checked.faults]
    rules = [file for file in checked.files if file.kind == "rules"]
    notes = list(checked.notes)
    if missing := rules_missing(settings, workspace):
        notes.append(say["rules_missing"].format(path=missing))
    if not faults and not any(file.text.strip() for file in rules):
        notes.append(say["empty_rules"] if rules else say["no_rules"])
    count = sum(1 + len(file.included) for file in checked.files)
    if as_json:
        found = {"files": [file.path for file in checked.files], "faults": faults, "notes": notes}
        print(escaped(json.dumps(found, ensure_ascii=False, indent=2)))
    else:
        for fault in faults:
            print(f"{visible(fault['fault'])}\n  {say['next']}{say['colon']}{visible(fault['next'])}")
        print(say["faults"].format(count=len(faults)) if faults else say["all_well"].format(count=count))
        for note in notes:
            print(f"{say['note']}{say['colon']}{visible(note)}")
    if faults:
        raise typer.Exit(1)


def _advice(hint: str, workspace: Path) -> str:
    """The command that is advised, for the workspace that was looked at."""
    place = "" if workspace == WORKSPACE else f"--workspace {shlex.quote(str(workspace))} "
    return hint.replace("rules approve ", f"rules approve {place}")


def _approve(say: dict[str, str], workspace: Path, path: str) -> None:
    file = approve_file(instruction_files(load_settings(), workspace), path)
    for place in file.hidden:
        print(f"  {place}: {place.why}")
    said = say["approved"] if file.hidden else say["nothing_hidden"]
    print(said.format(hash=file.hash[:12], path=visible(path)))


def _follow(say: dict[str, str], workspace: Path, folder: Path | None, session: Path | None, resume: bool) -> None:
    settings = load_settings()
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] -- None where the descriptor is closed
        raise InputError("there is no standard input to read from", hint="send messages, one a line")
    if resume and not session:
        raise InputError("there is no session to resume", hint="name its file: --session FILE")
    files = instruction_files(settings, workspace, folder)
    warn_of_rules(say, settings, workspace)
    failed = False
    with held_session(session) as state:
        prompts = prompt_manager(settings, files, state)
        if session:  # better now than after the first send
            write_state(session, prompts.state)
        if resume and prompts.state.begun:
            prompts.note("resume")
        for line in _lines():
            failed |= not _turn(prompts, line, workspace)
            if session:
                write_state(session, prompts.state)
    if failed:
        raise typer.Exit(1)


def _lines() -> Iterator[str]:
    for number, raw in enumerate(iter(lambda: sys.stdin.buffer.readline(MAX_INPUT + 1), b""), 1):
        if len(raw) > MAX_INPUT:
            raise InputError(f"line {number} has more than {MAX_INPUT:,} bytes", hint="send shorter messages")
        try:
            line = raw.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            place = f"byte {error.start} is 0x{raw[error.start]:02x}"
            raise InputError(f"line {number} is not UTF-8: {place}", hint="send UTF-8") from None
        if line:
            yield line


def _turn(prompts: SystemPromptManager, line: str, workspace: Path) -> bool:
    """One line in, one line out; False when there was nothing to send, and why: what was due stays due."""
    try:
        envelope = prompts.prepare(line)
    except InstructionsError as error:
        row: dict[str, Any] = {"turn": prompts.state.turn + 1, "error": error.message}
        print(escaped(json.dumps(row | {"next": _advice(error.hint, workspace)}, ensure_ascii=False)), flush=True)
        return False
    parts = [{"source": p.source, "change": p.change, "hash": p.hash} for p in envelope.parts]
    row = {"turn": envelope.turn, "reasons": list(envelope.reasons), "injected": parts, "line": envelope.line}
    row |= {"system": envelope.system, "user": envelope.user}
    print(escaped(json.dumps(row, ensure_ascii=False)), flush=True)  # this is the send: what fails here stays due
    prompts.sent(envelope)
    return True


def _show(say: dict[str, str], workspace: Path, folder: Path | None, session: Path | None, as_json: bool) -> None:
    settings = load_settings()
    state = read_state(session) if session else None
    if session and state is None:
        raise InputError(f"{str(session)!r} is not there", hint="lamina rules follow --session FILE writes it")
    files = instruction_files(settings, workspace, folder)
    warn_of_rules(say, settings, workspace)
    try:
        loaded = files.load()
    except InstructionsError as error:
        raise InstructionsError(error.message, hint=_advice(error.hint, workspace), path=error.path) from None
    elsewhere = state is not None and state.begun and state.workspace != files.workspace.root
    rows = file_rows(loaded, state, counter(settings.counter))
    if as_json:
        found: dict[str, Any] = {"files": rows, "rules_hash": loaded.rules_hash}
        found |= {"counters": dict(state.counters)} if state else {}
        print(escaped(json.dumps(found, ensure_ascii=False, indent=2)))
        return
    from lamina.cli.view import show_files

    show_files(rows, say)
    if not loaded.rules_text:
        print(say["empty_rules"] if loaded.rules else say["no_rules"])
    if state:
        print(say["counters"].format(**state.counters))
    if elsewhere and state:
        print(f"{say['note']}{say['colon']}{say['elsewhere'].format(path=visible(state.workspace))}")
