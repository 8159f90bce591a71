"""The tree of commands, built for one language and one call. Only the module of the called command is imported."""

import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from lamina import __version__
from lamina.cli.say import Say
from lamina.errors import ABSENT, LaminaError
from lamina.settings import load_settings, spoken
from lamina.text.messages import Phrase

MODULES = {
    "chat": "chat", "ask": "ask", "serve": "serve", "telegram": "serve", "context": "context", "config": "doctor",
    "rules": "context", "sessions": "sessions", "memory": "memory", "skills": "skills", "keys": "store",
    "store": "store", "worker": "serve", "trace": "sessions", "doctor": "doctor",
}  # fmt: skip
"""Commands in the order of the help, each with its module, in which a constant of its name declares it."""
LISTING_COMMANDS = {
    "memory": "lamina memory",
    "skills": "lamina skills",
    "keys": "lamina keys",
    "store": "lamina store jobs",
    "trace": "lamina sessions show ID --json",
}
"""What lists the things that a command takes by their names; for all others these are sessions."""


def run(arguments: list[str]) -> int:
    """Parse and run; the exit code is the error's."""
    lang, words = _take_language(arguments)
    say = Say(_default_language() if lang is None else lang)
    name = next((word for word in words if not word.startswith("-")), "")
    if not words or words[-1] in ("--help", name):
        _fold_help()
    if lang is not None:  # it may be anywhere; it is read by the tree's root
        words = ["--lang", lang, *words]
    try:
        command = _translate(typer.main.get_command(_build_tree(name)), say)
        result: object = command.main(args=words or ["--help"], prog_name="lamina", standalone_mode=False, obj=say)
    except SystemExit as stop:  # in this mode only a closed pipe ends the program from inside
        return 141 if stop.code == 1 else int(stop.code or 0)
    except LaminaError as error:
        _show_error(say, error.phrase, _next_step(error, name))
        return error.exit_code
    except Exception as error:
        format_message = getattr(error, "format_message", None)  # Typer's own errors: unknown option, missing value …
        if format_message is None:
            if type(error).__name__ == "Abort":
                return 130
            raise
        if text := str(format_message()):  # none where a family was called alone: its help says it all
            context = getattr(error, "ctx", None)  # where in the tree it was: `lamina memory forget`
            _show_error(say, text, f"{context.command_path if context else 'lamina'} --help")
        return getattr(error, "exit_code", 2)
    return result if isinstance(result, int) else 0


def _take_language(arguments: list[str]) -> tuple[str | None, list[str]]:
    """The value of `--lang`, which may be anywhere before a `--`, and the other words."""
    for number, argument in enumerate(arguments):
        if argument == "--":
            break
        if argument == "--lang" and number + 1 < len(arguments):
            return arguments[number + 1], [*arguments[:number], *arguments[number + 2 :]]
        if argument.startswith("--lang="):
            return argument.removeprefix("--lang="), [*arguments[:number], *arguments[number + 1 :]]
    return None, arguments


def _default_language() -> str:
    try:
        return load_settings().lang
    except LaminaError:  # the command itself reports broken settings
        return spoken()


def _fold_help() -> None:
    """Fold texts in the help: Chinese has no blanks to break a line at, and would be cut."""
    from typer import rich_utils

    class FoldingHighlighter(rich_utils.OptionHighlighter):
        def __call__(self, text: Any) -> Any:
            highlighted = super().__call__(text)
            highlighted.overflow = "fold"
            return highlighted

    rich_utils.highlighter = FoldingHighlighter()


def _next_step(error: LaminaError, name: str) -> Phrase:
    """The store says only that something is absent; the command line knows where to look for it."""
    if error.next_step.code != ABSENT:
        return error.next_step
    return Phrase("cli.listed", command=LISTING_COMMANDS.get(name, "lamina sessions"))


def _show_error(say: Say, message: Phrase | str, hint: Phrase | str) -> None:
    print(say("cli.error", text=say.render(message)), file=sys.stderr)
    if hint:
        print(say.next(hint), file=sys.stderr)


def _build_tree(called: str) -> typer.Typer:
    app = typer.Typer(help="cli.about", add_completion=False, no_args_is_help=True, rich_markup_mode="rich")

    def show_version(value: bool) -> None:
        if value:
            print(f"lamina {__version__}")
            raise typer.Exit

    def root(
        _version: Annotated[
            bool, typer.Option("--version", help="cli.opt.version", callback=show_version, metavar="")
        ] = False,
        lang: Annotated[str | None, typer.Option(help="cli.opt.lang", show_default=False)] = None,
    ) -> None:
        if lang is not None:
            from lamina.cli.call import check_choice

            check_choice("--lang", lang, ("en", "zh"))

    app.callback()(root)
    for name, module in MODULES.items():
        if name == called:
            getattr(import_module(f"lamina.cli.{module}"), name.upper()).add_to(app)
        else:  # its name and help are enough for the list of commands
            app.command(name, help=f"cli.{name}.help")(lambda: None)
    return app


def _translate(command: Any, say: Say) -> Any:
    """Help texts are declared as codes; here they become text."""
    for part in (command, *command.params):
        for name in ("help", "epilog"):
            if code := getattr(part, name, None):
                setattr(part, name, say(code))
    for inner in getattr(command, "commands", {}).values():
        _translate(inner, say)
    return command
