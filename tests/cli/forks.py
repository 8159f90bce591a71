"""`lamina` as processes that need not import it anew: one process has done so, and forks for each start.

A start is a process of its own, with its own folder, environment and terminal, and runs `python -m lamina` to its end;
only the seconds that Python takes to read the modules are saved. What is about those seconds, or about variables that
Python itself reads, starts a Python of its own: see `afresh`.
"""

import array
import atexit
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSCTTY
from typing import Any

from tests.entry_points import note_command

ROOT = Path(__file__).parent.parent.parent
READY = b"ready"
HEAVY = (
    "lamina.app.app", "lamina.tools.web", "lamina.memory.recall", "lamina.providers.scripted",
    "lamina.providers.openai", "lamina.gateway.server", "rich.markdown", "prompt_toolkit.shortcuts",
)  # fmt: skip


def afresh(environ: Mapping[str, str]) -> bool:
    """Whether there is something that Python reads when it starts."""
    return any(name.startswith(("PYTHON", "LC_", "LANG")) for name in environ)


class Forked:
    """A process, with as much of `subprocess.Popen` as is used here."""

    def __init__(
        self, arguments: Sequence[str], files: tuple[int, int, int], folder: Path, environ: Mapping[str, str],
        *, terminal: bool = False,
    ) -> None:  # fmt: skip
        note_command(arguments)
        self.returncode: int | None = None
        self._status, told = os.pipe()
        order = {"arguments": arguments, "folder": str(folder), "environ": dict(environ), "terminal": terminal}
        socket.send_fds(mother(), [json.dumps(order).encode()], [*files, told])
        os.close(told)
        self._told = b""
        pid = self._line(None)
        assert pid is not None
        self.pid = pid

    def _line(self, timeout: float | None) -> int | None:
        """The next number that is told; none when the time is over."""
        while b"\n" not in self._told:
            if not select.select([self._status], [], [], timeout)[0]:
                return None
            self._told += os.read(self._status, 64) or b"-1\n"  # an end without a word
        line, _, self._told = self._told.partition(b"\n")
        return int(line)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            status = self._line(timeout)
            if status is None:
                raise subprocess.TimeoutExpired("lamina", timeout or 0.0)
            self.returncode = os.waitstatus_to_exitcode(status)
            os.close(self._status)
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def ran(
    arguments: Sequence[str], folder: Path, environ: Mapping[str, str], fresh: bool, *, given: str | None = None
) -> subprocess.CompletedProcess[str]:
    """A process to its end, and what it said."""
    if fresh:
        return subprocess.run(
            [sys.executable, "-m", "lamina", *arguments], encoding="utf-8", cwd=folder, env=environ, check=False,
            capture_output=True, input=given, stdin=subprocess.DEVNULL if given is None else None,
        )  # fmt: skip
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as complained, tempfile.TemporaryFile() as asked:
        asked.write((given or "").encode())
        asked.seek(0)
        process = Forked(arguments, (asked.fileno(), told.fileno(), complained.fileno()), folder, environ)
        code = process.wait()
        for file in (told, complained):
            file.seek(0)
        texts = [file.read().decode().replace("\r\n", "\n") for file in (told, complained)]
    return subprocess.CompletedProcess(["lamina", *arguments], code, *texts)


@functools.cache
def address() -> str:
    """Where other programs ask for a process, as `tests/cli/forked.py` does: a name that is no file."""
    return f"lamina-forks-{os.getpid()}-{uuid.uuid4()}"


def shell_function() -> str:
    """`lamina` as a function of bash."""
    mother()
    note_command([])
    words = shlex.join([sys.executable, "-I", "-S", str(Path(__file__).with_name("forked.py")), address()])
    return f'lamina() {{ {words} "$@"; }}; '


@functools.cache
def mother() -> socket.socket:
    """The way to the process that forks; it ends when this one does."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LAMINA_", "LC_", "LANG"))}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cli.forks", str(there.fileno()), address()], cwd=ROOT, pass_fds=[there.fileno()],
        env={**clean, "OPENBLAS_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    there.close()
    assert here.recv(16) == READY

    def end() -> None:
        here.close()
        process.wait(30)

    atexit.register(end)
    return here


# In the process that forks, and in its children


def received(way: socket.socket, listener: socket.socket) -> dict[str, Any] | None:
    """In a child: what it is to do. In the one that forks: nothing, and only at the end."""
    while True:
        if listener in select.select([way, listener], [], [])[0]:
            with listener.accept()[0] as visitor:
                data, files, _, _ = socket.recv_fds(visitor, 1 << 20, 4)
        else:
            data, files, _, _ = socket.recv_fds(way, 1 << 20, 4)
            if not data:
                return None
        if not os.fork():
            way.close()
            listener.close()
            return kept(json.loads(data), files)
        for file in files:
            os.close(file)


def kept(order: dict[str, Any], files: list[int]) -> dict[str, Any]:
    """One process stays to tell how the other one ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *ends, told = files
    child = os.fork()
    if not child:
        os.close(told)
        return {**order, "files": ends}
    for file in ends:
        os.close(file)
    os.write(told, f"{child}\n".encode())
    _, status = os.waitpid(child, 0)
    os.write(told, f"{status}\n".encode())
    os._exit(0)


def become(order: dict[str, Any]) -> None:
    """Its own terminal or files, folder and environment, as a new process has them."""
    if order["terminal"]:
        os.setsid()
    for number, file in enumerate(order["files"]):
        os.dup2(file, number)
        os.close(file)
    if order["terminal"]:
        ioctl(0, TIOCSCTTY, array.array("i", [0]))
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update({"LC_CTYPE": "C.UTF-8", **order["environ"]})
    time.tzset()
    for name, number, errors in (
        ("stdin", 0, "surrogateescape"), ("stdout", 1, "surrogateescape"), ("stderr", 2, "backslashreplace")
    ):  # fmt: skip
        line = bool(number) and (os.isatty(number) or number == 2)
        mode = "w" if number else "r"
        raw = os.fdopen(number, f"{mode}b", closefd=False)
        stream = io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=line)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv = ["lamina", *order["arguments"]]


def main() -> None:
    cli: Any = importlib.import_module("lamina.cli")
    for name in (*HEAVY, *(f"lamina.cli.{each.name}" for each in pkgutil.iter_modules(cli.__path__))):
        importlib.import_module(name)
    assert threading.active_count() == 1, "a process with threads cannot be forked"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    way = socket.socket(fileno=int(sys.argv[1]))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0{sys.argv[2]}")
    listener.listen()
    way.send(READY)
    order = received(way, listener)
    if order is not None:
        become(order)
        sys.path[0] = order["folder"]
        runpy.run_module("lamina", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
