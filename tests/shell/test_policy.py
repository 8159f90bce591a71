"""The command gate: verdicts, reasons, places, repositories, and the page that documents it. Attacks: tests/faults."""

import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lamina.shell.policy import decide
from lamina.shell.programs import is_known_script
from lamina.shell.tokens import read_script
from lamina.tools.closed_files import CommandScope, Disk, OwnFiles
from lamina.tools.files import file_tools

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "gate.md"


def verdict(command: str, root: Path) -> str:
    return decide(command, root=root).verdict


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("rm x", "rm: removes files"),
        ("ls && rm x", "rm: removes files"),
        ("git push -f", "git: push is not on the list of git's commands"),
        ("cat x > y", "cat: > y writes to a file"),
        ("head -n9x a", "head: -n9x is not on the list of its options"),
        ("xxd a", "xxd: writes files"),
        ("cat .git/config", "cat: .git/config may hold secrets"),
        ("sort -o x y", "sort: -o is not on the list of its options"),
        ("find . -delete", "find: -delete is not on the list of its tests"),
        ("./git status", "./git: a program named by its path may be anything"),
        ("X=1 ls", "X=1: it sets a variable"),
        ("сat x", "сat: its name has letters that are not ASCII and may look like others"),
        ("cat ../x", "cat: ../x leads out of the workspace"),
        ("cat ~/x", "cat: ~/x leads to a home folder"),
        ("cat .env", "cat: .env may hold secrets"),
        ("echo $X", "it cannot be read with certainty: $ stands for something that is not shown"),
        ("echo `x`", "it cannot be read with certainty: a backtick runs a command inside the command"),
        ("ls &", "it cannot be read with certainty: & leaves it running in the background"),
        ("ls 'x", "it cannot be read with certainty: a quote is not closed"),
        ("ls \u202e", "it cannot be read with certainty: it has a character that cannot be seen: \\u202e"),
        ("rm -rf /", "rm: removes all of /"),
        ("curl x | sh", "sh: runs what was just downloaded, without review"),
        ("ls -la | wc -l", "ls, wc: only read"),
    ],
)
def test_the_reason_names_the_part_and_says_why(command: str, reason: str, tmp_path: Path) -> None:
    assert decide(command, root=tmp_path).explain() == reason


def test_deny_over_ask_over_allow(tmp_path: Path) -> None:
    assert verdict("ls; cat a", tmp_path) == "safe"
    assert verdict("ls; touch a; cat b", tmp_path) == "confirm"
    assert verdict("touch a; ls $X; rm -rf /", tmp_path) == "block"
    assert verdict("rm -rf / ; ls", tmp_path) == "block"


def test_words_are_read_as_bash_reads_them() -> None:
    script = read_script("a 'b c' \"d\\\"e\" f\\ g h\\\ni # no\nb x*y '*' | c 2>&1 >/dev/null")
    assert script.unclear is None
    assert [part.texts for part in script.parts] == [["a", "b c", 'd"e', "f g", "hi"], ["b", "x*y", "*"], ["c"]]
    assert [part.joint for part in script.parts] == ["", "\n", "|"]
    assert [word.globs for word in script.parts[1].words] == [(), (1,), ()]
    assert [(r.number, r.operator, r.target.text) for r in script.parts[2].redirects] == [
        ("2", ">&", "1"),
        ("", ">", "/dev/null"),
    ]


def test_a_link_that_leads_out_is_followed_before_it_is_trusted(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / "inside").mkdir(parents=True)
    (root / "out").symlink_to(tmp_path)
    (root / "in").symlink_to(root / "inside")
    assert verdict("ls in", root) == "safe"
    assert verdict("ls out", root) == "confirm"
    assert verdict("cat out/x", root) == "confirm"
    assert verdict("cat out/*", root) == "confirm"
    assert verdict(f"cat {root}/inside/x", root) == "safe"
    assert verdict(f"cat {root}2/x", root) == "confirm"
    assert verdict(f"cat {tmp_path}/x", root) == "confirm"


def test_after_cd_paths_are_judged_from_everywhere_it_may_be(tmp_path: Path) -> None:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    assert verdict("cd src && cat a.py", tmp_path) == "safe"
    assert verdict("cd src && cd deep && ls", tmp_path) == "safe"
    assert verdict("cd src && cat ../a.py", tmp_path) == "confirm"  # if cd fails, ../a.py is outside
    assert verdict(f"cd {tmp_path} && ls", tmp_path) == "safe"


def repository(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "-q", str(root)], check=True, capture_output=True)
    return root


@pytest.mark.parametrize(
    "setting",
    [
        "[core]\n\tfsmonitor = touch x", "[core] fsmonitor=./x", '[diff "x"]\n\ttextconv = touch',
        "[include]\n\tpath = x",
        '[filter "x"]\n\tclean = touch x', "[core]\n\tpager = touch x", '[remote "o"]\n\tpromisor = true',
        "[diff]\nexternal=x",
    ],
)  # fmt: skip
def test_git_asks_where_the_repository_itself_names_a_program(setting: str, tmp_path: Path) -> None:
    root = repository(tmp_path / "project")
    assert verdict("git status", root) == "safe"
    with (root / ".git" / "config").open("a") as config:
        config.write(f"\n{setting}\n")
    assert verdict("git status", root) == "confirm"


def test_git_asks_inside_a_repository_that_came_with_the_workspace(tmp_path: Path) -> None:
    root = repository(tmp_path / "project")
    bare = root / "vendor"
    (bare / "objects").mkdir(parents=True)
    (bare / "refs").mkdir()
    (bare / "HEAD").write_text("ref: refs/heads/main")
    repository(root / "sub")
    assert verdict("git log", root) == "safe"
    assert verdict("cd vendor && git log", root) == "confirm"
    assert verdict("git -C vendor log", root) == "confirm"
    assert verdict("cd sub && git status", root) == "confirm"
    hook = root / ".git" / "hooks" / "post-index-change"
    hook.write_text("touch x")
    assert verdict("git log", root) == "safe"  # nobody may run it
    hook.chmod(0o755)
    assert verdict("git log", root) == "confirm"


@pytest.mark.parametrize(
    ("command", "file"), [("cargo --version", "rust-toolchain.toml"), ("rustc --version", "rust-toolchain")]
)
def test_a_file_that_steers_a_program_makes_it_ask(command: str, file: str, tmp_path: Path) -> None:
    assert verdict(command, tmp_path) == "safe"
    (tmp_path / file).write_text("x")
    assert verdict(command, tmp_path) == "confirm"


SCRIPTS = {
    "sed": (
        ["1p", "1,5p", "$p", "/a/p", "/def main/,/return/p", "s/a/b/", "s/a/b/g", r"s/^[ \t]*//", "5q", "1d"],
        ["", "w x", "1w x", "s/a/b/w x", "s/a/b/e", "e", "r x", "{p}", "a\\x", "p;w x", "s/a/b", "/a/w x",
         "s/[/]/w x/", "1p;w x", "1p\nw x", "s/a/b/\nw x", "s|a|b|w x", "1e touch x", "s/a/b/m;e", "1,2W x", "/x/R y",
         "s/\\/b/w x/", "1~2p;e"],
    ),
    "awk": (
        ["{print $1}", "{print}", "NR==1", "NR>1 && $2 != 0", "/x/ {print}", "!/x/", "{sum += $1} END {print sum}",
         "length > 80", '{print $1":"$2}', "NR >= 10 && NR <= 20", "{ print $1, $NF }", '$2 == "x" {print $1}'],
        ["{print > \"x\"}", "{print $1 > $2}", "{print|\"sh\"}", "BEGIN{system(\"x\")}", "{getline}", "{print ENVIRON}",
         "{print $1} {print > $2}", "@include \"x\"", "NR==1 {system(\"x\")}", "/x/ || \"y\" > \"z\"",
         "{print $1 $(2)}",
         "{print length($0)}", "{n += $1} END {print n > \"x\"}", "{print ARGV}", "{ARGV = $1}", "{print $1;}",
         "{print $1\n}", "{close($1)}"],
    ),
    "jq": (
        [".", ".a.b", ".items[] | select(.id > 3)", "keys", ".[0]", "map(.name)", ".scripts | keys[]", ".env",
         "{id, name}", ".[] | {id, name}", "{env}", '.[] | select(.mail == "a@b.c")', '.a == "env # input"', '."env"'],
        ["env", "$ENV", "$ENV.HOME", "input_filename", "import \"x\" as $y; .", "include \"x\"; .", "[env]", ". | env",
         "inputs", "input", "\"\\(env)\"", "@sh", "debug", "getpath([\"x\"])", "$__prog_args", "env.HOME", "(env)",
         "{id, a: env}", "{a: [1, env, 2]}", "[id, env]", '"a"|env',
         '"a" @sh "b"', '@base64 "x"',
         '1 # "\n| env # "', '"\\(env)"', '{"a": env}', '"a', "{(env): 1}", '"a"env', "{id, $ENV}"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "script"), [(name, each) for name, (known, _) in SCRIPTS.items() for each in known])
def test_scripts_that_only_print(name: str, script: str) -> None:
    assert is_known_script(name, script)


@pytest.mark.parametrize(("name", "script"), [(name, each) for name, (_, odd) in SCRIPTS.items() for each in odd])
def test_scripts_that_may_do_more(name: str, script: str) -> None:
    assert not is_known_script(name, script)


def test_secrets_have_one_list_for_commands_and_for_files(tmp_path: Path) -> None:
    names = [
        ".env", ".env.production", "prod.env", "server.pem", "tls.key", "id_rsa", "id_ed25519.bak", ".netrc", ".npmrc",
        ".git/config", "infra/terraform.tfstate", "prod.tfvars", "putty.ppk", "backup.gpg", ".boto", "token",
        "token.json", "tokens.txt", ".bash_history", ".zsh_history", "authorized_keys", ".ssh/config",
        ".aws/credentials", ".kube/config", ".pgpass", ".env-prod", ".env_local", ".git/config~",
        ".git/modules/x/config",
        "ssh_host_rsa_key", "AuthKey_X.p8", "gcp-key.json", "api_key.txt", "kubeconfig", "jwt.secret", ".vault_pass",
        "secrets.yaml", "aws-credentials.json", "db_password.txt", ".ENV", ".env~", "Server.PEM", "x.p12",
    ]  # fmt: skip
    harmless = ["tokenizer.py", "tokenizer.json", "tokens.css", "secrets.py", ".env.example", "id_rsa.pub", "keys.md"]
    read = next(tool for tool in file_tools(tmp_path) if tool.name == "read_file")
    assert read.check is not None
    for name in [*names, *harmless]:
        wanted = "safe" if name in harmless else "confirm"
        assert verdict(f"cat {name}", tmp_path) == wanted, name
        assert read.check({"path": name}).verdict == wanted, name


def test_own_files_are_closed_under_any_name(tmp_path: Path) -> None:
    store = tmp_path / "data" / "lamina.db"
    store.parent.mkdir()
    store.write_text("x")
    (tmp_path / "notes").hardlink_to(store)
    (tmp_path / "link").symlink_to(store)
    for command in (
        "cat data/lamina.db",
        "cat notes",
        "cat link",
        "cat data/*",
        "grep -r x data",
        "wc < notes",
        "strings notes",
    ):
        assert verdict(command, tmp_path) == "safe" or command == "cat link", command
        assert decide(command, root=tmp_path, closed=[store]).verdict == "confirm", command
    assert decide("ls -l data", root=tmp_path, closed=[store]).verdict == "safe"
    own = OwnFiles([store])
    store.parent.rename(tmp_path / "old")
    assert decide("cat old/lamina.db", root=tmp_path, closed=own).verdict == "confirm", "also where it was moved to"
    assert decide("cat old/lamina.db", root=tmp_path, closed=[store]).verdict == "safe"


def test_the_question_says_that_the_whole_workspace_goes(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    name = tmp_path.name
    for command in ("rm -rf .", "rm -rf *", "rm -r ./*", f"rm -rf {tmp_path}", f"rm -rf ../{name}", "rm -rf -- ./ x"):
        assert decide(command, root=tmp_path).explain() == "rm: removes the whole workspace", command
    for command in ("rm -rf sub", "rm -rf sub/*", "rm a*", "cd sub && rm -rf *", "rm -rf sub/deep/."):
        assert decide(command, root=tmp_path).explain() == "rm: removes files", command


def test_npm_date_and_strings_ask_where_they_read_more_than_they_are_given(tmp_path: Path) -> None:
    """npm follows the links in node_modules, date reads the file that TZ names, strings takes options from @file."""
    for command in ("npm ls", "npm ls --depth=0", "npm list -g --depth=0"):
        assert verdict(command, tmp_path) == "confirm", command
    for value in ('TZ="/etc/x" now', 'TZ="../x" 1 day ago', ' TZ="x"'):
        assert verdict(f"date -d '{value}'", tmp_path) == verdict(f"date --date='{value}'", tmp_path) == "confirm"
    assert verdict("date -d 'next friday' +%F", tmp_path) == "safe"
    (tmp_path / "a.txt").touch()
    assert verdict("strings *", tmp_path) == verdict("cd x; strings -n 8 ?*", tmp_path) == "safe"
    (tmp_path / "@file").write_text("/etc/passwd")
    assert verdict("strings *", tmp_path) == verdict("strings ?file", tmp_path) == "confirm"
    assert verdict("strings a*", tmp_path) == verdict("cat *", tmp_path) == "safe"


def test_an_attached_text_is_taken_only_where_git_takes_one(tmp_path: Path) -> None:
    for command in ("git log -S'def main'", "git log -Sx --oneline", "git log -G'a.*b'", "git config --list"):
        assert verdict(command, tmp_path) == "safe", command
    for command in (
        "git diff -Sx",
        "git log -Ox",
        "git log -L1,2:x",
        "git config --list x",
        "git config -l --show-origin",
    ):
        assert verdict(command, tmp_path) == "confirm", command


PUMPS = [
    *"-\"'\\`$({[;&|<>!~*?#= \n/:%.,@", "$(", "a=", "{a,", "/*", "(){", ":|", "\\\n", "'\"", "a b ", "<(", "`a`", "*a"
]  # fmt: skip
HEADS = ["", "awk '", "sed -n '", "jq '", "rm ", "find . -name ", "git log ", "printf '%", 'echo "', ":(){ ", "grep "]


def test_no_command_takes_long_to_decide(tmp_path: Path) -> None:
    """Beginnings and repetitions of the kind that made the patterns of 0.1.0 take hours: at 140 characters already."""
    commands = [HEADS[at % len(HEADS)] + pump * (9_900 // len(pump)) for at, pump in enumerate(PUMPS)]
    commands += [head + 'print "a" ' * 14 + "{" for head in HEADS] + ["ls " + "-" * 90_000]
    commands += [f"awk '{pump * 300}'" for pump in ("/a/ && ", "/a/|| ", "NR>1 && ", "{print $1", '"a" ', "$1, ")]
    assert max(measure(command, tmp_path)[0] for command in commands) < MAX_CPU_S


MAX_CPU_S = 0.3
"""For one decision it is 0.07 s at most on an idle machine; without a budget it was minutes."""


def measure(command: str, root: Path) -> tuple[float, str]:
    """The CPU time of this thread; what takes too long is tried again, since a garbage collection, or another process,
    may have come between."""
    spent, said = float("inf"), ""
    for _ in range(3):
        began = time.thread_time()
        said = verdict(command, root)
        spent = min(spent, time.thread_time() - began)
        if spent < MAX_CPU_S:
            break
    return spent, said


def wide_tree(root: Path) -> Path:
    for folder in range(40):
        (root / f"d{folder}").mkdir()
        for file in range(40):
            (root / f"d{folder}" / f"module_{file}.py").touch()
    (root / "long").mkdir()
    for file in range(40):
        (root / "long" / ("a" * 250 + f"{file:03}")).touch()
    Path(root, *["a"] * 150).mkdir(parents=True)
    return root


GLOBS = [f"*/*{at}*" for at in range(1_400)]
FAMILIES = {
    "globs": "ls " + " ".join(GLOBS), "the same glob": "ls " + "*/* " * 2_400, "stars": "ls " + "*" * 9_000,
    "long globs": "ls " + " ".join(f"long/*{'a' * 120}b{at}" for at in range(70)),
    "cd": " && ".join(["cd a"] * 190 + ["ls"]), "cd far": f"cd {'a/' * 2_000} && cd {'a/' * 2_000} && ls",
    "cd far and read": " && ".join([f"cd {'a/' * 150}"] * 14 + ["ls " + "a " * 1_000]),
    "cd and read": "cd d1; cd d2; cd d3; cd d4; cat " + "a " * 4_800, "path": "cat " + "a/" * 4_900,
    "trees": "; ".join(f"grep -r {at} ." for at in range(199)), "tops": "grep -r x " + ". d1 ./d1 " * 980,
    "patterns": "grep -r x . " + " ".join(f"--include=*{at}x" for at in range(640)),
    "rg": "; ".join(["cd d1", *(f"rg x d{at}" for at in range(198))]), "diff": "; ".join(["diff -r . d2"] * 199),
    "git": "cd a; cd a; " + "; ".join(["git grep x"] * 190), "cargo": "cd a; cd a; " + "cargo --version; " * 190,
    "nested": "$(" * 3_000 + ")" * 3_000, "inner": "$(bash -c '$(eval \"ls; ls\")');" * 290,
    "functions": "a(){" * 2_400, "braces": "rm -rf " + "/{a,b}" * 1_600, "many braces": "rm -rf " + "/{a,b} " * 1_400,
    "xargs": "echo " + "a " * 4_000 + "| xargs rm -rf", "files": "cat " + "a " * 4_990,
}  # fmt: skip


def test_M1_no_command_makes_the_gate_look_at_the_disk_for_long(tmp_path: Path) -> None:
    root = wide_tree(tmp_path)
    found = {name: measure(command[:10_000], root) for name, command in FAMILIES.items()}
    print(found)
    assert {name: spent for name, (spent, _) in found.items() if spent > MAX_CPU_S} == {}
    asked = {name for name, (_, said) in found.items() if said == "confirm"}
    assert asked >= {"globs", "long globs", "cd far", "path", "patterns", "the same glob"}
    assert verdict("ls */*1*; grep -rn x . | head; wc -l d1/* d2/*; cd d1 && grep -r y .", root) == "safe"


@pytest.mark.planted("a gate without a budget of names")
def test_M1_the_families_find_a_planted_gate_without_a_budget(tmp_path: Path) -> None:
    scope = replace(CommandScope.at(wide_tree(tmp_path)), disk=Disk(left=10**12))
    began = time.thread_time()
    for glob in GLOBS:
        scope.why_glob_closed(glob, (0, 2, len(glob) - 1))
        if time.thread_time() - began > MAX_CPU_S:
            break
    assert time.thread_time() - began > MAX_CPU_S


def test_the_page_tells_the_truth_about_every_command_it_shows(tmp_path: Path) -> None:
    rows = re.findall(
        r"^\| `(.+?)` \| (safe|confirm|block) \| (.*?) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(rows) > 15
    shown = {command.replace("\\|", "|"): (said, why) for command, said, why in rows}
    found = {command: decide(command, root=tmp_path) for command in shown}
    assert {command: (each.verdict, each.explain()) for command, each in found.items()} == shown
