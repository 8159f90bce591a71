"""`lamina serve` as a process of its own over a new store, and a browser that looks at it."""

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.forks import Forked

Answer = list[dict[str, Any]]
CHROMIUM = os.environ.get("LAMINA_CHROMIUM", "/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


@dataclass(frozen=True, slots=True)
class Site:
    """A gateway that runs: where it is, and the token that it printed."""

    url: str
    token: str
    folder: Path
    process: Forked

    @property
    def door(self) -> str:
        """The address that opens the page signed in."""
        return f"{self.url}/?token={self.token}"

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One request with the key; the value of its reply."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                raw = reply.read()
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from None
        return json.loads(raw) if raw else None

    def end(self) -> None:
        """As a service manager does it."""
        self.process.terminate()
        self.process.wait(20)

    def said(self, words: str, session_id: str = "") -> tuple[str, str]:
        """A question that is asked and answered; the ids of its session and its turn."""
        session_id = session_id or self.ask("POST", "/api/sessions", {})["session_id"]
        turn = self.ask("POST", f"/api/sessions/{session_id}/messages", {"content": words})["turn_id"]
        request = urllib.request.Request(
            f"{self.url}/api/turns/{turn}/events", headers={"Authorization": f"Bearer {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=30) as reply:
            reply.read()
        return session_id, turn


@contextmanager
def serving(
    folder: Path, script: Sequence[Answer], *, environ: Mapping[str, str] | None = None, port: int = 0
) -> Generator[Site, None, None]:
    """A gateway over the store in this folder; the script is played answer by answer and then again."""
    (folder / "script.json").write_text(json.dumps(script), encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LAMINA_", "LC_", "LANG"))}
    own = {
        "LAMINA_STORE": str(folder / "chats.db"), "LAMINA_USER": "ann", "LAMINA_EMBEDDER": "none",
        "LAMINA_PROVIDER": "scripted", "LAMINA_SCRIPT": str(folder / "script.json"),
        "XDG_STATE_HOME": str(folder / "state"), **(environ or {}),
    }  # fmt: skip
    command = ["serve", "--listen", f"127.0.0.1:{port}", "--no-open", "--log", "off"]
    told, tells = os.pipe()
    with (folder / "serve.log").open("w", encoding="utf-8") as log, open(os.devnull) as nothing:
        process = Forked(command, (nothing.fileno(), tells, log.fileno()), folder, {**clean, **own})
    os.close(tells)
    with open(told, encoding="utf-8") as says:
        try:
            printed = ""
            for line in says:
                printed += line
                if found := re.search(r"(http://127\.0\.0\.1:\d+)/\?token=(\S+)", line):
                    yield Site(found[1], found[2], folder, process)
                    break
            else:
                raise AssertionError(f"it did not start: {printed}{(folder / 'serve.log').read_text()}")
        finally:
            process.terminate()
            process.wait(20)
