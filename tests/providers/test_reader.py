"""What servers of OpenAI's and Anthropic's form say differently from each other, read by the readers themselves."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.assembly.request import encode
from lamina.errors import BrokenStreamError, MessageError, ProviderError
from lamina.providers.anthropic import AnthropicProvider, MessageReader
from lamina.providers.openai import CompletionReader, OpenAIProvider
from lamina.providers.reader import AnswerReader, TextJoiner
from lamina.providers.sse import EventParser
from lamina.types import Done, Event, Key, Text, ToolCallEvent, Usage
from tests.providers.serving import ANTHROPIC, FORMS, Form, frame, order_problems

READERS: dict[str, type[AnswerReader]] = {"openai": CompletionReader, "anthropic": MessageReader}


def read(reader: AnswerReader, frames: Iterable[bytes]) -> list[Event]:
    """As the loop does it: until the end, then the last events."""
    parser = EventParser()
    events: list[Event] = []
    for piece in frames:
        for sent in parser.feed(piece):
            events += reader.read(sent)
    assert reader.finished
    return [*events, *reader.finish()]


def openai(*chunks: Any) -> list[Event]:
    return read(CompletionReader("host"), [frame(chunk) for chunk in chunks])


def delta(finish: Any = None, **said: Any) -> dict[str, Any]:
    return {"choices": [{"delta": said, "finish_reason": finish}]}


def piece(name: str | None = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    return {**more, "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("stream", [True, False])
def test_calls_that_come_together_are_put_together(form: Form, stream: bool) -> None:
    calls = [("a1", "find", '{"what": "林默", "deep": {"x": [1, null]}}'), ("b2", "read", "{}"), ("c3", "find", "")]
    reader = READERS[form.name]("host")
    if stream:
        events = read(reader, form.call_frames(calls))
    else:
        events = [*reader.read_whole(json.loads(form.call_whole(calls))), *reader.finish()]
    found = [event for event in events if isinstance(event, ToolCallEvent)]
    assert [(call.id, call.name, json.loads(call.arguments)) for call in found] == [
        ("a1", "find", {"what": "林默", "deep": {"x": [1, None]}}),
        ("b2", "read", {}),
        ("c3", "find", {}),
    ]
    assert events[-2:] == [Usage(7, 3, 5), Done("tool_calls")]


def test_an_answer_without_usage_done_mark_or_deltas_is_whole() -> None:
    empty = [{"choices": []}, {"choices": None}, {"choices": [{"delta": None}]}, {"choices": [None]}, {}, delta()]
    assert openai(*empty, delta(content=None), delta(content=""), delta(content="a"), delta("stop"), *empty) == [
        Text("a"),
        Done("stop"),
    ]


def test_only_a_done_mark_is_an_end_too() -> None:
    assert openai(delta(content="a"), "[DONE]") == [Text("a"), Done("stop")]


def test_thoughts_are_no_answer() -> None:
    assert openai(delta(reasoning_content="hm", reasoning="hm"), delta("stop", content="a")) == [
        Text("a"),
        Done("stop"),
    ]


def test_text_in_parts_and_refusals_are_text() -> None:
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "a"}, None]
    assert openai(delta(content=parts), delta("stop", refusal="no")) == [Text("a"), Text("no"), Done("stop")]


@pytest.mark.parametrize(
    "pieces",
    [
        [piece("f", "{}", id="a"), piece("g", "{}", id="b")],  # no index at all
        [piece("f", "{}", id="a", index=0), piece("g", "{}", id="b", index=0)],  # the same index twice
        [piece("f", "{", id="a", index=0), piece("g", "{", id="b", index=1), piece(None, "}", index=0),
         piece(None, "}", index=1)],
        [piece("f", {}, id="a", index=0), piece("g", None, id="b", index=1)],  # an object, and nothing
        [piece("f", "", id="a", index=0), piece("", "{}", id="a", index=0), piece("g", "{}", id="b", index=5)],
    ],
)  # fmt: skip
def test_servers_that_count_calls_in_their_own_way(pieces: list[Any]) -> None:
    events = openai(*(delta(tool_calls=[one]) for one in pieces), delta("stop"))
    assert events == [ToolCallEvent("a", "f", "{}"), ToolCallEvent("b", "g", "{}"), Done("tool_calls")]


def test_a_call_without_an_id_gets_one() -> None:
    assert openai(delta("tool_calls", tool_calls=[piece("f", "{}", index=0)]))[0] == ToolCallEvent("call_0", "f", "{}")


def test_a_call_that_was_cut_at_the_limit_says_so_and_usage_is_still_reported() -> None:
    reader = CompletionReader("host")
    cut = delta("length", tool_calls=[piece("f", '{"a', id="a", index=0)])
    for sent in EventParser().feed(frame({**cut, "usage": {"prompt_tokens": 5, "completion_tokens": 2}})):
        assert list(reader.read(sent)) == []
    last = iter(reader.finish())
    assert next(last) == Usage(5, 0, 2)
    with pytest.raises(BrokenStreamError, match="max_tokens"):
        next(last)


@pytest.mark.parametrize(
    ("said", "reason"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "content_filter"), ("function_call", "tool_calls"),
     ("eos", "other"), (["odd"], "other")],
)  # fmt: skip
def test_reasons(said: Any, reason: str) -> None:
    assert openai(delta(said))[-1] == Done(reason)  # pyright: ignore[reportArgumentType] -- one of the literals


@pytest.mark.parametrize(
    ("usage", "found"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 2}, Usage(5, 0, 2)),
        ({"prompt_tokens": 5, "prompt_tokens_details": None, "completion_tokens": None}, Usage(5, 0, 0)),
        ({"prompt_tokens": 5, "prompt_cache_hit_tokens": 4, "completion_tokens": 2}, Usage(5, 4, 2)),
        ({"prompt_tokens": -5, "completion_tokens": True}, Usage(0, 0, 0)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}}, Usage(5, 5, 0)),
    ],
)
def test_usage_in_any_of_its_forms_and_the_last_one_counts(usage: Any, found: Usage) -> None:
    first = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    assert openai(first, {"choices": [], "usage": usage}, delta("stop"))[-2] == found


def test_halves_of_a_letter_that_came_apart_are_joined() -> None:
    joiner = TextJoiner()
    pieces = ["a\ud83d", "\ude42b", "\ud83d", "x", "\ude42", "你\ud83d"]
    events = [event for text in pieces for event in joiner.take(text, "host")]
    text = "".join(event.text for event in [*events, *joiner.end()])
    assert text == "a🙂b\ufffdx\ufffd你\ufffd"


@given(st.text(min_size=1), st.data())
def test_text_split_anywhere_even_inside_a_pair_is_the_same_text(text: str, data: st.DataObject) -> None:
    units = text.encode("utf-16-le", "surrogatepass")
    halves = [units[n : n + 2].decode("utf-16-le", "surrogatepass") for n in range(0, len(units), 2)]
    cut = data.draw(st.integers(0, len(halves)))
    joiner = TextJoiner()
    events = [event for part in (halves[:cut], halves[cut:]) for event in joiner.take("".join(part), "host")]
    assert "".join(event.text for event in [*events, *joiner.end()]) == text
    assert all(event.text for event in events)


def test_anthropic_passes_over_thoughts_pings_and_what_may_come() -> None:
    extra = [
        frame({"type": "ping"}, "ping"),
        frame({"type": "content_block_start", "index": 7, "content_block": {"type": "thinking", "thinking": ""}}),
        frame({"type": "content_block_delta", "index": 7, "delta": {"type": "thinking_delta", "thinking": "hm"}}),
        frame({"type": "content_block_delta", "index": 7, "delta": {"type": "signature_delta", "signature": "x"}}),
        frame({"type": "something_new", "x": 1}, "something_new"),
        frame({"type": "content_block_start", "index": 8, "content_block": {"type": "new_kind"}}),
    ]
    plain = read(MessageReader("host"), ANTHROPIC.frames)
    assert read(MessageReader("host"), [*ANTHROPIC.frames[:2], *extra, *ANTHROPIC.frames[2:]]) == plain


def test_anthropic_counts_cached_and_written_tokens_as_part_of_the_prompt() -> None:
    assert read(MessageReader("host"), ANTHROPIC.frames)[-2:] == [Usage(7, 3, 5), Done("stop")]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "message", "content", "tool_calls", "function", "arguments", "name", "index", "id",
                 "usage", "finish_reason", "type", "content_block", "text", "error", "stop_reason", "partial_json"]
            ),
            inner | st.sampled_from(
                ["content_block_delta", "content_block_start", "message_delta", "text_delta", "tool_use", "text",
                 "stop", "input_json_delta", "message_start", "message"]
            ),
            max_size=5,
        )
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.lists(JSON, max_size=4), st.sampled_from(sorted(READERS)))
def test_whatever_json_comes_the_end_is_events_in_order_or_a_provider_error(values: list[Any], name: str) -> None:
    reader = READERS[name]("host")
    events: list[Event] = []
    try:
        for value in values:
            for sent in EventParser().feed(frame(value)):
                events += reader.read(sent)
        events += reader.finish()
    except ProviderError:
        assert order_problems(events, whole=False) == []
    else:
        assert order_problems(events, whole=True) == []
    whole = READERS[name]("host")
    for value in values:
        if isinstance(value, dict):
            try:
                assert order_problems([*whole.read_whole(value), *whole.finish()], whole=True) == []
            except ProviderError:
                return


def test_only_a_context_is_taken() -> None:
    history: Any = [{"role": "user", "content": "hi"}]
    for asked in (OpenAIProvider("m"), AnthropicProvider("m", encode=encode)):
        with pytest.raises(MessageError, match="needs a Context"):
            asked.stream(history)


def test_a_provider_shows_its_model_and_host_and_no_key() -> None:
    key = Key("sk-very-secret-1234")
    shown = [repr(OpenAIProvider("m", key=key)), repr(AnthropicProvider("m", key=key, encode=encode))]
    assert shown == ["OpenAIProvider('m' at api.openai.com)", "AnthropicProvider('m' at api.anthropic.com)"]


def test_openai_itself_gets_the_new_name_of_the_limit() -> None:
    for provider, name in (
        (OpenAIProvider("m"), "max_completion_tokens"),
        (OpenAIProvider("m", base_url="http://127.0.0.1/v1"), "max_tokens"),
    ):
        assert provider.build_request(7, {})[1][name] == 7
