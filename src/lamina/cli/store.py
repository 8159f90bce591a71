"""`lamina store` and `lamina keys`: what is in the store, backup, verify, export, import, reindex, and the jobs that
failed; who may use the gateway. A key is shown when it is created, and never again."""

import re
import sys
import time
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.app import store_admin
from lamina.app.app import App
from lamina.app.lookup import find_id
from lamina.app.store_admin import STDIO, open_existing
from lamina.cli.call import Call, Commands, Json, Yes, argument, check_choice, flag, option, show_json
from lamina.cli.say import Say, escape_json
from lamina.cli.view import details, format_size, format_time, one_line, page, short_id, styled, table
from lamina.errors import InputError, format_value
from lamina.records import ApiKey
from lamina.text.messages import Phrase

STORE = Commands("store")
KEYS = Commands("keys")
WHOLE_STORE = ("store",)
"""Commands about the whole store have no `--user`."""
SCOPES = ("chat", "read", "write", "metrics")
DEFAULT_SCOPES = ("chat", "read", "write")
UNIT_SECONDS = {"m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
LEAST_ID_CHARACTERS = 4
STATE_COLOURS = {"usable": "green", "revoked": "red", "expired": "yellow"}


@STORE.listing()
async def show_store(call: Call, as_json: Json = False) -> None:
    say, settings = call.say, call.settings
    async with open_existing(settings.store) as opened:
        info = await store_admin.info(opened, settings.store, settings.user)
        parked = await store_admin.parked_jobs(opened, settings.user)
    if as_json:
        show_json({"user": settings.user, "info": info, "parked": parked})
        return
    sizes = say.join(say(f"cli.size.{name}", size=format_size(count)) for name, count in info.sizes.items())
    jobs = say.join(say(f"cli.job.{name}", count=count) for name, count in info.jobs.items())
    rows: dict[str, object] = {"where": info.where, "store": info.kind, "version": info.version, "sizes": sizes}
    rows |= {"owners": f"{info.owners:,}", "user": settings.user}
    rows |= {name: f"{count:,}" for name, count in info.counts.items()}
    rows["jobs"] = styled(jobs, "bold red") if parked else jobs
    page(details(say, rows))
    if parked:
        call.tell("cli.store.parked", count=info.jobs["parked"])
    if not info.searches_all:
        call.warn("cli.search.index_rebuilding")


@STORE.command("backup", shared=WHOLE_STORE)
async def backup(call: Call, path: Annotated[Path, argument("backup", "PATH")]) -> None:
    async with open_existing(call.settings.store) as opened:
        with call.progress("cli.progress.copying") as step:
            copied, problems = await store_admin.backup(opened, path, lambda done, total: step(done, total, ""))
    call.tell("cli.store.copied", path=str(path), size=format_size(copied))
    if "rows" in problems:
        call.warn("cli.store.copy_damaged")
    if problems - {"rows"}:
        call.warn("cli.store.index_left_out")


@STORE.command("verify", shared=WHOLE_STORE)
async def verify(call: Call, as_json: Json = False) -> None:
    async with open_existing(call.settings.store) as opened:
        with call.progress("cli.progress.checking") as step:
            problems = list(await opened.admin.verify(lambda done, total: step(done, total, "")))
            searches_all = await opened.admin.searches_all()
    if as_json:
        details = [line.text() for problem in problems for line in problem.details]
        show_json({"problems": [problem.text for problem in problems], "details": details, "complete": searches_all})
    else:
        for problem in problems:
            print(call.say.render(problem.phrase))
        call.tell("cli.faults" if problems else "cli.store.well", count=len(problems))
        if any(problem.part == "rows" for problem in problems):
            print(f"→ {call.say('cli.doctor.rows')}")
        if not problems and not searches_all:
            call.warn("cli.search.index_rebuilding")
    if problems:
        raise typer.Exit(1)


class _ExportOutput:
    """The standard output for the lines of an export; a terminal gets nothing that it would obey."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()

    def write(self, text: str) -> int:
        return sys.stdout.write(escape_json(text) if self._terminal else text)


@STORE.command("export")
async def export(
    call: Call,
    target: Annotated[str, argument("target", "FILE")] = STDIO,
    everybody: Annotated[bool, flag("everybody", "--all")] = False,
) -> None:
    owner = None if everybody else call.user
    async with open_existing(call.settings.store) as opened:
        if target == STDIO:
            await store_admin.export(opened, owner, _ExportOutput())
            return
        with call.progress("cli.progress.copying"):
            count = await store_admin.export_to(opened, owner, Path(target))
    call.tell("cli.store.exported", count=count, path=target)


@STORE.command("import", shared=WHOLE_STORE)
async def import_rows(
    call: Call,
    source: Annotated[str, argument("export", "FILE")],
    user: Annotated[str | None, option("to_user", "--user")] = None,
) -> None:
    call.user_option = user
    async with App.open(settings=call.settings, work=False, index=False) as app:
        with call.progress("cli.progress.reading") as step:
            lines = 0

            def next_line() -> None:
                nonlocal lines
                lines += 1
                if lines % 1_000 == 0:
                    step(lines, None, f"{lines:,}")

            count = await store_admin.import_lines(app.store, source, user, next_line)
    call.tell("cli.store.imported", count=count)


@STORE.command("reindex", shared=WHOLE_STORE)
async def reindex(call: Call) -> None:
    store_admin.check_exists(call.settings.store)
    async with App.open(settings=call.settings, work=False) as app:
        with call.progress("cli.progress.indexing") as step:
            messages, memories = await store_admin.reindex(app, lambda owner, done, total: step(done, total, owner))
    call.tell("cli.store.indexed", messages=messages, memories=memories)


@STORE.command("jobs")
async def jobs(call: Call, as_json: Json = False) -> None:
    async with open_existing(call.settings.store) as opened:
        found = await store_admin.parked_jobs(opened, call.user)
    if as_json:
        show_json(found)
    elif not found:
        call.tell("cli.jobs.none", user=call.user)
    else:
        rows: list[list[Any]] = []
        for job in found:
            error = styled(one_line(call.say.render(Phrase.load(job.error)), 400), "red")
            rows.append(
                [styled(short_id(job.job_id), "cyan"), job.kind, f"{job.attempts}", format_time(job.updated), error]
            )
        columns, yields = ("id", "kind", "attempts", "when", "error"), ("attempts", "when", "kind")
        page(table(call.say, columns, rows, right=("attempts",), yields=yields))


@STORE.command("retry")
async def retry(call: Call, name: Annotated[str, argument("job", "JOB")]) -> None:
    async with open_existing(call.settings.store) as opened:
        job = await opened.jobs.unpark(call.user, await find_id(opened, call.user, "job", name))
    call.tell("cli.jobs.again", id=short_id(job.job_id))


def _key_to_dict(key: ApiKey) -> dict[str, Any]:
    return {name: getattr(key, name) for name in ApiKey.__slots__} | {
        "scopes": list(key.scopes),
        "state": _key_state(key),
    }


def _key_state(key: ApiKey) -> str:
    return "revoked" if key.revoked is not None else "usable" if key.usable(time.time()) else "expired"


@KEYS.listing()
async def list_keys(call: Call, as_json: Json = False) -> None:
    async with call.open() as app:
        found = await app.store.keys.list(call.user)
    if as_json:
        show_json([_key_to_dict(key) for key in found])
    elif not found:
        call.tell_none("cli.keys.none")
    else:
        columns = ("id", "name", "scopes", "limits", "expires", "used", "key_state")
        rows = [_key_row(call.say, key) for key in found]
        page(table(call.say, columns, rows, yields=("limits", "used", "expires", "scopes")))


def _key_row(say: Say, key: ApiKey) -> list[Any]:
    state = _key_state(key)
    limits = [say("cli.keys.rate", number=key.rate)] if key.rate else []
    limits += [say("cli.keys.tokens", number=key.tokens)] if key.tokens else []
    names = [one_line(key.name, 24), " ".join(key.scopes), say.join(limits) or "—"]
    times = [format_time(key.expires), format_time(key.used)]
    shown_state = styled(say(f"cli.keys.state.{state}"), STATE_COLOURS[state])
    return [styled(short_id(key.key_id), "cyan"), *names, *times, shown_state]


@KEYS.command("new", examples=True)
async def new(
    call: Call,
    name: Annotated[str | None, option("key_name", "--name")] = None,
    scope: Annotated[list[str] | None, option("scope", "--scope")] = None,
    rate: Annotated[int, option("rate", "--rate", least=0, most=10**9)] = 0,
    tokens: Annotated[int, option("tokens", "--tokens", least=0, most=10**15)] = 0,
    expires: Annotated[str | None, option("expires", "--expires")] = None,
    as_json: Json = False,
) -> None:
    for each in scope or ():
        check_choice("--scope", each, SCOPES)
    scopes = tuple(each for each in SCOPES if each in (scope or DEFAULT_SCOPES))
    until = None if expires is None else time.time() + _parse_duration(expires)
    if name is not None and not name.strip():
        raise InputError("option.empty", option="--name")
    async with call.open(makes=True) as app:
        used = {key.name for key in await app.store.keys.list(call.user)}
        named = next(free for number in count(1) if (free := f"key-{number}") not in used) if name is None else name
        key, text = await app.store.keys.add(
            call.user, named.strip(), scopes=scopes, rate=rate, tokens=tokens, expires=until
        )
    if as_json:
        show_json(_key_to_dict(key) | {"key": text})
        return
    call.tell("cli.keys.made", id=key.key_id, user=key.owner)
    print(text)


def _parse_duration(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,6})([mhdw])", text.strip())
    if not found or not int(found[1]):
        raise InputError("option.bad_duration", option="--expires", value=format_value(text))
    return int(found[1]) * UNIT_SECONDS[found[2]]


@KEYS.command("revoke")
async def revoke(
    call: Call, key: Annotated[str, argument("key", "ID")], yes: Yes = False, as_json: Json = False
) -> None:
    async with call.open() as app:
        known = {each.key_id: each for each in await app.store.keys.list(call.user)}
        key_id = _complete_id(key, list(known))
        if key_id in known:
            call.confirm(call.say("cli.keys.sure", id=short_id(key_id), name=one_line(known[key_id].name)), yes)
        gone = await app.store.keys.revoke(call.user, key_id)
    call.reply(as_json, _key_to_dict(gone), "cli.keys.revoked", id=gone.key_id, name=gone.name)


def _complete_id(begin: str, known: list[str]) -> str:
    """The one id that begins so; if there is none, the store says so."""
    found = [key_id for key_id in known if key_id.startswith(begin)] if len(begin) >= LEAST_ID_CHARACTERS else []
    if len(found) > 1:
        raise InputError("key.ambiguous", id=format_value(begin))
    return found[0] if found else begin
