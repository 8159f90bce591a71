"""What was sent in a turn, rebuilt from the store byte for byte."""

from lamina.assembly.trace import hashes, unpack
from lamina.errors import MessageError, StoreError
from lamina.records import TurnRecord
from lamina.store.store import Store
from lamina.types import Receipt


async def requests_of(store: Store, owner: str, turn: TurnRecord) -> list[Receipt]:
    """The requests of a turn, in order; none when nothing was sent. Bytes that do not match their hash are an error."""
    if not turn.receipt:
        return []
    try:
        names = hashes(turn.receipt)
        texts = await store.history.texts(owner, names)
        if lost := next((name for name in names if name not in texts), ""):
            raise MessageError(f"the text with the hash {lost} is gone")
        return unpack(turn.receipt, texts)
    except MessageError as error:
        raise StoreError(
            f"turn {turn.turn_id} cannot be rebuilt: {error.message}", hint="lamina store verify"
        ) from None
