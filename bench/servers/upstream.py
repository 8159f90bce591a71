"""A model's server that costs next to nothing: 20 words, whole or in 20 chunks.

`python -m bench.servers.upstream PORT`
"""

import asyncio
import json
import re
import sys

WORDS = [f"word{n} " for n in range(20)]
HEAD = {"id": "x", "created": 0, "model": "m"}
USAGE = {"prompt_tokens": 50, "completion_tokens": 20, "total_tokens": 70}


def _chunk(delta: dict[str, str], reason: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return f"data: {json.dumps({**HEAD, 'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"


def _whole() -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": "".join(WORDS)}, "finish_reason": "stop"}
    body = json.dumps({**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def _pieces() -> list[bytes]:
    usage = f"data: {json.dumps({**HEAD, 'object': 'chat.completion.chunk', 'choices': [], 'usage': USAGE})}\n\n"
    texts = [_chunk({"content": word}) for word in WORDS] + [_chunk({}, "stop") + usage + "data: [DONE]\n\n"]
    return [b"%x\r\n%b\r\n" % (len(text.encode()), text.encode()) for text in texts]


WHOLE, PIECES = _whole(), _pieces()
OPENING = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            found = LENGTH.search(head)
            body = await reader.readexactly(int(found[1])) if found else b""
            if b'"stream": true' in body or b'"stream":true' in body:
                writer.write(OPENING)
                for piece in PIECES:  # one write each, as a model would
                    writer.write(piece)
                    await asyncio.sleep(0)
                writer.write(b"0\r\n\r\n")
            else:
                writer.write(WHOLE)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main(port: int) -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
