"""One process owns a SQLite store: a lock file of its own beside the database, with the owner's process number in it,
and below it which program that is.

The system's lock on it counts, and that ends with the process, however it ends. So the file is never removed, but for
one that was just made beside what could not be opened as a store. Files of a store are made here, for nobody else to
read.
"""

import errno
import os
import socket
import stat
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

from lamina.errors import StoreBusyError, StoreDamagedError, StoreError
from lamina.portable import BINARY, HELD, NOFOLLOW, is_private, take_lock

PID_BYTES, PROGRAM_BYTES = 32, 64
"""Bytes of the process number and of the program's name; older files end within the first ones."""
HEADER_BYTES = 16
"""What every database begins with."""
RECOVERY, RESTORE, GONE = "store.hint_recovery", "store.hint_restore", "store.hint_put_back"
NEW_STORE, CHECK_PATH, CHECK_FOLDER = "store.hint_new_store", "store.hint_check_path", "store.hint_check_folder"
"""Next steps that several errors have in common."""
STORE_MARK = b"store\n"
"""Behind them, once a store was opened: an empty file beside it is then no new one."""
PROGRAM_HINTS = {"lamina chat": "store.hint_leave_chat", "lamina serve": "store.hint_end_gateway"}
"""What people can do about programs that run for long."""


class OwnerLock:
    def __init__(self, path: str) -> None:
        self._path = path
        self._claim: socket.socket | None = None
        self.is_new = not os.path.lexists(path)
        """Whether this lock was never held before: then the file beside it need not be a store."""
        self._take()
        while not _is_at(self._file, path):  # the one who had it has just removed it: another may have made the next
            self._let_go()
            self._take()
        name = program_of(sys.argv).encode("ascii", "replace")[: PROGRAM_BYTES - 1]
        try:
            self._write(0, f"{os.getpid():<{PID_BYTES - 1}}\n".encode() + name.ljust(PROGRAM_BYTES - 1) + b"\n")
        except OSError as error:
            self._let_go()
            raise StoreError("store.lock_not_writable", path=path, why=error.strerror) from error

    def _take(self) -> None:
        path = self._path
        try:
            self._file = create_private(path, os.O_RDWR | NOFOLLOW)
        except OSError as error:
            raise StoreError("store.lock_not_created", path=path, why=error.strerror, hint=CHECK_FOLDER) from error
        try:
            self._unlock = take_lock(self._file, path)
        except BlockingIOError:
            pid, program = self._holder()
            os.close(self._file)
            raise _busy(path.removesuffix(".lock"), pid, program) from None
        except OSError as error:
            os.close(self._file)
            raise StoreError("store.lock_failed", path=path, why=error.strerror, hint=CHECK_FOLDER) from error

    def _let_go(self) -> None:
        self._unlock()
        os.close(self._file)

    def _read(self, at: int, size: int) -> bytes:
        os.lseek(self._file, at, os.SEEK_SET)  # not every system has `pread`
        return os.read(self._file, size)

    def _write(self, at: int, data: bytes) -> None:
        os.lseek(self._file, at, os.SEEK_SET)
        os.write(self._file, data)

    def _holder(self) -> tuple[int, str]:
        """Who has it. One that has just taken the lock may not have written its number yet: look again for a moment."""
        for _ in range(50):
            number, _, program = self._read(0, PID_BYTES + PROGRAM_BYTES).decode("ascii", "replace").partition("\n")
            if number.strip().isdigit() and _alive(int(number)):
                return int(number), program.strip()
            time.sleep(0.01)
        return 0, ""

    @property
    def marks_store(self) -> bool:
        """Whether what lies beside it was a store when it was opened last."""
        return self._read(PID_BYTES + PROGRAM_BYTES, len(STORE_MARK)) == STORE_MARK

    def mark_store(self) -> None:
        self._write(PID_BYTES + PROGRAM_BYTES, STORE_MARK)

    def renew(self) -> None:
        """Take the lock again when its file was removed or replaced: the claim is not visible in another container."""
        if _is_at(self._file, self._path):
            return
        with suppress(OSError):  # the folder cannot be written, or another process has locked the new file
            file = create_private(self._path, os.O_RDWR | NOFOLLOW)
            try:
                unlock = take_lock(file, self._path)
            except OSError:
                os.close(file)
                raise
            written = self._read(0, PID_BYTES + PROGRAM_BYTES + len(STORE_MARK))
            self._let_go()
            self._file, self._unlock = file, unlock
            self._write(0, written)

    def claim(self, path: str) -> None:
        """Own the file itself, by its number: a lock file can be removed, and a store renamed or linked. Linux keeps a
        name for it that is no file and ends with the process; elsewhere the lock file is all there is."""
        if sys.platform != "linux" or not hasattr(socket, "AF_UNIX"):
            return
        known = os.stat(path)
        name = f"\0lamina store {known.st_dev:x}:{known.st_ino:x}"
        self._claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._claim.bind(name)
            self._claim.listen(128)
        except OSError as error:
            self._claim.close()
            if error.errno == errno.EADDRINUSE:
                raise _busy(path, *_listener(name)) from None

    def release(self, *, remove: bool = False) -> None:
        """Let go of the lock; `remove` removes the file first, while no other process can hold it."""
        files = (self._path, f"{self._path}{HELD}") if remove else ()
        for path in files:
            with suppress(OSError):  # not there; or a system on which an open file stays
                os.unlink(path)
        self._let_go()
        for path in files if os.name == "nt" else ():
            with suppress(OSError):  # another one may have taken it at once
                os.unlink(path)
        if self._claim is not None:
            self._claim.close()


class StoreFile:
    """The file of a store, owned by this process from here on, whatever happens to its lock file or its name."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = OwnerLock(f"{path}.lock")
        self._made = False
        """Whether there was no such file before."""
        self._identity, self._least_size = (0, 0), 0
        """Which file it is, and how many bytes of it there must be: it never gets shorter."""
        self.is_new = self._lock.is_new
        try:
            self._made = not os.path.lexists(path)
            if self._made:
                self._check_not_removed()
                os.close(create_private(path))
            self._lock.claim(path)
            self._check_not_empty()
        except OSError as error:
            self.release(remove=self.is_new)
            raise StoreError("store.not_opened", path=path, why=error.strerror, hint=CHECK_PATH) from error
        except StoreError:
            self.release(remove=self.is_new)
            raise

    def _check_not_removed(self) -> None:
        if self._lock.marks_store:
            raise StoreDamagedError("store.removed", path=self._path, hint=NEW_STORE)

    def _check_not_empty(self) -> None:
        """SQLite takes an empty file for a new database, and what is in its log for nothing."""
        size = os.stat(self._path).st_size
        if size < HEADER_BYTES and self._lock.marks_store and os.path.isfile(self._path):
            raise StoreDamagedError("store.emptied", path=self._path, size=size, hint=NEW_STORE)

    def mark_opened(self, needed: int) -> None:
        """It is a store, and whole."""
        known = os.stat(self._path)
        self._identity = (known.st_dev, known.st_ino)
        self.note_size(needed)
        self._lock.mark_store()

    def note_size(self, needed: int) -> None:
        """It gets no shorter than it is now, or than the bytes that SQLite needs: a checkpoint cuts the rest off."""
        self._least_size = min(os.stat(self._path).st_size, needed)

    def renew_lock(self) -> None:
        """Make a lock file that was removed by hand again, as long as the store itself is in its place."""
        with suppress(OSError):
            now = os.stat(self._path)
            if (now.st_dev, now.st_ino) == self._identity:
                self._lock.renew()

    def check(self) -> None:
        """SQLite would go on with what it has in memory when its file is cut off, moved or replaced behind its back."""
        path = self._path
        try:
            now = os.stat(path)
        except OSError as error:
            raise StoreDamagedError("store.gone", path=path, why=error.strerror, hint=GONE) from None
        if (now.st_dev, now.st_ino) != self._identity:
            raise StoreDamagedError("store.replaced", path=path, hint=GONE)
        if now.st_size < self._least_size:
            size, expected = now.st_size, self._least_size
            raise StoreDamagedError("store.cut_off", path=path, size=size, expected=expected, hint=RESTORE)

    def check_whole(self, page_size: int) -> None:
        """Where there is no log to complete it, a file ends with a page."""
        try:
            logged = os.stat(f"{self._path}-wal").st_size
        except OSError:
            logged = 0
        size = os.stat(self._path).st_size
        if size % page_size and not logged:
            raise StoreDamagedError("store.cut_in_page", path=self._path, size=size, hint=RESTORE)

    def narrow(self) -> None:
        """Only its owner may read it and its log; SQLite gives a new log the permissions of the file."""
        for path in (self._path, f"{self._path}-wal", f"{self._path}-shm"):
            narrow(path)

    def release(self, *, remove: bool = False) -> None:
        with suppress(OSError):
            if self._made and not os.stat(self._path).st_size:  # nothing was ever written into it
                os.unlink(self._path)
        self._lock.release(remove=remove)


def _busy(path: str, pid: int, program: str = "") -> StoreBusyError:
    code = "store.in_use_by_program" if program else "store.in_use" if pid else "store.in_use_by_unknown"
    hint = PROGRAM_HINTS.get(program, "store.hint_wait")
    return StoreBusyError(code, path=path, program=program, hint=hint, pid=pid)


def _listener(name: str) -> tuple[int]:
    """The process that owns a name; 0 when it cannot be told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(0.5)
        try:
            caller.connect(name)
            return (struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0],)
        except OSError:
            return (0,)


def create_private(path: str, flags: int = os.O_RDWR | os.O_EXCL) -> int:
    """A new file that only its owner reads and writes, whatever the umask is; returns its descriptor."""
    handle = os.open(path, flags | os.O_CREAT | BINARY, 0o600)
    known = os.fstat(handle).st_mode
    if stat.S_ISREG(known) and stat.S_IMODE(known) != 0o600:  # never the rights of a device or a pipe
        with suppress(OSError):  # another user's file, or a file system without permissions
            os.chmod(handle if os.chmod in os.supports_fd else path, 0o600)
    return handle


def make_private_folder(path: str | os.PathLike[str]) -> None:
    """A folder that only its owner looks into, and those above it that are missing, whatever the umask is."""
    folder = Path(path)
    for each in (*reversed(folder.parents), folder):
        try:
            os.mkdir(each, 0o700)
        except OSError:
            if not each.is_dir():
                raise


def narrow(path: str) -> None:
    """Take the rights of others on a file of ours away; by its name, as closing it would drop SQLite's locks."""
    with suppress(OSError):  # not there, or not ours to change
        known = os.stat(path)
        if stat.S_ISREG(known.st_mode) and not is_private(known) and known.st_uid == os.geteuid():
            os.chmod(path, 0o600)


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
    if os.name == "nt":  # there `os.kill` ends the process, whatever the signal
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
