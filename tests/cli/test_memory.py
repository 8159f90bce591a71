"""`lamina memory` as a real process."""

import asyncio
import json
from typing import Any

import pytest
from rich.cells import cell_len

from lamina import open_store
from lamina.records import NewMemory
from tests.cli.process import Lamina

TERMINAL = "\x1b]0;owned\x07\x1b[31m\u202egnp"


def add(lamina: Lamina, text: str, *more: str) -> str:
    return lamina.json("memory", "add", text, *more)["memory_id"]


def learnt(lamina: Lamina) -> tuple[str, str, str]:
    """A session with a summary, and two facts learnt in it of which the second supersedes the first."""

    async def make() -> tuple[str, str, str]:
        async with open_store(lamina.store) as store:
            session = await store.sessions.new("ann", title="Moving")
            turn = await store.turns.begin(
                "ann", session.session_id, {"role": "user", "content": "I live in Porto now."}
            )
            await store.turns.finish("ann", turn.turn_id, answer={"role": "assistant", "content": "Noted."})
            origin: dict[str, Any] = {
                "session_id": session.session_id, "turn_id": turn.turn_id, "seq": turn.user_seq,
            }  # fmt: skip
            (old,) = await store.memories.add("ann", [NewMemory("I live in Lisbon.", **origin)])
            new = NewMemory("I live in Porto now.", supersedes=(old.memory_id,), **origin)
            (kept,) = await store.memories.add("ann", [new])
            await store.summaries.put("ann", session.session_id, "Moved to Porto.", upto_seq=2)
            return session.session_id, old.memory_id, kept.memory_id

    return asyncio.run(make())


def test_facts_are_added_listed_edited_and_pinned(lamina: Lamina) -> None:
    lamina("sessions", "new")
    assert "nothing is remembered about you (the user ann)" in lamina("memory")
    first = add(lamina, "I drink no coffee.", "--kind", "preference", "--importance", "0.9")
    second = add(lamina, "我住在上海。")
    assert add(lamina, "我住在上海。") == second, "the same text is kept once"
    rows = lamina.json("memory")
    assert [(row["text"], row["kind"], row["importance"]) for row in rows] == [
        ("我住在上海。", "fact", 0.5), ("I drink no coffee.", "preference", 0.9),
    ]  # fmt: skip
    assert [row["memory_id"] for row in lamina.json("memory", "--kind", "preference")] == [first]
    assert "changed" in lamina("memory", "edit", first[:6], "I drink no tea.", "--kind", "fact")
    lamina("memory", "pin", first[:6])
    assert "★ I drink no tea." in lamina("memory")
    lamina("memory", "pin", first, "--off")
    assert "★" not in lamina("memory")


def test_adding_says_what_was_known_and_what_it_replaces(lamina: Lamina) -> None:
    first = add(lamina, "I live in Lisbon.", "--pin")
    said = lamina("memory", "add", "I live in Lisbon.", "--importance", "0.9")
    assert said.startswith(f"already known, {first[:8]}: I live in Lisbon.")
    assert [(row["importance"], row["pinned"]) for row in lamina.json("memory")] == [(0.9, True)]
    made = lamina("memory", "add", "I live in Porto now.").splitlines()
    assert made[0].startswith("remembered ")
    assert made[1:] == [f"it replaces {first[:8]}: I live in Lisbon."]
    (row,) = lamina.json("memory")
    assert (row["text"], row["pinned"]) == ("I live in Porto now.", True), "the pin went over"
    told = lamina.json("memory", "add", "I live in Oslo now.")
    assert (told["known"], told["replaced"]) == (False, [row["memory_id"]])
    refused = lamina.error("memory", "pin", first)
    assert told["memory_id"] in refused
    assert "I live in Oslo now." in refused


def test_a_kind_is_checked_and_an_empty_one_is_named(lamina: Lamina) -> None:
    add(lamina, "I sing.")
    assert "preference, fact, event, instruction" in lamina.error("memory", "--kind", "bogus")
    assert "ann has no memories of the kind event" in lamina("memory", "--kind", "event")
    assert "没有关于 ann 的“事件”类记忆" in lamina("memory", "--kind", "event", "--lang", "zh")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_at_80_columns_the_text_keeps_most_of_the_width(lamina: Lamina, lang: str) -> None:
    english = "My sister Mia plays the cello in the town's orchestra on Fridays."
    chinese = "我妹妹在成都的一所音乐学院学习大提琴，每个星期五晚上排练。"
    for text in (english, chinese):
        add(lamina, text)
    lamina("memory", "add", "Always answer in French.", "--kind", "instruction")
    for words, text in (("cello sister", english), ("妹妹 大提琴", chinese)):
        shown = lamina("memory", "search", words, "--lang", lang, COLUMNS="80")
        assert max(map(cell_len, shown.splitlines())) <= 80
        begin = next(line for line in shown.splitlines() if line.split()[3:] and line.split()[3][:2] == text[:2])
        assert cell_len(begin.split(maxsplit=3)[3]) >= 40
        assert ("words 1.00" in shown, "a standing wish" in shown) == (lang == "en", lang == "en")
        assert ("词语 1.00" in shown, "长期要求" in shown) == (lang == "zh", lang == "zh")


def test_nothing_to_search_for_is_an_error(lamina: Lamina) -> None:
    for family in ("memory", "sessions"):
        for words in ("", "  "):
            assert "nothing to search for" in lamina.error(family, "search", words)


@pytest.mark.parametrize(("words", "best"), [("上海", "我住在上海。"), ("coffee", "I drink no coffee.")])
def test_a_search_says_how_well_and_why(lamina: Lamina, words: str, best: str) -> None:
    for text in ("我住在上海。", "I drink no coffee.", "My sister is called Ana."):
        add(lamina, text)
    found = lamina.json("memory", "search", words)
    assert found[0]["memory"]["text"] == best
    assert found[0]["score"] > 0
    assert "words" in found[0]["why"]
    assert best in lamina("memory", "search", words, "-n", "1")
    told = lamina("memory", "search", words, "-n", "1", "--lang", "zh")
    assert ("词语 " in told, "words" in told) == (True, False)
    assert "nothing found for zebra" in lamina("memory", "search", "zebra")
    assert "switched off" in lamina.error("memory", "search", words, LAMINA_MEMORY="off")


def test_by_default_it_is_found_by_meaning_too(lamina: Lamina) -> None:
    add(lamina, "My dog is called Rex.")
    found = lamina.json("memory", "search", "puppy's", "name", LAMINA_EMBEDDER="embedded")
    assert [one["memory"]["text"] for one in found] == ["My dog is called Rex."]


def test_a_memory_shows_where_it_came_from_and_what_it_replaced(lamina: Lamina) -> None:
    session, old, new = learnt(lamina)
    text = lamina("memory", "show", new)
    for part in (session[:8], "Moving", "#1", "I live in Porto now.", f"{old[:8]}  I live in Lisbon."):
        assert part in text
    shown = lamina.json("memory", "show", old)
    assert (shown["superseded_by"]["memory_id"], shown["turn"]["seq"]) == (new, 1)
    assert "superseded by" in lamina("memory", "show", old)
    assert old not in [row["memory_id"] for row in lamina.json("memory")]
    assert "superseded" in lamina("memory", "--all")
    lamina("sessions", "delete", session, "--yes")
    assert "deleted" in lamina("memory", "show", new)
    assert "by hand" in lamina("memory", "show", add(lamina, "Mine."))


def test_forgetting_asks_erases_and_says_which_summaries_went(lamina: Lamina) -> None:
    session, old, new = learnt(lamina)
    assert "no terminal to ask" in lamina.error("memory", "forget", new)
    other = add(lamina, "I sing.")
    gone = lamina("memory", "forget", new[:8], old[:8], new, "--yes")
    assert "forgotten: 2" in gone
    assert f"the summary of {session[:8]} Moving" in gone
    assert [row["memory_id"] for row in lamina.json("memory")] == [other]
    assert "Porto" not in lamina("memory", "--all", "--json")
    assert lamina.json("memory", "forget", other, "--yes") == {"forgotten": [other], "summaries": []}
    jobs = lamina.json("store")["info"]["jobs"]
    assert jobs["waiting"] == 1, "the summary is written anew, without the fact"
    assert json.loads(lamina("worker", "--once", "--json"))["end"] == "done"


def test_forgetting_is_all_or_nothing(lamina: Lamina) -> None:
    kept = add(lamina, "I sing.")
    assert "no memory 'ffffff'" in lamina.error("memory", "forget", kept, "ffffff", "--yes")
    assert [row["text"] for row in lamina.json("memory")] == ["I sing."]


def test_the_profile_is_set_read_and_unset(lamina: Lamina) -> None:
    lamina("sessions", "new")
    assert "ann has no profile" in lamina("memory", "profile")
    assert "city is 京都" in lamina("memory", "profile", "city", "京都")
    assert lamina.json("memory", "profile") == {"city": "京都"}
    assert "city: 京都" in lamina("memory", "profile", "city")
    assert "no profile value 'town'" in lamina.error("memory", "profile", "town")
    assert "takes a name and no value" in lamina.error("memory", "profile", "city", "x", "--unset")
    assert "takes a name" in lamina.error("memory", "profile", "--unset")
    assert "empty" in lamina.error("memory", "profile", " ", "x")
    lamina("memory", "profile", "city", "--unset")
    assert lamina.json("memory", "profile") == {}
    assert lamina.error("memory", "profile", "city", "--unset")


def test_fault_I1_the_memories_of_somebody_else_are_not_found(lamina: Lamina) -> None:
    mine = add(lamina, "I sing.")
    lamina("memory", "profile", "city", "Porto")
    for command in (["show", mine], ["edit", mine, "x"], ["pin", mine], ["forget", mine, "--yes"]):
        assert "not yours" in lamina.error("memory", *command, "--user", "bob")
    assert lamina.json("memory", "--user", "bob") == []
    assert lamina.json("memory", "search", "sing", "--user", "bob") == []
    assert lamina.json("memory", "profile", "--user", "bob") == {}
    assert [row["text"] for row in lamina.json("memory")] == ["I sing."]


def test_a_terminal_never_obeys_a_memory(lamina: Lamina) -> None:
    mine = add(lamina, f"sing {TERMINAL}")
    for output in (
        lamina("memory"), lamina("memory", "--json"), lamina("memory", "show", mine),
        lamina("memory", "search", "sing"),
        lamina("memory", "pin", mine), lamina("memory", "edit", mine, f"{TERMINAL} hum"),
        lamina("memory", "profile", TERMINAL, TERMINAL), lamina("memory", "profile"),
        lamina.error("memory", "show", TERMINAL), lamina.error("memory", "add", "x", "--kind", TERMINAL),
    ):  # fmt: skip
        assert not set(output) & set("\x1b\x07\u202e")


def test_what_cannot_be_kept_is_refused(lamina: Lamina) -> None:
    assert "no text" in lamina.error("memory", "add", "  ")
    assert "preference, fact" in lamina.error("memory", "add", "x", "--kind", "rumour")
    for weight in ("nan", "2", "-1", "much"):
        assert lamina.error("memory", "add", "x", f"--importance={weight}")
    assert "U+D" in lamina.error("memory", "add", "\udcff")
    mine = add(lamina, "I sing.")
    assert lamina.error("memory", "edit", mine, "")
    assert "too short" in lamina.error("memory", "pin", mine[:3])
    assert lamina.json("memory")[0]["text"] == "I sing."


def test_it_speaks_chinese(lamina: Lamina) -> None:
    mine = lamina.json("memory", "add", "我住在上海。")["memory_id"]
    assert "已记住" in lamina("memory", "add", "我爱唱歌。", "--lang", "zh")
    assert "事实" in lamina("memory", LANG="zh_CN.UTF-8")
    assert "手动添加" in lamina("memory", "show", mine, "--lang", "zh")
    assert "没有找到：斑马" in lamina("memory", "search", "斑马", "--lang", "zh")
    assert "已遗忘：1 条" in lamina("memory", "forget", mine, "--yes", "--lang", "zh")
