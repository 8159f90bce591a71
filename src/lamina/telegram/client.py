"""What the bot sends to Telegram: single messages, and an answer that is edited as it grows and split when it is long.

It keeps Telegram's limits, waits when Telegram asks for it, and never shows the bot's token, which is a part of every
address: errors are reported without addresses.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

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

from lamina.app.app import TurnHandle
from lamina.errors import ConnectError, InputError
from lamina.telegram.incoming import ChatPlace, say
from lamina.telegram.markup import MAX_MESSAGE_UNITS, cut_to_units, html_units, open_fence_sign, split_text, to_html
from lamina.types import Ended, Key, Notice, Text, ToolCallEvent, ToolResult

CHAT_INTERVAL_S, GROUP_INTERVAL_S = 1.0, 3.0
"""Between two messages or edits in one chat: Telegram takes one a second, and twenty a minute in a group."""
MAX_ATTEMPTS = 6
MAX_WAIT_S = 300.0
"""A message that Telegram wants to be delayed for longer is given up."""
MAX_CHATS = 1_000
"""Chats of which the time of the last message is remembered."""
FIRST_WAIT_S = 0.4
"""The first words wait so long for more: a short answer is one message and no edit."""
TYPING_INTERVAL_S = 4.5
"""Telegram shows for five seconds that somebody is typing."""
UNFORMATTED = ("parse entities", "too long", "entity", "unsupported", "empty")
"""Words of Telegram's refusals after which the same text is sent without markup; it gives no codes for them."""
NO_PREVIEW = LinkPreviewOptions(is_disabled=True)
Why = Literal["stopped", "interrupted", "broken"]
"""Somebody stopped the answer, the bot ended, or the provider did."""
log = logging.getLogger("lamina.telegram")


@dataclass(slots=True)
class _ChatPace:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    free_at: float = 0.0


def describe_error(error: BaseException) -> str:
    """An error in a few words that hold neither an address nor what somebody wrote."""
    if isinstance(error, TelegramAPIError) and not isinstance(error, TelegramNetworkError):
        return f"{type(error).__name__}: {error.message}"
    return type(error).__name__


class _MaskingSession(AiohttpSession):
    """aiogram's session, without the addresses in its errors."""

    async def make_request(self, bot: Bot, method: TelegramMethod[Any], timeout: int | None = None) -> Any:
        try:
            return await super().make_request(bot, method, timeout)
        except TelegramNetworkError as error:
            error.message = error.message.replace(bot.token, "…")
            raise error from None


class TelegramClient:
    """One bot's connection to Telegram. A `pace` of 1 keeps Telegram's limits; tests are in a hurry."""

    def __init__(self, token: Key, *, api: str = "", pace: float = 1.0) -> None:
        server = TelegramAPIServer.from_base(api) if api else PRODUCTION
        self.bot = Bot(token.reveal(), session=_MaskingSession(api=server))
        self._pace = pace
        self._paces: dict[int, _ChatPace] = {}

    async def close(self) -> None:
        await self.bot.session.close()

    async def call(self, method: TelegramMethod[Any], timeout_s: int = 30) -> Any:
        """One request, without waiting for the chat and without a second attempt."""
        return await self.bot(method, request_timeout=timeout_s)

    async def send(self, place: ChatPlace, text: str) -> int:
        """Send Markdown of at most one message; returns its id, 0 where it cannot be delivered."""
        quoted = ReplyParameters(message_id=place.reply_to, allow_sending_without_reply=True) if place.group else None
        topic = place.topic or None
        sent = await self._send_text(
            place, SendMessage, text, must=True, message_thread_id=topic, reply_parameters=quoted
        )
        return sent.message_id if isinstance(sent, Message) else 0

    async def edit(self, place: ChatPlace, message_id: int, text: str, *, must: bool) -> bool:
        """Edit a message; False where that was not possible now, or not any more."""
        return await self._send_text(place, EditMessageText, text, must=must, message_id=message_id) is not None

    async def delete(self, place: ChatPlace, message_id: int) -> None:
        try:
            await self._request(place, DeleteMessage(chat_id=place.chat, message_id=message_id), must=True)
        except TelegramBadRequest as error:  # it is gone already
            log.debug("[Telegram] refused: %s", error.message)

    async def show_typing(self, place: ChatPlace) -> None:
        """Show until cancelled that an answer is being written."""
        while True:
            action = SendChatAction(chat_id=place.chat, action="typing", message_thread_id=place.topic or None)
            try:
                await self.call(action)
            except AiogramError as error:  # the answer comes without it as well
                log.debug("[Telegram] typing: %s", describe_error(error))
            await asyncio.sleep(TYPING_INTERVAL_S)

    async def wait_until_free(self, place: ChatPlace) -> None:
        """Until the chat takes another edit."""
        pace = self._pace_of(place)
        async with pace.lock:  # a message on its way holds it
            pass
        await asyncio.sleep(max(0.0, pace.free_at - time.monotonic()))

    async def download(self, file_id: str, max_bytes: int) -> bytes:
        try:
            file = await self.bot.get_file(file_id, request_timeout=30)
            if not file.file_path or (file.file_size or 0) > max_bytes:
                raise InputError("telegram.file_too_large", limit=max_bytes)
            address = self.bot.session.api.file_url(self.bot.token, file.file_path)
            content = bytearray()
            async for chunk in self.bot.session.stream_content(address):
                content += chunk
                if len(content) > max_bytes:
                    raise InputError("telegram.file_too_large", limit=max_bytes)
            return bytes(content)
        except (AiogramError, ClientError, TimeoutError, OSError) as error:
            raise ConnectError("telegram.file_not_fetched", error=type(error).__name__) from None

    async def _send_text(
        self, place: ChatPlace, kind: Callable[..., TelegramMethod[Any]], text: str, *, must: bool, **given: object
    ) -> Any:
        """With markup; as plain text where Telegram refuses the markup. None where nothing was sent."""
        given |= {"chat_id": place.chat, "link_preview_options": NO_PREVIEW}
        html = to_html(text)
        plain = kind(text=cut_to_units(text, MAX_MESSAGE_UNITS).strip() or "…", **given)
        fits = html and html_units(html) <= MAX_MESSAGE_UNITS
        method = kind(text=html, parse_mode="HTML", **given) if fits else plain
        for retry in (True, False):
            try:
                return await self._request(place, method, must=must)
            except TelegramBadRequest as error:
                problem = error.message.lower()
            if "not modified" in problem:
                return True
            if retry and "thread not found" in problem:
                method = method.model_copy(update={"message_thread_id": None})
            elif retry and any(words in problem for words in UNFORMATTED):
                method = plain
            else:
                break
        log.log(logging.WARNING if must else logging.DEBUG, "[Telegram] refused: %s", problem)
        return None

    async def _request(self, place: ChatPlace, method: TelegramMethod[Any], *, must: bool) -> Any:
        """One request at a time in a chat, as often as it takes. One that need not arrive gives way to others."""
        pace = self._pace_of(place)
        if not must and (pace.lock.locked() or pace.free_at > time.monotonic()):
            return None
        interval_s = self._pace * (GROUP_INTERVAL_S if place.group else CHAT_INTERVAL_S)
        for attempt in range(MAX_ATTEMPTS):
            async with pace.lock:
                await asyncio.sleep(max(0.0, pace.free_at - time.monotonic()))
                pace.free_at = time.monotonic() + interval_s
                try:
                    return await self.call(method)
                except TelegramBadRequest:
                    raise
                except TelegramRetryAfter as error:
                    wait_s = float(error.retry_after)
                except (TelegramNetworkError, TelegramServerError, ClientDecodeError) as error:
                    wait_s = self._pace * 2.0**attempt
                    log.info("[Telegram] %s", describe_error(error))
                except TelegramAPIError as error:  # blocked by the user, removed from the group
                    log.warning("[Telegram] %s", describe_error(error))
                    return None
                pace.free_at = time.monotonic() + wait_s
                if not must or wait_s > MAX_WAIT_S:
                    return None
        log.warning("[Telegram] a message could not be delivered in %d attempts", MAX_ATTEMPTS)
        return None

    def _pace_of(self, place: ChatPlace) -> _ChatPace:
        if len(self._paces) > MAX_CHATS:
            now = time.monotonic()
            self._paces = {chat: p for chat, p in self._paces.items() if p.lock.locked() or p.free_at > now}
        return self._paces.setdefault(place.chat, _ChatPace())


@dataclass(slots=True)
class Draft:
    """The messages of one answer: the id of each, 0 where it could not be delivered, and what it shows."""

    client: TelegramClient
    place: ChatPlace
    messages: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    async def update(self, text: str) -> bool:
        """At most one request, for the first part that is not up to date. Is all of it shown now?"""
        parts = split_text(text)
        for at, part in enumerate(parts):
            if at == len(self.messages):
                self.messages.append((await self.client.send(self.place, part), part))
                return at == len(parts) - 1
            message_id, current = self.messages[at]
            if current != part and message_id:
                if not await self.client.edit(self.place, message_id, part, must=False):
                    return False
                self.messages[at] = message_id, part
                return at == len(parts) - 1
        return True

    async def finish(self, text: str) -> None:
        """Show all of it. A message that is gone is sent again, and one too many is deleted."""
        parts = split_text(text)
        for at, part in enumerate(parts):
            message_id, current = self.messages[at] if at < len(self.messages) else (0, "")
            if message_id and current == part:
                continue
            if not message_id or not await self.client.edit(self.place, message_id, part, must=True):
                message_id = await self.client.send(self.place, part)
            self.messages[at : at + 1] = [(message_id, part)]
        for message_id, _ in self.messages[len(parts) :]:
            if message_id:
                await self.client.delete(self.place, message_id)
        del self.messages[len(parts) :]


@dataclass(slots=True)
class _AnswerText:
    """The text of a turn so far, and the tool that runs now."""

    lang: str
    text: str = ""
    tool: str = ""
    paused: bool = False
    ended: Ended = field(default_factory=lambda: Ended("failed"))
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is something to show, and at the end."""

    async def read(self, running: TurnHandle, draft: Draft) -> None:
        try:
            async with aclosing(running.events()) as events:
                async for event in events:
                    match event:
                        case Text():
                            if self.paused and self.text:  # a blank line between the texts of two steps
                                self.text = self.text.rstrip() + "\n\n"
                            self.text, self.tool, self.paused = self.text + event.text, "", False
                        case ToolCallEvent():
                            self.tool, self.paused = event.name, True
                        case ToolResult():
                            self.tool = ""
                        case Notice(kind="rules" | "reads" as kind):
                            await draft.client.send(draft.place, say(self.lang, f"bot.notice.{kind}"))
                            continue
                        case Ended():
                            self.ended = event
                        case _:
                            continue
                    self.changed.set()
        finally:
            self.changed.set()

    def current(self) -> str:
        return _append(self.text, say(self.lang, "bot.using", name=f"`{self.tool}`")) if self.tool else self.text


async def show_turn(
    client: TelegramClient, place: ChatPlace, running: TurnHandle, lang: str, closing: asyncio.Event
) -> list[int]:
    """Show a turn until its end; returns the ids of the messages that show it. When it is interrupted, `closing` says
    that the bot ends; otherwise somebody stopped it."""
    answer, draft = _AnswerText(lang), Draft(client, place)
    reading = asyncio.create_task(answer.read(running, draft))
    typing = asyncio.create_task(client.show_typing(place))
    try:
        await answer.changed.wait()
        await asyncio.wait({reading}, timeout=FIRST_WAIT_S)
        while not reading.done():
            await client.wait_until_free(place)
            if reading.done():
                break
            answer.changed.clear()
            if (current := answer.current()).strip() and not await draft.update(current):
                answer.changed.set()
            await answer.changed.wait()
        await reading
    finally:
        typing.cancel()
        reading.cancel()
        await asyncio.gather(typing, reading, return_exceptions=True)
    why: Why = "interrupted" if closing.is_set() or running.turn.repeated else "broken"
    if running.cancelled and not closing.is_set():
        why = "stopped"
    await draft.finish(final_text(answer.text, answer.ended, lang, why))
    return [message_id for message_id, _ in draft.messages if message_id]


def final_text(text: str, ended: Ended, lang: str, why: Why) -> str:
    """The answer, and below it why it is not complete."""
    if ended.state == "complete":
        return text if text.strip() else say(lang, "bot.ended.empty")
    failed = ended.state == "failed"
    reason = say(lang, "bot.ended.failed" if failed else f"bot.ended.{why}", error=ended.error or "?")
    if failed and ended.hint:
        reason += f"\n{say(lang, 'bot.next', hint=ended.hint)}"
    return _append(text, reason)


def _append(text: str, words: str) -> str:
    """A paragraph of ours below the model's text; a code block in which that breaks off is closed."""
    text = text.rstrip()
    sign = open_fence_sign(text)
    return f"{text}{f'{chr(10)}{sign}' if sign else ''}\n\n{words}" if text else words
