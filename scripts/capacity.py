"""How many gateways, workers and database cores so many users need: a model in a page, with measured inputs.

`python scripts/capacity.py` prints a table from a thousand to a hundred million users, `--users 1e8 --json` all
figures of one case. What a turn costs is read from docs/evidence/capacity.json, which `scripts/measure_capacity.py`
writes; what people do is an assumption, and each is an option. `--page` writes both into docs/evidence/scaling.md.
"""

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

MOST = 1e15
MEASURED = Path(__file__).parent.parent / "docs" / "evidence" / "capacity.json"
PAGE = MEASURED.with_name("scaling.md")
DAY, YEAR = 86_400, 365
USERS = tuple(10.0**n for n in range(3, 9))


@dataclass(frozen=True, slots=True)
class Assumed:
    """What people do and what is bought. None of it is measured."""

    users: float = 1e6
    """Those who talk on a day."""
    turns_a_day: float = 20.0
    """Of each of them."""
    peak: float = 3.0
    """The busiest hour beside the mean."""
    characters: float = 1_500.0
    """Of a question and its answer."""
    stream_seconds: float = 10.0
    """From a question to the end of its answer: the model's pace."""
    connections: float = 1_000.0
    """LAMINA_CONNECTIONS of a gateway; half of them may come from one front."""
    memories: float = 500.0
    """Kept of one user."""
    utilisation: float = 0.6
    """Of a core at the peak."""
    node_cores: float = 16.0
    """Of one machine of the database."""
    node_terabytes: float = 8.0
    node_syncs: float = 5_000.0
    """Synced writes that its disk does in a second."""


@dataclass(frozen=True, slots=True)
class Needed:
    """What it takes at the peak; storage after one year, without replicas and backups."""

    turns_a_second: float
    streams: float
    gateways: int
    gateways_by: str
    """What decides on their number: `cpu` or `streams`."""
    workers: int
    postgres_cores: int
    transactions_a_second: float
    syncs_a_second: float
    wal_megabytes_a_second: float
    connections: int
    terabytes_a_year: float
    index_gigabytes: float
    """Of those who talk in the busiest hour, if each is held by one gateway."""
    nodes: int
    nodes_by: str
    """What decides on the machines of the database: `cpu`, `disk` or `syncs`."""
    shards: int


def measured(path: Path = MEASURED) -> dict[str, float]:
    """The one place that knows how the measurements are written down."""
    inputs = json.loads(path.read_text(encoding="utf-8"))["inputs"]
    return {name: float(one["value"]) for name, one in inputs.items()}


def needed(assumed: Assumed, cost: Mapping[str, float]) -> Needed:
    turns_a_day = assumed.users * assumed.turns_a_day
    turns = turns_a_day / DAY * assumed.peak
    streams = turns * assumed.stream_seconds
    own_cpu = max(0.0, cost["gateway_cpu"] - cost["jobs"] * cost["worker_cpu"])
    """A gateway was measured with its jobs; here they are the workers'."""
    by_cpu = turns * own_cpu / 1e3 / assumed.utilisation
    by_streams = streams / (assumed.connections / 2)
    gateways = _count(max(by_cpu, by_streams))
    workers = _count(turns * cost["jobs"] * cost["worker_cpu"] / 1e3 / assumed.utilisation)
    cores = turns * cost["postgres_cpu"] / 1e3 / assumed.utilisation
    syncs = turns * cost["syncs"]
    each = cost["postgres_bytes_a_turn"] + assumed.characters * cost["postgres_bytes_a_character"]
    kept = assumed.users * assumed.memories * cost["memory_bytes"]
    terabytes = (turns_a_day * YEAR * each + kept) / 1e12
    limits = {
        "cpu": cores / assumed.node_cores,
        "disk": terabytes / assumed.node_terabytes,
        "syncs": syncs / assumed.node_syncs,
    }
    nodes = _count(max(limits.values()))
    talking = min(assumed.users, turns * 3_600 / 5)  # five turns in a sitting
    return Needed(
        turns_a_second=turns, streams=streams, gateways=gateways,
        gateways_by="streams" if by_streams > by_cpu else "cpu", workers=workers, postgres_cores=_count(cores),
        transactions_a_second=turns * cost["commits"], syncs_a_second=syncs,
        wal_megabytes_a_second=turns * cost["wal"] / 1e6, connections=round(cost["connections"]) * (gateways + workers),
        terabytes_a_year=terabytes, index_gigabytes=talking * assumed.memories * cost["index_bytes"] / 1e9, nodes=nodes,
        nodes_by=max(limits, key=lambda name: limits[name]), shards=_shards(nodes),
    )  # fmt: skip


def _count(value: float) -> int:
    return max(1, math.ceil(value))


def _shards(nodes: int) -> int:
    """A power of two with room to grow fourfold without splitting; one machine has none."""
    return 0 if nodes == 1 else max(32, 2 ** math.ceil(math.log2(4 * nodes)))


def row(assumed: Assumed, found: Needed) -> list[str]:
    return [
        f"{assumed.users:,.0f}", figure(found.turns_a_second), f"{found.gateways:,} ({found.gateways_by})",
        f"{found.workers:,}", f"{found.postgres_cores:,}", figure(found.syncs_a_second), f"{found.connections:,}",
        figure(found.terabytes_a_year), figure(found.index_gigabytes), f"{found.nodes:,} ({found.nodes_by})",
        f"{found.shards:,}" if found.shards else "–",
    ]  # fmt: skip


HEAD = ("users", "turns/s", "gateways", "workers", "db cores", "syncs/s", "connections", "TB a year", "index GB",
        "db machines", "shards")  # fmt: skip


def figure(value: float) -> str:
    """Two digits that count: more would claim too much."""
    if value >= 100:
        digits = 1 - math.floor(math.log10(value))
        return f"{round(value, digits):,.0f}"
    return f"{value:.2g}"


def table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def models() -> str:
    """The table of the page, with all that is assumed as it stands above."""
    cost = measured()
    return table([HEAD, *(row(case, needed(case, cost)) for case in (Assumed(users=count) for count in USERS))])


def figures() -> str:
    """The measurements as a table of Markdown."""
    found = json.loads(MEASURED.read_text(encoding="utf-8"))
    lines = [f"By `{found['command']}`: {found['machine']}, {found['others_busy']}.", ""]
    lines += ["| input | | how | when |", "|---|---:|---|---|"]
    lines += [
        f"| `{name}` | {one['value']:,g} {one['unit']} | {one['how']} | {one['date']} |"
        for name, one in found["inputs"].items()
    ]
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with the measurements and the table of today in their places."""
    text = re.sub(
        r"(<!-- measured -->\n).*?(\n<!-- /measured -->)", lambda m: m[1] + figures() + m[2], text, flags=re.S
    )
    return re.sub(r"(main\(\[\]\)\n```\n\n```text\n).*?(\n```)", lambda m: m[1] + models() + m[2], text, flags=re.S)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="How many of everything so many users need.")
    for one in fields(Assumed):
        default = None if one.name == "users" else one.default
        name = f"--{one.name.replace('_', '-')}"
        shown = "10³ to 10⁸, each in a row" if one.name == "users" else f"{one.default:g}"
        parser.add_argument(name, type=float, default=default, help=f"default: {shown}")
    parser.add_argument("--measured", type=Path, default=MEASURED, help="the file of measurements")
    parser.add_argument("--page", action="store_true", help="write the figures into docs/evidence/scaling.md")
    parser.add_argument("--json", action="store_true", help="every figure, for programs")
    given = vars(parser.parse_args(arguments))
    if given.pop("page"):
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    as_json, file = given.pop("json"), given.pop("measured")
    if wrong := [name for name, value in given.items() if value is not None and not 0 < value <= MOST]:
        parser.error(f"{', '.join(wrong)} must be more than 0 and at most {MOST:g}")
    if given["utilisation"] > 1:
        parser.error(f"utilisation is a share, from 0 to 1, not {given['utilisation']:g}")
    try:
        cost = measured(file)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        parser.error(
            f"{file} is no file of measurements ({type(error).__name__}); scripts/measure_capacity.py writes one"
        )
    users = (given.pop("users"),)
    cases = [Assumed(users=count, **given) for count in (users if users[0] else USERS)]
    found = [(case, needed(case, cost)) for case in cases]
    if as_json:
        print(json.dumps([{"assumed": asdict(case), "needed": asdict(one)} for case, one in found], indent=1))
    else:
        print(table([HEAD, *(row(case, one) for case, one in found)]))


if __name__ == "__main__":
    main()
