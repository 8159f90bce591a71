"""`lamina context`: assemble from files, show the messages and the receipt, stop there."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.app import Sources, assemble_files, render_request
from lamina.cli.texts import texts
from lamina.errors import InputError, shown
from lamina.settings import Settings, load_settings


def add_context(app: typer.Typer, say: dict[str, str]) -> None:
    """Put the command into the tree, with help in one language."""

    def opt(name: str, *flags: str) -> Any:
        return typer.Option(*flags, help=say[f"opt.{name}"], show_default=False)

    def context(
        message: Annotated[str | None, typer.Argument(help=say["opt.message"], show_default=False)] = None,
        project: Annotated[Path | None, opt("project")] = None,
        identity: Annotated[Path | None, opt("identity")] = None,
        rules: Annotated[Path | None, opt("rules")] = None,
        skill: Annotated[Path | None, opt("skill")] = None,
        memory: Annotated[Path | None, opt("memory")] = None,
        context: Annotated[Path | None, opt("context")] = None,
        tools: Annotated[Path | None, opt("tools")] = None,
        history: Annotated[Path | None, opt("history")] = None,
        mode: Annotated[str, opt("mode")] = "ask",
        budget: Annotated[str | None, opt("budget")] = None,
        counter: Annotated[str | None, opt("counter")] = None,
        grammar: Annotated[str | None, opt("for", "--for")] = None,
        as_json: Annotated[bool, opt("json", "--json")] = False,
        payload: Annotated[bool, opt("payload", "--payload")] = False,
        full: Annotated[bool, opt("full", "--full")] = False,
        lang: Annotated[str | None, opt("lang")] = None,
        prompt_lang: Annotated[str | None, opt("prompt_lang", "--prompt-lang")] = None,
    ) -> None:
        changes = {"counter": counter, "grammar": grammar, "lang": lang, "prompt_lang": prompt_lang}
        settings = _settings(budget, changes)
        sources = Sources.of_project(project) if project else Sources()
        given = {"identity": identity, "rules": rules, "skill": skill, "memory": memory, "context": context}
        given |= {"tools": tools, "history": history}
        sources = replace(sources, **{name: path for name, path in given.items() if path is not None})
        assembled = assemble_files(settings, sources, user=message, mode=mode)
        request, receipt = render_request(assembled, settings.grammar)
        if payload:
            sys.stdout.buffer.write(receipt.payload)
        elif as_json:
            json.dump({"request": request, "receipt": receipt.to_dict()}, sys.stdout, ensure_ascii=False, indent=2)
            print()
        else:
            from lamina.cli.view import show_context

            show_context(assembled.messages, receipt, texts(settings.lang), full=full)

    app.command(help=say["context.help"], epilog=say["context.examples"])(context)


def _settings(budget: str | None, changes: dict[str, str | None]) -> Settings:
    """The settings with what this call changes, checked like any other."""
    settings = load_settings()
    known = {"grammar": ("openai", "anthropic", "gemini"), "lang": ("en", "zh"), "prompt_lang": ("en", "zh")}
    for name, allowed in known.items():
        value = changes[name]
        if value is not None and value not in allowed:
            flag = {"grammar": "for", "prompt_lang": "prompt-lang"}.get(name, name)
            raise InputError(f"--{flag} must be one of {', '.join(allowed)}, not {shown(value)}")
    values: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    return replace(settings, **values, **({} if budget is None else {"budget": _number(budget)}))


def _number(budget: str) -> float:
    try:
        return int(budget)
    except ValueError:
        pass
    try:
        return float(budget)
    except ValueError:
        raise InputError(f"--budget must be a number of tokens, not {shown(budget)}", hint="for example 8000") from None
