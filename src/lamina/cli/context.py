"""`lamina context`: assemble from files or of a stored session, show the messages and the receipt, stop there."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.app.files import Sources, assemble_files, render_request
from lamina.cli.texts import escaped
from lamina.errors import InputError, shown
from lamina.settings import Settings, load_settings
from lamina.types import Context


def add_context(app: typer.Typer, say: dict[str, str]) -> None:
    """Put the command into the tree, with help in one language."""

    def opt(name: str, *flags: str) -> Any:
        return typer.Option(*flags, help=say[f"opt.{name}"], show_default=False)

    def flag(name: str) -> Any:
        return typer.Option(f"--{name}", help=say[f"opt.{name}"], show_default=False, metavar="")

    def context(
        message: Annotated[str | None, typer.Argument(help=say["opt.message"], show_default=False)] = None,
        project: Annotated[Path | None, opt("project")] = None,
        identity: Annotated[Path | None, opt("identity")] = None,
        rules: Annotated[Path | None, opt("rules")] = None,
        workspace: Annotated[Path | None, opt("rules_of", "--workspace")] = None,
        folder: Annotated[Path | None, opt("folder")] = None,
        skill: Annotated[Path | None, opt("skill")] = None,
        memory: Annotated[Path | None, opt("memory")] = None,
        context: Annotated[Path | None, opt("context")] = None,
        tools: Annotated[Path | None, opt("tools")] = None,
        history: Annotated[Path | None, opt("history")] = None,
        mode: Annotated[str | None, opt("mode")] = None,
        session: Annotated[str | None, opt("of_session", "--session")] = None,
        values: Annotated[list[str] | None, opt("values")] = None,
        user: Annotated[str | None, opt("user")] = None,
        store: Annotated[str | None, opt("store")] = None,
        budget: Annotated[str | None, opt("budget")] = None,
        counter: Annotated[str | None, opt("counter")] = None,
        grammar: Annotated[str | None, opt("for", "--for")] = None,
        as_json: Annotated[bool, flag("json")] = False,
        payload: Annotated[bool, flag("payload")] = False,
        full: Annotated[bool, flag("full")] = False,
        lang: Annotated[str | None, opt("lang")] = None,
        prompt_lang: Annotated[str | None, opt("prompt_lang", "--prompt-lang")] = None,
    ) -> None:
        if as_json and payload:
            raise InputError(say["both"], hint="leave one of them out")
        changes = {"counter": counter, "grammar": grammar, "lang": lang, "prompt_lang": prompt_lang}
        settings = _settings(budget, changes)
        given = {"identity": identity, "rules": rules, "skill": skill, "memory": memory, "context": context}
        given |= {"tools": tools, "history": history, "workspace": workspace, "folder": folder}
        if session is not None:
            files = {name: path for name, path in given.items() if name != "workspace"}
            _refuse(f"--session {session}", {"project": project, **files, "mode": mode})
            settings = _as_asked(settings, user, store, workspace)
            assembled = _from_store(say, settings, session, message, values or [])
        else:
            _refuse("files", {"values": values, "user": user, "store": store}, hint="they go with --session")
            sources = Sources.of_project(project) if project else Sources()
            sources = replace(sources, **{name: path for name, path in given.items() if path is not None})
            assembled = assemble_files(settings, sources, user=message, mode=mode or "ask")
        _print(say, assembled, settings, as_json, payload, full)

    app.command(help=say["context.help"], epilog=say["context.examples"])(context)


def _refuse(what: str, options: dict[str, Any], hint: str = "a session has its own files, mode and history") -> None:
    for name, value in options.items():
        if value:
            raise InputError(f"--{name} does not go with {what}", hint=hint)


def _as_asked(settings: Settings, user: str | None, store: str | None, workspace: Path | None) -> Settings:
    """The settings that `lamina ask --session` would have here: whose, which store, and which workspace."""
    from lamina.cli.common import chosen
    from lamina.cli.talk import in_folder

    told = chosen(user, store, workspace=str(workspace) if workspace else None)
    place = {"user": told.user, "store": told.store, "origin": told.origin, "workspace": told.workspace}
    return in_folder(replace(settings, **place))


def _from_store(
    say: dict[str, str], settings: Settings, session: str, message: str | None, values: list[str]
) -> Context:
    """The context of a stored session, as a running process would build it."""
    from lamina.app.commands import context_of
    from lamina.cli.common import opened, progress, run

    if not (message or "").strip():
        raise InputError("the user message is empty", hint='give one: lamina context "…" --session ID')
    filled: dict[str, str] = {}
    for each in values:
        name, sign, value = each.partition("=")
        if not sign or not name.strip():
            raise InputError(f"--values is {shown(each)}", hint="write name=value, for example --values city=Kyoto")
        filled[name.strip()] = value

    async def build() -> Context:
        async with opened(settings, index=True) as app:
            with progress(say, "gathering"):
                return await context_of(app, settings.user, session, message or "", filled)

    return run(build())


def _print(
    say: dict[str, str], assembled: Context, settings: Settings, as_json: bool, payload: bool, full: bool
) -> None:
    request, receipt = render_request(assembled, settings.grammar)
    if receipt.over_budget and (payload or as_json):
        print(f"{say['warning']}: {say['over']}", file=sys.stderr)
    if payload:
        sys.stdout.flush()
        sys.stdout.buffer.write(receipt.payload)
    elif as_json:
        text = json.dumps({"request": request, "receipt": receipt.to_dict()}, ensure_ascii=False, indent=2)
        print(escaped(text))
    else:
        from lamina.cli.view import show_context

        show_context(assembled, receipt, say, full=full)


def _settings(budget: str | None, changes: dict[str, str | None]) -> Settings:
    """The settings with what this call changes, checked like any other."""
    settings = load_settings()
    _check_choice("for", changes["grammar"], ("openai", "anthropic", "gemini"))
    _check_choice("prompt-lang", changes["prompt_lang"], ("en", "zh"))
    check_lang_option(changes["lang"])
    values: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    return replace(settings, **values, **({} if budget is None else {"budget": _number(budget)}))


def _number(budget: str) -> float:
    if re.fullmatch(r"[0-9]{1,15}", budget):
        return int(budget)
    try:
        return float(budget if budget.isascii() and "_" not in budget else "")
    except ValueError:
        raise InputError(f"--budget must be a number of tokens, not {shown(budget)}", hint="for example 8000") from None


def check_lang_option(value: str | None) -> None:
    _check_choice("lang", value, ("en", "zh"))


def _check_choice(flag: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise InputError(f"--{flag} has no choice {shown(value)}", hint=f"choose one of {', '.join(allowed)}")
