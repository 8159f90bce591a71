"""Reading server-sent events as the standard says, without any code of ours."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Heard:
    id: str
    name: str
    data: Any


def heard(raw: bytes) -> list[Heard]:
    """The events in a stream; a half one at its end is none."""
    found: list[Heard] = []
    for block in raw.decode().split("\n\n")[:-1]:
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(": ")
            if name:  # a comment has none
                fields[name] = value
        if "data" in fields:
            found.append(Heard(fields.get("id", ""), fields.get("event", "message"), json.loads(fields["data"])))
    return found


def text_of(events: list[Heard]) -> str:
    return "".join(event.data["text"] for event in events if event.name == "text")
