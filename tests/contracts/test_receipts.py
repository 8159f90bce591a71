"""Receipts over both stores: a long one is kept in pieces, and whoever reads a turn does not notice."""

from typing import Any

import pytest

from lamina.errors import LeaseError
from lamina.records import Sent
from lamina.store.store import Store, open_store
from lamina.store.turns import MAX_ROW_CHARACTERS as LIMIT
from lamina.types import text_hash
from tests.contracts.test_turns import begun


def request(rows: int) -> dict[str, Any]:
    row = ["history", "给你的一句话", "user", None, "user", 7, "h" * 64, "kept", "", "t" * 64]
    return {
        "same": 0, "segments": [row] * rows, "hash": "x", "size": 1, "tokens": 7, "budget": 8_000, "counter": "c",
        "grammar": "openai", "layout": "strict", "dropped": {"count": 0, "tokens": 0},
    }  # fmt: skip


LONG: dict[str, Any] = {"form": 1, "requests": [request(3_000)]}


def rows_of(lines: list[str], table: str) -> list[str]:
    return [line for line in lines if f'"table":"{table}"' in line]


async def test_a_long_receipt_is_in_pieces_and_reads_as_it_was_written(store: Store) -> None:
    session_id, turn_id = await begun(store)
    text = {text_hash("said"): "said"}
    assert (await store.turns.finish("ann", turn_id, receipt=LONG, texts=text)).receipt == LONG
    assert (await store.turns.get("ann", turn_id)).receipt == LONG
    assert [turn.receipt for turn in await store.turns.list("ann", session_id)] == [LONG]
    lines = [line async for line in store.admin.export()]
    (row,) = rows_of(lines, "turn")
    assert len(row) < LIMIT < len(str(LONG))
    assert await store.admin.verify() == []
    await store.sessions.delete("ann", session_id)
    assert not rows_of([line async for line in store.admin.export()], "layer_text"), "the pieces go with it"


async def test_a_turn_asked_for_by_its_key_has_its_long_receipt(store: Store) -> None:
    session = await store.sessions.new("ann")
    question: Any = {"role": "user", "content": "hi"}
    turn = await store.turns.begin("ann", session.session_id, question, key="k")
    await store.turns.finish("ann", turn.turn_id, receipt=LONG)
    again = await store.turns.begin("ann", session.session_id, question, key="k")
    assert (again.repeated, again.receipt) == (True, LONG)


async def test_a_receipt_that_grows_adds_only_what_is_new(store: Store) -> None:
    _, turn_id = await begun(store)
    longer = {"form": 1, "requests": [*LONG["requests"], request(300)]}
    await store.turns.renew("ann", turn_id, sent=Sent(LONG, {}))
    before = len(rows_of([line async for line in store.admin.export()], "layer_text"))
    await store.turns.chunk("ann", turn_id, 0, "so", sent=Sent(longer, {}))
    assert (await store.turns.get("ann", turn_id)).receipt == longer
    after = len(rows_of([line async for line in store.admin.export()], "layer_text"))
    assert after - before < before / 2
    await store.turns.finish("ann", turn_id)
    assert (await store.turns.get("ann", turn_id)).receipt == longer, "the end without one leaves it as it is"


@pytest.mark.parametrize("harm", ["gone", "junk", "shape"])
async def test_a_receipt_whose_pieces_are_not_whole_is_none(store: Store, where: str, harm: str) -> None:
    _, turn_id = await begun(store)
    await store.turns.finish("ann", turn_id, receipt=LONG)
    junk = {"gone": "", "junk": "{", "shape": '{"requests":[1]}'}[harm]
    name = text_hash(junk)
    if junk:
        await store.turns.finish("ann", (await begun(store))[1], texts={name: junk})

    def harmed() -> Any:
        changed = f'{{"pieces":["{name}"]}}'
        yield "UPDATE turn SET receipt = ? WHERE owner = ? AND turn_id = ?", (changed, "ann", turn_id)

    await store.db.write("ann", harmed)
    assert (await store.turns.get("ann", turn_id)).receipt == {}


async def test_recover_leaves_the_turns_that_are_answered_here_and_those_that_are_gone(where: str) -> None:
    now = [1_000.0]
    async with open_store(where, clock=lambda: now[0]) as store:
        (gone, first), (_, here), (_, last) = [await begun(store) for _ in range(3)]
        now[0] += 120

        async def deleted(owner: str, turn_id: str) -> Any:
            if turn_id == first:  # by its owner, between the look for open turns and the look at this one
                await store.sessions.delete(owner, gone)
            return await type(store.turns).get(store.turns, owner, turn_id)

        store.turns.get = deleted
        assert [turn.turn_id for turn in await store.turns.recover(without={here})] == [last]
        await store.turns.chunk("ann", here, 0, "still here")
        with pytest.raises(LeaseError):
            await store.turns.chunk("ann", last, 0, "no longer")
