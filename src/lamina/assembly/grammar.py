"""What providers accept: the grammars of OpenAI Chat, Anthropic Messages and Gemini, as checks over finished requests.

Written from the providers' rules alone and sharing no code with the trimmer, so that one can convict the other.
Each check returns the problems it found, none when the request is valid. It never raises and never repairs.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from lamina.errors import MessageError, format_value
from lamina.text.messages import Phrase

AnyRequest = Mapping[str, Any]
OPENAI_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
ANTHROPIC_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
MAX_CACHE_MARKS = 4
GEMINI_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")


def validate(request: AnyRequest, grammar: str = "openai") -> tuple[Phrase, ...]:
    """The problems a provider would refuse this request for; empty when there are none."""
    if not isinstance(grammar, str) or grammar not in _CHECKS:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise MessageError("grammar.unknown", name=format_value(grammar), known=[*_CHECKS])
    if not isinstance(request, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        return (Phrase("grammar.not_mapping", value=format_value(request)),)
    return tuple(_CHECKS[grammar](request))


def _items(value: object) -> list[Mapping[str, Any]]:
    """A list of mappings; anything else counts as empty and is reported by the caller's own checks."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return []
    return [cast(Mapping[str, Any], item) if isinstance(item, Mapping) else {} for item in cast(Sequence[Any], value)]


def _openai(request: AnyRequest) -> list[Phrase]:
    messages = _items(request.get("messages"))
    problems = [] if messages else [Phrase("grammar.empty", where="messages")]
    open_calls: list[str] = []
    for index, message in enumerate(messages):
        at, role = f"messages[{index}]", message.get("role")
        if role not in ("system", "developer", "user", "assistant", "tool"):
            problems.append(Phrase("grammar.bad_role", where=at, role=format_value(role)))
        if role == "tool":
            call = message.get("tool_call_id")
            if call not in open_calls:
                problems.append(Phrase("grammar.result_without_call", where=at, call=format_value(call)))
            else:
                open_calls.remove(cast(str, call))
        elif open_calls:
            problems.append(Phrase("grammar.calls_without_results_at", where=at, calls=format_value(open_calls)))
            open_calls = []
        calls = _items(message.get("tool_calls"))
        if message.get("tool_calls") is not None and not calls:
            problems.append(Phrase("grammar.empty", where=f"{at}.tool_calls"))
        open_calls += [_text(call.get("id")) for call in calls]
        problems += _openai_calls(calls, role, at)
        problems += _openai_content(message, role, at, bool(calls))
    if open_calls:
        problems.append(Phrase("grammar.calls_without_results", calls=format_value(open_calls)))
    tools = [tool.get("function") for tool in _items(request.get("tools"))]
    problems += [issue for function in tools for issue in _tool_name(function, OPENAI_NAME)]
    if any(tool.get("type") != "function" for tool in _items(request.get("tools"))):
        problems.append(Phrase("grammar.tool_without_type"))
    return problems + _twice(tools)


def _text(value: object) -> str:
    return value if isinstance(value, str) else format_value(value)


def _openai_calls(calls: list[Mapping[str, Any]], role: object, at: str) -> list[Phrase]:
    problems = [Phrase("grammar.call_not_by_assistant", where=at)] if calls and role != "assistant" else []
    ids = [call.get("id") for call in calls]
    if len(set(map(_text, ids))) < len(ids):
        problems.append(Phrase("grammar.shared_call_id", where=at))
    for call in calls:
        function = call.get("function")
        if not isinstance(call.get("id"), str) or not isinstance(function, Mapping):
            problems.append(Phrase("grammar.call_incomplete", where=at))
        elif not isinstance(cast(AnyRequest, function).get("arguments"), str):
            problems.append(Phrase("grammar.arguments_not_text", where=at))
        else:
            problems += _tool_name(cast(AnyRequest, function), OPENAI_NAME)
    return problems


def _openai_content(message: AnyRequest, role: object, at: str, calls: bool) -> list[Phrase]:
    content = message.get("content")
    if isinstance(content, str) or (content is None and calls):
        return []
    parts = _items(content)
    kinds = {str(part.get("type")) for part in parts}
    allowed = {"text", "image_url"} if role == "user" else {"text"}
    if not parts and content != []:
        return [Phrase("grammar.bad_content", where=at, value=format_value(content))]
    if content == []:
        return [Phrase("grammar.empty", where=f"{at}.content")]
    if kinds - allowed:
        return [Phrase("grammar.bad_part_types", where=at, types=sorted(kinds - allowed))]
    texts = [part for part in parts if part.get("type") == "text" and not isinstance(part.get("text"), str)]
    links = [part for part in parts if part.get("type") == "image_url" and not _url(part.get("image_url"))]
    return [Phrase("grammar.part_incomplete", where=at)] if texts or links else []


def _url(image: object) -> bool:
    return isinstance(image, Mapping) and isinstance(cast(AnyRequest, image).get("url"), str)


def _tool_name(function: object, pattern: re.Pattern[str]) -> list[Phrase]:
    name = cast(AnyRequest, function).get("name") if isinstance(function, Mapping) else None
    return (
        []
        if isinstance(name, str) and pattern.fullmatch(name)
        else [Phrase("grammar.bad_tool_name", name=format_value(name))]
    )


def _twice(tools: Sequence[object]) -> list[Phrase]:
    names = [_text(cast(AnyRequest, tool).get("name")) for tool in tools if isinstance(tool, Mapping)]
    return [
        Phrase("grammar.repeated_tool_name", name=format_value(name))
        for name in sorted({n for n in names if names.count(n) > 1})
    ]


def _anthropic(request: AnyRequest) -> list[Phrase]:
    messages = _items(request.get("messages"))
    problems = [] if messages else [Phrase("grammar.empty", where="messages")]
    if messages and messages[0].get("role") != "user":
        problems.append(Phrase("grammar.first_not_user", where="messages"))
    if messages and messages[-1].get("role") != "user":
        problems.append(Phrase("grammar.last_not_user", where="messages"))
    seen: set[str] = set()
    waiting: list[str] = []
    for index, message in enumerate(messages):
        at, role = f"messages[{index}]", message.get("role")
        if role not in ("user", "assistant"):
            problems.append(Phrase("grammar.bad_role", where=at, role=format_value(role)))
        content = message.get("content")
        blocks = _items([{"type": "text", "text": content}] if isinstance(content, str) else content)
        if not blocks:
            problems.append(Phrase("grammar.empty", where=f"{at}.content"))
        problems += _anthropic_results(blocks, role, waiting, at)
        uses = [block for block in blocks if block.get("type") == "tool_use"]
        waiting = [_text(block.get("id")) for block in uses]
        problems += [
            Phrase("grammar.repeated_call_id", where=at, call=format_value(use)) for use in waiting if use in seen
        ]
        seen.update(waiting)
        problems += [issue for block in blocks for issue in _anthropic_block(block, role, at)]
    if waiting:
        problems.append(Phrase("grammar.calls_without_results", calls=format_value(waiting)))
    system = request.get("system")
    for block in [] if isinstance(system, str) else _items(system):
        problems += _anthropic_block(block, "user", "system")
    tools = _items(request.get("tools"))
    problems += _twice(tools)
    for tool in tools:
        problems += _tool_name(tool, ANTHROPIC_NAME)
        schema = tool.get("input_schema")
        if not isinstance(schema, Mapping) or cast(AnyRequest, schema).get("type") != "object":
            problems.append(Phrase("grammar.no_input_schema", name=format_value(tool.get("name"))))
    marks = _count_marks(request)
    return (
        problems
        if marks <= MAX_CACHE_MARKS
        else [*problems, Phrase("grammar.too_many_marks", count=marks, limit=MAX_CACHE_MARKS)]
    )


def _anthropic_results(blocks: list[Mapping[str, Any]], role: object, waiting: list[str], at: str) -> list[Phrase]:
    """Results come first in the message right after the calls, one for each call and no other."""
    kinds = [block.get("type") for block in blocks]
    results = [_text(block.get("tool_use_id")) for block in blocks if block.get("type") == "tool_result"]
    if results and role != "user":
        return [Phrase("grammar.result_not_by_user", where=at)]
    if sorted(results) != sorted(waiting):
        return [_mismatch(at, results, waiting)]
    if results and kinds[: len(results)] != ["tool_result"] * len(results):
        return [Phrase("grammar.results_not_first", where=at)]
    return []


def _mismatch(where: str, results: list[str], calls: list[str]) -> Phrase:
    return Phrase("grammar.results_mismatch", where=where, results=format_value(results), calls=format_value(calls))


def _anthropic_block(block: Mapping[str, Any], role: object, at: str) -> list[Phrase]:
    kind = block.get("type")
    if kind == "text":
        text = block.get("text")
        return [] if isinstance(text, str) and text.strip() else [Phrase("grammar.empty_text", where=at)]
    if kind == "tool_use":
        if role != "assistant" or not isinstance(block.get("input"), Mapping):
            return [Phrase("grammar.bad_tool_use", where=at)]
        if not ANTHROPIC_NAME.fullmatch(_text(block.get("id"))):
            return [Phrase("grammar.bad_call_id", where=at, call=format_value(block.get("id")))]
        return _tool_name(block, ANTHROPIC_NAME)
    if kind == "tool_result":
        return [issue for inner in _items(block.get("content")) for issue in _anthropic_block(inner, "user", at)]
    if kind == "image" and role == "user" and isinstance(block.get("source"), Mapping):
        return []
    if kind in ("thinking", "redacted_thinking", "document"):
        return []
    return [Phrase("grammar.bad_block_type", where=at, type=format_value(kind))]


def _count_marks(request: AnyRequest) -> int:
    blocks = [*_items(request.get("tools")), *_items(request.get("system"))]
    for message in _items(request.get("messages")):
        blocks += _items(message.get("content"))
    return sum("cache_control" in block for block in blocks)


def _gemini(request: AnyRequest) -> list[Phrase]:
    contents = _items(request.get("contents"))
    problems = [] if contents else [Phrase("grammar.empty", where="contents")]
    if contents and contents[0].get("role") != "user":
        problems.append(Phrase("grammar.first_not_user", where="contents"))
    if contents and contents[-1].get("role") != "user":
        problems.append(Phrase("grammar.last_not_user", where="contents"))
    waiting: list[str] = []
    before = ""
    for index, content in enumerate(contents):
        at, role = f"contents[{index}]", content.get("role")
        parts = _items(content.get("parts"))
        results = [part["functionResponse"] for part in parts if "functionResponse" in part]
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        turn = "results" if results else "calls" if calls else str(role)
        problems += _gemini_turn(turn, before, role, at)
        if results and len(results) != len(parts):
            problems.append(Phrase("grammar.mixed_responses", where=at))
        if sorted(_names(results)) != sorted(waiting):
            problems.append(_mismatch(at, _names(results), waiting))
        waiting, before = _names(calls), turn
        if not parts:
            problems.append(Phrase("grammar.empty", where=f"{at}.parts"))
        problems += [issue for part in parts for issue in _gemini_part(part, at)]
    if waiting:
        problems.append(Phrase("grammar.calls_without_results", calls=format_value(waiting)))
    for tool in _items(request.get("tools")):
        declarations = _items(tool.get("functionDeclarations"))
        problems += _twice(declarations)
        problems += [issue for declaration in declarations for issue in _tool_name(declaration, GEMINI_NAME)]
    return problems


def _names(calls: Sequence[Any]) -> list[str]:
    return [_text(cast(AnyRequest, call).get("name")) if isinstance(call, Mapping) else "" for call in calls]


def _gemini_turn(turn: str, before: str, role: object, at: str) -> list[Phrase]:
    """Who may speak after whom."""
    if role not in ("user", "model"):
        return [Phrase("grammar.bad_role", where=at, role=format_value(role))]
    if turn == "calls" and (role != "model" or before not in ("user", "results")):
        return [Phrase("grammar.misplaced_call", where=at)]
    if turn == "results" and (role != "user" or before != "calls"):
        return [Phrase("grammar.misplaced_responses", where=at)]
    if turn == before and turn != "results":
        return [Phrase("grammar.same_side_twice", where=at)]
    return []


def _gemini_part(part: Mapping[str, Any], at: str) -> list[Phrase]:
    text = part.get("text")
    if "text" in part:
        return [] if isinstance(text, str) and text.strip() else [Phrase("grammar.empty_text", where=at)]
    for kind, field in (("functionCall", "args"), ("functionResponse", "response")):
        if kind in part:
            call: object = part[kind]
            valid = isinstance(call, Mapping) and isinstance(cast(AnyRequest, call).get(field), Mapping)
            return (
                _tool_name(cast(object, call), GEMINI_NAME)
                if valid
                else [Phrase("grammar.field_missing", where=f"{at}.{kind}", field=field)]
            )
    return (
        []
        if "inlineData" in part or "fileData" in part
        else [Phrase("grammar.bad_part", where=at, fields=format_value(list(part)))]
    )


_CHECKS: dict[str, Callable[[AnyRequest], list[Phrase]]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "gemini": _gemini,
}
