"""What a command of the tool bash can reach, where the system can enforce it (fault T10).

This is the policy: which folders are readable, writable or hidden, and how much a command may use. The program
`launcher` enforces it in a process of its own. The gate, not the sandbox, decides which commands may run.
"""

import asyncio
import glob
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from lamina.errors import ToolError
from lamina.sandbox.process import CommandResult, is_below, run_child
from lamina.text.messages import Phrase, join_clauses

Use = Literal["auto", "required", "off"]
Mode = Literal["namespaces", "landlock", "none"]
MODES: tuple[Mode, ...] = ("namespaces", "landlock")
SYSTEM_FOLDERS = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/gnu/store", "/snap",
    "/run/current-system", "/run/systemd/resolve", "/home/linuxbrew/.linuxbrew", "/sys/devices/system/cpu",
)  # fmt: skip
ETC_NAMES = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version",
    "fonts", "gai.conf", "group", "host.conf", "hostname", "hosts", "inputrc", "java", "ld.so.cache",
    "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf", "localtime", "lsb-release", "magic", "magic.mime",
    "manpath.config", "mime.types", "networks", "nsswitch.conf", "os-release", "passwd", "perl", "pki/ca-trust",
    "pki/tls/certs", "pki/tls/cert.pem", "profile", "protocols", "python3", "redhat-release", "resolv.conf", "rpc",
    "services", "shells", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "xdg",
)  # fmt: skip
"""What programs look for in /etc, without passwords, keys and the settings of daemons."""
BESIDE_PROGRAMS = ("lib", "lib32", "lib64", "libexec", "include", "plugins", "pyvenv.cfg", "version", "versions")
"""What a folder of programs outside of the system, such as ~/.pyenv/shims or /home/x/venv/bin, needs beside it."""
PROGRAM_FOLDERS = ("bin", "sbin", "shims")
INSTALLED = ("pyvenv.cfg", "lib/python3*/os.py", "lib/node_modules/npm", "lib/rustlib", "lib/modules")
"""One of these beside a folder of programs marks an installation of Python, Node.js, Rust or Java. A project may have
`bin` and `lib` too."""
LAUNCHER = "launcher"
MAX_PROCESSORS = 4
"""One process may use the time of this many processors."""
MB = 1 << 20
FOLDER_HANDLE = sum(getattr(os, name, 0) for name in ("O_PATH", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC"))


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one command may use, together with everything that it starts."""

    memory_mb: int = 4_096
    processes: int = 512
    """Threads count too."""
    file_mb: int = 4_096
    """Of one file that it writes."""
    disk_mb: int = 16_384
    """By which the free space of the workspace's disk may shrink while it runs."""
    temporary_mb: int = 1_024
    """Of the private temporary folder."""
    open_files: int = 4_096


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How commands are confined. Where the system has no sandbox, `auto` runs them without one and `required` does not.

    `network` applies to commands that the user was asked about; all others never have it. `hidden` are files and
    folders that no command sees, wherever they are; `readable` are folders to read besides those of the system.
    """

    use: Use = "auto"
    network: bool = False
    hidden: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)


class SandboxRunner:
    """Runs commands in one folder, each in a sandbox. The first one shows which kind the system has."""

    def __init__(self, sandbox: Sandbox, root: str, environ: Mapping[str, str], home: str = "") -> None:
        self.sandbox, self.root, self.environ = sandbox, root, dict(environ)
        self.ruled_out: dict[Mode, str | Phrase] = {}
        """Kinds of sandbox that this system does not have, and why."""
        self.hidden = [path for path in _add_link_targets(sandbox.hidden) if not is_below(root, path)]
        folders = [*_list_system_folders(), *_list_tool_folders(environ.get("PATH", ""), home, sandbox.hidden)]
        rustup = os.path.join(home, ".rustup") if home else ""
        if rustup and any(is_below(path, os.path.join(home, ".cargo")) for path in folders):
            folders.append(rustup)
            self.environ["RUSTUP_HOME"] = rustup
        folders += [os.path.realpath(path) for path in sandbox.readable]
        self.readable = [path for path in dict.fromkeys(folders) if os.path.lexists(path)]

    @property
    def mode(self) -> Mode:
        """The kind of sandbox that will be tried next, or that worked."""
        if self.sandbox.use == "off":
            return "none"
        left: list[Mode] = [mode for mode in MODES if mode not in self.ruled_out]
        return left[0] if left else "none"

    async def run(self, command: Sequence[str], *, seconds: float, max_bytes: int, changes: bool) -> CommandResult:
        """Run a command. Without `changes` it can write only temporary files, and has no network."""
        if self.sandbox.use != "off" and _launcher_command() and self.root != "/":
            while (mode := self.mode) != "none":
                ran = await self._run_in(mode, command, seconds, max_bytes, changes)
                if "ready" in ran.report or ran.code is None:
                    return ran
                self.ruled_out[mode] = ran.report.get("unavailable") or Phrase("sandbox.launcher_failed")
        self._refuse_if_required()
        return await run_child(command, folder=self.root, environ=self.environ, seconds=seconds, max_bytes=max_bytes)

    def _refuse_if_required(self) -> None:
        if self.sandbox.use != "required":
            return
        reasons = [Phrase("sandbox.ruled_out", mode=mode, reason=reason) for mode, reason in self.ruled_out.items()]
        why = Phrase("sandbox.workspace_is_root" if self.root == "/" else "sandbox.needs_linux")
        raise ToolError("sandbox.required", reasons=join_clauses(reasons or [why]))

    async def _run_in(
        self, mode: Mode, command: Sequence[str], seconds: float, max_bytes: int, changes: bool
    ) -> CommandResult:
        private = "/run/lamina" if is_below(self.root, "/tmp") else "/tmp"  # everything below it would be writable
        if mode == "landlock":
            private = await asyncio.to_thread(tempfile.mkdtemp, prefix="lamina-bash-")
        try:
            words = self._write_policy(mode, private, seconds, changes)
            return await run_child(
                [*_launcher_command(), *words, "--", *command],
                folder=self.root,
                seconds=seconds,
                max_bytes=max_bytes,
                environ={**self.environ, "HOME": private, "TMPDIR": private},
                reports=True,
            )
        finally:
            if mode == "landlock":
                await asyncio.to_thread(remove_tree, private)

    def _write_policy(self, mode: Mode, private: str, seconds: float, changes: bool) -> Iterator[str]:
        limits, processors = self.sandbox.limits, min(os.cpu_count() or 1, MAX_PROCESSORS)
        numbers = {
            "memory": limits.memory_mb * MB, "processes": limits.processes, "file": limits.file_mb * MB,
            "disk": limits.disk_mb * MB, "temporary": limits.temporary_mb * MB, "handles": limits.open_files,
            "cpu": int(seconds * processors) + 1,
        }  # fmt: skip
        yield from (f"mode={mode}", f"folder={self.root}", f"private={private}", f"parent={os.getpid()}")
        yield f"network={'on' if self.sandbox.network and changes else 'off'}"
        yield f"changes={'on' if changes else 'off'}"
        yield from (f"read={path}" for path in self.readable)
        yield from (f"write={path}" for path in (self.root, *_find_shared_repository(self.root)))
        yield from (f"hide={path}" for path in self.hidden)
        yield from (f"limit={name}:{number}" for name, number in numbers.items())


def remove_tree(top: str) -> None:
    """Remove a folder, however deep it is and whatever the modes of its folders are. It goes down and up by handles, so
    that no path gets too long. What cannot be removed is left."""
    here = os.open(os.path.dirname(top), FOLDER_HANDLE)
    way, left = list[str](), [[os.path.basename(top)]]
    try:
        while left[0] or way:
            if left[-1]:
                name = left[-1].pop()
                with suppress(OSError):
                    here = _enter_folder(name, here)
                    way.append(name)
                    left.append(_remove_files(here))
            else:
                left.pop()
                here = _enter_folder("..", here)
                with suppress(OSError):
                    os.rmdir(way.pop(), dir_fd=here)
    except OSError:  # another process has moved or removed the folder that we are in
        return
    finally:
        os.close(here)


def _enter_folder(name: str, folder: int) -> int:
    """Open a folder for its owner and close the one that it is in."""
    handle = os.open(name, FOLDER_HANDLE, dir_fd=folder)
    os.close(folder)
    if name != "..":
        with suppress(OSError):
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
    return handle


def _remove_files(folder: int) -> list[str]:
    """Remove everything but folders; returns the names of these."""
    path, folders = f"/proc/self/fd/{folder}", list[str]()
    with suppress(OSError):
        for name in os.listdir(path):
            with suppress(OSError):
                if stat.S_ISDIR(os.lstat(f"{path}/{name}").st_mode):
                    folders.append(name)
                else:
                    os.unlink(f"{path}/{name}")
    return folders


def _launcher_command() -> list[str]:
    """The command that starts the launcher without the rest of the package, which takes long to load. Empty where it
    cannot run."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if sys.platform != "linux" or not sys.executable or not os.path.isfile(f"{folder}/sandbox/{LAUNCHER}.py"):
        return []
    code = (
        f"import sys; lamina = sys.modules['lamina'] = type(sys)('lamina'); lamina.__path__ = [{folder!r}]; "
        f"from lamina.sandbox.{LAUNCHER} import main; main(sys.argv[1:])"
    )
    return [sys.executable, "-I", "-S", "-c", code]


def _list_system_folders() -> Iterator[str]:
    yield from SYSTEM_FOLDERS
    for name in ETC_NAMES:
        yield f"/etc/{name}"


def _list_tool_folders(path: str, home: str, hidden: Sequence[str]) -> Iterator[str]:
    """Programs that PATH names outside of the system's folders, with the libraries beside them."""
    closed = (home or "/", *hidden)
    for folder in path.split(":"):
        real = os.path.realpath(folder)
        if any(is_below(real, each) for each in SYSTEM_FOLDERS) or not os.path.isdir(real):
            continue
        if any(is_below(each, real) for each in closed):  # a home is not a folder of programs, whatever PATH says
            continue
        yield from dict.fromkeys((folder, real))
        if os.path.basename(real) in PROGRAM_FOLDERS:
            yield from _list_beside_programs(os.path.dirname(real))
        with os.scandir(real) as entries:
            links = {os.path.realpath(entry.path) for entry in entries if entry.is_symlink()}
        for target in sorted(links):
            if not any(is_below(target, each) for each in (real, *SYSTEM_FOLDERS)):
                yield from _list_program_files(target)


def _list_program_files(target: str) -> Iterator[str]:
    """A program that a folder of PATH links to: only the file, since anything may be beside it, unless it is part of an
    installation."""
    if not os.path.isfile(target) or not os.access(target, os.X_OK):
        return
    yield target
    folder, prefix = os.path.dirname(target), os.path.dirname(os.path.dirname(target))
    installed = any(glob.glob(f"{glob.escape(prefix)}/{each}") for each in INSTALLED)
    if installed and os.path.basename(folder) in PROGRAM_FOLDERS:
        yield folder
        yield from _list_beside_programs(prefix)


def _list_beside_programs(prefix: str) -> Iterator[str]:
    yield from (found for name in BESIDE_PROGRAMS if os.path.exists(found := os.path.join(prefix, name)))


def _add_link_targets(paths: Iterable[str]) -> list[str]:
    every = [(os.path.abspath(path), os.path.realpath(path)) for path in paths]
    return list(dict.fromkeys(path for pair in every for path in pair))


def _find_shared_repository(root: str) -> Iterator[str]:
    """The repository of this folder, when it is a linked worktree. The repository, which no command in here can write,
    must name this folder: the file `.git` may say anything."""
    try:
        with open(os.path.join(root, ".git"), "rb") as file:
            target = os.fsdecode(file.read(4_097)).strip()
        folder = os.path.realpath(os.path.join(root, target.removeprefix("gitdir: ")))
        with open(os.path.join(folder, "gitdir"), "rb") as file:
            back = os.fsdecode(file.read(4_097)).strip()
    except (OSError, ValueError):
        return
    common = os.path.dirname(os.path.dirname(folder))
    linked = os.path.basename(os.path.dirname(folder)) == "worktrees" and os.path.exists(os.path.join(common, "HEAD"))
    if linked and not is_below(folder, root) and os.path.realpath(os.path.dirname(back)) == root:
        yield common
