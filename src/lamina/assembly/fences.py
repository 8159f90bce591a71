"""Structure that text cannot forge: fences around text from outside, hints, and the prompt made of them.

A fence's tag carries the session's mark. Where the text itself holds that tag, the next tag of the
session is taken (`data-MARK.1`, `data-MARK.2` …), so the text is never altered and can never close its fence;
nothing depends on the mark being secret. Trusted text that holds a mark or a segment's opening is refused.
"""

import hashlib
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape, unescape
from typing import Literal

from lamina.assembly.prompt import JOIN, check_lang, segment_opening
from lamina.assembly.tokens import check_text
from lamina.errors import PromptError, shown
from lamina.types import Lang

Kind = Literal["data", "layer"]
DEFAULT_MARK = "lamina"
NAME = re.compile(r"[a-z][a-z0-9_]*")
MARK = re.compile(r"[a-z0-9]{4,32}")
ATTRIBUTES = r'((?: [a-z][a-z0-9_]*="[^"\n]*")*)'
WORDS = (("words", "yes"),)
HINT_OPENING = re.compile(rf"<system_hint{ATTRIBUTES}>")


def session_mark(session: str) -> str:
    """The mark of a session: the same for the same session, so that the prompt's bytes stay the same."""
    return hashlib.sha256(session.encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class Fence:
    """Text with its origin. `data` is text from outside; `layer` is lamina's own text where it stands among others'."""

    text: str
    source: str
    kind: Kind = "data"
    attributes: tuple[tuple[str, str], ...] = ()

    def render(self, mark: str = DEFAULT_MARK) -> str:
        if self.kind not in ("data", "layer"):
            raise PromptError(f"no kind of fence named {shown(self.kind)}", hint="data or layer")
        _check_str(self.source, "the source of a fence")
        _check_str(self.text, f"the text of {self.source}")
        tag = f"{self.kind}-{check_mark(mark)}"
        if tag in self.text:
            taken = set(re.findall(rf"{tag}\.([0-9]+)\.", self.text))
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

    def render(self, mark: str = DEFAULT_MARK) -> str:
        check_trusted(self.body, "the body of a hint", mark)
        _check_parts(self.data, Fence, "the data of a hint")
        if "system_hint" in self.body:
            raise PromptError(
                "the body of a hint holds a system_hint tag of its own", hint="text from outside goes into `data`"
            )
        lines = [f"  {self.body}"] if self.body else []
        lines += [fence.render(mark) for fence in self.data]
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

    def render(self, mark: str = DEFAULT_MARK, lang: Lang = "en") -> str:
        check_lang(lang)
        _check_parts(self.data, Fence, "the data of a prompt")
        _check_parts(self.state, Hint, "the state of a prompt")
        for text, where in ((self.static, "the static instructions"), (self.tools, "the tool notes")):
            check_trusted(text, where, mark, lang)
        blocks = [self.static] if self.static.strip() else []
        blocks += [segment_opening("tools", lang) + self.tools] if self.tools.strip() else []
        blocks += [fence.render(mark) for fence in self.data]
        if self.state:
            blocks.append(segment_opening("state", lang) + JOIN.join(hint.render(mark) for hint in self.state))
        return JOIN.join(blocks)

    @staticmethod
    def parse(text: str, mark: str = DEFAULT_MARK, lang: Lang = "en") -> "Prompt":
        """Read the structure back; an error says where the text is not a rendered prompt."""
        _check_str(text, "a rendered prompt")
        check_lang(lang)
        return _Reader(text, check_mark(mark), lang).prompt()


def check_mark(mark: str) -> str:
    if not isinstance(mark, str) or not MARK.fullmatch(mark):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise PromptError(f"{shown(mark)} is not a mark", hint="a mark has 4 to 32 of a-z and 0-9")
    return mark


def _check_str(text: object, where: str) -> None:
    if not isinstance(text, str):
        raise PromptError(f"{where} must be text, not {shown(text)}")
    check_text(text, where)


def _check_parts(parts: Sequence[object], kind: type, where: str) -> None:
    for part in parts:
        if not isinstance(part, kind):
            raise PromptError(f"{where} is made of {kind.__name__}, not of {shown(part)}")


def check_trusted(text: str, where: str, mark: str, lang: Lang | None = None) -> None:
    """Trusted text is not fenced, so it must not hold what only lamina writes."""
    _check_str(text, where)
    check_mark(mark)
    for kind in ("data", "layer"):
        if f"<{kind}-{mark}" in text:
            raise PromptError(
                f"{where} hold{'s' if ' of ' in where else ''} the session's mark <{kind}-{mark}",
                hint="hand it in as text from outside, or take another mark",
            )
    for name in ("tools", "state") if lang else ():
        opening = segment_opening(name, lang or "en")
        if opening.strip() in text:
            line = text[: text.index(opening.strip())].count("\n") + 1
            raise PromptError(
                f"{where}: line {line} opens a segment that only lamina opens: {shown(opening.strip())}",
                hint="give that heading another name",
            )


def split_updates(text: str, mark: str = DEFAULT_MARK) -> tuple[tuple[Fence, ...], str]:
    """The updates in front of a user's words, and the words as the user wrote them."""
    reader = _Reader(text, check_mark(mark), "en")
    found: list[Fence] = []
    while fence := reader.fence():
        found.append(fence)
        if not reader.skip(JOIN):
            break
    if found and found[-1].attributes == WORDS:
        return tuple(found[:-1]), found[-1].text
    return tuple(found), text[reader.at :]


def guard_words(words: str, mark: str = DEFAULT_MARK) -> str:
    """A user's words as they are; only words that hold the session's mark are fenced, lest they pass for an update."""
    if "<" in words and any(f"<{kind}-{mark}" in words for kind in ("data", "layer")):
        return Fence(words, "user", attributes=WORDS).render(mark)
    return words


def guard_result(text: str, mark: str = DEFAULT_MARK) -> str:
    """A tool's result as `tool_result` writes it, as it is; any other that looks like lamina's own words is fenced."""
    if "<" not in text or (f"-{mark}" not in text and "<system_hint" not in text):
        return text
    reader = _Reader(text, check_mark(mark), "en")
    try:
        whole = reader.fence() is not None
        while whole and reader.skip("\n"):
            whole = bool(reader.hint())
    except PromptError:
        whole = False
    return text if whole and reader.done() else Fence(text, "tool").render(mark)


def system_hint(
    kind: str,
    body: str = "",
    /,
    *,
    data: Sequence[Fence] = (),
    mark: str = DEFAULT_MARK,
    **attributes: str | int,
) -> str:
    """A hint as text: `system_hint("tool_degraded", "…", tool="web_fetch")`."""
    pairs = tuple((name, str(value)) for name, value in attributes.items())
    return Hint(kind, body, pairs, tuple(data)).render(mark)


def _attributes(pairs: Iterable[tuple[str, str]]) -> str:
    """Names from code, values from anywhere: nothing in a value can end the attribute, the tag or the line."""
    shown_pairs: list[str] = []
    for name, value in pairs:
        if not NAME.fullmatch(name):
            raise PromptError(f"{shown(name)} is not a name for an attribute", hint="use a-z, 0-9 and _")
        _check_str(value, f"the attribute {name}")
        safe = escape(value, quote=True).replace("\n", "&#10;").replace("\r", "&#13;")
        shown_pairs.append(f' {name}="{safe}"')
    return "".join(shown_pairs)


def _read_attributes(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, unescape(value)) for name, value in re.findall(r' ([a-z0-9_]+)="([^"\n]*)"', text))


class _Reader:
    """Reads a rendered prompt from left to right. What stands inside a fence is jumped over, never looked at."""

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
            raise self.broken("the end")
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
            raise self.broken(f"the end of <{tag}>")
        self.at = end + len(closing)
        (_, source), *attributes = _read_attributes(opening[3]) or (("source", ""),)
        return Fence(self.text[opening.end() : end], source, "layer" if kind == "layer" else "data", tuple(attributes))

    def hint(self) -> Hint:
        opening = HINT_OPENING.match(self.text, self.at)
        if not opening:
            raise self.broken("a system_hint")
        self.at = opening.end()
        (_, kind), *attributes = _read_attributes(opening[1]) or (("type", ""),)
        body, data = "", list[Fence]()
        if self.skip("\n"):
            if self.skip("  "):
                closing = self.text.find("\n</system_hint>", self.at)
                if closing < 0:
                    raise self.broken("the end of a system_hint")
                inside = self.opening.search(self.text, self.at, closing + 1)  # no further: searches add up
                end = inside.start() - 1 if inside else closing
                body, self.at = self.text[self.at : end], end + 1
            while fence := self.fence():
                data.append(fence)
                self.skip("\n")
        if not self.skip("</system_hint>"):
            raise self.broken("</system_hint>")
        return Hint(kind, body, tuple(attributes), tuple(data))

    def done(self) -> bool:
        return self.at == len(self.text)

    def skip(self, text: str) -> bool:
        found = self.text.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def broken(self, expected: str) -> PromptError:
        return PromptError(
            f"not a rendered prompt: expected {expected} at character {self.at}, found "
            f"{shown(self.text[self.at : self.at + 40])}"
        )
