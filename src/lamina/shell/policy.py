"""The command gate: whether a shell command only reads (`safe`), must be asked for (`confirm`) or never runs (`block`).

Block wins over confirm, and confirm over safe, for all parts of a chain; what is not on the list of `programs` must be
asked for. The gate runs and writes nothing, and opens only git's configuration and ignore files.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lamina.shell import programs as table
from lamina.shell.destructive import why_destructive
from lamina.shell.tokens import Part, Redirect, Word, is_assignment, read_script
from lamina.text.messages import Phrase
from lamina.text.unicode import visible_command
from lamina.tools.closed_files import MAX_LOOKS, CommandScope, OwnFiles, TooManyNamesError, shorten_command
from lamina.types import Decision

_READABLE_OUTSIDE = frozenset(
    "/dev/null /dev/stdin /etc/os-release /etc/issue /etc/debian_version /etc/hostname /proc/cpuinfo /proc/meminfo "
    "/proc/version /proc/loadavg /proc/uptime".split()
)
_VALUE_FORMS = {
    "N": re.compile(r"\+?[0-9]{1,12}"), "#": re.compile(r"[0-9]{1,12}"), "L": re.compile(r"[0-9][0-9,.nr-]{0,60}"),
    "%": re.compile(r"[0-9][0-9,.nr-]{0,60}"), "@": re.compile(r"[^\n]"), "W": re.compile(r"\w[\w.:+-]{0,60}"),
    "T": re.compile(r"[^\0]*"), "~": re.compile(r"[^\0]+"), "S": re.compile(r"[+-]?[0-9]{1,12}[ckMGwb]?"),
}  # fmt: skip


@dataclass
class ParsedCall:
    """The words after a program's name, sorted; `why` is the first reason to ask."""

    options: list[str] = field(default_factory=list[str])
    values: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    operands: list[Word] = field(default_factory=list[Word])
    why: Phrase | None = None

    def values_of(self, name: str) -> list[str]:
        return [value for option, value in self.values if option == name]


def decide(command: str, *, root: Path, closed: Collection[Path] | OwnFiles = ()) -> Decision:
    """Whether bash may run a command in `root`. A command that reads a file in `closed` needs a yes."""
    shows, script = visible_command(command), read_script(command)
    if danger := why_destructive(script, command):
        return Decision("block", danger, shows)
    if script.unclear:
        return Decision("confirm", Phrase("gate.unclear", why=script.unclear), shows)
    try:
        why = _why_parts(script.parts, CommandScope.at(root, closed))
    except TooManyNamesError:
        why = Phrase("gate.too_many_names", limit=MAX_LOOKS)
    programs = list(dict.fromkeys(part.words[0].text for part in script.parts))
    safe = Decision("safe", Phrase("gate.only_reads", programs=programs), shows)
    return Decision("confirm", why, shows) if why else safe


def _why_parts(parts: Sequence[Part], scope: CommandScope) -> Phrase | None:
    for part in parts:
        why = _why_part(part, scope)
        moved = scope.move(part.words[1].text) if not why and part.words[0].text == "cd" else scope
        if why or moved is None:
            return why or Phrase("gate.too_many_folders")
        scope = moved
    return None


def _why_part(part: Part, scope: CommandScope) -> Phrase | None:
    first, *words = part.words
    redirects = (_why_redirect(each, scope) for each in part.redirects)
    why = _why_name(first) or _why_call(first.text, words, scope) or _first(redirects)
    return Phrase("gate.of_program", program=shorten_command(first.text), why=why) if why else None


def _first(reasons: Iterable[Phrase | None]) -> Phrase | None:
    return next(filter(None, reasons), None)


def _why_name(word: Word) -> Phrase | None:
    if word.text == word.raw and (word.text in ("[", ":") or re.fullmatch(r"[a-z0-9][a-z0-9_+-]{0,40}", word.text)):
        return None
    if is_assignment(word):
        return Phrase("gate.sets_variable")
    if not word.text.isascii():
        return Phrase("gate.name_not_ascii")
    return Phrase("gate.named_by_path" if "/" in word.text else "gate.unusual_name")


def _why_call(name: str, words: Sequence[Word], scope: CommandScope) -> Phrase | None:
    texts = [word.text for word in words]
    for steering in table.STEERING if name in table.STEERED else ():
        if any(scope.disk.exists(f"{up}/{steering}") for one in scope.folders for up in (one, *Path(one).parents)):
            return Phrase("gate.steered", file=steering)
    plain = not any(word.quoted or word.globs or word.tilde for word in words)
    known = table.read_table()
    if plain and (" ".join([name, *texts]) in known.fixed or (texts == ["--version"] and name in known.versioned)):
        return None
    if name in table.SCRIPTS:
        return _why_script(name, words, scope)
    if name in _RULES:
        return _RULES[name](words, scope)
    two = [] if name in known.rows else [word.raw for word in words[:1]]
    row = known.rows.get(" ".join([name, *two]))
    if row is None:
        whole = name == "rm" and any(scope.holds_root(text) for text in texts if text[:1] != "-")
        return Phrase("gate.removes_workspace" if whole else known.effects.get(name, "gate.not_on_list"))
    call = read_call(words[len(two) :], row, scope)
    return call.why or _why_special(name, call, scope)


def read_call(words: Sequence[Word], row: table.Row, scope: CommandScope) -> ParsedCall:
    call, waiting = ParsedCall(), list(reversed(words))
    while waiting and not call.why:
        word = waiting.pop()
        if word.tilde:
            call.why = Phrase("gate.leads_home", path=shorten_command(word.text))
        elif word.text == "-" or not word.text.startswith("-") or row.operands == "anything":
            call.operands.append(word)
        elif row.operands == "file" and call.operands:  # such a program takes no options after an operand
            call.why = Phrase("gate.taken_for_file", word=shorten_command(word.text))
        elif word.globs and _expand(word, scope):
            call.why = Phrase("gate.may_become_name", word=shorten_command(word.text))
        else:
            call.why = _read_option(word.text, row, call, waiting, scope)
    call.why = call.why or _why_operands(call, row.operands, scope)
    return call


def _read_option(
    text: str, row: table.Row, call: ParsedCall, waiting: list[Word], scope: CommandScope
) -> Phrase | None:
    joined = len(text) > 2 and text[1] != "-" and all(f"-{letter}" in row.options for letter in text[1:])
    if text in row.options or joined:
        call.options += [f"-{letter}" for letter in text[1:]] if joined else [text]
        return None
    for prefix, kind in row.attached.items():
        if text.startswith(prefix) and _VALUE_FORMS[kind].fullmatch(text[len(prefix) :]):
            call.options.append(prefix.rstrip("="))
            call.values.append((prefix.rstrip("="), text[len(prefix) :]))
            return None
    if text not in row.values:
        return Phrase("gate.unknown_option", option=shorten_command(text.partition("=")[0]))
    value = waiting.pop() if waiting else Word("", "")
    odd = value.tilde or value.text.startswith("-") or not value.raw or (value.globs and _expand(value, scope))
    if odd or not _VALUE_FORMS[row.values[text]].fullmatch(value.text):
        return Phrase("gate.needs_plain_value", option=text)
    if call.operands and row.values[text] == "T" and scope.why_closed(value.text):
        return Phrase("gate.taken_for_file", word=shorten_command(value.text))
    call.options.append(text)
    call.values.append((text, value.text))
    return None


def _expand(word: Word, scope: CommandScope) -> list[str]:
    """What a glob expands to on the disk, or the word itself when it is not a glob."""
    found = [scope.disk.expand_glob(word.text, word.globs, folder) for folder in scope.folders if word.globs]
    return [name for names in found for name in names] if word.globs else [word.text]


def _why_operands(call: ParsedCall, form: str, scope: CommandScope) -> Phrase | None:
    operands = call.operands
    if form in ("texts", "anything"):
        operands = [word for word in operands if word.globs]
    elif (not form and operands) or (form == "file" and (len(operands) > 1 or any(word.globs for word in operands))):
        return Phrase("gate.operand_with_effect", word=shorten_command(operands[-1].text))
    elif form.startswith("text") and not {"-e", "--files", "--type-list"} & set(call.options):
        operands = [word for at, word in enumerate(operands) if at or word.globs]
    return _first(_why_word(word, scope) for word in operands)


def _why_word(word: Word, scope: CommandScope) -> Phrase | None:
    if word.text in _READABLE_OUTSIDE and not word.globs:
        return None
    if word.tilde:
        return Phrase("gate.leads_home", path=shorten_command(word.text))
    if word.globs:
        return scope.why_glob_closed(word.text, word.globs)
    closed = scope.why_closed(word.text or ".")
    return Phrase(closed, path=shorten_command(word.text)) if closed else None


def _why_special(name: str, call: ParsedCall, scope: CommandScope) -> Phrase | None:
    """Checks that a row of the list cannot express: operands with an effect, and everything below a folder."""
    options, texts = set(call.options), [word.text for word in call.operands]
    if name == "date" and not all(text.startswith("+") for text in texts):
        return Phrase("gate.sets_clock")
    if name == "command" and not options:
        return Phrase("gate.effect_runs")
    if name in ("tar", "unzip"):  # a colon names another machine, and unzip also tries names with .zip
        plain = len(texts) == 1 and texts[0].endswith(table.ARCHIVES) and not set(":*?[") & set(texts[0])
        if not plain:
            return Phrase("gate.unclear_archive")
        return _first(_why_word(Word(text + end, text + end), scope) for text in texts for end in (".zip", ".ZIP"))
    if name == "date" and any("TZ" in value for _, value in call.values):
        return Phrase("gate.tz_reads_file")
    if name == "strings" and any(text[:1] == "@" for word in call.operands for text in _expand(word, scope)):
        return Phrase("gate.options_from_file")
    files = call.operands if name == "diff" or "-e" in options else call.operands[1:]
    starts = [each for word in files for each in _expand(word, scope)]
    if name in ("grep", "egrep", "fgrep") and options & {"-r", "--recursive"}:
        only, without = call.values_of("--include"), call.values_of("--exclude-dir")
        return scope.why_tree_closed(starts or ["."], only=only, without=without)
    if name == "rg" and not options & {"--files", "--type-list"}:
        return scope.why_tree_closed(starts or ["."], hidden=bool(options & table.RG_HIDDEN))
    return scope.why_tree_closed(starts, follows=True) if name == "diff" else None


def _why_redirect(redirect: Redirect, scope: CommandScope) -> Phrase | None:
    target, operator = redirect.target, redirect.operator
    if (">" in operator and target.raw == "/dev/null") or (operator == ">&" and target.raw in ("0", "1", "2")):
        return None
    if operator == "<" and not target.globs:
        return _why_word(target, scope)
    code = "gate.redirect_writes" if ">" in operator else "shell.unknown_operator"
    return Phrase(code, mark=operator, target=shorten_command(target.text))


def _why_cd(words: Sequence[Word], scope: CommandScope) -> Phrase | None:
    if len(words) != 1 or words[0].globs or words[0].text[:1] in ("", "-") or ".." in words[0].text.split("/"):
        return Phrase("gate.unclear_folder")
    return _why_word(words[0], scope)


def _why_find(words: Sequence[Word], scope: CommandScope) -> Phrase | None:
    row, waiting = table.read_table().rows["find"], list(reversed(words))
    while waiting:
        word = waiting.pop()
        text, kind = word.text, row.values.get(word.text, "")
        if text in row.options and not word.globs:
            continue
        if kind:
            value = waiting.pop() if waiting else Word("", "")
            if kind == "S" and not _VALUE_FORMS["S"].fullmatch(value.text):
                return Phrase("gate.needs_number", option=text)
            if kind != "S" and value.text.startswith("-"):
                return Phrase("gate.may_be_test", word=shorten_command(value.text))
            word = value if value.globs or kind == "F" else Word(".", ".")
        elif text.startswith("-"):
            return Phrase("gate.unknown_test", option=shorten_command(text))
        if why := _why_word(word, scope):
            return why
    return None


def _why_git(words: Sequence[Word], scope: CommandScope) -> Phrase | None:
    words = words[1:] if words and words[0].raw == "--no-pager" else words
    if len(words) > 2 and words[0].raw == "-C":
        moved = None if _why_cd(words[1:2], scope) else scope.move(words[1].text)
        if moved is None:
            return Phrase("gate.unclear_git_folder")
        scope, words = moved, words[2:]
    rows, names = table.read_table().rows, [word.raw for word in words[:2]]
    name = next((each for each in (" ".join(names), *names[:1]) if f"git {each}" in rows), "")
    if not name:
        return Phrase("gate.unknown_git_command", name=shorten_command("".join(names[:1])))
    row, words = rows[f"git {name}"], words[len(name.split()) :]
    bare = next((at for at, word in enumerate(words) if word.raw == "--"), len(words))
    if name in table.TAKES_PATHS and not any(word.text.startswith("-") for word in words[bare + 1 :]):
        words = [*words[:bare], *words[bare + 1 :]]
    call = read_call(words, row, scope)
    texts = [word.text for word in call.operands]
    if call.why:
        return call.why
    if row.operands == "listed" and texts and not table.LISTS & set(call.options):
        return Phrase("gate.git_creates", name=name)
    if row.operands == "setting" and (len(texts) != 1 or texts[0].lower() not in table.SETTINGS):
        return Phrase("gate.git_setting")
    pieces = [piece for _, value in call.values for piece in value.split("%")[1:]]
    if any("G" in piece.lstrip("+- ")[:1] or "signature" in piece for piece in pieces):
        return Phrase("gate.git_signatures")
    if any(text.startswith(":") for text in texts):
        return Phrase("gate.git_colon")
    why = scope.why_tree_closed(["."]) if name == "grep" else None
    why = why or (scope.why_tree_closed(texts, follows=True) if name == "diff" and texts else None)
    return why or scope.why_repository()


def _why_script(name: str, words: Sequence[Word], scope: CommandScope) -> Phrase | None:
    """Programs with a language of their own: the whole script must have one of a few forms."""
    call = read_call(words, table.read_table().rows[name], scope)
    scripts = call.values_of("-e") or [word.text for word in call.operands[:1]]
    odd = any(word.globs for word in (*words, *call.operands[:1]) if word.text in scripts)
    if call.why or odd or any("=" in word.text for word in call.operands[1:]):  # awk reads a=b as a variable
        return call.why or Phrase("gate.not_script_and_files")
    known = all(table.is_known_script(name, script) for script in scripts)
    return None if scripts and known else Phrase("gate.unknown_script")


def _why_bracket(words: Sequence[Word], scope: CommandScope) -> Phrase | None:
    return _why_test(words[:-1], scope) if words and words[-1].raw == "]" else Phrase("gate.bracket_missing")


def _why_test(words: Sequence[Word], scope: CommandScope) -> Phrase | None:
    words = words[1:] if words and words[0].raw == "!" else words
    texts = [word.text for word in words]
    if any(word.globs for word in words):
        return Phrase("gate.glob_operator")
    if len(texts) == 2 and texts[0] in table.TEST_FILES:
        return _why_word(words[1], scope)
    plain = (len(texts) == 2 and texts[0] in ("-n", "-z")) or (len(texts) == 3 and texts[1] in ("=", "==", "!="))
    return None if plain else Phrase("gate.not_plain_test")


def _why_printf(words: Sequence[Word], _scope: CommandScope) -> Phrase | None:
    form = words[0].text if words else "-"
    odd = form.startswith("-") or any(piece[:1] not in ("s", "d") for piece in form.replace("%%", "").split("%")[1:])
    return Phrase("gate.may_set_variable") if odd or any(word.globs or "%n" in word.text for word in words) else None


_RULES: dict[str, Callable[[Sequence[Word], CommandScope], Phrase | None]] = {
    "cd": _why_cd, "find": _why_find, "git": _why_git, "test": _why_test, "printf": _why_printf, "[": _why_bracket,
}  # fmt: skip
