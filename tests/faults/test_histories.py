"""R12: whatever a crash, an import, two turns at once or an odd model leave in a history, the next request is valid."""

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lamina import App, assemble, render, validate
from lamina.assembly.history import INTERRUPTED, close_calls, group_turns
from lamina.assembly.request import GRAMMARS
from lamina.engine.turn import Engine
from lamina.errors import MessageError
from lamina.providers.scripted import ScriptedProvider, Step
from lamina.records import MessageState, StoredMessage
from lamina.store.store import Store, open_store
from lamina.types import Message, Role
from tests.faults.chats import chat_settings, next_request, tools
from tests.faults.load import Load

HISTORIES = 10_000
IDS = ("call_0", "call_1", "call_2", "a:1", "重复")
TEXTS = ("", " ", "Hello", "你好", "x" * 80, "🙂 and so on")
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}},
}
Row = tuple[Role, Any, dict[str, Any], MessageState]
Close = Callable[[Sequence[Message]], list[Message]]


def calls(rng: random.Random) -> list[dict[str, Any]]:
    """One to three calls side by side, each with an id of its own, as the store takes them."""
    return [
        {"id": name, "type": "function", "function": {"name": "look", "arguments": rng.choice(["{}", '{"a": 1}'])}}
        for name in rng.sample(IDS, rng.randint(1, 3))
    ]


def turn(rng: random.Random) -> list[Row]:
    """What a turn may have left: whole, or cut at any place, or with results that are lost, strange or there twice."""
    rows: list[Row] = [("user", rng.choice(TEXTS), {}, "complete")]
    for _ in range(rng.randint(0, 3)):
        asked = calls(rng)
        rows.append(("assistant", rng.choice([None, *TEXTS]), {"tool_calls": asked}, "complete"))
        ids: list[str] = [call["id"] for call in asked]
        if rng.random() < 0.4:
            ids = rng.choices([*ids, *IDS], k=rng.randint(0, 4))
        results: list[Row] = [("tool", rng.choice(TEXTS), {"tool_call_id": name}, "complete") for name in ids]
        rows += results
    state: MessageState = rng.choice(["complete", "complete", "interrupted", "failed", "streaming"])
    rows.append(("assistant", rng.choice(TEXTS), {}, state))
    cut = rng.randint(1, len(rows)) if rng.random() < 0.4 else len(rows)
    return rows[:cut]


def history(rng: random.Random) -> list[StoredMessage]:
    """Some turns, some of them at once, some without a turn, as an import leaves them."""
    waiting = [(f"t{n}" if rng.random() < 0.9 else "", turn(rng)) for n in range(rng.randint(1, 3))]
    rows: list[StoredMessage] = []
    while waiting:
        name, left = waiting[rng.randrange(len(waiting)) if rng.random() < 0.3 else 0]
        role, content, extra, state = left.pop(0)
        seq = len(rows) + 1
        rows.append(StoredMessage("ann", "s", seq, f"m{seq}", name, role, content, extra, state, False, 0, 0.0))
        waiting = [(each, rest) for each, rest in waiting if rest]
    return rows[rng.choice([0, 0, rng.randrange(len(rows))]) :]


def request_problems(rng: random.Random, close: Close) -> tuple[list[str], bool]:
    """What the providers would say of the next request; and whether something of it was interrupted."""
    messages = close(group_turns(history(rng)))
    budget = rng.choice([40, 80, 200, 10**6])
    try:
        context = assemble(history=messages, user="And now?", tools=[TOOL], budget=budget)
    except MessageError as error:
        return [str(error)], False
    found = [f"{grammar}: {problem}" for grammar in GRAMMARS for problem in validate(render(context, grammar), grammar)]
    return found, any(INTERRUPTED in str(message["content"]) for message in context.messages)


def test_R12_any_history_makes_valid_requests(load: Load) -> None:
    rng, interrupted = random.Random(load.seed()), 0
    for _ in load.rounds(HISTORIES // 5, "histories", long=HISTORIES):
        state = rng.getstate()
        found, some = request_problems(rng, close_calls)
        if found:
            rng.setstate(state)
            pytest.fail(f"{found} of {json.dumps([row.message for row in history(rng)], ensure_ascii=False)}")
        interrupted += some
    assert interrupted > 0.05 * load.trials


@pytest.mark.planted("a history with an open call, sent as it is")
def test_R12_a_planted_history_that_is_left_open_is_found() -> None:
    rng = random.Random(1)
    assert any(request_problems(rng, lambda messages: list(messages))[0] for _ in range(100))


# What a model calls, and what a person sends


ODD_CALLS: list[Step] = [
    {"call": "look", "id": f"chatcmpl-tool-{'a' * 32}", "arguments": {"token": "x"}},
    {"call": "functions.look", "arguments": {"token": "x"}},
    {"call": "查找", "arguments": {"token": "x"}},
    {"call": "x" * 70, "arguments": {"token": "x"}},
    {"call": "look", "id": "x\ud800", "arguments": {"token": "\ud83d"}},
    {"call": "look", "id": "a b\n\0", "arguments": {"token": "\0"}},
]
SAME: list[Step] = [{"call": "look", "id": name} for name in ("a", "a_2", "a", "a", "a_1", "a" * 40, "a" * 40)]
ODD_ANSWERS: list[list[Step]] = [*([call] for call in ODD_CALLS), SAME, [{"text": "half \ud83d"}, SAME[0]]]


async def odd_problems(store: Store, answer: list[Step]) -> list[str]:
    """What is wrong with a turn in which a model answers so, and with the request after it."""
    provider = ScriptedProvider([answer, [{"text": "Well."}]])
    app = App(store, chat_settings(), tools=tools(lambda line: None, 0), provider=provider)
    session = await app.new_session("ann")
    engine = Engine(app.builder, store, provider=provider)
    running = await engine.start(await app.turn("ann", session.session_id, "Hello"))
    async with asyncio.timeout(60):
        turn = await running.wait()
    found = [] if turn.state == "complete" else [f"the turn is {turn.state}: {turn.error}"]
    try:
        return found + await next_request(app, "ann", session.session_id)
    except MessageError as error:
        return [*found, f"the session is lost: {error}"]


async def test_R12_whatever_a_model_calls_the_session_goes_on(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as store:
        assert [(answer, found) for answer in ODD_ANSWERS if (found := await odd_problems(store, answer))] == []


@pytest.mark.planted("a call that goes into the history as the model wrote it")
async def test_R12_a_planted_call_that_no_provider_takes_back_is_found(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as store:
        app = App(store, chat_settings(), provider=ScriptedProvider([]))
        for step in ODD_CALLS[:4]:
            session = (await app.new_session("ann")).session_id
            name, made = step.get("id", "c1"), {"name": step["call"], "arguments": json.dumps(step["arguments"])}
            asked: Any = {"role": "assistant", "tool_calls": [{"id": name, "type": "function", "function": made}]}
            result: Any = {"role": "tool", "tool_call_id": name, "content": "Seen."}
            await store.messages.append("ann", session, [{"role": "user", "content": "Look."}, asked, result])
            with pytest.raises(MessageError):
                await next_request(app, "ann", session)


ODD_QUESTIONS: list[Any] = [
    [],
    [{"type": "image_url", "image_url": {"url": "ftp://example.com/a.png"}}],
    [{"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "huge"}}],
    [{"type": "text", "text": "Hello", "mood": "odd"}],
    [{"type": "text", "text": "half \ud83d"}],
    "half \ud83d",
]


async def test_R12_what_could_never_be_sent_is_refused_before_it_is_stored(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as store:
        app = App(store, chat_settings(), provider=ScriptedProvider([]))
        session = await app.new_session("ann")
        for words in ODD_QUESTIONS:
            with pytest.raises(MessageError):
                await app.start("ann", session.session_id, words)
        assert await store.messages.list("ann", session.session_id) == []
        assert await next_request(app, "ann", session.session_id) == []
