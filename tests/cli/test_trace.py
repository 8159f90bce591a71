"""`lamina trace` as a real process: what past turns sent, byte for byte."""

import asyncio
import hashlib
import json
import sqlite3
import subprocess
import sys

import pytest

from lamina.app.app import App
from lamina.records import REQUESTS, CallerInput
from lamina.settings import load_settings
from tests.cli.process import Lamina


@pytest.fixture
def traced(lamina: Lamina) -> Lamina:
    lamina.script([{"text": "First answer."}, {"usage": [900, 0, 3]}], [{"text": "Second answer."}])
    (lamina.folder / "AGENTS.md").write_text("Answer briefly.\n", encoding="utf-8")
    lamina.run("chat", given="First question\nSecond question\n")
    return lamina


def turns(lamina: Lamina) -> list[str]:
    rows = lamina.json("sessions", "show", "last")["messages"]
    return [row["turn_id"] for row in rows if row["role"] == "user"]


def payload(lamina: Lamina, *arguments: str) -> bytes:
    done = subprocess.run(
        [sys.executable, "-m", "lamina", "trace", *arguments], cwd=lamina.folder, env=lamina.environ(), check=True,
        capture_output=True,
    )  # fmt: skip
    return done.stdout


def test_show_names_a_turn_by_its_beginning_and_tells_where_each_byte_came_from(traced: Lamina) -> None:
    first, second = turns(traced)
    text = traced("trace", "show", first[:6])
    for shown in (first, "First question", "First answer.", "prompt 900", "rules", "always kept", "sha256", "#1"):
        assert shown in text, shown
    assert second in traced("trace", "show", "last")
    assert "no turn 'zzzz'" in traced.error("trace", "show", "zzzz")
    assert "the turn has 1" in traced.error("trace", "show", "last", "--request", "2")


def test_turns_before_the_last_are_counted_back_and_a_change_of_layout_is_named(traced: Lamina) -> None:
    first, second = turns(traced)
    assert first in traced("trace", "show", "last~1")
    assert second in traced("trace", "show", "last~0")
    assert "its session goes back only to last~1" in traced.error("trace", "show", "last~2")
    assert "no turn" in traced.error("trace", "show", "last~one")
    (traced.folder / "AGENTS.md").write_text("Answer in Chinese.\n", encoding="utf-8")
    traced.run("ask", "--session", "last", "Third question", LAMINA_LAYOUT="ledger")
    assert "the layout changed from strict to ledger" in traced("trace", "diff", "last~1", "last")
    told = traced.run("trace")
    assert "replay" in told.stdout
    assert (told.returncode, told.stderr) == (2, "")


def test_payload_and_json_agree_with_each_other_and_with_the_hash(traced: Lamina) -> None:
    found = traced.json("trace", "show", "last")
    sent = payload(traced, "show", "last", "--payload")
    assert hashlib.sha256(sent).hexdigest() == found["requests"][0]["hash"]
    assert [message["content"] for message in json.loads(sent)["messages"][1:]] == [
        "First question", "First answer.", "Second question",
    ]  # fmt: skip
    assert payload(traced, "replay", "last") == sent
    assert "exclude each other" in traced.error("trace", "show", "last", "--json", "--payload")


def test_replay_writes_a_new_file_after_the_rules_have_changed(traced: Lamina) -> None:
    sent = payload(traced, "replay", "last")
    (traced.folder / "AGENTS.md").write_text("Quite different rules.\n", encoding="utf-8")
    told = traced("trace", "replay", "last", "--out", "request.json")
    assert (traced.folder / "request.json").read_bytes() == sent
    assert hashlib.sha256(sent).hexdigest() in told
    assert "already exists" in traced.error("trace", "replay", "last", "--out", "request.json")


def test_replay_refuses_bytes_that_are_not_those_that_were_sent(traced: Lamina) -> None:
    connection = sqlite3.connect(traced.store)
    connection.execute("UPDATE layer_text SET text = replace(text, 'Answer briefly', 'Answer at length')")
    connection.commit()
    connection.close()
    assert "cannot be rebuilt" in traced.error("trace", "replay", "last", code=4)


def test_send_asks_again_with_these_bytes_and_stores_nothing(traced: Lamina) -> None:
    before = traced.json("sessions", "show", "last")
    text = traced("trace", "replay", "last", "--send")
    assert text.index("Second answer.") < text.index("First answer."), "the script begins anew"
    assert "the answers differ" in text
    first = turns(traced)[0]
    assert "the answers are the same" in traced("trace", "replay", first, "--send")
    assert traced.json("sessions", "show", "last") == before


def test_diff_says_where_two_turns_part_and_what_each_layer_gained(traced: Lamina) -> None:
    first, second = turns(traced)
    text = traced("trace", "diff", first, second)
    assert "only appends to the first" in text or "diverge at byte" in text
    assert "history" in text
    found = traced.json("trace", "diff", first, second)
    assert found["layers"]["history"][0] == 0
    assert found["layers"]["history"][1] > 0
    assert "the same, byte for byte" in traced("trace", "diff", first, first)
    assert "两个请求逐字节相同" in traced("trace", "diff", first, first, "--lang", "zh")


def said(lamina: Lamina, words: str, layout: str, session: str = "last") -> str:
    """Say something; the turn's id."""
    slow = {"LAMINA_MEMORY_DEADLINE": "60000"}  # a busy machine must not leave memories out
    lamina.run("ask", words, "--session", session, LAMINA_LAYOUT=layout, **slow)
    return turns(lamina)[-1]


def test_diff_names_the_layer_that_broke_the_prefix_of_a_strict_session(lamina: Lamina) -> None:
    lamina.script([{"text": "Noted."}, {"usage": [900, 600, 3]}])
    first = said(lamina, "First", "strict", "new")
    lamina("memory", "add", "Ann has a cat.", "--pin")
    second = said(lamina, "Second", "strict")
    found = lamina.json("trace", "diff", first, second)
    assert (found["extends"], found["layer"], found["reason"]["code"]) == (False, "memory", "reason.new_here")
    (prefix,) = lamina.json("trace", "show", second)["prefixes"]
    assert 0 < prefix["predicted"] < 900
    assert prefix["cached"] == 600


def test_diff_names_the_reason_of_a_ledgers_epoch_and_show_tells_the_predicted_prefix(lamina: Lamina) -> None:
    lamina.script([{"text": "Noted."}, {"usage": [900, 880, 3]}])
    kept = lamina.json("memory", "add", "Ann lives in Bern.", "--pin")
    first = said(lamina, "First", "ledger", "new")
    lamina("memory", "add", "Ann has a cat.", "--pin")
    second = said(lamina, "Second", "ledger")
    assert lamina.json("trace", "diff", first, second)["extends"] is True, "what is new stands behind it"
    assert lamina.json("trace", "show", second)["prefixes"] == [{"predicted": 900, "cached": 880}]
    assert "predicted prefix 900 tokens, server cached 880" in lamina("trace", "show", second)
    lamina("memory", "forget", kept["memory_id"], "--yes")
    third = said(lamina, "Third", "ledger")
    found = lamina.json("trace", "diff", second, third)
    assert (found["extends"], found["layer"]) == (False, "memory")
    assert found["reason"]["text"] == "epoch 2 began: a memory was forgotten"
    assert "第 2 纪元开始：有记忆被忘掉" in lamina("trace", "diff", second, third, "--lang", "zh")
    assert "预计前缀" in lamina("trace", "show", third, "--lang", "zh")


def test_a_store_without_turns_and_another_users_turn(traced: Lamina) -> None:
    first = turns(traced)[0]
    assert "no turn" in traced.error("trace", "show", first, "--user", "bob")
    assert "there is no turn yet" in traced.error("trace", "show", "last", "--user", "bob")


def test_a_corrected_counter_is_no_change_of_what_was_sent(lamina: Lamina) -> None:
    lamina.script([{"text": "Noted."}, {"usage": [3_000, 0, 3]}])
    first = said(lamina, "First", "ledger", "new")
    second = said(lamina, "Second", "ledger")
    counts = [lamina.json("trace", "show", turn)["requests"][0]["segments"][0]["tokens"] for turn in (first, second)]
    assert counts[0] < counts[1], "the provider counted more, so the second turn was counted anew"
    found = lamina.json("trace", "diff", first, second)
    assert found["extends"] is True
    assert found["layers"]["identity"] == [counts[1], counts[1]]
    text = lamina("trace", "diff", first, second)
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("identity")] == ["·"]


def test_last_is_the_newest_turn_also_where_that_is_a_single_request(lamina: Lamina) -> None:
    lamina.script([{"text": "Alone."}])

    async def one() -> None:
        with_script = {"LAMINA_PROVIDER": "scripted", "LAMINA_SCRIPT": str(lamina.folder / "script.json")}
        environ = {**with_script, "LAMINA_STORE": lamina.store, "LAMINA_EMBEDDER": "none"}
        async with App.open(settings=load_settings(environ=environ), work=False) as app:
            await (await app.start("ann", REQUESTS, "Hello", given=CallerInput(history=()))).wait()

    asyncio.run(one())
    shown = lamina("trace", "show", "last")
    assert "Alone." in shown
    assert "@requests\n" in shown, "the whole name"
    lamina("ask", "In a session")
    assert "In a session" in lamina("trace", "show", "last")
    asyncio.run(one())
    assert "@requests\n" in lamina("trace", "show", "last"), "the newer of the two"


def test_the_help_and_the_screen_name_turns_before_the_last_and_tokens_with_one_word(traced: Lamina) -> None:
    for command in ("show", "diff"):
        assert "last~1" in traced("trace", command, "--help")
        assert "last~1" in traced("trace", command, "--help", "--lang", "zh")
    traced.script([{"text": "Noted."}, {"usage": [900, 600, 3]}])
    for _ in range(2):
        traced("ask", "More", "--session", "last")
    shown = traced("trace", "show", "last", "--lang", "zh")
    assert "预计前缀" in shown
    assert "词元" not in shown


def test_L3_usage_and_roles_are_said_in_the_readers_language(traced: Lamina) -> None:
    assert "prompt 900, cached 0, completion 3" in traced("trace", "show", "last~1")
    assert "输入 900、缓存 0、输出 3" in traced("trace", "show", "last~1", "--lang", "zh")
    found = traced("sessions", "search", "question", "--lang", "zh")
    assert ("用户" in found, "user" in found) == (True, False)
    assert "助手" in traced("sessions", "show", "last", "--lang", "zh")


def test_L12_a_turn_is_found_by_the_id_that_a_client_of_the_gateway_has_and_one_turn_is_one(traced: Lamina) -> None:
    first, second = turns(traced)
    for form in ("chatcmpl-", "msg_"):
        assert first in traced("trace", "show", f"{form}{first}")
        assert traced("trace", "diff", f"{form}{first}", f"{form}{second[:8]}") == traced(
            "trace", "diff", first, second
        )
    traced.run("ask", "Third question")
    assert traced.error("trace", "show", "last~1").endswith("its session has only one\nnext: use last\n")
