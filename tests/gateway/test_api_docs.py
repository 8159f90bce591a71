"""The page about the API names every route, and no other."""

import re
from pathlib import Path

from lamina.gateway.handlers import Route
from tests.gateway.apis import api_on

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "api.md"


def named(text: str) -> dict[str, set[str]]:
    """The routes in the table, each with the scopes of its row."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 3 or not cells[0].startswith("`"):
            continue
        path = ""
        for method, where in re.findall(r"`(GET|POST|PUT|PATCH|DELETE)(?: (/\S+))?`", cells[0]):
            path = where or path
            found[f"{method} {path}"] = set(cells[1].split(", "))
    return found


def wrong(text: str, routes: list[Route]) -> list[str]:
    known = {f"{route.method} {route.path}": route.scope or "–" for route in routes}
    told = named(text)
    problems = [f"{name} is not on the page" for name in known if name not in told]
    problems += [f"{name} is on the page alone" for name in told if name not in known]
    return problems + [
        f"{name} needs {known[name]}" for name in known if name in told and known[name] not in told[name]
    ]


async def test_the_page_names_every_route_with_its_scope(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "s.db")) as api:
        routes = [route for route in api.routes if route.path.startswith("/api")]
    text = PAGE.read_text(encoding="utf-8")
    assert wrong(text, routes) == []
    assert wrong(text.replace("| `GET /api/me` | read |", "| `GET /api/me` | write |"), routes)
    assert wrong(text.replace("`GET /api/me`", "`GET /api/you`"), routes)
