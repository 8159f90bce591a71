"""`lamina store`: what is in it, backup, verify, export, import, reindex, and the jobs that failed."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.app import upkeep
from lamina.app.app import App
from lamina.app.commands import whole_id
from lamina.app.upkeep import STDIO, open_only
from lamina.cli.common import (
    SHORT,
    Say,
    argument,
    chosen,
    day,
    flag,
    one_line,
    only_below,
    option,
    page,
    pairs,
    progress,
    run,
    show_json,
    size,
    styled,
    table,
    tell,
)
from lamina.cli.texts import escaped, visible
from lamina.records import Job


def add_store(app: typer.Typer, say: Say) -> None:
    store = typer.Typer(no_args_is_help=False, invoke_without_command=True)
    store.callback()(_informer(say))
    for name, make in (
        ("backup", _backer), ("verify", _verifier), ("export", _exporter), ("import", _importer),
        ("reindex", _reindexer), ("jobs", _jobber), ("retry", _retrier),
    ):  # fmt: skip
        store.command(name, help=say[f"store.{name}"])(make(say))
    app.add_typer(store, name="store", help=say["store.help"])


def _informer(say: Say) -> Any:
    def store_(
        context: typer.Context,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        if not only_below(context, "store", bool(user or store) or as_json):
            return
        settings = chosen(user, store)

        async def read() -> tuple[upkeep.Info, list[Job]]:
            async with open_only(settings.store) as opened:
                info = await upkeep.info(opened, settings.store, settings.user)
                return info, await upkeep.parked_jobs(opened, settings.user)

        info, parked = run(read())
        if as_json:
            show_json({"user": settings.user, "info": info, "parked": parked})
            return
        sizes = ", ".join(f"{say[f'size.{name}']} {size(count)}" for name, count in info.sizes.items())
        jobs = ", ".join(f"{say[f'job.{name}']} {count:,}" for name, count in info.jobs.items())
        rows: dict[str, object] = {"where": info.where, "store": info.kind, "version": info.version, "sizes": sizes}
        rows |= {"owners": f"{info.owners:,}", "user": settings.user}
        rows |= {name: f"{count:,}" for name, count in info.counts.items()}
        rows["jobs"] = styled(jobs, "bold red") if parked else jobs
        page(pairs(say, rows))
        if parked:
            tell(say, "store.parked", count=info.jobs["parked"])

    return store_


def _backer(say: Say) -> Any:
    def backup(
        path: Annotated[Path, argument(say, "backup", "PATH")],
        store: Annotated[str | None, option(say, "store")] = None,
    ) -> None:
        settings = chosen(None, store)

        async def work() -> int:
            async with open_only(settings.store) as opened:
                with progress(say, "copying"):
                    return await upkeep.backup(opened, path)

        tell(say, "store.copied", path=path, size=size(run(work())))

    return backup


def _verifier(say: Say) -> Any:
    def verify(
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        settings = chosen(None, store)

        async def work() -> list[str]:
            async with open_only(settings.store) as opened:
                with progress(say, "checking"):
                    return list(await opened.maintenance.verify())

        problems = run(work())
        if as_json:
            show_json({"problems": problems})
        else:
            for problem in problems:
                print(visible(problem))
            tell(say, "faults" if problems else "store.well", count=len(problems))
        if problems:
            raise typer.Exit(1)

    return verify


class Shown:
    """The standard output for the lines of an export; a terminal gets nothing that it would obey."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()

    def write(self, text: str) -> int:
        return sys.stdout.write(escaped(text) if self._terminal else text)


def _exporter(say: Say) -> Any:
    def export(
        target: Annotated[str, argument(say, "target", "FILE")] = STDIO,
        everybody: Annotated[bool, flag(say, "everybody", "--all")] = False,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
    ) -> None:
        settings = chosen(user, store)
        owner = None if everybody else settings.user

        async def work() -> int:
            async with open_only(settings.store) as opened:
                if target == STDIO:
                    return await upkeep.export(opened, owner, Shown())
                with progress(say, "copying"):
                    return await upkeep.export_to(opened, owner, Path(target))

        count = run(work())
        if target != STDIO:
            tell(say, "store.exported", count=f"{count:,}", path=target)

    return export


def _importer(say: Say) -> Any:
    def import_(
        source: Annotated[str, argument(say, "export", "FILE")],
        user: Annotated[str | None, option(say, "to_user", "--user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
    ) -> None:
        settings = chosen(user, store)

        async def work() -> int:
            async with App.open(settings=settings, work=False, index=False) as app:
                with progress(say, "reading") as step:
                    lines = 0

                    def next_line() -> None:
                        nonlocal lines
                        lines += 1
                        if lines % 1_000 == 0:
                            step(lines, None, f"{lines:,}")

                    return await upkeep.import_lines(app.store, source, user, next_line)

        tell(say, "store.imported", count=f"{run(work()):,}")

    return import_


def _reindexer(say: Say) -> Any:
    def reindex(store: Annotated[str | None, option(say, "store")] = None) -> None:
        settings = chosen(None, store)
        upkeep.must_exist(settings.store)

        async def work() -> tuple[int, int]:
            async with App.open(settings=settings, work=False) as app:
                with progress(say, "indexing") as step:
                    return await upkeep.reindex(app, lambda owner, done, total: step(done, total, owner))

        messages, memories = run(work())
        tell(say, "store.indexed", messages=f"{messages:,}", memories=f"{memories:,}")

    return reindex


def _jobber(say: Say) -> Any:
    def jobs(
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        settings = chosen(user, store)

        async def read() -> list[Job]:
            async with open_only(settings.store) as opened:
                return await upkeep.parked_jobs(opened, settings.user)

        found = run(read())
        if as_json:
            show_json(found)
        elif not found:
            tell(say, "jobs.none", user=settings.user)
        else:
            rows = [
                [styled(j.job_id[:SHORT], "cyan"), j.kind, f"{j.attempts}", day(j.updated),
                 styled(one_line(j.error, 400), "red")]
                for j in found
            ]  # fmt: skip
            page(table(say, ("id", "kind", "attempts", "when", "error"), rows, right=("attempts",),
                       yields=("attempts", "when", "kind")))  # fmt: skip

    return jobs


def _retrier(say: Say) -> Any:
    def retry(
        name: Annotated[str, argument(say, "job", "JOB")],
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
    ) -> None:
        settings = chosen(user, store)

        async def change() -> Job:
            async with open_only(settings.store) as opened:
                return await opened.jobs.unpark(settings.user, await whole_id(opened, settings.user, "job", name))

        tell(say, "jobs.again", id=run(change()).job_id[:SHORT])

    return retry
