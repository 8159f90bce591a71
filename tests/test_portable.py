"""Point 8 of seed 003: lamina runs where `fcntl`, `pwd`, `O_NONBLOCK` and the like do not exist (Windows, macOS).

No such system is at hand: a real process hides what it would not have. See `bare_system.py`.
"""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.cli.process import Lamina
from tests.gateway.processes import environ, gateway
from tests.telegram.botapi import bot_api
from tests.telegram.bots import process

PROGRAM = str(Path(__file__).parent / "bare_system.py")
LIBRARY = """
import asyncio, sys
from tests.bare_system import hide
hide()
from lamina import App, Settings
from lamina.events import Text
from lamina.providers.scripted import ScriptedProvider

async def main():
    settings = Settings(memory=False, tools=True, workspace=".", mode="agent")
    read = {"call": "read_file", "arguments": {"path": "AGENTS.md"}}
    provider = ScriptedProvider([[read], [{"text": "Hello, Ann."}]])
    async with App.open("app.db", settings=settings, provider=provider) as app:
        session = await app.session("ann")
        async for event in session.ask("Hello"):
            print(event.text, end="|") if hasattr(event, "text") else None
        print()
        print([tool["function"]["name"] for tool in provider.contexts[0].tools])
        print("Be brief." in provider.contexts[0].messages[0]["content"])
asyncio.run(main())
"""


def ask(folder: Path, env: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, PROGRAM, *words]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.fixture
def bare(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    (tmp_path / "AGENTS.md").write_text("Be brief.", encoding="utf-8")
    env = environ(tmp_path, str(tmp_path / "chats.db"), [[{"text": "Hello, Ann."}]])
    return tmp_path, env


def test_I14_lamina_ask_answers_where_fcntl_pwd_and_nonblock_do_not_exist(bare: tuple[Path, dict[str, str]]) -> None:
    folder, env = bare
    said = ask(folder, env, "ask", "Hello")
    assert (said.returncode, said.stdout) == (0, "Hello, Ann.\n"), said.stderr


def test_I14_the_gateway_starts_answers_and_ends_where_they_do_not_exist(bare: tuple[Path, dict[str, str]]) -> None:
    """And a second process is refused the store, also by the portable lock; with a lock that never locks, it is not."""
    folder, env = bare
    with gateway(folder, env, program=(PROGRAM,)) as one:
        (token,) = (folder / ".local/state/lamina").glob("*.token")
        key = token.read_text(encoding="ascii").strip()
        body = json.dumps({"model": "lamina", "messages": [{"role": "user", "content": "Hello"}]}).encode()
        head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{one.url}/v1/chat/completions", body, head)
        with urllib.request.urlopen(request, timeout=30) as reply:
            answer: Any = json.load(reply)
        assert answer["choices"][0]["message"]["content"] == "Hello, Ann."
        refused = ask(folder, env, "ask", "Hello")
        assert refused.returncode == 4, refused.stdout
        assert f"is in use by process {one.process.pid}" in refused.stderr
        planted = ask(folder, env, "plant=open_lock", "ask", "Hello")
        assert "is in use by process" not in planted.stderr, "else this test would not notice a lock that is none"
        one.process.terminate()
        assert one.process.wait(30) == 0, "it ends in order at the first signal"


async def test_I14_the_telegram_bot_answers_and_ends_where_they_do_not_exist(tmp_path: Path) -> None:
    lamina = Lamina(tmp_path)
    lamina.script([{"text": "Hello, Ann."}])
    async with bot_api() as api, process(api, lamina, program=(PROGRAM,)) as bot:
        await bot.until_ready()
        for words in ("Hello", "你好"):
            before = len(api.shown())
            await api.say(words)
            await api.until(lambda before=before: "Hello, Ann." in api.shown()[before:])
        assert await bot.end() == 0, bot.output


def test_I14_the_library_reads_rules_and_files_where_they_do_not_exist(bare: tuple[Path, dict[str, str]]) -> None:
    folder, _ = bare
    root = str(Path(__file__).parent.parent)
    command = [sys.executable, "-c", LIBRARY]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": root}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    text, tools, rules = done.stdout.splitlines()
    assert text.endswith("Be brief.|Hello, Ann.|")
    assert (tools, rules) == ("['read_file', 'web_fetch']", "True"), "no bash, and nothing that writes"
