"""What providers accept: the grammars of OpenAI Chat, Anthropic Messages and Gemini, as checks over finished requests.

Written from the providers' rules alone and sharing no code with the trimmer, so that one can convict the other.
Each check returns the problems it found, none when the request is valid. It never raises and never repairs.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from lamina.errors import MessageError, shown

Request = Mapping[str, Any]
OPENAI_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
ANTHROPIC_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
GEMINI_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")


def validate(request: Request, grammar: str = "openai") -> tuple[str, ...]:
    """The problems a provider would refuse this request for; empty when there are none."""
    if not isinstance(grammar, str) or grammar not in _CHECKS:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise MessageError(f"no grammar named {shown(grammar)}", hint=f"grammars are {', '.join(_CHECKS)}")
    if not isinstance(request, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        return (f"the request is {shown(request)}, not a mapping such as {{'messages': […]}}",)
    return tuple(_CHECKS[grammar](request))


def _items(value: object) -> list[Mapping[str, Any]]:
    """A list of mappings; anything else counts as empty and is reported by the caller's own checks."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return []
    return [cast(Mapping[str, Any], item) if isinstance(item, Mapping) else {} for item in cast(Sequence[Any], value)]


def _openai(request: Request) -> list[str]:
    messages = _items(request.get("messages"))
    problems = [] if messages else ["messages is empty"]
    open_calls: list[str] = []
    for index, message in enumerate(messages):
        at, role = f"messages[{index}]", message.get("role")
        if role not in ("system", "developer", "user", "assistant", "tool"):
            problems.append(f"{at}: {shown(role)} is not a role")
        if role == "tool":
            call = message.get("tool_call_id")
            if call not in open_calls:
                problems.append(f"{at}: the tool result {shown(call)} follows no call that waits for it")
            else:
                open_calls.remove(cast(str, call))
        elif open_calls:
            problems.append(f"{at}: the calls {open_calls} have no results")
            open_calls = []
        calls = _items(message.get("tool_calls"))
        if message.get("tool_calls") is not None and not calls:
            problems.append(f"{at}: tool_calls is empty")
        open_calls += [_text(call.get("id")) for call in calls]
        problems += _openai_calls(calls, role, at)
        problems += _openai_content(message, role, at, bool(calls))
    if open_calls:
        problems.append(f"the calls {open_calls} have no results")
    tools = [tool.get("function") for tool in _items(request.get("tools"))]
    problems += [issue for function in tools for issue in _tool_name(function, OPENAI_NAME)]
    if any(tool.get("type") != "function" for tool in _items(request.get("tools"))):
        problems.append("tools: a tool without its type")
    return problems + _twice(tools)


def _text(value: object) -> str:
    return value if isinstance(value, str) else shown(value)


def _openai_calls(calls: list[Mapping[str, Any]], role: object, at: str) -> list[str]:
    problems = [f"{at}: only the assistant calls tools"] if calls and role != "assistant" else []
    ids = [call.get("id") for call in calls]
    if len(set(map(_text, ids))) < len(ids):
        problems.append(f"{at}: two calls share an id")
    for call in calls:
        function = call.get("function")
        if not isinstance(call.get("id"), str) or not isinstance(function, Mapping):
            problems.append(f"{at}: a call without id or function")
        elif not isinstance(cast(Request, function).get("arguments"), str):
            problems.append(f"{at}: a call whose arguments are no string")
        else:
            problems += _tool_name(cast(Request, function), OPENAI_NAME)
    return problems


def _openai_content(message: Request, role: object, at: str, calls: bool) -> list[str]:
    content = message.get("content")
    if isinstance(content, str) or (content is None and calls):
        return []
    parts = _items(content)
    kinds = {str(part.get("type")) for part in parts}
    allowed = {"text", "image_url"} if role == "user" else {"text"}
    if not parts and content != []:
        return [f"{at}: content is {shown(content)}"]
    if content == []:
        return [f"{at}: content has no parts"]
    if kinds - allowed:
        return [f"{at}: parts of type {', '.join(sorted(kinds - allowed))}"]
    texts = [part for part in parts if part.get("type") == "text" and not isinstance(part.get("text"), str)]
    links = [part for part in parts if part.get("type") == "image_url" and not _url(part.get("image_url"))]
    return [f"{at}: a part without text or url"] if texts or links else []


def _url(image: object) -> bool:
    return isinstance(image, Mapping) and isinstance(cast(Request, image).get("url"), str)


def _tool_name(function: object, pattern: re.Pattern[str]) -> list[str]:
    name = cast(Request, function).get("name") if isinstance(function, Mapping) else None
    return [] if isinstance(name, str) and pattern.fullmatch(name) else [f"tools: {shown(name)} is not a tool's name"]


def _twice(tools: Sequence[object]) -> list[str]:
    names = [_text(cast(Request, tool).get("name")) for tool in tools if isinstance(tool, Mapping)]
    return [f"tools: two are named {shown(name)}" for name in sorted({n for n in names if names.count(n) > 1})]


def _anthropic(request: Request) -> list[str]:
    messages = _items(request.get("messages"))
    problems = [] if messages else ["messages is empty"]
    if messages and messages[0].get("role") != "user":
        problems.append("the first message must be the user's")
    if messages and messages[-1].get("role") != "user":
        problems.append("the last message must be the user's")
    seen: set[str] = set()
    waiting: list[str] = []
    for index, message in enumerate(messages):
        at, role = f"messages[{index}]", message.get("role")
        if role not in ("user", "assistant"):
            problems.append(f"{at}: {shown(role)} is not a role")
        content = message.get("content")
        blocks = _items([{"type": "text", "text": content}] if isinstance(content, str) else content)
        if not blocks:
            problems.append(f"{at}: content is empty")
        problems += _anthropic_results(blocks, role, waiting, at)
        uses = [block for block in blocks if block.get("type") == "tool_use"]
        waiting = [_text(block.get("id")) for block in uses]
        problems += [f"{at}: the id {use!r} was used before" for use in waiting if use in seen]
        seen.update(waiting)
        problems += [issue for block in blocks for issue in _anthropic_block(block, role, at)]
    if waiting:
        problems.append(f"the calls {waiting} have no results")
    system = request.get("system")
    for block in [] if isinstance(system, str) else _items(system):
        problems += _anthropic_block(block, "user", "system")
    tools = _items(request.get("tools"))
    problems += _twice(tools)
    for tool in tools:
        problems += _tool_name(tool, ANTHROPIC_NAME)
        schema = tool.get("input_schema")
        if not isinstance(schema, Mapping) or cast(Request, schema).get("type") != "object":
            problems.append(f"tools: {shown(tool.get('name'))} has no input_schema of type object")
    marks = _count_marks(request)
    return problems if marks <= 4 else [*problems, f"{marks} cache_control marks, at most 4 are allowed"]


def _anthropic_results(blocks: list[Mapping[str, Any]], role: object, waiting: list[str], at: str) -> list[str]:
    """Results come first in the message right after the calls, one for each call and no other."""
    kinds = [block.get("type") for block in blocks]
    results = [_text(block.get("tool_use_id")) for block in blocks if block.get("type") == "tool_result"]
    if results and role != "user":
        return [f"{at}: a tool_result outside a user message"]
    if sorted(results) != sorted(waiting):
        return [f"{at}: results {results} for the calls {waiting}"]
    if results and kinds[: len(results)] != ["tool_result"] * len(results):
        return [f"{at}: something stands before the tool results"]
    return []


def _anthropic_block(block: Mapping[str, Any], role: object, at: str) -> list[str]:
    kind = block.get("type")
    if kind == "text":
        text = block.get("text")
        return [] if isinstance(text, str) and text.strip() else [f"{at}: a text block without text"]
    if kind == "tool_use":
        if role != "assistant" or not isinstance(block.get("input"), Mapping):
            return [f"{at}: a tool_use that is not the assistant's or has no input"]
        if not ANTHROPIC_NAME.fullmatch(_text(block.get("id"))):
            return [f"{at}: {shown(block.get('id'))} is not a call's id"]
        return _tool_name(block, ANTHROPIC_NAME)
    if kind == "tool_result":
        return [issue for inner in _items(block.get("content")) for issue in _anthropic_block(inner, "user", at)]
    if kind == "image" and role == "user" and isinstance(block.get("source"), Mapping):
        return []
    if kind in ("thinking", "redacted_thinking", "document"):
        return []
    return [f"{at}: a block of type {shown(kind)}"]


def _count_marks(request: Request) -> int:
    blocks = [*_items(request.get("tools")), *_items(request.get("system"))]
    for message in _items(request.get("messages")):
        blocks += _items(message.get("content"))
    return sum("cache_control" in block for block in blocks)


def _gemini(request: Request) -> list[str]:
    contents = _items(request.get("contents"))
    problems = [] if contents else ["contents is empty"]
    if contents and contents[0].get("role") != "user":
        problems.append("the first content must be the user's")
    if contents and contents[-1].get("role") != "user":
        problems.append("the last content must be the user's")
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
            problems.append(f"{at}: function responses mixed with other parts")
        if sorted(_names(results)) != sorted(waiting):
            problems.append(f"{at}: responses {_names(results)} for the calls {waiting}")
        waiting, before = _names(calls), turn
        if not parts:
            problems.append(f"{at}: no parts")
        problems += [issue for part in parts for issue in _gemini_part(part, at)]
    if waiting:
        problems.append(f"the calls {waiting} have no responses")
    for tool in _items(request.get("tools")):
        declarations = _items(tool.get("functionDeclarations"))
        problems += _twice(declarations)
        problems += [issue for declaration in declarations for issue in _tool_name(declaration, GEMINI_NAME)]
    return problems


def _names(calls: Sequence[Any]) -> list[str]:
    return [_text(cast(Request, call).get("name")) if isinstance(call, Mapping) else "" for call in calls]


def _gemini_turn(turn: str, before: str, role: object, at: str) -> list[str]:
    """Who may speak after whom."""
    if role not in ("user", "model"):
        return [f"{at}: {shown(role)} is not a role"]
    if turn == "calls" and (role != "model" or before not in ("user", "results")):
        return [f"{at}: a function call must follow a user turn or function responses"]
    if turn == "results" and (role != "user" or before != "calls"):
        return [f"{at}: function responses must follow a function call"]
    if turn == before and turn != "results":
        return [f"{at}: two turns of one side in a row"]
    return []


def _gemini_part(part: Mapping[str, Any], at: str) -> list[str]:
    text = part.get("text")
    if "text" in part:
        return [] if isinstance(text, str) and text.strip() else [f"{at}: a text part without text"]
    for kind, field in (("functionCall", "args"), ("functionResponse", "response")):
        if kind in part:
            call: object = part[kind]
            valid = isinstance(call, Mapping) and isinstance(cast(Request, call).get(field), Mapping)
            return _tool_name(cast(object, call), GEMINI_NAME) if valid else [f"{at}: a {kind} without {field}"]
    return [] if "inlineData" in part or "fileData" in part else [f"{at}: a part with {shown(list(part))}"]


_CHECKS: dict[str, Callable[[Request], list[str]]] = {"openai": _openai, "anthropic": _anthropic, "gemini": _gemini}
