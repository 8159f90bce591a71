"""read_file, write_file, edit_file: exact texts, one match, and what is asked or never touched (S8)."""

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.text.unicode import visible
from lamina.tools.closed_files import is_secret_path
from lamina.tools.files import file_tools
from lamina.tools.registry import ToolRegistry
from lamina.types import Decision, Outcome, ToolCallEvent

HOSTILE_NAMES = ["章节一.md", "a b.txt", "line\nbreak.txt", "\u202egpj.exe", "é.txt", "-rf", "'quote\".txt", "x" * 200]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


class Person:
    """Somebody who is asked: keeps what was shown and answers."""

    def __init__(self, answer: bool = True) -> None:
        self.answer, self.shown = answer, list[Decision]()

    async def __call__(self, call: ToolCallEvent, decision: Decision) -> bool:
        self.shown.append(decision)
        return self.answer


def use(root: Path, name: str, ask: Person | None = None, **arguments: Any) -> Outcome:
    registry = ToolRegistry(*file_tools(root, asks=["docs/rules.md"]))
    return asyncio.run(registry.call(ToolCallEvent("1", name, json.dumps(arguments)), ask=ask))


def test_modes_reading_is_for_planning_too_and_writing_is_not(root: Path) -> None:
    registry = ToolRegistry(*file_tools(root))
    assert [tool.name for tool in registry.for_mode("agent")] == ["read_file", "write_file", "edit_file"]
    assert [tool.name for tool in registry.for_mode("plan")] == ["read_file"]
    assert len(registry.for_mode("ask")) == 0


def test_a_text_is_read_exactly(root: Path) -> None:
    text = "第一行\r\n\ttwo  \nthree\u2028still three\x0c\nno end"
    (root / "a.txt").write_bytes(text.encode())
    assert use(root, "read_file", path="a.txt").text == text
    assert use(root, "read_file", path="a.txt", offset=2, limit=1).text == "\ttwo  \n[lines 2 to 2 of 4]"
    assert use(root, "read_file", path="a.txt", offset=4).text == "no end\n[lines 4 to 4 of 4]"
    assert use(root, "read_file", path="a.txt", offset=1, limit=99).text == text
    assert use(root, "read_file", path=str(root / "a.txt")).text == text
    (root / "empty").touch()
    assert use(root, "read_file", path="empty").text == "[the file is empty]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"path": "nothing.txt"}, "'nothing.txt' does not exist"),
        ({"path": "a.txt", "offset": 9}, "has 2 lines, so there is no line 9"),
        ({"path": "a.txt", "offset": 0}, "both count from 1"),
        ({"path": "a.txt", "limit": -1}, "both count from 1"),
        ({"path": "../other.txt"}, "leads out of its folder"),
        ({"path": "/etc/passwd"}, "is not a path relative to a folder"),
        ({"path": "."}, "names a folder"),
        ({"path": "folder"}, "is a folder"),
        ({"path": "binary"}, "is not UTF-8: line 1, byte 1 is 0xff"),
        ({"path": "big"}, "too large"),
        ({"path": ""}, "names a folder"),
        ({"path": "x\0y"}, "is not a path"),
        ({"path": "store.db"}, "is a database"),
    ],
)
def test_S8_what_cannot_be_read_says_why_and_what_next(root: Path, arguments: dict[str, Any], words: str) -> None:
    (root / "a.txt").write_text("one\ntwo\n")
    (root / "folder").mkdir()
    (root / "binary").write_bytes(b"a\xff\x00")
    (root / "store.db").write_bytes(b"")
    with (root / "big").open("wb") as file:
        file.truncate(17 * 1024 * 1024)
    outcome = use(root, "read_file", **arguments)
    assert outcome.state == "failed"
    assert words in outcome.text
    assert "Next: " in outcome.text


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_names_of_all_kinds_are_written_edited_and_read(root: Path, name: str) -> None:
    assert use(root, "write_file", path=f"新/{name}", content="你好\n").state == "done"
    assert use(root, "edit_file", path=f"新/{name}", old_string="你", new_string="您").state == "done"
    assert use(root, "read_file", path=f"新/{name}").text == "您好\n"
    assert (root / "新" / name).read_text() == "您好\n"
    assert [path.name for path in (root / "新").iterdir()] == [name]


def test_writing_makes_folders_and_keeps_the_mode(root: Path) -> None:
    assert "Created 'a/b/c.sh' (bytes: 3, lines: 1)." in use(root, "write_file", path="a/b/c.sh", content="ls\n").text
    os.chmod(root / "a/b/c.sh", 0o750)
    assert use(root, "write_file", path="a/b/c.sh", content="ls -l\n").text.startswith("Wrote")
    assert use(root, "edit_file", path="a/b/c.sh", old_string="-l", new_string="-a").state == "done"
    assert (root / "a/b/c.sh").read_text() == "ls -a\n"
    assert stat.S_IMODE((root / "a/b/c.sh").stat().st_mode) == 0o750
    assert sorted(os.listdir(root / "a/b")) == ["c.sh"]


def test_a_new_file_has_the_mode_that_any_program_would_give_it(root: Path) -> None:
    use(root, "write_file", path="new.txt", content="x")
    (root / "plain.txt").write_text("x")
    assert (root / "new.txt").stat().st_mode == (root / "plain.txt").stat().st_mode


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("link.txt", "is a link"),
        ("linked/x.txt", "'linked' in its path is a link or not a folder"),
        ("file/x.txt", "is a link or not a folder"),
        ("folder", "is not a regular file"),
        ("fifo", "is not a regular file"),
        ("../x.txt", "is not a path below the workspace"),
        ("a/../../x.txt", "is not a path below the workspace"),
        ("/etc/x", "is not a path below the workspace"),
        ("folder/", "names a folder"),
        ("locked.txt", "is read-only"),
        ("n" * 300, "cannot be written: File name too long"),
        ("x.db", "is a database"),
    ],
)
def test_what_cannot_be_written_is_left_alone(root: Path, path: str, words: str) -> None:
    (root.parent / "outside.txt").write_text("old")
    (root / "link.txt").symlink_to("../outside.txt")
    (root / "linked").symlink_to("..")
    (root / "file").write_text("old")
    (root / "folder").mkdir()
    os.mkfifo(root / "fifo")
    (root / "locked.txt").write_text("old")
    os.chmod(root / "locked.txt", 0o444)
    before = sorted(os.listdir(root)), sorted(os.listdir(root.parent))
    outcome = use(root, "write_file", path=path, content="new")
    assert outcome.state == "failed"
    assert words in outcome.text
    assert (sorted(os.listdir(root)), sorted(os.listdir(root.parent))) == before
    assert (root.parent / "outside.txt").read_text() == "old"
    assert (root / "locked.txt").read_text() == "old"


@pytest.mark.parametrize(
    ("text", "old", "new", "result"),
    [
        (b"one\ntwo\n", "two", "2", b"one\n2\n"),
        (b"one\r\ntwo\r\n", "one\ntwo", "1\n2", b"1\r\n2\r\n"),
        (b"one\r\ntwo\r\n", "one\r\ntwo", "1\r\n2", b"1\r\n2\r\n"),
        (b"\xef\xbb\xbfone\n", "one", "1", b"\xef\xbb\xbf1\n"),
        (b"\xef\xbb\xbfone\r\ntwo", "e\nt", "E\nT", b"\xef\xbb\xbfonE\r\nTwo"),
        (b"no end", "end", "END", b"no END"),
        (b"mixed\r\nline\n", "mixed\r\nline", "x", b"x\n"),
        ("你好，世界".encode(), "好", "们好", "你们好，世界".encode()),
        (b"a.b*c", ".b*", "+", b"a+c"),
        (b"keep\n\n\n", "keep", "", b"\n\n\n"),
    ],
)
def test_an_edit_changes_its_piece_and_nothing_else(root: Path, text: bytes, old: str, new: str, result: bytes) -> None:
    (root / "f").write_bytes(text)
    assert use(root, "edit_file", path="f", old_string=old, new_string=new).state == "done"
    assert (root / "f").read_bytes() == result


@pytest.mark.parametrize(
    ("text", "old", "words"),
    [
        ("one\ntwo\n", "three", ["is not in 'f'", "read the file again"]),
        ("if x:\n\treturn\n", "if x:\n    return", ["is not in", "line 1 has it", "white space"]),
        ("a\nb\na\n", "a", ["more than once", "at lines 1, 3", "add lines before or after"]),
        ("aaa", "aa", ["more than once", "at lines 1, 1"]),
        ("x\n" * 9, "x", ["at lines 1, 2, 3, 4, 5 and more"]),
        ("one", "", ["old_string is empty", "write_file"]),
        ("one", "new", ["old_string and new_string are the same"]),
    ],
)
def test_S8_no_match_and_several_are_different_errors(root: Path, text: str, old: str, words: list[str]) -> None:
    (root / "f").write_text(text)
    outcome = use(root, "edit_file", path="f", old_string=old, new_string="new")
    assert outcome.state == "failed"
    for each in words:
        assert each in outcome.text
    assert (root / "f").read_text() == text


def test_edits_side_by_side_are_all_there(root: Path) -> None:
    (root / "f").write_text("".join(f"<{n}>\n" for n in range(20)))
    registry = ToolRegistry(*file_tools(root))

    async def edit_all() -> list[Outcome]:
        events = [
            ToolCallEvent("1", "edit_file", json.dumps({"path": "f", "old_string": f"<{n}>", "new_string": f"[{n}]"}))
            for n in range(20)
        ]
        return await asyncio.gather(*map(registry.call, events))

    assert {outcome.state for outcome in asyncio.run(edit_all())} == {"done"}
    assert (root / "f").read_text() == "".join(f"[{n}]\n" for n in range(20))


@pytest.mark.parametrize("path", [".git/config", "sub/.git/hooks/pre-commit", ".GIT/config", ".g\u200bit/x", ".git"])
def test_files_of_git_are_blocked_even_with_a_yes(root: Path, path: str) -> None:
    (root / ".git").mkdir()
    person = Person()
    for name, arguments in (("write_file", {"content": "x"}), ("edit_file", {"old_string": "a", "new_string": "b"})):
        assert use(root, name, person, path=path, **arguments).state == "blocked"
    assert person.shown == []
    assert os.listdir(root / ".git") == []


@pytest.mark.parametrize(
    "path",
    [
        "lamina.toml",
        ".lamina/rules.md",
        "AGENTS.md",
        "sub/AGENTS.md",
        "agents.MD",
        "docs/rules.md",
        "./docs//rules.md",
        ".env",
    ],
)
def test_what_tells_lamina_how_to_work_is_asked(root: Path, path: str) -> None:
    no, yes = Person(False), Person()
    assert use(root, "write_file", no, path=path, content="obey\u202e me\n").state == "refused"
    assert not (root / path).exists()
    assert use(root, "write_file", path=path, content="x").state == "refused"
    assert use(root, "write_file", yes, path=path, content="obey\u202e me\n").state == "done"
    assert use(root, "edit_file", yes, path=path, old_string="obey", new_string="listen to").state == "done"
    assert (root / path).read_text() == "listen to\u202e me\n"
    first, second = yes.shown
    assert first.shows == f"write {path}\nbytes: 11, new\n@@ -0,0 +1 @@\n+obey\\u202e me\n"
    assert second.shows == f"write {path}\n-obey\n+listen to\n"


def test_what_is_shown_is_the_difference_and_all_of_it(root: Path) -> None:
    (root / "AGENTS.md").write_text("".join(f"rule {n}\n" for n in range(3_000)))
    new = (root / "AGENTS.md").read_text().replace("rule 2999", "send \x1b[8m it all")
    person = Person(False)
    use(root, "write_file", person, path="AGENTS.md", content=new)
    assert "-rule 2999\n+send \\x1b[8m it all\n" in person.shown[0].shows
    assert "rule 5\n" not in person.shown[0].shows
    person = Person()
    outcome = use(root, "write_file", person, path="AGENTS.md", content="x\n" * 60_000)
    assert outcome.state == "blocked"
    assert "too long for a person to approve" in outcome.text
    assert person.shown == []


@pytest.mark.parametrize(
    "path",
    [
        ".env", ".env.production", "prod.env", "a/b/.ENV", "server.pem", "tls.key", "id_rsa", "id_ed25519_work",
        ".netrc", ".npmrc", ".pypirc", ".git-credentials", "credentials.json", "secrets.yaml", "aws_credentials",
        ".ssh/config",
        ".aws/credentials", "x/.kube/config", "terraform.tfstate", "passwords.txt", "service-account-prod.json",
        ".e\u200bnv", "token.pickle", "tokens.dat", "token_cache.bin", "db_creds.yml", "apikeys.json", "数据库密码.txt",
        "密钥.json", "terraform.tfstate.1700000000.backup", "x.pem.swo", "#server.pem#", ".histfile",
    ],
)  # fmt: skip
def test_names_that_hold_secrets_are_read_after_a_yes_alone(root: Path, path: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text("KEY=1")
    assert use(root, "read_file", path=path).state == "refused"
    assert use(root, "read_file", Person(False), path=f"./{path}").state == "refused"
    person = Person()
    assert use(root, "read_file", person, path=path).text == "KEY=1"
    assert person.shown[0].shows == f"read {visible(path)}"


@pytest.mark.parametrize(
    "path",
    [
        ".env.example",
        "id_rsa.pub",
        "environment.py",
        "keyboard.md",
        "pem.txt",
        "secretary.md",
        "tokens.css",
        "密码学.md",
        "密码学.txt",
        "creds.py",
        "token.go",
        "tokenizer.db",
    ],
)
def test_harmless_names_are_not_asked_about(path: str) -> None:
    assert not is_secret_path(path)


def test_a_link_does_not_help_to_read_a_secret(root: Path) -> None:
    (root / ".env").write_text("KEY=1")
    (root / "notes.txt").symlink_to(".env")
    (root / ".ssh").mkdir()
    (root / ".ssh/config").write_text("KEY=1")
    (root / "s").symlink_to(".ssh")
    for path in ("notes.txt", "s/config"):
        outcome = use(root, "read_file", path=path)
        assert outcome.state == "failed"
        assert "is a link to" in outcome.text
        assert "KEY" not in outcome.text


def test_a_link_within_the_root_is_read(root: Path) -> None:
    (root / "a.txt").write_text("text")
    (root / "b.txt").symlink_to("a.txt")
    assert use(root, "read_file", path="b.txt").text == "text"


def test_a_closed_file_is_not_opened_under_any_name(root: Path) -> None:
    """R6: opening and closing our own store would drop its locks."""
    store = root / "store"
    store.write_text("text")
    os.link(store, root / "copy.txt")
    (root / "other.txt").write_text("text")
    registry = ToolRegistry(*file_tools(root, closed=[store]))
    for name, state in (("store", "failed"), ("copy.txt", "failed"), ("other.txt", "done")):
        outcome = asyncio.run(registry.call(ToolCallEvent("1", "read_file", json.dumps({"path": name}))))
        assert outcome.state == state


def test_a_root_behind_a_link_works_by_both_names(root: Path) -> None:
    (root.parent / "alias").symlink_to(root)
    (root / "a.txt").write_text("text")
    for name in ("a.txt", str(root / "a.txt"), str(root.parent / "alias/a.txt")):
        assert use(root.parent / "alias", "read_file", path=name).text == "text"
    assert use(root.parent / "alias", "write_file", path=str(root.parent / "alias/b.txt"), content="x").state == "done"
    assert (root / "b.txt").read_text() == "x"


@given(st.text(max_size=40), st.text(max_size=3), st.text(max_size=3))
def test_an_edit_is_done_exactly_when_there_is_one_match(text: str, old: str, new: str) -> None:
    from tempfile import TemporaryDirectory  # noqa: PLC0415 -- Hypothesis wants no fixture that lasts for all examples

    with TemporaryDirectory() as folder:
        file = Path(folder, "f")
        file.write_bytes(text.encode())
        body = text.removeprefix("\ufeff")
        outcome = use(Path(folder), "edit_file", path="f", old_string=old, new_string=new)
        places = [n for n in range(len(body)) if old and body.startswith(old, n)]
        windows = "\r\n" in body and "\n" not in body.replace("\r\n", "")
        if not windows:
            assert (outcome.state == "done") == (len(places) == 1 and old != new), outcome
        after = file.read_bytes().decode()
        if outcome.state == "failed":
            assert after == text
        elif not windows:
            assert after == text.replace(old, new)
