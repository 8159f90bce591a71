"""`lamina context` as a real process: what it prints, what it refuses, and with which exit code."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lamina import validate
from tests.cli.forks import afresh, ran

ROOT = Path(__file__).parents[2]
NOVEL = ROOT / "examples" / "novel"


def lamina(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LAMINA_", "LC_", "LANG"))}
    return ran(list(map(str, arguments)), ROOT, {**clean, "COLUMNS": "120", **environ}, afresh(environ))


def output(*arguments: str | Path, **environ: str) -> str:
    done = lamina(*arguments, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_it_shows_the_messages_and_a_bar_for_each_layer() -> None:
    text = output("context", "--project", NOVEL, "--mode", "agent", "--budget", "800")
    for layer in ("identity", "rules", "skill", "mode", "tools", "memory", "context", "history", "user"):
        assert any(line.strip().startswith(layer) and "█" in line for line in text.splitlines()), layer
    assert "of 800 tokens" in text
    assert "older messages left out" in text
    assert "他的性格？" in text
    assert "\x1b[" not in text, "no colours where nobody looks"


def test_on_a_terminal_it_is_coloured() -> None:
    parent, child = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LANG": "C.UTF-8"}
    command = [sys.executable, "-m", "lamina", "context", "--project", str(NOVEL)]
    with subprocess.Popen(command, stdout=child, stderr=child, env=environ, cwd=ROOT) as process:
        os.close(child)
        seen = b""
        try:
            while block := os.read(parent, 65536):
                seen += block
        except OSError:  # the other end is closed
            pass
        assert process.wait() == 0
    assert b"\x1b[" in seen
    assert "林默".encode() in seen


@pytest.mark.parametrize("grammar", ["openai", "anthropic", "gemini"])
def test_json_holds_a_valid_request_and_its_receipt(grammar: str) -> None:
    data = json.loads(output("context", "--project", NOVEL, "--for", grammar, "--json"))
    assert validate(data["request"], grammar) == ()
    assert data["receipt"]["grammar"] == grammar
    payload = output("context", "--project", NOVEL, "--for", grammar, "--payload")
    assert json.loads(payload) == data["request"]
    assert len(payload.encode()) == data["receipt"]["size"] == data["receipt"]["segments"][-1]["end"]


@pytest.mark.parametrize("counter", ["seed", "cjk", "o200k", "qwen3"])
def test_counters_are_chosen_by_name(counter: str) -> None:
    data = json.loads(output("context", "--project", NOVEL, "--counter", counter, "--json"))
    assert data["receipt"]["tokens"] > 500


def test_it_speaks_chinese() -> None:
    assert "回执" in output("context", "--project", NOVEL, LANG="zh_CN.UTF-8")
    text = output("context", "--project", NOVEL, "--lang", "zh", "--prompt-lang", "zh", "--full")
    assert "回执" in text
    assert "可用工具补充说明" in text


def test_the_locale_never_changes_what_the_model_reads() -> None:
    request = ("context", "--project", NOVEL, "--payload")
    assert output(*request, LANG="zh_CN.UTF-8") == output(*request, LANG="en_US.UTF-8")


def test_both_languages_have_every_text_and_help() -> None:
    assert "从文件或存储中的会话组装上下文" in output("context", "--lang", "zh", "--help")
    assert "Examples:" in output("context", "--help")


def test_chinese_survives_a_c_locale() -> None:
    assert "林默" in output("context", "--project", NOVEL, LC_ALL="C", PYTHONIOENCODING="ascii")


def test_files_can_be_given_one_by_one_and_win_over_the_project(tmp_path: Path) -> None:
    rules = tmp_path / "other.md"
    rules.write_text("Rule: other", encoding="utf-8")
    history = tmp_path / "h.json"
    history.write_text(
        json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})
    )
    data = json.loads(output("context", "hello", "--project", NOVEL, "--rules", rules, "--history", history, "--json"))
    assert [m["content"] for m in data["request"]["messages"][1:]] == ["a", "b", "hello"]
    assert "Rule: other" in data["request"]["messages"][0]["content"]
    assert "不写暴力内容" not in data["request"]["messages"][0]["content"]


def test_a_terminal_never_obeys_text_from_outside(tmp_path: Path) -> None:
    evil = tmp_path / "memory.md"
    evil.write_text("\x1b[2Jclear \u202e reversed", encoding="utf-8")
    text = output("context", "hi", "--memory", evil, "--full")
    assert "\x1b" not in text
    assert "⟨U+001B⟩[2Jclear ⟨U+202E⟩ reversed" in text


def test_a_pipe_that_closes_early_is_no_error() -> None:
    command = f"{sys.executable} -m lamina context --project {NOVEL} --full | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stderr == ""


REFUSED: list[tuple[list[Any], str, str]] = [
    (["--budget", "nan"], "--budget must be a number of tokens, not 'nan'", "8000"),
    (["--budget", "inf"], "--budget must be a number of tokens, not 'inf'", "8000"),
    (["--budget", "-5"], "--budget must be a number of tokens, not '-5'", "8000"),
    (["--budget", "lots"], "--budget must be a number of tokens, not 'lots'", "8000"),
    (["--mode", "yolo"], "no mode named 'yolo'", "agent, plan, ask"),
    (["--counter", "gpt9"], "no counter named 'gpt9'", "o200k"),
    (["--for", "cohere"], "'cohere' is not a valid value for --for", "openai, anthropic, gemini"),
    (["--lang", "fr"], "'fr' is not a valid value for --lang", "en, zh"),
    (["--rules", "nowhere.md"], "'nowhere.md' does not exist", "path"),
    (["--rules", "."], "'.' is not a regular file", "path"),
    (["--project", "nowhere"], "'nowhere' does not exist", "identity.md"),
    (["--project", "README.md"], "'README.md' is not a folder", "identity.md"),
    (["--json", "--payload"], "--json and --payload exclude each other", "leave one"),
    (["--tools", "examples/novel/history.jsonl"], "history.jsonl is not JSON", ""),
    (["--colour", "red"], "No such option: --colour", "--help"),
]


@pytest.mark.parametrize(("arguments", "message", "hint"), REFUSED, ids=[" ".join(a) for a, _, _ in REFUSED])
def test_bad_options_are_refused_with_value_and_next_step(arguments: list[str], message: str, hint: str) -> None:
    done = lamina("context", "hi", *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert message in done.stderr
    assert any(part in done.stderr for part in hint.split("|"))
    assert "Traceback" not in done.stderr


FILES: list[tuple[str, bytes, str]] = [
    (
        "h.json",
        b"{not json",
        "h.json is not JSON: Expecting property name enclosed in double quotes at line 1 column 2",
    ),
    ("h.json", b"3", "h.json contains 3, not a list of messages"),
    ("h.json", b"[NaN]", "NaN is not a JSON value"),
    ("h.json", b'[{"role": "narrator", "content": "a"}]', "h.json: history[0].role is 'narrator'"),
    ("h.json", b'[{"role": "user", "content": "\\ud800"}]', "lone surrogate U+D800 at character 0"),
    ("h.json", b'[{"role": "user", "content": 7}]', "content must be text or a list of parts, not int: 7"),
    ("h.json", b'[{"role": "tool", "tool_call_id": "x", "content": "r"}]', "'x' without its call"),
    ("h.jsonl", b'{"role": "user", "content": "a"}\n{oops}\n', "h.jsonl line 2 is not JSON"),
    ("h.jsonl", b'{"role": "user", "content": "a"}\n[]\n', "h.jsonl line 2 must be a mapping"),
    ("h.json", b"\xff\xfe[", "is not UTF-8: byte 0 is 0xff"),
    ("h.json", b"[" * 100_000, "nested too deeply"),
]


@pytest.mark.parametrize(("name", "content", "message"), FILES, ids=[f"{n}-{m[:30]}" for n, _, m in FILES])
def test_a_bad_history_file_is_refused_with_place_and_value(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    done = lamina("context", "hi", "--history", tmp_path / name)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_fifo_and_a_huge_file_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in lamina("context", "hi", "--rules", tmp_path / "pipe").stderr
    with (tmp_path / "huge.md").open("wb") as file:
        file.truncate(300 * 1024)
    assert "at most 262144 bytes are read" in lamina("context", "hi", "--rules", tmp_path / "huge.md").stderr


def test_without_a_message_it_says_so() -> None:
    done = lamina("context")
    assert (done.returncode, "there is no user message" in done.stderr) == (2, True)


def test_a_bad_setting_names_its_variable() -> None:
    done = lamina("context", "hi", LAMINA_BUDGET="lots")
    assert done.returncode == 2
    assert "LAMINA_BUDGET must be a whole number of at least 0, not 'lots'" in done.stderr


def test_an_empty_message_is_refused() -> None:
    assert "the user message is empty" in lamina("context", " ").stderr


def test_over_budget_is_said_beside_the_payload() -> None:
    done = lamina("context", "hi", "--budget", "5", "--payload")
    assert (done.returncode, "over budget" in done.stderr) == (0, True)
    assert json.loads(done.stdout)


def test_an_error_message_never_carries_terminal_codes() -> None:
    done = lamina("context", "hi", "--counter", "\x1b[2Jevil")
    assert "\x1b" not in done.stderr
    assert "\x1b" not in lamina("context", "hi", "--project", "\x1b]0;evil\x07").stderr


def test_the_language_can_stand_before_the_command() -> None:
    assert "回执" in output("--lang", "zh", "context", "--project", NOVEL)
    assert "错误：" in lamina("--lang", "zh", "context", "hi", "--mode", "x").stderr


def test_without_a_command_it_shows_the_help() -> None:
    assert "context" in output()


def test_help_and_version() -> None:
    assert "context" in output("--help")
    assert output("--version").startswith("lamina 0.")


def shell(command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A line of bash, with Python's own buffering, as people have it."""
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONUNBUFFERED", "LANG", "LC_ALL")}
    line = command.replace("lamina ", f"{sys.executable} -m lamina ", 1)
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, encoding="utf-8", cwd=cwd, env=environ, check=False
    )


@pytest.mark.parametrize("flags", ["--payload", "--json", "--full"])
def test_a_reader_that_went_away_ends_it_with_141_and_no_word(flags: str) -> None:
    done = shell(f"lamina context hi {flags} | true; echo ${{PIPESTATUS[0]}}")
    assert (done.stdout.strip() in ("141", "0"), done.stderr) == (True, "")


def test_a_full_disk_and_a_closed_output_are_said() -> None:
    full = shell("lamina context hi --payload > /dev/full")
    assert (full.returncode, "cannot be written" in full.stderr) == (1, True)
    closed = shell("lamina context hi --payload >&-")
    assert closed.returncode != 0
    assert "Traceback" not in full.stderr + closed.stderr


def test_hostile_settings_neither_hang_nor_read_elsewhere(tmp_path: Path) -> None:
    settings = tmp_path / "lamina.toml"
    os.mkfifo(settings)
    assert "is not a regular file" in shell("lamina context hi", tmp_path).stderr
    settings.unlink()
    settings.symlink_to("/dev/zero")
    assert "is a link to a place outside its folder" in shell("lamina context hi", tmp_path).stderr
    settings.unlink()
    for text, found in (
        ('identity = "/etc/passwd"', "leads out of the folder"),
        ('identity = "../../etc/passwd"', "leads out of the folder"),
        ("x = " + "[" * 900, "is not TOML"),
        ("budget = " + "9" * 5000, "lamina.toml"),
    ):
        settings.write_text(text)
        done = shell("lamina context hi", tmp_path)
        assert (done.returncode, found in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_a_project_cannot_link_files_from_elsewhere_into_the_prompt(tmp_path: Path) -> None:
    (tmp_path / "rules.md").symlink_to("/etc/passwd")
    assert "link out of the project" in lamina("context", "hi", "--project", tmp_path).stderr


def test_paragraphs_of_a_windows_file_are_memories_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "memory.md").write_bytes("一\r\n\r\n二\r\n \r\n三\r\n".encode())
    data = json.loads(output("context", "hi", "--project", tmp_path, "--json"))
    assert [s["source"] for s in data["receipt"]["segments"] if s["layer"] == "memory"] == [
        "memory.md#1", "memory.md#2", "memory.md#3",
    ]  # fmt: skip


def test_json_never_carries_codes_that_a_terminal_obeys(tmp_path: Path) -> None:
    (tmp_path / "memory.md").write_text("a\x9bb\u202ec\U000e0041", encoding="utf-8")
    text = output("context", "hi", "--project", tmp_path, "--json")
    assert not {"\x9b", "\u202e", "\U000e0041"} & set(text)
    assert "a\x9bb\u202ec\U000e0041" in json.loads(text)["request"]["messages"][0]["content"]
