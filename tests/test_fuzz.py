"""The quick form of `make fuzz`: it finds nothing in lamina, and it does find the planted bug."""

from bench.fuzz import run_chunk, table

from bench.fuzz import Row  # isort: skip

SEED = 7


def test_thousands_of_histories_and_not_one_invalid_request() -> None:
    found = run_chunk(SEED, 4_000)
    assert set(found) <= {"broken input refused"}
    assert found["broken input refused"] > 50, "the broken histories must reach the trimmer"


def test_the_naive_loop_is_caught() -> None:
    found = run_chunk(SEED, 1_000, "naive")
    assert found["invalid"] > 50


def test_the_table_names_every_fault() -> None:
    row = Row("naive", 1_000, run_chunk(SEED, 200, "naive"), 1.0)
    assert f"| naive | 1,000 | {row.invalid} | invalid: {row.invalid} |" in table([row])
