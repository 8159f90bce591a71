"""From a method and a path to a route: a tree of path pieces, made once."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lamina.gateway.http import ErrorForm, HttpError, Route, not_found
from lamina.gateway.shapes import compiled, compiled_query

ANY, REST = "{}", "{...}"
NO_PARAMS: Mapping[str, str] = {}


@dataclass(slots=True, eq=False)
class Door:
    """A route with all that is looked up or made once: the names in its path, its checks, its place in the metrics."""

    route: Route
    names: tuple[str, ...]
    check: Callable[[Any], Any] | None
    query: Callable[[bytes], Mapping[str, Any]]
    spends: bool
    """Whether it makes tokens flow: then a budget that is used up closes it."""
    label: str


@dataclass(slots=True)
class _Node:
    below: "dict[str, _Node]" = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    doors: dict[str, Door] = field(default_factory=dict[str, Door])


class Routes:
    def __init__(self, routes: Iterable[Route]) -> None:
        self._whole: dict[str, dict[str, Door]] = {}
        self._tree = _Node()
        self.doors: list[Door] = []
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        pieces = route.path.split("/")[1:]
        names = tuple(piece[1:-1] for piece in pieces if piece.startswith("{"))
        spends = route.method == "POST" and route.scope == "chat" and not route.path.endswith("/cancel")
        check = compiled(route.body) if route.body is not None else None
        door = Door(route, names, check, compiled_query(route.query), spends, f"{route.method} {route.path}")
        if names:
            node = self._tree
            for piece in pieces:
                name = REST if route.rest and piece is pieces[-1] else ANY
                node = node.below.setdefault(name if piece.startswith("{") else piece, _Node())
            doors = node.doors
        else:
            doors = self._whole.setdefault(route.path, {})
        if route.method in doors:
            raise ValueError(f"two routes are {door.label}")
        doors[route.method] = door
        self.doors.append(door)

    def find(self, method: str, path: str) -> tuple[Door, Mapping[str, str]]:
        """The route and the names of its path. An error says that there is none, or not for this method."""
        doors, values = self._whole.get(path), ()
        if doors is None:
            doors, values = self._search(path)
        door = doors.get("GET" if method == "HEAD" else method)
        if door is None:
            raise MethodError(sorted({*doors, "HEAD"} if "GET" in doors else doors))
        if not values:
            return door, NO_PARAMS
        return door, dict(zip(door.names, values, strict=True))

    def _search(self, path: str) -> tuple[dict[str, Door], tuple[str, ...]]:
        values: list[str] = []
        node = self._tree
        pieces = path.split("/")[1:]
        for place, piece in enumerate(pieces):
            below = node.below.get(piece)
            if below is None and REST in node.below:
                values.append("/".join(pieces[place:]))
                node = node.below[REST]
                break
            if below is None:
                below = node.below.get(ANY)
                if below is None:
                    raise not_found() if path.startswith(("/api/", "/web/")) else no_route()
                values.append(piece)
            node = below
        if not node.doors:
            raise not_found()
        return node.doors, tuple(values)


def no_route() -> HttpError:
    hint = (
        "base_url is http://…/v1 for OpenAI's client and http://… for Anthropic's; GET /api/openapi.json has all routes"
    )
    return HttpError(404, "no route has this path", hint=hint, kind="not_found")


class MethodError(HttpError):
    def __init__(self, allowed: list[str]) -> None:
        self.allowed = ", ".join(allowed)
        super().__init__(405, "this path does not take that method", hint=f"it takes {self.allowed}", kind="method")


def form_of(path: str) -> ErrorForm:
    """The form of an error where no route says it."""
    if path.startswith("/v1/messages"):
        return "anthropic"
    return "openai" if path.startswith("/v1/") else "lamina"
