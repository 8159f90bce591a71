"""llama.cpp's own server as a judge: what it served from its cache and how long it read, in its own figures.

A provider for lamina's engine that answers with the words of a transcript: the model says one token, which nobody
keeps, so that every way of building requests is measured on the same chat.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.request import Request, urlopen

from lamina.providers.local import end, shipped_model
from lamina.types import Context, Done, Event, Grammar, Receipt, Text, Usage

KEY = "bench"
WINDOW = 8_192


@dataclass(frozen=True, slots=True)
class Judged:
    """One request, as the server counted it."""

    prompt: int
    cached: int
    seconds: float
    """That it read what was not cached."""


class Llama:
    """The running server: its counter and its verdicts."""

    name, per_message, per_request = "SmolLM2", 5, 3
    """ChatML: <|im_start|>, the role and a line break before each text, <|im_end|> and a line break behind it; and once
    the beginning of the answer."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._known = lru_cache(100_000)(self._tokens)

    def __call__(self, text: str, /) -> int:
        return self._known(text)

    def tools(self, tools: Sequence[Mapping[str, Any]], /) -> int:
        return sum(map(self, (json.dumps(tool) for tool in tools)))

    def ask(self, messages: Any) -> Judged:
        said = self._post("/v1/chat/completions", {"messages": messages, "max_tokens": 1, "cache_prompt": True})
        usage, timings = said["usage"], said["timings"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return Judged(usage["prompt_tokens"], cached, timings["prompt_ms"] / 1_000)

    def _tokens(self, text: str) -> int:
        return len(self._post("/tokenize", {"content": text})["tokens"])

    def _post(self, path: str, body: Any) -> Any:
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        with urlopen(Request(self._url + path, json.dumps(body).encode(), headers), timeout=600) as answer:
            return json.load(answer)


@contextmanager
def llama(path: str = "", threads: int = 1) -> Generator[Llama]:
    """A fresh server with an empty cache, as the product starts it."""
    settings = {"path": path or shipped_model(), "n_ctx": WINDOW, "threads": threads, "key": KEY}
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "lamina.providers.llama_child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=log,
        )  # fmt: skip
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(json.dumps(settings).encode() + b"\n")
            child.stdin.flush()
            yield Llama(json.loads(child.stdout.readline())["url"])
        finally:
            end(child)


class Judge:
    """A provider whose answers are the transcript's. It keeps the receipt of each request, and the verdict on it."""

    name, model, window = "judge", "SmolLM2-135M", WINDOW
    grammar: Grammar = "openai"

    def __init__(self, server: Llama, answers: Sequence[str]) -> None:
        self._server, self._answers = server, answers
        self.seen: list[tuple[Receipt, Judged]] = []

    async def stream(
        self, context: Context, *, max_tokens: int | None = None, options: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[Event]:
        messages = json.loads(context.receipt.payload)["messages"]
        judged = await asyncio.to_thread(self._server.ask, messages)
        self.seen.append((context.receipt, judged))
        yield Text(self._answers[len(self.seen) - 1])
        yield Usage(judged.prompt, judged.cached, 1)
        yield Done("stop")

    async def close(self) -> None:
        return
