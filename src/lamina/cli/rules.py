"""`lamina rules`: the instruction files in force, their faults, approvals, and what a session would inject."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.app import approve_file, counter, instruction_files, prompt_manager, read_state, write_state
from lamina.cli.texts import escaped, visible
from lamina.errors import InputError, InstructionsError
from lamina.settings import load_settings

WORKSPACE = Path()


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
        _follow(workspace, folder, session, resume)

    rules.callback()(show)
    rules.command(help=say["rules.check"])(check)
    rules.command(help=say["rules.approve"])(approve)
    rules.command(help=say["rules.follow"])(follow)
    app.add_typer(rules, name="rules", help=say["rules.show"])


def _check(say: dict[str, str], workspace: Path, folder: Path | None, everywhere: bool, as_json: bool) -> None:
    settings = load_settings()
    checked = instruction_files(settings, workspace, folder).check(everywhere=everywhere)
    place = "" if workspace == WORKSPACE else f"--workspace {shlex.quote(str(workspace))} "
    hints = [fault.hint.replace("rules approve ", f"rules approve {place}") for fault in checked.faults]
    faults = [{"fault": f.message, "path": f.path, "next": h} for f, h in zip(checked.faults, hints, strict=True)]
    rules = [file for file in checked.files if file.kind == "rules"]
    notes = list(checked.notes)
    if "rules" in settings.origin and settings.rules not in [file.path for file in rules]:
        notes.append(say["rules_missing"].format(path=settings.rules))
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


def _approve(say: dict[str, str], workspace: Path, path: str) -> None:
    file = approve_file(instruction_files(load_settings(), workspace), path)
    for place in file.hidden:
        print(f"  {place}: {place.why}")
    said = say["approved"] if file.hidden else say["nothing_hidden"]
    print(said.format(hash=file.hash[:12], path=visible(path)))


def _follow(workspace: Path, folder: Path | None, session: Path | None, resume: bool) -> None:
    settings = load_settings()
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] -- None where the descriptor is closed
        raise InputError("there is no standard input to read from", hint="send messages, one a line")
    state = read_state(session) if session else None
    prompts = prompt_manager(settings, instruction_files(settings, workspace, folder), state)
    if session:  # better now than after the first send
        write_state(session, prompts.state)
    if resume and prompts.state.begun:
        prompts.note("resume")
    for number, raw in enumerate(sys.stdin.buffer, 1):
        try:
            line = raw.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            place = f"byte {error.start} is 0x{raw[error.start]:02x}"
            raise InputError(f"line {number} is not UTF-8: {place}", hint="send UTF-8") from None
        if not line:
            continue
        try:
            envelope = prompts.prepare(line)
        except InstructionsError:
            if session:  # the failure counts, and what was due stays due
                write_state(session, prompts.state)
            raise
        parts = [{"source": p.source, "change": p.change, "hash": p.hash} for p in envelope.parts]
        row = {"turn": envelope.turn, "reasons": list(envelope.reasons), "injected": parts, "line": envelope.line}
        row |= {"system": envelope.system, "user": envelope.user}
        print(escaped(json.dumps(row, ensure_ascii=False)), flush=True)  # this is the send: what fails here stays due
        prompts.sent(envelope)
        if session:
            write_state(session, prompts.state)


def _show(say: dict[str, str], workspace: Path, folder: Path | None, session: Path | None, as_json: bool) -> None:
    settings = load_settings()
    state = read_state(session) if session else None
    seen = state.seen if state else dict[str, Any]()
    loaded = instruction_files(settings, workspace, folder).load()
    count = counter(settings.counter)
    now = {"instructions": loaded.instructions.hash, "rules": loaded.rules_hash}
    rows: list[dict[str, Any]] = [
        {
            "kind": file.kind,
            "path": file.path,
            "size": file.size,
            "tokens": count(file.text),
            "hash": file.hash,
            "includes": list(file.included),
            "last_injected": seen[file.kind].turn
            if file.kind in seen and seen[file.kind].hash == now[file.kind]
            else None,
        }
        for file in (loaded.instructions, *loaded.rules)
    ]
    if as_json:
        found: dict[str, Any] = {"files": rows, "rules_hash": loaded.rules_hash}
        found |= {"counters": dict(state.counters)} if state else {}
        print(escaped(json.dumps(found, ensure_ascii=False, indent=2)))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("kind", "path", "size", "tokens", "hash", "last_injected", "includes"):
        table.add_column(say[column], justify="right" if column in ("size", "tokens") else "left", overflow="fold")
    for row in rows:
        colour = "cyan" if row["kind"] == "instructions" else "blue"
        included = Text(visible(", ".join(row["includes"])), style="dim")
        table.add_row(
            Text(row["kind"], style=colour), Text(visible(row["path"])), f"{row['size']:,}", f"{row['tokens']:,}",
            row["hash"][:12], say["turn"].format(turn=row["last_injected"]) if row["last_injected"] else "—", included,
        )  # fmt: skip
    console = Console(highlight=False)
    console.print(table)
    if not loaded.rules:
        console.print(Text(say["no_rules"], style="yellow"))
    if state:
        console.print(Text(say["counters"].format(**state.counters), style="dim"))
