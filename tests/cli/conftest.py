"""A folder and the command in it."""

from pathlib import Path

import pytest

from tests.cli.process import Lamina


@pytest.fixture
def lamina(tmp_path: Path) -> Lamina:
    return Lamina(tmp_path)
