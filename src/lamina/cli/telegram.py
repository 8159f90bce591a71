"""`lamina telegram`: the bot, until it is told to stop."""

import asyncio
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.app.app import App
from lamina.app.files import check_files
from lamina.cli.common import Say, flag, option, run, warn_of_rules
from lamina.cli.worker import stopped_by_signals
from lamina.errors import ConnectError, InputError, LaminaError, SettingsError
from lamina.settings import Settings, load_settings
from lamina.settings.readers import read_store
from lamina.telegram.checks import Webhook, checked_token, keep_out_of_logs

LISTEN = "127.0.0.1:8443"


def add_telegram(app: typer.Typer, say: Say) -> None:
    def telegram(
        webhook: Annotated[str | None, option(say, "telegram.webhook", "--webhook", metavar="URL")] = None,
        listen: Annotated[str | None, option(say, "telegram.listen", "--listen", metavar="HOST:PORT")] = None,
        workspace: Annotated[Path | None, option(say, "chat.workspace", "--workspace")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        verbose: Annotated[bool, flag(say, "telegram.verbose", "--verbose")] = False,
    ) -> None:
        settings = _settings(workspace, store)
        if listen is not None and webhook is None:
            raise InputError("--listen without --webhook", hint="lamina telegram --webhook https://… --listen …")
        check_files(settings)
        warn_of_rules(say, settings)
        level = logging.INFO if verbose else logging.WARNING
        logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
        run(_bot(say, settings, webhook, listen or LISTEN))
        print(say["telegram.stopped"], file=sys.stderr)

    app.command("telegram", help=say["telegram.help"], epilog=say["telegram.examples"])(telegram)


def _settings(workspace: Path | None, store: str | None) -> Settings:
    """Those of the channel, with what this call changes; the folder you are in is the workspace, as in a chat."""
    settings = load_settings(channel="telegram")
    folder = str(workspace) if workspace else settings.workspace or os.getcwd()
    if not os.path.isdir(folder):
        raise InputError(f"{folder!r} is not a folder", hint="name the workspace's folder")
    return replace(settings, workspace=folder, store=read_store(store, "--store") if store else settings.store)


async def _bot(say: Say, settings: Settings, address: str | None, listen: str) -> None:
    keep_out_of_logs(checked_token(settings.telegram_token, settings.telegram_allow))
    webhook = Webhook(address, listen) if address else None
    stop = stopped_by_signals()
    people = len(settings.telegram_allow)

    def ready(name: str) -> None:
        kind = "webhook" if webhook else "polling"
        print(say[f"telegram.runs.{kind}"].format(name=name, count=people, listen=listen), file=sys.stderr, flush=True)

    try:
        async with App.open(settings=settings) as app:
            _ = app.provider  # who cannot answer is said before anybody asks
            await _library()(app, stop, webhook=webhook, ready=ready)
    except (LaminaError, asyncio.CancelledError):
        raise
    except Exception as error:  # a traceback may hold addresses, and those hold the token
        raise ConnectError(f"the bot ended: {type(error).__name__}", hint="lamina telegram --verbose") from None


def _library() -> Any:
    """The bot itself; Telegram's library is loaded last, since that takes seconds."""
    try:
        from lamina.telegram.bot import run_bot
    except ModuleNotFoundError as error:
        raise SettingsError(f"the bot needs the package {error.name}", hint="pip install 'lamina[telegram]'") from None
    return run_bot
