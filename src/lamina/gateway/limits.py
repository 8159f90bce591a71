"""How the gateway is set up, and how much a principal may use: requests a minute and what runs at once, in this
process, and tokens a day, which the store adds up. Nothing here reads a file or the environment.

Usage is written once a second, which is when several processes learn of each other: a token budget can be exceeded by
what runs at that moment, and by no more.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from lamina.app.app import App
from lamina.gateway.handlers import HttpError, Principal

LogLevel = Literal["off", "info", "debug"]
WRITE_INTERVAL_S, IDLE_WRITE_INTERVAL_S = 1.0, 10.0
"""Between two writes of what was used; and of requests that used no tokens."""
MAX_BUCKETS = 20_000
"""Buckets in memory; the oldest go first."""
DAY_S = 86_400
RETRY_AFTER_S = 1.0
"""After which one of many streams or turns may have ended."""


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    address: str = "127.0.0.1"
    """Where the gateway listens, without the port."""
    port: int = 8765
    host_names: tuple[str, ...] = ()
    """Names in `Host` that are ours beside those of this machine and the address it listens on."""
    origins: tuple[str, ...] = ()
    """Other pages that may call the gateway with a key of their own."""
    https: bool = False
    """Whether people come by https, through a proxy: then the cookie is only sent that way."""
    body_limit: int = 20_000_000
    open_body_limit: int = 64_000
    """The same where no credential is needed."""
    bodies_limit: int = 400_000_000
    """Bytes of all bodies that are being received at one time."""
    header_limit: int = 32_000
    header_fields: int = 100
    receive_seconds: float = 15.0
    """For a request to come in, headers and body; and for a client to read what it was sent."""
    idle_seconds: float = 15.0
    """How long a connection without a request stays open."""
    connections: int = 1_000
    address_connections: int = 500
    """Of these, from one address. Where there are too many, the one that was idle longest makes room."""
    streams: int = 200
    """Streamed replies that are open at one time for one key."""
    turns: int = 128
    """Turns of one user, started here, that run at one time."""
    replies_limit: int = 400_000_000
    """Bytes of all long replies that are being sent at one time."""
    rate_limit: int = 0
    """Requests a minute of a key that names no limit of its own; 0 for none."""
    token_limit: int = 0
    """Tokens a day of a key that names no limit of its own; 0 for none."""
    guesses: int = 30
    """Wrong credentials a minute from one address; after that, further wrong ones from there get 429."""
    log: LogLevel = "info"


def day_of(now: float) -> str:
    """The day in UTC, as the table of uses names it."""
    return _day(int(now // DAY_S))


@lru_cache(maxsize=4)
def _day(number: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(number * DAY_S))


class Buckets:
    """So many a minute for each name, all at once or one by one."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, name: str, rate: int) -> float:
        """Take one; returns the seconds to wait when there is none."""
        now = time.monotonic()
        left, then = self._left.get(name, (float(rate), now))
        left = min(float(rate), left + (now - then) * rate / 60)
        if left < 1:
            return (1 - left) * 60 / rate
        if len(self._left) >= MAX_BUCKETS and name not in self._left:
            del self._left[next(iter(self._left))]
        self._left[name] = (left - 1, now)
        return 0.0


@dataclass(slots=True)
class _Use:
    """What a key used on a day: stored by any process, and not stored yet."""

    owner: str
    day: str
    stored: int = 0
    tokens: int = 0
    requests: int = 0
    since: float = 0.0


class UsageLimits:
    def __init__(self, app: App, options: GatewayOptions, clock: Callable[[], float] = time.time) -> None:
        self._app, self._clock = app, clock
        self._rate, self._tokens = options.rate_limit, options.token_limit
        self._max_streams, self._max_turns = options.streams, options.turns
        self._buckets = Buckets()
        self._uses: dict[str, _Use] = {}
        self._streams: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()
        self._flushing = asyncio.Lock()
        self._writing: asyncio.Task[None] | None = None
        """Referenced here because the event loop alone does not keep its tasks alive."""
        self._log = logging.getLogger("lamina.gateway")

    def admit(self, principal: Principal, *, spends: bool) -> None:
        """Count a request in, or refuse it for now."""
        rate = principal.rate or self._rate
        if rate and (wait := self._buckets.take(principal.key_id, rate)):
            raise HttpError(429, "gateway.rate_limit", kind="rate_limit", retry_after=wait, limit=rate)
        use = self._use(principal)
        use.requests += 1
        budget = principal.tokens or self._tokens
        if spends and budget and use.stored + use.tokens >= budget:
            until_midnight = DAY_S - self._clock() % DAY_S
            raise HttpError(429, "gateway.token_budget", kind="token_budget", retry_after=until_midnight, limit=budget)

    def open_stream(self, principal: Principal) -> Callable[[], None]:
        """Count a stream of this key in, before it begins; the returned function counts it out."""
        return _count_in(self._streams, principal.key_id, self._max_streams, "gateway.too_many_streams")

    def open_turn(self, principal: Principal) -> Callable[[], None]:
        """The same for a turn of this user."""
        return _count_in(self._turns, principal.user, self._max_turns, "gateway.too_many_turns")

    def add_tokens(self, principal: Principal, prompt: int, completion: int) -> None:
        """Tokens that went over the wire for this principal."""
        self._use(principal).tokens += max(0, prompt) + max(0, completion)

    def note_stored(self, principal: Principal, stored: int) -> None:
        """What the store has of the key's day."""
        use = self._use(principal)
        use.stored = max(use.stored, stored)

    def _use(self, principal: Principal) -> _Use:
        day = day_of(self._clock())
        use = self._uses.get(principal.key_id)
        if use is None or use.day != day:
            left = use
            use = self._uses[principal.key_id] = _Use(principal.user, day, since=time.monotonic())
            if left and (left.tokens or left.requests):  # of the day that is over
                self._uses[f"{principal.key_id} {left.day}"] = left
        return use

    async def run(self) -> None:
        while True:
            await asyncio.sleep(WRITE_INTERVAL_S)
            self._writing = asyncio.create_task(self.flush())
            await asyncio.shield(self._writing)  # cancelled halfway, what is stored already would be added again

    async def flush(self, *, everything: bool = False) -> None:
        """Write what was used; what cannot be written now stays for the next time."""
        async with self._flushing:
            now = time.monotonic()
            due = [
                (name, use)
                for name, use in self._uses.items()
                if use.tokens or (use.requests and (everything or now - use.since >= IDLE_WRITE_INTERVAL_S))
            ]
            done = await asyncio.gather(*(self._write(name, use) for name, use in due), return_exceptions=True)
            for error in done:  # one that fails does not hold up the others
                if isinstance(error, BaseException):
                    self._log.warning("[Gateway] what a key used is not written yet: %s", type(error).__name__)

    async def _write(self, name: str, use: _Use) -> None:
        requests, tokens = use.requests, use.tokens
        key_id = name.partition(" ")[0]
        stored = await self._app.store.keys.spend(use.owner, key_id, use.day, requests=requests, tokens=tokens)
        use.requests -= requests
        use.tokens -= tokens
        use.stored, use.since = stored, time.monotonic()
        if " " in name or (len(self._uses) > MAX_BUCKETS and not (use.requests or use.tokens)):
            del self._uses[name]


def _count_in(counts: Counter[str], name: str, limit: int, code: str) -> Callable[[], None]:
    if counts[name] >= limit:
        raise HttpError(
            429, code, hint="gateway.let_some_end", kind="rate_limit", retry_after=RETRY_AFTER_S, limit=limit
        )
    counts[name] += 1
    over = False

    def count_out() -> None:
        nonlocal over
        if not over:
            over = True
            counts[name] -= 1
            if not counts[name]:
                del counts[name]

    return count_out
