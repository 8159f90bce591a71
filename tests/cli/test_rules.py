"""`lamina rules` and `lamina config` as real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.forks import afresh, ran

EVIL = "evil \u202e x"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "work" / ".lamina").mkdir(parents=True)
    (tmp_path / "work" / ".lamina" / "rules.md").write_text("规则：简洁\n@more.md\n", encoding="utf-8")
    (tmp_path / "work" / ".lamina" / "more.md").write_text("Be kind.\n", encoding="utf-8")
    return tmp_path / "work"


def environ(workspace: Path, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LAMINA_", "LC_", "LANG"))}
    return {**clean, "XDG_STATE_HOME": str(workspace.parent / "state"), "COLUMNS": "120", **more}


def lamina(workspace: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return ran(arguments, workspace, environ(workspace, **more), afresh(more))


def test_it_shows_the_files_in_force(workspace: Path) -> None:
    text = lamina(workspace, "rules").stdout
    assert "lamina/instructions.md" in text
    assert ".lamina/rules.md" in text
    data = json.loads(lamina(workspace, "rules", "--json").stdout)
    assert [(f["kind"], f["path"], f["includes"]) for f in data["files"]] == [
        ("instructions", "lamina/instructions.md", []),
        ("rules", ".lamina/rules.md", [".lamina/more.md"]),
    ]
    assert all(f["tokens"] > 0 and len(f["hash"]) == 64 for f in data["files"])


def test_I12_nested_files_count_where_there_are_no_rules(workspace: Path) -> None:
    (workspace / ".lamina" / "rules.md").unlink()
    (workspace / "a" / "b").mkdir(parents=True)
    for folder, text in ((workspace, "root"), (workspace / "a", "nearer")):
        (folder / "AGENTS.md").write_text(text)
    data = json.loads(lamina(workspace, "rules", "--folder", "a/b", "--json").stdout)
    assert [f["path"] for f in data["files"][1:]] == ["AGENTS.md", "a/AGENTS.md"]
    assert "no rules" not in lamina(workspace, "rules", "check").stdout
    for folder in (workspace, workspace / "a"):
        (folder / "AGENTS.md").unlink()
    assert "the workspace has no rules" in lamina(workspace, "rules", "check").stdout


def test_fault_P4_hidden_characters_stop_it_until_they_are_approved(workspace: Path) -> None:
    rules = workspace / ".lamina" / "rules.md"
    rules.write_text(EVIL, encoding="utf-8")
    checked = lamina(workspace, "rules", "check")
    assert (checked.returncode, "1:6 U+202E RIGHT-TO-LEFT OVERRIDE" in checked.stdout) == (1, True)
    assert lamina(workspace, "rules").returncode == 2
    approved = lamina(workspace, "rules", "approve", ".lamina/rules.md")
    assert (approved.returncode, "approved" in approved.stdout) == (0, True)
    assert "OVERRIDE: it changes the order in which text is shown\n" in approved.stdout
    chinese = lamina(workspace, "rules", "approve", ".lamina/rules.md", LAMINA_LANG="zh").stdout
    assert "OVERRIDE：它会改变文字的显示顺序\n" in chinese
    assert lamina(workspace, "rules", "check").returncode == 0
    rules.write_text(EVIL + "!", encoding="utf-8")
    assert lamina(workspace, "rules", "check").returncode == 1


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside.md", ".lamina/nothing.md"])
def test_approving_what_is_not_in_the_workspace_is_refused(workspace: Path, name: str) -> None:
    done = lamina(workspace, "rules", "approve", name)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


class Session:
    """A running `lamina rules follow`: a line in, a line out."""

    def __init__(self, workspace: Path, *options: str) -> None:
        command = [sys.executable, "-m", "lamina", "rules", "follow", *options]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
            cwd=workspace, env=environ(workspace),
        )  # fmt: skip

    def say(self, words: str) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> tuple[int, str]:
        _, errors = self.process.communicate()
        return self.process.returncode, errors


def test_I6_rules_edited_by_another_process_are_in_the_next_turn(workspace: Path) -> None:
    session = Session(workspace)
    assert session.say("one")["triggers"] == ["initial"]
    assert session.say("two") == {"turn": 2, "triggers": [], "injected": [], "line": "", "system": "", "user": "two"}
    edit = "from pathlib import Path; Path('.lamina/more.md').write_text('Be brief.\\n')"
    subprocess.run([sys.executable, "-c", edit], cwd=workspace, check=True)
    shown = json.loads(lamina(workspace, "rules", "--json").stdout)
    third = session.say("three")
    assert third["triggers"] == ["change"]
    assert third["injected"] == [{"source": "rules", "change": "replaces", "hash": shown["rules_hash"]}]
    assert "Be brief." in third["user"]
    assert session.say("four")["injected"] == []
    assert session.close() == (0, "")


def test_I7_a_session_goes_on_in_another_process_without_a_lost_or_doubled_injection(workspace: Path) -> None:
    triggers: list[list[str]] = []
    (workspace / "lamina.toml").write_text("reinjection_turns = 5\n", encoding="utf-8")
    for turn in range(7):
        session = Session(workspace, "--session", "s.json")
        triggers.append(session.say(f"turn {turn}")["triggers"])
        assert session.close() == (0, "")
    assert [number for number, reason in enumerate(triggers, 1) if reason] == [1, 6]
    shown = json.loads(lamina(workspace, "rules", "--session", "s.json", "--json").stdout)
    assert [f["last_injected"] for f in shown["files"]] == [6, 6]
    (workspace / ".lamina" / "more.md").write_text("Changed.")
    shown = json.loads(lamina(workspace, "rules", "--session", "s.json", "--json").stdout)
    assert [(f["last_injected"], f["changed_since"]) for f in shown["files"]] == [(6, False), (6, True)]


def test_I7_what_could_not_be_shown_stays_due(workspace: Path) -> None:
    follow = f"echo hi | {sys.executable} -m lamina rules follow --session s.json"
    lost = subprocess.run(["bash", "-c", f"{follow} > /dev/full"], cwd=workspace, env=environ(workspace), check=False,
                          capture_output=True)  # fmt: skip
    assert lost.returncode == 1
    again = subprocess.run(
        ["bash", "-c", follow], cwd=workspace, env=environ(workspace), capture_output=True, check=True
    )
    assert json.loads(again.stdout)["triggers"] == ["initial"]


def test_options_that_would_be_ignored_are_refused(workspace: Path) -> None:
    done = lamina(workspace, "rules", "--workspace", "elsewhere", "check")
    assert (done.returncode, "put them after check" in done.stderr) == (2, True)


def test_I12_the_nearest_file_has_the_last_word_also_as_a_link(workspace: Path) -> None:
    (workspace / ".lamina" / "rules.md").unlink()
    (workspace / "a" / "b").mkdir(parents=True)
    (workspace / "AGENTS.md").write_text("tabs")
    (workspace / "a" / "AGENTS.md").write_text("spaces")
    (workspace / "a" / "b" / "AGENTS.md").symlink_to("../../AGENTS.md")
    data = json.loads(lamina(workspace, "rules", "--folder", "a/b", "--json").stdout)
    assert [f["path"] for f in data["files"][1:]] == ["a/AGENTS.md", "a/b/AGENTS.md"]


def test_a_session_file_that_is_none_is_refused(workspace: Path) -> None:
    (workspace / "s.json").write_text('{"turn": "x"}')
    done = lamina(workspace, "rules", "--session", "s.json")
    assert (done.returncode, "s.json contains" in done.stderr) == (2, True)


def test_I2_unreadable_rules_are_a_clear_error_and_nothing_is_sent(workspace: Path) -> None:
    session = Session(workspace)
    session.say("one")
    (workspace / ".lamina" / "more.md").unlink()
    refused = session.say("two")
    assert ".lamina/rules.md:2 includes 'more.md', which does not exist" in refused["error"]
    assert "user" not in refused
    code, errors = session.close()
    assert (code, "Traceback" in errors) == (1, False)


def test_I11_config_shows_each_value_and_where_it_came_from(workspace: Path) -> None:
    (workspace / "lamina.toml").write_text("reinjection_turns = 3\n[cli]\nbudget = 500\n")
    data = json.loads(lamina(workspace, "config", "--json", LAMINA_CLI_RULES_TURNS="1").stdout)
    assert data["reinjection_turns"] == {"value": 3, "from": "lamina.toml"}
    assert data["budget"] == {"value": 500, "from": "lamina.toml [cli]"}
    assert json.loads(lamina(workspace, "config", "--json", "--channel", "telegram").stdout)["budget"]["value"] == 8000
    slip = lamina(workspace, "config", "--channel", "telegraph")
    assert (slip.returncode, "known: cli, telegram" in slip.stderr) == (2, True)
    assert data["rules_turns"] == {"value": 1, "from": "LAMINA_CLI_RULES_TURNS"}
    assert data["counter"] == {"value": "cjk", "from": "default"}
    assert "reinjection_turns" in lamina(workspace, "config").stdout
    for words in (["--lang", "zh", "config"], ["config", "--lang", "zh"], ["config", "--lang=zh"]):
        assert "设置" in lamina(workspace, *words).stdout
    told = json.loads(lamina(workspace, "config", "--json", "--lang", "zh").stdout)["lang"]
    assert told == {"value": "zh", "from": "--lang"}, "L7: an option wins, and is shown"
    bad = lamina(workspace, "config", LAMINA_REINJECTION_TURNS="often")
    assert (bad.returncode, "LAMINA_REINJECTION_TURNS" in bad.stderr) == (2, True)


def test_odd_input_and_files_are_said_clearly(workspace: Path) -> None:
    bad = subprocess.run(
        [sys.executable, "-m", "lamina", "rules", "follow"], input=b"a\r\n\nb\xff\n", capture_output=True,
        cwd=workspace, env=environ(workspace), check=False,
    )  # fmt: skip
    assert [json.loads(line)["user"] for line in bad.stdout.splitlines()] == ["a"]
    assert (bad.returncode, b"line 3 is not UTF-8: byte 1 is 0xff" in bad.stderr) == (2, True)
    named = lamina(workspace, "rules", "check", LAMINA_RULES="nope.md")
    assert (named.returncode, "nope.md does not exist" in named.stdout) == (0, True)
    assert "'nowhere' does not exist" in lamina(workspace, "rules", "--workspace", "nowhere").stderr
    (workspace / "lamina.toml").mkdir()
    folder = lamina(workspace, "config")
    assert (folder.returncode, "lamina.toml is not a regular file" in folder.stderr) == (2, True)


def test_the_command_that_is_advised_works_as_it_stands(workspace: Path) -> None:
    (workspace / ".lamina" / "rules.md").write_text(EVIL, encoding="utf-8")
    elsewhere = workspace.parent
    advice = lamina(elsewhere, "rules", "check", "--workspace", "work").stdout
    command = advice.split("lamina rules approve ")[1].splitlines()[0].split()
    assert lamina(elsewhere, "rules", "approve", *command, XDG_STATE_HOME=str(elsewhere / "s")).returncode == 0
    chinese = lamina(elsewhere, "rules", "check", "--workspace", "work", LAMINA_LANG="zh").stdout
    assert "请删除它们，或按原样批准：lamina rules approve --workspace work .lamina/rules.md\n" in chinese
    for inside in (lamina(workspace, "rules").stderr, lamina(workspace, "rules", "check").stdout):
        assert "approve them as they are: lamina rules approve .lamina/rules.md\n" in inside


def test_a_check_names_every_fault_and_what_may_be_a_slip(workspace: Path) -> None:
    rules = "@gone.md\n@bad.md\n  @more.md\n@my notes.md\n```\n @code.md\n```\nwrite to @ann or me@b.org.\n"
    (workspace / ".lamina" / "rules.md").write_text(rules)
    (workspace / ".lamina" / "bad.md").write_text(EVIL, encoding="utf-8")
    checked = lamina(workspace, "rules", "check", "--json")
    data = json.loads(checked.stdout)
    assert checked.returncode == 1
    assert [fault["path"] for fault in data["faults"]] == [".lamina/gone.md", ".lamina/bad.md"]
    assert data["notes"] == [
        ".lamina/rules.md:3 is text, not an include: '@more.md'",
        ".lamina/rules.md:4 is text, not an include: '@my notes.md'",
    ]
    text = lamina(workspace, "rules", "check").stdout
    assert all(word in text for word in ("gone.md", "bad.md", "faults: 2", "@my notes.md"))


def test_a_check_counts_the_files_that_it_lists_as_json(workspace: Path) -> None:
    (workspace / ".lamina" / "rules.md").write_text("@one.md\n@one.md\n")
    (workspace / ".lamina" / "one.md").write_text("Be brief.\n")
    files = json.loads(lamina(workspace, "rules", "check", "--json").stdout)["files"]
    assert {".lamina/rules.md", ".lamina/one.md"} < set(files)
    assert f"files: {len(set(files))}, no faults" in lamina(workspace, "rules", "check").stdout


def test_a_check_looks_into_every_folder_when_asked_to(workspace: Path) -> None:
    (workspace / "a" / "b").mkdir(parents=True)
    (workspace / "a" / "b" / "AGENTS.md").write_text(EVIL, encoding="utf-8")
    (workspace / ".git").mkdir()
    (workspace / ".git" / "AGENTS.md").write_text(EVIL, encoding="utf-8")
    assert lamina(workspace, "rules", "check").returncode == 0
    found = json.loads(lamina(workspace, "rules", "check", "--all", "--json").stdout)
    assert [fault["path"] for fault in found["faults"]] == ["a/b/AGENTS.md"]
    assert ".lamina/rules.md" in found["files"]


def test_fault_P4_instructions_elsewhere_can_be_approved_and_nothing_else_out_there(workspace: Path) -> None:
    outside = workspace.parent / "SYSTEM_PROMPT.md"
    outside.write_text(EVIL, encoding="utf-8")
    named = {"LAMINA_INSTRUCTIONS": str(outside)}
    assert lamina(workspace, "rules", "approve", str(outside)).returncode == 2
    assert lamina(workspace, "rules", **named).returncode == 2
    assert lamina(workspace, "rules", "approve", str(outside), **named).returncode == 0
    assert lamina(workspace, "rules", **named).returncode == 0


def test_an_approval_that_cannot_count_or_is_not_needed_says_so(workspace: Path) -> None:
    clean = lamina(workspace, "rules", "approve", ".lamina/more.md")
    assert (clean.returncode, "needs no approval" in clean.stdout) == (0, True)
    assert not (workspace.parent / "state" / "lamina" / "approved.json").exists()
    (workspace / ".lamina" / "rules.md").write_text(EVIL, encoding="utf-8")
    inside = lamina(workspace, "rules", "approve", ".lamina/rules.md", LAMINA_APPROVALS=str(workspace / "ok.json"))
    assert (inside.returncode, "is in the workspace" in inside.stderr) == (2, True)


def test_two_who_approve_at_once_both_count(workspace: Path) -> None:
    names = [f"{number}.md" for number in range(8)]
    for name in names:
        (workspace / name).write_text(EVIL + name, encoding="utf-8")
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "lamina", "rules", "approve", name],
            cwd=workspace, env=environ(workspace), stdout=subprocess.DEVNULL,
        )
        for name in names
    ]  # fmt: skip
    assert [process.wait() for process in running] == [0] * 8
    assert len(json.loads((workspace.parent / "state" / "lamina" / "approved.json").read_text())) == 8


def test_I10_the_line_and_the_counters_are_shown(workspace: Path) -> None:
    session = Session(workspace, "--session", "s.json")
    line = session.say("one")["line"]
    assert line.startswith("[SystemPrompt] initial instructions:")
    session.close()
    again = Session(workspace, "--session", "s.json", "--resume")
    assert again.say("two")["triggers"] == ["resume"]
    (workspace / ".lamina" / "rules.md").write_bytes(b"\xff")
    refused = again.say("three")
    assert "is not UTF-8" in refused["error"]
    again.say("three")
    again.say("three")
    (workspace / ".lamina" / "rules.md").write_text("Be kind.")
    assert again.say("three")["triggers"] == ["change"]
    code, errors = again.close()
    assert code == 1
    assert "[SystemPrompt] 3 failed reads in a row, check .lamina/rules.md" in errors
    shown = json.loads(lamina(workspace, "rules", "--session", "s.json", "--json").stdout)
    assert shown["counters"] == {
        "first": 1, "repeated": 2, "failed": 3, "stale_rule_turns": 0, "failed_in_a_row": 0,
    }  # fmt: skip
    assert "1 first, 2 repeated, 3 failed" in lamina(workspace, "rules", "--session", "s.json").stdout


def test_a_session_that_cannot_be_kept_is_said_before_the_first_send(workspace: Path) -> None:
    for name in ("no/such/folder.json", "x" * 300):
        session = Session(workspace, "--session", name)
        code, errors = session.close()
        assert code == 2
        assert "cannot be written" in errors
        assert "the output" not in errors


def test_a_folder_that_is_gone_is_named(workspace: Path) -> None:
    gone = workspace / "gone"
    gone.mkdir()
    script = "import os, sys; os.rmdir(os.getcwd()); from lamina.cli import main; sys.exit(main(['rules']))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=gone, env=environ(workspace), capture_output=True, text=True, check=False
    )
    assert (done.returncode, "the current folder no longer exists" in done.stderr) == (2, True)


def test_I13_the_context_command_asks_the_same_manager(workspace: Path) -> None:
    done = json.loads(lamina(workspace, "context", "hello", "--workspace", ".", "--json").stdout)
    layers = [(s["layer"], s["source"]) for s in done["receipt"]["segments"] if s["layer"] in ("instructions", "rules")]
    assert layers == [("instructions", "lamina/instructions.md"), ("rules", ".lamina/rules.md")]
    shown = json.loads(lamina(workspace, "rules", "--json").stdout)
    hashes = [s["hash"] for s in done["receipt"]["segments"] if s["layer"] == "rules"]
    assert hashes == [shown["files"][1]["hash"]]
    both = lamina(workspace, "context", "hello", "--workspace", ".", "--rules", ".lamina/more.md")
    assert (both.returncode, "two sets of rules" in both.stderr) == (2, True)


def test_I2_rules_that_a_setting_names_and_that_are_not_there_are_said_everywhere(workspace: Path) -> None:
    for command in (["rules"], ["rules", "follow"]):
        done = lamina(workspace, *command, LAMINA_RULES="typo.md")
        assert (done.returncode, "typo.md does not exist, but a setting names it" in done.stderr) == (0, True)
    assert "typo.md does not exist" in lamina(workspace, "rules", "check", LAMINA_RULES="typo.md").stdout


def test_a_working_folder_that_is_not_there_is_a_fault(workspace: Path) -> None:
    (workspace / ".lamina" / "rules.md").unlink()
    checked = lamina(workspace, "rules", "check", "--folder", "nowhere")
    assert (checked.returncode, "'nowhere' does not exist" in checked.stdout) == (1, True)


def test_files_that_a_rules_file_puts_out_of_force_are_named(workspace: Path) -> None:
    (workspace / "AGENTS.md").write_text("other rules")
    checked = lamina(workspace, "rules", "check").stdout
    assert "AGENTS.md is not in force, because .lamina/rules.md exists" in checked


def test_when_each_was_injected_is_shown_also_when_it_changed_since(workspace: Path) -> None:
    session = Session(workspace, "--session", "s.json")
    session.say("one")
    session.close()
    (workspace / ".lamina" / "more.md").write_text("changed")
    rows = json.loads(lamina(workspace, "rules", "--session", "s.json", "--json").stdout)["files"]
    assert [(row["last_injected"], row["changed_since"]) for row in rows] == [(1, False), (1, True)]
    assert "turn 1, changed since" in lamina(workspace, "rules", "--session", "s.json").stdout
    other = lamina(workspace.parent, "rules", "--session", str(workspace / "s.json"))
    assert "this session belongs to" in other.stdout
    gone = lamina(workspace, "rules", "--session", "nosuch.json")
    assert (gone.returncode, "does not exist" in gone.stderr) == (2, True)
    lost = lamina(workspace, "rules", "follow", "--resume")
    assert (lost.returncode, "no session to resume" in lost.stderr) == (2, True)


def test_two_processes_do_not_move_one_session(workspace: Path) -> None:
    first = Session(workspace, "--session", "s.json")
    first.say("one")
    second = lamina(workspace, "rules", "follow", "--session", "s.json")
    assert (second.returncode, "in use by another process" in second.stderr) == (2, True)
    assert first.close()[0] == 0


def test_the_table_fits_a_narrow_terminal(workspace: Path) -> None:
    text = lamina(workspace, "rules", COLUMNS="80").stdout
    assert ".lamina/rules.md" in text
    assert "└ .lamina/more.md" in text


def test_nested_rules_are_in_the_receipt_of_a_context(workspace: Path) -> None:
    (workspace / ".lamina" / "rules.md").unlink()
    (workspace / "a").mkdir()
    (workspace / "AGENTS.md").write_text("root")
    (workspace / "a" / "AGENTS.md").write_text("nearer")
    done = lamina(workspace, "context", "hi", "--workspace", ".", "--folder", "a", "--json")
    sources = [s["source"] for s in json.loads(done.stdout)["receipt"]["segments"] if s["layer"] == "rules"]
    assert sources == ["AGENTS.md", "a/AGENTS.md"]


def test_I7_without_an_output_nothing_is_sent_and_no_state_moves(workspace: Path) -> None:
    follow = f"echo hi | {sys.executable} -m lamina rules follow --session s.json"
    lost = subprocess.run(["bash", "-c", f"{follow} >&-"], cwd=workspace, env=environ(workspace), check=False,
                          capture_output=True, text=True)  # fmt: skip
    assert (lost.returncode, "no standard output" in lost.stderr) == (2, True)
    session = Session(workspace, "--session", "s.json")
    assert session.say("hi")["triggers"] == ["initial"]
    session.close()


def test_fault_P4_files_of_a_context_are_checked_for_hidden_characters_too(workspace: Path) -> None:
    tags = "".join(chr(0xE0000 + ord(c)) for c in "leak")
    (workspace / "rules.md").write_text(f"Be kind.{tags}", encoding="utf-8")
    for arguments in (["--rules", "rules.md"], ["--project", "."], ["--identity", "rules.md"]):
        done = lamina(workspace, "context", "hi", *arguments)
        assert (done.returncode, "cannot be seen" in done.stderr) == (2, True)
    advised = done.stderr.split("lamina rules approve ")[1].split()
    assert lamina(workspace, "rules", "approve", *advised).returncode == 0
    assert lamina(workspace, "context", "hi", "--rules", "rules.md").returncode == 0


def test_fault_P6_instructions_of_a_repository_never_lead_out_of_it(workspace: Path) -> None:
    (workspace / "sub").mkdir()
    (workspace / "pkg").mkdir()
    (workspace / "sub" / "i.md").write_text("honest")
    (workspace.parent / "secret").mkdir()
    (workspace.parent / "secret" / "i.md").write_text("SECRET")
    (workspace / "lamina.toml").write_text('instructions = "sub/i.md"')
    session = Session(workspace, "--workspace", "pkg")
    assert "honest" in session.say("one")["system"]
    (workspace / "sub").rename(workspace / "old")
    (workspace / "sub").symlink_to(workspace.parent / "secret")
    assert "leads out of its folder" in session.say("two")["error"]
    session.close()


def test_a_check_is_quick_and_complete_on_hostile_trees(workspace: Path) -> None:
    (workspace / ".lamina" / "rules.md").write_text("@a " + "." * 250_000 + "@\n")
    assert lamina(workspace, "rules", "check").returncode == 0
    deep = workspace
    for _ in range(1_200):
        deep = deep / "d"
        os.mkdir(deep)
    (workspace / ".github").mkdir()
    (workspace / ".github" / "AGENTS.md").write_text(EVIL, encoding="utf-8")
    checked = lamina(workspace, "rules", "check", "--all", "--json")
    subprocess.run(["rm", "-rf", str(workspace / "d")], check=True)  # too deep for Python's own way to remove it
    faults = [fault["fault"] for fault in json.loads(checked.stdout)["faults"]]
    assert "'.github/AGENTS.md' contains characters that cannot be seen" in faults[0]
    assert [fault for fault in faults[1:] if "takes too many steps to reach" not in fault] == []


def test_a_check_finds_what_only_all_files_together_break(workspace: Path) -> None:
    (workspace / ".lamina" / "rules.md").unlink()
    (workspace / "a").mkdir()
    for folder in (workspace, workspace / "a"):
        (folder / "AGENTS.md").write_text("x" * 200_000)
    checked = lamina(workspace, "rules", "check", "--folder", "a")
    assert (checked.returncode, "for all files together" in checked.stdout) == (1, True)


def test_a_key_is_never_shown(workspace: Path) -> None:
    for options in (["--json"], []):
        done = lamina(workspace, "config", *options, LAMINA_EMBEDDER_KEY="sk-canary")
        assert (done.returncode, "sk-canary" in done.stdout + done.stderr) == (0, False)
