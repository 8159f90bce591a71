"""Sessions over HTTP: new, list, search, change, branch, end, fold, delete; their messages, turns and rules.

A history is only ever added to or branched: no route here replaces a message (R15).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from lamina.app.app import App
from lamina.app.lookup import check_skill
from lamina.app.traces import rules_of
from lamina.gateway.http import HttpError, Reply, Request, Route, Schema
from lamina.gateway.ids import hide_missing
from lamina.gateway.replies import as_json, is_long
from lamina.gateway.values import (
    COLLECTED,
    COUNT,
    FLAG,
    MAX_SAFE_INTEGER,
    MESSAGE,
    MODES,
    PHASE,
    SESSION,
    TEXT,
    TURN,
    WHOLE,
    many,
    message_value,
    record,
    session_value,
    turn_value,
)
from lamina.records import REQUESTS, Session

NAME: Schema = {"type": "string", "maxLength": 200}
SEARCHED: Schema = {"type": "string", "maxLength": 500, "examples": ["invoice"]}
PLACE: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_SAFE_INTEGER}
META: Schema = {"type": "object", "maxProperties": 100, "description": "at most 64 kB as JSON"}
MAX_META_BYTES = 65_536
CHANGES: Mapping[str, Schema] = {
    "title": NAME, "scenario": NAME, "mode": {"enum": list(MODES)}, "skill": NAME, "meta": META,
    "phase": PHASE,
}  # fmt: skip
NEW_SESSION: Mapping[str, Schema] = {**CHANGES, "app": NAME}
FOUND = record("FoundMessage", {"session": SESSION, "message": MESSAGE, "snippet": TEXT})
SEARCHED_ALL: Schema = {**FLAG, "description": "whether all messages were looked at; if not, `reason` says why"}
INCOMPLETE: Schema = {
    "enum": ["", "index_rebuilding", "time_limit"],
    "description": "index_rebuilding: more may be found later; time_limit: search for more or longer words",
}
FOLDED = record("Folded", {"before": COUNT, "after": COUNT, "upto_seq": COUNT, "text": TEXT, "written_by": TEXT})
NEXT: Schema = {"type": ["integer", "null"], "description": "what to give as `before` for the page behind this one"}
RULE_FILE = record(
    "RuleFile",
    {
        "kind": TEXT, "path": TEXT, "size": COUNT, "tokens": COUNT, "hash": TEXT,
        "includes": {"type": "array", "items": TEXT}, "last_injected": {"type": ["integer", "null"]},
        "changed_since": FLAG,
    },
)  # fmt: skip


def limit_of(default: int, most: int) -> Schema:
    return {"type": "integer", "minimum": 1, "maximum": most, "default": default}


def _read_changes(request: Request) -> dict[str, Any]:
    """What a session is to have. Its `meta` goes along with every list of sessions, so it stays small."""
    given = dict(request.body)
    meta = given.get("meta", {})
    if is_long(meta, MAX_META_BYTES) or len(as_json(meta)) > MAX_META_BYTES:
        raise HttpError(400, "session.meta_too_long", limit=MAX_META_BYTES)
    return given


async def _list(app: App, request: Request) -> Reply:
    limit = request.query["limit"]
    sessions = await app.store.sessions.list(request.user, limit=limit, before=request.query.get("before"))
    more = sessions[-1].activity if len(sessions) == limit else None
    return Reply({"sessions": [session_value(each) for each in sessions], "next": more})


async def _new(app: App, request: Request) -> Reply:
    given = _read_changes(request)
    await check_skill(app.store, request.user, given.get("skill", ""), given.get("app", app.settings.host))
    return Reply(session_value(await app.new_session(request.user, **given)), 201)


async def _search(app: App, request: Request) -> Reply:
    hits = await app.store.sessions.search(request.user, request.query["q"], limit=request.query["limit"])
    return Reply(
        {
            "found": [
                {
                    "session": session_value(hit.session),
                    "message": message_value(hit.message),
                    "snippet": hit.snippet,
                }
                for hit in hits
            ],
            "complete": not hits.incomplete,
            "reason": hits.incomplete,
        }
    )


@hide_missing
async def _get(app: App, request: Request) -> Reply:
    return Reply(session_value(await app.store.sessions.get(request.user, request.params["session_id"])))


def _read_chat_id(request: Request) -> str:
    """The session of the path, where it is one to talk in: single requests have nothing to do with each other."""
    session_id = request.params["session_id"]
    if session_id == REQUESTS:
        raise HttpError(409, "session.not_a_chat", kind="conflict")
    return session_id


@hide_missing
async def _change(app: App, request: Request) -> Reply:
    session_id, given = _read_chat_id(request), _read_changes(request)
    session = await app.store.sessions.get(request.user, session_id)
    if not given:
        return Reply(session_value(session))
    await check_skill(app.store, request.user, given.get("skill", ""), session.app)
    return Reply(session_value(await app.store.sessions.update(request.user, session_id, **given)))


@hide_missing
async def _delete(app: App, request: Request) -> Reply:
    """What still runs in it is ended first: it has no place to write to any more."""
    session_id = request.params["session_id"]
    for turn in await app.store.turns.list(request.user, session_id, running=True):
        await app.cancel(request.user, turn.turn_id)
    await app.store.sessions.delete(request.user, session_id)
    return Reply(status=204)


@hide_missing
async def _branch(app: App, request: Request) -> Reply:
    session_id, seq = _read_chat_id(request), request.body["seq"]
    session = await app.store.sessions.get(request.user, session_id)
    if seq > session.last_seq:
        raise HttpError(400, "session.bad_seq", seq=seq, count=session.last_seq)
    made = await app.store.sessions.branch(request.user, session_id, seq, title=request.body.get("title"))
    return Reply(session_value(made), 201)


@hide_missing
async def _end(app: App, request: Request) -> Reply:
    return Reply(session_value(await app.end_session(request.user, _read_chat_id(request))))


@hide_missing
async def _compact(app: App, request: Request) -> Reply:
    return Reply(asdict(await app.compact(request.user, _read_chat_id(request))))


@hide_missing
async def _messages(app: App, request: Request) -> Reply:
    query = request.query
    rows = await app.store.messages.list(
        request.user, request.params["session_id"], after=query["after"], before=query.get("before"),
        limit=query["limit"], newest=query["newest"],
    )  # fmt: skip
    return Reply({"messages": [message_value(row) for row in rows]})


@hide_missing
async def _turns(app: App, request: Request) -> Reply:
    session = await app.store.sessions.get(request.user, request.params["session_id"])
    newest = await app.store.turns.list(
        request.user, session.session_id, before=request.query.get("before"), limit=request.query["limit"]
    )
    return Reply({"turns": [turn_value(turn) for turn in newest]})


@hide_missing
async def _rules(app: App, request: Request) -> Reply:
    session = await app.store.sessions.get(request.user, request.params["session_id"])
    rules = await asyncio.to_thread(rules_of, app, session)
    return Reply({"files": [dict(row) for row in rules.rows], "counters": dict(rules.counters)})


async def _collected(app: App, request: Request) -> Reply:
    rows = await app.store.messages.collected(
        request.user, limit=request.query["limit"], query=request.query.get("q", "")
    )
    ids = list(dict.fromkeys(row.session_id for row in rows))
    sessions = await asyncio.gather(
        *(app.store.sessions.get(request.user, each) for each in ids), return_exceptions=True
    )
    titles = {each.session_id: each.title for each in sessions if isinstance(each, Session)}  # some were just deleted
    kept = [row for row in rows if row.session_id in titles]
    return Reply({"messages": [{**message_value(row), "title": titles[row.session_id]} for row in kept]})


@hide_missing
async def _collect(app: App, request: Request) -> Reply:
    message_id = request.params["message_id"]
    await app.collect(request.user, message_id, request.body["collected"])
    return Reply(message_value(await app.store.messages.get(request.user, message_id)))


def _fields(fields: Mapping[str, Schema], *required: str) -> Schema:
    return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}


HERE = "/api/sessions/{session_id}"
TAGS: dict[str, Any] = {"tags": ("sessions",)}
ROUTES = (
    Route(
        "GET", "/api/sessions", _list, "Sessions, the one in which something happened last first", "read",
        query={"limit": limit_of(50, 500), "before": PLACE}, answer=many("sessions", SESSION, next=NEXT), **TAGS,
    ),
    Route(
        "POST", "/api/sessions", _new, "A new session: nothing of older ones but what memory and profile know", "write",
        body=_fields(NEW_SESSION), example={"title": "Quarterly figures", "scenario": "excel"}, answer=SESSION,
        status=201, **TAGS,
    ),
    Route(
        "GET", "/api/sessions/search", _search, "Messages that have all the words, newest sessions first", "read",
        query={"q": {**SEARCHED, "default": ""}, "limit": limit_of(20, 200)},
        answer=many("found", FOUND, complete=SEARCHED_ALL, reason=INCOMPLETE), **TAGS,
    ),
    Route("GET", HERE, _get, "One session", "read", answer=SESSION, **TAGS),
    Route(
        "PATCH", HERE, _change, "Change what is given, leave the rest", "write", body=_fields(CHANGES),
        example={"title": "Figures of May"}, answer=SESSION, **TAGS,
    ),
    Route("DELETE", HERE, _delete, "Delete it with its messages and turns; memories stay", "write", status=204, **TAGS),
    Route(
        "POST", f"{HERE}/branch", _branch, "A new session with the messages up to a number; the old one stays", "write",
        body=_fields({"seq": {"type": "integer", "minimum": 1, "maximum": MAX_SAFE_INTEGER}, "title": NAME}, "seq"),
        example={"seq": 1}, answer=SESSION, status=201, **TAGS,
    ),
    Route("POST", f"{HERE}/end", _end, "It is over, and summarised in the background", "write", answer=SESSION, **TAGS),
    Route(
        "POST", f"{HERE}/compact", _compact, "Fold all but the newest turn into a summary now", "chat", answer=FOLDED,
        **TAGS,
    ),
    Route(
        "GET", f"{HERE}/messages", _messages, "Its messages, in order", "read",
        query={
            "after": {**PLACE, "default": 0}, "before": PLACE, "limit": limit_of(100, 1_000),
            "newest": {"type": "boolean", "default": True, "description": "whether `limit` takes the newest of them"},
        },
        answer=many("messages", MESSAGE), **TAGS,
    ),
    Route(
        "GET", f"{HERE}/turns", _turns, "Its newest turns, in order", "read",
        query={"before": {**PLACE, "description": "a `user_seq`"}, "limit": limit_of(100, 1_000)},
        answer=many("turns", TURN), **TAGS,
    ),
    Route(
        "GET", f"{HERE}/rules", _rules, "The instructions and rules in force, and when they were told", "read",
        answer=many("files", RULE_FILE, counters={"type": "object", "additionalProperties": WHOLE}), **TAGS,
    ),
    Route(
        "GET", "/api/collected", _collected, "Answers that were collected, the newest first", "read",
        query={"limit": limit_of(20, 1_000), "q": SEARCHED}, answer=many("messages", COLLECTED), tags=("messages",),
    ),
    Route(
        "PUT", "/api/messages/{message_id}/collected", _collect,
        "Collect exactly this answer, or no longer; what is not an answer is refused", "write",
        body=_fields({"collected": FLAG}, "collected"), example={"collected": True}, answer=MESSAGE,
        tags=("messages",),
    ),
)  # fmt: skip
