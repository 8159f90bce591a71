"""How often a fault test tries, with which seed, and what it tells of it: the fixture `load` of all tests.

`SOAK` multiplies the trials of the quick form. `SOAK_SECONDS` is the time of a whole run: it ends a long form early,
and never the quick one. `SEED` is the seed of a run that is to be played again. `make soak` reads what is told here.
"""

import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SOAK = int(os.environ.get("SOAK", "1"))


@dataclass
class Clock:
    """The time of a run, and how many of its tests have yet to take their part of it."""

    seconds: float = field(default_factory=lambda: float(os.environ.get("SOAK_SECONDS", "inf")))
    tests: int = 1
    began: float = field(default_factory=time.monotonic)

    def part(self) -> float:
        """For one test: what the tests before it did not need is there for it too."""
        rest = self.began + self.seconds - time.monotonic()
        mine = max(rest, 0.0) / max(self.tests, 1)
        self.tests -= 1
        return mine


@dataclass
class Load:
    """What one test did: how many trials it wanted, how many it finished, and its seeds."""

    name: str = ""
    seconds: float = float("inf")
    factor: int = SOAK
    trials: int = 0
    wanted: int = 0
    unit: str = ""
    seeds: list[int] = field(default_factory=list[int])
    began: float = field(default_factory=time.monotonic)
    told: float = 0.0

    @property
    def over(self) -> bool:
        return time.monotonic() - self.began > self.seconds

    def rounds(self, quick: int, unit: str, *, each: int = 1, long: int = 0) -> Iterator[int]:
        """The numbers of the rounds: `quick` times SOAK of them, fewer when the time is over, but `quick` at least. A
        round is counted when it has ended, as so many trials. `long` is what a long form multiplies instead."""
        count = quick if self.factor == 1 else (long or quick) * self.factor
        self.unit, self.wanted = unit, self.wanted + count * each
        for n in range(count):
            if n >= quick and self.over:
                return
            yield n
            self.tried(each)

    def tried(self, count: int, unit: str = "") -> None:
        """Trials that a test counts itself; with a unit they are as many as it wanted."""
        if unit:
            self.unit, self.wanted = unit, self.wanted + count
        self.trials += count
        where, now = os.environ.get("SOAK_PROGRESS"), time.monotonic()
        if where and now - self.told > 0.5:
            self.told = now
            Path(where).write_text(json.dumps([self.name, self.trials, self.wanted]), encoding="utf-8")

    def seed(self) -> int:
        given = os.environ.get("SEED")
        seed = int(given) if given else random.SystemRandom().getrandbits(32)
        print(f"seed {seed}")
        self.seeds.append(seed)
        return seed

    def properties(self) -> list[tuple[str, object]]:
        """For the report of the run."""
        counted = [("trials", self.trials), ("wanted", self.wanted), ("unit", self.unit)] if self.unit else []
        return [*counted, *(("seed", seed) for seed in self.seeds)]
