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
