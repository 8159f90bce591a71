"""How often a trimmed history is one that a provider would refuse: the fuzzer's table, a small form of `make fuzz`."""

from bench import fuzz, peers
from bench.measure import Section, Verdict, low, say, versions

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
    ours = rows[0].invalid
    best = min(rows[3:], key=lambda row: row.invalid)
    verdict = Verdict("histories with tool calls that come out as a request no provider takes", f"{ours} of {OWN:,}",
                      f"{best.invalid} of {PEER:,}, {best.name}", "", "0", float(not ours))  # fmt: skip
    figures = {"lamina invalid": low(float(ours), 1.0)}
    packages = versions("splintr-rs", *peers.PACKAGES)
    return Section("Requests that a provider would refuse", text, figures, (verdict,), None, packages)
