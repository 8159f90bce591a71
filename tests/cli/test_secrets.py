"""G7: no command prints a secret, whatever is set and whatever goes wrong."""

import json
from pathlib import Path

import pytest

from tests.cli.process import Lamina

CANARY = "CANARYx9"
URL = f"http://user:{CANARY}@127.0.0.1:1/v1"
GIVEN = {
    "LAMINA_PROVIDER": "openai", "LAMINA_MODEL": "m", "LAMINA_BASE_URL": URL, "LAMINA_API_KEY": f"sk-{CANARY}",
    "LAMINA_EMBEDDER": URL, "LAMINA_EMBEDDER_KEY": CANARY, "LAMINA_TELEGRAM_TOKEN": f"42:{CANARY}",
    "LAMINA_TELEGRAM_API": URL, "LAMINA_TELEGRAM_ALLOW": "7", "OPENAI_API_KEY": CANARY, "LAMINA_LISTEN": "256.0.0.1:1",
}  # fmt: skip
COMMANDS = (
    ["config"], ["config", "--json"], ["doctor"], ["doctor", "--json"], ["store", "info"], ["ask", "Hello?"],
    ["memory"], ["worker", "--once"], ["serve", "--no-open", "--log", "debug"], ["telegram", "--verbose"],
)  # fmt: skip
WRONG = {"LAMINA_BASE_URL": "htp", "LAMINA_EMBEDDER": "ftp", "LAMINA_TELEGRAM_API": "x"}


def leaks(lamina: Lamina, arguments: list[str], **given: str) -> list[str]:
    done = lamina.run(*arguments, **given)
    assert "Traceback" not in done.stderr
    assert done.stdout + done.stderr
    return [line for line in (done.stdout + done.stderr).splitlines() if CANARY in line]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_G7_no_command_prints_a_secret(lamina: Lamina, arguments: list[str]) -> None:
    assert leaks(lamina, arguments, **GIVEN) == []


@pytest.mark.parametrize("name", WRONG)
def test_G7_a_value_that_cannot_be_used_is_shown_without_its_password(lamina: Lamina, name: str) -> None:
    wrong = f"{WRONG[name]}://user:{CANARY}@host/v1"
    done = lamina.run("config", **GIVEN | {name: wrong})
    assert done.returncode == 2
    assert CANARY not in done.stdout + done.stderr
    assert "://…@host/v1" in done.stderr


def test_an_address_without_a_password_is_shown_as_it_is(lamina: Lamina) -> None:
    shown = json.loads(lamina("config", "--json", LAMINA_BASE_URL="http://host:1/v1"))
    assert shown["base_url"]["value"] == "http://host:1/v1"


@pytest.mark.planted("a secret in a place that is no secret's")
def test_G7_a_planted_secret_is_found(lamina: Lamina, tmp_path: Path) -> None:
    assert leaks(lamina, ["config", "--json"], **GIVEN | {"LAMINA_HOST": CANARY})
