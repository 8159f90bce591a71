"""Memories over HTTP: list, search, add, edit, forget, each with where it was said; and the profile."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from lamina.app.app import App
from lamina.app.lookup import MemoryOrigin, forget, origin_of
from lamina.gateway.api_sessions import Next, Position, Words
from lamina.gateway.handlers import HttpError, Reply, Request, Route, hide_missing
from lamina.gateway.schemas import Count, Model, Number, OptionalTime, PhraseJson, Time, from_record, many
from lamina.records import Memory, MemoryState
from lamina.text.messages import Phrase
from lamina.types import Trust

EXCERPT_CHARACTERS = 200
Kind = Literal["preference", "fact", "event", "instruction"]
MemoryText = Annotated[str, Meta(min_length=1, max_length=10_000, pattern=r"\S")]


class MemoryFields(Model):
    kind: Kind | UnsetType = UNSET
    pinned: Annotated[bool, Meta(description="whether it is in every context")] | UnsetType = UNSET
    importance: Annotated[int, Meta(ge=0, le=1)] | Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET


class MemoryBody(MemoryFields, kw_only=True):
    text: MemoryText


class MemoryChange(MemoryFields):
    text: MemoryText | UnsetType = UNSET


ProfileBody = Annotated[
    dict[str, Annotated[str, Meta(max_length=2_000)] | Number | bool | None],
    Meta(max_length=100, description="values by name; null takes one away"),
]


class OriginJson(Model):
    session_id: str
    turn_id: str
    seq: Count
    title: str
    excerpt: str


class MemoryJson(Model):
    memory_id: str
    text: str
    kind: str
    trust: Trust
    importance: Number
    pinned: bool
    state: MemoryState
    created: Time
    updated: Time
    happened: OptionalTime
    origin: Annotated[OriginJson | None, Meta(description="where it was said; null for none")] = None


class RememberedJson(Model):
    memory: MemoryJson
    known: Annotated[bool, Meta(description="whether it was remembered already")]
    replaced: Annotated[list[MemoryJson], Meta(description="older ones that it contradicts")]


class RecalledJson(Model):
    memory: MemoryJson
    score: Number
    why: PhraseJson


class ProfileJson(Model):
    profile: dict[str, Any]


class MemoriesQuery(Model):
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    before: Position | None = None
    kind: Kind | None = None
    state: Literal["active", "superseded", "forgotten", "all"] = "active"


class MemorySearchQuery(Model):
    q: Words = ""
    limit: Annotated[int, Meta(ge=1, le=100)] = 10


async def _with_origins(app: App, owner: str, memories: Sequence[Memory]) -> list[MemoryJson]:
    """Each with its origin; one whose session was deleted has none."""
    origins = await asyncio.gather(*(origin_of(app.store, owner, each) for each in memories))
    return [_memory_json(each, origin) for each, origin in zip(memories, origins, strict=True)]


def _memory_json(memory: Memory, origin: MemoryOrigin | None) -> MemoryJson:
    found = from_record(MemoryJson, memory)
    if origin is not None and origin.session is not None:
        text = " ".join(origin.message.text.split()) if origin.message else ""
        excerpt = f"{text[: EXCERPT_CHARACTERS - 1]}…" if len(text) > EXCERPT_CHARACTERS else text
        place = OriginJson(
            session_id=memory.session_id, turn_id=memory.turn_id, seq=memory.seq, title=origin.session.title,
            excerpt=excerpt,
        )  # fmt: skip
        return msgspec.structs.replace(found, origin=place)
    return found


async def _list(app: App, request: Request) -> Reply:
    query = request.query
    state = None if query.state == "all" else query.state
    memories = await app.store.memories.list(
        request.user, state=state, kind=query.kind, limit=query.limit, before=query.before
    )
    more = memories[-1].change if len(memories) == query.limit else None
    return Reply({"memories": await _with_origins(app, request.user, memories), "next": more})


async def _search(app: App, request: Request) -> Reply:
    """By meaning where there is an index, and otherwise by the words."""
    owner, words, limit = request.user, request.query.q, request.query.limit
    hits = await app.recall.search(owner, words, limit=limit) if words.strip() else ()
    rows = {each.memory_id: each for each in await app.store.memories.many(owner, [hit.memory_id for hit in hits])}
    recalled = [(rows[hit.memory_id], hit.score, hit.why) for hit in hits if hit.memory_id in rows]
    if not recalled and words.strip():
        plain = await app.store.memories.list(owner, query=words, limit=limit)
        recalled = [(each, 1.0, Phrase("recall.words_only")) for each in plain]
    memories = await _with_origins(app, owner, [each for each, _, _ in recalled])
    found = [
        {"memory": memory, "score": float(score), "why": why.for_clients()}
        for memory, (_, score, why) in zip(memories, recalled, strict=True)
    ]
    return Reply({"found": found})


async def _add(app: App, request: Request) -> Reply:
    made = await app.memory(request.user).remember(**msgspec.to_builtins(request.body))
    memory, *replaced = await _with_origins(app, request.user, [made.memory, *made.replaced])
    return Reply(RememberedJson(memory=memory, known=made.known, replaced=replaced), 201)


@hide_missing
async def _get(app: App, request: Request) -> Reply:
    memory = await app.store.memories.get(request.user, request.params["memory_id"])
    return Reply((await _with_origins(app, request.user, [memory]))[0])


@hide_missing
async def _edit(app: App, request: Request) -> Reply:
    memories, changes = app.memory(request.user), msgspec.to_builtins(request.body)
    memory = await memories.get(request.params["memory_id"])
    pinned = changes.pop("pinned", memory.pinned)
    if changes:
        memory = await memories.edit(memory.memory_id, **changes)
    if pinned != memory.pinned:
        memory = await memories.pin(memory.memory_id, pinned)
    return Reply((await _with_origins(app, request.user, [memory]))[0])


@hide_missing
async def _forget(app: App, request: Request) -> Reply:
    await forget(app, request.user, [request.params["memory_id"]])
    return Reply(status=204)


async def _profile(app: App, request: Request) -> Reply:
    return Reply({"profile": await app.store.profile.get(request.user)})


async def _change_profile(app: App, request: Request) -> Reply:
    changes: Mapping[str, Any] = request.body
    if not all(name.strip() for name in changes):
        raise HttpError(400, "profile.no_name")
    known = await app.store.profile.get(request.user)
    if values := {name: value for name, value in changes.items() if value is not None}:
        await app.store.profile.set(request.user, values)
    gone = [name for name, value in changes.items() if value is None and name in known]
    # another request may have removed it in the meantime, which is fine
    await asyncio.gather(*(app.store.profile.delete(request.user, name) for name in gone), return_exceptions=True)
    return await _profile(app, request)


HERE = "/api/memories/{memory_id}"
MEMORIES: dict[str, Any] = {"tags": ("memories",)}
ROUTES = (
    Route(
        "GET", "/api/memories", _list, "What is remembered, the latest changed first", "read", query=MemoriesQuery,
        answer=many("memories", MemoryJson, {"next": Next}), **MEMORIES,
    ),
    Route(
        "POST", "/api/memories", _add, "Remember this; what is known already is not stored twice", "write", MemoryBody,
        {"text": "The user lives in Oslo.", "kind": "fact"}, answer=RememberedJson, status=201, **MEMORIES,
    ),
    Route(
        "GET", "/api/memories/search", _search, "What is remembered about this", "read", query=MemorySearchQuery,
        answer=many("found", RecalledJson), **MEMORIES,
    ),
    Route("GET", HERE, _get, "One memory", "read", answer=MemoryJson, **MEMORIES),
    Route(
        "PATCH", HERE, _edit, "Change what is given, leave the rest", "write", MemoryChange, {"pinned": True},
        answer=MemoryJson, **MEMORIES,
    ),
    Route("DELETE", HERE, _forget, "Forget it, in every summary too", "write", status=204, **MEMORIES),
    Route(
        "GET", "/api/profile", _profile, "Named values that outlive every session", "read", answer=ProfileJson,
        **MEMORIES,
    ),
    Route(
        "PATCH", "/api/profile", _change_profile, "Set what is given, take away what is null", "write", ProfileBody,
        {"city": "Oslo", "team": None}, answer=ProfileJson, **MEMORIES,
    ),
)  # fmt: skip
