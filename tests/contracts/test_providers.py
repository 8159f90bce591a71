"""What the port promises, over every provider: the script, both HTTP forms, streamed and whole, the embedded model."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any

import pytest

from lamina import assemble
from lamina.errors import MessageError
from lamina.ports import Provider
from lamina.providers.local import LocalProvider
from lamina.providers.scripted import ScriptedProvider
from lamina.types import Context, Done, Event, Text, Usage
from tests.providers.serving import FORMS, TEXT, TEXTS, Form, order_problems, provider, serving, text_of

CONTEXT = assemble(user="Say hello.", budget=1_000)
Open = Callable[[], AbstractAsyncContextManager[Provider]]


@asynccontextmanager
async def scripted() -> AsyncGenerator[Provider]:
    yield ScriptedProvider([[*({"text": text} for text in TEXTS), {"usage": [7, 3, 5]}]], repeat=True)


@asynccontextmanager
async def local() -> AsyncGenerator[Provider]:
    asked = LocalProvider(n_ctx=512)
    yield asked
    await asked.close()


def served(form: Form, stream: bool) -> Open:
    @asynccontextmanager
    async def opened() -> AsyncGenerator[Provider]:
        async with serving(form.good(stream)) as server:
            asked = provider(form, server, stream=stream, window=100)
            yield asked
            await asked.close()

    return opened


PROVIDERS: dict[str, Open] = {
    "scripted": scripted,
    "local": local,
    **{f"{form.name} {'stream' if s else 'whole'}": served(form, s) for form in FORMS for s in (True, False)},
}

each = pytest.mark.parametrize("opened", PROVIDERS.values(), ids=PROVIDERS)


async def all_of(asked: Provider, context: Context = CONTEXT) -> list[Event]:
    return [event async for event in asked.stream(context, max_tokens=8)]


@each
async def test_texts_come_first_then_usage_then_one_done(opened: Open) -> None:
    async with opened() as asked:
        events = await all_of(asked)
    assert order_problems(events, whole=True) == []
    assert isinstance(events[-1], Done)
    assert isinstance(events[-2], Usage)
    assert text_of(events) == TEXT or asked.name == "local"


@each
async def test_it_says_who_it_is(opened: Open) -> None:
    async with opened() as asked:
        assert asked.name in ("scripted", "local", "openai", "anthropic")
        assert asked.model
        assert asked.window is None or asked.window > 0
        assert asked.model in repr(asked) or asked.name == "scripted"


@each
async def test_it_takes_a_context_and_never_a_history(opened: Open) -> None:
    history: Any = [{"role": "user", "content": "hi"}]
    async with opened() as asked:
        with pytest.raises(MessageError, match="Context"):
            asked.stream(history)


@each
async def test_one_reader_that_leaves_does_not_harm_the_next(opened: Open) -> None:
    async with opened() as asked:
        async with aclosing(asked.stream(CONTEXT, max_tokens=8)) as streamed:
            assert isinstance(await anext(streamed), Text)
        unread = asked.stream(CONTEXT)
        await unread.aclose()
        assert order_problems(await all_of(asked), whole=True) == []


@each
async def test_many_readers_at_once_get_whole_answers(opened: Open) -> None:
    async with opened() as asked:
        answers = await asyncio.gather(*(all_of(asked) for _ in range(4)))
    assert [order_problems(events, whole=True) for events in answers] == [[]] * 4


@each
async def test_it_may_be_closed_twice_and_used_again(opened: Open) -> None:
    async with opened() as asked:
        await asked.close()
        await asked.close()
        assert order_problems(await all_of(asked), whole=True) == []


def test_the_check_finds_streams_that_break_the_promise() -> None:
    broken: list[list[Event]] = [
        [Text("a")], [Done("stop"), Text("a")], [Text(""), Done("stop")], [Done("stop"), Done("stop")],
        [Usage(1, 0, 1), Usage(1, 0, 1), Done("stop")],
    ]  # fmt: skip
    assert all(order_problems(events, whole=True) for events in broken)
