"""T1 what lies on the disk: repositories that start programs, links that lead out, secrets that nobody named.

Each repository is a real one, and its trap is sprung by plain git first, so that a test cannot pass for want of a trap.
The trap only makes a file inside of the test's own folder.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lamina.sandbox.process import shell_environment
from lamina.shell.policy import decide
from lamina.tools.files import file_tools

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
    for command in ("git log", "git status", "git log -p --submodule=diff"):
        assert verdict(command, root) == "confirm"
    for name in ("objects/info/alternates", "config.worktree", "sharedindex.1"):
        root = repository(tmp_path / name.replace("/", "-"))
        (root / ".git" / name).write_text("x")
        assert verdict("git log", root) == "confirm", name
    root = repository(tmp_path / "b")
    (root / ".git" / "config").rename(root / "config")
    (root / ".git" / "config").symlink_to("../config")
    assert verdict("git log", root) == "confirm"


def unplug(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def break_off(path: Path) -> None:
    path.write_text("[")


def lead_out(path: Path) -> None:
    """The same file or folder, but outside of the workspace."""
    away = next(up for up in path.parents if up.name == "project").with_name(f"away-{path.name}")
    if path.exists():
        path.rename(away)
    path.symlink_to(away)


@pytest.mark.parametrize(
    ("name", "spoil"),
    [(name, lead_out) for name in ("HEAD", "info", "refs/heads", "logs", "objects/pack", "index", "config",
        "packed-refs")]
    + [(name, unplug) for name in ("config", "index")]
    + [("config", loop), ("config", break_off)],
)  # fmt: skip
def test_T1_links_pipes_and_loops_in_a_repository_make_git_ask_and_nothing_waits(
    name: str, spoil: Callable[[Path], object], tmp_path: Path
) -> None:
    root = repository(tmp_path / "project")
    assert verdict("git log", root) == "safe"
    spoil(root / ".git" / name)
    for command in ("git log", "git status", "git config user.name"):
        assert verdict(command, root) == "confirm", command
    odd = name == "config" and not (root / ".git" / name).is_symlink()  # grep -r follows no link
    assert verdict("grep -r x .", root) == ("confirm" if odd else "safe")


def test_T1_a_link_among_the_objects_makes_git_ask(tmp_path: Path) -> None:
    root = repository(tmp_path / "project")
    (root / ".git" / "objects" / "ab").mkdir(exist_ok=True)
    (root / ".git" / "objects" / "ab" / ("0" * 38)).symlink_to(tmp_path / "away")
    assert verdict("git log", root) == "confirm"


def test_T1_a_workspace_inside_of_a_larger_repository_makes_git_ask(tmp_path: Path) -> None:
    """git reads the history of all of it, and its configuration is outside of the workspace."""
    root = repository(tmp_path / "project") / "part"
    root.mkdir()
    for command in ("git log", "git status", "git diff", "git -C . log", "git grep x"):
        assert verdict(command, root) == "confirm", command
    assert verdict("git log", root.parent) == "safe"


@pytest.mark.parametrize(
    ("url", "wanted"),
    [(f"{scheme}://{named}@example.com/x", "confirm")
     for scheme in ("http", "https", "ftp", "git", "HTTPS", "svn+https") for named in ("me:pass", "token", ":pass")]
    + [("ssh://me:pass@example.com/x", "confirm"), ("ssh://git@example.com/x", "safe"), ("git@example.com:x/y", "safe"),
       ("https://example.com/@scope/x", "safe"), ("file:///srv/x.git", "safe"), ("../x.git", "safe")],
)  # fmt: skip
def test_T1_a_password_in_the_address_of_a_remote_makes_git_ask(url: str, wanted: str, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    for key in ("url", "pushurl"):
        (tmp_path / ".git" / "config").write_text(f'[remote "o"]\n\t{key} = {url}\n')
        assert verdict("git remote -v", tmp_path) == verdict("grep -r x .", tmp_path) == wanted


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
    "command", ["grep -r '' .", "grep -rn x", "grep -r x src", "grep --recursive x .",
        "rg --hidden x",
    "rg -u x", "rg -uuu x", "rg --no-ignore x src", "diff -r src d1", "cd src && grep -r x .", "git grep x",
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


@pytest.mark.parametrize("command", ["cat < -", "rev -", "hexdump -C -", "sort -u < ./-", "cat src/a.py | rev -"])
def test_T1_a_link_named_like_the_input_leads_nowhere_unasked(command: str, tmp_path: Path) -> None:
    """A redirect opens a file named -, and so do programs that do not take it for their input."""
    root = tmp_path / "project"
    root.mkdir()
    assert decide(command, root=root).verdict == "safe"
    (root / "-").symlink_to(tmp_path / "plain.txt")
    assert decide(command, root=root).verdict == "confirm"


def test_T1_a_link_with_a_harmless_name_to_a_secret_asks(tmp_path: Path) -> None:
    root = project(tmp_path)
    (root / ".env").write_text("KEY=1\n")
    (root / "notes.txt").symlink_to(".env")
    for command in ("cat notes.txt", "cat n*", "cat < notes.txt", "diff -r . d1"):
        assert verdict(command, root) == "confirm", command


@pytest.mark.parametrize(
    "path", [".git/objects/.env", ".git/objects/ab/id_rsa", ".git/objects/pack/server.pem", ".git/info/.env",
    ".git/.netrc", ".ssh/notes.txt", "src/.aws/x", ".git/modules/x/config", "keys/.kube/cache/x.json"]
)  # fmt: skip
def test_T1_a_secret_below_git_and_a_file_in_a_closed_folder_are_found(path: str, tmp_path: Path) -> None:
    root = project(tmp_path)
    (root / ".git" / "objects" / "ab").mkdir(parents=True)
    assert verdict("grep -r x .", root) == verdict("rg --hidden x", root) == "safe"
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text("KEY=1\n")
    for command in ("grep -r x .", "rg --hidden x", "git grep x", f"cat {path}"):
        assert verdict(command, root) == "confirm", command


def test_T1_another_name_of_a_secret_is_closed_too(tmp_path: Path) -> None:
    root = project(tmp_path)
    (root / "keys" / ".ssh").mkdir()
    for secret, other in ((".env", "notes.txt"), ("keys/.ssh/known", "src/plain.txt")):
        (root / secret).write_text("KEY=1\n")
        assert verdict("grep -r x src", root) == "safe"
        (root / other).hardlink_to(root / secret)
        for command in (f"cat {other}", f"head < {other}", f"cat {other[:-2]}*", f"grep x {other}"):
            assert verdict(command, root) == "confirm", command
    assert verdict("grep -r x src", root) == "confirm"
    (root / "d1" / "y").hardlink_to(root / "d1" / "x")
    assert verdict("cat d1/y", root) == verdict("grep -r x d1", root) == "safe"


IGNORES = [".gitignore", ".ignore", ".rgignore", "src/.gitignore", "src/.ignore", ".git/info/exclude", "../.ignore"]


@pytest.mark.parametrize("path", IGNORES)
def test_T1_rg_asks_where_an_ignore_file_may_take_a_secret_in_again(path: str, tmp_path: Path) -> None:
    """From rg's manual, --hidden: "if a hidden file or a directory is whitelisted in an ignore file, then it will be
    searched even if this flag isn't provided"; and a search reads these files in all folders above it, too."""
    root = project(tmp_path)
    (root / "src" / ".env").write_text("KEY=1\n")
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("*.log\n")
    for command in ("rg KEY", "rg KEY src", "cd src && rg KEY"):
        assert verdict(command, root) == "safe", command
        file.write_text("*.log\n!.env\n")
        assert verdict(command, root) == "confirm", command
        file.write_text("*.log\n")
    unplug(file)
    assert verdict("rg KEY", root) == "safe"  # and nothing waits for the pipe
    (root / "src" / ".env").unlink()
    file.unlink()
    file.write_text("!.env\n")
    assert verdict("rg KEY", root) == "safe"


@pytest.mark.skipif(not shutil.which("rg"), reason="rg is not installed")
def test_T1_rg_itself_reads_what_an_ignore_file_takes_in_again(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("KEY=1\n")
    for name, printed in ((".unknown", ""), (".rgignore", ".env:KEY=1\n")):
        (tmp_path / name).write_text("!.env\n")
        ran = subprocess.run(["rg", "--no-config", "KEY"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.stdout == printed


def test_T1_a_file_named_like_an_option_and_too_many_files_ask(tmp_path: Path) -> None:
    root = project(tmp_path)
    assert verdict("cat *", root) == "safe"
    (root / "-x").write_text("")
    assert verdict("cat *", root) == "confirm"
    many = root / "many"
    many.mkdir()
    for number in range(1_500):
        (many / f"{number}.txt").touch()
    assert verdict("cat many/*.txt", root) == "safe"
    assert verdict("cat many/*.txt many/*t ./many/*", root) == "confirm"


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
    assert edit({"path": path, "old_string": "x", "new_string": "y"}).verdict == "confirm"
    assert write({"path": "src/main.py", "content": "x"}).verdict == "safe"
    assert write({"path": ".gitignore", "content": "x"}).verdict == "safe"
