"""How a program is called: its options against the table, its operands, and which of them are files.

An option that the table does not know is a reason to ask, and so is a value or a glob that could be an option.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from lamina.layers.command_paths import Place, why_not_there
from lamina.layers.command_words import Program
from lamina.layers.shell_words import Word


@dataclass
class Call:
    """What was found in the words behind a program's name."""

    options: set[str] = field(default_factory=set[str])
    """As written, without a value: -n, --sort; with one also -ofoo and --sort=foo."""
    values: list[tuple[str, Word]] = field(default_factory=list[tuple[str, Word]])
    operands: list[Word] = field(default_factory=list[Word])
    paths: list[Word] = field(default_factory=list[Word])
    why: str = ""

    def doubt(self, why: str) -> None:
        self.why = self.why or why

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.operands]

    def value(self, *names: str) -> list[str]:
        return [word.text for name, word in self.values if name in names]


def read_call(words: Sequence[Word], program: Program, place: Place) -> Call:
    """Options and operands of a program, and in `why` the first reason to ask."""
    call = Call()
    waiting = list(words)
    ended = False
    while waiting:
        word = waiting.pop(0)
        text = word.text
        if ended or text == "-" or not text.startswith("-"):
            _operand(call, word, program, ended)
        elif text == "--":
            ended = True
        elif call.operands and program.most == 1:
            call.doubt(f"{text} may be taken for a file behind {call.operands[0].text}")
        elif word.globs and not program.free:
            call.doubt(f"{text} is an option with a glob in it")
        elif text.startswith("--"):
            _long(call, word, program, waiting)
        else:
            _short(call, word, program, waiting)
    if len(call.operands) > program.most:
        call.doubt(f"it is given {len(call.operands)} operands, and more than {program.most} may write")
    files = call.operands[words_of(call, program) :]
    for word in (*call.paths, *files, *(word for word in words if word.globs or word.tilde)):
        call.doubt(why_not_there(word, place))  # a glob becomes files also where the program wants words
    return call


def words_of(call: Call, program: Program) -> int:
    """How many operands are words: grep has its pattern there, unless -e or -f gave one."""
    if program.words < 0:
        return len(call.operands)
    given = {"-e", "-f", "--regexp", "--file", "--files", "--type-list"} & call.options
    return 0 if given and program.words == 1 else program.words


def _operand(call: Call, word: Word, program: Program, ended: bool) -> None:
    if word.globs and word.globs[0] == 0 and not (program.free or ended):
        call.doubt(f"{word.text} may become an option, when a file is named so")
    if word.globs and program.most < 100:
        call.doubt(f"{word.text} may become more than one file")
    call.operands.append(word)


def _take(call: Call, option: str, program: Program, attached: str | None, waiting: list[Word], file: bool) -> None:
    """The value of an option, attached to it or the next word."""
    if attached is None:
        if not waiting:
            call.doubt(f"{option} has no value")
            return
        word = waiting.pop(0)
        if word.text.startswith("-") and not re.fullmatch(r"-\d*", word.text):
            call.doubt(f"{word.text} may be an option or a value")
        if word.globs and not program.free:
            call.doubt(f"{word.text} may become more than one word")
    else:
        word = Word(attached, attached)
    call.values.append((option, word))
    if file:
        call.paths.append(word)


def _long(call: Call, word: Word, program: Program, waiting: list[Word]) -> None:
    name, equals, value = word.text[2:].partition("=")
    kind = program.long_options.get(name)
    call.options.update((f"--{name}", word.text))
    if kind is None and not (program.free and program.words < 0):
        call.doubt(f"--{name} is not among the options that only read")
    if word.tilde:
        call.doubt(f"{word.text} leads to a home folder")
    if equals:
        _take(call, f"--{name}", program, value, waiting, file=kind in (None, "=<"))
    elif kind:
        _take(call, f"--{name}", program, None, waiting, file=kind == "=<")


def _short(call: Call, word: Word, program: Program, waiting: list[Word]) -> None:
    letters = word.text[1:]
    call.options.add(word.text)
    for at, letter in enumerate(letters):
        rest = letters[at + 1 :]
        call.options.add(f"-{letter}")
        if letter in program.texts or letter in program.paths:
            _take(call, f"-{letter}", program, rest or None, waiting, file=letter in program.paths)
            return
        if letter not in program.flags:
            if not program.free:
                call.doubt(f"-{letter} is not among the options that only read")
            if "/" in rest:
                call.paths.append(Word(rest, rest))
