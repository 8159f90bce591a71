"""The forms of other people's clients: OpenAI's `POST /v1/chat/completions` and `GET /v1/models`, and Anthropic's `POST
/v1/messages` and `/v1/messages/count_tokens`, each as its official client expects it.

Without a session the request is its own history; with one only its newest words are taken (`X-Lamina-Session`, or
`metadata.session_id`). Nothing in it names a user, a provider's address or a key. When a client leaves, a request
without a session is cancelled; in a session the turn goes on, unless `X-Lamina-On-Leave` says otherwise.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from lamina.app.app import CANCELLED, App, TurnHandle
from lamina.engine.transcript import Transcript
from lamina.errors import NotFoundError, format_value
from lamina.gateway.handlers import (
    HttpError,
    Reply,
    Request,
    Route,
    check_same_question,
    error_body,
    is_id,
    turn_headers,
)
from lamina.gateway.schemas import Number
from lamina.gateway.sse import HEADERS, MEDIA, PING_INTERVAL_S, event_bytes, with_pings
from lamina.records import REQUESTS, CallerInput, TurnRecord
from lamina.text.messages import Phrase
from lamina.types import Began, Ended, Message, ToolCallEvent, TurnEvent, Usage

SESSION_HEADER, ON_LEAVE_HEADER = "x-lamina-session", "x-lamina-on-leave"
MAX_MESSAGES = 10_000
"""Of one request: each of them is stored, and no other request can write during that time."""
MODEL_ALIAS = "lamina"
"""A name for whichever model the gateway has."""
MaxTokens = Annotated[int, Meta(ge=1, le=10_000_000)]
Objects = list[dict[str, Any]]
Tools = Annotated[Objects, Meta(max_length=256)]


class ClientBody(msgspec.Struct, kw_only=True):
    """What both forms have. Whatever else a client sends, such as addresses, keys and users, is ignored."""

    model: Annotated[str, Meta(description="as GET /v1/models names it, or `lamina`")] = MODEL_ALIAS
    stream: bool | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    tools: Tools | None = None
    metadata: Annotated[dict[str, Any] | None, Meta(description="`session_id` names a stored session")] = None


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request of either form, in the terms of the engine."""

    messages: Sequence[Message]
    """Without those of the system."""
    system: str
    tools: tuple[Mapping[str, Any], ...]
    options: Mapping[str, Any]
    max_tokens: int | None
    session_id: str
    stream: bool


@dataclass(slots=True)
class TurnAnswer(Transcript):
    """What came of a turn."""

    names: frozenset[str] = frozenset()
    """Of the caller's own tools: calls of the gateway's tools are not shown to it."""

    @property
    def caller_calls(self) -> list[ToolCallEvent]:
        return [call for call, _ in self.calls if call.name in self.names]

    @property
    def end(self) -> Ended:
        return self.ended or Ended("complete")

    @property
    def failed(self) -> bool:
        """Whether no client should take this for an answer: a part of one never looks complete."""
        return self.end.state != "complete"

    def failure(self) -> HttpError:
        error = self.end.error or Phrase("turn.no_answer")
        status = 400 if self.end.error == CANCELLED else self.end.status or 502
        hint = self.end.hint or Phrase("turn.no_answer.hint")
        return HttpError(status, error, hint=hint, kind="provider")


def read_session_id(body: ClientBody) -> str:
    """The session that the request's metadata names; empty for none. They cannot name a user."""
    session_id = (body.metadata or {}).get("session_id", "")
    if not isinstance(session_id, str):
        raise HttpError(400, "request.bad_session_id")
    return session_id


def check_content(content: Any, where: str) -> None:
    """Refuse a question without words, which no model can answer. Anthropic refuses it too; OpenAI accepts an empty
    text, but not null."""
    if not isinstance(content, str | list):
        raise HttpError(400, "request.no_content", hint="request.give_words", where=where)
    parts: list[Any] = cast("list[Any]", content) if isinstance(content, list) else [{"type": "text", "text": content}]
    if all(part.get("type") == "text" and not part.get("text") for part in parts):
        raise HttpError(400, "request.empty_content", hint="request.give_words", where=where)


def check_count(messages: Sequence[Message]) -> None:
    if len(messages) > MAX_MESSAGES:
        raise HttpError(400, "request.too_many_messages", count=len(messages), limit=MAX_MESSAGES)


def check_model(app: App, model: str) -> str:
    """The gateway answers with its own model; a client may also call it by our name."""
    known = app.provider.model
    if model not in (known, MODEL_ALIAS):
        raise HttpError(404, "request.no_model", kind="not_found", name=format_value(model), known=format_value(known))
    return known


async def start_turn(app: App, request: Request, asked: ClientRequest) -> TurnHandle:
    """The turn of a request, stored and running."""
    session_id, user, given = await request.work(split_request, request, asked)
    try:
        running = await app.start(request.user, session_id, user, key=request.idempotency_key, given=given)
    except NotFoundError as error:
        raise _no_session(request) if error.code == "session.not_found" else error from None
    await check_same_question(app, request, running.turn, given.results[0]["content"] if given.results else user)
    _check_complete(running.turn)
    request.watch(running)
    return running


def _check_complete(turn: TurnRecord) -> None:
    """A turn that was cancelled or failed stays so: the same key is not answered with it, and only a new key asks the
    model again."""
    if turn.repeated and turn.state in ("interrupted", "failed"):
        state = Phrase("turn.state_failed" if turn.state == "failed" else "turn.state_interrupted")
        why = Phrase.load(turn.error) or state
        raise HttpError(409, "idempotency.unfinished", kind="conflict", why=why, turn_id=turn.turn_id)


async def count_request(app: App, request: Request, asked: ClientRequest) -> int:
    """How many tokens a request would have if it were sent now, with all that lamina adds; nothing is stored."""
    session_id, user, given = await request.work(split_request, request, asked)
    try:
        context = await app.context(request.user, session_id, user, given=given)
    except NotFoundError as error:
        raise _no_session(request) if error.code == "session.not_found" else error from None
    return context.receipt.tokens


def _no_session(request: Request) -> HttpError:
    """Where the unknown session was named; the same whether it does not exist or belongs to another user."""
    where = "X-Lamina-Session" if request.headers.get(SESSION_HEADER) else "metadata.session_id"
    return HttpError(404, "gateway.no_session", kind="not_found", where=where)


def split_request(request: Request, asked: ClientRequest) -> tuple[str, Any, CallerInput]:
    """The session, the user's words, and what the request brings beside them."""
    session_id = request.headers.get(SESSION_HEADER) or asked.session_id
    if session_id == REQUESTS:
        raise HttpError(400, "session.not_a_chat")
    if not asked.messages:
        raise HttpError(400, "request.nothing_to_answer", hint="request.add_user")
    if session_id and not is_id(session_id):
        raise _no_session(request)
    given, user = _split_in_session(asked) if session_id else _split_single(asked)
    return session_id or REQUESTS, user, given


def _split_single(asked: ClientRequest) -> tuple[CallerInput, Any]:
    """All of the request's own messages: those before the user's last message, that message, and what follows it."""
    last = max((n for n, one in enumerate(asked.messages) if one["role"] == "user"), default=-1)
    if last < 0:
        raise HttpError(400, "request.no_user_message", hint="request.add_user")
    before, behind = tuple(asked.messages[:last]), tuple(asked.messages[last + 1 :])
    if behind and behind[-1]["role"] == "assistant":
        raise HttpError(400, "request.assistant_last")
    given = CallerInput(before, behind, (), asked.system, asked.tools, asked.options, asked.max_tokens)
    return given, asked.messages[last]["content"] or ""


def _split_in_session(asked: ClientRequest) -> tuple[CallerInput, Any]:
    """The newest words alone, or the results of the calls that the last answer left to the client, with the words
    behind them."""
    said = next((one["content"] for one in reversed(asked.messages) if one["role"] == "user"), None)
    words = asked.messages[-1:] if asked.messages[-1]["role"] == "user" else ()
    end = first = len(asked.messages) - len(words)
    while first and asked.messages[first - 1]["role"] == "tool":
        first -= 1
    results = [*asked.messages[first:end], *words]
    if not results:
        raise HttpError(400, "request.user_not_last")
    results = results if len(results) > len(words) else []
    given = CallerInput(None, (), tuple(results), asked.system, asked.tools, asked.options, asked.max_tokens)
    return given, said or "…"


def ends_with_client(request: Request, asked: ClientRequest) -> bool:
    """Whether the turn ends when its client leaves."""
    wish = request.headers.get(ON_LEAVE_HEADER, "")
    if wish not in ("", "finish", "cancel"):
        raise HttpError(400, "request.bad_on_leave", header=ON_LEAVE_HEADER, value=format_value(wish, 40))
    return wish == "cancel" if wish else not (request.headers.get(SESSION_HEADER) or asked.session_id)


async def collect_answer(request: Request, running: TurnHandle, ends_with_client: bool, answer: TurnAnswer) -> None:
    """Wait for the whole answer of a turn; a client that leaves early may end the turn."""
    left = asyncio.create_task(_cancel_when_left(request, running)) if ends_with_client else None
    try:
        async with aclosing(running.events()) as events:
            async for event in events:
                answer.take(event)
    finally:
        if left:
            left.cancel()
    if answer.failed:
        raise answer.failure()


async def _cancel_when_left(request: Request, running: TurnHandle) -> None:
    await request.wait_until_left()
    if running.readers <= 1:  # the same request may have come again in the meantime, and wait for the same turn
        running.cancel()


async def stream_answer(
    running: TurnHandle, ends_with_client: bool, write: Callable[[TurnEvent], bytes], ping: bytes
) -> AsyncGenerator[bytes]:
    """A turn's events as bytes. It is closed before the end when the client leaves."""
    over = False
    try:
        async with aclosing(running.events()) as events, aclosing(with_pings(events, PING_INTERVAL_S)) as timed:
            async for event in timed:
                over = isinstance(event, Ended)
                piece = write(event) if event else ping
                if piece:
                    yield piece
    finally:
        if not over and ends_with_client and not running.readers:
            running.cancel()


async def _answer_client(
    app: App, request: Request, read: Callable[[Any], ClientRequest], form: "type[OpenAIWriter | AnthropicWriter]"
) -> Reply:
    asked: ClientRequest = await request.work(read, request.body)
    model, ends_early = check_model(app, request.body.model), ends_with_client(request, asked)
    running = await start_turn(app, request, asked)
    answer = TurnAnswer(names=frozenset(str(tool["function"]["name"]) for tool in asked.tools))
    writer, headers = form(running.turn.turn_id, model, answer, request.body), turn_headers(running.turn)
    if asked.stream:
        events = stream_answer(running, ends_early, writer.write, form.PING)
        return Reply(events, headers={**HEADERS, **headers}, media=MEDIA)
    await collect_answer(request, running, ends_early, answer)
    return Reply(writer.whole(), headers=headers)


# OpenAI's form

OPENAI_OPTIONS = (
    "temperature", "top_p", "stop", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "response_format",
    "tool_choice", "parallel_tool_calls", "reasoning_effort", "verbosity",
)  # fmt: skip
"""Wishes that are passed on to the provider."""
OPENAI_FINISH = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "content_filter": "content_filter"}


class OpenAIMessage(msgspec.Struct, kw_only=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Objects | None = None
    tool_calls: Objects | None = None
    tool_call_id: str | None = None
    name: str | None = None


class OpenAIBody(ClientBody):
    messages: Annotated[list[OpenAIMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    stream_options: dict[str, Any] | None = None
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    n: Annotated[int, Meta(ge=1, le=1)] | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    logit_bias: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None


async def _complete_chat(app: App, request: Request) -> Reply:
    return await _answer_client(app, request, _read_openai_request, OpenAIWriter)


async def _list_models(app: App, request: Request) -> Reply:
    name = app.provider.model
    return Reply({"object": "list", "data": [_model(name)], "has_more": False, "first_id": name, "last_id": name})


async def _get_model(app: App, request: Request) -> Reply:
    return Reply(_model(check_model(app, request.params["model"])))


def _model(name: str) -> Mapping[str, Any]:
    """The one model there is, in a form that both official clients read."""
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "created": 0,
        "created_at": "1970-01-01T00:00:00Z",
        "owned_by": "lamina",
        "display_name": name,
    }


def _read_openai_request(body: OpenAIBody) -> ClientRequest:
    messages: list[Message] = []
    system: list[str] = []
    for number, one in enumerate(body.messages):
        where = f"messages[{number}]"
        if one.role in ("system", "developer"):
            system.append(_plain_text(one.content, where))
        else:
            messages.append(_openai_message(one, where))
    if body.messages[-1].role == "user":
        check_content(body.messages[-1].content, f"messages[{len(body.messages) - 1}]")
    options = {name: value for name in OPENAI_OPTIONS if (value := getattr(body, name)) is not None}
    limits = [limit for limit in (body.max_completion_tokens, body.max_tokens) if limit]
    tools = tuple(_openai_tool(tool, f"tools[{number}]") for number, tool in enumerate(body.tools or ()))
    return ClientRequest(
        messages,
        "\n\n".join(text for text in system if text.strip()),
        tools,
        options,
        min(limits) if limits else None,
        read_session_id(body),
        bool(body.stream),
    )


def _plain_text(content: Any, where: str) -> str:
    """Content that must be text: a string, or parts of the type text."""
    if isinstance(content, list):
        parts = cast("list[Any]", content)
        if any(part.get("type") != "text" or not isinstance(part.get("text"), str) for part in parts):
            raise HttpError(400, "request.part_not_text", where=where)
        return "\n".join(part["text"] for part in parts)
    return content or ""


def _openai_message(one: OpenAIMessage, where: str) -> Message:
    """A message with what the engine knows, and nothing else; the engine checks the rest."""
    role: Any = one.role
    content: Any = one.content
    if role == "user":
        parts = cast("list[Any]", content) if isinstance(content, list) else None
        return {"role": role, "content": content if parts is None else [_openai_part(part) for part in parts]}
    made: Message = {"role": role, "content": _plain_text(content, where)}
    if role == "tool":
        made["tool_call_id"] = one.tool_call_id or ""
    if role == "assistant" and one.tool_calls:
        made["tool_calls"] = cast("Any", one.tool_calls)
        made["content"] = made["content"] or None
    return made


def _openai_part(part: Mapping[str, Any]) -> Any:
    if part.get("type") == "text":
        return {"type": "text", "text": part.get("text")}
    if part.get("type") == "image_url" and isinstance(part.get("image_url"), dict):
        picture = {name: part["image_url"][name] for name in ("url", "detail") if part["image_url"].get(name)}
        return {"type": "image_url", "image_url": picture}
    return dict(part)


def _openai_tool(tool: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    function: Any = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, dict):
        raise HttpError(400, "request.not_function", where=where)
    named = cast("dict[str, Any]", function)
    if not isinstance(named.get("name"), str):
        raise HttpError(400, "request.bad_function_name", where=where)
    return {
        "type": "function",
        "function": {
            **named,
            "description": named.get("description") or f"A tool of the client: {named['name']}.",
            "parameters": named.get("parameters") or {"type": "object", "properties": {}},
        },
    }


def _openai_calls(answer: TurnAnswer) -> Sequence[Mapping[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.caller_calls
    ]


def _openai_finish(answer: TurnAnswer) -> str:
    return "tool_calls" if answer.caller_calls else OPENAI_FINISH.get(answer.end.reason, "stop")


def _openai_usage(usage: Usage) -> Mapping[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


class OpenAIWriter:
    """The events of a turn as chunks of a completion."""

    PING = b": ping\n\n"

    def __init__(self, turn_id: str, model: str, answer: TurnAnswer, body: OpenAIBody) -> None:
        self._name, self._model, self._answer = f"chatcmpl-{turn_id}", model, answer
        self._with_usage = bool((body.stream_options or {}).get("include_usage"))
        head = {"id": self._name, "object": "chat.completion.chunk", "created": int(time.time()), "model": model}
        self._head = f"data: {json.dumps(head, ensure_ascii=False)[:-1]}, "

    def whole(self) -> Mapping[str, Any]:
        answer = self._answer
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or (None if answer.caller_calls else "")}
        if answer.caller_calls:
            message["tool_calls"] = _openai_calls(answer)
        choice = {"index": 0, "message": message, "finish_reason": _openai_finish(answer), "logprobs": None}
        return {
            "id": self._name,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self._model,
            "choices": [choice],
            "usage": _openai_usage(answer.usage),
        }

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
        if answer.failed:  # without [DONE]: it cannot be taken for a complete answer
            return f"data: {json.dumps(error_body(answer.failure(), 'openai'), ensure_ascii=False)}\n\n".encode()
        calls = [{"index": number, **call} for number, call in enumerate(_openai_calls(answer))]
        pieces = [self._delta({"tool_calls": calls})] if calls else []
        pieces.append(self._delta({}, _openai_finish(answer)))
        if self._with_usage:
            pieces.append(
                f'{self._head}"choices": [], "usage": {json.dumps(_openai_usage(answer.usage))}}}\n\n'.encode()
            )
        return b"".join((*pieces, b"data: [DONE]\n\n"))


# Anthropic's form

ANTHROPIC_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
ANTHROPIC_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


class AnthropicMessage(msgspec.Struct, kw_only=True):
    role: Literal["user", "assistant"]
    content: str | Objects


class AnthropicFields(ClientBody):
    messages: Annotated[list[AnthropicMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | Objects = ""
    stop_sequences: list[str] | None = None
    tool_choice: dict[str, Any] | None = None


class AnthropicBody(AnthropicFields, kw_only=True):
    max_tokens: MaxTokens


class AnthropicCountBody(AnthropicFields):
    max_tokens: MaxTokens = 1


async def _create_message(app: App, request: Request) -> Reply:
    return await _answer_client(app, request, _read_anthropic_request, AnthropicWriter)


async def _count_tokens(app: App, request: Request) -> Reply:
    check_model(app, request.body.model)
    asked = await request.work(_read_anthropic_request, request.body)
    return Reply({"input_tokens": await count_request(app, request, asked)})


def _read_anthropic_request(body: AnthropicBody | AnthropicCountBody) -> ClientRequest:
    found: list[Message] = []
    for number, one in enumerate(body.messages):
        found += _anthropic_messages(one.role, one.content, f"messages[{number}]")
    if body.messages[-1].role == "user":
        check_content(body.messages[-1].content, f"messages[{len(body.messages) - 1}]")
    check_count(found)  # one of theirs may be many of ours
    system = body.system
    if isinstance(system, list):
        system = "\n\n".join(_block_text(block, "system") for block in system)
    tools = tuple(_anthropic_tool(tool, f"tools[{number}]") for number, tool in enumerate(body.tools or ()))
    return ClientRequest(
        found,
        system,
        tools,
        _anthropic_options(body),
        body.max_tokens,
        read_session_id(body),
        bool(body.stream),
    )


def _anthropic_options(body: AnthropicFields) -> Mapping[str, Any]:
    options: dict[str, Any] = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "stop": body.stop_sequences or None,
    }
    options = {name: value for name, value in options.items() if value is not None}
    choice = body.tool_choice or {}
    if choice.get("type") == "tool":
        options["tool_choice"] = {"type": "function", "function": {"name": choice.get("name", "")}}
    elif isinstance(kind := choice.get("type"), str) and kind in ANTHROPIC_CHOICES:
        options["tool_choice"] = ANTHROPIC_CHOICES[kind]
    if choice.get("disable_parallel_tool_use"):
        options["parallel_tool_calls"] = False
    return options


def _block_text(block: Any, where: str) -> str:
    fields = cast("dict[str, Any]", block) if isinstance(block, dict) else {}
    if fields.get("type") != "text" or not isinstance(fields.get("text"), str):
        raise HttpError(400, "request.block_not_text", where=where)
    return fields["text"]


def _anthropic_messages(role: str, content: Any, where: str) -> list[Message]:
    """One message of theirs is one of ours, or several where it holds results of calls."""
    if isinstance(content, str):
        return [{"role": "user" if role == "user" else "assistant", "content": content}]
    return _user_messages(content, where) if role == "user" else [_assistant_message(content, where)]


def _user_messages(blocks: list[Any], where: str) -> list[Message]:
    found: list[Message] = []
    parts: list[Any] = []
    for number, block in enumerate(blocks):
        place = f"{where}.content[{number}]"
        if block.get("type") == "tool_result":
            if parts:
                raise HttpError(400, "request.result_behind_words", where=place)
            found.append(
                {
                    "role": "tool",
                    "content": _result_text(block, place),
                    "tool_call_id": str(block.get("tool_use_id", "")),
                }
            )
        elif block.get("type") == "image":
            parts.append({"type": "image_url", "image_url": {"url": _picture_url(block.get("source"), place)}})
        else:
            parts.append({"type": "text", "text": _block_text(block, place)})
    if parts:
        plain = len(parts) == 1 and parts[0]["type"] == "text"
        found.append({"role": "user", "content": parts[0]["text"] if plain else parts})
    return found


def _result_text(block: Mapping[str, Any], where: str) -> str:
    content = block.get("content")
    if isinstance(content, list):
        content = "\n".join(_block_text(one, f"{where}.content") for one in cast("list[Any]", content))
    elif content is not None and not isinstance(content, str):
        raise HttpError(400, "request.result_not_text", where=where)
    return f"Error: {content or ''}" if block.get("is_error") else content or ""


def _picture_url(source: Any, where: str) -> str:
    if isinstance(source, dict):
        given = cast("dict[str, Any]", source)
        if given.get("type") == "url" and isinstance(given.get("url"), str):
            return given["url"]
        if given.get("type") == "base64" and isinstance(given.get("data"), str):
            return f"data:{given.get('media_type', 'image/png')};base64,{given['data']}"
    raise HttpError(400, "request.not_picture", where=where)


def _assistant_message(blocks: list[Any], where: str) -> Message:
    texts: list[str] = []
    calls: list[Any] = []
    for block in blocks:
        if block.get("type") == "tool_use":
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            function = {"name": str(block.get("name", "")), "arguments": arguments}
            calls.append({"id": str(block.get("id", "")), "type": "function", "function": function})
        elif block.get("type") not in ("thinking", "redacted_thinking"):
            texts.append(_block_text(block, where))
    made: Message = {"role": "assistant", "content": "".join(texts)}
    if calls:
        made = {"role": "assistant", "content": "".join(texts) or None, "tool_calls": calls}
    return made


def _anthropic_tool(tool: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    if tool.get("type", "custom") != "custom" or not isinstance(tool.get("name"), str):
        raise HttpError(400, "request.not_client_tool", where=where)
    schema: Any = tool.get("input_schema") or {"type": "object", "properties": {}}
    function = {
        "name": tool["name"],
        "description": str(tool.get("description") or f"A tool of the client: {tool['name']}."),
        "parameters": schema,
    }
    return {"type": "function", "function": function}


def _call_input(call: ToolCallEvent) -> Any:
    """An object that is JSON and whole Unicode, which is all that the clients read; anything else that a model wrote
    stays text, as it does on the way to a provider."""
    try:
        value: Any = json.loads(call.arguments)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": call.arguments}  # pyright: ignore[reportUnknownVariableType]


def _anthropic_stop(answer: TurnAnswer) -> str:
    return "tool_use" if answer.caller_calls else ANTHROPIC_STOPS.get(answer.end.reason, "end_turn")


def _anthropic_usage(usage: Usage) -> Mapping[str, int]:
    return {
        "input_tokens": max(0, usage.prompt - usage.cached),  # some providers count what was cached apart
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion,
    }


class AnthropicWriter:
    """The events of a turn as those of a message."""

    PING = event_bytes("ping", {"type": "ping"})

    def __init__(self, turn_id: str, model: str, answer: TurnAnswer, _body: AnthropicBody) -> None:
        self._name, self._model, self._answer = f"msg_{turn_id}", model, answer
        self._open, self._blocks = False, 0

    def whole(self) -> Mapping[str, Any]:
        answer = self._answer
        blocks: list[Any] = [{"type": "text", "text": answer.text}] if answer.text or not answer.caller_calls else []
        blocks += [
            {"type": "tool_use", "id": c.id, "name": c.name, "input": _call_input(c)} for c in answer.caller_calls
        ]
        return {
            "id": self._name,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": blocks,
            "stop_reason": _anthropic_stop(answer),
            "stop_sequence": None,
            "usage": _anthropic_usage(answer.usage),
        }

    def write(self, event: TurnEvent) -> bytes:
        new = self._answer.take(event)
        if new:
            opening = b"" if self._open else self._start({"type": "text", "text": ""})
            self._open = True
            return opening + self._delta({"type": "text_delta", "text": new})
        if isinstance(event, Began):
            begin: Mapping[str, Any] = {**self.whole(), "content": [], "stop_reason": None}
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
        for call in answer.caller_calls:
            pieces.append(self._start({"type": "tool_use", "id": call.id, "name": call.name, "input": {}}))
            written = json.dumps(_call_input(call), ensure_ascii=False)  # the same that a whole message has
            pieces += [self._delta({"type": "input_json_delta", "partial_json": written}), self._stop()]
        delta = {"stop_reason": _anthropic_stop(answer), "stop_sequence": None}
        change = {"type": "message_delta", "delta": delta, "usage": _anthropic_usage(answer.usage)}
        pieces += [event_bytes("message_delta", change), event_bytes("message_stop", {"type": "message_stop"})]
        return b"".join(pieces)


OPENAI_ANSWER = msgspec.defstruct("OpenAIAnswer", [("id", str), ("choices", list[Any])])
OPENAI_MODELS = msgspec.defstruct("OpenAIModels", [("data", list[Any])])
OPENAI_MODEL = msgspec.defstruct("OpenAIModel", [("id", str)])
ANTHROPIC_ANSWER = msgspec.defstruct("AnthropicAnswer", [("id", str), ("content", list[Any])])
ANTHROPIC_TOKENS = msgspec.defstruct("AnthropicTokens", [("input_tokens", int)])
EXAMPLE = {"model": "lamina", "messages": [{"role": "user", "content": "Hello / 你好"}]}
V1: dict[str, Any] = {"tags": ("v1",)}
ROUTES = (
    Route(
        "POST", "/v1/chat/completions", _complete_chat, "An answer in OpenAI's form, whole or streamed", "chat",
        OpenAIBody, EXAMPLE, answer=OPENAI_ANSWER, form="openai", streams=True, **V1,
    ),
    Route(
        "GET", "/v1/models", _list_models, "The model that answers", "chat", answer=OPENAI_MODELS,
        form="openai", **V1,
    ),
    Route(
        "GET", "/v1/models/{model}", _get_model, "The model of this name", "chat", answer=OPENAI_MODEL,
        form="openai", rest=True, **V1,
    ),
    Route(
        "POST", "/v1/messages", _create_message, "An answer in Anthropic's form, whole or streamed", "chat",
        AnthropicBody, {**EXAMPLE, "max_tokens": 256}, answer=ANTHROPIC_ANSWER, form="anthropic",
        streams=True, **V1,
    ),
    Route(
        "POST", "/v1/messages/count_tokens", _count_tokens, "The tokens that such a request would have, by our count",
        "chat", AnthropicCountBody, EXAMPLE, answer=ANTHROPIC_TOKENS, form="anthropic", **V1,
    ),
)  # fmt: skip
