"""Sort the catalogues of messages and compare them with the code: `python -m scripts.messages`.

Each line is one entry, so that two branches can both add some. Prints what is missing, and exits with 1 if anything is.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

DATA = Path(__file__).parent.parent / "src" / "lamina" / "data"
SOURCE = DATA.parent
LANGUAGES = ("en", "zh")
SLOT = re.compile(r"\{(\w+)\}")


def read(lang: str) -> dict[str, str]:
    """The entries of a language; what a merge left (a missing comma, a line twice) is put right."""
    lines = (DATA / f"messages.{lang}.json").read_text(encoding="utf-8").splitlines()
    entries = [line.strip().rstrip(",") for line in lines if line.strip() not in ("{", "}", "{}", "")]
    return json.loads("{" + ",".join(entries) + "}")


def write(lang: str, entries: dict[str, str]) -> None:
    lines = ",\n".join(
        f"  {json.dumps(code, ensure_ascii=False)}: {json.dumps(entries[code], ensure_ascii=False)}"
        for code in sorted(entries)
    )
    (DATA / f"messages.{lang}.json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


@cache
def walk_code() -> list[ast.AST]:
    return [node for path in SOURCE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def strings_in_code() -> set[str]:
    """Every string in the package's code, in Python and on the page: a code that is used is one of them."""
    found = {node.value for node in walk_code() if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for path in SOURCE.rglob("*.js"):
        strings = set(re.findall(r"\"([\w.]+)\"", path.read_text(encoding="utf-8")))
        found |= strings | {f"page.{name}" for name in strings}
    return found


def beginnings_in_page() -> tuple[str, ...]:
    """What codes begin with that the page puts together: t(`call${state}`), word("trust", …)."""
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.js"))
    names = {*re.findall(r"(?:t|known)\([^)`]*`(\w+)\$\{", text), *re.findall(r"word\(\"(\w+)\"", text)}
    return ("layer.", "trust.", "gate.effect_", *(f"page.{name}" for name in sorted(names)))


def codes_composed() -> list[re.Pattern[str]]:
    """Codes that are put together, such as `f"cli.role.{role}"`, as patterns whose groups are strings of the code."""
    found: list[re.Pattern[str]] = []
    for node in walk_code():
        if isinstance(node, ast.JoinedStr):
            parts = [re.escape(str(one.value)) if isinstance(one, ast.Constant) else r"([\w.]+)" for one in node.values]
            if parts[0].startswith(("cli\\.", "bot\\.")):
                found.append(re.compile("".join(parts)))
    return found


def codes_said() -> set[str]:
    """Codes of commands and of the bot, wherever the code names one."""
    names = (node.value for node in walk_code() if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return {name for name in names if re.fullmatch(r"(cli|bot)(\.\w+)*\.\w*[^\W_]", name)}


def problems(catalogues: dict[str, dict[str, str]]) -> Iterator[str]:
    english, chinese = catalogues["en"], catalogues["zh"]
    for code in sorted(english.keys() ^ chinese.keys()):
        yield f"{code}: only in messages.{'en' if code in english else 'zh'}.json"
    for code in sorted(english.keys() & chinese.keys()):
        if set(SLOT.findall(english[code])) != set(SLOT.findall(chinese[code])):
            yield f"{code}: the two languages have different slots"
    used, beginnings = strings_in_code(), beginnings_in_page()
    composed = codes_composed()
    for code in sorted(english):
        if code in used or code.removesuffix(".hint") in used or code.startswith(beginnings):
            continue
        found = (pattern.fullmatch(code) for pattern in composed)
        if not any(match and used.issuperset(match.groups()) for match in found):
            yield f"{code}: no code says it"
    for code in sorted(codes_said() - english.keys()):
        yield f"{code}: it has no text"


def main() -> int:
    catalogues = {lang: read(lang) for lang in LANGUAGES}
    for lang, entries in catalogues.items():
        write(lang, entries)
    found = list(problems(catalogues))
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
