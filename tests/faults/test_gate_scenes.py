"""T1 what lies on the disk: repositories that start programs, links that lead out, secrets that nobody named.

Each repository is a real one, and its trap is sprung by plain git first, so that a test cannot pass for want of a trap.
The trap only makes a file inside of the test's own folder.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lamina.layers.commands import decide
from lamina.layers.environment import shell_environment
from lamina.layers.tools_files import file_tools

PLAIN = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "GIT_CONFIG_NOSYSTEM": "1"}
ME = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "core.hooksPath=/dev/null")


def verdict(command: str, root: Path) -> str:
    return decide(command, root=root).verdict


def git(folder: Path, *words: str) -> None:
    environ = PLAIN | {"HOME": str(folder)}
    subprocess.run(["git", *ME, *words], cwd=folder, env=environ, check=True, capture_output=True)


def repository(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "-q")
    (root / "a.txt").write_text("one\n")
    git(root, "add", "a.txt")
    git(root, "commit", "-q", "-m", "first")
    return root


def add(root: Path, text: str, file: str = ".git/config") -> None:
    with (root / file).open("ab") as opened:
        opened.write(text.encode())


def trap(root: Path) -> str:
    return f"touch {root}/SPRUNG"


def includes(root: Path) -> None:
    add(root, "[include]\n\tpath = on\n")
    add(root, f"[core]\n\tfsmonitor = {trap(root)}\n", ".git/on")


def common_folder(root: Path) -> None:
    git(root, "clone", "-q", "--bare", ".", "evil")
    add(root, f"[core]\n\tbare = false\n\tfsmonitor = {trap(root)}\n", "evil/config")
    (root / ".git" / "commondir").write_text("../evil\n")


def lone_return(root: Path) -> None:
    add(root, f"[core]\n\tfsmonitor = true\r&& {trap(root)}\n")


def hooks_behind_a_comment(root: Path) -> None:
    hook = root / "h" / "post-index-change"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\n{trap(root)}\n")
    hook.chmod(0o755)
    add(root, "[core]\n\thooksPath = h ; c\n")
    os.utime(root / "a.txt", (1, 1))


def plain_hook(root: Path) -> None:
    hook = root / ".git" / "hooks" / "post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\n{trap(root)}\n")
    hook.chmod(0o755)
    os.utime(root / "a.txt", (1, 1))


def nested(root: Path) -> None:
    repository(root / "s")
    git(root, "-c", "advice.addEmbeddedRepo=false", "add", "s")
    add(root, f"[core]\n\tfsmonitor = {trap(root)}\n", "s/.git/config")


def many_modules(root: Path) -> None:
    for number in range(60):
        (root / ".git" / "modules" / f"{number:02}").mkdir(parents=True)
        (root / ".git" / "modules" / f"{number:02}" / "config").write_text("[core]\n\tbare = false\n")
    nested(root)
    (root / "s" / ".git").rename(root / ".git" / "modules" / "zz")
    (root / "s" / ".git").write_text("gitdir: ../.git/modules/zz\n")


def elsewhere(root: Path) -> None:
    (root / ".git").rename(root / "real ")
    (root / "real").mkdir()
    add(root, f"[core]\n\tfsmonitor = {trap(root)}\n", "real /config")
    (root / ".git").write_text("gitdir: real \n")


def external(root: Path) -> None:
    add(root, f"[diff]\n\texternal = {trap(root)}\n")
    (root / "a.txt").write_text("two\n")


def promised(root: Path) -> None:
    blob = subprocess.run(["git", "rev-parse", "HEAD:a.txt"], cwd=root, capture_output=True, check=True).stdout.decode()
    (root / ".git" / "objects" / blob[:2] / blob[2:].strip()).unlink()
    add(
        root,
        f'[remote "o"]\n\tpromisor\n\turl = {root}/.git\n\tuploadpack = {trap(root)};false\n'.replace(";false", ""),
    )


Trap = Callable[[Path], None]
SCENES: list[tuple[Trap, str]] = [
    (includes, "git status"),
    (common_folder, "git status"),
    (lone_return, "git status"),
    (hooks_behind_a_comment, "git status"),
    (plain_hook, "git status"),
    (nested, "git status"),
    (nested, "git diff"),
    (many_modules, "git status"),
    (elsewhere, "git status"),
    (external, "git diff"),
    (promised, "git show HEAD"),
]


def springs(command: str, root: Path, environ: dict[str, str]) -> bool:
    subprocess.run(
        ["/bin/bash", "--norc", "--noprofile", "-c", command], cwd=root, env=environ, stdin=subprocess.DEVNULL,
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    found = (root / "SPRUNG").exists()
    (root / "SPRUNG").unlink(missing_ok=True)
    return found


@pytest.mark.parametrize(("lay", "command"), SCENES, ids=lambda each: getattr(each, "__name__", each))
def test_T1_a_repository_that_starts_a_program_is_never_trusted(lay: Trap, command: str, tmp_path: Path) -> None:
    root = repository(tmp_path / "project")
    assert verdict(command, root) == "safe"
    lay(root)
    assert verdict(command, root) == "confirm"
    assert springs(command, root, PLAIN | {"HOME": str(tmp_path)}), "the trap must work"


@pytest.mark.parametrize("lay", [includes, common_folder, lone_return, hooks_behind_a_comment, plain_hook, elsewhere])
def test_T1_the_environment_of_a_command_disarms_what_the_gate_would_have_missed(lay: Trap, tmp_path: Path) -> None:
    root = repository(tmp_path / "project")
    lay(root)
    assert not springs("git status", root, shell_environment(str(root), PLAIN | {"HOME": str(tmp_path)}))


def test_T1_the_settings_of_a_home_folder_reach_no_command(tmp_path: Path) -> None:
    root = repository(tmp_path / "project")
    add(root, f"[core]\n\tfsmonitor = {trap(root)}\n", ".gitconfig")
    home = PLAIN | {"HOME": str(root)}
    assert not springs("git status", root, shell_environment(str(root), home))
    assert springs("git status", root, home), "the trap must work"


HARMLESS = """[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = true
\tignorecase = true
\tprecomposeunicode = true
[remote "origin"]
\turl = https://example.com/some/project.git
\tfetch = +refs/heads/*:refs/remotes/origin/*
[remote "ssh"]
\turl = git@example.com:some/project.git
[branch "main"]
\tremote = origin
\tmerge = refs/heads/main
[branch "功能/登录"]
\tremote = origin
\tmerge = refs/heads/功能/登录
[user]
\tname = 王伟
\temail = wang@example.com
[pull]
\trebase = false
[init]
\tdefaultBranch = main
"""


def test_T1_an_ordinary_repository_is_read_without_asking(tmp_path: Path) -> None:
    root = repository(tmp_path)
    (root / ".git" / "config").write_text(HARMLESS)
    (root / ".gitattributes").write_text("*.txt diff=x filter=y\n")
    for command in ("git status", "git diff", "git log -p", "git show HEAD", "git remote -v", "git branch -a"):
        assert verdict(command, root) == "safe", command


@pytest.mark.parametrize(
    "line",
    [
        "[core] bare = false", "[core]\n\tbare = true", "[core]\n\tworktree = /", "[core]\n\tbare",
        "[CORE]\n\tbare = false",
        "[core]\n\tpager = x", "[core]\n\tfilemode = true ; x", "[core]\n\tfilemode = true\r",
        "[core]\n\tfilemode = \\\ntrue",
        '[core]\n\tfilemode = "true"', '[remote "o"]\n\turl = ext::sh -c x', '[remote "o"]\n\turl = --upload-pack=x',
        '[remote "o"]\n\turl = https://me:pass@example.com/x', '[remote "o"]\n\turl = https://token@example.com/x',
        '[remote "o"]\n\tpromisor = true', '[remote "o"]\n\tuploadpack = x', '[remote "o"]\n\tvcs = x',
        '[remote "o"]\n\tproxy = x', "[user]\n\tname = a\\", "[user]\n\tname = a # b", "[include]\n\tpath = x",
        '[includeIf "gitdir:/"]\n\tpath = x', "[extensions]\n\tworktreeConfig = true", "[alias]\n\tst = !x",
        '[url "ext::x"]\n\tinsteadOf = https://', "[gpg]\n\tprogram = x", "[log]\n\tshowSignature = true", "\x00",
        "; x",
        '[branch "a\\"b"]\n\tremote = x', "[submodule]\n\trecurse = true", "\ufeff[core]", "[core]\x0b\n",
    ],
)  # fmt: skip
def test_T1_a_line_that_is_not_known_makes_git_ask(line: str, tmp_path: Path) -> None:
    root = repository(tmp_path)
    add(root, f"{line}\n")
    assert verdict("git log", root) == "confirm"


def test_T1_links_in_a_repository_and_lists_of_modules_make_git_ask(tmp_path: Path) -> None:
    root = repository(tmp_path / "a")
    (root / ".gitmodules").write_text("")
    assert verdict("git log", root) == "safe"
    assert verdict("git status", root) == "confirm"
    assert verdict("git log -p --submodule=diff", root) == "confirm"
    for name in ("objects/info/alternates", "config.worktree", "sharedindex.1"):
        root = repository(tmp_path / name.replace("/", "-"))
        (root / ".git" / name).write_text("x")
        assert verdict("git log", root) == "confirm", name
    root = repository(tmp_path / "b")
    (root / ".git" / "config").rename(root / "config")
    (root / ".git" / "config").symlink_to("../config")
    assert verdict("git log", root) == "confirm"


def trusts_the_first_line(config: bytes) -> bool:
    """The planted bug: a grammar that looks for bad words instead of knowing good lines."""
    return not any(b"fsmonitor =" in line or b"external" in line for line in config.split(b"\n"))


@pytest.mark.planted("a list of bad words")
def test_T1_the_scenes_find_a_planted_list_of_bad_words(tmp_path: Path) -> None:
    missed: list[str] = []
    for number, (lay, _) in enumerate(SCENES):
        root = repository(tmp_path / str(number))
        lay(root)
        config = root / ".git" / "config"
        if config.is_file() and trusts_the_first_line(config.read_bytes()):
            missed.append(lay.__name__)
    assert {"includes", "common_folder", "hooks_behind_a_comment", "nested", "promised"} <= set(missed)


# Links and secrets that a glob or a recursion reaches


def project(folder: Path) -> Path:
    root = folder / "project"
    for name in ("src", "d1", "d2", "keys"):
        (root / name).mkdir(parents=True)
    (folder / "plain.txt").write_text("outside\n")
    for name in ("a.txt", "src/main.py", "d1/x", "d2/x"):
        (root / name).write_text("inside\n")
    return root


@pytest.mark.parametrize(
    "command", ["cat l*", "cat l?nk", "head lin[k]", "wc -l ./l*", "cat d*/o*", "grep x l*", "grep l* a.txt",
        "cat < l*",
    "ls d*/*", "echo d*/*", "sort ./l*", "diff d1 d2", "diff -r d1 d2", "diff -rN d1 d2", "test -f l*", "git diff l*"]
)  # fmt: skip
def test_T1_a_link_out_of_the_workspace_is_found_behind_a_glob_or_a_comparison(command: str, tmp_path: Path) -> None:
    root = project(tmp_path)
    before = verdict(command, root)
    (root / "link").symlink_to(tmp_path / "plain.txt")
    (root / "d1" / "out").symlink_to(tmp_path / "plain.txt")
    assert verdict(command, root) == "confirm"
    assert before == "safe" or command.startswith(("cat <", "test"))


@pytest.mark.parametrize(
    "command", ["grep -r '' .", "grep -rn x", "grep -r x src", "grep --recursive x .", "grep -d recurse x .",
        "rg --hidden x",
    "rg -u x", "rg -uuu x", "rg -. x", "rg --no-ignore x src", "diff -r src d1", "cd src && grep -r x .", "git grep x",
    "grep -rn x --include='.*' .", "egrep -r x ."]
)  # fmt: skip
def test_T1_a_recursion_over_a_secret_asks(command: str, tmp_path: Path) -> None:
    root = project(tmp_path)
    assert verdict(command, root) == "safe"
    (root / "src" / ".env").write_text("KEY=1\n")
    assert verdict(command, root) == "confirm"


def test_T1_a_recursion_that_cannot_reach_the_secret_is_safe(tmp_path: Path) -> None:
    root = project(tmp_path)
    (root / "keys" / ".env").write_text("KEY=1\n")
    for command in (
        "grep -r x src",
        "rg x",
        "grep -rn x --include='*.py' .",
        "grep -r x . --exclude-dir=keys",
        "ls -R",
    ):
        assert verdict(command, root) == "safe", command
    (root / "keys" / "server.pem").write_text("KEY\n")
    assert verdict("rg x", root) == "confirm"


def test_T1_a_link_with_a_harmless_name_to_a_secret_asks(tmp_path: Path) -> None:
    root = project(tmp_path)
    (root / ".env").write_text("KEY=1\n")
    (root / "notes.txt").symlink_to(".env")
    for command in ("cat notes.txt", "cat n*", "cat < notes.txt", "diff -r . d1"):
        assert verdict(command, root) == "confirm", command


def test_T1_a_file_named_like_an_option_and_too_many_files_ask(tmp_path: Path) -> None:
    root = project(tmp_path)
    assert verdict("cat *", root) == "safe"
    (root / "-x").write_text("")
    assert verdict("cat *", root) == "confirm"
    many = root / "many"
    many.mkdir()
    for number in range(2_001):
        (many / f"{number}.txt").touch()
    assert verdict("cat many/1*.txt", root) == "safe"
    assert verdict("cat many/*.txt", root) == "confirm"


def literal_only(command: str, root: Path) -> str:
    """The planted bug: a glob is judged as it is written, as if nothing lay on the disk."""
    return decide(command, root=root / "nothing-here").verdict


@pytest.mark.planted("a gate that does not look where a link leads")
def test_T1_the_links_find_a_planted_gate_that_does_not_look(tmp_path: Path) -> None:
    root = project(tmp_path)
    (root / "link").symlink_to(tmp_path / "plain.txt")
    (root / ".env").write_text("KEY=1\n")
    commands = ("cat l*", "grep -r '' .", "rg --hidden x")
    assert [literal_only(command, root) for command in commands] == ["safe"] * 3
    assert [verdict(command, root) for command in commands] == ["confirm"] * 3


# Files that programs obey


@pytest.mark.parametrize(
    "path", [".gitconfig", ".bashrc", ".profile", ".config/git/config", ".ssh/config", ".npmrc", ".ripgreprc", ".jq",
    "sub/.gitattributes", ".github/workflows/x.yml", ".vscode/settings.json", ".BASHRC", ".gitmodules"]
)  # fmt: skip
def test_T1_a_file_that_programs_obey_is_not_written_without_asking(path: str, tmp_path: Path) -> None:
    tools = {tool.name: tool for tool in file_tools(tmp_path)}
    write, edit = tools["write_file"].check, tools["edit_file"].check
    assert write is not None
    assert edit is not None
    assert write({"path": path, "content": "x"}).verdict == "confirm"
    assert edit({"path": path, "old": "x", "new": "y"}).verdict == "confirm"
    assert write({"path": "src/main.py", "content": "x"}).verdict == "safe"
    assert write({"path": ".gitignore", "content": "x"}).verdict == "safe"
