"""The command gate: whether a shell command only reads (`safe`), must be asked for (`confirm`) or never runs (`block`).

One reader (`shell_words`), one table (`command_words`); deny over ask over allow, over all parts of a chain. What is
not known asks. It judges and never runs anything; it looks at links and at git's configuration and writes nothing.
"""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from lamina.layers.command_dangers import destruction
from lamina.layers.command_git import SUBCOMMANDS as GIT
from lamina.layers.command_git import asks_for_effect, looks_inside
from lamina.layers.command_options import read_call, words_of
from lamina.layers.command_paths import Place, is_secret_path, why_not_there
from lamina.layers.command_repository import runs_programs
from lamina.layers.command_scripts import awk_prints, awk_value, jq_reads, sed_prints
from lamina.layers.command_trees import reaches_too_far, why_not_below
from lamina.layers.command_words import (
    ASKED_VERSION,
    FIND_TESTS,
    FIND_TEXTS,
    PROGRAMS,
    PS_COLUMNS,
    PS_WORDS,
    SHORT_VERSION,
    STEERED,
    SUBCOMMANDS,
    TEST_WORDS,
    WHY,
    Program,
)
from lamina.layers.shell_words import Part, Redirect, Word, read_script, visible_command
from lamina.types import Decision

__all__ = ["decide", "visible_command"]

Rule = Callable[[str, Sequence[Word], Place], str]
"""A program's own rule: its name, the words behind it, where it runs; out comes why to ask, or nothing."""

_SAY = frozenset(("echo", "basename", "dirname"))
"""Programs that open no file, whatever they are given."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")
_VARIABLE = re.compile(r"%[^A-Za-z%]*[hlLqjzt]*n")


def decide(command: str, *, root: Path) -> Decision:
    """What the gate says about a command that would run under bash in `root`. `shows` is what to show before a yes."""
    script = read_script(command)
    shows = visible_command(command)
    danger = destruction(command, script)
    if danger:
        return Decision("block", danger, shows)
    if script.unclear:
        return Decision("confirm", f"it cannot be read with certainty: {script.unclear}", shows)
    place: Place | None = Place.at(root)
    for part in script.parts:
        why = _why_ask(part, place)
        if why:
            return Decision("confirm", why, shows)
        if part.words[0].text == "cd":
            place = place.moved(part.words[1].text)
            if place is None:
                return Decision("confirm", "cd: it changes the folder too often", shows)
    names = dict.fromkeys(part.words[0].text for part in script.parts)
    return Decision("safe", f"{', '.join(names)}: only read", shows)


def _why_ask(part: Part, place: Place) -> str:
    first = part.words[0]
    name = _name_of(first)
    label = visible_command(first.text if len(first.text) <= 60 else f"{first.text[:59]}…")
    why = "" if name else _odd_name(first)
    why = (
        why
        or _call(name, part.words[1:], place)
        or next(filter(None, (_redirected(redirect, place) for redirect in part.redirects)), "")
    )
    return f"{label}: {why}" if why else ""


def _name_of(word: Word) -> str:
    """The program's plain name, empty when it is not written plainly."""
    if word.text == "[" and word.raw == "[":
        return "["
    name = re.sub(r"^(?:/usr)?/bin/", "", word.text)
    plain = not (word.quoted or word.globs or word.tilde) and re.fullmatch(r"[A-Za-z0-9:][\w.+-]*", name, re.ASCII)
    return name if plain else ""


def _odd_name(word: Word) -> str:
    if _ASSIGNMENT.match(word.raw):
        return "it sets a variable"
    if not word.text.isascii():
        return "its name holds letters that are not ASCII and may look like others"
    if "/" in word.text:
        return "a program that is named by its path may be anything"
    return "its name is written in an unusual way"


def _call(name: str, words: Sequence[Word], place: Place) -> str:
    """Why a call of a plainly named program must be asked for."""
    steering = next((file for up in place.above() for file in STEERED.get(name, ()) if os.path.lexists(up / file)), "")
    if steering:
        return f"{steering} may make it run something else"
    if len(words) == 1 and _asks_version(name, words[0].text):
        return ""
    rule = RULES.get(name)
    if rule:
        return rule(name, words, place)
    program = PROGRAMS.get(name)
    if program is None:
        return WHY.get(name, "it is not among the programs that only read")
    call = read_call(words, program, place)
    known = SUBCOMMANDS.get(name)
    if known and not call.why and not (call.texts and call.texts[0] in known):
        asked = not call.texts and call.options & {"--version", "--help"}
        return "" if asked else f"only {', '.join(sorted(known))} are known to read"
    return call.why or reaches_too_far(name, call, words_of(call, program), place)


def _asks_version(name: str, option: str) -> bool:
    return (option == "--version" and name in ASKED_VERSION) or name in SHORT_VERSION.get(option, ())


def _redirected(redirect: Redirect, place: Place) -> str:
    target, operator = redirect.target, redirect.operator
    if operator == ">&" and re.fullmatch(r"[0-9]", target.text) and not target.quoted:
        return ""
    if operator in (">", ">>", "&>", "&>>", ">&", ">|") and target.raw == "/dev/null":
        return ""
    if operator == "<" and not target.globs:
        return why_not_there(target, place)
    return f"{operator} {target.text[:60]} writes to a file" if ">" in operator else f"{operator} is not known here"


def _cd(_name: str, words: Sequence[Word], place: Place) -> str:
    if len(words) != 1 or words[0].globs or words[0].text in ("", "-") or words[0].text.startswith("-"):
        return "it does not say plainly which folder"
    if ".." in words[0].text.split("/"):
        return "it goes up"
    return why_not_there(words[0], place)


def _find(_name: str, words: Sequence[Word], place: Place) -> str:
    takes_text = False
    for word in words:
        text = word.text
        if word.globs and (
            text.startswith("-") or (word.globs[0] == 0 and "." not in re.sub(r"\[[^\]]*\]?", "", text))
        ):
            return f"{text} may become an option, when a file is named so"
        if takes_text:
            takes_text = False
            if text.startswith("-") and not re.fullmatch(r"-\d*", text):
                return f"{text} may be an option or a value"
            continue
        takes_text = text in FIND_TEXTS
        if (
            re.match(r"-[A-Za-z]", text)
            and text not in FIND_TESTS
            and not re.fullmatch(r"-newer[aBcm][aBcmt]|-O[0-3]", text)
        ):
            return f"{text} is not among the tests that only read"
        if not text.startswith(("-", "+")) and text not in ("!", "(", ")", ","):
            why = why_not_there(word, place)
            if why:
                return why
    return ""


def _git(_name: str, words: Sequence[Word], place: Place) -> str:
    words = list(words)
    while words and words[0].text in ("--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs"):
        words.pop(0)
    if not words:
        return ""
    if words[0].text == "-C" and len(words) > 2:
        why = _cd("cd", [words[1]], place)
        moved = place.moved(words[1].text) if not why else None
        if moved is None:
            return why or "it changes the folder too often"
        place, words = moved, words[2:]
    subcommand = words[0].text
    program = GIT.get(subcommand)
    if program is None or words[0].quoted or words[0].globs:
        return f"{subcommand[:60]} is not among git's commands that only read"
    call = read_call(words[1:], program, place)
    if call.why:
        return call.why
    if any("%G" in word.text or "%(signature" in word.text for _, word in call.values):
        return "its format starts the program that checks signatures"
    secret = next((word.text for _, word in call.values if is_secret_path(word.text)), "")
    if secret:
        return f"{secret[:60]} may hold secrets"
    why = asks_for_effect(subcommand, call.options, call.texts)
    if not why and subcommand == "grep":
        why = why_not_below(["."], place)
    deep = looks_inside(subcommand, call.options)
    roots = (runs_programs(Path(each), Path(place.root), descends=deep) for each in place.folders)
    return why or next(filter(None, roots), "")


def _sed(_name: str, words: Sequence[Word], place: Place) -> str:
    given = any(re.match(r"-[nErsuz]*e|--expression", word.text) for word in words)
    program = Program("nErsuz", "e", long="quiet silent expression= regexp-extended separate", words=0 if given else 1)
    call = read_call(words, program, place)
    if call.why:
        return call.why
    scripts = call.value("-e", "--expression") if given else call.texts[:1]
    if not given and call.operands and call.operands[0].globs:
        return "its script may become a file's name"
    return "" if scripts and all(map(sed_prints, scripts)) else "its script may write files or run programs"


def _awk(_name: str, words: Sequence[Word], place: Place) -> str:
    call = read_call(words, Program("", "Fv", words=1), place)
    if call.why:
        return call.why
    if not all(map(awk_value, call.value("-v"))):
        return "-v needs name=value, with a name of its own"
    if any("=" in text for text in call.texts[1:]):
        return "a file's name with = in it sets a variable"
    if not call.operands or call.operands[0].globs or not awk_prints(call.texts[0]):
        return "its program may write files or run programs, or read others"
    return ""


def _jq(name: str, words: Sequence[Word], place: Place) -> str:
    """--arg takes two words, so that any of them may be the program."""
    call = read_call(words, PROGRAMS[name], place)
    return call.why or ("" if all(jq_reads(word.text) for word in words) else "its program may read other files")


def _strings(name: str, words: Sequence[Word], place: Place) -> str:
    if any(word.text.startswith("@") for word in words):
        return "@ reads options from a file"
    return read_call(words, PROGRAMS[name], place).why


def _iconv(name: str, words: Sequence[Word], place: Place) -> str:
    call = read_call(words, PROGRAMS[name], place)
    odd = next((word.text for _, word in call.values if not re.fullmatch(r"[\w.:+-]+(//\w+)*", word.text)), "")
    return call.why or (f"{odd[:60]} is no charset's name" if odd else "")


def _xargs(_name: str, words: Sequence[Word], place: Place) -> str:
    """Only for programs that open no file: who names a file decides what another program would be given."""
    words = list(words)
    while words and words[0].text.startswith("-"):
        option = words.pop(0).text
        if option in ("-n", "-L", "-P", "-d", "-I", "-s") and words:
            value = words.pop(0).text
        elif re.fullmatch(r"-(?:0|r|t|0r|r0|[nLP]\d+|I\{\}|I%)", option) or option in ("--null", "--no-run-if-empty"):
            continue
        else:
            return f"{option} is not among the options that only read"
        if option == "-I" and value not in ("{}", "%", "@"):
            return "-I may replace the program's name"
        if option in ("-n", "-L", "-P", "-s") and not value.isdecimal():
            return f"{option} needs a number"
    if not words:
        return ""
    name = _name_of(words[0])
    return _call(name, words[1:], place) if name in _SAY else f"{words[0].text[:60]} could be given any file or option"


def _test(name: str, words: Sequence[Word], place: Place) -> str:
    """`test` and `[`. -v and -R look a variable up, and its name may hold a command."""
    if name == "[" and (not words or words[-1].text != "]"):
        return "its ] is missing"
    for word in words:
        if word.globs and word.text != "]" and word.globs[0] == 0:
            return f"{word.text} may become an operator"
        if word.text in TEST_WORDS:
            continue
        if word.text.startswith("-") and not re.fullmatch(r"-[fdesrxwLhnzaoNOGSpbcuk]", word.text):
            return f"{word.text} is not among the tests that only read"
        why = why_not_there(word, place)
        if why:
            return why
    return ""


def _ps(_name: str, words: Sequence[Word], place: Place) -> str:
    """Its letter e, without a dash, shows the environment of other processes."""
    call = read_call(words, PROGRAMS["ps"], place)
    words_of = {each for text in call.texts for each in text.split(",") if not each.isdecimal()}
    if not words_of <= PS_COLUMNS | set(PS_WORDS) or any(
        re.match(r"-[a-zA-Z]*[ax][a-zA-Z]*e", option) for option in call.options
    ):
        return "it may show the environment of other processes"
    columns = {re.sub(r"[=:].*", "", column) for value in call.value("-o") for column in value.split(",")}
    return call.why if columns <= PS_COLUMNS else "it may show the environment of other processes"


def _date(name: str, words: Sequence[Word], place: Place) -> str:
    call = read_call(words, PROGRAMS[name], place)
    sets = [text for text in call.texts if not text.startswith("+")]
    return call.why or (f"{sets[0][:60]} may set the clock" if sets else "")


def _printf(_name: str, words: Sequence[Word], _place: Place) -> str:
    """-v and %n set a variable, and a variable's name may hold a command."""
    if words and words[0].text.startswith("-"):
        return "it may set a variable"
    if any(_VARIABLE.search(word.text) for word in words):
        return "%n sets a variable"
    return "its words may become others" if any(word.globs for word in words) else ""


def _command(name: str, words: Sequence[Word], place: Place) -> str:
    call = read_call(words, PROGRAMS[name], place)
    if not words or words[0].text not in ("-v", "-V"):
        return "it runs a program"
    return call.why


def _unzip(name: str, words: Sequence[Word], place: Place) -> str:
    call = read_call(words, PROGRAMS[name], place)
    return call.why or ("" if "-l" in call.options else "it writes files")


def _ip(name: str, words: Sequence[Word], place: Place) -> str:
    call = read_call(words, PROGRAMS[name], place)
    texts = call.texts
    if not texts or texts[0] not in SUBCOMMANDS["ip"] or (len(texts) > 1 and texts[1] not in ("show", "list", "ls")):
        return "it may change the network"
    return call.why


def _tar(_name: str, words: Sequence[Word], place: Place) -> str:
    """Only lists: `tar -tf file`. A colon in the name would be another machine."""
    if len(words) < 2 or not re.fullmatch(r"-?tv?[zjJa]?v?f", words[0].text):
        return WHY["tar"]
    if any(word.text.startswith("-") or word.globs for word in words[1:]) or ":" in words[1].text:
        return WHY["tar"]
    return next(filter(None, (why_not_there(word, place) for word in words[1:])), "")


RULES: dict[str, Rule] = {
    "cd": _cd, "find": _find, "git": _git, "sed": _sed, "awk": _awk, "gawk": _awk, "mawk": _awk, "test": _test,
    "[": _test,
    "ps": _ps, "date": _date, "printf": _printf, "command": _command, "unzip": _unzip, "ip": _ip, "tar": _tar,
    "jq": _jq, "strings": _strings, "iconv": _iconv, "xargs": _xargs,
}  # fmt: skip
