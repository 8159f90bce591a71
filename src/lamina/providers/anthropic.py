"""Anthropic's Messages API. The context is encoded in its grammar by the function that is handed in.

Thoughts and pings are passed over; a call's input is put together from its pieces; tokens read from and written to the
cache are counted as part of the prompt, as every other provider counts them.
"""

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

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

ADDRESS = "https://api.anthropic.com/v1"
VERSION = "2023-06-01"
MAX_TOKENS = 4_096
"""The API wants a limit; this one is sent when the caller gives none."""
_REASONS: dict[str, DoneReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


_CHOICES = {"auto": "auto", "none": "none", "required": "any"}


class AnthropicProvider:
    """`POST {base_url}/messages`. `extra` is added to each request; None there takes one of ours away."""

    name = "anthropic"
    grammar: Grammar = "anthropic"

    def __init__(
        self, model: str, *, encode: Encode, key: Key | None = None, base_url: str = ADDRESS,
        window: int | None = None, stream: bool = True, extra: Mapping[str, Any] | None = None,
        deadlines: Deadlines | None = None, retries: Retries | None = None, trust_environment: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.window = model, window
        self._encode, self._stream, self._extra = encode, stream, dict(extra or {})
        self._client = Client(
            base_url, key=key, key_header="x-api-key", key_form="{}", headers={"anthropic-version": VERSION},
            deadlines=deadlines, retries=retries, trust_environment=trust_environment,
        )  # fmt: skip

    def stream(
        self, context: Context, *, max_tokens: int | None = None, options: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[Event]:
        receipt = self._encode(check_context(context), "anthropic")
        more = {
            **translate_options(options or {}),
            "model": (options or {}).get("model", self.model),
            "max_tokens": max_tokens or MAX_TOKENS,
            "stream": self._stream,
        }
        body = request_body(receipt, "anthropic", {**more, **self._extra})
        return events(self._client, "/messages", body, MessageReader(self._client.host), stream=self._stream)

    async def close(self) -> None:
        await self._client.close()

    def __repr__(self) -> str:
        return f"AnthropicProvider({self.model!r} at {self._client.host})"


def provider(
    model: str, *, encode: Encode, key: Key | None, window: int | None, base_url: str = ADDRESS
) -> AnthropicProvider:
    return AnthropicProvider(model, encode=encode, key=key, window=window, base_url=base_url)


def translate_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """A caller's wishes, given in OpenAI's words, as far as this API has words for them."""
    found: dict[str, Any] = {name: options[name] for name in ("temperature", "top_p") if name in options}
    if stop := options.get("stop"):
        found["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    choice: Any = options.get("tool_choice")
    if isinstance(choice, str) and choice in _CHOICES:
        found["tool_choice"] = {"type": _CHOICES[choice]}
    elif isinstance(choice, dict):
        found["tool_choice"] = {"type": "tool", "name": mapping(choice, "").get("function", {}).get("name", "")}
    if options.get("parallel_tool_calls") is False:
        found["tool_choice"] = {**found.get("tool_choice", {"type": "auto"}), "disable_parallel_tool_use": True}
    return found


class MessageReader:
    """One answer, from events or whole."""

    def __init__(self, host: str) -> None:
        self.finished = self.ended = False
        self._host = host
        self._text = TextJoiner()
        self._calls: dict[int, PartialCall] = {}
        self._given: dict[int, Any] = {}
        self._reason: DoneReason = "other"
        self._counts: dict[str, int] = {}

    def read(self, event: ServerEvent) -> Iterator[Text]:
        if not event.data.strip():
            return
        value = parse_object(event.data, self._host)
        match value.get("type") or event.kind:
            case "message_start":
                self._count(mapping(value.get("message"), self._host).get("usage"))
            case "content_block_start":
                yield from self._block(self._index(value), mapping(value.get("content_block"), self._host))
            case "content_block_delta":
                yield from self._delta(self._index(value), mapping(value.get("delta"), self._host))
            case "message_delta":
                self._count(value.get("usage"))
                self._stop(mapping(value.get("delta"), self._host).get("stop_reason"))
            case "message_stop":
                self.finished = self.ended = True
            case "error":
                raise reported_error(value.get("error"), self._host)
            case _:  # ping, content_block_stop, and what may come with later versions
                pass

    def read_whole(self, value: dict[str, Any]) -> Iterator[Text]:
        if value.get("error"):
            raise reported_error(value["error"], self._host)
        if value.get("type") != "message":
            raise BrokenStreamError("provider.not_an_answer", host=self._host, hint=CHECK_ADDRESS)
        self._count(value.get("usage"))
        for index, block in enumerate(sequence(value.get("content"), self._host)):
            yield from self._block(index, mapping(block, self._host))
        self._stop(value.get("stop_reason"))

    def last(self) -> Iterator[Text | ToolCallEvent | Usage | Done]:
        yield from self._text.end()
        for index, given in self._given.items():
            if not self._calls[index].pieces:
                self._calls[index].pieces = [json.dumps(given, ensure_ascii=False)]
        calls = [self._calls[index] for index in sorted(self._calls)]
        yield from end_answer(calls, self._reason, self._usage(), self._host)

    def _index(self, value: dict[str, Any]) -> int:
        index = value.get("index")
        if not isinstance(index, int):
            raise BrokenStreamError("provider.piece_without_index", host=self._host, hint=ASK_AGAIN)
        return index

    def _block(self, index: int, block: dict[str, Any]) -> Iterator[Text]:
        if block.get("type") == "text":
            yield from self._text.take(block.get("text"), self._host)
        elif block.get("type") == "tool_use":
            if len(self._calls) >= MAX_CALLS:
                raise too_many_calls(self._host)
            self._calls[index] = PartialCall(word(block.get("id")), word(block.get("name")))
            if block.get("input"):
                self._given[index] = block["input"]

    def _delta(self, index: int, delta: dict[str, Any]) -> Iterator[Text]:
        if delta.get("type") == "text_delta":
            yield from self._text.take(delta.get("text"), self._host)
        elif delta.get("type") == "input_json_delta":
            piece, call = delta.get("partial_json"), self._calls.get(index)
            if call is None or not isinstance(piece, str):
                raise BrokenStreamError("provider.input_without_call", host=self._host, hint=ASK_AGAIN)
            call.pieces.append(piece)

    def _stop(self, reason: Any) -> None:
        if reason:
            self._reason = _REASONS.get(word(reason), "other")
            self.finished = True

    def _count(self, usage: Any) -> None:
        """Later counts replace earlier ones: they are totals."""
        for name, value in mapping(usage, self._host).items():
            if isinstance(value, int):
                self._counts[name] = count(value)

    def _usage(self) -> Usage | None:
        if not self._counts:
            return None
        cached = self._counts.get("cache_read_input_tokens", 0)
        written = self._counts.get("cache_creation_input_tokens", 0)
        prompt = self._counts.get("input_tokens", 0) + cached + written
        return Usage(prompt, cached, self._counts.get("output_tokens", 0))
