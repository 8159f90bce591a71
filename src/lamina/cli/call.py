"""One call of a command: its language, whose data and which store it is about, and how commands are declared.

A command is a function of its module whose first argument is the `Call`. Help texts are codes, which `root` renders in
the reader's language, and `--user` and `--store` are declared here, once for all commands.
"""

import asyncio
import inspect
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar, cast

import typer

from lamina.cli.say import Say, escape_json, visible
from lamina.errors import InputError, format_value
from lamina.portable import handle_signal
from lamina.settings import Settings, load_settings
from lamina.settings.readers import read_store
from lamina.text.messages import Phrase, Value

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])
YES = ("y", "yes", "是", "好")
MODES = ("agent", "plan", "ask")
MAX_LINE_BYTES = 4 * 1024 * 1024
TERMINATED = 143
"""The exit code after SIGTERM."""


def option(
    name: str, *flags: str, metavar: str | None = None, least: int | None = None, most: int | None = None
) -> Any:
    return typer.Option(*flags, help=f"cli.opt.{name}", show_default=False, metavar=metavar, min=least, max=most)


def flag(name: str, *flags: str) -> Any:
    return option(name, *flags, metavar="")


def argument(name: str, metavar: str | None = None, *, least: int | None = None) -> Any:
    return typer.Argument(help=f"cli.arg.{name}", metavar=metavar, show_default=False, min=least)


Json = Annotated[bool, flag("as_json", "--json")]
Yes = Annotated[bool, flag("yes", "--yes", "-y")]
Mode = Annotated[str | None, option("mode")]
Model = Annotated[str | None, option("model")]
ChatFolder = Annotated[Path | None, option("chat.workspace", "--workspace")]
Verbose = Annotated[bool, flag("chat.verbose", "--verbose")]
SHARED = {"user": Annotated[str | None, option("user")], "store": Annotated[str | None, option("store")]}
STORED = ("user", "store")


@dataclass(slots=True)
class Call:
    """What a command knows about its call, and how it answers."""

    say: Say
    user_option: str | None = None
    store_option: str | None = None
    lang_option: str | None = None
    _settings: Settings | None = field(default=None, init=False)

    def choose(self, *, channel: str = "cli", **changes: str | None) -> Settings:
        """The settings of a channel with what this call changes. From now on they are those of the call."""
        for name, value in (("--user", self.user_option), ("--store", self.store_option)):
            if value is not None and not value.strip():
                raise InputError("option.empty", option=name)
        store = None if self.store_option is None else read_store(self.store_option, "--store")
        given = {"user": self.user_option, "store": store, **changes}
        loaded = load_settings(channel=channel)
        origin = {**loaded.origin, "store": "--store"} if self.store_option else loaded.origin
        changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        self._settings = replace(loaded, origin=origin, **changed)
        return self._settings

    def choose_for_chat(self, model: str | None, folder: Path | None, mode: str | None, *, verbose: bool) -> None:
        """The settings of a chat; `verbose` shows the log."""
        from lamina.app.config import with_model

        check_choice("--mode", mode, MODES)
        if verbose:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
            logging.getLogger("lamina").addHandler(handler)
            logging.getLogger("lamina").setLevel(logging.INFO)
        self.settings = with_model(self.choose(workspace=str(folder) if folder else None), model)
        self.use_folder()

    def use_folder(self) -> None:
        """Change the settings to those of a chat: without a workspace the current folder is it, and there are tools
        unless a setting says no."""
        from lamina.app.config import check_files

        logging.getLogger("lamina").addHandler(logging.NullHandler())  # the log is for operators; people see the events
        settings = self.settings
        folder = settings.workspace or os.getcwd()
        if not os.path.isdir(folder):
            code = "workspace.not_a_folder" if os.path.lexists(folder) else "workspace.missing"
            raise InputError(code, path=repr(folder))
        tools = settings.tools if "tools" in settings.origin else True
        self.settings = replace(settings, workspace=folder, tools=tools)
        check_files(self.settings)

    @property
    def settings(self) -> Settings:
        return self._settings or self.choose()

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self._settings = settings

    @property
    def user(self) -> str:
        return self.settings.user

    def open(self, *, makes: bool = False, index: bool = False) -> Any:
        """The app over the store, for one command: nothing works in the background, and only a search for memories
        needs their `index`.

        A store that was named is created only by a command that has something to store in it (`makes`): for all
        others an empty one after a mistake in the name would look as if everything were gone.
        """
        from lamina.app.app import App

        if not makes:
            self.check_store()
        return App.open(settings=self.settings, work=False, index=index)

    def check_store(self) -> None:
        """A store that was named must exist already."""
        from lamina.app.store_admin import check_exists

        if "store" in self.settings.origin:
            check_exists(self.settings.store)

    def tell(self, code: str, /, **values: Value) -> None:
        print(self.say(code, **values))

    def tell_none(self, code: str, /, **values: Value) -> None:
        """That there is nothing of the kind, and in which store it was looked for."""
        from lamina.app.store_admin import hide_password

        what = Phrase(code, user=self.user, **values)
        self.tell("cli.none_in_store", what=what, store=hide_password(self.settings.store))

    def reply(self, as_json: bool, value: object, code: str, /, **values: Value) -> None:
        """The result of a command: the value as JSON, or a line about it."""
        if as_json:
            show_json(value)
        else:
            self.tell(code, **values)

    def report(self, code: str, /, **values: Value) -> None:
        """A line on the error output."""
        print(self.say(code, **values), file=sys.stderr, flush=True)

    def warn(self, code: str, /, **values: Value) -> None:
        self.report("cli.warning", text=self.say(code, **values))

    def warn_of_rules(self, folder: Path | None = None, *, by_session: bool = False) -> None:
        """Warn of rules that a setting names and that do not exist: otherwise only the answers would show the mistake.
        Not where each session says so itself, as there are no other rules (`by_session`)."""
        from lamina.app.config import rules_missing

        settings = self.settings
        workspace = folder or (Path(settings.workspace) if settings.workspace else None)
        if workspace and (missing := rules_missing(settings, workspace, others=by_session)):
            self.warn("cli.rules.missing", path=missing)

    def confirm(self, question: str, yes: bool) -> None:
        """Continue only after a clear yes; without a terminal only with --yes."""
        from lamina.app.store_admin import allow_interrupt

        if yes:
            return
        if sys.stdin is None or not sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison] -- a closed descriptor
            raise InputError("input.cannot_confirm")
        with allow_interrupt():  # before the question, so that an immediate Ctrl-C is heard
            print(f"{visible(question)} [y/N] ", end="", file=sys.stderr, flush=True)
            answer = sys.stdin.readline()
        if answer.strip().casefold() not in YES:
            self.report("cli.unchanged")
            raise typer.Exit(1)

    @contextmanager
    def progress(self, code: str) -> Generator[Callable[[float, float | None, str], None], None, None]:
        """A bar on a terminal's error output, and nothing elsewhere. It gets what is done, of how much, and a word."""
        if not sys.stderr or not sys.stderr.isatty():
            yield lambda done, total, word: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        text, percentage = TextColumn("{task.description}", markup=False), TextColumn("{task.percentage:>3.0f}%")
        columns = (SpinnerColumn(), text, BarColumn(), percentage, TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            what = self.say(code)
            task = bar.add_task(what, total=None)

            def step(done: float, total: float | None, word: str) -> None:
                bar.update(task, completed=done, total=total, description=f"{what} {visible(word)}".rstrip())

            yield step


def check_choice(option: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise InputError("option.unknown_choice", option=option, value=format_value(value), choices=choices)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command. The log of the store is for operators and is shown where a command sets up a log; people read
    messages in their own language."""
    logging.getLogger("lamina.store").addHandler(logging.NullHandler())
    return asyncio.run(work)


def run_until_terminated(work: Coroutine[Any, Any, int]) -> None:
    """Run a chat and exit with its code. SIGTERM ends it in order: the turn is stored, the terminal is as it was."""

    async def cancel_on_sigterm() -> int:
        task = asyncio.current_task()
        assert task is not None
        handle_signal(asyncio.get_running_loop(), signal.SIGTERM, task.cancel)
        return await work

    try:
        code = run(cancel_on_sigterm())
    except asyncio.CancelledError:
        code = TERMINATED
    if code:
        raise typer.Exit(code)


def read_lines(source: BinaryIO) -> Iterator[str]:
    """The lines of an input, without those that are empty."""
    for number, raw in enumerate(iter(lambda: source.readline(MAX_LINE_BYTES + 1), b""), 1):
        if len(raw) > MAX_LINE_BYTES:
            raise InputError("input.line_too_long", line=number, limit=MAX_LINE_BYTES)
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            byte = f"0x{raw[error.start]:02x}"
            raise InputError("input.line_not_utf8", line=number, position=error.start, byte=byte) from None
        if line:
            yield line


def show_json(value: object, *, line: bool = False) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=None if line else 2, default=to_plain)
    print(escape_json(text), flush=line)


def to_plain(value: object) -> Any:
    """A record as JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return dict(value) if isinstance(value, Mapping) else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


class Commands:
    """The commands of one module: a family such as `lamina sessions new`, or a single command of the same name."""

    def __init__(self, name: str, *, examples: bool = False) -> None:
        self.name = name
        self._epilog = f"cli.{name}.examples" if examples else None
        self._single: Callable[..., None] | None = None
        self._typer = typer.Typer(no_args_is_help=True)

    def single(self, *, shared: Sequence[str] = STORED) -> Callable[[Function], Function]:
        """The module's only command."""

        def add(function: Function) -> Function:
            self._single = self._command(function, shared)
            return function

        return add

    def listing(self, *, shared: Sequence[str] = STORED) -> Callable[[Function], Function]:
        """What the family does without a command, and as `list`."""

        def add(function: Function) -> Function:
            wrapped = self._command(function, shared)
            self._typer = typer.Typer(no_args_is_help=False, invoke_without_command=True)
            self._typer.callback()(wrapped)
            self._typer.command("list", hidden=True)(wrapped)
            return function

        return add

    def command(
        self, name: str, *, shared: Sequence[str] = STORED, examples: bool = False
    ) -> Callable[[Function], Function]:
        """A command with the shared options that it has: `--user` and `--store` unless others are named."""

        def add(function: Function) -> Function:
            epilog = f"cli.{self.name}.{name}.examples" if examples else None
            wrapped = self._command(function, shared)
            self._typer.command(name, help=f"cli.{self.name}.{name}", epilog=epilog)(wrapped)
            return function

        return add

    def add_to(self, app: typer.Typer) -> None:
        if self._single:
            app.command(self.name, help=f"cli.{self.name}.help", epilog=self._epilog)(self._single)
        else:
            app.add_typer(self._typer, name=self.name, help=f"cli.{self.name}.help")

    def _command(self, function: Callable[..., Any], shared: Sequence[str]) -> Callable[..., None]:
        """The function as Typer calls it: with the shared options, and without the `call`."""

        def command(typer_context: typer.Context, **given: object) -> None:  # Typer checks them by the signature below
            if typer_context.invoked_subcommand is not None:  # options before a command of the family would be lost
                if any(_on_command_line(typer_context, name) for name in given):
                    raise InputError("option.misplaced", family=self.name, command=typer_context.invoked_subcommand)
                return
            options = {f"{name}_option": cast("str | None", given.pop(name)) for name in shared}
            lang = typer_context.find_root().params.get("lang")
            result = function(Call(typer_context.obj, lang_option=lang, **options), **given)
            if inspect.iscoroutine(result):
                run(result)

        own = list(inspect.signature(function).parameters.values())[1:]
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("typer_context", kind, annotation=typer.Context),
            *(parameter.replace(kind=kind) for parameter in own),
            *(inspect.Parameter(n, kind, default=None, annotation=SHARED[n]) for n in shared),
        ]
        command.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command


def _on_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
