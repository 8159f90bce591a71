"""Which programs for sed and awk only print. Both languages can write files and run commands, so little is let through.

Pure. What is not plainly of the few forms known here is not safe.
"""

import re


def _until(mark: str, most: str = "*") -> str:
    """Text up to a mark. A bracket closes before the mark: whether a mark inside of it counts depends on the sed."""
    return rf"(?:[^{mark}\\\n\[]|\\[^\n]|\[\^?\]?(?:[^\]{mark}\\\n]|\\[A-Za-z])*\]){most}"


_ADDRESS = rf"(?:\d+(?:~\d+)?|\$|/{_until('/', '+')}/I?)"
_REPLACE = "|".join(
    rf"s{mark}{_until(mark)}{mark}(?:[^{mark}\\\n]|\\[^\n])*{mark}[gpiI0-9]*"
    for mark in ("/", r"\|", "#", ",", "@", "!")
)
_SED = re.compile(
    rf"\s*(?:{_ADDRESS}(?:\s*,\s*(?:{_ADDRESS}|\+\d+))?)?\s*!?\s*(?:[pd=]|[qQ]\d*|{_REPLACE})\s*(?:;|\Z)",
)
_STRING = r'"(?:[^"\\\n]|\\[^\n])*"'
_PATTERN = r"/(?:[^/\\\n]|\\[^\n])+/"
_AWK = re.compile(
    rf"(?P<blank>[ \t]+)|(?P<string>{_STRING})|(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_]\w*)|"
    r"(?P<mark>&&|\|\||[!=<>]=|\+\+|--|[-+*/%]=|!~|[$(){}\[\],;+\-*%<>=!~?:/])"
)
_WORDS = frozenset(
    ["print", "printf", "else", "in", "exit", "next", "do", "delete", "if", "for", "while", "BEGIN", "END"]
)
_CALLS = frozenset(
    [
        "length",
        "substr",
        "split",
        "sub",
        "gsub",
        "match",
        "tolower",
        "toupper",
        "index",
        "sprintf",
        "int",
        "sqrt",
        "if",
        "for",
        "while",
        "print",
        "printf",
    ]
)
_NEVER = frozenset(
    ["system", "getline", "close", "fflush", "func", "function", "nextfile", "return", "include", "load", "namespace"]
)
_BEFORE_PATTERN = frozenset(("", "(", "{", "}", ",", ";", "!", "~", "!~", "&&", "||"))
_VALUE = re.compile(r"[A-Za-z_]\w*=[^\x00-\x1f]*")


def sed_prints(script: str) -> bool:
    """Whether a sed script only chooses, deletes or replaces lines of its output."""
    at = 0
    while at < len(script):
        found = _SED.match(script, at)
        if not found or found.end() == at:
            return False
        at = found.end()
    return bool(script.strip())


def awk_prints(script: str) -> bool:
    """Whether an awk program only computes and prints: no command, no pipe, no file, no function of its own."""
    at, depth, before = 0, 0, ""
    while at < len(script):
        if script[at] == "/" and before in _BEFORE_PATTERN:
            pattern = re.compile(_PATTERN).match(script, at)
            if not pattern:
                return False
            at, before = pattern.end(), "/…/"
            continue
        if script[at] == "\n" or (script[at] == "/" and not _divided(before)):
            return False  # whether a pattern starts here is awk's secret
        found = _AWK.match(script, at)
        if not found:
            return False
        token, kind = found[0], found.lastgroup
        at = found.end()
        if kind == "blank":
            continue
        calls = script[at:].lstrip(" \t").startswith("(")
        if kind == "name" and (token in _NEVER or (calls and token not in _CALLS)):
            return False
        depth += (token == "{") - (token == "}")
        if token == ">" and depth:
            return False  # inside an action > writes to a file
        before = token
    return depth == 0 and bool(script.strip())


def _divided(before: str) -> bool:
    """Whether a / behind this token can only divide."""
    return before == "]" or (bool(re.fullmatch(r"\w[\w.]*", before)) and before not in _WORDS)


def awk_value(text: str) -> bool:
    """Whether it is `name=value`, as awk's -v takes it."""
    return bool(_VALUE.fullmatch(text))
