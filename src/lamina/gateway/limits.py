"""How much a principal may: requests a minute, in this process, and tokens a day, which the store adds up.

What was used is written once a second, so several processes learn of each other then; a budget can be passed by what
runs at that moment, and by no more.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from lamina.app.app import App
from lamina.gateway.http import HttpError, Principal
from lamina.gateway.options import Options

WRITE_INTERVAL_S, IDLE_WRITE_INTERVAL_S = 1.0, 10.0
"""Seconds between two writes of what was used; and of requests that used no tokens."""
MAX_BUCKETS = 20_000
"""Buckets that are kept; the oldest go first."""
DAY_S = 86_400


def day_of(now: float) -> str:
    """The day in UTC, as the table of uses names it."""
    return _day(int(now // DAY_S))


@lru_cache(maxsize=4)
def _day(number: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(number * DAY_S))


class Buckets:
    """So many a minute for each name, all at once or one by one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, name: str, rate: int) -> float:
        """Take one; the seconds to wait when there is none."""
        now = self._clock()
        left = self._now(name, rate, now)
        if left < 1:
            return (1 - left) * 60 / rate
        if len(self._left) >= MAX_BUCKETS and name not in self._left:
            del self._left[next(iter(self._left))]
        self._left[name] = (left - 1, now)
        return 0.0

    def _now(self, name: str, rate: int, now: float) -> float:
        left, then = self._left.get(name, (float(rate), now))
        return min(float(rate), left + (now - then) * rate / 60)


@dataclass(slots=True)
class _Use:
    """What a key used on a day: written already, by whomever, and not yet."""

    owner: str
    day: str
    stored: int = 0
    tokens: int = 0
    requests: int = 0
    since: float = 0.0


class Limits:
    def __init__(self, app: App, options: Options, clock: Callable[[], float] = time.time) -> None:
        self._app, self._clock = app, clock
        self._rate, self._tokens = options.rate_limit, options.token_limit
        self._buckets = Buckets()
        self._uses: dict[str, _Use] = {}
        self._full = asyncio.Lock()
        self._writing: asyncio.Task[None] | None = None
        """Kept: a loop alone does not hold its tasks."""
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

    def spent(self, principal: Principal, prompt: int, completion: int) -> None:
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
            await asyncio.shield(self._writing)  # ended in the middle, what is stored already would be added again

    async def flush(self, *, everything: bool = False) -> None:
        """Write what was used; what cannot be written now is kept for the next time."""
        async with self._full:
            now = time.monotonic()
            due = [
                (name, use)
                for name, use in self._uses.items()
                if use.tokens or (use.requests and (everything or now - use.since >= IDLE_WRITE_INTERVAL_S))
            ]
            done = await asyncio.gather(*(self._write(name, use) for name, use in due), return_exceptions=True)
            for error in done:  # none of them may hold up the others, now or later
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
