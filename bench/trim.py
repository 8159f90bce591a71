"""Fitting one history: lamina beside the hand-written loop and the peers, same messages, same budget."""

import importlib
from functools import partial
from pathlib import Path
from typing import Any

from bench import handwritten, peers
from bench.measure import ROOT, Section, chat, cpu_seconds, duration, ratio, say, table
from lamina import build_llm_messages

SIZES = (100, 1_000, 10_000, 100_000)
SYSTEM, QUESTION, BUDGET, ALL = "You are helpful.", "So what do we do next?", 8_000, 10**9
TOO_SLOW = 5.0
PLOT = ROOT / "docs" / "trim.svg"


def lamina_fit(history: list[dict[str, Any]], budget: int) -> object:
    return build_llm_messages(
        system_prompt=SYSTEM, history=history, current_user_message=QUESTION, max_token_budget=budget
    )


def loop_fit(history: list[dict[str, Any]], budget: int) -> object:
    return handwritten.fit(SYSTEM, history, QUESTION, budget)


def run() -> Section:
    """CPU time of one fit for each size, and how many times the loop's that is."""
    times: dict[str, dict[int, float]] = {"hand-written loop": {}, "lamina": {}}
    whole: dict[str, dict[int, float]] = {"hand-written loop": {}, "lamina": {}}
    for size in SIZES:
        history = chat(size)
        say(f"trim: {size:,} messages")
        for target, budget in ((times, BUDGET), (whole, ALL)):
            for _ in range(3):  # side by side, the best of both: neither profits from a quiet moment
                for name, fit in (("hand-written loop", loop_fit), ("lamina", lamina_fit)):
                    taken = cpu_seconds(partial(fit, history, budget))
                    target[name][size] = min(taken, target[name].get(size, taken))
    for peer in peers.load():
        times[f"{peer.name} {peer.version}"] = _peer(peer)
    figures = {f"lamina/loop {size}": times["lamina"][size] / times["hand-written loop"][size] for size in SIZES}
    figures |= {f"lamina/loop {size} all": whole["lamina"][size] / whole["hand-written loop"][size] for size in SIZES}
    fastest = min((taken[10_000], name) for name, taken in times.items() if name not in whole and 10_000 in taken)
    figures["fastest peer/lamina 10000"] = fastest[0] / times["lamina"][10_000]
    _plot(times, PLOT)
    notes = "\n".join(f"- {peer.name}: {peer.note}." for peer in peers.load() if peer.note)
    text = (
        f"Budget {BUDGET:,} tokens by the seed's estimate; CPU time of one call, and how many times the loop's that is."
        f"\nThe fastest peer at 10,000 messages is {fastest[1]}: lamina is "
        f"{ratio(figures['fastest peer/lamina 10000'])} faster.\n\n{_table(times)}\n\n![trim]({PLOT.name})\n\n"
        f"Where everything fits, so that every message is looked at:\n\n{_table(whole)}\n\n"
        f"What the peers do and cannot do, from running them:\n\n{notes}"
    )
    return Section("Fitting a history", text, figures)


def peer_seconds(peer: peers.Peer, messages: list[dict[str, Any]]) -> float:
    """CPU time of a peer's own call; converting the messages to its own form is not counted."""
    box: list[Any] = []
    return cpu_seconds(
        lambda: peer.trim(box[0], BUDGET), prepare=lambda: box.__setitem__(slice(None), [peer.prepare(messages)])
    )


def _peer(peer: peers.Peer) -> dict[int, float]:
    taken: dict[int, float] = {}
    for size in SIZES:
        say(f"trim: {peer.name}, {size:,} messages")
        whole = [{"role": "system", "content": SYSTEM}, *chat(size), {"role": "user", "content": QUESTION}]
        taken[size] = peer_seconds(peer, whole)
        if taken[size] > TOO_SLOW:
            break
    return taken


def _table(times: dict[str, dict[int, float]]) -> str:
    loop = times["hand-written loop"]
    rows = [
        [name, *(f"{duration(t[s])} ({ratio(t[s] / loop[s])})" if s in t else "over 5 s" for s in SIZES)]
        for name, t in times.items()
    ]
    return table(["", *(f"{size:,} messages" for size in SIZES)], rows)


def _plot(times: dict[str, dict[int, float]], path: Path) -> None:
    """A log-log plot that can be read on white and on black."""
    pyplot: Any = importlib.import_module("matplotlib.pyplot")  # only in the bench environment
    pyplot.rcParams.update({"text.color": "#888", "axes.labelcolor": "#888", "xtick.color": "#888", "svg.hashsalt": "l",
                            "ytick.color": "#888", "axes.edgecolor": "#888", "svg.fonttype": "none"})  # fmt: skip
    figure, axes = pyplot.subplots(figsize=(9.5, 4.5))
    for name, taken in times.items():
        own = name in ("lamina", "hand-written loop")
        colour = {"lamina": "#0a9396", "hand-written loop": "#ee9b00"}.get(name)
        axes.plot(list(taken), [t * 1e3 for t in taken.values()], "o-" if own else ".--", label=name, color=colour,
                  linewidth=2.5 if own else 1)  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="messages in the history", ylabel="CPU ms for one fit")
    axes.grid(alpha=0.2)
    axes.legend(fontsize=7, framealpha=0, labelcolor="#888", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    figure.savefig(path, transparent=True, metadata={"Date": None})
