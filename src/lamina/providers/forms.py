"""The parts that answers are made of, whatever their form: text, calls, counts, complaints. Pure, and without aiohttp.

What a provider sends is data to be checked: a wrong type is an error that shows it, never a crash.
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
from lamina.text.messages import Phrase
from lamina.types import Context, Done, DoneReason, Receipt, Text, ToolCallEvent, Usage

MAX_CALLS = 256
ASK_AGAIN, CHECK_ADDRESS, CHECK_ENDPOINT = "provider.hint_ask_again", "provider.hint_address", "provider.hint_endpoint"
WAIT_A_LITTLE, SEE_WORDS = "provider.hint_wait_a_little", "provider.hint_see_words"
"""Next steps that several errors have in common."""
Host = str | Phrase
"""Who answers: the host of an address, or a name in its place."""


def request_body(receipt: Receipt, grammar: str, more: dict[str, Any]) -> bytes:
    """The proven payload, byte for byte, and behind it what is not part of the context. None takes a field away."""
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


def parse_object(data: str, host: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise BrokenStreamError("provider.not_json", host=host, value=format_value(data), hint=ASK_AGAIN) from None
    return mapping(value, host)


def mapping(value: Any, host: str) -> dict[str, Any]:
    """An object of the answer; null, which some send for nothing, is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BrokenStreamError("provider.not_an_object", host=host, value=format_value(value), hint=ASK_AGAIN)
    return cast("dict[str, Any]", value)


def sequence(value: Any, host: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise BrokenStreamError("provider.not_a_list", host=host, value=format_value(value), hint=ASK_AGAIN)
    return cast("list[Any]", value)


def word(value: Any) -> str:
    return value if isinstance(value, str) else ""


def count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def reported_error(value: Any, host: str) -> ProviderError:
    """The error that a provider reports inside of an answer."""
    told: dict[str, Any] = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    words = read_complaint(json.dumps({"error": value}).encode())
    code = count(told.get("code") or told.get("status"))
    marks = f"{told.get('type')} {told.get('code')}".lower()
    if code in (429, 503, 529) or any(mark in marks for mark in ("rate_limit", "overloaded", "unavailable")):
        kind, hint = RateLimitError, WAIT_A_LITTLE
    else:
        kind, hint = RejectedError, SEE_WORDS
    return kind("provider.broke_off", host=host, words=format_value(words, 300), hint=hint, provider_status=code)


def too_many_calls(host: str) -> BrokenStreamError:
    return BrokenStreamError("provider.too_many_calls", host=host, most=MAX_CALLS, retryable=False)


class TextJoiner:
    """Text in pieces. Halves of a surrogate pair that came apart are joined; one without its other half is U+FFFD."""

    def __init__(self) -> None:
        self._held = ""

    def take(self, text: Any, host: str) -> Iterator[Text]:
        if text is None or text == "":
            return
        if not isinstance(text, str):
            raise BrokenStreamError("provider.not_text", host=host, value=format_value(text), hint=ASK_AGAIN)
        if text.isascii() and not self._held:
            yield Text(text)
            return
        text, self._held = self._held + text, ""
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._held = text[:-1], text[-1]
        if text:
            yield Text(join_surrogates(text))

    def end(self) -> Iterator[Text]:
        if self._held:
            self._held = ""
            yield Text("\ufffd")


def join_surrogates(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@dataclass(slots=True)
class PartialCall:
    """A call that is still being written. Its arguments stay in the pieces in which they come until it is whole:
    adding to a text would copy all of it, every time."""

    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])


def finish_call(call: PartialCall, number: int, reason: DoneReason, host: Host) -> ToolCallEvent:
    """The call as a whole, or an error that says what is wrong with it."""
    name, arguments = call.name, join_surrogates("".join(call.pieces)).strip() or "{}"
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


def end_answer(
    calls: Iterable[PartialCall], reason: DoneReason, usage: Usage | None, host: str
) -> Iterator[ToolCallEvent | Usage | Done]:
    """Usage comes before the calls are checked: it was paid for, whatever they are."""
    finished: list[ToolCallEvent] = []
    wrong: BrokenStreamError | None = None
    try:
        finished = [finish_call(call, number, reason, host) for number, call in enumerate(calls)]
    except BrokenStreamError as error:
        wrong = error
    yield from finished
    if usage is not None:
        yield usage
    if wrong is not None:
        raise wrong
    yield Done("tool_calls" if finished and reason in ("stop", "other") else reason)


def read_complaint(body: bytes) -> str:
    """What an error's body says: the message in its JSON, or its text."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace").strip()
    error: Any = cast("dict[str, Any]", value).get("error", cast(Any, value)) if isinstance(value, dict) else value
    if isinstance(error, dict):
        told = cast("dict[str, Any]", error)
        words = [told.get("message"), told.get("code") or told.get("type")]
        return ", ".join(str(word) for word in words if isinstance(word, str | int)) or json.dumps(error)
    return str(error)
