"""The tools read_file, write_file and edit_file: files of one workspace, as the model reads and changes them.

Decides which names are read, asked about or never touched, and what the model is told when a call does not fit. How a
path becomes bytes, safely, is the matter of `workspace` and `writing`. Texts are exact, so that `old_string` can match.
"""

import difflib
import os
import re
import threading
from collections.abc import Callable, Collection, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

from lamina.errors import InstructionsError, ToolError, format_value
from lamina.prompts.workspace import FileBytes, Missing, Workspace, below, key_of, parts
from lamina.text.messages import Phrase, Value
from lamina.text.unicode import visible
from lamina.tools.closed_files import SAMPLES, OwnFiles, fold_name, is_secret_path
from lamina.tools.registry import Tool
from lamina.tools.writing import CAN_WRITE, checked_names, write_whole
from lamina.types import Decision

MAX_BYTES = 16 * 1024 * 1024
MAX_SHOWN = 100_000
"""Characters of a change that a person may be asked to approve. All of it is shown, so a longer one is blocked."""
OWN = {"lamina.toml", ".lamina", "agents.md"}
"""What tells lamina how to work: to change it is to change the instructions."""
PLAIN_DOTS = frozenset(
    (
        ".gitignore",
        ".gitkeep",
        ".keep",
        ".dockerignore",
        ".npmignore",
        ".prettierignore",
        ".eslintignore",
        ".editorconfig",
    )
)
"""Files with a dot that only leave something out or indent. Others make programs run something, as .bashrc does."""
DATABASE = re.compile(r"\.(?:db|db3|sqlite|sqlite3)(?:-wal|-shm|-journal)?$|-wal$|-shm$")
"""Opening and closing one of these drops the locks that this very process holds on it (fault R6)."""
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
"""What a model can do next differs from what a person can do."""
PATH_DESCRIPTION = "Path of the file, relative to the workspace."


def file_tools(
    root: Path, *, asks: Collection[str] = (), closed: Collection[Path] | OwnFiles = (), max_bytes: int = MAX_BYTES
) -> list[Tool]:
    """The three tools for the files below `root`; only the one that reads where the system cannot write safely. `asks`
    are further paths whose change needs a yes, such as rules; `closed` are files that are never opened, such as
    lamina's own store."""
    if not isinstance(closed, OwnFiles):
        closed = OwnFiles([Path(f"{path}{end}") for path in closed for end in ("", "-wal", "-shm", "-journal")])
    files = _Files(root, asks, closed, max_bytes)
    tools = [
        Tool.of(files.read_file, check=files.check_read, modes=("agent", "plan"), advice=(
            "Only the beginning is shown. Call it again with offset, the number of the line after the last one you see "
            "(the first line is 1), and limit."
        )),
        Tool.of(files.write_file, check=files.check_write, modes=("agent",)),
        Tool.of(files.edit_file, check=files.check_edit, modes=("agent",)),
    ]  # fmt: skip
    return tools if CAN_WRITE else tools[:1]


class _Files(Workspace):
    def __init__(self, root: Path, asks: Collection[str], closed: OwnFiles, max_bytes: int) -> None:
        super().__init__(os.path.realpath(root), max_bytes=max_bytes)
        self.given = os.path.abspath(root)
        self.asks = {fold_name("/".join(parts(path))) for path in asks}
        self.closed = closed
        self.changing = threading.Lock()

    def read_file(
        self, path: Annotated[str, PATH_DESCRIPTION],
        offset: Annotated[int | None, "Number of the first line to read; the first line of a file is 1."] = None,
        limit: Annotated[int | None, "How many lines to read at most."] = None,
    ) -> str:  # fmt: skip
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
    ) -> str:  # fmt: skip
        """Write a whole text file of the workspace: a new one, or an existing one completely. To change a part of a
        file use edit_file. Missing folders are created; the file is written completely or not at all."""
        data = content.encode()
        if len(data) > self.max_bytes:
            raise ToolError("write_file.too_large", size=len(data), limit=self.max_bytes)
        with self.changing:
            new = write_whole(self.root, self._check_writable(path), data)
        code = "write_file.created" if new else "write_file.written"
        return str(Phrase(code, file=format_value(path, 200), size=len(data), lines=len(_split_lines(content))))

    def edit_file(
        self, path: Annotated[str, PATH_DESCRIPTION],
        old_string: Annotated[str, "The text to replace, exactly as read_file shows it. It must be in the file once."],
        new_string: Annotated[str, "The text to put in its place."],
    ) -> str:  # fmt: skip
        """Replace one piece of text in a file of the workspace. Read the file first: `old_string` has to match exactly,
        white space included, and exactly once; take some lines around it when it is there more than once."""
        name = self._check_writable(path)
        with self.changing:  # calls run side by side, and each has to see the change of the other
            found = self._load_bytes(path)
            data, at = self._replace_text(path, found.data, old_string, new_string)
            write_whole(self.root, name, data, known=key_of(found.info))
        return str(Phrase("edit_file.replaced", file=format_value(path, 200), line=at))

    def check_read(self, arguments: Mapping[str, Any]) -> Decision:
        path = arguments["path"]
        if any(is_secret_path(name) for name in (path, self._below(path))):
            return Decision("confirm", Phrase("gate.secret_name"), f"read {visible(path)}")
        return Decision("safe")

    def check_write(self, arguments: Mapping[str, Any]) -> Decision:
        return self._check_change(arguments, lambda path: self._difference(path, arguments["content"]))

    def check_edit(self, arguments: Mapping[str, Any]) -> Decision:
        old, new = arguments["old_string"], arguments["new_string"]

        def difference(path: str) -> str:
            return _mark_lines("-", _split_lines(old)) + _mark_lines("+", _split_lines(new))

        return self._check_change(arguments, difference)

    def refusal(self, path: str, code: str, /, *, hint: str = "", **values: Value) -> InstructionsError:
        return super().refusal(path, code, hint=MODEL_HINTS.get(code, hint), **values)

    def check(self, path: str, found: str, info: os.stat_result) -> None:
        super().check(path, found, info)
        if found and (DATABASE.search(fold_name(found)) or (info.st_dev, info.st_ino) in self.closed.identify()):
            raise ToolError("file_tool.database", file=format_value(path))
        if found and is_secret_path(found) and not is_secret_path(path):
            raise ToolError("read_file.link_to_secret", file=format_value(path), target=format_value(found))

    def _load_bytes(self, path: str) -> FileBytes:
        found = self.load(self._below(path))
        if isinstance(found, Missing):
            raise self.refusal(path, "workspace.file_missing")
        return found

    def _replace_text(self, path: str, data: bytes, old: str, new: str) -> tuple[bytes, int]:
        """The file's bytes after the change, and its line. Line ends and the byte order mark stay as they are."""
        if not old or old == new:
            code = "edit_file.old_is_empty" if not old else "edit_file.nothing_changes"
            raise ToolError(code, hint="edit_file.give_text")
        text = self.decoded(path, data)
        windows = "\r\n" in text and "\n" not in text.replace("\r\n", "")
        if windows:
            text, old, new = (each.replace("\r\n", "\n") for each in (text, old, new))
        at = _only_match(path, text, old)
        text = text[:at] + new + text[at + len(old) :]
        mark = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
        line = text.count("\n", 0, at) + 1
        return mark + (text.replace("\n", "\r\n") if windows else text).encode(), line

    def _check_writable(self, path: str) -> str:
        """The path from the root, unless it may never be written; what needs a yes has had it by now."""
        name = self._below(path)
        names = [fold_name(each) for each in checked_names(name)]
        if ".git" in names:
            raise ToolError("write_file.belongs_to_git", file=format_value(path))
        if DATABASE.search(names[-1]):
            raise ToolError("file_tool.database", file=format_value(path))
        return name

    def _check_change(self, arguments: Mapping[str, Any], difference: Callable[[str], str]) -> Decision:
        path = arguments["path"]
        name = self._below(path)
        names = [fold_name(each) for each in parts(name)]
        if ".git" in names:
            return Decision("block", Phrase("gate.git_folder"))
        if names and (OWN & {names[0], names[-1]} or ".lamina" in names or "/".join(names) in self.asks):
            reason = Phrase("gate.steers_lamina")
        elif is_secret_path(name):
            reason = Phrase("gate.secret_name")
        elif any(each.startswith(".") and each.strip(".") and not _is_plain_dot(each) for each in names):
            reason = Phrase("gate.settings_of_programs")
        else:
            return Decision("safe")
        shows = f"write {visible(path)}\n{difference(path)}"
        if len(shows) > MAX_SHOWN:
            return Decision("block", Phrase("gate.change_too_long", reason=reason))
        return Decision("confirm", reason, shows)

    def _difference(self, path: str, content: str) -> str:
        found = self.load(self._below(path))
        before = "" if isinstance(found, Missing) else found.data.decode("utf-8", "replace")
        size, lines = len(content.encode()), _split_lines(content)
        sizes = f"bytes: {size}, new" if isinstance(found, Missing) else f"bytes: {size}, before: {len(found.data)}"
        if len(before) + len(content) > MAX_SHOWN:  # finding what differs would take long: all of it is shown
            return f"{sizes}\n{_mark_lines('+', lines)}"
        changes = list(difflib.unified_diff(_split_lines(before), lines, n=1))[2:]
        return f"{sizes}\n{_mark_lines('', changes)}"

    def _below(self, path: str) -> str:
        for root in (self.given, self.root):
            inside = below(root, path)
            if inside is not None:
                return inside
        return path


def _is_plain_dot(name: str) -> bool:
    return name in PLAIN_DOTS or name.endswith(SAMPLES)


def _split_lines(text: str) -> list[str]:
    """Lines with their ends, parted by line feeds alone."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _only_match(path: str, text: str, old: str) -> int:
    at = text.find(old)
    if at < 0:
        raise ToolError("edit_file.not_found", hint=_explain_absence(text, old), file=format_value(path))
    places: list[int] = []
    found = at
    while found >= 0 and len(places) < 6:
        places.append(text.count("\n", 0, found) + 1)
        found = text.find(old, found + 1)  # one character on: two that overlap are two
    if len(places) > 1:
        code = "edit_file.found_often" if len(places) > 5 else "edit_file.found_twice"
        raise ToolError(code, hint="edit_file.make_unique", file=format_value(path), lines=places[:5])
    return at


def _explain_absence(text: str, old: str) -> Phrase:
    """What to do about text that is not there: the usual cause is white space, or a file that has changed."""
    words, plain = " ".join(old.split()), " ".join(text.split())
    at = plain.find(words) if words else -1
    if at >= 0:
        before = plain.count(" ", 0, at)
        counts = accumulate(len(line.split()) for line in text.split("\n"))
        line = next(number for number, count in enumerate(counts, 1) if count > before)
        return Phrase("edit_file.other_white_space", line=line)
    return Phrase("edit_file.read_again")


def _mark_lines(sign: str, lines: list[str]) -> str:
    """Each line after a sign, with every character that cannot be seen escaped."""
    return "".join(f"{sign}{visible(line.removesuffix(chr(10)), chr(9))}\n" for line in lines)
