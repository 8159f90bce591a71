"""A context on a terminal: the messages layer by layer, a bar for each layer, and where every byte came from."""

import io
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from lamina.cli.common import ROLE_COLOURS
from lamina.cli.say import Say, visible
from lamina.cli.tables import Bar, Bars, Fitted
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
SHORT_LAYER, SHORT_MESSAGE = 160, 400


def show_context(context: Context, receipt: Receipt, say: Say, *, full: bool) -> None:
    """Everything about one context, for people; without colours and trailing blanks where nobody looks."""
    if sys.stdout.isatty():
        return _show(_console(), context, receipt, say, full)
    page = io.StringIO()
    _show(_console(page), context, receipt, say, full)
    for line in page.getvalue().split("\n")[:-1]:
        print(line.rstrip())
    return None


def _console(file: io.StringIO | None = None) -> Console:
    console = Console(highlight=False, file=file)
    console.width = max(40, console.width)
    return console


def _show(console: Console, context: Context, receipt: Receipt, say: Say, full: bool) -> None:
    console.rule(f"[bold]{say('cli.context.messages')}", align="left", style="dim")
    gone = say("cli.receipt.dropped", count=receipt.dropped.count, tokens=receipt.dropped.tokens)
    for number, message in enumerate(context.messages):
        if receipt.dropped.count and number == (1 if context.system else 0):
            console.print(Text(f"⋯ {gone}\n", style="yellow"))
        console.print(Text(f" {message['role']} ", style=f"bold {ROLE_COLOURS[message['role']]} reverse"))
        if message["role"] == "system":
            _show_layers(console, context, say, full)
        else:
            _show_text(console, _plain(message, say), SHORT_MESSAGE, say, full)
        console.print()
    console.rule(f"[bold]{say('cli.context.receipt')}", align="left", style="dim")
    console.print(bars(receipt, say))
    if receipt.dropped.count:
        console.print(Padding(Text(gone, style="yellow"), (0, 1)))
    if receipt.over_budget:
        console.print(Padding(Text(say("cli.receipt.over"), style="bold red"), (0, 1)))
    console.print(segments(receipt, say, full, narrow=console.width < 100))
    console.print(Padding(Text(proof(receipt, say), style="dim"), (0, 1)))


def _show_layers(console: Console, context: Context, say: Say, full: bool) -> None:
    """The system message, layer by layer, a little of each."""
    for text, segment in context.spans[0]:
        name = Text(f"  {segment.layer}", style=f"bold {LAYER_COLOURS.get(segment.layer, 'white')}")
        console.print(name.append(f"  {visible(segment.source)}", style="dim"))
        _show_text(console, visible((text or "").strip("\n")), SHORT_LAYER, say, full)


def _show_text(console: Console, text: str, limit: int, say: Say, full: bool) -> None:
    shown = text if full or len(text) <= limit else text[:limit].rsplit(maxsplit=1)[0]
    console.print(Padding(Text(shown), (0, 0, 0, 4)))
    if len(shown) < len(text):
        console.print(Padding(Text(say("cli.more", chars=len(text) - len(shown)), style="dim"), (0, 0, 0, 4)))


def _plain(message: Message, say: Say) -> str:
    content = message["content"]
    if isinstance(content, str):
        lines = [content] if content else []
    else:
        lines = [part["text"] if part["type"] == "text" else say("cli.picture") for part in content or ()]
    for call in message.get("tool_calls") or ():
        lines.append(say("cli.calls", name=call["function"]["name"], arguments=call["function"]["arguments"]))
    return visible("\n".join(lines))


def bars(receipt: Receipt, say: Say) -> Bars:
    """A bar for each layer: the layers are compared with each other, the sum with the budget."""
    rows = [
        Bar(layer, sent, sent / max(1, receipt.tokens), LAYER_COLOURS.get(layer, "white"))
        for layer, (sent, _) in receipt.by_layer().items()
        if sent
    ]
    total = Text(
        say("cli.receipt.of_budget", tokens=receipt.tokens, budget=receipt.budget),
        style="bold red" if receipt.over_budget else "bold",
    )
    free = receipt.budget - receipt.tokens
    if free > 0:
        total.append(f"  {say('cli.receipt.free', tokens=f'{free:,.0f}')}", style="dim")
    return Bars(rows, total)


def segments(receipt: Receipt, say: Say, full: bool, narrow: bool) -> Fitted:
    names = [name for name in ("bytes", "layer", "tokens", "source", "hash", "trust", "why")
             if not (narrow and name == "hash")]  # fmt: skip
    rows: list[list[Text]] = []
    for run in _runs(receipt.segments, full):
        first, last, alone = run[0], run[-1], len(run) == 1
        dropped = first.decision == "dropped"
        reason = say.render(first.reason)
        cells = {
            "bytes": Text("—" if dropped else f"{first.start}–{last.end}"),
            "layer": Text(first.layer, style=LAYER_COLOURS.get(first.layer, "white")),
            "tokens": Text(f"{sum(segment.tokens for segment in run):,}"),
            "source": Text(visible(first.source if alone else f"{first.source} … {last.source}")),
            "hash": Text(first.hash[:8] if alone else ""),
            "trust": Text(say(f"trust.{first.trust}") if alone and not dropped else ""),
            "why": Text(say("cli.receipt.left_out", reason=reason) if dropped else reason,
                        style="yellow" if dropped else ""),
        }  # fmt: skip
        rows.append([cells[name] for name in names])
    yields = [name for name in ("hash", "trust", "bytes", "tokens") if name in names]
    return Fitted(
        {name: say(f"cli.col.{name}") for name in names},
        rows,
        ("source", "why"),
        ("bytes", "tokens"),
        yields,
        padding=(0, 1, 0, 1),
    )


def proof(receipt: Receipt, say: Say) -> str:
    """What the receipt vouches for, in one line."""
    tiles = say("cli.receipt.tiles", segments=len(receipt.segments), size=receipt.size)
    return f"{tiles} · sha256 {receipt.hash[:16]} · {receipt.grammar} · {visible(receipt.counter)}"


def cuts(receipt: Receipt, say: Say) -> Fitted | None:
    """What was left out, shortened or skipped, and why; None when all of it was sent."""
    gone = [segment for segment in receipt.segments if segment.decision != "kept"]
    if not gone:
        return None
    lines: list[list[Text]] = []
    for (layer, fate, reason), run in groupby(gone, key=lambda s: (s.layer, s.decision, s.reason)):
        rows = list(run)
        source = rows[0].source if len(rows) == 1 else f"{rows[0].source} … {rows[-1].source}"
        lines.append([
            Text(layer, style=LAYER_COLOURS.get(layer, "white")), Text(say(f"cli.decision.{fate}"), style="yellow"),
            Text(f"{sum(row.tokens for row in rows):,}"), Text(visible(source), style="dim"),
            Text(say.render(reason)),
        ])  # fmt: skip
    heads: dict[str, str] = dict.fromkeys(("layer", "fate", "tokens", "source", "why"), "")
    return Fitted(heads, lines, ("source", "why"), yields=("source", "tokens"), show_header=False)


def _runs(segments: Sequence[Segment], full: bool) -> Iterator[list[Segment]]:
    """Messages of the history that are there for one reason share a row, unless everything is asked for."""
    for (layer, *_), run in groupby(segments, key=lambda s: (s.layer, s.decision, s.reason)):
        if layer == "history" and not full:
            yield list(run)
        else:
            yield from ([segment] for segment in run)


def show_files(rows: list[dict[str, Any]], say: Say) -> None:
    Console(highlight=False).print(files_table(rows, say))


def files_table(rows: list[dict[str, Any]], say: Say) -> Fitted:
    """The instruction files in force, what each includes below it."""
    lines: list[list[Text]] = []
    for row in rows:
        injected = "cli.rules.injected_changed" if row["changed_since"] else "cli.rules.injected"
        last = say(injected, turn=row["last_injected"]) if row["last_injected"] else "—"
        lines.append([
            Text(say(f"cli.file.{row['kind']}"), style="cyan" if row["kind"] == "instructions" else "blue"),
            Text(visible(row["path"])), Text(f"{row['size']:,}"), Text(f"{row['tokens']:,}"), Text(row["hash"][:8]),
            Text(last),
        ])  # fmt: skip
        lines += [[Text(""), Text(f"└ {visible(name)}", style="dim")] for name in row["includes"]]
    heads = {name: say(f"cli.col.{name}") for name in ("kind", "path", "bytes", "tokens", "hash", "last_injected")}
    return Fitted(heads, lines, ("path",), ("bytes", "tokens"), yields=("hash", "bytes", "last_injected", "tokens"))
