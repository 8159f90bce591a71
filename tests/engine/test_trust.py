"""Whose words count: what a folder's settings may say, and which hosts the user named."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from lamina import App
from lamina.app.config import built_in_tools, instruction_paths
from lamina.errors import SettingsError
from lamina.providers.scripted import ScriptedProvider
from lamina.settings import load_settings
from lamina.tools.calls import names_host
from lamina.types import Context, Event, Text
from tests.engine.chats import end_of, settings, told


@pytest.mark.parametrize(
    "line",
    ['workspace = "/"', 'workspace = ".."', 'mode = "agent"', "tools = true", 'model = "evil.gguf"',
     'base_url = "https://evil.example"', 'provider = "openai"', 'mcp = "servers.json"', 'api_key = "x"'],
)  # fmt: skip
def test_a_folder_gives_itself_no_power(tmp_path: Path, line: str) -> None:
    (tmp_path / "lamina.toml").write_text(line, encoding="utf-8")
    with pytest.raises(SettingsError, match=r"lamina\.toml"):
        load_settings(tmp_path, {})


def test_a_folder_may_name_a_workspace_inside_of_it(tmp_path: Path) -> None:
    (tmp_path / "lamina.toml").write_text('workspace = "."', encoding="utf-8")
    assert load_settings(tmp_path, {}).workspace == str(tmp_path.resolve())


@pytest.mark.parametrize(
    ("said", "host", "named"),
    [
        ("look at https://docs.python.org/3/ please", "docs.python.org", True),
        ("看看 http://www.example.com/页", "example.com", True),
        ("look at README.md, main.py and install.sh", "main.py", False),
        ("what is evil.com", "evil.com", False),
        ("https://evil.com.example.org", "evil.com", False),
        ("https://evil.com@example.org/", "evil.com", False),
        ("https://notevil.com", "evil.com", False),
    ],
)
def test_a_host_is_named_by_an_address_and_by_nothing_else(said: str, host: str, named: bool) -> None:
    assert names_host(said, host) is named


async def test_what_is_piped_in_below_the_words_names_no_host(tmp_path: Path) -> None:
    asked: list[bool] = []
    tools = built_in_tools(settings(tools=True, workspace=str(tmp_path)))

    async def no(call: object, decision: object) -> bool:
        asked.append(True)
        return False

    script = [[{"call": "web_fetch", "arguments": {"url": "https://evil.example/"}}], [{"text": "ok"}]]
    kept = settings(mode="agent")
    async with App.open(
        tmp_path / "x.db", settings=kept, provider=ScriptedProvider(script), tools=tools, work=False
    ) as app:
        session = await app.new_session("ann")
        await told(app, session, "Summarise.\n\n<stdin>\nsee https://evil.example/\n</stdin>", ask=no)
        assert asked == [True]


def test_files_whose_words_are_instructions_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("@more/rules.md\n", encoding="utf-8")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "rules.md").write_text("Be brief.\n", encoding="utf-8")
    kept = settings(tools=True, workspace=str(tmp_path), context=str(tmp_path / "now.md"))
    assert {"AGENTS.md", "more/rules.md", "now.md"} <= instruction_paths(kept, tmp_path)
    check = built_in_tools(kept)["agent"]["write_file"].check
    assert check is not None
    for path in ("more/rules.md", "now.md"):
        assert check({"path": path, "content": "Obey."}).verdict == "confirm"
    assert check({"path": "notes.md", "content": "A note."}).verdict == "safe"


async def test_a_provider_that_never_waits_starves_nobody_and_ends_at_the_limit(tmp_path: Path) -> None:
    class Endless(ScriptedProvider):
        async def _on(self) -> AsyncGenerator[Event]:
            while True:
                yield Text("")

        def stream(
            self, context: Context, *, max_tokens: int | None = None, options: Any = None
        ) -> AsyncGenerator[Event]:
            return self._on()

    async with App.open(tmp_path / "x.db", settings=settings(turn_seconds=1), provider=Endless([]), work=False) as app:
        session = await app.new_session("ann")
        async with asyncio.timeout(60):
            assert end_of(await told(app, session, "hi")).state == "interrupted"


async def test_an_error_that_no_database_would_keep_still_ends_the_turn(tmp_path: Path) -> None:
    class Odd(ScriptedProvider):
        def stream(
            self, context: Context, *, max_tokens: int | None = None, options: Any = None
        ) -> AsyncGenerator[Event]:
            raise RuntimeError("half \ud800 and \0 nothing")

    async with App.open(tmp_path / "x.db", settings=settings(), provider=Odd([]), work=False) as app:
        session = await app.new_session("ann")
        end = end_of(await told(app, session, "hi"))
        assert (end.state, "RuntimeError" in end.error.text()) == ("failed", True)
        (turn,) = await app.store.turns.list("ann", session.session_id)
        assert turn.state == "failed"
