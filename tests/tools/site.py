"""A real web server on this machine for the tests of web_fetch, and a web that may reach it and nothing else."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address

from lamina.tools.web import Address, Web

HERE = ip_address("127.0.0.1")


def answer(body: bytes, kind: str = "text/html; charset=utf-8", status: str = "200 OK", **more: str) -> bytes:
    """A whole answer, as bytes on the wire."""
    head = {
        "Content-Type": kind,
        "Content-Length": str(len(body)),
        **{name.replace("_", "-"): v for name, v in more.items()},
    }
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in head.items() if value), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def to(location: str) -> bytes:
    return answer(b"", status="302 Found", Location=location)


@dataclass
class Site:
    """What stands at each path, and what was asked for."""

    pages: Mapping[str, bytes]
    port: int = 0
    asked: list[str] = field(default_factory=list[str])
    visits: list["asyncio.Task[None] | None"] = field(default_factory=list["asyncio.Task[None] | None"])
    writers: list[asyncio.StreamWriter] = field(default_factory=list[asyncio.StreamWriter])

    def url(self, path: str, host: str = "site.example") -> str:
        return f"http://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visits.append(asyncio.current_task())
        self.writers.append(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            self.asked.append(head)
            page = self.pages.get(head.split(" ")[1], answer(b"nothing", status="404 Not Found"))
            if page == b"never":
                await reader.read()
            writer.write(page)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def site(pages: Mapping[str, bytes]) -> AsyncGenerator[Site]:
    it = Site(pages)
    server = await asyncio.start_server(it.serve, "127.0.0.1", 0)
    it.port = server.sockets[0].getsockname()[1]
    async with server:
        yield it
        for writer in it.writers:
            writer.transport.abort()
        await asyncio.gather(*(visit for visit in it.visits if visit))


def only_here(address: Address) -> bool:
    """The open internet of a test: this one address."""
    return address == HERE


async def always_here(_host: str, _port: int) -> Sequence[str]:
    return ["127.0.0.1"]


def web(
    allowed: Callable[[Address], bool] = only_here, seconds: float = 20.0, max_bytes: int = 200_000,
    secrets: Sequence[str] = (),
) -> Web:  # fmt: skip
    return Web(secrets, allowed, always_here, seconds, max_bytes)
