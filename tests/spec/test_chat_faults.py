"""What an attack on the context of a chat found, so that it is not found again; over both stores."""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from lamina import App
from lamina.app.store_admin import import_lines
from lamina.app.worker import Worker
from lamina.assembly.budget import Budget, fit_layers
from lamina.errors import InputError, LeaseError, MessageError, OwnerError
from lamina.memory.recall import Recall
from lamina.prompts.skills import check_skills
from lamina.prompts.sources import SHARED
from lamina.providers.scripted import ScriptedProvider
from lamina.records import NewMemory, Template, Turn
from lamina.store.store import Store, open_store
from lamina.types import Layer, Share
from tests.spec.test_seed_004 import Letters, app_on, say, settings


async def test_H1_no_user_can_have_the_operators_name(store: Store) -> None:
    app = app_on(store)
    for ask in (lambda: app.memory(SHARED), lambda: app.new_session(SHARED), lambda: app.turn(SHARED, "s", "hi")):
        with pytest.raises(OwnerError, match="names that begin with @ are reserved"):
            await ask()  # pyright: ignore[reportGeneralTypeIssues] -- the first raises before it is awaited
    await store.templates.put("operator", Template("", "evil", "EVIL", is_skill=True))
    session = await app.new_session("ann")
    assert "EVIL" not in (await app.context("ann", session.session_id, "hi")).system


async def test_R1_turns_that_nobody_answers_are_ended_while_the_process_runs(where: str) -> None:
    now = [1_000.0]
    async with App.open(where, settings=settings(), embedder=Letters(), clock=lambda: now[0], work=False) as app:
        session = await app.new_session("ann")
        turn = await app.store.turns.begin("ann", session.session_id, {"role": "user", "content": "My cat is Rex."})
        await app.store.turns.chunk("ann", turn.turn_id, 0, "Hello")
        stop = asyncio.Event()
        worker = asyncio.create_task(app.worker.run(stop))
        now[0] += 3_600
        async with asyncio.timeout(60):
            while (await app.store.turns.get("ann", turn.turn_id)).state == "streaming":
                await asyncio.sleep(0.02)
            while not await app.memory("ann").list():  # R13: what was said is learnt all the same
                now[0] += 1
                await asyncio.sleep(0.02)
        stop.set()
        await worker


async def test_R1_however_many_turns_were_open_all_are_ended(store: Store) -> None:
    session = await store.sessions.new("ann")
    for _ in range(1_050):
        await store.turns.begin("ann", session.session_id, {"role": "user", "content": "q"})
    assert len(await store.turns.recover(everything=True)) == 1_050


async def test_forgotten_facts_do_not_come_back_through_a_branch_or_a_race(store: Store) -> None:
    app = app_on(store)
    session = await app.new_session("ann")
    await say(app, "ann", session, "I live in Zanzibar. My name is Annabel.")
    await app.worker.run_until_empty()
    branch = await store.sessions.branch("ann", session.session_id, 2)
    await app.end_session("ann", branch.session_id)
    await app.worker.run_until_empty()
    (home,) = [m for m in await app.memory("ann").list() if "Zanzibar" in m.text]
    assert branch.session_id in await app.memory("ann").forget(home.memory_id)
    await app.memory("ann").write_summary(branch.session_id)
    other = await app.new_session("ann")
    assert "Zanzibar" not in (await app.context("ann", other.session_id, "Where do I live?")).system
    assert "Zanzibar" not in "".join(m.text + m.context for m in await app.memory("ann").list(everything=True))


async def test_a_fact_forgotten_while_the_model_summarises_stays_forgotten(store: Store) -> None:
    app = app_on(store)
    session = await app.new_session("ann")
    await say(app, "ann", session, "I live in Zanzibar.")
    await app.worker.run_until_empty()
    (home,) = await app.memory("ann").list()
    calls: list[str] = []

    async def slow_model(messages: Sequence[object], schema: object) -> str:
        calls.append(str(messages))
        if len(calls) == 1:
            await app.memory("ann").forget(home.memory_id)
        return "The user lives in Zanzibar." if "Zanzibar" in calls[-1] else "They spoke."

    slow = App(store, settings(), embedder=Letters(), complete=slow_model)
    await slow.memory("ann").write_summary(session.session_id)
    assert len(calls) == 2
    assert [s.text for s in await store.summaries.recent("ann")] == ["They spoke."]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text"}]}, {"role": "user", "content": ["a"]},
        {"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        {"role": "assistant", "content": "x", "tool_calls": "f"}, {"role": "tool", "content": "x", "tool_call_id": []},
        {"role": "system", "content": "x"}, {"role": "user", "content": "x", "mood": "odd"},
    ],
)  # fmt: skip
async def test_H5_what_could_never_be_sent_is_refused_at_the_door(store: Store, message: dict[str, object]) -> None:
    session = await store.sessions.new("ann")
    with pytest.raises(MessageError):
        await store.messages.append("ann", session.session_id, [message])
    with pytest.raises(MessageError):
        await store.turns.begin("ann", session.session_id, message)


async def test_H5_what_an_sdk_dumps_and_a_cut_stream_leaves_can_be_read_again(store: Store) -> None:
    app = app_on(store)
    session = await app.new_session("ann")
    await store.messages.append("ann", session.session_id, [{"role": "user", "content": "hi \0"}])
    dumped = {"role": "assistant", "content": "half \ud83d", "tool_calls": None, "name": None}
    await store.messages.append("ann", session.session_id, [dumped])
    context = await app.context("ann", session.session_id, "go on")
    assert context.messages[2]["content"] == "half \ufffd"
    turn = await say(app, "ann", session, "My dog is called Rex. \ud83d\0")
    await app.end_session("ann", session.session_id)
    await app.worker.run_until_empty()
    assert await store.jobs.parked("ann") == []
    assert [m.turn_id for m in await app.memory("ann").list()] == [turn.turn_id]


async def test_H6_one_bad_job_harms_no_other_and_a_hanging_one_does_not_stop_the_end(store: Store) -> None:
    hang = asyncio.Event()

    async def model(messages: Sequence[object], schema: object) -> str:
        if "HANG" in str(messages):
            await hang.wait()
        if "CANCEL" in str(messages):
            raise asyncio.CancelledError
        raise ValueError("provider said \ud83d\0")

    app = App(store, settings(), embedder=Letters(), complete=model)
    for owner, words in (("a", "HANG"), ("b", "CANCEL"), ("c", "My dog is Rex.")):
        await say(app, owner, await app.new_session(owner), words)
    worker = Worker(store, app.memory, park_after=1, deadline=0.5)
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    async with asyncio.timeout(60):
        while not all([await store.jobs.parked(owner) for owner in "abc"]):
            await asyncio.sleep(0.02)
    stop.set()
    await running
    assert "TimeoutError" in (await store.jobs.parked("a"))[0].error


async def test_R13_nobody_waits_for_all_the_jobs_of_somebody_else(tmp_path: Path) -> None:
    ends: list[str] = []
    async with open_store(str(tmp_path / "s.db")) as store:
        app = app_on(store)
        for owner in ("ann", "bob"):
            session = await app.new_session(owner)
            for n in range(8 if owner == "ann" else 1):
                await say(app, owner, session, f"My dog is called Rex {n}.")
        worker = Worker(store, app.memory, batch=1, in_a_row=0.0, report=lambda job, how, error: ends.append(job.owner))
        await worker.run_until_empty()
        assert ends.index("bob") < 8
    ends.clear()
    async with open_store(str(tmp_path / "s2.db")) as store:
        app = app_on(store)
        session = await app.new_session("ann")
        for n in range(8):
            await say(app, "ann", session, f"My dog is called Rex {n}.")
        assert await Worker(store, app.memory, batch=1, in_a_row=60.0).run_once() == 8, "one look, and all behind it"


async def test_R13_a_job_that_fails_while_the_store_is_away_is_lost_to_its_lease_and_nothing_else(
    tmp_path: Path,
) -> None:
    ends: list[str] = []
    async with open_store(str(tmp_path / "s.db")) as store:
        await say(app_on(store), "ann", await app_on(store).new_session("ann"), "My dog is Rex.")
        away = asyncio.Event()

        async def gone(messages: Sequence[object], schema: object) -> str:
            await store.db.close()
            away.set()
            raise ValueError("nobody heard of it")

        app = App(store, settings(), embedder=Letters(), complete=gone)
        worker = Worker(store, app.memory, report=lambda job, how, error: ends.append(how))
        assert await worker.run_once() == 1
        assert away.is_set()
    assert ends == ["lost"]


async def test_H7_an_import_never_loses_a_row_without_a_word(store: Store, tmp_path: Path) -> None:
    await store.memories.add("ann", [NewMemory("mine")])
    async with open_store(str(tmp_path / "other.db")) as other:
        await other.memories.add("ann", [NewMemory("theirs")])
        lines = [line async for line in other.admin.export("ann")]
    with pytest.raises(InputError, match="atomic_memory of 'ann' has a different row"):
        await store.admin.import_(lines)
    assert await store.admin.import_(lines, owner="bob") > 0
    assert await store.admin.import_(lines, owner="bob") == 0


def call(name: str = "find", **more: str) -> str:
    one = {"id": "c1", "type": "function", "function": {"name": name, "arguments": "{}"}, **more}
    return json.dumps({"tool_calls": [one]})


def parts(*given: object) -> str:
    return json.dumps(given)


UNSENDABLE: list[tuple[str, dict[str, str], str]] = [
    ("assistant", {"extra": call("no such name!")}, "function.name"),
    ("assistant", {"extra": call(type="zzz")}, "is not a tool call"),
    ("assistant", {"extra": call(id="x" * 500)}, "tool_calls[0].id"),
    ("user", {"extra": '{"name": "<|x|>"}'}, "message.name"),
    ("user", {"extra": call()}, "its role is 'user'"),
    ("user", {"content": parts({"type": "image_url", "image_url": {"url": "javascript:alert(1)"}})}, "image_url.url"),
    ("user", {"content": parts({"type": "text", "text": "a", "cache_control": {}})}, "fields that a part cannot have"),
]


async def test_M5_an_import_refuses_messages_that_every_request_after_them_would_fail_by(
    store: Store, tmp_path: Path
) -> None:
    app = app_on(store)
    session = (await app.new_session("ann")).session_id
    await store.messages.append(
        "ann", session, [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}]
    )
    rows = [json.loads(line) async for line in store.admin.export("ann")]
    for row in rows:
        if row.pop("content_type", None):  # as in an export of format 1: every content is JSON
            row["content"] = json.dumps(row["content"])
    path = tmp_path / "export.jsonl"

    async def brought(owner: str, role: str, **changes: str) -> int:
        changed = [row | changes if row.get("role") == role else row for row in rows]
        path.write_text("\n".join(map(json.dumps, changed)))
        return await import_lines(store, str(path), owner, lambda: None)

    for role, changes, why in UNSENDABLE:
        at = next(number for number, row in enumerate(rows, 1) if row.get("role") == role)
        with pytest.raises(InputError, match=rf"line {at}: conversation: .*{re.escape(why)}.*nothing was added"):
            await brought("bob", role, **changes)
    assert await store.sessions.list("bob") == []
    kept = ('"half a pair: \\ud83d"', '""', "null", parts({"type": "text", "text": "x"}))
    for number, content in enumerate(kept):  # what streams leave behind, and what is never sent, stands in nobody's way
        assert await brought(f"carl{number}", "assistant", content=content) > 0
        assert (await app.context(f"carl{number}", session, "And now?")).messages


async def test_M2_a_scenario_prompt_of_the_operator_comes_before_a_common_one_of_the_user(store: Store) -> None:
    app = app_on(store)
    await store.templates.put(SHARED, Template("", "excel", "OPERATOR EXCEL", scenario="excel"))
    await store.templates.put("ann", Template("", "mine", "MY COMMON"))
    session = await app.new_session("ann", scenario="excel")
    text = (await app.context("ann", session.session_id, "hi")).system
    assert ("OPERATOR EXCEL" in text, "MY COMMON" in text) == (True, False)


class Picky(Letters):
    def embed(self, texts: Sequence[str], /) -> list[list[float]]:
        if any("refused" in text for text in texts):
            raise RuntimeError("too long")
        return super().embed(texts)


async def test_M4_a_text_that_the_embedder_refuses_is_found_by_its_words(store: Store) -> None:
    app = App(store, settings(), embedder=Picky())
    await app.memory("ann").add("The refused parcel lies at the harbour.")
    await app.memory("ann").add("Ann is allergic to nuts.")
    found = await app.memory("ann").get_relevant_memories("harbour parcel")
    assert [one.memory.text for one in found][:1] == ["The refused parcel lies at the harbour."]
    assert await app.memory("ann").get_relevant_memories("allergic to nuts")
    for value in (float("nan"), float("inf"), -5.0):
        with pytest.raises(MessageError, match="importance"):
            await app.memory("ann").add("x", importance=value)


async def test_M5_with_memory_off_nothing_is_learnt(store: Store) -> None:
    on, off = app_on(store), App(store, settings(memory=False))
    session = await on.new_session("ann")
    await say(on, "ann", session, "I live in Zanzibar.")
    await on.end_session("ann", session.session_id)
    assert await off.worker.run_until_empty() == 2, "what was asked for before"
    assert (await store.memories.list("ann"), await store.summaries.recent("ann")) == ([], [])


async def test_M5_a_turn_that_a_command_without_an_index_finds_open_is_still_learnt_from(tmp_path: Path) -> None:
    where = str(tmp_path / "s.db")
    async with open_store(where) as store:
        session = await store.sessions.new("ann")
        await store.turns.begin("ann", session.session_id, {"role": "user", "content": "I live in Zanzibar."})
    async with App.open(where, settings=settings(), work=False, index=False) as app:
        assert (await app.store.jobs.counts("ann"))["waiting"] == 1
        await app.end_session("ann", session.session_id)
        assert (await app.store.jobs.counts("ann"))["waiting"] == 2


async def test_M5_with_memory_off_nothing_is_even_asked_for(store: Store) -> None:
    off = App(store, settings(memory=False), provider=ScriptedProvider([[{"text": "Well."}]], repeat=True))
    session = await off.new_session("ann")
    async for _ in off.run("ann", session.session_id, "I live in Zanzibar."):
        pass
    await off.record("ann", session.session_id, "I live in Zanzibar.", "Well.")
    left = await store.turns.begin("ann", session.session_id, {"role": "user", "content": "…"}, lease=-1)
    await off.cancel("ann", left.turn_id)
    await off.end_session("ann", session.session_id)
    assert not any((await store.jobs.counts("ann")).values())
    assert (await store.memories.list("ann"), await store.summaries.recent("ann")) == ([], [])


@pytest.mark.parametrize("head", ["name: &a [x]\ndescription: *a", "name: !!python/object:os.system x"])
def test_M6_a_head_with_aliases_or_objects_is_refused(tmp_path: Path, head: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "SKILL.md").write_text(f"---\n{head}\n---\ntext\n")
    skills, (fault,) = check_skills(tmp_path)
    assert skills == []
    assert isinstance(fault, InputError)
    assert "is not YAML" in fault.message


def test_M7_a_skill_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "SKILL.md").write_text("---\nname: secret\ndescription: d\n---\nSECRET\n")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "secret").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="'secret' is a link"):
        check_skills(tmp_path / "root")


async def test_M8_searches_that_are_left_alone_do_not_meet_a_writer(store: Store) -> None:
    recall = Recall(store.memories, Letters())
    await recall.add("ann", [NewMemory(f"note {n} about tulips") for n in range(300)])
    problems: list[BaseException] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: problems.append(context.get("exception") or Exception()))

    async def reader() -> None:
        for _ in range(40):
            try:
                async with asyncio.timeout(0.003):
                    await recall.search("ann", "tulips", limit=5)
            except TimeoutError:
                continue

    async def writer() -> None:
        for n in range(40):
            await recall.add("ann", [NewMemory(f"more {n} tulips")])

    await asyncio.gather(reader(), reader(), writer())
    assert len(await recall.search("ann", "tulips", limit=5)) == 5
    assert problems == []


async def test_M10_the_job_of_a_deleted_session_is_done(store: Store) -> None:
    app = app_on(store)
    session = await app.new_session("ann")
    await say(app, "ann", session, "I live in Zanzibar.")
    await store.sessions.delete("ann", session.session_id)
    await app.worker.run_until_empty()
    assert (await store.jobs.counts("ann")).get("parked", 0) == 0
    assert (await store.jobs.counts("ann"))["done"] == 1


async def test_M3_the_mark_of_a_session_does_not_follow_from_its_name(store: Store) -> None:
    app = app_on(store)
    session = await app.new_session("ann", session_id="chat-1", meta={"a": "b"})
    first, second = [(await app.context("ann", "chat-1", "hi")).system for _ in range(2)]
    assert first == second
    assert "chat-1" not in first
    assert isinstance(await app.turn("ann", session.session_id, "hi"), Turn)


def test_H8_the_ladder_takes_time_in_proportion() -> None:
    """Ten thousand skills: each is looked at once a rung."""
    looked = [0]

    def cost(layer: Layer) -> int:
        looked[0] += 1
        return len(layer.text)

    layers = [Layer("skill", "x" * 100, f"s{n}", short="x" * 10, title="x") for n in range(10_000)]
    shares = {"skill": Share(most=0.1)}
    fitted = fit_layers(layers, Budget(1_000, shares=shares), 1_000, cost)
    assert sum(one.decision != "dropped" for one in fitted) <= 100
    assert looked[0] < 60_000


async def test_M13_a_clock_that_ran_ahead_does_not_put_jobs_off_for_years(tmp_path: Path) -> None:
    where, now = str(tmp_path / "s.db"), [2.0e9]
    async with open_store(where, clock=lambda: now[0]) as store:
        app = app_on(store)
        await say(app, "ann", await app.new_session("ann"), "My dog is called Rex.")
        (job,) = await store.jobs.claim("a worker that dies")
        assert job.state == "leased"
    now[0] = 1.7e9
    async with App.open(where, settings=settings(), embedder=Letters(), clock=lambda: now[0], work=False) as app:
        assert await app.worker.run_until_empty() == 1
        assert [memory.text for memory in await app.memory("ann").list()] == ["My dog is called Rex."]


async def test_M14_until_empty_means_that_nothing_is_left_with_the_worker_in_the_background_either(where: str) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow_model(messages: Sequence[object], schema: object) -> str:
        begun.set()
        await go_on.wait()
        return '{"facts": []}'

    async with App.open(where, settings=settings(), embedder=Letters(), complete=slow_model) as app:
        session = await app.new_session("ann")
        await say(app, "ann", session, "My cat is called Tom.")
        await begun.wait()  # the worker in the background holds the first job, and the second comes after it
        await say(app, "ann", session, "My dog is called Rex.")
        waiting = asyncio.create_task(app.worker.run_until_empty())
        with pytest.raises(LeaseError, match="1 jobs are still held by other workers"):
            await Worker(app.store, app.memory).run_until_empty(patience=0.0)
        assert not waiting.done()
        go_on.set()
        async with asyncio.timeout(60):
            await waiting
        counts = await app.store.jobs.counts("ann")
        assert (counts["waiting"], counts["leased"], counts["done"]) == (0, 0, 2)


async def test_M14_a_job_that_waits_for_its_next_try_is_not_waited_for(store: Store) -> None:
    async def broken(messages: Sequence[object], schema: object) -> str:
        raise ValueError("no model today")

    app = App(store, settings(), embedder=Letters(), complete=broken)
    session = await app.new_session("ann")
    for words in ("My cat is called Tom.", "My dog is called Rex."):
        await say(app, "ann", session, words)
    assert await app.worker.run_until_empty() == 1
    assert (await store.jobs.counts("ann"))["waiting"] == 2


async def test_M15_a_summary_that_went_with_a_forgotten_fact_is_written_anew(store: Store) -> None:
    app = app_on(store)
    session = await app.new_session("ann")
    await say(app, "ann", session, "I live in Zanzibar.")
    await say(app, "ann", session, "Please plan the garden with tulips.")
    await app.end_session("ann", session.session_id)
    await app.worker.run_until_empty()
    (home,) = [m for m in await app.memory("ann").list() if "Zanzibar" in m.text]
    assert await app.memory("ann").forget(home.memory_id) == [session.session_id]
    assert (await store.jobs.counts("ann"))["waiting"] == 1
    assert await app.worker.run_until_empty() == 1
    (summary,) = await store.summaries.recent("ann")
    assert ("Zanzibar" in summary.text, "garden" in summary.text) == (False, True)


async def test_M16_the_day_on_which_a_fact_was_added_is_not_its_day(store: Store) -> None:
    app = App(store, settings(embedder="none"))
    await app.memory("ann").add("My dog is called Rex.")
    await app.memory("ann").add("我今天和妹妹吃晚饭。")
    for fresh in (app, App(store, settings(embedder="none"))):  # as it was just indexed, and as the store has it
        for question, text, dated in (
            ("What is my dog called today?", "My dog is called Rex.", False),
            ("今天我和谁吃晚饭？", "我今天和妹妹吃晚饭。", True),
        ):
            found = await fresh.memory("ann").get_relevant_memories(question)
            assert (found[0].memory.text, "day" in found[0].why.text()) == (text, dated)


async def test_M17_what_is_known_is_given_its_new_weight_and_a_pin_follows_the_newer_fact(store: Store) -> None:
    memory = app_on(store).memory("ann")
    first = await memory.remember("I live in Berlin.", pinned=True)
    assert (first.known, first.memory.importance, first.memory.kind) == (False, 0.5, "fact")
    again = await memory.remember("I live in Berlin.", importance=0.9)
    assert (again.known, again.memory.memory_id, again.memory.importance) == (True, first.memory.memory_id, 0.9)
    assert (await memory.add("I live in Berlin.")).importance == 0.9, "what is not said stays"
    moved = await memory.remember("I live in Paris now.")
    assert [old.text for old in moved.replaced] == ["I live in Berlin."]
    assert (moved.memory.pinned, (await memory.get(first.memory.memory_id)).pinned) == (True, False)
    last = await memory.remember("I live in Oslo now.")
    with pytest.raises(MessageError, match=f"superseded by '{last.memory.memory_id}'") as error:
        await memory.pin(first.memory.memory_id)
    assert "I live in Oslo now." in error.value.hint
    assert not (await memory.pin(first.memory.memory_id, False)).pinned
    assert [m.text for m in await store.memories.list("ann", pinned=True)] == ["I live in Oslo now."]
    assert await memory.get_relevant_memories("Oslo"), "the index has it as it is now"


async def test_M17_a_text_that_only_the_store_finds_again_is_known_too(store: Store) -> None:
    memory = app_on(store, memory=False).memory("ann")
    first = await memory.add("My cat is called Tom.")
    for number in range(30):  # more than a new fact is compared with
        await memory.add(f"The tulip number {number} is red.")
    again = await memory.remember("My cat is called Tom.", importance=0.8)
    assert (again.known, again.memory.memory_id, again.memory.importance) == (True, first.memory_id, 0.8)


async def test_M18_facts_that_were_added_by_hand_lend_each_other_no_words(store: Store) -> None:
    app = App(store, settings(embedder="none"))
    for text in ("My dog is called Rex.", "我妹妹在成都上大学。", "I am allergic to penicillin."):
        await app.memory("ann").add(text)
    for fresh in (app, App(store, settings(embedder="none"))):  # as it was just indexed, and as the store has it
        found = await fresh.memory("ann").get_relevant_memories("What is my dog called?")
        assert [one.memory.text for one in found] == ["My dog is called Rex."]


async def test_P9_of_a_very_long_message_memories_are_looked_for_by_its_beginning_and_end(tmp_path: Path) -> None:
    async with App.open(tmp_path / "s.db", settings=settings(embedder="none"), work=False) as app:
        memory = app.memory("ann")
        for fact in ("The boiler has the code 7788.", "码头在江城的东边。", "The violin hangs in the hall."):
            await memory.add(fact)
        filling = "and so on " * 200_000
        found = await memory.get_relevant_memories(
            f"码头在哪里？ {filling} violin {filling} Which code has the boiler?"
        )
        assert {one.memory.text[:10] for one in found} == {"The boiler", "码头在江城的东边。"}
