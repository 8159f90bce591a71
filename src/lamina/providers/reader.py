"""How answers are read, whatever their form: text, calls, usage, errors. Pure, and without aiohttp.

A subclass of `AnswerReader` knows one form. What a provider sends is data to be checked: a wrong type is an error that
shows it, never a crash.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from lamina.errors import (
    BrokenStreamError,
    MessageError,
    ProviderError,
    RateLimitError,
    RejectedError,
    SettingsError,
    format_value,
)
from lamina.providers.sse import ServerEvent
from lamina.text.messages import Phrase
from lamina.text.unicode import join_surrogates
from lamina.types import Context, Done, DoneReason, Event, Receipt, Text, ToolCallEvent, Usage

MAX_CALLS = 256
ASK_AGAIN, CHECK_ADDRESS, CHECK_ENDPOINT = "provider.hint_ask_again", "provider.hint_address", "provider.hint_endpoint"
WAIT_A_LITTLE, SEE_WORDS = "provider.hint_wait_a_little", "provider.hint_see_words"
"""Next steps that several errors have in common."""
Host = str | Phrase
"""Who answers: the host of an address, or a name in its place."""


def build_body(receipt: Receipt, grammar: str, more: dict[str, Any]) -> bytes:
    """The assembled payload, byte for byte, followed by what is not part of the context. None removes a field."""
    if receipt.grammar != grammar:
        raise MessageError("provider.wrong_grammar", expected=grammar, grammar=receipt.grammar)
    fields = {name: value for name, value in more.items() if value is not None}
    for name in fields.keys() & {"messages", "tools", "system", "contents"}:
        raise SettingsError("provider.reserved_field", name=format_value(name))
    return receipt.payload[:-1] + b"," + json.dumps(fields, ensure_ascii=False).encode()[1:]


def check_context(context: Context) -> Context:
    if not isinstance(context, Context):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise MessageError("provider.not_a_context", value=format_value(context))
    return context


class AnswerReader:
    """One answer, from server-sent events or from a whole body.

    Texts are passed on as they come. Calls, usage and the end follow when the answer is complete, so that nothing acts
    on half a call.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self.finished = False
        """The model has said its last word."""
        self.ended = False
        """Nothing more will come."""
        self.text = TextJoiner()
        self.calls: list[PartialCall] = []
        self.reason: DoneReason = "stop"
        self.usage: Usage | None = None

    def read(self, event: ServerEvent) -> Iterator[Event]:
        raise NotImplementedError

    def read_whole(self, value: dict[str, Any]) -> Iterator[Event]:
        raise NotImplementedError

    def finish(self) -> Iterator[Event]:
        """The rest of the text, then calls, usage and done."""
        yield from self.text.end()
        yield from finish_answer(self.calls, self.reason, self.usage, self.host)

    def take_text(self, text: Any) -> Iterator[Text]:
        return self.text.take(text, self.host)

    def add_call(self, identifier: str = "", name: str = "") -> "PartialCall":
        if len(self.calls) >= MAX_CALLS:
            raise BrokenStreamError("provider.too_many_calls", host=self.host, most=MAX_CALLS, retryable=False)
        self.calls.append(PartialCall(identifier, name))
        return self.calls[-1]

    def parse(self, data: str) -> dict[str, Any]:
        return parse_object(data, self.host)

    def as_object(self, value: Any) -> dict[str, Any]:
        return as_object(value, self.host)

    def as_list(self, value: Any) -> list[Any]:
        if value is None:
            return []
        if not isinstance(value, list):
            raise BrokenStreamError("provider.not_a_list", host=self.host, value=format_value(value), hint=ASK_AGAIN)
        return cast("list[Any]", value)


def parse_object(data: str, host: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise BrokenStreamError("provider.not_json", host=host, value=format_value(data), hint=ASK_AGAIN) from None
    return as_object(value, host)


def as_object(value: Any, host: str) -> dict[str, Any]:
    """An object of the answer; null, which some servers send instead of leaving a field out, is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BrokenStreamError("provider.not_an_object", host=host, value=format_value(value), hint=ASK_AGAIN)
    return cast("dict[str, Any]", value)


def text_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""


def count_or_zero(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


class TextJoiner:
    """Text in pieces. Halves of a surrogate pair that were split are joined; a half without the other is U+FFFD."""

    def __init__(self) -> None:
        self._half = ""

    def take(self, text: Any, host: str) -> Iterator[Text]:
        if text is None or text == "":
            return
        if not isinstance(text, str):
            raise BrokenStreamError("provider.not_text", host=host, value=format_value(text), hint=ASK_AGAIN)
        if text.isascii() and not self._half:
            yield Text(text)
            return
        text, self._half = self._half + text, ""
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        if text:
            yield Text(join_surrogates(text))

    def end(self) -> Iterator[Text]:
        if self._half:
            self._half = ""
            yield Text("\ufffd")


@dataclass(slots=True)
class PartialCall:
    """A call that is still being written. Its arguments stay in pieces until it is complete, since adding to a text
    would copy all of it every time. `given` are arguments that came at once; pieces replace them."""

    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    given: str = ""


def finish_call(call: PartialCall, number: int, reason: DoneReason, host: Host) -> ToolCallEvent:
    """The complete call, or an error that says what is wrong with it."""
    name, arguments = call.name, join_surrogates("".join(call.pieces or [call.given])).strip() or "{}"
    if not name:
        raise BrokenStreamError("provider.call_without_name", host=host, hint=ASK_AGAIN)
    try:
        value: Any = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        hint = "provider.hint_raise_max_tokens" if reason == "length" else ASK_AGAIN
        raise BrokenStreamError(
            "provider.bad_arguments", name=format_value(name), value=format_value(arguments), hint=hint
        )
    return ToolCallEvent(call.id or f"call_{number}", name, arguments)


def finish_answer(
    calls: Iterable[PartialCall], reason: DoneReason, usage: Usage | None, host: str
) -> Iterator[ToolCallEvent | Usage | Done]:
    """Usage is passed on even when a call is broken: it was paid for."""
    finished: list[ToolCallEvent] = []
    broken: BrokenStreamError | None = None
    try:
        finished = [finish_call(call, number, reason, host) for number, call in enumerate(calls)]
    except BrokenStreamError as error:
        broken = error
    yield from finished
    if usage is not None:
        yield usage
    if broken is not None:
        raise broken
    yield Done("tool_calls" if finished and reason in ("stop", "other") else reason)


def read_reported_error(value: Any, host: str) -> ProviderError:
    """The error that a provider reports inside of an answer."""
    fields: dict[str, Any] = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    words = read_error_text(json.dumps({"error": value}).encode())
    code = count_or_zero(fields.get("code") or fields.get("status"))
    marks = f"{fields.get('type')} {fields.get('code')}".lower()
    if code in (429, 503, 529) or any(mark in marks for mark in ("rate_limit", "overloaded", "unavailable")):
        kind, hint = RateLimitError, WAIT_A_LITTLE
    else:
        kind, hint = RejectedError, SEE_WORDS
    return kind("provider.broke_off", host=host, words=format_value(words, 300), hint=hint, provider_status=code)


def read_error_text(body: bytes) -> str:
    """What the body of an error says: the message in its JSON, or its text."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace").strip()
    error: Any = cast("dict[str, Any]", value).get("error", cast(Any, value)) if isinstance(value, dict) else value
    if isinstance(error, dict):
        fields = cast("dict[str, Any]", error)
        words = [fields.get("message"), fields.get("code") or fields.get("type")]
        return ", ".join(str(word) for word in words if isinstance(word, str | int)) or json.dumps(error)
    return str(error)
