"""What commands print: tables, pairs of names and values, and values as people read them."""

import io
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from lamina.cli.say import Say, visible

ID_CHARACTERS = 8
"""Characters of an id in a table."""
LINE_CHARACTERS = 160
"""Characters of a text in a table."""
ROLE_COLOURS = {"system": "cyan", "user": "bright_white", "assistant": "green", "tool": "yellow"}


def page(*parts: Any) -> None:
    """Print rich things: coloured on a terminal, without trailing blanks elsewhere."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    text = io.StringIO()
    console = Console(highlight=False) if terminal else Console(highlight=False, file=text)
    console.width = max(40, console.width)
    for part in parts:
        console.print(part)
    for line in text.getvalue().split("\n")[:-1] if not terminal else ():
        print(line.rstrip())


def table(
    say: Say, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[str] = (),
    yields: Sequence[str] = (),
) -> Any:  # fmt: skip
    """A table without lines, the last column folded; where there is no room, those that yield are left out, in their
    order. A cell is text, which is made visible, or a rich text."""
    from rich.text import Text

    from lamina.cli.tables import Fitted

    cells = [[cell if isinstance(cell, Text) else Text(visible(str(cell))) for cell in row] for row in rows]
    return Fitted({name: say(f"cli.col.{name}") for name in columns}, cells, columns[-1:], right, yields)


def pairs(say: Say, rows: Mapping[str, object]) -> Any:
    """Names of columns and their values, one below the other."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows.items():
        made.add_row(say(f"cli.col.{name}"), value if isinstance(value, Text) else Text(visible(str(value))))
    return made


def styled(text: str, style: str) -> Any:
    from rich.text import Text

    return Text(visible(text), style=style)


def one_line(text: str, most: int = LINE_CHARACTERS) -> str:
    line = " ".join(text.split())
    return f"{line[: most - 1]}…" if len(line) > most else line


def short_id(name: str) -> str:
    return name[:ID_CHARACTERS]


def format_time(stamp: float | None) -> str:
    """A time as people here read it."""
    try:
        return "—" if stamp is None else datetime.fromtimestamp(stamp).astimezone().strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):  # a row from elsewhere with a time beyond any calendar
        return "—"


def format_size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
