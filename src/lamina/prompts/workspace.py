"""A folder whose files are read without ever leaving it (fault P6).

This room hides how a path becomes text: opened name by name below a folder's handle, links followed by hand and never
out of it, nothing but regular files of a bounded size and in UTF-8, read once and then watched by one `stat`.
It knows nothing about what the text is for.
"""

import errno
import os
import stat as modes
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from operator import attrgetter
from typing import NamedTuple, cast

from lamina.errors import InstructionsError, format_value
from lamina.portable import BINARY, NOFOLLOW, NONBLOCK
from lamina.text.messages import Value
from lamina.text.unicode import Hidden, hidden_characters
from lamina.types import text_hash

AnyPath = str | os.PathLike[str]
FileKey = tuple[int, int, int, int, int]
Trail = dict[str, int]
Folders = dict[str, FileKey | None]
"""Folders and the keys that show that their names are still the same; None where that cannot be known."""

MAX_BYTES = 256 * 1024
MAX_LINKS = 40
MAX_STEPS = 1_000
MAX_KNOWN = 1_000
MAX_HANDLES = 100
TRIES = 5
SETTLED = 100_000_000
"""Nanoseconds. File systems stamp a change with a clock of some milliseconds, so a file that changed just before it was
read may change again under the same stamp. Until it is this old, it is read again instead of trusted."""

key_of = cast(
    Callable[[os.stat_result], FileKey], attrgetter("st_mtime_ns", "st_ctime_ns", "st_size", "st_ino", "st_dev")
)
"""What tells that a file is the one that was read. The time of change too: tools that copy set the other one back."""

_ROOT: int = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)
_FOLDER = _ROOT | NOFOLLOW
_FILE: int = os.O_RDONLY | NONBLOCK | getattr(os, "O_NOCTTY", 0) | NOFOLLOW | BINARY
NOT_REGULAR = {
    modes.S_IFDIR: "workspace.is_folder",
    modes.S_IFIFO: "workspace.is_pipe",
    modes.S_IFSOCK: "workspace.is_socket",
}
_LINK = {errno.ELOOP, errno.ENOTDIR, errno.EMLINK}  # what opening a link without following it gives, by system


class FileText(NamedTuple):
    """One file as it was read. `settled` says that an equal `key` means equal text."""

    path: str
    text: str
    hash: str
    size: int
    key: FileKey
    settled: bool
    hidden: tuple[Hidden, ...]


class FileBytes(NamedTuple):
    """The bytes of one version of a file, what the system says about it, and when that was."""

    data: bytes
    info: os.stat_result
    read_ns: int


class Missing(NamedTuple):
    """Nothing is there; `path` is the first name on the way that does not exist."""

    path: str


MAX_SPELLED_NAMES = 64
"""A deeper path is looked up by its exact spelling only: each look at a folder takes time with its depth."""


class Workspace:
    """A folder whose files are read without ever leaving it. Files are kept and read again only when they changed."""

    def __init__(
        self,
        root: AnyPath,
        *,
        max_bytes: int = MAX_BYTES,
        label: str = "",
        stat: Callable[..., os.stat_result] = os.stat,
    ) -> None:
        self.root = os.path.abspath(root)
        self.max_bytes = max_bytes
        self.label = label
        self.stat = stat
        self._known: dict[str, FileText] = {}

    def full(self, path: str) -> str:
        return f"{self.root}/{path}"

    def spelled(self, path: str) -> tuple[str, Folders]:
        """The path as it is spelled on disk, and the folders whose names decided that; none for an exact match.

        A name that is there counts. Otherwise the one that differs from it in case only does, and two of those are an
        error. Where there is none, or the path is very deep, it stays as it is. Opening it still follows no link out of
        the root.
        """
        if os.path.lexists(self.full(path)) or "\0" in path or path.startswith("/") or path.endswith("/"):
            return path, {}
        names = parts(path)
        if len(names) > MAX_SPELLED_NAMES:
            return path, {}
        at = next((n for n in range(len(names) - 1, 0, -1) if os.path.lexists(self.full("/".join(names[:n])))), 0)
        folders: Folders = {}
        while at < len(names):
            folder = self.full("/".join(names[:at])).rstrip("/")
            folders[folder] = self._settled_key(folder)  # before it is looked into
            alike = self._names_like(folder, names[at])
            if len(alike) > 1:
                one, other = (format_value(self.label + "/".join((*names[:at], name))) for name in alike[:2])
                raise self.refusal(path, "workspace.two_spellings", one=one, other=other, name=names[at])
            if not alike:
                break
            names[at] = alike[0]
            at += 1
        return "/".join(names) if names != parts(path) else path, folders

    def _settled_key(self, folder: str) -> FileKey | None:
        try:
            info = self.stat(folder)
        except OSError:
            return None
        return key_of(info) if time.time_ns() - info.st_ctime_ns > SETTLED else None

    def _names_like(self, folder: str, name: str) -> list[str]:
        """The names in a folder of the workspace that are this one but for their case; an exact match alone."""
        inside = os.path.realpath(folder)
        root = os.path.realpath(self.root)
        if inside != root and below(root, inside) is None:  # opening it will say that it leads out
            return []
        try:
            names = os.listdir(inside)
        except OSError:  # opening it will say what is wrong
            return []
        if name in names:
            return [name]
        wanted = name.casefold()
        return sorted(each for each in names if each.casefold() == wanted)

    def read(self, path: str) -> FileText:
        """The text of a file; that it is not there is an error too."""
        found = self.find(self.spelled(path)[0])
        if isinstance(found, Missing):
            raise self.refusal(path, "workspace.file_missing")
        return found

    def find(self, path: str, trail: Trail | None = None) -> FileText | Missing:
        """The text of a file, or that there is none. A file that did not change costs one `stat`."""
        known = self._known.get(path)
        if known and known.settled and self._key_now(path) == known.key:
            return known
        found = self._fetch(path, trail)
        if isinstance(found, FileText):
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[path] = found
        return found

    def refusal(self, path: str, code: str, /, *, hint: str = "", **values: Value) -> InstructionsError:
        name = self.label + path
        return InstructionsError(code, hint=hint, path=name, file=format_value(name, 200), **values)

    def _key_now(self, path: str) -> FileKey | None:
        try:
            return key_of(self.stat(self.full(path)))
        except OSError:  # opening it will say what is wrong
            return None

    def _fetch(self, path: str, trail: Trail | None) -> FileText | Missing:
        found = self.load(path, trail)
        if isinstance(found, Missing):
            return found
        text = self.decoded(path, found.data)
        settled = found.read_ns - found.info.st_ctime_ns > SETTLED
        hidden = tuple(hidden_characters(text))
        return FileText(path, text, text_hash(text), len(found.data), key_of(found.info), settled, hidden)

    def load(self, path: str, trail: Trail | None = None) -> "FileBytes | Missing":
        """The bytes of a file as they are now, of one version of it; nothing is kept."""
        for _ in range(TRIES):
            opened = _Walk(self, path, trail).open()
            if isinstance(opened, Missing):
                return opened
            try:
                now, info = time.time_ns(), os.fstat(opened)
                self.check(path, "", info)
                self._check_size(path, info.st_size)
                data = self._bytes(path, opened)
                same = key_of(os.fstat(opened)) == key_of(info)
            except OSError as error:
                raise self.refusal(path, "workspace.unreadable", reason=error.strerror) from None
            finally:
                os.close(opened)
            if same:
                return FileBytes(data, info, now)
        raise self.refusal(path, "workspace.keeps_changing")

    def check(self, path: str, found: str, info: os.stat_result) -> None:
        """Whether what is there may be read. `found` is where the links led, as long as it is not opened yet."""
        mode = info.st_mode
        if not modes.S_ISREG(mode):
            raise self.refusal(path, NOT_REGULAR.get(modes.S_IFMT(mode), "workspace.is_device"))

    def _check_size(self, path: str, size: int) -> None:
        if size > self.max_bytes:
            raise self.refusal(path, "workspace.too_large", size=size, limit=self.max_bytes)

    def _bytes(self, path: str, opened: int) -> bytes:
        pieces: list[bytes] = []
        left = self.max_bytes + 1
        while left > 0 and (piece := os.read(opened, min(left, 65_536))):
            pieces.append(piece)
            left -= len(piece)
        self._check_size(path, self.max_bytes + 1 - left)
        return b"".join(pieces)

    def decoded(self, path: str, data: bytes) -> str:
        try:
            return data.decode("utf-8").removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            line = data[: error.start].count(b"\n") + 1
            byte = f"0x{data[error.start]:02x}"
            raise self.refusal(path, "workspace.not_utf8", line=line, at=error.start, byte=byte) from None


class _Walk:
    """One way from the root to a file. Each name is opened below the handle of the folder before it and never followed
    by the system, so whatever is swapped in the meantime, the walk cannot leave the root."""

    def __init__(self, workspace: Workspace, path: str, trail: Trail | None) -> None:
        self.workspace = workspace
        self.path = path
        self.trail: Trail = {} if trail is None else trail
        self.handles = 0 if trail is None else MAX_HANDLES
        self.links = 0
        names = self._names()
        self.passed = names[: self._known(names)]
        self.ahead = [(name, False) for name in reversed(names[len(self.passed) :])]
        """Names still to come, the next one last, and whether a link brought them in."""

    def open(self) -> int | Missing:
        """The handle of the regular file, or what is missing."""
        if os.open not in os.supports_dir_fd:
            return self._open_by_path()
        known = self.trail.get(self._here())
        self.folder, self.kept = (self._root(), False) if known is None else (known, True)
        try:
            for _ in range(MAX_STEPS):
                opened = self._step()
                if opened is not None:
                    return opened
        finally:
            self._leave()
        raise self._refusal("workspace.too_many_steps")

    def _open_by_path(self) -> int | Missing:
        """Where nothing can be opened below a handle (Windows): by its resolved path, which is looked at once more when
        the file is open. A link that is swapped in between the two checks is refused then."""
        root = os.path.realpath(self.workspace.root)
        for depth in range(1, len(self.ahead) + 1):
            if not os.path.lexists(os.path.join(root, *self._first(depth))):
                return Missing("/".join(self._first(depth)))
        path = os.path.join(root, *self._first(len(self.ahead)))
        found = os.path.realpath(path)
        if not found.startswith(os.path.join(root, "")):
            raise self._refusal("workspace.leads_out_to", target=format_value(found))
        try:
            self.workspace.check(self.path, os.path.relpath(found, root).replace(os.sep, "/"), os.stat(found))
            opened = os.open(found, _FILE)
        except OSError as error:
            raise self._refusal("workspace.cannot_open", reason=error.strerror) from None
        if os.path.realpath(path) != found or not os.path.samestat(os.fstat(opened), os.stat(found)):
            os.close(opened)
            raise self._refusal("workspace.keeps_changing")
        return opened

    def _first(self, depth: int) -> list[str]:
        return [name for name, _ in self.ahead[: -depth - 1 : -1]]

    def _step(self) -> int | Missing | None:
        if not self.ahead:
            raise self._refusal("workspace.leads_to_folder")
        name, linked = self.ahead.pop()
        if name == "..":
            self._up()
            return None
        try:
            if not self.ahead:
                return self._file(name, linked)
            folder = os.open(name, _FOLDER, dir_fd=self.folder)
            self._enter(folder)
            self.passed.append(name)
            if len(self.trail) < self.handles and self._here() not in self.trail:
                self.trail[self._here()], self.kept = folder, True
        except FileNotFoundError:
            if linked:
                raise self._refusal("workspace.dangling_link") from None
            return Missing("/".join((*self.passed, name)))
        except OSError as error:
            if error.errno not in _LINK or not self._follow(name):
                denied = error.errno in (errno.EACCES, errno.EPERM)
                hint = "workspace.allow_reading" if denied else "workspace.look_at"
                name = format_value("/".join((*self.passed, name)))
                raise self._refusal("workspace.cannot_open", hint=hint, reason=error.strerror, name=name) from None
        return None

    def _file(self, name: str, linked: bool) -> int | None:
        info = os.stat(name, dir_fd=self.folder, follow_symlinks=False)
        if modes.S_ISLNK(info.st_mode):
            if not self._follow(name):  # it is no longer a link: look again
                self.ahead.append((name, linked))
            return None
        found = "/".join((*self.passed, name))
        self.workspace.check(self.path, found, info)  # before it is opened: a device may act on that alone
        try:
            return os.open(name, _FILE, dir_fd=self.folder)
        except OSError as error:
            if error.errno not in _LINK:
                raise
            self.ahead.append((name, linked))  # it has become a link: look again
            return None

    def _follow(self, name: str) -> bool:
        try:
            target = os.readlink(name, dir_fd=self.folder)
        except OSError as error:
            if error.errno == errno.EINVAL:  # not a link, so it really is not a folder
                return False
            raise self._refusal("workspace.unreadable_link", reason=error.strerror) from None
        self.links += 1
        if self.links > MAX_LINKS:
            raise self._refusal("workspace.too_many_links", limit=MAX_LINKS)
        if target.startswith("/"):
            inside = below(self.workspace.root, target)
            if inside is None:
                raise self._refusal("workspace.leads_out_to", target=format_value(target))
            target = inside
            self._restart([])
        self.ahead += [(part, True) for part in reversed(parts(target))]
        return True

    def _up(self) -> None:
        if not self.passed:
            raise self._refusal("workspace.leads_out", root=format_value(self.workspace.root))
        self._restart(self.passed[:-1])

    def _restart(self, passed: list[str]) -> None:
        self.ahead += [(name, True) for name in reversed(passed)]
        self.passed = []
        self._enter(self._root())

    def _enter(self, folder: int) -> None:
        self._leave()
        self.folder, self.kept = folder, False

    def _leave(self) -> None:
        if not self.kept:  # else the trail closes it
            os.close(self.folder)

    def _here(self) -> str:
        return self.workspace.full("/".join(self.passed))

    def _known(self, names: list[str]) -> int:
        """How many names lead to a folder whose handle is on the trail; a path that goes up begins at the root."""
        depth = len(names) - 1 if self.trail and ".." not in names else 0
        while depth and self.workspace.full("/".join(names[:depth])) not in self.trail:
            depth -= 1
        return depth

    def _root(self) -> int:
        try:
            return os.open(self.workspace.root, _ROOT)
        except OSError as error:
            root = format_value(self.workspace.root)
            raise self._refusal("workspace.cannot_open_root", root=root, reason=error.strerror) from None

    def _names(self) -> list[str]:
        if "\0" in self.path or self.path.startswith("/"):
            raise self._refusal("workspace.not_relative")
        try:
            os.fsencode(self.path)
        except UnicodeEncodeError:
            raise self._refusal("workspace.bad_name") from None
        names = parts(self.path)
        if not names or names[-1] == ".." or self.path.endswith(("/", "/.")):
            raise self._refusal("workspace.names_folder")
        return names

    def _refusal(self, code: str, *, hint: str = "", **values: Value) -> InstructionsError:
        return self.workspace.refusal(self.path, code, hint=hint, **values)


@contextmanager
def trail() -> Generator[Trail, None, None]:
    """Handles of folders, kept while several files below each other are read, so that each folder is opened once."""
    handles: Trail = {}
    try:
        yield handles
    finally:
        for handle in handles.values():
            os.close(handle)


def parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def below(root: str, path: str) -> str | None:
    """The path as seen from the root, where it begins with it."""
    prefix = root.rstrip("/") + "/"
    return path.removeprefix(prefix) if path.startswith(prefix) else None
