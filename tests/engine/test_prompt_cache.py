"""The prefix that receipts foretell against the counter of a real server: llama.cpp, with the embedded model.

The same code as the row `cache` of the benchmarks, over fewer turns.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from bench.cache import BLOCK, lamina_way, misses
from bench.llama import Judged, llama
from bench.measure import chat
from bench.small import first_layers

from lamina import Layer, assemble, explain
from lamina.assembly.receipt import predicted_prefix
from lamina.providers.local import shipped_model
from lamina.types import Receipt

SHORT = [("Who is Lin Mo?", "A sailor."), ("他今年几岁？", "Twenty-eight."), ("Where does he live?", "In Jiangcheng.")]


def made_up(turns: int) -> list[tuple[str, str]]:
    said = [str(message["content"])[:120] for message in chat(2 * turns)]
    return list(zip(said[::2], said[1::2], strict=True))


def cached_share(seen: Sequence[tuple[Receipt, Judged]]) -> float:
    return sum(one.cached for _, one in seen) / sum(one.prompt for _, one in seen)


@pytest.mark.parametrize("layout", ["strict", "ledger"])
async def test_the_predicted_prefix_is_the_servers_counter_to_within_one_block_on_every_turn(layout: Any) -> None:
    with llama() as server:
        seen = await lamina_way(server, SHORT, 1_500, layout)
    assert len(seen) == len(SHORT)
    assert all(abs(miss) <= BLOCK for miss in misses(seen)), misses(seen)
    assert all(explain(a, b).extends == (layout == "ledger") for (a, _), (b, _) in pairwise(seen))


async def test_so_it_is_through_cuts_and_epochs_and_the_ledger_is_read_once(tmp_path: Path) -> None:
    first_layers(Path(shipped_model()), 1, tmp_path / "small.gguf")
    shares: dict[str, float] = {}
    for layout in ("strict", "ledger"):
        with llama(str(tmp_path / "small.gguf")) as server:
            seen = await lamina_way(server, made_up(16), 1_000, layout)
        assert all(abs(miss) <= BLOCK for miss in misses(seen)), (layout, misses(seen))
        assert any(one.dropped.count for one, _ in seen), "the window was cut"
        shares[layout] = cached_share(seen)
    assert shares["ledger"] > 2 * shares["strict"], shares


async def test_the_check_above_finds_a_request_that_is_not_the_one_that_was_foretold(tmp_path: Path) -> None:
    """Planted: the server is asked with the words in front turned round, and the receipt does not know."""
    first_layers(Path(shipped_model()), 1, tmp_path / "small.gguf")
    with llama(str(tmp_path / "small.gguf")) as server:
        ask = server.ask
        server.ask = lambda messages: ask([{**messages[0], "content": messages[0]["content"][::-1]}, *messages[1:]])
        seen = await lamina_way(server, made_up(4), 1_000, "strict")
    assert any(abs(miss) > BLOCK for miss in misses(seen))


def test_without_a_report_the_receipts_own_counts_are_the_measure() -> None:
    head = Layer("identity", "You are brief. " * 20)
    first = assemble([head], user="One", budget=1_000).receipt
    second = assemble([head, Layer("memory", "New.", "memory:1", trust="outside")], user="Two", budget=1_000).receipt
    assert predicted_prefix(first, second) == explain(first, second).shared_tokens
    shared = explain(second, first).shared_tokens
    assert predicted_prefix(first, second, 2 * first.tokens) == 2 * shared, "in the counts of the first"
    assert predicted_prefix(first, second, 1) == 1, "never more than there was"
    assert predicted_prefix(first, first, 77) == 77
