"""What a model writes, on a terminal: Markdown block by block, and a part of the screen that moves.

Nothing that a model writes drives the terminal or hides: control and direction characters are shown as such, HTML stays
text, links and pictures show where they lead. Finished things are printed once and scroll away; below them is what
still grows, redrawn from its first line that changed, in one write: nothing flickers and nothing is drawn twice.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.padding import Padding
from rich.segment import Segment
from rich.syntax import Syntax
from rich.text import Text

from lamina.cli.say import visible

STYLE = re.compile(r"\x1b\[[0-9;]*m")
HIDE_CURSOR, SHOW_CURSOR, ERASE = "\x1b[?25l", "\x1b[?25h", "\x1b[J"
BEGIN_UPDATE, END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"
"""Terminals that know them show everything between them at once; the others ignore them."""
MAX_COLUMNS = 100
THEME = "ansi_dark"
"""The terminal's own colours, so that code is readable on dark and on light ground."""
HEADINGS = {"h1": "bold underline", "h2": "bold", "h3": "bold"}
MAX_CODE_CHARACTERS = 100_000
"""Characters of one code block that are coloured."""


def _parser() -> MarkdownIt:
    """No HTML, which would vanish; no entities and references, which hide characters and addresses."""
    made = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    return made.disable(["entity", "reference", "html_block", "html_inline"])


def clean_text(text: str) -> str:
    return visible(text.replace("\r\n", "\n").replace("\t", "    "))


def split_blocks(text: str) -> list[str]:
    """The text cut where its blocks begin: paragraphs, lists, tables, code. Joined they are the text again."""
    lines = text.split("\n")
    starts = [token.map[0] for token in _parser().parse(text) if token.level == 0 and token.map and token.nesting >= 0]
    cuts = [0, *starts[1:], len(lines)]
    pieces = ["\n".join([*lines[begin:end], ""]) for begin, end in pairwise(cuts)]
    return [*pieces[:-1], pieces[-1].removesuffix("\n")]


def finished_blocks(text: str) -> list[str]:
    """The blocks at the front that nothing can change any more: all but the last one.

    Only whole lines count: half of one may still become anything.
    """
    whole = text[: text.rfind("\n") + 1]
    return split_blocks(whole)[:-1] if whole else []


def last_lines(text: str, lines: int) -> str:
    """The end of a block that still grows, as much as a screen can show; a code block keeps its fence."""
    rows = text.split("\n")
    if len(rows) <= lines:
        return text
    fence = rows[0].lstrip()
    head = [rows[0]] if fence.startswith(("```", "~~~")) else []
    return "\n".join([*head, *rows[-lines:]])


class _Heading(Heading):
    LEVEL_ALIGN: ClassVar[dict[str, Any]] = {}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text.copy()
        text.stylize(HEADINGS.get(self.tag, "italic"))
        yield text


class _Code(CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip("\n")
        lexer = self.lexer_name if len(code) <= MAX_CODE_CHARACTERS else "text"
        yield Padding(Syntax(code, lexer, theme=THEME, word_wrap=True, background_color="default"), (0, 0, 0, 2))


class _Safe(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements, "heading_open": _Heading, "fence": _Code, "code_block": _Code,
    }  # fmt: skip

    def __init__(self, text: str) -> None:
        super().__init__("", code_theme=THEME, hyperlinks=False)
        self.parsed = list(_plain_links(_parser().parse(text)))


def _plain_links(tokens: Sequence[Token]) -> Iterator[Token]:
    """Links and pictures as words, each followed by its address."""
    opened: list[tuple[str, str]] = []
    words = ""
    for token in tokens:
        if token.type == "link_open":
            opened.append((str(token.attrs.get("href", "")), words))
            words = ""
        elif token.type == "link_close":
            address, before = opened.pop() if opened else ("", "")
            if address and address != words:
                yield Token("text", "", 0, content=f" ({address})")
            words = before + words
        elif token.type == "image":
            yield Token("text", "", 0, content=f"🖼 {token.content} ({token.attrs.get('src', '')})")
        else:
            if token.type == "softbreak":  # models end lines where they mean it
                token.type = "hardbreak"
            words += token.content if token.type in ("text", "code_inline") else ""
            if token.children:
                token.children = list(_plain_links(token.children))
            yield token


class AnswerMarkdown:
    """Text of a model, drawn as Markdown. Whatever it is, only visible characters and colours come out."""

    def __init__(self, text: str) -> None:
        self.text = clean_text(text).strip("\n")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        try:
            lines = console.render_lines(_Safe(self.text), options, pad=False)
        except Exception:  # a form that the renderer does not know must not cost the answer
            lines = console.render_lines(Text(self.text), options, pad=False)
        blank = [not "".join(segment.text for segment in line).strip() for line in lines]
        if not all(blank):  # the caller decides about blank lines around it
            lines = lines[blank.index(False) : len(lines) - blank[::-1].index(False)]
        for line in lines:
            yield from _make_harmless(line)
            yield Segment.line()


def _make_harmless(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Nothing that a terminal obeys: no control codes, no hidden links, no characters that hide."""
    for segment in segments:
        if not segment.control:
            style = segment.style
            bare = style.update_link(None) if style and style.link else style
            yield Segment(visible(segment.text), bare)


class Screen:
    """A console whose last lines can be drawn again."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._lines: list[str] = []
        self._hidden = False

    @property
    def width(self) -> int:
        """Columns of what is read: long lines tire."""
        return max(20, min(self.console.width, MAX_COLUMNS))

    @property
    def height(self) -> int:
        """Lines that may move: those of the screen, without one for what is above."""
        return max(3, self.console.height - 2)

    def print(self, *parts: Any) -> None:
        """Above the moving part, for good."""
        text = "".join(self._render(part) for part in parts)
        moving, self._lines = self._lines, []
        out = self._move_back(moving, 0) + text
        self._write(out + "\n".join(moving))
        self._lines = moving

    def draw(self, part: Any = None) -> None:
        """The moving part; None takes it away."""
        lines = [] if part is None else self._render(part).removesuffix("\n").split("\n")[-self.height :]
        old = self._lines
        same = 0
        while same < min(len(lines), len(old)) and lines[same] == old[same]:
            same += 1
        if same == len(lines) == len(old):
            return
        grown = same == len(old)
        out = ("\n" if old else "") if grown else self._move_back(old, same)
        hide = "" if self._hidden or not lines else HIDE_CURSOR
        show = SHOW_CURSOR if self._hidden and not lines else ""
        self._hidden = bool(lines)
        if (
            not grown and same == len(lines) and lines
        ):  # only lines at the end go: move to the end of the last that stays
            out = self._move_back(old, same - 1) + lines[-1]
        self._write(hide + out + "\n".join(lines[same:]) + show)
        self._lines = lines

    def _move_back(self, lines: list[str], keep: int) -> str:
        """To the first column of the line after `keep`, with everything from there on erased."""
        if len(lines) <= keep:
            return ""
        rows = sum(self._count_rows(line) for line in lines[keep:])
        return "\r" + (f"\x1b[{rows - 1}A" if rows > 1 else "") + ERASE

    def _count_rows(self, line: str) -> int:
        """How many rows a line takes; more than one after the window was made narrower."""
        return max(1, -(-cell_len(STYLE.sub("", line)) // self.console.width))

    def _render(self, part: Any) -> str:
        with self.console.capture() as captured:
            self.console.print(part, width=self.width, overflow="fold")
        return "\n".join(_trim_line(line) for line in captured.get().split("\n"))

    def _write(self, text: str) -> None:
        if text:
            self.console.file.write(f"{BEGIN_UPDATE}{text}{END_UPDATE}" if self.console.is_terminal else text)
            self.console.file.flush()


def _trim_line(line: str) -> str:
    """Without blanks at the end, which only make copied text ugly."""
    return line if line.endswith("m") else line.rstrip(" ")
