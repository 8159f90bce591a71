"""The routes of the API over a real app, called as the gateway calls them, but without a socket in between."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from lamina import App
from lamina.errors import LaminaError
from lamina.gateway import api_about, api_memories, api_sessions, api_templates, api_turns
from lamina.gateway.http import SCOPES, HttpError, Principal, Reply, Request, Route
from lamina.gateway.openapi import route_of
from lamina.gateway.shapes import compiled, compiled_query, refuse
from lamina.gateway.values import encoded
from lamina.providers.scripted import ScriptedProvider
from tests.engine.chats import Script, settings

PLAIN = (
    *api_about.ROUTES, *api_sessions.ROUTES, *api_turns.ROUTES, *api_memories.ROUTES, *api_templates.ROUTES,
)  # fmt: skip
ROUTES: Sequence[Route] = (*PLAIN, route_of(PLAIN))


@dataclass(frozen=True, slots=True)
class Got:
    status: int
    raw: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


def match(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """Fixed words win over names."""
    found: list[tuple[Route, dict[str, str]]] = []
    for route in ROUTES:
        steps, given = route.path.split("/"), path.split("/")
        if route.method == method and len(steps) == len(given):
            pairs = list(zip(steps, given, strict=True))
            if all(step == one or step.startswith("{") for step, one in pairs):
                found.append((route, {step[1:-1]: one for step, one in pairs if step.startswith("{")}))
    return min(found, key=lambda one: len(one[1])) if found else None


class Direct:
    """Requests of any user, straight to the handlers."""

    def __init__(self, app: App, provider: ScriptedProvider) -> None:
        self.app, self.provider = app, provider

    async def reply(
        self, method: str, path: str, body: Any = None, *, user: str = "ann", headers: Mapping[str, str] | None = None
    ) -> Reply:
        path, _, query = path.partition("?")
        found = match(method, path)
        if found is None:
            raise HttpError(404, "no route", kind="not_found")
        route, params = found
        if route.body is not None:
            refuse(compiled(route.body)(body))
        asked = compiled_query(route.query)(query.encode())
        who = Principal(user, "k1", frozenset(SCOPES))
        given = {name.lower(): value for name, value in (headers or {}).items()}
        gone = asyncio.Event()

        async def left() -> None:
            await gone.wait()

        return await route.handler(self.app, Request("r1", method, path, params, asked, given, body, who, left))

    async def __call__(self, method: str, path: str, body: Any = None, **options: Any) -> Got:
        try:
            reply = await self.reply(method, path, body, **options)
        except LaminaError as error:
            kind = getattr(error, "kind", "error")
            told = {"error": {"message": error.message, "hint": error.hint, "type": kind}}
            return Got(error.status, encoded(told))
        if isinstance(reply.body, bytes):
            return Got(reply.status, reply.body, reply.headers)
        if hasattr(reply.body, "__aiter__"):
            raw = b"".join([piece async for piece in reply.body])
            return Got(reply.status, raw, {**reply.headers, "content-type": reply.media})
        raw = b"" if reply.status == 204 else encoded(reply.body)
        return Got(reply.status, raw, reply.headers)


@asynccontextmanager
async def direct(where: str, script: Script = ([{"text": "Well."}],), **changes: Any) -> AsyncGenerator[Direct]:
    provider = ScriptedProvider(script, repeat=True)
    async with App.open(where, settings=settings(**changes), provider=provider, work=False) as app:
        yield Direct(app, provider)
