"""Tools as the model knows them: their schemas, the notes about them in the prompt, and `call` to run them.

Notes say when to use a tool; only its schema says how it is called. How a call is checked and run is in `calls`.
"""

import copy
import inspect
import json
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)
from typing import is_typeddict as is_typed_dict

from lamina.errors import ToolError, format_value
from lamina.text.schema import Schema
from lamina.types import Decision, Layer, Outcome, ToolCallEvent

if TYPE_CHECKING:
    from lamina.ports import Ask

MAX_CHARS = 8_000
MODES = ("agent", "plan", "ask")
SECONDS = 60.0
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
PLAIN_TYPES: dict[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
F = TypeVar("F", bound=Callable[..., Any])


class ToolOptions(TypedDict, total=False):
    """The fields of a tool that do not follow from its function."""

    note: str
    advice: str
    max_chars: int
    check: Callable[[Mapping[str, Any]], Decision] | None
    modes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Tool:
    """What the model is told about a tool: `description` says when to use it and what its limits are.

    `note` is the line in the prompt, where it should differ from the description; `advice` says what to do when there
    was more output than `max_chars`. `run` is called with the arguments by name, in a thread unless it is async, and is
    ended after `seconds`; `check` decides beforehand whether it may run. `modes` are those that offer the tool.
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
            raise ToolError("tool.bad_name", name=format_value(self.name))
        if not isinstance(self.description, str) or not self.description.strip():  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise ToolError("tool.no_description", tool=self.name)
        if self.max_chars < 1:
            raise ToolError("tool.bad_max_chars", tool=self.name, value=self.max_chars)
        for mode in self.modes:
            if mode not in MODES:
                raise ToolError(
                    "tool.unknown_mode", hint="tool.modes", tool=self.name, mode=format_value(mode), known=MODES
                )
        if not 0 < self.seconds < math.inf:
            raise ToolError("tool.bad_seconds", tool=self.name, value=repr(self.seconds))

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        **options: Unpack[ToolOptions],
    ) -> "Tool":
        """A typed function as a tool: the schema from its signature, the description from its docstring.

        `Annotated[str, "what it is"]` describes a parameter. `options` are the other fields of a tool.
        """
        name = name if name is not None else str(getattr(function, "__name__", type(function).__name__))
        description = description if description is not None else read_description(function)
        return cls(name, description, build_parameters(function, name), run=function, **options)

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
        """What to do about output that was cut; offset and limit only where the tool has them."""
        if self.advice:
            return self.advice
        properties: Mapping[str, Any] = self.parameters.get("properties") or {}
        if "offset" in properties and "limit" in properties:
            return "Only the beginning is shown. Call it again with offset and limit for the part you need."
        return "Only the beginning is shown. Ask for less, for example with a narrower query."


class ToolRegistry:
    """The tools of a session, in the order in which they were added."""

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
            hint = "tool.known" if self._tools else "tool.none_known"
            raise ToolError("tool.not_found", hint=hint, name=format_value(name), known=list(self._tools))
        return self._tools[name]

    def add(self, tool: Tool) -> None:
        if tool.name in self._tools:
            raise ToolError("tool.exists", tool=tool.name)
        self._tools[tool.name] = tool

    def remove(self, name: str) -> None:
        del self._tools[self[name].name]

    @overload
    def function(self, function: F, /) -> F: ...
    @overload
    def function(
        self, /, *, name: str | None = None, description: str | None = None, **options: Unpack[ToolOptions]
    ) -> Callable[[F], F]: ...
    def function(
        self,
        function: F | None = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        **options: Unpack[ToolOptions],
    ) -> F | Callable[[F], F]:
        """Register a function as it is defined: `@registry.function`, or with options of `Tool.of`."""

        def register(each: F) -> F:
            self.add(Tool.of(each, name=name, description=description, **options))
            return each

        return register if function is None else register(function)

    def for_mode(self, mode: str) -> "ToolRegistry":
        """The tools that are offered in a mode."""
        if mode not in MODES:
            raise ToolError("tool.no_such_mode", hint="tool.modes", mode=format_value(mode), known=MODES)
        return ToolRegistry(*(tool for tool in self if mode in tool.modes))

    async def call(self, call: ToolCallEvent, *, ask: "Ask | None" = None, user_text: str = "") -> Outcome:
        """Run what a model called. Whatever the model or the tool did wrong comes back as text for the model.

        `user_text` is what the user wrote: a host whose address is in it may be reached without asking.
        """
        from lamina.tools.calls import run_call  # noqa: PLC0415 -- assembling alone does not load asyncio

        return await run_call(self._tools, call, ask, user_text)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        return [tool.schema for tool in self]

    def notes(self) -> str:
        """The prompt's segment about tools: one line for each, empty without tools."""
        return "\n".join(f"- **{tool.name}**: {' '.join((tool.note or tool.description).split())}" for tool in self)

    def layer(self) -> Layer:
        """The notes as a layer; empty, and so left out, without tools."""
        return Layer("tools", self.notes(), "tool registry")


def build_parameters(function: Callable[..., Any], name: str) -> Schema:
    """The schema of a function's parameters. A parameter whose type has no schema is an error that names both."""
    try:
        signature = inspect.signature(function)
        hints = get_type_hints(_unwrap(function), include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise ToolError("tool.unreadable_signature", tool=name, problem=str(error)) from None
    properties: Schema = {}
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ToolError("tool.unnamed_parameter", tool=name, parameter=str(parameter))
        if parameter.name not in hints:
            raise ToolError("tool.untyped_parameter", hint="tool.use_types", tool=name, parameter=parameter.name)
        schema = build_schema(hints[parameter.name], name, parameter.name)
        if parameter.default is not parameter.empty and _is_json(parameter.default):
            schema["default"] = parameter.default
        properties[parameter.name] = schema
    required = [each.name for each in signature.parameters.values() if each.default is each.empty]
    return _object_schema(properties, required)


def build_schema(hint: Any, tool: str, where: str) -> Schema:
    """The schema of a type. `tool` and `where`, a parameter or a field in it, are named in an error."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in PLAIN_TYPES:
        return {"type": PLAIN_TYPES[hint]}
    if hint is Any:
        return {}
    if origin is Annotated:
        description = next((each for each in inner[1:] if isinstance(each, str)), "")
        return build_schema(inner[0], tool, where) | ({"description": description} if description else {})
    if origin is Literal and all(isinstance(each, str | int | None) for each in inner):
        kinds = {PLAIN_TYPES[type(each)] for each in inner}
        return {"enum": list(inner)} | ({"type": kinds.pop()} if len(kinds) == 1 else {})
    if origin in (Union, types.UnionType):
        return {"anyOf": [build_schema(each, tool, where) for each in inner]}
    if origin is list:
        return {"type": "array", "items": build_schema(inner[0], tool, where)}
    if origin is dict and inner[0] is str:
        return {"type": "object", "additionalProperties": build_schema(inner[1], tool, where)}
    if origin in (Required, NotRequired):
        return build_schema(inner[0], tool, where)
    if is_typed_dict(hint):
        fields = get_type_hints(hint, include_extras=True)
        properties = {key: build_schema(each, tool, f"{where}.{key}") for key, each in fields.items()}
        return _object_schema(properties, [key for key in fields if key in hint.__required_keys__])
    raise ToolError(
        "tool.type_without_schema", hint="tool.use_types", tool=tool, parameter=where, type=format_value(hint)
    )


def _object_schema(properties: Schema, required: list[str]) -> Schema:
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": required} if required else {})


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def read_description(function: Callable[..., Any]) -> str:
    return inspect.getdoc(_unwrap(function)) or ""


def _unwrap(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind a partial, or the `__call__` of a callable object."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return function if inspect.isroutine(function) else type(function).__call__
