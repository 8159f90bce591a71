"""A small MCP server for the tests, as anybody would write one with the official SDK.

`python tests/tools/mcp_server.py <which>`: what it offers, or how it misbehaves.
"""

import asyncio
import json
import os
import sys
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.stdio import stdio_server
from mcp.types import CallToolResult, ListToolsResult, Tool, ToolAnnotations

good = MCPServer("small")


@good.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> str:
    """Add two numbers. Use it for sums."""
    return f"和 {a + b}"


@good.tool()
def note(text: str) -> str:
    """Write a note into the folder where the server works."""
    with open("note.txt", "a", encoding="utf-8") as file:
        file.write(text)
    return "noted"


@good.tool()
def surroundings() -> dict[str, str]:
    """The environment and the folder of the server."""
    return {**os.environ, "folder": os.getcwd()}


@good.tool()
def fail(why: str) -> str:
    """Fails."""
    raise ToolError(why)


@good.tool()
async def wait() -> str:
    """Never ends."""
    await asyncio.Event().wait()
    return ""


@good.tool()
def die() -> str:
    """Ends the server."""
    os._exit(3)


def listing(*tools: Tool) -> Any:
    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=list(tools))

    async def call_tool(context: Any, params: Any) -> CallToolResult:
        return CallToolResult(content=[])

    return Server("odd", on_list_tools=list_tools, on_call_tool=call_tool)


EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
LONG = "Say \u200b\U000e0041\x1b[31m it\u202e. " + "x" * 5_000
ODD: dict[str, list[Tool]] = {
    "silent": [Tool(name="mute", description=" \u200b", input_schema=EMPTY)],
    "required": [Tool(name="required", description="d", input_schema={"type": "object", "required": "x"})],
    "huge": [Tool(name="huge", description="d", input_schema={"type": "object", "x": "y" * 50_000})],
    "twins": [Tool(name=name, description="d", input_schema=EMPTY) for name in ("a.b", "a/b")],
    "long": [Tool(name="l" * 90, description="d", input_schema=EMPTY)],
    "hidden": [
        Tool(
            name="dotted.name",
            description=LONG,
            input_schema={"type": "object", "properties": {"x": {"type": "string", "description": LONG}}},
        )
    ],
    "empty": [],
}


async def serve(which: str) -> None:
    server = listing(*ODD[which])
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def serve_raw(tool: dict[str, Any]) -> None:
    """Without the SDK, which would refuse to send such a tool."""
    for line in sys.stdin:
        asked = json.loads(line)
        answers: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "raw", "version": "1"},
            },
            "tools/list": {"tools": [tool]},
        }
        answer = answers.get(asked["method"])
        body = {"result": answer} if answer else {"error": {"code": -32601, "message": "Method not found"}}
        if "id" in asked:
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **body}), flush=True)


def main() -> None:
    which = sys.argv[1]
    if which == "scalar":
        serve_raw({"name": "scalar", "description": "d", "inputSchema": {"type": "string"}})
        return
    if which == "dead":
        print("no licence\x1b[0m found", file=sys.stderr)
        sys.exit(1)
    if which == "deaf":
        sys.stdin.read()
    if which == "http":
        good.run(transport="streamable-http", port=int(sys.argv[2]))
    if which == "good":
        good.run()
    asyncio.run(serve(which))


if __name__ == "__main__":
    main()
