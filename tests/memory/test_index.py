"""One owner's index: packed rows, exact scores, a stable order, a floor."""

from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.errors import InputError
from lamina.memory.index import Index, IndexEntry, IndexRow, index_row, pack_vector
from lamina.memory.ranking import Query, passages, sentences
from lamina.providers.embeddings import SentenceEncoder

DAY = date(2024, 5, 1)
FACTS = [
    "The user's dog is called Bruno and loves the beach.",
    "She works as a nurse in Hamburg.",
    "They moved to a new flat last month.",
    "He plays chess every Sunday with his brother.",
    "The car was repaired in March for 800 euros.",
    "用户对花生过敏，不能吃花生酱。",
    "他的女儿在上海读大学，学建筑。",
    "上周他买了一台新的笔记本电脑。",
    "她每天早上在公园跑步五公里。",
    "公司的年会定在十二月二十日。",
]


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    return SentenceEncoder()


def rows_of(texts: list[str], encoder: SentenceEncoder | None = None) -> list[IndexRow]:
    vectors = [None] * len(texts) if encoder is None else list(encoder.embed(texts))
    model = encoder.name if encoder else ""
    entries = [IndexEntry(f"m{n}", text, n, DAY, session=f"s{n}") for n, text in enumerate(texts)]
    return [index_row(entry, vector, model) for entry, vector in zip(entries, vectors, strict=True)]


def ask(text: str, encoder: SentenceEncoder | None = None, *context: str) -> Query:
    if encoder is None:
        return Query(text, context, DAY)
    return Query(text, context, DAY, np.asarray(encoder.embed(passages(text, context))), encoder.name)


def ids(index: Index, query: Query, limit: int = 10) -> list[str]:
    return [hit.memory_id for hit in index.search(query, limit)]


def test_words_find_their_fact_without_any_embedder() -> None:
    index = Index(rows_of(FACTS))
    assert ids(index, ask("What is the dog called?"))[0] == "m0"
    assert ids(index, ask("谁对花生过敏？"))[0] == "m5"


@pytest.mark.parametrize(
    ("keyword", "found"),
    [("花生", "m5"), ("上海", "m6"), ("跑步", "m8"), ("年会", "m9"), ("nurse", "m1"), ("chess", "m3")],
)
def test_a_short_keyword_is_found(keyword: str, found: str, encoder: SentenceEncoder) -> None:
    assert ids(Index(rows_of(FACTS)), ask(keyword))[0] == found
    assert ids(Index(rows_of(FACTS, encoder)), ask(keyword, encoder))[0] == found


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ("他的孩子在哪个城市上大学？", "m6"),
        ("Which food is dangerous for the user?", "m5"),
        ("她是护士吗？", "m1"),
        ("He bought a new laptop computer", "m7"),
    ],
)
def test_another_wording_or_language_is_found(question: str, found: str, encoder: SentenceEncoder) -> None:
    assert found in ids(Index(rows_of(FACTS, encoder)), ask(question, encoder), 3)


def test_a_stop_character_alone_finds_nothing_in_a_question_that_says_more() -> None:
    index = Index(rows_of(["安的猫叫汤姆。"]))
    assert ids(index, ask("写一首关于春天的诗")) == []
    assert ids(index, ask("猫的名字")) == ["m0"]
    assert ids(index, ask("的")) == ["m0"], "it is all that was asked for"


def test_noise_finds_nothing(encoder: SentenceEncoder) -> None:
    index = Index(rows_of(FACTS, encoder))
    for noise in ("zxqv blorp wumpf", "!!!", "", "钅彡亍", "???"):
        assert ids(index, ask(noise)) == []
    assert ids(index, ask("zxqv blorp wumpf", encoder)) == []


def test_the_floor_is_what_keeps_noise_out(encoder: SentenceEncoder) -> None:
    """The planted fault: without the floor the nearest vector is always an answer."""
    index = Index(rows_of(FACTS, encoder))
    query = ask("zxqv blorp wumpf", encoder)
    assert query.vectors is not None
    nearest = index._meaning(query, index._ordered_view())  # pyright: ignore[reportPrivateUsage] -- the fault to plant
    assert nearest is not None
    assert nearest.max() > 0
    assert index.search(query) == []


def test_the_day_that_a_question_names_decides() -> None:
    texts = ["We met for dinner." for _ in range(12)]
    entries = [IndexEntry(f"m{n}", text, n, date(2024, n + 1, 3)) for n, text in enumerate(texts)]
    index = Index(index_row(entry) for entry in entries)
    assert ids(index, Query("dinner in August 2024", today=date(2025, 1, 1)))[0] == "m7"
    assert ids(index, Query("八月的 dinner", today=date(2025, 1, 1)))[0] == "m7"
    assert ids(index, Query("the dinner three months ago", today=date(2025, 1, 1)))[0] == "m9"


def test_a_relative_day_in_a_memory_is_its_own_day() -> None:
    entries = [
        IndexEntry("old", "I ran a marathon last month", 1, date(2024, 3, 5)),
        IndexEntry("new", "I ran a marathon", 2, date(2024, 3, 9)),
    ]
    index = Index(index_row(entry) for entry in entries)
    assert ids(index, Query("marathon in February", today=date(2024, 4, 1)))[0] == "old"


def test_the_answer_after_the_question_that_names_it_is_found() -> None:
    said = [("Ann", "Good morning!"), ("Bob", "What did you cook for Marta's birthday?"),
            ("Ann", "Lasagne, she loved it."), ("Bob", "Nice."),
            ("Ann", "The weather was bad."), ("Bob", "It rained here.")]  # fmt: skip
    entries = [IndexEntry(f"t{n}", text, n, DAY, who, "s", n) for n, (who, text) in enumerate(said)]
    index = Index(index_row(entry) for entry in entries)
    assert "t2" in ids(index, ask("What did Ann cook for Marta's birthday?"), 2)
    apart = Index(index_row(replace(entry, session=f"s{n}")) for n, entry in enumerate(entries))
    assert "t2" not in ids(apart, ask("What did Ann cook for Marta's birthday?"), 2)


def test_notes_of_one_voice_lend_their_words_only_where_they_are_alike(encoder: SentenceEncoder) -> None:
    texts = ["The hamster is called Otto.", "Taxes are due in June.", "My hamster Otto eats carrots.", "It rained."]
    vectors = encoder.embed(texts)

    def index(*voices: str) -> Index:
        entries = [IndexEntry(f"n{n}", text, n, DAY, voices[n % len(voices)], "day", n) for n, text in enumerate(texts)]
        return Index(index_row(entry, vectors[n], encoder.name) for n, entry in enumerate(entries))

    def taxes(found: Index) -> float:
        return {hit.memory_id: hit.score for hit in found.search(ask("hamster Otto", encoder))}.get("n1", 0.0)

    assert taxes(index("Ann")) < taxes(index("Ann", "Bob"))


def test_words_that_are_no_unicode_do_not_fail() -> None:
    index = Index([index_row(IndexEntry("m", "half \ud800 pair", 1, DAY, "\ud800", "\ud800"))])
    assert ids(index, ask("half \ud800 pair")) == ["m"]


def test_words_around_the_question_help(encoder: SentenceEncoder) -> None:
    index = Index(rows_of(FACTS, encoder))
    assert ids(index, ask("What is his name?", encoder, "I took the dog to the beach."))[0] == "m0"


def test_equal_scores_come_newest_first_and_always_alike() -> None:
    entries = [IndexEntry(f"m{n}", "the same words", n, DAY, session=f"s{n}") for n in range(30)]
    rows = [index_row(entry) for entry in entries]
    assert ids(Index(rows), ask("same words"), 5) == ["m29", "m28", "m27", "m26", "m25"]
    assert ids(Index(rows[::-1]), ask("same words"), 5) == ["m29", "m28", "m27", "m26", "m25"]


def test_only_what_was_there_before_is_found() -> None:
    index = Index(rows_of(FACTS))
    assert ids(index, replace(ask("nurse"), before=1)) == []
    assert ids(index, replace(ask("nurse"), before=2)) == ["m1"]


def test_a_row_of_another_model_is_not_compared(encoder: SentenceEncoder) -> None:
    rows = [replace(row, model="another") for row in rows_of(FACTS, encoder)]
    assert ids(Index(rows), ask("Welches Tier hat er?", encoder)) == []


def test_what_others_keep_changes_nothing_here(encoder: SentenceEncoder) -> None:
    """Rarity comes from the owner alone: a second owner with the same words leaves every score as it was."""
    mine = Index(rows_of(FACTS, encoder))
    query = ask("What is the dog called?", encoder)
    before = mine.search(query)
    Index(rows_of(["dog dog dog called called"] * 50, encoder)).search(query)
    assert mine.search(query) == before
    together = Index(
        [*rows_of(FACTS, encoder), *(replace(r, memory_id=f"x{n}") for n, r in enumerate(rows_of(["dog"] * 50)))]
    )
    assert together.search(query) != before, "the planted fault, one index for two owners, must show"


def test_a_packed_row_is_the_same_bytes_each_time_and_holds_its_vector() -> None:
    vector = np.random.default_rng(1).normal(size=64).astype(np.float32)
    entry = IndexEntry("m", "Something 重要 happened yesterday?", 7, DAY, "Ann", "s", 3, 0.5)
    assert index_row(entry, vector, "model") == index_row(entry, list(map(float, vector)), "model")
    packed = pack_vector(vector)
    scale = np.frombuffer(packed[:4], "<f4")[0]
    back = np.frombuffer(packed[4:], np.int8) * scale
    assert np.abs(back - vector / np.linalg.norm(vector)).max() <= scale
    assert index_row(entry).vector == b""


def test_a_vector_that_is_no_number_is_refused() -> None:
    with pytest.raises(InputError, match="finite"):
        pack_vector([1.0, float("nan")])


def test_importance_is_a_mild_prior() -> None:
    entries = [
        IndexEntry("plain", "likes green tea", 2, DAY, session="a"),
        IndexEntry("pinned", "likes green tea", 1, DAY, session="b", importance=1.0),
    ]
    assert ids(Index(index_row(entry) for entry in entries), ask("green tea"))[0] == "pinned"


def test_a_question_in_several_sentences_is_also_asked_one_by_one() -> None:
    assert sentences("One thing.") == []
    assert sentences("First thing. Second thing? 第三件事。") == ["First thing.", "Second thing?", "第三件事。"]
    assert passages("Hello there") == ["Hello there"]
    assert passages("now", ("before", "now")) == ["now", "before\nnow", "before"]


WORDS = "cat dog tea 上海 花生 book ? 2023 yesterday walk red"
WORD = st.sampled_from(WORDS.split())
TEXT = st.lists(WORD, min_size=1, max_size=6).map(" ".join)
STEP = st.tuples(st.booleans(), st.integers(0, 12), TEXT, st.integers(0, 2))


def vector_of(text: str) -> list[float]:
    return [float(len(text) % 7) + 1, float(text.count("a")), float(text.count("上")), 1.0]


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=40), TEXT)
def test_adding_and_removing_equals_building_anew(steps: list[tuple[bool, int, str, int]], asked: str) -> None:
    grown = Index()
    kept: dict[str, IndexRow] = {}
    for change, (add, number, text, session) in enumerate(steps):
        name = f"m{number}"
        if add:
            entry = IndexEntry(name, text, change, DAY, "dog", f"s{session}", change)
            kept[name] = index_row(entry, vector_of(text), "toy")
            grown.add([kept[name]])
        else:
            kept.pop(name, None)
            grown.remove([name])
        assert len(grown) == len(kept)
    query = Query(asked, ("cat",), DAY, np.array([vector_of(p) for p in passages(asked, ("cat",))], np.float32), "toy")
    assert grown.search(query) == Index(kept.values()).search(query) == Index(reversed(kept.values())).search(query)


def test_an_index_shrinks_and_grows_over_its_segments() -> None:
    rows = [index_row(IndexEntry(f"m{n}", f"word{n} shared", n, DAY, session=f"s{n}")) for n in range(200)]
    index = Index()
    for row in rows:
        index.add([row])
    index.remove([f"m{n}" for n in range(150)])
    assert len(index) == 50
    assert ids(index, ask("word199")) == ids(Index(rows[150:]), ask("word199")) == ["m199"]
    assert "m3" not in index
    assert "m180" in index


def test_an_empty_index_and_an_empty_wish_give_nothing() -> None:
    assert Index().search(ask("anything")) == []
    assert Index(rows_of(FACTS)).search(ask("nurse"), 0) == []


def test_a_hit_says_why(encoder: SentenceEncoder) -> None:
    hit = Index(rows_of(FACTS, encoder)).search(ask("What is the dog called?", encoder))[0]
    assert "words 1.00" in hit.why.text()
    assert "meaning" in hit.why.text()


def test_who_is_meant_by_the_best_row_is_found_by_what_else_is_said_of_them() -> None:
    said = ["我妈妈的家乡在河南郑州。", "我妈妈叫李梓萱。", "今天的天气真好。", "同事叫王强。", "他叫赵云，爱跑步。"]
    found = ids(Index(rows_of([*said, *(f"晚饭第{n}次吃面条" for n in range(20))])), ask("家乡在河南郑州的人叫什么？"))
    assert found[:2] == ["m0", "m1"]


def test_words_that_go_on_with_something_find_the_newest_of_equals_and_questions_of_a_past_day_do_not() -> None:
    days = [DAY - timedelta(days=back) for back in (2, 300)]
    rows = [index_row(IndexEntry(f"m{n}", "the garden plan has a pond", -n, day)) for n, day in enumerate(days)]
    index = Index(rows)
    new, old = index.search(Query("what is the next step of the garden plan?", (), DAY))
    assert (new.memory_id, old.memory_id) == ("m0", "m1")
    assert new.score > 1.2 * old.score
    past = (DAY - timedelta(days=300)).isoformat()
    assert ids(index, Query(f"what was the garden plan on {past}?", (), DAY))[0] == "m1"


@pytest.mark.parametrize("question", ["What do I eat with Bruno today?", "今天我和 Bruno 吃什么？"])
def test_a_fact_without_a_day_of_its_own_does_not_match_by_the_day_it_was_written_down(question: str) -> None:
    texts = ["Bruno is my dog.", "Bruno has an appointment today.", "Bruno goes to the vet."]
    dated = [False, False, True]
    entries = [IndexEntry(f"m{n}", text, n, DAY, dated=dated[n], said=DAY) for n, text in enumerate(texts)]
    found = {hit.memory_id: hit.why.text() for hit in Index(map(index_row, entries)).search(ask(question))}
    assert {name: "day" in why for name, why in found.items()} == {"m0": False, "m1": True, "m2": True}


def test_a_relative_day_counts_from_when_it_was_said_and_not_from_the_day_it_leads_to() -> None:
    monday, wednesday = date(2026, 11, 16), date(2026, 11, 11)
    (entry,) = [IndexEntry("m", "I start at the clinic next Monday.", 0, monday, said=wednesday)]
    index = Index([index_row(entry)])
    (hit,) = index.search(Query("What about the clinic on 2026-11-23?", today=wednesday))
    assert "day" not in hit.why.text()
    (hit,) = index.search(Query("What about the clinic on 2026-11-16?", today=wednesday))
    assert "day 1.00" in hit.why.text()
