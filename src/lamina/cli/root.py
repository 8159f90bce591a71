"""The tree of commands, built for one language and one call. Only the module of the called command is imported."""

import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from lamina import __version__
from lamina.cli.say import Say
from lamina.errors import ABSENT, LaminaError
from lamina.settings import detect_language, load_settings
from lamina.text.messages import Phrase

MODULES = (
    "chat", "ask", "serve", "telegram", "context", "config", "rules", "sessions", "memory", "skills", "keys", "store",
    "worker", "trace", "doctor",
)  # fmt: skip
"""Commands in the order of the help, each in a module of its name whose `COMMANDS` declares it."""
LISTING_COMMANDS = {
    "memory": "lamina memory",
    "skills": "lamina skills",
    "keys": "lamina keys",
    "store": "lamina store jobs",
    "trace": "lamina sessions show ID --json",
}
"""What lists the things that the commands of a module take by their names; for all others these are sessions."""


def run(arguments: list[str]) -> int:
    """Parse and run; the exit code is the error's."""
    say = Say(_language(arguments))
    arguments = _language_first(arguments)
    module = _module(arguments)
    if not arguments or arguments[-1] in ("--help", module):
        _fold_help()
    try:
        command = _translate(typer.main.get_command(_tree(module)), say)
        result: object = command.main(args=arguments or ["--help"], prog_name="lamina", standalone_mode=False, obj=say)
    except SystemExit as stop:  # in this mode only a closed pipe ends the program from inside
        return 141 if stop.code == 1 else int(stop.code or 0)
    except LaminaError as error:
        _show(say, error.phrase, _next_step(error, module))
        return error.exit_code
    except Exception as error:
        format_message = getattr(error, "format_message", None)  # Typer's own errors: unknown option, missing value …
        if format_message is None:
            if type(error).__name__ == "Abort":
                return 130
            raise
        if text := str(format_message()):  # none where a family was called alone: its help says it all
            context = getattr(error, "ctx", None)  # where in the tree it was: `lamina memory forget`
            _show(say, text, f"{context.command_path if context else 'lamina'} --help")
        return getattr(error, "exit_code", 2)
    return result if isinstance(result, int) else 0


def _fold_help() -> None:
    """Fold texts in the help: Chinese has no blanks to break a line at, and would be cut."""
    from typer import rich_utils

    class Folding(rich_utils.OptionHighlighter):
        def __call__(self, text: Any) -> Any:
            made = super().__call__(text)
            made.overflow = "fold"
            return made

    rich_utils.highlighter = Folding()


def _module(arguments: list[str]) -> str:
    """The first word of the call, where it names a module with commands; `--lang zh` may come before it."""
    words = arguments[2:] if arguments[:1] == ["--lang"] else arguments
    first = next((word for word in words if not word.startswith("-")), "")
    return first if first in MODULES else ""


def _next_step(error: LaminaError, module: str) -> Phrase:
    """The store says only that something is absent; the command line knows where to look for it."""
    if error.next_step.code != ABSENT:
        return error.next_step
    return Phrase("cli.listed", command=LISTING_COMMANDS.get(module, "lamina sessions"))


def _show(say: Say, message: Phrase | str, hint: Phrase | str) -> None:
    print(say("cli.error", text=say.render(message)), file=sys.stderr)
    if hint:
        print(say.next(hint), file=sys.stderr)


def _language(arguments: list[str]) -> str:
    """`--lang` anywhere, else the settings; broken settings are reported by the command itself."""
    for number, argument in enumerate(arguments):
        if argument == "--lang" and number + 1 < len(arguments):
            return arguments[number + 1]
        if argument.startswith("--lang="):
            return argument.removeprefix("--lang=")
    try:
        return load_settings().lang
    except LaminaError:
        return detect_language()


def _language_first(arguments: list[str]) -> list[str]:
    """`--lang zh` may be anywhere; it is read by the tree's root."""
    for number, argument in enumerate(arguments):
        if argument == "--lang" and number + 1 < len(arguments):
            return [*arguments[number : number + 2], *arguments[:number], *arguments[number + 2 :]]
        if argument.startswith("--lang="):
            return [argument, *arguments[:number], *arguments[number + 1 :]]
    return arguments


def _tree(module: str = "") -> typer.Typer:
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
    for name in MODULES:
        if name == module:
            import_module(f"lamina.cli.{name}").COMMANDS.add_to(app)
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
