"""The page: a fixed table of files that lie in the package, read once and served from memory with their hash.

Nothing else can be read from here: a name that is not in the table is not looked for on a disk.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lamina.app.app import App
from lamina.gateway.http import Reply, Request, Route, not_found
from lamina.gateway.replies import as_json

FOLDER = Path(__file__).parent.parent / "web"
MESSAGES = FOLDER.parent / "data"
MEDIA = {
    ".json": "application/json",
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
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


@dataclass(frozen=True, slots=True)
class File:
    """A file of the page as it is sent."""

    body: bytes
    media: str
    tag: str


@cache
def files() -> Mapping[str, File]:
    """All files of the page by name; the package does not change while it runs."""
    paths = [*sorted(FOLDER.iterdir()), *sorted(MESSAGES.glob("messages.*.json"))]
    found = {path.name: path for path in paths if path.suffix in MEDIA}
    return {name: _file(path) for name, path in found.items()}


def _file(path: Path) -> File:
    body = _for_page(path) if path.parent == MESSAGES else path.read_bytes()
    return File(body, MEDIA[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def _for_page(path: Path) -> bytes:
    """A catalogue without what only the terminal and the bot say."""
    entries: dict[str, str] = json.loads(path.read_bytes())
    return as_json({code: text for code, text in entries.items() if not code.startswith(("cli.", "bot."))})


def _reply(request: Request, file: File) -> Reply:
    headers = {
        "ETag": file.tag,
        "Cache-Control": "no-cache",  # asked for each time and answered by 304: an upgrade is seen at once
        "Content-Security-Policy": POLICY,
    }
    known = (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(","))
    if file.tag in known:
        return Reply(b"", 304, headers, file.media)
    return Reply(file.body, 200, headers, file.media)


async def page(app: App, request: Request) -> Reply:
    return _reply(request, files()["index.html"])


async def file(app: App, request: Request) -> Reply:
    found = files().get(request.params["file"])
    if found is None:
        raise not_found()
    return _reply(request, found)


ROUTES = (
    Route("GET", "/", page, "The web page.", None, media=MEDIA[".html"], tags=("page",)),
    Route("GET", "/web/{file}", file, "A file of it.", None, media="application/octet-stream", tags=("page",)),
)
