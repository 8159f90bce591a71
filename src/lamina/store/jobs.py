"""The outbox: work for later, stored in the transaction that asks for it, done at least once and recorded once.

A worker holds a job by a lease; when it dies, the lease runs out and another takes the job. What fails again and
again is parked and stays visible.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lamina.errors import LeaseError, format_value
from lamina.records import Job, NewJob
from lamina.store.database import (
    MAX_KEY,
    MAX_NAME,
    Clock,
    Database,
    Row,
    Steps,
    clean,
    count_on,
    dump,
    marks,
    new_id,
    not_found,
)
from lamina.store.shapes import read_row

COLUMNS = (
    "owner, job_id, number, kind, key, payload, state, attempts, run_after, lease_until, worker, error, created, "
    "updated"
)
MAX_ERROR_CHARACTERS = 2_000
MAX_ABANDONED_ATTEMPTS = 5
"""Attempts after which a job whose lease ran out is parked, since it may be what ends its workers."""
ABANDONED = "job.abandoned"
"""The error of such a job, as a code."""


def job_of(row: Row) -> Job:
    values = read_row("outbox", COLUMNS, row)
    values[4] = values[4] or ""
    return Job(*values)


def add_jobs(owner: str, jobs: Sequence[NewJob], now: float) -> Steps[list[Job]]:
    """Store jobs; one whose key is known already is given back as it is."""
    stored: list[Job] = []
    for job in jobs:
        if job.key:
            rows = yield f"SELECT {COLUMNS} FROM outbox WHERE owner = ? AND key = ?", (owner, job.key)
            if rows:
                stored.append(job_of(rows[0]))
                continue
        kind, key = clean(job.kind, "field.kind", MAX_NAME), clean(job.key, "field.key", MAX_KEY) or None
        number = yield from count_on(owner, "job")
        rows = yield (
            f"INSERT INTO outbox ({COLUMNS}) VALUES ({marks(14)}) RETURNING {COLUMNS}",
            (owner, new_id(), number, kind, key, dump(job.payload), "waiting", 0, job.run_after, 0.0, "", "", now, now),
        )  # fmt: skip
        stored.append(job_of(rows[0]))
    return stored


def complete_job(job: Job, now: float) -> Steps[None]:
    """Mark a job as done, in the transaction of its effect; refused when another worker holds it by now."""
    rows = yield (
        "UPDATE outbox SET state = 'done', lease_until = 0, error = '', updated = ? "
        "WHERE owner = ? AND job_id = ? AND state = 'leased' AND worker = ? AND attempts = ? RETURNING job_id",
        (now, job.owner, job.job_id, job.worker, job.attempts),
    )
    if not rows:
        raise _lease_error(job)


def _lease_error(job: Job) -> LeaseError:
    return LeaseError("job.lease_lost", name=format_value(job.job_id), worker=format_value(job.worker))


MAX_WAIT_S = 3_600.0
"""No failed job waits longer for its next try."""
EARLIER = (
    "AND NOT EXISTS (SELECT 1 FROM outbox e WHERE e.owner = outbox.owner AND e.kind = outbox.kind "
    "AND e.number < outbox.number AND e.state IN ('waiting', 'leased')) "
)
"""One job of an owner and a kind at a time, in the order in which they came."""


TAKE = (
    "UPDATE outbox SET state = 'leased', worker = ?, lease_until = ?, run_after = ?, attempts = attempts + 1, "
    "updated = ? WHERE"
)


def _claim(
    db: Database, worker: str, kinds: Sequence[str], n: int, now: float, until: float, in_order: bool
) -> Steps[list[Job]]:
    yield (
        "UPDATE outbox SET state = 'parked', error = ?, lease_until = 0, updated = ? "
        "WHERE state = 'leased' AND run_after <= ? AND attempts >= ?",
        (ABANDONED, now, now, MAX_ABANDONED_ATTEMPTS),
    )
    only = f"AND kind IN ({marks(len(kinds))})" if kinds else ""
    rows = yield (
        # Materialized: else a plan may run it once for each row, and each time it finds n others.
        "WITH due AS MATERIALIZED (SELECT owner, job_id FROM outbox "
        f"WHERE state IN ('waiting', 'leased') AND run_after <= ? {only} {EARLIER if in_order else ''}"
        f"ORDER BY run_after, number LIMIT ?{db.dialect.skip_locked}) "
        f"{TAKE} (owner, job_id) IN (SELECT owner, job_id FROM due) RETURNING {COLUMNS}",
        (now, *kinds, n, worker, until, until, now),
    )
    return sorted((job_of(row) for row in rows), key=lambda job: (job.owner, job.number))


def _follow(job: Job, worker: str, now: float, until: float) -> Steps[list[Job]]:
    rows = yield (
        f"{TAKE} owner = ? AND state = 'waiting' AND run_after <= ? AND job_id = (SELECT job_id FROM outbox "
        "WHERE owner = ? AND state = 'waiting' AND kind = ? ORDER BY number LIMIT 1) AND NOT EXISTS (SELECT 1 "
        f"FROM outbox e WHERE e.owner = ? AND e.state = 'leased' AND e.kind = ?) RETURNING {COLUMNS}",
        (worker, until, until, now, job.owner, now, job.owner, job.kind, job.owner, job.kind),
    )
    return [job_of(row) for row in rows]


def _heartbeat(job: Job, now: float, until: float) -> Steps[None]:
    rows = yield (
        "UPDATE outbox SET lease_until = ?, run_after = ?, updated = ? "
        "WHERE owner = ? AND job_id = ? AND state = 'leased' AND worker = ? AND attempts = ? RETURNING job_id",
        (until, until, now, job.owner, job.job_id, job.worker, job.attempts),
    )
    if not rows:
        raise _lease_error(job)


def _fail(job: Job, error: str, run_after: float, park_after: int, now: float) -> Steps[Job]:
    state = "parked" if job.attempts >= park_after else "waiting"
    rows = yield (
        "UPDATE outbox SET state = ?, error = ?, run_after = ?, lease_until = 0, updated = ? "
        f"WHERE owner = ? AND job_id = ? AND state = 'leased' AND worker = ? AND attempts = ? RETURNING {COLUMNS}",
        (state, error, run_after, now, job.owner, job.job_id, job.worker, job.attempts),
    )
    if not rows:
        raise _lease_error(job)
    return job_of(rows[0])


def _of_state(owner: str, state: str, limit: int) -> Steps[list[Job]]:
    rows = yield (
        f"SELECT {COLUMNS} FROM outbox WHERE owner = ? AND state = ? ORDER BY number LIMIT ?",
        (owner, state, limit),
    )
    return [job_of(row) for row in rows]


def _get(owner: str, job_id: str) -> Steps[Job]:
    rows = yield f"SELECT {COLUMNS} FROM outbox WHERE owner = ? AND job_id = ?", (owner, job_id)
    if not rows:
        raise not_found("job.not_found", job_id)
    return job_of(rows[0])


def _unpark(owner: str, job_id: str, now: float) -> Steps[Job]:
    rows = yield (
        "UPDATE outbox SET state = 'waiting', attempts = 0, run_after = ?, updated = ? "
        f"WHERE owner = ? AND job_id = ? AND state = 'parked' RETURNING {COLUMNS}",
        (now, now, owner, job_id),
    )
    if not rows:
        raise not_found("job.not_parked", job_id)
    return job_of(rows[0])


def _counts(owner: str) -> Steps[dict[str, int]]:
    rows = yield "SELECT state, COUNT(*) FROM outbox WHERE owner = ? GROUP BY state", (owner,)
    return {"waiting": 0, "leased": 0, "done": 0, "parked": 0} | {row[0]: int(row[1]) for row in rows}


def _left(kinds: Sequence[str], now: float) -> Steps[int]:
    rows = yield (
        f"SELECT COUNT(*) FROM outbox WHERE kind IN ({marks(len(kinds))}) AND ((state = 'leased' AND run_after > ?) "
        f"OR (state IN ('waiting', 'leased') AND run_after <= ? {EARLIER}))",
        (*kinds, now, now),
    )
    return int(rows[0][0])


def _release(now: float) -> Steps[None]:
    yield "UPDATE outbox SET run_after = ?, lease_until = 0 WHERE state = 'leased'", (now,)
    yield "UPDATE outbox SET run_after = ? WHERE state = 'waiting' AND run_after > ?", (now, now + MAX_WAIT_S)


class Jobs:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def add(self, owner: str, kind: str, payload: Mapping[str, Any] | None = None, *, key: str = "",
                  run_after: float = 0.0) -> Job:  # fmt: skip
        now = self._clock()
        job = NewJob(kind, payload or {}, key, run_after)
        return (await self._db.write(owner, lambda: add_jobs(owner, [job], now)))[0]

    async def claim(
        self, worker: str, *, kinds: Sequence[str] = (), n: int = 1, lease: float = 60.0, in_order: bool = False
    ) -> Sequence[Job]:
        """Take up to `n` jobs of any owner that are due, or whose worker let its lease run out.

        `in_order` takes a job only when all earlier ones of its owner and kind have ended: what comes later may
        depend on them.
        """
        now = self._clock()
        clean(worker, "field.worker", MAX_NAME)
        return await self._db.write_any_owner(lambda: _claim(self._db, worker, kinds, n, now, now + lease, in_order))

    async def follow(self, job: Job, worker: str, *, lease: float = 60.0) -> Job | None:
        """The job of the same owner and kind that waits behind this one, which has ended, where it is due. A look over
        all that is due costs what is due; this costs nothing of it."""
        now = self._clock()
        found = await self._db.write(job.owner, lambda: _follow(job, worker, now, now + lease))
        return found[0] if found else None

    async def left(self, kinds: Sequence[str]) -> int:
        """How many jobs of these kinds, of any owner, could be taken in order now, or are held by a worker: one look,
        so that none slips through between the two."""
        now = self._clock()
        return await self._db.write_any_owner(lambda: _left(kinds, now))

    async def release(self) -> None:
        """Let go of every lease: right when this process has just become the only one. A job that a clock which ran
        ahead has put off for long is due now too."""
        now = self._clock()
        await self._db.write_any_owner(lambda: _release(now))

    async def heartbeat(self, job: Job, *, lease: float = 60.0) -> None:
        """Hold a job for longer; an error says that another worker has it by now."""
        now = self._clock()
        await self._db.write(job.owner, lambda: _heartbeat(job, now, now + lease))

    async def done(self, job: Job) -> None:
        now = self._clock()
        await self._db.write(job.owner, lambda: complete_job(job, now))

    async def fail(self, job: Job, error: str, *, retry_after: float = 1.0, park_after: int = 5) -> Job:
        """Put a job back for a later try, or park it when it has had `park_after` of them."""
        now = self._clock()
        text = error.replace("\0", "␀").encode("utf-8", "replace").decode()[:MAX_ERROR_CHARACTERS]
        return await self._db.write(job.owner, lambda: _fail(job, text, now + retry_after, park_after, now))

    async def get(self, owner: str, job_id: str) -> Job:
        return await self._db.read(owner, lambda: _get(owner, job_id))

    async def parked(self, owner: str, *, limit: int = 100) -> Sequence[Job]:
        return await self._db.read(owner, lambda: _of_state(owner, "parked", limit))

    async def unpark(self, owner: str, job_id: str) -> Job:
        now = self._clock()
        return await self._db.write(owner, lambda: _unpark(owner, job_id, now))

    async def counts(self, owner: str) -> Mapping[str, int]:
        """How many jobs are waiting, leased, done and parked."""
        return await self._db.read(owner, lambda: _counts(owner))
