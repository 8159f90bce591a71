"""Anthropic's Messages API.

Reasoning and pings are passed over; a call's input is put together from its pieces; tokens read from and written to the
cache are counted as part of the prompt, as every other provider counts them.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lamina.errors import BrokenStreamError
from lamina.providers.http import HostedProvider
from lamina.providers.reader import (
    ASK_AGAIN,
    CHECK_ADDRESS,
    AnswerReader,
    PartialCall,
    as_object,
    count_or_zero,
    read_reported_error,
    text_or_empty,
)
from lamina.providers.sse import ServerEvent
from lamina.types import DoneReason, Event, Grammar, Text, Usage

MAX_TOKENS = 4_096
"""The API requires a limit; this one is sent when the caller gives none."""
_REASONS: dict[str, DoneReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_TOOL_CHOICES = {"auto": "auto", "none": "none", "required": "any"}


class MessageReader(AnswerReader):
    """One answer, from events or whole."""

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.reason = "other"
        self._by_index: dict[int, PartialCall] = {}
        self._counts: dict[str, int] = {}

    def read(self, event: ServerEvent) -> Iterator[Text]:
        if not event.data.strip():
            return
        value = self.parse(event.data)
        match value.get("type") or event.kind:
            case "message_start":
                self._read_counts(self.as_object(value.get("message")).get("usage"))
            case "content_block_start":
                yield from self._read_block(self._read_index(value), self.as_object(value.get("content_block")))
            case "content_block_delta":
                yield from self._read_delta(self._read_index(value), self.as_object(value.get("delta")))
            case "message_delta":
                self._read_counts(value.get("usage"))
                self._read_reason(self.as_object(value.get("delta")).get("stop_reason"))
            case "message_stop":
                self.finished = self.ended = True
            case "error":
                raise read_reported_error(value.get("error"), self.host)
            case _:  # ping, content_block_stop, and what may come with later versions
                pass

    def read_whole(self, value: dict[str, Any]) -> Iterator[Text]:
        if value.get("error"):
            raise read_reported_error(value["error"], self.host)
        if value.get("type") != "message":
            raise BrokenStreamError("provider.not_an_answer", host=self.host, hint=CHECK_ADDRESS)
        self._read_counts(value.get("usage"))
        for index, block in enumerate(self.as_list(value.get("content"))):
            yield from self._read_block(index, self.as_object(block))
        self._read_reason(value.get("stop_reason"))

    def finish(self) -> Iterator[Event]:
        self.calls = [self._by_index[index] for index in sorted(self._by_index)]
        if self._counts:
            cached = self._counts.get("cache_read_input_tokens", 0)
            written = self._counts.get("cache_creation_input_tokens", 0)
            prompt = self._counts.get("input_tokens", 0) + cached + written
            self.usage = Usage(prompt, cached, self._counts.get("output_tokens", 0))
        yield from super().finish()

    def _read_index(self, value: dict[str, Any]) -> int:
        index = value.get("index")
        if not isinstance(index, int):
            raise BrokenStreamError("provider.piece_without_index", host=self.host, hint=ASK_AGAIN)
        return index

    def _read_block(self, index: int, block: dict[str, Any]) -> Iterator[Text]:
        if block.get("type") == "text":
            yield from self.take_text(block.get("text"))
        elif block.get("type") == "tool_use":
            call = self._by_index[index] = self.add_call(
                text_or_empty(block.get("id")), text_or_empty(block.get("name"))
            )
            if block.get("input"):
                call.given = json.dumps(block["input"], ensure_ascii=False)

    def _read_delta(self, index: int, delta: dict[str, Any]) -> Iterator[Text]:
        if delta.get("type") == "text_delta":
            yield from self.take_text(delta.get("text"))
        elif delta.get("type") == "input_json_delta":
            piece, call = delta.get("partial_json"), self._by_index.get(index)
            if call is None or not isinstance(piece, str):
                raise BrokenStreamError("provider.input_without_call", host=self.host, hint=ASK_AGAIN)
            call.pieces.append(piece)

    def _read_reason(self, reason: Any) -> None:
        if reason:
            self.reason = _REASONS.get(text_or_empty(reason), "other")
            self.finished = True

    def _read_counts(self, usage: Any) -> None:
        """Later counts replace earlier ones: they are totals."""
        for name, value in self.as_object(usage).items():
            if isinstance(value, int):
                self._counts[name] = count_or_zero(value)


class AnthropicProvider(HostedProvider):
    """`POST {base_url}/messages`."""

    name = "anthropic"
    grammar: Grammar = "anthropic"
    address = "https://api.anthropic.com/v1"
    key_header, key_form = "x-api-key", "{}"
    headers: Mapping[str, str] = {"anthropic-version": "2023-06-01"}
    reader = MessageReader

    def build_request(self, max_tokens: int | None, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        fields = translate_options(options) | {
            "model": options.get("model", self.model),
            "max_tokens": max_tokens or MAX_TOKENS,
            "stream": self.streams,
        }
        return "/messages", fields


def translate_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """A caller's options, given in OpenAI's terms, as far as this API has them."""
    found: dict[str, Any] = {name: options[name] for name in ("temperature", "top_p") if name in options}
    if stop := options.get("stop"):
        found["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    choice: Any = options.get("tool_choice")
    if isinstance(choice, str) and choice in _TOOL_CHOICES:
        found["tool_choice"] = {"type": _TOOL_CHOICES[choice]}
    elif isinstance(choice, dict):
        found["tool_choice"] = {"type": "tool", "name": as_object(choice, "").get("function", {}).get("name", "")}
    if options.get("parallel_tool_calls") is False:
        found["tool_choice"] = {**found.get("tool_choice", {"type": "auto"}), "disable_parallel_tool_use": True}
    return found


provider = AnthropicProvider
