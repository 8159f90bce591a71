"""A model's Markdown as Telegram's HTML, and long answers in parts that Telegram takes. Pure.

Everything that a model writes is escaped; the only tags are ours. Lengths are UTF-16 units, as Telegram counts.
"""

import html
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

MAX_MESSAGE_UNITS = 4_096
"""UTF-16 units of one message, as Telegram counts them."""
MAX_PART_UNITS = 4_000
"""Units of one part of an answer: the rest is for what is said about it."""
MAX_NESTING = 20
"""How deeply blocks may be nested before the text is shown as it is."""
MAX_FENCE_UNITS = 100
"""Units of the line that opens a code block again."""
TAGS = {"strong": "b", "em": "i", "s": "s"}
FENCE = re.compile(r" {0,3}(`{3,}+|~{3,}+)(.*)")
TABLE = re.compile(r"\|.*\n\|[ :|-]+\n")
SENTENCE = re.compile(r"[。！？；…]+[”」』）]*|[.!?;][)\"']*(?=\s)")


def count_units(text: str) -> int:
    """Its length as Telegram counts: a character beyond the first 65,536 counts twice."""
    return len(text) + sum(c > "\uffff" for c in text)


def cut_to_units(text: str, limit: int) -> str:
    """As much of a text as fits into so many units."""
    for at, c in enumerate(text):
        limit -= 2 if c > "\uffff" else 1
        if limit < 0:
            return text[:at]
    return text


def split_text(text: str, limit: int = MAX_PART_UNITS) -> list[str]:
    """Markdown in parts of at most so many units, cut where people would: paragraph, line, sentence, word.

    What is cut off at the front stays the same as the text grows. A code block that is cut is closed and opened again.
    """
    found: list[str] = []
    rest = text.strip("\n")
    while count_units(rest) > limit:
        room = cut_to_units(rest, limit)
        cut = _find_cut(room, rest)
        opened = _find_open_fence(rest[:cut])
        if opened and opened.at > len(room) // 2:  # better the whole block in the next part
            cut, opened = opened.at, None
        if opened is None:
            found.append(rest[:cut].rstrip())
            rest = rest[cut:].lstrip("\n")
            continue
        cut = _find_line_cut(cut_to_units(rest, limit - count_units(opened.sign) - 1), opened.at + len(opened.line) + 1)
        found.append(f"{rest[:cut].rstrip(chr(10))}\n{opened.sign}")
        rest = f"{cut_to_units(opened.line, MAX_FENCE_UNITS)}\n{rest[cut:].removeprefix(chr(10))}"
    return [*(part for part in found if part), *([rest] if rest.strip() else [])] or [""]


def _find_cut(room: str, rest: str) -> int:
    """Where to cut the text whose front is `room`: the best kind of place in its second half, else the hard end."""
    half = len(room) // 2
    for sign in ("\n\n", "\n"):
        if (at := room.rfind(sign, half)) > 0:
            return at + len(sign)
    ends = [found.end() for found in SENTENCE.finditer(room) if found.end() > half]
    if ends:
        return ends[-1]
    if (at := room.rfind(" ", half)) > 0:
        return at + 1
    at = len(room)
    while at > half and _is_one_sign(rest[at - 1], rest[at : at + 1]):
        at -= 1
    return at


def _find_line_cut(room: str, least: int) -> int:
    """In code only lines are places to cut, where there are any."""
    at = room.rfind("\n", max(least, len(room) // 2))
    return at + 1 if at > 0 else len(room)


def _is_one_sign(before: str, after: str) -> bool:
    """Do these two make one sign together, as accents and many emoji do?"""
    return bool(after) and (
        unicodedata.combining(after) > 0 or "\u200d" in (before, after) or after == "\ufe0f" or "🏻" <= after <= "🏿"
    )


class _Fence(NamedTuple):
    """The line that opens a code block, where it begins, and the sign that closes it."""

    at: int
    line: str
    sign: str


def _find_open_fence(text: str) -> _Fence | None:
    """The code block that is still open at the end of a text."""
    opened: _Fence | None = None
    at = 0
    for line in text.split("\n"):
        if found := FENCE.fullmatch(line):
            if opened is None and ("`" not in found[2] or found[1].startswith("~")):
                opened = _Fence(at, line, found[1])
            elif opened and found[1].startswith(opened.sign) and not found[2].strip():
                opened = None
        at += len(line) + 1
    return opened


def open_fence_sign(text: str) -> str:
    """What closes the code block in which a text ends; empty where it ends in none."""
    opened = _find_open_fence(text)
    return opened.sign if opened else ""


def _parser() -> MarkdownIt:
    """No HTML: it is shown as it is. No entities and references, which hide characters and addresses."""
    made = MarkdownIt("commonmark", {"html": False, "maxNesting": MAX_NESTING}).enable(["strikethrough"])
    return made.disable(["entity", "reference", "html_block", "html_inline", "lheading"])


def escape(text: str) -> str:
    """Text that Telegram shows and does not obey. Control characters, which it refuses or drops, are left out."""
    allowed = (c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs"))
    return html.escape("".join(allowed), quote=True)


def to_html(text: str) -> str:
    """Markdown as the few tags that Telegram knows."""
    parts: list[str] = []
    lists: list[list[int]] = []
    quotes = 0
    gap = ""  # what is between the last block and the next one
    for token in _parser().parse(text):
        kind = token.type
        if kind in ("bullet_list_open", "ordered_list_open"):
            lists.append([int(token.attrs.get("start", 1)) if kind.startswith("ordered") else 0])
        elif kind in ("bullet_list_close", "ordered_list_close"):
            lists.pop()
            gap = gap if lists else "\n\n"
        elif kind == "list_item_open":
            parts += [gap, _next_bullet(lists)]
            gap = ""
        elif kind == "list_item_close":
            gap = "\n"
        elif kind == "blockquote_open":
            parts += [gap, "<blockquote>"] if not quotes else [gap]
            quotes, gap = quotes + 1, ""
        elif kind == "blockquote_close":
            quotes -= 1
            parts += ["</blockquote>"] if not quotes else []
            gap = "\n"
        elif kind in ("inline", "fence", "code_block", "hr"):
            parts += [gap, _render_block(token)]
            gap = "\n" if lists else "\n\n"
        elif kind == "heading_open":
            parts += [gap, "<b>"]
            gap = ""
        elif kind == "heading_close":
            parts.append("</b>")
    return "".join(parts).strip()


def html_units(marked: str) -> int:
    """How long our HTML is once Telegram has read the tags; that is what it limits."""
    return count_units(html.unescape(re.sub(r"<[^<>]+>", "", marked)))


def _next_bullet(lists: Sequence[list[int]]) -> str:
    number = lists[-1][0]
    if number:
        lists[-1][0] += 1
    return "  " * (len(lists) - 1) + (f"{number}. " if number else "• ")


def _render_block(token: Token) -> str:
    if token.type == "inline" and TABLE.match(token.content):
        return f"<pre>{escape(token.content)}</pre>"
    if token.type == "inline":
        return _render_inline(token.children or [])
    if token.type == "hr":
        return "———"
    code = escape(token.content.rstrip("\n"))
    language = re.match(r"[\w+#.-]{1,30}", token.info.strip())
    if language:
        return f'<pre><code class="language-{escape(language[0])}">{code}</code></pre>'
    return f"<pre>{code}</pre>"


def _render_inline(tokens: Sequence[Token]) -> str:
    parts: list[str] = []
    links: list[bool] = []
    for token in tokens:
        name = TAGS.get(token.type.rpartition("_")[0])
        if name:
            parts.append(f"<{name}>" if token.nesting > 0 else f"</{name}>")
        elif token.type in ("softbreak", "hardbreak"):
            parts.append("\n")
        elif token.type == "code_inline":
            parts.append(f"<code>{escape(token.content)}</code>")
        elif token.type == "link_open":
            address = str(token.attrs.get("href", ""))
            links.append(address.startswith(("http://", "https://")))
            parts += [f'<a href="{escape(address)}">'] if links[-1] else []
        elif token.type == "link_close":
            parts += ["</a>"] if links.pop() else []
        elif token.type == "image":
            parts.append(escape(f"{token.content} ({token.attrs.get('src', '')})"))
        else:
            parts.append(escape(token.content))
    return "".join(parts)
