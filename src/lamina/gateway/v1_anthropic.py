"""Anthropic's form: `POST /v1/messages` and `/v1/messages/count_tokens`, for its official client."""

import json
from collections.abc import Mapping
from typing import Any, cast

from lamina.app.app import App
from lamina.gateway.http import HttpError, Reply, Request, Route, Schema
from lamina.gateway.replies import error_body
from lamina.gateway.sse import HEADERS, MEDIA, event_bytes
from lamina.gateway.v1 import (
    MAX_MESSAGES,
    Answer,
    ClientRequest,
    check_content,
    check_count,
    check_model,
    collect_answer,
    count_request,
    ends_with_client,
    read_session_id,
    start_turn,
    stream_answer,
)  # fmt: skip
from lamina.gateway.values import turn_headers
from lamina.types import Began, Ended, Message, ToolCallEvent, TurnEvent, Usage

CHOICES = {"auto": "auto", "any": "required", "none": "none"}
STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
BLOCKS: Schema = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}
MESSAGE: Schema = {
    "type": "object",
    "properties": {"role": {"enum": ["user", "assistant"]}, "content": BLOCKS},
    "required": ["role", "content"],
}
BODY: Schema = {
    "type": "object",
    "properties": {
        "model": {"type": "string", "description": "as GET /v1/models names it, or `lamina`"},
        "max_tokens": {"type": "integer", "minimum": 1, "maximum": 10_000_000},
        "messages": {"type": "array", "items": MESSAGE, "minItems": 1, "maxItems": MAX_MESSAGES},
        "system": BLOCKS,
        "stream": {"type": ["boolean", "null"]},
        "temperature": {"type": ["number", "null"]}, "top_p": {"type": ["number", "null"]},
        "stop_sequences": {"type": ["array", "null"], "items": {"type": "string"}},
        "tools": {"type": ["array", "null"], "items": {"type": "object"}, "maxItems": 256},
        "tool_choice": {"type": ["object", "null"]},
        "metadata": {"type": ["object", "null"], "description": "`session_id` names a stored session"},
    },
    "required": ["messages", "max_tokens"],
}  # fmt: skip
COUNTED: Schema = {**BODY, "required": ["messages"]}
EXAMPLE = {"model": "lamina", "max_tokens": 256, "messages": [{"role": "user", "content": "Hello / 你好"}]}


async def messages(app: App, request: Request) -> Reply:
    asked = await request.work(read_request, request.body)
    model, ends_early = check_model(app, request.body.get("model", "lamina")), ends_with_client(request, asked)
    running = await start_turn(app, request, asked)
    answer = Answer(frozenset(str(tool["function"]["name"]) for tool in asked.tools))
    name, headers = f"msg_{running.turn.turn_id}", turn_headers(running.turn)
    if asked.stream:
        write = EventWriter(name, model, answer).write
        ping = event_bytes("ping", {"type": "ping"})
        return Reply(stream_answer(running, ends_early, write, ping), 200, {**HEADERS, **headers}, MEDIA)
    await collect_answer(request, running, ends_early, answer)
    return Reply(message_of(name, model, answer), 200, headers)


async def count_tokens(app: App, request: Request) -> Reply:
    check_model(app, request.body.get("model", "lamina"))
    asked = await request.work(read_request, {"max_tokens": 1, **request.body})
    return Reply({"input_tokens": await count_request(app, request, asked)})


def read_request(body: Mapping[str, Any]) -> ClientRequest:
    found: list[Message] = []
    for number, one in enumerate(body["messages"]):
        found += _messages(one["role"], one["content"], f"messages[{number}]")
    if body["messages"][-1]["role"] == "user":
        check_content(body["messages"][-1]["content"], f"messages[{len(body['messages']) - 1}]")
    check_count(found)  # one of theirs may be many of ours
    system = body.get("system") or ""
    if isinstance(system, list):
        system = "\n\n".join(_text(block, "system") for block in cast("list[Any]", system))
    tools = tuple(_tool(tool, f"tools[{number}]") for number, tool in enumerate(body.get("tools") or ()))
    return ClientRequest(
        found, system, tools, _options(body), body["max_tokens"], read_session_id(body), bool(body.get("stream")),
    )  # fmt: skip


def _options(body: Mapping[str, Any]) -> Mapping[str, Any]:
    options: dict[str, Any] = {name: body[name] for name in ("temperature", "top_p") if body.get(name) is not None}
    if body.get("stop_sequences"):
        options["stop"] = body["stop_sequences"]
    choice: Mapping[str, Any] = body.get("tool_choice") or {}
    if choice.get("type") == "tool":
        options["tool_choice"] = {"type": "function", "function": {"name": choice.get("name", "")}}
    elif isinstance(kind := choice.get("type"), str) and kind in CHOICES:
        options["tool_choice"] = CHOICES[kind]
    if choice.get("disable_parallel_tool_use"):
        options["parallel_tool_calls"] = False
    return options


def _text(block: Any, where: str) -> str:
    fields = cast("dict[str, Any]", block) if isinstance(block, dict) else {}
    if fields.get("type") != "text" or not isinstance(fields.get("text"), str):
        raise HttpError(400, "request.block_not_text", where=where)
    return fields["text"]


def _messages(role: str, content: Any, where: str) -> list[Message]:
    """One message of theirs is one of ours, or several where it holds results of calls."""
    if isinstance(content, str):
        return [{"role": "user" if role == "user" else "assistant", "content": content}]
    return _of_user(content, where) if role == "user" else [_of_assistant(content, where)]


def _of_user(blocks: list[Any], where: str) -> list[Message]:
    found: list[Message] = []
    parts: list[Any] = []
    for number, block in enumerate(blocks):
        place = f"{where}.content[{number}]"
        if block.get("type") == "tool_result":
            if parts:
                raise HttpError(400, "request.result_behind_words", where=place)
            found.append(
                {"role": "tool", "content": _result(block, place), "tool_call_id": str(block.get("tool_use_id", ""))}
            )
        elif block.get("type") == "image":
            parts.append({"type": "image_url", "image_url": {"url": _picture(block.get("source"), place)}})
        else:
            parts.append({"type": "text", "text": _text(block, place)})
    if parts:
        plain = len(parts) == 1 and parts[0]["type"] == "text"
        found.append({"role": "user", "content": parts[0]["text"] if plain else parts})
    return found


def _result(block: Mapping[str, Any], where: str) -> str:
    content = block.get("content")
    if isinstance(content, list):
        content = "\n".join(_text(one, f"{where}.content") for one in cast("list[Any]", content))
    elif content is not None and not isinstance(content, str):
        raise HttpError(400, "request.result_not_text", where=where)
    return f"Error: {content or ''}" if block.get("is_error") else content or ""


def _picture(source: Any, where: str) -> str:
    if isinstance(source, dict):
        given = cast("dict[str, Any]", source)
        if given.get("type") == "url" and isinstance(given.get("url"), str):
            return given["url"]
        if given.get("type") == "base64" and isinstance(given.get("data"), str):
            return f"data:{given.get('media_type', 'image/png')};base64,{given['data']}"
    raise HttpError(400, "request.not_picture", where=where)


def _of_assistant(blocks: list[Any], where: str) -> Message:
    texts: list[str] = []
    calls: list[Any] = []
    for block in blocks:
        if block.get("type") == "tool_use":
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            function = {"name": str(block.get("name", "")), "arguments": arguments}
            calls.append({"id": str(block.get("id", "")), "type": "function", "function": function})
        elif block.get("type") not in ("thinking", "redacted_thinking"):
            texts.append(_text(block, where))
    made: Message = {"role": "assistant", "content": "".join(texts)}
    if calls:
        made = {"role": "assistant", "content": "".join(texts) or None, "tool_calls": calls}
    return made


def _tool(tool: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    if tool.get("type", "custom") != "custom" or not isinstance(tool.get("name"), str):
        raise HttpError(400, "request.not_client_tool", where=where)
    schema: Any = tool.get("input_schema") or {"type": "object", "properties": {}}
    function = {
        "name": tool["name"],
        "description": str(tool.get("description") or f"A tool of the client: {tool['name']}."),
        "parameters": schema,
    }
    return {"type": "function", "function": function}


def _input(call: ToolCallEvent) -> Any:
    """An object that is JSON and whole Unicode, which is all that the clients read; anything else that a model wrote
    stays text, as it does on the way to a provider."""
    try:
        value: Any = json.loads(call.arguments)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": call.arguments}  # pyright: ignore[reportUnknownVariableType]


def stop_of(answer: Answer) -> str:
    return "tool_use" if answer.calls else STOPS.get(answer.ended.reason, "end_turn")


def usage_of(usage: Usage) -> Mapping[str, int]:
    return {
        "input_tokens": max(0, usage.prompt - usage.cached),  # some providers count what was cached apart
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion,
    }


def message_of(name: str, model: str, answer: Answer) -> Mapping[str, Any]:
    blocks: list[Any] = [{"type": "text", "text": answer.text}] if answer.text or not answer.calls else []
    blocks += [{"type": "tool_use", "id": c.id, "name": c.name, "input": _input(c)} for c in answer.calls]
    return {
        "id": name, "type": "message", "role": "assistant", "model": model, "content": blocks,
        "stop_reason": stop_of(answer), "stop_sequence": None, "usage": usage_of(answer.usage),
    }  # fmt: skip


class EventWriter:
    """The events of a turn as those of a message."""

    def __init__(self, name: str, model: str, answer: Answer) -> None:
        self._name, self._model, self._answer = name, model, answer
        self._open, self._blocks = False, 0

    def write(self, event: TurnEvent) -> bytes:
        new = self._answer.take(event)
        if new:
            opening = b"" if self._open else self._start({"type": "text", "text": ""})
            self._open = True
            return opening + self._delta({"type": "text_delta", "text": new})
        if isinstance(event, Began):
            begin: Mapping[str, Any] = {
                **message_of(self._name, self._model, self._answer),
                "content": [],
                "stop_reason": None,
            }
            return event_bytes("message_start", {"type": "message_start", "message": begin})
        return self._end() if isinstance(event, Ended) else b""

    def _start(self, block: Mapping[str, Any]) -> bytes:
        data = {"type": "content_block_start", "index": self._blocks, "content_block": block}
        return event_bytes("content_block_start", data)

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        data = {"type": "content_block_delta", "index": self._blocks, "delta": delta}
        return event_bytes("content_block_delta", data)

    def _stop(self) -> bytes:
        data = {"type": "content_block_stop", "index": self._blocks}
        self._open, self._blocks = False, self._blocks + 1
        return event_bytes("content_block_stop", data)

    def _end(self) -> bytes:
        answer = self._answer
        if answer.failed:
            return event_bytes("error", error_body(answer.failure(), "anthropic"))
        pieces = [self._stop()] if self._open else []
        for call in answer.calls:
            pieces.append(self._start({"type": "tool_use", "id": call.id, "name": call.name, "input": {}}))
            written = json.dumps(_input(call), ensure_ascii=False)  # the same that a whole message has
            pieces += [self._delta({"type": "input_json_delta", "partial_json": written}), self._stop()]
        delta = {"stop_reason": stop_of(answer), "stop_sequence": None}
        change = {"type": "message_delta", "delta": delta, "usage": usage_of(answer.usage)}
        pieces += [event_bytes("message_delta", change), event_bytes("message_stop", {"type": "message_stop"})]
        return b"".join(pieces)


ROUTES = (
    Route("POST", "/v1/messages", messages, "An answer in Anthropic's form, whole or streamed", "chat", body=BODY,
          example=EXAMPLE, form="anthropic", tags=("v1",), streams=True,
          answer={"type": "object", "properties": {"id": {"type": "string"}, "content": {"type": "array"}}}),
    Route("POST", "/v1/messages/count_tokens", count_tokens, "The tokens that such a request would have, by our count",
          "chat", body=COUNTED, example=EXAMPLE, form="anthropic", tags=("v1",),
          answer={"type": "object", "properties": {"input_tokens": {"type": "integer"}}}),
)  # fmt: skip
