"""Which rows hold a term, and how often: one owner's packed terms, found many at a time.

A packed row is a header and one number a term: 40 bits of hash, how much the term says by its form, how often it stands
in the text and in the speaker's name. No I/O, no clock; it knows nothing of scores.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from lamina.records import IndexRow
from lamina.text.terms import weight

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]

_HASH_BITS, _DRAWER_BITS = 40, 16
_KEY, _FORM, _COUNT = np.uint64(24), np.uint64(16), np.uint64(8)
_BYTE = np.uint64(255)
_DRAWER = np.uint64(64 - _DRAWER_BITS)
_MAX_SEGMENTS = 8


@dataclass(frozen=True, slots=True)
class Found:
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
    records: Keys
    rows: NDArray[np.int32]


@lru_cache(maxsize=65536)
def hash_of(term: str) -> int:
    """40 bits: among 100,000 terms of one owner two meet once in two hundred owners, and then only blur."""
    return int.from_bytes(blake2b(term.encode("utf-8", "surrogatepass"), digest_size=_HASH_BITS // 8).digest(), "big")


def pack_terms(header: int, own: Counter[str], said_by: Counter[str]) -> bytes:
    records = sorted(
        hash_of(term) << 24 | round(weight(term) * 255) << 16 | min(own[term], 255) << 8 | min(said_by[term], 255)
        for term in own.keys() | said_by.keys()
    )
    return np.array([header, *records], dtype="<u8").tobytes()


def terms_of(row: IndexRow) -> tuple[Keys, Floats, Floats]:
    """The keys of a row's own terms, how often each stands there, and what each says by its form."""
    records = np.frombuffer(row.terms, dtype="<u8")[1:].astype(np.uint64, copy=False)
    count: Floats = ((records >> _COUNT) & _BYTE).astype(np.float32)
    own = count > 0
    form = (((records >> _FORM) & _BYTE) / 255).astype(np.float32)
    return (records >> _KEY)[own], count[own], form[own]


class Postings:
    """Rows are numbered by the caller and only ever added; who is gone is the caller's matter."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []

    def add(self, new: Sequence[IndexRow], first: int) -> Keys:
        """Take rows in as `first` and following; their headers."""
        sizes = np.fromiter((len(row.terms) // 8 for row in new), np.int64, len(new))
        records = np.frombuffer(b"".join(row.terms for row in new), dtype="<u8").astype(np.uint64, copy=False)
        starts = np.cumsum(sizes) - sizes
        is_term = np.ones(len(records), dtype=np.bool_)
        is_term[starts] = False
        rows = np.repeat(np.arange(first, first + len(new), dtype=np.int32), sizes - 1)
        self._segments.append(_sorted(records[is_term], rows))
        if len(self._segments) > _MAX_SEGMENTS:
            self._segments = [_merged(self._segments)]
        return records[starts]

    def find(self, keys: Keys) -> Found:
        drawers = (keys >> np.uint64(_HASH_BITS - _DRAWER_BITS)).astype(np.uint16)
        found = [_opened(segment, keys, drawers) for segment in self._segments]
        if not found:
            none = np.zeros(0, np.int64)
            return Found(none, none, np.zeros(0, np.float32), np.zeros(0, np.bool_))
        key, row, records = (np.concatenate(parts) for parts in zip(*found, strict=True))
        if len(found) > 1:
            order = np.argsort(key, kind="stable")
            key, row, records = key[order], row[order], records[order]
        return Found(key, row, ((records >> _COUNT) & _BYTE).astype(np.float32), (records & _BYTE) > 0)


def _opened(segment: _Segment, keys: Keys, drawers: NDArray[np.uint16]) -> tuple[Ints, Ints, Keys]:
    low = np.searchsorted(segment.drawers, drawers, "left")
    size = np.searchsorted(segment.drawers, drawers, "right") - low
    key = np.repeat(np.arange(len(keys)), size)
    at = np.arange(len(key)) + np.repeat(low - (np.cumsum(size) - size), size)
    records = segment.records[at]
    mine = records >> _KEY == keys[key]
    return key[mine], segment.rows[at[mine]].astype(np.int64), records[mine]


def _sorted(records: Keys, rows: NDArray[np.int32]) -> _Segment:
    drawers = (records >> _DRAWER).astype(np.uint16)
    order = np.argsort(drawers, kind="stable")
    return _Segment(drawers[order], records[order], rows[order])


def _merged(segments: Sequence[_Segment]) -> _Segment:
    return _sorted(np.concatenate([s.records for s in segments]), np.concatenate([s.rows for s in segments]))
