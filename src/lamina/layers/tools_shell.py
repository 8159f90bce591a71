"""The tool bash: commands in the workspace, as far as the gate lets them run (S8, T3, T4).

The string that is decided on is the string that runs. Which commands are safe is the gate's matter, how a process ends
is hidden by `children`; here is what the model is told about both.
"""

import math
import os
import re
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from lamina.errors import ToolError, shown
from lamina.layers.children import Ran, run_child
from lamina.layers.environment import shell_environment
from lamina.layers.hidden import visible
from lamina.layers.tools import Tool
from lamina.types import Decision, Outcome

SECONDS = 30.0
MOST_SECONDS = 600.0
MOST_BYTES = 256 * 1024
MAX_COMMAND = 100_000
"""Bytes; the system takes no more than about 130,000 in one argument."""
CLOSING = 30.0
"""What the tool has on top of a command's own time, to end it and to read what it said."""
SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)|[ -/]*[0-~])|\x9b[0-?]*[ -/]*[@-~]"
)
"""What moves the cursor, colours, names the window: for terminals, not for readers."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
DESCRIPTION = (
    "Run a shell command in the workspace. It has no input and no terminal, and everything it started ends with it: "
    "nothing stays in the background."
)
WITH_EFFECTS = "Commands that change things wait for the user's yes; dangerous ones are blocked."
LOOKS = "Only commands that look and change nothing can run; all others are blocked."
Decide = Callable[[str], Decision]


def shell_tools(
    root: Path, decide: Decide, *, seconds: float = SECONDS, most_seconds: float = MOST_SECONDS,
    most_bytes: int = MOST_BYTES, effects: bool = True, environ: Mapping[str, str] | None = None,
) -> list[Tool]:  # fmt: skip
    """The tool bash for the folder `root`. `decide` is the gate. Without `effects` only what the gate finds safe runs
    and nobody is asked, as planning wants it. Of `environ` a few harmless names reach the command."""
    shell = _Shell(os.path.realpath(root), decide, seconds, most_seconds, most_bytes, effects, environ)
    return [
        Tool.of(
            shell.bash,
            description=f"{DESCRIPTION} {WITH_EFFECTS if effects else LOOKS}",
            check=shell.check,
            modes=("agent",) if effects else ("plan",),
            seconds=most_seconds + CLOSING,
            advice="Only the beginning is shown. Let the command give less: with grep, head, tail or a narrower path.",
        )
    ]


class _Shell:
    def __init__(
        self, root: str, decide: Decide, seconds: float, most_seconds: float, most_bytes: int, effects: bool,
        environ: Mapping[str, str] | None,
    ) -> None:  # fmt: skip
        if not 0 < seconds <= most_seconds < math.inf or most_bytes < 1:
            raise ToolError(
                f"bash cannot have seconds={seconds!r}, most_seconds={most_seconds!r}, most_bytes={most_bytes!r}",
                hint="all above 0, and seconds at most most_seconds",
            )
        self.root, self.decide, self.effects = root, decide, effects
        self.seconds, self.most_seconds, self.most_bytes = seconds, most_seconds, most_bytes
        self.environ = shell_environment(root, environ)

    async def bash(
        self, command: Annotated[str, "The command, as bash takes it."],
        seconds: Annotated[float | None, "How long it may take; leave it out unless the command needs long."] = None,
    ) -> Outcome:  # fmt: skip
        limit = self.seconds if seconds is None else seconds
        if not 0 < limit <= self.most_seconds:
            raise ToolError(f"seconds={limit:g} is out of bounds", hint=f"above 0 and at most {self.most_seconds:g}")
        _check_form(command)
        try:
            ran = await run_child(
                [*interpreter(), command], folder=self.root, environ=self.environ, seconds=limit,
                most_bytes=self.most_bytes,
            )  # fmt: skip
        except OSError as error:
            raise ToolError(f"the command could not be started: {error.strerror}", hint="tell the user") from None
        return outcome(ran, limit)

    def check(self, arguments: Mapping[str, Any]) -> Decision:
        command = arguments["command"]
        _check_form(command)
        decision = self.decide(command)
        decision = replace(decision, shows=decision.shows or visible(command, "\n"))
        if self.effects or decision.verdict == "safe":
            return decision
        reason = f"this mode only looks, and the command may change something: {decision.reason}"
        return Decision("block", reason.removesuffix(": "), decision.shows)


def _check_form(command: str) -> None:
    if not command.strip():
        raise ToolError("the command is empty", hint="give a command")
    if "\0" in command:
        raise ToolError("the command holds a NUL character, which no command can", hint="leave it out")
    if len(command.encode()) > MAX_COMMAND:
        raise ToolError(f"the command is longer than {MAX_COMMAND} bytes", hint="write a file, and use that")


def interpreter() -> list[str]:
    """bash without the user's start-up files, or sh where there is none."""
    bash = next((path for path in ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash") if os.path.exists(path)), None)
    return [bash, "--noprofile", "--norc", "-c"] if bash else [shutil.which("sh") or "/bin/sh", "-c"]


def outcome(ran: Ran, limit: float) -> Outcome:
    """What the model reads. A command that ends with another code than 0 has done its work too, as grep does when it
    finds nothing: it counts as done and says its code. Only one that had to be ended has failed."""
    text = readable(ran.output)
    heads: list[str] = []
    if ran.code is None:
        heads.append(
            f"[ended after {limit:g} seconds, with everything it had started: it was not done. Give it more seconds, "
            "or let it do less]"
        )
    elif ran.code:
        heads.append(f"[exit code {ran.code}]" if ran.code > 0 else f"[ended by signal {_signal(-ran.code)}]")
    if ran.dropped:
        heads.append(f"[only the beginning of the output was kept; {ran.dropped} bytes more were dropped]")
    if not text.strip():
        heads.append("[no output]")
    return Outcome("\n".join([*heads, text] if text.strip() else heads), "failed" if ran.code is None else "done")


def readable(output: str) -> str:
    """Without what is meant for a terminal: sequences are dropped, other control characters become visible."""
    text = SEQUENCE.sub("", output).replace("\r\n", "\n").replace("\r", "\n")
    return CONTROL.sub(lambda found: visible(found[0]), text)


def _signal(number: int) -> str:
    known = {each.value: each.name for each in signal.Signals}
    return f"{number} ({known[number]})" if number in known else shown(number)
