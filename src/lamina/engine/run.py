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
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Any, Protocol

from lamina.assembly.checks import LONGEST_ID, check_message
from lamina.assembly.results import MAX_CHARS, tool_result
from lamina.assembly.scrub import Scrub
from lamina.assembly.wire import encode
from lamina.engine.build import ContextBuilder, turn_mark
from lamina.engine.compaction import (
    FULL,
    KEPT,
    LONGEST,
    Compacted,
    SessionRows,
    check_freed,
    fold,
    fold_steps,
    is_due,
    keep,
    last_to_fold,
)
from lamina.engine.layout import KEY as LEDGER
from lamina.engine.running import Running
from lamina.engine.state import DEGRADED, Compaction, Runtime
from lamina.engine.work import Limits, Work, believed, ending, estimated, said_by_user, status_of, typed, usage, written
from lamina.errors import (
    BrokenStreamError,
    CompactionError,
    LaminaError,
    LeaseError,
    LimitError,
    MessageError,
    StoreError,
    shown,
)  # fmt: skip
from lamina.layers.history import has_pictures, whole
from lamina.layers.said import words
from lamina.layers.tools import ToolRegistry
from lamina.ports import Ask, Complete, HistoryRows, Provider
from lamina.records import FinalState, NewJob, Sent, Turn, TurnRecord
from lamina.types import (
    AnyMessage,
    Began,
    Context,
    Decision,
    Ended,
    Message,
    Notice,
    Text,
    ToolCallEvent,
    ToolResult,
    Usage,
)  # fmt: skip

BATCH = 0.05
"""Seconds that text waits for more before it is stored and shown; the first of an answer does not wait."""
REST = 0.02
"""Seconds after which whoever streams without a pause lets others run."""
LEASE = 60.0
OVER = 1.2
"""A request that is estimated this much larger than the model's window is not sent; less may be an error of ours."""
CUT = "the answer was cut off at its limit of tokens (LAMINA_MAX_TOKENS)"
MOST_CHARACTERS = 4_000_000
"""Of an answer; what goes on longer is broken."""


class TurnRows(Protocol):
    """The part of a store that a turn is written to."""

    async def begin(
        self, owner: str, session_id: str, message: AnyMessage, *, key: str = "", lease: float = LEASE, tokens: int = 0,
        more: Sequence[AnyMessage] = (),
    ) -> TurnRecord: ...  # fmt: skip
    async def chunk(
        self, owner: str, turn_id: str, n: int, text: str, *, lease: float = LEASE, sent: Sent | None = None
    ) -> None: ...
    async def add(
        self, owner: str, turn_id: str, messages: Sequence[AnyMessage], *, folded: bool = True, lease: float = LEASE,
        sent: Sent | None = None,
    ) -> Sequence[str]: ...  # fmt: skip
    async def renew(self, owner: str, turn_id: str, *, lease: float = LEASE, sent: Sent | None = None) -> None: ...
    async def finish(
        self, owner: str, turn_id: str, *, state: FinalState = "complete", answer: AnyMessage | None = None,
        usage: Mapping[str, Any] | None = None, receipt: Mapping[str, Any] | None = None,
        texts: Mapping[str, str] | None = None, injection: Mapping[str, Any] | None = None,
        runtime: Mapping[str, Any] | None = None, jobs: Sequence[NewJob] = (), error: str = "", tokens: int = 0,
    ) -> TurnRecord: ...  # fmt: skip
    async def get(self, owner: str, turn_id: str) -> TurnRecord: ...


class Engine:
    """Runs turns: `start` returns as soon as the question is stored; the turn streams its events to whoever reads."""

    def __init__(
        self, builder: ContextBuilder, turns: TurnRows, sessions: SessionRows, history: HistoryRows, *,
        provider: Provider, limits: Limits | None = None,
        jobs: Callable[[TurnRecord], Sequence[NewJob]] = lambda turn: (), complete: Complete | None = None,
        compacts: bool = True, lease: float = LEASE,
        hide: Callable[[str], str] = lambda text: text,
    ) -> None:  # fmt: skip
        self.builder, self.provider, self.limits = builder, provider, limits or Limits()
        self._turns, self._sessions, self._history = turns, sessions, history
        self._jobs, self._complete, self._compacts, self._lease, self._hide = jobs, complete, compacts, lease, hide
        self._log = logging.getLogger("lamina.engine")
        self._starting: set[asyncio.Task[Running]] = set()
        self._tasks: dict[str, tuple[Running, asyncio.Task[None]]] = {}
        self._linked: dict[tuple[str, str, float], frozenset[str]] = {}
        """Of each session, by owner, name and birth, the texts of its last turn: they need not be stored again."""

    async def start(self, turn: Turn, *, key: str = "", ask: Ask | None = None) -> Running:
        """Store the question; the turn runs on in a task of its own, even when the caller leaves meanwhile. The same
        key again is the same turn."""
        starting = asyncio.create_task(self._start(turn, key, ask))
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        return await asyncio.shield(starting)

    async def _start(self, turn: Turn, key: str, ask: Ask | None) -> Running:
        content = turn.user if isinstance(turn.user, str) else [dict(part) for part in turn.user]
        said: Sequence[AnyMessage] = turn.given.results or [{"role": "user", "content": content}]
        for message in said:
            check_message(message, "the message")  # once it is stored, it is sent with every request after it
        if self.builder.settings.blind and any(has_pictures(message) for message in said):
            raise MessageError("this model sees no pictures", hint="say it in words, or take a model that sees")
        self._check_tools(turn)
        record = await self._turns.begin(
            turn.owner, turn.session.session_id, said[0], key=key, lease=self._lease,
            tokens=self.builder.settings.count(turn.words), more=said[1:],
        )  # fmt: skip
        if record.repeated:  # joined where it runs here; else whoever asked reads it from the store
            return self.running(record.turn_id) or Running(record)
        running = Running(record)
        running.emit(Began(record.turn_id, record.session_id, record.answer_message_id))
        before = record.answer_seq if turn.given.results else record.user_seq
        work = Work(replace(turn, before=before), record, running, ask, Runtime.of(turn.session.runtime))
        work.since = list(turn.given.since)
        work.linked = self._linked.get(_place(turn), frozenset())
        task = asyncio.create_task(self._carry(work))
        self._tasks[record.turn_id] = (running, task)
        task.add_done_callback(lambda _: self._tasks.pop(record.turn_id, None))
        return running

    def _check_tools(self, turn: Turn) -> None:
        """A caller's tools have names of their own."""
        ours = {tool.name for tool in self.builder.tools(turn) or ()}
        if twice := sorted(ours & turn.given.tool_names):
            raise MessageError(f"the tool {shown(twice[0])} is lamina's own here", hint="give yours another name")

    @property
    def here(self) -> Set[str]:
        """Turns that run in this process."""
        return self._tasks.keys()

    def running(self, turn_id: str) -> Running | None:
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

    async def _carry(self, work: Work) -> None:
        """Whatever the loop ends with, the turn gets its end."""
        loop = asyncio.create_task(self._loop(work))
        work.running.work(loop)
        helpers = [asyncio.create_task(each) for each in (self._store_texts(work), self._hold(work))]
        for helper in helpers:  # a store that refuses ends the turn
            helper.add_done_callback(lambda done: None if done.cancelled() or not done.exception() else loop.cancel())
        (problem,) = await asyncio.gather(loop, return_exceptions=True)
        async with work.storing:  # what is being stored is stored, and then shown
            for helper in helpers:
                helper.cancel()
        lost = await asyncio.gather(*helpers, return_exceptions=True)
        trouble = next((one for one in lost if isinstance(one, Exception)), None)
        (failed,) = await asyncio.gather(self._finish(work, trouble or problem), return_exceptions=True)
        if isinstance(failed, LeaseError):  # ended by somebody else while this end was on its way
            (failed,) = await asyncio.gather(self._finish(work, failed), return_exceptions=True)
        if isinstance(failed, BaseException):
            self._log.error("[Engine] the end of turn %s could not be stored: %s", work.record.turn_id, failed)
            words = failed if isinstance(failed, LaminaError) else StoreError(f"{type(failed).__name__}: {failed}")
            work.running.end(work.record, Ended("failed", words.message, words.hint))

    async def _loop(self, work: Work) -> None:
        """The one loop: assemble, ask, and while the model calls tools, run them and ask again."""
        async with asyncio.timeout(self.limits.seconds) as work.deadline:
            turn = work.turn
            work.requests = await self.builder.requests(turn)
            gathered, work.chat = await asyncio.gather(self.builder.gather(turn), self.builder.chat(turn))
            work.gathered = gathered
            work.running.emit(*(Notice("degraded", words) for words in self.builder.missed(gathered)))
            for _ in range(self.limits.steps):
                context = await self._context(work)
                calls = await self._answer(work, context)
                work.handed = [call for call in calls if call.name in turn.given.tool_names]
                if not calls or work.handed:  # what the caller runs comes first; the model can ask for ours again
                    return
                await self._use(work, calls)
                spent = sum(usage.prompt + usage.completion for _, usage in work.usages)
                if self.limits.tokens and spent > self.limits.tokens:
                    raise LimitError(
                        f"the turn has used {spent:,} of {self.limits.tokens:,} tokens", hint="LAMINA_TURN_TOKENS"
                    )
        raise LimitError(
            f"the turn has reached its limit of {self.limits.steps} steps", hint="say `go on`, or LAMINA_STEPS"
        )

    async def _context(self, work: Work) -> Context:
        """The next request, within the window: what is older is folded when that is due, at every step (S9)."""
        context = await self._folded(work)
        window = self.provider.window
        if window and context.receipt.tokens > OVER * window:  # nobody would take it: it is not sent
            raise MessageError(
                f"the request has about {context.receipt.tokens:,} tokens, and the model takes {window:,}",
                hint="shorten the message, the rules or the skills, or take a model with a larger window",
            )
        return context

    async def _folded(self, work: Work) -> Context:
        context = self._assembled(work)
        if work.turn.given.history is not None:
            return context
        if self._compacts and is_due(context):
            try:
                await self._compact(work, context, turns=1 if work.turn.given.results else 0)  # they are its question
            except CompactionError as error:
                if not work.warned:
                    work.running.emit(Notice("compaction", str(error)))
                work.warned = True
            context = self._assembled(work)  # where it was refused too: what was tried on is not what is sent
        if self._compacts and context.receipt.tokens > FULL * context.receipt.budget and self._fold_steps(work):
            context = self._assembled(work)
        return context

    def _fold_steps(self, work: Work) -> bool:
        """A turn of very many steps: the earlier ones give way to a line for each call. Nothing stored changes."""
        settings, session = self.builder.settings, work.turn.session
        text, rest = fold_steps(work.since, KEPT * settings.budget, LONGEST, settings.count)
        if len(rest) == len(work.since):
            return False
        earlier = str(session.runtime.get("steps", ""))
        steps = f"{earlier}\n{text}"[-LONGEST:].strip() if earlier else text
        work.turn = replace(work.turn, session=replace(session, runtime={**session.runtime, "steps": steps}))
        work.running.emit(Notice("compaction", f"{len(work.since) - len(rest)} messages of this turn were folded"))
        work.since = rest
        return True

    def _assembled(self, work: Work) -> Context:
        assert work.gathered is not None
        assert work.chat is not None
        context = self.builder.assemble(work.turn, work.gathered, work.chat, work.since, work.requests)
        return replace(context, receipt=encode(context, self.provider.grammar))

    async def _compact(self, work: Work, context: Context, room: float = KEPT, turns: int = 0) -> Compaction:
        """Fold, see that it frees enough, and only then keep it."""
        assert work.chat is not None
        settings, session = self.builder.settings, work.turn.session
        upto = last_to_fold(work.chat.rows, room * settings.budget, settings.count, turns=turns)
        made = await fold(self._history, session, upto, budget=settings.budget, complete=self._complete)
        trial = [*session.runtime.get("compactions", ()), asdict(made)]
        after = replace(work.turn, session=replace(session, runtime={**session.runtime, "compactions": trial}))
        chat = await self.builder.chat(after)
        before, work.turn, work.chat = (work.turn, work.chat), after, chat
        try:
            check_freed(context, self._assembled(work))
        except CompactionError:
            work.turn, work.chat = before
            raise
        await keep(self._sessions, session, made)
        if work.gathered and work.gathered.manager:
            work.gathered.manager.note("compaction")
        work.running.emit(Notice("compaction", f"messages {made.first}–{made.upto} were folded ({made.written_by})"))
        return made

    async def compact(self, turn: Turn) -> Compacted:
        """Fold a session now, all but its newest turn. The words of the turn only stand for those that will come."""
        running = Running(
            TurnRecord(
                turn.owner, "", turn.session.session_id, "", "streaming", "", 0, "", 0, {}, {}, "", 0.0, None, 0.0
            )
        )
        work = Work(turn, running.turn, running, None, Runtime.of(turn.session.runtime))
        work.requests = await self.builder.requests(turn)
        work.gathered, work.chat = await asyncio.gather(self.builder.gather(turn), self.builder.chat(turn))
        before = self._assembled(work)
        made = await self._compact(work, before, room=0, turns=1)
        after = self._assembled(work)
        whole_before = before.receipt.tokens + before.receipt.dropped.tokens
        return Compacted(whole_before, after.receipt.tokens, made.upto, made.text, made.written_by)

    async def _answer(self, work: Work, context: Context) -> list[ToolCallEvent]:
        """One request: its texts go to whoever stores and shows them; its calls come back when it is over."""
        work.receipts.append(context.receipt)
        later = asyncio.get_running_loop().call_later(BATCH, work.fresh.set)  # who waits for long has it stored
        work.said, work.shown = "", 0
        scrub = Scrub(turn_mark(work.turn), lambda tag: typed(work, tag))
        calls: list[ToolCallEvent] = []
        try:
            given = work.turn.given
            limits = [limit for limit in (self.limits.answer, given.max_tokens) if limit is not None]
            streamed = self.provider.stream(context, max_tokens=min(limits, default=None), options=given.options)
            async with aclosing(streamed) as stream:
                rested = time.monotonic()
                async for event in stream:
                    if time.monotonic() - rested > REST:  # a provider that never waits must not starve everybody else
                        await asyncio.sleep(0)
                        rested = time.monotonic()
                    self._first_heard(work)
                    if isinstance(event, Text):
                        self._say(work, scrub.feed(whole(event.text)))
                    elif isinstance(event, ToolCallEvent):
                        calls.append(self._own(work, event))
                    elif isinstance(event, Usage):
                        counted = believed(event)
                        work.usages.append((len(work.receipts), counted))
                        work.runtime = work.runtime.counted(counted, estimated(work, context), self.provider.window)
                        work.running.emit(counted)
                    else:
                        work.done = event.reason
        finally:
            later.cancel()
            self._say(work, scrub.close())
        return calls

    def _first_heard(self, work: Work) -> None:
        """The send succeeded: now, and only now, the state of the injections moves (I7)."""
        if not work.heard and work.gathered and work.gathered.manager and work.gathered.envelope:
            work.gathered.manager.sent(work.gathered.envelope)
        work.heard = True
        if work.requests:
            work.requests.sent()

    def _say(self, work: Work, text: str) -> None:
        work.said += text
        if len(work.said) > MOST_CHARACTERS:
            raise BrokenStreamError(f"the answer has more than {MOST_CHARACTERS:,} characters", retryable=False)
        if len(work.said) > work.shown:
            work.fresh.set()

    def _own(self, work: Work, call: ToolCallEvent) -> ToolCallEvent:
        """The call as it can be sent again, to any provider: ids that were given twice are told apart, long ones cut,
        and a tool's name has the letters that names may have. Whatever a model calls, the session goes on."""
        given = name = whole(call.id)[:LONGEST_ID] or "call"
        numbers = itertools.count(1)
        while name in work.known_ids:
            number = f"_{next(numbers)}"
            name = given[: LONGEST_ID - len(number)] + number
        work.known_ids.add(name)
        tool = re.sub(r"[^A-Za-z0-9_-]", "_", call.name)[:64] or "_"
        return ToolCallEvent(name, tool, whole(call.arguments))

    async def _use(self, work: Work, calls: Sequence[ToolCallEvent]) -> None:
        """The calls are stored before the first of them runs, and each result before it is shown."""
        asked: Message = {"role": "assistant", "content": work.said or None, "tool_calls": written(calls)}
        await asyncio.shield(self._keep(work, asked))
        for call in calls:
            work.running.emit(call)
            result, content = await self._result(work, call)
            await asyncio.shield(self._keep(work, {"role": "tool", "content": content, "tool_call_id": call.id}))
            work.running.emit(result)

    async def _keep(self, work: Work, message: Message) -> None:
        """Store a message of the turn, and with calls the text beside them. Not to be cancelled in the middle: what is
        stored here must not be stored again with the answer; the end of the turn waits for it."""
        async with work.storing:
            sent = work.unkept()
            await self._turns.add(*work.key, [message], lease=self._lease, sent=sent)
            work.keep(sent)
            work.since.append(message)
            if message["role"] == "assistant":
                work.show_rest()
                work.said, work.shown = "", 0

    async def _result(self, work: Work, call: ToolCallEvent) -> tuple[ToolResult, str]:
        """Run a call; what it said, and the same as the model gets it: fenced, cut, without secrets."""
        tools, began = self.builder.tools(work.turn) or ToolRegistry(), time.monotonic()
        words.set(said_by_user(work))
        outcome = await tools.call(call, ask=self._asking(work))
        text = self._hide(whole(outcome.text))
        known = {tool.name: tool for tool in tools}.get(call.name)
        limit, advice = (known.max_chars, known.too_long) if known else (MAX_CHARS, "")
        mark, more = turn_mark(work.turn), {"advice": advice} if advice else {}
        content = tool_result(text, tool=call.name, max_chars=limit, mark=mark, **more)
        if known and outcome.state in ("done", "failed"):
            was = call.name in work.runtime.degraded
            work.runtime = work.runtime.tried(call.name, failed=outcome.state == "failed")
            if call.name in work.runtime.degraded and not was:  # said here, so that nothing before it moves
                content += "\n" + work.runtime.hint(call.name, self.builder.settings.lang, mark)
                work.running.emit(Notice("degraded", f"{call.name} failed {DEGRADED} times in a row"))
        return ToolResult(call.id, call.name, text, outcome.state, time.monotonic() - began), content

    def _asking(self, work: Work) -> Ask | None:
        """Who is asked for a yes; the turn's time stands still meanwhile."""
        ask = work.ask
        if ask is None:
            return None

        async def asked(call: ToolCallEvent, decision: Decision) -> bool:
            clock, deadline = asyncio.get_running_loop().time, work.deadline
            due, began = deadline.when() if deadline else None, clock()
            if deadline:
                deadline.reschedule(None)
            try:
                return await ask(call, decision)
            finally:
                if deadline and due is not None:
                    deadline.reschedule(due + clock() - began)

        return asked

    async def _store_texts(self, work: Work) -> None:
        """Text is stored, then shown, in batches; the first of an answer at once. What was sent is stored with the
        first text, or without it when that is long in coming."""
        while True:
            await work.fresh.wait()
            work.fresh.clear()
            async with work.storing:
                text, sent = work.said[work.shown :], work.unkept()
                if text:
                    await self._turns.chunk(*work.key, work.chunks, text, lease=self._lease, sent=sent)
                    work.chunks, work.shown = work.chunks + 1, work.shown + len(text)
                    work.running.emit(Text(text))
                elif sent:
                    await self._turns.renew(*work.key, lease=self._lease, sent=sent)
                work.keep(sent)
            if text:
                await asyncio.sleep(BATCH)

    async def _hold(self, work: Work) -> None:
        """Nobody takes a turn that is being answered for abandoned."""
        while True:
            await asyncio.sleep(self._lease / 3)
            await self._turns.renew(*work.key, lease=self._lease)

    async def _finish(self, work: Work, problem: BaseException | None) -> None:
        state, error, hint = ending(work, problem, self.limits)
        if isinstance(problem, Exception) and not isinstance(problem, LaminaError | TimeoutError):
            trace = whole("".join(traceback.format_exception(problem)))  # as Unicode: a log goes anywhere
            self._log.error("[Engine] turn %s ended by a bug\n%s", work.record.turn_id, trace)
        if isinstance(problem, LimitError | TimeoutError):
            work.running.emit(Notice("limit", error))
        if isinstance(problem, LeaseError):  # somebody else has ended it: what is stored counts
            record = await self._turns.get(*work.key)
            final: FinalState = "interrupted" if record.state == "streaming" else record.state
            return work.running.end(record, Ended(final, record.error or error, hint))
        trace = work.written()
        texts = trace.texts
        runtime = work.runtime.to_dict()
        if work.requests and (kept := work.requests.kept(work.turn)):
            runtime, texts = {**runtime, LEDGER: kept[0]}, {**texts, **kept[1]}
        manager = work.gathered.manager if work.gathered else None
        answer: Message = {"role": "assistant", "content": work.said}
        handed = work.handed if state == "complete" else ()
        if handed:
            answer = {"role": "assistant", "content": work.said or None, "tool_calls": written(handed)}
        lasting = work.turn.given.history is None
        record = await self._turns.finish(
            *work.key, state=state, answer=answer, usage=usage(work, hint),
            receipt=trace.value if work.kept < len(work.receipts) else None,
            texts={name: text for name, text in texts.items() if name not in work.linked},
            injection=manager.state.to_dict() if manager and work.heard and lasting else None,
            runtime=runtime if lasting else None,
            jobs=self._jobs(work.record), error=error, tokens=self.builder.settings.count(work.said),
        )  # fmt: skip
        record = replace(record, receipt=trace.value)
        self._linked.pop(_place(work.turn), None)
        self._linked[_place(work.turn)] = frozenset(texts)  # only now: they are stored
        while len(self._linked) > 1_000:
            self._linked.pop(next(iter(self._linked)))
        work.show_rest()
        if state == "complete" and work.done == "length":
            work.running.emit(Notice("limit", CUT))
        work.running.emit(*handed)
        code = status_of(problem) if state == "failed" else 0
        return work.running.end(record, Ended(state, error, hint, work.done, code))


def _place(turn: Turn) -> tuple[str, str, float]:
    """A session; a new one may have the name of one that was deleted."""
    return turn.session.owner, turn.session.session_id, turn.session.created
