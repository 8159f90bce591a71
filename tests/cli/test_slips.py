"""What somebody mistypes or leaves out is said, with its name, before anything is sent or made."""

import subprocess
import sys

import pytest

from tests.cli.process import Lamina


@pytest.fixture
def slips(lamina: Lamina) -> Lamina:
    lamina.script([{"text": "Well."}])
    return lamina


def test_rules_that_a_setting_names_and_that_are_not_there_are_said_wherever_people_talk(slips: Lamina) -> None:
    typo = {"LAMINA_RULES": ".lamina/ruels.md"}
    what = "warning: .lamina/ruels.md is not there, though a setting names it\n"
    asked = slips.run("ask", "Hello", **typo)
    assert (asked.returncode, asked.stdout, asked.stderr) == (0, "Well.\n", what)
    assert slips.run("chat", given="Hello\n", **typo).stderr.startswith(what)
    assert "设置指定的 .lamina/ruels.md 不存在" in slips.run("ask", "你好", "--lang", "zh", **typo).stderr
    assert "! files      .lamina/ruels.md is not there, though a setting names it" in slips.run("doctor", **typo).stdout
    assert slips.run("ask", "Hello").stderr == ""


def test_the_gateway_says_at_its_start_that_rules_are_missing(slips: Lamina) -> None:
    environ = slips.environ(LAMINA_RULES="ruels.md", LAMINA_WORKSPACE=".")
    with subprocess.Popen(
        [sys.executable, "-m", "lamina", "serve", "--listen", "127.0.0.1:0", "--no-open"], cwd=slips.folder, text=True,
        env=environ, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stderr
        assert process.stderr.readline() == "warning: ruels.md is not there, though a setting names it\n"
        process.terminate()
