"""Between Telegram's updates and the engine's turns: who may talk, in which order, and that an update is handled once.

Turns of one scope run one after the other, those of different scopes at the same time. Waiting messages are only in
memory; so an update counts as accepted when its question is stored, and until then Telegram keeps it for us.
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
from lamina.telegram.client import TelegramClient, final_text, show_turn
from lamina.telegram.commands import ChatCommands, ChatSessions
from lamina.telegram.incoming import ChatScope, IncomingMessage, read_update, say
from lamina.telegram.markup import split_text
from lamina.text.messages import Phrase, Value
from lamina.types import Ended

MAX_PICTURE_MB = 5
"""What every provider takes."""
MAX_PICTURE_BYTES = MAX_PICTURE_MB * 1024 * 1024
MAX_WAITING, MAX_REPEATED = 20, 100
"""Messages of one scope that may wait for the answer before them; and where none is being written, as many as Telegram
gives at once: they may have come before."""
ALBUM_WAIT_S = 0.7
"""In this time the parts of an album arrive."""
REMINDER_INTERVAL_S, REFUSAL_INTERVAL_S = 30.0, 3_600.0
"""Between two requests to wait, and between two refusals, to the same person."""
MAX_REMEMBERED = 10_000
"""Updates that are remembered after they were accepted, and people after they were told something."""
LATE_INTERVAL_S, MAX_LATE_CHECKS = 5.0, 24
"""How often to look again at an answer that another process may still be writing."""
CLOSE_TIMEOUT_S = 5.0
"""For the last edits when the bot ends."""
IMMEDIATE_COMMANDS = ("start", "help", "memory", "context")
"""Commands that do not wait for the answer before them."""
PICTURE_SIGNATURES = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF87a": "gif", b"GIF89a": "gif"}
log = logging.getLogger("lamina.telegram")
Accepted = asyncio.Future[bool]
"""Done when Telegram may forget the update; cancelled when it must not."""


@dataclass(slots=True)
class _ScopeQueue:
    """What waits in one scope, and the turn that runs."""

    waiting: deque[tuple[IncomingMessage, Accepted]] = field(default_factory=deque[tuple[IncomingMessage, Accepted]])
    running: TurnHandle | None = None
    task: asyncio.Task[None] | None = None


class Switchboard:
    def __init__(self, app: App, client: TelegramClient, me: User) -> None:
        self._app, self._client, self._me = app, client, me
        self._closing = asyncio.Event()
        self._sessions = ChatSessions(app)
        self._commands = ChatCommands(app, self._sessions, MAX_PICTURE_MB)
        self._known: dict[int, Accepted] = {}
        self._queues: dict[ChatScope, _ScopeQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._albums: deque[str] = deque(maxlen=100)
        self._told_until: dict[tuple[str, int], float] = {}

    def _owner_of(self, person: int) -> str:
        return self._app.settings.telegram_users.get(person) or f"telegram:{person}"

    def accept(self, update: Update) -> Accepted:
        """Handle an update, once; the same update again is the same future."""
        known = self._known.get(update.update_id)
        if known is not None:
            return known
        accepted: Accepted = asyncio.get_running_loop().create_future()
        self._known[update.update_id] = accepted
        if len(self._known) > MAX_REMEMBERED:
            oldest = list(self._known.items())[: MAX_REMEMBERED // 2]
            for number in [number for number, future in oldest if future.done()]:
                del self._known[number]
        message = self._read(update)
        if message is None:
            accepted.set_result(True)
        elif message.scope.person not in self._app.settings.telegram_allow:
            self._spawn(self._refuse(message), accepted)
        elif message.command == "stop":
            self._spawn(self._stop(message), accepted)
        elif message.command in IMMEDIATE_COMMANDS:
            self._spawn(self._run_command(message), accepted)
        else:
            self._enqueue(message, accepted)
        return accepted

    def _read(self, update: Update) -> IncomingMessage | None:
        """A message for the bot. In a group only one picture of an album has the words that say so."""
        message = read_update(update, self._me, MAX_PICTURE_BYTES)
        if message is None or not (message.addressed or message.album in self._albums):
            return None
        if message.album:
            self._albums.append(message.album)
        return message

    def shed(self, count: int) -> None:
        """Give up the messages that wait longest, and say so: they keep others from being heard."""
        for _ in range(count):
            queues = [queue for queue in self._queues.values() if queue.waiting]
            if queues:
                message, accepted = min(queues, key=lambda queue: queue.waiting[0][0].update_id).waiting.popleft()
                self._spawn(self._reply(message, "bot.shed"), accepted)

    async def deliver_unfinished(self) -> None:
        """Answers that were on their way when the bot ended are delivered as they are stored. One that another process
        still holds is looked at again: its lease runs out, or that process delivers it."""
        late = await self._deliver_ended(None)
        if late:
            self._spawn(self._deliver_late(late))

    async def _deliver_late(self, late: set[str]) -> None:
        for _ in range(MAX_LATE_CHECKS):
            await asyncio.sleep(LATE_INTERVAL_S)
            late = await self._deliver_ended(late)
            if not late:
                return

    async def _deliver_ended(self, only: set[str] | None) -> set[str]:
        """Returns the turns that have not ended yet."""
        late: set[str] = set()
        for person in self._app.settings.telegram_allow:
            owner = self._owner_of(person)
            async for place, turn_id, lang in self._sessions.unfinished(owner, self._me.id):
                if only is not None and turn_id not in only:
                    continue
                turn = await self._app.store.turns.get(owner, turn_id)
                if turn.state == "streaming":
                    late.add(turn_id)
                    continue
                message = await self._app.store.messages.get(owner, turn.answer_message_id)
                ended = Ended(turn.state, Phrase.load(turn.error), Phrase.load(str(turn.usage.get("hint", ""))))
                text = final_text(message.text, ended, lang, "interrupted")
                sent = [await self._client.send(place, part) for part in split_text(text)]
                await self._sessions.note_delivered(turn, sent)
        return late

    async def close(self) -> None:
        """Running turns are interrupted, stored, and delivered as they are; waiting messages stay with Telegram."""
        self._closing.set()
        tasks = [*self._tasks, *(queue.task for queue in self._queues.values() if queue.task)]
        for queue in self._queues.values():
            for _, accepted in queue.waiting:
                accepted.cancel()
            queue.waiting.clear()
            if queue.running:
                queue.running.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None], *accepted: Accepted) -> None:
        """Work that nothing waits for but the update."""
        task = asyncio.create_task(self._guard(work, *accepted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, work: Coroutine[Any, Any, None], *accepted: Accepted) -> None:
        """The outermost edge: an error that one update leads to ends here, and the next one is handled."""
        try:
            await work
        except Exception as error:
            log.error("[Telegram] an update could not be handled: %s", type(error).__name__)
            log.debug("[Telegram] the details", exc_info=error)
        _accept_all(accepted)

    def _enqueue(self, message: IncomingMessage, accepted: Accepted) -> None:
        queue = self._queues.setdefault(message.scope, _ScopeQueue())
        queue.waiting.append((message, accepted))
        if queue.task is None:
            queue.task = asyncio.create_task(self._run_queue(message.scope, queue))
        self._limit(queue)

    def _limit(self, queue: _ScopeQueue) -> None:
        """Refuse the newest of too many that wait for an answer, and ask their sender once to wait. Messages that come
        again after a restart are answered already: nothing waits for them, and they do not count as a crowd."""
        limit = MAX_WAITING if queue.running else MAX_REPEATED
        refused = [queue.waiting.pop() for _ in range(len(queue.waiting) - limit)]
        for message, accepted in reversed(refused):
            if self._may_tell("wait", message.scope.person, REMINDER_INTERVAL_S):
                self._spawn(self._reply(message, "bot.wait", count=limit), accepted)
            else:
                accepted.set_result(True)

    async def _run_queue(self, scope: ChatScope, queue: _ScopeQueue) -> None:
        """What waits in a scope, one after the other, until nothing does. An album is one question."""
        while queue.waiting and not self._closing.is_set():
            if album := queue.waiting[0][0].album:
                await asyncio.sleep(ALBUM_WAIT_S)
            group = [queue.waiting.popleft()]
            while album and queue.waiting and queue.waiting[0][0].album == album:
                group.append(queue.waiting.popleft())
            parts, accepted = [message for message, _ in group], [future for _, future in group]
            work = self._run_command(parts[0]) if parts[0].command else self._answer(queue, parts, accepted)
            await self._guard(work, *accepted)
        if self._queues.get(scope) is queue:
            del self._queues[scope]

    async def _answer(self, queue: _ScopeQueue, parts: Sequence[IncomingMessage], accepted: Sequence[Accepted]) -> None:
        """Store a question, from then on it is ours; then show its answer as it comes."""
        first = parts[0]
        owner = self._owner_of(first.scope.person)
        content = await self._read_content(parts)
        if content is None:
            return
        key = f"telegram:{self._me.id}:{f'album:{first.album}' if first.album else first.update_id}"
        try:
            session = await self._sessions.current(owner, first)
            running = await self._app.start(owner, session.session_id, content, key=key)
            if running.turn.repeated and await self._sessions.was_delivered(running.turn):
                return
            await self._sessions.note_open(running.turn, first)
        except LaminaError as error:
            log.warning("[Telegram] a question could not be accepted: %s", error.message)
            await self._reply(first, "bot.error", error=error.phrase)
            return
        _accept_all(accepted)
        queue.running = running
        self._limit(queue)
        if self._closing.is_set():
            running.cancel()
        try:
            sent = await show_turn(self._client, first.place, running, first.lang, self._closing)
        finally:
            queue.running = None
        await self._sessions.note_delivered(running.turn, sent)

    async def _read_content(self, parts: Sequence[IncomingMessage]) -> str | list[Mapping[str, Any]] | None:
        """Words alone as text; with pictures a list, the words first. None where there is nothing to ask, which the
        person is told."""
        words = "\n".join(message.text for message in parts if message.text)
        for message in parts:
            if message.unsupported or message.too_large:
                code = "bot.too_large" if message.too_large else "bot.other"
                return await self._reply(message, code, size=MAX_PICTURE_MB)
        files = [file for message in parts for file in message.pictures]
        if not files:
            return words or None
        try:
            addresses = [_to_data_url(await self._client.download(file, MAX_PICTURE_BYTES)) for file in files]
        except (InputError, ProviderError) as error:
            log.info("[Telegram] %s", error.message)
            code = "bot.too_large" if isinstance(error, InputError) else "bot.fetch"
            return await self._reply(parts[0], code, size=MAX_PICTURE_MB)
        if "" in addresses:
            return await self._reply(parts[0], "bot.no_picture")
        pictures = [{"type": "image_url", "image_url": {"url": address}} for address in addresses]
        return [*([{"type": "text", "text": words}] if words else []), *pictures]

    async def _run_command(self, message: IncomingMessage) -> None:
        try:
            text = await self._commands.run_command(self._owner_of(message.scope.person), message)
        except LaminaError as error:
            text = say(message.lang, "bot.error", error=error.phrase)
        for part in split_text(text):
            await self._client.send(message.place, part)

    async def _stop(self, message: IncomingMessage) -> None:
        queue = self._queues.get(message.scope)
        if queue and queue.running:
            queue.running.cancel()
        else:
            await self._reply(message, "bot.idle")

    async def _refuse(self, message: IncomingMessage) -> None:
        """Nothing is stored and no model is asked; the id is what the person needs to be let in."""
        log.info("[Telegram] %d is not on the list", message.scope.person)
        if self._may_tell("refuse", message.scope.person, REFUSAL_INTERVAL_S):
            await self._reply(message, "bot.refused", id=str(message.scope.person))

    async def _reply(self, message: IncomingMessage, code: str, /, **values: Value) -> None:
        await self._client.send(message.place, say(message.lang, code, **values))

    def _may_tell(self, what: str, person: int, interval_s: float) -> bool:
        """Was this person not told so within the interval?"""
        now = time.monotonic()
        if len(self._told_until) > MAX_REMEMBERED:
            self._told_until = {key: until for key, until in self._told_until.items() if until > now}
        if self._told_until.get((what, person), 0.0) > now:
            return False
        self._told_until[what, person] = now + interval_s
        return True


def _accept_all(accepted: Sequence[Accepted]) -> None:
    for future in accepted:
        if not future.done():
            future.set_result(True)


def _to_data_url(raw: bytes) -> str:
    """A picture as a data URL, by what its bytes say it is; empty for anything else."""
    kind = next((kind for signature, kind in PICTURE_SIGNATURES.items() if raw.startswith(signature)), "")
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        kind = "webp"
    return f"data:image/{kind};base64,{base64.b64encode(raw).decode()}" if kind else ""
