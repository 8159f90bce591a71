"""Gemini's form: contents of parts, calls and results in turns of their own, and names that begin with a letter."""

from collections.abc import Mapping, Sequence
from typing import Any

from lamina.assembly.receipt import Tiles
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
from lamina.errors import MessageError, format_value
from lamina.types import Context, Message, Segment

IMAGE_TYPES = {"png": "png", "webp": "webp", "gif": "gif", "jpg": "jpeg", "jpeg": "jpeg"}
"""The kind of picture that each ending of a URL stands for."""


def write_gemini(tiles: Tiles, context: Context, tools: Sequence[Segment], left_out: Sequence[Segment]) -> None:
    system, before_user, pairs = split_system(context, "gemini")
    tiles.open("{")
    if context.tools:
        declared = [compact(_tool(tool["function"])) for tool in context.tools]
        write_tools(tiles, '"tools":[{"functionDeclarations":[', zip(declared, tools, strict=True), "]}],")
    if system:
        tiles.open('"systemInstruction":{"parts":[')
        for number, span in enumerate(system):
            tiles.open("," if number else "")
            tiles.add(span.segment, compact({"text": span.text}))
        tiles.close("]},")
    tiles.add_notes([*left_out, *before_user])
    ids = CallIds()
    tiles.open('"contents":[')
    turns = merge_turns(pairs, lambda message, spans: _parts(message, spans, ids), split_results=True)
    for number, (kind, runs) in enumerate(turns):
        tiles.open("," if number else "")
        role = "model" if kind == "assistant" else "user"
        write_turn(tiles, f'{{"role":"{role}","parts":[', runs, "gemini")
    tiles.close("]}")


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    declared = {"name": _name(function["name"]), "description": function["description"]}
    parameters = function.get("parameters")
    return {**declared, "parametersJsonSchema": parameters} if parameters else declared


def _parts(message: Message, spans: Spans, ids: CallIds) -> Runs:
    runs = [(segment, [_part(part) for part in parts]) for segment, parts in content_runs(message, spans)]
    if message["role"] == "tool":
        text = "".join(part["text"] for _, parts in runs for part in parts)
        unique, name = ids.find_call(message.get("tool_call_id", ""))
        return [(spans[0].segment, [{"functionResponse": {"id": unique, "name": name, "response": {"result": text}}}])]
    for call in message.get("tool_calls") or ():
        name, arguments = _name(call["function"]["name"]), parse_arguments(call["function"]["arguments"])
        runs[-1][1].append({"functionCall": {"id": ids.add_call(call["id"], name), "name": name, "args": arguments}})
    return runs


def _name(name: str) -> str:
    """Gemini wants a letter or _ first, where the others also take a digit or -."""
    return name if name[0].isalpha() or name[0] == "_" else f"_{name}"[:64]


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"text": part["text"]}
    url = part["image_url"]["url"]
    if data := parse_data_url(url):
        return {"inlineData": {"mimeType": data[0], "data": data[1]}}
    ending = url.partition("?")[0].rpartition(".")[2].lower()
    if ending not in IMAGE_TYPES:
        raise MessageError("part.unknown_picture_type", value=format_value(url))
    return {"fileData": {"fileUri": url, "mimeType": f"image/{IMAGE_TYPES[ending]}"}}
