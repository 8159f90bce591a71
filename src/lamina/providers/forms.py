"""The parts that answers are made of, whatever their form: text, calls, counts, complaints. Pure, and without aiohttp.

What a provider sends is data to be checked: a wrong type is an error that shows it, never a crash.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from lamina.errors import (
    BrokenStreamError,
    MessageError,
    ProviderError,
    RateLimitError,
    RejectedError,
    SettingsError,
    shown,
)
from lamina.types import Context, Done, DoneReason, Receipt, Text, ToolCallEvent, Usage

MOST_CALLS = 256


def request_body(receipt: Receipt, grammar: str, more: dict[str, Any]) -> bytes:
    """The proven payload, byte for byte, and behind it what is not part of the context. None takes a field away."""
    if receipt.grammar != grammar:
        raise MessageError(f"this provider takes the grammar {grammar!r}, not {receipt.grammar!r}")
    fields = {name: value for name, value in more.items() if value is not None}
    for name in fields.keys() & {"messages", "tools", "system", "contents"}:
        raise SettingsError(f"{name!r} is part of the context and cannot be added to a request", hint="see assemble()")
    return receipt.payload[:-1] + b"," + json.dumps(fields, ensure_ascii=False).encode()[1:]


def checked_context(context: Context) -> Context:
    if not isinstance(context, Context):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise MessageError(f"a provider takes a Context, not {shown(context)}", hint="see assemble()")
    return context


def parsed(data: str, host: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise BrokenStreamError(f"{host} sent {shown(data)}, which is no JSON", hint="ask again") from None
    return mapping(value, host)


def mapping(value: Any, host: str) -> dict[str, Any]:
    """An object of the answer; null, which some send for nothing, is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BrokenStreamError(f"{host} sent {shown(value)} where an object belongs", hint="ask again")
    return cast("dict[str, Any]", value)


def sequence(value: Any, host: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise BrokenStreamError(f"{host} sent {shown(value)} where a list belongs", hint="ask again")
    return cast("list[Any]", value)


def word(value: Any) -> str:
    return value if isinstance(value, str) else ""


def count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def error_of(value: Any, host: str) -> ProviderError:
    """The error that a provider reports inside of an answer."""
    told: dict[str, Any] = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    words = complaint_of(json.dumps({"error": value}).encode())
    code = count(told.get("code") or told.get("status"))
    marks = f"{told.get('type')} {told.get('code')}".lower()
    if code in (429, 503, 529) or any(mark in marks for mark in ("rate_limit", "overloaded", "unavailable")):
        return RateLimitError(f"{host} broke off: {shown(words, 300)}", hint="wait a little, then ask again", code=code)
    return RejectedError(f"{host} broke off: {shown(words, 300)}", hint="its words say why", code=code)


class TextJoiner:
    """Text in pieces. Halves of a surrogate pair that came apart are joined; one without its other half is U+FFFD."""

    def __init__(self) -> None:
        self._held = ""

    def take(self, text: Any, host: str) -> Iterator[Text]:
        if text is None or text == "":
            return
        if not isinstance(text, str):
            raise BrokenStreamError(f"{host} sent {shown(text)} where text belongs", hint="ask again")
        if text.isascii() and not self._held:
            yield Text(text)
            return
        text, self._held = self._held + text, ""
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._held = text[:-1], text[-1]
        if text:
            yield Text(paired(text))

    def end(self) -> Iterator[Text]:
        if self._held:
            self._held = ""
            yield Text("\ufffd")


def paired(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@dataclass(slots=True)
class PartialCall:
    """A call that is still being written."""

    id: str = ""
    name: str = ""
    arguments: str = ""


def finished_call(call: PartialCall, number: int, reason: DoneReason, host: str) -> ToolCallEvent:
    """The call as a whole, or an error that says what is wrong with it."""
    name, arguments = call.name, paired(call.arguments).strip() or "{}"
    if not name:
        raise BrokenStreamError(f"{host} sent a tool call without a name", hint="ask again")
    try:
        value: Any = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        hint = "the answer was cut at its limit: raise max_tokens" if reason == "length" else "ask again"
        raise BrokenStreamError(
            f"the arguments of the call of {shown(name)} are no JSON object: {shown(arguments)}", hint=hint
        )
    return ToolCallEvent(call.id or f"call_{number}", name, arguments)


def ending(
    calls: Iterable[PartialCall], reason: DoneReason, usage: Usage | None, host: str
) -> Iterator[ToolCallEvent | Usage | Done]:
    """Usage comes before the calls are checked: it was paid for, whatever they are."""
    finished: list[ToolCallEvent] = []
    wrong: BrokenStreamError | None = None
    try:
        finished = [finished_call(call, number, reason, host) for number, call in enumerate(calls)]
    except BrokenStreamError as error:
        wrong = error
    yield from finished
    if usage is not None:
        yield usage
    if wrong is not None:
        raise wrong
    yield Done("tool_calls" if finished and reason in ("stop", "other") else reason)


def complaint_of(body: bytes) -> str:
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
