"""Somebody who asks for next to nothing, in a process of his own, while others ask for much.

Requests leave by the clock, one every few milliseconds, and a late one is late against the clock: a gateway that stands
still for 200 ms cannot hide that behind the one request that waited. What the machine itself withheld is not the
gateway's doing: the time for which the asking thread and the gateway's loop were ready to run and got no core is told
by the kernel (`schedstat`) and taken off.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

INTERVAL_S = 0.004
PATHS = ("/api/live", "/api/me")


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: when it was due, and the seconds from then to its reply; without what the machine withheld."""

    due: float
    seconds: float
    raw: float


class Bystander:
    """The process that asks, and what it saw."""

    def __init__(self, url: str, key: str, pid: int, out: Path) -> None:
        self._out = out
        command = [sys.executable, "-m", "tests.faults.bystander", url.removeprefix("http://"), str(pid)]
        with out.open("wb") as file:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, cwd=Path.cwd())
        assert self._process.stdin
        self._process.stdin.write(f"{key}\n".encode())
        self._process.stdin.flush()
        self._read = 0
        self._samples: list[Sample] = []

    def between(self, began: float, ended: float) -> list[Sample]:
        """What was due in this time; waits until all of it is answered."""
        end = time.monotonic() + 60
        while True:
            with self._out.open("rb") as file:
                file.seek(self._read)
                lines = file.read()
            whole = lines[: lines.rfind(b"\n") + 1]
            self._read += len(whole)
            self._samples += [Sample(*json.loads(line)) for line in whole.splitlines()]
            if self._samples and self._samples[-1].due > ended:
                break
            assert self._process.poll() is None, "the bystander has ended"
            assert time.monotonic() < end, "the gateway does not answer the bystander"
            time.sleep(0.005)
        return [each for each in self._samples if began <= each.due <= ended]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdin:
            self._process.stdin.close()


def percentile(samples: Sequence[Sample], part: float = 0.99) -> float:
    """The seconds that this part of the requests did not pass."""
    ordered = sorted(each.seconds for each in samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0


def _withheld(pid: int) -> float:
    """Seconds for which a thread was ready to run and did not."""
    with open(f"/proc/{pid}/schedstat", "rb") as file:
        return int(file.read().split()[1]) / 1e9


def _ask(sock: socket.socket, request: bytes) -> None:
    sock.sendall(request)
    got = b""
    while b"\r\n\r\n" not in got:
        piece = sock.recv(65_536)
        if not piece:
            raise ConnectionError
        got += piece
    head, _, body = got.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += sock.recv(65_536)
    if not head.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(head.partition(b"\r\n")[0].decode())


def _main(place: str, pid: int) -> None:
    key = sys.stdin.readline().strip()
    host, _, port = place.partition(":")
    head = f"Host: {place}\r\nAuthorization: Bearer {key}\r\n\r\n"
    requests = [f"GET {path} HTTP/1.1\r\n{head}".encode() for path in PATHS]
    sock = socket.create_connection((host, int(port)), 60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    due, number, kept_off = time.monotonic(), 0, 0.0
    me = os.getpid()
    while True:
        due = due + INTERVAL_S + kept_off  # while the machine had no core for us, our clock stood still too
        withheld = _withheld(me) + _withheld(pid)
        wait = due - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        number += 1
        _ask(sock, requests[number % len(requests)])
        late = time.monotonic() - due
        kept_off = _withheld(me) + _withheld(pid) - withheld
        sys.stdout.write(f"[{due:.6f}, {max(late - kept_off, 0.0):.6f}, {late:.6f}]\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
