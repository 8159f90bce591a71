"""The least that a proxy can do: Starlette takes the request, aiohttp passes it on. Nothing is kept.

`python -m bench.servers.passing PORT UPSTREAM`
"""

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

PORT, UPSTREAM = int(sys.argv[1]), sys.argv[2]
sessions: list[aiohttp.ClientSession] = []


async def completions(request: Request) -> Response:
    body = await request.body()
    reply = await sessions[0].post(
        f"{UPSTREAM}/v1/chat/completions", data=body, headers={"content-type": "application/json"}
    )
    if reply.content_type != "text/event-stream":
        return Response(await reply.read(), media_type="application/json")

    async def pieces() -> AsyncGenerator[bytes]:
        async for piece in reply.content.iter_any():
            yield piece

    return StreamingResponse(pieces(), media_type="text/event-stream")


@asynccontextmanager
async def life(_: Starlette) -> AsyncGenerator[None]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        sessions.append(session)
        yield


app = Starlette(routes=[Route("/v1/chat/completions", completions, methods=["POST"])], lifespan=life)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="error", access_log=False)
