"""The tools read_file, write_file and edit_file: files of one workspace, as the model reads and changes them (S8).

This room decides which names are read, asked about or never touched, and what the model is told when something does not
fit. How a path becomes bytes, safely, is hidden by `workspace` and `writing`. Texts are exact, so that `old` can match.
"""

import difflib
import os
import re
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from lamina.errors import InstructionsError, ToolError, shown
from lamina.layers.hidden import ANY, visible
from lamina.layers.tools import Tool
from lamina.layers.workspace import FileBytes, Missing, Workspace, below, key_of, parts
from lamina.layers.writing import checked_names, write_whole
from lamina.types import Decision

MAX_BYTES = 16 * 1024 * 1024
MAX_SHOWN = 100_000
"""Characters of a change that one may be asked to approve. All of it is shown, so what is longer is not asked."""
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
SECRET = re.compile(
    r"\.env(?:\..+)?|.+\.env|.+\.(?:pem|key|p12|pfx|pkcs12|jks|keystore|kdbx|ppk|gpg|ovpn|tfstate|tfvars)|[._]netrc"
    r"|id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?(?!.*\.pub$).*|\.(?:pgpass|my\.cnf|npmrc|pypirc|htpasswd|git-credentials"
    r"|vault-token|envrc|dockercfg|boto|s3cfg)|(?:.*[._-])?(?:credentials?|secrets?|passwords?)"
    r"(?:\.(?:json|ya?ml|toml|ini|txt|csv|xml|cfg|conf|properties))?|service[-_]account.*\.json|wallet\.dat|shadow"
)
SECRET_FOLDERS = {".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".gcloud", ".password-store"}
HARMLESS = re.compile(r".*\.(?:example|sample|template|dist|pub)")
HINTS = {
    "is too large": "read a part of it with a command such as head, tail or sed -n",
    "is not UTF-8": "it is no text; look at it with a command such as file",
    "is a folder": "name a file in it",
    "names a folder": "name a file in it",
    "is not there": "check the name, or look which files are there",
    "is no path": "give a path relative to the workspace",
    "leads out": "only files of the workspace can be read; ask the user for another one",
}
PLACE = "Path of the file, relative to the workspace."


def file_tools(
    root: Path, *, asks: Collection[str] = (), closed: Collection[Path] = (), max_bytes: int = MAX_BYTES
) -> list[Tool]:
    """The three tools for the files below `root`. `asks` are further paths whose change needs a yes, such as rules;
    `closed` are files that are never opened, such as lamina's own store."""
    files = _Files(root, asks, closed, max_bytes)
    return [
        Tool.of(files.read_file, check=files.check_read, modes=("agent", "plan"), advice=(
            "Only the beginning is shown. Call it again with offset, the number of the line after the last one you see "
            "(the first line is 1), and limit."
        )),
        Tool.of(files.write_file, check=files.check_write, modes=("agent",)),
        Tool.of(files.edit_file, check=files.check_edit, modes=("agent",)),
    ]  # fmt: skip


class _Files(Workspace):
    def __init__(self, root: Path, asks: Collection[str], closed: Collection[Path], max_bytes: int) -> None:
        super().__init__(os.path.realpath(root), max_bytes=max_bytes)
        self.given = os.path.abspath(root)
        self.asks = {_folded("/".join(parts(path))) for path in asks}
        self.closed = [os.fspath(path) + end for path in closed for end in ("", "-wal", "-shm", "-journal")]
        self.changing = threading.Lock()

    def read_file(
        self, path: Annotated[str, PLACE],
        offset: Annotated[int | None, "Number of the first line to read; the first line of a file is 1."] = None,
        limit: Annotated[int | None, "How many lines to read at most."] = None,
    ) -> str:  # fmt: skip
        """Read a text file of the workspace, exactly as it is. For large files read a part with offset and limit."""
        text = self.decoded(path, self._loaded(path).data)
        if offset is None and limit is None:
            return text or "[the file is empty]"
        first, lines = offset if offset is not None else 1, _lines(text)
        if first < 1 or (limit is not None and limit < 1):
            raise ToolError(f"offset={offset}, limit={limit}: both count from 1", hint="leave out what you do not need")
        if first > len(lines):
            raise ToolError(f"{shown(path)} has {len(lines)} lines and none at {first}", hint="take a smaller offset")
        last = min(len(lines), first - 1 + (limit or len(lines)))
        part = "".join(lines[first - 1 : last])
        newline = "" if part.endswith("\n") else "\n"
        return part if (first, last) == (1, len(lines)) else f"{part}{newline}[lines {first} to {last} of {len(lines)}]"

    def write_file(
        self, path: Annotated[str, PLACE], content: Annotated[str, "The whole text of the file."]
    ) -> str:  # fmt: skip
        """Write a whole text file of the workspace: a new one, or everything of an old one anew. To change a part of a
        file use edit_file. Folders on the way are made; the file is written wholly or not at all."""
        data = content.encode()
        if len(data) > self.max_bytes:
            raise ToolError(f"{len(data)} bytes are too many, {self.max_bytes} are allowed", hint="split the file")
        with self.changing:
            new = write_whole(self.root, self._writable(path), data)
        return f"{'Made' if new else 'Wrote'} {shown(path, 200)}: {len(data)} bytes, {len(_lines(content))} lines."

    def edit_file(
        self, path: Annotated[str, PLACE],
        old: Annotated[str, "The text to replace, exactly as read_file shows it. It must stand in the file once."],
        new: Annotated[str, "The text to put in its place."],
    ) -> str:  # fmt: skip
        """Replace one piece of text in a file of the workspace. Read the file first: `old` has to match exactly, white
        space included, and exactly once; take some lines around it when it stands there more than once."""
        name = self._writable(path)
        with self.changing:  # calls run side by side, and each has to see the change of the other
            found = self._loaded(path)
            data, at = self._edited(path, found.data, old, new)
            write_whole(self.root, name, data, known=key_of(found.info))
        return f"Replaced the text at line {at} of {shown(path, 200)}."

    def check_read(self, arguments: Mapping[str, Any]) -> Decision:
        path = arguments["path"]
        if any(is_secret(name) for name in (path, self._below(path))):
            return Decision("confirm", "the name says that it holds secrets", f"read {visible(path)}")
        return Decision("safe")

    def check_write(self, arguments: Mapping[str, Any]) -> Decision:
        return self._check_change(arguments, lambda path: self._difference(path, arguments["content"]))

    def check_edit(self, arguments: Mapping[str, Any]) -> Decision:
        def difference(path: str) -> str:
            return _marked("-", _lines(arguments["old"])) + _marked("+", _lines(arguments["new"]))

        return self._check_change(arguments, difference)

    def refusal(self, path: str, what: str, hint: str) -> InstructionsError:
        return super().refusal(
            path, what, next((words for begin, words in HINTS.items() if what.startswith(begin)), hint)
        )

    def check(self, path: str, found: str, info: os.stat_result) -> None:
        super().check(path, found, info)
        if found and (DATABASE.search(_folded(found)) or self._is_closed(info)):
            raise ToolError(f"{shown(path)} is a database, not a text", hint="use a command such as sqlite3 to read it")
        if found and is_secret(found) and not is_secret(path):
            raise ToolError(
                f"{shown(path)} is a link to {shown(found)}", hint="read that name itself, so that it is asked"
            )

    def _is_closed(self, info: os.stat_result) -> bool:
        for path in self.closed:
            with suppress(OSError):  # it is not there, so it is not this one
                if os.path.samestat(os.stat(path), info):
                    return True
        return False

    def _loaded(self, path: str) -> FileBytes:
        found = self.load(self._below(path))
        if isinstance(found, Missing):
            raise self.refusal(path, "is not there", "")
        return found

    def _edited(self, path: str, data: bytes, old: str, new: str) -> tuple[bytes, int]:
        """The file's bytes after the change, and its line. Line ends and the byte order mark stay as they are."""
        if not old or old == new:
            what = "old is empty" if not old else "old and new are the same"
            raise ToolError(what, hint="give the text to replace; for a whole new text use write_file")
        text = self.decoded(path, data)
        windows = "\r\n" in text and "\n" not in text.replace("\r\n", "")
        if windows:
            text, old, new = (each.replace("\r\n", "\n") for each in (text, old, new))
        at = _only_match(path, text, old)
        text = text[:at] + new + text[at + len(old) :]
        mark = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
        line = text.count("\n", 0, at) + 1
        return mark + (text.replace("\n", "\r\n") if windows else text).encode(), line

    def _writable(self, path: str) -> str:
        """The path from the root, where it may be written at all; what only asks has been asked by now."""
        name = self._below(path)
        names = [_folded(each) for each in checked_names(name)]
        if ".git" in names:
            raise ToolError(f"{shown(path)} belongs to git", hint="change it with a git command")
        if DATABASE.search(names[-1]):
            raise ToolError(f"{shown(path)} is a database, not a text", hint="use a command such as sqlite3")
        return name

    def _check_change(self, arguments: Mapping[str, Any], difference: Callable[[str], str]) -> Decision:
        path = arguments["path"]
        name = self._below(path)
        names = [_folded(each) for each in parts(name)]
        if ".git" in names:
            return Decision("block", "files in .git are changed by git alone")
        if names and (OWN & {names[0], names[-1]} or ".lamina" in names or "/".join(names) in self.asks):
            reason = "it is a file that tells lamina how to work"
        elif is_secret(name):
            reason = "the name says that it holds secrets"
        elif any(each.startswith(".") and each.strip(".") and not _is_plain_dot(each) for each in names):
            reason = "programs read files with such a name as their settings, and may run what they say"
        else:
            return Decision("safe")
        shows = f"write {visible(path)}\n{difference(path)}"
        if len(shows) > MAX_SHOWN:
            return Decision("block", f"{reason}, and the change is too long for anybody to approve; make smaller ones")
        return Decision("confirm", reason, shows)

    def _difference(self, path: str, content: str) -> str:
        found = self.load(self._below(path))
        before = "" if isinstance(found, Missing) else found.data.decode("utf-8", "replace")
        size = f"{len(content.encode())} bytes, {'new' if isinstance(found, Missing) else f'{len(found.data)} before'}"
        if len(before) + len(content) > MAX_SHOWN:  # finding what differs would take long: all of it is shown
            return f"{size}\n{_marked('+', _lines(content))}"
        lines = list(difflib.unified_diff(_lines(before), _lines(content), n=1))[2:]
        return f"{size}\n{_marked('', lines)}"

    def _below(self, path: str) -> str:
        for root in (self.given, self.root):
            inside = below(root, path)
            if inside is not None:
                return inside
        return path


def is_secret(path: str) -> bool:
    """Whether the name alone says that a file holds keys or passwords."""
    *folders, name = map(_folded, parts(path) or [""])
    return bool(SECRET.fullmatch(name) and not HARMLESS.fullmatch(name)) or not SECRET_FOLDERS.isdisjoint(folders)


def _is_plain_dot(name: str) -> bool:
    return name in PLAIN_DOTS or bool(HARMLESS.fullmatch(name))


def _folded(name: str) -> str:
    """As a file system compares names that ignores their capitals, and characters that nobody sees."""
    return ANY.sub("", name).casefold()


def _lines(text: str) -> list[str]:
    """Lines with their ends, parted by line feeds alone."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _only_match(path: str, text: str, old: str) -> int:
    at = text.find(old)
    if at < 0:
        raise ToolError(f"old stands nowhere in {shown(path)}", hint=_near(text, old))
    places: list[int] = []
    found = at
    while found >= 0 and len(places) < 6:
        places.append(text.count("\n", 0, found) + 1)
        found = text.find(old, found + 1)  # one character on: two that overlap are two
    if len(places) > 1:
        lines = ", ".join(map(str, places[:5])) + (" and more" if len(places) > 5 else "")
        raise ToolError(
            f"old stands more than once in {shown(path)}: at lines {lines}",
            hint="add lines before or after it to old and new, until it stands there once",
        )
    return at


def _near(text: str, old: str) -> str:
    """What to do about text that is not there: the usual reason is white space, or a file that has changed."""
    words = [re.escape(word) for word in old.split()]
    found = re.search(r"\s+".join(words), text) if 0 < len(words) <= 1_000 else None
    if found:
        line = text.count("\n", 0, found.start()) + 1
        return f"at line {line} it stands with other white space or line ends: copy it exactly from read_file"
    return "read the file again and copy the text exactly, without anything that is not in the file"


def _marked(sign: str, lines: list[str]) -> str:
    """One line each, with everything that nobody sees escaped."""
    return "".join(f"{sign}{visible(line.removesuffix(chr(10)), chr(9))}\n" for line in lines)
