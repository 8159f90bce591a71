"""Processes that are there to be killed. One process imports everything once and forks a child for each order.

`with Nursery() as nursery: nursery.run("chats", kill=(20, 0.01), where=…)` gives the lines that the child wrote until
it was killed, and how it ended. What it has to do is a coroutine that `tests.faults.works` names. A line is one write
to a pipe, short enough to be whole: what a child said before it was killed is what arrives.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parent.parent.parent
Line = dict[str, Any]
Ack = Callable[[Line], None]
Body = Callable[[Line, Ack], Awaitable[None]]
FAILED = 70
"""How a child ends that did not do what it should."""


class Nursery:
    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Nursery":
        environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # a process with one thread can fork
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.nursery"],
            cwd=ROOT, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        assert self._process is not None
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait(30)

    def run(self, work: str, *, kill: tuple[int, float] | None = None, **order: Any) -> tuple[list[Line], int]:
        """What the child said, and its return code: -9 when it was killed. That is some time after so many lines: how
        far it came does not depend on how busy the machine is."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"work": work, **order}).encode() + b"\n")
        process.stdin.flush()
        born: Line = json.loads(process.stdout.readline())
        said: list[Line] = []
        while True:
            if kill and len(said) >= kill[0]:
                time.sleep(kill[1])
                os.kill(born["pid"], signal.SIGKILL)
                kill = None
            line = process.stdout.readline()
            if not line:
                break
            one = json.loads(line)
            if "ended" in one:
                return said, os.waitstatus_to_exitcode(one["ended"])
            said.append(one)
        raise AssertionError(f"the nursery ended: {process.wait()}")

    def do(self, work: str, **order: Any) -> list[Line]:
        """The same for a child that is to live."""
        said, code = self.run(work, **order)
        assert code == 0, f"{work} ended with {code}, after {said[-3:]}"
        return said


def ack(line: Line) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


def grow_up(body: Body, order: Line) -> None:
    """In the child, until its end."""

    async def run() -> None:
        await body(order, ack)

    code = FAILED
    try:
        asyncio.run(run())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def orders() -> Iterator[Line]:
    yield from (json.loads(line) for line in sys.stdin)


def main() -> None:
    from tests.faults.works import WORKS  # noqa: PLC0415 -- the works import this module

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for order in orders():
        body = WORKS[order["work"]]
        begin, born = os.pipe()
        child = os.fork()
        if not child:
            os.close(born)
            os.read(begin, 1)  # its number is told before it says anything itself
            grow_up(body, order)
        ack({"pid": child})
        os.close(begin)
        os.close(born)
        _, status = os.waitpid(child, 0)
        ack({"ended": status})


if __name__ == "__main__":
    main()
