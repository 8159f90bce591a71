"""What an import costs: lamina beside bare Python and the peers, each in a fresh process."""

import subprocess
import sys
import time

from bench import peers
from bench.measure import Section, Verdict, duration, low, ratio, say, table, versions
from bench.plot import Bar, Bars, Group, Kind

WAYS = {
    "bare Python": "pass",
    "import lamina": "import lamina",
    "from lamina import build_llm_messages": "from lamina import build_llm_messages",
    "from lamina import * (everything)": "from lamina import *",
    "langchain_core trim_messages": "from langchain_core.messages import trim_messages",
    "litellm": "import litellm",
    "llama_index.core": "import llama_index.core",
    "agent_framework": "import agent_framework",
    "haystack ChatMessage": "from haystack.dataclasses import ChatMessage",
    "prompt_poet": "import prompt_poet",
}
ROUNDS, GOAL = 15, 0.030
"""To reach: seconds of `import lamina` over bare Python."""
CLEAR = 1e-4
"""Less than this cannot be told from nothing."""


def run() -> Section:
    """The best wall time of several starts, without the interpreter's own."""
    taken = {name: float("inf") for name in WAYS}
    slow: set[str] = set()
    for round_ in range(ROUNDS):
        for name, code in WAYS.items():
            if name in slow and round_ > 1:
                continue
            if not round_:
                say(f"import: {name}")
            begin = time.perf_counter()
            subprocess.run(
                [sys.executable, "-c", code],
                check=True,
                capture_output=True,
                env={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            )
            taken[name] = min(taken[name], time.perf_counter() - begin)
            slow |= {name} if taken[name] > 0.5 else set()
    return section(taken)


def section(taken: dict[str, float]) -> Section:
    bare, ours = taken["bare Python"], "import lamina"
    over = {name: max(t - bare, CLEAR) for name, t in taken.items() if name != "bare Python"}
    rows = [[name, duration(t), duration(over[name]) if t > bare else "–"] for name, t in taken.items()]
    text = (
        f"Wall time of a fresh process, the best of {ROUNDS}, of two where it takes more than half a second. To reach: "
        "`import lamina` 30 ms over bare Python.\n\n"
    ) + table(["", "process", "over bare Python"], rows)
    first = "from lamina import build_llm_messages"
    peer, name = min((t, name) for name, t in over.items() if "lamina" not in name)
    verdicts = (
        Verdict("`import lamina`, over bare Python", duration(over[ours]), f"{duration(peer)}, {name}",
                ratio(peer / over[ours]), duration(GOAL), GOAL / over[ours]),
        Verdict("`build_llm_messages` ready to call", duration(over[first]), f"{duration(peer)}, {name}",
                ratio(peer / over[first])),
    )  # fmt: skip
    figures = {"import lamina/bare Python": low(taken[ours] / bare, 1.5),
               "build_llm_messages/bare Python": low(taken[first] / bare, 1.5)}  # fmt: skip
    return Section("Import", text, figures, verdicts, plot(over), versions(*peers.PACKAGES))


def plot(over: dict[str, float]) -> Bars:
    bars: list[Bar] = []
    for name, seconds in over.items():
        kind: Kind = "own" if "lamina" in name else "peer"
        bars.append(Bar(name, seconds, duration(seconds), kind, GOAL if name == "import lamina" else None))
    return Bars("What an import costs", "wall time over bare Python", (Group("", tuple(bars)),), log=True, unit="s")
