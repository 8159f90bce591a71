"""make bench: every row beside its peers in one run, written to docs/evidence/benchmarks.md.

make bench                  all rows, at most 30 minutes on two quiet cores
make bench ROW=trim         one row; the others stay as they were measured
make bench ROW="trim grow"  several

Nothing in the report is written by hand: it is rendered from docs/evidence/benchmarks.json, which only this program
writes, after every row. A row that fails is named and keeps its stored figures; then the exit status is 1.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import alone, plot, report
from bench.measure import ROOT, MissingError, Section, machine

ROWS: dict[str, float] = {
    "trim": 160,
    "grow": 130,
    "prefix": 12,
    "cache": 220,
    "estimate": 5,
    "grammar": 30,
    "injection": 5,
    "imports": 25,
    "memory": 360,
    "scale": 60,
    "recall": 450,
    "turns": 30,
    "gateway": 160,
}
"""With the seconds that each may take on two quiet cores: its share of the 30 minutes."""
Measure = Callable[[str], Section | MissingError]


def main(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    unknown = [name for name in arguments if name not in ROWS]
    if unknown:
        print(f"bench: no row named {unknown[0]!r}\nnext: rows are {', '.join(ROWS)}", file=sys.stderr)
        return 2

    def measure(name: str) -> Section | MissingError:
        return alone.measured(f"bench.{name}", ROWS[name])

    try:
        return run_rows(arguments or list(ROWS), ROWS, measure, ROOT / "docs" / "evidence")
    except KeyboardInterrupt:
        print("\nbench: stopped; the rows that were done are stored", file=sys.stderr)
        return 130


def run_rows(names: Sequence[str], shares: Mapping[str, float], measure: Measure, docs: Path) -> int:
    """Measure, store and render row by row, so that what is done is never lost."""
    path = docs / "benchmarks.json"
    try:
        store: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": {}}
        rows: dict[str, report.Row] = store["rows"]
    except (ValueError, TypeError, KeyError) as error:
        print(f"bench: {path.name} cannot be read: {error!r}\nnext: git checkout {path.name}, or delete it",
              file=sys.stderr)  # fmt: skip
        return 2
    expected = {name: rows.get(name, {}).get("seconds") or shares[name] for name in names}
    begin, news = time.monotonic(), False
    for number, name in enumerate(names, 1):
        spent = report.clock(time.monotonic() - begin)
        about = report.clock(sum(expected.values()))
        print(f"row {number}/{len(names)} {name} · {spent} of about {about}", file=sys.stderr, flush=True)
        before = time.monotonic()
        rows[name] = _row(name, rows.get(name, {}), measure)
        expected[name] = time.monotonic() - before
        if number == len(names) == len(shares):
            store["run"] = {"date": _today(), "machine": machine(), "rows": number, "seconds": round(_since(begin))}
        news = news or not rows[name].get("absent")
        if news:  # where nothing could be measured, the report of who could stays as it is
            write(store, docs, list(shares))
        lost = report.unmeasured(name, rows[name])
        print(lost or f"\n## {rows[name]['title']}\n\n{rows[name]['text']}\n", flush=True)
    found = report.problems(rows, names)
    print("\n".join(found) or "None is worse than the stored run.", flush=True)
    return 1 if any(rows[name].get("failed") for name in names) else 0


def write(store: Mapping[str, Any], docs: Path, names: Sequence[str]) -> None:
    """Store, report and plots. Each file is whole at every moment: Ctrl-C may come between any two of them."""
    _whole(docs / "benchmarks.json", json.dumps(store, ensure_ascii=False, indent=1, sort_keys=True) + "\n")
    _whole(docs / "benchmarks.md", report.report(store, names))
    (docs / "plots").mkdir(exist_ok=True)
    for name in names:
        if drawn := store["rows"].get(name, {}).get("plot"):
            _whole(docs / "plots" / f"{name}.svg", plot.svg(plot.restored(drawn)))


def _whole(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def _row(name: str, before: report.Row, measure: Measure) -> report.Row:
    begin, cpu = time.monotonic(), _children()
    try:
        found = measure(name)
    except alone.RowError as failure:
        return report.kept_from(before, name, failed=str(failure))
    if isinstance(found, MissingError):
        return report.kept_from(before, name, missing=str(found))
    took = {"seconds": round(_since(begin)), "cpu_seconds": round(_children() - cpu)}
    return report.measured(found, before, {"date": _today(), "machine": machine(), **took})


def _since(begin: float) -> float:
    return time.monotonic() - begin


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


if __name__ == "__main__":
    sys.exit(main([name for name in sys.argv[1:] if name]))
