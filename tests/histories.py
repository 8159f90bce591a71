"""Random chats for Hypothesis: valid histories with tool calls, parallel calls, pictures, empty and Chinese texts."""

import json
from typing import Any

from hypothesis import strategies as st

TEXTS = st.one_of(
    st.sampled_from(["", " ", "hello", "你好，林默", "x" * 50, 'quote " and \\ and \n newline', "🙂" * 5, "\u2028"]),
    st.text(max_size=30),
)
IDS = st.sampled_from(["call_1", "call_2", "a:1", "重复", "x"])
NAMES = st.sampled_from(["find", "read_file", "bash", "1st", "-x"])
ARGUMENTS = st.sampled_from(["{}", '{"q": "林默"}', "[1]", "broken {", "", "3", '{"a": {"b": [1, null]}}'])
PICTURE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "https://example.com/a.png?x=1"}}
INLINE: dict[str, Any] = {
    "type": "image_url",
    "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"},
}


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


@st.composite
def steps(draw: st.DrawFn) -> list[dict[str, Any]]:
    """One message, or an assistant's calls with all their results."""
    kind = draw(st.sampled_from(["user", "parts", "assistant", "calls"]))
    if kind == "user":
        return [said("user", draw(TEXTS))]
    if kind == "parts":
        parts = draw(st.lists(st.one_of(st.just(PICTURE), st.just(INLINE), TEXTS), min_size=1, max_size=3))
        return [said("user", [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts])]
    if kind == "assistant":
        return [said("assistant", draw(TEXTS))]
    ids = draw(st.lists(IDS, min_size=1, max_size=3, unique=True))
    calls = [
        {"id": i, "type": "function", "function": {"name": draw(NAMES), "arguments": draw(ARGUMENTS)}} for i in ids
    ]
    opening = {"role": "assistant", "content": draw(st.one_of(st.none(), TEXTS)), "tool_calls": calls}
    results = [{"role": "tool", "tool_call_id": i, "content": draw(TEXTS)} for i in draw(st.permutations(ids))]
    return [opening, *results]


HISTORIES = st.lists(steps(), max_size=8).map(lambda runs: [message for run in runs for message in run])
BUDGETS = st.one_of(st.integers(0, 120), st.floats(0, 120), st.just(10**6))


def split_pairs(messages: list[Any]) -> list[str]:
    """Calls without results and results without calls, in order: an oracle that knows nothing of the trimmer."""
    problems: list[str] = []
    open_calls: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                problems.append(f"orphan {message['tool_call_id']}")
            open_calls.discard(message["tool_call_id"])
            continue
        problems += [f"unanswered {call}" for call in sorted(open_calls)]
        open_calls = {call["id"] for call in message.get("tool_calls") or ()}
    return problems + [f"unanswered {call}" for call in sorted(open_calls)]


def freeze(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, sort_keys=True)
