"""`lamina serve`, `lamina telegram` and `lamina worker`: the gateway, the bot and the background jobs, in the
foreground until they are stopped. What `serve` prints is for people; requests are lines of JSON below it."""

import asyncio
import gc
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from lamina.app.app import App
from lamina.app.config import check_files, loopback_token, opening_file, with_model
from lamina.app.store_admin import hide_password
from lamina.app.worker import Report, Worker
from lamina.cli.call import Call, ChatFolder, Commands, Model, check_choice, flag, option, run, show_json
from lamina.cli.say import Say, visible
from lamina.errors import ConnectError, InputError, LaminaError, SettingsError, format_value
from lamina.gateway.watchdog import watched
from lamina.portable import handle_signal
from lamina.records import Job
from lamina.settings.environment import child_environment
from lamina.telegram.checks import Webhook, check_token, keep_out_of_logs

LOG_LEVELS = ("off", "info", "debug")
SWITCH_INTERVAL_S = 0.0005
"""After which a thread that computes gives way to the event loop, which asks for that several times in each request."""
DEFAULT_WEBHOOK_LISTEN = "127.0.0.1:8443"
JOB_ENDS = ("done", "again", "parked", "lost")
SERVE = Commands("serve", examples=True)
TELEGRAM = Commands("telegram", examples=True)
WORKER = Commands("worker")


def _stop_on_signals(call: Call, code: str = "") -> asyncio.Event:
    """The first signal ends the command in order, the second one the process, as always."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_signal() -> None:
        stop.set()
        if code:
            call.report(code)
        for restore in restores:
            restore()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    restores = [handle_signal(loop, number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)]
    return stop


@dataclass(frozen=True, slots=True)
class _ServeOptions:
    host_names: tuple[str, ...]
    origins: tuple[str, ...]
    log: str
    opens_page: bool


@SERVE.single()
def serve(
    call: Call,
    listen: Annotated[str | None, option("listen", "--listen", metavar="ADDRESS:PORT")] = None,
    host_name: Annotated[list[str] | None, option("host_name", "--host-name")] = None,
    origin: Annotated[list[str] | None, option("origin", "--origin")] = None,
    no_open: Annotated[bool, flag("no_open", "--no-open")] = False,
    log: Annotated[str, option("log", "--log")] = "info",
    model: Model = None,
    workspace: Annotated[Path | None, option("serve.workspace", "--workspace")] = None,
) -> None:
    if workspace is not None and not workspace.is_dir():
        raise InputError("workspace.not_a_folder", path=repr(str(workspace)))
    folder = os.path.abspath(workspace) if workspace else None
    settings = with_model(call.choose(channel="gateway", listen=listen, workspace=folder), model)
    call.settings = settings
    check_choice("--log", log, LOG_LEVELS)
    names = (*_split_names(settings.host_names), *(host_name or ()))
    origins = (*_split_names(settings.origins), *(origin or ()))
    _check_names(names, origins)
    check_files(settings)
    call.warn_of_rules()
    run(_serve(call, _ServeOptions(names, origins, log, not no_open and sys.stdout.isatty())))


def _check_names(names: tuple[str, ...], origins: tuple[str, ...]) -> None:
    """A mistake here would only be seen as requests that are refused."""
    for name in names:
        if not re.fullmatch(r"[\w.-]+|\[[0-9A-Fa-f:.]+\]", name):
            raise InputError("option.bad_host_name", value=format_value(name))
    for origin in origins:
        if not re.fullmatch(r"https?://[\w.:\[\]-]+/?", origin):
            raise InputError("option.bad_origin", value=format_value(origin))


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


async def _serve(call: Call, given: _ServeOptions) -> None:
    try:
        from lamina.gateway.gateway import Gateway
        from lamina.gateway.limits import GatewayOptions
        from lamina.gateway.server import is_loopback, listen, listen_place, serving, silence_uvicorn
    except ModuleNotFoundError as error:
        raise SettingsError("gateway.package_missing", package=error.name) from None
    settings = call.settings
    address, port = listen_place(settings.listen)
    options = GatewayOptions(
        address, port, given.host_names, given.origins, settings.public_https, settings.body_limit,
        connections=settings.connections, address_connections=settings.connections // 2,
        rate_limit=settings.rate_limit, token_limit=settings.token_limit, log=given.log,  # pyright: ignore[reportArgumentType] -- checked
    )  # fmt: skip
    sock = listen(options)  # before the store is opened: a port in use is reported at once
    options = replace(options, port=int(sock.getsockname()[1]))
    _log_to_stderr(given.log)
    silence_uvicorn()
    stop = _stop_on_signals(call, "cli.serve.ending")
    try:
        async with _open_with_provider(call) as app:
            token = loopback_token(settings) if is_loopback(address) else ""
            if not token and not await app.store.keys.any():
                raise SettingsError("gateway.no_keys", place=f"{address}:{options.port}")
            gc.collect()
            gc.freeze()  # what lives as long as the process need not be looked at again by every collection
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            gateway = Gateway(app, options, token=token, traces=_make_telemetry(app))
            async with serving(gateway, sock), watched(settings.environ, settings.watchdog):
                if not stop.is_set():  # no page is opened that is about to end
                    name = "localhost" if address in ("0.0.0.0", "[::]") else address
                    _greet(call.say, app, f"http://{name}:{options.port}", token, given.opens_page)
                await stop.wait()
    finally:
        sock.close()


@asynccontextmanager
async def _open_with_provider(call: Call) -> AsyncGenerator[App, None]:
    """The app with its provider, so that a provider that cannot answer is reported before the first question."""
    with _status(call.say("cli.serve.opening")) as status:
        async with App.open(settings=call.settings) as app:
            if status is not None:
                status.update(call.say("cli.serve.model"))
            _ = app.engine
            start: Any = getattr(app.provider, "start", None)
            if start is not None:  # the embedded model is read now, not during the first question
                await start()
            if status is not None:
                status.stop()
            yield app


def _make_telemetry(app: App) -> Any:
    if not app.settings.otel:
        return None
    try:
        from lamina.gateway.otel import telemetry
    except ModuleNotFoundError as error:
        raise SettingsError("gateway.otel_missing", package=error.name) from None
    return telemetry(app.settings.environ, app.provider.name, app.provider.model)


def _status(words: str) -> Any:
    """A spinner on a terminal's error output; None elsewhere."""
    if not sys.stderr or not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(words)


def _greet(say: Say, app: App, url: str, token: str, opens_page: bool) -> None:
    page = f"{url}/?token={token}" if token else f"{url}/"
    provider = app.provider
    lines = [
        f"lamina · {visible(provider.model)} ({provider.name})",
        say("cli.serve.store", place=hide_password(app.settings.store)),
        say("cli.serve.api", url=f"{url}/v1"),
        say("cli.serve.url", url=page),
        *([say("cli.serve.no_workspace")] if app.settings.tools and not app.settings.workspace else ()),
        say("cli.serve.ready"),
    ]
    print("\n".join(lines), flush=True)
    if opens_page:
        address = opening_file(app.settings, page).as_uri() if token else page
        asyncio.get_running_loop().run_in_executor(None, _open_page, address)


def _open_page(address: str) -> None:
    """In a process of its own, and so with an environment without secrets; the address has none either."""
    command = [sys.executable, "-P", "-c", "import sys, webbrowser; webbrowser.open(sys.argv[1])", address]
    subprocess.run(command, env=child_environment(), check=False)


class _JsonFormatter(logging.Formatter):
    """A line of JSON like those of requests."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {"time": f"{stamp}.{int(record.msecs):03}Z", "level": record.levelname.lower(), "logger": record.name}
        return json.dumps(line | {"message": record.getMessage()})


def _log_to_stderr(level: str) -> None:
    """lamina's own loggers beside the request lines; they name no texts and no keys."""
    logger = logging.getLogger("lamina")
    if level == "off":
        logger.addHandler(logging.NullHandler())
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter())
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
    logging.getLogger("lamina.injection").setLevel(logging.DEBUG if level == "debug" else logging.INFO)


@TELEGRAM.single(shared=("store",))
def telegram(
    call: Call,
    webhook: Annotated[str | None, option("telegram.webhook", "--webhook", metavar="URL")] = None,
    listen: Annotated[str | None, option("telegram.listen", "--listen", metavar="HOST:PORT")] = None,
    workspace: ChatFolder = None,
    verbose: Annotated[bool, flag("telegram.verbose", "--verbose")] = False,
) -> None:
    settings = call.choose(channel="telegram", workspace=str(workspace) if workspace else None)
    folder = settings.workspace or os.getcwd()  # as in a chat, the current folder is the workspace
    if not os.path.isdir(folder):
        raise InputError("workspace.not_a_folder", path=repr(folder))
    call.settings = replace(settings, workspace=folder)
    if listen is not None and webhook is None:
        raise InputError("option.listen_without_webhook")
    check_files(call.settings)
    call.warn_of_rules()
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    run(_run_bot(call, webhook, listen or DEFAULT_WEBHOOK_LISTEN))
    call.report("cli.telegram.stopped")


async def _run_bot(call: Call, address: str | None, listen: str) -> None:
    settings = call.settings
    keep_out_of_logs(check_token(settings.telegram_token, settings.telegram_allow))
    webhook = Webhook(address, listen) if address else None
    stop = _stop_on_signals(call)

    def ready(name: str) -> None:
        code = "cli.telegram.runs.webhook" if webhook else "cli.telegram.runs.polling"
        call.report(code, name=name, count=len(settings.telegram_allow), listen=listen)

    try:
        async with App.open(settings=settings) as app:
            _ = app.provider  # a provider that cannot answer is reported before the first question
            try:  # Telegram's library is loaded last, since that takes seconds
                from lamina.telegram.bot import run_bot
            except ModuleNotFoundError as error:
                raise SettingsError("telegram.package_missing", package=error.name) from None
            async with watched(settings.environ, settings.watchdog):
                await run_bot(app, stop, webhook=webhook, ready=ready)
    except (LaminaError, asyncio.CancelledError):
        raise
    except Exception as error:  # a traceback may hold addresses, and those hold the token
        raise ConnectError("telegram.ended", error=type(error).__name__) from None


@WORKER.single(shared=("store",))
async def worker(
    call: Call,
    once: Annotated[bool, flag("once", "--once")] = False,
    as_json: Annotated[bool, flag("json_lines", "--json")] = False,
) -> None:
    settings = call.settings
    call.check_store()  # in an empty one it would wait forever for jobs that are elsewhere
    counts: Counter[str] = Counter()
    stop = _stop_on_signals(call)
    async with App.open(settings=settings, work=False) as app:
        with _reporting(call.say, counts, as_json) as report:
            made = Worker(app.store, app.memory, report=report)
            if once:
                while not stop.is_set() and await made.run_once():
                    pass
            else:
                async with watched(settings.environ, settings.watchdog):
                    await made.run(stop)
    if not as_json:
        print(_format_counts(call.say, counts))


def _format_counts(say: Say, counts: Counter[str]) -> str:
    return ", ".join(say(f"cli.end.{name}", count=counts[name]) for name in JOB_ENDS if counts[name] or name == "done")


@contextmanager
def _reporting(say: Say, counts: Counter[str], as_json: bool) -> Generator[Report, None, None]:
    """A line of JSON for each job; otherwise a count that moves, on a terminal."""
    with nullcontext() if as_json else _status(say("cli.progress.waiting")) as status:

        def report(job: Job, how: str, error: str) -> None:
            counts[how] += 1
            if as_json:
                row = {"owner": job.owner, "job_id": job.job_id, "kind": job.kind, "attempt": job.attempts, "end": how}
                show_json(row | ({"error": error} if error else {}), line=True)
            elif status is not None:
                status.update(_format_counts(say, counts))

        yield report
