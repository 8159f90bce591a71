"""Updates by webhook: a small HTTP server that takes them from Telegram alone, and says 200 once a question is stored.

Who does not know the secret gets a 401 before a byte of the body is read. TLS is the business of whoever stands in
front of it.
"""

import asyncio
import hashlib
import hmac
import json
import logging
from typing import Any

from aiogram.exceptions import AiogramError
from aiogram.methods import SetWebhook
from aiogram.types import Update
from aiohttp import web
from pydantic import ValidationError

from lamina.errors import ConnectError, InputError
from lamina.telegram.checks import Webhook, check_address, check_listen
from lamina.telegram.line import Line, describe_error
from lamina.telegram.polling import KINDS
from lamina.telegram.switchboard import Switchboard
from lamina.types import Key

HEADER = "X-Telegram-Bot-Api-Secret-Token"
MOST_BYTES = 1024 * 1024
DEADLINE = 10.0
"""Seconds for the body to come."""
HELD = 50.0
"""Seconds that a request waits for its question to be stored; then Telegram sends it again."""
log = logging.getLogger("lamina.telegram")


def secret_of(token: Key) -> str:
    """What Telegram sends with each update: made of the token, so that every start has the same one."""
    return hmac.new(token.reveal().encode(), b"lamina webhook", hashlib.sha256).hexdigest()


def application(board: Switchboard, path: str, secret: str) -> web.Application:
    async def receive(request: web.Request) -> web.Response:
        given = request.headers.get(HEADER, "")
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), secret.encode()):
            return web.Response(status=401)
        try:
            async with asyncio.timeout(DEADLINE):
                row: Any = json.loads(await request.read())
            number = int(row["update_id"])
        except TimeoutError:
            return web.Response(status=408)
        except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
            return web.Response(status=400)
        try:
            update = Update.model_validate(row)
        except ValidationError:  # it would come again and again
            log.warning("[Telegram] an update of an unknown form was left out")
            update = Update(update_id=number)
        taken = board.take(update)
        await asyncio.wait({taken}, timeout=HELD)
        return web.Response(status=200 if taken.done() and not taken.cancelled() else 503)

    made = web.Application(client_max_size=MOST_BYTES)
    made.router.add_post(path, receive)
    return made


async def serve(line: Line, board: Switchboard, stop: asyncio.Event, webhook: Webhook, token: Key) -> None:
    """Listen, tell Telegram where, and go on until told to stop. The webhook stays: Telegram keeps what comes."""
    path, (host, port) = check_address(webhook.address), check_listen(webhook.listen)
    secret = secret_of(token)
    runner = web.AppRunner(application(board, path, secret), access_log=None, handle_signals=False, shutdown_timeout=2)
    await runner.setup()
    try:
        await _listen(runner, host, port)
        await _announce(line, webhook.address, secret)
        await stop.wait()
        await board.close()  # what waits is let go of, so that its requests end
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, host: str, port: int) -> None:
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        raise InputError("telegram.cannot_listen", place=f"{host}:{port}", error=error.strerror) from None


async def _announce(line: Line, address: str, secret: str) -> None:
    try:
        await line.ask(SetWebhook(url=address, secret_token=secret, allowed_updates=KINDS, max_connections=40))
    except AiogramError as error:
        raise ConnectError("telegram.webhook_refused", error=describe_error(error)) from None
