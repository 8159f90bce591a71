"""The list of calls that only read, from `programs.txt`, and what its rows cannot express. Nothing is decided here."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LISTS = frozenset("-l --list --contains --no-contains --merged --no-merged".split())
TAKES_PATHS = frozenset("grep blame log show diff".split())  # behind a bare --
SETTINGS = frozenset(
    "user.name user.email core.editor core.autocrlf core.ignorecase core.eol core.filemode init.defaultbranch "
    "pull.rebase push.default".split()
)
STEERED, STEERING = ("cargo", "rustc", "rustup"), ("rust-toolchain", "rust-toolchain.toml")
ARCHIVES = (".zip", ".jar", ".whl", ".tar", ".gz", ".tgz", ".xz", ".bz2")
RG_HIDDEN = frozenset("-u -g -t --glob --type --hidden --no-ignore".split())  # with these, dot files are read too
TEST_FILES = frozenset("-e -f -d -s -r -w -x -L -h".split())
_LINES = r"(?:[0-9]{1,9}|\$|/[\w .:-]{1,80}/)"
_PIECE = r"(?:[^/\\\n]|\\[^/\n])*"
_TEST = r'(?:!?/[\w .:-]{1,80}/|(?:NR|NF|length|\$[0-9]{1,4}) ?(?:[=!<>]=|[<>]) ?(?:[0-9]{1,9}|"[\w .:-]{0,80}"))'
_ITEM = r'(?:\$(?:[0-9]{1,4}|NF)|NR|NF|"[^"\\\n]{0,80}")'
SCRIPTS = {
    "sed": re.compile(rf"{_LINES}(?:,{_LINES})?[pdq]|s/{_PIECE}/{_PIECE}/[gpI]{{0,3}}"),
    "awk": re.compile(
        rf"(?:{_TEST}(?: ?(?:&&|\|\|) ?{_TEST})* ?)?(?:\{{ ?print(?: {_ITEM}(?:,? ?{_ITEM})*)? ?\}})?"
        r"|\{ ?(?:sum|total|s|n) ?\+= ?\$[0-9]{1,4} ?\} ?END ?\{ ?print (?:sum|total|s|n) ?\}"
    ),
    "jq": re.compile(r"[^$\\@#\"]{1,1000}"),
}
"""Programs with a language of their own, and forms of scripts that only print: lines, replacements, fields, filters."""
_JQ_WORDS = frozenset(
    "keys length select map type not and or null true false first last add has sort sort_by unique group_by min max "
    "flatten reverse to_entries from_entries with_entries map_values values tostring tonumber join split test contains "
    "startswith endswith ascii_downcase any all if then else end del paths empty".split()
)
_JQ_FIELDS = re.compile(r"\{ ?[A-Za-z_]\w{0,40}(?:, ?[A-Za-z_]\w{0,40}){0,20} ?\}")


@dataclass(frozen=True, slots=True)
class Row:
    """`options` have no value; `values` maps an option to the form of the next word, `attached` the beginning of an
    option to the form of its rest; `operands` is the form of everything else."""

    options: frozenset[str]
    values: dict[str, str]
    attached: dict[str, str]
    operands: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows by the first words of a command, whole commands, programs with --version, and the effects of others."""

    rows: dict[str, Row]
    fixed: frozenset[str]
    versioned: frozenset[str]
    effects: dict[str, str]


@cache
def read_table() -> Table:
    text = Path(__file__).with_name("programs.txt").read_text(encoding="utf-8")
    lines = [line for line in text.replace("\n   ", " ").splitlines() if line and not line.startswith("#")]
    marked = {mark: [line[2:] for line in lines if line.startswith(f"{mark} ")] for mark in "!v?"}
    pairs = [line.split(" = ") for line in lines if line[:2] not in ("! ", "v ", "? ")]
    rows = {name: _parse_row(row) for names, row in pairs for name in names.split(", ")}
    listed = [line.split(": ") for line in marked["?"]]
    effects = {name: f"gate.effect_{effect}" for effect, names in listed for name in names.split()}
    fixed = frozenset(each.strip() for line in marked["!"] for each in line.split(";"))
    return Table(rows, fixed, frozenset(" ".join(marked["v"]).split()), effects)


def _parse_row(text: str) -> Row:
    spelled, _, operands = f" {text} ".partition(" : ")
    options, values, attached = set[str](), dict[str, str](), dict[str, str]()
    for each in spelled.split():
        if each.endswith(">"):
            values[each[:-3]] = each[-2]
        elif each[-1] in "#%@~" or each[-2:] in ("=T", "=N", "=L", "=W"):
            attached[each[:-1]] = each[-1]
        else:
            options.add(each)
    return Row(frozenset(options), values, attached, operands.strip())


def is_known_script(name: str, script: str) -> bool:
    """Whether a script has a known form. Unknown words of jq may read the environment, modules and more input, but in a
    string without a backslash, and as the name of a field in `{id, name}`, a word is only text."""
    if name == "jq" and len(script) <= 1000:
        script = _JQ_FIELDS.sub("{}", re.sub(r'"[^"\\]{0,1000}"', " 0 ", script))
        if not set(re.findall(r"(?<![\w.])[A-Za-z_]\w{0,40}", script)) <= _JQ_WORDS:
            return False
    return SCRIPTS[name].fullmatch(script) is not None
