"""Receipts beside their turns: a short one stands in the row of its turn, a long one in pieces among the layer texts.

SQLite reads the whole row of a turn, or of its neighbour, whenever it looks for one: rows have to stay short.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lamina.records import TurnRecord
from lamina.store.database import Steps, dump, insert, load, marks
from lamina.store.shapes import RECEIPT, holds_all
from lamina.types import text_hash

PIECE = 16_384
"""Characters of a receipt that stand in one row."""
AT_ONCE = 500
PIECES = "pieces"


def put_receipt(owner: str, turn_id: str, receipt: Mapping[str, Any] | None, texts: Mapping[str, str]) -> Steps[None]:
    """A receipt and its texts, each once for an owner, and that this turn needs them."""
    written = None if receipt is None else dump(receipt)
    if written is not None and len(written) > PIECE:
        pieces = [written[at : at + PIECE] for at in range(0, len(written), PIECE)]
        names = [text_hash(piece) for piece in pieces]
        texts, written = {**texts, **dict(zip(names, pieces, strict=True))}, dump({PIECES: names})
    names = sorted(texts)
    rows = [(owner, name, dump(texts[name])) for name in names]
    yield from insert("layer_text", "owner, hash, text", rows, "ON CONFLICT DO NOTHING")
    links = [(owner, turn_id, name) for name in names]
    yield from insert("turn_text", "owner, turn_id, hash", links, "ON CONFLICT DO NOTHING")
    if written is not None:
        yield "UPDATE turn SET receipt = ? WHERE owner = ? AND turn_id = ?", (written, owner, turn_id)


def whole_receipts(turns: Sequence[TurnRecord]) -> Steps[list[TurnRecord]]:
    """The turns of one owner with their receipts put together again. One that is not whole is none."""
    names = list(dict.fromkeys(name for turn in turns for name in _pieces(turn)))
    texts: dict[str, str] = {}
    for first in range(0, len(names), AT_ONCE):
        some = names[first : first + AT_ONCE]
        rows = yield (
            f"SELECT hash, text FROM layer_text WHERE owner = ? AND hash IN ({marks(len(some))})",
            (turns[0].owner, *some),
        )
        texts |= {row[0]: load(row[1]) for row in rows}
    return [replace(turn, receipt=_joined(_pieces(turn), texts)) if _pieces(turn) else turn for turn in turns]


def _pieces(turn: TurnRecord) -> Sequence[str]:
    return turn.receipt.get(PIECES, ())


def _joined(names: Sequence[str], texts: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        found = json.loads("".join(texts.get(name, "") for name in names))
    except (ValueError, RecursionError):
        return {}
    return found if holds_all(found, RECEIPT) else {}
