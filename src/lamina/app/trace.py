"""What was sent in a turn, rebuilt from the store byte for byte."""

from lamina.apart import run_apart
from lamina.assembly.trace import hashes, unpack
from lamina.errors import MessageError, StoreDamagedError
from lamina.records import TurnRecord
from lamina.store.lock import RECOVERY
from lamina.store.store import Store
from lamina.types import Receipt


async def requests_of(store: Store, owner: str, turn: TurnRecord) -> list[Receipt]:
    """The requests of a turn, in order; none when nothing was sent. Bytes that do not match their hash are an error."""
    if not turn.receipt:
        return []
    try:
        names = hashes(turn.receipt)
        texts = await store.messages.texts(owner, names)
        if lost := next((name for name in names if name not in texts), ""):
            raise MessageError("trace.text_gone", hash=lost)
        return await run_apart(sum(map(len, texts.values())), unpack, turn.receipt, texts)
    except MessageError as error:
        raise StoreDamagedError("trace.cannot_rebuild", turn=turn.turn_id, why=error.phrase, hint=RECOVERY) from None
