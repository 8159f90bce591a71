"""Text into index terms, the same at index and query time, for English, Chinese, Japanese and Korean.

Words are stemmed, scripts without spaces become characters and pairs of them, numerals become digits. Nothing is
dropped: how little a stop word says is a matter of weight. What a text says about days is `lamina.text.dates`'s matter.
"""

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise

_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u2fff\u3005-\u3007\u3021-\u3029\u3040-\u30ff\u3130-\u318f"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Scripts that put no space between words (or glue particles to them), so that pairs of characters are the words."""
_TOKEN = re.compile(rf"([{_SPACELESS}]+)|(\d+(?:[.,:]\d+)*)|([^\W\d_{_SPACELESS}]+(?:['’][^\W\d_{_SPACELESS}]+)?)")
_ASCII = re.compile(r"[a-z]+(?:'[a-z]+)?|\d+(?:[.,:]\d+)*")
_FIGURES = "零〇一二两三四五六七八九十"
_NUMERAL = re.compile(f"[{_FIGURES}百千万亿]{{2,}}|[{_FIGURES}](?=[天日周个月年岁点时分元块人次位名号楼层])")
_PAIRED = re.compile(rf"[{_SPACELESS}]")

_DIGITS = {c: n for n, c in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2}
_UNITS = {"十": 10, "百": 100, "千": 1000}
_LARGE = {"万": 10_000, "亿": 100_000_000}

_IRREGULAR_VERBS = """
am be|is be|are be|was be|were be|been be|being be|has have|had have|having have|does do|did do|done do|goes go|went go
going go|gone go|made make
making make|took take|taken take|taking take|came come|coming come|saw see|seen see|got get|gotten get
gave give|given give|giving give|found find|told tell|felt feel|left leave|leaving leave|kept keep|began begin
begun begin|brought bring|bought buy|thought think|taught teach|caught catch|fought fight|sought seek|wrote write
written write|writing write|ate eat|eaten eat|drank drink|drunk drink|drove drive|driven drive|driving drive|rode ride
ridden ride|riding ride|ran run|running run|sang sing|sung sing|swam swim|swum swim|spoke speak|spoken speak|broke break
broken break|chose choose|chosen choose|choosing choose|froze freeze|frozen freeze|stole steal|stolen steal|wore wear
worn wear|tore tear|torn tear|grew grow|grown grow|knew know|known know|threw throw|thrown throw|flew fly|flown fly
drew draw|drawn draw|met meet|sat sit|stood stand|understood understand|won win|lost lose|losing lose|sold sell
sent send|spent spend|lent lend|built build|slept sleep|swept sweep|wept weep|dealt deal|meant mean|heard hear
held hold|led lead|paid pay|said say|laid lay|fell fall|fallen fall|forgot forget|forgotten forget|hid hide|hidden hide
hiding hide|rose rise|risen rise|shook shake|shaken shake|shot shoot|struck strike|woke wake|woken wake|became become
becoming become|dug dig|hung hang|stuck stick|fed feed|bred breed|bled bleed|lit light|bit bite|bitten bite|blew blow
blown blow|bent bend|bound bind|dreamt dream|learnt learn|burnt burn|forgave forgive|proven prove|sewn sew|shown show
swore swear|sworn swear|wound wind|slid slide|sank sink|sunk sink|sprang spring|stung sting|swung swing
overcame overcome|died die|dying die|lied lie|lying lie|tied tie|tying tie|using use|used use|dining dine
biking bike|hiking hike
"""
_IRREGULAR_NOUNS = """
children child|kids child|kid child|men man|women woman|people person|feet foot|teeth tooth|mice mouse|geese goose
wives wife|lives life|knives knife|leaves leaf|shelves shelf|wolves wolf|halves half|selves self|loaves loaf
thieves thief
mum mother|mom mother|mommy mother|dad father|daddy father|grandma grandmother|granny grandmother|grandpa grandfather
bf boyfriend|gf girlfriend|photo picture|photograph picture|pic picture|pics picture|photos picture|tv television
bike bicycle|bikes bicycle|movie film|movies film|fridge refrigerator|phone telephone|cellphone telephone|exam test
vet veterinarian|gym gymnasium|doc doctor|doctors doctor|okay ok|news news|colour color|favourite favorite|centre center
theatre theater|grey gray|travelling travel|travelled travel|cosy cozy|organise organize|realise realize|dr doctor
holiday vacation|holidays vacation|apartment flat|couch sofa|shop store|shops store|job work|jobs work|automobile car
cars car|auto car|begin start|began start|begun start|beginning start|buy purchase|bought purchase|buying purchase
gift present|gifts present|sick ill|illness ill|sickness ill|big large|huge large|little small|tiny small
"""
_NUMBERS = """
one 1|two 2|three 3|four 4|five 5|six 6|seven 7|eight 8|nine 9|ten 10|eleven 11|twelve 12|thirteen 13|fourteen 14
fifteen 15|sixteen 16|seventeen 17|eighteen 18|nineteen 19|twenty 20|thirty 30|forty 40|fifty 50|hundred 100
thousand 1000|first 1st|second 2nd|third 3rd|fourth 4th|fifth 5th|twice 2|dozen 12
"""


def _table(*texts: str) -> dict[str, str]:
    pairs = [pair.split() for text in texts for pair in re.split(r"[|\n]", text) if pair]
    return dict(pairs)


_STEMS = _table(_IRREGULAR_VERBS, _IRREGULAR_NOUNS, _NUMBERS)

_LITTLE = """
a an the this that these those and or but if then so than as of in on at to for from by with about into over after
before between through during without within up down out off again i me my mine we us our you your he him his she her
it its they them their who whom whose which what when where why how be have do can could will would shall should may
might must not no nor only own same too very just there here all any both each few more most other some such s t re ve
ll d m don doesn didn isn aren wasn weren hasn haven hadn won wouldn couldn shouldn ain let get go also yes ok oh hey hi
hello well really like thank thanks please sure much many am is are was were been being has had does did because while
kind type sort thing someth anyth everyth one ever still yet now
"""
STOP_WORDS = frozenset(_LITTLE.split())
"""English words that say little: they weigh little, and stay."""
STOP_CHARACTERS = frozenset(
    "的了是在我你他她它们这那有和与及或也就都而且吗呢吧啊呀哦嗯么之其被把给让到从对于为以所着过得地不没很太更最还又再什哪怎谁几多少个些里上下中"
    "请问会能可要想说去来做用のはがをにでとももやかへよねですます은는이가을를에의도"
)
"""Characters that mostly serve grammar."""


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """The common form of an English word's inflections, by a table of irregular ones and by suffixes."""
    known = _STEMS.get(word, word)
    return _strip(known) if known == word or known not in _STEMS else stem(known)


def _strip(word: str) -> str:
    if len(word) < 4 or not word.isascii():
        return word
    if _STEMS.get(word) == word:
        return word
    single = _singular(word)
    if single != word and single in _STEMS:
        return stem(single)
    word = single
    word = _plain(word)
    for suffix, keep, put in _DERIVED:
        if word.endswith(suffix) and len(word) - len(suffix) >= keep:
            word = word[: -len(suffix)] + put
            break
    if word.endswith("e") and len(word) > 3:
        return word[:-1]
    return word[:-1] + "i" if word.endswith("y") and len(word) > 3 and word[-2] not in "aeiou" else word


_DERIVED = (
    ("fulness", 3, "ful"), ("iveness", 3, "iv"), ("ousness", 3, "ous"), ("ization", 3, "iz"), ("isation", 3, "iz"),
    ("ational", 4, "at"), ("ation", 4, "at"), ("ition", 4, "it"), ("ingly", 4, ""), ("fully", 3, "ful"),
    ("ously", 3, "ous"), ("ately", 4, "at"), ("ibly", 4, "ibl"), ("ably", 4, "abl"), ("iness", 3, "y"), ("ness", 4, ""),
    ("ment", 5, ""), ("ally", 4, "al"), ("ily", 3, "y"), ("ly", 4, ""), ("ise", 4, "iz"), ("yse", 4, "yz"),
)  # fmt: skip
_VOWEL = re.compile("[aeiouy]")


def _singular(word: str) -> str:
    if not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y" if len(word) > 4 else word[:-1]
    if word.endswith(("sses", "shes", "ches", "xes", "zzes", "oes")) and len(word) > 4:
        return word[:-2]
    return word[:-1]


def _plain(word: str) -> str:
    """Without -ed and -ing: planned, planning → plan; hoped, hoping → hop(e)."""
    for suffix, least in (("ied", 2), ("ing", 3), ("ed", 2)):
        if word.endswith(suffix) and len(word) - len(suffix) >= least:
            rest = word[: -len(suffix)]
            if suffix == "ied":
                return rest + "y"
            if not _VOWEL.search(rest) or rest.endswith("e"):
                return word
            if len(rest) > 3 and rest[-1] == rest[-2] and rest[-1] not in "lsz":
                return rest[:-1]
            return rest
    return word


def read_numeral(text: str) -> int | None:
    """Digits or a Chinese numeral as a number: 三千 → 3000, 二十三 → 23, 二〇二三 → 2023; None for anything else."""
    if text.isascii() and text.isdigit():
        return int(text)
    if all(c in _DIGITS for c in text):
        return int("".join(str(_DIGITS[c]) for c in text)) if text else None
    total, section, digit = 0, 0, 0
    for c in text:
        if c in _DIGITS:
            digit = _DIGITS[c]
        elif c in _UNITS:
            section, digit = section + (digit or 1) * _UNITS[c], 0
        elif c in _LARGE:
            total, section, digit = (total + section + digit) * _LARGE[c], 0, 0
        else:
            return None
    return total + section + digit


def normalize_text(text: str) -> str:
    """One form for one text: NFKC, casefolded."""
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold().replace("’", "'")


def split_terms(text: str) -> list[str]:
    """The index terms of a text in order, with repetitions."""
    text = normalize_text(text)
    if text.isascii():
        return [_word(token) for token in _ASCII.findall(text)]
    found: list[str] = []
    for run, number, word in _TOKEN.findall(text):
        if run:
            found.extend(run)
            found.extend(map("".join, pairwise(run)))
            if _NUMERAL.search(run):
                found.extend(str(n) for m in _NUMERAL.findall(run) if (n := read_numeral(m)) is not None)
        else:
            found.append(_word(number or word))
    return found


@lru_cache(maxsize=65536)
def _word(token: str) -> str:
    """A word's stem, a number without its thousands' commas and trailing zeros."""
    if token[0].isdigit():
        token = token.replace(",", "")
        if ":" in token:
            return token.lstrip("0") or "0"
        if "." in token and token.count(".") == 1:
            token = token.rstrip("0").rstrip(".")
        return token.lstrip("0") or "0"
    head, _, tail = token.partition("'")
    return stem(head if tail in ("s", "re", "ve", "ll", "d", "m", "t") and len(head) > 1 else head + tail)


def is_paired(term: str) -> bool:
    """Whether a term is a character, or a pair of them, of a script without spaces."""
    return _PAIRED.match(term) is not None


LEAST_WEIGHT = 0.05
"""That of a stop character alone: it is in nearly every sentence, so two texts that share only it share nothing."""


@lru_cache(maxsize=65536)
def term_weight(term: str) -> float:
    """How much a term says by its form alone, from 0.05 to 1; how rare it is comes on top, from the index."""
    if _PAIRED.match(term):
        stops = sum(c in STOP_CHARACTERS for c in term)
        if len(term) == 1:
            return LEAST_WEIGHT if stops else 0.3
        return (1.0, 0.5, 0.15)[stops]
    return 0.1 if term in _STOP_STEMS else 1.0


_STOP_STEMS = STOP_WORDS | {stem(word) for word in STOP_WORDS}
