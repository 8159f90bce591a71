"""Turns over HTTP: say something, read what comes, end it, ask again; and what was sent, byte for byte.

A turn goes on without its readers. Asking again makes a branch, it replaces nothing (R15).
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from lamina.apart import run_apart
from lamina.app.app import App
from lamina.app.follow import position_of, read_story
from lamina.app.traces import by_layer, difference, prefixes_of, requests_of, unsent, was_lost
from lamina.gateway.api_sessions import HERE as SESSION_HERE
from lamina.gateway.http import HttpError, Reply, Request, Route, Schema
from lamina.gateway.ids import MAX_KEY_CHARACTERS, check_same_question, hide_missing, idempotency_key
from lamina.gateway.sse import HEADERS, MEDIA, is_end, write_events
from lamina.gateway.values import (
    ACCEPTED,
    COUNT,
    FLAG,
    FREE,
    PHASE,
    PHRASE,
    REQUEST,
    TEXT,
    TURN,
    WHOLE,
    accepted_value,
    record,
    request_value,
    turn_headers,
    turn_value,
)
from lamina.records import REQUESTS, TurnOptions, TurnRecord
from lamina.text.messages import Phrase
from lamina.types import Receipt

MAX_PARTS, MAX_VALUES = 50, 100
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
        {"type": "array", "items": PART, "minItems": 1, "maxItems": MAX_PARTS},
    ],
}
VALUE: Schema = {"type": ["string", "number", "boolean"]}
VALUES: Schema = {
    "type": "object", "additionalProperties": VALUE, "maxProperties": MAX_VALUES,
    "description": "what fills the slots of templates, on this turn alone: they are not kept",
}  # fmt: skip
PHASE_OF_TURN: Schema = {
    **PHASE, "description": "a phase prompt, sent in front of the words on this turn alone, in place of the session's; "
    "empty for none",
}  # fmt: skip
MESSAGE_BODY: Schema = {
    "type": "object",
    "properties": {"content": CONTENT, "values": VALUES, "phase": PHASE_OF_TURN},
    "required": ["content"],
    "additionalProperties": False,
}
RETRY_BODY: Schema = {
    "type": "object", "properties": {"values": VALUES, "phase": PHASE_OF_TURN}, "additionalProperties": False,
}  # fmt: skip
NUMBERED: Schema = {
    "type": "integer", "minimum": 1, "maximum": 10_000,
    "description": "which request of the turn, from 1; the last one unless it is given",
}  # fmt: skip
KEY: Mapping[str, Schema] = {
    "Idempotency-Key": {
        "type": "string", "maxLength": MAX_KEY_CHARACTERS, "description": "the same key again is the same turn",
    }
}  # fmt: skip
AFTER: Schema = {"type": "string", "maxLength": 40, "description": "the id of the last event that came"}
DIFFERENCE = record(
    "Difference",
    {
        "before": record("Sent", {"turn_id": TEXT, "request": COUNT, "hash": TEXT, "size": COUNT, "tokens": COUNT}),
        "after": record("Sent", {"turn_id": TEXT, "request": COUNT, "hash": TEXT, "size": COUNT, "tokens": COUNT}),
        "same": FLAG, "byte": {"type": ["integer", "null"]}, "layer": TEXT, "source": TEXT, "reason": PHRASE,
        "extends": FLAG, "shared_tokens": WHOLE, "tokens_after": WHOLE,
        "layers": {
            "type": "array", "items": record("LayerChange", {"layer": TEXT, "before": COUNT, "after": COUNT}),
        },
    },
)  # fmt: skip


def wants_events(request: Request) -> bool:
    return MEDIA in request.headers.get("accept", "").lower()


def _stream_events(app: App, request: Request, turn: TurnRecord, after: str = "") -> Reply:
    events = app.follow(request.user, turn.turn_id, after)
    return Reply(write_events(events), headers={**HEADERS, **turn_headers(turn)}, media=MEDIA)


async def _start_turn(
    app: App, request: Request, session_id: str, content: str | Sequence[Mapping[str, Any]],
    **options: Unpack[TurnOptions],
) -> Reply:  # fmt: skip
    """Say it, and give the turn's beginning or, where the caller wants them, its events."""
    running = await app.start(request.user, session_id, content, key=idempotency_key(request.headers), **options)
    await check_same_question(app, request, running.turn, content)
    request.watch(running)
    if wants_events(request):
        return _stream_events(app, request, running.turn)
    return Reply(accepted_value(running.turn), 202, turn_headers(running.turn))


def _options(request: Request) -> TurnOptions:
    """What a body says of its turn beside the words."""
    body: Mapping[str, Any] = request.body or {}
    return {"values": body.get("values", {}), "phase_prompt": body.get("phase")}


@hide_missing
async def _say(app: App, request: Request) -> Reply:
    return await _start_turn(app, request, request.params["session_id"], request.body["content"], **_options(request))


@hide_missing
async def _context(app: App, request: Request) -> Reply:
    session_id, content = request.params["session_id"], request.body["content"]
    await app.store.sessions.get(request.user, session_id)
    if app.settings.memory and isinstance(content, str):  # read first: the deadline is not for a start; it may fail
        await asyncio.gather(app.recall.search(request.user, content[:100], limit=1), return_exceptions=True)
    context = await app.context(request.user, session_id, content, **_options(request))
    return Reply(request_value(context.receipt, None, 1, 1))


@hide_missing
async def _get(app: App, request: Request) -> Reply:
    return Reply(turn_value(await app.store.turns.get(request.user, request.params["turn_id"])))


@hide_missing
async def _events(app: App, request: Request) -> Reply:
    turn = await app.store.turns.get(request.user, request.params["turn_id"])
    after = request.headers.get("last-event-id", "").strip() or request.query.get("after", "")
    if is_end(after):
        return Reply(status=204, headers=turn_headers(turn))
    position_of(after)  # a wrong one is refused before the answer begins
    if app.engine.running(turn.turn_id) is None:
        await read_story(app.store, turn)  # and so is what cannot be read
    return _stream_events(app, request, turn, after)


@hide_missing
async def _cancel(app: App, request: Request) -> Reply:
    return Reply(turn_value(await app.cancel(request.user, request.params["turn_id"])))


@hide_missing
async def _retry(app: App, request: Request) -> Reply:
    """The question once more, in a branch that ends before it, or in a new session when it was the first."""
    owner, sessions = request.user, app.store.sessions
    turn = await app.store.turns.get(owner, request.params["turn_id"])
    question = await app.store.messages.get(owner, turn.user_message_id)
    if turn.session_id == REQUESTS:
        raise HttpError(409, "turn.single_retry", kind="conflict")
    if question.role != "user":
        raise HttpError(409, "turn.from_results", kind="conflict")
    key = idempotency_key(request.headers)
    # with a key the session is named by it, so that a second try finds the first one's
    name = hashlib.sha256(f"{turn.turn_id}\n{key}".encode()).hexdigest()[:32] if key else ""
    if question.seq > 1:
        made = await sessions.branch(owner, turn.session_id, question.seq - 1, name=name)
    else:
        old = await sessions.get(owner, turn.session_id)
        made = await app.new_session(
            owner, session_id=name, title=old.title, scenario=old.scenario, app=old.app, mode=old.mode,
            skill=old.skill, meta=old.meta, phase=old.phase,
        )  # fmt: skip
    return await _start_turn(app, request, made.session_id, question.content or "", **_options(request))


async def _find_request(
    app: App, request: Request, turn_id: str, number: int | None
) -> tuple[TurnRecord, int, list[Receipt]]:
    """A turn, which of its requests is meant, and all of them."""
    turn = await app.store.turns.get(request.user, turn_id)
    receipts = await requests_of(app.store, request.user, turn)
    if not receipts:
        why = unsent(turn)
        hint = Phrase("trace.lost.hint") if was_lost(turn) else why.next_step  # a page has no command line
        raise HttpError(409, why.phrase, hint=hint, kind=why.code.removeprefix("trace."))
    if number is not None and number > len(receipts):
        raise HttpError(400, "turn.no_such_request", number=number, count=len(receipts))
    return turn, number or len(receipts), receipts


@hide_missing
async def _receipt(app: App, request: Request) -> Reply:
    turn, number, receipts = await _find_request(app, request, request.params["turn_id"], request.query.get("request"))
    prefix = (await prefixes_of(app.store, request.user, turn, receipts))[number - 1]
    one = receipts[number - 1]
    told = await run_apart(one.size, request_value, one, turn, number, len(receipts), prefix)
    return Reply(told, headers=turn_headers(turn))


@hide_missing
async def _payload(app: App, request: Request) -> Reply:
    turn, number, receipts = await _find_request(app, request, request.params["turn_id"], request.query.get("request"))
    one = receipts[number - 1]
    return Reply(one.payload, headers={**turn_headers(turn), "X-Lamina-Payload-SHA256": one.hash})


@hide_missing
async def _diff(app: App, request: Request) -> Reply:
    """Of one turn its first and its last request, of two the last of the one and the first of the other."""
    first, other = request.params["turn_id"], request.params["other_id"]
    numbers = request.query.get("request"), request.query.get("other_request")
    a, at, before = await _find_request(app, request, first, numbers[0] or (1 if first == other else None))
    b, to, after = await _find_request(app, request, other, numbers[1] or (None if first == other else 1))
    one, two = before[at - 1], after[to - 1]
    told = await run_apart(one.size + two.size, difference, one, two)
    layers = [{"layer": layer, "before": old, "after": new} for layer, (old, new) in by_layer(one, two).items()]
    sides = {"before": _side(a, at, one), "after": _side(b, to, two)}
    return Reply({**sides, "same": told.byte is None, **told.to_dict(), "layers": layers})


def _side(turn: TurnRecord, number: int, receipt: Receipt) -> dict[str, Any]:
    size = {"hash": receipt.hash, "size": receipt.size, "tokens": receipt.tokens}
    return {"turn_id": turn.turn_id, "request": number, **size}


HERE = "/api/turns/{turn_id}"
TAGS: dict[str, Any] = {"tags": ("turns",)}
ROUTES = (
    Route(
        "POST", f"{SESSION_HERE}/messages", _say,
        "Say something: 202 with the turn that answers or, accepting text/event-stream, 200 and its events", "chat",
        body=MESSAGE_BODY, example={"content": "What did we decide about the budget?"}, answer=ACCEPTED, status=202,
        headers=KEY, streams=True, **TAGS,
    ),
    Route(
        "POST", f"{SESSION_HERE}/context", _context, "What the model would see if this were said now", "read",
        body=MESSAGE_BODY, example={"content": "And now?"}, answer=REQUEST, **TAGS,
    ),
    Route("GET", HERE, _get, "One turn", "read", answer=TURN, **TAGS),
    Route(
        "GET", f"{HERE}/events", _events, "Its events from a position on; 204 behind the last one", "chat",
        query={"after": AFTER}, headers={"Last-Event-ID": AFTER}, media=MEDIA, streams=True, **TAGS,
    ),
    Route("POST", f"{HERE}/cancel", _cancel, "End it with what came so far", "chat", answer=TURN, **TAGS),
    Route(
        "POST", f"{HERE}/retry", _retry,
        "Ask its question again in a branch that ends before it; values and a phase that it had are to be given again",
        "chat", body=RETRY_BODY, bare=True, example={"values": {"city": "Kyoto"}}, answer=ACCEPTED, status=202,
        headers=KEY, streams=True, **TAGS,
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
