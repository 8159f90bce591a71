"""What a text says about days, in English and Chinese, against a Wednesday: 17 May 2023."""

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.text.dates import find_day_spans
from lamina.text.terms import normalize_text

WEDNESDAY = date(2023, 5, 17)


def told(text: str, at: date | None = WEDNESDAY) -> list[str]:
    return [f"{first}+{(last - first).days}" for first, last in find_day_spans(normalize_text(text), at)]


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("yesterday", "2023-05-16+1"), ("tonight", "2023-05-17+1"), ("the day before yesterday", "2023-05-15+1"),
        ("last week", "2023-05-08+7"), ("next month", "2023-06-01+30"), ("last year", "2022-01-01+365"),
        ("last Friday", "2023-05-12+1"), ("this Friday", "2023-05-19+1"), ("next Friday", "2023-05-19+1"),
        ("last weekend", "2023-05-13+2"), ("last summer", "2022-06-01+92"), ("last December", "2022-12-01+31"),
        ("two weeks ago", "2023-05-01+7"), ("a couple of days ago", "2023-05-15+1"), ("3 months ago", "2023-02-01+28"),
        ("on October 13, 2023", "2023-10-13+1"), ("8 May 2023", "2023-05-08+1"), ("31st of July", "2023-07-31+1"),
        ("in June 2022", "2022-06-01+30"), ("2023-05-08", "2023-05-08+1"), ("in 2021", "2021-01-01+365"),
        ("昨天", "2023-05-16+1"), ("前天晚上", "2023-05-15+1"), ("上周", "2023-05-08+7"), ("上周三", "2023-05-10+1"),
        ("下个月", "2023-06-01+30"), ("去年", "2022-01-01+365"), ("去年8月", "2022-08-01+31"),
        ("前年夏天", "2021-06-01+92"),
        ("三天前", "2023-05-14+1"), ("两个月后", "2023-07-01+31"), ("2025年8月11日", "2025-08-11+1"),
        ("8月份", "2023-08-01+31"),
        ("二〇二三年十二月三日", "2023-12-03+1"), ("1月2号", "2023-01-02+1"), ("2024年", "2024-01-01+366"),
    ],
)  # fmt: skip
def test_a_day_is_read(text: str, span: str) -> None:
    assert told(text) == [span]


@pytest.mark.parametrize("text", ["may I come in", "march on", "五个月", "31 February 2023", "a fall", "nothing", ""])
def test_what_names_no_day_gives_none(text: str) -> None:
    assert told(text) == []


def test_relative_days_need_a_day_to_stand_on() -> None:
    assert told("yesterday, 昨天, last week", at=None) == []


def test_a_month_without_a_year_is_the_nearest_or_any() -> None:
    assert told("in December", at=date(2023, 1, 5)) == ["2022-12-01+31"]
    assert told("on 3 December", at=None) == ["0001-12-03+1"]


def test_the_ends_of_time_do_not_fail() -> None:
    assert told("last year, 999 years ago, 前年", at=date(1, 1, 1)) == []
    assert told("next year, 12月31日", at=date(9999, 12, 31)) in ([], ["9999-12-31+1"])


WORDS = "yesterday ago last week 3 may 31 12 年 月 日 上周 三 前 去年 2023 -"
DATED = st.sampled_from(WORDS.split(" "))


@given(st.lists(DATED, max_size=8).map(" ".join) | st.lists(DATED, max_size=8).map("".join) | st.text(max_size=80))
def test_every_span_ends_after_it_begins(text: str) -> None:
    for at in (None, WEDNESDAY, date.min, date.max):
        for first, last in find_day_spans(normalize_text(text), at):
            assert last - first >= timedelta(days=1)
