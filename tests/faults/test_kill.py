"""R1, R7, R13, R20: processes that are killed, and backends that are terminated, in the middle of everything.

`SOAK=50` runs the long form: that many times as many kills.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import StoreBusyError
from lamina.store.store import open_store
from tests.faults.load import Ledger, drain, problems, run_load
from tests.postgres import Server

ROOT = Path(__file__).parent.parent.parent
SOAK = int(os.environ.get("SOAK", "1"))


def child(*arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.load", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def one_kill(where: str, seed: int, planted: str, ledger: Ledger) -> None:
    """Let a child work for a random while, then kill it; what it wrote until then was acknowledged."""
    process = child(where, str(seed), planted)
    assert process.stdout is not None
    assert process.stderr is not None
    first = process.stdout.readline()
    assert first, process.stderr.read().decode()
    timer = threading.Timer(random.Random(seed).uniform(0.0, 0.25), process.kill)
    timer.start()
    rest = process.stdout.read()
    process.wait()
    process.stdout.close()
    process.stderr.close()
    assert process.returncode == -signal.SIGKILL
    for line in (first + rest).split(b"\n"):
        if line.endswith(b"}"):
            ledger.take(json.loads(line))


async def state(where: str, ledger: Ledger) -> list[str]:
    async with open_store(where) as store:
        await drain(store)
        return await problems(store, ledger)


def test_R1_nothing_acknowledged_is_lost_or_doubled_by_kill_9(where: str) -> None:
    kills = (60 if "://" not in where else 40) * SOAK
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    ledger = Ledger()
    for n in range(kills):
        one_kill(where, seed + n, "", ledger)
        if n % 5 == 4:
            assert asyncio.run(state(where, ledger)) == []
    assert asyncio.run(state(where, ledger)) == []
    assert ledger.count > 20 * kills


@pytest.mark.parametrize("planted", ["early", "split"])
def test_R1_a_planted_bug_is_found(tmp_path: Path, planted: str) -> None:
    """Acknowledging before the commit loses; an effect apart from its completion is doubled."""
    where, ledger = os.fspath(tmp_path / "store.db"), Ledger()
    for n in range(10):
        one_kill(where, n, planted, ledger)
        found = asyncio.run(state(where, ledger))
        if any(("lost" in each) if planted == "early" else ("remembered 2 times" in each) for each in found):
            return
    pytest.fail("the planted bug was not found")


async def under_fire(server: Server, where: str, seed: int, rounds: int) -> tuple[list[str], Ledger, int]:
    """The load in this process, while the server ends all its connections again and again."""
    ledger, ended = Ledger(), 0
    rng = random.Random(seed)
    database = where.partition("@/")[2].partition("?")[0]
    statement = f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{database}' AND usename = 'lamina'"  # noqa: E501 -- one statement
    async with open_store(where) as store:
        load = asyncio.create_task(run_load(store, seed, ledger.take, writers=4))
        for _ in range(rounds):
            await asyncio.sleep(rng.uniform(0.05, 0.2))
            ended += int(await asyncio.to_thread(server.sql, statement))
        await asyncio.sleep(0.2)
        assert not load.done(), load
        load.cancel()
        await asyncio.wait([load])
        await drain(store)
        return await problems(store, ledger), ledger, ended


def test_R20_nothing_acknowledged_is_lost_or_doubled_by_terminated_backends(postgres: Server) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    found, ledger, ended = asyncio.run(under_fire(postgres, postgres.database(), seed, 20 * SOAK))
    assert found == []
    assert ended > 20
    assert ledger.count > 100


# R7: one owner


HOLD = """
import asyncio, sys
from lamina.errors import StoreError
from lamina.store.store import open_store

async def main():
    async with open_store(sys.argv[1]):
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)

try:
    asyncio.run(main())
except StoreError as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
"""
UNLOCKED = HOLD.replace(
    "async def main", "import lamina.store.lock as lock\nlock.fcntl.flock = lambda *_: None\nasync def main"
)


def holders(where: str, code: str, count: int) -> "tuple[list[subprocess.Popen[str]], list[str]]":
    """Start several at once; those that opened the store are still open, of the others what they said."""
    started = [
        subprocess.Popen([sys.executable, "-c", code, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    inside: list[subprocess.Popen[str]] = []
    said: list[str] = []
    for process in started:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if line == "open":
            inside.append(process)
        else:
            said.append(line)
            assert process.wait() == 4
            close(process)
    return inside, said


def close(process: "subprocess.Popen[Any]") -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def test_R7_of_several_processes_exactly_one_owns_the_store(tmp_path: Path) -> None:
    where = os.fspath(tmp_path / "store.db")
    for _ in range(2):  # the second round comes after a kill -9 of the first owner
        inside, said = holders(where, HOLD, 4)
        for process in inside:
            close(process)
        assert len(inside) == 1
        assert len(said) == 3
        for line in said:
            assert f"in use by process {inside[0].pid}" in line


def test_R7_a_planted_lock_that_does_not_lock_is_found(tmp_path: Path) -> None:
    inside, _ = holders(os.fspath(tmp_path / "store.db"), UNLOCKED, 2)
    for process in inside:
        close(process)
    assert len(inside) == 2


async def test_R7_the_same_process_cannot_open_a_store_twice_and_another_name_does_not_help(tmp_path: Path) -> None:
    where = tmp_path / "store.db"
    (tmp_path / "alias.db").symlink_to(where)
    async with open_store(os.fspath(where)):
        for name in ("store.db", "alias.db", "./store.db"):
            with pytest.raises(StoreBusyError) as error:
                async with open_store(f"{tmp_path}/{name}"):
                    pass
            assert error.value.pid == os.getpid()
    async with open_store(f"sqlite:///{where}"):
        pass
