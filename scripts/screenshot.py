"""`python scripts/screenshot.py FILE.svg -- lamina context …`: run a command on a terminal and draw what it shows."""

import os
import pty
import re
import struct
import subprocess
import sys
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

WIDTH = 100


def shown(command: list[str]) -> str:
    """What a command writes to a terminal of WIDTH columns."""
    parent, child = pty.openpty()
    ioctl(child, TIOCSWINSZ, struct.pack("HHHH", 60, WIDTH, 0, 0))
    environ = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
    with subprocess.Popen(command, stdout=child, stderr=child, env=environ):
        os.close(child)
        seen = b""
        try:
            while block := os.read(parent, 65536):
                seen += block
        except OSError:  # the program has ended and the terminal with it
            pass
    return seen.decode().replace("\r\n", "\n")


def draw(path: str, text: Text, title: str) -> None:
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        console.print(text, end="")
        plain = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)  # no fonts from elsewhere
        svg = console.export_svg(title=title, code_format=plain, unique_id="lamina")
    # rich measures a line in characters, and Chinese ones are two columns wide: let the font decide
    Path(path).write_text(re.sub(r' textLength="[^"]*"', "", svg), encoding="utf-8")


if __name__ == "__main__":
    draw(sys.argv[1], Text.from_ansi(shown(sys.argv[3:])), " ".join(["lamina", *sys.argv[4:]]))
