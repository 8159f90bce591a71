"""T9 what the gate calls safe is run and watched: it writes nothing, reads nothing outside, and changes no index.

Commands are made from the product's own table, so a new row is tried by itself, and bent: other letters, attached
values, shortened options, words that lead out. Those that the gate lets pass run in a throwaway workspace under strace,
in the environment that lamina gives to a command, without its sandbox: the gate has to hold alone.
"""

import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from lamina.sandbox.process import shell_environment
from lamina.shell.policy import decide
from lamina.shell.programs import Row, read_table
from tests.faults.load import Load
from tests.shell.ordinary import ORDINARY

pytestmark = pytest.mark.skipif(
    not shutil.which("strace"), reason="strace is not installed; `make test` as root does that"
)
Gate = Callable[[str, Path], bool]
BATCH = 25
SLOW = ("pip", "pip3", "npm", "docker", "sleep")
"""They take seconds under strace: the ordinary commands try them once each."""
INSIDE = ["a.txt", "sub", "sub/c.txt", ".", "*.txt", "s*", "x", "-", "中文.md", "'a b.txt'", "HEAD", "main"]
OUTSIDE = [
    "../outside.txt", "link", "folder", "folder/deep.txt", ".env", "/etc/fstab", "/proc/self/cwd/a.txt", "archive",
    "store.db", "~/.ssh/id_rsa", "/dev/fd/0", "/proc/self/environ", "-ox", "l*", "hard", ".git/config",
    "/proc/self/fd/0", "*", "'~'",
]  # fmt: skip
TEXTS = ["x", "'a b'", "1", "o", "'*.txt'", "%s", "sub", ".env", "w", "/x/", "'%n'", "now"]
SCRIPTS = [
    "1p",
    "'1,2p'",
    "'s/o/0/g'",
    "'s/o/0/w made'",
    "'w made'",
    "'{print $1}'",
    "'{print > \"made\"}'",
    "NR==1",
    ".",
]
WRITES = re.compile(
    r"^(?:open|openat|openat2|creat)\(.*?(?:O_WRONLY|O_RDWR|O_CREAT|O_TRUNC)"
    r"|^(?:unlink|unlinkat|rename|renameat|renameat2|mkdir|mkdirat|rmdir|link|linkat|symlink|symlinkat|chmod|fchmod"
    r"|fchmodat|chown|fchown|lchown|fchownat|truncate|ftruncate|utimensat|mknod|mknodat|setxattr|lsetxattr)\("
)
CALLS = "trace=%file,%network,fchmod,fchown,ftruncate"
NETWORK = re.compile(r"^(?:connect|sendto|sendmsg)\(.*sa_family=AF_INET")
OPENED = re.compile(r"^(?:open|openat|openat2)\(.*= \d+<(.*)>$")
RESUMED = re.compile(r"<\.\.\. \w+ resumed>")
HARMLESS = ("/dev/null", "/dev/tty", "/proc/self/coredump_filter")
OWN_SETTINGS = (".npm", ".rustup", ".cargo", ".config", ".cache", ".local")
"""Folders in which programs keep their own settings; they are there wherever the program has been used."""


def house(folder: Path) -> Path:
    """A small project with a repository, and beside it what no command may read."""
    root = folder / "project"
    (root / "sub").mkdir(parents=True)
    (folder / "home" / ".ssh").mkdir(parents=True)
    (folder / "away").mkdir()
    for path, text in {
        "project/a.txt": "one\ntwo\n", "project/b.txt": "three\n", "project/sub/c.txt": "c\n",
        "project/中文.md": "章\n",
        "project/a b.txt": "x\n", "project/-ox": "", "project/.env": "KEY=1\n", "project/store.db": "rows\n",
        "outside.txt": "away\n", "away/deep.txt": "away\n", "home/.ssh/id_rsa": "key\n", "home/.gitconfig": "[core]\n",
        "away/archive.gz": "away\n",
    }.items():  # fmt: skip
        (folder / path).write_text(text, encoding="utf-8")
    for name in OWN_SETTINGS:
        (folder / "home" / name).mkdir()
    (root / "hard").hardlink_to(root / "store.db")
    (root / "link").symlink_to(folder / "outside.txt")
    (root / "folder").symlink_to(folder / "away")
    (root / "archive.gz").symlink_to(folder / "away" / "archive.gz")
    me = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"]
    for words in (["init", "-q"], ["add", "a.txt", "sub"], ["commit", "-q", "-m", "first"]):
        subprocess.run(["git", *me, *words], cwd=root, env=environment(folder), check=True, capture_output=True)
    return root


def environment(folder: Path) -> dict[str, str]:
    return shell_environment(str(folder / "project"), {"HOME": str(folder / "home"), "PATH": os.environ["PATH"]})


# Commands from the table


def made_up(rng: random.Random) -> str:
    parts = [rng.choice((from_row, from_row, from_row, from_find, from_fixed, from_script))(rng)]
    while rng.random() < 0.25:
        parts += [rng.choice((" | ", " && ", "; ", " || ", "\n")), from_row(rng)]
    return "".join(parts) + (rng.choice(["", " 2>&1", " > made", " < .env", " < a.txt", " 2>/dev/null"]))


def word(rng: random.Random) -> str:
    return rng.choice(INSIDE if rng.random() < 0.7 else OUTSIDE)


def from_row(rng: random.Random) -> str:
    rows = [each for each in read_table().rows.items() if each[0].split()[0] not in SLOW]
    name, row = rng.choice(rows)
    words = [each for _ in range(rng.randint(0, 3)) for each in option(rng, row)]
    words += [rng.choice(TEXTS)] if row.operands.startswith("text") and rng.random() < 0.9 else []
    words += [word(rng) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
    if rng.random() < 0.2:
        rng.shuffle(words)
    return " ".join([name, *words])


def option(rng: random.Random, row: Row) -> Sequence[str]:
    bent = rng.random()
    if bent < 0.15:  # any letter, alone, in a cluster, with something attached or after it
        letter = rng.choice("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
        cluster = rng.choice(["", "l", "n", "6", "r"]) + letter + rng.choice(["", "", "made", "5", "c"])
        return [f"-{cluster}", *([rng.choice([*OUTSIDE, "made"])] if rng.random() < 0.5 else [])]
    spelled = [*row.options, *row.values, *row.attached] or ["--"]
    chosen = rng.choice(sorted(spelled))
    if bent < 0.25:  # shortened, doubled, with a value that it does not take, or the end of options
        return [rng.choice([chosen[:-1], f"{chosen}=made", f"{chosen}made", "--", f"--output=made {chosen}"])]
    if chosen in row.values:
        return [chosen, rng.choice(["1", "2", "1,2", *TEXTS])]
    return [chosen + rng.choice(["1", "1,2", ",", "x", "%h"])] if chosen in row.attached else [chosen]


def from_find(rng: random.Random) -> str:
    row, words = read_table().rows["find"], [rng.choice([".", "sub", word(rng)])]
    for _ in range(rng.randint(0, 3)):
        test = rng.choice(sorted({*row.options, *row.values, "-delete", "-fprint", "-exec"}))
        words += [f"'{test}'"] + ([rng.choice([*TEXTS, "-1", "a.txt", "made"])] if rng.random() < 0.6 else [])
    return " ".join(["find", *words])


def from_fixed(rng: random.Random) -> str:
    names = [each for each in read_table().fixed if each.split()[0] not in SLOW]
    extra = rng.choice(["", "", "", " x", " -o", " e", " ww", " a.txt", " -c core.pager=x"])
    return rng.choice([*sorted(names), "git config user.name", "git stash list", "git remote -v"]) + extra


def from_script(rng: random.Random) -> str:
    flags = rng.choice(["", "-n ", "-i ", "-n -e ", "-F, ", "-f ", "-r "])
    return f"{rng.choice(['sed', 'awk', 'jq'])} {flags}{rng.choice(SCRIPTS)} {word(rng)}"


# What they do


def faults(commands: Sequence[str], root: Path) -> list[str]:
    """What strace saw that no reading command does, and what changed on the disk."""
    before = (root / ".git" / "index").read_bytes(), sorted(os.listdir(root)), sorted(os.listdir(root.parent / "home"))
    os.utime(root / "a.txt")  # git would like to write down that nothing changed
    log = root.parent / "strace.log"
    script = "\n".join(f"(\n{command}\n)" for command in commands)
    subprocess.run(
        ["strace", "-f", "--seccomp-bpf", "-qq", "-y", "-s", "300", "-e", CALLS, "-o", str(log), "bash",
         "--noprofile", "--norc", "-c", script], cwd=root, env=environment(root.parent), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, check=False,
    )  # fmt: skip
    found = list(strange(log.read_text(encoding="utf-8", errors="replace"), root))
    after = (root / ".git" / "index").read_bytes(), sorted(os.listdir(root)), sorted(os.listdir(root.parent / "home"))
    return found + (["the index or a folder changed"] if before != after else [])


def whole_calls(log: str) -> Iterator[str]:
    """The lines of the log; a call that strace wrote in two lines, because another process came between, is one."""
    begun: dict[str, str] = {}
    for line in log.splitlines():
        process, _, call = line.partition(" ")
        if call.endswith(" <unfinished ...>"):
            begun[process] = line.removesuffix(" <unfinished ...>")
        elif resumed := RESUMED.match(call):
            yield begun.pop(process, f"{process} ") + call[resumed.end() :]
        else:
            yield line
    yield from begun.values()  # its process was killed in the call


def test_a_call_that_strace_wrote_in_two_lines_is_one(tmp_path: Path) -> None:
    two = '7 mkdir("x", 0700 <unfinished ...>\n8 exit(0) = ?\n7 <... mkdir resumed>) = {}'
    assert list(strange(two.format("-1 EEXIST (File exists)"), tmp_path)) == []
    assert list(strange(two.format("0"), tmp_path)) == ['mkdir("x", 0700) = 0']


def strange(log: str, root: Path) -> Iterator[str]:
    for line in whole_calls(log):
        call = line.partition(" ")[2].strip() if line[:1].isdigit() else line
        opened = OPENED.match(call)
        path = opened[1] if opened else ""
        harmless = any(f'"{each}"' in call for each in HARMLESS) or call.endswith("(File exists)")
        if (WRITES.match(call) and not harmless) or NETWORK.match(call):
            yield call
        home = f"{root.parent}/home"
        if path == home or path.startswith(tuple(f"{home}/{each}" for each in OWN_SETTINGS)):
            continue
        inside = path.startswith(f"{root}/") and path not in (f"{root}/.env", f"{root}/store.db", f"{root}/hard")
        if (path.startswith(str(root.parent)) and path != str(root) and not inside) or path == "/etc/fstab":
            yield call


def with_effect(gate: Gate, commands: Sequence[str], root: Path) -> tuple[list[str], int]:
    """Those of the commands that the gate calls safe and that did something else; and how many were run."""
    safe = [command for command in commands if gate(command, root)]
    caught: list[str] = []
    for at in range(0, len(safe), BATCH):
        batch = safe[at : at + BATCH]
        found = faults(batch, root)
        if found:
            print(*found[:3], sep="\n")
            caught += [f"{command!r}: {why}" for command in batch for why in faults([command], root)[:1]]
    return caught, len(safe)


def the_gate(command: str, root: Path) -> bool:
    return decide(command, root=root, closed=[root / "store.db"]).verdict == "safe"


def test_T9_what_is_called_safe_neither_writes_nor_reads_outside(tmp_path: Path, load: Load) -> None:
    root = house(tmp_path)
    rng = random.Random(load.seed())
    made = [made_up(rng) for _ in load.rounds(800, "commands")]
    caught, ran = with_effect(the_gate, made, root)
    print(f"{ran} of {len(made)} commands were called safe and run")
    assert ran > 100
    assert caught == []


def test_T9_ordinary_commands_neither_write_nor_read_outside(tmp_path: Path, load: Load) -> None:
    root = house(tmp_path)
    for name in (".env", "link", "folder", "hard", "store.db", "archive.gz", "-ox"):
        (root / name).unlink()
    subprocess.run(["bash", "-c", "cargo --version"], env=environment(tmp_path), capture_output=True, check=False)
    slow = ("docker", "sleep") if load.factor > 1 else SLOW
    ordinary = [each for each in ORDINARY if not each.startswith(slow) and (load.factor > 1 or "ersion" not in each)]
    caught, ran = with_effect(the_gate, ordinary, root)
    print(f"{ran} ordinary commands were run")
    assert ran > 320
    assert caught == []
    load.tried(ran, "commands")


def trusts_options(command: str, root: Path) -> bool:
    """The planted bug: options are not looked at, only what is left of the command without them."""
    return the_gate(re.sub(r" -\S+", "", command), root)


def trusts_paths(command: str, root: Path) -> bool:
    """The planted bug: a path is judged as it is written."""
    return the_gate(re.sub(r"\b(link|folder\S*|hard|archive|store\.db)\b", "a.txt", command), root)


@pytest.mark.planted("a gate that does not look at options, or at what a path leads to")
@pytest.mark.parametrize("planted", [trusts_options, trusts_paths])
def test_T9_running_them_finds_a_planted_bug(planted: Gate, tmp_path: Path) -> None:
    root = house(tmp_path)
    rng = random.Random(3)
    caught: list[str] = []
    for _ in range(20):  # few of them do something; which ones are drawn changes with the table
        made = (made_up(rng) for _ in range(500))
        caught += with_effect(planted, [each for each in made if planted(each, root) > the_gate(each, root)], root)[0]
        if caught:
            break
    assert caught
