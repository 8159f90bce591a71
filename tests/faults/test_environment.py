"""T4: no secret can be read in /proc/PID/environ or /proc/PID/cmdline of any face of lamina or of any of its children.

Real processes on one PostgreSQL: the gateway with the embedded model and an MCP server, a worker, the bot, and a chat
that runs a command.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.terminal import ENTER, Terminal
from tests.gateway.processes import Gateway, answers
from tests.gateway.serving import free_port
from tests.postgres import Server
from tests.telegram.botapi import BotApi, bot_api

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only Linux has /proc")
ROOT = Path(__file__).parent.parent
CANARY = "CANARY-token-of-the-bot"
"""A part of the token that the Bot API of the tests knows; here it is in every secret."""
SLEEPS = "sleep 47"
COMMAND = f"touch begun; {SLEEPS}"
"""A command that a person is asked about."""
MCP = str(ROOT / "tools" / "mcp_server.py")
PLANTED = (
    "import sys; from lamina.cli import main; from lamina.settings import environment; "
    "environment.hide_environment = lambda: None; sys.argv[0] = 'lamina'; main()"
)
"""The planted bug: the environment is read and left where it is."""
START_SECONDS = 60.0


def secrets(store: str) -> dict[str, str]:
    """Everything that may hold a secret: ours, those of others, and one that no name gives away."""
    return {
        "LAMINA_API_KEY": f"sk-{CANARY}", "LAMINA_EMBEDDER_KEY": CANARY, "LAMINA_TELEGRAM_TOKEN": f"4242:{CANARY}",
        "LAMINA_STORE": store, "OPENAI_API_KEY": CANARY, "ANTHROPIC_API_KEY": CANARY, "AWS_SECRET_ACCESS_KEY": CANARY,
        "GITHUB_TOKEN": CANARY, "PGPASSWORD": CANARY, "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={CANARY}",
        "DATABASE_URL": f"postgresql://ann:{CANARY}@db/x", "HTTPS_PROXY": f"http://ann:{CANARY}@127.0.0.1:1",
        "INNOCENT": CANARY,
    }  # fmt: skip


def environ(folder: Path, store: str, **more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    own = {"HOME": str(folder), "LAMINA_USER": "ann", "LAMINA_EMBEDDER": "none", "LAMINA_MEMORY": "off"}
    return {**kept, **own, **secrets(store), **more}


def mcp_file(folder: Path) -> str:
    file = folder / "mcp.json"
    servers = {"small": {"command": sys.executable, "args": [MCP, "good"]}}
    file.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    return str(file)


def script_file(folder: Path, *answers: list[dict[str, Any]]) -> dict[str, str]:
    file = folder / "script.json"
    file.write_text(json.dumps(answers), encoding="utf-8")
    return {"LAMINA_PROVIDER": "scripted", "LAMINA_SCRIPT": str(file)}


@contextmanager
def started(words: Iterable[str], folder: Path, env: dict[str, str], *, planted: bool = False) -> Generator[Gateway]:
    """A face of lamina, ended at the end of the block; only a gateway has an address."""
    start = ["-c", PLANTED] if planted else ["-m", "lamina"]
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, *start, *words], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            text=True,
        )  # fmt: skip
    try:
        yield Gateway(process, f"http://{env.get('LAMINA_LISTEN', '')}", folder / "log")
    finally:
        below = psutil.Process(process.pid).children(recursive=True)
        for each in (process, *below):
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()


def exposed(pid: int) -> dict[str, str]:
    """What others can read of a process and of everything below it, where it holds the canary."""
    found: dict[str, str] = {}
    parent = psutil.Process(pid)
    for process in (parent, *parent.children(recursive=True)):
        for name in ("environ", "cmdline"):
            try:
                shown = Path(f"/proc/{process.pid}/{name}").read_bytes()
            except PermissionError:  # closed to this user altogether
                continue
            if CANARY.encode() in shown:
                found[f"{name} of {' '.join(process.cmdline())[:120]}"] = shown.decode(errors="replace")
    return found


def hidden_in_time(pid: int) -> dict[str, str]:
    """What is left to be seen when a face has started."""
    until = time.monotonic() + START_SECONDS
    while (found := exposed(pid)) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def child_of(pid: int, words: str) -> psutil.Process:
    """The descendant whose command line holds these words, once it is there."""
    until = time.monotonic() + START_SECONDS
    while True:
        for child in psutil.Process(pid).children(recursive=True):
            try:
                if words in " ".join(child.cmdline()):
                    return child
            except psutil.NoSuchProcess:
                continue
        assert time.monotonic() < until, f"no child of {pid} has {words!r}"
        time.sleep(0.05)


def with_password(store: str) -> str:
    return store.replace("lamina@", f"lamina:{CANARY}@")


def test_T4_nothing_can_be_read_of_the_gateway_the_embedded_model_and_a_worker(
    postgres: Server, tmp_path: Path
) -> None:
    store = with_password(postgres.database())
    env = environ(tmp_path, store, LAMINA_PROVIDER="local", LAMINA_LISTEN=f"127.0.0.1:{free_port()}",
                  LAMINA_MCP=mcp_file(tmp_path), LAMINA_MODE="agent", LAMINA_TOOLS="on")  # fmt: skip
    with ExitStack() as stack:
        gateway = stack.enter_context(started(["serve", "--no-open", "--store", store], tmp_path, env))
        worker = stack.enter_context(started(["worker", "--json"], tmp_path, env))
        answers(gateway)
        child_of(gateway.process.pid, "llama_child")
        assert exposed(gateway.process.pid) == {}
        assert hidden_in_time(worker.process.pid) == {}
        assert "--no-open" in psutil.Process(gateway.process.pid).cmdline(), "the rest of the arguments is as it was"


@pytest.mark.planted("the environment is left where it was given")
def test_T4_a_planted_environment_of_the_gateway_is_found(postgres: Server, tmp_path: Path) -> None:
    store = with_password(postgres.database())
    env = environ(tmp_path, store, LAMINA_LISTEN=f"127.0.0.1:{free_port()}", **script_file(tmp_path, []))
    with started(["serve", "--no-open", "--store", store], tmp_path, env, planted=True) as gateway:
        answers(gateway)
        found = exposed(gateway.process.pid)
    assert sorted(name.partition(" ")[0] for name in found) == ["cmdline", "environ"]
    assert all(name in "".join(found.values()) for name in secrets(store))


async def test_T4_nothing_can_be_read_of_the_bot(postgres: Server, tmp_path: Path) -> None:
    async with bot_api() as api:
        env = environ(tmp_path, with_password(postgres.database()), LAMINA_TELEGRAM_ALLOW="7",
                      LAMINA_TELEGRAM_API=api.base, **script_file(tmp_path, [{"text": "Hello."}]))  # fmt: skip
        with started(["telegram"], tmp_path, env) as bot:
            await answered(api)
            assert await asyncio.to_thread(exposed, bot.process.pid) == {}


async def answered(api: BotApi) -> None:
    """The bot works: its token reached it."""
    await api.push(api.update("Are you there?"))
    await api.until(lambda: bool(api.sent()), START_SECONDS)


def test_T4_nothing_can_be_read_of_a_chat_its_command_and_its_tool_server(postgres: Server, tmp_path: Path) -> None:
    script = script_file(tmp_path, [{"call": "bash", "arguments": {"command": COMMAND}}], [{"text": "Done."}])
    env = environ(tmp_path, with_password(postgres.database()), LAMINA_MCP=mcp_file(tmp_path), **script)
    with Terminal(["chat", "--mode", "agent"], env, tmp_path, fresh=True) as terminal:
        terminal.say("Wait a little.", "[y/N]")
        terminal.send(f"y{ENTER}")
        pid = terminal.process.pid
        child_of(pid, SLEEPS)
        child_of(pid, MCP)
        assert exposed(pid) == {}


def test_a_library_leaves_the_environment_of_its_host_alone(tmp_path: Path) -> None:
    code = """
import os, lamina, lamina.settings, lamina.cli
lamina.cli.main(["config", "--json"])
lamina.settings.load_settings()
assert os.environ["LAMINA_API_KEY"] == os.environ["OPENAI_API_KEY"] == "host"
assert b"LAMINA_API_KEY=host" in open("/proc/self/environ", "rb").read()
"""
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LAMINA_API_KEY": "host", "OPENAI_API_KEY": "host"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("arguments", "dumpable"), [("", 0), ("['--version']", 1)], ids=["process", "library"])
def test_T4_the_memory_of_a_process_of_ours_is_closed_to_others_of_the_user(arguments: str, dumpable: int) -> None:
    code = f"""
import ctypes, sys, lamina.cli
sys.argv = ["lamina", "--version"]
lamina.cli.main({arguments})
print(ctypes.CDLL(None).prctl(3))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(dumpable)
