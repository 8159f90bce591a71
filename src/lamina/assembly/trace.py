"""Requests as they are kept: each tile of a payload once, by the hash of its text, and rows that say whose it was.

`pack` and `unpack` are each other's inverse, byte for byte, whatever becomes of rules, memories and code in between.
Within a turn each request extends the one before, so only what it adds is written down.
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from lamina.errors import MessageError, format_value
from lamina.text.messages import Phrase
from lamina.text.unicode import decode_text, encode_text
from lamina.types import Dropped, Receipt, Segment, Trigger, text_hash

FORM = 1
PLAIN = ("hash", "size", "tokens", "budget", "over_budget", "counter", "grammar", "layout", "epoch", "epoch_reason")


class Trace:
    """The requests of a turn as plain values, and the texts that they are made of, by hash. It grows with the turn."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.requests: list[dict[str, Any]] = []
        self._last: list[list[Any]] = []

    @property
    def value(self) -> dict[str, Any]:
        return {"form": FORM, "requests": list(self.requests)} if self.requests else {}

    def add(self, receipt: Receipt) -> None:
        payload, rows = receipt.payload, list[list[Any]]()
        for segment in receipt.segments:
            tile = decode_text(payload[segment.start : segment.end])
            name = text_hash(tile) if tile else ""
            if tile:
                self.texts[name] = tile
            rows.append([*segment[:8], segment.reason.to_json(), name])
        pairs = zip(self._last, rows, strict=False)
        same = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(self._last), len(rows)))
        self.requests.append({**receipt.summary(), "same": same, "segments": rows[same:]})
        self._last = rows


def pack(receipts: Sequence[Receipt]) -> tuple[dict[str, Any], dict[str, str]]:
    """Requests that are all known, and their texts."""
    trace = Trace()
    for receipt in receipts:
        trace.add(receipt)
    return trace.value, trace.texts


def hashes(trace: Mapping[str, Any]) -> list[str]:
    """The texts that are needed to rebuild the requests."""
    rows = (row for request in _requests(trace) for row in request["segments"])
    return list(dict.fromkeys(row[9] for row in rows if row[9]))


def unpack(trace: Mapping[str, Any], texts: Mapping[str, str]) -> list[Receipt]:
    """The requests again; one whose bytes are not those that were sent is an error."""
    receipts: list[Receipt] = []
    rows: list[list[Any]] = []
    for number, request in enumerate(_requests(trace), 1):
        rows = [*rows[: request["same"]], *request["segments"]]
        segments, chunks, at = list[Segment](), list[bytes](), 0
        for row in rows:
            chunk = encode_text(texts[row[9]]) if row[9] else b""
            segments.append(Segment._make([*row[:8], Phrase.from_json(row[8]), at, at + len(chunk)]))
            chunks.append(chunk)
            at += len(chunk)
        plain = {name: request[name] for name in PLAIN if name not in ("hash", "size")}
        triggers = tuple(code for code in request.get("triggers", ()) if code in get_args(Trigger))
        plain["epoch_reason"] = Phrase.from_json(plain["epoch_reason"])
        dropped = Dropped(**request["dropped"])
        receipt = Receipt(tuple(segments), tuple(chunks), dropped=dropped, triggers=triggers, **plain)
        if receipt.hash != request["hash"]:
            raise MessageError("trace.wrong_hash", number=number, hash=receipt.hash[:12], expected=request["hash"][:12])
        receipts.append(receipt)
    return receipts


def _requests(trace: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    if trace.get("form") != FORM or "requests" not in trace:
        raise MessageError("trace.unknown_form", value=format_value(dict(trace)))
    return trace["requests"]
