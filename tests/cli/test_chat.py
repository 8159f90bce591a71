"""`lamina chat` as a real process on a real pseudo-terminal, with a script for a model."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
from typing import Any

import pytest

from lamina.cli.view import short_id
from tests.cli.process import Lamina, killed_at_once
from tests.cli.terminal import ALT_ENTER, CTRL_C, CTRL_D, ENTER, NEWLINE, TAB, pasted

HELLO: list[dict[str, Any]] = [{"text": "# Hello\n\nA **good** day."}, {"usage": [1_000, 500, 7]}]
SECOND: list[dict[str, Any]] = [{"text": "The second answer."}, {"usage": [1_100, 900, 5]}]


@pytest.fixture
def chat(lamina: Lamina) -> Lamina:
    lamina.script(HELLO, SECOND)
    return lamina


def messages(lamina: Lamina, session: str = "last") -> list[tuple[str, str, str]]:
    rows = lamina.json("sessions", "show", session)["messages"]
    return [(row["role"], row["content"], row["state"]) for row in rows]


def test_an_answer_is_streamed_as_markdown_stored_and_found_again_after_a_restart(chat: Lamina) -> None:
    with chat.terminal("chat") as terminal:
        text = terminal.ready()
        assert "lamina · scripted" in text
        text = terminal.say("Good morning", "7 out")
        assert "  Hello\n\n  A good day.\n\n  1,000 tokens in (50% cached) · 7 out" in text
        terminal.ready()
        terminal.send(CTRL_D)
        assert terminal.end() == 0
        session = chat.json("sessions")[0]
        assert f"continue with: lamina chat --resume {session['session_id'][:8]}" in terminal.text
    assert session["title"] == "Good morning"
    assert messages(chat) == [
        ("user", "Good morning", "complete"), ("assistant", "# Hello\n\nA **good** day.", "complete"),
    ]  # fmt: skip
    with chat.terminal("chat", "--resume", session["session_id"][:8]) as terminal:
        text = terminal.ready()
        assert "↻ Good morning" in text
        assert "› Good morning\n\n  Hello" in text
        terminal.say("And now?", "7 out")
    assert [row[1] for row in messages(chat)] == ["Good morning", HELLO[0]["text"], "And now?", HELLO[0]["text"]]
    assert len(chat.json("sessions")) == 1


def test_ctrl_c_interrupts_the_answer_and_keeps_it_and_the_chat_goes_on(chat: Lamina) -> None:
    chat.script([{"text": "The beginning of "}, {"fault": "stall"}], SECOND)
    with chat.terminal("chat") as terminal:
        terminal.say("Tell me a story", "The beginning of")
        terminal.send(CTRL_C)
        assert "⏸ interrupted; what arrived is saved" in terminal.wait("saved")
        assert "The second answer." in terminal.say("Go on", "5 out")
        terminal.ready()
        terminal.send(CTRL_D)
        assert terminal.end() == 0
    rows = messages(chat)
    assert rows[1] == ("assistant", "The beginning of ", "interrupted")
    assert rows[3] == ("assistant", "The second answer.", "complete")


def test_ctrl_c_before_the_first_word_interrupts_too_and_the_spinner_counts(chat: Lamina) -> None:
    chat.script([{"fault": "stall"}])
    with chat.terminal("chat") as terminal:
        terminal.say("Hello?", "thinking 1 s")
        terminal.send(CTRL_C)
        terminal.wait("interrupted")
        terminal.ready()
        assert "thinking" not in terminal.text


def test_messages_of_many_lines_by_keys_and_by_paste_are_one_message(chat: Lamina) -> None:
    with chat.terminal("chat") as terminal:
        terminal.ready()
        terminal.send(f"one{ALT_ENTER}two{NEWLINE}three")
        terminal.wait("three")
        terminal.send(ENTER)
        terminal.wait("7 out")
        terminal.ready()
        terminal.send(pasted("def f():\r    return 1\r\rf()"))
        terminal.wait("f()")
        terminal.send(ENTER)
        terminal.wait("5 out")
    said = [content for role, content, _ in messages(chat) if role == "user"]
    assert said == ["one\ntwo\nthree", "def f():\n    return 1\n\nf()"]


def test_chinese_is_typed_and_shown_in_its_width(chat: Lamina) -> None:
    answer = "你好！很高兴认识你。" * 9
    chat.script([{"text": answer, "split": [1, 2, 30]}, {"usage": [10, 0, 3]}])
    with chat.terminal("chat", "--lang", "zh", width=60) as terminal:
        assert "/help 显示命令" in terminal.ready()
        text = terminal.say("我叫小明，住在杭州", "输出 3")
        assert "› 我叫小明，住在杭州" in text
        shown = [line.strip() for line in text.split("\n") if line.strip() and set(line.strip()) <= set(answer)]
        assert "".join(shown) == answer
    assert messages(chat)[0][1] == "我叫小明，住在杭州"


def test_ctrl_c_at_the_prompt_clears_and_says_how_to_leave(chat: Lamina) -> None:
    with chat.terminal("chat") as terminal:
        terminal.ready()
        terminal.send("never mind")
        terminal.wait("never mind")
        terminal.send(CTRL_C)
        terminal.wait(lambda text: "never mind" not in text)
        terminal.send(CTRL_C)
        terminal.wait(lambda text: text.split("\n")[-1].strip() == "Ctrl-D exits")
        terminal.send(CTRL_D)
        assert terminal.end() == 0
    assert chat.json("sessions") == [], "looking in leaves nothing behind"


def test_new_sessions_resume_mode_and_an_unknown_command(chat: Lamina) -> None:
    with chat.terminal("chat", "--mode", "plan") as terminal:
        terminal.say("First words", "7 out")
        first = chat_id(terminal.ready())
        terminal.say("/new", "your next message starts a new session")
        terminal.say("Other words", "5 out")
        second = chat_id(terminal.ready())
        assert first != second
        listed = terminal.say("/sessions", "First words")
        assert listed.rindex(second) < listed.rindex(first)
        assert "↻ First words" in terminal.say(f"/resume {first[:5]}", "↻ First words")
        assert "● agent" in terminal.say("/mode agent", "● agent")
        assert terminal.ready().endswith(f" agent · scripted · {first} · /help")
        assert "next: did you mean /mode?" in terminal.say("/mood plan", "did you mean")
        assert "'fast' is not a valid value for /mode" in terminal.say("/mode fast", "choose one of")
        assert "no session 'zzzz'" in terminal.say("/resume zzzz", "/sessions lists what exists")
        assert "/etc/hosts" in terminal.say("/etc/hosts is what?", "7 out"), "a path is no command"
    rows = {row["title"]: row for row in chat.json("sessions")}
    assert (rows["First words"]["mode"], rows["Other words"]["mode"]) == ("agent", "plan")


def chat_id(text: str) -> str:
    return text.split("\n")[-1].split(" · ")[-2]


def test_why_and_context_show_what_the_model_saw_and_would_see(chat: Lamina) -> None:
    (chat.folder / "AGENTS.md").write_text("Always answer briefly.\n", encoding="utf-8")
    with chat.terminal("chat") as terminal:
        text = terminal.say("/context", "tokens")
        assert "What the model would see now" in text
        assert "rules" in text
        terminal.say("/why", "this session has no messages yet")
        terminal.say("Hello", "7 out")
        text = terminal.say("/why", "sha256")
        assert "request 1 of 1" in text
        assert "always kept" in text
        assert "What the model saw last" in terminal.say("/context", "What the model saw last")
        terminal.say("/context and the weather?", lambda text: text.count("What the model would see now") == 2)
        assert "AGENTS.md" in terminal.say("/rules", "AGENTS.md")
        assert "collected" in terminal.say("/collect", "collected")
        assert "no tool was called" in terminal.say("/tools", "no tool was called")
        terminal.say("/memory", "nothing is remembered about you (the user ann)")
        assert "scripted (scripted)" in terminal.say("/model", "window")
        assert "/collect" in terminal.say("/help", "exits.")
        terminal.say("/quit", "continue with")
        assert terminal.end() == 0
    assert chat.json("sessions", "show", "last")["messages"][1]["is_collected"]


def test_a_skill_is_chosen_by_its_name_and_speaks_from_the_next_turn_on(chat: Lamina) -> None:
    skill: list[dict[str, Any]] = [
        {"name": "letters", "content": "SKILL-TEXT", "is_skill": True, "description": "Writes letters."},
        {"name": "sums", "content": "Add.", "is_skill": True, "supported_apps": ["Excel"]},
    ]
    (chat.folder / "skill.json").write_text(json.dumps(skill), encoding="utf-8")
    with chat.terminal("chat") as terminal:
        assert "no skill" in terminal.say("/skill", "no skill").lower()
    chat("skills", "import", "skill.json")
    with chat.terminal("chat") as terminal:
        assert "sums" not in terminal.say("/skill", "○ letters"), "it is for another app"
        assert "it is for Excel: --app Excel" in terminal.say("/skill sums", "--app Excel")
        assert "● letters" in terminal.say("/skill letters", "● letters")
        assert "known: letters" in terminal.say("/skill leters", "no skill named 'leters'")
        terminal.say("Hello", "7 out")
    assert chat.json("sessions")[0]["skill"] == "letters"
    assert "SKILL-TEXT" in chat("trace", "show", "last", "--payload")


def test_compact_folds_the_older_turns_and_says_why_when_there_is_nothing_to_fold(chat: Lamina) -> None:
    long = "Please write about the harbour of the town. " * 30
    with chat.terminal("chat") as terminal:
        terminal.say(f"FIRST-REQUEST {long}", "7 out")
        assert "nothing to fold" in terminal.say("/compact", "next: go on")
        for number in range(2, 4):
            terminal.say(f"Number {number}. {long}", lambda text, n=number: text.count(" out · ") >= n)
        terminal.say("/compact", "extractive")
        terminal.say("Go on.", lambda text: text.count(" out · ") >= 4)
    sent = chat("trace", "show", "last", "--payload")
    assert "compacted" in sent
    assert "FIRST-REQUEST" in json.loads(sent)["messages"][0]["content"], "the original request is kept"
    assert len(messages(chat)) == 8, "and so is every message"


def test_another_model_answers_over_the_same_store(chat: Lamina) -> None:
    with chat.terminal("chat") as terminal:
        terminal.say("Hello", "7 out")
        first = chat_id(terminal.ready())
        terminal.say("/model other", "now answering")
        assert terminal.ready().endswith(f"{first} · /help")
        terminal.say("Again", lambda text: text.count("7 out") == 2)
    assert len(messages(chat)) == 4


def test_a_session_with_tools_is_taken_up_with_its_question_calls_and_answer(chat: Lamina) -> None:
    (chat.folder / "note.txt").write_text("\n".join(f"line {n}" for n in range(9)), encoding="utf-8")
    reads = {"call": "read_file", "arguments": {"path": "note.txt"}}
    chat.script([{"text": "I look."}, reads], [{"text": "Nine lines."}, {"usage": [1, 0, 7]}])
    chat.run("chat", "--mode", "agent", given="How long is it?\n")
    with chat.terminal("chat", "--resume", "last") as terminal:
        text = terminal.ready()
        assert "› How long is it?\n\n  I look.\n\n  ✓ read_file  note.txt\n    │" in text
        assert text.index("more lines · /tools") < text.index("  Nine lines.")
        assert "data-" not in text
        assert "line 8" not in text
        assert "line 8" in terminal.say("/tools", "line 8")


def killed_in_the_middle(chat: Lamina) -> None:
    chat.script([{"text": "The beginning of "}, {"fault": "stall"}])
    with chat.terminal("chat") as terminal:
        terminal.say("Tell me", "The beginning of")
        terminal.process.send_signal(signal.SIGKILL)
        terminal.end()


def test_a_turn_that_was_killed_still_shows_what_it_sent(chat: Lamina) -> None:
    killed_in_the_middle(chat)
    assert "interrupted: the process that was answering stopped" in chat("trace", "show", "last")
    sent = json.loads(chat("trace", "replay", "last"))
    assert sent["messages"][-1] == {"role": "user", "content": "Tell me"}
    with chat.terminal("chat", "--resume", "last") as terminal:
        terminal.ready()
        terminal.say("/why", "user")


def test_a_session_that_was_cut_off_is_taken_up_with_a_mark_and_says_where_its_request_is(chat: Lamina) -> None:
    killed_in_the_middle(chat)
    killed_at_once(chat.store)
    for command in ("show", "replay"):
        said = chat.error("trace", command, "last")
        assert re.search(r"what turn [0-9a-f]{32} sent was not kept: .* its receipt was lost with the process", said)
    session = said.split("lamina sessions show ")[1].strip()
    assert "The beginning of" in chat("sessions", "show", session), "the next step works"
    with chat.terminal("chat", "--resume", "last") as terminal:
        text = terminal.ready()
        assert "› Tell me\n\n  The beginning of\n\n  ⚠ interrupted: this is what arrived" in text
        terminal.say("/why", "next: its messages are kept")


def test_over_budget_is_said_in_the_chat_and_by_context(chat: Lamina) -> None:
    with chat.terminal("chat", environ={"LAMINA_BUDGET": "50"}) as terminal:
        terminal.say("Hello", "over budget: the fixed part alone is too large")
        text = terminal.say("/context", "over budget")
        assert "nothing was left out" not in text
        assert "next: raise LAMINA_BUDGET" in text


def test_the_welcome_says_that_there_are_no_tools_and_how_to_get_them(chat: Lamina) -> None:
    with chat.terminal("chat") as terminal:
        assert "mode ask: conversation only; /mode agent lets it use files and commands" in terminal.ready()
    with chat.terminal("chat", "--mode", "agent") as terminal:
        assert "conversation only" not in terminal.ready()
    assert "LAMINA_MODE=agent" in chat("chat", "--help")


def test_tab_completes_commands_and_session_ids(chat: Lamina) -> None:
    with chat.terminal("chat") as terminal:
        terminal.say("Words of the first", "7 out")
        name = chat_id(terminal.ready())
        terminal.send("/res")
        terminal.wait("continue another session")
        terminal.send(TAB)
        terminal.wait("› /resume")
        terminal.send(" ")
        terminal.wait(lambda text: f"{name}  Words of the first" in text.split("› /resume")[-1])


def test_the_history_is_kept_for_its_owner_alone_and_comes_back_with_the_arrow(chat: Lamina) -> None:
    with chat.terminal("chat") as terminal:
        terminal.say("Remember this line", "7 out")
        terminal.ready()
        terminal.send(CTRL_D)
        terminal.end()
    path = chat.folder / "state" / "lamina" / "history"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert json.loads(path.read_text().split("\n")[0]) == "Remember this line"
    with chat.terminal("chat") as terminal:
        terminal.ready()
        terminal.send("\x1b[A")
        terminal.wait("› Remember this line")


def test_what_is_typed_while_an_answer_runs_is_not_shown_in_it_and_waits(chat: Lamina) -> None:
    chat.script([{"text": "Slowly, "}, {"delay": 1.5}, {"text": "but surely."}, {"usage": [1, 0, 7]}], SECOND)
    with chat.terminal("chat") as terminal:
        terminal.say("Go", "Slowly")
        terminal.send("next question")
        answer = terminal.wait("7 out").partition("7 out")[0]
        assert "next" not in answer
        terminal.wait("› next question")
        terminal.send(ENTER)
        terminal.wait("The second answer.")


def test_lines_typed_before_the_first_prompt_are_sent_one_by_one(chat: Lamina) -> None:
    with chat.terminal("chat") as terminal:
        terminal.send(f"First words{ENTER}/mode plan{ENTER}Other wor")  # before Python itself has started
        terminal.wait(lambda _: b"opening" in terminal.raw)
        terminal.send(f"ds{ENTER}")
        terminal.wait("5 out")
        assert terminal.ready().split("\n")[-1].startswith(" plan · ")
    assert [row[1] for row in messages(chat) if row[0] == "user"] == ["First words", "Other words"]


def test_lines_typed_during_a_slow_command_are_sent_one_by_one(chat: Lamina) -> None:
    with chat.terminal("chat") as terminal:
        terminal.say("First words", "7 out")
        terminal.ready()
        terminal.send(f"/model other{ENTER}")
        terminal.wait(lambda _: terminal.raw.count(b"opening") > 1)
        terminal.send(f"/mode plan{ENTER}Other words{ENTER}")
        terminal.wait(lambda text: text.count("7 out") == 2)
        assert terminal.ready().split("\n")[-1].startswith(" plan · ")
    assert [row[1] for row in messages(chat) if row[0] == "user"] == ["First words", "Other words"]


REMOVES: list[dict[str, Any]] = [{"text": "I clean up."}, {"call": "bash", "arguments": {"command": "rm -r drafts"}}]


@pytest.fixture
def dangerous(chat: Lamina) -> Lamina:
    (chat.folder / "drafts").mkdir()
    chat.script(REMOVES, SECOND)
    return chat


def test_a_dangerous_call_is_shown_and_enter_means_no(dangerous: Lamina) -> None:
    with dangerous.terminal("chat", "--mode", "agent") as terminal:
        text = terminal.say("Clean up", "Run it? [y/N]")
        assert "  I clean up.\n\n  ⚠ bash wants to run:\n    │ rm -r drafts\n" in text
        terminal.send(ENTER)
        text = terminal.wait("The second answer.")
        assert "⊘ bash  rm -r drafts · refused" in text
        assert "The user declined" in terminal.say("/tools", "The user declined")
    assert (dangerous.folder / "drafts").exists()


def test_a_clear_yes_lets_it_run(dangerous: Lamina) -> None:
    with dangerous.terminal("chat", "--mode", "agent", "--lang", "zh") as terminal:
        terminal.say("Clean up", "运行吗？[y/N]")
        terminal.send(f"是{ENTER}")
        assert "✓ bash  rm -r drafts" in terminal.wait("The second answer.")
    assert not (dangerous.folder / "drafts").exists()


def test_what_was_typed_before_the_question_never_answers_it(dangerous: Lamina) -> None:
    dangerous.script([{"text": "I clean up."}, {"delay": 1.0}, *REMOVES[1:]], SECOND)
    with dangerous.terminal("chat", "--mode", "agent") as terminal:
        terminal.ready()
        terminal.send(f"Clean up{ENTER}y{ENTER}")  # the last two are read together with the message
        terminal.wait("I clean up.")
        terminal.send(f"y{ENTER}yes{ENTER}")  # and these while the answer runs
        terminal.wait("Run it? [y/N]")
        terminal.send(ENTER)
        assert "refused" in terminal.wait("The second answer.")
    assert (dangerous.folder / "drafts").exists()


def test_ctrl_c_at_the_question_is_no_and_interrupts_the_turn(dangerous: Lamina) -> None:
    with dangerous.terminal("chat", "--mode", "agent") as terminal:
        terminal.say("Clean up", "Run it? [y/N]")
        terminal.send(CTRL_C)
        terminal.wait("⏸ interrupted; what arrived is saved")
        terminal.ready()
    assert (dangerous.folder / "drafts").exists()


def test_without_a_terminal_nobody_can_be_asked_and_the_call_is_refused(dangerous: Lamina) -> None:
    done = dangerous.run("chat", "--mode", "agent", given="Clean up\n")
    assert done.returncode == 0
    assert "refused, because there is no terminal to ask on: bash rm -r drafts" in done.stderr
    done = dangerous.run("ask", "--mode", "agent", "Clean up", "--json")
    assert "refused, because there is no terminal to ask on: bash rm -r drafts" in done.stderr
    [call] = json.loads(done.stdout)["calls"]
    assert call["state"] == "refused"
    assert "it needs confirmation and there is no one to ask" in call["text"]
    assert "The user declined" not in call["text"]
    assert "  why: rm: removes files\n" in done.stderr
    session = json.loads(done.stdout)["session_id"]
    assert f"  next: lamina chat --resume {short_id(session)}, then ask for it again there\n" in done.stderr
    assert (dangerous.folder / "drafts").exists()


def test_an_error_of_the_provider_is_shown_with_what_to_do_and_the_chat_goes_on(chat: Lamina) -> None:
    chat.script([{"text": "Half of "}, {"fault": "cut"}], SECOND)
    with chat.terminal("chat") as terminal:
        text = terminal.say("Hello", "cut")
        assert "the answer was interrupted; what arrived is saved" in text
        assert "next: " in text
        terminal.say("Again", "The second answer.")


def test_who_kills_the_terminal_loses_no_question(chat: Lamina) -> None:
    killed_in_the_middle(chat)
    assert messages(chat) == [("user", "Tell me", "complete"), ("assistant", "The beginning of ", "interrupted")]


def test_who_ends_the_process_politely_finds_the_terminal_as_it_was(chat: Lamina) -> None:
    chat.script([{"text": "The beginning of "}, {"fault": "stall"}])
    with chat.terminal("chat") as terminal:
        terminal.say("Tell me", "The beginning of")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 143
        assert terminal.raw.rindex(b"\x1b[?25h") > terminal.raw.rindex(b"\x1b[?25l"), "the cursor is there again"
        assert "Traceback" not in terminal.text
    assert messages(chat)[1] == ("assistant", "The beginning of ", "interrupted")


def test_a_store_in_use_is_a_clear_error(chat: Lamina) -> None:
    with chat.terminal("chat") as terminal:
        terminal.say("Hello", "7 out")
        assert "process" in chat.error("ask", "Hello", code=4)
        with chat.terminal("chat") as second:
            assert second.end() == 4
            assert "error: " in second.text
            assert "Traceback" not in second.text


def test_bad_options_are_refused_in_two_lines(chat: Lamina) -> None:
    assert "'fast' is not a valid value for --mode" in chat.error("chat", "--mode", "fast", given="")
    assert "does not exist" in chat.error("chat", "--workspace", "nowhere", given="")
    chat("memory", "add", "I sing.")
    assert "there is no session yet" in chat.error("chat", "--resume", "last", given="Hello\n")
    assert "no session 'zzzz'" in chat.error("chat", "--resume", "zzzz", given="")


def test_without_a_terminal_each_line_is_a_message(chat: Lamina) -> None:
    done = chat.run("chat", given="First line\n\nSecond line\n")
    assert done.stdout == "# Hello\n\nA **good** day.\nThe second answer.\n"
    warning, resume = done.stderr.splitlines()
    assert warning.startswith("warning: the workspace has no rules")
    assert (done.returncode, resume.startswith("continue with: lamina chat --resume ")) == (0, True)
    assert [row[1] for row in messages(chat) if row[0] == "user"] == ["First line", "Second line"]
    done = chat.run("chat", "--resume", "last", given="Third line\n")
    assert done.returncode == 0
    assert len(messages(chat)) == 6
    chat.script([{"text": "Half"}, {"fault": "cut"}])
    done = chat.run("chat", given="One more\n")
    assert (done.returncode, done.stdout) == (1, "Half\n")
    assert "error: " in done.stderr


def test_without_any_line_it_says_so_and_ends_well(chat: Lamina) -> None:
    done = chat.run("chat", given="\n \n")
    assert (done.returncode, done.stdout, done.stderr) == (
        0, "", "no input: there is nothing to answer\n",
    )  # fmt: skip


def test_a_line_that_is_not_utf_8_is_named(chat: Lamina) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lamina", "chat"], cwd=chat.folder, env=chat.environ(), check=False,
        capture_output=True, input=b"caf\xe9\n",
    )  # fmt: skip
    assert done.returncode == 2
    assert b"line 1 is not UTF-8: byte 3 is 0xe9" in done.stderr


def test_a_terminal_that_can_do_nothing_but_lines_has_a_prompt_too(chat: Lamina) -> None:
    with chat.terminal("chat", environ={"TERM": "dumb"}) as terminal:
        terminal.wait("›")
        terminal.send(f"Hello{ENTER}")
        terminal.wait(lambda text: text.count("›") == 2)
        terminal.send(CTRL_D)
        assert terminal.end() == 0
        assert "A **good** day." in terminal.text
