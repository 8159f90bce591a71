"""What the store keeps as the JSON that the API gives, each kind with its schema beside it.

Whose a row is never leaves the house: the owner is the one who asks.
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from lamina.app.lookup import Origin
from lamina.app.traces import Prefix
from lamina.gateway.http import Schema
from lamina.records import MAX_PHASE_CHARACTERS, Memory, Session, StoredMessage, Template, TurnRecord
from lamina.text.messages import Phrase
from lamina.types import Receipt, Trigger

MAX_SAFE_INTEGER = 2**53 - 1
"""The largest whole number that every client of JSON reads as it is."""
ID_LENGTH = 200
MODES = ("", "agent", "plan", "ask")
KINDS = ("preference", "fact", "event", "instruction")
EXCERPT_CHARACTERS = 200

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
FREE: Schema = {"type": "object"}
TIME: Schema = {"type": "number", "description": "seconds since 1970, UTC"}
LATER: Schema = {"type": ["number", "null"], "description": "seconds since 1970, UTC; null while there is none"}


def record(title: str, fields: Mapping[str, Schema], *, may: Sequence[str] = ()) -> Schema:
    """An object that has these fields and no others; those in `may` can be absent."""
    return {
        "title": title, "type": "object", "properties": dict(fields),
        "required": [name for name in fields if name not in may], "additionalProperties": False,
    }  # fmt: skip


def many(name: str, schema: Schema, **more: Schema) -> Schema:
    """An object with a list in it: there is always room for another field beside."""
    fields: dict[str, Schema] = {name: {"type": "array", "items": schema}, **more}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


PHASE: Schema = {
    "type": "string", "maxLength": MAX_PHASE_CHARACTERS,
    "description": "a phase prompt: what the session is working on just now, sent in front of each message of its user",
}  # fmt: skip
SESSION = record(
    "Session",
    {
        "session_id": TEXT, "title": TEXT, "scenario": TEXT, "app": TEXT, "mode": TEXT, "skill": TEXT, "meta": FREE,
        "phase": {**TEXT, "description": "a phase prompt: sent in front of each message of its user"},
        "messages": {**COUNT, "description": "how many there are; the number of the last one"},
        "activity": {**COUNT, "description": "orders the sessions of a user: the one in which something happened last"},
        "created": TIME, "updated": TIME, "ended": LATER, "parent_id": TEXT, "parent_seq": COUNT,
    },
)  # fmt: skip


def session_value(session: Session) -> dict[str, Any]:
    names = (
        "session_id", "title", "scenario", "app", "mode", "skill", "meta", "phase", "activity", "created", "updated",
    )  # fmt: skip
    found = {name: getattr(session, name) for name in names}
    found |= {"messages": session.last_seq, "ended": session.ended}
    return found | {"parent_id": session.parent_id, "parent_seq": session.parent_seq}


CALL = record("Call", {"id": TEXT, "name": TEXT, "arguments": {**TEXT, "description": "the text of a JSON object"}})
MESSAGE_FIELDS: Mapping[str, Schema] = {
    "message_id": TEXT, "session_id": TEXT, "seq": {**COUNT, "description": "its place in the session, from 1"},
    "turn_id": TEXT, "role": {"enum": ["user", "assistant", "tool"]},
    "content": {"anyOf": [TEXT, {"type": "array", "items": FREE}, {"type": "null"}]},
    "text": {**TEXT, "description": "all text in the content, pictures left out"},
    "state": {"enum": ["streaming", "complete", "interrupted", "failed"]},
    "is_collected": FLAG, "tokens": COUNT, "created": TIME,
    "calls": {"type": "array", "items": CALL}, "tool_call_id": TEXT,
}  # fmt: skip
MESSAGE = record("Message", MESSAGE_FIELDS, may=("calls", "tool_call_id"))
COLLECTED = record("Collected", {**MESSAGE_FIELDS, "title": TEXT}, may=("calls", "tool_call_id"))


def message_value(message: StoredMessage) -> dict[str, Any]:
    names = (
        "message_id", "session_id", "seq", "turn_id", "role", "content", "text", "state", "is_collected", "tokens",
        "created",
    )  # fmt: skip
    found: dict[str, Any] = {name: getattr(message, name) for name in names}
    if calls := message.extra.get("tool_calls"):
        found["calls"] = [{"id": call["id"], **_named(call["function"])} for call in calls]
    if "tool_call_id" in message.extra:
        found["tool_call_id"] = message.extra["tool_call_id"]
    return found


def _named(function: Mapping[str, str]) -> dict[str, str]:
    return {"name": function["name"], "arguments": function["arguments"]}


PHRASE = record(
    "Phrase",
    {
        "code": {**TEXT, "description": "what to compare; web/messages.en.json and messages.zh.json have all of them"},
        "values": {**FREE, "description": "what the text has slots for"},
        "text": {**TEXT, "description": "in English"},
    },
)
ANY_PHRASE = {"anyOf": [PHRASE, {"type": "null"}]}


TURN = record(
    "Turn",
    {
        "turn_id": TEXT, "session_id": TEXT,
        "state": {"enum": ["accepted", "streaming", "complete", "interrupted", "failed"]},
        "user_message_id": TEXT, "user_seq": COUNT, "answer_message_id": TEXT, "answer_seq": COUNT,
        "usage": {**FREE, "description": "tokens as the provider counted them, summed up over the turn's requests"},
        "error": ANY_PHRASE, "hint": {**ANY_PHRASE, "description": "what to do next"},
        "reason": {**TEXT, "description": "why the model's last answer ended: `length` at its limit of tokens"},
        "created": TIME, "finished": LATER, "seconds": {"type": ["number", "null"]},
        "requests": {**COUNT, "description": "how many were sent to the provider"},
        "tokens": {"type": ["integer", "null"], "description": "of the last request, as we counted them"},
    },
)  # fmt: skip


def turn_value(turn: TurnRecord) -> dict[str, Any]:
    names = (
        "turn_id", "session_id", "user_message_id", "user_seq", "answer_message_id", "answer_seq", "usage", "created",
        "finished",
    )  # fmt: skip
    sent: Sequence[Mapping[str, Any]] = turn.receipt.get("requests") or ()
    found: dict[str, Any] = {name: getattr(turn, name) for name in names}
    return found | {
        "state": turn.progress,
        "usage": {name: value for name, value in turn.usage.items() if name not in ("hint", "done")},
        "error": Phrase.load(turn.error).for_clients(),
        "hint": Phrase.load(str(turn.usage.get("hint", ""))).for_clients(),
        "reason": turn.usage.get("done", "stop"),
        "seconds": None if turn.finished is None else max(0.0, turn.finished - turn.created),
        "requests": len(sent),
        "tokens": sent[-1]["tokens"] if sent else None,
    }


def turn_headers(turn: TurnRecord) -> dict[str, str]:
    return {"X-Lamina-Turn": turn.turn_id, "X-Lamina-Session": turn.session_id}


ACCEPTED = record(
    "Accepted", {"turn_id": TEXT, "session_id": TEXT, "answer_id": TEXT, "events": {**TEXT, "description": "a path"}}
)


def accepted_value(turn: TurnRecord) -> dict[str, Any]:
    ids = {"turn_id": turn.turn_id, "session_id": turn.session_id, "answer_id": turn.answer_message_id}
    return {**ids, "events": f"/api/turns/{turn.turn_id}/events"}


SEGMENT = record(
    "Segment",
    {
        "layer": TEXT, "source": TEXT, "hash": TEXT, "owner": {"type": ["string", "null"]},
        "trust": {"enum": ["operator", "user", "model", "outside"]}, "tokens": COUNT, "counter": TEXT,
        "decision": {"enum": ["kept", "cut", "dropped", "degraded"]}, "reason": PHRASE, "start": COUNT, "end": COUNT,
    },
)  # fmt: skip
RECEIPT = record(
    "Receipt",
    {
        "hash": TEXT, "size": COUNT, "tokens": COUNT, "budget": NUMBER, "over_budget": FLAG, "counter": TEXT,
        "grammar": TEXT, "layout": TEXT, "epoch": COUNT, "epoch_reason": ANY_PHRASE,
        "triggers": {
            "type": "array", "items": {"enum": list(get_args(Trigger))},
            "description": "why instructions and rules were injected; empty when they were not",
        },
        "dropped": record("Dropped", {"count": COUNT, "tokens": COUNT}),
        "segments": {"type": "array", "items": SEGMENT},
    },
)  # fmt: skip
PREFIX = record("Prefix", {"predicted": COUNT, "cached": COUNT})
LAYER = record("LayerTokens", {"layer": TEXT, "tokens": COUNT, "left_out": COUNT})
REQUEST = record(
    "SentRequest",
    {
        "turn": {"anyOf": [TURN, {"type": "null"}]}, "request": COUNT, "requests": COUNT, "receipt": RECEIPT,
        "layers": {"type": "array", "items": LAYER},
        "prefix": {
            "anyOf": [PREFIX, {"type": "null"}],
            "description": "tokens that stood in the request before, and those that the provider took from its cache",
        },
        "texts": {"type": "array", "items": TEXT, "description": "of each segment, in order; empty for dropped ones"},
    },
)  # fmt: skip


def request_value(
    receipt: Receipt, turn: TurnRecord | None, number: int, count: int, prefix: Prefix | None = None
) -> dict[str, Any]:
    """A request with the text of each of its segments. What is over every finite budget is told as 0, no budget."""
    payload = receipt.payload
    plain = receipt.to_dict()
    plain["budget"] = plain["budget"] if plain["budget"] < MAX_SAFE_INTEGER else 0
    return {
        "turn": turn_value(turn) if turn else None,
        "request": number,
        "requests": count,
        "receipt": plain,
        "layers": [
            {"layer": layer, "tokens": tokens, "left_out": left_out}
            for layer, (tokens, left_out) in receipt.by_layer().items()
        ],
        "prefix": {"predicted": prefix.predicted, "cached": prefix.cached} if prefix else None,
        "texts": [payload[each.start : each.end].decode(errors="replace") for each in receipt.segments],
    }


ORIGIN = record("Origin", {"session_id": TEXT, "turn_id": TEXT, "seq": COUNT, "title": TEXT, "excerpt": TEXT})
MEMORY = record(
    "Memory",
    {
        "memory_id": TEXT, "text": TEXT, "kind": TEXT, "trust": {"enum": ["operator", "user", "model", "outside"]},
        "importance": NUMBER, "pinned": FLAG, "state": {"enum": ["active", "superseded", "forgotten"]},
        "created": TIME, "updated": TIME, "happened": LATER,
        "origin": {"anyOf": [ORIGIN, {"type": "null"}], "description": "where it was said; null for none"},
    },
)  # fmt: skip


def memory_value(memory: Memory, origin: Origin | None) -> dict[str, Any]:
    names = (
        "memory_id", "text", "kind", "trust", "importance", "pinned", "state", "created", "updated", "happened",
    )  # fmt: skip
    found: dict[str, Any] = {name: getattr(memory, name) for name in names}
    return found | {"origin": _origin_value(memory, origin)}


def _origin_value(memory: Memory, origin: Origin | None) -> dict[str, Any] | None:
    if origin is None or origin.session is None:
        return None
    text = " ".join(origin.message.text.split()) if origin.message else ""
    excerpt = f"{text[: EXCERPT_CHARACTERS - 1]}…" if len(text) > EXCERPT_CHARACTERS else text
    place = {"session_id": memory.session_id, "turn_id": memory.turn_id, "seq": memory.seq}
    return {**place, "title": origin.session.title, "excerpt": excerpt}


TEMPLATE = record(
    "Template",
    {
        "template_id": TEXT, "name": TEXT, "content": TEXT, "scenario": TEXT, "is_skill": FLAG,
        "supported_apps": {"type": "array", "items": TEXT, "description": "empty for every app"}, "enabled": FLAG,
        "priority": WHOLE, "sort": WHOLE, "description": TEXT, "source": TEXT, "created": TIME, "updated": TIME,
        "shared": {**FLAG, "description": "the operator's, for everybody; it can only be read here"},
    },
)  # fmt: skip


def template_value(template: Template, *, shared: bool) -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(template, name) for name in Template.__slots__}
    return found | {"supported_apps": list(template.supported_apps), "shared": shared}
