"""T10: a command that runs, asked for or not, reaches nothing outside of the workspace. Real commands, real kernel.

Each probe is a command that reaches something when nothing holds it. The same probes run without a sandbox, which is
the planted bug: each must succeed there, so that its failure elsewhere says something.
"""

# ruff: noqa: E501 -- a command is easier to read on one line

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lamina import App
from lamina.providers.scripted import ScriptedProvider
from lamina.sandbox.process import SYSTEM_PATH
from lamina.sandbox.sandbox import Limits, Mode, Sandbox, SandboxRunner
from lamina.tools.bash import shell_tools
from lamina.tools.registry import Tool, ToolRegistry
from lamina.types import Decision, Outcome, ToolCallEvent, ToolResult
from tests.engine.chats import settings
from tests.faults.load import Load

ROOT = Path(__file__).parent.parent.parent
CANARY, REACHED = "canary-t10-90ab", "REACHED-T10"
ABSTRACT = f"lamina-t10-{os.getpid()}"
IS_ROOT = os.geteuid() == 0
LIMITS = Limits(memory_mb=256, processes=100, file_mb=16, temporary_mb=16, disk_mb=400)
HELD = Sandbox(limits=LIMITS)


async def yes(call: ToolCallEvent, decision: Decision) -> bool:
    return True


def bash_tool(root: Path, mode: Mode, *, confirmed: bool, sandbox: Sandbox = HELD) -> Tool:
    """The tool as it is in a container that cannot make namespaces, on a system that has nothing, or as it is here."""
    sandbox = replace(sandbox, use="off") if mode == "none" else sandbox
    verdict = Decision("confirm" if confirmed else "safe")
    environ = {"PATH": f"{sys.base_prefix}/bin:{SYSTEM_PATH}", "HOME": os.environ.get("HOME", "/")}
    [tool] = shell_tools(root, lambda command: verdict, sandbox=sandbox, environ=environ)
    if mode == "landlock":
        tool.run.__self__.runner.ruled_out["namespaces"] = "as in a container"  # type: ignore[union-attr]
    return tool


def bash(
    root: Path, mode: Mode, command: str, *, confirmed: bool = True, seconds: float = 20, sandbox: Sandbox = HELD
) -> Outcome:
    event = ToolCallEvent("1", "bash", json.dumps({"command": command, "seconds": seconds}))
    tool = bash_tool(root, mode, confirmed=confirmed, sandbox=sandbox)
    return asyncio.run(ToolRegistry(tool).call(event, ask=yes))


def offered_here() -> list[Mode]:
    """The kinds of sandbox that this system has."""
    modes: list[Mode] = ["namespaces", "landlock"]
    found: list[Mode] = []
    for mode in modes:
        tool = bash_tool(Path("/usr"), mode, confirmed=False)
        asyncio.run(ToolRegistry(tool).call(ToolCallEvent("1", "bash", '{"command": ":"}')))
        if tool.run.__self__.runner.mode == mode:  # type: ignore[union-attr]
            found.append(mode)
    return found


HERE = offered_here()
held = pytest.mark.parametrize("mode", HERE or [pytest.param("none", marks=pytest.mark.skip("no sandbox here"))])


# What is outside


@dataclass
class Scene:
    """A workspace with a store in it, a home with a key, servers, and another process with a secret."""

    folder: Path
    tcp: socket.socket
    udp: socket.socket
    unix: socket.socket
    abstract: socket.socket
    datagrams: socket.socket
    other: subprocess.Popen[bytes] | None = None

    @property
    def root(self) -> Path:
        return self.folder / "work 工作"

    def words(self) -> dict[str, Any]:
        return {
            "out": self.folder / "outside", "home": self.folder / "home", "pid": self.other.pid if self.other else 0, "root": f"'{self.root}'",
            "tcp": self.tcp.getsockname()[1], "udp": self.udp.getsockname()[1],
            "name": ABSTRACT,
        }  # fmt: skip

    def was_reached(self) -> bool:
        """Whether anything came to a server, and what is outside is not as it was."""
        came = False
        for server in (self.tcp, self.unix, self.abstract):
            with suppress(BlockingIOError):
                while True:
                    server.accept()[0].close()
                    came = True
        for server in (self.udp, self.datagrams):
            with suppress(BlockingIOError):
                server.recv(99)
                came = True
        return came or (self.other is not None and self.other.poll() is not None) or self.picture() != self.before

    def picture(self) -> dict[str, Any]:
        paths = [path for name in ("outside", "home") for path in sorted((self.folder / name).rglob("*"))]
        return {
            str(path): (path.lstat().st_mode, path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for path in paths
        }

    def prepare(self) -> None:
        """Everything as at the beginning."""
        self.end()
        self.other = subprocess.Popen(["sleep", "600"], env={**os.environ, "SECRET": CANARY}, cwd=self.folder)
        for name in ("outside", "home", "work 工作"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for name in ("outside/sub", "home/.ssh", "work 工作/sub/deep"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "outside/secret.txt").write_text(CANARY)
        (self.folder / "home/.ssh/id_ed25519").write_text(CANARY)
        (self.root / "own.txt").write_text("own\n")
        for name in ("store.db", "store.db-wal", "sub/deep/key"):
            (self.root / name).write_text(CANARY)
        for name in ("stream.sock", "datagrams.sock"):
            os.link(self.folder / "run" / name, self.root / name)
        self.before = self.picture()

    def end(self) -> None:
        if self.other:
            self.other.kill()
            self.other.wait()

    def sandbox(self) -> Sandbox:
        hidden = (str(self.root / name) for name in ("store.db", "store.db-wal", "store.db-shm", "sub/deep/key"))
        return Sandbox(hidden=tuple(hidden), limits=LIMITS)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    servers = [socket.socket(socket.AF_INET), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)]
    servers += [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
    servers += [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)]
    (tmp_path / "run").mkdir()
    run = os.open(tmp_path / "run", os.O_PATH)
    try:
        short = f"/proc/self/fd/{run}"  # an address has 107 bytes at most, and the folder of a test may have more
        addresses = [("127.0.0.1", 0), ("127.0.0.1", 0), f"{short}/stream.sock", f"\0{ABSTRACT}"]
        addresses += [f"{short}/datagrams.sock"]
        for server, address in zip(servers, addresses, strict=True):
            server.bind(address)
            server.setblocking(False)
            if server.type == socket.SOCK_STREAM:
                server.listen()
        scene = Scene(tmp_path, servers[0], servers[1], servers[2], servers[3], servers[4])
        scene.prepare()
        yield scene
        scene.end()
    finally:
        os.close(run)
        for server in servers:
            server.close()


# The probes


WRITES = [
    "echo x > {out}/new && echo R",
    "echo x >> {out}/secret.txt && echo R",
    "truncate -s 0 {out}/secret.txt && echo R",
    "rm {out}/secret.txt && echo R",
    "mkdir {out}/folder && echo R",
    "mv {out}/sub {out}/bus && echo R",
    "cp own.txt {home}/.ssh/authorized_keys && echo R",
    "mv own.txt {out}/moved && echo R",
    "ln own.txt {out}/hard && echo R",
    "ln -s own.txt {out}/soft && echo R",
    "ln -s {out} link && echo x > link/new && echo R",
    "ln -s {out}/secret.txt way && echo x >> way && echo R",
    "mkfifo {out}/pipe && echo R",
    "echo x > /proc/self/root{out}/new && echo R",
    "echo x > /proc/self/cwd/../outside/new && echo R",
    "cd ..; echo x > outside/new && echo R",
    "python3 -c \"import os; os.open('{out}/made', os.O_CREAT); print('R')\"",
    "python3 -c \"import socket; socket.socket(1).bind('../outside/sock'); print('R')\"",
]
METADATA = ["chmod 777 {out}/secret.txt && echo R", "touch -d 2001-01-01 {out}/secret.txt && echo R"]
"""Landlock knows nothing of these: it holds them only where the command was not confirmed."""
READS = [
    "cat {out}/secret.txt",
    "cat {home}/.ssh/id_ed25519",
    "HOME={home}; cat ~/.ssh/*",
    "grep -r canary {out} {home}",
    "ln -s {out} link; cat link/secret.txt",
    "ln {out}/secret.txt hard && cat hard",
    "cat ../outside/secret.txt",
    "cat /proc/self/root{out}/secret.txt",
    "cat /proc/self/cwd/../outside/secret.txt",
    "cat /proc/{pid}/cwd/outside/secret.txt",
    "cat /proc/{pid}/root{out}/secret.txt",
    "cat /proc/{pid}/environ",
    "for each in /proc/[0-9]*/environ; do cat $each; done",
    "cp -r {out} copy && cat copy/*",
    "tar cf - {out} | cat",
    "python3 -c \"import mmap, os; print(mmap.mmap(os.open('{out}/secret.txt', 0), 0, prot=1)[:])\"",
]
OWN_FILES = [
    "cat store.db",
    "cat store.db-wal",
    "cat sub/deep/key",
    "grep -r canary .",
    "cat {root}/store.db",
    "cat ./sub/../store.db",
    "cat /proc/self/cwd/store.db",
    "ln store.db hard && cat hard",
    "ln -s store.db soft && cat soft",
    "cp store.db sub/copy && cat sub/copy",
    "unshare -Urm sh -c 'umount -l store.db; cat store.db'",
    "mv store.db sub/moved; cat sub/moved",
    "mv sub bus; cat bus/deep/key",
]
REACHES = [
    "exec 3<>/dev/tcp/127.0.0.1/{tcp} && echo R",
    "echo x > /dev/udp/127.0.0.1/{udp}; sleep 0.05",
    "python3 -c \"import socket; socket.socket(1).connect('../run/stream.sock'); print('R')\"",
    "python3 -c \"import socket; socket.socket(1).connect(chr(0) + '{name}'); print('R')\"",
    "ln -s ../run/stream.sock sock; python3 -c \"import socket; socket.socket(1).connect('sock'); print('R')\"",
    "python3 -c \"import socket; socket.socket(1).connect('stream.sock'); print('R')\"",
    "python3 -c \"import socket; socket.socketpair(1, 2)[0].sendto(b'x', 'datagrams.sock'); print('R')\"",
    "python3 -c \"import socket; socket.socketpair(1, 3)[0].connect('datagrams.sock'); print('R')\"",
    "kill -0 {pid} && echo R",
    "kill -USR1 {pid} && echo R",
    "python3 -c \"import os, signal; signal.pidfd_send_signal(os.pidfd_open({pid}), 0); print('R')\"",
    "renice -n 19 -p {pid} && echo R",
    "prlimit --pid {pid} --nofile=64:64 && echo R",
    "ionice -c 3 -p {pid} && echo R",
    "taskset -pc 0 {pid} && echo R",
    "chrt -b -p 0 {pid} && echo R",
    "python3 -c \"import ctypes as c; l = c.CDLL(None); n = l.shmget(0, 4096, 0o1600); assert n >= 0; l.shmctl(n, 0, 0); print('R')\"",
    "unshare -Ur true && echo R",
    "unshare -Urm mount -n -t tmpfs none sub && echo R",
]
AS_ROOT = [
    "python3 -c \"import ctypes as c; c.CDLL(None).ptrace(16, {pid}, 0, 0) or print('R')\"",
    "unshare -m mount -n -t tmpfs none sub && echo R",
    "mknod device c 1 3 && echo R",
    "cat /etc/shadow >/dev/null && echo R",
    "python3 -c \"import os; os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY); print('R')\"",
    "chroot / true && echo R",
    "python3 -c \"import socket; socket.socket(17, 3, 0); print('R')\"",
]
CHANGES = [
    "echo x > new && echo R",
    "rm own.txt && echo R",
    "mv own.txt other.txt && echo R",
    "chmod 600 own.txt && echo R",
    "touch -d 2001-01-01 own.txt && echo R",
    "mkdir folder && echo R",
    "sed -i s/own/x/ own.txt && echo R",
    "mkfifo pipe && echo R",
]
"""Of the workspace itself: for commands that nobody was asked about."""
CONTROL = "python3 -c 'print(\"control\", 6 * 7)'"
"""Ends each of them: what is looked for is not missing because the command could not run."""
EVERYWHERE = [*WRITES, *READS, *OWN_FILES, *REACHES, *(AS_ROOT if IS_ROOT else ())]


def reached_any(scene: Scene, mode: Mode, probes: Sequence[str], *, confirmed: bool) -> bool:
    """Whether one of the probes, all in one command, reached something; without a sandbox at all, too."""
    scene.prepare()
    filled = [probe.replace("R')", f"{REACHED}')").replace("echo R", f"echo {REACHED}") for probe in probes]
    ending = [CONTROL] if mode != "none" else []
    command = "\n".join(f"( {each} )" for each in [*filled, *ending]).format(**scene.words())
    text = bash(scene.root, mode, command, confirmed=confirmed, sandbox=scene.sandbox()).text
    assert mode == "none" or "control 42" in text, text
    return scene.was_reached() or any(words in text for words in (REACHED, CANARY, "no sandbox"))


def reaching(scene: Scene, mode: Mode, probes: Sequence[str], *, confirmed: bool) -> list[str]:
    return [probe for probe in probes if reached_any(scene, mode, [probe], confirmed=confirmed)]


@held
@pytest.mark.parametrize("confirmed", [True, False])
def test_T10_no_command_reaches_anything_outside_of_the_workspace(
    scene: Scene, mode: Mode, confirmed: bool, load: Load
) -> None:
    families = [WRITES, READS, OWN_FILES, REACHES, AS_ROOT if IS_ROOT else [], [] if confirmed else CHANGES]
    if mode == "namespaces" or not confirmed:
        families.append(METADATA)
    for n in load.rounds(1, "probes", each=sum(map(len, families))):
        for probes in filter(None, families):
            if n or reached_any(scene, mode, probes, confirmed=confirmed):
                assert reaching(scene, mode, probes, confirmed=confirmed) == []
                assert n, f"one of these, and only together: {probes}"


def some_of(probes: Sequence[str], load: Load) -> Sequence[str]:
    """A third of them in the quick form, all in the long one."""
    return probes if load.factor > 1 else probes[load.seed() % 3 :: 3]


@pytest.mark.planted("no sandbox")
def test_T10_every_probe_reaches_something_without_a_sandbox(scene: Scene, load: Load) -> None:
    probes = [*EVERYWHERE, *METADATA, *CHANGES]
    if "namespaces" not in HERE:  # a system that has none of its own gives none to a command either
        probes = [probe for probe in probes if "unshare -U" not in probe]
    chosen = some_of(probes, load)
    assert [probe for probe in chosen if not reached_any(scene, "none", [probe], confirmed=True)] == []


# What it may take


GREEDY = {
    "processes": "for n in $(seq 160); do sleep 60 & done; sleep 1.5; echo R",
    "threads": "python3 -c \"import threading as t, time\nfor n in range(160): t.Thread(target=time.sleep, args=(1.5,)).start()\ntime.sleep(1.5); print('R')\"",
    "memory": "python3 -c \"x = bytearray(400 << 20); print('R')\"",
    "memory of a family": "for n in 1 2 3; do python3 -c \"import time; x = b'x' * (120 << 20); open('big$n', 'w'); time.sleep(60)\" & done; "
    "until [ -e big1 ] && [ -e big2 ] && [ -e big3 ]; do sleep 0.1; done; sleep 1.5; echo R",
    "shared memory": "python3 -c \"import mmap, time; m = mmap.mmap(-1, 330 << 20); m[::4096] = b'x' * (330 << 8); time.sleep(1.5); print('R')\"",
    "shared memory of a family": "for n in 1 2; do python3 -c \"import mmap, time; m = mmap.mmap(-1, 170 << 20); m[::4096] = b'x' * (170 << 8); open('big$n', 'w'); "
    'time.sleep(60)" & done; until [ -e big1 ] && [ -e big2 ]; do sleep 0.1; done; sleep 1.5; echo R',
    "shared memory that is let go": 'python3 -c "import mmap, time; m = mmap.mmap(-1, 330 << 20)\nfor n in range(330): m[n << 20 : n + 1 << 20] = bytes(1 << 20); '
    "m.madvise(4, n << 20, 1 << 20)\ntime.sleep(1.5); print('R')\"",
    "memory without a name": "python3 -c \"import os, time; [os.write(os.memfd_create('x'), bytes(15 << 20)) for n in range(22)]; time.sleep(1.5); print('R')\"",
    "a file": "head -c 20000000 /dev/zero > big && echo R",
    "temporary files": "mkdir -p $TMPDIR/x && head -c 9000000 /dev/zero > $TMPDIR/x/1 && head -c 9000000 /dev/zero > "
    "$TMPDIR/x/2 && echo R",
    "the disk": "for n in $(seq 90); do fallocate -l 15000000 big$n || exit; done; sleep 1.5; echo R",
    "a core": "ulimit -Hc | grep unlimited && echo R",
    "processor time": "ulimit -Ht | grep unlimited && echo R",
}
"""More than the limits of these tests, and little enough for a machine without any."""
WITHOUT_NAMESPACES = ("temporary files",)


def limited(root: Path, mode: Mode, name: str) -> bool:
    command = GREEDY[name].replace("'R'", f"'{REACHED}'").replace("echo R", f"echo {REACHED}")
    outcome = bash(root, mode, command, seconds=60)
    for big in root.glob("big*"):
        big.unlink()
    return REACHED not in outcome.text


@held
def test_T10_a_command_takes_no_more_than_its_limits(tmp_path: Path, mode: Mode, load: Load) -> None:
    names = [name for name in GREEDY if mode == "namespaces" or name not in WITHOUT_NAMESPACES]
    for _ in load.rounds(1, "limits", each=len(names)):
        assert [name for name in names if not limited(tmp_path, mode, name)] == []
    shared = "import mmap, os, time; m = mmap.mmap(-1, 90 << 20); m[::4096] = b'x' * (90 << 8); [os.fork() for n in (1, 2)]; m[::4096]; time.sleep(0.5)"
    assert bash(tmp_path, mode, f'python3 -c "{shared}" && wait').text == "[no output]", "once, not for each of them"


@pytest.mark.planted("no limits")
def test_T10_every_limit_is_passed_without_a_sandbox(tmp_path: Path, load: Load) -> None:
    names = [name for name in GREEDY if name not in ("a core", "processor time")]  # as the account has them
    assert [name for name in some_of(names, load) if limited(tmp_path, "none", name)] == []


@held
def test_T10_a_fork_bomb_ends_and_says_why(tmp_path: Path, mode: Mode) -> None:
    """One that ends by itself: 512 processes at most, for five seconds."""
    bomb = "bomb() { [ $1 = 0 ] || { bomb $(($1 - 1)) & bomb $(($1 - 1)) & }; sleep 5; }; bomb 8; sleep 30; echo R"
    outcome = bash(tmp_path, mode, bomb.replace("echo R", f"echo {REACHED}"), seconds=60)
    assert REACHED not in outcome.text
    assert "limit of 100" in outcome.text or "Resource temporarily unavailable" in outcome.text


# How it ends


ESCAPES = [
    "env -i setsid sleep {n} >/dev/null 2>&1 & sleep 0.1",
    "(env -i setsid sh -c 'setsid sleep {n} & setsid sleep {n} &' >/dev/null 2>&1 &); sleep 0.1",
    "env -i setsid nohup sh -c 'trap \"\" TERM HUP INT; sleep {n}' >/dev/null 2>&1 & sleep 0.1",
]
"""Out of the process group, of the session, and without the mark by which the others are found."""


def running(number: str) -> list[int]:
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            if [b"sleep", number.encode()] == words[:2]:
                found.append(int(name))
    return found


def left_over(root: Path, mode: Mode, escape: str, seconds: float, number: str) -> bool:
    command = escape.format(n=number) + ("; sleep 60" if seconds < 5 else "")
    bash(root, mode, command, seconds=seconds)
    rest = running(number)
    for each in rest:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    return bool(rest)


@held
def test_T10_nothing_escapes_its_end(tmp_path: Path, mode: Mode, load: Load) -> None:
    for n in load.rounds(1, "escapes", each=2 * len(ESCAPES)):
        for place, escape in enumerate(ESCAPES):
            assert not left_over(tmp_path, mode, escape, 10, f"41{n}{place}{os.getpid()}"), escape
            assert not left_over(tmp_path, mode, escape, 0.6, f"42{n}{place}{os.getpid()}"), escape


@pytest.mark.planted("no sandbox")
def test_T10_every_escape_works_without_a_sandbox(tmp_path: Path) -> None:
    assert [escape for escape in ESCAPES if not left_over(tmp_path, "none", escape, 10, f"43{os.getpid()}")] == []


KILLED = """
import asyncio, sys
from lamina.sandbox.sandbox import SandboxRunner, Sandbox
sandbox = SandboxRunner(Sandbox(use="off" if sys.argv[2] == "none" else "auto"), sys.argv[1], {"PATH": "/usr/bin:/bin"})
if sys.argv[2] == "landlock":
    sandbox.ruled_out["namespaces"] = "as in a container"
command = f"setsid sleep {sys.argv[3]} & touch up; sleep {sys.argv[3]}"
asyncio.run(sandbox.run(["/bin/bash", "-c", command], seconds=60, max_bytes=99, changes=True))
"""


def outlives(root: Path, mode: Mode, number: str) -> bool:
    """Whether something of a command is there a while after lamina itself was killed."""
    (root / "work").mkdir()
    words = [sys.executable, "-c", KILLED, str(root / "work"), mode, number]
    lamina = subprocess.Popen(words, cwd=ROOT, env={**os.environ, "TMPDIR": str(root)})
    until = time.monotonic() + 30
    while not ((root / "work/up").exists() and len(running(number)) == 2) and time.monotonic() < until:
        time.sleep(0.02)
    lamina.kill()
    lamina.wait()
    until = time.monotonic() + (0.5 if mode == "none" else 10)
    while (rest := running(number)) and time.monotonic() < until:
        time.sleep(0.02)
    for each in rest:
        os.kill(each, signal.SIGKILL)
    return bool(rest)


@held
def test_T10_a_command_ends_with_lamina(tmp_path: Path, mode: Mode) -> None:
    assert not outlives(tmp_path, mode, f"44{os.getpid()}")


@pytest.mark.planted("no sandbox")
def test_T10_a_command_without_a_sandbox_outlives_lamina(tmp_path: Path) -> None:
    assert outlives(tmp_path, "none", f"45{os.getpid()}")


# Ordinary work


WORK = {
    "git": "git init -q repo && cd repo && echo 一 > 文件.txt && git add . && git -c user.name=a -c user.email=a@b commit -qm x "
    "&& echo two >> 文件.txt && git status --short && git diff && git log --oneline && git stash -q && git stash pop -q",
    "python": "python3 -m venv --without-pip env && env/bin/python -c 'import json, ssl, multiprocessing as m; m.Lock()'",
    "unittest": "printf 'import unittest, tempfile\nclass T(unittest.TestCase):\n  def test(self):\n    tempfile.mkdtemp()\n' "
    "> test_x.py && python3 -m unittest -q test_x",
    "gcc": "printf '#include <stdio.h>\nint main(){{puts(\"hi\");}}' > x.c && gcc x.c -o x && ./x",
    "make": "printf 'all:\n\t@echo built > out\n' > Makefile && make -s && grep built out",
    "node": 'node -e \'require("fs").writeFileSync("n.txt", "x"); console.log(process.version)\'',
    "node workers": "echo 'process.send(1); process.disconnect()' > w.js && node -e '"
    'require("child_process").fork("./w.js").on("message", () => console.log("up")); new (require("worker_threads").Worker)("1", {{eval: true}})\' | grep up',
    "npm": 'echo \'{{"scripts": {{"test": "node -e 1"}}}}\' > package.json && npm test --silent',
    "workers": "python3 -c 'import socket, multiprocessing as m; socket.socketpair(); m.get_context(\"fork\").Process(target=print).start()' "
    "&& nice -n 1 true && (ulimit -n 100) && taskset -c 0 true && prlimit --nofile=100 true",
    "rustc": "echo 'fn main(){{}}' > m.rs && rustc m.rs -o m && ./m",
    "sort": "seq 20000 | sort -rn -S 64k | tail -1 | grep 1",
    "shell": "cat <<< here; cat <(echo sub) | tee t | wc -l; date >/dev/null; locale; [ $(echo 中文 | wc -m) = 3 ]; mktemp",
    "grep": "mkdir -p 目录 && echo 针 > 目录/草.txt && grep -rn 针 . && find . -name '草*' && ls -la / >/dev/null || ls -la",
    "local server": 'python3 -c \'import socket; s = socket.create_server(("127.0.0.1", 0)); '
    "socket.create_connection(s.getsockname()).close()'",
    "tar": "echo x > y && tar czf y.tgz y && rm y && tar xzf y.tgz && gzip -dc y.tgz | tar t && mv y.tgz 目.tgz",
    "exit": "true && (exit 3); [ $? = 3 ]",
    "no terminal": "! (exec </dev/tty) 2>/dev/null",
    "whoami": "id -un && getent passwd root >/dev/null && hostname >/dev/null",
}
"""With braces doubled."""
NOT_UNDER_LANDLOCK = ("local server", "python")
"""Without a namespace there is no network to be alone in; and /dev/shm is everybody's."""


@held
def test_T10_ordinary_work_goes_on(tmp_path: Path, mode: Mode) -> None:
    programs = {"gcc", "make", "node", "npm", "rustc"}
    there = {name for name in programs if bash(tmp_path, "none", f"command -v {name}").text.startswith("/")}
    for name, command in WORK.items():
        program = name.split()[0]
        if (program in programs and program not in there) or (mode == "landlock" and name in NOT_UNDER_LANDLOCK):
            continue
        outcome = bash(tmp_path, mode, command.replace("{{", "{").replace("}}", "}"), sandbox=Sandbox())
        assert not outcome.text.startswith("[exit code"), (name, outcome.text)
        assert outcome.state == "done"


@held
def test_T10_a_linked_worktree_is_one_and_another_folder_is_not(tmp_path: Path, mode: Mode) -> None:
    main, tree = tmp_path / "main", tmp_path / "tree"
    me = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (["init", "-q", str(main)], ["-C", str(main), *me, "commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", *words], check=True)
    subprocess.run(["git", "-C", str(main), "worktree", "add", "-q", str(tree)], check=True)
    command = (
        "echo x > f && git add f && git -c user.name=a -c user.email=a@b commit -qm two && git log --oneline | wc -l"
    )
    assert bash(tree, mode, command).text == "2\n"
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/HEAD").write_text(CANARY)
    (tree / ".git").write_text(f"gitdir: {tmp_path}/secret\n")
    assert CANARY not in bash(tree, mode, f"cat {tmp_path}/secret/HEAD").text
    assert CANARY in bash(tree, "none", f"cat {tmp_path}/secret/HEAD").text


# What people see


@held
def test_T10_a_refusal_says_what_to_do(tmp_path: Path, mode: Mode) -> None:
    for command, confirmed, words in [
        (f"echo x > {tmp_path.parent}/new", True, "only in the workspace and in TMPDIR"),
        ("echo x > new", False, "the user was not asked"),
        ("exec 3<>/dev/tcp/127.0.0.1/9", True, "LAMINA_BASH_NETWORK=on"),
        ("cat /var/log/nothing", True, "LAMINA_BASH_READABLE"),
        ("curl -s https://192.0.2.1 2>/dev/null", True, "LAMINA_BASH_NETWORK=on"),
        ("ls ~", True, "not the user's home"),
        ("cd /var/log 2>/dev/null; true", True, "/var/log is not visible"),
        ("python3 -c 'x = bytearray(300 << 20)'", True, "at most 256 MB of memory; LAMINA_BASH_MEMORY"),
        ("grep nothing /dev/null", True, ""),
        ("cat nothing", True, ""),
        ("touch a; sed -i '/own/d' a; echo ~ > /dev/null; ls /usr > /tmp/x || true", True, ""),
        ("echo curl; false", True, ""),
    ]:
        text = bash(tmp_path, mode, command, confirmed=confirmed).text
        assert (words in text) if words else ("[sandbox" not in text), (command, text)
        assert not any(line.find("=on") > 54 for line in text.splitlines()), "cut off in a terminal of 60 columns"
    greedy = bash(tmp_path, mode, GREEDY["processes"]).text
    assert "[stopped by the sandbox: more processes than the limit of 100" in greedy or "temporarily" in greedy


@held
def test_T10_the_network_is_there_for_a_confirmed_command_when_it_is_allowed(scene: Scene, mode: Mode) -> None:
    sandbox = replace(scene.sandbox(), network=True)
    command = f"exec 3<>/dev/tcp/127.0.0.1/{scene.words()['tcp']}"
    assert bash(scene.root, mode, command, sandbox=sandbox).text == "[no output]"
    assert scene.was_reached()
    assert "[sandbox: no network" in bash(
        scene.root, mode, command, confirmed=False, sandbox=sandbox
    ).text or mode == "landlock"  # fmt: skip
    assert not scene.was_reached()


@held
def test_T10_more_folders_can_be_opened_for_reading_only(scene: Scene, mode: Mode) -> None:
    out = scene.folder / "outside"
    sandbox = replace(scene.sandbox(), readable=(str(out),))
    text = bash(
        scene.root, mode, f"cat {out}/secret.txt; echo x > {out}/new; rm {out}/secret.txt", sandbox=sandbox
    ).text
    assert CANARY in text
    assert not scene.was_reached()


@held
def test_T10_a_home_on_the_path_stays_closed_and_programs_elsewhere_run(scene: Scene, mode: Mode) -> None:
    home = scene.folder / "home"
    for folder in (home / "bin", home / "lib"):
        folder.mkdir()
    (home / "bin/hello").write_text('#!/bin/sh\ncat "$(dirname "$0")/../lib/words"\n')
    (home / "bin/hello").chmod(0o755)
    (home / "lib/words").write_text("hello\n")
    environ = {"PATH": f"{home}:{home}/bin:/usr/bin:/bin", "HOME": str(home)}
    confined = SandboxRunner(Sandbox(), str(scene.root), environ, home=str(home))
    if mode == "landlock":
        confined.ruled_out["namespaces"] = "as in a container"
    command = ["/bin/bash", "-c", f"hello; cat {home}/.ssh/*"]
    ran = asyncio.run(confined.run(command, seconds=20, max_bytes=9_999, changes=True))
    assert ran.output.startswith("hello\n")
    assert CANARY not in ran.output


@held
def test_T10_a_link_on_the_path_opens_its_program_and_nothing_beside_it(scene: Scene, mode: Mode) -> None:
    """A script of a project, a tool in an environment of its own, and a file that is not a program."""
    home, tool = scene.folder / "home", scene.folder / "tools/black"
    for folder in (home / "bin", home / "project/lib", home / "project/bin", tool / "bin", tool / "lib"):
        folder.mkdir(parents=True)
    for path in (home / "project/run", home / "project/bin/walk", tool / "bin/black"):
        path.write_text('#!/bin/sh\necho "ran $(basename "$0")"; cat "$(dirname "$(realpath "$0")")"/../lib/words\n')
        path.chmod(0o755)
        (home / "bin" / path.name).symlink_to(path)
    for path in (home / "project/key.txt", home / "project/lib/words", home / "project/bin/key.txt", home / "note"):
        path.write_text(CANARY)
    (tool / "lib/words").write_text("beside\n")
    (tool / "pyvenv.cfg").touch()
    (home / "bin/note").symlink_to(home / "note")
    environ = {"PATH": f"{home}/bin:/usr/bin:/bin", "HOME": str(home)}
    confined = SandboxRunner(Sandbox(), str(scene.root), environ, home=str(home))
    if mode == "landlock":
        confined.ruled_out["namespaces"] = "as in a container"
    command = ["/bin/bash", "-c", f"run; walk; black; cat {home}/project/* {home}/project/*/* {home}/note"]
    ran = asyncio.run(confined.run(command, seconds=20, max_bytes=9_999, changes=True))
    assert all(words in ran.output for words in ("ran run", "ran walk", "ran black", "beside")), ran.output
    assert CANARY not in ran.output


@pytest.mark.skipif("namespaces" not in HERE, reason="no namespaces here")
def test_T10_the_first_process_does_not_say_how_it_was_called(scene: Scene) -> None:
    text = bash(
        scene.root, "namespaces", "tr '\\0' ' ' < /proc/1/cmdline; echo; ps -ef || true", sandbox=scene.sandbox()
    ).text
    assert "store.db" not in text
    assert "parent=" not in text


@held
def test_T10_a_store_stays_closed_where_its_folder_cannot_be_moved(scene: Scene, mode: Mode) -> None:
    """The second command no longer finds the store where its policy says; without a sandbox it does read it."""

    def read_after(command: str, mode: Mode) -> bool:
        scene.prepare()
        texts = [
            bash(scene.root, mode, each, sandbox=scene.sandbox()).text for each in (command, "cat */deep/key */key")
        ]
        return CANARY in "".join(texts)

    for command in ("mv sub bus", "mv sub/deep sub/peed; mv sub/peed other", "mkdir x; mv sub/deep x/deep; mv sub/* x"):
        assert not read_after(command, mode), command
    assert read_after("mv sub bus", "none")


LEAVINGS = """
import asyncio, os, sys, tempfile
from lamina.sandbox.sandbox import SandboxRunner, Sandbox
sandbox = SandboxRunner(Sandbox(), sys.argv[1], {"PATH": os.environ["PATH"]})
sandbox.ruled_out["namespaces"] = "as in a container"
deep = "import os\\nfor n in range(1500): os.mkdir('d'); os.chdir('d')"
closed = "mkdir -p a/b; touch a/b/c; ln -s a l; mkdir -m 0 d; mknod p p; chmod 0 a/b a .; echo made"
for command in (f'cd $TMPDIR; python3 -c "{deep}" && echo made', f"cd $TMPDIR; {closed}"):
    ran = asyncio.run(sandbox.run(["/bin/bash", "-c", command], seconds=60, max_bytes=99, changes=True))
    print(ran.output.strip(), os.listdir(tempfile.gettempdir()))
"""


@pytest.mark.skipif("landlock" not in HERE, reason="no Landlock here")
def test_T10_nothing_stays_of_the_private_folder(tmp_path: Path) -> None:
    """A folder deeper than Python's stack, and folders that are closed to their owner."""
    place = tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path)
    try:
        words = [sys.executable, "-c", LEAVINGS, str(tmp_path)]
        ran = subprocess.run(words, cwd=ROOT, env={**os.environ, "TMPDIR": place}, capture_output=True, text=True)
        assert (ran.stdout, ran.stderr) == ("made []\nmade []\n", "")
    finally:
        subprocess.run(["chmod", "-R", "u+rwx", place], check=False)
        subprocess.run(["rm", "-rf", place], check=True)


def test_T10_required_runs_nothing_where_there_is_no_sandbox_and_auto_says_so(tmp_path: Path) -> None:
    """As on a system that has neither of them."""
    for use, ran in (("required", False), ("auto", True)):
        [tool] = shell_tools(tmp_path, lambda command: Decision("safe"), sandbox=Sandbox(use=use))  # type: ignore[arg-type]
        tool.run.__self__.runner.ruled_out.update(namespaces="no user namespaces", landlock="no Landlock")  # type: ignore[union-attr]
        registry = ToolRegistry(tool)
        event = ToolCallEvent("1", "bash", '{"command": "echo here"}')
        first, second = (asyncio.run(registry.call(event)).text for _ in range(2))
        assert ("\nhere\n" in first) == ran
        if ran:
            assert "no sandbox" in first
            assert second == "here\n"
        else:
            assert "LAMINA_BASH_SANDBOX=required" in first
            assert "no user namespaces" in first


@pytest.mark.skipif(not HERE, reason="no sandbox here")
async def test_T10_the_store_in_the_workspace_is_closed_to_bash(tmp_path: Path) -> None:
    """Through an app with the shipped tools, a real store, and somebody who says yes to everything."""
    (tmp_path / "home").mkdir()
    environ = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    kept = settings(tools=True, workspace=str(tmp_path), mode="agent", environ=environ)
    commands = ["cat x.db* | strings; cat x.db*", "cp x.db y.db; grep -c . y.db", "echo fine > z && cat z"]
    script = [[{"call": "bash", "id": f"c{n}", "arguments": {"command": each}}] for n, each in enumerate(commands)]
    provider = ScriptedProvider([*script, [{"text": "done"}]])
    async with App.open(tmp_path / "x.db", settings=kept, provider=provider, work=False) as app:
        session = await app.new_session("ann")
        events = [event async for event in app.run("ann", session.session_id, f"Remember {CANARY}", ask=yes)]
    texts = [event.text for event in events if isinstance(event, ToolResult)]
    assert len(texts) == 3
    assert CANARY.encode() in b"".join(path.read_bytes() for path in tmp_path.glob("x.db*")), "it must be there to find"
    assert not any(CANARY in text for text in texts)
    assert texts[2] == "fine\n"
    assert not (tmp_path / "y.db").exists() or (tmp_path / "y.db").read_bytes() == b""
