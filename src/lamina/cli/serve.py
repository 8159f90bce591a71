"""`lamina serve`: the gateway in the foreground. What is printed is for people; requests are lines of JSON below it."""

import asyncio
import json
import logging
import os
import re
import signal
import socket
import sys
import time
import webbrowser
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.app.app import App
from lamina.app.files import check_files
from lamina.app.keys import loopback_token, opening_file
from lamina.app.providers import with_model
from lamina.cli.common import Say, chosen, flag, option, run, warn_of_rules
from lamina.cli.texts import visible
from lamina.errors import InputError, SettingsError, shown
from lamina.settings import Settings

LEVELS = ("off", "info", "debug")


@dataclass(frozen=True, slots=True)
class _Wanted:
    settings: Settings
    host_names: tuple[str, ...]
    origins: tuple[str, ...]
    log: str
    opens: bool


def add_serve(app: typer.Typer, say: Say) -> None:
    def serve(
        listen: Annotated[str | None, option(say, "listen", "--listen", metavar="ADDRESS:PORT")] = None,
        host_name: Annotated[list[str] | None, option(say, "host_name", "--host-name")] = None,
        origin: Annotated[list[str] | None, option(say, "origin", "--origin")] = None,
        no_open: Annotated[bool, flag(say, "no_open", "--no-open")] = False,
        log: Annotated[str, option(say, "log", "--log")] = "info",
        model: Annotated[str | None, option(say, "model")] = None,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        workspace: Annotated[Path | None, option(say, "serve.workspace", "--workspace")] = None,
    ) -> None:
        if workspace is not None and not workspace.is_dir():
            raise InputError(f"{str(workspace)!r} is not a folder", hint="name the workspace's folder")
        folder = os.path.abspath(workspace) if workspace else None
        settings = with_model(chosen(user, store, channel="gateway", listen=listen, workspace=folder), model)
        if log not in LEVELS:
            raise InputError(f"--log has no choice {shown(log)}", hint=f"choose one of {', '.join(LEVELS)}")
        names = (*_listed(settings.host_names), *(host_name or ()))
        origins = (*_listed(settings.origins), *(origin or ()))
        _check_names(names, origins)
        check_files(settings)
        warn_of_rules(say, settings)
        run(_serve(say, _Wanted(settings, names, origins, log, not no_open and sys.stdout.isatty())))

    app.command("serve", help=say["serve.help"], epilog=say["serve.examples"])(serve)


def _check_names(names: tuple[str, ...], origins: tuple[str, ...]) -> None:
    """A slip here would only be seen as requests that are refused."""
    for name in names:
        if not re.fullmatch(r"[\w.-]+|\[[0-9A-Fa-f:.]+\]", name):
            raise InputError(f"--host-name cannot be {shown(name)}", hint="a name alone: chat.example.com")
    for origin in origins:
        if not re.fullmatch(r"https?://[\w.:\[\]-]+/?", origin):
            raise InputError(f"--origin cannot be {shown(origin)}", hint="scheme and host: https://pages.example")


def _listed(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


async def _serve(say: Say, wanted: _Wanted) -> None:
    try:
        from lamina.gateway.gateway import Gateway
        from lamina.gateway.options import Options, is_loopback, listen_place
        from lamina.gateway.server import listen, serving, uvicorn_is_quiet
    except ModuleNotFoundError as error:
        raise SettingsError(f"the gateway needs the package {error.name}", hint="pip install 'lamina[gateway]'"
                            ) from None  # fmt: skip
    settings = wanted.settings
    address, port = listen_place(settings.listen)
    options = Options(
        address, port, wanted.host_names, wanted.origins, settings.public_https, settings.body_limit,
        connections=settings.connections, address_connections=settings.connections // 2,
        rate_limit=settings.rate_limit, token_limit=settings.token_limit, log=wanted.log,  # pyright: ignore[reportArgumentType] -- checked
    )  # fmt: skip
    sock = listen(options)  # before the store is opened: a port that is taken is said at once
    options = replace(options, port=int(sock.getsockname()[1]))
    _log_to_stderr(wanted.log)
    uvicorn_is_quiet()
    stop = _stopped_by_signals(say)
    try:
        async with _opened(say, settings) as app:
            token = loopback_token(settings) if is_loopback(address) else ""
            if not token and not await app.store.keys.any():
                place = f"{address}:{options.port}"
                raise SettingsError(say["serve.no_keys"].format(place=place), hint=say["serve.no_keys.next"])
            async with serving(Gateway(app, options, token=token, traces=_traces(app)), sock):
                if not stop.is_set():  # nobody opens a page that is about to end
                    _hello(say, app, _url(options.address, sock), token, wanted.opens)
                await stop.wait()
    finally:
        sock.close()


@asynccontextmanager
async def _opened(say: Say, settings: Settings) -> AsyncGenerator[App, None]:
    """The app with its provider: who cannot answer is told before anybody asks."""
    with _status(say["serve.opening"]) as status:
        async with App.open(settings=settings) as app:
            if status is not None:
                status.update(say["serve.model"])
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
        raise SettingsError(f"OpenTelemetry needs the package {error.name}", hint="pip install 'lamina[otel]'"
                            ) from None  # fmt: skip
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
    place = re.sub(r"//[^@/]*@", "//", app.settings.store.partition("?")[0])  # without a password
    lines = [
        f"lamina · {visible(provider.model)} ({provider.name})",
        f"{say['serve.store']}{say['colon']}{visible(place)}",
        f"{say['serve.api']}{say['colon']}{url}/v1",
        f"{say['serve.url']}{say['colon']}{page}",
        say["serve.ready"],
    ]
    print("\n".join(lines), flush=True)
    if opens:
        address = opening_file(app.settings, page).as_uri() if token else page
        asyncio.get_running_loop().run_in_executor(None, webbrowser.open, address)


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


def _stopped_by_signals(say: Say) -> asyncio.Event:
    """The first signal ends the gateway in order, the second one the process, as always."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def stopped() -> None:
        stop.set()
        print(say["serve.ending"], file=sys.stderr, flush=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped)
    return stop
