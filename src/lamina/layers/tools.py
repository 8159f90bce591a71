"""Tools as the model knows them: their schemas, and the notes about them in the prompt.

Nothing here runs a tool. Notes say when to use a tool; how it is called stands in its schema alone.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lamina.errors import ToolError, shown
from lamina.types import Decision, Layer

MAX_CHARS = 8_000
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Tool:
    """What the model is told about a tool: `description` says when to use it and what its limits are (S3).

    `note` is the line in the prompt where that should differ from the description; `advice` is what to do when
    more came out than `max_chars`.
    """

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    note: str = ""
    advice: str = ""
    max_chars: int = MAX_CHARS
    run: Callable[..., Any] | None = None
    check: Callable[[Mapping[str, Any]], Decision] | None = None
    modes: tuple[str, ...] = ("agent", "plan", "ask")
    seconds: float = 60.0

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

    @property
    def schemas(self) -> list[dict[str, Any]]:
        return [tool.schema for tool in self]

    def notes(self) -> str:
        """The prompt's segment about tools (S2): one line a tool, empty without tools."""
        return "\n".join(f"- **{tool.name}**: {' '.join((tool.note or tool.description).split())}" for tool in self)

    def layer(self) -> Layer:
        """The notes as a layer; empty, and so left out, without tools."""
        return Layer("tools", self.notes(), "tool registry")
