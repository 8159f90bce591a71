"""What a child process gets of our environment: next to nothing, and never a secret (fault T4).

Only names on a list are passed on, from a mapping that the caller hands in; nothing here reads the environment itself.
"""

import os
from collections.abc import Mapping, Sequence

try:
    import pwd
except ImportError:  # Windows
    pwd = None

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PASSED = ("HOME", "USER", "TZ")
"""Nothing of LANG and LC_*: in another charset bash finds other quotes and backslashes than the gate has read."""
IDENTITY = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL")
"""Who commits: the user's own git settings do not reach a command."""
NOWHERE = "/dev/null/none"
"""A path at which nothing can be or be made. Not /dev/null itself: git, as root, puts a file in place of the device."""
FIXED = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TERM": "dumb", "GIT_TERMINAL_PROMPT": "0"}
SETTINGS = (
    # A folder of files can pass for a git repository whose configuration runs commands: git must not find such a one.
    ("safe.bareRepository", "explicit"),
    ("core.fsmonitor", "false"),
    ("core.hooksPath", NOWHERE),
    ("core.untrackedCache", "false"),
    ("diff.autoRefreshIndex", "false"),
    ("core.pager", "cat"),
    ("core.attributesFile", NOWHERE),
    ("log.showSignature", "false"),
    ("submodule.recurse", "false"),
    ("protocol.ext.allow", "never"),
)
"""These win over what a repository's own configuration says."""
GIT = {
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": NOWHERE, "GIT_ATTR_NOSYSTEM": "1", "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1", "GIT_PAGER": "cat", "PAGER": "cat",
}  # fmt: skip


PACKAGES = {
    "PIP_CONFIG_FILE": "/dev/null", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "NPM_CONFIG_LOGS_MAX": "0",
    "NPM_CONFIG_UPDATE_NOTIFIER": "false", "PYTHONDONTWRITEBYTECODE": "1",
}  # fmt: skip
"""Listing what is installed asks no index for news, and leaves no log and no cache."""


def clean_environment(root: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child that works in `root`: the few harmless names of `environ`, and fixed ones."""
    given = environ or {}
    user = _user()
    clean = {"HOME": user[1], "USER": user[0]}
    clean |= {name: given[name] for name in PASSED if given.get(name)}
    return clean | {"PATH": safe_path(root, given.get("PATH", ""))} | FIXED | _settings(SETTINGS[:1])


def shell_environment(root: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a command: as clean, and git starts no program that a repository or a home folder names."""
    given = environ or {}
    identity = {name: given[name] for name in IDENTITY if given.get(name)}
    return clean_environment(root, given) | identity | GIT | PACKAGES | _settings(SETTINGS)


def _settings(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Settings as git takes them from the environment."""
    found = {"GIT_CONFIG_COUNT": str(len(pairs))}
    for at, (key, value) in enumerate(pairs):
        found |= {f"GIT_CONFIG_KEY_{at}": key, f"GIT_CONFIG_VALUE_{at}": value}
    return found


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
    if pwd is None:
        home = os.path.expanduser("~")
        return os.path.basename(home), home
    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:  # a container may run as a number that has no name
        return str(os.geteuid()), "/"
    return entry.pw_name, entry.pw_dir
