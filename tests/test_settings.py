"""Settings: file, then environment; a bad value is an error that names its place."""

from pathlib import Path

import pytest

from lamina.errors import SettingsError
from lamina.settings import load_settings


def test_defaults_then_file_then_environment(tmp_path: Path) -> None:
    assert load_settings(tmp_path, {}).budget == 8000
    (tmp_path / "lamina.toml").write_text('\ufeffbudget = 500\ncounter = "o200k"\n', encoding="utf-8")
    settings = load_settings(tmp_path, {"LAMINA_BUDGET": "900"})
    assert (settings.budget, settings.counter) == (900, "o200k")
    assert settings.origin == {"budget": "LAMINA_BUDGET", "counter": "lamina.toml"}


@pytest.mark.parametrize("locale", ["zh_CN.UTF-8", "zh", "ZH_TW"])
def test_the_language_follows_the_locale_and_a_setting_wins(tmp_path: Path, locale: str) -> None:
    assert load_settings(tmp_path, {"LANG": locale}).lang == "zh"
    assert load_settings(tmp_path, {"LANG": locale, "LAMINA_LANG": "en"}).lang == "en"
    assert load_settings(tmp_path, {"LANG": "de_DE"}).lang == "en"


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"LAMINA_BUDGET": "many"}, "LAMINA_BUDGET .* not 'many'"),
        ({"LAMINA_BUDGET": "-1"}, "LAMINA_BUDGET .* not '-1'"),
        ({"LAMINA_BUDGET": "nan"}, "LAMINA_BUDGET"),
        ({"LAMINA_BUDGET": "1.5"}, "LAMINA_BUDGET"),
        ({"LAMINA_GRAMMAR": "cohere"}, "LAMINA_GRAMMAR must be one of openai, anthropic, gemini, not 'cohere'"),
        ({"LAMINA_LANG": "fr"}, "LAMINA_LANG must be one of en, zh"),
    ],
)
def test_a_bad_variable_is_named(tmp_path: Path, environ: dict[str, str], found: str) -> None:
    with pytest.raises(SettingsError, match=found):
        load_settings(tmp_path, environ)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('colour = "red"', "sets 'colour', which is no setting.*known: identity"),
        ("budget = true", "lamina.toml: budget"),
        ("identity = 3", "lamina.toml: identity must be text"),
        ("budget = ", "lamina.toml is not TOML"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, found: str) -> None:
    (tmp_path / "lamina.toml").write_text(text)
    with pytest.raises(SettingsError, match=found):
        load_settings(tmp_path, {})


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lamina.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match=r"lamina\.toml is not UTF-8: byte 0 is 0xff"):
        load_settings(tmp_path, {})
