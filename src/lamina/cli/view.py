"""What commands print: tables that fit the terminal, values as people read them, and a context with its receipt.

In a narrow terminal the secondary columns and the bars give way first, then texts are folded. Nothing is cut: a column
is there as a whole, or it is not there.
"""

import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from lamina.cli.say import Say, visible
from lamina.types import Context, Message, Receipt, Segment

LAYER_COLOURS = {
    "identity": "cyan",
    "instructions": "bright_cyan",
    "rules": "blue",
    "scenario": "bright_blue",
    "skill": "magenta",
    "mode": "bright_magenta",
    "tools": "yellow",
    "session": "white",
    "memory": "green",
    "collected": "bright_green",
    "summary": "bright_yellow",
    "context": "dark_orange",
    "state": "red",
    "history": "grey62",
    "user": "bright_white",
}
ROLE_COLOURS = {"system": "cyan", "user": "bright_white", "assistant": "green", "tool": "yellow"}
ID_CHARACTERS = 8
"""Characters of an id in a table."""
LINE_CHARACTERS = 160
"""Characters of a text in a table."""
LAYER_CHARACTERS, MESSAGE_CHARACTERS = 160, 400
"""Characters of a layer and of a message that are shown without --full."""
READABLE_COLUMNS = 20
"""Columns of a terminal below which texts are hard to read."""
WIDE_COLUMNS = 98
"""Columns below which a table leaves out what only wide ones show."""
BAR_COLUMNS, LEAST_BAR_COLUMNS = 36, 4


def page(*parts: Any) -> None:
    """Print rich things: coloured on a terminal, without trailing blanks elsewhere."""
    terminal = sys.stdout.isatty()
    text = io.StringIO()
    console = Console(highlight=False) if terminal else Console(highlight=False, file=text)
    console.width = max(40, console.width)
    for part in parts:
        console.print(part)
    for line in text.getvalue().split("\n")[:-1] if not terminal else ():
        print(line.rstrip())


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table without lines. `folds` are texts, which take several rows; `yields` are left out where there is no room,
    in this order; `wide` are left out in a terminal that is not wide."""

    heads: Mapping[str, str]
    rows: Sequence[Sequence[Text]]
    folds: Sequence[str]
    right: Sequence[str] = ()
    yields: Sequence[str] = ()
    wide: Sequence[str] = ()
    padding: tuple[int, int, int, int] = (0, 2, 0, 0)
    show_header: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns, tight = self.fit_columns(options.max_width)
        table = Table(box=None, padding=self.padding, header_style="dim", show_header=self.show_header)
        for name in columns:
            justify, no_wrap = "right" if name in self.right else "left", not tight and name not in self.folds
            table.add_column(self.heads[name], justify=justify, overflow="fold", no_wrap=no_wrap)
        places = [number for number, name in enumerate(self.heads) if name in columns]
        for row in self.rows:
            table.add_row(*(row[place] for place in places if place < len(row)))
        yield table

    def fit_columns(self, width: int) -> tuple[list[str], bool]:
        """The columns for which there is room, and whether there is not enough even for them."""
        columns = [name for name in self.heads if width >= WIDE_COLUMNS or name not in self.wide]
        widths = dict(zip(self.heads, self._widths(), strict=True))
        share = READABLE_COLUMNS // max(1, len(self.folds))
        for name in (*(name for name in self.yields if name in columns), None):
            least = sum(min(widths[one], share) if one in self.folds else widths[one] for one in columns)
            if least + len(columns) * (self.padding[1] + self.padding[3]) <= width:
                return columns, False
            if name is not None:
                columns.remove(name)
        return columns, True

    def _widths(self) -> Iterator[int]:
        for number, head in enumerate(self.heads.values()):
            lines = [line for row in self.rows if number < len(row) for line in row[number].plain.split("\n")]
            yield max([cell_len(head) if self.show_header else 0, *map(cell_len, lines)])


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
        room = min(BAR_COLUMNS, options.max_width - names - sizes - shares - 8)  # a blank at each side of four columns
        has_bars = room >= LEAST_BAR_COLUMNS
        table = Table(box=None, padding=(0, 1), show_header=False)
        for side in ("left", *(("left",) if has_bars else ()), "right", "right"):
            table.add_column(justify="right" if side == "right" else "left", no_wrap=True)
        most = max([1, *(row.size for row in self.rows)])
        for row in self.rows:
            bar = Text("█" * max(1, round(room * row.size / most)), style=row.style)
            cells = (Text(f"{row.size:,}"), Text(f"{row.share:.0%}", style="dim"))
            table.add_row(row.name, *((bar,) if has_bars else ()), *cells)
        indent = names + 3 if names + 3 + cell_len(self.total.plain) <= options.max_width else 1
        yield Group(table, Padding(self.total, (0, 0, 0, indent)))


def table(
    say: Say,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    right: Sequence[str] = (),
    yields: Sequence[str] = (),
) -> FittedTable:
    """A table whose last column is folded. A cell is text, which is made visible, or a rich text."""
    cells = [[_cell(cell) for cell in row] for row in rows]
    return FittedTable({name: say(f"cli.col.{name}") for name in columns}, cells, columns[-1:], right, yields)


def pairs(rows: Iterable[tuple[object, object]], *, style: str = "dim") -> Table:
    """Names and their values, one below the other."""
    made = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    made.add_column(style=style, no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(_cell(name), _cell(value))
    return made


def details(say: Say, rows: Mapping[str, object]) -> Table:
    """Columns of one thing and their values, one below the other."""
    return pairs((say(f"cli.col.{name}"), value) for name, value in rows.items())


def _cell(value: object) -> Text:
    return value if isinstance(value, Text) else Text(visible(str(value)))


def styled(text: str, style: str) -> Text:
    return Text(visible(text), style=style)


def one_line(text: str, limit: int = LINE_CHARACTERS) -> str:
    line = " ".join(text.split())
    return f"{line[: limit - 1]}…" if len(line) > limit else line


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


def show_context(context: Context, receipt: Receipt, say: Say, *, full: bool) -> None:
    """Everything about one context, for people."""
    parts: list[Any] = [_rule(say("cli.context.messages"))]
    dropped = say("cli.receipt.dropped", count=receipt.dropped.count, tokens=receipt.dropped.tokens)
    for number, message in enumerate(context.messages):
        if receipt.dropped.count and number == (1 if context.system else 0):
            parts.append(Text(f"⋯ {dropped}\n", style="yellow"))
        parts.append(Text(f" {message['role']} ", style=f"bold {ROLE_COLOURS[message['role']]} reverse"))
        if message["role"] == "system":  # layer by layer, a little of each
            for text, segment in context.spans[0]:
                name = Text(f"  {segment.layer}", style=f"bold {_colour(segment.layer)}")
                parts.append(name.append(f"  {visible(segment.source)}", style="dim"))
                parts += _shorten(visible((text or "").strip("\n")), LAYER_CHARACTERS, say, full)
        else:
            parts += _shorten(_message_text(message, say), MESSAGE_CHARACTERS, say, full)
        parts.append(Text(""))
    parts += [_rule(say("cli.context.receipt")), layer_bars(receipt, say)]
    if receipt.dropped.count:
        parts.append(Padding(Text(dropped, style="yellow"), (0, 1)))
    if receipt.over_budget:
        parts.append(Padding(Text(say("cli.receipt.over"), style="bold red"), (0, 1)))
    parts += [segment_table(receipt, say, full=full), Padding(Text(proof_line(receipt, say), style="dim"), (0, 1))]
    page(*parts)


def _rule(title: str) -> Rule:
    return Rule(Text(title, style="bold"), align="left", style="dim")


def _colour(layer: str) -> str:
    return LAYER_COLOURS.get(layer, "white")


def _shorten(text: str, limit: int, say: Say, full: bool) -> list[Any]:
    shown = text if full or len(text) <= limit else text[:limit].rsplit(maxsplit=1)[0]
    lines = [Text(shown)]
    if len(shown) < len(text):
        lines.append(Text(say("cli.more", chars=len(text) - len(shown)), style="dim"))
    return [Padding(line, (0, 0, 0, 4)) for line in lines]


def _message_text(message: Message, say: Say) -> str:
    content = message["content"]
    if isinstance(content, str):
        lines = [content] if content else []
    else:
        lines = [part["text"] if part["type"] == "text" else say("cli.picture") for part in content or ()]
    for call in message.get("tool_calls") or ():
        lines.append(say("cli.calls", name=call["function"]["name"], arguments=call["function"]["arguments"]))
    return visible("\n".join(lines))


def layer_bars(receipt: Receipt, say: Say) -> Bars:
    """A bar for each layer: the layers are compared with each other, the sum with the budget."""
    rows = [
        Bar(layer, sent, sent / max(1, receipt.tokens), _colour(layer))
        for layer, (sent, _) in receipt.by_layer().items()
        if sent
    ]
    style = "bold red" if receipt.over_budget else "bold"
    total = Text(say("cli.receipt.of_budget", tokens=receipt.tokens, budget=receipt.budget), style=style)
    free = receipt.budget - receipt.tokens
    if free > 0:
        total.append(f"  {say('cli.receipt.free', tokens=f'{free:,.0f}')}", style="dim")
    return Bars(rows, total)


def segment_table(receipt: Receipt, say: Say, *, full: bool) -> FittedTable:
    """Where every byte came from."""
    rows: list[list[Text]] = []
    for run in _runs(receipt.segments, full):
        first, last, alone = run[0], run[-1], len(run) == 1
        dropped = first.decision == "dropped"
        reason = say.render(first.reason)
        rows.append(
            [
                Text("—" if dropped else f"{first.start}–{last.end}"),
                Text(first.layer, style=_colour(first.layer)),
                Text(f"{sum(segment.tokens for segment in run):,}"),
                Text(visible(first.source if alone else f"{first.source} … {last.source}")),
                Text(first.hash[:8] if alone else ""),
                Text(say(f"trust.{first.trust}") if alone and not dropped else ""),
                Text(say("cli.receipt.left_out", reason=reason), style="yellow") if dropped else Text(reason),
            ]
        )
    heads = {name: say(f"cli.col.{name}") for name in ("bytes", "layer", "tokens", "source", "hash", "trust", "why")}
    return FittedTable(
        heads,
        rows,
        ("source", "why"),
        ("bytes", "tokens"),
        yields=("hash", "trust", "bytes", "tokens"),
        wide=("hash",),
        padding=(0, 1, 0, 1),
    )


def proof_line(receipt: Receipt, say: Say) -> str:
    """What the receipt vouches for."""
    tiles = say("cli.receipt.tiles", segments=len(receipt.segments), size=receipt.size)
    return f"{tiles} · sha256 {receipt.hash[:16]} · {receipt.grammar} · {visible(receipt.counter)}"


def cut_table(receipt: Receipt, say: Say) -> FittedTable | None:
    """What was left out, shortened or skipped, and why; None when all of it was sent."""
    lines: list[list[Text]] = []
    cut = [segment for segment in receipt.segments if segment.decision != "kept"]
    for (layer, decision, reason), run in groupby(cut, key=lambda s: (s.layer, s.decision, s.reason)):
        rows = list(run)
        source = rows[0].source if len(rows) == 1 else f"{rows[0].source} … {rows[-1].source}"
        lines.append(
            [
                Text(layer, style=_colour(layer)),
                Text(say(f"cli.decision.{decision}"), style="yellow"),
                Text(f"{sum(row.tokens for row in rows):,}"),
                Text(visible(source), style="dim"),
                Text(say.render(reason)),
            ]
        )
    heads: dict[str, str] = dict.fromkeys(("layer", "decision", "tokens", "source", "why"), "")
    found = FittedTable(heads, lines, ("source", "why"), yields=("source", "tokens"), show_header=False)
    return found if lines else None


def _runs(segments: Sequence[Segment], full: bool) -> Iterator[list[Segment]]:
    """Messages of the history that are there for one reason share a row, unless everything is asked for."""
    for (layer, *_), run in groupby(segments, key=lambda s: (s.layer, s.decision, s.reason)):
        if layer == "history" and not full:
            yield list(run)
        else:
            yield from ([segment] for segment in run)


def files_table(rows: Sequence[Mapping[str, Any]], say: Say) -> FittedTable:
    """The instruction files in force, what each includes below it."""
    lines: list[list[Text]] = []
    for row in rows:
        injected = "cli.rules.injected_changed" if row["changed_since"] else "cli.rules.injected"
        last = say(injected, turn=row["last_injected"]) if row["last_injected"] else "—"
        lines.append(
            [
                Text(say(f"cli.file.{row['kind']}"), style="cyan" if row["kind"] == "instructions" else "blue"),
                Text(visible(row["path"])),
                Text(f"{row['size']:,}"),
                Text(f"{row['tokens']:,}"),
                Text(row["hash"][:8]),
                Text(last),
            ]
        )
        lines += [[Text(""), Text(f"└ {visible(name)}", style="dim")] for name in row["includes"]]
    heads = {name: say(f"cli.col.{name}") for name in ("kind", "path", "bytes", "tokens", "hash", "last_injected")}
    yields = ("hash", "bytes", "last_injected", "tokens")
    return FittedTable(heads, lines, ("path",), ("bytes", "tokens"), yields)
