"""The API as its users see it: a gateway on a socket in this process, keys of several users, a script for a model."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from lamina import App
from lamina.gateway.gateway import Gateway
from lamina.gateway.handlers import SCOPES, Route
from lamina.gateway.limits import GatewayOptions
from lamina.gateway.server import listen, serving
from lamina.providers.scripted import ScriptedProvider
from tests.engine.chats import Script, settings
from tests.gateway.serving import free_port

WELL: Script = ([{"text": "Well."}],)


@dataclass(frozen=True, slots=True)
class Got:
    status: int
    raw: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


class Api:
    """Requests of any user, each with a key of his own."""

    def __init__(self, app: App, provider: ScriptedProvider, gateway: Gateway, http: aiohttp.ClientSession) -> None:
        self.app, self.provider, self.gateway, self.http = app, provider, gateway, http
        self.url = f"http://127.0.0.1:{gateway.options.port}"
        self._keys: dict[str, str] = {}

    @property
    def routes(self) -> Sequence[Route]:
        return [each.route for each in self.gateway.routes.compiled]

    async def key(self, user: str) -> str:
        if user not in self._keys:
            self._keys[user] = (await self.app.store.keys.add(user, "test", scopes=SCOPES))[1]
        return self._keys[user]

    async def headers(self, user: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return {"Authorization": f"Bearer {await self.key(user)}", **(more or {})}

    async def __call__(
        self, method: str, path: str, body: Any = None, *, user: str = "ann", headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> Got:  # fmt: skip
        sent = await self.headers(user, headers)
        given: dict[str, Any] = {"data": data} if data is not None else {} if body is None else {"json": body}
        async with self.http.request(method, URL(self.url + path, encoded=True), headers=sent, **given) as reply:
            found = {name.lower(): value for name, value in reply.headers.items()}
            return Got(reply.status, await reply.read(), found)


@asynccontextmanager
async def api_on(
    where: str, script: Script = WELL, *, routes: Sequence[Route] | None = None, **changes: Any
) -> AsyncGenerator[Api]:
    """A gateway over a store; nothing is learnt in the background unless a test does it."""
    provider = ScriptedProvider(script, repeat=True)
    async with (
        App.open(where, settings=settings(**changes), provider=provider, work=False) as opened,
        api_of(opened, provider, routes) as api,
    ):
        yield api


@asynccontextmanager
async def api_of(app: App, provider: ScriptedProvider, routes: Sequence[Route] | None = None) -> AsyncGenerator[Api]:
    options = replace(GatewayOptions(log="off", guesses=1_000_000), port=free_port())  # fuzzers guess, and hear 401
    gateway = Gateway(app, options, routes=routes)
    async with serving(gateway, listen(options)), aiohttp.ClientSession(auto_decompress=False) as http:
        yield Api(app, provider, gateway, http)


def as_piece(text: str) -> str:
    """A text as a piece of a path, whatever is in it."""
    return quote(text.encode("utf-8", "surrogatepass"), safe="")
