"""What an import costs: lamina beside bare Python and the peers, each in a fresh process."""

import subprocess
import sys
import time

from bench.measure import Section, duration, say, table

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
ROUNDS = 15


def run() -> Section:
    """The best wall time of several starts, without the interpreter's own."""
    taken = {name: float("inf") for name in WAYS}
    slow: set[str] = set()
    for round_ in range(ROUNDS):
        for name, code in WAYS.items():
            if name in slow and round_ > 2:
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
    bare = taken["bare Python"]
    rows = [[name, duration(t), duration(max(t - bare, 1e-9)) if t > bare else "–"] for name, t in taken.items()]
    text = "Wall time of a fresh process, the best of several. To reach: `import lamina` 30 ms over bare Python.\n\n"
    figures = {"import lamina over bare, share of 30 ms": (taken["import lamina"] - bare) / 0.030}
    return Section("Import", text + table(["", "process", "over bare Python"], rows), figures)
