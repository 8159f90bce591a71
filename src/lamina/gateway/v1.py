"""What the two forms of other people's clients have in common: a request taken apart, and a turn that answers it.

Without a session the request is its own history; with one only its newest words are taken (`X-Lamina-Session`, or
`metadata.session_id`). Nothing in it names a user, a provider's address or a key. A client that leaves a request
without a session gives it up; in a session the turn goes on, unless `X-Lamina-On-Leave` says otherwise.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from lamina.app.app import CANCELLED, App, Running
from lamina.gateway.http import HttpError, Request, not_found
from lamina.gateway.ids import check_same, is_id, key_of
from lamina.gateway.sse import PING, with_pings
from lamina.records import REQUESTS, Given, TurnRecord
from lamina.types import Ended, Message, Text, ToolCallEvent, ToolResult, TurnEvent, Usage

SESSION, ON_LEAVE = "x-lamina-session", "x-lamina-on-leave"
MOST_MESSAGES = 10_000
"""Of one request: each of them is stored, and meanwhile nobody else can write."""
OURS = "lamina"
"""A name for whichever model the gateway has."""


@dataclass(frozen=True, slots=True)
class Asked:
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
    """Of the caller's own tools: calls of ours are none of his business."""
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
        words, hint = self.ended.error or "the turn came to nothing", self.ended.hint
        code = 400 if self.ended.error == CANCELLED else self.ended.code or 502
        return HttpError(code, words, hint=hint or "what came is kept with the turn", kind="provider")


def session_in(body: Mapping[str, Any]) -> str:
    """The session that the request's metadata names; empty for none. A user they cannot name."""
    metadata: Mapping[str, Any] = body.get("metadata") or {}
    session_id = metadata.get("session_id", "")
    if not isinstance(session_id, str):
        raise HttpError(400, "metadata.session_id is no text", hint="the id of a session, from POST /api/sessions")
    return session_id


def check_count(messages: Sequence[Message]) -> None:
    if len(messages) > MOST_MESSAGES:
        what = f"messages holds {len(messages):,} messages and results of calls"
        raise HttpError(400, what, hint=f"at most {MOST_MESSAGES:,}; a session keeps the earlier ones by itself")


def check_model(app: App, model: str) -> str:
    """The gateway answers with its own model; a client may also call it by our name."""
    known = app.provider.model
    if model not in (known, OURS):
        raise HttpError(404, f"no model {model[:80]!r} here", hint=f"this gateway has {known!r}", kind="not_found")
    return known


async def begun(app: App, request: Request, asked: Asked) -> Running:
    """The turn of a request, stored and running."""
    session_id, user, given = taken_apart(request, asked)
    running = await app.start(request.user, session_id, user, key=key_of(request.headers), given=given)
    await check_same(app, request, running.turn, given.results[0]["content"] if given.results else user)
    _check_whole(running.turn)
    request.watch(running)
    return running


def _check_whole(turn: TurnRecord) -> None:
    """What was given up or broke off under a key stays so: asked for again it is no answer, and only a new key asks the
    model once more."""
    if turn.repeated and turn.state in ("interrupted", "failed"):
        what = f"the answer to this Idempotency-Key did not come to its end: {turn.error or turn.state}"
        hint = f"send the request again with a new key; what came is at GET /api/turns/{turn.turn_id}"
        raise HttpError(409, what, hint=hint, kind="conflict")


async def counted(app: App, request: Request, asked: Asked) -> int:
    """How many tokens a request would have if it were sent now, with all that lamina adds. Nothing is sent or kept."""
    session_id, user, given = taken_apart(request, asked)
    context = await app.context(request.user, session_id, user, given=given)
    return context.receipt.tokens


def taken_apart(request: Request, asked: Asked) -> tuple[str, Any, Given]:
    """The session, the user's words, and what the request brings beside them."""
    session_id = request.headers.get(SESSION) or asked.session_id
    if session_id == REQUESTS:
        raise HttpError(400, "this session keeps single requests and is no chat", hint="POST /api/sessions makes one")
    if not asked.messages:
        raise HttpError(400, "messages holds no message to answer", hint="add a message of the role user")
    if session_id and not is_id(session_id):
        raise not_found()
    given, user = _of_session(asked) if session_id else _of_itself(asked)
    return session_id or REQUESTS, user, given


def _of_itself(asked: Asked) -> tuple[Given, Any]:
    """All of the request's own messages: those before the last user's, his words, and what is behind them."""
    last = max((n for n, one in enumerate(asked.messages) if one["role"] == "user"), default=-1)
    if last < 0:
        raise HttpError(400, "messages holds no message of the role user", hint="add the user's words")
    before, behind = tuple(asked.messages[:last]), tuple(asked.messages[last + 1 :])
    if behind and behind[-1]["role"] == "assistant":
        raise HttpError(
            400, "the last message is the assistant's", hint="end with the user's words or with results of calls"
        )
    given = Given(before, behind, (), asked.system, asked.tools, asked.options, asked.max_tokens)
    return given, asked.messages[last]["content"] or ""


def _of_session(asked: Asked) -> tuple[Given, Any]:
    """The newest words alone, or the results of the calls that the last answer left to the client, with the words
    behind them."""
    said = next((one["content"] for one in reversed(asked.messages) if one["role"] == "user"), None)
    words = asked.messages[-1:] if asked.messages[-1]["role"] == "user" else ()
    results: list[Message] = [*words]
    for one in reversed(asked.messages[: len(asked.messages) - len(words)]):
        if one["role"] != "tool":
            break
        results.insert(0, one)
    if not results:
        raise HttpError(400, "the last message is not the user's", hint="a session takes the newest words of its user")
    results = results if len(results) > len(words) else []
    given = Given(None, (), tuple(results), asked.system, asked.tools, asked.options, asked.max_tokens)
    return given, said or "…"


def headers_of(running: Running) -> dict[str, str]:
    turn = running.turn
    return {"X-Lamina-Turn": turn.turn_id, "X-Lamina-Session": turn.session_id}


def gives_up(request: Request, asked: Asked) -> bool:
    """Whether the turn ends when its client leaves."""
    wish = request.headers.get(ON_LEAVE, "")
    if wish not in ("", "finish", "cancel"):
        raise HttpError(400, f"{ON_LEAVE} is {wish[:40]!r}", hint="`finish` or `cancel`")
    return wish == "cancel" if wish else not (request.headers.get(SESSION) or asked.session_id)


async def whole(request: Request, running: Running, gives_up: bool, answer: Answer) -> Answer:
    """The whole answer of a turn, for a client that waits; one that leaves meanwhile may give the turn up."""
    left = asyncio.create_task(_leave(request, running)) if gives_up else None
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


async def _leave(request: Request, running: Running) -> None:
    await request.gone()
    if running.readers <= 1:  # the same request may have come again meanwhile, and wait for the same turn
        running.cancel()


async def streamed(
    running: Running, gives_up: bool, write: Callable[[TurnEvent], bytes], ping: bytes
) -> AsyncGenerator[bytes]:
    """A turn's events as bytes. Closed before the end, the client has left."""
    over = False
    try:
        async with aclosing(running.events()) as events, aclosing(with_pings(events, PING)) as timed:
            async for event in timed:
                over = isinstance(event, Ended)
                piece = write(event) if event else ping
                if piece:
                    yield piece
    finally:
        if not over and gives_up and not running.readers:
            running.cancel()
