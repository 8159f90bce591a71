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
    Group,
    Row,
    Steps,
    clean,
    columns_of,
    count_on,
    dump,
    marks,
    new_id,
    one_row,
    read,
    set_clause,
    write,
    write_any_owner,
)
from lamina.store.schema import read_row

COLUMNS = columns_of(Job)
MAX_ERROR_CHARACTERS = 2_000
MAX_ABANDONED_ATTEMPTS = 5
"""Attempts after which a job whose lease ran out is parked, since it may be what ends its workers."""
ABANDONED = "job.abandoned"
"""The error of such a job, as a code."""
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


def job_of(row: Row) -> Job:
    return Job(*read_row("outbox", COLUMNS, row))


def add_jobs(owner: str, jobs: Sequence[NewJob], now: float) -> Steps[list[Job]]:
    """Store jobs; one whose key is known already is returned as it is."""
    stored: list[Job] = []
    for job in jobs:
        if job.key:
            rows = yield f"SELECT {COLUMNS} FROM outbox WHERE owner = ? AND key = ?", (owner, job.key)
            if rows:
                stored.append(job_of(rows[0]))
                continue
        kind, key = clean(job.kind, "field.kind", MAX_NAME), clean(job.key, "field.key", MAX_KEY) or None
        number = yield from count_on(owner, "job")
        values = (owner, new_id(), number, kind, key, dump(job.payload), "waiting", 0, job.run_after, 0.0, "", "")
        rows = yield (
            f"INSERT INTO outbox ({COLUMNS}) VALUES ({marks(14)}) RETURNING {COLUMNS}",
            (*values, now, now),
        )
        stored.append(job_of(rows[0]))
    return stored


def complete_job(job: Job, now: float) -> Steps[None]:
    """Mark a job as done, in the transaction of its effect; refused when another worker holds it by now."""
    yield from _change_held(job, {"state": "done", "lease_until": 0, "error": ""}, now)


def _change_held(job: Job, changes: Mapping[str, Any], now: float) -> Steps[Job]:
    """Change a job that its worker still holds."""
    values = {**changes, "updated": now}
    rows = yield (
        f"UPDATE outbox SET {set_clause(values)} WHERE owner = ? AND job_id = ? AND state = 'leased' AND worker = ? "
        f"AND attempts = ? RETURNING {COLUMNS}",
        (*values.values(), job.owner, job.job_id, job.worker, job.attempts),
    )
    if not rows:
        raise LeaseError("job.lease_lost", name=format_value(job.job_id), worker=format_value(job.worker))
    return job_of(rows[0])


class Jobs(Group):
    @write
    def add(
        self, owner: str, kind: str, payload: Mapping[str, Any] | None = None, *, key: str = "", run_after: float = 0.0
    ) -> Steps[Job]:
        (job,) = yield from add_jobs(owner, [NewJob(kind, payload or {}, key, run_after)], self._clock())
        return job

    @write_any_owner
    def claim(
        self, worker: str, *, kinds: Sequence[str] = (), n: int = 1, lease: float = 60.0, in_order: bool = False
    ) -> Steps[Sequence[Job]]:
        """Take up to `n` jobs of any owner that are due, or whose worker let its lease run out.

        `in_order` takes a job only when all earlier ones of its owner and kind have ended: what comes later may
        depend on them.
        """
        now = self._clock()
        until = now + lease
        clean(worker, "field.worker", MAX_NAME)
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
            f"ORDER BY run_after, number LIMIT ?{self._db.dialect.skip_locked}) "
            f"{TAKE} (owner, job_id) IN (SELECT owner, job_id FROM due) RETURNING {COLUMNS}",
            (now, *kinds, n, worker, until, until, now),
        )
        return sorted((job_of(row) for row in rows), key=lambda job: (job.owner, job.number))

    @write
    def follow(self, job: Job, worker: str, *, lease: float = 60.0) -> Steps[Job | None]:
        """The job of the same owner and kind that waits behind this one, which has ended, where it is due. A look over
        all that is due costs what is due; this costs nothing of it."""
        now = self._clock()
        until = now + lease
        rows = yield (
            f"{TAKE} owner = ? AND state = 'waiting' AND run_after <= ? AND job_id = (SELECT job_id FROM outbox "
            "WHERE owner = ? AND state = 'waiting' AND kind = ? ORDER BY number LIMIT 1) AND NOT EXISTS (SELECT 1 "
            f"FROM outbox e WHERE e.owner = ? AND e.state = 'leased' AND e.kind = ?) RETURNING {COLUMNS}",
            (worker, until, until, now, job.owner, now, job.owner, job.kind, job.owner, job.kind),
        )
        return job_of(rows[0]) if rows else None

    @write_any_owner
    def left(self, kinds: Sequence[str]) -> Steps[int]:
        """How many jobs of these kinds, of any owner, could be taken in order now, or are held by a worker: one look,
        so that none slips through between the two."""
        now = self._clock()
        rows = yield (
            f"SELECT COUNT(*) FROM outbox WHERE kind IN ({marks(len(kinds))}) "
            "AND ((state = 'leased' AND run_after > ?) "
            f"OR (state IN ('waiting', 'leased') AND run_after <= ? {EARLIER}))",
            (*kinds, now, now),
        )
        return int(rows[0][0])

    @write_any_owner
    def release(self) -> Steps[None]:
        """End every lease: right when this process has just become the only one. A job that a clock which ran
        ahead has put off for long is due now too."""
        now = self._clock()
        yield "UPDATE outbox SET run_after = ?, lease_until = 0 WHERE state = 'leased'", (now,)
        yield "UPDATE outbox SET run_after = ? WHERE state = 'waiting' AND run_after > ?", (now, now + MAX_WAIT_S)

    @write
    def heartbeat(self, job: Job, *, lease: float = 60.0) -> Steps[None]:
        """Hold a job for longer; an error says that another worker has it by now."""
        until = self._clock() + lease
        yield from _change_held(job, {"lease_until": until, "run_after": until}, self._clock())

    @write
    def done(self, job: Job) -> Steps[None]:
        return complete_job(job, self._clock())

    @write
    def fail(self, job: Job, error: str, *, retry_after: float = 1.0, park_after: int = 5) -> Steps[Job]:
        """Put a job back for a later try, or park it when it has had `park_after` of them."""
        now = self._clock()
        text = error.replace("\0", "␀").encode("utf-8", "replace").decode()[:MAX_ERROR_CHARACTERS]
        state = "parked" if job.attempts >= park_after else "waiting"
        changes = {"state": state, "error": text, "run_after": now + retry_after, "lease_until": 0}
        return (yield from _change_held(job, changes, now))

    @read
    def get(self, owner: str, job_id: str) -> Steps[Job]:
        rows = yield f"SELECT {COLUMNS} FROM outbox WHERE owner = ? AND job_id = ?", (owner, job_id)
        return job_of(one_row(rows, "job.not_found", job_id))

    @read
    def parked(self, owner: str, *, limit: int = 100) -> Steps[Sequence[Job]]:
        rows = yield (
            f"SELECT {COLUMNS} FROM outbox WHERE owner = ? AND state = 'parked' ORDER BY number LIMIT ?",
            (owner, limit),
        )
        return [job_of(row) for row in rows]

    @write
    def unpark(self, owner: str, job_id: str) -> Steps[Job]:
        now = self._clock()
        rows = yield (
            "UPDATE outbox SET state = 'waiting', attempts = 0, run_after = ?, updated = ? "
            f"WHERE owner = ? AND job_id = ? AND state = 'parked' RETURNING {COLUMNS}",
            (now, now, owner, job_id),
        )
        return job_of(one_row(rows, "job.not_parked", job_id))

    @read
    def counts(self, owner: str) -> Steps[Mapping[str, int]]:
        """How many jobs are waiting, leased, done and parked."""
        rows = yield "SELECT state, COUNT(*) FROM outbox WHERE owner = ? GROUP BY state", (owner,)
        return {"waiting": 0, "leased": 0, "done": 0, "parked": 0} | {row[0]: int(row[1]) for row in rows}
