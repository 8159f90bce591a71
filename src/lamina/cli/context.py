"""`lamina context`: assemble from files or of a stored session, show the messages and the receipt, stop there."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from lamina.app.config import Sources, assemble_files, render_request
from lamina.cli.call import Call, Commands, argument, check_choice, flag, option, show_json, warn
from lamina.errors import InputError, format_value
from lamina.settings import Settings, load_settings
from lamina.types import Context

COMMANDS = Commands("context", examples=True)


@COMMANDS.single()
def context(
    call: Call,
    message: Annotated[str | None, argument("user_message")] = None,
    project: Annotated[Path | None, option("project")] = None,
    identity: Annotated[Path | None, option("identity")] = None,
    rules: Annotated[Path | None, option("rules")] = None,
    workspace: Annotated[Path | None, option("rules_of", "--workspace")] = None,
    folder: Annotated[Path | None, option("folder")] = None,
    skill: Annotated[Path | None, option("skill")] = None,
    memory: Annotated[Path | None, option("memory")] = None,
    context: Annotated[Path | None, option("context")] = None,
    tools: Annotated[Path | None, option("tools")] = None,
    history: Annotated[Path | None, option("history")] = None,
    mode: Annotated[str | None, option("mode")] = None,
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
        settings = _settings_of_store(call, settings, workspace)
        assembled = _assemble_session(call, settings, session, message, values or [])
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


def _settings_of_store(call: Call, settings: Settings, workspace: Path | None) -> Settings:
    """The settings that `lamina ask --session` would have here: whose, which store, and which workspace."""
    from lamina.cli.talk import settings_in_folder

    chosen = call.choose(workspace=str(workspace) if workspace else None)
    place = {"user": chosen.user, "store": chosen.store, "origin": chosen.origin, "workspace": chosen.workspace}
    return settings_in_folder(replace(settings, **place))


def _assemble_session(
    call: Call, settings: Settings, session: str, message: str | None, values: list[str]
) -> Context:  # fmt: skip
    """The context of a stored session, as a running process would build it."""
    from lamina.app.app import App
    from lamina.app.lookup import context_of
    from lamina.cli.call import run

    if not (message or "").strip():
        raise InputError("input.no_message")
    filled: dict[str, str] = {}
    for each in values:
        name, sign, value = each.partition("=")
        if not sign or not name.strip():
            raise InputError("option.bad_value_pair", value=format_value(each))
        filled[name.strip()] = value

    async def build() -> Context:
        call.check_store()
        async with App.open(settings=settings, work=False, index=True) as app:
            with call.progress("cli.progress.gathering"):
                return await context_of(app, settings.user, session, message or "", filled)

    return run(build())


def _print(
    call: Call, assembled: Context, settings: Settings, as_json: bool, payload: bool, full: bool
) -> None:  # fmt: skip
    request, receipt = render_request(assembled, settings.grammar)
    if receipt.over_budget and (payload or as_json):
        warn(call.say, "cli.receipt.over")
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
