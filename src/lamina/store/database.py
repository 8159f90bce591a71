"""What the two drivers have in common: how a transaction is written and run, and where their SQL differs.

A transaction is a generator: it yields a statement with its values, gets the rows back, and returns its result.
It has no effect of its own and can be run again from the start, so a driver may retry it. A method of a group that is
such a generator becomes a coroutine by `@read` or `@write`.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from types import CoroutineType
from typing import Any, ParamSpec, Protocol, TypeVar, cast
from urllib.parse import unquote
from uuid import uuid4

from lamina.errors import ABSENT, MessageError, NotFoundError, OwnerError, format_value
from lamina.text.json import read_json, write_json
from lamina.text.messages import Phrase
from lamina.text.unicode import check_unicode, utf8_size

T = TypeVar("T")
P = ParamSpec("P")
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


class Search(Protocol):
    """The words of messages, as each database keeps them. All of it is derived: an index that is damaged answers
    nothing, and its readers treat that as an empty one."""

    def put(self, owner: str, session_id: str, found: Sequence[tuple[int, Sequence[str]]]) -> Steps[None]:
        """Messages by their numbers, and the distinct words of each."""
        ...

    def copy_words(self, owner: str, source: str, target: str, upto: int) -> Steps[None]: ...

    def erase(self, owner: str, session_id: str) -> Steps[None]: ...

    def find(self, owner: str, wanted: Sequence[str], limit: int) -> Steps[tuple[list[tuple[str, int]], bool]]:
        """Sessions and numbers of the messages that have all the words, newest sessions first; and whether there was
        time to look at all of them."""
        ...

    def indexed(self, owner: str, session_id: str, first: int, last: int) -> Steps[set[int]]:
        """The numbers, of these at least, under which there are words."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where the SQL of the two databases differs."""

    name: str
    skip_locked: str
    """After a SELECT of rows to take: leave out those that another worker is taking just now."""
    search: "Search"


class Database(Protocol):
    """Runs transactions. What is returned by `write` is durable."""

    dialect: Dialect
    commits: int
    """Commits of this process so far; transactions that waited together may be one."""

    damaged_indexes: Mapping[str, str]
    """The derived tables that cannot be used, by their group, and why. Statements on them are answered with no rows."""
    index_damage: asyncio.Event
    """Set when derived tables turn out to be damaged, so that they are rebuilt."""

    async def write(self, owner: str, make: Make[T]) -> T: ...

    async def read(self, owner: str, make: Make[T], *, seconds: float = 0.0) -> T:
        """A transaction that writes nothing. One owner's reads never take all readers. With `seconds`, a statement that
        is still running then is stopped, and the transaction gets an `OutOfTimeError` in its place, once."""
        ...

    async def read_cached(self, owner: str, key: Hashable, make: Make[T]) -> T:
        """A read of tables that change rarely, under a key of its own; where no other process can have changed them,
        it is cached. The result must not be changed."""
        ...

    async def write_any_owner(self, make: Make[T]) -> T:
        """For the few statements that look at all owners: taking jobs, finding open turns, listing owners."""
        ...

    async def read_any_owner(self, make: Make[T]) -> T:
        """The same where nothing is written: it holds up no writer."""
        ...

    async def recreate_tables(self, group: str) -> None:
        """Empty tables in place of the derived ones of a group, damaged or not; all messages are to be indexed."""
        ...

    async def close(self) -> None: ...


class Group:
    """Some of the store's methods, over one database and with one clock."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    @staticmethod
    def db_of(args: tuple[Any, ...]) -> Database:
        """The database of the group whose method has these arguments."""
        return cast("Group", args[0])._db


def _owner_of(args: tuple[Any, ...]) -> str:
    """The first argument of a method, or the owner that it has."""
    return getattr(args[1], "owner", args[1])


def read(method: Callable[P, Steps[T]]) -> "Callable[P, CoroutineType[Any, Any, T]]":
    """Run the transaction that a method is as a read of its owner."""

    @wraps(method)
    async def run(*args: P.args, **options: P.kwargs) -> T:
        return await Group.db_of(args).read(_owner_of(args), lambda: method(*args, **options))

    return run


def read_cached(method: Callable[P, Steps[T]]) -> "Callable[P, CoroutineType[Any, Any, T]]":
    """The same for tables that change rarely; the arguments of the method, all hashable, are the key."""

    @wraps(method)
    async def run(*args: P.args, **options: P.kwargs) -> T:
        key = (method.__qualname__, args[2:], *sorted(options.items()))
        return await Group.db_of(args).read_cached(_owner_of(args), key, lambda: method(*args, **options))

    return run


def write(method: Callable[P, Steps[T]]) -> "Callable[P, CoroutineType[Any, Any, T]]":
    """Run the transaction that a method is as a write of its owner."""

    @wraps(method)
    async def run(*args: P.args, **options: P.kwargs) -> T:
        return await Group.db_of(args).write(_owner_of(args), lambda: method(*args, **options))

    return run


def write_any_owner(method: Callable[P, Steps[T]]) -> "Callable[P, CoroutineType[Any, Any, T]]":
    """Run the transaction that a method is as a write of all owners."""

    @wraps(method)
    async def run(*args: P.args, **options: P.kwargs) -> T:
        return await Group.db_of(args).write_any_owner(lambda: method(*args, **options))

    return run


def read_any_owner(method: Callable[P, Steps[T]]) -> "Callable[P, CoroutineType[Any, Any, T]]":
    """Run the transaction that a method is as a read of all owners."""

    @wraps(method)
    async def run(*args: P.args, **options: P.kwargs) -> T:
        return await Group.db_of(args).read_any_owner(lambda: method(*args, **options))

    return run


class OutOfTimeError(RuntimeError):
    """A statement took longer than the transaction may; it has the rows that were found until then."""

    def __init__(self, rows: list[Row]) -> None:
        super().__init__("the statement ran out of time")
        self.rows = rows


class IndexDamageError(Exception):
    """A statement on derived tables failed: the transaction is run again without them."""

    def __init__(self, group: str, error: object) -> None:
        super().__init__(str(error))
        self.group = group


class DerivedTables:
    """What a driver knows of its derived tables."""

    def __init__(self, place: str) -> None:
        self.damaged_indexes: Mapping[str, str] = {}
        self.index_damage = asyncio.Event()
        self._place = place
        self._loop = asyncio.get_running_loop()

    def note_damage(self, damage: IndexDamageError) -> None:
        """In any thread."""
        if damage.group not in self.damaged_indexes:
            self.mark_damaged([damage.group], str(damage))
            text = "[Store] the %s index of %s is damaged: %s; it is rebuilt while the store stays open"
            logging.getLogger("lamina.store").warning(text, damage.group, self._place, damage)
        with contextlib.suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(self.index_damage.set)

    def mark_damaged(self, groups: Iterable[str], why: str) -> None:
        self.damaged_indexes = {**dict.fromkeys(groups, why), **self.damaged_indexes}

    def mark_repaired(self, group: str) -> None:
        self.damaged_indexes = {name: why for name, why in self.damaged_indexes.items() if name != group}


HARMLESS_OPTIONS = {"host", "port", "user", "dbname", "sslmode", "application_name", "connect_timeout"}
"""Of an address; the value of any other may be a secret."""


def hide_password(where: str) -> str:
    """An address as people may see it. Rather too much is hidden than too little: a password may hold any character."""
    scheme, mark, rest = where.partition("://")
    if not mark or scheme == "sqlite":
        return where
    if "?" in rest.rpartition("@")[0]:  # part of the password, or the start of the options: it cannot be told
        return f"{scheme}://…"
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    address, question, query = place.partition("?")
    options = [
        option if not sign or unquote(name).lower() in HARMLESS_OPTIONS else f"{name}=…"
        for option in query.split("&")
        for name, sign, _ in [option.partition("=")]
    ]
    return f"{scheme}://{user}{':…' if colon else ''}{at}{address}{question}{'&'.join(options)}"


def check_owner(owner: str) -> str:
    if not isinstance(owner, str) or not owner:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise OwnerError("owner.missing", value=format_value(owner))
    return clean(owner, "field.owner", MAX_NAME)


def clean(text: str, where: str | Phrase, most: int | None = None) -> str:
    """Text as both databases can keep it: whole Unicode, without U+0000, and of `most` characters at most. `where` is
    what the text is, as a phrase, its code, or the name of a column."""
    where = Phrase(where) if isinstance(where, str) else where
    if most is not None and len(text) > most:
        raise MessageError("text.too_long", where=where, count=len(text), most=most, value=format_value(text))
    if "\0" in text:
        raise MessageError("text.null_character", where=where, position=text.index("\0"))
    check_unicode(text, where)
    return text


def dump(value: object) -> str:
    """JSON text that both databases keep as it is, whatever characters are in it."""
    try:
        text = write_json(value, default=_plain)
        utf8_size(text)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, default=_plain)
    except (ValueError, RecursionError) as error:  # most readers refuse a whole document with such a number in it
        raise MessageError("value.not_json", value=format_value(value), why=str(error)) from None
    return text


def _plain(value: Any) -> Any:
    try:
        return dict(value)
    except (TypeError, ValueError):
        raise MessageError("value.not_plain", value=format_value(value)) from None


def load(text: str) -> Any:
    return read_json(text)


def new_id() -> str:
    return uuid4().hex


def one_row(rows: Sequence[Row], code: str, name: object) -> Row:
    """The row that was asked for by this name; the code is that of the error when there is none."""
    if not rows:
        raise NotFoundError(code, name=format_value(name), hint=ABSENT)
    return rows[0]


def columns_of(record: type[Any]) -> str:
    """The columns of a table, which are the fields of its record in their order."""
    return ", ".join(field.name for field in fields(record))


def column_values(record: Any, columns: str) -> list[Any]:
    """The fields of a record as the columns keep them."""
    return [_stored(getattr(record, name)) for name in columns.split(", ")]


def _stored(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    is_json = isinstance(value, Mapping | tuple)
    return dump(cast("object", value)) if is_json else value


def marks(count: int) -> str:
    return ", ".join("?" * count)


def where(wanted: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The condition that columns have these values, and its values; None leaves a column out."""
    given = {name: _stored(value) for name, value in wanted.items() if value is not None}
    return " AND ".join(f"{name} = ?" for name in given), [*given.values()]


def set_clause(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = ?" for name in values)


def set_excluded(columns: Iterable[str]) -> str:
    """For an ON CONFLICT clause: the new values of these columns take the place of the old ones."""
    return ", ".join(f"{name} = excluded.{name}" for name in columns)


def like(text: str) -> str:
    """A pattern that finds the text anywhere, for `LIKE ? ESCAPE '!'`."""
    escaped = text.replace("!", "!!").replace("%", "!%").replace("_", "!_")
    return f"%{escaped}%"


def batches(items: Sequence[T], width: int = 1) -> Iterator[Sequence[T]]:
    """As many at a time as one statement takes, each of `width` values."""
    size = max(1, MAX_VALUES // width)
    yield from (items[at : at + size] for at in range(0, len(items), size))


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
