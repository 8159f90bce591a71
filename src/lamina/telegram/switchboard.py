"""Who may talk, in which order, and that an update is taken once: between Telegram's updates and the engine's turns.

Turns of one scope run one after the other, those of different scopes at the same time. What is waiting lies only here;
so an update counts as taken when its question is stored, and until then Telegram keeps it for us.
"""

import asyncio
import base64
import logging
import time
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiogram.types import Update, User

from lamina.app.app import App, TurnHandle
from lamina.errors import InputError, LaminaError, ProviderError
from lamina.telegram.answers import final, follow
from lamina.telegram.commands import Commands
from lamina.telegram.line import Line
from lamina.telegram.markup import pieces
from lamina.telegram.reading import Said, Scope, read
from lamina.telegram.say import say
from lamina.telegram.threads import Threads
from lamina.text.messages import Phrase, Value
from lamina.types import Ended

MEGABYTES = 5
"""Of one picture: what every provider takes."""
MOST_BYTES = MEGABYTES * 1024 * 1024
MOST_WAITING, MOST_AGAIN = 20, 100
"""Messages of one scope that may wait for an answer before them; and where none is written, as many as Telegram gives
at once: they may have come before."""
ALBUM = 0.7
"""Seconds in which the parts of an album come together."""
REMINDED = 30.0
REFUSED = 3_600.0
"""Seconds between two requests to wait, and between two refusals, to the same person."""
KNOWN = 10_000
"""Updates that are remembered after they were taken."""
GLANCE, LOOKS = 5.0, 24
"""Seconds between two looks at an answer that somebody else may still write, and how many there are."""
FAREWELL = 5.0
"""Seconds for the last edits when the bot ends."""
AT_ONCE = ("start", "help", "memory", "context")
"""Commands that do not wait for the answer before them."""
MAGIC = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF87a": "gif", b"GIF89a": "gif"}
log = logging.getLogger("lamina.telegram")
Taken = asyncio.Future[bool]
"""Done when Telegram may forget the update; cancelled when it must not."""


@dataclass(slots=True)
class _Lane:
    """One scope: what waits in it, and the turn that runs."""

    waiting: deque[tuple[Said, Taken]] = field(default_factory=deque[tuple[Said, Taken]])
    running: TurnHandle | None = None
    task: asyncio.Task[None] | None = None


class Switchboard:
    def __init__(self, app: App, line: Line, me: User) -> None:
        self.app, self.line, self.me = app, line, me
        self.closing = asyncio.Event()
        self._threads = Threads(app)
        self._commands = Commands(app, self._threads, MEGABYTES)
        self._known: dict[int, Taken] = {}
        self._lanes: dict[Scope, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._albums: deque[str] = deque(maxlen=100)
        self._reminded: dict[tuple[str, int], float] = {}

    def owner(self, person: int) -> str:
        return self.app.settings.telegram_users.get(person) or f"telegram:{person}"

    def take(self, update: Update) -> Taken:
        """Take an update, once; the same one again is the same."""
        known = self._known.get(update.update_id)
        if known is not None:
            return known
        taken: Taken = asyncio.get_running_loop().create_future()
        self._remember(update.update_id, taken)
        said = self._read(update)
        if said is None:
            taken.set_result(True)
        elif said.scope.person not in self.app.settings.telegram_allow:
            self._spawn(self._refuse(said), taken)
        elif said.command == "stop":
            self._spawn(self._stop(said), taken)
        elif said.command in AT_ONCE:
            self._spawn(self._obey(said), taken)
        else:
            self._queue(said, taken)
        return taken

    def _read(self, update: Update) -> Said | None:
        """What is for the bot. In a group only one picture of an album bears the words that say so."""
        said = read(update, self.me, MOST_BYTES)
        if said is None or not (said.addressed or said.album in self._albums):
            return None
        if said.album:
            self._albums.append(said.album)
        return said

    def shed(self, count: int) -> None:
        """Give up the messages that wait longest, and say so: they keep others from being heard."""
        for _ in range(count):
            lanes = [lane for lane in self._lanes.values() if lane.waiting]
            if lanes:
                said, taken = min(lanes, key=lambda lane: lane.waiting[0][0].update).waiting.popleft()
                self._spawn(self._tell(said, "bot.shed"), taken)

    async def tell_unfinished(self) -> None:
        """Answers that were on their way when the bot ended are told as they are stored. One that somebody still holds
        is looked at again: its lease runs out, or another process tells it."""
        late = await self._tell_ended(None)
        if late:
            self._spawn(self._tell_late(late))

    async def _tell_late(self, late: set[str]) -> None:
        for _ in range(LOOKS):
            await asyncio.sleep(GLANCE)
            late = await self._tell_ended(late)
            if not late:
                return

    async def _tell_ended(self, only: set[str] | None) -> set[str]:
        """Returns the turns that have not ended yet."""
        late: set[str] = set()
        for person in self.app.settings.telegram_allow:
            owner = self.owner(person)
            async for place, turn_id, lang in self._threads.unfinished(owner, self.me.id):
                turn = await self.app.store.turns.get(owner, turn_id)
                if only is not None and turn_id not in only:
                    continue
                if turn.state == "streaming":
                    late.add(turn_id)
                    continue
                message = await self.app.store.messages.get(owner, turn.answer_message_id)
                ended = Ended(turn.state, Phrase.load(turn.error), Phrase.load(str(turn.usage.get("hint", ""))))
                words = final(message.text, ended, lang, "interrupted")
                numbers = [await self.line.say(place, piece) for piece in pieces(words)]
                await self._threads.delivered(turn, numbers)
        return late

    async def close(self) -> None:
        """What runs is interrupted, kept, and told; what waits stays with Telegram."""
        self.closing.set()
        tasks = [*self._tasks, *(lane.task for lane in self._lanes.values() if lane.task)]
        for lane in self._lanes.values():
            for _, taken in lane.waiting:
                taken.cancel()
            lane.waiting.clear()
            if lane.running:
                lane.running.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=FAREWELL)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _remember(self, number: int, taken: Taken) -> None:
        self._known[number] = taken
        if len(self._known) > KNOWN:
            old = [each for each, done in list(self._known.items())[: KNOWN // 2] if done.done()]
            for each in old:
                del self._known[each]

    def _spawn(self, work: Coroutine[Any, Any, None], taken: Taken | None = None) -> None:
        """Work that nothing waits for but the update."""
        task = asyncio.create_task(self._guarded(work, *([taken] if taken else [])))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None], *taken: Taken) -> None:
        """The outermost edge: whatever one update leads to ends here, and the next one is taken."""
        try:
            await work
        except Exception as error:
            log.error("[Telegram] an update could not be handled: %s", type(error).__name__)
            log.debug("[Telegram] the details", exc_info=error)
        for each in taken:
            if not each.done():
                each.set_result(True)

    def _queue(self, said: Said, taken: Taken) -> None:
        lane = self._lanes.setdefault(said.scope, _Lane())
        lane.waiting.append((said, taken))
        if lane.task is None:
            lane.task = asyncio.create_task(self._run(said.scope, lane))
        self._thin(lane)

    def _thin(self, lane: _Lane) -> None:
        """Refuse the newest of too many that wait for an answer, and ask their sender once to wait. What comes again
        after a restart is answered already: nothing waits for it, and it is no crowd."""
        most = MOST_WAITING if lane.running else MOST_AGAIN
        late = [lane.waiting.pop() for _ in range(len(lane.waiting) - most)]
        for said, taken in reversed(late):
            if self._first_in("wait", said.scope.person, REMINDED):
                self._spawn(self._tell(said, "bot.wait", count=most), taken)
            else:
                taken.set_result(True)

    async def _run(self, scope: Scope, lane: _Lane) -> None:
        """What waits in a scope, one after the other, until nothing does."""
        while lane.waiting and not self.closing.is_set():
            if lane.waiting[0][0].album:
                await asyncio.sleep(ALBUM)
            group = [lane.waiting.popleft()]
            while lane.waiting and (album := group[0][0].album) and lane.waiting[0][0].album == album:
                group.append(lane.waiting.popleft())
            parts, taken = [said for said, _ in group], [each for _, each in group]
            work = self._obey(parts[0]) if parts[0].command else self._answer(lane, parts, taken)
            await self._guarded(work, *taken)
        if self._lanes.get(scope) is lane:
            del self._lanes[scope]

    async def _answer(self, lane: _Lane, parts: Sequence[Said], taken: Sequence[Taken]) -> None:
        """A question: stored, and from then on ours; then its answer, as it comes."""
        first = parts[0]
        owner = self.owner(first.scope.person)
        content = await self._content(parts)
        if content is None:
            return
        name = f"album:{first.album}" if first.album else str(first.update)
        try:
            session = await self._threads.current(owner, first)
            key = f"telegram:{self.me.id}:{name}"
            running = await self.app.start(owner, session.session_id, content, key=key)
            turn = running.turn
            if turn.repeated and await self._threads.was_delivered(turn):
                return
            await self._threads.opened(owner, turn.session_id, turn.turn_id, first.scope, first.place, first.lang)
        except LaminaError as error:
            log.warning("[Telegram] a question could not be taken: %s", error.message)
            await self.line.say(first.place, say(first.lang, "bot.error", error=error.phrase))
            return
        for each in taken:
            if not each.done():
                each.set_result(True)
        lane.running = running
        self._thin(lane)
        if self.closing.is_set():
            running.cancel()
        try:
            numbers = await follow(self.line, first.place, running, first.lang, self.closing)
        finally:
            lane.running = None
        await self._threads.delivered(turn, numbers)

    async def _content(self, parts: Sequence[Said]) -> str | list[Mapping[str, Any]] | None:
        """Words alone as text; with pictures a list, the words first. None where there is nothing to ask, said so."""
        words = "\n".join(said.text for said in parts if said.text)
        for said in parts:
            if said.other or said.too_large:
                await self._tell(said, "bot.too_large" if said.too_large else "bot.other", size=MEGABYTES)
                return None
        files = [file for said in parts for file in said.pictures]
        if not files:
            return words or None
        try:
            addresses = [_picture(await self.line.fetch(file, MOST_BYTES)) for file in files]
        except (InputError, ProviderError) as error:
            log.info("[Telegram] %s", error.message)
            await self._tell(
                parts[0], "bot.too_large" if isinstance(error, InputError) else "bot.fetch", size=MEGABYTES
            )
            return None
        if "" in addresses:
            await self._tell(parts[0], "bot.no_picture")
            return None
        pictures = [{"type": "image_url", "image_url": {"url": address}} for address in addresses]
        return [*([{"type": "text", "text": words}] if words else []), *pictures]

    async def _obey(self, said: Said) -> None:
        try:
            words = await self._commands.obey(self.owner(said.scope.person), said)
        except LaminaError as error:
            words = say(said.lang, "bot.error", error=error.phrase)
        for piece in pieces(words):
            await self.line.say(said.place, piece)

    async def _stop(self, said: Said) -> None:
        lane = self._lanes.get(said.scope)
        if lane and lane.running:
            lane.running.cancel()
        else:
            await self._tell(said, "bot.idle")

    async def _refuse(self, said: Said) -> None:
        """Nothing is stored and nobody is asked; the number is what somebody needs to be let in."""
        log.info("[Telegram] %d is not on the list", said.scope.person)
        if self._first_in("refuse", said.scope.person, REFUSED):
            await self._tell(said, "bot.refused", id=str(said.scope.person))

    async def _tell(self, said: Said, code: str, /, **values: Value) -> None:
        await self.line.say(said.place, say(said.lang, code, **values))

    def _first_in(self, what: str, person: int, seconds: float) -> bool:
        """Was this person not told so within the last seconds?"""
        now = time.monotonic()
        if len(self._reminded) > KNOWN:
            self._reminded = {each: until for each, until in self._reminded.items() if until > now}
        if self._reminded.get((what, person), 0.0) > now:
            return False
        self._reminded[what, person] = now + seconds
        return True


def _picture(raw: bytes) -> str:
    """A picture as a data URL, by what its bytes say it is; empty for what is none."""
    kind = next((kind for magic, kind in MAGIC.items() if raw.startswith(magic)), "")
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        kind = "webp"
    return f"data:image/{kind};base64,{base64.b64encode(raw).decode()}" if kind else ""
