"""R11: what a provider can do wrong, over a real connection, in both forms, as a stream and whole.

Each fault must end in time, in the right class of error or a whole answer, with what had come kept, asked as often as
it may be, and with the connection let go. The check is a function; at the end it must find each planted bug.
"""

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from lamina import assemble
from lamina.errors import (
    BrokenStreamError,
    ConnectError,
    LaminaError,
    ProviderError,
    RateLimitError,
    RejectedError,
    StalledError,
)
from lamina.ports import Provider
from lamina.providers.http import Deadlines
from lamina.types import Context, Event, Text
from tests.providers.serving import (
    FORMS,
    GOOD,
    KEY,
    OPENAI,
    TEXT,
    Connection,
    Form,
    Play,
    frame,
    head,
    order_problems,
    provider,
    serving,
    sized,
    text_of,
)

CONTEXT = assemble(user="你好", budget=1_000)
SHORT = 0.25
FIRST = Deadlines(connect=30, first_byte=SHORT, idle=30)
IDLE = Deadlines(connect=30, first_byte=30, idle=SHORT)
OVERALL = Deadlines(connect=30, first_byte=30, idle=30, overall=1.5)
LIMIT = 60.0
"""Past this a test says that it hangs."""

Player = Callable[[Form, bool], Play]
Error = type[ProviderError]


@dataclass(frozen=True)
class Fault:
    """`kept` is how much of the text a reader of a stream has at the end: none, some or all."""

    name: str
    plays: tuple[Player, ...]
    error: Error | None
    kept: str = "none"
    asked: int = 1
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    read: bool = True
    says: str = ""


FAULTS: list[Fault] = []


def fault(error: Error | None, kept: str = "none", **more: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a play that takes the connection, the form and whether a stream was asked for."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def player(form: Form, stream: bool) -> Play:
            return lambda connection: function(connection, form, stream)

        then = more.pop("then", ())
        FAULTS.append(Fault(function.__name__, (player, *then), error, kept, **more))
        return function

    return register


def good(form: Form, stream: bool) -> Play:
    return form.good(stream)


def refusing(status: str, body: bytes = b'{"error": {"message": "so it is"}}', *headers: str) -> Player:
    def player(form: Form, stream: bool) -> Play:
        return lambda connection: connection.send(sized(status, body, *headers))

    return player


def simple(
    name: str, status: str, error: Error | None, *headers: str, body: bytes = b"{}", then: tuple[Player, ...] = (),
    **more: Any,
) -> None:  # fmt: skip
    FAULTS.append(Fault(name, (refusing(status, body, *headers), *then), error, **more))


# Connections


@fault(ConnectError, asked=3, read=False)
async def hangs_up_at_once(connection: Connection, form: Form, stream: bool) -> None:
    pass


@fault(ConnectError, asked=3)
async def hangs_up_after_the_request(connection: Connection, form: Form, stream: bool) -> None:
    pass


@fault(ConnectError, asked=3)
async def resets_the_connection(connection: Connection, form: Form, stream: bool) -> None:
    connection.reset()


@fault(None, "all", asked=2, then=(good,))
async def hangs_up_once(connection: Connection, form: Form, stream: bool) -> None:
    pass


@fault(ConnectError, asked=3)
async def ends_in_the_status_line(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(b"HTTP/1.1 20")


@fault(ConnectError, asked=3)
async def ends_in_the_headers(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/ev")


@fault(BrokenStreamError)
async def speaks_no_http(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")


@fault(BrokenStreamError)
async def sends_a_huge_header(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(head(form.kind(stream), f"X-Long: {'x' * 100_000}"))


# Statuses

simple("refuses_the_request", "400 Bad Request", RejectedError, says="answered 400")
simple(
    "refuses_the_key", "401 Unauthorized", RejectedError, body=json.dumps({"error": f"bad key {KEY}"}).encode(),
    says="check the key",
)  # fmt: skip
simple("has_no_money", "402 Payment Required", RejectedError, says="balance")
simple("knows_no_such_model", "404 Not Found", RejectedError, body=b"<html>nothing here", says="/v1")
simple("finds_it_too_large", "413 Payload Too Large", RejectedError, says="budget")
simple("is_busy_for_good", "429 Too Many Requests", RateLimitError, asked=3)
simple("is_busy_once", "429 Too Many Requests", None, "Retry-After: 0", then=(good,), kept="all", asked=2)
simple("is_busy_for_hours", "429 Too Many Requests", RateLimitError, "Retry-After: 9999", says="wait 9999 seconds")
simple(
    "is_busy_until_a_day", "429 Too Many Requests", RateLimitError, "Retry-After: Wed, 21 Oct 2099 07:28:00 GMT",
    says="wait",
)  # fmt: skip
simple(
    "is_busy_until_a_day_gone_by", "503 Unavailable", None, "Retry-After: Wed, 21 Oct 2015 07:28:00 GMT", then=(good,),
    kept="all", asked=2,
)  # fmt: skip
simple("is_busy_for_who_knows", "429 Too Many", RateLimitError, "Retry-After: soon", asked=3)
simple(
    "has_no_quota", "429 Too Many Requests", RejectedError,
    body=b'{"error": {"message": "no quota", "code": "insufficient_quota"}}',
)  # fmt: skip
simple("fails_for_good", "500 Internal Server Error", RejectedError, asked=3)
simple("fails_twice", "502 Bad Gateway", None, then=(refusing("500 Oops"), good), kept="all", asked=3)
simple("is_overloaded", "529 Overloaded", RateLimitError, asked=3)
simple("leads_elsewhere", "302 Found", RejectedError, "Location: http://elsewhere.example/v1", says="elsewhere")
simple("sends_no_content", "204 No Content", BrokenStreamError)


@fault(RejectedError, says="400")
async def complains_without_end(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(head("400 Bad Request", "text/plain"))
    while True:
        await connection.send(b"no " * 10_000)


@fault(RejectedError, options={"deadlines": IDLE}, says="400")
async def stalls_in_a_complaint(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(head("400 Bad Request", "text/plain", "Content-Length: 100") + b"no")
    await connection.gone()


# Time


@fault(StalledError, options={"deadlines": FIRST}, says="provider.no_first_byte")
async def stalls_before_the_headers(connection: Connection, form: Form, stream: bool) -> None:
    await connection.gone()


@fault(StalledError, options={"deadlines": FIRST}, says="provider.no_first_byte")
async def stalls_after_the_headers(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(head(kind=form.kind(stream)))
    await connection.gone()


@fault(StalledError, "some", options={"deadlines": IDLE}, says="provider.stalled")
async def stalls_in_the_middle(connection: Connection, form: Form, stream: bool) -> None:
    body = form.body(stream)
    await connection.send(head(kind=form.kind(stream)), body[: body.index("你".encode()) + 100 if stream else 20])
    await connection.gone()


@fault(StalledError, "some", options={"deadlines": IDLE}, says="provider.stalled")
async def stalls_inside_a_letter(connection: Connection, form: Form, stream: bool) -> None:
    body = form.body(stream)
    end = body.index("你".encode()) + 1 if stream else 20
    await connection.send(head(kind=form.kind(stream)), body[:end])
    await connection.gone()


@fault(StalledError, options={"deadlines": OVERALL}, says="provider.overall_deadline")
async def keeps_alive_without_end(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(head(kind=form.kind(stream)))
    while True:
        await connection.send(b": still there\n\n" if stream else b"          ")
        await asyncio.sleep(0.01)


@fault(StalledError, "endless", options={"deadlines": OVERALL}, says="provider.overall_deadline")
async def talks_without_end(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(head(kind=form.kind(stream)), *(form.frames[:2] if stream else ()))
    while True:
        await connection.send(form.text_frame("on ") if stream else b"[")
        await asyncio.sleep(0.01)


@fault(None, "all")
async def drips_byte_by_byte(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(head(kind=form.kind(stream)), *(bytes([byte]) for byte in form.body(stream)))


@fault(None, "all")
async def does_not_hang_up_after_the_end(connection: Connection, form: Form, stream: bool) -> None:
    body = form.body(stream)
    more = () if stream else (f"Content-Length: {len(body)}",)
    await connection.send(head("200 OK", form.kind(stream), *more), body)
    await connection.gone()


@fault(None, "all", options={"deadlines": IDLE})
async def does_not_hang_up_after_the_last_word(connection: Connection, form: Form, stream: bool) -> None:
    body = b"".join(form.frames[:-1]) if stream else form.whole
    more = () if stream else (f"Content-Length: {len(body)}",)
    await connection.send(head("200 OK", form.kind(stream), *more), body)
    await connection.gone()


@fault(RejectedError, says="provider.redirect")
async def leads_to_no_address(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(b"HTTP/1.1 308 Moved\r\nLocation: http://[\xff\r\nContent-Length: 0\r\n\r\n")


# Cuts


@fault(BrokenStreamError, asked=3)
async def cuts_before_the_first_byte(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(head("200 OK", form.kind(stream), "Content-Length: 1000"))


@fault(BrokenStreamError, "some")
async def cuts_short_of_its_length(connection: Connection, form: Form, stream: bool) -> None:
    body = form.body(stream)
    length = f"Content-Length: {len(body)}"
    await connection.send(head("200 OK", form.kind(stream), length), body[: len(body) // 2])


@fault(BrokenStreamError, "some")
async def cuts_inside_a_letter(connection: Connection, form: Form, stream: bool) -> None:
    body = form.body(stream)
    await connection.send(head(kind=form.kind(stream)), body[: body.index("🙂".encode()) + 2 if stream else 30])


@fault(BrokenStreamError, "some")
async def cuts_between_two_events(connection: Connection, form: Form, stream: bool) -> None:
    body = form.body(stream)
    frames = form.frames[:4] if stream else (body[:30],)
    await connection.send(head(kind=form.kind(stream)), *frames)


@fault(BrokenStreamError, "some")
async def cuts_inside_a_chunk(connection: Connection, form: Form, stream: bool) -> None:
    piece = b"".join(form.frames[:4]) if stream else form.whole[:30]
    await connection.send(head("200 OK", form.kind(stream), "Transfer-Encoding: chunked"), b"FFFF\r\n" + piece)


@fault(BrokenStreamError, "some")
async def sends_a_chunk_of_no_size(connection: Connection, form: Form, stream: bool) -> None:
    piece = b"".join(form.frames[:4]) if stream else form.whole[:30]
    await connection.send(head("200 OK", form.kind(stream), "Transfer-Encoding: chunked"))
    await connection.send(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
    await connection.send(b"no size\r\n")
    await connection.gone()


@fault(BrokenStreamError)
async def cuts_inside_a_call(connection: Connection, form: Form, stream: bool) -> None:
    body = form.calls(stream, [("a", "find", '{"what": "everything there is"}')])
    await connection.send(head(kind=form.kind(stream)), body[: len(body) * 2 // 3])


@fault(None, "all")
async def cuts_after_the_last_word(connection: Connection, form: Form, stream: bool) -> None:
    frames = form.frames[:-1] if stream else (form.whole,)
    await connection.send(head(kind=form.kind(stream)), *frames)


# Garbage


@fault(BrokenStreamError, "some")
async def sends_garbage_in_the_middle(connection: Connection, form: Form, stream: bool) -> None:
    garbage = frame("<html>garbage") if stream else b"<html>garbage"
    await connection.send(head(kind=form.kind(stream)), *(form.frames[:4] if stream else ()), garbage)
    await connection.send(*form.frames[4:] if stream else ())


@fault(BrokenStreamError)
async def sends_noise(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(head(kind=form.kind(stream)), b"data: " + bytes(range(256)) * 20 + b"\n\n")


@fault(BrokenStreamError, says="text/html")
async def sends_a_page(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(sized("200 OK", b"<html>Welcome!", kind="text/html"))


@fault(BrokenStreamError)
async def sends_another_object(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(sized("200 OK", b'{"hello": 1}'))


@fault(BrokenStreamError)
async def sends_a_list(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(head(kind=form.kind(stream)), frame("[1, 2]") if stream else b"[1, 2]")


@fault(BrokenStreamError)
async def sends_wrong_types(connection: Connection, form: Form, stream: bool) -> None:
    said: dict[str, Any] = {"type": "message", "choices": "x", "content": 5, "stop_reason": ["a"]}
    if stream:
        said = {"type": "content_block_delta", "index": {}, "choices": [7]}
    await connection.send(head(kind=form.kind(stream)), frame(said) if stream else json.dumps(said).encode())


@fault(BrokenStreamError)
async def sends_text_that_is_a_number(connection: Connection, form: Form, stream: bool) -> None:
    body = form.body(stream).replace(b'"Hello "', b"12").replace(json.dumps(TEXT).encode(), b"12")
    await connection.send(head(kind=form.kind(stream)), body)


@fault(BrokenStreamError)
async def sends_deep_brackets(connection: Connection, form: Form, stream: bool) -> None:
    deep = "[" * 100_000
    await connection.send(head(kind=form.kind(stream)), frame(deep) if stream else deep.encode())


@fault(BrokenStreamError)
async def sends_a_number_of_many_digits(connection: Connection, form: Form, stream: bool) -> None:
    digits = "9" * 50_000
    await connection.send(head(kind=form.kind(stream)), frame(digits) if stream else digits.encode())


@fault(BrokenStreamError, "some")
async def sends_a_huge_line(connection: Connection, form: Form, stream: bool) -> None:
    frames = form.frames[:4] if stream else (b"[",)
    await connection.send(head(kind=form.kind(stream)), *frames, b"data: " + b"x" * 5_000_000)


@fault(BrokenStreamError, says="provider.bad_arguments")
async def writes_broken_arguments(connection: Connection, form: Form, stream: bool) -> None:
    body = form.calls(stream, [("a", "find", '{"what": '), ("b", "find", "{}")])
    await connection.send(head(kind=form.kind(stream)), body)


@fault(BrokenStreamError, says="provider.bad_arguments")
async def writes_arguments_that_are_a_list(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(head(kind=form.kind(stream)), form.calls(stream, [("a", "find", "[1]")]))


@fault(BrokenStreamError, says="provider.call_without_name")
async def calls_nothing(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(head(kind=form.kind(stream)), form.calls(stream, [("a", "", "{}")]))


@fault(RejectedError, "some", says="provider.broke_off")
async def reports_an_error_in_the_middle(connection: Connection, form: Form, stream: bool) -> None:
    error = form.error("server_error", f"lost {KEY}")
    frames = (*form.frames[:4], frame(error)) if stream else (json.dumps(error).encode(),)
    await connection.send(head(kind=form.kind(stream)), *frames)


@fault(RateLimitError, "some", says="provider.broke_off")
async def is_overloaded_in_the_middle(connection: Connection, form: Form, stream: bool) -> None:
    error = form.error("overloaded_error", "too many")
    frames = (*form.frames[:4], frame(error)) if stream else (json.dumps(error).encode(),)
    await connection.send(head(kind=form.kind(stream)), *frames)


@fault(BrokenStreamError, says="provider.answer_cut")
async def says_nothing_at_all(connection: Connection, form: Form, stream: bool) -> None:
    body = b": hello\n\n" if stream else b'{"choices": [], "type": "message"}'
    await connection.send(head(kind=form.kind(stream)), body)


# Odd, and yet whole answers


@fault(None, "all")
async def packs_its_answer(connection: Connection, form: Form, stream: bool) -> None:
    packed = gzip.compress(form.body(stream))
    await connection.send(head("200 OK", form.kind(stream), "Content-Encoding: gzip"), packed[:20], packed[20:])


@fault(BrokenStreamError, says="gzip")
async def only_says_that_it_packs(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(head("200 OK", form.kind(stream), "Content-Encoding: gzip"), form.body(stream))


@fault(BrokenStreamError, says="provider.unknown_encoding")
async def packs_in_a_way_of_its_own(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(head("200 OK", form.kind(stream), "Content-Encoding: br"), b"abc")


@fault(None, "all")
async def speaks_old_http(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(head(kind=form.kind(stream), version="HTTP/1.0"), form.body(stream))


@fault(None, "all")
async def answers_in_the_other_way(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(head(kind=form.kind(not stream)), form.body(not stream))


@fault(None, "all")
async def does_not_say_what_it_sends(connection: Connection, form: Form, stream: bool) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", form.body(stream))


@fault(None, "all")
async def ends_lines_in_another_way_and_comments(connection: Connection, form: Form, stream: bool) -> None:
    body = form.body(stream)
    if stream:
        body = b"\xef\xbb\xbf: hi\r\n\r\n" + body.replace(b"\n", b"\r\n: keep-alive\r\n", 3).replace(b"\n\n", b"\r\r")
    await connection.send(head(kind=form.kind(stream)), body)


@dataclass
class Outcome:
    events: list[Event]
    error: BaseException | None
    asked: int


async def play(fault: Fault, form: Form, stream: bool, limit: float, plant: Any = None) -> Outcome:
    """The fault, for real. `plant` wraps the provider in a bug."""
    plays = [player(form, stream) for player in fault.plays]
    async with serving(*plays, read=fault.read) as served:
        asked = provider(form, served, stream=stream, **fault.options)
        outcome = await read(plant(asked) if plant else asked, limit)
        async with asyncio.timeout(limit):
            await served.quiet.wait()  # the connection is let go, without anybody closing the provider
        await asked.close()
    return Outcome(outcome.events, outcome.error, served.connections)


async def read(asked: Any, limit: float, context: Context = CONTEXT) -> Outcome:
    events: list[Event] = []
    try:
        async with asyncio.timeout(limit):
            async for event in asked.stream(context):
                events.append(event)
    except Exception as error:  # whatever it is: the check says whether it may be
        return Outcome(events, error, 0)
    return Outcome(events, None, 0)


def problems(fault: Fault, stream: bool, outcome: Outcome) -> list[str]:
    """Why this was not the right end."""
    error, text = outcome.error, text_of(outcome.events)
    found = order_problems(outcome.events, whole=error is None)
    if type(error) is not (fault.error or type(None)):
        found.append(f"expected {fault.error}, got {error!r}")
    words = f"{error.code} {error}" if isinstance(error, LaminaError) else str(error)
    if error is not None and (KEY in words or KEY in repr(error) or fault.says not in words):
        found.append(f"the wrong words: {error}")
    if outcome.asked != fault.asked:
        found.append(f"asked {outcome.asked} times instead of {fault.asked}")
    if fault.kept == "endless":
        if stream and "on on " not in text:
            found.append(f"kept {text!r}")
    elif (
        not TEXT.startswith(text)
        or (fault.kept == "all" and text != TEXT)
        or (stream and (fault.kept == "none") != (text == ""))
    ):
        found.append(f"kept {text!r}")
    return found


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_R11_a_fault_ends_in_time_and_in_its_error(fault: Fault, form: Form, stream: bool) -> None:
    outcome = await play(fault, form, stream, LIMIT)
    assert problems(fault, stream, outcome) == []
    if fault.error is None and fault.name != "cuts_after_the_last_word":
        assert tuple(outcome.events[-2:]) == GOOD


def test_R11_there_are_at_least_forty() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 40


class Planted:
    def __init__(self, asked: Provider) -> None:
        self._asked = asked


class AsksAgainTooLate(Planted):
    """It begins anew although a byte had come: the reader gets the text twice, and pays twice."""

    async def stream(self, context: Context) -> AsyncGenerator[Event]:
        try:
            async for event in self._asked.stream(context):
                yield event
        except BrokenStreamError:
            async for event in self._asked.stream(context):
                yield event


class HidesErrors(Planted):
    async def stream(self, context: Context) -> AsyncGenerator[Event]:
        try:
            async for event in self._asked.stream(context):
                yield event
        except ProviderError:
            return


class LosesWhatCame(Planted):
    """It gathers the answer before it passes anything on."""

    async def stream(self, context: Context) -> AsyncGenerator[Event]:
        events = [event async for event in self._asked.stream(context)]
        for event in events:
            yield event


class Crashes(Planted):
    async def stream(self, context: Context) -> AsyncGenerator[Event]:
        try:
            async for event in self._asked.stream(context):
                yield event
        except ProviderError:
            raise KeyError("choices") from None


class ShowsTheKey(Planted):
    async def stream(self, context: Context) -> AsyncGenerator[Event]:
        try:
            async for event in self._asked.stream(context):
                yield event
        except RejectedError as error:
            raise RejectedError(f"{error} {KEY}") from None


class DoublesText(Planted):
    async def stream(self, context: Context) -> AsyncGenerator[Event]:
        async for event in self._asked.stream(context):
            yield event
            if isinstance(event, Text):
                yield event


PLANTED = [
    (AsksAgainTooLate, "cuts_between_two_events"),
    (HidesErrors, "cuts_between_two_events"),
    (LosesWhatCame, "cuts_between_two_events"),
    (Crashes, "cuts_inside_a_letter"),
    (ShowsTheKey, "refuses_the_key"),
    (DoublesText, "drips_byte_by_byte"),
]


@pytest.mark.planted(
    "a client that asks again too late, hides errors, loses or doubles text, crashes, or shows its key"
)
@pytest.mark.parametrize(("plant", "name"), PLANTED)
async def test_R11_the_check_finds_each_planted_bug(plant: Any, name: str) -> None:
    fault = next(fault for fault in FAULTS if fault.name == name)
    assert problems(fault, True, await play(fault, OPENAI, True, LIMIT)) == []
    assert problems(fault, True, await play(fault, OPENAI, True, LIMIT, plant)) != []


@pytest.mark.planted("a client without deadlines")
async def test_R11_the_check_finds_a_client_without_deadlines() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "stalls_in_the_middle")
    deaf = Fault(fault.name, fault.plays, fault.error, fault.kept, options={"deadlines": Deadlines(idle=10_000)})
    assert problems(fault, True, await play(deaf, OPENAI, True, 2 * SHORT)) != []


async def test_nobody_there() -> None:
    async with serving(OPENAI.good(True)) as served:
        pass
    for form in FORMS:
        asked = provider(form, served)
        outcome = await read(asked, LIMIT)
        await asked.close()
        assert isinstance(outcome.error, ConnectError)
        assert "127.0.0.1" in str(outcome.error)


async def test_a_server_that_speaks_no_tls_is_no_safe_connection() -> None:
    async with serving(OPENAI.good(True), read=False) as served:
        asked = OPENAI.make(served.url.replace("http:", "https:"))
        outcome = await read(asked, LIMIT)
        await asked.close()
    assert isinstance(outcome.error, ConnectError)
    assert "no safe connection" in str(outcome.error)
    assert not outcome.error.retryable
    assert served.connections == 1
