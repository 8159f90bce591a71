"""A command as a child process, with everything that it starts (faults S8, T4).

A child has a session of its own, no input, an environment with next to nothing of ours and never a secret, and output
of a limited size. When it ends, everything that it started is ended too. It does not decide which commands may run.
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

from lamina.apart import run_in_own_thread

try:
    import pwd
except ImportError:  # Windows
    pwd = None

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PASSED_NAMES = ("HOME", "USER", "TZ")
"""Not LANG and LC_*: in another charset bash finds other quotes and backslashes than the gate has read."""
IDENTITY_NAMES = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL")
"""The author of commits, since the user's own git settings do not reach a command."""
IMPOSSIBLE_PATH = "/dev/null/none"
"""A path that cannot exist. Not /dev/null itself: git, as root, replaces the device with a file."""
FIXED_VARIABLES = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TERM": "dumb", "GIT_TERMINAL_PROMPT": "0"}
GIT_SETTINGS = (
    # A folder can look like a git repository whose configuration runs commands; git must not pick it up.
    ("safe.bareRepository", "explicit"),
    ("core.fsmonitor", "false"),
    ("core.hooksPath", IMPOSSIBLE_PATH),
    ("core.untrackedCache", "false"),
    ("diff.autoRefreshIndex", "false"),
    ("core.pager", "cat"),
    ("core.attributesFile", IMPOSSIBLE_PATH),
    ("log.showSignature", "false"),
    ("submodule.recurse", "false"),
    ("protocol.ext.allow", "never"),
)
"""These override a repository's own configuration."""
GIT_VARIABLES = {
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": IMPOSSIBLE_PATH, "GIT_ATTR_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_PAGER": "cat", "PAGER": "cat",
}  # fmt: skip
PACKAGE_VARIABLES = {
    "PIP_CONFIG_FILE": "/dev/null", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "NPM_CONFIG_LOGS_MAX": "0",
    "NPM_CONFIG_UPDATE_NOTIFIER": "false", "PYTHONDONTWRITEBYTECODE": "1",
}  # fmt: skip
"""Listing what is installed asks no index for news, and writes no log and no cache."""
MARK_VARIABLE = "LAMINA_CALL"
"""Has a different value for each command. By it a child is found that has left the process group."""
GRACE_SECONDS = 0.3
"""Between the request to end and the kill."""
MAX_END_SECONDS = 5.0
"""How long a killed process is waited for; the system may hold it."""
START_SECONDS = 20.0
"""For a launcher to start its command; a busy machine is slow."""
READ_BYTES = 65_536
MAX_ROUNDS = 20
CAN_END_FAMILY = hasattr(os, "killpg")
"""Whether a command can be ended together with what it started; where it cannot, no commands are offered."""


class CommandResult(NamedTuple):
    """How a command ended. `code` is negative for a signal and None when its time was up; `dropped` counts the bytes of
    output over the limit; `report` has the lines of its launcher, by name."""

    code: int | None
    output: str
    dropped: int
    report: Mapping[str, str] = {}


async def run_child(
    command: Sequence[str],
    *,
    folder: str,
    environ: Mapping[str, str],
    seconds: float,
    max_bytes: int,
    reports: bool = False,
) -> CommandResult:
    """Run a command until it ends or its time is up. Then, and on a cancellation, everything that it started is ended.

    A command that `reports` is a launcher: it writes lines to its standard input, and ends after everything that it
    started. Its time counts from its line `ready`."""
    child = _Child(command, folder, environ, max_bytes, reports)
    ended = False
    try:
        await asyncio.wait({child.exit, child.ready}, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({child.exit}, timeout=seconds)
        ended = child.exit.done()
    finally:
        await child.end(kindly=not ended)
    code = int(child.report["exit"]) if "exit" in child.report else child.code
    return CommandResult(code if ended else None, child.decode_output(), child.dropped, child.report)


class _Child:
    def __init__(
        self, command: Sequence[str], folder: str, environ: Mapping[str, str], max_bytes: int, reports: bool
    ) -> None:
        self.mark = secrets.token_hex(16)
        self.max_bytes, self.dropped, self.pieces, self.size = max_bytes, 0, list[bytes](), 0
        self.report: dict[str, str] = {}
        with ExitStack() as failed, ExitStack() as started:
            self.reader = _open_pipe(failed, started, writer := list[int]())
            self.reports = _open_pipe(failed, started, writer) if reports else None
            self.process = subprocess.Popen(
                command, cwd=folder, env={**environ, MARK_VARIABLE: self.mark}, stdout=writer[0], stderr=writer[0],
                stdin=writer[1] if reports else subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            failed.pop_all()
        self.loop = asyncio.get_running_loop()
        self.loop.add_reader(self.reader, self._read)
        self.exit = asyncio.ensure_future(run_in_own_thread(self._wait))
        self.ready: asyncio.Future[None] = self.loop.create_future()
        if self.reports is None:
            self.ready.set_result(None)
        else:
            self.loop.add_reader(self.reports, self._read_report)

    @property
    def code(self) -> int | None:
        return self.process.returncode

    def _wait(self) -> None:
        """Wait until it has ended. It stays a zombie, so that its number is not reused before its group is ended."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            self.process.wait()
            return
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def _read(self) -> bool:
        """Read what is in the pipe; False when there is nothing more for now."""
        try:
            piece = os.read(self.reader, READ_BYTES)
        except BlockingIOError:
            return False
        if not piece:
            self.loop.remove_reader(self.reader)
            return False
        room = max(0, self.max_bytes - self.size)
        if room:
            self.pieces.append(piece[:room])
        self.size += min(room, len(piece))
        self.dropped += max(0, len(piece) - room)
        return True

    async def end(self, *, kindly: bool) -> None:
        """End the command and everything it started. The signals are sent before anything is waited for."""
        try:
            if kindly:
                self._signal(signal.SIGTERM)  # a launcher then ends everything that it started, and itself
                await asyncio.wait({self.exit}, timeout=GRACE_SECONDS if self.reports is None else MAX_END_SECONDS)
        finally:
            self._signal(signal.SIGKILL)
            self._read_report()
            try:
                if "alone" not in self.report:  # otherwise its launcher has ended all of them
                    await run_in_own_thread(self._end_marked)
                await asyncio.wait({self.exit}, timeout=MAX_END_SECONDS)
            finally:
                self._release()

    def _read_report(self) -> None:
        if self.reports is None:
            return
        with suppress(BlockingIOError):
            data = os.read(self.reports, READ_BYTES)
            for line in data.decode(errors="replace").splitlines():
                name, _, value = line.partition(" ")
                self.report.setdefault(name, value)
            if not data:
                self.loop.remove_reader(self.reports)
            if not self.ready.done():
                self.ready.set_result(None)

    def _release(self) -> None:
        for _ in range(MAX_ROUNDS):  # the rest of the pipe; a process that escaped might fill it forever
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
        """Kill processes that have left the group but carry our mark, where the system shows it (Linux)."""
        wanted = f"{MARK_VARIABLE}={self.mark}".encode()
        for _ in range(MAX_ROUNDS):
            numbers = (
                [int(name) for name in os.listdir("/proc") if name.isdigit()] if os.path.isdir("/proc/self") else []
            )
            marked = [number for number in numbers if number != self.process.pid and _has_variable(number, wanted)]
            if not marked:
                return
            for number in marked:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(number, signal.SIGKILL)

    def decode_output(self) -> str:
        """The output up to its limit, without a character that was cut at its end."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(b"".join(self.pieces), final=not self.dropped)


def _open_pipe(failed: ExitStack, started: ExitStack, writers: list[int]) -> int:
    """Open a pipe; returns its reading end, which is closed if starting fails. The other end is added to `writers`, and
    closed when the child has it."""
    reader, writer = os.pipe()
    failed.callback(os.close, reader)
    started.callback(os.close, writer)
    writers.append(writer)
    os.set_blocking(reader, False)
    return reader


def _has_variable(number: int, assignment: bytes) -> bool:
    try:
        with open(f"/proc/{number}/environ", "rb") as environ:
            return assignment in environ.read().split(b"\0")
    except OSError:  # it has ended, or belongs to another account
        return False


# The environment of a child


def clean_environment(root: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child that works in `root`: a few harmless names of `environ`, and fixed ones."""
    given = environ or {}
    user = _read_user()
    clean = {"HOME": user[1], "USER": user[0]}
    clean |= {name: given[name] for name in PASSED_NAMES if given.get(name)}
    return (
        clean | {"PATH": filter_path(root, given.get("PATH", ""))} | FIXED_VARIABLES | _git_settings(GIT_SETTINGS[:1])
    )


def shell_environment(root: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a command. In it git starts no program that a repository or a home folder names."""
    given = environ or {}
    identity = {name: given[name] for name in IDENTITY_NAMES if given.get(name)}
    return clean_environment(root, given) | identity | GIT_VARIABLES | PACKAGE_VARIABLES | _git_settings(GIT_SETTINGS)


def _git_settings(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Settings in the form in which git reads them from the environment."""
    found = {"GIT_CONFIG_COUNT": str(len(pairs))}
    for at, (key, value) in enumerate(pairs):
        found |= {f"GIT_CONFIG_KEY_{at}": key, f"GIT_CONFIG_VALUE_{at}": value}
    return found


def filter_path(root: str, path: str) -> str:
    """The folders of a PATH that are outside of the root, since anyone may have written what is inside."""
    inside = os.path.realpath(root)
    folders = [
        folder
        for folder in (path or SYSTEM_PATH).split(":")
        if folder.startswith("/") and not is_below(os.path.realpath(folder), inside)
    ]
    return ":".join(folders) or SYSTEM_PATH


def is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _read_user() -> tuple[str, str]:
    if pwd is None:
        home = os.path.expanduser("~")
        return os.path.basename(home), home
    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:  # a container may run under an id without a name
        return str(os.geteuid()), "/"
    return entry.pw_name, entry.pw_dir
