"""A receipt tiles its payload, and two receipts tell where and why requests differ."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina import Layer, assemble, encode, exact_counter, explain
from lamina.assembly.receipt import common_prefix
from lamina.errors import MessageError
from lamina.text.messages import Phrase
from tests.histories import said

LAYERS = [
    Layer("identity", "AI", "identity.md"),
    Layer("rules", "规则：不写暴力内容", "rules.md"),
    Layer("memory", "likes tea", "memory:1", "ann", "outside"),
]
HISTORY = [said("user", "介绍林默"), said("assistant", "林默是28岁侦探")]


def build(layers: list[Layer] = LAYERS, history: Any = HISTORY, user: str = "他的性格？", budget: int = 1000) -> Any:
    return assemble(layers, history=history, user=user, mark="lamina", budget=budget, owner="ann")


def test_segments_tile_and_name_where_every_byte_came_from() -> None:
    receipt = build().receipt
    assert receipt.problems() == []
    pieces = {(s.layer, s.source): receipt.payload[s.start : s.end].decode() for s in receipt.segments}
    assert "规则：不写暴力内容" in pieces["rules", "rules.md"]
    assert "likes tea" in pieces["memory", "memory:1"]
    assert "林默是28岁侦探" in pieces["history", "history[1]"]
    assert "他的性格？" in pieces["user", "user"]
    assert [s.owner for s in receipt.segments if s.layer == "memory"] == ["ann"]
    assert {s.trust for s in receipt.segments} == {"operator", "outside", "user", "model"}


def test_what_was_left_out_stands_in_the_receipt_with_its_reason() -> None:
    receipt = build(history=HISTORY * 50, budget=60).receipt
    gone = [s for s in receipt.segments if s.decision == "dropped"]
    assert [(s.source, s.reason.code, s.end - s.start) for s in gone] == [
        (f"history[0:{receipt.dropped.count}]", "reason.over_budget", 0)
    ]
    assert gone[0].tokens == receipt.dropped.tokens
    assert receipt.tokens <= 60


def test_the_same_receipt_as_json_and_as_text() -> None:
    receipt = build(history=HISTORY * 50, budget=60).receipt
    data = json.loads(json.dumps(receipt.to_dict()))
    assert data["tokens"] == receipt.tokens
    assert len(data["segments"]) == len(receipt.segments)
    assert set(data["segments"][0]) == {
        "layer", "source", "hash", "owner", "trust", "tokens", "counter", "decision", "reason", "start", "end",
    }  # fmt: skip
    text = str(receipt)
    assert f"{receipt.tokens} of 60 tokens" in text
    assert "rules.md" in text
    assert "left out" in text


def test_a_damaged_receipt_is_found() -> None:
    """The planted bug: a gap, an overlap and a wrong sum."""
    import dataclasses  # noqa: PLC0415 -- only here

    receipt = build().receipt
    first, second, *rest = receipt.segments
    for damaged in (
        (first._replace(end=first.end - 1), second, *rest),
        (first, second._replace(start=second.start - 1), *rest),
        (first._replace(tokens=first.tokens + 1), second, *rest),
        (first, *rest),
        receipt.segments[:-1],
        (first._replace(decision="dropped"), second, *rest),
    ):
        assert dataclasses.replace(receipt, segments=damaged).problems()


def test_the_sum_of_the_segments_is_what_an_exact_counter_says_of_the_request() -> None:
    count = exact_counter("o200k")
    context = assemble([Layer("identity", "You are kind.")], user="Hello there", mark="lamina", budget=100, count=count)
    assert context.receipt.tokens == 3 + 3 + count("You are kind.") + 3 + count("Hello there")
    assert context.receipt.problems() == []
    assert {s.counter for s in context.receipt.segments} == {"o200k"}


def test_explain_finds_nothing_between_equals() -> None:
    difference = explain(build(), build())
    assert difference.byte is None
    assert str(difference) == "the requests are the same, byte for byte"


def test_explain_names_the_layer_whose_text_changed() -> None:
    before = build()
    after = build([LAYERS[0], Layer("rules", "规则：不写悲剧", "rules.md"), LAYERS[2]])
    difference = explain(before, after)
    assert (difference.layer, difference.source, difference.extends) == ("rules", "rules.md", False)
    assert difference.byte is not None
    assert before.payload[: difference.byte] == after.payload[: difference.byte]
    assert before.payload[difference.byte] != after.payload[difference.byte]
    assert difference.reason.code == "reason.text_changed"
    assert difference.shared_tokens + difference.tokens_after == after.receipt.tokens
    identity = after.receipt.segments[0].tokens
    assert identity <= difference.shared_tokens < identity + after.receipt.segments[1].tokens


def test_explain_says_new_gone_cut_and_added() -> None:
    extra = Layer("context", "第三章", "project")
    assert explain(build(), build([*LAYERS, extra])).reason.code == "reason.new_here"
    gone = explain(build([*LAYERS, extra]), build())
    assert (gone.layer, gone.source, gone.reason) == ("context", "project", Phrase("reason.gone_here"))
    long = [*HISTORY * 10, said("user", "q"), said("assistant", "a")]
    cut = explain(build(history=HISTORY * 10, budget=60), build(history=long, budget=60))
    assert cut.reason.code == "reason.more_dropped"
    grown = [*HISTORY, said("user", "他的性格？"), said("assistant", "冷静")]
    difference = explain(build(), build(history=grown, user="还有？"))
    assert difference.extends
    assert difference.reason.code == "reason.added"


def test_the_moving_cache_mark_of_anthropic_is_no_change() -> None:
    before = build()
    after = build(history=[*HISTORY, said("user", "他的性格？"), said("assistant", "冷静")], user="还有？")
    difference = explain(encode(before, "anthropic"), encode(after, "anthropic"))
    assert difference.extends
    assert difference.shared_tokens == before.receipt.tokens
    changed = build([LAYERS[0], Layer("rules", "other", "rules.md"), LAYERS[2]])
    found = explain(encode(before, "anthropic"), encode(changed, "anthropic"))
    a, b = encode(before, "anthropic").payload, encode(changed, "anthropic").payload
    assert found.layer == "rules"
    assert found.byte is not None
    assert a[: found.byte] == b[: found.byte]
    assert a[found.byte] != b[found.byte]


def test_explain_takes_receipts_and_contexts_only() -> None:
    with pytest.raises(MessageError, match="not 'b'"):
        explain("a", "b")  # pyright: ignore[reportArgumentType] -- on purpose


CHUNKS = st.lists(st.binary(max_size=4), max_size=6)


@given(CHUNKS, CHUNKS, CHUNKS)
def test_the_common_prefix_does_not_depend_on_how_it_is_chunked(head: Any, a: Any, b: Any) -> None:
    left, right = b"".join([*head, *a]), b"".join([b"".join(head), *b])
    expected = next(
        (i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), min(len(left), len(right))
    )
    assert common_prefix([*head, *a], [b"".join(head), *b]) == expected
