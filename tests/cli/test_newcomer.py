"""What somebody new tries first in a terminal: it works as the help says, or the next step is named."""

import subprocess
import sys

import pytest

from tests.cli.process import Lamina
from tests.cli.terminal import CTRL_D


@pytest.fixture
def fresh(lamina: Lamina) -> Lamina:
    lamina.script([{"text": "Well."}])
    return lamina


def test_a_key_needs_no_name_and_gets_one_that_is_free(lamina: Lamina) -> None:
    assert lamina.json("keys", "new")["name"] == "key-1"
    lamina("keys", "new", "--name", "key-2")
    assert lamina.json("keys", "new")["name"] == "key-3"


def test_where_keys_are_advised_it_is_said_when_they_can_be_made(lamina: Lamina) -> None:
    assert "before the gateway is started" in " ".join(lamina("serve", "--help", COLUMNS="200").split())
    assert "启动网关之前" in lamina("serve", "--help", "--lang", "zh", COLUMNS="200")


@pytest.mark.parametrize("family", ["sessions", "memory", "keys", "skills"])
def test_list_is_the_same_as_the_family_alone(lamina: Lamina, family: str) -> None:
    lamina("sessions", "new")
    lamina("memory", "add", "Ann likes tea.")
    lamina("keys", "new")
    assert lamina(family, "list") == lamina(family)
    assert lamina.json(family, "list") == lamina.json(family)
    assert "put them behind list" in lamina.error(family, "--json", "list")


@pytest.mark.parametrize(
    ("command", "page"),
    [
        (("memory", "forget", "--all"), "lamina memory forget"), (("context", "--histroy"), "lamina context"),
        (("memory", "forget"), "lamina memory forget"), (("memory", "frget"), "lamina memory"),
        (("--lang", "en", "sessions", "show"), "lamina sessions show"), (("nonsense",), "lamina"),
        (("trace", "show", "x", "--request", "0"), "lamina trace show"),
    ],
)  # fmt: skip
def test_a_slip_is_answered_with_the_help_of_that_command(lamina: Lamina, command: tuple[str, ...], page: str) -> None:
    assert lamina.error(*command).endswith(f"\nnext: {page} --help\n")


def test_a_store_that_a_chat_holds_says_so_and_what_to_do(fresh: Lamina) -> None:
    with fresh.terminal("--lang", "en", "chat") as terminal:
        terminal.ready()
        told = fresh.error("sessions", code=4)
        assert f"is in use by process {terminal.process.pid} (lamina chat)\n" in told
        assert told.endswith("next: leave that chat with Ctrl-D, or use its /sessions, /memory and /why\n")
        checked = fresh("doctor", COLUMNS="300")
        assert "(lamina chat)" in checked
        assert "all is well" not in checked
        assert checked.endswith("\nwell, but the store is in use: other commands need it free\n")
        terminal.send(CTRL_D)
        assert terminal.end() == 0
    assert fresh("doctor").endswith("\nall is well: lamina chat\n")


def test_a_store_that_a_gateway_holds_says_so_and_what_to_do(fresh: Lamina) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "lamina", "serve", "--listen", "127.0.0.1:0", "--no-open"], cwd=fresh.folder, text=True,
        env=fresh.environ(), stderr=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout
        process.stdout.readline()  # it runs
        told = fresh.error("keys", "new", code=4)
        process.terminate()
        process.communicate()
    assert "(lamina serve)\nnext: use its page or its API, or end it with Ctrl-C\n" in told
