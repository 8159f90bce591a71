"""Seed 003 through every entry point that a user has; what was sent, shown, stored and logged is what counts.

Each scene is written once and played in `App`, in processes of `lamina ask`, over HTTP and in the Telegram bot. Where a
scene opens a channel twice, the second is another process that goes on with the same session.
"""

import json
import os
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from lamina.gateway.handlers import SCOPES
from lamina.store.store import open_store
from lamina.types import text_hash
from tests.cli.process import Lamina
from tests.gateway import processes
from tests.spec.channels import rules, talking
from tests.telegram.botapi import bot_api
from tests.telegram.bots import process

SHIPPED = "<working_with_tools>"
OLD, NEW = "Write short sentences. 句子要短。", "Write long sentences. 句子要长。"


@pytest.fixture
def lamina(tmp_path: Path) -> Lamina:
    return Lamina(tmp_path)


async def instructions_are_required(channel: str, folder: Path, **changes: Any) -> None:
    """A configured file that is missing stops the chat before anything is sent, and it is said how to restore it."""
    async with talking(channel, folder, instructions="gone.md", **changes) as talk:
        said = await talk.say("hi")
        assert (said.failed, said.request) == (True, None)
        assert "gone.md" in said.shown
        assert "restore the file, or remove the setting" in said.shown


async def rules_are_missed_once_and_read_with_care(channel: str, folder: Path, **changes: Any) -> None:
    """Missing rules are one warning a session. Those that cannot be read stop each turn and are counted: three in a row
    are an error that names the file, and one success begins the count again."""
    async with talking(channel, folder, **changes) as talk:
        said = [await talk.say("one"), await talk.say("two")]
    rules(folder, "").write_bytes(b"\xff\xfe")
    async with talking(channel, folder) as talk:
        unread = [await talk.say("three"), await talk.say("four")]
        counted = await talk.counters()
        assert (counted["failed"], counted["failed_in_a_row"]) == (2, 2)
    async with talking(channel, folder) as talk:
        unread.append(await talk.say("five"))
        rules(folder, " ")
        said.append(await talk.say("six"))
        counted = await talk.counters()
    assert [each.failed for each in said] == [False] * 3
    assert all(SHIPPED in json.dumps(each.request) for each in said)
    assert [each.logged("WARNING", "only the instructions are injected") for each in said] == [1, 0, 0]
    assert ["no rules" in each.shown for each in said] == [True, False, False]
    assert [each.request for each in unread] == [None] * 3, "nothing is sent"
    assert [each.logged("ERROR", "3 failed reads in a row, check .lamina/rules.md") for each in unread] == [0, 0, 1]
    assert ["in a row" in each.shown for each in unread] == [False, False, True]
    assert (counted["failed"], counted["failed_in_a_row"]) == (3, 0)


async def off_keeps_the_texts(channel: str, folder: Path, layout: str) -> None:
    """While re-injection is off, edited files do not reach the model, in any process; then they do. The files have
    names of their own, by a setting each."""
    own = rules(folder, "I am the first version.", "SYSTEM_PROMPT.md")
    rules(folder, OLD, ".ads/rules.md")
    rules(folder, "Nobody reads me.", "AGENTS.md")
    changes: dict[str, Any] = {"layout": layout, "instructions": "SYSTEM_PROMPT.md", "rules": ".ads/rules.md"}
    async with talking(channel, folder, reinjection_enabled=False, reinjection_turns=1, **changes) as talk:
        said = [await talk.say("one")]
        rules(folder, NEW, ".ads/rules.md")
        own.write_text("I am the second version.", encoding="utf-8")
        said.append(await talk.say("two"))
    async with talking(channel, folder, reinjection_enabled=False, model="another", **changes) as talk:
        said.append(await talk.say("three"))
        counted = await talk.counters()
    for each in said:
        sent = json.dumps(each.request, ensure_ascii=False)
        assert (OLD in each.system, "first version" in each.system) == (True, True)
        assert [text in sent for text in (NEW, "second version", "Nobody reads me.", SHIPPED)] == [False] * 4
    assert [each.triggers for each in said] == [("initial",), (), ()]
    assert counted["stale_rule_turns"] == 2
    async with talking(channel, folder, model="another", **changes) as talk:
        on = await talk.say("four")
        assert NEW in json.dumps(on.request, ensure_ascii=False)
        assert on.triggers == ("model",)
        assert (await talk.counters())["stale_rule_turns"] == 2


async def any_case_counts(channel: str, folder: Path) -> None:
    """An exact name first, then the only one in another case; two of those are an error that names both."""
    async with talking(channel, folder) as talk:
        rules(folder, "Rules of agents.md.", "agents.md")
        assert "Rules of agents.md." in (await talk.say("one")).system
        rules(folder, "Rules of RULES.md.", ".lamina/RULES.md")
        second = await talk.say("two")
        assert "Rules of RULES.md." in json.dumps(second.request)
        assert second.triggers == ("change",)
        rules(folder, "Rules of Rules.md.", ".lamina/Rules.md")
        third = await talk.say("three")
        assert (third.failed, third.request) == (True, None)
        assert all(name in third.shown for name in (".lamina/RULES.md", ".lamina/Rules.md"))
        rules(folder, OLD)
        assert OLD in json.dumps((await talk.say("four")).request, ensure_ascii=False)


async def each_injection_has_its_trigger(channel: str, folder: Path) -> None:
    """First, by cadence, by change, by another model; in front of the words and in order; each in receipt and log. A
    send that fails leaves it due."""
    version = text_hash(rules(folder, OLD).read_text(encoding="utf-8"))[:8]
    async with talking(channel, folder, [[{"fault": "refused"}], [{"text": "fine"}]], reinjection_turns=2) as talk:
        failed = await talk.say("zero")
        assert (failed.failed, list(failed.log)) == (True, [])
        if channel == "ask":  # each process plays the script from its beginning
            Lamina(folder).script([{"text": "fine"}])
        said = [await talk.say("one")]
    async with talking(channel, folder, reinjection_turns=2) as talk:
        said += [await talk.say("two"), await talk.say("three")]
        rules(folder, NEW)
        said.append(await talk.say("four"))
    async with talking(channel, folder, reinjection_turns=2, model="another") as talk:
        said.append(await talk.say("five"))
        counted = await talk.counters()
    codes = ["initial", "", "cadence", "change", "model"]
    assert [",".join(each.triggers) for each in said] == codes
    logged = [[line.split(" ")[1] for level, line in each.log if level == "INFO"] for each in said]
    assert logged == [[code] if code else [] for code in codes]
    (line,) = [message for _, message in said[0].log]
    assert line.endswith(f" rules:{version}")
    assert (counted["first"], counted["repeated"], counted["stale_rule_turns"]) == (2, 2, 0)
    assert said[0].system.index(SHIPPED) < said[0].system.index(OLD)
    assert said[0].newest == "one"
    again = said[2].newest
    assert again.index(SHIPPED) < again.index(OLD) < again.index("three")
    assert NEW in json.dumps(said[3].request, ensure_ascii=False)


async def test_I2_app_missing_instructions_stop_the_chat(tmp_path: Path) -> None:
    await instructions_are_required("app", tmp_path, workspace="")


async def test_I2_ask_missing_instructions_stop_the_chat(tmp_path: Path) -> None:
    await instructions_are_required("ask", tmp_path)


async def test_I2_gateway_missing_instructions_stop_the_chat(tmp_path: Path) -> None:
    await instructions_are_required("gateway", tmp_path, workspace="")


async def test_I2_telegram_missing_instructions_stop_the_chat(tmp_path: Path) -> None:
    await instructions_are_required("telegram", tmp_path, workspace="")


async def test_I1_and_I2_and_I10_app_missing_rules_are_one_warning_and_failed_reads_are_counted(tmp_path: Path) -> None:
    await rules_are_missed_once_and_read_with_care("app", tmp_path, workspace="")


async def test_I1_and_I2_and_I10_ask_missing_rules_are_one_warning_and_failed_reads_are_counted(tmp_path: Path) -> None:
    await rules_are_missed_once_and_read_with_care("ask", tmp_path)


async def test_I1_and_I2_and_I10_gateway_missing_rules_are_one_warning_and_failed_reads_are_counted(
    tmp_path: Path,
) -> None:
    await rules_are_missed_once_and_read_with_care("gateway", tmp_path, workspace="")


async def test_I1_and_I2_and_I10_telegram_missing_rules_are_one_warning_and_failed_reads_are_counted(
    tmp_path: Path,
) -> None:
    await rules_are_missed_once_and_read_with_care("telegram", tmp_path)


@pytest.mark.parametrize("layout", ["strict", "ledger"])
async def test_I8_and_I12_app_off_keeps_the_texts_of_the_first_injection(tmp_path: Path, layout: str) -> None:
    await off_keeps_the_texts("app", tmp_path, layout)


async def test_I8_and_I12_ask_off_keeps_the_texts_of_the_first_injection(tmp_path: Path) -> None:
    await off_keeps_the_texts("ask", tmp_path, "ledger")


async def test_I8_and_I12_gateway_off_keeps_the_texts_of_the_first_injection(tmp_path: Path) -> None:
    await off_keeps_the_texts("gateway", tmp_path, "strict")


async def test_I8_and_I12_telegram_off_keeps_the_texts_of_the_first_injection(tmp_path: Path) -> None:
    await off_keeps_the_texts("telegram", tmp_path, "ledger")


async def test_I15_app_any_case_of_a_path_counts(tmp_path: Path) -> None:
    await any_case_counts("app", tmp_path)


async def test_I15_ask_any_case_of_a_path_counts(tmp_path: Path) -> None:
    await any_case_counts("ask", tmp_path)


async def test_I15_gateway_any_case_of_a_path_counts(tmp_path: Path) -> None:
    await any_case_counts("gateway", tmp_path)


async def test_I15_telegram_any_case_of_a_path_counts(tmp_path: Path) -> None:
    await any_case_counts("telegram", tmp_path)


async def test_I3_and_I5_and_I6_and_I7_and_I10_and_I13_app_each_injection_has_its_trigger(tmp_path: Path) -> None:
    await each_injection_has_its_trigger("app", tmp_path)


async def test_I3_and_I5_and_I6_and_I7_and_I10_and_I13_ask_each_injection_has_its_trigger(tmp_path: Path) -> None:
    await each_injection_has_its_trigger("ask", tmp_path)


async def test_I3_and_I5_and_I6_and_I7_and_I10_and_I13_gateway_each_injection_has_its_trigger(tmp_path: Path) -> None:
    await each_injection_has_its_trigger("gateway", tmp_path)


async def test_I3_and_I5_and_I6_and_I7_and_I10_and_I13_telegram_each_injection_has_its_trigger(tmp_path: Path) -> None:
    await each_injection_has_its_trigger("telegram", tmp_path)


def test_I2_and_I6_and_I10_chat_warns_once_and_a_resume_is_a_trigger(lamina: Lamina) -> None:
    """Two messages in one chat and one in the next, which takes the session up again."""
    lamina.script([{"text": "fine"}])
    first = lamina.run("chat", "--verbose", given="one\ntwo\n", LAMINA_MEMORY="off")
    second = lamina.run("chat", "--verbose", "--resume", "last", given="three\n", LAMINA_MEMORY="off", LAMINA_LANG="zh")
    assert (first.returncode, second.returncode) == (0, 0)
    told = [line for line in first.stderr.splitlines() if line.startswith("warning: ")]
    assert told == ["warning: the workspace has no rules: only the instructions are injected"]
    assert "规则" not in second.stderr
    lines = [line for run in (first, second) for line in run.stderr.splitlines() if line.startswith("INFO [SystemP")]
    assert [line.split(" ")[2] for line in lines] == ["initial", "resume"]
    shown = lamina.json("trace", "show", "last")
    assert [request["triggers"] for request in shown["requests"]] == [["resume"]]
    assert "注入" in lamina("trace", "show", "last", LAMINA_LANG="zh")
    assert "会话恢复" in lamina("trace", "show", "last", LAMINA_LANG="zh")


async def test_I2_and_I10_gateway_the_default_log_has_each_injection_and_one_warning_a_session(tmp_path: Path) -> None:
    """A real `lamina serve` without a workspace: two sessions, a compaction in the first."""
    words = "We talked about the garden and its many tulips. " * 30
    environ = processes.environ(tmp_path, str(tmp_path / "chats.db"), [[{"text": words}]])
    environ |= {"LAMINA_MEMORY": "off"}
    async with open_store(environ["LAMINA_STORE"]) as store:
        _, key = await store.keys.add("ann", "test", scopes=SCOPES)
    with processes.gateway(tmp_path, environ) as gateway:

        def ask(method: str, path: str, body: object = None) -> Any:
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            data = None if body is None else json.dumps(body).encode()
            asked = urllib.request.Request(f"{gateway.url}{path}", data, headers, method=method)
            with urllib.request.urlopen(asked, timeout=30) as reply:
                return json.load(reply)

        def say(session: str) -> list[str]:
            turn = ask("POST", f"/api/sessions/{session}/messages", {"content": words})["turn_id"]
            while ask("GET", f"/api/turns/{turn}")["state"] != "complete":
                time.sleep(0.02)
            return ask("GET", f"/api/turns/{turn}/receipt")["receipt"]["triggers"]

        one, two = (ask("POST", "/api/sessions", {})["session_id"] for _ in range(2))
        triggers = [say(one), say(one), say(two)]
        ask("POST", f"/api/sessions/{one}/compact")
        triggers.append(say(one))
        rules = ask("GET", f"/api/sessions/{one}/rules")
    assert triggers == [["initial"], [], ["initial"], ["compaction"]]
    assert [file["kind"] for file in rules["files"]] == ["instructions"]
    assert (rules["counters"]["first"], rules["counters"]["repeated"]) == (1, 1)
    log = [json.loads(line) for line in gateway.log.read_text().splitlines() if '"lamina.injection"' in line]
    told = [(line["level"], line["message"].split(" ")[1]) for line in log]
    session = [("warning", "no"), ("info", "initial")]
    assert told == [*session, *session, ("info", "compaction")]


@pytest.mark.parametrize(("channel", "command"), [("CLI", "ask"), ("TELEGRAM", "telegram"), ("GATEWAY", "serve")])
def test_I11_ask_and_telegram_and_gateway_a_bad_value_is_named(lamina: Lamina, channel: str, command: str) -> None:
    name = f"LAMINA_{channel}_REINJECTION_TURNS"
    words = ("hi",) if command == "ask" else ()
    environ: dict[str, Any] = {"LAMINA_REINJECTION_TURNS": "3", name: "often"}
    assert name in lamina.error(command, *words, **environ)


async def test_I11_ask_the_value_of_the_channel_counts(tmp_path: Path) -> None:
    rules(tmp_path, OLD)
    async with talking("ask", tmp_path, reinjection_turns=9, cli_reinjection_turns=1) as talk:
        assert [(await talk.say("one")).triggers, (await talk.say("two")).triggers] == [("initial",), ("cadence",)]


WATCHED = """
import os, sys
def hear(event, details):
    if event == "open" and isinstance(details[0], str) and details[0].endswith(("rules.md", "SYSTEM_PROMPT.md")):
        with os.fdopen(os.open(os.environ["OPENED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT), "w") as file:
            file.write(details[0] + "\\n")
sys.addaudithook(hear)
"""


def watched(folder: Path) -> tuple[Path, dict[str, str]]:
    """A workspace with files that have not changed for a moment, and what makes a process note each time that it opens
    one of them: Python runs a `sitecustomize` on its path when it starts."""
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text(WATCHED, encoding="utf-8")
    (folder / "SYSTEM_PROMPT.md").write_text("Work so. 这样工作。", encoding="utf-8")
    (folder / ".lamina").mkdir()
    (folder / ".lamina" / "rules.md").write_text(OLD, encoding="utf-8")
    time.sleep(0.3)
    path = os.pathsep.join([str(folder / "hook"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return folder / "opened", {
        "PYTHONPATH": path, "OPENED": str(folder / "opened"), "LAMINA_INSTRUCTIONS": "SYSTEM_PROMPT.md",
    }  # fmt: skip


def test_I9_chat_files_that_do_not_change_are_opened_for_the_first_turn_alone(lamina: Lamina) -> None:
    opened, environ = watched(lamina.folder)
    lamina.script([{"text": "fine"}])
    counts: list[int] = []
    for turns in (1, 5):
        opened.write_text("")
        lamina.run("chat", given="hi\n" * turns, LAMINA_MEMORY="off", **environ)
        counts.append(len(opened.read_text().splitlines()))
    assert counts[0] == counts[1] > 0


async def test_I9_telegram_files_that_do_not_change_are_opened_for_the_first_turn_alone(lamina: Lamina) -> None:
    opened, environ = watched(lamina.folder)
    lamina.script([{"text": "fine"}])
    async with bot_api() as api, process(api, lamina, **environ) as bot:
        await bot.until_ready()
        counts: list[int] = []
        for number in range(4):
            before = len(api.shown())
            if number == 3:
                (lamina.folder / ".lamina" / "rules.md").write_text(NEW, encoding="utf-8")
            await api.say(f"hi {number}")
            await api.until(lambda before=before: "fine" in api.shown()[before:])
            counts.append(len(opened.read_text().splitlines()))
    assert counts[0] == counts[1] == counts[2] < counts[3], "a changed file is read again, else nothing is noticed"
