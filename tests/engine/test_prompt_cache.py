"""The prefix that receipts foretell against the counter of a real server: llama.cpp, with the embedded model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.small import first_layers

from lamina import App, Layer, assemble
from lamina.app.traces import prefixes_of
from lamina.assembly.receipt import explain, predicted_prefix
from lamina.providers.local import LocalProvider, shipped_model
from lamina.records import Turn
from tests.engine.chats import end_of, settings, told

BLOCK = 16
"""llama.cpp serves single tokens, vLLM blocks of 16, OpenAI 128."""
ANSWER = 4
"""Tokens of each answer: the server keeps those too, and the receipts know nothing of them."""
QUESTIONS = ("Who is Lin Mo?", "Where does he live, and since when?", "Why did he leave?", "他今年几岁？", "Thank you.")


class Facts:
    """On every turn another fact of three is new."""

    name, optional = "memory", False

    def __init__(self) -> None:
        self.turn = 0

    async def layers(self, turn: Turn, /) -> Sequence[Layer]:
        self.turn += 1
        return [
            Layer("memory", f"Fact {n}: in the year {1900 + n} he said why it mattered to him.", f"memory:{n}",
                  "ann", "outside", True)
            for n in range(self.turn, self.turn + 3)
        ]  # fmt: skip


async def predictions(where: str, provider: LocalProvider, layout: Any, turns: int) -> list[tuple[int, int, bool]]:
    """Foretold and cached tokens of each request from the second turn on, and whether it extends the one before."""
    kept = settings(layout=layout, budget=1_500, max_tokens=ANSWER, compaction=False)
    async with App.open(where, settings=kept, provider=provider, work=False) as app:
        app.builder.sources[:] = [Facts()]
        app.builder.settings = replace(app.builder.settings, off={})
        session = await app.new_session("ann")
        found: list[tuple[int, int, bool]] = []
        before = None
        for question in QUESTIONS[:turns]:
            events = await told(app, session, question)
            assert end_of(events).state == "complete"
            (turn,) = await app.store.turns.list("ann", session.session_id, limit=1)
            receipts = await app.requests("ann", turn.turn_id)
            (prefix,) = await prefixes_of(app.store, "ann", turn, receipts)
            if before:
                assert prefix
                found.append((prefix.predicted, prefix.cached, explain(before, receipts[0]).extends))
            before = receipts[-1]
    return found


@pytest.mark.parametrize("layout", ["strict", "ledger"])
async def test_the_predicted_prefix_is_the_servers_counter_to_within_one_block_on_every_turn(
    tmp_path: Path, layout: str
) -> None:
    provider = LocalProvider(n_ctx=2_048)
    found = await predictions(str(tmp_path / "chat.db"), provider, layout, 4)
    assert len(found) == 3
    assert all(abs(predicted - cached) <= BLOCK for predicted, cached, _ in found), found
    assert all(extends == (layout == "ledger") for *_, extends in found)


async def test_a_ledger_is_read_once_and_strict_again_and_again(tmp_path: Path) -> None:
    first_layers(Path(shipped_model()), 2, tmp_path / "small.gguf")
    cached: dict[str, int] = {}
    for layout in ("strict", "ledger"):
        provider = LocalProvider(str(tmp_path / "small.gguf"), n_ctx=4_096)
        found = await predictions(str(tmp_path / f"{layout}.db"), provider, layout, 5)
        assert all(abs(predicted - cached) <= BLOCK for predicted, cached, _ in found), (layout, found)
        cached[layout] = sum(one for _, one, _ in found)
    assert cached["ledger"] > 2 * cached["strict"]


def test_without_a_report_the_receipts_own_counts_are_the_measure() -> None:
    head = Layer("identity", "You are brief. " * 20)
    first = assemble([head], user="One", budget=1_000).receipt
    second = assemble([head, Layer("memory", "New.", "memory:1", trust="outside")], user="Two", budget=1_000).receipt
    shared = explain(first, second).shared_tokens
    assert predicted_prefix(first, second) == shared
    assert predicted_prefix(first, second, 2 * first.tokens) == pytest.approx(2 * shared, abs=1)
    assert predicted_prefix(first, second, 1) == 1, "never more than there was"
    assert predicted_prefix(first, first, 77) == 77
