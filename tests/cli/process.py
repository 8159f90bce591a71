"""`lamina` as a real process over a store of its own, for the tests of the commands that need one."""

import json
import os
import re
import sqlite3
import subprocess
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.forks import afresh, ran
from tests.cli.terminal import Terminal

WITHOUT_RULES = re.compile(r"^(warning: the workspace has no rules|警告：工作区没有规则).*\n", re.MULTILINE)
"""Said once in each session of a folder without rules, as most tests have; those of seed 003 look at it."""


def killed_at_once(store: str) -> None:
    """As if its process had been killed before anything was stored of what it sent, which is a matter of 50 ms."""
    with closing(sqlite3.connect(store)) as db, db:
        assert db.execute("UPDATE turn SET receipt = '{}' WHERE receipt <> '{}'").rowcount == 1


@dataclass(frozen=True, slots=True)
class Lamina:
    """Runs commands in a folder: the store is `chats.db` in it, the user is ann, nothing is looked for by meaning."""

    folder: Path

    @property
    def store(self) -> str:
        return str(self.folder / "chats.db")

    def script(self, *answers: list[dict[str, Any]]) -> None:
        """What the model says from now on, an answer for each request, and then again from the first."""
        (self.folder / "script.json").write_text(json.dumps(answers), encoding="utf-8")

    def environ(self, **more: str) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("LAMINA_", "LC_", "LANG"))}
        own = {"LAMINA_STORE": self.store, "LAMINA_USER": "ann", "LAMINA_EMBEDDER": "none"}
        own["LAMINA_MEMORY_DEADLINE"] = "5000"  # a loaded machine needs longer than the default 150 ms
        if (self.folder / "script.json").exists():
            own |= {"LAMINA_PROVIDER": "scripted", "LAMINA_SCRIPT": str(self.folder / "script.json")}
        return {**clean, **own, "XDG_STATE_HOME": str(self.folder / "state"), "COLUMNS": "140", **more}

    def terminal(
        self, *arguments: str, width: int = 100, environ: Mapping[str, str] | None = None, fresh: bool = False
    ) -> Terminal:
        """The same on a terminal that can be typed into and looked at."""
        return Terminal(
            list(arguments),
            {**self.environ(), "TERM": "xterm-256color", **(environ or {})},
            self.folder,
            width=width,
            fresh=fresh,
        )

    def run(self, *arguments: str, given: str | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        return ran(arguments, self.folder, self.environ(**more), afresh(more), given=given)

    def __call__(self, *arguments: str, given: str | None = None, **more: str) -> str:
        """What it prints, when all goes well."""
        done = self.run(*arguments, given=given, **more)
        assert (done.returncode, WITHOUT_RULES.sub("", done.stderr)) == (0, ""), done
        return done.stdout

    def json(self, *arguments: str, **more: str) -> Any:
        return json.loads(self(*arguments, "--json", **more))

    def error(self, *arguments: str, given: str | None = None, code: int = 2, **more: str) -> str:
        """What it complains about, in two lines and without a traceback."""
        done = self.run(*arguments, given=given, **more)
        assert done.returncode == code, done
        assert "Traceback" not in done.stderr
        said = WITHOUT_RULES.sub("", done.stderr)
        assert len(said.strip().split("\n")) <= 2, done.stderr
        return said
