"""`lamina ask` as a real process: plain text in a pipe, JSON, Markdown on a terminal, exit codes."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.cli.process import Lamina
from tests.cli.terminal import CTRL_C

ANSWER: list[dict[str, Any]] = [{"text": "Use **ledger** layout.", "split": [4, 9]}, {"usage": [900, 300, 8]}]


@pytest.fixture
def ask(lamina: Lamina) -> Lamina:
    """In a folder with rules: without any, each session begins with a warning."""
    lamina.script(ANSWER)
    (lamina.folder / "AGENTS.md").write_text("Answer briefly.\n", encoding="utf-8")
    return lamina


def said(lamina: Lamina) -> list[str]:
    return [row["content"] for row in lamina.json("sessions", "show", "last")["messages"]]


def test_the_answer_is_plain_text_in_a_pipe_and_the_question_is_words_and_input(ask: Lamina) -> None:
    assert ask("ask", "Which", "layout?") == "Use **ledger** layout.\n"
    assert said(ask) == ["Which layout?", "Use **ledger** layout."]
    ask("ask", given="Only the input\nof two lines\n")
    assert said(ask)[0] == "Only the input\nof two lines"
    ask("ask", "Explain:", given="def f(): ...\n")
    assert said(ask)[0] == "Explain:\n\n<stdin>\ndef f(): ...\n</stdin>"


def test_json_is_one_object_with_what_happened(ask: Lamina) -> None:
    found = ask.json("ask", "Which layout?")
    assert {name: found[name] for name in ("answer", "state", "reason", "usage", "error")} == {
        "answer": "Use **ledger** layout.", "state": "complete", "reason": "stop", "error": "",
        "usage": {"prompt": 900, "cached": 300, "completion": 8},
    }  # fmt: skip
    session = ask.json("sessions")[0]["session_id"]
    assert found["session_id"] == session
    assert ask.json("trace", "show", found["turn_id"])["session_id"] == session


def test_json_says_that_an_answer_was_cut_at_the_limit_of_tokens(ask: Lamina) -> None:
    ask.script([{"text": "Use the"}, {"done": "length"}])
    found = json.loads(ask.run("ask", "Which layout?", "--json").stdout)
    assert (found["answer"], found["state"], found["reason"]) == ("Use the", "complete", "length")
    ask.script([{"text": "Use the"}, {"fault": "cut"}])
    found = json.loads(ask.run("ask", "Which layout?", "--json").stdout)
    assert (found["answer"], found["state"], found["reason"]) == ("Use the", "interrupted", "")


def test_a_session_goes_on_when_it_is_named(ask: Lamina) -> None:
    ask("ask", "One")
    ask("ask", "Two", "--session", "last", "--mode", "plan")
    assert [text for text in said(ask) if not text.startswith("Use")] == ["One", "Two"]
    assert [row["mode"] for row in ask.json("sessions")] == ["plan"]
    ask("ask", "Three")
    assert len(ask.json("sessions")) == 2
    assert "no session 'abcd'" in ask.error("ask", "Four", "--session", "abcd")


def test_one_more_question_tells_the_model_nothing_twice_and_a_small_budget_is_said(ask: Lamina) -> None:
    (ask.folder / "AGENTS.md").write_text("Answer briefly.\n", encoding="utf-8")
    ask.run("ask", "One?")
    for _ in range(2):
        ask.run("ask", "--session", "last", "Another?", LAMINA_LAYOUT="ledger")
    (request,) = ask.json("trace", "show", "last")["requests"]
    assert [segment["source"] for segment in request["segments"]].count("AGENTS.md") == 1
    told = ask.run("ask", "--session", "last", "Again?", LAMINA_BUDGET="50")
    assert "over budget" in told.stderr
    assert "LAMINA_BUDGET" in told.stderr


def test_a_turn_that_fails_is_exit_1_with_the_error_and_what_came(ask: Lamina) -> None:
    ask.script([{"text": "Half an "}, {"fault": "cut"}])
    done = ask.run("ask", "Hello")
    assert (done.returncode, done.stdout) == (1, "Half an \n")
    assert done.stderr.startswith("error: ")
    assert "next: " in done.stderr
    ask.script([{"fault": "status", "code": 401}])
    done = ask.run("ask", "Hello", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["state"] == "failed"
    assert json.loads(done.stdout)["error"]


def test_without_a_provider_or_with_bad_rules_nothing_is_asked_and_the_error_says_why(ask: Lamina) -> None:
    assert "no model is set for openai" in ask.error("ask", "Hello", LAMINA_PROVIDER="openai")
    assert ask.json("sessions") == [], "nothing was begun"
    (ask.folder / "AGENTS.md").write_text("Be kind.\u202e\n", encoding="utf-8")
    done = ask.run("ask", "Hello")
    assert (done.returncode, done.stdout) == (1, "")
    assert "AGENTS.md" in done.stderr
    assert "approve" in done.stderr


def test_no_question_and_bad_bytes_are_exit_2(ask: Lamina) -> None:
    assert "there is no question" in ask.error("ask")
    assert "there is no question" in ask.error("ask", "  ", given="\n\n")
    done = subprocess.run(
        [sys.executable, "-m", "lamina", "ask"], cwd=ask.folder, env=ask.environ(), check=False, capture_output=True,
        input=b"caf\xe9",
    )  # fmt: skip
    assert (done.returncode, b"not UTF-8: byte 3 is 0xe9" in done.stderr) == (2, True)


def start(ask: Lamina, *arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "lamina", "ask", *arguments], cwd=ask.folder, env=ask.environ(),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_ctrl_c_is_exit_130_and_what_came_is_kept(ask: Lamina) -> None:
    ask.script([{"text": "The beginning of "}, {"fault": "stall"}])
    with start(ask, "Tell me") as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 100).startswith(b"The"), "it is streamed"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted; what arrived is saved" in errors
    rows = ask.json("sessions", "show", "last")["messages"]
    assert (rows[1]["content"], rows[1]["state"]) == ("The beginning of ", "interrupted")


def test_a_closed_pipe_ends_quietly(ask: Lamina) -> None:
    ask.script([{"text": "word "}, {"fault": "endless"}])
    with start(ask, "Talk without end") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 10)
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == b""
    assert ask.json("sessions", "show", "last")["messages"][1]["state"] == "interrupted"


def test_on_a_terminal_it_is_markdown_and_ctrl_c_is_130(ask: Lamina) -> None:
    with ask.terminal("ask", "Which layout?") as terminal:
        assert terminal.end() == 0
        assert "  Use ledger layout.\n\n  900 tokens in (33% cached) · 8 out" in terminal.text
    ask.script([{"text": "The beginning of "}, {"fault": "stall"}])
    with ask.terminal("ask", "Tell me") as terminal:
        terminal.wait("The beginning of")
        terminal.send(CTRL_C)
        assert terminal.end() == 130
        assert "⏸ interrupted; what arrived is saved" in terminal.text


def test_control_characters_of_a_model_are_visible_in_a_pipe_and_escaped_in_json(ask: Lamina) -> None:
    ask.script([{"text": "a\x1b]0;owned\x07b\u202ec"}])
    assert ask("ask", "Hello") == "a⟨U+001B⟩]0;owned⟨U+0007⟩b⟨U+202E⟩c\n"
    done = ask.run("ask", "Hello", "--json")
    assert "\x1b" not in done.stdout
    assert json.loads(done.stdout)["answer"] == "a\x1b]0;owned\x07b\u202ec"


def test_the_texts_of_several_steps_stand_apart_and_progress_has_lines_of_its_own(lamina: Lamina) -> None:
    (lamina.folder / "note.txt").write_text("nine\n", encoding="utf-8")
    reads = {"call": "read_file", "arguments": {"path": "note.txt"}}
    lamina.script([{"text": "I look."}, reads], [{"text": "Once more.\n"}, reads], [{"text": "It says nine."}])
    words = "I look.\n\nOnce more.\n\nIt says nine."
    assert lamina.run("ask", "--mode", "agent", "What?").stdout == f"{words}\n"
    assert json.loads(lamina.run("ask", "--mode", "agent", "What?", "--json").stdout)["answer"] == words
    both = subprocess.run(
        [sys.executable, "-m", "lamina", "ask", "--mode", "agent", "What?"], cwd=lamina.folder, env=lamina.environ(),
        check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
    ).stdout  # fmt: skip
    assert [line for line in both.split("\n") if "read_file" in line and not line.startswith("· ")] == []


def test_a_call_as_the_last_thing_leaves_no_line_behind(lamina: Lamina) -> None:
    lamina.script([{"text": "I look."}, {"call": "read_file", "arguments": {"path": "x"}}])
    done = lamina.run("ask", "--mode", "agent", "What?", LAMINA_STEPS="1")
    assert (done.returncode, done.stdout) == (1, "I look.\n")


def test_what_is_piped_in_with_a_nul_is_asked_and_names_the_session_without_it(lamina: Lamina) -> None:
    lamina.script([{"text": "Well."}])
    done = subprocess.run(
        [sys.executable, "-m", "lamina", "ask"], input=b"Hello \0there", env=lamina.environ(), capture_output=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, b"Well." in done.stdout) == (0, True), done.stderr
    assert lamina.json("sessions")[0]["title"] == "Hello there"
