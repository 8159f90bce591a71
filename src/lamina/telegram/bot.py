"""A bot from its settings to its end: it says who it is, shows its commands, and then takes what comes."""

import asyncio
import logging
from collections.abc import Callable

from aiogram.exceptions import AiogramError, TelegramNotFound, TelegramUnauthorizedError
from aiogram.methods import GetMe, SetMyCommands
from aiogram.types import BotCommand, User

from lamina.app.app import App
from lamina.errors import ConnectError, LaminaError
from lamina.telegram.checks import Webhook, check_token
from lamina.telegram.line import Line, describe_error
from lamina.telegram.polling import poll, unknown_token
from lamina.telegram.say import menu
from lamina.telegram.switchboard import Switchboard
from lamina.telegram.webhook import serve

log = logging.getLogger("lamina.telegram")


async def run_bot(
    app: App, stop: asyncio.Event, *, webhook: Webhook | None = None,
    ready: Callable[[str], object] = lambda name: None, pace: float = 1.0,
) -> None:  # fmt: skip
    """Until told to stop. What runs then is interrupted and kept, and what waits stays with Telegram."""
    settings = app.settings
    token = check_token(settings.telegram_token, settings.telegram_allow)
    line = Line(token, api=settings.telegram_api, pace=pace)
    try:
        me = await _introduce(line)
        board = Switchboard(app, line, me)
        try:
            await _unfinished(board)
            ready(me.username or str(me.id))
            if webhook:
                await serve(line, board, stop, webhook, token)
            else:
                await poll(line, board, stop)
        finally:
            await board.close()
    finally:
        await line.close()


async def _introduce(line: Line) -> User:
    try:
        me = await line.ask(GetMe())
    except (TelegramUnauthorizedError, TelegramNotFound):
        raise unknown_token() from None
    except AiogramError as error:
        raise ConnectError("telegram.unreachable", error=describe_error(error)) from None
    for code, lang in ((None, "en"), ("zh", "zh")):
        commands = [BotCommand(command=name, description=what) for name, what in menu(lang).items()]
        try:
            await line.ask(SetMyCommands(commands=commands, language_code=code))
        except AiogramError as error:  # without a menu it works as well
            log.warning("[Telegram] no menu of commands: %s", describe_error(error))
    return me


async def _unfinished(board: Switchboard) -> None:
    try:
        await board.tell_unfinished()
    except LaminaError as error:
        log.warning("[Telegram] unfinished answers could not be told: %s", error.message)
