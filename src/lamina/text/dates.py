"""What a text says about days: dates in English and Chinese, and words like "last week" resolved against a given day.

Each day, week, month or year becomes a span of days, so that "last summer" meets a day in July. No clock: the day is
handed in.
"""

import re
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta

from lamina.text.terms import read_numeral

DaySpan = tuple[date, date]
"""From the first day to the day after the last one."""


def day_of(stamp: float) -> date:
    """The day of a time stamp, in UTC."""
    return datetime.fromtimestamp(stamp, UTC).date()


def _numbered(text: str, first: int = 0) -> dict[str, int]:
    """Names to numbers: lines count up, words of one line are the same."""
    return {name: n for n, names in enumerate(text.split(","), start=first) for name in names.split()}


_MONTHS = _numbered(
    "january jan,february feb,march mar,april apr,may,june jun,july jul,august aug,september sept sep,"
    "october oct,november nov,december dec",
    first=1,
)
_WEEKDAYS = _numbered("monday,tuesday,wednesday,thursday,friday,saturday,sunday")
_SEASONS = {"spring": 3, "summer": 6, "fall": 9, "autumn": 9, "winter": 12, "春": 3, "夏": 6, "秋": 9, "冬": 12}
_COUNTS = _numbered("zero,one a an,two couple,three few,four several,five,six,seven,eight,nine,ten,eleven,twelve")
_NEAR = {
    "the day before yesterday": -2, "yesterday": -1, "today": 0, "tonight": 0, "tomorrow": 1,
    "the day after tomorrow": 2, "大前": -3, "前": -2, "昨": -1, "今": 0, "当": 0, "明": 1, "后": 2, "大后": 3,
}  # fmt: skip
_YEARS = {"前": -2, "去": -1, "今": 0, "本": 0, "明": 1, "后": 2}
_SHIFT = {
    "last": -1, "past": -1, "previous": -1, "this": 0, "next": 1, "coming": 1,
    "上上": -2, "上": -1, "这": 0, "本": 0, "下": 1, "下下": 2,
}  # fmt: skip


def _any(names: Iterable[str]) -> str:
    return "|".join(sorted(names, key=len, reverse=True))


_YEAR = r"(?:19|20)\d\d"
_MONTH = _any(_MONTHS)
_LATIN_SEASON = "spring|summer|fall|autumn|winter"
_UNIT = rf"week(?:end)?|month|year|night|{_any(_WEEKDAYS)}|{_MONTH}|{_LATIN_SEASON}"
_COUNT = rf"\d{{1,3}}|{_any(_COUNTS)}"
_ISO = rf"(?<!\d)(?P<iy>{_YEAR})[-/.](?P<im>\d{{1,2}})(?:[-/.](?P<id>\d{{1,2}}))?(?!\d)"
_ENGLISH_RULES = {
    "iso": _ISO,
    "english": rf"\b(?P<em>{_MONTH})\b\.?(?:\s+(?P<ed>\d{{1,2}})(?:st|nd|rd|th)?(?![\d:]))?"
    rf"(?:,?\s+(?:of\s+)?(?P<ey>{_YEAR}))?",
    "british": rf"\b(?P<bd>\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?(?P<bm>{_MONTH})\b\.?(?:,?\s+(?P<by>{_YEAR}))?",
    "ago": rf"\b(?P<an>{_COUNT})(?:\s+of)?\s+(?P<au>day|week|month|year)s?\s+(?P<aw>ago|before|earlier|later|from now)",
    "shift": rf"\b(?P<sw>last|past|previous|this|next|coming)\s+(?P<su>{_UNIT})\b",
    "near": r"\b(?P<nw>the day before yesterday|the day after tomorrow|yesterday|today|tonight|tomorrow)\b",
    "year": rf"\b(?:in|of|year|since|during)\s+(?P<yy>{_YEAR})\b",
}
_CHINESE_DIGIT = "[一二三四五六七八九]"
_CHINESE_MONTH = f"1[0-2]|0?[1-9]|十[一二]?|{_CHINESE_DIGIT}"
_CHINESE_DAY = f"3[01]|[12][0-9]|0?[1-9]|[二三]?十{_CHINESE_DIGIT}?|{_CHINESE_DIGIT}"
_CHINESE_RULES = {
    "chinese": rf"(?:(?P<cy>{_YEAR}|[一二〇零九]{{1}}[〇零一二三四五六七八九]{{3}})\s?年|(?P<cr>[前去今本明后])年)?的?"
    rf"(?<!个)(?P<cm>{_CHINESE_MONTH})\s?月份?(?:(?P<cd>{_CHINESE_DAY})\s?[日号])?",
    "cyear": r"(?P<ry>[前去今本明后])年(?:的?(?P<rs>[春夏秋冬])[天季])?",
    "year": rf"(?P<yy>{_YEAR})\s?年",
    "cday": r"(?P<dw>大前|大后|[前昨今当明后])[天日晚早](?![前后])",
    "cweek": r"(?P<ww>上上|下下|[上下这本])个?(?:周|星期|礼拜)(?P<wd>[一二三四五六日天末])?",
    "cmonth": r"(?P<mw>上上|下下|[上下这本])个?月",
    "cago": r"(?P<gn>[0-9零〇一二两三四五六七八九十]{1,4})\s?(?P<gu>天|日|周|个星期|个礼拜|个月|年)"
    r"(?P<gw>[之以]?[前后])",
}


def _either(rules: dict[str, str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?P<{name}>{rule})" for name, rule in rules.items()))


_ENGLISH, _CHINESE = _either(_ENGLISH_RULES), _either(_CHINESE_RULES)
_ENGLISH_HINT = re.compile(
    r"(?:19|20)\d\d|day|week|month|year|night|tomorrow|spring|summer|fall|autumn|winter"
    r"|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
)
_CHINESE_HINT = re.compile(r"(?:19|20)\d\d|[年月周天日晚早]|星期|礼拜")
"""Cheap to search: a text without any of it says nothing about days."""


def find_day_spans(text: str, at: date | None = None) -> list[DaySpan]:
    """The days, weeks, months and years that a casefolded text names; relative ones only when `at` is given."""
    found = list(_ENGLISH.finditer(text)) if _ENGLISH_HINT.search(text) else []
    if not text.isascii() and _CHINESE_HINT.search(text):
        found += _CHINESE.finditer(text)
    return [span for match in found if (span := _span(match, at)) is not None]


def _span(found: re.Match[str], at: date | None) -> DaySpan | None:
    try:
        return _READERS[found.lastgroup or ""](found, at)
    except (ValueError, OverflowError):  # 31 February, the year 0
        return None


def _month(year: int, month: int) -> DaySpan:
    year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
    return date(year, month, 1), date(year + month // 12, month % 12 + 1, 1)


def _year(year: int) -> DaySpan:
    return date(year, 1, 1), date(year + 1, 1, 1)


def _days(first: date, count: int = 1) -> DaySpan:
    return first, first + timedelta(days=count)


def _week(at: date, shift: int, first: int = 0, count: int = 7) -> DaySpan:
    monday = at - timedelta(days=at.weekday() - 7 * shift)
    return _days(monday + timedelta(days=first), count)


def _named(year: str | None, month: int, day: str | None, at: date | None) -> DaySpan:
    """A month, or a day of it; without a year the one that is nearest to `at`, or the year 1 for any."""
    if year is None and at is not None:
        chosen = min((at.year - 1, at.year, at.year + 1), key=lambda y: abs((date(y, month, 15) - at).days))
    else:
        chosen = int(year) if year else 1
    return _days(date(chosen, month, int(day))) if day else _month(chosen, month)


def _number(text: str) -> int:
    found = _COUNTS.get(text, read_numeral(text))
    if found is None:
        raise ValueError(text)
    return found


def _moved(at: date, unit: str, count: int) -> DaySpan:
    if unit.startswith(("day", "天", "日")):
        return _days(at + timedelta(days=count))
    if unit.startswith(("week", "周", "个星", "个礼")):
        return _week(at, count)
    if unit.startswith(("month", "个月")):
        return _month(at.year, at.month + count)
    return _year(at.year + count)


def _shifted(at: date, word: str, unit: str) -> DaySpan:
    shift = _SHIFT[word]
    if unit == "week":
        return _week(at, shift)
    if unit == "weekend":
        return _week(at, shift, 5, 2)
    if unit == "night":
        return _days(at + timedelta(days=shift))
    if unit in _WEEKDAYS:
        ahead = (_WEEKDAYS[unit] - at.weekday()) % 7
        if shift == 0:
            return _week(at, 0, _WEEKDAYS[unit], 1)
        return _days(at + timedelta(days=(ahead or 7) if shift > 0 else ahead - 7))
    if unit in _MONTHS:
        month = _MONTHS[unit]
        year = at.year + (shift if (shift > 0 and month <= at.month) or (shift < 0 and month >= at.month) else 0)
        return _month(year, month)
    if unit in _SEASONS:
        return _season(at.year + shift, _SEASONS[unit])
    return _moved(at, unit, shift)


def _season(year: int, month: int) -> DaySpan:
    return _month(year, month)[0], _month(year, month + 2)[1]


def _english(m: re.Match[str], at: date | None) -> DaySpan | None:
    if m["em"] in ("may", "mar", "march") and not (m["ed"] or m["ey"] or _after_in(m)):
        return None
    return _named(m["ey"], _MONTHS[m["em"]], m["ed"], at)


def _after_in(m: re.Match[str]) -> bool:
    return m.string[: m.start()].rstrip().endswith((" in", " of", "since", "during", "last", "this", "next"))


def _chinese(m: re.Match[str], at: date | None) -> DaySpan | None:
    month = _number(m["cm"])
    day = str(_number(m["cd"])) if m["cd"] else None
    if m["cr"]:
        if at is None:
            return None
        return _named(str(at.year + _YEARS[m["cr"]]), month, day, at)
    year = None if m["cy"] is None else str(_number(m["cy"]))
    return _named(year, month, day, at)


def _chinese_week(m: re.Match[str], at: date) -> DaySpan:
    shift, day = _SHIFT[m["ww"]], m["wd"]
    if day is None:
        return _week(at, shift)
    return _week(at, shift, 5, 2) if day == "末" else _week(at, shift, "一二三四五六日".find(day) % 7, 1)


def _chinese_year(m: re.Match[str], at: date) -> DaySpan:
    year = at.year + _YEARS[m["ry"]]
    return _season(year, _SEASONS[m["rs"]]) if m["rs"] else _year(year)


def _ago(m: re.Match[str], at: date) -> DaySpan:
    sign = 1 if m["aw"] in ("later", "from now") else -1
    return _moved(at, m["au"], sign * _number(m["an"]))


def _chinese_ago(m: re.Match[str], at: date) -> DaySpan:
    return _moved(at, m["gu"], _number(m["gn"]) * (-1 if m["gw"].endswith("前") else 1))


def _relative(read: Callable[[re.Match[str], date], DaySpan]) -> Callable[[re.Match[str], date | None], DaySpan | None]:
    return lambda m, at: None if at is None else read(m, at)


_READERS: dict[str, Callable[[re.Match[str], date | None], DaySpan | None]] = {
    "iso": lambda m, _at: _named(m["iy"], int(m["im"]), m["id"], None),
    "english": _english,
    "british": lambda m, at: _named(m["by"], _MONTHS[m["bm"]], m["bd"], at),
    "chinese": _chinese,
    "year": lambda m, _at: _year(int(m["yy"])),
    "ago": _relative(_ago),
    "shift": _relative(lambda m, at: _shifted(at, m["sw"], m["su"])),
    "near": _relative(lambda m, at: _days(at + timedelta(days=_NEAR[m["nw"]]))),
    "cyear": _relative(_chinese_year),
    "cday": _relative(lambda m, at: _days(at + timedelta(days=_NEAR[m["dw"]]))),
    "cweek": _relative(_chinese_week),
    "cmonth": _relative(lambda m, at: _month(at.year, at.month + _SHIFT[m["mw"]])),
    "cago": _relative(_chinese_ago),
}
