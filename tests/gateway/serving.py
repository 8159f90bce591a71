"""A gateway in this process, on a free port, over a real App: `async with running(path) as site: …`."""

import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from lamina.app.app import App
from lamina.gateway.gateway import Gateway
from lamina.gateway.handlers import SCOPES, Route
from lamina.gateway.limits import GatewayOptions
from lamina.gateway.server import GatewayServer, listen, serving
from lamina.ports import Provider
from lamina.providers.scripted import ScriptedProvider
from lamina.settings import Settings, load_settings

TOKEN = "lam_loopback_" + "t" * 43


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    raw: bytes
    json: Any = None
    cookies: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Site:
    app: App
    gateway: Gateway
    server: GatewayServer
    port: int
    client: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def ask(
        self, method: str, path: str, body: Any = None, *, key: str = TOKEN, headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> Answer:  # fmt: skip
        """One request, its whole reply. Without a key no credential is sent; redirects are not followed."""
        sent = {"Authorization": f"Bearer {key}"} if key else {}
        sent |= headers or {}
        given: dict[str, Any] = {"data": data} if data is not None else {"json": body} if body is not None else {}
        async with self.client.request(
            method, f"{self.url}{path}", headers=sent, allow_redirects=False, **given
        ) as reply:
            raw = await reply.read()
            value = await reply.json() if reply.content_type == "application/json" and raw else None
            cookies = {name: morsel.value for name, morsel in reply.cookies.items()}
            return Answer(reply.status, reply.headers, raw, value, cookies)

    async def get(self, path: str, **more: Any) -> Answer:
        return await self.ask("GET", path, **more)

    async def post(self, path: str, body: Any = None, **more: Any) -> Answer:
        return await self.ask("POST", path, body, **more)

    async def key(self, user: str, *scopes: str, **more: Any) -> str:
        """A new key of this user; without scopes it may do everything."""
        return (await self.app.store.keys.add(user, "test", scopes=scopes or SCOPES, **more))[1]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@asynccontextmanager
async def running(
    store: str | Path, *, options: GatewayOptions | None = None, routes: Sequence[Route] | None = None,
    provider: Provider | None = None, settings: Settings | None = None, **more: Any,
) -> AsyncGenerator[Site, None]:  # fmt: skip
    """A gateway over this store; its loopback token is `TOKEN`, its user ann."""
    settings = settings or load_settings(
        Path(__file__).parent, {"LAMINA_USER": "ann", "LAMINA_EMBEDDER": "none", "LAMINA_STORE": str(store)}, "gateway"
    )
    answers = provider or ScriptedProvider([[{"text": "Hello."}, {"usage": [7, 0, 3]}, {"done": "stop"}]], repeat=True)
    async with App.open(store, settings=settings, provider=answers) as app:
        options = replace(options or GatewayOptions(log="off"), port=free_port())
        sock = listen(options)
        gateway = Gateway(app, options, token=TOKEN, routes=routes, **more)
        async with (
            serving(gateway, sock) as server,
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as client,
        ):
            yield Site(app, gateway, server, options.port, client)
