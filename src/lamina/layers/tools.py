"""Tools as the model knows them: their schemas, the notes about them in the prompt, and the door to running them.

Notes say when to use a tool; how it is called stands in its schema alone. What a call must pass before it runs, and how
it runs, is `calls`' matter.
"""

import copy
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, overload

from lamina.errors import ToolError, shown
from lamina.layers.signatures import description_of, parameters_of
from lamina.types import Decision, Layer, Outcome, ToolCallEvent

if TYPE_CHECKING:
    from lamina.ports import Ask

MAX_CHARS = 8_000
MODES = ("agent", "plan", "ask")
SECONDS = 60.0
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Tool:
    """What the model is told about a tool: `description` says when to use it and what its limits are (S3).

    `note` is the line in the prompt where that should differ from the description; `advice` is what to do when
    more came out than `max_chars`. `run` is called with the arguments by name, in a thread unless it is async, and ends
    after `seconds`; `check` decides beforehand whether it may run. `modes` are those in which the tool is offered.
    """

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    note: str = ""
    advice: str = ""
    max_chars: int = MAX_CHARS
    run: Callable[..., Any] | None = field(default=None, repr=False)
    check: Callable[[Mapping[str, Any]], Decision] | None = field(default=None, repr=False)
    modes: tuple[str, ...] = MODES
    seconds: float = SECONDS

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise ToolError(
                f"{shown(self.name)} cannot name a tool", hint="1 to 64 of A-Z, a-z, 0-9, _ and -, as providers want it"
            )
        if not isinstance(self.description, str) or not self.description.strip():  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise ToolError(
                f"the tool {self.name} has no description",
                hint="say when to use it and what its limits are; the model chooses by it",
            )
        if self.max_chars < 1:
            raise ToolError(f"the tool {self.name} has max_chars={self.max_chars}, which must be at least 1")
        for mode in self.modes:
            _known_mode(mode, f"the tool {self.name} has the mode {shown(mode)}, which is unknown")
        if not 0 < self.seconds < math.inf:
            raise ToolError(f"the tool {self.name} has seconds={self.seconds!r}, which must be above 0 and finite")

    @classmethod
    def of(
        cls, function: Callable[..., Any], *, name: str | None = None, description: str | None = None, **options: Any
    ) -> "Tool":
        """A typed function as a tool: the schema from its signature, the description from its docstring.

        `Annotated[str, "what it is"]` describes a parameter. `options` are the other fields of a tool.
        """
        name = name if name is not None else str(getattr(function, "__name__", type(function).__name__))
        said = description if description is not None else description_of(function)
        return cls(name, said, parameters_of(function, name), run=function, **options)

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as a request declares it, in OpenAI's form."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": copy.deepcopy(dict(self.parameters)),
        }
        return {"type": "function", "function": function}

    @property
    def too_long(self) -> str:
        """What to do about output that was cut; offset and limit only where the tool has them (S6)."""
        if self.advice:
            return self.advice
        properties: Mapping[str, Any] = self.parameters.get("properties") or {}
        if "offset" in properties and "limit" in properties:
            return "Only the beginning is shown. Call it again with offset and limit for the part you need."
        return "Only the beginning is shown. Ask for less, for example with a narrower query."


class ToolRegistry:
    """The tools of a session, in the order in which they came."""

    def __init__(self, *tools: Tool) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            self.add(tool)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __getitem__(self, name: str) -> Tool:
        if name not in self._tools:
            raise ToolError(f"no tool named {shown(name)}", hint=f"known: {', '.join(self._tools) or 'none'}")
        return self._tools[name]

    def add(self, tool: Tool) -> None:
        if tool.name in self._tools:
            raise ToolError(f"there is a tool named {tool.name} already", hint="remove it first, or take another name")
        self._tools[tool.name] = tool

    def remove(self, name: str) -> None:
        del self._tools[self[name].name]

    @overload
    def function(self, function: F, /) -> F: ...
    @overload
    def function(self, /, **options: Any) -> Callable[[F], F]: ...
    def function(self, function: F | None = None, /, **options: Any) -> F | Callable[[F], F]:
        """Register a function as it is defined: `@registry.function`, or with options of `Tool.of`."""

        def register(each: F) -> F:
            self.add(Tool.of(each, **options))
            return each

        return register if function is None else register(function)

    def for_mode(self, mode: str) -> "ToolRegistry":
        """The tools that are offered in a mode."""
        _known_mode(mode, f"no mode named {shown(mode)}")
        return ToolRegistry(*(tool for tool in self if mode in tool.modes))

    async def call(self, call: ToolCallEvent, *, ask: "Ask | None" = None) -> Outcome:
        """Run what a model called. Whatever the model or the tool did wrong comes back as words for the model (S8)."""
        from lamina.layers.calls import run_call  # noqa: PLC0415 -- whoever only assembles does not load asyncio

        return await run_call(self._tools, call, ask)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        return [tool.schema for tool in self]

    def notes(self) -> str:
        """The prompt's segment about tools (S2): one line a tool, empty without tools."""
        return "\n".join(f"- **{tool.name}**: {' '.join((tool.note or tool.description).split())}" for tool in self)

    def layer(self) -> Layer:
        """The notes as a layer; empty, and so left out, without tools."""
        return Layer("tools", self.notes(), "tool registry")


def _known_mode(mode: str, what: str) -> None:
    if mode not in MODES:
        raise ToolError(what, hint=f"modes are {', '.join(MODES)}")
