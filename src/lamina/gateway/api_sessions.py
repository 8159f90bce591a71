"""Sessions over HTTP: create, list, search, change, branch, end, compact, delete; their messages and rules.

A history is only ever added to or branched: no route here replaces a message (R15).
"""

import asyncio
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from lamina.app.app import App, CompactionResult
from lamina.app.lookup import check_skill
from lamina.app.traces import rules_of
from lamina.gateway.handlers import HttpError, Reply, Request, Route, as_json, hide_missing, is_long, to_plain
from lamina.gateway.schemas import Count, Model, OptionalTime, Time, from_record, many
from lamina.records import MAX_PHASE_CHARACTERS, REQUESTS, IncompleteReason, MessageState, Session, StoredMessage

MAX_META_BYTES = 65_536
MAX_SAFE_INTEGER = 2**53 - 1
"""The largest whole number that every client of JSON reads as it is."""

Name = Annotated[str, Meta(max_length=200)]
Words = Annotated[str, Meta(max_length=500, examples=["invoice"])]
Position = Annotated[int, Meta(ge=0, le=MAX_SAFE_INTEGER)]
Next = Annotated[int | None, Meta(description="what to give as `before` for the page behind this one")]
Mode = Literal["", "agent", "plan", "ask"]
SearchedAll = Annotated[bool, Meta(description="whether all messages were looked at; if not, `reason` says why")]
Reason = Annotated[
    IncompleteReason,
    Meta(description="index_rebuilding: more may be found later; time_limit: search for more or longer words"),
]
MetaFields = Annotated[dict[str, Any], Meta(max_length=100, description="at most 64 kB as JSON")]
Phase = Annotated[str, Meta(max_length=MAX_PHASE_CHARACTERS)]
PHASE = Meta(
    description="a phase prompt: what the session is working on now, sent in front of each message of its user"
)


class SessionChange(Model):
    title: Name | UnsetType = UNSET
    scenario: Name | UnsetType = UNSET
    mode: Mode | UnsetType = UNSET
    skill: Name | UnsetType = UNSET
    meta: MetaFields | UnsetType = UNSET
    phase: Annotated[Phase, PHASE] | UnsetType = UNSET


class SessionBody(SessionChange):
    app: Name | UnsetType = UNSET


class BranchBody(Model):
    seq: Annotated[int, Meta(ge=1, le=MAX_SAFE_INTEGER)]
    title: Name | UnsetType = UNSET


class CollectBody(Model):
    collected: bool


class SessionJson(Model):
    session_id: str
    title: str
    scenario: str
    app: str
    mode: str
    skill: str
    meta: dict[str, Any]
    phase: Annotated[str, PHASE]
    last_seq: Annotated[Count, Meta(description="how many there are; the number of the last one")] = field(
        name="messages"
    )
    activity: Annotated[Count, Meta(description="orders the sessions of a user: highest where something happened last")]
    created: Time
    updated: Time
    ended: OptionalTime
    parent_id: str
    parent_seq: Count


class CallJson(Model):
    id: str
    name: str
    arguments: Annotated[str, Meta(description="the text of a JSON object")]


class MessageJson(Model):
    message_id: str
    session_id: str
    seq: Annotated[Count, Meta(description="its place in the session, from 1")]
    turn_id: str
    role: Literal["user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None
    text: Annotated[str, Meta(description="all text in the content, pictures left out")]
    state: MessageState
    is_collected: bool
    tokens: Count
    created: Time
    calls: list[CallJson] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET


class CollectedJson(MessageJson, kw_only=True):
    title: str


class FoundJson(Model):
    session: SessionJson
    message: MessageJson
    snippet: str


class RuleFileJson(Model):
    kind: str
    path: str
    size: Count
    tokens: Count
    hash: str
    includes: list[str]
    last_injected: int | None
    changed_since: bool


class SessionsQuery(Model):
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    before: Position | None = None


class SearchQuery(Model):
    q: Words = ""
    limit: Annotated[int, Meta(ge=1, le=200)] = 20


class MessagesQuery(Model):
    after: Position = 0
    before: Position | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    newest: Annotated[bool, Meta(description="whether `limit` takes the newest of them")] = True


class CollectedQuery(Model):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 20
    q: Words = ""


def session_json(session: Session) -> SessionJson:
    return from_record(SessionJson, session)


def message_json(message: StoredMessage) -> MessageJson:
    found = from_record(MessageJson, message)
    if not message.extra:
        return found
    calls = [
        CallJson(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
        for call in message.extra.get("tool_calls") or ()
    ]
    answered = message.extra.get("tool_call_id", UNSET)
    return msgspec.structs.replace(found, calls=calls or UNSET, tool_call_id=answered)


def _read_changes(request: Request) -> Any:
    """What a session is to have. Its `meta` goes along with every list of sessions, so it stays small."""
    meta = request.body.meta
    if meta and (is_long(meta, MAX_META_BYTES) or len(as_json(meta)) > MAX_META_BYTES):
        raise HttpError(400, "session.meta_too_long", limit=MAX_META_BYTES)
    return msgspec.to_builtins(request.body)


async def _list(app: App, request: Request) -> Reply:
    limit = request.query.limit
    sessions = await app.store.sessions.list(request.user, limit=limit, before=request.query.before)
    more = sessions[-1].activity if len(sessions) == limit else None
    return Reply({"sessions": [session_json(each) for each in sessions], "next": more})


async def _create(app: App, request: Request) -> Reply:
    changes = _read_changes(request)
    await check_skill(app.store, request.user, changes.get("skill", ""), changes.get("app", app.settings.host))
    return Reply(session_json(await app.new_session(request.user, **changes)), 201)


async def _search(app: App, request: Request) -> Reply:
    hits = await app.store.sessions.search(request.user, request.query.q, limit=request.query.limit)
    found = [
        FoundJson(session=session_json(hit.session), message=message_json(hit.message), snippet=hit.snippet)
        for hit in hits
    ]
    return Reply({"found": found, "complete": not hits.incomplete, "reason": hits.incomplete})


@hide_missing
async def _get(app: App, request: Request) -> Reply:
    return Reply(session_json(await app.store.sessions.get(request.user, request.params["session_id"])))


def _read_chat_id(request: Request) -> str:
    """The session of the path, where it is a chat: single requests have nothing to do with each other."""
    session_id = request.params["session_id"]
    if session_id == REQUESTS:
        raise HttpError(409, "session.not_a_chat", kind="conflict")
    return session_id


@hide_missing
async def _change(app: App, request: Request) -> Reply:
    session_id, changes = _read_chat_id(request), _read_changes(request)
    session = await app.store.sessions.get(request.user, session_id)
    if not changes:
        return Reply(session_json(session))
    await check_skill(app.store, request.user, changes.get("skill", ""), session.app)
    return Reply(session_json(await app.store.sessions.update(request.user, session_id, **changes)))


@hide_missing
async def _delete(app: App, request: Request) -> Reply:
    """What still runs in it is ended first: there would be no session to write to."""
    session_id = request.params["session_id"]
    for turn in await app.store.turns.list(request.user, session_id, running=True):
        await app.cancel(request.user, turn.turn_id)
    await app.store.sessions.delete(request.user, session_id)
    return Reply(status=204)


@hide_missing
async def _branch(app: App, request: Request) -> Reply:
    session_id, seq = _read_chat_id(request), request.body.seq
    session = await app.store.sessions.get(request.user, session_id)
    if seq > session.last_seq:
        raise HttpError(400, "session.bad_seq", seq=seq, count=session.last_seq)
    title = None if request.body.title is UNSET else request.body.title
    made = await app.store.sessions.branch(request.user, session_id, seq, title=title)
    return Reply(session_json(made), 201)


@hide_missing
async def _end(app: App, request: Request) -> Reply:
    return Reply(session_json(await app.end_session(request.user, _read_chat_id(request))))


@hide_missing
async def _compact(app: App, request: Request) -> Reply:
    return Reply(await app.compact(request.user, _read_chat_id(request)))


@hide_missing
async def _messages(app: App, request: Request) -> Reply:
    query = request.query
    rows = await app.store.messages.list(
        request.user, request.params["session_id"], after=query.after, before=query.before, limit=query.limit,
        newest=query.newest,
    )  # fmt: skip
    return Reply({"messages": [message_json(row) for row in rows]})


@hide_missing
async def _rules(app: App, request: Request) -> Reply:
    session = await app.store.sessions.get(request.user, request.params["session_id"])
    rules = await asyncio.to_thread(rules_of, app, session)
    return Reply({"files": rules.rows, "counters": rules.counters})


async def _collected(app: App, request: Request) -> Reply:
    rows = await app.store.messages.collected(request.user, limit=request.query.limit, query=request.query.q)
    ids = list(dict.fromkeys(row.session_id for row in rows))
    sessions = await asyncio.gather(
        *(app.store.sessions.get(request.user, each) for each in ids), return_exceptions=True
    )
    titles = {each.session_id: each.title for each in sessions if isinstance(each, Session)}  # some were just deleted
    found = [
        {**to_plain(message_json(row)), "title": titles[row.session_id]} for row in rows if row.session_id in titles
    ]
    return Reply({"messages": found})


@hide_missing
async def _collect(app: App, request: Request) -> Reply:
    message_id = request.params["message_id"]
    await app.collect(request.user, message_id, request.body.collected)
    return Reply(message_json(await app.store.messages.get(request.user, message_id)))


HERE = "/api/sessions/{session_id}"
SESSIONS: dict[str, Any] = {"tags": ("sessions",)}
MESSAGES: dict[str, Any] = {"tags": ("messages",)}
ROUTES = (
    Route(
        "GET", "/api/sessions", _list, "Sessions, the one in which something happened last first", "read",
        query=SessionsQuery, answer=many("sessions", SessionJson, {"next": Next}), **SESSIONS,
    ),
    Route(
        "POST", "/api/sessions", _create, "A new session: nothing of older ones but what memory and profile know",
        "write", SessionBody, {"title": "Quarterly figures", "scenario": "excel"}, answer=SessionJson, status=201,
        **SESSIONS,
    ),
    Route(
        "GET", "/api/sessions/search", _search, "Messages that have all the words, newest sessions first", "read",
        query=SearchQuery, answer=many("found", FoundJson, {"complete": SearchedAll, "reason": Reason}), **SESSIONS,
    ),
    Route("GET", HERE, _get, "One session", "read", answer=SessionJson, **SESSIONS),
    Route(
        "PATCH", HERE, _change, "Change what is given, leave the rest", "write", SessionChange,
        {"title": "Figures of May"}, answer=SessionJson, **SESSIONS,
    ),
    Route(
        "DELETE", HERE, _delete, "Delete it with its messages and turns; memories stay", "write", status=204,
        **SESSIONS,
    ),
    Route(
        "POST", f"{HERE}/branch", _branch, "A new session with the messages up to a number; the old one stays", "write",
        BranchBody, {"seq": 1}, answer=SessionJson, status=201, **SESSIONS,
    ),
    Route(
        "POST", f"{HERE}/end", _end, "It is over, and summarised in the background", "write", answer=SessionJson,
        **SESSIONS,
    ),
    Route(
        "POST", f"{HERE}/compact", _compact, "Fold all but the newest turn into a summary now", "chat",
        answer=CompactionResult, **SESSIONS,
    ),
    Route(
        "GET", f"{HERE}/messages", _messages, "Its messages, in order", "read", query=MessagesQuery,
        answer=many("messages", MessageJson), **SESSIONS,
    ),
    Route(
        "GET", f"{HERE}/rules", _rules, "The instructions and rules in force, and when they were sent", "read",
        answer=many("files", RuleFileJson, {"counters": dict[str, int]}), **SESSIONS,
    ),
    Route(
        "GET", "/api/collected", _collected, "Answers that were collected, the newest first", "read",
        query=CollectedQuery, answer=many("messages", CollectedJson), **MESSAGES,
    ),
    Route(
        "PUT", "/api/messages/{message_id}/collected", _collect,
        "Collect exactly this answer, or no longer; what is not an answer is refused", "write", CollectBody,
        {"collected": True}, answer=MessageJson, **MESSAGES,
    ),
)  # fmt: skip
