"""Tools of MCP servers (extra `mcp`): servers started or reached as the configuration says, their tools made ours.

What a server says about its tools is text from outside: bounded, without hidden characters, kept out of the prompt's
notes. Nothing of a server runs without a yes, unless it says that a tool only reads and the configuration trusts it.
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


def servers_of(config: Mapping[str, Any]) -> list[Server]:
    """The servers of `{"mcpServers": {name: {"command": …} or {"url": …}}}`; without those that are `disabled`."""
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
    """Names and texts. An error shows the names alone: the values may be secrets."""
    if not isinstance(value, Mapping):
        raise ToolError("mcp.pairs_not_an_object", hint="mcp.form", server=server, field=key)
    pairs = cast(Mapping[str, Any], value)
    wrong = [name for name, each in pairs.items() if not isinstance(each, str)]
    if wrong:
        raise ToolError("mcp.pairs_not_text", server=server, field=key, names=format_value(wrong))
    return tuple(pairs.items())


@asynccontextmanager
async def mcp_tools(
    config: Mapping[str, Any], *, root: str | os.PathLike[str] = ".", environ: Mapping[str, str] | None = None,
    seconds: float = SECONDS, start_seconds: float = START_SECONDS,
) -> AsyncGenerator[list[Tool]]:  # fmt: skip
    """The tools of all servers of the configuration, as long as the block lasts; then every server is ended.

    Commands start in `root` with a clean environment, of which `environ` gives a few harmless names, and with the
    `env` that the configuration names. A server that does not come up, or a tool that cannot be used, is an error.
    """
    folder = os.path.abspath(root)
    hosts = [_Host(server, folder, clean_environment(folder, environ), seconds) for server in servers_of(config)]
    try:
        started = await asyncio.gather(*(host.start(start_seconds) for host in hosts), return_exceptions=True)
        tools: list[Tool] = []
        for each in started:
            if isinstance(each, BaseException):
                raise each
            tools += each
        yield tools
    finally:
        await asyncio.gather(*(host.end() for host in hosts))


class _Host:
    """A server and the task that it lives in: the SDK wants what it opens to be closed by the same task."""

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
            late = not self.task.done()  # ask before it is ended
            await self.end()
            why = Phrase("mcp.not_ready_in_time", seconds=f"{seconds:g}") if late else _explain_end(self.task)
            code = "mcp.not_started_with_log" if self.log_end else "mcp.not_started"
            raise ToolError(code, hint=self._next_step(), server=self.server.name, reason=why, log=self.log_end)
        client, found = self.ready.result()
        tools = [self._tool(client, each) for each in found]
        names = [tool.name for tool in tools]
        doubled = next((name for name in names if names.count(name) > 1), "")
        if doubled:
            raise ToolError("mcp.doubled_tool", server=self.server.name, tool=doubled)
        return tools

    async def end(self) -> None:
        self.stop.set()
        if self.task is None:
            return
        if not self.ready.done():  # it has not come up, so it does not wait for a stop
            self.ready.cancel()
            self.task.cancel()
        await asyncio.wait({self.task}, timeout=END_SECONDS)
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait({self.task}, timeout=END_SECONDS)
        if self.task.done() and not self.task.cancelled():
            self.task.exception()  # `start` has reported it; nothing else waits for this task

    async def _serve(self) -> None:
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
            try:
                async with AsyncExitStack() as stack:
                    client = await stack.enter_async_context(Client(await self._transport(stack, log), cache=None))
                    tools = await _all_tools(client)
                    if not self.ready.done():
                        self.ready.set_result((client, tools))
                    await self.stop.wait()
            finally:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 400))
                self.log_end = visible(" ".join(log.read().split()))

    async def _transport(self, stack: AsyncExitStack, log: IO[str]) -> Any:
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

    def _next_step(self) -> Phrase:
        if self.server.url:
            return Phrase("mcp.check_url", url=format_value(self.server.url.partition("?")[0]))
        return Phrase("mcp.run_by_hand", command=format_value(self.server.command))

    def _tool(self, client: Client, each: types.Tool) -> Tool:
        name = self.server.name
        description = _clean_text(each.description or "", MAX_DESCRIPTION_CHARS)
        if not description:
            raise ToolError("mcp.no_description", hint="mcp.fix_server", server=name, tool=format_value(each.name))
        reads = each.annotations is not None and each.annotations.read_only_hint is True
        decision = Decision("safe") if reads and self.server.trust else None

        async def run(**arguments: object) -> Outcome:
            try:
                return _outcome(await client.call_tool(each.name, arguments, read_timeout_seconds=self.seconds))
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
        """The schema as the server wrote it, if it is an object's and of bounded size; its descriptions are cleaned."""
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


async def _all_tools(client: Client) -> list[types.Tool]:
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
    """Text from outside, without characters that cannot be seen, and of a bounded length."""
    text = ANY.sub("", text.encode("utf-8", "replace").decode()).strip()
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _outcome(result: types.CallToolResult) -> Outcome:
    parts = [_part(each) for each in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    text = "\n".join(parts).encode("utf-8", "backslashreplace").decode()
    return Outcome(text or f"[{Phrase('bash.no_output')}]", "failed" if result.is_error else "done")


def _part(block: types.ContentBlock) -> str:
    if isinstance(block, types.TextContent):
        return block.text
    if isinstance(block, types.EmbeddedResource):
        resource = block.resource
        return (
            resource.text
            if isinstance(resource, types.TextResourceContents)
            else f"[{Phrase('mcp.file_not_shown', uri=str(resource.uri))}]"
        )
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
