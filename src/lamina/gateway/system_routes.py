"""The gateway's own routes: health, login and logout, and its counters. They know its state; no other route does."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lamina.app.app import App
from lamina.errors import LaminaError, StoreDamagedError
from lamina.gateway.http import HttpError, Reply, Request, Route
from lamina.gateway.metrics import MEDIA
from lamina.gateway.principals import parse_key

if TYPE_CHECKING:
    from lamina.gateway.gateway import Gateway

KEY = {
    "type": "object",
    "properties": {"key": {"type": "string", "maxLength": 200, "writeOnly": True}},
    "required": ["key"],
    "additionalProperties": False,
}
HEALTH_TIMEOUT_S = 5.0
"""Seconds in which a store that is well has answered."""
JOB_KINDS = ("memory", "summary")
"""Jobs of the background."""


def system_routes(gateway: "Gateway") -> Sequence[Route]:
    async def live(app: App, request: Request) -> Reply:
        return Reply({"status": "ok"})

    async def health(app: App, request: Request) -> Reply:
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                await app.store.admin.version()
        except StoreDamagedError:
            raise
        except (LaminaError, TimeoutError):
            raise HttpError(503, "gateway.store_silent", kind="store") from None
        return Reply({"status": "ok"})

    async def login(app: App, request: Request) -> Reply:
        body: Any = request.body
        text: Any = body.get("key") if isinstance(body, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if not isinstance(text, str):
            raise HttpError(400, "gateway.key_missing")
        credential = parse_key(text.strip())
        principal = await gateway.principals.principal(credential, request.address)
        known = {"user": principal.user, "scopes": sorted(principal.scopes)}
        return Reply(known, headers={"Set-Cookie": gateway.principals.cookie_for(credential, request.headers)})

    async def logout(app: App, request: Request) -> Reply:
        return Reply(None, 204, {"Set-Cookie": gateway.principals.no_cookie(request.headers)})

    async def metrics(app: App, request: Request) -> Reply:
        waiting = await app.store.jobs.left(JOB_KINDS)
        more = {
            "lamina_outbox_waiting": ("gauge", "Jobs of the background that are due or held.", float(waiting)),
            "lamina_commits_total": ("counter", "Commits to the store by this process.", app.store.commits),
        }
        return Reply(gateway.metrics.text(more).encode(), media=MEDIA)

    status = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}
    user = {
        "type": "object",
        "properties": {"user": {"type": "string"}, "scopes": {"type": "array", "items": {"type": "string"}}},
        "required": ["user", "scopes"],
    }
    return (
        Route(
            "GET", "/api/live", live, "Whether the gateway runs; asks nothing else", None, answer=status,
            tags=("gateway",),
        ),
        Route("GET", "/api/health", health, "Whether the gateway can work", None, answer=status, tags=("gateway",)),
        Route(
            "POST", "/api/login", login, "Exchange a key for the page's cookie", None, KEY, answer=user,
            tags=("gateway",),
        ),
        Route("POST", "/api/logout", logout, "Clear the page's cookie", None, status=204, tags=("gateway",)),
        Route(
            "GET", "/metrics", metrics, "Counters in the text form of Prometheus", "metrics", media=MEDIA,
            tags=("gateway",),
        ),
    )  # fmt: skip
