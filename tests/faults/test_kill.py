"""R7: of several processes exactly one owns a store, and a kill -9 lets go of it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import StoreBusyError
from lamina.store.store import open_store

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
    "async def main",
    "import lamina.store.lock as lock\nlock.take_lock = lambda *_: lambda: None\n"
    "lock.OwnerLock.claim = lambda *_: None\nasync def main",
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


@pytest.mark.planted("a lock that locks nothing")
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
