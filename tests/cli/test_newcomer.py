"""What somebody new tries first in a terminal: it works as the help says, or the next step is named."""

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lamina.app.diagnostics import EXTRAS
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
    assert "create keys before you start the gateway" in " ".join(lamina("serve", "--help", COLUMNS="200").split())
    assert "启动网关之前" in lamina("serve", "--help", "--lang", "zh", COLUMNS="200")


@pytest.mark.parametrize("family", ["sessions", "memory", "keys", "skills"])
def test_list_is_the_same_as_the_family_alone(lamina: Lamina, family: str) -> None:
    lamina("sessions", "new")
    lamina("memory", "add", "Ann likes tea.")
    lamina("keys", "new")
    assert lamina(family, "list") == lamina(family)
    assert lamina.json(family, "list") == lamina.json(family)
    assert "put them after list" in lamina.error(family, "--json", "list")


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
        assert checked.endswith("\neverything works, but the store is in use: other commands need it to be free\n")
        terminal.send(CTRL_D)
        assert terminal.end() == 0
    assert fresh("doctor").endswith("\neverything works: lamina chat\n")


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
    assert "(lamina serve)\nnext: use its page or its API, or stop it with Ctrl-C\n" in told


def test_compacting_a_short_chat_is_no_error(fresh: Lamina) -> None:
    with fresh.terminal("chat") as terminal:
        terminal.say("Hello", "Well.")
        said = terminal.say("/compact", "nothing to fold")
        assert "✗" not in said
        assert "LAMINA_BUDGET" not in said


def test_a_model_file_that_is_not_there_is_said(lamina: Lamina) -> None:
    told = lamina.error("ask", "Hello", "--model", "/nope.gguf", code=1)
    assert "'/nope.gguf' does not exist" in told
    assert "RuntimeError" not in told


def test_a_store_that_is_a_folder_is_said(lamina: Lamina) -> None:
    (lamina.folder / "chats").mkdir()
    told = lamina.error("sessions", "new", "--store", "chats", code=4)
    assert told == f"error: the store {lamina.folder}/chats is a folder\nnext: name a file in it: chats/lamina.db\n"
    assert not (lamina.folder / "chats.lock").exists()


def test_a_server_that_is_not_there_is_said_without_the_words_of_a_library(lamina: Lamina) -> None:
    there = {"LAMINA_PROVIDER": "openai", "LAMINA_MODEL": "m", "LAMINA_BASE_URL": "http://127.0.0.1:9/v1"}
    told = lamina.error("ask", "Hello", code=1, LAMINA_API_KEY="k", **there)
    assert "127.0.0.1:9 cannot be reached: 'Connection refused'" in told or "reached: Connection refused" in told
    assert "ssl:" not in told


def test_a_question_on_a_terminal_says_at_once_that_it_opens(fresh: Lamina) -> None:
    with fresh.terminal("ask", "Hello") as terminal:
        assert terminal.end() == 0
        assert b"opening" in terminal.raw
        assert "Well." in terminal.text
    assert "opening" not in fresh("ask", "Hello")


def test_the_extras_of_the_gateway_telegram_and_traces_are_looked_for() -> None:
    with (Path(__file__).parents[2] / "pyproject.toml").open("rb") as file:
        named = tomllib.load(file)["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(named) - {"dev", "tokens"}, "what `tokens` brings is in `app`"


def test_skills_a_folder_further_down_are_named(lamina: Lamina) -> None:
    skill = lamina.folder / "office" / "skills" / "tea"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: tea\ndescription: Makes tea.\n---\nBoil.\n", encoding="utf-8")
    assert "next: there are some in 'office/skills': name that folder" in lamina.error("skills", "import", "office")
    lamina("skills", "import", "office/skills")


def test_who_stops_a_gateway_that_still_opens_is_shown_no_page(fresh: Lamina) -> None:
    way = fresh.folder / "slow.json"
    os.mkfifo(way)
    with subprocess.Popen(
        [sys.executable, "-m", "lamina", "serve", "--listen", "127.0.0.1:0", "--no-open"], cwd=fresh.folder, text=True,
        env=fresh.environ(LAMINA_SCRIPT=str(way)), stderr=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        with way.open("w") as script:  # open when it reads, and so while it opens
            process.send_signal(signal.SIGINT)
            script.write('[[{"text": "Well."}]]')
        out, told = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    assert "stopping" in told
