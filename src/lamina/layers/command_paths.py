"""Where a command looks: whether a word leads out of the workspace, or to a file that holds secrets.

It looks at links on the disk, since a link inside can lead out; it opens nothing.
"""

import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
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
_MOST_FOLDERS = 16
_SAMPLES = tuple(pattern.replace("*", "x") for pattern in SECRET_NAMES)


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
    literal = text
    if word.globs:
        literal = text[: text.rfind("/", 0, word.globs[0]) + 1]
        if ".." in text[len(literal) :].split("/"):
            return f"{name} may lead out of the workspace"
    if not place.holds(literal or "."):
        return f"{name} leads out of the workspace"
    return f"{name} may hold secrets" if _is_secret(text, bool(word.globs)) else ""


def _is_secret(text: str, glob: bool) -> bool:
    for name in filter(None, re.split(r"[/:=,]", text.lower())):
        if glob and any(mark in name for mark in "*?["):
            about_all = any(fnmatchcase(one.lower(), name) for one in ORDINARY_NAMES)
            if not about_all and any(fnmatchcase(one, name) for one in _SAMPLES):
                return True
        elif any(fnmatchcase(name, one) for one in SECRET_NAMES) and not any(
            fnmatchcase(name, o) for o in HARMLESS_NAMES
        ):
            return True
    return False
