"""A command as a child process whose whole family ends with it (faults S8, T4).

This room hides the process: a session of its own, no input, output of bounded size in the order in which it came, and
an end that takes everything along which the command started. It does not judge commands.
"""

import asyncio
import codecs
import os
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

from lamina.apart import in_thread

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
MARK = "LAMINA_CALL"
"""A variable with a number of its own for each command: by it a child is found that has left the process group."""
TIDY = 0.3
"""Seconds between the request to end and the end."""
LONGEST = 5.0
"""Seconds until we stop waiting for a process that was killed; the system may hold it."""
START_SECONDS = 20.0
"""For a launcher to start its command; a busy machine takes its time."""
PIECE = 65_536
ROUNDS = 20
CAN_END_FAMILY = hasattr(os, "killpg")
"""Whether the system ends a command together with what it started; where it cannot, none is offered."""


class Ran(NamedTuple):
    """How a command ended. `code` is negative for a signal, None when its time was up; `dropped` are bytes too many.
    `report` is what its launcher said, in lines of a name and a value."""

    code: int | None
    output: str
    dropped: int
    report: Mapping[str, str] = {}


async def run_child(
    command: Sequence[str], *, folder: str, environ: Mapping[str, str], seconds: float, most_bytes: int,
    reports: bool = False,
) -> Ran:  # fmt: skip
    """Run a command until it ends or its time is up; then, and on a cancellation, nothing of it is left.

    One that `reports` is a launcher: it writes lines to its input, and ends only after everything that it started. The
    time counts from its line `ready`."""
    child = _Child(command, folder, environ, most_bytes, reports)
    ended = False
    try:
        await asyncio.wait({child.exit, child.ready}, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({child.exit}, timeout=seconds)
        ended = child.exit.done()
    finally:
        await child.end(kindly=not ended)
    code = int(child.report["exit"]) if "exit" in child.report else child.code
    return Ran(code if ended else None, child.text(), child.dropped, child.report)


class _Child:
    def __init__(
        self, command: Sequence[str], folder: str, environ: Mapping[str, str], most_bytes: int, reports: bool
    ) -> None:
        self.mark = secrets.token_hex(16)
        self.most, self.dropped, self.kept, self.size = most_bytes, 0, list[bytes](), 0
        self.report: dict[str, str] = {}
        with ExitStack() as failed, ExitStack() as started:
            self.reader = _open_pipe(failed, started, writer := list[int]())
            self.reports = _open_pipe(failed, started, writer) if reports else None
            self.process = subprocess.Popen(
                command, cwd=folder, env={**environ, MARK: self.mark}, stdout=writer[0], stderr=writer[0],
                stdin=writer[1] if reports else subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            failed.pop_all()
        self.loop = asyncio.get_running_loop()
        self.loop.add_reader(self.reader, self._read)
        self.exit = asyncio.ensure_future(in_thread(self._wait))
        self.ready: asyncio.Future[None] = self.loop.create_future()
        if self.reports is None:
            self.ready.set_result(None)
        else:
            self.loop.add_reader(self.reports, self._read_report)

    @property
    def code(self) -> int | None:
        return self.process.returncode

    def _wait(self) -> None:
        """Until it has ended. It stays a zombie, so that nobody gets its number before its group is ended."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            self.process.wait()
            return
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def _read(self) -> bool:
        """Take what is in the pipe; False when nothing more can come now."""
        try:
            piece = os.read(self.reader, PIECE)
        except BlockingIOError:
            return False
        if not piece:
            self.loop.remove_reader(self.reader)
            return False
        room = max(0, self.most - self.size)
        if room:
            self.kept.append(piece[:room])
        self.size += min(room, len(piece))
        self.dropped += max(0, len(piece) - room)
        return True

    async def end(self, *, kindly: bool) -> None:
        """End the command and everything it started. The signals are sent before anything is waited for."""
        try:
            if kindly:
                self._signal(signal.SIGTERM)  # a launcher then ends all that it started, and itself
                await asyncio.wait({self.exit}, timeout=TIDY if self.reports is None else LONGEST)
        finally:
            self._signal(signal.SIGKILL)
            self._read_report()
            try:
                if "alone" not in self.report:  # else its launcher has ended them all
                    await in_thread(self._end_marked)
                await asyncio.wait({self.exit}, timeout=LONGEST)
            finally:
                self._let_go()

    def _read_report(self) -> None:
        if self.reports is None:
            return
        with suppress(BlockingIOError):
            said = os.read(self.reports, PIECE)
            for line in said.decode(errors="replace").splitlines():
                name, _, value = line.partition(" ")
                self.report.setdefault(name, value)
            if not said:
                self.loop.remove_reader(self.reports)
            if not self.ready.done():
                self.ready.set_result(None)

    def _let_go(self) -> None:
        for _ in range(ROUNDS):  # what is still in the pipe; somebody who got away might fill it for ever
            if not self._read():
                break
        self.loop.remove_reader(self.reader)
        os.close(self.reader)
        if self.reports is not None:
            self.loop.remove_reader(self.reports)
            os.close(self.reports)
        self.process.poll()
        self.exit.cancel()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def _end_marked(self) -> None:
        """Kill what has left the group but still carries our mark, where the system shows that (Linux)."""
        wanted = f"{MARK}={self.mark}".encode()
        for _ in range(ROUNDS):
            numbers = (
                [int(name) for name in os.listdir("/proc") if name.isdigit()] if os.path.isdir("/proc/self") else []
            )
            marked = [number for number in numbers if number != self.process.pid and _carries(number, wanted)]
            if not marked:
                return
            for number in marked:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(number, signal.SIGKILL)

    def text(self) -> str:
        """The output as far as it was kept; a character that was cut at its end is left out."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(b"".join(self.kept), final=not self.dropped)


def _open_pipe(failed: ExitStack, started: ExitStack, writers: list[int]) -> int:
    """The end to read from, open unless starting failed; the other one is added, open until the child has it."""
    reader, writer = os.pipe()
    failed.callback(os.close, reader)
    started.callback(os.close, writer)
    writers.append(writer)
    os.set_blocking(reader, False)
    return reader


def _carries(number: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{number}/environ", "rb") as environ:
            return mark in environ.read().split(b"\0")
    except OSError:  # it has ended, or belongs to somebody else
        return False


# The environment of a child


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
