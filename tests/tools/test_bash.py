"""bash: what runs, what it sees, how it ends, and what the model reads of it (S8, T3, T4)."""

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from lamina.errors import ToolError
from lamina.sandbox.process import SYSTEM_PATH, clean_environment, filter_path, shell_environment
from lamina.sandbox.sandbox import Sandbox
from lamina.tools.bash import clean_output, shell_tools
from lamina.tools.registry import ToolRegistry
from lamina.types import Decision, Outcome, ToolCallEvent


def always(command: str) -> Decision:
    return Decision("safe")


def event(command: str, **more: Any) -> ToolCallEvent:
    return ToolCallEvent("1", "bash", json.dumps({"command": command, **more}))


def bash(root: Path, command: str, seconds: float | None = None, **options: Any) -> Outcome:
    registry = ToolRegistry(*shell_tools(root, always, **options))
    return asyncio.run(registry.call(event(command, **({} if seconds is None else {"seconds": seconds}))))


def test_a_command_runs_in_the_root_with_both_streams_in_order(tmp_path: Path) -> None:
    outcome = bash(tmp_path, "pwd; echo 一 >&2; echo 二; cat; echo end")
    assert outcome == Outcome(f"{tmp_path.resolve()}\n一\n二\nend\n")


def test_a_code_other_than_0_is_done_and_said(tmp_path: Path) -> None:
    assert bash(tmp_path, "grep asphalt /dev/null") == Outcome("[exit code 1]\n[no output]")
    assert bash(tmp_path, "echo no >&2; exit 7") == Outcome("[exit code 7]\nno\n")
    assert bash(tmp_path, "kill -9 $$").text.startswith("[ended by signal 9 (SIGKILL)]")
    assert bash(tmp_path, "nonesuch").text.startswith("[exit code 127]")
    assert bash(tmp_path, "true") == Outcome("[no output]")


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text\x1b]8;;http://x\x1b\\link", "textlink"),
        ("50%\r100%\r\n", "50%\n100%\n"),
        ("a\x00b\x07c\x1bdone", "a\\x00b\\x07cone"),
        ("\x9b1mx", "x"),
        ("\x1b]never ends\nsecond line", "never ends\nsecond line"),
        ("tab\tstays 行 \u200f", "tab\tstays 行 \u200f"),
    ],
)
def test_what_is_meant_for_a_terminal_does_not_reach_the_model(output: str, text: str) -> None:
    assert clean_output(output) == text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", clean_output(output))


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    assert bash(tmp_path, "printf 'a\\377b'").text == "a\ufffdb"


def test_output_is_bounded_and_the_rest_is_counted(tmp_path: Path) -> None:
    outcome = bash(tmp_path, "yes 行 | head -c 4000000", max_bytes=1_001)
    head, _, text = outcome.text.partition("\n")
    assert head == "[only the beginning of the output was kept; 3998999 bytes more were dropped]"
    assert len(text.encode()) <= 1_001
    assert "\ufffd" not in text
    assert outcome.state == "done"


def test_a_command_that_only_writes_takes_no_memory(tmp_path: Path) -> None:
    me = psutil.Process()
    before = me.memory_info().rss
    bash(tmp_path, "head -c 300000000 /dev/zero", max_bytes=1_000)
    assert me.memory_info().rss - before < 50_000_000


def family(mark: str) -> list[str]:
    """Processes whose command line holds the mark."""
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
            if any(mark in word for word in line) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(line))
        except psutil.Error:
            continue
    return found


BACKGROUND = [
    "sleep {n} & echo started",
    "sleep {n} >/dev/null 2>&1 & disown; echo started",
    "nohup sleep {n} >/dev/null 2>&1 & echo started",
    "(trap '' TERM HUP; sleep {n}) & echo started",
    "setsid sleep {n} & sleep 0.05; echo started",
    "(setsid setsid sleep {n} >/dev/null 2>&1 &); sleep 0.05; echo started",
]


@pytest.mark.parametrize("command", BACKGROUND)
def test_S8_nothing_stays_in_the_background(tmp_path: Path, command: str) -> None:
    number = f"31{os.getpid()}"
    assert bash(tmp_path, command.format(n=number)) == Outcome("started\n")
    assert family(number) == []


@pytest.mark.parametrize("command", [*BACKGROUND, "sleep {n}", "trap '' TERM; sleep {n}; sleep {n}", "yes {n}"])
def test_S8_the_whole_group_ends_when_its_time_is_up(tmp_path: Path, command: str) -> None:
    number = f"32{os.getpid()}"
    outcome = bash(tmp_path, f"echo early; {command.format(n=number)}; wait; sleep {number}", seconds=0.3, max_bytes=99)
    assert outcome.state == "failed"
    assert "stopped after 0.3 seconds" in outcome.text
    assert "early" in outcome.text
    assert family(number) == []


async def test_S8_a_cancelled_command_leaves_nothing(tmp_path: Path) -> None:
    number = f"33{os.getpid()}"

    async def yes(call: ToolCallEvent, decision: Decision) -> bool:
        return True

    registry = ToolRegistry(*shell_tools(tmp_path, lambda command: Decision("confirm")))
    os.mkfifo(tmp_path / "ready")
    handles = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    command = f"setsid sleep {number} & sleep {number} & echo > ready; sleep {number}"
    task = asyncio.ensure_future(registry.call(event(command), ask=yes))
    await asyncio.to_thread((tmp_path / "ready").read_text)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert family(number) == []
    assert handles == (len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0)


async def test_commands_side_by_side_do_not_end_each_other(tmp_path: Path) -> None:
    registry = ToolRegistry(*shell_tools(tmp_path, always))
    commands = [event(f"sleep 0.0{n}; echo {n}") for n in range(9)]
    outcomes = await asyncio.gather(*map(registry.call, commands))
    assert [outcome.text for outcome in outcomes] == [f"{n}\n" for n in range(9)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"command": " \n"}, "the command is empty"),
        ({"command": "a\0b"}, "NUL"),
        ({"command": "x" * 200_000}, "longer than"),
        ({"command": "ls", "seconds": 0}, "out of bounds"),
        ({"command": "ls", "seconds": 100_000}, "at most 600"),
    ],
)
def test_what_is_no_command_is_refused_in_words(tmp_path: Path, arguments: dict[str, Any], words: str) -> None:
    registry = ToolRegistry(*shell_tools(tmp_path, always))
    outcome = asyncio.run(registry.call(ToolCallEvent("1", "bash", json.dumps(arguments))))
    assert outcome.state == "failed"
    assert words in outcome.text


def test_a_root_that_is_gone_is_a_failure(tmp_path: Path) -> None:
    outcome = bash(tmp_path / "gone", "ls")
    assert outcome.state == "failed"
    assert "could not be started" in outcome.text


def test_the_gate_decides_and_planning_only_looks(tmp_path: Path) -> None:
    def gate(command: str) -> Decision:
        return Decision("safe") if command == "ls" else Decision("confirm", "it may change files")

    for effects, mode, state in ((True, "agent", "refused"), (False, "plan", "blocked")):
        registry = ToolRegistry(*shell_tools(tmp_path, gate, effects=effects))
        assert [tool.name for tool in registry.for_mode(mode)] == ["bash"]
        assert len(registry.for_mode("ask")) == 0
        assert asyncio.run(registry.call(event("ls"))).state == "done"
        outcome = asyncio.run(registry.call(event("touch x")))
        assert outcome.state == state
        assert "it may change files" in outcome.text
    assert os.listdir(tmp_path) == []


def test_planning_asks_nobody(tmp_path: Path) -> None:
    async def yes(call: ToolCallEvent, decision: Decision) -> bool:
        raise AssertionError("nobody is asked")

    registry = ToolRegistry(*shell_tools(tmp_path, lambda c: Decision("confirm"), effects=False))
    assert asyncio.run(registry.call(event("touch x"), ask=yes)).state == "blocked"


def test_the_question_says_that_there_is_no_network(tmp_path: Path) -> None:
    reasons: list[str] = []

    async def no(call: ToolCallEvent, decision: Decision) -> bool:
        reasons.append(decision.explain())
        return False

    def asked(command: str, **options: Any) -> bool:
        registry = ToolRegistry(
            *shell_tools(tmp_path, lambda c: Decision("confirm", "why"), sandbox=Sandbox(**options))
        )
        asyncio.run(registry.call(event(command), ask=no))
        return reasons[-1] != "why" and "LAMINA_BASH_NETWORK=on" in reasons[-1]

    for command in (
        "curl -s https://example.com",
        "cd x && sudo wget y",
        "A=1 git push",
        "echo $(dig x)",
        "npm ci | cat",
    ):
        assert asked(command), command
        assert not asked(command, network=True)
        assert not asked(command, use="off")
    for command in ("echo curl", "git commit -m 'push'", "npm test", "grep -r wget .", "make", "rm -rf curl"):
        assert not asked(command), command


def test_impossible_limits_are_refused(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [{"seconds": 0}, {"seconds": 700}, {"max_bytes": 0}, {"max_seconds": float("inf")}]
    for options in wrong:
        with pytest.raises(ToolError, match="bash cannot have"):
            shell_tools(tmp_path, always, **options)


def test_the_environment_is_made_of_a_list(tmp_path: Path) -> None:
    ours = {
        "PATH": f"{tmp_path}/bin:.:/usr/bin::/bin", "HOME": "/h", "LANG": "zh_CN.UTF-8", "LC_TIME": "C", "LC_KEY": "s",
        "LC_ALL": "zh_CN.GBK", "LOCPATH": "/x", "ENV": "/x", "SHELLOPTS": "xtrace", "GIT_CONFIG_GLOBAL": "/x",
        "AWS_SECRET": "s", "BASH_ENV": "/x", "LD_PRELOAD": "/x", "TERM": "xterm",
    }  # fmt: skip
    clean = clean_environment(str(tmp_path), ours)
    assert {name: clean[name] for name in ("PATH", "HOME", "LANG", "LC_ALL", "TERM")} == {
        "PATH": "/usr/bin:/bin", "HOME": "/h", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TERM": "dumb",
    }  # fmt: skip
    assert set(clean) == {
        "PATH", "HOME", "LANG", "LC_ALL", "TERM", "USER", "GIT_TERMINAL_PROMPT", "GIT_CONFIG_COUNT",
        "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0",
    }  # fmt: skip
    shell = shell_environment(str(tmp_path), ours | {"GIT_AUTHOR_NAME": "Ann"})
    assert {name for name in shell if not name.startswith(("GIT_", "PIP_", "NPM_"))} == {
        "PATH", "HOME", "LANG", "LC_ALL", "TERM", "USER", "PAGER", "PYTHONDONTWRITEBYTECODE",
    }  # fmt: skip
    assert shell["GIT_AUTHOR_NAME"] == "Ann"
    assert shell["GIT_CONFIG_GLOBAL"] == "/dev/null/none"
    assert filter_path("/", "/usr/bin") == SYSTEM_PATH


def test_git_writes_no_file_in_place_of_a_device(tmp_path: Path) -> None:
    """As root, `git config --global` with /dev/null as the file puts a file where the device was; this is a copy."""
    shell = shell_environment(str(tmp_path), {})
    places = [shell["GIT_CONFIG_GLOBAL"], *(shell[name] for name in shell if name.startswith("GIT_CONFIG_VALUE_"))]
    assert not any(os.path.exists(place) for place in places if place.startswith("/"))
    for place in (each for each in places if each.startswith("/")):
        with pytest.raises(OSError, match="Not a directory"):
            Path(place).write_text("x")
    commands = "git init -q . && git status && git config --global user.name x; git config --global --edit; git log"
    text = subprocess.run(["bash", "-c", commands], cwd=tmp_path, env=shell, capture_output=True, text=True)
    assert "could not lock config file" in text.stderr
    assert "No commits yet" in text.stdout


def test_a_folder_that_plays_a_git_repository_runs_nothing(tmp_path: Path) -> None:
    """With file tools alone a model could write one whose configuration names a command; plain git runs it."""
    for name in ("objects", "refs"):
        (tmp_path / name).mkdir()
    (tmp_path / "HEAD").write_text("ref: refs/heads/main\n")
    core = f"repositoryformatversion = 0\n\tbare = false\n\tworktree = {tmp_path}\n"
    config = f'[core]\n\t{core}\tfsmonitor = "touch {tmp_path}/ran; false"\n'
    (tmp_path / "config").write_text(config)
    bash(tmp_path, "git status")
    assert not (tmp_path / "ran").exists()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(["git", "status"], cwd=tmp_path, env=environ, capture_output=True)
    assert (tmp_path / "ran").exists(), "the trap must work"
