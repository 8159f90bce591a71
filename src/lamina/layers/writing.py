"""A file below a root, written whole or not at all (faults P6, T7).

This room hides the way of the bytes: folders opened name by name and never through a link, a new file beside the old
one, synced, then renamed over it. Whatever is killed or swapped meanwhile, a reader finds the old file or the new one.
"""

import errno
import os
import secrets
import stat as modes
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import NoReturn

from lamina.errors import ToolError, shown
from lamina.layers.workspace import Key, key_of, parts

TEMPORARY = ".lamina-{}.tmp"
MAX_DEPTH = 64

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_LINK = {errno.ELOOP, errno.ENOTDIR, errno.EMLINK}


def write_whole(root: str, path: str, data: bytes, *, known: Key | None = None) -> bool:
    """Write a file below the root, making its folders; True when it is new. Its mode is kept, links are never taken.

    `known` is the version that the new text was made from: when another one lies there, nothing is written.
    """
    *folders, name = checked_names(path)
    with _folder(root, folders, path) as folder:
        old = _old(folder, name, path)
        if known is not None and (old is None or key_of(old) != known):
            _refuse(path, "was changed by somebody else meanwhile", "read it again, then repeat the change")
        temporary = TEMPORARY.format(secrets.token_hex(8))
        try:
            _fill(folder, temporary, data, old)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        except OSError as error:
            _refuse(path, f"cannot be written: {error.strerror}", "check the disk and who may write there")
        finally:
            with suppress(OSError):  # after the rename it is not there any more
                os.unlink(temporary, dir_fd=folder)
        return old is None


def checked_names(path: str) -> list[str]:
    names = parts(path)
    if "\0" in path or path.startswith("/") or ".." in names or len(names) > MAX_DEPTH:
        _refuse(path, "is no path below the workspace", "give a relative path without `..`")
    if not names or path.endswith(("/", "/.")):
        _refuse(path, "names a folder, not a file", "name the file")
    return names


def _fill(folder: int, name: str, data: bytes, old: os.stat_result | None) -> None:
    opened = os.open(name, _NEW, 0o666 if old is None else 0o600, dir_fd=folder)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(opened, rest) :]
        if old is not None:
            if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                with suppress(OSError):  # only root can give a file away; everybody else becomes its owner
                    os.fchown(opened, old.st_uid, old.st_gid)
            os.fchmod(opened, modes.S_IMODE(old.st_mode) & 0o777)
        os.fsync(opened)
    finally:
        os.close(opened)


def _old(folder: int, name: str, path: str) -> os.stat_result | None:
    try:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        _refuse(path, f"cannot be written: {error.strerror}", "take another name")
    if modes.S_ISLNK(info.st_mode):
        _refuse(path, "is a link, and files are not written through links", "write to the file that it leads to")
    if not modes.S_ISREG(info.st_mode):
        _refuse(path, "is there and is no regular file", "take another name")
    if not info.st_mode & 0o222:
        _refuse(path, "is read-only", "leave it as it is, or ask the user to allow writing it")
    return info


@contextmanager
def _folder(root: str, names: list[str], path: str) -> Generator[int]:
    """The handle of the folder, made where it is missing; each name is opened below the one before, never followed."""
    if os.open not in os.supports_dir_fd:
        _refuse(path, "cannot be written safely on this system", "use Linux, macOS or WSL")
    try:
        here = os.open(root, _FOLDER & ~getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        _refuse(path, f"cannot be written: {shown(root)}: {error.strerror}", "check the workspace folder")
    try:
        for name in names:
            here = _into(here, name, path)
        yield here
    finally:
        os.close(here)


def _into(here: int, name: str, path: str) -> int:
    try:
        try:
            below = os.open(name, _FOLDER, dir_fd=here)
        except FileNotFoundError:
            with suppress(FileExistsError):  # somebody was quicker
                os.mkdir(name, dir_fd=here)
                os.fsync(here)
            below = os.open(name, _FOLDER, dir_fd=here)
    except OSError as error:
        what = "is a link or no folder" if error.errno in _LINK else f"cannot be opened: {error.strerror}"
        _refuse(path, f"cannot be written: {shown(name)} on its way {what}", "name the folder where the file really is")
    os.close(here)
    return below


def _refuse(path: str, what: str, hint: str) -> NoReturn:
    raise ToolError(f"{shown(path, 200)} {what}", hint=hint)
