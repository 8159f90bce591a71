"""The messages of a session, in the order of their numbers, and the answers that were collected."""

from collections.abc import Mapping, Sequence

from lamina.records import StoredMessage
from lamina.store.database import Clock, Database, Steps, count_on, marks, missing
from lamina.store.receipts import read_texts
from lamina.store.rows import MESSAGE, Placed, message_of, parts, put_messages
from lamina.store.sessions import get_session
from lamina.store.turns import take_numbers
from lamina.types import AnyMessage

MAX_COLLECTED, AT_ONCE = 1_000, 500


def _messages(
    owner: str, session_id: str, after: int, before: int | None, limit: int | None, newest: bool
) -> Steps[list[StoredMessage]]:
    rows = yield (
        f"SELECT {MESSAGE} FROM conversation WHERE owner = ? AND session_id = ? AND seq > ? AND seq < ? "
        f"ORDER BY seq {'DESC' if newest else 'ASC'} LIMIT ?",
        (owner, session_id, after, 2**62 if before is None else before, 2**62 if limit is None else limit),
    )
    if not rows:
        yield from get_session(owner, session_id)
    found = [message_of(row) for row in rows]
    return found[::-1] if newest else found


def _append(db: Database, owner: str, session_id: str, messages: Sequence[AnyMessage], now: float) -> Steps[list[str]]:
    first = yield from take_numbers(owner, session_id, len(messages), now)
    placed: list[Placed] = [(first + n, message, "complete", 0) for n, message in enumerate(messages)]
    return (yield from put_messages(db, owner, session_id, "", placed, now))


def get_message(owner: str, message_id: str) -> Steps[StoredMessage]:
    rows = yield f"SELECT {MESSAGE} FROM conversation WHERE owner = ? AND message_id = ?", (owner, message_id)
    if not rows:
        raise missing("message", message_id)
    return message_of(rows[0])


def _collect(owner: str, message_id: str, on: bool) -> Steps[StoredMessage]:
    message = yield from get_message(owner, message_id)
    if message.is_collected == on:
        return message
    number = (yield from count_on(owner, "collected")) if on else 0
    rows = yield (
        "UPDATE conversation SET is_collected = ?, collected = ? WHERE owner = ? AND message_id = ? "
        f"RETURNING {MESSAGE}",
        (int(on), number, owner, message_id),
    )
    return message_of(rows[0])


def _collected(owner: str, limit: int, query: str) -> Steps[list[StoredMessage]]:
    rows = yield (
        f"SELECT {MESSAGE} FROM conversation WHERE owner = ? AND is_collected = 1 ORDER BY collected DESC LIMIT ?",
        (owner, MAX_COLLECTED if query else limit),
    )
    wanted = query.casefold()
    found = (message_of(row) for row in rows)
    return [message for message in found if wanted in message.text.casefold()][:limit]


def _standing(
    owner: str, summaries: Sequence[str], collected: Sequence[str]
) -> Steps[tuple[set[str], set[tuple[str, int]]]]:
    return (yield from _summarised(owner, summaries)), (yield from _collected_in(owner, collected))


def _summarised(owner: str, sessions: Sequence[str]) -> Steps[set[str]]:
    found: set[str] = set()
    for first in range(0, len(sessions), AT_ONCE):
        some = sessions[first : first + AT_ONCE]
        among = f"WHERE owner = ? AND session_id IN ({marks(len(some))})"
        rows = yield f"SELECT session_id FROM session_summary {among}", (owner, *some)
        found |= {row[0] for row in rows}
    return found


def _collected_in(owner: str, sessions: Sequence[str]) -> Steps[set[tuple[str, int]]]:
    found: set[tuple[str, int]] = set()
    for first in range(0, len(sessions), AT_ONCE):
        some = sessions[first : first + AT_ONCE]
        rows = yield (  # `|| ''` so that the index of what is collected is taken: sessions are long
            "SELECT session_id, seq FROM conversation WHERE owner = ? AND is_collected = 1 "
            f"AND session_id || '' IN ({marks(len(some))})",
            (owner, *some),
        )
        found |= {(row[0], row[1]) for row in rows}
    return found


def together(messages: Sequence[StoredMessage]) -> list[StoredMessage]:
    """The rows of each turn side by side, turns in the order in which they began.

    Two turns of one session may run at once, and then their rows alternate; no provider takes a tool's result apart
    from its call.
    """
    turns: dict[str, list[StoredMessage]] = {}
    for message in messages:
        turns.setdefault(message.turn_id or f"#{message.seq}", []).append(message)
    return [message for turn in turns.values() for message in turn]


class History:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def messages(
        self, owner: str, session_id: str, *, after: int = 0, before: int | None = None, limit: int | None = None,
        newest: bool = False,
    ) -> Sequence[StoredMessage]:  # fmt: skip
        """In the order of their numbers. `limit` takes the oldest of those asked for, with `newest` the newest."""
        return await self._db.read(owner, lambda: _messages(owner, session_id, after, before, limit, newest))

    async def get(self, owner: str, message_id: str) -> StoredMessage:
        return await self._db.read(owner, lambda: get_message(owner, message_id))

    async def append(self, owner: str, session_id: str, messages: Sequence[AnyMessage]) -> Sequence[str]:
        """Messages from elsewhere, behind those that are there; returns their ids."""
        now = self._clock()
        for message in messages:
            parts(message)
        return await self._db.write(owner, lambda: _append(self._db, owner, session_id, messages, now))

    async def collect(self, owner: str, message_id: str, on: bool = True) -> StoredMessage:
        """Mark exactly this message as collected, or no longer."""
        return await self._db.write(owner, lambda: _collect(owner, message_id, on))

    async def collected(self, owner: str, *, limit: int = 20, query: str = "") -> Sequence[StoredMessage]:
        """The newest first; `query` is looked for in the newest thousand."""
        return await self._db.read(owner, lambda: _collected(owner, limit, query))

    async def standing(
        self, owner: str, *, summaries: Sequence[str], collected: Sequence[str]
    ) -> tuple[set[str], set[tuple[str, int]]]:
        """Which of the first sessions have a summary, and which messages of the second are collected, by session and
        number."""
        return await self._db.read(owner, lambda: _standing(owner, summaries, collected))

    async def texts(self, owner: str, names: Sequence[str]) -> Mapping[str, str]:
        """The texts of layers by their hashes, as receipts name them; one that is not there is left out."""
        return await self._db.read(owner, lambda: read_texts(owner, names))
