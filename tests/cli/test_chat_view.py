"""What people see of a turn: event lists in, a terminal's screen out."""

import asyncio
import io
import json
import random
import re
from collections.abc import AsyncIterator, Sequence

import pyte
import pytest
from rich.console import Console
from rich.padding import Padding
from rich.text import Text as RichText

from lamina.cli.chat_view import TurnView, result_lines
from lamina.cli.say import Say, visible
from lamina.cli.screen import Screen, finished_blocks, last_lines, split_blocks
from lamina.text.messages import Phrase
from lamina.types import Began, Decision, Ended, Notice, Text, ToolCallEvent, ToolResult, TurnEvent, Usage
from tests.cli.terminal import shown_lines

BEGAN, COMPLETE = Began("turn1", "3f2a9c1d77", "answer1"), Ended("complete")
ANSWER = """# Caches

A **prompt cache** keeps what a model has *already read*.

1. first
2. second
   - inside

| layer | tokens |
|---|---:|
| identity | 120 |

```python
def f(x: int) -> int:
    return x
```

> quoted

中文也可以，双宽字符也能正确换行，不会错位，也不会丢字。

The end
"""
OURS = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[hl]|\?2026[hl]|[0-9]+A|J)|[\r\n]")
"""What the view itself may send to a terminal besides characters."""


class Page:
    """A terminal in memory."""

    def __init__(self, width: int = 80, height: int = 24) -> None:
        self.file = io.StringIO()
        self.screen = Screen(Console(file=self.file, force_terminal=True, width=width, height=height, highlight=False,
                                     color_system="256", legacy_windows=False))  # fmt: skip
        self._size = (width, height)

    @property
    def raw(self) -> str:
        return self.file.getvalue()

    @property
    def lines(self) -> list[str]:
        screen = pyte.HistoryScreen(*self._size, history=10_000)
        stream = pyte.Stream(screen)
        stream.feed(self.raw.replace("\n", "\r\n"))
        return shown_lines(screen)

    @property
    def text(self) -> str:
        return "\n".join(self.lines).strip("\n")


def follow(page: Page, events: Sequence[TurnEvent], *, lang: str = "en", draws: bool = True) -> TurnView:
    """Every event is taken and what moves is drawn after each, as the clock would do it now and then."""

    async def stream() -> AsyncIterator[TurnEvent]:
        for event in events:
            yield event
            if draws:
                view.draw()

    async def run() -> TurnView:
        await view.follow(stream())
        return view

    ticks = iter(range(1_000_000))
    view = TurnView(page.screen, Say(lang), clock=lambda: next(ticks) / 100)
    return asyncio.run(run())


def pieces(text: str, seed: int) -> list[TurnEvent]:
    """The text in random pieces, from single characters to lines."""
    chance, events, place = random.Random(seed), list[TurnEvent](), 0
    while place < len(text):
        size = chance.choice((1, 2, 3, 7, 20, 60))
        events.append(Text(text[place : place + size]))
        place += size
    return events


@pytest.mark.parametrize("seed", range(12))
def test_however_an_answer_is_cut_into_pieces_it_looks_the_same_at_the_end(seed: int) -> None:
    whole, cut = Page(), Page()
    follow(whole, [BEGAN, Text(ANSWER), COMPLETE], draws=False)
    text = ANSWER.replace("\n", "\r\n") if seed % 3 == 0 else ANSWER
    follow(cut, [BEGAN, *pieces(text, seed), COMPLETE])
    assert re.sub(r"\d+\.\d s", "", cut.text) == re.sub(r"\d+\.\d s", "", whole.text)


def test_an_answer_is_markdown_and_chinese_keeps_its_width() -> None:
    page = Page(width=40)
    follow(page, [BEGAN, Text(ANSWER), COMPLETE])
    assert "  Caches" in page.lines
    assert "**" not in page.text
    assert "   1 first" in page.lines
    assert "    def f(x: int) -> int:" in page.lines
    chinese = [line.strip() for line in page.lines if "\u4e00" <= line.strip()[:1] <= "\u9fff"]
    assert "".join(chinese) == "中文也可以，双宽字符也能正确换行，不会错位，也不会丢字。"
    assert all(sum(2 if ord(c) > 0x2E80 else 1 for c in line) <= 40 for line in page.lines)


def test_a_block_that_is_taller_than_the_screen_is_there_once_and_whole() -> None:
    page = Page(height=12)
    code = "```text\n" + "".join(f"row {number:03}\n" for number in range(120)) + "```\n\nafter"
    follow(page, [BEGAN, *pieces(code, 5), COMPLETE])
    rows = [line.strip() for line in page.lines if line.strip().startswith("row ")]
    assert rows == [f"row {number:03}" for number in range(120)]


@pytest.mark.parametrize(
    "text",
    [
        "\x1b]0;owned\x07\x1b[2J\x1b[31mred",
        "\u202egnp.exe \u2066x\u2069 a\u200bb \U000e0041",
        "&#27;[31m &#x202e; &lrm; &#13;",
        "`\x1b[8m` and **\x9b31m**",
        "```\n\x1b[2J\x08\x08\n```\n",
        "# \x1b[1A\x1b[2K title",
        "| a |\n|---|\n| \x1b[2J |\n",
        "a\rb\x0bc\x0cd\x85e\u2028f",
    ],
)
def test_text_of_a_model_never_drives_the_terminal(text: str) -> None:
    page = Page()
    call = ToolCallEvent("1", f"tool{text}", text)
    result = ToolResult("1", "tool", text, "failed", 0.1)
    follow(
        page,
        [BEGAN, Text(text), call, result, Notice("limit", Phrase(text)), Ended("failed", Phrase(text), Phrase(text))],
    )
    left = OURS.sub("", page.raw)
    assert [c for c in left if not (c.isprintable() or c == "⟨")] == []
    assert "\x1b]8" not in page.raw


def test_links_and_pictures_show_where_they_lead_and_html_is_text() -> None:
    page = Page()
    text = "[bank](https://evil.example/x) ![cat](http://e.example/t.png?d=1) <https://a.example/b> <b>bold</b>\n\n"
    follow(page, [BEGAN, Text(text + "<script>alert(1)</script>\n\n[ref]: http://hidden.example/\n"), COMPLETE])
    for shown in ("bank (https://evil.example/x)", "cat (http://e.example/t.png?d=1)", "<b>bold</b>", "alert(1)",
                  "http://hidden.example/"):  # fmt: skip
        assert shown in page.text.replace("\n  ", " "), shown
    assert page.text.count("https://a.example/b") == 1


def test_a_tool_call_is_one_line_with_its_result_folded() -> None:
    page = Page()
    output = "\n".join(f"line {number}" for number in range(10))
    call = ToolCallEvent("1", "read_file", '{"path": "README.md"}')
    view = follow(page, [BEGAN, Text("I look."), call, ToolResult("1", "read_file", output, "done", 0.12), COMPLETE])
    assert "  ✓ read_file  README.md · 0.1 s" in page.lines
    assert "    │ line 2" in page.lines
    assert "    └ 7 more lines · /tools" in page.lines
    assert "line 3" not in page.text
    assert view.seen.calls[0][1] is not None


@pytest.mark.parametrize(("state", "mark"), [("failed", "✗"), ("refused", "⊘"), ("blocked", "⊘")])
def test_a_call_that_did_not_run_says_so(state: str, mark: str) -> None:
    page = Page()
    call = ToolCallEvent("1", "bash", '{"command": "rm -r x", "timeout": 3}')
    follow(page, [BEGAN, call, ToolResult("1", "bash", "no", state, 0.0), COMPLETE])  # pyright: ignore[reportArgumentType]
    assert f"  {mark} bash  command=rm -r x timeout=3 · {state} · 0.0 s" in page.lines


def test_the_spinner_counts_until_the_first_words_and_a_running_call_is_named() -> None:
    page, now = Page(), [0.0]
    view = TurnView(page.screen, Say("en"), clock=lambda: now[0])
    view.draw()
    assert "thinking 0 s" in page.text
    now[0] = 7.0
    view.draw()
    assert "thinking 7 s · Ctrl-C interrupts" in page.text
    view.take(Text("Hello"))
    view.draw()
    assert "thinking" not in page.text
    view.take(ToolCallEvent("1", "bash", '{"command": "sleep 9"}'))
    now[0] = 9.0
    view.draw()
    assert "bash  sleep 9 · 2 s" in page.text


def test_figures_stand_below_the_answer_and_sum_up_all_requests() -> None:
    page = Page()
    follow(page, [BEGAN, Usage(1_000, 500, 10), Text("Hi"), Usage(1_000, 1_000, 20), COMPLETE])
    assert re.search(r"^  2,000 tokens in \(75% cached\) · 30 out · \d+\.\d s · 3f2a9c1d$", page.text, re.MULTILINE), (
        page.text
    )


def test_both_languages_and_why_a_turn_is_not_complete() -> None:
    page = Page()
    follow(
        page,
        [BEGAN, Text("Half"), Usage(9, 0, 1), Ended("failed", Phrase("no answer"), Phrase("try later"))],
        lang="zh",
    )
    assert "✗ 本轮失败：no answer" in page.text
    assert "建议：try later" in page.text
    assert "输入 9 token · 输出 1" in page.text
    other = Page()
    follow(other, [BEGAN, Text("Half"), Ended("interrupted", Phrase("cut"))])
    assert "✗ the answer was interrupted; what arrived is saved: cut" in other.text


def ask(page: Page, answer: bool | BaseException, decision: Decision) -> tuple[bool | None, TurnView]:
    async def yes(question: str) -> bool:
        assert "[y/N]" in question
        view.draw()  # while people are asked nothing moves
        assert "thinking" not in page.lines[-1]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    view = TurnView(page.screen, Say("en"), yes=yes)
    view.take(Text("I will clean up."))
    call = ToolCallEvent("1", "bash", '{"command": "x"}')
    return asyncio.run(view.ask(call, decision)), view


def test_the_question_shows_what_will_run_to_the_last_byte_and_the_reason() -> None:
    page = Page()
    shows = "rm -rf build\n" + "\n".join(f"echo {n}" for n in range(30)) + "\n# \x1b[8m hidden"
    said, _ = ask(page, True, Decision("confirm", "rm removes files", shows))
    assert said
    assert "I will clean up." in page.text
    assert "bash wants to run:" in page.text
    assert all(f"    │ echo {n}" in page.lines for n in range(30))
    assert "    │ # ⟨U+001B⟩[8m hidden" in page.lines
    assert "    rm removes files" in page.lines


SLY = (
    "echo " + "x" * 200 + "    rm removes files",
    "echo 一二三四五六七八九十" * 12,
    "echo a        " * 9 + "this is harmless: it only reads        " * 3,
    "echo é̈à½→ " * 30,
    "\techo\t\tone\r\n\necho two\x0bthree\x85four\u2028five",
)


@pytest.mark.parametrize("width", [80, 40, 24])
@pytest.mark.parametrize("shows", SLY)
def test_T3_no_row_of_what_will_run_is_without_its_gutter(shows: str, width: int) -> None:
    page = Page(width=width)
    ask(page, False, Decision("confirm", "OUR REASON", shows))
    rows = page.lines[next(n for n, line in enumerate(page.lines) if "wants" in line) + 1 :]
    rows = rows[: next(n for n, line in enumerate(rows) if line == "    OUR REASON")]
    assert all(row.startswith("    │") for row in rows), rows
    shown = "".join(row.removeprefix("    │").removeprefix(" ") for row in rows)
    assert shown.replace(" ", "") == re.sub(r"\s", "", visible(shows.replace("\r\n", ""))), "to the last character"


@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("text", SLY)
def test_T3_no_row_of_what_a_tool_said_is_without_its_gutter(text: str, full: bool, width: int) -> None:
    page, call = Page(width=width), ToolCallEvent("1", "bash", json.dumps({"command": text}))
    page.screen.print(
        result_lines(Say("en"), call, ToolResult("1", "bash", text, "failed", 0.1), full=full, width=width)
    )
    head, *rows = page.text.split("\n")
    assert head.endswith("failed · 0.1 s"), "a call is one row"
    assert rows
    assert all(row.startswith(("    │", "    └ ")) for row in rows), rows


@pytest.mark.planted("a gutter that leaves wrapped rows alone")
def test_T3_a_gutter_that_leaves_wrapped_rows_alone_is_caught() -> None:
    page = Page(width=40)
    page.screen.print(Padding(RichText(f"│ {SLY[0]}"), (0, 0, 0, 4)))
    assert any(not row.startswith("    │") for row in page.text.split("\n"))


def test_no_is_no_and_ctrl_c_at_the_question_is_no_and_stops_the_turn() -> None:
    decision = Decision("confirm", "", "x")
    assert ask(Page(), False, decision)[0] is False
    said, view = ask(Page(), KeyboardInterrupt(), decision)
    assert (said, view.stopped) == (False, True)
    without = TurnView(Page().screen, Say("en"))
    assert asyncio.run(without.ask(ToolCallEvent("1", "bash", "{}"), decision)) is None, "there is nobody to ask"


def test_blocks_are_finished_when_nothing_can_change_them() -> None:
    assert finished_blocks("one") == finished_blocks("one\n") == finished_blocks("one\n\n") == []
    assert finished_blocks("one\n\ntw") == [], "half a line may become anything"
    assert finished_blocks("one\n\ntwo\n") == ["one\n\n"]
    assert finished_blocks("1. a\n\n2") == [], "this may be the next item"
    assert finished_blocks("```\ncode\n\nmore\n") == [], "the block is open"
    assert last_lines("```py\n" + "x\n" * 50, 5).startswith("```py\n")


@pytest.mark.parametrize("seed", range(6))
def test_finished_blocks_are_the_front_of_the_text_and_never_lose_a_character(seed: int) -> None:
    text, kept, rest = ANSWER * 3, "", ""
    for event in pieces(text, seed):
        assert isinstance(event, Text)
        rest += event.text
        done = "".join(finished_blocks(rest))
        assert rest.startswith(done)
        kept, rest = kept + done, rest[len(done) :]
    assert kept + rest == text == "".join(split_blocks(text))
    assert kept
