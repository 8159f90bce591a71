"""`lamina rules`: the instruction files in force, their faults, approvals, and what a session would inject."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.app import approve_hash, counter, instruction_files, prompt_manager, read_state, write_state
from lamina.cli.texts import visible
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
    ) -> None:
        _check(say, workspace, folder)

    def approve(
        path: Annotated[str, typer.Argument(help=say["opt.path"])],
        workspace: Annotated[Path, opt("workspace")] = WORKSPACE,
    ) -> None:
        _approve(say, workspace, path)

    def follow(
        workspace: Annotated[Path, opt("workspace")] = WORKSPACE,
        folder: Annotated[Path | None, opt("folder")] = None,
        session: Annotated[Path | None, opt("session")] = None,
    ) -> None:
        _follow(workspace, folder, session)

    rules.callback()(show)
    rules.command(help=say["rules.check"])(check)
    rules.command(help=say["rules.approve"])(approve)
    rules.command(help=say["rules.follow"])(follow)
    app.add_typer(rules, name="rules", help=say["rules.show"])


def _check(say: dict[str, str], workspace: Path, folder: Path | None) -> None:
    settings = load_settings()
    files = instruction_files(settings, workspace, folder)
    try:
        loaded = files.load()
    except InstructionsError as error:
        place = "" if workspace == WORKSPACE else f" --workspace {shlex.quote(str(workspace))}"
        hint = error.hint + (place if "lamina rules approve" in error.hint else "")
        print(visible(error.message))
        print(f"  {say['next']}{say['colon']}{visible(hint)}")
        raise typer.Exit(1) from None
    count = sum(1 + len(file.included) for file in (loaded.instructions, *loaded.rules))
    print(say["all_well"].format(count=count))
    if "rules" in settings.origin and settings.rules not in [file.path for file in loaded.rules]:
        print(say["rules_missing"].format(path=visible(settings.rules)))
    if not loaded.rules:
        print(say["no_rules"])
    elif not loaded.rules_text:
        print(say["empty_rules"])


def _approve(say: dict[str, str], workspace: Path, path: str) -> None:
    settings = load_settings()
    file = instruction_files(settings, workspace).workspace.read(path)
    for place in file.hidden:
        print(f"  {place}: {place.why}")
    approve_hash(settings, file.hash)
    print(say["approved"].format(hash=file.hash[:12], path=visible(path)))


def _follow(workspace: Path, folder: Path | None, session: Path | None) -> None:
    settings = load_settings()
    state = read_state(session) if session else None
    prompts = prompt_manager(settings, instruction_files(settings, workspace, folder), state)
    for number, raw in enumerate(sys.stdin.buffer, 1):
        try:
            line = raw.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            place = f"byte {error.start} is 0x{raw[error.start]:02x}"
            raise InputError(f"line {number} is not UTF-8: {place}", hint="send UTF-8") from None
        if not line:
            continue
        envelope = prompts.prepare(line)
        parts = [{"source": p.source, "change": p.change, "hash": p.hash} for p in envelope.parts]
        row = {"turn": envelope.turn, "reasons": list(envelope.reasons), "injected": parts}
        row |= {"system": envelope.system, "user": envelope.user}
        print(json.dumps(row, ensure_ascii=False), flush=True)  # this is the send: what fails here stays due
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
        print(json.dumps({"files": rows, "rules_hash": loaded.rules_hash}, ensure_ascii=False, indent=2))
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
