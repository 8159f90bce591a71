"""How much of each request is the one before: what a prompt cache can serve over a long chat with memories."""

import random
from collections.abc import Callable, Iterator
from typing import Any

from bench.measure import Section, Verdict, chat, high, ratio, say, table, transcript, versions
from bench.plot import Bar, Bars, Group, Kind
from lamina import Layer, Ledger, assemble, estimate_message_tokens, explain
from lamina.types import Context

TURNS, BUDGET, TOP = 400, 8_000, 5
HEAD = [
    Layer("identity", "You are a helpful assistant who knows the person well. " * 18, "identity.md"),
    Layer("rules", "Keep the names as they are written. Answer in the language of the question. " * 11, "rules.md"),
]
GOALS = {"1–2 of 5 new": 0.90, "all 5 new": 0.80}
"""To reach on the mixed chat by the ledger as it is by default."""
OWN = "lamina ledger (default, low water 40 %)"
Shares = dict[str, dict[tuple[str, str], float]]
"""By way, then by chat and by how many memories are new."""
Chat = list[tuple[str, str]]
Change = Callable[[random.Random], int]


def memory(number: int) -> Layer:
    """A memory of about 80 tokens as it is sent, fence included."""
    text = f"Fact {number}: " + "on that day the person said what mattered to them and why it did; " * 5
    return Layer("memory", text[:271], f"memory:{number}", trust="outside", volatile=True)


def recalled(change: Change) -> Iterator[list[Layer]]:
    """The five memories of each turn; `change` says how many of them are new."""
    rng, top, latest = random.Random(1), list(range(TOP)), TOP
    while True:
        yield [memory(number) for number in top]
        new = change(rng)
        top = [*top[new:], *range(latest, latest + new)]
        latest += new


def ledger_requests(chat: Chat, change: Change, layout: Any, low_water: float | None) -> Iterator[Context]:
    ledger = Ledger(budget=BUDGET, layout=layout, low_water=low_water)
    for (question, answer), memories in zip(chat, recalled(change), strict=False):
        context = ledger.prepare([*HEAD, *memories], user=question)
        ledger.sent(context)
        ledger.append({"role": "assistant", "content": answer})
        yield context


def sliding_requests(chat: Chat, change: Change) -> Iterator[Context]:
    """Memories before the history, the history cut to fit on every turn: what most chats do."""
    history: list[dict[str, Any]] = []
    for (question, answer), memories in zip(chat, recalled(change), strict=False):
        yield assemble([*HEAD, *memories], history=history, user=question, budget=BUDGET)
        history += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def tail_requests(chat: Chat, change: Change) -> Iterator[Context]:
    """Memories right before the question and not kept; the history cut to half when it is full."""
    history: list[dict[str, Any]] = []
    for (question, answer), memories in zip(chat, recalled(change), strict=False):
        tail = {"role": "user", "content": "\n".join(layer.text for layer in memories)}
        context = assemble(HEAD, history=[*history, tail], user=question, budget=BUDGET)
        if context.receipt.dropped.count:
            context = assemble(HEAD, history=[*history, tail], user=question, budget=BUDGET / 2)
            history = history[context.receipt.dropped.count :]
            context = assemble(HEAD, history=[*history, tail], user=question, budget=BUDGET)
        yield context
        history += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def share(requests: Iterator[Context]) -> float:
    """Tokens that stand in the common prefix with the request before, over all tokens sent."""
    shared = total = 0
    before: Context | None = None
    for context in requests:
        total += context.receipt.tokens
        shared += explain(before, context).shared_tokens if before else 0
        before = context
    return shared / total


def run() -> Section:
    chats = _chats()
    changes: dict[str, Change] = {"1–2 of 5 new": lambda rng: rng.choice([1, 2]), "all 5 new": lambda _: 5}
    ways: dict[str, Callable[[Chat, Change], Iterator[Context]]] = {
        "sliding window, memories before the history": sliding_requests,
        "cut to half, memories at the tail": tail_requests,
        "lamina strict": lambda c, n: ledger_requests(c, n, "strict", None),
        OWN: lambda c, n: ledger_requests(c, n, "ledger", None),
        "lamina ledger, low water 50 %": lambda c, n: ledger_requests(c, n, "ledger", 0.5),
        "lamina ledger, low water 25 %": lambda c, n: ledger_requests(c, n, "ledger", 0.25),
    }
    shares: Shares = {}
    for name, way in ways.items():
        shares[name] = {}
        for chat_name, turns in chats.items():
            for change_name, change in changes.items():
                say(f"prefix: {name}, {chat_name}, {change_name}")
                shares[name][chat_name, change_name] = share(way(turns, change))
    layer = sum(
        estimate_message_tokens(f'<data-01234567 source="memory:1">\n{memory(n).text}\n</data-01234567>')
        for n in range(5)
    )
    missing = () if "mixed" in chats else ("transcripts_en and transcripts_zh (a made-up chat stands in for them)",)
    title = "The prompt cache: how much of a request is the one before"
    figures = {f"ledger {chat}, {change}": high(value, 1.02) for (chat, change), value in shares[OWN].items()}
    return Section(title, _text(layer, shares), figures, verdicts(shares), plot(shares), versions(), missing)


def _text(layer: int, shares: Shares) -> str:
    header = ["", *(f"{chat_name}: {change}" for chat_name, change in shares[OWN])]
    rows = [[name, *(f"{value:.3f}" for value in found.values())] for name, found in shares.items()]
    return (
        f"{TURNS} turns, budget {BUDGET:,}, five memories of {layer} tokens in all: the share of all tokens sent that "
        "stood in the common prefix with the request before.\nTo reach on the mixed chat: ledger 0.90 with one or two "
        "new, 0.80 with all five new.\nWith a low-water mark L, n new tokens a turn and a budget B the share is about "
        "1 − 2n / ((1 − L²)·B): the lower the mark, the less is sent again, and the less history is left after a cut."
        " The default of 40 % is the highest of these marks that reaches 0.90. *strict*, the default layout, is the "
        "plain order on every turn and shares what stands before the memories."
        "\n\n" + table(header, rows)
    )


def verdicts(shares: Shares) -> tuple[Verdict, ...]:
    found: list[Verdict] = []
    for change, goal in GOALS.items():
        if ("mixed", change) in shares[OWN]:
            ours = shares[OWN]["mixed", change]
            peer, name = max(
                (values["mixed", change], name) for name, values in shares.items() if not name.startswith("lamina")
            )
            measured = f"share of a request that is the one before, {change}"
            found.append(Verdict(measured, f"{ours:.3f}", f"{peer:.3f}, {name}", ratio(ours / peer), f"{goal:.2f}",
                                 ours / goal))  # fmt: skip
    return tuple(found)


def plot(shares: Shares) -> Bars:
    """Without the other low-water marks: the table has them."""
    groups: list[Group] = []
    for chat_name, change in shares[OWN]:
        bars: list[Bar] = []
        for name, values in shares.items():
            if not name.startswith("lamina ledger,"):
                kind: Kind = "own" if name.startswith("lamina") else "peer"
                goal = GOALS[change] if chat_name == "mixed" and name == OWN else None
                value = values[chat_name, change]
                bars.append(Bar(name.partition(" (")[0], value, f"{value:.3f}", kind, goal))
        groups.append(Group(f"{chat_name} chat, {change}", tuple(bars)))
    axis = "share of all tokens sent that the request before had in the same place"
    return Bars("How much of each request a prompt cache can serve", axis, tuple(groups))


def _chats() -> dict[str, Chat]:
    english, chinese = transcript("en", TURNS), transcript("zh", TURNS)
    if english is None or chinese is None:
        made = chat(2 * TURNS)
        return {"made-up": [(made[n]["content"], made[n + 1]["content"]) for n in range(0, 2 * TURNS, 2)]}
    mixed = [pair for both in zip(english[: TURNS // 2], chinese[: TURNS // 2], strict=False) for pair in both]
    return {"mixed": mixed, "English": english, "Chinese": chinese}
