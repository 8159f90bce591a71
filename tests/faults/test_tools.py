"""P6, T3, T4, T7 for tools: paths that lead out, our secrets, commands as they were approved, killed writers."""

import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lamina.text.unicode import visible
from lamina.tools.bash import shell_tools
from lamina.tools.files import file_tools
from lamina.tools.registry import ToolRegistry
from lamina.types import Decision, Outcome, ToolCallEvent
from tests.faults.load import Load
from tests.faults.writer import SIZE, version

ROOT = Path(__file__).parent.parent.parent
CANARY, INSIDE = "canary-7f3a outside", "inside\n"


# T7: kill -9 while a file is written


def one_kill(root: Path, seed: int, planted: str) -> tuple[int, bytes]:
    """Let a child write for a random while, then kill it; which version it had begun, and what lies there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.writer", str(root), planted], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    threading.Timer(random.Random(seed).uniform(0.0, 0.1), process.kill).start()
    lines = (first + process.stdout.read()).split()
    process.wait()
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL
    return int(lines[-1]), (root / "文/file.txt").read_bytes()


def is_whole(begun: int, found: bytes, before: bytes) -> bool:
    return found in (before, version(begun), version(begun - 1)) and (found == before or len(found) == len(version(1)))


def prepared(tmp_path: Path) -> Path:
    (tmp_path / "文").mkdir(exist_ok=True)
    (tmp_path / "文/file.txt").write_bytes(version(0))
    return tmp_path


def test_T7_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path: Path, load: Load) -> None:
    seed = load.seed()
    root, moved = prepared(tmp_path), 0
    for n in load.rounds(20, "kills"):
        before = (root / "文/file.txt").read_bytes()
        begun, found = one_kill(root, seed + n, "")
        assert is_whole(begun, found, before), (begun, len(found), found[:9], found[-9:])
        moved += found != before
    assert moved, "no write came to its end"
    rest = [name for name in os.listdir(root / "文") if name != "file.txt"]
    assert all(re.fullmatch(r"\.lamina-[0-9a-f]{16}\.tmp", name) for name in rest)


@pytest.mark.planted("a file that is written in place")
def test_T7_a_planted_write_in_place_is_found(tmp_path: Path) -> None:
    root = prepared(tmp_path)
    for n in range(100):
        before = (root / "文/file.txt").read_bytes()
        begun, found = one_kill(root, n, "in place")
        if not is_whole(begun, found, before):
            return
        assert len(found) <= SIZE
    pytest.fail("the planted bug was not found")


# P6: nothing is read or written outside of the root


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work, outside = tmp_path / "work", tmp_path / "outside"
    for folder in (work / "sub/deep", outside):
        folder.mkdir(parents=True)
    (work / "good.txt").write_text(INSIDE)
    (outside / "file.txt").write_text(CANARY)
    return work


def use(root: Path, name: str, **arguments: Any) -> Outcome:
    async def yes(call: ToolCallEvent, decision: Decision) -> bool:
        return True

    event = ToolCallEvent("1", name, json.dumps(arguments))
    return asyncio.run(ToolRegistry(*file_tools(root)).call(event, ask=yes))


def hostile_paths(work: Path) -> list[str]:
    """Links, ways up, pipes, sockets, devices and odd names; none of them leads to a file of the root."""
    outside = work.parent / "outside"
    links = {
        "link": "../outside/file.txt", "absolute": str(outside / "file.txt"), "folder": "../outside", "loop": "loop",
        "nowhere": "../outside/new.txt", "null": "/dev/null", "self": "/proc/self/environ", "up": "..", "top": "/",
        "chain": "link", "deep": "sub/deep/../../../outside/file.txt", "dot": ".", "tty": "/dev/tty",
    }  # fmt: skip
    for name, target in links.items():
        (work / name).symlink_to(target)
    os.mkfifo(work / "fifo")
    (work / "sub/fifo").symlink_to("../fifo")
    return [
        *links, "folder/file.txt", "folder/new.txt", "up/outside/file.txt", "top/etc/passwd", "fifo", "sub/fifo",
        "../outside/file.txt", "sub/../../outside/file.txt", "sub/deep/../../../outside/file.txt", "..", "../", "/",
        str(outside / "file.txt"), f"{work}/../outside/file.txt", "/etc/passwd", "/proc/self/environ", "/dev/zero",
        "/dev/stdin", "~/.bashrc", "~", "", ".", "./", "sub", "sub/", "sub/..", "x\0y", "good.txt/x", "//",
        "good.txt/../link",
        "a" * 300, "a/" * 3_000 + "x", "\u202e", "fifo/x", "link/x", "dot/folder/file.txt", "dot/link", "self/x",
        "C:\\x", "..\\outside\\file.txt", "%2e%2e/outside/file.txt", "file:///etc/passwd",
        "sub\n/../../outside/file.txt",
    ]  # fmt: skip


def everything(folder: Path) -> dict[str, Any]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def naive_read(root: Path, path: str) -> str:
    return (root / path).read_text()


def test_P6_no_hostile_path_reads_outside_of_the_root(work: Path, load: Load) -> None:
    for path in hostile_paths(work):
        began = time.monotonic()
        outcome = use(work, "read_file", path=path)
        assert outcome.state == "failed", (path, outcome.text[:80])
        assert CANARY not in outcome.text
        assert "root:" not in outcome.text
        assert "Next:" in outcome.text, outcome.text
        assert time.monotonic() - began < 5, path
        load.tried(1, "paths")
    assert use(work, "read_file", path="good.txt").text == INSIDE


def test_P6_no_hostile_path_writes_outside_of_the_root(work: Path, load: Load) -> None:
    paths = hostile_paths(work)
    before = everything(work.parent / "outside")
    for path in paths:
        for name, more in (
            ("write_file", {"content": "x"}),
            ("edit_file", {"old_string": "canary", "new_string": "x"}),
        ):
            use(work, name, path=path, **more)
            assert everything(work.parent / "outside") == before, (name, path)
            load.tried(1, "paths")
    assert sorted(os.listdir(work.parent)) == ["outside", "work"]
    assert (work / "good.txt").read_text() == INSIDE
    assert os.path.islink(work / "link")


@pytest.mark.planted("a path that is joined to the root")
def test_P6_the_hostile_paths_find_a_naive_tool(work: Path) -> None:
    """The planted bug: a path joined to the root, as most tools do it."""
    caught: list[str] = []
    for path in hostile_paths(work):
        if any(word in path for word in ("fifo", "tty", "zero", "stdin", "/proc")):
            continue  # it would hang
        try:
            if CANARY in naive_read(work, path):
                caught.append(path)
        except (OSError, ValueError):
            continue
    assert len(caught) > 10


def swap_file(work: Path) -> Iterator[None]:
    """The file by turns a link to one outside, and a file."""
    while True:
        (work / "draft").symlink_to(work.parent / "outside/file.txt")
        os.replace(work / "draft", work / "sub/file.txt")
        yield
        (work / "draft").write_text(INSIDE)
        os.replace(work / "draft", work / "sub/file.txt")
        yield


def swap_folder(work: Path) -> Iterator[None]:
    """Its folder by turns a link to a folder outside, and a folder."""
    while True:
        with suppress(OSError):  # the other side may have made the folder anew meanwhile: next time
            (work / "sub").rename(work / "away")
            (work / "sub").symlink_to("../outside")
        yield
        with suppress(OSError):
            (work / "sub").unlink()
        if (work / "sub").is_dir() and not (work / "sub").is_symlink():
            shutil.rmtree(work / "sub", ignore_errors=True)
        with suppress(OSError):
            (work / "away").rename(work / "sub")
        yield


def raced(work: Path, swap: Callable[[Path], Iterator[None]], act: Callable[[], str], times: Iterable[int]) -> set[str]:
    """What comes of an act while somebody else swaps the way to its file, and what lies outside after each."""
    stop, seen = threading.Event(), set[str]()

    def swapping() -> None:
        for turn, _ in enumerate(swap(work)):
            if stop.is_set() and turn % 2:
                return
            time.sleep(0.001 if turn % 7 == 0 else 0)  # out of step, so that every state is met

    thread = threading.Thread(target=swapping)
    thread.start()
    try:
        for _ in times:
            try:
                seen.add(act())
            except OSError as error:
                seen.add(type(error).__name__)
            if sorted(everything(work.parent / "outside").items()) != [("file.txt", CANARY.encode())]:
                seen.add("written outside")
            if seen & {CANARY, "written outside"}:
                break
    finally:
        stop.set()
        thread.join()
    return seen


@pytest.mark.planted("a reader that checks and then opens")
def test_P6_a_race_of_swaps_never_leads_out_when_reading(work: Path, load: Load) -> None:
    for swap in (swap_file, swap_folder):
        (work / "sub/file.txt").write_text(INSIDE)

        def read() -> str:
            outcome = use(work, "read_file", path="sub/file.txt")
            return outcome.text if outcome.state == "done" else outcome.state

        assert raced(work, swap, read, load.rounds(300, "races")) <= {INSIDE, "failed"}
        assert CANARY in raced(work, swap, lambda: naive_read(work, "sub/file.txt"), range(20_000)), "the planted bug"


@pytest.mark.planted("a writer that follows links")
def test_P6_a_race_of_swaps_never_leads_out_when_writing(work: Path, load: Load) -> None:
    for swap in (swap_file, swap_folder):
        (work / "sub/file.txt").write_text(INSIDE)
        states = raced(
            work,
            swap,
            lambda: use(work, "write_file", path="sub/file.txt", content=INSIDE).state,
            load.rounds(300, "races"),
        )
        assert states <= {"done", "failed"}
        assert "done" in states

        def naive() -> str:
            (work / "sub/file.txt").write_text(INSIDE)
            return "done"

        assert "written outside" in raced(work, swap, naive, range(20_000)), "the planted bug must be seen"
        (work.parent / "outside/file.txt").write_text(CANARY)


# T4: none of our secrets in the environment of a child


SECRET = "canary-secret-51c9"
SHOW = "env; cat /proc/self/environ; set; export -p; declare -x"
CHILD = """
import asyncio, os, sys
from pathlib import Path
from lamina.tools.registry import ToolRegistry
from lamina.tools.bash import shell_tools
from lamina.types import Decision, ToolCallEvent
import lamina.sandbox.process as children
import json
if sys.argv[3] == "planted":
    clean = children.subprocess.Popen
    children.subprocess.Popen = lambda *a, **k: clean(*a, **{**k, "env": None})
registry = ToolRegistry(*shell_tools(Path(sys.argv[1]), lambda c: Decision("safe"), environ=os.environ))
outcome = asyncio.run(registry.call(ToolCallEvent("1", "bash", json.dumps({"command": sys.argv[2]}))))
print(outcome.text)
"""


def seen_by_a_command(root: Path, planted: str) -> str:
    """What a command sees that a process with secrets in its environment, and open files, has started."""
    names = ("OPENAI_API_KEY", "LAMINA_KEY", "AWS_SECRET_ACCESS_KEY", "LC_SECRET", "BASH_ENV", "BASH_FUNC_x%%", "ENV")
    environ = {**os.environ, **dict.fromkeys(names, SECRET)}
    (root / "held.txt").write_text(SECRET)
    with (root / "held.txt").open() as held:
        ran = subprocess.run(
            [sys.executable, "-c", CHILD, str(root), f"{SHOW}; cat /proc/self/fd/{held.fileno()} 2>&1", planted],
            env=environ, capture_output=True, text=True, pass_fds=[held.fileno()],
        )  # fmt: skip
    assert not ran.returncode, ran.stderr
    assert "PATH=" in ran.stdout
    return ran.stdout


def test_T4_a_command_sees_no_secret_of_ours(tmp_path: Path) -> None:
    assert SECRET not in seen_by_a_command(tmp_path, "")


@pytest.mark.planted("our environment handed on")
def test_T4_a_planted_environment_is_found(tmp_path: Path) -> None:
    assert SECRET in seen_by_a_command(tmp_path, "planted")


# T3: the approved bytes are the executed bytes


def approved_and_executed(root: Path, command: str, changed: Callable[[str], str] = str) -> tuple[str, str]:
    """What somebody was shown, and what bash was given. `changed` is the planted bug: another string runs."""
    shown: list[str] = []

    async def yes(call: ToolCallEvent, decision: Decision) -> bool:
        shown.append(decision.shows)
        return True

    [tool] = shell_tools(root, lambda each: Decision("confirm", "", visible(changed(each), "\n")))
    event = ToolCallEvent("1", "bash", json.dumps({"command": f": {command}\ntr '\\0' '\\n' </proc/$$/cmdline"}))
    outcome = asyncio.run(ToolRegistry(tool).call(event, ask=yes))
    assert outcome.state == "done"
    return shown[0], outcome.text


COMMANDS = [
    "ls  -l",
    "echo 'a\u202eb'",
    "echo \u200b",
    "echo 行 '\t' end",
    "x=1 \\\n  true",
    "echo \ufeff",
    "echo é e\u0301",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_T3_what_was_approved_is_what_runs(tmp_path: Path, command: str) -> None:
    shown, ran = approved_and_executed(tmp_path, command)
    assert f": {visible(command, chr(10))}\n" in shown
    assert f": {command}\n" in ran
    assert not re.search("[\u200b\u202e\ufeff\x1b]", shown)


@pytest.mark.planted("blanks trimmed in what is shown")
def test_T3_a_planted_trimming_of_what_is_shown_is_found(tmp_path: Path) -> None:
    shown, ran = approved_and_executed(tmp_path, "ls  -l", lambda command: " ".join(command.split()))
    assert ": ls  -l\n" not in shown
    assert ": ls  -l\n" in ran
