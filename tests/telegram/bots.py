"""Bots for the tests: in this process with a script for a model, or as a real `lamina telegram`."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lamina import App
from lamina.providers.scripted import ScriptedProvider
from lamina.telegram.bot import run_bot
from lamina.telegram.checks import Webhook
from lamina.types import Key
from tests.cli.process import Lamina
from tests.engine.chats import Script, settings
from tests.telegram.botapi import TOKEN, BotApi

ANN, BOB, EVE = 7, 8, 9
QUICK = 0.02
"""Of Telegram's pace: what waits a second there waits twenty milliseconds here."""
WORK = Path(__file__).parent / "work"
"""A workspace with rules: without any, each session is told so before its first answer."""
PNG = b"\x89PNG\r\n\x1a\n" + bytes(8) + b"\0\0\0\x10\0\0\0\x10" + b"canary"


def hello(*answers: str) -> Script:
    return [[{"text": answer}] for answer in answers]


@dataclass(frozen=True, slots=True)
class Bot:
    """A bot that runs, and what it runs on."""

    api: BotApi
    app: App
    provider: ScriptedProvider


@asynccontextmanager
async def bot(
    api: BotApi, where: str, script: Script, *, webhook: Webhook | None = None, pace: float = QUICK,
    **changes: Any,
) -> AsyncGenerator[Bot, None]:  # fmt: skip
    """Ann and Bob may talk to it."""
    own = {"telegram_token": Key(TOKEN), "telegram_allow": (ANN, BOB), "telegram_api": api.base, "workspace": str(WORK)}
    kept = settings(**{**own, **changes})
    provider = ScriptedProvider(script, repeat=True)
    stop, ready = asyncio.Event(), asyncio.Event()
    async with App.open(where, settings=kept, provider=provider, work=kept.memory) as app:
        running = asyncio.create_task(
            run_bot(app, stop, webhook=webhook, ready=lambda name: ready.set(), pace=pace)
        )  # fmt: skip
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        try:
            if not running.done():
                yield Bot(api, app, provider)
        finally:
            stop.set()
            async with asyncio.timeout(30):
                await running


@dataclass(slots=True)
class Process:
    """A real `lamina telegram`."""

    child: asyncio.subprocess.Process
    output: str = ""

    async def until_ready(self) -> None:
        async with asyncio.timeout(60):
            assert self.child.stderr
            while "Ctrl-C" not in self.output:
                line = await self.child.stderr.readline()
                assert line, self.output
                self.output += line.decode()

    async def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        with suppress(ProcessLookupError):
            self.child.send_signal(how)
        async with asyncio.timeout(30):
            _, rest = await self.child.communicate()
        self.output += rest.decode()
        return self.child.returncode or 0


@asynccontextmanager
async def process(
    api: BotApi, lamina: Lamina, *arguments: str, program: Sequence[str] = ("-m", "lamina"), **more: str
) -> AsyncGenerator[Process, None]:
    environ = lamina.environ(
        LAMINA_TELEGRAM_TOKEN=TOKEN, LAMINA_TELEGRAM_ALLOW="7, 8", LAMINA_TELEGRAM_API=api.base, LAMINA_MEMORY="off",
        **more,
    )  # fmt: skip
    (lamina.folder / "AGENTS.md").write_text("Answer briefly.\n", encoding="utf-8")
    child = await asyncio.create_subprocess_exec(
        sys.executable, *program, "telegram", *arguments, cwd=lamina.folder, env=environ,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    made = Process(child)
    try:
        yield made
    finally:
        if child.returncode is None:
            await made.end(signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def rules_in(folder: Path, text: str) -> str:
    """A workspace with rules."""
    (folder / ".lamina").mkdir(parents=True, exist_ok=True)
    (folder / ".lamina" / "rules.md").write_text(text, encoding="utf-8")
    return os.fspath(folder)
