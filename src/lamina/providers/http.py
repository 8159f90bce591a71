"""One small HTTP client for models: POST, deadlines, retries, bounds. aiohttp is known here and nowhere else.

It asks again only while no byte of an answer has come. A redirect is never followed, since it could carry the key to
another host; proxies and the environment are not trusted unless asked to. No error ever shows a key.
"""

import asyncio
import io
import os
import random
import ssl
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
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
from lamina.providers.forms import ASK_AGAIN, CHECK_ENDPOINT, SEE_WORDS, WAIT_A_LITTLE, read_complaint
from lamina.text.messages import Phrase
from lamina.types import Key

MAX_ANSWER_BYTES = 64 * 1024 * 1024
_MAX_ERROR_BYTES = 16 * 1024
_ERROR_SECONDS = 5.0
_DRAIN_SECONDS = 0.1
_PART = 64 * 1024
_BUSY = (429, 503, 529)
ASK_LATER, CHECK_RUNNING = "provider.hint_ask_later", "provider.hint_running"
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
    """How often to ask again, and how long to wait before: `backoff`, doubled each time, less up to half of it.

    A provider's Retry-After counts instead, where it is longer. One that is longer than `most` is not waited for.
    """

    times: int = 2
    backoff: float = 0.5
    most: float = 30.0
    chance: Callable[[], float] = field(default=random.random, repr=False)

    def wait(self, attempt: int, retry_after: float | None) -> float:
        own = min(self.backoff * 2**attempt, self.most) * (1 - self.chance() / 2)
        return max(own, retry_after or 0.0)


class Client:
    """Requests to one base URL. `key_header` and `key_form` say how it wants the key: `Bearer {}`."""

    def __init__(
        self, base_url: str, *, key: Key | None = None, key_header: str = "Authorization", key_form: str = "Bearer {}",
        headers: Mapping[str, str] | None = None, deadlines: Deadlines | None = None, retries: Retries | None = None,
        trust_environment: bool = False,
    ) -> None:  # fmt: skip
        self._base = check_address(base_url)
        self._key, self._key_header, self._key_form = key, key_header, key_form
        self._headers = dict(headers or {})
        self.deadlines, self.retries = deadlines or Deadlines(), retries or Retries()
        self._trust = trust_environment
        self._session: tuple[asyncio.AbstractEventLoop, aiohttp.ClientSession] | None = None

    @property
    def host(self) -> str:
        return urlsplit(self._base).netloc

    @asynccontextmanager
    async def post(self, path: str, body: bytes, accept: str) -> AsyncGenerator["Answer"]:
        """An answer of which the first byte is there. Leaving the block lets go of the connection."""
        answer = await self._ask(path, body, accept)
        try:
            yield answer
            await answer.finish()
        finally:
            answer.close()

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session[1], None
            await session.close()

    async def _ask(self, path: str, body: bytes, accept: str) -> "Answer":
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
                wait = self.retries.wait(attempt, error.retry_after)
                in_time = loop.time() + wait < start + first and wait <= self.retries.most
                if not error.retryable or attempt >= self.retries.times or not in_time:
                    raise
            attempt += 1
            await asyncio.sleep(wait)

    async def _attempt(self, path: str, body: bytes, accept: str, until: float | None) -> "Answer":
        """Ask once, up to the first byte of a good answer."""
        try:
            response = await self._open().post(
                self._base + path,
                data=io.BytesIO(body),  # as bytes, aiohttp would warn of a large one
                headers=self._sent_headers(accept),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, connect=self.deadlines.connect),
            )
        except aiohttp.ServerTimeoutError:
            seconds = self.deadlines.connect
            raise ConnectError("provider.no_connection", host=self.host, seconds=seconds, hint=CHECK_RUNNING) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._connection_error(error) from None
        answer = Answer(response, self.host, self.deadlines.idle, until)
        with ExitStack() as failed:
            failed.callback(answer.close)
            if not 200 <= response.status < 300:
                raise await self._read_refusal(answer)
            await answer.first()
            failed.pop_all()
        return answer

    def _sent_headers(self, accept: str) -> dict[str, str]:
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

    def _open(self) -> aiohttp.ClientSession:
        """The session of this event loop; connections of a loop that has ended are of no use."""
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

    def _connection_error(self, error: Exception) -> ProviderError:
        host, why = self.host, format_value(self.without(str(error)) or type(error).__name__, 200)
        if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
            return ConnectError("provider.no_safe_connection", host=host, why=why, retryable=False)
        if isinstance(error, aiohttp.InvalidURL):
            return ConnectError("provider.bad_host", host=host, retryable=False)
        if isinstance(error, aiohttp.ClientResponseError | ValueError):
            return BrokenStreamError("provider.not_http", host=host, why=why, hint=CHECK_ENDPOINT, retryable=False)
        if isinstance(error, aiohttp.ClientConnectorError):
            reason = self.without(_reason(error.os_error))
            code = "provider.unreachable_because" if reason else "provider.unreachable"
            return ConnectError(code, host=host, why=format_value(reason, 200), hint=CHECK_RUNNING)
        return ConnectError("provider.hung_up", host=host, why=why, hint=ASK_AGAIN)

    async def _read_refusal(self, answer: "Answer") -> ProviderError:
        """The error for a status other than 200."""
        code, host = answer.status, self.host
        if 300 <= code < 400:
            target = format_value(answer.header("Location").partition("?")[0])
            return RejectedError("provider.redirect", host=host, status=code, target=target, provider_status=code)
        said = await answer.complaint()
        words = self.without(read_complaint(said))
        after = retry_after(answer.header("Retry-After"))
        told: dict[str, Any] = {
            "host": host,
            "status": code,
            "words": format_value(words, 300),
            "provider_status": code,
        }
        if code in _BUSY and "insufficient_quota" not in words:
            return RateLimitError("provider.answered", **told, hint=wait_hint(after), retry_after=after)
        hint = _HINTS.get(code, ASK_LATER if code >= 500 else SEE_WORDS)
        if code in (401, 403) and self._key is None:
            hint = "provider.hint_no_key"
        retryable = code >= 500 or code == 408
        return RejectedError("provider.answered", **told, hint=hint, retryable=retryable, retry_after=after)

    def without(self, text: str) -> str:
        """What a provider says, without the key that some repeat."""
        return text.replace(self._key.reveal(), "…") if self._key is not None else text


class Answer:
    """A provider's answer as it comes."""

    def __init__(self, response: aiohttp.ClientResponse, host: str, idle: float, until: float | None) -> None:
        self._response, self.host = response, host
        self._idle, self._until = idle, until
        self._read = 0
        self._first: bytes | None = None
        encoding = self.header("Content-Encoding").strip().lower()
        self._inflate = zlib.decompressobj(47) if encoding in ("gzip", "deflate") else None
        self._encoding = encoding
        self._watch()

    def _watch(self) -> None:
        """Wake the reader when the connection ends. aiohttp does not when it ended it itself over a broken chunk."""
        connection, content = self._response.connection, self._response.content
        protocol = connection.protocol if connection is not None else None

        def wake(closed: asyncio.Future[None]) -> None:
            if not closed.cancelled():
                closed.exception()  # seen: nobody else asks for it
            if not content.is_eof() and content.exception() is None:
                content.set_exception(aiohttp.ClientPayloadError("it sent something that is not HTTP"))

        if protocol is not None and protocol.closed is not None:
            protocol.closed.add_done_callback(wake)

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def kind(self) -> str:
        """The content type, bare and in lower case; empty when it is not said."""
        return self.header("Content-Type").partition(";")[0].strip().lower()

    def header(self, name: str) -> str:
        return self._response.headers.get(name, "")

    async def first(self) -> None:
        """Wait for the first byte; the caller has set the deadline."""
        if self._encoding not in ("", "identity", "gzip", "deflate"):
            encoding = format_value(self._encoding)
            raise BrokenStreamError("provider.unknown_encoding", host=self.host, encoding=encoding, retryable=False)
        self._first = await self._raw()

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
                        piece = await self._raw()
                except TimeoutError:
                    raise self._stalled(ends == late) from None
            if not piece:
                break
            for part in self._inflate_piece(piece):
                self._read += len(part)
                if self._read > MAX_ANSWER_BYTES:
                    raise BrokenStreamError(
                        "provider.answer_too_large", host=self.host, most=MAX_ANSWER_BYTES, hint=CHECK_ENDPOINT,
                        retryable=False,
                    )  # fmt: skip
                yield part

    async def whole(self) -> bytes:
        parts = [part async for part in self.chunks()]
        return b"".join(parts)

    async def complaint(self) -> bytes:
        """The start of the body of an error; what cannot be read of it is not worth another error."""
        body = b""
        try:
            async with asyncio.timeout(min(_ERROR_SECONDS, self._idle)):
                while len(body) < _MAX_ERROR_BYTES and (piece := await self._raw()):
                    body += next(self._inflate_piece(piece), b"")
        except (TimeoutError, ProviderError):
            pass
        return body[:_MAX_ERROR_BYTES]

    async def finish(self) -> None:
        """Read the end of a body, so that the connection can be used again; one that does not end soon is closed."""
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while await self._raw():
                    pass
        except (TimeoutError, ProviderError):
            self.close()

    def hurry(self, idle: float) -> None:
        """What still comes is of little worth: wait less for it."""
        self._idle = min(self._idle, idle)

    def close(self) -> None:
        self._response.close()

    async def _raw(self) -> bytes:
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = format_value(str(error) or type(error).__name__, 200)
            raise BrokenStreamError("provider.connection_cut", host=self.host, why=why, hint=ASK_AGAIN) from None

    def _inflate_piece(self, piece: bytes) -> Iterator[bytes]:
        """The piece as it was before it was packed, in small parts, so that the caller can stop a bomb."""
        if self._inflate is None:
            yield piece
            return
        try:
            while piece:
                yield self._inflate.decompress(piece, _PART)
                piece = self._inflate.unconsumed_tail
        except zlib.error:
            encoding = self._encoding
            raise BrokenStreamError(
                "provider.wrong_encoding", host=self.host, encoding=encoding, hint=ASK_AGAIN
            ) from None

    def _stalled(self, idle: bool) -> StalledError:
        if idle:
            return StalledError("provider.stalled", host=self.host, seconds=self._idle)
        return StalledError("provider.overall_deadline", host=self.host)


def check_address(base_url: str) -> str:
    """The address as it is used; one that is refused is not shown, since a key may stand in it by mistake."""
    try:
        parts = urlsplit(base_url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        plain = not (parts.username or parts.password or parts.query or parts.fragment)
    except ValueError:
        known = plain = False
    if not known or not plain:
        raise SettingsError("provider.bad_address")
    return base_url.rstrip("/")


def wait_hint(seconds: float | None) -> Phrase:
    return Phrase("provider.hint_wait", seconds=round(max(1, seconds))) if seconds else Phrase(WAIT_A_LITTLE)


def retry_after(value: str) -> float | None:
    """Seconds to wait, from seconds or from a date; None when it says neither."""
    value = value.strip()
    if value.replace(".", "", 1).isdecimal() and value.isascii() and len(value) < 12:
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def _reason(error: OSError) -> str:
    """Why there was no connection, as people say it: the system's words, without addresses and the library's own."""
    if error.errno is None:  # several addresses were tried
        return ""
    return os.strerror(error.errno) if error.errno > 0 else error.strerror or ""
