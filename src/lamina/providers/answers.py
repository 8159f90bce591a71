"""What all forms of answers have in common: from bytes to events, in one loop for streams and for whole bodies.

A `Reader` knows one form. Texts are passed on as they come; calls, usage and done only when the answer is whole, so
that no half call is acted on. What had come before an error has been passed on by then.
"""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, Protocol

from lamina.errors import BrokenStreamError, ProviderError, format_value
from lamina.providers.forms import ASK_AGAIN, CHECK_ADDRESS, parse_object
from lamina.providers.http import Answer, Client
from lamina.providers.sse import EventParser, ServerEvent
from lamina.types import Event

_AFTER_END = 5.0
"""Seconds to wait for what comes after a model's last word: usage, and the mark of the end."""
_STREAM, _WHOLE = "text/event-stream", "application/json"
_VAGUE = ("", "text/plain", "application/octet-stream")


class Reader(Protocol):
    """One form of answers."""

    finished: bool
    """The model has said its last word."""
    ended: bool
    """Nothing more will come."""

    def read(self, event: ServerEvent) -> Iterable[Event]: ...
    def read_whole(self, value: dict[str, Any]) -> Iterable[Event]: ...
    def last(self) -> Iterable[Event]:
        """Calls, usage and done."""
        ...


async def events(client: Client, path: str, body: bytes, reader: Reader, *, stream: bool) -> AsyncGenerator[Event]:
    """Ask, and read the answer as what it is: a provider may answer a wish for a stream with a whole body."""
    async with client.post(path, body, _STREAM if stream else _WHOLE) as answer:
        if _is_stream(answer, stream):
            async with aclosing(_streamed(client, answer, reader)) as streamed:
                async for event in streamed:
                    yield event
        else:
            text = client.without((await answer.whole()).decode("utf-8", "replace"))
            for event in reader.read_whole(parse_object(text, answer.host)):
                yield event
    if not reader.finished:
        raise BrokenStreamError("provider.answer_cut", host=client.host, hint=ASK_AGAIN)
    for event in reader.last():
        yield event


async def _streamed(client: Client, answer: Answer, reader: Reader) -> AsyncGenerator[Event]:
    parser = EventParser()
    try:
        async for piece in answer.chunks():
            for sent in parser.feed(piece):
                for event in reader.read(_clean(client, sent)):
                    yield event
                if reader.ended:
                    return
            if reader.finished:
                answer.hurry(_AFTER_END)
        for sent in parser.end():
            for event in reader.read(_clean(client, sent)):
                yield event
    except ProviderError:
        if not reader.finished:  # a cut after the last word takes nothing away
            raise


def _clean(client: Client, sent: ServerEvent) -> ServerEvent:
    """Some repeat the key in what they complain about; an error would show it."""
    return ServerEvent(sent.kind, client.without(sent.data))


def _is_stream(answer: Answer, asked: bool) -> bool:
    kind = answer.kind
    if kind in _VAGUE:
        return asked
    if kind == _STREAM:
        return True
    if kind == _WHOLE or kind.endswith("+json"):
        return False
    raise BrokenStreamError(
        "provider.wrong_media_type", host=answer.host, media=format_value(kind), hint=CHECK_ADDRESS, retryable=False
    )
