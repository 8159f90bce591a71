"""`lamina sessions` and `lamina context --session` as real processes."""

import asyncio
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lamina import open_store, validate
from tests.cli.process import Lamina

CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "Where is the good bakery in Lisbon?"},
    {"role": "assistant", "content": "In Alfama, near the cathedral."},
    {"role": "user", "content": "我想学做上海菜"},
    {"role": "assistant", "content": "可以从红烧肉开始。"},
]
TERMINAL = "\x1b]0;owned\x07\x1b[31m\u202egnp"


@pytest.fixture
def chat(lamina: Lamina) -> str:
    """The id of a session with four messages."""
    (lamina.folder / "chat.json").write_text(json.dumps(CHAT), encoding="utf-8")
    return lamina.json("sessions", "import", "chat.json")["session_id"]


def test_a_session_is_begun_listed_renamed_ended_and_deleted(lamina: Lamina) -> None:
    lamina("memory", "add", "I sing.")
    assert "ann has no sessions" in lamina("sessions")
    first = lamina.json("sessions", "new", "--title", "One", "--scenario", "excel", "--app", "Excel", "--mode", "plan")
    assert (first["scenario"], first["app"], first["mode"], first["owner"]) == ("excel", "Excel", "plan", "ann")
    made = lamina("sessions", "new", "--title", "Two")
    assert made.startswith("new session ")
    second = made.split()[-1]
    assert [row["title"] for row in lamina.json("sessions")] == ["Two", "One"]
    lamina("sessions", "rename", first["session_id"][:6], "Sums")
    assert [row["title"] for row in lamina.json("sessions")] == ["Sums", "Two"], "what happened last stands first"
    assert "has ended" in lamina("sessions", "end", second)
    assert "ended" in lamina("sessions").splitlines()[1]
    assert "memories are kept" in lamina("sessions", "delete", second[:4], "--yes")
    assert [row["title"] for row in lamina.json("sessions")] == ["Sums"]


def test_messages_are_shown_with_number_state_and_mark(lamina: Lamina, chat: str) -> None:
    async def stop_half_way() -> None:
        async with open_store(lamina.store) as store:
            turn = await store.turns.begin("ann", chat, {"role": "user", "content": "And the tram?"})
            await store.turns.chunk("ann", turn.turn_id, 0, "Take line 28 to")

    asyncio.run(stop_half_way())  # the process dies here: nobody finishes the turn
    lamina("sessions", "collect", f"{chat[:8]}#2")
    text = lamina("sessions", "show", chat[:8])
    lines = [line for line in text.splitlines() if line.split()[:1] and line.split()[0] in "123456"]
    assert [line.split()[:2] for line in lines] == [
        ["1", "user"], ["2", "assistant"], ["3", "user"], ["4", "assistant"], ["5", "user"], ["6", "assistant"],
    ]  # fmt: skip
    assert ["collected" in line for line in lines] == [False, True, False, False, False, False]
    assert ["interrupted" in line for line in lines] == [False, False, False, False, False, True]
    assert "Take line 28 to" in text
    assert "4 earlier messages" in lamina("sessions", "show", "last", "-n", "2")
    shown = lamina.json("sessions", "show", chat)
    assert [m["is_collected"] for m in shown["messages"]] == [False, True, False, False, False, False]


def test_collecting_marks_exactly_this_message_and_off_takes_it_back(lamina: Lamina, chat: str) -> None:
    ids = [message["message_id"] for message in lamina.json("sessions", "show", chat)["messages"]]
    lamina("sessions", "collect", ids[1][:10])
    lamina("sessions", "collect", ids[3])
    lamina("sessions", "collect", ids[1], "--off")
    marks = [message["is_collected"] for message in lamina.json("sessions", "show", chat)["messages"]]
    assert marks == [False, False, False, True]
    assert "no message '9'" in lamina.error("sessions", "collect", f"{chat}#9")
    assert "no message 'x'" in lamina.error("sessions", "collect", f"{chat}#x")


@pytest.mark.parametrize(("words", "number"), [("bakery lisbon", 1), ("上海菜", 3), ("红烧", 4), ("ＡＬＦＡＭＡ", 2)])
def test_words_find_their_message_in_both_languages(lamina: Lamina, chat: str, words: str, number: int) -> None:
    (found,) = lamina.json("sessions", "search", *words.split())
    assert (found["session_id"], found["seq"]) == (chat, number)
    assert f"#{number}" in lamina("sessions", "search", words)
    assert "nothing found" in lamina("sessions", "search", "zebra")
    assert lamina.json("sessions", "search", "…") == []


def test_on_a_terminal_the_hit_is_coloured(lamina: Lamina, chat: str) -> None:
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "lamina", "sessions", "search", "上海菜"]
    environ = lamina.environ(TERM="xterm-256color", LANG="C.UTF-8", COLUMNS="100")
    with subprocess.Popen(command, stdout=child, stderr=child, env=environ, cwd=lamina.folder) as process:
        os.close(child)
        seen = b""
        try:
            while block := os.read(parent, 65536):
                seen += block
        except OSError:  # the other end is closed
            pass
        assert process.wait() == 0
    assert "\x1b[1;33m上海菜\x1b[0m" in seen.decode()
    assert chat[:8] in seen.decode()


def test_a_branch_has_the_messages_up_to_its_number_and_the_old_one_stays(lamina: Lamina, chat: str) -> None:
    branch = lamina.json("sessions", "branch", chat, "2", "--title", "Baking")
    assert (branch["parent_id"], branch["parent_seq"], branch["last_seq"]) == (chat, 2, 2)
    assert f"{chat[:8]}#2" in lamina("sessions")
    assert len(lamina.json("sessions", "show", chat)["messages"]) == 4
    assert len(lamina.json("sessions", "show", branch["session_id"])["messages"]) == 2
    lamina("sessions", "collect", f"{branch['session_id'][:8]}#2")
    assert "9" in lamina.error("sessions", "branch", chat, "9")
    assert lamina.error("sessions", "branch", chat, "0")


def test_deleting_asks_first_and_refuses_where_nobody_can_answer(lamina: Lamina, chat: str) -> None:
    assert "no terminal to ask" in lamina.error("sessions", "delete", chat)
    assert "no terminal to ask" in lamina.error("sessions", "delete", chat, given="y\n")
    closed = f"{sys.executable} -m lamina sessions delete {chat} <&-"
    done = subprocess.run(["bash", "-c", closed], env=lamina.environ(), capture_output=True, text=True, check=False)
    assert (done.returncode, "no terminal to ask" in done.stderr, "Traceback" in done.stderr) == (2, True, False)
    assert _answered(lamina, "n\n", "sessions", "delete", chat) == 1
    assert _answered(lamina, "\n", "sessions", "delete", chat) == 1
    assert len(lamina.json("sessions")) == 1
    assert _answered(lamina, "y\n", "sessions", "delete", chat) == 0
    assert lamina.json("sessions") == []


def _answered(lamina: Lamina, answer: str, *arguments: str) -> int:
    """The exit code when somebody at a terminal gives this answer."""
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "lamina", *arguments]
    with subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=lamina.environ()) as process:
        os.close(child)
        os.write(parent, answer.encode())
        try:
            while os.read(parent, 65536):
                pass
        except OSError:  # the other end is closed
            pass
        return process.wait()


def test_ids_need_four_characters_and_must_be_unambiguous(lamina: Lamina) -> None:
    async def make() -> None:
        async with open_store(lamina.store) as store:
            for name in ("abcd1", "abcd2", "abcd", "zzzz_1", "zzzzy1"):
                await store.sessions.new("ann", session_id=name, title=f"is {name}")

    asyncio.run(make())
    assert "more than one session begins with 'zzzz'" in lamina.error("sessions", "show", "zzzz")
    assert lamina.json("sessions", "show", "abcd")["session"]["title"] == "is abcd", "a whole id wins"
    assert lamina.json("sessions", "show", "zzzz_")["session"]["title"] == "is zzzz_1", "no character is a wildcard"
    assert "too short" in lamina.error("sessions", "show", "abc")
    assert "too short" in lamina.error("sessions", "show", "")
    assert "no session 'ABCD1'" in lamina.error("sessions", "show", "ABCD1")
    assert "no session '%%%%'" in lamina.error("sessions", "show", "%%%%")


def test_fault_I1_the_sessions_of_somebody_else_are_not_found(lamina: Lamina, chat: str) -> None:
    message = lamina.json("sessions", "show", chat)["messages"][1]["message_id"]
    mine, other = lamina.error("sessions", "show", "f" * 32, "--user", "bob"), ""
    for command in (
        ["show", chat], ["rename", chat, "mine"], ["branch", chat, "1"], ["end", chat], ["delete", chat, "--yes"],
        ["collect", message], ["collect", f"{chat}#2"],
    ):  # fmt: skip
        other = lamina.error("sessions", *command, "--user", "bob")
        assert "does not exist, or it is not yours" in other
    assert mine.replace("f" * 32, "ID") == lamina.error("sessions", "show", chat, "--user", "bob").replace(chat, "ID")
    assert lamina.json("sessions", "search", "bakery", "--user", "bob") == []
    assert "no session" in lamina.error("context", "hi", "--session", chat, "--user", "bob")
    assert lamina.json("sessions", "show", chat)["session"]["title"] == "chat"


def test_a_terminal_never_obeys_what_is_stored(lamina: Lamina) -> None:
    made = lamina.json("sessions", "new", "--title", TERMINAL, "--scenario", TERMINAL)
    evil = [json.dumps({"role": role, "content": f"{TERMINAL} word"}) for role in ("user", "assistant")]
    (lamina.folder / "evil.jsonl").write_text("\n".join(evil))
    for output in (
        lamina("sessions"), lamina("sessions", "rename", made["session_id"], TERMINAL), lamina("sessions", "--json"),
        lamina("sessions", "import", "evil.jsonl", "--title", TERMINAL), lamina("sessions", "show", "last"),
        lamina("sessions", "search", "word"), lamina("sessions", "show", "last", "--json"),
        lamina("sessions", "collect", "last#2"), lamina("sessions", "delete", "last", "--yes"),
        lamina.error("sessions", "show", TERMINAL),
    ):  # fmt: skip
        assert not set(output) & set("\x1b\x07\u202e")
    assert "⟨U+001B⟩" in lamina("sessions")
    assert lamina.json("sessions")[0]["title"] == TERMINAL


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("none.json", None), ("empty.json", "[]"), ("broken.json", "[{"), ("object.json", '{"a": 1}'),
        ("role.json", '[{"role": "system", "content": "obey"}]'), ("lines.jsonl", '{"role": "user"}\n'),
        ("deep.json", "[" * 100_000), ("number.json", "7"), ("nan.jsonl", "NaN\n"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_chat_leaves_no_session_behind(lamina: Lamina, name: str, text: str | None) -> None:
    if text is not None:
        (lamina.folder / name).write_text(text)
    assert name.partition(".")[0] in lamina.error("sessions", "import", name)
    assert lamina.json("sessions") == []


def test_it_speaks_chinese(lamina: Lamina, chat: str) -> None:
    assert "标题" in lamina("sessions", "--lang", "zh")
    assert "新会话" in lamina("sessions", "new", LANG="zh_CN.UTF-8")
    assert "已收藏" in lamina("sessions", "collect", f"{chat}#2", "--lang", "zh")
    assert "已收藏" in lamina("sessions", "show", chat, "--lang", "zh")
    assert "确定时请加 --yes" in lamina.error("sessions", "delete", chat, LANG="zh_CN.UTF-8")
    for family in ("sessions", "memory", "skills", "store"):
        for lang in ("en", "zh"):
            assert len(lamina(family, "--help", "--lang", lang)) > 500


def test_options_are_checked(lamina: Lamina) -> None:
    assert "put them after show" in lamina.error("sessions", "--user", "bob", "show", "last")
    lamina("memory", "add", "I sing.")
    assert "no session yet" in lamina.error("sessions", "show", "last")
    assert "--user is empty" in lamina.error("sessions", "--user", "")
    assert "agent, plan, ask" in lamina.error("sessions", "new", "--mode", "loud")
    assert "lamina sessions --help" in lamina.error("sessions", "nonsense")
    assert lamina.error("sessions", "-n", "0")
    assert "U+D" in lamina.error("sessions", "new", "--title", "\udcff")
    assert "U+D" in lamina.error("sessions", "show", "abcd\udcff")
    assert lamina.error("sessions", "--store", str(lamina.folder), code=4)
    assert lamina.error("sessions", "--store", "mysql://here/it", code=4)


def test_the_context_of_a_session_is_shown_as_that_of_files_is(lamina: Lamina, chat: str) -> None:
    lamina("memory", "add", "I am allergic to penicillin.", "--pin")
    lamina("memory", "profile", "city", "Porto")
    text = lamina("context", "What may I eat?", "--session", "last")
    for layer in ("identity", "session", "memory", "history", "user"):
        assert any(line.strip().startswith(layer) and "█" in line for line in text.splitlines()), layer
    for grammar in ("openai", "anthropic", "gemini"):
        data = lamina.json("context", "那甜点呢？", "--session", chat[:6], "--for", grammar)
        assert validate(data["request"], grammar) == ()
        assert data["receipt"]["size"] == data["receipt"]["segments"][-1]["end"]
    sources = [s["source"] for s in data["receipt"]["segments"] if s["layer"] == "memory"]
    assert len(sources) == 1
    assert len(lamina.json("sessions", "show", chat)["messages"]) == 4, "nothing changes"


def test_slots_are_filled_with_values(lamina: Lamina, chat: str) -> None:
    (lamina.folder / "t.json").write_text(json.dumps([{"name": "guide", "content": "Guide in {{city}}, {{ day }}."}]))
    lamina("skills", "import", "t.json")
    assert "{{city}}" in lamina.error("context", "hi", "--session", chat)
    data = lamina.json("context", "hi", "--session", chat, "--values", "city=京都={{day}}", "--values", "day=1")
    assert "Guide in 京都={{day}}, 1." in json.dumps(data, ensure_ascii=False)
    assert "name=value" in lamina.error("context", "hi", "--session", chat, "--values", "city")


def test_H1_what_is_shown_of_a_session_is_what_a_question_in_it_sends(lamina: Lamina) -> None:
    lamina.script([{"text": "Fine."}])
    (lamina.folder / "AGENTS.md").write_text("Answer briefly.\n", encoding="utf-8")
    lamina.run("ask", "One?")
    shown = lamina("context", "Two?", "--session", "last", "--payload")
    lamina.run("ask", "Two?", "--session", "last")
    assert shown == lamina("trace", "show", "last", "--payload")
    assert "Answer briefly." in shown


def test_H1_a_session_is_shown_with_the_workspace_that_is_named(lamina: Lamina, chat: str) -> None:
    (lamina.folder / "there").mkdir()
    (lamina.folder / "there" / "AGENTS.md").write_text("Answer in verse.\n", encoding="utf-8")
    assert "Answer in verse." not in lamina("context", "hi", "--session", chat, "--payload")
    assert "Answer in verse." in lamina("context", "hi", "--session", chat, "--payload", "--workspace", "there")
    assert "the workspace 'nowhere' does not exist" in lamina.error(
        "context", "hi", "--session", chat, "--workspace", "nowhere"
    )


@pytest.mark.parametrize("option", ["--project", "--rules", "--history", "--memory", "--folder", "--mode"])
def test_a_session_and_files_exclude_each_other(lamina: Lamina, chat: str, option: str) -> None:
    assert f"{option} cannot be used with" in lamina.error("context", "hi", "--session", chat, option, "plan")
    assert "user message is empty" in lamina.error("context", "--session", chat)
    assert "--values can only be used with --session" in lamina.error("context", "hi", "--values", "a=b")


def test_memories_found_by_meaning_are_in_time_for_the_first_turn_of_a_process(lamina: Lamina, chat: str) -> None:
    lamina("memory", "add", "My dog is called Rex and hates thunder.")
    data = lamina.json("context", "What is my puppy's name?", "--session", chat, LAMINA_EMBEDDER="embedded")
    layers = {segment["layer"]: segment for segment in data["receipt"]["segments"]}
    assert "memory" in layers
    assert "skipped" not in layers["memory"]["reason"]


def test_a_store_elsewhere_is_made_and_its_folder_is_not(lamina: Lamina) -> None:
    assert "there is no folder" in lamina.error("sessions", "new", "--store", "a/b/c.db", code=4)
    (lamina.folder / "a" / "b").mkdir(parents=True)
    lamina("sessions", "new", "--store", "a/b/c.db")
    assert Path(lamina.folder / "a" / "b" / "c.db").is_file()
    assert len(lamina.json("sessions", "--store", "a/b/c.db")) == 1


def test_a_session_is_changed_ended_and_taken_up_again(lamina: Lamina) -> None:
    lamina("sessions", "new")
    assert "skill=—" in lamina("sessions", "set", "last", "--skill", "", "--mode", "plan")
    assert "Mode: plan" in lamina("context", "hi", "--session", "last", "--full")
    assert "'dance' is not a valid value for --mode" in lamina.error("sessions", "set", "last", "--mode", "dance")
    lamina("sessions", "end", "last")
    assert "resumed" in lamina("sessions", "resume", "last")
    assert "已恢复" in lamina("sessions", "resume", "last", "--lang", "zh")


def test_a_skill_that_is_not_there_is_refused_at_once_with_the_known_ones(lamina: Lamina) -> None:
    rows = [
        {"name": "sums", "content": "Add.", "is_skill": True},
        {"name": "slides", "content": "Show.", "is_skill": True, "supported_apps": ["PowerPoint"]},
    ]
    (lamina.folder / "t.json").write_text(json.dumps(rows))
    assert "no skill is enabled yet" in lamina.error("sessions", "new", "--skill", "nosuch")
    lamina("skills", "import", "t.json", "--shared")
    refused = lamina.error("sessions", "new", "--skill", "nosuch")
    assert ("no skill named 'nosuch'" in refused, "known: sums\n" in refused) == (True, True)
    bound = lamina.error("sessions", "new", "--skill", "slides")
    assert "next: it is for PowerPoint: --app PowerPoint\n" in bound
    assert lamina.json("sessions") == []
    assert lamina.json("sessions", "new", "--skill", "sums")["skill"] == "sums"
    assert "--app PowerPoint" in lamina.error("sessions", "set", "last", "--skill", "slides")
    assert "skill=slides" in lamina("sessions", "set", "last", "--skill", "slides", "--app", "powerpoint")


def test_a_title_may_be_taken_away_and_has_a_limit(lamina: Lamina) -> None:
    made = lamina.json("sessions", "new", "--title", "One")["session_id"]
    assert lamina("sessions", "rename", "last", "") == f"{made[:8]} now has no title\n"
    assert "没有标题" in lamina("sessions", "rename", "last", " ", "--lang", "zh")
    for command in (["new", "--title"], ["rename", "last"]):
        assert "at most 200 characters" in lamina.error("sessions", *command, "x" * 201)
    lamina("sessions", "rename", "last", "字" * 200)
    (lamina.folder / ("y" * 220 + ".json")).write_text(json.dumps(CHAT))
    assert lamina.json("sessions", "import", "y" * 220 + ".json")["title"] == "y" * 200


@pytest.mark.parametrize("words", [[], ["sessions"], ["memory", "add"], ["context"], ["--lang", "zh", "store"]])
def test_h_is_short_for_help(lamina: Lamina, words: list[str]) -> None:
    assert lamina(*words, "-h") == lamina(*words, "--help")


def test_behind_two_dashes_h_is_a_word_like_any_other(lamina: Lamina) -> None:
    lamina("sessions", "new")
    assert "nothing found for -h" in lamina("sessions", "search", "--", "-h")
