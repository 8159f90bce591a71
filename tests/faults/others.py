"""What else writes to a store, one thing after another, each with a look that says whether it is there.

For failpoints: a process ends in the middle of this list, and another looks for what was acknowledged.
"""

import os
from collections.abc import Awaitable, Callable
from typing import Any

from lamina.errors import NotFoundError
from lamina.memory.recall import Recall
from lamina.records import NewMemory, Template
from lamina.store.store import Store, open_store
from tests.faults.failpoints import ENDED, Failing
from tests.faults.nursery import Ack, Line

Do = Callable[[Store], Awaitable[Any]]
Look = Callable[[Store], Awaitable[bool]]


async def lay(order: Line, ack: Ack) -> None:
    """The store on which it is done, as a crash leaves it."""
    async with open_store(order["where"]) as store:
        for name in ("base", "gone", "other"):
            await store.sessions.new("ann", session_id=name)
            await store.messages.append("ann", name, [{"role": "user", "content": f"{name} {n}"} for n in range(3)])
        await store.summaries.put("ann", "other", "it was long", upto_seq=1)
        await store.profile.set("ann", {"old": 1})
        await store.templates.put("ann", Template("t0", "t0", "words"))
        await store.memories.add("ann", [NewMemory(f"fact {n}") for n in range(5)])
        for key in ("held", "failing", "poison", "dead"):
            await store.jobs.add("ann", key, key=key)
        await store.jobs.claim("w", kinds=["dead"])
        ack({"op": ""})
        os._exit(ENDED)


async def memory_id(store: Store, text: str) -> str:
    (found,) = [m for m in await store.memories.changes("ann") if m.text == text]
    return found.memory_id


async def texts(store: Store, **which: Any) -> set[str]:
    return {memory.text for memory in await store.memories.list("ann", **which)}


async def job_error(store: Store, kind: str) -> str:
    """What was the matter with a job that waits, or that is parked; taking it shows it."""
    parked = [job.error for job in await store.jobs.parked("ann") if job.kind == kind]
    return parked[0] if parked else (await store.jobs.claim("look", kinds=[kind], n=1))[0].error


async def titles(store: Store, owner: str = "ann") -> list[str]:
    return [session.title or session.session_id for session in await store.sessions.list(owner)]


async def first_answer(store: Store) -> str:
    """Only answers can be collected; `record` has stored one."""
    return next(m.message_id for m in await store.messages.list("ann", "base") if m.message["role"] == "assistant")


async def with_job(store: Store, kind: str, use: Callable[[Any], Awaitable[Any]]) -> None:
    (job,) = await store.jobs.claim("w", kinds=[kind])
    await use(job)


async def unpark(store: Store) -> None:
    (job,) = await store.jobs.parked("ann")
    await store.jobs.unpark("ann", job.job_id)


async def import_all(store: Store) -> None:
    await store.admin.import_([line async for line in store.admin.export("ann")], owner="eve")


async def edit(store: Store) -> None:
    await store.memories.edit("ann", await memory_id(store, "fact 0"), text="fact 0, but newer")


async def pin(store: Store) -> None:
    await store.memories.pin("ann", await memory_id(store, "fact 1"))


async def supersede(store: Store) -> None:
    old = await memory_id(store, "fact 2")
    await store.memories.add("ann", [NewMemory("fact 2 replaced", supersedes=(old,))])


async def forget(store: Store) -> None:
    await store.memories.forget("ann", [await memory_id(store, "fact 3")])


async def collect(store: Store) -> None:
    await store.messages.collect("ann", await first_answer(store))


async def summarised(store: Store, session: str) -> bool:
    try:
        await store.summaries.get("ann", session)
    except NotFoundError:
        return False
    return True


async def found(store: Store, words: str) -> bool:
    return bool(await store.sessions.search("ann", words))


async def anything(store: Store) -> bool:
    """A read, or a lease: there is nothing to find afterwards."""
    return True


async def state_of(store: Store, state: str, at_least: int) -> bool:
    return (await store.jobs.counts("ann"))[state] >= at_least


async def is_not(look: Awaitable[bool]) -> bool:
    return not await look


async def among(name: str, names: Awaitable[Any]) -> bool:
    return name in await names


async def equals(value: Any, given: Awaitable[Any]) -> bool:
    return value == await given


async def record(store: Store) -> Any:
    said, answer = {"role": "user", "content": "cherry"}, {"role": "assistant", "content": "yes"}
    return await store.turns.record("ann", "base", said, answer)


async def revoke(store: Store) -> object:
    return await store.keys.revoke("ann", (await store.keys.list("ann"))[0].key_id)


async def use(store: Store) -> object:
    key_id = (await store.keys.list("ann"))[0].key_id
    return await store.keys.spend("ann", key_id, "2026-11-15", requests=1, tokens=7)


async def _revoked(store: Store) -> list[bool]:
    return [key.revoked is not None for key in await store.keys.list("ann")]


async def _used(store: Store) -> int:
    found = await store.keys.find((await store.keys.list("ann"))[0].key_id, "2026-11-15")
    return found[2] if found else 0


OPS: list[tuple[str, Do, Look]] = [
    ("new", lambda s: s.sessions.new("ann", session_id="new"), lambda s: among("new", titles(s))),
    ("update", lambda s: s.sessions.update("ann", "base", title="T"), lambda s: among("T", titles(s))),
    ("branch", lambda s: s.sessions.branch("ann", "other", 2, title="B"), lambda s: among("B", titles(s))),
    ("delete", lambda s: s.sessions.delete("ann", "gone"), lambda s: is_not(among("gone", titles(s)))),
    ("append", lambda s: s.messages.append("ann", "base", [{"role": "user", "content": "apple"}]),
     lambda s: found(s, "apple")),
    ("record", record, lambda s: found(s, "cherry")),
    ("collect", collect, lambda s: equals(1, _count(s.messages.collected("ann")))),
    ("summary", lambda s: s.summaries.put("ann", "base", "short", upto_seq=1), lambda s: summarised(s, "base")),
    ("no summary", lambda s: s.summaries.delete("ann", "other"), lambda s: is_not(summarised(s, "other"))),
    ("profile", lambda s: s.profile.set("ann", {"a": 1}), lambda s: among("a", s.profile.get("ann"))),
    ("no profile", lambda s: s.profile.delete("ann", "old"), lambda s: is_not(among("old", s.profile.get("ann")))),
    ("template", lambda s: s.templates.put("ann", Template("t1", "t1", "words")),
     lambda s: among("t1", _names(s))),
    ("no template", lambda s: s.templates.delete("ann", "t0"), lambda s: is_not(among("t0", _names(s)))),
    ("remember", lambda s: s.memories.add("ann", [NewMemory("fact 9")]), lambda s: among("fact 9", texts(s))),
    ("edit", edit, lambda s: among("fact 0, but newer", texts(s))),
    ("pin", pin, lambda s: among("fact 1", texts(s, pinned=True))),
    ("supersede", supersede, lambda s: among("fact 2 replaced", texts(s))),
    ("forget", forget, lambda s: is_not(among("fact 3", texts(s, state=None)))),
    ("index", lambda s: Recall(s.memories).reindex("ann"), anything),
    ("job", lambda s: s.jobs.add("ann", "added", key="added"), lambda s: _has_job(s, "added")),
    ("release", lambda s: s.jobs.release(), anything),
    ("done", lambda s: with_job(s, "held", s.jobs.done), lambda s: state_of(s, "done", 1)),
    ("heartbeat", lambda s: with_job(s, "dead", s.jobs.heartbeat), lambda s: state_of(s, "leased", 1)),
    ("fail", lambda s: with_job(s, "failing", lambda job: s.jobs.fail(job, "so it is", retry_after=0)),
     lambda s: equals("so it is", job_error(s, "failing"))),
    ("park", lambda s: with_job(s, "poison", lambda job: s.jobs.fail(job, "poisoned", park_after=1)),
     lambda s: equals("poisoned", job_error(s, "poison"))),
    ("unpark", unpark, lambda s: equals(0, _count(s.jobs.parked("ann")))),
    ("import", import_all, lambda s: among("T", titles(s, "eve"))),
    ("reindex", lambda s: s.admin.reindex("ann"), lambda s: found(s, "apple")),
    ("complete", lambda s: s.indexes.complete(), lambda s: found(s, "apple")),
    ("secret", lambda s: s.sessions.secret("zoe"), anything),
    ("owners", lambda s: s.admin.owners(), anything),
    ("version", lambda s: s.admin.version(), anything),
    ("key", lambda s: s.keys.add("ann", "k", scopes=("chat",)), lambda s: equals(1, _count(s.keys.list("ann")))),
    ("no key", revoke, lambda s: equals([True], _revoked(s))),
    ("use", use, lambda s: equals(7, _used(s))),
    ("find key", lambda s: s.keys.find("0" * 16, "2026-11-15"), anything),
    ("any key", lambda s: s.keys.any(), anything),
]  # fmt: skip


async def _count(things: Awaitable[Any]) -> int:
    return len(await things)


async def _names(store: Store) -> list[str]:
    return [template.name for template in await store.templates.list("ann")]


async def _has_job(store: Store, key: str) -> bool:
    """A second one under the same key is the same: it is not counted."""
    before = await store.jobs.counts("ann")
    await store.jobs.add("ann", key, key=key)
    return before == await store.jobs.counts("ann")


async def others(order: Line, ack: Ack) -> None:
    async with open_store(order["where"]) as plain:
        db = Failing(plain.db, ack, order["site"], order["at"], order["when"])
        store = Store(db, lambda: 1e9)
        for name, do, _ in OPS:
            await do(store)
            ack({"op": name})
        ack({"sites": db.passed})


async def look(order: Line, ack: Ack) -> None:
    """What was acknowledged is there. A search index that was being made anew is made anew, as the error says."""
    async with open_store(order["where"], clock=lambda: 2e9) as store:
        found = await store.admin.verify()
        if found and all(problem.part == "search" for problem in found):
            ack({"reindexed": True})
            await store.admin.reindex()
            found = await store.admin.verify()
        problems = [problem.text for problem in found]
        for name, _, seen in OPS:
            if name in order["done"] and not await seen(store):
                problems.append(f"{name} is lost")
        ack({"problems": problems})
