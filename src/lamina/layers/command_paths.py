"""Where a command looks: whether a word leads out of the workspace, or to a file that holds secrets.

It looks at links on the disk, since a link inside can lead out, and at what a glob becomes there; it opens nothing.
"""

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from itertools import islice
from pathlib import Path

from lamina.layers.command_words import HARMLESS_NAMES, ORDINARY_NAMES, SECRET_NAMES
from lamina.layers.shell_words import Word, visible_command

_ALWAYS = frozenset(
    [
        "-",
        "/dev/null",
        "/dev/stdin",
        "/dev/stdout",
        "/dev/stderr",
        "/etc/os-release",
        "/etc/issue",
        "/etc/debian_version",
        "/etc/hosts",
        "/etc/hostname",
        "/proc/cpuinfo",
        "/proc/meminfo",
        "/proc/version",
        "/proc/loadavg",
        "/proc/uptime",
    ]
)
"""Outside of the workspace, and of no use to anybody who means harm."""
MOST_NAMES = 2_000
"""How many files a glob may become; more are not looked at."""
MOST_ENTRIES = 20_000
_MOST_FOLDERS = 16
_SAMPLES = tuple(pattern.replace("*", "x") for pattern in SECRET_NAMES)
_SECRET = re.compile("|".join(map(translate, SECRET_NAMES)))
_HARMLESS = re.compile("|".join(map(translate, HARMLESS_NAMES)))


@dataclass(frozen=True, slots=True)
class Place:
    """The workspace, and the folders in which a part of the command may run: a `cd` before it may have failed."""

    root: str
    folders: tuple[str, ...]

    @classmethod
    def at(cls, root: Path) -> "Place":
        real = os.path.realpath(root)
        return cls(real, (real,))

    def moved(self, folder: str) -> "Place | None":
        """After `cd folder`; None when there are too many places where it may be by now."""
        folders = dict.fromkeys((*self.folders, *(os.path.realpath(os.path.join(one, folder)) for one in self.folders)))
        return Place(self.root, tuple(folders)) if len(folders) <= _MOST_FOLDERS else None

    def holds(self, path: str) -> bool:
        """Whether a path stays inside from wherever the command may run."""
        return all(self._inside(os.path.realpath(os.path.join(folder, path))) for folder in self.folders)

    def _inside(self, real: str) -> bool:
        return real == self.root or real.startswith(self.root.rstrip("/") + "/")

    def is_secret(self, path: str) -> bool:
        """Whether a path, or the file that it leads to over links, has the name of one that holds secrets."""
        reals = (os.path.realpath(os.path.join(folder, path)) for folder in self.folders)
        return is_secret_path(path) or any(is_secret_path(os.path.relpath(real, self.root)) for real in reals)

    def above(self) -> list[Path]:
        """Every folder in which a program may look for its settings, up to the top."""
        return list(dict.fromkeys(up for folder in self.folders for up in (Path(folder), *Path(folder).parents)))


def why_not_there(word: Word | str, place: Place) -> str:
    """Why a word must not be read without asking; empty when it may."""
    if isinstance(word, str):
        word = Word(word, word)
    text = word.text
    name = visible_command(text if len(text) <= 60 else f"{text[:59]}…")
    if text in _ALWAYS:
        return ""
    if word.tilde:
        return f"{name} leads to a home folder"
    if word.globs:
        return _why_not_glob(word, name, place)
    if not place.holds(text or "."):
        return f"{name} leads out of the workspace"
    return f"{name} may hold secrets" if place.is_secret(text) else ""


def _why_not_glob(word: Word, name: str, place: Place) -> str:
    """Why a glob must not be read: for where it stands, for what it means, and for what it becomes on the disk."""
    literal = word.text[: word.text.rfind("/", 0, word.globs[0]) + 1]
    rest = word.text[len(literal) :].split("/")
    if not place.holds(literal or "."):
        return f"{name} leads out of the workspace"
    if ".." in rest or any(each.startswith(".") and _pattern(each).fullmatch("..") for each in rest if each != "."):
        return f"{name} may lead out of the workspace"
    if _is_secret_glob(word.text):
        return f"{name} may hold secrets"
    for folder in place.folders:
        found = expanded(word, folder)
        if found is None:
            return f"{name} becomes more than {MOST_NAMES:,} files"
        here = Place(place.root, (folder,))
        for each in found:
            shown = visible_command(each[:60])
            if each.startswith("-"):
                return f"{name} becomes {shown}, which looks like an option"
            if not here.holds(each):
                return f"{name} becomes {shown}, which leads out of the workspace"
            if here.is_secret(each):
                return f"{name} becomes {shown}, which may hold secrets"
    return ""


def expanded(word: Word, folder: str) -> list[str] | None:
    """What bash makes of a glob in this folder, or somewhat more; None when it is too much to look at."""
    found = ["/" if word.text.startswith("/") else ""]
    at = 0
    for piece in word.text.split("/"):
        globs = any(at <= mark < at + len(piece) for mark in word.globs)
        at += len(piece) + 1
        if piece and not globs:
            found = [os.path.join(one, piece) for one in found]
        elif piece:
            pattern, dots = _pattern(piece), piece.startswith(".")
            names = [(one, name) for one in found for name in _names(os.path.join(folder, one))]
            if len(names) > MOST_ENTRIES:
                return None
            found = [
                os.path.join(one, name)
                for one, name in names
                if (dots or not name.startswith(".")) and pattern.fullmatch(name)
            ]
        if len(found) > MOST_NAMES:
            return None
    return found


def _pattern(piece: str) -> re.Pattern[str]:
    """A pattern that takes every name that bash takes. From a bracket on it takes all: their rules are many."""
    plain, bracket, _ = piece.partition("[")
    form = "".join(".*" if char == "*" else "." if char == "?" else re.escape(char) for char in plain)
    return re.compile(form + (".*" if bracket else ""), re.DOTALL)


def _names(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in islice(entries, MOST_ENTRIES + 1)]
    except OSError:  # then bash finds nothing there either
        return []


def is_secret_name(name: str) -> bool:
    """Whether a file's or a folder's name says that it holds secrets."""
    lower = name.lower()
    return bool(_SECRET.fullmatch(lower)) and not _HARMLESS.fullmatch(lower)


def is_secret_path(text: str) -> bool:
    """Whether a name in a path, or behind a : as git writes it, says so."""
    return any(map(is_secret_name, _pieces(text)))


def _pieces(text: str) -> Collection[str]:
    return [piece for piece in re.split(r"[/:=,]", text) if piece]


def _is_secret_glob(text: str) -> bool:
    for name in _pieces(text.lower()):
        if not any(mark in name for mark in "*?["):
            if is_secret_name(name):
                return True
            continue
        about_all = any(fnmatchcase(one.lower(), name) for one in ORDINARY_NAMES)
        if not about_all and any(fnmatchcase(one, name) for one in _SAMPLES):
            return True
    return False
