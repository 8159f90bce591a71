"""A worker that hangs and holds the interpreter ends itself; the gateway is in `tests/gateway/test_watchdog.py`."""

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lamina.store.store import open_store
from tests.gateway.processes import environ

START = """
import re, signal, sys
import lamina.cli
# a pattern that takes longer than the universe has lasted, and lets nobody else run
signal.signal(signal.SIGUSR1, lambda *given: re.match("(a+)+$", "a" * 64 + "b"))
sys.exit(lamina.cli.main())
"""
LIMIT_S = 3


def hung(folder: Path, limit: int) -> tuple[int | None, str]:
    """How a worker ends that hangs as soon as it works, and what it says; none when it does not end."""

    async def make_store() -> None:
        async with open_store(env["LAMINA_STORE"]):
            pass

    env = environ(folder, str(folder / "chats.db"), []) | {"LAMINA_WATCHDOG": str(limit)}
    asyncio.run(make_store())
    env["NOTIFY_SOCKET"] = str(folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(env["NOTIFY_SOCKET"])
        heard.settimeout(60)
        process = subprocess.Popen(
            [sys.executable, "-c", START, "worker", "--json"], env=env, cwd=folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert heard.recv(99) == b"READY=1"
            process.send_signal(signal.SIGUSR1)
            _, said = process.communicate(timeout=60 if limit else LIMIT_S + 1)
            return process.returncode, said
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            process.kill()
            process.communicate()


def test_a_worker_that_hangs_ends_and_says_where_it_was(tmp_path: Path) -> None:
    code, said = hung(tmp_path, LIMIT_S)
    assert code == 1
    assert "Timeout" in said
    assert "in match" in said


@pytest.mark.planted("nobody watches")
def test_a_planted_worker_that_nobody_watches_goes_on_hanging(tmp_path: Path) -> None:
    assert hung(tmp_path, 0) == (None, "")
