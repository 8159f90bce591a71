"""How often a trimmed history is one that a provider would refuse: the fuzzer's table, a small form of `make fuzz`."""

from bench import fuzz, peers
from bench.measure import Section, say

SEED, OWN, PEER = 20261115, 20_000, 1_000


def run() -> Section:
    rows: list[fuzz.Row] = []
    for name, count in (
        ("lamina", OWN),
        ("naive", OWN),
        (fuzz.SAME, PEER),
        *((p.name, PEER) for p in peers.load() if p.tools),
    ):
        say(f"grammar: {name}")
        rows.append(fuzz.run(name, count, SEED))
    text = (
        "Random histories with tool calls, cut to random budgets. *invalid*: OpenAI's grammar refuses the result (an "
        "orphan tool result, a call without its result). *question lost*: the user's newest message is gone.\n"
        "*naive* is the hand-written loop, the bug the fuzzer must find. lamina's results also go through the "
        "Anthropic and Gemini grammars and must tile;\none in ten of its histories is broken on purpose and must "
        "be refused or come out valid. The peers get plain histories and budgets that hold at least the system prompt "
        f"and the question. `make fuzz` runs a million.\n\n{fuzz.table(rows)}"
    )
    return Section("Requests that a provider would refuse", text, {"lamina invalid": float(rows[0].invalid)})
