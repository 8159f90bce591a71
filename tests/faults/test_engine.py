"""R1, R20: processes that are killed, and backends that are ended, in the middle of chats with tools and memory."""

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
from tests.faults.load import Load
from tests.faults.nursery import Nursery
from tests.postgres import Server


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


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


def test_R1_R20_nothing_acknowledged_is_lost_or_doubled_by_kill_9(
    where: str, nursery: Nursery, tmp_path: Path, load: Load
) -> None:
    seed, trial = load.seed(), Trial(nursery, where, tmp_path)
    for n in load.rounds(30 if "://" not in where else 10, "kills", long=100 if "://" not in where else 20):
        trial.kill(seed + n)
        if n % 10 == 9:
            assert trial.problems() == []
    assert trial.problems() == []
    assert trial.count > 5 * load.trials


@pytest.mark.planted(
    "text that is shown before it is stored; a job done apart from its effect; a receipt stored with the end alone"
)
@pytest.mark.parametrize(
    ("planted", "words"), [("early", "showed"), ("split", "was remembered 0 times"), ("unsent", "sent is lost")]
)
def test_R1_a_planted_bug_is_found(nursery: Nursery, tmp_path: Path, planted: str, words: str) -> None:
    """Text that is shown before it is stored; a job that is completed apart from what it leads to; a receipt that is
    stored with the end of its turn alone."""
    trial = Trial(nursery, os.fspath(tmp_path / "store.db"), tmp_path, planted)
    for n in range(40):
        trial.kill(n)
        if n % 4 == 3 and any(words in each for each in trial.problems()):
            return
    pytest.fail("the planted bug was not found")


@pytest.mark.planted("text that is shown before it is stored, over PostgreSQL")
def test_R20_a_planted_bug_is_found(nursery: Nursery, tmp_path: Path, postgres: Server) -> None:
    trial = Trial(nursery, postgres.database(), tmp_path, "early")
    for n in range(40):
        trial.kill(n)
        if n % 4 == 3 and any("showed" in each for each in trial.problems()):
            return
    pytest.fail("the planted bug was not found")


async def under_fire(server: Server, where: str, seed: int, load: Load) -> tuple[Ledger, int]:
    """Chats in this process, while the server ends all its connections again and again."""
    ledger, ended, rng = Ledger(), 0, random.Random(seed)
    database = where.partition("@/")[2].partition("?")[0]
    statement = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'lamina' AND datname = "
    provider = ScriptedProvider(answers(rng, f"s{seed}", 2_000 * load.factor))
    async with opened(where, provider, tools(ledger.take)) as app:
        chats = [
            asyncio.create_task(talk(app, owner, f"{owner}-{n}", random.Random(rng.random()), ledger.take))
            for owner in OWNERS
            for n in range(2)
        ]
        for n in load.rounds(40, "cuts"):
            while ended <= n or ledger.count < 5 * n:
                await asyncio.sleep(rng.uniform(0.05, 0.2))
                ended += int(await asyncio.to_thread(server.sql, f"{statement}'{database}'"))
        await asyncio.sleep(0.2)
        assert not any(chat.done() for chat in chats), chats
        for chat in chats:
            chat.cancel()
        await asyncio.wait(chats)
    return ledger, ended


async def test_R20_nothing_acknowledged_is_lost_or_doubled_by_terminated_backends(postgres: Server, load: Load) -> None:
    seed, where = load.seed(), postgres.database()
    ledger, ended = await under_fire(postgres, where, seed, load)
    async with App.open(
        where, settings=chat_settings(), tools=tools(lambda line: None), provider=ScriptedProvider([])
    ) as app:
        assert await problems(app, ledger) == []
    assert ended >= 40
    failed = [seen for seen in ledger.turns.values() if seen.ended == "failed"]
    assert failed == []
