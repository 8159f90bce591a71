"""`lamina store`: what is in it, backup, verify, export, import, reindex, and the jobs that failed."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from lamina.app import store_admin
from lamina.app.app import App
from lamina.app.lookup import whole_id
from lamina.app.store_admin import STDIO, open_only
from lamina.cli.call import Call, Commands, Json, argument, flag, option, show_json
from lamina.cli.common import format_size, format_time, one_line, page, pairs, short_id, styled, table
from lamina.cli.say import escape_json
from lamina.text.messages import Phrase

COMMANDS = Commands("store")
WHOLE_STORE = ("store",)
"""Commands about the whole store have no `--user`."""


@COMMANDS.listing()
async def show_store(call: Call, as_json: Json = False) -> None:
    say, settings = call.say, call.settings
    async with open_only(settings.store) as opened:
        info = await store_admin.info(opened, settings.store, settings.user)
        parked = await store_admin.parked_jobs(opened, settings.user)
    if as_json:
        show_json({"user": settings.user, "info": info, "parked": parked})
        return
    sizes = ", ".join(say(f"cli.size.{name}", size=format_size(count)) for name, count in info.sizes.items())
    jobs = ", ".join(say(f"cli.job.{name}", count=count) for name, count in info.jobs.items())
    rows: dict[str, object] = {"where": info.where, "store": info.kind, "version": info.version, "sizes": sizes}
    rows |= {"owners": f"{info.owners:,}", "user": settings.user}
    rows |= {name: f"{count:,}" for name, count in info.counts.items()}
    rows["jobs"] = styled(jobs, "bold red") if parked else jobs
    page(pairs(say, rows))
    if parked:
        call.tell("cli.store.parked", count=info.jobs["parked"])
    if not info.searches_all:
        call.warn("cli.search.index_rebuilding")


@COMMANDS.command("backup", shared=WHOLE_STORE)
async def backup(call: Call, path: Annotated[Path, argument("backup", "PATH")]) -> None:
    async with open_only(call.settings.store) as opened:
        with call.progress("cli.progress.copying") as step:
            copied, problems = await store_admin.backup(opened, path, lambda done, total: step(done, total, ""))
    call.tell("cli.store.copied", path=str(path), size=format_size(copied))
    if "rows" in problems:
        call.warn("cli.store.copy_damaged")
    if problems - {"rows"}:
        call.warn("cli.store.index_left_out")


@COMMANDS.command("verify", shared=WHOLE_STORE)
async def verify(call: Call, as_json: Json = False) -> None:
    async with open_only(call.settings.store) as opened:
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


class Output:
    """The standard output for the lines of an export; a terminal gets nothing that it would obey."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()

    def write(self, text: str) -> int:
        return sys.stdout.write(escape_json(text) if self._terminal else text)


@COMMANDS.command("export")
async def export(
    call: Call, target: Annotated[str, argument("target", "FILE")] = STDIO,
    everybody: Annotated[bool, flag("everybody", "--all")] = False,
) -> None:  # fmt: skip
    owner = None if everybody else call.user
    async with open_only(call.settings.store) as opened:
        if target == STDIO:
            await store_admin.export(opened, owner, Output())
            return
        with call.progress("cli.progress.copying"):
            count = await store_admin.export_to(opened, owner, Path(target))
    call.tell("cli.store.exported", count=count, path=target)


@COMMANDS.command("import", shared=WHOLE_STORE)
async def import_rows(
    call: Call, source: Annotated[str, argument("export", "FILE")],
    user: Annotated[str | None, option("to_user", "--user")] = None,
) -> None:  # fmt: skip
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


@COMMANDS.command("reindex", shared=WHOLE_STORE)
async def reindex(call: Call) -> None:
    store_admin.must_exist(call.settings.store)
    async with App.open(settings=call.settings, work=False) as app:
        with call.progress("cli.progress.indexing") as step:
            messages, memories = await store_admin.reindex(app, lambda owner, done, total: step(done, total, owner))
    call.tell("cli.store.indexed", messages=messages, memories=memories)


@COMMANDS.command("jobs")
async def jobs(call: Call, as_json: Json = False) -> None:
    async with open_only(call.settings.store) as opened:
        found = await store_admin.parked_jobs(opened, call.user)
    if as_json:
        show_json(found)
    elif not found:
        call.tell("cli.jobs.none", user=call.user)
    else:
        rows = [
            [styled(short_id(j.job_id), "cyan"), j.kind, f"{j.attempts}", format_time(j.updated),
             styled(one_line(call.say.render(Phrase.load(j.error)), 400), "red")]
            for j in found
        ]  # fmt: skip
        columns, yields = ("id", "kind", "attempts", "when", "error"), ("attempts", "when", "kind")
        page(table(call.say, columns, rows, right=("attempts",), yields=yields))


@COMMANDS.command("retry")
async def retry(call: Call, name: Annotated[str, argument("job", "JOB")]) -> None:
    async with open_only(call.settings.store) as opened:
        job = await opened.jobs.unpark(call.user, await whole_id(opened, call.user, "job", name))
    call.tell("cli.jobs.again", id=short_id(job.job_id))
