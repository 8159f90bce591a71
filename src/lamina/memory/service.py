"""What is remembered of one owner: facts found again when they matter, learnt from turns, forgotten when asked to.

A service is bound to its owner; no method takes another. It never learns from what came out of memory.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any, cast

from lamina.apart import run_apart
from lamina.assembly.history import close_calls, group_turns
from lamina.errors import LayerError, LeaseError, format_value
from lamina.memory.dedupe import FactChange, merge
from lamina.memory.extract import (
    EXTRACTION_SCHEMA,
    KINDS,
    extraction_prompt,
    facts_by_rules,
    facts_from_reply,
    is_told_by,
    telling_words,
)
from lamina.memory.sentences import MAX_TEXT
from lamina.memory.summaries import summarise, summary_from_reply, summary_prompt, text_size
from lamina.ports import Complete
from lamina.records import (
    Job,
    Memory,
    MessagePosition,
    NewJob,
    NewMemory,
    RememberedFact,
    StoredMessage,
    Summary,
    TurnRecord,
)
from lamina.store.database import Clock
from lamina.store.memories import Memories
from lamina.store.store import Store
from lamina.text.dates import day_of
from lamina.text.messages import NOTHING, Phrase
from lamina.text.unicode import join_surrogates
from lamina.types import Fact, FactKind, Layer

if TYPE_CHECKING:  # numpy is an extra, and without an index nothing needs it
    from lamina.memory.index import Hit
    from lamina.memory.recall import Recall

DEFAULT_MEMORIES = DEFAULT_SUMMARIES = 5
SUMMARY_CHARACTERS = 1_200
SUMMARY_MESSAGES = 400
"""The newest messages of a session that a summary is made of."""
MAX_SEARCHED_ROWS = 1_000
"""Messages, and summaries, that are looked through for a fact that is to be forgotten."""
COMPARED_MEMORIES = 20
"""How many memories a new fact is compared with."""
MAX_QUERY_CHARACTERS = 4_000
"""Characters of a message by which memories are looked for."""
DEFAULT_KIND, DEFAULT_IMPORTANCE = "fact", 0.5
PATTERNS_PER_CHARACTER = 40
"""How many patterns read a text for facts: reading one costs as much as passing over so many times its length."""
MIN_SCORE_SHARE = 0.35
"""A memory found with less than this share of the best one's score is noise beside it."""
SUMMARY_ATTEMPTS, FACT_ATTEMPTS = 3, 100
"""How often a summary or a fact is tried again because memories changed in between."""
FROM_MEMORY: tuple[str, ...] = ("memory", "collected", "summary")
"""The layers of [3] and [4]."""
SUMMARY_JOB = "summary"
"""The kind of the job that summarises a session."""
SHORT_CHARACTERS, TITLE_CHARACTERS = 160, 48


@dataclass(frozen=True, slots=True)
class RecalledMemory:
    """A memory that was found, how well, and why."""

    memory: Memory
    score: float
    why: Phrase = NOTHING


def _shorten_query(words: str) -> str:
    """The words by which memories are found: of a long text the beginning and the end, where a question usually is."""
    if len(words) <= MAX_QUERY_CHARACTERS:
        return words
    half = MAX_QUERY_CHARACTERS // 2
    return f"{words[:half]}\n{words[-half:]}"


def _read_words(rows: Sequence[StoredMessage], role: str) -> str:
    """What the user or the assistant said in a turn, cut at a length that is still recognised as a document."""
    said = "\n".join(row.text for row in rows if row.role == role)
    return join_surrogates(said[: MAX_TEXT + 1]).replace("\0", " ")


class MemoryService:
    """The memory of one owner."""

    def __init__(
        self,
        store: Store,
        recall: "Recall | WithoutIndex",
        owner: str,
        *,
        complete: Complete | None = None,
        clock: Clock,
    ) -> None:
        self.owner = owner
        self._store, self._recall, self._complete, self._clock = store, recall, complete, clock

    async def get_relevant_memories(
        self, query: str, top_n: int = DEFAULT_MEMORIES, *, context: Sequence[str] = ()
    ) -> list[RecalledMemory]:
        """At most `top_n`: pinned facts first, then standing wishes, each those that changed last, then the best found
        for the words of a query; `context` are the words before it. What is found far less surely than the best is left
        out."""
        if top_n < 1:
            return []
        pinned = await self._store.memories.list(self.owner, pinned=True, limit=top_n)
        wishes = await self._store.memories.list(self.owner, kind="instruction", limit=top_n)
        today = day_of(self._clock())
        query, context = _shorten_query(query), [_shorten_query(words) for words in context]
        hits = await self._recall.search(self.owner, query, limit=top_n, context=context, today=today)
        found = {m.memory_id: m for m in await self._store.memories.many(self.owner, [hit.memory_id for hit in hits])}
        recalled = {memory.memory_id: RecalledMemory(memory, 1.0, Phrase("recall.pinned")) for memory in pinned}
        for memory in wishes:
            recalled.setdefault(memory.memory_id, RecalledMemory(memory, 1.0, Phrase("recall.standing_wish")))
        best = max((hit.score for hit in hits), default=0.0)
        for hit in hits:
            memory = found.get(hit.memory_id)
            if memory and memory.state == "active" and hit.score >= MIN_SCORE_SHARE * best:
                recalled.setdefault(hit.memory_id, RecalledMemory(memory, hit.score, hit.why))
        return list(recalled.values())[:top_n]

    async def get_recent_session_summaries(
        self, limit: int = DEFAULT_SUMMARIES, *, without: str = ""
    ) -> Sequence[Summary]:
        """The latest first, the session `without` (the current one) left out."""
        return await self._store.summaries.recent(self.owner, limit=limit, without=without) if limit > 0 else []

    async def save_atomic_memory(self, turn_id: str, *, done: Job | None = None) -> Sequence[Memory]:
        """Learn from a turn: one fact a record, merged with what is known. With `done` the job that asked for it is
        completed in the same transaction, so that a crash leads neither to a loss nor to a second time."""
        turn = await self._store.turns.get(self.owner, turn_id)
        rows = [row for row in await self._load_rows(turn) if row.turn_id == turn_id]
        user = _read_words(rows, "user")
        said = day_of(turn.created)
        prompt_texts = await self._load_prompt_texts(turn)
        answer = _read_words(rows, "assistant")
        size = PATTERNS_PER_CHARACTER * len(user)
        if self._complete is None:
            facts = await run_apart(size, facts_by_rules, user, answer, said=said, from_memory=prompt_texts)
        else:
            prompt = await run_apart(size, extraction_prompt, user, answer, known=prompt_texts, said=said)
            reply = await self._complete(prompt, EXTRACTION_SCHEMA)
            facts = await run_apart(size, facts_from_reply, reply, user=user, from_memory=prompt_texts)
        for _ in range(FACT_ATTEMPTS):
            as_of = await self._store.memories.last_change(self.owner)
            new = await self._new_memories(facts, turn)
            made = await self._recall.add(self.owner, new, done=done, as_of=as_of)
            if made or not new:
                return made
        raise _too_busy()

    async def write_summary(self, session_id: str, *, done: Job | None = None) -> Summary | None:
        """Summarise a session again. Turns whose facts were forgotten are left out, so that these do not come back."""
        for _ in range(SUMMARY_ATTEMPTS):
            as_of = await self._store.memories.last_change(self.owner)
            text, last, by = await self._summary(session_id)
            if not text.strip() and done is None:
                return None
            learnt = await self._store.memories.of_session(self.owner, session_id)
            ids = [memory.memory_id for memory in learnt if memory.state != "forgotten"]
            written = await self._store.summaries.put(
                self.owner, session_id, text, upto_seq=last, written_by=by, memory_ids=ids, done=done, as_of=as_of
            )
            if written:
                return written
        raise LeaseError("memory.facts_kept_going")

    async def _summary(self, session_id: str) -> tuple[str, int, str]:
        rows = await self._store.messages.list(self.owner, session_id, limit=SUMMARY_MESSAGES, newest=True)
        gone = set(await self._store.memories.forgotten_turns(self.owner))
        learnt = await self._store.memories.of_session(self.owner, session_id)
        places = {memory.seq for memory in learnt if memory.state == "forgotten" and not memory.turn_id}
        kept = [row for row in rows if row.turn_id not in gone and row.seq not in places]
        messages = close_calls(group_turns(kept))
        if self._complete is None:
            text = await run_apart(text_size(messages), summarise, messages, limit=SUMMARY_CHARACTERS)
            by = "extractive"
        else:
            prompt = await run_apart(text_size(messages), summary_prompt, messages, SUMMARY_CHARACTERS)
            reply = await self._complete(prompt, None)
            text, by = summary_from_reply(reply, SUMMARY_CHARACTERS), "model"
        return text.replace("\0", ""), rows[-1].seq if rows else 0, by

    async def add(
        self, text: str, *, kind: str | None = None, importance: float | None = None, pinned: bool = False
    ) -> Memory:
        """Remember what the owner says, as a fact of importance 0.5 unless the caller says otherwise."""
        return (await self.remember(text, kind=kind, importance=importance, pinned=pinned)).memory

    async def remember(
        self, text: str, *, kind: str | None = None, importance: float | None = None, pinned: bool = False
    ) -> RememberedFact:
        """The same, and what came of it. A known fact is not stored twice: it gets the given kind, importance and pin.
        What the text contradicts is superseded."""
        weight = DEFAULT_IMPORTANCE if importance is None else importance
        memory, known = await self._add_unless_known(Fact(text, _check_kind(kind or DEFAULT_KIND), weight), pinned)
        if not known:
            return RememberedFact(
                memory, False, tuple(await self._store.memories.replaced(self.owner, memory.memory_id))
            )
        if kind is not None or importance is not None:
            memory = await self.edit(memory.memory_id, kind=kind, importance=importance)
        return RememberedFact(await self.pin(memory.memory_id) if pinned else memory, True)

    async def _add_unless_known(self, fact: Fact, pinned: bool) -> tuple[Memory, bool]:
        """Store a fact, or return the one that says it already. Facts added in between are compared too: of two that
        contradict each other the later one must replace the earlier."""
        for _ in range(FACT_ATTEMPTS):
            before = await self._store.memories.last_change(self.owner)
            (change,) = await self._plan_changes([fact])
            if change.action == "skip" and change.ids:
                return await self.get(change.ids[0]), True
            new = NewMemory(fact.text, "", fact.kind, "user", fact.importance, pinned, supersedes=change.ids)
            for memory in await self._recall.add(self.owner, [new], as_of=before):
                return memory, memory.change <= before
        raise _too_busy()

    async def list(
        self,
        *,
        kind: str | None = None,
        query: str = "",
        limit: int = 50,
        before: int | None = None,
        everything: bool = False,
    ) -> Sequence[Memory]:
        """The latest changed first; `everything` has superseded and forgotten ones too."""
        if kind is not None:
            _check_kind(kind)
        state = None if everything else "active"
        return await self._store.memories.list(
            self.owner, state=state, kind=kind, query=query, limit=limit, before=before
        )

    async def get(self, memory_id: str) -> Memory:
        return await self._store.memories.get(self.owner, memory_id)

    async def edit(
        self, memory_id: str, text: str | None = None, *, kind: str | None = None, importance: float | None = None
    ) -> Memory:
        if kind is not None:
            _check_kind(kind)
        return await self._store.memories.edit(self.owner, memory_id, text=text, kind=kind, importance=importance)

    async def forget(self, *ids: str) -> Sequence[str]:
        """Erase facts from memories, indexes and summaries; returns the sessions whose summary went with them. The
        jobs that write these again are stored in the same transaction."""
        found = await self._store.memories.many(self.owner, ids)
        texts = [memory.text for memory in found if memory.text]
        places, told = await self._find_positions(texts), await self._find_summaries(texts)
        return await self._store.memories.forget(self.owner, ids, places=places, told=told, then=summary_job)

    async def _find_positions(self, texts: Sequence[str]) -> Sequence[MessagePosition]:
        """Where else these facts were said: a memory knows only the place where it was first learnt."""
        places: dict[MessagePosition, None] = {}
        for text in texts:
            for one in await self._store.sessions.search(self.owner, telling_words(text), limit=MAX_SEARCHED_ROWS):
                row = one.message
                if await asyncio.to_thread(is_told_by, text, row.text):
                    places[MessagePosition(row.session_id, row.seq, row.turn_id)] = None
        return list(places)

    async def _find_summaries(self, texts: Sequence[str]) -> Sequence[str]:
        """The sessions whose summary tells one of these facts."""
        if not texts:
            return ()
        summaries = await self._store.summaries.recent(self.owner, limit=MAX_SEARCHED_ROWS)
        return [one.session_id for one in summaries if any(is_told_by(text, one.text) for text in texts)]

    async def pin(self, memory_id: str, on: bool = True) -> Memory:
        """A pinned fact comes before all others."""
        return await self._store.memories.pin(self.owner, memory_id, on)

    async def profile(self) -> Mapping[str, Any]:
        return await self._store.profile.get(self.owner)

    async def _load_rows(self, turn: TurnRecord) -> Sequence[StoredMessage]:
        return await self._store.messages.list(
            self.owner, turn.session_id, after=turn.user_seq - 1, before=turn.answer_seq + 1
        )

    async def _load_prompt_texts(self, turn: TurnRecord) -> Sequence[str]:
        """The texts that memory put into this turn's request: none of them is news."""
        requests: Sequence[Mapping[str, Any]] = turn.receipt.get("requests") or ()
        rows: Sequence[Sequence[str]] = requests[0]["segments"] if requests else ()
        # a row is layer, …, decision, reason, hash of the tile: see assembly/trace.py
        hashes = list(dict.fromkeys(row[9] for row in rows if row[0] in FROM_MEMORY and row[7] != "dropped"))
        texts: Mapping[str, str] = await self._store.messages.texts(self.owner, hashes) if hashes else {}
        return [text for name in hashes if name in texts for text in _read_fenced_text(texts[name])]

    async def _plan_changes(self, facts: Sequence[Fact]) -> Sequence[FactChange]:
        """What of the facts is new, and which older ones it replaces."""
        old: dict[str, tuple[str, str, str]] = {}
        for fact in facts:
            hits = await self._recall.search(self.owner, fact.text, limit=COMPARED_MEMORIES)
            for memory in await self._store.memories.many(self.owner, [hit.memory_id for hit in hits]):
                old[memory.memory_id] = (memory.memory_id, memory.text, memory.kind)
        for memory in await self._store.memories.list(self.owner, limit=COMPARED_MEMORIES):
            old.setdefault(memory.memory_id, (memory.memory_id, memory.text, memory.kind))
        return await asyncio.to_thread(merge, facts, list(old.values()))

    async def _new_memories(self, facts: Sequence[Fact], turn: TurnRecord) -> Sequence[NewMemory]:
        changes = await self._plan_changes(facts) if facts else ()
        return [
            NewMemory(
                change.fact.text.replace("\0", ""),
                "",
                change.fact.kind,
                "user",
                change.fact.importance,
                session_id=turn.session_id,
                turn_id=turn.turn_id,
                seq=turn.user_seq,
                happened=_noon_of(change.fact),
                supersedes=change.ids,
            )
            for change in changes
            if change.action != "skip"
        ]


class WithoutIndex:
    """Stores facts and finds none: for a memory that is switched off, which needs no index and no numpy."""

    def __init__(self, rows: Memories) -> None:
        self._rows = rows

    async def search(
        self, owner: str, text: str, *, limit: int, context: Sequence[str] = (), today: date | None = None
    ) -> "Sequence[Hit]":
        return ()

    async def add(
        self,
        owner: str,
        memories: Sequence[NewMemory],
        *,
        done: Job | None = None,
        jobs: Sequence[NewJob] = (),
        as_of: int | None = None,
    ) -> Sequence[Memory]:
        return await self._rows.add(owner, memories, done=done, jobs=jobs, as_of=as_of)

    async def reindex(self, owner: str) -> int:
        return 0

    async def warm(self) -> None:
        return

    def drop(self, owner: str) -> None:
        return


def summary_job(session_id: str, key: str = "") -> NewJob:
    return NewJob(SUMMARY_JOB, {"session_id": session_id}, key=key)


def memory_layers(found: Sequence[RecalledMemory], owner: str) -> list[Layer]:
    """Each memory a layer: data with its origin and date. Ordered by id, so that the same set gives the same bytes."""
    layers: list[Layer] = []
    for one in sorted(found, key=lambda one: (one.memory.change, one.memory.memory_id)):
        memory = one.memory
        day = day_of(memory.created if memory.happened is None else memory.happened)
        text = f"{memory.text} ({memory.kind}, {day.isoformat()})"
        layers.append(
            Layer(
                "memory",
                text,
                f"memory:{memory.memory_id[:12]}",
                owner,
                "outside",
                True,
                short=_shorten(memory.text, SHORT_CHARACTERS),
                title=_shorten(memory.text, TITLE_CHARACTERS),
            )
        )
    return layers


def summary_layers(found: Sequence[Summary], owner: str) -> list[Layer]:
    """The summaries of other sessions, the latest first."""
    return [
        Layer(
            "summary",
            f"{day_of(summary.created).isoformat()}\n{summary.text}",
            f"session:{summary.session_id}#{summary.version}",
            owner,
            "model",
            True,
            short=_shorten(summary.text, 2 * SHORT_CHARACTERS),
            title=_shorten(summary.text, TITLE_CHARACTERS),
        )
        for summary in found
        if summary.text.strip()
    ]


def collected_layers(found: Sequence[StoredMessage], owner: str) -> list[Layer]:
    """Answers that the owner collected, each with its place."""
    return [
        Layer(
            "collected",
            row.text,
            f"collected:{row.session_id}#{row.seq}",
            owner,
            "model",
            True,
            short=_shorten(row.text, 2 * SHORT_CHARACTERS),
            title=_shorten(row.text, TITLE_CHARACTERS),
        )
        for row in found
        if row.text.strip()
    ]


def _shorten(text: str, most: int) -> str:
    """The beginning of a text on one line; empty when that is all of it."""
    line = " ".join(text[: 100 * most].split())
    return f"{line[: most - 1]}…" if len(line) > most else ""


def _too_busy() -> LeaseError:
    return LeaseError("memory.facts_kept_coming")


def _noon_of(fact: Fact) -> float | None:
    return datetime.combine(fact.date, time(12), UTC).timestamp() if fact.date else None


def _check_kind(kind: str) -> FactKind:
    if kind not in KINDS:
        raise LayerError("memory.unknown_kind", name=format_value(kind), known=KINDS)
    return cast(FactKind, kind)


def _read_fenced_text(tile: str) -> list[str]:
    """The text inside the fence of a tile, which is a piece of a JSON string."""
    _, opened, rest = tile.partition("<data-")
    _, started, inside = rest.partition(r">\n")
    text, ended, _ = inside.rpartition(r"\n</data-")
    return [str(json.loads(f'"{text}"'))] if opened and started and ended else []
