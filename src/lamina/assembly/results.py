"""A tool's output as the model gets it: of bounded length, fenced, with a hint when something is missing (S6).

Every result is fenced where it enters a request, whatever it looks like. Hints stand outside of the fence, and only
those that lamina itself put beside the text (`ToolOutput`), never those that the text holds.
"""

import re
import unicodedata

from lamina.assembly.fences import ATTRIBUTES, Fence, Hint
from lamina.errors import ToolError, format_value
from lamina.types import AnyMessage, OutcomeState, ResultHint, ToolOutput

MAX_CHARS = 8_000
ADVICE = "Only the beginning is shown. Ask for less, for example with a narrower query."
JOINER = "\u200d"
JAMO = frozenset(map(chr, range(0x1160, 0x1200)))
"""Vowels and finals of Korean syllables that are written letter by letter."""


def tool_result(
    output: str, *, tool: str, max_chars: int = MAX_CHARS, advice: str = ADVICE, state: OutcomeState = "done"
) -> ToolOutput:
    """The content of a tool message. Output over `max_chars` is cut at a character people see as one."""
    if isinstance(max_chars, bool) or not isinstance(max_chars, int) or max_chars < 1:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise ToolError("tool.bad_max_chars", tool=tool, value=format_value(max_chars))
    if not isinstance(output, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise ToolError("tool.output_not_text", tool=tool, type=type(output).__name__, value=format_value(output))
    shown_part = clip(output, max_chars)
    if len(shown_part) == len(output):
        return ToolOutput(output, tool, state=state)
    attributes = (
        ("tool", tool),
        ("reason", "too_long"),
        ("actual_chars", str(len(output))),
        ("max_chars", str(max_chars)),
    )
    return ToolOutput(shown_part, tool, (ResultHint("tool_output_omitted", advice, attributes),), state)


def render_result(content: str, mark: str) -> str:
    """A result as it is sent: fenced, and behind the fence the hints that lamina put beside it."""
    tool, hints = (content.tool, content.hints) if isinstance(content, ToolOutput) else ("", ())
    fenced = Fence(str(content), f"tool:{tool}" if tool else "tool").render(mark)
    return "\n".join([fenced, *(Hint(hint.type, hint.body, hint.attributes).render(mark) for hint in hints)])


def said_by_tool(text: str, message: AnyMessage) -> str:
    """What a tool said, of a stored result, for people to read. 0.1.0 stored results with their fences."""
    content = message["content"]
    if isinstance(content, ToolOutput):
        cut = any(hint.type == "tool_output_omitted" for hint in content.hints)
    elif found := _FENCED.match(text):
        text, cut = found["text"], '"tool_output_omitted"' in text[found.end() :]
    else:
        cut = False
    return f"{text}\n…" if cut else text


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
