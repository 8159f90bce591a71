"""Whole contexts as readable files: a change in what the model sees shows up as a difference that people can read.

`pytest tests/test_golden.py --update-golden` rewrites them; read the difference before you commit it.
"""

from pathlib import Path
from typing import Any

import pytest

from lamina import Layer, Ledger, assemble, render
from lamina.app.config import Sources, assemble_files
from lamina.settings import Settings
from lamina.types import Context

GOLDEN = Path(__file__).parent / "golden"
MARK = "lamina"
NOVEL = Path(__file__).parents[1] / "examples" / "novel"


def shown(context: Context) -> str:
    parts = [f"=== {m['role']}\n{m['content']}" + _calls(m.get("tool_calls")) for m in context.messages]
    return "\n".join([*parts, "=== receipt", str(context.receipt), ""])


def _calls(calls: Any) -> str:
    return "".join(f"\n-> {call['function']['name']}({call['function']['arguments']})" for call in calls or ())


def ledger_turns() -> str:
    """Three turns of a ledger: an epoch, a changed rule with a new memory, a removed rule."""
    ledger = Ledger(budget=2000, layout="ledger", mark=MARK)
    base = Layer("identity", "You are kind.", "identity.md")
    memories = [Layer("memory", f"Fact {n}.", f"memory:{n}", trust="outside", volatile=True) for n in range(3)]
    turns = [
        [base, Layer("rules", "Be brief.", "rules.md"), memories[0]],
        [base, Layer("rules", "Be long.", "rules.md"), memories[0], memories[1]],
        [base, memories[2]],
    ]
    pages: list[str] = []
    for number, layers in enumerate(turns, 1):
        context = ledger.prepare(layers, user=f"Question {number}?")
        ledger.sent(context)
        ledger.append({"role": "assistant", "content": f"Answer {number}."})
        pages.append(f"##### turn {number}\n{shown(context)}")
    return "\n".join(pages)


def anthropic() -> str:
    context = assemble_files(Settings(budget=600), Sources.of_project(NOVEL), mode="plan", mark=MARK)
    lines = [f"{m['role']}: {m['content']}" for m in render(context, "anthropic")["messages"]]
    return "\n".join([*(str(block) for block in render(context, "anthropic")["system"]), *lines, ""])


PAGES = {
    "novel": lambda: shown(assemble_files(Settings(budget=800), Sources.of_project(NOVEL), mode="agent", mark=MARK)),
    "novel.zh": lambda: shown(
        assemble_files(Settings(budget=5000, prompt_lang="zh"), Sources.of_project(NOVEL), mark=MARK)
    ),
    "novel.anthropic": anthropic,
    "ledger": ledger_turns,
    "over_budget": lambda: shown(assemble([Layer("identity", "AI " * 50)], user="hello", budget=10)),
}


@pytest.mark.parametrize("name", list(PAGES))
def test_the_context_is_the_one_people_have_read(name: str, request: pytest.FixtureRequest) -> None:
    path, text = GOLDEN / f"{name}.txt", PAGES[name]()
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text
