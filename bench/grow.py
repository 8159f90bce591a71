"""A chat that grows to 10,000 turns: what one more turn costs."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from bench import peers
from bench.measure import (
    FLAT,
    TOO_LONG,
    Section,
    Verdict,
    chat,
    cpu_seconds,
    duration,
    high,
    low,
    ratio,
    say,
    table,
    versions,
)
from bench.plot import Kind, Line, Lines
from bench.trim import BUDGET, SYSTEM, Times, by_size, lamina_fit, loop_fit
from lamina import Window

TURNS, STEP = 10_000, 1_000
MARKS = (1_000, 5_000, 10_000)
TURN, RECEIPT, PEER = 20e-6, 100e-6, 100.0
"""To reach: seconds of a turn, of one with its receipt, and how many times the fastest peer's speed."""
LOOP = "hand-written loop, anew each turn"
Turn = Callable[[dict[str, Any], dict[str, Any]], object]


def run() -> Section:
    messages = chat(2 * TURNS)
    results: Times = {}
    ended: dict[str, str] = {}
    for name, mark, receipt in (
        ("lamina Window", None, False),
        ("lamina Window, low water 50 %", 0.5, False),
        ("lamina Window with receipt", None, True),
        ("lamina Window with receipt, low water 50 %", 0.5, True),
    ):
        say(f"grow: {name}")
        results[name] = _window(messages, mark, receipt)
    for name, fit in (
        (LOOP, loop_fit),
        ("lamina build_llm_messages, anew each turn", lamina_fit),
    ):
        say(f"grow: {name}")
        results[name] = _anew(messages, fit)
    for peer in peers.load():
        if peer.counts:
            name = f"{peer.name} {peer.version}, anew each turn"
            histories = {mark: messages[: 2 * mark] for mark in MARKS}
            results[name], ended[name] = by_size(peer, histories, f"grow: {peer.name}")
    window = results["lamina Window"]
    rows = [
        [name, *(f"{duration(taken[m])} ({ratio(taken[m] / window[m])})" if m in taken else ended[name] for m in MARKS)]
        for name, taken in results.items()
    ]
    return _section(results, table(["", *(f"turn {mark:,}" for mark in MARKS)], rows))


def _section(results: Times, shown: str) -> Section:
    window, mark = results["lamina Window"], MARKS[-1]
    others = [(taken[mark], name) for name, taken in results.items() if mark in taken and _kind(name) == "peer"]
    slowest, with_receipt = max(window.values()), max(results["lamina Window with receipt"].values())
    fastest = min(others)
    flat, faster = window[mark] / window[MARKS[0]], fastest[0] / window[mark]
    text = (
        f"CPU time of one turn (append the question, fit to {BUDGET:,} tokens, append the answer), the mean over the "
        f"{STEP:,} turns before the mark;\nin brackets how many times the window's that is.\nTo reach: "
        f"{duration(TURN)} a turn, {duration(RECEIPT)} with receipt, flat; ×{PEER:g} faster than the fastest peer that "
        "counts tokens.\n"
        f"Reached: {duration(slowest)} a turn, {duration(with_receipt)} with receipt; the last thousand "
        f"turns take {ratio(flat)} the first thousand; the fastest peer ({fastest[1]}) takes {ratio(faster)} the "
        f"window's time at turn {mark:,}. A call that takes seconds is made once; a peer that needed more than "
        f"{TOO_LONG:g} s is not asked at later turns.\n\n{shown}"
    )
    figures = {
        "flat: last 1000 turns/first 1000": low(flat),
        "fastest peer that counts/Window": high(faster, 1.5),
        "receipt/Window": low(with_receipt / window[mark]),
    }
    loop = f"{duration(results[LOOP][mark])}, the loop"
    verdicts = (
        Verdict("one turn of a growing chat", duration(slowest), loop, ratio(results[LOOP][mark] / slowest),
                duration(TURN), TURN / slowest),
        Verdict("the same with its receipt", duration(with_receipt), "", "", duration(RECEIPT), RECEIPT / with_receipt),
        Verdict("turns 9,000 to 10,000 beside the first 1,000", ratio(flat), "", "", f"flat: {FLAT}×", FLAT / flat),
        Verdict("one turn at 10,000, beside the fastest library that counts", duration(window[mark]),
                f"{duration(fastest[0])}, {fastest[1].partition(',')[0]}", ratio(faster), f"{PEER:g}×", faster / PEER),
    )  # fmt: skip
    return Section("A growing chat", text, figures, verdicts, plot(results), versions("splintr-rs", *peers.PACKAGES))


def _kind(name: str) -> Kind:
    return "own" if name.startswith("lamina") else "yardstick" if name == LOOP else "peer"


def plot(results: Times) -> Lines:
    """Without the variants with a low-water mark, whose lines lie on those without."""
    lines = (
        Line(name.partition(", anew")[0], tuple(taken.items()), _kind(name))
        for name, taken in results.items()
        if "low water" not in name
    )
    return Lines("One more turn of a growing chat", "turn", "CPU time of the turn", tuple(lines), "s")


def _window(messages: list[dict[str, Any]], low_water: float | None, receipt: bool) -> dict[int, float]:
    """Best of three whole chats for each mark: the machine's noise is not the window's."""
    best: dict[int, float] = {}
    for _ in range(3):
        window = Window(budget=BUDGET, system=SYSTEM, low_water=low_water)

        def turn(question: dict[str, Any], answer: dict[str, Any], window: Window = window) -> None:
            window.append(question)
            if receipt:
                _ = window.context().receipt.segments
            else:
                window.fit()
            window.append(answer)

        for mark, taken in _timed(messages, turn).items():
            best[mark] = min(taken, best.get(mark, taken))
    return best


def _timed(messages: list[dict[str, Any]], turn: Turn) -> dict[int, float]:

    marks: dict[int, float] = {}
    for first in range(0, TURNS, STEP):
        begin = time.process_time()
        for number in range(first, first + STEP):
            turn(messages[2 * number], messages[2 * number + 1])
        if first + STEP in MARKS:
            marks[first + STEP] = (time.process_time() - begin) / STEP
    return marks


def _anew(messages: list[dict[str, Any]], fit: Callable[[list[dict[str, Any]], int], object]) -> dict[int, float]:
    return {mark: cpu_seconds(partial(fit, messages[: 2 * mark], BUDGET)) for mark in MARKS}
