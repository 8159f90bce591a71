"""lamina as a gateway that stores every message durably, beside LiteLLM's proxy and a pass-through that keep none.

One after another, each in a process of its own, before the same upstream, under the same load from a third process.
"""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.measure import ROOT, Figure, Section, Verdict, duration, high, low, ratio, say, table, timed, versions
from bench.plot import Bar, Bars, Group, Kind

CONCURRENT = (1, 16, 64)
SECONDS = 4.0
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How does it go on? 怎么样？"},
    ],
}
MORE, PEER, NEAR = 6e-3, 20.0, 3.0
"""To reach: seconds added at p50 by one client alone; LiteLLM's requests a second times this, at 16 and 64; the
pass-through's divided by this."""
PROXY = ROOT / ".venv-proxy" / "bin" / "litellm"
Found = dict[tuple[str, bool, int], tuple[float, float, int]]
"""By system, streamed or not, and clients at once: requests a second, p50, failures."""


def run() -> Section:
    found: Found = {}
    with tempfile.TemporaryDirectory() as folder, _upstream() as upstream:
        for system, start in SYSTEMS.items():
            with start(Path(folder), upstream) as (port, key):
                for streamed in (False, True):
                    for clients in CONCURRENT:
                        say(f"gateway: {system}, {'streaming' if streamed else 'plain'}, {clients} at once")
                        found[system, streamed, clients] = _load(port, key, streamed, clients)
    proxy = versions("litellm", folders=ROOT.glob(".venv-proxy/lib/python3*/site-packages"))
    packages = versions("starlette", "uvicorn", "aiohttp") | proxy
    missing = () if "LiteLLM" in SYSTEMS else ("LiteLLM's proxy (no .venv-proxy)",)
    return Section("The gateway", _text(found), _figures(found), verdicts(found), plot(found), packages, missing)


def _kind(streamed: bool) -> str:
    return "streaming" if streamed else "plain"


def _figures(found: Found) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for streamed in (False, True):
        kind = _kind(streamed)
        for clients in CONCURRENT:
            ours, bare = found["lamina", streamed, clients], found["pass-through", streamed, clients]
            name = f"requests a second, {kind}, {clients}"
            figures[f"pass-through/lamina {name}"] = low(bare[0] / max(ours[0], 0.1), 1.5)
            if peer := found.get(("LiteLLM", streamed, clients)):
                figures[f"lamina/LiteLLM {name}"] = high(ours[0] / max(peer[0], 0.1), 1.5)
        added = found["lamina", streamed, 1][1] - found["pass-through", streamed, 1][1]
        figures[f"added p50/6 ms, {kind}, 1"] = timed(max(1e-6, added) / MORE)
    return figures


def verdicts(found: Found) -> tuple[Verdict, ...]:
    """For plain requests and streamed ones: the worse of 16 and 64 clients, and what one client waits longer."""
    given: list[Verdict] = []
    for streamed in (False, True):
        kind = _kind(streamed)
        for peer, goal, wanted in (("LiteLLM", PEER, f"{PEER:g}×"), ("pass-through", 1 / NEAR, f"1/{NEAR:g} of it")):
            rates = [
                (found["lamina", streamed, many][0] / max(found[peer, streamed, many][0], 0.1), many)
                for many in CONCURRENT[1:]
                if (peer, streamed, many) in found
            ]
            if rates:
                times, many = min(rates)
                ours, theirs = (found[system, streamed, many][0] for system in ("lamina", peer))
                measured = f"{kind} requests a second, {many} clients, beside {peer}"
                given.append(Verdict(measured, f"{ours:,.0f}", f"{theirs:,.0f}, {peer}", ratio(times), wanted,
                                     times / goal))  # fmt: skip
        (_, ours, _), (_, bare, _) = (found[system, streamed, 1] for system in ("lamina", "pass-through"))
        added = max(1e-6, ours - bare)
        given.append(Verdict(f"one client's {kind} request beyond the pass-through, p50", duration(added),
                             f"{duration(bare)}, pass-through", "", duration(MORE), MORE / added))  # fmt: skip
    return tuple(given)


def plot(found: Found) -> Bars:
    kinds: dict[str, Kind] = {"pass-through": "yardstick", "LiteLLM": "peer"}
    groups: list[Group] = []
    for streamed in (False, True):
        for clients in CONCURRENT:
            rates = {s: found[s, streamed, clients][0] for s in SYSTEMS if (s, streamed, clients) in found}
            bars = (Bar(system, rate, f"{rate:,.0f}", kinds.get(system, "own")) for system, rate in rates.items())
            many = "1 client" if clients == 1 else f"{clients} clients"
            groups.append(Group(f"{_kind(streamed)}, {many}", tuple(bars)))
    return Bars("Requests a second through a gateway", "requests a second", tuple(groups), log=True)


def _text(found: Found) -> str:
    rows: list[list[str]] = []
    for streamed in (False, True):
        for clients in CONCURRENT:
            bare = found["pass-through", streamed, clients]
            for system in SYSTEMS:
                if (system, streamed, clients) not in found:
                    continue
                rate, p50, failed = found[system, streamed, clients]
                rows.append([
                    "20 chunks" if streamed else "plain", str(clients), system, f"{rate:,.0f}", duration(p50),
                    f"{bare[0] / max(rate, 0.1):.1f}×", duration(max(0.0, p50 - bare[1])), str(failed or "–"),
                ])  # fmt: skip
    return (
        f"{SECONDS:g} seconds of closed-loop load each; upstream, system and load share two cores. lamina "
        "stores question, answer, usage, receipt and job of every request durably (SQLite, `synchronous=FULL`, group "
        "commit, memory and its background work on, and once off) and assembles the request with its layers; the two "
        f"others store nothing. To reach: {PEER:g} times LiteLLM's requests a second at 16 and 64, no less than a "
        f"third of the pass-through's, at most {duration(MORE)} more than it at p50 with one client.\n\n"
    ) + table(["", "at once", "", "requests/s", "p50", "slower than the pass-through", "added at p50", "failed"], rows)


@contextmanager
def _process(arguments: list[str], environ: dict[str, str], port: int, path: str, folder: Path) -> Generator[None]:
    log = folder / "server.log"
    with log.open("w") as out:
        child = subprocess.Popen(
            arguments, env={**os.environ, **environ}, stdout=out, stderr=out, cwd=ROOT, start_new_session=True
        )
    try:
        _wait(child, port, path, log)
        yield
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _wait(child: "subprocess.Popen[bytes]", port: int, path: str, log: Path) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end and child.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as sock:
                sock.settimeout(5)
                sock.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n".encode())
                if sock.recv(16).startswith(b"HTTP/1.1"):
                    return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"a server did not start:\n{log.read_text()[-2_000:]}")


def _port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@contextmanager
def _upstream() -> Generator[str]:
    port = _port()
    with tempfile.TemporaryDirectory() as folder:
        arguments = [sys.executable, "-m", "bench.servers.upstream", str(port)]
        with _process(arguments, {}, port, "/", Path(folder)):
            yield f"http://127.0.0.1:{port}"


@contextmanager
def _passing(folder: Path, upstream: str) -> Generator[tuple[int, str]]:
    port = _port()
    with _process([sys.executable, "-m", "bench.servers.passing", str(port), upstream], {}, port, "/", folder):
        yield port, ""


@contextmanager
def _lamina(folder: Path, upstream: str, memory: str = "on") -> Generator[tuple[int, str]]:
    port, command = _port(), [sys.executable, "-m", "lamina"]
    environ = {
        "LAMINA_STORE": str(folder / f"memory-{memory}.db"), "LAMINA_MEMORY": memory, "LAMINA_PROVIDER": "openai",
        "LAMINA_MODEL": "m",
        "LAMINA_BASE_URL": f"{upstream}/v1", "LAMINA_API_KEY": "k", "LAMINA_USER": "ann",
        "XDG_STATE_HOME": str(folder), "OPENBLAS_NUM_THREADS": "1",
    }  # fmt: skip
    made = subprocess.run(
        [*command, "keys", "new", "--name", "bench", "--json"], env={**os.environ, **environ}, capture_output=True,
        text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    arguments = [*command, "serve", "--listen", f"127.0.0.1:{port}", "--no-open", "--log", "off"]
    with _process(arguments, environ, port, "/api/health", folder):
        yield port, json.loads(made.stdout)["key"]


@contextmanager
def _litellm(folder: Path, upstream: str) -> Generator[tuple[int, str]]:
    port, config = _port(), folder / "litellm.yaml"
    params = {"model": "openai/m", "api_base": f"{upstream}/v1", "api_key": "k"}
    settings = {"general_settings": {"master_key": "sk-bench"}, "litellm_settings": {"telemetry": False}}
    config.write_text(json.dumps({"model_list": [{"model_name": "m", "litellm_params": params}], **settings}))
    arguments = [str(PROXY), "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    environ = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_DOCS": "True"}
    with _process(arguments, environ, port, "/health/liveliness", folder):
        yield port, "sk-bench"


SYSTEMS = {
    "pass-through": _passing,
    "lamina": _lamina,
    "lamina, memory off": partial(_lamina, memory="off"),
    **({"LiteLLM": _litellm} if PROXY.exists() else {}),
}


def _load(port: int, key: str, streamed: bool, clients: int) -> tuple[float, float, int]:
    """From a process of its own."""
    arguments = [sys.executable, "-m", "bench.gateway", str(port), key, str(int(streamed)), str(clients)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=ROOT)
    rate, p50, failed = json.loads(done.stdout)
    return rate, p50, failed


LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


async def _client(port: int, request: bytes, end: float, taken: list[float], failed: list[int]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    while time.perf_counter() < end:
        begin = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        found = LENGTH.search(head)
        body = await reader.readexactly(int(found[1])) if found else await _chunked(reader)
        taken.append(time.perf_counter() - begin)
        if not head.startswith(b"HTTP/1.1 200") or b"word19" not in body:
            failed.append(1)
    writer.close()


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    pieces: list[bytes] = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        pieces.append(await reader.readexactly(size + 2))
    await reader.readexactly(2)
    return b"".join(pieces)


async def _drive(port: int, key: str, streamed: bool, clients: int) -> tuple[float, float, int]:
    body = json.dumps({**BODY, "stream": streamed}).encode()
    headers = f"host: 127.0.0.1:{port}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    headers += f"authorization: Bearer {key}\r\n" if key else ""
    request = f"POST /v1/chat/completions HTTP/1.1\r\n{headers}\r\n".encode() + body
    taken: list[float] = []
    failed: list[int] = []
    for seconds in (1.0, SECONDS):  # once to warm up
        taken.clear()
        failed.clear()
        begin = time.perf_counter()
        await asyncio.gather(*(_client(port, request, begin + seconds, taken, failed) for _ in range(clients)))
        lasted = time.perf_counter() - begin
    return len(taken) / lasted, median(taken), len(failed)


if __name__ == "__main__":
    _port_of, _key, _streamed, _clients = sys.argv[1:]
    print(json.dumps(asyncio.run(_drive(int(_port_of), _key, _streamed == "1", int(_clients)))))
