"""The report's machinery, without the bench environment: what got worse, what failed, what is missing, the plots.

Each check of the report has a planted case that it must name.
"""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from bench import alone, plot, report
from bench.__main__ import ROWS, main, run_rows, write
from bench.measure import Figure, MissingError, Section, Verdict, high, low
from bench.plot import Bar, Bars, Group, Line, Lines

DOCS = Path(__file__).parent.parent / "docs" / "evidence"
SHARES: dict[str, float] = {"trim": 10, "grow": 20}
PLOT = Bars(
    "A & B", "seconds", (Group("中文", (Bar("lamina <own>", 2.0, "2 s", "own", 3.0), Bar("peer", 5.0, "5 s"))),)
)
LINES = Lines(
    "Growing",
    "messages",
    "time",
    tuple(Line(f"peer {n}", ((100, 0.01), (1_000, 0.1)), "own" if n == 3 else "peer") for n in range(11)),
    "s",
)
SUMS = Lines(
    "Summed", "turn", "prefill", (Line("lamina", tuple((n, n * 0.5) for n in range(1, 101)), "own"),), "s", False
)


def section(value: float = 2.0, **more: Any) -> Section:
    verdicts = (Verdict("a fit", "2 µs", "4 µs, the loop", "2×", "3 µs", 1.5),)
    return Section("Fitting", "| a table |", {"peer/lamina": high(value)}, verdicts, PLOT, {"lamina": "1"}, **more)


def run(docs: Path, found: dict[str, Callable[[], Section | MissingError]], names: list[str] | None = None) -> int:
    return run_rows(names or list(found), SHARES, lambda name: found[name](), docs)


def stored(docs: Path) -> dict[str, Any]:
    return json.loads((docs / "benchmarks.json").read_text(encoding="utf-8"))


def raising(error: BaseException) -> Callable[[], Section]:
    def measure() -> Section:
        raise error

    return measure


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        (high(4.0), high(3.2), False),
        (high(4.0), high(3.0), True),
        (high(4.0), high(40.0), False),
        (low(1.0), low(1.29), False),
        (low(1.0), low(1.31), True),
        (low(1.0), low(0.1), False),
        (low(1.0, 1.5), low(1.4, 1.5), False),
        (high(0.90, 1.02), high(0.87, 1.02), True),
        (low(0.0, 1.0), low(1.0, 1.0), True),
        (low(0.0, 1.0), low(0.0, 1.0), False),
        (high(3.0), high(0.0), True),
    ],
)
def test_a_figure_is_worse_in_its_own_direction_beyond_its_own_noise(
    before: Figure, after: Figure, named: bool
) -> None:
    assert bool(report.worse({"f": before}, {"f": after})) is named


def test_a_slower_machine_is_not_a_worse_figure() -> None:
    quiet, busy = Figure(0.5, "low", 2.0, pace=0.01), Figure(1.8, "low", 2.0, pace=0.03)
    assert report.worse({"query p95/30 ms": quiet}, {"query p95/30 ms": busy}) == []
    assert report.worse({"query p95/30 ms": quiet}, {"query p95/30 ms": replace(busy, pace=0.01)})
    assert report.worse({"query p95/30 ms": quiet}, {"query p95/30 ms": replace(busy, pace=None)})


def test_the_direction_is_declared_not_guessed_from_the_name() -> None:
    assert report.worse({"recall of errors": low(0.1)}, {"recall of errors": low(0.9)})
    assert report.worse({"cost saved": high(9)}, {"cost saved": high(1)})


def test_a_figure_that_is_gone_is_named_and_a_new_one_is_not() -> None:
    assert report.worse({"old": low(1)}, {"new": low(9)}) == ["old was 1, is not measured any more"]


def test_a_planted_worse_figure_is_named_at_the_end_and_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, {"trim": lambda: section(4.0), "grow": lambda: section(4.0)}) == 0
    assert "None is worse than the stored run." in (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    capsys.readouterr()
    assert run(tmp_path, {"trim": lambda: section(1.0), "grow": lambda: section(3.9)}) == 0
    assert capsys.readouterr().out.rstrip().splitlines()[-1] == "WORSE trim: peer/lamina was 4, is 1"
    text = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "Worse than the run before:\n\n- trim: peer/lamina was 4, is 1" in text
    assert "None is worse" not in text


def test_a_row_that_fails_is_named_keeps_its_figures_and_loses_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, {"trim": lambda: section(4.0)})
    before = stored(tmp_path)["rows"]["trim"]
    assert run(tmp_path, {"trim": raising(alone.RowError("ValueError: boom")), "grow": section}) == 1
    rows = stored(tmp_path)["rows"]
    assert rows["trim"] == before | {"failed": "ValueError: boom"}
    assert rows["grow"]["figures"] == {"peer/lamina": {"value": 2.0, "better": "high", "noise": 1.3, "pace": None}}
    assert "FAILED trim: ValueError: boom" in capsys.readouterr().out
    assert "**Failed in the last run**: ValueError: boom" in (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert run(tmp_path, {"trim": lambda: section(4.0)}) == 0
    assert "failed" not in stored(tmp_path)["rows"]["trim"]


def test_a_row_that_never_ran_and_fails_has_a_place_in_the_report(tmp_path: Path) -> None:
    assert run(tmp_path, {"grow": raising(alone.RowError("no"))}) == 1
    assert "## grow\n\n**Failed in the last run**: no." in (tmp_path / "benchmarks.md").read_text(encoding="utf-8")


def test_missing_data_is_said_and_keeps_the_stored_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, {"trim": section})
    lacking = MissingError("locomo_en not in `LAMINA_BENCH_DATA`")
    assert run(tmp_path, {"trim": lambda: lacking, "grow": lambda: section(missing=("mem0",))}) == 0
    text, out = (tmp_path / "benchmarks.md").read_text(encoding="utf-8"), capsys.readouterr().out
    assert "**Not measured in the last run**: locomo_en not in `LAMINA_BENCH_DATA`" in text
    assert "Not measured: mem0." in text
    assert "MISSING trim: locomo_en" in out
    assert "MISSING grow: mem0" in out
    assert stored(tmp_path)["rows"]["trim"]["figures"]["peer/lamina"]["value"] == 2.0


def test_a_run_in_which_nothing_was_measured_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, {"trim": section})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert run(tmp_path, {"trim": lambda: MissingError("no data"), "grow": lambda: MissingError("none either")}) == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert "MISSING grow: none either" in capsys.readouterr().out


def test_an_interrupted_run_leaves_the_rows_that_were_done(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, {"trim": section, "grow": raising(KeyboardInterrupt())})
    assert list(stored(tmp_path)["rows"]) == ["trim"]
    assert not list(tmp_path.glob(".*"))


def test_only_a_run_of_all_rows_is_the_run_of_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, {"trim": section})
    assert "run" not in stored(tmp_path)
    run(tmp_path, {"trim": section, "grow": section})
    assert stored(tmp_path)["run"]["rows"] == 2
    assert "Last run of the whole: `make bench`" in (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "row 2/2 grow · 0:00 of about" in capsys.readouterr().err


@pytest.mark.parametrize("damaged", ["", "{", "[]", "{}"])
def test_a_damaged_store_is_named_and_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damaged: str
) -> None:
    (tmp_path / "benchmarks.json").write_text(damaged)
    assert run(tmp_path, {"trim": section}) == 2
    assert "benchmarks.json cannot be read" in capsys.readouterr().err
    assert (tmp_path / "benchmarks.json").read_text() == damaged


def test_an_unknown_row_is_refused_with_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trimm"]) == 2
    assert "no row named 'trimm'\nnext: rows are trim, grow" in capsys.readouterr().err


def test_the_shares_of_the_rows_leave_room_in_thirty_minutes() -> None:
    assert sum(ROWS.values()) <= 30 * 60


ROW = "from bench.measure import MissingError, Section\nimport os, time\n\n\ndef run():\n    "
BODIES = {
    "fine": "return Section('Fine', 'text', {})",
    "absent": "raise MissingError('no data')",
    "broken": "raise ValueError('boom\\nsecond line')",
    "crashing": "os.kill(os.getpid(), 9)",
    "hanging": "time.sleep(60)",
}


def in_a_process(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, least: float = 60) -> Section | MissingError:
    (folder / f"row_{name}.py").write_text(ROW + BODIES[name] + "\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return alone.measured(f"row_{name}", 0, least)


def test_a_row_runs_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = in_a_process("fine", tmp_path, monkeypatch)
    assert isinstance(found, Section)
    assert found.title == "Fine"
    assert "row_fine" not in sys.modules
    lacking = in_a_process("absent", tmp_path, monkeypatch)
    assert isinstance(lacking, MissingError)
    assert str(lacking) == "no data"


@pytest.mark.parametrize(
    ("name", "least", "said"),
    [("broken", 60, "^ValueError: boom$"), ("crashing", 60, "signal 9"), ("hanging", 0.5, "not done after 0 s")],
)
def test_how_a_process_failed_is_said(
    name: str, least: float, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(alone.RowError, match=said):
        in_a_process(name, tmp_path, monkeypatch, least)


@pytest.mark.parametrize(
    ("share", "said"),
    [(None, "–"), (1.0, "yes"), (2.5, "yes"), (0.97, "**no**, by 3.1 %"), (0.2, "**no**, by 5×"), (0.0, "**no**")],
)
def test_a_miss_is_shown_as_a_miss_and_by_how_much(share: float | None, said: str) -> None:
    assert report.reached(share) == said


def test_the_head_has_every_verdict_with_a_link_to_its_row(tmp_path: Path) -> None:
    run(tmp_path, {"trim": section})
    text = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "| [trim](#fitting) | a fit | 2 µs | 4 µs, the loop | 2× | 3 µs | yes |" in text
    assert "1 of 1 goals are reached." in text
    assert "\n## Fitting\n" in text
    assert "![A & B](plots/trim.svg)" in text


def test_links_in_the_head_lead_to_headings() -> None:
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    anchors = {report.slug(title) for title in re.findall(r"^## (.+)$", text, re.MULTILINE)}
    linked = re.findall(r"^\| \[\w+\]\(#([^)]+)\)", text, re.MULTILINE)
    assert linked
    assert set(linked) <= anchors


def test_report_and_plots_in_docs_are_what_the_store_renders_to(tmp_path: Path) -> None:
    write(stored(DOCS), tmp_path, list(ROWS))
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.*"))
    assert [str(path) for path in made if (DOCS / path).read_bytes() != (tmp_path / path).read_bytes()] == []
    assert sorted((DOCS / "plots").glob("*.svg")) == [DOCS / path for path in made if path.suffix == ".svg"]


@pytest.mark.parametrize("drawn", [PLOT, LINES, SUMS], ids=["bars", "lines", "sums"])
def test_a_plot_is_kept_in_the_store_and_gives_the_same_bytes(drawn: Bars | Lines) -> None:
    again = plot.restored(json.loads(json.dumps(plot.kept(drawn))))
    assert again == drawn
    assert plot.svg(again) == plot.svg(drawn)


@pytest.mark.parametrize("drawn", [PLOT, LINES, SUMS], ids=["bars", "lines", "sums"])
def test_a_plot_has_its_text_as_text_for_both_schemes(drawn: Bars | Lines) -> None:
    made = plot.svg(drawn)
    texts = [element.text for element in ElementTree.fromstring(made).iter("{http://www.w3.org/2000/svg}text")]
    wanted = [drawn.title]
    if isinstance(drawn, Bars):
        wanted += [drawn.axis, "中文", "lamina <own>", "5 s", "to reach"]
    else:
        wanted += [drawn.across, drawn.up, *(line.label for line in drawn.lines)]
    assert set(wanted) <= set(texts)
    light, _, dark = made.partition("@media (prefers-color-scheme:dark)")
    assert all(colour in light for colour in plot.LIGHT.values())
    assert all(colour in dark for colour in plot.DARK.values())


def test_the_names_of_lines_do_not_cover_each_other() -> None:
    """All eleven lines end at the same point."""
    root = ElementTree.fromstring(plot.svg(LINES))
    names = [e for e in root.iter("{http://www.w3.org/2000/svg}text") if (e.text or "").startswith("peer ")]
    heights = sorted(float(name.get("y") or 0) for name in names)
    assert len(heights) == 11
    assert min(b - a for a, b in pairwise(heights)) >= 12
    assert heights[-1] < float(root.get("height") or 0)


def luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("scheme", "at"), [(plot.LIGHT, 0), (plot.DARK, 1)], ids=["light", "dark"])
def test_colours_stand_out_from_the_page(scheme: dict[str, str], at: int) -> None:
    """As WCAG asks: 4.5 for text, 3 for what is drawn."""
    least = {"text": 4.5, "soft": 4.5, "own": 4.5, "yardstick": 3, "peer": 3, "goal": 3}
    weak = {name: c for name, need in least.items() if (c := contrast(scheme[name], scheme["page"])) < need}
    weak |= {pair[at]: c for pair in plot.LINES if (c := contrast(pair[at], scheme["page"])) < 3}
    assert weak == {}
