"""From a context to a provider's request, as bytes whose every run has an origin.

One writer lays tiles: structural bytes belong to the next tile or the last one, so tiles never leave a gap.
The request a caller gets is read back from these bytes; there is no second way to build one.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from json.encoder import encode_basestring
from typing import Any, cast

from lamina.assembly.grammar import validate
from lamina.assembly.prompt import JOIN
from lamina.assembly.tokens import compact
from lamina.errors import MessageError, format_value
from lamina.text.json import read_json
from lamina.text.messages import Phrase
from lamina.text.unicode import decode_text, encode_text, slices
from lamina.types import Context, Grammar, Message, Receipt, Segment, Span

GRAMMARS: tuple[Grammar, ...] = ("openai", "anthropic", "gemini")
CACHE_MARK = {"cache_control": {"type": "ephemeral"}}
SAFE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

DEEPEST = 200
"""How many brackets a call's arguments may have before they are sent as text: providers and parsers have limits."""

Spans = Sequence[Span]
Runs = list[tuple[Segment, list[dict[str, Any]]]]
"""The blocks of a turn, each run with its origin."""
NEW = cast(Callable[[type[Segment], tuple[Any, ...]], Segment], tuple.__new__)  # pyright: ignore[reportUnknownMemberType]
"""A segment from a tuple: a quarter of the time that its own constructor takes."""


class Tiles:
    """Chunks of bytes, each with its segment, laid without gap or overlap."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.segments: list[Segment] = []
        self._lead, self._end, self._last = "", 0, 0

    def open(self, text: str) -> None:
        """Structural text that the next tile will own."""
        self._lead += text

    def add(self, segment: Segment, text: str) -> None:
        chunk = encode_text(self._lead + text)
        self._lead, begin = "", self._end
        self._end += len(chunk)
        self.chunks.append(chunk)
        self._last = len(self.segments)
        self.segments.append(placed(segment, begin, self._end))

    def close(self, text: str) -> None:
        """Structural text that belongs to the last tile."""
        if self._lead:
            self._lead += text
            return
        chunk = encode_text(text)
        self.chunks[-1] += chunk
        self._end += len(chunk)
        self.segments[self._last] = placed(self.segments[self._last], self.segments[self._last].start, self._end)
        for index in range(self._last + 1, len(self.segments)):
            self.segments[index] = placed(self.segments[index], self._end, self._end)

    def lay(self, pieces: Iterable[tuple[Sequence[bytes], Sequence[Span]]]) -> None:
        """Messages that were encoded before, comma included: for each its chunks, one for each of its spans."""
        chunks, segments, new = self.chunks, self.segments, NEW
        begin = end = self._end
        if self._lead:  # the first message of all has no comma before it
            chunks.append(self._lead.encode())
            end, self._lead = end + len(chunks[-1]), ""
            pieces = iter(pieces)
            (first, *others), spans = next(pieces)
            pieces = itertools.chain([((first[1:], *others), spans)], pieces)
        for message, spans in pieces:
            if len(message) == 1:  # nearly all: worth its own lines
                end += len(message[0])
                chunks.append(message[0])
                segments.append(new(Segment, spans[0][1][:9] + (begin, end)))  # noqa: RUF005 -- twice as fast
                begin = end
                continue
            for chunk, (_, segment) in zip(message, spans, strict=True):
                end += len(chunk)
                chunks.append(chunk)
                segments.append(placed(segment, begin, end))
                begin = end
        self._end, self._last = end, len(segments) - 1

    def notes(self, segments: Iterable[Segment]) -> None:
        """Segments that have no bytes: what was left out here."""
        self.segments += [placed(segment, self._end, self._end) for segment in segments]


def placed(segment: Segment, start: int, end: int) -> Segment:
    return NEW(Segment, (*segment[:9], start, end))


def quoted(text: str) -> str:
    """The inside of a JSON string."""
    return "".join(encode_basestring(piece)[1:-1] for piece in slices(text))


def encode(context: Context, grammar: Grammar = "openai") -> Receipt:
    """The request of one grammar as bytes, and where each of them came from."""
    if grammar not in GRAMMARS:
        raise MessageError("grammar.unknown", name=format_value(grammar), known=GRAMMARS)
    if not isinstance(context, Context):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise MessageError("request.not_a_context", value=format_value(context))
    if grammar == context.receipt.grammar:
        return context.receipt
    left_out = [s for s in context.receipt.segments if s.decision == "dropped" and s.layer == "history"]
    sent: dict[str, Any] = read_json(
        decode_text(context.receipt.payload)
    )  # what was proven, whatever became of the messages since
    context = replace(context, messages=sent["messages"], tools=sent.get("tools", []))
    tools = context.receipt.segments[: len(context.tools)]
    tiles = Tiles()
    write = _anthropic if grammar == "anthropic" else _gemini
    write(tiles, context, tools, left_out)
    problems = validate(read_json(decode_text(b"".join(tiles.chunks))), grammar)
    if problems:
        raise MessageError("grammar.refuses", grammar=grammar, problem=problems[0])
    return replace(
        context.receipt,
        segments=tuple(tiles.segments),
        chunks=tuple(tiles.chunks),
        tokens=sum(segment.tokens for segment in tiles.segments if segment.decision != "dropped"),
        grammar=grammar,
    )


def render(context: Context, grammar: Grammar = "openai") -> dict[str, Any]:
    """The request of one grammar as plain values, for any SDK: `client.messages.create(model=…, **render(…))`."""
    return json.loads(encode(context, grammar).payload)


def openai_chunks(message: Message, spans: Spans) -> tuple[bytes, ...]:
    """A comma and a message's JSON in OpenAI's form, cut into one chunk for each span."""
    if len(spans) == 1:
        return (encode_text(f",{compact(message)}"),)
    content = message["content"]
    tiles = Tiles()
    tiles.open(f',{{"role":"{message["role"]}","content":')
    if isinstance(content, str):
        tiles.open('"')
        for span in spans:
            tiles.add(span.segment, quoted(span.text or ""))
        tiles.close('"}')
    else:
        tiles.open("[")
        for number, (span, parts) in enumerate(_share_parts(list(content or ()), spans)):
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


def _share_parts(parts: list[Any], spans: Spans) -> Iterator[tuple[Span, list[Any]]]:
    """Leading spans own one part each, the last span the rest."""
    for number, span in enumerate(spans[:-1]):
        yield span, [parts[number]]
    yield spans[-1], parts[len(spans) - 1 :]


def _parted(context: Context, grammar: str) -> tuple[Spans, list[Segment], Sequence[tuple[Message, Spans]]]:
    """The spans of the system text, what must be left out, and the messages from the first one a user wrote."""
    pairs = list(zip(context.messages, context.spans, strict=True))
    system: Spans = ()
    while pairs and pairs[0][0]["role"] == "system":
        spans = pairs.pop(0)[1]
        system += tuple(_apart(span) for span in spans[:1]) + spans[1:] if system else spans
    first = next((i for i, (message, spans) in enumerate(pairs) if _speaks(message, spans)), None)
    if first is None:
        raise MessageError("grammar.no_user_text", grammar=grammar)
    reason = Phrase("reason.before_first_user", grammar=grammar)
    gone = [span.segment._replace(decision="dropped", reason=reason) for _, spans in pairs[:first] for span in spans]
    return system, gone, pairs[first:]


def _apart(span: Span) -> Span:
    """The first span of a further system message: joined with the one before, a blank line stands between them."""
    return Span(JOIN + (span.text or ""), span.segment)


def _speaks(message: Message, spans: Spans) -> bool:
    return message["role"] == "user" and any(parts for _, parts in _content(message, spans))


def _blank(text: str) -> bool:
    return not text or text.isspace()


def _content(message: Message, spans: Spans) -> Iterator[tuple[Segment, list[Mapping[str, Any]]]]:
    """The content as parts, each run with its origin. A text without anything to read is left out."""
    content = message["content"]
    if isinstance(content, str):
        for span in spans:
            text = content if len(spans) == 1 else span.text or ""
            yield span.segment, [] if _blank(text) else [{"type": "text", "text": text}]
    else:
        for span, parts in _share_parts(list(content or ()), spans):
            yield span.segment, [part for part in parts if part["type"] != "text" or not _blank(part["text"])]


def _arguments(text: str) -> dict[str, Any]:
    """A call's arguments as an object; what a model wrote that is none is kept as text under `arguments`."""
    try:
        value: Any = json.loads(text or "{}")
        compact(value)
    except (ValueError, RecursionError):
        return {"arguments": text}
    shallow = text.count("{") + text.count("[") <= DEEPEST
    return cast("dict[str, Any]", value) if isinstance(value, dict) and shallow else {"arguments": text}


class _Ids:
    """Call ids that are unique in the request and of an allowed form; a reused or odd id gets a new one."""

    def __init__(self) -> None:
        self.used: dict[str, int] = {}
        self.open: dict[str, tuple[str, str]] = {}

    def call(self, identifier: str, name: str) -> str:
        clean = identifier if SAFE_ID.fullmatch(identifier) else re.sub(r"[^A-Za-z0-9_-]", "_", identifier)[:48] or "id"
        unique = clean
        while unique in self.used:
            self.used[clean] = self.used.get(clean, 1) + 1
            unique = f"{clean}_{self.used[clean]}"
        self.used[unique] = 1
        self.open[identifier] = (unique, name)
        return unique

    def result(self, identifier: str) -> tuple[str, str]:
        return self.open[identifier]


def _groups(
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


def _write_turn(tiles: Tiles, opening: str, runs: Runs, grammar: str) -> None:
    tiles.open(opening)
    written = 0
    for segment, blocks in runs:
        if blocks:
            tiles.open("," if written else "")
            tiles.add(segment, ",".join(map(compact, blocks)))
            written += 1
        else:
            reason = Phrase("reason.empty_message", grammar=grammar)
            tiles.notes([segment._replace(decision="dropped", reason=reason)])
    tiles.close("]}")


def _anthropic(tiles: Tiles, context: Context, tools: Sequence[Segment], left_out: Sequence[Segment]) -> None:
    system, unopened, pairs = _parted(context, "anthropic")
    tiles.open("{")
    if context.tools:
        declared = [compact(_anthropic_tool(tool["function"])) for tool in context.tools]
        write_tools(tiles, '"tools":[', zip(declared, tools, strict=True))
    if system:
        tiles.open('"system":[')
        for number, span in enumerate(system):
            mark = CACHE_MARK if number + 1 in (context.stable, len(system)) else {}
            tiles.open("," if number else "")
            tiles.add(span.segment, compact({"type": "text", "text": span.text, **mark}))
        tiles.close("],")
    tiles.notes([*left_out, *unopened])
    ids = _Ids()
    groups = list(_groups(pairs, lambda message, spans: _anthropic_blocks(message, spans, ids), split_results=False))
    if groups:
        filled = [blocks for _, blocks in groups[-1][1] if blocks]
        filled[-1][-1].update(CACHE_MARK)
    tiles.open('"messages":[')
    for number, (role, runs) in enumerate(groups):
        tiles.open("," if number else "")
        _write_turn(tiles, f'{{"role":"{role}","content":[', runs, "anthropic")
    tiles.close("]}")


def _anthropic_tool(function: Mapping[str, Any]) -> dict[str, Any]:
    schema: Any = function.get("parameters") or {"type": "object", "properties": {}}
    return {"name": function["name"], "description": function["description"], "input_schema": schema}


def _anthropic_blocks(message: Message, spans: Spans, ids: _Ids) -> Runs:
    runs = [(segment, [_anthropic_part(part) for part in parts]) for segment, parts in _content(message, spans)]
    if message["role"] == "tool":
        content = [block for _, blocks in runs for block in blocks]
        unique, _ = ids.result(message.get("tool_call_id", ""))
        return [(spans[0].segment, [{"type": "tool_result", "tool_use_id": unique, "content": content}])]
    for call in message.get("tool_calls") or ():
        function = call["function"]
        unique = ids.call(call["id"], function["name"])
        block = {"type": "tool_use", "id": unique, "name": function["name"], "input": _arguments(function["arguments"])}
        runs[-1][1].append(block)
    return runs


def _anthropic_part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    data = _data_url(part["image_url"]["url"])
    if data:
        return {"type": "image", "source": {"type": "base64", "media_type": data[0], "data": data[1]}}
    return {"type": "image", "source": {"type": "url", "url": part["image_url"]["url"]}}


def _data_url(url: str) -> tuple[str, str] | None:
    head, comma, data = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        return head[5:-7], data
    return None


def _gemini(tiles: Tiles, context: Context, tools: Sequence[Segment], left_out: Sequence[Segment]) -> None:
    system, unopened, pairs = _parted(context, "gemini")
    tiles.open("{")
    if context.tools:
        declared = [compact(_gemini_tool(tool["function"])) for tool in context.tools]
        write_tools(tiles, '"tools":[{"functionDeclarations":[', zip(declared, tools, strict=True), "]}],")
    if system:
        tiles.open('"systemInstruction":{"parts":[')
        for number, span in enumerate(system):
            tiles.open("," if number else "")
            tiles.add(span.segment, compact({"text": span.text}))
        tiles.close("]},")
    tiles.notes([*left_out, *unopened])
    ids = _Ids()
    groups = _groups(pairs, lambda message, spans: _gemini_parts(message, spans, ids), split_results=True)
    tiles.open('"contents":[')
    for number, (kind, runs) in enumerate(groups):
        tiles.open("," if number else "")
        role = "model" if kind == "assistant" else "user"
        _write_turn(tiles, f'{{"role":"{role}","parts":[', runs, "gemini")
    tiles.close("]}")


def _gemini_tool(function: Mapping[str, Any]) -> dict[str, Any]:
    declared = {"name": _gemini_name(function["name"]), "description": function["description"]}
    parameters = function.get("parameters")
    return {**declared, "parametersJsonSchema": parameters} if parameters else declared


def _gemini_parts(message: Message, spans: Spans, ids: _Ids) -> Runs:
    runs = [(segment, [_gemini_part(part) for part in parts]) for segment, parts in _content(message, spans)]
    if message["role"] == "tool":
        text = "".join(part["text"] for _, parts in runs for part in parts)
        unique, name = ids.result(message.get("tool_call_id", ""))
        return [(spans[0].segment, [{"functionResponse": {"id": unique, "name": name, "response": {"result": text}}}])]
    for call in message.get("tool_calls") or ():
        function = call["function"]
        name = _gemini_name(function["name"])
        part = {"id": ids.call(call["id"], name), "name": name, "args": _arguments(function["arguments"])}
        runs[-1][1].append({"functionCall": part})
    return runs


def _gemini_name(name: str) -> str:
    """Gemini wants a letter or _ first, where the others also take a digit or -."""
    return name if name[0].isalpha() or name[0] == "_" else f"_{name}"[:64]


def _gemini_part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"text": part["text"]}
    url = part["image_url"]["url"]
    data = _data_url(url)
    if data:
        return {"inlineData": {"mimeType": data[0], "data": data[1]}}
    return {"fileData": {"fileUri": url, "mimeType": _mime_type(url)}}


def _mime_type(url: str) -> str:
    ending = url.partition("?")[0].rpartition(".")[2].lower()
    kind = {"png": "png", "webp": "webp", "gif": "gif", "jpg": "jpeg", "jpeg": "jpeg"}.get(ending)
    if kind is None:
        raise MessageError("part.unknown_picture_type", value=format_value(url))
    return f"image/{kind}"
