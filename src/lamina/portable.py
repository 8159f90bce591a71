"""What systems do differently: locks between processes, rights of files, signals. Every other module asks here, so that
nothing fails where Python has no `fcntl` or a system has no such rights, as on Windows.
"""

import errno
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

try:
    import fcntl
except ImportError:
    fcntl = None

HELD = ".held"
"""The ending of the file that is locked instead where there is no `fcntl`."""
MAX_WAIT_S = 3_600
BINARY: int = getattr(os, "O_BINARY", 0)
"""For `os.open`: Windows changes ends of lines without it."""
NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)


def take_lock(handle: int, path: str, *, wait: bool = False) -> Callable[[], None]:
    """Lock the open file `handle`, whose name is `path`, and return a function that unlocks it, to be called before the
    file is closed.

    It is a `BlockingIOError` when another process, or another place in this one, has the lock and we do not `wait`. The
    system ends the lock with the process, however that ends. Without `fcntl` an empty SQLite database beside the file
    is locked instead: SQLite knows how each system locks files.
    """
    if fcntl:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return lambda: None  # closing the file ends it
    import sqlite3  # noqa: PLC0415 -- only where there is no fcntl

    held = sqlite3.connect(
        f"{path}{HELD}", timeout=MAX_WAIT_S if wait else 0, isolation_level=None, check_same_thread=False
    )
    try:
        held.execute("PRAGMA journal_mode = OFF")  # nothing is ever written to it
        held.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        held.close()
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path) from None
        raise OSError(None, str(error)) from None
    return held.close


def is_private(info: os.stat_result) -> bool:
    """Whether a file is ours and closed to others; where files have no such rights, it is."""
    return not hasattr(os, "geteuid") or (info.st_uid == os.geteuid() and not info.st_mode & 0o077)


def sync_folder(path: str) -> None:
    """What was renamed in a folder is on the disk; where folders cannot be opened, the system sees to it."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def handle_signal(loop: "asyncio.AbstractEventLoop", number: int, callback: Callable[[], object]) -> Callable[[], None]:
    """Call back in the event loop when a signal comes; returns a function that restores the handler before."""
    before = signal.getsignal(number)

    def call_soon(_number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(callback)

    def restore() -> None:
        with suppress(NotImplementedError):
            loop.remove_signal_handler(number)
        signal.signal(number, before)

    try:
        loop.add_signal_handler(number, callback)
    except NotImplementedError:  # the event loop of Windows
        signal.signal(number, call_soon)
    return restore
