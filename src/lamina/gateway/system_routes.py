"""The gateway's own routes: health, login and logout, who asks, its counters, the OpenAPI document, and the page.

The page is a fixed table of files in the package, read once and served from memory with their hash. Nothing else can be
read from here: a name that is not in the table is not looked for on a disk.
"""

import asyncio
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from lamina import __version__
from lamina.app.app import App
from lamina.errors import LaminaError, StoreDamagedError
from lamina.gateway import metrics
from lamina.gateway.handlers import HttpError, Reply, Request, Route, as_json, not_found
from lamina.gateway.principals import parse_key
from lamina.gateway.schemas import Count, Model

HEALTH_TIMEOUT_S = 5.0
"""In which a store that is well has answered."""
JOB_KINDS = ("memory", "summary")
"""Jobs of the background."""
FOLDER = Path(__file__).parent.parent / "web"
MESSAGES = FOLDER.parent / "data"
MEDIA = {
    ".json": "application/json",
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
PAGE_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Scripts are ours alone, nothing is loaded from elsewhere, and the browser refuses to read any text as HTML."""


class LoginBody(Model):
    key: Annotated[str, Meta(max_length=200, extra_json_schema={"writeOnly": True})]


class StatusJson(Model):
    status: str


class LoginJson(Model):
    user: str
    scopes: list[str]


class MeJson(Model):
    user: str
    key_id: str
    scopes: list[str]
    model: str
    provider: str
    version: str
    lang: Annotated[str, Meta(description="en, zh, or empty: as the reader likes")]
    workspace: bool
    app: Annotated[str, Meta(description="the program that new sessions run in; a skill may be for one")]
    memory: bool
    tools: Annotated[bool, Meta(description="whether any mode has tools of the gateway's own")]
    pictures: Annotated[bool | None, Meta(description="whether the model sees them; null: unknown")]
    budget: Annotated[Count, Meta(description="tokens of a request; 0 for no limit")]


class PageQuery(Model):
    token: Annotated[str, Meta(description="a key, from the address that `lamina serve` opens")] = ""


async def _live(app: App, request: Request) -> Reply:
    return Reply({"status": "ok"})


async def _health(app: App, request: Request) -> Reply:
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            await app.store.admin.version()
    except StoreDamagedError:
        raise
    except (LaminaError, TimeoutError):
        raise HttpError(503, "gateway.store_silent", kind="store") from None
    return Reply({"status": "ok"})


async def _login(app: App, request: Request) -> Reply:
    principals, credential = request.gateway.principals, parse_key(request.body.key.strip())
    principal = await principals.principal(credential, request.address)
    answer = LoginJson(user=principal.user, scopes=sorted(principal.scopes))
    return Reply(answer, headers={"Set-Cookie": principals.cookie_for(credential, request.headers)})


async def _logout(app: App, request: Request) -> Reply:
    return Reply(status=204, headers={"Set-Cookie": request.gateway.principals.no_cookie(request.headers)})


async def _metrics(app: App, request: Request) -> Reply:
    waiting = await app.store.jobs.left(JOB_KINDS)
    more = {
        "lamina_outbox_waiting": ("gauge", "Jobs of the background that are due or held.", float(waiting)),
        "lamina_commits_total": ("counter", "Commits to the store by this process.", app.store.commits),
    }
    return Reply(request.gateway.metrics.text(more).encode(), media=metrics.MEDIA)


async def _document(app: App, request: Request) -> Reply:
    return Reply(request.gateway.document)


async def _me(app: App, request: Request) -> Reply:
    settings, principal, budget = app.settings, request.principal, app.builder.settings.budget
    provider = app.provider if app.has_provider else None  # none is started only to be named
    return Reply(
        MeJson(
            user=principal.user,
            key_id=principal.key_id,
            scopes=sorted(principal.scopes),
            model=settings.model or (provider.model if provider else ""),
            provider=settings.provider or (provider.name if provider else ""),
            version=__version__,
            lang=settings.lang,
            workspace=bool(settings.workspace),
            app=settings.host,
            memory=settings.memory,
            tools=app.has_tools,
            pictures=app.pictures,
            budget=int(budget) if math.isfinite(budget) else 0,
        )
    )


# The page


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page as it is sent."""

    body: bytes
    media: str
    tag: str


@cache
def page_files() -> Mapping[str, PageFile]:
    """All files of the page by name; the package does not change while it runs."""
    paths = [*sorted(FOLDER.iterdir()), *sorted(MESSAGES.glob("messages.*.json"))]
    return {path.name: _page_file(path) for path in paths if path.suffix in MEDIA}


def _page_file(path: Path) -> PageFile:
    body = path.read_bytes()
    if path.parent == MESSAGES:  # without what only the terminal and the bot say
        entries: dict[str, str] = json.loads(body)
        body = as_json({code: text for code, text in entries.items() if not code.startswith(("cli.", "bot."))})
    return PageFile(body, MEDIA[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def _send_file(request: Request, file: PageFile) -> Reply:
    headers = {
        "ETag": file.tag,
        "Cache-Control": "no-cache",  # asked for each time and answered by 304: an upgrade is seen at once
        "Content-Security-Policy": PAGE_POLICY,
    }
    known = (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(","))
    if file.tag in known:
        return Reply(b"", 304, headers, file.media)
    return Reply(file.body, 200, headers, file.media)


async def _page(app: App, request: Request) -> Reply:
    return await _log_in_by_link(request) if request.query.token else _send_file(request, page_files()["index.html"])


async def _log_in_by_link(request: Request) -> Reply:
    """Exchange the token in the opened address for a cookie, and for an address without it. With a wrong one the page
    asks for a key. A link on another page does not log in: it could lead into another account, and whether there is a
    login already cannot be seen, because the browser withholds our cookie then."""
    headers, principals = {"location": "/"}, request.gateway.principals
    if request.headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        credential = parse_key(request.query.token)
        try:
            await principals.principal(credential, request.address)
            headers["set-cookie"] = principals.cookie_for(credential, request.headers)
        except HttpError as error:
            if error.status != 401:
                raise
            headers["location"] = "/#/login/wrong"  # the page says it
    return Reply(b"", 303, headers, media="")


async def _file(app: App, request: Request) -> Reply:
    found = page_files().get(request.params["file"])
    if found is None:
        raise not_found()
    return _send_file(request, found)


GATEWAY: dict[str, Any] = {"tags": ("gateway",)}
ROUTES = (
    Route("GET", "/api/live", _live, "Whether the gateway runs; asks nothing else", None, answer=StatusJson, **GATEWAY),
    Route("GET", "/api/health", _health, "Whether the gateway can work", None, answer=StatusJson, **GATEWAY),
    Route(
        "POST", "/api/login", _login, "Exchange a key for the page's cookie", None, LoginBody, answer=LoginJson,
        **GATEWAY,
    ),
    Route("POST", "/api/logout", _logout, "Clear the page's cookie", None, status=204, **GATEWAY),
    Route(
        "GET", "/metrics", _metrics, "Counters in the text form of Prometheus", "metrics", media=metrics.MEDIA,
        **GATEWAY,
    ),
    Route("GET", "/api/openapi.json", _document, "This document", None, answer=dict[str, Any], tags=("about",)),
    Route("GET", "/", _page, "The web page.", None, query=PageQuery, media=MEDIA[".html"], tags=("page",)),
    Route("GET", "/web/{file}", _file, "A file of it.", None, media="application/octet-stream", tags=("page",)),
)  # fmt: skip
ABOUT_ROUTES = (Route("GET", "/api/me", _me, "Who asks, and what answers", "read", answer=MeJson, tags=("about",)),)
