"""Ids from outside: whole, well formed, and the principal's own, or there is no such thing here (I2).

Somebody else's, a missing and a malformed id get the same bytes. No beginnings of ids are taken here, and none is told
back.
"""

from collections.abc import Mapping
from functools import wraps
from typing import Any

from lamina.app.app import App
from lamina.errors import NotFoundError
from lamina.gateway.http import Handler, HttpError, Reply, Request, not_found
from lamina.gateway.values import ID_LENGTH
from lamina.records import TurnRecord
from lamina.text.unicode import is_unicode

MAX_KEY_CHARACTERS = 150
KEY_PREFIX = "api:"
"""A caller's keys are told apart from those that channels give their turns."""


def is_id(text: str) -> bool:
    """Whether this could be an id at all; what could not is never handed to a store."""
    return 0 < len(text) <= ID_LENGTH and text.isprintable() and is_unicode(text)


def hide_missing(handler: Handler) -> Handler:
    """The handler, with one answer for everything that is not there for this principal."""

    @wraps(handler)
    async def wrapped(app: App, request: Request) -> Reply:
        if not all(map(is_id, request.params.values())):
            raise not_found()
        try:
            return await handler(app, request)
        except NotFoundError:
            raise not_found() from None

    return wrapped


async def check_same_question(app: App, request: Request, turn: TurnRecord, content: Any) -> None:
    """A key that was used for another question is a slip: its answer would be taken for this one's."""
    if request.headers.get("idempotency-key", "").strip():
        kept = await app.store.messages.get(request.user, turn.user_message_id)
        if (kept.content or "") != (content or ""):
            raise HttpError(409, "idempotency.other_question", kind="conflict")


def idempotency_key(headers: Mapping[str, str]) -> str:
    """The caller's `Idempotency-Key` as the key of a turn; empty without one."""
    key = headers.get("idempotency-key", "").strip()
    if len(key) > MAX_KEY_CHARACTERS or not key.isprintable():
        raise HttpError(400, "idempotency.bad_key", limit=MAX_KEY_CHARACTERS)
    return f"{KEY_PREFIX}{key}" if key else ""
