"""The bot's commands: each looks something up or changes the chat's session, and says so in one message.

Each may come a second time, after a crash, and then changes nothing more.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from lamina.app.app import App
from lamina.app.lookup import forget, read_phase
from lamina.app.traces import last_turn, request_of
from lamina.errors import MessageError, NotFoundError
from lamina.records import Memory
from lamina.telegram.reading import Said
from lamina.telegram.say import menu, say
from lamina.telegram.threads import Threads
from lamina.types import Receipt

MODES = ("agent", "plan", "ask")
LISTED = 20
LINE = 120
BAR = 12


class Commands:
    """Of one bot, over one app. Each gives what is to be said."""

    def __init__(self, app: App, threads: Threads, megabytes: int) -> None:
        self._app, self._threads, self._megabytes = app, threads, megabytes
        self._known: Mapping[str, Callable[[str, Said], Awaitable[str]]] = {
            "start": self._start, "help": self._help, "new": self._new, "mode": self._mode,
            "phase": self._phase,
            "collect": self._collect, "uncollect": self._uncollect, "memory": self._memory, "context": self._context,
        }  # fmt: skip

    async def obey(self, owner: str, said: Said) -> str:
        command = self._known.get(said.command)
        if command is None:
            return say(said.lang, "bot.unknown", name=said.command[:32])
        return await command(owner, said)

    async def _start(self, owner: str, said: Said) -> str:
        return say(said.lang, "bot.hello")

    async def _help(self, owner: str, said: Said) -> str:
        lines = "\n".join(f"/{name} – {what}" for name, what in menu(said.lang).items())
        return say(said.lang, "bot.help", size=self._megabytes, commands=lines)

    async def _new(self, owner: str, said: Said) -> str:
        await self._threads.begin(owner, said)
        return say(said.lang, "bot.new")

    async def _mode(self, owner: str, said: Said) -> str:
        session = await self._threads.current(owner, said)
        wanted = said.rest.strip().lower()
        if wanted and wanted not in MODES:
            return say(said.lang, "bot.mode.unknown", mode=quoted(said.rest))
        if wanted and wanted != session.mode:
            session = await self._app.store.sessions.update(owner, session.session_id, mode=wanted)
        mode = session.mode if session.mode in MODES else "ask"
        without = mode != "ask" and not self._app.settings.tools
        return say(
            said.lang, "bot.mode", mode=mode, what=say(said.lang, "bot.mode.none" if without else f"bot.mode.{mode}")
        )

    async def _phase(self, owner: str, said: Said) -> str:
        """What the chat is working on just now, sent in front of each message from here on."""
        session = await self._threads.current(owner, said)
        if said.rest.strip():
            phase = read_phase(said.rest)
            session = await self._app.store.sessions.update(owner, session.session_id, phase=phase)
        return say(said.lang, "bot.phase" if session.phase else "bot.phase.none", phase=quoted(session.phase, 300))

    async def _collect(self, owner: str, said: Said) -> str:
        return await self._mark(owner, said, on=True)

    async def _uncollect(self, owner: str, said: Said) -> str:
        return await self._mark(owner, said, on=False)

    async def _mark(self, owner: str, said: Said, *, on: bool) -> str:
        """The answer that is replied to, else the last one of the session (C9)."""
        if said.replies_to_other:
            return say(said.lang, "bot.not_answer")
        if said.reply_to:
            answer = await self._threads.answer_of(owner, said)
            if not answer:
                return say(said.lang, "bot.unknown_answer")
        else:
            session = await self._threads.current(owner, said)
            turn = await last_turn(self._app.store, owner, session.session_id)
            if turn is None:
                return say(said.lang, "bot.no_answer")
            answer = turn.answer_message_id
        try:
            await self._app.collect(owner, answer, on)
            message = await self._app.store.messages.get(owner, answer)
        except NotFoundError:  # deleted since, with its session
            return say(said.lang, "bot.unknown_answer")
        except MessageError:
            return say(said.lang, "bot.not_answer")
        return say(said.lang, "bot.collected" if on else "bot.uncollected", text=quoted(message.text))

    async def _memory(self, owner: str, said: Said) -> str:
        if not self._app.settings.memory:
            return say(said.lang, "bot.memories.off")
        verb, _, rest = said.rest.partition(" ")
        if not verb:
            return await self._list(owner, said)
        if verb.lower() == "add" and rest.strip():
            kept = await self._app.memory(owner).remember(rest.strip())
            return say(said.lang, "bot.remembered", text=quoted(kept.memory.text))
        if verb.lower() == "forget" and rest.strip():
            return await self._forget(owner, said, rest.strip())
        return say(said.lang, "bot.memory.usage")

    async def _list(self, owner: str, said: Said) -> str:
        found = await self._app.memory(owner).list(limit=LISTED)
        if not found:
            return say(said.lang, "bot.memories.none")
        await self._threads.listed(owner, said, [memory.memory_id for memory in found])
        lines = [f"{number}. {quoted(_shown(memory))}" for number, memory in enumerate(found, 1)]
        return "\n".join([say(said.lang, "bot.memories", count=len(found)), "", *lines])

    async def _forget(self, owner: str, said: Said, number: str) -> str:
        listed = await self._threads.listed(owner, said)
        at = int(number) if number.isascii() and number.isdigit() and len(number) < 6 else 0
        if not 1 <= at <= len(listed):
            return say(said.lang, "bot.memory.number", number=quoted(number, 20))
        await forget(self._app, owner, [listed[at - 1]])
        return say(said.lang, "bot.forgotten")

    async def _context(self, owner: str, said: Said) -> str:
        session = await self._threads.current(owner, said)
        turn = await last_turn(self._app.store, owner, session.session_id)
        try:
            receipt = await request_of(self._app.store, owner, turn) if turn else None
        except NotFoundError:
            receipt = None
        return bars(receipt, said.lang) if receipt else say(said.lang, "bot.context.none")


def bars(receipt: Receipt, lang: str) -> str:
    """A bar for each layer, as text."""
    layers = {name: both for name, both in receipt.by_layer().items() if any(both)}
    widest = max((len(name) for name in layers), default=0)
    most = max((sent for sent, _ in layers.values()), default=0) or 1
    rows = [
        f"{name:<{widest}} {'█' * round(BAR * sent / most):<{BAR}} {sent:>6,}"
        for name, (sent, _) in layers.items()
    ]  # fmt: skip
    values: dict[str, Any] = {
        "tokens": f"{receipt.tokens:,}", "budget": f"{receipt.budget:,.0f}", "counter": receipt.counter
    }  # fmt: skip
    cut = sum(left_out for _, left_out in layers.values())
    below = [say(lang, "bot.context.cut", tokens=f"{cut:,}")] if cut else []
    return "\n".join([say(lang, "bot.context", **values), "```", *rows, "```", *below])


def quoted(text: str, most: int = LINE) -> str:
    """Somebody's words in a line of ours: short, and without markup."""
    line = " ".join(text.split())
    line = f"{line[: most - 1]}…" if len(line) > most else line
    return "".join(f"\\{c}" if c in "\\`*_[]<>#~|!" else c for c in line)


def _shown(memory: Memory) -> str:
    return f"📌 {memory.text}" if memory.pinned else memory.text
