"""One process owns a SQLite store: a lock file of its own beside the database, with the owner's process number in it,
and below it which program that is.

The kernel's lock on it counts, and that ends with the process, however it ends. So the file is never removed, but for
one that was just made beside what could not be opened as a store.
"""

import fcntl
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from lamina.errors import StoreBusyError, StoreError

NUMBER, PROGRAM = 32, 64
"""Bytes of the process number and of the program's name; older files end within the first ones."""
HINTS = {
    "lamina chat": "leave that chat with Ctrl-D, or use its /sessions, /memory and /why",
    "lamina serve": "use its page or its API, or end it with Ctrl-C",
}
"""What people can do about those who stay for long."""
OTHERS = "wait for it or end it, or use PostgreSQL for more than one process"


class OwnerLock:
    def __init__(self, path: str) -> None:
        self._path = path
        self.is_new = not os.path.lexists(path)
        """Whether nobody has ever held this lock: then what lies beside it need not be a store."""
        self._take()
        while not _is_at(self._file, path):  # the one who had it has just removed it: another may have made the next
            os.close(self._file)
            self._take()
        name = program_of(sys.argv).encode("ascii", "replace")[: PROGRAM - 1]
        os.pwrite(self._file, f"{os.getpid():<{NUMBER - 1}}\n".encode() + name.ljust(PROGRAM - 1) + b"\n", 0)

    def _take(self) -> None:
        path = self._path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"cannot make the lock file {path}: {error.strerror}", hint="check the folder") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid, program = self._holder()
            os.close(self._file)
            who = f"{pid or 'unknown'} ({program})" if program else str(pid or "unknown")
            raise StoreBusyError(
                f"the store {path.removesuffix('.lock')} is in use by process {who}",
                hint=HINTS.get(program, OTHERS),
                pid=pid,
            ) from None

    def _holder(self) -> tuple[int, str]:
        """Who has it. One that has just taken the lock may not have written its number yet: look again for a moment."""
        for _ in range(50):
            number, _, program = os.pread(self._file, NUMBER + PROGRAM, 0).decode("ascii", "replace").partition("\n")
            if number.strip().isdigit() and _alive(int(number)):
                return int(number), program.strip()
            time.sleep(0.01)
        return 0, ""

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


def program_of(words: list[str]) -> str:
    """`lamina chat`, or the name of another program. Nothing else of how it was called: that may be private."""
    path = Path(words[0] if words else "")
    if (path.parent.name if path.name == "__main__.py" else path.name) != "lamina":
        return path.name
    rest = words[3:] if words[1:2] == ["--lang"] else words[1:]
    return " ".join(["lamina", *[word for word in rest if not word.startswith("-")][:1]])


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
