"""Real gateways: processes of `lamina serve`, on SQLite or several on one PostgreSQL."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
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


@contextmanager
def gateway(folder: Path, env: dict[str, str]) -> Generator[Gateway]:
    """A gateway that answers, ended by SIGTERM unless it is dead already."""
    port = free_port()
    log = folder / f"gateway-{port}.log"
    with log.open("w") as out:
        command = [sys.executable, "-m", "lamina", "serve", "--listen", f"127.0.0.1:{port}", "--no-open"]
        process = subprocess.Popen(command, env=env, cwd=folder, stdout=out, stderr=out, text=True)
    try:
        url, end = f"http://127.0.0.1:{port}", time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{url}/api/health", timeout=5):
                    break
            except (OSError, urllib.error.URLError):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.05)
        yield Gateway(process, url, log)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)
