"""Reads a shell command the way bash reads it, as far as it can be sure; the rest it calls unclear.

Pure. It knows words, quotes, chains, pipes, redirects, comments and plain globs. It goes on behind what it does not
know, so that destruction is found there too, but whoever reads `unclear` must not trust the parts.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field

from lamina.layers.hidden import HIDDEN

MOST_CHARACTERS = 10_000
MOST_PARTS = 200
_HIDDEN = re.compile(f"[{HIDDEN}]")
_UNSEEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"}
_GLOB, _ENDS_WORD = "*?[", " \t\n;&|<>()"
_UNKNOWN = {
    "$": "$ puts something in its place that is not shown",
    "`": "a backtick runs a command inside the command",
    "(": "a parenthesis starts a subshell or a function",
    ")": "a parenthesis ends a subshell or a pattern",
}


@dataclass(frozen=True, slots=True)
class Word:
    """`text` is what the program gets, `raw` what was written. `globs` holds where * ? [ stand unquoted in `text`."""

    text: str
    raw: str
    quoted: bool = False
    globs: tuple[int, ...] = ()
    tilde: bool = False
    """An unquoted ~ stands where bash puts a home folder in its place."""


@dataclass(frozen=True, slots=True)
class Redirect:
    """`operator` without its number: < > >> >& &> and so on."""

    number: str
    operator: str
    target: Word


@dataclass(frozen=True, slots=True)
class Part:
    """One simple command; `joint` is what stands before it: empty, | && || ; or a line's end."""

    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...] = ()
    joint: str = ""

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.words]


@dataclass(frozen=True, slots=True)
class Script:
    """The parts of a command in their order, and why they may not be all of it (empty when they are)."""

    parts: tuple[Part, ...]
    unclear: str = ""


def is_unseen(char: str) -> bool:
    """Whether a reader sees nothing, or a blank that is none, where this character stands."""
    if " " <= char <= "~":
        return False
    return unicodedata.category(char) in _UNSEEN or bool(_HIDDEN.match(char))


def visible_command(text: str) -> str:
    """The command as it is shown before it runs: nothing hidden, nothing moved, and only one command looks like this.

    What nobody sees becomes `\\u202e` or `\\U000e0041`, backslashes before a `u` or `U` are doubled, and ⏎ marks where
    a line ends.
    """
    shown: list[str] = []
    held = 0
    for at, char in enumerate(text):
        if char == "\\":
            held += 1
            continue
        escaped = _escaped(char, text[at - 1 : at])
        shown.append("\\" * (held * 2 if escaped or char in "uU" else held))
        held = 0
        shown.append(escaped or ("⏎\n" if char == "\n" else char))
    return "".join(shown) + "\\" * held


def _escaped(char: str, before: str) -> str:
    """How a character is written out, empty where it is shown as it is. A mark would lie upon the ASCII before it."""
    if char == "\n" or " " <= char <= "~":
        return ""
    marks_ascii = unicodedata.combining(char) and (not before or before.isascii())
    if char != "⏎" and not is_unseen(char) and not marks_ascii:
        return ""
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def read_script(command: str) -> Script:
    """The parts of a command. Check `unclear` first."""
    reader = _Reader(command)
    if len(command) > MOST_CHARACTERS:
        reader.unclear = f"it has {len(command):,} characters, over {MOST_CHARACTERS:,} nobody reads it all"
    unseen = next((char for char in command if char not in "\n\t" and is_unseen(char)), "")
    if unseen:
        reader.unclear = reader.unclear or f"it holds a character that nobody sees: {visible_command(unseen)}"
    parts = tuple(reader.parts())
    if len(parts) > MOST_PARTS:
        reader.doubt(f"it has {len(parts)} parts, over {MOST_PARTS} nobody reads them all")
    if not parts:
        reader.doubt("there is no command in it")
    return Script(parts, reader.unclear)


@dataclass
class _Reader:
    text: str
    at: int = 0
    unclear: str = ""
    joint: str = ""
    words: list[Word] = field(default_factory=list[Word])
    redirects: list[Redirect] = field(default_factory=list[Redirect])

    def doubt(self, why: str) -> None:
        self.unclear = self.unclear or why

    def next(self, count: int = 1) -> str:
        return self.text[self.at : self.at + count]

    def blanks(self) -> None:
        while found := re.compile(r"[ \t]|\\\n").match(self.text, self.at):
            self.at = found.end()

    def parts(self) -> Iterator[Part]:
        while self.at < len(self.text):
            self.blanks()
            char = self.next()
            if not char:
                break
            if char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in "<>" or self.next(2) == "&>":
                self.redirect("")
            elif char in "\n;&|()":
                yield from self.joined()
            else:
                self.word_or_redirect()
        if not self.words and not self.redirects and self.joint in ("|", "&&", "||"):
            self.doubt(f"nothing stands behind the last {self.joint}")
        yield from self.part("")

    def part(self, joint: str) -> Iterator[Part]:
        if self.words or self.redirects:
            if not self.words:
                self.doubt("a redirect stands without a program")
            yield Part(tuple(self.words), tuple(self.redirects), self.joint)
        self.words, self.redirects, self.joint = [], [], joint

    def joined(self) -> Iterator[Part]:
        """One of | && || ; or a line's end, or something that makes it unclear."""
        two, char = self.next(2), self.next()
        joint = two if two in ("&&", "||") else char
        self.at += len(joint)
        if joint in "()":
            self.doubt(_UNKNOWN[joint])
        elif joint == "&":
            self.doubt("& lets it run on in the background")
        elif joint in ("|", "||", "&&", ";") and self.next() in ("&", "|", ";"):
            self.doubt(f"{joint}{self.next()} is not a joint that is known here")
        empty = not self.words and not self.redirects
        if joint == "\n" and empty:
            return  # an empty line, or a line's end behind a joint
        if empty and joint not in "()":
            self.doubt(f"nothing stands before {joint}")
        yield from self.part(joint)

    def word_or_redirect(self) -> None:
        word = self.word()
        if self.next() in ("<", ">"):
            if not word.quoted and word.text.isdigit() and word.text.isascii():
                self.redirect(word.text)
                return
            if word.text.endswith("}"):
                self.doubt("{name} before a redirect sets a variable")
        self.words.append(word)

    def redirect(self, number: str) -> None:
        found = re.compile(r"&>>|&>|<<<|<<-|<<|<>|<&|<\(|>>|>&|>\||>\(|<|>").match(self.text, self.at)
        operator = found[0] if found else ">"
        self.at += len(operator)
        if operator[-1] == "(":
            self.doubt("<( and >( run a command")
        elif operator.startswith("<<"):
            self.doubt("a here-document is not read here")
        self.blanks()
        if not self.next() or self.next() in f"{_ENDS_WORD}#":
            self.doubt(f"nothing stands behind {operator}")
            return
        target = self.word()
        if self.next() in ("<", ">") and target.text.isdigit():
            self.doubt("a number stands between two redirects")
        self.redirects.append(Redirect(number, operator, target))

    def word(self) -> Word:
        """A word up to an unquoted blank or operator."""
        start, text, globs = self.at, "", list[int]()
        quoted = tilde = False
        while self.at < len(self.text):
            char = self.next()
            if char in _ENDS_WORD:
                break
            if char == "\\":
                piece = self.escape()
                quoted = quoted or bool(piece)
            elif char in "'\"":
                piece, quoted = self.quotes(char), True
            else:
                piece = char
                self.at += 1
                if char in _UNKNOWN:
                    self.doubt(_UNKNOWN[char])
                elif char in _GLOB:
                    globs.append(len(text))
                elif char == "~" and (not text or text[-1] in "=:"):
                    tilde = True
            text += piece
        raw = self.text[start : self.at]
        self.braces(raw, text)
        if raw[:1] == "!" and len(raw) > 1:
            self.doubt("! may put an earlier command in its place")
        return Word(text, raw, quoted, tuple(globs), tilde)

    def escape(self) -> str:
        """A backslash outside of quotes: the character behind it, nothing for a line that goes on."""
        pair = self.next(2)
        self.at += 2
        if len(pair) < 2:
            self.doubt("it ends in a backslash")
            return "\\"
        return "" if pair[1] == "\n" else pair[1]

    def quotes(self, mark: str) -> str:
        """What stands between quotes."""
        self.at += 1
        text = ""
        while self.at < len(self.text):
            char = self.next()
            self.at += 1
            if char == mark:
                return text
            if mark == '"' and char == "\\":
                follows = self.next()
                self.at += 1
                text += "" if follows == "\n" else follows if follows and follows in '$`"\\' else f"\\{follows}"
                continue
            if mark == '"' and char in "$`" and not (char == "$" and self.next() in ('"', " ", "|", ")", "/")):
                self.doubt(_UNKNOWN[char])
            text += char
        self.doubt("a quote is not closed")
        return text

    def braces(self, raw: str, text: str) -> None:
        """`{a,b}` and `{1..9}` become several words; a brace alone groups commands."""
        bare = re.sub(r"\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\"", "", raw, flags=re.DOTALL)
        if "{" in bare and ("," in raw or ".." in raw):
            self.doubt("braces with , or .. become several words")
        if text in ("{", "}") or (not self.words and bare[:1] in ("{", "}")):
            self.doubt("braces group commands")
