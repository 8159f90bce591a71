"""The indexes of the owners who were active lately, each as fresh as its rows: new ones are added, gone ones removed.

One for a process, whatever the number of owners; an index never holds rows of two. Needs numpy (extra `memory`).
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, TypeVar

import numpy as np

from lamina.errors import EmbedderError
from lamina.memory.index import Floats, Hit, Index, IndexEntry, index_row
from lamina.memory.ranking import Query, passages
from lamina.ports import Embedder
from lamina.records import IndexRow, Job, Memory, NewJob, NewMemory
from lamina.store.memories import Memories
from lamina.text.dates import day_of

MAX_ROWS = 200_000
"""Rows held in memory over all owners, about two kilobytes each; the owners who spoke longest ago make room."""
MAX_WAITING_CALLS = 64
"""Calls that may wait for the embedder at one time."""
MENTION_BYTES = 8
"""Of a day or a span of days that a memory mentions: two numbers of four bytes."""
EMBEDDED_AT_ONCE = 256
"""Memories that are embedded together."""


T = TypeVar("T")


@dataclass(slots=True)
class _LoadedIndex:
    index: Index = field(default_factory=Index)
    last: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Recall:
    """Finds memories of one owner at a time, by words, meaning and days."""

    def __init__(self, rows: Memories, embedder: Embedder | None = None, *, max_rows: int = MAX_ROWS) -> None:
        self._rows, self._embedder, self._max_rows = rows, embedder, max_rows
        self._known: OrderedDict[str, _LoadedIndex] = OrderedDict()
        self._working: set[asyncio.Task[Any]] = set()
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, "embedder") if embedder else None
        self._log = logging.getLogger("lamina.memory")

    @property
    def model(self) -> str:
        return self._embedder.name if self._embedder else ""

    async def search(
        self, owner: str, text: str, *, limit: int, context: Sequence[str] = (), today: date | None = None
    ) -> list[Hit]:
        """The best hits of this owner, nothing where nothing is good enough."""
        known = await self._finish_anyway(self._load(owner))
        if not len(known.index):
            return []
        around = tuple(context)
        vectors = await self._embed(passages(text, around)) if self._embedder else None
        query = Query(text, around, today, vectors, self.model)
        return await self._finish_anyway(self._search_index(known, query, limit))

    async def add(
        self,
        owner: str,
        memories: Sequence[NewMemory],
        *,
        done: Job | None = None,
        jobs: Sequence[NewJob] = (),
        as_of: int | None = None,
    ) -> Sequence[Memory]:
        """Keep facts and index them. What a crash leaves without an index row gets one at the next search."""
        made = await self._rows.add(owner, memories, done=done, jobs=jobs, as_of=as_of)
        (problem,) = await asyncio.gather(self._index(owner, made), return_exceptions=True)
        if isinstance(problem, Exception):  # the facts are stored, and the next search indexes them
            self._log.warning("[Memory] not indexed yet: %s", problem)
        elif isinstance(problem, BaseException):
            raise problem
        return made

    async def reindex(self, owner: str) -> int:
        """All index rows of an owner made again; returns how many memories are indexed."""
        self.drop(owner)
        await self._rows.clear_index(owner)
        return len((await self._load(owner)).index)

    def drop(self, owner: str) -> None:
        self._known.pop(owner, None)

    async def warm(self) -> None:
        """Load the embedder before anything waits for it; one that cannot be reached now may be reached later."""
        if self._embedder:
            (problem,) = await asyncio.gather(self._embed(["warm"]), return_exceptions=True)
            if isinstance(problem, Exception):
                self._log.warning("[Memory] the embedder %s: %s", self.model, problem)

    async def _finish_anyway(self, work: Coroutine[Any, Any, T]) -> T:
        """A caller that cannot wait may leave; the work is done anyway, under its lock and for the next call."""
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return await asyncio.shield(task)

    async def _search_index(self, known: _LoadedIndex, query: Query, limit: int) -> list[Hit]:
        async with known.lock:
            return await asyncio.to_thread(known.index.search, query, limit)

    async def _load(self, owner: str) -> _LoadedIndex:
        """When nothing changed this costs one small read."""
        known = self._known.setdefault(owner, _LoadedIndex())
        self._known.move_to_end(owner)
        async with known.lock:
            while known.last < (latest := await self._rows.last_change(owner)):
                changes = await self._rows.index_changes(owner, self.model, after=known.last)
                known.index.remove(changes.gone)
                rows = [row for row in changes.rows if self._is_readable(row)]
                lost = [row.memory_id for row in changes.rows if not self._is_readable(row)]
                missing = [*changes.bare, *lost]
                for at in range(0, len(missing), EMBEDDED_AT_ONCE):
                    bare = await self._rows.many(owner, missing[at : at + EMBEDDED_AT_ONCE])
                    rows += await self._index(owner, [memory for memory in bare if memory.state == "active"])
                await asyncio.to_thread(known.index.add, rows)
                known.last = changes.last if changes.more else max(changes.last, latest)
        self._make_room(owner)
        return known

    def _is_readable(self, row: IndexRow) -> bool:
        """Whether the stored row can be one of ours: a damaged one is made again from its memory."""
        sizes = (0, self._embedder.dimension + 4) if self._embedder else (0,)
        whole = len(row.terms) >= 8 and len(row.terms) % 8 == 0
        return whole and len(row.mentions) % MENTION_BYTES == 0 and len(row.vector) in sizes

    async def _index(self, owner: str, memories: Sequence[Memory]) -> list[IndexRow]:
        if not memories:
            return []
        vectors = await self._vectors([memory.text for memory in memories])
        rows = [
            replace(index_row(index_entry(memory), vectors[n], self.model), model=self.model)
            for n, memory in enumerate(memories)
        ]
        await self._rows.put_index(owner, rows)
        return rows

    async def _vectors(self, texts: Sequence[str]) -> Sequence[Floats | None]:
        """A vector for each text; a text that the embedder cannot take is found by its words alone."""
        if self._embedder is None:
            return [None] * len(texts)
        (found,) = await asyncio.gather(self._embed(texts), return_exceptions=True)
        if not isinstance(found, BaseException):
            return list(found)
        if not isinstance(found, Exception) or len(texts) == 0:
            raise found
        await self._embed(["is it the embedder, or is it the text?"])
        each = await asyncio.gather(*(self._embed([text]) for text in texts), return_exceptions=True)
        return [None if isinstance(one, BaseException) else one[0] for one in each]

    async def _embed(self, texts: Sequence[str]) -> Floats:
        """Off the event loop, in a thread of its own: a slow embedder must not take the threads of others."""
        assert self._embedder is not None
        if self._waiting >= MAX_WAITING_CALLS:
            raise EmbedderError("embedder.too_slow", count=self._waiting)
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            found = await asyncio.shield(loop.run_in_executor(self._thread, self._embedder.embed, texts))
        finally:
            self._waiting -= 1
        rows = np.asarray([np.asarray(row, np.float32) for row in found], np.float32)
        if rows.shape != (len(texts), self._embedder.dimension) or not np.isfinite(rows).all():
            raise EmbedderError("embedder.wrong_vectors", model=repr(self.model), dimension=self._embedder.dimension)
        return rows

    def _make_room(self, owner: str) -> None:
        held = sum(len(known.index) for known in self._known.values())
        while held > self._max_rows and len(self._known) > 1:
            name = next(iter(self._known))
            if name == owner:
                break
            held -= len(self._known.pop(name).index)


def index_entry(memory: Memory) -> IndexEntry:
    return IndexEntry(
        memory.memory_id,
        memory.text,
        memory.change,
        day_of(memory.created if memory.happened is None else memory.happened),
        session=memory.session_id or memory.memory_id,  # what was said outside of any session has no neighbours
        position=memory.seq,
        importance=memory.importance,
        dated=memory.happened is not None,
        said=day_of(memory.created),
    )
