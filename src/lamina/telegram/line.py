"""The line to Telegram: what is sent keeps its limits, waits when it is told to, and never shows the bot's token.

The token is a part of every address, so whatever goes wrong is told without addresses.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiogram import Bot
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import PRODUCTION, TelegramAPIServer
from aiogram.exceptions import (
    AiogramError,
    ClientDecodeError,
    TelegramAPIError,
    TelegramBadRequest,
    TelegramNetworkError,
    TelegramRetryAfter,
    TelegramServerError,
)
from aiogram.methods import DeleteMessage, EditMessageText, SendChatAction, SendMessage, TelegramMethod
from aiogram.types import LinkPreviewOptions, Message, ReplyParameters
from aiohttp import ClientError

from lamina.errors import ConnectError, InputError
from lamina.telegram.markup import MOST, head, shown_units, to_html
from lamina.types import Key

PACE, GROUP_PACE = 1.0, 3.0
"""Seconds between two messages or edits in one chat: Telegram takes one a second, and twenty a minute in a group."""
TRIES = 6
LONGEST_WAIT = 300.0
"""Seconds; who is told to wait longer gives up."""
CHATS = 1_000
log = logging.getLogger("lamina.telegram")


@dataclass(frozen=True, slots=True)
class Place:
    """Where somebody writes, and gets the answer."""

    chat: int
    topic: int = 0
    group: bool = False
    reply_to: int = 0

    @property
    def pace(self) -> float:
        return GROUP_PACE if self.group else PACE


@dataclass(slots=True)
class _Pace:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    free: float = 0.0


def describe_error(error: BaseException) -> str:
    """An error in a few words that hold neither an address nor what somebody wrote."""
    if isinstance(error, TelegramAPIError) and not isinstance(error, TelegramNetworkError):
        return f"{type(error).__name__}: {error.message}"
    return type(error).__name__


class _Session(AiohttpSession):
    """aiogram's, without the addresses in its errors."""

    async def make_request(
        self, bot: Bot, method: TelegramMethod[Any], timeout: int | None = None
    ) -> Any:  # fmt: skip
        try:
            return await super().make_request(bot, method, timeout)
        except TelegramNetworkError as error:
            error.message = error.message.replace(bot.token, "…")
            raise error from None


class Line:
    """One bot's way to Telegram and back."""

    def __init__(self, token: Key, *, api: str = "", pace: float = 1.0) -> None:
        self.bot = Bot(token.reveal(), session=_Session(api=TelegramAPIServer.from_base(api) if api else PRODUCTION))
        self._pace = pace
        """1 keeps Telegram's limits; tests are in a hurry."""
        self._paces: dict[int, _Pace] = {}

    async def close(self) -> None:
        await self.bot.session.close()

    async def ask(self, method: TelegramMethod[Any], seconds: int = 30) -> Any:
        """One request as it is."""
        return await self.bot(method, request_timeout=seconds)

    async def say(self, place: Place, text: str, *, reply: bool = False) -> int:
        """Send Markdown of at most one message; returns its number, 0 where it cannot be delivered."""
        quote = place.reply_to if reply or place.group else 0
        given: dict[str, Any] = {
            "chat_id": place.chat,
            "message_thread_id": place.topic or None,
            "reply_parameters": ReplyParameters(message_id=quote, allow_sending_without_reply=True) if quote else None,
            "link_preview_options": LinkPreviewOptions(is_disabled=True),
        }
        sent = await self._marked(place, SendMessage, text, given, must=True)
        return sent.message_id if isinstance(sent, Message) else 0

    async def change(self, place: Place, number: int, text: str, *, must: bool) -> bool:
        """Edit a message; False where that was not possible now, or not any more."""
        given: dict[str, Any] = {
            "chat_id": place.chat,
            "message_id": number,
            "link_preview_options": LinkPreviewOptions(is_disabled=True),
        }
        return await self._marked(place, EditMessageText, text, given, must=must) is not None

    async def remove(self, place: Place, number: int) -> None:
        try:
            await self._paced(place, DeleteMessage(chat_id=place.chat, message_id=number), must=True)
        except TelegramBadRequest as error:  # it is gone already
            log.debug("[Telegram] refused: %s", error.message)

    async def typing(self, place: Place) -> None:
        try:
            await self.ask(SendChatAction(chat_id=place.chat, action="typing", message_thread_id=place.topic or None))
        except AiogramError as error:  # it is only a courtesy
            log.debug("[Telegram] typing: %s", describe_error(error))

    async def ready(self, place: Place) -> None:
        """Until the chat takes another edit."""
        pace = self._pace_of(place)
        async with pace.lock:  # somebody who sends holds it
            pass
        await asyncio.sleep(max(0.0, pace.free - time.monotonic()))

    async def fetch(self, file_id: str, most: int) -> bytes:
        """A file, which may have so many bytes."""
        try:
            file = await self.bot.get_file(file_id, request_timeout=30)
            if not file.file_path or (file.file_size or 0) > most:
                raise InputError("telegram.file_too_large", limit=most)
            address = self.bot.session.api.file_url(self.bot.token, file.file_path)
            got = bytearray()
            async for chunk in self.bot.session.stream_content(address):
                got += chunk
                if len(got) > most:
                    raise InputError("telegram.file_too_large", limit=most)
            return bytes(got)
        except (AiogramError, ClientError, TimeoutError, OSError) as error:
            raise ConnectError("telegram.file_not_fetched", error=type(error).__name__) from None

    async def _marked(
        self, place: Place, kind: Callable[..., TelegramMethod[Any]], text: str, given: dict[str, Any], *, must: bool
    ) -> Any:
        """With markup; as plain text where Telegram refuses the markup."""
        marked, plain = to_html(text), kind(text=head(text, MOST).strip() or "…", **given)
        try:
            if not marked or shown_units(marked) > MOST:
                return await self._paced(place, plain, must)
            return await self._paced(place, kind(text=marked, parse_mode="HTML", **given), must)
        except TelegramBadRequest as error:
            problem = error.message.lower()
        if "not modified" in problem:
            return True
        try:
            if "thread not found" in problem:
                return await self._paced(
                    place, kind(text=marked, parse_mode="HTML", **{**given, "message_thread_id": None}), must
                )
            if any(words in problem for words in ("parse entities", "too long", "entity", "unsupported", "empty")):
                return await self._paced(place, plain, must)
        except TelegramBadRequest as error:
            problem = error.message.lower()
        log.log(logging.WARNING if must else logging.DEBUG, "[Telegram] refused: %s", problem)
        return None

    async def _paced(self, place: Place, method: TelegramMethod[Any], must: bool) -> Any:
        """One request at a time in a chat, as often as it takes. What need not arrive gives way."""
        pace = self._pace_of(place)
        if not must and (pace.lock.locked() or pace.free > time.monotonic()):
            return None
        for attempt in range(TRIES):
            async with pace.lock:
                await asyncio.sleep(max(0.0, pace.free - time.monotonic()))
                pace.free = time.monotonic() + self._pace * place.pace
                try:
                    return await self.ask(method)
                except TelegramBadRequest:
                    raise
                except TelegramRetryAfter as error:
                    wait = float(error.retry_after)
                except (TelegramNetworkError, TelegramServerError, ClientDecodeError) as error:
                    wait = self._pace * 2.0**attempt
                    log.info("[Telegram] %s", describe_error(error))
                except TelegramAPIError as error:  # blocked by the user, thrown out of the group
                    log.warning("[Telegram] %s", describe_error(error))
                    return None
                pace.free = time.monotonic() + wait
                if not must or wait > LONGEST_WAIT:
                    return None
        log.warning("[Telegram] a message could not be delivered in %d tries", TRIES)
        return None

    def _pace_of(self, place: Place) -> _Pace:
        if len(self._paces) > CHATS:
            now = time.monotonic()
            self._paces = {chat: p for chat, p in self._paces.items() if p.lock.locked() or p.free > now}
        return self._paces.setdefault(place.chat, _Pace())
