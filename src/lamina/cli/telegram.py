"""`lamina telegram`: the bot, until it is told to stop."""

import asyncio
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from lamina.app.app import App
from lamina.app.config import check_files
from lamina.cli.call import Call, Commands, flag, option, run, warn_of_rules
from lamina.cli.say import Say
from lamina.cli.worker import stop_on_signals
from lamina.errors import ConnectError, InputError, LaminaError, SettingsError
from lamina.gateway.watchdog import watched
from lamina.settings import Settings, load_settings
from lamina.settings.readers import read_store
from lamina.telegram.checks import Webhook, check_token, keep_out_of_logs

DEFAULT_LISTEN = "127.0.0.1:8443"
COMMANDS = Commands("telegram", examples=True)


@COMMANDS.single(shared=("store",))
def telegram(
    call: Call,
    webhook: Annotated[str | None, option("telegram.webhook", "--webhook", metavar="URL")] = None,
    listen: Annotated[str | None, option("telegram.listen", "--listen", metavar="HOST:PORT")] = None,
    workspace: Annotated[Path | None, option("chat.workspace", "--workspace")] = None,
    verbose: Annotated[bool, flag("telegram.verbose", "--verbose")] = False,
) -> None:
    settings = _settings(workspace, call.store_option)
    if listen is not None and webhook is None:
        raise InputError("option.listen_without_webhook")
    check_files(settings)
    warn_of_rules(call.say, settings)
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    run(_run_bot(call.say, settings, webhook, listen or DEFAULT_LISTEN))
    print(call.say("cli.telegram.stopped"), file=sys.stderr)


def _settings(workspace: Path | None, store: str | None) -> Settings:
    """Those of the channel, with what this call changes; the folder you are in is the workspace, as in a chat."""
    settings = load_settings(channel="telegram")
    folder = str(workspace) if workspace else settings.workspace or os.getcwd()
    if not os.path.isdir(folder):
        raise InputError("workspace.not_a_folder", path=repr(folder))
    return replace(settings, workspace=folder, store=read_store(store, "--store") if store else settings.store)


async def _run_bot(say: Say, settings: Settings, address: str | None, listen: str) -> None:
    keep_out_of_logs(check_token(settings.telegram_token, settings.telegram_allow))
    webhook = Webhook(address, listen) if address else None
    stop = stop_on_signals()
    people = len(settings.telegram_allow)

    def ready(name: str) -> None:
        code = "cli.telegram.runs.webhook" if webhook else "cli.telegram.runs.polling"
        print(say(code, name=name, count=people, listen=listen), file=sys.stderr, flush=True)

    try:
        async with App.open(settings=settings) as app:
            _ = app.provider  # a provider that cannot answer is reported before the first question
            run_bot = _load_bot()
            async with watched(settings.environ, settings.watchdog):
                await run_bot(app, stop, webhook=webhook, ready=ready)
    except (LaminaError, asyncio.CancelledError):
        raise
    except Exception as error:  # a traceback may hold addresses, and those hold the token
        raise ConnectError("telegram.ended", error=type(error).__name__) from None


def _load_bot() -> Any:
    """The bot itself; Telegram's library is loaded last, since that takes seconds."""
    try:
        from lamina.telegram.bot import run_bot
    except ModuleNotFoundError as error:
        raise SettingsError("telegram.package_missing", package=error.name) from None
    return run_bot
