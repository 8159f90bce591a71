"""The HTTP client: what it sends, when it asks again, how it lets go. Over a real connection."""

import asyncio
import gzip
import json
import os
import socket
import subprocess
import sys
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina import assemble
from lamina.errors import BrokenStreamError, ConnectError, RateLimitError, SettingsError
from lamina.providers.http import Client, Deadlines, Retries, check_address, parse_retry_after
from lamina.providers.reader import read_error_text
from lamina.types import Key
from tests.providers.serving import (
    FORMS,
    KEY,
    OPENAI,
    PATIENT,
    QUICK,
    TEXT,
    Connection,
    Form,
    frame,
    head,
    provider,
    serving,
    sized,
    text_of,
)

CONTEXT = assemble(user="你好", budget=1_000)


async def all_of(asked: Any, **options: Any) -> list[Any]:
    return [event async for event in asked.stream(CONTEXT, **options)]


async def busy(connection: Connection) -> None:
    await connection.send(sized("429 Too Many Requests", b"{}", "Retry-After: 3"))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
async def test_a_reader_that_is_cancelled_lets_go_of_the_connection(form: Form) -> None:
    came = asyncio.Event()

    async def stall(connection: Connection) -> None:
        await connection.send(head(), *form.frames[:5])
        await connection.gone()

    async with serving(stall) as served:
        asked = provider(form, served)

        async def read() -> None:
            async for _ in asked.stream(CONTEXT):
                came.set()

        task = asyncio.create_task(read())
        await came.wait()
        assert served.open == 1
        task.cancel()
        async with asyncio.timeout(1):
            await served.quiet.wait()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asked.close()


@pytest.mark.parametrize("where", ["before the headers", "after the headers"])
async def test_a_reader_that_is_cancelled_before_the_first_byte_lets_go_too(where: str) -> None:
    there = asyncio.Event()

    async def stall(connection: Connection) -> None:
        await connection.send(*[head()] if where == "after the headers" else [])
        there.set()
        await connection.gone()

    async with serving(stall) as served:
        asked = provider(OPENAI, served)
        task = asyncio.create_task(all_of(asked))
        await there.wait()
        task.cancel()
        async with asyncio.timeout(1):
            await served.quiet.wait()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asked.close()


async def test_a_reader_that_leaves_lets_go_of_the_connection() -> None:
    async def stall(connection: Connection) -> None:
        await connection.send(head(), *OPENAI.frames[:3])
        await connection.gone()

    async with serving(stall) as served:
        asked = provider(OPENAI, served)
        async with aclosing(asked.stream(CONTEXT)) as streamed:
            async for _ in streamed:
                break
        async with asyncio.timeout(1):
            await served.quiet.wait()
        await asked.close()


async def test_a_cancelled_wait_between_two_attempts_asks_no_more() -> None:
    async with serving(busy) as served:
        patient = {"retries": Retries(times=5, backoff=1000, most=10_000), "deadlines": Deadlines(first_byte=9e5)}
        asked = provider(OPENAI, served, **patient)
        task = asyncio.create_task(all_of(asked))
        while not served.requests or served.open:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asked.close()
    assert served.connections == 1


async def test_the_connection_is_used_again_after_a_whole_answer() -> None:
    async def keep(connection: Connection) -> None:
        body = b"".join(OPENAI.frames)
        reply = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        await connection.send(reply + body)
        for _ in range(2):
            await connection.request()
            await connection.send(reply + body)
        await connection.gone()

    async with serving(keep) as served:
        asked = provider(OPENAI, served)
        for _ in range(3):
            assert text_of(await all_of(asked)) == TEXT
        await asked.close()
        assert served.connections == 1
        async with asyncio.timeout(10):
            await served.quiet.wait()  # close lets go of what is kept open


async def test_many_at_once_each_get_their_own_answer() -> None:
    async with serving(OPENAI.good(True)) as served:
        asked = provider(OPENAI, served)
        answers = await asyncio.gather(*(all_of(asked) for _ in range(64)))
        await asked.close()
    assert [text_of(answer) for answer in answers] == [TEXT] * 64


def test_one_provider_may_serve_one_event_loop_after_another() -> None:
    async def once(asked: Any) -> str:
        async with serving(OPENAI.good(True)) as served:
            asked._client._base = served.url
            answer = text_of(await all_of(asked))
            await asked.close()
            return answer

    asked = OPENAI.make("http://127.0.0.1:1/v1", deadlines=PATIENT)
    assert [asyncio.run(once(asked)) for _ in range(2)] == [TEXT, TEXT]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
async def test_what_is_sent_starts_with_the_proven_payload(form: Form) -> None:
    async with serving(form.good(True)) as served:
        asked = provider(form, served, extra={"temperature": 0, "stream_options": None})
        await all_of(asked, max_tokens=77)
        await asked.close()
    (request,) = served.requests
    body: dict[str, Any] = json.loads(request.body)
    assert (body["model"], body["max_tokens"], body["stream"], body["temperature"]) == ("m", 77, True, 0)
    assert "stream_options" not in body
    if form is OPENAI:
        assert request.path == "/v1/chat/completions"
        assert request.body.startswith(CONTEXT.payload[:-1])
        assert request.headers["authorization"] == f"Bearer {KEY}"
    else:
        assert request.path == "/v1/messages"
        assert (request.headers["x-api-key"], request.headers["anthropic-version"]) == (KEY, "2023-06-01")
        assert "authorization" not in request.headers
    assert request.headers["accept-encoding"] == "identity"


def test_what_is_added_cannot_replace_the_context() -> None:
    asked = OPENAI.make("http://127.0.0.1/v1", extra={"messages": []})
    with pytest.raises(SettingsError, match="part of the context"):
        asked.stream(CONTEXT)


async def test_usage_is_asked_for_and_a_limit_only_where_there_is_one() -> None:
    async with serving(OPENAI.good(True)) as served:
        asked = provider(OPENAI, served)
        await all_of(asked)
        await asked.close()
    body = served.requests[0].body
    assert b'"stream_options": {"include_usage": true}' in body
    assert b"max_tokens" not in body


async def test_a_body_of_megabytes_is_sent_without_a_warning() -> None:
    context = assemble(user="x" * 3_000_000, budget=10_000_000)
    async with serving(OPENAI.good(True)) as served:
        asked = provider(OPENAI, served)
        assert text_of([event async for event in asked.stream(context)]) == TEXT
        await asked.close()
    assert len(served.requests[0].body) > 3_000_000


async def test_a_redirect_does_not_carry_the_key_elsewhere() -> None:
    async with serving(OPENAI.good(True)) as other:

        async def lead(connection: Connection) -> None:
            await connection.send(sized("307 Temporary Redirect", b"", f"Location: {other.url}/chat/completions"))

        async with serving(lead) as served:
            asked = provider(OPENAI, served)
            with pytest.raises(Exception, match="redirects to"):
                await all_of(asked)
            await asked.close()
    assert other.connections == 0


def test_proxies_and_netrc_of_the_environment_are_not_used() -> None:
    """In a process of its own, since an environment is of a process. The planted bug: a client that trusts it."""
    code = """
import asyncio, sys
from tests.providers.serving import OPENAI, PATIENT, QUICK, serving, text_of
from tests.providers.test_http import all_of

async def main():
    async with serving(OPENAI.good(True)) as served:
        asked = OPENAI.make(served.url, deadlines=PATIENT, retries=QUICK, trust_environment=sys.argv[1] == "trust")
        print(len(text_of(await all_of(asked))))
        await asked.close()
asyncio.run(main())
"""
    environ = {**os.environ, "HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9", "NO_PROXY": ""}

    def run(mode: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([sys.executable, "-c", code, mode], env=environ, capture_output=True, text=True)

    assert run("not").stdout.strip() == str(len(TEXT))
    assert "ConnectError" in run("trust").stderr


async def test_the_size_of_an_answer_is_bounded() -> None:
    async def flood(connection: Connection) -> None:
        await connection.send(head())
        piece = b": nothing at all, again and again\n\n" * 30_000
        while True:
            await connection.send(piece)

    async with serving(flood) as served:
        asked = provider(OPENAI, served)
        with pytest.raises(BrokenStreamError, match="more than 67108864 bytes"):
            await all_of(asked)
        await asked.close()


async def test_a_small_packed_answer_that_is_huge_unpacked_is_bounded() -> None:
    bomb = gzip.compress(b" " * 200_000_000, 9)

    async def explode(connection: Connection) -> None:
        await connection.send(sized("200 OK", bomb, "Content-Encoding: gzip"))

    async with serving(explode) as served:
        asked = provider(OPENAI, served, stream=False)
        with pytest.raises(BrokenStreamError, match="more than"):
            await all_of(asked)
        await asked.close()


async def test_retry_after_is_waited_for_and_the_wait_counts_against_the_deadline() -> None:
    async with serving(busy) as served:
        asked = provider(OPENAI, served, deadlines=Deadlines(first_byte=2))
        with pytest.raises(RateLimitError) as raised:
            await all_of(asked)
        await asked.close()
    assert raised.value.retry_after == 3
    assert served.connections == 1, "a wait that cannot end in time is not begun"


async def test_a_retry_after_that_is_longer_than_the_most_is_reported_and_not_waited_for() -> None:
    async with serving(busy) as served:
        patient = {"retries": Retries(most=1), "deadlines": Deadlines(first_byte=9e5)}
        asked = provider(OPENAI, served, **patient)
        with pytest.raises(RateLimitError, match="wait 3 seconds"):
            await all_of(asked)
        await asked.close()
    assert served.connections == 1


def test_waits_grow_have_chance_in_them_and_are_capped() -> None:
    retries = Retries(backoff=1, most=10, chance=lambda: 0.0)
    assert [retries.choose_wait(n, None) for n in range(6)] == [1, 2, 4, 8, 10, 10]
    assert Retries(backoff=1, chance=lambda: 1.0).choose_wait(0, None) == 0.5
    assert retries.choose_wait(0, 7.5) == 7.5


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("3", 3), (" 1.5 ", 1.5), ("0", 0), ("", None), ("soon", None), ("-5", None), ("٣", None), ("9" * 400, None),
     ("Wed, 21 Oct 2015 07:28:00 GMT", 0), ("1e5", None)],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(value: str, seconds: float | None) -> None:
    assert parse_retry_after(value) == seconds


@given(st.text() | st.from_regex(r"Wed, [0-9]{1,20} Oct [0-9]{1,20} [0-9]{1,9}:28:00 [+-][0-9]{1,20}"))
def test_retry_after_never_fails(value: str) -> None:
    seconds = parse_retry_after(value)
    assert seconds is None or seconds >= 0


def test_retry_after_counts_the_seconds_to_a_date() -> None:
    later = parse_retry_after(format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True))
    assert later is not None
    assert 90 < later <= 100


@pytest.mark.parametrize(
    "url",
    [
        "",
        "api.openai.com",
        "ftp://x/v1",
        "http://",
        "http://u:sk-1@h/v1",
        "http://h/v1?key=sk-1",
        "http://h:x/",
        "http://[x",
        "http://h:0/",
    ],
)
def test_an_address_that_cannot_be_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SettingsError) as raised:
        check_address(url)
    assert "sk-1" not in str(raised.value)


@pytest.mark.parametrize("wrong", [{"connect": 0}, {"first_byte": -1}, {"idle": float("nan")}, {"overall": 0}])
def test_a_deadline_is_above_zero(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingsError):
        Deadlines(**wrong)


@pytest.mark.parametrize(
    ("body", "words"),
    [(b'{"error": {"message": "m", "code": "c"}}', "m, c"), (b'{"error": "m"}', "m"), (b"plain", "plain"), (b"", ""),
     (b'{"detail": 5}', '{"detail": 5}'), (b"[1]", "[1]"), (b"\xff", "\ufffd"), (b'{"message": "m"}', "m")],
)  # fmt: skip
def test_a_complaint_is_found_in_any_form(body: bytes, words: str) -> None:
    assert read_error_text(body) == words


async def test_the_connect_deadline_holds() -> None:
    """A listener that never accepts: its queue is full, so the next connection waits."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(8)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        client = Client(
            f"http://127.0.0.1:{address[1]}", key=Key(KEY), deadlines=Deadlines(connect=0.2), retries=Retries(times=0)
        )
        with pytest.raises(ConnectError, match=r"within 0\.2 seconds"):
            async with client.post("/", b"{}", "application/json"):
                pass
        await client.close()
        for filler in fillers:
            filler.close()


async def test_an_error_in_the_middle_of_a_stream_never_shows_the_key() -> None:
    async def leak(connection: Connection) -> None:
        await connection.send(head(), frame({"error": {"message": "x" * 290 + KEY}}))

    async with serving(leak) as served:
        asked = provider(OPENAI, served, retries=QUICK)
        with pytest.raises(Exception, match="broke off") as raised:
            await all_of(asked)
        await asked.close()
    assert KEY[:6] not in str(raised.value)
