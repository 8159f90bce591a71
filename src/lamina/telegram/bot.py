"""A bot from its settings to its end: it says who it is, shows its commands, and then takes what comes."""

import asyncio
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiogram.exceptions import AiogramError, TelegramNotFound, TelegramUnauthorizedError
from aiogram.methods import GetMe, SetMyCommands
from aiogram.types import BotCommand, User

from lamina.app.app import App
from lamina.errors import ConnectError, LaminaError, SettingsError
from lamina.telegram.line import Line, told
from lamina.telegram.polling import poll, unknown_token
from lamina.telegram.switchboard import Switchboard
from lamina.telegram.texts import menu
from lamina.telegram.webhook import checked_address, checked_listen, serve
from lamina.types import Key

log = logging.getLogger("lamina.telegram")


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where Telegram calls, and where we listen."""

    address: str
    listen: str

    def __post_init__(self) -> None:
        checked_address(self.address)
        checked_listen(self.listen)


def checked_token(token: Key | None, allow: tuple[int, ...]) -> Key:
    """The token, once it is known that somebody may talk to the bot."""
    if token is None:
        raise SettingsError("the bot has no token", hint="set LAMINA_TELEGRAM_TOKEN; @BotFather gives you one")
    if not allow:
        raise SettingsError(
            "nobody may talk to the bot",
            hint="set LAMINA_TELEGRAM_ALLOW to numeric ids; with 0 the bot starts and tells whoever writes theirs",
        )
    return token


async def run_bot(
    app: App, stop: asyncio.Event, *, webhook: Webhook | None = None,
    ready: Callable[[str], object] = lambda name: None, pace: float = 1.0,
) -> None:  # fmt: skip
    """Until told to stop. What runs then is interrupted and kept, and what waits stays with Telegram."""
    settings = app.settings
    token = checked_token(settings.telegram_token, settings.telegram_allow)
    line = Line(token, api=settings.telegram_api, pace=pace)
    try:
        me = await _introduce(line)
        board = Switchboard(app, line, me)
        try:
            await _unfinished(board)
            ready(me.username or str(me.id))
            if webhook:
                address, listen = webhook.address, webhook.listen
                await serve(line, board, stop, address=address, listen=listen, token=token)
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
        raise ConnectError(
            f"Telegram cannot be reached: {told(error)}", hint="check the network, and LAMINA_TELEGRAM_API if it is set"
        ) from None
    for code, lang in ((None, "en"), ("zh", "zh")):
        commands = [BotCommand(command=name, description=what) for name, what in menu(lang).items()]
        try:
            await line.ask(SetMyCommands(commands=commands, language_code=code))
        except AiogramError as error:  # without a menu it works as well
            log.warning("[Telegram] no menu of commands: %s", told(error))
    return me


async def _unfinished(board: Switchboard) -> None:
    try:
        await board.tell_unfinished()
    except LaminaError as error:
        log.warning("[Telegram] unfinished answers could not be told: %s", error.message)


def keep_out_of_logs(secret: Key) -> None:
    """From now on no log line of this process, whoever writes it, holds the secret (G7)."""
    make = logging.getLogRecordFactory()

    def masked(*args: Any, **more: Any) -> logging.LogRecord:
        record = make(*args, **more)
        hidden = secret.reveal()
        message = record.getMessage()
        if hidden in message:
            record.msg, record.args = message.replace(hidden, "…"), ()
        if record.exc_info and record.exc_info[0]:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip().replace(hidden, "…")
            record.exc_info = None
        return record

    logging.setLogRecordFactory(masked)
