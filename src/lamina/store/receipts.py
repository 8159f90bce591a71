"""Receipts beside their turns: a short one stands in the row of its turn, a long one in pieces among the layer texts.

SQLite reads the whole row of a turn, or of its neighbour, whenever it looks for one: rows have to stay short.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lamina.errors import MessageError, shown
from lamina.records import TurnRecord
from lamina.store.database import Steps, dump, insert, load, marks
from lamina.store.shapes import RECEIPT, holds_all
from lamina.types import text_hash

PIECE, LONG = 32_768, 65_536
"""Characters of a piece, and those from which on a receipt is in pieces."""
AT_ONCE = 500
PIECES = "pieces"


@dataclass(frozen=True, slots=True)
class Written:
    """A receipt and its texts as they are put into rows; made before the transaction, which holds up everybody."""

    receipt: str | None
    """None leaves the one that is there."""
    texts: Sequence[tuple[str, str]]


def written(receipt: Mapping[str, Any] | None, texts: Mapping[str, str] | None) -> Written:
    for name, text in (texts or {}).items():
        if name != text_hash(text):
            raise MessageError(f"{shown(name)} is not the hash of its text", hint="use text_hash of lamina.types")
    rows = {name: dump(text) for name, text in (texts or {}).items()}
    whole = None if receipt is None else dump(receipt)
    if whole is not None and len(whole) > LONG:
        pieces = [whole[at : at + PIECE] for at in range(0, len(whole), PIECE)]
        names = [text_hash(piece) for piece in pieces]
        rows |= {name: dump(piece) for name, piece in zip(names, pieces, strict=True)}
        whole = dump({PIECES: names})
    return Written(whole, sorted(rows.items()))


def put_receipt(owner: str, turn_id: str, made: Written) -> Steps[None]:
    """The texts, each once for an owner, that this turn needs them, and the receipt."""
    rows = [(owner, name, text) for name, text in made.texts]
    yield from insert("layer_text", "owner, hash, text", rows, "ON CONFLICT DO NOTHING")
    links = [(owner, turn_id, name) for name, _ in made.texts]
    yield from insert("turn_text", "owner, turn_id, hash", links, "ON CONFLICT DO NOTHING")
    if made.receipt is not None:
        yield "UPDATE turn SET receipt = ? WHERE owner = ? AND turn_id = ?", (made.receipt, owner, turn_id)


def read_texts(owner: str, names: Sequence[str]) -> Steps[dict[str, str]]:
    """Texts by their hashes; one that is not there is left out."""
    found: dict[str, str] = {}
    for first in range(0, len(names), AT_ONCE):
        some = names[first : first + AT_ONCE]
        rows = yield (
            f"SELECT hash, text FROM layer_text WHERE owner = ? AND hash IN ({marks(len(some))})",
            (owner, *some),
        )
        found |= {row[0]: load(row[1]) for row in rows}
    return found


def whole_receipts(turns: Sequence[TurnRecord]) -> Steps[list[TurnRecord]]:
    """The turns of one owner with their receipts put together again. One that is not whole is none."""
    names = list(dict.fromkeys(name for turn in turns for name in _pieces(turn)))
    texts = (yield from read_texts(turns[0].owner, names)) if names else {}
    return [replace(turn, receipt=_joined(_pieces(turn), texts)) if _pieces(turn) else turn for turn in turns]


def _pieces(turn: TurnRecord) -> Sequence[str]:
    return turn.receipt.get(PIECES, ())


def _joined(names: Sequence[str], texts: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        found = json.loads("".join(texts.get(name, "") for name in names))
    except (ValueError, RecursionError):
        return {}
    return found if holds_all(found, RECEIPT) else {}
