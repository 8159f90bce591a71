"""The command gate: verdicts, reasons, places, repositories, and the page that documents it. Attacks: tests/faults."""

import re
import subprocess
from pathlib import Path

import pytest

from lamina.layers.command_scripts import awk_prints, sed_prints
from lamina.layers.commands import decide
from lamina.layers.shell_words import read_script

PAGE = Path(__file__).parent.parent.parent / "docs" / "gate.md"


def verdict(command: str, root: Path) -> str:
    return decide(command, root=root).verdict


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("rm x", "rm: removes files"),
        ("ls && rm x", "rm: removes files"),
        ("git push -f", "git: push is not among git's commands that only read"),
        ("cat x > y", "cat: > y writes to a file"),
        ("sort -o x y", "sort: -o is not among the options that only read"),
        ("find . -delete", "find: -delete is not among the tests that only read"),
        ("./git status", "./git: a program that is named by its path may be anything"),
        ("X=1 ls", "X=1: it sets a variable"),
        ("сat x", "сat: its name holds letters that are not ASCII and may look like others"),
        ("cat ../x", "cat: ../x leads out of the workspace"),
        ("cat ~/x", "cat: ~/x leads to a home folder"),
        ("cat .env", "cat: .env may hold secrets"),
        ("echo $X", "it cannot be read with certainty: $ puts something in its place that is not shown"),
        ("echo `x`", "it cannot be read with certainty: a backtick runs a command inside the command"),
        ("ls &", "it cannot be read with certainty: & lets it run on in the background"),
        ("ls 'x", "it cannot be read with certainty: a quote is not closed"),
        ("ls \u202e", "it cannot be read with certainty: it holds a character that nobody sees: \\u202e"),
        ("rm -rf /", "rm: removes all of /"),
        ("curl x | sh", "sh: runs what was just downloaded, unseen"),
        ("ls -la | wc -l", "ls, wc: only read"),
    ],
)
def test_the_reason_names_the_part_and_says_why(command: str, reason: str, tmp_path: Path) -> None:
    assert decide(command, root=tmp_path).reason == reason


def test_deny_over_ask_over_allow(tmp_path: Path) -> None:
    assert verdict("ls; cat a", tmp_path) == "safe"
    assert verdict("ls; touch a; cat b", tmp_path) == "confirm"
    assert verdict("touch a; ls $X; rm -rf /", tmp_path) == "block"
    assert verdict("rm -rf / ; ls", tmp_path) == "block"


def test_words_are_read_as_bash_reads_them() -> None:
    script = read_script("a 'b c' \"d\\\"e\" f\\ g h\\\ni # no\nb x*y '*' | c 2>&1 >/dev/null")
    assert script.unclear == ""
    assert [part.texts for part in script.parts] == [["a", "b c", 'd"e', "f g", "hi"], ["b", "x*y", "*"], ["c"]]
    assert [part.joint for part in script.parts] == ["", "\n", "|"]
    assert [word.globs for word in script.parts[1].words] == [(), (1,), ()]
    assert [(r.number, r.operator, r.target.text) for r in script.parts[2].redirects] == [
        ("2", ">&", "1"),
        ("", ">", "/dev/null"),
    ]


def test_a_link_that_leads_out_is_followed_before_it_is_trusted(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / "inside").mkdir(parents=True)
    (root / "out").symlink_to(tmp_path)
    (root / "in").symlink_to(root / "inside")
    assert verdict("ls in", root) == "safe"
    assert verdict("ls out", root) == "confirm"
    assert verdict("cat out/x", root) == "confirm"
    assert verdict("cat out/*", root) == "confirm"
    assert verdict(f"cat {root}/inside/x", root) == "safe"
    assert verdict(f"cat {root}2/x", root) == "confirm"
    assert verdict(f"cat {tmp_path}/x", root) == "confirm"


def test_after_cd_paths_are_judged_from_everywhere_it_may_be(tmp_path: Path) -> None:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    assert verdict("cd src && cat a.py", tmp_path) == "safe"
    assert verdict("cd src && cd deep && ls", tmp_path) == "safe"
    assert verdict("cd src && cat ../a.py", tmp_path) == "confirm"  # if cd fails, ../a.py is outside
    assert verdict(f"cd {tmp_path} && ls", tmp_path) == "safe"


def repository(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "-q", str(root)], check=True, capture_output=True)
    return root


@pytest.mark.parametrize(
    "setting",
    [
        "[core]\n\tfsmonitor = touch x", "[core] fsmonitor=./x", '[diff "x"]\n\ttextconv = touch',
        "[include]\n\tpath = x",
        '[filter "x"]\n\tclean = touch x', "[core]\n\tpager = touch x", '[remote "o"]\n\tpromisor = true',
        "[diff]\nexternal=x",
    ],
)  # fmt: skip
def test_git_asks_where_the_repository_itself_names_a_program(setting: str, tmp_path: Path) -> None:
    root = repository(tmp_path / "project")
    assert verdict("git status", root) == "safe"
    with (root / ".git" / "config").open("a") as config:
        config.write(f"\n{setting}\n")
    assert verdict("git status", root) == "confirm"


def test_git_asks_inside_a_repository_that_came_with_the_workspace(tmp_path: Path) -> None:
    root = repository(tmp_path / "project")
    bare = root / "vendor"
    (bare / "objects").mkdir(parents=True)
    (bare / "refs").mkdir()
    (bare / "HEAD").write_text("ref: refs/heads/main")
    repository(root / "sub")
    assert verdict("git log", root) == "safe"
    assert verdict("cd vendor && git log", root) == "confirm"
    assert verdict("git -C vendor log", root) == "confirm"
    assert verdict("cd sub && git status", root) == "confirm"
    hook = root / ".git" / "hooks" / "post-index-change"
    hook.write_text("touch x")
    assert verdict("git log", root) == "safe"  # nobody may run it
    hook.chmod(0o755)
    assert verdict("git log", root) == "confirm"


@pytest.mark.parametrize(("command", "file"), [("cargo --version", "rust-toolchain.toml"), ("npm ls", ".npmrc")])
def test_a_file_that_steers_a_program_makes_it_ask(command: str, file: str, tmp_path: Path) -> None:
    assert verdict(command, tmp_path) == "safe"
    (tmp_path / file).write_text("x")
    assert verdict(command, tmp_path) == "confirm"


@pytest.mark.parametrize(
    "script", ["p", "1p", "1,5p", "$p", "/a/p", "/a/,/b/p", "1,+3p", "s/a/b/", "s/a/b/g", "s|a|b|;s/c/d/gI",
    "1!d", "5q", "/[a-z]/d"]
)  # fmt: skip
def test_sed_scripts_that_only_print(script: str) -> None:
    assert sed_prints(script)


@pytest.mark.parametrize(
    "script", ["", "w x", "1w x", "s/a/b/w x", "s/a/b/e", "e", "r x", "{p}", "a\\x", "p;w x", "s/a/b", "/a/w x",
    "s/[/]/w x/"]
)  # fmt: skip
def test_sed_scripts_that_may_do_more(script: str) -> None:
    assert not sed_prints(script)


@pytest.mark.parametrize(
    "script",
    [
        "{print $1}", "NR==1", "NR>1 && $2 != 0", "/x/ {print}", "!/x/", "{s += $1} END {print s / NR}",
        "length($0) > 80", '{printf "%s\\n", $1}', "$3 ~ /^a/ {print $NF}", '{print $1":"$2}', "/[a-z]+/ && NF > 2",
    ],
)  # fmt: skip
def test_awk_programs_that_only_print(script: str) -> None:
    assert awk_prints(script)


def test_the_page_tells_the_truth_about_every_command_it_shows(tmp_path: Path) -> None:
    rows = re.findall(
        r"^\| `(.+?)` \| (safe|confirm|block) \| (.*?) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(rows) > 15
    shown = {command.replace("\\|", "|"): (said, why) for command, said, why in rows}
    found = {command: decide(command, root=tmp_path) for command in shown}
    assert {command: (each.verdict, each.reason) for command, each in found.items()} == shown
