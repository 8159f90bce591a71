"""A tool's output as the model gets it: fenced, of bounded length, with a hint when something is missing (S6)."""

import re
import unicodedata

from lamina.assembly.fences import ATTRIBUTES, DEFAULT_MARK, Fence, Hint
from lamina.errors import ToolError, shown

MAX_CHARS = 8_000
ADVICE = "Only the beginning is shown. Ask for less, for example with a narrower query."
JOINER = "\u200d"
JAMO = frozenset(map(chr, range(0x1160, 0x1200)))
"""Vowels and finals of Korean syllables that are written letter by letter."""


def tool_result(
    output: str, *, tool: str, max_chars: int = MAX_CHARS, advice: str = ADVICE, mark: str = DEFAULT_MARK
) -> str:
    """The content of a tool message. Output over `max_chars` is cut at a character people see as one."""
    if isinstance(max_chars, bool) or not isinstance(max_chars, int) or max_chars < 1:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise ToolError(f"max_chars must be a whole number of at least 1, not {shown(max_chars)}")
    if not isinstance(output, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise ToolError(f"the output of {tool} must be text, not {type(output).__name__}: {shown(output)}")
    shown_part = clip(output, max_chars)
    fenced = Fence(shown_part, f"tool:{tool}").render(mark)
    if len(shown_part) == len(output):
        return fenced
    attributes = (
        ("tool", tool),
        ("reason", "too_long"),
        ("actual_chars", str(len(output))),
        ("max_chars", str(max_chars)),
    )
    return f"{fenced}\n{Hint('tool_output_omitted', advice, attributes).render(mark)}"


def output_of(content: str) -> str:
    """What a tool said, out of the content that `tool_result` made of it; anything else stays as it is."""
    found = _FENCED.match(content)
    if not found:
        return content
    return found["text"] + ("\n…" if '"tool_output_omitted"' in content[found.end() :] else "")


_FENCED = re.compile(rf"<(?P<tag>data-[a-z0-9]+(?:\.[0-9]+\.)?){ATTRIBUTES}>\n(?P<text>.*?)\n</(?P=tag)>", re.DOTALL)


def clip(text: str, max_chars: int) -> str:
    """The first `max_chars` characters, a few fewer where the cut would fall inside a composed one."""
    if len(text) <= max_chars:
        return text
    for end in range(max_chars, max(-1, max_chars - 32), -1):
        if not _joined(text, end):
            return text[:end]
    return text[:max_chars]


def _joined(text: str, at: int) -> bool:
    """Does the character at `at` belong to the one before it?"""
    if at == 0:
        return False
    before, here = text[at - 1], text[at]
    if before == JOINER or here == JOINER or (before, here) == ("\r", "\n"):
        return True
    if unicodedata.category(here).startswith("M") or "\U0001f3fb" <= here <= "\U0001f3ff" or here in JAMO:
        return True
    if _flag_letter(here) and _flag_letter(before):  # flags are pairs: an odd number before means inside one
        run = 0
        while run < at and _flag_letter(text[at - 1 - run]):
            run += 1
        return run % 2 == 1
    return "\U000e0020" <= here <= "\U000e007f"


def _flag_letter(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"
