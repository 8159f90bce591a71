"""Anthropic's Messages form: system text apart, sides that alternate, results first, and marks for its prompt cache."""

from collections.abc import Mapping, Sequence
from typing import Any

from lamina.assembly.receipt import CACHE_MARK, Tiles
from lamina.assembly.tokens import compact
from lamina.assembly.wire_openai import (
    CallIds,
    Runs,
    Spans,
    content_runs,
    merge_turns,
    parse_arguments,
    parse_data_url,
    split_system,
    write_tools,
    write_turn,
)
from lamina.types import Context, Message, Segment


def write_anthropic(tiles: Tiles, context: Context, tools: Sequence[Segment], left_out: Sequence[Segment]) -> None:
    system, before_user, pairs = split_system(context, "anthropic")
    tiles.open("{")
    if context.tools:
        declared = [compact(_tool(tool["function"])) for tool in context.tools]
        write_tools(tiles, '"tools":[', zip(declared, tools, strict=True))
    if system:
        tiles.open('"system":[')
        for number, span in enumerate(system):
            mark = CACHE_MARK if number + 1 in (context.stable, len(system)) else {}
            tiles.open("," if number else "")
            tiles.add(span.segment, compact({"type": "text", "text": span.text, **mark}))
        tiles.close("],")
    tiles.add_notes([*left_out, *before_user])
    ids = CallIds()
    turns = list(merge_turns(pairs, lambda message, spans: _blocks(message, spans, ids), split_results=False))
    if turns:
        filled = [blocks for _, blocks in turns[-1][1] if blocks]
        filled[-1][-1].update(CACHE_MARK)
    tiles.open('"messages":[')
    for number, (role, runs) in enumerate(turns):
        tiles.open("," if number else "")
        write_turn(tiles, f'{{"role":"{role}","content":[', runs, "anthropic")
    tiles.close("]}")


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    schema: Any = function.get("parameters") or {"type": "object", "properties": {}}
    return {"name": function["name"], "description": function["description"], "input_schema": schema}


def _blocks(message: Message, spans: Spans, ids: CallIds) -> Runs:
    runs = [(segment, [_part(part) for part in parts]) for segment, parts in content_runs(message, spans)]
    if message["role"] == "tool":
        content = [block for _, blocks in runs for block in blocks]
        unique, _ = ids.find_call(message.get("tool_call_id", ""))
        return [(spans[0].segment, [{"type": "tool_result", "tool_use_id": unique, "content": content}])]
    for call in message.get("tool_calls") or ():
        name, arguments = call["function"]["name"], parse_arguments(call["function"]["arguments"])
        unique = ids.add_call(call["id"], name)
        runs[-1][1].append({"type": "tool_use", "id": unique, "name": name, "input": arguments})
    return runs


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    url = part["image_url"]["url"]
    if data := parse_data_url(url):
        return {"type": "image", "source": {"type": "base64", "media_type": data[0], "data": data[1]}}
    return {"type": "image", "source": {"type": "url", "url": url}}
