"""A bot from its settings to its end: it says who it is, shows its commands, and accepts updates by polling or webhook.

aiogram's own polling and webhook handler tell Telegram that an update was received before its question is stored, and
an update that they cannot parse stops or repeats forever. Here both confirm an update only when it was accepted.
"""

import asyncio
import hashlib
import hmac
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiogram.exceptions import (
    AiogramError,
    TelegramConflictError,
    TelegramNotFound,
    TelegramRetryAfter,
    TelegramUnauthorizedError,
)
from aiogram.methods import DeleteWebhook, GetMe, GetUpdates, SetMyCommands, SetWebhook
from aiogram.types import BotCommand, Update, User
from aiogram.utils.backoff import Backoff, BackoffConfig
from aiohttp import web
from pydantic import ValidationError

from lamina.app.app import App
from lamina.errors import ConnectError, InputError, LaminaError, SettingsError
from lamina.telegram.checks import Webhook, check_token
from lamina.telegram.client import TelegramClient, describe_error
from lamina.telegram.commands import list_commands
from lamina.telegram.switchboard import Accepted, Switchboard
from lamina.types import Key

ALLOWED_UPDATES = ["message"]
POLL_TIMEOUT_S = 30
"""Telegram holds a request for so long when there is nothing."""
BATCH, SHED = 100, 10
"""Updates that Telegram gives at once, and how many give way when all of them wait."""
STORE_WAIT_S, WAITING_INTERVAL_S = 0.2, 1.0
"""For new questions to be stored; between two requests while some wait."""
BACKOFF = BackoffConfig(min_delay=1.0, max_delay=30.0, factor=2.0, jitter=0.0)
SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"
MAX_BODY_BYTES = 1024 * 1024
BODY_TIMEOUT_S = 10.0
ACCEPT_TIMEOUT_S = 50.0
"""A webhook request waits so long for its question to be stored; then Telegram sends it again."""
log = logging.getLogger("lamina.telegram")


async def run_bot(
    app: App,
    stop: asyncio.Event,
    *,
    webhook: Webhook | None = None,
    ready: Callable[[str], object] = lambda name: None,
    pace: float = 1.0,
) -> None:
    """Run until `stop` is set. Running turns are interrupted and stored then; waiting messages stay with Telegram."""
    settings = app.settings
    token = check_token(settings.telegram_token, settings.telegram_allow)
    client = TelegramClient(token, api=settings.telegram_api, pace=pace)
    try:
        me = await _introduce(client)
        board = Switchboard(app, client, me)
        try:
            try:
                await board.deliver_unfinished()
            except LaminaError as error:
                log.warning("[Telegram] unfinished answers could not be delivered: %s", error.message)
            ready(me.username or str(me.id))
            if webhook:
                await _serve_webhook(client, board, stop, webhook, make_secret(token))
            else:
                await _poll_until(stop, client, board)
        finally:
            await board.close()
    finally:
        await client.close()


async def _introduce(client: TelegramClient) -> User:
    try:
        me = await client.call(GetMe())
    except (TelegramUnauthorizedError, TelegramNotFound):
        raise SettingsError("telegram.unknown_token") from None
    except AiogramError as error:
        raise ConnectError("telegram.unreachable", error=describe_error(error)) from None
    for code, lang in ((None, "en"), ("zh", "zh")):
        commands = [BotCommand(command=name, description=what) for name, what in list_commands(lang).items()]
        try:
            await client.call(SetMyCommands(commands=commands, language_code=code))
        except AiogramError as error:  # it works without a menu as well
            log.warning("[Telegram] no menu of commands: %s", describe_error(error))
    return me


def _parse_update(row: Mapping[str, Any]) -> Update:
    """An update that cannot be parsed is one without a message: it would come again and again."""
    try:
        return Update.model_validate(row)
    except ValidationError:
        log.warning("[Telegram] an update of an unknown form was left out")
        return Update(update_id=int(row["update_id"]))


class _GetRawUpdates(GetUpdates):
    """Updates that are parsed one by one, so that one that cannot be parsed does not hold back the others."""

    __returning__ = list[dict[str, Any]]


@dataclass(slots=True)
class _Progress:
    """Telegram forgets the updates below the offset; accepted ones after it come again, and are known."""

    offset: int = 0
    held: dict[int, Accepted] = field(default_factory=dict[int, Accepted])

    def advance(self) -> None:
        """Move the offset to the first update that is not accepted."""
        for number in sorted(self.held):
            if not self.held[number].done() or self.held[number].cancelled():
                return
            del self.held[number]
            self.offset = max(self.offset, number + 1)


async def _poll_until(stop: asyncio.Event, client: TelegramClient, board: Switchboard) -> None:
    progress = _Progress()
    polling, stopping = asyncio.create_task(_poll(client, board, progress)), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({polling, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if polling.done():
            await polling
    finally:
        for task in (polling, stopping):
            task.cancel()
        await asyncio.gather(polling, stopping, return_exceptions=True)
    progress.advance()
    try:  # accepted updates need not come again; should this fail, they are known when they do
        async with asyncio.timeout(2):
            await client.call(GetUpdates(offset=progress.offset, limit=1, timeout=0), 2)
    except (AiogramError, TimeoutError) as error:
        log.debug("[Telegram] the end was not confirmed: %s", describe_error(error))


async def _poll(client: TelegramClient, board: Switchboard, progress: _Progress) -> None:
    """Accept updates. Errors on the way to Telegram are waited out."""
    backoff, webhook_deleted = Backoff(BACKOFF), False
    while True:
        request = _GetRawUpdates(
            offset=progress.offset, limit=BATCH, timeout=POLL_TIMEOUT_S, allowed_updates=ALLOWED_UPDATES
        )
        try:
            if not webhook_deleted:  # Telegram gives updates to one place only
                webhook_deleted = await client.call(DeleteWebhook(drop_pending_updates=False))
            updates = [_parse_update(row) for row in await client.call(request, POLL_TIMEOUT_S + 15)]
        except TelegramUnauthorizedError:
            raise SettingsError("telegram.unknown_token") from None
        except AiogramError as error:
            await _wait_after(error, backoff)
            continue
        backoff.reset()
        fresh = [update for update in updates if update.update_id not in progress.held]
        progress.held |= {update.update_id: board.accept(update) for update in fresh}
        if not fresh and len({update.update_id for update in updates}) >= BATCH:
            board.shed(SHED)
        if waiting := [accepted for accepted in progress.held.values() if not accepted.done()]:
            enough = asyncio.ALL_COMPLETED if fresh else asyncio.FIRST_COMPLETED
            timeout_s = STORE_WAIT_S if fresh else WAITING_INTERVAL_S
            await asyncio.wait(waiting, timeout=timeout_s, return_when=enough)
        progress.advance()


async def _wait_after(error: AiogramError, backoff: Backoff) -> None:
    wait_s = next(backoff)
    if isinstance(error, TelegramRetryAfter):
        wait_s = float(error.retry_after)
    if isinstance(error, TelegramConflictError):
        log.warning("[Telegram] another program asks for this bot's updates; only one may")
    elif backoff.counter in (1, 5) or backoff.counter % 20 == 0:
        log.warning("[Telegram] no updates: %s; again in %g s", describe_error(error), wait_s)
    await asyncio.sleep(wait_s)


def make_secret(token: Key) -> str:
    """What Telegram sends with each update: made from the token, so that every start has the same one."""
    return hmac.new(token.reveal().encode(), b"lamina webhook", hashlib.sha256).hexdigest()


async def _receive(request: web.Request, board: Switchboard, secret: str) -> web.Response:
    """A request without the secret gets a 401 before a byte of its body is read. A 200 says that the question is
    stored."""
    given = request.headers.get(SECRET_HEADER, "")
    if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), secret.encode()):
        return web.Response(status=401)
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            row: Any = json.loads(await request.read())
        update = _parse_update({**row, "update_id": int(row["update_id"])})
    except TimeoutError:
        return web.Response(status=408)
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return web.Response(status=400)
    accepted = board.accept(update)
    await asyncio.wait({accepted}, timeout=ACCEPT_TIMEOUT_S)
    return web.Response(status=200 if accepted.done() and not accepted.cancelled() else 503)


async def _serve_webhook(
    client: TelegramClient, board: Switchboard, stop: asyncio.Event, webhook: Webhook, secret: str
) -> None:
    """Listen, tell Telegram where, and go on until stopped. The webhook stays: Telegram keeps what comes. TLS is up to
    the server in front of it."""
    application = web.Application(client_max_size=MAX_BODY_BYTES)
    application.router.add_post(webhook.path, partial(_receive, board=board, secret=secret))
    runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=2)
    await runner.setup()
    host, port = webhook.host_and_port
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise InputError("telegram.cannot_listen", place=f"{host}:{port}", error=error.strerror) from None
        try:
            await client.call(
                SetWebhook(
                    url=webhook.address, secret_token=secret, allowed_updates=ALLOWED_UPDATES, max_connections=40
                )
            )
        except AiogramError as error:
            raise ConnectError("telegram.webhook_refused", error=describe_error(error)) from None
        await stop.wait()
        await board.close()  # waiting messages are let go of, so that their requests end
    finally:
        await runner.cleanup()
