"""The tree of commands, built for one language and one call: of the families only the one that is called."""

import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from lamina import __version__
from lamina.cli.config import add_config
from lamina.cli.context import add_context, check_lang_option
from lamina.cli.rules import add_rules
from lamina.cli.texts import FAMILIES, texts, visible
from lamina.cli.texts_errors import error_in
from lamina.errors import ABSENT, LaminaError
from lamina.settings import load_settings, spoken

LISTS = {
    "memory": "lamina memory",
    "skills": "lamina skills",
    "keys": "lamina keys",
    "store": "lamina store jobs",
    "trace": "lamina sessions show ID --json",
}
"""What lists the things that a family of commands takes by their names; for all others they are sessions."""


def run(arguments: list[str]) -> int:
    """Parse and run; the exit code is the error's."""
    say = texts(_language(arguments))
    arguments = _language_first(arguments)
    if not arguments or arguments[-1] in ("--help", _family(arguments)):
        _fold_help()
    try:
        command = typer.main.get_command(_tree(say, _family(arguments)))
        result: object = command.main(args=arguments or ["--help"], prog_name="lamina", standalone_mode=False)
    except SystemExit as stop:  # in this mode only a closed pipe ends the program from inside
        return 141 if stop.code == 1 else int(stop.code or 0)
    except LaminaError as error:
        _show(say, error.message, _next(say, error.hint, _family(arguments)))
        return error.exit_code
    except Exception as error:
        shown = getattr(error, "format_message", None)  # typer's own errors: unknown option, missing value …
        if shown is None:
            if type(error).__name__ == "Abort":
                return 130
            raise
        if words := str(shown()):  # none where a family was called alone: its help says it all
            context = getattr(error, "ctx", None)  # where in the tree it was: `lamina memory forget`
            _show(say, words, f"{context.command_path if context else 'lamina'} --help")
        return getattr(error, "exit_code", 2)
    return result if isinstance(result, int) else 0


def _fold_help() -> None:
    """Texts in the help are folded: Chinese has no blanks to break a line at, and would be cut."""
    from typer import rich_utils

    class Folding(rich_utils.OptionHighlighter):
        def __call__(self, text: Any) -> Any:
            made = super().__call__(text)
            made.overflow = "fold"
            return made

    rich_utils.highlighter = Folding()


def _family(arguments: list[str]) -> str:
    """The first word of the call, where it names commands of their own; `--lang zh` may stand before it."""
    words = arguments[2:] if arguments[:1] == ["--lang"] else arguments
    first = next((word for word in words if not word.startswith("-")), "")
    return first if first in (*FAMILIES, "rules") else ""


def _next(say: dict[str, str], hint: str, family: str) -> str:
    """What the store says to everybody is no next step: here it is known where to look."""
    if hint != ABSENT:
        return hint
    listed = say["listed"].format(command=LISTS.get(family, "lamina sessions"))
    return f"{error_in(say['lang'], hint)}{say['semicolon']}{listed}"


def _show(say: dict[str, str], message: str, hint: str) -> None:
    print(f"{say['error']}{say['colon']}{visible(error_in(say['lang'], message))}", file=sys.stderr)
    if hint:
        print(f"{say['next']}{say['colon']}{visible(error_in(say['lang'], hint))}", file=sys.stderr)


def _language(arguments: list[str]) -> str:
    """`--lang` wherever it stands, else the settings; broken settings are reported by the command itself."""
    for number, argument in enumerate(arguments):
        if argument == "--lang" and number + 1 < len(arguments):
            return arguments[number + 1]
        if argument.startswith("--lang="):
            return argument.removeprefix("--lang=")
    try:
        return load_settings().lang
    except LaminaError:
        return spoken()


def _language_first(arguments: list[str]) -> list[str]:
    """`--lang zh` may stand anywhere; it is read by the tree's root."""
    for number, argument in enumerate(arguments):
        if argument == "--lang" and number + 1 < len(arguments):
            return [*arguments[number : number + 2], *arguments[:number], *arguments[number + 2 :]]
        if argument.startswith("--lang="):
            return [argument, *arguments[:number], *arguments[number + 1 :]]
    return arguments


def _tree(say: dict[str, str], family: str = "") -> typer.Typer:
    app = typer.Typer(help=say["about"], add_completion=False, no_args_is_help=True, rich_markup_mode="rich")

    def version(value: bool) -> None:
        if value:
            print(f"lamina {__version__}")
            raise typer.Exit

    def root(
        _version: Annotated[
            bool, typer.Option("--version", help=say["opt.version"], callback=version, metavar="")
        ] = False,
        lang: Annotated[str | None, typer.Option(help=say["opt.lang"], show_default=False)] = None,
    ) -> None:
        check_lang_option(lang)

    app.callback()(root)
    for name in FAMILIES:
        if name == "sessions":  # the order in which they are listed: talking first
            add_context(app, say)
            add_config(app, say)
            add_rules(app, say)
        if name == family:
            getattr(import_module(f"lamina.cli.{name}"), f"add_{name}")(app, say)
        else:  # its name and help are enough for the list of commands
            app.command(name, help=say[f"{name}.help"])(lambda: None)
    return app
