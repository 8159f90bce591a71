"""The sessions of a chat, and the bot's commands, which look something up or change the session.

Which session a message belongs to, and which answers were delivered as which messages, is stored in the sessions. Each
scope has a first session with an id made of the scope; it lists where later ones begin. So a restart finds everything
in the store, and an update that comes a second time finds the session that it was in the first time. A command that
comes a second time changes nothing more.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from lamina.app.app import App
from lamina.app.lookup import forget, read_phase
from lamina.app.traces import last_turn, request_of
from lamina.errors import MessageError, NotFoundError
from lamina.records import Session, TurnRecord
from lamina.telegram.incoming import COMMANDS, ChatPlace, ChatScope, IncomingMessage, say
from lamina.types import Receipt

STARTS, LISTED, OPEN, ANSWERS = "telegram_starts", "telegram_listed", "telegram_open", "telegram_answers"
UP_TO = "telegram_up_to"
"""Names in a session's `runtime`, which no model sees. Each has one writer, so that none undoes another."""
MAX_STARTS, MAX_ANSWERS, MAX_SEARCHED = 500, 200, 50
"""Sessions and delivered messages that are listed, and sessions in which something is looked for."""
TITLE_CHARACTERS = 60
MODES = ("agent", "plan", "ask")
MAX_MEMORIES = 20
LINE_CHARACTERS = 120
BAR_CHARACTERS = 12


def session_id(scope: ChatScope, start: int = 0) -> str:
    name = f"telegram {scope.bot} {scope.chat} {scope.topic} {scope.person} {start}"
    return hashlib.sha256(name.encode()).hexdigest()[:32]


class ChatSessions:
    """The sessions of one bot's scopes."""

    def __init__(self, app: App) -> None:
        self._app, self._rows = app, app.store.sessions

    async def current(self, owner: str, message: IncomingMessage) -> Session:
        """The session that was the current one when this was written; started where there is none."""
        starts = _starts_of(await self._find(owner, session_id(message.scope)))
        start = max((start for start in starts if start <= message.message_id), default=0)
        title = " ".join(message.text[: 100 * TITLE_CHARACTERS].split())[:TITLE_CHARACTERS]
        return await self._find_or_start(owner, session_id(message.scope, start), title)

    async def start(self, owner: str, message: IncomingMessage) -> None:
        """A new session from this message on; the one before it is over, and will be summarised."""
        first = await self._find_or_start(owner, session_id(message.scope))
        starts = _starts_of(first)
        if message.message_id in starts:
            return
        before = await self._find(owner, session_id(message.scope, max(starts, default=0)))
        if before and before.last_seq:
            await self._app.end_session(owner, before.session_id)
        mode = before.mode if before else self._app.settings.mode
        await self._app.new_session(owner, session_id=session_id(message.scope, message.message_id), mode=mode)
        starts = [*starts, message.message_id][-MAX_STARTS:]
        await self._rows.update(owner, first.session_id, runtime={STARTS: starts})

    async def note_open(self, turn: TurnRecord, message: IncomingMessage) -> None:
        """An answer is on its way: a bot that finds this note after a restart has to say how it ended."""
        note = {"turn": turn.turn_id, "bot": message.scope.bot, "lang": message.lang, **asdict(message.place)}
        await self._rows.update(turn.owner, turn.session_id, runtime={OPEN: note})

    async def note_delivered(self, turn: TurnRecord, message_ids: Sequence[int]) -> None:
        """The newest answers are listed. Of those that leave the list, the position of the last question is stored, and
        all answers up to there count as delivered."""
        found = await self._rows.get(turn.owner, turn.session_id)
        answers = [*_answers_of(found), *((number, turn.answer_message_id, turn.user_seq) for number in message_ids)]
        up_to = max(found.runtime.get(UP_TO) or 0, *(seq for _, _, seq in answers[:-MAX_ANSWERS]), 0)
        listed = [list(answer) for answer in answers[-MAX_ANSWERS:]]
        changes = {ANSWERS: listed, UP_TO: up_to or None, OPEN: None}
        await self._rows.update(turn.owner, turn.session_id, runtime=changes)

    async def was_delivered(self, turn: TurnRecord) -> bool:
        found = await self._rows.get(turn.owner, turn.session_id)
        if turn.user_seq <= (found.runtime.get(UP_TO) or 0):
            return True
        return any(answer == turn.answer_message_id for _, answer, _ in _answers_of(found))

    async def answer_replied_to(self, owner: str, message: IncomingMessage) -> str:
        """The id of the answer that was delivered as the message that is replied to; empty where it is not known."""
        starts = _starts_of(await self._find(owner, session_id(message.scope)))
        for start in [*sorted(starts, reverse=True)[:MAX_SEARCHED], 0]:
            for number, answer, _ in _answers_of(await self._find(owner, session_id(message.scope, start))):
                if number == message.reply_to:
                    return answer
        return ""

    async def listed_memories(self, owner: str, message: IncomingMessage) -> Sequence[str]:
        """The memories as the person saw them last, so that a number means the same one, also the second time."""
        first = await self._find_or_start(owner, session_id(message.scope))
        return list(first.runtime.get(LISTED) or ())

    async def note_listed(self, owner: str, message: IncomingMessage, memory_ids: Sequence[str]) -> None:
        first = await self._find_or_start(owner, session_id(message.scope))
        await self._rows.update(owner, first.session_id, runtime={LISTED: list(memory_ids)})

    async def unfinished(self, owner: str, bot: int) -> AsyncIterator[tuple[ChatPlace, str, str]]:
        """Answers of this bot that were on their way when it ended: place, turn and language."""
        for session in await self._rows.list(owner, limit=MAX_SEARCHED):
            note: dict[str, Any] = session.runtime.get(OPEN) or {}
            if note.get("bot") == bot:
                place = ChatPlace(note["chat"], note["topic"], note["group"], note["reply_to"])
                yield place, note["turn"], note["lang"]

    async def _find(self, owner: str, name: str) -> Session | None:
        try:
            return await self._rows.get(owner, name)
        except NotFoundError:
            return None

    async def _find_or_start(self, owner: str, name: str, title: str = "") -> Session:
        found = await self._find(owner, name)
        if found is None:
            return await self._app.new_session(owner, session_id=name, title=title)
        if title and not found.title:
            return await self._rows.update(owner, name, title=title)
        return found


def _starts_of(first: Session | None) -> list[int]:
    return list(first.runtime.get(STARTS) or ()) if first else []


def _answers_of(session: Session | None) -> list[tuple[int, str, int]]:
    """The message, the answer and the position of its question, which is 0 where an older lamina stored none."""
    rows: list[Any] = list(session.runtime.get(ANSWERS) or ()) if session else []
    return [(int(number), str(answer), int(seq[0]) if seq else 0) for number, answer, *seq in rows]


def list_commands(lang: str) -> dict[str, str]:
    """The menu: each command and what it does."""
    return {name: say(lang, f"bot.command.{name}") for name in COMMANDS}


class ChatCommands:
    """The commands of one bot. Each returns the text of its reply."""

    def __init__(self, app: App, sessions: ChatSessions, max_megabytes: int) -> None:
        self._app, self._sessions, self._max_megabytes = app, sessions, max_megabytes
        self._commands: Mapping[str, Callable[[str, IncomingMessage], Awaitable[str]]] = {
            "start": self._start, "help": self._help, "new": self._new, "mode": self._mode, "phase": self._phase,
            "collect": partial(self._collect, on=True), "uncollect": partial(self._collect, on=False),
            "memory": self._memory, "context": self._context,
        }  # fmt: skip

    async def run_command(self, owner: str, message: IncomingMessage) -> str:
        command = self._commands.get(message.command)
        if command is None:
            return say(message.lang, "bot.unknown", name=message.command[:32])
        return await command(owner, message)

    async def _start(self, owner: str, message: IncomingMessage) -> str:
        return say(message.lang, "bot.hello")

    async def _help(self, owner: str, message: IncomingMessage) -> str:
        lines = "\n".join(f"/{name} – {what}" for name, what in list_commands(message.lang).items())
        return say(message.lang, "bot.help", size=self._max_megabytes, commands=lines)

    async def _new(self, owner: str, message: IncomingMessage) -> str:
        await self._sessions.start(owner, message)
        return say(message.lang, "bot.new")

    async def _mode(self, owner: str, message: IncomingMessage) -> str:
        session = await self._sessions.current(owner, message)
        wanted = message.argument.lower()
        if wanted and wanted not in MODES:
            return say(message.lang, "bot.mode.unknown", mode=quote_line(message.argument))
        if wanted and wanted != session.mode:
            session = await self._app.store.sessions.update(owner, session.session_id, mode=wanted)
        mode = session.mode if session.mode in MODES else "ask"
        no_tools = mode != "ask" and not self._app.settings.tools
        what = say(message.lang, "bot.mode.none" if no_tools else f"bot.mode.{mode}")
        return say(message.lang, "bot.mode", mode=mode, what=what)

    async def _phase(self, owner: str, message: IncomingMessage) -> str:
        """What the chat is working on now, sent before each message from here on."""
        session = await self._sessions.current(owner, message)
        if message.argument:
            phase = read_phase(message.argument)
            session = await self._app.store.sessions.update(owner, session.session_id, phase=phase)
        code = "bot.phase" if session.phase else "bot.phase.none"
        return say(message.lang, code, phase=quote_line(session.phase, 300))

    async def _collect(self, owner: str, message: IncomingMessage, *, on: bool) -> str:
        """The answer that is replied to, otherwise the last one of the session."""
        if message.replies_to_other:
            return say(message.lang, "bot.not_answer")
        if message.reply_to:
            answer = await self._sessions.answer_replied_to(owner, message)
            if not answer:
                return say(message.lang, "bot.unknown_answer")
        else:
            session = await self._sessions.current(owner, message)
            turn = await last_turn(self._app.store, owner, session.session_id)
            if turn is None:
                return say(message.lang, "bot.no_answer")
            answer = turn.answer_message_id
        try:
            await self._app.collect(owner, answer, on)
            stored = await self._app.store.messages.get(owner, answer)
        except NotFoundError:  # deleted since, with its session
            return say(message.lang, "bot.unknown_answer")
        except MessageError:
            return say(message.lang, "bot.not_answer")
        return say(message.lang, "bot.collected" if on else "bot.uncollected", text=quote_line(stored.text))

    async def _memory(self, owner: str, message: IncomingMessage) -> str:
        if not self._app.settings.memory:
            return say(message.lang, "bot.memories.off")
        verb, _, rest = message.argument.partition(" ")
        if not verb:
            return await self._list_memories(owner, message)
        if verb.lower() == "add" and rest.strip():
            made = await self._app.memory(owner).remember(rest.strip())
            return say(message.lang, "bot.remembered", text=quote_line(made.memory.text))
        if verb.lower() == "forget" and rest.strip():
            return await self._forget(owner, message, rest.strip())
        return say(message.lang, "bot.memory.usage")

    async def _list_memories(self, owner: str, message: IncomingMessage) -> str:
        found = await self._app.memory(owner).list(limit=MAX_MEMORIES)
        if not found:
            return say(message.lang, "bot.memories.none")
        await self._sessions.note_listed(owner, message, [memory.memory_id for memory in found])
        texts = [f"📌 {memory.text}" if memory.pinned else memory.text for memory in found]
        lines = [f"{number}. {quote_line(text)}" for number, text in enumerate(texts, 1)]
        return "\n".join([say(message.lang, "bot.memories", count=len(found)), "", *lines])

    async def _forget(self, owner: str, message: IncomingMessage, number: str) -> str:
        listed = await self._sessions.listed_memories(owner, message)
        at = int(number) if number.isascii() and number.isdigit() and len(number) < 6 else 0
        if not 1 <= at <= len(listed):
            return say(message.lang, "bot.memory.number", number=quote_line(number, 20))
        await forget(self._app, owner, [listed[at - 1]])
        return say(message.lang, "bot.forgotten")

    async def _context(self, owner: str, message: IncomingMessage) -> str:
        session = await self._sessions.current(owner, message)
        turn = await last_turn(self._app.store, owner, session.session_id)
        try:
            receipt = await request_of(self._app.store, owner, turn) if turn else None
        except NotFoundError:
            receipt = None
        return draw_bars(receipt, message.lang) if receipt else say(message.lang, "bot.context.none")


def draw_bars(receipt: Receipt, lang: str) -> str:
    """A bar for each layer, as text."""
    layers = {name: both for name, both in receipt.by_layer().items() if any(both)}
    widest = max((len(name) for name in layers), default=0)
    most = max((sent for sent, _ in layers.values()), default=0) or 1
    rows = [
        f"{name:<{widest}} {'█' * round(BAR_CHARACTERS * sent / most):<{BAR_CHARACTERS}} {sent:>6,}"
        for name, (sent, _) in layers.items()
    ]
    tokens, budget = f"{receipt.tokens:,}", f"{receipt.budget:,.0f}"
    head = say(lang, "bot.context", tokens=tokens, budget=budget, counter=receipt.counter)
    cut = sum(left_out for _, left_out in layers.values())
    below = [say(lang, "bot.context.cut", tokens=f"{cut:,}")] if cut else []
    return "\n".join([head, "```", *rows, "```", *below])


def quote_line(text: str, limit: int = LINE_CHARACTERS) -> str:
    """Somebody's words in a line of ours: short, and without markup."""
    line = " ".join(text.split())
    line = f"{line[: limit - 1]}…" if len(line) > limit else line
    return "".join(f"\\{c}" if c in "\\`*_[]<>#~|!" else c for c in line)
