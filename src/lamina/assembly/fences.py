"""Structure that text cannot forge: fences around text from outside, hints, and the prompt made of them.

What is fenced depends on where a text comes from, never on what it looks like. A fence's tag carries the session's
mark, which is made from a secret. Where the text itself holds the mark, in any case, width or spelling, the tag gets a
number that is not in the text (`data-MARK.1.`), so the text is never altered and can never close its fence, even when
the mark is known. There is no default mark: it is passed in. Results of tools are fenced and bounded here (S6),
and a filter keeps fences and hints that a model repeats out of its answer.
"""

import hashlib
import hmac
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Literal

from lamina.errors import LayerError, PromptError, ToolError, format_value
from lamina.text.messages import LANGUAGES, Phrase
from lamina.text.unicode import SLICE_SIZE, check_unicode, slices
from lamina.types import AnyMessage, Lang, OutcomeState, ResultHint, ToolOutput

JOIN = "\n\n"
HEADINGS: dict[str, dict[str, str]] = {
    "tools": {"en": "Tool notes", "zh": "可用工具补充说明"},
    "state": {"en": "Runtime state", "zh": "运行时状态"},
}


FenceKind = Literal["data", "layer"]
NAME = re.compile(r"[a-z][a-z0-9_]*")
MARK = re.compile(r"[a-z0-9]{4,32}")
ATTRIBUTES = r'((?: [a-z][a-z0-9_]*="[^"\n]*")*)'
WORDS = (("words", "yes"),)
HINT_OPENING = re.compile(rf"<system_hint{ATTRIBUTES}>")
LOOKALIKES = (
    (0xAA, 0xBB), (0x2070, 0x20A0), (0x2100, 0x2150), (0x2460, 0x2500), (0xFF10, 0xFF5B), (0x1D400, 0x1D800),
    (0x1F100, 0x1F200),
)  # fmt: skip
"""Where Unicode has other forms of ASCII letters and digits: full-width, circled, mathematical, raised …"""
_LOOKALIKE = re.compile("[" + "".join(f"{chr(first)}-{chr(end - 1)}" for first, end in LOOKALIKES) + "]")
_NOT_ALPHANUMERIC = re.compile(r"[^A-Za-z0-9]+")
_PUNCTUATION = {at: None for at in range(128) if not chr(at).isalnum()}
_ENTITY = re.compile(
    r"&(?:#0*([0-9]{1,7});?|#[xX]0*([0-9a-fA-F]{1,6});?|(amp|lt|gt|quot);?|(?:nbsp|shy|[A-Za-z][A-Za-z0-9]{1,31};))"
)
_NOT_IN_ENTITY = re.compile("[^&#;0-9A-Za-z]")
_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"'}


def check_lang(lang: str) -> None:
    if lang not in LANGUAGES:
        raise LayerError("layer.unknown_language", lang=format_value(lang), known=LANGUAGES)


def segment_opening(name: str, lang: Lang = "en") -> str:
    """What opens the segments of tool notes and runtime state: a rule and a heading."""
    return f"---\n# {HEADINGS[name][lang]}\n\n"


def session_mark(secret: bytes, session: str) -> str:
    """The mark of a session: the same for the same session, so that the prompt's bytes stay the same, and not to be
    computed without the secret."""
    return hmac.new(secret, session.encode(), hashlib.sha256).hexdigest()[:8]


def fold_text(text: str, mark: str) -> str:
    """The letters and digits of a text as a careless reader sees them: in one case and width, without entities and
    without what is between them. Empty where the mark cannot be in it. Linear, whatever the text, and in slices: no
    call holds the interpreter for long."""
    text = "".join(_without_disguise(piece) for piece in _between_entities(text))
    for letter in mark:  # nearly always one of them is not in the text
        if letter not in text and letter.upper() not in text:
            return ""
    return "".join(_alphanumeric(piece) for piece in slices(text))


def _between_entities(text: str) -> Iterator[str]:
    """The text in slices that no entity is cut by."""
    if len(text) <= SLICE_SIZE or "&" not in text:
        yield from slices(text)
        return
    at = 0
    while at < len(text):
        cut = _NOT_IN_ENTITY.search(text, at + SLICE_SIZE)
        end = cut.start() if cut else len(text)
        yield text[at:end]
        at = end


def _without_disguise(text: str) -> str:
    text = _ENTITY.sub(_character, text) if "&" in text else text
    return text.translate(_ascii_forms()) if not text.isascii() and _LOOKALIKE.search(text) else text


def _alphanumeric(text: str) -> str:
    return (text.translate(_PUNCTUATION) if text.isascii() else _NOT_ALPHANUMERIC.sub("", text)).lower()


def _character(entity: re.Match[str]) -> str:
    """The character that an entity stands for; `html.unescape` takes some numbers for others, and fails at long ones.
    Of the names those are read that lamina writes; no other stands for a letter or a digit."""
    if entity[1] or entity[2]:
        code = int(entity[1]) if entity[1] else int(entity[2], 16)
        return chr(code) if code < 0x110000 else entity[0]
    return _NAMED.get(entity[3] or "", "")


@cache
def _ascii_forms() -> dict[int, str]:
    forms = {at: unicodedata.normalize("NFKD", chr(at)) for first, end in LOOKALIKES for at in range(first, end)}
    return {at: form for at, form in forms.items() if form.isascii()}


def holds_mark(text: str, mark: str) -> bool:
    """Does a text hold the mark, however it is written?"""
    return mark in fold_text(text, mark)


@dataclass(frozen=True, slots=True)
class Fence:
    """Text with its origin. `data` is text from outside; `layer` is lamina's own text among that of others."""

    text: str
    source: str
    kind: FenceKind = "data"
    attributes: tuple[tuple[str, str], ...] = ()

    def render(self, mark: str) -> str:
        if self.kind not in ("data", "layer"):
            raise PromptError("fence.unknown_kind", kind=format_value(self.kind))
        _check_str(self.source, Phrase("place.fence_source"))
        _check_str(self.text, Phrase("place.fence_text", source=self.source))
        tag = f"{self.kind}-{check_mark(mark)}"
        folded = fold_text(self.text, mark)
        if mark in folded:
            numbers = re.findall(rf"(?={mark}([0-9]{{1,9}}))", folded)
            taken = {number[:length] for number in numbers for length in range(1, len(number) + 1)}
            tag += next(f".{number}." for number in itertools.count(1) if str(number) not in taken)
        opening = _attributes((("source", self.source), *self.attributes))
        return f"<{tag}{opening}>\n{self.text}\n</{tag}>"


@dataclass(frozen=True, slots=True)
class Hint:
    """A `<system_hint>`: lamina's words about the state of things, with text from outside fenced inside it."""

    type: str
    body: str = ""
    attributes: tuple[tuple[str, str], ...] = ()
    data: tuple[Fence, ...] = ()

    def render(self, mark: str | None = None) -> str:
        """The mark is needed where the hint has data."""
        if self.data or mark is not None:
            check_trusted(self.body, Phrase("place.hint_body"), check_mark(mark))
        _check_str(self.body, Phrase("place.hint_body"))
        _check_parts(self.data, Fence, Phrase("place.hint_data"))
        if "system_hint" in self.body:
            raise PromptError("fence.nested_hint")
        lines = [f"  {self.body}"] if self.body else []
        lines += [fence.render(check_mark(mark)) for fence in self.data]
        inside = "\n" + "\n".join(lines) + "\n" if lines else ""
        return f"<system_hint{_attributes((('type', self.type), *self.attributes))}>{inside}</system_hint>"


@dataclass(frozen=True, slots=True)
class Prompt:
    """The structure of a system prompt: `Prompt.parse(prompt.render(mark), mark) == prompt`, whatever the fenced text.

    Trusted text that is blank is left out.
    `static` and `tools` are trusted text, `data` is text from outside, `state` are the runtime hints.
    """

    static: str = ""
    tools: str = ""
    data: tuple[Fence, ...] = ()
    state: tuple[Hint, ...] = ()

    def render(self, mark: str, lang: Lang = "en") -> str:
        check_lang(lang)
        _check_parts(self.data, Fence, Phrase("place.prompt_data"))
        _check_parts(self.state, Hint, Phrase("place.prompt_state"))
        check_trusted(self.static, Phrase("place.static_instructions"), mark, lang)
        check_trusted(self.tools, Phrase("place.tool_notes"), mark, lang)
        blocks = [self.static] if self.static.strip() else []
        blocks += [segment_opening("tools", lang) + self.tools] if self.tools.strip() else []
        blocks += [fence.render(mark) for fence in self.data]
        if self.state:
            blocks.append(segment_opening("state", lang) + JOIN.join(hint.render(mark) for hint in self.state))
        return JOIN.join(blocks)

    @staticmethod
    def parse(text: str, mark: str, lang: Lang = "en") -> "Prompt":
        """Read the structure back; an error says where the text is not a rendered prompt."""
        _check_str(text, Phrase("place.rendered_prompt"))
        check_lang(lang)
        return _PromptReader(text, check_mark(mark), lang).prompt()


def check_mark(mark: str | None) -> str:
    if mark is None:
        raise PromptError("fence.no_mark")
    if not isinstance(mark, str) or not MARK.fullmatch(mark):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise PromptError("fence.bad_mark", value=format_value(mark))
    return mark


def _check_str(text: object, where: Phrase) -> None:
    if not isinstance(text, str):
        raise PromptError("text.not_text", where=where, type=type(text).__name__, value=format_value(text))
    check_unicode(text, where)


def _check_parts(parts: Sequence[object], kind: type, where: Phrase) -> None:
    for part in parts:
        if not isinstance(part, kind):
            raise PromptError("prompt.wrong_part", where=where, kind=kind.__name__, value=format_value(part))


def check_trusted(text: str, where: Phrase, mark: str, lang: Lang | None = None) -> None:
    """Trusted text is not fenced, so it must not hold what only lamina writes."""
    _check_str(text, where)
    check_mark(mark)
    for kind in ("data", "layer"):
        if f"<{kind}-{mark}" in text:
            raise PromptError("prompt.contains_mark", where=where, tag=f"<{kind}-{mark}")
    for name in ("tools", "state") if lang else ():
        opening = segment_opening(name, lang or "en")
        if opening.strip() in text:
            line = text[: text.index(opening.strip())].count("\n") + 1
            raise PromptError("prompt.reserved_segment", where=where, line=line, heading=format_value(opening.strip()))


def split_updates(text: str, mark: str) -> tuple[tuple[Fence, ...], str]:
    """The updates in front of a user's words, and the words as the user wrote them."""
    reader = _PromptReader(text, check_mark(mark), "en")
    found: list[Fence] = []
    while fence := reader.fence():
        found.append(fence)
        if not reader.skip(JOIN):
            break
    if found and found[-1].attributes == WORDS:
        return tuple(found[:-1]), found[-1].text
    return tuple(found), text[reader.at :]


def guard_words(words: str, mark: str, role: str, *, always: bool = False) -> str:
    """The words of a user or a model as they are: their role says whose they are. Those that hold the session's mark
    are fenced, so that they cannot pass for an update in front of them."""
    return Fence(words, role, attributes=WORDS).render(mark) if always or holds_mark(words, mark) else words


def unguard_words(text: str, mark: str) -> str:
    """The words of which `guard_words` made this text."""
    return split_updates(text, mark)[1] if holds_mark(text, mark) else text


def system_hint(
    kind: str,
    body: str = "",
    /,
    *,
    data: Sequence[Fence] = (),
    mark: str | None = None,
    **attributes: str | int,
) -> str:
    """A hint as text: `system_hint("tool_degraded", "…", tool="web_fetch")`."""
    pairs = tuple((name, str(value)) for name, value in attributes.items())
    return Hint(kind, body, pairs, tuple(data)).render(mark)


def _attributes(pairs: Iterable[tuple[str, str]]) -> str:
    """Names from code, values from anywhere: nothing in a value can end the attribute, the tag or the line, and
    nothing in it is invisible."""
    shown_pairs: list[str] = []
    for name, value in pairs:
        if not NAME.fullmatch(name):
            raise PromptError("fence.bad_attribute", name=format_value(name))
        _check_str(value, Phrase("place.attribute", name=name))
        safe = escape(value, quote=True)
        if not safe.isprintable():
            safe = "".join(_visible(character) for character in safe)
        shown_pairs.append(f' {name}="{safe}"')
    return "".join(shown_pairs)


def _visible(character: str) -> str:
    plain = character.isprintable() or unicodedata.category(character) == "Zs"
    return character if plain else f"&#{ord(character)};"


def _read_attributes(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, _ENTITY.sub(_character, value)) for name, value in _ATTRIBUTE.findall(text))


_ATTRIBUTE = re.compile(r' ([a-z0-9_]+)="([^"\n]*)"')


class _PromptReader:
    """Reads a rendered prompt from left to right. What is inside a fence is skipped, never looked at."""

    def __init__(self, text: str, mark: str, lang: Lang) -> None:
        self.text, self.at = text, 0
        self.opening = re.compile(rf"<((data|layer)-{mark}(?:\.[0-9]+\.)?){ATTRIBUTES}>\n")
        self.tools, self.state = segment_opening("tools", lang), segment_opening("state", lang)

    def prompt(self) -> Prompt:
        tools: str = ""
        static = self.trusted(stops=(self.tools, self.state))
        if self.skip(self.tools):
            tools = self.trusted(stops=(self.state,))
        fences: list[Fence] = []
        while fence := self.fence():
            fences.append(fence)
            self.skip(JOIN)
        hints: list[Hint] = []
        if self.skip(self.state):
            while self.at < len(self.text):
                hints.append(self.hint())
                self.skip(JOIN)
        if self.at < len(self.text):
            raise self.broken(Phrase("place.end"))
        return Prompt(static, tools, tuple(fences), tuple(hints))

    def trusted(self, stops: tuple[str, ...]) -> str:
        """Trusted text up to the next thing that lamina opened."""
        begin = self.at
        fence = self.opening.search(self.text, begin)
        ends = [fence.start()] if fence else []
        for stop in stops:
            if self.text.startswith(stop, begin):
                return ""
            found = self.text.find(JOIN + stop, begin)
            ends += [found + len(JOIN)] if found >= 0 else []
        end = min(ends, default=len(self.text))
        self.at = end
        return self.text[begin : end - len(JOIN)] if ends and end > begin else self.text[begin:end]

    def fence(self) -> Fence | None:
        opening = self.opening.match(self.text, self.at)
        if not opening:
            return None
        tag, kind = opening[1], opening[2]
        closing = f"\n</{tag}>"
        end = self.text.find(closing, opening.end())
        if end < 0:
            raise self.broken(f"</{tag}>")
        self.at = end + len(closing)
        (_, source), *attributes = _read_attributes(opening[3]) or (("source", ""),)
        return Fence(self.text[opening.end() : end], source, "layer" if kind == "layer" else "data", tuple(attributes))

    def hint(self) -> Hint:
        opening = HINT_OPENING.match(self.text, self.at)
        if not opening:
            raise self.broken("<system_hint …>")
        self.at = opening.end()
        (_, kind), *attributes = _read_attributes(opening[1]) or (("type", ""),)
        body, data = "", list[Fence]()
        if self.skip("\n"):
            if self.skip("  "):
                closing = self.text.find("\n</system_hint>", self.at)
                if closing < 0:
                    raise self.broken("</system_hint>")
                inside = self.opening.search(self.text, self.at, closing + 1)  # no further: searches add up
                end = inside.start() - 1 if inside else closing
                body, self.at = self.text[self.at : end], end + 1
            while fence := self.fence():
                data.append(fence)
                self.skip("\n")
        if not self.skip("</system_hint>"):
            raise self.broken("</system_hint>")
        return Hint(kind, body, tuple(attributes), tuple(data))

    def skip(self, text: str) -> bool:
        found = self.text.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def broken(self, expected: str | Phrase) -> PromptError:
        found = format_value(self.text[self.at : self.at + 40])
        return PromptError("prompt.not_rendered", expected=expected, position=self.at, found=found)


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


def read_result(text: str, message: AnyMessage) -> str:
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


HINT, HINT_END = "<system_hint", "</system_hint>"
MAX_TAG_CHARACTERS = 2_000
"""Characters that a tag may have; one without an end by then counts as one, and everything behind it as its inside."""
_HINT = re.compile(HINT, re.IGNORECASE)
_MAY_OPEN = re.compile("<(?:/?(?:[sdl]|$)|$)", re.IGNORECASE)
"""What may be the beginning of a tag of ours; `$` because the rest of it may come later."""
_OTHER_WORD = re.compile("</?system_hint[a-z0-9_-]")


def find_hint_tags(text: str) -> Iterator[str]:
    """The opening tags of the hints in a text."""
    for found in _HINT.finditer(text) if "<" in text else ():
        end = text.find(">", found.end(), found.start() + MAX_TAG_CHARACTERS)
        if end >= 0 and "<" not in text[found.end() : end]:
            yield text[found.start() : end + 1]


class TagFilter:
    """`feed` what comes, show what it gives back, and `close` at the end. `typed` says whether the user wrote a tag."""

    def __init__(self, mark: str, typed: Callable[[str], bool] = lambda tag: False) -> None:
        self._fences = tuple(f"{begin}{kind}-{check_mark(mark)}" for kind in ("data", "layer") for begin in ("<", "</"))
        self._openings = (HINT, HINT_END[:-1], *self._fences)
        self._opening_size = max(map(len, self._openings)) + 1
        self._typed = typed
        self._held = self._shown = ""
        """What may become a tag, and the end of what was let through."""
        self._depth = 0
        """Hints that are open and dropped."""
        self._passed = 0
        """Hints of the user's own that were let through and are still open."""

    def feed(self, text: str) -> str:
        held, at, begin, out = self._held + text, 0, 0, list[str]()
        while found := _MAY_OPEN.search(held, at):
            at = found.start()
            low = held[at : at + self._opening_size].lower()
            if not low.startswith(self._openings):
                if any(opening.startswith(low) for opening in self._openings):
                    break
                at += 1
                continue
            if _OTHER_WORD.match(low):  # <system_hints> is another word
                at += 1
                continue
            end = held.find(">", at, at + MAX_TAG_CHARACTERS)
            if end < 0 and len(held) - at < MAX_TAG_CHARACTERS:
                break
            self._let(held[begin:at], out)
            begin = end + 1 if end >= 0 else at + MAX_TAG_CHARACTERS
            self._tag(held[at:begin], end >= 0, out)
            at = begin
        else:
            at = len(held)
        self._let(held[begin:at], out)
        self._held = held[at:]
        return "".join(out)

    def close(self) -> str:
        """The answer is over: what was held back because it might have become a tag is text after all."""
        rest, self._held = self._held, ""
        return "" if self._depth or rest.lower().startswith(self._openings) else rest

    def _let(self, text: str, out: list[str]) -> None:
        """Text that passes, unless a hint that is dropped is open around it."""
        if not self._depth and text:
            out.append(text)
            self._shown = (self._shown + text[-MAX_TAG_CHARACTERS:])[-MAX_TAG_CHARACTERS:]

    def _tag(self, tag: str, ended: bool, out: list[str]) -> None:
        low = tag.lower()
        if low.startswith(self._fences):
            return self._drop(out)
        if low.startswith("</"):
            if self._depth:
                self._depth -= 1
                return None if self._depth else self._drop(out)
            if self._passed:
                self._passed -= 1
                return self._let(tag, out)
            return self._drop(out)
        if ended and not self._depth and self._typed(tag):
            self._passed += 1
            return self._let(tag, out)
        self._depth += not tag.endswith("/>")
        return self._drop(out)

    def _drop(self, out: list[str]) -> None:
        """Something is removed here; the text on both sides of it must not become a tag by that."""
        begin = self._shown.rfind("<")
        if not self._depth and begin >= 0 and any(o.startswith(self._shown[begin:].lower()) for o in self._openings):
            self._let(" ", out)
