"""One object that has everything a chat needs, built once from settings: store, memory, sources, builder, engine."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence, Set
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from lamina.app.config import (
    IDENTITY,
    MARK_SLOT,
    check_hidden,
    complete_with,
    counter,
    embedder_of,
    file_layer,
    instruction_files,
    open_tools,
    prompt_manager,
    provider_of,
    request_budget,
    window_of,
)
from lamina.app.follow import follow, follow_stored, position_of, requests_of
from lamina.app.lookup import add_templates, import_templates
from lamina.app.session import SessionHandle
from lamina.app.worker import Worker, end_job, jobs_after_turn
from lamina.assembly.history import check_message
from lamina.assembly.request import Words
from lamina.assembly.tokens import CachedCount
from lamina.assembly.trace import pack
from lamina.engine.build import SHARES, BuildSettings, ContextBuilder, turn_mark
from lamina.engine.compaction import CompactionResult
from lamina.engine.handle import TurnHandle
from lamina.engine.turn import CANCELLED, Engine, TurnLimits
from lamina.errors import (
    InputError,
    LayerError,
    LeaseError,
    NotFoundError,
    OwnerError,
    SettingsError,
    StoreDamagedError,
    StoreError,
    format_value,
)
from lamina.memory.service import FROM_MEMORY, MemoryService, WithoutIndex
from lamina.ports import Ask, Complete, Embedder, Provider, Source
from lamina.prompts.injection import InjectionState, SystemPromptManager
from lamina.prompts.instructions import InstructionFiles
from lamina.prompts.sources import SHARED, FunctionSource, SourceFunction, chat_sources
from lamina.records import (
    MAX_PHASE_CHARACTERS,
    NO_CALLER_INPUT,
    REQUESTS,
    NewSession,
    Session,
    Template,
    Turn,
    TurnOptions,
    TurnRecord,
)
from lamina.settings import HOSTED, Settings, default_store, fill_places
from lamina.store.database import Clock, clean
from lamina.store.lock import make_private_folder
from lamina.store.store import Store, open_store
from lamina.text.messages import Phrase
from lamina.tools.registry import ToolRegistry
from lamina.types import Context, Layer, Receipt, Trust, TurnEvent

if TYPE_CHECKING:
    from lamina.memory.recall import Recall

OFF = Phrase("reason.switched_off", setting="memory")
Tools = ToolRegistry | Mapping[str, ToolRegistry]
"""Those of every mode, or for each mode its own."""
MAX_SINGLE_OWNERS = 10_000
LEASE_S, SHARED_LEASE_S = 60.0, 4.0
"""Seconds after which a turn whose lease is not renewed is ended: where this process is alone, and where it is not."""


def _make_finder(store: Store, settings: Settings, embedder: Embedder | None, index: bool) -> "Recall | WithoutIndex":
    if not settings.memory or not index:
        return WithoutIndex(store.memories)
    try:
        embedder = embedder_of(settings) if embedder is None else embedder
        from lamina.memory.recall import Recall  # noqa: PLC0415 -- numpy is an extra
    except ModuleNotFoundError as error:
        raise SettingsError("memory.package_missing", package=error.name) from None
    if embedder is not None and not all(hasattr(embedder, name) for name in ("name", "dimension", "embed")):
        raise SettingsError("embedder.not_one", value=format_value(embedder))
    return Recall(store.memories, embedder)


def _check_principal(owner: str) -> None:
    """Names that begin with @ are lamina's own: what is stored under them reaches every owner."""
    if owner.startswith("@"):
        raise OwnerError("owner.reserved", name=format_value(owner))


class _FileSource:
    """A layer from a file of the operator's or the user's. An unchanged file costs one `stat`; the shipped identity
    tells by which mark to know lamina's own words."""

    optional = False

    def __init__(self, name: str, path: Path, settings: Settings) -> None:
        self.name, self._path, self._settings = name, path, settings
        self._seen: tuple[int, int, int] | None = None
        self._layer = Layer(name, "")

    async def layers(self, turn: Turn, /) -> Sequence[Layer]:
        seen = self._stamp()
        if seen is None or seen != self._seen:
            check_hidden(self._path, self._settings)
            self._layer, self._seen = file_layer(self.name, self._path), seen
        if self._path != IDENTITY:
            return (self._layer,)
        return (replace(self._layer, text=self._layer.text.replace(MARK_SLOT, turn.mark)),)

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            now = self._path.stat()
        except (OSError, ValueError):  # reading it says why
            return None
        return now.st_mtime_ns, now.st_size, now.st_ino


async def _recover_turns(store: Store, settings: Settings) -> None:
    """End turns that no process answers any more. A damaged store is only read."""
    try:
        await store.turns.recover(everything=store.alone, jobs=jobs_after_turn(settings.memory))
        if store.alone:
            await store.jobs.release()
    except StoreDamagedError as error:
        logging.getLogger("lamina.store").warning("[Store] it is only read: %s", error.message)


class App:
    """The chats of many owners over one store. `async with App.open() as app: …`"""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        embedder: Embedder | None = None,
        complete: Complete | None = None,
        tools: Tools | None = None,
        provider: Provider | None = None,
        clock: Clock = time.time,
        index: bool = True,
    ) -> None:
        self.store, self.settings = store, settings
        self.has_tools = any(map(len, tools.values()) if isinstance(tools, Mapping) else [len(tools or ())])
        self._provider, self._engine = provider, None
        self._singles: set[str] = set()
        self.recall = _make_finder(store, settings, embedder, index)
        self._complete, self._clock = complete, clock
        self._files: InstructionFiles | None = None
        sources: list[Source] = [
            _FileSource("identity", Path(settings.identity) if settings.identity else IDENTITY, settings),
            *chat_sources(
                store.templates,
                store.profile,
                store.messages,
                self.memory,
                missing=settings.missing_slots,
                memories=settings.memories,
                collected=settings.collected,
                summaries=settings.summaries,
            ),
        ]
        if settings.context:
            sources.append(_FileSource("context", Path(settings.context), settings))
        off = {} if settings.memory else dict.fromkeys(FROM_MEMORY, OFF)
        build = BuildSettings(
            settings.budget,
            CachedCount(counter(settings.counter)),
            settings.form,
            settings.prompt_lang,
            {**SHARES, **settings.shares},
            settings.memory_deadline / 1_000,
            off,
            layout=settings.layout,
        )
        self.builder = ContextBuilder(
            sources, store.messages, settings=build, prompts=self._prompts, tools=tools, memories=store.memories
        )
        self._fit_window()
        self._jobs = jobs_after_turn(settings.memory)
        self.worker = Worker(store, self.memory, learns=settings.memory, here=self._here)

    @staticmethod
    @asynccontextmanager
    async def open(
        store: str | Path = "",
        *,
        settings: Settings | None = None,
        embedder: Embedder | None = None,
        complete: Complete | None = None,
        tools: Tools | None = None,
        provider: Provider | None = None,
        clock: Clock = time.time,
        work: bool = True,
        index: bool = True,
    ) -> "AsyncGenerator[App, None]":
        """Open the store that is named here or in the settings, and build everything on it. Without settings they are
        read, as `Settings.load()` does.

        Without an `embedder` or a `provider` those of the settings are taken. `work` runs the background jobs in this
        process; without `index` no memory is looked for and no encoder loaded. At the end what still runs is
        interrupted, and kept.
        """
        settings = fill_places(Settings.load() if settings is None else settings)
        where = str(store) or settings.store
        if where == default_store(settings.environ or None):
            try:
                make_private_folder(Path(where).parent)
            except OSError as error:
                raise StoreError("store.folder_not_made", path=repr(where), why=error.strerror) from None
        async with open_tools(replace(settings, store=where)) as shipped, open_store(where, clock=clock) as opened:
            tools = shipped if tools is None else tools
            await _recover_turns(opened, settings)
            app = App(
                opened,
                settings,
                embedder=embedder,
                complete=complete,
                tools=tools,
                provider=provider,
                clock=clock,
                index=index,
            )
            if work:
                await app.recall.warm()  # better now than while a user waits for an answer
            stop = asyncio.Event()
            worker = asyncio.create_task(app.worker.run(stop)) if work else None
            try:
                yield app
            finally:
                await app.close()
                stop.set()
                if worker:
                    await worker
                if app.has_provider:
                    await app.provider.close()

    @property
    def has_provider(self) -> bool:
        return self._provider is not None

    @property
    def provider(self) -> Provider:
        """Who answers: the one given, that of the settings, or the embedded model; made when it is first asked for."""
        if self._provider is None:
            self._provider = provider_of(self.settings)
            self._fit_window()
        return self._provider

    def _here(self) -> Set[str]:
        return self._engine.here if self._engine else frozenset()

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            settings, store, provider = self.settings, self.store, self.provider
            limits = TurnLimits(
                settings.steps, settings.turn_seconds, settings.turn_tokens, settings.max_tokens or None
            )
            self._engine = Engine(
                self.builder,
                store,
                provider=provider,
                limits=limits,
                jobs=self._jobs,
                complete=self._model,
                compacts=settings.compaction,
                lease=LEASE_S if store.alone else SHARED_LEASE_S,
                hide=self._hide,
            )
        return self._engine

    async def start(
        self,
        owner: str,
        session_id: str,
        user: Words,
        *,
        key: str = "",
        ask: Ask | None = None,
        **options: Unpack[TurnOptions],
    ) -> TurnHandle:
        """Say something in a session. Returns as soon as that is stored; the turn runs on without readers."""
        turn = await self.turn(owner, session_id, user, **options)
        try:
            running = await self.engine.start(turn, key=key, ask=ask)
            return follow_stored(self.store, running.turn) if running.turn.repeated else running
        except NotFoundError:
            if session_id != REQUESTS or owner not in self._singles:
                raise  # else it was deleted in the meantime and is created again
            self._singles.discard(owner)
            return await self.start(owner, session_id, user, key=key, ask=ask, **options)

    async def run(
        self,
        owner: str,
        session_id: str,
        user: Words,
        *,
        key: str = "",
        ask: Ask | None = None,
        **options: Unpack[TurnOptions],
    ) -> AsyncGenerator[TurnEvent]:
        """Say something in a session and read what comes. Leaving does not end the turn."""
        running = await self.start(owner, session_id, user, key=key, ask=ask, **options)
        async with aclosing(running.events()) as events:
            async for event in events:
                yield event

    async def requests(self, owner: str, turn_id: str) -> list[Receipt]:
        """What was sent in a turn, rebuilt from the store byte for byte; none when nothing was."""
        return await requests_of(self.store, owner, await self.store.turns.get(owner, turn_id))

    async def follow(self, owner: str, turn_id: str, after: str = "") -> AsyncGenerator[tuple[str, TurnEvent]]:
        """A turn's events behind a position, each with the position behind it, in whichever process the turn runs."""
        async with aclosing(follow(self.store, self.engine, owner, turn_id, position_of(after))) as events:
            async for place, event in events:
                yield str(place), event

    async def cancel(self, owner: str, turn_id: str) -> TurnRecord:
        """End a turn as interrupted, wherever it runs; what came is kept. One that is over stays as it is."""
        running = self.engine.running(turn_id)
        if running and running.turn.owner == owner:
            running.cancel()
            return await running.wait()
        turn = await self.store.turns.get(owner, turn_id)
        if turn.state != "streaming":
            return turn
        try:  # the process that answers it notices at its next write, and stops
            return await self.store.turns.finish(
                owner, turn_id, state="interrupted", error=CANCELLED.dump(), jobs=self._jobs(turn)
            )
        except LeaseError:
            return await self.store.turns.get(owner, turn_id)

    async def compact(self, owner: str, session_id: str) -> CompactionResult:
        """Fold all but the newest turn of a session into a summary; what would free too little is an error."""
        return await self.engine.compact(await self.turn(owner, session_id, "…"))

    async def close(self) -> None:
        """End what still runs, as interrupted."""
        if self._engine:
            await self._engine.close()

    @property
    def _model(self) -> Complete | None:
        """Who finds facts and writes summaries; None leaves it to rules."""
        learn, name = self.settings.learn, self.settings.provider
        by_model = learn == "model" or (learn == "auto" and name in HOSTED)
        if self._complete or not by_model:
            return self._complete
        return complete_with(self.provider, self.builder.settings.count)

    def _fit_window(self) -> None:
        room = request_budget(self.settings, window_of(self.settings, self._provider))
        self.builder.settings = replace(self.builder.settings, budget=room, blind=self.pictures is False)

    @property
    def pictures(self) -> bool | None:
        """Whether the model sees pictures, where that is known."""
        if self.settings.pictures != "auto":
            return self.settings.pictures == "yes"
        return getattr(self._provider, "pictures", None)

    def _hide(self, text: str) -> str:
        """Our own keys are in no tool's output."""
        token = self.settings.telegram_token
        for secret in (self.settings.api_key, self.settings.embedder_key, token.reveal() if token else ""):
            text = text.replace(secret, "…") if secret else text
        return text

    def memory(self, owner: str) -> MemoryService:
        """The memory of one owner."""
        _check_principal(owner)
        return MemoryService(self.store, self.recall, owner, complete=self._model, clock=self._clock)

    def source(
        self, name: str, *, layer: str = "context", trust: Trust = "user", optional: bool = False
    ) -> Callable[[SourceFunction], SourceFunction]:
        """Register a function that gives a layer on every turn: project constraints, rules of a knowledge graph, …
        Its text is fenced, unless `trust` says that the operator vouches for every character of it."""

        def register(function: SourceFunction) -> SourceFunction:
            if not callable(function):
                raise LayerError("source.not_function", name=name)
            self.builder.sources.append(FunctionSource(function, name, layer=layer, trust=trust, optional=optional))
            return function

        return register

    async def session(self, owner: str, session_id: str | None = None, **options: Unpack[NewSession]) -> SessionHandle:
        """A new session as an object; with the id of one that is there, that one."""
        if session_id is None:
            return SessionHandle(self, await self.new_session(owner, **options))
        _check_principal(owner)
        if options:
            raise InputError("session.options_too_late", names=list(options))
        return SessionHandle(self, await self.store.sessions.get(owner, session_id))

    async def new_session(self, owner: str, *, session_id: str = "", **options: Unpack[NewSession]) -> Session:
        """A new session: nothing of older ones but what memory and profile know (C6). With an id of your own, the one
        that is there under it, if there is one."""
        _check_principal(owner)
        settings = self.settings
        defaults: NewSession = {"scenario": settings.scenario, "app": settings.host, "mode": settings.mode}
        given: NewSession = {**defaults, **options}
        return await self.store.sessions.new(owner, session_id=session_id, **given)

    async def add_templates(self, owner: str, *templates: Template) -> Sequence[Template]:
        """Store templates and skills of one owner, all or none, checked like those of a file. One that is there under
        its name and scenario is replaced."""
        _check_principal(owner)
        return await add_templates(self.store, owner, templates)

    async def add_shared_templates(self, *templates: Template) -> Sequence[Template]:
        """The same for all owners: you vouch for every character of them."""
        return await add_templates(self.store, SHARED, templates)

    async def import_templates(self, owner: str, path: str | Path) -> Sequence[Template]:
        """Templates from a JSON file, or skills from a folder with a `SKILL.md` or with such folders."""
        _check_principal(owner)
        return await import_templates(self.store, owner, Path(path), self.settings)

    async def resume_session(self, owner: str, session_id: str) -> Session:
        """The session is taken up again: its instructions and rules come once more with the next turn."""
        session = await self.store.sessions.get(owner, session_id)
        state = session.injection
        if state:
            noted = list(dict.fromkeys([*state.get("noted", ()), "resume"]))
            state = InjectionState.from_dict({**state, "noted": noted}).to_dict()
        return await self.store.sessions.update(owner, session_id, ended=False, injection=state or None)

    async def end_session(self, owner: str, session_id: str) -> Session:
        """The session is over: it is summarised in the background, unless memory is switched off."""
        session = await self.store.sessions.update(owner, session_id, ended=True)
        if self.settings.memory:
            job = end_job(session_id, session.last_seq)
            await self.store.jobs.add(owner, job.kind, job.payload, key=job.key)
        return session

    async def collect(self, owner: str, message_id: str, on: bool = True) -> None:
        """Mark exactly this answer (C9)."""
        await self.store.messages.collect(owner, message_id, on)

    async def turn(self, owner: str, session_id: str, user: Words, **options: Unpack[TurnOptions]) -> Turn:
        """A turn of a session as it is now; in that of single requests it brings its own history."""
        _check_principal(owner)
        if session_id == REQUESTS:
            if options.get("given", NO_CALLER_INPUT).history is None:
                raise InputError("session.single_requests")
            session = await self._single_requests(owner)
        else:
            session = await self.store.sessions.get(owner, session_id)
        mark = turn_mark(await self.store.sessions.secret(owner), session)
        turn = Turn(owner, session, user, mark=mark, **options)
        clean(turn.phase, "field.phase", MAX_PHASE_CHARACTERS)
        return turn

    async def _single_requests(self, owner: str) -> Session:
        """Where requests are kept that bring their own history. Always as new: nothing goes from one to the next but
        what was warned of, and how often instructions or rules could not be read."""
        if owner in self._singles:
            try:
                return replace(await self.store.sessions.get(owner, REQUESTS), runtime={})
            except NotFoundError:  # it was deleted
                self._singles.discard(owner)
        if len(self._singles) > MAX_SINGLE_OWNERS:
            self._singles.clear()
        made = await self.new_session(owner, session_id=REQUESTS)
        self._singles.add(owner)
        return replace(made, runtime={})

    async def record(
        self,
        owner: str,
        session_id: str,
        user: Words,
        answer: str,
        *,
        context: Context | None = None,
        key: str = "",
    ) -> TurnRecord:
        """Store a turn that was answered elsewhere, by whatever SDK you use; what was said is learnt from."""
        _check_principal(owner)
        question = {"role": "user", "content": user if isinstance(user, str) else list(user)}
        check_message(question, "user")
        trace, texts = pack([context.receipt]) if context else ({}, {})
        return await self.store.turns.record(
            owner,
            session_id,
            question,
            {"role": "assistant", "content": answer},
            key=key,
            receipt=trace,
            texts=texts,
            jobs=self._jobs,
        )

    async def context(self, owner: str, session_id: str, user: Words, **options: Unpack[TurnOptions]) -> Context:
        """What the model would see if this were said now. Nothing is sent and nothing changes."""
        return await self.builder.build(await self.turn(owner, session_id, user, **options))

    def _prompts(self, turn: Turn) -> SystemPromptManager:
        """The injections of the turn's session, from the state that is kept with it."""
        if self._files is None:  # kept, so that an unchanged file costs one `stat`
            workspace = self.settings.workspace
            self._files = instruction_files(self.settings, Path(workspace) if workspace else None)
        state = InjectionState.from_dict(turn.session.injection) if turn.session.injection else None
        settings = replace(self.settings, model=turn.model) if turn.model else self.settings
        return prompt_manager(settings, self._files, state)
