"""R1, R20: processes that are killed, and backends that are terminated, in the middle of chats with tools and memory.

`SOAK=10` runs the long form: that many times as many kills.
"""

import asyncio
import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamina import App
from lamina.providers.scripted import ScriptedProvider
from tests.faults.chats import OWNERS, Ledger, answers, chat_settings, opened, problems, talk, tools
from tests.faults.nursery import Nursery
from tests.postgres import Server

SOAK = int(os.environ.get("SOAK", "1"))


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


def a_seed() -> int:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    return seed


class Trial:
    """One store that grows from kill to kill, and everything that was acknowledged on it."""

    def __init__(self, nursery: Nursery, where: str, folder: Path, planted: str = "") -> None:
        self.nursery, self.where, self.planted = nursery, where, planted
        self.ledger = folder / "ledger.jsonl"
        self.count = 0

    def kill(self, seed: int) -> None:
        """Let a child chat until it has said a random number of things, perhaps none, and kill it a moment later."""
        rng = random.Random(seed)
        kill = (rng.randint(0, 20), rng.uniform(0, 0.04))
        said, code = self.nursery.run("chats", kill=kill, where=self.where, seed=seed, planted=self.planted)
        assert code == -signal.SIGKILL
        self.count += len(said)
        with self.ledger.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in said)

    def problems(self) -> list[str]:
        """As a new process finds it."""
        (said,) = self.nursery.do("check", where=self.where, ledger=os.fspath(self.ledger))
        return said["problems"]


def test_R1_R20_nothing_acknowledged_is_lost_or_doubled_by_kill_9(where: str, nursery: Nursery, tmp_path: Path) -> None:
    kills = (100 if "://" not in where else 20) * SOAK
    seed, trial = a_seed(), Trial(nursery, where, tmp_path)
    for n in range(kills):
        trial.kill(seed + n)
        if n % 10 == 9:
            assert trial.problems() == []
    assert trial.count > 5 * kills


@pytest.mark.parametrize(("planted", "words"), [("early", "showed"), ("split", "was remembered 0 times")])
def test_R1_a_planted_bug_is_found(nursery: Nursery, tmp_path: Path, planted: str, words: str) -> None:
    """Text that is shown before it is stored; a job that is completed apart from what it leads to."""
    trial = Trial(nursery, os.fspath(tmp_path / "store.db"), tmp_path, planted)
    for n in range(40):
        trial.kill(n)
        if n % 4 == 3 and any(words in each for each in trial.problems()):
            return
    pytest.fail("the planted bug was not found")


async def under_fire(server: Server, where: str, seed: int, rounds: int) -> tuple[Ledger, int]:
    """Chats in this process, while the server ends all its connections again and again."""
    ledger, ended, rng = Ledger(), 0, random.Random(seed)
    database = where.partition("@/")[2].partition("?")[0]
    statement = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'lamina' AND datname = "
    provider = ScriptedProvider(answers(rng, f"s{seed}", 2_000))
    async with opened(where, provider, tools(ledger.take)) as app:
        chats = [
            asyncio.create_task(talk(app, owner, f"{owner}-{n}", random.Random(rng.random()), ledger.take))
            for owner in OWNERS
            for n in range(2)
        ]
        while ended < 2 * rounds or ledger.count < 10 * rounds:
            await asyncio.sleep(rng.uniform(0.05, 0.2))
            ended += int(await asyncio.to_thread(server.sql, f"{statement}'{database}'"))
        await asyncio.sleep(0.2)
        assert not any(chat.done() for chat in chats), chats
        for chat in chats:
            chat.cancel()
        await asyncio.wait(chats)
    return ledger, ended


async def test_R20_nothing_acknowledged_is_lost_or_doubled_by_terminated_backends(postgres: Server) -> None:
    seed, where = a_seed(), postgres.database()
    ledger, ended = await under_fire(postgres, where, seed, 20 * SOAK)
    async with App.open(
        where, settings=chat_settings(), tools=tools(lambda line: None), provider=ScriptedProvider([])
    ) as app:
        assert await problems(app, ledger) == []
    assert ended >= 40
    failed = [seen for seen in ledger.turns.values() if seen.ended == "failed"]
    assert failed == []
