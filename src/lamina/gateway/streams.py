"""Replies that come in pieces and turns that run: how many a key or a user has at once, and whose key no longer counts.

Nothing is sent from here: whoever sends a stream hands in how it is ended.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager

from lamina.gateway.http import HttpError, Principal
from lamina.gateway.options import Options
from lamina.gateway.principals import Principals, Shown

EVERY = 1.0
"""Seconds between two looks; a key that was looked up a moment ago is believed, so most looks ask nobody."""
SOON = 1.0
"""Seconds after which one of many may have ended."""


class Open:
    """What is under way, counted before it begins: many at the same moment do not slip through together."""

    def __init__(self, principals: Principals, options: Options) -> None:
        self._principals = principals
        self._most_streams, self._most_turns = options.streams, options.turns
        self._streams: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()
        self._ends: dict[Callable[[], None], Shown] = {}

    def stream(self, principal: Principal) -> Callable[[], None]:
        """Count a stream of this key in; what it gives counts it out."""
        what = f"more than {self._most_streams:,} open streams of one key"
        return _counted(self._streams, principal.key_id, self._most_streams, what)

    def turn(self, principal: Principal) -> Callable[[], None]:
        """The same for a turn of this user."""
        what = f"more than {self._most_turns:,} turns at once"
        return _counted(self._turns, principal.user, self._most_turns, what)

    @contextmanager
    def ended_by(self, shown: Shown | None, end: Callable[[], None]) -> Generator[None, None, None]:
        """Inside, `end` is called once the credential no longer counts."""
        if shown is not None:
            self._ends[end] = shown
        try:
            yield
        finally:
            self._ends.pop(end, None)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            await self.look()

    async def look(self) -> None:
        """End the streams of those whose key is revoked or has expired."""
        every = list({shown.proof: shown for shown in self._ends.values()}.values())
        found = await asyncio.gather(*(self._principals.counts(shown) for shown in every), return_exceptions=True)
        over = {shown.proof for shown, counts in zip(every, found, strict=True) if counts is False}
        if over:  # a store that does not answer ends nothing
            for end, shown in list(self._ends.items()):
                if shown.proof in over:
                    end()


def _counted(counts: Counter[str], name: str, most: int, what: str) -> Callable[[], None]:
    if counts[name] >= most:
        raise HttpError(429, what, hint="let some of them end", kind="rate_limit", retry_after=SOON)
    counts[name] += 1
    left = False

    def leave() -> None:
        nonlocal left
        if not left:
            left = True
            counts[name] -= 1
            if not counts[name]:
                del counts[name]

    return leave
