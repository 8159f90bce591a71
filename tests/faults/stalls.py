"""How long one user's text keeps everybody else waiting: a probe on the event loop of a real App, and the texts.

A stall counts by the processor time that this process took during it: a machine that is busy with something else makes
no stall of ours. `planted` is a bug of the test's own, a quadratic pattern in place of one of lamina's.
"""

import asyncio
import gc
import re
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from lamina import App
from lamina.assembly import fences
from lamina.providers.scripted import ScriptedProvider, Step
from tests.faults.chats import chat_settings

TICK_S = 0.002
BOUND_S = 0.05
"""What a bystander may wait."""
ENGLISH = "I moved to Berlin on 2024-05-06 and I like it. Please write a plan, e.g. for src/app.py; can you? Thanks! "
CHINESE = "我今天去了北京，买了三本书。请帮我写一个计划，我喜欢喝茶！明天是星期五吗？其实我还没决定。"


class Probe:
    """Wakes every two milliseconds and notes how late it was."""

    def __init__(self) -> None:
        self.stalls: list[float] = []
        self.late: list[float] = []

    @property
    def worst(self) -> float:
        return max(self.stalls, default=0.0)

    async def watch(self) -> None:
        while True:
            began, spent = time.perf_counter(), time.process_time()
            await asyncio.sleep(TICK_S)
            late = time.perf_counter() - began - TICK_S
            self.late.append(late)
            self.stalls.append(min(late, time.process_time() - spent))


@asynccontextmanager
async def probing() -> AsyncGenerator[Probe]:
    probe = Probe()
    gc.collect()
    gc.freeze()  # what other tests have left is not searched for garbage while this one measures
    task = asyncio.create_task(probe.watch())
    try:
        await asyncio.sleep(0)
        yield probe
        await asyncio.sleep(2 * TICK_S)
    finally:
        task.cancel()
        gc.unfreeze()


@asynccontextmanager
async def chatting(where: Path, answer: list[Step] | None = None, **changes: object) -> AsyncGenerator[App]:
    steps: list[Step] = answer or [{"text": "Fine, I have done it. What is next?"}, {"usage": [100, 0, 5]}]
    provider = ScriptedProvider([steps], repeat=True)
    async with App.open(where / "store.db", settings=chat_settings(**changes), provider=provider) as app:
        yield app


async def longest_stall(app: App, text: str, session: str = "", learns: bool = True) -> float:
    """Somebody says this, then something short: it becomes history, summary and memory. How long others wait."""
    session = session or (await app.new_session("ann")).session_id
    async with probing() as probe:
        for said in (text, "and now?", "thanks"):
            async for _ in app.run("ann", session, said):
                pass
            if learns:
                await app.worker.run_until_empty(patience=120)
    return probe.worst


def filled(text: str, size: int) -> str:
    return (text * (size // len(text) + 1))[:size]


def repeated() -> Mapping[str, str]:
    """100 kB of one thing, for many things: patterns are quadratic on one of them, if at all."""
    characters = "-_.,;:!?/\\|*+=~^`'\"<>()[]{}#@&%$ \t\n\r0aA中，。“！é\u0301\u200d😀\0\u3000"
    pairs = (
        "a ", " a", "a-", "-a", "a.", ". ", "- ", "<a", "a>", "</", "a/", "/a", "1 ", "1-", "1.", "a@", "@a", "a:",
        ": ", "a=", "()", "[]", "\n ", "\n\n", "\n-", "\n#", "\n>", "\n|", "```\n", "~~~\n", '" ', "' ", "“a", "a”",
        "其实", "请帮我", "我其实", "你可以", "一点都", "从小就", "年前", "and I ", "I have ", "is a ", "now, ",
        "from a ", "run to ", "not a ", "password ", "pwd is ", "密码", "2024-05-06 ", "三月五日", "last week ",
        "http://a", "a.py ", "<system_hint ", "<data-", "data:image/png;base64,", "e.g. ", "Mr. ", "ex-a", "favorite ",
        "‘a", "1,", "12:", "\u200f", "\\u00", '{"a":',
    )  # fmt: skip
    return {repr(each): filled(each, 100_000) for each in (*characters, *pairs)}


def large() -> Mapping[str, Callable[[], str]]:
    """Made when they are needed: they are long."""
    return {
        "19 MB of English": lambda: filled(ENGLISH, 19_000_000),
        "5 MB of English": lambda: filled(ENGLISH, 5_000_000),
        "19 MB of Chinese": lambda: filled(CHINESE, 6_300_000),
        "12 MB of short lines": lambda: "a\n" * 6_000_000,
        "9 MB of newlines": lambda: "\n" * 9_000_000,
        "9 MB of carriage returns": lambda: "\r" * 9_000_000,
        "15 MB of likes": lambda: filled("I like tea and coffee. ", 15_000_000),
        "1 MB without a space": lambda: "a" * 1_000_000,
        "1 MB of Chinese without an end": lambda: "汉" * 333_000,
        "10,000 lines": lambda: "- a line with a word\n" * 10_000,
        "nested brackets": lambda: "[" * 100_000 + "]" * 100_000,
        "nested tags": lambda: "<a>" * 50_000 + "</a>" * 50_000,
        "dates": lambda: filled("2024-05-06, 三月五日, next Friday; ", 200_000),
        "one word and many marks": lambda: "e" + "\u0301" * 500_000,
    }


@contextmanager
def planted() -> Generator[None]:
    """A quadratic pattern where the user's words are read, as 0.1.0 had one. It holds the interpreter: that it runs in
    a thread does not help."""
    before = fences._HINT  # pyright: ignore[reportPrivateUsage] -- the place of the bug
    fences._HINT = re.compile("<system_hint|-+x")  # pyright: ignore[reportPrivateUsage]
    try:
        yield
    finally:
        fences._HINT = before  # pyright: ignore[reportPrivateUsage]
