"""The capacity model: its arithmetic, its units, where its inputs come from, and what its page says of the tables."""

import json
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from scripts.capacity import DAY, MEASURED, PAGE, USERS, Assumed, Needed, figure, main, measured, needed, page

from lamina.store.store import open_store
from tests.postgres import Server

ROOT = Path(__file__).parent.parent
COST = {
    "gateway_cpu": 10.0, "worker_cpu": 4.0, "jobs": 1.25, "postgres_cpu": 5.0, "commits": 20.0, "syncs": 4.0,
    "wal": 10_000.0, "connections": 10.0, "postgres_bytes_a_turn": 10_000.0, "postgres_bytes_a_character": 5.0,
    "memory_bytes": 1_000.0, "index_bytes": 2_000.0,
}  # fmt: skip
NUMBERS = [one.name for one in fields(Needed) if not one.name.endswith("_by")]
CASE = Assumed(users=DAY / 20.0, peak=1.0)
"""One turn a second."""


def test_one_turn_a_second_costs_what_a_turn_costs() -> None:
    found = needed(replace(CASE, utilisation=1.0), COST)
    assert found.turns_a_second == pytest.approx(1.0)
    assert (found.gateways, found.workers, found.postgres_cores) == (1, 1, 1)
    assert found.streams == pytest.approx(CASE.stream_seconds)
    assert found.transactions_a_second == pytest.approx(20.0)
    assert found.wal_megabytes_a_second == pytest.approx(0.01)
    assert found.connections == 20
    kept = CASE.users * CASE.memories * 1_000
    assert found.terabytes_a_year == pytest.approx((DAY * 365 * (10_000 + 1_500 * 5) + kept) / 1e12)


def test_a_core_that_is_used_up_is_one_gateway_worker_and_core() -> None:
    busy = replace(CASE, users=CASE.users * 1_000, utilisation=0.5, connections=1e9)
    found = needed(busy, COST)
    assert (found.gateways, found.gateways_by) == (10, "cpu")  # (10 - 1.25 × 4) ms × 1,000 / 0.5
    assert found.workers == 10
    assert found.postgres_cores == 10
    assert needed(replace(busy, connections=1_000), COST).gateways_by == "streams"
    assert needed(replace(busy, connections=1_000), COST).gateways == 20


@pytest.mark.parametrize("name", ["users", "turns_a_day", "peak"])
def test_more_of_everything_is_never_less_of_anything(name: str) -> None:
    for cost in (COST, measured()):
        before = needed(Assumed(), cost)
        for times in (1.5, 4.0, 100.0):
            after = needed(replace(Assumed(), **{name: getattr(Assumed(), name) * times}), cost)
            assert all(getattr(after, one) >= getattr(before, one) for one in NUMBERS)
            before = after


def test_larger_machines_are_fewer_and_shards_are_a_power_of_two() -> None:
    for users in USERS:
        small = needed(Assumed(users=users), COST)
        large = needed(Assumed(users=users, node_cores=64, node_terabytes=64, node_syncs=50_000), COST)
        assert large.nodes <= small.nodes
        assert small.shards == 0 or (small.shards & (small.shards - 1) == 0 and small.shards >= 4 * small.nodes)
        assert (small.shards == 0) == (small.nodes == 1)


def test_figures_have_two_digits() -> None:
    assert [figure(value) for value in (0.123, 1.26, 99.4, 123.4, 98_765.0)] == ["0.12", "1.3", "99", "120", "99,000"]


def test_every_input_says_where_and_when_it_was_measured() -> None:
    found = json.loads(MEASURED.read_text(encoding="utf-8"))
    assert set(found["inputs"]) >= set(COST)
    for name, one in found["inputs"].items():
        assert one["value"] >= 0, name
        assert one["unit"], name
        assert one["how"], name
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", one["date"]), name
    assert found["command"].endswith("scripts/measure_capacity.py")


def test_the_page_has_the_measurements_of_the_file() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "python scripts/capacity.py --page writes it anew"
    assert page(text.replace("turns/s", "turns/h")) == text


def test_the_command_takes_every_assumption_and_refuses_nonsense(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--users", "1e8", "--turns-a-day", "5", "--json"])
    (case,) = json.loads(capsys.readouterr().out)
    assert (case["assumed"]["users"], case["assumed"]["turns_a_day"]) == (1e8, 5.0)
    for wrong, said in (
        (["--peak", "0"], "more than 0"), (["--users", "inf"], "at most"), (["--users", "nan"], "more than 0"),
        (["--utilisation", "5"], "a share"), (["--measured", "nowhere.json"], "no file of measurements"),
        (["--measured", __file__], "no file of measurements"),
    ):  # fmt: skip
        with pytest.raises(SystemExit):
            main(wrong)
        assert said in capsys.readouterr().err


# What the page says of the tables, for whoever distributes them by owner

FIRST_IN_KEY = """
SELECT c.relname, a.attname FROM pg_class c JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0] WHERE c.relnamespace = 'public'::regnamespace
"""
UNIQUE_WITHOUT = """
SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
WHERE i.indisunique AND t.relnamespace = 'public'::regnamespace AND t.relname <> 'schema_version' AND NOT EXISTS (
SELECT 1 FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attname = 'owner' AND a.attnum = ANY (i.indkey))
"""


async def test_the_page_names_every_table_and_every_index_that_does_not_begin_with_the_owner(postgres: Server) -> None:
    where = postgres.database()
    async with open_store(where):
        pass
    database = where.partition("@/")[2].partition("?")[0]
    first = dict(line.split("|") for line in postgres.sql(FIRST_IN_KEY, database).splitlines())
    assert {table for table, column in first.items() if column != "owner"} == {"schema_version"}
    text = PAGE.read_text(encoding="utf-8")
    block = text.partition("```sql\n")[2].partition("```")[0]
    assert set(re.findall(r"'(\w+)'", block)) - {"owner"} == set(first) - {"schema_version"}
    assert postgres.sql(UNIQUE_WITHOUT, database).splitlines() == ["api_key_id"]
    assert "`api_key_id`" in text


@pytest.mark.parametrize(("word", "code"), [("--help", 0), ("sqlight", 1)])
def test_the_parts_that_can_be_measured_are_listed_and_others_are_refused_before_anything_runs(
    word: str, code: int
) -> None:
    command = [sys.executable, "-m", "scripts.measure_capacity", word]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert "sqlite, postgres, nginx, stored, jobs, index" in done.stdout + done.stderr
    assert ("no part named 'sqlight'" in done.stderr) is (code == 1)
