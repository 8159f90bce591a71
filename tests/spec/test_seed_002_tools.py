"""Seed 002: what the tools may do (S8), with the seed's own commands."""

from pathlib import Path

import pytest

from lamina.shell.policy import decide


@pytest.mark.parametrize("command", ["rm -rf /", "rm -fr ~", "rm -rf / --no-preserve-root"])
def test_S8_what_destroys_everything_is_blocked(command: str, tmp_path: Path) -> None:
    assert decide(command, root=tmp_path).verdict == "block"


@pytest.mark.parametrize("command", ["grep asphalt", "ls"])
def test_S8_what_only_reads_is_safe(command: str, tmp_path: Path) -> None:
    assert decide(command, root=tmp_path).verdict == "safe"


@pytest.mark.parametrize("command", ["git push -f", "chmod -R 777 /"])
def test_S8_what_changes_things_is_not_safe(command: str, tmp_path: Path) -> None:
    assert decide(command, root=tmp_path).verdict != "safe"


@pytest.mark.parametrize("command", ["ls $(x", "ls 'x", "for f in *; do", "ls <<EOF", "ls `x", ""])
def test_S8_what_cannot_be_parsed_asks(command: str, tmp_path: Path) -> None:
    assert decide(command, root=tmp_path).verdict == "confirm"
