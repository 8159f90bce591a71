"""One process owns a SQLite store: a lock file of its own beside the database, with the owner's process number in it.

The kernel's lock on it counts, and that ends with the process, however it ends. So the file is never removed, but for
one that was just made beside what could not be opened as a store.
"""

import fcntl
import os
import time
from contextlib import suppress

from lamina.errors import StoreBusyError, StoreError


class OwnerLock:
    def __init__(self, path: str) -> None:
        self._path = path
        self.is_new = not os.path.lexists(path)
        """Whether nobody has ever held this lock: then what lies beside it need not be a store."""
        self._take()
        while not _is_at(self._file, path):  # the one who had it has just removed it: another may have made the next
            os.close(self._file)
            self._take()
        os.pwrite(self._file, f"{os.getpid():<20}\n".encode(), 0)

    def _take(self) -> None:
        path = self._path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"cannot make the lock file {path}: {error.strerror}", hint="check the folder") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = self._holder()
            os.close(self._file)
            raise StoreBusyError(
                f"the store {path.removesuffix('.lock')} is in use by process {pid or 'unknown'}",
                hint="go through that process, end it, or use PostgreSQL for more than one process",
                pid=pid,
            ) from None

    def _holder(self) -> int:
        """Who has it. One that has just taken the lock may not have written its number yet: look again for a moment."""
        for _ in range(50):
            text = os.pread(self._file, 32, 0).decode("ascii", "replace").strip()
            if text.isdigit() and _alive(int(text)):
                return int(text)
            time.sleep(0.01)
        return 0

    def release(self, *, remove: bool = False) -> None:
        """Let go of the lock; `remove` takes the file away first, while nobody else can hold it."""
        if remove:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
        os.close(self._file)


def _is_at(file: int, path: str) -> bool:
    """Whether the open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
