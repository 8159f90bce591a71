"""Whether a git repository is a plain one: nothing in it can make git start a program.

A repository's own files name programs in many ways (fsmonitor, hooks, includes, drivers, nested repositories). This
room does not understand git's grammar; it knows a few harmless lines, byte for byte, and all else is a reason to ask.
"""

import os
import re
import stat
from pathlib import Path

_MOST_CONFIG = 64 * 1024
_MOST_INDEX = 64 * 1024 * 1024
_TEXT = rb"[!$-&(-:<-\[\]-~\x80-\xff](?:[ !$-&(-:<-\[\]-~\x80-\xff]*[!$-&(-:<-\[\]-~\x80-\xff])?"
"""Without quotes, backslashes, # and ;, blanks only inside. Other alphabets than ours mean nothing to git."""
_NAME = rb"[A-Za-z0-9_\x80-\xff][\w.+/@\x80-\xff-]*"
_YES = rb"true|false"
_PATH = rb"[\w.~/+%,=-]"
_URL = (
    rb"(?:https?://[\w.-]+(?::\d+)?(?:/" + _PATH + rb"*)?|(?:ssh|git)://(?:[\w.-]+@)?[\w.-]+(?::\d+)?/" + _PATH + rb"*"
    rb"|[\w.]+@[\w.-]+:" + _PATH + rb"+|file:///" + _PATH + rb"*|\.{0,2}/" + _PATH + rb"*)"
)
"""No ext:: or other helper, nothing like an option, and no password that `git remote -v` would show."""
_REBASE = rb"true|false|merges|interactive"
_SECTIONS: dict[bytes, dict[bytes, bytes]] = {
    rb"\[core\]": {
        b"repositoryformatversion": rb"[01]", b"bare": rb"false", b"filemode": _YES, b"ignorecase": _YES,
        b"precomposeunicode": _YES, b"symlinks": _YES, b"logallrefupdates": _YES, b"quotepath": _YES,
        b"autocrlf": rb"true|false|input", b"eol": rb"lf|crlf|native",
    },
    rb'\[remote "' + _NAME + rb'"\]': {
        b"url": _URL, b"pushurl": _URL, b"fetch": rb"\+?refs/[\w./*@+-]+:refs/[\w./*@+-]+", b"gh-resolved": rb"base",
    },
    rb'\[branch "' + _NAME + rb'"\]': {
        b"remote": _NAME + rb"|\.", b"merge": rb"refs/" + _NAME, b"rebase": _REBASE, b"vscode-merge-base": _NAME,
    },
    rb"\[user\]": {b"name": _TEXT, b"email": _TEXT},
    rb"\[pull\]": {b"rebase": _REBASE, b"ff": rb"true|false|only"},
    rb"\[push\]": {
        b"default": rb"simple|current|upstream|nothing|matching", b"autosetupremote": _YES, b"followtags": _YES,
    },
    rb"\[init\]": {b"defaultbranch": _NAME},
    rb"\[color\]": {b"ui": rb"auto|always|never|true|false"},
}  # fmt: skip
_LINE = re.compile(rb"[ \t]*([A-Za-z-]+) ?= ?(.*?) ?")
_GITLINK = b"\0\0\xe0\0"
"""The mode of an entry of the index that is a repository of its own. It may be met by chance: then it is asked."""
_SPARSE = b"sdir\0\0\0\0"
_REFUSED = ("commondir", "config.worktree", "gitdir", "objects/info/alternates", "objects/info/http-alternates")
"""Files by which a repository lies, in part, elsewhere."""


def runs_programs(folder: Path, root: Path, *, descends: bool) -> str:
    """Why git, started in this folder, might start something else; empty when it will not. `descends`: the command also
    looks into repositories inside of the one that it is started in."""
    for place in (folder, *folder.parents):
        git = place / ".git"
        if os.path.lexists(git):
            if place != root and place.is_relative_to(root):
                return f"{place.name}/ is a repository of its own, whose configuration may start programs"
            try:
                return _not_plain(git) or (_nested(git) if descends else "")
            except OSError as error:
                return f"the repository cannot be read ({error.strerror})"
        if os.path.lexists(place / "HEAD") and any(
            os.path.lexists(place / name) for name in ("objects", "refs", "commondir")
        ):
            return f"{place.name}/ looks like a repository without a work tree, whose configuration may start programs"
    return ""


def _not_plain(git: Path) -> str:
    """Why a `.git` is not one that is known to be harmless."""
    if not stat.S_ISDIR(git.lstat().st_mode):
        return "its .git is no folder but leads elsewhere"
    found = next((name for name in _REFUSED if os.path.lexists(git / name)), "")
    if found:
        return f"its .git holds {found}, which leads elsewhere"
    with os.scandir(git) as entries:
        for entry in entries:
            if entry.is_symlink():
                return "its .git holds a link"
            if entry.name.lower().startswith("sharedindex."):
                return "its index lies in pieces"
    config = git / "config"
    if not stat.S_ISREG(config.lstat().st_mode) or config.stat().st_size > _MOST_CONFIG:
        return "its configuration is not a short file"
    odd = odd_line(config.read_bytes())
    if odd is not None:
        return f"line {odd} of the repository's configuration is not among those that are known to be harmless"
    return _hook(git / "hooks")


def odd_line(config: bytes) -> int | None:
    """The number of the first line that is not known to be harmless; None when there is none."""
    known: dict[bytes, bytes] = {}
    for number, line in enumerate(config.split(b"\n"), 1):
        if not line:
            continue
        if line.startswith(b"["):
            section = next((keys for form, keys in _SECTIONS.items() if re.fullmatch(form, line)), None)
            if section is None:
                return number
            known = section
            continue
        found = _LINE.fullmatch(line)
        form = known.get(found[1].lower()) if found else None
        if not found or form is None or not re.fullmatch(form, found[2]):
            return number
    return None


def _hook(folder: Path) -> str:
    if not os.path.lexists(folder):
        return ""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink() or (not entry.name.endswith(".sample") and entry.stat().st_mode & 0o111):
                return "the repository has a hook, which git may run"
    return ""


def _nested(git: Path) -> str:
    """Why a command that looks into nested repositories may meet one."""
    why = "repositories lie inside of it, whose configuration may start programs"
    if os.path.lexists(git.parent / ".gitmodules"):
        return why
    index = git / "index"
    if not os.path.lexists(index):
        return ""
    if index.stat().st_size > _MOST_INDEX:
        return "its index is too long to be read"
    data = index.read_bytes()
    return why if _GITLINK in data or _SPARSE in data else ""
