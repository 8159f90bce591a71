"""A context on a terminal: the messages, a bar for each layer, and where every byte came from."""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lamina.types import Message, Receipt, Segment

COLOURS = {
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
ROLES = {"system": "cyan", "user": "bright_white", "assistant": "green", "tool": "yellow"}
DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
SHORT = 400
BAR = 36


def show_context(messages: Sequence[Message], receipt: Receipt, say: Mapping[str, str], *, full: bool) -> None:
    """Everything about one context, for people."""
    console = Console(highlight=False, soft_wrap=False)
    console.rule(f"[bold]{say['messages']}", align="left", style="dim")
    for message in messages:
        _show_message(console, message, say, full)
    console.rule(f"[bold]{say['receipt']}", align="left", style="dim")
    console.print(_bars(receipt, say))
    if receipt.dropped.count:
        gone = say["dropped"].format(count=receipt.dropped.count, tokens=receipt.dropped.tokens)
        console.print(Padding(Text(gone, style="yellow"), (0, 1)))
    if receipt.over_budget:
        console.print(Padding(Text(say["over"], style="bold red"), (0, 1)))
    console.print(_segments(receipt, say, full))
    tiles = say["tiles"].format(segments=len(receipt.segments), size=receipt.size)
    proof = f"{tiles} · sha256 {receipt.hash[:16]} · {receipt.grammar} · {receipt.counter}"
    console.print(Padding(Text(proof, style="dim"), (0, 1)))


def _show_message(console: Console, message: Message, say: Mapping[str, str], full: bool) -> None:
    role = message["role"]
    console.print(Text(f" {role} ", style=f"bold {ROLES[role]} reverse"))
    text = _plain(message, say)
    shown = text if full or len(text) <= SHORT else text[:SHORT]
    console.print(Padding(Text(shown), (0, 0, 0, 2)))
    if len(shown) < len(text):
        console.print(Padding(Text(say["more"].format(chars=len(text) - SHORT), style="dim"), (0, 0, 0, 2)))
    console.print()


def _plain(message: Message, say: Mapping[str, str]) -> str:
    content = message["content"]
    if isinstance(content, str):
        lines = [content] if content else []
    else:
        lines = [part["text"] if part["type"] == "text" else say["picture"] for part in content or ()]
    for call in message.get("tool_calls") or ():
        lines.append(f"→ {say['calls']} {call['function']['name']} {call['function']['arguments']}")
    return _visible("\n".join(lines))


def _visible(text: str) -> str:
    """Control, direction and tag characters as people can see them: a terminal must not obey text from outside."""
    return "".join(f"⟨U+{ord(c):04X}⟩" if _hidden(c) else c for c in text)


def _hidden(c: str) -> bool:
    if c in "\n\t":
        return False
    return unicodedata.category(c) in ("Cc", "Cs") or c in DIRECTIONS or "\U000e0000" <= c <= "\U000e007f"


def _bars(receipt: Receipt, say: Mapping[str, str]) -> Table:
    table = Table(box=None, padding=(0, 1), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="dim")
    whole = max(receipt.tokens, receipt.budget, 1)
    for layer, (sent, _) in receipt.by_layer().items():
        if not sent:
            continue
        colour = COLOURS.get(layer, "white")
        width = max(1, round(BAR * sent / whole))
        table.add_row(layer, Text("█" * width, style=colour), f"{sent:,}", f"{sent / max(1, receipt.tokens):.0%}")
    free = receipt.budget - receipt.tokens
    if free > 0:
        table.add_row(
            Text(say["free"], style="dim"),
            Text("░" * max(1, round(BAR * free / whole)), style="dim"),
            f"{free:,.0f}",
            "",
        )
    total = say["of_budget"].format(tokens=receipt.tokens, budget=receipt.budget)
    table.add_row("", Text(total, style="bold red" if receipt.over_budget else "bold"), "", "")
    return table


def _segments(receipt: Receipt, say: Mapping[str, str], full: bool) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name in ("bytes", "layer", "tokens", "source", "hash", "trust", "why"):
        fold = name in ("source", "why")
        table.add_column(
            say[name],
            justify="right" if name in ("bytes", "tokens") else "left",
            overflow="fold" if fold else "ellipsis",
            no_wrap=not fold,
        )
    for run in _runs(receipt.segments, full):
        first, last = run[0], run[-1]
        dropped = first.decision == "dropped"
        source = first.source if len(run) == 1 else f"{first.source} … {last.source}"
        reason = first.reason if first.decision == "kept" else f"{first.decision}: {first.reason}"
        table.add_row(
            "—" if dropped else f"{first.start}–{last.end}",
            Text(first.layer, style=COLOURS.get(first.layer, "white")),
            f"{sum(segment.tokens for segment in run):,}",
            Text(_visible(source)),
            first.hash[:8] if len(run) == 1 else "",
            first.trust if len(run) == 1 else "",
            Text(reason, style="yellow" if dropped else ""),
        )
    return table


def _runs(segments: Sequence[Segment], full: bool) -> Iterator[list[Segment]]:
    """Messages of the history that are there for one reason share a row, unless everything is asked for."""
    for (layer, *_), run in groupby(segments, key=lambda s: (s.layer, s.decision, s.reason)):
        if layer == "history" and not full:
            yield list(run)
        else:
            yield from ([segment] for segment in run)
