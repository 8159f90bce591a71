"""Counters by name: the estimates, and exact ones from `splintr` (extra `tokens`), all offline."""

import json
import os.path
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from lamina.errors import CounterError, format_value
from lamina.ports import Count

VOCABULARIES = {
    "o200k": "o200k_base",
    "cl100k": "cl100k_base",
    "llama3": "llama3",
    "qwen3": "qwen3",
    "deepseek": "deepseek_v3",
    "gemma3": "gemma3",
    "glm4": "glm4",
    "kimi": "kimi_k2",
    "mistral": "mistral_v3",
}


class Tokenizer:
    """An exact counter. It also counts what wraps messages and tools in OpenAI's chat form."""

    per_message = 3
    per_request = 3

    def __init__(self, name: str, encode: Callable[[str], Sequence[int]]) -> None:
        self.name = name
        self._encode = encode

    def __call__(self, text: str, /) -> int:
        return len(self._encode(text))

    def tools(self, tools: Sequence[Mapping[str, Any]], /) -> int:
        """Each tool as the signature that OpenAI's models read: 8 tokens around it, 3 for each parameter."""
        total = 12 if tools else 0
        for tool in tools:
            function: Mapping[str, Any] = tool["function"]
            total += 8 + self(f"{function['name']}:{function['description']}")
            parameters: Mapping[str, Any] = function.get("parameters") or {}
            properties: Mapping[str, Any] = parameters.get("properties") or {}
            for name, schema in properties.items():
                total += 3 + self(f"{name}:{json.dumps(schema, ensure_ascii=False)}")
        return total

    def __repr__(self) -> str:
        return f"Tokenizer({self.name!r})"


def exact_counter(name: str) -> Count:
    """The exact counter of a vocabulary (`o200k`, `qwen3`, …) or of a Hugging Face `tokenizer.json`."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise CounterError("counter.bad_name", value=format_value(name), known=[*VOCABULARIES])
    if name in VOCABULARIES:
        return _load_tokenizer(name, 0)
    if not os.path.isfile(name):
        raise CounterError("counter.no_file", name=format_value(name, 200))
    return _load_tokenizer(name, os.stat(name).st_mtime_ns)


@lru_cache(maxsize=16)
def _load_tokenizer(name: str, _version: int) -> Count:
    try:
        import splintr  # noqa: PLC0415 -- an extra: imported when an exact counter is asked for, never before
    except ImportError:
        raise CounterError("counter.not_installed", name=format_value(name, 200)) from None
    if name in VOCABULARIES:
        return Tokenizer(name, splintr.Tokenizer.from_pretrained(VOCABULARIES[name]).encode_ordinary)
    try:
        tokenizer = splintr.from_json(name)
    except (ValueError, OSError, RuntimeError) as error:
        raise CounterError("counter.bad_file", name=format_value(name, 200), why=str(error)) from None
    return Tokenizer(os.path.basename(name), tokenizer.encode_ordinary)
