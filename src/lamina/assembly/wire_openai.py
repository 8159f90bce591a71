"""OpenAI's chat form, in which lamina keeps messages, and how the other two forms read it.

A message is written once, as one chunk of bytes for each of its origins. The other writers (`wire_anthropic`,
`wire_gemini`) share what they have in common from here: system text apart, sides that alternate, ids of calls.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any, cast

from lamina.assembly.fences import JOIN
from lamina.assembly.receipt import Tiles
from lamina.assembly.tokens import compact
from lamina.errors import MessageError
from lamina.text.messages import Phrase
from lamina.text.unicode import encode_text, slices
from lamina.types import Context, Message, Segment, Span

SAFE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_BRACKETS = 200
"""How many brackets a call's arguments may have before they are sent as text: providers and parsers have limits."""

Spans = Sequence[Span]
Runs = list[tuple[Segment, list[dict[str, Any]]]]
"""The blocks of a turn, each run with its origin."""


def message_chunks(message: Message, spans: Spans) -> tuple[bytes, ...]:
    """A comma and a message's JSON in OpenAI's form, cut into one chunk for each span."""
    if len(spans) == 1:
        return (encode_text(f",{compact(message)}"),)
    content = message["content"]
    tiles = Tiles()
    tiles.open(f',{{"role":"{message["role"]}","content":')
    if isinstance(content, str):
        tiles.open('"')
        for span in spans:
            tiles.add(span.segment, "".join(encode_basestring(piece)[1:-1] for piece in slices(span.text or "")))
        tiles.close('"}')
    else:
        tiles.open("[")
        for number, (span, parts) in enumerate(_parts_by_span(list(content or ()), spans)):
            tiles.open("," if number else "")
            tiles.add(span.segment, ",".join(compact(part) for part in parts))
        tiles.close("]}")
    return tuple(tiles.chunks)


def write_tools(tiles: Tiles, opening: str, tools: Iterable[tuple[str, Segment]], closing: str = "],") -> None:
    tiles.open(opening)
    for number, (text, segment) in enumerate(tools):
        tiles.open("," if number else "")
        tiles.add(segment, text)
    tiles.close(closing)


def _parts_by_span(parts: list[Any], spans: Spans) -> Iterator[tuple[Span, list[Any]]]:
    """Leading spans own one part each, the last span the rest."""
    for number, span in enumerate(spans[:-1]):
        yield span, [parts[number]]
    yield spans[-1], parts[len(spans) - 1 :]


def split_system(context: Context, grammar: str) -> tuple[Spans, list[Segment], Sequence[tuple[Message, Spans]]]:
    """The spans of the system text, what must be left out, and the messages from the first one a user wrote."""
    pairs = list(zip(context.messages, context.spans, strict=True))
    system: Spans = ()
    while pairs and pairs[0][0]["role"] == "system":
        first, *others = pairs.pop(0)[1]
        # Where several system messages become one, a blank line separates them.
        system = (*system, Span(JOIN + (first.text or ""), first.segment) if system else first, *others)
    start = next((number for number, (message, spans) in enumerate(pairs) if _is_user_text(message, spans)), None)
    if start is None:
        raise MessageError("grammar.no_user_text", grammar=grammar)
    reason = Phrase("reason.before_first_user", grammar=grammar)
    left_out = [
        span.segment._replace(decision="dropped", reason=reason) for _, spans in pairs[:start] for span in spans
    ]
    return system, left_out, pairs[start:]


def _is_user_text(message: Message, spans: Spans) -> bool:
    return message["role"] == "user" and any(parts for _, parts in content_runs(message, spans))


def content_runs(message: Message, spans: Spans) -> Iterator[tuple[Segment, list[Mapping[str, Any]]]]:
    """The content as parts, each run with its origin. A text without anything to read is left out."""
    content = message["content"]
    if isinstance(content, str):
        for span in spans:
            text = content if len(spans) == 1 else span.text or ""
            yield span.segment, [{"type": "text", "text": text}] if text.strip() else []
    else:
        for span, parts in _parts_by_span(list(content or ()), spans):
            yield span.segment, [part for part in parts if part["type"] != "text" or part["text"].strip()]


def parse_arguments(text: str) -> dict[str, Any]:
    """A call's arguments as an object; what a model wrote that is not one is kept as text under `arguments`."""
    try:
        value: Any = json.loads(text or "{}")
        compact(value)
    except (ValueError, RecursionError):
        return {"arguments": text}
    shallow = text.count("{") + text.count("[") <= MAX_BRACKETS
    return cast("dict[str, Any]", value) if isinstance(value, dict) and shallow else {"arguments": text}


def parse_data_url(url: str) -> tuple[str, str] | None:
    """The media type and the base64 data of a `data:` URL; None for any other URL."""
    head, comma, data = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        return head[5:-7], data
    return None


class CallIds:
    """Call ids that are unique in the request and of an allowed form; a reused or odd id gets a new one."""

    def __init__(self) -> None:
        self._used: dict[str, int] = {}
        self._open: dict[str, tuple[str, str]] = {}

    def add_call(self, identifier: str, name: str) -> str:
        clean = identifier if SAFE_ID.fullmatch(identifier) else re.sub(r"[^A-Za-z0-9_-]", "_", identifier)[:48] or "id"
        unique = clean
        while unique in self._used:
            self._used[clean] = self._used.get(clean, 1) + 1
            unique = f"{clean}_{self._used[clean]}"
        self._used[unique] = 1
        self._open[identifier] = (unique, name)
        return unique

    def find_call(self, identifier: str) -> tuple[str, str]:
        """The id that was sent for the call that a result answers, and the name of its tool."""
        return self._open[identifier]


def merge_turns(
    pairs: Sequence[tuple[Message, Spans]], blocks_of: Callable[[Message, Spans], Runs], split_results: bool
) -> Iterator[tuple[str, Runs]]:
    """Neighbouring messages of one side become one turn, since these grammars want the sides to alternate."""
    kind, runs = "", Runs()
    for message, spans in pairs:
        side = "assistant" if message["role"] == "assistant" else "user"
        now = "result" if split_results and message["role"] == "tool" else side
        blocks = blocks_of(message, spans)
        if now != kind and any(block for _, block in blocks):
            if kind:
                yield kind, runs
                runs = []
            kind = now
        runs += blocks
    if kind:
        yield kind, runs


def write_turn(tiles: Tiles, opening: str, runs: Runs, grammar: str) -> None:
    tiles.open(opening)
    is_first = True
    for segment, blocks in runs:
        if blocks:
            tiles.open("" if is_first else ",")
            tiles.add(segment, ",".join(map(compact, blocks)))
            is_first = False
        else:
            reason = Phrase("reason.empty_message", grammar=grammar)
            tiles.add_notes([segment._replace(decision="dropped", reason=reason)])
    tiles.close("]}")
