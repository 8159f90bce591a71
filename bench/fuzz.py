"""The public fuzzer: random histories with tool calls through a trimmer, every result through provider grammars.

`make fuzz` runs a million through lamina and three grammars; `make fuzz PEERS=1` points it at other libraries and
prints the table. The seed is printed; `--seed` replays. A share of the histories is broken on purpose: refusing
such a one with an error is right, sending it is not.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

from bench import handwritten
from lamina import LaminaError, assemble, build_llm_messages, encode, estimate_message_tokens, validate

Message = dict[str, Any]
Chat = list[Message]
SAME = "lamina, the same histories"
SYSTEM, QUESTION = "You are a careful assistant.", "So what do we do next?"
WORDS = ["", " ", "ok", "你好", "林默走进仓库。", "look at this " * 5, "x" * 60, "\n\n", "🙂", 'a "quoted" \\ word']
NAMES = ["find", "read_file", "bash", "1st"]
ARGUMENTS = ["{}", '{"path": "a.py"}', "[]", "{broken", ""]
BUDGETS = [0, 5, 20, 40, 80, 160, 10_000]
CHUNK = 2_000


def random_history(rng: random.Random, size: int = 12, *, odd: bool = True) -> Chat:
    """A valid chat: text, calls (parallel too) with their results, reused ids; a tool result may come last.

    With `odd` also texts without words, arguments that are no JSON object, ids that not every provider takes.
    """
    chat: Chat = []
    words = WORDS if odd else [word for word in WORDS if word.strip()]
    ids_, arguments = (["c1", "c2", "c3", "调用:1"], ARGUMENTS) if odd else (["c1", "c2", "c3"], ARGUMENTS[:2])
    while len(chat) < size and rng.random() < 0.93:
        kind = rng.random()
        if kind < 0.35:
            chat.append({"role": "user", "content": rng.choice(words)})
        elif kind < 0.6:
            chat.append({"role": "assistant", "content": rng.choice(words)})
        else:
            ids = rng.sample(ids_, rng.randint(1, 3))
            calls = [
                {
                    "id": i,
                    "type": "function",
                    "function": {"name": rng.choice(NAMES), "arguments": rng.choice(arguments)},
                }
                for i in ids
            ]
            content = rng.choice([None, *words])
            chat.append({"role": "assistant", "content": content, "tool_calls": calls})
            rng.shuffle(ids)
            chat += [{"role": "tool", "tool_call_id": i, "content": rng.choice(words)} for i in ids]
    return chat


def broken(rng: random.Random, chat: Chat) -> Chat:
    """The same chat with one message lost, doubled or moved."""
    damaged = list(chat)
    if damaged:
        at = rng.randrange(len(damaged))
        message = damaged.pop(at)
        if rng.random() < 0.5:
            damaged.insert(rng.randrange(len(damaged) + 1), message)
    return damaged


Trim = Callable[[Chat, int], Chat]


def lamina_trim(chat: Chat, budget: int) -> Chat:
    """The small function of seed 001: system and question stand around the history."""
    result = build_llm_messages(
        system_prompt=SYSTEM, history=chat, current_user_message=QUESTION, max_token_budget=budget
    )
    return cast(Chat, list(result))


def naive_trim(chat: Chat, budget: int) -> Chat:
    """The planted bug: the hand-written loop, which knows nothing of pairs."""
    return handwritten.fit(SYSTEM, chat, QUESTION, budget)


def faults(chat: Chat, budget: int, trim: Trim) -> Iterator[str]:
    """What is wrong with one result; nothing when all is well."""
    try:
        messages = trim(chat, budget)
    except LaminaError:
        yield "refused"
        return
    except Exception as error:  # a peer may raise anything; that is a finding, not our failure
        yield f"raised {type(error).__name__}"
        return
    if validate({"messages": messages}, "openai"):
        yield "invalid"
    if not messages or messages[-1].get("content") != QUESTION:
        yield "question lost"
    fixed = estimate_message_tokens(SYSTEM) + estimate_message_tokens(QUESTION)
    if len(messages) > 2 and _cost(messages) > max(budget, fixed):
        yield "over budget"


def _cost(messages: Chat) -> int:
    """By the seed's estimate of the text alone, the least that any counter sees."""
    return sum(estimate_message_tokens(m["content"]) for m in messages if isinstance(m.get("content"), str))


def grammar_faults(chat: Chat, budget: int) -> Iterator[str]:
    """The full assembly, rendered for each provider: every request must be valid and tile."""
    try:
        context = assemble(history=chat, user=QUESTION, budget=budget)
        for grammar in ("openai", "anthropic", "gemini"):
            receipt = encode(context, grammar)
            if validate(json.loads(receipt.payload), grammar):
                yield f"invalid for {grammar}"
            if receipt.problems():
                yield f"does not tile for {grammar}"
    except LaminaError:
        yield "refused"


def run_chunk(seed: int, count: int, name: str = "lamina") -> Counter[str]:
    """`count` histories; how many of them had which fault.

    `lamina` gets odd histories, one in ten broken on purpose, and any budget. The others, and lamina once more under
    SAME, get plain ones and budgets that hold at least the system prompt and the question: no library is blamed for
    what it never promised to take.
    """
    rng, found, hard = random.Random(seed), Counter[str](), name == "lamina"
    trim = {"lamina": lamina_trim, SAME: lamina_trim, "naive": naive_trim}.get(name) or _peer_trim(name)
    for _ in range(count):
        chat, budget = random_history(rng, odd=hard), rng.choice(BUDGETS if hard else BUDGETS[2:])
        damaged = hard and rng.random() < 0.1
        chat = broken(rng, chat) if damaged else chat
        problems = set(faults(chat, budget, trim))
        if hard:
            problems |= set(grammar_faults(chat, budget))
        if damaged and problems == {"refused"}:
            problems = {"broken input refused"}
        found.update(problems)
    return found


def _peer_trim(name: str) -> Trim:
    from bench import peers  # noqa: PLC0415 -- only with PEERS=1: the libraries are not in the dev environment

    (peer,) = peers.load([name])

    def trim(chat: Chat, budget: int) -> Chat:
        whole = [{"role": "system", "content": SYSTEM}, *chat, {"role": "user", "content": QUESTION}]
        return peer.restore(peer.trim(peer.prepare(whole), budget))

    return trim


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    histories: int
    found: Counter[str]
    seconds: float

    @property
    def invalid(self) -> int:
        """Requests that a provider would refuse, or that are not what was asked for."""
        return sum(n for fault, n in self.found.items() if fault != "broken input refused")


def run(name: str, histories: int, seed: int, processes: int = 2) -> Row:
    """Many chunks in parallel, with a line of progress on a terminal."""
    begin, found, done = time.perf_counter(), Counter[str](), 0
    sizes = [min(CHUNK, histories - at) for at in range(0, histories, CHUNK)]
    with ProcessPoolExecutor(processes) as pool:
        work = [pool.submit(run_chunk, seed + n, size, name) for n, size in enumerate(sizes)]
        for future, size in zip(work, sizes, strict=True):
            found.update(future.result())
            done += size
            _progress(name, done, histories, begin)
    return Row(name, histories, found, time.perf_counter() - begin)


def _progress(name: str, done: int, whole: int, begin: float) -> None:
    if sys.stderr.isatty():
        left = (time.perf_counter() - begin) / done * (whole - done)
        bar = "█" * (30 * done // whole)
        end = "\n" if done == whole else ""
        print(f"\r{name:<28} {bar:<30} {done:>9,} of {whole:,}, {left:4.0f} s left", end=end, file=sys.stderr)


def table(rows: list[Row]) -> str:
    """Markdown: for each trimmer how many requests a provider would refuse, and which faults there were."""
    lines = ["| trimmer | histories | faulty | faults |", "|---|---:|---:|---|"]
    for row in rows:
        details = ", ".join(f"{fault}: {count:,}" for fault, count in row.found.most_common()) or "none"
        lines.append(f"| {row.name} | {row.histories:,} | {row.invalid:,} | {details} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Random histories through trimmers and provider grammars.")
    parser.add_argument("--histories", type=int, default=1_000_000, help="how many go through lamina")
    parser.add_argument("--seed", type=int, default=20261115, help="replay a run")
    parser.add_argument("--peers", action="store_true", help="also LangChain, LiteLLM and the others, fewer histories")
    options = parser.parse_args()
    if options.histories < 1:
        parser.error(f"{options.histories} histories are none: give N of 1 or more")
    print(f"seed {options.seed}; each history is cut to one of seven budgets", flush=True)
    rows = [run("lamina", options.histories, options.seed)]
    rows.append(run("naive", min(options.histories, 20_000), options.seed))
    if options.peers:
        from bench import peers  # noqa: PLC0415 -- see _peer_trim

        names = [peer.name for peer in peers.load() if peer.tools]
        rows += [run(name, min(options.histories, 2_000), options.seed) for name in (SAME, *names)]
    print(table(rows))
    return 1 if rows[0].invalid or not rows[1].invalid else 0


if __name__ == "__main__":
    sys.exit(main())
