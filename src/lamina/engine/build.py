"""The layers of a turn are gathered once, from their sources; then a context is assembled from them (C1–C4).

It knows sources and the history by their ports, and nothing else builds a request from a session. It fails closed: a
source that cannot be read stops the turn, unless a turn can do without it, and then the receipt says why.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lamina.assembly.context import assemble
from lamina.assembly.entries import admit
from lamina.assembly.fences import session_mark
from lamina.assembly.prompt import mode_hint
from lamina.assembly.tokens import estimate_message_tokens
from lamina.assembly.told import LEFT_OUT
from lamina.engine.layout import Changes, Past, Requests, read_past
from lamina.engine.state import Runtime
from lamina.errors import LaminaError, NotFoundError, PromptError
from lamina.layers.history import Chat, answered, read_chat, without_pictures
from lamina.layers.injection import PromptEnvelope, SystemPromptManager
from lamina.layers.tools import ToolRegistry
from lamina.ports import Count, HistoryRows, Source
from lamina.records import Turn
from lamina.types import Context, Form, Lang, Layer, Layout, Message, Share

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
SKIPPED = "skipped: "

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
    off: Mapping[str, str] = field(default_factory=dict[str, str])
    """Layers that are switched off, and the words for it in the receipt."""
    blind: bool = False
    """The model sees no pictures: those in the history are left out."""
    layout: Layout = "strict"
    """Of stored sessions; a request that brings its own history is always strict."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """What the sources gave for one turn; inside a turn only the chat grows."""

    layers: tuple[Layer, ...]
    repeat: tuple[Layer, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict[str, str])
    envelope: PromptEnvelope | None = None
    manager: SystemPromptManager | None = None
    """Who is told that the envelope was sent."""


class ContextBuilder:
    """`build(turn)` gives the context of a turn: [0] to [6], each from its source, each in the receipt."""

    def __init__(
        self,
        sources: Sequence[Source],
        history: HistoryRows,
        *,
        settings: BuildSettings | None = None,
        prompts: Prompts | None = None,
        tools: ToolRegistry | Mapping[str, ToolRegistry] | None = None,
        memories: Changes | None = None,
    ) -> None:
        self.settings = settings or BuildSettings()
        self._memories = memories
        self.sources = list(sources)
        self._history, self._prompts, self._tools = history, prompts, tools

    async def build(self, turn: Turn) -> Context:
        requests = await self.requests(turn)
        gathered, chat = await asyncio.gather(self.gather(turn), self.chat(turn))
        if turn.given.results:  # they are stored when the turn begins
            chat = replace(chat, messages=answered(chat.messages, turn.given.results))
        return self.assemble(turn, gathered, chat, turn.given.since, requests)

    async def requests(self, turn: Turn) -> Requests | None:
        """What the requests of a turn go on from, in the layout `ledger`; to be asked for before anything else."""
        settings = self.settings
        if settings.layout == "strict" or turn.given.history is not None:
            return None
        past: Past = await read_past(self._history, self._memories, turn)
        return Requests(
            past, tuple(settings.off), budget=settings.budget,
            count=self._count(Runtime.of(turn.session.runtime)), owner=turn.owner, mark=turn_mark(turn),
            lang=settings.lang, form=settings.form, shares=settings.shares,
        )  # fmt: skip

    def _count(self, runtime: Runtime) -> Count:
        """The counter with what the provider has taught about it."""
        learnt = runtime.calibration
        return learnt.applied(self.settings.count) if learnt.estimated else self.settings.count

    async def gather(self, turn: Turn) -> Gathered:
        """Every source is asked at once; what they say stands in the order of the layers."""
        envelope = None
        manager = self._prompts(turn) if self._prompts else None
        if manager:
            use = turn.context_use if turn.context_use is not None else turn.session.runtime.get("use")
            envelope = manager.prepare(turn.user, phase_prompt=turn.phase_prompt, context_use=use)
        answers = await asyncio.gather(*(self._ask(source, turn) for source in self.sources), return_exceptions=True)
        layers = list(envelope.layers) if envelope else []
        skipped = dict(self.settings.off)
        for source, answer in zip(self.sources, answers, strict=True):
            if isinstance(answer, BaseException):
                if not source.optional or not isinstance(answer, Exception):
                    raise answer
                called = getattr(source, "called", "")
                skipped[f"{source.name}:{called}" if called else source.name] = _why(answer, self.settings.deadline)
            else:
                layers += answer
        layers += [self._caller(turn)] if turn.given.system.strip() else []
        hint = mode_hint(turn.session.mode or "ask")
        layers += [Layer("mode", hint, f"mode:{turn.session.mode}")] if hint else []
        tools = self.tools(turn)
        layers += [tools.layer()] if tools else []
        repeat = list(envelope.repeat) if envelope else []
        if turn.phase_prompt and turn.phase_prompt.strip():
            repeat.append(Layer("mode", turn.phase_prompt, "phase prompt"))
        if turn.given.results:  # the turn goes on in its middle: nothing is injected there
            return Gathered(tuple(layers), (), skipped)
        return Gathered(tuple(layers), tuple(repeat), skipped, envelope, manager)

    def missed(self, gathered: Gathered) -> list[str]:
        """What should be there and is not, in words for people: a source that failed, a skill that is gone."""
        found = {name: why for name, why in gathered.skipped.items() if name not in self.settings.off}
        return [
            why.removeprefix(LEFT_OUT) if why.startswith(LEFT_OUT) else f"without {name}: {why.removeprefix(SKIPPED)}"
            for name, why in found.items()
        ]

    def _caller(self, turn: Turn) -> Layer:
        """The caller's own system text: below the operator's, and fenced where it imitates lamina's words."""
        layer = Layer("caller", turn.given.system, "the caller's system text", turn.owner, "user")
        try:
            admit(layer, turn.owner, turn_mark(turn), self.settings.lang, self.settings.form)
        except PromptError:
            return replace(layer, trust="outside")
        return layer

    def tools(self, turn: Turn) -> ToolRegistry | None:
        """The tools that the session's mode allows."""
        mode = turn.session.mode or "ask"
        if isinstance(self._tools, Mapping):
            return self._tools.get(mode)
        return self._tools.for_mode(mode) if self._tools else None

    async def chat(self, turn: Turn) -> Chat:
        """[5]: the rolling window of this session, and of no other, from its last compaction on."""
        if turn.given.history is not None:
            return Chat(self._seen(turn.given.history), 0)
        found = await read_chat(
            self._history, turn.owner, turn.session.session_id, budget=self.settings.budget, before=turn.before,
            after=Runtime.of(turn.session.runtime).folded,
        )  # fmt: skip
        return replace(found, messages=self._seen(found.messages))

    def _seen(self, messages: Sequence[Message]) -> list[Message]:
        return [without_pictures(message) for message in messages] if self.settings.blind else list(messages)

    def assemble(
        self, turn: Turn, gathered: Gathered, chat: Chat, since: Sequence[Message] = (),
        requests: Requests | None = None,
    ) -> Context:  # fmt: skip
        """A request; `since` is what the turn itself has added, calls and their results."""
        settings, registry = self.settings, self.tools(turn)
        tools = [*(registry.schemas if registry else ()), *turn.given.tools]
        runtime = Runtime.of(turn.session.runtime)
        hints = runtime.layers(settings.lang, turn_mark(turn))
        if requests:
            return requests.context(
                turn, [*gathered.layers, *hints], chat, since, tools=tools, repeat=gathered.repeat,
                skipped=gathered.skipped,
            )  # fmt: skip
        return assemble(
            [*gathered.layers, *hints],
            history=[*chat.messages, *since] if turn.given.results else chat.messages,
            user=None if turn.given.results else turn.user,
            since=since,
            budget=settings.budget,
            count=self._count(runtime),
            tools=tools,
            owner=turn.owner,
            mark=turn_mark(turn),
            lang=settings.lang,
            form=settings.form,
            shares=settings.shares,
            skipped=gathered.skipped,
            older=chat.older,
            repeat=gathered.repeat,
        )

    async def _ask(self, source: Source, turn: Turn) -> Sequence[Layer]:
        if source.name in self.settings.off:
            return ()
        if not source.optional:
            return await source.layers(turn)
        async with asyncio.timeout(self.settings.deadline):
            return await source.layers(turn)


def turn_mark(turn: Turn) -> str:
    """The mark of a session's fences: the same on all its turns, and not to be guessed from its name alone."""
    session = turn.session
    return session_mark(f"{session.owner}\n{session.session_id}\n{session.created!r}")


def _why(error: Exception, deadline: float) -> str:
    if isinstance(error, TimeoutError):
        return f"skipped: no answer within {1_000 * deadline:.0f} ms"
    if isinstance(error, NotFoundError):
        return f"{LEFT_OUT}{error.message}"
    what = error.message if isinstance(error, LaminaError) else type(error).__name__
    return f"{SKIPPED}{what}"
