"""The tool bash: commands in the workspace, as far as the gate lets them run (S8, T3, T4, T10).

The string that is decided on is the string that runs. Which commands are safe is the gate's matter, what a command can
reach is the sandbox's; here is what the model is told about both.
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
from lamina.sandbox.process import Ran, shell_environment
from lamina.sandbox.sandbox import MB, SYSTEM_FOLDERS, Confined, Sandbox, is_below
from lamina.text.messages import Phrase
from lamina.text.unicode import visible
from lamina.tools.registry import Tool
from lamina.types import Decision, Outcome

SECONDS = 30.0
MAX_SECONDS = 600.0
MAX_OUTPUT_BYTES = 256 * 1024
MAX_COMMAND_BYTES = 100_000
"""The system takes no more than about 130,000 in one argument."""
CLOSING_SECONDS = 30.0
"""What the tool has on top of a command's own time, to end it and to read its output."""
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
LOOKS = "Only commands that look and change nothing can run; all others are blocked."
HELD = (
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
"""Programs that do nothing without the network, some of them only with one of these words."""
RUNNERS = frozenset("sudo doas env time nice nohup timeout command exec xargs then do else if while !".split())
NEVER_HIDDEN = ("/dev", "/proc", "/tmp", "/var/tmp")
"""Each command has these to itself."""
LIMIT_CODES = {"memory": "bash.over_memory", "processes": "bash.over_processes"}
Decide = Callable[[str], Decision]


def shell_tools(
    root: Path, decide: Decide, *, seconds: float = SECONDS, most_seconds: float = MAX_SECONDS,
    most_bytes: int = MAX_OUTPUT_BYTES, effects: bool = True, environ: Mapping[str, str] | None = None,
    sandbox: Sandbox | None = None,
) -> list[Tool]:  # fmt: skip
    """The tool bash for the folder `root`. `decide` is the gate. Without `effects` only what the gate finds safe runs
    and the user is never asked, as in plan mode. Of `environ` a few harmless names reach the command."""
    sandbox = sandbox or Sandbox()
    shell = _Shell(os.path.realpath(root), decide, seconds, most_seconds, most_bytes, effects, environ, sandbox)
    held = "" if sandbox.use == "off" else " " + HELD.format(network=NETWORK[sandbox.network and effects])
    return [
        Tool.of(
            shell.bash,
            description=f"{DESCRIPTION} {WITH_EFFECTS if effects else LOOKS}{held}",
            note=f"{DESCRIPTION} {WITH_EFFECTS if effects else LOOKS}",
            check=shell.check,
            modes=("agent",) if effects else ("plan",),
            seconds=most_seconds + CLOSING_SECONDS,
            advice="Only the beginning is shown. Let the command give less: with grep, head, tail or a narrower path.",
        )
    ]


class _Shell:
    def __init__(
        self, root: str, decide: Decide, seconds: float, most_seconds: float, most_bytes: int, effects: bool,
        environ: Mapping[str, str] | None, sandbox: Sandbox,
    ) -> None:  # fmt: skip
        if not 0 < seconds <= most_seconds < math.inf or most_bytes < 1:
            raise ToolError("bash.bad_limits", seconds=seconds, most_seconds=most_seconds, most_bytes=most_bytes)
        self.root, self.decide, self.effects = root, decide, effects
        self.seconds, self.most_seconds, self.most_bytes = seconds, most_seconds, most_bytes
        clean = shell_environment(root, environ)
        self.confined = Confined(sandbox, root, clean, home=clean["HOME"])
        self.confirmable: dict[str, None] = {}
        """Commands that run only after the user said yes; all others get the stricter sandbox."""
        self.warned = sandbox.use == "off"

    async def bash(
        self, command: Annotated[str, "The command, as bash takes it."],
        seconds: Annotated[float | None, "How long it may take; leave it out unless the command needs long."] = None,
    ) -> Outcome:  # fmt: skip
        limit = self.seconds if seconds is None else seconds
        if not 0 < limit <= self.most_seconds:
            raise ToolError("bash.bad_seconds", seconds=f"{limit:g}", limit=f"{self.most_seconds:g}")
        _check_form(command)
        try:
            changes = self.effects and command in self.confirmable
            ran = await self.confined.run(
                [*interpreter(), command], seconds=limit, most_bytes=self.most_bytes, changes=changes
            )
        except OSError as error:
            raise ToolError("bash.not_started", reason=error.strerror) from None
        notes = sandbox_notes(ran, command, self.confined, changes=changes)
        if not self.warned and self.confined.mode == "none":
            self.warned = True
            notes.append(Phrase("bash.no_sandbox"))
        return outcome(ran, limit, notes)

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
        without_network = self.confined.mode != "none" and not self.confined.sandbox.network
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


def interpreter() -> list[str]:
    """bash without the user's start-up files, or sh where there is none."""
    bash = next((path for path in ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash") if os.path.exists(path)), None)
    return [bash, "--noprofile", "--norc", "-c"] if bash else [shutil.which("sh") or "/bin/sh", "-c"]


def sandbox_notes(ran: Ran, command: str, confined: Confined, *, changes: bool) -> list[Phrase]:
    """What the sandbox had to do with the result, as far as that is known: a limit that ended the command is certain;
    a missing network or folder is guessed from the command, and other refusals from its output."""
    kind, _, most = ran.report.get("limit", "").partition(" ")
    if kind:
        amount = int(most) if kind == "processes" else int(most) // MB
        return [Phrase(LIMIT_CODES.get(kind, "bash.over_limit"), limit=amount, resource=kind)]
    if "ready" not in ran.report:
        return []
    end, notes = ran.output[-HINT_CHARS:] if ran.code else "", list[Phrase]()
    paths = hidden_paths(command, confined) if ran.code or not ran.output.strip() else []
    refused = any(words in end for words in REFUSED_FILE) or (ABSENT_FILE in end and names_outside(command, confined))
    if refused:
        notes.append(Phrase("bash.could_write_workspace" if changes else "bash.could_write_temporary"))
    elif paths:
        notes.append(Phrase("bash.private_home" if paths[0][0] in "~$" else "bash.hidden_path", path=paths[0]))
    asks_network = needs_network(command) or any(words in end for words in REFUSED_NETWORK)
    if ran.code and asks_network and not (changes and confined.sandbox.network):
        notes.append(Phrase("bash.network_only_if_asked" if confined.sandbox.network else "bash.no_network"))
    if any(words in end.lower() for words in OUT_OF_MEMORY):
        notes.append(Phrase("bash.memory_limit", limit=confined.sandbox.limits.memory_mb))
    return notes


def needs_network(command: str) -> bool:
    """Whether one of its programs is known to do nothing without the network."""
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


def hidden_paths(command: str, confined: Confined) -> list[str]:
    """The words of a command that are paths which the sandbox does not show, or shows as something else. Below a name
    that is not in / at all there is nothing to hide: such a word is a pattern."""
    words = [word.strip("<>&'\"=();") for word in command[:HINT_CHARS].split()]
    visible_here = (confined.root, *SYSTEM_FOLDERS, *NEVER_HIDDEN, *confined.readable)
    home = [word for word in words if word.split("/")[0] in ("~", "$HOME", "${HOME}")]
    outside = [
        word for word in words if word.startswith("/") and not any(is_below(word, each) for each in visible_here)
    ]
    return home + [word for word in outside if os.path.isdir("/" + word.split("/")[1]) and word.strip("/")]


def names_outside(command: str, confined: Confined) -> bool:
    """Whether a word of the command looks like a path that leads out of the folder."""
    words = (word.lstrip("<>&'\"=(") for word in command[:HINT_CHARS].split())
    return any(word.startswith("..") for word in words) or bool(hidden_paths(command, confined))


def outcome(ran: Ran, limit: float, notes: Sequence[Phrase] = ()) -> Outcome:
    """What the model reads. A command that ends with another code than 0 may have worked too, as grep does when it
    finds nothing: it counts as done, and its code is shown. Only one that had to be ended has failed."""
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
    """Output without what is meant for a terminal: sequences are dropped, other control characters become visible."""
    text = TERMINAL_SEQUENCE.sub("", output).replace("\r\n", "\n").replace("\r", "\n")
    return CONTROL.sub(lambda found: visible(found[0]), text)


def _name_signal(number: int) -> str:
    known = {each.value: each.name for each in signal.Signals}
    return f"{number} ({known[number]})" if number in known else format_value(number)
