"""The tool bash: commands in the workspace, as far as the gate lets them run (S8, T3, T4, T10).

The string that is decided on is the string that runs. The gate (`shell.policy`) decides which commands are safe, the
sandbox what a command can reach; this module tells the model about both.
"""

import math
import os
import re
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from lamina.errors import ToolError, format_value
from lamina.sandbox.process import CommandResult, is_below, shell_environment
from lamina.sandbox.sandbox import MB, SYSTEM_FOLDERS, Sandbox, SandboxRunner
from lamina.text.messages import Phrase
from lamina.text.unicode import visible
from lamina.tools.registry import Tool
from lamina.types import Decision, Outcome

SECONDS = 30.0
MAX_SECONDS = 600.0
MAX_OUTPUT_BYTES = 256 * 1024
MAX_COMMAND_BYTES = 100_000
"""The system accepts about 130,000 in one argument."""
CLOSING_SECONDS = 30.0
"""What the tool has beyond a command's own time, to end it and to read its output."""
TERMINAL_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)|[ -/]*[0-~])|\x9b[0-?]*[ -/]*[@-~]"
)
"""Sequences that move the cursor, set colours or name the window."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
DESCRIPTION = (
    "Run a shell command in the workspace. It has no input and no terminal, and everything it started ends with it: "
    "nothing stays in the background."
)
WITH_EFFECTS = "Commands that change things wait for the user's yes; dangerous ones are blocked."
READ_ONLY = "Only commands that look and change nothing can run; all others are blocked."
IN_SANDBOX = (
    "Where the system can, it runs in a sandbox: it sees the workspace and the system's programs, writes only in the "
    "workspace (and nothing there unless the user was asked), {network}, and HOME and TMPDIR are a private folder that "
    "is emptied after each command."
)
NETWORK = {True: "has the network only if the user was asked", False: "has no network"}
MAX_CONFIRMABLE = 1_000
HINT_CHARS = 20_000
"""How much of the end of the output is searched for signs of a refused file or address."""
REFUSED_FILE = ("Permission denied", "Read-only file system", "Operation not permitted", "EACCES", "EROFS", "EPERM")
ABSENT_FILE = "No such file or directory"
REFUSED_NETWORK = (
    "Could not resolve host", "Temporary failure in name resolution", "Network is unreachable", "ENETUNREACH",
    "EAI_AGAIN", "Name or service not known", "failed to lookup address", "Couldn't connect to server",
    "Name does not resolve", "unable to resolve", "Connection refused", "ECONNREFUSED", "socket: Permission denied",
)  # fmt: skip
OUT_OF_MEMORY = ("memoryerror", "cannot allocate memory", "out of memory", "bad_alloc", "memory allocation", "enomem")
NETWORK_PROGRAMS = {
    **dict.fromkeys(
        "curl wget aria2c ssh scp sftp rsync nc ncat netcat ftp telnet dig host nslookup ping ping6 traceroute whois "
        "apt apt-get dnf yum apk brew gh npx pipx uvx".split()
    ),
    "git": "clone fetch pull push ls-remote submodule", "pip": "install download", "pip3": "install download",
    "uv": "add pip sync lock tool", "npm": "install i ci add update publish audit view", "pnpm": "install add update",
    "yarn": "install add up", "cargo": "install fetch update publish add search", "go": "get install mod",
    "gem": "install update", "docker": "pull push build login", "poetry": "install add update lock",
}  # fmt: skip
"""Programs that need the network, some of them only with one of these subcommands."""
RUNNERS = frozenset("sudo doas env time nice nohup timeout command exec xargs then do else if while !".split())
PRIVATE_FOLDERS = ("/dev", "/proc", "/tmp", "/var/tmp")
"""Each command has its own."""
LIMIT_CODES = {"memory": "bash.over_memory", "processes": "bash.over_processes"}
Decide = Callable[[str], Decision]


def shell_tools(
    root: Path,
    decide: Decide,
    *,
    seconds: float = SECONDS,
    max_seconds: float = MAX_SECONDS,
    max_bytes: int = MAX_OUTPUT_BYTES,
    effects: bool = True,
    environ: Mapping[str, str] | None = None,
    sandbox: Sandbox | None = None,
) -> list[Tool]:
    """The tool bash for the folder `root`. `decide` is the gate. Without `effects`, as in plan mode, only what the gate
    finds safe runs and the user is never asked. A few harmless names of `environ` reach the command."""
    sandbox = sandbox or Sandbox()
    shell = _Shell(os.path.realpath(root), decide, seconds, max_seconds, max_bytes, effects, environ, sandbox)
    limits = "" if sandbox.use == "off" else " " + IN_SANDBOX.format(network=NETWORK[sandbox.network and effects])
    return [
        Tool.of(
            shell.bash,
            description=f"{DESCRIPTION} {WITH_EFFECTS if effects else READ_ONLY}{limits}",
            note=f"{DESCRIPTION} {WITH_EFFECTS if effects else READ_ONLY}",
            check=shell.check,
            modes=("agent",) if effects else ("plan",),
            seconds=max_seconds + CLOSING_SECONDS,
            advice="Only the beginning is shown. Let the command give less: with grep, head, tail or a narrower path.",
        )
    ]


class _Shell:
    def __init__(
        self,
        root: str,
        decide: Decide,
        seconds: float,
        max_seconds: float,
        max_bytes: int,
        effects: bool,
        environ: Mapping[str, str] | None,
        sandbox: Sandbox,
    ) -> None:
        if not 0 < seconds <= max_seconds < math.inf or max_bytes < 1:
            raise ToolError("bash.bad_limits", seconds=seconds, max_seconds=max_seconds, max_bytes=max_bytes)
        self.root, self.decide, self.effects = root, decide, effects
        self.seconds, self.max_seconds, self.max_bytes = seconds, max_seconds, max_bytes
        clean = shell_environment(root, environ)
        self.runner = SandboxRunner(sandbox, root, clean, home=clean["HOME"])
        self.confirmable: dict[str, None] = {}
        """Commands that the gate wants a yes for. Only these may change files; all others get the stricter sandbox."""
        self.warned = sandbox.use == "off"

    async def bash(
        self,
        command: Annotated[str, "The command, as bash takes it."],
        seconds: Annotated[float | None, "How long it may take; leave it out unless the command needs long."] = None,
    ) -> Outcome:
        limit = self.seconds if seconds is None else seconds
        if not 0 < limit <= self.max_seconds:
            raise ToolError("bash.bad_seconds", seconds=f"{limit:g}", limit=f"{self.max_seconds:g}")
        _check_form(command)
        try:
            changes = self.effects and command in self.confirmable
            ran = await self.runner.run(
                [*find_shell(), command], seconds=limit, max_bytes=self.max_bytes, changes=changes
            )
        except OSError as error:
            raise ToolError("bash.not_started", reason=error.strerror) from None
        notes = explain_sandbox(ran, command, self.runner, changes=changes)
        if not self.warned and self.runner.mode == "none":
            self.warned = True
            notes.append(Phrase("bash.no_sandbox"))
        return describe_result(ran, limit, notes)

    def check(self, arguments: Mapping[str, Any]) -> Decision:
        command = arguments["command"]
        _check_form(command)
        decision = self.decide(command)
        self.confirmable.pop(command, None)
        if decision.verdict == "confirm":
            self.confirmable[command] = None
            while len(self.confirmable) > MAX_CONFIRMABLE:
                del self.confirmable[next(iter(self.confirmable))]
        decision = replace(decision, shows=decision.shows or visible(command, "\n"))
        without_network = self.runner.mode != "none" and not self.runner.sandbox.network
        if decision.verdict == "confirm" and without_network and needs_network(command):
            code = "gate.without_network" if decision.reason else "gate.no_network"
            decision = replace(decision, reason=Phrase(code, reason=decision.reason))
        if self.effects or decision.verdict == "safe":
            return decision
        code = "gate.mode_only_reads_why" if decision.reason else "gate.mode_only_reads"
        return Decision("block", Phrase(code, reason=decision.reason), decision.shows)


def _check_form(command: str) -> None:
    if not command.strip():
        raise ToolError("bash.empty_command")
    if "\0" in command:
        raise ToolError("bash.nul_character")
    if len(command.encode()) > MAX_COMMAND_BYTES:
        raise ToolError("bash.command_too_long", limit=MAX_COMMAND_BYTES)


def find_shell() -> list[str]:
    """The command that runs a script: bash without the user's start-up files, or sh where there is none."""
    bash = next((path for path in ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash") if os.path.exists(path)), None)
    return [bash, "--noprofile", "--norc", "-c"] if bash else [shutil.which("sh") or "/bin/sh", "-c"]


def explain_sandbox(ran: CommandResult, command: str, runner: SandboxRunner, *, changes: bool) -> list[Phrase]:
    """How the sandbox affected the result. A limit that ended the command is certain; a missing network or folder is
    guessed from the command, and other refusals from its output."""
    kind, _, size = ran.report.get("limit", "").partition(" ")
    if kind:
        amount = int(size) if kind == "processes" else int(size) // MB
        return [Phrase(LIMIT_CODES.get(kind, "bash.over_limit"), limit=amount, resource=kind)]
    if "ready" not in ran.report:
        return []
    end, notes = ran.output[-HINT_CHARS:] if ran.code else "", list[Phrase]()
    paths = find_hidden_paths(command, runner) if ran.code or not ran.output.strip() else []
    is_absent = ABSENT_FILE in end and names_path_outside(command, runner)
    if is_absent or any(words in end for words in REFUSED_FILE):
        notes.append(Phrase("bash.could_write_workspace" if changes else "bash.could_write_temporary"))
    elif paths:
        notes.append(Phrase("bash.private_home" if paths[0][0] in "~$" else "bash.hidden_path", path=paths[0]))
    asks_network = needs_network(command) or any(words in end for words in REFUSED_NETWORK)
    if ran.code and asks_network and not (changes and runner.sandbox.network):
        notes.append(Phrase("bash.network_only_if_asked" if runner.sandbox.network else "bash.no_network"))
    if any(words in end.lower() for words in OUT_OF_MEMORY):
        notes.append(Phrase("bash.memory_limit", limit=runner.sandbox.limits.memory_mb))
    return notes


def needs_network(command: str) -> bool:
    """Whether one of its programs is known to need the network."""
    for mark in "|&;()\n`":
        command = command[:HINT_CHARS].replace(mark, " ; ")
    names, program = set[str](), ""
    for word in command.split():
        if "/dev/tcp/" in word or "/dev/udp/" in word:
            return True
        if word == ";":
            program = ""
        elif not program and not (word in RUNNERS or word[:1] in ("-", "$") or "=" in word or word[:1].isdigit()):
            program = os.path.basename(word)
            names.add(program)
        elif program:
            names.add(f"{program} {word}")
    return any(
        (name in names if words is None else any(f"{name} {word}" in names for word in words.split()))
        for name, words in NETWORK_PROGRAMS.items()
    )


def find_hidden_paths(command: str, runner: SandboxRunner) -> list[str]:
    """The words of a command that are paths which the sandbox hides or replaces. A word that starts with a name that
    is not in / is a pattern, not a path."""
    words = [word.strip("<>&'\"=();") for word in command[:HINT_CHARS].split()]
    visible_here = (runner.root, *SYSTEM_FOLDERS, *PRIVATE_FOLDERS, *runner.readable)
    home = [word for word in words if word.split("/")[0] in ("~", "$HOME", "${HOME}")]
    outside = [
        word for word in words if word.startswith("/") and not any(is_below(word, each) for each in visible_here)
    ]
    return home + [word for word in outside if os.path.isdir("/" + word.split("/")[1]) and word.strip("/")]


def names_path_outside(command: str, runner: SandboxRunner) -> bool:
    """Whether a word of the command looks like a path that leads out of the folder."""
    words = (word.lstrip("<>&'\"=(") for word in command[:HINT_CHARS].split())
    return any(word.startswith("..") for word in words) or bool(find_hidden_paths(command, runner))


def describe_result(ran: CommandResult, limit: float, notes: Sequence[Phrase] = ()) -> Outcome:
    """What the model reads. A command with another exit code than 0 may have worked, as grep does when it finds
    nothing, so it counts as done and its code is shown. Only one that had to be ended has failed."""
    text = clean_output(ran.output)
    heads: list[Phrase] = []
    if ran.code is None:
        heads.append(Phrase("bash.out_of_time", seconds=f"{limit:g}"))
    elif ran.code > 0:
        heads.append(Phrase("bash.exit_code", code=ran.code))
    elif ran.code:
        heads.append(Phrase("bash.ended_by_signal", signal=_name_signal(-ran.code)))
    if ran.dropped:
        heads.append(Phrase("bash.output_cut", count=ran.dropped))
    heads += notes
    if not text.strip():
        heads.append(Phrase("bash.no_output"))
    lines = [f"[{head.text()}]" for head in heads]
    return Outcome("\n".join([*lines, text] if text.strip() else lines), "failed" if ran.code is None else "done")


def clean_output(output: str) -> str:
    """Drop sequences that are meant for a terminal, and make other control characters visible."""
    text = TERMINAL_SEQUENCE.sub("", output).replace("\r\n", "\n").replace("\r", "\n")
    return CONTROL.sub(lambda found: visible(found[0]), text)


def _name_signal(number: int) -> str:
    known = {each.value: each.name for each in signal.Signals}
    return f"{number} ({known[number]})" if number in known else format_value(number)
