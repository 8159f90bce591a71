"""The report's plots: bars and lines as SVG, with its text as text, for a light and a dark page.

A plot is a value, kept in the store beside its row; the same value always gives the same bytes. It knows nothing of
what was measured. Widths of texts are guessed, since nothing here knows a font: wide enough for common ones.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal
from unicodedata import east_asian_width
from xml.sax.saxutils import escape

Kind = Literal["own", "yardstick", "peer"]
"""lamina; what it is held against (a loop, a pass-through); the others."""
WIDTH, EDGE, HEAD, FOOT = 760.0, 16.0, 40.0, 34.0
BAR, STEP, GAP = 15.0, 19.0, 12.0
HEIGHT, LABEL = 300.0, 15.0
LIGHT = {"page": "#ffffff", "text": "#1f2328", "soft": "#59636e", "grid": "#d8dee4", "own": "#00757c",
         "yardstick": "#1f2328", "peer": "#8c959f", "goal": "#c2410c"}  # fmt: skip
DARK = {"page": "#0d1117", "text": "#e6edf3", "soft": "#9da7b3", "grid": "#2d333b", "own": "#2dd4bf",
        "yardstick": "#e6edf3", "peer": "#6e7681", "goal": "#fb923c"}  # fmt: skip
LINES = (("#8250df", "#b083f0"), ("#0969da", "#58a6ff"), ("#cf222e", "#ff7b72"), ("#9a6700", "#d4a72c"),
         ("#bf3989", "#f778ba"), ("#57606a", "#9da7b3"))  # fmt: skip
FEW = 20
"""Points of a line that are each marked."""
DASHES = ("", "6 3", "2 3")


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float
    shown: str
    kind: Kind = "peer"
    goal: float | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Bars under one heading, which may be empty."""

    label: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Bars:
    """Lying bars, so that names of any length stand in one line; a goal is a mark across its bar."""

    title: str
    axis: str
    groups: tuple[Group, ...]
    log: bool = False
    unit: Literal["", "s"] = ""


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    points: tuple[tuple[float, float], ...]
    kind: Kind = "peer"


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines on two axes, logarithmic or from 0, each with its name at its end."""

    title: str
    across: str
    up: str
    lines: tuple[Line, ...]
    unit: Literal["", "s"] = ""
    log: bool = True


def kept(plot: Bars | Lines) -> dict[str, Any]:
    """As it is stored."""
    return asdict(plot)


def restored(stored: dict[str, Any]) -> Bars | Lines:
    if "lines" in stored:
        lines = tuple(Line(line["label"], _pairs(line["points"]), line["kind"]) for line in stored["lines"])
        return Lines(stored["title"], stored["across"], stored["up"], lines, stored["unit"], stored["log"])
    groups = tuple(Group(group["label"], tuple(Bar(**bar) for bar in group["bars"])) for group in stored["groups"])
    return Bars(stored["title"], stored["axis"], groups, stored["log"], stored["unit"])


def _pairs(points: Sequence[Sequence[float]]) -> tuple[tuple[float, float], ...]:
    return tuple((point[0], point[1]) for point in points)


def svg(plot: Bars | Lines) -> str:
    return _bars(plot) if isinstance(plot, Bars) else _lines(plot)


@dataclass(frozen=True, slots=True)
class Scale:
    """Where a value stands between two places of the picture."""

    least: float
    most: float
    begin: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        least, most, here = self.least, self.most, min(max(value, self.least), self.most)
        if self.log:
            least, most, here = math.log10(least), math.log10(most), math.log10(here)
        return self.begin + (self.end - self.begin) * (here - least) / ((most - least) or 1.0)

    def ticks(self) -> list[float]:
        if self.log:
            first, last = math.floor(math.log10(self.least) + 0.01), math.ceil(math.log10(self.most) - 0.01)
            step = max(1, (last - first) // 8)
            return [tick for n in range(first, last + 1, step) if self.least <= (tick := 10.0**n) <= self.most * 1.01]
        step = _step(self.most - self.least)
        return [self.least + n * step for n in range(int((self.most - self.least) / step + 1.001))]


def _step(span: float) -> float:
    """A step of 1, 2 or 5 by which four to ten of them fill the span."""
    unit = 10 ** math.floor(math.log10(span / 4))
    return next((unit * n for n in (5, 2) if span / (unit * n) >= 4), unit)


def _number(value: float, unit: str) -> str:
    if unit == "s" and value:
        for name, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
            if value >= size * 0.999 or name == "ns":
                return f"{value / size:.3g} {name}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _wide(text: str, kind: Kind, size: float = 12.0) -> float:
    """lamina's own names are bold, and so wider."""
    narrow = 0.67 if kind == "own" else 0.58
    return sum(1.05 if east_asian_width(sign) in "WF" else narrow for sign in text) * size


def _bars(plot: Bars) -> str:
    every = [bar for group in plot.groups for bar in group.bars]
    left = EDGE + max(_wide(bar.label, bar.kind) for bar in every) + 8
    right = WIDTH - EDGE - max(_wide(bar.shown, bar.kind, 11) for bar in every) - 8
    values = [bar.value for bar in every] + [bar.goal for bar in every if bar.goal is not None]
    scale = _bar_scale(values, plot.log, left, right)
    goals = any(bar.goal is not None for bar in every)
    top = y = HEAD + (20 if goals else 6)
    body: list[str] = []
    for number, group in enumerate(plot.groups):
        y += GAP if number else 0
        if group.label:
            body.append(_text(EDGE, y + 12, group.label, "group"))
            y += STEP
        for bar in group.bars:
            body += _bar(bar, scale, left, y)
            y += STEP
    grid = [_grid_up(scale.at(tick), top - 4, y, _number(tick, plot.unit)) for tick in scale.ticks()]
    parts = [*grid, *body, _text((left + right) / 2, y + 32, plot.axis + _logarithmic(plot.log), "soft middle")]
    if goals:
        parts.append(
            _rule(EDGE + 2, HEAD - 2, EDGE + 2, HEAD + 12, "goal") + _text(EDGE + 10, HEAD + 9, "to reach", "soft")
        )
    return _page(plot.title, y + FOOT + 8, parts, [])


def _logarithmic(log: bool) -> str:
    return " (logarithmic)" if log else ""


def _bar_scale(values: list[float], log: bool, left: float, right: float) -> Scale:
    positive = [value for value in values if value > 0] or [1.0]
    if log:
        least = 10.0 ** math.floor(math.log10(min(positive)) - 0.1)  # the shortest bar is still seen
        return Scale(least, max(max(positive), least * 10), left, right, log)
    step = _step(max(positive))
    return Scale(0.0, math.ceil(max(positive) / step - 1e-9) * step, left, right, log)


def _bar(bar: Bar, scale: Scale, left: float, y: float) -> list[str]:
    end = scale.at(bar.value) if bar.value > 0 else left
    bold = " own-name" if bar.kind == "own" else ""
    parts = [
        _text(left - 8, y + 12, bar.label, f"end{bold}"),
        f'<rect class="{bar.kind}" x="{left:.1f}" y="{y:.1f}" width="{max(end - left, 1):.1f}" height="{BAR}" rx="2"/>',
    ]
    beside = end
    if bar.goal is not None:
        at = scale.at(bar.goal)
        parts.append(_rule(at, y - 2, at, y + BAR + 2, "goal"))
        beside = at if end <= at < end + _wide(bar.shown, bar.kind, 11) + 10 else end
    return [*parts, _text(beside + 6, y + 12, bar.shown, f"small{bold}")]


def _lines(plot: Lines) -> str:
    right = WIDTH - EDGE - max(_wide(line.label, line.kind, 11) for line in plot.lines) - 26
    points = [point for line in plot.lines for point in line.points]
    bottom = HEAD + max(HEIGHT, LABEL * len(plot.lines))
    across = Scale(min(x for x, _ in points) if plot.log else 0.0, max(x for x, _ in points), 86, right, plot.log)
    up = _up([y for _, y in points], plot.log, bottom)
    parts = [_grid_across(up.at(tick), 86, right, _number(tick, plot.unit)) for tick in up.ticks()]
    marks = sorted({x for x, _ in points}) if plot.log else across.ticks()
    parts += [_grid_up(across.at(x), HEAD + 8, bottom, _number(x, "")) for x in marks]
    ordered = sorted(plot.lines, key=lambda line: line.kind == "own")  # the last stands on top
    names = _spread([up.at(line.points[-1][1]) for line in ordered], HEAD + 8, bottom)
    peers = [line.label for line in plot.lines if line.kind == "peer"]
    for line, name in zip(ordered, names, strict=True):
        number = peers.index(line.label) if line.kind == "peer" else 0
        parts += _line(line, number, [(across.at(x), up.at(y)) for x, y in line.points], (right, name))
    parts.append(_text((86 + right) / 2, bottom + 38, plot.across, "soft middle"))
    middle = (HEAD + bottom) / 2
    parts.append(
        f'<text class="soft middle" transform="translate(22 {middle:.1f}) rotate(-90)">{escape(plot.up)}</text>'
    )
    return _page(plot.title, bottom + FOOT + 14, parts, peers)


def _up(values: list[float], log: bool, bottom: float) -> Scale:
    if log:
        least = 10.0 ** math.floor(math.log10(min(values)))
        return Scale(least, max(10.0 ** math.ceil(math.log10(max(values))), least * 10), bottom, HEAD + 8, log)
    step = _step(max(values))
    return Scale(0.0, math.ceil(max(values) / step - 1e-9) * step, bottom, HEAD + 8, log)


def _line(line: Line, number: int, places: list[tuple[float, float]], name: tuple[float, float]) -> list[str]:
    style = f"p{number % len(LINES)}" if line.kind == "peer" else line.kind
    dash = DASHES[number // len(LINES) % len(DASHES)] if line.kind == "peer" else ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    (x, y), (right, at) = places[-1], name
    parts = [f'<polyline class="line {style}" points="{path}"{dashed}/>']
    parts += [
        f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{3.5 if line.kind == "own" else 2.5}"/>'
        for x, y in (places if len(places) <= FEW else places[-1:])
    ]
    lead = f"{x + 4:.1f},{y:.1f} {right + 8:.1f},{at:.1f} {right + 16:.1f},{at:.1f}"
    parts.append(f'<polyline class="lead {style}" points="{lead}"/>')
    bold = " own-name" if line.kind == "own" else ""
    return [*parts, _text(right + 20, at + 4, line.label, f"small{bold}")]


def _spread(wanted: list[float], top: float, bottom: float) -> list[float]:
    """Places for names, as near as can be to where they belong, none over another."""
    order = sorted(range(len(wanted)), key=lambda n: wanted[n])
    places = [0.0] * len(wanted)
    last = top - LABEL
    for n in order:
        last = places[n] = max(wanted[n], last + LABEL)
    last = bottom + LABEL
    for n in reversed(order):
        last = places[n] = min(places[n], last - LABEL)
    return places


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _rule(x: float, y: float, to_x: float, to_y: float, style: str) -> str:
    return f'<line class="{style}" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'


def _grid_up(x: float, top: float, bottom: float, label: str) -> str:
    return _rule(x, top, x, bottom, "grid") + _text(x, bottom + 16, label, "soft middle")


def _grid_across(y: float, left: float, right: float, label: str) -> str:
    return _rule(left, y, right, y, "grid") + _text(left - 6, y + 4, label, "soft end")


def _style(colours: dict[str, str], lines: Sequence[str]) -> str:
    rules = [f".page{{fill:{colours['page']}}}", f"text{{fill:{colours['text']}}}", f".soft{{fill:{colours['soft']}}}",
             f".grid{{stroke:{colours['grid']}}}", f".goal{{stroke:{colours['goal']}}}",
             f".own-name{{fill:{colours['own']}}}"]  # fmt: skip
    named = [(kind, colours[kind]) for kind in ("own", "yardstick", "peer")]
    for name, colour in [*named, *((f"p{n}", colour) for n, colour in enumerate(lines))]:
        rules += [f"rect.{name},circle.{name}{{fill:{colour}}}", f"polyline.{name}{{stroke:{colour}}}"]
    return "".join(rules)


def _page(title: str, height: float, parts: list[str], peers: list[str]) -> str:
    count = min(len(peers), len(LINES))
    light, dark = (_style(colours, [pair[n] for pair in LINES[:count]]) for n, colours in enumerate((LIGHT, DARK)))
    fonts = "system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans','Noto Sans CJK SC','WenQuanYi Micro Hei',sans-serif"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height:.0f}" width="{WIDTH:.0f}" '
        f'height="{height:.0f}" role="img" aria-labelledby="title">\n<title id="title">{escape(title)}</title>\n'
        f"<style>text{{font:12px {fonts}}}.title{{font-size:15px;font-weight:600}}.group{{font-weight:600}}"
        ".soft,.small{font-size:11px}.end{text-anchor:end}.middle{text-anchor:middle}.own-name{font-weight:600}"
        ".line{fill:none;stroke-width:1.5}.line.own{stroke-width:3}.line.yardstick{stroke-width:2;stroke-dasharray:7 4}"
        ".lead{fill:none;stroke-width:.8;opacity:.6}.goal{stroke-width:2.5}.grid{stroke-width:1}"
        f"{light}@media (prefers-color-scheme:dark){{{dark}}}</style>\n"
        f'<rect class="page" width="100%" height="100%"/>\n{_text(EDGE, 24, title, "title")}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )
