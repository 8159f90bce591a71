"""Updates by long polling. Telegram forgets an update when a later one is asked for, so we ask for the first that is
not taken yet; those behind it come again meanwhile and are known.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from aiogram.exceptions import (
    AiogramError,
    ClientDecodeError,
    TelegramConflictError,
    TelegramRetryAfter,
    TelegramUnauthorizedError,
)
from aiogram.methods import DeleteWebhook, GetUpdates
from aiogram.types import Update
from pydantic import ValidationError

from lamina.errors import SettingsError
from lamina.telegram.line import Line, describe_error
from lamina.telegram.switchboard import Switchboard, Taken

KINDS = ["message"]
"""The updates that we want."""
PATIENCE = 30
"""Seconds that Telegram holds a request when there is nothing."""
AT_ONCE, SHED = 100, 10
"""Updates that Telegram gives at once, and how many give way when all of them wait."""
MOMENT, PAUSE, LONGEST = 0.2, 1.0, 30.0
"""Seconds: for a question to be stored; between two requests while some wait; after many failures in a row."""
log = logging.getLogger("lamina.telegram")
T = TypeVar("T")


async def poll(line: Line, board: Switchboard, stop: asyncio.Event) -> None:
    """Until told to stop. What goes wrong on the way to Telegram is tried again."""
    offset, failures = 0, 0
    held: dict[int, Taken] = {}
    ready = False
    while not stop.is_set():
        try:
            if not ready:  # Telegram gives updates to one place only
                await line.ask(DeleteWebhook(drop_pending_updates=False))
                ready = True
            updates = await _unless(stop, _updates(line, offset)) or []
            failures = 0
        except TelegramUnauthorizedError:
            raise unknown_token() from None
        except AiogramError as error:
            failures += 1
            await _pause_after(error, failures, stop)
            continue
        fresh = [update for update in updates if update.update_id not in held]
        held |= {update.update_id: board.take(update) for update in fresh}
        if not fresh and len({update.update_id for update in updates}) >= AT_ONCE:
            board.shed(SHED)
        await _settle(held, stop, MOMENT if fresh else PAUSE)
        offset = first_open(held, offset)
        held = {number: taken for number, taken in held.items() if number >= offset}
    await _confirm(line, first_open(held, offset))


def first_open(held: dict[int, Taken], offset: int) -> int:
    """The first update that is not taken; behind the last one when all are."""
    for number in sorted(held):
        taken = held[number]
        if not taken.done() or taken.cancelled():
            return number
        offset = max(offset, number + 1)
    return offset


async def _updates(line: Line, offset: int, seconds: int = PATIENCE) -> list[Update]:
    method = GetUpdates(offset=offset, limit=AT_ONCE, timeout=seconds, allowed_updates=KINDS)
    try:
        return await line.ask(method, seconds + 15)
    except ClientDecodeError as error:  # one that cannot be read must not keep all others from us
        data: Any = error.data
        rows = cast("dict[str, Any]", data).get("result") if isinstance(data, dict) else None
        if not isinstance(rows, list):
            raise
        return [_update(row) for row in cast("list[Any]", rows)]


def _update(row: Any) -> Update:
    try:
        return Update.model_validate(row)
    except ValidationError:
        log.warning("[Telegram] an update of an unknown form was left out")
        return Update(update_id=int(row["update_id"]))


async def _settle(held: dict[int, Taken], stop: asyncio.Event, seconds: float) -> None:
    """Until everything is taken, for a moment; or until something more is, when nothing new came."""
    waiting = [taken for taken in held.values() if not taken.done()]
    if not waiting:
        return
    enough = asyncio.ALL_COMPLETED if seconds == MOMENT else asyncio.FIRST_COMPLETED
    await _unless(stop, _wait(waiting, seconds, enough))


async def _wait(waiting: list[Taken], seconds: float, enough: str) -> None:
    await asyncio.wait(waiting, timeout=seconds, return_when=enough)


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What the work gives; None as soon as we are told to stop."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        for each in (task, stopped):
            each.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)


async def _pause_after(error: AiogramError, failures: int, stop: asyncio.Event) -> None:
    wait = min(LONGEST, 2.0 ** (failures - 1))
    if isinstance(error, TelegramRetryAfter):
        wait = float(error.retry_after)
    if isinstance(error, TelegramConflictError):
        log.warning("[Telegram] another program asks for this bot's updates; only one may")
    elif failures in (1, 5) or failures % 20 == 0:
        log.warning("[Telegram] no updates: %s; again in %g s", describe_error(error), wait)
    try:
        async with asyncio.timeout(wait):
            await stop.wait()
    except TimeoutError:
        pass


async def _confirm(line: Line, offset: int) -> None:
    """What was taken need not come again. Should this fail, it is known when it does."""
    try:
        async with asyncio.timeout(2):
            await line.ask(GetUpdates(offset=offset, limit=1, timeout=0, allowed_updates=KINDS), 2)
    except (AiogramError, TimeoutError) as error:
        log.debug("[Telegram] the end was not confirmed: %s", describe_error(error))


def unknown_token() -> SettingsError:
    return SettingsError("telegram.unknown_token")
