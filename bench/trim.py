"""Fitting one history: lamina beside the hand-written loop and the peers, same messages, same budget."""

from functools import partial
from typing import Any

from bench import handwritten, peers
from bench.measure import (
    TOO_LONG,
    Figure,
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
from lamina import build_llm_messages

SIZES = (100, 1_000, 10_000, 100_000)
SYSTEM, QUESTION, BUDGET, ALL = "You are helpful.", "So what do we do next?", 8_000, 10**9
NEAR = 1.5
"""To reach: so many times the hand-written loop's time."""
LOOP = "hand-written loop"
Times = dict[str, dict[int, float]]


def lamina_fit(history: list[dict[str, Any]], budget: int) -> object:
    return build_llm_messages(
        system_prompt=SYSTEM, history=history, current_user_message=QUESTION, max_token_budget=budget
    )


def loop_fit(history: list[dict[str, Any]], budget: int) -> object:
    return handwritten.fit(SYSTEM, history, QUESTION, budget)


def run() -> Section:
    """CPU time of one fit for each size, and how many times the loop's that is."""
    times: Times = {LOOP: {}, "lamina": {}}
    whole: Times = {LOOP: {}, "lamina": {}}
    histories = {size: chat(size) for size in SIZES}
    for size, history in histories.items():
        say(f"trim: {size:,} messages")
        for target, budget in ((times, BUDGET), (whole, ALL)):
            for _ in range(3):  # side by side, the best of both: neither profits from a quiet moment
                for name, fit in ((LOOP, loop_fit), ("lamina", lamina_fit)):
                    taken = cpu_seconds(partial(fit, history, budget))
                    target[name][size] = min(taken, target[name].get(size, taken))
    there, ended = peers.load(), dict[str, str]()
    for peer in there:
        name = f"{peer.name} {peer.version}"
        times[name], ended[name] = by_size(peer, histories, f"trim: {name}")
    fastest = min((taken[10_000], name) for name, taken in times.items() if name not in whole and 10_000 in taken)
    faster = fastest[0] / times["lamina"][10_000]
    notes = "\n".join(f"- {peer.name}: {peer.note}." for peer in there if peer.note)
    text = (
        f"Budget {BUDGET:,} tokens by the seed's estimate; CPU time of one call, and how many times the loop's that is."
        f"\nTo reach: at most {NEAR}× the loop. The fastest peer at 10,000 messages is {fastest[1]}: lamina is "
        f"{ratio(faster)} faster. A call that takes seconds is made once; a peer that needed more than {TOO_LONG:g} s "
        f"is not given a larger history.\n\n{_table(times, ended)}\n\n"
        f"Where everything fits, so that every message is looked at:\n\n{_table(whole, {})}\n\n"
        f"What the peers do and cannot do, from running them:\n\n{notes}"
    )
    figures = _figures(times, whole) | {"fastest peer/lamina 10000": high(faster, 1.5)}
    best = Verdict("one fit of 10,000 messages, beside the fastest library", duration(times["lamina"][10_000]),
                   f"{duration(fastest[0])}, {fastest[1]}", ratio(faster))  # fmt: skip
    packages = ("splintr-rs", *peers.PACKAGES)
    return Section("Fitting a history", text, figures, (_near(times, whole), best), plot(times), versions(*packages))


def _figures(times: Times, whole: Times) -> dict[str, Figure]:
    figures = {f"lamina/loop {size}": low(times["lamina"][size] / times[LOOP][size]) for size in SIZES}
    return figures | {f"lamina/loop {size} all": low(whole["lamina"][size] / whole[LOOP][size]) for size in SIZES}


def _near(times: Times, whole: Times) -> Verdict:
    """The size, of those cut and those that fit, at which lamina is furthest from the loop."""
    far, ours, loop = max(
        (t["lamina"][size] / t[LOOP][size], t["lamina"][size], t[LOOP][size]) for t in (times, whole) for size in SIZES
    )
    measured = "one fit of 100 to 100,000 messages, the worst beside a hand-written loop"
    return Verdict(measured, duration(ours), f"{duration(loop)}, the loop", f"{1 / far:.2g}×", f"{NEAR}× its time",
                   NEAR / far)  # fmt: skip


def plot(times: Times) -> Lines:
    kinds: dict[str, Kind] = {"lamina": "own", LOOP: "yardstick"}
    lines = (Line(name, tuple(taken.items()), kinds.get(name, "peer")) for name, taken in times.items())
    return Lines(
        "Fitting a history to 8,000 tokens", "messages in the history", "CPU time of one fit", tuple(lines), "s"
    )


def peer_seconds(peer: peers.Peer, messages: list[dict[str, Any]]) -> float:
    """CPU time of a peer's own call; converting the messages to its own form is not counted."""
    box: list[Any] = []
    return cpu_seconds(
        lambda: peer.trim(box[0], BUDGET), prepare=lambda: box.__setitem__(slice(None), [peer.prepare(messages)])
    )


def by_size(peer: peers.Peer, histories: dict[int, list[dict[str, Any]]], about: str) -> tuple[dict[int, float], str]:
    """Its time for each size, from small to large, and why there is none for the larger ones."""
    taken: dict[int, float] = {}
    for size, history in histories.items():
        say(f"{about}, {size:,}")
        whole = [{"role": "system", "content": SYSTEM}, *history, {"role": "user", "content": QUESTION}]
        try:
            taken[size] = peer_seconds(peer, whole)
        except Exception as error:  # whatever a library raises is its result
            return taken, f"raises {type(error).__name__}"
        if taken[size] > TOO_LONG:
            break
    return taken, f"over {TOO_LONG:g} s"


def _table(times: Times, ended: dict[str, str]) -> str:
    loop = times[LOOP]
    rows = [
        [name, *(f"{duration(t[s])} ({ratio(t[s] / loop[s])})" if s in t else ended[name] for s in SIZES)]
        for name, t in times.items()
    ]
    return table(["", *(f"{size:,} messages" for size in SIZES)], rows)
