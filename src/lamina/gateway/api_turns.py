"""Turns over HTTP: send a message, read what comes, cancel it, ask again; and what was sent, byte for byte.

A turn goes on without its readers. Asking again makes a branch, it replaces nothing (R15).
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Unpack

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from lamina.apart import run_apart
from lamina.app.app import App
from lamina.app.follow import position_of, read_story
from lamina.app.traces import Prefix, compare_layers, difference, explain_unsent, prefixes_of, requests_of, was_lost
from lamina.gateway.api_sessions import HERE as SESSION_HERE
from lamina.gateway.api_sessions import MAX_SAFE_INTEGER, Phase, Position
from lamina.gateway.handlers import (
    MAX_KEY_CHARACTERS,
    HttpError,
    Reply,
    Request,
    Route,
    check_same_question,
    hide_missing,
    turn_headers,
)
from lamina.gateway.schemas import Count, Model, Number, OptionalTime, PhraseJson, Time, many
from lamina.gateway.sse import HEADERS, MEDIA, is_end, write_events
from lamina.records import REQUESTS, TurnOptions, TurnProgress, TurnRecord
from lamina.text.messages import Phrase
from lamina.types import Dropped, Receipt, Trigger, Trust

PHASE_OF_TURN = Meta(
    description="a phase prompt, sent in front of the words on this turn alone, in place of the session's; may be empty"
)
VALUES = Meta(max_length=100, description="what fills the slots of templates, on this turn alone: they are not stored")
RequestNumber = Annotated[
    int, Meta(ge=1, le=10_000, description="which request of the turn, from 1; the last one unless it is given")
]


class ImageUrlBody(Model):
    url: str
    detail: Literal["auto", "low", "high"] | UnsetType = UNSET


class TextPartBody(Model, tag_field="type", tag="text"):
    text: str


class ImagePartBody(Model, tag_field="type", tag="image_url"):
    image_url: ImageUrlBody


class RetryBody(Model):
    values: Annotated[dict[str, str | Number | bool], VALUES] = field(default_factory=dict[str, str | Number | bool])
    phase: Annotated[Phase, PHASE_OF_TURN] | UnsetType = UNSET


class MessageBody(RetryBody, kw_only=True):
    content: (
        Annotated[str, Meta(min_length=1)]
        | Annotated[list[TextPartBody | ImagePartBody], Meta(min_length=1, max_length=50)]
    )


class TurnJson(Model):
    turn_id: str
    session_id: str
    state: TurnProgress
    user_message_id: str
    user_seq: Count
    answer_message_id: str
    answer_seq: Count
    usage: Annotated[dict[str, Any], Meta(description="tokens as the provider counted them, over the turn's requests")]
    error: PhraseJson | None
    hint: Annotated[PhraseJson | None, Meta(description="what to do next")]
    reason: Annotated[str, Meta(description="why the model's last answer ended: `length` at its limit of tokens")]
    created: Time
    finished: OptionalTime
    seconds: Number | None
    requests: Annotated[Count, Meta(description="how many were sent to the provider")]
    tokens: Annotated[int | None, Meta(description="of the last request, as we counted them")]


class AcceptedJson(Model):
    turn_id: str
    session_id: str
    answer_id: str
    events: Annotated[str, Meta(description="a path")]


class SegmentJson(Model):
    layer: str
    source: str
    hash: str
    owner: str | None
    trust: Trust
    tokens: Count
    counter: str
    decision: Literal["kept", "cut", "dropped", "degraded"]
    reason: PhraseJson
    start: Count
    end: Count


class ReceiptJson(Model):
    hash: str
    size: Count
    tokens: Count
    budget: Number
    over_budget: bool
    counter: str
    grammar: str
    layout: str
    epoch: Count
    epoch_reason: PhraseJson | None
    triggers: Annotated[
        list[Trigger], Meta(description="why instructions and rules were injected; empty when they were not")
    ]
    dropped: Dropped
    segments: list[SegmentJson]


class LayerTokensJson(Model):
    layer: str
    tokens: Count
    left_out: Count


class SentRequestJson(Model):
    turn: TurnJson | None
    request: Count
    requests: Count
    receipt: ReceiptJson
    layers: list[LayerTokensJson]
    prefix: Annotated[
        Prefix | None,
        Meta(description="tokens that were in the request before, and those that the provider took from its cache"),
    ]
    texts: Annotated[list[str], Meta(description="of each segment, in order; empty for dropped ones")]


class SideJson(Model):
    turn_id: str
    request: Count
    hash: str
    size: Count
    tokens: Count


class LayerChangeJson(Model):
    layer: str
    before: Count
    after: Count


class DifferenceJson(Model):
    before: SideJson
    after: SideJson
    same: bool
    byte: int | None
    layer: str
    source: str
    reason: PhraseJson
    extends: bool
    shared_tokens: int
    tokens_after: int
    layers: list[LayerChangeJson]


class TurnsQuery(Model):
    before: Annotated[Position, Meta(description="a `user_seq`")] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class EventsQuery(Model):
    after: Annotated[str, Meta(max_length=40, description="the id of the last event that came")] = ""


class RequestQuery(Model):
    request: RequestNumber | None = None


class DifferenceQuery(RequestQuery):
    other_request: RequestNumber | None = None


def turn_json(turn: TurnRecord) -> TurnJson:
    sent: Sequence[Mapping[str, Any]] = turn.receipt.get("requests") or ()
    names = [name for name in TurnJson.__struct_fields__ if hasattr(turn, name)]
    plain: dict[str, Any] = {name: getattr(turn, name) for name in names} | {
        "state": turn.progress,
        "usage": {name: value for name, value in turn.usage.items() if name not in ("hint", "done")},
        "error": Phrase.load(turn.error).for_clients(),
        "hint": Phrase.load(str(turn.usage.get("hint", ""))).for_clients(),
        "reason": str(turn.usage.get("done", "stop")),
        "seconds": None if turn.finished is None else max(0.0, turn.finished - turn.created),
        "requests": len(sent),
        "tokens": sent[-1]["tokens"] if sent else None,
    }
    return TurnJson(**plain)


def _request_json(
    receipt: Receipt, turn: TurnRecord | None, number: int, count: int, prefix: Prefix | None = None
) -> dict[str, Any]:
    """A request with the text of each of its segments. A budget that is larger than every finite one is 0, none."""
    payload, plain = receipt.payload, receipt.to_dict()
    plain["budget"] = plain["budget"] if plain["budget"] < MAX_SAFE_INTEGER else 0
    layers = [
        LayerTokensJson(layer=layer, tokens=tokens, left_out=left_out)
        for layer, (tokens, left_out) in receipt.by_layer().items()
    ]
    return {
        "turn": turn_json(turn) if turn else None,
        "request": number,
        "requests": count,
        "receipt": plain,
        "layers": layers,
        "prefix": prefix,
        "texts": [payload[each.start : each.end].decode(errors="replace") for each in receipt.segments],
    }


def _stream_events(app: App, request: Request, turn: TurnRecord, after: str = "") -> Reply:
    events = app.follow(request.user, turn.turn_id, after)
    return Reply(write_events(events), headers={**HEADERS, **turn_headers(turn)}, media=MEDIA)


async def _start_turn(
    app: App,
    request: Request,
    session_id: str,
    content: str | Sequence[Mapping[str, Any]],
    **options: Unpack[TurnOptions],
) -> Reply:
    """Start a turn, and answer with its ids or, where the caller accepts them, its events."""
    running = await app.start(request.user, session_id, content, key=request.idempotency_key, **options)
    turn = running.turn
    await check_same_question(app, request, turn, content)
    request.watch(running)
    if MEDIA in request.headers.get("accept", "").lower():
        return _stream_events(app, request, turn)
    ids = {"turn_id": turn.turn_id, "session_id": turn.session_id, "answer_id": turn.answer_message_id}
    return Reply(ids | {"events": f"/api/turns/{turn.turn_id}/events"}, 202, turn_headers(turn))


def _options(body: RetryBody | None) -> TurnOptions:
    """What a body says of its turn beside the words."""
    if body is None:
        return {}
    return {"values": body.values, "phase_prompt": None if body.phase is UNSET else body.phase}


def _read_content(request: Request) -> Any:
    return msgspec.to_builtins(request.body.content)


@hide_missing
async def _say(app: App, request: Request) -> Reply:
    session_id = request.params["session_id"]
    return await _start_turn(app, request, session_id, _read_content(request), **_options(request.body))


@hide_missing
async def _preview(app: App, request: Request) -> Reply:
    session_id, content = request.params["session_id"], _read_content(request)
    await app.store.sessions.get(request.user, session_id)
    if app.settings.memory and isinstance(content, str):  # loads the index first, for which recall's deadline is short
        await asyncio.gather(app.recall.search(request.user, content[:100], limit=1), return_exceptions=True)
    context = await app.context(request.user, session_id, content, **_options(request.body))
    return Reply(_request_json(context.receipt, None, 1, 1))


@hide_missing
async def _list(app: App, request: Request) -> Reply:
    session = await app.store.sessions.get(request.user, request.params["session_id"])
    query = request.query
    newest = await app.store.turns.list(request.user, session.session_id, before=query.before, limit=query.limit)
    return Reply({"turns": [turn_json(turn) for turn in newest]})


@hide_missing
async def _get(app: App, request: Request) -> Reply:
    return Reply(turn_json(await app.store.turns.get(request.user, request.params["turn_id"])))


@hide_missing
async def _events(app: App, request: Request) -> Reply:
    turn = await app.store.turns.get(request.user, request.params["turn_id"])
    after = request.headers.get("last-event-id", "").strip() or request.query.after
    if is_end(after):
        return Reply(status=204, headers=turn_headers(turn))
    position_of(after)  # a wrong one is refused before the answer begins
    if app.engine.running(turn.turn_id) is None:
        await read_story(app.store, turn)  # and so is what cannot be read
    return _stream_events(app, request, turn, after)


@hide_missing
async def _cancel(app: App, request: Request) -> Reply:
    return Reply(turn_json(await app.cancel(request.user, request.params["turn_id"])))


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
    key = request.idempotency_key
    # with a key the session is named by it, so that a second try finds the session of the first
    name = hashlib.sha256(f"{turn.turn_id}\n{key}".encode()).hexdigest()[:32] if key else ""
    if question.seq > 1:
        made = await sessions.branch(owner, turn.session_id, question.seq - 1, name=name)
    else:
        old = await sessions.get(owner, turn.session_id)
        made = await app.new_session(
            owner, session_id=name, title=old.title, scenario=old.scenario, app=old.app, mode=old.mode,
            skill=old.skill, meta=old.meta, phase=old.phase,
        )  # fmt: skip
    return await _start_turn(app, request, made.session_id, question.content or "", **_options(request.body))


async def _find_request(
    app: App, request: Request, turn_id: str, number: int | None
) -> tuple[TurnRecord, int, list[Receipt]]:
    """A turn, which of its requests is meant, and all of them."""
    turn = await app.store.turns.get(request.user, turn_id)
    receipts = await requests_of(app.store, request.user, turn)
    if not receipts:
        why = explain_unsent(turn)
        hint = Phrase("trace.lost.hint") if was_lost(turn) else why.next_step  # a page has no command line
        raise HttpError(409, why.phrase, hint=hint, kind=why.code.removeprefix("trace."))
    if number is not None and number > len(receipts):
        raise HttpError(400, "turn.no_such_request", number=number, count=len(receipts))
    return turn, number or len(receipts), receipts


@hide_missing
async def _receipt(app: App, request: Request) -> Reply:
    turn, number, receipts = await _find_request(app, request, request.params["turn_id"], request.query.request)
    prefix = (await prefixes_of(app.store, request.user, turn, receipts))[number - 1]
    one = receipts[number - 1]
    answer = await run_apart(one.size, _request_json, one, turn, number, len(receipts), prefix)
    return Reply(answer, headers=turn_headers(turn))


@hide_missing
async def _payload(app: App, request: Request) -> Reply:
    turn, number, receipts = await _find_request(app, request, request.params["turn_id"], request.query.request)
    one = receipts[number - 1]
    return Reply(one.payload, headers={**turn_headers(turn), "X-Lamina-Payload-SHA256": one.hash})


@hide_missing
async def _diff(app: App, request: Request) -> Reply:
    """Of one turn its first and its last request, of two the last of the one and the first of the other."""
    first, other = request.params["turn_id"], request.params["other_id"]
    numbers = request.query.request, request.query.other_request
    a, at, before = await _find_request(app, request, first, numbers[0] or (1 if first == other else None))
    b, to, after = await _find_request(app, request, other, numbers[1] or (None if first == other else 1))
    one, two = before[at - 1], after[to - 1]
    found = await run_apart(one.size + two.size, difference, one, two)
    layers = [{"layer": layer, "before": old, "after": new} for layer, (old, new) in compare_layers(one, two).items()]
    sides = {"before": _side(a, at, one), "after": _side(b, to, two)}
    return Reply({**sides, "same": found.byte is None, **found.to_dict(), "layers": layers})


def _side(turn: TurnRecord, number: int, receipt: Receipt) -> SideJson:
    return SideJson(turn_id=turn.turn_id, request=number, hash=receipt.hash, size=receipt.size, tokens=receipt.tokens)


HERE = "/api/turns/{turn_id}"
TURNS: dict[str, Any] = {"tags": ("turns",)}
KEY = {
    "Idempotency-Key": Annotated[
        str, Meta(max_length=MAX_KEY_CHARACTERS, description="the same key again is the same turn")
    ]
}
LAST_EVENT = {"Last-Event-ID": Annotated[str, Meta(max_length=40, description="the id of the last event that came")]}
ROUTES = (
    Route(
        "GET", f"{SESSION_HERE}/turns", _list, "Its newest turns, in order", "read", query=TurnsQuery,
        answer=many("turns", TurnJson), tags=("sessions",),
    ),
    Route(
        "POST", f"{SESSION_HERE}/messages", _say,
        "Say something: 202 with the turn that answers or, accepting text/event-stream, 200 and its events", "chat",
        MessageBody, {"content": "What did we decide about the budget?"}, headers=KEY, answer=AcceptedJson, status=202,
        streams=True, **TURNS,
    ),
    Route(
        "POST", f"{SESSION_HERE}/context", _preview, "What the model would see if this were said now", "read",
        MessageBody, {"content": "And now?"}, answer=SentRequestJson, **TURNS,
    ),
    Route("GET", HERE, _get, "One turn", "read", answer=TurnJson, **TURNS),
    Route(
        "GET", f"{HERE}/events", _events, "Its events from a position on; 204 behind the last one", "chat",
        query=EventsQuery, headers=LAST_EVENT, media=MEDIA, streams=True, **TURNS,
    ),
    Route("POST", f"{HERE}/cancel", _cancel, "End it with what came so far", "chat", answer=TurnJson, **TURNS),
    Route(
        "POST", f"{HERE}/retry", _retry,
        "Ask its question again in a branch that ends before it; values and a phase that it had are to be given again",
        "chat", RetryBody, {"values": {"city": "Kyoto"}}, headers=KEY, answer=AcceptedJson, status=202, streams=True,
        bare=True, **TURNS,
    ),
    Route(
        "GET", f"{HERE}/receipt", _receipt, "What was sent: each segment with its layer, source, decision and text",
        "read", query=RequestQuery, answer=SentRequestJson, **TURNS,
    ),
    Route(
        "GET", f"{HERE}/payload", _payload, "The exact bytes that were sent", "read", query=RequestQuery,
        answer=dict[str, Any], **TURNS,
    ),
    Route(
        "GET", HERE + "/diff/{other_id}", _diff, "The first byte in which two requests differ, and why", "read",
        query=DifferenceQuery, answer=DifferenceJson, **TURNS,
    ),
)  # fmt: skip
