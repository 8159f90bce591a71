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

from lamina.errors import ToolError, shown
from lamina.layers.environment import clean_environment
from lamina.layers.hidden import ANY, visible
from lamina.layers.tools import Tool
from lamina.types import Decision, Outcome

START_SECONDS = 30.0
END_SECONDS = 10.0
SECONDS = 60.0
MAX_DESCRIPTION = 2_000
MAX_SCHEMA = 32_000
MAX_TOOLS = 500
UNFIT = re.compile(r"[^A-Za-z0-9_-]")
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
        raise ToolError(f"the MCP configuration has no mcpServers, but {shown(list(config))}", hint=_FORM)
    servers = cast(Mapping[str, Any], found)
    return [_server(name, each) for name, each in servers.items() if not _is_disabled(each)]


_FORM = 'write {"mcpServers": {"name": {"command": "…", "args": ["…"], "env": {"…": "…"}}}}, or {"url": "…"} in it'


def _is_disabled(entry: object) -> bool:
    return isinstance(entry, Mapping) and cast(Mapping[str, Any], entry).get("disabled") is True


def _server(name: str, entry: object) -> Server:
    where = f"the MCP server {shown(name)}"
    if not SERVER_NAME.fullmatch(name) or "__" in name:
        raise ToolError(f"{where} has a name that cannot begin a tool's name", hint="1 to 32 of A-Z, a-z, 0-9, _ and -")
    if not isinstance(entry, Mapping):
        raise ToolError(f"{where} is {shown(entry)}, not an object", hint=_FORM)
    values = cast(Mapping[str, Any], entry)
    command, url = values.get("command", ""), values.get("url", "")
    if not isinstance(command, str) or not isinstance(url, str) or bool(command) == bool(url):
        raise ToolError(f"{where} needs either a command or a url, as text", hint=_FORM)
    if url and not url.startswith(("http://", "https://")):
        raise ToolError(f"{where} has the url {shown(url)}", hint="it begins with http:// or https://")
    args: object = values.get("args", [])
    if not isinstance(args, list) or not all(isinstance(each, str) for each in cast(list[Any], args)):
        raise ToolError(f"{where} has args that are no list of texts: {shown(cast(object, args))}", hint=_FORM)
    trust = values.get("trust", False)
    if not isinstance(trust, bool):
        raise ToolError(f"{where} has trust={shown(trust)}", hint="true or false")
    pairs = {key: _pairs(where, key, values.get(key, {})) for key in ("env", "headers")}
    return Server(name, command, tuple(cast(list[str], args)), pairs["env"], url, pairs["headers"], trust)


def _pairs(where: str, key: str, value: object) -> tuple[tuple[str, str], ...]:
    """Names and texts. An error shows the names alone: the values may be secrets."""
    if not isinstance(value, Mapping):
        raise ToolError(f"{where} has {key} that is no object", hint=_FORM)
    pairs = cast(Mapping[str, Any], value)
    wrong = [name for name, each in pairs.items() if not isinstance(each, str)]
    if wrong:
        raise ToolError(f"{where} has {key} whose values are no text: {shown(wrong)}", hint="put them in quotes")
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
        self.where = f"the MCP server {server.name}"
        self.stop = asyncio.Event()
        self.said = ""
        self.ready: asyncio.Future[tuple[Client, list[types.Tool]]] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None

    async def start(self, seconds: float) -> list[Tool]:
        self.task = asyncio.ensure_future(self._serve())
        await asyncio.wait({self.task, self.ready}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not self.ready.done():
            late = not self.task.done()  # ask before it is ended
            await self.end()
            why = f"it was not ready within {seconds:g} seconds" if late else _why(self.task)
            said = f"; it said: {self.said}" if self.said else ""
            raise ToolError(f"{self.where} could not be started: {why}{said}", hint=self._hint())
        client, found = self.ready.result()
        tools = [self._tool(client, each) for each in found]
        names = [tool.name for tool in tools]
        doubled = next((name for name in names if names.count(name) > 1), "")
        if doubled:
            raise ToolError(f"{self.where} has two tools that become {doubled}", hint="leave this server out")
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
            self.task.exception()  # whoever started it was told; nobody else waits for it

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
                self.said = visible(" ".join(log.read().split()))

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

    def _hint(self) -> str:
        if self.server.url:
            return f"check {shown(self.server.url.partition('?')[0])} and whether it speaks streamable HTTP"
        return f"run {shown(self.server.command)} by hand and see what it says"

    def _tool(self, client: Client, each: types.Tool) -> Tool:
        where = f"the tool {shown(each.name)} of {self.where}"
        description = _text(each.description or "", MAX_DESCRIPTION)
        if not description:
            raise ToolError(f"{where} has no description, so no model can know when to use it", hint="mend the server")
        reads = each.annotations is not None and each.annotations.read_only_hint is True
        decision = Decision("safe") if reads and self.server.trust else None

        async def run(**arguments: Any) -> Outcome:
            try:
                return _outcome(await client.call_tool(each.name, arguments, read_timeout_seconds=self.seconds))
            except MCPError as error:
                raise ToolError(f"{self.where} answered with an error: {_text(error.message, 500)}") from None

        def check(arguments: Mapping[str, Any]) -> Decision:
            shows = f"{self.server.name}: {each.name} {json.dumps(arguments, ensure_ascii=False)}"
            return decision or Decision("confirm", f"it runs on {self.where}", visible(shows))

        return Tool(
            f"{self.server.name}__{UNFIT.sub('_', each.name)}",
            description,
            _schema(each.input_schema, where),
            note=f"A tool of {self.where}; the server describes it with its schema.",
            run=run,
            check=check,
            modes=("agent", "plan") if decision else ("agent",),
            seconds=self.seconds + 1,
        )


async def _all_tools(client: Client) -> list[types.Tool]:
    found: list[types.Tool] = []
    cursor: str | None = None
    while len(found) <= MAX_TOOLS:
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if not cursor or not page.tools:
            return found
    raise ToolError(f"there are more than {MAX_TOOLS} tools", hint="use a server with fewer of them")


def _schema(schema: dict[str, Any], where: str) -> dict[str, Any]:
    """The schema as the server wrote it, once it is an object's, of bounded size; its descriptions are cleaned."""
    try:
        size = len(json.dumps(schema))
    except (TypeError, ValueError, RecursionError):
        size = MAX_SCHEMA + 1
    properties: Any = schema.get("properties", {})
    required: Any = schema.get("required", [])
    if size > MAX_SCHEMA or schema.get("type") != "object" or not isinstance(properties, dict):
        raise ToolError(f"{where} has a schema that is no object's, or is too long", hint="mend the server")
    if not isinstance(required, list) or not all(isinstance(each, str) for each in cast(list[Any], required)):
        raise ToolError(f"{where} has a schema whose required is no list of names", hint="mend the server")
    return {"properties": {}, **_cleaned(schema)}


def _cleaned(value: Any) -> Any:
    if isinstance(value, list):
        return [_cleaned(each) for each in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    return {
        name: _text(each, MAX_DESCRIPTION)
        if name in ("description", "title") and isinstance(each, str)
        else _cleaned(each)
        for name, each in cast(dict[str, Any], value).items()
    }


def _text(text: str, limit: int) -> str:
    """Words from outside: without characters that nobody sees, and not longer than they need to be."""
    text = ANY.sub("", text.encode("utf-8", "replace").decode()).strip()
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _outcome(result: types.CallToolResult) -> Outcome:
    parts = [_part(each) for each in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    text = "\n".join(parts).encode("utf-8", "backslashreplace").decode()
    return Outcome(text or "[no output]", "failed" if result.is_error else "done")


def _part(block: types.ContentBlock) -> str:
    if isinstance(block, types.TextContent):
        return block.text
    if isinstance(block, types.EmbeddedResource):
        resource = block.resource
        return (
            resource.text
            if isinstance(resource, types.TextResourceContents)
            else f"[a file, not shown: {resource.uri}]"
        )
    if isinstance(block, types.ResourceLink):
        return f"[a link: {block.uri}]"
    return f"[{block.type}, {block.mime_type}, not shown]"


def _why(task: asyncio.Task[None]) -> str:
    if task.cancelled():
        return "it was cancelled"
    error = task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = cast(BaseExceptionGroup[BaseException], error).exceptions[0]
    if isinstance(error, FileNotFoundError):
        return f"there is no {shown(error.filename or 'such command')}"
    return f"{type(error).__name__}: {_text(' '.join(str(error).split()), 300)}" if error else "it ended at once"
