"""What a ledger has told the model, and the last request in the fewest words. Values and pure functions over them."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lamina.assembly.entries import THIS_TURN, Entry, Head
from lamina.assembly.shares import LEFT_OUT, Fitted
from lamina.text.messages import Phrase
from lamina.types import Layer, text_hash

Key = tuple[str, str]
"""A layer's name and source."""


class LayerUpdate(NamedTuple):
    """What was said of a layer in front of a message, and why: it was added, is replaced, is gone, comes again, or is
    for one turn alone."""

    change: str
    layer: Layer
    reason: Phrase


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """The last request in the fewest words: with the log it was made of, it can be built again, byte for byte."""

    epoch: int
    reason: Phrase
    head: tuple[Fitted, ...]
    told: Mapping[int, tuple[LayerUpdate, ...]]
    """What stood in front of which message of the log."""
    start: int
    size: int
    """Where in the log its messages begin, and how many there were."""
    tools: str
    form: str
    digest: str
    """Of its bytes: a log that gives others is not the one that was sent."""


def is_known(known: Layer | None, layer: Layer) -> bool:
    """Has the model seen this layer, be it in its short form?"""
    forms = [text for text in (layer.text, layer.short, layer.title) if text]
    return known is not None and known.trust == layer.trust and known.text in forms


def was_skipped(name: str, skipped: Mapping[str, Phrase]) -> bool:
    """Is it unknown what is in this layer now? What was left out is known to be gone."""
    return any(source.partition(":")[0] == name and why.code != LEFT_OUT for source, why in skipped.items())


def take_in(seen: dict[Key, Layer], told: Sequence[LayerUpdate]) -> None:
    """What the model knows once it was told this."""
    for change, layer, _ in told:
        if change == "removed":
            seen.pop(key_of(layer), None)
        elif change not in ("again", THIS_TURN):
            seen[key_of(layer)] = layer


def digest(head: Head, entries: Sequence[Entry]) -> str:
    whole = hashlib.sha256()
    for tool in head.tools:
        whole.update(tool.encode())
    for entry in (*head.system, *entries):
        for chunk in entry.chunks:
            whole.update(chunk)
    return whole.hexdigest()


def texts_hash(texts: Iterable[str]) -> str:
    return text_hash("\n".join(texts))


def key_of(layer: Layer) -> Key:
    return layer.name, layer.source


def keys_of(layers: Sequence[Layer]) -> set[Key]:
    return {key_of(layer) for layer in layers}


def seen_in(fitted: Iterable[Fitted]) -> dict[Key, Layer]:
    return {key_of(one.layer): one.layer for one in fitted if one.decision != "dropped"}


def has_changed(name: str, fitted: Iterable[Fitted], layers: Iterable[Layer]) -> bool:
    """Does what is there now, of one name, differ from what was there when the epoch began, in whatever form?"""
    before = [one.layer for one in fitted if one.layer.name == name]
    now = [layer for layer in layers if layer.name == name and layer.text.strip()]
    return len(before) != len(now) or not all(is_known(old, new) for old, new in zip(before, now, strict=True))
