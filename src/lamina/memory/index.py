"""One owner's memories as an index in memory: packed rows in, ranked hits out, exact and in a stable order.

Everything is derived from the rows of this owner alone: how rare a word is, how long a text is, its neighbours.
A packed row is a header and one number a term: 40 bits of hash, how much the term says by its form, how often it is in
the text and in the speaker's name. No I/O and no clock; a store keeps the rows. Needs numpy (extra `memory`).
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from lamina.errors import InputError
from lamina.memory.ranking import (
    Evidence,
    Floats,
    Fused,
    Ints,
    Query,
    add_echo,
    continues_work,
    drop_below_floor,
    fuse,
    leading_scores,
    query_weights,
)
from lamina.records import IndexRow
from lamina.text.dates import find_day_spans
from lamina.text.messages import Phrase
from lamina.text.terms import LEAST_WEIGHT, is_paired, normalize_text, split_terms, term_weight

TermHashes = NDArray[np.uint64]

_LENGTH_UNIT = 16
_MAX_MENTIONS, _DATED_CHARACTERS = 8, 4000
_NEIGHBOUR_REACH = 4
_MAX_TERMS = 64
"""A long question is cut to the terms that say most: each costs a pass over the owner's rows."""

_HASH_BITS, _DRAWER_BITS = 40, 16
_KEY, _FORM, _COUNT = np.uint64(24), np.uint64(16), np.uint64(8)
_BYTE = np.uint64(255)
_DRAWER = np.uint64(64 - _DRAWER_BITS)
_MAX_SEGMENTS = 8

SATURATION, LENGTH_WEIGHT, LENGTH_PAIRS = 1.0, 0.5, 0.8
"""The longer a text, the less a word in it counts; a pair of characters still less: a long text has many by chance."""
NEIGHBOURS = ((-1, 0.4), (1, 0.3), (-2, 0.25), (2, 0.15), (-3, 0.15), (3, 0.1), (-4, 0.1))
"""How much a word counts that is that many turns away."""
ANSWER_BONUS = 1.5
"""How much more the turn before counts when it asks something: what it asks about is said here."""
SAME_TOPIC_COSINE = 0.4
"""Notes of one voice whose cosine reaches this are fully each other's context."""
ECHO_WEIGHT, ECHO_ROWS, ECHO_TERMS, ECHO_MAX_TERMS = 1.0, 2, 10, 256
"""How much it counts that a row speaks of what the best rows speak of, how many are the best, how many terms are taken
from them, and how many a row may have. The more they speak of besides, and the commoner it is, the less it counts."""
SPEAKER_WEIGHT = 0.7
"""How much a speaker's name counts as a word of the turn."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A memory or turn as it is indexed."""

    memory_id: str
    text: str
    change: int
    day: date | None = None
    speaker: str = ""
    session: str = ""
    position: int = 0
    """Its place in the session: neighbours by position are its context."""
    importance: float = 0.0
    """From 0 to 1; a mild prior."""
    dated: bool = True
    """Whether the day is its own: what was only written down on it does not answer a question about that day."""
    said: date | None = None
    """What "yesterday" in the text is counted from; None for `day`."""


@dataclass(frozen=True, slots=True)
class Hit:
    memory_id: str
    score: float
    why: Phrase
    """What spoke for it, for a receipt: `words 0.41, meaning 0.30, day 1.00`."""


def index_row(entry: IndexEntry, vector: Sequence[float] | Floats | None = None, model: str = "") -> IndexRow:
    """An entry, packed. The same entry gives the same bytes everywhere."""
    text = normalize_text(entry.text)
    own, said_by = Counter(split_terms(text)), Counter(split_terms(entry.speaker))
    length = sum(count * term_weight(term) for term, count in own.items())
    asks = "?" in text
    voice = zlib.crc32(normalize_text(entry.speaker).encode("utf-8", "surrogatepass")) % 255 + 1 if entry.speaker else 0
    header = min(round(length * _LENGTH_UNIT), 0xFFFFFFFF) << 16 | voice << 8 | asks
    found = find_day_spans(text[:_DATED_CHARACTERS], entry.said or entry.day)[:_MAX_MENTIONS]
    mentions = np.array([(a.toordinal(), b.toordinal()) for a, b in found], dtype="<i4")
    return IndexRow(
        entry.memory_id,
        entry.change,
        model if vector is not None else "",
        entry.session,
        entry.position,
        entry.day.toordinal() if entry.day else 0,
        entry.importance,
        pack_terms(header, own, said_by),
        mentions.tobytes(),
        b"" if vector is None else pack_vector(vector),
        entry.dated,
    )


def pack_vector(vector: Sequence[float] | Floats) -> bytes:
    values, scale = _quantise(np.asarray(vector, dtype=np.float32))
    return np.float32(scale).tobytes() + values.astype(np.int8).tobytes()


def _quantise(vector: Floats) -> tuple[Floats, float]:
    """Unit length, as whole numbers up to 127 times a scale: sums of their products are exact in any order."""
    norm = float(np.linalg.norm(vector))
    if not np.isfinite(norm):
        raise InputError("embedder.infinite_value")
    if norm == 0.0:
        return np.zeros_like(vector), 0.0
    unit = vector / norm
    scale = float(np.abs(unit).max()) / 127
    return np.rint(unit / scale).astype(np.float32), scale


@dataclass(frozen=True, slots=True)
class FoundPostings:
    """Postings of many keys: `key` says which, in order; `count` in the text, `said` in the speaker's name."""

    key: Ints
    row: Ints
    count: Floats
    said: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Segment:
    """Sorted by the first 16 bits of the hash only, which is a radix sort and five times as fast; the few others in a
    drawer are sieved out when it is opened."""

    drawers: NDArray[np.uint16]
    records: TermHashes
    rows: NDArray[np.int32]


@lru_cache(maxsize=65536)
def hash_of(term: str) -> int:
    """40 bits: among 100,000 terms of one owner two meet once in two hundred owners, and then only blur."""
    return int.from_bytes(blake2b(term.encode("utf-8", "surrogatepass"), digest_size=_HASH_BITS // 8).digest(), "big")


def pack_terms(header: int, own: Counter[str], said_by: Counter[str]) -> bytes:
    records = sorted(
        hash_of(term) << 24 | round(term_weight(term) * 255) << 16 | min(own[term], 255) << 8 | min(said_by[term], 255)
        for term in own.keys() | said_by.keys()
    )
    return np.array([header, *records], dtype="<u8").tobytes()


def terms_of(row: IndexRow) -> tuple[TermHashes, Floats, Floats]:
    """The keys of a row's own terms, how often each occurs, and what each says by its form."""
    records = np.frombuffer(row.terms, dtype="<u8")[1:].astype(np.uint64, copy=False)
    count: Floats = ((records >> _COUNT) & _BYTE).astype(np.float32)
    own = count > 0
    form = (((records >> _FORM) & _BYTE) / 255).astype(np.float32)
    return (records >> _KEY)[own], count[own], form[own]


class Postings:
    """Rows are numbered by the caller and only ever added; the caller knows which of them are gone."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []

    def add(self, new: Sequence[IndexRow], first: int) -> TermHashes:
        """Take rows in as `first` and following; their headers."""
        sizes = np.fromiter((len(row.terms) // 8 for row in new), np.int64, len(new))
        records = np.frombuffer(b"".join(row.terms for row in new), dtype="<u8").astype(np.uint64, copy=False)
        starts = np.cumsum(sizes) - sizes
        is_term = np.ones(len(records), dtype=np.bool_)
        is_term[starts] = False
        rows = np.repeat(np.arange(first, first + len(new), dtype=np.int32), sizes - 1)
        self._segments.append(_sort_segment(records[is_term], rows))
        if len(self._segments) > _MAX_SEGMENTS:
            self._segments = [_merge_segments(self._segments)]
        return records[starts]

    def find(self, keys: TermHashes) -> FoundPostings:
        drawers = (keys >> np.uint64(_HASH_BITS - _DRAWER_BITS)).astype(np.uint16)
        found = [_read_drawers(segment, keys, drawers) for segment in self._segments]
        if not found:
            none = np.zeros(0, np.int64)
            return FoundPostings(none, none, np.zeros(0, np.float32), np.zeros(0, np.bool_))
        key, row, records = (np.concatenate(parts) for parts in zip(*found, strict=True))
        if len(found) > 1:
            order = np.argsort(key, kind="stable")
            key, row, records = key[order], row[order], records[order]
        return FoundPostings(key, row, ((records >> _COUNT) & _BYTE).astype(np.float32), (records & _BYTE) > 0)


def _read_drawers(segment: _Segment, keys: TermHashes, drawers: NDArray[np.uint16]) -> tuple[Ints, Ints, TermHashes]:
    low = np.searchsorted(segment.drawers, drawers, "left")
    size = np.searchsorted(segment.drawers, drawers, "right") - low
    key = np.repeat(np.arange(len(keys)), size)
    at = np.arange(len(key)) + np.repeat(low - (np.cumsum(size) - size), size)
    records = segment.records[at]
    mine = records >> _KEY == keys[key]
    return key[mine], segment.rows[at[mine]].astype(np.int64), records[mine]


def _sort_segment(records: TermHashes, rows: NDArray[np.int32]) -> _Segment:
    drawers = (records >> _DRAWER).astype(np.uint16)
    order = np.argsort(drawers, kind="stable")
    return _Segment(drawers[order], records[order], rows[order])


def _merge_segments(segments: Sequence[_Segment]) -> _Segment:
    return _sort_segment(np.concatenate([s.records for s in segments]), np.concatenate([s.rows for s in segments]))


@dataclass(frozen=True, slots=True)
class _View:
    """The living rows in the order of their sessions, with everything about them that a search needs."""

    rows: Ints
    rank: Ints
    length: Floats
    voice: Ints
    asks: NDArray[np.bool_]
    session: Ints
    day: Ints
    dated: NDArray[np.bool_]
    change: Ints
    importance: Floats
    mentioned: Ints
    mentions: Ints


class Index:
    """The index of one owner: `add` rows, `remove` ids, `search`. Any order of changes gives the same answers."""

    def __init__(self, rows: Iterable[IndexRow] = ()) -> None:
        self._rows: list[IndexRow | None] = []
        self._at: dict[str, int] = {}
        self._postings = Postings()
        self._headers = np.zeros(0, np.uint64)
        self._vectors = np.zeros((0, 0), np.float32)
        self._scales = np.zeros(0, np.float32)
        self._models: dict[str, int] = {}
        self._model = np.zeros(0, np.int64)
        self._view: _View | None = None
        self._ties: list[Floats] = []
        self._beside = np.zeros((_NEIGHBOUR_REACH, 0), np.int64)
        self._alike = np.zeros((_NEIGHBOUR_REACH, 0), np.float32)
        self.add(rows)

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, memory_id: str) -> bool:
        return memory_id in self._at

    def add(self, rows: Iterable[IndexRow]) -> None:
        """Take rows in; a row of a known id replaces the older one."""
        new = list({row.memory_id: row for row in rows}.values())
        if not new:
            return
        self.remove(row.memory_id for row in new)
        first = len(self._rows)
        self._rows.extend(new)
        self._at.update((row.memory_id, first + n) for n, row in enumerate(new))
        self._headers = np.concatenate([self._headers, self._postings.add(new, first)])
        self._add_vectors(new)
        self._view = None

    def remove(self, ids: Iterable[str]) -> None:
        """Forget rows; unknown ids are ignored."""
        gone = [row for memory_id in ids if (row := self._at.pop(memory_id, None)) is not None]
        if not gone:
            return
        for row in gone:
            self._rows[row] = None
        self._view = None
        if len(self._rows) > 64 and len(self._at) * 2 < len(self._rows):
            self.__init__([row for row in self._rows if row is not None])

    def search(self, query: Query, limit: int = 10) -> list[Hit]:
        """The best hits first; nothing where nothing is good enough."""
        if not self._at or limit < 1:
            return []
        view = self._ordered_view()
        evidence = self._evidence(query, view)
        fused = fuse(query, evidence)
        if not query.context and not continues_work(query):
            fused = add_echo(fused, evidence, ECHO_WEIGHT * self._echo(query, view, evidence, fused))
        best = _best_rows(drop_below_floor(fused.score), view.change, limit)
        found = [(n, self._rows[int(view.rows[n])]) for n in best]
        return [
            Hit(row.memory_id, float(fused.score[n]), _explain_hit(fused, n)) for n, row in found if row is not None
        ]

    def _add_vectors(self, new: Sequence[IndexRow]) -> None:
        size = max((len(row.vector) - 4 for row in new if row.vector), default=0)
        if size > self._vectors.shape[1]:
            wider = np.zeros((len(self._vectors), size), np.float32)
            wider[:, : self._vectors.shape[1]] = self._vectors
            self._vectors = wider
        width = self._vectors.shape[1]
        blank = bytes(width + 4)
        packed = b"".join(
            row.vector if len(row.vector) == width + 4 else (row.vector + blank)[: width + 4] for row in new
        )
        table = np.frombuffer(packed, dtype=np.dtype([("scale", "<f4"), ("values", "i1", (width,))]))
        values = table["values"].astype(np.float32)
        self._vectors = np.concatenate([self._vectors, values]) if len(self._vectors) else values
        self._scales = np.concatenate([self._scales, table["scale"].astype(np.float32)])
        codes = (self._models.setdefault(row.model, len(self._models)) for row in new)
        self._model = np.concatenate([self._model, np.fromiter(codes, np.int64, len(new))])

    def _ordered_view(self) -> _View:
        if self._view is None:
            view = _view(self._rows, self._headers)
            self._ties = self._measure_ties(view)
            self._view = view  # last: another thread that sees it may use it
        return self._view

    def _measure_ties(self, view: _View) -> list[Floats]:
        """How much each row has to do with the one 1, 2, 3 and 4 places before it: nothing in another session, all in
        a talk of two, and as much as they are alike where one voice, or none, puts one thing beside another."""
        fresh = len(self._rows) - self._beside.shape[1]
        self._beside = np.pad(self._beside, ((0, 0), (0, fresh)), constant_values=-1)
        self._alike = np.pad(self._alike, ((0, 0), (0, fresh)))
        talk = _find_dialogues(view)
        ties: list[Floats] = []
        for back in range(1, _NEIGHBOUR_REACH + 1):
            here, there = view.rows[back:], view.rows[:-back]
            same = view.session[back:] == view.session[:-back]
            stale = same & ~talk[back:] & (self._beside[back - 1, here] != there)
            a, b = here[stale], there[stale]
            cosine = np.einsum("ij,ij->i", self._vectors[a], self._vectors[b]) * self._scales[a] * self._scales[b]
            known = (self._scales[a] > 0) & (self._scales[b] > 0)
            self._alike[back - 1, a] = np.where(known, np.clip(cosine / SAME_TOPIC_COSINE, 0, 1), 1)
            self._beside[back - 1, a] = b
            ties.append((same * np.where(talk[back:], 1, self._alike[back - 1, here])).astype(np.float32))
        return ties

    def _evidence(self, query: Query, view: _View) -> Evidence:
        there = np.ones(len(view.rows), dtype=np.bool_) if query.before is None else view.change < query.before
        words, total = self._words(query, view, there)
        return Evidence(
            words=words,
            total=total,
            meaning=self._meaning(query, view),
            there=there,
            asks=view.asks,
            day=view.day,
            dated=view.dated,
            mentioned=view.mentioned,
            mentions=view.mentions,
            importance=view.importance,
        )

    def _words(self, query: Query, view: _View, there: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """BM25F over text, neighbours and speaker, for the whole question and for each of its sentences; and the sums
        that perfect matches would have."""
        asked = query_weights(query)
        names = list(asked[0])
        found = self._find([hash_of(name) for name in names], view)
        count = int(there.sum())
        df = np.bincount(found.key[there[found.row]], minlength=len(names))
        rarity = np.log1p((count - df + 0.5) / (df + 0.5))
        weights = np.array([[weights.get(name, 0.0) for name in names] for weights in asked], np.float32)
        says = (weights * rarity).astype(np.float32)
        keep = np.argsort(-says[0], kind="stable")[:_MAX_TERMS]
        at = np.full(len(names), -1)
        at[keep] = np.arange(len(keep))
        average = float(view.length[there].mean()) if count else 1.0
        relative = view.length / max(average, 1e-6)
        paired = np.array([is_paired(name) for name in names], np.bool_)[found.key]
        share = np.where(paired, np.float32(LENGTH_PAIRS), np.float32(LENGTH_WEIGHT))
        shorter = 1 / (1 - share + share * relative[found.row])
        tf = np.zeros((len(keep) + 1, len(view.rows)), np.float32)  # the last for terms that were cut
        tf[at[found.key], found.row] = found.count * shorter
        tf = tf[:-1]
        near = _sum_neighbours(tf, view, self._ties)
        near += tf
        said = found.said & (at[found.key] >= 0)
        near[at[found.key[said]], found.row[said]] += SPEAKER_WEIGHT
        near /= near + np.float32(SATURATION)
        telling = np.array([term_weight(name) > LEAST_WEIGHT for name in names], np.bool_)[keep]
        if telling.any():  # of a question of nothing but stop characters they are all there is
            near *= (near[telling] > 0).any(axis=0)
        return (says[:, keep] @ near).astype(np.float32), says[:, keep].sum(axis=1).astype(np.float32)

    def _find(self, keys: Sequence[int], view: _View) -> FoundPostings:
        """Postings of the living rows, in places of the view."""
        found = self._postings.find(np.array(keys, np.uint64))
        place = view.rank[found.row]
        alive = place >= 0
        return FoundPostings(found.key[alive], place[alive], found.count[alive], found.said[alive])

    def _echo(self, query: Query, view: _View, evidence: Evidence, fused: Fused) -> Floats:
        """What the best rows of the question, or of each of its sentences, speak of besides what is asked: who else
        speaks of that? To at most 1."""
        asked = np.array([hash_of(name) for name in query_weights(query)[0]], np.uint64)
        echo = np.zeros(len(view.rows), np.float32)
        leading = leading_scores(query, evidence, fused)
        if not leading:
            return echo
        count = int(evidence.there.sum())
        average = max(float(view.length[evidence.there].mean()), 1e-6)
        shorter = (1 / (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * view.length / average)).astype(np.float32)
        for lead in leading:
            keys, worth = self._terms_of_leaders(lead, view, asked, shorter)
            found = self._find(keys, view)
            df = np.bincount(found.key[evidence.there[found.row]], minlength=len(keys))
            worth = worth * (df > 1)
            whole = float(worth.sum())
            worth = worth * np.log1p((count - df + 0.5) / (df + 0.5)) / np.log1p(count + 1)
            worth[np.argsort(-worth, kind="stable")[ECHO_TERMS:]] = 0
            focus = float(worth.sum()) / max(whole, 1e-9)
            tf = found.count * shorter[found.row]
            one = np.bincount(found.row, worth[found.key] * tf / (tf + SATURATION), minlength=len(echo))
            one = np.where(evidence.there, one, 0)
            echo = np.maximum(echo, (focus * one / max(float(one.max(initial=0.0)), 1e-9)).astype(np.float32))
        return echo

    def _terms_of_leaders(
        self, lead: Floats, view: _View, asked: TermHashes, shorter: Floats
    ) -> tuple[list[int], Floats]:
        """The terms of the rows that lead, and what each is worth by its form and by how often it occurs."""
        heard: dict[int, float] = {}
        best = _best_rows(lead, view.change, ECHO_ROWS)
        for n in best:
            row = self._rows[int(view.rows[n])]
            if row is None or len(row.terms) > 8 * ECHO_MAX_TERMS:
                continue
            keys, tf, form = terms_of(row)
            tf = tf * shorter[n]
            worth = float(lead[n] / lead[best[0]]) * form * tf / (tf + SATURATION)
            for key, value in zip(keys.tolist(), worth.tolist(), strict=True):
                heard[key] = heard.get(key, 0.0) + value
        for key in asked.tolist():
            heard.pop(key, None)
        keys = sorted(heard)
        return keys, np.array([heard[key] for key in keys], np.float32)

    def _meaning(self, query: Query, view: _View) -> Floats | None:
        """Cosines of the query's passages (rows of the result) with each row's vector."""
        if query.vectors is None or not self._vectors.shape[1]:
            return None
        if query.vectors.shape[1] != self._vectors.shape[1]:
            return None
        same = self._model[view.rows] == self._models.get(query.model, -1)
        packed = [_quantise(np.asarray(vector, np.float32)) for vector in query.vectors]
        asked = np.stack([values for values, _ in packed])
        scales = np.array([scale for _, scale in packed], np.float32)
        dots = (self._vectors @ asked.T).T[:, view.rows]
        return (dots * scales[:, None] * (self._scales[view.rows] * same)).astype(np.float32)


def _sum_neighbours(tf: Floats, view: _View, ties: Sequence[Floats]) -> Floats:
    """What the rows around contain: each distance in its own weight, as far as they belong together."""
    near = np.zeros_like(tf)
    for offset, share in NEIGHBOURS:
        back = abs(offset)
        tie = ties[back - 1] * np.float32(share)
        if offset == -1:
            tie = tie * (1 + np.float32(ANSWER_BONUS) * view.asks[:-1])
        if offset < 0:
            near[:, back:] += tf[:, :-back] * tie
        else:
            near[:, :-back] += tf[:, back:] * tie
    return near


def _find_dialogues(view: _View) -> NDArray[np.bool_]:
    """Which rows are in a session where more than one voice speaks."""
    _, at = np.unique(view.session, return_inverse=True)
    low, high = np.full(at.max(initial=-1) + 1, 256), np.zeros(at.max(initial=-1) + 1, np.int64)
    spoken = view.voice > 0
    np.minimum.at(low, at[spoken], view.voice[spoken])
    np.maximum.at(high, at[spoken], view.voice[spoken])
    return (low < high)[at]


def _view(rows: Sequence[IndexRow | None], headers: TermHashes) -> _View:
    alive = [(n, row) for n, row in enumerate(rows) if row is not None]
    at = np.fromiter((n for n, _ in alive), np.int64, len(alive))
    session = np.fromiter(
        (zlib.crc32(row.session.encode("utf-8", "surrogatepass")) for _, row in alive), np.int64, len(alive)
    )
    position = np.fromiter((row.position for _, row in alive), np.int64, len(alive))
    change = np.fromiter((row.change for _, row in alive), np.int64, len(alive))
    order = np.lexsort((change, position, session))
    at = at[order]
    rank = np.full(len(rows), -1, np.int64)
    rank[at] = np.arange(len(at))
    kept = [alive[int(n)][1] for n in order]
    blobs = [row.mentions for row in kept]
    mentioned = np.repeat(np.arange(len(kept)), [len(blob) // 8 for blob in blobs])
    header = headers[at]
    return _View(
        rows=at,
        rank=rank,
        length=((header >> np.uint64(16)) / _LENGTH_UNIT).astype(np.float32),
        voice=((header >> np.uint64(8)) & np.uint64(255)).astype(np.int64),
        asks=(header & np.uint64(1)) > 0,
        session=session[order],
        day=np.fromiter((row.day for row in kept), np.int64, len(kept)),
        dated=np.fromiter((row.dated and row.day > 0 for row in kept), np.bool_, len(kept)),
        change=change[order],
        importance=np.fromiter((row.importance for row in kept), np.float32, len(kept)),
        mentioned=mentioned,
        mentions=np.frombuffer(b"".join(blobs), dtype="<i4").reshape(-1, 2).astype(np.int64),
    )


def _best_rows(score: Floats, change: Ints, limit: int) -> list[int]:
    """Highest first, of equals the newest; what fell below the floor scores 0 and is left out."""
    able = np.flatnonzero(score > 0)
    if len(able) > 4 * limit:
        edge = np.partition(score[able], len(able) - limit)[len(able) - limit]
        able = able[score[able] >= edge]
    order = np.lexsort((-change[able], -score[able]))
    return [int(n) for n in able[order[:limit]]]


def _explain_hit(fused: Fused, n: int) -> Phrase:
    shares = {
        "recall.words": fused.words, "recall.meaning": fused.meaning,
        "recall.day": fused.day, "recall.echo": fused.echo,
    }  # fmt: skip
    found = [Phrase(code, share=f"{float(share[n]):.2f}") for code, share in shares.items() if float(share[n]) >= 0.005]
    return Phrase("recall.shares", shares=found)
