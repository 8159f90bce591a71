"""What the two forms of other people's clients have in common: a request taken apart, and a turn that answers it.

Without a session the request is its own history; with one only its newest words are taken (`X-Lamina-Session`, or
`metadata.session_id`). Nothing in it names a user, a provider's address or a key. A client that leaves a request
without a session gives it up; in a session the turn goes on, unless `X-Lamina-On-Leave` says otherwise.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

from lamina.app.app import CANCELLED, App, TurnHandle
from lamina.errors import format_value
from lamina.gateway.http import HttpError, Request, not_found
from lamina.gateway.ids import check_same_question, idempotency_key, is_id
from lamina.gateway.sse import PING_INTERVAL_S, with_pings
from lamina.records import REQUESTS, CallerInput, TurnRecord
from lamina.text.messages import Phrase
from lamina.types import Ended, Message, Text, ToolCallEvent, ToolResult, TurnEvent, Usage

SESSION, ON_LEAVE = "x-lamina-session", "x-lamina-on-leave"
MAX_MESSAGES = 10_000
"""Of one request: each of them is stored, and no other request can write during that time."""
MODEL_ALIAS = "lamina"
"""A name for whichever model the gateway has."""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request in either form, in the words that the engine knows."""

    messages: Sequence[Message]
    """Without the system's."""
    system: str
    tools: tuple[Mapping[str, Any], ...]
    options: Mapping[str, Any]
    max_tokens: int | None
    session_id: str
    stream: bool


@dataclass(slots=True)
class Answer:
    """What came of a turn."""

    names: frozenset[str]
    """Of the caller's own tools: calls of ours are not shown to it."""
    text: str = ""
    calls: list[ToolCallEvent] = field(default_factory=list[ToolCallEvent])
    apart: bool = False
    """Tools have run since the last text."""
    usage: Usage = Usage(0, 0, 0)  # noqa: RUF009 -- it is frozen
    ended: Ended = Ended("complete")  # noqa: RUF009 -- the same

    def take(self, event: TurnEvent) -> str:
        """Keep what the client is to know; returns the text that is new. Texts between which tools ran stand apart."""
        if isinstance(event, Text):
            new = f"\n\n{event.text}" if self.apart and self.text else event.text
            self.apart = False
            self.text += new
            return new
        if isinstance(event, ToolCallEvent) and event.name in self.names:
            self.calls.append(event)
        elif isinstance(event, ToolResult):
            self.apart = True
        elif isinstance(event, Usage):
            was = self.usage
            self.usage = Usage(was.prompt + event.prompt, was.cached + event.cached, was.completion + event.completion)
        elif isinstance(event, Ended):
            self.ended = event
        return ""

    @property
    def failed(self) -> bool:
        """Whether no client should take this for an answer: half of one never looks whole."""
        return self.ended.state != "complete"

    def failure(self) -> HttpError:
        error = self.ended.error or Phrase("turn.no_answer")
        status = 400 if self.ended.error == CANCELLED else self.ended.status or 502
        hint = self.ended.hint or Phrase("turn.no_answer.hint")
        return HttpError(status, error, hint=hint, kind="provider")


def read_session_id(body: Mapping[str, Any]) -> str:
    """The session that the request's metadata names; empty for none. A user they cannot name."""
    metadata: Mapping[str, Any] = body.get("metadata") or {}
    session_id = metadata.get("session_id", "")
    if not isinstance(session_id, str):
        raise HttpError(400, "request.bad_session_id")
    return session_id


def check_content(content: Any, where: str) -> None:
    """Refuse a question without words, which no model can answer. Anthropic refuses it too; OpenAI takes an empty text,
    but not null."""
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
    running = await app.start(request.user, session_id, user, key=idempotency_key(request.headers), given=given)
    await check_same_question(app, request, running.turn, given.results[0]["content"] if given.results else user)
    _check_complete(running.turn)
    request.watch(running)
    return running


def _check_complete(turn: TurnRecord) -> None:
    """What was cancelled or failed under a key stays so: a repeat is not answered with it, and only a new key asks the
    model once more."""
    if turn.repeated and turn.state in ("interrupted", "failed"):
        state = Phrase("turn.state_failed" if turn.state == "failed" else "turn.state_interrupted")
        why = Phrase.load(turn.error) or state
        raise HttpError(409, "idempotency.unfinished", kind="conflict", why=why, turn_id=turn.turn_id)


async def count_request(app: App, request: Request, asked: ClientRequest) -> int:
    """How many tokens a request would have if it were sent now, with all that lamina adds. Nothing is sent or kept."""
    session_id, user, given = await request.work(split_request, request, asked)
    context = await app.context(request.user, session_id, user, given=given)
    return context.receipt.tokens


def split_request(request: Request, asked: ClientRequest) -> tuple[str, Any, CallerInput]:
    """The session, the user's words, and what the request brings beside them."""
    session_id = request.headers.get(SESSION) or asked.session_id
    if session_id == REQUESTS:
        raise HttpError(400, "session.not_a_chat")
    if not asked.messages:
        raise HttpError(400, "request.nothing_to_answer", hint="request.add_user")
    if session_id and not is_id(session_id):
        raise not_found()
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
    wish = request.headers.get(ON_LEAVE, "")
    if wish not in ("", "finish", "cancel"):
        raise HttpError(400, "request.bad_on_leave", header=ON_LEAVE, value=format_value(wish, 40))
    return wish == "cancel" if wish else not (request.headers.get(SESSION) or asked.session_id)


async def collect_answer(request: Request, running: TurnHandle, ends_with_client: bool, answer: Answer) -> Answer:
    """The whole answer of a turn, for a client that waits; one that leaves early may end the turn."""
    left = asyncio.create_task(_leave(request, running)) if ends_with_client else None
    try:
        async with aclosing(running.events()) as events:
            async for event in events:
                answer.take(event)
    finally:
        if left:
            left.cancel()
    if answer.failed:
        raise answer.failure()
    return answer


async def _leave(request: Request, running: TurnHandle) -> None:
    await request.gone()
    if running.readers <= 1:  # the same request may have come again in the meantime, and wait for the same turn
        running.cancel()


async def stream_answer(
    running: TurnHandle, ends_with_client: bool, write: Callable[[TurnEvent], bytes], ping: bytes
) -> AsyncGenerator[bytes]:
    """A turn's events as bytes. Closed before the end, the client has left."""
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
