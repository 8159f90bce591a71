"""The tools that ship, for the modes in which they are offered, and those of MCP servers."""

import json
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from lamina.app.files import instruction_files, parse_json, read_text
from lamina.assembly.checks import fields_of
from lamina.errors import InputError, InstructionsError, SettingsError, shown
from lamina.layers.commands import decide
from lamina.layers.said import names_host
from lamina.layers.tools import Tool, ToolRegistry
from lamina.layers.tools_files import file_tools
from lamina.layers.tools_shell import shell_tools
from lamina.settings import Settings

MODES = ("agent", "plan")


@asynccontextmanager
async def offered(settings: Settings) -> AsyncGenerator[dict[str, ToolRegistry] | None, None]:
    """The tools of each mode as long as the block lasts; None where they are switched off."""
    if not settings.tools:
        yield None
    elif settings.mcp:
        async with _servers(settings) as more:
            yield by_mode(settings, more)
    else:
        yield by_mode(settings)


def by_mode(settings: Settings, more: Sequence[Tool] = ()) -> dict[str, ToolRegistry]:
    """Files and bash in the workspace, the web, and what is given; in plan mode nothing that has an effect."""
    tools: list[Tool] = []
    if settings.workspace:
        root = Path(settings.workspace)
        if not root.is_dir():
            raise SettingsError(f"the workspace {shown(str(root))} is no folder", hint="set LAMINA_WORKSPACE")
        gate = partial(decide, root=root)
        store = [] if "://" in settings.store else [Path(settings.store)]
        tools += file_tools(root, closed=store, asks=spoken(settings, root))
        tools += shell_tools(root, gate, environ=settings.environ)
        tools += shell_tools(root, gate, environ=settings.environ, effects=False)
    tools += [*_web(settings), *more]
    return {mode: ToolRegistry(*(tool for tool in tools if mode in tool.modes)) for mode in MODES}


def spoken(settings: Settings, root: Path) -> set[str]:
    """The files of the workspace whose words reach the model as instructions: who changes them is asked for."""
    named = {settings.rules, settings.identity, settings.instructions, settings.context}
    try:
        loaded = instruction_files(settings, root).load()
    except InstructionsError:  # the turn says so, and sends nothing
        loaded = None
    for file in (loaded.instructions, *loaded.rules) if loaded else ():
        named |= {file.path, *file.included}
    home = os.path.realpath(root)
    inside = (os.path.relpath(os.path.realpath(os.path.join(home, name)), home) for name in named if name)
    return {name for name in inside if not name.startswith("..")}


def _web(settings: Settings) -> Sequence[Tool]:
    try:
        from lamina.layers.tools_web import web_tools  # noqa: PLC0415 -- aiohttp is an extra
    except ModuleNotFoundError as error:
        raise SettingsError(f"web_fetch needs the package {error.name}", hint="pip install 'lamina[app]'") from None
    token = settings.telegram_token.reveal() if settings.telegram_token else ""
    secrets = [key for key in (settings.api_key, settings.embedder_key, token) if key]
    return web_tools(hosts=names_host, secrets=secrets)


@asynccontextmanager
async def _servers(settings: Settings) -> AsyncGenerator[Sequence[Tool], None]:
    try:
        from lamina.layers.tools_mcp import mcp_tools  # noqa: PLC0415 -- mcp is an extra
    except ModuleNotFoundError as error:
        raise SettingsError(f"MCP servers need the package {error.name}", hint="pip install 'lamina[mcp]'") from None
    config: Any = parse_json(read_text(Path(settings.mcp)), settings.mcp, hint='{"mcpServers": {…}}')
    if fields_of(config) is None:
        raise InputError(f"{settings.mcp} holds {shown(json.dumps(config))}", hint='{"mcpServers": {…}}')
    async with mcp_tools(config, root=settings.workspace or ".", environ=settings.environ) as tools:
        yield tools
