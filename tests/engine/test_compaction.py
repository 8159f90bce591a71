"""S9 and S4: the history is folded when the window fills, and the session goes on; nothing is lost from the store."""

from typing import Any

import pytest

from lamina import ToolRegistry
from lamina.engine.compaction import find_last_to_fold, fold_steps
from lamina.engine.ledger_state import Runtime
from lamina.errors import CompactionError
from lamina.records import StoredMessage
from lamina.types import Message, Notice
from tests.engine.chats import chat, end_of, told

LONG = "The deploy script lives in ops/deploy.sh. " + "We talked about the garden and its many tulips. " * 12


def row(seq: int, turn: str, text: str = "x" * 40) -> StoredMessage:
    return StoredMessage("ann", "s", seq, f"m{seq}", turn, "user", text, {}, "complete", False, 0, 0.0)


@pytest.mark.parametrize("layout", ["strict", "ledger"])
async def test_S9_app_a_session_goes_on_when_its_summaries_would_fill_the_window(where: str, layout: str) -> None:
    """Each message has a constraint that the summary keeps: in time all of them together are longer than the window."""
    own: dict[str, Any] = {"window": 3_000, "layout": layout}
    async with chat(where, [[{"text": "这一部分已经完成。" * 30}]], **own) as (app, session, provider):
        await told(app, session, "请写一份关于花园的报告。")
        for number in range(40):
            events = await told(app, session, f"第{number}步：必须保留名字甲{number}，不要使用第{number}号颜色。" * 3)
            assert end_of(events).state == "complete", (number, end_of(events))
        kept = (await app.store.sessions.get("ann", session.session_id)).runtime["compactions"]
    assert "请写一份关于花园的报告。" in provider.contexts[-1].system, "the original request is kept"
    assert [one["first"] for one in kept] == [1, *(one["upto"] + 1 for one in kept[:-1])], "no message is missing"


async def test_S9_past_four_fifths_of_the_window_the_history_becomes_a_hint_and_the_session_goes_on(where: str) -> None:
    async with chat(where, [[{"text": "I have updated the notes. " + LONG}]], budget=2_000) as (app, session, provider):
        notices: list[str] = []
        for number in range(8):
            events = await told(app, session, f"Please write chapter {number} of the report. {LONG}")
            assert end_of(events).state == "complete"
            notices += [event.text for event in events if isinstance(event, Notice)]
        assert notices
        system = provider.contexts[-1].system
        assert '<system_hint type="compacted">' in system
        assert "Please write chapter 0 of the report." in system, "the original request is kept"
        assert "ops/deploy.sh" in system, "the state is kept"
        for heading in ("Done", "Open", "State", "Notes"):
            assert heading in system
        assert all(context.receipt.tokens <= 2_000 for context in provider.contexts)
        rows = await app.store.messages.list("ann", session.session_id)
        assert len(rows) == 16, "the raw history stays"
        kept = (await app.store.sessions.get("ann", session.session_id)).runtime["compactions"]
        assert [one["first"] for one in kept] == [1, *(one["upto"] + 1 for one in kept[:-1])], "and is linked"


async def test_S4_a_second_compaction_keeps_what_the_first_one_saved(where: str) -> None:
    async with chat(where, [[{"text": "Done. " + LONG}]], budget=3_000) as (app, session, provider):
        await told(app, session, f"Remember the code word ALPHA-1 for me, please. {LONG}")
        await told(app, session, f"Please explain BETA-2. {LONG}")
        await told(app, session, f"Go on, please. {LONG}")
        first = await app.compact("ann", session.session_id)
        await told(app, session, f"Please go on. {LONG}")
        await told(app, session, f"And once more. {LONG}")
        second = await app.compact("ann", session.session_id)
        assert first.after < first.before
        assert second.upto_seq > first.upto_seq
        await told(app, session, "And now?")
        system = provider.contexts[-1].system
        assert "ALPHA-1" in system
        assert "BETA-2" in system
        assert system.index("ALPHA-1") < system.index("BETA-2")


async def test_S4_a_summary_and_a_degraded_tool_stand_at_the_same_time(where: str) -> None:
    tools = ToolRegistry()

    @tools.function
    def fetch(url: str) -> str:
        """Fetches a page; one at a time."""
        raise ConnectionError(f"no way to {url}")

    call: list[dict[str, Any]] = [{"call": "fetch", "id": "f", "arguments": {"url": "a"}}]
    script = [*[[{"text": "Done. " + LONG}]] * 3, *[call] * 3, [{"text": "I give up."}]]
    async with chat(where, script, tools=tools, budget=4_000) as (app, session, provider):
        await told(app, session, f"Remember the code word ALPHA-1 for me, please. {LONG}")
        for _ in range(2):
            await told(app, session, f"Please go on. {LONG}")
        await app.compact("ann", session.session_id)
        await told(app, session, "Fetch it.")
        await told(app, session, "And now?")
        system = provider.contexts[-1].system
        summary, degraded = (system.find(f'<system_hint type="{kind}"') for kind in ("compacted", "tool_degraded"))
        assert 0 <= summary < degraded or 0 <= degraded < summary
        assert "ALPHA-1" in system


async def test_S9_a_compaction_that_frees_less_than_a_tenth_is_an_error_and_changes_nothing(where: str) -> None:
    async with chat(where, [[{"text": "ok"}]], budget=3_000) as (app, session, _):
        await told(app, session, "hi")
        await told(app, session, "ho")
        with pytest.raises(CompactionError, match="less than 10%"):
            await app.compact("ann", session.session_id)
        assert "compactions" not in (await app.store.sessions.get("ann", session.session_id)).runtime


async def test_S9_there_is_nothing_to_fold_in_a_new_session(where: str) -> None:
    async with chat(where, [[{"text": "ok"}]]) as (app, session, _):
        with pytest.raises(CompactionError, match="nothing to fold"):
            await app.compact("ann", session.session_id)
        await told(app, session, LONG)
        with pytest.raises(CompactionError, match="nothing to fold"):  # its newest turn stays
            await app.compact("ann", session.session_id)


async def test_S9_a_model_writes_the_summary_where_there_is_one_and_rules_where_it_fails(where: str) -> None:
    answers = [*[[{"text": f"ok {LONG}"}]] * 4, [{"text": "SUMMARY BY THE MODEL"}]]
    async with chat(where, answers, budget=4_000, learn="model") as (app, session, provider):
        for number in range(4):
            await told(app, session, f"Please write chapter {number}. {LONG}")
        done = await app.compact("ann", session.session_id)
        assert (done.written_by, done.text) == ("model", "SUMMARY BY THE MODEL")
        assert "You summarise a chat" in provider.contexts[-1].system
    answers[4] = [{"fault": "refused"}]
    async with chat(where, answers, budget=4_000, learn="model") as (app, session, provider):
        for number in range(4):
            await told(app, session, f"Please write chapter {number}. {LONG}")
        assert (await app.compact("ann", session.session_id)).written_by == "extractive"


async def test_S9_it_is_checked_at_every_step_and_early_steps_of_a_long_turn_are_folded(where: str) -> None:
    tools = ToolRegistry()

    @tools.function
    def page(number: int) -> str:
        """A page of the book; one at a time."""
        return f"page {number}: " + "lorem ipsum dolor sit amet " * 30

    calls = [[{"call": "page", "id": f"c{n}", "arguments": {"number": n}}] for n in range(12)]
    async with chat(where, [*calls, [{"text": "read"}]], tools=tools, budget=2_500) as (app, session, provider):
        events = await told(app, session, "Read the ORIGINAL book.")
        assert end_of(events).state == "complete"
        assert any(isinstance(event, Notice) for event in events)
        assert all(context.receipt.tokens <= 2_500 for context in provider.contexts)
        last = provider.contexts[-1]
        assert "ORIGINAL" in str(last.messages[1]["content"]), "the request itself stays"
        assert '- page {"number": 0} → page 0: lorem' in last.system
        assert len(await app.store.messages.list("ann", session.session_id)) == 26


async def test_without_compaction_the_window_is_cut_instead(where: str) -> None:
    async with chat(where, [[{"text": LONG}]], budget=1_500, compaction=False) as (app, session, provider):
        for _ in range(6):
            await told(app, session, LONG)
        assert provider.contexts[-1].receipt.dropped.count
        assert not (await app.store.sessions.get("ann", session.session_id)).runtime.get("compactions")


def test_whole_turns_stay_also_when_two_ran_at_once() -> None:
    rows = [row(1, "a"), row(2, "a"), row(3, "b"), row(4, "c"), row(5, "b"), row(6, "c")]
    assert find_last_to_fold(rows, 3 * 40 + 10, len) == 2, "c is kept, and b, which it is interleaved with"
    assert find_last_to_fold(rows, 0, len) == 6
    assert find_last_to_fold([*rows[:2], row(3, "b"), row(4, "b")], 0, len, turns=1) == 2
    assert find_last_to_fold(rows, 0, len, turns=1) == 2, "c stays, and b, which it is interleaved with"
    assert find_last_to_fold(rows[:2], 0, len, turns=1) == 0
    assert find_last_to_fold(rows, 10_000, len) == 0


def test_the_last_step_of_a_turn_always_stays() -> None:
    since: list[Message] = []
    for n in range(3):
        call = {"id": f"c{n}", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
        since.append({"role": "assistant", "content": None, "tool_calls": [call]})  # pyright: ignore[reportArgumentType]
        since.append({"role": "tool", "tool_call_id": f"c{n}", "content": f"file {n}"})
    text, rest = fold_steps(since, 0, 1_000, len)
    assert text == "- ls {} → file 0\n- ls {} → file 1"
    assert rest == since[4:]
    assert fold_steps(since, 10_000, 1_000, len) == ("", since)


def test_what_a_session_keeps_is_read_back_as_it_was() -> None:
    runtime = Runtime(0.5, failures={"web_fetch": 2})
    assert Runtime.of(runtime.to_dict()) == runtime
    assert Runtime.of({}) == Runtime()
