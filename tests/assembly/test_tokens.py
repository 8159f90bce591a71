"""Costs of messages, tools and pictures, and what the provider's usage teaches."""

import base64
import json
import struct
from typing import Any

import pytest

from lamina import estimate_message_tokens, exact_counter
from lamina.assembly.tokens import Calibration, counter_name, image_tokens, message_tokens, tool_tokens
from lamina.errors import CounterError

PNG = b"\x89PNG\r\n\x1a\n" + b"\x00\x00\x00\rIHDR"


def data_url(raw: bytes, kind: str = "png") -> dict[str, Any]:
    return {"url": f"data:image/{kind};base64,{base64.b64encode(raw).decode()}"}


def jpeg(width: int, height: int) -> bytes:
    start = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + b"\x00" * 9
    return start + b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", height, width) + b"\x00" * 10


@pytest.mark.parametrize(
    ("image", "tokens"),
    [
        ({"url": "https://example.com/a.png"}, 765),
        ({"url": "https://example.com/a.png", "detail": "low"}, 85),
        (data_url(PNG + struct.pack(">II", 512, 512)), 85 + 170),
        (data_url(PNG + struct.pack(">II", 2048, 4096)), 85 + 170 * 6),
        (data_url(b"GIF89a" + struct.pack("<HH", 100, 100), "gif"), 85 + 170),
        (data_url(jpeg(1024, 1024), "jpeg"), 765),
        (data_url(b"RIFF\x00\x00\x00\x00WEBPVP8X" + b"\x00" * 8 + b"\xff\x03\x00\xff\x03\x00", "webp"), 765),
        (data_url(b"not a picture"), 765),
        (data_url(PNG + struct.pack(">II", 0, 5)), 765),
        ({"url": "data:image/png;base64,@@@"}, 765),
    ],
)
def test_a_picture_costs_its_tiles(image: dict[str, Any], tokens: int) -> None:
    assert image_tokens(image) == tokens


def test_a_call_is_never_free() -> None:
    call = {
        "id": "x",
        "type": "function",
        "function": {"name": "find", "arguments": '{"words": "' + "word " * 500 + '"}'},
    }
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert message_tokens(message, estimate_message_tokens) > 500
    assert message_tokens(message, exact_counter("o200k")) > 500


def test_tools_are_counted_by_their_schema_or_by_the_counters_own_rule() -> None:
    tool = {"type": "function", "function": {"name": "find", "description": "Find."}}
    assert tool_tokens([], len) == 0
    written = json.dumps(tool, separators=(",", ":"))
    assert tool_tokens([tool], estimate_message_tokens) == estimate_message_tokens(written)
    assert tool_tokens([tool], exact_counter("o200k")) > 8


def test_reported_usage_moves_the_factor_towards_the_truth() -> None:
    learned = Calibration()
    assert learned.factor == 1.0
    for _ in range(5):
        learned = learned.observe(estimated=1000, reported=1500)
    assert learned.factor == pytest.approx(1.5)
    corrected = learned.applied(estimate_message_tokens)
    assert corrected("x" * 400) == 150
    assert counter_name(corrected) == "estimate_message_tokens×1.500"


def test_one_odd_report_cannot_break_a_budget() -> None:
    learned = Calibration().observe(estimated=1000, reported=1000)
    assert learned.observe(estimated=1000, reported=10**9).factor < 4
    assert learned.observe(estimated=1000, reported=0) == learned
    assert learned.observe(estimated=0, reported=50) == learned


@pytest.mark.parametrize("value", [-1, 1.5, None, True, "7"])
def test_a_report_that_is_no_count_is_refused(value: Any) -> None:
    with pytest.raises(CounterError, match="reported tokens"):
        Calibration().observe(estimated=10, reported=value)


def test_a_corrected_exact_counter_still_counts_wrapping_and_tools() -> None:
    corrected: Any = Calibration(estimated=100, reported=200).applied(exact_counter("o200k"))
    assert (corrected.per_message, corrected.per_request) == (6, 6)
    tool = {"type": "function", "function": {"name": "find", "description": "Find."}}
    assert corrected.tools([tool]) == 2 * tool_tokens([tool], exact_counter("o200k"))
