"""Measure the inputs of scripts/capacity.py and write them to docs/evidence/capacity.json: two minutes on two cores.

`.venv/bin/python scripts/measure_capacity.py`. CPU seconds are those of the processes themselves, so that they hardly
depend on who else is busy here; turns a second are what this machine gave, with model, load and all on the same cores.
"""

import asyncio
import contextlib
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import psutil

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from scripts import capacity  # noqa: E402 -- run as a script, the root is not on the path
from tests.faults.cluster import NGINX, front  # noqa: E402 -- run as a script, the root is not on the path
from tests.gateway.processes import Gateway, answers, begun  # noqa: E402
from tests.gateway.serving import free_port  # noqa: E402
from tests.postgres import Server, running  # noqa: E402

from lamina import App  # noqa: E402
from lamina.gateway.handlers import SCOPES  # noqa: E402
from lamina.providers.scripted import ScriptedProvider  # noqa: E402
from lamina.records import NewMemory  # noqa: E402
from lamina.settings import Settings, load_settings  # noqa: E402
from lamina.store.postgres import POOL  # noqa: E402
from lamina.store.store import open_store  # noqa: E402

OUT = ROOT / "docs" / "evidence" / "capacity.json"
CLIENTS, WARM, SECONDS = 16, 2.0, 8.0
SESSIONS, TURNS = 10, 10
SHORT, LONG = 400, 4_000
"""Characters of an answer, to tell what a turn takes by itself from what its text takes."""
MEMORIES = 5_000
Inputs = dict[str, dict[str, Any]]


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


# Under load


def environ(folder: Path, store: str, model: str) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", ""), "HOME": str(folder), "LAMINA_STORE": store, "LAMINA_PROVIDER": "openai",
        "LAMINA_BASE_URL": f"{model}/v1", "LAMINA_MODEL": "m", "LAMINA_API_KEY": "k", "LAMINA_LEARN": "rules",
        "OPENBLAS_NUM_THREADS": "1", "LAMINA_USER": "ann",
    }  # fmt: skip


@contextlib.contextmanager
def model() -> Generator[str]:
    port = free_port()
    child = subprocess.Popen([sys.executable, "-m", "bench.servers.upstream", str(port)], cwd=ROOT)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        child.kill()
        child.wait()


@contextlib.contextmanager
def gateways(folder: Path, env: dict[str, str], count: int) -> Generator[list[Gateway]]:
    made = [begun(folder, env) for _ in range(count)]
    try:
        for one in made:
            answers(one)
        yield made
    finally:
        for one in made:
            one.process.terminate()
        for one in made:
            one.process.wait(60)


async def keys_in(store: str) -> list[str]:
    async with open_store(store) as opened:
        return [(await opened.keys.add(f"user{n}", "measure", scopes=SCOPES))[1] for n in range(CLIENTS)]


async def load(url: str, keys: list[str], marks: Callable[[], Any]) -> tuple[int, float, Any, Any]:
    """Everybody talks, one turn after another; turns and seconds, and what `marks` said before and after."""
    done, end = 0, 0.0

    async def one(http: aiohttp.ClientSession, key: str) -> None:
        nonlocal done
        send = {"Authorization": f"Bearer {key}", "Accept": "text/event-stream"}
        async with http.post(f"{url}/api/sessions", json={}, headers=send) as made:
            session = (await made.json())["session_id"]
        number = 0
        while time.perf_counter() < end:
            number += 1
            words = f"My cat is named K{random.getrandbits(40):010x}." if number % 5 == 1 else f"And then, {number}?"
            async with http.post(
                f"{url}/api/sessions/{session}/messages", json={"content": words}, headers=send
            ) as reply:
                assert reply.status == 200, await reply.text()
                assert b"event: ended" in await reply.read()
            done += 1

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        for seconds in (WARM, SECONDS):
            done, begin = 0, time.perf_counter()
            before, end = marks(), time.perf_counter() + seconds
            await asyncio.gather(*(one(http, key) for key in keys))
            lasted, after = time.perf_counter() - begin, marks()
    return done, lasted, before, after


def cpu(*pids: int) -> float:
    """Seconds that these processes have used, with their children, living and gone."""
    total = 0.0
    for pid in pids:
        process = psutil.Process(pid)
        times = process.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
        for child in process.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += sum(child.cpu_times()[:2])
    return total


def on_sqlite(folder: Path, _: Server) -> Inputs:
    say("one gateway, SQLite")
    store = str(folder / "load.db")
    keys = asyncio.run(keys_in(store))
    with model() as upstream, gateways(folder, environ(folder, store, upstream), 1) as (one,):
        turns, lasted, before, after = asyncio.run(load(one.url, keys, lambda: cpu(one.process.pid)))
    how = f"{CLIENTS} clients through one `lamina serve`, {SECONDS:g} s, 20 pieces an answer"
    return {
        "sqlite_turns_a_second": entry(turns / lasted, "turns/s", how),
        "sqlite_gateway_cpu": entry(1e3 * (after - before) / turns, "ms/turn", f"{how}, jobs in the background too"),
    }


def on_postgres(folder: Path, server: Server) -> Inputs:
    say("one gateway, PostgreSQL")
    store = server.database()
    keys, database = asyncio.run(keys_in(store)), store.partition("@/")[2].partition("?")[0]

    def marks(*pids: int) -> Any:
        commits = int(server.sql(f"SELECT xact_commit FROM pg_stat_database WHERE datname = '{database}'"))
        wal = int(server.sql("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint"))
        syncs = int(server.sql("SELECT COALESCE(SUM(fsyncs), 0) FROM pg_stat_io WHERE object = 'wal'"))
        return cpu(*pids), cpu(server.process.pid), commits, wal, syncs

    with model() as upstream, gateways(folder, environ(folder, store, upstream), 1) as (one,):
        turns, lasted, before, after = asyncio.run(load(one.url, keys, lambda: marks(one.process.pid)))
        resident = psutil.Process(one.process.pid).memory_info().rss
    spent = [(new - old) / turns for old, new in zip(before, after, strict=True)]
    how = f"{CLIENTS} clients through one `lamina serve` on PostgreSQL with fsync, {SECONDS:g} s"
    return {
        "gateway_turns_a_second": entry(turns / lasted, "turns/s", how),
        "gateway_cpu": entry(1e3 * spent[0], "ms/turn", f"{how}, jobs in the background too"),
        "gateway_memory": entry(resident / 1e6, "MB", f"{how}: resident at the end"),
        "postgres_cpu": entry(1e3 * spent[1], "ms/turn", f"{how}: all processes of the server"),
        "commits": entry(spent[2], "transactions/turn", f"{how}: pg_stat_database, reading ones too"),
        "wal": entry(spent[3], "bytes/turn", f"{how}: pg_current_wal_lsn"),
        "syncs": entry(spent[4], "syncs/turn", f"{how}: pg_stat_io, those that waited together share one"),
    }


def behind_nginx(folder: Path, server: Server) -> Inputs:
    if NGINX is None:
        say("no nginx here: three gateways are left out")
        return {}
    say("three gateways and two workers behind nginx, PostgreSQL")
    store = server.database()
    with model() as upstream:
        return _behind_nginx(folder, store, environ(folder, store, upstream))


def _behind_nginx(folder: Path, store: str, env: dict[str, str]) -> Inputs:
    keys = asyncio.run(keys_in(store))
    workers = [subprocess.Popen([sys.executable, "-m", "lamina", "worker", "--json"], env=env, cwd=folder,
                                stdout=subprocess.DEVNULL) for _ in range(2)]  # fmt: skip
    try:
        with gateways(folder, env, 3) as made:
            ports = [int(one.url.rpartition(":")[2]) for one in made]
            with front(folder / "front", ports) as url:
                pids = [child.pid for child in psutil.Process().children() if child.name() == "nginx"]
                turns, lasted, before, after = asyncio.run(load(url, keys, lambda: cpu(*pids)))
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait(60)
    how = f"{CLIENTS} clients through nginx to three gateways and two workers on PostgreSQL with fsync, {SECONDS:g} s"
    return {
        "cluster_turns_a_second": entry(turns / lasted, "turns/s", how),
        "front_cpu": entry(1e3 * (after - before) / turns, "ms/turn", f"{how}: nginx"),
    }


# At rest


def settings_of(where: str) -> Settings:
    plain = load_settings(ROOT / "scripts", {"HOME": "/nonexistent", "LAMINA_STORE": where})
    return replace(plain, memory_deadline=60_000, learn="rules")


def some_text(size: int) -> str:
    """English-like words and Chinese characters, of each half: no text repeats itself, and none is noise."""
    words = [f"{random.choice('bcdfglmprst')}{random.choice('aeiou')}{random.choice('lnrst')}{random.choice('aeiou')} "
             for _ in range(size // 10)]  # fmt: skip
    chinese = [chr(0x4E00 + int(3_000 * random.random() ** 2)) for _ in range(size - 5 * (size // 10))]
    return "".join(words) + "".join(chinese)


async def talked(where: str, size: int) -> None:
    """Sessions of a few people, everything learnt and summarised."""
    script: Any = []
    for _ in range(SESSIONS * TURNS):
        text = some_text(size)
        pieces = [text[at : at + 40] for at in range(0, size, 40)]
        script.append([*({"text": piece} for piece in pieces), {"usage": [500, 400, 20]}])
    provider = ScriptedProvider(script)
    async with App.open(where, settings=settings_of(where), provider=provider, work=False) as app:
        for n in range(SESSIONS):
            session = await app.new_session(f"user{n}")
            for number in range(TURNS):
                fact = f"My cat is named K{random.getrandbits(40):010x}. " if number % 5 == 1 else ""
                running = await app.start(f"user{n}", session.session_id, fact + some_text(size // 4))
                await running.wait()
        await app.worker.run_until_empty()


def stored(folder: Path, server: Server) -> Inputs:
    """Bytes that turns take in both stores: what a turn takes by itself, and what each of its characters adds."""
    found: dict[str, dict[int, float]] = {"sqlite": {}, "postgres": {}}
    for size in (SHORT, LONG):
        say(f"bytes of turns with answers of {size:,} characters")
        file, where = folder / f"stored{size}.db", server.database()
        database = where.partition("@/")[2].partition("?")[0]
        for name, place in (("sqlite", str(file)), ("postgres", where)):
            asyncio.run(empty(place))
            before = size_of(name, file, database, server)
            asyncio.run(talked(place, size))
            found[name][size] = (size_of(name, file, database, server) - before) / (SESSIONS * TURNS)
    made: Inputs = {}
    for name, sizes in found.items():
        each = (sizes[LONG] - sizes[SHORT]) / ((LONG - SHORT) * 1.25)  # the question is a quarter of the answer
        how = f"{SESSIONS} sessions of {TURNS} turns with answers of {SHORT:,} and {LONG:,} characters, all worked off"
        made[f"{name}_bytes_a_turn"] = entry(sizes[SHORT] - each * SHORT * 1.25, "bytes/turn", f"{how}: without text")
        made[f"{name}_bytes_a_character"] = entry(each, "bytes/character", f"{how}, half of them Chinese words")
    return made


async def empty(where: str) -> None:
    async with open_store(where):
        pass


def size_of(name: str, file: Path, database: str, server: Server) -> int:
    if name == "sqlite":
        return file.stat().st_size  # closed: everything is in this file
    server.sql("VACUUM", database)
    return int(server.sql(f"SELECT pg_database_size('{database}')"))


def jobs(folder: Path, server: Server) -> Inputs:
    """A worker alone with a heap of jobs."""
    say("a worker and its jobs")
    where = server.database()

    async def heap() -> int:
        async with App.open(where, settings=settings_of(where), work=False) as app:
            for n in range(50):
                session = await app.new_session(f"user{n}")
                for number in range(8):
                    said = f"My cat is named K{random.getrandbits(40):010x}." if number % 5 == 1 else "And then?"
                    await app.record(f"user{n}", session.session_id, said, "Well. " * 40)
            return await app.store.jobs.left(("memory", "summary"))

    asyncio.run(heap())
    waiting = "SELECT count(*) FROM outbox WHERE state = 'waiting'"
    database = where.partition("@/")[2].partition("?")[0]
    count, begin, before = int(server.sql(waiting, database)), time.perf_counter(), os.times()
    env = environ(folder, where, "http://127.0.0.1:9")
    subprocess.run([sys.executable, "-m", "lamina", "worker", "--once"], env=env, cwd=folder, check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    lasted, after = time.perf_counter() - begin, os.times()
    left = int(server.sql(waiting, database))
    used = after.children_user + after.children_system - before.children_user - before.children_system
    how = f"`lamina worker --once` on {count:,} jobs of 50 owners, PostgreSQL with fsync; its start is in it"
    return {
        "worker_jobs_a_second": entry((count - left) / lasted, "jobs/s", how),
        "worker_cpu": entry(1e3 * used / (count - left), "ms/job", how),
        "jobs": entry(count / 400, "jobs/turn", "outbox of 400 turns in sessions of eight"),
    }


def index(_: Path, server: Server) -> Inputs:
    """What memories take in the memory of a gateway and in the tables."""
    say("memories")
    where = server.database()
    database = where.partition("@/")[2].partition("?")[0]

    async def grow() -> None:
        async with App.open(where, settings=settings_of(where), work=False) as app:
            facts = [f"Fact {n}: the box {random.getrandbits(40):x} is at place {n}." for n in range(MEMORIES)]
            for at in range(0, MEMORIES, 500):
                await app.recall.add("ann", [NewMemory(text) for text in facts[at : at + 500]])

    asyncio.run(grow())
    child = subprocess.run([sys.executable, __file__, "--index", where], capture_output=True, text=True, check=True)
    resident = float(child.stdout)
    tables = server.sql(
        "SELECT pg_total_relation_size('atomic_memory') + pg_total_relation_size('memory_index')", database
    )
    return {
        "index_bytes": entry(
            max(resident, 0.0), "bytes/memory", f"resident memory at the first search of {MEMORIES:,}"
        ),
        "memory_bytes": entry(int(tables) / MEMORIES, "bytes/memory", f"tables of {MEMORIES:,} facts on PostgreSQL"),
    }


async def indexed(where: str) -> float:
    """In a process of its own: what the index of one owner adds to it."""
    async with App.open(where, settings=settings_of(where), work=False) as app:
        await app.recall.warm()
        await app.recall.search("bob", "which box", limit=5)
        before = psutil.Process().memory_info().rss
        await app.recall.search("ann", "which box is at place 17", limit=5)
        return (psutil.Process().memory_info().rss - before) / MEMORIES


def entry(value: float, unit: str, how: str) -> dict[str, Any]:
    date = time.strftime("%Y-%m-%d", time.gmtime())
    return {"value": float(f"{value:.4g}"), "unit": unit, "how": how, "date": date}


PARTS: dict[str, Callable[[Path, Server], Inputs]] = {
    "sqlite": on_sqlite, "postgres": on_postgres, "nginx": behind_nginx, "stored": stored, "jobs": jobs, "index": index,
}  # fmt: skip


def main() -> None:
    """All parts, or those that are named; what the others found before stays."""
    if sys.argv[1:2] == ["--index"]:
        print(asyncio.run(indexed(sys.argv[2])))
        return
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(f"{__doc__}\nParts, all of them by default: {', '.join(PARTS)}")
        return
    if unknown := [name for name in sys.argv[1:] if name not in PARTS]:
        sys.exit(f"measure_capacity: no part named {unknown[0]!r}\nnext: parts are {', '.join(PARTS)}")
    busy, wanted = psutil.getloadavg()[0], sys.argv[1:] or list(PARTS)
    inputs: Inputs = json.loads(OUT.read_text(encoding="utf-8"))["inputs"] if sys.argv[1:] else {}
    inputs["connections"] = entry(POOL, "connections/process", "to PostgreSQL, at most: store/postgres.py")
    with tempfile.TemporaryDirectory() as name, running(durable=True) as server:
        for part in wanted:
            inputs |= PARTS[part](Path(name), server)
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    write({
        "command": "python scripts/measure_capacity.py",
        "machine": f"Python {platform.python_version()}, {system}",
        "others_busy": f"load average {busy:.1f} before it began",
        "inputs": dict(sorted(inputs.items())),
    })  # fmt: skip


def write(made: dict[str, Any]) -> None:
    """The file, and what follows from it in the page."""
    OUT.write_text(json.dumps(made, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    for label, one in made["inputs"].items():
        print(f"{label:28} {one['value']:>12,g} {one['unit']}")
    capacity.main(["--page"])


if __name__ == "__main__":
    main()
