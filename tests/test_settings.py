"""Settings: file, then environment; a bad value is an error that names its place."""

from pathlib import Path

import pytest

from lamina.errors import SettingsError
from lamina.settings import load_settings
from lamina.types import Share


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
        ({"LAMINA_GRAMMAR": "cohere"}, r"LAMINA_GRAMMAR cannot be 'cohere' \(one of openai, anthropic, gemini\)"),
        ({"LAMINA_BUGDET": "3"}, r"LAMINA_BUGDET is no setting \(did you mean LAMINA_BUDGET\?\)"),
        ({"LAMINA_REINJECTION_TURNS": "often"}, "LAMINA_REINJECTION_TURNS .* not 'often'"),
        ({"LAMINA_CLI_REINJECTION_TURNS": "0"}, "LAMINA_CLI_REINJECTION_TURNS .* at least 1, not '0'"),
        ({"LAMINA_LANG": "fr"}, "LAMINA_LANG cannot be 'fr'"),
    ],
)
def test_a_bad_variable_is_named(tmp_path: Path, environ: dict[str, str], found: str) -> None:
    with pytest.raises(SettingsError, match=found):
        load_settings(tmp_path, environ)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("bugdet = 3", r"lamina\.toml: bugdet is no setting \(did you mean budget\?\)"),
        ("cli = 3", r"lamina\.toml: cli must be a table"),
        ("[telegram]\nbugdet = 3", r"telegram\.bugdet is no setting"),
        ('approvals = "a.json"', r"may not be set here .*no folder approves itself"),
        ('instructions = "/etc/passwd"', r"leads out of the folder .*LAMINA_INSTRUCTIONS"),
        ("max_rule_bytes = 900000000", r"max_rule_bytes is 900,000,000, more than 262,144"),
        ('identity = "a\\u0000b"', r"leads out of the folder"),
        ("reinjection_turns = 0", r"reinjection_turns must be a whole number of at least 1, not 0"),
        ('reinjection_enabled = "maybe"', r"reinjection_enabled must be true or false, not 'maybe'"),
        ('colour = "red"', r"lamina\.toml: colour is no setting"),
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


def test_I11_a_channel_has_settings_of_its_own_and_they_win(tmp_path: Path) -> None:
    (tmp_path / "lamina.toml").write_text("reinjection_turns = 3\n[telegram]\nreinjection_turns = 4\n")
    both = {"LAMINA_REINJECTION_TURNS": "5", "LAMINA_TELEGRAM_REINJECTION_TURNS": "6"}

    def turns(environ: dict[str, str], channel: str) -> tuple[int, str]:
        settings = load_settings(tmp_path, environ, channel)
        return settings.reinjection_turns, settings.origin["reinjection_turns"]

    assert turns({}, "cli") == (3, "lamina.toml")
    assert turns({}, "telegram") == (4, "lamina.toml [telegram]")
    assert turns(both, "cli") == (5, "LAMINA_REINJECTION_TURNS")
    assert turns(both, "telegram") == (6, "LAMINA_TELEGRAM_REINJECTION_TURNS")


def test_I12_both_files_are_settings(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, {"LAMINA_RULES": ".ads/rules.md", "LAMINA_INSTRUCTIONS": "SYSTEM_PROMPT.md"})
    assert (settings.rules, settings.instructions) == (".ads/rules.md", "SYSTEM_PROMPT.md")


def test_fault_P4_approvals_lie_in_the_users_own_folder(tmp_path: Path) -> None:
    assert load_settings(tmp_path, {"HOME": "/home/ann"}).approvals == "/home/ann/.local/state/lamina/approved.json"
    assert load_settings(tmp_path, {"XDG_STATE_HOME": "/s"}).approvals == "/s/lamina/approved.json"
    relative = load_settings(tmp_path, {"XDG_STATE_HOME": ".", "HOME": "/home/ann"}).approvals
    assert relative == "/home/ann/.local/state/lamina/approved.json"


def test_I11_an_empty_name_and_an_unknown_channel_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="LAMINA_RULES is empty"):
        load_settings(tmp_path, {"LAMINA_RULES": ""})
    with pytest.raises(SettingsError, match="no channel is named 'telegraph'"):
        load_settings(tmp_path, {}, "telegraph")


def test_a_repositorys_settings_cannot_stall_or_lead_out(tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    folder.mkdir()
    file = folder / "lamina.toml"
    file.write_text(".".join(["a"] * 30_000) + "=1")
    with pytest.raises(SettingsError, match="a line of more than"):
        load_settings(folder, {})
    file.write_text('counter = "/etc/tokenizer.json"')
    with pytest.raises(SettingsError, match="leads out of the folder"):
        load_settings(folder, {})
    file.write_text("[slack]\nbudget = 1")
    with pytest.raises(SettingsError, match=r"\[slack\] is no channel"):
        load_settings(folder, {})
    file.unlink()
    (tmp_path / "other.toml").write_text("model = 'x'")
    file.symlink_to(tmp_path / "other.toml")
    with pytest.raises(SettingsError, match="is a link out of its folder"):
        load_settings(folder, {})


@pytest.mark.parametrize("name", ["store", "user", "embedder", "embedder_key", "approvals"])
def test_a_repository_says_neither_who_you_are_nor_where_your_words_go(tmp_path: Path, name: str) -> None:
    (tmp_path / "lamina.toml").write_text(f'{name} = "none"')
    with pytest.raises(SettingsError, match=f"{name} may not be set here"):
        load_settings(tmp_path, {})


def test_shares_come_as_a_table_or_as_one_variable(tmp_path: Path) -> None:
    (tmp_path / "lamina.toml").write_text("[shares]\nmemory = [0, 0.2]\n")
    assert load_settings(tmp_path, {}).shares == {"memory": Share(0, 0.2)}
    given = load_settings(tmp_path, {"LAMINA_SHARES": "memory=0.1:0.3, history=0.5:1"}).shares
    assert given == {"memory": Share(0.1, 0.3), "history": Share(0.5, 1)}
    with pytest.raises(SettingsError, match="LAMINA_SHARES: the share of 'memory' is"):
        load_settings(tmp_path, {"LAMINA_SHARES": "memory=lots"})
