"""A terminal for the tests: a real process behind a pseudo-terminal, its screen read as people see it."""

import codecs
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSCTTY, TIOCSWINSZ
from types import TracebackType

import pyte

from tests.cli.forks import Forked

ENTER, NEWLINE, ALT_ENTER, CTRL_C, CTRL_D, TAB = "\r", "\n", "\x1b\r", "\x03", "\x04", "\t"
PATIENCE = 60.0
"""Seconds after which something that people would see is said never to come."""


def pasted(text: str) -> str:
    """What a terminal sends when people paste."""
    return f"\x1b[200~{text}\x1b[201~"


class Terminal:
    """`with Terminal(["chat"], …) as terminal:` types, waits until something can be seen, and reads the screen."""

    def __init__(
        self,
        arguments: list[str],
        environ: Mapping[str, str],
        folder: Path,
        *,
        width: int = 100,
        height: int = 40,
        fresh: bool = False,
    ) -> None:
        self.raw = b""
        self._screen = pyte.HistoryScreen(width, height, history=5_000)
        self._stream = pyte.Stream(self._screen)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._parent, child = pty.openpty()
        self._screen.write_process_input = self.send  # pyright: ignore[reportAttributeAccessIssue] -- pyte's hook
        ioctl(child, TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        environ = {"TERM": "xterm-256color", **environ, "LANG": "C.UTF-8"}
        environ = {name: value for name, value in environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}

        def own() -> None:  # a terminal of its own, so that Ctrl-C reaches the process as people's would
            os.setsid()
            ioctl(0, TIOCSCTTY, 0)

        self.process: Forked | subprocess.Popen[bytes]
        if fresh:  # where a fork differs: threads of the libraries behind the embedded models
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lamina", *arguments], stdin=child, stdout=child, stderr=child, cwd=folder,
                env=environ, preexec_fn=own,
            )  # fmt: skip
        else:
            self.process = Forked(arguments, (child, child, child), folder, environ, terminal=True)
        os.close(child)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._parent)

    def send(self, text: str) -> None:
        os.write(self._parent, text.encode())

    @property
    def lines(self) -> list[str]:
        """What can be seen, and what scrolled away above."""
        return shown_lines(self._screen)

    @property
    def text(self) -> str:
        return "\n".join(self.lines).rstrip()

    @property
    def screen(self) -> pyte.HistoryScreen:
        return self._screen

    def wait(self, seen: str | Callable[[str], bool], patience: float = PATIENCE) -> str:
        """Read until the text can be seen; returns everything that can be."""
        until = time.monotonic() + patience
        check = seen if callable(seen) else lambda text: seen in text
        while not check(self.text):
            left = until - time.monotonic()
            assert left > 0, f"{seen!r} was never seen:\n{self.text}"
            assert self._read(min(left, 1.0)), f"it ended before {seen!r} was seen:\n{self.text}"
        return self.text

    def say(self, text: str, seen: str | Callable[[str], bool]) -> str:
        """Type when it is time, press Enter, wait until something can be seen that was not there before."""
        shown = self.ready()
        before = shown.count(seen) if isinstance(seen, str) else 0
        self.send(text)
        self.send(ENTER)
        return self.wait(seen if callable(seen) else lambda shown: shown.count(seen) > before + (seen in text))

    def ready(self) -> str:
        """Wait until it waits for people: the line of figures stands below the prompt."""
        return self.wait(lambda text: text.split("\n")[-1].endswith("· /help"))

    def end(self, patience: float = PATIENCE) -> int:
        """Read to the end; the exit code."""
        until = time.monotonic() + patience
        while self._read(1.0):
            assert time.monotonic() < until, f"it does not end:\n{self.text}"
        return self.process.wait(patience)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._parent], [], [], seconds)[0]:
            return True
        try:
            block = os.read(self._parent, 65536)
        except OSError:  # the process has ended and the terminal with it
            return False
        self.raw += block
        self._stream.feed(self._decode(block))
        return bool(block)


def shown_lines(screen: pyte.HistoryScreen) -> list[str]:
    past = [_row(row, screen.columns) for row in screen.history.top]
    return [*past, *(line.rstrip() for line in screen.display)]


def _row(row: Mapping[int, pyte.screens.Char], columns: int) -> str:
    return "".join(row[column].data for column in range(columns)).rstrip()
