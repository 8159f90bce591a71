"""One of everything that has an id, for a user, made through the API."""

import asyncio
from typing import Any

from tests.gateway.apis import Api


async def say(
    api: Api, session_id: str, words: str = "Hello", *, phase: str | None = None, **options: Any
) -> dict[str, Any]:
    """A turn to its end."""
    body = {"content": words} if phase is None else {"content": words, "phase": phase}
    got = await api("POST", f"/api/sessions/{session_id}/messages", body, **options)
    assert got.status == 202, got.raw
    running = api.app.engine.running(got.json["turn_id"])
    if running:
        async with asyncio.timeout(60):
            await running.wait()
    return got.json


async def world(api: Api, user: str = "ann") -> dict[str, str]:
    session = (await api("POST", "/api/sessions", {"title": f"of {user}"}, user=user)).json
    turn = await say(api, session["session_id"], "My cat is called Tom.", user=user)
    memory = (await api("POST", "/api/memories", {"text": f"{user} has a cat."}, user=user)).json["memory"]
    template = (await api("POST", "/api/templates", {"name": "Tables", "content": "As tables."}, user=user)).json
    return {
        "session_id": session["session_id"], "turn_id": turn["turn_id"], "other_id": turn["turn_id"],
        "message_id": turn["answer_id"], "memory_id": memory["memory_id"], "template_id": template["template_id"],
    }  # fmt: skip


async def everything(api: Api, user: str) -> list[bytes]:
    """All that a user sees of his own."""
    sessions = await api("GET", "/api/sessions?limit=500", user=user)
    seen = [sessions.raw]
    for session in sessions.json["sessions"]:
        here = f"/api/sessions/{session['session_id']}"
        seen += [(await api("GET", f"{here}/{what}?limit=1000", user=user)).raw for what in ("messages", "turns")]
    for path in ("/api/memories?limit=500&state=all", "/api/templates", "/api/collected", "/api/profile"):
        seen.append((await api("GET", path, user=user)).raw)
    return seen
