"""The prompt cache, end to end: 100 turns of a real chat with memories that change, judged by llama.cpp's own counter.

Two ways are lamina's, the whole of it: engine, store, receipts. The third is a sliding window as LangChain cuts it.
All turns are read by the first layer of the embedded model, which has its words and its counters in a fraction of the
time; one turn of each way is then read by the whole of it.
`python -m bench.cache 20 1000` is a small form of it: 20 turns, a budget of 1,000 tokens.
"""

import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.llama import Judge, Judged, Llama, llama
from bench.measure import Figure, Section, Verdict, chat, high, low, ratio, say, table, transcript, versions
from bench.plot import Line, Lines
from bench.small import first_layers
from lamina import App, Layer
from lamina.assembly.receipt import explain, predicted_prefix
from lamina.providers.local import shipped_model
from lamina.records import Turn
from lamina.settings import load_settings
from lamina.types import Receipt, Share

TURNS, BUDGET, TOP, LAYERS, BLOCK = 100, 3_000, 5, 1, 16
"""A block is what a cache serves at least at once: one token here, 16 in vLLM, 128 at OpenAI."""
WAYS = ("sliding window (LangChain)", "lamina strict", "lamina ledger")
HEAD = (
    Layer("identity", "You are a helpful assistant who knows the person well and remembers what was said.", "identity"),
    Layer("rules", "Keep the names as they are written. Answer in the language of the question, briefly.", "rules.md"),
)
Chat = Sequence[tuple[str, str]]


def memory(number: int) -> Layer:
    text = f"Fact {number}: on day {number} the person said what mattered to them and why it did."
    return Layer("memory", text, f"memory:{number}", trust="outside", volatile=True)


def recalled() -> Iterator[list[Layer]]:
    """Five memories a turn, one or two of them new."""
    rng, first, last = random.Random(1), 0, TOP
    while True:
        yield [memory(number) for number in range(first, last)]
        new = rng.choice([1, 2])
        first, last = first + new, last + new


class Memories:
    """A source of the memories of each turn."""

    name, optional = "memory", False

    def __init__(self) -> None:
        self._turns = recalled()

    async def layers(self, turn: Turn, /) -> Sequence[Layer]:
        return next(self._turns)


class Head:
    name, optional = "identity", False

    async def layers(self, turn: Turn, /) -> Sequence[Layer]:
        return HEAD


async def lamina_way(server: Llama, turns: Chat, budget: int, layout: Any) -> list[tuple[Receipt, Judged]]:
    """The chat through an app of its own, with the model's own tokenizer as the counter."""
    judge = Judge(server, [answer for _, answer in turns])
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "instructions.md"  # the head is the same on every way
        own.write_text("Answer.", encoding="utf-8")
        settings = replace(
            load_settings(environ={}), layout=layout, budget=budget, memory=False, compaction=False, workspace="",
            instructions=str(own), reinjection_enabled=False,
        )  # fmt: skip
        async with App.open(Path(folder) / "chat.db", settings=settings, provider=judge, work=False) as app:
            shares = {"memory": Share(most=0.5)}
            app.builder.sources[:] = [Head(), Memories()]
            app.builder.settings = replace(app.builder.settings, count=server, off={}, shares=shares, budget=budget)
            session = await app.new_session("ann")
            for question, _ in turns:
                async for _ in app.run("ann", session.session_id, question):
                    pass
    return judge.seen


def sliding_way(server: Llama, turns: Chat, budget: int) -> list[tuple[Any, Judged]]:
    """Memories before the history, the history cut by `trim_messages` on every turn, as its documentation shows it."""
    library: Any = import_module("langchain_core.messages")  # of the bench's own environment

    def count(messages: Sequence[Any]) -> int:
        return sum(server(str(one.content)) + server.per_message for one in messages) + server.per_request

    judged: list[tuple[Any, Judged]] = []
    history: list[Any] = []
    for (question, answer), memories in zip(turns, recalled(), strict=False):
        system = library.SystemMessage("\n\n".join(layer.text for layer in (*HEAD, *memories)))
        trimmed = library.trim_messages(
            [system, *history, library.HumanMessage(question)], max_tokens=budget, token_counter=count, strategy="last",
            start_on="human", include_system=True,
        )  # fmt: skip
        messages = library.convert_to_openai_messages(trimmed)
        judged.append((messages, server.ask(messages)))
        history += [library.HumanMessage(question), library.AIMessage(answer)]
    return judged


def misses(seen: Sequence[tuple[Receipt, Judged]]) -> list[int]:
    """How far the receipts' prediction was from the server's counter, turn by turn from the second on."""
    return [predicted_prefix(a, b, before.prompt) - now.cached for (a, before), (b, now) in pairwise(seen)]


def run(turns: int = TURNS, budget: int = BUDGET) -> Section:
    pairs = transcript("en", turns)
    if pairs is None:
        made = chat(2 * turns)
        pairs = [(made[n]["content"], made[n + 1]["content"]) for n in range(0, 2 * turns, 2)]
    judged: dict[str, list[Judged]] = {}
    seen: dict[str, list[tuple[Receipt, Judged]]] = {}
    whole: dict[str, Judged] = {}
    place = turns * 3 // 5
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.gguf"
        first_layers(Path(shipped_model()), LAYERS, small)
        for way in WAYS:
            say(f"cache: {way}")
            with llama(str(small)) as server:
                if way == WAYS[0]:
                    slid = sliding_way(server, pairs, budget)
                    requests, judged[way] = [one for one, _ in slid], [one for _, one in slid]
                else:
                    seen[way] = asyncio.run(lamina_way(server, pairs, budget, way.split()[-1]))
                    judged[way] = [one for _, one in seen[way]]
                    requests = [json.loads(receipt.payload)["messages"] for receipt, _ in seen[way]]
            say(f"cache: {way}, turn {place} with the whole model")
            with llama() as server:
                server.ask(requests[place - 2])
                whole[way] = server.ask(requests[place - 1])
    text = _text(judged, seen, turns, budget) + _about_whole(whole, place)
    return Section(
        "The prompt cache, end to end", text, _figures(judged, seen), _verdicts(judged, seen), _plot(judged),
        versions("langchain-core", "xllamacpp"),
    )  # fmt: skip


def _about_whole(whole: dict[str, Judged], place: int) -> str:
    told = [f"{way} {one.prompt - one.cached:,} tokens in {one.seconds:.1f} s" for way, one in whole.items()]
    return (
        f"\n\nTurn {place} once more, right after the turn before it, with all layers of the model: {'; '.join(told)}."
    )


def _summed(judged: Sequence[Judged]) -> list[float]:
    total, sums = 0.0, list[float]()
    for one in judged:
        total += one.seconds
        sums.append(total)
    return sums


def _share(judged: Sequence[Judged]) -> float:
    return sum(one.cached for one in judged) / sum(one.prompt for one in judged)


def _figures(judged: dict[str, list[Judged]], seen: dict[str, list[tuple[Receipt, Judged]]]) -> dict[str, Figure]:
    read = {way: sum(one.prompt - one.cached for one in judged[way]) for way in WAYS}
    return {
        "ledger share cached": high(_share(judged[WAYS[2]]), 1.1),
        "tokens read, ledger over sliding": low(read[WAYS[2]] / read[WAYS[0]], 1.1),
        "tokens read, strict over sliding": low(read[WAYS[1]] / read[WAYS[0]], 1.1),
        "turns outside of one block": low(
            float(sum(abs(miss) > BLOCK for way in seen for miss in misses(seen[way]))), 1.0
        ),
    }


def _text(
    judged: dict[str, list[Judged]], seen: dict[str, list[tuple[Receipt, Judged]]], turns: int, budget: int
) -> str:
    rows: list[list[str]] = []
    slowest = sum(one.seconds for one in judged[WAYS[0]])
    for way in WAYS:
        seconds = sum(one.seconds for one in judged[way])
        row = [way, f"{_share(judged[way]):.0%}", f"{sum(one.prompt - one.cached for one in judged[way]):,}"]
        row += [f"{seconds:.1f} s", ratio(slowest / seconds) if seconds else "–"]
        if way in seen:
            off = [abs(miss) for miss in misses(seen[way])]
            row += [f"{sum(one <= BLOCK for one in off)} of {len(off)}", f"{max(off, default=0)} tokens"]
        rows.append(row + ["–"] * (7 - len(row)))
    epochs = [receipt.epoch_reason for receipt, _ in seen[WAYS[2]]]
    begun = 1 + sum(a.epoch != b.epoch for (a, _), (b, _) in pairwise(seen[WAYS[2]]))
    broken = [str(explain(a, b).layer) for (a, _), (b, _) in pairwise(seen[WAYS[1]])]
    header = ["", "cached", "tokens read", "prefill", "faster", f"predicted within {BLOCK}", "worst miss"]
    return (
        f"{turns} turns of a real chat, a budget of {budget:,} tokens, five memories of which one or two are new on "
        f"every turn; the first layer ({LAYERS} of 30) of SmolLM2 135M in llama.cpp's server, one thread, one token "
        "an answer (the history has the transcript's). *Cached*, *tokens read* and *prefill* are the server's own "
        "figures; *predicted* is how often "
        "the prefix that lamina's receipts foretell was within one block of the server's counter. LangChain's window "
        "is the only peer measured here: where the table says best peer, it is that one.\n"
        f"The ledger began {begun} epochs ({', '.join(dict.fromkeys(map(str, epochs)))}); strict broke in the layer "
        f"{', '.join(dict.fromkeys(broken))}.\n\n" + table(header, rows)
    )


def _plot(judged: dict[str, list[Judged]]) -> Lines:
    lines = (
        Line(way, tuple(enumerate([0.0, *_summed(judged[way])])), "own" if way.startswith("lamina") else "peer")
        for way in WAYS
    )
    return Lines("Prefill, summed up over a chat", "turn", "seconds of prefill", tuple(lines), "s", log=False)


def _verdicts(judged: dict[str, list[Judged]], seen: dict[str, list[tuple[Receipt, Judged]]]) -> tuple[Verdict, ...]:
    sliding, ledger = WAYS[0], WAYS[2]
    read = {way: sum(one.prompt - one.cached for one in judged[way]) for way in WAYS}
    cached = {way: _share(judged[way]) for way in WAYS}
    off = [abs(miss) for way in seen for miss in misses(seen[way])]
    within = sum(miss <= BLOCK for miss in off)
    return (
        Verdict("share of a chat that the server's own cache served, ledger", f"{cached[ledger]:.3f}",
                f"{cached[sliding]:.3f}, LangChain's window", ratio(cached[ledger] / cached[sliding])),
        Verdict("tokens that the server had to read, ledger", f"{read[ledger]:,}",
                f"{read[sliding]:,}, LangChain's window", ratio(read[sliding] / read[ledger])),
        Verdict(f"turns whose foretold prefix is within {BLOCK} tokens of the server's counter",
                f"{within} of {len(off)}", "", "", "all", within / len(off)),
    )  # fmt: skip


if __name__ == "__main__":
    print(run(*(int(one) for one in sys.argv[1:3])).text)
