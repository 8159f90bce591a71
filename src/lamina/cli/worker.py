"""`lamina worker`: background jobs, until it is told to stop."""

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

from lamina.app.app import App
from lamina.app.worker import Report, Worker
from lamina.cli.call import Call, Commands, flag, show_json
from lamina.cli.say import Say
from lamina.gateway.watchdog import watched
from lamina.portable import handle_signal
from lamina.records import Job

ENDS = ("done", "again", "parked", "lost")
COMMANDS = Commands("worker")


@COMMANDS.single(shared=("store",))
async def worker(
    call: Call, once: Annotated[bool, flag("once", "--once")] = False,
    as_json: Annotated[bool, flag("json_lines", "--json")] = False,
) -> None:  # fmt: skip
    settings = call.settings
    call.check_store()  # in an empty one it would wait for ever for jobs that are elsewhere
    counts: Counter[str] = Counter()
    stop = stop_on_signals()
    async with App.open(settings=settings, work=False) as app:
        with _reporting(call.say, counts, as_json) as show:

            def report(job: Job, how: str, error: str) -> None:
                counts[how] += 1
                show(job, how, error)

            made = Worker(app.store, app.memory, report=report)
            if once:
                while not stop.is_set() and await made.run_once():
                    pass
            else:
                async with watched(settings.environ, settings.watchdog):
                    await made.run(stop)
    if not as_json:
        print(_summary(call.say, counts))


def stop_on_signals() -> asyncio.Event:
    """The first signal lets running work finish, the second one ends the process as always."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def stopped() -> None:
        stop.set()
        for restore in before:
            restore()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = [handle_signal(loop, number, stopped) for number in (signal.SIGINT, signal.SIGTERM)]
    return stop


def _summary(say: Say, counts: Counter[str]) -> str:
    return ", ".join(say(f"cli.end.{name}", count=counts[name]) for name in ENDS if counts[name] or name == "done")


@contextmanager
def _reporting(say: Say, counts: Counter[str], as_json: bool) -> Generator[Report, None, None]:
    """A line of JSON for each job; else a count that moves, on a terminal."""
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

    with Console(stderr=True).status(say("cli.progress.waiting")) as status:
        yield lambda job, how, error: status.update(_summary(say, counts))
