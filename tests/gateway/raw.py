"""Bytes on a socket, for what no polite client sends."""

import asyncio
from collections.abc import Mapping

DISHONEST_BODIES = [
    (b'{"a": NaN}', "NaN is not a number"),
    (b'{"a": 1e999}', "too large"),
    (b'{"a": ' + b"9" * 5_000 + b"}", "too many digits"),
    (b'{"a": 1, "a": 2}', "'a' appears twice"),
    (b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}", "nested deeper than 64"),
    (b"[" * 100_000, "nested deeper than 64"),
    (b'{"a": "\\ud800"}', "lone surrogate U+D800"),
    (b'"' + b"\\n" * 100_000, "Unterminated"),
    (b"1 1", "Extra data"),
    (b"", "Expecting value"),
]
"""Bodies that are not JSON, or not as it was meant, and what is said of each."""


def request(
    method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"", *, port: int = 0
) -> bytes:
    sent = {"Host": f"127.0.0.1:{port}", **({"Content-Length": str(len(body))} if body else {}), **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


async def say(port: int, data: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send these bytes and read one reply: its status, headers and body; status 0 when the connection just ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await reply(reader)
    finally:
        writer.close()


async def reply(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, {}, b""
    pairs = (line.partition(": ") for line in head[1:] if line)
    headers = {name.lower(): value for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return int(head[0].split()[1]), headers, body
