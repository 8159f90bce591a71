"""All routes of the gateway but its own few (login, health, metrics), from the modules that have them."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from lamina.gateway.http import Route

MODULES = (
    "api_about", "api_sessions", "api_turns", "api_memories", "api_templates", "v1_openai", "v1_anthropic", "page",
)  # fmt: skip


def _all() -> Sequence[Route]:
    found: list[Route] = []
    for name in MODULES:
        if find_spec(f"lamina.gateway.{name}"):
            found += getattr(import_module(f"lamina.gateway.{name}"), "ROUTES", ())
    return found


ROUTES: Sequence[Route] = _all()
