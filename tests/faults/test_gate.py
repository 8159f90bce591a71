"""T1 the command gate never lets a command with an effect run by itself, T3 what is shown is what will run.

The corpus of attacks is in `attacks.py`. The oracle is real: bash says which words it makes of a text.
What is called safe is run and watched in `test_gate_differential.py`.

"""

import random
import re
import subprocess
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lamina.shell.policy import decide
from lamina.shell.tokens import Part, read_script
from lamina.text.unicode import visible_command
from tests.faults.attacks import ATTACKS, BLOCKED, LINES, NOT_BLOCKED
from tests.faults.load import Load
from tests.shell.ordinary import ORDINARY

root = Path()
"""A workspace with secrets and names like options in it; links and repositories: test_gate_scenes.py."""


@pytest.fixture(scope="session", autouse=True)
def workspace() -> Iterator[None]:
    """Make the workspace, and remove it before the run is searched for files that were left."""
    global root
    with tempfile.TemporaryDirectory(prefix="lamina-gate-") as folder:
        root = Path(folder) / "project"
        for name in (".env", ".env.local", "server.pem", "id_rsa", ".ssh/id_ed25519", "a.txt", "-x", "-delete", "-ox"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
        yield


Gate = Callable[[str], str]
"""A command in, a verdict out."""


def the_gate(command: str) -> str:
    return decide(command, root=root).verdict


def let_through(gate: Gate, commands: list[str]) -> list[str]:
    return [command for command in commands if gate(command) == "safe"]


# The corpus


def test_T1_no_attack_is_ever_safe(load: Load) -> None:
    assert len(set(ATTACKS)) >= 300
    assert let_through(the_gate, ATTACKS) == []
    load.tried(len(set(ATTACKS)), "commands")


def test_T1_what_nobody_means_is_blocked_and_what_somebody_may_mean_is_not() -> None:
    assert [command for command in BLOCKED if the_gate(command) != "block"] == []
    assert [command for command in NOT_BLOCKED if the_gate(command) == "block"] == []


def test_T1_at_least_95_percent_of_ordinary_read_only_commands_run_without_asking(tmp_path: Path, load: Load) -> None:
    (tmp_path / "src").mkdir()
    asked = [command for command in ORDINARY if decide(command, root=tmp_path).verdict != "safe"]
    share = 1 - len(asked) / len(ORDINARY)
    print(f"{share:.1%} of {len(ORDINARY)} ordinary commands are safe; asked: {asked}")
    assert len(set(ORDINARY)) >= 300
    assert share >= 0.95
    load.tried(len(set(ORDINARY)), "commands")


# Combinations

SAFE_PARTS = [
    "ls",
    "ls -la src",
    "cat 'a b'",
    'grep -n "x; rm y" a.txt',
    "git status",
    "pwd",
    "echo hi 2>&1",
    "wc -l < a.txt",
]
EFFECTS = [
    line for line in LINES if re.match(r"(rm|touch|tee|mv|git (push|commit|-c)|find \. -(exec|delete)|sort -o) ?", line)
]
JOINTS = [" && ", " || ", "; ", " | ", "\n", "&&", ";", "|", "||", " ;\n"]


@given(
    st.lists(st.sampled_from(SAFE_PARTS), max_size=199),
    st.sampled_from(EFFECTS),
    st.sampled_from(JOINTS),
    st.integers(0, 199),
)
@example(["ls"] * 199, "rm x", ";", 199)
@example(["ls"] * 199, "rm x", "\n", 100)
def test_T1_an_effect_anywhere_among_1_to_200_parts_is_found(
    parts: list[str], effect: str, joint: str, at: int
) -> None:
    at = min(at, len(parts))
    assert the_gate(joint.join([*parts[:at], effect, *parts[at:]])) != "safe"


@given(st.lists(st.sampled_from(SAFE_PARTS), min_size=1, max_size=200), st.sampled_from(JOINTS))
def test_T1_up_to_200_safe_parts_stay_safe(parts: list[str], joint: str) -> None:
    assert the_gate(joint.join(parts)) == "safe"


@given(st.text(max_size=60))
def test_T1_no_text_makes_it_fail_and_every_decision_has_a_reason(text: str) -> None:
    decision = decide(text, root=root)
    assert decision.explain()
    assert decision.shows == visible_command(text)


@given(st.text(alphabet="ls rm;|&><$`'\"\\\n#(){}*~!=-x/.", max_size=40))
def test_T1_shell_noise_with_a_removal_in_it_is_never_safe(noise: str) -> None:
    """Whatever stands before a line's end, a removal behind it on a line of its own runs, or nothing does."""
    if the_gate(noise) == "safe":
        assert the_gate(f"{noise}\nrm x") != "safe"


# Planted bugs


def splits_on_blanks(command: str) -> str:
    """The planted bug: no shell grammar, just words between blanks."""
    wrong = {"rm", "mv", "touch", "sudo", ">", ">>"}
    words = command.split(" ")
    return "confirm" if wrong & set(words) or words[0] not in ("ls", "cat", "echo", "git", "find", "sort") else "safe"


def looks_at_the_first_part(command: str) -> str:
    """The planted bug: the rest of a chain is not looked at."""
    return the_gate(re.split(r"[;&|\n]", command)[0])


def trusts_names(command: str) -> str:
    """The planted bug: a program that reads is trusted with any option."""
    script = read_script(command)
    names = {"ls", "cat", "echo", "git", "find", "sort", "sed", "awk", "rg", "date"}
    return "safe" if not script.unclear and all(part.texts[0] in names for part in script.parts) else "confirm"


@pytest.mark.planted("a gate that splits at blanks, looks at the first part only, or trusts names")
@pytest.mark.parametrize("planted", [splits_on_blanks, looks_at_the_first_part, trusts_names])
def test_T1_the_corpus_finds_a_planted_bug(planted: Gate) -> None:
    through = let_through(planted, ATTACKS)
    print(f"{planted.__name__}: {len(through)} attacks got through")
    assert len(through) > 10


# Oracle 1: bash itself says which words it makes of a text

TOKENS = [
    "a", "bc", "x1", "中", "é", " ", " ", " ", "\t", "\n", "'", '"', "\\", "\\\n", "#", ";", "|", "&&", "||", "&",
    ">/dev/null",
    "2>&1", "2", "<", ">", "$", "*", "?", "[", "]", "{", "}", "!", "~", "=", ",", "..", "-", "(", ")", "`", "%",
    "\\'", '\\"',
]  # fmt: skip
LISTENING = """command_not_found_handle() {
  local all; printf -v all '%s\\001' "$@"; printf '%s\\002' "$all" >>"$HEARD"; return 0
}
"""


def plain_enough(part: Part) -> bool:
    """Whether bash would hand these words to our listener: no builtin, no assignment, nothing that needs a file."""
    name = part.texts[0] if part.words else ""
    fine = all(r.target.text == "/dev/null" or (r.operator == ">&" and r.target.text == "1") for r in part.redirects)
    return bool(re.fullmatch(r"(?:a|bc|x1|中|é)+", name)) and fine and not any(word.tilde for word in part.words)


def expected_of(parts: tuple[Part, ...]) -> Counter[tuple[str, ...]]:
    """What runs when everything succeeds: all but the pipelines behind ||."""
    run: Counter[tuple[str, ...]] = Counter()
    skipped = False
    for part in parts:
        skipped = skipped if part.joint == "|" else part.joint == "||"
        if not skipped:
            run[tuple(part.texts)] += 1
    return run


def heard_by_bash(text: str, folder: Path) -> tuple[Counter[tuple[str, ...]], bool]:
    """The commands that bash would run, and whether it takes the text for a mistake."""
    log = folder / "heard"
    log.write_bytes(b"")
    empty = folder / "empty"
    empty.mkdir(exist_ok=True)
    env = {"PATH": "/nonexistent", "HEARD": str(log), "LC_ALL": "C.UTF-8"}
    run = subprocess.run(
        ["/bin/bash", "--norc", "--noprofile", "-c", LISTENING + text], cwd=empty, env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=20, check=False,
    )  # fmt: skip
    calls = log.read_text(encoding="utf-8").split("\x02")[:-1]
    return Counter(tuple(call.split("\x01")[:-1]) for call in calls), b"syntax error" in run.stderr


def differences(
    read: Callable[[str], tuple[Part, ...] | None], rng: random.Random, trials: Iterable[int], folder: Path
) -> tuple[list[str], int]:
    """Texts of which bash makes other commands than the reader, and how many texts the reader was sure of."""
    wrong: list[str] = []
    sure = 0
    for _ in trials:
        text, parts = "", None
        while parts is None or not all(map(plain_enough, parts)):
            text = "a" + "".join(rng.choice(TOKENS) for _ in range(rng.randint(1, 12)))
            parts = read(text)
        sure += 1
        expected, (heard, mistake) = expected_of(parts), heard_by_bash(text, folder)
        if heard - expected or (not mistake and heard != expected):
            wrong.append(f"{text!r}: read {dict(expected)}, bash {dict(heard)}")
    return wrong, sure


def sure_parts(text: str) -> tuple[Part, ...] | None:
    script = read_script(text)
    return None if script.unclear else script.parts


def test_T1_bash_makes_the_same_commands_of_every_text_that_is_read_with_certainty(tmp_path: Path, load: Load) -> None:
    wrong, sure = differences(sure_parts, random.Random(load.seed()), load.rounds(500, "commands"), tmp_path)
    print(f"{sure} texts compared with bash")
    assert wrong == []


@pytest.mark.planted("a reader that is blind to line ends")
def test_T1_bash_finds_a_planted_mistake_of_the_reader(tmp_path: Path) -> None:
    def blind_to_line_ends(text: str) -> tuple[Part, ...] | None:
        whole = sure_parts(text)  # bash runs what is on the further lines: it must not write a file there
        plain = whole is not None and all(map(plain_enough, whole))
        return sure_parts(text.replace("\n", " ")) if plain else None

    wrong, _ = differences(blind_to_line_ends, random.Random(7), range(300), tmp_path)
    assert wrong


# T3


def meant(shown: str) -> str:
    """The only command that is shown like this."""

    def back(found: re.Match[str]) -> str:
        slashes, code = found[1], found[2]
        if len(slashes) % 2 == 0:
            return "\\" * (len(slashes) // 2) + code
        return "\\" * (len(slashes) // 2) + chr(int(code[1:], 16))

    text = re.sub(r"(\\+)(u[0-9a-f]{4}|U[0-9a-f]{8}|[uU])", back, shown.replace("⏎\n", "\n"))
    return text


HARD = st.text(alphabet="\\uU0020e\u202e\u200b\n\t ⏎中\u0301\x1b\U000e0041x")


@given(st.one_of(st.text(st.characters(exclude_categories=())), HARD))
@example("\\u202e")
@example("\u202e")
@example("\\\u202e")
@example("\\\\u202e")
@example("⏎\n⏎")
def test_T3_one_command_one_look(text: str) -> None:
    shown = visible_command(text)
    assert meant(shown) == text
    hidden = [
        char
        for char in shown
        if char not in "\n" and unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp", "Cs", "Co", "Cn")
    ]
    assert hidden == []


def test_T3_the_shown_bytes_are_those_that_run_and_ordinary_text_stays_readable() -> None:
    for command in (*ORDINARY, *ATTACKS):
        decision = decide(command, root=root)
        assert meant(decision.shows) == command
        if command.isascii() and command.isprintable() and not re.search(r"\\[uU]", command):
            assert decision.shows == command
    assert visible_command("grep '错误' 日志.txt") == "grep '错误' 日志.txt"
    assert visible_command("rm \u202etxt.a") == "rm \\u202etxt.a"
    assert visible_command("rm \\u202etxt.a") == "rm \\\\u202etxt.a"


@pytest.mark.planted("two commands that look alike")
def test_T3_finds_a_planted_view_that_shows_two_commands_alike() -> None:
    def planted(text: str) -> str:
        return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)

    assert planted("\u202e") == planted("\\u202e")
    assert visible_command("\u202e") != visible_command("\\u202e")
