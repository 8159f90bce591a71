"""`lamina worker`: the work in the background, until it is told to stop."""

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import typer

from lamina.app.app import App
from lamina.app.worker import Report, Worker
from lamina.cli.common import Say, check_store, chosen, flag, option, run, show_json
from lamina.records import Job

ENDS = ("done", "again", "parked", "lost")


def add_worker(app: typer.Typer, say: Say) -> None:
    def worker(
        once: Annotated[bool, flag(say, "once", "--once")] = False,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "json_lines", "--json")] = False,
    ) -> None:
        settings = chosen(None, store)
        check_store(settings)  # in an empty one it would wait for ever for jobs that are elsewhere
        counts: Counter[str] = Counter()

        async def work() -> None:
            stop = stopped_by_signals()
            async with App.open(settings=settings, work=False) as opened:
                with _shown(say, counts, as_json) as show:

                    def ended(job: Job, how: str, error: str) -> None:
                        counts[how] += 1
                        show(job, how, error)

                    made = Worker(opened.store, opened.memory, report=ended)
                    if once:
                        while not stop.is_set() and await made.run_once():
                            pass
                    else:
                        await made.run(stop)

        run(work())
        if not as_json:
            print(_line(say, counts))

    app.command("worker", help=say["worker.help"])(worker)


def stopped_by_signals() -> asyncio.Event:
    """The first signal lets what was begun come to its end, the second one ends the process as always."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def stopped() -> None:
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped)
    return stop


def _line(say: Say, counts: Counter[str]) -> str:
    return ", ".join(f"{say[f'end.{name}']} {counts[name]:,}" for name in ENDS if counts[name] or name == "done")


@contextmanager
def _shown(say: Say, counts: Counter[str], as_json: bool) -> Generator[Report, None, None]:
    """A line a job as JSON; else a count that moves, where somebody looks."""
    if as_json:

        def as_line(job: Job, how: str, error: str) -> None:
            row = {"owner": job.owner, "job_id": job.job_id, "kind": job.kind, "attempt": job.attempts, "end": how}
            show_json(row | ({"error": error} if error else {}), line=True)

        yield as_line
        return
    if not sys.stderr or not sys.stderr.isatty():
        yield lambda job, how, error: None
        return
    from rich.console import Console

    with Console(stderr=True).status(say["waiting"]) as status:
        yield lambda job, how, error: status.update(_line(say, counts))
