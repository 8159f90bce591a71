"""`lamina context` and `lamina rules`: what would be sent from files or in a stored session, with its receipt; the
instruction files in force, their faults, approvals, and what a session would inject. Nothing is sent."""

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.app.config import (
    Sources,
    SystemPromptManager,
    approve_file,
    assemble_files,
    counter,
    file_rows,
    hold_session,
    instruction_files,
    prompt_manager,
    read_state,
    render_request,
    rules_missing,
    write_state,
)
from lamina.cli.call import (
    Call,
    Commands,
    Json,
    Mode,
    argument,
    check_choice,
    flag,
    option,
    read_lines,
    run,
    show_json,
)
from lamina.errors import InputError, InstructionsError, format_value
from lamina.settings import Settings, load_settings
from lamina.text.messages import Phrase
from lamina.types import Context

CURRENT_FOLDER = Path()
CONTEXT = Commands("context", examples=True)
RULES = Commands("rules")
Workspace = Annotated[Path, option("workspace")]
Folder = Annotated[Path | None, option("folder")]
SessionFile = Annotated[Path | None, option("session")]


@CONTEXT.single()
def context(
    call: Call,
    message: Annotated[str | None, argument("user_message")] = None,
    project: Annotated[Path | None, option("project")] = None,
    identity: Annotated[Path | None, option("identity")] = None,
    rules: Annotated[Path | None, option("rules")] = None,
    workspace: Annotated[Path | None, option("rules_of", "--workspace")] = None,
    folder: Folder = None,
    skill: Annotated[Path | None, option("skill")] = None,
    memory: Annotated[Path | None, option("memory")] = None,
    context: Annotated[Path | None, option("context")] = None,
    tools: Annotated[Path | None, option("tools")] = None,
    history: Annotated[Path | None, option("history")] = None,
    mode: Mode = None,
    session: Annotated[str | None, option("of_session", "--session")] = None,
    values: Annotated[list[str] | None, option("values")] = None,
    budget: Annotated[str | None, option("budget")] = None,
    counter: Annotated[str | None, option("counter")] = None,
    grammar: Annotated[str | None, option("for", "--for")] = None,
    as_json: Annotated[bool, flag("json", "--json")] = False,
    payload: Annotated[bool, flag("payload", "--payload")] = False,
    full: Annotated[bool, flag("full", "--full")] = False,
    prompt_lang: Annotated[str | None, option("prompt_lang", "--prompt-lang")] = None,
) -> None:
    if as_json and payload:
        raise InputError("option.exclusive", first="--json", second="--payload")
    settings = _settings(budget, {"counter": counter, "grammar": grammar, "prompt_lang": prompt_lang})
    given = {"identity": identity, "rules": rules, "skill": skill, "memory": memory, "context": context}
    given |= {"tools": tools, "history": history, "workspace": workspace, "folder": folder}
    if session is not None:
        files = {name: path for name, path in given.items() if name != "workspace"}
        _refuse("option.not_with_session", {"project": project, **files, "mode": mode})
        chosen = call.choose(workspace=str(workspace) if workspace else None)
        place = {"user": chosen.user, "store": chosen.store, "origin": chosen.origin, "workspace": chosen.workspace}
        call.settings = replace(settings, **place)
        call.use_folder()  # as `lamina ask --session` would have it here
        assembled = _assemble_session(call, session, message, values or [])
    else:
        options = {"values": values, "user": call.user_option, "store": call.store_option}
        _refuse("option.needs_session", options)
        sources = Sources.of_project(project) if project else Sources()
        sources = replace(sources, **{name: path for name, path in given.items() if path is not None})
        assembled = assemble_files(settings, sources, user=message, mode=mode or "ask")
    _print(call, assembled, settings, as_json, payload, full)


def _refuse(code: str, options: dict[str, Any]) -> None:
    for name, value in options.items():
        if value:
            raise InputError(code, option=f"--{name}")


def _assemble_session(call: Call, session: str, message: str | None, values: list[str]) -> Context:
    """The context of a stored session, as a running process would build it."""
    from lamina.app.lookup import context_of

    if not (message or "").strip():
        raise InputError("input.no_message")
    filled: dict[str, str] = {}
    for pair in values:
        name, sign, value = pair.partition("=")
        if not sign or not name.strip():
            raise InputError("option.bad_value_pair", value=format_value(pair))
        filled[name.strip()] = value

    async def build() -> Context:
        async with call.open(index=True) as app:
            with call.progress("cli.progress.gathering"):
                return await context_of(app, call.user, session, message or "", filled)

    return run(build())


def _print(call: Call, assembled: Context, settings: Settings, as_json: bool, payload: bool, full: bool) -> None:
    request, receipt = render_request(assembled, settings.grammar)
    if receipt.over_budget and (payload or as_json):
        call.warn("cli.receipt.over")
    if payload:
        sys.stdout.flush()
        sys.stdout.buffer.write(receipt.payload)
    elif as_json:
        show_json({"request": request, "receipt": receipt.to_dict()})
    else:
        from lamina.cli.view import show_context

        show_context(assembled, receipt, call.say, full=full)


def _settings(budget: str | None, changes: dict[str, str | None]) -> Settings:
    """The settings with what this call changes, checked like any other."""
    settings = load_settings()
    check_choice("--for", changes["grammar"], ("openai", "anthropic", "gemini"))
    check_choice("--prompt-lang", changes["prompt_lang"], ("en", "zh"))
    if budget is not None and not re.fullmatch(r"[0-9]{1,15}", budget):
        raise InputError("option.not_tokens", option="--budget", value=format_value(budget))
    values: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    return replace(settings, **values, **({} if budget is None else {"budget": int(budget)}))


@RULES.listing(shared=())
def show_rules(
    call: Call,
    workspace: Workspace = CURRENT_FOLDER,
    folder: Folder = None,
    session: SessionFile = None,
    as_json: Json = False,
) -> None:
    settings = call.settings
    state = read_state(session) if session else None
    if session and state is None:
        raise InputError("rules.session_file_missing", path=repr(str(session)))
    files = instruction_files(settings, workspace, folder)
    call.warn_of_rules(workspace)
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
    from lamina.cli.view import files_table, page

    page(files_table(rows, call.say))
    if not loaded.rules_text:
        call.tell("cli.rules.empty" if loaded.rules else "cli.rules.none")
    if state:
        call.tell("cli.rules.counters", **state.counters)
    if elsewhere and state:
        call.tell("cli.note", text=Phrase("cli.rules.elsewhere", path=state.workspace))


@RULES.command("check", shared=())
def check(
    call: Call,
    workspace: Workspace = CURRENT_FOLDER,
    folder: Folder = None,
    everywhere: Annotated[bool, flag("everywhere", "--all")] = False,
    as_json: Json = False,
) -> None:
    say, settings = call.say, call.settings
    checked = instruction_files(settings, workspace, folder).check(everywhere=everywhere)
    rules = [file for file in checked.files if file.kind == "rules"]
    paths = list(dict.fromkeys(path for file in checked.files for path in (file.path, *file.included)))
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
        show_json({"files": paths, "faults": faults, "notes": [say.render(note) for note in notes]})
    else:
        for fault in checked.faults:
            print(f"{say.render(fault.phrase)}\n  {say.next(_advice(fault, workspace))}")
        call.tell("cli.faults" if checked.faults else "cli.rules.well", count=len(checked.faults) or len(paths))
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
    if hint.code != "instructions.approve_hidden" or workspace == CURRENT_FOLDER:
        return hint
    return Phrase("instructions.approve_hidden_in", workspace=shlex.quote(str(workspace)), **hint.values)


@RULES.command("approve", shared=())
def approve(call: Call, path: Annotated[str, argument("path")], workspace: Workspace = CURRENT_FOLDER) -> None:
    file = approve_file(instruction_files(call.settings, workspace), path)
    for place in file.hidden:
        print(f"  {call.say('cli.rules.hidden_place', place=str(place), why=Phrase(place.why))}")
    code = "cli.rules.approved" if file.hidden else "cli.rules.nothing_hidden"
    call.tell(code, hash=file.hash[:12], path=path)


@RULES.command("follow", shared=())
def follow(
    call: Call,
    workspace: Workspace = CURRENT_FOLDER,
    folder: Folder = None,
    session: SessionFile = None,
    resume: Annotated[bool, flag("resume", "--resume")] = False,
) -> None:
    settings = call.settings
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] -- None where the descriptor is closed
        raise InputError("input.missing")
    if resume and not session:
        raise InputError("option.resume_without_session")
    files = instruction_files(settings, workspace, folder)
    call.warn_of_rules(workspace)
    failed = False
    with hold_session(session) as state:
        prompts = prompt_manager(settings, files, state)
        if session:  # better now than after the first send
            write_state(session, prompts.state)
        if resume and prompts.state.has_begun:
            prompts.note("resume")
        for line in read_lines(sys.stdin.buffer):
            failed |= not _turn(prompts, line, workspace)
            if session:
                write_state(session, prompts.state)
    if failed:
        raise typer.Exit(1)


def _turn(prompts: SystemPromptManager, line: str, workspace: Path) -> bool:
    """One line in, one line out; False when there was nothing to send, and why: what was due stays due."""
    try:
        envelope = prompts.prepare(line)
    except InstructionsError as error:
        advice = _advice(error, workspace).text()
        show_json({"turn": prompts.state.turn + 1, "error": error.message, "next": advice}, line=True)
        return False
    parts = [{"source": p.source, "change": p.change, "hash": p.hash} for p in envelope.parts]
    row = {"turn": envelope.turn, "triggers": list(envelope.triggers), "injected": parts, "line": envelope.line}
    show_json(row | {"system": envelope.system, "user": envelope.user}, line=True)  # what fails here stays due
    prompts.sent(envelope)
    return True
