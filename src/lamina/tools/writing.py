"""A file below a root, written completely or not at all.

Folders are opened name by name and never through a link; a new file is written beside the old one, synced, then renamed
over it. Whatever is killed or swapped in between, a reader finds the old file or the new one.
"""

import errno
import os
import secrets
import stat as modes
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import NoReturn

from lamina.errors import ToolError, format_value
from lamina.portable import NOFOLLOW
from lamina.prompts.workspace import Key, key_of, parts
from lamina.text.messages import Value

TEMPORARY = ".lamina-{}.tmp"
MAX_DEPTH = 64

CAN_WRITE = os.open in os.supports_dir_fd
"""Whether a file can be written below a folder's handle; by its path a link could lead the way elsewhere."""
_ROOT: int = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_FOLDER = _ROOT | NOFOLLOW
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW
_LINK = {errno.ELOOP, errno.ENOTDIR, errno.EMLINK}


def write_whole(root: str, path: str, data: bytes, *, known: Key | None = None) -> bool:
    """Write a file below the root, making its folders; True when it is new. Its mode is kept, links are never taken.

    `known` is the version that the new text was made from: when another one is there, nothing is written.
    """
    *folders, name = checked_names(path)
    with _open_folder(root, folders, path) as folder:
        old = _stat_old(folder, name, path)
        if known is not None and (old is None or key_of(old) != known):
            _refuse("write_file.changed_since", path)
        temporary = TEMPORARY.format(secrets.token_hex(8))
        try:
            _fill(folder, temporary, data, old)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        except OSError as error:
            _refuse("write_file.failed", path, reason=error.strerror)
        finally:
            with suppress(OSError):  # after the rename it is not there any more
                os.unlink(temporary, dir_fd=folder)
        return old is None


def checked_names(path: str) -> list[str]:
    names = parts(path)
    if "\0" in path or path.startswith("/") or ".." in names or len(names) > MAX_DEPTH:
        _refuse("write_file.outside", path)
    if not names or path.endswith(("/", "/.")):
        _refuse("workspace.names_folder", path)
    return names


def _fill(folder: int, name: str, data: bytes, old: os.stat_result | None) -> None:
    opened = os.open(name, _NEW, 0o666 if old is None else 0o600, dir_fd=folder)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(opened, rest) :]
        if old is not None:
            if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                with suppress(OSError):  # only root can give a file away; any other user becomes its owner
                    os.fchown(opened, old.st_uid, old.st_gid)
            os.fchmod(opened, modes.S_IMODE(old.st_mode) & 0o777)
        os.fsync(opened)
    finally:
        os.close(opened)


def _stat_old(folder: int, name: str, path: str) -> os.stat_result | None:
    try:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        _refuse("write_file.bad_name", path, reason=error.strerror)
    if modes.S_ISLNK(info.st_mode):
        _refuse("write_file.link", path)
    if not modes.S_ISREG(info.st_mode):
        _refuse("write_file.not_regular", path)
    if not info.st_mode & 0o222:
        _refuse("write_file.read_only", path)
    return info


@contextmanager
def _open_folder(root: str, names: list[str], path: str) -> Generator[int]:
    """The handle of the folder, made where it is missing; each name is opened below the one before, never followed."""
    if not CAN_WRITE:
        _refuse("write_file.unsafe_system", path)
    try:
        here = os.open(root, _ROOT)
    except OSError as error:
        _refuse("write_file.no_root", path, root=format_value(root), reason=error.strerror)
    try:
        for name in names:
            here = _enter(here, name, path)
        yield here
    finally:
        os.close(here)


def _enter(here: int, name: str, path: str) -> int:
    try:
        try:
            below = os.open(name, _FOLDER, dir_fd=here)
        except FileNotFoundError:
            with suppress(FileExistsError):  # another process was quicker
                os.mkdir(name, dir_fd=here)
                os.fsync(here)
            below = os.open(name, _FOLDER, dir_fd=here)
    except OSError as error:
        code = "write_file.way_is_no_folder" if error.errno in _LINK else "write_file.way_is_closed"
        _refuse(code, path, hint="write_file.name_real_folder", name=format_value(name), reason=error.strerror)
    os.close(here)
    return below


def _refuse(code: str, path: str, *, hint: str = "", **values: Value) -> NoReturn:
    raise ToolError(code, hint=hint, file=format_value(path, 200), **values)
