"""Who asks, as far as the gateway knows, and which model answers."""

import math

from lamina import __version__
from lamina.app.app import App
from lamina.gateway.http import Reply, Request, Route
from lamina.gateway.values import COUNT, FLAG, TEXT, record

ME = record(
    "Me",
    {
        "user": TEXT, "key_id": TEXT, "scopes": {"type": "array", "items": TEXT}, "model": TEXT, "provider": TEXT,
        "version": TEXT, "lang": {**TEXT, "description": "en, zh, or empty: as the reader likes"}, "workspace": FLAG,
        "app": {**TEXT, "description": "the program that new sessions run in; a skill may be for one"},
        "memory": FLAG, "tools": {**FLAG, "description": "whether any mode has tools of the gateway's own"},
        "pictures": {"type": ["boolean", "null"], "description": "whether the model sees them; null: unknown"},
        "budget": {**COUNT, "description": "tokens of a request; 0 for no limit"},
    },
)  # fmt: skip


async def _me(app: App, request: Request) -> Reply:
    settings, principal = app.settings, request.principal
    known = app.provider if app.has_provider else None  # nobody is started only to be named
    budget = app.builder.settings.budget
    return Reply(
        {
            "user": principal.user,
            "key_id": principal.key_id,
            "scopes": sorted(principal.scopes),
            "model": settings.model or (known.model if known else ""),
            "provider": settings.provider or (known.name if known else ""),
            "version": __version__,
            "lang": settings.lang,
            "workspace": bool(settings.workspace),
            "app": settings.host,
            "memory": settings.memory,
            "tools": app.has_tools,
            "pictures": app.pictures,
            "budget": int(budget) if math.isfinite(budget) else 0,
        }
    )


ROUTES = (Route("GET", "/api/me", _me, "Who asks, and what answers", "read", answer=ME, tags=("about",)),)
