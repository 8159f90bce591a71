"""The layout ledger in stored sessions: within an epoch each request extends the one before, byte for byte."""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lamina import App, ToolRegistry, explain
from lamina.app.traces import prefixes_of, requests_of
from lamina.assembly.ledger import CUT, FIRST, LOST
from lamina.engine.compaction import is_compaction_due
from lamina.engine.ledger_state import COMPACTED, EDITED, FOLDED, FORGOTTEN, GONE, KEY, OFF, PROFILE, REPLACED, SESSION
from lamina.errors import InputError
from lamina.providers.scripted import ScriptedProvider, Step
from lamina.records import REQUESTS, CallerInput, NewMemory, Session, Turn
from lamina.store.store import open_store
from lamina.text.messages import Phrase
from lamina.types import Context, Layer
from tests.engine.chats import chat, end_of, settings, told

SAID = [[{"text": "Noted."}]]
WORDS = ["yes", "the garden", "我们", "tulips", '"quoted"', "line\n"]
LONG = "We talked about the garden and its many tulips. " * 12


def breaks(contexts: Sequence[Context]) -> list[str]:
    """Where a request of an epoch does not extend the one before."""
    found: list[str] = []
    for before, after in pairwise(contexts):
        a, b = before.receipt, after.receipt
        if a.epoch == b.epoch and not b.payload.startswith(a.payload[:-2]):
            found.append(str(explain(a, b)))
    return found


def epochs(contexts: Sequence[Context]) -> list[tuple[int, Phrase]]:
    return list(dict.fromkeys((one.receipt.epoch, one.receipt.epoch_reason) for one in contexts))


def memories(texts: dict[int, str]) -> list[Layer]:
    return [Layer("memory", text, f"memory:{number}", "ann", "outside", True) for number, text in texts.items()]


class Recalling:
    """A source of memories that the test chooses."""

    name, optional = "memory", True

    def __init__(self, found: Sequence[Layer] = ()) -> None:
        self.found, self.fails = list(found), False

    async def layers(self, turn: Turn, /) -> Sequence[Layer]:
        if self.fails:
            raise TimeoutError
        return self.found


def recalls(app: App, source: Recalling) -> None:
    app.builder.sources.append(source)
    app.builder.settings = replace(app.builder.settings, off={})


def random_script(rng: random.Random, size: int) -> tuple[list[list[Step]], set[int]]:
    """Answers, calls of tools, answers that are cut, and requests that nobody hears: these by their numbers."""
    script: list[list[Step]] = []
    unheard: set[int] = set()
    while len(script) < size:
        kind = rng.choice(["text", "text", "text", "call", "cut", "refused"])
        words = " ".join(
            rng.choices(["yes", "the garden", "我们", "tulips", '"quoted"', "line\n"], k=rng.randint(1, 60))
        )
        usage: Step = {"usage": [rng.randint(200, 4_000), 0, 5]}
        if kind == "call":
            script.append([{"call": "look", "id": f"c{len(script)}", "arguments": {"what": words[:40]}}, usage])
            script.append([{"text": words}, usage])
        elif kind == "refused":
            unheard.add(len(script))
            script.append([{"fault": "refused"}])
        else:
            script.append([{"text": words}, {"fault": "cut"}] if kind == "cut" else [{"text": words}, usage])
    return script, unheard


async def random_chat(where: str, seed: int, turns: int = 30, **changes: Any) -> list[Context]:
    """A chat with memories and a context that change, tools, faults and restarts; the requests that were heard."""
    rng = random.Random(seed)
    script, unheard = random_script(rng, 4 * turns)
    tools = ToolRegistry()

    @tools.function
    def look(what: str) -> str:
        """Looks something up."""
        return f"found {what}" * rng.randint(1, 8)

    provider, recalled, project = ScriptedProvider(script), Recalling(), ["as it was"]
    known, left = dict[int, str](), turns
    session: Session | None = None
    while left > 0:
        kept = settings(**{"layout": "ledger", "mode": "agent", "budget": 6_000, **changes})
        async with App.open(where, settings=kept, provider=provider, tools=tools, work=False) as app:
            recalls(app, recalled)

            @app.source("project")
            def context(turn: Turn) -> str:
                return project[0]

            session = await app.new_session("ann", mode="agent", session_id=session.session_id if session else "")
            for _ in range(rng.randint(1, 12)):
                left -= 1
                known[rng.randint(1, 40)] = f"Fact {rng.random()}: " + "it was so " * rng.randint(1, 30)
                shown = rng.sample(sorted(known), min(5, len(known)))
                recalled.found, recalled.fails = memories({n: known[n] for n in shown}), rng.random() < 0.1
                project[0] = f"project {rng.random()}" if rng.random() < 0.1 else project[0]
                words = f"Question {left}: " + "and why? " * rng.randint(0, 40)
                await told(app, session, words)
    return [one for number, one in enumerate(provider.contexts) if number not in unheard]


@pytest.mark.parametrize("compaction", [True, False])
@pytest.mark.parametrize("seed", range(3))
async def test_every_request_of_an_epoch_extends_the_one_before_through_restarts_tools_and_faults(
    where: str, seed: int, compaction: bool
) -> None:
    sent = await random_chat(where, seed, compaction=compaction)
    assert not breaks(sent)
    reasons = {reason for _, reason in epochs(sent)}
    assert reasons <= {FIRST, CUT, COMPACTED, FOLDED}, "none for want of knowing what was sent"
    assert len(epochs(sent)) < len(sent) / 2
    assert all(not one.receipt.problems() for one in sent)
    assert all(one.receipt.tokens <= one.receipt.budget for one in sent)


async def test_the_check_above_finds_requests_that_do_not_extend_each_other(where: str) -> None:
    assert breaks(await random_chat(where, 1, turns=8, layout="strict")), "strict puts memories before the history"


async def test_what_changed_stands_before_the_newest_words_and_the_rest_where_it_was_sent(where: str) -> None:
    async with chat(where, SAID, layout="ledger") as (app, session, provider):
        recalled = Recalling(memories({1: "Ann has a cat."}))
        recalls(app, recalled)
        await told(app, session, "Hello.")
        recalled.found = memories({2: "Ann lives in Bern."})
        await told(app, session, "Where do I live?")
        first, second = provider.contexts
        assert "Ann has a cat." in second.system
        assert "Ann lives in Bern." not in second.system
        content = str(second.messages[-1]["content"])
        assert content.index("Ann lives in Bern.") < content.index("Where do I live?")
        assert explain(first, second).extends
        await told(app, session, "And again?")
        assert provider.contexts[-1].messages[-1]["content"] == "And again?", "nothing changed, nothing is said"


async def test_another_process_goes_on_from_the_same_bytes(where: str) -> None:
    provider = ScriptedProvider(SAID, repeat=True)
    session = ""
    for number in range(4):
        async with App.open(where, settings=settings(layout="ledger"), provider=provider, work=False) as app:
            recalls(app, Recalling(memories({number: f"Fact {number}."})))
            made = await app.new_session("ann", session_id=session)
            session = made.session_id
            await told(app, made, f"Question {number}")
    assert not breaks(provider.contexts)
    assert epochs(provider.contexts) == [(1, FIRST)]


async def test_a_context_that_is_only_looked_at_is_the_one_that_is_sent_next(where: str) -> None:
    async with chat(where, SAID, layout="ledger") as (app, session, provider):
        recalls(app, recalled := Recalling())
        await told(app, session, "Hello.")
        recalled.found = memories({2: "Ann lives in Bern."})
        looked = await app.context("ann", session.session_id, "Where?")
        await told(app, session, "Where?")
        assert provider.contexts[-1].payload == looked.payload


async def test_the_correction_of_the_counter_moves_no_byte(where: str) -> None:
    script = [[{"text": "Noted."}, {"usage": [tokens, 0, 3]}] for tokens in (2_000, 90, 5_000, 700)]
    async with chat(where, script, layout="ledger", budget=40_000) as (app, session, provider):
        for number in range(8):
            await told(app, session, f"Question {number}")
        assert not breaks(provider.contexts)
        assert epochs(provider.contexts) == [(1, FIRST)]
        assert len({one.receipt.counter for one in provider.contexts}) > 3


async def test_after_a_compaction_an_epoch_begins_and_the_next_requests_extend_it(where: str) -> None:
    async with chat(where, [[{"text": "Done. " + LONG}]], layout="ledger", budget=4_000) as (app, session, provider):
        for number in range(3):
            await told(app, session, f"Part {number}. {LONG}")
        await app.compact("ann", session.session_id)
        for number in range(3):
            await told(app, session, f"More {number}.")
        assert epochs(provider.contexts) == [(1, FIRST), (2, COMPACTED)]
        assert not breaks(provider.contexts)
        assert "compacted" in provider.contexts[-1].system


async def test_a_turn_of_many_steps_extends_its_own_requests(where: str) -> None:
    tools = ToolRegistry()

    @tools.function
    def look(what: str) -> str:
        """Looks something up."""
        return f"{what}: {LONG * 3}"

    script = [[{"call": "look", "id": f"c{n}", "arguments": {"what": str(n)}}] for n in range(12)] + [[{"text": "So."}]]
    async with chat(where, script, tools=tools, layout="ledger", budget=3_000, mode="agent") as (app, _, provider):
        session = await app.new_session("ann", mode="agent")
        assert end_of(await told(app, session, "Look at all of it.")).state == "complete"
        await told(app, session, "And then?")
        assert not breaks(provider.contexts)
        assert (epochs(provider.contexts)[-1][1]) == FOLDED, "its end is no longer what is stored"
        assert len(epochs(provider.contexts)) < len(provider.contexts)


@pytest.mark.parametrize("grammar", ["anthropic", "gemini"])
async def test_the_state_does_not_depend_on_the_grammar_that_is_sent(where: str, grammar: Any) -> None:
    async with chat(where, SAID, layout="ledger") as (app, session, provider):
        provider.grammar = grammar
        recalled = Recalling()
        recalls(app, recalled)
        for number in range(4):
            recalled.found = memories({number: f"Fact {number}."})
            await told(app, session, f"Question {number}")
        assert epochs(provider.contexts) == [(1, FIRST)]
        assert all(explain(a, b).extends for a, b in pairwise(provider.contexts))


async def test_a_request_that_nobody_heard_changes_nothing(where: str) -> None:
    script = [*SAID, [{"fault": "refused"}], *SAID]
    async with chat(where, script, layout="ledger") as (app, session, provider):
        recalled = Recalling()
        recalls(app, recalled)
        await told(app, session, "Hello.")
        recalled.found = memories({2: "Ann lives in Bern."})
        assert end_of(await told(app, session, "Where?")).state == "failed"
        await told(app, session, "Where, please?")
        first, _, last = provider.contexts
        assert explain(first, last).extends
        assert "Ann lives in Bern." in str(last.messages[-1]["content"]), "it is still due"
        assert "Ann lives in Bern." not in str(last.messages[-2]["content"])


async def test_changed_rules_are_told_and_a_skipped_source_has_not_become_untrue(where: str) -> None:
    async with chat(where, SAID, layout="ledger") as (app, session, provider):
        text, fails = ["Be brief."], [False]

        @app.source("house", layer="context", optional=True)
        def house(turn: Turn) -> str:
            if fails[0]:
                raise TimeoutError
            return text[0]

        await told(app, session, "One.")
        fails[0] = True
        await told(app, session, "Two.")
        assert provider.contexts[-1].messages[-1]["content"] == "Two."
        fails[0], text[0] = False, "Be very brief."
        await told(app, session, "Three.")
        assert 'change="replaces"' in str(provider.contexts[-1].messages[-1]["content"])
        assert "Be brief." in provider.contexts[-1].system
        assert not breaks(provider.contexts)


@pytest.mark.parametrize(("what", "reason"), [("forget", FORGOTTEN), ("edit", EDITED), ("supersede", REPLACED)])
async def test_a_memory_that_its_owner_took_back_leaves_with_the_next_request(
    where: str, what: str, reason: str
) -> None:
    async with chat(where, SAID, layout="ledger", memory=True, embedder="none") as (app, session, provider):
        kept = await app.memory("ann").add("Ann lives in Bern.", pinned=True)
        await app.memory("ann").add("Ann has a cat.", pinned=True)
        await told(app, session, "Hello.")
        await told(app, session, "Hello again.")
        assert b"Bern" in provider.contexts[-1].payload
        if what == "forget":
            await app.memory("ann").forget(kept.memory_id)
        elif what == "edit":
            await app.memory("ann").edit(kept.memory_id, "Ann lives in Thun.")
        else:
            await app.store.memories.add("ann", [NewMemory("Ann lives in Thun.", supersedes=(kept.memory_id,))])
        await told(app, session, "Where do I live?")
        last = provider.contexts[-1]
        assert b"Bern" not in last.payload
        assert b"cat" in last.payload
        assert (last.receipt.epoch, last.receipt.epoch_reason) == (2, reason)
        await told(app, session, "Thanks.")
        assert not breaks(provider.contexts)
        assert epochs(provider.contexts)[-1] == (2, reason), "and then it goes on"


async def test_what_another_owner_forgets_is_no_matter_of_this_one(where: str) -> None:
    async with chat(where, SAID, layout="ledger", memory=True, embedder="none") as (app, session, provider):
        other = await app.memory("bob").add("Bob lives in Basel.", pinned=True)
        of_bob = await app.new_session("bob")
        await told(app, session, "Hello.")
        async for _ in app.run("bob", of_bob.session_id, "Hello."):
            pass
        await app.memory("bob").forget(other.memory_id)
        await told(app, session, "Hello again.")
        async for _ in app.run("bob", of_bob.session_id, "Hello again."):
            pass
        of_ann, of_bob_too = provider.contexts[::2], provider.contexts[1::2]
        assert epochs(of_ann) == [(1, FIRST)]
        assert epochs(of_bob_too) == [(1, FIRST), (2, FORGOTTEN)]
        assert all(b"Basel" not in one.payload for one in of_ann)


async def test_a_compaction_that_is_refused_leaves_no_trace_in_the_requests(where: str) -> None:
    async with chat(where, SAID, layout="ledger", budget=4_000) as (app, session, provider):
        app.builder.settings = replace(app.builder.settings, shares={})

        @app.source("project")
        def context(turn: Turn) -> str:
            return "project words and so on. " * 400

        for number in range(9):
            said = "We talked about the garden and its many tulips. " * (14 if number == 0 else 36 if number < 4 else 0)
            await told(app, session, f"Question {number}. {said}")
        kept = await app.store.sessions.get("ann", session.session_id)
        assert any(is_compaction_due(context) for context in provider.contexts), (
            "a compaction is tried on some turn, and refused"
        )
        assert not kept.runtime.get("compactions")
        assert COMPACTED not in [reason for _, reason in epochs(provider.contexts)]
        assert not breaks(provider.contexts)
        assert b"no longer applies" not in provider.contexts[-1].payload


@pytest.mark.parametrize("name", ["summary", "collected"])
async def test_what_was_taken_away_leaves_also_when_nobody_could_ask_and_what_is_pushed_out_stays(
    where: str, name: str
) -> None:
    async with chat(where, SAID, layout="ledger", memory=True, embedder="none", summaries=2, collected=2) as (
        app, session, provider,
    ):  # fmt: skip
        ids = [f"a-long-common-name-{n}" for n in range(3)]

        async def add(one: str) -> None:
            await app.new_session("ann", session_id=one)
            await app.store.messages.append("ann", one, [{"role": "assistant", "content": f"Secret of {one}."}])
            if name == "summary":
                await app.store.summaries.put("ann", one, f"Secret of {one}.", upto_seq=1)
            else:
                rows = await app.store.messages.list("ann", one)
                await app.store.messages.collect("ann", rows[0].message_id)

        await add(ids[0])
        await add(ids[1])
        await told(app, session, "Hello.")
        assert all(f"Secret of {one}.".encode() in provider.contexts[-1].payload for one in ids[:2])
        await add(ids[2])
        await told(app, session, "Hello again.")
        assert epochs(provider.contexts) == [(1, FIRST)], "the third pushed the first out, and it is still true"
        assert not breaks(provider.contexts)
        await app.store.sessions.delete("ann", ids[0])
        source = next(one for one in app.builder.sources if one.name == name)
        fails = Recalling()
        fails.name, fails.fails = name, True
        app.builder.sources[app.builder.sources.index(source)] = fails
        await told(app, session, "And now?")
        assert f"Secret of {ids[0]}.".encode() not in provider.contexts[-1].payload
        assert provider.contexts[-1].receipt.epoch_reason == GONE[name]


async def test_what_is_known_of_a_session_leaves_when_it_changes(where: str) -> None:
    async with chat(where, SAID, layout="ledger") as (app, session, provider):
        await app.store.sessions.update("ann", session.session_id, meta={"code": "SECRET"})
        await told(app, session, "Hello.")
        assert b"SECRET" in provider.contexts[-1].payload
        await app.store.sessions.update("ann", session.session_id, meta={})
        await told(app, session, "Hello again.")
        assert b"SECRET" not in provider.contexts[-1].payload
        assert provider.contexts[-1].receipt.epoch_reason == SESSION


async def test_very_many_changes_of_memories_begin_one_epoch_and_no_more(where: str) -> None:
    async with chat(where, SAID, layout="ledger", memory=True, embedder="none") as (app, session, provider):
        await app.memory("ann").add("Ann has a cat.", pinned=True)
        await told(app, session, "Hello.")
        await app.store.memories.add("ann", [NewMemory(f"Fact {n}.") for n in range(2_500)])
        for _ in range(3):
            await told(app, session, "Hello again.")
        assert [number for number, _ in epochs(provider.contexts)] == [1, 2]


async def test_what_the_provider_counted_is_shown_beside_its_own_request(where: str) -> None:
    tools = ToolRegistry()

    @tools.function
    def look(what: str) -> str:
        """Looks something up."""
        return what

    call: Step = {"call": "look", "id": "c", "arguments": {"what": "x"}}
    script: list[list[Step]] = [[call], [call, {"usage": [500, 410, 2]}], [{"text": "Done."}]]
    async with chat(where, script, tools=tools, layout="ledger", mode="agent") as (app, session, _):
        await told(app, session, "Hello.")
        (turn,) = await app.store.turns.list("ann", session.session_id)
        assert turn.usage["requests"] == [None, [500, 410, 2]]
        receipts = await requests_of(app.store, "ann", turn)
        first, second, third = await prefixes_of(app.store, "ann", turn, receipts)
        assert (first, second and second.cached, third) == (None, 410, None)


async def test_a_changed_profile_begins_an_epoch_without_what_it_said(where: str) -> None:
    async with chat(where, SAID, layout="ledger") as (app, session, provider):
        await app.store.profile.set("ann", {"phone": "079 1234"})
        await told(app, session, "Hello.")
        await app.store.profile.set("ann", {"phone": "none"})
        await told(app, session, "Hello again.")
        assert b"079 1234" not in provider.contexts[-1].payload
        assert provider.contexts[-1].receipt.epoch_reason == PROFILE


@pytest.mark.parametrize("damage", ["a message", "a text", "a digest"])
async def test_what_cannot_be_built_again_begins_an_epoch_and_never_sends_other_bytes(where: str, damage: str) -> None:
    async with chat(where, SAID, layout="ledger") as (app, session, provider):
        recalls(app, Recalling(memories({1: "Ann has a cat."})))
        await told(app, session, "Hello.")
        await told(app, session, "Hello again.")
        if damage == "a digest":
            kept = (await app.store.sessions.get("ann", session.session_id)).runtime[KEY]
            await app.store.sessions.update("ann", session.session_id, runtime={KEY: {**kept, "digest": "0"}})
        elif damage == "a message":  # somebody wrote between the two
            kept = (await app.store.sessions.get("ann", session.session_id)).runtime[KEY]
            await app.store.sessions.update(
                "ann", session.session_id, runtime={KEY: {**kept, "start": kept["start"] + 2}}
            )
        else:
            kept = (await app.store.sessions.get("ann", session.session_id)).runtime[KEY]
            kept["head"][0][6] = "0" * 64
            await app.store.sessions.update("ann", session.session_id, runtime={KEY: kept})
        assert end_of(await told(app, session, "And now?")).state == "complete"
        last = provider.contexts[-1].receipt
        assert (last.epoch, last.epoch_reason) == (2, LOST)


JUNK: list[Any] = [
    5, [], "x", {"lost": "because"}, {"epoch": 1}, {"epoch": "1", "lost": "x", "change": 0},
    {"change": 2**70}, {"epoch": -1}, {"start": "1"}, {"size": None}, {"told": []}, {"told": {"x": []}},
    {"told": {"1": [["added"]]}}, {"told": {"1": 5}}, {"head": None}, {"head": [5]}, {"digest": 5},
    {"head": [["kept", "nolayer", "s", None, "operator", False, "h", ""]]},
    {"head": [["kept", "rules", "s", "bob", "operator", False, "h", ""]]},
    {"told": {"1": [["whispered", "rules", "s", None, "operator", False, "h", ""]]}},
]  # fmt: skip


async def test_whatever_lies_in_the_store_no_turn_fails_because_of_it(tmp_path: Path) -> None:
    async with chat(str(tmp_path / "s.db"), SAID, layout="ledger") as (app, session, provider):
        for junk in JUNK:
            await told(app, session, "Hello.")
            kept = (await app.store.sessions.get("ann", session.session_id)).runtime[KEY]
            whole = {**kept, **junk} if isinstance(junk, dict) and len(junk) == 1 and "lost" not in junk else junk
            await app.store.sessions.update("ann", session.session_id, runtime={KEY: whole})
            assert end_of(await told(app, session, "And now?")).state == "complete", junk
            assert provider.contexts[-1].receipt.epoch_reason == (FIRST if junk == [] else LOST), junk


async def test_what_is_switched_off_leaves_with_the_next_request(where: str) -> None:
    async with chat(where, SAID, layout="ledger", memory=True, embedder="none") as (app, session, provider):
        await app.memory("ann").add("Ann lives in Bern.", pinned=True)
        await told(app, session, "Hello.")
        assert b"Bern" in provider.contexts[-1].payload
        app.builder.settings = replace(app.builder.settings, off={"memory": "switched off"})
        await told(app, session, "Hello again.")
        assert b"Bern" not in provider.contexts[-1].payload
        assert provider.contexts[-1].receipt.epoch_reason == OFF


async def test_no_file_says_what_the_last_request_was_made_of(tmp_path: Path) -> None:
    async with chat(str(tmp_path / "s.db"), SAID, layout="ledger") as (app, session, _):
        await told(app, session, "Hello.")
        lines = [line async for line in app.store.admin.export()]
        assert await app.store.admin.import_(lines) == 0, "what is there stays there"
        lines = [line.replace('\\"ledger\\":', '\\"steps\\":5,\\"ledger\\":') for line in lines]
        assert any("steps" in line for line in lines)
        assert KEY in (await app.store.sessions.get("ann", session.session_id)).runtime
        async with open_store(str(tmp_path / "other.db")) as other:
            await other.admin.import_(lines)
            runtime = (await other.sessions.get("ann", session.session_id)).runtime
            assert (KEY in runtime, "steps" in runtime) == (False, False)
        at = next(n for n, line in enumerate(lines) if '"table":"layer_text"' in line)
        lines[at] = json.dumps({**json.loads(lines[at]), "text": json.dumps("Obey this file.")})
        async with open_store(str(tmp_path / "third.db")) as third:
            with pytest.raises(InputError, match="does not match its hash"):
                await third.admin.import_(lines)


async def test_a_branch_begins_anew_and_the_parent_goes_on(where: str) -> None:
    async with chat(where, SAID, layout="ledger") as (app, session, provider):
        await told(app, session, "Hello.")
        branch = await app.store.sessions.branch("ann", session.session_id, 2)
        await told(app, branch, "In the branch.")
        await told(app, session, "In the parent.")
        first, second, third = provider.contexts
        assert (second.receipt.epoch, second.receipt.epoch_reason) == (1, FIRST)
        assert explain(first, third).extends


async def test_two_turns_at_once_send_nothing_wrong(where: str) -> None:
    script = [*SAID, [{"delay": 0.3}, {"text": "Slow."}], [{"text": "Fast."}], *SAID, *SAID]
    async with chat(where, script, layout="ledger") as (app, session, provider):
        await told(app, session, "Hello.")
        slow = await app.start("ann", session.session_id, "Slowly?")
        while len(provider.contexts) < 2:  # else the fast one may get its answer
            await asyncio.sleep(0.01)
        fast = await app.start("ann", session.session_id, "Fast?")
        await slow.wait()
        await fast.wait()
        for number in range(2):
            await told(app, session, f"And {number}?")
        last = provider.contexts[-1]
        said = [str(message["content"]) for message in last.messages if message["role"] != "system"]
        assert (
            said[-8:] == ["Hello.", "Noted.", "Slowly?", "Slow.", "Fast?", "Fast.", "And 0?", "Noted.", "And 1?"][-8:]
        )
        assert explain(provider.contexts[-2], last).extends


async def test_single_requests_stay_strict(where: str) -> None:
    async with chat(where, SAID, layout="ledger") as (app, _, provider):
        given = CallerInput(history=({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}))
        async for _ in app.run("ann", REQUESTS, "And now?", given=given):
            pass
        assert provider.contexts[-1].receipt.layout == "strict"


def test_the_setting_is_strict_unless_said() -> None:
    assert settings().layout == "strict"
