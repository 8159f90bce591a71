"""R2: a process that ends before and after every transaction of the store; R12: between a call and its result.

Each trial begins with a copy of a store that a crash has left, ends at its failpoint, and is looked at by a new
process. The copies are in memory where that is possible: what the end of a process leaves, not of the power.
"""

import json
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.failpoints import ENDED, SITES, count_of_calls
from tests.faults.load import Load
from tests.faults.nursery import Line, Nursery


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="lamina-", dir=memory))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


class Sweep:
    """Trials of one life over copies of one store; `hit` are the failpoints at which a process ended."""

    def __init__(self, nursery: Nursery, folder: Path, life: str, **order: Any) -> None:
        self.nursery, self.folder, self.life, self.order = nursery, folder, life, order
        self.hit: set[tuple[str, str]] = set()
        first = folder / "first"
        first.mkdir()
        self.before, code = nursery.run(
            "lay" if life == "others" else "prepare", where=os.fspath(first / "store.db")
        )  # fmt: skip
        assert code == ENDED
        said, code = self.live("", 0, "never")
        assert code == 0
        self.passed: list[str] = said[-1]["sites"]

    def live(self, site: str, at: int, when: str) -> tuple[list[Line], int]:
        shutil.rmtree(self.folder / "trial", ignore_errors=True)
        shutil.copytree(self.folder / "first", self.folder / "trial")
        said, code = self.nursery.run(self.life, where=self.where, site=site, at=at, when=when, **self.order)
        assert code in (0, ENDED)
        self.hit |= {(line["site"], when) for line in said if "site" in line}
        return said, code

    @property
    def where(self) -> str:
        return os.fspath(self.folder / "trial" / "store.db")

    def problems(self, said: list[Line]) -> list[str]:
        """As a new process finds them."""
        if self.life == "others":
            done = [line["op"] for line in said if "op" in line]
            return self.nursery.do("look", where=self.where, done=done)[-1]["problems"]
        ledger = self.folder / "ledger.jsonl"
        lines = [line for line in (*self.before, *said) if "what" in line]
        ledger.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return self.nursery.do("check", where=self.where, ledger=os.fspath(ledger), ahead=3_600)[-1]["problems"]

    def trials(self, *only: str, rng: random.Random | None = None) -> Iterator[tuple[str, list[str]]]:
        """Each failpoint, or those of some sites, and what was wrong afterwards. Of a site that is passed often, the
        first time, the last, and two between them that `rng` chooses; every time without one."""
        for site, count in Counter(self.passed).items():
            times = range(1, count + 1) if not only or site in only else range(0)
            if rng and len(times) > 4:
                times = [1, *sorted(rng.sample(times[1:-1], 2)), count]
            for at in times:
                for when in ("before", "after"):
                    said, _ = self.live(site, at, when)
                    yield f"{when} {site} {at}", self.problems(said)


@pytest.mark.parametrize("life", ["turns", "jobs", "others"])
def test_R2_nothing_is_lost_or_doubled_by_an_end_before_or_after_any_commit(
    nursery: Nursery, folder: Path, life: str, load: Load
) -> None:
    sweep = Sweep(nursery, folder, life)
    found = list(sweep.trials(rng=random.Random(load.seed()) if load.factor == 1 else None))
    assert [(where, problems) for where, problems in found if problems] == []
    load.tried(len(found), "failpoints")
    assert {(site, when) for site in sweep.passed if site for when in ("before", "after")} == sweep.hit


def test_R2_every_place_that_commits_has_a_failpoint(nursery: Nursery, folder: Path) -> None:
    assert len(SITES) == count_of_calls() > 30
    reached: set[str] = set()
    for life in ("turns", "jobs", "others"):
        place = folder / life
        place.mkdir()
        reached.update(Sweep(nursery, place, life).passed)
    assert SITES - reached == set()


@pytest.mark.planted("a turn that ends in two transactions")
def test_R2_a_planted_end_in_two_transactions_is_found(nursery: Nursery, folder: Path) -> None:
    sweep = Sweep(nursery, folder, "turns", planted="twice")
    found = sweep.trials("turns.Turns._finish", "jobs.Jobs.add")
    assert any("was remembered 0 times" in each for _, problems in found for each in problems)


def crashed_calls(nursery: Nursery, folder: Path, planted: str = "") -> list[Line]:
    """A process ends before and after it stores each call and each result; what the next request is like."""
    sweep, found = Sweep(nursery, folder, "turns"), list[Line]()
    for at in range(1, sweep.passed.count("turns.Turns._add") + 1):
        for when in ("before", "after"):
            _, code = sweep.live("turns.Turns._add", at, when)
            assert code == ENDED
            found += nursery.do("go_on", where=sweep.where, planted=planted)
    return found


def test_R12_a_crash_between_a_call_and_its_result_leaves_a_session_that_goes_on(
    nursery: Nursery, folder: Path, load: Load
) -> None:
    found = crashed_calls(nursery, folder)
    load.tried(len(found), "crashes")
    assert [line for line in found if line["problems"] or line["state"] != "complete"] == []
    assert [line for line in found if line["open"] != line["interrupted"]] == []
    assert len([line for line in found if line["open"]]) >= 6
    assert max(len(line["open"]) for line in found) == 2  # calls side by side


@pytest.mark.planted("a call without a result after a restart")
def test_R12_a_planted_call_that_stays_open_is_found(nursery: Nursery, folder: Path) -> None:
    assert any(
        "without results" in each for line in crashed_calls(nursery, folder, "open") for each in line["problems"]
    )
