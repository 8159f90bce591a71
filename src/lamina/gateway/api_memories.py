"""What is remembered, over HTTP: list, search, add, edit, forget, each with where it was said; and the profile."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from lamina.app.app import App
from lamina.app.lookup import forget, origin_of
from lamina.gateway.api_sessions import NEXT, PLACE, SEARCHED, limit_of
from lamina.gateway.http import HttpError, Reply, Request, Route, Schema
from lamina.gateway.ids import hide_missing
from lamina.gateway.values import FLAG, FREE, KINDS, MEMORY, NUMBER, PHRASE, many, memory_value, record
from lamina.records import Memory
from lamina.text.messages import Phrase

FACT: Mapping[str, Schema] = {
    "text": {"type": "string", "minLength": 1, "maxLength": 10_000, "pattern": r"\S"},
    "kind": {"enum": list(KINDS)},
    "pinned": {"type": "boolean", "description": "whether it is in every context"},
    "importance": {"type": "number", "minimum": 0, "maximum": 1},
}
PROFILE: Schema = {
    "type": "object", "maxProperties": 100,
    "additionalProperties": {"type": ["string", "number", "boolean", "null"], "maxLength": 2_000},
    "description": "values by name; null takes one away",
}  # fmt: skip
REMEMBERED = record(
    "Remembered",
    {
        "memory": MEMORY, "known": {**FLAG, "description": "whether it was remembered already"},
        "replaced": {"type": "array", "items": MEMORY, "description": "older ones that it contradicts"},
    },
)  # fmt: skip
RECALLED = record("Recalled", {"memory": MEMORY, "score": NUMBER, "why": PHRASE})


async def _values(app: App, owner: str, memories: Sequence[Memory]) -> list[dict[str, Any]]:
    """Each with its origin; what was deleted in between has none."""
    origins = await asyncio.gather(*(origin_of(app.store, owner, each) for each in memories))
    return [memory_value(each, origin) for each, origin in zip(memories, origins, strict=True)]


async def _list(app: App, request: Request) -> Reply:
    query = request.query
    state = None if query["state"] == "all" else query["state"]
    memories = await app.store.memories.list(
        request.user, state=state, kind=query.get("kind"), limit=query["limit"], before=query.get("before")
    )
    more = memories[-1].change if len(memories) == query["limit"] else None
    return Reply({"memories": await _values(app, request.user, memories), "next": more})


async def _search(app: App, request: Request) -> Reply:
    """By meaning where there is an index, and else by the words."""
    owner, words, limit = request.user, request.query["q"], request.query["limit"]
    hits = await app.recall.search(owner, words, limit=limit) if words.strip() else ()
    rows = {each.memory_id: each for each in await app.store.memories.many(owner, [hit.memory_id for hit in hits])}
    recalled = [(rows[hit.memory_id], hit.score, hit.why) for hit in hits if hit.memory_id in rows]
    if not recalled and words.strip():
        plain = await app.store.memories.list(owner, query=words, limit=limit)
        recalled = [(each, 1.0, Phrase("recall.words_only")) for each in plain]
    values = await _values(app, owner, [each for each, _, _ in recalled])
    told = [
        {"memory": one, "score": float(score), "why": why.for_clients()}
        for one, (_, score, why) in zip(values, recalled, strict=True)
    ]
    return Reply({"found": told})


async def _add(app: App, request: Request) -> Reply:
    made = await app.memory(request.user).remember(**request.body)
    memory, *replaced = await _values(app, request.user, [made.memory, *made.replaced])
    return Reply({"memory": memory, "known": made.known, "replaced": replaced}, 201)


@hide_missing
async def _get(app: App, request: Request) -> Reply:
    memory = await app.store.memories.get(request.user, request.params["memory_id"])
    return Reply((await _values(app, request.user, [memory]))[0])


@hide_missing
async def _edit(app: App, request: Request) -> Reply:
    memories, given = app.memory(request.user), dict(request.body)
    memory = await memories.get(request.params["memory_id"])
    pinned = given.pop("pinned", memory.pinned)
    if given:
        memory = await memories.edit(memory.memory_id, **given)
    if pinned != memory.pinned:
        memory = await memories.pin(memory.memory_id, pinned)
    return Reply((await _values(app, request.user, [memory]))[0])


@hide_missing
async def _forget(app: App, request: Request) -> Reply:
    await forget(app, request.user, [request.params["memory_id"]])
    return Reply(status=204)


async def _profile(app: App, request: Request) -> Reply:
    return Reply({"profile": dict(await app.store.profile.get(request.user))})


async def _change_profile(app: App, request: Request) -> Reply:
    given: Mapping[str, Any] = request.body
    if not all(name.strip() for name in given):
        raise HttpError(400, "profile.no_name")
    known = await app.store.profile.get(request.user)
    if values := {name: value for name, value in given.items() if value is not None}:
        await app.store.profile.set(request.user, values)
    gone = [name for name, value in given.items() if value is None and name in known]
    # another request may have removed it in the meantime, which is fine
    await asyncio.gather(*(app.store.profile.delete(request.user, name) for name in gone), return_exceptions=True)
    return await _profile(app, request)


def _fields(*required: str) -> Schema:
    return {"type": "object", "properties": FACT, "required": list(required), "additionalProperties": False}


HERE = "/api/memories/{memory_id}"
TAGS: dict[str, Any] = {"tags": ("memories",)}
ANSWER = record("Profile", {"profile": FREE})
ROUTES = (
    Route(
        "GET", "/api/memories", _list, "What is remembered, the latest changed first", "read",
        query={
            "limit": limit_of(50, 500), "before": PLACE, "kind": {"enum": list(KINDS)},
            "state": {"enum": ["active", "superseded", "forgotten", "all"], "default": "active"},
        },
        answer=many("memories", MEMORY, next=NEXT), **TAGS,
    ),
    Route(
        "POST", "/api/memories", _add, "Remember this; what is known already is not kept twice", "write",
        body=_fields("text"), example={"text": "The user lives in Oslo.", "kind": "fact"}, answer=REMEMBERED,
        status=201, **TAGS,
    ),
    Route(
        "GET", "/api/memories/search", _search, "What is remembered about this", "read",
        query={"q": {**SEARCHED, "default": ""}, "limit": limit_of(10, 100)}, answer=many("found", RECALLED), **TAGS,
    ),
    Route("GET", HERE, _get, "One memory", "read", answer=MEMORY, **TAGS),
    Route(
        "PATCH", HERE, _edit, "Change what is given, leave the rest", "write", body=_fields(),
        example={"pinned": True}, answer=MEMORY, **TAGS,
    ),
    Route("DELETE", HERE, _forget, "Forget it, in every summary too", "write", status=204, **TAGS),
    Route("GET", "/api/profile", _profile, "Named values that outlive every session", "read", answer=ANSWER, **TAGS),
    Route(
        "PATCH", "/api/profile", _change_profile, "Set what is given, take away what is null", "write", body=PROFILE,
        example={"city": "Oslo", "team": None}, answer=ANSWER, **TAGS,
    ),
)  # fmt: skip
