"""What a child process gets of our environment: next to nothing, and never a secret (fault T4).

Only names on a list are passed on, from a mapping that the caller hands in; nothing here reads the environment itself.
"""

import os
import pwd
from collections.abc import Mapping

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PASSED = (
    "HOME", "USER", "LANG", "TZ", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC",
    "LC_TIME",
)  # fmt: skip
"""By name and not by `LC_*`: people send all kinds of things through ssh under that prefix."""
FIXED = {
    "TERM": "dumb",
    "GIT_TERMINAL_PROMPT": "0",
    # A folder of files can pass for a git repository whose configuration runs commands: git must not find such a one.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.bareRepository",
    "GIT_CONFIG_VALUE_0": "explicit",
}


def clean_environment(root: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child that works in `root`: the few harmless names of `environ`, and fixed ones."""
    given = environ or {}
    user = _user()
    clean = {"LANG": "C.UTF-8", "HOME": user[1], "USER": user[0]}
    clean |= {name: given[name] for name in PASSED if given.get(name)}
    return clean | {"PATH": safe_path(root, given.get("PATH", ""))} | FIXED


def safe_path(root: str, path: str) -> str:
    """Where commands are looked for: folders outside of the root, since what lies in it anybody may have written."""
    inside = os.path.realpath(root)
    folders = [
        folder
        for folder in (path or SYSTEM_PATH).split(":")
        if folder.startswith("/") and not _is_below(os.path.realpath(folder), inside)
    ]
    return ":".join(folders) or SYSTEM_PATH


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _user() -> tuple[str, str]:
    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:  # a container may run as a number that has no name
        return str(os.geteuid()), "/"
    return entry.pw_name, entry.pw_dir
