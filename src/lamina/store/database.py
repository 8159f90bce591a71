"""What the two drivers have in common: how a transaction is written, and the few things in which their SQL differs.

A transaction is a generator: it yields a statement with its values, gets the rows back, and returns its result.
It has no effect of its own and can be run again from the start, so a driver may retry it.
"""

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from lamina.errors import ABSENT, MessageError, NotFoundError, OwnerError, shown, surrogate_error

T = TypeVar("T")
Clock = Callable[[], float]
Row = Sequence[Any]
Statement = tuple[str, Sequence[Any]]
Steps = Generator[Statement, list[Row], T]
Make = Callable[[], Generator[Statement, list[Row], T]]
"""Makes the generator of a transaction; called once for each attempt."""

MAX_NAME, MAX_KEY, MAX_TITLE = 200, 500, 200
"""Characters of an owner, an id, a name or a caller's key; of a job's key, which holds others; and of a title.
PostgreSQL cannot put much more into an index."""
MAX_VALUES = 8_000
"""Values in one statement; PostgreSQL takes 32,767."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where the SQL of the two databases differs."""

    name: str
    skip_locked: str
    """After a SELECT of rows to take: leave out those that another worker is taking just now."""
    words_value: str
    """The placeholder for a message's words."""
    words_match: str
    """The condition on `message_words` that finds words, with one placeholder."""
    words: Callable[[str, Sequence[str]], str]
    """An owner and a message's words as the value of `words_value`."""
    words_erase: str
    """Run after words were deleted where the index would else keep them; empty where it does not."""
    match: Callable[[str, Sequence[str]], str]
    """An owner and a query's words, all of which are wanted, as the value of `words_match`."""


class Database(Protocol):
    """Runs transactions. What is returned by `write` is durable."""

    dialect: Dialect
    commits: int
    """Commits of this process so far; transactions that waited together may be one."""

    async def write(self, owner: str, make: Make[T]) -> T: ...

    async def read(self, owner: str, make: Make[T]) -> T: ...

    async def seldom(self, owner: str, name: str, make: Make[T]) -> T:
        """A read of tables that change seldom, under a name of its own; where no other process can have changed them,
        it is remembered. Nobody changes what it gives."""
        ...

    async def system(self, make: Make[T]) -> T:
        """For the few statements that look at all owners: taking jobs, finding open turns, listing owners."""
        ...

    async def survey(self, make: Make[T]) -> T:
        """The same where nothing is written: it holds up no writer."""
        ...

    async def close(self) -> None: ...


def checked_owner(owner: str) -> str:
    if not isinstance(owner, str) or not owner:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise OwnerError(f"no owner given: {shown(owner)}", hint="every row belongs to somebody; name the owner")
    return clean(owner, "the owner", MAX_NAME)


def clean(text: str, where: str, most: int | None = None) -> str:
    """Text as both databases can keep it: whole Unicode, without U+0000, and of `most` characters at most."""
    if most is not None and len(text) > most:
        raise MessageError(f"{where} has {len(text):,} characters: {shown(text)}", hint=f"at most {most:,} characters")
    if "\0" in text:
        raise MessageError(f"{where} holds U+0000 at character {text.index(chr(0))}", hint="remove it first")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise surrogate_error(text, error, where) from None
    return text


def dump(value: object) -> str:
    """JSON text that both databases keep as it is, whatever characters are in it."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, default=_plain)
    except ValueError as error:  # no reader of JSON knows such a number, and some refuse the whole of it
        raise MessageError(f"{shown(value)} cannot be kept as JSON: {error}", hint="hand in finite numbers") from None
    return text


def _plain(value: Any) -> Any:
    try:
        return dict(value)
    except (TypeError, ValueError):
        raise MessageError(f"{shown(value)} cannot be kept as JSON", hint="hand in plain values") from None


def load(text: str) -> Any:
    return json.loads(text)


def new_id() -> str:
    return uuid4().hex


def missing(what: str, name: object) -> NotFoundError:
    return NotFoundError(f"no {what} {shown(name)}", hint=ABSENT)


def marks(count: int) -> str:
    return ", ".join("?" * count)


def like(text: str) -> str:
    """A pattern that finds the text anywhere, for `LIKE ? ESCAPE '!'`."""
    escaped = text.replace("!", "!!").replace("%", "!%").replace("_", "!_")
    return f"%{escaped}%"


def batches(rows: Sequence[Row], width: int) -> Iterator[Sequence[Row]]:
    size = max(1, MAX_VALUES // width)
    yield from (rows[at : at + size] for at in range(0, len(rows), size))


def insert(table: str, columns: str, rows: Sequence[Row], ending: str = "") -> Steps[list[Row]]:
    """Insert all rows in as few statements as possible; `ending` is an ON CONFLICT or RETURNING clause."""
    width = columns.count(",") + 1
    given: list[Row] = []
    for batch in batches(rows, width):
        values = ", ".join([f"({marks(width)})"] * len(batch))
        given += yield f"INSERT INTO {table} ({columns}) VALUES {values} {ending}", [v for row in batch for v in row]
    return given


def count_on(owner: str, name: str, by: int = 1) -> Steps[int]:
    """Move one of the owner's counters and return where it stands: order without a clock."""
    rows = yield (
        "INSERT INTO owner_counter (owner, name, value) VALUES (?, ?, ?) "
        "ON CONFLICT (owner, name) DO UPDATE SET value = owner_counter.value + excluded.value RETURNING value",
        (owner, name, by),
    )
    return int(rows[0][0])
