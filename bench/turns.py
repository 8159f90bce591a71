"""What a turn of the engine costs beside the provider alone: durable, with its receipt, on a real SQLite file."""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from bench.measure import FLAT, Figure, Section, Verdict, chat, duration, low, ratio, say, table, timed, versions
from bench.plot import Bar, Bars, Group
from lamina import App
from lamina.providers.scripted import ScriptedProvider
from lamina.settings import load_settings
from lamina.types import Context, Event, Text

TURNS, WARM = 300, 30
MESSAGES = (20, 1_000, 100_000)
OVERHEAD, FIRST = 5e-3, 2e-3
"""To reach: seconds of a turn beyond its provider, two synced commits included, and until the first text is shown."""
SCRIPT: list[list[dict[str, Any]]] = [
    [*({"text": f"word {n} "} for n in range(20)), {"usage": [500, 400, 20]}, {"done": "stop"}]
]
SLOW: list[list[dict[str, Any]]] = [[{"text": "first "}, {"delay": 0.03}, {"text": "second"}]]


class Timed(ScriptedProvider):
    """Notes when its first text left it."""

    left = 0.0

    def stream(self, context: Context, *, max_tokens: int | None = None, options: Any = None) -> AsyncGenerator[Event]:
        return self._timed(super().stream(context, max_tokens=max_tokens))

    async def _timed(self, stream: AsyncGenerator[Event]) -> AsyncGenerator[Event]:
        self.left = 0.0
        async with aclosing(stream) as events:
            async for event in events:
                self.left = self.left or time.perf_counter()
                yield event


def run() -> Section:
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(_measure(Path(folder)))
    return Section("A turn", _text(found), _figures(found), _verdicts(found), plot(found), versions())


def _figures(found: dict[str, Any]) -> dict[str, Figure]:
    young, short, long = found["turns"]
    return {
        "overhead p50/5 ms, 20 messages": timed(young[0] / OVERHEAD, 1.5),
        "overhead p50/5 ms, a full window": timed(short[0] / OVERHEAD, 1.5),
        "first text p50/2 ms": timed(found["first"] / FIRST),
        "first text without its sync/2 ms": timed(max(1e-5, found["first"] - found["sync"]) / FIRST),
        "100,000 messages/1,000": low(long[0] / short[0]),
    }


def _verdicts(found: dict[str, Any]) -> tuple[Verdict, ...]:
    (young, _), (short, _), (long, _) = found["turns"]
    first, flat, alone = found["first"], long / short, f"{duration(found['alone'])}, the provider alone"
    return (
        Verdict(f"a turn beyond its provider, {MESSAGES[0]} messages, p50", duration(young), alone, "",
                duration(OVERHEAD), OVERHEAD / young),
        Verdict("the same with a full window", duration(short), alone, "", duration(OVERHEAD), OVERHEAD / short),
        Verdict("100,000 messages in a session beside 1,000", ratio(flat), "", "", f"flat: {FLAT}×", FLAT / flat),
        Verdict("the first text, from coming to being shown, p50", duration(first), "", "", duration(FIRST),
                FIRST / first),
    )  # fmt: skip


def plot(found: dict[str, Any]) -> Bars:
    bars = [Bar("provider alone", found["alone"], duration(found["alone"]), "yardstick")]
    for count, (p50, _) in zip(MESSAGES, found["turns"], strict=True):
        bars.append(Bar(f"a turn more, {count:,} messages", p50, duration(p50), "own", OVERHEAD))
    bars.append(Bar("first text shown", found["first"], duration(found["first"]), "own", FIRST))
    return Bars("What a durable turn costs beyond its provider", "wall time at p50", (Group("", tuple(bars)),),
                log=True, unit="s")  # fmt: skip


def _text(found: dict[str, Any]) -> str:
    rows = [["provider alone", duration(found["alone"]), "", "", ""]]
    for count, (p50, p95) in zip(MESSAGES, found["turns"], strict=True):
        whole = p50 + found["alone"]
        name, times = f"a turn in a session of {count:,} messages", f"{whole / found['alone']:,.0f}×"
        rows.append([name, duration(whole), times, duration(p50), duration(p95)])
    return (
        f"A scripted provider without delay answers 20 pieces of text, {TURNS} turns one by one: consumed alone, "
        "and through the engine with everything that belongs to a turn (question committed, layers gathered, a window "
        "of at most 8,000 tokens, about 140 of these messages, assembled with its receipt, answer, usage, receipt, "
        "texts and jobs committed; SQLite, `synchronous=FULL`, memory off). To reach: at most 5 ms more at the median, "
        f"two synced commits included; one bare sync took {duration(found['sync'])} then. The first text of an answer "
        f"that then goes on is shown {duration(found['first'])} after it came, stored before (to reach: 2 ms; it "
        f"waits for one synced commit), p95 {duration(found['first95'])}.\n\n"
        + table(["", "p50", "", "more than alone, p50", "p95"], rows)
    )


async def _measure(folder: Path) -> dict[str, Any]:
    settings = replace(load_settings(environ={}), memory=False)
    turns: list[tuple[float, float]] = []
    alone = first = first95 = 0.0
    for count in MESSAGES:
        say(f"turns: a session of {count:,} messages")
        provider = ScriptedProvider(SCRIPT, repeat=True)
        async with App.open(os.fspath(folder / f"{count}.db"), settings=settings, provider=provider, work=False) as app:
            session = (await app.new_session("ann")).session_id
            messages = chat(min(count, 1_000))
            for _ in range(count // len(messages)):
                await app.store.messages.append("ann", session, messages)
            alone = alone or await _alone(app, provider, session)
            taken = await _turns(app, session, fresh=count == MESSAGES[0])
            turns.append((median(taken) - alone, sorted(taken)[int(len(taken) * 0.95)] - alone))
    timed = Timed(SLOW, repeat=True)
    async with App.open(os.fspath(folder / "first.db"), settings=settings, provider=timed, work=False) as app:
        session = (await app.new_session("ann")).session_id
        shown = [await _first(app, timed, session) for _ in range(TURNS // 3)]
        first, first95 = median(shown), sorted(shown)[int(len(shown) * 0.95)]
    return {"alone": alone, "turns": turns, "first": first, "first95": first95, "sync": _sync(folder / "sync")}


async def _alone(app: App, provider: ScriptedProvider, session: str) -> float:
    context = await app.context("ann", session, "How does it go on?")
    taken: list[float] = []
    for _ in range(TURNS):
        begin = time.perf_counter()
        async with aclosing(provider.stream(context)) as events:
            async for _ in events:
                pass
        taken.append(time.perf_counter() - begin)
    return median(taken)


async def _turns(app: App, session: str, *, fresh: bool) -> list[float]:
    """With `fresh` every fifth turn goes on in a new session, so that it stays a short one."""
    taken: list[float] = []
    for number in range(WARM + TURNS):
        if fresh and number % 5 == 0:
            session = (await app.new_session("ann")).session_id
            await app.store.messages.append("ann", session, chat(MESSAGES[0]))
        begin = time.perf_counter()
        async for _ in app.run("ann", session, "How does it go on?"):
            pass
        taken.append(time.perf_counter() - begin)
    return taken[WARM:]


async def _first(app: App, provider: Timed, session: str) -> float:
    shown = 0.0
    async for event in app.run("ann", session, "How does it go on?"):
        if isinstance(event, Text) and not shown:
            shown = time.perf_counter() - provider.left
    return shown


def _sync(path: Path) -> float:
    taken: list[float] = []
    with path.open("wb", buffering=0) as file:
        for _ in range(100):
            file.write(b"x" * 4_096)
            begin = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - begin)
    return median(taken)
