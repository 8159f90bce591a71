"""The day that a sentence speaks of, where it says one day plainly; English and Chinese.

Pure: the day on which it was said is handed in. What names no single day (a week, a month, "soon") has none: a date
that nobody gave is not made up.
"""

import re
from collections.abc import Callable
from datetime import date, timedelta

from lamina.memory.sentences import listed

_MONTHS = listed("jan feb mar apr may jun jul aug sep oct nov dec")
_MONTH = (
    r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?"
    r"|dec(?:ember)?)\.?"
)
_DAYS = listed("mon tue wed thu fri sat sun")
_DAY = r"(mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
_COUNTS = {
    word: n for n, word in enumerate(listed("zero one two three four five six seven eight nine ten eleven twelve"))
} | {"a": 1, "an": 1, "a couple of": 2}
_COUNT = rf"(\d{{1,3}}|a couple of|{'|'.join(sorted(_COUNTS, key=len, reverse=True)[1:])})"
_NUMERAL = "([0-9]{1,3}|[一二两三四五六七八九十]{1,3})"
_CHINESE = {char: n for n, char in enumerate("零一二三四五六七八九十")} | {"两": 2, "〇": 0}
_WEEKDAYS = {char: n for n, char in enumerate("一二三四五六日")} | {"天": 6} | {str(n + 1): n for n in range(7)}

_PAST = re.compile(
    r"\b(?:was|were|had|did|went|got|bought|met|saw|made|took|gave|lost|broke|left|won|ran|flew|quit|came|felt|began"
    r"|\w{2,}ed)\b|ago\b"
    r"|了|过|刚|曾|那天",
    re.IGNORECASE,
)
_FUTURE = re.compile(
    r"\b(?:will|going to|'ll|next|upcoming|leaves|starts|booked|registered|signed up)\b|预约|预订|订了|报名|要|将|会"
    r"|打算|准备|计划",
    re.IGNORECASE,
)


def numeral(text: str) -> int | None:
    """A number up to 999 in digits or in Chinese numerals."""
    if text.isascii() and text.isdigit():
        return int(text)
    total, digit = 0, 0
    for char in text:
        if char in ("十", "百"):
            total, digit = total + (digit or 1) * (10 if char == "十" else 100), 0
        elif char in _CHINESE:
            digit = digit * 10 + _CHINESE[char]
        else:
            return None
    return total + digit if text else None


_DATES = (
    (rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {_MONTH},? ((?:19|20)\d\d)\b", (3, 2, 1)),
    (rf"\b{_MONTH} (?:the )?(\d{{1,2}})(?:st|nd|rd|th)?,? ((?:19|20)\d\d)\b", (3, 1, 2)),
)


def the_day(text: str, said: date | None) -> date | None:
    """The day that the text (traditional characters folded) speaks of."""
    full = re.search(r"(?<!\d)((?:19|20)\d\d)\s*[-/.年]\s*(\d{1,2})\s*[-/.月]\s*(\d{1,2})(?!\d)", text)
    if full:
        return _date(int(full[1]), int(full[2]), int(full[3]))
    low = text.lower()
    for pattern, order in _DATES:
        found = re.search(pattern, low)
        if found:
            year, month, day = (found[n] for n in order)
            return _date(int(year), _MONTHS.index(month[:3]) + 1, int(day))
    return _relative(low, said) if said else None


_VAGUE = re.compile(
    r"\b(?:next|last|this|coming) (?:week|weekend|month|year|spring|summer|autumn|fall|winter)\b"
    r"|(?:上|下|这|本)个?(?:周末|月|学期|季度)|(?:上|下|这|本)个?(?:周|星期|礼拜)(?![一二三四五六日天])"
)
"""Beside a span of time a day may be another day than the event's."""


def _relative(low: str, said: date) -> date | None:
    # Also the first year and the last have neighbours that do not exist.
    try:
        days = {day for rule in _RULES if (day := rule(low, said)) is not None}
        return days.pop() if len(days) == 1 and not _VAGUE.search(low) else None
    except OverflowError:
        return None


def _date(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None


_WORDS: tuple[tuple[str, int], ...] = (
    (r"\bday after tomorrow\b|(?<!大)后天", 2),
    (r"\bday before yesterday\b|(?<!大)前天", -2),
    (r"大后天", 3),
    (r"大前天", -3),
    (r"\btomorrow\b|明天|明早|明晚|明日", 1),
    (r"\byesterday\b|\blast night\b|昨天|昨晚|昨日|昨夜", -1),
    (r"\btoday\b|\btonight\b|\bthis (?:morning|afternoon|evening)\b|今天|今晚|今早|今日", 0),
)


def _by_word(text: str, said: date) -> date | None:
    return next((said + timedelta(days) for pattern, days in _WORDS if re.search(pattern, text)), None)


def _by_count(text: str, said: date) -> date | None:
    found = re.search(rf"\b{_COUNT} (day|week)s? ago\b", text)
    ahead = re.search(rf"\bin {_COUNT} (day|week)s?\b(?! of)", text)
    for match, sign in ((found, -1), (ahead, 1)):
        if match:
            count = int(match[1]) if match[1].isdigit() else _COUNTS[match[1]]
            return said + timedelta(sign * count * (7 if match[2] == "week" else 1))
    found = re.search(rf"{_NUMERAL}(天|日|周|个?星期|个?礼拜)(?:之|以)?(前|后)", text)
    if found and (count := numeral(found[1])) is not None:
        return said + timedelta((1 if found[3] == "后" else -1) * count * (1 if found[2] in "天日" else 7))
    return None


def _by_date(text: str, said: date) -> date | None:
    """A day and a month without a year: the nearest such day on the side that the verb points to."""
    month = day = 0
    found = re.search(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {_MONTH}(?!\w)", text)
    if found:
        day, month = int(found[1]), _MONTHS.index(found[2][:3]) + 1
    elif found := re.search(rf"\b{_MONTH} (?:the )?(\d{{1,2}})(?:st|nd|rd|th)?\b(?!:)", text):
        month, day = _MONTHS.index(found[1][:3]) + 1, int(found[2])
    elif found := re.search(
        r"([0-9]{1,2}|[一二三四五六七八九十]{1,2})月([0-9]{1,2}|[一二三四五六七八九十]{1,3})[日号]", text
    ):
        month, day = numeral(found[1]) or 0, numeral(found[2]) or 0
    if not month:
        return None
    year = 1 if re.search(r"明年|next year", text) else -1 if re.search(r"去年|last year", text) else 0
    if year or re.search(r"今年|this year", text):
        return _date(said.year + year, month, day)
    past = _is_past(text)
    days = [d for y in (-1, 0, 1) if (d := _date(said.year + y, month, day)) and ((d <= said) if past else (d >= said))]
    return (max(days) if past else min(days)) if days else None


def _by_weekday(text: str, said: date) -> date | None:
    monday = said - timedelta(said.weekday())
    found = re.search(rf"\b(last|this|next|coming)? ?\b{_DAY}\b(?! (?:to|through)\b)", text)
    if found and not re.search(rf"\bevery {_DAY}|{_DAY}s\b", text):
        weekday, which = _DAYS.index(found[2][:3]), found[1] or ""
        if which == "next":
            return monday + timedelta(7 + weekday)
        if which == "last" or (not which and _is_past(text)):
            return said - timedelta((said.weekday() - weekday - 1) % 7 + 1)
        return said + timedelta((weekday - said.weekday()) % 7)
    found = re.search(r"(上上|上|这|本|下下|下)?个?(?:周|星期|礼拜)([一二三四五六日天])", text)
    if found and not re.search(r"每个?(?:周|星期|礼拜)", text):
        weeks = {"上上": -2, "上": -1, "这": 0, "本": 0, "下": 1, "下下": 2}.get(found[1] or "")
        day = monday + timedelta(_WEEKDAYS[found[2]])
        if weeks is not None:
            return day + timedelta(7 * weeks)
        return day + timedelta(-7 if _is_past(text) and day > said else 7 if not _is_past(text) and day < said else 0)
    return None


def _is_past(text: str) -> bool:
    return bool(_PAST.search(text)) and not _FUTURE.search(text)


_RULES: tuple[Callable[[str, date], date | None], ...] = (_by_count, _by_date, _by_word, _by_weekday)
