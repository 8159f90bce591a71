"""The background: facts and summaries, from the outbox, never in the way of an answer and never lost (C8).

A job's effect and its end are one transaction, so a crash leads to neither a loss nor a second time. What fails is
tried again later, and parked when it keeps failing.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from lamina.apart import set_current_user
from lamina.errors import LaminaError, LeaseError, NotFoundError, StoreError
from lamina.memory.service import SUMMARY_JOB, MemoryService, summary_job
from lamina.records import REQUESTS, Job, NewJob, TurnRecord
from lamina.store.store import Store

MEMORY = "memory"
MESSAGES_PER_SUMMARY = 8
"""A session is summarised again each time so many messages were added: four turns without tools."""
LEASE_S = 60.0
POLL_INTERVAL_S, MIN_POLL_INTERVAL_S = 1.0, 0.02
"""Seconds between two polls for work, and the shortest pause while a caller waits for jobs that other workers hold."""
JOB_TIMEOUT_S = 300.0
"""Seconds that a job may take, the model's answer included."""
ROW_SECONDS = 1.0
"""Seconds in which jobs of one owner and kind are done one after another before all are looked at again."""
SHUTDOWN_GRACE_S = 5.0
"""Seconds that jobs get to end when the worker stops."""
JobHandler = Callable[[Job], Awaitable[object]]
Report = Callable[[Job, str, str], object]
"""Told how each job ended: the job, `done`, `again` (later), `parked` or `lost` (to another worker), and the error."""


def jobs_of_turn(turn: TurnRecord) -> list[NewJob]:
    """What a finished turn asks for, to be stored with its answer. The keys make sure that each is done once."""
    jobs = [NewJob(MEMORY, {"turn_id": turn.turn_id}, key=f"{MEMORY}:{turn.turn_id}")]
    if (stretch := turn.answer_seq // MESSAGES_PER_SUMMARY) and turn.session_id != REQUESTS:
        jobs.append(summary_job(turn.session_id, key=f"{SUMMARY_JOB}:{turn.session_id}:{stretch}"))
    return jobs


def jobs_after_turn(memory: bool) -> Callable[[TurnRecord], Sequence[NewJob]]:
    """Where memory is switched off, a turn asks for nothing."""
    return jobs_of_turn if memory else lambda turn: ()


def end_job(session_id: str, upto: int) -> NewJob:
    """What the end of a session asks for."""
    return summary_job(session_id, key=f"{SUMMARY_JOB}:{session_id}:end {upto}")


class Worker:
    """Takes jobs of all owners and does each as its owner."""

    def __init__(
        self,
        store: Store,
        memory: Callable[[str], MemoryService],
        *,
        name: str = "",
        batch: int = 8,
        lease: float = LEASE_S,
        park_after: int = 5,
        report: Report | None = None,
        learns: bool = True,
        deadline: float = JOB_TIMEOUT_S,
        in_a_row: float = ROW_SECONDS,
        here: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{os.urandom(3).hex()}"
        self._store, self._memory, self._learns, self._deadline = store, memory, learns, deadline
        self._report: Report = report or (lambda job, how, error: None)
        self._batch, self._lease, self._park_after, self._in_a_row = batch, lease, park_after, in_a_row
        self._here = here
        """The turns that this process answers."""
        self._log = logging.getLogger("lamina.worker")
        self._ending = False
        self._handlers: Mapping[str, JobHandler] = {MEMORY: self._learn, SUMMARY_JOB: self._summarise}

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; jobs that have begun are finished, within a limit. A slow job does not hold up the
        others, and a store that is away for a while is waited for."""
        running: set[asyncio.Task[int]] = set()
        looked, self._ending = -POLL_INTERVAL_S, False
        while not stop.is_set():
            try:
                free = self._batch - len(running)
                jobs = await self._claim(free) if free else ()
                if time.monotonic() - looked >= POLL_INTERVAL_S:  # also when there is always something to do
                    looked = time.monotonic()
                    await self._store.turns.recover(jobs=jobs_after_turn(self._learns), without=self._here())
            except LaminaError as error:
                jobs = ()
                self._log.warning("[Worker] %s", error)
            running |= {asyncio.create_task(self._run_jobs(job)) for job in jobs}
            if not jobs:
                waiting = asyncio.create_task(stop.wait())
                await asyncio.wait({waiting, *running}, timeout=POLL_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
            running = {task for task in running if not task.done()}
        self._ending = True
        if running:
            _, late = await asyncio.wait(running, timeout=SHUTDOWN_GRACE_S)
            for task in late:  # their leases run out, and another worker takes them
                task.cancel()

    async def run_until_empty(self, patience: float = JOB_TIMEOUT_S) -> int:
        """All that is due now; returns how many jobs were done here. What another worker holds, the one in the
        background of this process too, is waited for: later jobs of its owner come after it."""
        total, pause = 0, MIN_POLL_INTERVAL_S
        end = asyncio.get_running_loop().time() + patience
        while True:
            if done := await self.run_once():
                total, pause = total + done, MIN_POLL_INTERVAL_S
            elif not (left := await self._store.jobs.left(tuple(self._handlers))):
                return total
            elif asyncio.get_running_loop().time() >= end:
                raise LeaseError("jobs.held_elsewhere", seconds=f"{patience:g}", count=left)
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, POLL_INTERVAL_S)

    async def run_once(self) -> int:
        """Take what is due, do it, and record how it ended; returns how many were taken."""
        jobs = await self._claim(self._batch)
        return sum(await asyncio.gather(*(self._run_jobs(job) for job in jobs)))

    async def _claim(self, count: int) -> Sequence[Job]:
        """In the order in which they came: of two facts the later one counts, so it must be learnt later."""
        kinds = tuple(self._handlers)
        return await self._store.jobs.claim(self.name, kinds=kinds, n=count, lease=self._lease, in_order=True)

    async def _run_jobs(self, job: Job) -> int:
        """A job, and those behind it that can be done within a moment; returns how many. Then others get their turn."""
        clock, following, count = asyncio.get_running_loop().time, job, 0
        end = clock() + self._in_a_row
        while following:
            set_current_user(following.owner)
            await self._run_job(following)
            count += 1
            following = await self._claim_next(following) if clock() < end else None
        return count

    async def _claim_next(self, job: Job) -> Job | None:
        """The next job of the same owner and kind. A worker that stops takes none."""
        if self._ending:
            return None
        try:
            return await self._store.jobs.follow(job, self.name, lease=self._lease)
        except StoreError as error:
            self._log.warning("[Worker] %s", error)
            return None

    async def _run_job(self, job: Job) -> None:
        """One job, and how it ended. Whatever goes wrong in it is this job's failure and no other's."""
        (problem,) = await asyncio.gather(self._run_with_heartbeat(job), return_exceptions=True)
        if isinstance(problem, LeaseError):
            self._report(job, "lost", "")  # another worker has it by now, and its result was dropped
        elif isinstance(problem, BaseException):
            await self._record_failure(job, problem)
        else:
            self._report(job, "done", "")

    async def _run_with_heartbeat(self, job: Job) -> None:
        """Do a job while its lease is renewed."""
        beat = asyncio.create_task(self._send_heartbeats(job))
        try:
            async with asyncio.timeout(self._deadline):
                await self._handlers[job.kind](job)
        finally:
            beat.cancel()

    async def _send_heartbeats(self, job: Job) -> None:
        while True:
            await asyncio.sleep(self._lease / 3)
            await self._store.jobs.heartbeat(job, lease=self._lease)

    async def _record_failure(self, job: Job, error: BaseException) -> None:
        what = str(error) if isinstance(error, LaminaError) else f"{type(error).__name__}: {error}"
        self._log.info("[Worker] a job of the kind %s failed: %s", job.kind, type(error).__name__)
        try:
            after = 2.0 ** min(job.attempts, 11)  # an hour at most; a number from elsewhere may be of any size
            put_back = await self._store.jobs.fail(job, what, retry_after=after, park_after=self._park_after)
        except StoreError as problem:
            if not isinstance(problem, LeaseError):  # the store is away: the lease runs out, and the job is due again
                self._log.warning("[Worker] %s", problem)
            self._report(job, "lost", what)
        else:
            self._report(job, "parked" if put_back.state == "parked" else "again", what)

    async def _learn(self, job: Job) -> object:
        turn_id = str(job.payload["turn_id"])
        return await self._run_unless_deleted(
            job,
            lambda memory: memory.save_atomic_memory(turn_id, done=job),
            lambda: self._store.turns.get(job.owner, turn_id),
        )

    async def _summarise(self, job: Job) -> object:
        session_id = str(job.payload["session_id"])
        return await self._run_unless_deleted(
            job,
            lambda memory: memory.write_summary(session_id, done=job),
            lambda: self._store.sessions.get(job.owner, session_id),
        )

    async def _run_unless_deleted(
        self, job: Job, work: Callable[[MemoryService], Awaitable[object]], look: Callable[[], Awaitable[object]]
    ) -> object:
        """Nothing is learnt where memory is switched off, nor from a session that was deleted before its turn came.
        Only if a look at what the job is about finds nothing, it has come to its end."""
        if not self._learns:
            return await self._store.jobs.done(job)
        try:
            return await work(self._memory(job.owner))
        except NotFoundError:
            try:
                await look()
            except NotFoundError:
                return await self._store.jobs.done(job)
            raise
