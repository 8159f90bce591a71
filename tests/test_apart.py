"""Large texts apart from the event loop: one thread at a time for each user, so that nobody takes all of them (R23)."""

import asyncio
import threading
import time
from pathlib import Path

from lamina import App
from lamina.apart import run_apart, set_current_user
from lamina.text.unicode import MAX_LOOP_SIZE
from tests.faults.stalls import chatting

LARGE = MAX_LOOP_SIZE + 1


class Overlap:
    """How many calls are running at once, at most."""

    def __init__(self) -> None:
        self.most = self._now = 0
        self._lock = threading.Lock()

    def work(self) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(0.05)
        with self._lock:
            self._now -= 1


async def overlap_of(*users: str) -> int:
    seen = Overlap()

    async def one(user: str) -> None:
        set_current_user(user)
        await run_apart(LARGE, seen.work)

    await asyncio.gather(*(asyncio.create_task(one(user)) for user in users))
    return seen.most


async def test_the_large_texts_of_one_user_are_worked_on_one_after_another() -> None:
    assert await overlap_of("ann", "ann", "ann", "ann") == 1
    assert await overlap_of("ann", "ann", "bo") == 2


async def test_many_long_turns_of_one_user_at_once_take_one_thread(tmp_path: Path) -> None:
    seen = Overlap()

    async def say(app: App, text: str) -> None:
        session = await app.new_session("ann")
        async for _ in app.run("ann", session.session_id, text):
            pass

    async with chatting(tmp_path) as app:
        count = app.engine.builder.settings.count

        def counted(text: str) -> int:
            if threading.current_thread() is not threading.main_thread():
                seen.work()
            return count(text)

        object.__setattr__(app.engine.builder.settings, "count", counted)
        await asyncio.gather(*(say(app, "words " * 20_000) for _ in range(4)))
    assert seen.most == 1
