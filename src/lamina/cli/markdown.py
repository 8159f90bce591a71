"""An answer's Markdown on a terminal, block by block. What a model writes never drives the terminal and never hides:
control and direction characters are shown as such, HTML stays text, links and pictures show where they lead.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.padding import Padding
from rich.segment import Segment
from rich.syntax import Syntax
from rich.text import Text

from lamina.cli.say import visible

THEME = "ansi_dark"
"""The terminal's own colours, so that code is readable on dark and on light ground."""
HEADINGS = {"h1": "bold underline", "h2": "bold", "h3": "bold"}
MAX_CODE_CHARACTERS = 100_000
"""Characters of one code block that are coloured."""


def parser() -> MarkdownIt:
    """No HTML, which would vanish; no entities and references, which hide characters and addresses."""
    made = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    return made.disable(["entity", "reference", "html_block", "html_inline"])


def clean(text: str) -> str:
    return visible(text.replace("\r\n", "\n").replace("\t", "    "))


def blocks(text: str) -> list[str]:
    """The text cut where its blocks begin: paragraphs, lists, tables, code. Joined they are the text again."""
    lines = text.split("\n")
    starts = [token.map[0] for token in parser().parse(text) if token.level == 0 and token.map and token.nesting >= 0]
    cuts = [0, *starts[1:], len(lines)]
    pieces = ["\n".join([*lines[begin:end], ""]) for begin, end in pairwise(cuts)]
    return [*pieces[:-1], pieces[-1].removesuffix("\n")]


def finished(text: str) -> list[str]:
    """The blocks at the front that nothing can change any more: all but the last one.

    Only whole lines count: half of one may still become anything.
    """
    whole = text[: text.rfind("\n") + 1]
    return blocks(whole)[:-1] if whole else []


def tail(text: str, lines: int) -> str:
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
        self.parsed = list(_plain_links(parser().parse(text)))


def _plain_links(tokens: Sequence[Token]) -> Iterator[Token]:
    """Links and pictures as words with their address behind them."""
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


class Answer:
    """Text of a model, drawn as Markdown. Whatever it is, only visible characters and colours come out."""

    def __init__(self, text: str) -> None:
        self.text = clean(text).strip("\n")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        try:
            lines = console.render_lines(_Safe(self.text), options, pad=False)
        except Exception:  # a form that the renderer does not know must not cost the answer
            lines = console.render_lines(Text(self.text), options, pad=False)
        blank = [not "".join(segment.text for segment in line).strip() for line in lines]
        if not all(blank):  # what surrounds it decides how far it stands apart
            lines = lines[blank.index(False) : len(lines) - blank[::-1].index(False)]
        for line in lines:
            yield from harmless(line)
            yield Segment.line()


def harmless(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Nothing that a terminal obeys: no control codes, no links behind words, no characters that hide."""
    for segment in segments:
        if not segment.control:
            style = segment.style
            bare = style.update_link(None) if style and style.link else style
            yield Segment(visible(segment.text), bare)
