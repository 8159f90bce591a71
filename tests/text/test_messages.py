"""Codes decide, text is displayed: catalogues are complete, errors name codes, nothing compares what people read."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripts.messages import SOURCE, problems, read

from lamina import errors
from lamina.errors import InputError, LaminaError
from lamina.text.messages import LANGUAGES, Phrase, catalogue, join_clauses

ERRORS = {name for name in vars(errors) if name.endswith("Error")} | {"HttpError", "MethodError"}
FREE_TEXT = {
    "src/lamina/text/messages.py",  # where text is made
}
SPLITS = {"startswith", "endswith", "split", "partition", "rpartition", "removeprefix", "removesuffix", "find", "index"}


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield str(path.relative_to(SOURCE.parent.parent)), ast.parse(path.read_text(encoding="utf-8"))


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def codes_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The codes that errors are made with, where they are written out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_of(node.func) in ERRORS and node.args:
            place = 1 if name_of(node.func) == "HttpError" else 0
            code = node.args[place] if len(node.args) > place else node.args[0]
            if isinstance(code, ast.Constant) and isinstance(code.value, str):
                yield node.lineno, code.value
            elif isinstance(code, ast.JoinedStr):
                yield node.lineno, "a text that is put together"


def is_rendered(node: ast.expr) -> bool:
    """Is this text for people: `error.message`, `error.hint`, `phrase.text(…)`, `str(error)`?"""
    if isinstance(node, ast.Attribute):
        return node.attr in ("message", "hint") and name_of(node.value) in ("error", "problem", "fault", "ended")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "text":
        return name_of(node.func.value) in ("phrase", "reason", "next_step", "error", "hint")
    return (
        isinstance(node, ast.Call)
        and name_of(node.func) == "str"
        and bool(node.args)
        and name_of(node.args[0]) == "error"
    )


def comparisons_in(tree: ast.AST) -> list[int]:
    """Where rendered text is compared, searched or split."""
    found: list[int] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(map(is_rendered, (node.left, *node.comparators))):
            found.append(node.lineno)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SPLITS:
            blanks_only = node.func.attr == "split" and not node.args
            found += [node.lineno] if is_rendered(node.func.value) and not blanks_only else []
    return found


def test_both_languages_have_every_entry_with_the_same_slots_and_each_is_used() -> None:
    assert list(problems({lang: read(lang) for lang in LANGUAGES})) == []


def test_a_missing_translation_another_slot_an_unused_entry_and_a_code_without_text_are_found() -> None:
    first, second = "no.such_code", "no.other_code"
    english, chinese = {**read("en"), first: "{x}", second: "b"}, {**read("zh"), first: "{y}"}
    del english["cli.unchanged"], chinese["cli.unchanged"]
    found = list(problems({"en": english, "zh": chinese}))
    assert [line.split(":")[0] for line in found] == [second, first, second, first, "cli.unchanged"]


def test_names_are_joined_with_commas_and_clauses_with_semicolons() -> None:
    clauses = join_clauses([Phrase("arguments.missing", name=name) for name in ("a", "b", "c")])
    assert clauses.text() == "a is missing; b is missing; c is missing"
    assert clauses.text("zh").count("；") == 2
    assert join_clauses([Phrase("arguments.maybe_more")]) == Phrase("arguments.maybe_more")
    assert "openai, local" in Phrase("outcome.unknown_tool", name="x", known=["openai", "local"]).text()


def test_every_error_names_a_code_of_the_catalogues() -> None:
    known = catalogue("en")
    wrong = [f"{path}:{line} {code}" for path, tree in trees() for line, code in codes_in(tree) if code not in known]
    assert wrong == []


def test_nothing_compares_or_splits_what_people_read() -> None:
    assert {path: lines for path, tree in trees() if path not in FREE_TEXT and (lines := comparisons_in(tree))} == {}


@pytest.mark.parametrize(
    "code",
    [
        'if error.message == "x": pass', 'if "x" in error.hint: pass', 'error.message.split(": ")',
        'if phrase.text() != "x": pass', 'if str(error).startswith("x"): pass',
    ],
)  # fmt: skip
def test_a_planted_comparison_is_found(code: str) -> None:
    assert comparisons_in(ast.parse(code)) == [1]


def test_a_planted_sentence_is_found() -> None:
    assert list(codes_in(ast.parse('raise InputError("x is wrong")'))) == [(1, "x is wrong")]
    assert next(codes_in(ast.parse('raise InputError(f"{x} is wrong")')))[1] not in catalogue("en")


VALUES = st.recursive(st.one_of(st.text(), st.integers(), st.none()), lambda inner: st.lists(inner, max_size=3))


@given(st.dictionaries(st.sampled_from("abc"), VALUES))
def test_a_phrase_survives_a_store_and_a_client(values: dict[str, object]) -> None:
    phrase = Phrase("reason.fits", **values)  # pyright: ignore[reportArgumentType] -- lists of lists too
    assert Phrase.load(phrase.dump()) == phrase
    assert Phrase.from_json(json.loads(json.dumps(phrase.to_json()))) == phrase
    nested = Phrase("reason.short_form", why=phrase)
    assert Phrase.load(nested.dump()) == nested


@given(st.text(), st.text())
def test_a_value_is_never_expanded_again(one: str, two: str) -> None:
    text = Phrase("reason.text_changed", before=f"{{after}}{one}", after=two).text("en")
    assert text == f"its text changed from {{after}}{one} to {two}"


@pytest.mark.parametrize("text", ["", "cancelled by hand", "{", '{"code": 3}', '{"x": 1}', "{not json}"])
def test_text_of_an_older_store_is_shown_as_it_is(text: str) -> None:
    assert Phrase.load(text).text("zh") == text


def test_an_error_speaks_both_languages_and_takes_its_hint_from_its_code() -> None:
    error = LaminaError("turn.no_answer")
    assert (error.code, error.message, error.hint) == (
        "turn.no_answer", "the turn ended without an answer", "what arrived is stored with the turn",
    )  # fmt: skip
    assert error.phrase.text("zh") == "本轮没有得到回答"
    assert InputError("something of your own", hint="try this").hint == "try this"
    assert Path(SOURCE / "data" / "messages.zh.json").is_file()
