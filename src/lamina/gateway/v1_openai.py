"""OpenAI's form: `POST /v1/chat/completions`, `GET /v1/models` and one of them, for its official client and all who
speak so.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from lamina.app.app import App
from lamina.gateway.http import HttpError, Reply, Request, Route, Schema
from lamina.gateway.replies import error_body
from lamina.gateway.sse import HEADERS, MEDIA
from lamina.gateway.v1 import (
    MAX_MESSAGES,
    Answer,
    ClientRequest,
    check_content,
    check_model,
    collect_answer,
    ends_with_client,
    read_session_id,
    start_turn,
    stream_answer,
)
from lamina.gateway.values import turn_headers
from lamina.types import Began, Ended, Message, TurnEvent, Usage

OPTIONS = (
    "temperature", "top_p", "stop", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "response_format",
    "tool_choice", "parallel_tool_calls", "reasoning_effort", "verbosity",
)  # fmt: skip
"""Wishes that the provider is told. Whatever else a client sends, such as addresses, keys and users, is passed over."""
NUMBER: Schema = {"type": ["number", "null"]}
COUNT: Schema = {"type": ["integer", "null"], "minimum": 1, "maximum": 10_000_000}
FLAG: Schema = {"type": ["boolean", "null"]}
FREE: Schema = {"type": ["object", "null"]}
MESSAGE: Schema = {
    "type": "object",
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "object"}}]},
        "tool_calls": {"type": ["array", "null"], "items": {"type": "object"}},
        "tool_call_id": {"type": ["string", "null"]},
        "name": {"type": ["string", "null"]},
    },
    "required": ["role"],
}
BODY: Schema = {
    "type": "object",
    "properties": {
        "model": {"type": "string", "description": "as GET /v1/models names it, or `lamina`"},
        "messages": {"type": "array", "items": MESSAGE, "minItems": 1, "maxItems": MAX_MESSAGES},
        "stream": FLAG,
        "stream_options": FREE,
        "max_tokens": COUNT,
        "max_completion_tokens": COUNT,
        "n": {"type": ["integer", "null"], "minimum": 1, "maximum": 1},
        "temperature": NUMBER, "top_p": NUMBER, "presence_penalty": NUMBER, "frequency_penalty": NUMBER,
        "stop": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "string"}}]},
        "seed": {"type": ["integer", "null"]},
        "tools": {"type": ["array", "null"], "items": {"type": "object"}, "maxItems": 256},
        "tool_choice": {"anyOf": [{"type": ["string", "null"]}, {"type": "object"}]},
        "parallel_tool_calls": FLAG,
        "response_format": FREE,
        "metadata": {"type": ["object", "null"], "description": "`session_id` names a stored session"},
    },
    "required": ["messages"],
}  # fmt: skip
EXAMPLE = {"model": "lamina", "messages": [{"role": "user", "content": "Hello / 你好"}]}
FINISH = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "content_filter": "content_filter"}


async def completions(app: App, request: Request) -> Reply:
    asked = await request.work(read_request, request.body)
    model, ends_early = check_model(app, request.body.get("model", "lamina")), ends_with_client(request, asked)
    running = await start_turn(app, request, asked)
    answer = Answer(frozenset(str(tool["function"]["name"]) for tool in asked.tools))
    turn_id, headers = running.turn.turn_id, turn_headers(running.turn)
    if asked.stream:
        wishes: Mapping[str, Any] = request.body.get("stream_options") or {}
        usage = bool(wishes.get("include_usage"))
        write = ChunkWriter(f"chatcmpl-{turn_id}", model, answer, usage).write
        return Reply(stream_answer(running, ends_early, write, b": ping\n\n"), 200, {**HEADERS, **headers}, MEDIA)
    await collect_answer(request, running, ends_early, answer)
    return Reply(completion(f"chatcmpl-{turn_id}", model, answer), 200, headers)


async def models(app: App, request: Request) -> Reply:
    name = app.provider.model
    return Reply({"object": "list", "data": [_model(name)], "has_more": False, "first_id": name, "last_id": name})


async def one_model(app: App, request: Request) -> Reply:
    return Reply(_model(check_model(app, request.params["model"])))


def _model(name: str) -> Mapping[str, Any]:
    """The one model there is, in a form that both official clients read."""
    return {
        "id": name, "object": "model", "type": "model", "created": 0, "created_at": "1970-01-01T00:00:00Z",
        "owned_by": "lamina", "display_name": name,
    }  # fmt: skip


def read_request(body: Mapping[str, Any]) -> ClientRequest:
    messages: list[Message] = []
    system: list[str] = []
    for number, one in enumerate(body["messages"]):
        where = f"messages[{number}]"
        if one["role"] in ("system", "developer"):
            system.append(plain_text(one.get("content"), where))
        else:
            messages.append(_message(one, where))
    if body["messages"][-1]["role"] == "user":
        check_content(body["messages"][-1].get("content"), f"messages[{len(body['messages']) - 1}]")
    options = {name: body[name] for name in OPTIONS if body.get(name) is not None}
    limits = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name)]
    tools = tuple(tool_of(tool, f"tools[{number}]") for number, tool in enumerate(body.get("tools") or ()))
    return ClientRequest(
        messages, "\n\n".join(text for text in system if text.strip()), tools, options,
        min(limits) if limits else None, read_session_id(body), bool(body.get("stream")),
    )  # fmt: skip


def plain_text(content: Any, where: str) -> str:
    """Content that must be text: a string, or parts of the type text."""
    if isinstance(content, list):
        parts = cast("list[Any]", content)
        if any(part.get("type") != "text" or not isinstance(part.get("text"), str) for part in parts):
            raise HttpError(400, "request.part_not_text", where=where)
        return "\n".join(part["text"] for part in parts)
    return content or ""


def _message(one: Mapping[str, Any], where: str) -> Message:
    """A message with what the engine knows, and nothing else; the engine checks the rest."""
    role: Any = one["role"]
    content = one.get("content")
    if role == "user":
        parts = cast("list[Any]", content) if isinstance(content, list) else None
        return {"role": role, "content": content if parts is None else [_part(part) for part in parts]}
    made: Message = {"role": role, "content": plain_text(content, where)}
    if role == "tool":
        made["tool_call_id"] = one.get("tool_call_id") or ""
    if role == "assistant" and one.get("tool_calls"):
        made["tool_calls"] = one["tool_calls"]
        made["content"] = made["content"] or None
    return made


def _part(part: Mapping[str, Any]) -> Any:
    if part.get("type") == "text":
        return {"type": "text", "text": part.get("text")}
    if part.get("type") == "image_url" and isinstance(part.get("image_url"), dict):
        picture = {name: part["image_url"][name] for name in ("url", "detail") if part["image_url"].get(name)}
        return {"type": "image_url", "image_url": picture}
    return dict(part)


def tool_of(tool: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    function: Any = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, dict):
        raise HttpError(400, "request.not_function", where=where)
    named = cast("dict[str, Any]", function)
    if not isinstance(named.get("name"), str):
        raise HttpError(400, "request.bad_function_name", where=where)
    return {
        "type": "function",
        "function": {
            **named, "description": named.get("description") or f"A tool of the client: {named['name']}.",
            "parameters": named.get("parameters") or {"type": "object", "properties": {}},
        },
    }  # fmt: skip


def calls_of(answer: Answer) -> Sequence[Mapping[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.calls
    ]


def finish(answer: Answer) -> str:
    return "tool_calls" if answer.calls else FINISH.get(answer.ended.reason, "stop")


def usage_of(usage: Usage) -> Mapping[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def completion(name: str, model: str, answer: Answer) -> Mapping[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or (None if answer.calls else "")}
    if answer.calls:
        message["tool_calls"] = calls_of(answer)
    choice = {"index": 0, "message": message, "finish_reason": finish(answer), "logprobs": None}
    return {
        "id": name, "object": "chat.completion", "created": int(time.time()), "model": model, "choices": [choice],
        "usage": usage_of(answer.usage),
    }  # fmt: skip


class ChunkWriter:
    """The events of a turn as chunks of a completion."""

    def __init__(self, name: str, model: str, answer: Answer, usage: bool) -> None:
        self._answer, self._usage = answer, usage
        head = {"id": name, "object": "chat.completion.chunk", "created": int(time.time()), "model": model}
        self._head = f"data: {json.dumps(head, ensure_ascii=False)[:-1]}, "

    def write(self, event: TurnEvent) -> bytes:
        answer = self._answer
        new = answer.take(event)
        if new:
            return self._delta({"content": new})
        if isinstance(event, Began):
            return self._delta({"role": "assistant", "content": ""})
        return self._end() if isinstance(event, Ended) else b""

    def _delta(self, delta: Mapping[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return f'{self._head}"choices": [{json.dumps(choice, ensure_ascii=False)}]}}\n\n'.encode(errors="replace")

    def _end(self) -> bytes:
        answer = self._answer
        if answer.failed:  # without [DONE]: nobody takes this for a whole answer
            return f"data: {json.dumps(error_body(answer.failure(), 'openai'), ensure_ascii=False)}\n\n".encode()
        calls = [{"index": number, **call} for number, call in enumerate(calls_of(answer))]
        pieces = [self._delta({"tool_calls": calls})] if calls else []
        pieces.append(self._delta({}, finish(answer)))
        if self._usage:
            pieces.append(f'{self._head}"choices": [], "usage": {json.dumps(usage_of(answer.usage))}}}\n\n'.encode())
        return b"".join((*pieces, b"data: [DONE]\n\n"))


ANSWER: Schema = {"type": "object", "properties": {"id": {"type": "string"}, "choices": {"type": "array"}}}
ROUTES = (
    Route("POST", "/v1/chat/completions", completions, "An answer in OpenAI's form, whole or streamed", "chat",
          body=BODY, example=EXAMPLE, answer=ANSWER, form="openai", tags=("v1",), streams=True),
    Route("GET", "/v1/models", models, "The model that answers", "chat", form="openai", tags=("v1",),
          answer={"type": "object", "properties": {"data": {"type": "array"}}}),
    Route("GET", "/v1/models/{model}", one_model, "The model of this name", "chat", form="openai", tags=("v1",),
          answer={"type": "object", "properties": {"id": {"type": "string"}}}, rest=True),
)  # fmt: skip
