"""Providers behind an address, and the small HTTP client that they share: POST, deadlines, retries, limits.

A request is sent again only while no byte of an answer has come. A redirect is never followed, since it could carry the
key to another host; proxies and the environment are not trusted unless asked to. No error ever shows a key.
"""

import asyncio
import io
import os
import random
import ssl
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from lamina.errors import (
    BrokenStreamError,
    ConnectError,
    ProviderError,
    RateLimitError,
    RejectedError,
    SettingsError,
    StalledError,
    format_value,
)
from lamina.ports import Encode
from lamina.providers.reader import (
    ASK_AGAIN,
    CHECK_ADDRESS,
    CHECK_ENDPOINT,
    SEE_WORDS,
    WAIT_A_LITTLE,
    AnswerReader,
    build_body,
    check_context,
    parse_object,
    read_error_text,
)
from lamina.providers.sse import EventParser, ServerEvent
from lamina.text.messages import Phrase
from lamina.types import Context, Event, Grammar, Key

MAX_ANSWER_BYTES = 64 * 1024 * 1024
_MAX_ERROR_BYTES = 16 * 1024
_ERROR_SECONDS = 5.0
_DRAIN_SECONDS = 0.1
_PART_BYTES = 64 * 1024
_BUSY_STATUSES = (429, 503, 529)
_MAX_TAIL_SECONDS = 5.0
"""For what comes after the last word of the model: usage, and the mark of the end."""
_STREAM, _WHOLE = "text/event-stream", "application/json"
_VAGUE_TYPES = ("", "text/plain", "application/octet-stream")
ASK_LATER, CHECK_SERVER = "provider.hint_ask_later", "provider.hint_server"
_HINTS = {
    400: "provider.hint_bad_request",
    401: "provider.hint_key",
    402: "provider.hint_balance",
    403: "provider.hint_key_permissions",
    404: "provider.hint_model",
    413: "provider.hint_smaller_budget",
}


@dataclass(frozen=True, slots=True)
class Deadlines:
    """In seconds. `first_byte` is for all attempts together, the waits between them included."""

    connect: float = 10.0
    first_byte: float = 120.0
    idle: float = 60.0
    overall: float | None = None

    def __post_init__(self) -> None:
        limits = {"connect": self.connect, "first_byte": self.first_byte, "idle": self.idle}
        for name, value in (limits if self.overall is None else {**limits, "overall": self.overall}).items():
            if not value > 0:
                raise SettingsError("provider.bad_deadline", name=name, value=format_value(value))


@dataclass(frozen=True, slots=True)
class Retries:
    """How often to send a request again, and how many seconds to wait before: `backoff`, doubled each time, less up to
    half of it. A longer Retry-After of the provider is used instead, but not one longer than `most`.
    """

    times: int = 2
    backoff: float = 0.5
    most: float = 30.0
    chance: Callable[[], float] = field(default=random.random, repr=False)

    def choose_wait(self, attempt: int, retry_after: float | None) -> float:
        own = min(self.backoff * 2**attempt, self.most) * (1 - self.chance() / 2)
        return max(own, retry_after or 0.0)


class Client:
    """Requests to one base URL. `key_header` and `key_form` say how the key is sent: `Bearer {}`."""

    def __init__(
        self,
        base_url: str,
        *,
        key: Key | None = None,
        key_header: str = "Authorization",
        key_form: str = "Bearer {}",
        headers: Mapping[str, str] | None = None,
        deadlines: Deadlines | None = None,
        retries: Retries | None = None,
        trust_environment: bool = False,
    ) -> None:
        self._base = check_address(base_url)
        self._key, self._key_header, self._key_form = key, key_header, key_form
        self._headers = dict(headers or {})
        self.deadlines, self.retries = deadlines or Deadlines(), retries or Retries()
        self._trust = trust_environment
        self._session: tuple[asyncio.AbstractEventLoop, aiohttp.ClientSession] | None = None

    @property
    def host(self) -> str:
        return urlsplit(self._base).netloc

    @property
    def host_name(self) -> str:
        return urlsplit(self._base).hostname or ""

    @asynccontextmanager
    async def post(self, path: str, body: bytes, accept: str) -> AsyncGenerator["Answer"]:
        """An answer whose first byte has come. Leaving the block releases the connection."""
        answer = await self._post_with_retries(path, body, accept)
        try:
            yield answer
            await answer.finish()
        finally:
            answer.close()

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session[1], None
            await session.close()

    async def _post_with_retries(self, path: str, body: bytes, accept: str) -> "Answer":
        loop = asyncio.get_running_loop()
        start = loop.time()
        overall = self.deadlines.overall
        first = min(self.deadlines.first_byte, overall or self.deadlines.first_byte)
        until = None if overall is None else start + overall
        attempt = 0
        while True:
            try:
                async with asyncio.timeout_at(start + first):
                    return await self._attempt(path, body, accept, until)
            except TimeoutError:
                raise StalledError("provider.no_first_byte", host=self.host, seconds=first) from None
            except ProviderError as error:
                wait = self.retries.choose_wait(attempt, error.retry_after)
                in_time = loop.time() + wait < start + first and wait <= self.retries.most
                if not error.retryable or attempt >= self.retries.times or not in_time:
                    raise
            attempt += 1
            await asyncio.sleep(wait)

    async def _attempt(self, path: str, body: bytes, accept: str, until: float | None) -> "Answer":
        """Send the request once, and wait for the first byte of a good answer."""
        try:
            response = await self._get_session().post(
                self._base + path,
                data=io.BytesIO(body),  # aiohttp warns about large bytes
                headers=self._build_headers(accept),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, connect=self.deadlines.connect),
            )
        except aiohttp.ServerTimeoutError:
            seconds = self.deadlines.connect
            raise ConnectError("provider.no_connection", host=self.host, seconds=seconds, hint=CHECK_SERVER) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._explain_connection_error(error) from None
        answer = Answer(response, self.host, self.deadlines.idle, until)
        with ExitStack() as failed:
            failed.callback(answer.close)
            if not 200 <= response.status < 300:
                raise await self._read_refusal(answer)
            await answer.wait_for_first_byte()
            failed.pop_all()
        return answer

    def _build_headers(self, accept: str) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Accept": accept,
            "Accept-Encoding": "identity",
            "User-Agent": "lamina",
            **self._headers,
        }
        if self._key is not None:
            headers[self._key_header] = self._key_form.format(self._key.reveal())
        return headers

    def _get_session(self) -> aiohttp.ClientSession:
        """The session of this event loop; connections of a loop that has ended cannot be used."""
        loop = asyncio.get_running_loop()
        if self._session is None or self._session[0] is not loop or self._session[1].closed:
            if self._session is not None and self._session[1].connector is not None:
                self._session[1].detach()
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), auto_decompress=False, trust_env=self._trust,
                cookie_jar=aiohttp.DummyCookieJar(),
            )  # fmt: skip
            self._session = (loop, session)
        return self._session[1]

    def _explain_connection_error(self, error: Exception) -> ProviderError:
        host, why = self.host, format_value(self.hide_key(str(error)) or type(error).__name__, 200)
        if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
            return ConnectError("provider.no_safe_connection", host=host, why=why, retryable=False)
        if isinstance(error, aiohttp.InvalidURL):
            return ConnectError("provider.bad_host", host=host, retryable=False)
        if isinstance(error, aiohttp.ClientResponseError | ValueError):
            return BrokenStreamError("provider.not_http", host=host, why=why, hint=CHECK_ENDPOINT, retryable=False)
        if isinstance(error, aiohttp.ClientConnectorError):
            reason = self.hide_key(_explain_os_error(error.os_error))
            code = "provider.unreachable_because" if reason else "provider.unreachable"
            return ConnectError(code, host=host, why=format_value(reason, 200), hint=CHECK_SERVER)
        return ConnectError("provider.hung_up", host=host, why=why, hint=ASK_AGAIN)

    async def _read_refusal(self, answer: "Answer") -> ProviderError:
        """The error for a status other than 200."""
        code, host = answer.status, self.host
        if 300 <= code < 400:
            target = format_value(answer.header("Location").partition("?")[0])
            return RejectedError("provider.redirect", host=host, status=code, target=target, provider_status=code)
        words = self.hide_key(read_error_text(await answer.read_error_body()))
        after = parse_retry_after(answer.header("Retry-After"))
        values: dict[str, Any] = {
            "host": host,
            "status": code,
            "words": format_value(words, 300),
            "provider_status": code,
        }
        if code in _BUSY_STATUSES and "insufficient_quota" not in words:
            return RateLimitError("provider.answered", **values, hint=hint_to_wait(after), retry_after=after)
        hint = _HINTS.get(code, ASK_LATER if code >= 500 else SEE_WORDS)
        if code in (401, 403) and self._key is None:
            hint = "provider.hint_no_key"
        retryable = code >= 500 or code == 408
        return RejectedError("provider.answered", **values, hint=hint, retryable=retryable, retry_after=after)

    def hide_key(self, text: str) -> str:
        """The text of a provider, without the key that some repeat."""
        return text.replace(self._key.reveal(), "…") if self._key is not None else text


class Answer:
    """A provider's answer as it arrives."""

    def __init__(self, response: aiohttp.ClientResponse, host: str, idle: float, until: float | None) -> None:
        self._response, self.host = response, host
        self._idle, self._until = idle, until
        self._read = 0
        self._first: bytes | None = None
        encoding = self.header("Content-Encoding").strip().lower()
        self._inflate = zlib.decompressobj(47) if encoding in ("gzip", "deflate") else None
        self._encoding = encoding
        self._wake_on_close()

    def _wake_on_close(self) -> None:
        """Wake the reader when the connection ends. aiohttp does not when it ended it itself over a broken chunk."""
        connection, content = self._response.connection, self._response.content
        protocol = connection.protocol if connection is not None else None

        def wake(closed: asyncio.Future[None]) -> None:
            if not closed.cancelled():
                closed.exception()  # marked as seen, so that asyncio does not log it
            if not content.is_eof() and content.exception() is None:
                content.set_exception(aiohttp.ClientPayloadError("it sent something that is not HTTP"))

        if protocol is not None and protocol.closed is not None:
            protocol.closed.add_done_callback(wake)

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def media_type(self) -> str:
        """The media type in lower case; empty when there is none."""
        return self.header("Content-Type").partition(";")[0].strip().lower()

    def header(self, name: str) -> str:
        return self._response.headers.get(name, "")

    async def wait_for_first_byte(self) -> None:
        """Wait for the first byte; the caller has set the deadline."""
        if self._encoding not in ("", "identity", "gzip", "deflate"):
            encoding = format_value(self._encoding)
            raise BrokenStreamError("provider.unknown_encoding", host=self.host, encoding=encoding, retryable=False)
        self._first = await self._read_piece()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, piece by piece, each within the idle deadline."""
        loop = asyncio.get_running_loop()
        while True:
            piece, self._first = self._first, None
            if piece is None:
                late = loop.time() + self._idle
                ends = late if self._until is None else min(late, self._until)
                try:
                    async with asyncio.timeout_at(ends):
                        piece = await self._read_piece()
                except TimeoutError:
                    raise self._explain_stall(ends == late) from None
            if not piece:
                break
            for part in self._inflate_piece(piece):
                self._read += len(part)
                if self._read > MAX_ANSWER_BYTES:
                    raise BrokenStreamError(
                        "provider.answer_too_large",
                        host=self.host,
                        most=MAX_ANSWER_BYTES,
                        hint=CHECK_ENDPOINT,
                        retryable=False,
                    )
                yield part

    async def read_all(self) -> bytes:
        parts = [part async for part in self.chunks()]
        return b"".join(parts)

    async def read_error_body(self) -> bytes:
        """The start of the body of an error. A failure to read it does not replace the error."""
        body = b""
        try:
            async with asyncio.timeout(min(_ERROR_SECONDS, self._idle)):
                while len(body) < _MAX_ERROR_BYTES and (piece := await self._read_piece()):
                    body += next(self._inflate_piece(piece), b"")
        except (TimeoutError, ProviderError):
            pass
        return body[:_MAX_ERROR_BYTES]

    async def finish(self) -> None:
        """Read the rest of the body so that the connection can be used again; close it when that takes long."""
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while await self._read_piece():
                    pass
        except (TimeoutError, ProviderError):
            self.close()

    def shorten_idle(self, idle: float) -> None:
        """Wait less for what still comes."""
        self._idle = min(self._idle, idle)

    def close(self) -> None:
        self._response.close()

    async def _read_piece(self) -> bytes:
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = format_value(str(error) or type(error).__name__, 200)
            raise BrokenStreamError("provider.connection_cut", host=self.host, why=why, hint=ASK_AGAIN) from None

    def _inflate_piece(self, piece: bytes) -> Iterator[bytes]:
        """Decompress a piece in small parts, so that the caller can stop a decompression bomb."""
        if self._inflate is None:
            yield piece
            return
        try:
            while piece:
                yield self._inflate.decompress(piece, _PART_BYTES)
                piece = self._inflate.unconsumed_tail
        except zlib.error:
            raise BrokenStreamError(
                "provider.wrong_encoding", host=self.host, encoding=self._encoding, hint=ASK_AGAIN
            ) from None

    def _explain_stall(self, idle: bool) -> StalledError:
        if idle:
            return StalledError("provider.stalled", host=self.host, seconds=self._idle)
        return StalledError("provider.overall_deadline", host=self.host)


class HostedProvider:
    """A provider behind an address. A subclass says how its requests are built and how its answers are read.

    `encode` writes a context in the grammar of the subclass; one in OpenAI's grammar needs none, since contexts are
    assembled in it. `extra` is added to each request; None in it removes one of our fields.
    """

    name: str
    grammar: Grammar
    address: str
    key_header, key_form = "Authorization", "Bearer {}"
    headers: Mapping[str, str] = {}
    reader: type[AnswerReader]

    def __init__(
        self,
        model: str,
        *,
        encode: Encode | None = None,
        key: Key | None = None,
        base_url: str | None = None,
        window: int | None = None,
        stream: bool = True,
        extra: Mapping[str, Any] | None = None,
        deadlines: Deadlines | None = None,
        retries: Retries | None = None,
        trust_environment: bool = False,
    ) -> None:
        self.model, self.window, self.streams = model, window, stream
        self._encode, self._extra = encode, dict(extra or {})
        self._client = Client(
            self.address if base_url is None else base_url, key=key, key_header=self.key_header,
            key_form=self.key_form, headers=self.headers, deadlines=deadlines, retries=retries,
            trust_environment=trust_environment,
        )  # fmt: skip
        self.at_home = self._client.host_name == urlsplit(self.address).hostname
        """Whether it asks the provider's own servers, and not others that speak the same form."""

    def build_request(self, max_tokens: int | None, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The path below the address, and the fields of the body that are not part of the context."""
        raise NotImplementedError

    def stream(
        self, context: Context, *, max_tokens: int | None = None, options: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[Event]:
        check_context(context)
        receipt = self._encode(context, self.grammar) if self._encode and self.grammar != "openai" else context.receipt
        path, fields = self.build_request(max_tokens, options or {})
        body = build_body(receipt, self.grammar, {**fields, **self._extra})
        return self._stream_events(path, body, self.reader(self._client.host))

    async def _stream_events(self, path: str, body: bytes, reader: AnswerReader) -> AsyncGenerator[Event]:
        """Send a request, and read the answer as what it is: some answer a request for a stream with a whole body."""
        async with self._client.post(path, body, _STREAM if self.streams else _WHOLE) as answer:
            if _is_stream(answer, self.streams):
                async with aclosing(self._read_stream(answer, reader)) as events:
                    async for event in events:
                        yield event
            else:
                text = self._client.hide_key((await answer.read_all()).decode("utf-8", "replace"))
                for event in reader.read_whole(parse_object(text, answer.host)):
                    yield event
        if not reader.finished:
            raise BrokenStreamError("provider.answer_cut", host=self._client.host, hint=ASK_AGAIN)
        for event in reader.finish():
            yield event

    async def _read_stream(self, answer: Answer, reader: AnswerReader) -> AsyncGenerator[Event]:
        parser = EventParser()
        try:
            async for piece in answer.chunks():
                for sent in parser.feed(piece):
                    for event in reader.read(self._hide_key(sent)):
                        yield event
                    if reader.ended:
                        return
                if reader.finished:
                    answer.shorten_idle(_MAX_TAIL_SECONDS)
            for sent in parser.end():
                for event in reader.read(self._hide_key(sent)):
                    yield event
        except ProviderError:
            if not reader.finished:  # a cut after the last word takes nothing away
                raise

    def _hide_key(self, sent: ServerEvent) -> ServerEvent:
        """Some providers repeat the key in an error, which people would be shown."""
        return ServerEvent(sent.kind, self._client.hide_key(sent.data))

    async def close(self) -> None:
        await self._client.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r} at {self._client.host})"


def _is_stream(answer: Answer, asked: bool) -> bool:
    media_type = answer.media_type
    if media_type in _VAGUE_TYPES:
        return asked
    if media_type == _STREAM:
        return True
    if media_type == _WHOLE or media_type.endswith("+json"):
        return False
    raise BrokenStreamError(
        "provider.wrong_media_type",
        host=answer.host,
        media=format_value(media_type),
        hint=CHECK_ADDRESS,
        retryable=False,
    )


def check_address(base_url: str) -> str:
    """The address without a slash at its end. One that is refused is not shown: a key may be in it by mistake."""
    try:
        parts = urlsplit(base_url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        plain = not (parts.username or parts.password or parts.query or parts.fragment)
    except ValueError:
        known = plain = False
    if not known or not plain:
        raise SettingsError("provider.bad_address")
    return base_url.rstrip("/")


def hint_to_wait(seconds: float | None) -> Phrase:
    return Phrase("provider.hint_wait", seconds=round(max(1, seconds))) if seconds else Phrase(WAIT_A_LITTLE)


def parse_retry_after(value: str) -> float | None:
    """Seconds to wait, from a number or a date; None for anything else."""
    value = value.strip()
    if value.replace(".", "", 1).isdecimal() and value.isascii() and len(value) < 12:
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def _explain_os_error(error: OSError) -> str:
    """Why there was no connection, in the words of the system, without addresses and the words of the library."""
    if error.errno is None:  # several addresses were tried
        return ""
    return os.strerror(error.errno) if error.errno > 0 else error.strerror or ""
