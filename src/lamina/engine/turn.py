"""A turn from the question to the stored answer. There is one loop, and it is here.

The question is committed before anything is sent, text before it is shown, a call before it runs, and the answer with
its usage, receipt, injection state and jobs in one transaction. Whatever happens in between, the turn gets its end.
"""

import asyncio
import itertools
import logging
import re
import time
import traceback
from collections.abc import Callable, Sequence, Set
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from lamina.apart import run_apart, set_current_user
from lamina.assembly.fences import ADVICE, MAX_CHARS, TagFilter, find_hint_tags, tool_result
from lamina.assembly.history import MAX_CALL_ID_CHARACTERS, Chat
from lamina.assembly.request import encode
from lamina.assembly.trace import Trace
from lamina.engine.build import ContextBuilder, GatheredLayers
from lamina.engine.compaction import (
    KEPT_SHARE,
    MAX_SUMMARY_CHARACTERS,
    WRITTEN_BY,
    CompactionResult,
    check_freed,
    find_last_to_fold,
    fold,
    fold_steps,
    is_compaction_due,
    keep,
    must_fold_steps,
    with_compaction,
)
from lamina.engine.handle import TurnHandle
from lamina.engine.ledger_state import DEGRADED, Compaction, Runtime, TurnRequests
from lamina.engine.ledger_state import KEY as LEDGER
from lamina.errors import (
    BrokenStreamError,
    CompactionError,
    LaminaError,
    LeaseError,
    LimitError,
    MessageError,
    ProviderError,
    RejectedError,
    StalledError,
    StoreError,
    format_value,
)
from lamina.ports import Ask, Complete, Provider
from lamina.prompts.injection import InjectionState, SystemPromptManager
from lamina.records import FinalState, NewJob, Sent, Turn, TurnRecord
from lamina.store.store import Store
from lamina.text.json import size_of
from lamina.text.messages import NOTHING, Phrase
from lamina.text.unicode import MAX_LOOP_SIZE, join_surrogates, slices
from lamina.tools.registry import ToolRegistry
from lamina.types import (
    Began,
    Context,
    Decision,
    DoneReason,
    Ended,
    Message,
    Notice,
    Receipt,
    Text,
    ToolCall,
    ToolCallEvent,
    ToolOutput,
    ToolResult,
    Usage,
)

CANCELLED = Phrase("turn.cancelled")
PIPED = "\n\n<stdin>\n"
"""What separates the user's words from text that was piped in: what follows it is not the user's."""
ADDRESS = re.compile(r"https?://\S{1,2000}", re.IGNORECASE)
MAX_ADDRESSES = 1_000
CALLER_FAULT_STATUSES = {*range(400, 500)} - {401, 403, 404}
"""What a provider answers to a request that is wrong; the others are about our key, or our address of it."""
BATCH_INTERVAL_S = 0.05
"""Seconds that text waits for more before it is stored and shown; the first of an answer does not wait."""
YIELD_INTERVAL_S = 0.005
"""Seconds after which a stream without a pause lets other tasks run."""
LEASE_S = 60.0
OVERSIZE_FACTOR = 1.2
"""A request that is estimated this much larger than the model's window is not sent; less may be an error of ours."""
CUT_OFF = Phrase("notice.answer_cut", setting="LAMINA_MAX_TOKENS")
MAX_ANSWER_CHARACTERS = 4_000_000
"""A longer answer counts as a broken stream."""
MAX_ERROR_CHARACTERS = 2_000
MAX_REPORTED_TOKENS = 10**9
"""No provider has counted more than this for one request."""


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """How far a turn may go; over a limit it ends with a notice, and stays valid."""

    steps: int = 50
    """Requests to the model."""
    seconds: float = 600.0
    """Without the time in which a person is asked for a yes."""
    tokens: int = 0
    """Of all requests and answers together, as the provider counts them; 0 for no limit."""
    answer: int | None = None
    """Of one answer, as the provider is asked."""


@dataclass(slots=True)
class TurnState:
    """What is known of a turn while it runs."""

    turn: Turn
    record: TurnRecord
    handle: TurnHandle
    ask: Ask | None
    runtime: Runtime
    prompts: SystemPromptManager | None = None
    gathered: GatheredLayers | None = None
    chat: Chat | None = None
    requests: TurnRequests | None = None
    """In the layout `ledger`: what each request extends."""
    since: list[Message] = field(default_factory=list[Message])
    receipts: list[Receipt] = field(default_factory=list[Receipt])
    trace: Trace = field(default_factory=Trace)
    """The receipts as they are stored; written when they have to be, not before they are sent."""
    stored_requests: int = 0
    """How many of them are stored."""
    stored_texts: frozenset[str] = frozenset()
    """Texts that are stored and known to belong here: they need not be stored again."""
    usages: list[tuple[int, Usage]] = field(default_factory=list[tuple[int, Usage]])
    """What the provider counted, each with the number of its request."""
    answer_pieces: list[str] = field(default_factory=list[str])
    """The text of this step, as it has_output: adding to a text would copy all of it, every time."""
    length: int = 0
    shown_length: int = 0
    """How much of it is stored and shown."""
    chunks: int = 0
    caller_calls: Sequence[ToolCallEvent] = ()
    """Calls that the caller runs; the turn ends with them."""
    done: DoneReason = "stop"
    is_answering: bool = False
    """Something has_output from the provider: the send succeeded."""
    warned: bool = False
    has_text: asyncio.Event = field(default_factory=asyncio.Event)
    storing: asyncio.Lock = field(default_factory=asyncio.Lock)
    deadline: asyncio.Timeout | None = None
    given_size: int = -1
    """Characters of what the caller gave, once they are counted."""
    known_ids: set[str] = field(default_factory=set[str])
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    """For each id that was used again, the last number that was put behind it."""
    typed_tags: frozenset[str] = frozenset()
    """Hints that the user wrote, tag by tag."""
    typed_addresses: str = ""
    """Addresses that the user wrote."""

    @property
    def answer_text(self) -> str:
        """The text of this step."""
        if len(self.answer_pieces) > 1:
            self.answer_pieces = ["".join(self.answer_pieces)]
        return self.answer_pieces[0] if self.answer_pieces else ""

    def add_text(self, text: str) -> None:
        """More text of this step."""
        self.answer_pieces.append(text)
        self.length += len(text)
        if self.length > MAX_ANSWER_CHARACTERS:
            raise BrokenStreamError("provider.answer_too_long", limit=MAX_ANSWER_CHARACTERS, retryable=False)
        if self.length > self.shown_length:
            self.has_text.set()

    def begin_step(self) -> None:
        self.answer_pieces, self.length, self.shown_length = [], 0, 0

    @property
    def size(self) -> int:
        """About how many characters the next request is made of."""
        if self.given_size < 0:
            self.given_size = size_of((self.turn.user, self.turn.given.system, self.turn.given.tools))
        return self.given_size + (self.chat.size if self.chat else 0) + size_of(self.since)

    @property
    def key(self) -> tuple[str, str]:
        return self.record.owner, self.record.turn_id

    def write_trace(self) -> Trace:
        """What was sent so far, as it is stored."""
        for receipt in self.receipts[len(self.trace.requests) :]:
            self.trace.add(receipt)
        return self.trace

    def unstored_trace(self) -> Sent | None:
        """What was sent, where something of it is not stored yet."""
        if self.stored_requests == len(self.receipts):
            return None
        trace = self.write_trace()
        return Sent(trace.value, {name: text for name, text in trace.texts.items() if name not in self.stored_texts})

    def mark_stored(self, sent: Sent | None) -> None:
        """Note that a part of the trace is stored."""
        if sent:
            self.stored_requests = len(sent.receipt["requests"])
            self.stored_texts |= sent.texts.keys()

    def normalize_call(self, call: ToolCallEvent) -> ToolCallEvent:
        """The call as it can be sent again, to any provider: ids that were used twice get a number, long ones cut,
        and a tool's name has the letters that names may have. Whatever a model calls, the session continues."""
        given = name = join_surrogates(call.id[: 2 * MAX_CALL_ID_CHARACTERS])[:MAX_CALL_ID_CHARACTERS] or "call"
        number = 0
        while name in self.known_ids:
            number = max(self.numbers.get(given, 0), number) + 1
            name = f"{given[: MAX_CALL_ID_CHARACTERS - len(str(number)) - 1]}_{number}"
        self.numbers[given] = number
        self.known_ids.add(name)
        tool = re.sub(r"[^A-Za-z0-9_-]", "_", call.name[:64]) or "_"
        return ToolCallEvent(name, tool, join_surrogates(call.arguments))

    def estimate(self, context: Context) -> int:
        """What our own counter said of a request, without what was learnt since."""
        began = Runtime.of(self.turn.session.runtime)
        return max(1, round(context.receipt.tokens / began.calibration.factor))

    @property
    def changed_injection(self) -> dict[str, Any] | None:
        """The state of the session's injections, where this turn has changed it. Of requests that bring their own
        history only warnings and failed reads are kept: each of them is a first one."""
        if self.prompts is None:
            return None
        state = self.prompts.state
        if self.turn.given.history is not None:
            failures = {name: state.counters[name] for name in ("failed", "failed_in_a_row")}
            state = InjectionState(warned=state.warned, counters={**InjectionState().counters, **failures})
        was = self.turn.session.injection or InjectionState().to_dict()
        return None if state.to_dict() == was else state.to_dict()

    @property
    def injected_texts(self) -> dict[str, str]:
        """The files in force by their hashes, for later turns of the session that must not see newer ones."""
        envelope = self.gathered.envelope if self.gathered else None
        return envelope.in_force.texts if envelope and self.is_answering and self.turn.given.history is None else {}

    @property
    def timed_ask(self) -> Ask | None:
        """Who is asked for a yes; the time that this takes is not the turn's."""
        ask = self.ask
        if ask is None:
            return None

        async def asked(call: ToolCallEvent, decision: Decision) -> bool | None:
            clock, deadline = asyncio.get_running_loop().time, self.deadline
            due, began = deadline.when() if deadline else None, clock()
            if deadline:
                deadline.reschedule(None)
            try:
                return await ask(call, decision)
            finally:
                if deadline and due is not None:
                    deadline.reschedule(due + clock() - began)

        return asked

    def show_rest(self) -> None:
        """What was just stored with the step is shown."""
        if self.length > self.shown_length:
            self.handle.emit(Text(self.answer_text[self.shown_length :]))
        self.shown_length = self.length


def write_calls(calls: Sequence[ToolCallEvent]) -> list[ToolCall]:
    """Calls as a message holds them."""
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]


def describe_end(
    state: TurnState, problem: BaseException | None, limits: TurnLimits
) -> tuple[FinalState, Phrase, Phrase]:
    """How a turn ends: interrupted when something of the answer came or might have come, else failed."""
    final, error, hint = _end_of(state, problem, limits)
    return final, error.map_text(_storable), hint.map_text(_storable)


def _storable(text: str) -> str:
    return join_surrogates(text).replace("\0", "")[:MAX_ERROR_CHARACTERS]


def _end_of(state: TurnState, problem: BaseException | None, limits: TurnLimits) -> tuple[FinalState, Phrase, Phrase]:
    if problem is None:
        return "complete", NOTHING, NOTHING
    if isinstance(problem, asyncio.CancelledError):
        return "interrupted", CANCELLED, NOTHING
    if isinstance(problem, TimeoutError) and state.deadline and state.deadline.expired():
        seconds = f"{limits.seconds:g}"
        return "interrupted", Phrase("turn.too_long", n=seconds), Phrase("turn.too_long.hint", n=seconds)
    has_output = bool(state.answer_text or state.since)
    if isinstance(problem, LimitError | StalledError | BrokenStreamError) or (
        has_output and isinstance(problem, ProviderError)
    ):
        return "interrupted", problem.phrase, problem.next_step
    if isinstance(problem, LaminaError):
        return "failed", problem.phrase, problem.next_step
    what = Phrase("bug", error=f"{type(problem).__name__}: {problem}")
    return "failed", what, Phrase("bug.hint")


def http_status(problem: BaseException | None) -> int:
    """Whose matter a failure is, as HTTP says it: a request that the provider refused is the caller's."""
    if isinstance(problem, RejectedError) and problem.provider_status in CALLER_FAULT_STATUSES:
        return 400
    return problem.status if isinstance(problem, LaminaError) else 0


def sum_usage(state: TurnState, hint: Phrase) -> dict[str, Any]:
    """Sums for people who pay, each request for those who look closer, and how it ended where that is not plain."""
    done: dict[str, Any] = {"done": state.done} if state.done != "stop" else {}
    done |= {"hint": hint.dump()} if hint else {}
    if not state.usages:
        return done
    counted = {number: list(_counts(usage)) for number, usage in state.usages}
    prompt, cached, completion = (
        sum(column) for column in zip(*(_counts(one) for _, one in state.usages), strict=True)
    )
    each = [counted.get(number) for number in range(1, max(counted) + 1)]
    return {"prompt": prompt, "cached": cached, "completion": completion, "requests": each, **done}


def plausible_usage(usage: Usage) -> Usage:
    """What a provider counted; a number that no request can have is none."""
    prompt, cached, completion = (number if 0 <= number <= MAX_REPORTED_TOKENS else 0 for number in _counts(usage))
    return Usage(prompt, cached, completion)


def _counts(usage: Usage) -> tuple[int, int, int]:
    return usage.prompt, usage.cached, usage.completion


def read_user_words(state: TurnState) -> tuple[frozenset[str], str]:
    """The hints and the addresses in the user's own words, of this turn and of those in the window; what was piped in
    below them is not theirs."""
    rows = state.chat.rows if state.chat else ()
    texts = [state.turn.words, *(row.text for row in rows if row.role == "user")]
    own = [text.partition(PIPED)[0] for text in texts]
    tags = frozenset(tag for text in own for tag in find_hint_tags(text))
    found = (address for text in own if "://" in text for address in ADDRESS.finditer(text))
    return tags, "\n".join(address[0] for address in itertools.islice(found, MAX_ADDRESSES))


class Engine:
    """Runs turns: `start` returns as soon as the question is stored; the turn streams its events to any reader."""

    def __init__(
        self,
        builder: ContextBuilder,
        store: Store,
        *,
        provider: Provider,
        limits: TurnLimits | None = None,
        jobs: Callable[[TurnRecord], Sequence[NewJob]] = lambda turn: (),
        complete: Complete | None = None,
        compacts: bool = True,
        lease: float = LEASE_S,
        hide: Callable[[str], str] = lambda text: text,
    ) -> None:
        self.builder, self.provider, self.limits = builder, provider, limits or TurnLimits()
        self._store, self._turns = store, store.turns
        self._jobs, self._complete, self._compacts, self._lease, self._hide = jobs, complete, compacts, lease, hide
        self._log = logging.getLogger("lamina.engine")
        self._starting: set[asyncio.Task[TurnHandle]] = set()
        self._tasks: dict[str, tuple[TurnHandle, asyncio.Task[None]]] = {}
        self._texts_of_sessions: dict[tuple[str, str, float], frozenset[str]] = {}
        """Of each session, by owner, name and birth, the texts of its last turn: they need not be stored again."""

    async def start(self, turn: Turn, *, key: str = "", ask: Ask | None = None) -> TurnHandle:
        """Store the question; the turn runs on in a task of its own, even when the caller leaves. The same key again
        is the same turn."""
        starting = asyncio.create_task(self._start(turn, key, ask))
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        return await asyncio.shield(starting)

    async def _start(self, turn: Turn, key: str, ask: Ask | None) -> TurnHandle:
        set_current_user(turn.owner)
        turn = self.builder.marked(turn)
        messages = await self.builder.check_messages(turn)
        self._check_tools(turn)
        tokens = await run_apart(size_of(turn.user), self.builder.settings.count, turn.words)
        owner, session_id, more = turn.owner, turn.session.session_id, messages[1:]
        record = await self._turns.begin(
            owner, session_id, messages[0], key=key, lease=self._lease, tokens=tokens, more=more
        )
        if record.repeated:  # joined where it runs here; else the caller reads it from the store
            return self.running(record.turn_id) or TurnHandle(record)
        running = TurnHandle(record)
        running.emit(Began(record.turn_id, record.session_id, record.answer_message_id))
        before = record.answer_seq if turn.given.results else record.user_seq
        state = TurnState(replace(turn, before=before), record, running, ask, Runtime.of(turn.session.runtime))
        state.since = list(turn.given.since)
        state.stored_texts = self._texts_of_sessions.get(_session_key(turn), frozenset())
        task = asyncio.create_task(self._supervise(state))
        self._tasks[record.turn_id] = (running, task)
        task.add_done_callback(lambda _: self._tasks.pop(record.turn_id, None))
        return running

    def _check_tools(self, turn: Turn) -> None:
        """A caller's tools have names of their own."""
        ours = {tool.name for tool in self.builder.tools(turn) or ()}
        if twice := sorted(ours & turn.given.tool_names):
            raise MessageError("tool.name_taken", name=format_value(twice[0]))

    @property
    def here(self) -> Set[str]:
        """Turns that run in this process."""
        return self._tasks.keys()

    def running(self, turn_id: str) -> TurnHandle | None:
        """A turn that runs in this process."""
        found = self._tasks.get(turn_id)
        return found[0] if found else None

    async def close(self) -> None:
        """End what still runs, as interrupted."""
        await asyncio.gather(*self._starting, return_exceptions=True)
        held = list(self._tasks.values())
        for running, _ in held:
            running.cancel()
        await asyncio.gather(*(task for _, task in held), return_exceptions=True)

    async def _supervise(self, state: TurnState) -> None:
        """Whatever the loop ends with, the turn gets its end."""
        loop = asyncio.create_task(self._loop(state))
        state.handle.attach(loop)
        helpers = [asyncio.create_task(each) for each in (self._store_texts(state), self._renew_lease(state))]
        for helper in helpers:  # a store that refuses ends the turn
            helper.add_done_callback(lambda done: None if done.cancelled() or not done.exception() else loop.cancel())
        (problem,) = await asyncio.gather(loop, return_exceptions=True)
        async with state.storing:  # what is being stored is stored, and then shown
            for helper in helpers:
                helper.cancel()
        lost = await asyncio.gather(*helpers, return_exceptions=True)
        trouble = next((one for one in lost if isinstance(one, Exception)), None)
        (failed,) = await asyncio.gather(self._finish(state, trouble or problem), return_exceptions=True)
        if isinstance(failed, LeaseError):  # another process ended it in the meantime
            (failed,) = await asyncio.gather(self._finish(state, failed), return_exceptions=True)
        if isinstance(failed, BaseException):
            self._log.error("[Engine] the end of turn %s could not be stored: %s", state.record.turn_id, failed)
            error = (
                failed
                if isinstance(failed, LaminaError)
                else StoreError("bug", error=f"{type(failed).__name__}: {failed}")
            )
            state.handle.end(state.record, Ended("failed", error.phrase, error.next_step))

    async def _loop(self, state: TurnState) -> None:
        """The one loop: assemble, ask, and while the model calls tools, run them and ask again."""
        async with asyncio.timeout(self.limits.seconds) as state.deadline:
            turn = state.turn
            state.requests, state.prompts = await self.builder.requests(turn), self.builder.prompts(turn)
            gathering = asyncio.gather(self.builder.gather(turn, state.prompts), self.builder.chat(turn))
            try:
                gathered, state.chat = await gathering
            finally:
                state.handle.emit(*(state.prompts.notices if state.prompts else ()))
            state.gathered = gathered
            state.typed_tags, state.typed_addresses = await run_apart(state.size, read_user_words, state)
            state.handle.emit(*(Notice("degraded", why) for why in self.builder.missing(gathered)))
            for _ in range(self.limits.steps):
                context = await self._next_request(state)
                calls = await self._answer(state, context)
                state.caller_calls = [call for call in calls if call.name in turn.given.tool_names]
                if not calls or state.caller_calls:  # the caller's come first; the model can ask for ours again
                    return
                await self._run_tools(state, calls)
                spent = sum(usage.prompt + usage.completion for _, usage in state.usages)
                if self.limits.tokens and spent > self.limits.tokens:
                    raise LimitError("turn.token_limit", spent=spent, limit=self.limits.tokens)
        raise LimitError("turn.step_limit", limit=self.limits.steps)

    async def _next_request(self, state: TurnState) -> Context:
        """The next request, within the window: what is older is folded when that is due, at every step (S9)."""
        context = await self._build_within_window(state)
        window = self.provider.window
        if window and context.receipt.tokens > OVERSIZE_FACTOR * window:  # no provider would take it
            raise MessageError("request.too_large", tokens=context.receipt.tokens, window=window)
        return context

    async def _build_within_window(self, state: TurnState) -> Context:
        """What is repeated in front of the words is added last: folding does not make it any shorter."""
        gathered = state.gathered
        again = gathered is not None and gathered.envelope is not None and bool(gathered.envelope.repeat)
        if gathered and again:
            state.gathered = replace(gathered, repeat=gathered.phase)
        context = await self._assemble(state)
        if state.turn.given.history is None:
            context = await self._fold_history(state, context)
        if again:
            state.gathered = gathered
            context = await self._assemble(state)
        return context

    async def _fold_history(self, state: TurnState, context: Context) -> Context:
        if self._compacts and is_compaction_due(context):
            refused: LaminaError | None = None
            try:  # results of calls are the question of their turn
                await self._compact(state, context, turns=1 if state.turn.given.results else 0)
            except CompactionError as error:
                refused = error
            context = await self._assemble(state)  # where it was refused too: what was tried is not what is sent
            if refused and context.receipt.dropped.count and not state.warned:  # else all of it fits
                reason = Phrase("notice.not_compacted", why=refused.phrase, hint=refused.next_step)
                state.handle.emit(Notice("compaction", reason))
                state.warned = True
        if self._compacts and must_fold_steps(context) and await self._fold_steps(state):
            context = await self._assemble(state)
        return context

    async def _fold_steps(self, state: TurnState) -> bool:
        """A turn of very many steps: the earlier ones give way to a line for each call. Nothing stored changes."""
        settings, session = self.builder.settings, state.turn.session
        room = KEPT_SHARE * settings.budget
        text, rest = await run_apart(state.size, fold_steps, state.since, room, MAX_SUMMARY_CHARACTERS, settings.count)
        if len(rest) == len(state.since):
            return False
        earlier = str(session.runtime.get("steps", ""))
        steps = f"{earlier}\n{text}"[-MAX_SUMMARY_CHARACTERS:].strip() if earlier else text
        state.turn = replace(state.turn, session=replace(session, runtime={**session.runtime, "steps": steps}))
        state.handle.emit(Notice("compaction", Phrase("notice.steps_folded", n=len(state.since) - len(rest))))
        state.since = rest
        return True

    async def _assemble(self, state: TurnState) -> Context:
        return await run_apart(state.size, self._assemble_now, state)

    def _assemble_now(self, state: TurnState) -> Context:
        assert state.gathered is not None
        assert state.chat is not None
        context = self.builder.assemble(state.turn, state.gathered, state.chat, state.since, state.requests)
        return replace(context, receipt=encode(context, self.provider.grammar))

    async def _compact(
        self, state: TurnState, context: Context, room: float = KEPT_SHARE, turns: int = 0
    ) -> Compaction:
        """Fold, see that it frees enough, and only then keep it. Summaries that fill the window are written as one."""
        assert state.chat is not None
        settings, session = self.builder.settings, state.turn.session
        room *= settings.budget
        upto = await run_apart(state.size, find_last_to_fold, state.chat.rows, room, settings.count, turns=turns)
        try:
            made = await self._fold(state, context, upto)
        except CompactionError:
            full = context.receipt.dropped.count > 0 or context.receipt.over_budget
            if not full or not Runtime.of(session.runtime).compactions:
                raise
            made = await self._fold(state, context, upto, again=True)
        if state.prompts:
            state.prompts.note("compaction")
        await keep(self._store.sessions, session, made, state.changed_injection)
        by = Phrase(WRITTEN_BY[made.written_by])
        folded = Phrase("notice.folded", first=made.first, last=made.upto, by=by)
        state.handle.emit(Notice("compaction", folded))
        return made

    async def _fold(self, state: TurnState, context: Context, upto: int, *, again: bool = False) -> Compaction:
        """Try a compaction: the turn continues with it, or is as before where it frees too little."""
        session, budget = state.turn.session, self.builder.settings.budget
        made = await fold(self._store.messages, session, upto, budget=budget, complete=self._complete, again=again)
        runtime = {**session.runtime, "compactions": with_compaction(session, made)}
        after = replace(state.turn, session=replace(session, runtime=runtime))
        chat = await self.builder.chat(after)
        before, state.turn, state.chat = (state.turn, state.chat), after, chat
        try:
            check_freed(context, await self._assemble(state))
        except CompactionError:
            state.turn, state.chat = before
            raise
        return made

    async def compact(self, turn: Turn) -> CompactionResult:
        """Fold a session now, all but its newest turn. The words of the turn only hold the place of the next ones."""
        turn = self.builder.marked(turn)
        owner, session_id = turn.owner, turn.session.session_id
        record = TurnRecord(owner, "", session_id, "", "streaming", "", 0, "", 0, {}, {}, "", 0.0, None, 0.0)
        state = TurnState(turn, record, TurnHandle(record), None, Runtime.of(turn.session.runtime))
        state.requests, state.prompts = await self.builder.requests(turn), self.builder.prompts(turn)
        state.gathered, state.chat = await asyncio.gather(self.builder.gather(turn), self.builder.chat(turn))
        before = await self._assemble(state)
        made = await self._compact(state, before, room=0, turns=1)
        after = await self._assemble(state)
        whole_before = before.receipt.tokens + before.receipt.dropped.tokens
        return CompactionResult(whole_before, after.receipt.tokens, made.upto, made.text, made.written_by)

    async def _answer(self, state: TurnState, context: Context) -> list[ToolCallEvent]:
        """One request: its texts are stored and shown by `_store_texts`; its calls are returned when it is over."""
        state.receipts.append(context.receipt)
        # A request whose answer is slow to begin is stored before the first text comes.
        later = asyncio.get_running_loop().call_later(BATCH_INTERVAL_S, state.has_text.set)
        state.begin_step()
        tags = TagFilter(state.turn.mark, state.typed_tags.__contains__)
        calls: list[ToolCallEvent] = []
        try:
            given = state.turn.given
            limits = [limit for limit in (self.limits.answer, given.max_tokens) if limit is not None]
            options = {**given.options, "model": state.turn.model} if state.turn.model else given.options
            streamed = self.provider.stream(context, max_tokens=min(limits, default=None), options=options)
            async with aclosing(streamed) as stream:
                rested = time.monotonic()
                async for event in stream:
                    if (
                        time.monotonic() - rested > YIELD_INTERVAL_S
                    ):  # a provider that never waits starves no other turn
                        await asyncio.sleep(0)
                        rested = time.monotonic()
                    self._mark_sent(state)
                    if isinstance(event, Text):
                        for text in slices(event.text, MAX_LOOP_SIZE):
                            state.add_text(tags.feed(join_surrogates(text)))
                            if len(event.text) > MAX_LOOP_SIZE:
                                await asyncio.sleep(0)
                    elif isinstance(event, ToolCallEvent):
                        calls.append(state.normalize_call(event))
                    elif isinstance(event, Usage):
                        counted = plausible_usage(event)
                        state.usages.append((len(state.receipts), counted))
                        state.runtime = state.runtime.counted(counted, state.estimate(context), self.provider.window)
                        state.handle.emit(counted)
                    else:
                        state.done = event.reason
        finally:
            later.cancel()
            state.add_text(tags.close())
        return calls

    def _mark_sent(self, state: TurnState) -> None:
        """The send succeeded: now, and only now, the state of the injections moves (I7)."""
        if not state.is_answering and state.prompts and state.gathered and state.gathered.envelope:
            state.prompts.sent(state.gathered.envelope)
        state.is_answering = True
        if state.requests:
            state.requests.sent()

    async def _run_tools(self, state: TurnState, calls: Sequence[ToolCallEvent]) -> None:
        """The calls are stored before the first of them runs, and each result before it is shown."""
        asked: Message = {"role": "assistant", "content": state.answer_text or None, "tool_calls": write_calls(calls)}
        await asyncio.shield(self._store_message(state, asked))
        for call in calls:
            state.handle.emit(call)
            result, content = await self._result(state, call)
            await asyncio.shield(
                self._store_message(state, {"role": "tool", "content": content, "tool_call_id": call.id})
            )
            state.handle.emit(result)

    async def _store_message(self, state: TurnState, message: Message) -> None:
        """Store a message of the turn, and with calls the text beside them. Not to be cancelled in the middle: what is
        stored here must not be stored again with the answer; the end of the turn waits for it."""
        async with state.storing:
            sent = await run_apart(state.size, state.unstored_trace)
            await self._turns.add(*state.key, [message], lease=self._lease, sent=sent)
            state.mark_stored(sent)
            state.since.append(message)
            if message["role"] == "assistant":
                state.show_rest()
                state.begin_step()

    async def _result(self, state: TurnState, call: ToolCallEvent) -> tuple[ToolResult, ToolOutput]:
        """Run a call; what it said, and the same as the model gets it: cut, without secrets, with our hints beside."""
        tools, began = self.builder.tools(state.turn) or ToolRegistry(), time.monotonic()
        outcome = await tools.call(call, ask=state.timed_ask, user_text=state.typed_addresses)
        text = self._hide(join_surrogates(outcome.text))
        known = {tool.name: tool for tool in tools}.get(call.name)
        limit, advice = (known.max_chars, known.too_long) if known else (MAX_CHARS, "")
        content = tool_result(text, tool=call.name, max_chars=limit, advice=advice or ADVICE, state=outcome.state)
        if known and outcome.state in ("done", "failed"):
            was = call.name in state.runtime.degraded
            state.runtime = state.runtime.tried(call.name, failed=outcome.state == "failed")
            if call.name in state.runtime.degraded and not was:  # said here, so that nothing before it moves
                hint = state.runtime.hint(call.name, self.builder.settings.lang)
                content = ToolOutput(content, call.name, (*content.hints, hint), outcome.state)
                state.handle.emit(Notice("degraded", Phrase("notice.tool_degraded", tool=call.name, n=DEGRADED)))
        return ToolResult(call.id, call.name, text, outcome.state, time.monotonic() - began), content

    async def _store_texts(self, state: TurnState) -> None:
        """Text is stored, then shown, in batches; the first of an answer at once. What was sent is stored with the
        first text, or without it when that is long in coming."""
        while True:
            await state.has_text.wait()
            state.has_text.clear()
            async with state.storing:
                sent = await run_apart(state.size, state.unstored_trace)
                text = state.answer_text[state.shown_length :]
                if text:
                    await self._turns.chunk(*state.key, state.chunks, text, lease=self._lease, sent=sent)
                    state.chunks, state.shown_length = state.chunks + 1, state.shown_length + len(text)
                    state.handle.emit(Text(text))
                elif sent:
                    await self._turns.renew(*state.key, lease=self._lease, sent=sent)
                state.mark_stored(sent)
            if text:
                await asyncio.sleep(BATCH_INTERVAL_S)

    async def _renew_lease(self, state: TurnState) -> None:
        """Keep the lease, so that no other process ends this turn as abandoned."""
        while True:
            await asyncio.sleep(self._lease / 3)
            await self._turns.renew(*state.key, lease=self._lease)

    async def _finish(self, state: TurnState, problem: BaseException | None) -> None:
        final, error, hint = describe_end(state, problem, self.limits)
        if isinstance(problem, Exception) and not isinstance(problem, LaminaError | TimeoutError):
            trace = join_surrogates("".join(traceback.format_exception(problem)))  # as Unicode: a log goes anywhere
            self._log.error("[Engine] turn %s ended by a bug\n%s", state.record.turn_id, trace)
        if isinstance(problem, LimitError | TimeoutError):
            state.handle.emit(Notice("limit", error))
        if isinstance(problem, LeaseError):  # another process ended it: what is stored counts
            record = await self._turns.get(*state.key)
            stored: FinalState = "interrupted" if record.state == "streaming" else record.state
            return state.handle.end(record, Ended(stored, Phrase.load(record.error) or error, hint))
        trace = await run_apart(state.size, state.write_trace)
        texts = {**trace.texts, **state.injected_texts}
        runtime = state.runtime.to_dict()
        if state.requests and (kept := state.requests.to_row(state.turn)):
            runtime, texts = {**runtime, LEDGER: kept[0]}, {**texts, **kept[1]}
        answer: Message = {"role": "assistant", "content": state.answer_text}
        handed = state.caller_calls if final == "complete" else ()
        if handed:
            answer = {"role": "assistant", "content": state.answer_text or None, "tool_calls": write_calls(handed)}
        lasting = state.turn.given.history is None
        record = await self._turns.finish(
            *state.key,
            state=final,
            answer=answer,
            usage=sum_usage(state, hint),
            receipt=trace.value if state.stored_requests < len(state.receipts) else None,
            texts={name: text for name, text in texts.items() if name not in state.stored_texts},
            injection=state.changed_injection,
            runtime=runtime if lasting else None,
            jobs=self._jobs(state.record),
            error=error.dump(),
            tokens=await run_apart(state.length, self.builder.settings.count, state.answer_text),
        )
        record = replace(record, receipt=trace.value)
        self._texts_of_sessions.pop(_session_key(state.turn), None)
        self._texts_of_sessions[_session_key(state.turn)] = frozenset(texts)  # only now: they are stored
        while len(self._texts_of_sessions) > 1_000:
            self._texts_of_sessions.pop(next(iter(self._texts_of_sessions)))
        state.show_rest()
        if final == "complete" and state.done == "length":
            state.handle.emit(Notice("limit", CUT_OFF))
        state.handle.emit(*handed)
        status = http_status(problem) if final == "failed" else 0
        return state.handle.end(record, Ended(final, error, hint, state.done, status))


def _session_key(turn: Turn) -> tuple[str, str, float]:
    """A session; a new one may have the name of one that was deleted."""
    return turn.session.owner, turn.session.session_id, turn.session.created
