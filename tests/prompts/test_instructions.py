"""Instruction files: never from outside the workspace, never stale, never silently absent (I2, I9, I12, P4, P6)."""

import dataclasses
import itertools
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lamina import assemble
from lamina.errors import InstructionsError, LayerError
from lamina.prompts.approvals import Approvals
from lamina.prompts.instructions import InstructionFiles, LoadedInstructions
from lamina.prompts.workspace import MAX_BYTES, MAX_LINKS, SETTLED, Workspace
from lamina.text.unicode import hidden_characters
from lamina.types import text_hash

CANARY = "CANARY: this stands outside the workspace"
INSIDE = "Always run the tests.\n"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A workspace, and beside it what must never be read."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("secret.md", "rules.md", "AGENTS.md"):
        (outside / name).write_text(CANARY)
    root = tmp_path / "desk"
    (root / ".lamina").mkdir(parents=True)
    return root


def write(path: Path, text: str = INSIDE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")
    return path


def settle() -> None:
    """Until a file's stamp is old enough to be trusted."""
    time.sleep(SETTLED / 1e9 + 0.05)


def rules_of(root: Path, **options: Any) -> str:
    return InstructionFiles(root, **options).load().rules_text


def refusal(run: Callable[[], object]) -> str:
    with pytest.raises(InstructionsError) as caught:
        run()
    assert caught.value.hint, "an error says what to do next"
    assert caught.value.path, "an error says which file to check"
    return str(caught.value)


class Counting:
    """`os.stat` that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, path: str, **options: Any) -> os.stat_result:
        self.asked.append(path)
        return os.stat(path, **options)


# What is loaded


def test_I12_the_shipped_instructions_and_the_rules_of_the_workspace_are_the_default(work: Path) -> None:
    write(work / ".lamina/rules.md")
    loaded = InstructionFiles(work).load()
    assert loaded.instructions.path == "lamina/instructions.md"
    assert len(loaded.instructions.text.splitlines()) > 15
    assert hidden_characters(loaded.instructions.text) == []
    (rules,) = loaded.rules
    assert (rules.kind, rules.path, rules.text, rules.hash, rules.size, rules.included) == (
        "rules",
        ".lamina/rules.md",
        INSIDE,
        text_hash(INSIDE),
        len(INSIDE),
        (),
    )
    assert (loaded.rules_text, loaded.rules_hash) == (INSIDE, text_hash(INSIDE))


def test_I12_the_shipped_instructions_repeat_no_line_of_the_identity() -> None:
    data = Path(__file__).parents[2] / "src/lamina/data"
    identity = {line.strip() for line in (data / "identity.md").read_text().splitlines() if line.strip()}
    assert not identity & {line.strip() for line in (data / "instructions.md").read_text().splitlines()}


def test_I12_both_paths_are_parameters(work: Path) -> None:
    write(work / "SYSTEM_PROMPT.md", "Work so.")
    write(work / ".ads/rules.md", "Rule.")
    loaded = InstructionFiles(work, instructions="SYSTEM_PROMPT.md", rules=Path(".ads/rules.md")).load()
    assert (loaded.instructions.text, loaded.instructions.path) == ("Work so.", "SYSTEM_PROMPT.md")
    assert [file.path for file in loaded.rules] == [".ads/rules.md"]


def test_I12_an_absolute_path_in_the_workspace_stays_confined_to_it(work: Path) -> None:
    (work / "linked").symlink_to(work.parent / "outside")
    assert "leads out" in refusal(lambda: rules_of(work, rules=work / "linked/rules.md"))
    mine = write(work.parent / "home/instructions.md", "Mine.\n@more.md")
    write(work.parent / "home/more.md", "More.")
    loaded = InstructionFiles(work, instructions=mine).load()
    assert (loaded.instructions.text, loaded.instructions.path) == ("Mine.\nMore.", str(mine))
    write(mine, "@../outside/secret.md")
    assert "leads out" in refusal(lambda: InstructionFiles(work, instructions=mine).load())
    assert "is not a path relative to a folder" in refusal(lambda: rules_of(work, rules=mine))


def test_I12_without_a_rules_file_every_AGENTS_md_down_to_the_folder_counts_the_nearest_last(work: Path) -> None:
    write(work / "AGENTS.md", "root")
    write(work / "a/b/AGENTS.md", "near")
    write(work / "a/b/c/AGENTS.md", "too deep")
    write(work / "other/AGENTS.md", "elsewhere")
    loaded = InstructionFiles(work, folder=work / "a/b").load()
    assert [file.path for file in loaded.rules] == ["AGENTS.md", "a/b/AGENTS.md"]
    assert loaded.rules_text == "root\n\nnear"
    assert loaded == InstructionFiles(work, folder="a/b").load()
    write(work / ".lamina/rules.md", "own")
    assert rules_of(work, folder="a/b") == "own"


def test_I12_rules_that_come_twice_through_a_link_are_loaded_once(work: Path) -> None:
    write(work / "AGENTS.md", "root")
    (work / "again").symlink_to(".")
    assert rules_of(work, folder="again/again") == "root"


def test_I12_a_folder_outside_the_workspace_or_missing_is_an_error(work: Path) -> None:
    assert "is not in the workspace" in refusal(lambda: InstructionFiles(work, folder=work.parent))
    assert "does not exist" in refusal(lambda: rules_of(work, folder="no/such"))
    (work / "out").symlink_to(work.parent / "outside")
    assert "leads out" in refusal(lambda: rules_of(work, folder="out"))


def test_I12_a_workspace_reached_through_a_link_takes_its_real_folder(work: Path) -> None:
    write(work / "a/AGENTS.md", "near")
    (work.parent / "alias").symlink_to(work)
    assert rules_of(work.parent / "alias", folder=work / "a") == "near"


def test_layers_show_each_file_with_its_source_and_reach_the_receipt(work: Path) -> None:
    write(work / "AGENTS.md", "root rules")
    write(work / "a/AGENTS.md", "near rules")
    loaded = InstructionFiles(work, folder="a").load()
    layers = loaded.layers(owner="ann")
    assert [(layer.name, layer.source, layer.owner, layer.trust) for layer in layers] == [
        ("instructions", "lamina/instructions.md", "ann", "operator"),
        ("rules", "AGENTS.md", "ann", "user"),
        ("rules", "a/AGENTS.md", "ann", "user"),
    ]
    context = assemble(loaded.layers(), user="hello", budget=8_000)
    assert [s.source for s in context.receipt.segments if s.layer == "rules"] == ["AGENTS.md", "a/AGENTS.md"]
    assert all(file.text in context.system for file in loaded.rules)
    with pytest.raises(dataclasses.FrozenInstanceError):
        loaded.rules = ()  # pyright: ignore[reportAttributeAccessIssue] -- on purpose


# Missing, and present but unusable


def test_I2_missing_instructions_are_an_error_that_says_how_to_restore_them(work: Path) -> None:
    said = refusal(lambda: InstructionFiles(work, instructions="SYSTEM_PROMPT.md").load())
    assert "'SYSTEM_PROMPT.md' does not exist" in said
    assert "the setting `instructions`" in said
    write(work / "SYSTEM_PROMPT.md", " \n\n")
    assert "is empty" in refusal(lambda: InstructionFiles(work, instructions="SYSTEM_PROMPT.md").load())


def test_I2_missing_rules_are_no_error_and_no_rules(work: Path) -> None:
    loaded = InstructionFiles(work).load()
    assert (loaded.rules, loaded.rules_text, loaded.rules_hash) == ((), "", "")
    shutil.rmtree(work / ".lamina")
    assert InstructionFiles(work).load().rules == ()


def test_I2_a_missing_workspace_is_an_error_and_not_a_workspace_without_rules(tmp_path: Path) -> None:
    assert "No such file" in refusal(lambda: rules_of(tmp_path / "none"))


UNUSABLE: dict[str, Callable[[Path], object]] = {
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a socket": lambda path: socket.socket(socket.AF_UNIX).bind(os.path.relpath(path)),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link out": lambda path: path.symlink_to(path.parents[2] / "outside/secret.md"),
    "a link to nowhere": lambda path: path.symlink_to("nothing.md"),
    "a loop": lambda path: path.symlink_to(path.name),
    "latin-1": lambda path: path.write_bytes("naïve".encode("latin-1")),
    "utf-16": lambda path: path.write_bytes("rules".encode("utf-16")),
    "a cut character": lambda path: path.write_bytes("中".encode()[:2]),
    "a surrogate": lambda path: path.write_bytes(b"\xed\xa0\x80"),
    "overlong": lambda path: path.write_bytes(b"\xc0\xaf"),
    "binary": lambda path: path.write_bytes(bytes(range(256))),
    "nulls": lambda path: path.write_bytes(bytes(100)),
    "too large": lambda path: path.write_bytes(b"x" * (MAX_BYTES + 1)),
    "huge and sparse": lambda path: os.truncate(write(path), 1 << 40),
    "hidden": lambda path: write(path, "a\u202eb"),
}


@pytest.mark.parametrize("make", UNUSABLE.values(), ids=UNUSABLE)
@pytest.mark.parametrize("role", ["rules", "instructions", "AGENTS.md", "include"])
def test_I2_present_but_unusable_is_a_clear_error_in_every_role(
    work: Path, make: Callable[[Path], object], role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = work / ".lamina/rules.md"
    options: dict[str, Any] = {}
    if role == "instructions":
        options = {"instructions": ".lamina/rules.md", "rules": "none"}
    if role == "AGENTS.md":
        path = work / "folder/AGENTS.md"
        options = {"folder": "folder"}
    if role == "include":
        write(path, "@other.md")
        path = work / ".lamina/other.md"
    path.parent.mkdir(exist_ok=True)
    monkeypatch.chdir(work)  # the path of a socket is short
    if make is UNUSABLE["a socket"]:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))
    else:
        make(path)
    files = InstructionFiles(work, **options)
    assert path.name in refusal(files.load)
    assert path.name in refusal(files.load), "an error is not remembered as absence"
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink()
    write(path)
    assert INSIDE.strip() in files.load().rules_text + files.load().instructions.text


def test_I2_a_file_in_the_place_of_the_rules_folder_is_an_error(work: Path) -> None:
    (work / ".lamina").rmdir()
    write(work / ".lamina", "a file")
    assert "Not a directory" in refusal(lambda: rules_of(work))


def test_I2_a_link_to_nowhere_in_the_place_of_the_rules_folder_is_an_error(work: Path) -> None:
    files = InstructionFiles(work)
    (work / ".lamina").rmdir()
    assert files.load().rules == ()
    (work / ".lamina").symlink_to("nowhere")
    assert "broken link" in refusal(files.load)


def test_I2_a_file_without_permission_is_an_error() -> None:
    """Root may read everything, so root becomes nobody for as long as it reads."""
    root, nobody = os.geteuid() == 0, 65534
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        write(Path(folder) / ".lamina/rules.md").chmod(0)
        os.chmod(Path(folder) / ".lamina", 0o755)
        if root:
            os.seteuid(nobody)
        try:
            found = refusal(lambda: Workspace(folder).read(".lamina/rules.md"))
        finally:
            if root:
                os.seteuid(0)
    assert "rules.md" in found
    assert "Permission denied" in found


def test_the_size_limit_is_exact_and_a_byte_order_mark_is_dropped(work: Path) -> None:
    path = write(work / ".lamina/rules.md", "x" * 100)
    assert len(rules_of(work, folder=".") or "") == 100
    assert InstructionFiles(Workspace(work, max_bytes=100_000)).load().rules[0].size == 100
    assert Workspace(work, max_bytes=100).read(".lamina/rules.md").size == 100
    assert "101 bytes, 100 are allowed" in refusal(
        lambda: Workspace(work, max_bytes=100).read(".lamina/" + write(path, "x" * 101).name)
    )
    path.write_bytes(b"\xef\xbb\xbfrules")
    assert rules_of(work) == "rules"
    path.write_bytes(b"\xef\xbb\xbf\xef\xbb\xbfrules")
    assert "ZERO WIDTH NO-BREAK SPACE" in refusal(lambda: rules_of(work))


# Includes


def test_includes_stand_in_the_place_of_their_line(work: Path) -> None:
    write(work / ".lamina/rules.md", "before\n@more/style.md\r\n@./tests.md  \nafter\n")
    write(work / ".lamina/more/style.md", "style\n@../../docs/deep.md\n")
    write(work / "docs/deep.md", "deep")
    write(work / ".lamina/tests.md", "tests\n\n")
    (file,) = InstructionFiles(work).load().rules
    assert file.text == "before\nstyle\ndeep\ntests\n\nafter\n"
    assert file.included == (".lamina/more/style.md", "docs/deep.md", ".lamina/tests.md")
    assert (file.hash, file.size) == (text_hash(file.text), len(file.text))


@pytest.mark.parametrize(
    "text",
    [
        "@alice",
        "see @docs/x.md",
        " @docs/x.md",
        "@alice and docs/x.md",
        "```\n@docs/x.md\n```",
        "~~~ text\n@docs/x.md\n```\n@docs/x.md\n~~~",
        "````\n```\n@docs/x.md\n````",
        "  ```python\n@app.route/x\n  ```\n",
        "```\n@docs/x.md",
        "@",
        "a@b.c",
    ],
)
def test_other_lines_with_an_at_sign_are_text(work: Path, text: str) -> None:
    write(work / ".lamina/rules.md", text)
    assert rules_of(work) == text


def test_an_include_counts_again_behind_a_closed_fence(work: Path) -> None:
    write(work / "x.md", "X")
    write(work / ".lamina/rules.md", "```\n@../x.md\n```\n@../x.md\n``` a`b\n@../x.md")
    assert rules_of(work) == "```\n@../x.md\n```\nX\n``` a`b\nX"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"rules.md": "\n@none.md"}, ".lamina/rules.md:2 includes 'none.md', which does not exist"),
        ({"rules.md": "@rules.md"}, ".lamina/rules.md:1 includes 'rules.md', which leads back"),
        ({"rules.md": "@a.md", "a.md": "x\n@b.md", "b.md": "@./a.md"}, ".lamina/b.md:1 includes './a.md', which leads"),
        ({"rules.md": "@/etc/passwd"}, ".lamina/rules.md:1: '/etc/passwd' is not a path relative"),
        ({"rules.md": "@../../outside/secret.md"}, ".lamina/rules.md:1: '../outside/secret.md' leads out"),
        ({"rules.md": "@.."}, ".lamina/rules.md:1: "),
        ({"rules.md": "@../.lamina/"}, "is a folder"),
        (
            {"rules.md": "@a.md", "a.md": "\n\nb\u202e"},
            "rules.md:1: '.lamina/a.md' contains characters that cannot be seen: 3:2",
        ),
        ({"rules.md": "@0.md", **{f"{n}.md": f"@{n + 1}.md" for n in range(9)}}, "4.md:1 includes '5.md', more than 5"),
        ({"rules.md": "@a.md\n" * 3, "a.md": "x" * 100_000}, "too large: 262144 bytes are allowed for all"),
        (
            {"rules.md": "\n".join(f"@{n}.md" for n in range(300)), **{f"{n}.md": "" for n in range(300)}},
            "one file too",
        ),
    ],
)
def test_a_wrong_include_is_an_error_that_names_file_and_line(work: Path, files: dict[str, str], said: str) -> None:
    for name, text in files.items():
        write(work / ".lamina" / name, text)
    assert said in refusal(lambda: rules_of(work))


def test_five_files_deep_is_allowed_and_a_file_may_be_included_twice(work: Path) -> None:
    write(work / ".lamina/rules.md", "@1.md\n@1.md")
    for n in range(1, 5):
        write(work / f".lamina/{n}.md", f"@{n + 1}.md")
    write(work / ".lamina/5.md", "deep")
    assert rules_of(work) == "deep\ndeep"


def test_a_cycle_through_links_is_found_by_the_file_not_by_its_name(work: Path) -> None:
    write(work / ".lamina/rules.md", "@other.md")
    (work / ".lamina/other.md").symlink_to("rules.md")
    assert "leads back" in refusal(lambda: rules_of(work))


def test_a_hostile_line_of_includes_takes_time_in_proportion(work: Path) -> None:
    write(work / ".lamina/rules.md", "@" + "./" * 100_000 + "x y")
    began = time.monotonic()
    rules_of(work)
    write(work / ".lamina/empty.md", "")
    write(work / ".lamina/rules.md", "@empty.md\n" * 20_000)
    rules_of(work)
    assert time.monotonic() - began < 2


def test_the_rules_of_all_folders_together_keep_to_the_limit(work: Path) -> None:
    write(work / "AGENTS.md", "x" * 150_000)
    write(work / "a/AGENTS.md", "x" * 150_000)
    assert "for all files together" in refusal(lambda: rules_of(work, folder="a"))


# Cache


def test_I9_an_unchanged_file_costs_one_stat(work: Path) -> None:
    write(work / ".lamina/rules.md", "@more.md")
    write(work / ".lamina/more.md", "more")
    write(work / "SYSTEM_PROMPT.md", "Work so.")
    settle()
    counting = Counting()
    files = InstructionFiles(Workspace(work, stat=counting), instructions="SYSTEM_PROMPT.md")
    first = files.load()
    counting.asked.clear()
    assert files.load() is first
    assert [os.path.relpath(path, work) for path in counting.asked] == [
        "SYSTEM_PROMPT.md",
        ".lamina/rules.md",
        ".lamina/more.md",
    ]


def test_I9_fifty_nested_files_cost_one_stat_each_and_one_for_the_absent_rules(work: Path) -> None:
    folder = work
    for number in range(50):
        write(folder / "AGENTS.md", f"rules {number}")
        folder = folder / "f"
    settle()
    counting = Counting()
    files = InstructionFiles(Workspace(work, stat=counting), folder="f/" * 49)
    assert len(files.load().rules) == 50
    counting.asked.clear()
    files.load()
    assert len(counting.asked) == len(set(counting.asked)) == 52


WARM = """
import os, sys, time
from lamina.prompts.instructions import InstructionFiles
files = InstructionFiles(sys.argv[1], folder="a")
files.load(); time.sleep(0.3); files.load()
events = []
sys.addaudithook(lambda name, args: events.append(name))
files.load()
seen = sorted(set(events))
print(seen)
"""


def test_I9_the_warm_path_opens_nothing(work: Path) -> None:
    write(work / "AGENTS.md", "root")
    write(work / "a/AGENTS.md", "near\n@more.md")
    write(work / "a/more.md", "more")
    ran = subprocess.run([sys.executable, "-c", WARM, str(work)], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


TRACED = """
import os, sys, time
from lamina.prompts.instructions import InstructionFiles
files = InstructionFiles(sys.argv[1], folder="a")
files.load(); time.sleep(0.3); files.load()
os.access("/lamina-begin", 0)
files.load()
os.access("/lamina-end", 0)
"""


@pytest.mark.skipif(not shutil.which("strace"), reason="strace counts the system calls; the audit hook shows it too")
def test_I9_the_warm_path_makes_one_system_call_a_file(work: Path, tmp_path: Path) -> None:
    write(work / "AGENTS.md", "root")
    write(work / "a/AGENTS.md", "near\n@more.md")
    write(work / "a/more.md", "more")
    log = tmp_path / "trace"
    ran = subprocess.run(["strace", "-o", log, sys.executable, "-c", TRACED, str(work)], capture_output=True)
    if ran.returncode or not log.exists():
        pytest.skip("this machine lets no process be traced")
    calls = log.read_text().split("lamina-begin")[1].split("lamina-end")[0].splitlines()[1:-1]
    assert [line.split("(")[0] for line in calls] == ["newfstatat"] * 5, calls


def touch_back(path: Path, text: str) -> None:
    """A change that keeps size and modification time, as some copying tools make it."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "in place": lambda path: path.write_text("new rules"),
    "replaced": lambda path: os.replace(write(path.with_name("draft"), "new rules"), path),
    "with the old time": lambda path: touch_back(path, "new rules"),
    "replaced by a link": lambda path: (
        write(path.with_name("other.md"), "new rules"),
        path.unlink(),
        path.symlink_to("other.md"),
    ),
    "its folder replaced": lambda path: (
        path.parent.rename(path.parent.with_name("away")),
        write(path, "new rules"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("included", [False, True], ids=["file", "include"])
def test_I9_a_changed_file_is_read_again_at_once(work: Path, change: Callable[[Path], object], included: bool) -> None:
    path = work / ".lamina/rules.md"
    if included:
        path = work / "docs/part.md"
        write(work / ".lamina/rules.md", "@../docs/part.md")
    write(path, "old rules")
    settle()
    files = InstructionFiles(work)
    before = files.load()
    assert files.load() is before
    change(path)
    assert files.load().rules_text == "new rules"
    assert files.load().rules_hash != before.rules_hash


def test_I9_quick_changes_of_equal_size_are_never_missed(work: Path) -> None:
    """Faster than the clock that stamps files, in place, with the size kept."""
    path = work / ".lamina/rules.md"
    files = InstructionFiles(work)
    for number in range(300):
        write(path, f"rules {number:03}")
        assert files.load().rules_text == f"rules {number:03}"


def test_I9_rules_that_come_and_go_are_noticed(work: Path) -> None:
    files = InstructionFiles(work, folder="a")
    (work / "a").mkdir()
    seen: list[str] = []
    for change in (
        lambda: None,
        lambda: write(work / "a/AGENTS.md", "near"),
        lambda: write(work / "AGENTS.md", "root"),
        lambda: write(work / ".lamina/rules.md", "own"),
        lambda: (work / ".lamina/rules.md").unlink(),
        lambda: shutil.rmtree(work / ".lamina"),
        lambda: (work / "AGENTS.md").unlink(),
        lambda: write(work / ".lamina/rules.md", "own again"),
    ):
        change()
        settle()
        files.load()
        seen.append(files.load().rules_text)
    assert seen == ["", "near", "root\n\nnear", "own", "root\n\nnear", "root\n\nnear", "near", "own again"]


def test_I9_a_folder_that_is_a_link_is_noticed_when_it_leads_elsewhere(work: Path) -> None:
    (work / "empty").mkdir()
    write(work / "full/rules.md")
    (work / "linked").symlink_to("empty")
    files = InstructionFiles(work, rules="linked/rules.md")
    assert files.load().rules == ()
    (work / "linked").unlink()
    (work / "linked").symlink_to("full")
    assert files.load().rules_text == INSIDE


def test_I9_a_failed_load_does_not_bring_back_the_old_text(work: Path) -> None:
    path = write(work / ".lamina/rules.md", "old")
    settle()
    files = InstructionFiles(work)
    files.load()
    path.write_bytes(b"\xff")
    for _ in range(3):
        refusal(files.load)
    write(path, "new")
    assert files.load().rules_text == "new"


# Approvals


def test_fault_P4_hidden_characters_are_refused_until_this_version_is_approved(work: Path, tmp_path: Path) -> None:
    approvals = Approvals(tmp_path / "state/approved.json")
    path = write(work / ".lamina/rules.md", "Be nice.\nrm\u202e -rf\u200b")
    files = InstructionFiles(work, approvals=approvals)
    said = refusal(files.load)
    assert "2:3 U+202E RIGHT-TO-LEFT OVERRIDE, 2:8 U+200B ZERO WIDTH SPACE" in said
    assert "lamina rules approve .lamina/rules.md" in said
    version = files.workspace.read(".lamina/rules.md").hash
    approvals.approve(version)
    settle()
    assert files.load().rules_text == path.read_text()
    assert files.load() is files.load()
    write(path, "Be nice.\nrm\u202e -rf\u200b /")
    assert "U+202E" in refusal(files.load), "another version is another decision"
    write(path, "Be nice.\nrm\u202e -rf\u200b")
    files.load()
    Approvals(tmp_path / "state/approved.json").revoke(version)
    assert "U+202E" in refusal(files.load), "what another process revokes counts at once"


def test_fault_P4_an_include_with_hidden_characters_is_approved_by_its_own_hash(work: Path, tmp_path: Path) -> None:
    approvals = Approvals(tmp_path / "approved.json")
    write(work / ".lamina/rules.md", "@part.md")
    write(work / ".lamina/part.md", "a\u2060b")
    files = InstructionFiles(work, approvals=approvals)
    assert "lamina rules approve .lamina/part.md" in refusal(files.load)
    approvals.approve(files.workspace.read(".lamina/part.md").hash)
    assert files.load().rules_text == "a\u2060b"


def test_fault_P4_a_repository_cannot_approve_itself(work: Path) -> None:
    write(work / ".lamina/rules.md", "a\u202eb")
    (work.parent / "link.json").symlink_to(work / "approved.json")
    for path in (work / "approved.json", work.parent / "link.json"):
        approvals = Approvals(path)
        approvals.approve(text_hash("a\u202eb"))
        assert "does not count" in refusal(InstructionFiles(work, approvals=approvals).load)


def test_fault_P4_many_places_are_shown_short(work: Path) -> None:
    write(work / ".lamina/rules.md", "\u200b" * 1000)
    assert "and 995 more" in refusal(lambda: rules_of(work))


def test_approvals_are_a_private_file_that_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "state/lamina/approved.json"
    approvals = Approvals(path)
    one, two = text_hash("one"), text_hash("two")
    assert one not in approvals
    approvals.approve(two)
    approvals.approve(one)
    approvals.approve(one)
    assert one in approvals
    assert json.loads(path.read_text()) == sorted([one, two])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    approvals.revoke(one)
    assert (one in approvals, two in approvals) == (False, True)
    assert sorted(file.name for file in path.parent.iterdir()) == ["approved.json", "approved.json.lock"]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '["abc"]', "[", "[" * 100_000, '"x"', "\x00", "null"])
def test_a_bad_approvals_file_is_a_clear_error(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "approved.json", text)
    assert "not a JSON list of content hashes" in refusal(lambda: "x" in Approvals(path))
    assert path.read_text() == text


def test_an_approvals_file_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    write(tmp_path / "state", "a file")
    assert "cannot be written" in refusal(lambda: Approvals(tmp_path / "state/approved.json").approve("0" * 64))
    assert "not a content hash" in refusal(lambda: Approvals(tmp_path / "approved.json").approve("abc"))


# Hostile paths

TARGETS = {
    "file": "good.md",
    "file by dot": "./good.md",
    "file up and down": "sub/../good.md",
    "file below": "sub/deep/good.md",
    "file absolute": "{work}/good.md",
    "file absolute with dots": "{work}/sub/../good.md",
    "chain": "chain0",
    "folder": "sub",
    "folder with a slash": "sub/",
    "itself": ".",
    "loop": "loop",
    "pair of loops": "ping",
    "missing": "nothing",
    "missing folder": "nothing/good.md",
    "through a file": "good.md/x",
    "pipe": "pipe",
    "socket": "socket",
    "huge": "huge",
    "binary": "binary",
    "outside file": "{outside}/secret.md",
    "outside file relative": "../outside/secret.md",
    "outside file twice up": "sub/../../outside/secret.md",
    "outside folder": "{outside}",
    "outside folder relative": "../outside",
    "outside by a name that begins alike": "{work}-evil/secret.md",
    "outside by a prefix": "{work}/../outside/secret.md",
    "parent": "..",
    "far up": "../" * 60 + "etc/passwd",
    "root": "/",
    "passwd": "/etc/passwd",
    "double slash": "//etc/passwd",
    "zero": "/dev/zero",
    "tty": "/dev/tty",
    "environment": "/proc/self/environ",
    "by process root": "/proc/self/root{outside}/secret.md",
    "by process folder": "/proc/self/cwd",
    "long": "a" * 255 + "/" + "b" * 255,
    "many steps": "sub/../" * 500 + "good.md",
}
HONEST_TARGETS = {name for name in TARGETS if name.startswith("file")} | {"chain"}

PATHS = [
    "", ".", "..", "/", "./", "../", "//", "~", "~root/x", "good.md/", "good.md/.", "good.md/..", "good.md//",
    "./good.md", ".//good.md", "sub/../good.md", "sub/deep/../../good.md", "sub/../../desk/good.md",
    "../desk/good.md", "../outside/secret.md", "sub/../../outside/secret.md", "nothing/../good.md",
    "good.md/../good.md", "{work}/good.md", "{outside}/secret.md", "/etc/passwd", "//etc/passwd", "/dev/zero",
    "/dev/stdin", "/proc/self/environ", "GOOD.MD", "Good.md", ".LAMINA/Rules.md", "SUB/good.md", "good.md\0",
    "good.md\0.txt", "\0", "x\0/../good.md", "a" * 255, "a" * 256, "a" * 5000, "./" * 3000 + "good.md",
    "a/" * 3000 + "x", "sub/../" * 2000 + "good.md", "../" * 3000 + "etc/passwd", "..\\outside\\secret.md",
    "C:\\good.md", "good.md ", " good.md", "good.md\n", "%2e%2e/outside/secret.md", "..%2foutside/secret.md",
    "．．/outside/secret.md", "\u202egood.md", "good\u200b.md", "\udcff.md", "\ud800.md", "-rf", "$HOME/x", "`id`",
    "file:///etc/passwd", "http://example.com/x", "sub", "sub/", "sub/deep", "pipe", "pipe/x", "socket", "huge",
    "binary", ".../x", "..../..", "... ", "con", "nul.md", "good.md::$DATA", "*", "go*.md", "[g]ood.md", "{good}.md",
]  # fmt: skip


def hostile_tree(work: Path) -> None:
    write(work / "good.md")
    write(work / "sub/good.md")
    write(work / "sub/secret.md")
    write(work / "sub/deep/good.md")
    (work / "loop").symlink_to("loop")
    (work / "ping").symlink_to("pong")
    (work / "pong").symlink_to("ping")
    os.mkfifo(work / "pipe")
    here = Path.cwd()
    os.chdir(work)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket")
    finally:
        os.chdir(here)
    os.truncate(write(work / "huge"), 1 << 40)
    (work / "binary").write_bytes(b"\x7fELF\x00\xff")
    for number in range(MAX_LINKS - 5):
        (work / f"chain{number}").symlink_to(f"chain{number + 1}")
    (work / f"chain{MAX_LINKS - 5}").symlink_to("good.md")
    write(work.parent / "desk-evil/secret.md", CANARY)
    for path in (work.parent / "outside").iterdir():
        os.utime(path, (1, time.time()))


def hostile_cases(work: Path) -> Iterator[tuple[str, Callable[[], str], bool]]:
    """Name, what to try, and whether it must succeed."""
    places = {"work": str(work), "outside": str(work.parent / "outside")}

    def read(path: str) -> Callable[[], str]:
        return lambda: Workspace(work).read(path).text

    def load(**options: Any) -> Callable[[], str]:
        def run() -> str:
            loaded = InstructionFiles(work, **options).load()
            return loaded.instructions.text if "instructions" in options else loaded.rules_text

        return run

    for number, (name, target) in enumerate(TARGETS.items()):
        target = target.format(**places)
        good = name in HONEST_TARGETS
        (work / f"link{number}").symlink_to(target)
        (work / f"second{number}").symlink_to(f"link{number}")
        write(work / f"include{number}.md", f"@./link{number}\n")
        write(work / f"below{number}.md", f"@./link{number}/secret.md\n")
        (work / f"agents{number}").mkdir()
        (work / f"agents{number}/AGENTS.md").symlink_to(target if target.startswith("/") else f"../{target}")
        yield f"{name}: link", read(f"link{number}"), good
        yield f"{name}: link to a link", read(f"sub/../second{number}"), good
        yield f"{name}: below", read(f"link{number}/secret.md"), name in ("folder", "folder with a slash")
        yield f"{name}: include", load(rules=f"include{number}.md"), good
        yield f"{name}: include below", load(rules=f"below{number}.md"), name in ("folder", "folder with a slash")
        yield f"{name}: instructions", load(instructions=f"link{number}"), good
        yield f"{name}: nested", load(folder=f"agents{number}"), good and not name.startswith("chain")
    for number, path in enumerate(PATHS):
        path = path.format(**places) if "{" in path and "good}" not in path else path
        good = path in ("./good.md", ".//good.md", "sub/../good.md", "sub/deep/../../good.md")
        yield f"path {path[:40]!r}: read", read(path), good
        if path:
            yield f"path {path[:40]!r}: rules", load(rules=path), good
        if path and not {"\n", "\0"} & set(path) and path.isprintable():
            write(work / f"path{number}.md", f"@{path}\n")
            yield f"path {path[:40]!r}: include", load(rules=f"path{number}.md"), good and " " not in path


def attempt(run: Callable[[], str]) -> str | LayerError:
    try:
        return run()
    except LayerError as error:
        return error


def test_fault_P6_three_hundred_hostile_paths_read_nothing_outside_and_never_hang(work: Path) -> None:
    hostile_tree(work)
    probe = work.parent / "outside/AGENTS.md"
    probe.read_bytes()
    stamped = probe.stat().st_atime > 1  # most file systems note that a file was read
    os.utime(probe, (1, time.time()))
    count = worked = 0
    for name, run, good in hostile_cases(work):
        began = time.monotonic()
        result = attempt(run)
        assert time.monotonic() - began < 2, name
        count += 1
        if isinstance(result, LayerError):
            assert not good, f"{name}: {result}"
            assert result.hint, name
        else:
            worked += 1
            assert CANARY not in result, name
            assert result in (INSIDE, "") or result.startswith("@"), (name, result[:80])
            assert result == INSIDE or not good, name
    assert count >= 300
    assert worked >= 40
    if stamped:
        read = [path.name for path in (work.parent / "outside").iterdir() if path.stat().st_atime != 1]
        assert read == [], "a file outside was read, although its text was not handed on"


def test_fault_P6_forty_links_are_followed_and_not_one_more(work: Path) -> None:
    write(work / "good.md")
    (work / "l0").symlink_to("good.md")
    for number in range(1, MAX_LINKS + 1):
        (work / f"l{number}").symlink_to(f"l{number - 1}")
    assert Workspace(work).read(f"l{MAX_LINKS - 1}").text == INSIDE
    assert "more than 40 links" in refusal(lambda: Workspace(work).read(f"l{MAX_LINKS}"))


def test_fault_P6_no_handle_stays_open(work: Path) -> None:
    hostile_tree(work)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _, run, _ in hostile_cases(work):
        attempt(run)
    assert before == (len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0)


Swap = Callable[[Path], Iterator[None]]
"""Changes what lies at a path for ever, and gives way after each change."""


def swap_file(work: Path) -> Iterator[None]:
    """The rules file by turns a link to a file outside, and a file."""
    while True:
        (work / "link.draft").symlink_to(work.parent / "outside/rules.md")
        os.replace(work / "link.draft", work / ".lamina/rules.md")
        yield
        write(work / "rules.draft", INSIDE)
        os.replace(work / "rules.draft", work / ".lamina/rules.md")
        yield


def swap_folder(work: Path, folder: str = ".lamina", outside: str = "../outside") -> Iterator[None]:
    """Its folder by turns a link to a folder outside, and a folder."""
    while True:
        (work / folder).rename(work / "away")
        (work / folder).symlink_to(outside)
        yield
        (work / folder).unlink()
        (work / "away").rename(work / folder)
        yield


def swap_target(work: Path) -> Iterator[None]:
    """The folder that a link within the workspace leads through, by turns a link out and a folder."""
    return swap_folder(work, "docs", str(work.parent / "outside"))


def swap_version(work: Path) -> Iterator[None]:
    for text in itertools.cycle((NEW, OLD)):
        os.replace(write(work / "draft", text), work / ".lamina/rules.md")
        yield


OLD, NEW = "old rule\n" * 5_000, "new rule\n" * 5_000


def safe(work: Path) -> str:
    return InstructionFiles(work).load().rules_text


def naive(work: Path) -> str:
    return (work / ".lamina/rules.md").read_text()


def seen_in_race(work: Path, swap: Swap, read: Callable[[Path], str], times: int) -> set[str]:
    """What a reader sees while somebody else swaps what it reads."""
    stop = threading.Event()
    failed: list[OSError] = []

    def swapping() -> None:
        try:
            for turn, _ in enumerate(swap(work)):
                if stop.is_set() and turn % 2:
                    return
                time.sleep(0.001 if turn % 7 == 0 else 0)  # out of step with the reader, so that it sees every state
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=swapping)
    seen: set[str] = set()
    thread.start()
    try:
        for _ in range(times):
            try:
                seen.add(read(work))
            except (LayerError, OSError) as error:
                seen.add(type(error).__name__)
            if CANARY in seen:
                break
    finally:
        stop.set()
        thread.join()
    assert not failed
    return seen


@pytest.mark.planted("a reader that checks and then opens")
@pytest.mark.parametrize("swap", [swap_file, swap_folder, swap_target])
def test_fault_P6_a_race_of_swaps_never_reads_outside_and_a_naive_reader_does(work: Path, swap: Swap) -> None:
    write(work / ".lamina/rules.md")
    if swap is swap_target:
        write(work / "docs/rules.md")
        (work / ".lamina/rules.md").unlink()
        (work / ".lamina/rules.md").symlink_to("../docs/rules.md")
    seen = seen_in_race(work, swap, safe, 2_000)
    assert seen <= {INSIDE, "", "InstructionsError"}
    assert INSIDE in seen, "the race must leave something to read"
    assert CANARY in seen_in_race(work, swap, naive, 20_000), "the planted bug must be seen"


def test_fault_P6_a_file_that_is_replaced_while_it_is_read_is_one_version_or_the_other(work: Path) -> None:
    write(work / ".lamina/rules.md", OLD)
    assert seen_in_race(work, swap_version, safe, 300) <= {OLD, NEW, "InstructionsError"}


def test_a_loaded_value_is_what_it_was_when_files_change_later(work: Path) -> None:
    path = write(work / ".lamina/rules.md", "one")
    files = InstructionFiles(work)
    before: LoadedInstructions = files.load()
    write(path, "two")
    assert (before.rules_text, files.load().rules_text) == ("one", "two")
