"""Real gateways: processes of `lamina serve`, on SQLite or several on one PostgreSQL."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gateway.serving import free_port


@dataclass
class Gateway:
    process: "subprocess.Popen[str]"
    url: str
    log: Path


def environ(folder: Path, store: str, script: Any) -> dict[str, str]:
    (folder / "script.json").write_text(json.dumps(script), encoding="utf-8")
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {
        **kept, "HOME": str(folder), "LAMINA_STORE": store, "LAMINA_PROVIDER": "scripted", "LAMINA_USER": "ann",
        "LAMINA_SCRIPT": str(folder / "script.json"), "LAMINA_EMBEDDER": "none",
    }  # fmt: skip


def new_key(folder: Path, env: dict[str, str], *more: str) -> str:
    command = [sys.executable, "-m", "lamina", "keys", "new", "--name", "test", "--json", *more]
    made = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(made.stdout)["key"]


def begun(folder: Path, env: dict[str, str], port: int = 0, program: Sequence[str] = ("-m", "lamina")) -> Gateway:
    """A gateway that is about to answer; its log goes on where an earlier one at the same port ended. Another program
    than lamina is lamina with a planted bug."""
    port = port or free_port()
    log = folder / f"gateway-{port}.log"
    with log.open("a") as out:
        command = [sys.executable, *program, "serve", "--listen", f"127.0.0.1:{port}", "--no-open"]
        process = subprocess.Popen(command, env=env, cwd=folder, stdout=out, stderr=out, text=True)
    return Gateway(process, f"http://127.0.0.1:{port}", log)


def answers(one: Gateway) -> None:
    """Returns when it does."""
    end = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"{one.url}/api/health", timeout=5):
                return
        except (OSError, urllib.error.URLError):
            assert one.process.poll() is None, one.log.read_text()
            assert time.monotonic() < end, one.log.read_text()
            time.sleep(0.05)


@contextmanager
def gateway(folder: Path, env: dict[str, str], program: Sequence[str] = ("-m", "lamina")) -> Generator[Gateway]:
    """A gateway that answers, ended by SIGTERM unless it is dead already."""
    one = begun(folder, env, program=program)
    try:
        answers(one)
        yield one
    finally:
        if one.process.poll() is None:
            one.process.terminate()
        one.process.wait(60)
