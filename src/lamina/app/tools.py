"""The tools that ship, for the modes in which they are offered, and those of MCP servers."""

import json
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from lamina.app.files import instruction_files, parse_json, read_text
from lamina.assembly.history import fields_of
from lamina.errors import InputError, InstructionsError, SettingsError, format_value
from lamina.portable import HELD
from lamina.sandbox.process import CAN_END_FAMILY
from lamina.sandbox.sandbox import Limits, Sandbox
from lamina.settings import Settings, state_folder
from lamina.shell.policy import decide
from lamina.text.messages import Phrase
from lamina.tools.bash import shell_tools
from lamina.tools.closed_files import OwnFiles
from lamina.tools.files import file_tools
from lamina.tools.registry import Tool, ToolRegistry

MODES = ("agent", "plan")
STORE_FILES = ("", "-wal", "-shm", "-journal", ".lock", f".lock{HELD}")


@asynccontextmanager
async def open_tools(settings: Settings) -> AsyncGenerator[dict[str, ToolRegistry] | None, None]:
    """The tools of each mode as long as the block lasts; None where they are switched off."""
    if not settings.tools:
        yield None
    elif settings.mcp:
        async with _open_servers(settings) as more:
            yield built_in_tools(settings, more)
    else:
        yield built_in_tools(settings)


def built_in_tools(settings: Settings, more: Sequence[Tool] = ()) -> dict[str, ToolRegistry]:
    """The tools of each mode, for `App.open(tools=…)`: files and bash in the workspace of the settings, the web, and
    what is given; in plan mode nothing that has an effect. Those of MCP servers come with `App.open` alone."""
    tools: list[Tool] = []
    if settings.workspace:
        root = Path(settings.workspace)
        if not root.is_dir():
            raise SettingsError("workspace.setting_not_folder", path=format_value(str(root)))
        own = OwnFiles(own_files(settings))
        gate = partial(decide, root=root, closed=own)
        tools += file_tools(root, closed=own, asks=instruction_paths(settings, root))
        sandbox = sandbox_of(settings)
        for effects in (True, False) if CAN_END_FAMILY else ():
            tools += shell_tools(root, gate, environ=settings.environ, sandbox=sandbox, effects=effects)
    tools += [*_web_tools(settings), *more]
    return {mode: ToolRegistry(*(tool for tool in tools if mode in tool.modes)) for mode in MODES}


def own_files(settings: Settings) -> list[Path]:
    """lamina's own files, which are closed to every tool, wherever they are."""
    own = [settings.mcp, state_folder(settings.environ or None)]
    if settings.approvals:
        own += [f"{settings.approvals}{end}" for end in ("", ".lock", f".lock{HELD}")]
    if settings.store and "://" not in settings.store:
        own += [f"{settings.store}{end}" for end in STORE_FILES]
    return [Path(path) for path in own if path]


def sandbox_of(settings: Settings) -> Sandbox:
    """How commands are held, with lamina's own files closed to them."""
    return Sandbox(
        settings.bash_sandbox, settings.bash_network, tuple(map(str, own_files(settings))),
        tuple(filter(None, settings.bash_readable.split(":"))),
        Limits(memory_mb=settings.bash_memory, processes=settings.bash_processes),
    )  # fmt: skip


def instruction_paths(settings: Settings, root: Path) -> set[str]:
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


def _web_tools(settings: Settings) -> Sequence[Tool]:
    try:
        from lamina.tools.web import web_tools  # noqa: PLC0415 -- aiohttp is an extra
    except ModuleNotFoundError as error:
        feature = Phrase("feature.web")
        raise SettingsError("package.missing", feature=feature, package=error.name, extra="app") from None
    token = settings.telegram_token.reveal() if settings.telegram_token else ""
    secrets = [key for key in (settings.api_key, settings.embedder_key, token) if key]
    return web_tools(secrets=secrets)


@asynccontextmanager
async def _open_servers(settings: Settings) -> AsyncGenerator[Sequence[Tool], None]:
    try:
        from lamina.tools.mcp import mcp_tools  # noqa: PLC0415 -- mcp is an extra
    except ModuleNotFoundError as error:
        feature = Phrase("feature.mcp")
        raise SettingsError("package.missing", feature=feature, package=error.name, extra="mcp") from None
    config: Any = parse_json(read_text(Path(settings.mcp)), settings.mcp, hint="file.mcp_form")
    if fields_of(config) is None:
        raise InputError(
            "file.not_mcp", hint="file.mcp_form", path=settings.mcp, value=format_value(json.dumps(config))
        )
    async with mcp_tools(config, root=settings.workspace or ".", environ=settings.environ) as tools:
        yield tools
