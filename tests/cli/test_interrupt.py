"""Ctrl-C at a question, and while the standard input is read: in a real terminal, the first one counts."""

import asyncio
import os
import pty
import subprocess
import sys
import threading

import pytest

from lamina.app.store_admin import allow_interrupt
from tests.cli.process import Lamina

CTRL_C = b"\x03"


def interrupted(lamina: Lamina, sign: bytes, *arguments: str) -> tuple[int, bytes]:
    """Press Ctrl-C once, when the output shows the sign; what is the exit code, and what was shown?"""
    parent, child = pty.openpty()
    command = ["setsid", "--ctty", sys.executable, "-m", "lamina", *arguments]
    environ = lamina.environ(TERM="xterm", LANG="C.UTF-8")
    seen, pressed = b"", False
    with subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environ, cwd=lamina.folder) as process:
        os.close(child)
        watch = threading.Timer(60, process.kill)  # without the mend it would wait forever
        watch.start()
        try:
            while block := os.read(parent, 65536):
                seen += block
                if sign in seen and not pressed:
                    os.write(parent, CTRL_C)
                    pressed = True
        except OSError:  # the other end is closed
            pass
        code = process.wait()
        watch.cancel()
    os.close(parent)
    return code, seen


def test_the_first_ctrl_c_at_a_question_ends_the_command_and_nothing_is_done(lamina: Lamina) -> None:
    session = lamina.json("sessions", "new", "--title", "Kept")["session_id"]
    fact = lamina.json("memory", "add", "I sing.")["memory_id"]
    key = lamina.json("keys", "new")["key_id"]
    for command in (["sessions", "delete", session], ["memory", "forget", fact], ["keys", "revoke", key]):
        code, seen = interrupted(lamina, b"[y/N]", *command)
        assert (code, b"Traceback" in seen) == (130, False), seen
    assert [row["title"] for row in lamina.json("sessions")] == ["Kept"]
    assert [row["text"] for row in lamina.json("memory")] == ["I sing."]
    assert [row["state"] for row in lamina.json("keys")] == ["usable"]


def test_the_first_ctrl_c_ends_a_read_of_the_terminal(lamina: Lamina) -> None:
    code, seen = interrupted(lamina, b"reading", "store", "import", "-")
    assert (code, b"Traceback" in seen) == (130, False), seen
    assert lamina.json("sessions") == []


async def test_a_ctrl_c_that_came_just_before_the_read_is_not_lost() -> None:
    heard: list[bool] = []

    async def reads() -> None:
        reading.cancel()  # as the event loop does on Ctrl-C
        with pytest.raises(KeyboardInterrupt), allow_interrupt():
            raise AssertionError("it would wait here")
        heard.append(True)

    reading = asyncio.create_task(reads())
    await asyncio.wait({reading})
    assert heard == [True]


def test_outside_of_the_main_thread_nothing_changes() -> None:
    entered: list[bool] = []

    def reads() -> None:
        with allow_interrupt():
            entered.append(True)

    thread = threading.Thread(target=reads)
    thread.start()
    thread.join()
    assert entered == [True]


EARLY = """
import sys
from lamina.cli import main

class Presses:  # Ctrl-C while a module is looked for
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Presses())
sys.exit(main(["ask", "Hello"]))
"""


@pytest.mark.parametrize("module", ["typer", "lamina.cli.root", "lamina.settings", "lamina.cli.ask", "lamina.app.app"])
def test_ctrl_c_while_the_program_is_still_loading_ends_it_quietly(lamina: Lamina, module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY, module], env=lamina.environ(), cwd=lamina.folder, check=False,
        capture_output=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
