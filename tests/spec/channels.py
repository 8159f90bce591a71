"""The same conversation through every channel: `App`, `lamina ask`, the gateway's HTTP API and the Telegram bot.

`talking(channel, folder, …)` opens a channel over the store of the folder; `say` sends one message of the session and
tells what was sent to the model, what the person was shown beside the answer, and what was logged. Opened twice over
the same folder, it is another process that goes on with the same session.
"""

import itertools
import json
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lamina import App
from lamina.app.follow import requests_of
from lamina.providers.scripted import ScriptedProvider
from lamina.types import Ended, Notice, Receipt, TurnEvent
from tests.cli.process import Lamina
from tests.engine.chats import settings
from tests.gateway.serving import Site, running
from tests.telegram.botapi import BotApi, bot_api
from tests.telegram.bots import ANN, Bot, bot

FIRST_UPDATES = itertools.count(1_000, 1_000)
"""Telegram never gives the same number to two updates, also after a restart of the bot."""
SCRIPT: Sequence[Sequence[Mapping[str, Any]]] = [[{"text": "fine"}]]


@dataclass(frozen=True, slots=True)
class Said:
    """What came of one message."""

    request: Mapping[str, Any] | None
    """What was sent to the model; None when nothing was."""
    triggers: tuple[str, ...]
    """Of the stored receipt."""
    shown: str
    """What the person saw beside the answer: warnings and errors."""
    log: Sequence[tuple[str, str]]
    """Level and message, in order."""
    failed: bool

    @property
    def system(self) -> str:
        assert self.request, self.shown
        return "\n".join(m["content"] for m in self.request["messages"] if m["role"] == "system")

    @property
    def newest(self) -> str:
        """The user's message, with what stands before the words."""
        assert self.request, self.shown
        return str(self.request["messages"][-1]["content"])

    def logged(self, level: str, words: str) -> int:
        return sum(level == each and words in message for each, message in self.log)


class Talk(Protocol):
    async def say(self, words: str) -> Said: ...
    async def counters(self) -> Mapping[str, int]: ...


class _Lines(logging.Handler):
    """The log of lamina in this process."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "lamina.injection":
            self.lines.append((record.levelname, record.getMessage()))


@asynccontextmanager
async def _logging() -> AsyncGenerator[_Lines, None]:
    handler, logger = _Lines(), logging.getLogger("lamina")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@dataclass(slots=True)
class _Inside:
    """A channel in this process: what it shares is the app and its script."""

    app: App
    log: _Lines
    owner: str
    sent: int = 0

    async def _said(self, session_id: str, shown: str, failed: bool) -> Said:
        turn = (await self.app.store.turns.list(self.owner, session_id))[-1]
        receipts = await requests_of(self.app.store, self.owner, turn)
        lines, self.log.lines = self.log.lines, []
        return _of(receipts, shown, lines, failed)

    async def counters(self) -> Mapping[str, int]:
        (session,) = await self.app.store.sessions.list(self.owner)
        return session.injection["counters"]


def _of(receipts: Sequence[Receipt], shown: str, log: Sequence[tuple[str, str]], failed: bool) -> Said:
    last = receipts[-1] if receipts else None
    return Said(json.loads(last.payload) if last else None, last.triggers if last else (), shown, tuple(log), failed)


@dataclass(slots=True)
class InApp(_Inside):
    async def say(self, words: str) -> Said:
        found = await self.app.store.sessions.list(self.owner)
        session = found[0] if found else await self.app.new_session(self.owner)
        events: list[TurnEvent] = [event async for event in self.app.run(self.owner, session.session_id, words)]
        ended = events[-1]
        assert isinstance(ended, Ended)
        shown = [event.text for event in events if isinstance(event, Notice)] + [ended.error.text(), ended.hint.text()]
        return await self._said(session.session_id, "\n".join(shown), ended.state == "failed")


@dataclass(slots=True)
class OverHttp(_Inside):
    site: Site = field(kw_only=True)

    async def say(self, words: str) -> Said:
        found = (await self.site.get("/api/sessions")).json["sessions"]
        session = found[0] if found else (await self.site.post("/api/sessions", {})).json
        path, wish = f"/api/sessions/{session['session_id']}/messages", {"Accept": "text/event-stream"}
        streamed = await self.site.post(path, {"content": words}, headers=wish)
        ended = (await self.site.get(f"/api/turns/{streamed.headers['x-lamina-turn']}")).json
        shown = f"{streamed.raw.decode()}\n{ended['error']}\n{ended['hint']}"
        return await self._said(session["session_id"], shown, ended["state"] == "failed")


@dataclass(slots=True)
class InTelegram(_Inside):
    api: BotApi = field(kw_only=True)

    async def say(self, words: str) -> Said:
        before = len(self.api.shown())
        await self.api.say(words)
        await self.api.until(lambda: any(_is_end(text) for text in self.api.shown()[before:]))
        shown = self.api.shown()[before:]
        (session,) = await self.app.store.sessions.list(self.owner)
        failed = any("The answer failed" in text for text in shown)
        return await self._said(session.session_id, "\n".join(text for text in shown if text != "fine"), failed)


def _is_end(text: str) -> bool:
    return text == "fine" or "The answer failed" in text


@dataclass(slots=True)
class InShell:
    """Each message is a process of its own."""

    lamina: Lamina
    changes: Mapping[str, Any]
    turns: int = 0

    async def say(self, words: str) -> Said:
        named = ("--session", "last") if Path(self.lamina.store).exists() else ()
        variables = {f"LAMINA_{name.upper()}": _written(value) for name, value in self.changes.items()}
        done = self.lamina.run("ask", words, *named, "--verbose", LAMINA_MEMORY="off", **variables)
        lines = done.stderr.splitlines()
        log = [tuple(line.split(" ", 1)) for line in lines if line.split(" ")[0] in ("INFO", "WARNING", "ERROR")]
        shown = "\n".join(line for line in lines if line.split(" ")[0] not in ("INFO", "WARNING", "ERROR"))
        receipts = await self.look()
        return _of(receipts, shown, [(level, message) for level, message in log], done.returncode != 0)

    async def look(self) -> list[Receipt]:
        """The requests of the turn that is new since the last look."""
        if not Path(self.lamina.store).exists():
            return []
        async with App.open(self.lamina.store, settings=settings(), work=False, index=False) as app:
            found = await app.store.sessions.list("ann")
            turns = await app.store.turns.list("ann", found[0].session_id) if found else []
            new, self.turns = len(turns) > self.turns, len(turns)
            return await requests_of(app.store, "ann", turns[-1]) if new else []

    async def counters(self) -> Mapping[str, int]:
        async with App.open(self.lamina.store, settings=settings(), work=False, index=False) as app:
            return (await app.store.sessions.list("ann"))[0].injection["counters"]


def _written(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


@asynccontextmanager
async def talking(
    channel: str, folder: Path, script: Sequence[Sequence[Mapping[str, Any]]] = SCRIPT, *,
    window: int | None = None, **changes: Any,
) -> AsyncGenerator[Talk, None]:  # fmt: skip
    """A channel over the folder's store; the workspace is the folder `work` in it, unless `workspace` is empty."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    changes = {"workspace": str(work), **changes}
    where = str(folder / "chats.db")
    if channel == "ask":
        lamina = Lamina(folder)
        lamina.script(*(list(map(dict, answer)) for answer in script))
        made = InShell(lamina, {name: value for name, value in changes.items() if value != ""})
        await made.look()
        yield made
        return
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(_logging())
        if channel == "telegram":
            api = await stack.enter_async_context(bot_api(next(FIRST_UPDATES)))
            found: Bot = await stack.enter_async_context(bot(api, where, script, **changes))
            yield InTelegram(found.app, log, f"telegram:{ANN}", api=api)
            return
        provider = ScriptedProvider(script, window=window, repeat=True)
        if channel == "gateway":
            site = await stack.enter_async_context(
                running(where, provider=provider, settings=settings(user="ann", **changes))
            )
            yield OverHttp(site.app, log, "ann", site=site)
            return
        app = await stack.enter_async_context(
            App.open(where, settings=settings(**changes), provider=provider, work=False)
        )
        yield InApp(app, log, "ann")


def rules(folder: Path, text: str | None, name: str = ".lamina/rules.md") -> Path:
    """The rules of the workspace; None removes them."""
    path = folder / "work" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if text is None:
        path.unlink()
    else:
        path.write_text(text, encoding="utf-8")
    return path
