"""All routes of the gateway but its own few (login, health, metrics), from the modules that have them."""

from collections.abc import Sequence

from lamina.gateway import (
    api_about,
    api_memories,
    api_sessions,
    api_templates,
    api_turns,
    page,
    v1_anthropic,
    v1_openai,
)  # fmt: skip
from lamina.gateway.http import Route

ROUTES: Sequence[Route] = (
    *api_about.ROUTES, *api_sessions.ROUTES, *api_turns.ROUTES, *api_memories.ROUTES, *api_templates.ROUTES,
    *v1_openai.ROUTES, *v1_anthropic.ROUTES, *page.ROUTES,
)  # fmt: skip
