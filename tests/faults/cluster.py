"""A whole cluster of real processes: nginx with deploy/nginx.conf, three gateways, two workers, PostgreSQL, a model.

`with cluster(folder, postgres) as it: it.front` is the address of all. The model answers slowly, in pieces that are
told apart by the question's mark, and counts who asked it and who left; `python -m tests.faults.cluster PORT` is it.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lamina.gateway.handlers import SCOPES
from lamina.store.store import open_store
from tests.faults.nursery import ROOT
from tests.gateway.processes import Gateway, answers, begun, environ
from tests.gateway.serving import free_port
from tests.postgres import Server

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
NO_FRONT = "nginx is not here: as root with apt, `make test` installs it; else install nginx"
CONFIG = ROOT / "deploy" / "nginx.conf"
GATEWAYS, WORKERS, USERS = 3, 2, 6
MARK = re.compile(r"K(\d\d)[0-9a-f]{10}")
"""What every question is about: its first two digits say whose it is."""
NOTE = "Tea at five.\n"
PACE = 0.03
"""Seconds between two pieces of an answer."""


@dataclass
class Cluster:
    folder: Path
    server: Server
    where: str
    model: str
    front: str = ""
    env: dict[str, str] = field(default_factory=dict[str, str])
    keys: list[str] = field(default_factory=list[str])
    gateways: list[Gateway] = field(default_factory=list[Gateway])
    workers: "list[subprocess.Popen[str]]" = field(default_factory=list)
    worked: set[int] = field(default_factory=set[int])
    """Process numbers of all workers there ever were."""

    @property
    def database(self) -> str:
        return self.where.partition("@/")[2].partition("?")[0]

    def counts(self) -> dict[str, Any]:
        """What the model saw."""
        with urllib.request.urlopen(f"{self.model}/counts", timeout=30) as reply:
            return json.load(reply)

    def kill(self, number: int) -> None:
        self.gateways[number].process.kill()
        self.gateways[number].process.wait()

    def restart(self, number: int) -> None:
        """The same gateway again, at its place; returns when it answers."""
        old = self.gateways[number]
        if old.process.poll() is None:
            old.process.terminate()
            old.process.wait(60)
        self.gateways[number] = begun(self.folder, self.env, int(old.url.rpartition(":")[2]))
        answers(self.gateways[number])

    def kill_worker(self, number: int) -> None:
        """And another one in its place."""
        self.workers[number].kill()
        self.workers[number].wait()
        self.workers[number] = self.worker()

    def worker(self) -> "subprocess.Popen[str]":
        with (self.folder / "worker.log").open("a") as out:
            made = subprocess.Popen(
                [sys.executable, "-m", "lamina", "worker", "--json"], env=self.env, cwd=self.folder, stdout=out,
                stderr=out, text=True,
            )  # fmt: skip
        self.worked.add(made.pid)
        return made

    def terminate_backends(self) -> int:
        """Every connection of the cluster to its database."""
        found = self.server.sql(
            f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{self.database}'"
        )
        return int(found)

    def copy(self, database: str = "") -> str:
        """The address of a copy of the database, or of an earlier copy, as it is now. Meanwhile nobody gets in."""
        source, name = database or self.database, f"copy{next(self.server.numbers)}"
        self.server.sql(f"ALTER DATABASE {source} ALLOW_CONNECTIONS false")
        try:
            self.server.sql(
                f"SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE datname = '{source}'"
            )
            self.server.sql(f"CREATE DATABASE {name} TEMPLATE {source} OWNER lamina")
        finally:
            self.server.sql(f"ALTER DATABASE {source} ALLOW_CONNECTIONS true")
        return self.server.address(name)


def front_config(ports: Sequence[int], listen: int, folder: Path, text: str = "") -> str:
    """The file that ships, with these addresses and folder in place of its own."""
    made = text or CONFIG.read_text(encoding="utf-8")
    for number, port in enumerate(ports, 1):
        made = made.replace(f"gateway{number}:8765", f"127.0.0.1:{port}")
    made = made.replace("listen 8080;", f"listen 127.0.0.1:{listen};").replace(" /tmp/", f" {folder}/")
    return made.replace("worker_processes auto;", "worker_processes 1;")


@contextlib.contextmanager
def front(folder: Path, ports: Sequence[int], text: str = "") -> Generator[str]:
    """nginx in front of these gateways, as the shipped file has it; its address."""
    folder.mkdir()
    listen = free_port()
    file = folder / "nginx.conf"
    file.write_text(front_config(ports, listen, folder, text), encoding="utf-8")
    assert NGINX, NO_FRONT
    me = "user root; " if os.geteuid() == 0 else ""  # it would take www-data, who cannot look into our folder
    command = [NGINX, "-p", str(folder), "-c", str(file), "-g", f"{me}daemon off;"]
    with (folder / "nginx.log").open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        _listens(process, listen, folder / "nginx.log")
        yield f"http://127.0.0.1:{listen}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _listens(process: "subprocess.Popen[Any]", port: int, log: Path) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.02)


@contextlib.contextmanager
def cluster(folder: Path, server: Server) -> Generator[Cluster]:
    port = free_port()
    where = server.database()
    it = Cluster(folder, server, where, f"http://127.0.0.1:{port}")
    room = folder / "room"
    room.mkdir()
    (room / "note.txt").write_text(NOTE, encoding="utf-8")
    it.env = environ(folder, where, []) | {
        "LAMINA_PROVIDER": "openai", "LAMINA_BASE_URL": f"{it.model}/v1", "LAMINA_MODEL": "m", "LAMINA_API_KEY": "k",
        "LAMINA_LEARN": "rules", "LAMINA_MEMORY_DEADLINE": "10000", "LAMINA_GATEWAY_TOOLS": "on",
        "LAMINA_GATEWAY_MODE": "agent", "LAMINA_GATEWAY_WORKSPACE": str(room), "OPENBLAS_NUM_THREADS": "1",
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        model = subprocess.Popen([sys.executable, "-m", "tests.faults.cluster", str(port)], cwd=ROOT)
        stack.callback(model.wait, 30)
        stack.callback(model.terminate)
        it.keys = asyncio.run(_keys(where))  # this also makes the tables
        stack.callback(_end, it)
        it.gateways = [begun(folder, it.env) for _ in range(GATEWAYS)]
        it.workers = [it.worker() for _ in range(WORKERS)]
        for one in it.gateways:
            answers(one)
        ports = [int(one.url.rpartition(":")[2]) for one in it.gateways]
        it.front = stack.enter_context(front(folder / "front", ports))
        yield it


async def _keys(where: str) -> list[str]:
    async with open_store(where) as store:
        return [(await store.keys.add(name_of(n), "test", scopes=SCOPES))[1] for n in range(USERS)]


def name_of(number: int) -> str:
    return f"user{number}"


def _end(it: Cluster) -> None:
    everybody = [*(one.process for one in it.gateways), *it.workers]
    for process in everybody:
        if process.poll() is None:
            process.terminate()
    for process in everybody:
        process.wait(60)


# The model


@dataclass
class Model:
    began: int = 0
    whole: int = 0
    left: int = 0
    asked: Counter[str] = field(default_factory=Counter[str])
    """How often each question was put, results of tools aside."""
    mixed: list[str] = field(default_factory=list[str])
    """Requests in which more than one user's marks are."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    body = json.dumps(vars(self)).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
                    continue
                size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await self._answer(json.loads(await reader.readexactly(size)), reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, asked: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.began += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            for choice in [*self._choices(asked), None]:
                line = json.dumps({"choices": [{"index": 0, **choice}]}) if choice else "[DONE]"
                raw = f"data: {line}\n\n".encode()
                writer.write(b"%x\r\n%b\r\n" % (len(raw), raw))
                await writer.drain()
                if choice:
                    await asyncio.sleep(PACE)
                if reader.at_eof():
                    raise ConnectionError("the reader left")
        except ConnectionError:
            self.left += 1
            raise
        writer.write(b"0\r\n\r\n")
        self.whole += 1

    def _choices(self, asked: Any) -> list[dict[str, Any]]:
        """Some pieces of text, for every third question twice, with the call of a tool in between. A `seed` says how
        many pieces, and that there is a call when it is odd."""
        said = json.dumps(asked, ensure_ascii=False)
        owners = sorted({found[1] for found in MARK.finditer(said)})
        if len(owners) > 1:
            self.mixed.append(f"a request with marks of {owners}")
        messages = asked["messages"]
        last = max(n for n, message in enumerate(messages) if message["role"] == "user")
        mark = [found[0] for found in MARK.finditer(json.dumps(messages[last]))][-1]
        step = sum(message["role"] == "tool" for message in messages[last:])
        self.asked[mark] += not step
        count = asked.get("seed") or 3 + int(mark[-1], 16) % 5
        pieces = [f"[{mark}.{step}.{n}] 第{n}段 " for n in range(count)]
        if not step:
            known = sorted({found[0] for found in MARK.finditer(said)} - {mark})
            pieces[-1] += f"I know of {' '.join(known[:2])}. " if known else ""
        delta: list[dict[str, Any]] = [{"delta": {"content": piece}, "finish_reason": None} for piece in pieces]
        calls = asked["seed"] % 2 if "seed" in asked else not int(mark[-2], 16) % 3
        if step or not calls or "tools" not in asked:
            return [*delta, {"delta": {}, "finish_reason": "stop"}]
        function = {"name": "read_file", "arguments": json.dumps({"path": "note.txt"})}
        call = {"index": 0, "id": f"call_{mark}", "type": "function", "function": function}
        return [*delta, {"delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]


async def main(port: int) -> None:
    server = await asyncio.start_server(Model().serve, "127.0.0.1", port, limit=2**22)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(main(int(sys.argv[1])))
