"""`lamina doctor` as a real process: what is well, what is not, and what to do."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.cli.process import Lamina

SCRIPT: list[dict[str, Any]] = [{"text": "yes"}]


@pytest.fixture
def doctor(lamina: Lamina) -> Lamina:
    lamina.script(SCRIPT)
    return lamina


def checks(
    lamina: Lamina, *arguments: str, code: int = 0, environ: Mapping[str, str] | None = None
) -> dict[str, list[dict[str, str]]]:
    done = lamina.run("doctor", "--json", *arguments, **(environ or {}))
    assert (done.returncode, done.stderr) == (code, ""), done
    found: dict[str, list[dict[str, str]]] = {}
    for check in json.loads(done.stdout)["checks"]:
        found.setdefault(check["name"], []).append(check)
    return found


def test_all_is_well_and_each_thing_has_a_line(doctor: Lamina) -> None:
    text = doctor("doctor")
    for shown in ("✓ lamina", "✓ settings", "✓ provider", "✓ files", "✓ store", "LAMINA_STORE", "everything works"):
        assert shown in text, shown
    assert "none yet at" in text
    doctor("ask", "Hello")
    assert "your messages 2" in " ".join(doctor("doctor").split()), "wherever the path of the store breaks the line"
    assert "一切正常" in doctor("doctor", "--lang", "zh")


def test_a_broken_setting_is_a_line_and_not_a_traceback(doctor: Lamina) -> None:
    (doctor.folder / "lamina.toml").write_text("budget = 'many'\n", encoding="utf-8")
    text = doctor.run("doctor")
    assert text.returncode == 1
    assert "✗ settings   lamina.toml: budget must be a whole number" in text.stdout
    assert "Traceback" not in text.stdout + text.stderr
    assert checks(doctor, code=1)["settings"][0]["state"] == "bad"


def test_a_provider_elsewhere_is_not_asked_unless_told_to(doctor: Lamina) -> None:
    http = {"LAMINA_PROVIDER": "openai", "LAMINA_MODEL": "m", "LAMINA_BASE_URL": "http://127.0.0.1:9/v1"}
    found = checks(doctor, environ=http)
    assert (found["provider"][0]["state"], found["provider"][0]["hint"]) == ("note", "lamina doctor --online")
    found = checks(doctor, "--online", code=1, environ=http)
    assert found["provider"][0]["state"] == "bad"
    assert found["provider"][0]["hint"]


def test_a_provider_without_a_model_and_a_script_that_is_missing_are_bad(doctor: Lamina) -> None:
    assert checks(doctor, code=1, environ={"LAMINA_PROVIDER": "openai"})["provider"][0]["state"] == "bad"
    assert checks(doctor, code=1, environ={"LAMINA_SCRIPT": "gone.json"})["provider"][0]["state"] == "bad"


def test_rules_with_hidden_characters_are_bad_with_the_way_to_approve_them(doctor: Lamina) -> None:
    (doctor.folder / "AGENTS.md").write_text("Be kind.\u200b\u202e\n", encoding="utf-8")
    found = checks(doctor, code=1)
    assert "AGENTS.md" in found["files"][0]["text"]
    assert "approve" in found["files"][0]["hint"]


def test_a_store_in_use_is_said_and_a_damaged_one_is_bad(doctor: Lamina) -> None:
    with doctor.terminal("chat") as terminal:
        terminal.ready()
        assert checks(doctor)["store"][0]["state"] == "note"
    (doctor.folder / "chats.db").write_bytes(b"no database at all" * 100)
    for name in ("chats.db-wal", "chats.db-shm"):
        (doctor.folder / name).unlink(missing_ok=True)
    found = checks(doctor, code=1)
    assert found["store"][0]["state"] == "bad"


def test_the_embedder_answers_or_is_off(doctor: Lamina) -> None:
    assert checks(doctor, environ={"LAMINA_MEMORY": "off"})["embedder"][0]["state"] == "note"
    found = checks(doctor, environ={"LAMINA_EMBEDDER": "embedded"})["embedder"][0]
    assert (found["state"], "512" in found["text"]) == ("well", True)


def test_on_a_terminal_its_size_is_looked_at(doctor: Lamina) -> None:
    with doctor.terminal("doctor", width=50) as terminal:
        assert terminal.end() == 0
        assert "! terminal   50 × 40" in terminal.text
        assert "60 columns" in terminal.text


def test_the_sandbox_has_a_line_and_one_that_is_off_is_said(doctor: Lamina) -> None:
    [line] = checks(doctor)["sandbox"]
    assert "bash" in line["text"]
    assert line["state"] == "well" or "none on this system" in line["text"]
    [line] = checks(doctor, environ={"LAMINA_BASH_SANDBOX": "off"})["sandbox"]
    assert (line["state"], line["hint"]) == ("note", "LAMINA_BASH_SANDBOX=auto")
    assert "沙箱" in doctor("doctor", "--lang", "zh")
