"""The chat on the embedded model, through the real process in a pseudo-terminal: streamed, stored, remembered, resumed.

What the model says is its own affair; that it is shown, kept and sent on is what is looked at.
"""

import json
import subprocess
import sys

from tests.cli.process import Lamina
from tests.cli.terminal import CTRL_D, Terminal

SHORT = {"LAMINA_MAX_TOKENS": "24", "LAMINA_EMBEDDER": "embedded", "LAMINA_MEMORY_DEADLINE": "60000"}


def leave(terminal: Terminal) -> None:
    terminal.ready()
    terminal.send(CTRL_D)
    assert terminal.end() == 0


def test_a_real_chat_is_streamed_stored_remembered_and_resumed_after_a_restart(lamina: Lamina) -> None:
    with lamina.terminal("chat", environ=SHORT, fresh=True) as terminal:
        assert "SmolLM2" in terminal.ready()
        terminal.say("My name is Mara and I live in Lisbon. What is a good breakfast?", " out · ")
        frames = terminal.raw.count(b"\x1b[?2026h")
        assert frames > 3, "it came piece by piece"
        for number in range(1, 60):  # the worker learns in the background
            terminal.say("/memory", lambda shown, n=number: len(shown.split("› /memory")) > n)
            if "Lisbon" in terminal.ready().split("› /memory")[-1]:
                break
        leave(terminal)
    session = lamina.json("sessions")[0]
    rows = lamina.json("sessions", "show", session["session_id"])["messages"]
    assert [(row["role"], row["state"]) for row in rows] == [("user", "complete"), ("assistant", "complete")]
    answer = rows[1]["content"]
    assert answer.strip()
    memories = lamina.json("memory")
    assert any("Lisbon" in memory["text"] and memory["session_id"] == session["session_id"] for memory in memories)

    with lamina.terminal("chat", "--resume", session["session_id"][:8], environ=SHORT, fresh=True) as terminal:
        assert "↻ My name is Mara" in terminal.ready()
        terminal.say("And for dinner?", " out · ")
        leave(terminal)
    sent = payload(lamina)
    said = [message["content"] for message in sent["messages"][1:]]
    assert said[:-1] == ["My name is Mara and I live in Lisbon. What is a good breakfast?", answer]
    assert said[-1].endswith("And for dinner?"), "a resumed session has its rules again in front of the words"
    assert lamina.json("trace", "show", "last")["usage"]["completion"] > 0

    with lamina.terminal("chat", environ=SHORT, fresh=True) as terminal:
        terminal.say("Where do I live?", " out · ")
        leave(terminal)
    sent = payload(lamina)
    assert "Lisbon" in sent["messages"][0]["content"], "another session knows it from memory"
    assert len(sent["messages"]) == 2


def payload(lamina: Lamina) -> dict[str, list[dict[str, str]]]:
    done = subprocess.run(
        [sys.executable, "-m", "lamina", "trace", "show", "last", "--payload"], cwd=lamina.folder,
        env=lamina.environ(), check=True, capture_output=True,
    )  # fmt: skip
    return json.loads(done.stdout)
