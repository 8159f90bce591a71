"""Settings: file, then environment; a bad value is an error that names its place."""

from pathlib import Path

import pytest

from lamina.errors import SettingsError
from lamina.settings import ENVIRONMENT_ONLY, load_settings
from lamina.text.messages import LANGUAGES, catalogue
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


SMALL, VALUE = "settings.number_too_small", "settings.bad_value"


@pytest.mark.parametrize(
    ("environ", "code", "says"),
    [
        ({"LAMINA_BUDGET": "many"}, SMALL, "LAMINA_BUDGET .* not 'many'"),
        ({"LAMINA_BUDGET": "-1"}, SMALL, "LAMINA_BUDGET .* not '-1'"),
        ({"LAMINA_BUDGET": "nan"}, SMALL, r"LAMINA_BUDGET .*\(for example 8000\)"),
        ({"LAMINA_BUDGET": "1.5"}, SMALL, "LAMINA_BUDGET"),
        (
            {"LAMINA_GRAMMAR": "cohere"},
            VALUE,
            r"LAMINA_GRAMMAR cannot be 'cohere' \(one of openai, anthropic, gemini\)",
        ),
        ({"LAMINA_BUGDET": "3"}, "settings.unknown", r"LAMINA_BUGDET .*\(did you mean LAMINA_BUDGET\?\)"),
        ({"LAMINA_REINJECTION_TURNS": "often"}, SMALL, "LAMINA_REINJECTION_TURNS .* not 'often'"),
        ({"LAMINA_CLI_REINJECTION_TURNS": "0"}, SMALL, "LAMINA_CLI_REINJECTION_TURNS .* at least 1, not '0'"),
        (
            {"LAMINA_BASH_SANDBOX": "none"},
            VALUE,
            r"LAMINA_BASH_SANDBOX cannot be 'none' \(one of auto, required, off\)",
        ),
        ({"LAMINA_BASH_READABLE": "/data:home"}, "settings.bad_folder", r"LAMINA_BASH_READABLE contains 'home'"),
        ({"LAMINA_BASH_MEMORY": "1"}, SMALL, r"LAMINA_BASH_MEMORY .* at least 64, not '1' \(use 64 or more\)"),
        ({"LAMINA_BASH_MEMORY": "much"}, SMALL, r"at least 64, not 'much' \(write it in digits\)"),
        ({"LAMINA_BASH_MEMORY": "9" * 16}, SMALL, r"\(use a smaller number\)"),
        (
            {"LAMINA_BASH_NETWORK": "maybe"},
            "settings.not_switch",
            r"LAMINA_BASH_NETWORK must be on or off, not 'maybe'",
        ),
        ({"LAMINA_LANG": "fr"}, VALUE, "LAMINA_LANG cannot be 'fr'"),
    ],
)
def test_a_bad_variable_is_named(tmp_path: Path, environ: dict[str, str], code: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says) as caught:
        load_settings(tmp_path, environ)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("bugdet = 3", "settings.unknown", r"lamina\.toml: bugdet .*\(did you mean budget\?\)"),
        ("cli = 3", "settings.not_table", r"lamina\.toml: cli must be a table"),
        ("[telegram]\nbugdet = 3", "settings.unknown", r"telegram\.bugdet is not a setting"),
        ('approvals = "a.json"', "settings.not_in_file", r"may not be set here .*a folder cannot approve itself"),
        ('instructions = "/etc/passwd"', "settings.leads_out", r"leads out of the folder .*LAMINA_INSTRUCTIONS"),
        ("max_rule_bytes = 900000000", "settings.rules_too_large", r"max_rule_bytes is 900000000, more than 262144"),
        ('identity = "a\\u0000b"', "settings.leads_out", r"leads out of the folder"),
        ('model = "a.gguf"', "settings.model_is_file", r"model names a file .*LAMINA_MODEL instead: a folder cannot"),
        (
            'bash_sandbox = "off"',
            "settings.only_stricter",
            r"bash_sandbox may not be 'off' here .*only make it stricter",
        ),
        ("bash_network = true", "settings.only_stricter", r"bash_network may not be true here .*LAMINA_BASH_NETWORK"),
        ('bash_readable = "/"', "settings.not_in_file", r"may not be set here .*cannot open other folders"),
        ("bash_memory = 90000", "settings.not_in_file", r"may not be set here"),
        ("reinjection_turns = 0", SMALL, r"reinjection_turns must be a whole number of at least 1, not 0"),
        (f"window = {10**16}", "settings.number_out_of_range", r"window must be .* below 10\^15"),
        (
            'reinjection_enabled = "maybe"',
            "settings.not_boolean",
            r"reinjection_enabled must be true or false, not 'maybe'",
        ),
        ('colour = "red"', "settings.unknown", r"lamina\.toml: colour is not a setting"),
        ("budget = true", SMALL, "lamina.toml: budget"),
        ("identity = 3", "settings.not_text", "lamina.toml: identity must be text"),
        ("budget = ", "settings.not_toml", "lamina.toml is not TOML"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, code: str, says: str) -> None:
    (tmp_path / "lamina.toml").write_text(text)
    with pytest.raises(SettingsError, match=says) as caught:
        load_settings(tmp_path, {})
    assert caught.value.code == code


def test_every_reason_against_a_line_of_the_file_is_in_both_languages() -> None:
    for lang in LANGUAGES:
        assert set(ENVIRONMENT_ONLY.values()) <= set(catalogue(lang))


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
    with pytest.raises(SettingsError, match="no channel named 'telegraph'"):
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
    with pytest.raises(SettingsError, match=r"\[slack\] is not a channel"):
        load_settings(folder, {})
    file.unlink()
    (tmp_path / "other.toml").write_text("model = 'x'")
    file.symlink_to(tmp_path / "other.toml")
    with pytest.raises(SettingsError, match="is a link to a place outside its folder"):
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
    with pytest.raises(SettingsError, match="LAMINA_SHARES: the share of 'memory' cannot be"):
        load_settings(tmp_path, {"LAMINA_SHARES": "memory=lots"})


def test_a_file_may_make_the_sandbox_stricter_and_the_environment_looser(tmp_path: Path) -> None:
    (tmp_path / "lamina.toml").write_text('bash_sandbox = "required"\nbash_network = false\n')
    found = load_settings(tmp_path, {})
    assert (found.bash_sandbox, found.bash_network) == ("required", False)
    found = load_settings(tmp_path, {"LAMINA_BASH_SANDBOX": "off", "LAMINA_BASH_NETWORK": "on"})
    assert (found.bash_sandbox, found.bash_network) == ("off", True)
