"""Tools of MCP servers (extra `mcp`): starts or reaches the servers of a configuration and offers their tools.

What a server says about its tools is text from outside: limited in length, without hidden characters, and not part of
the prompt's notes. A tool of a server needs a yes, unless the server says that it only reads and the configuration
trusts the server.
"""

import asyncio
import json
import os
import re
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import IO, Any, cast

import httpx2
from mcp import Client, MCPError, StdioServerParameters, stdio_client, types
from mcp.client.streamable_http import streamable_http_client

from lamina.errors import ToolError, format_value
from lamina.sandbox.process import clean_environment
from lamina.text.messages import Phrase
from lamina.text.unicode import ANY, visible
from lamina.tools.registry import Tool
from lamina.types import Decision, Outcome

START_SECONDS = 30.0
END_SECONDS = 10.0
SECONDS = 60.0
MAX_DESCRIPTION_CHARS = 2_000
MAX_SCHEMA_CHARS = 32_000
MAX_TOOLS = 500
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
SERVER_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")


@dataclass(frozen=True, slots=True)
class Server:
    """One server of the configuration: a command to start, or an address to reach."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    trust: bool = False

    def __repr__(self) -> str:
        return f"Server({self.name!r})"  # its variables and headers may be secrets


def read_servers(config: Mapping[str, Any]) -> list[Server]:
    """The servers of `{"mcpServers": {name: {"command": …} or {"url": …}}}`, except those that are `disabled`."""
    found = config.get("mcpServers")
    if not isinstance(found, Mapping):
        raise ToolError("mcp.no_servers", hint="mcp.form", found=format_value(list(config)))
    servers = cast(Mapping[str, Any], found)
    return [_read_server(name, each) for name, each in servers.items() if not _is_disabled(each)]


def _is_disabled(entry: object) -> bool:
    return isinstance(entry, Mapping) and cast(Mapping[str, Any], entry).get("disabled") is True


def _read_server(name: str, entry: object) -> Server:
    server = format_value(name)
    if not SERVER_NAME.fullmatch(name) or "__" in name:
        raise ToolError("mcp.bad_name", server=server)
    if not isinstance(entry, Mapping):
        raise ToolError("mcp.not_an_object", hint="mcp.form", server=server, value=format_value(entry))
    values = cast(Mapping[str, Any], entry)
    command, url = values.get("command", ""), values.get("url", "")
    if not isinstance(command, str) or not isinstance(url, str) or bool(command) == bool(url):
        raise ToolError("mcp.neither_command_nor_url", hint="mcp.form", server=server)
    if url and not url.startswith(("http://", "https://")):
        raise ToolError("mcp.bad_url", server=server, url=format_value(url))
    args: object = values.get("args", [])
    if not isinstance(args, list) or not all(isinstance(each, str) for each in cast(list[Any], args)):
        raise ToolError("mcp.bad_args", hint="mcp.form", server=server, value=format_value(cast(object, args)))
    trust = values.get("trust", False)
    if not isinstance(trust, bool):
        raise ToolError("mcp.bad_trust", server=server, value=format_value(trust))
    pairs = {key: _read_pairs(server, key, values.get(key, {})) for key in ("env", "headers")}
    return Server(name, command, tuple(cast(list[str], args)), pairs["env"], url, pairs["headers"], trust)


def _read_pairs(server: str, key: str, value: object) -> tuple[tuple[str, str], ...]:
    """Names and texts. An error shows only the names: the values may be secrets."""
    if not isinstance(value, Mapping):
        raise ToolError("mcp.pairs_not_an_object", hint="mcp.form", server=server, field=key)
    pairs = cast(Mapping[str, Any], value)
    wrong = [name for name, each in pairs.items() if not isinstance(each, str)]
    if wrong:
        raise ToolError("mcp.pairs_not_text", server=server, field=key, names=format_value(wrong))
    return tuple(pairs.items())


@asynccontextmanager
async def mcp_tools(
    config: Mapping[str, Any],
    *,
    root: str | os.PathLike[str] = ".",
    environ: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
    start_seconds: float = START_SECONDS,
) -> AsyncGenerator[list[Tool]]:
    """The tools of all servers of the configuration. The servers run as long as the block lasts.

    Commands start in `root` with a clean environment, a few harmless names of `environ`, and the `env` of the
    configuration. A server that does not start, or a tool that cannot be used, is an error.
    """
    folder = os.path.abspath(root)
    connections = [
        _Connection(server, folder, clean_environment(folder, environ), seconds) for server in read_servers(config)
    ]
    try:
        started = await asyncio.gather(*(each.start(start_seconds) for each in connections), return_exceptions=True)
        tools: list[Tool] = []
        for each in started:
            if isinstance(each, BaseException):
                raise each
            tools += each
        yield tools
    finally:
        await asyncio.gather(*(each.end() for each in connections))


class _Connection:
    """A server and its task: the SDK requires that the task which opens a connection also closes it."""

    def __init__(self, server: Server, folder: str, environ: dict[str, str], seconds: float) -> None:
        self.server, self.folder, self.environ, self.seconds = server, folder, environ, seconds
        self.stop = asyncio.Event()
        self.log_end = ""
        """The end of the server's error output, after it has ended."""
        self.ready: asyncio.Future[tuple[Client, list[types.Tool]]] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None

    async def start(self, seconds: float) -> list[Tool]:
        self.task = asyncio.ensure_future(self._serve())
        await asyncio.wait({self.task, self.ready}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not self.ready.done():
            late = not self.task.done()  # before it is ended
            await self.end()
            why = Phrase("mcp.not_ready_in_time", seconds=f"{seconds:g}") if late else _explain_end(self.task)
            code = "mcp.not_started_with_log" if self.log_end else "mcp.not_started"
            raise ToolError(code, hint=self._suggest_next_step(), server=self.server.name, reason=why, log=self.log_end)
        client, found = self.ready.result()
        tools = [self._make_tool(client, each) for each in found]
        names = [tool.name for tool in tools]
        repeated = next((name for name in names if names.count(name) > 1), "")
        if repeated:
            raise ToolError("mcp.doubled_tool", server=self.server.name, tool=repeated)
        return tools

    async def end(self) -> None:
        self.stop.set()
        if self.task is None:
            return
        if not self.ready.done():  # it is still starting, so it does not wait for the stop event
            self.ready.cancel()
            self.task.cancel()
        await asyncio.wait({self.task}, timeout=END_SECONDS)
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait({self.task}, timeout=END_SECONDS)
        if self.task.done() and not self.task.cancelled():
            self.task.exception()  # `start` has reported it; this keeps asyncio from logging it

    async def _serve(self) -> None:
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
            try:
                async with AsyncExitStack() as stack:
                    client = await stack.enter_async_context(Client(await self._open_transport(stack, log), cache=None))
                    tools = await _list_tools(client)
                    if not self.ready.done():
                        self.ready.set_result((client, tools))
                    await self.stop.wait()
            finally:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 400))
                self.log_end = visible(" ".join(log.read().split()))

    async def _open_transport(self, stack: AsyncExitStack, log: IO[str]) -> Any:
        if self.server.url:
            timeout = httpx2.Timeout(START_SECONDS, read=self.seconds)
            headers = dict(self.server.headers)
            client = httpx2.AsyncClient(headers=headers, timeout=timeout, trust_env=False)
            return streamable_http_client(self.server.url, http_client=await stack.enter_async_context(client))
        parameters = StdioServerParameters(
            command=self.server.command, args=list(self.server.args), env=self.environ | dict(self.server.env),
            cwd=self.folder, encoding_error_handler="replace",
        )  # fmt: skip
        return stdio_client(parameters, errlog=cast(Any, log))

    def _suggest_next_step(self) -> Phrase:
        if self.server.url:
            return Phrase("mcp.check_url", url=format_value(self.server.url.partition("?")[0]))
        return Phrase("mcp.run_by_hand", command=format_value(self.server.command))

    def _make_tool(self, client: Client, each: types.Tool) -> Tool:
        name = self.server.name
        description = _clean_text(each.description or "", MAX_DESCRIPTION_CHARS)
        if not description:
            raise ToolError("mcp.no_description", hint="mcp.fix_server", server=name, tool=format_value(each.name))
        reads = each.annotations is not None and each.annotations.read_only_hint is True
        decision = Decision("safe") if reads and self.server.trust else None

        async def run(**arguments: object) -> Outcome:
            try:
                return _make_outcome(await client.call_tool(each.name, arguments, read_timeout_seconds=self.seconds))
            except MCPError as error:
                raise ToolError("mcp.error_answer", server=name, text=_clean_text(error.message, 500)) from None

        def check(arguments: Mapping[str, Any]) -> Decision:
            shows = f"{name}: {each.name} {json.dumps(arguments, ensure_ascii=False)}"
            return decision or Decision("confirm", Phrase("gate.runs_on_server", server=name), visible(shows))

        return Tool(
            f"{name}__{NOT_IN_NAMES.sub('_', each.name)}",
            description,
            self._check_schema(each),
            note=f"A tool of the MCP server {name}; the server describes it with its schema.",
            run=run,
            check=check,
            modes=("agent", "plan") if decision else ("agent",),
            seconds=self.seconds + 1,
        )

    def _check_schema(self, tool: types.Tool) -> dict[str, Any]:
        """The schema of the server, if it describes an object and is not too long, with its descriptions cleaned."""
        schema: dict[str, Any] = tool.input_schema
        try:
            size = len(json.dumps(schema))
        except (TypeError, ValueError, RecursionError):
            size = MAX_SCHEMA_CHARS + 1
        properties: Any = schema.get("properties", {})
        required: Any = schema.get("required", [])
        code = ""
        if size > MAX_SCHEMA_CHARS or schema.get("type") != "object" or not isinstance(properties, dict):
            code = "mcp.bad_schema"
        elif not isinstance(required, list) or not all(isinstance(each, str) for each in cast(list[Any], required)):
            code = "mcp.bad_required"
        if code:
            raise ToolError(code, hint="mcp.fix_server", server=self.server.name, tool=format_value(tool.name))
        return {"properties": {}, **_clean_schema(schema)}


async def _list_tools(client: Client) -> list[types.Tool]:
    found: list[types.Tool] = []
    cursor: str | None = None
    while len(found) <= MAX_TOOLS:
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if not cursor or not page.tools:
            return found
    raise ToolError("mcp.too_many_tools", limit=MAX_TOOLS)


def _clean_schema(value: Any) -> Any:
    if isinstance(value, list):
        return [_clean_schema(each) for each in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    return {
        name: _clean_text(each, MAX_DESCRIPTION_CHARS)
        if name in ("description", "title") and isinstance(each, str)
        else _clean_schema(each)
        for name, each in cast(dict[str, Any], value).items()
    }


def _clean_text(text: str, limit: int) -> str:
    """Text from outside, without hidden characters and limited in length."""
    text = ANY.sub("", text.encode("utf-8", "replace").decode()).strip()
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _make_outcome(result: types.CallToolResult) -> Outcome:
    parts = [_describe_block(each) for each in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return Outcome("\n".join(parts) or f"[{Phrase('bash.no_output')}]", "failed" if result.is_error else "done")


def _describe_block(block: types.ContentBlock) -> str:
    if isinstance(block, types.TextContent):
        return block.text
    if isinstance(block, types.EmbeddedResource):
        resource = block.resource
        if isinstance(resource, types.TextResourceContents):
            return resource.text
        return f"[{Phrase('mcp.file_not_shown', uri=str(resource.uri))}]"
    if isinstance(block, types.ResourceLink):
        return f"[{Phrase('mcp.link', uri=str(block.uri))}]"
    return f"[{Phrase('mcp.not_shown', type=block.type, mime_type=block.mime_type)}]"


def _explain_end(task: asyncio.Task[None]) -> Phrase:
    if task.cancelled():
        return Phrase("mcp.cancelled")
    error = task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = cast(BaseExceptionGroup[BaseException], error).exceptions[0]
    if isinstance(error, FileNotFoundError):
        code = "mcp.no_command" if error.filename else "mcp.no_such_command"
        return Phrase(code, command=format_value(error.filename))
    if error is None:
        return Phrase("mcp.ended_at_once")
    return Phrase("mcp.raised", error=type(error).__name__, problem=_clean_text(" ".join(str(error).split()), 300))
