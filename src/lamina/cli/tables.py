"""Tables that fit: in a narrow terminal the secondary columns and the bars give way first, then texts are folded.
Nothing is cut: a column is there as a whole, or it is not there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

READABLE = 20
"""Columns of a terminal below which texts are no pleasure to read."""
BAR, LEAST_BAR = 36, 4


@dataclass(frozen=True, slots=True)
class Fitted:
    """A table without lines. `folds` are texts, which take several rows; `yields` are left out where there is no room,
    in this order."""

    heads: Mapping[str, str]
    rows: Sequence[Sequence[Text]]
    folds: Sequence[str]
    right: Sequence[str] = ()
    yields: Sequence[str] = ()
    padding: tuple[int, int, int, int] = (0, 2, 0, 0)
    show_header: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept, tight = self.fitting(options.max_width)
        table = Table(box=None, padding=self.padding, header_style="dim", show_header=self.show_header)
        for name in kept:
            table.add_column(
                self.heads[name], justify="right" if name in self.right else "left", overflow="fold",
                no_wrap=not tight and name not in self.folds,
            )  # fmt: skip
        places = [number for number, name in enumerate(self.heads) if name in kept]
        for row in self.rows:
            table.add_row(*(row[place] for place in places if place < len(row)))
        yield table

    def fitting(self, width: int) -> tuple[list[str], bool]:
        """The columns for which there is room, and whether there is not enough even for them."""
        kept = list(self.heads)
        wide = dict(zip(kept, self._widths(), strict=True))
        share = READABLE // max(1, len(self.folds))
        for name in (*self.yields, None):
            least = sum(min(wide[one], share) if one in self.folds else wide[one] for one in kept)
            if least + len(kept) * (self.padding[1] + self.padding[3]) <= width:
                return kept, False
            if name is not None:
                kept.remove(name)
        return kept, True

    def _widths(self) -> list[int]:
        heads = [cell_len(head) if self.show_header else 0 for head in self.heads.values()]
        return [
            max([head, *(cell_len(line) for row in self.rows for line in _lines(row, number))])
            for number, head in enumerate(heads)
        ]


def _lines(row: Sequence[Text], number: int) -> list[str]:
    return row[number].plain.split("\n") if number < len(row) else []


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of `Bars`."""

    name: str
    size: int
    share: float
    style: str


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar for each row, the largest one full, then its size and share; below them their sum."""

    rows: Sequence[Bar]
    total: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = max([0, *(cell_len(row.name) for row in self.rows)])
        sizes = max([0, *(len(f"{row.size:,}") for row in self.rows)])
        shares = max([0, *(len(f"{row.share:.0%}") for row in self.rows)])
        room = min(BAR, options.max_width - names - sizes - shares - 8)  # a blank at each side of four columns
        table = Table(box=None, padding=(0, 1), show_header=False)
        for side in ("left", *(("left",) if room >= LEAST_BAR else ()), "right", "right"):
            table.add_column(justify="right" if side == "right" else "left", no_wrap=True)
        most = max([1, *(row.size for row in self.rows)])
        for row in self.rows:
            bar = Text("█" * max(1, round(room * row.size / most)), style=row.style)
            cells = (Text(f"{row.size:,}"), Text(f"{row.share:.0%}", style="dim"))
            table.add_row(row.name, *((bar,) if room >= LEAST_BAR else ()), *cells)
        indent = names + 3 if names + 3 + cell_len(self.total.plain) <= options.max_width else 1
        yield Group(table, Padding(self.total, (0, 0, 0, indent)))
