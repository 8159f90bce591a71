"""A turn from the question to the stored answer. There is one loop, and it is here.

The question is committed before anything is sent, text before it is shown, a call before it runs, and the answer with
its usage, receipt, injection state and jobs in one transaction. Whatever happens in between, the turn gets its end.
"""

import asyncio
import logging
import time
import traceback
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

from lamina.apart import run_apart, work_for
from lamina.assembly.fences import ADVICE, MAX_CHARS, TagFilter, tool_result
from lamina.assembly.history import check_message, has_pictures
from lamina.assembly.request import encode
from lamina.engine.build import ContextBuilder
from lamina.engine.compaction import (
    KEPT_SHARE,
    MAX_SUMMARY_CHARACTERS,
    WRITTEN_BY,
    Compacted,
    SessionRows,
    check_freed,
    fold,
    fold_steps,
    is_due,
    is_full,
    keep,
    last_to_fold,
    with_compaction,
)
from lamina.engine.handle import TurnHandle
from lamina.engine.ledger_state import KEY as LEDGER
from lamina.engine.state import DEGRADED, Compaction, Runtime
from lamina.engine.work import Limits, TurnState, ending, plausible_usage, read_user_words, status_of, usage, written
from lamina.errors import CompactionError, LaminaError, LeaseError, LimitError, MessageError, StoreError, format_value
from lamina.ports import Ask, Complete, Provider
from lamina.records import FinalState, NewJob, Sent, Turn, TurnRecord
from lamina.store.messages import Messages
from lamina.text.json import size_of
from lamina.text.messages import Phrase
from lamina.text.unicode import MAX_LOOP_SIZE, join_surrogates, slices
from lamina.tools.registry import ToolRegistry
from lamina.types import (
    AnyMessage,
    Began,
    Context,
    Ended,
    Message,
    Notice,
    Text,
    ToolCallEvent,
    ToolOutput,
    ToolResult,
    Usage,
)  # fmt: skip

BATCH = 0.05
"""Seconds that text waits for more before it is stored and shown; the first of an answer does not wait."""
REST = 0.005
"""Seconds after which whoever streams without a pause lets others run."""
LEASE = 60.0
OVERSIZE_FACTOR = 1.2
"""A request that is estimated this much larger than the model's window is not sent; less may be an error of ours."""
CUT_OFF = Phrase("notice.answer_cut", setting="LAMINA_MAX_TOKENS")


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
        self, builder: ContextBuilder, turns: TurnRows, sessions: SessionRows, history: Messages, *,
        provider: Provider, limits: Limits | None = None,
        jobs: Callable[[TurnRecord], Sequence[NewJob]] = lambda turn: (), complete: Complete | None = None,
        compacts: bool = True, lease: float = LEASE,
        hide: Callable[[str], str] = lambda text: text,
    ) -> None:  # fmt: skip
        self.builder, self.provider, self.limits = builder, provider, limits or Limits()
        self._turns, self._sessions, self._history = turns, sessions, history
        self._jobs, self._complete, self._compacts, self._lease, self._hide = jobs, complete, compacts, lease, hide
        self._log = logging.getLogger("lamina.engine")
        self._starting: set[asyncio.Task[TurnHandle]] = set()
        self._tasks: dict[str, tuple[TurnHandle, asyncio.Task[None]]] = {}
        self._linked: dict[tuple[str, str, float], frozenset[str]] = {}
        """Of each session, by owner, name and birth, the texts of its last turn: they need not be stored again."""

    async def start(self, turn: Turn, *, key: str = "", ask: Ask | None = None) -> TurnHandle:
        """Store the question; the turn runs on in a task of its own, even when the caller leaves meanwhile. The same
        key again is the same turn."""
        starting = asyncio.create_task(self._start(turn, key, ask))
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        return await asyncio.shield(starting)

    async def _start(self, turn: Turn, key: str, ask: Ask | None) -> TurnHandle:
        work_for(turn.owner)
        turn = self.builder.marked(turn)
        content = turn.user if isinstance(turn.user, str) else [dict(part) for part in turn.user]
        said: Sequence[AnyMessage] = turn.given.results or [{"role": "user", "content": content}]
        size = size_of(turn.user)
        for message in said:  # once it is stored, it is sent with every request after it
            await run_apart(size_of(message), check_message, message, "message")
        if self.builder.settings.blind and any(has_pictures(message) for message in said):
            raise MessageError("message.no_pictures")
        self._check_tools(turn)
        record = await self._turns.begin(
            turn.owner, turn.session.session_id, said[0], key=key, lease=self._lease,
            tokens=await run_apart(size, self.builder.settings.count, turn.words), more=said[1:],
        )  # fmt: skip
        if record.repeated:  # joined where it runs here; else whoever asked reads it from the store
            return self.running(record.turn_id) or TurnHandle(record)
        running = TurnHandle(record)
        running.emit(Began(record.turn_id, record.session_id, record.answer_message_id))
        before = record.answer_seq if turn.given.results else record.user_seq
        work = TurnState(replace(turn, before=before), record, running, ask, Runtime.of(turn.session.runtime))
        work.since = list(turn.given.since)
        work.linked = self._linked.get(_place(turn), frozenset())
        task = asyncio.create_task(self._supervise(work))
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

    async def _supervise(self, work: TurnState) -> None:
        """Whatever the loop ends with, the turn gets its end."""
        loop = asyncio.create_task(self._loop(work))
        work.running.work(loop)
        helpers = [asyncio.create_task(each) for each in (self._store_texts(work), self._renew_lease(work))]
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
            error = (
                failed
                if isinstance(failed, LaminaError)
                else StoreError("bug", error=f"{type(failed).__name__}: {failed}")
            )
            work.running.end(work.record, Ended("failed", error.phrase, error.next_step))

    async def _loop(self, work: TurnState) -> None:
        """The one loop: assemble, ask, and while the model calls tools, run them and ask again."""
        async with asyncio.timeout(self.limits.seconds) as work.deadline:
            turn = work.turn
            work.requests, work.prompts = await self.builder.requests(turn), self.builder.prompts(turn)
            gathering = asyncio.gather(self.builder.gather(turn, work.prompts), self.builder.chat(turn))
            try:
                gathered, work.chat = await gathering
            finally:
                work.running.emit(*(work.prompts.notices if work.prompts else ()))
            work.gathered = gathered
            work.typed_tags, work.typed_addresses = await run_apart(work.size, read_user_words, work)
            work.running.emit(*(Notice("degraded", why) for why in self.builder.missing(gathered)))
            for _ in range(self.limits.steps):
                context = await self._context(work)
                calls = await self._answer(work, context)
                work.handed = [call for call in calls if call.name in turn.given.tool_names]
                if not calls or work.handed:  # what the caller runs comes first; the model can ask for ours again
                    return
                await self._run_tools(work, calls)
                spent = sum(usage.prompt + usage.completion for _, usage in work.usages)
                if self.limits.tokens and spent > self.limits.tokens:
                    raise LimitError("turn.token_limit", spent=spent, limit=self.limits.tokens)
        raise LimitError("turn.step_limit", limit=self.limits.steps)

    async def _context(self, work: TurnState) -> Context:
        """The next request, within the window: what is older is folded when that is due, at every step (S9)."""
        context = await self._folded(work)
        window = self.provider.window
        if window and context.receipt.tokens > OVERSIZE_FACTOR * window:  # nobody would take it: it is not sent
            raise MessageError("request.too_large", tokens=context.receipt.tokens, window=window)
        return context

    async def _folded(self, work: TurnState) -> Context:
        """What is repeated in front of the words is added last: folding does not make it any shorter."""
        gathered = work.gathered
        again = gathered is not None and gathered.envelope is not None and bool(gathered.envelope.repeat)
        if gathered and again:
            work.gathered = replace(gathered, repeat=gathered.phase)
        context = await self._assembled(work)
        if work.turn.given.history is None:
            context = await self._folded_history(work, context)
        if again:
            work.gathered = gathered
            context = await self._assembled(work)
        return context

    async def _folded_history(self, work: TurnState, context: Context) -> Context:
        if self._compacts and is_due(context):
            refused: LaminaError | None = None
            try:  # results of calls are the question of their turn
                await self._compact(work, context, turns=1 if work.turn.given.results else 0)
            except CompactionError as error:
                refused = error
            context = await self._assembled(work)  # where it was refused too: what was tried on is not what is sent
            if refused and context.receipt.dropped.count and not work.warned:  # else all of it fits
                reason = Phrase("notice.not_compacted", why=refused.phrase, hint=refused.next_step)
                work.running.emit(Notice("compaction", reason))
                work.warned = True
        if self._compacts and is_full(context) and await self._fold_steps(work):
            context = await self._assembled(work)
        return context

    async def _fold_steps(self, work: TurnState) -> bool:
        """A turn of very many steps: the earlier ones give way to a line for each call. Nothing stored changes."""
        settings, session = self.builder.settings, work.turn.session
        room = KEPT_SHARE * settings.budget
        text, rest = await run_apart(work.size, fold_steps, work.since, room, MAX_SUMMARY_CHARACTERS, settings.count)
        if len(rest) == len(work.since):
            return False
        earlier = str(session.runtime.get("steps", ""))
        steps = f"{earlier}\n{text}"[-MAX_SUMMARY_CHARACTERS:].strip() if earlier else text
        work.turn = replace(work.turn, session=replace(session, runtime={**session.runtime, "steps": steps}))
        work.running.emit(Notice("compaction", Phrase("notice.steps_folded", n=len(work.since) - len(rest))))
        work.since = rest
        return True

    async def _assembled(self, work: TurnState) -> Context:
        return await run_apart(work.size, self._encoded, work)

    def _encoded(self, work: TurnState) -> Context:
        assert work.gathered is not None
        assert work.chat is not None
        context = self.builder.assemble(work.turn, work.gathered, work.chat, work.since, work.requests)
        return replace(context, receipt=encode(context, self.provider.grammar))

    async def _compact(self, work: TurnState, context: Context, room: float = KEPT_SHARE, turns: int = 0) -> Compaction:
        """Fold, see that it frees enough, and only then keep it. Summaries that fill the window are written as one."""
        assert work.chat is not None
        settings, session = self.builder.settings, work.turn.session
        room *= settings.budget
        upto = await run_apart(work.size, last_to_fold, work.chat.rows, room, settings.count, turns=turns)
        try:
            made = await self._fold(work, context, upto)
        except CompactionError:
            full = context.receipt.dropped.count > 0 or context.receipt.over_budget
            if not full or not Runtime.of(session.runtime).compactions:
                raise
            made = await self._fold(work, context, upto, again=True)
        if work.prompts:
            work.prompts.note("compaction")
        await keep(self._sessions, session, made, work.changed_injection)
        by = Phrase(WRITTEN_BY[made.written_by])
        folded = Phrase("notice.folded", first=made.first, last=made.upto, by=by)
        work.running.emit(Notice("compaction", folded))
        return made

    async def _fold(self, work: TurnState, context: Context, upto: int, *, again: bool = False) -> Compaction:
        """Try a compaction on: the turn goes on with it, or is as before where it frees too little."""
        session, budget = work.turn.session, self.builder.settings.budget
        made = await fold(self._history, session, upto, budget=budget, complete=self._complete, again=again)
        runtime = {**session.runtime, "compactions": with_compaction(session, made)}
        after = replace(work.turn, session=replace(session, runtime=runtime))
        chat = await self.builder.chat(after)
        before, work.turn, work.chat = (work.turn, work.chat), after, chat
        try:
            check_freed(context, await self._assembled(work))
        except CompactionError:
            work.turn, work.chat = before
            raise
        return made

    async def compact(self, turn: Turn) -> Compacted:
        """Fold a session now, all but its newest turn. The words of the turn only stand for those that will come."""
        turn = self.builder.marked(turn)
        record = TurnRecord(
            turn.owner, "", turn.session.session_id, "", "streaming", "", 0, "", 0, {}, {}, "", 0.0, None, 0.0
        )
        running = TurnHandle(record)
        work = TurnState(turn, running.turn, running, None, Runtime.of(turn.session.runtime))
        work.requests, work.prompts = await self.builder.requests(turn), self.builder.prompts(turn)
        work.gathered, work.chat = await asyncio.gather(self.builder.gather(turn), self.builder.chat(turn))
        before = await self._assembled(work)
        made = await self._compact(work, before, room=0, turns=1)
        after = await self._assembled(work)
        whole_before = before.receipt.tokens + before.receipt.dropped.tokens
        return Compacted(whole_before, after.receipt.tokens, made.upto, made.text, made.written_by)

    async def _answer(self, work: TurnState, context: Context) -> list[ToolCallEvent]:
        """One request: its texts go to whoever stores and shows them; its calls come back when it is over."""
        work.receipts.append(context.receipt)
        later = asyncio.get_running_loop().call_later(BATCH, work.fresh.set)  # who waits for long has it stored
        work.begin_step()
        scrub = TagFilter(work.turn.mark, work.typed_tags.__contains__)
        calls: list[ToolCallEvent] = []
        try:
            given = work.turn.given
            limits = [limit for limit in (self.limits.answer, given.max_tokens) if limit is not None]
            options = {**given.options, "model": work.turn.model} if work.turn.model else given.options
            streamed = self.provider.stream(context, max_tokens=min(limits, default=None), options=options)
            async with aclosing(streamed) as stream:
                rested = time.monotonic()
                async for event in stream:
                    if time.monotonic() - rested > REST:  # a provider that never waits must not starve everybody else
                        await asyncio.sleep(0)
                        rested = time.monotonic()
                    self._first_heard(work)
                    if isinstance(event, Text):
                        for text in slices(event.text, MAX_LOOP_SIZE):
                            work.say(scrub.feed(join_surrogates(text)))
                            if len(event.text) > MAX_LOOP_SIZE:
                                await asyncio.sleep(0)
                    elif isinstance(event, ToolCallEvent):
                        calls.append(work.normalize_call(event))
                    elif isinstance(event, Usage):
                        counted = plausible_usage(event)
                        work.usages.append((len(work.receipts), counted))
                        work.runtime = work.runtime.counted(counted, work.estimate(context), self.provider.window)
                        work.running.emit(counted)
                    else:
                        work.done = event.reason
        finally:
            later.cancel()
            work.say(scrub.close())
        return calls

    def _first_heard(self, work: TurnState) -> None:
        """The send succeeded: now, and only now, the state of the injections moves (I7)."""
        if not work.heard and work.prompts and work.gathered and work.gathered.envelope:
            work.prompts.sent(work.gathered.envelope)
        work.heard = True
        if work.requests:
            work.requests.sent()

    async def _run_tools(self, work: TurnState, calls: Sequence[ToolCallEvent]) -> None:
        """The calls are stored before the first of them runs, and each result before it is shown."""
        asked: Message = {"role": "assistant", "content": work.said or None, "tool_calls": written(calls)}
        await asyncio.shield(self._store_message(work, asked))
        for call in calls:
            work.running.emit(call)
            result, content = await self._result(work, call)
            await asyncio.shield(
                self._store_message(work, {"role": "tool", "content": content, "tool_call_id": call.id})
            )
            work.running.emit(result)

    async def _store_message(self, work: TurnState, message: Message) -> None:
        """Store a message of the turn, and with calls the text beside them. Not to be cancelled in the middle: what is
        stored here must not be stored again with the answer; the end of the turn waits for it."""
        async with work.storing:
            sent = await run_apart(work.size, work.unstored)
            await self._turns.add(*work.key, [message], lease=self._lease, sent=sent)
            work.mark_stored(sent)
            work.since.append(message)
            if message["role"] == "assistant":
                work.show_rest()
                work.begin_step()

    async def _result(self, work: TurnState, call: ToolCallEvent) -> tuple[ToolResult, ToolOutput]:
        """Run a call; what it said, and the same as the model gets it: cut, without secrets, with our hints beside."""
        tools, began = self.builder.tools(work.turn) or ToolRegistry(), time.monotonic()
        outcome = await tools.call(call, ask=work.timed_ask, user_text=work.typed_addresses)
        text = self._hide(join_surrogates(outcome.text))
        known = {tool.name: tool for tool in tools}.get(call.name)
        limit, advice = (known.max_chars, known.too_long) if known else (MAX_CHARS, "")
        content = tool_result(text, tool=call.name, max_chars=limit, advice=advice or ADVICE, state=outcome.state)
        if known and outcome.state in ("done", "failed"):
            was = call.name in work.runtime.degraded
            work.runtime = work.runtime.tried(call.name, failed=outcome.state == "failed")
            if call.name in work.runtime.degraded and not was:  # said here, so that nothing before it moves
                hint = work.runtime.hint(call.name, self.builder.settings.lang)
                content = ToolOutput(content, call.name, (*content.hints, hint), outcome.state)
                work.running.emit(Notice("degraded", Phrase("notice.tool_degraded", tool=call.name, n=DEGRADED)))
        return ToolResult(call.id, call.name, text, outcome.state, time.monotonic() - began), content

    async def _store_texts(self, work: TurnState) -> None:
        """Text is stored, then shown, in batches; the first of an answer at once. What was sent is stored with the
        first text, or without it when that is long in coming."""
        while True:
            await work.fresh.wait()
            work.fresh.clear()
            async with work.storing:
                sent = await run_apart(work.size, work.unstored)
                text = work.said[work.shown :]
                if text:
                    await self._turns.chunk(*work.key, work.chunks, text, lease=self._lease, sent=sent)
                    work.chunks, work.shown = work.chunks + 1, work.shown + len(text)
                    work.running.emit(Text(text))
                elif sent:
                    await self._turns.renew(*work.key, lease=self._lease, sent=sent)
                work.mark_stored(sent)
            if text:
                await asyncio.sleep(BATCH)

    async def _renew_lease(self, work: TurnState) -> None:
        """Nobody takes a turn that is being answered for abandoned."""
        while True:
            await asyncio.sleep(self._lease / 3)
            await self._turns.renew(*work.key, lease=self._lease)

    async def _finish(self, work: TurnState, problem: BaseException | None) -> None:
        state, error, hint = ending(work, problem, self.limits)
        if isinstance(problem, Exception) and not isinstance(problem, LaminaError | TimeoutError):
            trace = join_surrogates("".join(traceback.format_exception(problem)))  # as Unicode: a log goes anywhere
            self._log.error("[Engine] turn %s ended by a bug\n%s", work.record.turn_id, trace)
        if isinstance(problem, LimitError | TimeoutError):
            work.running.emit(Notice("limit", error))
        if isinstance(problem, LeaseError):  # somebody else has ended it: what is stored counts
            record = await self._turns.get(*work.key)
            final: FinalState = "interrupted" if record.state == "streaming" else record.state
            return work.running.end(record, Ended(final, Phrase.load(record.error) or error, hint))
        trace = await run_apart(work.size, work.written)
        texts = {**trace.texts, **work.injected_texts}
        runtime = work.runtime.to_dict()
        if work.requests and (kept := work.requests.kept(work.turn)):
            runtime, texts = {**runtime, LEDGER: kept[0]}, {**texts, **kept[1]}
        answer: Message = {"role": "assistant", "content": work.said}
        handed = work.handed if state == "complete" else ()
        if handed:
            answer = {"role": "assistant", "content": work.said or None, "tool_calls": written(handed)}
        lasting = work.turn.given.history is None
        record = await self._turns.finish(
            *work.key, state=state, answer=answer, usage=usage(work, hint),
            receipt=trace.value if work.kept < len(work.receipts) else None,
            texts={name: text for name, text in texts.items() if name not in work.linked},
            injection=work.changed_injection,
            runtime=runtime if lasting else None,
            jobs=self._jobs(work.record), error=error.dump(),
            tokens=await run_apart(work.length, self.builder.settings.count, work.said),
        )  # fmt: skip
        record = replace(record, receipt=trace.value)
        self._linked.pop(_place(work.turn), None)
        self._linked[_place(work.turn)] = frozenset(texts)  # only now: they are stored
        while len(self._linked) > 1_000:
            self._linked.pop(next(iter(self._linked)))
        work.show_rest()
        if state == "complete" and work.done == "length":
            work.running.emit(Notice("limit", CUT_OFF))
        work.running.emit(*handed)
        status = status_of(problem) if state == "failed" else 0
        return work.running.end(record, Ended(state, error, hint, work.done, status))


def _place(turn: Turn) -> tuple[str, str, float]:
    """A session; a new one may have the name of one that was deleted."""
    return turn.session.owner, turn.session.session_id, turn.session.created
