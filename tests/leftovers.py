"""A run of the tests keeps to a folder of its own, and leaves nothing outside the checkout (`conftest.py` calls this).

Before the first test, HOME, XDG_* and TMPDIR of this process and so of all others lead into one temporary folder. At
the end that folder must hold nothing that some test forgot; then it is removed. What reached other places all the same
is found by comparing them with what they were: the real home, the system's folders, and the device files.
"""

import os
import pwd
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PREFIX = "lamina-tests-"
WATCHED = "PYTEST_LEFTOVERS_WATCHED"
"""Set for everything that a run starts. A run inside a test does not look for leftovers: it would find those of the
tests beside it, which the outer run finds at its end."""
OWN_NAMES = ("pytest-of-", "home")
"""What belongs into the folder of a run."""
OUR_MARKS = ("pytest-", "nginx", "playwright", "chromium", ".org.chromium", "gateway-")
"""In folders that everybody writes to, names that give away a program that our tests start. Not `lamina-`: any lamina
on this machine makes such folders for a while, and those of the tests make them in the folder of the run."""
SHARED = ("/tmp", "/var/tmp", "/dev/shm")
SYSTEM = ("/dev", "/etc", "/run", "/var/cache", "/var/lib", "/var/lib/nginx", "/var/log", "/var/log/nginx")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
PATIENCE_S = 2.0
"""What another program made in the meantime may be gone by then; what we forgot is not."""
HOME_FOLDERS = ("", ".cache", ".config", ".local", ".local/share", ".local/state")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is outside, at one moment."""

    names: frozenset[str]
    devices: tuple[tuple[str, str], ...]


def look_around(homes: Iterable[Path], devices: Iterable[str] = DEVICES) -> Surroundings:
    names = {path for home in homes for folder in HOME_FOLDERS for path in _entries(home / folder)}
    names |= {path for folder in SYSTEM for path in _entries(Path(folder))}
    for folder in SHARED:
        names |= {path for path in _entries(Path(folder)) if Path(path).name.startswith(OUR_MARKS)}
    return Surroundings(frozenset(names), tuple((path, _kind(path)) for path in devices))


def _entries(folder: Path) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(folder)]
    except OSError:
        return []


def _kind(path: str) -> str:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return "missing"
    return f"{stat.filemode(found.st_mode)} {os.major(found.st_rdev)},{os.minor(found.st_rdev)}"


def changes(before: Surroundings, after: Surroundings) -> list[str]:
    """What is there that was not, and devices that are no longer what they were."""
    was = dict(before.devices)
    turned = [f"{path} was {was[path]} and is {kind}" for path, kind in after.devices if was.get(path) != kind]
    return [*turned, *sorted(after.names - before.names)]


class Run:
    """One run of the tests: `begin`, and `end`, which gives what was left."""

    def __init__(self) -> None:
        self.homes = {Path(pwd.getpwuid(os.geteuid()).pw_dir), Path(os.environ.get("HOME") or "/nonexistent")}
        self.before = look_around(self.homes)
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.folder.chmod(0o711)  # PostgreSQL runs as nobody and has its folder in here

    def begin(self) -> None:
        home = self.folder / "home"
        home.mkdir()
        uv_cache = os.environ.get("UV_CACHE_DIR") or str(Path(__file__).parent.parent / ".cache" / "uv")
        os.environ |= {"HOME": str(home), "TMPDIR": str(self.folder), "UV_CACHE_DIR": uv_cache, WATCHED: "yes"}
        for name, folder in (("CACHE", ".cache"), ("CONFIG", ".config"), ("DATA", ".local/share"),
                             ("STATE", ".local/state")):  # fmt: skip
            os.environ[f"XDG_{name}_HOME"] = str(home / folder)
        tempfile.tempdir = None  # it is read from the environment once

    def end(self) -> list[str]:
        forgotten = [path for path in _entries(self.folder) if not Path(path).name.startswith(OWN_NAMES)]
        shutil.rmtree(self.folder, ignore_errors=True)
        left = [str(self.folder)] if self.folder.exists() else []
        until = time.monotonic() + PATIENCE_S
        while (changed := changes(self.before, look_around(self.homes))) and time.monotonic() < until:
            time.sleep(0.2)
        return [*sorted(forgotten), *left, *changed]
