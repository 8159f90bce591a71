"""The layers of a turn are gathered once, from their sources; then a context is assembled from them (C1–C4).

It knows sources and the history by their ports, and nothing else builds a request from a session. It fails closed: a
source that cannot be read stops the turn, unless a turn can do without it, and then the receipt says why.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lamina.apart import run_apart
from lamina.assembly.budget import LEFT_OUT, Budget
from lamina.assembly.fences import session_mark
from lamina.assembly.history import (
    Chat,
    check_message,
    close_calls,
    group_turns,
    has_pictures,
    insert_results,
    remove_pictures,
)
from lamina.assembly.pieces import PromptStyle, mode_hint
from lamina.assembly.request import assemble
from lamina.assembly.tokens import estimate_message_tokens
from lamina.engine.ledger_state import Runtime, StoredLedger, TurnRequests, read_stored_ledger
from lamina.errors import LaminaError, MessageError, NotFoundError
from lamina.ports import Count, Source
from lamina.prompts.injection import PromptEnvelope, SystemPromptManager
from lamina.prompts.sources import FunctionSource
from lamina.records import Session, StoredMessage, Turn
from lamina.store.memories import Memories
from lamina.store.messages import Messages
from lamina.text.json import size_of
from lamina.text.messages import Phrase
from lamina.tools.registry import ToolRegistry
from lamina.types import AnyMessage, Context, Form, Lang, Layer, Layout, Message, Share

SHARES: Mapping[str, Share] = {
    "skill": Share(most=0.30),
    "session": Share(most=0.05),
    "memory": Share(most=0.15),
    "collected": Share(most=0.10),
    "summary": Share(most=0.10),
    "context": Share(most=0.25),
    "history": Share(least=0.25),
}
"""What each layer may take of the budget by default, and what the layers leave to the history."""
DEADLINE = 0.15
PAGE_ROWS = 64
CHARACTERS_PER_TOKEN = 8
"""More than any counter packs into one token on average, so that enough is always read."""

Prompts = Callable[[Turn], SystemPromptManager]


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """How a context is built, the same for every turn."""

    budget: float = 8_000
    count: Count = estimate_message_tokens
    form: Form = "headed"
    lang: Lang = "en"
    shares: Mapping[str, Share] = field(default_factory=lambda: dict(SHARES))
    deadline: float = DEADLINE
    """Seconds that an optional source may take."""
    off: Mapping[str, Phrase] = field(default_factory=dict[str, Phrase])
    """Layers that are switched off, and what the receipt says of it."""
    blind: bool = False
    """The model sees no pictures: those in the history are left out."""
    layout: Layout = "strict"
    """Of stored sessions; a request that brings its own history is always strict."""


@dataclass(frozen=True, slots=True)
class GatheredLayers:
    """What the sources gave for one turn; inside a turn only the chat grows."""

    layers: tuple[Layer, ...]
    repeat: tuple[Layer, ...] = ()
    """What is repeated in front of the words, and behind it the phase prompt."""
    phase: tuple[Layer, ...] = ()
    skipped: Mapping[str, Phrase] = field(default_factory=dict[str, Phrase])
    envelope: PromptEnvelope | None = None


class ContextBuilder:
    """`build(turn)` gives the context of a turn: [0] to [6], each from its source, each in the receipt."""

    def __init__(
        self,
        sources: Sequence[Source],
        history: Messages,
        *,
        settings: BuildSettings | None = None,
        prompts: Prompts | None = None,
        tools: ToolRegistry | Mapping[str, ToolRegistry] | None = None,
        memories: Memories | None = None,
        secret: bytes = b"",
    ) -> None:
        """`secret` makes the marks of turns that have none; without one the builder makes its own."""
        self.settings = settings or BuildSettings()
        self._memories = memories
        self.sources = list(sources)
        self._history, self._prompts, self._tools = history, prompts, tools
        self._secret = secret or os.urandom(16)

    def marked(self, turn: Turn) -> Turn:
        """The turn with the mark of its session's fences: the same on all its turns."""
        return turn if turn.mark else replace(turn, mark=turn_mark(self._secret, turn.session))

    async def check_messages(self, turn: Turn) -> Sequence[AnyMessage]:
        """What the user said, or the results of the caller's tools, as messages. They are checked here, once: after
        that they are stored, and sent with every request that follows."""
        content = turn.user if isinstance(turn.user, str) else [dict(part) for part in turn.user]
        messages: Sequence[AnyMessage] = turn.given.results or [{"role": "user", "content": content}]
        for message in messages:
            await run_apart(size_of(message), check_message, message, "message")
        if self.settings.blind and any(has_pictures(message) for message in messages):
            raise MessageError("message.no_pictures")
        return messages

    async def build(self, turn: Turn) -> Context:
        turn = self.marked(turn)
        await self.check_messages(turn)
        requests = await self.requests(turn)
        gathered, chat = await asyncio.gather(self.gather(turn), self.chat(turn))
        if turn.given.results:  # they are stored when the turn begins
            chat = replace(chat, messages=insert_results(chat.messages, turn.given.results))
        size = size_of((turn.user, turn.given.system, turn.given.tools)) + chat.size
        return await run_apart(size, self.assemble, turn, gathered, chat, turn.given.since, requests)

    async def requests(self, turn: Turn) -> TurnRequests | None:
        """What the requests of a turn continue from, in the layout `ledger`; to be read before anything else."""
        settings = self.settings
        if settings.layout == "strict" or turn.given.history is not None:
            return None
        past: StoredLedger = await read_stored_ledger(self._history, self._memories, turn)
        return TurnRequests(past, self._budget(turn), self._style(turn), tuple(settings.off))

    def _budget(self, turn: Turn) -> Budget:
        """The budget of a request, its counter corrected by what the provider has reported."""
        settings, learnt = self.settings, Runtime.of(turn.session.runtime).calibration
        count = learnt.applied(settings.count) if learnt.estimated else settings.count
        return Budget(settings.budget, count, settings.shares)

    def _style(self, turn: Turn) -> PromptStyle:
        return PromptStyle(self.marked(turn).mark, turn.owner, self.settings.lang, self.settings.form)

    def prompts(self, turn: Turn) -> SystemPromptManager | None:
        """Who decides about the injections of a turn that is sent."""
        return self._prompts(turn) if self._prompts else None

    async def gather(self, turn: Turn, prompts: SystemPromptManager | None = None) -> GatheredLayers:
        """Every source is asked at once; what they say is put in the order of the layers. Without `prompts` this is for
        looking only, and no injection is logged or counted."""
        turn, envelope = self.marked(turn), None
        manager = prompts or self.prompts(turn)
        if manager:
            use = turn.context_use if turn.context_use is not None else turn.session.runtime.get("use")
            texts = await self._history.texts(turn.owner, manager.wanted) if manager.wanted else None
            envelope = manager.prepare(
                turn.user, phase_prompt=turn.phase or None, context_use=use, texts=texts, dry=prompts is None
            )
        answers = await asyncio.gather(*(self._ask(source, turn) for source in self.sources), return_exceptions=True)
        layers = list(envelope.layers) if envelope else []
        skipped = dict(self.settings.off)
        for source, answer in zip(self.sources, answers, strict=True):
            if isinstance(answer, BaseException):
                if not source.optional or not isinstance(answer, Exception):
                    raise answer
                called = source.called if isinstance(source, FunctionSource) else ""
                skipped[f"{source.name}:{called}" if called else source.name] = _why(answer, self.settings.deadline)
            else:
                layers += answer
        if turn.given.system.strip():  # below the operator's words, and in a fence, whatever it says
            layers.append(Layer("caller", turn.given.system, "system text of the caller", turn.owner, "user"))
        mode = turn.session.mode or "ask"
        layers.append(Layer("mode", mode_hint(mode), f"mode:{mode}"))
        tools = self.tools(turn)
        layers += [tools.layer()] if tools else []
        if turn.given.results:  # the turn continues in its middle: nothing is injected there
            return GatheredLayers(tuple(layers), skipped=skipped)
        phase = (Layer("mode", turn.phase, "phase prompt", trust="user"),) if turn.phase else ()
        repeat = (*(envelope.repeat if envelope else ()), *phase)
        return GatheredLayers(tuple(layers), repeat, phase, skipped, envelope)

    def missing(self, gathered: GatheredLayers) -> list[Phrase]:
        """What should be there and is not, for people: a source that failed, a skill that is gone."""
        found = {name: why for name, why in gathered.skipped.items() if name not in self.settings.off}
        return [
            Phrase("notice.left_out" if why.code == LEFT_OUT else "notice.without", source=name, why=why.values["why"])
            for name, why in found.items()
        ]

    def tools(self, turn: Turn) -> ToolRegistry | None:
        """The tools that the session's mode allows."""
        mode = turn.session.mode or "ask"
        if isinstance(self._tools, Mapping):
            return self._tools.get(mode)
        return self._tools.for_mode(mode) if self._tools else None

    async def chat(self, turn: Turn) -> Chat:
        """[5]: the rolling window of this session, and of no other, from its last compaction on."""
        if turn.given.history is not None:
            return Chat(self._seen(turn.given.history), 0, size=size_of(turn.given.history))
        found = await read_chat(
            self._history,
            turn.owner,
            turn.session.session_id,
            budget=self.settings.budget,
            before=turn.before,
            after=Runtime.of(turn.session.runtime).folded,
        )
        return replace(found, messages=self._seen(found.messages))

    def _seen(self, messages: Sequence[Message]) -> list[Message]:
        return [remove_pictures(message) for message in messages] if self.settings.blind else list(messages)

    def assemble(
        self,
        turn: Turn,
        gathered: GatheredLayers,
        chat: Chat,
        since: Sequence[Message] = (),
        requests: TurnRequests | None = None,
    ) -> Context:
        """A request; `since` is what the turn itself has added, calls and their results."""
        turn, settings, registry = self.marked(turn), self.settings, self.tools(turn)
        tools = [*(registry.schemas if registry else ()), *turn.given.tools]
        hints = Runtime.of(turn.session.runtime).layers(settings.lang)
        if requests:
            context = requests.context(
                turn,
                [*gathered.layers, *hints],
                chat,
                since,
                tools=tools,
                repeat=gathered.repeat,
                skipped=gathered.skipped,
            )
            return _triggered(context, gathered.envelope)
        context = assemble(
            [*gathered.layers, *hints],
            [*chat.messages, *since] if turn.given.results else chat.messages,
            None if turn.given.results else turn.user,
            budget=self._budget(turn),
            style=self._style(turn),
            tools=tools,
            skipped=gathered.skipped,
            older=chat.older,
            repeat=gathered.repeat,
            since=since,
        )
        return _triggered(context, gathered.envelope)

    async def _ask(self, source: Source, turn: Turn) -> Sequence[Layer]:
        if source.name in self.settings.off:
            return ()
        if not source.optional:
            return await source.layers(turn)
        async with asyncio.timeout(self.settings.deadline):
            return await source.layers(turn)


def turn_mark(secret: bytes, session: Session) -> str:
    """The mark of a session's fences; a new session with the name of a deleted one has another."""
    return session_mark(secret, f"{session.owner}\n{session.session_id}\n{session.created!r}")


def _triggered(context: Context, envelope: PromptEnvelope | None) -> Context:
    """The context with what triggered its injection in the receipt."""
    if envelope is None or not envelope.triggers:
        return context
    return replace(context, receipt=replace(context.receipt, triggers=envelope.triggers))


def _why(error: Exception, deadline: float) -> Phrase:
    if isinstance(error, TimeoutError):
        return Phrase("reason.skipped", why=Phrase("reason.no_answer", ms=round(1_000 * deadline)))
    if isinstance(error, NotFoundError):
        return Phrase(LEFT_OUT, why=error.phrase)
    return Phrase("reason.skipped", why=error.phrase if isinstance(error, LaminaError) else type(error).__name__)


async def read_chat(
    store: Messages, owner: str, session_id: str, *, budget: float, before: int | None = None, after: int = 0
) -> Chat:
    """What may fit into `budget` tokens of the messages between two numbers. Rows are read from the newest back, page
    by page, until more would not fit, so a long session costs no more than a short one."""
    rows: list[StoredMessage] = []
    room = max(0.0, budget) * CHARACTERS_PER_TOKEN
    edge, size, limit = before, 0, PAGE_ROWS
    while True:
        page = await store.list(owner, session_id, after=after, before=edge, limit=limit, newest=True)
        rows[:0] = page
        size += sum(len(row.text) + size_of(row.extra) for row in page) + len(page) * CHARACTERS_PER_TOKEN
        if len(page) < limit or page[0].seq == after + 1 or size > room:
            break
        edge, limit = page[0].seq, 2 * limit
    last = rows[-1].seq if rows else after
    if rows and rows[0].seq > after + 1:  # a turn that was cut in the middle is left out
        first = rows[0].turn_id
        whole = next((n for n, row in enumerate(rows) if not first or row.turn_id != first), len(rows))
        rows = rows[whole:]
    messages = await run_apart(size, lambda: close_calls(group_turns(rows)))
    return Chat(messages, (rows[0].seq - 1 if rows else last) - after, rows, size)
