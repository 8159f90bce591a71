"""What the commands over a store have in common: whose, which store, asking, progress, tables and JSON."""

import asyncio
import io
import json
import sys
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import typer

from lamina.app.files import rules_missing
from lamina.app.interrupts import interruptible
from lamina.cli.texts import escaped, visible
from lamina.errors import InputError
from lamina.settings import Settings, load_settings
from lamina.settings.readers import read_store

T = TypeVar("T")
Say = dict[str, str]
SHORT = 8
"""Characters of an id in a table."""
LINE = 160
"""Characters of a text in a table."""


def option(say: Say, name: str, *flags: str, **more: Any) -> Any:
    return typer.Option(*flags, help=say[f"opt.{name}"], show_default=False, **more)


def flag(say: Say, name: str, *flags: str) -> Any:
    return option(say, name, *flags, metavar="")


def argument(say: Say, name: str, metavar: str, **more: Any) -> Any:
    return typer.Argument(help=say[f"arg.{name}"], metavar=metavar, show_default=False, **more)


def chosen(user: str | None, store: str | None, *, channel: str = "cli", **changes: Any) -> Settings:
    """The settings of a channel with what this call changes."""
    for name, value in (("--user", user), ("--store", store)):
        if value is not None and not value.strip():
            raise InputError(f"{name} is empty", hint="name it, or leave the option out")
    given = {"user": user, "store": None if store is None else read_store(store, "--store"), **changes}
    loaded = load_settings(channel=channel)
    origin = {**loaded.origin, "store": "--store"} if store else loaded.origin
    return replace(loaded, origin=origin, **{name: value for name, value in given.items() if value is not None})


def opened(settings: Settings, *, makes: bool = False, index: bool = False) -> Any:
    """The app over the store of these settings, for one command: nothing works in the background, and only what looks
    for memories needs their `index`.

    A store that somebody named is made only by what has something to keep in it (`makes`): to all others an empty one
    after a slip in the name would look as if everything were gone.
    """
    from lamina.app.app import App

    if not makes:
        check_store(settings)
    return App.open(settings=settings, work=False, index=index)


def check_store(settings: Settings) -> None:
    """A store that somebody named must be there already."""
    from lamina.app.upkeep import must_exist

    if "store" in settings.origin:
        must_exist(settings.store)


def warn_of_rules(say: Say, settings: Settings, workspace: Path | None = None) -> None:
    """Rules that a setting names and that are not there: without a word, only the answers would show the slip."""
    folder = workspace or (Path(settings.workspace) if settings.workspace else None)
    if folder and (missing := rules_missing(settings, folder)):
        what = say["rules_missing"].format(path=visible(missing))
        print(f"{say['warning']}{say['colon']}{what}", file=sys.stderr, flush=True)


def only_below(context: typer.Context, family: str, given: bool) -> bool:
    """Is this call the family's own? Options in front of one of its commands would be lost: they are refused."""
    if context.invoked_subcommand is None:
        return True
    if given:
        raise InputError(
            f"options of `{family}` stand before the command", hint=f"put them behind {context.invoked_subcommand}"
        )
    return False


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def show_json(value: object, *, line: bool = False) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=None if line else 2, default=plain)
    print(escaped(text), flush=line)


def plain(value: object) -> Any:
    """A record as JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return dict(value) if isinstance(value, Mapping) else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def confirm(say: Say, question: str, yes: bool) -> None:
    """Go on only after a clear yes; without somebody to ask, only with --yes."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison] -- a closed descriptor
        raise InputError(say["nobody"], hint=say["nobody.next"])
    with interruptible():  # before the question: who answers it with Ctrl-C at once is heard
        print(f"{visible(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
    if answer.strip().casefold() not in ("y", "yes", "是", "好"):
        print(say["unchanged"], file=sys.stderr)
        raise typer.Exit(1)


Step = Callable[[float, float | None, str], None]


@contextmanager
def progress(say: Say, what: str) -> Generator[Step, None, None]:
    """A bar on a terminal's error output, and nothing elsewhere. It gets what is done, of how much, and a word."""
    if not sys.stderr or not sys.stderr.isatty():
        yield lambda done, total, word: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Word(TextColumn):
        def render(self, task: Any) -> Text:
            return Text(str(task.description))

    columns = (SpinnerColumn(), Word(""), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(say[what], total=None)

        def step(done: float, total: float | None, word: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{say[what]} {visible(word)}".rstrip())

        yield step


def page(*parts: Any) -> None:
    """Show rich things: coloured on a terminal, without trailing blanks where nobody looks."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    text = io.StringIO()
    console = Console(highlight=False) if terminal else Console(highlight=False, file=text)
    console.width = max(40, console.width)
    for part in parts:
        console.print(part)
    for line in text.getvalue().split("\n")[:-1] if not terminal else ():
        print(line.rstrip())


def table(
    say: Say, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[str] = (),
    yields: Sequence[str] = (),
) -> Any:  # fmt: skip
    """A table without lines, the last column folded; where there is no room, those that yield are left out, in their
    order. A cell is text, which is made visible, or a rich text of one's own."""
    from rich.text import Text

    from lamina.cli.tables import Fitted

    cells = [[cell if isinstance(cell, Text) else Text(visible(str(cell))) for cell in row] for row in rows]
    return Fitted({name: say[f"col.{name}"] for name in columns}, cells, columns[-1:], right, yields)


def pairs(say: Say, rows: Mapping[str, object]) -> Any:
    """Names and values, one below the other; the names are texts of ours."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows.items():
        made.add_row(say[f"col.{name}"], value if isinstance(value, Text) else Text(visible(str(value))))
    return made


def styled(text: str, style: str) -> Any:
    from rich.text import Text

    return Text(visible(text), style=style)


def one_line(text: str, most: int = LINE) -> str:
    line = " ".join(text.split())
    return f"{line[: most - 1]}…" if len(line) > most else line


def day(stamp: float | None) -> str:
    """A time as people here read it."""
    try:
        return "—" if stamp is None else datetime.fromtimestamp(stamp).astimezone().strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):  # a row from elsewhere with a time beyond any calendar
        return "—"


def size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def tell(say: Say, name: str, /, **values: object) -> None:
    """One sentence, with what comes from outside made visible."""
    print(say[name].format(**{n: visible(str(v)) for n, v in values.items()}))


def tell_none(say: Say, name: str, settings: Settings, /, **values: object) -> None:
    """That there is nothing of the kind, and in which store it was looked for."""
    from lamina.app.upkeep import masked

    sentence = say[name].format(user=visible(settings.user), **{n: visible(str(v)) for n, v in values.items()})
    print(sentence + say["in_store"].format(store=visible(masked(settings.store))))
