"""Chat completions as OpenAI defined them and nearly everybody serves them: OpenAI, DeepSeek, Qwen, vLLM, Ollama, …

The body that is sent starts with the context's payload, byte for byte. What servers do differently is forgiven where
the meaning is clear: no usage, no `[DONE]`, null deltas, calls without index or id, a whole body instead of a stream.
"""

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from lamina.errors import BrokenStreamError
from lamina.ports import Encode
from lamina.providers.answers import events
from lamina.providers.forms import (
    ASK_AGAIN,
    CHECK_ADDRESS,
    MAX_CALLS,
    PartialCall,
    TextJoiner,
    check_context,
    count,
    end_answer,
    mapping,
    parse_object,
    reported_error,
    request_body,
    sequence,
    too_many_calls,
    word,
)
from lamina.providers.http import Client, Deadlines, Retries
from lamina.providers.sse import ServerEvent
from lamina.types import Context, Done, DoneReason, Event, Grammar, Key, Text, ToolCallEvent, Usage

OPTIONS = frozenset({
    "temperature", "top_p", "stop", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "response_format",
    "tool_choice", "parallel_tool_calls", "reasoning_effort", "verbosity",
})  # fmt: skip
"""Wishes of a caller that are passed on; everything else of a request is ours."""
ADDRESS = "https://api.openai.com/v1"
_REASONS: dict[str, DoneReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


class OpenAIProvider:
    """`POST {base_url}/chat/completions`. `extra` is added to each request; None there takes one of ours away."""

    name = "openai"
    grammar: Grammar = "openai"

    def __init__(
        self, model: str, *, key: Key | None = None, base_url: str = ADDRESS, window: int | None = None,
        stream: bool = True, extra: Mapping[str, Any] | None = None, deadlines: Deadlines | None = None,
        retries: Retries | None = None, trust_environment: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.window = model, window
        self._stream, self._extra = stream, dict(extra or {})
        self._client = Client(
            base_url, key=key, deadlines=deadlines, retries=retries, trust_environment=trust_environment
        )
        # OpenAI's own models refuse the old name, and most others do not know the new one.
        at_home = urlsplit(base_url).hostname == urlsplit(ADDRESS).hostname
        self._limit = "max_completion_tokens" if at_home else "max_tokens"

    def stream(
        self, context: Context, *, max_tokens: int | None = None, options: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[Event]:
        wished = {name: value for name, value in (options or {}).items() if name in OPTIONS}
        model = (options or {}).get("model", self.model)
        more: dict[str, Any] = {**wished, "model": model, "stream": self._stream, self._limit: max_tokens}
        if self._stream:
            more["stream_options"] = {"include_usage": True}
        body = request_body(check_context(context).receipt, "openai", {**more, **self._extra})
        return events(self._client, "/chat/completions", body, CompletionReader(self._client.host), stream=self._stream)

    async def close(self) -> None:
        await self._client.close()

    def __repr__(self) -> str:
        return f"OpenAIProvider({self.model!r} at {self._client.host})"


def provider(
    model: str, *, encode: Encode, key: Key | None, window: int | None, base_url: str = ADDRESS
) -> OpenAIProvider:
    """The context is encoded in this form already."""
    return OpenAIProvider(model, key=key, window=window, base_url=base_url)


class CompletionReader:
    """One answer, from chunks or whole."""

    def __init__(self, host: str) -> None:
        self.finished = self.ended = False
        self._host = host
        self._text = TextJoiner()
        self._calls: list[PartialCall] = []
        self._places: dict[int, PartialCall] = {}
        self._reason: DoneReason = "stop"
        self._usage: Usage | None = None

    def read(self, event: ServerEvent) -> Iterator[Text]:
        data = event.data.strip()
        if data == "[DONE]":
            self.finished = self.ended = True
        elif data:
            yield from self._take(parse_object(data, self._host), "delta")

    def read_whole(self, value: dict[str, Any]) -> Iterator[Text]:
        if "choices" not in value and not value.get("error"):
            raise BrokenStreamError("provider.not_an_answer", host=self._host, hint=CHECK_ADDRESS)
        yield from self._take(value, "message")
        self.finished = self.finished or bool(value["choices"])

    def last(self) -> Iterator[Text | ToolCallEvent | Usage | Done]:
        yield from self._text.end()
        yield from end_answer(self._calls, self._reason, self._usage, self._host)

    def _take(self, value: dict[str, Any], part: str) -> Iterator[Text]:
        if value.get("error"):
            raise reported_error(value["error"], self._host)
        if value.get("usage"):
            self._usage = usage_of(mapping(value["usage"], self._host), self._host)
        for entry in sequence(value.get("choices"), self._host)[:1]:
            choice = mapping(entry, self._host)
            said = mapping(choice.get(part), self._host)
            yield from self._text.take(content_of(said.get("content"), self._host), self._host)
            yield from self._text.take(said.get("refusal"), self._host)
            for call in sequence(said.get("tool_calls"), self._host):
                self._add(mapping(call, self._host), apart=part == "message")
            if choice.get("finish_reason"):
                self._reason = _REASONS.get(word(choice["finish_reason"]), "other")
                self.finished = True

    def _add(self, delta: dict[str, Any], *, apart: bool) -> None:
        """A piece of a call, to the call it belongs to: by index, or by id where a server counts wrongly."""
        function = mapping(delta.get("function"), self._host)
        identity, name, index = delta.get("id"), function.get("name"), delta.get("index")
        place = index if isinstance(index, int) else 0
        call = self._places.get(place)
        another = call is not None and isinstance(identity, str) and identity not in ("", call.id) and bool(name)
        if call is None or apart or another:
            if len(self._calls) >= MAX_CALLS:
                raise too_many_calls(self._host)
            call = self._places[place] = PartialCall()
            self._calls.append(call)
        if isinstance(identity, str) and not call.id:
            call.id = identity
        if isinstance(name, str) and not call.name:
            call.name = name
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            call.pieces = [json.dumps(arguments, ensure_ascii=False)]
        elif isinstance(arguments, str):
            call.pieces.append(arguments)
        elif arguments is not None:
            raise BrokenStreamError("provider.arguments_of_no_form", host=self._host, hint=ASK_AGAIN)


def content_of(content: Any, host: str) -> Any:
    """Text, also where it comes as a list of parts; other parts, such as thoughts, are left out."""
    if not isinstance(content, list):
        return content
    parts = [mapping(part, host) for part in sequence(content, host)]
    return "".join(word(part.get("text")) for part in parts if part.get("type") == "text")


def usage_of(usage: dict[str, Any], host: str) -> Usage:
    details = mapping(usage.get("prompt_tokens_details"), host)
    cached = count(details.get("cached_tokens")) or count(usage.get("prompt_cache_hit_tokens"))
    prompt = count(usage.get("prompt_tokens"))
    return Usage(prompt, min(cached, prompt), count(usage.get("completion_tokens")))
