"""The part of a terminal that moves. Finished things are printed once and scroll away; below them stands what still
grows, drawn anew from its first line that changed, in one write: nothing flickers and nothing is drawn twice.
"""

import re
from typing import Any

from rich.cells import cell_len
from rich.console import Console

STYLE = re.compile(r"\x1b\[[0-9;]*m")
HIDE, SHOW, ERASE = "\x1b[?25l", "\x1b[?25h", "\x1b[J"
SYNC, SHOWN = "\x1b[?2026h", "\x1b[?2026l"
"""Terminals that know them show everything between them at once; the others ignore them."""
WIDEST = 100


class Screen:
    """A console whose last lines can be drawn again."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._lines: list[str] = []
        self._hidden = False

    @property
    def width(self) -> int:
        """Columns of what is read: long lines tire."""
        return max(20, min(self.console.width, WIDEST))

    @property
    def height(self) -> int:
        """Lines that may move: a screen's, without one for what stands above."""
        return max(3, self.console.height - 2)

    def print(self, *parts: Any) -> None:
        """Above the moving part, for good."""
        text = "".join(self._rendered(part) for part in parts)
        moving, self._lines = self._lines, []
        out = self._back(moving, 0) + text
        self._write(out + "\n".join(moving))
        self._lines = moving

    def draw(self, part: Any = None) -> None:
        """The moving part; None takes it away."""
        lines = [] if part is None else self._rendered(part).removesuffix("\n").split("\n")[-self.height :]
        old = self._lines
        same = 0
        while same < min(len(lines), len(old)) and lines[same] == old[same]:
            same += 1
        if same == len(lines) == len(old):
            return
        grown = same == len(old)
        out = ("\n" if old else "") if grown else self._back(old, same)
        hide = "" if self._hidden or not lines else HIDE
        show = SHOW if self._hidden and not lines else ""
        self._hidden = bool(lines)
        if not grown and same == len(lines) and lines:  # only lines at the end go: stand behind the last that stays
            out = self._back(old, same - 1) + lines[-1]
        self._write(hide + out + "\n".join(lines[same:]) + show)
        self._lines = lines

    def _back(self, lines: list[str], keep: int) -> str:
        """To the first column of the line after `keep`, with everything from there on erased."""
        if len(lines) <= keep:
            return ""
        rows = sum(self._rows(line) for line in lines[keep:])
        return "\r" + (f"\x1b[{rows - 1}A" if rows > 1 else "") + ERASE

    def _rows(self, line: str) -> int:
        """How many rows a line takes; more than one after the window was made narrower."""
        return max(1, -(-cell_len(STYLE.sub("", line)) // self.console.width))

    def _rendered(self, part: Any) -> str:
        with self.console.capture() as captured:
            self.console.print(part, width=self.width, overflow="fold")
        return "\n".join(_trimmed(line) for line in captured.get().split("\n"))

    def _write(self, text: str) -> None:
        if text:
            self.console.file.write(f"{SYNC}{text}{SHOWN}" if self.console.is_terminal else text)
            self.console.file.flush()


def _trimmed(line: str) -> str:
    """Without blanks at the end, which only make copied text ugly."""
    return line if line.endswith("m") else line.rstrip(" ")
