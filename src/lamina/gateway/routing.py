"""From a method and a path to a route: a tree of path pieces, made once."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lamina.errors import format_value
from lamina.gateway.http import ErrorForm, HttpError, Route, not_found
from lamina.gateway.shapes import compile_query, compile_schema

ANY_PIECE, ANY_PIECES = "{}", "{...}"
NO_PARAMETERS: Mapping[str, str] = {}


@dataclass(slots=True, eq=False)
class CompiledRoute:
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
    by_method: dict[str, CompiledRoute] = field(default_factory=dict[str, CompiledRoute])


class Routes:
    def __init__(self, routes: Iterable[Route]) -> None:
        self._whole: dict[str, dict[str, CompiledRoute]] = {}
        self._tree = _Node()
        self.compiled: list[CompiledRoute] = []
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        pieces = route.path.split("/")[1:]
        names = tuple(piece[1:-1] for piece in pieces if piece.startswith("{"))
        spends = route.method == "POST" and route.scope == "chat" and not route.path.endswith("/cancel")
        check = compile_schema(route.body) if route.body is not None else None
        compiled = CompiledRoute(
            route, names, check, compile_query(route.query), spends, f"{route.method} {route.path}"
        )
        if names:
            node = self._tree
            for piece in pieces:
                name = ANY_PIECES if route.rest and piece is pieces[-1] else ANY_PIECE
                node = node.below.setdefault(name if piece.startswith("{") else piece, _Node())
            by_method = node.by_method
        else:
            by_method = self._whole.setdefault(route.path, {})
        if route.method in by_method:
            raise ValueError(f"two routes are {compiled.label}")
        by_method[route.method] = compiled
        self.compiled.append(compiled)

    def find(self, method: str, path: str) -> tuple[CompiledRoute, Mapping[str, str]]:
        """The route and the names of its path. An error says that there is none, or not for this method."""
        by_method, values = self._whole.get(path), ()
        if by_method is None:
            by_method, values = self._search(path)
        compiled = by_method.get("GET" if method == "HEAD" else method)
        if compiled is None:
            raise MethodError(method, sorted({*by_method, "HEAD"} if "GET" in by_method else by_method))
        if not values:
            return compiled, NO_PARAMETERS
        return compiled, dict(zip(compiled.names, values, strict=True))

    def _search(self, path: str) -> tuple[dict[str, CompiledRoute], tuple[str, ...]]:
        values: list[str] = []
        node = self._tree
        pieces = path.split("/")[1:]
        for place, piece in enumerate(pieces):
            below = node.below.get(piece)
            if below is None and ANY_PIECES in node.below:
                values.append("/".join(pieces[place:]))
                node = node.below[ANY_PIECES]
                break
            if below is None:
                below = node.below.get(ANY_PIECE)
                if below is None:
                    raise not_found() if path.startswith(("/api/", "/web/")) else no_route()
                values.append(piece)
            node = below
        if not node.by_method:
            raise not_found()
        return node.by_method, tuple(values)


def no_route() -> HttpError:
    return HttpError(404, "gateway.no_route", kind="not_found")


class MethodError(HttpError):
    def __init__(self, method: str, allowed: list[str]) -> None:
        self.allowed = ", ".join(allowed)
        super().__init__(405, "gateway.wrong_method", kind="method", method=format_value(method)[1:-1], allowed=allowed)


def error_form_of(path: str) -> ErrorForm:
    """The form of an error where no route says it."""
    if path.startswith("/v1/messages"):
        return "anthropic"
    return "openai" if path.startswith("/v1/") else "lamina"
