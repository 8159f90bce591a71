"""The tree of commands, built for one language and one call."""

import sys
from typing import Annotated

import typer

from lamina import __version__
from lamina.cli.config import add_config
from lamina.cli.context import add_context, check_lang_option
from lamina.cli.rules import add_rules
from lamina.cli.texts import texts, visible
from lamina.errors import LaminaError
from lamina.settings import load_settings


def run(arguments: list[str]) -> int:
    """Parse and run; the exit code is the error's."""
    say = texts(_language(arguments))
    arguments = _language_first(arguments)
    try:
        command = typer.main.get_command(_tree(say))
        result: object = command.main(args=arguments or ["--help"], prog_name="lamina", standalone_mode=False)
    except SystemExit as stop:  # in this mode only a closed pipe ends the program from inside
        return 141 if stop.code == 1 else int(stop.code or 0)
    except LaminaError as error:
        _show(say, error.message, error.hint)
        return error.exit_code
    except Exception as error:
        shown = getattr(error, "format_message", None)  # typer's own errors: unknown option, missing value …
        if shown is None:
            if type(error).__name__ == "Abort":
                return 130
            raise
        within = "rules " if arguments[-1:] != ["rules"] and "rules" in arguments[:3] else ""
        _show(say, str(shown()), f"lamina {within}--help")
        return getattr(error, "exit_code", 2)
    return result if isinstance(result, int) else 0


def _show(say: dict[str, str], message: str, hint: str) -> None:
    print(f"{say['error']}{say['colon']}{visible(message)}", file=sys.stderr)
    if hint:
        print(f"{say['next']}{say['colon']}{visible(hint)}", file=sys.stderr)


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
        return "en"


def _language_first(arguments: list[str]) -> list[str]:
    """`--lang zh` may stand anywhere; it is read by the tree's root."""
    for number, argument in enumerate(arguments):
        if argument == "--lang" and number + 1 < len(arguments):
            return [*arguments[number : number + 2], *arguments[:number], *arguments[number + 2 :]]
        if argument.startswith("--lang="):
            return [argument, *arguments[:number], *arguments[number + 1 :]]
    return arguments


def _tree(say: dict[str, str]) -> typer.Typer:
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
    add_context(app, say)
    add_config(app, say)
    add_rules(app, say)
    return app
