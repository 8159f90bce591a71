"""A chat that grows to 10,000 turns: what one more turn costs."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from bench import peers
from bench.measure import Section, chat, cpu_seconds, duration, ratio, say, table
from bench.trim import BUDGET, QUESTION, SYSTEM, TOO_SLOW, lamina_fit, loop_fit, peer_seconds
from lamina import Window

TURNS, STEP = 10_000, 1_000
MARKS = (1_000, 5_000, 10_000)
Turn = Callable[[dict[str, Any], dict[str, Any]], object]


def run() -> Section:
    messages = chat(2 * TURNS)
    results: dict[str, dict[int, float]] = {}
    for name, low, receipt in (
        ("lamina Window", None, False),
        ("lamina Window, low water 50 %", 0.5, False),
        ("lamina Window with receipt", None, True),
        ("lamina Window with receipt, low water 50 %", 0.5, True),
    ):
        say(f"grow: {name}")
        results[name] = _window(messages, low, receipt)
    for name, fit in (
        ("hand-written loop, anew each turn", loop_fit),
        ("lamina build_llm_messages, anew each turn", lamina_fit),
    ):
        say(f"grow: {name}")
        results[name] = _anew(messages, fit)
    for peer in peers.load():
        if peer.counts:
            say(f"grow: {peer.name}")
            results[f"{peer.name} {peer.version}, anew each turn"] = _peer(peer, messages)
    window = results["lamina Window"]
    rows = [
        [name, *(f"{duration(taken[m])} ({ratio(taken[m] / window[m])})" if m in taken else "over 5 s" for m in MARKS)]
        for name, taken in results.items()
    ]
    own = {name for name in results if name.startswith(("lamina", "hand"))}
    fastest = min(
        (taken[m], name) for name, taken in results.items() if name not in own for m in MARKS[-1:] if m in taken
    )
    with_receipt = max(results["lamina Window with receipt"].values())
    figures = {
        "flat: last 1000 turns/first 1000": window[MARKS[-1]] / window[MARKS[0]],
        "fastest peer that counts/Window": fastest[0] / window[MARKS[-1]],
        "receipt/Window": with_receipt / window[MARKS[-1]],
    }
    flat, faster = figures["flat: last 1000 turns/first 1000"], figures["fastest peer that counts/Window"]
    text = (
        f"CPU time of one turn (append the question, fit to {BUDGET:,} tokens, append the answer), the mean over the "
        f"{STEP:,} turns before the mark;\nin brackets how many times the window's that is.\nTo reach: 20 µs a turn, "
        "100 µs with receipt, flat; ×100 faster than the fastest peer that counts tokens.\n"
        f"Reached: {duration(max(window.values()))} a turn, {duration(with_receipt)} with receipt; the last thousand "
        f"turns take {ratio(flat)} the first thousand; the fastest peer ({fastest[1]}) takes {ratio(faster)} the "
        f"window's time at turn {MARKS[-1]:,}.\n\n" + table(["", *(f"turn {mark:,}" for mark in MARKS)], rows)
    )
    return Section("A growing chat", text, figures)


def _window(messages: list[dict[str, Any]], low: float | None, receipt: bool) -> dict[int, float]:
    """Best of three whole chats for each mark: the machine's noise is not the window's."""
    best: dict[int, float] = {}
    for _ in range(3):
        window = Window(budget=BUDGET, system=SYSTEM, low_water=low)

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


def _peer(peer: peers.Peer, messages: list[dict[str, Any]]) -> dict[int, float]:
    taken: dict[int, float] = {}
    for mark in MARKS:
        whole = [{"role": "system", "content": SYSTEM}, *messages[: 2 * mark], {"role": "user", "content": QUESTION}]
        taken[mark] = peer_seconds(peer, whole)
        if taken[mark] > TOO_SLOW:
            break
    return taken
