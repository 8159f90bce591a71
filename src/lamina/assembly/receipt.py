"""The receipt of a request: bytes laid as tiles, each with its origin, and what tells two requests apart.

Structural bytes belong to the next tile or the last one, so tiles never leave a gap. `explain` names the first byte
that differs, whose it is, why, and what it costs.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from lamina.errors import MessageError, format_value
from lamina.text.messages import Phrase
from lamina.text.unicode import SLICE_SIZE, encode_text
from lamina.types import Context, Receipt, Segment, Span

CACHE_MARK = {"cache_control": {"type": "ephemeral"}}
"""What Anthropic caches up to: it moves with every turn and is not part of what is cached."""
CACHE_MARK_BYTES = b',"cache_control":{"type":"ephemeral"}'
CLOSING_BYTES = 2
"""How many bytes at a request's end only close it, in every grammar."""
NEW_SEGMENT = cast(Callable[[type[Segment], tuple[Any, ...]], Segment], tuple.__new__)  # pyright: ignore[reportUnknownMemberType]
"""A segment from a tuple: a quarter of the time that its own constructor takes."""


class Tiles:
    """Chunks of bytes, each with its segment, laid without gap or overlap."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.segments: list[Segment] = []
        self._lead, self._end, self._last = "", 0, 0

    def open(self, text: str) -> None:
        """Structural text that the next tile will own."""
        self._lead += text

    def add(self, segment: Segment, text: str) -> None:
        chunk = encode_text(self._lead + text)
        self._lead, begin = "", self._end
        self._end += len(chunk)
        self.chunks.append(chunk)
        self._last = len(self.segments)
        self.segments.append(_place_segment(segment, begin, self._end))

    def close(self, text: str) -> None:
        """Structural text that belongs to the last tile."""
        if self._lead:
            self._lead += text
            return
        chunk = encode_text(text)
        self.chunks[-1] += chunk
        self._end += len(chunk)
        self.segments[self._last] = _place_segment(
            self.segments[self._last], self.segments[self._last].start, self._end
        )
        for index in range(self._last + 1, len(self.segments)):
            self.segments[index] = _place_segment(self.segments[index], self._end, self._end)

    def add_messages(self, pieces: Iterable[tuple[Sequence[bytes], Sequence[Span]]]) -> None:
        """Messages that were encoded before, comma included: for each its chunks, one for each of its spans."""
        chunks, segments, new = self.chunks, self.segments, NEW_SEGMENT
        begin = end = self._end
        if self._lead:  # the first message of all has no comma before it
            chunks.append(self._lead.encode())
            end, self._lead = end + len(chunks[-1]), ""
            pieces = iter(pieces)
            (first, *others), spans = next(pieces)
            pieces = itertools.chain([((first[1:], *others), spans)], pieces)
        for message, spans in pieces:
            if len(message) == 1:  # nearly all: worth its own lines
                end += len(message[0])
                chunks.append(message[0])
                segments.append(new(Segment, spans[0][1][:9] + (begin, end)))  # noqa: RUF005 -- twice as fast
                begin = end
                continue
            for chunk, (_, segment) in zip(message, spans, strict=True):
                end += len(chunk)
                chunks.append(chunk)
                segments.append(_place_segment(segment, begin, end))
                begin = end
        self._end, self._last = end, len(segments) - 1

    def add_notes(self, segments: Iterable[Segment]) -> None:
        """Segments that have no bytes: what was left out here."""
        self.segments += [_place_segment(segment, self._end, self._end) for segment in segments]


def _place_segment(segment: Segment, start: int, end: int) -> Segment:
    return NEW_SEGMENT(Segment, (*segment[:9], start, end))


@dataclass(frozen=True, slots=True)
class Difference:
    """The first byte where two requests differ, whose it is, why, and what follows it."""

    byte: int | None
    """None when the requests are the same."""
    layer: str
    source: str
    reason: Phrase
    extends: bool
    """True when the second only adds to the first: nothing that was sent before has changed."""
    shared_tokens: int
    tokens_after: int
    """What a provider's prompt cache cannot serve of the second request."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        fields = {name: getattr(self, name) for name in Difference.__slots__}
        return {**fields, "reason": self.reason.for_clients()}

    def __str__(self) -> str:
        if self.byte is None:
            return "the requests are the same, byte for byte"
        verb = "grows" if self.extends else "differs"
        return (
            f"{verb} at byte {self.byte} in {self.layer} ({self.source}): {self.reason.text()}; "
            f"{self.shared_tokens} tokens shared, {self.tokens_after} follow"
        )


def explain(before: Receipt | Context, after: Receipt | Context) -> Difference:
    """Where `after` stops being what `before` was, which layer that byte belongs to, and why it changed."""
    whole, a, b = _receipt(after), _strip_cache_marks(_receipt(before)), _strip_cache_marks(_receipt(after))
    byte = common_prefix(a.chunks, b.chunks)
    if byte == a.size == b.size:
        return Difference(None, "", "", Phrase("reason.nothing_changed"), False, b.tokens, 0)
    segment = segment_at(b.segments, byte)
    extends = a.size - byte <= CLOSING_BYTES
    shared = 0.0
    for other in b.segments:
        if other.decision == "dropped":
            continue
        if other.end <= byte:
            shared += other.tokens
        elif other.start < byte:
            shared += other.tokens * (byte - other.start) / (other.end - other.start)
    tokens = int(shared)
    segment, reason = (segment, Phrase("reason.added")) if extends else _reason(a, b, byte, segment)
    place = byte if whole is b else _restore_position(whole, b, byte)
    return Difference(place, segment.layer, segment.source, reason, extends, tokens, b.tokens - tokens)


def predicted_prefix(before: Receipt, after: Receipt, reported: int = 0) -> int:
    """How many tokens of `after` a cache can serve that has just seen `before`. `reported` is what the provider counted
    for `before`: all of it when nothing of it has changed, and the measure of our own counts where something has.
    A server that also keeps its answers can serve more."""
    found = explain(before, after)
    if not reported or not before.tokens:
        return found.shared_tokens
    if found.extends or found.byte is None:
        return reported
    shared = explain(after, before).shared_tokens  # in the counts of `before`: the counter may be corrected since
    return min(reported, round(shared * reported / before.tokens))


def _receipt(given: Receipt | Context) -> Receipt:
    found = given.receipt if isinstance(given, Context) else given
    if not isinstance(found, Receipt):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise MessageError("receipt.not_receipt", value=format_value(found))
    return found


def _strip_cache_marks(receipt: Receipt) -> Receipt:
    """The same request without Anthropic's cache marks: they move with every turn and are not cached."""
    if receipt.grammar != "anthropic":
        return receipt
    payload, segments, chunks, at = receipt.payload, list[Segment](), list[bytes](), 0
    for segment in receipt.segments:
        chunk = payload[segment.start : segment.end].replace(CACHE_MARK_BYTES, b"")
        segments.append(segment._replace(start=at, end=at + len(chunk)))
        chunks.append(chunk)
        at += len(chunk)
    return replace(receipt, segments=tuple(segments), chunks=tuple(chunks))


def _restore_position(whole: Receipt, bare: Receipt, byte: int) -> int:
    """The position of a byte of the request without marks in the request with them."""
    for with_marks, without in zip(whole.segments, bare.segments, strict=True):
        if without.start <= byte < without.end:
            text = whole.payload[with_marks.start : with_marks.end]
            head = text.split(CACHE_MARK_BYTES)[0]
            inside = byte - without.start
            return with_marks.start + inside + (len(CACHE_MARK_BYTES) if inside >= len(head) < len(text) else 0)
    return whole.size


def _reason(a: Receipt, b: Receipt, byte: int, segment: Segment) -> tuple[Segment, Phrase]:
    """Whose change it is, and why."""
    if a.grammar != b.grammar:
        return segment, Phrase("reason.other_grammar", before=a.grammar, after=b.grammar)
    if a.layout != b.layout:
        return segment, Phrase("reason.other_layout", before=a.layout, after=b.layout)
    if a.epoch != b.epoch:
        return segment, Phrase("reason.epoch_began", n=b.epoch, why=b.epoch_reason)
    old = segment_at(a.segments, byte)
    earlier = {(s.layer, s.source): s for s in a.segments if s.decision != "dropped"}
    now = {(s.layer, s.source) for s in b.segments if s.decision != "dropped"}
    known = earlier.get((segment.layer, segment.source))
    if segment.layer == "history" and b.dropped.count != a.dropped.count:
        change = b.dropped.count - a.dropped.count
        return segment, Phrase("reason.more_dropped" if change > 0 else "reason.older_back", n=abs(change))
    if known and known.hash != segment.hash:
        return segment, Phrase("reason.text_changed", before=known.hash[:8], after=segment.hash[:8])
    if (old.layer, old.source) not in now:
        return old, Phrase("reason.gone_here")
    if known is None or (old.layer, old.source) == (segment.layer, segment.source):
        return segment, Phrase("reason.new_here")
    return segment, Phrase("reason.moved_here", layer=old.layer, source=old.source)


def common_prefix(a: Iterable[bytes], b: Iterable[bytes]) -> int:
    """How many first bytes two sequences of chunks have in common."""
    left, right = iter(a), iter(b)
    x = y = memoryview(b"")
    shared = 0
    while True:
        x = x or memoryview(next((chunk for chunk in left if chunk), b""))
        y = y or memoryview(next((chunk for chunk in right if chunk), b""))
        size = min(len(x), len(y), SLICE_SIZE)
        if not size:
            return shared
        head, other = bytes(x[:size]), bytes(y[:size])  # two views are compared item by item
        if head != other:
            return shared + _first_difference(head, other)
        shared += size
        x, y = x[size:], y[size:]


def _first_difference(x: bytes, y: bytes) -> int:
    low, high = 0, len(x)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if x[low:middle] == y[low:middle] else (low, middle)
    return low


def segment_at(segments: Iterable[Segment], byte: int) -> Segment:
    """The segment that owns a byte; past the end, the last one."""
    found: Segment | None = None
    for segment in segments:
        if segment.decision == "dropped":
            continue
        found = segment
        if segment.end > byte:
            break
    if found is None:
        raise MessageError("receipt.no_bytes")
    return found
