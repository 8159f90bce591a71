"""Reads a shell command the way bash reads it, as far as that is certain; everything else is marked as unclear.

Pure and linear. It knows words, quotes, chains, pipes, redirects, comments and plain globs. After something unknown it
continues, so that `destructive` can check the rest, but an `unclear` script must not be trusted.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from lamina.text.messages import Phrase, Value
from lamina.text.unicode import is_unseen, visible_command

MAX_COMMAND_CHARS = 10_000
"""People do not read more before they say yes. The rest is not read, so a longer command always needs a yes."""
MAX_PARTS = 200
_GLOB, _ENDS_WORD = "*?[", " \t\n;&|<>()"
_REDIRECTS = ("&>>", "<<<", "<<-", "&>", "<<", "<>", "<&", "<(", ">>", ">&", ">|", ">(", "<", ">")
_UNKNOWN = {
    "$": "shell.dollar",
    "`": "shell.backtick",
    "(": "shell.opening_parenthesis",
    ")": "shell.closing_parenthesis",
}


@dataclass(frozen=True, slots=True)
class Word:
    """`text` is what the program gets, `raw` what was written. `globs` are the positions of unquoted * ? [ in `text`;
    `tilde` says that bash replaces a ~ in it with a home folder."""

    text: str
    raw: str
    quoted: bool = False
    globs: tuple[int, ...] = ()
    tilde: bool = False


@dataclass(frozen=True, slots=True)
class Redirect:
    """`operator` without its number: < > >> >& &> and so on."""

    number: str
    operator: str
    target: Word


@dataclass(frozen=True, slots=True)
class Part:
    """One simple command; `joint` is what comes before it: | && || ; or a line's end, several in an unclear script."""

    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...] = ()
    joint: str = ""

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.words]


@dataclass(frozen=True, slots=True)
class Script:
    """The parts of a command in order, and why they may not be all of it (None when they are)."""

    parts: tuple[Part, ...]
    unclear: Phrase | None = None


def is_assignment(word: Word) -> bool:
    name, equals, _ = word.raw.partition("=")
    return bool(equals) and name.removesuffix("+").partition("[")[0].isidentifier()


def read_script(command: str) -> Script:
    reader = _Reader(command[:MAX_COMMAND_CHARS])
    if len(command) > MAX_COMMAND_CHARS:
        reader.doubt("shell.too_long", size=len(command), limit=MAX_COMMAND_CHARS)
    unseen = next((char for char in reader.text if char not in "\n\t" and is_unseen(char)), "")
    if unseen:
        reader.doubt("shell.unseen_character", character=visible_command(unseen))
    parts = tuple(reader.parts())
    if len(parts) > MAX_PARTS:
        reader.doubt("shell.too_many_parts", count=len(parts), limit=MAX_PARTS)
    if not parts:
        reader.doubt("shell.no_command")
    return Script(parts, reader.unclear)


@dataclass
class _Reader:
    text: str
    at: int = 0
    unclear: Phrase | None = None
    joint: str = ""
    words: list[Word] = field(default_factory=list[Word])
    redirects: list[Redirect] = field(default_factory=list[Redirect])

    def doubt(self, code: str, **values: Value) -> None:
        self.unclear = self.unclear or Phrase(code, **values)

    def next(self, count: int = 1) -> str:
        return self.text[self.at : self.at + count]

    def skip_blanks(self) -> None:
        while self.next() in (" ", "\t") or self.next(2) == "\\\n":
            self.at += 1 if self.next() != "\\" else 2

    def parts(self) -> Iterator[Part]:
        while True:
            self.skip_blanks()
            char = self.next()
            if not char:
                break
            if char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in "<>" or self.next(2) == "&>":
                self.read_redirect("")
            elif char in "\n;&|()":
                yield from self.read_joint()
            else:
                self.read_word_or_redirect()
        if not self.words and not self.redirects and self.joint in ("|", "&&", "||"):
            self.doubt("shell.nothing_follows", mark=self.joint)
        yield from self.end_part("")

    def end_part(self, joint: str) -> Iterator[Part]:
        if self.words or self.redirects:
            if not self.words:
                self.doubt("shell.redirect_without_program")
            yield Part(tuple(self.words), tuple(self.redirects), self.joint)
            self.joint = ""
        self.words, self.redirects, self.joint = [], [], (self.joint + joint)[:8]

    def read_joint(self) -> Iterator[Part]:
        """One of | && || ; or a line's end, or something that makes it unclear."""
        joint = self.next(2) if self.next(2) in ("&&", "||") else self.next()
        self.at += len(joint)
        if joint in "()":
            self.doubt(_UNKNOWN[joint])
        elif joint == "&":
            self.doubt("shell.background")
        elif joint in ("|", "||", "&&", ";") and self.next() in ("&", "|", ";"):
            self.doubt("shell.unknown_operator", mark=f"{joint}{self.next()}")
        empty = not self.words and not self.redirects
        if empty and joint not in "()\n":
            self.doubt("shell.nothing_before", mark=joint)
        if not empty or joint != "\n":  # an empty line, or a line's end after a joint, means nothing
            yield from self.end_part(joint)

    def read_word_or_redirect(self) -> None:
        word = self.read_word()
        if self.next() in ("<", ">"):
            if not word.quoted and word.text.isdigit() and word.text.isascii():
                self.read_redirect(word.text)
                return
            if word.text.endswith("}"):
                self.doubt("shell.redirect_sets_variable")
        self.words.append(word)

    def read_redirect(self, number: str) -> None:
        operator = next(each for each in _REDIRECTS if self.text.startswith(each, self.at))
        self.at += len(operator)
        if operator[-1] == "(":
            self.doubt("shell.process_substitution")
        elif operator.startswith("<<"):
            self.doubt("shell.here_document")
        self.skip_blanks()
        if not self.next() or self.next() in f"{_ENDS_WORD}#":
            self.doubt("shell.nothing_follows", mark=operator)
            return
        target = self.read_word()
        if self.next() in ("<", ">") and target.text.isdigit():
            self.doubt("shell.number_between_redirects")
        self.redirects.append(Redirect(number, operator, target))

    def read_word(self) -> Word:
        start, pieces, globs, bare = self.at, list[str](), list[int](), list[str]()
        length, last, quoted, tilde = 0, "", False, False
        while self.at < len(self.text):
            char = self.next()
            if char in _ENDS_WORD:
                break
            if char == "\\":
                piece = self.read_escape()
                quoted = quoted or bool(piece)
            elif char in "'\"":
                piece, quoted = self.read_quotes(char), True
            else:
                piece = char
                self.at += 1
                bare.append(char)
                if char in _UNKNOWN:
                    self.doubt(_UNKNOWN[char])
                elif char in _GLOB:
                    globs.append(length)
                elif char == "~" and last in ("", "=", ":"):
                    tilde = True
            length += len(piece)
            last = piece[-1:] or last
            pieces.append(piece)
        raw, text = self.text[start : self.at], "".join(pieces)
        self.check_braces(raw, text, "".join(bare))
        if raw[:1] == "!" and len(raw) > 1:
            self.doubt("shell.history")
        return Word(text, raw, quoted, tuple(globs), tilde)

    def read_escape(self) -> str:
        """A backslash outside of quotes: the character after it, nothing for a continued line."""
        pair = self.next(2)
        self.at += 2
        if len(pair) < 2:
            self.doubt("shell.ends_in_backslash")
            return "\\"
        return "" if pair[1] == "\n" else pair[1]

    def read_quotes(self, mark: str) -> str:
        self.at += 1
        pieces: list[str] = []
        while self.at < len(self.text):
            char = self.next()
            self.at += 1
            if char == mark:
                return "".join(pieces)
            if mark == '"' and char == "\\":
                follows = self.next()
                self.at += 1
                pieces.append("" if follows == "\n" else follows if follows and follows in '$`"\\' else f"\\{follows}")
                continue
            if mark == '"' and char in "$`" and not (char == "$" and self.next() in ('"', " ", "|", ")", "/")):
                self.doubt(_UNKNOWN[char])
            pieces.append(char)
        self.doubt("shell.open_quote")
        return "".join(pieces)

    def check_braces(self, raw: str, text: str, bare: str) -> None:
        """`{a,b}` and `{1..9}` become several words; a brace alone groups commands."""
        if "{" in bare and ("," in raw or ".." in raw):
            self.doubt("shell.brace_expansion")
        if text in ("{", "}") or (not self.words and bare[:1] in ("{", "}")):
            self.doubt("shell.brace_group")
