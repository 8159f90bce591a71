"""Chat completions as OpenAI defined them and nearly everyone serves them: OpenAI, DeepSeek, Qwen, vLLM, Ollama, …

The body that is sent starts with the context's payload, byte for byte. Where servers differ and the meaning is clear,
the answer is read all the same: no usage, no `[DONE]`, null deltas, calls without index or id, a whole body instead of
a stream.
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
    count_or_zero,
    read_reported_error,
    text_or_empty,
)
from lamina.providers.sse import ServerEvent
from lamina.types import DoneReason, Grammar, Text, Usage

OPTIONS = frozenset({
    "temperature", "top_p", "stop", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "response_format",
    "tool_choice", "parallel_tool_calls", "reasoning_effort", "verbosity",
})  # fmt: skip
"""Options of a caller that are passed on; lamina sets everything else of a request."""
_REASONS: dict[str, DoneReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


class CompletionReader(AnswerReader):
    """One answer, from chunks or whole."""

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self._by_index: dict[int, PartialCall] = {}

    def read(self, event: ServerEvent) -> Iterator[Text]:
        data = event.data.strip()
        if data == "[DONE]":
            self.finished = self.ended = True
        elif data:
            yield from self._read_choice(self.parse(data), "delta")

    def read_whole(self, value: dict[str, Any]) -> Iterator[Text]:
        if "choices" not in value and not value.get("error"):
            raise BrokenStreamError("provider.not_an_answer", host=self.host, hint=CHECK_ADDRESS)
        yield from self._read_choice(value, "message")
        self.finished = self.finished or bool(value["choices"])

    def _read_choice(self, value: dict[str, Any], part: str) -> Iterator[Text]:
        if value.get("error"):
            raise read_reported_error(value["error"], self.host)
        if value.get("usage"):
            self.usage = self._read_usage(self.as_object(value["usage"]))
        for entry in self.as_list(value.get("choices"))[:1]:
            choice = self.as_object(entry)
            message = self.as_object(choice.get(part))
            yield from self.take_text(self._join_parts(message.get("content")))
            yield from self.take_text(message.get("refusal"))
            for call in self.as_list(message.get("tool_calls")):
                self._read_call(self.as_object(call), whole=part == "message")
            if choice.get("finish_reason"):
                self.reason = _REASONS.get(text_or_empty(choice["finish_reason"]), "other")
                self.finished = True

    def _read_call(self, delta: dict[str, Any], *, whole: bool) -> None:
        """Add a piece to the call it belongs to: by its index, or by its id where a server counts wrongly."""
        function = self.as_object(delta.get("function"))
        identifier, name, index = delta.get("id"), function.get("name"), delta.get("index")
        place = index if isinstance(index, int) else 0
        call = self._by_index.get(place)
        another = call is not None and isinstance(identifier, str) and identifier not in ("", call.id) and bool(name)
        if call is None or whole or another:
            call = self._by_index[place] = self.add_call()
        call.id = call.id or text_or_empty(identifier)
        call.name = call.name or text_or_empty(name)
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            call.pieces = [json.dumps(arguments, ensure_ascii=False)]
        elif isinstance(arguments, str):
            call.pieces.append(arguments)
        elif arguments is not None:
            raise BrokenStreamError("provider.arguments_of_no_form", host=self.host, hint=ASK_AGAIN)

    def _join_parts(self, content: Any) -> Any:
        """Text, also where it comes as a list of parts; other parts, such as reasoning, are left out."""
        if not isinstance(content, list):
            return content
        parts = [self.as_object(part) for part in self.as_list(content)]
        return "".join(text_or_empty(part.get("text")) for part in parts if part.get("type") == "text")

    def _read_usage(self, usage: dict[str, Any]) -> Usage:
        details = self.as_object(usage.get("prompt_tokens_details"))
        cached = count_or_zero(details.get("cached_tokens")) or count_or_zero(usage.get("prompt_cache_hit_tokens"))
        prompt = count_or_zero(usage.get("prompt_tokens"))
        return Usage(prompt, min(cached, prompt), count_or_zero(usage.get("completion_tokens")))


class OpenAIProvider(HostedProvider):
    """`POST {base_url}/chat/completions`."""

    name = "openai"
    grammar: Grammar = "openai"
    address = "https://api.openai.com/v1"
    reader = CompletionReader

    def build_request(self, max_tokens: int | None, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        fields = {name: value for name, value in options.items() if name in OPTIONS}
        fields |= {"model": options.get("model", self.model), "stream": self.streams}
        # OpenAI's own models refuse the old name of the limit, and most other servers do not know the new one.
        fields["max_completion_tokens" if self.at_home else "max_tokens"] = max_tokens
        if self.streams:
            fields["stream_options"] = {"include_usage": True}
        return "/chat/completions", fields


provider = OpenAIProvider
