"""Turns over HTTP: say something, read what comes, end it, ask again; and what was sent, byte for byte.

Whoever reads a turn is a reader: the turn goes on without him. Asking again makes a branch, it replaces nothing (R15).
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from lamina.app.app import App
from lamina.app.follow import position_of
from lamina.app.traces import Difference, by_layer, difference, prefixes_of, requests_of, unsent, was_lost
from lamina.gateway.api_sessions import HERE as SESSION_HERE
from lamina.gateway.http import HttpError, Reply, Request, Route, Schema
from lamina.gateway.ids import KEY_LENGTH, check_same, found, key_of
from lamina.gateway.sse import HEADERS, MEDIA, is_end, written
from lamina.gateway.values import (
    ACCEPTED,
    COUNT,
    FLAG,
    FREE,
    REQUEST,
    TEXT,
    TURN,
    WHOLE,
    accepted_value,
    record,
    request_value,
    turn_value,
)
from lamina.records import REQUESTS, TurnRecord
from lamina.types import Receipt

MOST_PARTS, MOST_VALUES = 50, 100
IMAGE = record("ImageUrl", {"url": TEXT, "detail": {"enum": ["auto", "low", "high"]}}, may=("detail",))
PART: Schema = {
    "title": "Part",
    "anyOf": [
        record("TextPart", {"type": {"const": "text"}, "text": TEXT}),
        record("ImagePart", {"type": {"const": "image_url"}, "image_url": IMAGE}),
    ],
}
CONTENT: Schema = {
    "title": "Content",
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": PART, "minItems": 1, "maxItems": MOST_PARTS},
    ],
}
VALUE: Schema = {"type": ["string", "number", "boolean"]}
VALUES: Schema = {
    "type": "object", "additionalProperties": VALUE, "maxProperties": MOST_VALUES,
    "description": "what fills the slots of templates, on this turn alone: they are not kept",
}  # fmt: skip
SAID: Schema = {
    "type": "object",
    "properties": {"content": CONTENT, "values": VALUES},
    "required": ["content"],
    "additionalProperties": False,
}
AGAIN: Schema = {"type": "object", "properties": {"values": VALUES}, "additionalProperties": False}
NUMBERED: Schema = {
    "type": "integer", "minimum": 1, "maximum": 10_000,
    "description": "which request of the turn, from 1; the last one unless it is given",
}  # fmt: skip
KEY: Mapping[str, Schema] = {
    "Idempotency-Key": {
        "type": "string", "maxLength": KEY_LENGTH, "description": "the same key again is the same turn",
    }
}  # fmt: skip
AFTER: Schema = {"type": "string", "maxLength": 40, "description": "the id of the last event that came"}
DIFFERENCE = record(
    "Difference",
    {
        "before": record("Sent", {"turn_id": TEXT, "request": COUNT, "hash": TEXT, "size": COUNT, "tokens": COUNT}),
        "after": record("Sent", {"turn_id": TEXT, "request": COUNT, "hash": TEXT, "size": COUNT, "tokens": COUNT}),
        "same": FLAG, "byte": {"type": ["integer", "null"]}, "layer": TEXT, "source": TEXT, "reason": TEXT,
        "extends": FLAG, "shared_tokens": WHOLE, "tokens_after": WHOLE,
        "layers": {
            "type": "array", "items": record("LayerChange", {"layer": TEXT, "before": COUNT, "after": COUNT}),
        },
    },
)  # fmt: skip


def turn_headers(turn: TurnRecord) -> dict[str, str]:
    return {"X-Lamina-Turn": turn.turn_id, "X-Lamina-Session": turn.session_id}


def wants_events(request: Request) -> bool:
    return MEDIA in request.headers.get("accept", "").lower()


def _streamed(app: App, request: Request, turn: TurnRecord, after: str = "") -> Reply:
    events = app.follow(request.user, turn.turn_id, after)
    return Reply(written(events), headers={**HEADERS, **turn_headers(turn)}, media=MEDIA)


async def _begun(
    app: App, request: Request, session_id: str, content: str | Sequence[Mapping[str, Any]], **options: Any
) -> Reply:
    """Say it, and give the turn's beginning or, where the caller wants them, its events."""
    running = await app.start(request.user, session_id, content, key=key_of(request.headers), **options)
    await check_same(app, request, running.turn, content)
    request.watch(running)
    if wants_events(request):
        return _streamed(app, request, running.turn)
    return Reply(accepted_value(running.turn), 202, turn_headers(running.turn))


@found
async def _say(app: App, request: Request) -> Reply:
    values = request.body.get("values", {})
    return await _begun(app, request, request.params["session_id"], request.body["content"], values=values)


@found
async def _context(app: App, request: Request) -> Reply:
    session_id, content = request.params["session_id"], request.body["content"]
    await app.store.sessions.get(request.user, session_id)
    if app.settings.memory and isinstance(content, str):  # read first: the deadline is not for a start; it may fail
        await asyncio.gather(app.recall.search(request.user, content, limit=1), return_exceptions=True)
    context = await app.context(request.user, session_id, content, values=request.body.get("values", {}))
    return Reply(request_value(context.receipt, None, 1, 1))


@found
async def _get(app: App, request: Request) -> Reply:
    return Reply(turn_value(await app.store.turns.get(request.user, request.params["turn_id"])))


@found
async def _events(app: App, request: Request) -> Reply:
    turn = await app.store.turns.get(request.user, request.params["turn_id"])
    after = request.headers.get("last-event-id", "").strip() or request.query.get("after", "")
    if is_end(after):
        return Reply(status=204, headers=turn_headers(turn))
    position_of(after)  # a wrong one is refused before the answer begins
    return _streamed(app, request, turn, after)


@found
async def _cancel(app: App, request: Request) -> Reply:
    return Reply(turn_value(await app.cancel(request.user, request.params["turn_id"])))


@found
async def _retry(app: App, request: Request) -> Reply:
    """The question once more, in a branch that ends before it, or in a new session when it was the first."""
    owner, sessions = request.user, app.store.sessions
    turn = await app.store.turns.get(owner, request.params["turn_id"])
    question = await app.store.history.get(owner, turn.user_message_id)
    if turn.session_id == REQUESTS:
        raise HttpError(409, "a single request has no chat to be asked again in", hint="send it again", kind="conflict")
    if question.role != "user":
        raise HttpError(
            409, "this turn goes on from results of calls", hint="retry the turn that called them", kind="conflict"
        )
    key = key_of(request.headers)
    # with a key the session is named by it, so that a second try finds the first one's
    name = hashlib.sha256(f"{turn.turn_id}\n{key}".encode()).hexdigest()[:32] if key else ""
    if question.seq > 1:
        made = await sessions.branch(owner, turn.session_id, question.seq - 1, name=name)
    else:
        old = await sessions.get(owner, turn.session_id)
        same = {each: getattr(old, each) for each in ("title", "scenario", "app", "mode", "skill", "meta")}
        made = await app.new_session(owner, session_id=name, **same)
    values: Mapping[str, Any] = request.body.get("values", {}) if request.body else {}
    return await _begun(app, request, made.session_id, question.content or "", values=values)


async def _sent(app: App, request: Request, turn_id: str, number: int | None) -> tuple[TurnRecord, int, list[Receipt]]:
    """A turn, which of its requests is meant, and all of them."""
    turn = await app.store.turns.get(request.user, turn_id)
    receipts = await requests_of(app.store, request.user, turn)
    if not receipts:
        why = unsent(turn)
        if turn.finished is None:
            raise HttpError(
                409, "the turn has just begun: it has not sent anything yet", hint="ask again", kind="running"
            )
        raise HttpError(409, why.message, hint=why.hint, kind="lost" if was_lost(turn) else "not_sent")
    if number is not None and number > len(receipts):
        raise HttpError(400, f"request is {number}", hint=f"the turn has {len(receipts)}, counted from 1")
    return turn, number or len(receipts), receipts


@found
async def _receipt(app: App, request: Request) -> Reply:
    turn, number, receipts = await _sent(app, request, request.params["turn_id"], request.query.get("request"))
    prefix = (await prefixes_of(app.store, request.user, turn, receipts))[number - 1]
    told = request_value(receipts[number - 1], turn, number, len(receipts), prefix)
    return Reply(told, headers=turn_headers(turn))


@found
async def _payload(app: App, request: Request) -> Reply:
    turn, number, receipts = await _sent(app, request, request.params["turn_id"], request.query.get("request"))
    one = receipts[number - 1]
    return Reply(one.payload, headers={**turn_headers(turn), "X-Lamina-Payload-SHA256": one.hash})


@found
async def _diff(app: App, request: Request) -> Reply:
    """Of one turn its first and its last request, of two the last of the one and the first of the other."""
    first, other = request.params["turn_id"], request.params["other_id"]
    numbers = request.query.get("request"), request.query.get("other_request")
    a, at, before = await _sent(app, request, first, numbers[0] or (1 if first == other else None))
    b, to, after = await _sent(app, request, other, numbers[1] or (None if first == other else 1))
    one, two = before[at - 1], after[to - 1]
    told = difference(one, two)
    fields = {name: getattr(told, name) for name in Difference.__slots__}
    layers = [{"layer": layer, "before": old, "after": new} for layer, (old, new) in by_layer(one, two).items()]
    sides = {"before": _side(a, at, one), "after": _side(b, to, two)}
    return Reply({**sides, "same": told.byte is None, **fields, "layers": layers})


def _side(turn: TurnRecord, number: int, receipt: Receipt) -> dict[str, Any]:
    size = {"hash": receipt.hash, "size": receipt.size, "tokens": receipt.tokens}
    return {"turn_id": turn.turn_id, "request": number, **size}


HERE = "/api/turns/{turn_id}"
TAGS: dict[str, Any] = {"tags": ("turns",)}
ROUTES = (
    Route(
        "POST", f"{SESSION_HERE}/messages", _say,
        "Say something: 202 with the turn that answers or, accepting text/event-stream, 200 and its events", "chat",
        body=SAID, example={"content": "What did we decide about the budget?"}, answer=ACCEPTED, status=202,
        headers=KEY, streams=True, **TAGS,
    ),
    Route(
        "POST", f"{SESSION_HERE}/context", _context, "What the model would see if this were said now", "read",
        body=SAID, example={"content": "And now?"}, answer=REQUEST, **TAGS,
    ),
    Route("GET", HERE, _get, "One turn", "read", answer=TURN, **TAGS),
    Route(
        "GET", f"{HERE}/events", _events, "Its events from a position on; 204 behind the last one", "chat",
        query={"after": AFTER}, headers={"Last-Event-ID": AFTER}, media=MEDIA, streams=True, **TAGS,
    ),
    Route("POST", f"{HERE}/cancel", _cancel, "End it with what came so far", "chat", answer=TURN, **TAGS),
    Route(
        "POST", f"{HERE}/retry", _retry,
        "Ask its question again in a branch that ends before it; values that it had are to be given again", "chat",
        body=AGAIN, bare=True, example={"values": {"city": "Kyoto"}}, answer=ACCEPTED, status=202, headers=KEY,
        streams=True, **TAGS,
    ),
    Route(
        "GET", f"{HERE}/receipt", _receipt, "What was sent: each segment with its layer, source, fate and text", "read",
        query={"request": NUMBERED}, answer=REQUEST, **TAGS,
    ),
    Route(
        "GET", f"{HERE}/payload", _payload, "The exact bytes that were sent", "read", query={"request": NUMBERED},
        answer=FREE, **TAGS,
    ),
    Route(
        "GET", HERE + "/diff/{other_id}", _diff, "The first byte in which two requests differ, and why", "read",
        query={"request": NUMBERED, "other_request": NUMBERED}, answer=DIFFERENCE, **TAGS,
    ),
)  # fmt: skip
