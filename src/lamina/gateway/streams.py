"""Replies that come in pieces and turns that run: how many a key or a user has at once, and whose key no longer counts.

Nothing is sent from here: the sender of a stream passes in how to end it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager

from lamina.gateway.http import HttpError, Principal
from lamina.gateway.options import Options
from lamina.gateway.principals import Credential, Principals

CHECK_INTERVAL_S = 1.0
"""Seconds between two looks; a key that was looked up a moment ago is cached, so most checks do not read the store."""
RETRY_AFTER_S = 1.0
"""Seconds after which one of many may have ended."""


class Concurrency:
    """What is under way, counted before it begins: many at the same moment do not slip through together."""

    def __init__(self, principals: Principals, options: Options) -> None:
        self._principals = principals
        self._max_streams, self._max_turns = options.streams, options.turns
        self._streams: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()
        self._ends: dict[Callable[[], None], Credential] = {}

    def stream(self, principal: Principal) -> Callable[[], None]:
        """Count a stream of this key in; what it gives counts it out."""
        return _count_in(self._streams, principal.key_id, self._max_streams, "gateway.too_many_streams")

    def turn(self, principal: Principal) -> Callable[[], None]:
        """The same for a turn of this user."""
        return _count_in(self._turns, principal.user, self._max_turns, "gateway.too_many_turns")

    @contextmanager
    def end_when_revoked(self, credential: Credential | None, end: Callable[[], None]) -> Generator[None, None, None]:
        """Inside, `end` is called once the credential no longer counts."""
        if credential is not None:
            self._ends[end] = credential
        try:
            yield
        finally:
            self._ends.pop(end, None)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            await self.end_revoked()

    async def end_revoked(self) -> None:
        """End the streams of those whose key is revoked or has expired."""
        every = list({credential.proof: credential for credential in self._ends.values()}.values())
        found = await asyncio.gather(
            *(self._principals.is_valid(credential) for credential in every), return_exceptions=True
        )
        over = {credential.proof for credential, counts in zip(every, found, strict=True) if counts is False}
        if over:  # a store that does not answer ends nothing
            for end, credential in list(self._ends.items()):
                if credential.proof in over:
                    end()


def _count_in(counts: Counter[str], name: str, limit: int, code: str) -> Callable[[], None]:
    if counts[name] >= limit:
        raise HttpError(
            429, code, hint="gateway.let_some_end", kind="rate_limit", retry_after=RETRY_AFTER_S, limit=limit
        )
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
