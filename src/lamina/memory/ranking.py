"""How words, meaning, days and age become one score: the mixture is decided for each question by how sure each side is.

Pure arithmetic over one owner's evidence. No I/O, no clock.
"""

import re
from collections import Counter
from dataclasses import dataclass, replace
from datetime import date
from math import log

import numpy as np
from numpy.typing import NDArray

from lamina.text.dates import DaySpan, find_day_spans
from lamina.text.terms import normalize_text, split_terms, term_weight

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

CONTEXT_WEIGHT, CONTEXT_DECAY, CONTEXT_TURNS = 0.7, 0.9, 12
CONTEXT_LENGTH, CONTEXT_DAMP = 12.0, 0.5
"""A turn that says more than CONTEXT_LENGTH words of weight lends each of them less."""
SENTENCES, PARTS, PARTS_CONTEXT = 0.3, 0.7, 0.15
"""What the best sentence adds to the whole question: in words, in meaning, and in meaning when there is context."""
EMBEDDED_TURNS, EMBEDDED_PARTS, EMBEDDED_CHARACTERS = 6, 6, 600
MEANING, LEAST_MEANING, MOST_MEANING = 0.06, 0.1, 2.5
"""The vectors' share is MEANING divided by how much of the question's words the best row covers: words that find
little leave the answer to the vectors."""
QUESTION_PENALTY = 0.15
"""What a row that asks something loses: who asks does not tell."""
RECENT, RECENT_DAYS, IMPORTANT = 0.25, 20.0, 0.15
LEANING, LEANING_ROWS, LEANING_DAYS = 2.0, 10, 50.0
"""Where the best LEANING_ROWS are newer than rows are, the question is about newer ones, which gain by how much."""
CONTINUING, CONTINUING_DAYS = 0.25, 100.0
"""What newness adds, as a share of the best score, to words that go on with something."""
SHORT_DAYS = 14
"""A question that names a past day, or more days than that, is not about what is new."""
LEADING_MEANING = 0.15
NEAR_DAYS, NEAR_SHARE = 3, 0.6
"""A row some days beside the day asked for may still be about it: people write things down later."""
FLOOR, FLOOR_SHARE, WORDS_ALONE = -8.08, 0.15, 2.92
"""Below FLOOR (see `is_sure`) nothing is found; below FLOOR_SHARE of the best score a row is not."""
FEW_ROWS = 20
"""So few rows are hardly lucky: among them the floor is low."""
SURE_COVERAGE, SURE_COSINE = 0.5, 0.6
"""A row with that much of the question's words, or a vector that close, is sure by itself."""
_CONTINUING = re.compile(
    r"\b(?:next|continu(?:e|ing)|go on|updat(?:e|ed|ing)|latest|current(?:ly)?|ready|let['’]?s|progress|proceed|so far"
    r"|confirm(?:ed)?|finali[sz]ed?|finish(?:ed)?|completed?|plan|draft|step)\b"
    r"|继续|接着|接下来|下一步|更新|最新|进度|进展"
)
_PART = re.compile(r"(?<=[。！？；!?;\n])|(?<=\.)\s+")


@dataclass(frozen=True, slots=True)
class Query:
    """A question, the words around it (oldest first), and what an embedder made of `passages(text, context)`."""

    text: str
    context: tuple[str, ...] = ()
    today: date | None = None
    vectors: Floats | None = None
    model: str = ""
    before: int | None = None
    """Only rows with a smaller change number exist yet."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about each row; `words` for the question and its sentences, `total` for a row with every word."""

    words: Floats
    total: Floats
    meaning: Floats | None
    there: NDArray[np.bool_]
    asks: NDArray[np.bool_]
    day: Ints
    dated: NDArray[np.bool_]
    mentioned: Ints
    mentions: Ints
    importance: Floats


@dataclass(frozen=True, slots=True)
class Fused:
    score: Floats
    words: Floats
    meaning: Floats
    day: Floats
    echo: Floats


def passages(text: str, context: tuple[str, ...] = ()) -> list[str]:
    """What to embed for a question: itself, itself with the words around it, these one by one, and its sentences."""
    asked = [text[-EMBEDDED_CHARACTERS:]]
    around = _context_turns(text, context)[-EMBEDDED_TURNS:]
    if around:
        asked.append("\n".join([*around, text])[-EMBEDDED_CHARACTERS:])
        asked += [turn[:EMBEDDED_CHARACTERS] for turn in around]
    return asked + sentences(text)


def sentences(text: str) -> list[str]:
    """The last sentences of a text with more than one; none for a single sentence."""
    found = [part for piece in _PART.split(text) if len(part := piece.strip()) >= 4]
    return [part[:EMBEDDED_CHARACTERS] for part in found[-EMBEDDED_PARTS:]] if len(found) > 1 else []


def _context_turns(text: str, context: tuple[str, ...]) -> list[str]:
    return [turn for turn in context if turn.strip() and not turn.endswith(text)]


def query_weights(query: Query) -> list[dict[str, float]]:
    """The terms of the question with, weaker the older and the longer, those around it; then those of each sentence."""
    whole = _weights(query.text)
    share = CONTEXT_WEIGHT
    for turn in reversed(_context_turns(query.text, query.context)[-CONTEXT_TURNS:]):
        said = set(split_terms(turn))
        says = sum(term_weight(term) for term in said)
        here = share * min(1.0, (CONTEXT_LENGTH / says) ** CONTEXT_DAMP) if says else 0.0
        for term in said:
            whole[term] = max(whole.get(term, 0.0), here * term_weight(term))
        share *= CONTEXT_DECAY
    return [dict(sorted(whole.items())), *(_weights(part) for part in sentences(query.text))]


def _weights(text: str) -> dict[str, float]:
    return {term: term_weight(term) * (1 + 0.3 * log(n)) for term, n in Counter(split_terms(text)).items()}


def fuse(query: Query, evidence: Evidence) -> Fused:
    """One score a row; 0 for rows that do not count, and for all when nothing speaks clearly enough."""
    words, covered = _score_words(query, evidence)
    share = min(max(MEANING / covered if covered > 0 else MOST_MEANING, LEAST_MEANING), MOST_MEANING)
    meaning = _score_meaning(query, evidence)
    asked = find_day_spans(normalize_text(query.text), query.today)
    day = _score_days(asked, evidence)
    score = words * (1 + day) + np.float32(share) * meaning * (1 + day / 2)
    age = _age(query, asked, evidence)
    score *= 1 + _prior(query, evidence, age)
    score = np.where(evidence.there, score, 0).astype(np.float32)
    if age is not None:
        score = np.where(score > 0, score + _newness(query, evidence, age, score), 0).astype(np.float32)
    if not is_sure(evidence, covered):
        score = np.zeros_like(score)
    return Fused(score, words, meaning, day, np.zeros_like(score))


def continues_work(query: Query) -> bool:
    """Whether the words go on with something under way rather than ask for something past."""
    return _CONTINUING.search(normalize_text(query.text)) is not None


def drop_below_floor(score: Floats) -> Floats:
    """Without the rows that are nothing beside the best."""
    return np.where(score >= FLOOR_SHARE * float(score.max(initial=0.0)), score, 0).astype(np.float32)


def leading_scores(query: Query, evidence: Evidence, fused: Fused) -> list[Floats]:
    """The scores that decide which rows lead: the whole score, or those for each sentence of the question."""
    if len(evidence.words) < 2 or not fused.score.any():
        return [fused.score] if fused.score.any() else []
    there = evidence.there
    cosines = [np.zeros_like(fused.score)] * (len(evidence.words) - 1)
    if evidence.meaning is not None and len(evidence.meaning) > len(cosines):
        cosines = list(evidence.meaning[-len(cosines) :])
    return [
        np.where(there, _scale_to_one(words) + np.float32(LEADING_MEANING) * _scale_to_one(np.maximum(cosine, 0)), 0)
        for words, cosine in zip(evidence.words[1:], cosines, strict=True)
    ]


def _scale_to_one(values: Floats) -> Floats:
    return (values / max(float(values.max(initial=0.0)), 1e-9)).astype(np.float32)


def add_echo(fused: Fused, evidence: Evidence, echo: Floats) -> Fused:
    """With what the echo adds, as a share of the best score, to rows that have something to say by themselves."""
    best = np.float32(fused.score.max(initial=0.0))
    score = np.where(evidence.there & (fused.score > 0), fused.score + best * echo, 0).astype(np.float32)
    return replace(fused, score=score, echo=echo)


def is_sure(evidence: Evidence, covered: float) -> bool:
    """Whether the best rows say more than the best of that many unrelated rows would.

    A straight line through how much of the question the best row covers, how near the nearest vectors are, how much
    there is to ask for and how many rows there are to be lucky with. The floor
    lets about one true question in a hundred fall (locomo 0.9 %, lifebench 2.6 %, the others next to none).
    """
    rows = min(max(int(evidence.there.sum()), FEW_ROWS), 3000)
    sure = 1.64 * log(max(covered, 0.02)) + 0.92 * log(max(float(evidence.total[0]), 1.0)) - 1.46 * log(rows)
    if evidence.meaning is None:
        return covered >= SURE_COVERAGE or (covered > 0 and sure + WORDS_ALONE >= FLOOR)
    near = np.where(evidence.there, evidence.meaning, 0).max(axis=1, initial=0.0)
    if covered >= SURE_COVERAGE or float(near[0]) >= SURE_COSINE:
        return True
    return sure + 2.38 * float(near[0]) + 3.54 * float(near.max()) >= FLOOR


def _score_words(query: Query, evidence: Evidence) -> tuple[Floats, float]:
    """The words' side, to at most 1, and how much of the question the best row covers."""
    found = np.where(evidence.there, evidence.words * (1 - QUESTION_PENALTY * evidence.asks), 0).astype(np.float32)
    best = found.max(axis=1, initial=0.0)
    covered = best / np.maximum(evidence.total, 1e-9)
    words = found[0] / max(float(best[0]), 1e-9)
    if len(found) > 1 and not query.context:
        parts = found[1:] / np.maximum(best[1:], 1e-9)[:, None]
        words = words + np.float32(SENTENCES) * parts.max(axis=0)
        words /= max(float(words.max()), 1e-9)
    return words.astype(np.float32), float(covered[0])


def _score_meaning(query: Query, evidence: Evidence) -> Floats:
    """Cosines with the question and its surroundings as one direction, and with its best sentence, to at most 1."""
    cosines = evidence.meaning
    if cosines is None:
        return np.zeros(len(evidence.there), np.float32)
    around = len(_context_turns(query.text, query.context)[-EMBEDDED_TURNS:])
    mixed = cosines[0].copy()
    used = 1
    if around:
        mixed += cosines[1] + cosines[2 : 2 + around].mean(axis=0)
        mixed /= 3
        used = 2 + around
    if len(cosines) > used:
        mixed += np.float32(PARTS_CONTEXT if around and not continues_work(query) else PARTS) * cosines[used:].max(
            axis=0
        )
    mixed = np.where(evidence.there, np.maximum(mixed, 0), 0).astype(np.float32)
    best = float(mixed.max(initial=0.0))
    return mixed / best if best > 0 else mixed


def _score_days(asked: list[DaySpan], evidence: Evidence) -> Floats:
    """How well a row's own day, or a day it speaks of, is in a span that the question names."""
    fit = np.zeros(len(evidence.there), np.float32)
    for first, last in [pair for span in asked for pair in _as_ordinals(span, evidence.day)]:
        inside = evidence.dated & (evidence.day >= first) & (evidence.day < last)
        fit[inside] = 1
        if last - first <= 7:
            far = np.where(evidence.day < first, first - evidence.day, evidence.day - last + 1)
            close = evidence.dated & ~inside & (far <= NEAR_DAYS)
            fit[close] = np.maximum(fit[close], NEAR_SHARE / (1 + far[close]))
        low, high = evidence.mentions[:, 0], evidence.mentions[:, 1]
        shared = np.maximum(np.minimum(high, last) - np.maximum(low, first), 0) / np.maximum(high - low, 1)
        np.maximum.at(fit, evidence.mentioned, shared.astype(np.float32))
    return fit


def _as_ordinals(span: DaySpan, days: Ints) -> list[tuple[int, int]]:
    """A span in ordinals; one without a year in every year that the rows have."""
    if span[0].year > 1:
        return [(span[0].toordinal(), span[1].toordinal())]
    known = days[days > 0]
    if not len(known):
        return []
    years = range(date.fromordinal(int(known.min())).year, date.fromordinal(int(known.max())).year + 1)
    return [pair for year in years if (pair := _in_year(span, year)) is not None]


def _in_year(span: DaySpan, year: int) -> tuple[int, int] | None:
    try:
        return span[0].replace(year=year).toordinal(), span[1].replace(year=year + span[1].year - 1).toordinal()
    except ValueError:  # 29 February
        return None


def _age(query: Query, asked: list[DaySpan], evidence: Evidence) -> Floats | None:
    """Days since each row, endless without a day; None where newness says nothing."""
    today = query.today
    if today is None or any(last < today or (last - first).days > SHORT_DAYS for first, last in asked):
        return None
    age = np.maximum(today.toordinal() - evidence.day, 0)
    return np.where(evidence.day > 0, age, np.inf).astype(np.float32)


def _prior(query: Query, evidence: Evidence, age: Floats | None) -> Floats:
    """Mild: newer and more important rows gain a little; rows dated after today, which cannot answer, lose."""
    prior = (np.float32(IMPORTANT) * np.clip(evidence.importance, 0, 1)).astype(np.float32)
    if query.today is None:
        return prior
    recent = np.zeros_like(prior) if age is None else np.float32(RECENT) * np.exp(-age / RECENT_DAYS)
    return np.where(evidence.day > query.today.toordinal(), prior - np.float32(RECENT), prior + recent)


def _newness(query: Query, evidence: Evidence, age: Floats, score: Floats) -> Floats:
    """What newness adds beyond the prior: where the best rows lean to it, and where the words go on with something."""
    best = np.float32(score.max(initial=0.0))
    if best <= 0:
        return np.zeros_like(score)
    newness = np.exp(-age / LEANING_DAYS)
    edge = np.partition(score, -LEANING_ROWS)[-LEANING_ROWS] if len(score) > LEANING_ROWS else 0.0
    leading = np.where(score >= edge, score, 0) ** 2
    lean = float((leading * newness).sum() / leading.sum()) - float(newness[evidence.there].mean())
    added = np.float32(LEANING * max(lean, 0.0)) * newness
    if continues_work(query):
        added = added + np.float32(CONTINUING) * np.exp(-age / CONTINUING_DAYS)
    return (best * added).astype(np.float32)
