"""`lamina rules` and `lamina config` as real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
    return subprocess.run(
        [sys.executable, "-m", "lamina", *arguments],
        capture_output=True, encoding="utf-8", cwd=workspace, env=environ(workspace, **more), check=False,
    )  # fmt: skip


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


def test_P4_hidden_characters_stop_it_until_they_are_approved(workspace: Path) -> None:
    rules = workspace / ".lamina" / "rules.md"
    rules.write_text(EVIL, encoding="utf-8")
    checked = lamina(workspace, "rules", "check")
    assert (checked.returncode, "1:6 U+202E RIGHT-TO-LEFT OVERRIDE" in checked.stdout) == (1, True)
    assert lamina(workspace, "rules").returncode == 2
    approved = lamina(workspace, "rules", "approve", ".lamina/rules.md")
    assert (approved.returncode, "approved" in approved.stdout) == (0, True)
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
    assert session.say("one")["reasons"] == ["initial"]
    assert session.say("two") == {"turn": 2, "reasons": [], "injected": [], "system": "", "user": "two"}
    edit = "from pathlib import Path; Path('.lamina/more.md').write_text('Be brief.\\n')"
    subprocess.run([sys.executable, "-c", edit], cwd=workspace, check=True)
    shown = json.loads(lamina(workspace, "rules", "--json").stdout)
    third = session.say("three")
    assert third["reasons"] == ["rules changed"]
    assert third["injected"] == [{"source": "rules", "change": "replaces", "hash": shown["rules_hash"]}]
    assert "Be brief." in third["user"]
    assert session.say("four")["injected"] == []
    assert session.close() == (0, "")


def test_I7_a_session_goes_on_in_another_process_without_a_lost_or_doubled_injection(workspace: Path) -> None:
    reasons: list[list[str]] = []
    for turn in range(18):
        session = Session(workspace, "--session", "s.json")
        reasons.append(session.say(f"turn {turn}")["reasons"])
        assert session.close() == (0, "")
    assert [number for number, reason in enumerate(reasons, 1) if reason] == [1, 16]
    shown = json.loads(lamina(workspace, "rules", "--session", "s.json", "--json").stdout)
    assert [f["last_injected"] for f in shown["files"]] == [16, 16]
    (workspace / ".lamina" / "more.md").write_text("Changed.")
    shown = json.loads(lamina(workspace, "rules", "--session", "s.json", "--json").stdout)
    assert [f["last_injected"] for f in shown["files"]] == [16, None], "what the model saw is not what is there now"


def test_I7_what_could_not_be_shown_stays_due(workspace: Path) -> None:
    follow = f"echo hi | {sys.executable} -m lamina rules follow --session s.json"
    lost = subprocess.run(["bash", "-c", f"{follow} > /dev/full"], cwd=workspace, env=environ(workspace), check=False,
                          capture_output=True)  # fmt: skip
    assert lost.returncode == 1
    again = subprocess.run(
        ["bash", "-c", follow], cwd=workspace, env=environ(workspace), capture_output=True, check=True
    )
    assert json.loads(again.stdout)["reasons"] == ["initial"]


def test_options_that_would_be_ignored_are_refused(workspace: Path) -> None:
    done = lamina(workspace, "rules", "--workspace", "elsewhere", "check")
    assert (done.returncode, "put them behind check" in done.stderr) == (2, True)


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
    assert (done.returncode, "s.json holds" in done.stderr) == (2, True)


def test_I2_unreadable_rules_end_the_session_with_a_clear_error(workspace: Path) -> None:
    session = Session(workspace)
    session.say("one")
    (workspace / ".lamina" / "more.md").unlink()
    assert session.process.stdin
    session.process.stdin.write("two\n")
    code, errors = session.close()
    assert code == 2
    assert ".lamina/rules.md:2 includes 'more.md', which is not there" in errors
    assert "Traceback" not in errors


def test_I11_config_shows_each_value_and_where_it_came_from(workspace: Path) -> None:
    (workspace / "lamina.toml").write_text("reinjection_turns = 3\n[cli]\nbudget = 500\n")
    data = json.loads(lamina(workspace, "config", "--json", LAMINA_CLI_RULES_TURNS="1").stdout)
    assert data["reinjection_turns"] == {"value": 3, "from": "lamina.toml"}
    assert data["budget"] == {"value": 500, "from": "lamina.toml"}
    assert data["rules_turns"] == {"value": 1, "from": "LAMINA_CLI_RULES_TURNS"}
    assert data["counter"] == {"value": "cjk", "from": "default"}
    assert "reinjection_turns" in lamina(workspace, "config").stdout
    for words in (["--lang", "zh", "config"], ["config", "--lang", "zh"], ["config", "--lang=zh"]):
        assert "设置" in lamina(workspace, *words).stdout
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
    assert (named.returncode, "nope.md is not there" in named.stdout) == (0, True)
    assert "'nowhere' is not there" in lamina(workspace, "rules", "--workspace", "nowhere").stderr
    (workspace / "lamina.toml").mkdir()
    folder = lamina(workspace, "config")
    assert (folder.returncode, "lamina.toml is not a regular file" in folder.stderr) == (2, True)


def test_the_command_that_is_advised_works_as_it_stands(workspace: Path) -> None:
    (workspace / ".lamina" / "rules.md").write_text(EVIL, encoding="utf-8")
    elsewhere = workspace.parent
    advice = lamina(elsewhere, "rules", "check", "--workspace", "work").stdout
    command = advice.split("lamina rules approve ")[1].split()
    assert lamina(elsewhere, "rules", "approve", *command, XDG_STATE_HOME=str(elsewhere / "s")).returncode == 0
