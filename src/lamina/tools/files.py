"""The tools read_file, write_file and edit_file: files of one workspace, as the model reads and changes them.

Decides which files may be read, which need a yes and which are never touched, and writes them without following a link
out of the workspace. How a path is read safely is in `prompts.workspace`. Texts are exact, so that `old_string` can
match.
"""

import difflib
import errno
import os
import re
import secrets
import stat
import threading
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, NoReturn

from lamina.errors import InstructionsError, ToolError, format_value
from lamina.portable import NOFOLLOW
from lamina.prompts.workspace import FileBytes, FileKey, Missing, Workspace, below, key_of, parts
from lamina.text.messages import Phrase, Value
from lamina.text.unicode import visible
from lamina.tools.closed_files import SAMPLES, OwnFiles, fold_name, is_secret_path
from lamina.tools.registry import Tool
from lamina.types import Decision

MAX_BYTES = 16 * 1024 * 1024
MAX_CHANGE_CHARS = 100_000
"""A person who is asked about a change sees all of it, so a longer one is blocked."""
MAX_FOLDERS = 64
INSTRUCTION_NAMES = {"lamina.toml", ".lamina", "agents.md"}
"""They tell lamina how to work: to change one is to change the instructions."""
HARMLESS_DOT_FILES = frozenset(
    ".gitignore .gitkeep .keep .dockerignore .npmignore .prettierignore .eslintignore .editorconfig".split()
)
"""They only leave something out or indent. Other files with a dot make programs run something, as .bashrc does."""
CAN_WRITE = os.open in os.supports_dir_fd
"""Whether a file can be opened below a folder's handle. By its path a link could lead elsewhere."""
_ROOT_FLAGS: int = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_FOLDER_FLAGS = _ROOT_FLAGS | NOFOLLOW
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW
_LINK_ERRORS = {errno.ELOOP, errno.ENOTDIR, errno.EMLINK}
DATABASE_NAME = re.compile(r"\.(?:db|db3|sqlite|sqlite3)(?:-wal|-shm|-journal)?$|-wal$|-shm$")
"""Closing such a file drops the locks that this process holds on it (fault R6)."""
MODEL_HINTS = {
    "workspace.too_large": "read_file.read_a_part",
    "workspace.not_utf8": "read_file.not_text",
    "workspace.is_folder": "read_file.name_a_file",
    "workspace.names_folder": "read_file.name_a_file",
    "workspace.file_missing": "read_file.check_name",
    "workspace.not_relative": "read_file.give_relative_path",
    "workspace.leads_out": "read_file.only_workspace",
    "workspace.leads_out_to": "read_file.only_workspace",
}
"""Next steps for a model, where they differ from those for a person."""
PATH_DESCRIPTION = "Path of the file, relative to the workspace."


def file_tools(
    root: Path, *, asks: Collection[str] = (), closed: Collection[Path] | OwnFiles = (), max_bytes: int = MAX_BYTES
) -> list[Tool]:
    """The three tools for the files below `root`, or read_file alone where the system cannot write safely.

    Changing one of the paths in `asks`, such as a file of rules, needs a yes. Files in `closed`, such as lamina's own
    store, are never opened.
    """
    if not isinstance(closed, OwnFiles):
        closed = OwnFiles([Path(f"{path}{end}") for path in closed for end in ("", "-wal", "-shm", "-journal")])
    files = _FileTools(root, asks, closed, max_bytes)
    tools = [
        Tool.of(files.read_file, check=files.check_read, modes=("agent", "plan"), advice=(
            "Only the beginning is shown. Call it again with offset, the number of the line after the last one you see "
            "(the first line is 1), and limit."
        )),
        Tool.of(files.write_file, check=files.check_write, modes=("agent",)),
        Tool.of(files.edit_file, check=files.check_edit, modes=("agent",)),
    ]  # fmt: skip
    return tools if CAN_WRITE else tools[:1]


class _FileTools(Workspace):
    def __init__(self, root: Path, asks: Collection[str], closed: OwnFiles, max_bytes: int) -> None:
        super().__init__(os.path.realpath(root), max_bytes=max_bytes)
        self.root_as_given = os.path.abspath(root)
        self.asks = {fold_name("/".join(parts(path))) for path in asks}
        self.closed = closed
        self.change_lock = threading.Lock()

    def read_file(
        self,
        path: Annotated[str, PATH_DESCRIPTION],
        offset: Annotated[int | None, "Number of the first line to read; the first line of a file is 1."] = None,
        limit: Annotated[int | None, "How many lines to read at most."] = None,
    ) -> str:
        """Read a text file of the workspace, exactly as it is. For large files read a part with offset and limit."""
        text = self.decoded(path, self._load_bytes(path).data)
        if offset is None and limit is None:
            return text or str(Phrase("read_file.empty"))
        first, lines = offset if offset is not None else 1, _split_lines(text)
        if first < 1 or (limit is not None and limit < 1):
            raise ToolError("read_file.bad_range", offset=str(offset), limit=str(limit))
        if first > len(lines):
            raise ToolError("read_file.past_end", file=format_value(path), lines=len(lines), first=first)
        last = min(len(lines), first - 1 + (limit or len(lines)))
        part = "".join(lines[first - 1 : last])
        newline = "" if part.endswith("\n") else "\n"
        if (first, last) == (1, len(lines)):
            return part
        return f"{part}{newline}{Phrase('read_file.lines', first=first, last=last, count=len(lines))}"

    def write_file(
        self, path: Annotated[str, PATH_DESCRIPTION], content: Annotated[str, "The whole text of the file."]
    ) -> str:
        """Write a whole text file of the workspace: a new one, or an existing one completely. To change a part of a
        file use edit_file. Missing folders are created; the file is written completely or not at all."""
        data = content.encode()
        if len(data) > self.max_bytes:
            raise ToolError("write_file.too_large", size=len(data), limit=self.max_bytes)
        with self.change_lock:
            new = write_atomically(self.root, self._check_writable(path), data)
        code = "write_file.created" if new else "write_file.written"
        return str(Phrase(code, file=format_value(path, 200), size=len(data), lines=len(_split_lines(content))))

    def edit_file(
        self,
        path: Annotated[str, PATH_DESCRIPTION],
        old_string: Annotated[str, "The text to replace, exactly as read_file shows it. It must be in the file once."],
        new_string: Annotated[str, "The text to put in its place."],
    ) -> str:
        """Replace one piece of text in a file of the workspace. Read the file first: `old_string` has to match exactly,
        white space included, and exactly once; take some lines around it when it is there more than once."""
        name = self._check_writable(path)
        with self.change_lock:  # calls may run at the same time, and each must see the other's change
            found = self._load_bytes(path)
            data, at = self._replace_text(path, found.data, old_string, new_string)
            write_atomically(self.root, name, data, known=key_of(found.info))
        return str(Phrase("edit_file.replaced", file=format_value(path, 200), line=at))

    def check_read(self, arguments: Mapping[str, Any]) -> Decision:
        path = arguments["path"]
        if any(is_secret_path(name) for name in (path, self._relative_path(path))):
            return Decision("confirm", Phrase("gate.secret_name"), f"read {visible(path)}")
        return Decision("safe")

    def check_write(self, arguments: Mapping[str, Any]) -> Decision:
        return self._check_change(arguments, lambda path: self._describe_change(path, arguments["content"]))

    def check_edit(self, arguments: Mapping[str, Any]) -> Decision:
        old, new = arguments["old_string"], arguments["new_string"]

        def difference(path: str) -> str:
            return _mark_lines("-", _split_lines(old)) + _mark_lines("+", _split_lines(new))

        return self._check_change(arguments, difference)

    def refusal(self, path: str, code: str, /, *, hint: str = "", **values: Value) -> InstructionsError:
        return super().refusal(path, code, hint=MODEL_HINTS.get(code, hint), **values)

    def check(self, path: str, found: str, info: os.stat_result) -> None:
        super().check(path, found, info)
        if found and (DATABASE_NAME.search(fold_name(found)) or (info.st_dev, info.st_ino) in self.closed.identify()):
            raise ToolError("file_tool.database", file=format_value(path))
        if found and is_secret_path(found) and not is_secret_path(path):
            raise ToolError("read_file.link_to_secret", file=format_value(path), target=format_value(found))

    def _load_bytes(self, path: str) -> FileBytes:
        found = self.load(self._relative_path(path))
        if isinstance(found, Missing):
            raise self.refusal(path, "workspace.file_missing")
        return found

    def _replace_text(self, path: str, data: bytes, old: str, new: str) -> tuple[bytes, int]:
        """The file's bytes after the change, and the line of the change. Line ends and the byte order mark are kept."""
        if not old or old == new:
            code = "edit_file.old_is_empty" if not old else "edit_file.nothing_changes"
            raise ToolError(code, hint="edit_file.give_text")
        text = self.decoded(path, data)
        windows = "\r\n" in text and "\n" not in text.replace("\r\n", "")
        if windows:
            text, old, new = (each.replace("\r\n", "\n") for each in (text, old, new))
        at = _find_single_match(path, text, old)
        text = text[:at] + new + text[at + len(old) :]
        mark = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
        line = text.count("\n", 0, at) + 1
        return mark + (text.replace("\n", "\r\n") if windows else text).encode(), line

    def _check_writable(self, path: str) -> str:
        """The path below the root. Raises ToolError for a file that is never written, even after a yes."""
        name = self._relative_path(path)
        names = [fold_name(each) for each in split_path(name)]
        if ".git" in names:
            raise ToolError("write_file.belongs_to_git", file=format_value(path))
        if DATABASE_NAME.search(names[-1]):
            raise ToolError("file_tool.database", file=format_value(path))
        return name

    def _check_change(self, arguments: Mapping[str, Any], difference: Callable[[str], str]) -> Decision:
        path = arguments["path"]
        name = self._relative_path(path)
        names = [fold_name(each) for each in parts(name)]
        if ".git" in names:
            return Decision("block", Phrase("gate.git_folder"))
        if names and (INSTRUCTION_NAMES & {names[0], names[-1]} or ".lamina" in names or "/".join(names) in self.asks):
            reason = Phrase("gate.steers_lamina")
        elif is_secret_path(name):
            reason = Phrase("gate.secret_name")
        elif any(each.startswith(".") and each.strip(".") and not _is_harmless_dot_file(each) for each in names):
            reason = Phrase("gate.settings_of_programs")
        else:
            return Decision("safe")
        shows = f"write {visible(path)}\n{difference(path)}"
        if len(shows) > MAX_CHANGE_CHARS:
            return Decision("block", Phrase("gate.change_too_long", reason=reason))
        return Decision("confirm", reason, shows)

    def _describe_change(self, path: str, content: str) -> str:
        found = self.load(self._relative_path(path))
        before = "" if isinstance(found, Missing) else found.data.decode("utf-8", "replace")
        size, lines = len(content.encode()), _split_lines(content)
        sizes = f"bytes: {size}, new" if isinstance(found, Missing) else f"bytes: {size}, before: {len(found.data)}"
        if len(before) + len(content) > MAX_CHANGE_CHARS:  # a difference would take long to find: show all of it
            return f"{sizes}\n{_mark_lines('+', lines)}"
        changes = list(difflib.unified_diff(_split_lines(before), lines, n=1))[2:]
        return f"{sizes}\n{_mark_lines('', changes)}"

    def _relative_path(self, path: str) -> str:
        for root in (self.root_as_given, self.root):
            inside = below(root, path)
            if inside is not None:
                return inside
        return path


def _is_harmless_dot_file(name: str) -> bool:
    return name in HARMLESS_DOT_FILES or name.endswith(SAMPLES)


def _split_lines(text: str) -> list[str]:
    """Lines with their ends; only line feeds end a line."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _find_single_match(path: str, text: str, old: str) -> int:
    at = text.find(old)
    if at < 0:
        raise ToolError("edit_file.not_found", hint=_explain_absence(text, old), file=format_value(path))
    places: list[int] = []
    found = at
    while found >= 0 and len(places) < 6:
        places.append(text.count("\n", 0, found) + 1)
        found = text.find(old, found + 1)  # one character on: overlapping matches count as two
    if len(places) > 1:
        code = "edit_file.found_often" if len(places) > 5 else "edit_file.found_twice"
        raise ToolError(code, hint="edit_file.make_unique", file=format_value(path), lines=places[:5])
    return at


def _explain_absence(text: str, old: str) -> Phrase:
    """A hint for text that was not found: usually white space differs, or the file has changed."""
    words, plain = " ".join(old.split()), " ".join(text.split())
    at = plain.find(words) if words else -1
    if at >= 0:
        before = plain.count(" ", 0, at)
        counts = accumulate(len(line.split()) for line in text.split("\n"))
        line = next(number for number, count in enumerate(counts, 1) if count > before)
        return Phrase("edit_file.other_white_space", line=line)
    return Phrase("edit_file.read_again")


def _mark_lines(sign: str, lines: list[str]) -> str:
    """Each line after a sign, with invisible characters escaped."""
    return "".join(f"{sign}{visible(line.removesuffix(chr(10)), chr(9))}\n" for line in lines)


# Writing


def write_atomically(root: str, path: str, data: bytes, *, known: FileKey | None = None) -> bool:
    """Write a file below the root completely or not at all, making its folders; True when it is new.

    It is written beside the old one, synced, and renamed over it, so a reader finds the old file or the new one
    whatever is killed in between. Its mode is kept; no link is followed. `known` is the version that the new text was
    made from: when another one is there, nothing is written.
    """
    *folders, name = split_path(path)
    with _open_folder(root, folders, path) as folder:
        old = _stat_existing(folder, name, path)
        if known is not None and (old is None or key_of(old) != known):
            _refuse("write_file.changed_since", path)
        temporary = f".lamina-{secrets.token_hex(8)}.tmp"
        try:
            _write_new(folder, temporary, data, old)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        except OSError as error:
            _refuse("write_file.failed", path, reason=error.strerror)
        finally:
            with suppress(OSError):  # after the rename it is gone
                os.unlink(temporary, dir_fd=folder)
        return old is None


def split_path(path: str) -> list[str]:
    """The names of a path that stays below the root and can be a file's."""
    names = parts(path)
    if "\0" in path or path.startswith("/") or ".." in names or len(names) > MAX_FOLDERS:
        _refuse("write_file.outside", path)
    if not names or path.endswith(("/", "/.")):
        _refuse("workspace.names_folder", path)
    return names


def _write_new(folder: int, name: str, data: bytes, old: os.stat_result | None) -> None:
    opened = os.open(name, _NEW_FILE_FLAGS, 0o666 if old is None else 0o600, dir_fd=folder)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(opened, rest) :]
        if old is not None:
            if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                with suppress(OSError):  # only root can give a file away; any other user becomes its owner
                    os.fchown(opened, old.st_uid, old.st_gid)
            os.fchmod(opened, stat.S_IMODE(old.st_mode) & 0o777)
        os.fsync(opened)
    finally:
        os.close(opened)


def _stat_existing(folder: int, name: str, path: str) -> os.stat_result | None:
    try:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        _refuse("write_file.bad_name", path, reason=error.strerror)
    if stat.S_ISLNK(info.st_mode):
        _refuse("write_file.link", path)
    if not stat.S_ISREG(info.st_mode):
        _refuse("write_file.not_regular", path)
    if not info.st_mode & 0o222:
        _refuse("write_file.read_only", path)
    return info


@contextmanager
def _open_folder(root: str, names: list[str], path: str) -> Generator[int]:
    """A handle of the folder, which is made where it is missing. Each name is opened below the one before, and never
    through a link."""
    if not CAN_WRITE:
        _refuse("write_file.unsafe_system", path)
    try:
        here = os.open(root, _ROOT_FLAGS)
    except OSError as error:
        _refuse("write_file.no_root", path, root=format_value(root), reason=error.strerror)
    try:
        for name in names:
            here = _open_subfolder(here, name, path)
        yield here
    finally:
        os.close(here)


def _open_subfolder(here: int, name: str, path: str) -> int:
    try:
        try:
            below = os.open(name, _FOLDER_FLAGS, dir_fd=here)
        except FileNotFoundError:
            with suppress(FileExistsError):  # another process was quicker
                os.mkdir(name, dir_fd=here)
                os.fsync(here)
            below = os.open(name, _FOLDER_FLAGS, dir_fd=here)
    except OSError as error:
        code = "write_file.way_is_no_folder" if error.errno in _LINK_ERRORS else "write_file.way_is_closed"
        _refuse(code, path, hint="write_file.name_real_folder", name=format_value(name), reason=error.strerror)
    os.close(here)
    return below


def _refuse(code: str, path: str, *, hint: str = "", **values: Value) -> NoReturn:
    raise ToolError(code, hint=hint, file=format_value(path, 200), **values)
