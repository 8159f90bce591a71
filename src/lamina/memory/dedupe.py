"""When two facts are the same, when a newer one contradicts an older one, and what to do with new ones.

Pure and deterministic. Precision before recall: a wrong merge loses a fact, so two facts are the same only when nothing
but filler tells them apart, and contradict only when they give one thing two values that cannot both hold.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from lamina.memory.frames import Frame, frame_of
from lamina.memory.sentences import CJK, fold, is_chinese, listed
from lamina.text.terms import read_numeral
from lamina.types import Fact

Action = Literal["add", "skip", "supersede"]


@dataclass(frozen=True, slots=True)
class FactChange:
    """What becomes of a new fact: added, skipped as the duplicate of `ids`, or put in the place of `ids`.

    Skipped without an id: the same turn says it again, or takes it back.
    """

    action: Action
    fact: Fact
    ids: tuple[str, ...] = ()


class Canon(NamedTuple):
    """A text as a sequence of telling words, and whether it denies what they say."""

    words: tuple[str, ...]
    negated: bool


_CONTRACTIONS = (
    (re.compile(r"\b(?:can't|cannot)\b"), "can not"),
    (re.compile(r"\bwon't\b"), "will not"),
    (re.compile(r"n't\b"), " not"),
    (re.compile(r"'m\b"), " am"),
    (re.compile(r"'re\b"), " are"),
    (re.compile(r"'ve\b"), " have"),
    (re.compile(r"'ll\b"), " will"),
    (re.compile(r"'d\b"), " would"),
    (re.compile(r"\b(he|she|it|that|there|name)'s\b"), r"\1 is"),
    (re.compile(r"\b(?:no longer|never)\b"), "not"),
    (re.compile(r"\b(?:any ?more|any longer)\b"), ""),
    (re.compile(r"\bhave got\b"), "have"),
    (re.compile(r"\bfavourite\b"), "favorite"),
    (re.compile(r"\bcolour\b"), "color"),
)
_FILLER = frozenset(
    listed(
        "a an the really very just also now currently actually still so quite totally absolutely truly simply please "
        "do does did that well ok okay too btw particularly especially already definitely nowadays"
    )
)
_NUMBERS = {
    word: str(n)
    for n, word in enumerate(
        listed(
            "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
            "seventeen eighteen nineteen twenty"
        )
    )
}
_CHINESE_FILLER = re.compile(
    "现在|目前|如今|已经|非常|特别|真的|真心|其实|比较|平时|超级|再也|一下|再(?=[吃喝喜爱抽用])"
    "|[很挺蛮也还就都了的呢啊哦呀吧嘛呗哈]"
)
_CHINESE_NOT = re.compile("从来不|从不|不再|没(?=有)|[不没别未]")
_KEPT = str.maketrans({"不": "\ue000", "别": "\ue001", "未": "\ue002"})
"""Private characters in place of those that deny nothing in these words."""
_NO_NOT = re.compile("不过|不同|不错|不久|特别|别人|别墅|区别|性别|不锈|未来|未婚|别名|不仅|不但|不管|不论|告别|个别")
_TOKEN = re.compile(rf"[{CJK}\ue000-\ue002]|[^\W_{CJK}]+(?:'[^\W_{CJK}]+)?|[+#]+(?!\w)")
_NUMERALS = re.compile("[零一二两三四五六七八九十百]+")


@lru_cache(maxsize=4096)
def canon(text: str) -> Canon:
    """The text without case, punctuation, script variant and filler, and with its negation set apart."""
    low = fold(unicodedata.normalize("NFKC", fold(text))).lower()
    for pattern, plain in _CONTRACTIONS:
        low = pattern.sub(plain, low)
    negations = 0
    if re.search(f"[{CJK}]", low):
        low = _CHINESE_FILLER.sub("", _NO_NOT.sub(lambda found: found[0].translate(_KEPT), low))
        low, negations = _CHINESE_NOT.subn("", low)
        low = _NUMERALS.sub(lambda found: str(read_numeral(found[0])), low)
    words: list[str] = []
    for word in _TOKEN.findall(low):
        if word in ("not", "no"):
            negations += 1
        elif word not in _FILLER:
            words.append(_NUMBERS.get(word) or word)
    return Canon(tuple(words), negations % 2 == 1)


def same_fact(a: str, b: str) -> bool:
    """Whether the two say the same: equal but for filler, or one attribute of one subject with one value."""
    one, other = canon(a), canon(b)
    if one == other:
        return True
    first, second = frame_of(a), frame_of(b)
    if first is None or second is None or first.timed != second.timed:
        return False
    return first.key == second.key and first.value == second.value and first.negated == second.negated


def contradicts(new: str, old: str) -> bool:
    """Whether the newer fact leaves no room for the older one."""
    one, other = canon(new), canon(old)
    if one.negated != other.negated and one.words == other.words and one.words:
        return True
    first, second = frame_of(new), frame_of(old)
    if first is None or second is None or first.key != second.key or first.more:
        return False
    return _excludes(first, second)


def _excludes(new: Frame, old: Frame) -> bool:
    if new.value == old.value:
        return new.negated != old.negated
    if new.negated or old.negated or not new.single or not old.single or old.dated:
        return False
    if set(new.value) <= set(old.value) or set(old.value) <= set(new.value):
        return False  # "Berlin" and "Berlin with my wife": one says more, neither says otherwise
    if is_chinese("".join(new.value)) != is_chinese("".join(old.value)):
        return False  # 柏林 and Berlin: it is not known whether these are two
    if new.scale != old.scale:
        return False  # a city and its country, a city and its district
    return new.sole or new.changed or _alike(new.value, old.value)


def _alike(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Two spellings of a name: the second corrects the first."""
    a, b = "".join(one), "".join(other)
    if re.search(f"[{CJK}0-9]", a + b) or min(len(a), len(b)) < 3:
        return False
    return (
        a.startswith(b)
        or b.startswith(a)
        or (len(a) == len(b) >= 4 and sum(x != y for x, y in zip(a, b, strict=True)) == 1)
    )


def merge(new: Sequence[Fact], old: Sequence[tuple[str, str, str]]) -> list[FactChange]:
    """What to do with each new fact beside the old ones (id, text, kind), in the order of the new ones."""
    changes: list[FactChange] = []
    for fact in new:
        same = [id_ for id_, text, _ in old if same_fact(fact.text, text)]
        earlier = [n for n, change in enumerate(changes) if change.action != "skip"]
        if same or any(same_fact(fact.text, changes[n].fact.text) for n in earlier):
            changes.append(FactChange("skip", fact, tuple(same[:1])))
            continue
        gone = [id_ for id_, text, kind in old if _one_room(fact.kind, kind) and contradicts(fact.text, text)]
        for n in earlier:  # said and taken back in the same turn: the last word counts
            said = changes[n]
            if _one_room(fact.kind, said.fact.kind) and contradicts(fact.text, said.fact.text):
                gone += [id_ for id_ in said.ids if id_ not in gone]
                changes[n] = FactChange("skip", said.fact)
        changes.append(FactChange("supersede" if gone else "add", fact, tuple(gone)))
    return changes


def _one_room(kind: str, other: str) -> bool:
    """A wish never takes the place of a fact, nor a fact that of a wish."""
    return (kind == "instruction") == (other == "instruction")
