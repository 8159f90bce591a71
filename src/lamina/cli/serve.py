"""`lamina serve`: the gateway in the foreground. What is printed is for people; requests are lines of JSON below it."""

import asyncio
import gc
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from lamina.app.app import App
from lamina.app.config import check_files, loopback_token, opening_file, with_model
from lamina.app.store_admin import hide_password
from lamina.cli.call import Call, Commands, check_choice, flag, option, run, warn_of_rules
from lamina.cli.say import Say, visible
from lamina.errors import InputError, SettingsError, format_value
from lamina.portable import handle_signal
from lamina.settings import Settings
from lamina.settings.environment import child_environment

LOG_LEVELS = ("off", "info", "debug")
COMMANDS = Commands("serve", examples=True)
SWITCH_INTERVAL_S = 0.0005
"""After which a thread that computes gives way to the event loop, which asks for that several times in each request."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    settings: Settings
    host_names: tuple[str, ...]
    origins: tuple[str, ...]
    log: str
    opens: bool


@COMMANDS.single()
def serve(
    call: Call,
    listen: Annotated[str | None, option("listen", "--listen", metavar="ADDRESS:PORT")] = None,
    host_name: Annotated[list[str] | None, option("host_name", "--host-name")] = None,
    origin: Annotated[list[str] | None, option("origin", "--origin")] = None,
    no_open: Annotated[bool, flag("no_open", "--no-open")] = False,
    log: Annotated[str, option("log", "--log")] = "info",
    model: Annotated[str | None, option("model")] = None,
    workspace: Annotated[Path | None, option("serve.workspace", "--workspace")] = None,
) -> None:
    if workspace is not None and not workspace.is_dir():
        raise InputError("workspace.not_a_folder", path=repr(str(workspace)))
    folder = os.path.abspath(workspace) if workspace else None
    settings = with_model(call.choose(channel="gateway", listen=listen, workspace=folder), model)
    check_choice("--log", log, LOG_LEVELS)
    names = (*_split_names(settings.host_names), *(host_name or ()))
    origins = (*_split_names(settings.origins), *(origin or ()))
    _check_names(names, origins)
    check_files(settings)
    warn_of_rules(call.say, settings)
    run(_serve(call.say, _Wanted(settings, names, origins, log, not no_open and sys.stdout.isatty())))


def _check_names(names: tuple[str, ...], origins: tuple[str, ...]) -> None:
    """A slip here would only be seen as requests that are refused."""
    for name in names:
        if not re.fullmatch(r"[\w.-]+|\[[0-9A-Fa-f:.]+\]", name):
            raise InputError("option.bad_host_name", value=format_value(name))
    for origin in origins:
        if not re.fullmatch(r"https?://[\w.:\[\]-]+/?", origin):
            raise InputError("option.bad_origin", value=format_value(origin))


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


async def _serve(say: Say, wanted: _Wanted) -> None:
    try:
        from lamina.gateway.gateway import Gateway
        from lamina.gateway.limits import GatewayOptions
        from lamina.gateway.server import is_loopback, listen, listen_place, serving, silence_uvicorn
        from lamina.gateway.watchdog import watched
    except ModuleNotFoundError as error:
        raise SettingsError("gateway.package_missing", package=error.name) from None
    settings = wanted.settings
    address, port = listen_place(settings.listen)
    options = GatewayOptions(
        address, port, wanted.host_names, wanted.origins, settings.public_https, settings.body_limit,
        connections=settings.connections, address_connections=settings.connections // 2,
        rate_limit=settings.rate_limit, token_limit=settings.token_limit, log=wanted.log,  # pyright: ignore[reportArgumentType] -- checked
    )  # fmt: skip
    sock = listen(options)  # before the store is opened: a port that is taken is said at once
    options = replace(options, port=int(sock.getsockname()[1]))
    _log_to_stderr(wanted.log)
    silence_uvicorn()
    stop = _stop_on_signals(say)
    try:
        async with _opened(say, settings) as app:
            token = loopback_token(settings) if is_loopback(address) else ""
            if not token and not await app.store.keys.any():
                raise SettingsError("gateway.no_keys", place=f"{address}:{options.port}")
            gc.collect()
            gc.freeze()  # what lives as long as the process need not be looked at again by every collection
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            gateway = Gateway(app, options, token=token, traces=_traces(app))
            async with serving(gateway, sock), watched(settings.environ, settings.watchdog):
                if not stop.is_set():  # nobody opens a page that is about to end
                    _hello(say, app, _url(options.address, sock), token, wanted.opens)
                await stop.wait()
    finally:
        sock.close()


@asynccontextmanager
async def _opened(say: Say, settings: Settings) -> AsyncGenerator[App, None]:
    """The app with its provider, so that a provider that cannot answer is reported before the first question."""
    with _status(say("cli.serve.opening")) as status:
        async with App.open(settings=settings) as app:
            if status is not None:
                status.update(say("cli.serve.model"))
            _ = app.engine
            start: Any = getattr(app.provider, "start", None)
            if start is not None:  # the embedded model is read now, not while somebody waits
                await start()
            if status is not None:
                status.stop()
            yield app


def _traces(app: App) -> Any:
    if not app.settings.otel:
        return None
    try:
        from lamina.gateway.otel import telemetry
    except ModuleNotFoundError as error:
        raise SettingsError("gateway.otel_missing", package=error.name) from None
    return telemetry(app.settings.environ, app.provider.name, app.provider.model)


def _status(words: str) -> Any:
    if not sys.stderr or not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(words)


def _url(address: str, sock: socket.socket) -> str:
    name = "localhost" if address in ("0.0.0.0", "[::]") else address
    return f"http://{name}:{sock.getsockname()[1]}"


def _hello(say: Say, app: App, url: str, token: str, opens: bool) -> None:
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
    if opens:
        address = opening_file(app.settings, page).as_uri() if token else page
        asyncio.get_running_loop().run_in_executor(None, _open_page, address)


def _open_page(address: str) -> None:
    """In a process of its own, and so with an environment without secrets; the address has none either."""
    command = [sys.executable, "-P", "-c", "import sys, webbrowser; webbrowser.open(sys.argv[1])", address]
    subprocess.run(command, env=child_environment(), check=False)


class _Lines(logging.Formatter):
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
    handler.setFormatter(_Lines())
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
    logging.getLogger("lamina.injection").setLevel(logging.DEBUG if level == "debug" else logging.INFO)


def _stop_on_signals(say: Say) -> asyncio.Event:
    """The first signal ends the gateway in order, the second one the process, as always."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def stopped() -> None:
        stop.set()
        print(say("cli.serve.ending"), file=sys.stderr, flush=True)
        for restore in before:
            restore()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    before = [handle_signal(loop, number, stopped) for number in (signal.SIGINT, signal.SIGTERM)]
    return stop
