"""A newer SQLite (APSW brings one along) in the place of Python's module `sqlite3`, for what the driver uses of it."""

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import apsw  # pyright: ignore[reportMissingTypeStubs] -- it is one compiled module

sqlite_version_info = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
complete_statement = sqlite3.complete_statement


class Error(Exception):
    sqlite_errorcode = 0


class DatabaseError(Error):
    pass


def __getattr__(name: str) -> Any:
    return getattr(sqlite3, name)  # SQLITE_BUSY and the like


class Cursor:
    def __init__(self, rows: list[Any], rowcount: int) -> None:
        self._rows, self.rowcount = rows, rowcount

    def fetchall(self) -> list[Any]:
        return self._rows

    def fetchone(self) -> Any:
        return self._rows[0] if self._rows else None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)


class Connection:
    def __init__(self, path: str) -> None:
        self._inner: Any = apsw.Connection(path)

    def execute(self, sql: str, values: Any = ()) -> Cursor:
        try:
            rows = self._inner.execute(sql, tuple(values)).fetchall()
            return Cursor(rows, self._inner.changes())
        except apsw.Error as error:
            raised = DatabaseError(str(error))
            raised.sqlite_errorcode = int(getattr(error, "extendedresult", 0) or 1)
            raise raised from error

    @property
    def in_transaction(self) -> bool:
        return bool(self._inner.in_transaction)

    def set_progress_handler(self, handler: Callable[[], bool], steps: int) -> None:
        self._inner.set_progress_handler(handler, steps)

    def close(self) -> None:
        self._inner.close()


def connect(path: str, **options: object) -> Connection:
    return Connection(path)
