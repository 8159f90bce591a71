"""R23: whatever one user says, however long, others do not wait for it. Measured on the event loop of a real App."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lamina.assembly.fences import TagFilter
from lamina.engine.turn import MAX_ANSWER_CHARACTERS
from lamina.memory.extract import facts_by_rules
from lamina.memory.summaries import MAX_MESSAGE_CHARACTERS, summarise
from lamina.providers.openai import CompletionReader
from lamina.providers.sse import ServerEvent
from tests.faults.load import SOAK, Load
from tests.faults.stalls import BOUND_S, chatting, filled, large, longest_stall, planted, probing, repeated
from tests.gateway.serving import TOKEN, running

SLACK = 3
"""The bound is for an idle machine; here two others may compete for it. The planted bug takes far more."""
QUICK = ("'-'", "'<'", "'其实'", "'请帮我'", "'1 '", "'a/'", "'\\n'", "'“a'")


async def test_R23_no_repeated_text_stalls_the_others(tmp_path: Path, load: Load) -> None:
    texts = repeated()
    names = [*QUICK, *random.Random(load.seed()).sample(sorted(texts), 4)] if SOAK == 1 else list(texts)
    slow: dict[str, float] = {}
    async with chatting(tmp_path) as app:
        for name in names:
            stall = await longest_stall(app, texts[name])
            slow |= {name: stall} if stall > SLACK * BOUND_S else {}
            load.tried(1, "texts")
    assert slow == {}


@pytest.mark.parametrize("layout", ["strict", "ledger"])
async def test_R23_no_large_text_stalls_the_others(tmp_path: Path, load: Load, layout: str) -> None:
    every = large()
    names = list(every) if SOAK > 1 else ["5 MB of English" if layout == "strict" else "19 MB of Chinese"]
    slow: dict[str, float] = {}
    for name in names:
        (folder := tmp_path / name.replace(" ", "_")).mkdir()
        async with chatting(folder, layout=layout) as app:
            stall = await longest_stall(app, every[name](), learns=SOAK > 1)
            slow |= {name: stall} if stall > SLACK * BOUND_S else {}
            load.tried(1, "texts")
    assert slow == {}


async def test_A9_reading_what_was_sent_stalls_nobody(tmp_path: Path, load: Load) -> None:
    """The routes that read a long request back: each byte of it is stored, compared and sent again."""
    kinds = {"newlines": "\n", "carriage returns": "\r", "likes": "I like tea. "}
    for name in kinds if SOAK > 1 else ["carriage returns"]:
        (folder := tmp_path / name.replace(" ", "_")).mkdir()
        async with running(folder / "s.db") as site:
            session_id, turn = (await site.app.new_session("ann")).session_id, ""
            for said in (filled(kinds[name], 9_000_000 if SOAK > 1 else 2_000_000), "next?"):
                turn = (await (await site.app.start("ann", session_id, said)).wait()).turn_id
            stalls: dict[str, float] = {}
            for path in (
                f"/api/turns/{turn}/receipt",
                f"/api/turns/{turn}/payload",
                f"/api/sessions/{session_id}/messages",
            ):
                sent = {"Authorization": f"Bearer {TOKEN}"}
                async with probing() as probe, site.client.get(site.url + path, headers=sent) as got:
                    assert got.status == 200
                    while await got.content.readany():  # our own client does not put it together either
                        pass
                stalls[path.rpartition("/")[2]] = probe.worst
                load.tried(1, "long requests")
        assert {path: stall for path, stall in stalls.items() if stall > SLACK * BOUND_S} == {}


async def test_R23_a_history_of_many_messages_stalls_nobody(tmp_path: Path, load: Load) -> None:
    async with chatting(tmp_path, budget=2_000_000) as app:
        session = (await app.new_session("ann")).session_id
        history = [
            {"role": ("user", "assistant")[n % 2], "content": f"message {n}: " + "words and words " * 4}
            for n in range(10_000 if SOAK > 1 else 3_000)
        ]
        await app.store.messages.append("ann", session, history)
        assert await longest_stall(app, "what was it?", session, learns=False) < SLACK * BOUND_S
        load.tried(len(history), "messages")


@pytest.mark.planted("a quadratic pattern that reads what users say")
async def test_R23_a_planted_quadratic_pattern_is_found(tmp_path: Path) -> None:
    with planted():
        async with chatting(tmp_path) as app:
            assert await longest_stall(app, "<" + "-" * 25_000, learns=False) > SLACK * BOUND_S


# What comes from a provider


def seconds(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def growth(work: Callable[[int], Callable[[], Any]], size: int) -> float:
    """How many times longer four times as much takes: 4 when it is linear, 16 when it is quadratic."""
    small = min(seconds(work(size)) for _ in range(3))
    return min(seconds(work(4 * size)) for _ in range(3)) / max(small, 1e-4)


SCRUBBED = ("<", "<s", "<system_hint", "</system_hint>", "<system_hint>", "<data-abcd1234", "a<b ")


@pytest.mark.parametrize("text", SCRUBBED)
@pytest.mark.parametrize("piece", [1, 7, 1_000_000], ids=["letters", "pieces", "whole"])
def test_R23_scrubbing_an_answer_is_linear(text: str, piece: int) -> None:
    def work(size: int) -> Callable[[], Any]:
        said = text * (size // len(text))
        pieces = [said[at : at + piece] for at in range(0, len(said), piece)]

        def run() -> None:
            scrub = TagFilter("abcd1234")
            for each in pieces:
                scrub.feed(each)
            scrub.close()

        return run

    assert growth(work, 10_000) < 9


@pytest.mark.parametrize("piece", ["a", "\\u4e2d", "中"])
def test_R23_arguments_in_many_pieces_are_linear(piece: str) -> None:
    def work(pieces: int) -> Callable[[], Any]:
        def run() -> None:
            reader = CompletionReader("here")
            for part in ('{"a":"', *[piece] * pieces, '"}'):
                delta = {"index": 0, "id": "c", "function": {"name": "f", "arguments": part}}
                reader._read_call(delta, whole=False)  # pyright: ignore[reportPrivateUsage] -- JSON is not what is measured
            for _ in reader.read(ServerEvent("", "[DONE]")):
                pass
            assert len(list(reader.finish())) == 2

        return run

    assert growth(work, 25_000) < 9


async def test_R23_an_answer_in_very_many_pieces_stalls_nobody(tmp_path: Path) -> None:
    text = "<s " * 1_000
    step = {"text": text, "split": list(range(1, len(text)))}
    answer: Any = [*[step] * (20 if SOAK == 1 else 300), {"usage": [100, 0, 5]}]
    assert len(text) * len(answer) < MAX_ANSWER_CHARACTERS
    async with chatting(tmp_path, answer) as app:
        assert await longest_stall(app, "go", learns=False) < SLACK * BOUND_S


# What is made of a text


@pytest.mark.parametrize(
    "text", ["我" + "其实" * 29 + "x", "请帮我" * 40, "你可以" * 40, "我一点都" + "一点都" * 15 + "x"]
)
def test_R23_no_short_sentence_takes_long_to_learn_from(text: str) -> None:
    """On 0.1.0 the first of them took longer than anybody lives."""
    assert seconds(lambda: facts_by_rules(text, "", said=None)) < 1.0


@pytest.mark.parametrize("text", ["word, word and I like it. ", "我喜欢喝茶，也喜欢你。", "-", "a/b.py "])
def test_a_summary_reads_a_bounded_part_of_each_message(text: str) -> None:
    def summary(size: int) -> str:
        return summarise([{"role": "user", "content": (text * size)[:size]}], limit=400)

    short = seconds(lambda: summary(2 * MAX_MESSAGE_CHARACTERS))
    assert seconds(lambda: summary(2_000_000)) < 10 * short + 0.05
    begin = f"Please plan a trip to Oslo for me.\n\n{text * 100_000}"
    assert "trip to Oslo" in summarise([{"role": "user", "content": begin}], limit=400)


def test_a_secret_that_a_cut_goes_through_is_not_in_a_summary() -> None:
    for shift in range(0, 60, 7):
        words = "x" * (MAX_MESSAGE_CHARACTERS - 2_020 - shift)
        text = f"{words}. My password is hunter2secret. {'y' * 40_000}. My pin is 99887766. {'z' * (1_960 + shift)}."
        found = summarise([{"role": "user", "content": text}], limit=2_000, form="compaction")
        assert "hunter2" not in found
        assert "99887766" not in found
