"""Which files a command reaches without naming them: what a glob becomes, and what lies below a folder.

It looks at names and links on the disk, within bounds, and opens nothing. What is too much to look at is asked for.
"""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice

from lamina.layers.command_options import Call
from lamina.layers.command_paths import MOST_ENTRIES, Place, expanded, is_secret_name
from lamina.layers.shell_words import Word, visible_command

_GREPS = frozenset(("grep", "egrep", "fgrep"))
_LINKS: dict[str, frozenset[str]] = {
    "ls": frozenset(("-L", "-H", "--dereference", "--dereference-command-line")),
    **dict.fromkeys(_GREPS, frozenset(("-R", "-S", "-O", "-p", "--dereference-recursive"))),
    "rg": frozenset(("-L", "--follow")),
    "fd": frozenset(("-L", "--follow")),
    "fdfind": frozenset(("-L", "--follow")),
    "du": frozenset(("-L", "-D", "-H")),
    "tree": frozenset(("-l",)),
}
"""Options with which a program goes where links lead, on Linux, BSD or macOS."""


def reaches_too_far(name: str, call: Call, files: int, place: Place) -> str:
    """Why a call might read a secret or leave the workspace without saying so. `files`: where its files begin."""
    follows = call.options & _LINKS.get(name, frozenset())
    if follows:
        return f"{min(follows)} goes where links lead"
    starts = [start for word in call.operands[files:] for start in _starts(word, place)]
    if name in _GREPS and _is_deep_grep(call):
        return why_not_below(starts or ["."], place, only=call.value("--include"), without=call.value("--exclude-dir"))
    if name == "rg" and not call.options & {"--files", "--type-list"}:
        hidden = any(re.match(r"-[^-]*[u.]|--hidden$|--no-ignore", each) for each in call.options)
        return why_not_below(starts or ["."], place, hidden=hidden)
    if name == "diff":
        return why_not_below(starts, place, follows=True)
    return ""


def _starts(word: Word, place: Place) -> Sequence[str]:
    return [name for folder in place.folders for name in expanded(word, folder) or ()] if word.globs else [word.text]


def _is_deep_grep(call: Call) -> bool:
    named = {value.lower() for value in call.value("-d", "--directories")}
    return bool(call.options & {"-r", "--recursive"} or named - {"skip", "read"})


def why_not_below(
    starts: Sequence[str], place: Place, *, hidden: bool = True, follows: bool = False, only: Sequence[str] = (),
    without: Sequence[str] = (),
) -> str:  # fmt: skip
    """Why everything below these folders must not be read without asking. `only` are patterns of the names that are
    read, `without` those of folders that are left out; `follows`: links are gone along."""
    seen = 0
    tops = dict.fromkeys(os.path.join(folder, start) for folder in place.folders for start in starts)
    for entry in _below(list(tops), hidden, frozenset(without), follows):
        seen += 1
        if seen > MOST_ENTRIES:
            return f"there are more than {MOST_ENTRIES:,} files below, too many to look for secrets among them"
        name = visible_command(entry.name[:60])
        if entry.is_symlink() and not follows:
            continue
        if is_secret_name(entry.name) and (entry.is_dir() or not only or _any(entry.name, only)):
            return f"it would read {name}, which may hold secrets"
        if entry.is_symlink() and (entry.is_dir() or not place.holds(entry.path) or _leads_to_secret(entry.path)):
            return f"it would follow the link {name}"
    return ""


def _below(tops: list[str], hidden: bool, without: Collection[str], follows: bool) -> Iterator["os.DirEntry[str]"]:
    waiting = tops
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                found = list(islice(entries, MOST_ENTRIES + 1))
        except OSError:  # no folder, or one that the command cannot read either
            continue
        for entry in found:
            if not hidden and entry.name.startswith("."):
                continue
            if not entry.is_dir(follow_symlinks=False):
                yield entry
            elif not _any(entry.name, without):
                yield entry
                # git's packed objects are many, and nobody keeps a key among them
                if follows or not entry.path.endswith("/.git/objects"):
                    waiting.append(entry.path)


def _leads_to_secret(path: str) -> bool:
    return is_secret_name(os.path.basename(os.path.realpath(path)))


def _any(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
