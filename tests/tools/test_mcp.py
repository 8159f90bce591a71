"""MCP servers as a source of tools: real servers, started over stdio and reached over HTTP."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lamina.errors import ToolError
from lamina.tools.mcp import mcp_tools, read_servers
from lamina.tools.registry import ToolRegistry
from lamina.types import Decision, Outcome, ToolCallEvent

SCRIPT = str(Path(__file__).parent / "mcp_server.py")


def config(which: str = "good", name: str = "small", **more: Any) -> dict[str, Any]:
    return {"mcpServers": {name: {"command": sys.executable, "args": [SCRIPT, which], **more}}}


class Person:
    def __init__(self, answer: bool = True) -> None:
        self.answer, self.shown = answer, list[Decision]()

    async def __call__(self, call: ToolCallEvent, decision: Decision) -> bool:
        self.shown.append(decision)
        return self.answer


async def use(tools: ToolRegistry, name: str, ask: Person | None = None, **arguments: Any) -> Outcome:
    return await tools.call(ToolCallEvent("1", name, json.dumps(arguments)), ask=ask)


def servers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if SCRIPT in " ".join(child.cmdline())]


async def test_the_tools_of_a_server_are_ours_until_the_block_ends(tmp_path: Path) -> None:
    async with mcp_tools(config(), root=tmp_path) as found:
        registry = ToolRegistry(*found)
        names = ["add", "note", "surroundings", "fail", "wait", "die"]
        assert [tool.name for tool in registry] == [f"small__{name}" for name in names]
        add = registry["small__add"]
        assert add.description == "Add two numbers. Use it for sums."
        assert set(add.parameters["properties"]) == {"a", "b"}
        assert add.parameters["required"] == ["a", "b"]
        person = Person()
        assert await use(registry, "small__add", person, a=2, b=3) == Outcome("和 5")
        assert person.shown[0].shows == 'small: add {"a": 2, "b": 3}'
        assert len(servers()) == 1
        outcome = await use(registry, "small__add", person, a="2", b=3)
        assert outcome.state == "failed"
        assert "a must be of type integer" in outcome.text
    assert servers() == []


async def test_every_call_is_asked_unless_it_reads_and_the_server_is_trusted(tmp_path: Path) -> None:
    for trust, state in ((False, "refused"), (True, "done")):
        async with mcp_tools(config(trust=trust), root=tmp_path) as found:
            registry = ToolRegistry(*found)
            assert (await use(registry, "small__add", a=1, b=1)).state == state
            assert (await use(registry, "small__note", text="x")).state == "refused"
            assert (await use(registry, "small__note", Person(False), text="x\u202e")).state == "refused"
            assert len(registry.for_mode("plan")) == int(trust)
    assert not (tmp_path / "note.txt").exists()


async def test_T4_a_server_gets_a_clean_environment_and_what_the_configuration_names(tmp_path: Path) -> None:
    ours = {**os.environ, "OPENAI_API_KEY": "canary", "LANG": "C.UTF-8"}
    async with mcp_tools(config(env={"TOKEN": "named"}), root=tmp_path, environ=ours) as found:
        seen = json.loads((await use(ToolRegistry(*found), "small__surroundings", Person())).text)
    assert seen["TOKEN"] == "named"
    assert seen["folder"] == str(tmp_path)
    assert "canary" not in seen.values()
    allowed = {"TOKEN", "folder", "PATH", "HOME", "USER", "LANG", "TERM", "LOGNAME", "SHELL", "TZ", "LC_CTYPE"}
    assert {name for name in seen if not name.startswith(("GIT_", "LC_"))} <= allowed


async def test_failures_of_a_server_are_text(tmp_path: Path) -> None:
    async with mcp_tools(config(), root=tmp_path) as found:
        registry, person = ToolRegistry(*found), Person()
        outcome = await use(registry, "small__fail", person, why="no such page 页")
        assert outcome.state == "failed"
        assert "no such page 页" in outcome.text
        assert (await use(registry, "small__add", person, a=1, b=1)).text == "和 2"
        assert (await use(registry, "small__die", person)).state == "failed"
        outcome = await use(registry, "small__add", person, a=1, b=1)
        assert outcome.state == "failed"
        assert "Traceback" not in outcome.text
    assert servers() == []


async def test_a_late_server_is_not_waited_for_and_lives_on(tmp_path: Path) -> None:
    async with mcp_tools(config(), root=tmp_path, seconds=0.3) as found:
        outcome = await use(ToolRegistry(*found), "small__wait", Person())
        assert outcome.state == "failed"
        assert "timed out" in outcome.text
        assert len(servers()) == 1
    assert servers() == []


async def test_a_cancelled_call_passes_on_and_the_server_lives(tmp_path: Path) -> None:
    async with mcp_tools(config(), root=tmp_path) as found:
        registry = ToolRegistry(*found)
        asked = asyncio.Event()

        async def yes(call: ToolCallEvent, decision: Decision) -> bool:
            asked.set()
            return True

        task = asyncio.ensure_future(registry.call(ToolCallEvent("1", "small__wait", "{}"), ask=yes))
        await asked.wait()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await use(registry, "small__add", Person(), a=1, b=1)).text == "和 2"
    assert servers() == []


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"command": "/nonesuch/server"}, "small could not be started: the command '/nonesuch/server' was not found"),
        ({"command": sys.executable, "args": [SCRIPT, "dead"]}, r"could not be started.*no licence\\x1b\[0m found"),
        ({"command": sys.executable, "args": [SCRIPT, "deaf"]}, "not ready within 1.5 seconds"),
        ({"url": "http://127.0.0.1:9/mcp"}, "could not be started"),
        ({"command": sys.executable, "args": [SCRIPT, "silent"]}, "'mute' of the MCP server small has no description"),
        ({"command": sys.executable, "args": [SCRIPT, "scalar"]}, "could not be started.*inputSchema"),
        ({"command": sys.executable, "args": [SCRIPT, "required"]}, "'required'.*`required` that is not a list"),
        ({"command": sys.executable, "args": [SCRIPT, "huge"]}, "'huge'.*too long"),
        ({"command": sys.executable, "args": [SCRIPT, "twins"]}, "two tools that become small__a_b"),
        ({"command": sys.executable, "args": [SCRIPT, "long"]}, "cannot be the name of a tool"),
    ],
)
async def test_a_server_that_cannot_be_used_is_a_clear_error(tmp_path: Path, entry: dict[str, Any], words: str) -> None:
    late = "1.5" in words
    with pytest.raises(ToolError, match=words):
        async with mcp_tools({"mcpServers": {"small": entry}}, root=tmp_path, start_seconds=1.5 if late else 30):
            pytest.fail("it must not come up")
    assert servers() == []


async def test_one_bad_server_ends_the_good_ones_too(tmp_path: Path) -> None:
    both = {"mcpServers": {**config("dead", "bad")["mcpServers"], **config("good")["mcpServers"]}}
    with pytest.raises(ToolError, match="the MCP server bad"):
        async with mcp_tools(both, root=tmp_path):
            pytest.fail("it must not come up")
    assert servers() == []


async def test_what_a_server_says_is_bounded_cleaned_and_kept_out_of_the_prompt(tmp_path: Path) -> None:
    async with mcp_tools(config("hidden"), root=tmp_path) as found:
        [tool] = found
    assert tool.name == "small__dotted_name"
    for text in (tool.description, tool.parameters["properties"]["x"]["description"]):
        assert text.startswith("Say [31m it. xxx")
        assert len(text) == 2_000
    assert ToolRegistry(tool).notes() == (
        "- **small__dotted_name**: A tool of the MCP server small; the server describes it with its schema."
    )


async def test_no_servers_and_servers_without_tools_give_none(tmp_path: Path) -> None:
    async with mcp_tools({"mcpServers": {}}, root=tmp_path) as found:
        assert found == []
    async with mcp_tools(config("empty"), root=tmp_path) as found:
        assert found == []


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, "no mcpServers"),
        ({"mcpServers": []}, "no mcpServers"),
        ({"mcpServers": {"a b": {"command": "x"}}}, "a name that cannot begin"),
        ({"mcpServers": {"a__b": {"command": "x"}}}, "a name that cannot begin"),
        ({"mcpServers": {"a": "x"}}, "not an object"),
        ({"mcpServers": {"a": {}}}, "either a command or a url"),
        ({"mcpServers": {"a": {"command": "x", "url": "http://x"}}}, "either a command or a url"),
        ({"mcpServers": {"a": {"command": ["x"]}}}, "either a command or a url"),
        ({"mcpServers": {"a": {"url": "file:///x"}}}, "must begin with http"),
        (
            {"mcpServers": {"a": {"command": "x", "args": "-v"}}},
            "args of .* are not a list of texts: '-v'",
        ),
        (
            {"mcpServers": {"a": {"command": "x", "env": {"K": 1}}}},
            r"env of .* has values that are not text: \['K'\]",
        ),
        ({"mcpServers": {"a": {"command": "x", "env": ["K"]}}}, "env of the MCP server 'a' is not an object"),
        ({"mcpServers": {"a": {"command": "x", "trust": "yes"}}}, "trust='yes'"),
    ],
)
def test_a_configuration_that_is_wrong_says_where(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(ToolError, match=words):
        read_servers(entry)


def test_a_configuration_never_shows_its_secrets() -> None:
    found = read_servers(config(env={"TOKEN": "canary"}) | {"other": 1})
    assert "canary" not in repr(found)
    assert read_servers({"mcpServers": {"a": {"command": "x", "disabled": True}}}) == []


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A server that is reached over HTTP, in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (tmp_path / "log").open("w+")
    process = subprocess.Popen([sys.executable, SCRIPT, "http", str(port)], stdout=log, stderr=log, cwd=tmp_path)
    try:
        for _ in range(1_000):
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", port)):
                    break
            assert process.poll() is None, (tmp_path / "log").read_text()
            try:
                process.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()
        log.close()


async def test_a_server_is_reached_over_http(tmp_path: Path, address: str) -> None:
    entry = {"url": address, "headers": {"Authorization": "Bearer x"}, "trust": True}
    async with mcp_tools({"mcpServers": {"far": entry}}, root=tmp_path) as found:
        registry = ToolRegistry(*found)
        assert (await use(registry, "far__add", a=20, b=22)).text == "和 42"
        assert (await use(registry, "far__note", text="x")).state == "refused"
