"""The report as text, made from the store alone: what got worse, what is short of its goal, every row with its plot.

Nothing here measures, reads or writes; `bench/__main__.py` does. A stored row is a plain dict, as it stands in
docs/evidence/benchmarks.json: a row that failed, or lacked what it needs, keeps the figures of the run before.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bench.measure import Figure, Section, Verdict, table
from bench.plot import kept

Row = dict[str, Any]
HEADER = ["row", "what is measured", "lamina", "best peer", "ratio", "to reach", "reached"]


def worse(before: Mapping[str, Figure], after: Mapping[str, Figure]) -> list[str]:
    """The figures that moved the wrong way by more than their noise, and those that are no longer measured."""
    found: list[str] = []
    for name, old in before.items():
        new = after.get(name)
        if new is None:
            found.append(f"{name} was {old.value:.3g}, is not measured any more")
        elif _change(old, new) > new.noise:
            found.append(f"{name} was {old.value:.3g}, is {new.value:.3g}")
    return found


def _change(old: Figure, new: Figure) -> float:
    """How many times worse; none of something bad is not a factor away from any of it."""
    slower = new.pace / old.pace if new.pace and old.pace else 1.0
    good, bad = (old.value, new.value / slower) if new.better == "low" else (new.value, old.value)
    if bad <= good:
        return 1.0
    return bad / good if good > 0 else float("inf")


def figures_of(row: Row) -> dict[str, Figure]:
    return {name: Figure(**figure) for name, figure in row.get("figures", {}).items()}


def verdicts_of(row: Row) -> list[Verdict]:
    return [Verdict(**verdict) for verdict in row.get("verdicts", ())]


def measured(section: Section, before: Row, facts: Mapping[str, Any]) -> Row:
    """The row as it is stored; `facts` are date, machine, seconds."""
    return {
        "title": section.title,
        "text": section.text,
        "figures": {name: asdict(figure) for name, figure in section.figures.items()},
        "verdicts": [asdict(verdict) for verdict in section.verdicts],
        "plot": kept(section.plot) if section.plot else None,
        "versions": section.versions,
        "missing": list(section.missing),
        "worse": worse(figures_of(before), section.figures),
        **facts,
    }


def kept_from(before: Row, name: str, *, failed: str = "", missing: str = "") -> Row:
    """A row without a new measurement: what was stored stays, and what went wrong stands beside it."""
    said = {"failed": failed} if failed else {"absent": missing}
    old = {key: value for key, value in before.items() if key not in ("failed", "absent")}
    return {"title": name, "text": "", **old, **said, "worse": []}


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def reached(share: float | None) -> str:
    """Whether a goal was reached, and by how much it was missed."""
    if share is None:
        return "–"
    if share >= 1:
        return "yes"
    if share <= 0:
        return "**no**"
    gap = 1 / share
    return f"**no**, by {gap:.2g}×" if gap >= 2 else f"**no**, by {100 * (gap - 1):.2g} %"


def problems(rows: Mapping[str, Row], names: Sequence[str]) -> list[str]:
    """One line each: what failed, what was not there, what got worse."""
    found = sorted(filter(None, (unmeasured(name, rows.get(name, {})) for name in names)))
    found += [f"MISSING {name}: {what}" for name in names for what in rows.get(name, {}).get("missing", ())]
    return found + [f"WORSE {name}: {what}" for name in names for what in rows.get(name, {}).get("worse", ())]


def unmeasured(name: str, row: Row) -> str:
    """Why a row has no new measurement; empty where it has one."""
    if row.get("failed"):
        return f"FAILED {name}: {row['failed']}"
    return f"MISSING {name}: {row['absent']}" if row.get("absent") else ""


def report(store: Mapping[str, Any], names: Sequence[str]) -> str:
    rows: dict[str, Row] = store.get("rows", {})
    there = [name for name in names if name in rows]
    return "\n".join([_head(store, there), *(_section(name, rows[name]) for name in there)])


def _head(store: Mapping[str, Any], there: Sequence[str]) -> str:
    rows: dict[str, Row] = store.get("rows", {})
    verdicts = [(name, verdict) for name in there for verdict in verdicts_of(rows[name])]
    goals = [(name, verdict) for name, verdict in verdicts if verdict.share is not None]
    missed = [(name, verdict) for name, verdict in goals if (verdict.share or 0) < 1]
    among = f"; the others are in {', '.join(dict.fromkeys(name for name, _ in missed))}" if missed else ""
    lines: list[list[str]] = []
    last = ""
    for name, v in verdicts:
        link = f"[{name}](#{slug(rows[name]['title'])})" if name != last else ""
        last = name
        lines.append([link, v.measured, v.lamina, v.peer or "–", v.ratio or "–", v.goal or "–", reached(v.share)])
    return (
        '# Benchmarks\n\nMade by `make bench`; do not edit. `make bench ROW=trim` runs one row, `ROW="trim grow"` '
        "two.\nAll sides of a row ran in one run on the same machine with the same messages; read the ratios, not "
        "the times.\nRows on real chats read the folder named by `LAMINA_BENCH_DATA`, not part of this repository; "
        f"without it they say so.\n\n{_changes(rows, there)}\n\n## In one table\n\n"
        f"{len(goals) - len(missed)} of {len(goals)} goals are reached{among}. *ratio*: how many times better than the "
        "best peer; below 1× the peer is better.\n\n"
        f"{_left(table(HEADER, lines))}\n\n{_run(store, there)}\n"
    )


def _left(text: str) -> str:
    """The second column is words."""
    return text.replace("|---|---:|", "|---|---|", 1)


def _run(store: Mapping[str, Any], there: Sequence[str]) -> str:
    rows: dict[str, Row] = store.get("rows", {})
    run: dict[str, Any] | None = store.get("run")
    versions: dict[str, str] = {}
    for name in there:
        versions |= rows[name].get("versions", {})
    shown = ", ".join(f"{package} {number}" for package, number in sorted(versions.items()))
    if run:
        when = (
            f"Last run of the whole: `make bench`, {run['date']}, {run['rows']} rows in {clock(run['seconds'])} "
            f"minutes, {run['machine']}. A row measured since has its own date."
        )
    else:
        dates = sorted({rows[name].get("date", "") for name in there} - {""})
        when = f"Not yet measured in one run: each row has its own date ({', '.join(dates)})." if dates else ""
    return f"{when}\n\n<sub>{shown}</sub>"


def _changes(rows: Mapping[str, Row], there: Sequence[str]) -> str:
    found = problems(rows, there)
    got_worse = [line.removeprefix("WORSE ") for line in found if line.startswith("WORSE ")]
    parts = (
        ["Worse than the run before:\n\n" + _list(got_worse)] if got_worse else ["None is worse than the stored run."]
    )
    failed = [line.removeprefix("FAILED ") for line in found if line.startswith("FAILED ")]
    if failed:
        parts.append("Failed in the last run; the figures are those of the run before:\n\n" + _list(failed))
    missing = [line.removeprefix("MISSING ") for line in found if line.startswith("MISSING ")]
    if missing:
        parts.append("Not on the machine of the last run:\n\n" + _list(missing))
    return "\n\n".join(parts)


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def slug(title: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _section(name: str, row: Row) -> str:
    parts = [f"## {row['title']}"]
    if row.get("failed"):
        parts.append(f"**Failed in the last run**: {row['failed']}. What stands here is older.")
    if row.get("absent"):
        parts.append(f"**Not measured in the last run**: {row['absent']}. What stands here is older.")
    parts += [row["text"]] if row["text"] else ["There is no figure yet."]
    if row.get("plot"):
        parts.append(f"![{row['plot']['title']}](plots/{name}.svg)")
    parts += [f"Not measured: {what}." for what in row.get("missing", ())]
    versions = ", ".join(f"{package} {number}" for package, number in sorted(row.get("versions", {}).items()))
    seconds = f"{clock(row['seconds'])} minutes" if row.get("seconds") else ""
    facts = [f"`make bench ROW={name}`", row.get("date", ""), seconds, row.get("machine", ""), versions]
    return "\n\n".join(parts) + f"\n\n<sub>{' · '.join(fact for fact in facts if fact)}</sub>\n"
